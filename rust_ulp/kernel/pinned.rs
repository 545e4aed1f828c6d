// SPDX-License-Identifier: GPL-2.0

//! Pages of a process, pinned where they are.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::{
    charge::Locked,
    pages::{
        Backing,
        Pages,
        PAGE_SHIFT,
        PAGE_SIZE, //
    }, //
};
use crate::{
    bindings,
    logic::chunks, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// Pages that are asked for at a time.
const BATCH: usize = 128;

/// Pages that were pinned so far.
///
/// # Invariants
///
/// Each was pinned once, and is unpinned when this is dropped.
struct Pinned(KVVec<NonNull<kernel::bindings::page>>);

impl Drop for Pinned {
    fn drop(&mut self) {
        for page in self.0.iter() {
            // SAFETY: By the type invariant. Nobody has written to it by this pin.
            unsafe { kernel::bindings::unpin_user_page(page.as_ptr()) };
        }
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

impl Pages {
    /// Pins the `len` bytes at `addr` of the current process, for reading, and for writing if
    /// `write` says so, and has it pay for them. Sleeps, and faults pages in: not to be called with
    /// anything held that others wait for.
    ///
    /// Chunks are as large as memory has them ([`chunks::common_order`]), up to `2^max` pages, of the sizes whose bit is set in
    /// `sizes`.
    ///
    /// [`EFAULT`] for what is not mapped, or not for that; [`EOPNOTSUPP`](super::errno::eopnotsupp)
    /// for what cannot stay; [`ENOMEM`]; [`EINTR`] when the process is being killed.
    pub(crate) fn pin(addr: usize, len: usize, write: bool, sizes: u64, max: u32) -> Result<Self> {
        let within = addr & (PAGE_SIZE - 1);
        let start = addr.wrapping_sub(within);
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(EFAULT);
        }
        let count = within.saturating_add(len).div_ceil(PAGE_SIZE);
        let charge = Locked::charge(count)?;
        let mut pinned = Pinned(KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?);
        while pinned.0.len() < count {
            let at = start.wrapping_add(pinned.0.len() << PAGE_SHIFT);
            let left = count.saturating_sub(pinned.0.len()).min(BATCH);
            let mut batch = [core::ptr::null_mut(); BATCH];
            // SAFETY: There is room for `left` pointers.
            let got = unsafe {
                bindings::rust_ulp_h_pin_user_pages(at, left as i32, write, batch.as_mut_ptr())
            };
            if got <= 0 {
                // SAFETY: Looks at the current process only.
                to_result(unsafe { bindings::rust_ulp_h_why_not_pinned(at, write, got) })?;
                return Err(EFAULT);
            }
            for page in batch.iter().take(got as usize) {
                // INVARIANT: Just pinned. There is room: no more is asked for than that.
                if let Some(page) = NonNull::new(*page) {
                    let _ = pinned.0.push_within_capacity(page);
                }
            }
            if super::is_killed() {
                return Err(EINTR);
            }
        }

        let order = chunks::common_order(frames(&pinned.0), start >> PAGE_SHIFT, sizes, max);
        let chunk = PAGE_SIZE << (order & 31);
        let lead = addr & chunk.wrapping_sub(1);
        let in_chunk = (lead >> PAGE_SHIFT) as isize;
        let step = 1usize << (order & 31);
        let total = lead.saturating_add(len).div_ceil(chunk);
        let mut chunks = KVVec::with_capacity(total, GFP_KERNEL_ACCOUNT)?;
        let mut at = 0usize;
        while let Some(page) = pinned.0.get(at) {
            // Where the chunk would begin: for the first one, that may be a page before ours.
            let back = if at == 0 { in_chunk } else { 0 };
            let first = page.as_ptr().wrapping_offset(back.wrapping_neg());
            let _ = chunks.push_within_capacity(NonNull::new(first).ok_or(EFAULT)?);
            at = at
                .saturating_add(step)
                .saturating_sub(usize::try_from(back).unwrap_or(0));
        }
        // What was pinned is the chunks' from here on.
        pinned.0.clear();
        // INVARIANT: Chunk by chunk, the pages follow each other.
        Ok(Self {
            chunks,
            order,
            lead,
            len,
            backing: Backing::Pinned { write },
            charge: Some(charge),
        })
    }
}

/// Unpins all pages of `pages`, which were pinned, and are dirty when something could `write` to them.
pub(super) fn unpin(pages: &Pages, write: bool) {
    for (page, within, bytes) in pages.extents(0, pages.len()) {
        let count = within.saturating_add(bytes).div_ceil(PAGE_SIZE);
        // SAFETY: These pages were pinned, and follow each other.
        unsafe {
            bindings::rust_ulp_h_unpin_range(page.as_ptr(), count, write);
        }
    }
}
