// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: family
/* Lab 3: chooses the GID to send from.    main DEVICE ADDRESS:PORT [INDEX] */

#include "lab.h"
#include <endian.h>
#include <ifaddrs.h>

/* Whether a GID is an IPv4 address, ::ffff:a.b.c.d. */
static int is_ipv4(const union ibv_gid *gid)
{
	return !memcmp(gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
}

static int is_link_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* Whether an interface of this network namespace has the address that the GID stands for. */
static int is_ours(const union ibv_gid *gid)
{
	struct ifaddrs *list, *a;
	int found = 0;

	if (getifaddrs(&list))
		lab_die("getifaddrs: %s", strerror(errno));
	for (a = list; a; a = a->ifa_next) {
		if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET &&
		    is_ipv4(gid))
			found |= !memcmp(
				&((struct sockaddr_in *)a->ifa_addr)->sin_addr,
				gid->raw + 12, 4);
		else if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET6)
			found |= !memcmp(
				&((struct sockaddr_in6 *)a->ifa_addr)->sin6_addr,
				gid, 16);
	}
	freeifaddrs(list);
	return found;
}

/* Whether to send from this entry towards the peer. */
static int is_good(const struct ibv_gid_entry *entry, const union ibv_gid *peer)
{
	// learner 1: which entries are good? Look at type, is_ours(), is_ipv4()
	//? return 1;
	return entry->gid_type == IBV_GID_TYPE_ROCE_V2 &&
	       is_ours(&entry->gid) && is_ipv4(&entry->gid) == is_ipv4(peer) &&
	       !is_link_local(&entry->gid);
	// end 1
}

/* The index to send from. `wanted` is what the user asked for, or -1: the program chooses. */
static int choose(struct ibv_context *context, const union ibv_gid *peer,
		  long wanted)
{
	struct ibv_gid_entry entries[64];
	ssize_t i, n = ibv_query_gid_table(context, entries, 64, 0);

	// learner 2: this line takes any index that was asked for; the loop takes good ones alone
	//? return wanted >= 0 ? wanted : entries[0].gid_index;
	// end 2
	for (i = 0; i < n; i++) {
		if ((wanted < 0 || entries[i].gid_index == wanted) &&
		    is_good(&entries[i], peer))
			return entries[i].gid_index;
	}
	lab_die("no such GID leads to %s", lab_show(peer));
	return -1;
}

int main(int argc, char **argv)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;
	struct ibv_sge sge = { .length = 8 };
	union ibv_gid peer, own;
	struct ibv_wc wc;
	char line[512];
	struct lab lab;
	uint64_t nonce;
	FILE *wire;
	int index;

	if (argc < 3)
		lab_die("usage: %s DEVICE ADDRESS:PORT [INDEX]", *argv);
	wire = lab_connect(argv[2]);
	lab_hear(wire, line, sizeof(line));
	peer = lab_gid(line, "gid");
	lab = lab_objects(argv[1], IBV_QPT_RC, 4096);
	index = choose(lab.context, &peer, argc > 3 ? atol(argv[3]) : -1);

	lab_check(ibv_query_gid(lab.context, 1, index, &own), "the GID");
	lab_say(wire, "qpn=%u psn=%u gid=%s", lab.qp->qp_num, lab.qp->qp_num,
		lab_show(&own));
	lab_rts(lab.qp, index, lab.qp->qp_num, line);
	lab_wait_for(wire, "ready");

	/* The peer's number, into its memory. */
	nonce = htobe64(lab_number(line, "nonce"));
	memcpy(lab.memory, &nonce, sizeof(nonce));
	sge.addr = (uintptr_t)lab.memory;
	sge.lkey = lab.mr->lkey;
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
	lab_wait_for(wire, "bye");
	return 0;
}
