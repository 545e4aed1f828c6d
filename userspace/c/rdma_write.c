// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An RDMA Write from one host into the memory of another, with rust_ulp.h and
 * the C library alone.
 *
 *     rdma_write_c listen 0.0.0.0:18515      on the host that is written to
 *     rdma_write_c 10.9.0.2:18515 "hello"    on the host that writes
 *
 * Either side talks to the Rust example of the same name: what they say to each
 * other over TCP is described in userspace/rust-ulp/src/wire.rs. TCP carries
 * nothing but the parameters of the connection; the message goes by RDMA.
 *
 * There is nothing to clean up: the kernel frees what an open file has when it
 * is closed, as soon as the device is done with it.
 */
#define _DEFAULT_SOURCE
/* mmap offsets go up to 2^44, in a 32-bit program too */
#define _FILE_OFFSET_BITS 64
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "rust_ulp.h"

enum {
	BUFFER_SIZE = 4096,
	ACK_TIMEOUT = 14, /* 4.096 us * 2^14 = 67 ms */
	RETRIES = 6, /* Soft-RoCE takes 7 for ever */
	RNR_TIMER = 20, /* 10.24 ms */
	RD_ATOMIC = 1, /* reads and atomics at a time: none are used here */
	SECONDS = 30, /* every wait has an end */
};

/* --- What the two programs say to each other, in network order ------------- */

enum {
	WIRE_VERSION = 1,
	WIRE_HELLO = 1,
	WIRE_REFUSAL = 2,
	WIRE_READY = 3,
	WIRE_MAX_GRANTS = 64
};

struct wire_header {
	char magic[4]; /* RULP */
	uint16_t version;
	uint16_t type;
	uint32_t length; /* of what follows */
};

struct wire_hello {
	uint8_t transport; /* RUST_ULP_QPT_RC */
	uint8_t mtu; /* enum ib_mtu */
	uint8_t responder;
	uint8_t initiator;
	uint32_t qp_num;
	uint32_t psn;
	uint8_t gid[16];
	uint16_t lid;
	uint16_t nr_grants;
};

struct wire_grant {
	uint32_t addr[2]; /* upper half, lower half */
	uint32_t length[2];
	uint32_t rkey;
	uint32_t access; /* RUST_ULP_ACCESS_REMOTE_* */
};

static_assert(sizeof(struct wire_header) == 12 &&
		      sizeof(struct wire_hello) == 32 &&
		      sizeof(struct wire_grant) == 24,
	      "the tables in wire.rs");

/* --- Errors end the program ------------------------------------------------ */

static void fail(const char *what)
{
	fprintf(stderr, "rdma_write_c: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void fail_because(const char *what, const char *why)
{
	fprintf(stderr, "rdma_write_c: %s: %s\n", what, why);
	exit(1);
}

/* A command that a signal interrupts has changed nothing: it is issued again. */
static int try_command(int dev, unsigned long request, void *arg)
{
	int status;

	do {
		status = ioctl(dev, request, arg);
	} while (status < 0 && errno == EINTR);
	return status;
}

/* The argument of a command begins with its size, and is zero where nothing is said. */
#define COMMAND(dev, name, arg)                                         \
	do {                                                            \
		__typeof__(arg) command = (arg);                        \
		command->size = sizeof(*command);                       \
		if (try_command(dev, RUST_ULP_IOC_##name, command) < 0) \
			fail(#name);                                    \
	} while (0)

/* --- One end ----------------------------------------------------------------- */

struct end {
	int dev;
	uint32_t port, gid_index; /* by which peers reach this host */
	uint32_t pd, cq, qp, buffer; /* handles */
	char *memory; /* the buffer, mapped */
	struct rust_ulp_cq_ring *ring; /* the completion queue, mapped */
	struct wire_hello hello; /* what the peer needs to know */
};

static void *map(int dev, uint64_t offset, uint64_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, dev,
			    (off_t)offset);

	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

/* Opens the device and finds the port and the GID to use. */
static void open_device(struct end *end)
{
	static struct rust_ulp_gid_entry gids[256];
	struct rust_ulp_query query = { 0 };
	struct rust_ulp_attach attach = { 0 }; /* no name: the default device */
	struct rust_ulp_port_query port = { 0 };
	struct rust_ulp_gid_query gid_query = { 0 };
	uint32_t i, bytes;

	end->dev = open(RUST_ULP_DEVICE_PATH, O_RDWR | O_CLOEXEC);
	if (end->dev < 0)
		fail(RUST_ULP_DEVICE_PATH);
	COMMAND(end->dev, QUERY, &query);
	if (query.abi_version != RUST_ULP_ABI_VERSION)
		fail_because("QUERY",
			     "the module has another version of the ABI");
	attach.event_size = sizeof(struct rust_ulp_event);
	COMMAND(end->dev, ATTACH, &attach);
	end->port = attach.port;
	end->gid_index = attach.gid_index;

	port.port = attach.port;
	COMMAND(end->dev, PORT_QUERY, &port);
	end->hello.mtu = 1;
	for (bytes = 512; bytes <= port.active_mtu && bytes <= 4096; bytes *= 2)
		end->hello.mtu++;
	end->hello.lid = htons((uint16_t)port.lid);

	gid_query.entries = (uintptr_t)gids;
	gid_query.entry_size = sizeof(gids[0]);
	gid_query.capacity = sizeof(gids) / sizeof(gids[0]);
	gid_query.port = attach.port;
	COMMAND(end->dev, GID_QUERY, &gid_query);
	for (i = 0; i < gid_query.count && i < gid_query.capacity; i++) {
		if (gids[i].index != attach.gid_index)
			continue;
		memcpy(end->hello.gid, gids[i].gid, sizeof(gids[i].gid));
		printf("%s, port %u, GID index %u\n", (const char *)attach.name,
		       end->port, end->gid_index);
		return;
	}
	fail_because(
		"GID_QUERY",
		"the port has no GID that a peer could reach; give its interface an address");
}

/* Makes what a connection needs; its queue pair is in INIT then, and takes receives. */
static void make_objects(struct end *end)
{
	struct rust_ulp_pd_create pd = { 0 };
	struct rust_ulp_cq_create cq = {
		.entries = 16, .cqe_size = sizeof(struct rust_ulp_cqe)
	};
	struct rust_ulp_buffer_create buffer = { .node = RUST_ULP_NODE_ANY,
						 .length = BUFFER_SIZE };
	struct rust_ulp_qp_create qp = { .qp_type = RUST_ULP_QPT_RC,
					 .max_send_wr = 4,
					 .max_recv_wr = 4,
					 .max_send_sge = 1,
					 .max_recv_sge = 1 };
	struct rust_ulp_qp_modify init = { 0 };
	uint32_t psn;

	COMMAND(end->dev, PD_CREATE, &pd);
	end->pd = pd.handle;
	COMMAND(end->dev, CQ_CREATE, &cq);
	end->cq = cq.handle;
	end->ring = map(end->dev, cq.mmap_offset, cq.mmap_size);
	buffer.pd = pd.handle;
	COMMAND(end->dev, BUFFER_CREATE, &buffer);
	end->buffer = buffer.handle;
	end->memory = map(end->dev, buffer.mmap_offset, buffer.length);

	qp.pd = pd.handle;
	qp.send_cq = cq.handle;
	qp.recv_cq = cq.handle;
	COMMAND(end->dev, QP_CREATE, &qp);
	end->qp = qp.handle;
	init.qp = qp.handle;
	init.attr_mask = RUST_ULP_QP_STATE | RUST_ULP_QP_PKEY_INDEX |
			 RUST_ULP_QP_PORT | RUST_ULP_QP_ACCESS_FLAGS;
	init.attr.qp_state = RUST_ULP_QPS_INIT;
	init.attr.port_num = end->port;
	init.attr.access_flags = RUST_ULP_ACCESS_REMOTE_WRITE;
	COMMAND(end->dev, QP_MODIFY, &init);

	if (getrandom(&psn, sizeof(psn), 0) != sizeof(psn))
		fail("getrandom");
	end->hello.transport = RUST_ULP_QPT_RC;
	end->hello.responder = RD_ATOMIC;
	end->hello.initiator = RD_ATOMIC;
	end->hello.qp_num = htonl(qp.qp_num);
	end->hello.psn = htonl(psn & 0xffffff);
}

static uint8_t smaller(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

/* INIT to RTR: the queue pair knows its peer, and receives from it. */
static void ready_to_receive(const struct end *end,
			     const struct wire_hello *peer)
{
	struct rust_ulp_qp_modify rtr = { .qp = end->qp };

	rtr.attr_mask = RUST_ULP_QP_STATE | RUST_ULP_QP_AV |
			RUST_ULP_QP_PATH_MTU | RUST_ULP_QP_DEST_QPN |
			RUST_ULP_QP_RQ_PSN | RUST_ULP_QP_MAX_DEST_RD_ATOMIC |
			RUST_ULP_QP_MIN_RNR_TIMER;
	rtr.attr.qp_state = RUST_ULP_QPS_RTR;
	rtr.attr.path_mtu = smaller(end->hello.mtu, peer->mtu);
	rtr.attr.dest_qp_num = ntohl(peer->qp_num);
	rtr.attr.rq_psn = ntohl(peer->psn);
	rtr.attr.max_dest_rd_atomic = smaller(RD_ATOMIC, peer->initiator);
	rtr.attr.min_rnr_timer = RNR_TIMER;
	rtr.attr.ah.is_global = 1;
	rtr.attr.ah.port_num = end->port;
	rtr.attr.ah.sgid_index = (uint8_t)end->gid_index;
	rtr.attr.ah.dlid = ntohs(peer->lid);
	memcpy(rtr.attr.ah.dgid, peer->gid, sizeof(peer->gid));
	COMMAND(end->dev, QP_MODIFY, &rtr);
}

/* RTR to RTS: it sends, too. */
static void ready_to_send(const struct end *end, const struct wire_hello *peer)
{
	struct rust_ulp_qp_modify rts = { .qp = end->qp };

	rts.attr_mask = RUST_ULP_QP_STATE | RUST_ULP_QP_TIMEOUT |
			RUST_ULP_QP_RETRY_CNT | RUST_ULP_QP_RNR_RETRY |
			RUST_ULP_QP_SQ_PSN | RUST_ULP_QP_MAX_QP_RD_ATOMIC;
	rts.attr.qp_state = RUST_ULP_QPS_RTS;
	rts.attr.timeout = ACK_TIMEOUT;
	rts.attr.retry_cnt = RETRIES;
	rts.attr.rnr_retry = RETRIES;
	rts.attr.sq_psn = ntohl(end->hello.psn);
	rts.attr.max_rd_atomic = smaller(RD_ATOMIC, peer->responder);
	COMMAND(end->dev, QP_MODIFY, &rts);
}

/* Posts one request. */
static void post(const struct end *end, const struct rust_ulp_wr *wr)
{
	struct rust_ulp_submit submit = { .wrs = (uintptr_t)wr,
					  .nr_wrs = 1,
					  .wr_size = sizeof(*wr) };

	COMMAND(end->dev, SUBMIT, &submit);
}

/* Sleeps until a request has completed, and takes its completion out of the ring. */
static struct rust_ulp_cqe wait_for_completion(const struct end *end)
{
	struct rust_ulp_submit wait = { .cq = end->cq,
					.min_complete = 1,
					.timeout_ns = SECONDS * 1000000000ULL };
	struct rust_ulp_cq_ring *ring = end->ring;
	const struct rust_ulp_cqe *entries =
		(const void *)((const char *)ring + ring->entries_offset);
	uint32_t head = ring->head;
	struct rust_ulp_cqe done;
	char why[64];

	COMMAND(end->dev, SUBMIT, &wait);
	if (wait.wait_error == -ETIME)
		fail_because("waiting for a completion", "nothing came");
	if (__atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) == head)
		fail_because("waiting for a completion",
			     "interrupted, or the queue has failed");
	done = entries[head & (ring->entries - 1)];
	__atomic_store_n(&ring->head, head + 1, __ATOMIC_RELEASE);
	if (done.status) {
		/* enum ib_wc_status: 10 no such remote memory, 12 no answer, 13 no receive there */
		snprintf(why, sizeof(why), "status %u, vendor code %#x",
			 done.status, done.vendor_err);
		fail_because("the request failed", why);
	}
	return done;
}

/* --- TCP ------------------------------------------------------------------------ */

/* A socket that listens at, or is connected to, ADDRESS:PORT. */
static int tcp_socket(const char *where, int listening)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = listening ? AI_PASSIVE : 0 };
	struct timeval limit = { .tv_sec = SECONDS };
	struct addrinfo *found;
	char host[256];
	const char *colon = strrchr(where, ':');
	int one = 1, tcp, status;

	if (!colon || (size_t)(colon - where) >= sizeof(host))
		fail_because(where, "is no ADDRESS:PORT");
	memcpy(host, where, (size_t)(colon - where));
	host[colon - where] = 0;
	status = getaddrinfo(host, colon + 1, &hints, &found);
	if (status)
		fail_because(where, gai_strerror(status));
	tcp = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (tcp < 0)
		fail("socket");
	setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(tcp, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (listening)
		status = bind(tcp, found->ai_addr, found->ai_addrlen) ||
			 listen(tcp, 1);
	else
		status = connect(tcp, found->ai_addr, found->ai_addrlen);
	if (status)
		fail(where);
	freeaddrinfo(found);
	return tcp;
}

/*
 * Accepts a peer. The file of a device that is removed reports POLLHUP, which
 * poll() returns without being asked for.
 */
static int tcp_accept(int listener, int dev)
{
	struct pollfd wait[] = { { .fd = listener, .events = POLLIN },
				 { .fd = dev } };
	int tcp, ready;

	do
		ready = poll(wait, 2, SECONDS * 1000);
	while (ready < 0 && errno == EINTR);
	if (wait[1].revents)
		errno = ENODEV;
	else if (!ready)
		errno = ETIMEDOUT;
	tcp = ready <= 0 || wait[1].revents ? -1 : accept(listener, NULL, NULL);
	if (tcp < 0)
		fail("waiting for a peer to connect");
	return tcp;
}

static void tcp_send(int tcp, const void *data, size_t length)
{
	const char *next = data;

	while (length) {
		ssize_t sent = send(tcp, next, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			fail("sending to the peer");
		next += sent;
		length -= (size_t)sent;
	}
}

static void tcp_receive(int tcp, void *data, size_t length)
{
	char *next = data;

	while (length) {
		ssize_t got = recv(tcp, next, length, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			fail("waiting for the peer's message");
		if (!got)
			fail_because("waiting for the peer's message",
				     "it hung up");
		next += got;
		length -= (size_t)got;
	}
}

static void send_header(int tcp, uint16_t type, uint32_t length)
{
	struct wire_header header = { .magic = { 'R', 'U', 'L', 'P' },
				      .version = htons(WIRE_VERSION),
				      .type = htons(type),
				      .length = htonl(length) };

	tcp_send(tcp, &header, sizeof(header));
}

/* Receives the header of a message of that type, and returns how long the rest is. */
static uint32_t receive_header(int tcp, uint16_t type)
{
	struct wire_header header;

	tcp_receive(tcp, &header, sizeof(header));
	if (memcmp(header.magic, "RULP", 4) ||
	    ntohs(header.version) != WIRE_VERSION)
		fail_because("the peer's message",
			     "is not of this exchange, or of another version");
	if (ntohs(header.type) == WIRE_REFUSAL)
		fail_because("the peer", "refused the connection");
	if (ntohs(header.type) != type)
		fail_because("the peer's message", "is out of turn");
	return ntohl(header.length);
}

static void send_hello(int tcp, struct wire_hello hello,
		       const struct rust_ulp_grant_create *grant)
{
	struct wire_grant wire;

	hello.nr_grants = htons(grant ? 1 : 0);
	send_header(tcp, WIRE_HELLO,
		    sizeof(hello) + (grant ? sizeof(wire) : 0));
	tcp_send(tcp, &hello, sizeof(hello));
	if (!grant)
		return;
	wire.addr[0] = htonl((uint32_t)(grant->addr >> 32));
	wire.addr[1] = htonl((uint32_t)grant->addr);
	wire.length[0] = htonl((uint32_t)(grant->length >> 32));
	wire.length[1] = htonl((uint32_t)grant->length);
	wire.rkey = htonl(grant->rkey);
	wire.access = htonl(grant->access);
	tcp_send(tcp, &wire, sizeof(wire));
}

/* The peer's hello; its first grant, which is zero if there is none. */
static struct wire_hello receive_hello(int tcp, struct wire_grant *first)
{
	struct wire_grant grants[WIRE_MAX_GRANTS] = { 0 };
	uint32_t length = receive_header(tcp, WIRE_HELLO);
	struct wire_hello hello;

	if (length < sizeof(hello) || length > sizeof(hello) + sizeof(grants))
		fail_because("the peer's message",
			     "has a length that it cannot have");
	tcp_receive(tcp, &hello, sizeof(hello));
	if (length !=
	    sizeof(hello) + ntohs(hello.nr_grants) * sizeof(grants[0]))
		fail_because("the peer's message",
			     "has another number of grants than it says");
	tcp_receive(tcp, grants, length - sizeof(hello));
	if (hello.transport != RUST_ULP_QPT_RC)
		fail_because("the peer", "has a queue pair of another type");
	*first = grants[0];
	return hello;
}

static void receive_ready(int tcp)
{
	if (receive_header(tcp, WIRE_READY))
		fail_because("the peer's message",
			     "has a length that it cannot have");
}

/* --- The two programs -------------------------------------------------------------- */

static void print_end(const char *who, const struct wire_hello *hello)
{
	char gid[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, hello->gid, gid, sizeof(gid));
	printf("%s: queue pair %#x at %s\n", who, ntohl(hello->qp_num), gid);
}

static void receiver(const char *where)
{
	struct end end = { 0 };
	struct rust_ulp_grant_create grant = {
		.access = RUST_ULP_ACCESS_REMOTE_WRITE, .length = BUFFER_SIZE
	};
	struct rust_ulp_wr receive = { .opcode = RUST_ULP_WR_RECV,
				       .user_data = 1 };
	struct rust_ulp_cqe done;
	struct wire_grant unused;
	struct wire_hello peer;
	int listener, tcp, one = 1;
	char nothing;

	open_device(&end);
	make_objects(&end);
	/* Whoever learns this key may write there until the grant is destroyed. */
	grant.buffer = end.buffer;
	COMMAND(end.dev, GRANT_CREATE, &grant);
	/* A write with immediate data takes a receive: so the receiver learns of it. */
	receive.qp = end.qp;
	post(&end, &receive);

	listener = tcp_socket(where, 1);
	tcp = tcp_accept(listener, end.dev);
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	peer = receive_hello(tcp, &unused);
	ready_to_receive(&end, &peer);
	send_hello(tcp, end.hello, &grant);
	receive_ready(tcp);
	ready_to_send(&end, &peer);
	send_header(tcp, WIRE_READY, 0);
	print_end("peer", &peer);

	done = wait_for_completion(&end);
	if (done.byte_len > BUFFER_SIZE)
		fail_because("the completion", "says more than the buffer has");
	printf("received %u bytes: \"%.*s\"\n", done.byte_len,
	       (int)done.byte_len, end.memory);
	/*
	 * A queue pair that is destroyed acknowledges nothing. The sender hangs
	 * up when it has its completion.
	 */
	if (recv(tcp, &nothing, sizeof(nothing), 0) < 0 && errno != ECONNRESET)
		fail("waiting for the peer to hang up");
}

static void sender(const char *where, const char *message)
{
	struct end end = { 0 };
	struct rust_ulp_wr write = { .opcode = RUST_ULP_WR_RDMA_WRITE_WITH_IMM,
				     .flags = RUST_ULP_SEND_SIGNALED,
				     .user_data = 7,
				     .imm_data = 1 };
	size_t length = strlen(message);
	struct wire_grant grant;
	struct wire_hello peer;
	int tcp, one = 1;

	if (length > BUFFER_SIZE)
		fail_because("the message", "is longer than the buffer");
	open_device(&end);
	make_objects(&end);

	tcp = tcp_socket(where, 0);
	setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	send_hello(tcp, end.hello, NULL);
	peer = receive_hello(tcp, &grant);
	ready_to_receive(&end, &peer);
	ready_to_send(&end, &peer);
	send_header(tcp, WIRE_READY, 0);
	receive_ready(tcp);
	print_end("peer", &peer);
	if (!(ntohl(grant.access) & RUST_ULP_ACCESS_REMOTE_WRITE) ||
	    (!grant.length[0] && length > ntohl(grant.length[1])))
		fail_because("the peer",
			     "granted no memory to write to, or too little");

	memcpy(end.memory, message, length);
	write.qp = end.qp;
	if (length) {
		write.num_sge = 1;
		write.sge.buffer = end.buffer;
		write.sge.length = (uint32_t)length;
	}
	write.remote_addr = (uint64_t)ntohl(grant.addr[0]) << 32 |
			    ntohl(grant.addr[1]);
	write.rkey = ntohl(grant.rkey);
	post(&end, &write);
	printf("wrote %zu bytes, request %llu\n", length,
	       (unsigned long long)wait_for_completion(&end).user_data);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fputs("usage: rdma_write_c listen ADDRESS:PORT\n"
		      "       rdma_write_c ADDRESS:PORT MESSAGE\n",
		      stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(argv[1], "listen"))
		receiver(argv[2]);
	else
		sender(argv[1], argv[2]);
	return 0;
}
