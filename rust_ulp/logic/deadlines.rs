// SPDX-License-Identifier: GPL-2.0

//! The deadlines of the requests in a queue, by their slots.

use core::ops::DerefMut;

/// How many slots the worker of a queue looks at in [`STEP`], at most: all of them each time that the
/// timer fires.
const SLOTS_IN_STEP: u32 = 1024;

/// The granularity of deadlines in a queue of no more slots, in nanoseconds.
const STEP: u64 = 1 << 20;

/// Returns when the deadline `at_ns` passes in a queue with `slots` slots: not before, and at a multiple
/// of [`STEP`] for each [`SLOTS_IN_STEP`], or part of these.
#[allow(unreachable_pub)]
pub fn rounded(at_ns: u64, slots: u32) -> u64 {
    let steps = slots.div_ceil(SLOTS_IN_STEP).max(1);
    at_ns
        .checked_next_multiple_of(STEP.saturating_mul(steps.into()))
        .unwrap_or(u64::MAX)
}

/// The deadlines of a queue, at most one for each slot.
///
/// # Invariants
///
/// `count` entries of `times` are not 0.
#[derive(Debug)]
#[allow(unreachable_pub)]
pub struct Deadlines<A> {
    /// The deadline of each slot in nanoseconds, 0 for none.
    times: A,
    count: u32,
}

#[allow(unreachable_pub)]
impl<A: DerefMut<Target = [u64]>> Deadlines<A> {
    /// Returns a queue's deadlines, of which there are none. `times` has an entry for each slot, or
    /// has no entries: then [`Self::set`] does nothing.
    pub fn new(mut times: A) -> Self {
        times.fill(0);
        // INVARIANT: No slot has a deadline.
        Self { times, count: 0 }
    }

    /// Returns the array. The caller may replace it, while it has no entries, by one that has zeroes.
    pub fn times_mut(&mut self) -> &mut A {
        &mut self.times
    }

    /// Returns whether no slot has a deadline.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the deadline of `slot`; 0 if it has none, or does not exist.
    pub fn get(&self, slot: u32) -> u64 {
        self.times.get(slot as usize).copied().unwrap_or(0)
    }

    /// Sets the deadline of `slot` to `at_ns`, which is not 0. Does nothing if the slot does not
    /// exist.
    pub fn set(&mut self, slot: u32, at_ns: u64) {
        self.remove(slot);
        if let Some(time) = self.times.get_mut(slot as usize) {
            // INVARIANT: The entry was 0.
            *time = at_ns.max(1);
            self.count = self.count.saturating_add(1);
        }
    }

    /// Removes the deadline of `slot`, if it has one.
    #[inline(always)]
    pub fn remove(&mut self, slot: u32) {
        if self.count > 0 {
            self.remove_if_any(slot);
        }
    }

    fn remove_if_any(&mut self, slot: u32) {
        if let Some(time @ 1..) = self.times.get_mut(slot as usize) {
            *time = 0;
            self.count = self.count.saturating_sub(1);
        }
    }
}
