// SPDX-License-Identifier: GPL-2.0

//! The current task.
//!
//! C header: [`include/linux/sched.h`](srctree/include/linux/sched.h)

use crate::bindings;

/// Lets others run, when they want to, in a loop that waits for something. Process context.
pub(crate) fn relax() {
    // SAFETY: Takes nothing, and may be called wherever sleeping is allowed.
    unsafe { bindings::rust_ulp_h_relax() };
}

/// Whether the current task is being killed. Not whether a signal is pending: that io_uring has work
/// for the task looks like one, and a command that gives up for it would fail for no reason.
pub(crate) fn is_killed() -> bool {
    // SAFETY: Looks at the current task.
    unsafe { bindings::rust_ulp_h_is_killed() }
}
