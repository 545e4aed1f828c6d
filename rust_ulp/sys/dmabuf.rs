// SPDX-License-Identifier: GPL-2.0

//! Memory that another driver shares: dma-bufs, as the CPU sees them.
//!
//! That is what a software device needs, which copies by the CPU; and only system memory has pages
//! that can be registered. The kernel's mapping is kept for as long as the pages are used: exporters
//! keep the memory where it is meanwhile.
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
    error::to_result,
    prelude::*, //
};

/// A dma-buf, mapped into the kernel.
///
/// # Invariants
///
/// `raw` was filled by `rust_ulp_h_dmabuf_open`, and is owned.
pub(super) struct DmaBuf {
    raw: bindings::rust_ulp_h_dmabuf,
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
    /// The pages of the dma-buf that the current process has as `fd`: the `len` bytes at `offset`,
    /// or all from there on when `len` is 0; for writing if `write` says so. Sleeps: exporters take
    /// their time, so not to be called with anything held that others wait for.
    ///
    /// Sizes of chunks as for [`Pages::pin`]. At most `max_len` bytes, else [`ERANGE`], as for a
    /// range that is not inside; [`EINVAL`] when `offset` is not a multiple of the page size, or `fd`
    /// no dma-buf; [`EBADF`] when it is nothing; [`EACCES`] when it is not open for that;
    /// [`eopnotsupp`] when the exporter has no such mapping, or it is not one of system memory.
    pub(crate) fn import(
        fd: i32,
        offset: u64,
        len: u64,
        max_len: u64,
        write: bool,
        sizes: u64,
        max: u32,
    ) -> Result<Self> {
        let mut buf = DmaBuf {
            raw: Default::default(),
        };
        // SAFETY: The struct is valid. When this fails it is as it was, and closing it does nothing.
        to_result(unsafe { bindings::rust_ulp_h_dmabuf_open(fd, write, &mut buf.raw) })?;
        if offset & (PAGE_SIZE as u64 - 1) != 0 {
            return Err(EINVAL);
        }
        let room = (buf.raw.size as u64).checked_sub(offset).ok_or(ERANGE)?;
        let len = if len == 0 { room } else { len };
        if len == 0 || len > room || len > max_len {
            return Err(ERANGE);
        }
        let len = usize::try_from(len).map_err(|_| ERANGE)?;
        let offset = usize::try_from(offset).map_err(|_| ERANGE)?;
        let count = len.div_ceil(PAGE_SIZE);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..count {
            let at = offset.saturating_add(index << PAGE_SHIFT);
            // SAFETY: It is mapped, and the place inside: sizes of dma-bufs are whole pages.
            let page = unsafe { bindings::rust_ulp_h_dmabuf_page(&buf.raw, at) };
            let page = NonNull::new(page).ok_or_else(eopnotsupp)?;
            let _ = pages.push_within_capacity(page);
        }

        let order = chunks::common_order(frames(&pages), 0, sizes, max);
        let step = 1usize << (order & 31);
        let mut chunks = KVVec::with_capacity(count.div_ceil(step), GFP_KERNEL_ACCOUNT)?;
        let mut at = 0usize;
        while let Some(page) = pages.get(at) {
            let _ = chunks.push_within_capacity(*page);
            at = at.saturating_add(step);
        }
        // INVARIANT: Chunk by chunk, the pages follow each other.
        Ok(Self {
            chunks,
            order,
            lead: 0,
            len,
            backing: Backing::DmaBuf { _buf: buf },
            charge: None,
        })
    }
}
