// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: own-device
/* Lab 2: what ibv_rc_pingpong does, as a program of one's own.    main DEVICE ADDRESS:PORT */

#include "lab.h"

/* A receive for one message, into the second half of the memory. */
static void post_receive(struct lab *lab, uint32_t size)
{
	struct ibv_sge sge = { (uintptr_t)(lab->memory + size), size,
			       lab->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	lab_check(ibv_post_recv(lab->qp, &wr, &bad), "ibv_post_recv");
}

/* A message of `len` bytes, from the first half of the memory. */
static void post_send(struct lab *lab, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)lab->memory, len, lab->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;

	wr.send_flags = IBV_SEND_SIGNALED;
	lab_check(ibv_post_send(lab->qp, &wr, &bad), "ibv_post_send");
}

/* Waits for so many completions: of a Send and of the receive for its answer, in either order. */
static void wait_for(struct lab *lab, int completions)
{
	struct ibv_wc wc;

	while (completions--) {
		wc = lab_completion(lab->cq);
		if (wc.status)
			lab_die("status %d", wc.status);
	}
}

int main(int argc, char **argv)
{
	uint32_t size, count, i, j;
	union ibv_gid own;
	char line[512];
	struct lab lab;
	FILE *wire;
	int index;

	if (argc != 3)
		lab_die("usage: %s DEVICE ADDRESS:PORT", *argv);
	wire = lab_connect(argv[2]);
	lab_hear(wire, line, sizeof(line));
	size = lab_number(line, "size");
	count = lab_number(line, "count");
	// learner 4: which device, and which entry of its GID table? (-d and -g of ibv_rc_pingpong)
	//? lab = lab_objects("rxe1", IBV_QPT_RC, 2 * size);
	//? index = 0;
	lab = lab_objects(argv[1], IBV_QPT_RC, 2 * size);
	index = lab_ipv4_index(lab.context);
	// end 4
	lab_check(ibv_query_gid(lab.context, 1, index, &own), "the GID");
	lab_say(wire, "qpn=%u psn=%u gid=%s", lab.qp->qp_num, lab.qp->qp_num,
		lab_show(&own));
	lab_rts(lab.qp, index, lab.qp->qp_num, line);
	// learner 5: a receive for the peer's first message
	post_receive(&lab, size);
	// end 5
	lab_say(wire, "connected");

	/* The first message comes by itself, the others are answers. */
	wait_for(&lab, 1);
	for (i = 0; i < count; i++) {
		// learner 6: the next message: its bytes, a receive for its answer, then send it
		//? post_send(&lab, 64);
		//? wait_for(&lab, 2);
		for (j = 0; j < size; j++)
			lab.memory[j] = lab.memory[size + j] + 1;
		post_receive(&lab, size);
		post_send(&lab, size);
		wait_for(&lab, 2);
		// end 6
	}
	lab_say(wire, "done");
	lab_wait_for(wire, "bye");
	return 0;
}
