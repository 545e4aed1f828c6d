// SPDX-License-Identifier: GPL-2.0

//! Tracepoints: `events/rust_ulp/` in tracefs.
//!
//! `ulp_trace.h` defines them. Each function here costs a jump that the kernel patches while
//! its event is off. The kernel crate's `declare_trace!` looks for the tracepoint among the
//! kernel's own bindings, so an out-of-tree module needs this one.
//!
//! All of them may be called in any context.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

/// Declares safe functions that fire the tracepoints of `ulp_trace.h`.
macro_rules! tracepoints {
    ($(
        $(#[$meta:meta])*
        $event:ident as $name:ident($($arg:ident: $ty:ty),* $(,)?);
    )*) => { ::kernel::macros::paste! {
        #[allow(improper_ctypes)]
        extern "C" {
            $(
                static [<__tracepoint_ $event>]: ::kernel::bindings::tracepoint;
                fn [<rust_do_trace_ $event>]($($arg: $ty),*);
            )*
        }
        $(
            $(#[$meta])*
            #[inline(always)]
            pub(crate) fn $name($($arg: $ty),*) {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: The tracepoint is defined by `ulp_trace.c`, with its key.
                    let on = unsafe {
                        ::kernel::jump_label::static_branch_unlikely!(
                            [<__tracepoint_ $event>],
                            ::kernel::bindings::tracepoint,
                            key
                        )
                    };
                    if on {
                        // SAFETY: All arguments are plain values.
                        unsafe { [<rust_do_trace_ $event>]($($arg),*) };
                    }
                }
            }
        )*
    } };
}

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
    /// A connection has ended.
    rust_ulp_disconnect as disconnect(handle: u32, by_peer: bool);
}
