// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that devices read and write.

use crate::abi;
use crate::copy::{copy_in, copy_out, fill};
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::params::buffer_len;
use crate::pd::Pd;
use crate::range::{checked, widen};
use crate::sys::{Command, Mapping};
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// The pages that a [`Buffer`] is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageSize {
    /// The module chooses by the length.
    #[default]
    Auto,
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Huge,
}

impl Pd {
    /// Allocates a buffer of `len` bytes, zeroed, as [`BufferBuilder::build`].
    /// [`Self::buffer_builder`] has more to choose.
    pub fn alloc_buffer(&self, len: usize) -> Result<Buffer> {
        self.buffer_builder(len).build()
    }

    /// Returns options for a buffer of `len` bytes: its page size and NUMA node.
    pub fn buffer_builder(&self, len: usize) -> BufferBuilder {
        BufferBuilder {
            pd: self.clone(),
            len,
            pages: PageSize::Auto,
            node: None,
        }
    }
}

/// Options of a [`Buffer`]; from [`Pd::buffer_builder`].
#[doc(alias = "rust_ulp_buffer_create")]
#[derive(Clone, Debug)]
#[must_use = "nothing is allocated before `build`"]
pub struct BufferBuilder {
    pd: Pd,
    len: usize,
    pages: PageSize,
    node: Option<u16>,
}

impl BufferBuilder {
    /// Sets the size of its pages. The default is [`PageSize::Auto`].
    pub fn pages(mut self, pages: PageSize) -> Self {
        self.pages = pages;
        self
    }

    /// Sets the preferred NUMA node of its pages; the kernel takes pages of other nodes if it has
    /// to. [`Buffer::node`] tells. The default is any node.
    pub fn node(mut self, node: u16) -> Self {
        self.node = Some(node);
        self
    }

    /// Allocates the buffer, zeroed, and maps it.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for a length of 0 or more than
    /// [`Limits::max_buffer`](crate::device::Limits::max_buffer), [`Error::Sys`] with `ERANGE` for
    /// more than the device takes or a node that there is not, `ENOMEM` over a limit on memory,
    /// `EMFILE` with too many objects.
    pub fn build(self) -> Result<Buffer> {
        buffer_len(self.len, self.pd.device().limits().max_buffer)?;
        let mut arg = abi::BufferCreate {
            pd: self.pd.handle(),
            node: self.node.map_or(abi::NODE_ANY, i32::from),
            length: self.len as u64,
            page_size: match self.pages {
                PageSize::Auto => 0,
                PageSize::Small => 4096,
                PageSize::Huge => 2 << 20,
            },
            ..Command::new()
        };
        let device = self.pd.device();
        device.call(&mut arg)?;
        let object = Object::new(device, arg.handle);
        let map = Mapping::new(device.file(), arg.mmap_offset, arg.length)
            .map_err(|errno| Error::sys("mmap of a buffer", errno))?;
        Ok(Buffer::new(Parts {
            map: Some(map),
            object,
            pd: self.pd,
            len: self.len,
            page_size: arg.page_size,
            node: Some(arg.node),
            key_bytes: arg.key_bytes,
            keys: arg.keys,
        }))
    }
}

/// The parts of a buffer, dropped in this order: the object, the mapping, the protection domain.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) object: Object,
    /// [`None`] if this process has not mapped it.
    pub(crate) map: Option<Mapping>,
    pub(crate) pd: Pd,
    pub(crate) len: usize,
    pub(crate) page_size: u32,
    pub(crate) node: Option<i32>,
    pub(crate) key_bytes: u64,
    pub(crate) keys: u32,
}

/// Memory for the device, mapped into this process. The kernel allocates it
/// ([`Pd::buffer_builder`]), or it is memory of this process ([`Pd::user_memory_builder`],
/// [`Pd::register_raw`]) or of another driver ([`Pd::dmabuf_builder`]).
///
/// A peer that has a [`Grant`](crate::Grant) can change it at any time, and so can the device while
/// a receive or read is in flight. There is therefore no slice of it. Its functions copy bytes in
/// and out, and load, store and add numbers atomically; their behaviour is defined whatever a peer
/// does at the same time. A copy of bytes that a peer writes has old bytes, new bytes, or some of
/// each. An aligned number of up to 8 bytes is whole as far as the device writes it whole.
///
/// [Order](#order) says which order both sides see.
///
/// Cheap to clone. The kernel frees the memory when the last clone, slice and grant is dropped and
/// the device is done with it. Dropping it with requests in flight is harmless. A forked child must
/// not use the buffer, and does not inherit the mapping, unless it is memory of
/// [`Pd::register_raw`].
///
/// A device puts at most [`Self::key_bytes`] under one key, so a large buffer has several keys.
/// Requests of this side may cross them. A [`Grant`](crate::Grant) is of one key, and
/// [`Self::grant_all`] makes as many grants as it takes.
///
/// # Order
///
/// Rust's memory model orders the threads of a host, the InfiniBand Architecture Specification
/// (Volume 1, 9.5) the requests of a queue pair. What follows holds for devices that are coherent
/// with the processor's caches: the module refuses memory that a device reaches by copies.
///
/// **A peer's Read** of a number that this process stores with [`Ordering::Release`], after the
/// data that the number announces:
///
/// - *Guaranteed:* a Read that the peer posts after the Read of the number has completed returns
///   that data, or newer. The store made the data visible before the number, and the device begins
///   the second Read after the peer had the answer to the first.
/// - *Guaranteed:* a Read that the peer posts after it has received a message that this process
///   posted later than it stored the data. The driver orders the stores before the request.
/// - *Not guaranteed:* number and data in one Read, or in two Reads of which the second was posted
///   before the first had completed. Neither the specification nor PCI Express (reads may pass
///   reads) orders the accesses of a device to memory. The data may be older than the number.
/// - *Not guaranteed:* that data and number stay as they are between the two Reads. Check the number
///   in a third Read, or put a checksum over the data.
/// - *Not guaranteed:* the number as a whole, though devices read an aligned one of up to 8 bytes so.
///   The specification promises it for atomic operations only.
///
/// On x86-64 devices see stores in the order of the program. On arm64 [`Ordering::Release`] orders
/// them for the observers of the inner shareable domain, to which Linux maps memory. A coherent
/// device outside of that domain needs the barrier of the kernel's `dma_wmb()`, which this crate does
/// not have; the second guarantee holds there too, since drivers have it.
///
/// **This side's load** with [`Ordering::Acquire`] of a number that a peer changes:
///
/// - *Guaranteed:* after the completion of a receive, the peer's earlier Writes of the same queue pair
///   are visible.
/// - *Guaranteed by the specification:* the same after an atomic operation of the peer has changed the
///   number.
/// - *Not guaranteed:* the same for a number that a Write of its own changes, after the Writes that it
///   announces. An adapter with relaxed ordering places Writes in any order, two to one address, too.
///   Linux has mlx5 relax every key of the kernel, so those of the module are relaxed as well.
/// - *Not guaranteed:* the order of the bytes of one Write.
///
/// So announce data by a message: a Write with immediate data, or a Send. The examples do so.
///
/// ```no_run
/// use rust_ulp::error::Result;
/// use rust_ulp::qp::Rc;
/// use rust_ulp::wr::Read;
/// use rust_ulp::{Buffer, Cq, Qp, RemoteSlice};
/// use std::{sync::atomic::Ordering, time::Duration};
///
/// /// Publishes a record behind its version.
/// fn publish(buf: &Buffer, record: &[u8], version: u64) -> Result<()> {
///     buf.write_at(8, record)?;
///     buf.store_u64(0, version, Ordering::Release)
/// }
///
/// /// The peer's side: reads the version, then the record.
/// fn fetch(qp: &Qp<Rc>, cq: &Cq, theirs: RemoteSlice, buf: &Buffer) -> Result<u64> {
///     let len = theirs.len() as usize;
///     qp.post(Read::new(theirs.slice(..8)?, buf.slice(..8)?))?;
///     cq.wait(Duration::from_secs(30))?.check()?; // the second Read waits for it
///     qp.post(Read::new(theirs.slice(8..)?, buf.slice(8..len)?))?;
///     cq.wait(Duration::from_secs(30))?.check()?;
///     buf.load_u64(0, Ordering::Acquire)
/// }
/// ```
///
/// [`Ordering::Acquire`]: std::sync::atomic::Ordering::Acquire
/// [`Ordering::Release`]: std::sync::atomic::Ordering::Release
#[derive(Clone, Debug)]
pub struct Buffer {
    inner: Arc<Parts>,
}

impl Buffer {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            inner: Arc::new(parts),
        }
    }

    /// Returns its length in bytes, as requested.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns false: no buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Returns the bytes of its pages, or of the contiguous memory that it was found to have: a
    /// power of two from 4,096 to 2,097,152.
    pub fn page_size(&self) -> u32 {
        self.inner.page_size
    }

    /// Returns the NUMA node of its first page, if the kernel allocated it. [`Self::query`] tells
    /// the node of any buffer.
    pub fn node(&self) -> Option<i32> {
        self.inner.node
    }

    /// Returns how many bytes one key of the device opens at most. The first key of unaligned
    /// memory opens fewer.
    pub fn key_bytes(&self) -> u64 {
        self.inner.key_bytes
    }

    /// Returns how many keys of the device it takes.
    pub fn keys(&self) -> u32 {
        self.inner.keys
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Returns whether this process has mapped it. Only a dma-buf may not be mapped.
    pub fn is_mapped(&self) -> bool {
        self.inner.map.is_some()
    }

    /// Returns the address of its first byte, or [`None`] if it is not mapped.
    ///
    /// The address is good for as long as the buffer, a clone, a slice or a grant of it exists.
    /// Peers and devices may change the memory at any time: never make a reference to it that is
    /// not one to atomics. Accesses that race with those of this type have to be atomic and of 8
    /// aligned bytes.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        self.inner.map.as_ref().map(Mapping::base)
    }

    /// Returns its memory as words; none if it is not mapped.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.inner.map.as_ref().map_or(&[], Mapping::words)
    }

    pub(crate) fn range_error(&self, offset: usize, len: usize) -> Error {
        Error::Range {
            what: "range of a buffer",
            offset: offset as u64,
            len: len as u64,
            capacity: self.inner.len as u64,
        }
    }

    /// Checks that this process may access these bytes.
    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<()> {
        if self.inner.map.is_none() {
            return Err(Error::NotMapped);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.inner.len => Ok(()),
            _ => Err(self.range_error(offset, len)),
        }
    }

    /// Checks that this process may write these bytes.
    pub(crate) fn check_write(&self, offset: usize, len: usize) -> Result<()> {
        self.check(offset, len)?;
        match &self.inner.map {
            Some(map) if !map.is_writable() => Err(Error::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Copies the bytes from `offset` on into `dst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if they are not all within the buffer; then `dst` is unchanged. This
    /// function and the following ones fail with [`Error::NotMapped`] if the buffer is not mapped.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        self.check(offset, dst.len())?;
        copy_out(self.words(), offset, dst);
        Ok(())
    }

    /// Copies the bytes of `range` into a new vector.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it is not within the buffer.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>> {
        let (offset, len) = self.local(widen(range))?;
        self.check(offset, len)?;
        let mut bytes = vec![0; len];
        copy_out(self.words(), offset, &mut bytes);
        Ok(bytes)
    }

    /// Copies `src` into the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it does not fit; then nothing is written. This function and every other
    /// one that writes fail with [`Error::ReadOnly`] if the buffer is mapped for reading only.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        self.check_write(offset, src.len())?;
        copy_in(self.words(), offset, src);
        Ok(())
    }

    /// Sets all bytes of `range` to `value`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it is not within the buffer.
    pub fn fill(&self, range: impl RangeBounds<usize>, value: u8) -> Result<()> {
        let (offset, len) = self.local(widen(range))?;
        self.check_write(offset, len)?;
        fill(self.words(), offset, len, value);
        Ok(())
    }

    /// Copies `len` bytes from `src`, from `src_offset` on, to `offset`.
    ///
    /// The two may be the same buffer, and the ranges may overlap.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if either range is not within its buffer; then nothing is written.
    pub fn copy_from(
        &self,
        offset: usize,
        src: &Buffer,
        src_offset: usize,
        len: usize,
    ) -> Result<()> {
        self.check_write(offset, len)?;
        src.check(src_offset, len)?;
        let mut chunk = [0u8; 1024];
        let backwards = Arc::ptr_eq(&self.inner, &src.inner) && offset > src_offset;
        let mut done = 0;
        while done < len {
            let n = chunk.len().min(len - done);
            let at = if backwards { len - done - n } else { done };
            if let Some(chunk) = chunk.get_mut(..n) {
                copy_out(src.words(), src_offset + at, chunk);
                copy_in(self.words(), offset + at, chunk);
            }
            done += n;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn local(&self, range: (Bound<u64>, Bound<u64>)) -> Result<(usize, usize)> {
        let (offset, len) = checked(range, "range of a buffer", self.inner.len as u64)?;
        // Both are at most `len`, which is a usize.
        Ok((offset as usize, len as usize))
    }

    /// Returns a part of the buffer, to send from or receive into.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it is not within the buffer.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice<'_>> {
        let (offset, len) = self.local(widen(range))?;
        Ok(LocalSlice {
            buffer: self,
            offset,
            len,
        })
    }

    /// Returns whether this process is a forked child of the one that made the buffer: then the
    /// caller must not use it, and its memory is not mapped here, unless it is memory of
    /// [`Pd::register_raw`]. Takes no lock.
    pub fn is_inherited(&self) -> bool {
        self.device().file().is_inherited()
    }

    #[inline]
    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    #[inline]
    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.inner.object.device
    }
}

/// A part of a [`Buffer`], to send from or receive into. It borrows the buffer.
#[doc(alias = "rust_ulp_sge")]
#[derive(Clone, Copy, Debug)]
pub struct LocalSlice<'b> {
    buffer: &'b Buffer,
    offset: usize,
    len: usize,
}

impl<'b> LocalSlice<'b> {
    /// Returns its buffer.
    pub fn buffer(&self) -> &'b Buffer {
        self.buffer
    }

    /// Returns its offset in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of it.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if that is not within it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (offset, len) = checked(widen(range), "part of a local slice", self.len as u64)?;
        Ok(Self {
            buffer: self.buffer,
            // Both are at most `self.len`, and all of `self` is within the buffer.
            offset: self.offset + offset as usize,
            len: len as usize,
        })
    }

    /// Copies its bytes out into a new vector.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] if its buffer is not mapped.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.buffer.read_at(self.offset, &mut bytes)?;
        Ok(bytes)
    }

    #[inline]
    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        self.buffer.device()
    }

    /// Returns it as the ABI has it. The caller checked that the length fits.
    #[inline]
    pub(crate) fn sge(&self) -> abi::Sge {
        abi::Sge {
            buffer: self.buffer.handle(),
            length: self.len as u32,
            offset: self.offset as u64,
        }
    }
}
