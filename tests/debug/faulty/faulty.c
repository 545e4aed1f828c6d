// SPDX-License-Identifier: GPL-2.0
/*
 * One bug of each kind that the debug kernel is to catch, so that its silence
 * about a module means something. `insmod ulp_faulty.ko bug=NAME` commits it; the
 * line that does is marked with the name, and a test looks for it in the report.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

void gate_inversion(void); /* gate.c */

static char *bug = "none";
module_param(bug, charp, 0);
MODULE_PARM_DESC(bug, "which bug to commit");

/* What the compiler must not know. */
static unsigned int size = 64;
module_param(size, uint, 0);
MODULE_PARM_DESC(size, "64, unknown to the compiler");

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);
static DEFINE_SPINLOCK(spin);
static volatile u8 sink;
static volatile u32 sum;

static noinline void use_after_free(void)
{
	u8 *p = kmalloc(size, GFP_KERNEL);

	if (!p)
		return;
	kfree(p);
	sink = *(volatile u8 *)p; /* bug: use_after_free */
}

static noinline void out_of_bounds(void)
{
	u8 *p = kmalloc(size, GFP_KERNEL);

	if (!p)
		return;
	*(volatile u8 *)(p + size) = 1; /* bug: out_of_bounds */
	kfree(p);
}

static noinline void vmalloc_out_of_bounds(void)
{
	u8 *p = vmalloc(4096 - size);

	if (!p)
		return;
	*(volatile u8 *)(p + 4096 - size) = 1; /* bug: vmalloc_out_of_bounds */
	vfree(p);
}

static noinline void stack_out_of_bounds(void)
{
	u8 local[32];
	volatile u8 *beyond;

	memset(local, 0, sizeof(local));
	OPTIMIZER_HIDE_VAR(size);
	beyond = local + size / 2;
	sink = *beyond; /* bug: stack_out_of_bounds */
}

static noinline void array_index(void)
{
	static const u32 table[8] = { 1, 2, 3 };

	sum = table[size / 8]; /* bug: array_index */
}

static noinline void shift(void)
{
	sum = 1u << (size / 2); /* bug: shift */
}

static noinline void unsigned_overflow(void)
{
	u32 length = 4096;

	OPTIMIZER_HIDE_VAR(length);
	sum = size - length; /* bug: unsigned_overflow */
}

static noinline void sleep_in_atomic(void)
{
	spin_lock(&spin);
	mutex_lock(&first); /* bug: sleep_in_atomic */
	mutex_unlock(&first);
	spin_unlock(&spin);
}

static noinline void one_way(void)
{
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
}

static noinline void lock_inversion(void)
{
	one_way();
	mutex_lock(&second);
	mutex_lock(&first); /* bug: lock_inversion */
	mutex_unlock(&first);
	mutex_unlock(&second);
}

static noinline void leak(void)
{
	void *lost;
	int i;

	/* More than one: a stale register or stack slot may point to the last. */
	for (i = 0; i < 8; i++) {
		lost = kmalloc(size + 333, GFP_KERNEL); /* bug: leak */
		sink = (unsigned long)lost;
	}
}

static noinline void soft_lockup(void)
{
	int i;

	preempt_disable();
	for (i = 0; i < 10000; i++)
		mdelay(1); /* bug: soft_lockup */
	preempt_enable();
}

static void nothing(struct work_struct *work)
{
}

struct item {
	struct delayed_work work;
};

static noinline void free_active(void)
{
	struct item *p = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p)
		return;
	INIT_DELAYED_WORK(&p->work, nothing);
	schedule_delayed_work(&p->work, 3600 * HZ);
	kfree(p); /* bug: free_active */
	/* Something to return to, or the compiler jumps there. */
	sink = 0;
}

static const struct {
	const char *name;
	void (*commit)(void);
} bugs[] = {
	{ "use_after_free", use_after_free },
	{ "out_of_bounds", out_of_bounds },
	{ "vmalloc_out_of_bounds", vmalloc_out_of_bounds },
	{ "stack_out_of_bounds", stack_out_of_bounds },
	{ "array_index", array_index },
	{ "shift", shift },
	{ "unsigned_overflow", unsigned_overflow },
	{ "sleep_in_atomic", sleep_in_atomic },
	{ "lock_inversion", lock_inversion },
	{ "gate_inversion", gate_inversion },
	{ "leak", leak },
	{ "free_active", free_active },
	{ "soft_lockup", soft_lockup },
};

static int __init faulty_init(void)
{
	int i;

	if (!strcmp(bug, "none"))
		return 0;
	for (i = 0; i < ARRAY_SIZE(bugs); i++) {
		if (!strcmp(bug, bugs[i].name)) {
			bugs[i].commit();
			return 0;
		}
	}
	return -EINVAL;
}
module_init(faulty_init);

static void __exit faulty_exit(void)
{
}
module_exit(faulty_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Bugs for the debug kernel to find");
