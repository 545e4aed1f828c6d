// SPDX-License-Identifier: GPL-2.0

//! What a character device of verbs needs and the kernel crate does not have.
//!
//! Knows nothing of RDMA and nothing of this module's objects. Together with `rdma/` and
//! `bindings/` it is the only place where `unsafe` is written.

pub(crate) mod chardev;
pub(crate) mod charge;
pub(crate) mod compat;
pub(crate) mod dmabuf;
pub(crate) mod dyndbg;
pub(crate) mod errno;
pub(crate) mod eventfd;
pub(crate) mod fault;
pub(crate) mod gate;
pub(crate) mod lock;
pub(crate) mod net;
pub(crate) mod pages;
mod pinned;
pub(crate) mod timer;
pub(crate) mod tracepoint;
pub(crate) mod uring;
pub(crate) mod workqueue;
#[macro_use]
pub(crate) mod user;

/// Lets others run, when they want to, in a loop that waits for something. Process context.
pub(crate) fn relax() {
    // SAFETY: Takes nothing, and may be called wherever sleeping is allowed.
    unsafe { crate::bindings::rust_ulp_h_relax() };
}

/// Whether the current task is being killed. Not whether a signal is pending: that io_uring has work
/// for the task looks like one, and a command that gives up for it would fail for no reason.
pub(crate) fn is_killed() -> bool {
    // SAFETY: Looks at the current task.
    unsafe { crate::bindings::rust_ulp_h_is_killed() }
}

/// `CLOCK_MONOTONIC`, in nanoseconds. Any context but NMI.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: May be called outside of NMIs.
    let now = unsafe { kernel::bindings::ktime_get() };
    u64::try_from(now).unwrap_or(0)
}
