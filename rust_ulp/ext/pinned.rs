// SPDX-License-Identifier: GPL-2.0

//! Pinned pages of a process.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::errno::eopnotsupp;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    bindings::{
        pin_user_pages_fast,
        unpin_user_page_range_dirty_lock,
        FOLL_LONGTERM,
        FOLL_WRITE, //
    },
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

/// The number of pages that are pinned at a time.
const BATCH: usize = 128;

/// Pinned pages of a process, in the order of their addresses.
///
/// # Invariants
///
/// Each page was pinned once, and dropping this value unpins it.
pub(super) struct Pinned(KVVec<NonNull<kernel::bindings::page>>);

impl Pinned {
    /// Pins `count` pages of the current process from the address `start` on, for reading, and for
    /// writing if `write` is set. Sleeps, and faults pages in. Fails with
    ///
    /// - [`EFAULT`] for pages that are not mapped, or not with that right,
    /// - [`EOPNOTSUPP`](super::errno::eopnotsupp) for pages that cannot stay in place,
    /// - [`ENOMEM`],
    /// - [`EINTR`] when the process is being killed.
    pub(super) fn new(start: usize, count: usize, write: bool) -> Result<Self> {
        let gup_flags = FOLL_LONGTERM | if write { FOLL_WRITE } else { 0 };
        let mut pinned = Self(KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?);
        while pinned.0.len() < count {
            let at = start.wrapping_add(pinned.0.len() << PAGE_SHIFT);
            let left = count.saturating_sub(pinned.0.len()).min(BATCH);
            let mut batch = [core::ptr::null_mut(); BATCH];
            // SAFETY: The array has room for `left` pointers.
            let got =
                unsafe { pin_user_pages_fast(at, left as i32, gup_flags, batch.as_mut_ptr()) };
            if got <= 0 {
                let err = to_result(got).err().unwrap_or(EFAULT);
                return Err(if err == EFAULT {
                    why_fault(at, write)
                } else {
                    err
                });
            }
            for page in batch.iter().take(got as usize) {
                // INVARIANT: The page was just pinned. There is room, since no more pages are
                // requested.
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

    /// Returns the pages.
    pub(super) fn pages(&self) -> &[NonNull<kernel::bindings::page>] {
        &self.0
    }

    /// Leaves the pages pinned; the caller calls [`unpin`].
    pub(super) fn into_raw(mut self) {
        self.0.clear();
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for page in self.0.iter() {
            // SAFETY: By the type invariant. Nobody has written to the page by this pin.
            unsafe { kernel::bindings::unpin_user_page(page.as_ptr()) };
        }
    }
}

/// Returns why the page at `addr` cannot be pinned when the kernel says [`EFAULT`].
///
/// Mapped memory that cannot be pinned for long is [`eopnotsupp`]: device memory, and files with
/// writeback, whose filesystem must hear of every write. A process that is being killed gets
/// [`EINTR`].
fn why_fault(addr: usize, write: bool) -> Error {
    let mut vma = bindings::rust_ulp_h_vma::default();
    // SAFETY: The helper looks at the current process, and the struct is valid.
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

/// Returns the frame numbers of pages.
pub(super) fn frames(
    pages: &[NonNull<kernel::bindings::page>],
) -> impl Iterator<Item = usize> + '_ {
    // SAFETY: Arithmetic on the address of a page.
    let number = |page: &NonNull<_>| unsafe { bindings::rust_ulp_h_page_to_pfn(page.as_ptr()) };
    pages.iter().map(number)
}

/// Unpins `extents`; each is its first page, the offset in that page, and a number of bytes. The
/// pages become dirty if they were pinned for writing.
///
/// # Safety
///
/// The pages of an extent were pinned, and are contiguous in the memory map.
pub(super) unsafe fn unpin(
    extents: impl Iterator<Item = (NonNull<kernel::bindings::page>, usize, usize)>,
    write: bool,
) {
    for (page, within, bytes) in extents {
        let count = within.saturating_add(bytes).div_ceil(PAGE_SIZE);
        // SAFETY: By the requirement.
        unsafe {
            unpin_user_page_range_dirty_lock(page.as_ptr(), count, write);
        }
    }
}
