// SPDX-License-Identifier: GPL-2.0
/*
 * The gate of rust_ulp in a module of its own, and a bug that only lockdep finds: a lock that is
 * taken inside the gate is held while the gate is closed.
 */
#include <linux/completion.h>
#include <linux/mutex.h>

#include "../../../rust_ulp/bindings/sync.c"

void gate_inversion(void);

static DEFINE_MUTEX(inside);

static DECLARE_COMPLETION(drained);

static void released(struct percpu_ref *refs)
{
	complete(&drained);
}

noinline void gate_inversion(void)
{
	static struct rust_ulp_h_gate gate;

	if (rust_ulp_h_gate_init(&gate, released))
		return;
	if (rust_ulp_h_gate_enter(&gate)) {
		mutex_lock(&inside);
		mutex_unlock(&inside);
		rust_ulp_h_gate_leave(&gate);
	}
	mutex_lock(&inside);
	rust_ulp_h_gate_kill(&gate); /* bug: gate_inversion */
	mutex_unlock(&inside);
	wait_for_completion(&drained);
	percpu_ref_exit(&gate.refs);
}
