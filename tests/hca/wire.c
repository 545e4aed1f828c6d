// SPDX-License-Identifier: GPL-2.0
/*
 * The wire: carries out the send queues of connected queue pairs.
 *
 * A message crosses when its request is carried out, in the call that posted
 * it. One context at a time runs a send queue; requests that arrive meanwhile
 * are left to it. It goes on in a worker when there is much to move. A request
 * that has to be tried again stops the queue until a timer ends.
 */
#include <linux/delay.h>

#include "hca.h"

/* What a request can come to besides a status of a completion. */
#define HCA_RETRY 0x1000 /* The peer does not answer. */
#define HCA_RNR 0x1001 /* It has no receive request. */
#define HCA_BUSY 0x1002 /* Has to wait for others, in a worker. */

/* --- the receiving side --- */

bool hca_is_up(struct hca *hca)
{
	return !hca->error && (!hca->netdev || netif_running(hca->netdev));
}

/*
 * Returns the queue pair `qpn` of device `number` when it can receive from
 * `from`, else NULL. Until hca_inbound_end() it is neither flushed nor
 * destroyed, and its device stays.
 */
struct hca_qp *hca_inbound(struct hca *from, int number, u32 qpn)
{
	struct hca_qp *to = NULL;
	struct hca *hca;
	unsigned long flags;
	bool ready, established;

	if (number >= 0 && READ_ONCE(hca_deaf) == number + 1) {
		WRITE_ONCE(hca_unheard, hca_unheard + 1);
		return NULL;
	}
	rcu_read_lock();
	hca = number < 0 ? NULL : rcu_dereference(hcas[number]);
	if (hca && hca_is_up(hca) && hca_is_up(from))
		to = hca_get_qp(hca, qpn);
	rcu_read_unlock();
	if (!to)
		return NULL;
	spin_lock_irqsave(&to->lock, flags);
	ready = to->state >= IB_QPS_RTR && to->state <= IB_QPS_SQE;
	established = ready && to->state == IB_QPS_RTR && !to->established;
	if (ready)
		to->inbound++;
	if (established)
		to->established = true;
	spin_unlock_irqrestore(&to->lock, flags);
	if (!ready) {
		hca_put_qp(to);
		return NULL;
	}
	if (established && to->ib.qp_type == IB_QPT_RC)
		hca_qp_event(to, IB_EVENT_COMM_EST);
	return to;
}

void hca_inbound_end(struct hca_qp *to)
{
	scoped_guard(spinlock_irqsave, &to->lock)
		to->inbound--;
	hca_flush_recvs(to);
	hca_put_qp(to);
}

void hca_recv_wc(struct hca_qp *to, struct ib_wc *wc, bool solicited)
{
	wc->qp = &to->ib;
	hca_push_cqe(to_cq(to->ib.recv_cq), wc, to->recvs, 0, solicited);
}

/* Flushes the next receive request. Returns false when there is none. */
bool hca_flush_recv(struct hca_qp *qp)
{
	struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR,
			    .opcode = IB_WC_RECV };
	struct hca_wq *wq = qp->recvs;
	struct hca_recv *recv = NULL;
	unsigned long flags;

	spin_lock_irqsave(&wq->lock, flags);
	if (wq->tail != wq->head) {
		recv = hca_entry(wq, wq->tail++);
		wc.wr_id = recv->wr_id;
	}
	spin_unlock_irqrestore(&wq->lock, flags);
	if (recv)
		hca_recv_wc(qp, &wc, false);
	return recv;
}

/* Flushes the receive queue of a queue pair in ERR that receives nothing any more. */
void hca_flush_recvs(struct hca_qp *qp)
{
	HCA_LOCK(&qp->lock);
	if (qp->state != IB_QPS_ERR || qp->inbound || READ_ONCE(hca_stopped))
		return;
	if (qp->ib.srq) {
		if (!qp->last_wqe && !READ_ONCE(hca_late_receive) &&
		    to_hca(qp->ib.device)->rules->last_wqe)
			hca_qp_event(qp, IB_EVENT_QP_LAST_WQE_REACHED);
		qp->last_wqe = true;
		return;
	}
	while (hca_flush_recv(qp))
		;
}

/* Carries out, or flushes, what is posted. */
void hca_go_on(struct hca_qp *qp)
{
	hca_run(qp);
	hca_flush_recvs(qp);
}

/* Takes the queue pair to ERR. */
void hca_fail(struct hca_qp *qp)
{
	scoped_guard(spinlock_irqsave, &qp->lock) {
		if (qp->state != IB_QPS_RESET)
			qp->state = IB_QPS_ERR;
		qp->stalled = false;
	}
	hca_go_on(qp);
}

/*
 * Takes the next receive request, with its memory behind what `segs` holds. A
 * request that does not fit completes with an error. Returns HCA_RNR when there
 * is none. Without a reliable connection a request that does not fit waits for
 * a message that does, and counts as none: hw/hfi1/ud.c:hfi1_ud_rcv,
 * hw/hfi1/uc.c:hfi1_uc_rcv, sw/rxe/rxe_resp.c:rxe_receiver. In a shared queue
 * it completes: rxe_receiver again.
 */
enum ib_wc_status hca_take_recv(struct hca_qp *to, u64 length,
				struct hca_segs *segs, u64 *wr_id)
{
	struct ib_wc wc = { .opcode = IB_WC_RECV };
	struct ib_sge sge[HCA_MAX_SGE];
	struct hca_wq *wq = to->recvs;
	struct hca_recv *recv;
	u64 room = 0;
	u32 count;

	scoped_guard(spinlock_irqsave, &wq->lock) {
		if (wq->tail == wq->head)
			return HCA_RNR;
		recv = hca_entry(wq, wq->tail);
		for (count = 0; count < recv->num_sge; count++)
			room += recv->sge[count].length;
		if (to->ib.qp_type != IB_QPT_RC && !to->ib.srq && room < length)
			return HCA_RNR;
		wq->tail++;
		*wr_id = recv->wr_id;
		memcpy(sge, recv->sge, count * sizeof(*sge));
		if (wq->limit && wq->head - wq->tail < wq->limit) {
			wq->limit = 0;
			irq_work_queue(wq->event);
		}
	}
	if (hca_segs_add_list(segs, to_hca(to->ib.device),
			      to->ib.srq ? to->ib.srq->pd : to->ib.pd, sge,
			      count, IB_ACCESS_LOCAL_WRITE))
		wc.status = IB_WC_LOC_PROT_ERR;
	else if (segs->length < length)
		wc.status = IB_WC_LOC_LEN_ERR;
	if (wc.status) {
		wc.wr_id = *wr_id;
		hca_recv_wc(to, &wc, false);
		hca_fail(to);
	}
	return wc.status;
}

/* The peer's request was wrong: the connection fails at both ends. */
static enum ib_wc_status refuse(struct hca_qp *to, enum ib_wc_status status)
{
	if (to->ib.qp_type != IB_QPT_RC)
		return IB_WC_SUCCESS;
	hca_qp_event(to, status == IB_WC_REM_ACCESS_ERR ?
				 IB_EVENT_QP_ACCESS_ERR :
				 IB_EVENT_QP_REQ_ERR);
	hca_fail(to);
	return status;
}

static enum ib_wc_status receive(struct hca_qp *qp, struct hca_qp *to,
				 struct hca_wqe *wqe)
{
	bool write = wqe->opcode == IB_WR_RDMA_WRITE_WITH_IMM;
	struct ib_wc wc = {
		.opcode = write ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV,
		.byte_len = wqe->length,
		.src_qp = qp->ib.qp_num,
		.port_num = 1,
	};
	enum ib_wc_status status;
	struct hca_segs none;

	hca_segs_begin(&none);
	status = hca_take_recv(to, write ? 0 : wqe->length,
			       write ? &none : &qp->far, &wc.wr_id);
	hca_segs_end(&none);
	if (status == HCA_RNR)
		return to->ib.qp_type == IB_QPT_RC ? HCA_RNR : IB_WC_SUCCESS;
	if (status)
		return refuse(to, status == IB_WC_LOC_LEN_ERR ?
					  IB_WC_REM_INV_REQ_ERR :
					  IB_WC_REM_OP_ERR);
	if (hca_copy(&qp->far, &qp->near, 0)) {
		wc.status = IB_WC_LOC_PROT_ERR;
		hca_recv_wc(to, &wc, false);
		return refuse(to, IB_WC_REM_OP_ERR);
	}
	hca_segs_end(&qp->far);
	switch (wqe->opcode) {
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		wc.wc_flags = IB_WC_WITH_IMM;
		wc.ex.invalidate_rkey = wqe->ex;
		break;
	case IB_WR_SEND_WITH_INV:
		if (hca_invalidate(to_hca(to->ib.device), to->ib.pd, wqe->ex,
				   true)) {
			wc.status = IB_WC_LOC_ACCESS_ERR;
			hca_recv_wc(to, &wc, false);
			return refuse(to, IB_WC_REM_ACCESS_ERR);
		}
		wc.wc_flags = IB_WC_WITH_INVALIDATE;
		wc.ex.invalidate_rkey = wqe->ex;
		break;
	default:
		break;
	}
	hca_recv_wc(to, &wc, wqe->flags & IB_SEND_SOLICITED);
	return IB_WC_SUCCESS;
}

/* Adds what the request names of the peer's memory, when that gives the right. */
static enum ib_wc_status remote(struct hca_qp *qp, struct hca_qp *to,
				struct hca_wqe *wqe, int access)
{
	/* As check_op_valid() of rxe: what the queue pair does not enable is invalid. */
	if ((to->attr.qp_access_flags & access) != access)
		return refuse(to, IB_WC_REM_INV_REQ_ERR);
	if (hca_segs_add(&qp->far, to_hca(to->ib.device), to->ib.pd,
			 wqe->rdma.rkey, wqe->rdma.addr, wqe->length, access))
		return refuse(to, IB_WC_REM_ACCESS_ERR);
	return IB_WC_SUCCESS;
}

/*
 * What has not landed of a Write lands. As where PCIe has relaxed ordering, other Writes may have
 * landed before, but none has completed. Of who runs the send queue.
 */
static void land(struct hca_qp *qp)
{
	ktime_t end = ktime_add_ms(ktime_get(), 10 * MSEC_PER_SEC);

	if (!qp->late_far.count)
		return;
	do
		usleep_range(50, 100);
	while (READ_ONCE(hca_hold_writes) && ktime_before(ktime_get(), end));
	/* An address that is not mapped has been printed. */
	hca_copy(&qp->late_far, &qp->late_near, 0);
	hca_segs_end(&qp->late_near);
	hca_segs_end(&qp->late_far);
}

/* Whether a request is a Write of which a part lands late. That takes a worker. */
static bool is_late(struct hca_qp *qp, struct hca_wqe *wqe)
{
	return to_hca(qp->ib.device)->rules->relaxed &&
	       wqe->opcode == IB_WR_RDMA_WRITE && wqe->length > HCA_PROMPT;
}

static enum ib_wc_status write(struct hca_qp *qp, struct hca_qp *to,
			       struct hca_wqe *wqe)
{
	u64 late = is_late(qp, wqe) ? wqe->length - HCA_PROMPT : 0;
	enum ib_wc_status status;

	status = remote(qp, to, wqe, IB_ACCESS_REMOTE_WRITE);
	/* What a receiver of datagrams refuses, its sender does not hear of. */
	if (status || qp->far.length < wqe->length)
		return status;
	if (hca_copy(&qp->far, &qp->near, late))
		return refuse(to, IB_WC_REM_OP_ERR);
	if (late) {
		land(qp);
		qp->late_near = qp->near;
		qp->late_far = qp->far;
		qp->late_near.length = late;
		hca_segs_begin(&qp->near);
		hca_segs_begin(&qp->far);
		return IB_WC_SUCCESS;
	}
	hca_segs_end(&qp->far);
	if (wqe->opcode == IB_WR_RDMA_WRITE)
		return IB_WC_SUCCESS;
	hca_segs_end(&qp->near);
	return receive(qp, to, wqe);
}

static enum ib_wc_status read(struct hca_qp *qp, struct hca_qp *to,
			      struct hca_wqe *wqe)
{
	bool atomic = wqe->opcode != IB_WR_RDMA_READ;
	enum ib_wc_status status;
	u64 old;

	if (!to->attr.max_dest_rd_atomic || (atomic && wqe->rdma.addr & 7))
		return refuse(to, IB_WC_REM_INV_REQ_ERR);
	status = remote(qp, to, wqe,
			atomic ? IB_ACCESS_REMOTE_ATOMIC :
				 IB_ACCESS_REMOTE_READ);
	if (status)
		return status;
	if (atomic) {
		if (hca_atomic(&qp->far,
			       wqe->opcode == IB_WR_ATOMIC_CMP_AND_SWP,
			       wqe->rdma.compare,
			       wqe->opcode == IB_WR_ATOMIC_CMP_AND_SWP ?
				       wqe->rdma.swap :
				       wqe->rdma.compare,
			       &old))
			return refuse(to, IB_WC_REM_OP_ERR);
		hca_segs_end(&qp->far);
		hca_segs_add_ptr(&qp->far, &old, sizeof(old));
	}
	return hca_copy(&qp->near, &qp->far, 0) ? IB_WC_LOC_PROT_ERR :
						  IB_WC_SUCCESS;
}

/* --- the sending side --- */

/* The memory of the request's own side, into qp->near. */
enum ib_wc_status hca_gather(struct hca_qp *qp, struct hca_wqe *wqe, int access)
{
	if (wqe->flags & IB_SEND_INLINE)
		hca_segs_add_ptr(&qp->near, wqe->sge, wqe->length);
	else if (hca_segs_add_list(&qp->near, to_hca(qp->ib.device), qp->ib.pd,
				   wqe->sge, wqe->num_sge, access))
		return IB_WC_LOC_PROT_ERR;
	return IB_WC_SUCCESS;
}

static enum ib_wc_status connected(struct hca_qp *qp, struct hca_wqe *wqe)
{
	bool reads = wqe->opcode == IB_WR_RDMA_READ ||
		     wqe->opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
		     wqe->opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
	bool reliable = qp->ib.qp_type == IB_QPT_RC;
	struct hca *hca = to_hca(qp->ib.device);
	enum ib_wc_status status;
	struct hca_qp *to;

	if (reads && (!reliable || !qp->attr.max_rd_atomic ||
		      wqe->flags & IB_SEND_INLINE ||
		      (wqe->opcode != IB_WR_RDMA_READ && wqe->length != 8)))
		return IB_WC_LOC_QP_OP_ERR;
	status = hca_gather(qp, wqe, reads ? IB_ACCESS_LOCAL_WRITE : 0);
	if (status)
		return status;

	/* What stays within the adapter is not stopped. */
	if (qp->dest != hca->number && READ_ONCE(hca_pause_storm)) {
		atomic64_inc(&hca->pauses);
		return reliable ? HCA_RETRY : IB_WC_SUCCESS;
	}
	to = hca_inbound(hca, qp->dest, qp->attr.dest_qp_num);
	if (!to)
		return reliable ? HCA_RETRY : IB_WC_SUCCESS;
	if (to->ib.qp_type != qp->ib.qp_type || to->dest != hca->number ||
	    (reliable && to->recv_psn != qp->send_psn))
		status = reliable ? HCA_RETRY : IB_WC_SUCCESS;
	else if (reads)
		status = read(qp, to, wqe);
	else if (wqe->opcode == IB_WR_RDMA_WRITE ||
		 wqe->opcode == IB_WR_RDMA_WRITE_WITH_IMM)
		status = write(qp, to, wqe);
	else
		status = receive(qp, to, wqe);
	if (reliable && status == IB_WC_SUCCESS) {
		to->recv_psn = (to->recv_psn + 1) & 0xffffff;
		qp->send_psn = (qp->send_psn + 1) & 0xffffff;
		qp->retries = qp->attr.retry_cnt;
		qp->rnr_retries = qp->attr.rnr_retry;
	}
	hca_inbound_end(to);
	return status;
}

/* May return HCA_BUSY unless it may sleep. */
static enum ib_wc_status execute(struct hca_qp *qp, struct hca_wqe *wqe,
				 bool may_sleep)
{
	struct hca *hca = to_hca(qp->ib.device);
	enum ib_wc_status status;
	int err;

	if (is_late(qp, wqe) && !may_sleep)
		return HCA_BUSY;
	switch (wqe->opcode) {
	case IB_WR_REG_MR:
		return hca_register(qp, wqe) ? IB_WC_LOC_QP_OP_ERR :
					       IB_WC_SUCCESS;
	case IB_WR_LOCAL_INV:
		err = hca_invalidate(hca, qp->ib.pd, wqe->ex, may_sleep);
		return err == -EBUSY ? HCA_BUSY :
		       err	     ? IB_WC_LOC_QP_OP_ERR :
				       IB_WC_SUCCESS;
	case IB_WR_SEND_WITH_INV:
		/* Invalidating at the other end may have to wait. */
		if (!may_sleep)
			return HCA_BUSY;
		break;
	default:
		break;
	}
	hca_segs_begin(&qp->near);
	hca_segs_begin(&qp->far);
	if (qp->ib.qp_type == IB_QPT_RC || qp->ib.qp_type == IB_QPT_UC)
		status = connected(qp, wqe);
	else
		status = hca_send_datagram(qp, wqe);
	hca_segs_end(&qp->near);
	hca_segs_end(&qp->far);
	return status;
}

/* The opcodes of completions; IB_WC_SEND is 0. */
static const enum ib_wc_opcode wc_opcodes[] = {
	[IB_WR_RDMA_WRITE] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_WRITE_WITH_IMM] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_READ] = IB_WC_RDMA_READ,
	[IB_WR_ATOMIC_CMP_AND_SWP] = IB_WC_COMP_SWAP,
	[IB_WR_ATOMIC_FETCH_AND_ADD] = IB_WC_FETCH_ADD,
	[IB_WR_LOCAL_INV] = IB_WC_LOCAL_INV,
	[IB_WR_REG_MR] = IB_WC_REG_MR,
};

static void complete_wqe(struct hca_qp *qp, struct hca_wqe *wqe,
			 enum ib_wc_status status)
{
	struct ib_wc wc = {
		.wr_id = wqe->wr_id,
		.status = status,
		.opcode = wc_opcodes[wqe->opcode],
		.byte_len = wqe->length,
		.qp = &qp->ib,
	};

	WRITE_ONCE(qp->sq.tail, qp->sq.tail + 1);
	if (status || wqe->flags & IB_SEND_SIGNALED ||
	    qp->init.sq_sig_type == IB_SIGNAL_ALL_WR)
		hca_push_cqe(to_cq(qp->ib.send_cq), &wc, &qp->sq, qp->sq.tail,
			     false);
}

/*
 * How long to wait before a request is tried again, in microseconds; 0 when it was the last time.
 */
static unsigned long retry_delay(struct hca_qp *qp, enum ib_wc_status status)
{
	if (status == HCA_RNR) {
		if (!qp->rnr_retries)
			return 0;
		/* 7 stands for ever. */
		if (qp->attr.rnr_retry != 7)
			qp->rnr_retries--;
		return 700;
	}
	/* Without a timeout it is never tried again, and never given up. */
	if (!qp->attr.timeout)
		return 60 * USEC_PER_SEC;
	if (!qp->retries)
		return 0;
	qp->retries--;
	return (4096ULL << qp->attr.timeout) / 1000;
}

/* Stops the queue until the timer ends; false when it goes on, with `*status` for the request. */
static bool stall(struct hca_qp *qp, enum ib_wc_status *status)
{
	unsigned long delay = retry_delay(qp, *status);

	*status = *status == HCA_RNR ? IB_WC_RNR_RETRY_EXC_ERR :
				       IB_WC_RETRY_EXC_ERR;
	if (!delay)
		return false;
	/* Armed under the lock: who leaves RTS cancels it. */
	HCA_LOCK(&qp->lock);
	if (qp->state == IB_QPS_RTS) {
		qp->stalled = true;
		queue_delayed_work(system_percpu_wq, &qp->retry,
				   usecs_to_jiffies(delay));
	}
	return true;
}

/*
 * Stores the next request to carry out, NULL for none, and the state. False ends the run: from then
 * on another context may run the queue.
 */
static bool next_wqe(struct hca_qp *qp, struct hca_wqe **wqe,
		     enum ib_qp_state *state)
{
	bool running = true;

	*wqe = NULL;
	HCA_LOCK(&qp->lock);
	*state = qp->state;
	if (qp->sq.tail != qp->sq.head && !qp->stalled &&
	    !READ_ONCE(hca_stopped) && *state >= IB_QPS_RTS &&
	    *state != IB_QPS_SQD)
		*wqe = hca_entry(&qp->sq, qp->sq.tail);
	else
		running = qp->late_far.count;
	qp->running = running;
	if (!running && *state == IB_QPS_SQD && qp->attr.en_sqd_async_notify) {
		qp->attr.en_sqd_async_notify = 0;
		hca_qp_event(qp, IB_EVENT_SQ_DRAINED);
	}
	return running;
}

/* Carries out the send queue; `running` is the caller's. */
static void run(struct hca_qp *qp, bool in_worker)
{
	enum ib_wc_status status;
	enum ib_qp_state state;
	struct hca_wqe *wqe;
	u64 moved = 0;

	while (next_wqe(qp, &wqe, &state)) {
		if (!wqe || state != IB_QPS_RTS ||
		    wqe->opcode != IB_WR_RDMA_WRITE)
			land(qp);
		if (!wqe)
			continue;
		if (state != IB_QPS_RTS) {
			complete_wqe(qp, wqe, IB_WC_WR_FLUSH_ERR);
			continue;
		}
		/* A request costs something, too. */
		moved += 256 + wqe->length;
		if (in_worker)
			cond_resched();
		else if (moved > HCA_INLINE_BYTES)
			goto worker;
		if (wqe->opcode == IB_WR_REG_MR &&
		    hca_count_down(&hca_lose_register)) {
			/* Until the queue pair changes its state. */
			scoped_guard(spinlock_irqsave, &qp->lock)
				qp->stalled = true;
			continue;
		}
		if ((wqe->opcode == IB_WR_REG_MR ||
		     qp->ib.qp_type == IB_QPT_UD) &&
		    hca_count_down(&hca_flush_register))
			status = IB_WC_WR_FLUSH_ERR;
		else
			status = execute(qp, wqe, in_worker);
		if (status == HCA_BUSY)
			goto worker;
		if ((status == HCA_RETRY || status == HCA_RNR) &&
		    stall(qp, &status))
			continue;
		if (status || wqe->flags & IB_SEND_SIGNALED ||
		    qp->init.sq_sig_type == IB_SIGNAL_ALL_WR)
			land(qp);
		complete_wqe(qp, wqe, status);
		if (status && qp->ib.qp_type == IB_QPT_RC)
			hca_fail(qp);
		else if (status) /* Receives go on: IBA 10.3.1. */
			cmpxchg(&qp->state, IB_QPS_RTS, IB_QPS_SQE);
	}
	return;
worker:
	queue_work(system_dfl_wq, &qp->work);
}

void hca_run(struct hca_qp *qp)
{
	scoped_guard(spinlock_irqsave, &qp->lock) {
		if (qp->running || qp->stalled || qp->state == IB_QPS_RESET)
			return;
		qp->running = true;
	}
	run(qp, false);
}

void hca_run_work(struct work_struct *work)
{
	run(container_of(work, struct hca_qp, work), true);
}

void hca_retry_work(struct work_struct *work)
{
	struct hca_qp *qp =
		container_of(to_delayed_work(work), struct hca_qp, retry);

	scoped_guard(spinlock_irqsave, &qp->lock)
		qp->stalled = false;
	hca_run(qp);
}
