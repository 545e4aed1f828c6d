// SPDX-License-Identifier: GPL-2.0

//! The charge for memory that stays where it is.
//!
//! Memory is charged to the user of the caller, by the counter that io_uring uses as well, and to
//! the address space of the caller, by the counter of `ib_umem`: `VmPin` of `/proc/PID/status`. It
//! is also charged to the user who pays for that user, see [`task::payer`], by a counter of this
//! module: all users of a namespace share it with the user who made the namespace. Each is limited
//! by `RLIMIT_MEMLOCK` of the process that asks. All are kept for as long as they pay, so giving
//! back needs no current process, and is right after `exec()` and in the last `close()` of a process
//! that exits. A child that asks through an inherited file pays as its user.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use super::task;
use crate::bindings;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*, //
};

/// Pages that a user and an address space pay for until this is dropped.
///
/// ```
/// fn charge() -> Result<PinnedCharge> {
///     PinnedCharge::charge(16) // 64 KiB with pages of 4 KiB.
/// }
/// ```
///
/// # Invariants
///
/// Owns the references of `payer`, and `pages` of its counters.
pub(crate) struct PinnedCharge {
    payer: bindings::rust_ulp_h_payer,
    pages: usize,
}

// SAFETY: The counters are atomic, and any thread may give the references back.
unsafe impl Send for PinnedCharge {}
// SAFETY: As above.
unsafe impl Sync for PinnedCharge {}

impl PinnedCharge {
    /// Charges `pages` pages to the current process, its user, and the user who pays for that.
    /// Process context; sleeps.
    ///
    /// Fails with [`ENOMEM`] when that is more than either may have. A process with `CAP_IPC_LOCK`
    /// has no limit, and its user is not charged.
    pub(crate) fn charge(pages: usize) -> Result<Self> {
        let mut payer = bindings::rust_ulp_h_payer::default();
        let limited = !task::may_lock_memory();
        // SAFETY: Any number may be asked for; the struct is valid.
        if !unsafe { bindings::rust_ulp_h_charge_pinned(pages, limited, &mut payer) } {
            return Err(ENOMEM);
        }
        // INVARIANT: All was just taken.
        Ok(Self { payer, pages })
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages as u64) << PAGE_SHIFT
    }
}

impl Drop for PinnedCharge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; given back once.
        unsafe { bindings::rust_ulp_h_uncharge_pinned(&self.payer, self.pages) };
    }
}
