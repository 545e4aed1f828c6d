// SPDX-License-Identifier: GPL-2.0
/*
 * ulp_hca_client: breaks each rule of ulp_hca once, when it is loaded, and sees that it is caught.
 *
 * Each case has two new queue pairs that are connected, and a registered page behind each. A case
 * prints `ok NAME` or `not ok NAME`, with what it got.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <rdma/ib_cache.h>

#include "hca.h"

#define ANY_ERROR 1000
#define NOTHING 1001
#define SEND_ENTRIES 4
/* The network of `hosts`, 10.9.0.0. */
#define HOSTS 0x0a090000

struct end {
	struct ib_device *device;
	const struct ib_gid_attr *gid;
	u8 mac[ETH_ALEN];
	/* What follows is made for each case. */
	struct ib_pd *pd, *other_pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_mr *mr;
	void *page;
	struct scatterlist sg;
	bool mapped, in_hardirq;
};

static struct end a, b;

static void interrupt(struct ib_cq *cq, void *context)
{
	struct end *end = context;

	end->in_hardirq = in_hardirq();
}

/* --- what a case is made of --- */

/* Returns the status of the next completion. */
static int wait(struct end *end)
{
	struct ib_wc wc;
	int i;

	for (i = 0; i < 10000; i++) {
		if (ib_poll_cq(end->cq, 1, &wc) == 1)
			return wc.status;
		usleep_range(500, 1000);
	}
	return NOTHING;
}

static int post(struct end *end, struct ib_send_wr *wr)
{
	int err;

	wr->send_flags |= IB_SEND_SIGNALED;
	err = ib_post_send(end->qp, wr, NULL);
	return err ? err : wait(end);
}

/* Posts a request of `a` with memory at `addr`, to the page of `b` or what is said instead. */
static int move_by(u32 lkey, u64 addr, enum ib_wr_opcode opcode, u32 length,
		   u64 offset, u32 rkey)
{
	struct ib_sge sge = { .addr = addr, .length = length, .lkey = lkey };
	struct ib_rdma_wr rdma = {
		.wr.opcode = opcode,
		.wr.sg_list = &sge,
		.wr.num_sge = 1,
		.remote_addr = b.mr->iova + offset,
		.rkey = rkey,
	};
	struct ib_atomic_wr atomic = {
		.wr = rdma.wr,
		.remote_addr = rdma.remote_addr,
		.compare_add = 2,
		.rkey = rkey,
	};

	return post(&a, opcode == IB_WR_ATOMIC_FETCH_AND_ADD ? &atomic.wr :
							       &rdma.wr);
}

/* The same with the page of `a`. */
static int move(enum ib_wr_opcode opcode, u32 length, u64 offset, u32 rkey)
{
	return move_by(a.pd->local_dma_lkey, sg_dma_address(&a.sg), opcode,
		       length, offset, rkey);
}

/* Posts writes without data; returns the first error. */
static int post_many(struct end *end, int count)
{
	struct ib_rdma_wr wr = {
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};
	int err = 0;

	for (; !err && count; count--)
		err = ib_post_send(end->qp, &wr.wr, NULL);
	return err;
}

static int reg(struct end *end, int access)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR,
		.mr = end->mr,
		.key = end->mr->rkey,
		.access = access,
	};

	return post(end, &wr.wr);
}

static void unmap(struct end *end)
{
	if (end->mapped)
		ib_dma_unmap_sg(end->device, &end->sg, 1, DMA_BIDIRECTIONAL);
	end->mapped = false;
}

/* Creates a queue pair in INIT. */
static int create_qp(struct end *end, struct ib_pd *pd, u32 recv_sge)
{
	struct ib_qp_init_attr init = {
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = {
			.max_send_wr = SEND_ENTRIES,
			.max_recv_wr = 1,
			.max_send_sge = 1,
			.max_recv_sge = recv_sge,
		},
		.qp_type = IB_QPT_RC,
	};
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE |
				   IB_ACCESS_REMOTE_READ |
				   IB_ACCESS_REMOTE_ATOMIC,
	};

	end->qp = ib_create_qp(pd, &init);
	return PTR_ERR_OR_ZERO(end->qp) ?:
					  ib_modify_qp(end->qp, &attr,
						       IB_QP_STATE | IB_QP_PKEY_INDEX |
							       IB_QP_PORT | IB_QP_ACCESS_FLAGS);
}

static int to_state(struct end *end, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(end->qp, &attr, IB_QP_STATE);
}

static int to_rts(struct end *end, struct end *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
		.timeout = 10,
		.retry_cnt = 2,
		.max_rd_atomic = 1,
		.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE,
	};
	int err;

	rdma_ah_set_port_num(&attr.ah_attr, 1);
	rdma_ah_set_grh(&attr.ah_attr, NULL, 0, end->gid->index, 64, 0);
	rdma_ah_set_dgid_raw(&attr.ah_attr, (void *)peer->gid->gid.raw);
	ether_addr_copy(attr.ah_attr.roce.dmac, peer->mac);
	err = ib_modify_qp(end->qp, &attr,
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
				   IB_QP_DEST_QPN | IB_QP_RQ_PSN |
				   IB_QP_MAX_DEST_RD_ATOMIC |
				   IB_QP_MIN_RNR_TIMER);
	attr.qp_state = IB_QPS_RTS;
	return err   ?:
		       ib_modify_qp(end->qp, &attr,
				    IB_QP_STATE | IB_QP_TIMEOUT |
					    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
					    IB_QP_SQ_PSN |
					    IB_QP_MAX_QP_RD_ATOMIC);
}

static int connect_qps(void)
{
	return to_rts(&a, &b) ?: to_rts(&b, &a);
}

static int create(struct end *end, int cqe)
{
	struct ib_cq_init_attr init = { .cqe = cqe };

	end->pd = ib_alloc_pd(end->device, 0);
	end->other_pd = ib_alloc_pd(end->device, 0);
	end->cq = ib_create_cq(end->device, interrupt, NULL, end, &init);
	end->page = (void *)get_zeroed_page(GFP_KERNEL);
	if (IS_ERR(end->pd) || IS_ERR(end->other_pd) || IS_ERR(end->cq) ||
	    !end->page)
		return -ENOMEM;
	sg_init_one(&end->sg, end->page, PAGE_SIZE);
	if (ib_dma_map_sg(end->device, &end->sg, 1, DMA_BIDIRECTIONAL) != 1)
		return -ENOMEM;
	end->mapped = true;
	end->mr = ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, 1);
	if (IS_ERR(end->mr))
		return PTR_ERR(end->mr);
	if (ib_map_mr_sg(end->mr, &end->sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	ib_update_fast_reg_key(end->mr, ib_inc_rkey(end->mr->rkey));
	return create_qp(end, end->pd, 1);
}

static void destroy(struct end *end)
{
	if (!IS_ERR_OR_NULL(end->qp))
		ib_destroy_qp(end->qp);
	if (!IS_ERR_OR_NULL(end->mr))
		ib_dereg_mr(end->mr);
	unmap(end);
	free_page((unsigned long)end->page);
	if (!IS_ERR_OR_NULL(end->cq))
		ib_destroy_cq(end->cq);
	if (!IS_ERR_OR_NULL(end->other_pd))
		ib_dealloc_pd(end->other_pd);
	if (!IS_ERR_OR_NULL(end->pd))
		ib_dealloc_pd(end->pd);
	memset_startat(end, 0, pd);
}

/* --- the cases --- */

#define ALL                                               \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | \
	 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC)

static int good(void)
{
	int status;

	memset(a.page, 0x5a, 64);
	ib_req_notify_cq(a.cq, IB_CQ_NEXT_COMP);
	status = move(IB_WR_RDMA_WRITE, 64, 8, b.mr->rkey);
	if (status)
		return status;
	if (!a.in_hardirq)
		return NOTHING;
	return memchr_inv(b.page + 8, 0x5a, 64) || *(u8 *)(b.page + 72) ||
	       *(u8 *)(b.page + 7);
}

static int invalidated(void)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = b.mr->rkey,
	};

	return post(&b, &wr);
}

static int peer_is_gone(void)
{
	ib_destroy_qp(b.qp);
	b.qp = NULL;
	return 0;
}

static int other_domain(void)
{
	peer_is_gone();
	ib_destroy_qp(a.qp);
	a.qp = NULL;
	return create_qp(&a, a.pd, 1)		    ?:
		       create_qp(&b, b.other_pd, 1) ?:
						      connect_qps();
}

static int no_recv_sge(void)
{
	return peer_is_gone() ?: create_qp(&b, b.pd, 0);
}

static int registered_twice(void)
{
	return reg(&b, ALL);
}

static int mapped_while_registered(void)
{
	return ib_map_mr_sg(b.mr, &b.sg, 1, NULL, PAGE_SIZE) == 1 ? 0 : NOTHING;
}

static int longer_than_the_receive(void)
{
	struct ib_sge sge = {
		.addr = sg_dma_address(&b.sg),
		.length = 63,
		.lkey = b.pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(b.qp, &wr, NULL);
}

/* The page is freed while the adapter has not given its region up. */
static int freed_too_early(void)
{
	int err;

	hca_fail_command = 1;
	if (!ib_dereg_mr(b.mr)) {
		b.mr = NULL;
		return NOTHING;
	}
	free_page((unsigned long)b.page);
	b.page = NULL;
	err = ib_dereg_mr(b.mr);
	b.mr = NULL;
	return err;
}

static int in_err(void)
{
	return to_state(&a, IB_QPS_ERR);
}

static int in_reset(void)
{
	return to_state(&a, IB_QPS_RESET);
}

/* What is not polled stands in the send queue. */
static int queue_is_full(void)
{
	return post_many(&a, SEND_ENTRIES) ? NOTHING : post_many(&a, 1);
}

/* The queue of `b` has two entries. */
static int overrun(void)
{
	return post_many(&b, 3) ?: wait(&b);
}

static int missed(void)
{
	int i;

	if (post_many(&a, 1))
		return NOTHING;
	for (i = 0; i < 1000; i++) {
		if (ib_req_notify_cq(a.cq, IB_CQ_NEXT_COMP |
						   IB_CQ_REPORT_MISSED_EVENTS))
			return wait(&a);
		usleep_range(500, 1000);
	}
	return NOTHING;
}

/*
 * Registers the page of `b` with `access`, unmaps the page of `unmaps`, calls `run`, and moves
 * `length` bytes; without those that are 0. The first status that is not 0 is compared with `want`.
 */
struct test {
	const char *name;
	int access;
	/* What is added to the address and the length of the region. */
	u32 more_iova, more_length;
	struct end *unmaps;
	int (*run)(void);
	enum ib_wr_opcode opcode;
	u32 length, offset;
	/* What is added to the key. */
	int key;
	int want;
	/* How many of them the driver counts. */
	unsigned int faults, broken;
};

#define CASE(test, result, ...) \
	{ .name = test, .access = ALL, .want = result, __VA_ARGS__ }
#define MOVE .opcode = IB_WR_RDMA_WRITE, .length = 64
#define SEND .opcode = IB_WR_SEND, .length = 64

static const struct test cases[] = {
	CASE("good", 0, .run = good),
	CASE("missed", 0, .run = missed),
	CASE("own_memory_unmapped", ANY_ERROR, .unmaps = &a, MOVE, .faults = 1),
	CASE("peers_memory_unmapped", ANY_ERROR, .unmaps = &b, MOVE,
	     .faults = 1),
	CASE("unaligned_atomic", IB_WC_REM_INV_REQ_ERR,
	     .opcode = IB_WR_ATOMIC_FETCH_AND_ADD, .length = 8, .offset = 4),
	CASE("never_registered", IB_WC_REM_ACCESS_ERR, MOVE, .access = 0),
	CASE("old_key", IB_WC_REM_ACCESS_ERR, MOVE, .key = -1),
	CASE("invalidated", IB_WC_REM_ACCESS_ERR, .run = invalidated, MOVE),
	CASE("missing_right", IB_WC_REM_ACCESS_ERR, MOVE,
	     .access = IB_ACCESS_REMOTE_READ),
	CASE("beyond_the_end", IB_WC_REM_ACCESS_ERR, MOVE,
	     .offset = PAGE_SIZE - 63),
	CASE("other_domain", IB_WC_REM_ACCESS_ERR, .run = other_domain, MOVE),
	CASE("no_recv_sge", -EINVAL, .run = no_recv_sge, .broken = 1),
	CASE("registered_twice", IB_WC_LOC_QP_OP_ERR, .run = registered_twice,
	     .broken = 1),
	CASE("longer_than_its_pages", IB_WC_LOC_QP_OP_ERR, .more_length = 1,
	     .broken = 1),
	CASE("offset_beyond_its_pages", IB_WC_LOC_QP_OP_ERR, .more_iova = 1,
	     .broken = 1),
	CASE("without_local_write", IB_WC_LOC_QP_OP_ERR,
	     .access = IB_ACCESS_REMOTE_WRITE, .broken = 1),
	CASE("mapped_while_registered", 0, .run = mapped_while_registered,
	     .broken = 1),
	CASE("freed_too_early", 0, .run = freed_too_early, .broken = 1),
	CASE("nobody_receives", IB_WC_RNR_RETRY_EXC_ERR, SEND),
	CASE("longer_than_the_receive", IB_WC_REM_INV_REQ_ERR,
	     .run = longer_than_the_receive, SEND),
	CASE("peer_is_gone", IB_WC_RETRY_EXC_ERR, .run = peer_is_gone, SEND),
	CASE("in_err", IB_WC_WR_FLUSH_ERR, .run = in_err, SEND),
	CASE("in_reset", -EINVAL, .run = in_reset, SEND),
	CASE("queue_is_full", -ENOMEM, .run = queue_is_full),
	CASE("overrun", 0, .run = overrun, .broken = 1),
};

static int find_gid(struct end *end, u32 host)
{
	union ib_gid gid;

	ipv6_addr_set_v4mapped(htonl(HOSTS + host), (struct in6_addr *)gid.raw);
	end->gid = rdma_find_gid_by_port(end->device, &gid,
					 IB_GID_TYPE_ROCE_UDP_ENCAP, 1, NULL);
	return PTR_ERR_OR_ZERO(end->gid) ?:
		       rdma_read_gid_l2_fields(end->gid, NULL, end->mac);
}

static struct ib_device *get(int number)
{
	struct hca *hca;

	guard(rcu)
		();
	hca = rcu_dereference(hcas[number]);
	return hca && ib_device_try_get(&hca->ib) ? &hca->ib : NULL;
}

static int try(const struct test *test)
{
	int got = create(&a, 16) ?: create(&b, 2);

	if (!got)
		got = connect_qps();
	if (!got && test->access) {
		b.mr->iova += test->more_iova;
		b.mr->length += test->more_length;
		got = reg(&b, test->access);
	}
	if (!got && test->unmaps)
		unmap(test->unmaps);
	if (!got && test->run)
		got = test->run();
	if (!got && test->length)
		got = move(test->opcode, test->length, test->offset,
			   wrapping_add(u32, b.mr->rkey, test->key));
	return got;
}

static void run(const struct test *test)
{
	unsigned int faults = hca_dma_faults, broken = hca_broken_rules;
	int got = try(test);
	bool right;

	faults = hca_dma_faults - faults;
	broken = hca_broken_rules - broken;
	right = got == test->want ||
		(test->want == ANY_ERROR && got > 0 && got < ANY_ERROR);
	right = right && faults == test->faults && broken == test->broken;
	pr_info("%s %s: status %d, %u DMA faults, %u rules broken\n",
		right ? "ok" : "not ok", test->name, got, faults, broken);
	destroy(&a);
	destroy(&b);
}

static int __init client_init(void)
{
	int err, n;

	a.device = get(0);
	b.device = get(1);
	err = a.device && b.device ? 0 : -ENODEV;
	if (!err)
		err = find_gid(&a, 1) ?: find_gid(&b, 2);
	for (n = 0; !err && n < ARRAY_SIZE(cases); n++)
		run(&cases[n]);
	if (!IS_ERR_OR_NULL(a.gid))
		rdma_put_gid_attr(a.gid);
	if (!IS_ERR_OR_NULL(b.gid))
		rdma_put_gid_attr(b.gid);
	if (a.device)
		ib_device_put(a.device);
	if (b.device)
		ib_device_put(b.device);
	return err;
}

static void __exit client_exit(void)
{
}

module_init(client_init);
module_exit(client_exit);
MODULE_DESCRIPTION("breaks each rule of ulp_hca");
MODULE_LICENSE("GPL");
