// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT
// Generated from rust_ulp.h by scripts/abi. Do not edit; change the header and run scripts/abi.

//! The ABI of /dev/rust_ulp.
//!
//! Rules for every command:
//!
//! - A command is _IO([`IOC_MAGIC`], nr). Its argument points at a struct whose first member,
//!   `size`, is sizeof that struct as the caller knows it.
//! - The kernel accepts a larger struct than it knows when the bytes beyond are zero, else E2BIG. A
//!   struct, or an entry of an array, of more than 4096 bytes is E2BIG. A struct smaller than its
//!   first version is EINVAL. The kernel takes members that the caller does not know as zero and
//!   does not write them back.
//! - A bit of `flags` that is not defined is EINVAL. Padding (`pad`, `reserved`) that is not zero
//!   is EINVAL.
//! - A handle names an object. It is not zero, has at most 31 bits, and is valid only in the open
//!   file that created the object.
//! - A command that fails has changed nothing, with two exceptions. ACCEPT, ATTACH, CANCEL,
//!   GRANT_ROTATE, QP_MODIFY and SUBMIT have taken effect when they fail with EFAULT because the
//!   kernel can write the beginning of the struct but not its end. A queue pair is in ERR when its
//!   driver fails in the middle of QP_MODIFY.
//! - Numbers are in host byte order. GIDs and GUIDs are bytes in network byte order.
//! - 32-bit and 64-bit callers use the same layout.
//!
//! What an errno means, for every command:
//!
//! - E2BIG: bytes beyond what the kernel knows are not zero; more elements or requests than allowed
//! - EACCES: the request would write to a buffer that is READ_ONLY
//! - EADDRNOTAVAIL: no port of the device has an address, which a key needs
//! - EAGAIN: a queue is full: poll completions and try again
//! - EALREADY: the file is attached already
//! - EBADF: this file has no such handle: never created, destroyed, or of another file
//! - EBADFD: the handle names an object of another type
//! - EBUSY: another object uses this one
//! - EDQUOT: a limit is reached: on queue entries per open file, or of the rdma cgroup
//! - EFAULT: an address cannot be read or written
//! - EINVAL: a size, flag, padding, name or enumerator is not defined
//! - EMFILE: the file has as many objects as it may have
//! - EMSGSIZE: more bytes than a message, a datagram or inline data may have
//! - ENODEV: the device was removed; only close() is left to do
//! - ENOENT: no such device, port, GID or P_Key, or none that this file may use
//! - ENOMEM: no memory, or a limit on memory is reached
//! - ENOTCONN: the queue pair is not in a state that takes this request
//! - ENOTTY: no such command
//! - ENXIO: the file is not attached to a device
//! - EOPNOTSUPP: this device, or this type of queue pair, does not support that; RECV to a queue
//!   pair that has a shared receive queue
//! - EPERM: a Q_Key whose highest bit is set needs CAP_NET_RAW
//! - EPROTO: the state table of the queue pair does not allow that transition with these attributes
//! - ERANGE: a number is outside the range of the object or of the device
//! - EXDEV: the objects have different protection domains, or do not belong together
//!
//! EHOSTUNREACH, ENETUNREACH, ETIMEDOUT and the like from QP_MODIFY come from the route lookup. A
//! command returns any other errno as the driver returned it.

#![allow(missing_docs)]

#[macro_use]
#[path = "define.rs"]
mod define;

#[allow(unused_imports)]
pub use define::{Command, Zero};

/// `_IO(IOC_MAGIC, nr)`: the commands carry no size, their structs do.
const fn io(nr: u32) -> u32 {
    (IOC_MAGIC << 8) | nr
}

/// A value of [`Query::abi_version`].
pub const ABI_VERSION: u32 = 1;
pub const DEVICE_PATH: &str = "/dev/rust_ulp";
pub const IOC_MAGIC: u32 = 0xBF;
/// Number of the command that takes a [`Query`].
pub const IOC_QUERY: u32 = io(0x00);
/// Number of the command that takes a [`DeviceList`].
pub const IOC_DEVICE_LIST: u32 = io(0x01);
/// Number of the command that takes a [`Attach`].
pub const IOC_ATTACH: u32 = io(0x02);
/// Number of the command that takes a [`DeviceQuery`].
pub const IOC_DEVICE_QUERY: u32 = io(0x03);
/// Number of the command that takes a [`PortQuery`].
pub const IOC_PORT_QUERY: u32 = io(0x04);
/// Number of the command that takes a [`GidQuery`].
pub const IOC_GID_QUERY: u32 = io(0x05);
/// Number of the command that takes a [`PkeyQuery`].
pub const IOC_PKEY_QUERY: u32 = io(0x06);
/// Number of the command that takes a [`PdCreate`].
pub const IOC_PD_CREATE: u32 = io(0x10);
/// Number of the command that takes a [`CqCreate`].
pub const IOC_CQ_CREATE: u32 = io(0x11);
/// Number of the command that takes a [`QpCreate`].
pub const IOC_QP_CREATE: u32 = io(0x12);
/// Number of the command that takes a [`QpModify`].
pub const IOC_QP_MODIFY: u32 = io(0x13);
/// Number of the command that takes a [`QpQuery`].
pub const IOC_QP_QUERY: u32 = io(0x14);
/// Number of the command that takes a [`BufferCreate`].
pub const IOC_BUFFER_CREATE: u32 = io(0x15);
/// Number of the command that takes a [`GrantCreate`].
pub const IOC_GRANT_CREATE: u32 = io(0x16);
/// Number of the command that takes a [`AhCreate`].
pub const IOC_AH_CREATE: u32 = io(0x17);
/// Number of the command that takes a [`SrqCreate`].
pub const IOC_SRQ_CREATE: u32 = io(0x18);
/// Number of the command that takes a [`SrqModify`].
pub const IOC_SRQ_MODIFY: u32 = io(0x19);
/// Number of the command that takes a [`SrqQuery`].
pub const IOC_SRQ_QUERY: u32 = io(0x1a);
/// Number of the command that takes a [`Destroy`].
pub const IOC_DESTROY: u32 = io(0x1f);
/// Number of the command that takes a [`Submit`].
pub const IOC_SUBMIT: u32 = io(0x20);
/// Number of the command that takes a [`Cancel`].
pub const IOC_CANCEL: u32 = io(0x21);
/// Number of the command that takes a [`CqEventfd`].
pub const IOC_CQ_EVENTFD: u32 = io(0x22);

/// Number of the command that takes a [`Listen`].
pub const IOC_LISTEN: u32 = io(0x30);
/// Number of the command that takes a [`GetRequest`].
pub const IOC_GET_REQUEST: u32 = io(0x31);
/// Number of the command that takes a [`Accept`].
pub const IOC_ACCEPT: u32 = io(0x32);
/// Number of the command that takes a [`Reject`].
pub const IOC_REJECT: u32 = io(0x33);
/// Number of the command that takes a [`Connect`].
pub const IOC_CONNECT: u32 = io(0x34);
/// Number of the command that takes a [`Disconnect`].
pub const IOC_DISCONNECT: u32 = io(0x35);
/// Number of the command that takes a [`ConnQuery`].
pub const IOC_CONN_QUERY: u32 = io(0x36);

/// Number of the command that takes a [`BufferRegister`].
pub const IOC_BUFFER_REGISTER: u32 = io(0x40);
/// Number of the command that takes a [`BufferImport`].
pub const IOC_BUFFER_IMPORT: u32 = io(0x41);
/// Number of the command that takes a [`BufferQuery`].
pub const IOC_BUFFER_QUERY: u32 = io(0x42);
/// Number of the command that takes a [`GrantRotate`].
pub const IOC_GRANT_ROTATE: u32 = io(0x43);
/// Number of the command that takes a [`GrantQuery`].
pub const IOC_GRANT_QUERY: u32 = io(0x44);
/// IB_DEVICE_NAME_MAX, including the NUL.
pub const NAME_MAX: usize = 64;

/// The largest `timeout_ns`: one hour. Every wait has a deadline.
pub const TIMEOUT_MAX_NS: u64 = 3_600_000_000_000;

/// SUBMIT. A bit of [`Query::features`].
pub const FEATURE_CALL: u64 = 1 << 0;
/// GRANT_CREATE. A bit of [`Query::features`].
pub const FEATURE_GRANTS: u64 = 1 << 1;
/// SRQ_CREATE. A bit of [`Query::features`].
pub const FEATURE_SRQ: u64 = 1 << 2;
/// AH_CREATE and queue pairs of type UD. A bit of [`Query::features`].
pub const FEATURE_DATAGRAM: u64 = 1 << 3;
/// read() returns events. A bit of [`Query::features`].
pub const FEATURE_EVENTS: u64 = 1 << 4;
/// LISTEN, CONNECT and the like. A bit of [`Query::features`].
pub const FEATURE_CM: u64 = 1 << 5;
/// CANCEL and deadlines of requests. A bit of [`Query::features`].
pub const FEATURE_CANCEL: u64 = 1 << 6;
/// CQ_EVENTFD. A bit of [`Query::features`].
pub const FEATURE_EVENTFD: u64 = 1 << 7;
/// `URING_*`. A bit of [`Query::features`].
pub const FEATURE_URING: u64 = 1 << 8;
/// BUFFER_REGISTER. A bit of [`Query::features`].
pub const FEATURE_USER_MEMORY: u64 = 1 << 9;
/// BUFFER_IMPORT. A bit of [`Query::features`].
pub const FEATURE_DMABUF: u64 = 1 << 10;

/// ATTACH without a name takes it. A bit of [`DeviceEntry::flags`].
pub const DEVICE_DEFAULT: u32 = 1 << 0;
/// Its netdev is in the opener's netns. A bit of [`DeviceEntry::flags`].
pub const DEVICE_LOCAL_NET: u32 = 1 << 1;

/// The device supports buffers and grants. A bit of [`DeviceQuery::caps`].
pub const CAP_FAST_REG: u64 = 1 << 0;
/// A bit of [`DeviceQuery::caps`].
pub const CAP_SRQ: u64 = 1 << 1;
/// A software device, without DMA. A bit of [`DeviceQuery::caps`].
pub const CAP_VIRT_DMA: u64 = 1 << 2;

/// A value of [`QpCreate::qp_type`] and [`QpQuery::qp_type`].
pub const QPT_RC: u32 = 2;
/// A value of [`QpCreate::qp_type`] and [`QpQuery::qp_type`].
pub const QPT_UC: u32 = 3;
/// A value of [`QpCreate::qp_type`] and [`QpQuery::qp_type`].
pub const QPT_UD: u32 = 4;

/// A value of [`PortQuery::link_layer`].
pub const LINK_UNSPECIFIED: u32 = 0;
/// A value of [`PortQuery::link_layer`].
pub const LINK_INFINIBAND: u32 = 1;
/// A value of [`PortQuery::link_layer`].
pub const LINK_ETHERNET: u32 = 2;

/// A value of [`GidEntry::gid_type`].
pub const GID_IB: u32 = 0;
/// A value of [`GidEntry::gid_type`].
pub const GID_ROCE_V1: u32 = 1;
/// A value of [`GidEntry::gid_type`].
pub const GID_ROCE_V2: u32 = 2;

/// ::ffff:a.b.c.d. A bit of [`GidEntry::flags`].
pub const GID_IPV4: u32 = 1 << 0;
/// Fe80::/10. A bit of [`GidEntry::flags`].
pub const GID_LINK_LOCAL: u32 = 1 << 1;
/// Its netdev is in the opener's netns. A bit of [`GidEntry::flags`].
pub const GID_LOCAL_NET: u32 = 1 << 2;
/// ATTACH returns it. A bit of [`GidEntry::flags`].
pub const GID_PREFERRED: u32 = 1 << 3;

/// As the parameter of the module says. A value of [`CqCreate::delivery`].
pub const DELIVER_DEFAULT: u32 = 0;
/// A kernel worker. A value of [`CqCreate::delivery`].
pub const DELIVER_WORKQUEUE: u32 = 1;
/// The softirq of the CPU that saw the completion. A value of [`CqCreate::delivery`].
pub const DELIVER_SOFTIRQ: u32 = 2;
/// Only SUBMIT on this queue. A value of [`CqCreate::delivery`].
pub const DELIVER_CALLER: u32 = 3;

/// Offset of the first completion in the ring of a completion queue.
pub const CQ_ENTRIES_OFFSET: usize = 4096;

/// `dropped` completions did not fit. A bit of [`CqRing::flags`].
pub const CQ_OVERFLOW: u32 = 1 << 0;
/// The device is gone, no more completions arrive. A bit of [`CqRing::flags`].
pub const CQ_DEAD: u32 = 1 << 1;
/// The device reported an error of the queue. A bit of [`CqRing::flags`].
pub const CQ_ERROR: u32 = 1 << 2;

/// A value of [`Cqe::opcode`].
pub const WC_SEND: u8 = 0;
/// A value of [`Cqe::opcode`].
pub const WC_RDMA_WRITE: u8 = 1;
/// A value of [`Cqe::opcode`].
pub const WC_RDMA_READ: u8 = 2;
/// A value of [`Cqe::opcode`].
pub const WC_COMP_SWAP: u8 = 3;
/// A value of [`Cqe::opcode`].
pub const WC_FETCH_ADD: u8 = 4;
/// A value of [`Cqe::opcode`].
pub const WC_LOCAL_INV: u8 = 6;
/// A value of [`Cqe::opcode`].
pub const WC_RECV: u8 = 128;
/// A value of [`Cqe::opcode`].
pub const WC_RECV_RDMA_WITH_IMM: u8 = 129;

// rust_ulp_cqe.status, besides enum ib_wc_status: the request has ended for its caller, but not for
// the device. Its data may still arrive at the peer, or in the buffers that it names. A receive may
// still consume a message, which is then lost. The device frees its place in the queue later.
/// The deadline of the request has passed. A value of [`Cqe::status`].
pub const WC_STATUS_TIMEOUT: u16 = 256;
/// CANCEL ended the request. A value of [`Cqe::status`].
pub const WC_STATUS_CANCELED: u16 = 257;

/// UD: 40 bytes of GRH precede the data. A bit of [`Cqe::flags`].
pub const WC_GRH: u8 = 1 << 0;
/// `imm_data` is immediate data. A bit of [`Cqe::flags`].
pub const WC_WITH_IMM: u8 = 1 << 1;
/// `imm_data` is the invalidated rkey. A bit of [`Cqe::flags`].
pub const WC_WITH_INVALIDATE: u8 = 1 << 2;

/// Every send request generates a completion. A bit of [`QpCreate::flags`].
pub const QP_SIG_ALL: u32 = 1 << 0;

/// A bit of [`QpModify::attr_mask`].
pub const QP_STATE: u32 = 1 << 0;
/// A bit of [`QpModify::attr_mask`].
pub const QP_CUR_STATE: u32 = 1 << 1;
/// A bit of [`QpModify::attr_mask`].
pub const QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
/// A bit of [`QpModify::attr_mask`].
pub const QP_ACCESS_FLAGS: u32 = 1 << 3;
/// A bit of [`QpModify::attr_mask`].
pub const QP_PKEY_INDEX: u32 = 1 << 4;
/// A bit of [`QpModify::attr_mask`].
pub const QP_PORT: u32 = 1 << 5;
/// A bit of [`QpModify::attr_mask`].
pub const QP_QKEY: u32 = 1 << 6;
/// A bit of [`QpModify::attr_mask`].
pub const QP_AV: u32 = 1 << 7;
/// A bit of [`QpModify::attr_mask`].
pub const QP_PATH_MTU: u32 = 1 << 8;
/// A bit of [`QpModify::attr_mask`].
pub const QP_TIMEOUT: u32 = 1 << 9;
/// A bit of [`QpModify::attr_mask`].
pub const QP_RETRY_CNT: u32 = 1 << 10;
/// A bit of [`QpModify::attr_mask`].
pub const QP_RNR_RETRY: u32 = 1 << 11;
/// A bit of [`QpModify::attr_mask`].
pub const QP_RQ_PSN: u32 = 1 << 12;
/// A bit of [`QpModify::attr_mask`].
pub const QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
/// A bit of [`QpModify::attr_mask`].
pub const QP_MIN_RNR_TIMER: u32 = 1 << 15;
/// A bit of [`QpModify::attr_mask`].
pub const QP_SQ_PSN: u32 = 1 << 16;
/// A bit of [`QpModify::attr_mask`].
pub const QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
/// A bit of [`QpModify::attr_mask`].
pub const QP_DEST_QPN: u32 = 1 << 20;

/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_RESET: u8 = 0;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_INIT: u8 = 1;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_RTR: u8 = 2;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_RTS: u8 = 3;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_SQD: u8 = 4;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_SQE: u8 = 5;
/// A value of [`QpAttr::qp_state`] and [`QpAttr::cur_qp_state`].
pub const QPS_ERR: u8 = 6;

// rust_ulp_grant_create.access, rust_ulp_grant_query.access, rust_ulp_qp_attr.access_flags and
// rust_ulp_conn_param.access_flags, as enum ib_access_flags
/// A bit of [`GrantCreate::access`] and [`GrantQuery::access`] and [`QpAttr::access_flags`] and
/// [`ConnParam::access_flags`].
pub const ACCESS_LOCAL_WRITE: u32 = 1 << 0;
/// A bit of [`GrantCreate::access`] and [`GrantQuery::access`] and [`QpAttr::access_flags`] and
/// [`ConnParam::access_flags`].
pub const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
/// A bit of [`GrantCreate::access`] and [`GrantQuery::access`] and [`QpAttr::access_flags`] and
/// [`ConnParam::access_flags`].
pub const ACCESS_REMOTE_READ: u32 = 1 << 2;
/// A bit of [`GrantCreate::access`] and [`GrantQuery::access`] and [`QpAttr::access_flags`] and
/// [`ConnParam::access_flags`].
pub const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;

/// A value of [`BufferCreate::node`].
pub const NODE_ANY: i32 = -1;

/// Requests and peers may only read it. A bit of [`BufferRegister::flags`] and
/// [`BufferImport::flags`] and [`BufferQuery::flags`].
pub const BUFFER_READ_ONLY: u32 = 1 << 0;

/// BUFFER_CREATE. A value of [`BufferQuery::kind`].
pub const BUFFER_PAGES: u32 = 1;
/// BUFFER_REGISTER. A value of [`BufferQuery::kind`].
pub const BUFFER_USER: u32 = 2;
/// BUFFER_IMPORT. A value of [`BufferQuery::kind`].
pub const BUFFER_DMABUF: u32 = 3;

/// Ends after one use; needs `qp`. A bit of [`GrantCreate::flags`].
pub const GRANT_ONE_SHOT: u32 = 1 << 0;
/// May grant less: `length` says how much. A bit of [`GrantCreate::flags`].
pub const GRANT_PARTIAL: u32 = 1 << 1;

/// A value of [`GrantQuery::state`].
pub const GRANT_ACTIVE: u32 = 1;
/// A grant with ONE_SHOT was used. A value of [`GrantQuery::state`].
pub const GRANT_USED: u32 = 2;
/// Its queue pair has ended. A value of [`GrantQuery::state`].
pub const GRANT_EXPIRED: u32 = 3;

/// The number of records that a file keeps. The kernel counts the events beyond and reports them by
/// one [`EVENT_LOST`] when there is room again.
pub const EVENTS_MAX: usize = 256;

/// `handle`: the completion queue. A value of [`Event::event`].
pub const EVENT_CQ_ERR: u32 = 0;
/// `handle`: the queue pair; so in 2 to 7, 16. A value of [`Event::event`].
pub const EVENT_QP_FATAL: u32 = 1;
/// A value of [`Event::event`].
pub const EVENT_QP_REQ_ERR: u32 = 2;
/// A value of [`Event::event`].
pub const EVENT_QP_ACCESS_ERR: u32 = 3;
/// A packet arrived before RTS. A value of [`Event::event`].
pub const EVENT_COMM_EST: u32 = 4;
/// A value of [`Event::event`].
pub const EVENT_SQ_DRAINED: u32 = 5;
/// A value of [`Event::event`].
pub const EVENT_PATH_MIG: u32 = 6;
/// A value of [`Event::event`].
pub const EVENT_PATH_MIG_ERR: u32 = 7;
/// A value of [`Event::event`].
pub const EVENT_DEVICE_FATAL: u32 = 8;
/// `port`; so in 10 to 13, 17, 18. A value of [`Event::event`].
pub const EVENT_PORT_ACTIVE: u32 = 9;
/// A value of [`Event::event`].
pub const EVENT_PORT_ERR: u32 = 10;
/// A value of [`Event::event`].
pub const EVENT_LID_CHANGE: u32 = 11;
/// A value of [`Event::event`].
pub const EVENT_PKEY_CHANGE: u32 = 12;
/// A value of [`Event::event`].
pub const EVENT_SM_CHANGE: u32 = 13;
/// `handle`: the shared receive queue. A value of [`Event::event`].
pub const EVENT_SRQ_ERR: u32 = 14;
/// A value of [`Event::event`].
pub const EVENT_SRQ_LIMIT: u32 = 15;
/// once: a queue pair in ERR has left its SRQ. A value of [`Event::event`].
pub const EVENT_LAST_WQE_REACHED: u32 = 16;
/// A value of [`Event::event`].
pub const EVENT_CLIENT_REREGISTER: u32 = 17;
/// A value of [`Event::event`].
pub const EVENT_GID_CHANGE: u32 = 18;

/// A value of [`Event::event`].
pub const EVENT_DEVICE_REMOVED: u32 = 256;
/// A value of [`Event::event`].
pub const EVENT_DEVICE_RENAMED: u32 = 257;
/// `info`: number of lost records. A value of [`Event::event`].
pub const EVENT_LOST: u32 = 258;
/// `handle`: the grant; `info`: its state. A value of [`Event::event`].
pub const EVENT_GRANT_ENDED: u32 = 259;
/// `handle`: the listener; `info`: requests waiting. A value of [`Event::event`].
pub const EVENT_CONNECT_REQUEST: u32 = 272;
/// `handle`: the connection; the peer ended it. A value of [`Event::event`].
pub const EVENT_DISCONNECTED: u32 = 273;
/// `handle`: the connection. A value of [`Event::event`].
pub const EVENT_TIMEWAIT_EXIT: u32 = 274;
/// `handle`: the connection or listener. A value of [`Event::event`].
pub const EVENT_ADDR_CHANGE: u32 = 275;
/// `handle`: the connection; no answer. A value of [`Event::event`].
pub const EVENT_UNREACHABLE: u32 = 276;

/// Of CONNECT.
pub const CM_REQ_PRIVATE_MAX: usize = 56;
/// Of ACCEPT.
pub const CM_REP_PRIVATE_MAX: usize = 196;
/// Of REJECT.
pub const CM_REJ_PRIVATE_MAX: usize = 148;
/// Room for any, padding of the peer included.
pub const CM_PRIVATE_MAX: usize = 224;

/// A bit of [`ConnParam::flags`].
pub const CONN_TRAFFIC_CLASS: u32 = 1 << 0;
/// End-to-end, if the device supports it. A bit of [`ConnParam::flags`].
pub const CONN_FLOW_CONTROL: u32 = 1 << 1;

/// A value of [`ConnQuery::state`].
pub const CONN_LISTENING: u32 = 1;
/// A request that waits for ACCEPT or REJECT. A value of [`ConnQuery::state`].
pub const CONN_REQUESTED: u32 = 2;
/// A value of [`ConnQuery::state`].
pub const CONN_ESTABLISHED: u32 = 3;
/// A value of [`ConnQuery::state`].
pub const CONN_DISCONNECTED: u32 = 4;
/// Disconnected, and no late packets arrive. A value of [`ConnQuery::state`].
pub const CONN_TIMEWAIT_OVER: u32 = 5;

/// A value of [`Wr::opcode`].
pub const WR_RDMA_WRITE: u8 = 0;
/// A value of [`Wr::opcode`].
pub const WR_RDMA_WRITE_WITH_IMM: u8 = 1;
/// A value of [`Wr::opcode`].
pub const WR_SEND: u8 = 2;
/// A value of [`Wr::opcode`].
pub const WR_SEND_WITH_IMM: u8 = 3;
/// A value of [`Wr::opcode`].
pub const WR_RDMA_READ: u8 = 4;
/// A value of [`Wr::opcode`].
pub const WR_ATOMIC_CMP_AND_SWP: u8 = 5;
/// A value of [`Wr::opcode`].
pub const WR_ATOMIC_FETCH_AND_ADD: u8 = 6;
/// A value of [`Wr::opcode`].
pub const WR_SEND_WITH_INV: u8 = 9;
/// A value of [`Wr::opcode`].
pub const WR_RECV: u8 = 128;

/// Waits for the reads and atomics before it. A bit of [`Wr::flags`].
pub const SEND_FENCE: u16 = 1 << 0;
/// Generates a completion even if it succeeds. A bit of [`Wr::flags`].
pub const SEND_SIGNALED: u16 = 1 << 1;
/// A bit of [`Wr::flags`].
pub const SEND_SOLICITED: u16 = 1 << 2;
/// SUBMIT copies the data. A bit of [`Wr::flags`].
pub const SEND_INLINE: u16 = 1 << 3;

/// A value of [`Submit::wr_size`].
pub const WR_SIZE_V1: u32 = 64;

/// All requests; `user_data` is 0. A bit of [`Cancel::flags`] and [`UringCancel::flags`].
pub const CANCEL_ALL: u32 = 1 << 0;

/// One request. Needs IORING_SETUP_SQE128: the 80 command bytes are a [`Wr`].
pub const URING_REQUEST: u32 = io(0x80);

/// An array of requests: [`UringBatch`].
pub const URING_BATCH: u32 = io(0x81);

/// CANCEL: [`UringCancel`]; the result is the number of canceled requests.
pub const URING_CANCEL: u32 = io(0x82);

/// A stream of the completions of a queue: [`UringStream`].
pub const URING_STREAM: u32 = io(0x83);

pub const URING_FAILED: i32 = -1024;

/// Also adds completions to the ring, like SUBMIT. A bit of [`UringBatch::flags`].
pub const URING_RING: u32 = 1 << 0;

abi! {
    /// Describes the module: the argument of [`IOC_QUERY`].
    struct Query = rust_ulp_query, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// [`ABI_VERSION`] of the module (out; 1).
        @8 abi_version: u32,
        /// Handles per open file (out; 1 to 65536).
        @12 max_objects: u32,
        /// `FEATURE_*` (out; bits).
        @16 features: u64,
        /// Bytes per buffer, before the device's limit (out; bytes; 2^30).
        @24 max_buffer: u64,
        /// `nr_wrs` of one SUBMIT (out; requests; 1024).
        @32 max_batch: u32,
        /// `entries` of one completion queue (out; entries; 32768).
        @36 max_cq_entries: u32,
        /// Work requests per send or receive queue (out; requests; 16384).
        @40 max_queue_depth: u32,
        /// Elements per work request (out; elements; 16).
        @44 max_sge: u32,
        /// Inline bytes per work request (out; bytes; 512).
        @48 max_inline: u32,
        /// Entries of all queues of one open file together (out; entries; 2^18, or the module's
        /// parameter).
        @52 max_entries: u32,
    }
    /// One device in the array of DEVICE_LIST.
    struct DeviceEntry = rust_ulp_device_entry, 88 bytes {
        /// Name of the device (out; text, NUL-terminated).
        @0 name: [u8; NAME_MAX],
        /// Node GUID (out; 64 bits, network order).
        @64 node_guid: [u8; 8],
        /// Index, as `rdma dev` shows it (out; number).
        @72 index: u32,
        /// `DEVICE_*` (out; bits).
        @76 flags: u32,
        /// Number of physical ports (out; ports).
        @80 phys_ports: u32,
        /// Zero (0).
        @84 pad: u32,
    }
    /// Lists the devices that this file may attach to: the argument of [`IOC_DEVICE_LIST`].
    struct DeviceList = rust_ulp_device_list, 32 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Address of an array of `capacity` [`DeviceEntry`] (in; address).
        @8 entries: u64,
        /// sizeof([`DeviceEntry`]), as the caller knows it (in; bytes; to 4096).
        @16 entry_size: u32,
        /// Length of that array (in; entries).
        @20 capacity: u32,
        /// Number of devices; may exceed `capacity` (out; entries).
        @24 count: u32,
        /// Zero (0).
        @28 pad: u32,
    }
    /// Binds this open file to one device, once: the argument of [`IOC_ATTACH`].
    struct Attach = rust_ulp_attach, 88 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Name of the device, or empty for the default device (in, out; text, NUL-terminated).
        @8 name: [u8; NAME_MAX],
        /// Index, as `rdma dev` shows it (out; number).
        @72 index: u32,
        /// Number of physical ports (out; ports).
        @76 phys_ports: u32,
        /// Port of the preferred GID (out; 1 to phys_ports).
        @80 port: u32,
        /// Index of the preferred GID, or ~0. The kernel prefers RoCE v2 with an IPv4 address of a
        /// netdev in the opener's network namespace (out; index, or 2^32 - 1).
        @84 gid_index: u32,
    }
    /// Describes the device: the argument of [`IOC_DEVICE_QUERY`].
    struct DeviceQuery = rust_ulp_device_query, 248 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Name of the device (out; text, NUL-terminated).
        @8 name: [u8; NAME_MAX],
        /// Firmware version (out; text, NUL-terminated).
        @72 fw_ver: [u8; 32],
        /// Node GUID (out; 64 bits, network order).
        @104 node_guid: [u8; 8],
        /// System image GUID (out; 64 bits, network order).
        @112 sys_image_guid: [u8; 8],
        /// Largest memory region (out; bytes).
        @120 max_mr_size: u64,
        /// Bit n: the device registers pages of 2^n bytes (out; bits).
        @128 page_size_cap: u64,
        /// `CAP_*` (out; bits).
        @136 caps: u64,
        /// Bit n: RC queue pairs take the `WR_*` opcode n (out; bits).
        @144 rc_send_ops: u64,
        /// The same for UC queue pairs (out; bits).
        @152 uc_send_ops: u64,
        /// The same for UD queue pairs (out; bits).
        @160 ud_send_ops: u64,
        /// Vendor (out; 24 bits).
        @168 vendor_id: u32,
        /// Part number of the vendor (out; number).
        @172 vendor_part_id: u32,
        /// Hardware version (out; number).
        @176 hw_ver: u32,
        /// Number of physical ports (out; ports).
        @180 phys_ports: u32,
        /// Maximum number of queue pairs (out; count).
        @184 max_qp: u32,
        /// Maximum work requests per send or receive queue (out; requests).
        @188 max_qp_wr: u32,
        /// Maximum elements per send request (out; elements).
        @192 max_send_sge: u32,
        /// Maximum elements per receive request (out; elements).
        @196 max_recv_sge: u32,
        /// Maximum number of completion queues (out; count).
        @200 max_cq: u32,
        /// Maximum entries per completion queue (out; entries).
        @204 max_cqe: u32,
        /// Maximum number of memory regions (out; count).
        @208 max_mr: u32,
        /// Maximum number of protection domains (out; count).
        @212 max_pd: u32,
        /// Maximum responder resources per queue pair (out; count).
        @216 max_qp_rd_atom: u32,
        /// Maximum outstanding reads and atomics per queue pair (out; count).
        @220 max_qp_init_rd_atom: u32,
        /// Maximum number of shared receive queues (out; count).
        @224 max_srq: u32,
        /// Maximum work requests per shared receive queue (out; requests).
        @228 max_srq_wr: u32,
        /// Maximum pages under one key (out; pages).
        @232 max_fast_reg_pages: u32,
        /// Number of completion vectors, for `comp_vector` of CQ_CREATE (out; count).
        @236 num_comp_vectors: u32,
        /// Local CA ACK delay: 4.096 us * 2^n (out; exponent).
        @240 local_ca_ack_delay: u32,
        /// Zero (0).
        @244 pad: u32,
    }
    /// Describes a port: the argument of [`IOC_PORT_QUERY`].
    struct PortQuery = rust_ulp_port_query, 88 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Port number (in; 1 to phys_ports).
        @8 port: u32,
        /// enum ib_port_state: 1 is down, 2 init, 3 armed, 4 active, 5 active defer (out; 1 to 5).
        @12 state: u32,
        /// enum ib_port_phys_state (out; 1 to 7).
        @16 phys_state: u32,
        /// Largest MTU (out; bytes; 256 to 4096).
        @20 max_mtu: u32,
        /// Active MTU (out; bytes; 256 to 4096).
        @24 active_mtu: u32,
        /// `LINK_*` (out; 0, 1, 2).
        @28 link_layer: u32,
        /// Local identifier (out; 16 bits).
        @32 lid: u32,
        /// LID of the subnet manager (out; 16 bits).
        @36 sm_lid: u32,
        /// LID mask control (out; 0 to 7).
        @40 lmc: u32,
        /// Service level of the subnet manager (out; 0 to 15).
        @44 sm_sl: u32,
        /// Longest message (out; bytes).
        @48 max_msg_sz: u32,
        /// Size of the GID table (out; entries).
        @52 gid_tbl_len: u32,
        /// Size of the P_Key table (out; entries).
        @56 pkey_tbl_len: u32,
        /// enum ib_port_width (out; enum).
        @60 active_width: u32,
        /// enum ib_port_speed (out; enum).
        @64 active_speed: u32,
        /// Capability mask of the port (out; bits).
        @68 port_cap_flags: u32,
        /// Packets with a wrong P_Key (out; count).
        @72 bad_pkey_cntr: u32,
        /// Packets with a wrong Q_Key (out; count).
        @76 qkey_viol_cntr: u32,
        /// Index of the netdev if it is in the opener's network namespace, else 0 (out; number).
        @80 ifindex: u32,
        /// Zero (0).
        @84 pad: u32,
    }
    /// One GID in the array of GID_QUERY.
    struct GidEntry = rust_ulp_gid_entry, 48 bytes {
        /// The GID (out; 128 bits, network order).
        @0 gid: [u8; 16],
        /// Index in the GID table (out; number).
        @16 index: u32,
        /// Index of the netdev with [`GID_LOCAL_NET`], else 0 (out; number).
        @20 ifindex: u32,
        /// [`GID_IB`], [`GID_ROCE_V1`] or [`GID_ROCE_V2`] (out; 0, 1, 2).
        @24 gid_type: u32,
        /// [`GID_IPV4`] and the other bits (out; bits).
        @28 flags: u32,
        /// Name of the netdev with [`GID_LOCAL_NET`], else empty (out; text, NUL-terminated).
        @32 ifname: [u8; 16],
    }
    /// Lists the GIDs of a port: the argument of [`IOC_GID_QUERY`].
    struct GidQuery = rust_ulp_gid_query, 32 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Address of an array of `capacity` [`GidEntry`] (in; address).
        @8 entries: u64,
        /// sizeof([`GidEntry`]), as the caller knows it (in; bytes; to 4096).
        @16 entry_size: u32,
        /// Length of that array (in; entries).
        @20 capacity: u32,
        /// Port number (in; 1 to phys_ports).
        @24 port: u32,
        /// Number of GIDs; may exceed `capacity` (out; entries).
        @28 count: u32,
    }
    /// Returns one P_Key of a port: the argument of [`IOC_PKEY_QUERY`].
    struct PkeyQuery = rust_ulp_pkey_query, 24 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Port number (in; 1 to phys_ports).
        @8 port: u32,
        /// Index in the P_Key table (in; below pkey_tbl_len).
        @12 index: u32,
        /// The P_Key (out; 16 bits).
        @16 pkey: u32,
        /// Zero (0).
        @20 pad: u32,
    }
    /// Creates a protection domain: the argument of [`IOC_PD_CREATE`].
    struct PdCreate = rust_ulp_pd_create, 16 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// The new protection domain (out; handle; 1 to 2^31 - 1).
        @8 handle: u32,
        /// Zero (0).
        @12 pad: u32,
    }
    /// Creates a completion queue: the argument of [`IOC_CQ_CREATE`].
    struct CqCreate = rust_ulp_cq_create, 40 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Minimum length; out: the length, a power of two (in, out; entries; 1 to 32768).
        @8 entries: u32,
        /// `DELIVER_*`; out: the choice of the kernel (in, out; 0 to 3).
        @12 delivery: u32,
        /// Completion vector (in; below num_comp_vectors).
        @16 comp_vector: u32,
        /// The new completion queue (out; handle; 1 to 2^31 - 1).
        @20 handle: u32,
        /// Where to map the ring (out; bytes; for mmap(2)).
        @24 mmap_offset: u64,
        /// Bytes to map there (out; bytes).
        @32 mmap_size: u64,
    }
    /// Head of the ring of a completion queue.
    ///
    /// The caller maps it at `mmap_offset` of CQ_CREATE. The kernel owns all of it but `head`. It
    /// keeps a copy of what it owns and never reads that from the ring.
    ///
    /// The consumer loads `tail` with acquire. While `head` differs from `tail`, it copies the
    /// entry with the number `head` modulo `entries` and increments `head`. Then it stores `head`
    /// with release. Both indices wrap at 2^32.
    struct CqRing = rust_ulp_cq_ring, 128 bytes {
        /// Index of the next entry that the consumer reads. The consumer writes it (in; index, runs
        /// over 2^32).
        @0 head: u32,
        /// Zero (0).
        @4 pad0: [u32; 15],
        /// Index of the next entry that the kernel writes (out; index, runs over 2^32).
        @64 tail: u32,
        /// `CQ_*` (out; bits).
        @68 flags: u32,
        /// Completions that did not fit (out; entries).
        @72 dropped: u32,
        /// Length of the ring (out; entries; a power of two).
        @76 entries: u32,
        /// sizeof([`Cqe`]) (out; bytes).
        @80 entry_size: u32,
        /// [`CQ_ENTRIES_OFFSET`] (out; bytes; 4096).
        @84 entries_offset: u32,
        /// Zero (0).
        @88 pad1: [u32; 10],
    }
    /// One completion.
    struct Cqe = rust_ulp_cqe, 64 bytes {
        /// `user_data` of the request (out; any).
        @0 user_data: u64,
        /// The queue pair, or the shared receive queue that flushed the request (out; handle; 1 to
        /// 2^31 - 1).
        @8 qp: u32,
        /// Number of that queue pair (out; 24 bits).
        @12 qp_num: u32,
        /// enum ib_wc_status, where 0 is success, or `WC_STATUS_*` (out; 0 to 22; 256, 257).
        @16 status: u16,
        /// `WC_*`; valid for failed requests as well (out; 0 to 4; 6; 128, 129).
        @18 opcode: u8,
        /// [`WC_GRH`] and the other bits (out; bits).
        @19 flags: u8,
        /// Error code of the vendor for a request that failed, else 0 (out; the driver's).
        @20 vendor_err: u32,
        /// Length of a receive, read or atomic that succeeded, else 0 (out; bytes).
        @24 byte_len: u32,
        /// Immediate data or the invalidated key, as `flags` says (out; 32 bits, host order).
        @28 imm_data: u32,
        /// Number of the queue pair that sent a UD datagram (out; 24 bits).
        @32 src_qp: u32,
        /// P_Key index of a UD receive (out; below pkey_tbl_len).
        @36 pkey_index: u16,
        /// LID of the sender of a UD datagram, on InfiniBand (out; 16 bits).
        @38 slid: u16,
        /// Service level of a UD receive (out; 0 to 15).
        @40 sl: u8,
        /// Path bits of the LID of a UD receive (out; 7 bits).
        @41 dlid_path_bits: u8,
        /// Port of a UD receive (out; 0, or 1 to phys_ports).
        @42 port: u8,
        /// Zero (0).
        @43 pad: u8,
        /// Zero (0).
        @44 reserved: [u32; 5],
    }
    /// Creates a queue pair: the argument of [`IOC_QP_CREATE`].
    struct QpCreate = rust_ulp_qp_create, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// [`QP_SIG_ALL`] (in; bits).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// Completion queue of send requests (in; handle; 1 to 2^31 - 1).
        @12 send_cq: u32,
        /// Completion queue of receive requests; may equal `send_cq` (in; handle; 1 to 2^31 - 1).
        @16 recv_cq: u32,
        /// Shared receive queue, or 0 (in; handle, or 0).
        @20 srq: u32,
        /// `QPT_*` (in; 2, 3, 4).
        @24 qp_type: u32,
        /// Send requests in flight: requested, then granted (in, out; requests; 0 (which is 1) to
        /// 16384).
        @28 max_send_wr: u32,
        /// The same for receive requests; 0 with `srq` (in, out; requests; 0 (which is 1) to
        /// 16384).
        @32 max_recv_wr: u32,
        /// Elements per send request: requested, then granted (in, out; elements; 0 (which is 1) to
        /// 16).
        @36 max_send_sge: u32,
        /// The same for receive requests; 0 with `srq` (in, out; elements; 0 (which is 1) to 16).
        @40 max_recv_sge: u32,
        /// Inline bytes per send request: requested, then granted (in, out; bytes; 0 to 512).
        @44 max_inline: u32,
        /// The new queue pair (out; handle; 1 to 2^31 - 1).
        @48 handle: u32,
        /// Number of the queue pair (out; 24 bits).
        @52 qp_num: u32,
    }
    /// Path to a peer.
    struct AhAttr = rust_ulp_ah_attr, 36 bytes {
        /// GID of the peer (in, out; 128 bits, network order).
        @0 dgid: [u8; 16],
        /// Flow label of the GRH (in, out; 0 to 2^20 - 1).
        @16 flow_label: u32,
        /// Index of the local GID (in, out; below gid_tbl_len).
        @20 sgid_index: u8,
        /// Hop limit of the GRH; 0: the kernel takes that of the route (in, out; 0 to 255).
        @21 hop_limit: u8,
        /// Traffic class of the GRH (in, out; 0 to 255; DSCP in the upper 6 bits).
        @22 traffic_class: u8,
        /// Service level (in, out; 0 to 15).
        @23 sl: u8,
        /// LID of the peer, on InfiniBand (in, out; 16 bits).
        @24 dlid: u16,
        /// Port number (in, out; 1 to phys_ports).
        @26 port_num: u8,
        /// 1: the fields of the GRH are used. On RoCE they always are (in, out; 0, 1).
        @27 is_global: u8,
        /// Static rate (in, out; enum ib_rate).
        @28 static_rate: u8,
        /// Path bits of the source LID, on InfiniBand (in, out; 7 bits).
        @29 src_path_bits: u8,
        /// MAC address of the peer; in: 0, the kernel resolves it (in, out; 48 bits, network
        /// order).
        @30 dmac: [u8; 6],
    }
    /// Attributes of a queue pair.
    struct QpAttr = rust_ulp_qp_attr, 72 bytes {
        /// Q_Key, of a UD queue pair (in, out; 32 bits; bit 31 is privileged).
        @0 qkey: u32,
        /// First packet sequence number of the receive side (in, out; 0 to 2^24 - 1).
        @4 rq_psn: u32,
        /// First packet sequence number of the send side (in, out; 0 to 2^24 - 1).
        @8 sq_psn: u32,
        /// Number of the queue pair of the peer (in, out; 0 to 2^24 - 1).
        @12 dest_qp_num: u32,
        /// `ACCESS_REMOTE_*`: what the peer may do (in, out; bits).
        @16 access_flags: u32,
        /// P_Key index (in, out; below pkey_tbl_len).
        @20 pkey_index: u16,
        /// `QPS_*`: the new state; out: the state (in, out; 0 to 6).
        @22 qp_state: u8,
        /// `QPS_*`: the present state, else EPROTO (in, out; 0 to 6).
        @23 cur_qp_state: u8,
        /// enum ib_mtu: 1 is 256 bytes, 2 is 512, 3 is 1024, 4 is 2048, 5 is 4096 (in, out; 1 to
        /// 5).
        @24 path_mtu: u8,
        /// Port number (in, out; 1 to phys_ports).
        @25 port_num: u8,
        /// Local ACK timeout: 4.096 us * 2^n; 0 waits for ever (in, out; 0 to 31).
        @26 timeout: u8,
        /// Retries after a timeout (in, out; 0 to 7).
        @27 retry_cnt: u8,
        /// Retries when the peer is not ready to receive; 7 retries for ever (in, out; 0 to 7).
        @28 rnr_retry: u8,
        /// Delay that the peer keeps after RNR NAK, IBA table 45: 1 is 0.01 ms, 12 is 0.64 ms, 0 is
        /// 655.36 ms (in, out; 0 to 31).
        @29 min_rnr_timer: u8,
        /// Reads and atomics that this side may have outstanding (in, out; 0 to
        /// max_qp_init_rd_atom).
        @30 max_rd_atomic: u8,
        /// Reads and atomics of the peer that this side answers at a time (in, out; 0 to
        /// max_qp_rd_atom).
        @31 max_dest_rd_atomic: u8,
        /// 1: an event reports that SQD is drained (in, out; 0, 1).
        @32 en_sqd_async_notify: u8,
        /// 1: the queue pair is in SQD and not yet drained (out; 0, 1).
        @33 sq_draining: u8,
        /// Zero (0).
        @34 pad: [u8; 2],
        /// Path to the peer (in, out).
        @36 ah: AhAttr,
    }
    /// Changes the state and the attributes of a queue pair: the argument of [`IOC_QP_MODIFY`].
    ///
    /// On iWARP, QP_CREATE leaves a queue pair in INIT, where it takes receives. Only ACCEPT and
    /// CONNECT bring it to RTS. ERR is final. QP_MODIFY returns EOPNOTSUPP for every state, RESET
    /// included.
    struct QpModify = rust_ulp_qp_modify, 88 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Queue pair (in; handle; 1 to 2^31 - 1).
        @8 qp: u32,
        /// `QP_*`: the members of `attr` to use (in; bits).
        @12 attr_mask: u32,
        /// The attributes; out: `ah.dmac` and `ah.hop_limit` as the kernel resolved them (in, out).
        @16 attr: QpAttr,
    }
    /// Describes a queue pair: the argument of [`IOC_QP_QUERY`].
    struct QpQuery = rust_ulp_qp_query, 120 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Queue pair (in; handle; 1 to 2^31 - 1).
        @8 qp: u32,
        /// Number of the queue pair (out; 24 bits).
        @12 qp_num: u32,
        /// `QPT_*` (out; 2, 3, 4).
        @16 qp_type: u32,
        /// Send requests that may be in flight (out; requests).
        @20 max_send_wr: u32,
        /// Receive requests that may be in flight (out; requests).
        @24 max_recv_wr: u32,
        /// Elements per send request (out; elements).
        @28 max_send_sge: u32,
        /// Elements per receive request (out; elements).
        @32 max_recv_sge: u32,
        /// Inline bytes per send request (out; bytes).
        @36 max_inline: u32,
        /// Send requests in flight (out; requests).
        @40 sends_in_flight: u32,
        /// Receive requests in flight (out; requests).
        @44 recvs_in_flight: u32,
        /// The attributes (out).
        @48 attr: QpAttr,
    }
    /// Creates a buffer of pages of the kernel: the argument of [`IOC_BUFFER_CREATE`].
    ///
    /// A device limits the pages under one key, so a buffer may have several keys, each for
    /// `key_bytes` of it. An element of a request may cross their borders, and then counts as one
    /// element for each key. A request with more elements than the queue pair supports is E2BIG.
    /// Where the device has two elements, every queue pair supports one element that crosses one
    /// border, whatever `max_send_sge` and `max_recv_sge` it has.
    ///
    /// On iWARP, the first key of a protection domain takes a connection of the device with itself,
    /// so the command may fail with EADDRNOTAVAIL (the device has no address in the opener's
    /// network namespace), ETIMEDOUT or EINTR. A send request has one element, under one key, else
    /// E2BIG. These requests are EOPNOTSUPP: a read that is fenced, is empty, or is on a connection
    /// that agreed on no reads; an inline message without data; a message of up to 64 bytes, not
    /// inline, that crosses the end of a page.
    ///
    /// On siw, a grant with REMOTE_READ must lie in one page, else EOPNOTSUPP, but a peer can read
    /// by any key that it has. The memory of buffers with grants stays allocated until the
    /// protection domain is destroyed, for at most 1024 buffers, then ENOMEM.
    struct BufferCreate = rust_ulp_buffer_create, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// NUMA node to prefer, or [`NODE_ANY`]; ERANGE if there is no such node. Other nodes give
        /// the pages that this node lacks. out: node of the first page (in, out; NUMA node, or -1).
        @12 node: i32,
        /// Length; out: rounded up to whole pages (in, out; bytes; 1 to 2^30).
        @16 length: u64,
        /// Contiguous bytes; 0: the kernel chooses a power of two from 4096 to 2097152 (in, out;
        /// bytes; 0, 4096, 2097152).
        @24 page_size: u32,
        /// The new buffer (out; handle; 1 to 2^31 - 1).
        @28 handle: u32,
        /// Where to map the buffer (out; bytes; for mmap(2)).
        @32 mmap_offset: u64,
        /// Bytes under one key of the device (out; bytes).
        @40 key_bytes: u64,
        /// Number of those keys (out; count, from 1).
        @48 keys: u32,
        /// Zero (0).
        @52 pad: u32,
    }
    /// Creates a buffer of memory of the caller: the argument of [`IOC_BUFFER_REGISTER`].
    ///
    /// The kernel pins the memory until the buffer is destroyed, and charges it to RLIMIT_MEMLOCK.
    /// The buffer has no mmap offset. After fork() the memory stays that of the parent, and the
    /// child has a copy. Pages that the caller unmaps stay pinned, and the caller can no longer
    /// access them.
    ///
    /// EFAULT: the memory is not mapped, or is not writable and READ_ONLY is not set. EOPNOTSUPP:
    /// the kernel cannot pin this memory for long (files on most filesystems, device memory).
    struct BufferRegister = rust_ulp_buffer_register, 48 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// [`BUFFER_READ_ONLY`] (in; bits).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// The new buffer (out; handle; 1 to 2^31 - 1).
        @12 handle: u32,
        /// Address of the first byte; need not be aligned (in; address).
        @16 addr: u64,
        /// Length (in; bytes; 1 to 2^30).
        @24 length: u64,
        /// Bytes under one key of the device; the first key may have less (out; bytes).
        @32 key_bytes: u64,
        /// Number of those keys (out; count, from 1).
        @40 keys: u32,
        /// Contiguous bytes that the kernel found (out; bytes; a power of two from 4096 to
        /// 2097152).
        @44 page_size: u32,
    }
    /// Creates a buffer of a dma-buf: the argument of [`IOC_BUFFER_IMPORT`].
    ///
    /// For a software device ([`CAP_VIRT_DMA`]), the dma-buf must be system memory that its
    /// exporter can map into the kernel, else EOPNOTSUPP. For any other device, the kernel attaches
    /// the device to the dma-buf and maps that for DMA, which has not been tried on hardware. The
    /// buffer has no mmap offset. EACCES: the dma-buf is not open for writing and READ_ONLY is not
    /// set.
    struct BufferImport = rust_ulp_buffer_import, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// [`BUFFER_READ_ONLY`] (in; bits).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// The dma-buf; EBADF if there is no such descriptor, EINVAL if it is another file (in;
        /// descriptor).
        @12 fd: i32,
        /// First byte (in; bytes; a multiple of 4096).
        @16 offset: u64,
        /// Length; 0: all from `offset` on; out: the length (in, out; bytes; 0 to 2^30).
        @24 length: u64,
        /// Bytes under one key of the device (out; bytes).
        @32 key_bytes: u64,
        /// Number of those keys (out; count, from 1).
        @40 keys: u32,
        /// Contiguous bytes (out; bytes; a power of two from 4096 to 2097152).
        @44 page_size: u32,
        /// The new buffer (out; handle; 1 to 2^31 - 1).
        @48 handle: u32,
        /// Zero (0).
        @52 pad: u32,
    }
    /// Describes a buffer: the argument of [`IOC_BUFFER_QUERY`].
    struct BufferQuery = rust_ulp_buffer_query, 64 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// in: 0; out: [`BUFFER_READ_ONLY`] (in, out; bits).
        @4 flags: u32,
        /// Buffer (in; handle; 1 to 2^31 - 1).
        @8 buffer: u32,
        /// [`BUFFER_PAGES`], [`BUFFER_USER`] or [`BUFFER_DMABUF`] (out; 1, 2, 3).
        @12 kind: u32,
        /// Length (out; bytes; 1 to 2^30).
        @16 length: u64,
        /// Bytes that count against RLIMIT_MEMLOCK (out; bytes).
        @24 charged: u64,
        /// Where to map the buffer; 0: it cannot be mapped (out; bytes; for mmap(2)).
        @32 mmap_offset: u64,
        /// Bytes under one key of the device (out; bytes).
        @40 key_bytes: u64,
        /// Number of those keys (out; count, from 1).
        @48 keys: u32,
        /// Contiguous bytes (out; bytes; a power of two from 4096 to 2097152).
        @52 page_size: u32,
        /// NUMA node of the first page (out; NUMA node, or -1).
        @56 node: i32,
        /// Number of its grants (out; count).
        @60 grants: u32,
    }
    /// Gives the peer access to a range of a buffer: the argument of [`IOC_GRANT_CREATE`].
    ///
    /// One key opens one range. The range may cross keys of its buffer, but is no larger than the
    /// device supports under one key: else ERANGE, or with PARTIAL the kernel grants less.
    ///
    /// A grant with `qp` ends when that queue pair goes to ERR or RESET or is destroyed, whatever
    /// the cause. ENOTCONN: `qp` is in ERR. A grant with ONE_SHOT also ends when a receive of `qp`
    /// completes that invalidated the key (SEND_WITH_INV), or that has immediate data equal to the
    /// key (RDMA_WRITE_WITH_IMM). When the peer can no longer access the memory, the file reports
    /// [`EVENT_GRANT_ENDED`]. The handle stays until it is destroyed.
    struct GrantCreate = rust_ulp_grant_create, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// [`GRANT_ONE_SHOT`], [`GRANT_PARTIAL`] (in; bits).
        @4 flags: u32,
        /// Buffer (in; handle; 1 to 2^31 - 1).
        @8 buffer: u32,
        /// `ACCESS_REMOTE_*`, at least one (in; bits).
        @12 access: u32,
        /// First byte (in; bytes).
        @16 offset: u64,
        /// Length; out: the granted length, with PARTIAL (in, out; bytes; 1 to 2^30).
        @24 length: u64,
        /// Remote address of the first byte (out; bytes; remote address).
        @32 addr: u64,
        /// The key (out; 32 bits).
        @40 rkey: u32,
        /// The new grant; destroying it revokes the key (out; handle; 1 to 2^31 - 1).
        @44 handle: u32,
        /// Queue pair that may use the grant, or 0 (in; handle, or 0).
        @48 qp: u32,
        /// Zero (0).
        @52 pad: u32,
    }
    /// Gives a grant a new key: the argument of [`IOC_GRANT_ROTATE`].
    ///
    /// The range stays the same. When the command returns, the old key is revoked, as after
    /// DESTROY. When it fails, the old key stays valid. ENOTCONN: the grant has ended.
    struct GrantRotate = rust_ulp_grant_rotate, 24 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Grant (in; handle; 1 to 2^31 - 1).
        @8 grant: u32,
        /// The new key (out; 32 bits).
        @12 rkey: u32,
        /// Remote address of the first byte (out; bytes; remote address).
        @16 addr: u64,
    }
    /// Describes a grant: the argument of [`IOC_GRANT_QUERY`].
    struct GrantQuery = rust_ulp_grant_query, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// in: 0; out: [`GRANT_ONE_SHOT`] (in, out; 0).
        @4 flags: u32,
        /// Grant (in; handle; 1 to 2^31 - 1).
        @8 grant: u32,
        /// [`GRANT_ACTIVE`], [`GRANT_USED`] or [`GRANT_EXPIRED`] (out; 1, 2, 3).
        @12 state: u32,
        /// Buffer (out; handle; 1 to 2^31 - 1).
        @16 buffer: u32,
        /// Queue pair that may use the grant, or 0 (out; handle, or 0).
        @20 qp: u32,
        /// First byte (out; bytes).
        @24 offset: u64,
        /// Length (out; bytes; 1 to 2^30).
        @32 length: u64,
        /// Remote address of the first byte (out; bytes; remote address).
        @40 addr: u64,
        /// The key; 0: the grant has ended (out; 32 bits).
        @48 rkey: u32,
        /// Rights of the peer (out; bits).
        @52 access: u32,
    }
    /// Creates an address handle, for datagrams: the argument of [`IOC_AH_CREATE`].
    ///
    /// It may be destroyed while requests that name it are in flight. A datagram that is longer
    /// than the MTU of the port at the time of AH_CREATE is EMSGSIZE.
    struct AhCreate = rust_ulp_ah_create, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// The new address handle (out; handle; 1 to 2^31 - 1).
        @12 handle: u32,
        /// The path; out: `dmac` and `hop_limit` as the kernel resolved them (in, out).
        @16 attr: AhAttr,
        /// Zero (0).
        @52 pad: u32,
    }
    /// Creates a shared receive queue: the argument of [`IOC_SRQ_CREATE`].
    ///
    /// SUBMIT posts the requests of a shared receive queue, with its handle in place of that of a
    /// queue pair. They complete in `cq`, with the handle of the queue pair that used them. A queue
    /// pair that uses the queue has `cq` as its `recv_cq` and the same `pd`, else QP_CREATE returns
    /// EXDEV.
    ///
    /// A queue pair that ends in the middle of a message keeps the request that it had begun to
    /// fill. That request completes as flushed, with the handle of the shared receive queue, at the
    /// next operation on the queue after a later request has completed. At the latest it completes
    /// when the queue is destroyed, as all requests do that are left.
    struct SrqCreate = rust_ulp_srq_create, 32 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Protection domain (in; handle; 1 to 2^31 - 1).
        @8 pd: u32,
        /// Completion queue (in; handle; 1 to 2^31 - 1).
        @12 cq: u32,
        /// Requests in flight: requested, then granted (in, out; requests; 0 (which is 1) to
        /// 16384).
        @16 max_wr: u32,
        /// Elements per request: requested, then granted (in, out; elements; 0 (which is 1) to 16).
        @20 max_sge: u32,
        /// The limit, as SRQ_MODIFY arms it; 0: none (in; requests).
        @24 limit: u32,
        /// The new shared receive queue (out; handle; 1 to 2^31 - 1).
        @28 handle: u32,
    }
    /// Arms the limit of a shared receive queue: the argument of [`IOC_SRQ_MODIFY`].
    ///
    /// The file reports [`EVENT_SRQ_LIMIT`] once, when fewer than `limit` requests are left.
    struct SrqModify = rust_ulp_srq_modify, 16 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Shared receive queue (in; handle; 1 to 2^31 - 1).
        @8 srq: u32,
        /// The limit, at most `max_wr`; 0 disarms it (in; requests).
        @12 limit: u32,
    }
    /// Describes a shared receive queue: the argument of [`IOC_SRQ_QUERY`].
    struct SrqQuery = rust_ulp_srq_query, 32 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Shared receive queue (in; handle; 1 to 2^31 - 1).
        @8 srq: u32,
        /// Requests that may be in flight (out; requests).
        @12 max_wr: u32,
        /// Elements per request (out; elements).
        @16 max_sge: u32,
        /// The limit; 0: it is disarmed, or has raised its event (out; requests).
        @20 limit: u32,
        /// Requests posted and not completed (out; requests).
        @24 recvs_in_flight: u32,
        /// Zero (0).
        @28 pad: u32,
    }
    /// Destroys an object: the argument of [`IOC_DESTROY`].
    ///
    /// Waits of other threads for the object, and the stream of a completion queue, end with EBADF.
    struct Destroy = rust_ulp_destroy, 16 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Object of any type; EBUSY while other objects use it (in; handle; 1 to 2^31 - 1).
        @8 handle: u32,
        /// Zero (0).
        @12 pad: u32,
    }
    /// One record that read() returns.
    ///
    /// read() on an attached file returns as many whole records as there are and fit. It waits for
    /// the first record, or returns EAGAIN with O_NONBLOCK. EINVAL: not one record fits. ENXIO: the
    /// file is not attached. After the device is removed, the last record is
    /// [`EVENT_DEVICE_REMOVED`], and then read() returns ENODEV. The object that a record names may
    /// be destroyed already.
    ///
    /// poll() reports POLLPRI while there are records, and POLLIN while there are completions.
    struct Event = rust_ulp_event, 32 bytes {
        /// `EVENT_*` (out; 0 to 18; 256 to 259; 272 to 276).
        @0 event: u32,
        /// The object, or 0 (out; handle, or 0).
        @4 handle: u32,
        /// Port, or 0 (out; 0, or 1 to phys_ports).
        @8 port: u32,
        /// Detail of the event (out; by `event`).
        @12 info: u32,
        /// Time of the event, CLOCK_MONOTONIC (out; ns).
        @16 time_ns: u64,
        /// Zero (0).
        @24 reserved: u64,
    }
    /// An IP address and a port.
    ///
    /// One form for struct sockaddr_in and struct sockaddr_in6.
    struct Addr = rust_ulp_addr, 24 bytes {
        /// AF_INET is 2, AF_INET6 is 10; 0 where an address is optional (in, out; 0, 2, 10).
        @0 family: u16,
        /// Port, in host byte order (in, out; 0 to 65535).
        @2 port: u16,
        /// Interface of an IPv6 link-local address, else 0 (in, out; interface index).
        @4 scope_id: u32,
        /// The address; an IPv4 address is in the first four bytes, and zeros follow (in, out; 16
        /// bytes, network order).
        @8 addr: [u8; 16],
    }
    /// Parameters of a connection.
    ///
    /// A command takes the requested parameters and returns the negotiated ones.
    struct ConnParam = rust_ulp_conn_param, 16 bytes {
        /// Reads and atomics of the peer that this side answers at a time (in, out; 0 to
        /// max_qp_rd_atom).
        @0 responder_resources: u8,
        /// Reads and atomics that this side may have outstanding (in, out; 0 to
        /// max_qp_init_rd_atom).
        @1 initiator_depth: u8,
        /// Retries after a timeout; that of CONNECT holds for both sides (in, out; 0 to 7).
        @2 retry_cnt: u8,
        /// Retries when the receiver is not ready; in: for the peer to use; out: for this side,
        /// from the peer (in, out; 0 to 7).
        @3 rnr_retry: u8,
        /// As [`QpAttr::min_rnr_timer`] (in, out; 0 to 31).
        @4 min_rnr_timer: u8,
        /// Local ACK timeout: 4.096 us * 2^n; 0: the connection manager chooses (in, out; 0 to 31).
        @5 ack_timeout: u8,
        /// Type of service, with [`CONN_TRAFFIC_CLASS`]; else that of the route (in, out; 0 to 255;
        /// DSCP in the upper 6 bits).
        @6 traffic_class: u8,
        /// enum ib_mtu, at most that of the route; 0: that of the route. ACCEPT cannot lower it
        /// (in, out; 0 to 5).
        @7 path_mtu: u8,
        /// `ACCESS_REMOTE_*`: what the peer may do (in, out; bits).
        @8 access_flags: u32,
        /// `CONN_*` (in, out; bits).
        @12 flags: u32,
    }
    /// Creates a listener: the argument of [`IOC_LISTEN`].
    struct Listen = rust_ulp_listen, 40 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Local address, all zero for any; out: the port, if that was 0 (in, out).
        @8 addr: Addr,
        /// Requests that wait for ACCEPT; the kernel rejects more (in; requests; 1 to 1024).
        @32 backlog: u32,
        /// The new listener (out; handle; 1 to 2^31 - 1).
        @36 handle: u32,
    }
    /// Takes the oldest request of a listener: the argument of [`IOC_GET_REQUEST`].
    struct GetRequest = rust_ulp_get_request, 320 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Listener (in; handle; 1 to 2^31 - 1).
        @8 listener: u32,
        /// The request; ACCEPT makes it a connection, destroying it rejects it (out; handle; 1 to
        /// 2^31 - 1).
        @12 handle: u32,
        /// How long to wait, then ETIME; 0: does not sleep (in; ns; 0 to 3,600,000,000,000).
        @16 timeout_ns: u64,
        /// Address of the peer (out).
        @24 peer: Addr,
        /// Local address (out).
        @48 local: Addr,
        /// What the peer requests, from the view of this side (out).
        @72 param: ConnParam,
        /// Number of the queue pair of the peer (out; 24 bits).
        @88 peer_qp_num: u32,
        /// Length of the private data; the connection manager pads it with zeros (out; bytes; 0 to
        /// 224).
        @92 private_len: u32,
        /// The private data (out; bytes).
        @96 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Accepts a request: the argument of [`IOC_ACCEPT`].
    ///
    /// ACCEPT and CONNECT take a queue pair in RESET and bring it to RTS, or fail and leave it in
    /// RESET. To post receives before, the caller may bring the queue pair to INIT. A command that
    /// fails then leaves it in INIT with its receives, unless both sides have answered each other
    /// already: in that case the queue pair is in RESET and its receives are flushed.
    ///
    /// When ACCEPT abandons a request, its handle is gone, as after REJECT. It does so with
    /// ECONNRESET, ETIMEDOUT, EINTR, and the errors of the connection manager. After any other
    /// error the request is unchanged.
    ///
    /// A connection uses its queue pair until its own handle is destroyed, which disconnects.
    ///
    /// On iWARP, the queue pair is in INIT. A command that fails before it has asked the peer, or
    /// has answered the request, leaves the queue pair there. A command that fails later leaves it
    /// in ERR and its receives flushed. The side that accepts must not send before data of the peer
    /// has arrived (RFC 5044 7.1). Of the parameters, only the reads of each side and
    /// `access_flags` are used, and siw ignores `access_flags`. The others are ignored, and read as
    /// 0. `peer_qp_num` is 0. `reject_reason` is 28 if the answer of the peer had private data,
    /// else 0. Sockets are created in the network namespace of the caller, which should be that of
    /// the opener. While TCP connects, a signal ends CONNECT, but neither `timeout_ns` nor the
    /// removal of the device does (see net.ipv4.tcp_syn_retries). The file does not report
    /// [`EVENT_TIMEWAIT_EXIT`].
    struct Accept = rust_ulp_accept, 272 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// The request; its handle is that of the connection from now on (in; handle; 1 to 2^31 -
        /// 1).
        @8 request: u32,
        /// Queue pair (in; handle; 1 to 2^31 - 1).
        @12 qp: u32,
        /// How long to wait for the peer, then ETIMEDOUT (in; ns; 0 to 3,600,000,000,000).
        @16 timeout_ns: u64,
        /// Requested parameters; out: negotiated parameters (in, out).
        @24 param: ConnParam,
        /// Zero (0).
        @40 pad: u32,
        /// Length of the private data (in; bytes; 0 to 196).
        @44 private_len: u32,
        /// The private data (in; bytes).
        @48 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Rejects a request: the argument of [`IOC_REJECT`].
    struct Reject = rust_ulp_reject, 240 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// The request; its handle is gone afterwards (in; handle; 1 to 2^31 - 1).
        @8 request: u32,
        /// Length of the private data (in; bytes; 0 to 148).
        @12 private_len: u32,
        /// The private data (in; bytes).
        @16 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Connects a queue pair to a listener: the argument of [`IOC_CONNECT`].
    struct Connect = rust_ulp_connect, 336 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Queue pair (in; handle; 1 to 2^31 - 1).
        @8 qp: u32,
        /// The new connection (out; handle; 1 to 2^31 - 1).
        @12 handle: u32,
        /// How long the command may take, then ETIMEDOUT (in; ns; 0 to 3,600,000,000,000).
        @16 timeout_ns: u64,
        /// Address of the peer (in).
        @24 dst: Addr,
        /// Local address; `family` 0: that of the route; out: the address in use (in, out).
        @48 src: Addr,
        /// Requested parameters; out: negotiated parameters (in, out).
        @72 param: ConnParam,
        /// Length of the private data; out: of that of the answer (in, out; bytes; 0 to 56).
        @88 private_len: u32,
        /// Number of the queue pair of the peer (out; 24 bits).
        @92 peer_qp_num: u32,
        /// Valid even if the command fails: 0, or a reason of IBA 12.6.7.2; 28 is REJECT of the
        /// peer (out; number).
        @96 reject_reason: u32,
        /// Time until the address was resolved (out; us).
        @100 resolve_us: u32,
        /// Time until the route was resolved (out; us).
        @104 route_us: u32,
        /// Time until the peer had answered (out; us).
        @108 connect_us: u32,
        /// The private data; out: that of the peer, valid even if the command fails (in, out;
        /// bytes).
        @112 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Ends a connection: the argument of [`IOC_DISCONNECT`].
    ///
    /// On InfiniBand and RoCE, the connection manager sends a DREQ and repeats it until the peer
    /// answers, at most 15 times. DESTROY of a connection and the end of its file send it once. If
    /// the peer does not receive it, the connection of the peer stays [`CONN_ESTABLISHED`], and
    /// receives that are posted there do not complete: no packet asks whether the other end is
    /// alive. A deadline (`timeout_ns` of [`Wr`]) ends a receive; a send that is not acknowledged
    /// finds that the peer has gone.
    struct Disconnect = rust_ulp_disconnect, 16 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Connection; its queue pair goes to ERR and its requests are flushed (in; handle; 1 to
        /// 2^31 - 1).
        @8 conn: u32,
        /// Zero (0).
        @12 pad: u32,
    }
    /// Describes a connection, a request or a listener: the argument of [`IOC_CONN_QUERY`].
    struct ConnQuery = rust_ulp_conn_query, 104 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Connection, request or listener (in; handle; 1 to 2^31 - 1).
        @8 conn: u32,
        /// `CONN_*` (out; 1 to 5).
        @12 state: u32,
        /// Local address (out).
        @16 local: Addr,
        /// Address of the peer (out).
        @40 peer: Addr,
        /// Negotiated parameters (out).
        @64 param: ConnParam,
        /// Queue pair, or 0 (out; handle, or 0).
        @80 qp: u32,
        /// Number of the queue pair of the peer (out; 24 bits).
        @84 peer_qp_num: u32,
        /// Requests that wait, of a listener (out; requests).
        @88 waiting: u32,
        /// As in LISTEN, of a listener (out; requests; 1 to 1024).
        @92 backlog: u32,
        /// Rejected requests beyond `backlog`, of a listener (out; requests).
        @96 rejected: u32,
        /// Zero (0).
        @100 pad: u32,
    }
    /// A piece of local memory.
    struct Sge = rust_ulp_sge, 16 bytes {
        /// Buffer; 0, only with [`SEND_INLINE`]: `offset` is an address (in; handle, or 0).
        @0 buffer: u32,
        /// Length (in; bytes; 0 to 2^31 in all).
        @4 length: u32,
        /// Offset in the buffer, or address (in; bytes, or an address).
        @8 offset: u64,
    }
    /// A work request.
    struct Wr = rust_ulp_wr, 80 bytes {
        /// The kernel copies it to the completion (in; any).
        @0 user_data: u64,
        /// Queue pair, or a shared receive queue for RECV (in; handle; 1 to 2^31 - 1).
        @8 qp: u32,
        /// `WR_*` (in; 0 to 6; 9; 128).
        @12 opcode: u8,
        /// Number of elements. Up to 1: `sge` is the element. More: `sge.offset` is the address of
        /// an array of [`Sge`], and `sge.buffer` and `sge.length` are 0 (in; 0 to 16).
        @13 num_sge: u8,
        /// `SEND_*` (in; bits).
        @14 flags: u16,
        /// Remote address, of RDMA and atomic requests (in; bytes; remote address).
        @16 remote_addr: u64,
        /// Key of the remote memory (in; 32 bits).
        @24 rkey: u32,
        /// Immediate data, or the key to invalidate (in; 32 bits, host order).
        @28 imm_data: u32,
        /// The only element, or where the array of elements is (in).
        @32 sge: Sge,
        /// Operand of an atomic: compare or add. UD: address handle | number of the queue pair \<\<
        /// 32 (in; 64 bits).
        @48 arg0: u64,
        /// Second operand of an atomic: swap. UD: Q_Key; with bit 31 set, the Q_Key of the queue
        /// pair (in; 64 bits).
        @56 arg1: u64,
        /// How long the request may take from the post on, rounded up to 2^20 ns, then
        /// [`WC_STATUS_TIMEOUT`]; 0: no deadline (in; ns; 0 to 3,600,000,000,000).
        @64 timeout_ns: u64,
        /// Zero (0).
        @72 reserved: u64,
    }
    /// Posts requests and waits for completions: the argument of [`IOC_SUBMIT`].
    ///
    /// The command posts `nr_wrs` requests, then waits until the ring of `cq` has `min_complete`
    /// unread completions.
    ///
    /// The kernel checks all requests before it posts the first. If it refuses one, the command
    /// fails with the errno of that request, `bad_index` is its index, and no request is posted.
    /// Only the device can refuse a request later. Then `posted` is less than `nr_wrs`, the command
    /// fails with the errno of the device, and `bad_index` equals `posted`. Requests for one queue
    /// pair are posted in the order of the array.
    ///
    /// EAGAIN: a queue is full, or the completion queue, which must have room for every request in
    /// flight. Poll completions and try again.
    ///
    /// A failed wait does not fail the command, and posted requests stay posted. `wait_error` is 0,
    /// -ETIME, -EINTR (a signal, or task work of an io_uring), or -EIO (the device reported an
    /// error of its completion queue, see [`CQ_ERROR`]). ENODEV: the device was removed during the
    /// wait. EBADF: another thread destroyed `cq` during the wait.
    struct Submit = rust_ulp_submit, 56 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Address of an array of `nr_wrs` [`Wr`] (in; address).
        @8 wrs: u64,
        /// Length of that array (in; requests; 0 to 1024).
        @16 nr_wrs: u32,
        /// sizeof([`Wr`]), as the caller knows it (in; bytes; 64 to 4096).
        @20 wr_size: u32,
        /// Completion queue to wait for, or 0 (in; handle, or 0).
        @24 cq: u32,
        /// Completions to wait for, at most `entries` of the queue (in; completions).
        @28 min_complete: u32,
        /// How long to wait; 0: does not sleep (in; ns; 0 to 3,600,000,000,000).
        @32 timeout_ns: u64,
        /// Number of posted requests, valid even if the command fails (out; requests).
        @40 posted: u32,
        /// Index of the refused request, valid if the command fails (out; index).
        @44 bad_index: u32,
        /// Unread completions in the ring of `cq` (out; completions).
        @48 completed: u32,
        /// How the wait ended: 0, -ETIME, -EINTR or -EIO (out; 0 or a negative errno).
        @52 wait_error: i32,
    }
    /// Completes requests in flight as canceled: the argument of [`IOC_CANCEL`].
    ///
    /// The requests complete with [`WC_STATUS_CANCELED`]. Requests that have completed are not
    /// affected. A send request that is neither signaled nor has a deadline counts as in flight
    /// until a later one has completed.
    struct Cancel = rust_ulp_cancel, 24 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// `CANCEL_*` (in; bits).
        @4 flags: u32,
        /// Queue pair or shared receive queue (in; handle; 1 to 2^31 - 1).
        @8 queue: u32,
        /// Number of canceled requests; may be 0 (out; requests).
        @12 canceled: u32,
        /// `user_data` of the requests (in; any).
        @16 user_data: u64,
    }
    /// Signals an eventfd for each completion: the argument of [`IOC_CQ_EVENTFD`].
    ///
    /// The kernel signals the eventfd for each completion that it adds to the ring of `cq`, and
    /// when the device is removed. A queue has one eventfd: EBUSY for another.
    struct CqEventfd = rust_ulp_cq_eventfd, 16 bytes {
        /// sizeof this struct, as the caller knows it (in; bytes; to 4096).
        @0 size: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Completion queue (in; handle; 1 to 2^31 - 1).
        @8 cq: u32,
        /// The eventfd; EINVAL if it is another file; -1 removes the eventfd of the queue (in;
        /// descriptor, or -1).
        @12 fd: i32,
    }
    /// Command of [`URING_BATCH`].
    ///
    /// The kernel posts all requests or none, as SUBMIT does. The entry completes when all requests
    /// have completed. Its result is their number, or the status of the request that failed first,
    /// whose index is the first extra word. A batch of one request completes like that request.
    struct UringBatch = rust_ulp_uring_batch, 16 bytes {
        /// Address of an array of `nr_wrs` [`Wr`] (in; address).
        @0 wrs: u64,
        /// Length of that array (in; requests; 1 to 1024).
        @8 nr_wrs: u16,
        /// sizeof([`Wr`]), as the caller knows it (in; bytes; 64 to 4096).
        @10 wr_size: u16,
        /// [`URING_RING`] (in; bits).
        @12 flags: u32,
    }
    /// Command of [`URING_CANCEL`].
    struct UringCancel = rust_ulp_uring_cancel, 16 bytes {
        /// `user_data` of the requests (in; any).
        @0 user_data: u64,
        /// Queue pair or shared receive queue (in; handle; 1 to 2^31 - 1).
        @8 queue: u32,
        /// `CANCEL_*` (in; bits).
        @12 flags: u32,
    }
    /// Command of [`URING_STREAM`].
    ///
    /// The command is multishot (IORING_URING_CMD_MULTISHOT) and has a group of provided buffers.
    /// The kernel copies completions from the ring of `cq` into the buffers, as many whole struct
    /// [`Cqe`] as there are and fit. The result is the number of bytes. From the first stream on,
    /// the kernel is the reader of the ring and ignores its head.
    ///
    /// A result above 0 without IORING_CQE_F_MORE ends the stream: io_uring's CQ had no room. It
    /// has no buffer ID; the bytes are in the next buffer of the group. A new stream continues.
    ///
    /// ENOBUFS: no buffer is left; a new stream continues, and no completion is lost. EBUSY: the
    /// queue has a stream. ENODEV: the device was removed. EBADF: the queue was destroyed.
    struct UringStream = rust_ulp_uring_stream, 16 bytes {
        /// Completion queue (in; handle; 1 to 2^31 - 1).
        @0 cq: u32,
        /// 0: no flag is defined (in; 0).
        @4 flags: u32,
        /// Zero (0).
        @8 reserved: u64,
    }
}

commands! {
    Query = IOC_QUERY, "QUERY";
    DeviceList = IOC_DEVICE_LIST, "DEVICE_LIST";
    Attach = IOC_ATTACH, "ATTACH";
    DeviceQuery = IOC_DEVICE_QUERY, "DEVICE_QUERY";
    PortQuery = IOC_PORT_QUERY, "PORT_QUERY";
    GidQuery = IOC_GID_QUERY, "GID_QUERY";
    PkeyQuery = IOC_PKEY_QUERY, "PKEY_QUERY";
    PdCreate = IOC_PD_CREATE, "PD_CREATE";
    CqCreate = IOC_CQ_CREATE, "CQ_CREATE";
    QpCreate = IOC_QP_CREATE, "QP_CREATE";
    QpModify = IOC_QP_MODIFY, "QP_MODIFY";
    QpQuery = IOC_QP_QUERY, "QP_QUERY";
    BufferCreate = IOC_BUFFER_CREATE, "BUFFER_CREATE";
    GrantCreate = IOC_GRANT_CREATE, "GRANT_CREATE";
    AhCreate = IOC_AH_CREATE, "AH_CREATE";
    SrqCreate = IOC_SRQ_CREATE, "SRQ_CREATE";
    SrqModify = IOC_SRQ_MODIFY, "SRQ_MODIFY";
    SrqQuery = IOC_SRQ_QUERY, "SRQ_QUERY";
    Destroy = IOC_DESTROY, "DESTROY";
    Submit = IOC_SUBMIT, "SUBMIT";
    Cancel = IOC_CANCEL, "CANCEL";
    CqEventfd = IOC_CQ_EVENTFD, "CQ_EVENTFD";
    Listen = IOC_LISTEN, "LISTEN";
    GetRequest = IOC_GET_REQUEST, "GET_REQUEST";
    Accept = IOC_ACCEPT, "ACCEPT";
    Reject = IOC_REJECT, "REJECT";
    Connect = IOC_CONNECT, "CONNECT";
    Disconnect = IOC_DISCONNECT, "DISCONNECT";
    ConnQuery = IOC_CONN_QUERY, "CONN_QUERY";
    BufferRegister = IOC_BUFFER_REGISTER, "BUFFER_REGISTER";
    BufferImport = IOC_BUFFER_IMPORT, "BUFFER_IMPORT";
    BufferQuery = IOC_BUFFER_QUERY, "BUFFER_QUERY";
    GrantRotate = IOC_GRANT_ROTATE, "GRANT_ROTATE";
    GrantQuery = IOC_GRANT_QUERY, "GRANT_QUERY";
}

/// Calls the macro `$then` with the name of each constant that is a number.
#[allow(unused_macros)]
macro_rules! for_each_number {
    ($then:ident) => {
        $then! {
            ABI_VERSION IOC_MAGIC IOC_QUERY IOC_DEVICE_LIST IOC_ATTACH IOC_DEVICE_QUERY
            IOC_PORT_QUERY IOC_GID_QUERY IOC_PKEY_QUERY IOC_PD_CREATE IOC_CQ_CREATE IOC_QP_CREATE
            IOC_QP_MODIFY IOC_QP_QUERY IOC_BUFFER_CREATE IOC_GRANT_CREATE IOC_AH_CREATE
            IOC_SRQ_CREATE IOC_SRQ_MODIFY IOC_SRQ_QUERY IOC_DESTROY IOC_SUBMIT IOC_CANCEL
            IOC_CQ_EVENTFD IOC_LISTEN IOC_GET_REQUEST IOC_ACCEPT IOC_REJECT IOC_CONNECT
            IOC_DISCONNECT IOC_CONN_QUERY IOC_BUFFER_REGISTER IOC_BUFFER_IMPORT IOC_BUFFER_QUERY
            IOC_GRANT_ROTATE IOC_GRANT_QUERY NAME_MAX TIMEOUT_MAX_NS FEATURE_CALL FEATURE_GRANTS
            FEATURE_SRQ FEATURE_DATAGRAM FEATURE_EVENTS FEATURE_CM FEATURE_CANCEL FEATURE_EVENTFD
            FEATURE_URING FEATURE_USER_MEMORY FEATURE_DMABUF DEVICE_DEFAULT DEVICE_LOCAL_NET
            CAP_FAST_REG CAP_SRQ CAP_VIRT_DMA QPT_RC QPT_UC QPT_UD LINK_UNSPECIFIED LINK_INFINIBAND
            LINK_ETHERNET GID_IB GID_ROCE_V1 GID_ROCE_V2 GID_IPV4 GID_LINK_LOCAL GID_LOCAL_NET
            GID_PREFERRED DELIVER_DEFAULT DELIVER_WORKQUEUE DELIVER_SOFTIRQ DELIVER_CALLER
            CQ_ENTRIES_OFFSET CQ_OVERFLOW CQ_DEAD CQ_ERROR WC_SEND WC_RDMA_WRITE WC_RDMA_READ
            WC_COMP_SWAP WC_FETCH_ADD WC_LOCAL_INV WC_RECV WC_RECV_RDMA_WITH_IMM WC_STATUS_TIMEOUT
            WC_STATUS_CANCELED WC_GRH WC_WITH_IMM WC_WITH_INVALIDATE QP_SIG_ALL QP_STATE
            QP_CUR_STATE QP_EN_SQD_ASYNC_NOTIFY QP_ACCESS_FLAGS QP_PKEY_INDEX QP_PORT QP_QKEY QP_AV
            QP_PATH_MTU QP_TIMEOUT QP_RETRY_CNT QP_RNR_RETRY QP_RQ_PSN QP_MAX_QP_RD_ATOMIC
            QP_MIN_RNR_TIMER QP_SQ_PSN QP_MAX_DEST_RD_ATOMIC QP_DEST_QPN QPS_RESET QPS_INIT QPS_RTR
            QPS_RTS QPS_SQD QPS_SQE QPS_ERR ACCESS_LOCAL_WRITE ACCESS_REMOTE_WRITE
            ACCESS_REMOTE_READ ACCESS_REMOTE_ATOMIC NODE_ANY BUFFER_READ_ONLY BUFFER_PAGES
            BUFFER_USER BUFFER_DMABUF GRANT_ONE_SHOT GRANT_PARTIAL GRANT_ACTIVE GRANT_USED
            GRANT_EXPIRED EVENTS_MAX EVENT_CQ_ERR EVENT_QP_FATAL EVENT_QP_REQ_ERR
            EVENT_QP_ACCESS_ERR EVENT_COMM_EST EVENT_SQ_DRAINED EVENT_PATH_MIG EVENT_PATH_MIG_ERR
            EVENT_DEVICE_FATAL EVENT_PORT_ACTIVE EVENT_PORT_ERR EVENT_LID_CHANGE EVENT_PKEY_CHANGE
            EVENT_SM_CHANGE EVENT_SRQ_ERR EVENT_SRQ_LIMIT EVENT_LAST_WQE_REACHED
            EVENT_CLIENT_REREGISTER EVENT_GID_CHANGE EVENT_DEVICE_REMOVED EVENT_DEVICE_RENAMED
            EVENT_LOST EVENT_GRANT_ENDED EVENT_CONNECT_REQUEST EVENT_DISCONNECTED
            EVENT_TIMEWAIT_EXIT EVENT_ADDR_CHANGE EVENT_UNREACHABLE CM_REQ_PRIVATE_MAX
            CM_REP_PRIVATE_MAX CM_REJ_PRIVATE_MAX CM_PRIVATE_MAX CONN_TRAFFIC_CLASS
            CONN_FLOW_CONTROL CONN_LISTENING CONN_REQUESTED CONN_ESTABLISHED CONN_DISCONNECTED
            CONN_TIMEWAIT_OVER WR_RDMA_WRITE WR_RDMA_WRITE_WITH_IMM WR_SEND WR_SEND_WITH_IMM
            WR_RDMA_READ WR_ATOMIC_CMP_AND_SWP WR_ATOMIC_FETCH_AND_ADD WR_SEND_WITH_INV WR_RECV
            SEND_FENCE SEND_SIGNALED SEND_SOLICITED SEND_INLINE WR_SIZE_V1 CANCEL_ALL URING_REQUEST
            URING_BATCH URING_CANCEL URING_STREAM URING_FAILED URING_RING
        }
    };
}
#[allow(unused_imports)]
pub(crate) use for_each_number;
