// SPDX-License-Identifier: MIT OR Apache-2.0

//! The free space of the server's memory: best fit, adjacent free ranges are merged.
//!
//! Only the server allocates, so this is in its private memory. A range that is freed stays in
//! quarantine while there is other space, so that slow readers seldom meet a range that was reused.

use crate::layout::Geometry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Share of the memory that may be in quarantine.
const QUARANTINE: u64 = 64;

/// The free ranges, in units of [`UNIT`](crate::layout::UNIT) bytes.
#[derive(Debug)]
pub struct Space {
    /// Units of free ranges by their first unit.
    by_start: BTreeMap<u32, u32>,
    /// The same as (units, first unit).
    by_len: BTreeSet<(u32, u32)>,
    /// Ranges that were freed, the oldest first.
    quarantine: VecDeque<(u32, u32)>,
    quarantined: u64,
    free: u64,
    total: u64,
    /// Units of a segment, which no range crosses.
    segment: u32,
}

impl Space {
    /// Makes the space of a table, all of which is free.
    pub fn new(geometry: &Geometry) -> Self {
        let mut space = Self {
            by_start: BTreeMap::new(),
            by_len: BTreeSet::new(),
            quarantine: VecDeque::new(),
            quarantined: 0,
            free: 0,
            total: 0,
            segment: u32::try_from(geometry.segment / 64).unwrap_or(u32::MAX),
        };
        for (start, units) in geometry.ranges() {
            space.insert(start, units);
        }
        space.total = space.free;
        space
    }

    /// Takes a range of `units` units and returns its first unit.
    pub fn take(&mut self, units: u32) -> Option<u32> {
        loop {
            if let Some(&(len, start)) = self.by_len.range((units, 0)..).next() {
                self.remove(start, len);
                if len > units {
                    self.insert(start + units, len - units);
                }
                return Some(start);
            }
            let (start, units) = self.quarantine.pop_front()?;
            self.release(start, units);
        }
    }

    /// Frees a range that was taken.
    pub fn free(&mut self, start: u32, units: u32) {
        self.quarantine.push_back((start, units));
        self.quarantined += u64::from(units);
        while self.quarantined > self.total / QUARANTINE {
            let Some((start, units)) = self.quarantine.pop_front() else {
                break;
            };
            self.release(start, units);
        }
    }

    /// Returns the units that are not taken.
    pub fn available(&self) -> u64 {
        self.free + self.quarantined
    }

    /// Returns all units.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Ends the quarantine of a range, and merges it with its neighbors.
    fn release(&mut self, mut start: u32, mut units: u32) {
        self.quarantined -= u64::from(units);
        let before = self.by_start.range(..start).next_back();
        let before = before.map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == start) {
            if self.is_one_segment(at, start) {
                self.remove(at, len);
                (start, units) = (at, units + len);
            }
        }
        let end = start + units;
        if let Some(len) = self.by_start.get(&end).copied() {
            if self.is_one_segment(start, end) {
                self.remove(end, len);
                units += len;
            }
        }
        self.insert(start, units);
    }

    fn is_one_segment(&self, a: u32, b: u32) -> bool {
        a / self.segment == b / self.segment
    }

    fn insert(&mut self, start: u32, units: u32) {
        self.by_start.insert(start, units);
        self.by_len.insert((units, start));
        self.free += u64::from(units);
    }

    fn remove(&mut self, start: u32, units: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(units, start));
        self.free -= u64::from(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(
            steps in prop::collection::vec((1u32..80, any::<bool>(), any::<prop::sample::Index>()), 1..400)
        ) {
            let geometry = Geometry::new(1 << 17, 1 << 15, 100, 1024, 0).unwrap();
            let mut space = Space::new(&geometry);
            let total = space.available();
            let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
            for (units, take, index) in steps {
                if take {
                    let Some(start) = space.take(units) else { continue };
                    let before = taken.range(..start + units).next_back();
                    prop_assert!(before.is_none_or(|(at, len)| at + len <= start));
                    prop_assert_eq!(start / 512, (start + units - 1) / 512);
                    prop_assert!(start >= 9 * 2 && start + units <= 2048);
                    taken.insert(start, units);
                } else if !taken.is_empty() {
                    let start = *index.get(&taken.keys().copied().collect::<Vec<_>>());
                    let units = taken.remove(&start).unwrap();
                    space.free(start, units);
                }
                let used: u32 = taken.values().sum();
                prop_assert_eq!(space.available() + u64::from(used), total);
            }
            for (start, units) in taken {
                space.free(start, units);
            }
            // Merged again: as at the beginning.
            prop_assert_eq!(space.take(513), None);
            let first = geometry.ranges().next().unwrap();
            prop_assert_eq!(space.take(512).is_some(), true);
            prop_assert_eq!(space.available(), total - 512);
            prop_assert!(space.by_start.contains_key(&first.0));
        }
    }
}
