// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layout of the server's memory: buckets, slots and records. No I/O.
//!
//! | offset | contents |
//! |---|---|
//! | 0 | the epoch of the list of members; the rest of 128 bytes is unused |
//! | 128 | [`Geometry::buckets`] buckets of 128 bytes: a head word and [`SLOTS`] slot words |
//! | behind them | records, each a multiple of [`UNIT`] bytes |
//!
//! All words have 8 bytes in little-endian order. `docs/kv.md` has the protocol.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// Slots of a bucket.
pub const SLOTS: usize = 15;
/// Bytes of a bucket.
pub const BUCKET_LEN: usize = 8 * (SLOTS + 1);
/// Bytes of the longest key.
pub const MAX_KEY: usize = 255;
/// Bytes of the longest value.
pub const MAX_VALUE: usize = 64 << 10;
/// Bytes of the memory of one server, at most.
pub const MAX_MEMORY: u64 = 1 << 30;
/// Records start and end at multiples of this.
pub const UNIT: usize = 64;
/// Bytes of a record before its key.
pub const HEADER: usize = 24;
/// Set in the version word of a record that was replaced or deleted.
pub const REPLACED: u64 = 1 << 63;
/// Share of the slots that a table is made to fill: 14 of 15.
const FILL: usize = SLOTS - 1;

/// The sizes of a table, and the number that its checksums depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Number of buckets.
    pub buckets: u32,
    /// Bytes of the longest value.
    pub max_value: u32,
    /// Bytes of the memory.
    pub len: u64,
    /// Bytes under one remote key: no bucket and no record crosses a multiple of this.
    pub segment: u64,
    /// A random number of this run of the server, so that no value can imitate a record.
    pub seed: u64,
}

impl Geometry {
    /// Makes the geometry of a table for `keys` keys in `len` bytes under remote keys of `segment`
    /// bytes each.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the buckets and one record of the longest value do not fit.
    pub fn new(len: u64, segment: u64, keys: u64, max_value: u32, seed: u64) -> Result<Self> {
        // Even: see [`Self::other`].
        let buckets = keys.div_ceil(FILL as u64).max(1).next_multiple_of(2);
        let geometry = Self {
            buckets: u32::try_from(buckets).unwrap_or(u32::MAX),
            max_value,
            len,
            segment,
            seed,
        };
        geometry.check()?;
        Ok(geometry)
    }

    /// Checks that everything is within the memory, since a client does not trust a server.
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
            && self
                .ranges()
                .any(|(_, units)| units as usize * UNIT >= self.max_record());
        match sound {
            true => Ok(()),
            false => Err(Error::Memory {
                len: self.len,
                max_value: self.max_value,
                buckets: self.buckets,
            }),
        }
    }

    /// Returns the bytes of the longest record.
    pub fn max_record(&self) -> usize {
        record_len(MAX_KEY, self.max_value as usize)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        u64::from(self.buckets) * SLOTS as u64
    }

    /// Returns the offset of a bucket.
    pub fn bucket(&self, bucket: u32) -> u64 {
        (u64::from(bucket) + 1) * BUCKET_LEN as u64
    }

    /// Returns the ranges that records may use, as first unit and number of units. No range crosses
    /// a multiple of [`Self::segment`].
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = self.bucket(self.buckets);
        let segments = self.len.div_ceil(self.segment.max(1));
        (first / self.segment.max(1)..segments).filter_map(move |n| {
            let start = (n * self.segment).max(first);
            let end = ((n + 1) * self.segment).min(self.len) / UNIT as u64;
            let start = start.div_ceil(UNIT as u64);
            // At most 2^30 / 64.
            (start < end).then_some((start as u32, (end - start) as u32))
        })
    }

    /// Returns the two buckets of a key.
    pub fn buckets_of(&self, hash: u64) -> (u32, u32) {
        let first = self.first_of(hash);
        (first, self.second_of(hash, first))
    }

    /// Returns the first bucket of a key.
    pub fn first_of(&self, hash: u64) -> u32 {
        // The upper half of the product: even, without a division. Less than `buckets`.
        ((u128::from(hash) * u128::from(self.buckets)) >> 64) as u32
    }

    /// Returns the second bucket of a key whose first one is `first`.
    pub fn second_of(&self, hash: u64, first: u32) -> u32 {
        self.other(first, fingerprint(hash))
    }

    /// Returns the other bucket of a key that has this fingerprint and is in `bucket`.
    pub fn other(&self, bucket: u32, fingerprint: u16) -> u32 {
        let buckets = u64::from(self.buckets);
        // The sum of both depends on the fingerprint only. It is odd, so they differ.
        let sum = (XxHash3_64::oneshot(&fingerprint.to_le_bytes()) % buckets) | 1;
        ((sum + buckets - u64::from(bucket) % buckets) % buckets) as u32
    }
}

/// Returns the hash of a key, from which its buckets and its fingerprint come.
pub fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// Returns 16 bits of a hash on which the first bucket hardly depends.
fn fingerprint(hash: u64) -> u16 {
    hash as u16
}

/// Returns the bytes that a record takes.
pub fn record_len(key: usize, value: usize) -> usize {
    (HEADER + key + value).next_multiple_of(UNIT)
}

/// A slot's word: where the record is, its length, and the fingerprint of its key. 0 is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// An empty slot.
    pub const EMPTY: Self = Self(0);

    /// Makes the word for a record of `units` units at unit `at`, which is not 0.
    pub fn new(hash: u64, at: u32, units: u32) -> Self {
        let units = u64::from(units) & 0xffff;
        Self((u64::from(fingerprint(hash)) << 48) | (units << 32) | u64::from(at))
    }

    /// Returns the first unit of the record.
    pub fn at(self) -> u32 {
        self.0 as u32
    }

    /// Returns the offset of the record.
    pub fn offset(self) -> u64 {
        u64::from(self.at()) * UNIT as u64
    }

    /// Returns the units of the record.
    pub fn units(self) -> u32 {
        u32::from((self.0 >> 32) as u16)
    }

    /// Returns the bytes of the record.
    pub fn len(self) -> usize {
        self.units() as usize * UNIT
    }

    /// Returns the fingerprint of the key.
    pub fn fingerprint(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns whether there is no record.
    pub fn is_empty(self) -> bool {
        self.at() == 0
    }

    /// Returns whether the record can be that of the key with this hash.
    pub fn may_be(self, hash: u64) -> bool {
        !self.is_empty() && self.fingerprint() == fingerprint(hash)
    }
}

/// A bucket as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Counts the changes. [`None`] if the bucket was read during a change.
    pub sequence: Option<u32>,
    /// The slots.
    pub slots: [Slot; SLOTS],
}

/// Returns the head word of a bucket: the sequence and a checksum of all slots.
pub fn bucket_head(sequence: u32, slots: &[Slot; SLOTS]) -> u64 {
    let mut bytes = [0; 8 * SLOTS];
    for (to, slot) in bytes.chunks_exact_mut(8).zip(slots) {
        to.copy_from_slice(&slot.0.to_le_bytes());
    }
    let checksum = XxHash3_64::oneshot_with_seed(u64::from(sequence) + 1, &bytes) as u32;
    (u64::from(sequence) << 32) | u64::from(checksum)
}

impl Bucket {
    /// Reads a bucket from its bytes; missing bytes are zeros.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(8).map(|chunk| word(chunk, 0));
        let head = words.next().unwrap_or(0);
        let mut slots = [Slot::EMPTY; SLOTS];
        for (slot, word) in slots.iter_mut().zip(words) {
            *slot = Slot(word);
        }
        let sequence = (head >> 32) as u32;
        let is_whole = bucket_head(sequence, &slots) == head;
        Self {
            sequence: is_whole.then_some(sequence),
            slots,
        }
    }
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// A number that no other value of this key has or had, whatever server it was on; not 0, and
    /// below [`REPLACED`].
    pub version: u64,
    /// The second, since the epoch of Unix, at which the server deletes the record; 0 is never.
    pub expires: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// What a reader finds where it looks for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A valid record: it has the value of its key.
    Valid(Record<'a>),
    /// A record that was valid until it was replaced or deleted.
    Replaced(Record<'a>),
    /// A record that is not valid yet.
    Invalid,
    /// Bytes that are no whole record, with the word where the version would be.
    Torn(u64),
}

/// Returns the word at `at`, or 0 if bytes of it are missing.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the checksum of a record, which depends on the place and on everything in it.
fn checksum(geometry: &Geometry, at: u32, version: u64, meta: u64, data: &[u8]) -> u64 {
    let mut place = [0; 32];
    let words = [geometry.seed, u64::from(at), version, meta];
    for (to, word) in place.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&place), data)
}

impl Record<'_> {
    /// Returns the bytes of the record at unit `at`: version, checksum, expiry and lengths, key,
    /// value.
    pub fn encode(&self, geometry: &Geometry, at: u32) -> Vec<u8> {
        // Both lengths were checked: 8 and 24 bits.
        let lens = ((self.key.len() as u64) << 24) | self.value.len() as u64;
        let meta = (u64::from(self.expires) << 32) | lens;
        let mut bytes = Vec::with_capacity(record_len(self.key.len(), self.value.len()));
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(meta.to_le_bytes());
        bytes.extend(self.key);
        bytes.extend(self.value);
        let data = bytes.get(HEADER..).unwrap_or_default();
        let sum = checksum(geometry, at, self.version, meta, data);
        if let Some(place) = bytes.get_mut(8..16) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }
}

/// The lengths and the expiry of a record, from the third word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// As [`Record::expires`].
    pub expires: u32,
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the value.
    pub value: usize,
}

impl Meta {
    /// Takes the word apart.
    pub fn decode(word: u64) -> Self {
        Self {
            expires: (word >> 32) as u32,
            key: (word >> 24) as usize & 0xff,
            value: word as usize & 0xff_ffff,
        }
    }
}

/// Reads what is at unit `at`.
///
/// Without `verify` only the lengths are checked, so that a test sees torn values.
pub fn decode<'a>(geometry: &Geometry, at: u32, bytes: &'a [u8], verify: bool) -> Found<'a> {
    let (state, meta) = (word(bytes, 0), word(bytes, 16));
    let version = state & !REPLACED;
    if state == 0 && verify {
        return Found::Invalid;
    }
    let Meta {
        expires,
        key: key_len,
        value: value_len,
    } = Meta::decode(meta);
    let data = bytes.get(HEADER..HEADER + key_len + value_len);
    let Some((data, (key, value))) =
        data.and_then(|data| Some((data, data.split_at_checked(key_len)?)))
    else {
        return Found::Torn(state);
    };
    if verify && word(bytes, 8) != checksum(geometry, at, version, meta, data) {
        return Found::Torn(state);
    }
    let record = Record {
        version,
        expires,
        key,
        value,
    };
    match verify && state != version {
        true => Found::Replaced(record),
        false => Found::Valid(record),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(seed: u64) -> Geometry {
        Geometry::new(1 << 20, 1 << 20, 1000, 4096, seed).unwrap()
    }

    proptest! {
        #[test]
        fn a_record_is_read_back(at in 1u32..1 << 14, version in 1u64..REPLACED, expires: u32, seed: u64, slack in 0usize..100,
                                 key in prop::collection::vec(any::<u8>(), 0..=255),
                                 value in prop::collection::vec(any::<u8>(), 0..3000)) {
            let (geometry, key, value) = (geometry(seed), &key[..], &value[..]);
            let record = Record { version, expires, key, value };
            let mut bytes = record.encode(&geometry, at);
            bytes.resize(bytes.len() + slack, 0xee);
            prop_assert_eq!(decode(&geometry, at, &bytes, true), Found::Valid(record));
            prop_assert_eq!(decode(&geometry, at + 1, &bytes, true), Found::Torn(version));
            let other = Geometry { seed: seed ^ 1, ..geometry };
            prop_assert_eq!(decode(&other, at, &bytes, true), Found::Torn(version));
            bytes[7] |= 0x80;
            prop_assert_eq!(decode(&geometry, at, &bytes, true), Found::Replaced(record));
            bytes[..8].fill(0);
            prop_assert_eq!(decode(&geometry, at, &bytes, true), Found::Invalid);
        }

        #[test]
        fn a_changed_byte_is_seen(version in 1u64..REPLACED, len in 0usize..2000, at: usize, flip in 1u8..=255) {
            let geometry = geometry(1);
            let value = vec![7; len];
            let mut bytes = Record { version, expires: 9, key: b"key", value: &value }.encode(&geometry, 5);
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert!(!matches!(decode(&geometry, 5, &bytes, true), Found::Valid(_)));
        }

        #[test]
        fn half_of_one_and_half_of_another_is_torn(version in 1u64..1 << 60, cut in 1usize..100) {
            let geometry = geometry(1);
            let encode = |version, value| Record { version, expires: 0, key: b"key", value }.encode(&geometry, 5);
            let (old, new) = (encode(version, &[1; 500]), encode(version + 1, &[2; 500]));
            let cut = old.len() * cut / 100;
            let torn: Vec<u8> = new[..cut].iter().chain(&old[cut..]).copied().collect();
            let careful = decode(&geometry, 5, &torn, true);
            prop_assert!(matches!(careful, Found::Torn(_)), "{careful:?}");
            let careless = decode(&geometry, 5, &torn, false);
            prop_assert!(matches!(careless, Found::Valid(_)), "{careless:?}");
        }

        #[test]
        fn nonsense_is_no_record(bytes: Vec<u8>, at: u32, verify: bool) {
            if let Found::Valid(record) = decode(&geometry(3), at, &bytes, verify) {
                prop_assert!(!verify && record.key.len() + record.value.len() <= bytes.len());
            }
        }

        #[test]
        fn the_other_bucket_of_the_other_bucket_is_the_first(hash: u64, buckets in 1u32..1 << 22) {
            let geometry = Geometry { buckets, max_value: 0, len: 0, segment: 1 << 21, seed: 0 };
            let (first, second) = geometry.buckets_of(hash);
            prop_assert!(first < buckets && second < buckets);
            prop_assert_eq!(geometry.other(second, fingerprint(hash)), first);
        }

        #[test]
        fn hostile_geometries_are_refused(buckets: u32, max_value: u32, len: u64, segment: u64) {
            let geometry = Geometry { buckets, max_value, len, segment, seed: 0 };
            if geometry.check().is_ok() {
                prop_assert!(geometry.bucket(buckets) <= len);
                for (at, units) in geometry.ranges() {
                    let (start, end) = (u64::from(at) * 64, u64::from(at + units) * 64);
                    prop_assert!(start >= geometry.bucket(buckets) && end <= len);
                    prop_assert_eq!(start / segment, (end - 1) / segment);
                }
            }
        }

        #[test]
        fn a_slot_is_read_back(hash: u64, at in 1u32.., units in 1u32..=0xffff) {
            let slot = Slot::new(hash, at, units);
            prop_assert_eq!((slot.at(), slot.units(), slot.may_be(hash)), (at, units, true));
            prop_assert!(!slot.may_be(hash ^ 1) && !slot.is_empty() && !Slot::EMPTY.may_be(0));
        }
    }

    #[test]
    fn a_bucket_that_is_half_changed_has_no_sequence() {
        let mut slots = [Slot::EMPTY; SLOTS];
        slots[3] = Slot::new(7, 9, 2);
        let mut bytes = bucket_head(41, &slots).to_le_bytes().to_vec();
        slots
            .iter()
            .for_each(|slot| bytes.extend(slot.0.to_le_bytes()));
        let bucket = Bucket::decode(&bytes);
        assert_eq!((bucket.sequence, bucket.slots), (Some(41), slots));
        bytes[8 * 4] ^= 1;
        assert_eq!(Bucket::decode(&bytes).sequence, None);
        assert_eq!(Bucket::decode(&[0; BUCKET_LEN]).sequence, None);
    }
}
