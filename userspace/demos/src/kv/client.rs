// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client: connections to servers, each with the places of keys that it has seen.

use crate::error::{Error, Result};
use crate::layout::{Geometry, Mode, BUCKET, MAX_KEY, MAX_MEMORY};
use crate::server::TICK;
use crate::table::{Found, Memory, Place, Table};
use crate::wire::{decode_answer, message_len, Change, ANSWER, WINDOW};
use rust_ulp::qp::{AckTimeout, QpAttr, QpState, Rc, Retries, RnrRetries};
use rust_ulp::tcp::{Peer, TcpOptions};
use rust_ulp::wr::{CompareSwap, FetchAdd, Read, Recv, Send, Write};
use rust_ulp::{Buffer, Completion, Cq, Device, Opcode, Qp, QpBatch, RemoteSlice};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use twox_hash::XxHash3_64;

/// How long a server may take for a request.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long the two halves of a read that is slow on purpose are apart at most.
const MOMENT: Duration = Duration::from_secs(2);
/// Requests in one list.
const LIST: usize = 64;
/// Bytes that one list may read.
const ROOM: usize = 256 << 10;
/// Where those begin. Before them is the result of an atomic operation.
const AREA: usize = 64;
/// Places of keys that a client remembers.
const PLACES: usize = 1 << 20;

/// How a test makes a client misbehave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Stop for good within the change with this number, counted from 1.
    pub halt: Option<u64>,
    /// Read each record in two parts, with time for a change between them.
    pub stall: bool,
    /// Believe records without verification.
    pub unverified: bool,
}

/// What a client has met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Lists of requests, and messages with the answers.
    pub round_trips: u64,
    /// Records that were not whole.
    pub torn: u64,
    /// Connections that were made again.
    pub reconnects: u64,
}

/// The memory of a server, as a client reaches it.
struct Remote {
    name: String,
    qp: Qp<Rc>,
    cq: Cq,
    peer: Peer,
    /// The result of an atomic operation, [`ROOM`] bytes, messages, answers.
    buffer: Buffer,
    /// Bytes under each key but the last.
    segment: u64,
    /// Why nothing can be requested any more.
    broken: Option<String>,
    number: u32,
    round_trips: u64,
    faults: Faults,
}

impl Remote {
    fn gone(&mut self, cause: impl ToString) -> Error {
        let cause = self.broken.get_or_insert(cause.to_string()).clone();
        let server = self.name.clone();
        Error::Gone { server, cause }
    }

    fn remote(&self, at: u64, len: usize) -> Result<RemoteSlice> {
        let grant = usize::try_from(at / self.segment).unwrap_or(usize::MAX);
        let start = at % self.segment;
        let beyond = |_| Error::Corrupt("its table goes beyond its memory");
        let grant = self.peer.grant(grant).map_err(beyond)?;
        grant
            .slice(start..start.saturating_add(len as u64))
            .map_err(beyond)
    }

    /// Waits for a completion.
    fn complete(&mut self) -> Result<Completion> {
        let begin = Instant::now();
        loop {
            if let Some(cause) = self.broken.clone() {
                return Err(self.gone(cause));
            }
            match self.cq.wait(TICK) {
                Ok(completion) => {
                    let checked = completion.check();
                    return checked
                        .map(|()| completion)
                        .map_err(|error| self.gone(error));
                }
                Err(rust_ulp::Error::Timeout { .. }) => {
                    if !matches!(self.peer.is_gone(), Ok(false)) {
                        return Err(self.gone("it has hung up"));
                    }
                    if begin.elapsed() > PATIENCE {
                        return Err(self.gone("it does not answer"));
                    }
                }
                Err(error) => return Err(self.gone(error)),
            }
        }
    }

    /// Posts the Reads of a list, of which the last one alone is signaled, and waits for it.
    fn read_list(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let (qp, buffer) = self.parts();
        let mut at = AREA;
        let mut reads = Vec::with_capacity(parts.len());
        for (offset, len) in parts {
            reads.push((self.remote(*offset, *len)?, buffer.slice(at..at + *len)?));
            at += len.next_multiple_of(8);
        }
        let last = reads.len();
        let mut batch = qp.batch();
        for (n, (from, to)) in (1..).zip(&reads) {
            batch.push(Read::new(*from, *to).signaled(n == last))?;
        }
        self.post(batch)?;
        self.complete().map(drop)?;
        reads.iter().map(|(_, to)| Ok(to.to_vec()?)).collect()
    }

    /// Returns what requests borrow.
    fn parts(&self) -> (Qp<Rc>, Buffer) {
        (self.qp.clone(), self.buffer.clone())
    }

    /// Posts a list, and sleeps until there is a completion, by one call.
    fn post(&mut self, mut batch: QpBatch<'_, Rc>) -> Result<()> {
        if let Some(cause) = self.broken.clone() {
            return Err(self.gone(cause));
        }
        self.round_trips += 1;
        match batch.submit_and_wait(1, TICK) {
            Ok(_) | Err(rust_ulp::Error::Timeout { .. }) => Ok(()),
            Err(error) => Err(self.gone(error)),
        }
    }

    /// Reads a part in two halves. Between them the first one is read again until it has changed.
    fn stall(&mut self, (at, len): (u64, usize)) -> Result<Vec<u8>> {
        let half = len / 16 * 8;
        let first = self.read_list(&[(at, half)])?.concat();
        // Not for so many reads: the writers may get no CPU for longer than those take.
        let begin = Instant::now();
        while begin.elapsed() < MOMENT && self.read_list(&[(at, half)])?.concat() == first {}
        let second = self.read_list(&[(at + half as u64, len - half)])?.concat();
        Ok([first, second].concat())
    }

    /// Stops for good if the test wants it here.
    fn halt(&mut self) {
        if let Some(left) = &mut self.faults.halt {
            *left = left.saturating_sub(1);
            if *left == 0 {
                eprintln!("stopped within a change");
                loop {
                    std::thread::park();
                }
            }
        }
    }

    // --- messages

    fn receive(&self, n: usize, messages: usize) -> Result<()> {
        let at = AREA + ROOM + WINDOW * messages + n * ANSWER;
        let recv = Recv::new(self.buffer.slice(at..at + ANSWER)?).wr_id(n as u64);
        Ok(self.qp.post_recv(recv)?)
    }

    /// Sends at most [`WINDOW`] changes, and takes the answers.
    fn send(&mut self, changes: &[Change<'_>], len: usize) -> Result<Vec<Result<Option<Place>>>> {
        let (qp, buffer) = self.parts();
        let first = self.number;
        let mut sends = Vec::new();
        for (number, change) in (first..).zip(changes) {
            let bytes = change.encode(number);
            let at = AREA + ROOM + number as usize % WINDOW * len;
            self.buffer.write_at(at, &bytes)?;
            // The answer shows that the server has it.
            sends.push(buffer.slice(at..at + bytes.len())?);
            self.number = self.number.wrapping_add(1);
        }
        let mut batch = qp.batch();
        for send in sends {
            batch.push(Send::new(send).signaled(false))?;
        }
        self.post(batch)?;
        let mut answers: Vec<_> = changes.iter().map(|_| None).collect();
        for _ in changes {
            let completion = self.complete()?;
            if completion.opcode != Opcode::Recv || completion.byte_len as usize != ANSWER {
                return Err(self.gone("it sends something else"));
            }
            let lane = completion.wr_id as usize;
            let answer = AREA + ROOM + WINDOW * len + lane * ANSWER;
            let bytes = buffer.to_vec(answer..answer + ANSWER)?;
            let (number, answer) = decode_answer(&bytes);
            match answers.get_mut(number.wrapping_sub(first) as usize) {
                Some(place @ None) => *place = Some(answer),
                _ => return Err(self.gone("it answers what nobody sent")),
            }
            self.receive(lane, len)?;
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

impl Memory for Remote {
    fn read(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let mut read = Vec::with_capacity(parts.len());
        let mut rest = parts;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, len): &&(u64, usize)| {
                bytes += len.next_multiple_of(8);
                bytes <= ROOM
            };
            let count = rest.iter().take(LIST).take_while(fits).count().max(1);
            let (list, after) = rest.split_at(count);
            match self.faults.stall {
                true => {
                    for part in list {
                        read.push(match part.1 > BUCKET {
                            true => self.stall(*part)?,
                            false => self.read_list(&[*part])?.concat(),
                        });
                    }
                }
                false => read.extend(self.read_list(list)?),
            }
            rest = after;
        }
        Ok(read)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let (qp, buffer) = self.parts();
        buffer.write_at(AREA, bytes)?;
        let write = Write::new(
            buffer.slice(AREA..AREA + bytes.len())?,
            self.remote(at, bytes.len())?,
        );
        let mut batch = qp.batch();
        batch.push(write)?;
        self.post(batch)?;
        self.complete().map(drop)
    }

    fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64> {
        let (qp, buffer) = self.parts();
        let swap = CompareSwap::new(self.remote(at, 8)?, old, new, buffer.slice(..8)?);
        let mut batch = qp.batch();
        batch.push(swap)?;
        self.post(batch)?;
        self.complete().map(drop)?;
        Ok(self.buffer.load_u64(0, Ordering::Acquire)?)
    }

    fn add(&mut self, at: u64, n: u64) -> Result<u64> {
        let (qp, buffer) = self.parts();
        let add = FetchAdd::new(self.remote(at, 8)?, n, buffer.slice(..8)?);
        let mut batch = qp.batch();
        batch.push(add)?;
        self.post(batch)?;
        self.complete().map(drop)?;
        Ok(self.buffer.load_u64(0, Ordering::Acquire)?)
    }

    /// By one list. Its last completion covers both.
    fn replace(&mut self, at: u64, bytes: &[u8], word_at: u64, old: u64) -> Result<()> {
        let (qp, buffer) = self.parts();
        buffer.write_at(AREA, bytes)?;
        let write = Write::new(
            buffer.slice(AREA..AREA + bytes.len())?,
            self.remote(at, bytes.len())?,
        );
        let clear = CompareSwap::new(self.remote(word_at, 8)?, old, 0, buffer.slice(..8)?);
        let mut batch = qp.batch();
        batch.push(write.signaled(false))?;
        batch.push(clear)?;
        self.post(batch)?;
        self.complete().map(drop)?;
        self.halt();
        Ok(())
    }
}

/// Returns the bytes under each key but the last, which are whole pages.
fn segment_of(grants: &[RemoteSlice]) -> u64 {
    let first = grants.first().map_or(0, RemoteSlice::len);
    // A server may say anything.
    first.clamp(1, MAX_MEMORY).next_multiple_of(4096)
}

/// A connection to a server, and what is known of its keys.
struct Link {
    table: Table<Remote>,
    places: HashMap<Vec<u8>, Place>,
}

impl Link {
    fn connect(device: &Device, name: &str, faults: Faults) -> Result<Self> {
        let unreachable = |error: rust_ulp::Error| Error::Unreachable {
            server: name.to_owned(),
            cause: error.to_string(),
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2 * LIST as u32)?);
        let qp = pd
            .qp_builder::<Rc>(&cq)
            .max_send_wr(LIST as u32)
            .max_recv_wr(WINDOW as u32)
            .timeout(AckTimeout::at_least(Duration::from_secs(1)))
            .retry_cnt(Retries::new(5)?)
            .rnr_retry(RnrRetries::FOREVER)
            .build()?;
        let options = TcpOptions::new().timeout(PATIENCE);
        let connected = qp.connect_tcp_with(name, &[], options);
        let (qp, peer) = connected.map_err(|error| unreachable(error.into()))?;
        let len: u64 = peer
            .grants
            .iter()
            .map(RemoteSlice::len)
            .fold(0, u64::saturating_add);
        let segment = segment_of(&peer.grants);
        let mut remote = Remote {
            name: name.to_owned(),
            qp,
            cq,
            peer,
            buffer: pd.alloc_buffer(AREA + ROOM)?,
            segment,
            broken: None,
            number: 0,
            round_trips: 0,
            faults,
        };
        let head = remote.read(&[(0, 32)])?.concat();
        let geometry = Geometry::decode(&head, len, remote.segment)?;
        if geometry.mode == Mode::Message {
            let messages = message_len(geometry.max_value);
            remote.buffer = pd.alloc_buffer(AREA + ROOM + WINDOW * (messages + ANSWER))?;
            (0..WINDOW).try_for_each(|n| remote.receive(n, messages))?;
        }
        let mut table = Table::new(remote, geometry, geometry.mode == Mode::OneSided);
        table.verify = !faults.unverified;
        let places = HashMap::new();
        Ok(Self { table, places })
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        self.places.get(key).copied()
    }

    fn remember(&mut self, key: &[u8], place: Place) {
        // A server may answer anything.
        if self.table.geometry().is_sound(place.slot) {
            if self.places.len() >= PLACES {
                self.places.clear();
            }
            self.places.insert(key.to_vec(), place);
        }
    }

    fn get(&mut self, keys: &[&[u8]]) -> Result<Vec<Result<Option<Vec<u8>>>>> {
        let wanted: Vec<_> = keys.iter().map(|key| (*key, self.place(key))).collect();
        let found = self.table.find(&wanted)?;
        let value = |(key, found): (&&[u8], Result<Found>)| {
            Ok(match found? {
                Found::Key(place, value) => {
                    self.remember(key, place);
                    value
                }
                Found::Empty(_) | Found::Full => None,
            })
        };
        Ok(keys.iter().zip(found).map(value).collect())
    }

    fn change(&mut self, changes: &[Change<'_>]) -> Result<Vec<Result<bool>>> {
        let geometry = *self.table.geometry();
        let max = geometry.max_value as usize;
        let values = changes.iter().filter_map(|change| change.value);
        let longest = values.map(<[u8]>::len).max();
        if let Some(len) = longest.filter(|len| *len > max) {
            let refused = changes.iter().map(|_| Err(Error::TooLarge { len, max }));
            return Ok(refused.collect());
        }
        let mut done: Vec<Result<bool>> = Vec::new();
        match geometry.mode {
            Mode::OneSided => {
                for change in changes {
                    let place = match change.value {
                        Some(value) => {
                            let place = self.place(change.key);
                            self.table.put(change.key, value, place).map(Some)
                        }
                        None => self.table.delete(change.key),
                    };
                    done.push(self.changed(change.key, place));
                }
            }
            Mode::Message => {
                for some in changes.chunks(WINDOW) {
                    let len = message_len(geometry.max_value);
                    let answers = self.table.memory.send(some, len)?;
                    for (change, place) in some.iter().zip(answers) {
                        done.push(self.changed(change.key, place));
                    }
                }
            }
        }
        Ok(done)
    }

    fn changed(&mut self, key: &[u8], place: Result<Option<Place>>) -> Result<bool> {
        let place = place?;
        if let Some(place) = place {
            self.remember(key, place);
        }
        Ok(place.is_some())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // What cannot be given back is lost to the server.
        let _ = self.table.share_all();
    }
}

/// A client of one or more servers. A hash of a key and their names chooses its server.
pub struct Store {
    device: Device,
    names: Vec<String>,
    links: Vec<Option<Link>>,
    faults: Faults,
    /// Of the connections that are gone.
    past: Stats,
}

impl Store {
    /// Connects to servers, HOST:PORT. All clients must name the same ones by the same words.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Corrupt`], [`Error::Rdma`].
    pub fn connect(names: &[String], device: Option<&str>, faults: Faults) -> Result<Self> {
        let device = match device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let links = names
            .iter()
            .map(|name| Link::connect(&device, name, faults).map(Some));
        Ok(Self {
            links: links.collect::<Result<_>>()?,
            names: names.to_vec(),
            device,
            faults,
            past: Stats::default(),
        })
    }

    fn server_of(&self, key: &[u8]) -> usize {
        let weight = |name: &String| {
            XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(name.as_bytes()), key)
        };
        let names = self.names.iter().enumerate();
        names
            .max_by_key(|(_, name)| weight(name))
            .map_or(0, |(n, _)| n)
    }

    /// Carries out `act` at a server. After a failure there is no connection.
    fn at<T>(&mut self, server: usize, act: impl FnOnce(&mut Link) -> Result<T>) -> Result<T> {
        let (Some(name), Some(place)) = (self.names.get(server), self.links.get_mut(server)) else {
            return Err(Error::Corrupt("there is no server"));
        };
        let link = match place {
            Some(link) => link,
            None => {
                self.past.reconnects += 1;
                place.insert(Link::connect(&self.device, name, self.faults)?)
            }
        };
        let done = act(link);
        if link.table.memory.broken.is_some() {
            self.past.round_trips += link.table.memory.round_trips;
            self.past.torn += link.table.torn;
            *place = None;
        }
        done
    }

    /// Groups what is to be done by servers, and returns the results in the order of `items`.
    fn each<I: Copy, T>(
        &mut self,
        items: &[I],
        key: impl Fn(&I) -> &[u8],
        act: impl Fn(&mut Link, &[I]) -> Result<Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let mut results: Vec<Option<Result<T>>> = items.iter().map(|_| None).collect();
        for server in 0..self.names.len() {
            let is_here = |n: &usize| {
                items
                    .get(*n)
                    .is_some_and(|item| self.server_of(key(item)) == server)
            };
            let here: Vec<usize> = (0..items.len()).filter(is_here).collect();
            let some: Vec<I> = here.iter().filter_map(|n| items.get(*n).copied()).collect();
            if some.is_empty() {
                continue;
            }
            let done = self.at(server, |link| act(link, &some));
            let all: Vec<Result<T>> = match done {
                Ok(all) => all,
                Err(error) => {
                    let name = self.names.get(server).cloned().unwrap_or_default();
                    some.iter().map(|_| Err(again(&error, &name))).collect()
                }
            };
            for (n, result) in here.into_iter().zip(all) {
                if let Some(place) = results.get_mut(n) {
                    *place = Some(result);
                }
            }
        }
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or(Err(Error::Contended)))
            .collect()
    }

    /// Returns the values of keys. Each is what the key had at some time during the call.
    pub fn get(&mut self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>>> {
        self.each(keys, |key| key, Link::get)
    }

    /// Makes changes. Returns for each whether the key has a value then, or had one before a delete.
    pub fn change(&mut self, changes: &[Change<'_>]) -> Vec<Result<bool>> {
        let bad = |change: &Change<'_>| !(1..=MAX_KEY).contains(&change.key.len());
        if let Some(change) = changes.iter().find(|change| bad(change)) {
            let len = change.key.len();
            return changes.iter().map(|_| Err(Error::Key(len))).collect();
        }
        self.each(changes, |change| change.key, Link::change)
    }

    /// Breaks the connection to a key's server, as an error of the network does.
    pub fn break_link(&mut self, key: &[u8]) -> Result<()> {
        let server = self.server_of(key);
        match self.links.get(server) {
            Some(Some(link)) => Ok(link
                .table
                .memory
                .qp
                .modify(QpAttr::to(QpState::Err))
                .map(drop)?),
            _ => Ok(()),
        }
    }

    /// Returns what it has met.
    pub fn stats(&self) -> Stats {
        let links = self.links.iter().flatten();
        links.fold(self.past, |past, link| Stats {
            round_trips: past.round_trips + link.table.memory.round_trips,
            torn: past.torn + link.table.torn,
            ..past
        })
    }
}

/// Returns an error for one more operation.
fn again(error: &Error, server: &str) -> Error {
    let (server, cause) = (server.to_owned(), error.to_string());
    match error {
        Error::Unreachable { cause, .. } => Error::Unreachable {
            server,
            cause: cause.clone(),
        },
        Error::Gone { cause, .. } => Error::Gone {
            server,
            cause: cause.clone(),
        },
        Error::Corrupt(what) => Error::Corrupt(what),
        Error::Contended => Error::Contended,
        _ => Error::Gone { server, cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_at_least_a_page_whatever_the_server_grants() {
        for (len, want) in [
            (None, 4096),
            (Some(0), 4096),
            (Some(4097), 8192),
            (Some(2 << 20), 2 << 20),
            (Some(MAX_MEMORY), MAX_MEMORY),
            (Some(u64::MAX - 4095), MAX_MEMORY),
            (Some(u64::MAX), MAX_MEMORY),
        ] {
            let grants = len.map(|len| RemoteSlice::new(0, len, 1).unwrap());
            let grants: Vec<_> = grants.into_iter().collect();
            assert_eq!(segment_of(&grants), want, "{len:?}");
        }
    }
}
