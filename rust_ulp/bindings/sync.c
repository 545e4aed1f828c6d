// SPDX-License-Identifier: GPL-2.0
/*
 * Locks, counters, work, tasks and namespaces. See helpers.h.
 */
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "helpers.h"

/* Returns the network namespace of the current task, NULL when the task is exiting. */
struct net *rust_ulp_h_current_net(void)
{
	struct nsproxy *ns = current->nsproxy;

	return ns ? get_net(ns->net_ns) : NULL;
}

void rust_ulp_h_put_net(struct net *net)
{
	put_net(net);
}

bool rust_ulp_h_percpu_ref_tryget_live(struct percpu_ref *ref)
{
	return percpu_ref_tryget_live(ref);
}

void rust_ulp_h_percpu_ref_put(struct percpu_ref *ref)
{
	percpu_ref_put(ref);
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

/*
 * Returns once @done is complete, after @ns, and as soon as spinning would hold up others: a task
 * waits for this CPU, or no other CPU can complete it.
 */
void rust_ulp_h_spin_for_completion(struct completion *done, u64 ns)
{
	u64 end = ktime_get_ns() + ns;

	if (num_online_cpus() == 1)
		return;
	while (!completion_done(done) && !need_resched() &&
	       !test_thread_flag(TIF_NEED_RESCHED_LAZY) &&
	       !signal_pending(current) && ktime_get_ns() < end)
		cpu_relax();
}

bool rust_ulp_h_is_killed(void)
{
	return fatal_signal_pending(current);
}
