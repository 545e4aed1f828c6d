// SPDX-License-Identifier: GPL-2.0

//! The heap of deadlines, against an ordered set, and how much of it an operation looks at.

use crate::logic::deadlines::{Deadline, Deadlines};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

/// An array that counts how often somebody looks at it.
struct Counted<'a, T>(Vec<T>, &'a Cell<u32>);

impl<T> Deref for Counted<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.1.set(self.1.get() + 1);
        &self.0
    }
}

impl<T> DerefMut for Counted<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.1.set(self.1.get() + 1);
        &mut self.0
    }
}

fn deadline(slot: u32, at_ns: u64, number: u64) -> Deadline {
    Deadline {
        at_ns,
        number,
        slot,
    }
}

proptest! {
    /// Each slot has the deadline that was added last since it was removed, and the earliest is first.
    #[test]
    fn is_an_ordered_set(steps in prop::collection::vec((0u32..24, 0u64..8, any::<bool>()), 1..200)) {
        let mut heap = Deadlines::new(vec![Deadline::default(); 20], vec![0; 20]);
        let mut model = BTreeSet::new();
        for (number, (slot, at, add)) in (0u64..).zip(steps) {
            if add {
                let new = deadline(slot, at, number);
                heap.insert(new);
                if slot < 20 && model.iter().all(|old: &Deadline| old.slot != slot) {
                    model.insert(new);
                }
            } else {
                heap.remove(slot);
                model.retain(|old| old.slot != slot);
            }
            prop_assert_eq!(heap.first(), model.first().copied());
        }
        while let Some(first) = model.pop_first() {
            prop_assert_eq!(heap.first(), Some(first));
            heap.remove(first.slot);
        }
        prop_assert_eq!(heap.first(), None);
    }
}

/// The cost of a deadline grows with the logarithm of how many there are: a queue of 256 times the
/// length costs not more than 4 times as much.
#[test]
fn costs_little_in_a_long_queue() {
    let most = |depth: u32| {
        let looks = Cell::new(0);
        let heap = Counted(vec![Deadline::default(); depth as usize], &looks);
        let places = Counted(vec![0; depth as usize], &looks);
        let mut heap = Deadlines::new(heap, places);
        let mut most = 0;
        let mut cost = |heap: &mut Deadlines<_, _>, step: &mut dyn FnMut(&mut Deadlines<_, _>)| {
            looks.set(0);
            step(heap);
            most = most.max(looks.get());
        };
        // Later ones first: each one that is added goes to the top.
        for slot in 0..depth {
            cost(&mut heap, &mut |heap| {
                heap.insert(deadline(slot, u64::from(depth - slot), 0));
            });
        }
        for _ in 0..depth {
            cost(&mut heap, &mut |heap| {
                let first = heap.first().expect("not empty");
                heap.remove(first.slot);
            });
        }
        most
    };
    let (short, long) = (most(64), most(16384));
    assert!(long <= 4 * short, "{long} looks, and {short} with 64 slots");
}
