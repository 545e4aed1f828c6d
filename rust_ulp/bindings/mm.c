// SPDX-License-Identifier: GPL-2.0
/*
 * Pages, and memory of processes. See helpers.h.
 */
#include <linux/backing-dev.h>
#include <linux/hashtable.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "helpers.h"

/* As __io_account_mem() of io_uring does. */
static bool charge_user(struct user_struct *user, unsigned long pages,
			unsigned long limit)
{
	long now = atomic_long_read(&user->locked_vm);

	do {
		if (now + pages > limit)
			return false;
	} while (!atomic_long_try_cmpxchg(&user->locked_vm, &now, now + pages));
	return true;
}

/*
 * The pages of a user who pays for those of others, see rust_ulp_h_payer_uid(). The kernel does not
 * export the functions that find the user_struct or the ucounts of another user.
 */
struct locked {
	struct hlist_node node;
	u32 uid;
	unsigned long pages;
};

static DEFINE_HASHTABLE(locked_pages, 8);
static DEFINE_SPINLOCK(locked_pages_lock);

static struct locked *find_locked(u32 uid)
{
	struct locked *it;

	hash_for_each_possible(locked_pages, it, node, uid) {
		if (it->uid == uid)
			return it;
	}
	return NULL;
}

/* Charges user @uid. Returns false without memory, and when he then has more than @limit. */
static bool charge_payer(u32 uid, unsigned long pages, unsigned long limit)
{
	struct locked *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT), *it;
	bool fits;

	if (!new)
		return false;
	spin_lock(&locked_pages_lock);
	it = find_locked(uid);
	fits = (it ? it->pages : 0) + pages <= limit;
	if (fits && !it) {
		it = new;
		new = NULL;
		it->uid = uid;
		hash_add(locked_pages, &it->node, uid);
	}
	if (fits)
		it->pages += pages;
	spin_unlock(&locked_pages_lock);
	kfree(new);
	return fits;
}

static void uncharge_payer(u32 uid, unsigned long pages)
{
	struct locked *it;

	spin_lock(&locked_pages_lock);
	it = find_locked(uid);
	if (it) {
		it->pages -= pages;
		if (it->pages)
			it = NULL;
		else
			hash_del(&it->node);
	}
	spin_unlock(&locked_pages_lock);
	kfree(it);
}

/*
 * Charges the address space (as ib_umem_get_va() does) and, if @limited, the user (as io_uring
 * does) and the one who pays for him. Returns false when one of them then has more than
 * RLIMIT_MEMLOCK, which holds if @limited. The caller owns the references in @out.
 */
bool rust_ulp_h_charge_pinned(unsigned long pages, bool limited,
			      struct rust_ulp_h_payer *out)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct user_struct *user = limited ? current_user() : NULL;
	struct mm_struct *mm = current->mm;
	u32 uid = rust_ulp_h_payer_uid();

	if (!mm || (user && !charge_user(user, pages, limit)))
		return false;
	if (user && !charge_payer(uid, pages, limit)) {
		atomic_long_sub(pages, &user->locked_vm);
		return false;
	}
	if (atomic64_add_return(pages, &mm->pinned_vm) > limit && user) {
		atomic64_sub(pages, &mm->pinned_vm);
		atomic_long_sub(pages, &user->locked_vm);
		uncharge_payer(uid, pages);
		return false;
	}
	mmgrab(mm);
	out->mm = mm;
	out->user = user ? get_uid(user) : NULL;
	out->uid = uid;
	return true;
}

void rust_ulp_h_uncharge_pinned(const struct rust_ulp_h_payer *payer,
				unsigned long pages)
{
	atomic64_sub(pages, &payer->mm->pinned_vm);
	mmdrop(payer->mm);
	if (payer->user) {
		atomic_long_sub(pages, &payer->user->locked_vm);
		free_uid(payer->user);
		uncharge_payer(payer->uid, pages);
	}
}

/* Returns 1 when the current process has an area at @addr, 0 when it has none, or -EINTR. */
int rust_ulp_h_vma_at(unsigned long addr, struct rust_ulp_h_vma *out)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, addr);
	if (vma) {
		out->flags = vma->vm_flags;
		out->writeback = vma->vm_file &&
				 mapping_can_writeback(vma->vm_file->f_mapping);
	}
	mmap_read_unlock(mm);
	return !!vma;
}

unsigned long rust_ulp_h_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

/* Without a node, the memory policy of the task chooses. */
struct page *rust_ulp_h_alloc_pages_node(int node, u32 gfp, unsigned int order)
{
	if (node == NUMA_NO_NODE)
		return alloc_pages((__force gfp_t)gfp, order);
	return alloc_pages_node(node, (__force gfp_t)gfp, order);
}

void *rust_ulp_h_page_address(struct page *page)
{
	return page_address(page);
}

/* mmap() maps all pages. madvise(MADV_DONTNEED) unmaps pages, and a fault maps one again. */
static vm_fault_t mapping_fault(struct vm_fault *vmf)
{
	struct rust_ulp_h_mapping *mapping = vmf->vma->vm_private_data;
	struct page *page = mapping->page(mapping, vmf->pgoff);

	if (!page)
		return VM_FAULT_SIGBUS;
	return vmf_insert_page(vmf->vma, vmf->address & PAGE_MASK, page);
}

static void mapping_open(struct vm_area_struct *vma)
{
	struct rust_ulp_h_mapping *mapping = vma->vm_private_data;

	mapping->get(mapping);
}

static void mapping_close(struct vm_area_struct *vma)
{
	struct rust_ulp_h_mapping *mapping = vma->vm_private_data;

	mapping->put(mapping);
}

static const struct vm_operations_struct mapping_ops = {
	.open = mapping_open,
	.close = mapping_close,
	.fault = mapping_fault,
};

/* Gives the reference to @mapping to the area. */
void rust_ulp_h_vma_set_mapping(struct vm_area_struct *vma,
				struct rust_ulp_h_mapping *mapping)
{
	vma->vm_private_data = mapping;
	vma->vm_ops = &mapping_ops;
}

int rust_ulp_h_map_pages(struct vm_area_struct *vma, unsigned long addr,
			 struct page *first, unsigned long num)
{
	struct page *pages[16];

	while (num) {
		unsigned long batch = min(num, ARRAY_SIZE(pages)), left = batch,
			      i;
		int err;

		for (i = 0; i < batch; i++)
			pages[i] = first + i;
		err = vm_insert_pages(vma, addr, pages, &left);
		if (err)
			return err;
		first += batch;
		addr += batch << PAGE_SHIFT;
		num -= batch;
	}
	return 0;
}

bool rust_ulp_h_node_online(int node)
{
	return node >= 0 && node < MAX_NUMNODES && node_online(node);
}
