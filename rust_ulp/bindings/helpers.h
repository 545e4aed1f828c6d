/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The types of the C helpers, and the functions that other folders define. The helpers wrap static
 * inlines, macros, and structs whose layout differs between kernels. Rust decides what a caller may
 * do; a helper that can fail does so as the functions of the kernel that it calls or follows.
 *
 * bindgen reads the helpers from the .c files of this folder, so they need no prototypes.
 */
#ifndef _RUST_ULP_HELPERS_H
#define _RUST_ULP_HELPERS_H

#include <linux/cgroup_rdma.h>
#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/mm.h>
#include <linux/percpu-refcount.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

/* Fields of struct ib_device and its attributes, in types that are the same for all kernels. */
struct rust_ulp_h_device {
	u64 max_mr_size;
	u64 page_size_cap;
	u64 device_cap_flags;
	u64 kernel_cap_flags;
	u8 node_guid[8];
	u8 sys_image_guid[8];
	u32 index;
	u32 driver_id; /* enum rdma_driver_id */
	u32 phys_ports;
	u32 num_comp_vectors;
	u32 vendor_id;
	u32 vendor_part_id;
	u32 hw_ver;
	u32 max_qp;
	u32 max_qp_wr;
	u32 max_send_sge;
	u32 max_recv_sge;
	u32 max_sge_rd;
	u32 max_cq;
	u32 max_cqe;
	u32 max_mr;
	u32 max_pd;
	u32 max_qp_rd_atom;
	u32 max_qp_init_rd_atom;
	u32 max_srq;
	u32 max_srq_wr;
	u32 max_srq_sge;
	u32 max_fast_reg_pages;
	u32 local_ca_ack_delay;
	u32 atomic_cap;
	s32 numa_node;
	bool virt_dma;
};

struct rust_ulp_h_gid {
	u8 gid[16];
	u32 gid_type; /* enum ib_gid_type */
	u32 ifindex; /* of the netdev, 0 without @local_net */
	char ifname[16];
	bool local_net; /* the netdev is in the requested namespace */
	bool foreign_net; /* the netdev is in another namespace */
};

/* An address vector: the fields of struct rdma_ah_attr. */
struct rust_ulp_h_av {
	u8 dgid[16]; /* of the peer */
	u32 flow_label; /* 20 bits */
	u32 port; /* the local one */
	u32 dlid; /* of the peer, on InfiniBand; above 16 bits on OPA */
	u8 sgid_index; /* of the local GID */
	u8 hop_limit; /* 0 takes that of the route */
	u8 traffic_class; /* the upper six bits are the DSCP */
	u8 sl;
	u8 static_rate; /* enum ib_rate */
	u8 src_path_bits; /* the low bits of the local LID, on InfiniBand */
	u8 dmac[6]; /* the link-layer address of the peer, on RoCE */
	bool grh; /* the fields of the GRH are used: always on RoCE */
};

u32 rust_ulp_h_payer_uid(void);

/* Those that pinned pages are charged to. */
struct rust_ulp_h_payer {
	struct mm_struct *mm;
	struct user_struct *user; /* NULL when no user is charged */
	u32 uid; /* of the user who pays for @user: rust_ulp_h_payer_uid() */
};

/* A gate, see ext/gate.rs: the counter of its users, and what lockdep knows of it. */
struct rust_ulp_h_gate {
	struct percpu_ref refs;
	struct lockdep_map map;
};

/* The functions of a mapping, whose areas share its pages. */
struct rust_ulp_h_mapping {
	struct page *(*page)(const void *mapping, unsigned long pgoff);
	void (*get)(const void *mapping);
	void (*put)(const void *mapping);
};

/* A dma-buf, which may be mapped into the kernel or for a device. */
struct rust_ulp_h_dmabuf {
	void *buf; /* struct dma_buf */
	void *attach; /* struct dma_buf_attachment, when mapped */
	struct sg_table *sgt; /* set when mapped for a device */
	void *ops; /* struct dma_buf_attach_ops, set with @attach */
	void *vaddr; /* set when mapped into the kernel */
	size_t size;
	bool writable; /* the descriptor is open for writing */
	bool has_vmap; /* the exporter can map it into the kernel */
	bool is_iomem; /* @vaddr is I/O memory */
	bool write; /* of @attach */
};

/* A place of a mapping of the kernel. */
struct rust_ulp_h_page {
	struct page *page; /* NULL when there is none */
	bool reserved;
	bool zone_device;
};

/* Fields of struct vm_area_struct. */
struct rust_ulp_h_vma {
	u64 flags; /* VM_* */
	bool writeback; /* the area maps a file with writeback */
};

/* The fields of struct sockaddr_in and sockaddr_in6. */
struct rust_ulp_h_addr {
	u16 family; /* AF_INET, AF_INET6 */
	u16 port; /* host order */
	u32 scope_id;
	u8 addr[16]; /* network order; IPv4 in the first four bytes */
};

/* The context of an identifier of the connection manager points to this. */
struct rust_ulp_cm_hook {
	int (*event)(struct rdma_cm_id *id, struct rdma_cm_event *event);
};

/* The state of a command of io_uring, see uring.rs. */
struct rust_ulp_uring {
	u32 refs;
	u32 queue;
	u32 slot;
	u32 kind;
	u64 outcome;
	u64 extra;
};

/* A bit of @kind: the completion has room for 32 bytes. */
#define RUST_ULP_URING_BIG (1U << 16)

void rust_ulp_h_uring_done(struct io_uring_cmd *cmd, s32 res, u64 extra,
			   unsigned int issue_flags, bool big);

/* Defined in C for the function tracers, see ext/entry.c. */
struct rust_ulp_cqe_owner {
	void (*done)(struct ib_cq *cq, struct ib_wc *wc);
};

struct rust_ulp_cqe_hook {
	struct ib_cqe cqe;
	const struct rust_ulp_cqe_owner *owner;
};

void rust_ulp_completion(struct ib_cq *cq, struct ib_wc *wc);
void rust_ulp_ignore(struct ib_cq *cq, struct ib_wc *wc);
int rust_ulp_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		       const struct ib_send_wr **bad_wr);
int rust_ulp_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad_wr);
int rust_ulp_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad_wr);

int rust_ulp_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event);

void rust_ulp_h_uring_complete(struct io_uring_cmd *cmd);

int rust_ulp_chardev_register(const char *name, u16 mode);
void rust_ulp_chardev_unregister(void);
struct device *rust_ulp_chardev_device(void);

/* A file in debugfs; @show prints it. */
struct rust_ulp_h_debugfs_file {
	void (*show)(const struct rust_ulp_h_debugfs_file *file,
		     struct seq_file *m);
};

struct dentry *rust_ulp_h_debugfs_create(const char *dir, const char *name,
					 struct rust_ulp_h_debugfs_file *file);
void rust_ulp_h_debugfs_remove(struct dentry *dir);

#ifdef CONFIG_FAULT_INJECTION
int rust_ulp_h_fault(bool can_fail);
bool rust_ulp_h_fault_atomic(void);
void rust_ulp_h_fault_register(const char *name);
void rust_ulp_h_fault_unregister(void);
#endif

#endif /* _RUST_ULP_HELPERS_H */
