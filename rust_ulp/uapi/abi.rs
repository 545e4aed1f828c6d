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

pub const DEVICE_PATH: &str = "/dev/rust_ulp";

numbers! {
    u32: ABI_VERSION = 3;
    u32: IOC_MAGIC = 0xBF;
    u32: IOC_QUERY = io(0x00), IOC_DEVICE_LIST = io(0x01), IOC_ATTACH = io(0x02),
        IOC_DEVICE_QUERY = io(0x03), IOC_PORT_QUERY = io(0x04), IOC_GID_QUERY = io(0x05),
        IOC_PKEY_QUERY = io(0x06), IOC_PD_CREATE = io(0x10), IOC_CQ_CREATE = io(0x11),
        IOC_QP_CREATE = io(0x12), IOC_QP_MODIFY = io(0x13), IOC_QP_QUERY = io(0x14),
        IOC_AH_CREATE = io(0x15), IOC_SRQ_CREATE = io(0x16), IOC_SRQ_MODIFY = io(0x17),
        IOC_SRQ_QUERY = io(0x18), IOC_DESTROY = io(0x19), IOC_SUBMIT = io(0x20),
        IOC_CANCEL = io(0x21), IOC_CQ_EVENTFD = io(0x22), IOC_LISTEN = io(0x30),
        IOC_GET_REQUEST = io(0x31), IOC_ACCEPT = io(0x32), IOC_REJECT = io(0x33),
        IOC_CONNECT = io(0x34), IOC_CONN_WAIT = io(0x35), IOC_DISCONNECT = io(0x36),
        IOC_CONN_QUERY = io(0x37), IOC_BUFFER_CREATE = io(0x40), IOC_BUFFER_REGISTER = io(0x41),
        IOC_BUFFER_IMPORT = io(0x42), IOC_BUFFER_QUERY = io(0x43), IOC_GRANT_CREATE = io(0x44),
        IOC_GRANT_QUERY = io(0x45);
    usize: NAME_MAX = 64;
    u64: TIMEOUT_INFINITE = 0xffffffffffffffff;
    u32: CQE_SIZE_V1 = 64, DEVICE_QUERY_SIZE_V1 = 248, EVENT_SIZE_V1 = 32, WR_SIZE_V1 = 72;
    u32: DEVICE_DEFAULT = 1 << 0, DEVICE_LOCAL_NET = 1 << 1;
    u64: CAP_SRQ = 1 << 0, CAP_VIRT_DMA = 1 << 1;
    u32: ATOMIC_NONE = 0, ATOMIC_HCA = 1, ATOMIC_GLOB = 2;
    u32: QPT_RC = 2, QPT_UC = 3, QPT_UD = 4;
    u32: LINK_UNSPECIFIED = 0, LINK_INFINIBAND = 1, LINK_ETHERNET = 2;
    u32: GID_IB = 0, GID_ROCE_V1 = 1, GID_ROCE_V2 = 2;
    u32: GID_IPV4 = 1 << 0, GID_LINK_LOCAL = 1 << 1, GID_LOCAL_NET = 1 << 2, GID_PREFERRED = 1 << 3;
    u32: DELIVER_DEFAULT = 0, DELIVER_WORKQUEUE = 1, DELIVER_SOFTIRQ = 2;
    usize: CQ_ENTRIES_OFFSET = 4096;
    u32: CQ_OVERFLOW = 1 << 0, CQ_DEAD = 1 << 1, CQ_ERROR = 1 << 2;
    u8: WC_SEND = 0, WC_RDMA_WRITE = 1, WC_RDMA_READ = 2, WC_COMP_SWAP = 3, WC_FETCH_ADD = 4,
        WC_RECV = 128, WC_RECV_RDMA_WITH_IMM = 129;
    u16: WC_STATUS_TIMEOUT = 256, WC_STATUS_CANCELED = 257;
    u8: WC_GRH = 1 << 0, WC_WITH_IMM = 1 << 1, WC_WITH_INVALIDATE = 1 << 2;
    u32: QP_SIG_ALL = 1 << 0;
    u32: QP_STATE = 1 << 0, QP_CUR_STATE = 1 << 1, QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        QP_ACCESS_FLAGS = 1 << 3, QP_PKEY_INDEX = 1 << 4, QP_PORT = 1 << 5, QP_QKEY = 1 << 6,
        QP_AV = 1 << 7, QP_PATH_MTU = 1 << 8, QP_TIMEOUT = 1 << 9, QP_RETRY_CNT = 1 << 10,
        QP_RNR_RETRY = 1 << 11, QP_RQ_PSN = 1 << 12, QP_MAX_QP_RD_ATOMIC = 1 << 13,
        QP_MIN_RNR_TIMER = 1 << 15, QP_SQ_PSN = 1 << 16, QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        QP_DEST_QPN = 1 << 20;
    u8: QPS_RESET = 0, QPS_INIT = 1, QPS_RTR = 2, QPS_RTS = 3, QPS_SQD = 4, QPS_SQE = 5, QPS_ERR = 6;
    u32: ACCESS_REMOTE_WRITE = 1 << 1, ACCESS_REMOTE_READ = 1 << 2, ACCESS_REMOTE_ATOMIC = 1 << 3;
    i32: NODE_ANY = -1;
    u32: BUFFER_READ_ONLY = 1 << 0;
    u32: BUFFER_PAGES = 1, BUFFER_USER = 2, BUFFER_DMABUF = 3;
    u32: GRANT_ONE_SHOT_INV = 1 << 0, GRANT_PARTIAL = 1 << 1;
    u32: GRANT_ACTIVE = 1, GRANT_USED = 2, GRANT_EXPIRED = 3;
    usize: EVENTS_MAX = 256;
    u32: EVENT_CQ_ERR = 0, EVENT_QP_FATAL = 1, EVENT_QP_REQ_ERR = 2, EVENT_QP_ACCESS_ERR = 3,
        EVENT_COMM_EST = 4, EVENT_SQ_DRAINED = 5, EVENT_PATH_MIG = 6, EVENT_PATH_MIG_ERR = 7,
        EVENT_DEVICE_FATAL = 8, EVENT_PORT_ACTIVE = 9, EVENT_PORT_ERR = 10, EVENT_LID_CHANGE = 11,
        EVENT_PKEY_CHANGE = 12, EVENT_SM_CHANGE = 13, EVENT_SRQ_ERR = 14, EVENT_SRQ_LIMIT = 15,
        EVENT_LAST_WQE_REACHED = 16, EVENT_CLIENT_REREGISTER = 17, EVENT_GID_CHANGE = 18;
    u32: EVENT_DEVICE_REMOVED = 256, EVENT_DEVICE_RENAMED = 257, EVENT_LOST = 258,
        EVENT_GRANT_ENDED = 259, EVENT_CONNECT_REQUEST = 272, EVENT_DISCONNECTED = 273,
        EVENT_TIMEWAIT_EXIT = 274, EVENT_ADDR_CHANGE = 275, EVENT_UNREACHABLE = 276,
        EVENT_ESTABLISHED = 277, EVENT_CONNECT_FAILED = 278;
    usize: CM_REQ_PRIVATE_MAX = 56, CM_REP_PRIVATE_MAX = 196, CM_REJ_PRIVATE_MAX = 148,
        CM_PRIVATE_MAX = 224;
    u32: CONN_TRAFFIC_CLASS = 1 << 0, CONN_FLOW_CONTROL = 1 << 1;
    u32: CONN_LISTENING = 1, CONN_REQUESTED = 2, CONN_CONNECTING = 3, CONN_ESTABLISHED = 4,
        CONN_DISCONNECTED = 5, CONN_TIMEWAIT_OVER = 6, CONN_FAILED = 7;
    u8: WR_RDMA_WRITE = 0, WR_RDMA_WRITE_WITH_IMM = 1, WR_SEND = 2, WR_SEND_WITH_IMM = 3,
        WR_RDMA_READ = 4, WR_ATOMIC_CMP_AND_SWP = 5, WR_ATOMIC_FETCH_AND_ADD = 6,
        WR_SEND_WITH_INV = 9, WR_RECV = 128;
    u16: SEND_FENCE = 1 << 0, SEND_SIGNALED = 1 << 1, SEND_SOLICITED = 1 << 2, SEND_INLINE = 1 << 3,
        REQUEST_TIMEOUT = 1 << 4;
    u32: CANCEL_ALL = 1 << 0;
    u32: URING_REQUEST = io(0x80);
    u32: URING_BATCH = io(0x81);
    u32: URING_CANCEL = io(0x82);
    usize: URING_SRC_QP_SHIFT = 32, URING_FLAGS_SHIFT = 56;
    u64: URING_RDMA_WITH_IMM = 1 << 63;
    usize: URING_INDEX_SHIFT = 16, URING_VENDOR_ERR_SHIFT = 32;
    u32: URING_RING = 1 << 0;
}

abi! {
    /// Describes the module.
    struct Query = rust_ulp_query, 56 bytes, IOC_QUERY "QUERY" {
        @0 size: u32, @4 flags: u32, @8 abi_version: u32, @12 max_objects: u32, @16 max_buffer: u64,
        @24 max_batch: u32, @28 max_cq_entries: u32, @32 max_queue_depth: u32, @36 max_sge: u32,
        @40 max_inline: u32, @44 max_entries: u32, @48 event_size: u32, @52 cqe_size: u32
    }
    /// Describes one device.
    struct DeviceEntry = rust_ulp_device_entry, 88 bytes {
        @0 name: [u8; NAME_MAX], @64 node_guid: [u8; 8], @72 index: u32, @76 flags: u32,
        @80 phys_ports: u32, @84 pad: u32
    }
    /// Lists the devices that this file may attach to.
    struct DeviceList = rust_ulp_device_list, 32 bytes, IOC_DEVICE_LIST "DEVICE_LIST", entry_size = DeviceEntry {
        @0 size: u32, @4 flags: u32, @8 entries: u64, @16 entry_size: u32, @20 capacity: u32,
        @24 count: u32, @28 pad: u32
    }
    /// Binds this open file to one device.
    struct Attach = rust_ulp_attach, 96 bytes, IOC_ATTACH "ATTACH", event_size = Event {
        @0 size: u32, @4 flags: u32, @8 name: [u8; NAME_MAX], @72 index: u32, @76 phys_ports: u32,
        @80 port: u32, @84 gid_index: u32, @88 event_size: u32, @92 pad: u32
    }
    /// Describes the device.
    struct DeviceQuery = rust_ulp_device_query, 264 bytes, IOC_DEVICE_QUERY "DEVICE_QUERY" {
        @0 size: u32, @4 flags: u32, @8 name: [u8; NAME_MAX], @72 fw_ver: [u8; 32],
        @104 node_guid: [u8; 8], @112 sys_image_guid: [u8; 8], @120 max_mr_size: u64,
        @128 page_size_cap: u64, @136 caps: u64, @144 rc_send_ops: u64, @152 uc_send_ops: u64,
        @160 ud_send_ops: u64, @168 vendor_id: u32, @172 vendor_part_id: u32, @176 hw_ver: u32,
        @180 phys_ports: u32, @184 max_qp: u32, @188 max_qp_wr: u32, @192 max_send_sge: u32,
        @196 max_recv_sge: u32, @200 max_cq: u32, @204 max_cqe: u32, @208 max_mr: u32,
        @212 max_pd: u32, @216 max_qp_rd_atom: u32, @220 max_qp_init_rd_atom: u32,
        @224 max_srq: u32, @228 max_srq_wr: u32, @232 max_fast_reg_pages: u32,
        @236 num_comp_vectors: u32, @240 local_ca_ack_delay: u32, @244 atomic_cap: u32,
        @248 device_cap_flags: u64, @256 max_sge_rd: u32, @260 max_srq_sge: u32
    }
    /// Describes a port.
    struct PortQuery = rust_ulp_port_query, 88 bytes, IOC_PORT_QUERY "PORT_QUERY" {
        @0 size: u32, @4 flags: u32, @8 port: u32, @12 state: u32, @16 phys_state: u32,
        @20 max_mtu: u32, @24 active_mtu: u32, @28 link_layer: u32, @32 lid: u32, @36 sm_lid: u32,
        @40 lmc: u32, @44 sm_sl: u32, @48 max_msg_sz: u32, @52 gid_tbl_len: u32,
        @56 pkey_tbl_len: u32, @60 active_width: u32, @64 active_speed: u32,
        @68 port_cap_flags: u32, @72 bad_pkey_cntr: u32, @76 qkey_viol_cntr: u32, @80 ifindex: u32,
        @84 pad: u32
    }
    /// Describes one GID.
    struct GidEntry = rust_ulp_gid_entry, 48 bytes {
        @0 gid: [u8; 16], @16 index: u32, @20 ifindex: u32, @24 gid_type: u32, @28 flags: u32,
        @32 ifname: [u8; 16]
    }
    /// Lists the GIDs of a port.
    struct GidQuery = rust_ulp_gid_query, 32 bytes, IOC_GID_QUERY "GID_QUERY", entry_size = GidEntry {
        @0 size: u32, @4 flags: u32, @8 entries: u64, @16 entry_size: u32, @20 capacity: u32,
        @24 port: u32, @28 count: u32
    }
    /// Returns one P_Key of a port.
    struct PkeyQuery = rust_ulp_pkey_query, 24 bytes, IOC_PKEY_QUERY "PKEY_QUERY" {
        @0 size: u32, @4 flags: u32, @8 port: u32, @12 index: u32, @16 pkey: u32, @20 pad: u32
    }
    /// Creates a protection domain.
    struct PdCreate = rust_ulp_pd_create, 16 bytes, IOC_PD_CREATE "PD_CREATE" {
        @0 size: u32, @4 flags: u32, @8 handle: u32, @12 pad: u32
    }
    /// Creates a completion queue.
    struct CqCreate = rust_ulp_cq_create, 48 bytes, IOC_CQ_CREATE "CQ_CREATE", cqe_size = Cqe {
        @0 size: u32, @4 flags: u32, @8 entries: u32, @12 delivery: u32, @16 comp_vector: u32,
        @20 handle: u32, @24 mmap_offset: u64, @32 mmap_size: u64, @40 cqe_size: u32,
        @44 busy_poll_us: u32
    }
    /// Is the header of the ring of a completion queue.
    struct CqRing = rust_ulp_cq_ring, 128 bytes {
        @0 head: u32, @4 pad0: [u32; 15], @64 tail: u32, @68 flags: u32, @72 dropped: u32,
        @76 entries: u32, @80 entry_size: u32, @84 entries_offset: u32, @88 pad1: [u32; 10]
    }
    /// Describes one completion.
    struct Cqe = rust_ulp_cqe, 64 bytes {
        @0 user_data: u64, @8 qp_user_data: u64, @16 qp: u32, @20 qp_num: u32, @24 status: u16,
        @26 opcode: u8, @27 flags: u8, @28 vendor_err: u32, @32 byte_len: u32, @36 imm_data: u32,
        @40 src_qp: u32, @44 port: u32, @48 pkey_index: u16, @50 slid: u16, @52 sl: u8,
        @53 dlid_path_bits: u8, @54 pad: [u8; 2], @56 reserved: [u32; 2]
    }
    /// Creates a queue pair.
    struct QpCreate = rust_ulp_qp_create, 64 bytes, IOC_QP_CREATE "QP_CREATE" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 send_cq: u32, @16 recv_cq: u32, @20 srq: u32,
        @24 qp_type: u32, @28 max_send_wr: u32, @32 max_recv_wr: u32, @36 max_send_sge: u32,
        @40 max_recv_sge: u32, @44 max_inline: u32, @48 handle: u32, @52 qp_num: u32,
        @56 user_data: u64
    }
    /// Describes the path to a peer.
    struct AhAttr = rust_ulp_ah_attr, 64 bytes {
        @0 dgid: [u8; 16], @16 flow_label: u32, @20 port_num: u32, @24 sgid_index: u8,
        @25 hop_limit: u8, @26 traffic_class: u8, @27 sl: u8, @28 dlid: u16, @30 is_global: u8,
        @31 static_rate: u8, @32 dmac: [u8; 6], @38 src_path_bits: u8, @39 pad: u8,
        @40 dlid_high: u16, @42 pad2: u16, @44 reserved: [u32; 5]
    }
    /// Holds the attributes of a queue pair.
    struct QpAttr = rust_ulp_qp_attr, 128 bytes {
        @0 qkey: u32, @4 rq_psn: u32, @8 sq_psn: u32, @12 dest_qp_num: u32, @16 access_flags: u32,
        @20 port_num: u32, @24 pkey_index: u16, @26 qp_state: u8, @27 cur_qp_state: u8,
        @28 path_mtu: u8, @29 timeout: u8, @30 retry_cnt: u8, @31 rnr_retry: u8,
        @32 min_rnr_timer: u8, @33 max_rd_atomic: u8, @34 max_dest_rd_atomic: u8,
        @35 en_sqd_async_notify: u8, @36 sq_draining: u8, @37 pad: [u8; 3], @40 ah: AhAttr,
        @104 reserved: [u32; 6]
    }
    /// Changes the state and the attributes of a queue pair.
    struct QpModify = rust_ulp_qp_modify, 152 bytes, IOC_QP_MODIFY "QP_MODIFY" {
        @0 size: u32, @4 flags: u32, @8 qp: u32, @12 attr_mask: u32, @16 missing_mask: u32,
        @20 extra_mask: u32, @24 attr: QpAttr
    }
    /// Describes a queue pair.
    struct QpQuery = rust_ulp_qp_query, 184 bytes, IOC_QP_QUERY "QP_QUERY" {
        @0 size: u32, @4 flags: u32, @8 qp: u32, @12 qp_num: u32, @16 qp_type: u32,
        @20 max_send_wr: u32, @24 max_recv_wr: u32, @28 max_send_sge: u32, @32 max_recv_sge: u32,
        @36 max_inline: u32, @40 sends_in_flight: u32, @44 recvs_in_flight: u32, @48 attr: QpAttr,
        @176 user_data: u64
    }
    /// Creates a buffer of zeroed pages that the kernel allocates.
    struct BufferCreate = rust_ulp_buffer_create, 56 bytes, IOC_BUFFER_CREATE "BUFFER_CREATE" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 node: i32, @16 length: u64, @24 page_size: u32,
        @28 handle: u32, @32 mmap_offset: u64, @40 key_bytes: u64, @48 keys: u32, @52 pad: u32
    }
    /// Creates a buffer of the caller's memory.
    struct BufferRegister = rust_ulp_buffer_register, 48 bytes, IOC_BUFFER_REGISTER "BUFFER_REGISTER" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 handle: u32, @16 addr: u64, @24 length: u64,
        @32 key_bytes: u64, @40 keys: u32, @44 page_size: u32
    }
    /// Creates a buffer of a dma-buf.
    struct BufferImport = rust_ulp_buffer_import, 56 bytes, IOC_BUFFER_IMPORT "BUFFER_IMPORT" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 fd: i32, @16 offset: u64, @24 length: u64,
        @32 key_bytes: u64, @40 keys: u32, @44 page_size: u32, @48 handle: u32, @52 pad: u32
    }
    /// Describes a buffer.
    struct BufferQuery = rust_ulp_buffer_query, 72 bytes, IOC_BUFFER_QUERY "BUFFER_QUERY" {
        @0 size: u32, @4 flags: u32, @8 buffer: u32, @12 kind: u32, @16 length: u64,
        @24 charged: u64, @32 mmap_offset: u64, @40 key_bytes: u64, @48 keys: u32,
        @52 page_size: u32, @56 node: i32, @60 grants: u32, @64 buffer_flags: u32, @68 pad: u32
    }
    /// Gives peers access to a range of a buffer.
    struct GrantCreate = rust_ulp_grant_create, 64 bytes, IOC_GRANT_CREATE "GRANT_CREATE" {
        @0 size: u32, @4 flags: u32, @8 buffer: u32, @12 access: u32, @16 offset: u64,
        @24 length: u64, @32 addr: u64, @40 rkey: u32, @44 handle: u32, @48 qp: u32, @52 pad: u32,
        @56 user_data: u64
    }
    /// Describes a grant.
    struct GrantQuery = rust_ulp_grant_query, 72 bytes, IOC_GRANT_QUERY "GRANT_QUERY" {
        @0 size: u32, @4 flags: u32, @8 grant: u32, @12 state: u32, @16 buffer: u32, @20 qp: u32,
        @24 offset: u64, @32 length: u64, @40 addr: u64, @48 rkey: u32, @52 access: u32,
        @56 grant_flags: u32, @60 pad: u32, @64 user_data: u64
    }
    /// Creates an address handle for datagrams.
    struct AhCreate = rust_ulp_ah_create, 80 bytes, IOC_AH_CREATE "AH_CREATE" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 handle: u32, @16 attr: AhAttr
    }
    /// Creates a shared receive queue.
    struct SrqCreate = rust_ulp_srq_create, 32 bytes, IOC_SRQ_CREATE "SRQ_CREATE" {
        @0 size: u32, @4 flags: u32, @8 pd: u32, @12 cq: u32, @16 max_wr: u32, @20 max_sge: u32,
        @24 limit: u32, @28 handle: u32
    }
    /// Arms the limit.
    struct SrqModify = rust_ulp_srq_modify, 16 bytes, IOC_SRQ_MODIFY "SRQ_MODIFY" {
        @0 size: u32, @4 flags: u32, @8 srq: u32, @12 limit: u32
    }
    /// Describes a shared receive queue.
    struct SrqQuery = rust_ulp_srq_query, 32 bytes, IOC_SRQ_QUERY "SRQ_QUERY" {
        @0 size: u32, @4 flags: u32, @8 srq: u32, @12 max_wr: u32, @16 max_sge: u32, @20 limit: u32,
        @24 recvs_in_flight: u32, @28 orphans: u32
    }
    /// Destroys an object of any type.
    struct Destroy = rust_ulp_destroy, 16 bytes, IOC_DESTROY "DESTROY" {
        @0 size: u32, @4 flags: u32, @8 handle: u32, @12 pad: u32
    }
    /// Describes one event.
    struct Event = rust_ulp_event, 32 bytes {
        @0 event: u32, @4 handle: u32, @8 port: u32, @12 info: u32, @16 time_ns: u64,
        @24 user_data: u64
    }
    /// Holds an IP address and a port.
    struct Addr = rust_ulp_addr, 24 bytes {
        @0 family: u16, @2 port: u16, @4 scope_id: u32, @8 addr: [u8; 16]
    }
    /// Holds the parameters of a connection.
    struct ConnParam = rust_ulp_conn_param, 32 bytes {
        @0 responder_resources: u8, @1 initiator_depth: u8, @2 retry_cnt: u8, @3 rnr_retry: u8,
        @4 min_rnr_timer: u8, @5 ack_timeout: u8, @6 traffic_class: u8, @7 path_mtu: u8,
        @8 access_flags: u32, @12 flags: u32, @16 reserved: [u32; 4]
    }
    /// Creates a listener.
    struct Listen = rust_ulp_listen, 48 bytes, IOC_LISTEN "LISTEN" {
        @0 size: u32, @4 flags: u32, @8 addr: Addr, @32 backlog: u32, @36 handle: u32,
        @40 user_data: u64
    }
    /// Takes the oldest request of a listener.
    struct GetRequest = rust_ulp_get_request, 336 bytes, IOC_GET_REQUEST "GET_REQUEST" {
        @0 size: u32, @4 flags: u32, @8 listener: u32, @12 handle: u32, @16 timeout_ns: u64,
        @24 peer: Addr, @48 local: Addr, @72 param: ConnParam, @104 peer_qp_num: u32,
        @108 private_len: u32, @112 private_data: [u8; CM_PRIVATE_MAX]
    }
    /// Begins to accept a request.
    struct Accept = rust_ulp_accept, 288 bytes, IOC_ACCEPT "ACCEPT" {
        @0 size: u32, @4 flags: u32, @8 request: u32, @12 qp: u32, @16 param: ConnParam,
        @48 pad: u32, @52 private_len: u32, @56 private_data: [u8; CM_PRIVATE_MAX],
        @280 user_data: u64
    }
    /// Rejects a request.
    struct Reject = rust_ulp_reject, 240 bytes, IOC_REJECT "REJECT" {
        @0 size: u32, @4 flags: u32, @8 request: u32, @12 private_len: u32,
        @16 private_data: [u8; CM_PRIVATE_MAX]
    }
    /// Begins to connect a queue pair to a listener.
    struct Connect = rust_ulp_connect, 336 bytes, IOC_CONNECT "CONNECT" {
        @0 size: u32, @4 flags: u32, @8 qp: u32, @12 handle: u32, @16 dst: Addr, @40 src: Addr,
        @64 param: ConnParam, @96 pad: u32, @100 private_len: u32,
        @104 private_data: [u8; CM_PRIVATE_MAX], @328 user_data: u64
    }
    /// Waits for the end of an attempt to connect.
    struct ConnWait = rust_ulp_conn_wait, 312 bytes, IOC_CONN_WAIT "CONN_WAIT" {
        @0 size: u32, @4 flags: u32, @8 conn: u32, @12 peer_qp_num: u32, @16 timeout_ns: u64,
        @24 local: Addr, @48 agreed: ConnParam, @80 reject_reason: u32, @84 private_len: u32,
        @88 private_data: [u8; CM_PRIVATE_MAX]
    }
    /// Ends a connection.
    struct Disconnect = rust_ulp_disconnect, 16 bytes, IOC_DISCONNECT "DISCONNECT" {
        @0 size: u32, @4 flags: u32, @8 conn: u32, @12 pad: u32
    }
    /// Describes a connection.
    struct ConnQuery = rust_ulp_conn_query, 128 bytes, IOC_CONN_QUERY "CONN_QUERY" {
        @0 size: u32, @4 flags: u32, @8 conn: u32, @12 state: u32, @16 local: Addr, @40 peer: Addr,
        @64 param: ConnParam, @96 qp: u32, @100 peer_qp_num: u32, @104 waiting: u32,
        @108 backlog: u32, @112 rejected: u32, @116 pad: u32, @120 user_data: u64
    }
    /// Describes one element.
    struct Sge = rust_ulp_sge, 16 bytes {
        @0 buffer: u32, @4 length: u32, @8 offset: u64
    }
    /// Holds the operands of an atomic.
    struct WrAtomic = rust_ulp_wr_atomic, 16 bytes {
        @0 compare_add: u64, @8 swap: u64
    }
    /// Names the receiver of a datagram.
    struct WrUd = rust_ulp_wr_ud, 16 bytes {
        @0 ah: u32, @4 qp_num: u32, @8 qkey: u32, @12 pad: u32
    }
    /// Describes a work request.
    struct Wr = rust_ulp_wr, 72 bytes {
        @0 user_data: u64, @8 qp: u32, @12 opcode: u8, @13 num_sge: u8, @14 flags: u16,
        @16 remote_addr: u64, @24 rkey: u32, @28 imm_data: u32, @32 sge: Sge, @48 args: WrArgs,
        @64 timeout_ns: u64
    }
    /// Posts requests.
    struct Submit = rust_ulp_submit, 56 bytes, IOC_SUBMIT "SUBMIT", wr_size = Wr {
        @0 size: u32, @4 flags: u32, @8 wrs: u64, @16 nr_wrs: u32, @20 wr_size: u32, @24 cq: u32,
        @28 min_complete: u32, @32 timeout_ns: u64, @40 posted: u32, @44 stop_error: i32,
        @48 completed: u32, @52 wait_error: i32
    }
    /// Completes requests in flight with RUST_ULP_WC_STATUS_CANCELED.
    struct Cancel = rust_ulp_cancel, 24 bytes, IOC_CANCEL "CANCEL" {
        @0 size: u32, @4 flags: u32, @8 queue: u32, @12 canceled: u32, @16 user_data: u64
    }
    /// Signals an eventfd for each completion in the ring of @cq.
    struct CqEventfd = rust_ulp_cq_eventfd, 16 bytes, IOC_CQ_EVENTFD "CQ_EVENTFD" {
        @0 size: u32, @4 flags: u32, @8 cq: u32, @12 fd: i32
    }
    /// Posts as SUBMIT does.
    struct UringBatch = rust_ulp_uring_batch, 16 bytes {
        @0 wrs: u64, @8 nr_wrs: u16, @10 wr_size: u16, @12 flags: u32
    }
    /// Is the command of RUST_ULP_URING_CANCEL.
    struct UringCancel = rust_ulp_uring_cancel, 16 bytes {
        @0 user_data: u64, @8 queue: u32, @12 flags: u32
    }
}

unions! {
    /// The member `args` of `struct rust_ulp_wr`.
    union WrArgs = rust_ulp_wr.args, 16 bytes, align 8 {
        atomic: WrAtomic = @0 compare_add: u64, @8 swap: u64;
        ud: WrUd = @0 ah: u32, @4 qp_num: u32, @8 qkey: u32, @12 pad: u32;
    }
}
