// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of requests, by which their owner knows their completions again.

use std::sync::atomic::{AtomicU32, Ordering};

const TAG_BITS: u32 = 20;
const INDEX_BITS: u32 = 22;
const ROUND_BITS: u32 = 64 - TAG_BITS - INDEX_BITS;

/// Every tag has it. The numbers of programs do not, neither small ones, of which 0 is the default of
/// every request, nor addresses.
const HIGHEST: u32 = 1 << (TAG_BITS - 1);

/// The next tag.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A mark in the `wr_id`s of one user of a completion queue, by which it knows its completions.
///
/// A `wr_id` has the tag of a table, the index of a slot in that table, and how often the slot was
/// used before. `AsyncRequests` and the pool of `rust-ulp-extra` number their requests so, and a
/// program that shares their completion queue can do the same.
#[derive(Clone, Copy, Debug)]
pub struct Tag(u64);

impl Tag {
    /// The number of indices.
    pub const INDICES: u32 = 1 << INDEX_BITS;

    /// Returns a tag that nothing else in this process has, as long as there are fewer than 2^19.
    pub fn unique() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % HIGHEST;
        Self(u64::from(HIGHEST | number))
    }

    /// Returns the `wr_id` of a request in slot `index`, which is below [`Self::INDICES`]. It has the
    /// lower 22 bits of `round`.
    pub fn wr_id(self, index: u32, round: u32) -> u64 {
        let index = index % Self::INDICES;
        let round = u64::from(round) & ((1 << ROUND_BITS) - 1);
        (((self.0 << INDEX_BITS) | u64::from(index)) << ROUND_BITS) | round
    }

    /// Returns the index in a `wr_id`, or none if it is not of this tag.
    pub fn index(self, wr_id: u64) -> Option<u32> {
        let index = (wr_id >> ROUND_BITS) as u32 % Self::INDICES;
        (wr_id >> (INDEX_BITS + ROUND_BITS) == self.0).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_finds_the_indices_of_its_own_numbers_only() {
        let (one, other) = (Tag::unique(), Tag::unique());
        for index in [0, 1, Tag::INDICES - 1] {
            for round in [0, 1, u32::MAX] {
                let number = one.wr_id(index, round);
                assert_eq!(one.index(number), Some(index));
                assert_eq!(other.index(number), None);
            }
        }
        assert_ne!(one.wr_id(3, 0), one.wr_id(3, 1));
        // Numbers that programs choose, and addresses.
        for number in [0, 1, 1 << 47, u64::MAX >> 1] {
            assert_eq!(one.index(number), None, "{number:#x}");
        }
    }
}
