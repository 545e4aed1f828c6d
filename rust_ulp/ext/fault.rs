// SPDX-License-Identifier: GPL-2.0

//! Fault injection for calls other than allocations.
//!
//! On a kernel with `CONFIG_FAULT_INJECTION`, each call of a verb or of the connection manager that
//! can fail has a fault point before it. The point fails when the kernel's fault injection says so:
//! `/proc/PID/task/TID/fail-nth`, or the module's [`Directory`] in debugfs. With `stall-ms` in that
//! directory, the point sleeps that long instead, and so do the steps of destruction, so that other
//! events happen in between. On other kernels a point is no code.
//!
//! C header: [`include/linux/fault-inject.h`](srctree/include/linux/fault-inject.h)

#[cfg(CONFIG_FAULT_INJECTION)]
use crate::bindings;
use kernel::prelude::*;

/// Fails with [`EIO`] when a fault is injected: a point before a call that can fail. Process
/// context; may sleep.
#[cfg(CONFIG_FAULT_INJECTION)]
pub(crate) fn point() -> Result {
    // SAFETY: The helper takes no pointer, and the caller may sleep.
    kernel::error::to_result(unsafe { bindings::rust_ulp_h_fault(true) })
}

/// Sleeps when a fault is injected: a point before a call that cannot fail, where other events may
/// come in between. Process context.
#[cfg(CONFIG_FAULT_INJECTION)]
pub(crate) fn step() {
    // SAFETY: The helper takes no pointer, and the caller may sleep. The result is 0.
    unsafe { bindings::rust_ulp_h_fault(false) };
}

/// Succeeds: this kernel injects no faults.
#[cfg(not(CONFIG_FAULT_INJECTION))]
#[inline(always)]
pub(crate) fn point() -> Result {
    Ok(())
}

/// Returns: this kernel injects no faults.
#[cfg(not(CONFIG_FAULT_INJECTION))]
#[inline(always)]
pub(crate) fn step() {}

/// The directory in debugfs. Dropping it removes the directory.
///
/// ```
/// fn init() -> Directory {
///     Directory::new(c"fail_pinger") // Kept until the module is unloaded.
/// }
/// ```
pub(crate) struct Directory(());

impl Directory {
    /// Creates the directory `name`; a kernel without debugfs has none. Once per module load.
    /// Sleeps.
    #[cfg_attr(not(CONFIG_FAULT_INJECTION), expect(unused_variables))]
    pub(crate) fn new(name: &CStr) -> Self {
        #[cfg(CONFIG_FAULT_INJECTION)]
        // SAFETY: Called once, before anything else of the module runs. debugfs copies the name.
        unsafe {
            bindings::rust_ulp_h_fault_register(name.as_char_ptr())
        };
        Self(())
    }
}

#[cfg(CONFIG_FAULT_INJECTION)]
impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: `new` has created it, and it is removed once.
        unsafe { bindings::rust_ulp_h_fault_unregister() };
    }
}
