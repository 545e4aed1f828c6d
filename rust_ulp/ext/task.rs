// SPDX-License-Identifier: GPL-2.0

//! The current task. The functions are for process context.
//!
//! C header: [`include/linux/sched.h`](srctree/include/linux/sched.h)

use crate::bindings;
use kernel::ffi::c_int;

/// Lets other tasks run, in a loop that polls. Process context; may sleep.
pub(crate) fn relax() {
    // SAFETY: The helper has no argument, and its context may sleep.
    unsafe { bindings::rust_ulp_h_relax() };
}

/// Returns whether the scheduler prefers any ordinary task to the current one, by its policy or its
/// nice value.
pub(crate) fn is_background() -> bool {
    // SAFETY: The helper reads the current task.
    unsafe { bindings::rust_ulp_h_is_background() }
}

/// Returns whether the current task may take CPU time from others: `CAP_SYS_NICE`.
pub(crate) fn may_raise_priority() -> bool {
    // SAFETY: The function reads the current task.
    unsafe { kernel::bindings::capable(kernel::bindings::CAP_SYS_NICE as c_int) }
}

/// Returns the number, as `kuid_t` has it, of the user who pays for what the current task uses: the
/// owner of the outermost user namespace that the task is in.
///
/// Where that is root, or there is none, it is the task's own user.
pub(crate) fn payer() -> u32 {
    // SAFETY: The helper reads the credentials of the current task, which keep their namespace and
    // those above it.
    unsafe { bindings::rust_ulp_h_payer_uid() }
}

/// Returns whether the current task may exceed limits: `CAP_SYS_RESOURCE`.
pub(crate) fn may_exceed_limits() -> bool {
    capable_noaudit(kernel::bindings::CAP_SYS_RESOURCE)
}

/// Returns whether the current task may lock memory without limit: `CAP_IPC_LOCK`.
pub(crate) fn may_lock_memory() -> bool {
    capable_noaudit(kernel::bindings::CAP_IPC_LOCK)
}

/// Returns whether the current task has `capability` in the initial namespace. Writes nothing to
/// the audit log, since this is called for each object.
fn capable_noaudit(capability: u32) -> bool {
    // SAFETY: The function reads the current task. The initial namespace always exists.
    unsafe {
        kernel::bindings::ns_capable_noaudit(
            &raw mut kernel::bindings::init_user_ns,
            capability as c_int,
        )
    }
}

/// Returns whether the current task is being killed.
///
/// A pending signal does not count. io_uring's task work looks like a signal, and must not end a
/// command.
pub(crate) fn is_killed() -> bool {
    // SAFETY: The helper reads the current task.
    unsafe { bindings::rust_ulp_h_is_killed() }
}
