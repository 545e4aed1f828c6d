// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the table lies in the server's memory, and what a record is made of. No I/O.
//!
//! | part | what |
//! |---|---|
//! | buckets | 256 bytes each: a lock word, then [`SLOTS`] slot words |
//! | records | two places for each slot, of [`Geometry::record_len`] bytes each |
//!
//! All words are of 8 bytes in little-endian order, and are changed by compare-and-swap only. `docs/kv.md` has
//! the protocol.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// Slots of a bucket.
pub const SLOTS: usize = 31;
/// Bytes of a bucket: one packet's worth, whatever the MTU.
pub const BUCKET_LEN: usize = 8 * (SLOTS + 1);
/// Bytes of the longest key.
pub const MAX_KEY: usize = 255;
/// Bytes of the longest value.
pub const MAX_VALUE: usize = 64 << 10;
/// Bytes of a table, at most: what one server offers.
pub const MAX_MEMORY: u64 = 1 << 30;
/// Records start and end at multiples of this.
const UNIT: usize = 64;
/// Bytes of a record before its key.
const HEADER: usize = 24;
const MAGIC: u16 = 0x4b56;

/// What a table is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// How many buckets.
    pub buckets: u32,
    /// Bytes of the longest value.
    pub max_value: u32,
    /// Bytes of the memory.
    pub len: u64,
    /// Bytes behind which another key begins: nothing lies across.
    pub segment: u64,
}

/// Which bucket, and which slot of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The bucket.
    pub bucket: u32,
    /// The slot in it.
    pub slot: u32,
}

impl Geometry {
    /// The largest table that fits into `len` bytes under keys of `segment` bytes each.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if not even one bucket does.
    pub fn fit(len: u64, segment: u64, max_value: u32) -> Result<Self> {
        let make = |buckets| Self {
            buckets,
            max_value,
            len,
            segment,
        };
        // The largest that fits: more buckets never need less.
        let (mut fits, mut too_many) = (
            0,
            u32::try_from(len / BUCKET_LEN as u64).unwrap_or(u32::MAX),
        );
        too_many = too_many.saturating_add(1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            match make(middle).check() {
                Ok(()) => fits = middle,
                Err(_) => too_many = middle,
            }
        }
        make(fits).check()?;
        Ok(make(fits))
    }

    /// Whether everything is within the memory and within one key each, as a client has to know of a server
    /// that it does not trust.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`].
    pub fn check(&self) -> Result<()> {
        let sound = self.buckets > 0
            && self.max_value as usize <= MAX_VALUE
            && self.len <= MAX_MEMORY
            && self.segment >= BUCKET_LEN as u64
            && self.segment % BUCKET_LEN as u64 == 0
            && self.pairs_before(self.len.div_ceil(self.segment))
                >= u64::from(self.buckets) * SLOTS as u64;
        if sound {
            Ok(())
        } else {
            Err(Error::Memory {
                len: self.len,
                max_value: self.max_value,
            })
        }
    }

    /// Bytes of a record's place.
    pub fn record_len(&self) -> usize {
        (HEADER + MAX_KEY + self.max_value as usize + 16).next_multiple_of(UNIT)
    }

    fn pair_len(&self) -> u64 {
        2 * self.record_len() as u64
    }

    /// Bytes of all buckets.
    fn index_len(&self) -> u64 {
        u64::from(self.buckets) * BUCKET_LEN as u64
    }

    /// Pairs of records that lie in segment `n`, and where the first of them is.
    fn pairs_in(&self, n: u64) -> (u64, u64) {
        let start = n.saturating_mul(self.segment);
        let end = start.saturating_add(self.segment).min(self.len);
        let first = start.max(self.index_len());
        (end.saturating_sub(first) / self.pair_len(), first)
    }

    fn pairs_before(&self, segments: u64) -> u64 {
        // Those that are all buckets have none, those behind are all alike.
        let mixed = self.index_len() / self.segment;
        let whole = self.segment / self.pair_len();
        match segments {
            n if n <= mixed => 0,
            n => {
                let first = self.pairs_in(mixed).0;
                let last = self.len / self.segment;
                let full = n.min(last).saturating_sub(mixed + 1);
                let rest = if n > last && last > mixed {
                    self.pairs_in(last).0
                } else {
                    0
                };
                first + full * whole + rest
            }
        }
    }

    /// Slots of the table.
    pub fn slots(&self) -> u64 {
        u64::from(self.buckets) * SLOTS as u64
    }

    /// Where a bucket is.
    pub fn bucket(&self, bucket: u32) -> u64 {
        u64::from(bucket) * BUCKET_LEN as u64
    }

    /// Where a slot's word is.
    pub fn word(&self, place: Place) -> u64 {
        self.bucket(place.bucket) + 8 * (u64::from(place.slot) + 1)
    }

    /// Where the record of a version is: one version's place is not that of the next.
    pub fn record(&self, place: Place, version: u32) -> u64 {
        let n = u64::from(place.bucket) * SLOTS as u64 + u64::from(place.slot);
        let mixed = self.index_len() / self.segment;
        let (in_first, first) = self.pairs_in(mixed);
        let start = match n.checked_sub(in_first) {
            None => first + n * self.pair_len(),
            Some(n) => {
                let whole = (self.segment / self.pair_len()).max(1);
                (mixed + 1 + n / whole) * self.segment + n % whole * self.pair_len()
            }
        };
        start + u64::from(version & 1) * self.record_len() as u64
    }

    /// The bucket of a key.
    pub fn bucket_of(&self, hash: u64) -> u32 {
        // The upper half of the product: even, without a division. Less than `buckets`.
        ((u128::from(hash) * u128::from(self.buckets)) >> 64) as u32
    }
}

/// The hash of a key: of its bucket and its fingerprint.
pub fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// A slot's word: which version is valid, how long it is, and the fingerprint of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// The next version, of a record of `len` bytes.
    pub fn with(self, len: usize, hash: u64) -> Self {
        let units = (len.div_ceil(UNIT) as u64) & 0xfff;
        Self((u64::from(self.version().wrapping_add(1)) << 32) | (units << 20) | fingerprint(hash))
    }

    /// The next version, which is empty.
    pub fn emptied(self) -> Self {
        Self(u64::from(self.version().wrapping_add(1)) << 32)
    }

    /// Its version.
    pub fn version(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Bytes of its record.
    pub fn record_len(self) -> usize {
        ((self.0 >> 20) & 0xfff) as usize * UNIT
    }

    /// Whether there is no record.
    pub fn is_empty(self) -> bool {
        self.0 & 0xf_ffff == 0
    }

    /// Whether the record can be that of the key with this hash.
    pub fn may_be(self, hash: u64) -> bool {
        self.0 & 0xf_ffff == fingerprint(hash)
    }
}

/// 20 bits of a hash, of which the bucket does not depend much; never 0.
fn fingerprint(hash: u64) -> u64 {
    (hash & 0xf_ffff).max(1)
}

/// A bucket's lock word: who has it, and how often it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock(pub u64);

impl Lock {
    /// The client that has it; 0: nobody.
    pub fn owner(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The same, taken by `owner`.
    pub fn taken(self, owner: u32) -> Self {
        Self((u64::from(owner) << 32) | u64::from((self.0 as u32).wrapping_add(1)))
    }

    /// The same, free.
    pub fn freed(self) -> Self {
        Self(self.0 & 0xffff_ffff)
    }
}

/// What stands at the head and at the tail of a record.
fn stamp(place: Place, version: u32) -> u64 {
    let n = u64::from(place.bucket) * SLOTS as u64 + u64::from(place.slot);
    (u64::from(version) << 32) | (n & 0xffff_ffff)
}

/// Of key and value, which lie together, with their lengths and the stamp.
fn checksum(stamp: u64, key_len: usize, data: &[u8]) -> u64 {
    let seed = stamp.rotate_left(20) ^ (((key_len as u64) << 32) | data.len() as u64);
    XxHash3_64::oneshot_with_seed(seed, data)
}

/// A record: head stamp, lengths, checksum, key, value, tail stamp. The bytes, and how many there are before
/// the slack.
pub fn encode(place: Place, version: u32, key: &[u8], value: &[u8]) -> Vec<u8> {
    let stamp = stamp(place, version);
    let mut bytes = Vec::with_capacity(HEADER + key.len() + value.len() + 16);
    bytes.extend(stamp.to_le_bytes());
    // Both were checked: they fit.
    bytes.extend((value.len() as u32).to_le_bytes());
    bytes.extend((key.len() as u16).to_le_bytes());
    bytes.extend(MAGIC.to_le_bytes());
    let data = [key, value].concat();
    bytes.extend(checksum(stamp, key.len(), &data).to_le_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(stamp.to_le_bytes());
    bytes
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.get(..N)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

/// A record's key and value, if it is whole and the one that the slot's word is about. [`None`] if it was
/// overwritten meanwhile, or never was one.
///
/// Without `verify` only the lengths are looked at, so that nothing is read that is not there: for tests, which
/// have to fail then.
pub fn decode(bytes: &[u8], place: Place, version: u32, verify: bool) -> Option<(&[u8], &[u8])> {
    let stamp = stamp(place, version);
    let value_len = number(bytes, 8).map(u32::from_le_bytes)? as usize;
    let key_len = usize::from(number(bytes, 12).map(u16::from_le_bytes)?);
    let magic = number(bytes, 14).map(u16::from_le_bytes)?;
    if key_len > MAX_KEY || value_len > MAX_VALUE {
        return None;
    }
    let key = bytes.get(HEADER..HEADER + key_len)?;
    let end = HEADER + key_len + value_len;
    let value = bytes.get(HEADER + key_len..end)?;
    let data = bytes.get(HEADER..end)?;
    let whole = || {
        word(bytes, 0) == Some(stamp)
            && word(bytes, end.next_multiple_of(8)) == Some(stamp)
            && magic == MAGIC
            && word(bytes, 16) == Some(checksum(stamp, key_len, data))
    };
    (!verify || whole()).then_some((key, value))
}

/// Whether a record, of which only the first part was read, is that of a key. [`None`] if it is not the one that the
/// slot's word is about: a device may show a slot before the record that was written earlier.
pub fn is_of(bytes: &[u8], place: Place, version: u32, key: &[u8]) -> Option<bool> {
    let key_len = usize::from(number(bytes, 12).map(u16::from_le_bytes)?);
    let is_it = word(bytes, 0) == Some(stamp(place, version));
    let same = key_len == key.len() && bytes.get(HEADER..HEADER + key.len()) == Some(key);
    is_it.then_some(same)
}

/// The lock and the slots of a bucket as it was read.
pub fn bucket(bytes: &[u8]) -> (Lock, impl Iterator<Item = (u32, Slot)> + '_) {
    let words = bytes
        .chunks_exact(8)
        .map(|chunk| word(chunk, 0).unwrap_or(0));
    let mut words = words.take(SLOTS + 1);
    let lock = Lock(words.next().unwrap_or(0));
    (lock, (0..).zip(words.map(Slot)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        (0..1u32 << 20, 0..SLOTS as u32).prop_map(|(bucket, slot)| Place { bucket, slot })
    }

    proptest! {
        #[test]
        fn a_record_is_read_back(place in place(), version: u32, key in prop::collection::vec(any::<u8>(), 0..=255),
                                 value in prop::collection::vec(any::<u8>(), 0..3000), slack in 0usize..100) {
            let mut bytes = encode(place, version, &key, &value);
            bytes.resize(bytes.len() + slack, 0xee);
            prop_assert_eq!(decode(&bytes, place, version, true), Some((&key[..], &value[..])));
            prop_assert_eq!(decode(&bytes, place, version.wrapping_add(2), true), None);
        }

        #[test]
        fn a_torn_record_is_none(place in place(), version: u32, len in 1usize..2000, at: usize, flip in 1u8..=255) {
            let mut bytes = encode(place, version, b"key", &vec![7; len]);
            let at = at % bytes.len();
            // What lies between value and tail says nothing.
            let end = HEADER + 3 + len;
            prop_assume!(!(end..end.next_multiple_of(8)).contains(&at));
            bytes[at] ^= flip;
            prop_assert_eq!(decode(&bytes, place, version, true), None);
        }

        #[test]
        fn half_of_one_and_half_of_another_is_none(place in place(), version: u32, cut in 1usize..100) {
            let old = encode(place, version, b"key", &[1; 500]);
            let new = encode(place, version.wrapping_add(2), b"key", &[2; 500]);
            let cut = old.len() * cut / 100;
            let torn: Vec<u8> = new[..cut].iter().chain(&old[cut..]).copied().collect();
            prop_assert_eq!(decode(&torn, place, version, true), None);
            prop_assert!(cut < HEADER || decode(&torn, place, version, false).is_some());
        }

        #[test]
        fn nonsense_is_no_record(bytes: Vec<u8>, place in place(), version: u32, verify: bool) {
            if let Some((key, value)) = decode(&bytes, place, version, verify) {
                prop_assert!(!verify && key.len() + value.len() <= bytes.len());
            }
        }

        #[test]
        fn nothing_overlaps(len in 200_000u64..40_000_000, segments in 1u64..9, max_value in 0u32..=65_536) {
            let segment = (len / segments).next_multiple_of(1 << 21);
            let Ok(table) = Geometry::fit(len, segment, max_value) else { return Ok(()) };
            let mut last = table.index_len();
            let step = (table.slots() / 500).max(1) as u32;
            for n in (0..table.slots() as u32).filter(|n| n % step < 2) {
                let place = Place { bucket: n / SLOTS as u32, slot: n % SLOTS as u32 };
                for version in [0, 1] {
                    let at = table.record(place, version);
                    prop_assert!(at >= last, "{table:?} {place:?}");
                    last = at + table.record_len() as u64;
                    prop_assert!(last <= len);
                    prop_assert_eq!(at / segment, (last - 1) / segment);
                }
            }
        }

        #[test]
        fn every_key_has_a_bucket(hash: u64, buckets in 1u32..1 << 22) {
            let table = Geometry { buckets, max_value: 0, len: 0, segment: 1 << 21 };
            prop_assert!(table.bucket_of(hash) < buckets);
        }

        #[test]
        fn hostile_geometries_are_refused(buckets: u32, max_value: u32, len: u64, segment: u64) {
            let table = Geometry { buckets, max_value, len, segment };
            if table.check().is_ok() {
                let last = Place { bucket: buckets - 1, slot: SLOTS as u32 - 1 };
                prop_assert!(table.record(last, 1) + table.record_len() as u64 <= len);
            }
        }
    }

    #[test]
    fn a_record_of_another_version_or_slot_is_nobodys() {
        let place = Place { bucket: 5, slot: 7 };
        let bytes = encode(place, 3, b"name", b"value");
        assert_eq!(is_of(&bytes, place, 3, b"name"), Some(true));
        assert_eq!(is_of(&bytes, place, 3, b"nome"), Some(false));
        assert_eq!(is_of(&bytes, place, 5, b"name"), None);
        assert_eq!(
            is_of(&bytes, Place { bucket: 5, slot: 8 }, 3, b"name"),
            None
        );
        assert_eq!(is_of(&[], place, 3, b"name"), None);
    }

    #[test]
    fn words_count_versions() {
        let slot = Slot(0).with(100, 0);
        assert_eq!(
            (slot.version(), slot.record_len(), slot.is_empty()),
            (1, 128, false)
        );
        assert!(slot.may_be(1 << 20) && !slot.may_be(2));
        assert_eq!(
            (slot.emptied().version(), slot.emptied().is_empty()),
            (2, true)
        );
        assert_eq!(Slot(u64::MAX).emptied().version(), 0);
        let lock = Lock(5).taken(3);
        assert_eq!(
            (lock.owner(), lock.freed(), lock.freed().owner()),
            (3, Lock(6), 0)
        );
    }

    #[test]
    fn a_table_uses_its_memory() {
        let table = Geometry::fit(1 << 30, 1 << 30, 1024).unwrap();
        let used = table.slots() * table.pair_len() + table.index_len();
        assert!(used > (1 << 30) * 99 / 100, "{table:?}");
        assert!(Geometry::fit(4096, 1 << 21, 1024).is_err());
    }
}
