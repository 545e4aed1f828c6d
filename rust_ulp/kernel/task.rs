// SPDX-License-Identifier: GPL-2.0

//! The current task.
//!
//! C header: [`include/linux/sched.h`](srctree/include/linux/sched.h)

use crate::bindings;

/// Lets other tasks run, in a loop that waits for something. Process context.
pub(crate) fn relax() {
    // SAFETY: Takes nothing, and may be called wherever sleeping is allowed.
    unsafe { bindings::rust_ulp_h_relax() };
}

/// Returns whether the current task may take CPU time from others: `CAP_SYS_NICE`.
pub(crate) fn may_raise_priority() -> bool {
    // SAFETY: Looks at the current task.
    unsafe { bindings::rust_ulp_h_may_raise_priority() }
}

/// Returns whether limits do not hold for the current task: `CAP_SYS_RESOURCE`.
pub(crate) fn may_exceed_limits() -> bool {
    // SAFETY: Looks at the current task.
    unsafe { bindings::rust_ulp_h_may_exceed_limits() }
}

/// Returns whether the current task is being killed.
///
/// A pending signal does not count: work of io_uring for the task looks like one, and a command that
/// gives up for it would fail for no reason.
pub(crate) fn is_killed() -> bool {
    // SAFETY: Looks at the current task.
    unsafe { bindings::rust_ulp_h_is_killed() }
}
