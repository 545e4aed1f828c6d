// SPDX-License-Identifier: GPL-2.0
/*
 * A dma-buf of memory without struct pages, as i915 exports the local memory of a graphics adapter:
 * i915_gem_object_map_pfn() maps it into the kernel by vmap_pfn(). An ioctl() of /dev/ulp_dmabuf
 * returns a descriptor of one.
 *
 * Nothing is there, and nothing touches it: its frames are behind all memory.
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

static struct sg_table *map_dma_buf(struct dma_buf_attachment *attachment,
				    enum dma_data_direction direction)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void unmap_dma_buf(struct dma_buf_attachment *attachment,
			  struct sg_table *table,
			  enum dma_data_direction direction)
{
}

static void release(struct dma_buf *buf)
{
}

static int vmap_frames(struct dma_buf *buf, struct iosys_map *map)
{
	unsigned long frames[FRAMES];
	void *addr;
	int i;

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
	vunmap(map->vaddr);
}

static const struct dma_buf_ops ops = {
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
	info.size = FRAMES * PAGE_SIZE;
	info.flags = O_RDWR;
	info.priv = &device;
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
	return misc_register(&device);
}

void hca_remove_exporter(void)
{
	misc_deregister(&device);
}
