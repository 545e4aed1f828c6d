/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the C programs of the labs share: the exchange over TCP, in lines of name=value, and objects
 * of libibverbs.
 */

#ifndef LAB_H
#define LAB_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* How long a lab waits for anything, in s: the check ends a program that hangs. */
#define LAB_LONG 600

/* Prints why, and ends the program with status 1. */
static inline void lab_die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* Ends the program when a call of libibverbs that returns an errno fails. */
static inline void lab_check(int error, const char *what)
{
	if (error)
		lab_die("%s: %s", what, strerror(error));
}

/* --- the exchange ----------------------------------------------------------- */

/* Connects to ADDRESS:PORT. */
static inline FILE *lab_connect(const char *address)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	struct timeval limit = { .tv_sec = LAB_LONG };
	char host[64];
	const char *colon = strrchr(address, ':');
	int fd;

	/* What it prints before it hangs or crashes is shown, too. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!colon || (size_t)(colon - address) >= sizeof(host))
		lab_die("%s is no ADDRESS:PORT", address);
	memcpy(host, address, colon - address);
	host[colon - address] = 0;
	if (getaddrinfo(host, colon + 1, &hints, &found))
		lab_die("%s is no address", host);
	fd = socket(found->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen))
		lab_die("connecting to %s: %s", address, strerror(errno));
	freeaddrinfo(found);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fdopen(fd, "r+");
}

/* Sends a line. */
static inline void lab_say(FILE *wire, const char *format, ...)
{
	char line[512];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	if (write(fileno(wire), line, n) != n)
		lab_die("the exchange: %s", strerror(errno));
}

/* Waits for the next line, and cuts its end off. */
static inline void lab_hear(FILE *wire, char *line, int size)
{
	for (errno = 0; !fgets(line, size, wire); errno = 0) {
		/* A check may interrupt the wait, as a debugger does. */
		if (errno != EINTR)
			lab_die("the other end has closed the exchange");
		clearerr(wire);
	}
	line[strcspn(line, "\r\n")] = 0;
}

/* Waits for the line that is this word. */
static inline void lab_wait_for(FILE *wire, const char *word)
{
	char line[512];

	lab_hear(wire, line, sizeof(line));
	if (strcmp(line, word))
		lab_die("'%s' came, not '%s'", line, word);
}

/* The value of name=value in a line; a buffer that the next call overwrites. */
static inline const char *lab_text(const char *line, const char *name)
{
	static char value[128];
	size_t n = strlen(name);
	const char *at;

	for (at = line; at; at = strchr(at, ' '), at = at ? at + 1 : NULL) {
		if (!strncmp(at, name, n) && at[n] == '=') {
			snprintf(value, sizeof(value), "%.*s",
				 (int)strcspn(at + n + 1, " "), at + n + 1);
			return value;
		}
	}
	lab_die("no %s= in '%s'", name, line);
	return NULL;
}

static inline uint64_t lab_number(const char *line, const char *name)
{
	return strtoull(lab_text(line, name), NULL, 0);
}

static inline union ibv_gid lab_gid(const char *line, const char *name)
{
	union ibv_gid gid;

	if (inet_pton(AF_INET6, lab_text(line, name), &gid) != 1)
		lab_die("%s= in '%s' is no GID", name, line);
	return gid;
}

/* A GID as text; a buffer that the next call overwrites. */
static inline const char *lab_show(const union ibv_gid *gid)
{
	static char text[INET6_ADDRSTRLEN];

	return inet_ntop(AF_INET6, gid, text, sizeof(text));
}

/* --- objects ----------------------------------------------------------------- */

struct lab {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint8_t *memory;
};

static inline struct ibv_context *lab_open(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	int i;

	for (i = 0; list && list[i]; i++) {
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	}
	ibv_free_device_list(list);
	if (!context)
		lab_die("there is no device %s", name);
	return context;
}

/* A device, a domain, a completion queue, registered memory, and a queue pair in RESET. */
static inline struct lab lab_objects(const char *device, enum ibv_qp_type type,
				     size_t length)
{
	struct lab lab = { .context = lab_open(device) };
	struct ibv_qp_init_attr attr = { .qp_type = type,
					 .cap = { 64, 64, 1, 1, 0 } };

	lab.memory = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
	lab.pd = ibv_alloc_pd(lab.context);
	lab.cq = ibv_create_cq(lab.context, 128, NULL, NULL, 0);
	if (!lab.memory || !lab.pd || !lab.cq)
		lab_die("no memory, protection domain or completion queue: %s",
			strerror(errno));
	lab.mr = ibv_reg_mr(lab.pd, lab.memory, length, IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = lab.cq;
	attr.recv_cq = lab.cq;
	lab.qp = ibv_create_qp(lab.pd, &attr);
	if (!lab.mr || !lab.qp)
		lab_die("no memory region or queue pair: %s", strerror(errno));
	return lab;
}

/* The index of the RoCE v2 GID that is an IPv4 address. */
static inline int lab_ipv4_index(struct ibv_context *context)
{
	struct ibv_gid_entry entries[64];
	ssize_t i, n = ibv_query_gid_table(context, entries, 64, 0);

	for (i = 0; i < n; i++) {
		if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    !memcmp(&entries[i].gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff",
			    12))
			return entries[i].gid_index;
	}
	lab_die("the device has no IPv4 address");
	return -1;
}

/* The next completion; the program ends when none comes. */
static inline struct ibv_wc lab_completion(struct ibv_cq *cq)
{
	time_t end = time(NULL) + LAB_LONG;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {
		if (time(NULL) > end)
			lab_die("no completion");
	}
	if (n < 0)
		lab_die("ibv_poll_cq: %d", n);
	return wc;
}

/* Brings an RC queue pair to RTS, towards the end that `line` describes; see lab 4. */
static inline void lab_rts(struct ibv_qp *qp, int gid_index, uint32_t psn,
			   const char *line)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	lab_check(ibv_modify_qp(qp, &attr,
				IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_ACCESS_FLAGS),
		  "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1 };
	attr.ah_attr.grh.dgid = lab_gid(line, "gid");
	attr.ah_attr.grh.sgid_index = gid_index;
	attr.ah_attr.grh.hop_limit = 64;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = lab_number(line, "qpn");
	attr.rq_psn = lab_number(line, "psn");
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	lab_check(ibv_modify_qp(qp, &attr,
				IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC |
					IBV_QP_MIN_RNR_TIMER),
		  "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.sq_psn = psn;
	attr.max_rd_atomic = 1;
	lab_check(ibv_modify_qp(qp, &attr,
				IBV_QP_STATE | IBV_QP_TIMEOUT |
					IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					IBV_QP_SQ_PSN |
					IBV_QP_MAX_QP_RD_ATOMIC),
		  "RTS");
}

#endif
