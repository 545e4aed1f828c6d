// SPDX-License-Identifier: GPL-2.0

//! What the module says of its work: tracepoints (`events/rust_ulp/` in tracefs) and debug messages.
//!
//! `ulp_trace.h` defines the tracepoints. All of this may be called in any context.

use crate::kernel::tracepoint::tracepoints;

/// Prints a line by `dynamic_debug`, as [`dynamic_pr_debug!`](crate::kernel::dyndbg).
///
/// ```ignore
/// ulp_debug!("qp {}: {} -> {}\n", qp_num, from, to);
/// ```
macro_rules! ulp_debug {
    ($($args:tt)*) => {
        $crate::kernel::dyndbg::dynamic_pr_debug!("rust_ulp", $($args)*)
    };
}
pub(crate) use ulp_debug;

tracepoints! {
    /// A file was opened and got a serial number.
    rust_ulp_open as open(file: u32);
    /// A file is released.
    rust_ulp_release as release(file: u32);
    /// A device appeared.
    rust_ulp_device_add as device_add(index: u32);
    /// A device is going: its gate closes.
    rust_ulp_device_remove as device_remove(index: u32);
    /// Everything of ours on a device is gone.
    rust_ulp_device_removed as device_removed(index: u32);
    /// An object was made; `number` is a queue pair's number.
    rust_ulp_object_create as object_create(file: u32, kind: u32, handle: u32, number: u32);
    /// An object was destroyed.
    rust_ulp_object_destroy as object_destroy(file: u32, kind: u32, handle: u32, number: u32);
    /// A queue pair was asked to change its state.
    rust_ulp_qp_modify as qp_modify(qp_num: u32, from: u32, to: u32, error: i32);
    /// A SUBMIT was decoded.
    rust_ulp_submit as submit(file: u32, nr_wrs: u32, cq: u32, min_complete: u32);
    /// A request is about to be handed to the driver.
    rust_ulp_post as post(qp_num: u32, user_data: u64, opcode: u32, length: u32);
    /// The driver completed a request.
    rust_ulp_completion as completion(
        qp_num: u32, user_data: u64, opcode: u32, status: u32, byte_len: u32,
    );
    /// The driver completed a request that was over before: canceled, or past its deadline.
    rust_ulp_late as late(qp_num: u32, user_data: u64, opcode: u32, status: u32);
    /// Requests of a queue were canceled.
    rust_ulp_cancel as cancel(file: u32, queue: u32, user_data: u64, canceled: u32);
    /// A completion was put into the ring that user space reads.
    rust_ulp_deliver as deliver(cq: u32, user_data: u64, tail: u32, unread: u32, woke: bool);
    /// Completions went out of the ring as a stream.
    rust_ulp_stream as stream(cq: u32, count: u32);
    /// A command of io_uring is issued.
    rust_ulp_uring as uring(file: u32, op: u32, queue: u32, count: u32);
    /// io_uring asks for a command to end.
    rust_ulp_uring_cancel as uring_cancel(file: u32, queue: u32, found: u32);
    /// Something happened: a record is made for the file.
    rust_ulp_event as event(file: u32, event: u32, handle: u32, port: u32, info: u32);
    /// A waiter goes on.
    rust_ulp_wait as wait(file: u32, cq: u32, unread: u32, error: i32);
    /// The connection manager tells of an object; `event` is `enum rdma_cm_event_type`.
    rust_ulp_cm_event as cm_event(handle: u32, event: u32, status: i32);
    /// A listener got a request, which waits, or was turned away.
    rust_ulp_request as request(listener: u32, peer_qp_num: u32, waiting: u32, error: i32);
    /// A CONNECT is done.
    rust_ulp_connect as connect(
        handle: u32, qp_num: u32, resolve_us: u32, route_us: u32, connect_us: u32, error: i32,
    );
    /// An ACCEPT is done.
    rust_ulp_accept as accept(handle: u32, qp_num: u32, error: i32);
    /// A grant has ended; `reason` is `GRANT_USED` or `GRANT_EXPIRED`.
    rust_ulp_grant_end as grant_end(file: u32, handle: u32, rkey: u32, reason: u32);
    /// A grant got another key.
    rust_ulp_grant_rotate as grant_rotate(handle: u32, old: u32, rkey: u32, error: i32);
    /// A connection has ended.
    rust_ulp_disconnect as disconnect(handle: u32, by_peer: bool);
}
