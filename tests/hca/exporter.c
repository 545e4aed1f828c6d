// SPDX-License-Identifier: GPL-2.0
/*
 * Dma-bufs of memory without struct pages, as a graphics adapter's local memory is. Ioctl 0 of
 * /dev/ulp_dmabuf returns a descriptor of one, of as many bytes as its argument says, if any; more
 * than FRAMES pages are never mapped. i915 maps such memory into the kernel by vmap_pfn():
 * i915_gem_object_map_pfn(). Nothing is there: its frames are behind all memory. amdgpu gives
 * addresses on the bus to importers that can have them: amdgpu_dma_buf_map(). Here pages are behind
 * them. The memory of ioctl 1 maps these into the kernel, too, and only a pin keeps it in place.
 */
#include <linux/dma-buf.h>
#include <linux/iosys-map.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/vmalloc.h>

#include "hca.h"

MODULE_IMPORT_NS("DMA_BUF");

#define FRAMES 2
#define FIRST_FRAME PHYS_PFN(1ULL << 44)

static void *pages;

static DEFINE_SPINLOCK(lock);
static unsigned int pinned;
module_param(pinned, uint, 0444);

/* What is pinned says so in the attachment. */
static int pin(struct dma_buf_attachment *attachment)
{
	HCA_LOCK(&lock);
	attachment->priv = attachment;
	pinned++;
	return 0;
}

static void unpin(struct dma_buf_attachment *attachment)
{
	HCA_LOCK(&lock);
	attachment->priv = NULL;
	pinned--;
}

static void unmap_dma_buf(struct dma_buf_attachment *attachment,
			  struct sg_table *table,
			  enum dma_data_direction direction)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(table, sg, i)
		if (sg_dma_len(sg))
			dma_unmap_single(attachment->dev, sg_dma_address(sg),
					 PAGE_SIZE, direction);
	sg_free_table(table);
	kfree(table);
}

static struct sg_table *map_dma_buf(struct dma_buf_attachment *attachment,
				    enum dma_data_direction direction)
{
	struct sg_table *table;
	struct scatterlist *sg;
	dma_addr_t addr;
	int i;

	if (!attachment->priv || !attachment->peer2peer)
		return ERR_PTR(-EOPNOTSUPP);
	table = kzalloc_obj(*table);
	if (!table || sg_alloc_table(table, FRAMES, GFP_KERNEL)) {
		kfree(table);
		return ERR_PTR(-ENOMEM);
	}
	for_each_sgtable_dma_sg(table, sg, i) {
		addr = dma_map_single(attachment->dev, pages + i * PAGE_SIZE,
				      PAGE_SIZE, direction);
		if (dma_mapping_error(attachment->dev, addr)) {
			unmap_dma_buf(attachment, table, direction);
			return ERR_PTR(-ENOMEM);
		}
		sg_dma_address(sg) = addr;
		sg_dma_len(sg) = PAGE_SIZE;
	}
	return table;
}

static void release(struct dma_buf *buf)
{
}

static int vmap_frames(struct dma_buf *buf, struct iosys_map *map)
{
	unsigned long frames[FRAMES];
	void *addr;
	int i;

	if (buf->priv == pages) {
		iosys_map_set_vaddr(map, pages);
		return 0;
	}
	for (i = 0; i < FRAMES; i++)
		frames[i] = FIRST_FRAME + i;
	addr = vmap_pfn(frames, FRAMES, PAGE_KERNEL);
	if (!addr)
		return -ENOMEM;
	iosys_map_set_vaddr(map, addr);
	return 0;
}

static void vunmap_frames(struct dma_buf *buf, struct iosys_map *map)
{
	if (map->vaddr != pages)
		vunmap(map->vaddr);
}

static const struct dma_buf_ops ops = {
	.pin = pin,
	.unpin = unpin,
	.map_dma_buf = map_dma_buf,
	.unmap_dma_buf = unmap_dma_buf,
	.release = release,
	.vmap = vmap_frames,
	.vunmap = vunmap_frames,
};

static struct miscdevice device;

static long export(struct file *file, unsigned int command, unsigned long arg)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *buf;
	int fd;

	info.ops = &ops;
	info.size = arg ?: FRAMES * PAGE_SIZE;
	info.flags = O_RDWR;
	info.priv = command ? pages : &device;
	buf = dma_buf_export(&info);
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	fd = dma_buf_fd(buf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(buf);
	return fd;
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = export,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ulp_dmabuf",
	.fops = &fops,
};

int hca_add_exporter(void)
{
	int err;

	pages = alloc_pages_exact(FRAMES * PAGE_SIZE, GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	err = misc_register(&device);
	if (err)
		free_pages_exact(pages, FRAMES * PAGE_SIZE);
	return err;
}

void hca_remove_exporter(void)
{
	misc_deregister(&device);
	free_pages_exact(pages, FRAMES * PAGE_SIZE);
}
