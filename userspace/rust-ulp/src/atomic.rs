// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers in a buffer: atomic loads, stores and additions.
//!
//! Every access is one of the whole word that has the number, so that no two accesses of different
//! sizes race.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// Returns an ordering that a load may have: others become `SeqCst`.
fn for_load(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Acquire => order,
        _ => Ordering::SeqCst,
    }
}

/// Returns an ordering that a store may have: others become `SeqCst`.
fn for_store(order: Ordering) -> Ordering {
    match order {
        Ordering::Relaxed | Ordering::Release => order,
        _ => Ordering::SeqCst,
    }
}

/// Returns the `N` bytes of a word from `first` on.
fn part<const N: usize>(word: u64, first: usize) -> [u8; N] {
    let mut value = [0; N];
    for (to, from) in value.iter_mut().zip(word.to_ne_bytes().iter().skip(first)) {
        *to = *from;
    }
    value
}

impl Buffer {
    /// Returns the word that has the `N` aligned bytes at `offset`, and where in it they start.
    fn word<const N: usize>(&self, offset: usize) -> Result<(&AtomicU64, usize)> {
        self.check(offset, N)?;
        if offset % N != 0 {
            return Err(Error::Misaligned {
                offset: offset as u64,
                align: N as u64,
            });
        }
        match self.words().get(offset / 8) {
            Some(word) => Ok((word, offset % 8)),
            None => Err(self.range_error(offset, N)),
        }
    }

    /// Returns the word of [`Self::word`] to be written.
    fn word_to_write<const N: usize>(&self, offset: usize) -> Result<(&AtomicU64, usize)> {
        self.check_write(offset, N)?;
        self.word::<N>(offset)
    }

    fn load<const N: usize>(&self, offset: usize, order: Ordering) -> Result<[u8; N]> {
        let (word, first) = self.word::<N>(offset)?;
        let word = match for_load(order) {
            // Only relaxed loads are sure not to write, which a mapping for reading does not allow.
            Ordering::Acquire | Ordering::SeqCst if self.check_write(offset, N).is_err() => {
                fence(Ordering::SeqCst);
                let value = word.load(Ordering::Relaxed);
                fence(Ordering::SeqCst);
                value
            }
            order => word.load(order),
        };
        Ok(part(word, first))
    }

    /// Replaces `N` bytes by what `f` makes of them, and returns what was there.
    fn update<const N: usize>(
        &self,
        offset: usize,
        order: Ordering,
        f: impl Fn([u8; N]) -> [u8; N],
    ) -> Result<[u8; N]> {
        let (word, first) = self.word_to_write::<N>(offset)?;
        let put = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            let new = f(part(old, first));
            for (to, from) in bytes.iter_mut().skip(first).zip(new) {
                *to = from;
            }
            Some(u64::from_ne_bytes(bytes))
        };
        let old = word.fetch_update(order, Ordering::Relaxed, put);
        Ok(part(old.unwrap_or_else(|old| old), first))
    }
}

macro_rules! numbers {
    ($($ty:ident: $load:ident, $store:ident, $fetch_add:ident;)*) => {
        impl Buffer { $(
            #[doc = concat!("Loads the `", stringify!($ty), "` in host order at `offset`.")]
            ///
            /// What it sees with [`Ordering::Acquire`] is in [Order](Buffer#order). An ordering that
            /// a load cannot have is taken as `SeqCst`.
            ///
            /// # Errors
            ///
            /// [`Error::Range`], or [`Error::Misaligned`] unless `offset` is a multiple of its
            /// size.
            pub fn $load(&self, offset: usize, order: Ordering) -> Result<$ty> {
                Ok($ty::from_ne_bytes(self.load(offset, order)?))
            }

            #[doc = concat!("Stores a `", stringify!($ty), "` in host order at `offset`.")]
            ///
            /// What a peer's Read sees with [`Ordering::Release`] is in [Order](Buffer#order). An
            /// ordering that a store cannot have is taken as `SeqCst`.
            ///
            /// # Errors
            ///
            /// [`Error::Range`], [`Error::ReadOnly`], or [`Error::Misaligned`] unless `offset` is a
            /// multiple of its size.
            pub fn $store(&self, offset: usize, value: $ty, order: Ordering) -> Result<()> {
                if let Ok(word) = <[u8; 8]>::try_from(value.to_ne_bytes().as_slice()) {
                    let (to, _) = self.word_to_write::<8>(offset)?;
                    to.store(u64::from_ne_bytes(word), for_store(order));
                    return Ok(());
                }
                let order = for_store(order);
                self.update(offset, order, |_| value.to_ne_bytes()).map(drop)
            }

            #[doc = concat!("Adds to the `", stringify!($ty), "` in host order at `offset`, which wraps \
                around, and returns what was there.")]
            ///
            /// The addition is atomic for all processes of this host. It is not atomic for the atomic
            /// operations of peers, which with most devices, Soft-RoCE among them, are atomic among
            /// themselves only: [`FetchAdd`](crate::wr::FetchAdd) says what to do.
            ///
            /// # Errors
            ///
            /// [`Error::Range`], [`Error::ReadOnly`], or [`Error::Misaligned`] unless `offset` is a
            /// multiple of its size.
            pub fn $fetch_add(&self, offset: usize, value: $ty, order: Ordering) -> Result<$ty> {
                let add = |old| $ty::from_ne_bytes(old).wrapping_add(value).to_ne_bytes();
                Ok($ty::from_ne_bytes(self.update(offset, order, add)?))
            }
        )* }
    };
}

numbers! {
    u8: load_u8, store_u8, fetch_add_u8;
    u16: load_u16, store_u16, fetch_add_u16;
    u32: load_u32, store_u32, fetch_add_u32;
    u64: load_u64, store_u64, fetch_add_u64;
}

impl Buffer {
    /// Stores `new` at `offset` if the `u64` there is `current`, and returns what was there.
    ///
    /// The exchange is as atomic as [`Self::fetch_add_u64`]: not for the atomic operations of peers.
    ///
    /// # Errors
    ///
    /// [`Error::Range`], [`Error::ReadOnly`], or [`Error::Misaligned`] unless `offset` is a
    /// multiple of 8.
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        current: u64,
        new: u64,
        order: Ordering,
    ) -> Result<u64> {
        let (word, _) = self.word_to_write::<8>(offset)?;
        let failure = match order {
            Ordering::Relaxed | Ordering::Release => Ordering::Relaxed,
            Ordering::Acquire | Ordering::AcqRel => Ordering::Acquire,
            _ => Ordering::SeqCst,
        };
        Ok(match word.compare_exchange(current, new, order, failure) {
            Ok(old) | Err(old) => old,
        })
    }
}
