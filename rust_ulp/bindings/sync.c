// SPDX-License-Identifier: GPL-2.0
/*
 * Locks, counters, work, tasks and namespaces. See helpers.h.
 */
#include <linux/cred.h>
#include <linux/lockdep.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/time_namespace.h>
#include <linux/user_namespace.h>
#include <linux/workqueue.h>

#include "helpers.h"

/* Returns the network namespace of the current task, NULL when the task is exiting. */
struct net *rust_ulp_h_current_net(void)
{
	struct nsproxy *ns = current->nsproxy;

	return ns ? get_net(ns->net_ns) : NULL;
}

/*
 * Returns the user who pays for what the current task uses, as the owner of the machine sees him:
 * the one who made the outermost user namespace that the task is in, which may give that user any
 * number of uids. Where that is root, as with container runtimes, it is the task's own user.
 */
u32 rust_ulp_h_payer_uid(void)
{
	struct user_namespace *ns = current_user_ns();

	while (ns->level > 1)
		ns = ns->parent;
	if (!ns->level || uid_eq(ns->owner, GLOBAL_ROOT_UID))
		return __kuid_val(current_uid());
	return __kuid_val(ns->owner);
}

/* Returns what the time namespace of the current task adds to CLOCK_MONOTONIC, in nanoseconds. */
s64 rust_ulp_h_timens_offset(void)
{
	struct timespec64 offset = {};

	/* An exiting task has none any more. */
	if (current->nsproxy)
		timens_add_monotonic(&offset);
	return timespec64_to_ns(&offset);
}

/* The work of a timer: it may take long, so it is bound to no CPU. */
void rust_ulp_h_init_timer_work(struct work_struct *work, work_func_t func)
{
	INIT_WORK(work, func);
}

void rust_ulp_h_queue_timer_work(struct work_struct *work)
{
	queue_work(system_dfl_wq, work);
}

void rust_ulp_h_put_net(struct net *net)
{
	put_net(net);
}

/*
 * For lockdep a gate is a lock. Its users take it as readers; they never wait for it, and one
 * thread may take it several times. Closing it takes it as a writer, which waits for the readers.
 * So lockdep reports a lock that is taken inside the gate and held by a thread that closes it, as
 * it does for the queues of the block layer. Without CONFIG_LOCKDEP nothing is left of this.
 */
int rust_ulp_h_gate_init(struct rust_ulp_h_gate *gate,
			 percpu_ref_func_t *release)
{
	static struct lock_class_key key;

	lockdep_init_map(&gate->map, "rust_ulp::Device::gate", &key, 0);
	return percpu_ref_init(&gate->refs, release, 0, GFP_KERNEL);
}

bool rust_ulp_h_gate_enter(struct rust_ulp_h_gate *gate)
{
	if (!percpu_ref_tryget_live(&gate->refs))
		return false;
	lock_acquire_shared_recursive(&gate->map, 0, 1, NULL, _RET_IP_);
	return true;
}

/* The gate may be freed when this returns. */
void rust_ulp_h_gate_leave(struct rust_ulp_h_gate *gate)
{
	lock_release(&gate->map, _RET_IP_);
	percpu_ref_put(&gate->refs);
}

/* Refuses new users. The caller waits until @release of rust_ulp_h_gate_init() was called. */
void rust_ulp_h_gate_kill(struct rust_ulp_h_gate *gate)
{
	lock_acquire_exclusive(&gate->map, 0, 0, NULL, _RET_IP_);
	lock_release(&gate->map, _RET_IP_);
	percpu_ref_kill(&gate->refs);
}

void rust_ulp_h_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

int rust_ulp_h_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void rust_ulp_h_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

unsigned long rust_ulp_h_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool rust_ulp_h_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void rust_ulp_h_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

void rust_ulp_h_relax(void)
{
	cpu_relax();
	/*
	 * Under lazy preemption cond_resched() does nothing, and a task that another CPU wakes
	 * sets the lazy flag only. Without this check, a worker that must run on this CPU to end
	 * the wait would run at the next tick.
	 */
	if (test_thread_flag(TIF_NEED_RESCHED_LAZY))
		schedule();
	else
		cond_resched();
}

/* Returns whether the scheduler prefers any ordinary task to the current one. */
bool rust_ulp_h_is_background(void)
{
	return current->policy == SCHED_IDLE || task_nice(current) > 0;
}

bool rust_ulp_h_is_killed(void)
{
	return fatal_signal_pending(current);
}
