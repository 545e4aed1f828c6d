// SPDX-License-Identifier: GPL-2.0

//! Pages that the kernel, user space and devices share.
//!
//! The pages are in chunks of one size. Allocated pages are zeroed, and charged to the memory
//! cgroup of the caller. A mapping keeps the pages and their charge while any part of it is mapped.
//!
//! User space and devices write to these pages at any time. This module therefore makes no
//! reference to their contents, and accesses them by raw pointers, volatile or atomic.
//!
//! C header: [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use super::{
    area::Area,
    charge::PinnedCharge,
    dmabuf::{
        Bound,
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
use core::{
    ptr::NonNull, //
};
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

/// The order of the largest chunk of the page allocator: `2^10` pages.
const MAX_ORDER: u32 = 10;

/// The effort of an allocation when no memory is free. No policy invokes the OOM killer of the
/// cgroup or of the machine.
///
/// ```
/// fn large_if_possible(len: usize) -> Result<Pages> {
///     Pages::new(len, 9, None, AllocPolicy::None, true)
///         .or_else(|_| Pages::new(len, 0, None, AllocPolicy::Reclaim, true))
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocPolicy {
    /// Fails.
    None,
    /// Reclaims and compacts memory.
    Reclaim,
}

impl AllocPolicy {
    /// Returns the flags for the allocation of zeroed chunks of `2^order` pages: `GFP_USER`, since
    /// user space maps them, and charged to the memory cgroup.
    fn gfp(self, order: u32) -> u32 {
        use kernel::bindings::{
            GFP_KERNEL_ACCOUNT,
            __GFP_NOWARN,
            __GFP_ZERO,
            ___GFP_COMP_BIT,
            ___GFP_HARDWALL_BIT,
            ___GFP_NORETRY_BIT,
            ___GFP_RETRY_MAYFAIL_BIT, //
        };
        let effort = match self {
            Self::None => ___GFP_NORETRY_BIT,
            Self::Reclaim => ___GFP_RETRY_MAYFAIL_BIT,
        };
        let compound = if order > 0 { 1 << ___GFP_COMP_BIT } else { 0 };
        let user = GFP_KERNEL_ACCOUNT | 1 << ___GFP_HARDWALL_BIT;
        user | __GFP_ZERO | __GFP_NOWARN | compound | 1 << effort
    }
}

/// Shared pages.
///
/// A position is an offset plus `lead`: chunks begin at multiples of their size.
///
/// ```
/// fn hello() -> Result<Arc<Pages>> {
///     let pages = Arc::new(Pages::new(4096, 0, None, AllocPolicy::Reclaim, false)?, GFP_KERNEL)?;
///     pages.write(0, b"hello..\0")?;
///     pages.word(8)?.store_release(1);
///     Ok(pages)
/// }
/// ```
///
/// # Invariants
///
/// - `order` is at most [`MAX_ORDER`], and `lead` is less than the size of a chunk.
/// - The `len` bytes from position `lead` on are in the chunks. The byte at position `p` is in
///   chunk `p >> (PAGE_SHIFT + order)`, whose `2^order` pages are contiguous.
/// - `backing` keeps the pages with those bytes, which are in the kernel's linear mapping.
/// - [`Backing::Attached`] has no pages: `chunks` is empty, and a device has an address for each
///   chunk.
pub(crate) struct Pages {
    chunks: KVVec<NonNull<kernel::bindings::page>>,
    order: u32,
    lead: usize,
    len: usize,
    backing: Backing,
    charge: Option<PinnedCharge>,
    /// Dropped with the pages.
    _held: Option<Arc<dyn Send + Sync>>,
}

/// The owner of the pages.
enum Backing {
    /// Each chunk is an owned allocation.
    Allocated,
    /// The pages are pinned, for writing too if `write` is set.
    Pinned { write: bool },
    /// The pages belong to a dma-buf that is mapped into the kernel.
    DmaBuf { _buf: DmaBuf },
    /// The memory belongs to a dma-buf that is mapped for a device, at an address for each chunk.
    Attached { addresses: KVVec<u64>, buf: DmaBuf },
}

// SAFETY: The pages are owned, and every access to their contents expects concurrent writes.
unsafe impl Send for Pages {}
// SAFETY: As above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates at least `len` bytes in chunks of `2^order` pages. Sleeps.
    ///
    /// `node` is the preferred NUMA node; without one, the memory policy of the task chooses.
    /// `charge` says whether the pages count as pinned memory of the current process. Fails with
    ///
    /// - [`ENOMEM`] when there are not enough chunks, or the process has reached its limit,
    /// - [`EINVAL`] when `len` is 0, `order` is above [`MAX_ORDER`], or `node` is not online,
    /// - [`EINTR`] when the process is being killed.
    pub(crate) fn new(
        len: usize,
        order: u32,
        node: Option<i32>,
        policy: AllocPolicy,
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
            // INVARIANT: There are no chunks yet.
            len: 0,
            backing: Backing::Allocated,
            charge,
            _held: None,
        };
        let gfp = policy.gfp(order);
        for _ in 0..count {
            // SAFETY: The allocator has this order. The node is -1, `NUMA_NO_NODE`, or was online
            // above. A node that goes offline keeps its lists of zones:
            // mm/memory_hotplug.c:try_offline_node.
            let page =
                unsafe { bindings::rust_ulp_h_alloc_pages_node(node.unwrap_or(-1), gfp, order) };
            let page = NonNull::new(page).ok_or(ENOMEM)?;
            // INVARIANT: There is capacity for the chunk, and its length is added below.
            if pages.chunks.push(page, GFP_KERNEL_ACCOUNT).is_err() {
                // SAFETY: The chunk was just allocated, and nobody else has it.
                unsafe { kernel::bindings::__free_pages(page.as_ptr(), order) };
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
    /// `write` is set. Charges the process for them. Sleeps, and faults pages in: the caller holds
    /// nothing that others wait for.
    ///
    /// Chunks are as large as the memory allows ([`chunks::common_order`]), at most `2^max` pages.
    /// Bit `n` of `sizes` allows chunks of `2^n` bytes. Fails as [`Pinned::new`] does, with
    /// [`EFAULT`] when `len` is 0 or the range wraps, and with [`ENOMEM`] when the process has
    /// reached its limit.
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
        let order =
            chunks::common_order(PAGE_SHIFT as u32, frames, start >> PAGE_SHIFT, sizes, max);
        let chunk = PAGE_SIZE << (order & 31);
        let lead = addr & chunk.wrapping_sub(1);
        let in_chunk = (lead >> PAGE_SHIFT) as isize;
        let step = 1usize << (order & 31);
        let total = lead.saturating_add(len).div_ceil(chunk);
        let mut chunks = KVVec::with_capacity(total, GFP_KERNEL_ACCOUNT)?;
        let mut at = 0usize;
        while let Some(page) = pinned.pages().get(at) {
            // The first chunk may begin before the first pinned page.
            let back = if at == 0 { in_chunk } else { 0 };
            let first = page.as_ptr().wrapping_offset(back.wrapping_neg());
            let _ = chunks.push_within_capacity(NonNull::new(first).ok_or(EFAULT)?);
            at = at
                .saturating_add(step)
                .saturating_sub(usize::try_from(back).unwrap_or(0));
        }
        // From here on, this value unpins the pages.
        pinned.into_raw();
        // INVARIANT: The pages of a chunk are contiguous.
        Ok(Self {
            chunks,
            order,
            lead,
            len,
            backing: Backing::Pinned { write },
            charge: Some(charge),
            _held: None,
        })
    }

    /// Imports a range of a dma-buf by the kernel's mapping of it. Sleeps, for as long as the
    /// exporter takes: the caller holds nothing that others wait for. Fails with
    ///
    /// - [`ERANGE`] when the range is not in the dma-buf, or longer than `max_len`,
    /// - [`EINVAL`] when the range does not begin with a page, or `fd` is no dma-buf,
    /// - [`EBADF`] when `fd` is not open, [`EACCES`] when it is not open for writing,
    /// - [`EOPNOTSUPP`](super::errno::eopnotsupp) when the exporter has no mapping for the kernel,
    ///   or not one of system memory,
    /// - [`EINTR`] when a signal arrives, and with the exporter's error.
    pub(crate) fn import(what: &Import) -> Result<Self> {
        let buf = DmaBuf::open(what)?;
        let (offset, len) = what.range(&buf)?;
        let pages = buf.pages(offset, len)?;
        let order = chunks::common_order(
            PAGE_SHIFT as u32,
            pinned::frames(&pages),
            0,
            what.sizes,
            what.max,
        );
        // INVARIANT: The pages of a chunk are contiguous.
        Ok(Self {
            chunks: firsts(&pages, order)?,
            order,
            lead: 0,
            len,
            backing: Backing::DmaBuf { _buf: buf },
            charge: None,
            _held: None,
        })
    }

    /// Imports a range of a dma-buf for `device`, which does DMA, by an attachment. Only that
    /// device has addresses for it ([`Self::addresses`]). The result holds `bound`.
    ///
    /// Sleeps. The exporter may wait for a fence; fences signal in bounded time. Fails as
    /// [`Self::import`] does, with [`EINTR`] when a signal arrives, with
    /// [`EOPNOTSUPP`](super::errno::eopnotsupp) when the exporter does not map whole pages, and
    /// with the exporter's error for the device.
    ///
    /// # Safety
    ///
    /// A driver is bound to `device` until `bound` is released or dropped.
    pub(crate) unsafe fn attach(
        device: &Device,
        what: &Import,
        bound: Arc<dyn Bound>,
    ) -> Result<Self> {
        // SAFETY: The same requirement.
        let buf = unsafe { DmaBuf::attach(device, what, bound) }?;
        let (offset, len) = what.range(&buf)?;
        let pages = buf.addresses(offset, len)?;
        let frames = pages.iter().map(|addr| (addr >> PAGE_SHIFT) as usize);
        let order = chunks::common_order(PAGE_SHIFT as u32, frames, 0, what.sizes, what.max);
        // INVARIANT: There are no pages. The addresses of a chunk are contiguous.
        Ok(Self {
            chunks: KVVec::new(),
            order,
            lead: 0,
            len,
            backing: Backing::Attached {
                addresses: firsts(&pages, order)?,
                buf,
            },
            charge: None,
            _held: None,
        })
    }

    /// Leaks the pages, since a device may use them. The device can be removed. Does not sleep.
    pub(crate) fn leak(self: Arc<Self>) {
        if let Backing::Attached { buf, .. } = &self.backing {
            // SAFETY: This reference is never dropped, so the pages are not.
            unsafe { buf.release() };
        }
        core::mem::forget(self);
    }

    /// Holds `value`, such as a charge, until nothing uses the pages any more, no mapping either.
    pub(crate) fn holding(mut self, value: Arc<dyn Send + Sync>) -> Self {
        self._held = Some(value);
        self
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that are charged to a process.
    pub(crate) fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, |charge| charge.bytes())
    }

    /// Returns whether the pages can be mapped.
    pub(crate) fn can_be_mapped(&self) -> bool {
        matches!(self.backing, Backing::Allocated)
    }

    /// Returns the bytes of a chunk, a power of two.
    pub(crate) fn chunk_size(&self) -> usize {
        1usize << self.chunk_shift()
    }

    fn chunk_shift(&self) -> u32 {
        // Below 64 by the type invariant.
        (PAGE_SHIFT as u32).wrapping_add(self.order) & 63
    }

    /// Returns the position of the first byte in its chunk.
    pub(crate) fn lead(&self) -> usize {
        self.lead
    }

    /// Returns the number of chunks that the `length` bytes at `offset` are in. Fails with
    /// [`ERANGE`] when `length` is 0 or not all bytes exist.
    pub(crate) fn chunks_of(&self, offset: usize, length: usize) -> Result<usize> {
        let end = offset.checked_add(length).ok_or(ERANGE)?;
        if length == 0 || end > self.len {
            return Err(ERANGE);
        }
        let first = self.lead.wrapping_add(offset) >> self.chunk_shift();
        let last = self.lead.wrapping_add(end).wrapping_sub(1) >> self.chunk_shift();
        Ok(last.wrapping_sub(first).wrapping_add(1))
    }

    /// Returns the parts of the `length` bytes at `offset`, one for each chunk: the first page, the
    /// offset in that page, and the number of bytes. Ends early when not all bytes exist.
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

    /// Returns the device that memory of a dma-buf is mapped for; [`None`] for other pages.
    pub(crate) fn device(&self) -> Option<&Device> {
        match &self.backing {
            Backing::Attached { buf, .. } => buf.device(),
            _ => None,
        }
    }

    /// Returns the parts of memory that is mapped for a device: its address of each part, and the
    /// number of bytes. Returns [`None`] for other pages.
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

    /// Returns the parts of the `length` bytes at `offset`: the number of the chunk, the offset in
    /// it, and the number of bytes. Ends early when not all bytes exist.
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

    /// Returns the NUMA node of the first page, -1 without pages.
    pub(crate) fn node(&self) -> i32 {
        match self.extents(0, 1).next() {
            // SAFETY: By the type invariant this is a page.
            Some((page, _, _)) => unsafe { kernel::bindings::page_to_nid(page.as_ptr()) },
            None => -1,
        }
    }

    /// Maps `area.len()` bytes from `offset` on into `area`. Sleeps; the `mmap_lock` is held for
    /// writing. Fails with
    ///
    /// - [`EINVAL`] when `offset` is not a multiple of the page size, not all bytes exist, the area
    ///   is private, or the pages were not allocated by [`Self::new`],
    /// - [`EPERM`] when the area is executable.
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
            // SAFETY: By the type invariant these pages are owned and contiguous. They are whole
            // pages, since `offset` is a multiple of the page size. The area is being set up, has
            // room for them at `addr`, and may mix pages.
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
        // Last: when mapping fails, the kernel does not call the functions of the area.
        mapping.give_to(area);
        Ok(())
    }

    /// Returns the kernel's address of the `len` bytes at `offset`. Fails with [`ERANGE`] when they
    /// do not exist or are in two chunks.
    fn address(&self, offset: usize, len: usize) -> Result<NonNull<u8>> {
        let end = offset.checked_add(len).ok_or(ERANGE)?;
        let at = self.lead.wrapping_add(offset);
        let within = at & self.chunk_size().wrapping_sub(1);
        if end > self.len || len == 0 || within.saturating_add(len) > self.chunk_size() {
            return Err(ERANGE);
        }
        let chunk = self.chunks.get(at >> self.chunk_shift()).ok_or(ERANGE)?;
        let page = chunk.as_ptr().wrapping_add(within >> PAGE_SHIFT);
        // SAFETY: By the type invariant the page is in the linear mapping.
        let base = unsafe { bindings::rust_ulp_h_page_address(page) }.cast::<u8>();
        NonNull::new(base.wrapping_add(within & (PAGE_SIZE - 1))).ok_or(EFAULT)
    }

    /// Writes `value` at `offset`, in words of 8 bytes; not atomic as a whole. Any context. Fails
    /// with [`EINVAL`] when the offset or the size is not a multiple of 8, and with [`ERANGE`] when
    /// the bytes are not in one chunk.
    pub(crate) fn write<T: AsBytes + ?Sized>(&self, offset: usize, value: &T) -> Result {
        let bytes = value.as_bytes();
        if (offset | bytes.len()) & 7 != 0 {
            return Err(EINVAL);
        }
        let mut to = self.address(offset, bytes.len())?.as_ptr().cast::<u64>();
        for word in bytes.chunks_exact(8) {
            let mut part = [0u8; 8];
            part.copy_from_slice(word);
            // SAFETY: `address` has checked that the word is in the chunk. It is aligned, as
            // checked above.
            unsafe { to.write_volatile(u64::from_ne_bytes(part)) };
            to = to.wrapping_add(1);
        }
        Ok(())
    }

    /// Copies `buf.len()` bytes at `offset` to `buf`. Others may write there during the copy. Fails
    /// with [`ERANGE`] if they are not all in the pages. Any context.
    pub(crate) fn read(&self, offset: usize, buf: &mut [u8]) -> Result {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let within = self.lead.wrapping_add(at) & self.chunk_size().wrapping_sub(1);
            let count = rest.len().min(self.chunk_size().saturating_sub(within));
            let (part, tail) = rest.split_at_mut_checked(count).ok_or(ERANGE)?;
            let from = self.address(at, count)?;
            // SAFETY: `address` has found that many bytes.
            unsafe { copy_volatile(from.as_ptr(), part) };
            at = at.wrapping_add(count);
            rest = tail;
        }
        Ok(())
    }

    /// Returns the 32-bit word at `offset`. Fails with [`EINVAL`] if it is not aligned, and with
    /// [`ERANGE`] outside the pages.
    pub(crate) fn word(self: &Arc<Self>, offset: usize) -> Result<Word> {
        if offset & 3 != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: The address is aligned, since chunks are, and `lead` is 0 in mapped pages.
        // Others are refused here.
        let ptr = self.address(offset, 4)?.cast::<u32>();
        if !ptr.is_aligned() {
            return Err(EINVAL);
        }
        Ok(Word {
            ptr,
            _pages: self.clone(),
        })
    }
}

/// Copies `to.len()` bytes from `from` on, in words where `from` is aligned.
///
/// # Safety
///
/// `from` is valid for reading that many bytes. Others may write there.
unsafe fn copy_volatile(from: *const u8, to: &mut [u8]) {
    let mut at = from;
    let mut words = to.chunks_exact_mut(8);
    if at.cast::<u64>().is_aligned() {
        for word in &mut words {
            // SAFETY: By the requirement, and `at` is aligned.
            let value = unsafe { at.cast::<u64>().read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
            at = at.wrapping_add(8);
        }
    } else {
        for byte in (&mut words).flatten() {
            // SAFETY: By the requirement.
            *byte = unsafe { at.read_volatile() };
            at = at.wrapping_add(1);
        }
    }
    for byte in words.into_remainder() {
        // SAFETY: By the requirement.
        *byte = unsafe { at.read_volatile() };
        at = at.wrapping_add(1);
    }
}

/// A 32-bit word of shared pages, whose address is looked up once.
///
/// ```
/// fn publish(tail: &Word) {
///     tail.store_release(tail.load_acquire().wrapping_add(1));
/// }
/// ```
///
/// # Invariants
///
/// `ptr` is the aligned kernel address of a word in `_pages`, which stays there as long as these.
/// The kernel accesses the word as an atomic only.
pub(crate) struct Word {
    ptr: NonNull<u32>,
    _pages: Arc<Pages>,
}

// SAFETY: The value gives access to an atomic in pages that are `Send` and `Sync`.
unsafe impl Send for Word {}
// SAFETY: As above.
unsafe impl Sync for Word {}

impl Word {
    fn atomic(&self) -> &Atomic<u32> {
        // SAFETY: By the type invariant. Accesses of user space are outside Rust's memory model.
        unsafe { Atomic::from_ptr(self.ptr.as_ptr()) }
    }

    /// Loads the word with acquire ordering. Any context.
    pub(crate) fn load_acquire(&self) -> u32 {
        self.atomic().load(Acquire)
    }

    /// Stores the word with release ordering. Any context.
    pub(crate) fn store_release(&self, value: u32) {
        self.atomic().store(value, Release);
    }
}

/// A mapping of pages. Each area that contains a part of it holds a reference.
#[repr(C)]
struct Mapping {
    functions: bindings::rust_ulp_h_mapping,
    pages: Arc<Pages>,
    /// The offset of the first page in the file, in pages.
    origin: usize,
}

impl Mapping {
    /// Creates a mapping of `pages`, whose page `first` is at `page_offset` in the file.
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

    /// Gives this reference to `area`, which is being set up.
    fn give_to(self: Arc<Self>, area: &Area<'_>) {
        let mapping = Arc::into_raw(self).cast_mut();
        // SAFETY: The area is valid and being set up. The struct begins with the functions.
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
        // SAFETY: By the requirement. The pointer came out of `give_to`.
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
        // SAFETY: By the requirement. The pointer came out of `give_to`.
        let mapping = unsafe { ArcBorrow::from_raw(mapping.cast::<Self>()) };
        let _ = Arc::into_raw(Arc::from(mapping));
    }

    /// Drops the reference of an area.
    ///
    /// # Safety
    ///
    /// As for [`Self::page`]. The area gives up its reference.
    unsafe extern "C" fn put(mapping: *const c_void) {
        // SAFETY: By the requirement. The reference came out of `give_to` or `get`.
        drop(unsafe { Arc::from_raw(mapping.cast::<Self>()) });
    }
}

/// Returns the first item of each `2^order` of `all`.
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
                    // SAFETY: The allocation is owned, and no mapping is left. Other users of a
                    // page hold references to it.
                    unsafe { kernel::bindings::__free_pages(page.as_ptr(), self.order) };
                }
            }
            Backing::Pinned { write } => {
                // SAFETY: By the type invariant the pages are pinned, and contiguous in each chunk.
                unsafe { pinned::unpin(self.extents(0, self.len), write) };
            }
            Backing::DmaBuf { .. } | Backing::Attached { .. } => (),
        }
    }
}

/// Returns whether `node` is a NUMA node that is online.
pub(crate) fn node_is_online(node: i32) -> bool {
    // SAFETY: The helper accepts any number.
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
        let pages = Arc::new(pages, GFP_KERNEL)?;
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
        // Across two chunks, beyond the last one, not aligned.
        assert_eq!(pages.write(PAGE_SIZE - 8, &[1u64, 2]).err(), Some(ERANGE));
        assert_eq!(pages.write(2 * PAGE_SIZE, &1u64).err(), Some(ERANGE));
        assert_eq!(pages.write(4, &1u64).err(), Some(EINVAL));
        assert_eq!(pages.write(usize::MAX - 7, &1u64).err(), Some(ERANGE));
        assert_eq!(pages.word(2 * PAGE_SIZE).err(), Some(ERANGE));
        assert_eq!(pages.word(2).err(), Some(EINVAL));
        assert_eq!(
            pages.read(2 * PAGE_SIZE - 1, &mut [0; 2]).err(),
            Some(ERANGE)
        );
        Ok(())
    }

    #[test]
    fn keep_what_is_written() -> Result {
        let pages = Pages::new(3 * PAGE_SIZE, 0, None, AllocPolicy::Reclaim, false)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        pages.write(PAGE_SIZE + 16, &[0x0123_4567_89ab_cdefu64, 42])?;
        let word = pages.word(PAGE_SIZE + 24)?;
        assert_eq!(word.load_acquire(), 42);
        word.store_release(43);
        let mut buf = [0; 8];
        pages.read(PAGE_SIZE + 24, &mut buf)?;
        assert_eq!(u64::from_ne_bytes(buf), 43);
        Ok(())
    }

    #[test]
    fn copy_from_any_offset_across_chunks() -> Result {
        let pages = Pages::new(2 * PAGE_SIZE, 0, None, AllocPolicy::Reclaim, false)?;
        let all: [u8; 64] = core::array::from_fn(|i| i as u8 ^ 0x5a);
        pages.write(PAGE_SIZE - 32, all.first_chunk::<32>().ok_or(EINVAL)?)?;
        pages.write(PAGE_SIZE, all.last_chunk::<32>().ok_or(EINVAL)?)?;
        for from in 0..64 {
            for to in from..=64 {
                let mut buf = [0u8; 64];
                let part = buf.get_mut(from..to).ok_or(EINVAL)?;
                pages.read((PAGE_SIZE - 32).wrapping_add(from), part)?;
                assert_eq!(buf.get(from..to), all.get(from..to));
            }
        }
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
