// SPDX-License-Identifier: GPL-2.0

//! Who pays for memory that stays where it is.
//!
//! `RLIMIT_MEMLOCK` of the process that asks for it, by the counter that `ib_umem` uses, too: `VmPin`
//! of `/proc/PID/status`. The address space is kept for as long as it pays, so that giving back needs
//! no current process, and is right after `exec()` and in the last `close()` of a process that exits.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    page::PAGE_SHIFT,
    prelude::*, //
};

/// Pages that an address space pays for until this is dropped.
///
/// # Invariants
///
/// Owns a reference to `mm`, and `pages` of its counter.
pub(crate) struct PinnedCharge {
    mm: NonNull<kernel::bindings::mm_struct>,
    pages: usize,
}

// SAFETY: The counter is atomic, and the reference may be given back by anyone.
unsafe impl Send for PinnedCharge {}
// SAFETY: As above.
unsafe impl Sync for PinnedCharge {}

impl PinnedCharge {
    /// Has the current process pay for `pages` pages. Process context; takes no lock.
    ///
    /// [`ENOMEM`] when that is more than it may have, unless it has `CAP_IPC_LOCK`.
    pub(crate) fn charge(pages: usize) -> Result<Self> {
        // SAFETY: Any number may be asked for.
        let mm = from_err_ptr(unsafe { bindings::rust_ulp_h_charge_pinned(pages) })?;
        // INVARIANT: Both were just taken.
        Ok(Self {
            mm: NonNull::new(mm).ok_or(ENOMEM)?,
            pages,
        })
    }

    /// How many bytes that is.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages as u64) << PAGE_SHIFT
    }
}

impl Drop for PinnedCharge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; given back once.
        unsafe { bindings::rust_ulp_h_uncharge_pinned(self.mm.as_ptr(), self.pages) };
    }
}
