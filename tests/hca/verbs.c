// SPDX-License-Identifier: GPL-2.0
/* The verbs: objects, their states, and what is posted and polled. */
#include <linux/delay.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_mad.h>

#include "hca.h"

/* --- completion queues --- */

static void handle(struct hca_cq *cq)
{
	WRITE_ONCE(hca_handler_cpu, raw_smp_processor_id());
	cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

/* As the handler of a driver's interrupt: with interrupts off, or in a thread with PREEMPT_RT. */
static void cq_interrupt(struct irq_work *irq)
{
	handle(container_of(irq, struct hca_cq, irq));
}

static void late_interrupt(struct timer_list *timer)
{
	struct hca_cq *cq = timer_container_of(cq, timer, late);

	if (READ_ONCE(hca_context) == HCA_SOFTIRQ)
		handle(cq);
	else
		irq_work_queue(&cq->irq);
}

/* Goes on, on the CPU of the vector, in the context that a test asked for. */
static void cq_vector(struct work_struct *work)
{
	struct hca_cq *cq = container_of(work, struct hca_cq, in_vector);

	switch (READ_ONCE(hca_context)) {
	case HCA_HARDIRQ:
		irq_work_queue(&cq->irq);
		break;
	case HCA_SOFTIRQ:
		mod_timer(&cq->late, jiffies);
		break;
	default:
		handle(cq);
	}
}

/* The completion queue interrupts, unless that is made late. */
static void interrupt(struct hca_cq *cq)
{
	unsigned int ms = READ_ONCE(hca_interrupt_ms);

	if (READ_ONCE(hca_context))
		queue_work_on(cq->vector, system_percpu_wq, &cq->in_vector);
	else if (ms)
		mod_timer(&cq->late, jiffies + msecs_to_jiffies(ms));
	else
		irq_work_queue(&cq->irq);
}

/* Shows the completions that are due at `now`. Returns whether the queue interrupts. */
static bool show(struct hca_cq *cq, ktime_t now)
{
	bool interrupts = false;
	struct hca_cqe *cqe;

	for (; cq->shown != cq->head; cq->shown++) {
		cqe = &cq->ring[cq->shown & (cq->size - 1)];
		if (ktime_after(cqe->due, now))
			break;
		interrupts |= cq->armed == IB_CQ_NEXT_COMP ||
			      (cq->armed && cqe->solicited);
	}
	/* One that is lost leaves the queue armed: the next one may come. */
	interrupts = interrupts && hca_count_down(&hca_lose_interrupt) != 1;
	if (interrupts)
		cq->armed = 0;
	return interrupts;
}

static enum hrtimer_restart completions_due(struct hrtimer *timer)
{
	struct hca_cq *cq = container_of(timer, struct hca_cq, delay);
	enum hrtimer_restart restart = HRTIMER_NORESTART;
	unsigned long flags;
	bool interrupts;

	spin_lock_irqsave(&cq->lock, flags);
	interrupts = show(cq, ktime_get());
	if (cq->shown != cq->head) {
		hrtimer_set_expires(timer,
				    cq->ring[cq->shown & (cq->size - 1)].due);
		restart = HRTIMER_RESTART;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (interrupts)
		interrupt(cq);
	return restart;
}

static void cq_error(struct irq_work *irq)
{
	struct hca_cq *cq = container_of(irq, struct hca_cq, error);
	struct ib_event event = {
		.device = cq->ib.device,
		.element.cq = &cq->ib,
		.event = IB_EVENT_CQ_ERR,
	};

	if (cq->ib.event_handler)
		cq->ib.event_handler(&event, cq->ib.cq_context);
}

static int create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	struct hca_cq *cq = to_cq(ib);
	int err;

	if (!attr->cqe || attr->flags ||
	    attr->cqe > to_hca(ib->device)->rules->max_cqe ||
	    attr->comp_vector >= ib->device->num_comp_vectors)
		return -EINVAL;
	err = hca_command(to_hca(ib->device), "create_cq");
	if (err)
		return err;
	cq->size = roundup_pow_of_two(attr->cqe);
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	cq->vector = attr->comp_vector % num_possible_cpus();
	cq->irq = IRQ_WORK_INIT(cq_interrupt);
	INIT_WORK(&cq->in_vector, cq_vector);
	cq->error = IRQ_WORK_INIT(cq_error);
	timer_setup(&cq->late, late_interrupt, TIMER_PINNED);
	hrtimer_setup(&cq->delay, completions_due, CLOCK_MONOTONIC,
		      HRTIMER_MODE_ABS);
	ib->cqe = cq->size;
	return 0;
}

static int destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct hca_cq *cq = to_cq(ib);
	int err;

	err = hca_command(to_hca(ib->device), "destroy_cq");
	if (err)
		return err;
	hrtimer_cancel(&cq->delay);
	cancel_work_sync(&cq->in_vector);
	timer_shutdown_sync(&cq->late);
	irq_work_sync(&cq->irq);
	irq_work_sync(&cq->error);
	kvfree(cq->ring);
	return 0;
}

/* `next` is how far the completion frees the send queue `wq`; of a receive queue it frees one. */
void hca_push_cqe(struct hca_cq *cq, const struct ib_wc *wc, struct hca_wq *wq,
		  u32 next, bool solicited)
{
	struct hca_cqe *cqe;
	unsigned long flags;
	bool interrupts = false;
	unsigned int us;

	if (hca_count_down(&hca_lose_completion) == 1)
		return;
	spin_lock_irqsave(&cq->lock, flags);
	if (cq->head - cq->tail == cq->size) {
		if (!cq->overrun) {
			hca_broken(to_hca(cq->ib.device),
				   "a CQ of %u entries overruns", cq->size);
			irq_work_queue(&cq->error);
		}
		cq->overrun = true;
	} else {
		cqe = &cq->ring[cq->head++ & (cq->size - 1)];
		cqe->wc = *wc;
		cqe->wq = wq;
		cqe->next = next;
		cqe->solicited = solicited || wc->status;
		us = READ_ONCE(hca_completion_us);
		cqe->due = us ? ktime_add_us(ktime_get(), us) : 0;
		/* Behind one that is not due yet, it waits for the timer, too. */
		interrupts = show(cq, 0);
		if (cq->head - cq->shown == 1)
			hrtimer_start(&cq->delay, cqe->due, HRTIMER_MODE_ABS);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (interrupts)
		interrupt(cq);
}

/* The entries of the queue that a completion stands for are free again. */
static void free_entries(struct hca_cqe *cqe)
{
	spin_lock(&cqe->wq->lock);
	if (cqe->wc.opcode & IB_WC_RECV)
		cqe->wq->done++;
	else
		cqe->wq->done = cqe->next;
	spin_unlock(&cqe->wq->lock);
}

static int poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	struct hca_cq *cq = to_cq(ib);
	struct hca_cqe *cqe;
	unsigned long flags;
	int polled = 0;

	spin_lock_irqsave(&cq->lock, flags);
	for (; polled < count && cq->tail != cq->shown; polled++, cq->tail++) {
		cqe = &cq->ring[cq->tail & (cq->size - 1)];
		free_entries(cqe);
		if (cqe->wc.status) {
			/* Of a failed request nothing else is defined. */
			wc[polled].wr_id = cqe->wc.wr_id;
			wc[polled].status = cqe->wc.status;
			wc[polled].vendor_err = 0xbad00000 | cqe->wc.status;
			wc[polled].qp = cqe->wc.qp;
		} else {
			wc[polled] = cqe->wc;
			/* mlx5 sets it for errors alone: hw/mlx5/cq.c:mlx5_handle_error_cqe. */
			wc[polled].vendor_err = 0xdead;
		}
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	/* As a worker that the scheduler leaves here: the driver has given the completions away. */
	if (polled && current->flags & PF_WQ_WORKER && READ_ONCE(hca_poll_ms))
		msleep(hca_poll_ms);
	return polled;
}

static int req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags how)
{
	struct hca_cq *cq = to_cq(ib);

	HCA_LOCK(&cq->lock);
	cq->armed = max(cq->armed, how & IB_CQ_SOLICITED_MASK);
	return (how & IB_CQ_REPORT_MISSED_EVENTS) && cq->shown != cq->tail;
}

/* Takes the completions of a queue pair away, which has no queues any more. */
static void clean_cq(struct ib_cq *ib, struct hca_qp *qp)
{
	struct hca_cq *cq = to_cq(ib);
	struct hca_cqe *cqe;
	u32 from, to, hidden;

	HCA_LOCK(&cq->lock);
	hidden = cq->head - cq->shown;
	for (from = to = cq->tail; from != cq->head; from++) {
		cqe = &cq->ring[from & (cq->size - 1)];
		if (cqe->wc.qp != &qp->ib) {
			cq->ring[to++ & (cq->size - 1)] = *cqe;
			continue;
		}
		free_entries(cqe);
		if ((s32)wrapping_sub(u32, from, cq->shown) >= 0)
			hidden--;
	}
	cq->head = to;
	cq->shown = to - hidden;
}

/* --- work queues --- */

static int init_wq(struct hca_wq *wq, u32 entries, u32 sge, size_t stride)
{
	spin_lock_init(&wq->lock);
	wq->max_sge = sge;
	if (!entries)
		return 0;
	wq->size = roundup_pow_of_two(entries);
	wq->stride = stride;
	wq->ring = kvcalloc(wq->size, stride, GFP_KERNEL);
	return wq->ring ? 0 : -ENOMEM;
}

static void reset_wq(struct hca_wq *wq)
{
	wq->head = 0;
	wq->tail = 0;
	wq->done = 0;
}

static int post_receives(struct hca_wq *wq, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	struct hca_recv *recv;

	HCA_LOCK(&wq->lock);
	for (; wr; wr = wr->next) {
		*bad = wr;
		if (wr->num_sge > wq->max_sge)
			return -EINVAL;
		if (wq->head - wq->done >= wq->size)
			return -ENOMEM;
		recv = hca_entry(wq, wq->head);
		recv->wr_id = wr->wr_id;
		recv->num_sge = wr->num_sge;
		memcpy(recv->sge, wr->sg_list,
		       wr->num_sge * sizeof(*recv->sge));
		wq->head++;
	}
	return 0;
}

void hca_srq_event(struct ib_srq *ib, enum ib_event_type type)
{
	struct ib_event event = {
		.device = ib->device,
		.element.srq = ib,
		.event = type,
	};

	if (ib->event_handler)
		ib->event_handler(&event, ib->srq_context);
}

static void srq_event(struct irq_work *irq)
{
	struct hca_srq *srq = container_of(irq, struct hca_srq, event);

	hca_srq_event(&srq->ib, IB_EVENT_SRQ_LIMIT_REACHED);
}

static int create_srq(struct ib_srq *ib, struct ib_srq_init_attr *init,
		      struct ib_udata *udata)
{
	struct hca_srq *srq = to_srq(ib);
	int err;

	if (init->srq_type != IB_SRQT_BASIC || !init->attr.max_wr ||
	    init->attr.max_wr > HCA_MAX_WR || !init->attr.max_sge ||
	    init->attr.max_sge > HCA_MAX_SGE)
		return -EINVAL;
	err = hca_command(to_hca(ib->device), "create_srq");
	if (err)
		return err;
	srq->event = IRQ_WORK_INIT(srq_event);
	err = init_wq(&srq->wq, init->attr.max_wr, init->attr.max_sge,
		      struct_size_t(struct hca_recv, sge, init->attr.max_sge));
	if (err)
		return err;
	srq->wq.event = &srq->event;
	init->attr.max_wr = srq->wq.size;
	return 0;
}

static int modify_srq(struct ib_srq *ib, struct ib_srq_attr *attr,
		      enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct hca_srq *srq = to_srq(ib);
	int err;

	if (mask & ~IB_SRQ_LIMIT || attr->srq_limit > srq->wq.size)
		return -EINVAL;
	err = hca_command(to_hca(ib->device), "modify_srq");
	if (err)
		return err;
	HCA_LOCK(&srq->wq.lock);
	srq->wq.limit = attr->srq_limit;
	return 0;
}

static int query_srq(struct ib_srq *ib, struct ib_srq_attr *attr)
{
	struct hca_srq *srq = to_srq(ib);

	attr->max_wr = srq->wq.size;
	attr->max_sge = srq->wq.max_sge;
	attr->srq_limit = READ_ONCE(srq->wq.limit);
	return 0;
}

static int destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	struct hca_srq *srq = to_srq(ib);
	int err;

	err = hca_command(to_hca(ib->device), "destroy_srq");
	if (err)
		return err;
	irq_work_sync(&srq->event);
	kvfree(srq->wq.ring);
	return 0;
}

static int post_srq_recv(struct ib_srq *ib, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	return post_receives(&to_srq(ib)->wq, wr, bad);
}

/* --- queue pairs --- */

static void qp_event(struct irq_work *irq)
{
	struct hca_qp *qp = container_of(irq, struct hca_qp, event);
	struct ib_event event = {
		.device = qp->ib.device,
		.element.qp = &qp->ib,
	};
	unsigned int type;

	for (type = 0; type < BITS_PER_LONG; type++) {
		if (!test_and_clear_bit(type, &qp->events))
			continue;
		event.event = type;
		if (qp->ib.event_handler)
			qp->ib.event_handler(&event, qp->ib.qp_context);
	}
}

/* In an internal error some drivers refuse requests, and raise no events. */
static bool refuses(struct ib_device *ib)
{
	struct hca *hca = to_hca(ib);

	return READ_ONCE(hca->error) && hca->rules->refuses_in_error;
}

void hca_qp_event(struct hca_qp *qp, enum ib_event_type type)
{
	if (refuses(qp->ib.device))
		return;
	set_bit(type, &qp->events);
	irq_work_queue(&qp->event);
}

struct hca_qp *hca_get_qp(struct hca *hca, u32 qpn)
{
	struct hca_qp *qp;

	HCA_LOCK(&hca->qps.xa_lock);
	qp = xa_load(&hca->qps, qpn);
	if (qp)
		refcount_inc(&qp->refs);
	return qp;
}

void hca_put_qp(struct hca_qp *qp)
{
	if (refcount_dec_and_test(&qp->refs))
		complete(&qp->released);
}

static void free_queues(struct hca_qp *qp)
{
	kvfree(qp->sq.ring);
	kvfree(qp->rq.ring);
}

static int check_qp(struct hca *hca, const struct ib_qp_init_attr *init)
{
	const struct hca_rules *rules = hca->rules;
	const struct ib_qp_cap *cap = &init->cap;

	if (init->create_flags)
		return -EOPNOTSUPP;
	/* Of queue pair 1 a driver knows what the core needs. */
	if (init->qp_type == IB_QPT_GSI)
		return 0;
	if (init->qp_type >= 32 || !(rules->qp_types & BIT(init->qp_type)))
		return -EOPNOTSUPP;
	if (cap->max_send_wr > rules->max_wr ||
	    cap->max_recv_wr > rules->max_wr ||
	    cap->max_send_sge > rules->max_send_sge ||
	    cap->max_recv_sge > rules->max_recv_sge ||
	    cap->max_inline_data > rules->max_inline)
		return -EINVAL;
	/* mlx5/qp.c, set_rq_size(): the stride of a receive without SGE is not defined. */
	if (!init->srq && cap->max_recv_wr && !cap->max_recv_sge)
		return hca_broken(hca,
				  "a QP with %u receives of max_recv_sge 0",
				  cap->max_recv_wr);
	return 0;
}

static int create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init,
		     struct ib_udata *udata)
{
	struct hca *hca = to_hca(ib->device);
	struct hca_qp *qp = to_qp(ib);
	struct ib_qp_cap *cap = &init->cap;
	size_t room;
	u32 qpn = 1;
	int err;

	err = check_qp(hca, init);
	if (hca->rules->no_inline)
		cap->max_inline_data = 0;
	if (!err)
		err = hca_check_sq(hca, cap);
	if (!err)
		err = hca_command(hca, "create_qp");
	if (err)
		return err;
	refcount_set(&qp->refs, 1);
	init_completion(&qp->released);
	spin_lock_init(&qp->lock);
	mutex_init(&qp->command);
	INIT_WORK(&qp->work, hca_run_work);
	INIT_DELAYED_WORK(&qp->retry, hca_retry_work);
	qp->event = IRQ_WORK_INIT(qp_event);
	qp->state = IB_QPS_RESET;
	qp->dest = -1;
	room = max_t(size_t, cap->max_inline_data,
		     cap->max_send_sge * sizeof(struct ib_sge));
	err = init_wq(&qp->sq, cap->max_send_wr, cap->max_send_sge,
		      ALIGN(sizeof(struct hca_wqe) + room, 8));
	if (!err && !init->srq)
		err = init_wq(&qp->rq, cap->max_recv_wr, cap->max_recv_sge,
			      struct_size_t(struct hca_recv, sge,
					    cap->max_recv_sge));
	if (err)
		goto out;
	qp->recvs = init->srq ? &to_srq(init->srq)->wq : &qp->rq;
	cap->max_send_wr = qp->sq.size;
	cap->max_recv_wr = qp->rq.size;
	qp->init = *init;
	if (init->qp_type == IB_QPT_GSI)
		err = xa_insert_irq(&hca->qps, qpn, qp, GFP_KERNEL);
	else
		err = xa_alloc_cyclic_irq(&hca->qps, &qpn, qp,
					  XA_LIMIT(16, (1 << 24) - 1),
					  &hca->next_qp, GFP_KERNEL);
	if (err < 0)
		goto out;
	ib->qp_num = qpn;
	return 0;
out:
	free_queues(qp);
	return err;
}

/* Waits until nobody sends or receives by the queue pair, which is in a state without both. */
static void quiesce(struct hca_qp *qp)
{
	cancel_delayed_work_sync(&qp->retry);
	while (READ_ONCE(qp->running) || READ_ONCE(qp->inbound))
		usleep_range(20, 50);
}

static void set_state(struct hca_qp *qp, enum ib_qp_state state)
{
	HCA_LOCK(&qp->lock);
	qp->state = state;
	qp->stalled = false;
}

static void clean_cqs(struct hca_qp *qp)
{
	clean_cq(qp->ib.send_cq, qp);
	if (qp->ib.recv_cq != qp->ib.send_cq)
		clean_cq(qp->ib.recv_cq, qp);
}

static void reset_qp(struct hca_qp *qp)
{
	set_state(qp, IB_QPS_RESET);
	quiesce(qp);
	clean_cqs(qp);
	reset_wq(&qp->sq);
	reset_wq(&qp->rq);
	qp->last_wqe = false;
	qp->established = false;
	qp->dest = -1;
	memset(&qp->attr, 0, sizeof(qp->attr));
}

/*
 * A queue pair that was not destroyed may use what its last receive with data names by DMA
 * addresses: holds that, or lets it go. Behind that receive is the empty one that drains.
 */
static void hold_last_recv(struct hca *hca, struct hca_qp *qp, bool hold)
{
	struct hca_recv *recv = NULL;
	struct ib_sge *sge;
	u32 n;

	for (n = 1; n <= min(qp->rq.head, qp->rq.size); n++) {
		recv = hca_entry(&qp->rq, qp->rq.head - n);
		if (recv->num_sge)
			break;
	}
	for (n = 0; recv && n < recv->num_sge; n++) {
		sge = &recv->sge[n];
		if (hold && sge->lkey == HCA_DMA_LKEY)
			qp->held[n] = hca_hold(hca, sge->addr);
		else if (!hold && !hca_let_go(hca, sge->addr, qp->held[n]))
			hca_broken(hca, "memory of leaked QP %u is gone",
				   qp->ib.qp_num);
	}
}

static void free_qp(struct hca *hca, struct hca_qp *qp)
{
	if (qp->refused)
		hold_last_recv(hca, qp, false);
	xa_erase_irq(&hca->qps, qp->ib.qp_num);
	set_state(qp, IB_QPS_RESET);
	hca_put_qp(qp);
	wait_for_completion(&qp->released);
	quiesce(qp);
	cancel_work_sync(&qp->work);
	irq_work_sync(&qp->event);
	/*
	 * As rxe, of a queue pair whose task was inside of a packet when it went to ERR: a receive
	 * completes while the queue pair is destroyed, and nobody takes the completion away.
	 */
	if (qp->ib.srq && READ_ONCE(hca_late_receive))
		hca_flush_recv(qp);
	else
		clean_cqs(qp);
	free_queues(qp);
}

static int destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct hca *hca = to_hca(ib->device);
	struct hca_qp *qp = to_qp(ib);
	int err;

	err = hca_command(hca, "destroy_qp");
	if (!err) {
		free_qp(hca, qp);
	} else if (!qp->refused) {
		hold_last_recv(hca, qp, true);
		qp->refused = true;
	}
	return err;
}

void hca_free_refused_qps(struct hca *hca)
{
	struct hca_qp *qp;
	unsigned long qpn;

	xa_for_each(&hca->qps, qpn, qp)
		if (qp->refused)
			free_qp(hca, qp);
}

/* Returns the device that a queue pair reaches by its port, else -1. */
static int find_path(struct hca_qp *qp, const struct rdma_ah_attr *attr)
{
	struct hca *hca = to_hca(qp->ib.device);

	if (hca_is_ib(hca) && rdma_ah_get_port_num(attr) == hca->rules->down)
		return -1;
	return hca_find(hca, &attr->grh.dgid, attr->roce.dmac,
			rdma_ah_get_dlid(attr));
}

#define TAKE(bit, to, from)             \
	({                              \
		if (mask & IB_QP_##bit) \
			(to) = (from);  \
	})

static void take_attributes(struct hca_qp *qp, const struct ib_qp_attr *attr,
			    int mask)
{
	struct ib_qp_attr *to = &qp->attr;

	TAKE(PKEY_INDEX, to->pkey_index, attr->pkey_index);
	TAKE(PORT, to->port_num, attr->port_num);
	TAKE(QKEY, to->qkey, attr->qkey);
	TAKE(ACCESS_FLAGS, to->qp_access_flags, attr->qp_access_flags);
	if (mask & IB_QP_AV) {
		to->ah_attr = attr->ah_attr;
		to->ah_attr.grh.sgid_attr = NULL;
		qp->dest = find_path(qp, &attr->ah_attr);
	}
	TAKE(PATH_MTU, to->path_mtu, attr->path_mtu);
	TAKE(TIMEOUT, to->timeout, attr->timeout);
	TAKE(RETRY_CNT, to->retry_cnt, attr->retry_cnt);
	TAKE(RNR_RETRY, to->rnr_retry, attr->rnr_retry);
	TAKE(MAX_QP_RD_ATOMIC, to->max_rd_atomic, attr->max_rd_atomic);
	TAKE(MAX_DEST_RD_ATOMIC, to->max_dest_rd_atomic,
	     attr->max_dest_rd_atomic);
	TAKE(MIN_RNR_TIMER, to->min_rnr_timer, attr->min_rnr_timer);
	TAKE(DEST_QPN, to->dest_qp_num, attr->dest_qp_num);
	TAKE(RQ_PSN, qp->recv_psn, attr->rq_psn);
	TAKE(SQ_PSN, qp->send_psn, attr->sq_psn);
	qp->retries = to->retry_cnt;
	qp->rnr_retries = to->rnr_retry;
	to->en_sqd_async_notify = mask & IB_QP_EN_SQD_ASYNC_NOTIFY &&
				  attr->en_sqd_async_notify;
}

static int modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		     struct ib_udata *udata)
{
	const struct hca_rules *rules = to_hca(ib->device)->rules;
	struct hca_qp *qp = to_qp(ib);
	enum ib_qp_state from, to;
	int err;

	guard(mutex)
		(&qp->command);
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state :
					READ_ONCE(qp->state);
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	if ((mask & IB_QP_CUR_STATE && from != READ_ONCE(qp->state)) ||
	    !ib_modify_qp_is_ok(from, to, ib->qp_type, mask) ||
	    (rules->reset_from_error && !to && from && from != IB_QPS_ERR) ||
	    (qp->spent && to == IB_QPS_INIT) ||
	    (mask & IB_QP_MAX_QP_RD_ATOMIC &&
	     attr->max_rd_atomic > rules->max_init_rd_atomic) ||
	    (mask & IB_QP_MAX_DEST_RD_ATOMIC &&
	     attr->max_dest_rd_atomic > rules->max_rd_atomic))
		return -EINVAL;
	err = hca_command(to_hca(ib->device), "modify_qp");
	if (err)
		return err;
	if (to == IB_QPS_RESET) {
		qp->spent = rules->no_reset && (qp->spent || from);
		reset_qp(qp);
		/* As by a late rxe_qp_error(), sw/rxe/rxe_qp.c. */
		if (hca_count_down(&hca_fail_halfway))
			set_state(qp, IB_QPS_ERR);
		return 0;
	}
	take_attributes(qp, attr, mask);
	/* It has taken no receive, and so reaches no last one. */
	if (from == IB_QPS_INIT && to == IB_QPS_ERR)
		qp->last_wqe = true;
	set_state(qp, to);
	hca_go_on(qp);
	/* As rxe_qp_from_attr(), sw/rxe/rxe_qp.c, without memory for the reads of a peer. */
	return hca_count_down(&hca_fail_halfway) == 1 ? -ENOMEM : 0;
}

static int query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		    struct ib_qp_init_attr *init)
{
	struct hca_qp *qp = to_qp(ib);
	int err;

	guard(mutex)
		(&qp->command);
	err = hca_command(to_hca(ib->device), "query_qp");
	if (err)
		return err;
	*attr = qp->attr;
	attr->qp_access_flags |= to_hca(ib->device)->rules->more_access;
	attr->qp_state = READ_ONCE(qp->state);
	attr->cur_qp_state = attr->qp_state;
	attr->sq_draining = attr->qp_state == IB_QPS_SQD &&
			    READ_ONCE(qp->running);
	attr->sq_psn = qp->send_psn;
	attr->rq_psn = qp->recv_psn;
	attr->cap = qp->init.cap;
	*init = qp->init;
	return 0;
}

static int inline_data(struct hca_qp *qp, struct hca_wqe *wqe,
		       const struct ib_send_wr *wr)
{
	void *to = wqe->sge;
	int i;

	if (wqe->length > qp->init.cap.max_inline_data)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++) {
		/* Of the kernel's users the address is one of the kernel. */
		memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr,
		       wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	return 0;
}

/* Whether a driver takes the request; those that say so in the log expect none of the others. */
static bool takes(struct hca *hca, const struct ib_send_wr *wr)
{
	bool takes = true;

	switch (wr->opcode) {
	case IB_WR_RDMA_READ:
		/* hw/erdma/erdma_qp.c:erdma_push_one_sqe */
		takes = wr->num_sge <= hca->rules->max_sge_rd;
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		/* irdma_post_send() passes the address of the first element, and no length. */
		takes = !hca->rules->refuses_atomics && wr->num_sge == 1 &&
			wr->sg_list->length == 8;
		break;
	case IB_WR_LOCAL_INV:
		takes = !hca->rules->no_local_inv;
		break;
	default:
		break;
	}
	if (!takes)
		hca_broken(hca, "a request of type %u with %d elements",
			   wr->opcode, wr->num_sge);
	return takes;
}

static int fill_wqe(struct hca_qp *qp, struct hca_wqe *wqe,
		    const struct ib_send_wr *wr)
{
	bool datagram = qp->ib.qp_type == IB_QPT_UD ||
			qp->ib.qp_type == IB_QPT_GSI;
	int i;

	if (wr->num_sge > qp->sq.max_sge)
		return -EINVAL;
	if (!takes(to_hca(qp->ib.device), wr))
		return -EOPNOTSUPP;
	wqe->wr_id = wr->wr_id;
	wqe->opcode = wr->opcode;
	wqe->flags = wr->send_flags;
	wqe->ex = wr->ex.invalidate_rkey;
	wqe->num_sge = wr->num_sge;
	wqe->length = 0;
	for (i = 0; i < wr->num_sge; i++)
		wqe->length += wr->sg_list[i].length;
	switch (wr->opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		wqe->rdma.addr = rdma_wr(wr)->remote_addr;
		wqe->rdma.rkey = rdma_wr(wr)->rkey;
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		wqe->rdma.addr = atomic_wr(wr)->remote_addr;
		wqe->rdma.rkey = atomic_wr(wr)->rkey;
		wqe->rdma.compare = atomic_wr(wr)->compare_add;
		wqe->rdma.swap = atomic_wr(wr)->swap;
		break;
	case IB_WR_REG_MR:
		wqe->reg.mr = to_mr(reg_wr(wr)->mr);
		wqe->reg.iova = reg_wr(wr)->mr->iova;
		wqe->reg.length = reg_wr(wr)->mr->length;
		wqe->reg.page_size = reg_wr(wr)->mr->page_size;
		wqe->reg.key = reg_wr(wr)->key;
		wqe->reg.access = reg_wr(wr)->access;
		break;
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
		if (!datagram)
			break;
		wqe->ud.to = to_ah(ud_wr(wr)->ah)->to;
		wqe->ud.qpn = ud_wr(wr)->remote_qpn;
		wqe->ud.qkey = ud_wr(wr)->remote_qkey;
		break;
	case IB_WR_SEND_WITH_INV:
	case IB_WR_LOCAL_INV:
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (datagram && wr->opcode != IB_WR_SEND &&
	    wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EINVAL;
	if (wr->send_flags & IB_SEND_INLINE)
		return inline_data(qp, wqe, wr);
	memcpy(wqe->sge, wr->sg_list, wr->num_sge * sizeof(*wqe->sge));
	return 0;
}

static int post_send(struct ib_qp *ib, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad)
{
	struct hca_qp *qp = to_qp(ib);
	unsigned long flags;
	int err = 0;

	*bad = wr;
	if (refuses(ib->device))
		return -EIO;
	spin_lock_irqsave(&qp->lock, flags);
	spin_lock(&qp->sq.lock);
	if (qp->state < IB_QPS_RTS)
		err = -EINVAL;
	for (; !err && wr; wr = wr->next) {
		*bad = wr;
		if (qp->sq.head - qp->sq.done >= qp->sq.size ||
		    hca_count_down(&hca_refuse_send) == 1)
			err = -ENOMEM;
		else
			err = fill_wqe(qp, hca_entry(&qp->sq, qp->sq.head), wr);
		if (!err)
			WRITE_ONCE(qp->sq.head, qp->sq.head + 1);
	}
	spin_unlock(&qp->sq.lock);
	spin_unlock_irqrestore(&qp->lock, flags);
	hca_run(qp);
	return err;
}

static int post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad)
{
	struct hca_qp *qp = to_qp(ib);
	int err;

	*bad = wr;
	if (refuses(ib->device))
		return -EIO;
	if (ib->srq || READ_ONCE(qp->state) == IB_QPS_RESET)
		return -EINVAL;
	err = post_receives(&qp->rq, wr, bad);
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		hca_flush_recvs(qp);
	return err;
}

/* --- what has no state here --- */

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return hca_command(to_hca(pd->device), "alloc_pd");
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct hca *hca = to_hca(pd->device);
	struct hca_mr *mr;
	unsigned long key;

	xa_for_each(&hca->mrs, key, mr)
		if (mr->ib.pd == pd && READ_ONCE(mr->valid) && !mr->hidden)
			hca_broken(hca, "a domain with a valid key goes");
	return hca_command(hca, "dealloc_pd");
}

static int create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init,
		     struct ib_udata *udata)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(init->ah_attr);
	struct hca_address *to = &to_ah(ib)->to;
	int err = 0;

	/* Some are created with a spinlock held. */
	if (init->flags & RDMA_CREATE_AH_SLEEPABLE)
		err = hca_command(to_hca(ib->device), "create_ah");
	if (err)
		return err;
	to->dgid = grh->dgid;
	to->dlid = rdma_ah_get_dlid(init->ah_attr);
	to->sgid_index = grh->sgid_index;
	to->hop_limit = grh->hop_limit;
	to->traffic_class = grh->traffic_class;
	memcpy(to->dmac, init->ah_attr->roce.dmac, ETH_ALEN);
	return 0;
}

/* The core keeps the table. */
static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int destroy_ah(struct ib_ah *ib, u32 flags)
{
	return 0;
}

static int query_device(struct ib_device *ib, struct ib_device_attr *attr,
			struct ib_udata *udata)
{
	struct hca *hca = to_hca(ib);
	const struct hca_rules *rules = hca->rules;

	attr->sys_image_guid = ~ib->node_guid;
	attr->max_mr_size = 1ULL << 40;
	attr->page_size_cap = rules->page_sizes;
	attr->vendor_id = hca->pdev->vendor;
	attr->vendor_part_id = hca->pdev->device;
	attr->hw_ver = 3;
	attr->max_qp = 1 << 17;
	attr->max_qp_wr = rules->max_wr;
	attr->device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN |
				 IB_DEVICE_SYS_IMAGE_GUID |
				 (rules->max_pages && !rules->no_reg_mr ?
					  IB_DEVICE_MEM_MGT_EXTENSIONS :
					  0);
	attr->kernel_cap_flags = rules->dma_lkey ? IBK_LOCAL_DMA_LKEY : 0;
	attr->max_send_sge = rules->max_send_sge;
	attr->max_recv_sge = rules->max_recv_sge;
	attr->max_sge_rd = rules->max_sge_rd;
	attr->max_cq = 1 << 18;
	attr->max_cqe = rules->max_cqe;
	attr->max_mr = 1 << 21;
	attr->max_pd = 1 << 16;
	attr->max_qp_rd_atom = rules->max_rd_atomic;
	attr->max_qp_init_rd_atom = rules->max_init_rd_atomic;
	attr->max_res_rd_atom = rules->max_rd_atomic << 17;
	attr->atomic_cap = rules->atomics ? IB_ATOMIC_HCA : IB_ATOMIC_NONE;
	attr->max_ah = 1 << 19;
	attr->max_srq = rules->max_srq;
	attr->max_srq_wr = rules->max_srq ? rules->max_wr / 2 : 0;
	attr->max_srq_sge = rules->max_srq ? min(rules->max_recv_sge, 7) : 0;
	attr->max_fast_reg_page_list_len = rules->max_pages;
	attr->max_pkeys = HCA_PKEYS;
	attr->local_ca_ack_delay = 13;
	return 0;
}

static void get_fw_str(struct ib_device *ib, char *text)
{
	snprintf(text, IB_FW_VERSION_NAME_MAX, "22.44.6");
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct hca *hca = to_hca(ib);
	struct net_device *netdev = hca->netdev;

	if (netdev)
		attr->state = ib_get_curr_port_state(netdev);
	else
		attr->state = port == hca->rules->down ? IB_PORT_DOWN :
							 IB_PORT_ACTIVE;
	attr->phys_state = attr->state == IB_PORT_ACTIVE ?
				   IB_PORT_PHYS_STATE_LINK_UP :
				   IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = netdev ? iboe_get_mtu(READ_ONCE(netdev->mtu)) :
				    IB_MTU_2048;
	attr->gid_tbl_len = hca_is_iwarp(hca) ? 1 : HCA_GIDS;
	attr->pkey_tbl_len = HCA_PKEYS;
	attr->ip_gids = !!netdev;
	if (!netdev) {
		attr->lid = hca_lid(hca, port);
		attr->sm_lid = hca->rules->lid - 8;
		attr->sm_sl = 6;
		attr->lmc = 3;
	}
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->bad_pkey_cntr = 9;
	attr->qkey_viol_cntr = 10 + atomic_read(&hca->bad_qkeys);
	attr->max_msg_sz = 1 << 30;
	attr->max_vl_num = 11;
	attr->active_width = IB_WIDTH_12X;
	attr->active_speed = IB_SPEED_EDR;
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = index ? 0 : IB_DEFAULT_PKEY_FULL;
	return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return hca_is_ib(to_hca(ib)) ? IB_LINK_LAYER_INFINIBAND :
				       IB_LINK_LAYER_ETHERNET;
}

static int get_port_immutable(struct ib_device *ib, u32 port,
			      struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = to_hca(ib)->rules->core_cap;
	immutable->gid_tbl_len = hca_is_iwarp(to_hca(ib)) ? 1 : HCA_GIDS;
	immutable->pkey_tbl_len = HCA_PKEYS;
	if (immutable->core_cap_flags & RDMA_CORE_CAP_IB_MAD)
		immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

/* No context exists: libibverbs has no provider. With this the device can change namespaces. */
static void disassociate_ucontext(struct ib_ucontext *context)
{
}

const struct ib_device_ops hca_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,

	.add_gid = add_gid,
	.alloc_mr = hca_alloc_mr,
	.alloc_pd = alloc_pd,
	.create_ah = create_ah,
	.create_cq = create_cq,
	.create_qp = create_qp,
	.create_srq = create_srq,
	.dealloc_pd = dealloc_pd,
	.del_gid = add_gid,
	.dereg_mr = hca_dereg_mr,
	.destroy_ah = destroy_ah,
	.destroy_cq = destroy_cq,
	.destroy_qp = destroy_qp,
	.destroy_srq = destroy_srq,
	.disassociate_ucontext = disassociate_ucontext,
	.get_dev_fw_str = get_fw_str,
	.get_dma_mr = hca_get_dma_mr,
	.get_link_layer = get_link_layer,
	.get_port_immutable = get_port_immutable,
	.map_mr_sg = hca_map_mr_sg,
	.modify_qp = modify_qp,
	.modify_srq = modify_srq,
	.poll_cq = poll_cq,
	.post_recv = post_recv,
	.post_send = post_send,
	.post_srq_recv = post_srq_recv,
	.query_device = query_device,
	.query_gid = hca_query_gid,
	.query_pkey = query_pkey,
	.query_port = query_port,
	.query_qp = query_qp,
	.query_srq = query_srq,
	.reg_user_mr = hca_reg_user_mr,
	.req_notify_cq = req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, hca_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, hca_cq, ib),
	.size_ib_pd = sizeof(struct ib_pd),
	INIT_RDMA_OBJ_SIZE(ib_qp, hca_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, hca_srq, ib),
};
