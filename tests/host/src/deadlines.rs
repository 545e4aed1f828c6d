// SPDX-License-Identifier: GPL-2.0

//! The deadlines of a queue, against a map.

use crate::logic::deadlines::{rounded, Deadlines};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The slots of the queue; the steps name a few more.
const DEPTH: u32 = 20;

proptest! {
    #[test]
    fn each_slot_has_the_deadline_that_was_set_last(
        steps in prop::collection::vec((0..DEPTH + 4, 1u64..8, any::<bool>()), 1..200),
    ) {
        let mut deadlines = Deadlines::new(vec![7; DEPTH as usize]);
        let mut model = BTreeMap::new();
        for (slot, at_ns, set) in steps {
            if set {
                deadlines.set(slot, at_ns);
                if slot < DEPTH {
                    model.insert(slot, at_ns);
                }
            } else {
                deadlines.remove(slot);
                model.remove(&slot);
            }
            prop_assert_eq!(deadlines.is_empty(), model.is_empty());
            for slot in 0..DEPTH + 4 {
                prop_assert_eq!(deadlines.get(slot), model.get(&slot).copied().unwrap_or(0));
            }
        }
    }
}

#[test]
fn a_queue_without_memory_for_deadlines_has_none() {
    let mut deadlines = Deadlines::new(Vec::new());
    deadlines.set(0, 1);
    deadlines.remove(0);
    assert!(deadlines.is_empty());
    assert_eq!(deadlines.get(0), 0);
    *deadlines.times_mut() = vec![0];
    deadlines.set(0, 1);
    assert_eq!(deadlines.get(0), 1);
}

#[test]
fn a_timer_looks_at_1024_slots_in_each_step_at_most() {
    const STEP: u64 = 1 << 20;
    for (slots, steps) in [
        (0, 1),
        (1, 1),
        (1024, 1),
        (1025, 2),
        (16384, 16),
        (u32::MAX, 1 << 22),
    ] {
        let unit = steps * STEP;
        let times = [1, unit - 1, unit, unit + 1].map(|at_ns| rounded(at_ns, slots));
        assert_eq!(times, [unit, unit, unit, 2 * unit], "{slots} slots");
        assert_eq!(rounded(u64::MAX, slots), u64::MAX);
    }
}
