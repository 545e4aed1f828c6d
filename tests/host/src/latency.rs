// SPDX-License-Identifier: GPL-2.0

//! `logic/latency.rs`.

use crate::logic::latency::{below_ns, bucket, BUCKETS};

#[test]
fn each_time_is_below_its_bucket_and_not_below_the_one_before() {
    for bits in 0..64 {
        for time in [1u64 << bits, (1 << bits) - 1, (1 << bits) + 1] {
            let at = bucket(time);
            assert!(time < below_ns(at) || at == BUCKETS - 1, "{time}");
            assert!(at == 0 || time >= below_ns(at - 1), "{time}");
        }
    }
    assert_eq!((bucket(0), below_ns(0)), (0, 1024));
    assert_eq!((bucket(1024), below_ns(1)), (1, 2048));
    assert_eq!(
        (bucket(u64::MAX), below_ns(BUCKETS - 1)),
        (BUCKETS - 1, u64::MAX)
    );
}
