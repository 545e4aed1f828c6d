// SPDX-License-Identifier: GPL-2.0
/*
 * The entry points of the character device, io_uring's commands among them.
 *
 * rustc emits no fentry, so the function tracers do not see Rust functions. Each call into the
 * module, and each call of a driver, therefore passes through a C function, here, in task_work.c
 * and in rdma/entry.c. These functions only call the next one.
 */
#include <linux/compat.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/poll.h>

#include "helpers.h"
#include "entry.h"

static int rust_ulp_open(struct inode *inode, struct file *file)
{
	int err = rust_ulp_rs_open(file);

	/* Without a position, a thread that waits in read() holds no lock of the file. */
	return err ? err : stream_open(inode, file);
}

static int rust_ulp_release(struct inode *inode, struct file *file)
{
	rust_ulp_rs_release(file);
	return 0;
}

static long rust_ulp_ioctl(struct file *file, unsigned int cmd,
			   unsigned long arg)
{
	return rust_ulp_rs_ioctl(file, cmd, arg);
}

static ssize_t rust_ulp_read(struct file *file, char __user *buf, size_t count,
			     loff_t *pos)
{
	return rust_ulp_rs_read(file, buf, count);
}

static int rust_ulp_uring_cmd(struct io_uring_cmd *cmd,
			      unsigned int issue_flags)
{
	return rust_ulp_rs_uring_cmd(cmd->file, cmd, issue_flags);
}

static int rust_ulp_mmap(struct file *file, struct vm_area_struct *vma)
{
	return rust_ulp_rs_mmap(file, vma);
}

static __poll_t rust_ulp_poll(struct file *file, poll_table *table)
{
	return (__force __poll_t)rust_ulp_rs_poll(file, table);
}

static void rust_ulp_show_fdinfo(struct seq_file *m, struct file *file)
{
	rust_ulp_rs_show_fdinfo(m, file);
}

static const struct file_operations rust_ulp_fops = {
	.owner = THIS_MODULE,
	.open = rust_ulp_open,
	.release = rust_ulp_release,
	.read = rust_ulp_read,
	.unlocked_ioctl = rust_ulp_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.uring_cmd = rust_ulp_uring_cmd,
	.mmap = rust_ulp_mmap,
	.poll = rust_ulp_poll,
	.show_fdinfo = rust_ulp_show_fdinfo,
};

static struct miscdevice rust_ulp_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.fops = &rust_ulp_fops,
};

/* Held while the device comes or goes. Taken before misc_mtx. */
static DEFINE_MUTEX(rust_ulp_lock);

int rust_ulp_chardev_register(const char *name, u16 mode)
{
	int err;

	mutex_lock(&rust_ulp_lock);
	rust_ulp_misc.name = name;
	rust_ulp_misc.mode = mode;
	err = misc_register(&rust_ulp_misc);
	if (err)
		rust_ulp_misc.this_device = NULL;
	mutex_unlock(&rust_ulp_lock);
	return err;
}

void rust_ulp_chardev_unregister(void)
{
	mutex_lock(&rust_ulp_lock);
	misc_deregister(&rust_ulp_misc);
	rust_ulp_misc.this_device = NULL;
	mutex_unlock(&rust_ulp_lock);
}

/* Returns a reference to the device, NULL when it is not registered. */
struct device *rust_ulp_chardev_device(void)
{
	struct device *dev;

	mutex_lock(&rust_ulp_lock);
	dev = get_device(rust_ulp_misc.this_device);
	mutex_unlock(&rust_ulp_lock);
	return dev;
}
