// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table as the server changes it. One thread does, in an order that keeps readers right.
//!
//! 1. At any time at most one record of a key is valid, and the key has the value of that record.
//! 2. A key with a valid record has a slot in one of its two buckets. The slot names that record,
//!    but for a moment within a change.
//!
//! A record becomes valid when its version word is stored, and ceases to be when that word is marked;
//! both are one store of 8 bytes.

use crate::error::{Error, Result};
use crate::layout::{
    self, bucket_head, decode, hash, record_len, Found, Geometry, Meta, Record, Slot,
};
use crate::layout::{HEADER, MAX_KEY, REPLACED, SLOTS, UNIT};
use crate::space::Space;
use crate::wire::{Answer, Condition, Reply, Request, Status, Write};
use rust_ulp::Buffer;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The versions that a list of members or a moved key may bring end before this one. So the server
/// never gives one with [`REPLACED`].
pub const LAST_VERSION: u64 = REPLACED / 2;
/// How many keys may be moved to make room for one.
const DEPTH: u32 = 3;

/// The memory of a server, which clients read at any time.
pub trait Memory {
    /// Loads an aligned word.
    fn load(&self, offset: u64) -> Result<u64>;
    /// Stores an aligned word. Readers see everything that was written before.
    fn store(&self, offset: u64, word: u64) -> Result<()>;
    /// Copies bytes out.
    fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;
    /// Copies bytes out.
    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }
    /// Copies bytes in.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Memory for Buffer {
    fn load(&self, offset: u64) -> Result<u64> {
        Ok(u64::from_le(self.load_u64(at(offset), Ordering::Acquire)?))
    }

    fn store(&self, offset: u64, word: u64) -> Result<()> {
        Ok(self.store_u64(at(offset), word.to_le(), Ordering::Release)?)
    }

    fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.read_at(at(offset), bytes)?)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.write_at(at(offset), bytes)?)
    }
}

/// A key that is in the table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bucket: u32,
    slot: usize,
    word: Slot,
    version: u64,
    meta: Meta,
}

/// The table.
#[derive(Debug)]
pub struct Table<M> {
    memory: M,
    geometry: Geometry,
    space: Space,
    /// The version of the next record.
    next_version: u64,
    /// The records that expire, as (second, unit).
    expiries: BTreeSet<(u32, u32)>,
    keys: u64,
}

impl<M: Memory> Table<M> {
    /// Makes an empty table. No earlier table on this memory, or with the same clients, may have had
    /// `first_version` or a later one.
    pub fn new(memory: M, geometry: Geometry, first_version: u64) -> Result<Self> {
        for bucket in 0..geometry.buckets {
            let at = geometry.bucket(bucket);
            memory.write(at, &[0; 8 * (SLOTS + 1)])?;
            memory.store(at, bucket_head(0, &[Slot::EMPTY; SLOTS]))?;
        }
        Ok(Self {
            space: Space::new(&geometry),
            memory,
            geometry,
            next_version: first_version.max(1),
            expiries: BTreeSet::new(),
            keys: 0,
        })
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Returns the share of the memory for records that is taken.
    pub fn used(&self) -> f64 {
        let total = self.space.total().max(1) as f64;
        (total - self.space.available() as f64) / total
    }

    /// Stores the epoch of the list of members.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        self.memory.store(0, epoch)
    }

    /// Returns the version of the next record.
    pub fn next_version(&self) -> u64 {
        self.next_version
    }

    /// Gives no version before `next` any more.
    pub fn skip_versions(&mut self, next: u64) {
        self.next_version = self.next_version.max(next);
    }

    /// Carries out a request. `now` is the second since the epoch of Unix.
    pub fn apply(&mut self, request: &Request<'_>, now: u32) -> Result<Reply> {
        let reply = |status| Reply::new(request.sequence, status);
        let entry = self.find(request.key)?;
        let version = entry.map(|entry| entry.version);
        let met = match request.condition {
            Condition::Always => true,
            Condition::Absent => version.is_none(),
            Condition::Version(wanted) => version == Some(wanted),
        };
        let unmet = Reply {
            version: version.unwrap_or(0),
            slot: entry.map_or(0, |entry| entry.word.0),
            ..reply(Status::Unmet)
        };
        if !met {
            return Ok(unmet);
        }
        let mut moved = None;
        let (value, expires, number) = match request.write {
            Write::Delete => {
                let Some(entry) = entry else {
                    return Ok(unmet);
                };
                self.delete(&entry)?;
                return Ok(reply(Status::Done));
            }
            Write::Put { value, .. } | Write::Move { value, .. }
                if value.len() > self.geometry.max_value as usize =>
            {
                return Ok(reply(Status::Invalid));
            }
            Write::Move { version: new, .. } if !(1..LAST_VERSION).contains(&new) => {
                return Ok(reply(Status::Invalid));
            }
            Write::Move { version: new, .. } if version.is_some_and(|version| version >= new) => {
                return Ok(Reply {
                    status: Status::Done,
                    ..unmet
                });
            }
            Write::Move {
                value,
                version,
                expires,
            } => {
                moved = Some(version);
                (Cow::Borrowed(value), expires, 0)
            }
            Write::Put { value, ttl: 0 } => (Cow::Borrowed(value), 0, 0),
            // Not before the time, and at most a second later.
            Write::Put { value, ttl } => (
                Cow::Borrowed(value),
                now.saturating_add(ttl).saturating_add(1),
                0,
            ),
            Write::Add(by) => {
                let old = match &entry {
                    Some(entry) => {
                        let value = self.value(entry)?;
                        std::str::from_utf8(&value)
                            .ok()
                            .and_then(|text| text.parse::<i64>().ok())
                    }
                    None => Some(0),
                };
                let Some(sum) = old.and_then(|old| old.checked_add(by)) else {
                    return Ok(reply(Status::NoNumber));
                };
                let expires = entry.map_or(0, |entry| entry.meta.expires);
                (Cow::Owned(sum.to_string().into_bytes()), expires, sum)
            }
        };
        match self.put(request.key, &value, (expires, moved), entry)? {
            Ok((version, slot)) => Ok(Reply {
                version,
                slot: slot.0,
                number,
                ..reply(Status::Done)
            }),
            Err(status) => Ok(reply(status)),
        }
    }

    /// Deletes the keys whose time is over. Returns how many.
    pub fn expire(&mut self, now: u32) -> Result<u64> {
        let mut count = 0;
        while let Some((_, unit)) = self
            .expiries
            .first()
            .copied()
            .filter(|(when, _)| *when <= now)
        {
            let offset = u64::from(unit) * UNIT as u64;
            let meta = Meta::decode(self.memory.load(offset + 16)?);
            let key = self.memory.read(offset + HEADER as u64, meta.key)?;
            match self.find(&key)?.filter(|entry| entry.word.at() == unit) {
                Some(entry) => self.delete(&entry)?,
                None => {
                    self.expiries.pop_first();
                }
            }
            count += 1;
        }
        Ok(count)
    }

    /// Calls `each` with every record.
    pub fn for_each(&self, mut each: impl FnMut(&Record<'_>) -> Result<()>) -> Result<()> {
        for bucket in 0..self.geometry.buckets {
            for slot in self
                .slots(bucket)?
                .into_iter()
                .filter(|slot| !slot.is_empty())
            {
                let bytes = self.memory.read(slot.offset(), slot.len())?;
                if let Found::Valid(record) = decode(&self.geometry, slot.at(), &bytes, true) {
                    each(&record)?;
                }
            }
        }
        Ok(())
    }

    fn slots(&self, bucket: u32) -> Result<[Slot; SLOTS]> {
        // Only this thread writes.
        let mut bytes = [0; 8 * SLOTS];
        let at = self.geometry.bucket(bucket) + 8;
        self.memory.read_into(at, &mut bytes)?;
        let mut slots = [Slot::EMPTY; SLOTS];
        for (slot, word) in slots.iter_mut().zip(bytes.chunks_exact(8)) {
            if let Some(word) = word.first_chunk() {
                *slot = Slot(u64::from_le_bytes(*word));
            }
        }
        Ok(slots)
    }

    /// Changes a slot, and then the head of its bucket: until that is done, readers see that the
    /// bucket is not whole.
    fn set_slot(&self, bucket: u32, slot: usize, word: Slot) -> Result<()> {
        let at = self.geometry.bucket(bucket);
        let sequence = (self.memory.load(at)? >> 32) as u32;
        self.memory.store(at + 8 * (slot as u64 + 1), word.0)?;
        let head = bucket_head(sequence.wrapping_add(1), &self.slots(bucket)?);
        self.memory.store(at, head)
    }

    fn find(&self, key: &[u8]) -> Result<Option<Entry>> {
        let hash = hash(key);
        let first = self.geometry.first_of(hash);
        let mut seen = [0; HEADER + MAX_KEY];
        let Some(seen) = seen.get_mut(..HEADER + key.len()) else {
            return Ok(None);
        };
        // The second one takes a hash, which most keys do not need.
        let second = std::iter::once_with(|| self.geometry.second_of(hash, first));
        for bucket in std::iter::once(first).chain(second) {
            for (n, word) in self.slots(bucket)?.into_iter().enumerate() {
                if !word.may_be(hash) || word.len() < seen.len() {
                    continue;
                }
                // Only this thread writes.
                self.memory.read_into(word.offset(), seen)?;
                let meta = Meta::decode(layout::word(seen, 16));
                if meta.key == key.len() && seen.ends_with(key) {
                    return Ok(Some(Entry {
                        bucket,
                        slot: n,
                        word,
                        version: layout::word(seen, 0),
                        meta,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Appends an answer that has the value of a key. Appends only where it is if the value and what
    /// pads it have more than `most` bytes, and nothing of it if there is no such key.
    pub fn get(&self, key: &[u8], most: usize, answers: &mut Vec<u8>) -> Result<Status> {
        let Some(entry) = self.find(key)? else {
            return Ok(Status::Unmet);
        };
        let len = entry.meta.value;
        let is_large = len.next_multiple_of(8) > most;
        let answer = Answer {
            version: entry.version,
            slot: entry.word.0,
            ..Answer::new(if is_large {
                Status::Large
            } else {
                Status::Done
            })
        };
        if is_large {
            answer.encode(answers);
            return Ok(Status::Large);
        }
        answer.encode_head(len, answers);
        let start = answers.len();
        answers.resize(start + len.next_multiple_of(8), 0);
        if let Some(value) = answers.get_mut(start..start + len) {
            let at = entry.word.offset() + (HEADER + entry.meta.key) as u64;
            self.memory.read_into(at, value)?;
        }
        Ok(Status::Done)
    }

    fn value(&self, entry: &Entry) -> Result<Vec<u8>> {
        let at = entry.word.offset() + (HEADER + entry.meta.key) as u64;
        self.memory.read(at, entry.meta.value)
    }

    /// Writes a record, and makes it valid when its key has a slot and no other valid record. It has
    /// the next version unless it brings one.
    fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        (expires, version): (u32, Option<u64>),
        old: Option<Entry>,
    ) -> Result<Result<(u64, Slot), Status>> {
        let hash = hash(key);
        // At most 1,029.
        let units = (record_len(key.len(), value.len()) / UNIT) as u32;
        let Some(unit) = self.space.take(units) else {
            return Ok(Err(Status::NoMemory));
        };
        let (bucket, slot) = match &old {
            Some(old) => (old.bucket, old.slot),
            None => match self.empty_slot(hash)? {
                Some(place) => place,
                None => {
                    self.space.free(unit, units);
                    return Ok(Err(Status::NoSlot));
                }
            },
        };
        let version = version.unwrap_or_else(|| {
            self.next_version += 1;
            self.next_version - 1
        });
        let record = Record {
            version,
            expires,
            key,
            value,
        };
        let mut bytes = record.encode(&self.geometry, unit);
        // Not valid yet.
        if let Some(head) = bytes.first_chunk_mut::<8>() {
            head.fill(0);
        }
        let word = Slot::new(hash, unit, units);
        self.memory.write(word.offset(), &bytes)?;
        if let Some(old) = &old {
            self.replace(old)?;
        }
        self.set_slot(bucket, slot, word)?;
        self.memory.store(word.offset(), version)?;
        match old {
            Some(old) => self.free(&old),
            None => self.keys += 1,
        }
        if expires != 0 {
            self.expiries.insert((expires, unit));
        }
        Ok(Ok((version, word)))
    }

    fn delete(&mut self, entry: &Entry) -> Result<()> {
        self.replace(entry)?;
        self.set_slot(entry.bucket, entry.slot, Slot::EMPTY)?;
        self.free(entry);
        self.keys -= 1;
        Ok(())
    }

    /// Marks a record, so that nobody who remembers its place takes it for valid.
    fn replace(&self, entry: &Entry) -> Result<()> {
        self.memory
            .store(entry.word.offset(), entry.version | REPLACED)
    }

    fn free(&mut self, entry: &Entry) {
        self.expiries.remove(&(entry.meta.expires, entry.word.at()));
        self.space.free(entry.word.at(), entry.word.units());
    }

    /// Returns an empty slot for a new key: in the emptier one of its buckets, or made by moving
    /// other keys.
    fn empty_slot(&self, hash: u64) -> Result<Option<(u32, usize)>> {
        let (first, second) = self.geometry.buckets_of(hash);
        let mut best: Option<(usize, u32, usize)> = None;
        for bucket in [first, second] {
            let slots = self.slots(bucket)?;
            let count = slots.iter().filter(|slot| slot.is_empty()).count();
            if let Some(slot) = slots.iter().position(|slot| slot.is_empty()) {
                if best.is_none_or(|(most, ..)| count > most) {
                    best = Some((count, bucket, slot));
                }
            }
        }
        if let Some((_, bucket, slot)) = best {
            return Ok(Some((bucket, slot)));
        }
        // The shortest way first.
        for depth in 1..=DEPTH {
            for bucket in [first, second] {
                if let Some(slot) = self.make_room(bucket, depth)? {
                    return Ok(Some((bucket, slot)));
                }
            }
        }
        Ok(None)
    }

    /// Empties a slot of a bucket by moving at most `depth` keys, each to its other bucket.
    fn make_room(&self, bucket: u32, depth: u32) -> Result<Option<usize>> {
        let slots = self.slots(bucket)?;
        if let Some(slot) = slots.iter().position(|slot| slot.is_empty()) {
            return Ok(Some(slot));
        }
        if depth == 0 {
            return Ok(None);
        }
        for (n, word) in slots.into_iter().enumerate() {
            let other = self.geometry.other(bucket, word.fingerprint());
            if other == bucket {
                continue;
            }
            let Some(free) = self.make_room(other, depth - 1)? else {
                continue;
            };
            // The way here may have led through this bucket.
            let at = self.geometry.bucket(bucket) + 8 * (n as u64 + 1);
            if self.memory.load(at)? == word.0 {
                // In this order: the key always has a slot.
                self.set_slot(other, free, word)?;
                self.set_slot(bucket, n, Slot::EMPTY)?;
            }
            return Ok(Some(n));
        }
        Ok(None)
    }

    /// Loads a record that was saved, if its time is not over.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if the table is too small.
    pub fn restore(&mut self, record: &Record<'_>, now: u32) -> Result<()> {
        if record.expires != 0 && record.expires <= now {
            return Ok(());
        }
        let old = self.find(record.key)?;
        let put = self.put(record.key, record.value, (record.expires, None), old)?;
        put.map(|_| ()).map_err(|status| Error::Full {
            server: "this server".to_owned(),
            of: match status {
                Status::NoSlot => "slots",
                _ => "memory",
            },
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::layout::{Bucket, BUCKET_LEN};
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    type Hook = Box<dyn FnMut(&[u8])>;

    /// Memory that a reader can look at before any change of it.
    #[derive(Default)]
    pub struct Words {
        pub bytes: RefCell<Vec<u8>>,
        /// Called before each change.
        pub before: RefCell<Option<Hook>>,
        pub stores: Cell<u64>,
    }

    impl Words {
        pub fn new(len: usize) -> Self {
            Self {
                bytes: RefCell::new(vec![0; len]),
                ..Self::default()
            }
        }

        fn change(&self, offset: u64, bytes: &[u8]) {
            if let Some(hook) = &mut *self.before.borrow_mut() {
                hook(&self.bytes.borrow());
            }
            self.stores.set(self.stores.get() + 1);
            let at = offset as usize;
            self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    impl Memory for &Words {
        fn load(&self, offset: u64) -> Result<u64> {
            let at = offset as usize;
            Ok(u64::from_le_bytes(
                self.bytes.borrow()[at..at + 8].try_into().unwrap(),
            ))
        }
        fn store(&self, offset: u64, word: u64) -> Result<()> {
            assert_eq!(offset % 8, 0);
            self.change(offset, &word.to_le_bytes());
            Ok(())
        }
        fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
            let at = offset as usize;
            bytes.copy_from_slice(&self.bytes.borrow()[at..at + bytes.len()]);
            Ok(())
        }
        fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
            // Readers see some of the bytes.
            for (n, chunk) in bytes.chunks(40).enumerate() {
                self.change(offset + 40 * n as u64, chunk);
            }
            Ok(())
        }
    }

    pub fn request<'a>(key: &'a [u8], condition: Condition, write: Write<'a>) -> Request<'a> {
        Request {
            sequence: 1,
            condition,
            key,
            write,
        }
    }

    pub fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
        request(key, Condition::Always, Write::Put { value, ttl: 0 })
    }

    /// The value of a key, as it is in the memory.
    fn get(table: &Table<&Words>, key: &[u8]) -> Option<Vec<u8>> {
        let entry = table.find(key).unwrap()?;
        let bytes = table
            .memory
            .read(entry.word.offset(), entry.word.len())
            .unwrap();
        match decode(&table.geometry, entry.word.at(), &bytes, true) {
            Found::Valid(record) => Some(record.value.to_vec()),
            other => panic!("{other:?}"),
        }
    }

    /// Adds keys until the table is full. Returns how many, and why no more.
    fn fill(len: u64, keys: u64, value: usize) -> (u64, Table<&'static Words>, Status) {
        let geometry = Geometry::new(len, len, keys, 4096, 5).unwrap();
        let words = Box::leak(Box::new(Words::new(len as usize)));
        let mut table = Table::new(&*words, geometry, 1).unwrap();
        let value = vec![7; value];
        for n in 0u64.. {
            let reply = table.apply(&put(&n.to_le_bytes(), &value), 0).unwrap();
            if reply.status != Status::Done {
                assert_eq!(table.keys(), n);
                return (n, table, reply.status);
            }
        }
        unreachable!()
    }

    #[test]
    fn nearly_all_slots_are_filled() {
        for keys in [15, 300, 10_000] {
            let (count, table, status) = fill(4 << 20, keys, 8);
            assert_eq!(status, Status::NoSlot);
            let slots = table.geometry.slots();
            // Without moves, 10,000 keys fill nine tenths.
            assert!(count * 100 >= slots * 99, "{count} of {slots}");
            // The keys that were moved are all there.
            assert!((0..count).all(|n| get(&table, &n.to_le_bytes()) == Some(vec![7; 8])));
        }
    }

    #[test]
    fn nine_tenths_of_the_memory_are_filled() {
        for value in [40, 1000, 4096] {
            let (_, table, status) = fill(4 << 20, 100_000, value);
            assert_eq!(status, Status::NoMemory);
            assert!(table.used() > 0.99, "{value}: {}", table.used());
        }
    }

    #[test]
    fn memory_of_one_size_becomes_memory_of_another() {
        let (count, mut table, _) = fill(1 << 20, 1000, 1000);
        for n in 0..count {
            let key = n.to_le_bytes();
            let delete = request(&key, Condition::Always, Write::Delete);
            assert_eq!(table.apply(&delete, 0).unwrap().status, Status::Done);
        }
        assert_eq!(
            (table.keys(), table.space.available()),
            (0, table.space.total())
        );
        for n in 0..200u64 {
            let reply = table.apply(&put(&n.to_le_bytes(), &[1; 4000]), 0).unwrap();
            assert_eq!(reply.status, Status::Done);
        }
    }

    #[test]
    fn times_pass() {
        let words = Words::new(1 << 16);
        let geometry = Geometry::new(1 << 16, 1 << 16, 100, 1024, 5).unwrap();
        let mut table = Table::new(&words, geometry, 1).unwrap();
        let short = request(
            b"short",
            Condition::Always,
            Write::Put {
                value: b"1",
                ttl: 5,
            },
        );
        table.apply(&short, 100).unwrap();
        table
            .apply(
                &request(
                    b"long",
                    Condition::Always,
                    Write::Put {
                        value: b"1",
                        ttl: 50,
                    },
                ),
                100,
            )
            .unwrap();
        table.apply(&put(b"ever", b"1"), 100).unwrap();
        assert_eq!((table.expire(105).unwrap(), table.keys()), (0, 3));
        // A number keeps its time; a value that is put anew does not.
        table
            .apply(&request(b"short", Condition::Always, Write::Add(4)), 100)
            .unwrap();
        table.apply(&put(b"long", b"2"), 100).unwrap();
        assert_eq!((table.expire(106).unwrap(), table.keys()), (1, 2));
        assert_eq!(
            (get(&table, b"short"), get(&table, b"long")),
            (None, Some(b"2".to_vec()))
        );
        assert_eq!((table.expire(u32::MAX).unwrap(), table.keys()), (0, 2));
        assert!(table.expiries.is_empty());
    }

    #[test]
    fn moved_keys_keep_version_and_expiry() {
        let words = Words::new(1 << 16);
        let geometry = Geometry::new(1 << 16, 1 << 16, 100, 64, 5).unwrap();
        let mut table = Table::new(&words, geometry, 7).unwrap();
        let mut apply =
            |condition, write| table.apply(&request(b"k", condition, write), 0).unwrap();
        let moved = |value, version| Write::Move {
            value,
            version,
            expires: 50,
        };
        for version in [0, LAST_VERSION, u64::MAX] {
            let reply = apply(Condition::Always, moved(b"a", version));
            assert_eq!(reply.status, Status::Invalid);
        }
        let first = apply(Condition::Always, moved(b"a", 20));
        assert_eq!((first.status, first.version), (Status::Done, 20));
        // The same once more, and an older one: nothing changes.
        for version in [20, 19] {
            assert_eq!(apply(Condition::Always, moved(b"b", version)), first);
        }
        let put = Write::Put {
            value: b"c",
            ttl: 0,
        };
        assert_eq!(apply(Condition::Version(19), put).status, Status::Unmet);
        assert_eq!(get(&table, b"k"), Some(b"a".to_vec()));
        assert_eq!(
            (table.expire(49).unwrap(), table.expire(50).unwrap()),
            (0, 1)
        );
        // Versions that other servers gave are not given again.
        table.skip_versions(21);
        table.skip_versions(3);
        let mut apply =
            |condition, write| table.apply(&request(b"k", condition, write), 0).unwrap();
        assert_eq!(apply(Condition::Absent, put).version, 21);
        assert_eq!(apply(Condition::Version(21), put).version, 22);
    }

    #[test]
    fn conditions_and_numbers() {
        let words = Words::new(1 << 16);
        let geometry = Geometry::new(1 << 16, 1 << 16, 100, 64, 5).unwrap();
        let mut table = Table::new(&words, geometry, 7).unwrap();
        let mut apply =
            |condition, write| table.apply(&request(b"k", condition, write), 0).unwrap();
        let one = Write::Put {
            value: b"1",
            ttl: 0,
        };
        assert_eq!(
            apply(Condition::Version(1), one),
            Reply::new(1, Status::Unmet)
        );
        assert_eq!(
            apply(Condition::Always, Write::Delete).status,
            Status::Unmet
        );
        let first = apply(Condition::Absent, one);
        assert_eq!((first.status, first.version), (Status::Done, 7));
        let again = apply(Condition::Absent, one);
        assert_eq!(
            (again.status, again.version, again.slot),
            (Status::Unmet, 7, first.slot)
        );
        assert_eq!(
            apply(Condition::Version(8), Write::Delete).status,
            Status::Unmet
        );
        assert_eq!(
            apply(
                Condition::Version(7),
                Write::Put {
                    value: b"41",
                    ttl: 0
                }
            )
            .version,
            8
        );
        let sum = apply(Condition::Always, Write::Add(1));
        assert_eq!((sum.status, sum.number, sum.version), (Status::Done, 42, 9));
        assert_eq!(
            apply(Condition::Always, Write::Add(i64::MAX)).status,
            Status::NoNumber
        );
        assert_eq!(
            apply(Condition::Version(9), Write::Delete).status,
            Status::Done
        );
        assert_eq!(apply(Condition::Always, Write::Add(-3)).number, -3);
        apply(
            Condition::Always,
            Write::Put {
                value: b"x",
                ttl: 0,
            },
        );
        assert_eq!(
            apply(Condition::Always, Write::Add(1)).status,
            Status::NoNumber
        );
        let long = [0; 65];
        assert_eq!(
            apply(
                Condition::Always,
                Write::Put {
                    value: &long,
                    ttl: 0
                }
            )
            .status,
            Status::Invalid
        );
    }

    proptest! {
        /// A table does what a map does, and its buckets are whole after each step.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u8..40, 0u8..4, 0usize..900), 1..300)) {
            let words = Words::new(1 << 15);
            let geometry = Geometry::new(1 << 15, 1 << 14, 28, 1024, 5).unwrap();
            let mut table = Table::new(&words, geometry, 1).unwrap();
            let mut map: HashMap<u8, Vec<u8>> = HashMap::new();
            for (n, (key, what, len)) in steps.into_iter().enumerate() {
                if what == 0 {
                    let reply = table.apply(&request(&[key], Condition::Always, Write::Delete), 0).unwrap();
                    prop_assert_eq!(reply.status == Status::Done, map.remove(&key).is_some());
                } else {
                    let value = vec![n as u8; len];
                    let reply = table.apply(&put(&[key], &value), 0).unwrap();
                    match reply.status {
                        Status::Done => drop(map.insert(key, value)),
                        Status::NoMemory => prop_assert!(table.used() > 0.5),
                        Status::NoSlot => prop_assert!(map.len() >= 27),
                        status => prop_assert!(false, "{status:?}"),
                    }
                }
                prop_assert_eq!(table.keys(), map.len() as u64);
                for (key, value) in &map {
                    prop_assert_eq!(&get(&table, &[*key]), &Some(value.clone()));
                }
            }
            for bucket in 0..geometry.buckets {
                let bytes = (&words).read(geometry.bucket(bucket), BUCKET_LEN).unwrap();
                prop_assert!(Bucket::decode(&bytes).sequence.is_some());
            }
            let mut count = 0;
            table.for_each(|record| { count += 1; assert_eq!(map[&record.key[0]], record.value); Ok(()) }).unwrap();
            prop_assert_eq!(count, map.len());
        }
    }
}
