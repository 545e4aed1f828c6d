// SPDX-License-Identifier: GPL-2.0

//! In which chunks memory is taken, and in which it lies.

use crate::logic::chunks::{common_order, page_size, Plan};
use proptest::prelude::*;

const ALL: u64 = !0xfff;
/// The kernel's page has 4 KiB.
const SHIFT: u32 = 12;

/// What a device with 512 pages under a key says, as Soft-RoCE.
fn rxe(chunk: u64) -> u64 {
    512 * chunk
}

fn attempts(length: u64, page_size: u32) -> Vec<(u32, bool)> {
    Plan::new(SHIFT, length, page_size)
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
        assert_eq!(Plan::new(SHIFT, 1, size), None);
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
fn chunks_are_pages_where_those_are_larger() {
    let plan = |length, page_size| Plan::new(14, length, page_size).unwrap().attempts(rxe);
    assert_eq!(plan(1, 4096).collect::<Vec<_>>(), [(0, true)]);
    assert_eq!(plan(1, 2 << 20).collect::<Vec<_>>(), [(7, true)]);
    // Of 32 MiB, chunks of 64 KiB and more go under one key.
    let want: Vec<_> = (0..=7).rev().map(|o| (o, o == 2 || o == 0)).collect();
    assert_eq!(plan(32 << 20, 0).collect::<Vec<_>>(), want);
    // Four pages that follow each other are a chunk of 64 KiB.
    assert_eq!(common_order(14, 64..68, 0, 1 << 16, 7), 2);
}

#[test]
fn sizes_that_the_device_lacks_are_left_out() {
    let small = |chunk: u64| if chunk == 4096 { 256 << 12 } else { 0 };
    let got: Vec<_> = Plan::new(SHIFT, 32 << 20, 0)
        .unwrap()
        .attempts(small)
        .collect();
    assert_eq!(got, [(0, true)]);
    assert_eq!(
        Plan::new(SHIFT, 1, 2 << 20)
            .unwrap()
            .attempts(small)
            .count(),
        0
    );
}

/// Pages of 4, 16 and 64 KiB.
fn page_shift() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![12, 14, 16])
}

proptest! {
    #[test]
    fn attempts_go_down_to_single_pages(length in 1u64..=1 << 30, pages in 1u64..100_000) {
        let under_key = |chunk: u64| pages * chunk;
        let got: Vec<_> = Plan::new(SHIFT, length, 0).unwrap().attempts(under_key).collect();
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

    /// Whatever the page, the length and the device: each order is tried once, the largest first, and
    /// none is above 2 MiB.
    #[test]
    fn attempts_of_any_length_go_down(
        shift in page_shift(),
        length in prop_oneof![any::<u64>(), u64::MAX - (2 << 20)..=u64::MAX],
        zeros in 0u32..64,
        page_size in prop::sample::select(vec![0u32, 0x1000, 0x20_0000]),
        most in any::<u64>(),
    ) {
        let plan = Plan::new(shift, length >> zeros, page_size).unwrap();
        let got: Vec<_> = plan.attempts(|bytes| most & !(bytes - 1)).collect();
        prop_assert!(got.windows(2).all(|w| w[0].0 > w[1].0));
        prop_assert!(got.iter().all(|(order, _)| shift + order <= 21));
        prop_assert!(page_size == 0 || got.len() <= 1);
    }

    /// Against the definition: every chunk that begins at a multiple of its size is in one piece.
    #[test]
    fn memory_lies_in_chunks(
        shift in page_shift(),
        number in prop_oneof![0usize..64, usize::MAX - 63..=usize::MAX],
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
                let page = number.wrapping_add(i);
                let same = frame & mask == page & mask;
                let begins = i == 0 || page & mask == 0;
                same && (begins || frames[i - 1] + 1 == *frame)
            })
        };
        let want = (0..=max)
            .rev()
            .find(|order| *order == 0 || (right(*order) && (sizes >> (shift + order)) & 1 == 1));
        prop_assert_eq!(Some(common_order(shift, frames.iter().copied(), number, sizes, max)), want);
    }
}

/// Whether a device can give `extents` pages of `size` bytes at `iova`: by the definition.
fn can_register(extents: &[(u64, u64)], iova: u64, size: u64) -> bool {
    let mut at = iova;
    extents.iter().enumerate().all(|(index, &(addr, length))| {
        let agrees = addr % size == at % size;
        at += length;
        let end = addr + length;
        let next = extents.get(index + 1);
        let whole =
            next.is_none_or(|&(next, _)| next == end || (end % size == 0 && at % size == 0));
        agrees && whole
    })
}

#[test]
fn the_page_size_is_that_of_the_smallest_extent() {
    let sizes = 0x1000 | 0x20_0000 | 0x4000_0000;
    assert_eq!(page_size([].into_iter(), 0, 0), 0);
    assert_eq!(
        page_size([(0x4000_0000, 0x4000_0000)].into_iter(), 0, sizes),
        0x4000_0000
    );
    // Contiguous extents are one, and the last one may end anywhere.
    let one = [
        (0x20_0000, 0x1000),
        (0x20_1000, 0x1f_f000),
        (0x40_0000, 0x123),
    ];
    assert_eq!(page_size(one.into_iter(), 0, sizes), 0x20_0000);
    // A hole after 4 KiB, and an offset in a page that differs.
    assert_eq!(
        page_size(
            [(0x20_0000, 0x1000), (0x60_1000, 0x1000)].into_iter(),
            0,
            sizes
        ),
        0x1000
    );
    assert_eq!(page_size([(0x20_0010, 0x1000)].into_iter(), 0, sizes), 0);
    assert_eq!(
        page_size([(0x20_0010, 0x1000)].into_iter(), 0x10, sizes),
        0x20_0000
    );
}

proptest! {
    #[test]
    fn no_larger_page_size_fits(
        parts in prop::collection::vec((0u64..64, 1u64..64), 1..8),
        iova in 0u64..64,
        unit in 0u32..13,
        sizes in any::<u64>(),
    ) {
        let extents: Vec<_> = parts.iter().map(|&(at, len)| (at << unit, len << unit)).collect();
        let (iova, sizes) = (iova << unit, sizes & ((1 << 40) - 1));
        let best = (0..40).rev().map(|n| 1u64 << n).filter(|n| sizes & n != 0);
        let best = best.into_iter().find(|&n| can_register(&extents, iova, n)).unwrap_or(0);
        prop_assert_eq!(page_size(extents.iter().copied(), iova, sizes), best);
    }
}
