// SPDX-License-Identifier: GPL-2.0

//! The deadlines of a queue, against a map.

use crate::logic::deadlines::Deadlines;
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
