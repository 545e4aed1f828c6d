// SPDX-License-Identifier: GPL-2.0
/*
 * Which instructions of rust_ulp run. A line "NAME SYMBOL OFFSET" that is written to
 * ulp_probes in debugfs is a place; reading the file gives "NAME HITS" for each. The
 * places get their kprobes whenever rust_ulp is loaded.
 *
 * kprobe_events of tracefs does not do: it refuses functions that ftrace does not know,
 * and it knows none of Rust's.
 */
#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/kprobes.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

struct place {
	struct list_head link;
	struct kprobe probe;
	atomic_t hits;
	bool is_set;
	unsigned int offset;
	char name[16];
	char symbol[KSYM_NAME_LEN];
};

/* Places are added at the end, and stay until the module goes. */
static LIST_HEAD(places);
static DEFINE_MUTEX(lock);
static struct dentry *file;

static int hit(struct kprobe *probe, struct pt_regs *regs)
{
	atomic_inc(&container_of(probe, struct place, probe)->hits);
	return 0;
}

static int change(struct notifier_block *nb, unsigned long state, void *data)
{
	struct module *module = data;
	struct place *place;
	int err;

	if (strcmp(module->name, "rust_ulp"))
		return NOTIFY_DONE;
	mutex_lock(&lock);
	list_for_each_entry(place, &places, link) {
		if (state == MODULE_STATE_COMING && !place->is_set) {
			/* What an earlier registration has left there is to go. */
			place->probe = (struct kprobe){
				.symbol_name = place->symbol,
				.offset = place->offset,
				.pre_handler = hit,
			};
			err = register_kprobe(&place->probe);
			place->is_set = !err;
			if (err)
				pr_info("no probe for %s: %d\n", place->name,
					err);
		} else if (state == MODULE_STATE_GOING && place->is_set) {
			unregister_kprobe(&place->probe);
			place->is_set = false;
		}
	}
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = change };

static ssize_t add(struct file *f, const char __user *from, size_t count,
		   loff_t *pos)
{
	struct place *place;
	char *line;
	int got;

	if (count > KSYM_NAME_LEN + 64)
		return -EINVAL;
	line = memdup_user_nul(from, count);
	if (IS_ERR(line))
		return PTR_ERR(line);
	place = kzalloc_obj(*place, GFP_KERNEL);
	if (!place) {
		kfree(line);
		return -ENOMEM;
	}
	got = sscanf(line, "%15s %511s %u", place->name, place->symbol,
		     &place->offset);
	kfree(line);
	if (got != 3) {
		kfree(place);
		return -EINVAL;
	}
	mutex_lock(&lock);
	list_add_tail(&place->link, &places);
	mutex_unlock(&lock);
	return count;
}

static int show(struct seq_file *seq, void *unused)
{
	struct place *place;

	mutex_lock(&lock);
	list_for_each_entry(place, &places, link)
		seq_printf(seq, "%s %d\n", place->name,
			   atomic_read(&place->hits));
	mutex_unlock(&lock);
	return 0;
}

static int open(struct inode *inode, struct file *f)
{
	return single_open(f, show, NULL);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = open,
	.read = seq_read,
	.write = add,
	.llseek = seq_lseek,
	.release = single_release,
};

static int __init probes_init(void)
{
	int err = register_module_notifier(&notifier);

	if (err)
		return err;
	file = debugfs_create_file("ulp_probes", 0600, NULL, NULL, &operations);
	return 0;
}

static void __exit probes_exit(void)
{
	struct place *place, *next;

	debugfs_remove(file);
	unregister_module_notifier(&notifier);
	list_for_each_entry_safe(place, next, &places, link) {
		if (place->is_set)
			unregister_kprobe(&place->probe);
		kfree(place);
	}
}

module_init(probes_init);
module_exit(probes_exit);
MODULE_DESCRIPTION("which instructions of rust_ulp run");
MODULE_LICENSE("GPL");
