// SPDX-License-Identifier: GPL-2.0

//! The order of a file's events: which are kept, which are counted as lost, which is the last.

/// A record.
#[allow(unreachable_pub)]
pub trait Record: Copy {
    /// When it was made.
    fn time_ns(&self) -> u64;

    /// One that says that `count` others were lost, the last of them at `time_ns`.
    fn lost(count: u32, time_ns: u64) -> Self;
}

/// Most records that are kept.
#[allow(unreachable_pub)]
pub const MAX: u32 = 256;

/// How many places the caller's records have: some are for those that are given back.
#[allow(unreachable_pub)]
pub const PLACES: u32 = MAX + 8;

/// A queue of records, which stand in an array of [`PLACES`] that the caller keeps.
#[derive(Debug, Default)]
#[allow(unreachable_pub)]
pub struct Queue<R> {
    first: u32,
    len: u32,
    /// Records that did not fit since the last one that did, and when the last of them came.
    lost: u32,
    lost_ns: u64,
    /// What comes when all else was read.
    last: Option<R>,
    ended: bool,
}

#[allow(unreachable_pub)]
impl<R: Record> Queue<R> {
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

    fn append(&mut self, places: &mut [R], event: R) {
        if let Some(place) = places.get_mut(self.place(self.len)) {
            *place = event;
            self.len = self.len.saturating_add(1);
        }
    }

    /// Adds a record; counts it when there is no room. After the end nothing is added.
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

    /// Ends it: `event` is the last record, and has room.
    pub fn end(&mut self, event: R) {
        if !self.ended {
            self.ended = true;
            self.last = Some(event);
        }
    }

    /// Takes the oldest record. When others were lost for want of its place, a record that says how
    /// many takes that place.
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

    /// Puts a record back that was taken and not delivered: it is the oldest again.
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

    /// Whether there is a record.
    pub fn is_ready(&self) -> bool {
        self.len > 0 || self.last.is_some()
    }

    /// Whether the last record was taken, and none will come.
    pub fn is_over(&self) -> bool {
        self.ended && !self.is_ready()
    }
}
