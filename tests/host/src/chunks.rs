// SPDX-License-Identifier: GPL-2.0

//! In which chunks memory is taken, and in which it lies.

use crate::logic::chunks::{common_order, Plan};
use proptest::prelude::*;

const ALL: u64 = !0xfff;

/// What a device with 512 pages under a key says, as Soft-RoCE.
fn rxe(chunk: u64) -> u64 {
    512 * chunk
}

fn attempts(length: u64, page_size: u32) -> Vec<(u32, bool)> {
    Plan::new(length, page_size)
        .unwrap()
        .attempts(rxe)
        .collect()
}

#[test]
fn what_was_asked_for_is_taken_or_nothing() {
    assert_eq!(attempts(1, 4096), [(0, true)]);
    assert_eq!(attempts(1 << 30, 4096), [(0, true)]);
    assert_eq!(attempts(1, 2 << 20), [(9, true)]);
    for size in [1, 4095, 8192, 1 << 20, 4 << 20, 1 << 30, u32::MAX] {
        assert_eq!(Plan::new(1, size), None);
    }
}

#[test]
fn large_chunks_come_first_and_one_key_is_worth_an_effort() {
    // Of 32 MiB, chunks of 64 KiB and more go under one key.
    let want: Vec<_> = (0..=9).rev().map(|o| (o, o == 4 || o == 0)).collect();
    assert_eq!(attempts(32 << 20, 0), want);
    // Of 1 GiB, only those of 2 MiB.
    let want: Vec<_> = (0..=9).rev().map(|o| (o, o == 9 || o == 0)).collect();
    assert_eq!(attempts(1 << 30, 0), want);
    // Of little, all; and no more is wasted than an eighth.
    assert_eq!(attempts(4096, 0), [(0, true)]);
    assert_eq!(attempts(3 << 20, 0)[0], (8, false));
    assert_eq!(attempts(1 << 20, 0).last(), Some(&(0, true)));
}

#[test]
fn sizes_that_the_device_lacks_are_left_out() {
    let small = |chunk: u64| if chunk == 4096 { 256 << 12 } else { 0 };
    let got: Vec<_> = Plan::new(32 << 20, 0).unwrap().attempts(small).collect();
    assert_eq!(got, [(0, true)]);
    assert_eq!(Plan::new(1, 2 << 20).unwrap().attempts(small).count(), 0);
}

proptest! {
    #[test]
    fn attempts_go_down_to_single_pages(length in 1u64..=1 << 30, pages in 1u64..100_000) {
        let under_key = |chunk: u64| pages * chunk;
        let got: Vec<_> = Plan::new(length, 0).unwrap().attempts(under_key).collect();
        prop_assert!(got.windows(2).all(|w| w[0].0 == w[1].0 + 1));
        prop_assert_eq!(got.last(), Some(&(0, true)));
        let chunk = 4096u64 << got[0].0;
        prop_assert!(got[0].0 == 0 || length.next_multiple_of(chunk) - length <= length / 8);
        for (order, effort) in got {
            let fits = |order: u32| length.div_ceil(4096 << order) <= pages;
            let last = fits(order) && (order == 0 || !fits(order - 1));
            prop_assert_eq!(effort, order == 0 || last);
        }
    }

    /// Against the definition: every chunk that begins at a multiple of its size is in one piece.
    #[test]
    fn memory_lies_in_chunks(
        number in 0usize..64,
        pieces in prop::collection::vec((0usize..64, 1usize..40), 1..6),
        max in 0u32..7,
        sizes in prop::option::of(any::<u64>()),
    ) {
        let sizes = sizes.unwrap_or(ALL);
        let frames: Vec<usize> = pieces
            .iter()
            .flat_map(|(base, len)| (0..*len).map(move |i| base * 16 + i))
            .collect();
        let right = |order: u32| {
            let mask = (1usize << order) - 1;
            frames.iter().enumerate().all(|(i, frame)| {
                let page = number + i;
                let same = frame & mask == page & mask;
                let begins = i == 0 || page & mask == 0;
                same && (begins || frames[i - 1] + 1 == *frame)
            })
        };
        let want = (0..=max)
            .rev()
            .find(|order| *order == 0 || (right(*order) && (sizes >> (12 + order)) & 1 == 1));
        prop_assert_eq!(Some(common_order(frames.iter().copied(), number, sizes, max)), want);
    }
}
