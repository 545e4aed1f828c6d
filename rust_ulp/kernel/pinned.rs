// SPDX-License-Identifier: GPL-2.0

//! Pages of a process, pinned where they are.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::errno::eopnotsupp;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    mm::virt::{
        flags,
        vm_flags_t, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*, //
};

/// Pages that are asked for at a time.
const BATCH: usize = 128;

/// Pages of a process, in the order of their addresses.
///
/// # Invariants
///
/// Each was pinned once, and is unpinned when this is dropped.
pub(super) struct Pinned(KVVec<NonNull<kernel::bindings::page>>);

impl Pinned {
    /// Pins `count` pages of the current process from the address `start` on, for reading, and for
    /// writing if `write` says so. Sleeps, and faults pages in.
    ///
    /// [`EFAULT`] for what is not mapped, or not for that; [`EOPNOTSUPP`](super::errno::eopnotsupp)
    /// for what cannot stay; [`ENOMEM`]; [`EINTR`] when the process is being killed.
    pub(super) fn new(start: usize, count: usize, write: bool) -> Result<Self> {
        let mut pinned = Self(KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?);
        while pinned.0.len() < count {
            let at = start.wrapping_add(pinned.0.len() << PAGE_SHIFT);
            let left = count.saturating_sub(pinned.0.len()).min(BATCH);
            let mut batch = [core::ptr::null_mut(); BATCH];
            // SAFETY: There is room for `left` pointers.
            let got = unsafe {
                bindings::rust_ulp_h_pin_user_pages(at, left as i32, write, batch.as_mut_ptr())
            };
            if got <= 0 {
                let err = to_result(got).err().unwrap_or(EFAULT);
                return Err(if err == EFAULT {
                    why_fault(at, write)
                } else {
                    err
                });
            }
            for page in batch.iter().take(got as usize) {
                // INVARIANT: Just pinned. There is room: no more is asked for than that.
                if let Some(page) = NonNull::new(*page) {
                    let _ = pinned.0.push_within_capacity(page);
                }
            }
            if super::task::is_killed() {
                return Err(EINTR);
            }
        }
        Ok(pinned)
    }

    /// The pages.
    pub(super) fn pages(&self) -> &[NonNull<kernel::bindings::page>] {
        &self.0
    }

    /// Leaves the pages pinned: they are the caller's to [`unpin`].
    pub(super) fn into_raw(mut self) {
        self.0.clear();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for page in self.0.iter() {
            // SAFETY: By the type invariant. Nobody has written to it by this pin.
            unsafe { kernel::bindings::unpin_user_page(page.as_ptr()) };
        }
    }
}

/// Why the page at `addr` cannot be pinned, where pinning says [`EFAULT`].
///
/// That also means memory that is mapped and cannot be pinned for long, which is [`eopnotsupp`] here:
/// device memory, and files that are written back, whose filesystem has to hear of every write.
/// [`EINTR`] when the process is being killed.
fn why_fault(addr: usize, write: bool) -> Error {
    let mut vma = bindings::rust_ulp_h_vma::default();
    // SAFETY: Looks at the current process, and the struct is valid.
    match to_result(unsafe { bindings::rust_ulp_h_vma_at(addr, &mut vma) }.min(0)) {
        Err(err) => return err,
        Ok(()) if vma.flags == 0 => return EFAULT,
        Ok(()) => (),
    }
    let has = |flags: vm_flags_t| vma.flags & flags as u64 != 0;
    let allowed = has(if write { flags::WRITE } else { flags::READ });
    let is_device = has(flags::IO | flags::PFNMAP);
    let is_written_back = write && has(flags::SHARED) && vma.writeback;
    if allowed && (is_device || is_written_back) {
        eopnotsupp()
    } else {
        EFAULT
    }
}

/// The numbers in memory of pages that are held.
pub(super) fn frames(
    pages: &[NonNull<kernel::bindings::page>],
) -> impl Iterator<Item = usize> + '_ {
    // SAFETY: Pure arithmetic on a page that is there.
    let number = |page: &NonNull<_>| unsafe { bindings::rust_ulp_h_page_to_pfn(page.as_ptr()) };
    pages.iter().map(number)
}

/// Unpins `extents`: the page that each begins in, where it does, and its bytes. They are dirty when
/// something could `write` to them.
///
/// # Safety
///
/// The pages of an extent were pinned, and follow each other in the memory map.
pub(super) unsafe fn unpin(
    extents: impl Iterator<Item = (NonNull<kernel::bindings::page>, usize, usize)>,
    write: bool,
) {
    for (page, within, bytes) in extents {
        let count = within.saturating_add(bytes).div_ceil(PAGE_SIZE);
        // SAFETY: By the requirement.
        unsafe {
            bindings::rust_ulp_h_unpin_range(page.as_ptr(), count, write);
        }
    }
}
