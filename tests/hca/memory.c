// SPDX-License-Identifier: GPL-2.0
/*
 * Memory: regions, and how the adapter reaches what they cover.
 *
 * All memory of the others is reached by DMA address, as the IOMMU has it at
 * that moment.
 */
#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/overflow.h>

#include "hca.h"

static int set_page(struct ib_mr *ib, u64 addr)
{
	struct hca_mr *mr = to_mr(ib);

	if (mr->set_pages == mr->max_pages)
		return -ENOMEM;
	mr->pages[mr->set_pages++] = addr;
	return 0;
}

static struct hca_mr *new_mr(struct ib_pd *pd, u32 max_pages)
{
	struct hca *hca = to_hca(pd->device);
	struct hca_mr *mr;
	u32 index;
	int err;

	err = hca_command(hca, "alloc_mr");
	if (err)
		return ERR_PTR(err);
	mr = kzalloc_obj(*mr);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&mr->lock);
	mr->max_pages = max_pages;
	mr->pages = kvcalloc(max_pages, sizeof(*mr->pages), GFP_KERNEL);
	if (hca->rules->reuses_keys)
		hca->next_mr = 0;
	err = -ENOMEM;
	if (mr->pages)
		err = xa_alloc_cyclic_irq(&hca->mrs, &index, mr,
					  XA_LIMIT(HCA_FIRST_MR, (1 << 24) - 1),
					  &hca->next_mr, GFP_KERNEL);
	if (err < 0) {
		kvfree(mr->pages);
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->ib.lkey = index << 8;
	mr->ib.rkey = index << 8;
	return mr;
}

struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access)
{
	struct hca_mr *mr = new_mr(pd, 0);

	if (IS_ERR(mr))
		return ERR_CAST(mr);
	mr->ib.pd = pd;
	mr->dma = true;
	mr->access = access;
	mr->valid = true;
	return &mr->ib;
}

/* The core asks for it; there is no user space that could call it. */
struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt,
			      int access, struct ib_dmah *dmah,
			      struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

struct ib_mr *hca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max)
{
	const struct hca_rules *rules = to_hca(pd->device)->rules;
	struct hca_mr *mr;

	if (!rules->max_pages)
		return ERR_PTR(-EOPNOTSUPP);
	if (type != IB_MR_TYPE_MEM_REG || !max || max > rules->max_pages)
		return ERR_PTR(-EINVAL);
	mr = new_mr(pd, max);
	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ib;
}

int hca_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int nents,
		  unsigned int *offset)
{
	struct hca_mr *mr = to_mr(ib);

	if (READ_ONCE(mr->valid))
		hca_broken(to_hca(ib->device),
			   "ib_map_mr_sg() of key %#x, which is registered",
			   ib->rkey);
	mr->set_pages = 0;
	return ib_sg_to_pages(ib, sg, nents, offset, set_page);
}

/* Whether others than `own` users have begun an access. */
static bool is_used(struct hca_mr *mr, int own)
{
	HCA_LOCK(&mr->lock);
	return mr->users > own;
}

/* Ends the region's validity, and waits for accesses that have begun. */
static void invalidate(struct hca_mr *mr)
{
	scoped_guard(spinlock_irqsave, &mr->lock)
		mr->valid = false;
	while (is_used(mr, 0))
		usleep_range(20, 50);
}

/*
 * The page at a DMA address, which the adapter may use from now on: it is not given to others.
 * Without an IOMMU nobody can say which one it is.
 */
struct page *hca_hold(struct hca *hca, dma_addr_t addr)
{
	phys_addr_t phys = hca->domain ? iommu_iova_to_phys(hca->domain, addr) :
					 0;
	struct page *page = phys ? pfn_to_page(PHYS_PFN(phys)) : NULL;

	if (page)
		get_page(page);
	return page;
}

/* Gives it back. Returns whether it is still mapped there, and somebody else has not freed it. */
bool hca_let_go(struct hca *hca, dma_addr_t addr, struct page *page)
{
	bool mapped;

	if (!page)
		return true;
	mapped = PHYS_PFN(iommu_iova_to_phys(hca->domain, addr)) ==
		 page_to_pfn(page);
	if (!folio_put_testzero(page_folio(page)))
		return mapped;
	/* It was freed. Nobody gets it any more. */
	return false;
}

/* Deregistering a region failed: its memory is the adapter's until that succeeds. */
static void hold(struct hca *hca, struct hca_mr *mr)
{
	u32 i;

	if (mr->held)
		return;
	mr->held = kvcalloc(mr->nr_pages + 1, sizeof(*mr->held), GFP_KERNEL);
	for (i = 0; mr->held && i < mr->nr_pages; i++)
		mr->held[i] = hca_hold(hca, mr->pages[i]);
}

static void let_go(struct hca *hca, struct hca_mr *mr)
{
	u32 i, lost = 0;

	for (i = 0; mr->held && i < mr->nr_pages; i++)
		lost += !hca_let_go(hca, mr->pages[i], mr->held[i]);
	if (lost)
		hca_broken(
			hca,
			"%u pages of key %#x are not there: it was not deregistered",
			lost, mr->ib.rkey);
	kvfree(mr->held);
}

static void free_mr(struct hca *hca, struct hca_mr *mr)
{
	let_go(hca, mr);
	xa_erase_irq(&hca->mrs, mr->ib.lkey >> 8);
	invalidate(mr);
	kvfree(mr->pages);
	kfree(mr);
}

int hca_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct hca *hca = to_hca(ib->device);
	struct hca_mr *mr = to_mr(ib);
	int err;

	err = hca_command(hca, "dereg_mr");
	if (err)
		hold(hca, mr);
	else if (hca->rules->hides_failure && hca_command(hca, "destroy_key"))
		mr->hidden = true;
	else
		free_mr(hca, mr);
	return err;
}

void hca_free_refused_mrs(struct hca *hca)
{
	struct hca_mr *mr;
	unsigned long key;

	xa_for_each(&hca->mrs, key, mr)
		if (mr->held || mr->hidden)
			free_mr(hca, mr);
}

/* Returns the region that `key` names, in use. */
static struct hca_mr *get_mr(struct hca *hca, u32 key)
{
	struct hca_mr *mr;

	HCA_LOCK(&hca->mrs.xa_lock);
	mr = xa_load(&hca->mrs, key >> 8);
	if (mr) {
		spin_lock(&mr->lock);
		mr->users++;
		spin_unlock(&mr->lock);
	}
	return mr;
}

static void put_mr(struct hca_mr *mr)
{
	HCA_LOCK(&mr->lock);
	mr->users--;
}

/* REG_MR: the region becomes valid, with what the request and the list of pages say. */
int hca_register(struct hca_qp *qp, struct hca_wqe *wqe)
{
	struct hca *hca = to_hca(qp->ib.device);
	struct hca_mr *mr = wqe->reg.mr;
	u64 first, bytes;
	u32 i;

	/* As far as the table of pages reaches from the offset of the first byte on. */
	first = wqe->reg.iova & (wqe->reg.page_size - 1);
	bytes = (u64)mr->set_pages * wqe->reg.page_size;
	if (wqe->reg.key >> 8 != mr->ib.rkey >> 8 || mr->ib.pd != qp->ib.pd ||
	    !is_power_of_2(wqe->reg.page_size) ||
	    !(hca->ib.attrs.page_size_cap & wqe->reg.page_size) ||
	    first + wqe->reg.length > bytes)
		return hca_broken(
			hca,
			"REG_MR of key %#x: iova %#llx, %llu bytes, %u pages of %u",
			wqe->reg.key, wqe->reg.iova, wqe->reg.length,
			mr->set_pages, wqe->reg.page_size);
	if (hca->rules->short_keys &&
	    wqe->reg.length > (u64)mr->max_pages * PAGE_SIZE)
		return hca_broken(
			hca, "REG_MR of %llu bytes with a key for %u pages",
			wqe->reg.length, mr->max_pages);
	if (wqe->reg.access &
		    (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_ATOMIC) &&
	    !(wqe->reg.access & IB_ACCESS_LOCAL_WRITE))
		return hca_broken(hca, "REG_MR: access %#x without LOCAL_WRITE",
				  wqe->reg.access);
	if (mr->max_pages > hca->rules->good_pages)
		return hca_broken(hca, "REG_MR of a region for %u pages",
				  mr->max_pages);
	for (i = 0; i < mr->set_pages; i++)
		if (mr->pages[i] & (wqe->reg.page_size - 1))
			return hca_broken(
				hca, "REG_MR: page %u at %#llx of %u bytes", i,
				mr->pages[i], wqe->reg.page_size);
	HCA_LOCK(&mr->lock);
	if (mr->valid)
		return hca_broken(hca, "REG_MR of key %#x, which is registered",
				  wqe->reg.key);
	mr->key = wqe->reg.key;
	mr->access = wqe->reg.access | hca->rules->more_access;
	if (hca->rules->no_remote_atomics)
		mr->access &= ~IB_ACCESS_REMOTE_ATOMIC;
	mr->iova = wqe->reg.iova;
	mr->length = wqe->reg.length;
	mr->shift = hca->rules->fixed_page_size ? PAGE_SHIFT :
						  ilog2(wqe->reg.page_size);
	mr->nr_pages = mr->set_pages;
	mr->valid = true;
	return 0;
}

/*
 * LOCAL_INV, and the end of a Send with Invalidate. Without `may_sleep` it does
 * nothing and returns -EBUSY while somebody uses the region.
 */
int hca_invalidate(struct hca *hca, struct ib_pd *pd, u32 key, bool may_sleep)
{
	struct hca_mr *mr = get_mr(hca, key);
	int err = 0;

	if (!mr)
		return -EINVAL;
	scoped_guard(spinlock_irqsave, &mr->lock) {
		if (!mr->valid || mr->dma || mr->key != (u8)key ||
		    mr->ib.pd != pd)
			err = -EINVAL;
		else if (mr->users > 1 && !may_sleep)
			err = -EBUSY;
		else
			mr->valid = false;
	}
	while (!err && is_used(mr, 1))
		usleep_range(20, 50);
	put_mr(mr);
	return err;
}

void hca_segs_begin(struct hca_segs *segs)
{
	segs->count = 0;
	segs->length = 0;
}

void hca_segs_end(struct hca_segs *segs)
{
	u32 i;

	for (i = 0; i < segs->count; i++)
		if (segs->seg[i].mr)
			put_mr(segs->seg[i].mr);
	hca_segs_begin(segs);
}

static struct hca_seg *next_seg(struct hca_segs *segs, u64 addr, u64 length)
{
	struct hca_seg *seg = &segs->seg[segs->count++];

	*seg = (struct hca_seg){ .addr = addr, .length = length };
	segs->length += length;
	return seg;
}

void hca_segs_add_ptr(struct hca_segs *segs, void *ptr, u64 length)
{
	next_seg(segs, 0, length)->ptr = ptr;
}

/*
 * Checks key, domain, rights and range, and adds the memory. Nothing is checked of an empty piece.
 */
int hca_segs_add(struct hca_segs *segs, struct hca *hca, struct ib_pd *pd,
		 u32 key, u64 addr, u64 length, int access)
{
	struct hca_mr *mr;
	struct hca_seg *seg;
	bool good;

	if (!length)
		return 0;
	if (segs->count == ARRAY_SIZE(segs->seg))
		return -EINVAL;
	if (key == HCA_DMA_LKEY && hca->rules->dma_lkey &&
	    !(access & ~IB_ACCESS_LOCAL_WRITE)) {
		next_seg(segs, addr, length)->hca = hca;
		return 0;
	}
	mr = get_mr(hca, key);
	if (!mr)
		return -EINVAL;
	scoped_guard(spinlock_irqsave, &mr->lock) {
		good = mr->valid && mr->key == (u8)key && mr->ib.pd == pd &&
		       (mr->access & access) == access;
		if (good && !mr->dma)
			good = addr >= mr->iova && length <= mr->length &&
			       addr - mr->iova <= mr->length - length;
	}
	if (!good) {
		put_mr(mr);
		return -EACCES;
	}
	seg = next_seg(segs, addr, length);
	seg->hca = hca;
	seg->mr = mr;
	return 0;
}

int hca_segs_add_list(struct hca_segs *segs, struct hca *hca, struct ib_pd *pd,
		      const struct ib_sge *sge, u32 count, int access)
{
	int err;

	for (; count; count--, sge++) {
		err = hca_segs_add(segs, hca, pd, sge->lkey, sge->addr,
				   sge->length, access);
		if (err)
			return err;
	}
	return 0;
}

/* The DMA address of the byte at `offset`; the table of pages has it. */
static u64 dma_address(struct hca_seg *seg, u64 offset)
{
	struct hca_mr *mr = seg->mr;
	u64 addr = seg->addr + offset, mask, page;

	if (!mr || mr->dma)
		return addr;
	mask = (1ULL << mr->shift) - 1;
	page = (addr - (mr->iova & ~mask)) >> mr->shift;
	/* Where REG_MR has no page size, the list may end early. Nothing is at address 0. */
	return page < mr->nr_pages ? mr->pages[page] + (addr & mask) : 0;
}

/* Returns where the byte at `offset` lies, and in `*run` how many follow it there. */
static void *locate(struct hca_seg *seg, u64 offset, size_t *run)
{
	struct hca *hca = seg->hca;
	phys_addr_t phys;
	u64 addr;

	*run = seg->length - offset;
	if (seg->ptr)
		return seg->ptr + offset;
	addr = dma_address(seg, offset);
	*run = min_t(u64, *run, PAGE_SIZE - offset_in_page(addr));
	phys = hca->domain ? iommu_iova_to_phys(hca->domain, addr) :
			     dma_to_phys(&hca->pdev->dev, addr);
	if (!phys || !pfn_valid(PHYS_PFN(phys))) {
		/* Nobody but the driver knows of a key that it has hidden. */
		if (!seg->mr || !seg->mr->hidden)
			hca_dma_fault(hca, addr,
				      phys ? "no memory" : "not mapped");
		return NULL;
	}
	return phys_to_virt(phys);
}

/* Moves what is at `offset` of `from` to that of `to`, which is no shorter. */
int hca_copy(struct hca_segs *to, struct hca_segs *from, u64 offset)
{
	struct hca_seg *t = to->seg, *f = from->seg;
	u64 t_offset = offset, f_offset = offset, left = from->length - offset;
	size_t t_run, f_run;
	void *t_ptr, *f_ptr;

	while (left) {
		if (t_offset >= t->length) {
			t_offset -= t->length;
			t++;
			continue;
		}
		if (f_offset >= f->length) {
			f_offset -= f->length;
			f++;
			continue;
		}
		t_ptr = locate(t, t_offset, &t_run);
		f_ptr = locate(f, f_offset, &f_run);
		if (!t_ptr || !f_ptr)
			return -EFAULT;
		/* What is late of a Write is shorter than its pieces. */
		t_run = min3(t_run, f_run, (size_t)left);
		memmove(t_ptr, f_ptr, t_run);
		t_offset += t_run;
		f_offset += t_run;
		left -= t_run;
	}
	return 0;
}

/* Atomics of all adapters are atomic to each other. */
int hca_atomic(struct hca_segs *segs, bool swap, u64 compare, u64 value,
	       u64 *old)
{
	static DEFINE_SPINLOCK(lock);
	size_t run;
	u64 *ptr = locate(&segs->seg[0], 0, &run);

	if (!ptr)
		return -EFAULT;
	HCA_LOCK(&lock);
	*old = *ptr;
	if (!swap)
		*ptr = wrapping_add(u64, *ptr, value);
	else if (*ptr == compare)
		*ptr = value;
	return 0;
}
