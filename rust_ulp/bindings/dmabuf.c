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

static enum dma_data_direction direction(const struct rust_ulp_h_dmabuf *buf)
{
	return buf->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* Maps an attachment for its device, as ib_umem_dmabuf_get_pinned_and_lock() does. */
static int map_for_device(struct rust_ulp_h_dmabuf *buf,
			  struct dma_buf_attachment *attach)
{
	struct sg_table *sgt = dma_buf_map_attachment(attach, direction(buf));

	if (IS_ERR(sgt))
		return PTR_ERR(sgt);
	buf->sgt = sgt;
	return 0;
}

/* Maps a dma-buf into the kernel. The core warns when the exporter fails. */
static int map_for_kernel(struct rust_ulp_h_dmabuf *buf,
			  struct dma_buf_attachment *attach)
{
	struct iosys_map map;
	int err = dma_buf_vmap(attach->dmabuf, &map);

	if (err)
		return err;
	buf->vaddr = map.vaddr;
	buf->is_iomem = map.is_iomem;
	return 0;
}

static void unmap(struct rust_ulp_h_dmabuf *buf,
		  struct dma_buf_attachment *attach)
{
	/* The core compares this with what it has mapped. */
	struct iosys_map map = { .vaddr = buf->vaddr,
				 .is_iomem = buf->is_iomem };

	if (buf->sgt)
		dma_buf_unmap_attachment(attach, buf->sgt, direction(buf));
	else
		dma_buf_vunmap(attach->dmabuf, &map);
}

/* Pins what is attached, and maps it. */
static int map_pinned(struct rust_ulp_h_dmabuf *buf,
		      struct dma_buf_attachment *attach, bool for_kernel)
{
	long err;

	err = dma_buf_pin(attach);
	if (err)
		return err;
	err = for_kernel ? map_for_kernel(buf, attach) :
			   map_for_device(buf, attach);
	if (err)
		goto unpin;
	/* The exporter may still be moving the data to this place. */
	err = dma_resv_wait_timeout(attach->dmabuf->resv, DMA_RESV_USAGE_KERNEL,
				    true, MAX_SCHEDULE_TIMEOUT);
	if (err >= 0)
		return 0;
	unmap(buf, attach);
unpin:
	dma_buf_unpin(attach);
	return err;
}

/*
 * Attaches a dma-buf, and maps it for @dev or into the kernel. The exporter does not move the
 * memory until it is closed: some keep in place what is mapped into the kernel only while it is
 * attached (drm_prime.c:drm_gem_map_attach, which pins, and drm_gem_dmabuf_vmap, which does not),
 * others while it is pinned. As ib_umem_dmabuf_get_pinned() has it, memory of a device may be
 * behind PCIe, without struct pages. An attachment that a device does not give up stays, longer
 * than the module, and the exporter reads its operations (dma-buf.c:dma_buf_invalidate_mappings).
 */
int rust_ulp_h_dmabuf_attach(struct rust_ulp_h_dmabuf *buf, struct device *dev,
			     bool write, bool for_kernel)
{
	struct dma_buf_attachment *attach;
	struct dma_buf_attach_ops *ops;
	int err;

	ops = kzalloc_obj(*ops, GFP_KERNEL_ACCOUNT);
	if (!ops)
		return -ENOMEM;
	ops->allow_peer2peer = !for_kernel;
	attach = dma_buf_dynamic_attach(buf->buf, dev, ops, NULL);
	if (IS_ERR(attach)) {
		kfree(ops);
		return PTR_ERR(attach);
	}
	buf->write = write;
	dma_resv_lock(attach->dmabuf->resv, NULL);
	err = map_pinned(buf, attach, for_kernel);
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
	struct dma_buf *dmabuf = buf->buf;

	if (!dmabuf)
		return;
	if (buf->attach) {
		dma_resv_lock(dmabuf->resv, NULL);
		unmap(buf, buf->attach);
		dma_buf_unpin(buf->attach);
		dma_resv_unlock(dmabuf->resv);
		dma_buf_detach(dmabuf, buf->attach);
		kfree(buf->ops);
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
