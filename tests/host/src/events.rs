// SPDX-License-Identifier: GPL-2.0

//! The order of a file's events, against a list without end.

use crate::logic::events::{Queue, Record, MAX, PLACES};
use crate::uapi::abi;
use proptest::prelude::*;
use std::cell::Cell;

fn record(info: u32) -> abi::Event {
    abi::Event {
        event: abi::EVENT_GID_CHANGE,
        info,
        time_ns: u64::from(info),
        ..abi::Event::default()
    }
}

struct Log {
    queue: Queue<abi::Event>,
    places: Vec<abi::Event>,
}

impl Log {
    fn new() -> Self {
        Self {
            queue: Queue::new(),
            places: vec![abi::Event::default(); PLACES as usize],
        }
    }

    fn push(&mut self, info: u32) {
        self.queue.push(&mut self.places, record(info));
    }

    fn pop(&mut self) -> Option<abi::Event> {
        self.queue.pop(&mut self.places)
    }
}

/// What happens to a queue, and how often.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Push(u32),
    Pop(u32),
    End,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        2 => (0u32..400).prop_map(Turn::Push),
        1 => (0u32..400).prop_map(Turn::Pop),
        1 => Just(Turn::End),
    ]
}

proptest! {
    /// What is read is what happened, in order, each once; what is missing is counted where it is.
    #[test]
    fn nothing_is_lost_uncounted(turns in prop::collection::vec((0u32..400, 0u32..400), 1..12)) {
        let mut log = Log::new();
        let (mut made, mut next) = (0u32, 0u32);
        let check = |log: &mut Log, next: &mut u32| {
            let got = log.pop();
            match got {
                Some(e) if e.event == abi::EVENT_LOST => {
                    assert!(e.info > 0);
                    *next += e.info;
                    assert_eq!(e.time_ns, u64::from(*next - 1));
                }
                Some(e) => {
                    assert_eq!(e, record(*next));
                    *next += 1;
                }
                None => {}
            }
            got.is_some()
        };
        for (pushes, pops) in turns {
            for _ in 0..pushes {
                log.push(made);
                made += 1;
            }
            for _ in 0..pops {
                check(&mut log, &mut next);
            }
        }
        log.queue.end(abi::Event { event: abi::EVENT_DEVICE_REMOVED, ..abi::Event::default() });
        log.push(12345);
        while log.queue.is_ready() && next < made {
            prop_assert!(check(&mut log, &mut next));
        }
        prop_assert_eq!(next, made);
        prop_assert!(log.queue.is_ready() && !log.queue.is_over());
        prop_assert_eq!(log.pop().map(|e| e.event), Some(abi::EVENT_DEVICE_REMOVED));
        prop_assert!(log.queue.is_over());
        prop_assert_eq!(log.pop(), None);
    }

    /// A queue ends at any time: what came before is read or counted, the first end is read once, and
    /// nothing follows it.
    #[test]
    fn an_end_is_the_last_record(turns in prop::collection::vec(turn(), 1..16)) {
        let mut log = Log::new();
        let (mut made, mut next, mut ends, mut is_read) = (0u32, 0u32, 0u32, false);
        for turn in turns.into_iter().chain([Turn::End, Turn::Pop(u32::MAX)]) {
            match turn {
                Turn::Push(count) => {
                    for _ in 0..count {
                        log.push(made);
                        made += u32::from(ends == 0);
                    }
                }
                Turn::Pop(count) => {
                    for event in std::iter::from_fn(|| log.pop()).take(count as usize) {
                        prop_assert!(!is_read);
                        match event.event {
                            abi::EVENT_LOST => next += event.info,
                            abi::EVENT_DEVICE_REMOVED => {
                                prop_assert_eq!((event.info, next), (1, made));
                                is_read = true;
                            }
                            _ => {
                                prop_assert_eq!(event, record(next));
                                next += 1;
                            }
                        }
                    }
                }
                Turn::End => {
                    ends += 1;
                    let event = abi::EVENT_DEVICE_REMOVED;
                    log.queue.end(abi::Event { event, info: ends, ..abi::Event::default() });
                }
            }
        }
        prop_assert!(is_read && log.queue.is_over());
        prop_assert_eq!(next, made);
    }
}

#[test]
fn the_oldest_are_kept_and_the_rest_is_counted_once() {
    let mut log = Log::new();
    let max = abi::EVENTS_MAX as u32;
    for info in 0..max + 10 {
        log.push(info);
    }
    assert_eq!(log.pop(), Some(record(0)));
    // The record of the loss has its place: no room again.
    log.push(77);
    for info in 1..max {
        assert_eq!(log.pop(), Some(record(info)));
    }
    let lost = log.pop().unwrap();
    assert_eq!(
        (lost.event, lost.info, lost.time_ns),
        (abi::EVENT_LOST, 10, u64::from(max) + 9)
    );
    let lost = log.pop().unwrap();
    assert_eq!((lost.event, lost.info), (abi::EVENT_LOST, 1));
    assert_eq!(log.pop(), None);
}

fn request(handle: u32, info: u32) -> abi::Event {
    abi::Event {
        event: abi::EVENT_CONNECT_REQUEST,
        handle,
        ..record(info)
    }
}

#[test]
fn requests_are_merged_until_they_are_read() {
    let mut log = Log::new();
    for info in 1..1000 {
        log.queue.push(&mut log.places, request(info % 2, info));
    }
    let merged = |handle, first, info| abi::Event {
        time_ns: first,
        ..request(handle, info)
    };
    assert_eq!(log.pop(), Some(merged(1, 1, 999)));
    log.queue.push(&mut log.places, request(1, 5));
    assert_eq!(log.pop(), Some(merged(0, 2, 998)));
    assert_eq!(log.pop(), Some(request(1, 5)));
    assert_eq!(log.pop(), None);
}

thread_local! {
    static COMPARED: Cell<u32> = const { Cell::new(0) };
}

/// A record that counts how often one is compared with another.
#[derive(Clone, Copy)]
struct Counting {
    repeats: bool,
}

impl Record for Counting {
    fn time_ns(&self) -> u64 {
        0
    }

    fn lost(_: u32, _: u64) -> Self {
        Self { repeats: false }
    }

    fn is_request(&self) -> bool {
        false
    }

    fn repeats(&self) -> bool {
        self.repeats
    }

    fn merge(&self, _: &Self) -> Option<Self> {
        COMPARED.set(COMPARED.get() + 1);
        None
    }
}

#[test]
fn a_record_that_is_not_merged_is_compared_with_no_other() {
    let (mut queue, mut places) = (Queue::new(), vec![Counting::lost(0, 0); PLACES as usize]);
    for _ in 0..2 * MAX {
        queue.push(&mut places, Counting { repeats: false });
    }
    assert_eq!(COMPARED.get(), 0);
    queue.push(&mut places, Counting { repeats: true });
    assert_eq!(COMPARED.get(), MAX);
}

#[test]
fn requests_displace_nothing() {
    let mut log = Log::new();
    let max = abi::EVENTS_MAX as u32;
    log.push(0);
    for handle in 1..max {
        log.queue.push(&mut log.places, request(handle, 7));
    }
    // The newest requests give their places away.
    log.push(1);
    log.queue.push(&mut log.places, request(max, 8));
    log.push(2);
    assert_eq!(log.pop(), Some(record(0)));
    for handle in 1..max - 2 {
        assert_eq!(log.pop(), Some(request(handle, 7)));
    }
    assert_eq!(log.pop(), Some(record(1)));
    assert_eq!(log.pop(), Some(record(2)));
    let lost = log.pop().unwrap();
    assert_eq!(
        (lost.event, lost.info, lost.time_ns),
        (abi::EVENT_LOST, 3, 8)
    );
    assert_eq!(log.pop(), None);
}

#[test]
fn what_is_put_back_comes_first() {
    let mut log = Log::new();
    for info in 0..abi::EVENTS_MAX as u32 {
        log.push(info);
    }
    for _ in 0..3 {
        let event = log.pop().unwrap();
        log.push(1000);
        log.queue.unpop(&mut log.places, event);
        assert!(log.queue.is_ready());
    }
    for info in 0..abi::EVENTS_MAX as u32 {
        assert_eq!(log.pop(), Some(record(info)));
    }
    // The last one, too.
    let mut log = Log::new();
    log.queue.end(record(5));
    let last = log.pop().unwrap();
    assert!(log.queue.is_over());
    log.queue.unpop(&mut log.places, last);
    assert!(!log.queue.is_over());
    assert_eq!(log.pop(), Some(record(5)));
    assert!(log.queue.is_over());
}
