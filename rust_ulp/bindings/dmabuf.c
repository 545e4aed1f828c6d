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

static struct dma_buf *dmabuf_get(int fd, bool write)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (!IS_ERR(buf) && write && !(buf->file->f_mode & FMODE_WRITE)) {
		dma_buf_put(buf);
		return ERR_PTR(-EACCES);
	}
	return buf;
}

int rust_ulp_h_dmabuf_open(int fd, bool write, struct rust_ulp_h_dmabuf *out)
{
	struct dma_buf *buf = dmabuf_get(fd, write);
	struct iosys_map map;
	int err;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	err = -EOPNOTSUPP;
	/* The core warns when an exporter fails to map, so check first that it can. */
	if (!buf->ops->vmap)
		goto put;
	err = dma_buf_vmap_unlocked(buf, &map);
	if (err)
		goto put;
	err = -EOPNOTSUPP;
	if (map.is_iomem) {
		dma_buf_vunmap_unlocked(buf, &map);
		goto put;
	}
	out->buf = buf;
	out->vaddr = map.vaddr;
	out->size = buf->size;
	return 0;

put:
	dma_buf_put(buf);
	return err;
}

/* Makes a static attachment: the exporter does not move the memory while it is mapped. */
int rust_ulp_h_dmabuf_attach(int fd, bool write, struct device *dev,
			     struct rust_ulp_h_dmabuf *out)
{
	struct dma_buf *buf = dmabuf_get(fd, write);
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	attach = dma_buf_attach(buf, dev);
	if (IS_ERR(attach)) {
		dma_buf_put(buf);
		return PTR_ERR(attach);
	}
	sgt = dma_buf_map_attachment_unlocked(
		attach, write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
	if (IS_ERR(sgt)) {
		dma_buf_detach(buf, attach);
		dma_buf_put(buf);
		return PTR_ERR(sgt);
	}
	out->buf = buf;
	out->attach = attach;
	out->sgt = sgt;
	out->size = buf->size;
	out->write = write;
	return 0;
}

void rust_ulp_h_dmabuf_close(struct rust_ulp_h_dmabuf *buf)
{
	struct iosys_map map = IOSYS_MAP_INIT_VADDR(buf->vaddr);

	if (!buf->buf)
		return;
	if (buf->attach) {
		dma_buf_unmap_attachment_unlocked(
			buf->attach, buf->sgt,
			buf->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
		dma_buf_detach(buf->buf, buf->attach);
	} else {
		dma_buf_vunmap_unlocked(buf->buf, &map);
	}
	dma_buf_put(buf->buf);
}

/*
 * Stores the addresses that the attached device has for @count pages from @offset on, a multiple of
 * the page size. Fails with EOPNOTSUPP when the exporter does not map whole pages.
 */
int rust_ulp_h_dmabuf_addresses(const struct rust_ulp_h_dmabuf *buf,
				size_t offset, u64 *out, size_t count)
{
	struct scatterlist *sg;
	size_t filled = 0;
	unsigned int i;

	for_each_sgtable_dma_sg((struct sg_table *)buf->sgt, sg, i) {
		u64 addr = sg_dma_address(sg);
		size_t left = sg_dma_len(sg);

		if (!PAGE_ALIGNED(addr) || !PAGE_ALIGNED(left))
			return -EOPNOTSUPP;
		if (offset >= left) {
			offset -= left;
			continue;
		}
		for (addr += offset, left -= offset; left && filled < count;
		     addr += PAGE_SIZE, left -= PAGE_SIZE)
			out[filled++] = addr;
		offset = 0;
	}
	return filled == count ? 0 : -EOPNOTSUPP;
}

/* Returns NULL for memory that is not system memory. */
struct page *rust_ulp_h_dmabuf_page(const struct rust_ulp_h_dmabuf *buf,
				    size_t offset)
{
	void *addr = buf->vaddr + offset;
	struct page *page;

	if (is_vmalloc_addr(addr))
		page = vmalloc_to_page(addr);
	else
		page = virt_addr_valid(addr) ? virt_to_page(addr) : NULL;
	if (!page || PageReserved(page) || is_zone_device_page(page))
		return NULL;
	return page;
}
