/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: events/rust_ulp/ in tracefs. trace/mod.rs wraps them.
 *
 * Events identify an object by its handle, and a queue pair also by its number, which `rdma
 * resource` and packets show. No event has an address of the kernel.
 *
 * This file must not be called trace_events.h: <trace/define_trace.h> includes it by a path that is
 * searched in its own folder first. The kernel has a file of that name there, which would include
 * itself without end.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rust_ulp

#if !defined(_RUST_ULP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RUST_ULP_TRACE_H

#include <linux/tracepoint.h>

#include "ulp_names.h"

/* The module parameter "latency". */
extern unsigned int rust_ulp_latency;

#define show_ulp_kind(kind)				\
	__print_symbolic(kind,				\
		{ 1, "pd" },				\
		{ 2, "cq" },				\
		{ 3, "qp" },				\
		{ 4, "buffer" },			\
		{ 5, "grant" },				\
		{ 6, "ah" },				\
		{ 7, "srq" },				\
		{ 8, "listener" },			\
		{ 9, "connection" })

DECLARE_EVENT_CLASS(rust_ulp_file,
	TP_PROTO(u32 file),
	TP_ARGS(file),
	TP_STRUCT__entry(
		__field(u32, file)
	),
	TP_fast_assign(
		__entry->file = file;
	),
	TP_printk("file=%u", __entry->file)
);

/* A file was opened. Other events identify it by this serial number. */
DEFINE_EVENT(rust_ulp_file, rust_ulp_open,
	TP_PROTO(u32 file), TP_ARGS(file));
DEFINE_EVENT(rust_ulp_file, rust_ulp_release,
	TP_PROTO(u32 file), TP_ARGS(file));

DECLARE_EVENT_CLASS(rust_ulp_device,
	TP_PROTO(u32 index),
	TP_ARGS(index),
	TP_STRUCT__entry(
		__field(u32, index)
	),
	TP_fast_assign(
		__entry->index = index;
	),
	TP_printk("ibdev=%u", __entry->index)
);

DEFINE_EVENT(rust_ulp_device, rust_ulp_device_add,
	TP_PROTO(u32 index), TP_ARGS(index));
/* The removal of the device begins: every call on it returns ENODEV from now on. */
DEFINE_EVENT(rust_ulp_device, rust_ulp_device_remove,
	TP_PROTO(u32 index), TP_ARGS(index));
/* All objects of the module on the device are destroyed. */
DEFINE_EVENT(rust_ulp_device, rust_ulp_device_removed,
	TP_PROTO(u32 index), TP_ARGS(index));

DECLARE_EVENT_CLASS(rust_ulp_object,
	TP_PROTO(u32 file, u32 kind, u32 handle, u32 number),
	TP_ARGS(file, kind, handle, number),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, kind) __field(u32, handle) __field(u32, number)
	),
	TP_fast_assign(
		__entry->file = file; __entry->kind = kind; __entry->handle = handle;
		__entry->number = number;
	),
	TP_printk("file=%u %s handle=0x%x number=%u", __entry->file,
		  show_ulp_kind(__entry->kind), __entry->handle, __entry->number)
);

/* An object was created or destroyed. @number: number of a queue pair, else 0. */
DEFINE_EVENT(rust_ulp_object, rust_ulp_object_create,
	TP_PROTO(u32 file, u32 kind, u32 handle, u32 number),
	TP_ARGS(file, kind, handle, number));
DEFINE_EVENT(rust_ulp_object, rust_ulp_object_destroy,
	TP_PROTO(u32 file, u32 kind, u32 handle, u32 number),
	TP_ARGS(file, kind, handle, number));

/* The state of a queue pair was changed, or not if @error is set. */
TRACE_EVENT(rust_ulp_qp_modify,
	TP_PROTO(u32 qp_num, u32 from, u32 to, int error),
	TP_ARGS(qp_num, from, to, error),
	TP_STRUCT__entry(
		__field(u32, qp_num) __field(u32, from) __field(u32, to) __field(int, error)
	),
	TP_fast_assign(
		__entry->qp_num = qp_num; __entry->from = from; __entry->to = to;
		__entry->error = error;
	),
	TP_printk("qpn=%u %s -> %s error=%d", __entry->qp_num, show_ulp_qps(__entry->from),
		  show_ulp_qps(__entry->to), __entry->error)
);

/* SUBMIT has parsed its requests. */
TRACE_EVENT(rust_ulp_submit,
	TP_PROTO(u32 file, u32 nr_wrs, u32 cq, u32 min_complete),
	TP_ARGS(file, nr_wrs, cq, min_complete),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, nr_wrs) __field(u32, cq) __field(u32, min_complete)
	),
	TP_fast_assign(
		__entry->file = file; __entry->nr_wrs = nr_wrs; __entry->cq = cq;
		__entry->min_complete = min_complete;
	),
	TP_printk("file=%u nr_wrs=%u cq=0x%x min_complete=%u", __entry->file,
		  __entry->nr_wrs, __entry->cq, __entry->min_complete)
);

/* A request is about to be posted to the driver. */
TRACE_EVENT(rust_ulp_post,
	TP_PROTO(u32 qp_num, u64 user_data, u32 opcode, u32 length),
	TP_ARGS(qp_num, user_data, opcode, length),
	TP_STRUCT__entry(
		__field(u64, user_data) __field(u32, qp_num) __field(u32, opcode)
		__field(u32, length)
	),
	TP_fast_assign(
		__entry->user_data = user_data; __entry->qp_num = qp_num; __entry->opcode = opcode;
		__entry->length = length;
	),
	TP_printk("qpn=%u user_data=0x%llx %s length=%u", __entry->qp_num,
		  __entry->user_data, show_ulp_opcode(__entry->opcode), __entry->length)
);

/* The driver completed a request. */
TRACE_EVENT(rust_ulp_completion,
	TP_PROTO(u32 qp_num, u64 user_data, u32 opcode, u32 status, u32 byte_len),
	TP_ARGS(qp_num, user_data, opcode, status, byte_len),
	TP_STRUCT__entry(
		__field(u64, user_data) __field(u32, qp_num) __field(u32, opcode)
		__field(u32, status) __field(u32, byte_len)
	),
	TP_fast_assign(
		__entry->user_data = user_data; __entry->qp_num = qp_num; __entry->opcode = opcode;
		__entry->status = status; __entry->byte_len = byte_len;
	),
	TP_printk("qpn=%u user_data=0x%llx %s status=%u byte_len=%u", __entry->qp_num,
		  __entry->user_data, show_ulp_wc_opcode(__entry->opcode), __entry->status,
		  __entry->byte_len)
);

/* The driver completed a request that was canceled, or whose deadline had passed. */
TRACE_EVENT(rust_ulp_complete_canceled,
	TP_PROTO(u32 qp_num, u64 user_data, u32 opcode, u32 status),
	TP_ARGS(qp_num, user_data, opcode, status),
	TP_STRUCT__entry(
		__field(u64, user_data) __field(u32, qp_num) __field(u32, opcode)
		__field(u32, status)
	),
	TP_fast_assign(
		__entry->user_data = user_data; __entry->qp_num = qp_num; __entry->opcode = opcode;
		__entry->status = status;
	),
	TP_printk("qpn=%u user_data=0x%llx opcode=%u status=%u", __entry->qp_num,
		  __entry->user_data, __entry->opcode, __entry->status)
);

/* Requests of a queue were canceled. */
TRACE_EVENT(rust_ulp_cancel,
	TP_PROTO(u32 file, u32 queue, u64 user_data, u32 canceled),
	TP_ARGS(file, queue, user_data, canceled),
	TP_STRUCT__entry(
		__field(u64, user_data) __field(u32, file) __field(u32, queue)
		__field(u32, canceled)
	),
	TP_fast_assign(
		__entry->user_data = user_data; __entry->file = file; __entry->queue = queue;
		__entry->canceled = canceled;
	),
	TP_printk("file=%u queue=0x%x user_data=0x%llx canceled=%u", __entry->file,
		  __entry->queue, __entry->user_data, __entry->canceled)
);

/* A completion was added to the ring that user space reads. */
TRACE_EVENT(rust_ulp_deliver,
	TP_PROTO(u32 cq, u64 user_data, u32 tail, u32 unread, bool woke),
	TP_ARGS(cq, user_data, tail, unread, woke),
	TP_STRUCT__entry(
		__field(u64, user_data) __field(u32, cq) __field(u32, tail) __field(u32, unread)
		__field(bool, woke)
	),
	TP_fast_assign(
		__entry->user_data = user_data; __entry->cq = cq; __entry->tail = tail;
		__entry->unread = unread; __entry->woke = woke;
	),
	TP_printk("cq=0x%x user_data=0x%llx tail=%u unread=%u woke=%d", __entry->cq,
		  __entry->user_data, __entry->tail, __entry->unread, __entry->woke)
);

/* A worker handles completions in place of a thread that was woken to do so, and has not run. */
TRACE_EVENT(rust_ulp_take_over,
	TP_PROTO(u32 cq),
	TP_ARGS(cq),
	TP_STRUCT__entry(
		__field(u32, cq)
	),
	TP_fast_assign(
		__entry->cq = cq;
	),
	TP_printk("cq=0x%x", __entry->cq)
);

/* A command of io_uring was issued, with @count requests, the first for @queue. */
TRACE_EVENT(rust_ulp_uring,
	TP_PROTO(u32 file, u32 op, u32 queue, u32 count),
	TP_ARGS(file, op, queue, count),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, op) __field(u32, queue) __field(u32, count)
	),
	TP_fast_assign(
		__entry->file = file; __entry->op = op; __entry->queue = queue;
		__entry->count = count;
	),
	TP_printk("file=%u op=0x%x queue=0x%x count=%u", __entry->file, __entry->op,
		  __entry->queue, __entry->count)
);

/* io_uring canceled a command, of which @found requests were in flight. */
TRACE_EVENT(rust_ulp_uring_cancel,
	TP_PROTO(u32 file, u32 queue, u32 found),
	TP_ARGS(file, queue, found),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, queue) __field(u32, found)
	),
	TP_fast_assign(
		__entry->file = file; __entry->queue = queue; __entry->found = found;
	),
	TP_printk("file=%u queue=0x%x found=%u", __entry->file, __entry->queue, __entry->found)
);

/* An event was recorded for readers of the file. */
TRACE_EVENT(rust_ulp_event,
	TP_PROTO(u32 file, u32 event, u32 handle, u32 port, u32 info),
	TP_ARGS(file, event, handle, port, info),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, event) __field(u32, handle) __field(u32, port)
		__field(u32, info)
	),
	TP_fast_assign(
		__entry->file = file; __entry->event = event; __entry->handle = handle;
		__entry->port = port; __entry->info = info;
	),
	TP_printk("file=%u %s handle=0x%x port=%u info=%u", __entry->file,
		  show_ulp_event(__entry->event), __entry->handle, __entry->port,
		  __entry->info)
);

/* The wait of SUBMIT ended. @error: as rust_ulp_submit.wait_error. */
TRACE_EVENT(rust_ulp_wait,
	TP_PROTO(u32 file, u32 cq, u32 unread, int error),
	TP_ARGS(file, cq, unread, error),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, cq) __field(u32, unread) __field(int, error)
	),
	TP_fast_assign(
		__entry->file = file; __entry->cq = cq; __entry->unread = unread;
		__entry->error = error;
	),
	TP_printk("file=%u cq=0x%x unread=%u error=%d", __entry->file, __entry->cq,
		  __entry->unread, __entry->error)
);

/* The connection manager reported an event. @handle: 0 for a request without a handle. */
TRACE_EVENT(rust_ulp_cm_event,
	TP_PROTO(u32 handle, u32 event, int status),
	TP_ARGS(handle, event, status),
	TP_STRUCT__entry(
		__field(u32, handle) __field(u32, event) __field(int, status)
	),
	TP_fast_assign(
		__entry->handle = handle; __entry->event = event; __entry->status = status;
	),
	TP_printk("handle=0x%x %s status=%d", __entry->handle,
		  __print_symbolic(__entry->event,
			{ 0, "ADDR_RESOLVED" },
			{ 1, "ADDR_ERROR" },
			{ 2, "ROUTE_RESOLVED" },
			{ 3, "ROUTE_ERROR" },
			{ 4, "CONNECT_REQUEST" },
			{ 5, "CONNECT_RESPONSE" },
			{ 6, "CONNECT_ERROR" },
			{ 7, "UNREACHABLE" },
			{ 8, "REJECTED" },
			{ 9, "ESTABLISHED" },
			{ 10, "DISCONNECTED" },
			{ 11, "DEVICE_REMOVAL" },
			{ 14, "ADDR_CHANGE" },
			{ 15, "TIMEWAIT_EXIT" }), __entry->status)
);

/* A listener received a request, or rejected it if @error is set. */
TRACE_EVENT(rust_ulp_request,
	TP_PROTO(u32 listener, u32 peer_qp_num, u32 waiting, int error),
	TP_ARGS(listener, peer_qp_num, waiting, error),
	TP_STRUCT__entry(
		__field(u32, listener) __field(u32, peer_qp_num) __field(u32, waiting)
		__field(int, error)
	),
	TP_fast_assign(
		__entry->listener = listener; __entry->peer_qp_num = peer_qp_num;
		__entry->waiting = waiting; __entry->error = error;
	),
	TP_printk("listener=0x%x peer_qpn=%u waiting=%u error=%d", __entry->listener,
		  __entry->peer_qp_num, __entry->waiting, __entry->error)
);

/*
 * An attempt that was begun has ended, or ACCEPT has failed. rust_ulp_cm_event tells when each step
 * did.
 */
TRACE_EVENT(rust_ulp_connect,
	TP_PROTO(u32 handle, u32 qp_num, int error),
	TP_ARGS(handle, qp_num, error),
	TP_STRUCT__entry(
		__field(u32, handle) __field(u32, qp_num) __field(int, error)
	),
	TP_fast_assign(
		__entry->handle = handle; __entry->qp_num = qp_num; __entry->error = error;
	),
	TP_printk("handle=0x%x qpn=%u error=%d", __entry->handle, __entry->qp_num,
		  __entry->error)
);

/* A grant ended: the peer can no longer access the memory. */
TRACE_EVENT(rust_ulp_grant_end,
	TP_PROTO(u32 file, u32 handle, u32 rkey, u32 reason),
	TP_ARGS(file, handle, rkey, reason),
	TP_STRUCT__entry(
		__field(u32, file) __field(u32, handle) __field(u32, rkey) __field(u32, reason)
	),
	TP_fast_assign(
		__entry->file = file; __entry->handle = handle; __entry->rkey = rkey;
		__entry->reason = reason;
	),
	TP_printk("file=%u handle=0x%x rkey=0x%x %s", __entry->file, __entry->handle,
		  __entry->rkey,
		  show_ulp_grant_state(__entry->reason))
);

/* A connection was disconnected, by the peer or by this side. */
TRACE_EVENT(rust_ulp_disconnect,
	TP_PROTO(u32 handle, bool by_peer),
	TP_ARGS(handle, by_peer),
	TP_STRUCT__entry(
		__field(u32, handle) __field(bool, by_peer)
	),
	TP_fast_assign(
		__entry->handle = handle; __entry->by_peer = by_peer;
	),
	TP_printk("handle=0x%x by_peer=%d", __entry->handle, __entry->by_peer)
);

#endif /* _RUST_ULP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE ulp_trace
#include <trace/define_trace.h>
