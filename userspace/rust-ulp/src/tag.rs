// SPDX-License-Identifier: MIT OR Apache-2.0

//! The `wr_id`s that this crate gives to requests, so that it knows their completions again.
//!
//! A `wr_id` has the tag of the pool or the table that gave it, the index of a slot there, and how
//! often that slot was used before.

use std::sync::atomic::{AtomicU32, Ordering};

const TAG_BITS: u32 = 20;
pub(crate) const INDEX_BITS: u32 = 22;
const ROUND_BITS: u32 = 64 - TAG_BITS - INDEX_BITS;

/// Every tag has it. The numbers of programs do not, neither small ones, of which 0 is the default of
/// every request, nor addresses.
const HIGHEST: u32 = 1 << (TAG_BITS - 1);

/// The tag of the next pool or table.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The tag of the `wr_id`s of one pool or table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag(u64);

impl Tag {
    /// Returns a tag that nothing else in this process has, as long as there are fewer than 2^19.
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % HIGHEST;
        Self(u64::from(HIGHEST | number))
    }

    /// Returns the `wr_id` of a request. Only the lower bits of `round` are in it.
    pub(crate) fn wr_id(self, index: u32, round: u32) -> u64 {
        let round = u64::from(round) & ((1 << ROUND_BITS) - 1);
        (((self.0 << INDEX_BITS) | u64::from(index)) << ROUND_BITS) | round
    }

    /// Returns the index in a `wr_id`, or none if it is not of this tag.
    pub(crate) fn index(self, wr_id: u64) -> Option<u32> {
        let index = (wr_id >> ROUND_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        (wr_id >> (INDEX_BITS + ROUND_BITS) == self.0).then_some(index)
    }
}
