// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: receive-first
/* Lab 5: an echo of messages.    main DEVICE ADDRESS:PORT */

#include "lab.h"

/* Receives, which come first in the memory; twice as many places to send from come behind. */
enum { RECEIVES = 16, PLACES = 3 * RECEIVES };

/* A receive into a place of the memory. */
static void post_receive(struct lab *lab, uint32_t size, uint32_t place)
{
	struct ibv_sge sge = { (uintptr_t)(lab->memory + place * size), size,
			       lab->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = place,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	lab_check(ibv_post_recv(lab->qp, &wr, &bad), "ibv_post_recv");
}

/* A message from a place of the memory. */
static void post_send(struct lab *lab, uint32_t size, uint32_t place,
		      uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)(lab->memory + place * size), len,
			       lab->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = place,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;

	wr.send_flags = IBV_SEND_SIGNALED;
	lab_check(ibv_post_send(lab->qp, &wr, &bad), "ibv_post_send");
}

/* Answers `count` messages of at most `size` bytes. */
static void echo(struct lab *lab, uint32_t size, uint32_t count)
{
	uint32_t available[PLACES], n = 0, sent = 0, place, to;
	struct ibv_wc wc;

	for (place = RECEIVES; place < PLACES; place++)
		available[n++] = place;
	while (sent < count) {
		wc = lab_completion(lab->cq);
		if (wc.status)
			lab_die("status %d", wc.status);
		place = wc.wr_id;
		if (wc.opcode != IBV_WC_RECV) {
			/* An answer has arrived: its place is free again. */
			available[n++] = place;
			sent++;
			continue;
		}
		if (!n)
			lab_die("no place to send from");
		to = available[--n];
		memcpy(lab->memory + to * size, lab->memory + place * size,
		       wc.byte_len);
		// learner 2: answer the copy, with a receive for the next message in time
		//? post_send(lab, size, to, wc.byte_len);
		post_receive(lab, size, place);
		post_send(lab, size, to, wc.byte_len);
		// end 2
	}
}

int main(int argc, char **argv)
{
	uint32_t size, count, place, sends;
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
	lab = lab_objects(argv[1], IBV_QPT_RC, PLACES * size);
	index = lab_ipv4_index(lab.context);
	lab_check(ibv_query_gid(lab.context, 1, index, &own), "the GID");
	lab_say(wire, "qpn=%u psn=%u gid=%s receives=%d", lab.qp->qp_num,
		lab.qp->qp_num, lab_show(&own), RECEIVES);
	lab_rts(lab.qp, index, lab.qp->qp_num, line);
	// learner 1: when does a receive have to be there? post_receive() posts one
	for (place = 0; place < RECEIVES; place++)
		post_receive(&lab, size, place);
	// end 1
	lab_say(wire, "connected");
	echo(&lab, size, count);
	lab_say(wire, "done");
	// learner 3: the peer uses up the receives: how often does it send a message without one?
	//? sends = count;
	sends = lab_number(line, "rnr_retry") + 1;
	// end 3
	lab_say(wire, "sends=%u", sends);
	lab_wait_for(wire, "bye");
	return 0;
}
