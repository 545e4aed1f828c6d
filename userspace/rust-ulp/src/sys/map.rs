// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that is shared with the kernel and with devices.

use super::{File, Process};
use crate::abi;
use crate::ring::SharedIndex;
use nix::errno::Errno;
use nix::sys::mman::{madvise, mmap, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Returns the address of memory that a request reads while it is submitted.
pub(crate) fn address_of<T>(slice: &[T]) -> u64 {
    slice.as_ptr().expose_provenance() as u64
}

/// Memory that is shared with the kernel, devices and whoever they let write to it: of the device
/// file or of a dma-buf, or anonymous to be registered.
///
/// # Invariants
///
/// `base` is the address of a mapping of `len` bytes, readable, and writable if `writable` says so,
/// which nothing unmaps before this is dropped. Both are multiples of 8.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) base: NonNull<libc::c_void>,
    pub(super) len: usize,
    writable: bool,
    /// The process that unmaps it when this is dropped; [`None`] if somebody else owns the memory.
    owner: Option<Process>,
}

// SAFETY: A mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: All access through a shared reference is atomic.
unsafe impl Sync for Mapping {}

/// Rounds a length up, as mmap() does.
fn whole(len: u64, multiple: usize) -> Result<NonZeroUsize, Errno> {
    usize::try_from(len)
        .ok()
        .and_then(|len| len.checked_next_multiple_of(multiple))
        .and_then(NonZeroUsize::new)
        .ok_or(Errno::EOVERFLOW)
}

impl Mapping {
    /// Maps `len` bytes of `file`, rounded up to whole words, at `offset`, to be read and written.
    pub(crate) fn new(file: &impl AsFd, offset: u64, len: u64) -> Result<Self, Errno> {
        Self::shared(file, offset, len, true)
    }

    /// Maps as [`Self::new`], to be read, and written only if `writable`. A forked child does not get
    /// the mapping, whatever the file's driver says of it.
    pub(crate) fn shared(
        file: &impl AsFd,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let len = whole(len, 8)?;
        let mut prot = ProtFlags::PROT_READ;
        prot.set(ProtFlags::PROT_WRITE, writable);
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        let owner = Process::this()?;
        // SAFETY: A new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, file, offset) }?;
        // INVARIANT: mmap() returned a mapping of this length; pages are aligned.
        let map = Self {
            base,
            len: len.get(),
            writable,
            owner: Some(owner),
        };
        map.hide_from_children()?;
        Ok(map)
    }

    /// Leaves the mapping, which is this process's own, out of what a forked child gets.
    fn hide_from_children(&self) -> Result<(), Errno> {
        // SAFETY: It is all ours, and what is advised leaves its contents as they are.
        unsafe { madvise(self.base, self.len, MmapAdvise::MADV_DONTFORK) }
    }

    /// Describes memory of `len` bytes at `base` that somebody else owns, who also decides whether
    /// a forked child gets it. Fails with `EFAULT` for a null pointer, and with `EINVAL` unless
    /// both are multiples of 8.
    ///
    /// # Safety
    ///
    /// Until this is dropped the memory stays mapped, readable and writable, and this process
    /// accesses it by aligned atomics of 8 bytes only, if at all while others do.
    pub(crate) unsafe fn borrowed(base: *mut u8, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base).ok_or(Errno::EFAULT)?;
        if base.addr().get() % 8 != 0 || len % 8 != 0 {
            return Err(Errno::EINVAL);
        }
        // INVARIANT: What the caller promised, and what was checked.
        Ok(Self {
            base: base.cast(),
            len,
            writable: true,
            owner: None,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// Maps `len` bytes of zeros, which belong to this process alone.
    fn zeros(len: NonZeroUsize, owner: Option<Process>) -> Result<Self, Errno> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }?;
        // INVARIANT: mmap() returned a mapping of this length; pages are aligned.
        Ok(Self {
            base,
            len: len.get(),
            writable: true,
            owner,
        })
    }

    /// Maps `len` bytes of zeros that belong to this process alone, rounded up to whole pages of 4
    /// KiB, or of 2 MiB with `huge`, of which the kernel is asked to make them. A forked child does
    /// not get them.
    pub(crate) fn anonymous(len: u64, huge: bool) -> Result<Self, Errno> {
        let len = whole(len, if huge { 2 << 20 } else { 4096 })?;
        let map = Self::zeros(len, Some(Process::this()?))?;
        map.hide_from_children()?;
        if huge {
            // A kernel without huge pages says no, and small ones do.
            // SAFETY: It is all ours, and what is advised leaves its contents as they are.
            let _ = unsafe { madvise(map.base, map.len, MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(map)
    }

    /// Maps a page of zeros that stays for as long as the process, and that a forked child gets as
    /// zeros again.
    pub(super) fn wiped_on_fork() -> Result<Self, Errno> {
        let map = Self::zeros(whole(1, 4096)?, None)?;
        // SAFETY: It is all ours, and what is advised leaves its contents here as they are.
        unsafe { madvise(map.base, map.len, MmapAdvise::MADV_WIPEONFORK) }?;
        Ok(map)
    }

    /// Returns true if the memory may be stored to. A store to memory that is mapped for reading
    /// raises a signal.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the memory as words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: By the type invariants this is `len / 8` aligned words that stay mapped as long
        // as `self` is borrowed. Any bytes are a valid AtomicU64, which may change behind a shared
        // reference. The kernel's and the devices' accesses are outside of this program; those of
        // this program all go through this slice and have this size, or through a `RingMap`, which
        // keeps words of its header (u32) and all others (u64) apart.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.owner.is_some_and(Process::is_this) {
            // A forked child does not have this mapping, and may have another one at its address.
            return;
        }
        // SAFETY: By the type invariants it is ours, and all borrows of it have ended. A failure
        // would leave it mapped, which harms nobody.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// An index of a completion ring.
pub(crate) struct Index<'a>(&'a AtomicU32);

impl SharedIndex for Index<'_> {
    fn load_acquire(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

/// The mapping of a completion ring.
///
/// # Invariants
///
/// The mapping is longer than the ring's header.
#[derive(Debug)]
pub(crate) struct RingMap {
    map: Mapping,
}

const _: () = assert!(
    size_of::<abi::CqRing>() <= abi::CQ_ENTRIES_OFFSET
        && size_of::<abi::Cqe>() == 64
        && abi::CQ_ENTRIES_OFFSET % 8 == 0
);

impl RingMap {
    /// Maps a ring of `entries` entries.
    pub(crate) fn new(file: &File, offset: u64, len: u64, entries: u32) -> Result<Self, Errno> {
        let need = u64::from(entries)
            .saturating_mul(u64::from(abi::Cqe::SIZE))
            .saturating_add(abi::CQ_ENTRIES_OFFSET as u64);
        if len < need {
            return Err(Errno::EPROTO);
        }
        // INVARIANT: `need` is more than the header.
        Ok(Self {
            map: Mapping::new(file, offset, len)?,
        })
    }

    fn header(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0 && offset < size_of::<abi::CqRing>());
        // SAFETY: `offset` is one of the four below: within the header, which by the type
        // invariants is within the mapping, and aligned. All accesses of this program to the header
        // are of this size. It stays mapped as long as `self` is borrowed.
        unsafe { AtomicU32::from_ptr(self.map.base.as_ptr().cast::<u8>().add(offset).cast()) }
    }

    pub(crate) fn head(&self) -> Index<'_> {
        Index(self.header(std::mem::offset_of!(abi::CqRing, head)))
    }

    pub(crate) fn tail(&self) -> Index<'_> {
        Index(self.header(std::mem::offset_of!(abi::CqRing, tail)))
    }

    pub(crate) fn flags(&self) -> u32 {
        self.header(std::mem::offset_of!(abi::CqRing, flags))
            .load(Ordering::Acquire)
    }

    pub(crate) fn dropped(&self) -> u32 {
        self.header(std::mem::offset_of!(abi::CqRing, dropped))
            .load(Ordering::Relaxed)
    }

    /// Copies the entry at `slot` out, or [`None`] when the ring has no such entry.
    pub(crate) fn entry(&self, slot: u32) -> Option<abi::Cqe> {
        let first = usize::try_from(slot)
            .ok()?
            .checked_mul(CQE_WORDS)?
            .checked_add(abi::CQ_ENTRIES_OFFSET / 8)?;
        copy_cqe(self.map.words(), first)
    }
}

/// Words of a completion.
const CQE_WORDS: usize = size_of::<abi::Cqe>() / 8;

/// Copies the completion that begins at word `first` out.
fn copy_cqe(words: &[AtomicU64], first: usize) -> Option<abi::Cqe> {
    let words = words.get(first..)?.first_chunk::<CQE_WORDS>()?;
    let copy: [u64; CQE_WORDS] = std::array::from_fn(|i| match words.get(i) {
        Some(word) => word.load(Ordering::Relaxed),
        None => 0,
    });
    // SAFETY: Both are 64 bytes without padding, and any bytes are a valid `Cqe`.
    Some(unsafe { std::mem::transmute::<[u64; CQE_WORDS], abi::Cqe>(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::holds_in_child;
    use nix::sys::memfd::{memfd_create, MFdFlags};

    #[test]
    fn a_child_does_not_unmap_what_it_does_not_have() {
        let file = memfd_create(c"dmabuf", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&file, 4096).unwrap();
        for map in [
            Mapping::anonymous(4096, false),
            Mapping::new(&file, 0, 4096),
            Mapping::shared(&file, 0, 100, false),
        ] {
            let map = map.unwrap();
            assert!(holds_in_child(move || {
                // The child has other memory at that address.
                let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
                let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
                let (at, len) = (Some(map.base.addr()), whole(4096, 8).unwrap());
                // SAFETY: Nothing is mapped there.
                let own = unsafe { mmap_anonymous(at, len, prot, flags) }.unwrap();
                let own = own.cast::<u8>().as_ptr();
                // SAFETY: It was mapped above.
                unsafe { own.write_volatile(7) };
                drop(map);
                // SAFETY: As above; the drop does not end it.
                (unsafe { own.read_volatile() }) == 7
            }));
        }
    }
}
