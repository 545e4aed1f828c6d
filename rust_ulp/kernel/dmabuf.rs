// SPDX-License-Identifier: GPL-2.0

//! Memory that another driver shares: dma-bufs, as the CPU or a device sees them.
//!
//! The CPU's view is what a software device needs, which copies by it; and only system memory has pages
//! that can be registered. A device that does DMA is attached instead, and gets addresses of its own. Either
//! mapping is kept for as long as the pages are used: exporters keep the memory where it is meanwhile.
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
    sync::aref::ARef, //
};

/// A dma-buf, mapped into the kernel or for a device.
///
/// # Invariants
///
/// `raw` is all zero, or was filled by `rust_ulp_h_dmabuf_open`, or by `rust_ulp_h_dmabuf_attach` for
/// `_device`, and is owned.
pub(super) struct DmaBuf {
    raw: bindings::rust_ulp_h_dmabuf,
    _device: Option<ARef<Device>>,
}

/// What is to be imported.
pub(crate) struct Import {
    /// The current process has the dma-buf by this descriptor.
    pub(crate) fd: i32,
    /// First byte, a multiple of the page size.
    pub(crate) offset: u64,
    /// Bytes; 0 for all from `offset` on.
    pub(crate) len: u64,
    /// Most bytes.
    pub(crate) max_len: u64,
    /// For writing, too.
    pub(crate) write: bool,
    /// The bit of each size that chunks may have, as for [`Pages::pin`](super::pages::Pages::pin),
    pub(crate) sizes: u64,
    /// up to `2^max` pages.
    pub(crate) max: u32,
}

impl Import {
    /// Offset and length in `buf`: [`EINVAL`] when it does not begin with a page, [`ERANGE`] when that
    /// is not inside, or too much.
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

// SAFETY: The mapping is removed under the reservation lock of the buffer, which the `_unlocked`
// functions take (drivers/dma-buf/dma-buf.c:1329).
unsafe impl Send for DmaBuf {}
// SAFETY: As above; nothing is done by reference.
unsafe impl Sync for DmaBuf {}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; given back once.
        unsafe { bindings::rust_ulp_h_dmabuf_close(&mut self.raw) };
    }
}

impl DmaBuf {
    /// Maps a dma-buf into the kernel. Sleeps. Errors as [`Pages::import`](super::pages::Pages::import)
    /// has them.
    pub(super) fn open(what: &Import) -> Result<Self> {
        let mut buf = Self {
            raw: Default::default(),
            _device: None,
        };
        // SAFETY: The struct is valid. When this fails it is as it was, and closing it does nothing.
        to_result(unsafe { bindings::rust_ulp_h_dmabuf_open(what.fd, what.write, &mut buf.raw) })?;
        Ok(buf)
    }

    /// Maps a dma-buf for `device`. Sleeps. Errors as [`Pages::attach`](super::pages::Pages::attach)
    /// has them.
    pub(super) fn attach(device: &Device, what: &Import) -> Result<Self> {
        let raw = core::ptr::from_ref(device).cast_mut().cast();
        let mut buf = Self {
            raw: Default::default(),
            _device: Some(device.into()),
        };
        // SAFETY: The struct is valid; the type of the device is transparent, and a reference is held until
        // after it is detached. When this fails the struct is as it was, and closing it does nothing.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_attach(what.fd, what.write, raw, &mut buf.raw)
        })
        // A signal while it waited for the exporter's fences.
        .map_err(|err| if err == ERESTARTSYS { EINTR } else { err })?;
        Ok(buf)
    }

    /// The pages of the `len` bytes at `offset`, which came from [`Import::range`], of one that is mapped
    /// into the kernel. [`eopnotsupp`] for what is no system memory.
    pub(super) fn pages(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<KVVec<NonNull<kernel::bindings::page>>> {
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..count {
            let at = offset.saturating_add(index << PAGE_SHIFT);
            // SAFETY: It is mapped, and the place inside: sizes of dma-bufs are whole pages.
            let page = unsafe { bindings::rust_ulp_h_dmabuf_page(&self.raw, at) };
            let page = NonNull::new(page).ok_or_else(eopnotsupp)?;
            let _ = pages.push_within_capacity(page);
        }
        Ok(pages)
    }

    /// The device's address of each page of the `len` bytes at `offset`, which came from
    /// [`Import::range`], of one that is mapped for a device. [`eopnotsupp`] when the exporter does not
    /// map whole pages.
    pub(super) fn addresses(&self, offset: usize, len: usize) -> Result<KVVec<u64>> {
        let mut pages = KVVec::from_elem(0u64, len.div_ceil(PAGE_SIZE), GFP_KERNEL_ACCOUNT)?;
        // SAFETY: It is attached, and there is room for so many.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_addresses(
                &self.raw,
                offset,
                pages.as_mut_ptr(),
                pages.len(),
            )
        })?;
        Ok(pages)
    }
}
