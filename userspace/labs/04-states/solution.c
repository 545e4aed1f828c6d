// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: init
/* Lab 4: brings a queue pair to RTS, step by step.    main DEVICE ADDRESS:PORT */

#include "lab.h"

static enum ibv_mtu mtu_of(uint32_t bytes)
{
	return bytes >= 4096 ? IBV_MTU_4096 :
	       bytes >= 2048 ? IBV_MTU_2048 :
	       bytes >= 1024 ? IBV_MTU_1024 :
	       bytes >= 512  ? IBV_MTU_512 :
			       IBV_MTU_256;
}

/* From RESET to RTS. `index` is that of the GID to send from; the line is the peer's. */
static void bring_up(struct ibv_qp *qp, int index, const char *line)
{
	struct ibv_qp_attr attr = { 0 };
	int mask = 0;

	attr.qp_state = IBV_QPS_INIT;
	// learner 1: RESET -> INIT
	//? mask = IBV_QP_STATE;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
	       IBV_QP_ACCESS_FLAGS;
	// end 1
	lab_check(ibv_modify_qp(qp, &attr, mask), "INIT");

	attr.qp_state = IBV_QPS_RTR;
	// learner 2: INIT -> RTR: where the peer is, and what it sends first
	//? mask = IBV_QP_STATE;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = lab_gid(line, "gid");
	attr.ah_attr.grh.sgid_index = index;
	attr.ah_attr.grh.hop_limit = 64;
	attr.path_mtu = mtu_of(lab_number(line, "mtu"));
	attr.dest_qp_num = lab_number(line, "qpn");
	attr.rq_psn = lab_number(line, "psn");
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
	       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	// end 2
	lab_check(ibv_modify_qp(qp, &attr, mask), "RTR");

	attr.qp_state = IBV_QPS_RTS;
	// learner 3: RTR -> RTS: what this end sends first, and how it repeats
	//? mask = IBV_QP_STATE;
	attr.sq_psn = lab_number(line, "start");
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
	       IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	// end 3
	lab_check(ibv_modify_qp(qp, &attr, mask), "RTS");
}

/* Asks for a transition with these attributes, and prints what comes of it. */
static void attempt(struct ibv_qp *qp, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = to, .port_num = 1 };
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);

	printf("to state %d: %s\n", to, strerror(error));
}

/* Asks for transitions that are refused. Returns why, in their order. */
static const char *refused(struct ibv_qp *qp)
{
	attempt(qp, IBV_QPS_RESET, 0);
	// learner 4: attempt() three: no such transition, an attribute is missing, one too many
	//? return "";
	attempt(qp, IBV_QPS_RTS, 0);
	attempt(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	attempt(qp, IBV_QPS_INIT,
		IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS |
			IBV_QP_SQ_PSN);
	return "state,missing,extra";
	// end 4
}

int main(int argc, char **argv)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	union ibv_gid own;
	char line[512];
	struct lab lab;
	uint32_t i, len;
	FILE *wire;
	int index;

	if (argc != 3)
		lab_die("usage: %s DEVICE ADDRESS:PORT", *argv);
	wire = lab_connect(argv[2]);
	lab_hear(wire, line, sizeof(line));
	lab = lab_objects(argv[1], IBV_QPT_RC, 1 << 16);
	index = lab_ipv4_index(lab.context);
	lab_check(ibv_query_gid(lab.context, 1, index, &own), "the GID");
	lab_say(wire, "qpn=%u psn=%u gid=%s", lab.qp->qp_num,
		(uint32_t)lab_number(line, "start"), lab_show(&own));
	bring_up(lab.qp, index, line);
	lab_say(wire, "connected");
	lab_wait_for(wire, "ready");

	/* As many bytes as the peer wants: each one more than the one before. */
	len = lab_number(line, "len");
	for (i = 0; i < len; i++)
		lab.memory[i] = lab_number(line, "nonce") + i;
	sge = (struct ibv_sge){ (uintptr_t)lab.memory, len, lab.mr->lkey };
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = lab_number(line, "addr");
	wr.wr.rdma.rkey = lab_number(line, "rkey");
	lab_check(ibv_post_send(lab.qp, &wr, &bad), "ibv_post_send");
	wc = lab_completion(lab.cq);
	if (wc.status)
		lab_die("the write: status %d, %s", wc.status,
			ibv_wc_status_str(wc.status));
	lab_say(wire, "done");
	lab_say(wire, "refused=%s", refused(lab.qp));
	lab_wait_for(wire, "bye");
	return 0;
}
