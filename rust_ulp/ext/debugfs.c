// SPDX-License-Identifier: GPL-2.0
/*
 * A file in debugfs, see debugfs.rs. An open file holds the module.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "helpers.h"

static int rust_ulp_debugfs_show(struct seq_file *m, void *unused)
{
	const struct rust_ulp_h_debugfs_file *file = m->private;

	file->show(file, m);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(rust_ulp_debugfs);

struct dentry *rust_ulp_h_debugfs_create(const char *dir, const char *name,
					 struct rust_ulp_h_debugfs_file *file)
{
	struct dentry *dentry = debugfs_create_dir(dir, NULL);

	debugfs_create_file(name, 0400, dentry, file, &rust_ulp_debugfs_fops);
	return dentry;
}

void rust_ulp_h_debugfs_remove(struct dentry *dir)
{
	debugfs_remove(dir);
}
