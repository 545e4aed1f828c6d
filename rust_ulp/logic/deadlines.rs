// SPDX-License-Identifier: GPL-2.0

//! The deadlines of the requests in a queue, the earliest first.
//!
//! A binary heap that knows the place of each slot: adding and removing a deadline, wherever it
//! stands, moves no more deadlines than the heap has levels.

use core::ops::DerefMut;

/// The deadline of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(unreachable_pub)]
pub struct Deadline {
    /// The time, in nanoseconds.
    pub at_ns: u64,
    /// The number of the request; orders deadlines of the same time.
    pub number: u64,
    /// The slot of the request.
    pub slot: u32,
}

/// The place of a slot that has no deadline.
const NOWHERE: u32 = u32::MAX;

/// The deadlines of a queue, at most one for each slot.
///
/// # Invariants
///
/// - The first `len` entries of `heap` are the deadlines. None is later than those at twice its
///   place plus one and plus two.
/// - `places` has the place in `heap` of each slot's deadline, [`NOWHERE`] for slots without one.
#[derive(Debug)]
#[allow(unreachable_pub)]
pub struct Deadlines<H, P> {
    heap: H,
    places: P,
    len: u32,
}

#[allow(unreachable_pub)]
impl<H: DerefMut<Target = [Deadline]>, P: DerefMut<Target = [u32]>> Deadlines<H, P> {
    /// Returns an empty heap; both arrays have an entry for each slot.
    pub fn new(heap: H, mut places: P) -> Self {
        places.fill(NOWHERE);
        // INVARIANT: No slot has a deadline.
        Self {
            heap,
            places,
            len: 0,
        }
    }

    /// Returns whether the arrays have no entries, so that [`Self::insert`] does nothing.
    pub fn is_unallocated(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns whether no slot has a deadline.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the earliest deadline.
    pub fn first(&self) -> Option<Deadline> {
        self.get(0)
    }

    /// Adds `deadline`, unless its slot has one or does not exist.
    pub fn insert(&mut self, deadline: Deadline) {
        let free = self.places.get(deadline.slot as usize) == Some(&NOWHERE);
        if free && (self.len as usize) < self.heap.len() {
            let place = self.len;
            self.len = self.len.saturating_add(1);
            self.sift_up(place, deadline);
        }
    }

    /// Removes the deadline of `slot`, if it has one.
    #[inline(always)]
    pub fn remove(&mut self, slot: u32) {
        if self.len > 0 {
            self.remove_if_any(slot);
        }
    }

    fn remove_if_any(&mut self, slot: u32) {
        let Some(place) = self.places.get_mut(slot as usize) else {
            return;
        };
        let place = core::mem::replace(place, NOWHERE);
        if place == NOWHERE {
            return;
        }
        let last = self.get(self.len.saturating_sub(1));
        self.len = self.len.saturating_sub(1);
        if let (Some(last), true) = (last, place < self.len) {
            let place = self.sift_up(place, last);
            self.sift_down(place, last);
        }
    }

    fn get(&self, place: u32) -> Option<Deadline> {
        (place < self.len).then(|| self.heap.get(place as usize).copied())?
    }

    fn set(&mut self, place: u32, deadline: Deadline) {
        if let Some(entry) = self.heap.get_mut(place as usize) {
            *entry = deadline;
        }
        if let Some(entry) = self.places.get_mut(deadline.slot as usize) {
            *entry = place;
        }
    }

    /// Moves later deadlines above `place` down, puts `deadline` where there is none, and returns
    /// where that is.
    fn sift_up(&mut self, mut place: u32, deadline: Deadline) -> u32 {
        while let Some(parent) = place.checked_sub(1).map(|below| below / 2) {
            match self.get(parent) {
                Some(above) if above > deadline => self.set(place, above),
                _ => break,
            }
            place = parent;
        }
        self.set(place, deadline);
        place
    }

    /// Moves earlier deadlines below `place` up, and puts `deadline` where there is none.
    fn sift_down(&mut self, mut place: u32, deadline: Deadline) {
        loop {
            let left = place.saturating_mul(2).saturating_add(1);
            let right = left.saturating_add(1);
            let child = match (self.get(left), self.get(right)) {
                (Some(a), Some(b)) if b < a => (right, b),
                (Some(a), _) => (left, a),
                (None, _) => break,
            };
            if child.1 > deadline {
                break;
            }
            self.set(place, child.1);
            place = child.0;
        }
        self.set(place, deadline);
    }
}
