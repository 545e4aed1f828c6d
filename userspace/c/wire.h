/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What two ends of the examples say to each other over TCP, before their queue
 * pairs are connected: userspace/rust-ulp/src/wire.rs describes it.
 */
#ifndef _WIRE_H
#define _WIRE_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { HELLO = 1, REFUSAL = 2, READY = 3 };
enum { HEADER = 12, BODY = 32, GRANT = 24, MAX_GRANTS = 64 }; /* bytes */

/* A message over TCP, in network order; only a hello has what follows length. */
struct message {
	char magic[4];
	uint16_t version, type;
	uint32_t length;
	uint8_t transport, mtu, responder, initiator;
	uint32_t qp_num, psn;
	uint8_t gid[16];
	uint16_t lid, nr_grants;
	struct {
		uint32_t addr[2], length[2], rkey, access;
	} grants[MAX_GRANTS];
};

static struct message me, peer; /* of this end, of the other one */
static int tcp;

/* Ends the program unless it is so; without a reason, for errno. */
static void need(int is_so, const char *what, const char *why)
{
	if (is_so)
		return;
	why = why ? why : strerror(errno);
	fprintf(stderr, "rdma_write_c: %s: %s\n", what, why);
	exit(1);
}

/* A number of 64 bits is its upper half and its lower half. */
static void to_wire(uint32_t *halves, uint64_t number)
{
	halves[0] = htonl((uint32_t)(number >> 32));
	halves[1] = htonl((uint32_t)number);
}

static uint64_t from_wire(const uint32_t *halves)
{
	return (uint64_t)ntohl(halves[0]) << 32 | ntohl(halves[1]);
}

/* Sends `me`, or only its header. */
static void tell(uint16_t type, ssize_t length)
{
	memcpy(&me, "RULP\0\1", 6);
	me.type = htons(type);
	me.length = htonl((uint32_t)length);
	length += HEADER;
	need(send(tcp, &me, (size_t)length, MSG_NOSIGNAL) == length, "send",
	     NULL);
}

/* Receives a message of that type, of which `least` to `most` bytes follow. */
static void hear(uint16_t type, ssize_t least, ssize_t most)
{
	static const char what[] = "the peer's message";
	ssize_t length = recv(tcp, &peer, HEADER, MSG_WAITALL);

	need(length == HEADER, what, "it hung up");
	need(!memcmp(&peer, "RULP\0\1", 6), what,
	     "is not of this exchange, or of another version");
	need(peer.type != htons(REFUSAL), "the peer", "refused to connect");
	need(peer.type == htons(type), what, "is out of turn");
	length = (ssize_t)ntohl(peer.length);
	need(length >= least && length <= most, what,
	     "has a length that it cannot have");
	if (!length) /* recv() of no bytes waits for some */
		return;
	least = recv(tcp, &peer.transport, (size_t)length, MSG_WAITALL);
	need(least == length, what, "it hung up");
}

#endif /* _WIRE_H */
