// SPDX-License-Identifier: GPL-2.0

//! Faults of our own, for what failing allocations do not reach.
//!
//! Where the kernel has `CONFIG_FAULT_INJECTION`, each call of a verb or of the connection manager
//! that may fail has a point before it. It fails when the fault injection of the kernel says so:
//! `/proc/PID/task/TID/fail-nth`, or `fail_rust_ulp` in debugfs. With `stall-ms` there, a point that
//! was to fail sleeps that long instead, and so do the steps of taking things down: so that
//! something else happens in the middle. Other kernels have no code of it.
//!
//! C header: [`include/linux/fault-inject.h`](srctree/include/linux/fault-inject.h)

#[cfg(CONFIG_FAULT_INJECTION)]
use crate::bindings;
use kernel::prelude::*;

/// The call that comes next may fail: with [`EIO`], when it is to. Process context; may sleep.
#[cfg(CONFIG_FAULT_INJECTION)]
pub(crate) fn point() -> Result {
    // SAFETY: Takes no pointer; the caller may sleep.
    kernel::error::to_result(unsafe { bindings::rust_ulp_h_fault(true) })
}

/// What comes next cannot fail, but somebody may want to come in between. Process context; may
/// sleep.
#[cfg(CONFIG_FAULT_INJECTION)]
pub(crate) fn step() {
    // SAFETY: Takes no pointer; the caller may sleep. The result is 0.
    unsafe { bindings::rust_ulp_h_fault(false) };
}

/// As [`point`] of a kernel that injects faults.
#[cfg(not(CONFIG_FAULT_INJECTION))]
#[inline(always)]
pub(crate) fn point() -> Result {
    Ok(())
}

/// As [`step`] of a kernel that injects faults.
#[cfg(not(CONFIG_FAULT_INJECTION))]
#[inline(always)]
pub(crate) fn step() {}

/// The directory in debugfs, there while this is.
pub(crate) struct Directory(());

impl Directory {
    /// Makes it; a kernel without debugfs has none. Once per module load. Sleeps.
    pub(crate) fn new() -> Self {
        #[cfg(CONFIG_FAULT_INJECTION)]
        // SAFETY: Called once, before anything else of the module runs.
        unsafe {
            bindings::rust_ulp_h_fault_register()
        };
        Self(())
    }
}

#[cfg(CONFIG_FAULT_INJECTION)]
impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: Made by `new`, and removed once.
        unsafe { bindings::rust_ulp_h_fault_unregister() };
    }
}
