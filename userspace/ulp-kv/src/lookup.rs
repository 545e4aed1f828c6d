// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a client looks a key up, as a state machine without I/O: the reads that it wants, one after
//! the other, and what it makes of them.

use crate::layout::{decode, Bucket, Found, Geometry, Slot};

/// How often the same bytes may be found where a record has to be: then nobody writes them.
const CORRUPT: u32 = 8;

/// What a lookup wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// To read both buckets of the key.
    Buckets,
    /// The same, a moment later: the key is being changed.
    BucketsLater,
    /// To read the record of a slot.
    Record(Slot),
    /// Nothing: the key has this value, of this version, at this slot if it is to be remembered.
    Value(Vec<u8>, u64, Slot),
    /// Nothing: there is no such key.
    Nothing,
    /// Nothing: the server's memory is corrupt.
    Corrupt,
}

impl Want {
    /// Returns whether something is to be read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Buckets | Self::BucketsLater | Self::Record(_))
    }
}

/// A lookup of one key.
#[derive(Debug)]
pub struct Lookup {
    hash: u64,
    /// The slots whose records are still to be read; the last one is next.
    candidates: Vec<Slot>,
    /// The slot whose record is being read.
    reading: Slot,
    /// The location is one that the client remembers.
    cached: bool,
    /// The sequences of both buckets when they were read.
    sequences: Option<(u32, u32)>,
    /// A record was not valid, or a bucket not whole.
    unstable: bool,
    /// The buckets have changed since they were read before.
    changed: bool,
    /// The last torn record, and how often it was the same.
    torn: (Slot, u64, u32),
    /// Records that were not valid, or not whole.
    pub retries: u64,
}

impl Lookup {
    /// Begins a lookup, where the client remembers a location with that.
    pub fn begin(hash: u64, cached: Option<Slot>) -> (Self, Want) {
        let lookup = Self {
            hash,
            candidates: Vec::new(),
            reading: cached.unwrap_or(Slot::EMPTY),
            cached: cached.is_some(),
            sequences: None,
            unstable: false,
            changed: false,
            torn: (Slot::EMPTY, 0, 0),
            retries: 0,
        };
        let want = cached.map_or(Want::Buckets, Want::Record);
        (lookup, want)
    }

    /// Takes both buckets, and returns what is wanted next.
    pub fn buckets(&mut self, first: &Bucket, second: &Bucket) -> Want {
        let sequences = first.sequence.zip(second.sequence);
        if sequences.is_some() && sequences == self.sequences {
            // Both buckets are as they were before, and the key was not in them then. So it was not
            // in them at any moment between.
            return Want::Nothing;
        }
        self.changed = self.sequences.is_some();
        self.sequences = sequences;
        self.unstable = sequences.is_none();
        let slots = second.slots.iter().chain(&first.slots);
        self.candidates = slots
            .copied()
            .filter(|slot| slot.may_be(self.hash))
            .collect();
        // A key that is being moved is in both.
        self.candidates.dedup();
        self.next()
    }

    /// Takes what was read at the slot that was wanted, and returns what is wanted next.
    pub fn record(&mut self, geometry: &Geometry, key: &[u8], bytes: &[u8], verify: bool) -> Want {
        let cached = std::mem::take(&mut self.cached);
        match decode(geometry, self.reading.at(), bytes, verify) {
            // A valid record has the value of its key, however it was found.
            Found::Valid(record) if record.key == key => {
                return Want::Value(record.value.to_vec(), record.version, self.reading);
            }
            _ if cached => return Want::Buckets,
            // The key's slot was read in this lookup. So this was the value then, or later.
            Found::Replaced(record) if record.key == key => {
                return Want::Value(record.value.to_vec(), record.version, Slot::EMPTY);
            }
            Found::Valid(_) | Found::Replaced(_) => {}
            Found::Invalid => {
                self.unstable = true;
                self.retries += 1;
            }
            Found::Torn(version) => {
                self.unstable = true;
                self.retries += 1;
                let (slot, seen, times) = self.torn;
                let times = if (slot, seen) == (self.reading, version) {
                    times + 1
                } else {
                    1
                };
                self.torn = (self.reading, version, times);
                if times > CORRUPT {
                    return Want::Corrupt;
                }
            }
        }
        self.next()
    }

    /// Returns whether the next look at the buckets can show that there is no such key.
    pub fn may_end(&self) -> bool {
        self.sequences.is_some()
    }

    fn next(&mut self) -> Want {
        if let Some(slot) = self.candidates.pop() {
            self.reading = slot;
            return Want::Record(slot);
        }
        if self.unstable {
            self.sequences = None;
            return Want::BucketsLater;
        }
        // Not found: the buckets are read again, to see whether they have changed.
        match self.changed {
            true => Want::BucketsLater,
            false => Want::Buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{hash, BUCKET_LEN};
    use crate::table::tests::{put, request, Words};
    use crate::table::Table;
    use crate::wire::{Condition, Status, Write};
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A reader that makes one read at a time, each of any part of the memory.
    struct Reader {
        geometry: Geometry,
        key: Vec<u8>,
        lookup: Lookup,
        want: Want,
    }

    impl Reader {
        fn new(geometry: Geometry, key: &[u8], cached: Option<Slot>) -> Self {
            let (lookup, want) = Lookup::begin(hash(key), cached);
            Self {
                geometry,
                key: key.to_vec(),
                lookup,
                want,
            }
        }

        /// One read. The halves of what is read are of different moments if `old` is there.
        fn step(&mut self, memory: &[u8], old: Option<&[u8]>) -> bool {
            let read = |offset: u64, len: usize| {
                let at = offset as usize;
                let mut bytes = memory[at..at + len].to_vec();
                if let Some(old) = old {
                    let half = len / 16 * 8;
                    bytes[..half].copy_from_slice(&old[at..at + half]);
                }
                bytes
            };
            self.want = match &self.want {
                Want::Buckets | Want::BucketsLater => {
                    let (first, second) = self.geometry.buckets_of(hash(&self.key));
                    let bucket = |n| Bucket::decode(&read(self.geometry.bucket(n), BUCKET_LEN));
                    self.lookup.buckets(&bucket(first), &bucket(second))
                }
                Want::Record(slot) => {
                    let bytes = read(slot.offset(), slot.len());
                    self.lookup.record(&self.geometry, &self.key, &bytes, true)
                }
                _ => return true,
            };
            matches!(self.want, Want::Value(..) | Want::Nothing | Want::Corrupt)
        }
    }

    proptest! {
        /// Readers look while the server changes the table, and each sees a value that its key had
        /// at a moment since it began: also with stale locations, and while keys are moved.
        #[test]
        fn readers_are_linearizable(
            steps in prop::collection::vec((0u8..36, 0u8..5, 0usize..300), 1..80), watched in 0u8..28, skip in 1u64..12
        ) {
            let words = Words::new(1 << 15);
            // Four buckets, nearly full, so that keys are moved.
            let geometry = Geometry::new(1 << 15, 1 << 15, 56, 512, 5).unwrap();
            let mut table = Table::new(&words, geometry, 1).unwrap();
            for n in 0..50u8 {
                prop_assert_eq!(table.apply(&put(&[n, 1], b""), 0).unwrap().status, Status::Done);
            }
            // The value that the watched key has, and those that it had since a reader began.
            let now: Rc<RefCell<Vec<Option<Vec<u8>>>>> = Rc::new(RefCell::new(vec![None]));
            let stale = Rc::new(Cell::new(None));
            let changing = Rc::new(Cell::new(false));
            let bad: Rc<RefCell<Option<String>>> = Rc::default();
            {
                let (now, stale, changing, bad) = (now.clone(), stale.clone(), changing.clone(), bad.clone());
                let (mut reader, mut n, mut old): (Option<Reader>, u64, Vec<u8>) = (None, 0, Vec::new());
                *words.before.borrow_mut() = Some(Box::new(move |memory: &[u8]| {
                    n += 1;
                    if n % skip != 0 {
                        return;
                    }
                    let current = reader.get_or_insert_with(|| {
                        // What the key has, and during a change also what it had.
                        let mut seen = now.borrow_mut();
                        let first = seen.len() - 1 - usize::from(changing.get());
                        seen.drain(..first);
                        old = memory.to_vec();
                        Reader::new(geometry, &[watched], if n % 3 == 0 { stale.get() } else { None })
                    });
                    let half = (n % 2 == 0).then_some(&old[..]);
                    if current.step(memory, half) {
                        let found = match &current.want {
                            Want::Value(value, ..) => Some(value.clone()),
                            Want::Nothing => None,
                            other => { *bad.borrow_mut() = Some(format!("{other:?}")); None }
                        };
                        if !now.borrow().contains(&found) {
                            *bad.borrow_mut() = Some(format!("{found:?} of {:?}", now.borrow()));
                        }
                        reader = None;
                    }
                    old = memory.to_vec();
                }));
            }
            for (n, (key, what, len)) in steps.into_iter().enumerate() {
                let key = if key < 28 { key } else { watched };
                let value = [&(n as u32).to_le_bytes()[..], &vec![n as u8; len]].concat();
                let change = match what {
                    0 => request(std::slice::from_ref(&key), Condition::Always, Write::Delete),
                    _ => put(std::slice::from_ref(&key), &value),
                };
                if key == watched {
                    // It may be seen from now on; if it is refused, it cannot be.
                    let before = now.borrow().last().cloned().unwrap();
                    now.borrow_mut().push(if what == 0 { None } else { Some(value.clone()) });
                    changing.set(true);
                    let reply = table.apply(&change, 0).unwrap();
                    changing.set(false);
                    if reply.status == Status::Done && reply.slot != 0 && n % 2 == 0 {
                        stale.set(Some(Slot(reply.slot)));
                    }
                    if reply.status != Status::Done {
                        now.borrow_mut().push(before);
                    }
                } else {
                    table.apply(&change, 0).unwrap();
                }
                let said = bad.borrow().clone();
                prop_assert!(said.is_none(), "{said:?}");
            }
        }
    }

    #[test]
    fn a_lookup_takes_as_few_reads_as_it_can() {
        let words = Words::new(1 << 16);
        let geometry = Geometry::new(1 << 16, 1 << 16, 100, 512, 5).unwrap();
        let mut table = Table::new(&words, geometry, 1).unwrap();
        let slot = Slot(table.apply(&put(b"name", b"value"), 0).unwrap().slot);
        let reads = |key: &[u8], cached| {
            let mut reader = Reader::new(geometry, key, cached);
            let mut n = 1;
            while !reader.step(&words.bytes.borrow(), None) {
                n += 1;
            }
            (n, reader.want)
        };
        let value = Want::Value(b"value".to_vec(), 1, slot);
        assert_eq!(reads(b"name", Some(slot)), (1, value.clone()));
        assert_eq!(reads(b"name", None), (2, value.clone()));
        assert_eq!(reads(b"nothing", None), (2, Want::Nothing));
        let new = Slot(table.apply(&put(b"name", b"newer"), 0).unwrap().slot);
        assert_eq!(
            reads(b"name", Some(slot)),
            (3, Want::Value(b"newer".to_vec(), 2, new))
        );
        // A bucket that is never whole: each time a moment later, so that patience ends it.
        let mut lookup = Lookup::begin(hash(b"name"), None).0;
        let torn = Bucket::decode(&[1; BUCKET_LEN]);
        for _ in 0..3 {
            assert_eq!(lookup.buckets(&torn, &torn), Want::BucketsLater);
        }
        // Nor do buckets that change all the time keep a client busy.
        let changing = |sequence| Bucket {
            sequence: Some(sequence),
            slots: [Slot::EMPTY; 15],
        };
        let steps = [0, 1, 2, 2].map(|n| lookup.buckets(&changing(n), &changing(n)));
        let later = Want::BucketsLater;
        assert_eq!(steps, [Want::Buckets, later.clone(), later, Want::Nothing]);
        // Nobody writes what is not whole.
        words.bytes.borrow_mut()[new.offset() as usize + 9] ^= 1;
        assert_eq!(reads(b"name", None), (18, Want::Corrupt));
    }
}
