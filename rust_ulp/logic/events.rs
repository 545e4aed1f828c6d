// SPDX-License-Identifier: GPL-2.0

//! The order of a file's events: which records are kept, merged or counted as lost.

/// A record.
#[allow(unreachable_pub)]
pub trait Record: Copy {
    /// Returns the time of the event.
    fn time_ns(&self) -> u64;

    /// Makes the record of `count` lost records, the last of them at `time_ns`.
    fn lost(count: u32, time_ns: u64) -> Self;

    /// Returns whether it is a request, which gives its place to any other kind of record when the
    /// queue is full.
    fn is_request(&self) -> bool;

    /// Returns whether a peer can cause such records as often as it likes. Only these are merged.
    fn repeats(&self) -> bool;

    /// Returns the record that says what `self` and the later record `newer` say, if one can.
    fn merge(&self, newer: &Self) -> Option<Self>;
}

/// Most records that are kept.
#[allow(unreachable_pub)]
pub const MAX: u32 = 256;

/// Places for records: [`MAX`], and some for records that are given back.
#[allow(unreachable_pub)]
pub const PLACES: u32 = MAX + 8;

/// A queue of records, which stand in an array of [`PLACES`] that the caller keeps.
#[derive(Debug, Default)]
#[allow(unreachable_pub)]
pub struct Queue<R> {
    first: u32,
    len: u32,
    /// How many of the records are requests.
    requests: u32,
    /// Records that did not fit since the last one that did, and the time of the last of them.
    lost: u32,
    lost_ns: u64,
    /// The record that follows all others.
    last: Option<R>,
    ended: bool,
}

#[allow(unreachable_pub)]
impl<R: Record> Queue<R> {
    /// Makes an empty queue.
    pub const fn new() -> Self {
        Self {
            first: 0,
            len: 0,
            requests: 0,
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
            self.count(&event, 1);
        }
    }

    /// Counts `event`, which was added or taken out.
    fn count(&mut self, event: &R, change: i32) {
        if event.is_request() {
            self.requests = self.requests.saturating_add_signed(change);
        }
    }

    /// Notes that `event` is lost.
    fn lose(&mut self, event: &R) {
        self.lost = self.lost.saturating_add(1);
        self.lost_ns = self.lost_ns.max(event.time_ns());
    }

    /// Adds a record; counts it as lost when there is no room. After the end nothing is added.
    ///
    /// It is merged with an earlier record when one record says both. When the queue is full, it
    /// takes the place of the newest request, unless it is a request itself.
    pub fn push(&mut self, places: &mut [R], event: R) {
        if self.ended || self.merge(places, &event) {
            return;
        }
        if self.len >= MAX && (event.is_request() || !self.drop_request(places)) {
            self.lose(&event);
        } else {
            self.append(places, event);
        }
    }

    /// Merges `event` with a record that is there; returns whether it did.
    fn merge(&self, places: &mut [R], event: &R) -> bool {
        if !event.repeats() {
            return false;
        }
        for number in (0..self.len).rev() {
            let Some(place) = places.get_mut(self.place(number)) else {
                continue;
            };
            if let Some(merged) = place.merge(event) {
                *place = merged;
                return true;
            }
        }
        false
    }

    /// Loses the newest request; returns whether there was one.
    fn drop_request(&mut self, places: &mut [R]) -> bool {
        if self.requests == 0 {
            return false;
        }
        // Each record moves to the place of the one before it, until the request is reached.
        let mut newer = None;
        for number in (0..self.len).rev() {
            let Some(place) = places.get_mut(self.place(number)) else {
                continue;
            };
            let event = *place;
            if let Some(newer) = newer.replace(event) {
                *place = newer;
            }
            if event.is_request() {
                self.len = self.len.saturating_sub(1);
                self.count(&event, -1);
                self.lose(&event);
                return true;
            }
        }
        false
    }

    /// Ends the queue: `event` is the last record, and has room.
    pub fn end(&mut self, event: R) {
        if !self.ended {
            self.ended = true;
            self.last = Some(event);
        }
    }

    /// Takes the oldest record. When others were lost for want of its place, a record of their
    /// number takes that place.
    pub fn pop(&mut self, places: &mut [R]) -> Option<R> {
        if self.len == 0 {
            return self.last.take();
        }
        let event = places.get(self.place(0)).copied()?;
        self.first = self.place(1) as u32;
        self.len = self.len.saturating_sub(1);
        self.count(&event, -1);
        if self.lost > 0 && self.len < MAX {
            let record = R::lost(self.lost, self.lost_ns);
            (self.lost, self.lost_ns) = (0, 0);
            self.append(places, record);
        }
        Some(event)
    }

    /// Puts a record back that was taken and not delivered: it is the oldest again.
    pub fn unpop(&mut self, places: &mut [R], event: R) {
        if self.len >= PLACES {
            self.lose(&event);
            return;
        }
        self.first = self.place(PLACES.wrapping_sub(1)) as u32;
        if let Some(place) = places.get_mut(self.place(0)) {
            *place = event;
            self.len = self.len.saturating_add(1);
            self.count(&event, 1);
        }
    }

    /// Returns whether there is a record.
    pub fn is_ready(&self) -> bool {
        self.len > 0 || self.last.is_some()
    }

    /// Returns whether the last record was taken, and none will come.
    pub fn is_over(&self) -> bool {
        self.ended && !self.is_ready()
    }
}
