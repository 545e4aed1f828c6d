/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * The ABI of /dev/rust_ulp.
 *
 * Rules for every command:
 *
 *  - The request number is _IO(RUST_ULP_IOC_MAGIC, nr). The argument points to a struct whose first
 *    member, @size, is the size of that struct in the caller's version of this header.
 *  - The kernel accepts a struct that is larger than its own version if the extra bytes are zero,
 *    else it returns E2BIG. It returns E2BIG for a struct or an array entry of more than 4096
 *    bytes, and EINVAL for a struct that is smaller than its first version. Members that the
 *    caller's version lacks count as zero, and the kernel does not write them back.
 *  - The kernel returns EINVAL for an undefined bit of @flags, and for padding (@pad, @reserved)
 *    that is not zero. Where a comment does not describe @flags, no flag is defined.
 *  - A handle identifies an object. It is a number from 1 to 2^31 - 1, and is valid only in the
 *    open file that created the object.
 *  - A command that fails changes nothing, with two exceptions. ATTACH, CANCEL, QP_MODIFY and
 *    SUBMIT return EFAULT after they have taken effect if the kernel can write the beginning of the
 *    struct but not its end. QP_MODIFY leaves the queue pair in ERR if the driver fails in the
 *    middle of the command.
 *  - @timeout_ns of a command that waits (CONN_WAIT, GET_REQUEST, SUBMIT) is a number of
 *    nanoseconds from the start of the command, and that of a work request from its post. 0 leaves
 *    no time: a wait ends at once, and a work request is refused with EINVAL.
 *    RUST_ULP_TIMEOUT_INFINITE sets no limit. If the time runs out, a wait ends with ETIME, and a
 *    work request with RUST_ULP_WC_STATUS_TIMEOUT; ETIMEDOUT is of the network.
 *  - A signal ends a wait with EINTR. A command that has slept writes to @timeout_ns what is left
 *    of it, unless it is infinite. A caller that repeats the command with the same struct thus
 *    waits until the same time.
 *  - The kernel charges the memory cgroup of the caller for buffers, rings and the records of
 *    objects and requests, but not for what a driver allocates for an object: only the limits on
 *    objects and queue entries bound that.
 *  - Numbers are in host byte order. GIDs and GUIDs are bytes in network byte order.
 *  - Constants and members stay as they are. Structs that begin with @size, or whose size the
 *    caller passes, grow at their end; padding becomes members; and constants are added.
 *    docs/abi.md has the rules, "What stays, and what may change".
 *  - 32-bit and 64-bit callers use the same layout. The layout does not depend on the page size.
 *  - An mmap offset says nothing to user space. It is below 2^44, which mmap2() of a 32-bit process
 *    reaches, and is a multiple of 65536. A range of an object may be mapped that begins at a
 *    multiple of the page size from there.
 *
 * What an errno means, for every command:
 *
 *  E2BIG       bytes of the struct that the kernel does not know are not zero; there are too many
 *              elements or requests
 *  EACCES      the request would write to a buffer that is READ_ONLY
 *  EADDRNOTAVAIL  a region needs a port that has an address, and the device has none
 *  EAGAIN      a queue is full: poll completions and try again
 *  EALREADY    the file is already attached to a device
 *  EBADF       the descriptor that the command got is not open. Never said of a handle
 *  EBADFD      the handle identifies an object of another type
 *  EBUSY       another object uses this one
 *  EDQUOT      a limit is reached: on the entries of an open file's queues and backlogs, on a
 *              user's objects, attached files or entries, or of the rdma cgroup.
 *              CAP_SYS_RESOURCE exempts from the limits of the user
 *  EFAULT      an address cannot be read or written
 *  EINVAL      a size, flag, padding, name or enumerator is invalid
 *  EMFILE      the file has the maximum number of objects
 *  EMSGSIZE    a message, a datagram or inline data is too long
 *  ENODEV      the device was removed; close the file
 *  ENOENT      there is no such device, port, GID or P_Key, or this file may not use it; the file
 *              has no object with this handle: the handle was never returned, or belongs to another
 *              file, or its object was destroyed
 *  ENOMEM      no memory is available, or a limit on memory is reached
 *  ENOTCONN    the state of the queue pair does not allow this request
 *  ENOTTY      there is no such command
 *  ENXIO       the file is not attached to a device
 *  EOPNOTSUPP  the device, or this type of queue pair, does not support the request; RECV to a
 *              queue pair that has a shared receive queue
 *  EPERM       a Q_Key with its highest bit set needs CAP_NET_RAW
 *  EPROTONOSUPPORT  @event_size or @cqe_size is a size that the kernel does not write
 *  EPROTO      the state table of the queue pair does not allow this transition with these
 *              attributes, see @missing_mask and @extra_mask of struct rust_ulp_qp_modify
 *  ETIME       the time of a wait ran out, see @timeout_ns above
 *  ERANGE      a number is outside the range of the object or of the device
 *  EXDEV       the objects have different protection domains, or do not belong together
 *
 * QP_MODIFY also returns the errors of the route lookup: EHOSTUNREACH, ENETUNREACH, ETIMEDOUT and
 * the like. A command passes on any other errno of the driver.
 */
#ifndef _UAPI_RUST_ULP_H
#define _UAPI_RUST_ULP_H

#include <linux/types.h>
#include <linux/ioctl.h>

/* rust_ulp_query.abi_version */
#define RUST_ULP_ABI_VERSION	3

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
/*
 * Groups begin at round numbers: 0x00 device, 0x10 objects, 0x20 data, 0x30 connections, 0x40
 * memory, 0x80 io_uring (RUST_ULP_URING_*).
 */

#define RUST_ULP_NAME_MAX	64	/* IB_DEVICE_NAME_MAX, including the NUL */

/* A @timeout_ns: no limit. Signals, DESTROY and device removal end a wait. */
#define RUST_ULP_TIMEOUT_INFINITE	0xffffffffffffffffULL

/* ---- QUERY --------------------------------------------------------------- */

/**
 * struct rust_ulp_query - describes the module
 * @abi_version: [out] RUST_ULP_ABI_VERSION of the module.
 * @max_objects: [out; 1 to 65536] Maximum objects per open file.
 * @max_buffer: [out; bytes; 2^30] Maximum length of a buffer. A device may allow less.
 * @max_batch: [out; requests; 1024] Maximum @nr_wrs of SUBMIT.
 * @max_cq_entries: [out; entries; 32768] Maximum @entries of a completion queue.
 * @max_queue_depth: [out; requests; 16384] Maximum work requests per send or receive queue.
 * @max_sge: [out; elements; 16] Maximum elements per work request.
 * @max_inline: [out; bytes; 512] Maximum inline bytes per work request.
 * @max_entries: [out; entries; 2^18, or the module's parameter] Maximum entries of all queues of
 *   one open file together.
 * @event_size: [out; bytes; a multiple of 8] Maximum @event_size of ATTACH.
 * @cqe_size: [out; bytes; a multiple of 8] Maximum @cqe_size of CQ_CREATE.
 */
struct rust_ulp_query {
	__u32 size;
	__u32 flags;
	__u32 abi_version;
	__u32 max_objects;
	__aligned_u64 max_buffer;
	__u32 max_batch;
	__u32 max_cq_entries;
	__u32 max_queue_depth;
	__u32 max_sge;
	__u32 max_inline;
	__u32 max_entries;
	__u32 event_size;
	__u32 cqe_size;
};

/* ---- DEVICE_LIST --------------------------------------------------------- */

/* rust_ulp_device_entry.flags */
#define RUST_ULP_DEVICE_DEFAULT		(1U << 0)	/* ATTACH without a name selects it */
#define RUST_ULP_DEVICE_LOCAL_NET	(1U << 1)	/* its netdev is in the opener's netns */

/**
 * struct rust_ulp_device_entry - describes one device, in the array of DEVICE_LIST
 * @name: [out; text, NUL-terminated] Name of the device.
 * @node_guid: [out; 64 bits, network order] Node GUID.
 * @index: [out; number] Index, as `rdma dev` shows it.
 * @flags: [out] RUST_ULP_DEVICE_*.
 * @phys_ports: [out; ports] Number of physical ports.
 */
struct rust_ulp_device_entry {
	__u8 name[RUST_ULP_NAME_MAX];
	__u8 node_guid[8];
	__u32 index;
	__u32 flags;
	__u32 phys_ports;
	__u32 pad;
};

/*
 * Errnos of DEVICE_LIST:
 *
 *  EINVAL      @capacity is not 0 and @entry_size is below that of the first version
 *  ENOMEM      no memory for the list
 */

/**
 * struct rust_ulp_device_list - lists the devices that this file may attach to
 * @entries: [in; address] Address of an array of @capacity struct rust_ulp_device_entry.
 * @entry_size: [in; bytes; to 4096] sizeof(struct rust_ulp_device_entry), as the caller knows it.
 * @capacity: [in; entries] Length of that array.
 * @count: [out; entries] Number of devices; may exceed @capacity.
 */
struct rust_ulp_device_list {
	__u32 size;
	__u32 flags;
	__aligned_u64 entries;
	__u32 entry_size;
	__u32 capacity;
	__u32 count;
	__u32 pad;
};

/* ---- ATTACH -------------------------------------------------------------- */

/*
 * Errnos of ATTACH:
 *
 *  EALREADY    the file is attached
 *  EINVAL      @name has no NUL
 *  EPROTONOSUPPORT  @event_size is not one that QUERY allows, or not a multiple of 8
 *  ENOENT      there is no device, none of that name, or none that this file may use
 *  EOPNOTSUPP  the device is an iWARP device
 *  EDQUOT      the rdma cgroup allows no more handles, or the user has too many objects and files
 *  ENOMEM      a shared cause
 */

/**
 * struct rust_ulp_attach - binds this open file to one device, once
 * @name: [in, out; text, NUL-terminated] Name of the device, or empty for the default device.
 * @index: [out; number] Index, as `rdma dev` shows it.
 * @phys_ports: [out; ports] Number of physical ports.
 * @port: [out; 1 to phys_ports] Port of the preferred GID.
 * @gid_index: [out; index, or 2^32 - 1] Index of the preferred GID, or ~0: the device has none in
 *   the opener's network namespace. The kernel prefers RoCE v2 with an IPv4 address.
 * @event_size: [in; bytes; 32] sizeof(struct rust_ulp_event), as the caller knows it.
 *
 * read() returns records of @event_size bytes. The kernel accepts each multiple of 8 from
 * RUST_ULP_EVENT_SIZE_V1 to the size that QUERY returns. EPROTONOSUPPORT: any other size.
 */
struct rust_ulp_attach {
	__u32 size;
	__u32 flags;
	__u8 name[RUST_ULP_NAME_MAX];
	__u32 index;
	__u32 phys_ports;
	__u32 port;
	__u32 gid_index;
	__u32 event_size;
	__u32 pad;
};

/* ---- DEVICE_QUERY -------------------------------------------------------- */

/* rust_ulp_device_query.caps */
#define RUST_ULP_CAP_FAST_REG		(1ULL << 0)	/* the device supports buffers and grants */
#define RUST_ULP_CAP_SRQ		(1ULL << 1)
#define RUST_ULP_CAP_VIRT_DMA		(1ULL << 2)	/* a software device, without DMA */

/* rust_ulp_device_query.atomic_cap, as enum ib_atomic_cap */
#define RUST_ULP_ATOMIC_NONE	0
#define RUST_ULP_ATOMIC_HCA	1	/* only with other atomics of this device */
#define RUST_ULP_ATOMIC_GLOB	2	/* also with other devices and with CPUs */

/* rust_ulp_qp_create.qp_type and rust_ulp_qp_query.qp_type, as enum ib_qp_type */
#define RUST_ULP_QPT_RC		2
#define RUST_ULP_QPT_UC		3
#define RUST_ULP_QPT_UD		4

/**
 * struct rust_ulp_device_query - describes the device
 * @name: [out; text, NUL-terminated] Name of the device.
 * @fw_ver: [out; text, NUL-terminated] Firmware version.
 * @node_guid: [out; 64 bits, network order] Node GUID.
 * @sys_image_guid: [out; 64 bits, network order] System image GUID.
 * @max_mr_size: [out; bytes] Maximum length of a memory region.
 * @page_size_cap: [out; bits] Bit n: the device can register pages of 2^n bytes.
 * @caps: [out] RUST_ULP_CAP_*.
 * @rc_send_ops: [out; bits] Bit n: RC queue pairs support the RUST_ULP_WR_* opcode n.
 * @uc_send_ops: [out; bits] The same for UC queue pairs.
 * @ud_send_ops: [out; bits] The same for UD queue pairs.
 * @vendor_id: [out; 24 bits] IEEE vendor identifier.
 * @vendor_part_id: [out; number] Part identifier, assigned by the vendor.
 * @hw_ver: [out; number] Hardware version.
 * @phys_ports: [out; ports] Number of physical ports.
 * @max_qp: [out; count] Maximum number of queue pairs.
 * @max_qp_wr: [out; requests] Maximum work requests per send or receive queue.
 * @max_send_sge: [out; elements] Maximum elements per send request.
 * @max_recv_sge: [out; elements] Maximum elements per receive request.
 * @max_cq: [out; count] Maximum number of completion queues.
 * @max_cqe: [out; entries] Maximum entries per completion queue.
 * @max_mr: [out; count] Maximum number of memory regions.
 * @max_pd: [out; count] Maximum number of protection domains.
 * @max_qp_rd_atom: [out; count] Maximum responder resources per queue pair.
 * @max_qp_init_rd_atom: [out; count] Maximum outstanding reads and atomics per queue pair.
 * @max_srq: [out; count] Maximum number of shared receive queues.
 * @max_srq_wr: [out; requests] Maximum work requests per shared receive queue.
 * @max_fast_reg_pages: [out; pages] Maximum pages per key.
 * @num_comp_vectors: [out; count] Number of completion vectors, for @comp_vector of CQ_CREATE.
 * @local_ca_ack_delay: [out; exponent] Local CA ACK delay: 4.096 us * 2^n.
 * @atomic_cap: [out] RUST_ULP_ATOMIC_*: against what else the atomics of a peer are atomic, as the
 *   driver says. @rc_send_ops tells whether the module posts atomics.
 */
struct rust_ulp_device_query {
	__u32 size;
	__u32 flags;
	__u8 name[RUST_ULP_NAME_MAX];
	__u8 fw_ver[32];
	__u8 node_guid[8];
	__u8 sys_image_guid[8];
	__aligned_u64 max_mr_size;
	__aligned_u64 page_size_cap;
	__aligned_u64 caps;
	__aligned_u64 rc_send_ops;
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
	__u32 max_qp_rd_atom;
	__u32 max_qp_init_rd_atom;
	__u32 max_srq;
	__u32 max_srq_wr;
	__u32 max_fast_reg_pages;
	__u32 num_comp_vectors;
	__u32 local_ca_ack_delay;
	__u32 atomic_cap;
};

/* ---- PORT_QUERY, GID_QUERY, PKEY_QUERY ------------------------------------ */

/* rust_ulp_port_query.link_layer, as enum rdma_link_layer */
#define RUST_ULP_LINK_UNSPECIFIED	0
#define RUST_ULP_LINK_INFINIBAND	1
#define RUST_ULP_LINK_ETHERNET		2

/*
 * Errnos of PORT_QUERY:
 *
 *  ENOENT      no such port
 */

/**
 * struct rust_ulp_port_query - describes a port
 * @port: [in; 1 to phys_ports] Port number.
 * @state: [out; 1 to 5] enum ib_port_state: 1 is down, 2 init, 3 armed, 4 active, 5 active defer.
 * @phys_state: [out; 1 to 7] enum ib_port_phys_state.
 * @max_mtu: [out; bytes; 256 to 4096] Maximum MTU.
 * @active_mtu: [out; bytes; 256 to 4096] Active MTU.
 * @link_layer: [out] RUST_ULP_LINK_*.
 * @lid: [out; 16 bits] Local identifier.
 * @sm_lid: [out; 16 bits] LID of the subnet manager.
 * @lmc: [out; 0 to 7] LID mask control.
 * @sm_sl: [out; 0 to 15] Service level of the subnet manager.
 * @max_msg_sz: [out; bytes] Maximum length of a message.
 * @gid_tbl_len: [out; entries] Size of the GID table.
 * @pkey_tbl_len: [out; entries] Size of the P_Key table.
 * @active_width: [out; enum] enum ib_port_width.
 * @active_speed: [out; enum] enum ib_port_speed.
 * @port_cap_flags: [out; bits] Capability mask of the port.
 * @bad_pkey_cntr: [out; count] Packets with a wrong P_Key.
 * @qkey_viol_cntr: [out; count] Packets with a wrong Q_Key.
 * @ifindex: [out; number] Index of the netdev if it is in the opener's network namespace, else 0.
 */
struct rust_ulp_port_query {
	__u32 size;
	__u32 flags;
	__u32 port;
	__u32 state;
	__u32 phys_state;
	__u32 max_mtu;
	__u32 active_mtu;
	__u32 link_layer;
	__u32 lid;
	__u32 sm_lid;
	__u32 lmc;
	__u32 sm_sl;
	__u32 max_msg_sz;
	__u32 gid_tbl_len;
	__u32 pkey_tbl_len;
	__u32 active_width;
	__u32 active_speed;
	__u32 port_cap_flags;
	__u32 bad_pkey_cntr;
	__u32 qkey_viol_cntr;
	__u32 ifindex;
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

/**
 * struct rust_ulp_gid_entry - describes one GID, in the array of GID_QUERY
 * @gid: [out; 128 bits, network order] The GID.
 * @index: [out; number] Index in the GID table.
 * @ifindex: [out; number] Index of the netdev with RUST_ULP_GID_LOCAL_NET, else 0.
 * @gid_type: [out] RUST_ULP_GID_IB, RUST_ULP_GID_ROCE_V1 or RUST_ULP_GID_ROCE_V2.
 * @flags: [out] RUST_ULP_GID_IPV4 and the other bits.
 * @ifname: [out; text, NUL-terminated] Name of the netdev with RUST_ULP_GID_LOCAL_NET, else empty.
 */
struct rust_ulp_gid_entry {
	__u8 gid[16];
	__u32 index;
	__u32 ifindex;
	__u32 gid_type;
	__u32 flags;
	__u8 ifname[16];
};

/*
 * Errnos of GID_QUERY:
 *
 *  EINVAL      @capacity is not 0 and @entry_size is below that of the first version
 *  ENOENT      no such port
 *  ENOMEM      no memory for the list
 */

/**
 * struct rust_ulp_gid_query - lists the GIDs of a port
 * @entries: [in; address] Address of an array of @capacity struct rust_ulp_gid_entry.
 * @entry_size: [in; bytes; to 4096] sizeof(struct rust_ulp_gid_entry), as the caller knows it.
 * @capacity: [in; entries] Length of that array.
 * @port: [in; 1 to phys_ports] Port number.
 * @count: [out; entries] Number of GIDs; may exceed @capacity.
 *
 * A GID whose netdev is in another network namespace than the opener's is not listed, and no
 * address may use it: ENOENT.
 */
struct rust_ulp_gid_query {
	__u32 size;
	__u32 flags;
	__aligned_u64 entries;
	__u32 entry_size;
	__u32 capacity;
	__u32 port;
	__u32 count;
};

/*
 * Errnos of PKEY_QUERY:
 *
 *  ENOENT      no such port, or no such entry
 */

/**
 * struct rust_ulp_pkey_query - returns one P_Key of a port
 * @port: [in; 1 to phys_ports] Port number.
 * @index: [in; below pkey_tbl_len] Index in the P_Key table.
 * @pkey: [out; 16 bits] The P_Key.
 */
struct rust_ulp_pkey_query {
	__u32 size;
	__u32 flags;
	__u32 port;
	__u32 index;
	__u32 pkey;
	__u32 pad;
};

/* ---- Objects ------------------------------------------------------------- */

/*
 * Errnos of PD_CREATE:
 *
 *  EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_pd_create - creates a protection domain
 * @handle: [out; handle] The new protection domain.
 */
struct rust_ulp_pd_create {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 pad;
};

/* rust_ulp_cq_create.delivery: the context that copies completions from the device to the ring */
#define RUST_ULP_DELIVER_DEFAULT	0	/* the module's parameter "delivery" */
#define RUST_ULP_DELIVER_WORKQUEUE	1	/* a thread that waits, else a kernel worker */
#define RUST_ULP_DELIVER_SOFTIRQ	2	/* the softirq of the CPU that saw the completion */

/*
 * Errnos of CQ_CREATE:
 *
 *  ERANGE      @entries is 0, above 32768 or above the device's limit; @comp_vector does not exist;
 *              @busy_poll_us is above 10000
 *  EINVAL      @delivery is not defined; @busy_poll_us is not 0, and the delivery not WORKQUEUE
 *  EPROTONOSUPPORT  @cqe_size is not one that QUERY allows, or not a multiple of 8
 *  EPERM       delivery by softirq, without CAP_SYS_NICE and without the module's parameter
 *              user_softirq=1 or delivery=2; a @comp_vector but 0, without CAP_SYS_NICE and with
 *              the parameter user_vector=0
 *  EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_cq_create - creates a completion queue
 * @entries: [in, out; entries; 1 to 32768] Minimum length; out: the length, a power of two.
 * @delivery: [in, out] RUST_ULP_DELIVER_*; out: the choice of the kernel.
 * @comp_vector: [in; below num_comp_vectors] Completion vector.
 * @handle: [out; handle] The new completion queue.
 * @mmap_offset: [out; bytes; for mmap(2)] Where to map the ring.
 * @mmap_size: [out; bytes] Bytes to map there.
 * @cqe_size: [in; bytes; 64] sizeof(struct rust_ulp_cqe), as the caller knows it.
 * @busy_poll_us: [in; microseconds; 0 to 10000] How long a thread polls before it sleeps.
 *
 * A thread that waits for the queue polls the queue of the device for @busy_poll_us, then arms it
 * and sleeps; it polls again before it sleeps again. Of several threads that wait for the same
 * queue, one polls. While it polls, other tasks run that wait for its CPU.
 *
 * With delivery WORKQUEUE, a thread that waits handles the completions of all that use the queue.
 * If it gets no CPU time, the worker takes over after some milliseconds. A thread with the policy
 * SCHED_IDLE or a nice value above 0 leaves them to the worker from the beginning.
 *
 * The entries of the ring have @cqe_size bytes each. The kernel accepts each multiple of 8 from
 * RUST_ULP_CQE_SIZE_V1 to the size that QUERY returns. EPROTONOSUPPORT: any other size.
 *
 * EPERM: delivery by softirq takes CPU time from other processes. It needs CAP_SYS_NICE, or the
 * parameter user_softirq=1 or delivery=2 of the module. The kernel worker has a high priority and
 * is in no cgroup of the caller: cpu.max does not limit it.
 */
struct rust_ulp_cq_create {
	__u32 size;
	__u32 flags;
	__u32 entries;
	__u32 delivery;
	__u32 comp_vector;
	__u32 handle;
	__aligned_u64 mmap_offset;
	__aligned_u64 mmap_size;
	__u32 cqe_size;
	__u32 busy_poll_us;
};

/* Offset of the first completion in the ring of a completion queue, with pages of any size */
#define RUST_ULP_CQ_ENTRIES_OFFSET	4096

/* rust_ulp_cq_ring.flags */
#define RUST_ULP_CQ_OVERFLOW	(1U << 0)	/* @dropped completions did not fit */
#define RUST_ULP_CQ_DEAD	(1U << 1)	/* the device was removed: no more completions */
#define RUST_ULP_CQ_ERROR	(1U << 2)	/* the device reported an error of the queue */

/**
 * struct rust_ulp_cq_ring - is the header of the ring of a completion queue
 * @head: [in; index, runs over 2^32] Index of the next entry that the consumer reads. The consumer
 *   writes it.
 * @tail: [out; index, runs over 2^32] Index of the next entry that the kernel writes.
 * @flags: [out] RUST_ULP_CQ_*.
 * @dropped: [out; entries] Number of completions that did not fit.
 * @entries: [out; entries; a power of two] Length of the ring.
 * @entry_size: [out; bytes] @cqe_size of CQ_CREATE: the distance of two entries.
 * @entries_offset: [out; bytes; 4096] RUST_ULP_CQ_ENTRIES_OFFSET.
 *
 * The caller maps the ring at @mmap_offset of CQ_CREATE. User space writes @head, the kernel writes
 * all other members. The kernel keeps a private copy of those and never reads them from the ring.
 *
 * The consumer loads @tail with acquire. While @head differs from @tail, it copies the entry with
 * the number @head modulo @entries and increments @head. Then it stores @head with release. Both
 * indices wrap at 2^32.
 */
struct rust_ulp_cq_ring {
	__u32 head;
	__u32 pad0[15];
	__u32 tail;
	__u32 flags;
	__u32 dropped;
	__u32 entries;
	__u32 entry_size;
	__u32 entries_offset;
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
 * device may still process it. Its data may still arrive at the peer, or in the local buffers of
 * the request. A receive may still consume a message, which is then lost. The request keeps its
 * place in the queue until the device completes it.
 */
#define RUST_ULP_WC_STATUS_TIMEOUT	256	/* the deadline of the request has passed */
#define RUST_ULP_WC_STATUS_CANCELED	257	/* CANCEL ended the request */

/* rust_ulp_cqe.flags */
#define RUST_ULP_WC_GRH			(1U << 0)	/* UD: 40 bytes of GRH precede the data */
#define RUST_ULP_WC_WITH_IMM		(1U << 1)	/* @imm_data is immediate data */
#define RUST_ULP_WC_WITH_INVALIDATE	(1U << 2)	/* @imm_data is the invalidated rkey */

/**
 * struct rust_ulp_cqe - describes one completion
 * @user_data: [out; any] @user_data of the request.
 * @qp_user_data: [out; any] @user_data of the queue pair; 0 if @qp is a shared receive queue.
 * @qp: [out; handle] The queue pair, or the shared receive queue that flushed the request.
 * @qp_num: [out; 24 bits] Number of that queue pair.
 * @status: [out; 0 to 22; 256, 257] enum ib_wc_status, where 0 is success, or RUST_ULP_WC_STATUS_*.
 * @opcode: [out] RUST_ULP_WC_*; valid for failed requests as well.
 * @flags: [out] RUST_ULP_WC_GRH and the other bits.
 * @vendor_err: [out; the driver's] Vendor's error code of a request that failed, else 0.
 * @byte_len: [out; bytes] Length of a receive, read or atomic that succeeded, else 0.
 * @imm_data: [out; 32 bits, host order] Immediate data or the invalidated key, as @flags says.
 * @src_qp: [out; 24 bits] Number of the queue pair that sent a UD datagram.
 * @port: [out; 0, or 1 to phys_ports] Port of a UD receive.
 * @pkey_index: [out; below pkey_tbl_len] P_Key index of a UD receive.
 * @slid: [out; 16 bits] LID of the sender of a UD datagram, on InfiniBand.
 * @sl: [out; 0 to 15] Service level of a UD receive.
 * @dlid_path_bits: [out; 7 bits] Path bits of the LID of a UD receive.
 */
struct rust_ulp_cqe {
	__aligned_u64 user_data;
	__aligned_u64 qp_user_data;
	__u32 qp;
	__u32 qp_num;
	__u16 status;
	__u8 opcode;
	__u8 flags;
	__u32 vendor_err;
	__u32 byte_len;
	__u32 imm_data;
	__u32 src_qp;
	__u32 port;
	__u16 pkey_index;
	__u16 slid;
	__u8 sl;
	__u8 dlid_path_bits;
	__u8 pad[2];
	__u32 reserved[2];
};

/* rust_ulp_cq_create.cqe_size: the size of the first version of struct rust_ulp_cqe */
#define RUST_ULP_CQE_SIZE_V1	64

/* rust_ulp_qp_create.flags */
#define RUST_ULP_QP_SIG_ALL	(1U << 0)	/* every send request generates a completion */

/*
 * Errnos of QP_CREATE:
 *
 *  EINVAL      @qp_type is not defined
 *  EOPNOTSUPP  no queue pairs of that type on this device: docs/providers.md
 *  ERANGE      more requests, elements or inline bytes than are supported
 *  EXDEV       @srq belongs to another protection domain, or @recv_cq is not its completion queue
 *  ENOENT, EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_qp_create - creates a queue pair
 * @flags: [in] RUST_ULP_QP_SIG_ALL.
 * @pd: [in; handle] Protection domain.
 * @send_cq: [in; handle] Completion queue of send requests.
 * @recv_cq: [in; handle] Completion queue of receive requests; may equal @send_cq.
 * @srq: [in; handle or 0] Shared receive queue, or 0.
 * @qp_type: [in] RUST_ULP_QPT_*.
 * @max_send_wr: [in, out; requests; 0 (which is 1) to 16384] Send requests in flight: requested,
 *   then granted.
 * @max_recv_wr: [in, out; requests; 0 (which is 1) to 16384] The same for receive requests; 0 with
 *   @srq.
 * @max_send_sge: [in, out; elements; 0 (which is 1) to 16] Elements per send request: requested,
 *   then granted.
 * @max_recv_sge: [in, out; elements; 0 (which is 1) to 16] The same for receive requests; 0 with
 *   @srq.
 * @max_inline: [in, out; bytes; 0 to 512] Inline bytes per send request: requested, then granted.
 * @handle: [out; handle] The new queue pair.
 * @qp_num: [out; 24 bits] Number of the queue pair.
 * @user_data: [in; any] The kernel copies it to completions and events of the queue pair.
 */
struct rust_ulp_qp_create {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__u32 send_cq;
	__u32 recv_cq;
	__u32 srq;
	__u32 qp_type;
	__u32 max_send_wr;
	__u32 max_recv_wr;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__u32 max_inline;
	__u32 handle;
	__u32 qp_num;
	__aligned_u64 user_data;
};

/**
 * struct rust_ulp_ah_attr - describes the path to a peer
 * @dgid: [in, out; 128 bits, network order] GID of the peer.
 * @flow_label: [in, out; 0 to 2^20 - 1] Flow label of the GRH.
 * @port_num: [in, out; 1 to phys_ports] Port number.
 * @sgid_index: [in, out; below gid_tbl_len] Index of the local GID.
 * @hop_limit: [in, out; 0 to 255] Hop limit of the GRH; 0: the kernel uses that of the route.
 * @traffic_class: [in, out; 0 to 255; DSCP in the upper 6 bits] Traffic class of the GRH.
 * @sl: [in, out; 0 to 15] Service level.
 * @dlid: [in, out; 16 bits] LID of the peer, on InfiniBand.
 * @dlid_high: [in, out; 16 bits] Upper half of the LID of the peer, on Omni-Path.
 * @is_global: [in, out; 0, 1] 1: packets have a GRH. Must be 1 on RoCE.
 * @static_rate: [in, out; 0, 2 to 23, 25] enum ib_rate; 0: the rate of the port.
 * @dmac: [in, out; 48 bits, network order] MAC address of the peer; in: 0, the kernel resolves it.
 * @src_path_bits: [in, out; 0 to 127] Path bits of the source LID, on InfiniBand.
 */
struct rust_ulp_ah_attr {
	__u8 dgid[16];
	__u32 flow_label;
	__u32 port_num;
	__u8 sgid_index;
	__u8 hop_limit;
	__u8 traffic_class;
	__u8 sl;
	__u16 dlid;
	__u8 is_global;
	__u8 static_rate;
	__u8 dmac[6];
	__u8 src_path_bits;
	__u8 pad;
	__u16 dlid_high;
	__u16 pad2;
	__u32 reserved[5];
};

/*
 * rust_ulp_qp_modify.attr_mask, rust_ulp_qp_modify.missing_mask and rust_ulp_qp_modify.extra_mask,
 * as enum ib_qp_attr_mask
 */
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

/*
 * rust_ulp_grant_create.access, rust_ulp_grant_query.access, rust_ulp_qp_attr.access_flags and
 * rust_ulp_conn_param.access_flags, as enum ib_access_flags
 */
#define RUST_ULP_ACCESS_REMOTE_WRITE	(1U << 1)
#define RUST_ULP_ACCESS_REMOTE_READ	(1U << 2)
#define RUST_ULP_ACCESS_REMOTE_ATOMIC	(1U << 3)

/**
 * struct rust_ulp_qp_attr - holds the attributes of a queue pair
 * @qkey: [in, out; 32 bits; bit 31 is privileged] Q_Key, of a UD queue pair.
 * @rq_psn: [in, out; 0 to 2^24 - 1] First packet sequence number of the receive side.
 * @sq_psn: [in, out; 0 to 2^24 - 1] First packet sequence number of the send side.
 * @dest_qp_num: [in, out; 0 to 2^24 - 1] Number of the queue pair of the peer.
 * @access_flags: [in, out] RUST_ULP_ACCESS_REMOTE_*: what the peer may do.
 * @port_num: [in, out; 1 to phys_ports] Port number.
 * @pkey_index: [in, out; below pkey_tbl_len] P_Key index.
 * @qp_state: [in, out] RUST_ULP_QPS_*: the new state; out: the state.
 * @cur_qp_state: [in, out] RUST_ULP_QPS_*: the present state, else EPROTO.
 * @path_mtu: [in, out; 1 to 5] enum ib_mtu: 1 is 256 bytes, 2 is 512, 3 is 1024, 4 is 2048, 5 is
 *   4096.
 * @timeout: [in, out; 0 to 31] Local ACK timeout: 4.096 us * 2^n; 0: no timeout.
 * @retry_cnt: [in, out; 0 to 7] Retries after a timeout.
 * @rnr_retry: [in, out; 0 to 7] Retries after RNR NAK; 7: no limit.
 * @min_rnr_timer: [in, out; 0 to 31] Minimum delay of the peer after RNR NAK, IBA table 45: 1 is
 *   0.01 ms, 12 is 0.64 ms, 0 is 655.36 ms.
 * @max_rd_atomic: [in, out; 0 to max_qp_init_rd_atom] Maximum outstanding reads and atomics of this
 *   side.
 * @max_dest_rd_atomic: [in, out; 0 to max_qp_rd_atom] Maximum outstanding reads and atomics of the
 *   peer.
 * @en_sqd_async_notify: [in, out; 0, 1] 1: an event reports that SQD is drained.
 * @sq_draining: [out; 0, 1] 1: the queue pair is in SQD and has not finished draining.
 * @ah: [in, out] Path to the peer.
 */
struct rust_ulp_qp_attr {
	__u32 qkey;
	__u32 rq_psn;
	__u32 sq_psn;
	__u32 dest_qp_num;
	__u32 access_flags;
	__u32 port_num;
	__u16 pkey_index;
	__u8 qp_state;
	__u8 cur_qp_state;
	__u8 path_mtu;
	__u8 timeout;
	__u8 retry_cnt;
	__u8 rnr_retry;
	__u8 min_rnr_timer;
	__u8 max_rd_atomic;
	__u8 max_dest_rd_atomic;
	__u8 en_sqd_async_notify;
	__u8 sq_draining;
	__u8 pad[3];
	struct rust_ulp_ah_attr ah;
	__u32 reserved[6];
};

/*
 * Errnos of QP_MODIFY:
 *
 *  EINVAL      a bit of @attr_mask, a state, a right, @path_mtu or @static_rate is not defined; the
 *              address has no GRH on Ethernet
 *  EPROTO      the state table of the IBA specification does not allow the transition, or not with
 *              these attributes; @cur_qp_state is not the present state; an address is given in
 *              RESET or ERR. @missing_mask and @extra_mask name the attributes
 *  ERANGE      a number is outside the ranges above; @path_mtu exceeds the port's
 *  ENOENT      the port, GID index or P_Key index does not exist, or this file may not use it; the
 *              file has no such handle
 *  EPERM       the Q_Key has bit 31 set, and the process lacks CAP_NET_RAW
 *  EHOSTUNREACH  there is no route to the host, or a local one without an interface
 *  ENETUNREACH  there is no route to the network
 *  ETIMEDOUT   the link-layer address was not resolved in time
 *  EBADFD, ENOMEM  a shared cause
 *  EISCONN     a connection has the queue pair, and the new state is not ERR
 */

/**
 * struct rust_ulp_qp_modify - changes the state and the attributes of a queue pair
 * @qp: [in; handle] Queue pair.
 * @attr_mask: [in] RUST_ULP_QP_*: the members of @attr to use.
 * @missing_mask: [out] RUST_ULP_QP_*: attributes that the transition requires; valid with EPROTO.
 * @extra_mask: [out] RUST_ULP_QP_*: attributes that the transition does not take; valid with
 *   EPROTO. RUST_ULP_QP_STATE: there is no such transition. RUST_ULP_QP_CUR_STATE: the state is
 *   another one, or the transition does not take that check.
 * @attr: [in, out] The attributes; out: @ah.dmac and @ah.hop_limit as the kernel resolved them.
 *
 * A connection has its queue pair from the begin of ACCEPT or CONNECT until the connection is
 * destroyed. During that time QP_MODIFY may only set the state ERR, else it returns EISCONN.
 */
struct rust_ulp_qp_modify {
	__u32 size;
	__u32 flags;
	__u32 qp;
	__u32 attr_mask;
	__u32 missing_mask;
	__u32 extra_mask;
	struct rust_ulp_qp_attr attr;
};

/*
 * Errnos of QP_QUERY:
 *
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_qp_query - describes a queue pair
 * @qp: [in; handle] Queue pair.
 * @qp_num: [out; 24 bits] Number of the queue pair.
 * @qp_type: [out] RUST_ULP_QPT_*.
 * @max_send_wr: [out; requests] Send requests that may be in flight.
 * @max_recv_wr: [out; requests] Receive requests that may be in flight.
 * @max_send_sge: [out; elements] Elements per send request.
 * @max_recv_sge: [out; elements] Elements per receive request.
 * @max_inline: [out; bytes] Inline bytes per send request.
 * @sends_in_flight: [out; requests] Send requests in flight.
 * @recvs_in_flight: [out; requests] Receive requests in flight.
 * @attr: [out] The attributes.
 * @user_data: [out; any] @user_data of QP_CREATE.
 */
struct rust_ulp_qp_query {
	__u32 size;
	__u32 flags;
	__u32 qp;
	__u32 qp_num;
	__u32 qp_type;
	__u32 max_send_wr;
	__u32 max_recv_wr;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__u32 max_inline;
	__u32 sends_in_flight;
	__u32 recvs_in_flight;
	struct rust_ulp_qp_attr attr;
	__aligned_u64 user_data;
};

/* rust_ulp_buffer_create.node */
#define RUST_ULP_NODE_ANY	(-1)

/*
 * Errnos of BUFFER_CREATE:
 *
 *  EINVAL      @page_size is not supported
 *  ERANGE      @length is 0 or exceeds @max_buffer; @node does not exist; the buffer needs more
 *              keys than the device has
 *  EOPNOTSUPP  no fast registration
 *  EINTR       the process is being killed
 *  ENOMEM      over RLIMIT_MEMLOCK without CAP_IPC_LOCK, over the limit of the memory cgroup, or no
 *              pages of that size
 *  ENOENT, EBADFD, EADDRNOTAVAIL, EMFILE, EDQUOT  a shared cause
 */

/**
 * struct rust_ulp_buffer_create - creates a buffer of pages that the kernel allocates
 * @pd: [in; handle] Protection domain.
 * @node: [in, out; NUMA node, or -1] Preferred NUMA node, or RUST_ULP_NODE_ANY: the memory policy
 *   of the task chooses. ERANGE if there is no such node. The kernel falls back to other nodes.
 *   out: node of the first page.
 * @length: [in, out; bytes; 1 to 2^30] Length; out: rounded up to whole pages.
 * @page_size: [in, out; bytes; 0, 4096, 2097152] Contiguous bytes; 4096: the kernel's page
 *   size; 0: the kernel chooses a power of two up to 2097152.
 * @handle: [out; handle] The new buffer.
 * @mmap_offset: [out; bytes; for mmap(2)] Where to map the buffer.
 * @key_bytes: [out; bytes] Bytes per key of the device.
 * @keys: [out; count, from 1] Number of keys.
 *
 * A device limits the pages per key, so a buffer may have several keys, each for @key_bytes of it.
 * An element of a request may cross the border between two keys, and then counts as one element for
 * each key. A request with more elements than the queue pair supports fails with E2BIG. If the
 * device supports two elements, every queue pair supports one element that crosses one border,
 * whatever its @max_send_sge and @max_recv_sge. A key needs no region if the DMA addresses of its
 * part are consecutive; but a grant and read-only memory need one.
 *
 * The memory is charged to the process and to its user, each within RLIMIT_MEMLOCK, until the
 * buffer is destroyed and no part of it is mapped. The users of a user namespace share the limit of
 * the user who made it, unless that is root of the machine. This holds for all limits of a user.
 */
struct rust_ulp_buffer_create {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__s32 node;
	__aligned_u64 length;
	__u32 page_size;
	__u32 handle;
	__aligned_u64 mmap_offset;
	__aligned_u64 key_bytes;
	__u32 keys;
	__u32 pad;
};

/*
 * rust_ulp_buffer_register.flags, rust_ulp_buffer_import.flags and
 * rust_ulp_buffer_query.buffer_flags
 */
#define RUST_ULP_BUFFER_READ_ONLY	(1U << 0)	/* requests and peers may only read it */

/*
 * Errnos of BUFFER_REGISTER:
 *
 *  EFAULT      the memory is not mapped, or it is not writable and READ_ONLY is not set
 *  EOPNOTSUPP  the memory cannot be pinned for long (a file on most filesystems, device memory), or
 *              no fast registration
 *  ERANGE      @length is 0 or exceeds @max_buffer; the buffer needs more keys than the device has
 *  EAGAIN      the kernel could not pin the memory now: try again
 *  ENOMEM      over RLIMIT_MEMLOCK without CAP_IPC_LOCK, or no memory
 *  ENOENT, EBADFD, EADDRNOTAVAIL, EINTR, EMFILE, EDQUOT  a shared cause
 */

/**
 * struct rust_ulp_buffer_register - creates a buffer of the caller's memory
 * @flags: [in] RUST_ULP_BUFFER_READ_ONLY.
 * @pd: [in; handle] Protection domain.
 * @handle: [out; handle] The new buffer.
 * @addr: [in; address] Address of the first byte; need not be aligned.
 * @length: [in; bytes; 1 to 2^30] Length.
 * @key_bytes: [out; bytes] Bytes per key of the device; the first key may cover fewer.
 * @keys: [out; count, from 1] Number of keys.
 * @page_size: [out; bytes; a power of two from 4096 to 2097152] Contiguous bytes that the kernel
 *   found.
 *
 * The kernel pins the memory until the buffer is destroyed, and charges it to the process and to
 * its user, each within RLIMIT_MEMLOCK. The buffer has no mmap offset. After fork() the buffer
 * refers to the parent's memory, and the child has a copy. Pages stay pinned after the caller
 * unmaps them.
 *
 * EFAULT: the memory is not mapped, or is not writable and READ_ONLY is not set. EOPNOTSUPP: the
 * kernel cannot pin this memory for long (files on most filesystems, device memory).
 */
struct rust_ulp_buffer_register {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__u32 handle;
	__aligned_u64 addr;
	__aligned_u64 length;
	__aligned_u64 key_bytes;
	__u32 keys;
	__u32 page_size;
};

/*
 * Errnos of BUFFER_IMPORT:
 *
 *  EBADF       @fd is not open
 *  ENOENT      @pd is not a handle of this file
 *  EINVAL      @fd is not a dma-buf; @offset is not a multiple of the page size
 *  EACCES      the dma-buf is not open for writing, and READ_ONLY is not set
 *  ERANGE      the range is empty, not inside the dma-buf, or exceeds @max_buffer
 *  EOPNOTSUPP  the exporter cannot map it into the kernel, it is not system memory, or no fast
 *              registration
 *  EAGAIN      passed on from the exporter
 *  EINTR       the process is being killed, or a signal arrived while the exporter waited
 *  EBADFD, EADDRNOTAVAIL, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_buffer_import - creates a buffer of a dma-buf
 * @flags: [in] RUST_ULP_BUFFER_READ_ONLY.
 * @pd: [in; handle] Protection domain.
 * @fd: [in; descriptor] The dma-buf; EBADF if there is no such descriptor, EINVAL if it is another
 *   file.
 * @offset: [in; bytes; a multiple of the kernel's page] First byte.
 * @length: [in, out; bytes; 0 to 2^30] Length; 0: all from @offset on; out: the length.
 * @key_bytes: [out; bytes] Bytes per key of the device.
 * @keys: [out; count, from 1] Number of keys.
 * @page_size: [out; bytes; a power of two from 4096 to 2097152] Contiguous bytes.
 * @handle: [out; handle] The new buffer.
 *
 * For a software device (RUST_ULP_CAP_VIRT_DMA), the dma-buf must be system memory that its
 * exporter can map into the kernel, else EOPNOTSUPP. For any other device, the kernel attaches the
 * device to the dma-buf and maps it for DMA; this is untested on hardware. The buffer has no mmap
 * offset. EACCES: the dma-buf is not open for writing and READ_ONLY is not set.
 */
struct rust_ulp_buffer_import {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__s32 fd;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 key_bytes;
	__u32 keys;
	__u32 page_size;
	__u32 handle;
	__u32 pad;
};

/* rust_ulp_buffer_query.kind */
#define RUST_ULP_BUFFER_PAGES	1	/* BUFFER_CREATE */
#define RUST_ULP_BUFFER_USER	2	/* BUFFER_REGISTER */
#define RUST_ULP_BUFFER_DMABUF	3	/* BUFFER_IMPORT */

/*
 * Errnos of BUFFER_QUERY:
 *
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_buffer_query - describes a buffer
 * @buffer: [in; handle] Buffer.
 * @kind: [out] RUST_ULP_BUFFER_PAGES, RUST_ULP_BUFFER_USER or RUST_ULP_BUFFER_DMABUF.
 * @length: [out; bytes; 1 to 2^30] Length.
 * @charged: [out; bytes] Bytes that are charged to RLIMIT_MEMLOCK.
 * @mmap_offset: [out; bytes; for mmap(2)] Where to map the buffer; 0: it cannot be mapped.
 * @key_bytes: [out; bytes] Bytes per key of the device.
 * @keys: [out; count, from 1] Number of keys.
 * @page_size: [out; bytes; a power of two from 4096 to 2097152] Contiguous bytes.
 * @node: [out; NUMA node, or -1] NUMA node of the first page.
 * @grants: [out; count] Number of its grants.
 * @buffer_flags: [out] RUST_ULP_BUFFER_READ_ONLY.
 */
struct rust_ulp_buffer_query {
	__u32 size;
	__u32 flags;
	__u32 buffer;
	__u32 kind;
	__aligned_u64 length;
	__aligned_u64 charged;
	__aligned_u64 mmap_offset;
	__aligned_u64 key_bytes;
	__u32 keys;
	__u32 page_size;
	__s32 node;
	__u32 grants;
	__u32 buffer_flags;
	__u32 pad;
};

/* rust_ulp_grant_create.flags and rust_ulp_grant_query.grant_flags */
#define RUST_ULP_GRANT_ONE_SHOT_INV	(1U << 0)	/* ends when invalidated; needs @qp */
#define RUST_ULP_GRANT_PARTIAL		(1U << 1)	/* may grant less, and returns @length */

/*
 * Errnos of GRANT_CREATE:
 *
 *  EOPNOTSUPP  the driver does not grant REMOTE_ATOMIC
 *  EINVAL      no right is given, or one is not defined; ONE_SHOT_INV without @qp
 *  EACCES      a right to write a READ_ONLY buffer
 *  ERANGE      the range is empty, not inside the buffer, or (without PARTIAL) crosses the border
 *              of a key
 *  EXDEV       @qp and @buffer belong to different protection domains
 *  ENOTCONN    @qp is in ERR
 *  EADDRNOTAVAIL  the registration needs a port with an address, and the device has none any more
 *  ENOENT, EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_grant_create - gives the peer access to a range of a buffer
 * @flags: [in] RUST_ULP_GRANT_ONE_SHOT_INV, RUST_ULP_GRANT_PARTIAL.
 * @buffer: [in; handle] Buffer.
 * @access: [in] RUST_ULP_ACCESS_REMOTE_*, at least one.
 * @offset: [in; bytes] First byte.
 * @length: [in, out; bytes; 1 to 2^30] Length; out: the granted length, with PARTIAL.
 * @addr: [out; bytes; remote address] Remote address of the first byte.
 * @rkey: [out; 32 bits] The key.
 * @handle: [out; handle] The new grant; destroying it revokes the key.
 * @qp: [in; handle or 0] Queue pair with which the grant ends, or 0.
 * @user_data: [in; any] The kernel copies it to events of the grant.
 *
 * A grant has one key and one range. The range may cross the border between two keys of its buffer.
 * It must not be larger than the device supports per key: else the command returns ERANGE, or
 * grants less with PARTIAL.
 *
 * A grant with @qp ends when that queue pair goes to ERR or RESET or is destroyed, whatever the
 * cause. ENOTCONN: @qp is in ERR. The file reports RUST_ULP_EVENT_GRANT_ENDED when the peer can no
 * longer access the memory. The handle stays valid until it is destroyed.
 *
 * A grant with ONE_SHOT_INV also ends when a receive of @qp completes that invalidated the key
 * (SEND_WITH_INV).
 *
 * The protection domain is the trust boundary of a grant, with @qp or without. @qp limits the life
 * of the key, not its users: the device checks that key and queue pair have the same protection
 * domain. The peer of any queue pair of the domain can use the key if it knows it. Give peers that
 * do not trust each other different protection domains.
 */
struct rust_ulp_grant_create {
	__u32 size;
	__u32 flags;
	__u32 buffer;
	__u32 access;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 addr;
	__u32 rkey;
	__u32 handle;
	__u32 qp;
	__u32 pad;
	__aligned_u64 user_data;
};

/* rust_ulp_grant_query.state */
#define RUST_ULP_GRANT_ACTIVE	1
#define RUST_ULP_GRANT_USED	2	/* a grant with ONE_SHOT_INV was used */
#define RUST_ULP_GRANT_EXPIRED	3	/* its queue pair went to ERR or RESET, or was destroyed */

/*
 * Errnos of GRANT_QUERY:
 *
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_grant_query - describes a grant
 * @grant: [in; handle] Grant.
 * @state: [out] RUST_ULP_GRANT_ACTIVE, RUST_ULP_GRANT_USED or RUST_ULP_GRANT_EXPIRED.
 * @buffer: [out; handle] Buffer.
 * @qp: [out; handle or 0] Queue pair with which the grant ends, or 0.
 * @offset: [out; bytes] First byte.
 * @length: [out; bytes; 1 to 2^30] Length.
 * @addr: [out; bytes; remote address] Remote address of the first byte.
 * @rkey: [out; 32 bits] The key; 0: the grant has ended.
 * @access: [out] RUST_ULP_ACCESS_REMOTE_*.
 * @grant_flags: [out] RUST_ULP_GRANT_ONE_SHOT_INV.
 * @user_data: [out; any] @user_data of GRANT_CREATE.
 */
struct rust_ulp_grant_query {
	__u32 size;
	__u32 flags;
	__u32 grant;
	__u32 state;
	__u32 buffer;
	__u32 qp;
	__aligned_u64 offset;
	__aligned_u64 length;
	__aligned_u64 addr;
	__u32 rkey;
	__u32 access;
	__u32 grant_flags;
	__u32 pad;
	__aligned_u64 user_data;
};

/*
 * Errnos of AH_CREATE:
 *
 *  EINVAL      @is_global is not 0 or 1; @static_rate is not defined; the address has no GRH on
 *              Ethernet
 *  EOPNOTSUPP  no datagrams on this device
 *  ERANGE      @flow_label, @sl or @src_path_bits is outside its range
 *  ENOENT      the port or GID index does not exist, or this file may not use it; the file has no
 *              such handle
 *  EHOSTUNREACH  there is no route to the host, or a local one without an interface
 *  ENETUNREACH  there is no route to the network
 *  ETIMEDOUT   the link-layer address was not resolved in time
 *  EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_ah_create - creates an address handle for datagrams
 * @pd: [in; handle] Protection domain.
 * @handle: [out; handle] The new address handle.
 * @attr: [in, out] The path; out: @dmac and @hop_limit as the kernel resolved them.
 *
 * The address handle may be destroyed while requests that use it are in flight. A datagram that is
 * longer than the port's MTU at the time of AH_CREATE fails with EMSGSIZE.
 */
struct rust_ulp_ah_create {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__u32 handle;
	struct rust_ulp_ah_attr attr;
};

/*
 * Errnos of SRQ_CREATE:
 *
 *  EOPNOTSUPP  no shared receive queues on this device
 *  ERANGE      more requests or elements than the module or the device supports; @limit exceeds
 *              @max_wr
 *  ENOENT, EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_srq_create - creates a shared receive queue
 * @pd: [in; handle] Protection domain.
 * @cq: [in; handle] Completion queue.
 * @max_wr: [in, out; requests; 0 (which is 1) to 16384] Requests in flight: requested, then
 *   granted.
 * @max_sge: [in, out; elements; 0 (which is 1) to 16] Elements per request: requested, then
 *   granted.
 * @limit: [in; requests] The limit, as SRQ_MODIFY arms it; 0: none.
 * @handle: [out; handle] The new shared receive queue.
 *
 * SUBMIT posts requests to a shared receive queue by its handle in @qp of struct rust_ulp_wr. They
 * complete in @cq, with the handle of the queue pair that consumed them. A queue pair that uses the
 * queue must have @cq as its @recv_cq and the same @pd, else QP_CREATE returns EXDEV.
 *
 * If a queue pair goes to ERR or RESET, or is destroyed, in the middle of a message, it keeps the
 * request that the message occupies. That request completes as flushed, with the handle of the
 * shared receive queue, at the next operation on the queue after a later request has completed.
 * Destroying the queue completes all remaining requests as flushed.
 *
 * As far as the kernel can tell, a connected and idle queue pair may also hold the request. So the
 * request stays until each queue pair that uses the queue has completed a later one or has ended. A
 * peer whose queue pairs end in the middle of messages can thus drain a queue that it shares with
 * idle peers. SRQ_QUERY counts these requests as @orphans: post others in their place, or destroy
 * idle queue pairs.
 */
struct rust_ulp_srq_create {
	__u32 size;
	__u32 flags;
	__u32 pd;
	__u32 cq;
	__u32 max_wr;
	__u32 max_sge;
	__u32 limit;
	__u32 handle;
};

/*
 * Errnos of SRQ_MODIFY:
 *
 *  ERANGE      @limit exceeds @max_wr
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_srq_modify - arms the limit of a shared receive queue
 * @srq: [in; handle] Shared receive queue.
 * @limit: [in; requests] The limit, at most @max_wr; 0 disarms it.
 *
 * The file reports RUST_ULP_EVENT_SRQ_LIMIT once, when fewer than @limit requests are left.
 */
struct rust_ulp_srq_modify {
	__u32 size;
	__u32 flags;
	__u32 srq;
	__u32 limit;
};

/*
 * Errnos of SRQ_QUERY:
 *
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_srq_query - describes a shared receive queue
 * @srq: [in; handle] Shared receive queue.
 * @max_wr: [out; requests] Requests that may be in flight.
 * @max_sge: [out; elements] Elements per request.
 * @limit: [out; requests] The limit; 0: it is disarmed, or has raised its event.
 * @recvs_in_flight: [out; requests] Requests in flight.
 * @orphans: [out; requests] Requests of these that a queue pair has taken, though a later request
 *   has completed. Each queue pair in use may hold one; queue pairs that have ended hold the rest.
 *   0 while no later request completes, as in a queue of which every request is taken; and where
 *   the driver does not take requests in order, as all but rxe.
 */
struct rust_ulp_srq_query {
	__u32 size;
	__u32 flags;
	__u32 srq;
	__u32 max_wr;
	__u32 max_sge;
	__u32 limit;
	__u32 recvs_in_flight;
	__u32 orphans;
};

/*
 * Errnos of DESTROY:
 *
 *  EBUSY       another object uses it: a grant uses its buffer, a connection its queue pair, a
 *              queue pair its completion queues and its shared receive queue, a shared receive
 *              queue its completion queue, and other objects their protection domain
 *  EIO         the driver did not revoke the key of a grant: the grant stays, and the peer can
 *              still use it
 *  ENOENT      a shared cause
 */

/**
 * struct rust_ulp_destroy - destroys an object
 * @handle: [in; handle] Object of any type; EBUSY while other objects use it.
 *
 * Other threads that wait for the object get ENOENT.
 */
struct rust_ulp_destroy {
	__u32 size;
	__u32 flags;
	__u32 handle;
	__u32 pad;
};

/* ---- Events -------------------------------------------------------------- */

/*
 * The maximum number of unread records of a file. The kernel counts further events, and reports
 * their number by one RUST_ULP_EVENT_LOST when there is room again.
 */
#define RUST_ULP_EVENTS_MAX	256

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

/**
 * struct rust_ulp_event - describes one event, in the records that read() returns
 * @event: [out] RUST_ULP_EVENT_*.
 * @handle: [out; handle or 0] The object, or 0.
 * @port: [out; 0, or 1 to phys_ports] Port, or 0.
 * @info: [out; by @event] Detail of the event.
 * @time_ns: [out; ns] Time of the event, CLOCK_MONOTONIC of the reader's time namespace.
 * @user_data: [out; any] @user_data of the queue pair, grant, listener or connection @handle, else
 *   0.
 *
 * read() on an attached file returns as many whole records as are available and fit. Each has the
 * @event_size bytes of ATTACH. read() waits for the first record, or returns EAGAIN with
 * O_NONBLOCK. EINVAL: not one record fits. ENXIO: the file is not attached. After the device is
 * removed, the last record is RUST_ULP_EVENT_DEVICE_REMOVED, and then read() returns ENODEV. The
 * object of a record may have been destroyed.
 *
 * An event that is marked as merged makes no record while one of its kind and object is unread,
 * whose @info it updates. When RUST_ULP_EVENTS_MAX records are unread, a
 * RUST_ULP_EVENT_CONNECT_REQUEST record gives its place to a record of another kind.
 *
 * poll() reports POLLIN while there are records. Completions do not make the file readable:
 * RUST_ULP_IOC_CQ_EVENTFD has an eventfd report them.
 */
struct rust_ulp_event {
	__u32 event;
	__u32 handle;
	__u32 port;
	__u32 info;
	__aligned_u64 time_ns;
	__aligned_u64 user_data;
};

/* rust_ulp_attach.event_size: the size of the first version of struct rust_ulp_event */
#define RUST_ULP_EVENT_SIZE_V1	32

/* ---- Connections by the RDMA connection manager -------------------------- */

/*
 * Addresses belong to the opener's network namespace. The port space is RDMA_PS_TCP. Only queue
 * pairs of type RC can be connected.
 *
 * EACCES         LISTEN, CONNECT: a local port below 1024 needs CAP_NET_BIND_SERVICE
 * EADDRINUSE     LISTEN: the port is in use
 * EADDRNOTAVAIL  no device has that local address
 * ECONNREFUSED   CONN_WAIT: the peer rejected; see @reject_reason and the private data
 * ECONNRESET     ACCEPT, CONN_WAIT: the peer closed the connection during the handshake
 * EHOSTUNREACH, ENETUNREACH  there is no route, or no host answers for that address
 * EINTR          a signal interrupted the wait; CONN_WAIT: the attempt goes on
 * EISCONN        the queue pair or the request already has a connection; QP_MODIFY: it has one
 * ENOTCONN       the connection has ended, or was not begun
 * ETIME          the time of the wait ran out; CONN_WAIT: the attempt goes on
 * ETIMEDOUT      the peer does not answer
 * EXDEV          the local address, the route to the peer, or the request belongs to another device
 *
 * CONNECT and ACCEPT begin an attempt to connect, and do not wait for its end:
 *
 *  - CONN_WAIT waits for the end, and returns what was agreed, or the error.
 *  - The end is an event, too: RUST_ULP_EVENT_ESTABLISHED or RUST_ULP_EVENT_CONNECT_FAILED.
 *  - CONN_QUERY returns RUST_ULP_CONN_CONNECTING until then. DESTROY gives the attempt up.
 *  - An attempt that fails gives its queue pair back before the event. The handle stays valid, with
 *    the state RUST_ULP_CONN_FAILED, until DESTROY.
 *
 * The connection manager limits the time of an attempt: to about a minute on RoCE, to more with a
 * large @ack_timeout. A peer that asks for more time (MRA) can prolong an attempt beyond a day.
 * DESTROY ends it at any time.
 */

/**
 * struct rust_ulp_addr - holds an IP address and a port
 * @family: [in, out; 0, 2, 10] AF_INET is 2, AF_INET6 is 10; 0 where an address is optional.
 * @port: [in, out; 0 to 65535] Port, in host byte order.
 * @scope_id: [in, out; interface index] Interface of an IPv6 link-local address, else 0.
 * @addr: [in, out; 16 bytes, network order] The address; an IPv4 address is in the first four
 *   bytes, and zeros follow.
 *
 * The struct stands for both struct sockaddr_in and struct sockaddr_in6.
 */
struct rust_ulp_addr {
	__u16 family;
	__u16 port;
	__u32 scope_id;
	__u8 addr[16];
};

/* Maximum bytes of private data. */
#define RUST_ULP_CM_REQ_PRIVATE_MAX	56	/* of CONNECT */
#define RUST_ULP_CM_REP_PRIVATE_MAX	196	/* of ACCEPT */
#define RUST_ULP_CM_REJ_PRIVATE_MAX	148	/* of REJECT */
#define RUST_ULP_CM_PRIVATE_MAX		224	/* of any, including the peer's padding */

/**
 * struct rust_ulp_conn_param - holds the parameters of a connection
 * @responder_resources: [in, out; 0 to max_qp_rd_atom] Maximum outstanding reads and atomics of the
 *   peer.
 * @initiator_depth: [in, out; 0 to max_qp_init_rd_atom] Maximum outstanding reads and atomics of
 *   this side.
 * @retry_cnt: [in, out; 0 to 7] Retries after a timeout. The value of CONNECT applies to both
 *   sides.
 * @rnr_retry: [in, out; 0 to 7] Retries after RNR NAK. in: for the peer to use; out: for this side,
 *   from the peer.
 * @min_rnr_timer: [in, out; 0 to 31] As rust_ulp_qp_attr.min_rnr_timer.
 * @ack_timeout: [in, out; 0 to 31] Local ACK timeout: 4.096 us * 2^n; 0: the connection manager
 *   chooses. in: at most 21: the kernel keeps memory of a connection so long after its end.
 * @traffic_class: [in, out; 0 to 255; DSCP in the upper 6 bits] Type of service if
 *   RUST_ULP_CONN_TRAFFIC_CLASS is set, else that of the route.
 * @path_mtu: [in, out; 0 to 5] enum ib_mtu, at most that of the route; 0: that of the route. ACCEPT
 *   cannot lower it.
 * @access_flags: [in, out] RUST_ULP_ACCESS_REMOTE_*: what the peer may do.
 * @flags: [in, out] RUST_ULP_CONN_*.
 *
 * A command takes the requested parameters, and returns the negotiated ones in another member.
 */
struct rust_ulp_conn_param {
	__u8 responder_resources;
	__u8 initiator_depth;
	__u8 retry_cnt;
	__u8 rnr_retry;
	__u8 min_rnr_timer;
	__u8 ack_timeout;
	__u8 traffic_class;
	__u8 path_mtu;
	__u32 access_flags;
	__u32 flags;
	__u32 reserved[4];
};

/* rust_ulp_conn_param.flags */
#define RUST_ULP_CONN_TRAFFIC_CLASS	(1U << 0)
#define RUST_ULP_CONN_FLOW_CONTROL	(1U << 1)	/* end-to-end, if the device supports it */

/*
 * Errnos of LISTEN:
 *
 *  EINVAL      the address family is not supported, there is no address, or bytes of it that must
 *              be zero are not
 *  EACCES      a port below 1024 without CAP_NET_BIND_SERVICE
 *  EADDRINUSE  the port is taken
 *  EADDRNOTAVAIL  no device has the address
 *  ERANGE      @backlog is not 1 to 1024
 *  EXDEV       another device than the file's has the address
 *  EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_listen - creates a listener
 * @addr: [in, out] Local address, all zero for any; out: the port, if that was 0.
 * @backlog: [in; requests; 1 to 1024] Maximum pending requests; the kernel rejects more. A request
 *   counts until GET_REQUEST, or until its sender says that it gave up. When all places are taken,
 *   the kernel rejects requests that are older than 69 s: the connection manager of their senders
 *   gives up by then.
 * @handle: [out; handle] The new listener.
 * @user_data: [in; any] The kernel copies it to events of the listener.
 */
struct rust_ulp_listen {
	__u32 size;
	__u32 flags;
	struct rust_ulp_addr addr;
	__u32 backlog;
	__u32 handle;
	__aligned_u64 user_data;
};

/*
 * Errnos of GET_REQUEST:
 *
 *  ENOENT      the file has no such handle, or another thread destroyed the listener during the
 *              wait
 *  ETIME       no request arrived in time
 *  EINTR       a signal arrived
 *  EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_get_request - takes the oldest request of a listener
 * @listener: [in; handle] Listener.
 * @handle: [out; handle] The request. ACCEPT makes it a connection; DESTROY rejects it.
 * @timeout_ns: [in, out; ns] How long to wait; out: what is left.
 * @peer: [out] Address of the peer.
 * @local: [out] Local address.
 * @param: [out] The peer's requested parameters, as this side would pass them to ACCEPT: the reads
 *   are at most those of the device. The kernel rejects a request with another @path_mtu than 1 to
 *   5, or with an @ack_timeout above 21 (reason 5).
 * @peer_qp_num: [out; 24 bits] Number of the queue pair of the peer.
 * @private_len: [out; bytes; 0 to 224] Length of the private data; the connection manager pads it
 *   with zeros.
 * @private_data: [out; bytes] The private data.
 *
 * If the struct can no longer be written when a request has arrived, the command returns EFAULT,
 * and the kernel rejects the request.
 */
struct rust_ulp_get_request {
	__u32 size;
	__u32 flags;
	__u32 listener;
	__u32 handle;
	__aligned_u64 timeout_ns;
	struct rust_ulp_addr peer;
	struct rust_ulp_addr local;
	struct rust_ulp_conn_param param;
	__u32 peer_qp_num;
	__u32 private_len;
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];
};

/*
 * Errnos of ACCEPT:
 *
 *  EINVAL      a right, a flag or @path_mtu is not defined; bytes beyond @private_len are not zero
 *  ERANGE      a parameter is outside its range, or exceeds the device's reads and atomics;
 *              @path_mtu is below the request's
 *  EMSGSIZE    @private_len exceeds 196
 *  EOPNOTSUPP  the queue pair is not RC
 *  EPROTO      the queue pair is neither in RESET nor in INIT
 *  EISCONN     the queue pair has a connection, or the request was accepted
 *  ENOTCONN    the connection request has ended
 *  ECONNRESET  the peer has ended; the request has failed
 *  ETIMEDOUT   the request was too old, and has failed
 *  ENOENT, EBADFD, ENOMEM  a shared cause
 *  EHOSTUNREACH, ENETUNREACH  no path leads to the peer any more: the core resolves its address
 *              again for RTR
 */

/**
 * struct rust_ulp_accept - accepts a request
 * @request: [in; handle] The request; on success the handle becomes that of the connection.
 * @qp: [in; handle] Queue pair.
 * @param: [in] Requested parameters.
 * @private_len: [in; bytes; 0 to 196] Length of the private data.
 * @private_data: [in; bytes] The private data, then zeros.
 * @user_data: [in; any] The kernel copies it to events of the connection.
 *
 * An attempt brings the queue pair from RESET to RTS: ACCEPT before it answers, and the kernel when
 * the peer has answered CONNECT. If the attempt fails, the queue pair is in RESET. The caller may
 * bring the queue pair to INIT first, to post receives. An attempt that fails then leaves it in
 * INIT with its receives, unless both sides have answered each other already: in that case the
 * queue pair is in RESET and its receives are flushed.
 *
 * If ACCEPT fails with ECONNRESET, ETIMEDOUT or an error of the connection manager, the request has
 * failed (RUST_ULP_CONN_FAILED), and only DESTROY is left for it. After any other error the request
 * is unchanged.
 *
 * A connection uses its queue pair until DESTROY of the connection, which disconnects.
 */
struct rust_ulp_accept {
	__u32 size;
	__u32 flags;
	__u32 request;
	__u32 qp;
	struct rust_ulp_conn_param param;
	__u32 pad;
	__u32 private_len;
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];
	__aligned_u64 user_data;
};

/*
 * Errnos of REJECT:
 *
 *  EINVAL      bytes beyond @private_len are not zero
 *  EMSGSIZE    @private_len exceeds 148
 *  EISCONN     the request was accepted, or another thread accepts it
 *  ENOTCONN    the request has ended
 *  ENOENT, EBADFD  a shared cause
 *  ENOMEM      no memory for the message: the request waits on
 */

/**
 * struct rust_ulp_reject - rejects a request
 * @request: [in; handle] The request; the command destroys it.
 * @private_len: [in; bytes; 0 to 148] Length of the private data.
 * @private_data: [in; bytes] The private data, then zeros.
 */
struct rust_ulp_reject {
	__u32 size;
	__u32 flags;
	__u32 request;
	__u32 private_len;
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];
};

/*
 * Errnos of CONNECT:
 *
 *  EINVAL      the address family is not supported; the destination is missing, the wildcard
 *              address or port 0; source and destination have different families; a right, a flag
 *              or @path_mtu is not defined; bytes beyond @private_len are not zero
 *  EACCES      a source port below 1024 without CAP_NET_BIND_SERVICE
 *  EADDRNOTAVAIL  no device has the source address
 *  EHOSTUNREACH  there is no route to the address, or it is a wildcard address
 *  ENETUNREACH  there is no route to the network
 *  ERANGE      a parameter is outside its range, or exceeds the device's reads and atomics
 *  EMSGSIZE    @private_len exceeds 56
 *  EOPNOTSUPP  the queue pair is not RC
 *  EPROTO      the queue pair is neither in RESET nor in INIT
 *  EISCONN     the queue pair has a connection
 *  ENOENT, EBADFD, EMFILE, EDQUOT, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_connect - connects a queue pair to a listener
 * @qp: [in; handle] Queue pair.
 * @handle: [out; handle] The connection.
 * @dst: [in] Address of the peer.
 * @src: [in] Local address; @family 0: that of the route.
 * @param: [in] Requested parameters.
 * @private_len: [in; bytes; 0 to 56] Length of the private data.
 * @private_data: [in; bytes] The private data, then zeros.
 * @user_data: [in; any] The kernel copies it to events of the connection.
 */
struct rust_ulp_connect {
	__u32 size;
	__u32 flags;
	__u32 qp;
	__u32 handle;
	struct rust_ulp_addr dst;
	struct rust_ulp_addr src;
	struct rust_ulp_conn_param param;
	__u32 pad;
	__u32 private_len;
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];
	__aligned_u64 user_data;
};

/*
 * Errnos of CONN_WAIT:
 *
 *  ENOTCONN    it is a request: ACCEPT has not begun, or REJECT has ended it
 *  EADDRNOTAVAIL  CONNECT: no device has the source address
 *  EHOSTUNREACH  CONNECT: there is no route to the address, or no host answers for it
 *  ENETUNREACH  CONNECT: there is no route to the network
 *  EXDEV       CONNECT: the source address or the route belongs to another device than the file's
 *  ECONNREFUSED  the peer rejected the request, or no program listens: see @reject_reason (28: the
 *              peer called REJECT)
 *  ECONNRESET  the peer ended while the connection was established
 *  ETIMEDOUT   the peer does not answer: the time of the connection manager ran out
 *  EPROTO      the peer answered with an MTU that is not defined, or with a Target ACK Delay that
 *              makes the timewait state longer than 16 s
 *  ETIME       the time ran out; the attempt goes on
 *  EINTR       a signal arrived; the attempt goes on
 *  ENOENT      the file has no such handle, or another thread destroyed the connection during the
 *              wait
 *  EBADFD, ENOMEM  a shared cause
 */

/**
 * struct rust_ulp_conn_wait - waits for the end of an attempt to connect
 * @conn: [in; handle] The connection that CONNECT or ACCEPT began.
 * @peer_qp_num: [out; 24 bits] Number of the queue pair of the peer.
 * @timeout_ns: [in, out; ns] How long to wait; out: what is left.
 * @local: [out] The local address in use.
 * @agreed: [out] Negotiated parameters.
 * @reject_reason: [out; number] Valid even if the command fails: 0, or a reason of IBA 12.6.7.2; 28
 *   stands for the peer's REJECT.
 * @private_len: [out; bytes; 0 to 224] Length of the private data; the connection manager pads it
 *   with zeros.
 * @private_data: [out; bytes] The private data of the peer, valid even if the command fails. After
 *   ACCEPT, that of the request.
 *
 * Any number of threads may wait. A wait that ends changes nothing: CONN_WAIT returns the same
 * values, or the same error, each time until DESTROY. A connection that was established and has
 * ended since was established: CONN_QUERY tells its present state.
 */
struct rust_ulp_conn_wait {
	__u32 size;
	__u32 flags;
	__u32 conn;
	__u32 peer_qp_num;
	__aligned_u64 timeout_ns;
	struct rust_ulp_addr local;
	struct rust_ulp_conn_param agreed;
	__u32 reject_reason;
	__u32 private_len;
	__u8 private_data[RUST_ULP_CM_PRIVATE_MAX];
};

/*
 * Errnos of DISCONNECT:
 *
 *  ENOTCONN    the connection has ended, or is not established yet
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_disconnect - ends a connection
 * @conn: [in; handle] Connection; its queue pair goes to ERR and its requests are flushed.
 *
 * On InfiniBand and RoCE, the connection manager sends a DREQ and repeats it until the peer
 * answers, at most 15 times. DESTROY of a connection and the end of its file send it once. If the
 * peer does not receive it, the peer's connection stays RUST_ULP_CONN_ESTABLISHED, and receives
 * that are posted there do not complete: no packet checks whether the other end still exists. A
 * deadline (@timeout_ns of struct rust_ulp_wr) completes a receive. A send fails when it is not
 * acknowledged.
 */
struct rust_ulp_disconnect {
	__u32 size;
	__u32 flags;
	__u32 conn;
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

/*
 * Errnos of CONN_QUERY:
 *
 *  ENOENT, EBADFD  a shared cause
 */

/**
 * struct rust_ulp_conn_query - describes a connection, a request or a listener
 * @conn: [in; handle] Connection, request or listener.
 * @state: [out] RUST_ULP_CONN_*.
 * @local: [out] Local address.
 * @peer: [out] Address of the peer.
 * @param: [out] Negotiated parameters.
 * @qp: [out; handle or 0] Queue pair, or 0.
 * @peer_qp_num: [out; 24 bits] Number of the queue pair of the peer.
 * @waiting: [out; requests] Pending requests of a listener.
 * @backlog: [out; requests; 1 to 1024] @backlog of a listener, as in LISTEN.
 * @rejected: [out; requests] Requests that a listener rejected because of @backlog.
 * @user_data: [out; any] @user_data of LISTEN, ACCEPT or CONNECT; 0 for a request.
 */
struct rust_ulp_conn_query {
	__u32 size;
	__u32 flags;
	__u32 conn;
	__u32 state;
	struct rust_ulp_addr local;
	struct rust_ulp_addr peer;
	struct rust_ulp_conn_param param;
	__u32 qp;
	__u32 peer_qp_num;
	__u32 waiting;
	__u32 backlog;
	__u32 rejected;
	__u32 pad;
	__aligned_u64 user_data;
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

/**
 * struct rust_ulp_sge - describes one element, a range of local memory
 * @buffer: [in; handle or 0] Buffer; 0, only with RUST_ULP_SEND_INLINE: @offset is an address.
 * @length: [in; bytes; 0 to 2^31 in all] Length.
 * @offset: [in; bytes, or an address] Offset in the buffer, or address.
 */
struct rust_ulp_sge {
	__u32 buffer;
	__u32 length;
	__aligned_u64 offset;
};

/**
 * struct rust_ulp_wr_atomic - holds the operands of an atomic
 * @compare_add: [in; 64 bits] Value to compare with, or to add.
 * @swap: [in; 64 bits] Value to store if the comparison holds; 0 for ATOMIC_FETCH_AND_ADD.
 */
struct rust_ulp_wr_atomic {
	__aligned_u64 compare_add;
	__aligned_u64 swap;
};

/**
 * struct rust_ulp_wr_ud - names the receiver of a datagram
 * @ah: [in; handle] Address handle.
 * @qp_num: [in; 24 bits] Number of the queue pair.
 * @qkey: [in; 32 bits] Q_Key; with bit 31 set, that of the sending queue pair (IBA 10.2.5).
 */
struct rust_ulp_wr_ud {
	__u32 ah;
	__u32 qp_num;
	__u32 qkey;
	__u32 pad;
};

/**
 * struct rust_ulp_wr - describes a work request
 * @user_data: [in; any] The kernel copies it to the completion.
 * @qp: [in; handle] Queue pair, or a shared receive queue for RECV.
 * @opcode: [in] RUST_ULP_WR_*.
 * @num_sge: [in; 0 to 16] Number of elements. Up to 1: @sge is the element. More: @sge.offset is
 *   the address of an array of struct rust_ulp_sge, and @sge.buffer and @sge.length are 0.
 * @flags: [in] RUST_ULP_SEND_*, RUST_ULP_REQUEST_*.
 * @remote_addr: [in; bytes; remote address] Remote address, of RDMA and atomic requests.
 * @rkey: [in; 32 bits] Key of the remote memory.
 * @imm_data: [in; 32 bits, host order] Immediate data, or the key to invalidate.
 * @sge: [in] The only element, or the address of the array of elements.
 * @args: [in] What only some opcodes have; 0 for all others.
 * @args.atomic: [in] Operands of an atomic.
 * @args.ud: [in] Receiver of a SEND or SEND_WITH_IMM to a UD queue pair.
 * @timeout_ns: [in; ns] With RUST_ULP_REQUEST_TIMEOUT, the time limit, not 0; the kernel rounds the
 *   end up to a multiple of 2^20 ns. Without that flag there is no limit, and this is 0. If many
 *   requests of a queue run out of time together, the kernel cancels 64 of them every 2^20 ns.
 *
 * RDMA and atomic requests share @remote_addr and @rkey, which are therefore not in the union.
 */
struct rust_ulp_wr {
	__aligned_u64 user_data;
	__u32 qp;
	__u8 opcode;
	__u8 num_sge;
	__u16 flags;
	__aligned_u64 remote_addr;
	__u32 rkey;
	__u32 imm_data;
	struct rust_ulp_sge sge;
	union {
		struct rust_ulp_wr_atomic atomic;
		struct rust_ulp_wr_ud ud;
	} args;
	__aligned_u64 timeout_ns;
};

/* rust_ulp_submit.wr_size: the size of the first version of struct rust_ulp_wr */
#define RUST_ULP_WR_SIZE_V1	72

/*
 * Errnos of SUBMIT:
 *
 *  ENOENT      the queue pair, shared receive queue, buffer, address handle or completion queue
 *              does not exist; a datagram has no address handle
 *  EBADFD      a handle has another type; a send to a shared receive queue
 *  EINVAL      an opcode or a flag is not defined; @timeout_ns is 0 with RUST_ULP_REQUEST_TIMEOUT,
 *              or not 0 without it; a field is set that the opcode does not have; @cq is 0 with a
 *              wait; an atomic is not 8 bytes at an address that is a multiple of 8; @wr_size is
 *              below 72; a connected queue pair gets an address handle
 *  E2BIG       @nr_wrs exceeds 1024; @wr_size exceeds 4096; the request has more elements than the
 *              queue allows, counted after they are cut at the borders of keys; bytes of a request
 *              beyond what the kernel knows are not zero
 *  EAGAIN      the send or receive queue is full, or the completion queue has no place left for the
 *              completion: reap and try again
 *  ENOTCONN    a send before RTS, a receive before INIT, or a request while another thread drains
 *              the queue pair. In ERR the module takes requests and flushes them
 *  EOPNOTSUPP  the type of queue pair or the device does not support the operation; RECV to a queue
 *              pair with a shared receive queue
 *  EMSGSIZE    the message exceeds 2^31 bytes, a datagram the port's MTU, or inline data
 *              @max_inline
 *  ERANGE      an element is not inside its buffer; @min_complete exceeds the ring's entries; the
 *              number of the remote queue pair exceeds 24 bits
 *  EACCES      a receive, read or atomic into a READ_ONLY buffer
 *  EXDEV       the buffer or the address handle belongs to another protection domain than the queue
 *              pair
 *  ENOMEM      a shared cause
 */

/**
 * struct rust_ulp_submit - posts requests and waits for completions
 * @wrs: [in; address] Address of an array of @nr_wrs struct rust_ulp_wr.
 * @nr_wrs: [in; requests; 0 to 1024] Length of that array.
 * @wr_size: [in; bytes; 72 to 4096] sizeof(struct rust_ulp_wr), as the caller knows it.
 * @cq: [in; handle or 0] Completion queue to wait for, or 0.
 * @min_complete: [in; completions] Completions to wait for, at most @entries of the queue.
 * @timeout_ns: [in, out; ns] How long to wait; out: what is left.
 * @posted: [out; requests] Number of posted requests, valid even if the command fails.
 * @stop_error: [out; 0 or a negative errno] Why the kernel refused request number @posted, valid
 *              even if the command fails; 0 if it refused none.
 * @completed: [out; completions] Unread completions in the ring of @cq.
 * @wait_error: [out; 0 or a negative errno] Result of the wait.
 *
 * The command posts @nr_wrs requests, then waits until the ring of @cq has @min_complete unread
 * completions.
 *
 * The kernel posts the requests in the order of the array, and stops at the first one that it or
 * the device refuses: the @posted requests before that one are posted, that one and those after it
 * are not. If the errno is EAGAIN and @posted is not 0, the command still waits, and returns 0.
 * Else it fails with that errno, and does not wait.
 *
 * EAGAIN: a queue is full. This includes the completion queue, which must have room for every
 * request in flight, signaled or not. The queue then has unread completions, or the device is about
 * to complete requests. Unsignaled requests make room without a completion when the device has
 * completed them, whatever follows. Poll completions, and submit the requests from number @posted
 * on again.
 *
 * The command succeeds if it has posted all requests, or the first of them before a queue was full,
 * whatever ends the wait. @wait_error says that:
 *
 *  0         the completions are there
 *  -ETIME    the time ran out
 *  -EINTR    a signal, or task work of an io_uring
 *  -EIO      the device reported an error of its completion queue, see RUST_ULP_CQ_ERROR
 *  -ENODEV   the device was removed
 *  -ENOENT   another thread destroyed @cq
 */
struct rust_ulp_submit {
	__u32 size;
	__u32 flags;
	__aligned_u64 wrs;
	__u32 nr_wrs;
	__u32 wr_size;
	__u32 cq;
	__u32 min_complete;
	__aligned_u64 timeout_ns;
	__u32 posted;
	__s32 stop_error;
	__u32 completed;
	__s32 wait_error;
};

/* rust_ulp_cancel.flags and rust_ulp_uring_cancel.flags */
#define RUST_ULP_CANCEL_ALL	(1U << 0)	/* all requests; @user_data is 0 */

/*
 * Errnos of CANCEL:
 *
 *  EINVAL      a flag is not defined; @user_data is set with ALL
 *  EBADFD      the handle is neither a queue pair nor a shared receive queue
 *  ENOENT      a shared cause
 */

/**
 * struct rust_ulp_cancel - completes requests in flight as canceled
 * @flags: [in] RUST_ULP_CANCEL_*.
 * @queue: [in; handle] Queue pair or shared receive queue.
 * @canceled: [out; requests] Number of canceled requests; may be 0.
 * @user_data: [in; any] @user_data of the requests to cancel.
 *
 * The requests complete with RUST_ULP_WC_STATUS_CANCELED. The command does not affect requests that
 * have completed. A send request without a signaled completion and without a deadline counts as in
 * flight until a later request has completed.
 */
struct rust_ulp_cancel {
	__u32 size;
	__u32 flags;
	__u32 queue;
	__u32 canceled;
	__aligned_u64 user_data;
};

/*
 * Errnos of CQ_EVENTFD:
 *
 *  EBADF       @fd is not open
 *  ENOENT      @cq is not a handle of this file
 *  EINVAL      @fd is not an eventfd
 *  EBUSY       the completion queue has an eventfd; -1 removes it
 *  EBADFD      a shared cause
 */

/**
 * struct rust_ulp_cq_eventfd - signals an eventfd for each completion
 * @cq: [in; handle] Completion queue.
 * @fd: [in; descriptor, or -1] The eventfd; EINVAL if it is another file; -1 removes the eventfd of
 *   the queue.
 *
 * The kernel signals the eventfd for each completion that it adds to the ring of @cq, and when the
 * device is removed. EBUSY: the queue already has an eventfd.
 */
struct rust_ulp_cq_eventfd {
	__u32 size;
	__u32 flags;
	__u32 cq;
	__s32 fd;
};

/* ---- io_uring ------------------------------------------------------------ */

/*
 * IORING_OP_URING_CMD on the same file submits the same requests. cmd_op is one of these numbers,
 * and the command bytes of the entry are one of the structs below, followed by zeros, else E2BIG.
 * Padding is zero.
 *
 * The result (res) of the completion:
 *
 *  0 or more   success: the bytes of a receive, read or atomic, else 0
 *  -EREMOTEIO  the request was posted, and completed with a status other than success
 *  -errno   the request was refused, as by SUBMIT, and not posted. Of a batch, those before it were
 *           posted, and have completed. If the device refused it, sends before it for the same
 *           queue pair may still be in flight, and their failure is not reported
 *
 * A negative result breaks a chain of linked entries. With IORING_SETUP_CQE32, the first extra word
 * of the completion says more, in the terms of struct rust_ulp_cqe:
 *
 *  - One request, which succeeded: bits 0 to 31 are @imm_data, bits 32 to 55 @src_qp, and bits 56
 *    to 63 @flags. Bit 63 is RUST_ULP_URING_RDMA_WITH_IMM.
 *  - A request failed or was refused: bits 0 to 15 are @status, 0 if it was refused; bits 16 to 31
 *    are its index in the batch, 0 without a batch; bits 32 to 63 are @vendor_err.
 *  - Else 0: several requests succeeded, or the command was refused before its requests.
 *
 * The other members of struct rust_ulp_cqe do not fit. Who needs them, as of datagrams on
 * InfiniBand, posts a batch with RUST_ULP_URING_RING. Without IORING_SETUP_CQE32, -EREMOTEIO is all
 * that a program sees of a failure.
 *
 * These requests use no entry of a completion ring, and every request counts as signaled, except
 * with RUST_ULP_URING_RING. A completion queue still has at most @entries requests in flight, from
 * all sources.
 *
 * IORING_OP_ASYNC_CANCEL and IORING_OP_LINK_TIMEOUT do not affect these requests: use
 * RUST_ULP_URING_CANCEL and @timeout_ns. The kernel cancels them when the ring or the process ends.
 */

/*
 * One request: struct rust_ulp_wr. Needs IORING_SETUP_SQE128, which has 80 command bytes. A struct
 * that has grown beyond 80 bytes goes by RUST_ULP_URING_BATCH, which takes its size.
 */
#define RUST_ULP_URING_REQUEST	_IO(RUST_ULP_IOC_MAGIC, 0x80)
/* An array of requests: struct rust_ulp_uring_batch. */
#define RUST_ULP_URING_BATCH	_IO(RUST_ULP_IOC_MAGIC, 0x81)
/* CANCEL: struct rust_ulp_uring_cancel; the result is the number of canceled requests. */
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
 * Errnos of URING_REQUEST:
 *
 *  E2BIG       a command byte after the struct is not zero; as SUBMIT
 *  EINVAL      the ring has entries of 64 bytes; as SUBMIT
 *  EREMOTEIO   the request completed with a status other than success
 *  ECANCELED, EBADF  of io_uring
 *  EACCES, EAGAIN, EBADFD, EMSGSIZE, ENOENT, ENOMEM, ENOTCONN, EOPNOTSUPP, ERANGE, EXDEV  as SUBMIT
 */

/*
 * Errnos of URING_BATCH:
 *
 *  EINVAL      @nr_wrs is 0, or a flag is not defined
 *  E2BIG       @nr_wrs exceeds 1024, or @wr_size exceeds 4096
 *  EREMOTEIO   a request completed with a status other than success
 *  ECANCELED, EBADF  of io_uring
 *  EACCES, EAGAIN, EBADFD, EMSGSIZE, ENOENT, ENOMEM, ENOTCONN, EOPNOTSUPP, ERANGE, EXDEV  as SUBMIT
 */

/**
 * struct rust_ulp_uring_batch - is the command of RUST_ULP_URING_BATCH
 * @wrs: [in; address] Address of an array of @nr_wrs struct rust_ulp_wr.
 * @nr_wrs: [in; requests; 1 to 1024] Length of that array.
 * @wr_size: [in; bytes; 72 to 4096] sizeof(struct rust_ulp_wr), as the caller knows it.
 * @flags: [in] RUST_ULP_URING_RING.
 *
 * The kernel posts the requests in order, and stops at the first one that is refused, as SUBMIT
 * does, for EAGAIN too. The entry completes when the posted requests have completed. If all
 * succeeded, its result is their number. Else its result and its extra word are those of the
 * request that comes first in the array, of those that failed or were refused. If the device
 * refused it, sends before it for the same queue pair may still be in flight. A batch of one
 * request completes like RUST_ULP_URING_REQUEST.
 *
 * With RUST_ULP_URING_RING the entry completes when the requests are posted, and its result is
 * their number, or the errno with which one of them was refused. The requests complete in the rings
 * of their completion queues, and those that are not signaled make no entry there. With
 * IOSQE_CQE_SKIP_SUCCESS, only a batch that is refused has an io_uring completion.
 */
struct rust_ulp_uring_batch {
	__aligned_u64 wrs;
	__u16 nr_wrs;
	__u16 wr_size;
	__u32 flags;
};

/*
 * Errnos of URING_CANCEL:
 *
 *  ENOENT, EBADFD, EINVAL  as CANCEL
 *  ECANCELED, EBADF  of io_uring
 *  EOPNOTSUPP  of io_uring
 */

/**
 * struct rust_ulp_uring_cancel - is the command of RUST_ULP_URING_CANCEL
 * @user_data: [in; any] @user_data of the requests to cancel.
 * @queue: [in; handle] Queue pair or shared receive queue.
 * @flags: [in] RUST_ULP_CANCEL_*.
 */
struct rust_ulp_uring_cancel {
	__aligned_u64 user_data;
	__u32 queue;
	__u32 flags;
};

#endif /* _UAPI_RUST_ULP_H */
