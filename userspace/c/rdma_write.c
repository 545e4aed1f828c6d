// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An RDMA Write between two hosts, with rust_ulp.h and the C library alone:
 *
 *     rdma_write_c listen 0.0.0.0:18515      on the host that is written to
 *     rdma_write_c 10.9.0.2:18515 "hello"    on the host that writes
 *
 * Either side talks to the Rust example of the same name. TCP carries nothing
 * but the parameters of the connection (wire.h); the message goes by RDMA.
 *
 * There is nothing to clean up: the kernel frees what an open file has when it
 * is closed, as soon as the device is done with it.
 */
#define _DEFAULT_SOURCE
/* mmap offsets go up to 2^44, in a 32-bit program too */
#define _FILE_OFFSET_BITS 64
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rust_ulp.h"
#include "wire.h"

enum { BUFFER_SIZE = 4096, SECONDS = 30, PSN = 0x1234 };
static int dev;
static struct rust_ulp_attach attach; /* no name: the default device */
static struct rust_ulp_cq_create cq;
static struct rust_ulp_buffer_create buffer;
static struct rust_ulp_qp_create qp = { .qp_type = RUST_ULP_QPT_RC };
static struct rust_ulp_cq_ring *ring; /* of the completion queue */
static char *memory; /* of the buffer */

/* Issues a command, whose argument begins with its size. */
static void command(unsigned long nr, const char *name, void *arg, size_t size)
{
	*(uint32_t *)arg = (uint32_t)size;
	need(!ioctl(dev, nr, arg), name, NULL);
}

#define COMMAND(name, arg) \
	command(RUST_ULP_IOC_##name, #name, &(arg), sizeof(arg))

#define MAP(at, size) \
	mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, dev, (off_t)(at))

/* Makes what a connection needs, and says in `me` how the peer reaches it. */
static void make_objects(void)
{
	static struct rust_ulp_gid_entry gids[256];
	struct rust_ulp_gid_query query = { .entries = (uintptr_t)gids };
	struct rust_ulp_port_query port = { 0 };
	struct rust_ulp_pd_create pd = { 0 };
	uint32_t i;

	dev = open(RUST_ULP_DEVICE_PATH, O_RDWR | O_CLOEXEC);
	need(dev >= 0, RUST_ULP_DEVICE_PATH, NULL);
	attach.event_size = sizeof(struct rust_ulp_event);
	COMMAND(ATTACH, attach);
	port.port = attach.port;
	query.port = attach.port;
	COMMAND(PORT_QUERY, port);
	me.lid = htons((uint16_t)port.lid);
	for (i = 256; i <= port.active_mtu && i <= 4096; i *= 2)
		me.mtu++; /* enum ib_mtu */
	query.entry_size = sizeof(gids[0]);
	query.capacity = 256;
	COMMAND(GID_QUERY, query);
	for (i = 0; i < query.count && i < query.capacity; i++)
		if (gids[i].index == attach.gid_index)
			memcpy(me.gid, gids[i].gid, sizeof(me.gid));
	COMMAND(PD_CREATE, pd);
	cq.entries = 16;
	cq.cqe_size = sizeof(struct rust_ulp_cqe);
	COMMAND(CQ_CREATE, cq);
	ring = MAP(cq.mmap_offset, cq.mmap_size);
	buffer.pd = pd.handle;
	qp.pd = pd.handle;
	buffer.node = RUST_ULP_NODE_ANY;
	buffer.length = BUFFER_SIZE;
	COMMAND(BUFFER_CREATE, buffer);
	memory = MAP(buffer.mmap_offset, buffer.length);
	need(memory != MAP_FAILED && (void *)ring != MAP_FAILED, "mmap", NULL);
	qp.send_cq = cq.handle;
	qp.recv_cq = cq.handle;
	COMMAND(QP_CREATE, qp);
	me.transport = RUST_ULP_QPT_RC;
	me.responder = 1;
	me.initiator = 1;
	me.qp_num = htonl(qp.qp_num);
	me.psn = htonl(PSN);
}

/* Takes the queue pair to INIT, RTR and RTS, each with further attributes. */
static void connect_queue_pair(void)
{
	const uint32_t init = RUST_ULP_QP_PKEY_INDEX | RUST_ULP_QP_PORT |
			      RUST_ULP_QP_ACCESS_FLAGS;
	const uint32_t rtr = RUST_ULP_QP_AV | RUST_ULP_QP_PATH_MTU |
			     RUST_ULP_QP_DEST_QPN | RUST_ULP_QP_RQ_PSN |
			     RUST_ULP_QP_MAX_DEST_RD_ATOMIC |
			     RUST_ULP_QP_MIN_RNR_TIMER;
	const uint32_t rts = RUST_ULP_QP_TIMEOUT | RUST_ULP_QP_RETRY_CNT |
			     RUST_ULP_QP_RNR_RETRY | RUST_ULP_QP_SQ_PSN |
			     RUST_ULP_QP_MAX_QP_RD_ATOMIC;
	const uint32_t masks[] = { 0, init, rtr, rts };
	struct rust_ulp_qp_modify to = { .qp = qp.handle };
	struct rust_ulp_qp_attr *attr = &to.attr;

	attr->port_num = attach.port;
	attr->ah.port_num = attach.port;
	attr->access_flags = RUST_ULP_ACCESS_REMOTE_WRITE;
	attr->path_mtu = me.mtu < peer.mtu ? me.mtu : peer.mtu;
	attr->dest_qp_num = ntohl(peer.qp_num);
	attr->rq_psn = ntohl(peer.psn);
	attr->sq_psn = PSN;
	attr->min_rnr_timer = 20; /* 10 ms */
	attr->timeout = 14; /* 67 ms */
	attr->retry_cnt = 6;
	attr->rnr_retry = 6;
	attr->ah.is_global = 1;
	attr->ah.sgid_index = (uint8_t)attach.gid_index;
	attr->ah.dlid = ntohs(peer.lid);
	memcpy(attr->ah.dgid, peer.gid, sizeof(peer.gid));
	while (attr->qp_state < RUST_ULP_QPS_RTS) {
		to.attr_mask = RUST_ULP_QP_STATE | masks[++attr->qp_state];
		COMMAND(QP_MODIFY, to);
	}
}

static void post(struct rust_ulp_wr *wr)
{
	struct rust_ulp_submit submit = { .wrs = (uintptr_t)wr, .nr_wrs = 1 };

	wr->qp = qp.handle;
	submit.wr_size = sizeof(*wr);
	COMMAND(SUBMIT, submit);
}

/* Sleeps until a request has completed, and takes its entry from the ring. */
static struct rust_ulp_cqe wait_for_completion(void)
{
	struct rust_ulp_submit wait = { .cq = cq.handle, .min_complete = 1 };
	struct rust_ulp_cqe *entries, done;
	uint32_t head = ring->head;

	wait.timeout_ns = SECONDS * 1000000000ULL;
	do /* a signal may interrupt it: Ctrl-Z does */
		COMMAND(SUBMIT, wait);
	while (wait.wait_error == -EINTR);
	need(__atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) != head,
	     "waiting for a completion", strerror(-wait.wait_error));
	entries = (void *)((char *)ring + ring->entries_offset);
	done = entries[head & (ring->entries - 1)];
	__atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
	/* enum ib_wc_status: 10 no such remote memory, 12 no answer */
	if (done.status)
		fprintf(stderr, "the request has status %u\n", done.status);
	need(!done.status, "the request", "failed");
	return done;
}

static void receiver(const struct sockaddr_in *where)
{
	struct rust_ulp_grant_create grant = { .buffer = buffer.handle };
	struct rust_ulp_wr wr = { .opcode = RUST_ULP_WR_RECV };
	struct pollfd wait[] = { { tcp, POLLIN, 0 }, { dev, 0, 0 } };
	uint32_t length;

	/* Whoever learns this key may write there until the grant ends. */
	grant.length = BUFFER_SIZE;
	grant.access = RUST_ULP_ACCESS_REMOTE_WRITE;
	COMMAND(GRANT_CREATE, grant);
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	need(!bind(tcp, (void *)where, sizeof(*where)), "bind", NULL);
	need(!listen(tcp, 1), "listen", NULL);
	/* When the device is removed its file reports POLLHUP, unasked. */
	need(poll(wait, 2, SECONDS * 1000) > 0, "waiting", "no peer came");
	need(!wait[1].revents, "waiting", strerror(ENODEV));
	tcp = accept(tcp, NULL, NULL);
	hear(HELLO, BODY, BODY + MAX_GRANTS * GRANT);
	connect_queue_pair();
	/* A write with immediate data takes a receive, and so is noticed. */
	post(&wr);
	me.nr_grants = htons(1);
	to_wire(me.grants[0].addr, grant.addr);
	to_wire(me.grants[0].length, grant.length);
	me.grants[0].rkey = htonl(grant.rkey);
	me.grants[0].access = htonl(grant.access);
	tell(HELLO, BODY + GRANT);
	hear(READY, 0, 0);
	tell(READY, 0);
	length = wait_for_completion().byte_len;
	printf("received %u bytes: \"%.*s\"\n", length, (int)length, memory);
	/* The queue pair acknowledges until the sender hangs up. */
	recv(tcp, &peer, 1, 0);
}

static void sender(const struct sockaddr_in *where, const char *message)
{
	struct rust_ulp_wr wr = { .opcode = RUST_ULP_WR_RDMA_WRITE_WITH_IMM };

	need(!connect(tcp, (void *)where, sizeof(*where)), "connect", NULL);
	tell(HELLO, BODY);
	hear(HELLO, BODY + GRANT, BODY + MAX_GRANTS * GRANT);
	connect_queue_pair();
	wr.remote_addr = from_wire(peer.grants[0].addr);
	wr.rkey = ntohl(peer.grants[0].rkey);
	tell(READY, 0);
	hear(READY, 0, 0);
	wr.flags = RUST_ULP_SEND_SIGNALED;
	wr.num_sge = 1;
	wr.sge.buffer = buffer.handle;
	wr.sge.length = (uint32_t)strlen(message);
	memcpy(memory, message, wr.sge.length);
	post(&wr);
	wait_for_completion();
	printf("wrote %u bytes\n", wr.sge.length);
}

int main(int argc, char **argv)
{
	struct sockaddr_in where = { .sin_family = AF_INET };
	int listens = argc == 3 && !strcmp(argv[1], "listen");
	const char *address = argv[1 + listens];
	char host[16] = "";

	if (argc != 3) {
		fputs("usage: rdma_write_c [listen] IPV4:PORT [MESSAGE]\n",
		      stderr);
		return 2;
	}
	sscanf(address, "%15[0-9.]:%hu", host, &where.sin_port);
	where.sin_port = htons(where.sin_port);
	need(inet_aton(host, &where.sin_addr), address, "is no IPV4:PORT");
	need(listens || strlen(argv[2]) <= BUFFER_SIZE, "the message",
	     "is longer than the buffer");
	alarm(2 * SECONDS); /* every wait has an end */
	make_objects();
	tcp = socket(AF_INET, SOCK_STREAM, 0);
	if (listens)
		receiver(&where);
	else
		sender(&where, argv[2]);
	return 0; /* the kernel frees everything */
}
