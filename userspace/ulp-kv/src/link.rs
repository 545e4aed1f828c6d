// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client's connection to one server, and the operations that are under way on it.
//!
//! Each operation has a lane: memory for what it reads. A step of an operation is a few Reads, of
//! which the last one completes, or a message to the server that has the requests of several
//! operations. [`Store`](crate::Store) posts the steps of all lanes together.

use crate::control::{
    is_proved, proof, Control, FromClient, FromServer, Members, Nonce, Welcome, MAX_SEGMENTS,
    VERSION,
};
use crate::error::{Error, Result};
use crate::layout::{self, decode, Bucket, Found, Geometry, Slot, BUCKET_LEN};
use crate::lookup::{Lookup, Want};
use crate::service::LARGE;
use crate::wire::{self, Answer, Ask, Header, Request, Status};
use crate::{Op, Options, Outcome, Stats, Value};
use rand::{rngs::SmallRng, Rng, RngExt};
use rust_ulp::qp::{AckTimeout, Rc, Retries, RnrRetries};
use rust_ulp::wr::{Read, Recv, Send};
use rust_ulp::{Buffer, Completion, Cq, Device, DeviceBatch, LocalSlice, Qp, RemoteSlice};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Operations that a client may have under way on one connection.
pub const MAX_DEPTH: usize = 64;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
const HELLO: Duration = Duration::from_secs(30);
/// Bytes of a message that a client accepts from a server or is to send, at most.
const MAX_MESSAGE: u32 = 1 << 20;
/// Messages to a server that are under way, at most.
const MAX_WINDOW: u32 = 16;
/// How often buckets are read again at once when a key is being changed; then after a pause.
const AT_ONCE: u32 = 3;
/// How often a list looks at buckets that have changed.
const LIST_PASSES: u32 = 8;

/// Bytes of a lane before the record: two buckets, and the epoch.
const BUCKETS: usize = 2 * BUCKET_LEN;
const RECORD: usize = BUCKETS + 64;

/// What a request is, in its `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read = 1,
    Send = 2,
    Answer = 3,
}

/// A request that waits to be posted.
#[derive(Debug)]
enum Post {
    Read(Read<'static>),
    Send(Send<'static>),
    Recv(Recv<'static>),
}

/// What an operation waits for.
#[derive(Debug)]
enum State {
    /// To be posted.
    Ready,
    /// The answer to a message.
    Asked,
    /// A get that reads the server's memory: for what it wants.
    Reading(Lookup, Want),
}

/// An operation under way.
#[derive(Debug)]
struct Lane {
    /// Which operation of the run.
    op: usize,
    hash: u64,
    begin: Instant,
    state: State,
    /// The second half of the record, while a get waits for a change of it; then empty.
    second_half: Option<Vec<u8>>,
    /// The sequence of a write; 0 for a get.
    sequence: u64,
    /// The epoch of the list of members that named this server.
    epoch: u64,
    tries: u32,
    /// When a paused lookup goes on.
    wake: Option<Instant>,
}

/// What a run begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Which operation of the run.
    pub op: usize,
    /// The number of a write among those of its client; 0 for a get.
    pub sequence: u64,
    /// The epoch of the list of members that named this server.
    pub epoch: u64,
    /// When the operation began.
    pub begin: Instant,
}

/// What a completion means for an operation.
#[derive(Debug)]
pub enum Event {
    /// Nothing yet.
    Nothing,
    /// The operation is over.
    Finished(usize, Result<Outcome>),
    /// The operation is to begin again: its server has another list of members.
    Epoch(usize),
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    /// The server, HOST:PORT.
    pub name: String,
    serial: u32,
    options: Options,
    qp: Qp<Rc>,
    buffer: Buffer,
    lane_len: usize,
    lanes: Vec<Option<Lane>>,
    /// Lanes that are free.
    free: Vec<usize>,
    /// Lanes that are to be posted.
    ready: VecDeque<usize>,
    /// The lanes of the messages under way, in the order of their requests. A message has the place
    /// that its number says.
    messages: Vec<Vec<usize>>,
    /// The lanes of the message that is being made.
    open: Vec<usize>,
    /// The number of the next message.
    number: u32,
    /// Bytes of a message, and of its answer, at most.
    message_len: usize,
    answer_len: usize,
    /// The bytes of a message, and of an answer or a Read.
    scratch: (Vec<u8>, Vec<u8>),
    geometry: Geometry,
    segments: Vec<RemoteSlice>,
    control: Control,
    /// Of this run of the server.
    pub run: u64,
    /// The server has the replies to what this client asked before.
    pub known: bool,
    /// The members, as the server knew them when this connected.
    pub members: Members,
    /// Where keys were seen, by their hashes.
    cache: Vec<(u64, Slot)>,
    posts: Vec<Post>,
    /// Lookups that have paused.
    paused: usize,
    /// Steps that are under way.
    pub under_way: u32,
    random: SmallRng,
    /// What happened here.
    pub stats: Stats,
}

impl Link {
    /// Connects to `name`, which is HOST:PORT. `client` is the same for all connections of a client,
    /// `serial` of none.
    pub fn connect(
        name: &str,
        (client, serial): (u64, u32),
        device: &Device,
        cq: &Cq,
        options: &Options,
    ) -> Result<Self> {
        let unreachable = |cause| Error::Unreachable {
            server: name.to_owned(),
            cause,
        };
        let corrupt = |what: &str| Error::Corrupt {
            server: name.to_owned(),
            what: what.to_owned(),
        };
        let refused = |what: &str| Error::Refused {
            server: name.to_owned(),
            what: what.to_owned(),
        };
        let talked = |error: std::io::Error| match error.kind() {
            ErrorKind::InvalidData => corrupt("it does not speak this protocol"),
            _ => unreachable(error),
        };
        let mut tried = Err(ErrorKind::AddrNotAvailable.into());
        for addr in name.to_socket_addrs().map_err(unreachable)? {
            tried = TcpStream::connect_timeout(&addr, CONNECT);
            if tried.is_ok() {
                break;
            }
        }
        let mut control = tried.and_then(Control::new).map_err(unreachable)?;
        let theirs = match control.receive_within(HELLO).map_err(talked)? {
            FromServer::Challenge {
                version: VERSION,
                nonce,
            } => nonce,
            FromServer::Challenge { version, .. } => {
                return Err(refused(&format!(
                    "it speaks version {version}, this client {VERSION}; install the same version on both"
                )));
            }
            FromServer::Refused(what) => return Err(refused(&what)),
            _ => return Err(corrupt("an answer out of turn")),
        };
        let pd = device.alloc_pd()?;
        let qp = pd
            .qp_builder::<Rc>(cq)
            .max_send_wr(4 * MAX_DEPTH as u32)
            .max_recv_wr(MAX_WINDOW)
            // A server that vanished is noticed after some seconds.
            .timeout(AckTimeout::at_least(Duration::from_secs(1)))
            .retry_cnt(Retries::new(5)?)
            // One with more requests than it has receives takes them a moment later.
            .rnr_retry(RnrRetries::FOREVER)
            .build()?;
        let mut random: SmallRng = rand::make_rng();
        let nonce: Nonce = [random.next_u64(), random.next_u64()];
        let (secret, nonces) = (options.secret.as_deref(), [nonce, theirs]);
        let end = qp.endpoint().into();
        let hello = FromClient::Hello {
            version: VERSION,
            client,
            nonce,
            proof: proof(secret, "client", nonces, &end),
            end,
        };
        control.send(&hello).map_err(unreachable)?;
        let welcome: Welcome = match control.receive_within(HELLO).map_err(talked)? {
            FromServer::Welcome(welcome) => *welcome,
            FromServer::Refused(what) => return Err(refused(&what)),
            _ => return Err(corrupt("an answer out of turn")),
        };
        if !is_proved(&welcome.proof, secret, "server", nonces, &welcome.end) {
            return Err(refused(
                "this server does not have the client's secret; is it the right one?",
            ));
        }
        let end = welcome.end.endpoint();
        let end = end.ok_or_else(|| corrupt("its end of the connection"))?;
        let geometry = welcome.geometry;
        if welcome.segments.is_empty()
            || welcome.segments.len() > MAX_SEGMENTS
            || welcome.window == 0
            || welcome.request.max(welcome.answer) > MAX_MESSAGE
        {
            return Err(corrupt("its welcome"));
        }
        geometry
            .check()
            .map_err(|_| corrupt("a table that its memory cannot have"))?;
        let segments = welcome.segments.iter().map(|segment| segment.remote());
        let segments: Option<Vec<_>> = segments.collect();
        let segments = segments.ok_or_else(|| corrupt("the address of its memory"))?;
        let (message_len, answer_len) = (welcome.request as usize, welcome.answer as usize);
        if message_len < wire::message_len(geometry.max_value)
            || answer_len < wire::ANSWERS_HEADER + wire::MAX_COUNT * wire::ANSWER_MOST
        {
            return Err(corrupt("the sizes of its messages"));
        }
        let depth = options.depth.clamp(1, MAX_DEPTH);
        let window = welcome.window.min(MAX_WINDOW) as usize;
        let lane_len = RECORD + geometry.max_record().next_multiple_of(64);
        let message_len = message_len.next_multiple_of(64);
        let answer_len = answer_len.next_multiple_of(64);
        let len = depth * lane_len + window * (message_len + answer_len);
        let buffer = pd.alloc_buffer(len)?;
        let mut link = Self {
            name: name.to_owned(),
            serial,
            options: options.clone(),
            qp: qp.connect(end)?,
            buffer,
            lane_len,
            lanes: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            ready: VecDeque::with_capacity(depth),
            messages: vec![Vec::new(); window],
            open: Vec::new(),
            number: 0,
            message_len,
            answer_len,
            scratch: (Vec::new(), Vec::new()),
            geometry,
            segments,
            control,
            run: welcome.run,
            known: welcome.known,
            members: welcome.members,
            cache: vec![(0, Slot::EMPTY); options.cache],
            posts: Vec::new(),
            paused: 0,
            under_way: 0,
            random,
            stats: Stats::default(),
        };
        for n in 0..window {
            link.post_recv(n)?;
        }
        Ok(link)
    }

    fn corrupt(&self, what: &str) -> Error {
        Error::Corrupt {
            server: self.name.clone(),
            what: what.to_owned(),
        }
    }

    /// Returns the error of an operation that a broken connection ended.
    pub fn gone(&self, why: &str) -> Error {
        Error::Gone {
            server: self.name.clone(),
            why: why.to_owned(),
        }
    }

    // --- memory -----------------------------------------------------------------------

    /// Returns the server's memory, if it says that it has that.
    fn remote(&self, offset: u64, len: usize) -> Result<RemoteSlice> {
        let (n, at) = (
            offset / self.geometry.segment,
            offset % self.geometry.segment,
        );
        let segment = usize::try_from(n).ok().and_then(|n| self.segments.get(n));
        let part =
            segment.and_then(|segment| segment.slice(at..at.saturating_add(len as u64)).ok());
        part.ok_or_else(|| self.corrupt("its table goes beyond its memory"))
    }

    /// Returns memory of a lane.
    fn local(&self, lane: usize, offset: usize, len: usize) -> Result<LocalSlice> {
        let start = (lane % self.lanes.len()) * self.lane_len + offset;
        Ok(self.buffer.slice(start..start + len)?)
    }

    /// Copies memory of a lane into the first bytes of `bytes`, which keeps its memory.
    fn copy<'a>(
        &self,
        lane: usize,
        (offset, len): (usize, usize),
        bytes: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        let memory = self.local(lane, offset, len)?;
        self.buffer.read_at(memory.offset(), bytes)?;
        Ok(bytes)
    }

    fn bytes(&self, lane: usize, offset: usize, len: usize) -> Result<Vec<u8>> {
        Ok(self.local(lane, offset, len)?.to_vec()?)
    }

    /// Returns the memory of a message.
    fn message(&self, n: usize, len: usize) -> Result<LocalSlice> {
        let start = self.lanes.len() * self.lane_len + n * self.message_len;
        Ok(self.buffer.slice(start..start + len)?)
    }

    /// Returns where an answer is.
    fn answer_at(&self, n: usize) -> usize {
        let before = self.lanes.len() * self.lane_len + self.messages.len() * self.message_len;
        before + n * self.answer_len
    }

    // --- requests ---------------------------------------------------------------------

    fn wr_id(&self, kind: Kind, n: usize) -> u64 {
        (u64::from(self.serial) << 32) | ((kind as u64) << 24) | n as u64
    }

    /// Returns the serial of the connection that a `wr_id` is of.
    pub fn serial_of(wr_id: u64) -> u32 {
        (wr_id >> 32) as u32
    }

    /// Returns whether this is the connection with that serial.
    pub fn is_serial(&self, serial: u32) -> bool {
        self.serial == serial
    }

    fn post_recv(&mut self, n: usize) -> Result<()> {
        let start = self.answer_at(n);
        let memory = self.buffer.slice(start..start + self.answer_len)?;
        let recv = Recv::new(memory).wr_id(self.wr_id(Kind::Answer, n));
        self.posts.push(Post::Recv(recv));
        Ok(())
    }

    /// Adds reads of which the last one completes the step of a lane.
    fn post_reads(&mut self, lane: usize, reads: &[(u64, usize, usize)]) -> Result<()> {
        let id = self.wr_id(Kind::Read, lane);
        for (n, (offset, len, to)) in reads.iter().enumerate() {
            let read = Read::new(self.remote(*offset, *len)?, self.local(lane, *to, *len)?);
            let read = read.wr_id(id).signaled(n + 1 == reads.len());
            self.posts.push(Post::Read(read));
        }
        self.under_way += 1;
        self.stats.round_trips += 1;
        Ok(())
    }

    /// Moves the requests that wait into a batch, as long as it has room.
    pub fn post(&mut self, batch: &mut DeviceBatch<'_>, room: usize) -> Result<()> {
        let count = self.posts.len().min(room.saturating_sub(batch.len()));
        for post in self.posts.drain(..count) {
            match post {
                Post::Read(read) => batch.push(&self.qp, read)?,
                Post::Send(send) => batch.push(&self.qp, send)?,
                Post::Recv(recv) => batch.push(&self.qp, recv)?,
            }
        }
        Ok(())
    }

    // --- operations -------------------------------------------------------------------

    /// Returns whether there is room for another operation.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.lanes.len()
    }

    /// Begins an operation, if there is room.
    pub fn start(&mut self, op: &Op<'_>, start: &Start) -> Result<()> {
        let most = self.geometry.max_value as usize;
        if let Op::Put { value, .. } | Op::Move { value, .. } = op {
            if value.len() > most {
                return Err(Error::TooLarge {
                    len: value.len(),
                    max: most,
                    server: self.name.clone(),
                });
            }
        }
        let Some(lane) = self.free.pop() else {
            return Ok(());
        };
        let new = Lane {
            op: start.op,
            hash: layout::hash(op.key()),
            begin: start.begin,
            state: State::Ready,
            second_half: None,
            sequence: start.sequence,
            epoch: start.epoch,
            tries: 0,
            wake: None,
        };
        if let Some(place) = self.lanes.get_mut(lane) {
            *place = Some(new);
        }
        self.ready.push_back(lane);
        Ok(())
    }

    /// Ends what is under way in a lane.
    fn end(&mut self, lane: usize) -> Option<Lane> {
        let ended = self.lanes.get_mut(lane)?.take()?;
        self.free.push(lane);
        Some(ended)
    }

    /// Turns what is ready into requests to be posted. `done` is as in [`Header`].
    ///
    /// A get alone, or of a value that is known to be long, reads the server's memory. All the rest
    /// goes into messages: a Read is two packets for each get, a message two for all.
    pub fn gather(&mut self, ops: &[Op<'_>], done: u64) -> Result<()> {
        let is_alone = self.ready.len() == 1;
        let mut bytes = std::mem::take(&mut self.scratch.0);
        let gathered = self.gather_into(&mut bytes, ops, done, is_alone);
        self.scratch.0 = bytes;
        gathered
    }

    fn gather_into(
        &mut self,
        bytes: &mut Vec<u8>,
        ops: &[Op<'_>],
        done: u64,
        is_alone: bool,
    ) -> Result<()> {
        bytes.clear();
        let (mut answer, mut epoch) = (wire::ANSWERS_HEADER, 0);
        while let Some(lane) = self.ready.front().copied() {
            let Some(Some(Lane {
                op,
                hash,
                sequence,
                epoch: of,
                ..
            })) = self.lanes.get(lane)
            else {
                self.ready.pop_front();
                continue;
            };
            let (hash, sequence, of) = (*hash, *sequence, *of);
            let Some(op) = ops.get(*op) else {
                self.ready.pop_front();
                continue;
            };
            let mut most = wire::ANSWER_MOST;
            let ask = match op.write() {
                Some((condition, write)) => Ask::Write(Request {
                    sequence,
                    condition,
                    key: op.key(),
                    write,
                }),
                None => {
                    let cached = self.cached(hash);
                    let len = cached.map_or(0, Slot::len);
                    if is_alone || len > LARGE || self.options.stall {
                        self.ready.pop_front();
                        self.look_up(lane, cached)?;
                        continue;
                    }
                    most += len;
                    Ask::Get(op.key())
                }
            };
            // One that is alone always fits.
            let is_full = !bytes.is_empty()
                && (of != epoch
                    || bytes.len() + ask.len() > self.message_len
                    || answer + most > self.answer_len
                    || self.open.len() >= wire::MAX_COUNT);
            if is_full {
                self.post_message(bytes, done, epoch)?;
                answer = wire::ANSWERS_HEADER;
            }
            if bytes.is_empty() {
                let place = self.messages.get(self.place());
                if place.is_none_or(|lanes| !lanes.is_empty()) {
                    // The server has not answered so many others.
                    return Ok(());
                }
                epoch = of;
                bytes.resize(wire::HEADER, 0);
            }
            self.ready.pop_front();
            answer += most;
            ask.encode(bytes);
            self.open.push(lane);
            if let Some(Some(lane)) = self.lanes.get_mut(lane) {
                lane.state = State::Asked;
            }
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.post_message(bytes, done, epoch)
    }

    /// Returns the place of the next message.
    fn place(&self) -> usize {
        // There is one at least.
        self.number as usize % self.messages.len().max(1)
    }

    /// Adds a message, of which everything but the header is in `bytes`.
    fn post_message(&mut self, bytes: &mut Vec<u8>, done: u64, epoch: u64) -> Result<()> {
        let header = Header {
            number: self.number,
            // At most `MAX_COUNT`.
            count: self.open.len() as u32,
            done,
            epoch,
        };
        if let Some(head) = bytes.first_chunk_mut() {
            *head = header.encode();
        }
        let place = self.place();
        let memory = self.message(place, bytes.len())?;
        self.buffer.write_at(memory.offset(), bytes)?;
        // The answer shows that the server has it.
        let id = self.wr_id(Kind::Send, place);
        let send = Send::new(memory).wr_id(id).signaled(false);
        self.posts.push(Post::Send(send));
        if let Some(lanes) = self.messages.get_mut(place) {
            // The one that was there is empty.
            std::mem::swap(lanes, &mut self.open);
        }
        self.number = self.number.wrapping_add(1);
        self.under_way += 1;
        self.stats.round_trips += 1;
        bytes.clear();
        Ok(())
    }

    /// Begins to look a key up in the server's memory.
    fn look_up(&mut self, lane: usize, cached: Option<Slot>) -> Result<()> {
        let Some(Some(Lane { hash, state, .. })) = self.lanes.get_mut(lane) else {
            return Ok(());
        };
        let (lookup, want) = Lookup::begin(*hash, cached);
        *state = State::Reading(lookup, Want::Nothing);
        // It wants to read.
        self.want(lane, want).map(drop)
    }

    fn cached(&self, hash: u64) -> Option<Slot> {
        let (of, slot) = self.cache.get(self.cache_index(hash)?)?;
        (*of == hash && !slot.is_empty()).then_some(*slot)
    }

    fn cache_index(&self, hash: u64) -> Option<usize> {
        (hash as usize).checked_rem(self.cache.len())
    }

    fn remember(&mut self, hash: u64, slot: Slot) {
        let index = self.cache_index(hash);
        if let Some(place) = index.and_then(|index| self.cache.get_mut(index)) {
            *place = (hash, slot);
        }
    }

    /// Does what a lookup wants.
    fn want(&mut self, lane: usize, want: Want) -> Result<Event> {
        let Some(Some(Lane {
            op,
            hash,
            begin,
            tries,
            state: State::Reading(lookup, state),
            wake,
            ..
        })) = self.lanes.get_mut(lane)
        else {
            return Ok(Event::Nothing);
        };
        let (op, hash) = (*op, *hash);
        if want.is_read() {
            *state = want.clone();
        }
        let done = match want {
            Want::BucketsLater if *tries >= AT_ONCE => {
                if begin.elapsed() > self.options.patience {
                    Err(Error::Contended {
                        server: self.name.clone(),
                    })
                } else {
                    *tries += 1;
                    // A short while, longer each time, and never the same as others take.
                    let most = 20u64 << (*tries).min(8);
                    let pause = Duration::from_micros(self.random.random_range(0..=most));
                    *wake = Some(Instant::now() + pause);
                    self.paused += 1;
                    return Ok(Event::Nothing);
                }
            }
            Want::Buckets | Want::BucketsLater => {
                *tries += u32::from(want == Want::BucketsLater);
                let may_end = lookup.may_end();
                let (first, second) = self.geometry.buckets_of(hash);
                let reads = [
                    (self.geometry.bucket(first), BUCKET_LEN, 0),
                    (self.geometry.bucket(second), BUCKET_LEN, BUCKET_LEN),
                    (0, 8, BUCKETS),
                ];
                // The epoch matters only if nothing is found.
                let (buckets, _) = reads.split_at(2 + usize::from(may_end));
                self.post_reads(lane, buckets)?;
                return Ok(Event::Nothing);
            }
            Want::Record(slot) => {
                if slot.units() == 0 || slot.len() > self.geometry.max_record() {
                    Err(self.corrupt("a record of a length that none can have"))
                } else {
                    self.post_reads(lane, &[(slot.offset(), slot.len(), RECORD)])?;
                    return Ok(Event::Nothing);
                }
            }
            Want::Value(bytes, version, slot) => {
                self.remember(hash, slot);
                Ok(Outcome::Value(Some(Value { bytes, version })))
            }
            Want::Nothing => {
                self.remember(hash, Slot::EMPTY);
                Ok(Outcome::Value(None))
            }
            Want::Corrupt => Err(self.corrupt("a record that is not whole, and nobody writes it")),
        };
        self.end(lane);
        Ok(Event::Finished(op, done))
    }

    /// Continues the lookups that have paused long enough. Returns when the next one does.
    pub fn wake(&mut self) -> Result<Option<Instant>> {
        if self.paused == 0 {
            return Ok(None);
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for lane in 0..self.lanes.len() {
            let Some(Some(Lane { wake, .. })) = self.lanes.get_mut(lane) else {
                continue;
            };
            match *wake {
                Some(when) if when <= now => {
                    *wake = None;
                    self.paused -= 1;
                    self.want(lane, Want::Buckets)?;
                }
                Some(when) => next = Some(next.map_or(when, |next| next.min(when))),
                None => {}
            }
        }
        Ok(next)
    }

    /// Takes a completion of operations of `ops`, and calls `each` with what it means. `epoch` is
    /// that of the client's list of members.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub fn complete(
        &mut self,
        completion: &Completion,
        (epoch, ops): (u64, &[Op<'_>]),
        mut each: impl FnMut(Event),
    ) -> Result<()> {
        completion.check()?;
        let n = (completion.wr_id & 0xff_ffff) as usize;
        match (completion.wr_id >> 24) & 0xff {
            kind if kind == Kind::Read as u64 => {
                let mut bytes = std::mem::take(&mut self.scratch.1);
                let event = self.read_done(n, epoch, ops, &mut bytes);
                self.scratch.1 = bytes;
                each(event?);
            }
            kind if kind == Kind::Answer as u64 => {
                let mut bytes = std::mem::take(&mut self.scratch.1);
                let len = (completion.byte_len as usize).min(self.answer_len);
                let answered = self.answered(n, len, &mut bytes, ops, &mut each);
                self.scratch.1 = bytes;
                answered?;
            }
            _ => {}
        }
        Ok(())
    }

    fn read_done(
        &mut self,
        lane: usize,
        epoch: u64,
        ops: &[Op<'_>],
        bytes: &mut Vec<u8>,
    ) -> Result<Event> {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(Some(Lane {
            op,
            state: State::Reading(_, want),
            ..
        })) = self.lanes.get(lane)
        else {
            return Ok(Event::Nothing);
        };
        let (op, want) = (*op, want.clone());
        let key = ops.get(op).map_or(&[][..], Op::key);
        if self.options.stall && self.stall(lane, &want)? {
            return Ok(Event::Nothing);
        }
        let (buckets, bytes) = match want {
            Want::Record(slot) => (None, self.copy(lane, (RECORD, slot.len()), bytes)?),
            _ => {
                let bytes = self.copy(lane, (0, BUCKETS + 8), bytes)?;
                let (first, rest) = bytes.split_at(BUCKET_LEN.min(bytes.len()));
                let buckets = (Bucket::decode(first), Bucket::decode(rest));
                (Some(buckets), bytes)
            }
        };
        let Some(Some(Lane {
            state: State::Reading(lookup, _),
            ..
        })) = self.lanes.get_mut(lane)
        else {
            return Ok(Event::Nothing);
        };
        let before = lookup.retries;
        let next = match &buckets {
            Some((first, second)) => lookup.buckets(first, second),
            None => lookup.record(&self.geometry, key, bytes, self.options.verify),
        };
        self.stats.torn += lookup.retries - before;
        if next == Want::Nothing && bytes.get(BUCKETS..) != Some(&epoch.to_le_bytes()[..]) {
            // The key may be at another server by now.
            self.end(lane);
            return Ok(Event::Epoch(op));
        }
        self.want(lane, next)
    }

    /// Reads the second half of a record again until it has changed, once per operation. Returns
    /// whether it has not.
    fn stall(&mut self, lane: usize, want: &Want) -> Result<bool> {
        let Want::Record(slot) = want else {
            return Ok(false);
        };
        let half = slot.len() / 2;
        let (to, len) = (RECORD + half, slot.len() - half);
        let bytes = self.bytes(lane, to, len)?;
        let Some(Some(Lane {
            second_half, begin, ..
        })) = self.lanes.get_mut(lane)
        else {
            return Ok(false);
        };
        let seen = second_half.get_or_insert_with(|| bytes.clone());
        if *seen != bytes || begin.elapsed() > self.options.patience {
            seen.clear();
            return Ok(false);
        }
        self.post_reads(lane, &[(slot.offset() + half as u64, len, to)])?;
        Ok(true)
    }

    /// Takes the server's answer to a message.
    fn answered(
        &mut self,
        n: usize,
        len: usize,
        bytes: &mut Vec<u8>,
        ops: &[Op<'_>],
        each: &mut impl FnMut(Event),
    ) -> Result<()> {
        if bytes.len() < len {
            bytes.resize(self.answer_len, 0);
        }
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        self.buffer.read_at(self.answer_at(n), bytes)?;
        self.post_recv(n)?;
        let mut rest = &*bytes;
        // Answers arrive in the order of the messages, as the receives were posted.
        let head = wire::take_answers(&mut rest);
        let (number, count) = head.ok_or_else(|| self.corrupt("an answer that makes no sense"))?;
        let place = number as usize % self.messages.len().max(1);
        let asked = self.messages.get_mut(place).map(std::mem::take);
        let mut lanes = asked.unwrap_or_default();
        if place != n || lanes.is_empty() || lanes.len() != count as usize {
            return Err(self.corrupt("an answer to no message"));
        }
        self.under_way = self.under_way.saturating_sub(1);
        let mut done = Ok(());
        for lane in lanes.drain(..) {
            let event = match Answer::decode(&mut rest) {
                Some(answer) if done.is_ok() => self.answer(lane, &answer, ops),
                _ => Err(self.corrupt("an answer that makes no sense")),
            };
            match event {
                Ok(event) => each(event),
                Err(error) => done = Err(error),
            }
        }
        if let Some(place) = self.messages.get_mut(place) {
            // Its memory serves again.
            *place = lanes;
        }
        done
    }

    /// Takes the answer to an operation.
    fn answer(&mut self, lane: usize, answer: &Answer<'_>, ops: &[Op<'_>]) -> Result<Event> {
        let Some(Some(Lane { op, hash, .. })) = self.lanes.get(lane) else {
            return Ok(Event::Nothing);
        };
        let (n, hash, slot) = (*op, *hash, Slot(answer.slot));
        let Some(op) = ops.get(n) else {
            return Ok(Event::Nothing);
        };
        self.remember(hash, slot);
        let is_get = matches!(op, Op::Get { .. });
        if is_get && answer.status == Status::Large {
            self.look_up(lane, (!slot.is_empty()).then_some(slot))?;
            return Ok(Event::Nothing);
        }
        self.end(lane);
        let server = || self.name.clone();
        let version = (answer.version != 0).then_some(answer.version);
        let done = match (answer.status, op) {
            (Status::Epoch, _) => return Ok(Event::Epoch(n)),
            (Status::Done, Op::Get { .. }) => Ok(Outcome::Value(Some(Value {
                bytes: answer.data.to_vec(),
                version: answer.version,
            }))),
            (Status::Unmet, Op::Get { .. }) => Ok(Outcome::Value(None)),
            (Status::Done, Op::Add { .. }) => {
                let sum = answer.data.first_chunk();
                Ok(Outcome::Sum(sum.map_or(0, |sum| i64::from_le_bytes(*sum))))
            }
            (Status::Done, Op::Delete { .. }) => Ok(Outcome::Deleted(true)),
            (Status::Unmet, Op::Delete { .. }) => Ok(Outcome::Deleted(false)),
            (Status::Done, _) => Ok(Outcome::Written(answer.version)),
            (Status::Unmet, _) => Ok(Outcome::Unmet(version)),
            (Status::NoMemory, _) => Err(Error::Full {
                server: server(),
                of: "memory",
            }),
            (Status::NoSlot, _) => Err(Error::Full {
                server: server(),
                of: "slots",
            }),
            (Status::NoNumber, _) => Err(Error::NoNumber { server: server() }),
            (Status::Invalid | Status::Large, _) => {
                Err(self.corrupt("it does not understand a request"))
            }
            (Status::Forgotten, _) => {
                Err(self.gone("it has forgotten what became of this request"))
            }
        };
        Ok(Event::Finished(n, done))
    }

    /// Returns why the connection is to be given up, if it is: the server has hung up, or it does
    /// not answer a message. The adapter notices when Reads are not answered.
    pub fn trouble(&self) -> Option<String> {
        let mut lanes = self.lanes.iter().flatten();
        let reads = |lane: &Lane| matches!(lane.state, State::Reading(..));
        if lanes.any(|lane| !reads(lane) && lane.begin.elapsed() > self.options.patience) {
            return Some("it does not answer".to_owned());
        }
        (!self.is_idle() && self.control.is_over()).then(|| "it has hung up".to_owned())
    }

    /// Takes the operations that are under way, when the connection is broken.
    pub fn take_ops(&mut self) -> Vec<usize> {
        let lanes = self.lanes.iter_mut().filter_map(Option::take);
        lanes.map(|lane| lane.op).collect()
    }

    // --- other ------------------------------------------------------------------------

    /// Sends a message over the control connection and returns the answer.
    fn ask(&mut self, message: &FromClient) -> Result<FromServer> {
        let answer = self.control.send(message);
        match answer.and_then(|()| self.control.receive_within(HELLO)) {
            Ok(FromServer::Refused(what)) => Err(Error::Refused {
                server: self.name.clone(),
                what,
            }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.gone(&error.to_string())),
        }
    }

    /// Asks the server for the members.
    pub fn get_members(&mut self) -> Result<Members> {
        match self.ask(&FromClient::GetMembers)? {
            FromServer::Members(members) => Ok(members),
            _ => Err(self.corrupt("an answer out of turn")),
        }
    }

    /// Tells the server the members, as in [`FromClient::SetMembers`]. Returns the version that it
    /// gives next.
    pub fn set_members(
        &mut self,
        members: &Members,
        moving: bool,
        next_version: u64,
    ) -> Result<u64> {
        let message = FromClient::SetMembers {
            members: members.clone(),
            moving,
            next_version,
        };
        match self.ask(&message)? {
            FromServer::Changed { next_version } => Ok(next_version),
            _ => Err(self.corrupt("an answer out of turn")),
        }
    }

    /// Returns whether the server has hung up.
    pub fn is_over(&self) -> bool {
        self.control.is_over()
    }

    /// Returns the sizes of the server's table.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Ends the queue pair, as an error of the network does.
    #[cfg(feature = "test-hooks")]
    pub fn break_qp(&self) -> Result<()> {
        let error = rust_ulp::qp::QpAttr::to(rust_ulp::qp::QpState::Err);
        Ok(self.qp.modify(error).map(drop)?)
    }

    /// Reads parts of the server's memory, of at most a record each, while nothing is under way.
    fn read_all(&mut self, cq: &Cq, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::with_capacity(parts.len());
        for some in parts.chunks(self.lanes.len()) {
            let mut batch = self.qp.batch();
            for post in std::mem::take(&mut self.posts) {
                if let Post::Recv(recv) = post {
                    batch.push(recv)?;
                }
            }
            for (lane, (offset, len)) in some.iter().enumerate() {
                let read = Read::new(self.remote(*offset, *len)?, self.local(lane, RECORD, *len)?);
                batch.push(read.wr_id(self.wr_id(Kind::Read, lane)))?;
            }
            self.stats.round_trips += 1;
            let posted = batch
                .submit()
                .map_err(|error| self.gone(&error.to_string()))?;
            let mut left = some.len().min(posted);
            while left > 0 {
                let completion = cq.wait(self.options.patience)?;
                if Self::serial_of(completion.wr_id) != self.serial {
                    continue;
                }
                completion
                    .check()
                    .map_err(|error| self.gone(&error.to_string()))?;
                left -= usize::from((completion.wr_id >> 24) & 0xff == Kind::Read as u64);
            }
            for (lane, (_, len)) in some.iter().enumerate() {
                all.push(self.bytes(lane, RECORD, *len)?);
            }
        }
        Ok(all)
    }

    /// Returns all buckets.
    fn all_buckets(&mut self, cq: &Cq) -> Result<Vec<Bucket>> {
        let (mut at, end) = (
            self.geometry.bucket(0),
            self.geometry.bucket(self.geometry.buckets),
        );
        let most = self.geometry.max_record().min(4096) / BUCKET_LEN * BUCKET_LEN;
        let mut parts = Vec::new();
        while at < end {
            let border = (at / self.geometry.segment + 1) * self.geometry.segment;
            let len = (border.min(end) - at).min(most.max(BUCKET_LEN) as u64);
            parts.push((at, len as usize));
            at += len;
        }
        let bytes = self.read_all(cq, &parts)?.concat();
        Ok(bytes.chunks_exact(BUCKET_LEN).map(Bucket::decode).collect())
    }

    /// Returns all keys, each with the length of its value and the second at which it expires.
    pub fn list(&mut self, cq: &Cq) -> Result<BTreeMap<Vec<u8>, (usize, u32)>> {
        let mut keys = BTreeMap::new();
        let mut seen: Vec<Bucket> = Vec::new();
        // A key that moved during a pass is in a bucket that has changed.
        for _ in 0..LIST_PASSES {
            let buckets = self.all_buckets(cq)?;
            let is_new = |(n, bucket): &(usize, &Bucket)| {
                bucket.sequence.is_none() || seen.get(*n) != Some(*bucket)
            };
            let changed = buckets
                .iter()
                .enumerate()
                .filter(is_new)
                .map(|(_, bucket)| bucket);
            let slots = changed.flat_map(|bucket| bucket.slots);
            let slots: Vec<Slot> = slots.filter(|slot| !slot.is_empty()).collect();
            if slots.is_empty() && !seen.is_empty() {
                break;
            }
            let sound = |slot: &&Slot| (1..=self.geometry.max_record()).contains(&slot.len());
            let slots: Vec<Slot> = slots.iter().filter(sound).copied().collect();
            let parts: Vec<_> = slots
                .iter()
                .map(|slot| (slot.offset(), slot.len()))
                .collect();
            for (slot, bytes) in slots.iter().zip(self.read_all(cq, &parts)?) {
                if let Found::Valid(record) = decode(&self.geometry, slot.at(), &bytes, true) {
                    keys.insert(record.key.to_vec(), (record.value.len(), record.expires));
                }
            }
            seen = buckets;
        }
        Ok(keys)
    }
}
