// SPDX-License-Identifier: GPL-2.0
/*
 * Pages, and memory of processes. See helpers.h.
 */
#include <linux/backing-dev.h>
#include <linux/capability.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>

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
 * Charges the user, whose processes share one limit (as in io_uring), and the address space, which
 * has the same limit (as in ib_umem_get_va()). With CAP_IPC_LOCK there is no limit, and only the
 * address space is charged. The caller owns the references in @out.
 */
int rust_ulp_h_charge_pinned(unsigned long pages, struct rust_ulp_h_payer *out)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct user_struct *user = NULL;
	struct mm_struct *mm = current->mm;

	if (!mm)
		return -ENOMEM;
	if (!ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK)) {
		user = current_user();
		if (!charge_user(user, pages, limit))
			return -ENOMEM;
	}
	if (atomic64_add_return(pages, &mm->pinned_vm) > limit && user) {
		atomic64_sub(pages, &mm->pinned_vm);
		atomic_long_sub(pages, &user->locked_vm);
		return -ENOMEM;
	}
	mmgrab(mm);
	out->mm = mm;
	out->user = user ? get_uid(user) : NULL;
	return 0;
}

void rust_ulp_h_uncharge_pinned(const struct rust_ulp_h_payer *payer,
				unsigned long pages)
{
	atomic64_sub(pages, &payer->mm->pinned_vm);
	mmdrop(payer->mm);
	if (payer->user) {
		atomic_long_sub(pages, &payer->user->locked_vm);
		free_uid(payer->user);
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

/* Fails instead of invoking the OOM killer of the cgroup or of the machine. */
struct page *rust_ulp_h_alloc_pages(int node, unsigned int order, bool quick)
{
	gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;

	if (order)
		gfp |= __GFP_COMP;
	gfp |= quick ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL;
	return alloc_pages_node(node, gfp, order);
}

void *rust_ulp_h_page_address(struct page *page)
{
	return page_address(page);
}

int rust_ulp_h_page_nid(struct page *page)
{
	return page_to_nid(page);
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
