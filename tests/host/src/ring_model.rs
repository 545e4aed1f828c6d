// SPDX-License-Identifier: GPL-2.0

//! Producer and consumer on two threads, in every order that the memory model allows (loom).

use crate::logic::ring::{Consumer, Producer, SharedIndex};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;

/// An index with the orderings that the ring asks for, or weaker ones.
struct Index {
    value: AtomicU32,
    load: Ordering,
    store: Ordering,
}

impl Index {
    fn new(load: Ordering, store: Ordering) -> Self {
        Self {
            value: AtomicU32::new(0),
            load,
            store,
        }
    }
}

impl SharedIndex for Index {
    fn load_acquire(&self) -> u32 {
        self.value.load(self.load)
    }

    fn store_release(&self, value: u32) {
        self.value.store(value, self.store);
    }
}

/// An entry of two halves that are written one after the other. Loom reports whoever reads it while
/// it is written, or without having seen that it was written.
struct Entry(UnsafeCell<[u32; 2]>);

struct Shared {
    head: Index,
    tail: Index,
    entries: Vec<Entry>,
}

// SAFETY: Loom checks every access to the cells.
unsafe impl Sync for Shared {}
// SAFETY: As above.
unsafe impl Send for Shared {}

/// `count` entries through a ring of `entries`. The consumer gives back at once, or after all that it
/// saw.
fn run(entries: u32, count: u32, at_once: bool, orderings: [Ordering; 4]) {
    let [tail_load, tail_store, head_load, head_store] = orderings;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Shared {
            head: Index::new(head_load, head_store),
            tail: Index::new(tail_load, tail_store),
            entries: (0..entries)
                .map(|_| Entry(UnsafeCell::new([0; 2])))
                .collect(),
        });
        let consumer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut consumer = Consumer::new(entries).unwrap();
                let mut next = 1;
                while next <= count {
                    if consumer.refresh(&shared.tail).unwrap() == 0 {
                        thread::yield_now();
                        continue;
                    }
                    while let Some(slot) = consumer.slot() {
                        let entry = &shared.entries[slot as usize];
                        // SAFETY: Checked by loom.
                        let got = entry.0.with(|entry| unsafe { *entry });
                        // None is lost, none comes twice, none is half old.
                        assert_eq!(got, [next, !next]);
                        next += 1;
                        consumer.advance();
                        if at_once {
                            consumer.release(&shared.head);
                        }
                    }
                    consumer.release(&shared.head);
                }
                assert_eq!(consumer.refresh(&shared.tail), Ok(0));
            })
        };
        let mut producer = Producer::new(entries);
        for number in 1..=count {
            let slot = loop {
                match producer.slot() {
                    Some(slot) => break slot,
                    None if producer.refresh(&shared.head) < entries => {}
                    None => thread::yield_now(),
                }
            };
            shared.entries[slot as usize].0.with_mut(|entry| {
                // SAFETY: Checked by loom.
                unsafe {
                    (*entry)[0] = number;
                    (*entry)[1] = !number;
                }
            });
            producer.publish(&shared.tail);
        }
        consumer.join().unwrap();
        assert_eq!(producer.refresh(&shared.head), 0);
    });
}

const RIGHT: [Ordering; 4] = [
    Ordering::Acquire,
    Ordering::Release,
    Ordering::Acquire,
    Ordering::Release,
];

#[test]
fn nothing_is_lost_doubled_or_torn() {
    run(1, 3, true, RIGHT);
    run(2, 3, true, RIGHT);
    run(2, 4, false, RIGHT);
}

/// Weakens one of the four orderings.
fn without(which: usize) {
    let mut orderings = RIGHT;
    orderings[which] = Ordering::Relaxed;
    run(2, 3, true, orderings);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn consumer_has_to_acquire_the_tail() {
    without(0);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn producer_has_to_release_the_tail() {
    without(1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn producer_has_to_acquire_the_head() {
    without(2);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn consumer_has_to_release_the_head() {
    without(3);
}

/// One thread writes entries, another one writes anything into the tail, and the consumer takes what
/// it finds. Whatever the order, it takes no more entries than there are, each index once, and the
/// head that it tells does not go back.
#[test]
fn a_hostile_tail_takes_no_entry_twice() {
    const ENTRIES: u32 = 2;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let index = || Index::new(Ordering::Acquire, Ordering::Release);
        let shared = Arc::new((index(), index()));
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut producer = Producer::new(ENTRIES);
                for _ in 0..2 {
                    producer.refresh(&shared.0);
                    producer.publish(&shared.1);
                }
            })
        };
        let hostile = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.1.store_release(u32::MAX);
                shared.1.store_release(ENTRIES);
                shared.1.store_release(ENTRIES + 1);
            })
        };
        let (head, tail) = &*shared;
        let mut consumer = Consumer::new(ENTRIES).unwrap();
        let mut taken = 0;
        for _ in 0..2 {
            let Ok(ready) = consumer.refresh(tail) else {
                continue;
            };
            assert!(ready <= ENTRIES);
            let mut slots = 0;
            while consumer.slot().is_some() {
                consumer.advance();
                slots += 1;
            }
            assert_eq!(slots, ready);
            consumer.release(head);
            assert_eq!(head.load_acquire(), taken + ready);
            taken += ready;
        }
        writer.join().unwrap();
        hostile.join().unwrap();
    });
}
