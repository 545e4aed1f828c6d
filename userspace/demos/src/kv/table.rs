// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table in a server's memory, for whoever can read and change that memory: the server by its
//! processor, a client by Reads, Writes and compare-and-swap. The steps are the same.
//!
//! - A key has a slot for good. It takes the first empty one of its buckets, by compare-and-swap, so
//!   no key has two.
//! - A change writes the new record to a block of its own, clears the first word of the old record,
//!   and swaps the slot's word. The swap is the moment of the change. If it fails, another change
//!   was first, and this one begins anew.
//! - A record whose first word is its slot's word is the one that its slot names: a get that
//!   remembers the word needs nothing else. A get that has read the slot takes a cleared record,
//!   too: its slot named it when the get read the slot.
//! - A client that dies between two steps leaves a table that is right. It takes with it the blocks
//!   that it was about to use.

use crate::error::{Error, Result};
use crate::layout::{
    class, decode, encode, hash, record_units, word, Geometry, Slot, BUCKET, CLASSES, FREE,
    MAX_KEY, NEXT, UNIT,
};
use std::time::{Duration, Instant};

/// How long a key may be changed by others before an operation on it gives up.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a lookup begins anew before it pauses.
const AT_ONCE: u32 = 8;
/// How often the same bytes may be found where a record has to be: then nobody changes them.
const CORRUPT: u32 = 64;
/// How often a stack of free blocks or the end of the blocks may change before an attempt to take one.
const TRIES: u32 = 10_000;
/// Free blocks of a class that a client keeps to itself.
const KEEP: usize = 32;

/// A server's memory.
pub trait Memory {
    /// Reads parts, given as offset and length.
    fn read(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>>;
    /// Writes bytes.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
    /// Sets the word at `at` to `new` if it is `old`. Returns what it was.
    fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64>;
    /// Adds to the word at `at`. Returns what it was.
    fn add(&mut self, at: u64, n: u64) -> Result<u64>;
    /// Writes bytes and clears the word at `word_at` if it is `old`, in any order.
    fn replace(&mut self, at: u64, bytes: &[u8], word_at: u64, old: u64) -> Result<()> {
        self.write(at, bytes)?;
        self.swap(word_at, old, 0).map(drop)
    }
}

/// The slot of a key, and what was in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset of the slot.
    pub at: u64,
    /// Its word.
    pub slot: Slot,
}

/// What a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key's slot and value; a key that was deleted has a slot, and no value.
    Key(Place, Option<Vec<u8>>),
    /// The key has no slot; this is the offset of the first empty one.
    Empty(u64),
    /// The key has no slot, and none is empty.
    Full,
}

/// A lookup under way.
struct Lookup<'a> {
    key: &'a [u8],
    hash: u64,
    /// The slots whose records are still to be read; the last one is next.
    candidates: Vec<Place>,
    /// The slot whose record is read next; without one, the buckets are.
    reading: Option<Place>,
    /// [`Self::reading`] was remembered, not read.
    is_remembered: bool,
    empty: Option<u64>,
    /// A record was not whole, or a word made no sense.
    unstable: bool,
    tries: u32,
    /// The last record that was not whole, its first words, and how often it was the same.
    torn: (u64, [u64; 2], u32),
    done: Option<Result<Found>>,
}

impl<'a> Lookup<'a> {
    fn new(key: &'a [u8], remembered: Option<Place>) -> Self {
        let is_good = (1..=MAX_KEY).contains(&key.len());
        Self {
            key,
            hash: hash(key),
            candidates: Vec::new(),
            reading: remembered,
            is_remembered: remembered.is_some(),
            empty: None,
            unstable: false,
            tries: 0,
            torn: (0, [0; 2], 0),
            done: (!is_good).then_some(Err(Error::Key(key.len()))),
        }
    }

    /// Takes the key's buckets, as offsets and bytes.
    fn buckets(&mut self, geometry: &Geometry, buckets: [(u64, Vec<u8>); 2]) {
        self.empty = None;
        self.unstable = false;
        for (start, bytes) in buckets {
            for (at, bytes) in (start..).step_by(8).zip(bytes.chunks_exact(8)) {
                let slot = Slot(word(bytes, 0));
                if slot.is_empty() {
                    self.empty = self.empty.or(Some(at));
                } else if slot.may_be(self.hash) {
                    match geometry.is_sound(slot) {
                        true => self.candidates.push(Place { at, slot }),
                        false => self.unstable = true,
                    }
                }
            }
        }
        self.next();
    }

    /// Takes the bytes of the record that was wanted. Returns whether they were whole.
    fn record(&mut self, seed: u64, bytes: &[u8], verify: bool) -> bool {
        let Some(place) = self.reading.take() else {
            return true;
        };
        let is_remembered = std::mem::take(&mut self.is_remembered);
        let record = decode(seed, place.slot, bytes, verify);
        match record {
            Some(record) if record.key == self.key && (record.is_current || !is_remembered) => {
                let value = record.value.map(<[u8]>::to_vec);
                self.done = Some(Ok(Found::Key(place, value)));
            }
            // The buckets tell more.
            _ if is_remembered => return true,
            Some(_) => self.next(),
            None => {
                let seen = (place.slot.0, [word(bytes, 0), word(bytes, 8)]);
                let times = match seen == (self.torn.0, self.torn.1) {
                    true => self.torn.2 + 1,
                    false => 1,
                };
                self.torn = (seen.0, seen.1, times);
                self.unstable = true;
                match times > CORRUPT {
                    true => {
                        let what = "a record that is not whole, and nobody writes it";
                        self.done = Some(Err(Error::Corrupt(what)));
                    }
                    false => self.next(),
                }
            }
        }
        record.is_some()
    }

    fn next(&mut self) {
        self.reading = self.candidates.pop();
        match self.reading {
            Some(_) => {}
            None if self.unstable => self.tries += 1,
            None => self.done = Some(Ok(self.empty.map_or(Found::Full, Found::Empty))),
        }
    }
}

/// The table in a memory.
#[derive(Debug)]
pub struct Table<M> {
    /// The memory.
    pub memory: M,
    geometry: Geometry,
    /// The first units of free blocks, by class.
    free: [Vec<u32>; CLASSES],
    /// Others change the table, too, and share free blocks with this one.
    is_shared: bool,
    /// Whether records are verified.
    pub verify: bool,
    /// Records that were not whole.
    pub torn: u64,
}

impl<M: Memory> Table<M> {
    /// Returns the table in a memory whose head is written already. `is_shared` says whether others
    /// change it, too.
    pub fn new(memory: M, geometry: Geometry, is_shared: bool) -> Self {
        Self {
            memory,
            geometry,
            free: [const { Vec::new() }; CLASSES],
            is_shared,
            verify: true,
            torn: 0,
        }
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Looks keys up, all of them at the same time, each at the place where it was last seen if that
    /// is known.
    ///
    /// # Errors
    ///
    /// The memory cannot be read.
    pub fn find(&mut self, keys: &[(&[u8], Option<Place>)]) -> Result<Vec<Result<Found>>> {
        let begin = Instant::now();
        let lookups = keys.iter().map(|(key, place)| Lookup::new(key, *place));
        let mut lookups: Vec<_> = lookups.collect();
        loop {
            let mut parts = Vec::new();
            for lookup in lookups.iter().filter(|lookup| lookup.done.is_none()) {
                match lookup.reading {
                    Some(place) => parts.push((place.slot.offset(), place.slot.len())),
                    None => {
                        let buckets = self.geometry.buckets_of(lookup.hash);
                        parts.extend(buckets.map(|bucket| (bucket, BUCKET)));
                    }
                }
            }
            if parts.is_empty() {
                let results = lookups.into_iter().map(|lookup| lookup.done);
                return Ok(results
                    .map(|done| done.unwrap_or(Err(Error::Contended)))
                    .collect());
            }
            let mut read = self.memory.read(&parts)?.into_iter();
            let mut most = 0;
            for lookup in lookups.iter_mut().filter(|lookup| lookup.done.is_none()) {
                if lookup.reading.is_some() {
                    let bytes = read.next().unwrap_or_default();
                    let is_whole = lookup.record(self.geometry.seed, &bytes, self.verify);
                    self.torn += u64::from(!is_whole);
                } else {
                    let buckets = self.geometry.buckets_of(lookup.hash);
                    let buckets = buckets.map(|at| (at, read.next().unwrap_or_default()));
                    lookup.buckets(&self.geometry, buckets);
                }
                most = most.max(lookup.tries);
                if lookup.tries > AT_ONCE && lookup.done.is_none() && begin.elapsed() > PATIENCE {
                    lookup.done = Some(Err(Error::Contended));
                }
            }
            if most > AT_ONCE {
                std::thread::sleep(Duration::from_micros(
                    20 << most.min(AT_ONCE + 8).saturating_sub(AT_ONCE),
                ));
            }
        }
    }

    fn find_one(&mut self, key: &[u8], remembered: Option<Place>) -> Result<Found> {
        let found = self.find(&[(key, remembered)])?.pop();
        found.unwrap_or(Err(Error::Contended))
    }

    /// Sets the value of a key. Returns its place.
    ///
    /// # Errors
    ///
    /// [`Error::Key`], [`Error::TooLarge`], [`Error::NoSlot`], [`Error::NoMemory`],
    /// [`Error::Contended`]; the memory cannot be used.
    pub fn put(&mut self, key: &[u8], value: &[u8], remembered: Option<Place>) -> Result<Place> {
        let max = self.geometry.max_value as usize;
        if !(1..=MAX_KEY).contains(&key.len()) {
            return Err(Error::Key(key.len()));
        }
        if value.len() > max {
            return Err(Error::TooLarge {
                len: value.len(),
                max,
            });
        }
        // What is remembered need not be verified: the swap does that.
        let mut found = match remembered {
            Some(place) => Found::Key(place, None),
            None => self.find_one(key, None)?,
        };
        let begin = Instant::now();
        loop {
            let place = match found {
                Found::Key(place, _) => place,
                Found::Empty(at) => Place { at, slot: Slot(0) },
                Found::Full => return Err(Error::NoSlot),
            };
            if let Some(place) = self.change(key, Some(value), place)? {
                return Ok(place);
            }
            if begin.elapsed() > PATIENCE {
                return Err(Error::Contended);
            }
            found = self.find_one(key, None)?;
        }
    }

    /// Deletes a key. Returns its place, if it was there.
    ///
    /// # Errors
    ///
    /// As [`Self::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<Option<Place>> {
        let begin = Instant::now();
        loop {
            let Found::Key(place, Some(_)) = self.find_one(key, None)? else {
                return Ok(None);
            };
            if let Some(place) = self.change(key, None, place)? {
                return Ok(Some(place));
            }
            if begin.elapsed() > PATIENCE {
                return Err(Error::Contended);
            }
        }
    }

    /// Changes a key from what is in its slot. Returns its new place, or [`None`] if something else
    /// was there.
    fn change(&mut self, key: &[u8], value: Option<&[u8]>, old: Place) -> Result<Option<Place>> {
        let units = record_units(key.len(), value.map_or(0, <[u8]>::len));
        let (at, units) = self.take(units, old.slot.is_empty())?;
        let slot = Slot::next(old.slot, hash(key), at, units);
        let record = encode(self.geometry.seed, slot, key, value);
        match old.slot.is_empty() {
            true => self.memory.write(slot.offset(), &record)?,
            false => {
                let before = old.slot;
                self.memory
                    .replace(slot.offset(), &record, before.offset(), before.0)?;
            }
        }
        let is_changed = self.memory.swap(old.at, old.slot.0, slot.0)? == old.slot.0;
        match is_changed {
            true if old.slot.is_empty() => {}
            true => self.give(old.slot.at(), old.slot.units()),
            false => self.give(at, units),
        }
        Ok(is_changed.then_some(Place { at: old.at, slot }))
    }

    // --- blocks

    /// Takes a block for a record of so many units. Returns its first unit, and the units that a
    /// slot names it with. A record of a new key leaves some memory, so that others can be changed.
    fn take(&mut self, units: u32, is_new: bool) -> Result<(u32, u32)> {
        let (index, size) = class(units);
        if let Some(at) = self.free.get_mut(index).and_then(Vec::pop) {
            return Ok((at, units));
        }
        if let Some(at) = self.take_shared(index)? {
            return Ok((at, units));
        }
        let bytes = u64::from(size) * UNIT as u64;
        let longest = class(record_units(MAX_KEY, self.geometry.max_value as usize)).1;
        let spare = match is_new {
            true => 2 * u64::from(longest) * UNIT as u64,
            false => 0,
        };
        for _ in 0..TRIES {
            let next = self.read_word(NEXT)?;
            if next.saturating_add(bytes).saturating_add(spare) > self.geometry.len {
                break;
            }
            let start = self.memory.add(NEXT, bytes)?;
            let Some(last) = start
                .checked_add(bytes - 1)
                .filter(|last| *last < self.geometry.len)
            else {
                break;
            };
            // A block that crosses the border of a key is lost.
            if start / self.geometry.segment == last / self.geometry.segment {
                return Ok(((start / UNIT as u64) as u32, units));
            }
        }
        // A block that is longer than necessary, which the slot then says.
        for larger in index + 1..CLASSES {
            let own = self.free.get_mut(larger).and_then(Vec::pop);
            let at = match own {
                Some(at) => Some(at),
                None => self.take_shared(larger)?,
            };
            if let Some(at) = at {
                return Ok((at, size_of(larger)));
            }
        }
        Err(Error::NoMemory)
    }

    /// Takes a block for another use. Only its next user writes there, so an error loses a block.
    fn give(&mut self, at: u32, units: u32) {
        let index = class(units).0;
        let Some(free) = self.free.get_mut(index) else {
            return;
        };
        free.push(at);
        if self.is_shared && free.len() > KEEP {
            let _ = self.share(index);
        }
    }

    fn read_word(&mut self, at: u64) -> Result<u64> {
        let read = self.memory.read(&[(at, 8)])?;
        Ok(read.first().map_or(0, |bytes| word(bytes, 0)))
    }

    /// Takes the block at the top of a stack in the memory. The upper 40 bits of the top count the
    /// changes, so that the swap fails if there was another one.
    fn take_shared(&mut self, index: usize) -> Result<Option<u32>> {
        let head = FREE + 8 * index as u64;
        for _ in 0..TRIES {
            let top = self.read_word(head)?;
            let at = top & 0xff_ffff;
            if !self.is_shared || at == 0 {
                return Ok(None);
            }
            let below = self.read_word(at * UNIT as u64 + 8)? & 0xff_ffff;
            let new = (((top >> 24) + 1) << 24) | below;
            if self.memory.swap(head, top, new)? == top {
                return Ok(Some(at as u32));
            }
        }
        Err(Error::Contended)
    }

    /// Puts a free block of a class on its stack in the memory.
    fn share(&mut self, index: usize) -> Result<()> {
        let Some(at) = self.free.get_mut(index).and_then(Vec::pop) else {
            return Ok(());
        };
        let head = FREE + 8 * index as u64;
        for _ in 0..TRIES {
            let top = self.read_word(head)?;
            // The first word is that of no record.
            let words = [0, top & 0xff_ffff].map(u64::to_le_bytes);
            self.memory
                .write(u64::from(at) * UNIT as u64, words.as_flattened())?;
            let new = (((top >> 24) + 1) << 24) | u64::from(at);
            if self.memory.swap(head, top, new)? == top {
                return Ok(());
            }
        }
        Err(Error::Contended)
    }

    /// Leaves all free blocks to others.
    ///
    /// # Errors
    ///
    /// The memory cannot be used: some are lost.
    pub fn share_all(&mut self) -> Result<()> {
        for index in 0..CLASSES {
            while self.is_shared && self.free.get(index).is_some_and(|free| !free.is_empty()) {
                self.share(index)?;
            }
        }
        Ok(())
    }
}

/// Returns the units of the blocks of a class.
fn size_of(index: usize) -> u32 {
    // At most 39.
    let index = index as u32;
    match index {
        0..8 => index + 1,
        _ => (5 + (index - 8) % 4) << (1 + (index - 8) / 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{check, Operation, Outcome, Record};
    use crate::layout::Mode;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    /// A memory that threads share. It is read and written a word at a time, so that others see
    /// halves.
    #[derive(Clone)]
    struct Words(Arc<Vec<AtomicU64>>);

    impl Words {
        fn new(geometry: &Geometry) -> Self {
            let words: Vec<_> = (0..geometry.len / 8).map(|_| AtomicU64::new(0)).collect();
            for (to, word) in words.iter().zip(geometry.encode()) {
                to.store(word, Ordering::Relaxed);
            }
            words[NEXT as usize / 8].store(geometry.first_block(), Ordering::Relaxed);
            Self(Arc::new(words))
        }
    }

    impl Memory for Words {
        fn read(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
            let part = |(at, len): &(u64, usize)| {
                let words = &self.0[*at as usize / 8..(*at as usize + len) / 8];
                let bytes = words
                    .iter()
                    .map(|word| word.load(Ordering::SeqCst).to_le_bytes());
                bytes.flatten().collect()
            };
            Ok(parts.iter().map(part).collect())
        }

        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
            for (to, bytes) in self.0[at as usize / 8..].iter().zip(bytes.chunks(8)) {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                to.store(u64::from_le_bytes(word), Ordering::SeqCst);
            }
            Ok(())
        }

        fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64> {
            let word = &self.0[at as usize / 8];
            let swapped = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
            Ok(swapped.unwrap_or_else(|was| was))
        }

        fn add(&mut self, at: u64, n: u64) -> Result<u64> {
            Ok(self.0[at as usize / 8].fetch_add(n, Ordering::SeqCst))
        }
    }

    /// A memory whose owner is interrupted before its access number `at`: by what others do then,
    /// and for good if it `dies`.
    struct Interrupted<F> {
        words: Words,
        at: usize,
        dies: bool,
        others: Option<F>,
    }

    impl<F: FnOnce()> Interrupted<F> {
        fn step(&mut self) -> Result<()> {
            if self.at == 0 {
                if let Some(others) = self.others.take() {
                    others();
                }
                if self.dies {
                    return Err(Error::Contended);
                }
            }
            self.at = self.at.saturating_sub(1);
            Ok(())
        }
    }

    impl<F: FnOnce()> Memory for Interrupted<F> {
        fn read(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
            let mut read = Vec::new();
            for part in parts {
                self.step()?;
                read.extend(self.words.read(&[*part])?);
            }
            Ok(read)
        }
        fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
            let (first, second) = bytes.split_at(bytes.len() / 16 * 8);
            self.step()?;
            self.words.write(at, first)?;
            self.step()?;
            self.words.write(at + first.len() as u64, second)
        }
        fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64> {
            self.step()?;
            self.words.swap(at, old, new)
        }
        fn add(&mut self, at: u64, n: u64) -> Result<u64> {
            self.step()?;
            self.words.add(at, n)
        }
    }

    fn geometry(len: u64, keys: u64) -> Geometry {
        Geometry::new(len, len, keys, 1024, 5, Mode::OneSided).unwrap()
    }

    fn fill(number: u64, len: usize) -> Vec<u8> {
        number
            .to_le_bytes()
            .into_iter()
            .cycle()
            .take(len.max(8))
            .collect()
    }

    /// A client that writes down what it does.
    struct Client<M> {
        table: Table<M>,
        number: u64,
        place: Option<Place>,
        history: Rc<RefCell<Vec<Record>>>,
    }

    impl<M: Memory> Client<M> {
        fn new(
            memory: M,
            geometry: Geometry,
            number: u64,
            history: &Rc<RefCell<Vec<Record>>>,
        ) -> Self {
            let (table, history) = (Table::new(memory, geometry, true), history.clone());
            Self {
                table,
                number,
                place: None,
                history,
            }
        }

        fn note(&self, begin: Option<Operation>, end: Option<Outcome>) {
            let mut history = self.history.borrow_mut();
            let time = history.len() as u64;
            let key = "key".to_owned();
            history.push(Record {
                time,
                client: self.number,
                key,
                begin,
                end,
            });
        }

        fn act(&mut self, operation: Operation, len: usize) {
            self.note(Some(operation), None);
            let outcome = match operation {
                Operation::Put(n) => {
                    let put = self.table.put(b"key", &fill(n, len), self.place);
                    self.place = put.as_ref().ok().copied();
                    put.map(|_| Outcome::Done)
                }
                Operation::Delete => self
                    .table
                    .delete(b"key")
                    .map(|was| Outcome::Deleted(was.is_some())),
                Operation::Get => {
                    self.table
                        .find_one(b"key", self.place)
                        .map(|found| match found {
                            Found::Key(place, value) => {
                                self.place = Some(place);
                                Outcome::Found(value.map(|value| word(&value, 0)))
                            }
                            _ => Outcome::Found(None),
                        })
                }
            };
            self.note(None, Some(outcome.unwrap_or(Outcome::Unknown)));
        }
    }

    fn operation() -> impl Strategy<Value = (u8, usize)> {
        (0u8..4, 0usize..600)
    }

    fn nth(what: u8, n: u64) -> Operation {
        match what {
            0 => Operation::Delete,
            1 => Operation::Get,
            _ => Operation::Put(n),
        }
    }

    proptest! {
        /// One client is interrupted at any access, or dies there. Others do all of what they do
        /// meanwhile, and see what they may see then and later.
        #[test]
        fn operations_are_linearizable_wherever_they_are_interrupted(
            before in prop::collection::vec(operation(), 0..3), one in operation(), at in 0usize..14, dies: bool,
            remembers: bool, during in prop::collection::vec(operation(), 1..6), after in prop::collection::vec(operation(), 1..4)
        ) {
            let geometry = geometry(1 << 16, 100);
            let (words, history) = (Words::new(&geometry), Rc::default());
            let mut n = 0;
            let mut first = Client::new(words.clone(), geometry, 1, &history);
            for (what, len) in before {
                n += 1;
                first.act(nth(what, n), len);
            }
            let mut others = Client::new(words.clone(), geometry, 2, &history);
            others.act(Operation::Get, 0);
            let others = RefCell::new(others);
            let interrupt = || {
                for (n, (what, len)) in (100..).zip(&during) {
                    others.borrow_mut().act(nth(*what, n), *len);
                }
            };
            let memory = Interrupted { words: words.clone(), at, dies, others: Some(interrupt) };
            let mut client = Client::new(memory, geometry, 3, &history);
            client.place = first.place.filter(|_| remembers);
            client.act(nth(one.0, 50), one.1);
            drop(client);
            for (n, (what, len)) in (200..).zip(after) {
                others.borrow_mut().act(nth(what, n), len);
                first.act(Operation::Get, 0);
            }
            let checked = check(&history.borrow());
            prop_assert!(checked.is_ok(), "{checked:?}");
        }
    }

    #[test]
    fn threads_that_contend_are_linearizable() {
        let geometry = geometry(1 << 18, 30);
        let (words, clock) = (Words::new(&geometry), AtomicU64::new(0));
        let histories: Vec<Vec<Record>> = std::thread::scope(|scope| {
            let work = |client: u64| {
                let (words, clock) = (words.clone(), &clock);
                move || {
                    let mut table = Table::new(words, geometry, true);
                    let (mut history, mut places) = (Vec::new(), [None; 3]);
                    for n in 0..1000u64 {
                        let which = (n * 7 + client * 3) as usize % 3;
                        let key = format!("key {which}");
                        let operation = nth((n * 5 + client) as u8 % 4, (client << 32) | n);
                        let mut note = |begin, end| {
                            let time = clock.fetch_add(1, Ordering::SeqCst);
                            history.push(Record {
                                time,
                                client,
                                key: key.clone(),
                                begin,
                                end,
                            });
                        };
                        note(Some(operation), None);
                        let outcome = match operation {
                            Operation::Put(n) => {
                                let value = fill(n, (n % 700) as usize);
                                places[which] =
                                    Some(table.put(key.as_bytes(), &value, places[which]).unwrap());
                                Outcome::Done
                            }
                            Operation::Delete => {
                                Outcome::Deleted(table.delete(key.as_bytes()).unwrap().is_some())
                            }
                            Operation::Get => {
                                match table.find_one(key.as_bytes(), places[which]).unwrap() {
                                    Found::Key(place, value) => {
                                        places[which] = Some(place);
                                        Outcome::Found(value.map(|value| {
                                            assert_eq!(value, fill(word(&value, 0), value.len()));
                                            word(&value, 0)
                                        }))
                                    }
                                    _ => Outcome::Found(None),
                                }
                            }
                        };
                        note(None, Some(outcome));
                    }
                    table.share_all().unwrap();
                    history
                }
            };
            let threads: Vec<_> = (0..4).map(|client| scope.spawn(work(client))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(check(&histories.concat()), Ok(4000));
        // No block was lost: all are in slots and on stacks.
        let used = words.0[NEXT as usize / 8].load(Ordering::SeqCst) - geometry.first_block();
        let mut table = Table::new(words, geometry, true);
        let mut found = 0;
        for index in 0..CLASSES {
            while table.take_shared(index).unwrap().is_some() {
                found += u64::from(size_of(index)) * UNIT as u64;
            }
        }
        for which in 0..3 {
            if let Found::Key(place, _) = table
                .find_one(format!("key {which}").as_bytes(), None)
                .unwrap()
            {
                found += u64::from(class(place.slot.units()).1) * UNIT as u64;
            }
        }
        assert_eq!(found, used);
    }

    #[test]
    fn a_lookup_takes_as_few_reads_as_it_can() {
        let geometry = geometry(1 << 16, 100);
        let words = Words::new(&geometry);
        let mut table = Table::new(words.clone(), geometry, false);
        let place = table.put(b"name", b"value", None).unwrap();
        let reads = |remembered| {
            let memory = Interrupted {
                words: words.clone(),
                at: 1 << 20,
                dies: false,
                others: None::<fn()>,
            };
            let mut table = Table::new(memory, geometry, true);
            let found = table.find_one(b"name", remembered).unwrap();
            ((1 << 20) - table.memory.at, found)
        };
        let found = |place, value: &[u8]| Found::Key(place, Some(value.to_vec()));
        assert_eq!(reads(Some(place)), (1, found(place, b"value")));
        // Two buckets and a record.
        assert_eq!(reads(None), (3, found(place, b"value")));
        let new = table.put(b"name", b"newer", Some(place)).unwrap();
        assert_eq!(reads(Some(place)), (4, found(new, b"newer")));
        // Nobody writes what is not whole.
        let mut memory = words.clone();
        memory.write(new.slot.offset() + 8, &[1; 8]).unwrap();
        assert!(matches!(
            table.find_one(b"name", None),
            Err(Error::Corrupt(_))
        ));
    }

    #[test]
    fn what_is_full_can_be_changed() {
        for index in 0..CLASSES - 1 {
            assert_eq!(class(size_of(index)), (index, size_of(index)));
        }
        let geometry = geometry(1 << 14, 1000);
        let geometry = Geometry {
            len: 1 << 15,
            buckets: geometry.buckets,
            ..geometry
        };
        let mut table = Table::new(Words::new(&geometry), geometry, false);
        let key = |n: u32| n.to_le_bytes();
        let full = (0..).find_map(|n| match table.put(&key(n), &[7; 300], None) {
            Ok(_) => None,
            Err(error) => Some((n, error)),
        });
        let Some((count @ 20.., Error::NoMemory)) = full else {
            panic!("{full:?}");
        };
        for n in 0..count {
            table.put(&key(n), &[8; 300], None).unwrap();
            assert!(table.delete(&key(n)).unwrap().is_some());
            assert!(table.delete(&key(n)).unwrap().is_none());
        }
        for n in 0..count {
            table.put(&key(n), &[9; 200], None).unwrap();
        }
        let long = table.put(b"long", &[0; 1025], None);
        assert!(matches!(
            long,
            Err(Error::TooLarge {
                len: 1025,
                max: 1024
            })
        ));
        assert!(matches!(table.put(b"", b"", None), Err(Error::Key(0))));
        // A slot for each key, and then none.
        let few = Geometry::new(1 << 16, 1 << 16, 10, 64, 1, Mode::Message).unwrap();
        let mut table = Table::new(Words::new(&few), few, false);
        let full = (0..).find_map(|n| table.put(&key(n), b"", None).err().map(|error| (n, error)));
        assert!(matches!(full, Some((16, Error::NoSlot))), "{full:?}");
        assert!(table.delete(&key(3)).unwrap().is_some());
        table.put(&key(3), b"again", None).unwrap();
    }
}
