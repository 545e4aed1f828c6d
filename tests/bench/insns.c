// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin for QEMU: how many instructions of the guest ran in which translated block.
 *
 *   -plugin libinsns.so,out=FILE     between two marks; made and read by `profile`
 *   -plugin libinsns.so,cover=FILE   of modules, between two marks or, without any, until
 *                                    QEMU ends; by scripts/coverage
 *            ...,program=on            and of a program that is not position-independent
 *
 * A line of out is an address and a number of instructions; one of cover has the bytes of
 * the block behind them. Where a module lay another may lie later: with cover, a block
 * counts by its address and its bytes.
 *
 * Counters are added to inline, so nothing is sampled and nothing is disturbed: under
 * -icount the guest runs as it does without the plugin. A mark is an instruction that
 * does nothing and that no compiler makes: the first time it runs the counters are set
 * to zero, each further time they are written to FILE. Built with -DMARK this file is
 * the program that runs it.
 */
#ifdef MARK
int main(void)
{
	/* nopl 0x5ca1ab1e(%rax,%rax,1) */
	__asm__ volatile(
		".byte 0x0f, 0x1f, 0x84, 0x00, 0x1e, 0xab, 0xa1, 0x5c");
	return 0;
}
#else
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of qemu-plugin.h, version 1, which distributions do not package. */
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info_t;
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
	uint64_t insns;
	/* Of the bytes, which cover keeps. */
	uint64_t hash;
	uint8_t *bytes;
	size_t size;
} *slots;

/* Where x86-64 puts modules: MODULES_VADDR without KASLR to MODULES_END. */
#define MODULES 0xffffffffa0000000ull
#define MODULES_END 0xffffffffff000000ull
/* Below this lies a program that is linked to a fixed address. */
#define PROGRAM_END 0x80000000ull
/* CPUs translate at the same time. */
static pthread_mutex_t translating = PTHREAD_MUTEX_INITIALIZER;

static const uint8_t mark_insn[] = { 0x0f, 0x1f, 0x84, 0x00,
				     0x1e, 0xab, 0xa1, 0x5c };
static const char *out, *cover;
static bool begun, program;

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
	FILE *file = fopen(out ? out : cover, "w");
	size_t i, k;

	if (!file)
		return;
	for (i = 0; i < SLOTS; i++) {
		if (!slots[i].insns)
			continue;
		fprintf(file, "%llx %llu", (unsigned long long)slots[i].addr,
			(unsigned long long)slots[i].insns);
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
	if (!begun)
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
	for (i = 0; i < SLOTS; i++)
		slots[i].insns = 0;
}

/* Whether a block counts that lies there. */
static bool counts(uint64_t addr)
{
	return !cover || (addr >= MODULES && addr < MODULES_END) ||
	       (program && addr < PROGRAM_END);
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
			qemu_plugin_register_vcpu_tb_exec_inline(
				tb, INLINE_ADD_U64, &slot->insns, count);
	}
	for (i = 0; i < count; i++) {
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

	(void)info;
	for (i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
		else if (!strncmp(argv[i], "cover=", 6))
			cover = strdup(argv[i] + 6);
		else if (!strcmp(argv[i], "program=on"))
			program = true;
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
