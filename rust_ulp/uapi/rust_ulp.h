/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * The ABI of /dev/rust_ulp: one-sided RDMA for programs, without libibverbs and provider libraries.
 * Uverbs leaves requests to a library for each driver; here one struct is a request for any device,
 * local memory is a handle and an offset that the kernel checks (no lkey leaves it), and the path
 * from program to driver is small enough to audit and to learn from, at a system call per batch.
 *
 * Rules for every command:
 *
 *  - The request number is _IO(RUST_ULP_IOC_MAGIC, nr). The argument is a struct that begins with
 *    its @size in the caller's version of this header. Members that this version lacks count as
 *    zero, and are not written back. Bytes that the kernel's version lacks are zero.
 *  - Padding (@pad, @reserved) is zero, and so is a @flags without a comment.
 *  - A handle identifies an object of one open file. It is a number from 1 to 2^31 - 1.
 *  - A command that fails changes nothing, with two exceptions. ATTACH, CANCEL, QP_MODIFY and
 *    SUBMIT return EFAULT after they have taken effect if the kernel can write the beginning of the
 *    struct but not its end. QP_MODIFY leaves the queue pair in ERR if the driver fails midway.
 *  - @timeout_ns of a command counts from its wait, that of a work request from its post. 0 leaves
 *    no time: a wait ends at once, and a work request is refused with EINVAL.
 *    RUST_ULP_TIMEOUT_INFINITE sets no limit. If the time runs out, a wait ends with ETIME, and a
 *    work request with RUST_ULP_WC_STATUS_TIMEOUT; ETIMEDOUT comes from the network.
 *  - A signal ends a wait with EINTR. A command that has slept writes to @timeout_ns what is left
 *    of it, unless it is infinite, so that it can be repeated with the same struct.
 *  - Memory is charged to the memory cgroup of the caller, except what a driver allocates.
 *  - Numbers are in host byte order. GIDs and GUIDs are bytes in network byte order.
 *  - Version 3 is final: constants and members stay, the same for callers of 32 bits. Structs that
 *    begin with @size, or whose size the caller passes, grow at their end; padding becomes members.
 *  - An mmap offset is opaque, below 2^44, and a multiple of 65536. A part of an object may be
 *    mapped that begins at a multiple of the page size.
 *
 * Beside each member stand [way; values; errno] and its meaning. The kernel reads in members, and
 * writes out members. Another value fails with that errno (of two: below, above the values), else
 * with ERANGE for a range, and with EINVAL for a list, a constant or a flag. A device may do less.
 *
 * Errnos that follow from the members of a command; each command names its own besides:
 *
 *  any command:
 *   E2BIG       bytes that the kernel lacks are not zero; a struct or an entry exceeds 4096 bytes
 *   EFAULT      the struct, or memory that an address in it points to, cannot be read or written
 *   EINVAL      @size is below the first version's; a value is not defined; padding is not zero
 *   ENODEV      the device was removed: close the file
 *   ENOMEM      no memory, or over the limit of the memory cgroup
 *   ENOTTY      there is no such command
 *   ENXIO       the file is not attached; not of QUERY, DEVICE_LIST and ATTACH
 *  a command that takes a handle:
 *   ENOENT      the file has no object with this handle, or another thread destroys it
 *   EBADFD      the object has another type
 *  a command that returns a new handle:
 *   EDQUOT      the rdma cgroup or the limit of the user's objects (module parameter
 *               max_user_objects) allows no more; the file's queues have @max_entries entries, or
 *               the user's weigh more than max_user_queues. CAP_SYS_RESOURCE exempts a user
 *   EMFILE      the file has @max_objects objects
 *  a command that makes a buffer:
 *   EADDRNOTAVAIL  a registration needs a port with an address, and the device has none
 *   EINTR       the process is being killed
 *   ENOMEM      over RLIMIT_MEMLOCK without CAP_IPC_LOCK
 *   EOPNOTSUPP  the device has no fast registration
 *   ERANGE      @length exceeds @max_buffer, or the buffer needs more keys than the device has
 *  AH_CREATE, QP_CREATE and SRQ_CREATE:
 *   EOPNOTSUPP  the device has no such objects
 *  CONN_WAIT and GET_REQUEST:
 *   EINTR, ETIME  a signal arrived, or the time ran out
 *  a command that takes the path to a peer:
 *   EHOSTUNREACH, ENETUNREACH  there is no route, or a local one without an interface
 *   EINVAL      the address has no GRH on Ethernet; one of its GIDs is IPv4, the other IPv6
 *   ENOENT      the port or GID index does not exist, or this file may not use it
 *   ETIMEDOUT   the link-layer address was not resolved in time
 *  a command that begins a connection:
 *   EISCONN     the queue pair has a connection, or the request was accepted
 *   EHOSTUNREACH, ENETUNREACH  no path leads to the peer
 *   EOPNOTSUPP  the queue pair is not RC
 *   EPROTO      the queue pair is neither in RESET nor in INIT
 *  a command of io_uring:
 *   EBADF, ECANCELED, EOPNOTSUPP  no file, an earlier link failed, a file without commands
 *
 * A command also passes on any other errno of the driver or of the connection manager.
 */
#ifndef _UAPI_RUST_ULP_H
#define _UAPI_RUST_ULP_H

#include <linux/types.h>
#include <linux/ioctl.h>

#define RUST_ULP_ABI_VERSION	3	/* rust_ulp_query.abi_version */
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
#define RUST_ULP_IOC_AH_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x15)
#define RUST_ULP_IOC_SRQ_CREATE		_IO(RUST_ULP_IOC_MAGIC, 0x16)
#define RUST_ULP_IOC_SRQ_MODIFY		_IO(RUST_ULP_IOC_MAGIC, 0x17)
#define RUST_ULP_IOC_SRQ_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x18)
#define RUST_ULP_IOC_DESTROY		_IO(RUST_ULP_IOC_MAGIC, 0x19)
#define RUST_ULP_IOC_SUBMIT		_IO(RUST_ULP_IOC_MAGIC, 0x20)
#define RUST_ULP_IOC_CANCEL		_IO(RUST_ULP_IOC_MAGIC, 0x21)
#define RUST_ULP_IOC_CQ_EVENTFD		_IO(RUST_ULP_IOC_MAGIC, 0x22)
#define RUST_ULP_IOC_LISTEN		_IO(RUST_ULP_IOC_MAGIC, 0x30)
#define RUST_ULP_IOC_GET_REQUEST	_IO(RUST_ULP_IOC_MAGIC, 0x31)
#define RUST_ULP_IOC_ACCEPT		_IO(RUST_ULP_IOC_MAGIC, 0x32)
#define RUST_ULP_IOC_REJECT		_IO(RUST_ULP_IOC_MAGIC, 0x33)
#define RUST_ULP_IOC_CONNECT		_IO(RUST_ULP_IOC_MAGIC, 0x34)
#define RUST_ULP_IOC_CONN_WAIT		_IO(RUST_ULP_IOC_MAGIC, 0x35)
#define RUST_ULP_IOC_DISCONNECT		_IO(RUST_ULP_IOC_MAGIC, 0x36)
#define RUST_ULP_IOC_CONN_QUERY		_IO(RUST_ULP_IOC_MAGIC, 0x37)
#define RUST_ULP_IOC_BUFFER_CREATE	_IO(RUST_ULP_IOC_MAGIC, 0x40)
#define RUST_ULP_IOC_BUFFER_REGISTER	_IO(RUST_ULP_IOC_MAGIC, 0x41)
#define RUST_ULP_IOC_BUFFER_IMPORT	_IO(RUST_ULP_IOC_MAGIC, 0x42)
#define RUST_ULP_IOC_BUFFER_QUERY	_IO(RUST_ULP_IOC_MAGIC, 0x43)
#define RUST_ULP_IOC_GRANT_CREATE	_IO(RUST_ULP_IOC_MAGIC, 0x44)
#define RUST_ULP_IOC_GRANT_QUERY	_IO(RUST_ULP_IOC_MAGIC, 0x45)

#define RUST_ULP_NAME_MAX	64	/* IB_DEVICE_NAME_MAX, including the NUL */
#define RUST_ULP_TIMEOUT_INFINITE	0xffffffffffffffffULL	/* no limit, but by signals */
#define RUST_ULP_CQE_SIZE_V1	64U	/* smallest size of struct rust_ulp_cqe */
#define RUST_ULP_DEVICE_QUERY_SIZE_V1	248U	/* smallest size of struct rust_ulp_device_query */
#define RUST_ULP_EVENT_SIZE_V1	32U	/* smallest size of struct rust_ulp_event */
#define RUST_ULP_WR_SIZE_V1	72U	/* smallest size of struct rust_ulp_wr */

/* ---- The module and its devices ---------------------------------------- */

/* Describes the module. */
struct rust_ulp_query {
	__u32 size, flags;
	__u32 abi_version;		/* [out] RUST_ULP_ABI_VERSION of the module */
	__u32 max_objects;		/* [out; 1 to 65536] maximum objects of an open file */
	__aligned_u64 max_buffer;	/* [out; 2^30] maximum bytes of a buffer */
	__u32 max_batch;		/* [out; 1024] maximum @nr_wrs of SUBMIT */
	__u32 max_cq_entries;		/* [out; 32768] maximum @entries of CQ_CREATE */
	__u32 max_queue_depth;		/* [out; 16384] maximum requests of a queue */
	__u32 max_sge;			/* [out; 16] maximum elements of a request */
	__u32 max_inline;		/* [out; 512] maximum inline bytes of a request */
	__u32 max_entries;		/* [out; 2^18, or a parameter] of all queues */
	__u32 event_size;		/* [out; a multiple of 8] maximum @event_size of ATTACH */
	__u32 cqe_size;			/* [out; a multiple of 8] maximum @cqe_size of CQ_CREATE */
};

/* rust_ulp_device_entry.flags */
#define RUST_ULP_DEVICE_DEFAULT		(1U << 0)	/* ATTACH without a name selects it */
#define RUST_ULP_DEVICE_LOCAL_NET	(1U << 1)	/* its netdev is in the opener's netns */

/* Describes one device, in the array of DEVICE_LIST. */
struct rust_ulp_device_entry {
	__u8 name[RUST_ULP_NAME_MAX];	/* [out; text, NUL-terminated] name of the device */
	__u8 node_guid[8];		/* [out; 64 bits, network order] node GUID */
	__u32 index;			/* [out; number] index, as `rdma dev` shows it */
	__u32 flags;			/* [out] RUST_ULP_DEVICE_* */
	__u32 phys_ports;		/* [out; ports] number of physical ports */
	__u32 pad;
};

/* Lists the devices that this file may attach to. @entry_size counts with a @capacity. */
struct rust_ulp_device_list {
	__u32 size, flags;
	__aligned_u64 entries;	/* [in; address] array of @capacity struct rust_ulp_device_entry */
	__u32 entry_size; /* [in; to 4096; EINVAL, E2BIG] sizeof(struct rust_ulp_device_entry) */
	__u32 capacity;		/* [in; entries] length of that array */
	__u32 count;		/* [out; entries] number of devices; may exceed @capacity */
	__u32 pad;
};

/*
 * Binds this open file to one device, once. The kernel prefers a GID of RoCE v2 with an IPv4
 * address, of the opener's network namespace. read() returns records of @event_size bytes, from
 * RUST_ULP_EVENT_SIZE_V1 to the size that QUERY returns.
 *  EALREADY    the file is attached
 *  EDQUOT      the rdma cgroup allows no more handles, or the user has too many objects and files
 *  ENOENT      there is no device, none of that name, or none that this file may use
 *  EOPNOTSUPP  the device is iWARP, or cannot register memory by fast registration (FRWR)
 */
struct rust_ulp_attach {
	__u32 size, flags;
	__u8 name[RUST_ULP_NAME_MAX];	/* [in, out; text with NUL; EINVAL] empty: the default */
	__u32 index;			/* [out; number] index, as `rdma dev` shows it */
	__u32 phys_ports;		/* [out; ports] number of physical ports */
	__u32 port;			/* [out; 1 to phys_ports] port of the preferred GID */
	__u32 gid_index;		/* [out; index, or ~0] preferred GID; ~0: none */
	__u32 event_size;		/* [in; EPROTONOSUPPORT] sizeof(struct rust_ulp_event) */
	__u32 pad;
};

/* rust_ulp_device_query.caps */
#define RUST_ULP_CAP_SRQ		(1ULL << 0)
#define RUST_ULP_CAP_VIRT_DMA		(1ULL << 1)	/* a software device, without DMA */
/* rust_ulp_device_query.atomic_cap, as enum ib_atomic_cap */
#define RUST_ULP_ATOMIC_NONE	0
#define RUST_ULP_ATOMIC_HCA	1	/* only with other atomics of this device */
#define RUST_ULP_ATOMIC_GLOB	2	/* also with other devices and with CPUs */
/* rust_ulp_qp_create.qp_type and rust_ulp_qp_query.qp_type, as enum ib_qp_type */
#define RUST_ULP_QPT_RC		2
#define RUST_ULP_QPT_UC		3
#define RUST_ULP_QPT_UD		4

/* Describes the device. */
struct rust_ulp_device_query {
	__u32 size, flags;
	__u8 name[RUST_ULP_NAME_MAX];	/* [out; text, NUL-terminated] name of the device */
	__u8 fw_ver[32];		/* [out; text, NUL-terminated] firmware version */
	__u8 node_guid[8];		/* [out; 64 bits, network order] node GUID */
	__u8 sys_image_guid[8];		/* [out; 64 bits, network order] system image GUID */
	__aligned_u64 max_mr_size;	/* [out; bytes] maximum length of a memory region */
	__aligned_u64 page_size_cap;	/* [out; bits] bit n: pages of 2^n bytes */
	__aligned_u64 caps;		/* [out] RUST_ULP_CAP_* */
	__aligned_u64 rc_send_ops;	/* [out; bits] bit n: opcode n (RUST_ULP_WR_*) of RC */
	__aligned_u64 uc_send_ops;	/* [out; bits] the same for UC */
	__aligned_u64 ud_send_ops;	/* [out; bits] the same for UD */
	__u32 vendor_id;		/* [out; 24 bits] IEEE vendor identifier */
	__u32 vendor_part_id;		/* [out; number] part identifier, assigned by the vendor */
	__u32 hw_ver;			/* [out; number] hardware version */
	__u32 phys_ports;		/* [out; ports] number of physical ports */
	__u32 max_qp;			/* [out; count] maximum number of queue pairs */
	__u32 max_qp_wr;		/* [out; requests] maximum requests of a queue */
	__u32 max_send_sge;		/* [out; elements] maximum elements of a send request */
	__u32 max_recv_sge;		/* [out; elements] maximum elements of a receive request */
	__u32 max_cq;			/* [out; count] maximum number of completion queues */
	__u32 max_cqe;			/* [out; entries] maximum entries of a completion queue */
	__u32 max_mr;			/* [out; count] maximum number of memory regions */
	__u32 max_pd;			/* [out; count] maximum number of protection domains */
	__u32 max_qp_rd_atom;		/* [out; count] maximum reads and atomics of the peer */
	__u32 max_qp_init_rd_atom;	/* [out; count] maximum reads and atomics of this side */
	__u32 max_srq;			/* [out; count] maximum number of shared receive queues */
	__u32 max_srq_wr;		/* [out; requests] maximum requests of such a queue */
	__u32 max_fast_reg_pages;	/* [out; pages] maximum pages of a key */
	__u32 num_comp_vectors;		/* [out; count] completion vectors, for CQ_CREATE */
	__u32 local_ca_ack_delay;	/* [out; exponent] local CA ACK delay: 4.096 us * 2^n */
	__u32 atomic_cap;	/* [out] RUST_ULP_ATOMIC_*; @rc_send_ops: if there are any */
	__aligned_u64 device_cap_flags;	/* [out; bits] enum ib_device_cap_flags of the driver */
	__u32 max_sge_rd;		/* [out; elements] maximum elements of a read request */
	__u32 max_srq_sge;		/* [out; elements] maximum elements of a shared receive */
};

/* rust_ulp_port_query.link_layer, as enum rdma_link_layer */
#define RUST_ULP_LINK_UNSPECIFIED	0
#define RUST_ULP_LINK_INFINIBAND	1
#define RUST_ULP_LINK_ETHERNET		2

/* Describes a port. */
struct rust_ulp_port_query {
	__u32 size, flags;
	__u32 port;		/* [in; 1 to phys_ports; ENOENT] port number */
	__u32 state;		/* [out; 1 to 5] enum ib_port_state: 4 is active */
	__u32 phys_state;	/* [out; 1 to 7] enum ib_port_phys_state */
	__u32 max_mtu;		/* [out; 256 to 4096] maximum MTU in bytes */
	__u32 active_mtu;	/* [out; 256 to 4096] active MTU in bytes */
	__u32 link_layer;	/* [out] RUST_ULP_LINK_* */
	__u32 lid;		/* [out; 16 bits] local identifier */
	__u32 sm_lid;		/* [out; 16 bits] LID of the subnet manager */
	__u32 lmc;		/* [out; 0 to 7] LID mask control */
	__u32 sm_sl;		/* [out; 0 to 15] service level of the subnet manager */
	__u32 max_msg_sz;	/* [out; bytes] maximum length of a message */
	__u32 gid_tbl_len;	/* [out; entries] size of the GID table */
	__u32 pkey_tbl_len;	/* [out; entries] size of the P_Key table */
	__u32 active_width;	/* [out; enum] enum ib_port_width */
	__u32 active_speed;	/* [out; enum] enum ib_port_speed */
	__u32 port_cap_flags;	/* [out; bits] capability mask of the port */
	__u32 bad_pkey_cntr;	/* [out; count] packets with a wrong P_Key */
	__u32 qkey_viol_cntr;	/* [out; count] packets with a wrong Q_Key */
	__u32 ifindex;		/* [out; number] netdev in the opener's netns, else 0 */
	__u32 pad;
};

/* rust_ulp_gid_entry.gid_type */
#define RUST_ULP_GID_IB		0
#define RUST_ULP_GID_ROCE_V1	1
#define RUST_ULP_GID_ROCE_V2	2
/* rust_ulp_gid_entry.flags */
#define RUST_ULP_GID_IPV4	(1U << 0)	/* ::ffff:a.b.c.d */
#define RUST_ULP_GID_LINK_LOCAL	(1U << 1)	/* fe80::/10 */
#define RUST_ULP_GID_LOCAL_NET	(1U << 2)	/* its netdev is in the opener's netns */
#define RUST_ULP_GID_PREFERRED	(1U << 3)	/* ATTACH returns it */

/* Describes one GID, in the array of GID_QUERY. */
struct rust_ulp_gid_entry {
	__u8 gid[16];		/* [out; 128 bits, network order] GID */
	__u32 index;		/* [out; number] index in the GID table */
	__u32 ifindex;		/* [out; number] index of the netdev with GID_LOCAL_NET, else 0 */
	__u32 gid_type;		/* [out] RUST_ULP_GID_IB, RUST_ULP_GID_ROCE_V1 or _V2 */
	__u32 flags;		/* [out] RUST_ULP_GID_IPV4 and the other bits */
	__u8 ifname[16];	/* [out; text with NUL] name of the netdev with GID_LOCAL_NET */
};

/* Lists the GIDs of a port. A GID of a netdev outside the opener's netns is hidden and unusable. */
struct rust_ulp_gid_query {
	__u32 size, flags;
	__aligned_u64 entries;	/* [in; address] array of @capacity struct rust_ulp_gid_entry */
	__u32 entry_size;	/* [in; to 4096; EINVAL, E2BIG] sizeof(struct rust_ulp_gid_entry) */
	__u32 capacity;		/* [in; entries] length of that array */
	__u32 port;		/* [in; 1 to phys_ports; ENOENT] port number */
	__u32 count;		/* [out; entries] number of GIDs; may exceed @capacity */
};

/* Returns one P_Key of a port. */
struct rust_ulp_pkey_query {
	__u32 size, flags;
	__u32 port;	/* [in; 1 to phys_ports; ENOENT] port number */
	__u32 index;	/* [in; below pkey_tbl_len; ENOENT] index in the P_Key table */
	__u32 pkey;	/* [out; 16 bits] P_Key */
	__u32 pad;
};

/* ---- Objects ------------------------------------------------------------- */

/* Creates a protection domain. */
struct rust_ulp_pd_create {
	__u32 size, flags;
	__u32 handle;	/* [out; handle] new protection domain */
	__u32 pad;
};

/* rust_ulp_cq_create.delivery: the context that copies completions from the device to the ring */
#define RUST_ULP_DELIVER_DEFAULT	0	/* the module's parameter "delivery" */
#define RUST_ULP_DELIVER_WORKQUEUE	1	/* a thread that waits, else a kernel worker */
#define RUST_ULP_DELIVER_SOFTIRQ	2	/* the softirq of the CPU that saw the completion */

/*
 * Creates a completion queue. A thread that waits for it polls the queue of the device for
 * @busy_poll_us, then arms it and sleeps; of several threads, one polls. If that one gets no CPU
 * time, the kernel worker takes over, which has a high priority, and which cpu.max of the caller
 * does not limit. @cqe_size is a multiple of 8 from RUST_ULP_CQE_SIZE_V1 to that of QUERY.
 *  EINVAL      @busy_poll_us is not 0, and the delivery not WORKQUEUE
 *  EPERM       without CAP_SYS_NICE: softirq without the module's parameter user_softirq=1 or
 *              delivery=2, or a @comp_vector but 0 with the parameter user_vector=0
 */
struct rust_ulp_cq_create {
	__u32 size, flags;
	__u32 entries;			/* [in, out; 1 to 32768] length; out: a power of two */
	__u32 delivery;			/* [in, out] RUST_ULP_DELIVER_*; out: chosen */
	__u32 comp_vector;		/* [in; below num_comp_vectors] completion vector */
	__u32 handle;			/* [out; handle] new completion queue */
	__aligned_u64 mmap_offset;	/* [out; for mmap(2)] where to map the ring */
	__aligned_u64 mmap_size;	/* [out; bytes] how much to map there */
	__u32 cqe_size;			/* [in; EPROTONOSUPPORT] sizeof(struct rust_ulp_cqe) */
	__u32 busy_poll_us;		/* [in; 0 to 10000] polling time of a waiter */
};

#define RUST_ULP_CQ_ENTRIES_OFFSET	4096	/* of the first completion in a ring */
/* rust_ulp_cq_ring.flags */
#define RUST_ULP_CQ_OVERFLOW	(1U << 0)	/* @dropped completions did not fit */
#define RUST_ULP_CQ_DEAD	(1U << 1)	/* the device was removed: no more completions */
#define RUST_ULP_CQ_ERROR	(1U << 2)	/* the device reported an error of the queue */

/*
 * Is the header of the ring of a completion queue, at @mmap_offset of CQ_CREATE. The kernel writes
 * all members but @head, from a copy of its own. The consumer loads @tail with acquire. While @head
 * differs from @tail, it copies the entry with the number @head modulo @entries and increments
 * @head. Then it stores @head with release.
 */
struct rust_ulp_cq_ring {
	__u32 head;		/* [in; runs over 2^32] next entry to read */
	__u32 pad0[15];
	__u32 tail;		/* [out; runs over 2^32] next entry that the kernel writes */
	__u32 flags;		/* [out] RUST_ULP_CQ_* */
	__u32 dropped;		/* [out; entries] number of completions that did not fit */
	__u32 entries;		/* [out; a power of two] length of the ring */
	__u32 entry_size;	/* [out; bytes] @cqe_size of CQ_CREATE */
	__u32 entries_offset;	/* [out; 4096] RUST_ULP_CQ_ENTRIES_OFFSET */
	__u32 pad1[10];
};

/* rust_ulp_cqe.opcode: as enum ib_wc_opcode */
#define RUST_ULP_WC_SEND		0
#define RUST_ULP_WC_RDMA_WRITE		1
#define RUST_ULP_WC_RDMA_READ		2
#define RUST_ULP_WC_COMP_SWAP		3
#define RUST_ULP_WC_FETCH_ADD		4
#define RUST_ULP_WC_RECV		128
#define RUST_ULP_WC_RECV_RDMA_WITH_IMM	129
/*
 * rust_ulp_cqe.status, besides enum ib_wc_status: the request has completed for the caller, but the
 * device may still process it, in memory of either side, and it keeps its place in the queue until
 * then. A receive may still consume a message, which is then lost.
 */
#define RUST_ULP_WC_STATUS_TIMEOUT	256	/* the deadline of the request has passed */
#define RUST_ULP_WC_STATUS_CANCELED	257	/* CANCEL ended the request */
/* rust_ulp_cqe.flags */
#define RUST_ULP_WC_GRH			(1U << 0)	/* UD: 40 bytes of GRH precede the data */
#define RUST_ULP_WC_WITH_IMM		(1U << 1)	/* @imm_data is immediate data */
#define RUST_ULP_WC_WITH_INVALIDATE	(1U << 2)	/* @imm_data is the invalidated rkey */

/* Describes one completion. */
struct rust_ulp_cqe {
	__aligned_u64 user_data;	/* [out; any] @user_data of the request */
	__aligned_u64 qp_user_data;	/* [out; any] @user_data of the queue pair, else 0 */
	__u32 qp;			/* [out; handle] queue pair, or srq that flushed it */
	__u32 qp_num;			/* [out; 24 bits] number of that queue pair */
	__u16 status;			/* [out; 0 to 22, 256, 257] enum ib_wc_status and below */
	__u8 opcode;			/* [out] RUST_ULP_WC_*; valid for failed requests as well */
	__u8 flags;			/* [out] RUST_ULP_WC_GRH and the other bits */
	__u32 vendor_err;		/* [out; the driver's] of a request that failed, else 0 */
	__u32 byte_len;			/* [out; bytes] of a receive, read or atomic, else 0 */
	__u32 imm_data;			/* [out; 32 bits] immediate data or key, by @flags */
	__u32 src_qp;			/* [out; 24 bits] UD: number of the sender's queue pair */
	__u32 port;			/* [out; 0 to phys_ports] UD: port of the receive */
	__u16 pkey_index;		/* [out; below pkey_tbl_len] UD, InfiniBand: P_Key index */
	__u16 slid;			/* [out; 16 bits] UD on InfiniBand: LID of the sender */
	__u8 sl;			/* [out; 0 to 15] UD on InfiniBand: service level */
	__u8 dlid_path_bits;		/* [out; 7 bits] UD on InfiniBand: path bits of the LID */
	__u8 pad[2];
	__u32 reserved[2];
};

#define RUST_ULP_QP_SIG_ALL	(1U << 0)	/* rust_ulp_qp_create.flags: signal all sends */

/*
 * Creates a queue pair.
 *  EINVAL      the driver takes no inline data of a send, or less
 *  EXDEV       @srq belongs to another protection domain, or @recv_cq is not its completion queue
 */
struct rust_ulp_qp_create {
	__u32 size;
	__u32 flags;			/* [in] RUST_ULP_QP_SIG_ALL */
	__u32 pd;			/* [in; handle] protection domain */
	__u32 send_cq;			/* [in; handle] completion queue of send requests */
	__u32 recv_cq;			/* [in; handle] of receives; may equal @send_cq */
	__u32 srq;			/* [in; handle or 0] shared receive queue, or 0 */
	__u32 qp_type;			/* [in] RUST_ULP_QPT_* */
	__u32 max_send_wr;		/* [in, out; 0 to 16384] send requests in flight, 0 as 1 */
	__u32 max_recv_wr;		/* [in, out; 0 to 16384] receives in flight; 0 with @srq */
	__u32 max_send_sge;		/* [in, out; 0 to 16] elements of a send, 0 as 1 */
	__u32 max_recv_sge;		/* [in, out; 0 to 16] elements of a receive; 0 with @srq */
	__u32 max_inline;		/* [in, out; 0 to 512] inline bytes of a send */
	__u32 handle;			/* [out; handle] new queue pair */
	__u32 qp_num;			/* [out; 24 bits] number of the queue pair */
	__aligned_u64 user_data;	/* [in; any] copied to its completions and events */
};

/* Describes the path to a peer. */
struct rust_ulp_ah_attr {
	__u8 dgid[16];		/* [in, out; 128 bits, network order] GID of the peer */
	__u32 flow_label;	/* [in, out; 0 to 2^20 - 1] flow label of the GRH */
	__u32 port_num;		/* [in, out; 1 to phys_ports; ENOENT] port number */
	__u8 sgid_index;	/* [in, out; below gid_tbl_len; ENOENT] index of the local GID */
	__u8 hop_limit;		/* [in, out; 0 to 255] of the GRH; 0: the route's */
	__u8 traffic_class;	/* [in, out; 0 to 255] of the GRH; DSCP in the upper 6 bits */
	__u8 sl;		/* [in, out; 0 to 15] service level */
	__u16 dlid;		/* [in, out; 16 bits] LID of the peer, on InfiniBand */
	__u8 is_global;		/* [in, out; 0, 1] 1: packets have a GRH; must be 1 on RoCE */
	__u8 static_rate;	/* [in, out; 0, 2 to 23, 25] enum ib_rate; 0: the port's */
	__u8 dmac[6];		/* [in, out; 0 or the peer's; EPERM] MAC address, network order */
	__u8 src_path_bits;	/* [in, out; 0 to 127] of the source LID, on InfiniBand */
	__u8 pad;
	__u16 dlid_high;	/* [in, out; 16 bits] upper half of the LID, on Omni-Path */
	__u16 pad2;
	__u32 reserved[5];
};

/* rust_ulp_qp_modify.*_mask, as enum ib_qp_attr_mask */
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
/* rust_ulp_qp_attr.qp_state and rust_ulp_qp_attr.cur_qp_state, as enum ib_qp_state */
#define RUST_ULP_QPS_RESET	0
#define RUST_ULP_QPS_INIT	1
#define RUST_ULP_QPS_RTR	2
#define RUST_ULP_QPS_RTS	3
#define RUST_ULP_QPS_SQD	4
#define RUST_ULP_QPS_SQE	5
#define RUST_ULP_QPS_ERR	6
/* rust_ulp_*.access and rust_ulp_*.access_flags, as enum ib_access_flags */
#define RUST_ULP_ACCESS_REMOTE_WRITE	(1U << 1)
#define RUST_ULP_ACCESS_REMOTE_READ	(1U << 2)
#define RUST_ULP_ACCESS_REMOTE_ATOMIC	(1U << 3)

/* Holds the attributes of a queue pair. */
struct rust_ulp_qp_attr {
	__u32 qkey;			/* [in, out; 32 bits; EPERM] bit 31 needs CAP_NET_RAW */
	__u32 rq_psn;			/* [in, out; 0 to 2^24 - 1] first PSN of the receive side */
	__u32 sq_psn;			/* [in, out; 0 to 2^24 - 1] first PSN of the send side */
	__u32 dest_qp_num;		/* [in, out; 0 to 2^24 - 1] the peer's queue pair */
	__u32 access_flags;		/* [in, out] RUST_ULP_ACCESS_REMOTE_* */
	__u32 port_num;			/* [in, out; 1 to phys_ports; ENOENT] port number */
	__u16 pkey_index;		/* [in, out; below pkey_tbl_len; ENOENT] P_Key index */
	__u8 qp_state;			/* [in, out] RUST_ULP_QPS_*: the new state */
	__u8 cur_qp_state;		/* [in, out] RUST_ULP_QPS_*: now, else EPROTO */
	__u8 path_mtu;			/* [in, out; 1 to 5; EINVAL] enum ib_mtu: 128 bytes * 2^n */
	__u8 timeout;			/* [in, out; 0 to 31] 4.096 us * 2^n; 0: none */
	__u8 retry_cnt;			/* [in, out; 0 to 7] retries after a timeout */
	__u8 rnr_retry;			/* [in, out; 0 to 7] retries after RNR NAK; 7: no limit */
	__u8 min_rnr_timer;		/* [in, out; 0 to 31] IBA table 45; 12 is 0.64 ms */
	__u8 max_rd_atomic;		/* [in, out; 0 to max_qp_init_rd_atom] reads of this side */
	__u8 max_dest_rd_atomic;	/* [in, out; 0 to max_qp_rd_atom] reads of the peer */
	__u8 en_sqd_async_notify;	/* [in, out; 0, 1] 1: an event says so */
	__u8 sq_draining;		/* [out; 0, 1] 1: in SQD, and not drained yet */
	__u8 pad[3];
	struct rust_ulp_ah_attr ah;	/* [in, out] path to the peer */
	__u32 reserved[6];
};

/*
 * Changes the state and the attributes of a queue pair. A connection has its queue pair from the
 * begin of ACCEPT or CONNECT until the connection is destroyed; until then only ERR may be set.
 *  EISCONN     a connection has the queue pair, and the new state is not ERR
 *  EPROTO      the IBA specification does not allow the transition, or not with these attributes:
 *              see @missing_mask and @extra_mask, where RUST_ULP_QP_STATE stands for the transition
 *              and RUST_ULP_QP_CUR_STATE for another state; or an address is given in RESET or ERR
 *  EOPNOTSUPP  the driver brings no queue pair back to RESET
 */
struct rust_ulp_qp_modify {
	__u32 size, flags;
	__u32 qp;			/* [in; handle] queue pair */
	__u32 attr_mask;		/* [in] RUST_ULP_QP_*: the members of @attr to use */
	__u32 missing_mask;		/* [out] RUST_ULP_QP_*: required */
	__u32 extra_mask;		/* [out] RUST_ULP_QP_*: not taken */
	struct rust_ulp_qp_attr attr;	/* [in, out] out: @ah.dmac, @ah.hop_limit */
};

/* Describes a queue pair. */
struct rust_ulp_qp_query {
	__u32 size, flags;
	__u32 qp;			/* [in; handle] queue pair */
	__u32 qp_num;			/* [out; 24 bits] number of the queue pair */
	__u32 qp_type;			/* [out] RUST_ULP_QPT_* */
	__u32 max_send_wr;		/* [out; requests] send requests that may be in flight */
	__u32 max_recv_wr;		/* [out; requests] receive requests that may be in flight */
	__u32 max_send_sge;		/* [out; elements] elements per send request */
	__u32 max_recv_sge;		/* [out; elements] elements per receive request */
	__u32 max_inline;		/* [out; bytes] inline bytes per send request */
	__u32 sends_in_flight;		/* [out; requests] send requests in flight */
	__u32 recvs_in_flight;		/* [out; requests] receive requests in flight */
	struct rust_ulp_qp_attr attr;	/* [out] attributes */
	__aligned_u64 user_data;	/* [out; any] @user_data of QP_CREATE */
};

#define RUST_ULP_NODE_ANY	(-1)	/* rust_ulp_buffer_create.node */

/*
 * Creates a buffer of zeroed pages that the kernel allocates, on @node if it can; RUST_ULP_NODE_ANY
 * leaves that to the memory policy of the task. With a @page_size of 0 the kernel chooses.
 *
 * A device limits the pages of a key, so a buffer may have several keys, each for @key_bytes of it.
 * An element of a request that crosses the border between two keys counts as two; every queue pair
 * takes one such element if the device supports two in such requests, but not in an atomic.
 *
 * The memory is charged to the process and its user, each within RLIMIT_MEMLOCK, until the buffer
 * is destroyed and unmapped. A user namespace shares its owner's limits unless that is global root.
 */
struct rust_ulp_buffer_create {
	__u32 size, flags;
	__u32 pd;			/* [in; handle] protection domain */
	__s32 node;			/* [in, out; node, or -1; ERANGE] out: of the first page */
	__aligned_u64 length;		/* [in, out; 1 to 2^30] length; out: of whole pages */
	__u32 page_size;		/* [in, out; 0, 4096, 2097152] 4096: the kernel's; 0: any */
	__u32 handle;			/* [out; handle] new buffer */
	__aligned_u64 mmap_offset;	/* [out; for mmap(2)] where to map the buffer */
	__aligned_u64 key_bytes;	/* [out; bytes] bytes of a key of the device */
	__u32 keys;			/* [out; count, from 1] number of keys */
	__u32 pad;
};

/*
 * rust_ulp_buffer_register.flags, rust_ulp_buffer_import.flags and
 * rust_ulp_buffer_query.buffer_flags
 */
#define RUST_ULP_BUFFER_READ_ONLY	(1U << 0)	/* requests and peers may only read it */

/*
 * Creates a buffer of the caller's memory, which stays pinned and charged until the buffer is
 * destroyed, also when the caller unmaps it. After fork() the buffer refers to the parent's memory.
 *  EAGAIN      the kernel could not pin the memory now: try again
 *  EFAULT      the memory is not mapped, or it is not writable and READ_ONLY is not set
 *  EOPNOTSUPP  the memory cannot be pinned for long: a file on most filesystems, device memory
 */
struct rust_ulp_buffer_register {
	__u32 size;
	__u32 flags;			/* [in] RUST_ULP_BUFFER_READ_ONLY */
	__u32 pd;			/* [in; handle] protection domain */
	__u32 handle;			/* [out; handle] new buffer */
	__aligned_u64 addr;		/* [in; address] first byte; need not be aligned */
	__aligned_u64 length;		/* [in; 1 to 2^30] length */
	__aligned_u64 key_bytes;	/* [out; bytes] bytes of a key; of the first maybe fewer */
	__u32 keys;			/* [out; count, from 1] number of keys */
	__u32 page_size;		/* [out; 4096 to 2097152] contiguous bytes */
};

/*
 * Creates a buffer of a dma-buf, to which the device is attached (untested on hardware), unless it
 * is a software device (RUST_ULP_CAP_VIRT_DMA).
 *  EACCES      the dma-buf is not open for writing, and READ_ONLY is not set
 *  EAGAIN      passed on from the exporter
 *  EINTR       a signal arrived while the exporter waited
 *  EOPNOTSUPP  software device: it is no system memory, or cannot be mapped into the kernel
 *  ERANGE      the range is empty, or not inside the dma-buf
 */
struct rust_ulp_buffer_import {
	__u32 size;
	__u32 flags;			/* [in] RUST_ULP_BUFFER_READ_ONLY */
	__u32 pd;			/* [in; handle] protection domain */
	__s32 fd;			/* [in; descriptor; EBADF] EINVAL: it is no dma-buf */
	__aligned_u64 offset;		/* [in; a multiple of the page size; EINVAL] first byte */
	__aligned_u64 length;		/* [in, out; 0 to 2^30] length; 0: all from @offset on */
	__aligned_u64 key_bytes;	/* [out; bytes] bytes of a key of the device */
	__u32 keys;			/* [out; count, from 1] number of keys */
	__u32 page_size;		/* [out; 4096 to 2097152] contiguous bytes */
	__u32 handle;			/* [out; handle] new buffer */
	__u32 pad;
};

/* rust_ulp_buffer_query.kind */
#define RUST_ULP_BUFFER_PAGES	1	/* BUFFER_CREATE */
#define RUST_ULP_BUFFER_USER	2	/* BUFFER_REGISTER */
#define RUST_ULP_BUFFER_DMABUF	3	/* BUFFER_IMPORT */

/* Describes a buffer. */
struct rust_ulp_buffer_query {
	__u32 size, flags;
	__u32 buffer;			/* [in; handle] buffer */
	__u32 kind;			/* [out] RUST_ULP_BUFFER_PAGES, _USER or _DMABUF */
	__aligned_u64 length;		/* [out; 1 to 2^30] length */
	__aligned_u64 charged;		/* [out; bytes] bytes that are charged to RLIMIT_MEMLOCK */
	__aligned_u64 mmap_offset;	/* [out; for mmap(2)] where to map the buffer; 0: nowhere */
	__aligned_u64 key_bytes;	/* [out; bytes] bytes of a key of the device */
	__u32 keys;			/* [out; count, from 1] number of keys */
	__u32 page_size;		/* [out; 4096 to 2097152] contiguous bytes */
	__s32 node;			/* [out; NUMA node, or -1] node of the first page */
	__u32 grants;			/* [out; count] number of its grants */
	__u32 buffer_flags;		/* [out] RUST_ULP_BUFFER_READ_ONLY */
	__u32 pad;
};

/* rust_ulp_grant_create.flags and rust_ulp_grant_query.grant_flags */
#define RUST_ULP_GRANT_ONE_SHOT_INV	(1U << 0)	/* ends when invalidated; needs @qp */
#define RUST_ULP_GRANT_PARTIAL		(1U << 1)	/* may grant less, and returns @length */

/*
 * Gives peers access to a range of a buffer. A grant with @qp ends when that queue pair goes to ERR
 * or RESET or is destroyed; with ONE_SHOT_INV also when a receive of @qp completes that invalidated
 * the key. The file then reports RUST_ULP_EVENT_GRANT_ENDED; the handle stays valid until DESTROY.
 * An ERR that no event and no completion reports ends it with the next request or QP_QUERY.
 *
 * The protection domain is the trust boundary, with @qp or without: the peer of any queue pair of
 * the domain can use the key if it knows it. Give peers that do not trust each other one each.
 *  EACCES      a right to write a READ_ONLY buffer
 *  EADDRNOTAVAIL  the registration needs a port with an address, and the device has none any more
 *  EINVAL      no right is given; ONE_SHOT_INV without @qp
 *  ENOTCONN    @qp is in ERR
 *  EOPNOTSUPP  the driver does not grant REMOTE_ATOMIC
 *  ERANGE      the range is not inside the buffer, or (without PARTIAL) is larger than a key can be
 *  EXDEV       @qp and @buffer belong to different protection domains
 */
struct rust_ulp_grant_create {
	__u32 size;
	__u32 flags;			/* [in] RUST_ULP_GRANT_ONE_SHOT_INV, _PARTIAL */
	__u32 buffer;			/* [in; handle] buffer */
	__u32 access;			/* [in] RUST_ULP_ACCESS_REMOTE_*, at least one */
	__aligned_u64 offset;		/* [in; bytes] first byte */
	__aligned_u64 length;		/* [in, out; 1 to 2^30] length; out: granted */
	__aligned_u64 addr;		/* [out; remote address] remote address of the first byte */
	__u32 rkey;			/* [out; 32 bits] key */
	__u32 handle;			/* [out; handle] DESTROY revokes the key */
	__u32 qp;			/* [in; handle or 0] queue pair with which the grant ends */
	__u32 pad;
	__aligned_u64 user_data;	/* [in; any] copied to events of the grant */
};

/* rust_ulp_grant_query.state */
#define RUST_ULP_GRANT_ACTIVE	1
#define RUST_ULP_GRANT_USED	2	/* a grant with ONE_SHOT_INV was used */
#define RUST_ULP_GRANT_EXPIRED	3	/* its queue pair went to ERR or RESET, or was destroyed */

/* Describes a grant. */
struct rust_ulp_grant_query {
	__u32 size, flags;
	__u32 grant;			/* [in; handle] grant */
	__u32 state;			/* [out] RUST_ULP_GRANT_ACTIVE, _USED or _EXPIRED */
	__u32 buffer;			/* [out; handle] buffer */
	__u32 qp;			/* [out; handle or 0] the grant ends with it */
	__aligned_u64 offset;		/* [out; bytes] first byte */
	__aligned_u64 length;		/* [out; 1 to 2^30] length */
	__aligned_u64 addr;		/* [out; remote address] remote address of the first byte */
	__u32 rkey;			/* [out; 32 bits] the key; 0: the grant has ended */
	__u32 access;			/* [out] RUST_ULP_ACCESS_REMOTE_* */
	__u32 grant_flags;		/* [out] RUST_ULP_GRANT_ONE_SHOT_INV */
	__u32 pad;
	__aligned_u64 user_data;	/* [out; any] @user_data of GRANT_CREATE */
};

/* Creates an address handle for datagrams. It may be destroyed while requests use it. */
struct rust_ulp_ah_create {
	__u32 size, flags;
	__u32 pd;			/* [in; handle] protection domain */
	__u32 handle;			/* [out; handle] new address handle */
	struct rust_ulp_ah_attr attr;	/* [in, out] the path; out: @dmac, @hop_limit as resolved */
};

/*
 * Creates a shared receive queue, to which SUBMIT posts by its handle. Its requests complete in
 * @cq, with the handle of the queue pair that consumed them; it has the same @pd and @recv_cq.
 *
 * A queue pair that ends in the middle of a message keeps the request of that message. It completes
 * as flushed when each queue pair that uses the queue has completed a later request or has ended:
 * until then @orphans of SRQ_QUERY counts it, and a peer can thus drain the queue of idle peers.
 */
struct rust_ulp_srq_create {
	__u32 size, flags;
	__u32 pd;	/* [in; handle] protection domain */
	__u32 cq;	/* [in; handle] completion queue */
	__u32 max_wr;	/* [in, out; 0 to 16384] requests in flight, 0 as 1 */
	__u32 max_sge;	/* [in, out; 0 to 16] elements of a request, 0 as 1 */
	__u32 limit;	/* [in; 0 to max_wr] as SRQ_MODIFY arms it; 0: none */
	__u32 handle;	/* [out; handle] new shared receive queue */
};

/* Arms the limit: RUST_ULP_EVENT_SRQ_LIMIT comes once, when fewer requests are left. */
struct rust_ulp_srq_modify {
	__u32 size, flags;
	__u32 srq;	/* [in; handle] shared receive queue */
	__u32 limit;	/* [in; 0 to max_wr] the limit; 0 disarms it */
};

/*
 * Describes a shared receive queue. Queue pairs in use may hold one of @orphans each; those that
 * have ended hold the rest. It is 0 while no later request completes.
 */
struct rust_ulp_srq_query {
	__u32 size, flags;
	__u32 srq;		/* [in; handle] shared receive queue */
	__u32 max_wr;		/* [out; requests] requests that may be in flight */
	__u32 max_sge;		/* [out; elements] elements per request */
	__u32 limit;		/* [out; requests] the limit; 0: disarmed, or reached */
	__u32 recvs_in_flight;	/* [out; requests] requests in flight */
	__u32 orphans;		/* [out; requests] of these, taken before a completed one */
};

/*
 * Destroys an object of any type. Other threads that wait for it get ENOENT.
 *  EBUSY       another object uses it: a grant its buffer, a connection its queue pair, queue pairs
 *              and shared receive queues their queues, and others their protection domain
 *  EIO         the driver did not revoke the key of a grant, which stays in use
 */
struct rust_ulp_destroy {
	__u32 size, flags;
	__u32 handle;	/* [in; handle: any] the object */
	__u32 pad;
};

/* ---- Events -------------------------------------------------------------- */

#define RUST_ULP_EVENTS_MAX	256	/* unread records; RUST_ULP_EVENT_LOST counts others */
/* rust_ulp_event.event below 256, as enum ib_event_type */
#define RUST_ULP_EVENT_CQ_ERR		0	/* @handle: the completion queue */
#define RUST_ULP_EVENT_QP_FATAL		1	/* @handle: the queue pair, as for 2 to 7, 16 */
#define RUST_ULP_EVENT_QP_REQ_ERR	2
#define RUST_ULP_EVENT_QP_ACCESS_ERR	3
#define RUST_ULP_EVENT_COMM_EST		4	/* a packet arrived before RTS */
#define RUST_ULP_EVENT_SQ_DRAINED	5
#define RUST_ULP_EVENT_PATH_MIG		6
#define RUST_ULP_EVENT_PATH_MIG_ERR	7
#define RUST_ULP_EVENT_DEVICE_FATAL	8
#define RUST_ULP_EVENT_PORT_ACTIVE	9	/* @port: the port, as for 10 to 13, 17, 18 */
#define RUST_ULP_EVENT_PORT_ERR		10
#define RUST_ULP_EVENT_LID_CHANGE	11
#define RUST_ULP_EVENT_PKEY_CHANGE	12
#define RUST_ULP_EVENT_SM_CHANGE	13
#define RUST_ULP_EVENT_SRQ_ERR		14	/* @handle: the shared receive queue */
#define RUST_ULP_EVENT_SRQ_LIMIT	15
#define RUST_ULP_EVENT_LAST_WQE_REACHED	16	/* once: a queue pair in ERR has left its SRQ */
#define RUST_ULP_EVENT_CLIENT_REREGISTER 17
#define RUST_ULP_EVENT_GID_CHANGE	18
/* rust_ulp_event.event from 256, of this module */
#define RUST_ULP_EVENT_DEVICE_REMOVED	256
#define RUST_ULP_EVENT_DEVICE_RENAMED	257
#define RUST_ULP_EVENT_LOST		258	/* @info: number of lost records */
#define RUST_ULP_EVENT_GRANT_ENDED	259	/* @handle: the grant; @info: its state */
#define RUST_ULP_EVENT_CONNECT_REQUEST	272	/* @info: requests at listener @handle; merged */
#define RUST_ULP_EVENT_DISCONNECTED	273	/* @handle: the connection; the peer ended it */
#define RUST_ULP_EVENT_TIMEWAIT_EXIT	274	/* @handle: the connection */
#define RUST_ULP_EVENT_ADDR_CHANGE	275	/* @handle: the connection or listener */
#define RUST_ULP_EVENT_UNREACHABLE	276	/* @handle: the connection; no answer; merged */
#define RUST_ULP_EVENT_ESTABLISHED	277	/* @handle: the connection */
#define RUST_ULP_EVENT_CONNECT_FAILED	278	/* @handle; @info: the errno, a positive number */

/*
 * Describes one event, in the records that read() returns: as many as there are and as fit. It
 * waits for the first. After RUST_ULP_EVENT_DEVICE_REMOVED, read() returns ENODEV. poll() reports
 * POLLIN while there are records; for completions see CQ_EVENTFD. The object may have been
 * destroyed. An event marked as merged updates @info of an unread record of its kind and object. If
 * all RUST_ULP_EVENTS_MAX records are unread, one of RUST_ULP_EVENT_CONNECT_REQUEST makes room.
 *  EAGAIN      there is no record, and the file has O_NONBLOCK
 *  EINVAL      the buffer is smaller than a record
 */
struct rust_ulp_event {
	__u32 event;			/* [out] RUST_ULP_EVENT_* */
	__u32 handle;			/* [out; handle or 0] object, or 0 */
	__u32 port;			/* [out; 0 to phys_ports] port, or 0 */
	__u32 info;			/* [out; by @event] detail of the event */
	__aligned_u64 time_ns;		/* [out; ns] CLOCK_MONOTONIC in the reader's namespace */
	__aligned_u64 user_data;	/* [out; any] @user_data of the object @handle, else 0 */
};

/*
 * ---- Connections by the RDMA connection manager
 *
 * Addresses belong to the opener's network namespace. The port space is RDMA_PS_TCP. CONNECT and
 * ACCEPT begin an attempt to connect. CONN_WAIT waits for its end, the event
 * RUST_ULP_EVENT_ESTABLISHED or RUST_ULP_EVENT_CONNECT_FAILED reports it, and DESTROY gives the
 * attempt up. An attempt that fails gives its queue pair back before the event; its handle stays
 * valid, with the state RUST_ULP_CONN_FAILED. The connection manager limits an attempt to about a
 * minute on RoCE, to more with a large @ack_timeout, and a peer may prolong it (MRA).
 */

/* Holds an IP address and a port, as struct sockaddr_in and struct sockaddr_in6 do. */
struct rust_ulp_addr {
	__u16 family;	/* [in, out; 0, 2, 10] 0: no address; AF_INET; AF_INET6 */
	__u16 port;	/* [in, out; 0 to 65535] port, in host byte order */
	__u32 scope_id;	/* [in, out; interface index] of an IPv6 link-local address, else 0 */
	__u8 addr[16];	/* [in, out; network order] 4 bytes of IPv4, then zeros */
};

/* Maximum bytes of private data. */
#define RUST_ULP_CM_REQ_PRIVATE_MAX	56	/* of CONNECT */
#define RUST_ULP_CM_REP_PRIVATE_MAX	196	/* of ACCEPT */
#define RUST_ULP_CM_REJ_PRIVATE_MAX	148	/* of REJECT */
#define RUST_ULP_CM_PRIVATE_MAX		224	/* of any, including the peer's padding */

/* Holds the parameters of a connection: those requested, or those negotiated. */
struct rust_ulp_conn_param {
	__u8 responder_resources;	/* [in, out; 0 to max_qp_rd_atom] reads of the peer */
	__u8 initiator_depth;		/* [in, out; 0 to max_qp_init_rd_atom] reads of this side */
	__u8 retry_cnt;			/* [in, out; 0 to 7] CONNECT's is for both sides */
	__u8 rnr_retry;			/* [in, out; 0 to 7] in: the peer's, out: own */
	__u8 min_rnr_timer;		/* [in, out; 0 to 31] as rust_ulp_qp_attr.min_rnr_timer */
	__u8 ack_timeout;		/* [in, out; 0 to 21] 4.096 us * 2^n; 0: any */
	__u8 traffic_class;		/* [in, out; 0 to 255] with RUST_ULP_CONN_TRAFFIC_CLASS */
	__u8 path_mtu;			/* [in, out; 0 to 5; EINVAL] enum ib_mtu; 0: the route's */
	__u32 access_flags;		/* [in, out] RUST_ULP_ACCESS_REMOTE_* */
	__u32 flags;			/* [in, out] RUST_ULP_CONN_* */
	__u32 reserved[4];
};

/* rust_ulp_conn_param.flags */
#define RUST_ULP_CONN_TRAFFIC_CLASS	(1U << 0)
#define RUST_ULP_CONN_FLOW_CONTROL	(1U << 1)	/* end-to-end, if the device supports it */

/*
 * Creates a listener. A request counts in @backlog until GET_REQUEST, or until its sender says that
 * it gave up; when all places are taken, the kernel rejects those older than 69 s.
 *  EACCES      a port below 1024 without CAP_NET_BIND_SERVICE
 *  EADDRINUSE  the port is taken
 *  EADDRNOTAVAIL  no device has the address
 *  EINVAL      there is no address, or bytes of it that must be zero are not
 *  EXDEV       another device than the file's has the address
 */
struct rust_ulp_listen {
	__u32 size, flags;
	struct rust_ulp_addr addr;	/* [in, out] local address, or zeros; out: the port */
	__u32 backlog;			/* [in; 1 to 1024] maximum pending requests */
	__u32 handle;			/* [out; handle: listener] the new listener */
	__aligned_u64 user_data;	/* [in; any] copied to events of the listener */
};

/*
 * Takes the oldest request of a listener. The kernel rejects one with another @path_mtu than 1 to 5
 * or an @ack_timeout above 21, and one that it cannot write to the struct any more (EFAULT).
 */
struct rust_ulp_get_request {
	__u32 size, flags;
	__u32 listener;			/* [in; handle] listener */
	__u32 handle;			/* [out; handle: request] for ACCEPT; DESTROY rejects it */
	__aligned_u64 timeout_ns;	/* [in, out; ns] how long to wait */
	struct rust_ulp_addr peer;	/* [out] address of the peer */
	struct rust_ulp_addr local;	/* [out] local address */
	struct rust_ulp_conn_param param;	/* [out] as this side would pass it to ACCEPT */
	__u32 peer_qp_num;		/* [out; 24 bits] number of the queue pair of the peer */
	__u32 private_len;		/* [out; 0 to 224] with zeros of the manager */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* [out; bytes] private data */
};

/*
 * Begins to accept a request, and brings the queue pair from RESET to RTS. The caller may bring it
 * to INIT first, to post receives. An attempt that fails leaves the queue pair in its state, unless
 * it has changed that: then it is in RESET, or in ERR where there is no reset, and its receives
 * are flushed. With ECONNRESET, ETIMEDOUT or an error of the manager the request has failed.
 *  ECONNRESET  the peer has ended
 *  ENOTCONN    the connection request has ended
 *  ERANGE      @path_mtu is below the request's
 *  ETIMEDOUT   the request was too old
 */
struct rust_ulp_accept {
	__u32 size, flags;
	__u32 request;			/* [in; handle] the handle becomes that of the connection */
	__u32 qp;			/* [in; handle] queue pair */
	struct rust_ulp_conn_param param;	/* [in] requested parameters */
	__u32 pad;
	__u32 private_len;		/* [in; 0 to 196; EMSGSIZE] length of the private data */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* [in; bytes; EINVAL] data, then zeros */
	__aligned_u64 user_data;	/* [in; any] copied to events of the connection */
};

/*
 * Rejects a request. One whose sender has gone ends as well. Without memory for the message the
 * request ends, too, and the peer repeats it as a new one.
 *  EISCONN     the request was accepted, or another thread accepts it
 *  ENOTCONN    the request has ended
 */
struct rust_ulp_reject {
	__u32 size, flags;
	__u32 request;		/* [in; handle] the command destroys it */
	__u32 private_len;	/* [in; 0 to 148; EMSGSIZE] length of the private data */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* [in; bytes; EINVAL] data, then zeros */
};

/*
 * Begins to connect a queue pair to a listener, see ACCEPT for the states of the queue pair.
 *  EACCES      a source port below 1024 without CAP_NET_BIND_SERVICE
 *  EADDRNOTAVAIL  no device has the source address
 *  EINVAL      the destination is missing, the wildcard address or port 0; source and destination
 *              have different families
 */
struct rust_ulp_connect {
	__u32 size, flags;
	__u32 qp;			/* [in; handle] queue pair */
	__u32 handle;			/* [out; handle: conn] the connection */
	struct rust_ulp_addr dst;	/* [in] address of the peer */
	struct rust_ulp_addr src;	/* [in] local address; @family 0: that of the route */
	struct rust_ulp_conn_param param;	/* [in] requested parameters */
	__u32 pad;
	__u32 private_len;		/* [in; 0 to 56; EMSGSIZE] length of the private data */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* [in; bytes; EINVAL] data, then zeros */
	__aligned_u64 user_data;	/* [in; any] copied to events of the connection */
};

/*
 * Waits for the end of an attempt to connect, from any number of threads; returns the same values,
 * or the same error, each time until DESTROY. The attempt goes on after EINTR and ETIME.
 * @reject_reason and the private data are valid on failure. EINVAL: the driver refused a state.
 *  EADDRNOTAVAIL, EXDEV  CONNECT: no device has the source address; another device than the file's
 *              has it, or the route
 *  ECONNREFUSED  the peer rejected the request, or no program listens: see @reject_reason
 *  ECONNRESET  the peer ended while the connection was established
 *  EHOSTUNREACH, ENETUNREACH  CONNECT: there is no route, or no host answers for the address
 *  ENOTCONN    it is a request: ACCEPT has not begun, or REJECT has ended it
 *  EPROTO      the peer answered with an undefined MTU, or a Target ACK Delay for 16 s of timewait
 *  ETIMEDOUT   the peer does not answer: the time of the connection manager ran out
 */
struct rust_ulp_conn_wait {
	__u32 size, flags;
	__u32 conn;			/* [in; handle: conn, request] connection */
	__u32 peer_qp_num;		/* [out; 24 bits] number of the queue pair of the peer */
	__aligned_u64 timeout_ns;	/* [in, out; ns] how long to wait */
	struct rust_ulp_addr local;	/* [out] local address in use */
	struct rust_ulp_conn_param agreed;	/* [out] negotiated parameters */
	__u32 reject_reason;		/* [out; number] of IBA 12.6.7.2, or 0; 28: REJECT */
	__u32 private_len;		/* [out; 0 to 224] with zeros of the manager */
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];	/* [out; bytes] the peer's */
};

/*
 * Ends a connection: the connection manager repeats a DREQ until the peer answers, at most 15
 * times; DESTROY and the end of the file send it once. A peer without it stays connected.
 *  ENOTCONN    the connection has ended, or is not established yet
 */
struct rust_ulp_disconnect {
	__u32 size, flags;
	__u32 conn;	/* [in; handle] its queue pair goes to ERR */
	__u32 pad;
};

/* rust_ulp_conn_query.state */
#define RUST_ULP_CONN_LISTENING		1
#define RUST_ULP_CONN_REQUESTED		2	/* a request that waits for ACCEPT or REJECT */
#define RUST_ULP_CONN_CONNECTING	3	/* CONNECT or ACCEPT has begun */
#define RUST_ULP_CONN_ESTABLISHED	4
#define RUST_ULP_CONN_DISCONNECTED	5
#define RUST_ULP_CONN_TIMEWAIT_OVER	6	/* disconnected, after the timewait period */
#define RUST_ULP_CONN_FAILED		7	/* never established; its queue pair is free */

/* Describes a connection, a request or a listener. */
struct rust_ulp_conn_query {
	__u32 size, flags;
	__u32 conn;			/* [in; handle: conn, request, listener] what to describe */
	__u32 state;			/* [out] RUST_ULP_CONN_* */
	struct rust_ulp_addr local;	/* [out] local address */
	struct rust_ulp_addr peer;	/* [out] address of the peer */
	struct rust_ulp_conn_param param;	/* [out] negotiated parameters */
	__u32 qp;			/* [out; handle or 0] queue pair */
	__u32 peer_qp_num;		/* [out; 24 bits] number of the peer's queue pair */
	__u32 waiting;			/* [out; requests] pending requests of a listener */
	__u32 backlog;			/* [out; 1 to 1024] @backlog of a listener */
	__u32 rejected;			/* [out; requests] rejected because of @backlog */
	__u32 pad;
	__aligned_u64 user_data;	/* [out; any] of the command that made it, else 0 */
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
/* rust_ulp_wr.flags. RECV takes the last one only. */
#define RUST_ULP_SEND_FENCE	(1U << 0)	/* waits for the reads and atomics before it */
#define RUST_ULP_SEND_SIGNALED	(1U << 1)	/* generates a completion even if it succeeds */
#define RUST_ULP_SEND_SOLICITED	(1U << 2)
#define RUST_ULP_SEND_INLINE	(1U << 3)	/* SUBMIT copies the data */
#define RUST_ULP_REQUEST_TIMEOUT	(1U << 4)	/* @timeout_ns limits the request */

/* Describes one element, a range of local memory. */
struct rust_ulp_sge {
	__u32 buffer;		/* [in; handle or 0] 0 with SEND_INLINE: @offset is an address */
	__u32 length;		/* [in; 0 to 2^31; EMSGSIZE] bytes */
	__aligned_u64 offset;	/* [in; bytes, or an address] first byte */
};

/* Holds the operands of an atomic. */
struct rust_ulp_wr_atomic {
	__aligned_u64 compare_add;	/* [in; 64 bits] value to compare with, or to add */
	__aligned_u64 swap;		/* [in; 64 bits] value to store, of ATOMIC_CMP_AND_SWP */
};

/* Names the receiver of a datagram. */
struct rust_ulp_wr_ud {
	__u32 ah;	/* [in; handle] address handle */
	__u32 qp_num;	/* [in; 0 to 2^24 - 1] number of the queue pair */
	__u32 qkey;	/* [in; 32 bits] Q_Key; with bit 31, that of the sending queue pair */
	__u32 pad;
};

/*
 * Describes a work request. With more than one element, @sge.offset is the address of an array of
 * @num_sge struct rust_ulp_sge, and @sge.buffer and @sge.length are 0. The end of @timeout_ns is
 * rounded up to a multiple of 2^20 ns for each 1024 requests, or part, that the queue has room for.
 */
struct rust_ulp_wr {
	__aligned_u64 user_data;	/* [in; any] copied to the completion */
	__u32 qp;			/* [in; handle: qp, srq] queue; only RECV takes an srq */
	__u8 opcode;			/* [in] RUST_ULP_WR_* */
	__u8 num_sge;			/* [in; 0 to 16; E2BIG] number of elements */
	__u16 flags;			/* [in] RUST_ULP_SEND_*, RUST_ULP_REQUEST_* */
	__aligned_u64 remote_addr;	/* [in; remote address] of RDMA and atomic requests */
	__u32 rkey;			/* [in; 32 bits] key of the remote memory */
	__u32 imm_data;			/* [in; 32 bits] immediate data, or the key to invalidate */
	struct rust_ulp_sge sge;	/* [in] element, or where the elements are */
	union {
		struct rust_ulp_wr_atomic atomic;	/* [in] operands of an atomic */
		struct rust_ulp_wr_ud ud;	/* [in] receiver of a datagram */
	} args;	/* [in] for some opcodes, else 0 */
	__aligned_u64 timeout_ns;	/* [in; ns] with REQUEST_TIMEOUT, else 0 */
};

/*
 * Posts requests, then waits until the ring of @cq has @min_complete unread completions.
 *
 * The kernel posts the requests in order, and stops at the first one that it or the device refuses:
 * the @posted requests before that one are posted, that one and those after it are not. If the
 * errno is EAGAIN and @posted is not 0, it returns 0, and waits for no more completions than those
 * requests make there. Else it fails with it, and does not wait; @posted, @stop_error are valid.
 *
 * @wait_error is 0 or says what ended the wait: -ETIME, -EINTR (a signal, or task work of an
 * io_uring), -EIO (see RUST_ULP_CQ_ERROR), -ENODEV, or -ENOENT (another thread destroyed @cq).
 *  E2BIG       the request has more elements than the queue allows, an atomic more than one, or a
 *              read more than the device reads into, counted after they are cut at the borders of
 *              keys; bytes of a request beyond what the kernel knows are not zero
 *  EACCES      a receive, read or atomic into a READ_ONLY buffer
 *  EAGAIN      a queue is full, maybe the completion queue, which needs room for every request in
 *              flight, signaled or not: poll completions, and submit those from number @posted on
 *  EBADFD      a send to a shared receive queue
 *  EINVAL      a field is set that the opcode does not have; @cq is 0 with a wait; an atomic is not
 *              of 8 bytes at a multiple of 8; a connected queue pair gets an address handle
 *  EMSGSIZE    a datagram exceeds the port's MTU (as of AH_CREATE), or inline data @max_inline
 *  ENOENT      a datagram has no address handle
 *  ENOTCONN    a send before RTS, a receive before INIT, or a request while another thread drains
 *              the queue pair; in ERR, requests are taken and flushed
 *  EOPNOTSUPP  the type of queue pair or the device does not support the operation; RECV to a queue
 *              pair with a shared receive queue; inline data of a dma-buf on an adapter
 *  ERANGE      an element is not inside its buffer; the number of a queue pair exceeds 24 bits
 *  EXDEV       the buffer or address handle is of another protection domain than the queue pair
 */
struct rust_ulp_submit {
	__u32 size, flags;
	__aligned_u64 wrs;		/* [in; address] array of @nr_wrs struct rust_ulp_wr */
	__u32 nr_wrs;			/* [in; 0 to 1024; E2BIG] length of that array */
	__u32 wr_size;	/* [in; 72 to 4096; EINVAL, E2BIG] sizeof(struct rust_ulp_wr) */
	__u32 cq;			/* [in; handle or 0] completion queue to wait for */
	__u32 min_complete;		/* [in; 0 to the entries of @cq] completions to wait for */
	__aligned_u64 timeout_ns;	/* [in, out; ns] how long to wait */
	__u32 posted;			/* [out; requests] number of posted requests */
	__s32 stop_error;		/* [out; -errno] why request @posted was refused */
	__u32 completed;		/* [out; completions] unread in the ring of @cq */
	__s32 wait_error;		/* [out; -errno] result of the wait */
};

/* rust_ulp_cancel.flags and rust_ulp_uring_cancel.flags */
#define RUST_ULP_CANCEL_ALL	(1U << 0)	/* all requests; @user_data is 0 */

/*
 * Completes requests in flight with RUST_ULP_WC_STATUS_CANCELED. A send request without a signaled
 * completion and without a deadline counts as in flight until a later request has completed.
 *  EINVAL      @user_data is set with ALL
 */
struct rust_ulp_cancel {
	__u32 size;
	__u32 flags;			/* [in] RUST_ULP_CANCEL_* */
	__u32 queue;			/* [in; handle: qp, srq] the queue of the requests */
	__u32 canceled;			/* [out; requests] number of canceled requests; may be 0 */
	__aligned_u64 user_data;	/* [in; any] @user_data of the requests to cancel */
};

/*
 * Signals an eventfd for each completion in the ring of @cq, and when that or the device is lost.
 *  EBUSY       the completion queue has an eventfd; -1 removes it
 */
struct rust_ulp_cq_eventfd {
	__u32 size, flags;
	__u32 cq;	/* [in; handle] completion queue */
	__s32 fd;	/* [in; descriptor, or -1; EBADF] EINVAL: it is no eventfd */
};

/*
 * ---- io_uring
 *
 * IORING_OP_URING_CMD on the same file submits the same requests. cmd_op is one of these numbers,
 * uring_cmd_flags is 0, else EINVAL, and the command bytes a struct below and zeros, else E2BIG.
 * Their result is 0 or more on success: the bytes of a receive, read or atomic, the posted requests
 * of a batch, the canceled ones of a CANCEL; -EREMOTEIO of a request that completed with a status;
 * or -errno of one that was refused, as by SUBMIT. With IORING_SETUP_CQE32, the first extra word
 * says more of one request, see below, else 0. For all of struct rust_ulp_cqe use
 * RUST_ULP_URING_RING.
 *
 * These requests use no entry of a completion ring, though of its @entries in flight, and count as
 * signaled, except with RUST_ULP_URING_RING. A negative result breaks a chain of links.
 * IORING_OP_ASYNC_CANCEL and IORING_OP_LINK_TIMEOUT do not affect them: use RUST_ULP_URING_CANCEL
 * and @timeout_ns. The kernel cancels them when the ring or the process ends.
 */

/*
 * A struct rust_ulp_wr. Needs IORING_SETUP_SQE128 (EINVAL), which has 80 command bytes; a struct
 * that has grown beyond goes by RUST_ULP_URING_BATCH. The errnos are those of SUBMIT.
 *  EREMOTEIO   the request completed with a status other than success
 */
#define RUST_ULP_URING_REQUEST	_IO(RUST_ULP_IOC_MAGIC, 0x80)
/* An array of requests: struct rust_ulp_uring_batch. The errnos are those of SUBMIT. */
#define RUST_ULP_URING_BATCH	_IO(RUST_ULP_IOC_MAGIC, 0x81)
/* CANCEL: struct rust_ulp_uring_cancel. The errnos are those of CANCEL. */
#define RUST_ULP_URING_CANCEL	_IO(RUST_ULP_IOC_MAGIC, 0x82)
/* The extra word of a request that succeeded: @imm_data | @src_qp << 32 | @flags << 56 */
#define RUST_ULP_URING_SRC_QP_SHIFT	32
#define RUST_ULP_URING_FLAGS_SHIFT	56
#define RUST_ULP_URING_RDMA_WITH_IMM	(1ULL << 63)	/* @opcode is RECV_RDMA_WITH_IMM */
/* The extra word of a request that failed: @status | its index << 16 | @vendor_err << 32 */
#define RUST_ULP_URING_INDEX_SHIFT	16
#define RUST_ULP_URING_VENDOR_ERR_SHIFT	32
/* rust_ulp_uring_batch.flags */
#define RUST_ULP_URING_RING	(1U << 0)	/* the requests complete as those of SUBMIT */

/*
 * Posts as SUBMIT does, and stops at the first request that is refused. The entry completes when
 * the posted requests have completed. If all succeeded, the result is their number, else that of
 * the first in the array that did not. If the device refused that one, sends before it for the same
 * queue pair may still be in flight. A batch of one request completes like RUST_ULP_URING_REQUEST.
 *  EREMOTEIO   a request completed with a status other than success
 *
 * With RUST_ULP_URING_RING the entry completes when the requests are posted, which complete in
 * their rings. With IOSQE_CQE_SKIP_SUCCESS, only a refused batch has an io_uring completion.
 */
struct rust_ulp_uring_batch {
	__aligned_u64 wrs;	/* [in; address] array of @nr_wrs struct rust_ulp_wr */
	__u16 nr_wrs;		/* [in; 1 to 1024; EINVAL, E2BIG] length of that array */
	__u16 wr_size;		/* [in; 72 to 4096; EINVAL, E2BIG] sizeof(struct rust_ulp_wr) */
	__u32 flags;		/* [in] RUST_ULP_URING_RING */
};

/* Is the command of RUST_ULP_URING_CANCEL. */
struct rust_ulp_uring_cancel {
	__aligned_u64 user_data;	/* [in; any] @user_data of the requests to cancel */
	__u32 queue;			/* [in; handle: qp, srq] the queue of the requests */
	__u32 flags;			/* [in] RUST_ULP_CANCEL_* */
};

#endif /* _UAPI_RUST_ULP_H */
