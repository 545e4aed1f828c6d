// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU: how many instructions of the guest ran in which translated block,
 * and how many of them were atomic accesses and memory barriers.
 *
 *   -plugin libinsns.so,out=FILE     between two marks; made and read by `profile`
 *   -plugin libinsns.so,cover=FILE   of modules, until QEMU ends; by scripts/coverage
 *
 * A line of out is an address and the numbers of instructions, of atomic ones and of
 * barriers; one of cover is an address, the number of instructions and the bytes of the
 * block. Where a module lay another may lie later: with cover, a block
 * counts by its address and its bytes.
 *
 * Counters are added to inline, so nothing is sampled and nothing is disturbed: under
 * -icount the guest runs as it does without the plugin. A mark is an instruction that
 * does nothing and that no compiler makes: the first time it runs the counters are set
 * to zero, each further time they are written to FILE.1, FILE.2 and so on. Built with
 * -DMARK this file is the program that runs it; with an argument, it runs a known
 * sequence between two marks. Built with -DKINDS it is a program that prints the kinds of
 * instructions.
 */
#ifdef MARK
static void mark(void)
{
	/* nopl 0x5ca1ab1e(%rax,%rax,1) */
	__asm__ volatile(
		".byte 0x0f, 0x1f, 0x84, 0x00, 0x1e, 0xab, 0xa1, 0x5c");
}

/* 49 instructions, of them 20 atomic ones and 5 barriers. */
__asm__(".text\n"
	".globl known_sequence\n"
	"known_sequence:\n"
	"	pushq %rbx\n"
	"	movl $5, %ecx\n"
	"1:	lock incl -16(%rsp)\n"
	"	lock cmpxchg8b -16(%rsp)\n"
	"	xchgl %eax, -16(%rsp)\n"
	"	xchgl %eax, %ebx\n"
	"	lock xaddq %rax, -16(%rsp)\n"
	"	mfence\n"
	"	lfence\n"
	"	decl %ecx\n"
	"	jnz 1b\n"
	"	popq %rbx\n"
	"	ret\n");
void known_sequence(void);

int main(int argc, char **argv)
{
	(void)argv;
	mark();
	if (argc > 1) {
		known_sequence();
		mark();
	}
	return 0;
}
#else
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { PLAIN, ATOMIC, BARRIER };

/*
 * An atomic access has the prefix LOCK or is XCHG with memory; a barrier is MFENCE. LFENCE
 * and SFENCE order less. Legacy prefixes come before REX, which comes before the opcode.
 */
static enum kind kind_x86(const uint8_t *insn, size_t size)
{
	size_t i;

	for (i = 0; i < size; i++) {
		switch (insn[i]) {
		case 0xf0:
			return ATOMIC;
		case 0x26:
		case 0x2e:
		case 0x36:
		case 0x3e:
		case 0x64 ... 0x67:
		case 0xf2:
		case 0xf3:
		case 0x40 ... 0x4f:
			continue;
		}
		break;
	}
	if (i + 1 < size && (insn[i] == 0x86 || insn[i] == 0x87) &&
	    insn[i + 1] >> 6 != 3)
		return ATOMIC;
	if (i + 2 < size && insn[i] == 0x0f && insn[i + 1] == 0xae &&
	    insn[i + 2] == 0xf0)
		return BARRIER;
	return PLAIN;
}

/*
 * An atomic access is a store-exclusive, of which each attempt counts, or one of the LSE:
 * CAS, CASP, SWP, LD<op>, ST<op>. A barrier is DMB or DSB.
 */
static enum kind kind_arm64(const uint8_t *bytes, size_t size)
{
	uint32_t insn;

	if (size != 4)
		return PLAIN;
	insn = bytes[0] | bytes[1] << 8 | bytes[2] << 16 |
	       (uint32_t)bytes[3] << 24;
	/* STXR, STLXR, STXP, STLXP; the load has bit 22. */
	if ((insn & 0x3f400000) == 0x08000000 && !(insn & 0x00800000) &&
	    ((insn & 0x00200000) == 0 || insn >> 31))
		return ATOMIC;
	/* CAS, and CASP. */
	if ((insn & 0x3fa07c00) == 0x08a07c00 ||
	    (insn & 0xbfa07c00) == 0x08207c00)
		return ATOMIC;
	/* LD<op>, ST<op> and SWP; LDAPR and others lie behind them. */
	if ((insn & 0x3f200c00) == 0x38200000 && (insn & 0xf000) <= 0x8000)
		return ATOMIC;
	/* DSB and DMB. */
	if ((insn & 0xfffff0ff) == 0xd503309f ||
	    (insn & 0xfffff0ff) == 0xd50330bf)
		return BARRIER;
	return PLAIN;
}

#ifdef KINDS
/* kinds x86_64|aarch64 <HEX...: a line of bytes for each instruction. */
int main(int argc, char **argv)
{
	static const char *const names[] = { "plain", "atomic", "barrier" };
	uint8_t bytes[16];
	char line[64];
	size_t size;

	while (argc == 2 && fgets(line, sizeof(line), stdin)) {
		for (size = 0;
		     size < sizeof(bytes) &&
		     sscanf(line + 2 * size, "%2hhx", &bytes[size]) == 1;
		     size++)
			;
		puts(names[strcmp(argv[1], "x86_64") ? kind_arm64(bytes, size) :
						       kind_x86(bytes, size)]);
	}
	return argc != 2;
}
#else
/* Of qemu-plugin.h, version 1, which distributions do not package. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
/* The beginning of what plugins are told of QEMU. */
struct qemu_info_t {
	const char *target_name;
};

enum { INLINE_ADD_U64 = 0, CB_NO_REGS = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*cb)(qemu_plugin_id_t,
						      struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op,
					      void *ptr, uint64_t imm);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
					  void (*cb)(unsigned int, void *),
					  int flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *
qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t idx);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id,
				    void (*cb)(qemu_plugin_id_t, void *),
				    void *data);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

/* By address; a block that is translated again keeps its counter. */
#define SLOTS (1u << 22)
static struct slot {
	uint64_t addr;
	uint64_t insns, atomics, barriers;
	/* Of the bytes, which cover keeps. */
	uint64_t hash;
	uint8_t *bytes;
	size_t size;
} *slots;

/* Where x86-64 puts modules: MODULES_VADDR without KASLR to MODULES_END. */
#define MODULES 0xffffffffa0000000ull
#define MODULES_END 0xffffffffff000000ull
/* CPUs translate at the same time. */
static pthread_mutex_t translating = PTHREAD_MUTEX_INITIALIZER;

static const uint8_t mark_insn[] = { 0x0f, 0x1f, 0x84, 0x00,
				     0x1e, 0xab, 0xa1, 0x5c };
static const char *out, *cover;
static bool begun;
static unsigned int marks;
static enum kind (*kind_of)(const uint8_t *insn, size_t size);

static struct slot *find(uint64_t addr, uint64_t hash)
{
	uint32_t i = ((addr ^ hash) * 0x9e3779b97f4a7c15ull) >> 42;

	while (slots[i].addr &&
	       (slots[i].addr != addr || slots[i].hash != hash))
		i = (i + 1) & (SLOTS - 1);
	slots[i].addr = addr;
	slots[i].hash = hash;
	return &slots[i];
}

/* The slot of a block with its bytes; none where memory is short. */
static struct slot *keep(const struct qemu_plugin_tb *tb, size_t count)
{
	uint64_t hash = 0xcbf29ce484222325ull;
	size_t size = 0, i, k;
	struct slot *slot;
	uint8_t *bytes;

	for (i = 0; i < count; i++)
		size += qemu_plugin_insn_size(qemu_plugin_tb_get_insn(tb, i));
	bytes = malloc(size);
	if (!bytes)
		return NULL;
	for (i = size = 0; i < count; i++) {
		const struct qemu_plugin_insn *insn =
			qemu_plugin_tb_get_insn(tb, i);

		k = qemu_plugin_insn_size(insn);
		memcpy(bytes + size, qemu_plugin_insn_data(insn), k);
		size += k;
	}
	for (i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	slot = find(qemu_plugin_tb_vaddr(tb), hash);
	if (slot->bytes) {
		free(bytes);
	} else {
		slot->bytes = bytes;
		slot->size = size;
	}
	return slot;
}

static void write_out(void)
{
	char name[4096];
	size_t i, k;
	FILE *file;

	snprintf(name, sizeof(name), "%s.%u", out ? out : cover, ++marks);
	file = fopen(out ? name : cover, "w");
	if (!file)
		return;
	for (i = 0; i < SLOTS; i++) {
		if (!slots[i].insns)
			continue;
		fprintf(file, "%llx %llu", (unsigned long long)slots[i].addr,
			(unsigned long long)slots[i].insns);
		if (out)
			fprintf(file, " %llu %llu",
				(unsigned long long)slots[i].atomics,
				(unsigned long long)slots[i].barriers);
		if (slots[i].size)
			fputc(' ', file);
		for (k = 0; k < slots[i].size; k++)
			fprintf(file, "%02x", slots[i].bytes[k]);
		fputc('\n', file);
	}
	fclose(file);
}

static void ended(qemu_plugin_id_t id, void *data)
{
	(void)id;
	(void)data;
	write_out();
}

static void mark(unsigned int cpu, void *data)
{
	uint32_t i;

	(void)cpu;
	(void)data;
	if (begun) {
		write_out();
		return;
	}
	begun = true;
	for (i = 0; i < SLOTS; i++) {
		slots[i].insns = 0;
		slots[i].atomics = 0;
		slots[i].barriers = 0;
	}
}

/* Whether a block counts that lies there. */
static bool counts(uint64_t addr)
{
	return !cover || (addr >= MODULES && addr < MODULES_END);
}

static void add(struct qemu_plugin_tb *tb, uint64_t *counter, size_t count)
{
	if (count)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, INLINE_ADD_U64,
							 counter, count);
}

/* How many instructions of that kind there are in a block. */
static size_t count_kind(const struct qemu_plugin_tb *tb, enum kind kind)
{
	size_t count = qemu_plugin_tb_n_insns(tb), found = 0, i;

	for (i = 0; i < count; i++) {
		const struct qemu_plugin_insn *insn =
			qemu_plugin_tb_get_insn(tb, i);

		found += kind_of(qemu_plugin_insn_data(insn),
				 qemu_plugin_insn_size(insn)) == kind;
	}
	return found;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb), i;

	uint64_t addr = qemu_plugin_tb_vaddr(tb);
	struct slot *slot;

	(void)id;
	if (counts(addr)) {
		pthread_mutex_lock(&translating);
		slot = cover ? keep(tb, count) : find(addr, 0);
		pthread_mutex_unlock(&translating);
		if (slot)
			add(tb, &slot->insns, count);
		if (slot && out) {
			add(tb, &slot->atomics, count_kind(tb, ATOMIC));
			add(tb, &slot->barriers, count_kind(tb, BARRIER));
		}
	}
	for (i = 0; out && i < count; i++) {
		const struct qemu_plugin_insn *insn =
			qemu_plugin_tb_get_insn(tb, i);

		if (qemu_plugin_insn_size(insn) == sizeof(mark_insn) &&
		    !memcmp(qemu_plugin_insn_data(insn), mark_insn,
			    sizeof(mark_insn)))
			qemu_plugin_register_vcpu_tb_exec_cb(tb, mark,
							     CB_NO_REGS, NULL);
	}
}

__attribute__((visibility("default"))) int
qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info,
		    int argc, char **argv)
{
	int i;

	kind_of = strcmp(info->target_name, "aarch64") ? kind_x86 : kind_arm64;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
		else if (!strncmp(argv[i], "cover=", 6))
			cover = strdup(argv[i] + 6);
		else
			return -1;
	}
	slots = calloc(SLOTS, sizeof(*slots));
	if (!out == !cover || !slots)
		return -1;
	if (cover)
		qemu_plugin_register_atexit_cb(id, ended, NULL);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
#endif
#endif
