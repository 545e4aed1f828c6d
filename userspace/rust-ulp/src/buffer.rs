// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that devices read and write.

use crate::abi;
use crate::device::{DeviceInner, Object, Pd};
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::grant::Grant;
use crate::memory::BufferInfo;
use crate::sys::Mapping;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

bitflags::bitflags! {
    /// Rights over memory, and of a queue pair's peer.
    ///
    /// Header: `RUST_ULP_ACCESS_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The peer may write (RDMA Write).
        const REMOTE_WRITE = abi::ACCESS_REMOTE_WRITE;
        /// The peer may read (RDMA Read).
        const REMOTE_READ = abi::ACCESS_REMOTE_READ;
        /// The peer may do atomic operations.
        const REMOTE_ATOMIC = abi::ACCESS_REMOTE_ATOMIC;
    }
}

/// Which pages a [`Buffer`] is made of.
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

/// How a [`Buffer`] is made; from [`Pd::buffer`].
///
/// Header struct: `rust_ulp_buffer_create`.
#[derive(Clone, Debug)]
#[must_use = "nothing is allocated before `alloc`"]
pub struct BufferBuilder {
    pd: Pd,
    len: usize,
    pages: PageSize,
    node: Option<u16>,
}

impl BufferBuilder {
    pub(crate) fn new(pd: Pd, len: usize) -> Self {
        Self {
            pd,
            len,
            pages: PageSize::Auto,
            node: None,
        }
    }

    /// The size of its pages; [`PageSize::Auto`] unless said.
    pub fn pages(mut self, pages: PageSize) -> Self {
        self.pages = pages;
        self
    }

    /// The NUMA node of its pages, which is preferred: what it has not comes from others, see
    /// [`Buffer::node`]. Any unless said.
    pub fn node(mut self, node: u16) -> Self {
        self.node = Some(node);
        self
    }

    /// Allocates the buffer, zeroed, and maps it.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ERANGE` for a length of 0 or more than
    /// [`Limits::max_buffer`](crate::Limits::max_buffer), or a node that there is not, `ENOMEM` over a
    /// limit on memory, `EMFILE` with too many objects.
    pub fn alloc(self) -> Result<Buffer> {
        let mut arg = abi::BufferCreate {
            pd: self.pd.handle(),
            node: self.node.map_or(abi::NODE_ANY, i32::from),
            length: self.len as u64,
            page_size: match self.pages {
                PageSize::Auto => 0,
                PageSize::Small => 4096,
                PageSize::Huge => 2 << 20,
            },
            ..crate::sys::Command::new()
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

/// What a buffer is made of. Dropped in this order: the object, the mapping, the protection domain.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) object: Object,
    /// None: this process cannot reach it.
    pub(crate) map: Option<Mapping>,
    pub(crate) pd: Pd,
    pub(crate) len: usize,
    pub(crate) page_size: u32,
    pub(crate) node: Option<i32>,
    pub(crate) key_bytes: u64,
    pub(crate) keys: u32,
}

/// Memory for the device, mapped into this process: allocated by the kernel ([`Pd::buffer`]), of this process
/// itself ([`Pd::user_memory`]), or another driver's ([`Pd::dmabuf`]).
///
/// A peer to whom a [`Grant`] of it was given can change it at any time, and so can the device while a
/// receive or read is under way. There is therefore no way to get a slice of it. What there is, copies
/// bytes in and out, or loads and stores numbers atomically; all of it is defined whatever a peer does
/// at the same time. Bytes that a peer writes while they are copied out come out old, new, or some of
/// each; aligned numbers of up to 8 bytes come out whole as far as the device writes them whole.
///
/// What a peer wrote before a completion was reaped, or before a number was loaded with
/// [`Ordering::Acquire`] that the peer wrote after it, is seen by what this thread reads afterwards.
///
/// Cheap to clone; the memory is freed when the last clone, slice and grant is gone *and* the device is
/// done with it. Dropping it with requests in flight is harmless. A forked child does not inherit the
/// mapping: it must not touch the buffer.
///
/// A device puts no more than [`Self::key_bytes`] under one key, so a large buffer has several. Requests of
/// this side do not notice; a [`Grant`] is of one key, and [`Self::grant_all`] makes as many as it takes.
#[derive(Clone, Debug)]
pub struct Buffer {
    inner: Arc<Parts>,
}

fn range_error(offset: u64, len: u64, capacity: u64) -> Error {
    Error::Range {
        what: "range of a buffer",
        offset,
        len,
        capacity,
    }
}

/// Offset and length of `range` in something of `capacity` bytes, if it is within.
fn resolve(range: (Bound<u64>, Bound<u64>), capacity: u64) -> Option<(u64, u64)> {
    let start = match range.0 {
        Bound::Included(n) => n,
        Bound::Excluded(n) => n.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.1 {
        Bound::Included(n) => n.checked_add(1)?,
        Bound::Excluded(n) => n,
        Bound::Unbounded => capacity,
    };
    if end > capacity {
        return None;
    }
    Some((start, end.checked_sub(start)?))
}

fn checked(range: (Bound<u64>, Bound<u64>), what: &'static str, cap: u64) -> Result<(u64, u64)> {
    resolve(range, cap).ok_or_else(|| {
        let offset = match range.0 {
            Bound::Included(n) | Bound::Excluded(n) => n,
            Bound::Unbounded => 0,
        };
        let end = match range.1 {
            Bound::Included(n) => n.saturating_add(1),
            Bound::Excluded(n) => n,
            Bound::Unbounded => cap,
        };
        Error::Range {
            what,
            offset,
            len: end.saturating_sub(offset),
            capacity: cap,
        }
    })
}

pub(crate) fn widen(range: impl RangeBounds<usize>) -> (Bound<u64>, Bound<u64>) {
    let bound = |bound: Bound<&usize>| match bound {
        Bound::Included(n) => Bound::Included(*n as u64),
        Bound::Excluded(n) => Bound::Excluded(*n as u64),
        Bound::Unbounded => Bound::Unbounded,
    };
    (bound(range.start_bound()), bound(range.end_bound()))
}

/// An ordering that a load may have: what a load cannot do becomes `SeqCst`.
fn for_load(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Acquire => order,
        _ => Ordering::SeqCst,
    }
}

/// An ordering that a store may have: what a store cannot do becomes `SeqCst`.
fn for_store(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Release => order,
        _ => Ordering::SeqCst,
    }
}

/// `len` bytes at `offset` as pieces of words: `f(word, first byte in it, bytes of it)`.
fn pieces(
    words: &[AtomicU64],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (&AtomicU64, usize, usize)> {
    let mut left = len;
    let mut skip = offset % 8;
    words
        .get(offset / 8..)
        .unwrap_or_default()
        .iter()
        .map_while(move |word| {
            let (first, n) = (skip, left.min(8 - skip));
            skip = 0;
            left -= n;
            (n != 0).then_some((word, first, n))
        })
}

/// Replaces bytes `first..` of a word with `bytes`, leaving the others to whoever writes them.
fn merge(word: &AtomicU64, first: usize, bytes: &[u8], order: Ordering) {
    let put = |old: u64| {
        let mut new = old.to_ne_bytes();
        for (to, from) in new.iter_mut().skip(first).zip(bytes) {
            *to = *from;
        }
        Some(u64::from_ne_bytes(new))
    };
    let _ = word.fetch_update(order, Ordering::Relaxed, put);
}

pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, mut dst: &mut [u8]) {
    let len = dst.len();
    for (word, first, n) in pieces(words, offset, len) {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        if let Some((head, tail)) = std::mem::take(&mut dst).split_at_mut_checked(n) {
            if let Some(bytes) = word.get(first..).and_then(|b| b.get(..n)) {
                head.copy_from_slice(bytes);
            }
            dst = tail;
        }
    }
}

pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, mut src: &[u8]) {
    let len = src.len();
    for (word, first, n) in pieces(words, offset, len) {
        let Some((head, tail)) = src.split_at_checked(n) else {
            return;
        };
        match <[u8; 8]>::try_from(head) {
            Ok(whole) => word.store(u64::from_ne_bytes(whole), Ordering::Relaxed),
            Err(_) => merge(word, first, head, Ordering::Relaxed),
        }
        src = tail;
    }
}

impl Buffer {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            inner: Arc::new(parts),
        }
    }

    /// Bytes that were asked for.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Never true: there are no empty buffers.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Bytes of its pages, or those that were found contiguous: a power of two from 4,096 to 2,097,152.
    pub fn page_size(&self) -> u32 {
        self.inner.page_size
    }

    /// NUMA node of its first page, if the kernel allocated it. [`Self::query`] tells of any.
    pub fn node(&self) -> Option<i32> {
        self.inner.node
    }

    /// Bytes that one key of the device opens at most. The first key of memory that is not aligned to them
    /// has less.
    pub fn key_bytes(&self) -> u64 {
        self.inner.key_bytes
    }

    /// Keys of the device that it takes.
    pub fn keys(&self) -> u32 {
        self.inner.keys
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Whether this process can read and write it: not where a dma-buf was not mapped.
    pub fn is_mapped(&self) -> bool {
        self.inner.map.is_some()
    }

    /// None of them if it is not mapped.
    fn words(&self) -> &[AtomicU64] {
        self.inner.map.as_ref().map_or(&[], Mapping::words)
    }

    /// Whether this process may access these bytes.
    fn check(&self, offset: usize, len: usize) -> Result<()> {
        if self.inner.map.is_none() {
            return Err(Error::NotMapped);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.inner.len => Ok(()),
            _ => Err(range_error(
                offset as u64,
                len as u64,
                self.inner.len as u64,
            )),
        }
    }

    /// Copies bytes from `offset` on out into `dst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if they are not all within the buffer; then `dst` is as it was. This and everything
    /// that follows is [`Error::NotMapped`] if the buffer is not mapped.
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        self.check(offset, dst.len())?;
        copy_out(self.words(), offset, dst);
        Ok(())
    }

    /// Copies the bytes of `range` out into a new vector.
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
    /// [`Error::Range`] if it does not fit; then nothing is written.
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        self.check(offset, src.len())?;
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
        self.check(offset, len)?;
        let pattern = [value; 8];
        for (word, first, n) in pieces(self.words(), offset, len) {
            if n == 8 {
                word.store(u64::from_ne_bytes(pattern), Ordering::Relaxed);
            } else {
                merge(
                    word,
                    first,
                    pattern.get(..n).unwrap_or_default(),
                    Ordering::Relaxed,
                );
            }
        }
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
        self.check(offset, len)?;
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

    pub(crate) fn local(&self, range: (Bound<u64>, Bound<u64>)) -> Result<(usize, usize)> {
        let (offset, len) = checked(range, "range of a buffer", self.inner.len as u64)?;
        // Both are at most `len`, which is a usize.
        Ok((offset as usize, len as usize))
    }

    /// The word that has the `N` aligned bytes at `offset`, and where in it they start.
    fn word<const N: usize>(&self, offset: usize) -> Result<(&AtomicU64, usize)> {
        self.check(offset, N)?;
        if offset % N != 0 {
            return Err(Error::Misaligned {
                offset: offset as u64,
                align: N as u64,
            });
        }
        match self.words().get(offset / 8) {
            Some(word) => Ok((word, offset % 8)),
            None => Err(range_error(offset as u64, N as u64, self.inner.len as u64)),
        }
    }

    fn load<const N: usize>(&self, offset: usize, order: Ordering) -> Result<[u8; N]> {
        let (word, first) = self.word::<N>(offset)?;
        let mut value = [0; N];
        let word = word.load(for_load(order)).to_ne_bytes();
        for (to, from) in value.iter_mut().zip(word.iter().skip(first)) {
            *to = *from;
        }
        Ok(value)
    }

    /// Loads the byte at `offset`. An ordering that a load cannot have is taken as `SeqCst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`].
    pub fn load_u8(&self, offset: usize, order: Ordering) -> Result<u8> {
        Ok(u8::from_ne_bytes(self.load(offset, order)?))
    }

    /// Loads a number of 2 bytes in host order at `offset`, as [`Self::load_u64`].
    ///
    /// # Errors
    ///
    /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of 2.
    pub fn load_u16(&self, offset: usize, order: Ordering) -> Result<u16> {
        Ok(u16::from_ne_bytes(self.load(offset, order)?))
    }

    /// Loads a number of 4 bytes in host order at `offset`, as [`Self::load_u64`].
    ///
    /// # Errors
    ///
    /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of 4.
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.load(offset, order)?))
    }

    /// Loads a number of 8 bytes in host order at `offset`.
    ///
    /// With [`Ordering::Acquire`], what the peer wrote before it wrote this number is seen by what is
    /// read afterwards. An ordering that a load cannot have is taken as `SeqCst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of 8.
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64> {
        Ok(self.word::<8>(offset)?.0.load(for_load(order)))
    }

    /// Stores a number of 8 bytes in host order at `offset`. An ordering that a store cannot have is
    /// taken as `SeqCst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of 8.
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<()> {
        self.word::<8>(offset)?.0.store(value, for_store(order));
        Ok(())
    }

    /// Stores `new` at `offset` if `current` is there, and returns what was there: atomic with respect
    /// to this process and others on this host. Whether it is with respect to the device's own atomic
    /// operations is up to the device; on software devices it is.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of 8.
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        current: u64,
        new: u64,
        order: Ordering,
    ) -> Result<u64> {
        let (word, _) = self.word::<8>(offset)?;
        let failure = match order {
            Ordering::Relaxed | Ordering::Release => Ordering::Relaxed,
            Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
            _ => Ordering::SeqCst,
        };
        Ok(match word.compare_exchange(current, new, order, failure) {
            Ok(old) | Err(old) => old,
        })
    }

    /// A part of the buffer, to send from or receive into.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<LocalSlice> {
        let (offset, len) = self.local(widen(range))?;
        Ok(LocalSlice {
            buffer: self.clone(),
            offset,
            len,
        })
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`].
    pub fn query(&self) -> Result<BufferInfo> {
        BufferInfo::query(self)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        self.inner.pd.device()
    }
}

/// A part of a [`Buffer`], to send from or receive into. It keeps the buffer.
///
/// Header struct: `rust_ulp_sge`.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    buffer: Buffer,
    offset: usize,
    len: usize,
}

impl LocalSlice {
    /// The buffer that it is of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where in the buffer it starts.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if that is not within it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (offset, len) = checked(widen(range), "part of a local slice", self.len as u64)?;
        Ok(Self {
            buffer: self.buffer.clone(),
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

    /// A part that the caller knows to be within it.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len);
        Self {
            buffer: self.buffer.clone(),
            offset: self.offset + offset,
            len,
        }
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        self.buffer.device()
    }

    pub(crate) fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// As the ABI has it; the caller checked that the length fits.
    pub(crate) fn sge(&self) -> abi::Sge {
        abi::Sge {
            buffer: self.buffer.handle(),
            length: self.len as u32,
            offset: self.offset as u64,
        }
    }
}

/// A peer's memory, as its [`Grant`] names it.
///
/// It is a number that one believes: the peer's device checks it when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    addr: u64,
    len: u64,
    rkey: u32,
    access: Option<Access>,
}

impl RemoteSlice {
    /// Bytes of the wire form.
    pub const WIRE_LEN: usize = 20;

    /// Memory of `len` bytes at `addr` in the peer's terms, under the key `rkey`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it runs over the end of the address space.
    pub fn new(addr: u64, len: u64, rkey: u32) -> Result<Self> {
        if addr.checked_add(len).is_none() {
            return Err(Error::Range {
                what: "remote address",
                offset: addr,
                len,
                capacity: u64::MAX,
            });
        }
        Ok(Self {
            addr,
            len,
            rkey,
            access: None,
        })
    }

    /// The address of its first byte, in the peer's terms.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The rights that the peer said it grants, if it said so. Requests that need others are refused
    /// before they are posted.
    pub fn access(&self) -> Option<Access> {
        self.access
    }

    pub(crate) fn with_access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if that is not within it.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let (offset, len) = checked(range, "part of a remote slice", self.len)?;
        Ok(Self {
            // `addr + self.len` does not overflow, and `offset` is at most `self.len`.
            addr: self.addr.wrapping_add(offset),
            len,
            ..*self
        })
    }

    /// The wire form: address (8 bytes), length (8), key (4), in network order. It does not carry the
    /// rights.
    pub fn to_bytes(&self) -> [u8; Self::WIRE_LEN] {
        let mut bytes = [0; Self::WIRE_LEN];
        let fields = self.addr.to_be_bytes().into_iter();
        let fields = fields.chain(self.len.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(fields.chain(self.rkey.to_be_bytes())) {
            *to = from;
        }
        bytes
    }

    /// Reads the wire form.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it runs over the end of the address space.
    pub fn from_bytes(bytes: &[u8; Self::WIRE_LEN]) -> Result<Self> {
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes.get(range).unwrap_or_default();
            bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b))
        };
        Self::new(number(0..8), number(8..16), number(16..20) as u32)
    }
}

impl fmt::Display for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x} under rkey {:#x}",
            self.len, self.addr, self.rkey
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    proptest! {
        #[test]
        fn copies_what_a_plain_copy_would(
            ops in prop::collection::vec((0usize..64, prop::collection::vec(any::<u8>(), 0..40)), 1..20)
        ) {
            let shared = words(13);
            let mut plain = [0u8; 104];
            for (at, bytes) in ops {
                copy_in(&shared, at, &bytes);
                plain[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut out = vec![0; bytes.len()];
                copy_out(&shared, at, &mut out);
                prop_assert_eq!(&out, &bytes);
            }
            let mut out = [0; 104];
            copy_out(&shared, 0, &mut out);
            prop_assert_eq!(out, plain);
        }

        #[test]
        fn ranges(start in 0u64..20, end in 0u64..20, cap in 0u64..20) {
            let got = resolve((Bound::Included(start), Bound::Excluded(end)), cap);
            let want = (start <= end && end <= cap).then(|| (start, end - start));
            prop_assert_eq!(got, want);
        }

        #[test]
        fn remote_slices_stay_within(addr: u64, len: u64, start: u64, end: u64) {
            if let Ok(all) = RemoteSlice::new(addr, len, 7) {
                prop_assert_eq!(RemoteSlice::from_bytes(&all.to_bytes()).ok(), Some(all));
                if let Ok(part) = all.slice(start..end) {
                    prop_assert!(part.addr >= addr && part.addr + part.len <= addr + len);
                }
            } else {
                prop_assert!(addr.checked_add(len).is_none());
            }
        }
    }

    #[test]
    fn range_ends_do_not_wrap() {
        let all = RemoteSlice::new(8, 8, 1).unwrap();
        assert!(all.slice(..=u64::MAX).is_err());
        assert!(all
            .slice((Bound::Excluded(u64::MAX), Bound::Unbounded))
            .is_err());
        assert!(all.slice(9..).is_err());
        assert_eq!(all.slice(8..).unwrap().len(), 0);
        assert!(RemoteSlice::new(u64::MAX, 1, 1).is_err());
    }
}
