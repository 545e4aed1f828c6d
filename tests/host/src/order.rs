// SPDX-License-Identifier: GPL-2.0

//! The order of slots, against two lists: the posted slots, and the free ones.

use crate::logic::order::{Link, Order};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Step {
    /// Posts so many.
    Push(usize),
    Pop,
    /// Frees so many of the oldest.
    FreeOldest(usize),
    /// Frees the posted slot of this rank.
    Remove(usize),
    /// Takes so many free slots that were posted.
    TakeUsed(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..4).prop_map(Step::Push),
        1 => Just(Step::Pop),
        1 => (0usize..8).prop_map(Step::FreeOldest),
        2 => (0usize..8).prop_map(Step::Remove),
        1 => (0usize..8).prop_map(Step::TakeUsed),
    ]
}

fn check(order: &Order<Vec<Link>>, posted: &VecDeque<u32>, free: &VecDeque<u32>, linked: bool) {
    assert_eq!(order.posted() as usize, posted.len());
    assert_eq!(order.first(), posted.front().copied());
    assert_eq!(order.last(), posted.back().copied());
    let Some(mut at) = posted.front().or(free.front()).copied() else {
        return;
    };
    for &slot in posted.iter().chain(free) {
        assert_eq!(at, slot);
        at = order.next(at);
        assert_eq!(order.prev(at), slot);
    }
    if !linked {
        for slot in 0..order.depth() + 2 {
            let place = posted.iter().position(|&at| at == slot);
            assert_eq!(order.place(slot), place.map(|place| place as u32));
        }
    }
}

proptest! {
    /// A circle without slots has none, and one of any size is two lists. Without links only the oldest
    /// slots are freed.
    #[test]
    fn is_two_lists(
        depth in 0u32..8,
        linked in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let links = if linked { depth as usize } else { 0 };
        let mut order = Order::new(depth, vec![Link::default(); links]);
        let mut posted = VecDeque::new();
        let mut free: VecDeque<u32> = (0..depth).collect();
        // The free slots that were posted and not taken since, at the end of `free`.
        let mut used = VecDeque::new();
        check(&order, &posted, &free, linked);
        for step in steps {
            match step {
                Step::Push(count) if count > free.len() => {
                    prop_assert_eq!(order.push(count as u32), None);
                }
                Step::Push(count) => {
                    let first = order.push(count as u32);
                    if count > 0 {
                        prop_assert_eq!(first, free.front().copied());
                    }
                    used.retain(|at| !free.range(..count).any(|slot| slot == at));
                    posted.extend(free.drain(..count));
                }
                Step::Pop => {
                    let slot = posted.pop_back();
                    prop_assert_eq!(order.pop(), slot);
                    if let Some(slot) = slot {
                        free.push_front(slot);
                        used = free.clone();
                    }
                }
                Step::FreeOldest(count) => {
                    let count = count.min(posted.len());
                    if let Some(&last) = posted.get(count.wrapping_sub(1)) {
                        order.free_oldest(last, count as u32);
                        used.extend(posted.range(..count));
                        free.extend(posted.drain(..count));
                    }
                }
                Step::Remove(rank) if !linked && rank > 0 => {
                    if let Some(&slot) = posted.get(rank) {
                        order.remove(slot);
                    }
                }
                Step::Remove(rank) => {
                    if let Some(slot) = posted.remove(rank) {
                        order.remove(slot);
                        free.push_back(slot);
                        used.push_back(slot);
                    }
                }
                Step::TakeUsed(count) => {
                    for _ in 0..count {
                        prop_assert_eq!(order.take_used(), used.pop_front());
                    }
                }
            }
            check(&order, &posted, &free, linked);
        }
    }
}
