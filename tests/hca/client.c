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
#include <rdma/iw_cm.h>

#include "hca.h"

#define ANY_ERROR 1000
#define NOTHING 1001
#define SEND_ENTRIES 4

struct end {
	struct ib_device *device;
	const struct ib_gid_attr *gid;
	u8 mac[ETH_ALEN];
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
	struct ib_rdma_wr wr = {
		.wr.opcode = opcode,
		.wr.sg_list = &sge,
		.wr.num_sge = 1,
		.remote_addr = b.mr->iova + offset,
		.rkey = rkey,
	};

	return post(&a, &wr.wr);
}

/* The same with the page of `a`. */
static int move(enum ib_wr_opcode opcode, u32 length, u64 offset, u32 rkey)
{
	return move_by(a.pd->local_dma_lkey, sg_dma_address(&a.sg), opcode,
		       length, offset, rkey);
}

static int atomic(u64 offset, u64 add)
{
	struct ib_sge sge = {
		.addr = sg_dma_address(&a.sg),
		.length = 8,
		.lkey = a.pd->local_dma_lkey,
	};
	struct ib_atomic_wr wr = {
		.wr.opcode = IB_WR_ATOMIC_FETCH_AND_ADD,
		.wr.sg_list = &sge,
		.wr.num_sge = 1,
		.remote_addr = b.mr->iova + offset,
		.compare_add = add,
		.rkey = b.mr->rkey,
	};

	return post(&a, &wr.wr);
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

static int invalidate(struct end *end)
{
	struct ib_send_wr wr = {
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = end->mr->rkey,
	};

	return post(end, &wr);
}

static void unmap(struct end *end)
{
	if (end->mapped)
		ib_dma_unmap_sg(end->device, &end->sg, 1, DMA_BIDIRECTIONAL);
	end->mapped = false;
}

static int post_recv(struct end *end, u32 length)
{
	struct ib_sge sge = {
		.addr = sg_dma_address(&end->sg),
		.length = length,
		.lkey = end->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(end->qp, &wr, NULL);
}

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
	struct ib_qp *qp = ib_create_qp(pd, &init);

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	end->qp = qp;
	return 0;
}

static int to_init(struct end *end)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE |
				   IB_ACCESS_REMOTE_READ |
				   IB_ACCESS_REMOTE_ATOMIC,
	};

	return ib_modify_qp(end->qp, &attr,
			    IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
				    IB_QP_ACCESS_FLAGS);
}

static int to_rts(struct end *end, struct end *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1,
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
	if (err)
		return err;
	attr = (struct ib_qp_attr){
		.qp_state = IB_QPS_RTS,
		.timeout = 10,
		.retry_cnt = 2,
		.max_rd_atomic = 1,
	};
	return ib_modify_qp(end->qp, &attr,
			    IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				    IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
				    IB_QP_MAX_QP_RD_ATOMIC);
}

/* --- connections of iWARP --- */

static struct iw_cm_id *listening, *connecting, *accepted;
static DECLARE_COMPLETION(connected);

static int stream_event(struct iw_cm_id *id, struct iw_cm_event *event)
{
	struct iw_cm_conn_param param = { .qpn = b.qp->qp_num,
					  .ord = 1,
					  .ird = 1 };

	if (event->event == IW_CM_EVENT_CONNECT_REQUEST) {
		accepted = id;
		return iw_cm_accept(id, &param);
	}
	if (event->event == IW_CM_EVENT_CONNECT_REPLY)
		complete(&connected);
	return 0;
}

/* Connects both ends, by the address that `hosts` gives the second one. */
static int connect_stream(void)
{
	struct iw_cm_conn_param param = { .qpn = a.qp->qp_num,
					  .ord = 1,
					  .ird = 1 };
	struct sockaddr_in *to;
	int err;

	reinit_completion(&connected);
	listening = iw_create_cm_id(b.device, stream_event, NULL);
	connecting = iw_create_cm_id(a.device, stream_event, NULL);
	if (IS_ERR(listening) || IS_ERR(connecting))
		return -ENOMEM;
	to = (struct sockaddr_in *)&listening->local_addr;
	*to = (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(7471),
		.sin_addr.s_addr = htonl(0x0a090002),
	};
	connecting->remote_addr = listening->local_addr;
	err = iw_cm_listen(listening, 1) ?: iw_cm_connect(connecting, &param);
	if (err)
		return err;
	wait_for_completion(&connected);
	return 0;
}

static void disconnect(struct iw_cm_id **id)
{
	if (!IS_ERR_OR_NULL(*id))
		iw_destroy_cm_id(*id);
	*id = NULL;
}

static int create(struct end *end, int cqe)
{
	struct ib_cq_init_attr init = { .cqe = cqe };
	int err;

	end->pd = ib_alloc_pd(end->device, 0);
	if (IS_ERR(end->pd))
		return PTR_ERR(end->pd);
	end->other_pd = ib_alloc_pd(end->device, 0);
	if (IS_ERR(end->other_pd))
		return PTR_ERR(end->other_pd);
	end->cq = ib_create_cq(end->device, interrupt, NULL, end, &init);
	if (IS_ERR(end->cq))
		return PTR_ERR(end->cq);
	end->page = (void *)get_zeroed_page(GFP_KERNEL);
	if (!end->page)
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
	err = create_qp(end, end->pd, 1);
	return err ? err : to_init(end);
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
	end->qp = NULL;
	end->mr = NULL;
	end->page = NULL;
	end->cq = NULL;
	end->other_pd = NULL;
	end->pd = NULL;
}

/* --- the cases: each returns what is compared with `want` --- */

#define ALL                                               \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | \
	 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC)

static int good(void)
{
	int status;

	if (reg(&b, ALL))
		return NOTHING;
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

static int fetch_and_add(void)
{
	u64 *word = b.page;
	int status;

	*word = 40;
	if (reg(&b, ALL))
		return NOTHING;
	status = atomic(0, 2);
	return status ? status : *word != 42 || *(u64 *)a.page != 40;
}

static int unaligned_atomic(void)
{
	return reg(&b, ALL) ?: atomic(4, 1);
}

static int own_memory_unmapped(void)
{
	if (reg(&b, ALL))
		return NOTHING;
	unmap(&a);
	return move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey);
}

static int peers_memory_unmapped(void)
{
	if (reg(&b, ALL))
		return NOTHING;
	unmap(&b);
	return move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey);
}

static int never_registered(void)
{
	return move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey);
}

static int old_key(void)
{
	return reg(&b, ALL) ?: move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey - 1);
}

static int invalidated(void)
{
	return reg(&b, ALL)	      ?:
		       invalidate(&b) ?:
					move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey);
}

static int missing_right(void)
{
	return reg(&b, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE) ?:
		       move(IB_WR_RDMA_READ, 64, 0, b.mr->rkey);
}

static int beyond_the_end(void)
{
	return reg(&b, ALL) ?:
		       move(IB_WR_RDMA_WRITE, 64, PAGE_SIZE - 63, b.mr->rkey);
}

static int other_domain(void)
{
	int err;

	if (reg(&b, ALL))
		return NOTHING;
	ib_destroy_qp(b.qp);
	b.qp = NULL;
	ib_destroy_qp(a.qp);
	a.qp = NULL;
	err = create_qp(&a, a.pd, 1)		   ?:
		      create_qp(&b, b.other_pd, 1) ?:
		      to_init(&a)		   ?:
		      to_init(&b)		   ?:
		      to_rts(&a, &b)		   ?:
						     to_rts(&b, &a);
	return err ?: move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey);
}

static int no_recv_sge(void)
{
	ib_destroy_qp(b.qp);
	b.qp = NULL;
	return create_qp(&b, b.pd, 0);
}

static int registered_twice(void)
{
	return reg(&b, ALL) ?: reg(&b, ALL);
}

static int longer_than_its_pages(void)
{
	b.mr->length = PAGE_SIZE + 1;
	return reg(&b, ALL);
}

static int offset_beyond_its_pages(void)
{
	b.mr->iova += 1;
	return reg(&b, ALL);
}

static int without_local_write(void)
{
	return reg(&b, IB_ACCESS_REMOTE_WRITE);
}

static int mapped_while_registered(void)
{
	if (reg(&b, ALL))
		return NOTHING;
	return ib_map_mr_sg(b.mr, &b.sg, 1, NULL, PAGE_SIZE) == 1 ? 0 : NOTHING;
}

static int nobody_receives(void)
{
	return move(IB_WR_SEND, 64, 0, 0);
}

static int longer_than_the_receive(void)
{
	return post_recv(&b, 63) ?: move(IB_WR_SEND, 64, 0, 0);
}

static int peer_is_gone(void)
{
	ib_destroy_qp(b.qp);
	b.qp = NULL;
	return move(IB_WR_SEND, 64, 0, 0);
}

static int in_err(void)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(a.qp, &attr, IB_QP_STATE) ?:
		       move(IB_WR_SEND, 64, 0, 0);
}

static int in_reset(void)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RESET };

	return ib_modify_qp(a.qp, &attr, IB_QP_STATE) ?:
		       move(IB_WR_SEND, 64, 0, 0);
}

/* What is not polled stands in the send queue. */
static int queue_is_full(void)
{
	struct ib_rdma_wr wr = {
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};
	int i;

	for (i = 0; i < SEND_ENTRIES; i++)
		if (ib_post_send(a.qp, &wr.wr, NULL))
			return NOTHING;
	return ib_post_send(a.qp, &wr.wr, NULL);
}

/* The queue of `b` has two entries. */
static int overrun(void)
{
	struct ib_rdma_wr wr = {
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};
	int i;

	for (i = 0; i < 3; i++)
		if (ib_post_send(b.qp, &wr.wr, NULL))
			return NOTHING;
	return wait(&b);
}

static int missed(void)
{
	struct ib_rdma_wr wr = {
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};
	int i;

	if (ib_post_send(a.qp, &wr.wr, NULL))
		return NOTHING;
	for (i = 0; i < 1000; i++) {
		if (ib_req_notify_cq(a.cq, IB_CQ_NEXT_COMP |
						   IB_CQ_REPORT_MISSED_EVENTS))
			return wait(&a);
		usleep_range(500, 1000);
	}
	return NOTHING;
}

/* A READ of `b` into a key of `a` with these rights. */
static int read_into(int access)
{
	u64 *word = b.page;
	int status;

	*word = 42;
	if (reg(&a, access) || reg(&b, ALL))
		return NOTHING;
	status = move_by(a.mr->lkey, a.mr->iova, IB_WR_RDMA_READ, 8, 0,
			 b.mr->rkey);
	return status ? status : *(u64 *)a.page != 42;
}

static int sink(void)
{
	return read_into(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE);
}

static int sink_without_remote_write(void)
{
	return read_into(IB_ACCESS_LOCAL_WRITE);
}

static int sink_without_key(void)
{
	return reg(&b, ALL) ?: move(IB_WR_RDMA_READ, 8, 0, b.mr->rkey);
}

static int immediate(void)
{
	return move(IB_WR_SEND_WITH_IMM, 8, 0, 0);
}

/* The stream takes what the peer refuses. */
static int sent_by_an_old_key(void)
{
	return reg(&b, ALL)					     ?:
		       move(IB_WR_RDMA_WRITE, 64, 0, b.mr->rkey - 1) ?:
		       move(IB_WR_SEND, 64, 0, 0);
}

static int without_connection(void)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RTS };

	ib_destroy_qp(b.qp);
	b.qp = NULL;
	return create_qp(&b, b.pd, 1) ?: ib_modify_qp(b.qp, &attr, IB_QP_STATE);
}

#define CASE(function, want_status, ...) \
	{ .name = #function, .run = function, .want = want_status, __VA_ARGS__ }
#define IWARP_CASE(...) CASE(__VA_ARGS__, .iwarp = true)

static const struct {
	const char *name;
	int (*run)(void);
	int want;
	/* How many of them the driver counts. */
	unsigned int faults, broken;
	/* For a device of iWARP; the others are for RoCE. */
	bool iwarp;
} cases[] = {
	CASE(good, 0),
	CASE(fetch_and_add, 0),
	CASE(missed, 0),
	CASE(own_memory_unmapped, ANY_ERROR, .faults = 1),
	CASE(peers_memory_unmapped, ANY_ERROR, .faults = 1),
	CASE(unaligned_atomic, IB_WC_REM_INV_REQ_ERR),
	CASE(never_registered, IB_WC_REM_ACCESS_ERR),
	CASE(old_key, IB_WC_REM_ACCESS_ERR),
	CASE(invalidated, IB_WC_REM_ACCESS_ERR),
	CASE(missing_right, IB_WC_REM_ACCESS_ERR),
	CASE(beyond_the_end, IB_WC_REM_ACCESS_ERR),
	CASE(other_domain, IB_WC_REM_ACCESS_ERR),
	CASE(no_recv_sge, -EINVAL, .broken = 1),
	CASE(registered_twice, IB_WC_LOC_QP_OP_ERR, .broken = 1),
	CASE(longer_than_its_pages, IB_WC_LOC_QP_OP_ERR, .broken = 1),
	CASE(offset_beyond_its_pages, IB_WC_LOC_QP_OP_ERR, .broken = 1),
	CASE(without_local_write, IB_WC_LOC_QP_OP_ERR, .broken = 1),
	CASE(mapped_while_registered, 0, .broken = 1),
	CASE(nobody_receives, IB_WC_RNR_RETRY_EXC_ERR),
	CASE(longer_than_the_receive, IB_WC_REM_INV_REQ_ERR),
	CASE(peer_is_gone, IB_WC_RETRY_EXC_ERR),
	CASE(in_err, IB_WC_WR_FLUSH_ERR),
	CASE(in_reset, -EINVAL),
	CASE(queue_is_full, -ENOMEM),
	CASE(overrun, 0, .broken = 1),
	IWARP_CASE(good, 0),
	IWARP_CASE(sink, 0),
	IWARP_CASE(sink_without_remote_write, IB_WC_LOC_PROT_ERR, .broken = 1),
	IWARP_CASE(sink_without_key, IB_WC_LOC_PROT_ERR, .broken = 1),
	IWARP_CASE(fetch_and_add, -EINVAL),
	IWARP_CASE(immediate, -EINVAL),
	IWARP_CASE(sent_by_an_old_key, IB_WC_WR_FLUSH_ERR),
	IWARP_CASE(without_connection, -EINVAL),
};

static int find_gid(struct end *end)
{
	int index;

	for (index = 0; index < 16; index++) {
		const struct ib_gid_attr *gid =
			rdma_get_gid_attr(end->device, 1, index);

		if (IS_ERR(gid))
			continue;
		if (ipv6_addr_v4mapped((const struct in6_addr *)gid->gid.raw)) {
			end->gid = gid;
			return rdma_read_gid_l2_fields(gid, NULL, end->mac);
		}
		rdma_put_gid_attr(gid);
	}
	return -ENOENT;
}

static int add(struct ib_device *device)
{
	if (!strcmp(dev_name(&device->dev), "hca1"))
		a.device = device;
	else if (!strcmp(dev_name(&device->dev), "hca2"))
		b.device = device;
	return 0;
}

static void gone(struct ib_device *device, void *unused)
{
}

static struct ib_client client = {
	.name = KBUILD_MODNAME,
	.add = add,
	.remove = gone,
};

static void run(int n)
{
	unsigned int faults = hca_dma_faults, broken = hca_broken_rules;
	int got = create(&a, 16) ?: create(&b, 2);
	bool right;

	if (!got && cases[n].iwarp)
		got = connect_stream();
	else if (!got)
		got = to_rts(&a, &b) ?: to_rts(&b, &a);
	if (!got)
		got = cases[n].run();
	faults = hca_dma_faults - faults;
	broken = hca_broken_rules - broken;
	right = got == cases[n].want ||
		(cases[n].want == ANY_ERROR && got > 0 && got < ANY_ERROR);
	right = right && faults == cases[n].faults && broken == cases[n].broken;
	pr_info("%s %s: status %d, %u DMA faults, %u rules broken\n",
		right ? "ok" : "not ok", cases[n].name, got, faults, broken);
	disconnect(&connecting);
	disconnect(&accepted);
	disconnect(&listening);
	destroy(&a);
	destroy(&b);
}

static int __init client_init(void)
{
	bool iwarp;
	int err, n;

	err = ib_register_client(&client);
	if (err)
		return err;
	err = a.device && b.device ? 0 : -ENODEV;
	iwarp = !err && rdma_protocol_iwarp(a.device, 1);
	if (!err && !iwarp)
		err = find_gid(&a) ?: find_gid(&b);
	for (n = 0; !err && n < ARRAY_SIZE(cases); n++)
		if (cases[n].iwarp == iwarp)
			run(n);
	if (a.gid)
		rdma_put_gid_attr(a.gid);
	if (b.gid)
		rdma_put_gid_attr(b.gid);
	ib_unregister_client(&client);
	return err;
}

static void __exit client_exit(void)
{
}

module_init(client_init);
module_exit(client_exit);
MODULE_DESCRIPTION("breaks each rule of ulp_hca");
MODULE_LICENSE("GPL");
