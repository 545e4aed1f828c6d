// SPDX-License-Identifier: GPL-2.0

//! Tracepoints (`events/rust_ulp/` in tracefs), debug messages, and the parameter that turns on the
//! measurement of latencies. They may be used in any context.
//!
//! `ulp_trace.h` defines and describes the tracepoints.

use crate::ext::{
    parameter::parameters,
    tracepoint::tracepoints, //
};

/// Prints a debug message, as [`dynamic_pr_debug!`](crate::ext::dyndbg).
///
/// ```ignore
/// ulp_debug!("qp {}: {} -> {}\n", qp_num, from, to);
/// ```
macro_rules! ulp_debug {
    ($($args:tt)*) => {
        $crate::ext::dyndbg::dynamic_pr_debug!("rust_ulp", $($args)*)
    };
}
pub(crate) use ulp_debug;

parameters! {
    /// Returns the module parameter `latency`: 0 when latencies are not recorded.
    rust_ulp_latency as latency: u32;
}

// SAFETY: `ulp_trace.c` includes `ulp_trace.h` with `CREATE_TRACE_POINTS`.
tracepoints! {
    rust_ulp_open as open(file: u32);
    rust_ulp_release as release(file: u32);
    rust_ulp_device_add as device_add(index: u32);
    rust_ulp_device_remove as device_remove(index: u32);
    rust_ulp_device_removed as device_removed(index: u32);
    rust_ulp_object_create as object_create(file: u32, kind: u32, handle: u32, number: u32);
    rust_ulp_object_destroy as object_destroy(file: u32, kind: u32, handle: u32, number: u32);
    rust_ulp_qp_modify as qp_modify(qp_num: u32, from: u32, to: u32, error: i32);
    rust_ulp_submit as submit(file: u32, nr_wrs: u32, cq: u32, min_complete: u32);
    rust_ulp_post as post(qp_num: u32, user_data: u64, opcode: u32, length: u32);
    rust_ulp_completion as completion(
        qp_num: u32, user_data: u64, opcode: u32, status: u32, byte_len: u32,
    );
    rust_ulp_complete_canceled as complete_canceled(
        qp_num: u32, user_data: u64, opcode: u32, status: u32,
    );
    rust_ulp_cancel as cancel(file: u32, queue: u32, user_data: u64, canceled: u32);
    rust_ulp_deliver as deliver(cq: u32, user_data: u64, tail: u32, unread: u32, woke: bool);
    rust_ulp_take_over as take_over(cq: u32);
    rust_ulp_uring as uring(file: u32, op: u32, queue: u32, count: u32);
    rust_ulp_uring_cancel as uring_cancel(file: u32, queue: u32, found: u32);
    rust_ulp_event as event(file: u32, event: u32, handle: u32, port: u32, info: u32);
    rust_ulp_wait as wait(file: u32, cq: u32, unread: u32, error: i32);
    rust_ulp_cm_event as cm_event(handle: u32, event: u32, status: i32);
    rust_ulp_request as request(listener: u32, peer_qp_num: u32, waiting: u32, error: i32);
    rust_ulp_connect as connect(handle: u32, qp_num: u32, error: i32);
    rust_ulp_grant_end as grant_end(file: u32, handle: u32, rkey: u32, reason: u32);
    rust_ulp_disconnect as disconnect(handle: u32, by_peer: bool);
}
