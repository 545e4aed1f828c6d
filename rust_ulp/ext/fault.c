// SPDX-License-Identifier: GPL-2.0
/*
 * Fault points, see fault.rs. Built only for kernels with CONFIG_FAULT_INJECTION.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/fault-inject.h>

#include "helpers.h"

static DECLARE_FAULT_ATTR(rust_ulp_fault);
static u32 rust_ulp_fault_stall;
static struct dentry *rust_ulp_fault_dir;

int rust_ulp_h_fault(bool can_fail)
{
	u32 stall = READ_ONCE(rust_ulp_fault_stall);

	if (!can_fail && !stall)
		return 0;
	if (!should_fail(&rust_ulp_fault, 1))
		return 0;
	if (!stall)
		return -EIO;
	msleep(stall);
	return 0;
}

/* Any context. These points do not stall, since they must not sleep. */
bool rust_ulp_h_fault_atomic(void)
{
	return !READ_ONCE(rust_ulp_fault_stall) &&
	       should_fail(&rust_ulp_fault, 1);
}

void rust_ulp_h_fault_register(const char *name)
{
	rust_ulp_fault.verbose = 0;
	rust_ulp_fault_dir =
		fault_create_debugfs_attr(name, NULL, &rust_ulp_fault);
	if (!IS_ERR(rust_ulp_fault_dir))
		debugfs_create_u32("stall-ms", 0600, rust_ulp_fault_dir,
				   &rust_ulp_fault_stall);
}

void rust_ulp_h_fault_unregister(void)
{
	if (IS_ERR(rust_ulp_fault_dir))
		return;
	debugfs_remove(rust_ulp_fault_dir);
	/* The attribute has one more. */
	dput(rust_ulp_fault.dname);
}
