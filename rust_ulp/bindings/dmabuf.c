// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers of other drivers. See helpers.h.
 */
#include <linux/dma-buf.h>
#include <linux/iosys-map.h>
#include <linux/module.h>
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

/* Makes a static attachment: the exporter does not move the memory while it is mapped. */
int rust_ulp_h_dmabuf_attach(struct rust_ulp_h_dmabuf *buf, struct device *dev,
			     bool write)
{
	struct dma_buf_attachment *attach = dma_buf_attach(buf->buf, dev);
	struct sg_table *sgt;

	if (IS_ERR(attach))
		return PTR_ERR(attach);
	sgt = dma_buf_map_attachment_unlocked(
		attach, write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
	if (IS_ERR(sgt)) {
		dma_buf_detach(buf->buf, attach);
		return PTR_ERR(sgt);
	}
	buf->attach = attach;
	buf->sgt = sgt;
	buf->write = write;
	return 0;
}

/* Removes the mapping, if there is one, and drops the reference. */
void rust_ulp_h_dmabuf_close(struct rust_ulp_h_dmabuf *buf)
{
	/* The core compares this with what it has mapped. */
	struct iosys_map map = { .vaddr = buf->vaddr,
				 .is_iomem = buf->is_iomem };

	if (!buf->buf)
		return;
	if (buf->attach) {
		dma_buf_unmap_attachment_unlocked(
			buf->attach, buf->sgt,
			buf->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
		dma_buf_detach(buf->buf, buf->attach);
	} else if (buf->vaddr) {
		dma_buf_vunmap_unlocked(buf->buf, &map);
	}
	dma_buf_put(buf->buf);
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
