// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT

//! The ABI of `/dev/rust_ulp` in Rust, for the kernel module and for user space.
//!
//! This file mirrors `rust_ulp.h`, which says what every field means; the module's build compares
//! every size and offset of the two (`rust_ulp/bindings`), and the host tests have a C compiler
//! do the same. It touches no library, so that both sides, and the host tests, can compile it.
//!
//! Whoever includes this file defines the macro `abi_check!` before: it is called once for each
//! struct as `abi_check!(RustName, c_name, field field ...)`.

#![allow(missing_docs)]

/// A value whose bytes are all zero.
pub trait Zero {
    /// That value.
    const ZERO: Self;
}

macro_rules! impl_zero {
    ($($t:ty)*) => { $(impl Zero for $t { const ZERO: Self = 0; })* };
}
impl_zero!(u8 u16 u32 u64 i32);

impl<T: Zero, const N: usize> Zero for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}

/// Defines structs of the ABI: `repr(C)`, without padding, with the value zero as default.
macro_rules! abi {
    ($(
        $(#[$meta:meta])*
        struct $name:ident = $c:ident {
            $($(#[$fmeta:meta])* $field:ident: $ty:ty,)*
        }
    )*) => { $(
        $(#[$meta])*
        #[doc = concat!("C struct: `", stringify!($c), "`.")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $ty,)*
        }

        impl Zero for $name {
            const ZERO: Self = Self { $($field: <$ty as Zero>::ZERO,)* };
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }

        impl $name {
            /// The struct's size as the ABI carries it.
            pub const SIZE: u32 = ::core::mem::size_of::<$name>() as u32;
            /// Name of the struct in C.
            pub const C_NAME: &'static str = stringify!($c);
            /// Name, offset and size of every field.
            pub const LAYOUT: &'static [(&'static str, usize, usize)] = &[
                $((
                    stringify!($field),
                    ::core::mem::offset_of!($name, $field),
                    ::core::mem::size_of::<$ty>(),
                ),)*
            ];
        }

        // No padding: what is written to the other side holds no byte that was not set.
        const _: () = assert!(
            ::core::mem::size_of::<$name>() == 0 $(+ ::core::mem::size_of::<$ty>())*
        );

        abi_check!($name, $c, $($field)*);
    )* };
}

/// `_IO(IOC_MAGIC, nr)`: the commands carry no size, their structs do.
const fn io(nr: u32) -> u32 {
    (IOC_MAGIC << 8) | nr
}

pub const ABI_VERSION: u32 = 1;
pub const DEVICE_PATH: &str = "/dev/rust_ulp";
pub const IOC_MAGIC: u32 = 0xBF;
pub const IOC_QUERY: u32 = io(0x00);
pub const IOC_DEVICE_LIST: u32 = io(0x01);
pub const IOC_ATTACH: u32 = io(0x02);
pub const IOC_DEVICE_QUERY: u32 = io(0x03);
pub const IOC_PORT_QUERY: u32 = io(0x04);
pub const IOC_GID_QUERY: u32 = io(0x05);
pub const IOC_PKEY_QUERY: u32 = io(0x06);
pub const IOC_PD_CREATE: u32 = io(0x10);
pub const IOC_CQ_CREATE: u32 = io(0x11);
pub const IOC_QP_CREATE: u32 = io(0x12);
pub const IOC_QP_MODIFY: u32 = io(0x13);
pub const IOC_QP_QUERY: u32 = io(0x14);
pub const IOC_BUFFER_CREATE: u32 = io(0x15);
pub const IOC_GRANT_CREATE: u32 = io(0x16);
pub const IOC_AH_CREATE: u32 = io(0x17);
pub const IOC_SRQ_CREATE: u32 = io(0x18);
pub const IOC_SRQ_MODIFY: u32 = io(0x19);
pub const IOC_SRQ_QUERY: u32 = io(0x1a);
pub const IOC_DESTROY: u32 = io(0x1f);
pub const IOC_SUBMIT: u32 = io(0x20);
pub const IOC_CANCEL: u32 = io(0x21);
pub const IOC_CQ_EVENTFD: u32 = io(0x22);
pub const IOC_LISTEN: u32 = io(0x30);
pub const IOC_GET_REQUEST: u32 = io(0x31);
pub const IOC_ACCEPT: u32 = io(0x32);
pub const IOC_REJECT: u32 = io(0x33);
pub const IOC_CONNECT: u32 = io(0x34);
pub const IOC_DISCONNECT: u32 = io(0x35);
pub const IOC_CONN_QUERY: u32 = io(0x36);
pub const IOC_BUFFER_REGISTER: u32 = io(0x40);
pub const IOC_BUFFER_IMPORT: u32 = io(0x41);
pub const IOC_BUFFER_QUERY: u32 = io(0x42);
pub const IOC_GRANT_ROTATE: u32 = io(0x43);
pub const IOC_GRANT_QUERY: u32 = io(0x44);
/// as IB_DEVICE_NAME_MAX, NUL included
pub const NAME_MAX: usize = 64;
pub const TIMEOUT_MAX_NS: u64 = 3_600_000_000_000;
/// SUBMIT
pub const FEATURE_CALL: u64 = 1 << 0;
/// GRANT_CREATE
pub const FEATURE_GRANTS: u64 = 1 << 1;
/// SRQ_CREATE
pub const FEATURE_SRQ: u64 = 1 << 2;
/// AH_CREATE, and queue pairs of type UD
pub const FEATURE_DATAGRAM: u64 = 1 << 3;
/// read() gives events
pub const FEATURE_EVENTS: u64 = 1 << 4;
/// LISTEN, CONNECT and so on
pub const FEATURE_CM: u64 = 1 << 5;
/// CANCEL, and deadlines of requests
pub const FEATURE_CANCEL: u64 = 1 << 6;
/// CQ_EVENTFD
pub const FEATURE_EVENTFD: u64 = 1 << 7;
/// URING_*
pub const FEATURE_URING: u64 = 1 << 8;
/// BUFFER_REGISTER
pub const FEATURE_USER_MEMORY: u64 = 1 << 9;
/// BUFFER_IMPORT
pub const FEATURE_DMABUF: u64 = 1 << 10;
/// what ATTACH without a name takes
pub const DEVICE_DEFAULT: u32 = 1 << 0;
/// a GID's netdev is in the opener's network namespace
pub const DEVICE_LOCAL_NET: u32 = 1 << 1;
/// buffers and grants can be made
pub const CAP_FAST_REG: u64 = 1 << 0;
pub const CAP_SRQ: u64 = 1 << 1;
/// a software device: no DMA
pub const CAP_VIRT_DMA: u64 = 1 << 2;
pub const QPT_RC: u32 = 2;
pub const QPT_UC: u32 = 3;
pub const QPT_UD: u32 = 4;
pub const LINK_UNSPECIFIED: u32 = 0;
pub const LINK_INFINIBAND: u32 = 1;
pub const LINK_ETHERNET: u32 = 2;
pub const GID_IB: u32 = 0;
pub const GID_ROCE_V1: u32 = 1;
pub const GID_ROCE_V2: u32 = 2;
/// ::ffff:a.b.c.d
pub const GID_IPV4: u32 = 1 << 0;
/// fe80::/10
pub const GID_LINK_LOCAL: u32 = 1 << 1;
/// its netdev is in the opener's network namespace
pub const GID_LOCAL_NET: u32 = 1 << 2;
/// what ATTACH names
pub const GID_PREFERRED: u32 = 1 << 3;
/// as the module's parameter says
pub const DELIVER_DEFAULT: u32 = 0;
/// a kernel worker
pub const DELIVER_WORKQUEUE: u32 = 1;
/// the softirq of the CPU that saw the completion
pub const DELIVER_SOFTIRQ: u32 = 2;
/// only the caller of SUBMIT on this queue
pub const DELIVER_CALLER: u32 = 3;
pub const CQ_ENTRIES_OFFSET: usize = 4096;
/// dropped completions did not fit
pub const CQ_OVERFLOW: u32 = 1 << 0;
/// the device is gone: nothing more will come
pub const CQ_DEAD: u32 = 1 << 1;
/// the device reported an error of the queue itself
pub const CQ_ERROR: u32 = 1 << 2;
pub const WC_SEND: u8 = 0;
pub const WC_RDMA_WRITE: u8 = 1;
pub const WC_RDMA_READ: u8 = 2;
pub const WC_COMP_SWAP: u8 = 3;
pub const WC_FETCH_ADD: u8 = 4;
pub const WC_LOCAL_INV: u8 = 6;
pub const WC_RECV: u8 = 128;
pub const WC_RECV_RDMA_WITH_IMM: u8 = 129;
/// 40 bytes of GRH stand before the data (UD)
pub const WC_GRH: u8 = 1 << 0;
/// imm_data is immediate data
pub const WC_WITH_IMM: u8 = 1 << 1;
/// imm_data is the invalidated rkey
pub const WC_WITH_INVALIDATE: u8 = 1 << 2;
/// its deadline has passed
pub const WC_STATUS_TIMEOUT: u16 = 256;
/// CANCEL named it
pub const WC_STATUS_CANCELED: u16 = 257;
/// every send request makes a completion
pub const QP_SIG_ALL: u32 = 1 << 0;
pub const QP_STATE: u32 = 1 << 0;
pub const QP_CUR_STATE: u32 = 1 << 1;
pub const QP_EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
pub const QP_ACCESS_FLAGS: u32 = 1 << 3;
pub const QP_PKEY_INDEX: u32 = 1 << 4;
pub const QP_PORT: u32 = 1 << 5;
pub const QP_QKEY: u32 = 1 << 6;
pub const QP_AV: u32 = 1 << 7;
pub const QP_PATH_MTU: u32 = 1 << 8;
pub const QP_TIMEOUT: u32 = 1 << 9;
pub const QP_RETRY_CNT: u32 = 1 << 10;
pub const QP_RNR_RETRY: u32 = 1 << 11;
pub const QP_RQ_PSN: u32 = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: u32 = 1 << 13;
pub const QP_MIN_RNR_TIMER: u32 = 1 << 15;
pub const QP_SQ_PSN: u32 = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
pub const QP_DEST_QPN: u32 = 1 << 20;
pub const QPS_RESET: u8 = 0;
pub const QPS_INIT: u8 = 1;
pub const QPS_RTR: u8 = 2;
pub const QPS_RTS: u8 = 3;
pub const QPS_SQD: u8 = 4;
pub const QPS_SQE: u8 = 5;
pub const QPS_ERR: u8 = 6;
pub const ACCESS_LOCAL_WRITE: u32 = 1 << 0;
pub const ACCESS_REMOTE_WRITE: u32 = 1 << 1;
pub const ACCESS_REMOTE_READ: u32 = 1 << 2;
pub const ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
/// requests and peers only read it
pub const BUFFER_READ_ONLY: u32 = 1 << 0;
/// BUFFER_CREATE
pub const BUFFER_PAGES: u32 = 1;
/// BUFFER_REGISTER
pub const BUFFER_USER: u32 = 2;
/// BUFFER_IMPORT
pub const BUFFER_DMABUF: u32 = 3;
/// ends when it was used; needs qp
pub const GRANT_ONE_SHOT: u32 = 1 << 0;
/// as much as goes under one key: length says how much
pub const GRANT_PARTIAL: u32 = 1 << 1;
pub const GRANT_ACTIVE: u32 = 1;
/// ONE_SHOT: used up
pub const GRANT_USED: u32 = 2;
/// its queue pair has ended
pub const GRANT_EXPIRED: u32 = 3;
pub const NODE_ANY: i32 = -1;
pub const WR_RDMA_WRITE: u8 = 0;
pub const WR_RDMA_WRITE_WITH_IMM: u8 = 1;
pub const WR_SEND: u8 = 2;
pub const WR_SEND_WITH_IMM: u8 = 3;
pub const WR_RDMA_READ: u8 = 4;
pub const WR_ATOMIC_CMP_AND_SWP: u8 = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: u8 = 6;
pub const WR_SEND_WITH_INV: u8 = 9;
pub const WR_RECV: u8 = 128;
/// after the reads and atomics before it
pub const SEND_FENCE: u16 = 1 << 0;
/// makes a completion when it succeeds
pub const SEND_SIGNALED: u16 = 1 << 1;
pub const SEND_SOLICITED: u16 = 1 << 2;
/// the data is taken when SUBMIT is called
pub const SEND_INLINE: u16 = 1 << 3;
/// size of the first version of [`Wr`]
pub const WR_SIZE_V1: u32 = 64;
/// whatever its user_data; that is 0 then
pub const CANCEL_ALL: u32 = 1 << 0;
/// one request; needs IORING_SETUP_SQE128: the 80 bytes are a [`Wr`]
pub const URING_REQUEST: u32 = io(0x80);
/// requests in memory: [`UringBatch`]
pub const URING_BATCH: u32 = io(0x81);
/// as CANCEL: [`UringCancel`]; res is how many
pub const URING_CANCEL: u32 = io(0x82);
/// completions of a queue as a stream: [`UringStream`]
pub const URING_STREAM: u32 = io(0x83);
/// res of a request that completed with status n is this minus n
pub const URING_FAILED: i32 = -1024;
/// requests make entries in completion rings, too, as by SUBMIT
pub const URING_RING: u32 = 1 << 0;
/// records that a file keeps
pub const EVENTS_MAX: usize = 256;
/// handle: the completion queue
pub const EVENT_CQ_ERR: u32 = 0;
/// handle: the queue pair; also for 2 to 7 and 16
pub const EVENT_QP_FATAL: u32 = 1;
pub const EVENT_QP_REQ_ERR: u32 = 2;
pub const EVENT_QP_ACCESS_ERR: u32 = 3;
/// a packet came before RTS
pub const EVENT_COMM_EST: u32 = 4;
pub const EVENT_SQ_DRAINED: u32 = 5;
pub const EVENT_PATH_MIG: u32 = 6;
pub const EVENT_PATH_MIG_ERR: u32 = 7;
pub const EVENT_DEVICE_FATAL: u32 = 8;
/// port; also for 10 to 13, 17 and 18
pub const EVENT_PORT_ACTIVE: u32 = 9;
pub const EVENT_PORT_ERR: u32 = 10;
pub const EVENT_LID_CHANGE: u32 = 11;
pub const EVENT_PKEY_CHANGE: u32 = 12;
pub const EVENT_SM_CHANGE: u32 = 13;
/// handle: the shared receive queue
pub const EVENT_SRQ_ERR: u32 = 14;
pub const EVENT_SRQ_LIMIT: u32 = 15;
/// a queue pair in ERR takes no more from its SRQ
pub const EVENT_LAST_WQE_REACHED: u32 = 16;
pub const EVENT_CLIENT_REREGISTER: u32 = 17;
pub const EVENT_GID_CHANGE: u32 = 18;
pub const EVENT_DEVICE_REMOVED: u32 = 256;
pub const EVENT_DEVICE_RENAMED: u32 = 257;
/// info: how many records did not fit
pub const EVENT_LOST: u32 = 258;
/// handle: the grant; info: GRANT_USED or EXPIRED
pub const EVENT_GRANT_ENDED: u32 = 259;
/// handle: the listener; info: requests waiting
pub const EVENT_CONNECT_REQUEST: u32 = 272;
/// handle: the connection; the peer has ended it
pub const EVENT_DISCONNECTED: u32 = 273;
/// handle: the connection; late packets are gone
pub const EVENT_TIMEWAIT_EXIT: u32 = 274;
/// handle: the connection or listener; its address moved
pub const EVENT_ADDR_CHANGE: u32 = 275;
/// handle: the connection; the peer does not answer
pub const EVENT_UNREACHABLE: u32 = 276;
/// of CONNECT
pub const CM_REQ_PRIVATE_MAX: usize = 56;
/// of ACCEPT
pub const CM_REP_PRIVATE_MAX: usize = 196;
/// of REJECT
pub const CM_REJ_PRIVATE_MAX: usize = 148;
/// room for any, with what the other side pads
pub const CM_PRIVATE_MAX: usize = 224;
pub const CONN_TRAFFIC_CLASS: u32 = 1 << 0;
/// end-to-end, where the device has it
pub const CONN_FLOW_CONTROL: u32 = 1 << 1;
pub const CONN_LISTENING: u32 = 1;
/// a request that waits for ACCEPT or REJECT
pub const CONN_REQUESTED: u32 = 2;
pub const CONN_ESTABLISHED: u32 = 3;
pub const CONN_DISCONNECTED: u32 = 4;
/// and late packets are gone
pub const CONN_TIMEWAIT_OVER: u32 = 5;

abi! {
    struct Query = rust_ulp_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// out: ABI_VERSION of the module
        abi_version: u32,
        /// out: handles per open file
        max_objects: u32,
        /// out: FEATURE_*
        features: u64,
        /// out: bytes per buffer, before the device's limit
        max_buffer: u64,
        /// out: nr_wrs of one SUBMIT
        max_batch: u32,
        /// out: entries of one completion queue
        max_cq_entries: u32,
        /// out: work requests per send or receive queue
        max_queue_depth: u32,
        /// out: elements per work request
        max_sge: u32,
        /// out: inline bytes per work request
        max_inline: u32,
        /// out: entries of all queues of one open file together
        max_entries: u32,
    }
    struct DeviceEntry = rust_ulp_device_entry {
        /// NUL-terminated
        name: [u8; NAME_MAX],
        node_guid: [u8; 8],
        /// as shown by `rdma dev`
        index: u32,
        /// DEVICE_*
        flags: u32,
        phys_ports: u32,
        pad: u32,
    }
    struct DeviceList = rust_ulp_device_list {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: address of an array of rust_ulp_device_entry
        entries: u64,
        /// in: sizeof one entry as the caller knows it
        entry_size: u32,
        /// in: entries in that array
        capacity: u32,
        /// out: devices there are, may exceed capacity
        count: u32,
        pad: u32,
    }
    struct Attach = rust_ulp_attach {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: the device, or empty for the default; out: its name
        name: [u8; NAME_MAX],
        /// out: as shown by `rdma dev`
        index: u32,
        /// out
        phys_ports: u32,
        /// out: the port whose GID is preferred
        port: u32,
        /// out: the preferred GID: RoCE v2 with an IPv4 address of a netdev in the opener's network namespace before others; ~0 if none
        gid_index: u32,
    }
    struct DeviceQuery = rust_ulp_device_query {
        size: u32,
        /// in: 0
        flags: u32,
        name: [u8; NAME_MAX],
        /// NUL-terminated
        fw_ver: [u8; 32],
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        /// bytes under one key
        max_mr_size: u64,
        /// bit n: pages of 2^n bytes can be registered
        page_size_cap: u64,
        /// CAP_*
        caps: u64,
        /// bit n: WR_ opcode n works on RC here
        rc_send_ops: u64,
        uc_send_ops: u64,
        ud_send_ops: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        phys_ports: u32,
        max_qp: u32,
        max_qp_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        /// responder resources per queue pair
        max_qp_rd_atom: u32,
        /// outstanding reads and atomics per queue pair
        max_qp_init_rd_atom: u32,
        max_srq: u32,
        max_srq_wr: u32,
        /// pages under one key
        max_fast_reg_pages: u32,
        num_comp_vectors: u32,
        /// 4.096 us * 2^n
        local_ca_ack_delay: u32,
        pad: u32,
    }
    struct PortQuery = rust_ulp_port_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: from 1
        port: u32,
        /// enum ib_port_state: 1 down, 2 init, 3 armed, 4 active, 5 active defer
        state: u32,
        /// enum ib_port_phys_state
        phys_state: u32,
        /// bytes
        max_mtu: u32,
        /// bytes
        active_mtu: u32,
        /// LINK_*
        link_layer: u32,
        lid: u32,
        sm_lid: u32,
        lmc: u32,
        sm_sl: u32,
        /// bytes
        max_msg_sz: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u32,
        /// enum ib_port_width
        active_width: u32,
        /// enum ib_port_speed
        active_speed: u32,
        port_cap_flags: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        /// of the netdev when it is in the opener's network namespace, else 0
        ifindex: u32,
        pad: u32,
    }
    struct GidEntry = rust_ulp_gid_entry {
        gid: [u8; 16],
        index: u32,
        /// when LOCAL_NET, else 0
        ifindex: u32,
        /// GID_IB and so on
        gid_type: u32,
        flags: u32,
        /// when LOCAL_NET, else empty
        ifname: [u8; 16],
    }
    struct GidQuery = rust_ulp_gid_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: address of an array of rust_ulp_gid_entry
        entries: u64,
        /// in
        entry_size: u32,
        /// in: entries in that array
        capacity: u32,
        /// in: from 1
        port: u32,
        /// out: entries in use, may exceed capacity
        count: u32,
    }
    struct PkeyQuery = rust_ulp_pkey_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in
        port: u32,
        /// in
        index: u32,
        /// out
        pkey: u32,
        pad: u32,
    }
    struct PdCreate = rust_ulp_pd_create {
        size: u32,
        /// in: 0
        flags: u32,
        /// out
        handle: u32,
        pad: u32,
    }
    struct CqCreate = rust_ulp_cq_create {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: at least; out: what there are, a power of two
        entries: u32,
        /// in: DELIVER_*; out: what was chosen
        delivery: u32,
        /// in: below num_comp_vectors
        comp_vector: u32,
        /// out
        handle: u32,
        /// out: of the ring
        mmap_offset: u64,
        /// out: bytes to map there
        mmap_size: u64,
    }
    struct CqRing = rust_ulp_cq_ring {
        /// the consumer's
        head: u32,
        pad0: [u32; 15],
        /// the kernel's from here on
        tail: u32,
        /// CQ_*
        flags: u32,
        dropped: u32,
        entries: u32,
        entry_size: u32,
        /// CQ_ENTRIES_OFFSET
        entries_offset: u32,
        pad1: [u32; 10],
    }
    struct Cqe = rust_ulp_cqe {
        /// of the request
        user_data: u64,
        /// handle
        qp: u32,
        qp_num: u32,
        /// enum ib_wc_status: 0 is success
        status: u16,
        /// WC_*, valid for failed requests too
        opcode: u8,
        /// WC_GRH and so on
        flags: u8,
        vendor_err: u32,
        /// of a receive, read or atomic that succeeded, else 0
        byte_len: u32,
        imm_data: u32,
        /// UD receives
        src_qp: u32,
        /// UD receives
        pkey_index: u16,
        /// UD receives on InfiniBand
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
        port: u8,
        pad: u8,
        reserved: [u32; 5],
    }
    struct QpCreate = rust_ulp_qp_create {
        size: u32,
        /// in: QP_SIG_ALL
        flags: u32,
        /// in: handle
        pd: u32,
        /// in: handle
        send_cq: u32,
        /// in: handle, may equal send_cq
        recv_cq: u32,
        /// in: handle or 0
        srq: u32,
        /// in: QPT_*
        qp_type: u32,
        /// in and out, as the others of this group
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        /// bytes
        max_inline: u32,
        /// out
        handle: u32,
        /// out
        qp_num: u32,
    }
    struct AhAttr = rust_ulp_ah_attr {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        /// 0: the route's
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        /// InfiniBand
        dlid: u16,
        port_num: u8,
        /// 1: the GRH part is used; always on RoCE
        is_global: u8,
        static_rate: u8,
        src_path_bits: u8,
        /// in: 0, the kernel resolves it; out: what it is
        dmac: [u8; 6],
    }
    struct QpAttr = rust_ulp_qp_attr {
        qkey: u32,
        /// 24 bits
        rq_psn: u32,
        /// 24 bits
        sq_psn: u32,
        /// 24 bits
        dest_qp_num: u32,
        /// ACCESS_REMOTE_*
        access_flags: u32,
        pkey_index: u16,
        /// QPS_*
        qp_state: u8,
        cur_qp_state: u8,
        /// enum ib_mtu: 1 256, 2 512, 3 1024, 4 2048, 5 4096 bytes
        path_mtu: u8,
        port_num: u8,
        /// 4.096 us * 2^n, 0 is for ever; 5 bits
        timeout: u8,
        /// 0 to 7
        retry_cnt: u8,
        /// 0 to 6, 7 is for ever
        rnr_retry: u8,
        /// IBA table 45: 1 is 0.01 ms, 12 is 0.64 ms, 0 is 655.36 ms; 5 bits
        min_rnr_timer: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        en_sqd_async_notify: u8,
        /// out
        sq_draining: u8,
        pad: [u8; 2],
        ah: AhAttr,
    }
    struct QpModify = rust_ulp_qp_modify {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        qp: u32,
        /// in: QP_*, which of attr count
        attr_mask: u32,
        /// in; out: ah.dmac and ah.hop_limit as resolved
        attr: QpAttr,
    }
    struct QpQuery = rust_ulp_qp_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        qp: u32,
        qp_num: u32,
        qp_type: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline: u32,
        sends_in_flight: u32,
        recvs_in_flight: u32,
        /// out
        attr: QpAttr,
    }
    struct BufferCreate = rust_ulp_buffer_create {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        pd: u32,
        /// in: NUMA node to prefer or NODE_ANY; out: of the first page
        node: i32,
        /// in: bytes; out: rounded up to whole pages
        length: u64,
        /// in: 0 to choose, or 4096, or 2097152; out: bytes contiguous
        page_size: u32,
        /// out
        handle: u32,
        /// out
        mmap_offset: u64,
        /// out: bytes under one key of the device
        key_bytes: u64,
        /// out: how many of them there are
        keys: u32,
        pad: u32,
    }
    struct BufferRegister = rust_ulp_buffer_register {
        size: u32,
        /// in: BUFFER_READ_ONLY
        flags: u32,
        /// in: handle
        pd: u32,
        /// out
        handle: u32,
        /// in: of the first byte, aligned or not
        addr: u64,
        /// in: bytes
        length: u64,
        /// out; the first key may have less
        key_bytes: u64,
        /// out
        keys: u32,
        /// out: bytes that were found contiguous
        page_size: u32,
    }
    struct BufferImport = rust_ulp_buffer_import {
        size: u32,
        /// in: BUFFER_READ_ONLY
        flags: u32,
        /// in: handle
        pd: u32,
        /// in: of the dma-buf
        fd: i32,
        /// in: first byte, a multiple of the page size
        offset: u64,
        /// in: bytes; 0: all from offset on; out
        length: u64,
        /// out
        key_bytes: u64,
        /// out
        keys: u32,
        /// out
        page_size: u32,
        /// out
        handle: u32,
        pad: u32,
    }
    struct BufferQuery = rust_ulp_buffer_query {
        size: u32,
        /// in: 0; out: BUFFER_READ_ONLY
        flags: u32,
        /// in: handle
        buffer: u32,
        /// BUFFER_PAGES and so on
        kind: u32,
        /// bytes
        length: u64,
        /// bytes that count against RLIMIT_MEMLOCK
        charged: u64,
        /// 0 when it cannot be mapped
        mmap_offset: u64,
        key_bytes: u64,
        keys: u32,
        page_size: u32,
        /// NUMA node of the first page
        node: i32,
        /// that there are of it
        grants: u32,
    }
    struct GrantCreate = rust_ulp_grant_create {
        size: u32,
        /// in: GRANT_*
        flags: u32,
        /// in: handle
        buffer: u32,
        /// in: ACCESS_REMOTE_*, at least one
        access: u32,
        /// in: first byte
        offset: u64,
        /// in: bytes, at least 1
        length: u64,
        /// out: the remote address of that first byte
        addr: u64,
        /// out
        rkey: u32,
        /// out: destroying it revokes the key
        handle: u32,
        /// in: handle or 0
        qp: u32,
        pad: u32,
    }
    struct GrantRotate = rust_ulp_grant_rotate {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        grant: u32,
        /// out
        rkey: u32,
        /// out
        addr: u64,
    }
    struct GrantQuery = rust_ulp_grant_query {
        size: u32,
        /// in: 0; out: GRANT_ONE_SHOT
        flags: u32,
        /// in: handle
        grant: u32,
        /// GRANT_ACTIVE and so on
        state: u32,
        /// handle
        buffer: u32,
        /// handle or 0
        qp: u32,
        offset: u64,
        length: u64,
        addr: u64,
        /// 0 when it has ended
        rkey: u32,
        access: u32,
    }
    struct AhCreate = rust_ulp_ah_create {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        pd: u32,
        /// out
        handle: u32,
        /// in; out: dmac and hop_limit as resolved
        attr: AhAttr,
        pad: u32,
    }
    struct SrqCreate = rust_ulp_srq_create {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        pd: u32,
        /// in: handle
        cq: u32,
        /// in and out
        max_wr: u32,
        /// in and out
        max_sge: u32,
        /// in: as SRQ_MODIFY sets it, 0 for none
        limit: u32,
        /// out
        handle: u32,
    }
    struct SrqModify = rust_ulp_srq_modify {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        srq: u32,
        /// in: 0 disarms, at most max_wr
        limit: u32,
    }
    struct SrqQuery = rust_ulp_srq_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        srq: u32,
        max_wr: u32,
        max_sge: u32,
        /// 0 when disarmed, or when its event was raised
        limit: u32,
        /// posted, and not completed
        recvs_in_flight: u32,
        pad: u32,
    }
    struct Destroy = rust_ulp_destroy {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: of any type; EBUSY while other objects need it
        handle: u32,
        pad: u32,
    }
    struct Event = rust_ulp_event {
        /// EVENT_*
        event: u32,
        /// of the object, or 0
        handle: u32,
        /// or 0
        port: u32,
        info: u32,
        /// CLOCK_MONOTONIC
        time_ns: u64,
        reserved: u64,
    }
    struct Addr = rust_ulp_addr {
        /// AF_INET 2, AF_INET6 10; 0 where an address may be left out
        family: u16,
        /// host order
        port: u16,
        /// interface of an IPv6 link-local address, else 0
        scope_id: u32,
        /// network order; IPv4 in the first four bytes, then zeros
        addr: [u8; 16],
    }
    struct ConnParam = rust_ulp_conn_param {
        /// reads and atomics answered at a time
        responder_resources: u8,
        /// reads and atomics outstanding
        initiator_depth: u8,
        /// 0 to 7; the requester's holds for both ends
        retry_cnt: u8,
        /// 0 to 7; in: for the peer to use, out: for this side, from the peer
        rnr_retry: u8,
        /// as in rust_ulp_qp_attr
        min_rnr_timer: u8,
        /// 0: the manager's choice; else 4.096 us * 2^n
        ack_timeout: u8,
        /// type of service; what the route has when flags lacks TRAFFIC_CLASS
        traffic_class: u8,
        /// 0: the route's; else at most that, enum ib_mtu; ACCEPT cannot lower it
        path_mtu: u8,
        /// ACCESS_REMOTE_*: what the peer may do with this queue pair
        access_flags: u32,
        /// CONN_*
        flags: u32,
    }
    struct Listen = rust_ulp_listen {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: an all-zero address is any; out: the port, when that was 0
        addr: Addr,
        /// in: requests kept waiting, 1 to 1024; more are rejected
        backlog: u32,
        /// out
        handle: u32,
    }
    struct GetRequest = rust_ulp_get_request {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        listener: u32,
        /// out: of the request; ACCEPT makes it a connection, destroying it rejects
        handle: u32,
        /// in: 0 does not sleep; ETIME
        timeout_ns: u64,
        /// out
        peer: Addr,
        /// out
        local: Addr,
        /// out: what the peer asks for, as seen from here
        param: ConnParam,
        /// out
        peer_qp_num: u32,
        /// out: bytes; the manager pads with zeros
        private_len: u32,
        /// out
        private_data: [u8; CM_PRIVATE_MAX],
    }
    struct Accept = rust_ulp_accept {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle; the connection's from now on
        request: u32,
        /// in: handle
        qp: u32,
        /// in: until the peer has answered; ETIMEDOUT
        timeout_ns: u64,
        /// in; out: what was agreed
        param: ConnParam,
        pad: u32,
        /// in: bytes, at most CM_REP_PRIVATE_MAX
        private_len: u32,
        /// in
        private_data: [u8; CM_PRIVATE_MAX],
    }
    struct Reject = rust_ulp_reject {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle; is gone afterwards
        request: u32,
        /// in: bytes, at most CM_REJ_PRIVATE_MAX
        private_len: u32,
        /// in
        private_data: [u8; CM_PRIVATE_MAX],
    }
    struct Connect = rust_ulp_connect {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        qp: u32,
        /// out: of the connection
        handle: u32,
        /// in: for all of it; ETIMEDOUT
        timeout_ns: u64,
        /// in
        dst: Addr,
        /// in: family 0 for the route's; out: what was used
        src: Addr,
        /// in; out: what was agreed
        param: ConnParam,
        /// in: bytes, at most CM_REQ_PRIVATE_MAX; out: of the peer's answer
        private_len: u32,
        /// out
        peer_qp_num: u32,
        /// out, valid when the command fails too: 0, or IBA 12.6.7.2; 28 is the peer's REJECT
        reject_reason: u32,
        /// out: microseconds until the address was resolved,
        resolve_us: u32,
        /// ... the route,
        route_us: u32,
        /// ... and the peer had answered
        connect_us: u32,
        /// in; out, valid when the command fails too: the peer's
        private_data: [u8; CM_PRIVATE_MAX],
    }
    struct Disconnect = rust_ulp_disconnect {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle; its queue pair goes to ERR and flushes
        conn: u32,
        pad: u32,
    }
    struct ConnQuery = rust_ulp_conn_query {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle of a connection, request or listener
        conn: u32,
        /// CONN_*
        state: u32,
        local: Addr,
        peer: Addr,
        /// as agreed
        param: ConnParam,
        /// handle, or 0
        qp: u32,
        peer_qp_num: u32,
        /// of a listener: requests not taken
        waiting: u32,
        /// of a listener
        backlog: u32,
        /// of a listener: requests beyond backlog
        rejected: u32,
        pad: u32,
    }
    struct Sge = rust_ulp_sge {
        /// handle
        buffer: u32,
        /// bytes
        length: u32,
        /// bytes into the buffer
        offset: u64,
    }
    struct Wr = rust_ulp_wr {
        /// comes back in the completion
        user_data: u64,
        /// handle; of a shared receive queue, with RECV
        qp: u32,
        /// WR_*
        opcode: u8,
        /// 0, 1: sge; more: sge.offset is the address of an array of rust_ulp_sge, sge.buffer and sge.length are 0
        num_sge: u8,
        /// SEND_*
        flags: u16,
        remote_addr: u64,
        rkey: u32,
        /// immediate data, or the rkey to invalidate
        imm_data: u32,
        sge: Sge,
        /// atomics: compare or add; UD: handle of the address | qp_num << 32
        arg0: u64,
        /// atomics: swap; UD: qkey
        arg1: u64,
        /// 0, or how long from the post on it may take
        timeout_ns: u64,
        reserved: u64,
    }
    struct Submit = rust_ulp_submit {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: address of an array of rust_ulp_wr
        wrs: u64,
        /// in: may be 0
        nr_wrs: u32,
        /// in: sizeof one entry as the caller knows it
        wr_size: u32,
        /// in: handle, or 0 not to wait
        cq: u32,
        /// in: 0 to entries of the queue
        min_complete: u32,
        /// in: 0 does not sleep, at most TIMEOUT_MAX_NS
        timeout_ns: u64,
        /// out, valid when the command fails too
        posted: u32,
        /// out, valid when the command fails
        bad_index: u32,
        /// out: unread completions in the ring of cq
        completed: u32,
        /// out
        wait_error: i32,
    }
    struct Cancel = rust_ulp_cancel {
        size: u32,
        /// in: CANCEL_*
        flags: u32,
        /// in: handle
        queue: u32,
        /// out: how many
        canceled: u32,
        /// in
        user_data: u64,
    }
    struct CqEventfd = rust_ulp_cq_eventfd {
        size: u32,
        /// in: 0
        flags: u32,
        /// in: handle
        cq: u32,
        /// in; -1 takes it away
        fd: i32,
    }
    struct UringBatch = rust_ulp_uring_batch {
        /// address of an array of rust_ulp_wr
        wrs: u64,
        /// from 1
        nr_wrs: u16,
        wr_size: u16,
        /// URING_RING
        flags: u32,
    }
    struct UringCancel = rust_ulp_uring_cancel {
        user_data: u64,
        /// handle
        queue: u32,
        /// CANCEL_*
        flags: u32,
    }
    struct UringStream = rust_ulp_uring_stream {
        /// handle
        cq: u32,
        /// 0
        flags: u32,
        reserved: u64,
    }
}
