// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: receive-first
/* Lab 12: an echo by TCP, and the same by RDMA.    main DEVICE ADDRESS:PORT */

#include "lab.h"

/* Places for messages. Answers go out from where the messages came in: nothing is copied. */
enum { PLACES = 4, SEND = 1 << 8 };

/* The echo as it was: the kernel copies each message twice. */
static void echo_tcp(int fd, uint32_t size, uint32_t count)
{
	char message[4096];
	ssize_t n, got;

	if (size > sizeof(message))
		lab_die("size=%u is too much", size);
	while (count--) {
		for (got = 0; got < size; got += n) {
			n = read(fd, message + got, size - got);
			if (n <= 0)
				lab_die("read: %s", strerror(errno));
		}
		if (write(fd, message, size) != size)
			lab_die("write: %s", strerror(errno));
	}
}

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
	struct ibv_send_wr wr = { .wr_id = SEND | place,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND },
			   *bad;

	wr.send_flags = IBV_SEND_SIGNALED;
	lab_check(ibv_post_send(lab->qp, &wr, &bad), "ibv_post_send");
}

/* The same echo by messages. */
static void echo_rdma(struct lab *lab, uint32_t size, uint32_t count)
{
	uint32_t answered = 0, place, len;
	struct ibv_wc wc;

	while (answered < count) {
		wc = lab_completion(lab->cq);
		if (wc.status)
			lab_die("status %d", wc.status);
		place = wc.wr_id & ~SEND;
		if (!(wc.wr_id & SEND)) {
			// learner 2: instead of write(): answer from the place where the message is
			//? len = 0;
			len = wc.byte_len;
			// end 2
			post_send(lab, size, place, len);
		} else {
			answered++;
			// learner 3: the answer has arrived: what may its place be used for now?
			post_receive(lab, size, place);
			// end 3
		}
	}
}

int main(int argc, char **argv)
{
	uint32_t size, count, place;
	union ibv_gid own;
	char line[512];
	struct lab lab;
	FILE *wire, *tcp;
	int index;

	if (argc != 3)
		lab_die("usage: %s DEVICE ADDRESS:PORT", *argv);
	wire = lab_connect(argv[2]);
	lab_hear(wire, line, sizeof(line));
	size = lab_number(line, "size");
	count = lab_number(line, "count");
	tcp = lab_connect(lab_text(line, "tcp"));
	echo_tcp(fileno(tcp), size, count);

	lab = lab_objects(argv[1], IBV_QPT_RC, PLACES * size);
	index = lab_ipv4_index(lab.context);
	lab_check(ibv_query_gid(lab.context, 1, index, &own), "the GID");
	lab_say(wire, "qpn=%u psn=%u gid=%s", lab.qp->qp_num, lab.qp->qp_num,
		lab_show(&own));
	lab_rts(lab.qp, index, lab.qp->qp_num, line);
	// learner 1: instead of read(): where do messages go? post_receive() posts a receive
	for (place = 0; place < PLACES; place++)
		post_receive(&lab, size, place);
	// end 1
	lab_say(wire, "connected");
	echo_rdma(&lab, size, count);
	lab_say(wire, "done");
	lab_wait_for(wire, "bye");
	return 0;
}
