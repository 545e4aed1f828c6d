// SPDX-License-Identifier: GPL-2.0
#include <linux/module.h>

#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "ulp_trace.h"

/* In C: a parameter of the kernel crate does not change while the module is loaded. */
unsigned int rust_ulp_latency;
module_param_named(latency, rust_ulp_latency, uint, 0644);
MODULE_PARM_DESC(
	latency,
	"1: fdinfo shows the latencies of send requests; may change at any time");
