// SPDX-License-Identifier: GPL-2.0

//! The order of the slots of a queue: the posted ones from the oldest to the newest, then the free
//! ones in the order of their next use.
//!
//! The slots form a circle. A queue that completes in order only moves the two ends of the posted
//! part: slots are used in turn, and no operation depends on how many slots it concerns. Where slots
//! complete in any order, each one has links to its neighbors.

use core::ops::DerefMut;

/// The neighbors of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Link {
    next: u32,
    prev: u32,
}

/// The order of slots.
///
/// # Invariants
///
/// - `links` has no entries, and the slot after each is the one with the next number, or it has an
///   entry for each slot.
/// - Following `next` from any slot visits each slot once, and `prev` is the way back.
/// - The `posted` slots from `first` on are posted. `free` is the one after them.
/// - The `used` slots from `first_used` on are free, and the last of them is before `first`.
#[derive(Debug)]
#[allow(unreachable_pub)]
pub struct Order<L> {
    links: L,
    depth: u32,
    first: u32,
    free: u32,
    posted: u32,
    first_used: u32,
    used: u32,
}

#[allow(unreachable_pub)]
impl<L: DerefMut<Target = [Link]>> Order<L> {
    /// Returns the order of `depth` free slots. With an entry of `links` for each,
    /// [`Self::remove`] frees any of them; with none, only the oldest one.
    pub fn new(depth: u32, mut links: L) -> Self {
        let last = depth.wrapping_sub(1);
        for (index, link) in super::numbered(links.iter_mut()) {
            *link = Link {
                next: if index == last {
                    0
                } else {
                    index.wrapping_add(1)
                },
                prev: if index == 0 {
                    last
                } else {
                    index.wrapping_sub(1)
                },
            };
        }
        // INVARIANT: The circle was just made, and no slot is posted.
        Self {
            links,
            depth,
            first: 0,
            free: 0,
            posted: 0,
            first_used: 0,
            used: 0,
        }
    }

    /// Returns the number of slots.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of posted slots.
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns the oldest posted slot.
    pub fn first(&self) -> Option<u32> {
        (self.posted > 0).then_some(self.first)
    }

    /// Returns the newest posted slot.
    pub fn last(&self) -> Option<u32> {
        (self.posted > 0).then(|| self.prev(self.free))
    }

    /// Returns the slot after `slot`, which exists.
    #[inline(always)]
    pub fn next(&self, slot: u32) -> u32 {
        match self.links.get(slot as usize) {
            Some(link) => link.next,
            None => match slot.wrapping_add(1) {
                next if next < self.depth => next,
                _ => 0,
            },
        }
    }

    /// Returns the slot before `slot`, which exists.
    #[inline(always)]
    pub fn prev(&self, slot: u32) -> u32 {
        match self.links.get(slot as usize) {
            Some(link) => link.prev,
            None if slot == 0 => self.depth.wrapping_sub(1),
            None => slot.wrapping_sub(1),
        }
    }

    /// Returns the number of posted slots that are older than `slot`, if that is posted. Without
    /// links only.
    #[inline(always)]
    pub fn place(&self, slot: u32) -> Option<u32> {
        let around = if slot < self.first { self.depth } else { 0 };
        let place = slot.wrapping_add(around).wrapping_sub(self.first);
        (slot < self.depth && place < self.posted).then_some(place)
    }

    /// Makes the next `count` free slots the newest posted ones. Returns the first of them, or [`None`]
    /// if there are not that many.
    pub fn push(&mut self, count: u32) -> Option<u32> {
        let free = self.depth.checked_sub(self.posted)?.checked_sub(count)?;
        let first = self.free;
        if self.links.is_empty() {
            let to_end = self.depth.wrapping_sub(first);
            self.free = match count.checked_sub(to_end) {
                Some(around) => around,
                None => first.wrapping_add(count),
            };
        } else {
            for _ in 0..count {
                self.free = self.next(self.free);
            }
        }
        self.posted = self.posted.wrapping_add(count);
        // The used slots are the last of the free ones.
        if self.used > free {
            self.used = free;
            self.first_used = self.free;
        }
        Some(first)
    }

    /// Returns a free slot that was posted before, each once until it is posted again.
    pub fn take_used(&mut self) -> Option<u32> {
        self.used = self.used.checked_sub(1)?;
        let slot = self.first_used;
        self.first_used = self.next(slot);
        Some(slot)
    }

    /// Notes that the `count` slots from `slot` on, which are before `first`, were posted.
    fn add_used(&mut self, slot: u32, count: u32) {
        if self.used == 0 {
            self.first_used = slot;
        }
        self.used = self.used.saturating_add(count);
    }

    /// Frees the newest posted slot, which is the next one to be used. [`Self::take_used`] returns it
    /// and all other free slots.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.last()?;
        self.free = slot;
        self.posted = self.posted.wrapping_sub(1);
        self.first_used = slot;
        self.used = self.depth().saturating_sub(self.posted);
        Some(slot)
    }

    /// Frees the `count` oldest posted slots, the newest of which is `slot`.
    pub fn free_oldest(&mut self, slot: u32, count: u32) {
        self.add_used(self.first, count);
        self.first = self.next(slot);
        self.posted = self.posted.saturating_sub(count);
    }

    /// Frees the posted slot `slot`, wherever it stands. It is used after the other free ones.
    /// Without links, frees the oldest slot only.
    pub fn remove(&mut self, slot: u32) {
        if self.posted == 0 {
            return;
        }
        if slot == self.first {
            return self.free_oldest(slot, 1);
        }
        if self.links.is_empty() {
            return;
        }
        let (before, after) = (self.prev(slot), self.next(slot));
        self.link(before, after);
        if self.free == self.first {
            // No slot was free: this one is the only one.
            self.free = slot;
        }
        // The slots before the first one are free.
        let last = self.prev(self.first);
        self.link(last, slot);
        self.link(slot, self.first);
        self.posted = self.posted.wrapping_sub(1);
        self.add_used(slot, 1);
    }

    /// Makes `after` follow `before`.
    fn link(&mut self, before: u32, after: u32) {
        if let Some(link) = self.links.get_mut(before as usize) {
            link.next = after;
        }
        if let Some(link) = self.links.get_mut(after as usize) {
            link.prev = before;
        }
    }
}
