// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client's connection to one server: the protocol of `docs/kv.md`.

use crate::control::{Control, FromClient, FromServer, MAX_SEGMENTS, VERSION};
use crate::error::{Error, Result};
use crate::layout::{self, Geometry, Lock, Place, Slot, BUCKET_LEN};
use crate::{Options, Stats};
use rand::{rngs::SmallRng, RngExt};
use rust_ulp::{
    AckTimeout, Buffer, CompareSwap, Cq, Device, LocalSlice, Qp, QpBatch, Rc, Read, RemoteSlice,
    Retries, Write,
};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Keys looked up at a time.
pub const LANES: usize = 16;
/// How long a request may take that the device does not give up itself.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often a record may be found broken whose slot says that it is whole.
const BROKEN: u32 = 8;
/// Before its key, and the longest key: what tells whose record it is.
const KEY_PART: usize = 320;
/// Results of compare-and-swaps, behind the lanes.
const RESULTS: usize = 4;

/// A connection.
#[derive(Debug)]
pub struct Link {
    name: String,
    options: Options,
    qp: Qp<Rc>,
    cq: Cq,
    buffer: Buffer,
    lane_len: usize,
    table: Geometry,
    segments: Vec<RemoteSlice>,
    id: u32,
    /// Of this run of the server.
    pub run: u64,
    control: Control,
    /// What the locks were when they were last seen.
    locks: HashMap<u32, Lock>,
    random: SmallRng,
    /// Nothing works any more.
    pub is_broken: bool,
    pub stats: Stats,
}

/// Records that were not whole, one after the other.
#[derive(Default)]
struct Torn {
    /// The slot of the last one.
    slot: Slot,
    /// How often it was that one.
    times: u32,
}

/// A bucket whose lock this client has.
struct Held {
    bucket: u32,
    lock: Lock,
    slots: Vec<(u32, Slot)>,
}

fn gone(name: &str, why: impl ToString) -> Error {
    Error::Gone {
        server: name.to_owned(),
        why: why.to_string(),
    }
}

impl Link {
    /// Connects to `name`, which is HOST:PORT.
    pub fn connect(name: &str, device: &Device, options: &Options) -> Result<Self> {
        let unreachable = |cause| Error::Unreachable {
            server: name.to_owned(),
            cause,
        };
        let corrupt = |what: &str| Error::Corrupt {
            server: name.to_owned(),
            what: what.to_owned(),
        };
        let addrs: Vec<_> = name.to_socket_addrs().map_err(unreachable)?.collect();
        let mut tried = Err(ErrorKind::AddrNotAvailable.into());
        for addr in addrs {
            tried = TcpStream::connect_timeout(&addr, Duration::from_secs(10));
            if tried.is_ok() {
                break;
            }
        }
        let tcp = tried.map_err(unreachable)?;
        tcp.set_read_timeout(Some(Duration::from_secs(30)))
            .map_err(unreachable)?;
        let mut control = Control::new(tcp).map_err(unreachable)?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
        let qp = pd
            .create_qp::<Rc>(&cq)
            // A server that vanished is noticed after some seconds.
            .timeout(AckTimeout::at_least(Duration::from_secs(1)))
            .retry_cnt(Retries::new(5)?)
            .build()?;
        let end = qp.endpoint().into();
        let hello = FromClient::Hello {
            version: VERSION,
            end,
        };
        let answer = control.send(&hello).and_then(|()| control.receive());
        let answer: FromServer = answer.map_err(|error| match error.kind() {
            ErrorKind::InvalidData => corrupt("it does not speak this protocol"),
            _ => unreachable(error),
        })?;
        let (id, run, end, table, segments) = match answer {
            FromServer::Welcome {
                id,
                run,
                end,
                table,
                segments,
            } => (id, run, end, table, segments),
            FromServer::Refused(what) => {
                return Err(Error::Refused {
                    server: name.to_owned(),
                    what,
                });
            }
            FromServer::Freed => return Err(corrupt("an answer out of turn")),
        };
        let end = end
            .endpoint()
            .ok_or_else(|| corrupt("its end of the connection"))?;
        if id == 0 || segments.is_empty() || segments.len() > MAX_SEGMENTS {
            return Err(corrupt("its welcome"));
        }
        table
            .check()
            .map_err(|_| corrupt("a table that its memory cannot have"))?;
        let segments: Option<Vec<_>> = segments.iter().map(|segment| segment.remote()).collect();
        let segments = segments.ok_or_else(|| corrupt("the address of its memory"))?;
        let lane_len = BUCKET_LEN + table.record_len();
        let buffer = pd.alloc_buffer(LANES * lane_len + 8 * RESULTS)?;
        Ok(Self {
            name: name.to_owned(),
            options: options.clone(),
            qp: qp.connect(end)?,
            cq,
            buffer,
            lane_len,
            table,
            segments,
            id,
            run,
            control,
            locks: HashMap::new(),
            random: rand::make_rng(),
            is_broken: false,
            stats: Stats::default(),
        })
    }

    fn corrupt(&self, what: impl Into<String>) -> Error {
        Error::Corrupt {
            server: self.name.clone(),
            what: what.into(),
        }
    }

    // --- requests ---------------------------------------------------------------------

    /// The server's memory, if it says that it has that.
    fn remote(&self, offset: u64, len: usize) -> Result<RemoteSlice> {
        let (n, at) = (offset / self.table.segment, offset % self.table.segment);
        let segment = usize::try_from(n).ok().and_then(|n| self.segments.get(n));
        let part =
            segment.and_then(|segment| segment.slice(at..at.saturating_add(len as u64)).ok());
        part.ok_or_else(|| self.corrupt("its table goes beyond its memory"))
    }

    /// The bucket and the record of a lane.
    fn lane(&self, lane: usize) -> (usize, usize) {
        let start = (lane % LANES) * self.lane_len;
        (start, start + BUCKET_LEN)
    }

    fn result(&self, n: usize) -> usize {
        LANES * self.lane_len + 8 * (n % RESULTS)
    }

    fn local(&self, offset: usize, len: usize) -> Result<LocalSlice> {
        Ok(self.buffer.slice(offset..offset + len)?)
    }

    fn read(&self, offset: u64, len: usize, to: usize) -> Result<Read<'static>> {
        Ok(Read::new(self.remote(offset, len)?, self.local(to, len)?))
    }

    fn swap(&self, offset: u64, old: u64, new: u64, result: usize) -> Result<CompareSwap<'static>> {
        let result = self.local(self.result(result), 8)?;
        Ok(CompareSwap::new(self.remote(offset, 8)?, old, new, result))
    }

    /// What a compare-and-swap found.
    fn found(&self, result: usize) -> Result<u64> {
        Ok(self
            .buffer
            .load_u64(self.result(result), std::sync::atomic::Ordering::Acquire)?)
    }

    /// Posts a batch and waits until all of it is done. After an error nothing is known.
    fn finish(
        &mut self,
        batch: impl FnOnce(&Self, &mut QpBatch<'_, Rc>) -> Result<()>,
    ) -> Result<()> {
        let mut posted = self.qp.batch();
        batch(self, &mut posted)?;
        let count = posted.len() as u32;
        self.stats.round_trips += 1;
        let done = posted
            .submit_and_wait(count, DEADLINE)
            .and_then(|_| (0..count).try_for_each(|_| self.cq.wait(DEADLINE)?.ok().map(|_| ())));
        done.map_err(|error| {
            self.is_broken = true;
            gone(&self.name, error)
        })
    }

    fn bytes(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        Ok(self.buffer.to_vec(offset..offset + len)?)
    }

    // --- looking ----------------------------------------------------------------------

    /// The slots of buckets, each read into its lane.
    fn read_buckets(&mut self, buckets: &[u32]) -> Result<Vec<Vec<(u32, Slot)>>> {
        self.finish(|link, batch| {
            for (lane, bucket) in buckets.iter().enumerate() {
                batch.push(link.read(
                    link.table.bucket(*bucket),
                    BUCKET_LEN,
                    link.lane(lane).0,
                )?)?;
            }
            Ok(())
        })?;
        let lanes = 0..buckets.len();
        lanes
            .map(|lane| {
                Ok(layout::bucket(&self.bytes(self.lane(lane).0, BUCKET_LEN)?)
                    .1
                    .collect())
            })
            .collect()
    }

    /// Reads records of at most `most` bytes, each into its lane.
    fn read_records(&mut self, records: &[(Place, Slot)], most: usize) -> Result<Vec<Vec<u8>>> {
        let mut lens = Vec::with_capacity(records.len());
        for (_, slot) in records {
            if slot.record_len() == 0 || slot.record_len() > self.table.record_len() {
                return Err(self.corrupt("a record of a length that none can have"));
            }
            lens.push(slot.record_len().min(most));
        }
        self.finish(|link, batch| {
            for (lane, ((place, slot), len)) in records.iter().zip(&lens).enumerate() {
                let at = link.table.record(*place, slot.version());
                batch.push(link.read(at, *len, link.lane(lane).1)?)?;
            }
            Ok(())
        })?;
        (0..)
            .zip(&lens)
            .map(|(lane, len)| self.bytes(self.lane(lane).1, *len))
            .collect()
    }

    /// A short while, longer each time, and never the same as others take.
    fn back_off(&mut self, tries: u32) {
        let most = 20u64 << tries.min(8);
        std::thread::sleep(Duration::from_micros(self.random.random_range(0..=most)));
    }

    /// Takes note of a record that is not whole: overwritten while it was read, if then its slot's word has changed,
    /// too. If it has not, again and again, nobody writes it.
    fn torn(&mut self, seen: &mut Torn, slot: Slot) -> Result<()> {
        self.stats.torn += 1;
        if seen.slot != slot {
            *seen = Torn { slot, times: 0 };
        }
        seen.times += 1;
        if seen.times > BROKEN {
            return Err(self.corrupt("a record that is not whole, and nobody writes it"));
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let hash = layout::hash(key);
        let bucket = self.table.bucket_of(hash);
        let start = Instant::now();
        let mut seen = Torn::default();
        for tries in 0.. {
            let slots = self.read_buckets(&[bucket])?.pop().unwrap_or_default();
            let mut torn = None;
            for (n, slot) in slots.into_iter().filter(|(_, slot)| slot.may_be(hash)) {
                let place = Place { bucket, slot: n };
                if !self.options.slow.is_zero() {
                    std::thread::sleep(self.options.slow);
                }
                let record = self
                    .read_records(&[(place, slot)], usize::MAX)?
                    .pop()
                    .unwrap_or_default();
                match layout::decode(&record, place, slot.version(), self.options.verify) {
                    Some((of, value)) if of == key => return Ok(Some(value.to_vec())),
                    Some(_) => {}
                    None => torn = Some(slot),
                }
            }
            let Some(slot) = torn else {
                return Ok(None);
            };
            self.torn(&mut seen, slot)?;
            if start.elapsed() > self.options.patience {
                break;
            }
            self.back_off(tries);
        }
        Err(Error::Contended {
            server: self.name.clone(),
        })
    }

    /// The values of at most [`LANES`] keys, looked up together.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let hashes: Vec<u64> = keys.iter().map(|key| layout::hash(key)).collect();
        let buckets: Vec<u32> = hashes
            .iter()
            .map(|hash| self.table.bucket_of(*hash))
            .collect();
        let slots = self.read_buckets(&buckets)?;
        // Those with one candidate are read together. The others are looked up one by one.
        let mut values = vec![None; keys.len()];
        let (mut ready, mut later) = (Vec::new(), Vec::new());
        for (n, (slots, hash)) in slots.iter().zip(&hashes).enumerate() {
            let mut may = slots.iter().filter(|(_, slot)| slot.may_be(*hash));
            match (may.next(), may.next(), buckets.get(n)) {
                (None, ..) => {}
                (Some((slot, word)), None, Some(bucket)) => {
                    ready.push((
                        n,
                        (
                            Place {
                                bucket: *bucket,
                                slot: *slot,
                            },
                            *word,
                        ),
                    ));
                }
                _ => later.push(n),
            }
        }
        if !ready.is_empty() {
            let places: Vec<_> = ready.iter().map(|(_, record)| *record).collect();
            let records = self.read_records(&places, usize::MAX)?;
            for ((n, (place, slot)), record) in ready.iter().zip(&records) {
                match (
                    layout::decode(record, *place, slot.version(), self.options.verify),
                    values.get_mut(*n),
                ) {
                    (Some((of, value)), Some(to)) => {
                        if keys.get(*n).is_some_and(|key| *key == of) {
                            *to = Some(value.to_vec());
                        }
                    }
                    _ => {
                        self.stats.torn += 1;
                        later.push(*n);
                    }
                }
            }
        }
        for n in later {
            if let (Some(key), Some(to)) = (keys.get(n), values.get_mut(n)) {
                *to = self.get(key)?;
            }
        }
        Ok(values)
    }

    /// Every key, with the length of its value, as each is when it is come to.
    pub fn list(&mut self, mut each: impl FnMut(&[u8], usize)) -> Result<()> {
        let all: Vec<u32> = (0..self.table.buckets).collect();
        for some in all.chunks(LANES) {
            let slots = self.read_buckets(some)?;
            let mut records: Vec<_> = Vec::new();
            for (bucket, slots) in some.iter().zip(slots) {
                let full = slots.into_iter().filter(|(_, slot)| !slot.is_empty());
                records.extend(full.map(|(slot, word)| {
                    (
                        Place {
                            bucket: *bucket,
                            slot,
                        },
                        word,
                    )
                }));
            }
            for some in records.chunks(LANES) {
                let found = self.read_records(some, usize::MAX)?;
                for ((place, slot), record) in some.iter().zip(found) {
                    match layout::decode(&record, *place, slot.version(), true) {
                        Some((key, value)) => each(key, value.len()),
                        None => self.list_again(*place, &mut each)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// A record that was overwritten while it was read.
    fn list_again(&mut self, place: Place, each: &mut impl FnMut(&[u8], usize)) -> Result<()> {
        let mut seen = Torn::default();
        let start = Instant::now();
        self.stats.torn += 1;
        while start.elapsed() < self.options.patience {
            let slots = self
                .read_buckets(&[place.bucket])?
                .pop()
                .unwrap_or_default();
            let slot = slots
                .iter()
                .find(|(n, _)| *n == place.slot)
                .map_or(Slot(0), |(_, slot)| *slot);
            if slot.is_empty() {
                return Ok(());
            }
            let record = self
                .read_records(&[(place, slot)], usize::MAX)?
                .pop()
                .unwrap_or_default();
            if let Some((key, value)) = layout::decode(&record, place, slot.version(), true) {
                each(key, value.len());
                return Ok(());
            }
            self.torn(&mut seen, slot)?;
        }
        Err(Error::Contended {
            server: self.name.clone(),
        })
    }

    // --- changing ---------------------------------------------------------------------

    /// Takes the lock of a bucket, and reads its slots.
    fn lock(&mut self, bucket: u32) -> Result<Held> {
        let at = self.table.bucket(bucket);
        let start = Instant::now();
        // Somebody who has it, and since when this client has seen that.
        let mut seen = (Lock(0), start);
        let mut tries = 0;
        loop {
            let guess = self.locks.get(&bucket).copied().unwrap_or(Lock(0));
            let mine = guess.taken(self.id);
            self.finish(|link, batch| {
                batch.push(link.swap(at, guess.0, mine.0, 0)?)?;
                batch.push(link.read(at, BUCKET_LEN, link.lane(0).0)?)?;
                Ok(())
            })?;
            let found = Lock(self.found(0)?);
            if found == guess {
                let bytes = self.bytes(self.lane(0).0, BUCKET_LEN)?;
                let slots = layout::bucket(&bytes).1.collect();
                return Ok(Held {
                    bucket,
                    lock: mine,
                    slots,
                });
            }
            if found.owner() == self.id {
                return Err(self.corrupt("a lock that this client does not have is in its name"));
            }
            self.locks.insert(bucket, found.freed());
            self.stats.lock_misses += 1;
            if start.elapsed() > self.options.patience {
                return Err(Error::Contended {
                    server: self.name.clone(),
                });
            }
            if found.owner() == 0 {
                continue;
            }
            if found != seen.0 {
                seen = (found, Instant::now());
                tries = 0;
            }
            if seen.1.elapsed() > self.options.lease {
                self.complain(bucket, found)?;
                seen.1 = Instant::now();
            }
            self.back_off(tries);
            tries += 1;
        }
    }

    /// Has the server cut off somebody who does not give a lock back.
    fn complain(&mut self, bucket: u32, lock: Lock) -> Result<()> {
        self.stats.complaints += 1;
        let lock = lock.0;
        let message = FromClient::Stuck { bucket, lock };
        let answer = self
            .control
            .send(&message)
            .and_then(|()| self.control.receive());
        match answer {
            Ok(FromServer::Freed) => Ok(()),
            Ok(FromServer::Refused(what)) => Err(Error::Refused {
                server: self.name.clone(),
                what,
            }),
            Ok(_) => Err(self.corrupt("an answer out of turn")),
            Err(error) => {
                self.is_broken = true;
                Err(gone(&self.name, error))
            }
        }
    }

    /// Changes a slot's word and gives the lock back, after a record was written to where nobody looks yet. Where
    /// that fails, the connection is given up, and with it the lock.
    fn commit(
        &mut self,
        held: &Held,
        record: Option<(u64, &[u8])>,
        change: Option<(Place, Slot, Slot)>,
    ) -> Result<()> {
        let done = self.try_commit(held, record, change);
        self.is_broken |= done.is_err();
        done
    }

    fn try_commit(
        &mut self,
        held: &Held,
        record: Option<(u64, &[u8])>,
        change: Option<(Place, Slot, Slot)>,
    ) -> Result<()> {
        let lane = self.lane(0).1;
        if let Some((_, bytes)) = record {
            self.buffer.write_at(lane, bytes)?;
        }
        let free = held.lock.freed();
        let at = self.table.bucket(held.bucket);
        self.finish(|link, batch| {
            if let Some((offset, bytes)) = record {
                let to = link.remote(offset, bytes.len())?;
                batch.push(Write::new(link.local(lane, bytes.len())?, to))?;
            }
            if let Some((place, old, new)) = change {
                batch.push(link.swap(link.table.word(place), old.0, new.0, 1)?)?;
            }
            batch.push(link.swap(at, held.lock.0, free.0, 0)?)?;
            Ok(())
        })?;
        let changed = match change {
            Some((_, old, _)) => self.found(1)? == old.0,
            None => true,
        };
        if !changed || self.found(0)? != held.lock.0 {
            return Err(self.corrupt("somebody changed what this client had locked"));
        }
        self.locks.insert(held.bucket, free);
        Ok(())
    }

    /// The slot of a key in a bucket that is locked.
    fn look(&mut self, held: &Held, key: &[u8], hash: u64) -> Result<Option<(Place, Slot)>> {
        for (slot, word) in held.slots.iter().filter(|(_, slot)| slot.may_be(hash)) {
            let place = Place {
                bucket: held.bucket,
                slot: *slot,
            };
            let mut seen = Torn::default();
            let is_it = loop {
                let records = self.read_records(&[(place, *word)], KEY_PART)?;
                let record = records.first().map_or(&[][..], Vec::as_slice);
                if let Some(is_it) = layout::is_of(record, place, word.version(), key) {
                    break is_it;
                }
                // Nobody writes it now: what was written is not to be seen yet.
                self.torn(&mut seen, *word)?;
                self.back_off(seen.times);
            };
            if is_it {
                return Ok(Some((place, *word)));
            }
        }
        Ok(None)
    }

    /// As [`Self::look`]. Where that fails, the connection is given up, and with it the lock.
    fn find(&mut self, held: &Held, key: &[u8], hash: u64) -> Result<Option<(Place, Slot)>> {
        let found = self.look(held, key, hash);
        self.is_broken |= found.is_err();
        found
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > self.table.max_value as usize {
            return Err(Error::TooLarge {
                len: value.len(),
                max: self.table.max_value as usize,
                server: self.name.clone(),
            });
        }
        let hash = layout::hash(key);
        let held = self.lock(self.table.bucket_of(hash))?;
        let there = match self.find(&held, key, hash)? {
            None => {
                let mut empty = held.slots.iter().filter(|(_, slot)| slot.is_empty());
                empty.next().map(|(slot, word)| {
                    (
                        Place {
                            bucket: held.bucket,
                            slot: *slot,
                        },
                        *word,
                    )
                })
            }
            there => there,
        };
        let Some((place, old)) = there else {
            self.commit(&held, None, None)?;
            return Err(Error::Full {
                server: self.name.clone(),
            });
        };
        let version = old.version().wrapping_add(1);
        let bytes = layout::encode(place, version, key, value);
        let new = old.with(bytes.len(), hash);
        let at = self.table.record(place, version);
        self.commit(&held, Some((at, &bytes)), Some((place, old, new)))
    }

    /// Takes a key away. Whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let hash = layout::hash(key);
        let held = self.lock(self.table.bucket_of(hash))?;
        let there = self.find(&held, key, hash)?;
        self.commit(
            &held,
            None,
            there.map(|(place, old)| (place, old, old.emptied())),
        )?;
        Ok(there.is_some())
    }

    /// Takes the lock of a key's bucket and keeps it.
    #[cfg(feature = "test-hooks")]
    pub fn hold(&mut self, key: &[u8]) -> Result<()> {
        let bucket = self.table.bucket_of(layout::hash(key));
        self.lock(bucket).map(|_| ())
    }

    /// Whether the server has hung up.
    pub fn is_over(&self) -> bool {
        self.is_broken || self.control.is_over()
    }

    /// The table.
    pub fn table(&self) -> &Geometry {
        &self.table
    }
}
