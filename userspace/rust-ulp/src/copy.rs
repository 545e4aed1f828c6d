// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies between plain bytes and memory that others change at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

/// `len` bytes at `offset` as pieces of words: `f(word, first byte in it, bytes of it)`.
pub(crate) fn pieces(
    words: &[AtomicU64],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (&AtomicU64, usize, usize)> {
    let mut left = len;
    let mut skip = offset % 8;
    words
        .get(offset / 8..)
        .unwrap_or_default()
        .iter()
        .map_while(move |word| {
            let (first, n) = (skip, left.min(8 - skip));
            skip = 0;
            left -= n;
            (n != 0).then_some((word, first, n))
        })
}

/// Replaces bytes `first..` of a word with `bytes`, leaving the others to whoever writes them.
pub(crate) fn merge(word: &AtomicU64, first: usize, bytes: &[u8], order: Ordering) {
    let put = |old: u64| {
        let mut new = old.to_ne_bytes();
        for (to, from) in new.iter_mut().skip(first).zip(bytes) {
            *to = *from;
        }
        Some(u64::from_ne_bytes(new))
    };
    let _ = word.fetch_update(order, Ordering::Relaxed, put);
}

pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, mut dst: &mut [u8]) {
    let len = dst.len();
    for (word, first, n) in pieces(words, offset, len) {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        if let Some((head, tail)) = std::mem::take(&mut dst).split_at_mut_checked(n) {
            if let Some(bytes) = word.get(first..).and_then(|b| b.get(..n)) {
                head.copy_from_slice(bytes);
            }
            dst = tail;
        }
    }
}

pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, mut src: &[u8]) {
    let len = src.len();
    for (word, first, n) in pieces(words, offset, len) {
        let Some((head, tail)) = src.split_at_checked(n) else {
            return;
        };
        match <[u8; 8]>::try_from(head) {
            Ok(whole) => word.store(u64::from_ne_bytes(whole), Ordering::Relaxed),
            Err(_) => merge(word, first, head, Ordering::Relaxed),
        }
        src = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    proptest! {
        #[test]
        fn copies_what_a_plain_copy_would(
            ops in prop::collection::vec((0usize..64, prop::collection::vec(any::<u8>(), 0..40)), 1..20)
        ) {
            let shared = words(13);
            let mut plain = [0u8; 104];
            for (at, bytes) in ops {
                copy_in(&shared, at, &bytes);
                plain[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut out = vec![0; bytes.len()];
                copy_out(&shared, at, &mut out);
                prop_assert_eq!(&out, &bytes);
            }
            let mut out = [0; 104];
            copy_out(&shared, 0, &mut out);
            prop_assert_eq!(out, plain);
        }
    }
}
