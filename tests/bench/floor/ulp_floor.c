// SPDX-License-Identifier: GPL-2.0
/*
 * The loops of `ulp bench` inside the kernel: the same requests on the same two
 * devices by the kernel's own verbs. The difference is the cost of the module, of the
 * crate and of the calls between them.
 *
 *   insmod ulp_floor.ko local=rxe1 remote=rxe2 test=write n=10240
 *   cat /sys/module/ulp_floor/parameters/result
 *
 * Loading the module runs one measurement. `write` is the loop of struct Flow of
 * userspace/ulp/src/bench/loops.rs, step by step, so that the difference contains no
 * cost of the loop: it makes a list of struct op over all queue pairs, copies each into
 * the form of the verbs, posts a chain to each queue pair, signals its last request,
 * counts what each completion stands for, and sleeps when the next list does not fit.
 * `send` is a ping-pong of two threads that sleep for their receives. There are no
 * checks of requests and no ring that is shared with user space.
 *
 * With delivery=workqueue or softirq, the core polls the completion queue, and each
 * wait has a timer. With delivery=direct, the completion handler wakes the thread that
 * waits, which polls the queue itself; one timer ends the measurement when it hangs.
 */
#include <linux/completion.h>
#include <linux/etherdevice.h>
#include <linux/gfp.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/sort.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#define MAX_QPS 256
#define MAX_DEPTH 1024
#define MAX_SIZE SZ_1M
#define PORT 1
/* The messages of a queue pair begin at multiples of it, as ALIGN in config.rs. */
#define STRIDE 64
/* Requests of which one is signaled, as the default of `ulp bench -Q`. */
#define MODERATION 64
#define TIMEOUT (30 * HZ)
/* Deadline of a whole measurement with delivery=direct. */
#define DIRECT_TIMEOUT (240 * HZ)

static char *local = "rxe1";
module_param(local, charp, 0444);
MODULE_PARM_DESC(local, "the device that measures");

static char *remote = "rxe2";
module_param(remote, charp, 0444);
MODULE_PARM_DESC(remote, "the device that it talks to");

static char *test = "write";
module_param(test, charp, 0444);
MODULE_PARM_DESC(test, "write or send");

static char *delivery = "workqueue";
module_param(delivery, charp, 0444);
MODULE_PARM_DESC(
	delivery,
	"who polls the completion queues: workqueue, softirq or direct");

static unsigned int size = 8;
module_param(size, uint, 0444);
MODULE_PARM_DESC(size, "bytes of a message");

static unsigned int n = 10240;
module_param(n, uint, 0444);
MODULE_PARM_DESC(n, "messages");

static unsigned int warmup = 100;
module_param(warmup, uint, 0444);
MODULE_PARM_DESC(warmup, "messages before those that count");

static unsigned int list = 64;
module_param(list, uint, 0444);
MODULE_PARM_DESC(list, "requests per posting, over all queue pairs");

static unsigned int depth = 128;
module_param(depth, uint, 0444);
MODULE_PARM_DESC(depth, "requests in flight per queue pair");

static unsigned int qps = 1;
module_param(qps, uint, 0444);
MODULE_PARM_DESC(qps, "queue pairs");

static unsigned int inlined;
module_param(inlined, uint, 0444);
MODULE_PARM_DESC(inlined,
		 "messages of at most so many bytes travel in the request");

static char result[256];
module_param_string(result, result, sizeof(result), 0444);
MODULE_PARM_DESC(result, "what was measured, as JSON");

/* Held by those who use the devices: these stay as long. */
static DEFINE_MUTEX(using);
static struct ib_device *devices[2];

/* A queue of completions, and the thread that waits for them. */
struct queue {
	struct ib_cq *cq;
	wait_queue_head_t wait;
	/* The identifiers of what has completed, at `done` modulo the size. */
	u64 *ids;
	unsigned int mask;
	unsigned int done;
	unsigned int wanted;
	unsigned int taken;
	unsigned int failed;
};

/* A signaled request in flight. */
struct slot {
	struct ib_cqe cqe;
	u64 id;
};

struct pair {
	struct ib_qp *qp;
	/* One for each request of the send queue. */
	struct slot *slots;
	unsigned int next;
	/* Receives, and sends that complete only if they fail. */
	struct slot others;
};

/* A request, as struct Op of `ulp bench` describes it. */
struct op {
	unsigned int qp;
	u64 local, remote;
	unsigned int len;
	bool signaled, inlined;
	u64 id;
};

struct end {
	struct ib_device *device;
	const struct ib_gid_attr *gid;
	u8 mac[ETH_ALEN];
	struct ib_pd *pd;
	struct queue sent, received;
	struct pair pairs[MAX_QPS];
	/* What arrives, and what is sent from. */
	void *inbox, *outbox;
	u64 inbox_dma, outbox_dma;
	size_t bytes;
	struct ib_mr *mr;
};

static struct end ends[2];
/* Whether delivery=direct. */
static bool direct;
static struct ib_rdma_wr writes[MAX_DEPTH + 1];
static struct ib_sge sges[MAX_DEPTH];

/* Stores the identifier of a completion, for the one thread that takes them. */
static void store(struct queue *queue, struct ib_wc *wc)
{
	struct slot *slot = container_of(wc->wr_cqe, struct slot, cqe);

	if (wc->status != IB_WC_SUCCESS)
		WRITE_ONCE(queue->failed, wc->status);
	queue->ids[queue->done & queue->mask] = slot->id;
	/* Pairs with done_of(). */
	smp_store_release(&queue->done, queue->done + 1);
}

static void floor_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct queue *queue = cq->cq_context;

	store(queue, wc);
	/* Pairs with the barrier of prepare_to_wait() in wait_for(). */
	smp_mb();
	if ((int)(queue->done - READ_ONCE(queue->wanted)) >= 0 || queue->failed)
		wake_up(&queue->wait);
}

/* The same for delivery=direct: the thread that waits polls, so nobody is woken. */
static void floor_done_direct(struct ib_cq *cq, struct ib_wc *wc)
{
	store(cq->cq_context, wc);
}

/* The completion handler of delivery=direct. */
static void floor_arrived(struct ib_cq *cq, void *context)
{
	struct queue *queue = context;

	wake_up(&queue->wait);
}

static bool is_done(struct queue *queue, unsigned int wanted)
{
	return (int)(READ_ONCE(queue->done) - wanted) >= 0 ||
	       READ_ONCE(queue->failed);
}

/* How many completions there have been, with their identifiers. */
static unsigned int done_of(struct queue *queue)
{
	/* Pairs with store(). */
	return smp_load_acquire(&queue->done);
}

/* Polls until `wanted` completions were there, and sleeps between events of the device. */
static int poll_until(struct queue *queue, unsigned int wanted)
{
	DEFINE_WAIT(wait);
	int missed = 0;

	ib_process_cq_direct(queue->cq, -1);
	while (!is_done(queue, wanted) && missed >= 0) {
		prepare_to_wait(&queue->wait, &wait, TASK_UNINTERRUPTIBLE);
		missed = ib_req_notify_cq(queue->cq,
					  IB_CQ_NEXT_COMP |
						  IB_CQ_REPORT_MISSED_EVENTS);
		/* The watchdog sets `failed` before it wakes. */
		if (!missed && !READ_ONCE(queue->failed))
			schedule();
		finish_wait(&queue->wait, &wait);
		ib_process_cq_direct(queue->cq, -1);
	}
	return min(missed, 0);
}

/* Sleeps until there are `count` completions that were not taken. */
static int wait_for(struct queue *queue, unsigned int count)
{
	unsigned int wanted = queue->taken + count;
	long left = 1;
	int err = 0;

	if (direct) {
		err = poll_until(queue, wanted);
	} else {
		WRITE_ONCE(queue->wanted, wanted);
		left = wait_event_timeout(queue->wait, is_done(queue, wanted),
					  TIMEOUT);
	}
	if (err)
		return err;
	if (READ_ONCE(queue->failed)) {
		pr_err("ulp_floor: a request failed with status %u\n",
		       queue->failed);
		return -EIO;
	}
	return left ? 0 : -ETIMEDOUT;
}

/* Waits for one completion, and takes all that are there. */
static int wait_and_take(struct queue *queue)
{
	int err = wait_for(queue, 1);

	queue->taken = done_of(queue);
	return err;
}

static int make_queue(struct end *end, struct queue *queue,
		      unsigned int entries)
{
	enum ib_poll_context context;

	if (!strcmp(delivery, "workqueue"))
		context = IB_POLL_WORKQUEUE;
	else if (!strcmp(delivery, "softirq"))
		context = IB_POLL_SOFTIRQ;
	else if (direct)
		context = IB_POLL_DIRECT;
	else
		return -EINVAL;
	init_waitqueue_head(&queue->wait);
	queue->mask = roundup_pow_of_two(entries) - 1;
	queue->ids = kvmalloc_array(queue->mask + 1, sizeof(*queue->ids),
				    GFP_KERNEL);
	if (!queue->ids)
		return -ENOMEM;
	queue->cq = ib_alloc_cq(end->device, queue, entries, 0, context);
	if (IS_ERR(queue->cq)) {
		int err = PTR_ERR(queue->cq);

		queue->cq = NULL;
		return err;
	}
	/* Nothing has armed the queue yet, so the core's handler was not called. */
	if (direct)
		queue->cq->comp_handler = floor_arrived;
	return 0;
}

/* The RoCE v2 GID of an IPv4 address, and the MAC address of its netdev. */
static int find_gid(struct end *end)
{
	int index;

	for (index = 0; index < 16; index++) {
		const struct ib_gid_attr *gid =
			rdma_get_gid_attr(end->device, PORT, index);

		if (IS_ERR(gid))
			continue;
		if (gid->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP &&
		    ipv6_addr_v4mapped((const struct in6_addr *)gid->gid.raw)) {
			end->gid = gid;
			return rdma_read_gid_l2_fields(gid, NULL, end->mac);
		}
		rdma_put_gid_attr(gid);
	}
	return -ENOENT;
}

static int make_end(struct end *end)
{
	void (*done)(struct ib_cq *cq, struct ib_wc *wc) =
		direct ? floor_done_direct : floor_done;
	unsigned int i, at;
	int err;

	err = find_gid(end);
	if (err)
		return err;
	end->pd = ib_alloc_pd(end->device, 0);
	if (IS_ERR(end->pd)) {
		err = PTR_ERR(end->pd);
		end->pd = NULL;
		return err;
	}
	err = make_queue(end, &end->sent, qps * (depth + 2));
	if (!err)
		err = make_queue(end, &end->received, qps * (depth + 2));
	if (err)
		return err;
	for (i = 0; i < qps; i++) {
		struct pair *pair = &end->pairs[i];
		struct ib_qp_init_attr init = {
			.send_cq = end->sent.cq,
			.recv_cq = end->received.cq,
			.cap = {
				.max_send_wr = depth + 2,
				.max_recv_wr = depth + 2,
				.max_send_sge = 1,
				.max_recv_sge = 1,
				.max_inline_data = inlined,
			},
			.sq_sig_type = IB_SIGNAL_REQ_WR,
			.qp_type = IB_QPT_RC,
		};
		struct ib_qp *qp = ib_create_qp(end->pd, &init);

		if (IS_ERR(qp))
			return PTR_ERR(qp);
		pair->qp = qp;
		pair->slots =
			kvcalloc(depth + 2, sizeof(*pair->slots), GFP_KERNEL);
		if (!pair->slots)
			return -ENOMEM;
		for (at = 0; at < depth + 2; at++)
			pair->slots[at].cqe.done = done;
		pair->others.cqe.done = done;
	}
	end->bytes = (size_t)qps * ALIGN(size, STRIDE);
	end->inbox = alloc_pages_exact(end->bytes, GFP_KERNEL | __GFP_ZERO);
	end->outbox = alloc_pages_exact(end->bytes, GFP_KERNEL | __GFP_ZERO);
	if (!end->inbox || !end->outbox)
		return -ENOMEM;
	end->inbox_dma = ib_dma_map_single(end->device, end->inbox, end->bytes,
					   DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(end->device, end->inbox_dma)) {
		end->inbox_dma = 0;
		return -ENOMEM;
	}
	end->outbox_dma = ib_dma_map_single(end->device, end->outbox,
					    end->bytes, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(end->device, end->outbox_dma)) {
		end->outbox_dma = 0;
		return -ENOMEM;
	}
	return 0;
}

static int connect(struct end *end, struct end *peer, unsigned int i)
{
	struct ib_port_attr port;
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE,
	};
	int err;

	err = ib_query_port(end->device, PORT, &port);
	if (err)
		return err;
	err = ib_modify_qp(end->pairs[i].qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT |
				   IB_QP_ACCESS_FLAGS);
	if (err)
		return err;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = peer->pairs[i].qp->qp_num;
	attr.rq_psn = i;
	attr.max_dest_rd_atomic = min(16, end->device->attrs.max_qp_rd_atom);
	attr.min_rnr_timer = 12;
	attr.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(&attr.ah_attr, PORT);
	rdma_ah_set_grh(&attr.ah_attr, NULL, 0, end->gid->index, 64, 0);
	rdma_ah_set_dgid_raw(&attr.ah_attr, (void *)peer->gid->gid.raw);
	ether_addr_copy(attr.ah_attr.roce.dmac, peer->mac);
	err = ib_modify_qp(end->pairs[i].qp, &attr,
			   IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU |
				   IB_QP_DEST_QPN | IB_QP_RQ_PSN |
				   IB_QP_MAX_DEST_RD_ATOMIC |
				   IB_QP_MIN_RNR_TIMER);
	if (err)
		return err;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.sq_psn = i;
	attr.max_rd_atomic = min(16, end->device->attrs.max_qp_init_rd_atom);
	return ib_modify_qp(end->pairs[i].qp, &attr,
			    IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
				    IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
				    IB_QP_MAX_QP_RD_ATOMIC);
}

/* The next slot of a send queue, which holds no more requests than there are slots. */
static struct ib_cqe *next_slot(struct pair *pair, u64 id)
{
	struct slot *slot = &pair->slots[pair->next];

	pair->next = pair->next == depth + 1 ? 0 : pair->next + 1;
	slot->id = id;
	return &slot->cqe;
}

/* Lets the peer write to what arrives. */
static int make_key(struct end *end)
{
	struct scatterlist sg;
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR,
		.wr.send_flags = IB_SEND_SIGNALED,
		.wr.wr_cqe = next_slot(&end->pairs[0], 0),
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
	};
	unsigned int pages = DIV_ROUND_UP(end->bytes, PAGE_SIZE);
	struct ib_mr *mr;
	int err;

	mr = ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, pages);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	end->mr = mr;
	sg_init_one(&sg, end->inbox, end->bytes);
	sg_dma_address(&sg) = end->inbox_dma;
	sg_dma_len(&sg) = end->bytes;
	err = ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE);
	if (err != 1)
		return err < 0 ? err : -EINVAL;
	wr.mr = mr;
	wr.key = mr->rkey;
	err = ib_post_send(end->pairs[0].qp, &wr.wr, NULL);
	return err ? err : wait_and_take(&end->sent);
}

static void free_end(struct end *end)
{
	unsigned int i;

	for (i = 0; i < qps; i++) {
		if (end->pairs[i].qp)
			ib_drain_qp(end->pairs[i].qp);
	}
	if (end->mr)
		ib_dereg_mr(end->mr);
	for (i = 0; i < qps; i++) {
		if (end->pairs[i].qp)
			ib_destroy_qp(end->pairs[i].qp);
		kvfree(end->pairs[i].slots);
	}
	if (end->inbox_dma)
		ib_dma_unmap_single(end->device, end->inbox_dma, end->bytes,
				    DMA_BIDIRECTIONAL);
	if (end->outbox_dma)
		ib_dma_unmap_single(end->device, end->outbox_dma, end->bytes,
				    DMA_BIDIRECTIONAL);
	if (end->inbox)
		free_pages_exact(end->inbox, end->bytes);
	if (end->outbox)
		free_pages_exact(end->outbox, end->bytes);
	if (end->received.cq)
		ib_free_cq(end->received.cq);
	if (end->sent.cq)
		ib_free_cq(end->sent.cq);
	kvfree(end->received.ids);
	kvfree(end->sent.ids);
	if (end->pd)
		ib_dealloc_pd(end->pd);
	if (end->gid)
		rdma_put_gid_attr(end->gid);
}

/* The state of the loop with many outstanding requests, as struct Flow and struct Peak have it. */
static struct {
	/* Requests of each queue pair: posted, and outstanding. */
	u64 posted[MAX_QPS], flying[MAX_QPS];
	/* The queue pair whose turn it is. */
	unsigned int turn;
	/* Outstanding signaled requests. */
	unsigned int signals;
	/* The list. */
	struct op ops[MAX_DEPTH];
	unsigned int count;
	/* The best tenth of a run: how many messages, and since when. */
	u64 slice, messages, began, best;
	atomic64_t progress;
} flow;

/* The requests of a list of `count` that the queue pair gets which is `i` after the turn. */
static unsigned int share_of(unsigned int count, unsigned int i)
{
	return count / qps + (i < count % qps);
}

static unsigned int turn_of(unsigned int i)
{
	return (flow.turn + i) % qps;
}

/* The offset of a message of a queue pair, in the memory that it leaves from and arrives in. */
static u64 place(unsigned int qp)
{
	return (u64)qp * ALIGN(size, STRIDE);
}

/* Makes the requests of a list of `count`. */
static void fill(unsigned int count)
{
	unsigned int i, at, qp, share, since;
	struct op *op;

	flow.count = 0;
	for (i = 0; i < qps; i++) {
		share = share_of(count, i);
		qp = turn_of(i);
		since = 0;
		for (at = 1; at <= share; at++) {
			op = &flow.ops[flow.count++];
			op->qp = qp;
			op->local = place(qp);
			op->remote = place(qp);
			op->len = size;
			op->inlined = size <= inlined;
			since++;
			op->signaled = at == share || since == MODERATION;
			op->id = (u64)qp << 32 | since;
			if (op->signaled) {
				flow.signals++;
				since = 0;
			}
			flow.posted[qp]++;
		}
		flow.flying[qp] += share;
	}
	flow.turn = turn_of(count % qps);
}

/* Copies request `at` of the list into the form of the verbs. */
static void build(struct end *end, struct end *peer, struct pair *pair,
		  unsigned int at)
{
	struct ib_rdma_wr *write = &writes[at];
	const struct op *op = &flow.ops[at];

	sges[at].addr = op->local + (op->inlined ? (uintptr_t)end->outbox :
						   end->outbox_dma);
	sges[at].length = op->len;
	sges[at].lkey = end->pd->local_dma_lkey;
	memset(write, 0, sizeof(*write));
	write->wr.opcode = IB_WR_RDMA_WRITE;
	write->wr.sg_list = &sges[at];
	write->wr.num_sge = 1;
	write->wr.send_flags = op->inlined ? IB_SEND_INLINE : 0;
	write->remote_addr = peer->mr->iova + op->remote;
	write->rkey = peer->mr->rkey;
	write->wr.next = &writes[at + 1].wr;
	write->wr.wr_cqe = &pair->others.cqe;
	if (op->signaled) {
		write->wr.send_flags |= IB_SEND_SIGNALED;
		write->wr.wr_cqe = next_slot(pair, op->id);
	}
}

/* Posts the list: a chain to each queue pair. */
static int post_list(struct end *end, struct end *peer)
{
	unsigned int at = 0, first;
	struct pair *pair;
	int err = 0;

	while (at < flow.count && !err) {
		first = at;
		pair = &end->pairs[flow.ops[first].qp];
		for (; at < flow.count && flow.ops[at].qp == flow.ops[first].qp;
		     at++)
			build(end, peer, pair, at);
		writes[at - 1].wr.next = NULL;
		err = ib_post_send(pair->qp, &writes[first].wr, NULL);
	}
	return err;
}

/* Takes completions, and counts what they stand for. */
static int reap(struct end *end)
{
	struct queue *queue = &end->sent;
	unsigned int done = done_of(queue), qp;
	u64 messages = 0, share, now;

	for (; queue->taken != done; queue->taken++) {
		qp = queue->ids[queue->taken & queue->mask] >> 32;
		share = (u32)queue->ids[queue->taken & queue->mask];
		if (qp >= qps || flow.flying[qp] < share)
			return -EPROTO;
		flow.flying[qp] -= share;
		flow.signals--;
		messages += share;
	}
	atomic64_add(messages, &flow.progress);
	flow.messages += messages;
	if (flow.messages >= flow.slice) {
		now = ktime_get_ns();
		if (now != flow.began)
			flow.best =
				max(flow.best, flow.messages * NSEC_PER_SEC /
						       (now - flow.began));
		flow.began = now;
		flow.messages = 0;
	}
	return 0;
}

/* Sleeps until so many completions are there, and takes them. */
static int wait_and_reap(struct end *end, unsigned int count)
{
	int err = wait_for(&end->sent, clamp(count, 1U, max(flow.signals, 1U)));

	return err ? err : reap(end);
}

/* Whether a list of `count` fits into the queue pairs. */
static bool fits(unsigned int count)
{
	unsigned int i, share;

	for (i = 0; i < qps; i++) {
		share = share_of(count, i);
		if (share && flow.flying[turn_of(i)] + share > depth)
			return false;
	}
	return true;
}

/* Writes so many. */
static int write_all(struct end *end, struct end *peer, unsigned int count)
{
	unsigned int total = 0, each = 0, part, i;
	int err = 0;

	for (i = 0; i < qps; i++)
		each += DIV_ROUND_UP(share_of(list, i), MODERATION);
	for (; total < count && !err; total += part) {
		part = min(list, count - total);
		while (!err && !fits(part))
			err = wait_and_reap(end, each);
		if (err)
			break;
		fill(part);
		err = post_list(end, peer);
		if (!err)
			err = fits(list) ? reap(end) : wait_and_reap(end, each);
	}
	while (!err && flow.signals)
		err = wait_and_reap(end, flow.signals);
	return err;
}

static int measure_writes(void)
{
	u64 began, took;
	int err;

	memset(&flow, 0, sizeof(flow));
	flow.slice = max(n / 10, list);
	err = write_all(&ends[0], &ends[1], warmup);
	if (err)
		return err;
	began = ktime_get_ns();
	flow.began = began;
	flow.messages = 0;
	err = write_all(&ends[0], &ends[1], n);
	took = ktime_get_ns() - began;
	if (err)
		return err;
	scnprintf(
		result, sizeof(result),
		"{\"test\": \"write\", \"messages\": %u, \"ns\": %llu, \"ns_each\": %llu.%02llu, \"best\": %llu}",
		n, took, took / n, took * 100 / n % 100, flow.best);
	return 0;
}

static int post_receive(struct end *end)
{
	struct ib_sge sge = {
		.addr = end->inbox_dma,
		.length = size,
		.lkey = end->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = {
		.wr_cqe = &end->pairs[0].others.cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};

	return ib_post_recv(end->pairs[0].qp, &wr, NULL);
}

static int post_message(struct end *end, unsigned int i)
{
	struct ib_sge sge = {
		.addr = size <= inlined ? (uintptr_t)end->outbox :
					  end->outbox_dma,
		.length = size,
		.lkey = end->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.wr_cqe = &end->pairs[0].others.cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = size <= inlined ? IB_SEND_INLINE : 0,
	};

	if (i % MODERATION == MODERATION - 1) {
		wr.send_flags |= IB_SEND_SIGNALED;
		wr.wr_cqe = next_slot(&end->pairs[0], 0);
		/* Nobody waits for these: the last one frees entries of the queue. */
		if (direct)
			ib_process_cq_direct(end->sent.cq, -1);
	}
	return ib_post_send(end->pairs[0].qp, &wr, NULL);
}

static struct completion over;
static int peer_error;

/* Answers each message. */
static int peer_thread(void *unused)
{
	struct end *end = &ends[1];
	unsigned int i;

	for (i = 0; i < warmup + n && !peer_error; i++) {
		peer_error = wait_and_take(&end->received);
		if (!peer_error)
			peer_error = post_receive(end);
		if (!peer_error)
			peer_error = post_message(end, i);
	}
	complete(&over);
	return 0;
}

static int compare(const void *a, const void *b)
{
	return *(const u32 *)a < *(const u32 *)b ?
		       -1 :
		       *(const u32 *)a > *(const u32 *)b;
}

static int measure_sends(void)
{
	struct end *end = &ends[0];
	struct task_struct *peer;
	u64 began = 0, posted, now;
	unsigned int i;
	u32 *took;
	int err;

	took = vmalloc_array(n, sizeof(*took));
	if (!took)
		return -ENOMEM;
	for (i = 0; i < 4; i++) {
		err = post_receive(&ends[i % 2]);
		if (err)
			goto out;
	}
	init_completion(&over);
	peer = kthread_run(peer_thread, NULL, "ulp_floor");
	if (IS_ERR(peer)) {
		err = PTR_ERR(peer);
		goto out;
	}
	posted = ktime_get_ns();
	for (i = 0; i < warmup + n; i++) {
		if (i == warmup)
			began = posted;
		err = post_receive(end);
		if (!err)
			err = post_message(end, i);
		if (!err)
			err = wait_and_take(&end->received);
		if (err)
			break;
		now = ktime_get_ns();
		if (i >= warmup)
			took[i - warmup] = (now - posted) / 2;
		posted = now;
	}
	wait_for_completion(&over);
	if (!err)
		err = peer_error;
	if (err)
		goto out;
	now = posted - began;
	sort(took, n, sizeof(*took), compare, NULL);
	scnprintf(
		result, sizeof(result),
		"{\"test\": \"send\", \"messages\": %u, \"ns\": %llu, \"p50\": %u, \"p99\": %u}",
		n, now, took[n / 2], took[n - 1 - n / 100]);
out:
	vfree(took);
	return err;
}

/* Ends a measurement of delivery=direct that hangs. */
static void floor_expired(struct work_struct *work)
{
	struct queue *queues[] = { &ends[0].sent, &ends[0].received,
				   &ends[1].sent, &ends[1].received };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		WRITE_ONCE(queues[i]->failed, IB_WC_GENERAL_ERR);
		wake_up(&queues[i]->wait);
	}
}

static DECLARE_DELAYED_WORK(watchdog, floor_expired);

static int measure(void)
{
	unsigned int i;
	int err;

	for (i = 0; i < 2; i++) {
		ends[i].device = devices[i];
		err = make_end(&ends[i]);
		if (err)
			return err;
	}
	for (i = 0; i < 2 * qps; i++) {
		err = connect(&ends[i % 2], &ends[1 - i % 2], i / 2);
		if (err)
			return err;
	}
	/* All wait queues exist now. */
	if (direct)
		schedule_delayed_work(&watchdog, DIRECT_TIMEOUT);
	err = make_key(&ends[1]);
	if (!err)
		err = strcmp(test, "send") ? measure_writes() : measure_sends();
	cancel_delayed_work_sync(&watchdog);
	return err;
}

static int floor_add(struct ib_device *device)
{
	const char *name = dev_name(&device->dev);

	if (!strcmp(name, local))
		devices[0] = device;
	else if (!strcmp(name, remote))
		devices[1] = device;
	return 0;
}

/* Bounded by the measurement, which has deadlines. */
static void floor_remove(struct ib_device *device, void *unused)
{
	guard(mutex)
		(&using);
	if (devices[0] == device)
		devices[0] = NULL;
	if (devices[1] == device)
		devices[1] = NULL;
}

static struct ib_client client = {
	.name = "ulp_floor",
	.add = floor_add,
	.remove = floor_remove,
};

static int __init floor_init(void)
{
	bool write = !strcmp(test, "write");
	int err;

	if (!n || n > 1 << 20 || warmup > 1 << 20 || !size || !depth ||
	    depth > MAX_DEPTH || !qps || qps > MAX_QPS || !list ||
	    list > MAX_DEPTH || list > depth * qps || inlined > 256 ||
	    size > MAX_SIZE / qps || (!write && strcmp(test, "send")))
		return -EINVAL;
	direct = !strcmp(delivery, "direct");
	err = ib_register_client(&client);
	if (err)
		return err;
	mutex_lock(&using);
	err = devices[0] && devices[1] ? measure() : -ENODEV;
	free_end(&ends[0]);
	free_end(&ends[1]);
	mutex_unlock(&using);
	ib_unregister_client(&client);
	return err;
}

static void __exit floor_exit(void)
{
}

module_init(floor_init);
module_exit(floor_exit);
MODULE_DESCRIPTION("ulp bench's loops inside the kernel");
MODULE_LICENSE("GPL");
