// SPDX-License-Identifier: GPL-2.0

//! Pages that kernel, user space and devices share.
//!
//! They are in chunks of the same size. Allocated ones are zeroed, and charged to the memory cgroup
//! of the caller. A mapping holds them, with their charge, for as long as any part of it is mapped.
//!
//! User space and devices write to these pages at any time: no reference to their content is ever
//! made here, only volatile and atomic accesses by raw pointer.
//!
//! C header: [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use super::{
    area::Area,
    charge::PinnedCharge,
    dmabuf::{
        DmaBuf,
        Import, //
    },
    pinned::{
        self,
        Pinned, //
    }, //
};
use crate::{
    bindings,
    logic::chunks, //
};
use core::ptr::NonNull;
use kernel::{
    device::Device,
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Release, //
            },
            Atomic, //
        },
        Arc,
        ArcBorrow, //
    },
    transmute::AsBytes, //
};

pub(crate) use kernel::page::{PAGE_SHIFT, PAGE_SIZE};

/// The largest chunk that the page allocator has: `2^10` pages.
const MAX_ORDER: u32 = 10;

/// What an allocation does when there is no memory at once. It kills nobody for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocPolicy {
    /// Fails.
    None,
    /// Frees memory, and moves what is in use together.
    Reclaim,
}

/// Shared pages.
///
/// A position is an offset plus `lead`: chunks begin at multiples of their size.
///
/// # Invariants
///
/// - `order` is at most [`MAX_ORDER`], `lead` is less than a chunk has bytes.
/// - The `len` bytes from position `lead` on lie in the chunks: those at position `p` in number
///   `p >> (PAGE_SHIFT + order)` of `chunks`, whose `2^order` pages follow each other.
/// - The pages with those bytes are held by `backing`, and have addresses in the kernel's linear
///   mapping. But those of [`Backing::Attached`] are none of the kernel's: `chunks` is empty, and
///   what a device has for each chunk stands there.
pub(crate) struct Pages {
    chunks: KVVec<NonNull<kernel::bindings::page>>,
    order: u32,
    lead: usize,
    len: usize,
    backing: Backing,
    charge: Option<PinnedCharge>,
}

/// What holds the pages.
enum Backing {
    /// Each chunk is an allocation, owned.
    Allocated,
    /// The pages are pinned, and may be written to.
    Pinned { write: bool },
    /// The pages are another driver's,
    DmaBuf { _buf: DmaBuf },
    /// and only a device knows them, by these addresses of each chunk.
    Attached { addresses: KVVec<u64>, _buf: DmaBuf },
}

// SAFETY: The pages are owned, and their content is only accessed as something that others change.
unsafe impl Send for Pages {}
// SAFETY: As above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates at least `len` bytes in chunks of `2^order` pages, for which the current process
    /// pays if `charge` says so. Sleeps.
    ///
    /// `node` is the NUMA node to prefer. [`ENOMEM`] when there is not enough, or not in such
    /// chunks, or it may not have as much; [`EINVAL`] when `len` is zero or `node` is not online, [`EINTR`]
    /// when the process is killed during the allocation.
    pub(crate) fn new(
        len: usize,
        order: u32,
        node: Option<i32>,
        effort: AllocPolicy,
        charge: bool,
    ) -> Result<Self> {
        if len == 0 || order > MAX_ORDER || !node.is_none_or(node_is_online) {
            return Err(EINVAL);
        }
        let shift = (PAGE_SHIFT as u32).wrapping_add(order);
        let chunk = 1usize << (shift & 63);
        let count = len.checked_add(chunk.wrapping_sub(1)).ok_or(ENOMEM)? >> (shift & 63);
        let charge = if charge {
            Some(PinnedCharge::charge(count << (order & 63))?)
        } else {
            None
        };
        let mut pages = Self {
            chunks: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
            order,
            lead: 0,
            // INVARIANT: No chunks yet.
            len: 0,
            backing: Backing::Allocated,
            charge,
        };
        let quick = effort == AllocPolicy::None;
        for _ in 0..count {
            // SAFETY: The allocator has this order. The node is -1, which is no preference, or was
            // online above. A node that goes offline keeps its lists of zones:
            // `try_offline_node()`, mm/memory_hotplug.c:2186.
            let page =
                unsafe { bindings::rust_ulp_h_alloc_pages(node.unwrap_or(-1), order, quick) };
            let page = NonNull::new(page).ok_or(ENOMEM)?;
            // INVARIANT: The capacity is there, and the length follows.
            if pages.chunks.push(page, GFP_KERNEL_ACCOUNT).is_err() {
                // SAFETY: Just allocated, and nobody knows of it.
                unsafe { bindings::rust_ulp_h_free_pages(page.as_ptr(), order) };
                return Err(ENOMEM);
            }
            pages.len = pages.len.wrapping_add(chunk);
            if super::task::is_killed() {
                return Err(EINTR);
            }
        }
        Ok(pages)
    }

    /// Pins the `len` bytes at `addr` of the current process, for reading, and for writing if
    /// `write` says so, and has it pay for them. Sleeps, and faults pages in: not to be called with
    /// anything held that others wait for.
    ///
    /// Chunks are as large as memory has them ([`chunks::common_order`]), up to `2^max` pages, of the sizes whose bit is set in
    /// `sizes`.
    ///
    /// [`EFAULT`] for what is not mapped, or not for that; [`EOPNOTSUPP`](super::errno::eopnotsupp)
    /// for what cannot stay; [`ENOMEM`]; [`EINTR`] when the process is being killed.
    pub(crate) fn pin(addr: usize, len: usize, write: bool, sizes: u64, max: u32) -> Result<Self> {
        let within = addr & (PAGE_SIZE - 1);
        let start = addr.wrapping_sub(within);
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(EFAULT);
        }
        let count = within.saturating_add(len).div_ceil(PAGE_SIZE);
        let charge = PinnedCharge::charge(count)?;
        let pinned = Pinned::new(start, count, write)?;

        let frames = pinned::frames(pinned.pages());
        let order = chunks::common_order(frames, start >> PAGE_SHIFT, sizes, max);
        let chunk = PAGE_SIZE << (order & 31);
        let lead = addr & chunk.wrapping_sub(1);
        let in_chunk = (lead >> PAGE_SHIFT) as isize;
        let step = 1usize << (order & 31);
        let total = lead.saturating_add(len).div_ceil(chunk);
        let mut chunks = KVVec::with_capacity(total, GFP_KERNEL_ACCOUNT)?;
        let mut at = 0usize;
        while let Some(page) = pinned.pages().get(at) {
            // Where the chunk would begin: for the first one, that may be a page before ours.
            let back = if at == 0 { in_chunk } else { 0 };
            let first = page.as_ptr().wrapping_offset(back.wrapping_neg());
            let _ = chunks.push_within_capacity(NonNull::new(first).ok_or(EFAULT)?);
            at = at
                .saturating_add(step)
                .saturating_sub(usize::try_from(back).unwrap_or(0));
        }
        // What was pinned is the chunks' from here on.
        pinned.into_raw();
        // INVARIANT: Chunk by chunk, the pages follow each other.
        Ok(Self {
            chunks,
            order,
            lead,
            len,
            backing: Backing::Pinned { write },
            charge: Some(charge),
        })
    }

    /// The pages of a dma-buf. Sleeps: exporters take their time, so not to be called with anything
    /// held that others wait for.
    ///
    /// [`ERANGE`] for a range that is not inside, or more than `max_len`; [`EINVAL`] when it does not
    /// begin with a page, or `fd` is no dma-buf; [`EBADF`] when it is nothing; [`EACCES`] when it is not
    /// open for that; [`EOPNOTSUPP`](super::errno::eopnotsupp) when the exporter has no such mapping, or it is not one of system
    /// memory.
    pub(crate) fn import(what: &Import) -> Result<Self> {
        let buf = DmaBuf::open(what)?;
        let (offset, len) = what.range(&buf)?;
        let pages = buf.pages(offset, len)?;
        let order = chunks::common_order(pinned::frames(&pages), 0, what.sizes, what.max);
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
    /// [`EOPNOTSUPP`](super::errno::eopnotsupp) when it does not map whole pages.
    pub(crate) fn attach(device: &Device, what: &Import) -> Result<Self> {
        let buf = DmaBuf::attach(device, what)?;
        let (offset, len) = what.range(&buf)?;
        let pages = buf.addresses(offset, len)?;
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

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that a process pays for.
    pub(crate) fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, |charge| charge.bytes())
    }

    /// Whether they can be mapped.
    pub(crate) fn can_be_mapped(&self) -> bool {
        matches!(self.backing, Backing::Allocated)
    }

    /// Bytes of one chunk, a power of two.
    pub(crate) fn chunk_size(&self) -> usize {
        1usize << self.chunk_shift()
    }

    fn chunk_shift(&self) -> u32 {
        // By the type invariant far below 64.
        (PAGE_SHIFT as u32).wrapping_add(self.order) & 63
    }

    /// Position of the first byte: how far it is from the beginning of its chunk.
    pub(crate) fn lead(&self) -> usize {
        self.lead
    }

    /// In how many chunks the `length` bytes at `offset` lie.
    ///
    /// [`ERANGE`] when there are no bytes, or not all inside.
    pub(crate) fn chunks_of(&self, offset: usize, length: usize) -> Result<usize> {
        let end = offset.checked_add(length).ok_or(ERANGE)?;
        if length == 0 || end > self.len {
            return Err(ERANGE);
        }
        let first = self.lead.wrapping_add(offset) >> self.chunk_shift();
        let last = self.lead.wrapping_add(end).wrapping_sub(1) >> self.chunk_shift();
        Ok(last.wrapping_sub(first).wrapping_add(1))
    }

    /// The `length` bytes at `offset`, chunk by chunk: the page that a part begins in, where it
    /// does, and its bytes. Ends early where they are not inside.
    pub(crate) fn extents(
        &self,
        offset: usize,
        length: usize,
    ) -> impl Iterator<Item = (NonNull<kernel::bindings::page>, usize, usize)> + '_ {
        self.parts(offset, length)
            .map_while(|(chunk, within, bytes)| {
                let first = self.chunks.get(chunk)?;
                let page = first.as_ptr().wrapping_add(within >> PAGE_SHIFT);
                Some((NonNull::new(page)?, within & (PAGE_SIZE - 1), bytes))
            })
    }

    /// The same of pages that were mapped for a device: its address of a part, and its bytes; [`None`]
    /// for others.
    pub(crate) fn addresses(
        &self,
        offset: usize,
        length: usize,
    ) -> Option<impl Iterator<Item = (u64, usize)> + '_> {
        let Backing::Attached { addresses, .. } = &self.backing else {
            return None;
        };
        let part = move |(chunk, within, bytes): (usize, usize, usize)| {
            let first: &u64 = addresses.get(chunk)?;
            Some((first.wrapping_add(within as u64), bytes))
        };
        Some(self.parts(offset, length).map_while(part))
    }

    /// The `length` bytes at `offset`, chunk by chunk: its number, where in it they begin, and how many
    /// there are. Ends where they are not inside.
    fn parts(
        &self,
        offset: usize,
        length: usize,
    ) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let mut at = self.lead.saturating_add(offset);
        let end = at
            .saturating_add(length)
            .min(self.lead.saturating_add(self.len));
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let within = at & self.chunk_size().wrapping_sub(1);
            let bytes = self
                .chunk_size()
                .saturating_sub(within)
                .min(end.saturating_sub(at));
            let chunk = at >> self.chunk_shift();
            at = at.saturating_add(bytes);
            Some((chunk, within, bytes))
        })
    }

    /// NUMA node of the first page.
    pub(crate) fn node(&self) -> i32 {
        match self.extents(0, 1).next() {
            // SAFETY: By the type invariant it is a page.
            Some((page, _, _)) => unsafe { bindings::rust_ulp_h_page_nid(page.as_ptr()) },
            None => -1,
        }
    }

    /// Maps `area.len()` bytes from `offset`, a multiple of the page size, on.
    ///
    /// Returns [`EINVAL`] when that is not inside, the area is private, or the pages are not allocated
    /// ones, [`EPERM`] when it is executable.
    pub(crate) fn map(self: &Arc<Self>, area: &Area<'_>, offset: usize) -> Result {
        let end = offset.checked_add(area.len()).ok_or(EINVAL)?;
        if !self.can_be_mapped()
            || end > self.len
            || offset & (PAGE_SIZE - 1) != 0
            || !area.is_shared()
        {
            return Err(EINVAL);
        }
        let vma = area.vma();
        vma.try_clear_mayexec().map_err(|_| EPERM)?;
        vma.set_dontcopy();
        vma.set_dontexpand();
        vma.set_mixedmap();
        let mapping = Mapping::new(self.clone(), area.page_offset(), offset >> PAGE_SHIFT)?;

        let mut addr = vma.start();
        for (page, _, bytes) in self.extents(offset, area.len()) {
            // SAFETY: The bytes are ours, and whole pages, since chunks are and `offset` is; pages
            // of a chunk follow each other in the memory map. The area is being set up, has room
            // for them at `addr`, and may mix pages.
            to_result(unsafe {
                bindings::rust_ulp_h_map_pages(
                    vma.as_ptr(),
                    addr,
                    page.as_ptr(),
                    bytes >> PAGE_SHIFT,
                )
            })?;
            addr = addr.wrapping_add(bytes);
        }
        // When mapping fails before, the kernel does not call the area's functions.
        mapping.give_to(area);
        Ok(())
    }

    /// The kernel's address of the `len` bytes at `offset`, which must not cross a chunk.
    fn address(&self, offset: usize, len: usize) -> Result<NonNull<u8>> {
        let (page, within, bytes) = self.extents(offset, len).next().ok_or(ERANGE)?;
        if bytes < len {
            return Err(ERANGE);
        }
        // SAFETY: By the type invariant it is a page with an address.
        let base = unsafe { bindings::rust_ulp_h_page_address(page.as_ptr()) }.cast::<u8>();
        NonNull::new(base.wrapping_add(within)).ok_or(EFAULT)
    }

    /// Writes `value` at `offset`, a multiple of 8 like its size; not atomic as a whole.
    ///
    /// [`ERANGE`] when it is not inside one chunk. Any context.
    pub(crate) fn write<T: AsBytes>(&self, offset: usize, value: &T) -> Result {
        let bytes = value.as_bytes();
        if (offset | bytes.len()) & 7 != 0 {
            return Err(EINVAL);
        }
        let mut to = self.address(offset, bytes.len())?.as_ptr().cast::<u64>();
        for word in bytes.chunks_exact(8) {
            let mut part = [0u8; 8];
            part.copy_from_slice(word);
            // SAFETY: Inside the chunk, by the check in `address`, and aligned, by the one above.
            unsafe { to.write_volatile(u64::from_ne_bytes(part)) };
            to = to.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `buf.len()` bytes at `offset` out. Others may write there during the copy. Any context.
    pub(crate) fn read(&self, offset: usize, buf: &mut [u8]) -> Result {
        let mut at = offset;
        for byte in buf {
            let from = self.address(at, 1)?;
            // SAFETY: One byte inside the chunk.
            *byte = unsafe { from.as_ptr().read_volatile() };
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// The 32-bit word at `offset` as an atomic.
    fn atomic(&self, offset: usize) -> Result<&Atomic<u32>> {
        if offset & 3 != 0 {
            return Err(EINVAL);
        }
        let ptr = self.address(offset, 4)?.as_ptr().cast::<u32>();
        // SAFETY: Aligned and inside a chunk that lives as long as `self`; the kernel accesses
        // this word through this function only, and what user space does is not Rust's to order.
        Ok(unsafe { Atomic::from_ptr(ptr) })
    }

    /// Loads the 32-bit word at `offset` with acquire ordering. Any context.
    pub(crate) fn load_acquire(&self, offset: usize) -> Result<u32> {
        Ok(self.atomic(offset)?.load(Acquire))
    }

    /// Stores the 32-bit word at `offset` with release ordering. Any context.
    pub(crate) fn store_release(&self, offset: usize, value: u32) -> Result {
        self.atomic(offset)?.store(value, Release);
        Ok(())
    }
}

/// The pages of a mapping. Each area that a part of it lies in holds a reference.
#[repr(C)]
struct Mapping {
    functions: bindings::rust_ulp_h_mapping,
    pages: Arc<Pages>,
    /// The offset in the file, in pages, of the first of the pages.
    origin: usize,
}

impl Mapping {
    /// Makes a mapping of `pages`, whose page number `first` is at `page_offset` in the file.
    fn new(pages: Arc<Pages>, page_offset: usize, first: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                functions: bindings::rust_ulp_h_mapping {
                    page: Some(Self::page),
                    get: Some(Self::get),
                    put: Some(Self::put),
                },
                pages,
                origin: page_offset.wrapping_sub(first),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Gives this reference to `area`, which is being made.
    fn give_to(self: Arc<Self>, area: &Area<'_>) {
        let mapping = Arc::into_raw(self).cast_mut();
        // SAFETY: The area is valid, and nobody else knows it. The struct begins with the functions.
        unsafe { bindings::rust_ulp_h_vma_set_mapping(area.vma().as_ptr(), mapping.cast()) };
    }

    /// Returns the page at `page_offset` in the file.
    ///
    /// # Safety
    ///
    /// An area holds a reference to `mapping`.
    unsafe extern "C" fn page(
        mapping: *const c_void,
        page_offset: usize,
    ) -> *mut kernel::bindings::page {
        // SAFETY: By the requirement; the pointer came from `give_to`.
        let mapping = unsafe { &*mapping.cast::<Self>() };
        let number = page_offset.wrapping_sub(mapping.origin);
        let page = number
            .checked_mul(PAGE_SIZE)
            .and_then(|offset| mapping.pages.extents(offset, 1).next());
        page.map_or(core::ptr::null_mut(), |(page, _, _)| page.as_ptr())
    }

    /// Takes a reference for another area.
    ///
    /// # Safety
    ///
    /// As for [`Self::page`].
    unsafe extern "C" fn get(mapping: *const c_void) {
        // SAFETY: By the requirement; the pointer came from `give_to`.
        let mapping = unsafe { ArcBorrow::from_raw(mapping.cast::<Self>()) };
        let _ = Arc::into_raw(Arc::from(mapping));
    }

    /// Drops the reference of an area.
    ///
    /// # Safety
    ///
    /// As for [`Self::page`]; the area does so no longer.
    unsafe extern "C" fn put(mapping: *const c_void) {
        // SAFETY: By the requirement; the pointer came from `give_to` or `get`.
        drop(unsafe { Arc::from_raw(mapping.cast::<Self>()) });
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

impl Drop for Pages {
    fn drop(&mut self) {
        match self.backing {
            Backing::Allocated => {
                for page in self.chunks.iter() {
                    // SAFETY: The allocation is ours. No mapping is left; whoever else looks at a page
                    // holds a reference to it.
                    unsafe { bindings::rust_ulp_h_free_pages(page.as_ptr(), self.order) };
                }
            }
            Backing::Pinned { write } => {
                // SAFETY: By the type invariant they are pinned, and follow each other in each chunk.
                unsafe { pinned::unpin(self.extents(0, self.len), write) };
            }
            Backing::DmaBuf { .. } | Backing::Attached { .. } => (),
        }
    }
}

/// Whether `node` is a NUMA node that is online.
pub(crate) fn node_is_online(node: i32) -> bool {
    // SAFETY: Any number may be asked for.
    unsafe { bindings::rust_ulp_h_node_online(node) }
}

#[cfg(not(ulp_sample))]
#[kunit_tests(rust_ulp_pages)]
mod tests {
    use super::*;

    #[test]
    fn are_zeroed_and_rounded_up() -> Result {
        for order in [0, 3, 9] {
            let pages = Pages::new(5000, order, None, AllocPolicy::Reclaim, false)?;
            assert_eq!(pages.len() % pages.chunk_size(), 0);
            assert!(pages.len() >= 5000);
            let mut buf = [1u8; 64];
            pages.read(4990, &mut buf)?;
            assert_eq!(buf, [0; 64]);
        }
        Ok(())
    }

    #[test]
    fn refuse_what_is_outside() -> Result {
        let pages = Pages::new(2 * PAGE_SIZE, 0, None, AllocPolicy::Reclaim, false)?;
        assert_eq!(
            Pages::new(0, 0, None, AllocPolicy::None, false).err(),
            Some(EINVAL)
        );
        assert_eq!(
            Pages::new(1, 11, None, AllocPolicy::None, false).err(),
            Some(EINVAL)
        );
        assert_eq!(
            Pages::new(1, 0, Some(i32::MAX), AllocPolicy::None, false).err(),
            Some(EINVAL)
        );
        // Not across two chunks, not beyond the last, not at an odd place.
        assert_eq!(pages.write(PAGE_SIZE - 8, &[1u64, 2]).err(), Some(ERANGE));
        assert_eq!(pages.write(2 * PAGE_SIZE, &1u64).err(), Some(ERANGE));
        assert_eq!(pages.write(4, &1u64).err(), Some(EINVAL));
        assert_eq!(pages.write(usize::MAX - 7, &1u64).err(), Some(ERANGE));
        assert_eq!(pages.load_acquire(2 * PAGE_SIZE).err(), Some(ERANGE));
        assert_eq!(pages.load_acquire(2).err(), Some(EINVAL));
        assert_eq!(
            pages.read(2 * PAGE_SIZE - 1, &mut [0; 2]).err(),
            Some(ERANGE)
        );
        Ok(())
    }

    #[test]
    fn keep_what_is_written() -> Result {
        let pages = Pages::new(3 * PAGE_SIZE, 0, None, AllocPolicy::Reclaim, false)?;
        pages.write(PAGE_SIZE + 16, &[0x0123_4567_89ab_cdefu64, 42])?;
        assert_eq!(pages.load_acquire(PAGE_SIZE + 24)?, 42);
        pages.store_release(PAGE_SIZE + 24, 43)?;
        let mut buf = [0; 8];
        pages.read(PAGE_SIZE + 24, &mut buf)?;
        assert_eq!(u64::from_ne_bytes(buf), 43);
        Ok(())
    }

    #[test]
    fn know_which_chunks_a_range_has() -> Result {
        let pages = Pages::new(4 * PAGE_SIZE, 0, None, AllocPolicy::Reclaim, false)?;
        assert_eq!(pages.chunks_of(0, 1)?, 1);
        assert_eq!(pages.chunks_of(PAGE_SIZE - 1, 2)?, 2);
        assert_eq!(pages.chunks_of(PAGE_SIZE, 3 * PAGE_SIZE)?, 3);
        assert_eq!(pages.chunks_of(0, 0).err(), Some(ERANGE));
        assert_eq!(pages.chunks_of(1, 4 * PAGE_SIZE).err(), Some(ERANGE));
        assert_eq!(pages.chunks_of(usize::MAX, 2).err(), Some(ERANGE));
        Ok(())
    }
}
