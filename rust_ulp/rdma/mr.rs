// SPDX-License-Identifier: GPL-2.0

//! Memory for requests, and memory regions, made by fast registration.
//!
//! A region is made by `ib_alloc_mr()`, `ib_map_mr_sg()` and a REG_MR request on a queue pair of
//! the same protection domain, see [`super::fast_reg`]. Memory that no peer uses needs none where
//! its DMA addresses are consecutive: its requests name DMA addresses, and the key of the domain.
//!
//! The address of a byte in a region is its position in the pages, or another one in the same chunk
//! where an IOMMU requires that. A peer sees no kernel address.

use super::{
    device::{
        self,
        Device, //
    },
    pd::Pd, //
};
use crate::{
    bindings,
    ext::{
        errno::eopnotsupp,
        fault,
        pages::Pages, //
    },
    logic::chunks, //
};
use core::{
    cell::Cell,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_uint,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pr_warn_once,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        Arc,
        SetOnce, //
    },
    types::Opaque, //
};

/// Access rights to a memory region: `enum ib_access_flags`.
///
/// ```
/// const FOR_A_READER: u32 = access::LOCAL_WRITE | access::REMOTE_READ;
/// ```
pub(crate) mod access {
    use crate::bindings;
    /// Local requests may write to it.
    pub(crate) const LOCAL_WRITE: u32 = bindings::IB_ACCESS_LOCAL_WRITE;
    /// A peer may write to it.
    pub(crate) const REMOTE_WRITE: u32 = bindings::IB_ACCESS_REMOTE_WRITE;
    /// A peer may read it.
    pub(crate) const REMOTE_READ: u32 = bindings::IB_ACCESS_REMOTE_READ;
    /// A peer may perform atomics on it.
    pub(crate) const REMOTE_ATOMIC: u32 = bindings::IB_ACCESS_REMOTE_ATOMIC;
    /// Any right by which the device writes to it.
    pub(super) const WRITE: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC;
}

/// Performs the requests that the memory regions of a protection domain need.
///
/// # Safety
///
/// [`Self::pd`] always returns the same domain, and what [`Self::register`] has posted is done when
/// it returns, unless the driver does not give up the queue pair: then the domain is leaked, see
/// [`Pd::is_leaked`].
///
/// ```
/// fn device_of(register: &dyn Register) -> &device::Device {
///     register.pd().device()
/// }
/// ```
pub(crate) unsafe trait Register: Send + Sync {
    /// Returns the protection domain.
    fn pd(&self) -> &Arc<Pd>;

    /// Registers `mr` with the key `key` and the rights `access`. Sets `posted` when a request for
    /// that was posted. Sleeps.
    ///
    /// # Safety
    ///
    /// `mr` is a mapped region of [`Self::pd`], and lives until this returns.
    unsafe fn register(
        &self,
        mr: *mut bindings::ib_mr,
        key: u32,
        access: u32,
        posted: &Cell<bool>,
    ) -> Result;

    /// Invalidates the key `rkey`. Sleeps. Fails with [`eopnotsupp`] when the driver has no such
    /// request.
    fn invalidate(&self, rkey: u32) -> Result;
}

/// A scatter list: `struct sg_table`.
///
/// # Invariants
///
/// The table is allocated. It has no pointer to itself, so it may move.
struct Table(Opaque<kernel::bindings::sg_table>);

impl Table {
    /// Allocates a table of `count` entries. Sleeps.
    fn new(count: usize) -> Result<Self> {
        let count = c_uint::try_from(count).map_err(|_| ERANGE)?;
        let table = Opaque::<kernel::bindings::sg_table>::zeroed();
        // SAFETY: `table` is memory for a table.
        to_result(unsafe {
            kernel::bindings::sg_alloc_table(
                table.get(),
                count,
                kernel::bindings::GFP_KERNEL_ACCOUNT,
            )
        })?;
        // INVARIANT: Just allocated.
        Ok(Self(table))
    }

    fn get(&self) -> *mut kernel::bindings::sg_table {
        self.0.get()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. A mapped table is unmapped before it is dropped.
        unsafe { kernel::bindings::sg_free_table(self.get()) };
    }
}

/// Pages that are mapped for a device.
///
/// # Invariants
///
/// `table` is mapped for `device`, and its pages are those of `pages`. Dropping this value unmaps
/// it, unless it is `foreign`: then the table has the addresses to which `pages` are mapped while
/// they live; or `leaked`.
struct Mapping {
    table: Table,
    foreign: bool,
    /// Whether the device may write: the direction of the mapping.
    write: bool,
    /// The device did not give up a region of these pages, or a queue that may use them: they are
    /// leaked.
    leaked: bool,
    device: ARef<Device>,
    pages: Arc<Pages>,
}

// SAFETY: Nothing changes the table while it is mapped. A mapping belongs to the table and the
// device, not to a task: any task may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: As above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `offset` of `pages`, for the device to read, and to write as far as
    /// the rights `access` say. Sleeps. Fails with [`EXDEV`] for pages of a dma-buf that were imported
    /// for another device.
    fn new(
        device: &Device,
        pages: Arc<Pages>,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<KBox<Self>> {
        if pages.device().is_some_and(|it| !device.is_served_by(it)) {
            return Err(EXDEV);
        }
        let write = access & access::WRITE != 0;
        let table = Table::new(pages.chunks_of(offset, length)?)?;
        // SAFETY: The table was allocated, with an entry for each chunk.
        let mut sg = unsafe { (*table.get()).sgl };
        for (page, within, bytes) in pages.extents(offset, length) {
            // SAFETY: `sg` is an entry of the table, which has one for each chunk, and the bytes
            // are contiguous.
            unsafe {
                bindings::rust_ulp_h_sg_set(sg, page.as_ptr(), bytes as c_uint, within as c_uint);
                sg = kernel::bindings::sg_next(sg);
            }
        }
        let foreign = pages.addresses(offset, length);
        let is_foreign = foreign.is_some();
        for (addr, bytes) in foreign.into_iter().flatten() {
            // SAFETY: As above.
            unsafe {
                bindings::rust_ulp_h_sg_set_dma(sg, addr, bytes as c_uint);
                sg = kernel::bindings::sg_next(sg);
            }
        }
        let mapping = KBox::new_uninit(GFP_KERNEL_ACCOUNT)?;
        fault::point()?;
        if !is_foreign {
            // SAFETY: The device is registered, and the table is complete.
            to_result(unsafe { bindings::rust_ulp_h_dma_map(device.as_raw(), table.get(), write) }).map_err(
                |err| {
                    if err != EIO {
                        return err;
                    }
                    pr_warn_once!("{device}: DMA needs bounce buffers, which memory shared with processes cannot have\n");
                    eopnotsupp()
                },
            )?;
        }
        // INVARIANT: The table was just mapped, or has the addresses of foreign pages.
        Ok(KBox::write(
            mapping,
            Self {
                table,
                foreign: is_foreign,
                write,
                leaked: false,
                device: device.into(),
                pages,
            },
        ))
    }
}

/// The page table of a region.
struct Layout {
    /// Address of the first byte in the region.
    addr: u64,
    /// Size of a page in bytes.
    page_size: u32,
    /// Number of pages.
    pages: u32,
}

impl Layout {
    /// Returns the number of entries of the table that the driver of a device with these
    /// `attributes` allocates.
    ///
    /// Those that copy by the CPU have an entry for each page of the kernel:
    /// drivers/infiniband/sw/rxe/rxe_mr.c:rxe_map_mr_sg.
    fn entries(&self, attributes: &device::Attributes) -> u32 {
        if attributes.virt_dma {
            let each = self.page_size.checked_shr(PAGE_SHIFT as u32).unwrap_or(1);
            self.pages.saturating_mul(each.max(1))
        } else {
            self.pages
        }
    }
}

impl Mapping {
    /// Returns the DMA address and the length of each entry.
    fn extents(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        // SAFETY: By the type invariant the table is valid.
        let (mut sg, nents) = unsafe {
            let table = &*self.table.get();
            (table.sgl, table.nents)
        };
        (0..nents).map(move |_| {
            // SAFETY: `sg` is one of the mapped entries.
            unsafe {
                let addr = kernel::bindings::sg_dma_address(sg);
                let length = kernel::bindings::sg_dma_len(sg);
                sg = kernel::bindings::sg_next(sg);
                (addr, length.into())
            }
        })
    }

    /// Chooses the page table for the `length` bytes at `position`, which lie in chunks of `chunk`
    /// bytes.
    ///
    /// Below the page size, the address in the region and the DMA address must agree. An IOMMU
    /// keeps only the offset in a page of its own, so the page may have to be smaller than a chunk.
    /// The address is the position, unless that takes more pages than the device supports: then its
    /// lower bits are those of the DMA address. [`ERANGE`] when that takes too many pages, too.
    fn layout(&self, position: u64, length: u64, chunk: u64) -> Result<Layout> {
        let attributes = self.device.attributes();
        let within = chunk.wrapping_sub(1);
        let sizes = attributes.page_size_cap & (chunk | within);
        let dma = self.extents().next().map_or(0, |(dma, _)| dma);
        for addr in [position, (position & !within) | (dma & within)] {
            let size = chunks::page_size(self.extents(), addr, sizes);
            let last = (addr & size.wrapping_sub(1))
                .saturating_add(length)
                .wrapping_sub(1);
            let pages = last
                .checked_shr(size.trailing_zeros())
                .and_then(|last| u32::try_from(last.saturating_add(1)).ok());
            let (Some(pages), Ok(page_size)) = (pages, u32::try_from(size)) else {
                continue;
            };
            if pages <= attributes.max_fast_reg_pages {
                return Ok(Layout {
                    addr,
                    page_size,
                    pages,
                });
            }
        }
        Err(ERANGE)
    }

    /// Returns the first DMA address, if that of each byte follows that of the byte before.
    fn consecutive(&self) -> Option<u64> {
        let mut extents = self.extents();
        let (first, length) = extents.next()?;
        let mut end = first.checked_add(length)?;
        for (addr, length) in extents {
            if addr != end {
                return None;
            }
            end = end.checked_add(length)?;
        }
        Some(first)
    }

    /// Gives the region `mr` the page table `layout`, its address, and a new key.
    ///
    /// # Safety
    ///
    /// `mr` is a valid region that is not registered, and nobody else uses it.
    unsafe fn map(&self, mr: NonNull<bindings::ib_mr>, layout: &Layout) -> Result {
        // SAFETY: The table is mapped, by the type invariant.
        let (sgl, nents) = unsafe {
            let table = &*self.table.get();
            (table.sgl, table.nents)
        };
        fault::point()?;
        // SAFETY: By the requirement, and the list is mapped.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                mr.as_ptr(),
                sgl,
                i32::try_from(nents).map_err(|_| ERANGE)?,
                core::ptr::null_mut(),
                layout.page_size,
            )
        };
        to_result(mapped.min(0))?;
        if u32::try_from(mapped) != Ok(nents) {
            return Err(ERANGE);
        }
        // SAFETY: By the requirement. The address and the DMA addresses agree below the page size,
        // see `Mapping::layout`.
        unsafe {
            bindings::rust_ulp_h_mr_next_key(mr.as_ptr());
            bindings::rust_ulp_h_mr_set_iova(mr.as_ptr(), layout.addr);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.leaked {
            // They stay mapped, and are never given to others.
            self.pages.clone().leak();
        } else if !self.foreign {
            // SAFETY: By the type invariant. The region that used the mapping no longer exists.
            unsafe {
                bindings::rust_ulp_h_dma_unmap(self.device.as_raw(), self.table.get(), self.write)
            };
        }
    }
}

/// What the device has of a region.
mod state {
    /// It may be registered.
    pub(super) const LIVE: u32 = 0;
    /// A thread revokes it.
    pub(super) const ENDING: u32 = 1;
    /// Its key is invalid. The driver has refused to deregister it, or to destroy the queue pair that
    /// was to register it.
    pub(super) const INVALID: u32 = 2;
    /// It is deregistered, and its pointer is dangling.
    pub(super) const GONE: u32 = 3;
}

/// A memory region: `struct ib_mr`.
struct Region {
    ptr: NonNull<bindings::ib_mr>,
    /// The number of entries of its table of pages.
    entries: u32,
    /// Whether the request to register it was posted.
    posted: bool,
    /// Whether the device has registered it.
    registered: bool,
    /// One of [`state`].
    state: Atomic<u32>,
    fast_reg: Arc<dyn Register>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. The keys change in
// `Memory::register` only, when nobody else has the value.
unsafe impl Send for Region {}
// SAFETY: As above.
unsafe impl Sync for Region {}

impl Region {
    /// Ends the region, and returns what the device has of it then: one of [`state`], not `ENDING`.
    /// Returns when no access is under way. Sleeps.
    ///
    /// # Safety
    ///
    /// The region is not deregistered, and no other thread ends it.
    unsafe fn end(&self) -> u32 {
        // SAFETY: The region is valid, by the requirement.
        let rkey = unsafe { bindings::rust_ulp_h_mr_rkey(self.ptr.as_ptr()) };
        let mut invalid = !self.registered;
        if self.posted && invalid && self.fast_reg.pd().is_leaked() {
            // A queue pair that the driver did not destroy may register it later.
            return state::INVALID;
        }
        let device = self.fast_reg.pd().device();
        if !invalid && device.invalidates_first() {
            let invalidated = self.fast_reg.invalidate(rkey);
            invalid = invalidated.is_ok();
            if !invalid && device.hides_failure() {
                // Its success would not say that the key is dead.
                pr_warn_once!(
                    "a driver refused to invalidate a key: {:?}; its memory is kept\n",
                    invalidated
                );
                return state::LIVE;
            }
        }
        fault::step();
        // SAFETY: As above. The driver waits for accesses under way. A region whose driver refuses
        // this stays valid, and may be deregistered again: `uverbs_free_mr()`,
        // drivers/infiniband/core/uverbs_std_types_mr.c.
        let err = unsafe { bindings::ib_dereg_mr_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
        if err == 0 {
            return state::GONE;
        }
        pr_warn_once!(
            "a driver refused to deregister memory: {}; the memory is leaked\n",
            err
        );
        if invalid || self.fast_reg.invalidate(rkey).is_ok() {
            state::INVALID
        } else {
            state::LIVE
        }
    }
}

/// Memory that requests on the queue pairs of a protection domain use.
///
/// Its key is that of a region, or the `local_dma_lkey` of the domain.
///
/// Dropping it revokes the keys of a region, see [`Mr::revoke`]. If the driver refuses that, the
/// memory is leaked.
///
/// ```
/// # use crate::ext::pages::Pages;
/// fn room(fast_reg: Arc<fast_reg::FastRegQp>, pages: Arc<Pages>) -> Result<Arc<Memory>> {
///     let pd = fast_reg.pd().clone();
///     Memory::new(&pd, || Ok(fast_reg), pages, 0, 4096, access::LOCAL_WRITE)
/// }
/// ```
///
/// # Invariants
///
/// - `region` is a memory region of `pd` that this value owns, unless its state is
///   [`state::GONE`]. While it is registered, it covers the `length` bytes from the address `addr`
///   on, which are those of `mapping`.
/// - Without a region, the DMA addresses of `mapping` are the `length` ones from `addr` on.
pub(crate) struct Memory {
    addr: u64,
    lkey: u32,
    /// 0 without a region.
    rkey: u32,
    /// Position in the pages.
    position: u64,
    length: u64,
    region: Option<Region>,
    pd: Arc<Pd>,
    mapping: KBox<Mapping>,
    /// Dropped with the memory.
    held: SetOnce<Arc<dyn Send + Sync>>,
}

impl Memory {
    /// Prepares `length` bytes at `offset` of `pages` for local requests with the rights `access`,
    /// which are [`access::LOCAL_WRITE`] or none. Sleeps.
    ///
    /// The key of the domain serves where the DMA addresses are consecutive. It allows writes, so
    /// memory without that right gets a region. `fast_reg` returns what registers the region. Fails
    /// as [`Mr::register`] does.
    pub(crate) fn new<T: Register + 'static>(
        pd: &Arc<Pd>,
        fast_reg: impl FnOnce() -> Result<Arc<T>>,
        pages: Arc<Pages>,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<Arc<Self>> {
        let mapping = Mapping::new(pd.device(), pages, offset, length, access)?;
        let direct = mapping
            .consecutive()
            .filter(|_| access == access::LOCAL_WRITE && !mapping.foreign);
        let Some(addr) = direct else {
            return Self::register(fast_reg()?, mapping, offset, length, access);
        };
        // INVARIANT: There is no region, and `addr` is the first of the consecutive addresses.
        let memory = Self {
            addr,
            lkey: pd.local_dma_lkey(),
            rkey: 0,
            position: mapping.pages.lead().saturating_add(offset) as u64,
            length: length as u64,
            region: None,
            pd: pd.clone(),
            mapping,
            held: SetOnce::new(),
        };
        Ok(Arc::new(memory, GFP_KERNEL_ACCOUNT)?)
    }

    /// Registers `mapping`, which is of `length` bytes at `offset` of its pages. Fails with [`EXDEV`]
    /// when it is for another device.
    fn register(
        fast_reg: Arc<dyn Register>,
        mapping: KBox<Mapping>,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<Arc<Self>> {
        let position = mapping.pages.lead().saturating_add(offset) as u64;
        let length = length as u64;
        let layout = mapping.layout(position, length, mapping.pages.chunk_size() as u64)?;
        let pd = fast_reg.pd().clone();
        if !core::ptr::eq(&*mapping.device, pd.device()) {
            return Err(EXDEV);
        }
        fault::point()?;
        // SAFETY: The domain is valid.
        let ptr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::IB_MR_TYPE_MEM_REG, layout.pages)
        })?;
        let ptr = NonNull::new(ptr).ok_or(ENOMEM)?;
        // INVARIANT: The region was just allocated, and is not registered.
        let mut memory = Self {
            addr: layout.addr,
            lkey: 0,
            rkey: 0,
            position,
            length,
            region: Some(Region {
                ptr,
                entries: layout.entries(&pd.device().attributes()),
                posted: false,
                registered: false,
                state: Atomic::new(state::LIVE),
                fast_reg: fast_reg.clone(),
            }),
            pd,
            mapping,
            held: SetOnce::new(),
        };
        // SAFETY: The region was just allocated.
        unsafe { memory.mapping.map(ptr, &layout) }?;
        // SAFETY: The region is valid.
        memory.lkey = unsafe { bindings::rust_ulp_h_mr_lkey(ptr.as_ptr()) };
        // SAFETY: As above.
        memory.rkey = unsafe { bindings::rust_ulp_h_mr_rkey(ptr.as_ptr()) };
        let posted = Cell::new(false);
        // SAFETY: The region is mapped, and nobody accesses it before this returns.
        let registered = unsafe { fast_reg.register(ptr.as_ptr(), memory.lkey, access, &posted) };
        if let Some(region) = &mut memory.region {
            region.posted = posted.get();
            // INVARIANT: The device has registered it.
            region.registered = registered.is_ok();
        }
        registered?;
        Ok(Arc::new(memory, GFP_KERNEL_ACCOUNT)?)
    }

    /// Holds `value`, such as a charge, until no request uses the memory. Holds one value only.
    pub(crate) fn hold(&self, value: Arc<dyn Send + Sync>) {
        self.held.populate(value);
    }

    /// Returns the number of entries of its region's table of pages; [`None`] without a region.
    pub(crate) fn table_entries(&self) -> Option<u32> {
        self.region.as_ref().map(|region| region.entries)
    }

    /// Returns the protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the address of the first byte.
    pub(super) fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the position of the first byte in the pages.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the key for local requests.
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Revokes the keys of the region, if there is one. Sleeps. Fails as [`Mr::revoke`] does.
    fn revoke(&self) -> Result {
        let Some(region) = &self.region else {
            return Ok(());
        };
        match region.state.cmpxchg(state::LIVE, state::ENDING, Full) {
            Ok(_) => (),
            Err(state::ENDING) => return Err(EBUSY),
            Err(_) => return Ok(()),
        }
        // SAFETY: The region is not deregistered: its state was `LIVE`. The state is `ENDING` now,
        // so that no other thread comes here.
        let now = unsafe { region.end() };
        region.state.store(now, Release);
        if now == state::LIVE {
            Err(EIO)
        } else {
            Ok(())
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Refused before, or now: the device may use the memory.
        let _ = self.revoke();
        self.mapping.leaked = match &self.region {
            Some(region) => {
                let state = region.state.load(Acquire);
                if state == state::LIVE {
                    self.pd.keep();
                }
                state != state::GONE
            }
            // A queue that the device has not given up may still use it, and nothing revokes the key
            // of the domain.
            None => self.pd.is_leaked(),
        };
    }
}

/// Memory with a region, and a key by which a peer can use it.
///
/// ```
/// # use crate::ext::pages::Pages;
/// fn offer(fast_reg: Arc<fast_reg::FastRegQp>, pages: Arc<Pages>) -> Result<(Mr, [u64; 2])> {
///     let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
///     let mr = Mr::register(fast_reg, pages, 0, 4096, rights)?;
///     let for_the_peer = [mr.addr(), mr.rkey().into()];
///     Ok((mr, for_the_peer))
/// }
/// ```
pub(crate) struct Mr {
    memory: Arc<Memory>,
    rkey: u32,
}

impl Mr {
    /// Registers `length` bytes at `offset` of `pages` with the rights `access`. Sleeps.
    ///
    /// The address of a byte is its position in `pages`, unless the DMA addresses require another
    /// one, see [`Layout`]. Fails with
    ///
    /// - [`ERANGE`] when the device does not support so many bytes under one key, see
    ///   [`max_bytes`],
    /// - [`EXDEV`] when the pages were imported for another device,
    /// - [`ENOMEM`] when there is no memory.
    pub(crate) fn register(
        fast_reg: Arc<dyn Register>,
        pages: Arc<Pages>,
        offset: usize,
        length: usize,
        access: u32,
    ) -> Result<Self> {
        let mapping = Mapping::new(fast_reg.pd().device(), pages, offset, length, access)?;
        let memory = Memory::register(fast_reg, mapping, offset, length, access)?;
        let rkey = memory.rkey;
        Ok(Self { memory, rkey })
    }

    /// Revokes the key, and returns when no access is under way: what a peer sends later does not
    /// land. Sleeps.
    ///
    /// The driver deregisters the region. If it refuses, an invalidation revokes the key alone, and
    /// the memory stays the device's. Fails with
    ///
    /// - [`EIO`] when the driver refuses both, or hides a failure and refuses the invalidation that
    ///   comes first: the key may be valid, and a later call tries again,
    /// - [`EBUSY`] while another thread revokes it.
    pub(crate) fn revoke(&self) -> Result {
        self.memory.revoke()
    }

    /// Returns the number of entries of its region's table of pages.
    pub(crate) fn table_entries(&self) -> u32 {
        self.memory.table_entries().unwrap_or(0)
    }

    /// Returns the memory, for local requests.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.addr
    }

    /// Returns the key for requests of a peer.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }
}

/// Returns how many bytes a device with these `attributes` supports under one key, in chunks of
/// `chunk` bytes from the start of a chunk. That is a multiple of `chunk`, 0 when the device has no
/// pages of this size. It may use smaller ones for a chunk that is a page of the kernel.
pub(crate) fn max_bytes(attributes: &device::Attributes, chunk: u64) -> u64 {
    let within = chunk.wrapping_sub(1);
    let smaller = if chunk > PAGE_SIZE as u64 { 0 } else { within };
    let page = (attributes.page_size_cap & (chunk | smaller))
        .checked_ilog2()
        .map_or(0, |shift| 1u64 << (shift & 63));
    let bytes = u64::from(attributes.max_fast_reg_pages)
        .saturating_mul(page)
        .min(attributes.max_mr_size);
    bytes & !within
}
