// SPDX-License-Identifier: GPL-2.0

//! The order of a file's events: which are kept, which are counted as lost, which is the last.

use crate::uapi::abi::{
    self,
    Zero as _, //
};

/// Most records that are kept.
const MAX: u32 = abi::EVENTS_MAX as u32;

/// How many places the caller's records have: some are for those that are given back.
#[allow(unreachable_pub)]
pub const PLACES: u32 = MAX + 8;

/// A queue of records, which stand in an array of [`PLACES`] that the caller keeps.
#[derive(Debug, Default)]
#[allow(unreachable_pub)]
pub struct Queue {
    first: u32,
    len: u32,
    /// Records that did not fit since the last one that did, and when the last of them came.
    lost: u32,
    lost_ns: u64,
    /// What comes when all else was read.
    last: Option<abi::Event>,
    ended: bool,
}

#[allow(unreachable_pub)]
impl Queue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            first: 0,
            len: 0,
            lost: 0,
            lost_ns: 0,
            last: None,
            ended: false,
        }
    }

    fn place(&self, number: u32) -> usize {
        (self.first.wrapping_add(number) % PLACES) as usize
    }

    fn append(&mut self, places: &mut [abi::Event], event: abi::Event) {
        if let Some(place) = places.get_mut(self.place(self.len)) {
            *place = event;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Adds a record; counts it when there is no room. After the end nothing is added.
    pub fn push(&mut self, places: &mut [abi::Event], event: abi::Event) {
        if self.ended {
            return;
        }
        if self.len >= MAX {
            self.lost = self.lost.saturating_add(1);
            self.lost_ns = event.time_ns;
        } else {
            self.append(places, event);
        }
    }

    /// Ends it: `event` is the last record, and has room.
    pub fn end(&mut self, event: abi::Event) {
        if !self.ended {
            self.ended = true;
            self.last = Some(event);
        }
    }

    /// Takes the oldest record. When others were lost for want of its place, a record that says how
    /// many takes that place.
    pub fn pop(&mut self, places: &mut [abi::Event]) -> Option<abi::Event> {
        if self.len == 0 {
            return self.last.take();
        }
        let event = places.get(self.place(0)).copied()?;
        self.first = self.place(1) as u32;
        self.len = self.len.saturating_sub(1);
        if self.lost > 0 && self.len < MAX {
            let record = abi::Event {
                event: abi::EVENT_LOST,
                info: self.lost,
                time_ns: self.lost_ns,
                ..abi::Event::ZERO
            };
            self.lost = 0;
            self.append(places, record);
        }
        Some(event)
    }

    /// Puts a record back that was taken and not delivered: it is the oldest again.
    pub fn unpop(&mut self, places: &mut [abi::Event], event: abi::Event) {
        if self.len >= PLACES {
            self.lost = self.lost.saturating_add(1);
            self.lost_ns = event.time_ns;
            return;
        }
        self.first = self.place(PLACES.wrapping_sub(1)) as u32;
        if let Some(place) = places.get_mut(self.place(0)) {
            *place = event;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Whether there is a record.
    pub fn is_ready(&self) -> bool {
        self.len > 0 || self.last.is_some()
    }

    /// Whether the last record was taken, and none will come.
    pub fn is_over(&self) -> bool {
        self.ended && !self.is_ready()
    }
}
