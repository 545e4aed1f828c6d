// SPDX-License-Identifier: GPL-2.0
/*
 * Locks, counters, timers, work, tasks and namespaces. See helpers.h.
 */
#include <linux/capability.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>

#include "helpers.h"

u64 rust_ulp_h_random(void)
{
	return get_random_u64();
}

/* Returns when all softirqs and sections without preemption that ran before have ended. */
void rust_ulp_h_synchronize_rcu(void)
{
	synchronize_rcu();
}

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

int rust_ulp_h_percpu_ref_init(struct percpu_ref *ref,
			       percpu_ref_func_t *release)
{
	return percpu_ref_init(ref, release, 0, GFP_KERNEL);
}

bool rust_ulp_h_percpu_ref_tryget_live(struct percpu_ref *ref)
{
	return percpu_ref_tryget_live(ref);
}

void rust_ulp_h_percpu_ref_put(struct percpu_ref *ref)
{
	percpu_ref_put(ref);
}

void rust_ulp_h_percpu_ref_kill(struct percpu_ref *ref)
{
	percpu_ref_kill(ref);
}

void rust_ulp_h_percpu_ref_exit(struct percpu_ref *ref)
{
	percpu_ref_exit(ref);
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

struct workqueue_struct *rust_ulp_h_alloc_workqueue(void)
{
	return alloc_workqueue("rust_ulp", WQ_UNBOUND, 0);
}

void rust_ulp_h_flush_workqueue(struct workqueue_struct *wq)
{
	flush_workqueue(wq);
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

void rust_ulp_h_eventfd_signal(struct eventfd_ctx *ctx)
{
	eventfd_signal(ctx);
}

static enum hrtimer_restart rust_ulp_h_timer_expired(struct hrtimer *hrtimer)
{
	struct rust_ulp_timer *timer =
		container_of(hrtimer, struct rust_ulp_timer, timer);

	timer->expired(timer->context);
	return HRTIMER_NORESTART;
}

void rust_ulp_h_timer_init(struct rust_ulp_timer *timer,
			   void (*expired)(const void *context),
			   const void *context)
{
	timer->expired = expired;
	timer->context = context;
	hrtimer_setup(&timer->timer, rust_ulp_h_timer_expired, CLOCK_MONOTONIC,
		      HRTIMER_MODE_ABS_SOFT);
}

void rust_ulp_h_timer_start(struct rust_ulp_timer *timer, u64 at_ns)
{
	hrtimer_start(&timer->timer, ns_to_ktime(at_ns), HRTIMER_MODE_ABS_SOFT);
}

void rust_ulp_h_timer_cancel(struct rust_ulp_timer *timer)
{
	hrtimer_cancel(&timer->timer);
}

bool rust_ulp_h_may_raise_priority(void)
{
	return capable(CAP_SYS_NICE);
}

/* Called for each object, so it writes nothing to the audit log. */
bool rust_ulp_h_may_exceed_limits(void)
{
	return ns_capable_noaudit(&init_user_ns, CAP_SYS_RESOURCE);
}

bool rust_ulp_h_is_killed(void)
{
	return fatal_signal_pending(current);
}
