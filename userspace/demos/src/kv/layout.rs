// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layout of a server's memory: a head, buckets of slots, and blocks with records. No I/O.
//!
//! | offset | contents |
//! |---|---|
//! | 0 | [`MAGIC`], seed, sizes, mode |
//! | [`NEXT`] | the offset of the first byte that no block has |
//! | [`FREE`] | for each class of blocks the head of a stack of free ones |
//! | [`HEAD`] | [`Geometry::buckets`] buckets of [`SLOTS`] slot words |
//! | behind them | blocks, each a multiple of [`UNIT`] bytes |
//!
//! All words have 8 bytes in little-endian order.

use crate::error::Error;
use twox_hash::XxHash3_64;

/// The first word of a server's memory: the version of the layout, too.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ulp-kv 4");
/// The offset of the word that says where the next new block begins.
pub const NEXT: u64 = 32;
/// The offset of the heads of the stacks of free blocks.
pub const FREE: u64 = 64;
/// Bytes before the first bucket.
pub const HEAD: u64 = 1024;
/// Slots of a bucket.
pub const SLOTS: usize = 16;
/// Bytes of a bucket.
pub const BUCKET: usize = 8 * SLOTS;
/// Blocks begin and end at multiples of this.
pub const UNIT: usize = 64;
/// Bytes of a record before its key.
pub const RECORD: usize = 24;
/// Bytes of the longest key.
pub const MAX_KEY: usize = 255;
/// Bytes of the longest value.
pub const MAX_VALUE: usize = 64 << 10;
/// Bytes of the memory of one server, at most: a slot word has 24 bits for the unit.
pub const MAX_MEMORY: u64 = 1 << 30;
/// Classes of blocks: see [`class`].
pub const CLASSES: usize = 40;

/// Who changes a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The server, which clients send their writes to.
    Message,
    /// The clients, by Write and compare-and-swap.
    OneSided,
}

/// The sizes of a server's memory, and the random number that its checksums depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A random number of this run of the server.
    pub seed: u64,
    /// The number of buckets.
    pub buckets: u32,
    /// The bytes of the longest value.
    pub max_value: u32,
    /// The bytes of the memory.
    pub len: u64,
    /// The bytes under one remote key, which no block crosses.
    pub segment: u64,
    /// Who changes the memory.
    pub mode: Mode,
}

impl Geometry {
    /// Makes the sizes for `keys` keys in `len` bytes, with a slot to spare for each eight keys.
    pub fn new(
        len: u64,
        segment: u64,
        keys: u64,
        max_value: u32,
        seed: u64,
        mode: Mode,
    ) -> Result<Self, Error> {
        let slots = keys.saturating_add(keys / 8).max(1);
        let geometry = Self {
            seed,
            buckets: u32::try_from(slots.div_ceil(SLOTS as u64)).unwrap_or(u32::MAX),
            max_value,
            len,
            segment,
            mode,
        };
        geometry.check()?;
        Ok(geometry)
    }

    /// Checks that buckets and one record of the longest value are within the memory.
    fn check(&self) -> Result<(), Error> {
        let longest = class(record_units(MAX_KEY, self.max_value as usize)).1 as u64 * UNIT as u64;
        let needs = self.first_block().saturating_add(longest);
        let sound = self.buckets > 0
            && self.max_value as usize <= MAX_VALUE
            && self.len <= MAX_MEMORY
            && needs <= self.len
            && self.segment >= longest.max(4096)
            && self.segment % 4096 == 0;
        match sound {
            true => Ok(()),
            false => Err(Error::Memory {
                len: self.len,
                buckets: self.buckets,
                max_value: self.max_value,
            }),
        }
    }

    /// Returns the words of the head, from offset 0.
    pub fn encode(&self) -> [u64; 4] {
        let sizes = (u64::from(self.max_value) << 32) | u64::from(self.buckets);
        [
            MAGIC,
            self.seed,
            sizes,
            u64::from(self.mode == Mode::OneSided),
        ]
    }

    /// Reads the words of the head. `len` and `segment` are those of the server's grants.
    pub fn decode(head: &[u8], len: u64, segment: u64) -> Result<Self, Error> {
        let sizes = word(head, 16);
        if word(head, 0) != MAGIC {
            return Err(Error::Corrupt("its memory has another layout"));
        }
        let geometry = Self {
            seed: word(head, 8),
            buckets: sizes as u32,
            max_value: (sizes >> 32) as u32,
            len,
            segment,
            mode: match word(head, 24) {
                0 => Mode::Message,
                _ => Mode::OneSided,
            },
        };
        geometry.check()?;
        Ok(geometry)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u64 {
        u64::from(self.buckets) * SLOTS as u64
    }

    /// Returns the offset of the first block.
    pub fn first_block(&self) -> u64 {
        HEAD + u64::from(self.buckets) * BUCKET as u64
    }

    /// Returns the offsets of the two buckets of a key, in the order in which its slot is looked for.
    pub fn buckets_of(&self, hash: u64) -> [u64; 2] {
        let buckets = u64::from(self.buckets).max(1);
        let first = (hash >> 32) % buckets;
        // Another one, where there is another.
        let second =
            (first + 1 + (hash & 0xffff_ffff) % buckets.saturating_sub(1).max(1)) % buckets;
        [first, second].map(|bucket| HEAD + bucket * BUCKET as u64)
    }

    /// Returns whether a slot word names a block that this memory can have.
    pub fn is_sound(&self, slot: Slot) -> bool {
        let end = slot.offset() + slot.len() as u64;
        slot.units() > 0
            && slot.offset() >= self.first_block()
            && end <= self.len
            && slot.units() <= class(record_units(MAX_KEY, self.max_value as usize)).1
            && slot.offset() / self.segment == (end - 1) / self.segment
    }
}

/// Returns the hash of a key.
pub fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// Returns the units that a record takes.
pub fn record_units(key: usize, value: usize) -> u32 {
    // At most 1,029.
    (RECORD + key + value).div_ceil(UNIT) as u32
}

/// Returns the class of blocks for records of so many units, and the units of its blocks: those up
/// to 8, then four sizes between each two powers of two.
pub fn class(units: u32) -> (usize, u32) {
    let last = units.max(1) - 1;
    let shift = (32 - last.leading_zeros()).saturating_sub(3);
    let steps = (last >> shift) + 1;
    let index = match shift {
        0 => last,
        _ => 8 + 4 * (shift - 1) + steps - 5,
    };
    ((index as usize).min(CLASSES - 1), steps << shift)
}

/// A slot's word: where its key's record is and how long, the key's fingerprint, and a count of the
/// key's records. 0 is a slot that no key has yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// Makes the word that follows `old` in its slot, for a record of `units` units at unit `at`.
    ///
    /// The count makes a word come back to its slot after 131,072 changes at the earliest.
    pub fn next(old: Self, hash: u64, at: u32, units: u32) -> Self {
        let count = ((old.0 >> 47) + 1) & 0x1_ffff;
        let fingerprint = u64::from(fingerprint(hash));
        let place = (u64::from(units & 0x7ff) << 24) | u64::from(at & 0xff_ffff);
        Self((count << 47) | (fingerprint << 35) | place)
    }

    /// Returns the first unit of the record.
    pub fn at(self) -> u32 {
        self.0 as u32 & 0xff_ffff
    }

    /// Returns the offset of the record.
    pub fn offset(self) -> u64 {
        u64::from(self.at()) * UNIT as u64
    }

    /// Returns the units of the record.
    pub fn units(self) -> u32 {
        (self.0 >> 24) as u32 & 0x7ff
    }

    /// Returns the bytes of the record.
    pub fn len(self) -> usize {
        self.units() as usize * UNIT
    }

    /// Returns whether no key has this slot.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the slot can be that of the key with this hash.
    pub fn may_be(self, hash: u64) -> bool {
        !self.is_empty() && (self.0 >> 35) as u16 & 0xfff == fingerprint(hash)
    }
}

/// Returns 12 bits of a hash on which its buckets hardly depend.
fn fingerprint(hash: u64) -> u16 {
    (hash ^ (hash >> 20)) as u16 & 0xfff
}

/// Returns the word at `at`, or 0 if bytes of it are missing.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What a block has where a slot said that there is a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whether it is still marked as the record of its key.
    pub is_current: bool,
    /// The key.
    pub key: &'a [u8],
    /// The value; [`None`] says that the key was deleted.
    pub value: Option<&'a [u8]>,
}

fn checksum(seed: u64, slot: Slot, meta: u64, data: &[u8]) -> u64 {
    let head = [seed, slot.0, meta].map(u64::to_le_bytes);
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(head.as_flattened()), data)
}

/// Returns the bytes of a record: its slot's word, a checksum, lengths, key, value.
pub fn encode(seed: u64, slot: Slot, key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let bytes = value.unwrap_or_default();
    let is_deleted = u64::from(value.is_none());
    let meta = (is_deleted << 40) | ((key.len() as u64) << 32) | bytes.len() as u64;
    let data = [key, bytes].concat();
    let words = [slot.0, checksum(seed, slot, meta, &data), meta].map(u64::to_le_bytes);
    [words.as_flattened(), &data].concat()
}

/// Reads the record of `slot` from its bytes; [`None`] if there are others, or not all of them.
///
/// Without `verify` only the lengths are checked, so that a test sees torn values.
pub fn decode(seed: u64, slot: Slot, bytes: &[u8], verify: bool) -> Option<Record<'_>> {
    let meta = word(bytes, 16);
    let (key, value) = ((meta >> 32) as usize & 0xff, meta as usize & 0xffff_ffff);
    let data = bytes.get(RECORD..)?.get(..key + value)?;
    let is_right = !verify || word(bytes, 8) == checksum(seed, slot, meta, data);
    let (key, value) = data.split_at_checked(key).filter(|_| is_right)?;
    Some(Record {
        is_current: word(bytes, 0) == slot.0,
        key,
        value: ((meta >> 40) & 1 == 0).then_some(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_back_and_a_changed_one_is_not(
            at in 1u32..1 << 24, seed: u64, flip in 0usize..3500, deleted: bool,
            key in prop::collection::vec(any::<u8>(), 1..=255), value in prop::collection::vec(any::<u8>(), 0..3000)
        ) {
            let units = record_units(key.len(), value.len());
            let slot = Slot::next(Slot(0), hash(&key), at, units);
            prop_assert!(slot.may_be(hash(&key)) && (slot.at(), slot.units()) == (at, units));
            let value = (!deleted).then_some(&value[..]);
            let mut bytes = encode(seed, slot, &key, value);
            prop_assert!(bytes.len() <= slot.len());
            let record = Record { is_current: true, key: &key, value };
            prop_assert_eq!(decode(seed, slot, &bytes, true), Some(record));
            prop_assert_eq!(decode(seed ^ 1, slot, &bytes, true), None);
            prop_assert_eq!(decode(seed, Slot::next(slot, hash(&key), at, units), &bytes, true), None);
            // Its mark is no part of what the checksum is of; all the rest is.
            let flip = flip % bytes.len();
            bytes[flip] ^= 1;
            let found = decode(seed, slot, &bytes, true);
            prop_assert_eq!(found.map(|record| record.is_current), (flip < 8).then_some(false));
        }
    }

    #[test]
    fn classes_have_room_and_waste_little() {
        let longest = record_units(MAX_KEY, MAX_VALUE);
        let mut last = class(1);
        assert_eq!(last, (0, 1));
        for units in 2..=longest {
            let (index, size) = class(units);
            assert!(size >= units && size * 4 <= units * 5, "{units}: {size}");
            assert!(index < CLASSES && (index, size) >= last, "{units}");
            assert_eq!(index == last.0, size == last.1, "{units}");
            assert_eq!(class(size), (index, size));
            last = (index, size);
        }
    }

    #[test]
    fn buckets_are_two_and_words_do_not_come_back_soon() {
        let geometry = Geometry::new(1 << 20, 1 << 20, 100, 64, 1, Mode::Message).unwrap();
        assert_eq!(geometry.slots(), 112);
        for n in 0..1000u64 {
            let [first, second] = geometry.buckets_of(hash(&n.to_le_bytes()));
            assert!(first != second && first.max(second) < geometry.first_block());
        }
        let first = Slot::next(Slot(0), 7, 5, 3);
        let mut slot = first;
        for n in 1..=131_072 {
            slot = Slot::next(slot, 7, 5, 3);
            assert_eq!(slot == first, n == 131_072);
        }
    }

    #[test]
    fn a_table_that_its_memory_cannot_have_is_refused() {
        let head = |words: [u64; 4]| words.map(u64::to_le_bytes).as_flattened().to_vec();
        let good = Geometry::new(1 << 20, 1 << 20, 100, 64, 1, Mode::OneSided).unwrap();
        let read = |words| Geometry::decode(&head(words), 1 << 20, 1 << 20);
        assert_eq!(read(good.encode()).unwrap(), good);
        let [magic, seed, sizes, mode] = good.encode();
        for bad in [
            [magic ^ 1, seed, sizes, mode],
            [magic, seed, sizes | 0xffff_ffff, mode],
            [magic, seed, sizes | (0xffff_ffff << 32), mode],
            [magic, seed, 0, mode],
        ] {
            assert!(read(bad).is_err(), "{bad:x?}");
        }
        assert!(Geometry::decode(&head(good.encode()), 2048, 4096).is_err());
        let slot = |at, units| Slot::next(Slot(0), 1, at, units);
        let first = (good.first_block() / UNIT as u64) as u32;
        assert!(good.is_sound(slot(first, 1)));
        for bad in [
            slot(first - 1, 1),
            slot(first, 0),
            slot(16384, 1),
            slot(16383, 2),
            slot(first, 2000),
        ] {
            assert!(!good.is_sound(bad), "{bad:?}");
        }
    }
}
