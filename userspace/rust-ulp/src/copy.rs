// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies between plain bytes and memory that others change at the same time.
//!
//! Shared memory is a slice of `AtomicU64`, and every access to it is a relaxed one of a whole
//! word. A range of bytes is a head within its first word, a body of whole words, and a tail within
//! its last word. The body is copied in chunks of [`CHUNK`] words, which the compiler unrolls.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words that one step of a copy moves.
const CHUNK: usize = 8;
/// Bytes of a word.
const WORD: usize = 8;

/// A range of bytes: part of the first word, whole words, part of the last word.
struct Parts<'a> {
    /// The word, and the first byte in it.
    head: Option<(&'a AtomicU64, usize)>,
    head_len: usize,
    body: &'a [AtomicU64],
    tail: Option<&'a AtomicU64>,
}

/// Splits the `len` bytes from `offset` on. Bytes beyond the end of `words` are left out.
fn split(words: &[AtomicU64], offset: usize, len: usize) -> Parts<'_> {
    let mut words = words.get(offset / WORD..).unwrap_or_default();
    let first = offset % WORD;
    let head_len = if first == 0 { 0 } else { len.min(WORD - first) };
    let mut head = None;
    if head_len != 0 {
        if let Some((word, rest)) = words.split_first() {
            head = Some((word, first));
            words = rest;
        }
    }
    let whole = (len - head_len) / WORD;
    let (body, rest) = words.split_at_checked(whole).unwrap_or((words, &[]));
    Parts {
        head,
        head_len,
        body,
        tail: rest.first(),
    }
}

/// Replaces bytes `first..` of a word with `bytes`; other threads and devices may write the rest of
/// it at the same time.
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

/// Copies bytes `first..` of a word out, as many as `dst` has: less than [`WORD`].
fn extract(word: &AtomicU64, first: usize, dst: &mut [u8]) {
    let mut rest = u64::from_le(word.load(Ordering::Relaxed)) >> (first * 8);
    let mut at = 0;
    // In pieces of 4, 2 and 1: a loop over the bytes takes longer than a chunk of words.
    for len in [4, 2, 1] {
        if dst.len() & len != 0 {
            if let Some(piece) = dst.get_mut(at..at + len) {
                piece.copy_from_slice(rest.to_le_bytes().get(..len).unwrap_or_default());
            }
            rest >>= len * 8;
            at += len;
        }
    }
}

/// Loads words; `dst` has as many bytes as these have.
#[inline]
fn load(words: &[AtomicU64], dst: &mut [u8]) {
    for (word, to) in words.iter().zip(dst.chunks_exact_mut(WORD)) {
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

/// Stores words; `src` has as many bytes as these have.
#[inline]
fn store(words: &[AtomicU64], src: &[u8]) {
    for (word, from) in words.iter().zip(src.chunks_exact(WORD)) {
        if let Ok(bytes) = <[u8; WORD]>::try_from(from) {
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }
}

/// Copies the bytes from `offset` on into `dst`.
pub(crate) fn copy_out(words: &[AtomicU64], offset: usize, dst: &mut [u8]) {
    let parts = split(words, offset, dst.len());
    let (head, dst) = dst.split_at_mut(parts.head_len);
    if let Some((word, first)) = parts.head {
        extract(word, first, head);
    }
    let (body, tail) = dst.split_at_mut(parts.body.len() * WORD);
    let mut to = body.chunks_exact_mut(CHUNK * WORD);
    let mut from = parts.body.chunks_exact(CHUNK);
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        load(from, to);
    }
    load(from.remainder(), to.into_remainder());
    if let Some(word) = parts.tail {
        extract(word, 0, tail);
    }
}

/// Copies `src` into the bytes from `offset` on.
pub(crate) fn copy_in(words: &[AtomicU64], offset: usize, src: &[u8]) {
    let parts = split(words, offset, src.len());
    let (head, src) = src.split_at(parts.head_len);
    if let Some((word, first)) = parts.head {
        merge(word, first, head, Ordering::Relaxed);
    }
    let (body, tail) = src.split_at(parts.body.len() * WORD);
    let mut from = body.chunks_exact(CHUNK * WORD);
    let mut to = parts.body.chunks_exact(CHUNK);
    for (to, from) in to.by_ref().zip(from.by_ref()) {
        store(to, from);
    }
    store(to.remainder(), from.remainder());
    if let Some(word) = parts.tail.filter(|_| !tail.is_empty()) {
        merge(word, 0, tail, Ordering::Relaxed);
    }
}

/// Sets the `len` bytes from `offset` on to `value`.
pub(crate) fn fill(words: &[AtomicU64], offset: usize, len: usize, value: u8) {
    let parts = split(words, offset, len);
    let pattern = [value; WORD];
    let tail = len - parts.head_len - parts.body.len() * WORD;
    if let Some((word, first)) = parts.head {
        let head = pattern.get(..parts.head_len).unwrap_or_default();
        merge(word, first, head, Ordering::Relaxed);
    }
    for word in parts.body {
        word.store(u64::from_ne_bytes(pattern), Ordering::Relaxed);
    }
    if let (Some(word), Some(tail @ [_, ..])) = (parts.tail, pattern.get(..tail)) {
        merge(word, 0, tail, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn every_offset_and_length() {
        let plain: Vec<u8> = (1..=200).collect();
        for offset in 0..17 {
            for len in 0..=plain.len() {
                let shared = words(28);
                copy_in(&shared, offset, &plain[..len]);
                let mut all = [0xff; 8 * 28];
                copy_out(&shared, 0, &mut all);
                let (before, rest) = all.split_at(offset);
                let (mine, after) = rest.split_at(len);
                assert_eq!(mine, &plain[..len], "{len} bytes at {offset}");
                assert!(before.iter().chain(after).all(|byte| *byte == 0));
                let mut some = vec![0xff; len];
                copy_out(&shared, offset, &mut some);
                assert_eq!(some, &plain[..len], "{len} bytes at {offset}");
                fill(&shared, offset, len, 0);
                assert!(shared.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            }
        }
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
