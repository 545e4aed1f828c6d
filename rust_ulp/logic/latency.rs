// SPDX-License-Identifier: GPL-2.0

//! The buckets of a histogram of latencies: powers of two, from 1 µs to 8 s.

/// The number of buckets. The first one has all shorter times, the last one all longer times.
#[allow(unreachable_pub)]
pub const BUCKETS: usize = 24;

/// The first bucket has times below 2 to the power of this many nanoseconds.
const FIRST: u32 = 10;

/// Returns the bucket of a time.
#[allow(unreachable_pub)]
pub fn bucket(time_ns: u64) -> usize {
    let bits = u64::BITS.wrapping_sub(time_ns.leading_zeros());
    (bits.saturating_sub(FIRST) as usize).min(BUCKETS - 1)
}

/// Returns the time that all times in a bucket are less than, in nanoseconds; [`u64::MAX`] for the
/// last one.
#[allow(unreachable_pub)]
pub fn below_ns(bucket: usize) -> u64 {
    match u32::try_from(bucket) {
        Ok(at) if bucket < BUCKETS - 1 => 1 << (at.wrapping_add(FIRST) & 63),
        _ => u64::MAX,
    }
}
