// SPDX-License-Identifier: MIT OR Apache-2.0

//! A stream of bytes in one direction, through a ring of the receiver's memory.
//!
//! The sender puts bytes into the receiver's ring by RDMA Write, as far as there is room: the
//! receiver's processor takes no part in it, and nothing is sent that has no place. The last write
//! of a chunk carries its length as immediate data, which tells the receiver that it is there, and
//! wakes it if it sleeps. When a chunk was taken, the receiver gives its room back by an empty
//! message with the same number: the credit. Head and tail are counts that each end keeps to
//! itself; what the other end says is checked.
//!
//! Each end needs a queue pair of its own, with one completion queue for both directions that
//! nobody else uses, of [`ENTRIES`] entries. The ends may be connected in any way; the receiver's
//! grant is what the sender has to get:
//!
//! ```no_run
//! use rust_ulp::error::Result;
//! use rust_ulp::qp::Rc;
//! use rust_ulp::Device;
//! use rust_ulp_extra::stream;
//! use std::time::Duration;
//! # const WAIT: Duration = Duration::from_secs(5);
//!
//! fn receiver(addr: &str) -> Result<Vec<u8>> {
//!     let dev = Device::open_default()?;
//!     let cq = dev.create_cq(stream::ENTRIES)?;
//!     let qp = dev.alloc_pd()?.qp_builder::<Rc>(&cq).build()?;
//!     let ring = stream::PreparedReceiver::new(&qp, 1 << 20)?;
//!     let (qp, peer) = qp.accept_tcp(addr, &[ring.grant()])?;
//!     let mut receiver = ring.start(qp)?;
//!     let (mut all, mut some) = (Vec::new(), [0; 4096]);
//!     while let n @ 1.. = receiver.recv(&mut some, WAIT)? {
//!         all.extend_from_slice(some.get(..n).unwrap_or_default());
//!     }
//!     peer.wait_gone(WAIT)?; // the sender knows that all has arrived
//!     Ok(all)
//! }
//!
//! fn sender(addr: &str) -> Result<()> {
//!     let dev = Device::open_default()?;
//!     let cq = dev.create_cq(stream::ENTRIES)?;
//!     let qp = dev.alloc_pd()?.qp_builder::<Rc>(&cq).build()?;
//!     let sender = stream::PreparedSender::new(&qp, 1 << 20)?;
//!     let (qp, peer) = qp.connect_tcp(addr, &[])?;
//!     let mut sender = sender.start(qp, peer.grant(0)?)?;
//!     sender.send(b"hello", WAIT)?;
//!     sender.finish(WAIT)
//! }
//! ```
//!
//! Dropping either end in the middle is harmless: the queue pair goes with it. The other end is
//! told when it sends; one that only waits waits for its time-out.
//!
//! [`Sender`] is a [`std::io::Write`] and [`Receiver`] a [`std::io::Read`]. With the feature `tokio`
//! or `smol`, [`Sender::into_async`] and [`Receiver::into_async`] return what tasks write to and
//! read from: with the traits of tokio, of futures-io, or both.

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{Access, Buffer, Error, Grant, Opcode, PreparedQp, Qp, RemoteSlice};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    after: Duration,
    /// None: never.
    at: Option<Instant>,
}

impl Deadline {
    fn after(after: Duration) -> Self {
        let at = Instant::now().checked_add(after);
        Self { after, at }
    }

    /// Returns the time that is left, zero when it has passed.
    fn left(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }
}

/// Chunks under way at most. It is part of what the ends agree on.
const CHUNKS: u32 = 32;

/// Requests that a chunk takes at most: it may wrap around in either ring.
const WRITES: u32 = 3;

/// Entries that an end needs in its completion queue.
pub const ENTRIES: u32 = CHUNKS * (WRITES + 1);

/// The bytes that were sent and that came back, as counts.
#[derive(Debug)]
struct Credit {
    /// Bytes that may be under way.
    capacity: u64,
    /// Bytes that were sent, ever.
    sent: u64,
    /// Bytes that were taken, ever.
    taken: u64,
    /// Lengths of the chunks between the two.
    chunks: VecDeque<u32>,
}

impl Credit {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            sent: 0,
            taken: 0,
            chunks: VecDeque::with_capacity(CHUNKS as usize),
        }
    }

    /// Returns the limit of the next chunk: a quarter of the ring, so that the other end can work on
    /// one while the next one comes.
    fn room(&self) -> u64 {
        let left = self.capacity - (self.sent - self.taken);
        left.min(self.capacity.div_ceil(4)).min(u32::MAX.into())
    }

    /// Returns whether one more chunk can be announced.
    fn has_chunk(&self) -> bool {
        self.chunks.len() < CHUNKS as usize
    }

    fn send(&mut self, len: u32) {
        self.sent += u64::from(len);
        self.chunks.push_back(len);
    }

    /// Removes the oldest chunk, which the receiver has taken.
    fn give_back(&mut self, len: u32) -> Result<()> {
        if self.chunks.front() != Some(&len) {
            return Err(Error::Stream {
                what: "it gives room back that it was not sent",
            });
        }
        self.chunks.pop_front();
        self.taken += u64::from(len);
        Ok(())
    }
}

/// The bytes that arrived and that were taken, as counts.
#[derive(Debug)]
struct Arrived {
    capacity: u64,
    /// Bytes that arrived, ever.
    arrived: u64,
    /// Bytes that were taken, ever.
    taken: u64,
    /// Bytes left of each chunk between the two, and its length.
    chunks: VecDeque<(u32, u32)>,
    /// The end was told.
    ended: bool,
}

impl Arrived {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            arrived: 0,
            taken: 0,
            chunks: VecDeque::with_capacity(CHUNKS as usize),
            ended: false,
        }
    }

    fn ready(&self) -> u64 {
        self.arrived - self.taken
    }

    /// Adds a chunk that the sender announced; one of no bytes is the end.
    fn arrive(&mut self, len: u32) -> Result<()> {
        if self.ended || self.chunks.len() >= CHUNKS as usize {
            return Err(Error::Stream {
                what: "it sends more chunks than it may",
            });
        }
        if u64::from(len) > self.capacity - self.ready() {
            return Err(Error::Stream {
                what: "it sends more than there is room for",
            });
        }
        self.arrived += u64::from(len);
        self.ended = len == 0;
        self.chunks.push_back((len, len));
        Ok(())
    }

    /// Takes `n` bytes that are ready.
    fn take(&mut self, mut n: u64) {
        self.taken += n;
        for (left, _) in &mut self.chunks {
            let part = n.min(u64::from(*left));
            // At most what is left.
            *left -= part as u32;
            n -= part;
        }
    }

    /// Returns the oldest chunk if nothing is left of it: its room can be given back.
    fn finished(&self) -> Option<u32> {
        match self.chunks.front() {
            Some((0, len)) => Some(*len),
            _ => None,
        }
    }

    fn given_back(&mut self) {
        self.chunks.pop_front();
    }
}

/// Returns the pieces of `len` bytes from count `at` on, in rings of `one` and `two` bytes: where
/// each starts in either, and its length.
fn pieces(at: u64, len: u64, one: u64, two: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (first, second) = ((at + done) % one, (at + done) % two);
        let n = (len - done).min(one - first).min(two - second);
        done += n;
        (n != 0).then_some((first, second, n))
    })
}

/// One end's queue pair.
#[derive(Debug)]
struct End {
    qp: Qp<Rc>,
    /// Signaled sends that have not completed.
    unfinished: u32,
    /// The connection has failed, or the other end has broken the rules: nothing more is sent, and
    /// nothing more is believed.
    has_failed: bool,
}

/// Checks that `value` is at least `min`.
fn at_least(what: &'static str, value: u64, min: u64) -> Result<()> {
    if value < min {
        return Err(Error::Value {
            what,
            value,
            min,
            max: u64::MAX,
        });
    }
    Ok(())
}

/// Posts the receives that tell of chunks or credits.
fn prepare(qp: &PreparedQp<Rc>) -> Result<()> {
    let (caps, cq) = (qp.caps(), qp.send_cq());
    if cq != qp.recv_cq() {
        return Err(Error::Value {
            what: "the number of completion queues of a stream's queue pair",
            value: 2,
            min: 1,
            max: 1,
        });
    }
    for (what, need, have) in [
        (
            "max_send_wr of a stream's queue pair",
            CHUNKS * WRITES,
            caps.max_send_wr,
        ),
        (
            "max_recv_wr of a stream's queue pair",
            CHUNKS,
            caps.max_recv_wr,
        ),
        (
            "the number of entries of the completion queue of a stream's queue pair",
            ENTRIES,
            cq.entries(),
        ),
    ] {
        at_least(what, have.into(), need.into())?;
    }
    for _ in 0..CHUNKS {
        qp.post_recv(Recv::empty())?;
    }
    Ok(())
}

/// Checks by its number that the queue pair is the one that was prepared.
fn same(prepared: u32, qp: Qp<Rc>) -> Result<End> {
    if prepared != qp.qp_num() {
        return Err(Error::Sys {
            call: "start of a stream",
            errno: libc::ENOENT,
        });
    }
    Ok(End {
        qp,
        unfinished: 0,
        has_failed: false,
    })
}

impl End {
    /// Fails once the stream has failed.
    fn check(&self) -> Result<()> {
        match self.has_failed {
            true => Err(Error::NotConnected),
            false => Ok(()),
        }
    }

    /// Notes whether the stream has failed by this.
    fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        let goes_on =
            |error: &Error| matches!(error, Error::Timeout { .. }) || error.is_backpressure();
        self.has_failed |= result.as_ref().is_err_and(|error| !goes_on(error));
        result
    }

    /// Returns whether what was posted has arrived, or has come to nothing. Does not sleep.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    fn is_finished(&mut self) -> bool {
        while self.unfinished != 0 {
            match self.told(None) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => self.unfinished = 0,
            }
        }
        self.unfinished == 0
    }

    /// Waits until what was posted has arrived, or has come to nothing.
    fn finish(&mut self, deadline: &Deadline) {
        while self.unfinished != 0 {
            match self.told(Some(deadline)) {
                Ok(_) => {}
                Err(Error::Timeout { .. }) => return,
                Err(_) => self.unfinished = 0,
            }
        }
    }

    /// Returns what the other end has announced, if anything. Sleeps for one completion until the
    /// deadline, if there is one.
    fn told(&mut self, mut deadline: Option<&Deadline>) -> Result<Option<(Opcode, u32)>> {
        loop {
            let cq = self.qp.send_cq();
            let done = match (cq.poll()?, deadline.take()) {
                (Some(done), _) => done,
                (None, None) => return Ok(None),
                (None, Some(deadline)) => match cq.wait(deadline.left()) {
                    Err(Error::Timeout { .. }) => {
                        return Err(Error::Timeout {
                            what: "waiting for the other end of a stream",
                            peer: None,
                            after: deadline.after,
                        });
                    }
                    done => done?,
                },
            };
            if !done.is_of(&self.qp) {
                return Err(Error::Stream {
                    what: "its completion queue is not this end's alone",
                });
            }
            let done = done.ok()?;
            match (done.opcode, done.imm) {
                (Opcode::Send | Opcode::Write, _) => {
                    self.unfinished = self.unfinished.saturating_sub(1);
                }
                (opcode, Some(imm)) => {
                    // Before the other end knows that this one was used.
                    self.qp.post_recv(Recv::empty())?;
                    return Ok(Some((opcode, imm)));
                }
                _ => {
                    return Err(Error::Stream {
                        what: "it sends what is no part of one",
                    });
                }
            }
        }
    }
}

/// The sender, before its queue pair is connected.
#[derive(Debug)]
#[must_use = "start it when the queue pair is connected"]
pub struct PreparedSender {
    qp_num: u32,
    staging: Buffer,
}

impl PreparedSender {
    /// Makes a sender of a queue pair that was not used yet, with memory of its own for `len`
    /// bytes, which are there until the receiver has them: as much as the receiver's ring is best.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if the queue pair or its completion queue has less room than a stream needs,
    /// or if it has two completion queues; as [`BufferBuilder::build`](rust_ulp::memory::BufferBuilder::build).
    pub fn new(qp: &PreparedQp<Rc>, len: usize) -> Result<Self> {
        let staging = qp.pd().alloc_buffer(len)?;
        prepare(qp)?;
        Ok(Self {
            qp_num: qp.qp_num(),
            staging,
        })
    }

    /// Starts to send, when the queue pair is connected, into the receiver's `ring`.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ENOENT` for another queue pair, [`Error::Value`] for a ring of no bytes,
    /// [`Error::Access`] for one that may not be written to.
    pub fn start(self, qp: Qp<Rc>, ring: RemoteSlice) -> Result<Sender> {
        let end = same(self.qp_num, qp)?;
        let granted = ring.access().unwrap_or(Access::REMOTE_WRITE);
        if !granted.contains(Access::REMOTE_WRITE) {
            return Err(Error::Access {
                needed: Access::REMOTE_WRITE,
                granted,
            });
        }
        at_least("the length of a ring", ring.len(), 1)?;
        let credit = Credit::new(ring.len().min(self.staging.len() as u64));
        Ok(Sender {
            end,
            staging: self.staging,
            ring,
            credit,
            ended: false,
            timeout: Duration::MAX,
        })
    }
}

/// The end of a stream that sends.
#[derive(Debug)]
pub struct Sender {
    end: End,
    staging: Buffer,
    ring: RemoteSlice,
    credit: Credit,
    ended: bool,
    /// Time limit of `std::io::Write`.
    timeout: Duration,
}

/// Bytes go into the receiver's ring at once: there is nothing to flush. [`Sender::finish`] tells
/// the end.
impl std::io::Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let deadline = Deadline::after(self.timeout);
        Ok(self.send_some(bytes, &deadline)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sender {
    /// Sends as many of the bytes as there is room for now, and returns how many; 0 is
    /// back-pressure: the receiver has to take something first. Does not sleep.
    ///
    /// # Errors
    ///
    /// [`Error::Completion`] when the connection has failed, [`Error::Stream`] when the receiver
    /// breaks the rules, [`Error::NotConnected`] after either and after [`Self::finish`].
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.ended {
            return Err(Error::NotConnected);
        }
        self.reap(None)?;
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let n = self.credit.room().min(rest.len() as u64);
            let Some(chunk) = usize::try_from(n).ok().and_then(|n| rest.get(..n)) else {
                break;
            };
            if chunk.is_empty() || !self.may_post() {
                break;
            }
            let posted = self.send_chunk(chunk);
            self.end.noted(posted)?;
            sent += chunk.len();
        }
        Ok(sent)
    }

    /// Sends all of the bytes, sleeping where there is no room.
    ///
    /// # Errors
    ///
    /// As [`Self::try_send`]; [`Error::Timeout`] when that takes longer than `timeout`: then some
    /// of it may have been sent.
    pub fn send(&mut self, bytes: &[u8], timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(timeout);
        let mut sent = 0;
        loop {
            let rest = bytes.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            sent += self.send_some(rest, &deadline)?;
        }
    }

    /// Says that this is the end, and waits until the receiver has taken everything. Fails as
    /// [`Self::send`].
    pub fn finish(&mut self, timeout: Duration) -> Result<()> {
        let deadline = Deadline::after(timeout);
        while !self.try_finish()? {
            self.reap(Some(&deadline))?;
        }
        Ok(())
    }

    /// Says that this is the end, as soon as there is room to say so. Returns whether the receiver
    /// has taken everything. Does not sleep.
    fn try_finish(&mut self) -> Result<bool> {
        self.reap(None)?;
        if !self.ended && self.may_post() {
            let posted = self.end.qp.post(Send::empty().imm(0));
            self.end.noted(posted)?;
            self.end.unfinished += 1;
            self.credit.send(0);
            self.ended = true;
        }
        Ok(self.ended && self.credit.chunks.is_empty())
    }

    /// Sends some of the bytes, sleeping until there is room for one.
    fn send_some(&mut self, bytes: &[u8], deadline: &Deadline) -> Result<usize> {
        loop {
            let n = self.try_send(bytes)?;
            if n != 0 || bytes.is_empty() {
                return Ok(n);
            }
            self.reap(Some(deadline))?;
        }
    }

    /// Sets how long [`Write`](std::io::Write) waits for room; without end unless said.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout.unwrap_or(Duration::MAX);
    }

    /// Returns the bytes that were sent and not yet taken, as far as is known here.
    pub fn in_flight(&self) -> u64 {
        self.credit.sent - self.credit.taken
    }

    /// Returns its queue pair.
    pub fn qp(&self) -> &Qp<Rc> {
        &self.end.qp
    }

    fn may_post(&self) -> bool {
        self.credit.has_chunk() && self.end.unfinished < CHUNKS
    }

    fn send_chunk(&mut self, chunk: &[u8]) -> Result<()> {
        let (own, theirs) = (self.staging.len() as u64, self.ring.len());
        let len = chunk.len() as u64;
        let mut batch = self.end.qp.batch();
        let mut done = 0;
        for (from, to, n) in pieces(self.credit.sent, len, own, theirs) {
            // All are at most the length of the staging buffer, a usize.
            let (from, n) = (from as usize, n as usize);
            let part = chunk.get(done..).and_then(|rest| rest.get(..n));
            self.staging.write_at(from, part.unwrap_or_default())?;
            done += n;
            let src = self.staging.slice(from..from + n)?;
            let write = Write::new(src, self.ring.slice(to..)?);
            // The last one tells.
            batch.push(if done == chunk.len() {
                write.imm(len as u32)
            } else {
                write.signaled(false)
            })?;
        }
        batch.submit()?;
        self.end.unfinished += 1;
        self.credit.send(len as u32);
        Ok(())
    }

    /// Takes credits; sleeps for one until the deadline, if there is one.
    fn reap(&mut self, deadline: Option<&Deadline>) -> Result<()> {
        self.end.check()?;
        match self.take_credits(deadline) {
            // The receiver may go as soon as it has given all credits back, which ends the queue pair.
            Err(Error::Completion(_)) if self.ended && self.credit.chunks.is_empty() => {
                self.end.unfinished = 0;
                Ok(())
            }
            taken => self.end.noted(taken),
        }
    }

    fn take_credits(&mut self, mut deadline: Option<&Deadline>) -> Result<()> {
        while let Some((opcode, len)) = self.end.told(deadline.take())? {
            if opcode != Opcode::Recv {
                return Err(Error::Stream {
                    what: "it writes where it only receives",
                });
            }
            self.credit.give_back(len)?;
        }
        Ok(())
    }
}

/// The receiver, before its queue pair is connected.
#[derive(Debug)]
#[must_use = "start it when the queue pair is connected"]
pub struct PreparedReceiver {
    qp_num: u32,
    ring: Buffer,
    grant: Grant,
}

impl PreparedReceiver {
    /// Makes a receiver of a queue pair that was not used yet, with a ring of `len` bytes.
    ///
    /// # Errors
    ///
    /// As [`PreparedSender::new`], and as [`Buffer::grant`].
    pub fn new(qp: &PreparedQp<Rc>, len: usize) -> Result<Self> {
        let ring = qp.pd().alloc_buffer(len)?;
        let grant = ring.grant(.., Access::REMOTE_WRITE)?;
        prepare(qp)?;
        Ok(Self {
            qp_num: qp.qp_num(),
            ring,
            grant,
        })
    }

    /// Returns the grant of the ring, as the sender has to know it.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Starts to receive, when the queue pair is connected.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ENOENT` for another queue pair.
    pub fn start(self, qp: Qp<Rc>) -> Result<Receiver> {
        let end = same(self.qp_num, qp)?;
        let arrived = Arrived::new(self.ring.len() as u64);
        Ok(Receiver {
            end,
            ring: self.ring,
            _grant: self.grant,
            arrived,
            timeout: Duration::MAX,
        })
    }
}

/// The end of a stream that receives.
#[derive(Debug)]
pub struct Receiver {
    end: End,
    ring: Buffer,
    _grant: Grant,
    arrived: Arrived,
    /// Time limit of `std::io::Read`.
    timeout: Duration,
}

/// 0 bytes are the end of the stream.
impl std::io::Read for Receiver {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.recv(out, self.timeout)?)
    }
}

impl Receiver {
    /// Sets how long [`Read`](std::io::Read) waits for bytes; without end unless said.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout.unwrap_or(Duration::MAX);
    }

    /// Takes as many bytes as there are and fit into `out`, and returns how many, or [`None`] when
    /// none have arrived; 0 is the end of the stream, or an `out` of no bytes. Does not sleep: who
    /// drops the receiver at the end calls [`Self::recv`] once more, so that the sender gets to
    /// know. Fails as [`Sender::try_send`].
    pub fn try_recv(&mut self, out: &mut [u8]) -> Result<Option<usize>> {
        self.reap(None)?;
        let taken = self.take(out);
        self.end.noted(taken)
    }

    /// Takes as many bytes as there are and fit into `out`, sleeping until there is one, and
    /// returns how many; 0 is the end of the stream, or an `out` of no bytes.
    ///
    /// # Errors
    ///
    /// As [`Sender::try_send`]; [`Error::Timeout`] if there is none within `timeout`.
    pub fn recv(&mut self, out: &mut [u8], timeout: Duration) -> Result<usize> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(n) = self.try_recv(out)? {
                if n == 0 && self.arrived.ended {
                    // Who sees the end may drop this at once: what was given back is to arrive
                    // before.
                    self.end.finish(&deadline);
                }
                return Ok(n);
            }
            self.reap(Some(&deadline))?;
        }
    }

    /// Returns its queue pair.
    pub fn qp(&self) -> &Qp<Rc> {
        &self.end.qp
    }

    fn take(&mut self, out: &mut [u8]) -> Result<Option<usize>> {
        let ready = self.arrived.ready();
        let n = ready.min(out.len() as u64);
        if n == 0 && !out.is_empty() && !self.arrived.ended {
            return Ok(None);
        }
        let len = self.ring.len() as u64;
        let mut done = 0;
        for (from, _, n) in pieces(self.arrived.taken, n, len, len) {
            // Both are at most the length of the ring, a usize.
            let (from, n) = (from as usize, n as usize);
            if let Some(part) = out.get_mut(done..).and_then(|rest| rest.get_mut(..n)) {
                self.ring.read_at(from, part)?;
            }
            done += n;
        }
        self.arrived.take(n);
        self.give_back()?;
        Ok(Some(done))
    }

    /// Gives the room of what was taken back, as far as it can be told now.
    fn give_back(&mut self) -> Result<()> {
        while let Some(len) = self.arrived.finished() {
            if self.end.unfinished >= CHUNKS * WRITES {
                break; // the next call does
            }
            self.end.qp.post(Send::empty().imm(len))?;
            self.end.unfinished += 1;
            self.arrived.given_back();
        }
        Ok(())
    }

    /// Takes notice of chunks; sleeps for one until the deadline, if there is one.
    fn reap(&mut self, deadline: Option<&Deadline>) -> Result<()> {
        self.end.check()?;
        match self.take_notice(deadline) {
            // The sender may go as soon as it knows that this end has everything: then nobody
            // acknowledges how it got to know.
            Err(Error::Completion(_)) if self.arrived.ended && self.arrived.ready() == 0 => {
                self.end.unfinished = 0;
                Ok(())
            }
            noticed => self.end.noted(noticed),
        }
    }

    fn take_notice(&mut self, mut deadline: Option<&Deadline>) -> Result<()> {
        while let Some((opcode, len)) = self.end.told(deadline.take())? {
            // Data comes by writes, the end by a message.
            if (opcode == Opcode::Recv) != (len == 0) {
                return Err(Error::Stream {
                    what: "it sends what is no part of one",
                });
            }
            self.arrived.arrive(len)?;
        }
        self.give_back()
    }
}

#[cfg(any(feature = "smol", feature = "tokio"))]
#[path = "stream/asynchronous.rs"]
mod asynchronous;
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
pub use asynchronous::{AsyncReceiver, AsyncSender};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_all_of_it(at in 0u64..1 << 40, len in 0u64..300, one in 1u64..200, two in 1u64..200) {
            let mut count = at;
            for (first, second, n) in pieces(at, len, one, two) {
                prop_assert_eq!((first, second), (count % one, count % two));
                prop_assert!(n > 0 && first + n <= one && second + n <= two);
                count += n;
            }
            prop_assert_eq!(count, at + len);
        }

        // Whatever is told, counts stay within the ring.
        #[test]
        fn what_is_told_is_checked(
            capacity in 1u64..1000,
            told in prop::collection::vec((0u32..300, 0u64..300), 0..80),
        ) {
            let mut arrived = Arrived::new(capacity);
            for (len, take) in told {
                let fits = u64::from(len) <= capacity - arrived.ready()
                    && arrived.chunks.len() < CHUNKS as usize
                    && !arrived.ended;
                prop_assert_eq!(arrived.arrive(len).is_ok(), fits);
                prop_assert!(arrived.ready() <= capacity);
                arrived.take(take.min(arrived.ready()));
                while arrived.finished().is_some() {
                    arrived.given_back();
                }
                let left: u64 = arrived.chunks.iter().map(|(left, _)| u64::from(*left)).sum();
                prop_assert_eq!(left, arrived.ready());
            }
        }

        // Two ends that keep to the rules agree, and no other credit is taken.
        #[test]
        fn ends_agree(
            capacity in 1u64..1000,
            steps in prop::collection::vec((1u64..300, 0u64..300, 0u32..300), 0..80),
        ) {
            let (mut arrived, mut credit) = (Arrived::new(capacity), Credit::new(capacity));
            for (send, take, wrong) in steps {
                let n = credit.room().min(send) as u32;
                if n != 0 && credit.has_chunk() {
                    credit.send(n);
                    arrived.arrive(n).unwrap();
                }
                arrived.take(take.min(arrived.ready()));
                if credit.chunks.front() != Some(&wrong) {
                    prop_assert!(credit.give_back(wrong).is_err());
                }
                while let Some(len) = arrived.finished() {
                    arrived.given_back();
                    credit.give_back(len).unwrap();
                }
                prop_assert!(credit.sent - credit.taken >= arrived.ready());
                prop_assert!(credit.room() <= capacity - arrived.ready());
                prop_assert!(!credit.chunks.is_empty() || credit.room() != 0, "it would hang");
            }
        }
    }
}
