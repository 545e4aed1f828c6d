// SPDX-License-Identifier: GPL-2.0
/*
 * Pages, and memory of processes. See helpers.h.
 */
#include <linux/backing-dev.h>
#include <linux/capability.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>

#include "helpers.h"

/* As ib_umem_get_va() does. The caller owns a reference to what is returned. */
struct mm_struct *rust_ulp_h_charge_pinned(unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct mm_struct *mm = current->mm;

	if (!mm)
		return ERR_PTR(-ENOMEM);
	if (atomic64_add_return(pages, &mm->pinned_vm) > limit &&
	    !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &mm->pinned_vm);
		return ERR_PTR(-ENOMEM);
	}
	mmgrab(mm);
	return mm;
}

void rust_ulp_h_uncharge_pinned(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
	mmdrop(mm);
}

int rust_ulp_h_pin_user_pages(unsigned long start, int num, bool write,
			      struct page **pages)
{
	return pin_user_pages_fast(
		start, num, FOLL_LONGTERM | (write ? FOLL_WRITE : 0), pages);
}

/* 1 when something is mapped at @addr in the current process, 0 when nothing is, -EINTR. */
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

void rust_ulp_h_unpin_range(struct page *page, unsigned long num, bool dirty)
{
	unpin_user_page_range_dirty_lock(page, num, dirty);
}

unsigned long rust_ulp_h_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

/* Fails rather than have the OOM killer look for somebody, of the cgroup or of the machine. */
struct page *rust_ulp_h_alloc_pages(int node, unsigned int order, bool quick)
{
	gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;

	if (order)
		gfp |= __GFP_COMP;
	gfp |= quick ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL;
	return alloc_pages_node(node, gfp, order);
}

/* Drops the allocation's reference; mappings of a page hold their own. */
void rust_ulp_h_free_pages(struct page *page, unsigned int order)
{
	__free_pages(page, order);
}

void *rust_ulp_h_page_address(struct page *page)
{
	return page_address(page);
}

int rust_ulp_h_page_nid(struct page *page)
{
	return page_to_nid(page);
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

bool rust_ulp_h_vma_is_shared(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_SHARED;
}

bool rust_ulp_h_node_online(int node)
{
	return node >= 0 && node < MAX_NUMNODES && node_online(node);
}
