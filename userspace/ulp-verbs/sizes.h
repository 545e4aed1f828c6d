/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <rdma/rdma_cma.h>

/* The types that rdma-sys writes by hand because they have unions. */
enum sizes {
	IBV_GID = sizeof(union ibv_gid),
	IBV_WC = sizeof(struct ibv_wc),
	IBV_SEND_WR = sizeof(struct ibv_send_wr),
	IBV_AH_ATTR = sizeof(struct ibv_ah_attr),
	IBV_QP_ATTR = sizeof(struct ibv_qp_attr),
	RDMA_CM_EVENT = sizeof(struct rdma_cm_event),
	RDMA_CM_ID = sizeof(struct rdma_cm_id),
};
