/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * The ABI of /dev/rust_ulp.
 *
 * Rules that hold for every command:
 *
 *  - A command is _IO(RUST_ULP_IOC_MAGIC, nr). Its argument points at a struct
 *    whose first member, @size, is sizeof that struct as the caller knows it.
 *    A larger struct than the kernel knows is accepted when the bytes beyond
 *    are zero (else E2BIG); a smaller one than the first version of that
 *    struct is EINVAL, more than a page E2BIG. Bytes the caller does not know read
 *    as zero and are not written back.
 *  - @flags bits that are not defined, and padding (@pad, @reserved) that is
 *    not zero, are EINVAL.
 *  - Objects are named by handles: non-zero, at most 31 bits, valid in the open
 *    file that made them and nowhere else.
 *  - A command that fails has changed nothing. But EFAULT comes too late when
 *    the struct can be written at the beginning and no longer at the end, of
 *    ACCEPT, ATTACH, CANCEL, GRANT_ROTATE, QP_MODIFY and SUBMIT: they are done then.
 *    And a queue pair is in ERR when its driver gave up halfway through QP_MODIFY.
 *  - All numbers are in host order, except GIDs and GUIDs, which are bytes in
 *    network order.
 *  - The layout is the same for 32-bit and 64-bit callers.
 *
 * What an errno means, for every command:
 *
 *  E2BIG       bytes beyond what the kernel knows are not zero; more elements or
 *              requests than allowed
 *  EACCES      a buffer that is READ_ONLY would be written
 *  EADDRNOTAVAIL  no port of the device has an address, which making keys needs
 *  EAGAIN      a queue is full: reap and try again
 *  EALREADY    the file is attached already
 *  EBADF       no such handle in this file (never made, destroyed, another file's)
 *  EBADFD      the handle is of another type
 *  EBUSY       another object needs this one
 *  EDQUOT      over a limit: of queue entries per open file, or of the rdma cgroup
 *  EFAULT      an address that cannot be read or written
 *  EINVAL      a size, flag, padding, name or enumerator that is not defined
 *  EMFILE      the file has as many objects as it may have
 *  EMSGSIZE    more bytes than a message, a datagram or inline data may have
 *  ENODEV      the device was removed; nothing but close() is left to do
 *  ENOENT      no such device, port, GID or P_Key, or none that this file may use
 *  ENOMEM      no memory, or over a limit on memory
 *  ENOTCONN    the queue pair is not yet in a state that takes this request
 *  ENOTTY      no such command
 *  ENXIO       the file is not attached to a device yet
 *  EOPNOTSUPP  this device, or this type of queue pair, does not do that; RECV to a
 *              queue pair that has a shared receive queue
 *  EPERM       a queue key whose highest bit is set needs CAP_NET_RAW
 *  EPROTO      the queue pair's state table does not allow that transition, or not
 *              with those attributes
 *  ERANGE      a number outside what the object or the device has room for
 *  EXDEV       objects of different protection domains, or that do not belong together
 *
 * EHOSTUNREACH, ENETUNREACH, ETIMEDOUT and the like from QP_MODIFY are the
 * route's; what else a driver returns is passed on.
 */
#ifndef _UAPI_RUST_ULP_H
#define _UAPI_RUST_ULP_H

#include <linux/types.h>
#include <linux/ioctl.h>

#define RUST_ULP_ABI_VERSION	1
#define RUST_ULP_DEVICE_PATH	"/dev/rust_ulp"

#define RUST_ULP_IOC_MAGIC	0xBF

#define RUST_ULP_IOC_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x00)
#define RUST_ULP_IOC_DEVICE_LIST	_IO(RUST_ULP_IOC_MAGIC, 0x01)
#define RUST_ULP_IOC_ATTACH		_IO(RUST_ULP_IOC_MAGIC, 0x02)
#define RUST_ULP_IOC_DEVICE_QUERY	_IO(RUST_ULP_IOC_MAGIC, 0x03)
#define RUST_ULP_IOC_PORT_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x04)
#define RUST_ULP_IOC_GID_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x05)
#define RUST_ULP_IOC_PKEY_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x06)
#define RUST_ULP_IOC_PD_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x10)
#define RUST_ULP_IOC_CQ_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x11)
#define RUST_ULP_IOC_QP_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x12)
#define RUST_ULP_IOC_QP_MODIFY		_IO(RUST_ULP_IOC_MAGIC, 0x13)
#define RUST_ULP_IOC_QP_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x14)
#define RUST_ULP_IOC_BUFFER_CREATE	_IO(RUST_ULP_IOC_MAGIC, 0x15)
#define RUST_ULP_IOC_GRANT_CREATE	_IO(RUST_ULP_IOC_MAGIC, 0x16)
#define RUST_ULP_IOC_AH_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x17)
#define RUST_ULP_IOC_SRQ_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x18)
#define RUST_ULP_IOC_SRQ_MODIFY		_IO(RUST_ULP_IOC_MAGIC, 0x19)
#define RUST_ULP_IOC_SRQ_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x1a)
#define RUST_ULP_IOC_DESTROY		_IO(RUST_ULP_IOC_MAGIC, 0x1f)
#define RUST_ULP_IOC_SUBMIT		_IO(RUST_ULP_IOC_MAGIC, 0x20)
#define RUST_ULP_IOC_CANCEL		_IO(RUST_ULP_IOC_MAGIC, 0x21)
#define RUST_ULP_IOC_CQ_EVENTFD		_IO(RUST_ULP_IOC_MAGIC, 0x22)
/* 0x23 to 0x2f: other data-path commands */
#define RUST_ULP_IOC_LISTEN		_IO(RUST_ULP_IOC_MAGIC, 0x30)
#define RUST_ULP_IOC_GET_REQUEST	_IO(RUST_ULP_IOC_MAGIC, 0x31)
#define RUST_ULP_IOC_ACCEPT		_IO(RUST_ULP_IOC_MAGIC, 0x32)
#define RUST_ULP_IOC_REJECT		_IO(RUST_ULP_IOC_MAGIC, 0x33)
#define RUST_ULP_IOC_CONNECT		_IO(RUST_ULP_IOC_MAGIC, 0x34)
#define RUST_ULP_IOC_DISCONNECT		_IO(RUST_ULP_IOC_MAGIC, 0x35)
#define RUST_ULP_IOC_CONN_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x36)
/* 0x37 to 0x3f: other commands of connections */
#define RUST_ULP_IOC_BUFFER_REGISTER	_IO(RUST_ULP_IOC_MAGIC, 0x40)
#define RUST_ULP_IOC_BUFFER_IMPORT	_IO(RUST_ULP_IOC_MAGIC, 0x41)
#define RUST_ULP_IOC_BUFFER_QUERY	_IO(RUST_ULP_IOC_MAGIC, 0x42)
#define RUST_ULP_IOC_GRANT_ROTATE	_IO(RUST_ULP_IOC_MAGIC, 0x43)
#define RUST_ULP_IOC_GRANT_QUERY	_IO(RUST_ULP_IOC_MAGIC, 0x44)
/* 0x45 to 0x4f: other commands of memory; 0x80 to 0x8f: RUST_ULP_URING_* */

#define RUST_ULP_NAME_MAX	64	/* as IB_DEVICE_NAME_MAX, NUL included */

/* The largest @timeout_ns: one hour. Every wait has a deadline. */
#define RUST_ULP_TIMEOUT_MAX_NS	3600000000000ULL

/* ---- QUERY: what this module is ---------------------------------------- */

/* @features */
#define RUST_ULP_FEATURE_CALL		(1ULL << 0)	/* SUBMIT */
#define RUST_ULP_FEATURE_GRANTS		(1ULL << 1)	/* GRANT_CREATE */
#define RUST_ULP_FEATURE_SRQ		(1ULL << 2)	/* SRQ_CREATE */
#define RUST_ULP_FEATURE_DATAGRAM	(1ULL << 3)	/* AH_CREATE, and queue pairs of type UD */
#define RUST_ULP_FEATURE_EVENTS		(1ULL << 4)	/* read() gives events */
#define RUST_ULP_FEATURE_CM		(1ULL << 5)	/* LISTEN, CONNECT and so on */
#define RUST_ULP_FEATURE_CANCEL		(1ULL << 6)	/* CANCEL, and deadlines of requests */
#define RUST_ULP_FEATURE_EVENTFD	(1ULL << 7)	/* CQ_EVENTFD */
#define RUST_ULP_FEATURE_URING		(1ULL << 8)	/* RUST_ULP_URING_* */
#define RUST_ULP_FEATURE_USER_MEMORY	(1ULL << 9)	/* BUFFER_REGISTER */
#define RUST_ULP_FEATURE_DMABUF		(1ULL << 10)	/* BUFFER_IMPORT */

struct rust_ulp_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 abi_version;	/* out: RUST_ULP_ABI_VERSION of the module */
	__u32 max_objects;	/* out: handles per open file */
	__aligned_u64 features;	/* out: RUST_ULP_FEATURE_* */
	__aligned_u64 max_buffer; /* out: bytes per buffer, before the device's limit */
	__u32 max_batch;	/* out: @nr_wrs of one SUBMIT */
	__u32 max_cq_entries;	/* out: @entries of one completion queue */
	__u32 max_queue_depth;	/* out: work requests per send or receive queue */
	__u32 max_sge;		/* out: elements per work request */
	__u32 max_inline;	/* out: inline bytes per work request */
	__u32 max_entries;	/* out: entries of all queues of one open file together */
};

/* ---- DEVICE_LIST: the devices this file may attach to ------------------- */

/* rust_ulp_device_entry.flags */
#define RUST_ULP_DEVICE_DEFAULT		(1U << 0)	/* what ATTACH without a name takes */
#define RUST_ULP_DEVICE_LOCAL_NET	(1U << 1)	/* a GID's netdev is in the opener's network namespace */

struct rust_ulp_device_entry {
	__u8 name[RUST_ULP_NAME_MAX];	/* NUL-terminated */
	__u8 node_guid[8];
	__u32 index;		/* as shown by `rdma dev` */
	__u32 flags;		/* RUST_ULP_DEVICE_* */
	__u32 phys_ports;
	__u32 pad;
};

struct rust_ulp_device_list {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__aligned_u64 entries;	/* in: address of an array of rust_ulp_device_entry */
	__u32 entry_size;	/* in: sizeof one entry as the caller knows it */
	__u32 capacity;		/* in: entries in that array */
	__u32 count;		/* out: devices there are, may exceed @capacity */
	__u32 pad;
};

/* ---- ATTACH: bind this open file to one device, once -------------------- */

struct rust_ulp_attach {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u8 name[RUST_ULP_NAME_MAX];	/* in: the device, or empty for the default; out: its name */
	__u32 index;		/* out: as shown by `rdma dev` */
	__u32 phys_ports;	/* out */
	__u32 port;		/* out: the port whose GID is preferred */
	__u32 gid_index;	/* out: the preferred GID: RoCE v2 with an IPv4 address of a netdev in
				 * the opener's network namespace before others; ~0 if none */
};

/* ---- DEVICE_QUERY -------------------------------------------------------- */

/* @caps */
#define RUST_ULP_CAP_FAST_REG		(1ULL << 0)	/* buffers and grants can be made */
#define RUST_ULP_CAP_SRQ		(1ULL << 1)
#define RUST_ULP_CAP_VIRT_DMA		(1ULL << 2)	/* a software device: no DMA */

/* Index into @send_ops; the value of rust_ulp_qp_create.qp_type */
#define RUST_ULP_QPT_RC		2
#define RUST_ULP_QPT_UC		3
#define RUST_ULP_QPT_UD		4

struct rust_ulp_device_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u8 name[RUST_ULP_NAME_MAX];
	__u8 fw_ver[32];	/* NUL-terminated */
	__u8 node_guid[8];
	__u8 sys_image_guid[8];
	__aligned_u64 max_mr_size;	/* bytes under one key */
	__aligned_u64 page_size_cap;	/* bit n: pages of 2^n bytes can be registered */
	__aligned_u64 caps;		/* RUST_ULP_CAP_* */
	__aligned_u64 rc_send_ops;	/* bit n: RUST_ULP_WR_ opcode n works on RC here */
	__aligned_u64 uc_send_ops;
	__aligned_u64 ud_send_ops;
	__u32 vendor_id;
	__u32 vendor_part_id;
	__u32 hw_ver;
	__u32 phys_ports;
	__u32 max_qp;
	__u32 max_qp_wr;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__u32 max_cq;
	__u32 max_cqe;
	__u32 max_mr;
	__u32 max_pd;
	__u32 max_qp_rd_atom;		/* responder resources per queue pair */
	__u32 max_qp_init_rd_atom;	/* outstanding reads and atomics per queue pair */
	__u32 max_srq;
	__u32 max_srq_wr;
	__u32 max_fast_reg_pages;	/* pages under one key */
	__u32 num_comp_vectors;
	__u32 local_ca_ack_delay;	/* 4.096 us * 2^n */
	__u32 pad;
};

/* ---- PORT_QUERY, GID_QUERY, PKEY_QUERY ------------------------------------ */

#define RUST_ULP_LINK_UNSPECIFIED	0
#define RUST_ULP_LINK_INFINIBAND	1
#define RUST_ULP_LINK_ETHERNET		2

struct rust_ulp_port_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 port;		/* in: from 1 */
	__u32 state;		/* enum ib_port_state: 1 down, 2 init, 3 armed, 4 active, 5 active defer */
	__u32 phys_state;	/* enum ib_port_phys_state */
	__u32 max_mtu;		/* bytes */
	__u32 active_mtu;	/* bytes */
	__u32 link_layer;	/* RUST_ULP_LINK_* */
	__u32 lid;
	__u32 sm_lid;
	__u32 lmc;
	__u32 sm_sl;
	__u32 max_msg_sz;	/* bytes */
	__u32 gid_tbl_len;
	__u32 pkey_tbl_len;
	__u32 active_width;	/* enum ib_port_width */
	__u32 active_speed;	/* enum ib_port_speed */
	__u32 port_cap_flags;
	__u32 bad_pkey_cntr;
	__u32 qkey_viol_cntr;
	__u32 ifindex;		/* of the netdev when it is in the opener's network namespace, else 0 */
	__u32 pad;
};

/* rust_ulp_gid_entry.gid_type */
#define RUST_ULP_GID_IB		0
#define RUST_ULP_GID_ROCE_V1	1
#define RUST_ULP_GID_ROCE_V2	2

/* rust_ulp_gid_entry.flags */
#define RUST_ULP_GID_IPV4	(1U << 0)	/* ::ffff:a.b.c.d */
#define RUST_ULP_GID_LINK_LOCAL	(1U << 1)	/* fe80::/10 */
#define RUST_ULP_GID_LOCAL_NET	(1U << 2)	/* its netdev is in the opener's network namespace */
#define RUST_ULP_GID_PREFERRED	(1U << 3)	/* what ATTACH names */

struct rust_ulp_gid_entry {
	__u8 gid[16];
	__u32 index;
	__u32 ifindex;		/* when LOCAL_NET, else 0 */
	__u32 gid_type;		/* RUST_ULP_GID_IB and so on */
	__u32 flags;
	__u8 ifname[16];	/* when LOCAL_NET, else empty */
};

struct rust_ulp_gid_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__aligned_u64 entries;	/* in: address of an array of rust_ulp_gid_entry */
	__u32 entry_size;	/* in */
	__u32 capacity;		/* in: entries in that array */
	__u32 port;		/* in: from 1 */
	__u32 count;		/* out: entries in use, may exceed @capacity */
};

struct rust_ulp_pkey_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 port;		/* in */
	__u32 index;		/* in */
	__u32 pkey;		/* out */
	__u32 pad;
};

/* ---- Objects ----------------------------------------------------------- */

struct rust_ulp_pd_create {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 handle;		/* out */
	__u32 pad;
};

/* rust_ulp_cq_create.delivery: who moves completions from the device into the ring */
#define RUST_ULP_DELIVER_DEFAULT	0	/* as the module's parameter says */
#define RUST_ULP_DELIVER_WORKQUEUE	1	/* a kernel worker */
#define RUST_ULP_DELIVER_SOFTIRQ	2	/* the softirq of the CPU that saw the completion */
#define RUST_ULP_DELIVER_CALLER		3	/* only the caller of SUBMIT on this queue */

struct rust_ulp_cq_create {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 entries;		/* in: at least; out: what there are, a power of two */
	__u32 delivery;		/* in: RUST_ULP_DELIVER_*; out: what was chosen */
	__u32 comp_vector;	/* in: below num_comp_vectors */
	__u32 handle;		/* out */
	__aligned_u64 mmap_offset;	/* out: of the ring */
	__aligned_u64 mmap_size;	/* out: bytes to map there */
};

/*
 * The ring of a completion queue, at its mmap_offset. The kernel owns all of it
 * but @head, keeps its own copy of what it owns and reads nothing back.
 *
 * Consumer: tail = load_acquire(@tail); while (head != tail) { copy
 * entry[head & (entries - 1)]; head++; } store_release(@head, head).
 * Both indices run freely over 2^32.
 */
#define RUST_ULP_CQ_ENTRIES_OFFSET	4096

/* rust_ulp_cq_ring.flags */
#define RUST_ULP_CQ_OVERFLOW	(1U << 0)	/* @dropped completions did not fit */
#define RUST_ULP_CQ_DEAD	(1U << 1)	/* the device is gone: nothing more will come */
#define RUST_ULP_CQ_ERROR	(1U << 2)	/* the device reported an error of the queue itself */

struct rust_ulp_cq_ring {
	__u32 head;		/* the consumer's */
	__u32 pad0[15];
	__u32 tail;		/* the kernel's from here on */
	__u32 flags;		/* RUST_ULP_CQ_* */
	__u32 dropped;
	__u32 entries;
	__u32 entry_size;
	__u32 entries_offset;	/* RUST_ULP_CQ_ENTRIES_OFFSET */
	__u32 pad1[10];
};

/* rust_ulp_cqe.opcode: as enum ib_wc_opcode */
#define RUST_ULP_WC_SEND		0
#define RUST_ULP_WC_RDMA_WRITE		1
#define RUST_ULP_WC_RDMA_READ		2
#define RUST_ULP_WC_COMP_SWAP		3
#define RUST_ULP_WC_FETCH_ADD		4
#define RUST_ULP_WC_LOCAL_INV		6
#define RUST_ULP_WC_RECV		128
#define RUST_ULP_WC_RECV_RDMA_WITH_IMM	129

/*
 * rust_ulp_cqe.status beyond enum ib_wc_status: the request is over for its caller, not
 * for the device. Its data may still arrive at the peer, or in the buffers that it
 * names; a receive may still take a message, which is lost then. Its place in the
 * queue is free again when the device is done with it.
 */
#define RUST_ULP_WC_STATUS_TIMEOUT	256	/* its deadline has passed */
#define RUST_ULP_WC_STATUS_CANCELED	257	/* CANCEL named it */

/* rust_ulp_cqe.flags */
#define RUST_ULP_WC_GRH			(1U << 0)	/* 40 bytes of GRH stand before the data (UD) */
#define RUST_ULP_WC_WITH_IMM		(1U << 1)	/* @imm_data is immediate data */
#define RUST_ULP_WC_WITH_INVALIDATE	(1U << 2)	/* @imm_data is the invalidated rkey */

struct rust_ulp_cqe {
	__aligned_u64 user_data;	/* of the request */
	__u32 qp;		/* handle */
	__u32 qp_num;
	__u16 status;		/* enum ib_wc_status: 0 is success; or RUST_ULP_WC_STATUS_* */
	__u8 opcode;		/* RUST_ULP_WC_*, valid for failed requests too */
	__u8 flags;		/* RUST_ULP_WC_GRH and so on */
	__u32 vendor_err;
	__u32 byte_len;		/* of a receive, read or atomic that succeeded, else 0 */
	__u32 imm_data;
	__u32 src_qp;		/* UD receives */
	__u16 pkey_index;	/* UD receives */
	__u16 slid;		/* UD receives on InfiniBand */
	__u8 sl;
	__u8 dlid_path_bits;
	__u8 port;
	__u8 pad;
	__u32 reserved[5];
};

#define RUST_ULP_QP_SIG_ALL	(1U << 0)	/* every send request makes a completion */

struct rust_ulp_qp_create {
	__u32 size;
	__u32 flags;		/* in: RUST_ULP_QP_SIG_ALL */
	__u32 pd;		/* in: handle */
	__u32 send_cq;		/* in: handle */
	__u32 recv_cq;		/* in: handle, may equal @send_cq */
	__u32 srq;		/* in: handle or 0 */
	__u32 qp_type;		/* in: RUST_ULP_QPT_* */
	__u32 max_send_wr;	/* in and out, as the others of this group */
	__u32 max_recv_wr;	/* out: 0 with @srq */
	__u32 max_send_sge;
	__u32 max_recv_sge;	/* out: 0 with @srq */
	__u32 max_inline;	/* bytes */
	__u32 handle;		/* out */
	__u32 qp_num;		/* out */
};

struct rust_ulp_ah_attr {
	__u8 dgid[16];
	__u32 flow_label;
	__u8 sgid_index;
	__u8 hop_limit;		/* 0: the route's */
	__u8 traffic_class;
	__u8 sl;
	__u16 dlid;		/* InfiniBand */
	__u8 port_num;
	__u8 is_global;		/* 1: the GRH part is used; always on RoCE */
	__u8 static_rate;
	__u8 src_path_bits;
	__u8 dmac[6];		/* in: 0, the kernel resolves it; out: what it is */
};

/* rust_ulp_qp_attr: @attr_mask, as enum ib_qp_attr_mask */
#define RUST_ULP_QP_STATE		(1U << 0)
#define RUST_ULP_QP_CUR_STATE		(1U << 1)
#define RUST_ULP_QP_EN_SQD_ASYNC_NOTIFY	(1U << 2)
#define RUST_ULP_QP_ACCESS_FLAGS	(1U << 3)
#define RUST_ULP_QP_PKEY_INDEX		(1U << 4)
#define RUST_ULP_QP_PORT		(1U << 5)
#define RUST_ULP_QP_QKEY		(1U << 6)
#define RUST_ULP_QP_AV			(1U << 7)
#define RUST_ULP_QP_PATH_MTU		(1U << 8)
#define RUST_ULP_QP_TIMEOUT		(1U << 9)
#define RUST_ULP_QP_RETRY_CNT		(1U << 10)
#define RUST_ULP_QP_RNR_RETRY		(1U << 11)
#define RUST_ULP_QP_RQ_PSN		(1U << 12)
#define RUST_ULP_QP_MAX_QP_RD_ATOMIC	(1U << 13)
#define RUST_ULP_QP_MIN_RNR_TIMER	(1U << 15)
#define RUST_ULP_QP_SQ_PSN		(1U << 16)
#define RUST_ULP_QP_MAX_DEST_RD_ATOMIC	(1U << 17)
#define RUST_ULP_QP_DEST_QPN		(1U << 20)

/* @qp_state, as enum ib_qp_state */
#define RUST_ULP_QPS_RESET	0
#define RUST_ULP_QPS_INIT	1
#define RUST_ULP_QPS_RTR	2
#define RUST_ULP_QPS_RTS	3
#define RUST_ULP_QPS_SQD	4
#define RUST_ULP_QPS_SQE	5
#define RUST_ULP_QPS_ERR	6

/* Rights: of a grant, and of a queue pair towards its peer. As enum ib_access_flags. */
#define RUST_ULP_ACCESS_LOCAL_WRITE	(1U << 0)
#define RUST_ULP_ACCESS_REMOTE_WRITE	(1U << 1)
#define RUST_ULP_ACCESS_REMOTE_READ	(1U << 2)
#define RUST_ULP_ACCESS_REMOTE_ATOMIC	(1U << 3)

struct rust_ulp_qp_attr {
	__u32 qkey;
	__u32 rq_psn;		/* 24 bits */
	__u32 sq_psn;		/* 24 bits */
	__u32 dest_qp_num;	/* 24 bits */
	__u32 access_flags;	/* RUST_ULP_ACCESS_REMOTE_* */
	__u16 pkey_index;
	__u8 qp_state;		/* RUST_ULP_QPS_* */
	__u8 cur_qp_state;
	__u8 path_mtu;		/* enum ib_mtu: 1 256, 2 512, 3 1024, 4 2048, 5 4096 bytes */
	__u8 port_num;
	__u8 timeout;		/* 4.096 us * 2^n, 0 is for ever; 5 bits */
	__u8 retry_cnt;		/* 0 to 7 */
	__u8 rnr_retry;		/* 0 to 6, 7 is for ever */
	__u8 min_rnr_timer;	/* IBA table 45: 1 is 0.01 ms, 12 is 0.64 ms, 0 is 655.36 ms; 5 bits */
	__u8 max_rd_atomic;
	__u8 max_dest_rd_atomic;
	__u8 en_sqd_async_notify;
	__u8 sq_draining;	/* out */
	__u8 pad[2];
	struct rust_ulp_ah_attr ah;
};

/*
 * On iWARP a queue pair is made in INIT, takes receives there, and comes to RTS by ACCEPT or CONNECT
 * and nothing else; ERR is final. QP_MODIFY is EOPNOTSUPP, to RESET as to all other states: who needs
 * another queue pair destroys it and makes one.
 */
struct rust_ulp_qp_modify {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 qp;		/* in: handle */
	__u32 attr_mask;	/* in: RUST_ULP_QP_*, which of @attr count */
	struct rust_ulp_qp_attr attr;	/* in; out: @ah.dmac and @ah.hop_limit as resolved */
};

struct rust_ulp_qp_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 qp;		/* in: handle */
	__u32 qp_num;
	__u32 qp_type;
	__u32 max_send_wr;
	__u32 max_recv_wr;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__u32 max_inline;
	__u32 sends_in_flight;
	__u32 recvs_in_flight;
	struct rust_ulp_qp_attr attr;	/* out */
};

/* rust_ulp_buffer_create.node */
#define RUST_ULP_NODE_ANY	(-1)

struct rust_ulp_buffer_create {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 pd;		/* in: handle */
	__s32 node;		/* in: NUMA node to prefer, or RUST_ULP_NODE_ANY; ERANGE when there is no
				 * such node. What it has not comes from others. out: of the first page */
	__aligned_u64 length;	/* in: bytes; out: rounded up to whole pages */
	__u32 page_size;	/* in: 0 to choose, or 4096, or 2097152; out: bytes contiguous, which
				 * may be any power of two between when it was 0 */
	__u32 handle;		/* out */
	__aligned_u64 mmap_offset;	/* out */
	__aligned_u64 key_bytes;	/* out: bytes under one key of the device */
	__u32 keys;		/* out: how many of them there are */
	__u32 pad;
};

/*
 * A device puts no more than so many pages under one key, so a buffer may have several,
 * each for @key_bytes of it. An element of a request may lie across their borders, and
 * counts as one for each key then. One that the queue pair has no room for is E2BIG; every queue pair
 * has room for one element that lies across one border, whatever @max_send_sge and @max_recv_sge it asked for,
 * where the device has two elements.
 *
 * On iWARP the first key of a domain takes a connection of the device with itself: EADDRNOTAVAIL when it
 * has no address in the opener's network namespace, ETIMEDOUT, EINTR. A send request has one element, under one key
 * (E2BIG). EOPNOTSUPP there: a read that is fenced, empty, or on a connection that agreed on none; an inline
 * message without data; and one of up to 64 bytes, not inline, across the end of a page. With siw a grant
 * with REMOTE_READ lies in one page (EOPNOTSUPP), but a peer can read by any key that it has; and the memory
 * of buffers with grants stays until the domain is destroyed, at most that of 1024 (ENOMEM).
 */

/* rust_ulp_buffer_register.flags */
#define RUST_ULP_BUFFER_READ_ONLY	(1U << 0)	/* requests and peers only read it */

/*
 * Registers memory of the caller where it is, pinned until the buffer is destroyed, and
 * charged to RLIMIT_MEMLOCK. It has no mmap offset. After fork() it stays that of the parent;
 * the child has a copy. What is unmapped meanwhile stays pinned, and is not the caller's any more.
 *
 * EFAULT for what is not mapped, or not writable and not READ_ONLY; EOPNOTSUPP for what cannot
 * be pinned for long (files on most filesystems, device memory).
 */
struct rust_ulp_buffer_register {
	__u32 size;
	__u32 flags;		/* in: RUST_ULP_BUFFER_READ_ONLY */
	__u32 pd;		/* in: handle */
	__u32 handle;		/* out */
	__aligned_u64 addr;	/* in: of the first byte, aligned or not */
	__aligned_u64 length;	/* in: bytes */
	__aligned_u64 key_bytes;	/* out; the first key may have less */
	__u32 keys;		/* out */
	__u32 page_size;	/* out: bytes that were found contiguous */
};

/*
 * Registers a dma-buf. For a software device (RUST_ULP_CAP_VIRT_DMA) it must be system memory that
 * its exporter can map into the kernel, else EOPNOTSUPP. Another device is attached to it, and has it
 * mapped for its DMA; that has not been tried on hardware. It has no mmap
 * offset. EACCES when it is not open for writing, without READ_ONLY.
 */
struct rust_ulp_buffer_import {
	__u32 size;
	__u32 flags;		/* in: RUST_ULP_BUFFER_READ_ONLY */
	__u32 pd;		/* in: handle */
	__s32 fd;		/* in: of the dma-buf; EBADF, EINVAL for another file */
	__aligned_u64 offset;	/* in: first byte, a multiple of the page size */
	__aligned_u64 length;	/* in: bytes; 0: all from @offset on; out */
	__aligned_u64 key_bytes;	/* out */
	__u32 keys;		/* out */
	__u32 page_size;	/* out */
	__u32 handle;		/* out */
	__u32 pad;
};

/* rust_ulp_buffer_query.kind */
#define RUST_ULP_BUFFER_PAGES	1	/* BUFFER_CREATE */
#define RUST_ULP_BUFFER_USER	2	/* BUFFER_REGISTER */
#define RUST_ULP_BUFFER_DMABUF	3	/* BUFFER_IMPORT */

struct rust_ulp_buffer_query {
	__u32 size;
	__u32 flags;		/* in: 0; out: RUST_ULP_BUFFER_READ_ONLY */
	__u32 buffer;		/* in: handle */
	__u32 kind;		/* RUST_ULP_BUFFER_PAGES and so on */
	__aligned_u64 length;	/* bytes */
	__aligned_u64 charged;	/* bytes that count against RLIMIT_MEMLOCK */
	__aligned_u64 mmap_offset;	/* 0 when it cannot be mapped */
	__aligned_u64 key_bytes;
	__u32 keys;
	__u32 page_size;
	__s32 node;		/* NUMA node of the first page */
	__u32 grants;		/* that there are of it */
};

/* rust_ulp_grant_create.flags */
#define RUST_ULP_GRANT_ONE_SHOT	(1U << 0)	/* ends when it was used, see below; needs @qp */
#define RUST_ULP_GRANT_PARTIAL	(1U << 1)	/* as much as goes under one key: @length says how much */

/*
 * One key opens one range, which may lie across keys of its buffer but is no larger
 * than the device puts under one: else ERANGE, or with PARTIAL less is granted.
 *
 * A grant with @qp ends with it: when that queue pair goes to ERR or RESET, by command, by its
 * connection's end or by an error, or is destroyed. One with ONE_SHOT ends, besides, when a
 * receive of @qp completes that invalidated the key (SEND_WITH_INV), or that came with
 * immediate data equal to it (RDMA_WRITE_WITH_IMM). When nothing can land any more,
 * RUST_ULP_EVENT_GRANT_ENDED says so; the handle stays until it is destroyed.
 */

struct rust_ulp_grant_create {
	__u32 size;
	__u32 flags;		/* in: RUST_ULP_GRANT_ONE_SHOT, RUST_ULP_GRANT_PARTIAL */
	__u32 buffer;		/* in: handle */
	__u32 access;		/* in: RUST_ULP_ACCESS_REMOTE_*, at least one */
	__aligned_u64 offset;	/* in: first byte */
	__aligned_u64 length;	/* in: bytes, at least 1; out with PARTIAL */
	__aligned_u64 addr;	/* out: the remote address of that first byte */
	__u32 rkey;		/* out */
	__u32 handle;		/* out: destroying it revokes the key */
	__u32 qp;		/* in: handle or 0 */
	__u32 pad;
};

/*
 * Gives a grant a new key for the same range. When it returns the old one is dead, as
 * after DESTROY. When it fails, the old one lives. ENOTCONN when the grant has ended.
 */
struct rust_ulp_grant_rotate {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 grant;		/* in: handle */
	__u32 rkey;		/* out */
	__aligned_u64 addr;	/* out */
};

/* rust_ulp_grant_query.state */
#define RUST_ULP_GRANT_ACTIVE	1
#define RUST_ULP_GRANT_USED	2	/* ONE_SHOT: used up */
#define RUST_ULP_GRANT_EXPIRED	3	/* its queue pair has ended */

struct rust_ulp_grant_query {
	__u32 size;
	__u32 flags;		/* in: 0; out: RUST_ULP_GRANT_ONE_SHOT */
	__u32 grant;		/* in: handle */
	__u32 state;		/* RUST_ULP_GRANT_ACTIVE and so on */
	__u32 buffer;		/* handle */
	__u32 qp;		/* handle or 0 */
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 addr;
	__u32 rkey;		/* 0 when it has ended */
	__u32 access;
};

/*
 * The address of a datagram's receiver. It may be destroyed while requests that name it are under way.
 * A datagram that is longer than the MTU which the port had when its address was made is EMSGSIZE.
 */
struct rust_ulp_ah_create {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 pd;		/* in: handle */
	__u32 handle;		/* out */
	struct rust_ulp_ah_attr attr;	/* in; out: @dmac and @hop_limit as resolved */
	__u32 pad;
};

/*
 * A queue of receive requests that queue pairs share. Its requests are posted by
 * SUBMIT, with this handle where a queue pair's would stand, and complete in @cq,
 * with the handle of the queue pair that used them. Queue pairs that use it have
 * @cq as their @recv_cq and are of the same @pd, or QP_CREATE says EXDEV.
 *
 * A queue pair that ends in the middle of a message keeps the request that it had
 * begun to fill. It completes as flushed, with this queue's handle where a queue
 * pair's would stand, when a later one has completed and something is done with
 * the queue; at the latest when it is destroyed, as do all that are left.
 */
struct rust_ulp_srq_create {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 pd;		/* in: handle */
	__u32 cq;		/* in: handle */
	__u32 max_wr;		/* in and out */
	__u32 max_sge;		/* in and out */
	__u32 limit;		/* in: as SRQ_MODIFY sets it, 0 for none */
	__u32 handle;		/* out */
};

/* Arms the limit: RUST_ULP_EVENT_SRQ_LIMIT, once, when fewer than @limit requests are left. */
struct rust_ulp_srq_modify {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 srq;		/* in: handle */
	__u32 limit;		/* in: 0 disarms, at most @max_wr */
};

struct rust_ulp_srq_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 srq;		/* in: handle */
	__u32 max_wr;
	__u32 max_sge;
	__u32 limit;		/* 0 when disarmed, or when its event was raised */
	__u32 recvs_in_flight;	/* posted, and not completed */
	__u32 pad;
};

struct rust_ulp_destroy {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 handle;		/* in: of any type; EBUSY while other objects need it */
	__u32 pad;
};

/* ---- Events -------------------------------------------------------------- */

/*
 * read() on an attached file gives whole records of this form, as many as there are
 * and fit. It waits for the first one, unless O_NONBLOCK is set: then EAGAIN.
 * EINVAL when not one record fits, ENXIO before ATTACH. When the device is gone, the
 * last record is RUST_ULP_EVENT_DEVICE_REMOVED, and after it read() says ENODEV. An
 * object that a record names may have been destroyed since.
 *
 * poll(): POLLPRI while there are records; POLLIN while a completion can be taken.
 *
 * A file keeps RUST_ULP_EVENTS_MAX records. What happens beyond is counted, and
 * reported by one RUST_ULP_EVENT_LOST when there is room again.
 */
#define RUST_ULP_EVENTS_MAX	256

/* @event below 256: as enum ib_event_type */
#define RUST_ULP_EVENT_CQ_ERR		0	/* @handle: the completion queue */
#define RUST_ULP_EVENT_QP_FATAL		1	/* @handle: the queue pair; also for 2 to 7 and 16 */
#define RUST_ULP_EVENT_QP_REQ_ERR	2
#define RUST_ULP_EVENT_QP_ACCESS_ERR	3
#define RUST_ULP_EVENT_COMM_EST		4	/* a packet came before RTS */
#define RUST_ULP_EVENT_SQ_DRAINED	5
#define RUST_ULP_EVENT_PATH_MIG		6
#define RUST_ULP_EVENT_PATH_MIG_ERR	7
#define RUST_ULP_EVENT_DEVICE_FATAL	8
#define RUST_ULP_EVENT_PORT_ACTIVE	9	/* @port; also for 10 to 13, 17 and 18 */
#define RUST_ULP_EVENT_PORT_ERR		10
#define RUST_ULP_EVENT_LID_CHANGE	11
#define RUST_ULP_EVENT_PKEY_CHANGE	12
#define RUST_ULP_EVENT_SM_CHANGE	13
#define RUST_ULP_EVENT_SRQ_ERR		14	/* @handle: the shared receive queue */
#define RUST_ULP_EVENT_SRQ_LIMIT	15
#define RUST_ULP_EVENT_LAST_WQE_REACHED	16	/* a queue pair in ERR takes no more from its SRQ; once */
#define RUST_ULP_EVENT_CLIENT_REREGISTER 17
#define RUST_ULP_EVENT_GID_CHANGE	18

/* @event of this module */
#define RUST_ULP_EVENT_DEVICE_REMOVED	256
#define RUST_ULP_EVENT_DEVICE_RENAMED	257
#define RUST_ULP_EVENT_LOST		258	/* @info: how many records did not fit */
#define RUST_ULP_EVENT_GRANT_ENDED	259	/* @handle: the grant; @info: RUST_ULP_GRANT_USED or EXPIRED */
#define RUST_ULP_EVENT_CONNECT_REQUEST	272	/* @handle: the listener; @info: requests waiting */
#define RUST_ULP_EVENT_DISCONNECTED	273	/* @handle: the connection; the peer has ended it */
#define RUST_ULP_EVENT_TIMEWAIT_EXIT	274	/* @handle: the connection; late packets are gone */
#define RUST_ULP_EVENT_ADDR_CHANGE	275	/* @handle: the connection or listener; its address moved */
#define RUST_ULP_EVENT_UNREACHABLE	276	/* @handle: the connection; the peer does not answer */

struct rust_ulp_event {
	__u32 event;		/* RUST_ULP_EVENT_* */
	__u32 handle;		/* of the object, or 0 */
	__u32 port;		/* or 0 */
	__u32 info;
	__aligned_u64 time_ns;	/* CLOCK_MONOTONIC */
	__aligned_u64 reserved;
};

/* ---- Connections by the RDMA connection manager ---------------------------- */

/*
 * Addresses are those of the opener's network namespace. The port space is that of
 * RDMA_PS_TCP; queue pairs are RC.
 *
 * EACCES         LISTEN, CONNECT: a local port below 1024 needs CAP_NET_BIND_SERVICE
 * EADDRINUSE     LISTEN: the port is taken
 * EADDRNOTAVAIL  no device has that local address
 * ECONNREFUSED   CONNECT: the peer rejected; @reject_reason and the private data say why
 * ECONNRESET     ACCEPT, CONNECT: the other side went away in the middle
 * EHOSTUNREACH, ENETUNREACH  no route, or nobody answers for that address
 * EINTR          a signal came: what was begun is undone
 * EISCONN        the queue pair, or the request, has a connection already
 * ENOTCONN       the connection has ended
 * ETIMEDOUT      the deadline, or the manager's own, has passed: what was begun is undone
 * EXDEV          the local address, the route to the peer, or the request, belongs to another device
 *                than the file's
 */

/* As struct sockaddr_in and sockaddr_in6 say it, in one form. */
struct rust_ulp_addr {
	__u16 family;		/* AF_INET 2, AF_INET6 10; 0 where an address may be left out */
	__u16 port;		/* host order */
	__u32 scope_id;		/* interface of an IPv6 link-local address, else 0 */
	__u8 addr[16];		/* network order; IPv4 in the first four bytes, then zeros */
};

/* Most bytes of private data, each way. */
#define RUST_ULP_CM_REQ_PRIVATE_MAX	56	/* of CONNECT */
#define RUST_ULP_CM_REP_PRIVATE_MAX	196	/* of ACCEPT */
#define RUST_ULP_CM_REJ_PRIVATE_MAX	148	/* of REJECT */
#define RUST_ULP_CM_PRIVATE_MAX		224	/* room for any, with what the other side pads */

/* Parameters of a connection: what one asks for, and what one got. */
struct rust_ulp_conn_param {
	__u8 responder_resources;	/* reads and atomics answered at a time */
	__u8 initiator_depth;		/* reads and atomics outstanding */
	__u8 retry_cnt;		/* 0 to 7; the requester's holds for both ends */
	__u8 rnr_retry;		/* 0 to 7; in: for the peer to use, out: for this side, from the peer */
	__u8 min_rnr_timer;	/* as in rust_ulp_qp_attr */
	__u8 ack_timeout;	/* 0: the manager's choice; else 4.096 us * 2^n */
	__u8 traffic_class;	/* type of service; what the route has when @flags lacks TRAFFIC_CLASS */
	__u8 path_mtu;		/* 0: the route's; else at most that, enum ib_mtu; ACCEPT cannot lower it */
	__u32 access_flags;	/* RUST_ULP_ACCESS_REMOTE_*: what the peer may do with this queue pair */
	__u32 flags;		/* RUST_ULP_CONN_* */
};

#define RUST_ULP_CONN_TRAFFIC_CLASS	(1U << 0)
#define RUST_ULP_CONN_FLOW_CONTROL	(1U << 1)	/* end-to-end, where the device has it */

struct rust_ulp_listen {
	__u32 size;
	__u32 flags;		/* in: 0 */
	struct rust_ulp_addr addr;	/* in: an all-zero address is any; out: the port, when that was 0 */
	__u32 backlog;		/* in: requests kept waiting, 1 to 1024; more are rejected */
	__u32 handle;		/* out */
};

/* Takes the oldest request of a listener. */
struct rust_ulp_get_request {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 listener;		/* in: handle */
	__u32 handle;		/* out: of the request; ACCEPT makes it a connection, destroying it rejects */
	__aligned_u64 timeout_ns;	/* in: 0 does not sleep; ETIME */
	struct rust_ulp_addr peer;	/* out */
	struct rust_ulp_addr local;	/* out */
	struct rust_ulp_conn_param param;	/* out: what the peer asks for, as seen from here */
	__u32 peer_qp_num;	/* out */
	__u32 private_len;	/* out: bytes; the manager pads with zeros */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* out */
};

/*
 * ACCEPT and CONNECT take a queue pair in RESET and leave it in RTS, or fail and leave it in RESET.
 * Receives can be posted before: the queue pair may be in INIT as well, and is left
 * there, with its receives, when the command fails. But not when the two ends have
 * answered each other already: then the queue pair is in RESET, and its receives are flushed.
 *
 * When ACCEPT has to give up a request, its handle is gone, as after REJECT: with
 * ECONNRESET, ETIMEDOUT, EINTR, and what the connection manager itself returns. After any
 * other error the request is as it was.
 *
 * A connection needs its queue pair until its own handle is destroyed, which disconnects.
 *
 * On iWARP the queue pair is in INIT. A command that fails leaves it there until the peer
 * was asked, or the request was answered; after that, whatever it fails with, in ERR, its receives flushed. Who
 * accepts must not send before something has come from the peer (RFC 5044 7.1). Of the
 * parameters there are the reads each way and @access_flags, which siw does not look at; the others are
 * ignored, and read 0. @peer_qp_num is 0; @reject_reason is 28 when the peer's answer had private data,
 * else 0. Sockets are made in the network namespace of the caller, which should be the opener's. While TCP
 * connects, a signal ends CONNECT, but neither @timeout_ns nor the end of the device (net.ipv4.tcp_syn_retries).
 * There is no TIMEWAIT_EXIT.
 */
struct rust_ulp_accept {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 request;		/* in: handle; the connection's from now on */
	__u32 qp;		/* in: handle */
	__aligned_u64 timeout_ns;	/* in: until the peer has answered; ETIMEDOUT */
	struct rust_ulp_conn_param param;	/* in; out: what was agreed */
	__u32 pad;
	__u32 private_len;	/* in: bytes, at most RUST_ULP_CM_REP_PRIVATE_MAX */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* in */
};

struct rust_ulp_reject {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 request;		/* in: handle; is gone afterwards */
	__u32 private_len;	/* in: bytes, at most RUST_ULP_CM_REJ_PRIVATE_MAX */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* in */
};

struct rust_ulp_connect {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 qp;		/* in: handle */
	__u32 handle;		/* out: of the connection */
	__aligned_u64 timeout_ns;	/* in: for all of it; ETIMEDOUT */
	struct rust_ulp_addr dst;	/* in */
	struct rust_ulp_addr src;	/* in: @family 0 for the route's; out: what was used */
	struct rust_ulp_conn_param param;	/* in; out: what was agreed */
	__u32 private_len;	/* in: bytes, at most RUST_ULP_CM_REQ_PRIVATE_MAX; out: of the peer's answer */
	__u32 peer_qp_num;	/* out */
	__u32 reject_reason;	/* out, valid when the command fails too: 0, or IBA 12.6.7.2; 28 is the peer's REJECT */
	__u32 resolve_us;	/* out: microseconds until the address was resolved, */
	__u32 route_us;		/* ... the route, */
	__u32 connect_us;	/* ... and the peer had answered */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* in; out, valid when the command fails too: the peer's */
};

struct rust_ulp_disconnect {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 conn;		/* in: handle; its queue pair goes to ERR and flushes */
	__u32 pad;
};

/* rust_ulp_conn_query.state */
#define RUST_ULP_CONN_LISTENING		1
#define RUST_ULP_CONN_REQUESTED		2	/* a request that waits for ACCEPT or REJECT */
#define RUST_ULP_CONN_ESTABLISHED	3
#define RUST_ULP_CONN_DISCONNECTED	4
#define RUST_ULP_CONN_TIMEWAIT_OVER	5	/* and late packets are gone */

struct rust_ulp_conn_query {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 conn;		/* in: handle of a connection, request or listener */
	__u32 state;		/* RUST_ULP_CONN_* */
	struct rust_ulp_addr local;
	struct rust_ulp_addr peer;
	struct rust_ulp_conn_param param;	/* as agreed */
	__u32 qp;		/* handle, or 0 */
	__u32 peer_qp_num;
	__u32 waiting;		/* of a listener: requests not taken */
	__u32 backlog;		/* of a listener */
	__u32 rejected;		/* of a listener: requests beyond @backlog */
	__u32 pad;
};

/* ---- SUBMIT -------------------------------------------------------------- */

/* rust_ulp_wr.opcode: as enum ib_wr_opcode */
#define RUST_ULP_WR_RDMA_WRITE			0
#define RUST_ULP_WR_RDMA_WRITE_WITH_IMM		1
#define RUST_ULP_WR_SEND			2
#define RUST_ULP_WR_SEND_WITH_IMM		3
#define RUST_ULP_WR_RDMA_READ			4
#define RUST_ULP_WR_ATOMIC_CMP_AND_SWP		5
#define RUST_ULP_WR_ATOMIC_FETCH_AND_ADD	6
#define RUST_ULP_WR_SEND_WITH_INV		9
#define RUST_ULP_WR_RECV			128

/* rust_ulp_wr.flags */
#define RUST_ULP_SEND_FENCE	(1U << 0)	/* after the reads and atomics before it */
#define RUST_ULP_SEND_SIGNALED	(1U << 1)	/* makes a completion when it succeeds */
#define RUST_ULP_SEND_SOLICITED	(1U << 2)
#define RUST_ULP_SEND_INLINE	(1U << 3)	/* the data is taken when SUBMIT is called */

/* A piece of local memory. @buffer 0, allowed with INLINE: @offset is an address. */
struct rust_ulp_sge {
	__u32 buffer;		/* handle */
	__u32 length;		/* bytes */
	__aligned_u64 offset;	/* bytes into the buffer */
};

struct rust_ulp_wr {
	__aligned_u64 user_data;	/* comes back in the completion */
	__u32 qp;		/* handle; of a shared receive queue, with RECV */
	__u8 opcode;		/* RUST_ULP_WR_* */
	__u8 num_sge;		/* 0, 1: @sge; more: @sge.offset is the address of an array of
				 * rust_ulp_sge, @sge.buffer and @sge.length are 0 */
	__u16 flags;		/* RUST_ULP_SEND_* */
	__aligned_u64 remote_addr;
	__u32 rkey;
	__u32 imm_data;		/* immediate data, or the rkey to invalidate */
	struct rust_ulp_sge sge;
	__aligned_u64 arg0;	/* atomics: compare or add; UD: handle of the address | qp_num << 32 */
	__aligned_u64 arg1;	/* atomics: swap; UD: qkey, the queue pair's own if bit 31 is set */
	/* The first version ends here: RUST_ULP_WR_SIZE_V1. */
	__aligned_u64 timeout_ns;	/* 0, or how long from the post on it may take, rounded up to 2^20 ns: else
				 * RUST_ULP_WC_STATUS_TIMEOUT; at most RUST_ULP_TIMEOUT_MAX_NS */
	__aligned_u64 reserved;
};

#define RUST_ULP_WR_SIZE_V1	64

/*
 * Posts @nr_wrs requests, then waits until @min_complete completions are unread
 * in the ring of @cq.
 *
 * All requests are checked before the first is posted: when one is refused, the
 * command fails with its errno, @bad_index says which, and none was posted. Only
 * the device itself can refuse in the middle; then @posted is less than @nr_wrs,
 * the command fails with the device's errno, and @bad_index equals @posted.
 * Requests for one queue pair are posted in the order of the array.
 *
 * EAGAIN: a queue, or the completion queue that must have room for every request
 * in flight, is full. Reap and try again.
 *
 * The wait does not fail the command: @wait_error is 0, -ETIME, -EINTR (also when an
 * io_uring of the task has something for it), or -EIO when the device's own completion
 * queue has failed (RUST_ULP_CQ_ERROR), and what was posted stays posted. ENODEV when the
 * device is removed meanwhile.
 */
struct rust_ulp_submit {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__aligned_u64 wrs;	/* in: address of an array of rust_ulp_wr */
	__u32 nr_wrs;		/* in: may be 0 */
	__u32 wr_size;		/* in: sizeof one entry as the caller knows it */
	__u32 cq;		/* in: handle, or 0 not to wait */
	__u32 min_complete;	/* in: 0 to @entries of the queue */
	__aligned_u64 timeout_ns;	/* in: 0 does not sleep, at most RUST_ULP_TIMEOUT_MAX_NS */
	__u32 posted;		/* out, valid when the command fails too */
	__u32 bad_index;	/* out, valid when the command fails */
	__u32 completed;	/* out: unread completions in the ring of @cq */
	__s32 wait_error;	/* out */
};

/*
 * Completes requests in flight with RUST_ULP_WC_STATUS_CANCELED: those of a queue pair or
 * shared receive queue whose @user_data is that, or all of them. What has completed
 * already is not touched; @canceled may be 0. A send request that is not signaled, and has no
 * deadline, counts as in flight until a later one has completed.
 */
#define RUST_ULP_CANCEL_ALL	(1U << 0)	/* whatever its @user_data; that is 0 then */

struct rust_ulp_cancel {
	__u32 size;
	__u32 flags;		/* in: RUST_ULP_CANCEL_* */
	__u32 queue;		/* in: handle */
	__u32 canceled;		/* out: how many */
	__aligned_u64 user_data;	/* in */
};

/*
 * Has an eventfd signalled for each completion that goes into the ring of @cq, and when the
 * device goes. A queue has one: EBUSY for another; -1 takes it away.
 */
struct rust_ulp_cq_eventfd {
	__u32 size;
	__u32 flags;		/* in: 0 */
	__u32 cq;		/* in: handle */
	__s32 fd;		/* in; EBADF, EINVAL when it is no eventfd */
};

/* ---- io_uring ------------------------------------------------------------ */

/*
 * The same requests by IORING_OP_URING_CMD on the same file; cmd_op is one of these. What is
 * asked for stands in the entry's command bytes, as the structs below. Pads are
 * zero, as everywhere.
 *
 * The completion's res:
 *   0 or more   success: the bytes of a receive, read or atomic, else 0
 *   -errno      refused as SUBMIT would have: nothing was posted
 *   below RUST_ULP_URING_FAILED   it completed with a status other than success
 * All that are negative end a chain of linked entries. With IORING_SETUP_CQE32 the first of the
 * two further words says, of a request: @imm_data, and in the upper half @opcode | @flags << 8 of
 * what its rust_ulp_cqe would be.
 *
 * Such requests take no room in a completion ring, and make no entry there, but for
 * RUST_ULP_URING_RING; yet a completion queue has no more requests in flight than @entries,
 * however they came. An entry that is not signaled is as good as one that is.
 *
 * IORING_OP_ASYNC_CANCEL does not reach them, and IORING_OP_LINK_TIMEOUT neither: that is what
 * RUST_ULP_URING_CANCEL and @timeout_ns are for. When the ring or the process ends, they are canceled.
 */

/* One request. Needs IORING_SETUP_SQE128: the 80 bytes are a struct rust_ulp_wr. */
#define RUST_ULP_URING_REQUEST	_IO(RUST_ULP_IOC_MAGIC, 0x80)
/* Requests in memory: struct rust_ulp_uring_batch. */
#define RUST_ULP_URING_BATCH	_IO(RUST_ULP_IOC_MAGIC, 0x81)
/* As CANCEL: struct rust_ulp_uring_cancel; res is how many. */
#define RUST_ULP_URING_CANCEL	_IO(RUST_ULP_IOC_MAGIC, 0x82)
/* Completions of a queue as a stream: struct rust_ulp_uring_stream. */
#define RUST_ULP_URING_STREAM	_IO(RUST_ULP_IOC_MAGIC, 0x83)

/* res of a request that completed with that enum ib_wc_status, or RUST_ULP_WC_STATUS_* */
#define RUST_ULP_URING_FAILED		(-1024)
#define RUST_ULP_URING_RES(status)	(RUST_ULP_URING_FAILED - (int)(status))

/* rust_ulp_uring_batch.flags */
#define RUST_ULP_URING_RING	(1U << 0)	/* requests make entries in completion rings, too, as by SUBMIT */

/*
 * The requests are posted as SUBMIT does, all or none. The entry completes when all of
 * them have, with their number, or with the status of the one that failed first; the first further
 * word is its index then. A batch of one completes as that request.
 */
struct rust_ulp_uring_batch {
	__aligned_u64 wrs;	/* address of an array of rust_ulp_wr */
	__u16 nr_wrs;		/* from 1 */
	__u16 wr_size;
	__u32 flags;		/* RUST_ULP_URING_RING */
};

struct rust_ulp_uring_cancel {
	__aligned_u64 user_data;
	__u32 queue;		/* handle */
	__u32 flags;		/* RUST_ULP_CANCEL_* */
};

/*
 * Multishot (IORING_URING_CMD_MULTISHOT), with a group of provided buffers: completions in the ring
 * of @cq are copied into them, whole struct rust_ulp_cqe, as many as there are and fit; res
 * is bytes. The kernel is the ring's reader from the first time on, and does not look at its head any
 * more. Ends with -ENOBUFS when there is no buffer, and can be begun again: no completion is
 * lost. One at a time: EBUSY. -ENODEV when the device is gone, -EBADF when the queue was destroyed.
 */
struct rust_ulp_uring_stream {
	__u32 cq;		/* handle */
	__u32 flags;		/* 0 */
	__aligned_u64 reserved;
};

#endif /* _UAPI_RUST_ULP_H */
