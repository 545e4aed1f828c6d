// SPDX-License-Identifier: GPL-2.0

//! Buffers: memory that is registered for requests of its owner. Process context.
//!
//! The pages are allocated and mapped to user space, or pinned, or imported. A device limits the
//! pages under one key, so a buffer has as many keys as it needs, each for
//! [`BufferObject::key_bytes`] of its positions, see [`Pages`]. An element of a request is cut
//! where the next key begins.

use super::{
    mmap::{
        MmapOffset,
        MmapOffsets, //
    },
    pd::PdObject,
    table::Charges,
    usecount::{
        Counted,
        UseCount,
        UseRef, //
    }, //
};
use crate::{
    ext::{
        dmabuf::Import,
        errno::eopnotsupp,
        pages::{
            AllocPolicy,
            Pages,
            PAGE_SHIFT, //
        }, //
    },
    limits::MAX_BUFFER,
    logic::chunks::Plan,
    rdma::{
        device::Attributes,
        mr::{
            self,
            access,
            Memory, //
        },
        wr::{
            Local,
            LocalMemory, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The order of pages of 2 MiB.
const LARGE_ORDER: u32 = 21 - PAGE_SHIFT as u32;

/// A buffer of a file.
///
/// # Invariants
///
/// `keys` cover the positions of `pages`: number `n` those of them from `n * key_bytes` on that are
/// below `(n + 1) * key_bytes`.
pub(crate) struct BufferObject {
    // Before the pages: the device is done with them first.
    keys: KVVec<Arc<Memory>>,
    key_bytes: u64,
    pages: Arc<Pages>,
    /// [`None`] if user space cannot map the pages.
    mmap_offset: Option<MmapOffset>,
    /// `BUFFER_PAGES` and so on.
    kind: u32,
    /// Whether neither requests nor peers may write to it.
    read_only: bool,
    pd: UseRef<PdObject>,
    use_count: UseCount,
}

/// Checks the length of a buffer. [`ERANGE`] for 0 and beyond [`MAX_BUFFER`].
fn checked_length(length: u64) -> Result<usize> {
    if length == 0 || length > MAX_BUFFER {
        return Err(ERANGE);
    }
    usize::try_from(length).map_err(|_| ERANGE)
}

/// Pins the `length` bytes at `addr` of the current process, for a device that registers pages of
/// the sizes `sizes`; see [`Pages::pin`]. User space may make it sleep without limit: not to be
/// called inside the gate.
pub(crate) fn pin(addr: u64, length: u64, read_only: bool, sizes: u64) -> Result<Pages> {
    let len = checked_length(length)?;
    let addr = usize::try_from(addr).map_err(|_| EFAULT)?;
    Pages::pin(addr, len, !read_only, sizes, LARGE_ORDER)
}

/// Returns what to import of the dma-buf `fd`, for a device that registers pages of the sizes
/// `sizes`: the `length` bytes at `offset`, or all from there on when `length` is 0.
pub(crate) fn import(fd: i32, offset: u64, length: u64, read_only: bool, sizes: u64) -> Import {
    Import {
        fd,
        offset,
        len: length,
        max_len: MAX_BUFFER,
        write: !read_only,
        sizes,
        max: LARGE_ORDER,
    }
}

/// Allocates `length` bytes for a device with these `attributes`. Sleeps, and for long where memory
/// is fragmented: not to be called inside the gate.
///
/// `page_size` is 4 KiB, 2 MiB, or 0, see [`Plan::new`]. With 0 it allocates large chunks where
/// possible, so that one key suffices. Returns [`EINVAL`] for another size, [`ERANGE`] for a size
/// that the device does not register and for a `length` beyond [`MAX_BUFFER`]. With 0 it fails for
/// want of memory only.
pub(crate) fn allocate(
    attributes: &Attributes,
    length: u64,
    page_size: u32,
    node: Option<i32>,
) -> Result<Pages> {
    let len = checked_length(length)?;
    let plan = Plan::new(PAGE_SHIFT as u32, length, page_size).ok_or(EINVAL)?;
    let mut result = Err(ERANGE);
    for (order, reclaim) in plan.attempts(|chunk| mr::max_bytes(attributes, chunk)) {
        let policy = if reclaim {
            AllocPolicy::Reclaim
        } else {
            AllocPolicy::None
        };
        result = Pages::new(len, order, node, policy, true);
        if !matches!(&result, Err(err) if *err == ENOMEM) {
            break;
        }
    }
    result
}

/// Prepares `pages` with a key for each `key_bytes`. Sleeps. Returns [`EINTR`] when the process is
/// being killed.
fn prepare_keys(
    pd: &PdObject,
    pages: &Arc<Pages>,
    key_bytes: u64,
    access: u32,
) -> Result<KVVec<Arc<Memory>>> {
    let mut keys = KVVec::new();
    let mut at = 0usize;
    while at < pages.len() {
        // The first key begins where the pages do, and has less.
        let position = pages.lead().saturating_add(at) as u64;
        let room = position
            .checked_rem(key_bytes)
            .and_then(|within| key_bytes.checked_sub(within))
            // The device has no keys.
            .ok_or(eopnotsupp())?;
        let bytes = pages
            .len()
            .saturating_sub(at)
            .min(usize::try_from(room).unwrap_or(usize::MAX));
        let memory = Memory::new(pd.pd(), || pd.fast_reg(), pages.clone(), at, bytes, access)?;
        keys.push(memory, GFP_KERNEL_ACCOUNT)?;
        at = at.saturating_add(bytes);
        if crate::ext::task::is_killed() {
            return Err(EINTR);
        }
    }
    Ok(keys)
}

impl BufferObject {
    /// Registers `pages` for requests of the owner, with as many keys as needed. Sleeps.
    ///
    /// Returns [`EINTR`] when the process is being killed.
    pub(crate) fn register(
        pd: UseRef<PdObject>,
        offsets: &Arc<MmapOffsets>,
        pages: Pages,
        kind: u32,
        read_only: bool,
    ) -> Result<Arc<Self>> {
        let access = if read_only { 0 } else { access::LOCAL_WRITE };
        let pages = Arc::new(pages, GFP_KERNEL_ACCOUNT)?;
        let key_bytes = mr::max_bytes(&pd.pd().device().attributes(), pages.chunk_size() as u64);
        let keys = prepare_keys(&pd, &pages, key_bytes, access)?;
        let mmap_offset = if pages.can_be_mapped() {
            Some(offsets.reserve(pages.len())?)
        } else {
            None
        };
        // INVARIANT: Each key ended where the next begins, at a multiple of `key_bytes`.
        Ok(Arc::new(
            Self {
                keys,
                key_bytes,
                pages,
                mmap_offset,
                kind,
                read_only,
                pd,
                use_count: UseCount::new(),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Holds `charges` until neither this nor a request uses the device's regions.
    pub(crate) fn hold(&self, charges: &Charges) {
        for memory in &self.keys {
            memory.hold(charges.clone());
        }
    }

    /// Returns the number of entries of the table of pages of each region.
    pub(crate) fn table_entries(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.iter().filter_map(|memory| memory.table_entries())
    }

    /// Returns the pages.
    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Sets its handle, by which lookups of its offset name it.
    pub(crate) fn set_handle(&self, handle: u32) {
        if let Some(offset) = &self.mmap_offset {
            offset.set_handle(handle);
        }
    }

    /// Returns the offset at which user space maps the pages; 0 if it cannot.
    pub(crate) fn mmap_offset(&self) -> u64 {
        self.mmap_offset.as_ref().map_or(0, MmapOffset::bytes)
    }

    /// Returns the kind of its memory: `BUFFER_PAGES` and so on.
    pub(crate) fn kind(&self) -> u32 {
        self.kind
    }

    /// Returns whether neither requests nor peers may write to it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the number of positions under one key.
    pub(crate) fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    /// Returns the number of keys.
    pub(crate) fn keys(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Returns the most bytes from `offset` on that fit under one key.
    pub(crate) fn most_from(&self, offset: u64) -> u64 {
        // As with the buffer's own keys: whole chunks, and what is left of the first.
        let chunk = self.pages.chunk_size() as u64;
        let within = offset.saturating_add(self.pages.lead() as u64) & chunk.wrapping_sub(1);
        self.key_bytes.saturating_sub(within)
    }

    /// Returns the memory when the buffer has one key: it begins and ends with the buffer. [`None`]
    /// when it has more.
    pub(crate) fn memory(&self) -> Option<LocalMemory<'_>> {
        match self.keys.as_slice() {
            [memory] => Some(LocalMemory::new(memory)),
            _ => None,
        }
    }

    /// Returns the pieces for the `length` bytes at `offset`, one for each key; none for a range
    /// that is not inside.
    pub(crate) fn locals(&self, offset: u64, length: u32) -> impl Iterator<Item = Local<'_>> {
        let mut at = offset.saturating_add(self.pages.lead() as u64);
        let end = at.saturating_add(length.into());
        core::iter::from_fn(move || {
            let memory = self
                .keys
                .get(usize::try_from(at.checked_div(self.key_bytes)?).ok()?)?;
            let next = memory.position().saturating_add(memory.length()).min(end);
            let bytes = u32::try_from(next.checked_sub(at)?).ok()?;
            let local = Local::new(memory, at.checked_sub(memory.position())?, bytes).ok()?;
            at = next;
            Some(local)
        })
    }

    /// Returns the number of pieces of [`Self::locals`].
    pub(crate) fn pieces(&self, offset: u64, length: u32) -> u64 {
        let Some(last) = u64::from(length).checked_sub(1) else {
            return 0;
        };
        if self.keys.len() == 1 {
            return 1;
        }
        let first = offset.saturating_add(self.pages.lead() as u64);
        let key = |at: u64| at.checked_div(self.key_bytes).unwrap_or(0);
        key(first.saturating_add(last))
            .saturating_sub(key(first))
            .saturating_add(1)
    }

    /// Returns the protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }

    /// Lets others destroy the domain, whoever else has a reference to the buffer.
    pub(crate) fn release(&self) {
        self.pd.release();
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.pages.len() as u64
    }
}

impl Counted for BufferObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
