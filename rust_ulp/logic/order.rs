// SPDX-License-Identifier: GPL-2.0

//! The order of the slots of a queue: the posted ones from the oldest to the newest, then the free
//! ones in the order of their next use.
//!
//! The slots form a circle. A queue that completes in order only moves the two ends of the posted
//! part: slots are used in turn, and no operation depends on how many slots it concerns.

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
/// - Following `next` of `links` from any slot visits each slot once, and `prev` is the way back.
/// - The `posted` slots from `first` on are posted. `free` is the one after them.
/// - The `used` slots from `first_used` on are free, and the last of them is before `first`.
#[derive(Debug)]
#[allow(unreachable_pub)]
pub struct Order<L> {
    links: L,
    first: u32,
    free: u32,
    posted: u32,
    first_used: u32,
    used: u32,
}

#[allow(unreachable_pub)]
impl<L: DerefMut<Target = [Link]>> Order<L> {
    /// Returns the order of free slots, one for each entry of `links`.
    pub fn new(mut links: L) -> Self {
        let last = (links.len() as u32).wrapping_sub(1);
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
            first: 0,
            free: 0,
            posted: 0,
            first_used: 0,
            used: 0,
        }
    }

    /// Returns the number of slots.
    pub fn depth(&self) -> u32 {
        self.links.len() as u32
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

    /// Returns the slot after `slot`, or `slot` when it does not exist.
    pub fn next(&self, slot: u32) -> u32 {
        self.links.get(slot as usize).map_or(slot, |link| link.next)
    }

    /// Returns the slot before `slot`, or `slot` when it does not exist.
    pub fn prev(&self, slot: u32) -> u32 {
        self.links.get(slot as usize).map_or(slot, |link| link.prev)
    }

    /// Makes the next free slot the newest posted one, and returns it.
    pub fn push(&mut self) -> Option<u32> {
        if self.posted >= self.depth() {
            return None;
        }
        let slot = self.free;
        self.free = self.next(slot);
        self.posted = self.posted.wrapping_add(1);
        if self.used > 0 && slot == self.first_used {
            self.used = self.used.wrapping_sub(1);
            self.first_used = self.free;
        }
        Some(slot)
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
    pub fn remove(&mut self, slot: u32) {
        if self.posted == 0 {
            return;
        }
        if slot == self.first {
            return self.free_oldest(slot, 1);
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
