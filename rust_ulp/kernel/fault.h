/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Posting, with faults where the kernel injects them, see fault.rs.
 */
#ifndef _RUST_ULP_FAULT_H
#define _RUST_ULP_FAULT_H

#include <rdma/ib_verbs.h>

#ifdef CONFIG_FAULT_INJECTION
int rust_ulp_fault_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			     const struct ib_send_wr **bad_wr);
int rust_ulp_fault_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			     const struct ib_recv_wr **bad_wr);
int rust_ulp_fault_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
				 const struct ib_recv_wr **bad_wr);
#else
#define rust_ulp_fault_post_send	ib_post_send
#define rust_ulp_fault_post_recv	ib_post_recv
#define rust_ulp_fault_post_srq_recv	ib_post_srq_recv
#endif

#endif /* _RUST_ULP_FAULT_H */
