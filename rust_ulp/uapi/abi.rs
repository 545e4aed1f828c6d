// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT
// Generated from rust_ulp.h by scripts/abi. Do not edit; change the header and run scripts/abi.

//! The ABI of `/dev/rust_ulp`. `rust_ulp.h` documents each constant, struct and member.

#![allow(missing_docs)]

#[macro_use]
#[path = "define.rs"]
mod define;

#[allow(unused_imports)]
pub use define::{Command, Zero};

/// Returns `_IO(IOC_MAGIC, nr)`. The number of a command does not encode the size of its struct.
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

pub const NAME_MAX: usize = 64;

pub const TIMEOUT_MAX_NS: u64 = 3_600_000_000_000;

pub const FEATURE_CALL: u64 = 1 << 0;
pub const FEATURE_GRANTS: u64 = 1 << 1;
pub const FEATURE_SRQ: u64 = 1 << 2;
pub const FEATURE_DATAGRAM: u64 = 1 << 3;
pub const FEATURE_EVENTS: u64 = 1 << 4;
pub const FEATURE_CM: u64 = 1 << 5;
pub const FEATURE_CANCEL: u64 = 1 << 6;
pub const FEATURE_EVENTFD: u64 = 1 << 7;
pub const FEATURE_URING: u64 = 1 << 8;
pub const FEATURE_USER_MEMORY: u64 = 1 << 9;
pub const FEATURE_DMABUF: u64 = 1 << 10;

pub const DEVICE_DEFAULT: u32 = 1 << 0;
pub const DEVICE_LOCAL_NET: u32 = 1 << 1;

pub const CAP_FAST_REG: u64 = 1 << 0;
pub const CAP_SRQ: u64 = 1 << 1;
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

pub const GID_IPV4: u32 = 1 << 0;
pub const GID_LINK_LOCAL: u32 = 1 << 1;
pub const GID_LOCAL_NET: u32 = 1 << 2;
pub const GID_PREFERRED: u32 = 1 << 3;

pub const DELIVER_DEFAULT: u32 = 0;
pub const DELIVER_WORKQUEUE: u32 = 1;
pub const DELIVER_SOFTIRQ: u32 = 2;
pub const DELIVER_CALLER: u32 = 3;

pub const CQ_ENTRIES_OFFSET: usize = 4096;

pub const CQ_OVERFLOW: u32 = 1 << 0;
pub const CQ_DEAD: u32 = 1 << 1;
pub const CQ_ERROR: u32 = 1 << 2;

pub const WC_SEND: u8 = 0;
pub const WC_RDMA_WRITE: u8 = 1;
pub const WC_RDMA_READ: u8 = 2;
pub const WC_COMP_SWAP: u8 = 3;
pub const WC_FETCH_ADD: u8 = 4;
pub const WC_LOCAL_INV: u8 = 6;
pub const WC_RECV: u8 = 128;
pub const WC_RECV_RDMA_WITH_IMM: u8 = 129;

pub const WC_STATUS_TIMEOUT: u16 = 256;
pub const WC_STATUS_CANCELED: u16 = 257;

pub const WC_GRH: u8 = 1 << 0;
pub const WC_WITH_IMM: u8 = 1 << 1;
pub const WC_WITH_INVALIDATE: u8 = 1 << 2;

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

pub const NODE_ANY: i32 = -1;

pub const BUFFER_READ_ONLY: u32 = 1 << 0;

pub const BUFFER_PAGES: u32 = 1;
pub const BUFFER_USER: u32 = 2;
pub const BUFFER_DMABUF: u32 = 3;

pub const GRANT_ONE_SHOT: u32 = 1 << 0;
pub const GRANT_PARTIAL: u32 = 1 << 1;

pub const GRANT_ACTIVE: u32 = 1;
pub const GRANT_USED: u32 = 2;
pub const GRANT_EXPIRED: u32 = 3;

pub const EVENTS_MAX: usize = 256;

pub const EVENT_CQ_ERR: u32 = 0;
pub const EVENT_QP_FATAL: u32 = 1;
pub const EVENT_QP_REQ_ERR: u32 = 2;
pub const EVENT_QP_ACCESS_ERR: u32 = 3;
pub const EVENT_COMM_EST: u32 = 4;
pub const EVENT_SQ_DRAINED: u32 = 5;
pub const EVENT_PATH_MIG: u32 = 6;
pub const EVENT_PATH_MIG_ERR: u32 = 7;
pub const EVENT_DEVICE_FATAL: u32 = 8;
pub const EVENT_PORT_ACTIVE: u32 = 9;
pub const EVENT_PORT_ERR: u32 = 10;
pub const EVENT_LID_CHANGE: u32 = 11;
pub const EVENT_PKEY_CHANGE: u32 = 12;
pub const EVENT_SM_CHANGE: u32 = 13;
pub const EVENT_SRQ_ERR: u32 = 14;
pub const EVENT_SRQ_LIMIT: u32 = 15;
pub const EVENT_LAST_WQE_REACHED: u32 = 16;
pub const EVENT_CLIENT_REREGISTER: u32 = 17;
pub const EVENT_GID_CHANGE: u32 = 18;

pub const EVENT_DEVICE_REMOVED: u32 = 256;
pub const EVENT_DEVICE_RENAMED: u32 = 257;
pub const EVENT_LOST: u32 = 258;
pub const EVENT_GRANT_ENDED: u32 = 259;
pub const EVENT_CONNECT_REQUEST: u32 = 272;
pub const EVENT_DISCONNECTED: u32 = 273;
pub const EVENT_TIMEWAIT_EXIT: u32 = 274;
pub const EVENT_ADDR_CHANGE: u32 = 275;
pub const EVENT_UNREACHABLE: u32 = 276;

pub const CM_REQ_PRIVATE_MAX: usize = 56;
pub const CM_REP_PRIVATE_MAX: usize = 196;
pub const CM_REJ_PRIVATE_MAX: usize = 148;
pub const CM_PRIVATE_MAX: usize = 224;

pub const CONN_TRAFFIC_CLASS: u32 = 1 << 0;
pub const CONN_FLOW_CONTROL: u32 = 1 << 1;

pub const CONN_LISTENING: u32 = 1;
pub const CONN_REQUESTED: u32 = 2;
pub const CONN_ESTABLISHED: u32 = 3;
pub const CONN_DISCONNECTED: u32 = 4;
pub const CONN_TIMEWAIT_OVER: u32 = 5;

pub const WR_RDMA_WRITE: u8 = 0;
pub const WR_RDMA_WRITE_WITH_IMM: u8 = 1;
pub const WR_SEND: u8 = 2;
pub const WR_SEND_WITH_IMM: u8 = 3;
pub const WR_RDMA_READ: u8 = 4;
pub const WR_ATOMIC_CMP_AND_SWP: u8 = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: u8 = 6;
pub const WR_SEND_WITH_INV: u8 = 9;
pub const WR_RECV: u8 = 128;

pub const SEND_FENCE: u16 = 1 << 0;
pub const SEND_SIGNALED: u16 = 1 << 1;
pub const SEND_SOLICITED: u16 = 1 << 2;
pub const SEND_INLINE: u16 = 1 << 3;

pub const WR_SIZE_V1: u32 = 64;

pub const CANCEL_ALL: u32 = 1 << 0;

pub const URING_REQUEST: u32 = io(0x80);

pub const URING_BATCH: u32 = io(0x81);

pub const URING_CANCEL: u32 = io(0x82);

pub const URING_STREAM: u32 = io(0x83);

pub const URING_FAILED: i32 = -1024;

pub const URING_RING: u32 = 1 << 0;

abi! {
    /// Describes the module.
    struct Query = rust_ulp_query, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 abi_version: u32,
        @12 max_objects: u32,
        @16 features: u64,
        @24 max_buffer: u64,
        @32 max_batch: u32,
        @36 max_cq_entries: u32,
        @40 max_queue_depth: u32,
        @44 max_sge: u32,
        @48 max_inline: u32,
        @52 max_entries: u32,
    }
    /// Describes one device, in the array of DEVICE_LIST.
    struct DeviceEntry = rust_ulp_device_entry, 88 bytes {
        @0 name: [u8; NAME_MAX],
        @64 node_guid: [u8; 8],
        @72 index: u32,
        @76 flags: u32,
        @80 phys_ports: u32,
        @84 pad: u32,
    }
    /// Lists the devices that this file may attach to.
    struct DeviceList = rust_ulp_device_list, 32 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 entries: u64,
        @16 entry_size: u32,
        @20 capacity: u32,
        @24 count: u32,
        @28 pad: u32,
    }
    /// Binds this open file to one device, once.
    struct Attach = rust_ulp_attach, 88 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 name: [u8; NAME_MAX],
        @72 index: u32,
        @76 phys_ports: u32,
        @80 port: u32,
        @84 gid_index: u32,
    }
    /// Describes the device.
    struct DeviceQuery = rust_ulp_device_query, 248 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 name: [u8; NAME_MAX],
        @72 fw_ver: [u8; 32],
        @104 node_guid: [u8; 8],
        @112 sys_image_guid: [u8; 8],
        @120 max_mr_size: u64,
        @128 page_size_cap: u64,
        @136 caps: u64,
        @144 rc_send_ops: u64,
        @152 uc_send_ops: u64,
        @160 ud_send_ops: u64,
        @168 vendor_id: u32,
        @172 vendor_part_id: u32,
        @176 hw_ver: u32,
        @180 phys_ports: u32,
        @184 max_qp: u32,
        @188 max_qp_wr: u32,
        @192 max_send_sge: u32,
        @196 max_recv_sge: u32,
        @200 max_cq: u32,
        @204 max_cqe: u32,
        @208 max_mr: u32,
        @212 max_pd: u32,
        @216 max_qp_rd_atom: u32,
        @220 max_qp_init_rd_atom: u32,
        @224 max_srq: u32,
        @228 max_srq_wr: u32,
        @232 max_fast_reg_pages: u32,
        @236 num_comp_vectors: u32,
        @240 local_ca_ack_delay: u32,
        @244 pad: u32,
    }
    /// Describes a port.
    struct PortQuery = rust_ulp_port_query, 88 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 port: u32,
        @12 state: u32,
        @16 phys_state: u32,
        @20 max_mtu: u32,
        @24 active_mtu: u32,
        @28 link_layer: u32,
        @32 lid: u32,
        @36 sm_lid: u32,
        @40 lmc: u32,
        @44 sm_sl: u32,
        @48 max_msg_sz: u32,
        @52 gid_tbl_len: u32,
        @56 pkey_tbl_len: u32,
        @60 active_width: u32,
        @64 active_speed: u32,
        @68 port_cap_flags: u32,
        @72 bad_pkey_cntr: u32,
        @76 qkey_viol_cntr: u32,
        @80 ifindex: u32,
        @84 pad: u32,
    }
    /// Describes one GID, in the array of GID_QUERY.
    struct GidEntry = rust_ulp_gid_entry, 48 bytes {
        @0 gid: [u8; 16],
        @16 index: u32,
        @20 ifindex: u32,
        @24 gid_type: u32,
        @28 flags: u32,
        @32 ifname: [u8; 16],
    }
    /// Lists the GIDs of a port.
    struct GidQuery = rust_ulp_gid_query, 32 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 entries: u64,
        @16 entry_size: u32,
        @20 capacity: u32,
        @24 port: u32,
        @28 count: u32,
    }
    /// Returns one P_Key of a port.
    struct PkeyQuery = rust_ulp_pkey_query, 24 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 port: u32,
        @12 index: u32,
        @16 pkey: u32,
        @20 pad: u32,
    }
    /// Creates a protection domain.
    struct PdCreate = rust_ulp_pd_create, 16 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 handle: u32,
        @12 pad: u32,
    }
    /// Creates a completion queue.
    struct CqCreate = rust_ulp_cq_create, 40 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 entries: u32,
        @12 delivery: u32,
        @16 comp_vector: u32,
        @20 handle: u32,
        @24 mmap_offset: u64,
        @32 mmap_size: u64,
    }
    /// Is the header of the ring of a completion queue.
    struct CqRing = rust_ulp_cq_ring, 128 bytes {
        @0 head: u32,
        @4 pad0: [u32; 15],
        @64 tail: u32,
        @68 flags: u32,
        @72 dropped: u32,
        @76 entries: u32,
        @80 entry_size: u32,
        @84 entries_offset: u32,
        @88 pad1: [u32; 10],
    }
    /// Describes one completion.
    struct Cqe = rust_ulp_cqe, 64 bytes {
        @0 user_data: u64,
        @8 qp: u32,
        @12 qp_num: u32,
        @16 status: u16,
        @18 opcode: u8,
        @19 flags: u8,
        @20 vendor_err: u32,
        @24 byte_len: u32,
        @28 imm_data: u32,
        @32 src_qp: u32,
        @36 pkey_index: u16,
        @38 slid: u16,
        @40 sl: u8,
        @41 dlid_path_bits: u8,
        @42 port: u8,
        @43 pad: u8,
        @44 reserved: [u32; 5],
    }
    /// Creates a queue pair.
    struct QpCreate = rust_ulp_qp_create, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 send_cq: u32,
        @16 recv_cq: u32,
        @20 srq: u32,
        @24 qp_type: u32,
        @28 max_send_wr: u32,
        @32 max_recv_wr: u32,
        @36 max_send_sge: u32,
        @40 max_recv_sge: u32,
        @44 max_inline: u32,
        @48 handle: u32,
        @52 qp_num: u32,
    }
    /// Describes the path to a peer.
    struct AhAttr = rust_ulp_ah_attr, 36 bytes {
        @0 dgid: [u8; 16],
        @16 flow_label: u32,
        @20 sgid_index: u8,
        @21 hop_limit: u8,
        @22 traffic_class: u8,
        @23 sl: u8,
        @24 dlid: u16,
        @26 port_num: u8,
        @27 is_global: u8,
        @28 static_rate: u8,
        @29 src_path_bits: u8,
        @30 dmac: [u8; 6],
    }
    /// Holds the attributes of a queue pair.
    struct QpAttr = rust_ulp_qp_attr, 72 bytes {
        @0 qkey: u32,
        @4 rq_psn: u32,
        @8 sq_psn: u32,
        @12 dest_qp_num: u32,
        @16 access_flags: u32,
        @20 pkey_index: u16,
        @22 qp_state: u8,
        @23 cur_qp_state: u8,
        @24 path_mtu: u8,
        @25 port_num: u8,
        @26 timeout: u8,
        @27 retry_cnt: u8,
        @28 rnr_retry: u8,
        @29 min_rnr_timer: u8,
        @30 max_rd_atomic: u8,
        @31 max_dest_rd_atomic: u8,
        @32 en_sqd_async_notify: u8,
        @33 sq_draining: u8,
        @34 pad: [u8; 2],
        @36 ah: AhAttr,
    }
    /// Changes the state and the attributes of a queue pair.
    struct QpModify = rust_ulp_qp_modify, 88 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 qp: u32,
        @12 attr_mask: u32,
        @16 attr: QpAttr,
    }
    /// Describes a queue pair.
    struct QpQuery = rust_ulp_qp_query, 120 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 qp: u32,
        @12 qp_num: u32,
        @16 qp_type: u32,
        @20 max_send_wr: u32,
        @24 max_recv_wr: u32,
        @28 max_send_sge: u32,
        @32 max_recv_sge: u32,
        @36 max_inline: u32,
        @40 sends_in_flight: u32,
        @44 recvs_in_flight: u32,
        @48 attr: QpAttr,
    }
    /// Creates a buffer of pages that the kernel allocates.
    struct BufferCreate = rust_ulp_buffer_create, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 node: i32,
        @16 length: u64,
        @24 page_size: u32,
        @28 handle: u32,
        @32 mmap_offset: u64,
        @40 key_bytes: u64,
        @48 keys: u32,
        @52 pad: u32,
    }
    /// Creates a buffer of the caller's memory.
    struct BufferRegister = rust_ulp_buffer_register, 48 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 handle: u32,
        @16 addr: u64,
        @24 length: u64,
        @32 key_bytes: u64,
        @40 keys: u32,
        @44 page_size: u32,
    }
    /// Creates a buffer of a dma-buf.
    struct BufferImport = rust_ulp_buffer_import, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 fd: i32,
        @16 offset: u64,
        @24 length: u64,
        @32 key_bytes: u64,
        @40 keys: u32,
        @44 page_size: u32,
        @48 handle: u32,
        @52 pad: u32,
    }
    /// Describes a buffer.
    struct BufferQuery = rust_ulp_buffer_query, 64 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 buffer: u32,
        @12 kind: u32,
        @16 length: u64,
        @24 charged: u64,
        @32 mmap_offset: u64,
        @40 key_bytes: u64,
        @48 keys: u32,
        @52 page_size: u32,
        @56 node: i32,
        @60 grants: u32,
    }
    /// Gives the peer access to a range of a buffer.
    struct GrantCreate = rust_ulp_grant_create, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 buffer: u32,
        @12 access: u32,
        @16 offset: u64,
        @24 length: u64,
        @32 addr: u64,
        @40 rkey: u32,
        @44 handle: u32,
        @48 qp: u32,
        @52 pad: u32,
    }
    /// Gives a grant a new key.
    struct GrantRotate = rust_ulp_grant_rotate, 24 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 grant: u32,
        @12 rkey: u32,
        @16 addr: u64,
    }
    /// Describes a grant.
    struct GrantQuery = rust_ulp_grant_query, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 grant: u32,
        @12 state: u32,
        @16 buffer: u32,
        @20 qp: u32,
        @24 offset: u64,
        @32 length: u64,
        @40 addr: u64,
        @48 rkey: u32,
        @52 access: u32,
    }
    /// Creates an address handle for datagrams.
    struct AhCreate = rust_ulp_ah_create, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 handle: u32,
        @16 attr: AhAttr,
        @52 pad: u32,
    }
    /// Creates a shared receive queue.
    struct SrqCreate = rust_ulp_srq_create, 32 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 pd: u32,
        @12 cq: u32,
        @16 max_wr: u32,
        @20 max_sge: u32,
        @24 limit: u32,
        @28 handle: u32,
    }
    /// Arms the limit of a shared receive queue.
    struct SrqModify = rust_ulp_srq_modify, 16 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 srq: u32,
        @12 limit: u32,
    }
    /// Describes a shared receive queue.
    struct SrqQuery = rust_ulp_srq_query, 32 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 srq: u32,
        @12 max_wr: u32,
        @16 max_sge: u32,
        @20 limit: u32,
        @24 recvs_in_flight: u32,
        @28 pad: u32,
    }
    /// Destroys an object.
    struct Destroy = rust_ulp_destroy, 16 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 handle: u32,
        @12 pad: u32,
    }
    /// Describes one event, in the records that read() returns.
    struct Event = rust_ulp_event, 32 bytes {
        @0 event: u32,
        @4 handle: u32,
        @8 port: u32,
        @12 info: u32,
        @16 time_ns: u64,
        @24 reserved: u64,
    }
    /// Holds an IP address and a port.
    struct Addr = rust_ulp_addr, 24 bytes {
        @0 family: u16,
        @2 port: u16,
        @4 scope_id: u32,
        @8 addr: [u8; 16],
    }
    /// Holds the parameters of a connection.
    struct ConnParam = rust_ulp_conn_param, 16 bytes {
        @0 responder_resources: u8,
        @1 initiator_depth: u8,
        @2 retry_cnt: u8,
        @3 rnr_retry: u8,
        @4 min_rnr_timer: u8,
        @5 ack_timeout: u8,
        @6 traffic_class: u8,
        @7 path_mtu: u8,
        @8 access_flags: u32,
        @12 flags: u32,
    }
    /// Creates a listener.
    struct Listen = rust_ulp_listen, 40 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 addr: Addr,
        @32 backlog: u32,
        @36 handle: u32,
    }
    /// Takes the oldest request of a listener.
    struct GetRequest = rust_ulp_get_request, 320 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 listener: u32,
        @12 handle: u32,
        @16 timeout_ns: u64,
        @24 peer: Addr,
        @48 local: Addr,
        @72 param: ConnParam,
        @88 peer_qp_num: u32,
        @92 private_len: u32,
        @96 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Accepts a request.
    struct Accept = rust_ulp_accept, 272 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 request: u32,
        @12 qp: u32,
        @16 timeout_ns: u64,
        @24 param: ConnParam,
        @40 pad: u32,
        @44 private_len: u32,
        @48 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Rejects a request.
    struct Reject = rust_ulp_reject, 240 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 request: u32,
        @12 private_len: u32,
        @16 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Connects a queue pair to a listener.
    struct Connect = rust_ulp_connect, 336 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 qp: u32,
        @12 handle: u32,
        @16 timeout_ns: u64,
        @24 dst: Addr,
        @48 src: Addr,
        @72 param: ConnParam,
        @88 private_len: u32,
        @92 peer_qp_num: u32,
        @96 reject_reason: u32,
        @100 resolve_us: u32,
        @104 route_us: u32,
        @108 connect_us: u32,
        @112 private_data: [u8; CM_PRIVATE_MAX],
    }
    /// Ends a connection.
    struct Disconnect = rust_ulp_disconnect, 16 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 conn: u32,
        @12 pad: u32,
    }
    /// Describes a connection, a request or a listener.
    struct ConnQuery = rust_ulp_conn_query, 104 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 conn: u32,
        @12 state: u32,
        @16 local: Addr,
        @40 peer: Addr,
        @64 param: ConnParam,
        @80 qp: u32,
        @84 peer_qp_num: u32,
        @88 waiting: u32,
        @92 backlog: u32,
        @96 rejected: u32,
        @100 pad: u32,
    }
    /// Describes one element, a range of local memory.
    struct Sge = rust_ulp_sge, 16 bytes {
        @0 buffer: u32,
        @4 length: u32,
        @8 offset: u64,
    }
    /// Describes a work request.
    struct Wr = rust_ulp_wr, 80 bytes {
        @0 user_data: u64,
        @8 qp: u32,
        @12 opcode: u8,
        @13 num_sge: u8,
        @14 flags: u16,
        @16 remote_addr: u64,
        @24 rkey: u32,
        @28 imm_data: u32,
        @32 sge: Sge,
        @48 arg0: u64,
        @56 arg1: u64,
        @64 timeout_ns: u64,
        @72 reserved: u64,
    }
    /// Posts requests and waits for completions.
    struct Submit = rust_ulp_submit, 56 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 wrs: u64,
        @16 nr_wrs: u32,
        @20 wr_size: u32,
        @24 cq: u32,
        @28 min_complete: u32,
        @32 timeout_ns: u64,
        @40 posted: u32,
        @44 bad_index: u32,
        @48 completed: u32,
        @52 wait_error: i32,
    }
    /// Completes requests in flight as canceled.
    struct Cancel = rust_ulp_cancel, 24 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 queue: u32,
        @12 canceled: u32,
        @16 user_data: u64,
    }
    /// Signals an eventfd for each completion.
    struct CqEventfd = rust_ulp_cq_eventfd, 16 bytes {
        @0 size: u32,
        @4 flags: u32,
        @8 cq: u32,
        @12 fd: i32,
    }
    /// Is the command of RUST_ULP_URING_BATCH.
    struct UringBatch = rust_ulp_uring_batch, 16 bytes {
        @0 wrs: u64,
        @8 nr_wrs: u16,
        @10 wr_size: u16,
        @12 flags: u32,
    }
    /// Is the command of RUST_ULP_URING_CANCEL.
    struct UringCancel = rust_ulp_uring_cancel, 16 bytes {
        @0 user_data: u64,
        @8 queue: u32,
        @12 flags: u32,
    }
    /// Is the command of RUST_ULP_URING_STREAM.
    struct UringStream = rust_ulp_uring_stream, 16 bytes {
        @0 cq: u32,
        @4 flags: u32,
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
