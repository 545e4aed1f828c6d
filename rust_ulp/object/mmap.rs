// SPDX-License-Identifier: GPL-2.0

//! The offsets at which user space maps the objects of a file.
//!
//! Offsets are opaque to user space. All offsets are below 2^44 and are multiples of
//! [`UNIT`]: mmap2() of a 32-bit process has 32 bits for the offset in pages of 4 KiB, and pages
//! have at most 64 KiB. An offset is not used again before all others were used, so a stale one
//! finds nothing. Process context.

use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// The bytes of the largest page of any kernel.
const UNIT: u64 = 1 << 16;
/// The number of units below 2^44.
const UNITS: u64 = 1 << 28;

/// The units of an object, to the last one.
struct Range {
    first: u64,
    /// The handle of the object; 0 before it has one.
    handle: u32,
}

/// The ranges of a file. They do not overlap.
///
/// Their key is their last unit, so a search from a unit on finds the range that has it, or the next
/// one. They are in no maple tree: an erasure there allocates, and when that fails `mas_erase()`
/// (lib/maple_tree.c) returns the entry that stays in the tree, which the kernel crate then owns
/// twice.
struct Ranges {
    tree: RBTree<u64, Range>,
    /// The unit after the newest range.
    next: u64,
}

impl Ranges {
    /// Returns the first of `count` free units from unit `from` on.
    fn gap(&self, from: u64, count: u64) -> Option<u64> {
        let mut at = from;
        while let Some(found) = self.tree.cursor_lower_bound(&at) {
            let (last, range) = found.current();
            if range.first.saturating_sub(at) >= count {
                return Some(at);
            }
            at = last.saturating_add(1);
        }
        (UNITS.saturating_sub(at) >= count).then_some(at)
    }
}

/// The offsets of a file.
#[pin_data]
pub(crate) struct MmapOffsets {
    /// Lock order: after `mmap_lock`; no lock is taken under it.
    #[pin]
    ranges: Mutex<Ranges>,
}

impl MmapOffsets {
    /// Creates an empty set. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let ranges = Ranges {
            tree: RBTree::new(),
            // Offset 0 stands for no offset.
            next: 1,
        };
        Arc::pin_init(
            pin_init!(Self {
                ranges <- new_mutex!(ranges, "rust_ulp::MmapOffsets::ranges"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Reserves offsets for an object of `len` bytes. Sleeps.
    ///
    /// Returns [`ENOMEM`] if no range is free.
    pub(crate) fn reserve(self: &Arc<Self>, len: usize) -> Result<MmapOffset> {
        // One more, so that a mapping that begins after the object does not reach the next one.
        let count = (len as u64).div_ceil(UNIT).saturating_add(1);
        let mut ranges = self.ranges.lock();
        let first = ranges
            .gap(ranges.next, count)
            .or_else(|| ranges.gap(1, count))
            .ok_or(ENOMEM)?;
        let next = first.saturating_add(count);
        let last = next.saturating_sub(1);
        let range = Range { first, handle: 0 };
        ranges
            .tree
            .try_create_and_insert(last, range, GFP_KERNEL_ACCOUNT)?;
        ranges.next = next;
        drop(ranges);
        Ok(MmapOffset {
            offsets: self.clone(),
            first,
            last,
        })
    }

    /// Returns the handle of the object at `offset`, and the offset in the object. Sleeps.
    ///
    /// Returns [`None`] if there is no such object.
    pub(crate) fn find(&self, offset: u64) -> Option<(u32, usize)> {
        let ranges = self.ranges.lock();
        let found = ranges.tree.cursor_lower_bound(&(offset / UNIT))?;
        let (_, range) = found.current();
        let at = offset.checked_sub(range.first.checked_mul(UNIT)?)?;
        let at = usize::try_from(at).ok()?;
        (range.handle != 0).then_some((range.handle, at))
    }
}

/// A reserved range of offsets, until it is dropped.
pub(crate) struct MmapOffset {
    offsets: Arc<MmapOffsets>,
    first: u64,
    last: u64,
}

impl MmapOffset {
    /// Returns the first offset in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.first.saturating_mul(UNIT)
    }

    /// Sets the handle of the object, which lookups find from then on. Sleeps.
    pub(crate) fn set_handle(&self, handle: u32) {
        if let Some(range) = self.offsets.ranges.lock().tree.get_mut(&self.last) {
            range.handle = handle;
        }
    }
}

impl Drop for MmapOffset {
    fn drop(&mut self) {
        self.offsets.ranges.lock().tree.remove(&self.last);
    }
}

#[kunit_tests(rust_ulp_mmap)]
mod tests {
    use super::*;

    #[test]
    fn finds_objects_by_their_offsets() -> Result {
        let offsets = MmapOffsets::new()?;
        let one = offsets.reserve(1)?;
        let two = offsets.reserve(UNIT as usize + 1)?;
        assert!(one.bytes() != 0);
        assert_eq!(offsets.find(two.bytes()), None);
        one.set_handle(7);
        two.set_handle(8);
        assert_eq!(offsets.find(one.bytes() + 4096), Some((7, 4096)));
        assert_eq!(offsets.find(two.bytes()), Some((8, 0)));
        assert_eq!(offsets.find(two.bytes() + 70000), Some((8, 70000)));
        // The unit after an object is no other object's.
        assert_eq!(offsets.find(one.bytes() + UNIT), Some((7, UNIT as usize)));
        assert_eq!(offsets.find(two.bytes() + 3 * UNIT), None);
        assert_eq!(offsets.find(0), None);
        assert_eq!(offsets.find(u64::MAX), None);
        Ok(())
    }

    #[test]
    fn does_not_use_an_offset_again_soon() -> Result {
        let offsets = MmapOffsets::new()?;
        let one = offsets.reserve(1)?;
        one.set_handle(7);
        let stale = one.bytes();
        drop(one);
        let two = offsets.reserve(1)?;
        two.set_handle(8);
        assert_eq!(offsets.find(stale), None);
        // The range is used from its begin when its end is reached.
        offsets.ranges.lock().next = UNITS - 2;
        let last = offsets.reserve(1)?;
        assert_eq!(last.bytes(), (UNITS - 2) * UNIT);
        assert!(last.bytes() < 1 << 44);
        let first = offsets.reserve(1)?;
        assert_eq!(first.bytes(), stale);
        // Between `first` and `two` there is no room, and `two` is passed over.
        assert_eq!(
            offsets.reserve(1)?.bytes(),
            two.bytes().saturating_add(2 * UNIT)
        );
        assert!(offsets.reserve(usize::MAX).is_err());
        Ok(())
    }
}
