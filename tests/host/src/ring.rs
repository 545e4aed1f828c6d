// SPDX-License-Identifier: GPL-2.0

//! The ring against a hostile other side, on one thread. `ring_model.rs` has the threads.

use crate::logic::ring::{Consumer, Corrupt, Producer, SharedIndex};
use proptest::prelude::*;
use std::cell::Cell;

/// An index that anybody may write.
#[derive(Default)]
struct Index(Cell<u32>);

impl SharedIndex for Index {
    fn load_acquire(&self) -> u32 {
        self.0.get()
    }

    fn store_release(&self, value: u32) {
        self.0.set(value);
    }
}

/// A producer whose indices stand at `at`, and the cell that it publishes to.
fn producer_at(entries: u32, at: u32) -> Producer {
    // In steps: the producer believes no more than it wrote.
    let mut producer = Producer::new(entries);
    let (head, tail) = (Index::default(), Index::default());
    let near = at % (1 << 16);
    for _ in 0..near {
        producer.publish(&tail);
        head.0.set(producer.tail());
        producer.refresh(&head);
    }
    producer
}

#[derive(Clone, Debug)]
enum Step {
    /// The other side writes anything into its index.
    Scribble(u32),
    /// The other side writes something near what is believed.
    Near(i32),
    Refresh,
    Publish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::<u32>().prop_map(Step::Scribble),
        3 => (-40i32..40).prop_map(Step::Near),
        3 => Just(Step::Refresh),
        4 => Just(Step::Publish),
    ]
}

proptest! {
    #[test]
    fn producer_keeps_its_head(
        entries in prop_oneof![0u32..40, any::<u32>()],
        start in 0u32..200,
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut producer = producer_at(entries, start);
        let len = producer.entries();
        prop_assert!(len.is_power_of_two());
        prop_assert!(len >= entries.min(1 << 31));
        let (head, tail) = (Index::default(), Index::default());
        head.0.set(producer.tail());
        tail.0.set(producer.tail());
        // What the producer may take the consumer to have: from `believed` to `written`.
        let mut written = producer.tail();
        let mut believed = producer.tail();
        for step in steps {
            match step {
                Step::Scribble(value) => head.0.set(value),
                Step::Near(by) => head.0.set(believed.wrapping_add_signed(by)),
                Step::Refresh => {
                    let said = head.0.get();
                    let unread = producer.refresh(&head);
                    // A sane value is believed, any other changes nothing.
                    if said.wrapping_sub(believed) <= written.wrapping_sub(believed) {
                        believed = said;
                    }
                    prop_assert_eq!(unread, written.wrapping_sub(believed));
                }
                Step::Publish => {
                    let room = written.wrapping_sub(believed) < len;
                    match producer.slot() {
                        Some(slot) => {
                            prop_assert!(room);
                            prop_assert!(slot < len);
                            prop_assert_eq!(slot, written % len);
                        }
                        None => prop_assert!(!room),
                    }
                    producer.publish(&tail);
                    if room {
                        written = written.wrapping_add(1);
                    }
                }
            }
            prop_assert_eq!(producer.tail(), written);
            prop_assert_eq!(tail.0.get(), written);
            prop_assert!(producer.unread() <= len);
            prop_assert_eq!(producer.unread(), written.wrapping_sub(believed));
        }
    }

    #[test]
    fn consumer_calls_nonsense_corrupt(
        bits in 0u32..=31,
        steps in prop::collection::vec((any::<bool>(), any::<u32>(), 0u32..8), 1..200),
    ) {
        let entries = 1u32 << bits;
        let mut consumer = Consumer::new(entries).unwrap();
        let (head, tail) = (Index::default(), Index::default());
        let mut read = 0u32;
        for (near, value, take) in steps {
            let said = if near { read.wrapping_add(value % 6) } else { value };
            tail.0.set(said);
            let before = consumer.ready();
            match consumer.refresh(&tail) {
                Ok(ready) => {
                    prop_assert!(said.wrapping_sub(read) <= entries);
                    prop_assert_eq!(ready, said.wrapping_sub(read));
                }
                Err(Corrupt) => {
                    prop_assert!(said.wrapping_sub(read) > entries);
                    // What was ready before still is.
                    prop_assert_eq!(consumer.ready(), before);
                }
            }
            for _ in 0..take {
                let ready = consumer.ready();
                prop_assert!(ready <= entries);
                match consumer.slot() {
                    Some(slot) => {
                        prop_assert!(ready > 0);
                        prop_assert_eq!(slot, read & (entries - 1));
                        read = read.wrapping_add(1);
                    }
                    None => prop_assert_eq!(ready, 0),
                }
                consumer.advance();
            }
            consumer.release(&head);
            prop_assert_eq!(head.0.get(), read);
        }
    }

    /// The two together, each at its own pace: a queue.
    #[test]
    fn both_together_are_a_queue(
        bits in 0u32..6,
        steps in prop::collection::vec((any::<bool>(), 1u32..20), 1..200),
    ) {
        let entries = 1u32 << bits;
        let (mut producer, mut consumer) =
            (Producer::new(entries), Consumer::new(entries).unwrap());
        let (head, tail) = (Index::default(), Index::default());
        let mut ring = vec![0u32; entries as usize];
        let (mut written, mut read) = (0u32, 0u32);
        for (produce, count) in steps {
            if produce {
                producer.refresh(&head);
                for _ in 0..count {
                    let Some(slot) = producer.slot() else {
                        prop_assert_eq!(written - read, entries);
                        break;
                    };
                    ring[slot as usize] = written;
                    producer.publish(&tail);
                    written += 1;
                }
            } else {
                let ready = consumer.refresh(&tail).unwrap();
                prop_assert_eq!(ready, written - read);
                for _ in 0..count.min(ready) {
                    prop_assert_eq!(ring[consumer.slot().unwrap() as usize], read);
                    consumer.advance();
                    read += 1;
                }
                consumer.release(&head);
            }
        }
    }
}

/// The producer's whole index space once around: 2^32 entries are more than a test can publish one
/// by one, so the last stretch before the wrap is reached through a consumer of the same arithmetic.
#[test]
fn indices_run_over_the_end() {
    let (head, tail) = (Index::default(), Index::default());
    let mut consumer = Consumer::new(4).unwrap();
    // Nothing but the difference of two indices counts, so walk in steps of the ring's length.
    let mut big = Consumer::new(1 << 31).unwrap();
    tail.0.set(1 << 31);
    assert_eq!(big.refresh(&tail), Ok(1 << 31));
    tail.0.set((1 << 31) + 1);
    assert_eq!(big.refresh(&tail), Err(Corrupt));
    tail.0.set(u32::MAX);
    assert_eq!(consumer.refresh(&tail), Err(Corrupt));
    tail.0.set(4);
    assert_eq!(consumer.refresh(&tail), Ok(4));
    tail.0.set(5);
    assert_eq!(consumer.refresh(&tail), Err(Corrupt));
    consumer.release(&head);
    assert_eq!(head.0.get(), 0);
}

#[test]
fn lengths() {
    assert!(Consumer::new(0).is_none());
    assert!(Consumer::new(3).is_none());
    assert!(Consumer::new(u32::MAX).is_none());
    for (asked, got) in [
        (0, 1),
        (1, 1),
        (3, 4),
        (1 << 31, 1 << 31),
        (u32::MAX, 1 << 31),
    ] {
        assert_eq!(Producer::new(asked).entries(), got);
    }
}
