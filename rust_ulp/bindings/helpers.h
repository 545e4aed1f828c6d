/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C for what Rust cannot call or must not know: static inlines, macros, and structs whose layout
 * differs between kernels. Nothing here decides anything.
 */
#ifndef _RUST_ULP_HELPERS_H
#define _RUST_ULP_HELPERS_H

#include <linux/cgroup_rdma.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/io_uring/cmd.h>
#include <linux/mm.h>
#include <linux/percpu-refcount.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

/* What of struct ib_device and its attributes is read, in types that do not change. */
struct rust_ulp_h_device {
	u64 max_mr_size;
	u64 page_size_cap;
	u64 device_cap_flags;
	u64 kernel_cap_flags;
	u8 node_guid[8];
	u8 sys_image_guid[8];
	u32 index;
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
	u32 ifindex; /* 0 when there is none, or not in the namespace asked for */
	char ifname[16];
	bool local_net; /* its netdev is in the namespace asked for */
};

/* A dma-buf that is mapped: into the kernel, or for a device. */
struct rust_ulp_h_dmabuf {
	void *buf; /* struct dma_buf */
	void *attach; /* struct dma_buf_attachment of the device, or NULL */
	void *sgt; /* struct sg_table, with @attach */
	void *vaddr; /* without */
	size_t size;
	bool write;
};

/* What of struct vm_area_struct is read. */
struct rust_ulp_h_vma {
	u64 flags; /* VM_* */
	bool writeback; /* maps a file that is written back */
};

/* What struct sockaddr_in and sockaddr_in6 say. */
struct rust_ulp_h_addr {
	u16 family; /* AF_INET, AF_INET6 */
	u16 port; /* host order */
	u32 scope_id;
	u8 addr[16]; /* network order; IPv4 in the first four bytes */
	bool tentative; /* of a netdev: duplicate address detection has not passed */
};

/* What the context of an identifier of the connection manager points at. */
struct rust_ulp_cm_hook {
	int (*event)(struct rdma_cm_id *id, struct rdma_cm_event *event);
};

/* What is kept with a command of io_uring, see uring.rs. */
struct rust_ulp_uring {
	u32 shares; /* of a stream: its state */
	u32 queue;
	u32 slot;
	u32 kind;
	u64 outcome;
	u64 extra;
};

/* In @kind: the completion has room for 32 bytes. */
#define RUST_ULP_URING_BIG (1U << 16)

/* The same, of a stream. */
struct rust_ulp_uring_feed {
	u32 pad[4];
	const void *source;
	void (*run)(struct io_uring_cmd *cmd, bool ended);
};

/* A timer that calls @expired in a softirq. */
struct rust_ulp_timer {
	struct hrtimer timer;
	void (*expired)(const void *context);
	const void *context;
};

/* What of struct rdma_cm_event is read. */
struct rust_ulp_h_cm_event {
	const void *private_data; /* of the peer; lives as long as the event */
	u32 event; /* enum rdma_cm_event_type */
	s32 status;
	u32 qp_num;
	u8 private_data_len;
	u8 responder_resources;
	u8 initiator_depth;
	u8 flow_control;
	u8 retry_count;
	u8 rnr_retry_count;
};

void rust_ulp_h_device_get(struct ib_device *dev);
void rust_ulp_h_device_describe(struct ib_device *dev,
				struct rust_ulp_h_device *out);
struct device *rust_ulp_h_dma_device(struct ib_device *dev);
void rust_ulp_h_device_name(struct ib_device *dev, char *out, size_t len);
bool rust_ulp_h_device_is_driven_by(struct ib_device *dev, const char *module);
bool rust_ulp_h_device_is_iwarp(struct ib_device *dev);
int rust_ulp_h_gid(struct ib_device *dev, u32 port, u32 index, struct net *net,
		   struct rust_ulp_h_gid *out);
u32 rust_ulp_h_port_ifindex(struct ib_device *dev, u32 port, struct net *net);
void rust_ulp_h_register_events(struct ib_event_handler *handler,
				struct ib_device *dev,
				void (*event)(struct ib_event_handler *handler,
					      struct ib_event *event));

int rust_ulp_h_rdmacg_charge(struct ib_device *dev, bool object,
			     struct rdma_cgroup **cg);
void rust_ulp_h_rdmacg_uncharge(struct ib_device *dev, bool object,
				struct rdma_cgroup *cg);

struct ib_pd *rust_ulp_h_alloc_pd(struct ib_device *dev);
void rust_ulp_h_dealloc_pd(struct ib_pd *pd);

struct ib_cq *
rust_ulp_h_alloc_cq(struct ib_device *dev, void *context, int nr_cqe,
		    int comp_vector, enum ib_poll_context poll_ctx,
		    void (*event)(struct ib_event *event, void *context));

struct ib_qp *rust_ulp_h_create_qp(struct ib_pd *pd,
				   struct ib_qp_init_attr *init);
int rust_ulp_h_destroy_qp(struct ib_qp *qp);
u32 rust_ulp_h_qp_num(struct ib_qp *qp);
bool rust_ulp_h_may_control_qkeys(void);
void *rust_ulp_h_qp_context(struct ib_qp *qp);
int rust_ulp_h_drain_ud_sq(struct ib_qp *qp, struct ib_ah *ah);
bool rust_ulp_h_wait_last_wqe(struct ib_qp *qp);
void rust_ulp_h_forget_last_wqe(struct ib_qp *qp);

struct ib_srq *rust_ulp_h_create_srq(struct ib_pd *pd,
				     void (*event)(struct ib_event *event,
						   void *context),
				     void *context, u32 max_wr, u32 max_sge);
int rust_ulp_h_destroy_srq(struct ib_srq *srq);

int rust_ulp_h_dereg_mr(struct ib_mr *mr);
void rust_ulp_h_mr_set_iova(struct ib_mr *mr, u64 iova);
u32 rust_ulp_h_mr_lkey(struct ib_mr *mr);
u32 rust_ulp_h_mr_rkey(struct ib_mr *mr);
void rust_ulp_h_mr_next_key(struct ib_mr *mr);

int rust_ulp_h_sg_alloc(struct sg_table *table, unsigned int nents);
void rust_ulp_h_sg_set(struct scatterlist *sg, struct page *page,
		       unsigned int len, unsigned int offset);
struct scatterlist *rust_ulp_h_sg_next(struct scatterlist *sg);
void rust_ulp_h_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len);
int rust_ulp_h_dma_map(struct ib_device *dev, struct sg_table *sgt);
void rust_ulp_h_dma_unmap(struct ib_device *dev, struct sg_table *sgt);

void rust_ulp_h_ah_attr_set(struct ib_device *dev, struct rdma_ah_attr *attr,
			    u32 port, const u8 dgid[16], u32 flow_label,
			    u8 sgid_index, u8 hop_limit, u8 traffic_class,
			    bool grh, u8 sl, u16 dlid, u8 src_path_bits,
			    u8 static_rate);
void rust_ulp_h_ah_attr_set_dmac(struct rdma_ah_attr *attr, const u8 dmac[6]);
void rust_ulp_h_ah_attr_get_dmac(const struct rdma_ah_attr *attr, u8 dmac[6]);
void rust_ulp_h_ah_attr_get(const struct rdma_ah_attr *attr, u32 *port,
			    u8 dgid[16], u32 *flow_label, u8 *sgid_index,
			    u8 *hop_limit, u8 *traffic_class, bool *grh, u8 *sl,
			    u16 *dlid, u8 *src_path_bits, u8 *static_rate);
struct ib_ah *rust_ulp_h_create_ah(struct ib_pd *pd, struct rdma_ah_attr *attr);
void rust_ulp_h_destroy_ah(struct ib_ah *ah);
u32 rust_ulp_h_ah_netdev_mtu(struct ib_ah *ah);
u32 rust_ulp_h_iboe_mtu(u32 mtu);
int rust_ulp_h_own_dmac(struct ib_device *dev, u32 port, u32 index, u8 dmac[6]);

size_t rust_ulp_h_port_addrs(struct ib_device *dev, u32 port, struct net *net,
			     struct rust_ulp_h_addr *out, size_t max);
struct rdma_cm_id *rust_ulp_h_cm_create(struct net *net, struct ib_device *dev,
					struct rust_ulp_cm_hook *hook);
struct rust_ulp_cm_hook *rust_ulp_h_cm_hook(struct rdma_cm_id *id);
void rust_ulp_h_cm_set_hook(struct rdma_cm_id *id,
			    struct rust_ulp_cm_hook *hook);
int rust_ulp_h_cm_bind(struct rdma_cm_id *id,
		       const struct rust_ulp_h_addr *addr);
int rust_ulp_h_cm_resolve_addr(struct rdma_cm_id *id,
			       const struct rust_ulp_h_addr *src,
			       const struct rust_ulp_h_addr *dst,
			       unsigned long timeout_ms);
void rust_ulp_h_cm_addrs(struct rdma_cm_id *id, struct rust_ulp_h_addr *local,
			 struct rust_ulp_h_addr *peer);
bool rust_ulp_h_cm_device_index(struct rdma_cm_id *id, u32 *index);
bool rust_ulp_h_cm_path(struct rdma_cm_id *id, u8 *mtu, u8 *traffic_class);
void rust_ulp_h_cm_limit_mtu(struct rdma_cm_id *id, u8 mtu);
void rust_ulp_h_cm_event_read(const struct rdma_cm_event *event,
			      struct rust_ulp_h_cm_event *out);

u64 rust_ulp_h_random(void);
void rust_ulp_h_synchronize_rcu(void);

struct net *rust_ulp_h_current_net(void);
void rust_ulp_h_put_net(struct net *net);

int rust_ulp_h_percpu_ref_init(struct percpu_ref *ref,
			       percpu_ref_func_t *release);
bool rust_ulp_h_percpu_ref_tryget_live(struct percpu_ref *ref);
void rust_ulp_h_percpu_ref_put(struct percpu_ref *ref);
void rust_ulp_h_percpu_ref_kill(struct percpu_ref *ref);
void rust_ulp_h_percpu_ref_exit(struct percpu_ref *ref);

void rust_ulp_h_spin_lock_bh(spinlock_t *lock);
int rust_ulp_h_spin_trylock_bh(spinlock_t *lock);
void rust_ulp_h_spin_unlock_bh(spinlock_t *lock);
unsigned long rust_ulp_h_spin_lock_irqsave(spinlock_t *lock);
bool rust_ulp_h_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void rust_ulp_h_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);

struct mm_struct *rust_ulp_h_charge_pinned(unsigned long pages);
void rust_ulp_h_uncharge_pinned(struct mm_struct *mm, unsigned long pages);
int rust_ulp_h_pin_user_pages(unsigned long start, int num, bool write,
			      struct page **pages);
int rust_ulp_h_vma_at(unsigned long addr, struct rust_ulp_h_vma *out);
void rust_ulp_h_unpin_range(struct page *page, unsigned long num, bool dirty);
unsigned long rust_ulp_h_page_to_pfn(struct page *page);

int rust_ulp_h_dmabuf_open(int fd, bool write, struct rust_ulp_h_dmabuf *out);
int rust_ulp_h_dmabuf_attach(int fd, bool write, struct device *dev,
			     struct rust_ulp_h_dmabuf *out);
void rust_ulp_h_dmabuf_close(struct rust_ulp_h_dmabuf *buf);
struct page *rust_ulp_h_dmabuf_page(const struct rust_ulp_h_dmabuf *buf,
				    size_t offset);
int rust_ulp_h_dmabuf_addresses(const struct rust_ulp_h_dmabuf *buf,
				size_t offset, u64 *out, size_t count);

struct workqueue_struct *rust_ulp_h_alloc_workqueue(void);
void rust_ulp_h_flush_workqueue(struct workqueue_struct *wq);

struct page *rust_ulp_h_alloc_pages(int node, unsigned int order, bool quick);
void rust_ulp_h_free_pages(struct page *page, unsigned int order);
void *rust_ulp_h_page_address(struct page *page);
int rust_ulp_h_page_nid(struct page *page);
int rust_ulp_h_map_pages(struct vm_area_struct *vma, unsigned long addr,
			 struct page *first, unsigned long num);
bool rust_ulp_h_vma_is_shared(const struct vm_area_struct *vma);
bool rust_ulp_h_node_online(int node);
void rust_ulp_h_relax(void);
bool rust_ulp_h_is_killed(void);

struct rust_ulp_uring *rust_ulp_h_uring_pdu(struct io_uring_cmd *cmd);
u32 rust_ulp_h_uring_op(const struct io_uring_cmd *cmd);
int rust_ulp_h_uring_group(const struct io_uring_cmd *cmd);
void rust_ulp_h_uring_copy(const struct io_uring_cmd *cmd, void *to,
			   size_t len);
void rust_ulp_h_uring_mark(struct io_uring_cmd *cmd, unsigned int issue_flags);
void rust_ulp_h_uring_done(struct io_uring_cmd *cmd, s32 res, u64 extra,
			   unsigned int issue_flags, bool big);
int rust_ulp_h_uring_post(struct io_uring_cmd *cmd, unsigned int group,
			  ssize_t (*fill)(void *source, void *to, size_t len),
			  void *source);
void rust_ulp_h_uring_end(struct io_uring_cmd *cmd, s32 res, bool big);

void rust_ulp_h_eventfd_signal(struct eventfd_ctx *ctx);

void rust_ulp_h_timer_init(struct rust_ulp_timer *timer,
			   void (*expired)(const void *context),
			   const void *context);
void rust_ulp_h_timer_start(struct rust_ulp_timer *timer, u64 at_ns);
void rust_ulp_h_timer_cancel(struct rust_ulp_timer *timer);

/* In the two entry.c: seen by the function tracers. */
struct rust_ulp_cqe_hook {
	struct ib_cqe cqe;
	void (*done)(struct ib_cq *cq, struct ib_wc *wc);
};

void rust_ulp_completion(struct ib_cq *cq, struct ib_wc *wc);
int rust_ulp_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
		       const struct ib_send_wr **bad_wr);
int rust_ulp_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad_wr);
int rust_ulp_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad_wr);

int rust_ulp_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event);

void rust_ulp_h_uring_complete(struct io_uring_cmd *cmd);
void rust_ulp_h_uring_stream(struct io_uring_cmd *cmd);

int rust_ulp_chardev_register(void);
void rust_ulp_chardev_unregister(void);

#ifdef CONFIG_FAULT_INJECTION
int rust_ulp_h_fault(bool can_fail);
bool rust_ulp_h_fault_atomic(void);
void rust_ulp_h_fault_register(void);
void rust_ulp_h_fault_unregister(void);
#endif

#endif /* _RUST_ULP_HELPERS_H */
