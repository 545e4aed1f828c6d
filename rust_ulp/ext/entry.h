/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The Rust functions that entry.c calls. The macro `chardev!` in chardev.rs defines them.
 */
#ifndef _RUST_ULP_ENTRY_H
#define _RUST_ULP_ENTRY_H

#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/mm_types.h>
#include <linux/poll.h>
#include <linux/seq_file.h>

int rust_ulp_rs_open(struct file *file);
void rust_ulp_rs_release(struct file *file);
long rust_ulp_rs_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
ssize_t rust_ulp_rs_read(struct file *file, char __user *buf, size_t count);
int rust_ulp_rs_mmap(struct file *file, struct vm_area_struct *vma);
u32 rust_ulp_rs_poll(struct file *file, poll_table *table);
int rust_ulp_rs_uring_cmd(struct file *file, struct io_uring_cmd *cmd,
			  unsigned int issue_flags);
void rust_ulp_rs_show_fdinfo(struct seq_file *m, struct file *file);

#endif /* _RUST_ULP_ENTRY_H */
