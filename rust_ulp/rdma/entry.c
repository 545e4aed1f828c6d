// SPDX-License-Identifier: GPL-2.0
/*
 * The calls between drivers, the RDMA core and the Rust of rdma/, in C for the function tracers:
 * see ext/entry.c.
 */
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "helpers.h"

#ifdef CONFIG_FAULT_INJECTION
/*
 * Posts the requests before the one that is to fail; that one and those after it are refused. Any
 * context: it does not sleep.
 */
/* clang-format off */
#define RUST_ULP_FAULT_POST(post, queue_type, wr_type)						\
static int rust_ulp_fault_##post(queue_type *queue, const wr_type *first,		\
				 const wr_type **bad)					\
{												\
	wr_type *wr, *last = NULL;								\
	int err;										\
												\
	for (wr = (wr_type *)first; wr; last = wr, wr = wr->next)				\
		if (rust_ulp_h_fault_atomic())							\
			break;									\
	if (!wr)										\
		return ib_##post(queue, first, bad);						\
	if (last) {										\
		last->next = NULL;								\
		err = ib_##post(queue, first, bad);						\
		last->next = wr;								\
		if (err)									\
			return err;								\
	}											\
	*bad = wr;										\
	return -EIO;										\
}

/* clang-format on */

RUST_ULP_FAULT_POST(post_send, struct ib_qp, struct ib_send_wr)
RUST_ULP_FAULT_POST(post_recv, struct ib_qp, struct ib_recv_wr)
RUST_ULP_FAULT_POST(post_srq_recv, struct ib_srq, struct ib_recv_wr)
#else
#define rust_ulp_fault_post_send ib_post_send
#define rust_ulp_fault_post_recv ib_post_recv
#define rust_ulp_fault_post_srq_recv ib_post_srq_recv
#endif

/* The done() of every request: calls the Rust function of its queue. */
void rust_ulp_completion(struct ib_cq *cq, struct ib_wc *wc)
{
	container_of(wc->wr_cqe, struct rust_ulp_cqe_hook, cqe)
		->owner->done(cq, wc);
}

/* The done() of the requests of a queue that a driver did not destroy. */
void rust_ulp_ignore(struct ib_cq *cq, struct ib_wc *wc)
{
}

noinline int rust_ulp_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
				const struct ib_send_wr **bad_wr)
{
	return rust_ulp_fault_post_send(qp, wr, bad_wr);
}

noinline int rust_ulp_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
				const struct ib_recv_wr **bad_wr)
{
	return rust_ulp_fault_post_recv(qp, wr, bad_wr);
}

noinline int rust_ulp_post_srq_recv(struct ib_srq *srq,
				    const struct ib_recv_wr *wr,
				    const struct ib_recv_wr **bad_wr)
{
	return rust_ulp_fault_post_srq_recv(srq, wr, bad_wr);
}

/* The handler of every identifier: calls the Rust function of the identifier. */
int rust_ulp_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct rust_ulp_cm_hook *hook = id->context;

	return hook->event(id, event);
}
