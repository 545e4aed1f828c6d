// SPDX-License-Identifier: GPL-2.0

//! Memory that another driver shares: dma-bufs, as the CPU or a device sees them.
//!
//! The CPU's view is what a software device needs, which copies by it; and only system memory has pages
//! that can be registered. A device that does DMA is attached instead, and gets addresses of its own. Either
//! mapping is kept for as long as the pages are used: exporters keep the memory where it is meanwhile.
//!
//! C header: [`include/linux/dma-buf.h`](srctree/include/linux/dma-buf.h)

use super::{
    errno::eopnotsupp,
    pages::{
        Backing,
        Pages,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pinned::frames, //
};
use crate::{
    bindings,
    logic::chunks, //
};
use core::ptr::NonNull;
use kernel::{
    device::Device,
    error::to_result,
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
    /// The bit of each size that chunks may have, as for [`Pages::pin`],
    pub(crate) sizes: u64,
    /// up to `2^max` pages.
    pub(crate) max: u32,
}

impl Import {
    /// Offset and length in `buf`: [`EINVAL`] when it does not begin with a page, [`ERANGE`] when that
    /// is not inside, or too much.
    fn range(&self, buf: &DmaBuf) -> Result<(usize, usize)> {
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

/// Every one of `all` that begins a chunk of `2^order`.
fn firsts<T: Copy>(all: &[T], order: u32) -> Result<KVVec<T>> {
    let step = 1usize << (order & 31);
    let most = (all.len() >> (order & 31)).saturating_add(1);
    let mut out = KVVec::with_capacity(most, GFP_KERNEL_ACCOUNT)?;
    let mut at = 0usize;
    while let Some(first) = all.get(at) {
        let _ = out.push_within_capacity(*first);
        at = at.saturating_add(step);
    }
    Ok(out)
}

// SAFETY: Taking the mapping away locks what it changes.
unsafe impl Send for DmaBuf {}
// SAFETY: As above; nothing is done by reference.
unsafe impl Sync for DmaBuf {}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; given back once.
        unsafe { bindings::rust_ulp_h_dmabuf_close(&mut self.raw) };
    }
}

impl Pages {
    /// The pages of a dma-buf. Sleeps: exporters take their time, so not to be called with anything
    /// held that others wait for.
    ///
    /// [`ERANGE`] for a range that is not inside, or more than `max_len`; [`EINVAL`] when it does not
    /// begin with a page, or `fd` is no dma-buf; [`EBADF`] when it is nothing; [`EACCES`] when it is not
    /// open for that; [`eopnotsupp`] when the exporter has no such mapping, or it is not one of system
    /// memory.
    pub(crate) fn import(what: &Import) -> Result<Self> {
        let mut buf = DmaBuf {
            raw: Default::default(),
            _device: None,
        };
        // SAFETY: The struct is valid. When this fails it is as it was, and closing it does nothing.
        to_result(unsafe { bindings::rust_ulp_h_dmabuf_open(what.fd, what.write, &mut buf.raw) })?;
        let (offset, len) = what.range(&buf)?;
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..count {
            let at = offset.saturating_add(index << PAGE_SHIFT);
            // SAFETY: It is mapped, and the place inside: sizes of dma-bufs are whole pages.
            let page = unsafe { bindings::rust_ulp_h_dmabuf_page(&buf.raw, at) };
            let page = NonNull::new(page).ok_or_else(eopnotsupp)?;
            let _ = pages.push_within_capacity(page);
        }

        let order = chunks::common_order(frames(&pages), 0, what.sizes, what.max);
        // INVARIANT: Chunk by chunk, the pages follow each other.
        Ok(Self {
            chunks: firsts(&pages, order)?,
            order,
            lead: 0,
            len,
            backing: Backing::DmaBuf { _buf: buf },
            charge: None,
        })
    }

    /// The same for `device`, which does DMA: attaches it to the dma-buf. These pages have addresses of that
    /// device alone ([`Self::addresses`]), and are to be dropped before its driver goes.
    ///
    /// Sleeps: an exporter may have it wait for a fence, which is one that is sure to come; [`EINTR`] when a
    /// signal comes first. Errors as for [`Self::import`], and what the exporter says to that device;
    /// [`eopnotsupp`] when it does not map whole pages.
    pub(crate) fn attach(device: &Device, what: &Import) -> Result<Self> {
        let raw = core::ptr::from_ref(device).cast_mut().cast();
        let mut buf = DmaBuf {
            raw: Default::default(),
            _device: Some(device.into()),
        };
        // SAFETY: The struct is valid; the type of the device is transparent, and a reference is held until
        // after it is detached. When this fails the struct is as it was, and closing it does nothing.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_attach(what.fd, what.write, raw, &mut buf.raw)
        })?;
        let (offset, len) = what.range(&buf)?;
        let mut pages = KVVec::from_elem(0u64, len.div_ceil(PAGE_SIZE), GFP_KERNEL_ACCOUNT)?;
        // SAFETY: It is attached, and there is room for so many.
        to_result(unsafe {
            bindings::rust_ulp_h_dmabuf_addresses(&buf.raw, offset, pages.as_mut_ptr(), pages.len())
        })?;

        let frames = pages.iter().map(|addr| (addr >> PAGE_SHIFT) as usize);
        let order = chunks::common_order(frames, 0, what.sizes, what.max);
        // INVARIANT: There are no pages; chunk by chunk, the addresses follow each other.
        Ok(Self {
            chunks: KVVec::new(),
            order,
            lead: 0,
            len,
            backing: Backing::Attached {
                addresses: firsts(&pages, order)?,
                _buf: buf,
            },
            charge: None,
        })
    }
}
