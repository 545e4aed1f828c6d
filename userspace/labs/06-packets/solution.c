// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: bth
/* Lab 6: reads a capture.    main FILE | main predict TIMEOUT RETRY_CNT */

#include "lab.h"

/* A number of `len` bytes, the most significant first. */
static uint32_t number(const uint8_t *at, int len)
{
	uint32_t n = 0;

	while (len--)
		n = n << 8 | *at++;
	return n;
}

/* When, in us, a packet with these fields was there last, or 0. Notes that it is now. */
static uint64_t last(uint32_t opcode, uint32_t qpn, uint32_t psn, uint64_t now)
{
	static struct {
		uint32_t opcode, qpn, psn;
		uint64_t time;
	} seen[1 << 16];
	uint64_t before = 0;
	int i;

	for (i = 0; seen[i].time; i++) {
		if (seen[i].opcode == opcode && seen[i].qpn == qpn &&
		    seen[i].psn == psn) {
			before = seen[i].time;
			break;
		}
	}
	seen[i].opcode = opcode;
	seen[i].qpn = qpn;
	seen[i].psn = psn;
	seen[i].time = now;
	return before;
}

/* Prints the fields of a packet, from the BTH on, which was there at `now`, in us. */
static void decode(const uint8_t *bth, uint64_t now)
{
	uint64_t gap = 0;
	uint32_t opcode = 0, qpn = 0, psn = 0, rkey = 0, len = 0, syndrome = 0;
	int has_reth = 0, has_aeth = 0;

	// learner 1: opcode, destination queue pair and PSN, in the base transport header
	opcode = number(bth, 1);
	qpn = number(bth + 5, 3);
	psn = number(bth + 9, 3);
	// end 1
	printf("opcode=%u qpn=%u psn=%u", opcode, qpn, psn);
	// learner 2: rkey and length, in the RETH, which some packets have
	has_reth = opcode == 6 || (opcode >= 10 && opcode <= 12);
	rkey = number(bth + 20, 4);
	len = number(bth + 24, 4);
	// end 2
	if (has_reth)
		printf(" rkey=%u len=%u", rkey, len);
	// learner 3: the syndrome, in the AETH of acknowledgements and of most read responses
	has_aeth = opcode == 13 || (opcode >= 15 && opcode <= 17);
	syndrome = number(bth + 12, 1);
	// end 3
	if (has_aeth)
		printf(" syndrome=%u", syndrome);
	// learner 5: the gap, in us, to the packet before with these fields, by last()
	gap = last(opcode, qpn, psn, now);
	if (gap)
		gap = now - gap;
	// end 5
	if (gap)
		printf(" gap=%lu", gap);
	putchar('\n');
}

/* Seconds until a request that nobody acknowledges completes with status 12, at least. */
static double predict(unsigned int timeout, unsigned int retry_cnt)
{
	// learner 4: how long is one wait, and how many are there?
	//? return retry_cnt * timeout;
	return (retry_cnt + 1) * 4.096 / 1e6 * (1u << timeout);
	// end 4
}

int main(int argc, char **argv)
{
	static uint8_t frame[1 << 16];
	uint32_t head[4];
	FILE *file;

	if (argc == 4 && !strcmp(argv[1], "predict")) {
		printf("%.4f\n", predict(atoi(argv[2]), atoi(argv[3])));
		return 0;
	}
	if (argc != 2)
		lab_die("usage: %s FILE | predict TIMEOUT RETRY_CNT", *argv);
	/* A pcap file: 24 bytes, then 16 before each frame: seconds, microseconds, length. */
	file = fopen(argv[1], "r");
	if (!file || fseek(file, 24, SEEK_SET))
		lab_die("%s: %s", argv[1], strerror(errno));
	while (fread(head, sizeof(head), 1, file) == 1) {
		if (head[2] > sizeof(frame) ||
		    fread(frame, head[2], 1, file) != 1)
			lab_die("the file ends within a frame");
		decode(frame + 14 + 20 + 8, head[0] * 1000000ul + head[1]);
	}
	return 0;
}
