// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: grh-room
/* Lab 7: an echo of datagrams.    main DEVICE ADDRESS:PORT */

#include "lab.h"

/* Receives come first in the memory, places to send from behind. */
enum { RECEIVES = 16, PLACES = 64, GRH = 40 };

/* How long a receive has to be for a datagram of `size` bytes. */
static uint32_t room_of(uint32_t size)
{
	// learner 1: what does the device put before the datagram?
	//? return size;
	return GRH + size;
	// end 1
}

/* A receive into a place of the memory. */
static void post_receive(struct lab *lab, uint32_t room, uint32_t place)
{
	struct ibv_sge sge = { (uintptr_t)(lab->memory + place * room), room,
			       lab->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = place,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	lab_check(ibv_post_recv(lab->qp, &wr, &bad), "ibv_post_recv");
}

/* Sends `len` bytes to the queue pair that sent what `wc` completed, which begins at `grh`. */
static void answer(struct lab *lab, struct ibv_wc *wc, uint8_t *grh,
		   uint8_t *data, uint32_t len, uint32_t qkey)
{
	struct ibv_sge sge = { (uintptr_t)data, len, lab->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = PLACES,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;
	static struct ibv_ah *ah;

	wr.send_flags = IBV_SEND_SIGNALED;
	/* All come from one peer: one address handle is enough. */
	if (!ah)
		ah = ibv_create_ah_from_wc(lab->pd, wc, (struct ibv_grh *)grh,
					   1);
	if (!ah)
		lab_die("no address handle: %s", strerror(errno));
	wr.wr.ud.ah = ah;
	// learner 3: which queue pair, and with which Q_Key?
	wr.wr.ud.remote_qpn = wc->src_qp;
	wr.wr.ud.remote_qkey = qkey;
	// end 3
	lab_check(ibv_post_send(lab->qp, &wr, &bad), "ibv_post_send");
}

/* Answers datagrams until one says "stop". */
static void echo(struct lab *lab, uint32_t room, uint32_t qkey)
{
	uint32_t place, to, len, answers = 0;
	struct ibv_wc wc;
	uint8_t *data;

	for (;;) {
		wc = lab_completion(lab->cq);
		if (wc.status)
			lab_die("status %d", wc.status);
		if (wc.wr_id == PLACES)
			continue; /* an answer has left; whether it arrives, nobody says */
		place = wc.wr_id;
		to = RECEIVES + answers++ % (PLACES - RECEIVES);
		memcpy(lab->memory + to * room, lab->memory + place * room,
		       room);
		post_receive(lab, room, place);
		// learner 2: in the copy: where are the datagram's bytes, and how many?
		//? data = lab->memory + to * room;
		//? len = wc.byte_len;
		data = lab->memory + to * room + GRH;
		len = wc.byte_len - GRH;
		// end 2
		if (len == 4 && !memcmp(data, "stop", 4))
			return;
		answer(lab, &wc, lab->memory + to * room, data, len, qkey);
	}
}

/* RESET, INIT, RTR, RTS: a queue pair of datagrams has no peer. */
static void bring_up(struct ibv_qp *qp, uint32_t qkey)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = qkey };

	lab_check(ibv_modify_qp(qp, &attr,
				IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_QKEY),
		  "INIT");
	attr.qp_state = IBV_QPS_RTR;
	lab_check(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	lab_check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN),
		  "RTS");
}

/*
 * Says how many of so many messages arrive when the line drops the 5th, the 10th, ... packet: by
 * UC, each of one packet; by UC, each of five packets (`packets=` of the line); by RC.
 */
static void say_arrivals(FILE *wire, uint32_t messages)
{
	uint32_t uc, parts, rc;

	// learner 4: what does the line take from each?
	//? uc = parts = rc = messages;
	uc = messages - messages / 5;
	parts = 0;
	rc = messages;
	// end 4
	lab_say(wire, "uc=%u parts=%u rc=%u", uc, parts, rc);
}

int main(int argc, char **argv)
{
	uint32_t room, place, qkey;
	union ibv_gid own;
	char line[512];
	struct lab lab;
	FILE *wire;

	if (argc != 3)
		lab_die("usage: %s DEVICE ADDRESS:PORT", *argv);
	wire = lab_connect(argv[2]);
	lab_hear(wire, line, sizeof(line));
	room = room_of(lab_number(line, "size"));
	qkey = lab_number(line, "qkey");
	lab = lab_objects(argv[1], IBV_QPT_UD, PLACES * room);
	bring_up(lab.qp, qkey);
	for (place = 0; place < RECEIVES; place++)
		post_receive(&lab, room, place);
	lab_check(ibv_query_gid(lab.context, 1, lab_ipv4_index(lab.context),
				&own),
		  "the GID");
	lab_say(wire, "qpn=%u gid=%s receives=%d", lab.qp->qp_num,
		lab_show(&own), RECEIVES);
	echo(&lab, room, qkey);
	lab_say(wire, "done");
	lab_hear(wire, line, sizeof(line));
	say_arrivals(wire, lab_number(line, "messages"));
	lab_wait_for(wire, "bye");
	return 0;
}
