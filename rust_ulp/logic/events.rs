// SPDX-License-Identifier: GPL-2.0

//! A bounded queue of event records, which counts the records that did not fit.

/// A record in a [`Queue`].
#[allow(unreachable_pub)]
pub trait Record: Copy {
    /// Returns the time of the event.
    fn time_ns(&self) -> u64;

    /// Returns a record of the loss of `count` records, the last of them at `time_ns`.
    fn lost(count: u32, time_ns: u64) -> Self;
}

/// Maximum records in the queue.
#[allow(unreachable_pub)]
pub const MAX: u32 = 256;

/// Length of the caller's array. It has room for records that readers put back.
#[allow(unreachable_pub)]
pub const PLACES: u32 = MAX + 8;

/// A queue of records in an array of [`PLACES`] records that the caller owns.
#[derive(Debug, Default)]
#[allow(unreachable_pub)]
pub struct Queue<R> {
    first: u32,
    len: u32,
    /// Number of records that did not fit since the last one that did, and the time of the last.
    lost: u32,
    lost_ns: u64,
    /// The record that comes after all others.
    last: Option<R>,
    ended: bool,
}

#[allow(unreachable_pub)]
impl<R: Record> Queue<R> {
    /// Creates an empty queue.
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

    fn append(&mut self, places: &mut [R], event: R) {
        if let Some(place) = places.get_mut(self.place(self.len)) {
            *place = event;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Adds a record, or counts it if there is no room. Does nothing after [`Self::end`].
    pub fn push(&mut self, places: &mut [R], event: R) {
        if self.ended {
            return;
        }
        if self.len >= MAX {
            self.lost = self.lost.saturating_add(1);
            self.lost_ns = event.time_ns();
        } else {
            self.append(places, event);
        }
    }

    /// Ends the queue with `event` as the last record, which always fits.
    pub fn end(&mut self, event: R) {
        if !self.ended {
            self.ended = true;
            self.last = Some(event);
        }
    }

    /// Removes the oldest record. If records were lost, a record of their number takes its place.
    pub fn pop(&mut self, places: &mut [R]) -> Option<R> {
        if self.len == 0 {
            return self.last.take();
        }
        let event = places.get(self.place(0)).copied()?;
        self.first = self.place(1) as u32;
        self.len = self.len.saturating_sub(1);
        if self.lost > 0 && self.len < MAX {
            let record = R::lost(self.lost, self.lost_ns);
            self.lost = 0;
            self.append(places, record);
        }
        Some(event)
    }

    /// Puts back a record that was not delivered. It is the oldest again.
    pub fn unpop(&mut self, places: &mut [R], event: R) {
        if self.len >= PLACES {
            self.lost = self.lost.saturating_add(1);
            self.lost_ns = event.time_ns();
            return;
        }
        self.first = self.place(PLACES.wrapping_sub(1)) as u32;
        if let Some(place) = places.get_mut(self.place(0)) {
            *place = event;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Returns whether there is a record.
    pub fn is_ready(&self) -> bool {
        self.len > 0 || self.last.is_some()
    }

    /// Returns whether the queue has ended and all records were removed.
    pub fn is_over(&self) -> bool {
        self.ended && !self.is_ready()
    }
}
