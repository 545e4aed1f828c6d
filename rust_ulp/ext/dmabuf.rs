// SPDX-License-Identifier: GPL-2.0

//! Dma-bufs, the memory of other drivers.
//!
//! A software device needs the CPU's mapping, since it copies by the CPU; then only system memory
//! has pages that can be registered. A device that performs DMA gets addresses of its own. Either
//! mapping is kept while the pages are used, and so is an attachment that pins the memory: of a
//! mapping alone, the exporter may move what it maps (drivers/gpu/drm/ttm/ttm_bo.c:ttm_bo_swapout_cb
//! looks at pins only).
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::errno::eopnotsupp;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    device::Device,
    error::to_result,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    scatterlist::SGTable,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

/// A dma-buf that may be mapped into the kernel or for a device.
///
/// # Invariants
///
/// `raw` is zero, or `rust_ulp_h_dmabuf_get` filled it, and this value owns the reference. Then
/// `rust_ulp_h_dmabuf_attach` may have mapped it: into the kernel, or for a device that a driver is
/// bound to until `bound` is released. A value that has released it is never dropped.
pub(super) struct DmaBuf {
    raw: bindings::rust_ulp_h_dmabuf,
    bound: Option<Arc<dyn Bound>>,
    /// The device that is attached, whose name the core shows as long as it exists.
    device: Option<ARef<Device>>,
}

/// Keeps a driver bound to a device.
///
/// ```
/// fn leak(buf: (Arc<dyn Bound>, KBox<u64>)) {
///     buf.0.release();
///     core::mem::forget(buf);
/// }
/// ```
pub(crate) trait Bound: Send + Sync {
    /// Keeps it no longer. May be called several times. Does not sleep.
    fn release(&self);
}

/// The range of a dma-buf to import.
///
/// ```
/// fn import(fd: i32) -> Result<pages::Pages> {
///     let (offset, len, max_len, sizes, max) = (0, 0, 1 << 30, u64::MAX, 9);
///     pages::Pages::import(&Import { fd, offset, len, max_len, write: true, sizes, max })
/// }
/// ```
pub(crate) struct Import {
    /// The descriptor of the dma-buf in the current process.
    pub(crate) fd: i32,
    /// The first byte, a multiple of the page size.
    pub(crate) offset: u64,
    /// The number of bytes; 0 for all bytes from `offset` on.
    pub(crate) len: u64,
    /// The limit of bytes.
    pub(crate) max_len: u64,
    /// Whether the memory will be written.
    pub(crate) write: bool,
    /// The allowed sizes of chunks, as for [`Pages::pin`](super::pages::Pages::pin).
    pub(crate) sizes: u64,
    /// The largest chunk: `2^max` pages.
    pub(crate) max: u32,
}

impl Import {
    /// Returns the offset and the length in `buf`. Fails with [`EINVAL`] when the range does not
    /// begin at a page, and with [`ERANGE`] when it is not inside, or too long.
    pub(super) fn range(&self, buf: &DmaBuf) -> Result<(usize, usize)> {
        if self.offset & (PAGE_SIZE as u64 - 1) != 0 {
            return Err(EINVAL);
        }
        let room = (buf.raw.size as u64)
            .checked_sub(self.offset)
            .ok_or(ERANGE)?;
        let len = if self.len == 0 { room } else { self.len };
        if len == 0 || len > room || len > self.max_len {
            return Err(ERANGE);
        }
        let convert = |bytes| usize::try_from(bytes).map_err(|_| ERANGE);
        Ok((convert(self.offset)?, convert(len)?))
    }
}

// SAFETY: `rust_ulp_h_dmabuf_close` removes the mapping under the reservation lock of the buffer.
unsafe impl Send for DmaBuf {}
// SAFETY: As above. A shared reference gives access to nothing.
unsafe impl Sync for DmaBuf {}

/// Returns the character device, which does no DMA; [`None`] when it is not registered. Sleeps.
fn character_device() -> Option<ARef<Device>> {
    // SAFETY: Nothing but a call.
    let ptr = NonNull::new(unsafe { bindings::rust_ulp_chardev_device() })?;
    // SAFETY: The call returned a reference, and the type is transparent.
    Some(unsafe { ARef::from_raw(ptr.cast()) })
}

/// Returns the errno of the ABI for one of an attachment.
fn explain(err: Error) -> Error {
    const NOT_FOR_OTHERS: i32 = -(kernel::bindings::ENOSYS as i32);
    match err.to_errno() {
        // drivers/gpu/drm/drm_prime.c:drm_gem_map_attach
        NOT_FOR_OTHERS => eopnotsupp(),
        // A signal arrived during the wait for the fences of the exporter.
        _ if err == ERESTARTSYS => EINTR,
        _ => err,
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The mapping is removed, and the reference dropped, once.
        unsafe { bindings::rust_ulp_h_dmabuf_close(&mut self.raw) };
    }
}

impl DmaBuf {
    /// Returns the dma-buf of a descriptor, which is not mapped. Fails with [`EACCES`] when it must
    /// be open for writing, and is not.
    fn get(what: &Import) -> Result<Self> {
        // INVARIANT: Zero for now.
        let mut buf = Self {
            raw: Default::default(),
            bound: None,
            device: None,
        };
        // SAFETY: The struct is valid. A call that fails does not change it, and closing it then
        // does nothing.
        to_result(unsafe { bindings::rust_ulp_h_dmabuf_get(what.fd, &mut buf.raw) })?;
        if what.write && !buf.raw.writable {
            return Err(EACCES);
        }
        Ok(buf)
    }

    /// Pins a dma-buf, and maps it into the kernel. Sleeps. Fails as
    /// [`Pages::import`](super::pages::Pages::import) does.
    pub(super) fn open(what: &Import) -> Result<Self> {
        let mut buf = Self::get(what)?;
        // The core warns when an exporter fails to map, so check first that it can.
        if !buf.raw.has_vmap {
            return Err(eopnotsupp());
        }
        let device = character_device().ok_or(ENODEV)?;
        let raw = core::ptr::from_ref(&*device).cast_mut().cast();
        buf.device = Some(device);
        // SAFETY: The struct has a dma-buf, which it has not mapped, and the type of the device is
        // transparent. A call that fails attaches nothing, and closing the struct then drops the
        // reference alone.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_attach(&mut buf.raw, raw, what.write, true)
        })
        .map_err(explain)?;
        if buf.raw.is_iomem {
            return Err(eopnotsupp());
        }
        Ok(buf)
    }

    /// Maps a dma-buf for `device`. Sleeps. Fails as [`Pages::attach`](super::pages::Pages::attach)
    /// does.
    ///
    /// # Safety
    ///
    /// A driver is bound to `device` until `bound` is released or dropped.
    pub(super) unsafe fn attach(
        device: &Device,
        what: &Import,
        bound: Arc<dyn Bound>,
    ) -> Result<Self> {
        let raw = core::ptr::from_ref(device).cast_mut().cast();
        let mut buf = Self::get(what)?;
        buf.bound = Some(bound);
        buf.device = Some(device.into());
        // SAFETY: The struct has a dma-buf, which it has not mapped, and the type of the device is
        // transparent. By the requirement a driver is bound to it until it is detached. A call that
        // fails attaches nothing, and closing the struct then drops the reference alone.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_attach(&mut buf.raw, raw, what.write, false)
        })
        .map_err(explain)?;
        Ok(buf)
    }

    /// Releases the driver of the device that the dma-buf is attached to.
    ///
    /// # Safety
    ///
    /// The value is never dropped.
    pub(super) unsafe fn release(&self) {
        // INVARIANT: It is never dropped, by the requirement.
        if let Some(bound) = &self.bound {
            bound.release();
        }
    }

    /// Returns the device that is attached.
    pub(super) fn device(&self) -> Option<&Device> {
        self.device.as_deref()
    }

    /// Returns the pages of the `len` bytes at `offset`, a result of [`Import::range`], of a
    /// dma-buf that is mapped into the kernel. Fails with [`eopnotsupp`] for memory that is not
    /// system memory.
    pub(super) fn pages(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<KVVec<NonNull<kernel::bindings::page>>> {
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..count {
            let at = offset.saturating_add(index << PAGE_SHIFT);
            let mut place = bindings::rust_ulp_h_page::default();
            // SAFETY: The dma-buf is mapped, and contains the place: its size is a number of whole
            // pages.
            unsafe { bindings::rust_ulp_h_dmabuf_page(&self.raw, at, &mut place) };
            match NonNull::new(place.page) {
                Some(page) if !place.reserved && !place.zone_device => {
                    let _ = pages.push_within_capacity(page);
                }
                _ => return Err(eopnotsupp()),
            }
        }
        Ok(pages)
    }

    /// Returns the device's address of each page of the `len` bytes at `offset`, a result of
    /// [`Import::range`], of a dma-buf that is mapped for a device. Fails with [`eopnotsupp`] when
    /// the exporter does not map whole pages.
    pub(super) fn addresses(&self, offset: usize, len: usize) -> Result<KVVec<u64>> {
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut before = offset as u64;
        if self.raw.sgt.is_null() {
            return Err(eopnotsupp());
        }
        // SAFETY: The dma-buf is mapped for a device, so this is the table of the exporter, who does
        // not change it while it is mapped.
        for part in unsafe { SGTable::from_raw(self.raw.sgt) }.iter() {
            let (addr, len): (u64, u64) = (part.dma_address(), part.dma_len());
            if (addr | len) & (PAGE_SIZE as u64 - 1) != 0 {
                return Err(eopnotsupp());
            }
            let skipped = len.min(before);
            before = before.saturating_sub(skipped);
            let addrs = addr.saturating_add(skipped)..addr.saturating_add(len);
            let missing = count.saturating_sub(pages.len());
            for addr in addrs.step_by(PAGE_SIZE).take(missing) {
                let _ = pages.push_within_capacity(addr);
            }
        }
        if pages.len() < count {
            return Err(eopnotsupp());
        }
        Ok(pages)
    }
}
