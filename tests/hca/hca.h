/* SPDX-License-Identifier: GPL-2.0 */
/*
 * ulp_hca: an RDMA adapter for tests. It obeys the rules that adapters with
 * real DMA have; README.md lists them.
 */
#ifndef ULP_HCA_H
#define ULP_HCA_H

#include <linux/hrtimer.h>
#include <linux/iommu.h>
#include <linux/irq_work.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#define HCA_GIDS 64
#define HCA_PKEYS 7
#define HCA_MAX_SGE 16
#define HCA_MAX_INLINE 256
#define HCA_MAX_WR 16384
#define HCA_MAX_CQE 1048576
#define HCA_MAX_PAGES 512
#define HCA_MAX_RD_ATOMIC 16
/* The reserved L_Key: addresses are DMA addresses. Indices of memory regions begin behind it. */
#define HCA_DMA_LKEY 0x100
#define HCA_FIRST_MR 2
/* A queue pair that has so much to move goes on in a worker. */
#define HCA_INLINE_BYTES (64 << 10)
/* So much of the end of a Write is not late. */
#define HCA_PROMPT 64

/* The contexts of a completion handler that a test can ask for: 0 is an interrupt of any CPU. */
enum { HCA_HARDIRQ = 1, HCA_SOFTIRQ, HCA_THREAD };

/* The rules of a personality. */
struct hca_rules {
	const char *name;
	enum rdma_driver_id driver;
	u32 core_cap;
	/* How many ports, and which of them is down. */
	u32 ports, down;
	/* The first LID of an InfiniBand adapter. */
	u32 lid;
	/* Bits of enum ib_qp_type. */
	u32 qp_types;
	/* It has a reserved L_Key; it raises LAST_WQE_REACHED; in an error it refuses requests. */
	bool atomics, dma_lkey, last_wqe, refuses_in_error;
	u32 max_send_sge, max_recv_sge, max_sge_rd, max_inline;
	u32 max_wr, max_cqe, max_srq;
	/* As a responder and as an initiator. */
	u32 max_rd_atomic, max_init_rd_atomic;
	/* The MTU of the netdev. */
	u32 mtu;
	/* Pages under one key: what it reports, and can do. It says that it lacks REG_MR. */
	u32 max_pages, good_pages;
	bool no_reg_mr;
	u64 page_sizes;
	/* It refuses to post atomics; it grants none; it refuses to post LOCAL_INV. */
	bool refuses_atomics, no_remote_atomics, no_local_inv;
	/* It creates a queue pair for inline data all the same, and takes none. */
	bool no_inline;
	/* RESET is refused but from ERR; it is said, and no way leads from there. */
	bool reset_from_error, no_reset;
	/* A key covers no more than PAGE_SIZE bytes for each page that it was allocated for. */
	bool short_keys;
	/* The rights that REG_MR adds. */
	int more_access;
	/* All of a Write but its last HCA_PROMPT bytes lands late, but before it completes. */
	bool relaxed;
	/* A key that was freed is the next one that it gives. */
	bool reuses_keys;
	/* When the adapter keeps a key, the driver frees the region all the same. */
	bool hides_failure;
	/* REG_MR ignores the size of a page: the adapter takes each for one of PAGE_SIZE. */
	bool fixed_page_size;
	/* Bytes of a send queue entry beside its memory, and the limits of an entry and a queue. */
	u32 wqe_overhead, max_wqe, max_sq;
};

struct hca {
	struct ib_device ib;
	const struct hca_rules *rules;
	struct pci_dev *pdev;
	/* An internal error: no command but those that end something succeeds. */
	bool error;
	/* NULL where no IOMMU translates: a DMA address is a physical address. */
	struct iommu_domain *domain;
	/* NULL on InfiniBand. */
	struct net_device *netdev;
	/* Pause frames that came in. */
	atomic64_t pauses;
	/* Datagrams with a wrong Q_Key. */
	atomic_t bad_qkeys;
	int number;
	struct xarray qps;
	struct xarray mrs;
	u32 next_qp, next_mr;
};

struct hca_cqe {
	struct ib_wc wc;
	/* The queue whose entries the completion frees, up to `next`. */
	struct hca_wq *wq;
	u32 next;
	bool solicited;
	/* When it can be polled, 0 for at once. */
	ktime_t due;
};

struct hca_cq {
	struct ib_cq ib;
	/* Of all below. */
	spinlock_t lock;
	struct hca_cqe *ring;
	/* Those before `shown` can be polled; the first behind it waits for `delay`. */
	u32 head, shown, tail, size;
	enum ib_cq_notify_flags armed;
	bool overrun;
	u32 vector;
	struct irq_work irq, error;
	struct work_struct in_vector;
	struct timer_list late;
	struct hrtimer delay;
};

/* A work queue. Entries are posted at head, taken at tail, and free again at done. */
struct hca_wq {
	/* Of all below but the sizes. */
	spinlock_t lock;
	void *ring;
	u32 head, tail, done;
	u32 size, stride, max_sge;
	/* Of a shared receive queue: the limit below which it raises an event, 0 for none. */
	u32 limit;
	struct irq_work *event;
};

struct hca_recv {
	u64 wr_id;
	u32 num_sge;
	struct ib_sge sge[];
};

struct hca_mr {
	struct ib_mr ib;
	/* Of all below. */
	spinlock_t lock;
	int users;
	bool valid;
	/* The driver has freed it, and the adapter has not. */
	bool hidden;
	/* All of the memory, by DMA address. */
	bool dma;
	/* Deregistering it failed; then these are its pages. */
	struct page **held;
	u8 key;
	int access;
	u64 iova, length;
	u32 shift, nr_pages, max_pages;
	/* How many pages ib_map_mr_sg() has set, and since when no REG_MR has taken them. */
	u32 set_pages;
	u64 *pages;
};

/* A piece of memory that has been checked: of a region, by DMA address, or of the driver. */
struct hca_seg {
	struct hca *hca;
	struct hca_mr *mr;
	void *ptr;
	u64 addr, length;
};

struct hca_segs {
	u32 count;
	u64 length;
	struct hca_seg seg[HCA_MAX_SGE + 1];
};

struct hca_address {
	union ib_gid dgid;
	u32 dlid;
	u8 dmac[ETH_ALEN];
	u8 sgid_index, hop_limit, traffic_class;
};

struct hca_ah {
	struct ib_ah ib;
	struct hca_address to;
};

struct hca_wqe {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	u32 flags;
	u32 num_sge;
	/* Bytes in all; with IB_SEND_INLINE they stand in place of the SGEs. */
	u64 length;
	/* Immediate data as in the request, or an R_Key. */
	u32 ex;
	union {
		struct {
			u64 addr, compare, swap;
			u32 rkey;
		} rdma;
		struct {
			struct hca_address to;
			u32 qpn, qkey;
		} ud;
		struct {
			struct hca_mr *mr;
			u64 iova, length;
			u32 page_size, key;
			int access;
		} reg;
	};
	struct ib_sge sge[];
};

struct hca_srq {
	struct ib_srq ib;
	struct hca_wq wq;
	struct irq_work event;
};

struct hca_qp {
	struct ib_qp ib;
	refcount_t refs;
	struct completion released;

	/*
	 * Of the state, `running`, `stalled` and `inbound`. The lock of a completion queue is taken
	 * inside of it, and those of work queues inside of both.
	 */
	spinlock_t lock;
	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_init_attr init;
	/* Of modifying and querying. */
	struct mutex command;
	/* Somebody carries out the send queue; it waits for `retry`. */
	bool running, stalled;
	/* Messages of the peer that are being received. */
	int inbound;
	bool last_wqe, established, spent;
	/* Destroying it failed; then these are the pages of its last receive. */
	bool refused;
	struct page *held[HCA_MAX_SGE];

	struct hca_wq sq, rq;
	/* The queue that receives are taken from. */
	struct hca_wq *recvs;

	/* The device at the other end, -1 where there is none. */
	int dest;
	u32 send_psn, recv_psn;
	u8 retries, rnr_retries;

	struct work_struct work;
	struct delayed_work retry;
	struct irq_work event;
	unsigned long events;

	/* Of who runs the send queue; `late`: what has not landed of a Write. */
	struct hca_segs near, far, late_near, late_far;
	u8 grh[sizeof(struct ib_grh)];
};

#define to_hca(from) container_of(from, struct hca, ib)
#define to_cq(from) container_of(from, struct hca_cq, ib)
#define to_mr(from) container_of(from, struct hca_mr, ib)
#define to_qp(from) container_of(from, struct hca_qp, ib)
#define to_srq(from) container_of(from, struct hca_srq, ib)
#define to_ah(from) container_of(from, struct hca_ah, ib)

#define hca_is_ib(hca) ((hca)->rules->core_cap & RDMA_CORE_CAP_PROT_IB)
#define hca_is_iwarp(hca) ((hca)->rules->core_cap & RDMA_CORE_CAP_PROT_IWARP)

/* Holds a spinlock, with interrupts off, until the end of the block. */
#define HCA_LOCK(lock)                             \
	class_spinlock_irqsave_t held __cleanup(   \
		class_spinlock_irqsave_destructor) \
		__maybe_unused = class_spinlock_irqsave_constructor(lock)

static inline void *hca_entry(struct hca_wq *wq, u32 n)
{
	return wq->ring + (size_t)(n % wq->size) * wq->stride;
}

/* device.c */
extern struct hca __rcu *hcas[2];
extern unsigned int hca_dma_faults, hca_broken_rules, hca_fail_command;
extern unsigned int hca_completion_us, hca_context, hca_handler_cpu;
extern unsigned int hca_interrupt_ms, hca_lose_interrupt, hca_refuse_send;
extern unsigned int hca_flush_register, hca_poll_ms, hca_deaf, hca_unheard;
extern unsigned int hca_fail_halfway, hca_lose_register, hca_lose_completion;
extern bool hca_stopped, hca_late_receive, hca_pause_storm, hca_hold_writes;
unsigned int hca_count_down(unsigned int *left);
int hca_command(struct hca *hca, const char *name);
int hca_broken(struct hca *hca, const char *format, ...) __printf(2, 3);
void hca_dma_fault(struct hca *hca, u64 addr, const char *why);
int hca_find(struct hca *hca, const union ib_gid *gid, const u8 *dmac,
	     u32 dlid);

/* personality.c */
const struct hca_rules *hca_find_rules(void);
u32 hca_lid(struct hca *hca, u32 port);
int hca_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid);
int hca_check_sq(struct hca *hca, struct ib_qp_cap *cap);

/* verbs.c */
extern const struct ib_device_ops hca_ops;
void hca_push_cqe(struct hca_cq *cq, const struct ib_wc *wc, struct hca_wq *wq,
		  u32 next, bool solicited);
struct hca_qp *hca_get_qp(struct hca *hca, u32 qpn);
void hca_put_qp(struct hca_qp *qp);
void hca_qp_event(struct hca_qp *qp, enum ib_event_type type);
void hca_srq_event(struct ib_srq *srq, enum ib_event_type type);
void hca_free_refused_qps(struct hca *hca);

/* memory.c */
struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt,
			      int access, struct ib_dmah *dmah,
			      struct ib_udata *udata);
struct ib_mr *hca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max);
int hca_map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int nents,
		  unsigned int *offset);
int hca_dereg_mr(struct ib_mr *mr, struct ib_udata *udata);
struct page *hca_hold(struct hca *hca, dma_addr_t addr);
bool hca_let_go(struct hca *hca, dma_addr_t addr, struct page *page);
void hca_free_refused_mrs(struct hca *hca);
int hca_register(struct hca_qp *qp, struct hca_wqe *wqe);
int hca_invalidate(struct hca *hca, struct ib_pd *pd, u32 key, bool may_sleep);
void hca_segs_begin(struct hca_segs *segs);
int hca_segs_add(struct hca_segs *segs, struct hca *hca, struct ib_pd *pd,
		 u32 key, u64 addr, u64 length, int access);
void hca_segs_add_ptr(struct hca_segs *segs, void *ptr, u64 length);
int hca_segs_add_list(struct hca_segs *segs, struct hca *hca, struct ib_pd *pd,
		      const struct ib_sge *sge, u32 count, int access);
void hca_segs_end(struct hca_segs *segs);
int hca_copy(struct hca_segs *to, struct hca_segs *from, u64 offset);
int hca_atomic(struct hca_segs *segs, bool swap, u64 compare, u64 value,
	       u64 *old);

/* wire.c */
void hca_run(struct hca_qp *qp);
void hca_run_work(struct work_struct *work);
void hca_retry_work(struct work_struct *work);
void hca_flush_recvs(struct hca_qp *qp);
bool hca_flush_recv(struct hca_qp *qp);
void hca_fail(struct hca_qp *qp);
void hca_go_on(struct hca_qp *qp);
bool hca_is_up(struct hca *hca);
struct hca_qp *hca_inbound(struct hca *from, int number, u32 qpn);
void hca_inbound_end(struct hca_qp *to);
enum ib_wc_status hca_take_recv(struct hca_qp *to, u64 length,
				struct hca_segs *segs, u64 *wr_id);
void hca_recv_wc(struct hca_qp *to, struct ib_wc *wc, bool solicited);
enum ib_wc_status hca_gather(struct hca_qp *qp, struct hca_wqe *wqe,
			     int access);

/* datagram.c */
enum ib_wc_status hca_send_datagram(struct hca_qp *qp, struct hca_wqe *wqe);

/* exporter.c, where the kernel has CONFIG_VMAP_PFN */
int hca_add_exporter(void);
void hca_remove_exporter(void);

#endif
