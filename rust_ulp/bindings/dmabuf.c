// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers of other drivers. See helpers.h.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/iosys-map.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "helpers.h"

MODULE_IMPORT_NS("DMA_BUF");

/* Takes a reference to the dma-buf of a descriptor, and stores what it is. */
int rust_ulp_h_dmabuf_get(int fd, struct rust_ulp_h_dmabuf *out)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	out->buf = buf;
	out->size = buf->size;
	out->writable = buf->file->f_mode & FMODE_WRITE;
	out->has_vmap = buf->ops->vmap;
	return 0;
}

/* Maps a dma-buf into the kernel. The core warns when the exporter fails. */
int rust_ulp_h_dmabuf_vmap(struct rust_ulp_h_dmabuf *buf)
{
	struct iosys_map map;
	int err = dma_buf_vmap_unlocked(buf->buf, &map);

	if (err)
		return err;
	buf->vaddr = map.vaddr;
	buf->is_iomem = map.is_iomem;
	return 0;
}

static enum dma_data_direction direction(const struct rust_ulp_h_dmabuf *buf)
{
	return buf->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* Pins and maps an attachment, as ib_umem_dmabuf_get_pinned_and_lock() does. */
static int map_pinned(struct rust_ulp_h_dmabuf *buf,
		      struct dma_buf_attachment *attach)
{
	struct dma_resv *resv = attach->dmabuf->resv;
	struct sg_table *sgt;
	long err;

	err = dma_buf_pin(attach);
	if (err)
		return err;
	sgt = dma_buf_map_attachment(attach, direction(buf));
	if (IS_ERR(sgt)) {
		dma_buf_unpin(attach);
		return PTR_ERR(sgt);
	}
	/* The exporter may still be moving the data to this place. */
	err = dma_resv_wait_timeout(resv, DMA_RESV_USAGE_KERNEL, true,
				    MAX_SCHEDULE_TIMEOUT);
	if (err < 0) {
		dma_buf_unmap_attachment(attach, sgt, direction(buf));
		dma_buf_unpin(attach);
		return err;
	}
	buf->sgt = sgt;
	return 0;
}

/*
 * Attaches a dma-buf for DMA. As ib_umem_dmabuf_get_pinned() has it, the memory may be behind PCIe,
 * without struct pages, and the exporter does not move it until it is closed. An attachment that a
 * device does not give up stays, longer than the module, and the exporter reads its operations
 * (dma-buf.c:dma_buf_invalidate_mappings).
 */
int rust_ulp_h_dmabuf_attach(struct rust_ulp_h_dmabuf *buf, struct device *dev,
			     bool write)
{
	struct dma_buf_attachment *attach;
	struct dma_buf_attach_ops *ops;
	int err;

	ops = kzalloc_obj(*ops, GFP_KERNEL_ACCOUNT);
	if (!ops)
		return -ENOMEM;
	ops->allow_peer2peer = true;
	attach = dma_buf_dynamic_attach(buf->buf, dev, ops, NULL);
	if (IS_ERR(attach)) {
		kfree(ops);
		return PTR_ERR(attach);
	}
	buf->write = write;
	dma_resv_lock(attach->dmabuf->resv, NULL);
	err = map_pinned(buf, attach);
	dma_resv_unlock(attach->dmabuf->resv);
	if (err) {
		dma_buf_detach(buf->buf, attach);
		kfree(ops);
		return err;
	}
	buf->attach = attach;
	buf->ops = ops;
	return 0;
}

/* Removes the mapping, if there is one, and drops the reference. */
void rust_ulp_h_dmabuf_close(struct rust_ulp_h_dmabuf *buf)
{
	/* The core compares this with what it has mapped. */
	struct iosys_map map = { .vaddr = buf->vaddr,
				 .is_iomem = buf->is_iomem };
	struct dma_buf *dmabuf = buf->buf;

	if (!dmabuf)
		return;
	if (buf->attach) {
		dma_resv_lock(dmabuf->resv, NULL);
		dma_buf_unmap_attachment(buf->attach, buf->sgt, direction(buf));
		dma_buf_unpin(buf->attach);
		dma_resv_unlock(dmabuf->resv);
		dma_buf_detach(dmabuf, buf->attach);
		kfree(buf->ops);
	} else if (buf->vaddr) {
		dma_buf_vunmap_unlocked(dmabuf, &map);
	}
	dma_buf_put(dmabuf);
}

/* Stores what is at @offset of a dma-buf that is mapped into the kernel. */
void rust_ulp_h_dmabuf_page(const struct rust_ulp_h_dmabuf *buf, size_t offset,
			    struct rust_ulp_h_page *out)
{
	void *addr = buf->vaddr + offset;
	struct page *page;

	if (is_vmalloc_addr(addr))
		page = vmalloc_to_page(addr);
	else
		page = virt_addr_valid(addr) ? virt_to_page(addr) : NULL;
	/* Of a frame without a struct page, vmalloc_to_page() computes where it would be. */
	if (page && !pfn_valid(page_to_pfn(page)))
		page = NULL;
	out->page = page;
	out->reserved = page && PageReserved(page);
	out->zone_device = page && is_zone_device_page(page);
}
