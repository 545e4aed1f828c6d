// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client's connection to one server, and the operations that are under way on it.
//!
//! Each operation has a lane: memory for what it reads or sends. A step of an operation is a few
//! requests, of which the last one completes; [`Store`](crate::Store) posts the steps of all lanes
//! together.

use crate::control::{
    is_proved, proof, Control, FromClient, FromServer, Members, Nonce, Welcome, MAX_SEGMENTS,
    VERSION,
};
use crate::error::{Error, Result};
use crate::layout::{self, decode, Bucket, Found, Geometry, Slot, BUCKET_LEN, MAX_KEY};
use crate::lookup::{Lookup, Want};
use crate::wire::{Reply, Request, Status, Write, REPLY_LEN, REQUEST_HEADER};
use crate::{Op, Options, Outcome, Stats, Value};
use rand::{rngs::SmallRng, Rng, RngExt};
use rust_ulp::{
    AckTimeout, Buffer, Completion, Cq, Device, DeviceBatch, LocalSlice, Qp, Rc, Read, Recv,
    RemoteSlice, Retries, RnrRetries, Send,
};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Operations that a client may have under way on one connection.
pub const MAX_DEPTH: usize = 64;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
const HELLO: Duration = Duration::from_secs(30);
/// One of so many sends makes a completion, which frees the places of the others in the queue.
const SIGNALED: u32 = 16;
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
    Reply = 3,
}

/// A request that waits to be posted.
#[derive(Debug)]
enum Post {
    Read(Read<'static>),
    Send(Send<'static>),
    Recv(Recv<'static>),
}

/// An operation under way.
#[derive(Debug)]
struct Lane {
    /// Which operation of the run.
    op: usize,
    key: Vec<u8>,
    hash: u64,
    begin: Instant,
    /// The lookup of a get, and what it waits for.
    get: Option<(Lookup, Want)>,
    /// The second half of the record, while a get waits for a change of it; then empty.
    second_half: Option<Vec<u8>>,
    /// The sequence of a write.
    sequence: u64,
    is_delete: bool,
    is_add: bool,
    tries: u32,
    /// When a paused lookup goes on.
    wake: Option<Instant>,
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
    /// The connection is broken.
    Broken(String),
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
    sends: u32,
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
            .create_qp::<Rc>(cq)
            .max_send_wr(4 * MAX_DEPTH as u32)
            .max_recv_wr(MAX_DEPTH as u32)
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
        {
            return Err(corrupt("its welcome"));
        }
        geometry
            .check()
            .map_err(|_| corrupt("a table that its memory cannot have"))?;
        let segments = welcome.segments.iter().map(|segment| segment.remote());
        let segments: Option<Vec<_>> = segments.collect();
        let segments = segments.ok_or_else(|| corrupt("the address of its memory"))?;
        let depth = options
            .depth
            .clamp(1, MAX_DEPTH)
            .min(welcome.window as usize);
        let message = REQUEST_HEADER + MAX_KEY + geometry.max_value as usize;
        let lane_len = RECORD + geometry.max_record().max(message).next_multiple_of(64);
        let buffer = pd.alloc_buffer(depth * (lane_len + 64))?;
        let mut link = Self {
            name: name.to_owned(),
            serial,
            options: options.clone(),
            qp: qp.connect(end)?,
            buffer,
            lane_len,
            lanes: (0..depth).map(|_| None).collect(),
            geometry,
            segments,
            control,
            run: welcome.run,
            known: welcome.known,
            members: welcome.members,
            cache: vec![(0, Slot::EMPTY); options.cache],
            posts: Vec::new(),
            sends: 0,
            under_way: 0,
            random,
            stats: Stats::default(),
        };
        for n in 0..depth {
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

    fn bytes(&self, lane: usize, offset: usize, len: usize) -> Result<Vec<u8>> {
        Ok(self.local(lane, offset, len)?.to_vec()?)
    }

    /// Returns the memory of a reply.
    fn reply(&self, n: usize) -> Result<LocalSlice> {
        let start = self.lanes.len() * self.lane_len + n * 64;
        Ok(self.buffer.slice(start..start + REPLY_LEN)?)
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
        let recv = Recv::new(self.reply(n)?).wr_id(self.wr_id(Kind::Reply, n));
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

    /// Returns a lane that is free.
    pub fn free_lane(&self) -> Option<usize> {
        self.lanes.iter().position(Option::is_none)
    }

    /// Returns whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(Option::is_none)
    }

    /// Begins an operation in a free lane. `epoch` and `done` are as in [`Request`].
    pub fn start(
        &mut self,
        lane: usize,
        (n, op): (usize, &Op<'_>),
        (sequence, done, epoch): (u64, u64, u64),
        begin: Instant,
    ) -> Result<()> {
        let key = op.key();
        let hash = layout::hash(key);
        let mut new = Lane {
            op: n,
            key: key.to_vec(),
            hash,
            begin,
            get: None,
            second_half: None,
            sequence,
            is_delete: matches!(op, Op::Delete { .. }),
            is_add: matches!(op, Op::Add { .. }),
            tries: 0,
            wake: None,
        };
        let Some((condition, write)) = op.write() else {
            let cached = self.cached(hash);
            let (lookup, want) = Lookup::begin(hash, cached);
            new.get = Some((lookup, want.clone()));
            self.put_lane(lane, Some(new));
            return self.want(lane, want).map(drop);
        };
        let most = self.geometry.max_value as usize;
        if let Write::Put { value, .. } | Write::Move { value, .. } = write {
            if value.len() > most {
                return Err(Error::TooLarge {
                    len: value.len(),
                    max: most,
                    server: self.name.clone(),
                });
            }
        }
        let request = Request {
            sequence,
            done,
            epoch,
            condition,
            key,
            write,
        };
        let bytes = request.encode();
        let memory = self.local(lane, RECORD, bytes.len())?;
        self.buffer.write_at(memory.offset(), &bytes)?;
        self.sends = self.sends.wrapping_add(1);
        let send = Send::new(memory)
            .wr_id(self.wr_id(Kind::Send, lane))
            .signaled(self.sends % SIGNALED == 0);
        self.posts.push(Post::Send(send));
        self.under_way += 1;
        self.stats.round_trips += 1;
        self.put_lane(lane, Some(new));
        Ok(())
    }

    fn put_lane(&mut self, lane: usize, new: Option<Lane>) -> Option<Lane> {
        let place = self.lanes.get_mut(lane)?;
        std::mem::replace(place, new)
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
            get: Some((lookup, state)),
            wake,
            ..
        })) = self.lanes.get_mut(lane)
        else {
            return Ok(Event::Nothing);
        };
        let (op, hash) = (*op, *hash);
        *state = want.clone();
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
        self.put_lane(lane, None);
        Ok(Event::Finished(op, done))
    }

    /// Continues the lookups that have paused long enough. Returns when the next one does.
    pub fn wake(&mut self) -> Result<Option<Instant>> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for lane in 0..self.lanes.len() {
            let Some(Some(Lane { wake, .. })) = self.lanes.get_mut(lane) else {
                continue;
            };
            match *wake {
                Some(when) if when <= now => {
                    *wake = None;
                    self.want(lane, Want::Buckets)?;
                }
                Some(when) => next = Some(next.map_or(when, |next| next.min(when))),
                None => {}
            }
        }
        Ok(next)
    }

    /// Takes a completion. `epoch` is that of the client's list of members.
    pub fn complete(&mut self, completion: &Completion, epoch: u64) -> Result<Event> {
        if let Err(error) = completion.check() {
            return Ok(Event::Broken(error.to_string()));
        }
        let n = (completion.wr_id & 0xff_ffff) as usize;
        match (completion.wr_id >> 24) & 0xff {
            kind if kind == Kind::Read as u64 => self.read_done(n, epoch),
            kind if kind == Kind::Reply as u64 => self.replied(n),
            _ => Ok(Event::Nothing),
        }
    }

    fn read_done(&mut self, lane: usize, epoch: u64) -> Result<Event> {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(Some(Lane {
            op,
            get: Some((_, want)),
            ..
        })) = self.lanes.get(lane)
        else {
            return Ok(Event::Nothing);
        };
        let (op, want) = (*op, want.clone());
        if self.options.stall && self.stall(lane, &want)? {
            return Ok(Event::Nothing);
        }
        let (buckets, bytes) = match want {
            Want::Record(slot) => (None, self.bytes(lane, RECORD, slot.len())?),
            _ => {
                let bytes = self.bytes(lane, 0, BUCKETS + 8)?;
                let (first, rest) = bytes.split_at(BUCKET_LEN.min(bytes.len()));
                let buckets = (Bucket::decode(first), Bucket::decode(rest));
                (Some(buckets), bytes)
            }
        };
        let Some(Some(Lane {
            key,
            get: Some((lookup, _)),
            ..
        })) = self.lanes.get_mut(lane)
        else {
            return Ok(Event::Nothing);
        };
        let before = lookup.retries;
        let next = match &buckets {
            Some((first, second)) => lookup.buckets(first, second),
            None => lookup.record(&self.geometry, key, &bytes, self.options.verify),
        };
        self.stats.torn += lookup.retries - before;
        if next == Want::Nothing && bytes.get(BUCKETS..) != Some(&epoch.to_le_bytes()[..]) {
            // The key may be at another server by now.
            self.put_lane(lane, None);
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

    fn replied(&mut self, n: usize) -> Result<Event> {
        let reply = Reply::decode(&self.reply(n)?.to_vec()?);
        self.post_recv(n)?;
        let Some(reply) = reply else {
            return Ok(Event::Broken("a reply that makes no sense".to_owned()));
        };
        let is_it = |lane: &Option<Lane>| {
            lane.as_ref()
                .is_some_and(|lane| lane.get.is_none() && lane.sequence == reply.sequence)
        };
        let place = self.lanes.iter().position(is_it);
        let Some(lane) = place.and_then(|lane| self.put_lane(lane, None)) else {
            return Ok(Event::Broken("a reply to no request".to_owned()));
        };
        self.under_way = self.under_way.saturating_sub(1);
        let slot = Slot(reply.slot);
        self.remember(lane.hash, slot);
        let server = || self.name.clone();
        let version = (reply.version != 0).then_some(reply.version);
        let done = match reply.status {
            Status::Epoch => return Ok(Event::Epoch(lane.op)),
            Status::Done if lane.is_add => Ok(Outcome::Sum(reply.number)),
            Status::Done if lane.is_delete => Ok(Outcome::Deleted(true)),
            Status::Unmet if lane.is_delete => Ok(Outcome::Deleted(false)),
            Status::Done => Ok(Outcome::Written(reply.version)),
            Status::Unmet => Ok(Outcome::Unmet(version)),
            Status::NoMemory => Err(Error::Full {
                server: server(),
                of: "memory",
            }),
            Status::NoSlot => Err(Error::Full {
                server: server(),
                of: "slots",
            }),
            Status::NoNumber => Err(Error::NoNumber { server: server() }),
            Status::Invalid => Err(self.corrupt("it does not understand a request")),
            Status::Forgotten => Err(self.gone("it has forgotten what became of this request")),
        };
        Ok(Event::Finished(lane.op, done))
    }

    /// Returns why the connection is to be given up, if it is: the server has hung up, or it does
    /// not reply to a write. The adapter notices when Reads are not answered.
    pub fn trouble(&self) -> Option<String> {
        let mut lanes = self.lanes.iter().flatten();
        if lanes.any(|lane| lane.get.is_none() && lane.begin.elapsed() > self.options.patience) {
            return Some("it does not reply".to_owned());
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
        let error = rust_ulp::QpAttr::to(rust_ulp::QpState::Err);
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
