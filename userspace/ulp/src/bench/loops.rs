// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loops of the measurements, over any back end.
//!
//! | | client | server | one number |
//! |---|---|---|---|
//! | write latency, polling | writes, spins on the last byte of its own buffer | the same | half a round trip |
//! | write latency, by events | writes with immediate data, waits for a receive | the same | half a round trip |
//! | send and write-with-immediate latency | sends, waits for a receive | the same | half a round trip |
//! | read and atomic latency | posts one, waits for its completion | nothing | post to completion |
//! | bandwidth, rate | posts lists, some requests signaled, and the last of each queue pair | receives | messages by time |
//!
//! Polling the last byte of a write shows that byte alone: an adapter with relaxed ordering may place
//! the others later. Programs announce data by a message.
//!
//! A round trip is from posting one message to posting the next. The peer needs no count: the
//! client's last message says that it is the last. With verification each message has contents of
//! its own, and the time that this takes is in the numbers.
//!
//! UC and UD may lose messages. There the immediate data of a message is its number, the client
//! repeats the last message until the server has it, and the server counts what arrived.

use super::config::{Amount, Config, Layout, Metric, Mode, Test, Transport};
use super::end::{Control, Done, End, Kind, Op, Plan, Queue};
use super::stats::Latencies;
use anyhow::{bail, ensure, Context, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The last byte of the last written message; others have 1 to 254.
const LAST_MARK: u8 = 255;
/// Immediate data of the last message.
const LAST_IMM: u32 = 1;
/// Immediate data of message 0, where the immediate data is a number.
const FIRST_IMM: u32 = 2;
/// The numbers of messages repeat after this many, so that they fit into immediate data.
const NUMBERS: u64 = 1 << 31;
/// The mark of a receive, in its identifier.
const RECEIVE: u64 = 1 << 60;
/// The longest sleep of an end that is ahead of its limit of the rate.
const PAUSE: Duration = Duration::from_millis(1);
/// The interval at which the last message is repeated where it may be lost.
const AGAIN: Duration = Duration::from_millis(10);

/// The state of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    pub config: &'a Config,
    pub layout: Layout,
    pub control: &'a Control,
    /// The number of the thread, from 0, the same at both ends.
    pub thread: u64,
    /// This end.
    pub origin: Origin,
}

/// The measurements of one thread of the client.
#[derive(Clone, Debug)]
pub struct Measured {
    pub latencies: Option<Latencies>,
    pub messages: u64,
    pub elapsed: Duration,
    /// Messages per second in the best tenth.
    pub peak: f64,
    /// Messages on each queue pair, with those of the warm-up.
    pub sent: Vec<u64>,
    /// The messages that this side verified.
    pub verified: u64,
}

/// The end condition of a loop.
struct Limit {
    amount: Amount,
    warmup: u64,
    began: Option<Instant>,
}

impl Limit {
    fn new(config: &Config) -> Self {
        Self {
            amount: config.amount,
            warmup: config.warmup,
            began: None,
        }
    }

    /// Returns whether message number `i`, posted at `now`, is the last.
    fn is_last(&mut self, i: u64, now: Instant, control: &Control) -> bool {
        if control.stopped() {
            return true;
        }
        match self.amount {
            Amount::Iterations(n) => i + 1 >= n.saturating_add(self.warmup),
            Amount::Millis(ms) => {
                if i < self.warmup {
                    return false;
                }
                let began = *self.began.get_or_insert(now);
                now.duration_since(began) >= Duration::from_millis(ms)
            }
        }
    }
}

/// The sender of a message; the contents differ in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    Client,
    Server,
}

impl Origin {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Returns word number `word` of a message.
fn pattern(task: &Task<'_>, from: Origin, qp: u64, number: u64, word: u64) -> u64 {
    // splitmix64 over the position.
    let mut z = ((from as u64) << 63) ^ (task.thread << 56) ^ (qp << 44);
    z = (z ^ (number % NUMBERS))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(word + 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the contents of a message.
fn contents(task: &Task<'_>, from: Origin, qp: u64, number: u64, bytes: &mut [u8]) {
    for (word, chunk) in bytes.chunks_mut(8).enumerate() {
        let value = pattern(task, from, qp, number, word as u64).to_le_bytes();
        for (to, from) in chunk.iter_mut().zip(value) {
            *to = from;
        }
    }
}

/// Buffers for the verification of contents.
struct Scratch {
    want: Vec<u8>,
    got: Vec<u8>,
}

impl Scratch {
    fn new(task: &Task<'_>) -> Self {
        let size = match task.config.verify {
            true => task.layout.size as usize,
            false => 0,
        };
        Self {
            want: vec![0; size],
            got: vec![0; size],
        }
    }

    /// Stores a message of this end at the place that it is sent from.
    fn fill<E: End>(
        &mut self,
        task: &Task<'_>,
        end: &E,
        (qp, number): (u64, u64),
        at: u64,
    ) -> Result<()> {
        contents(task, task.origin, qp, number, &mut self.want);
        end.write(at, &self.want)
    }

    /// Verifies a message of the peer, apart from its last `but` bytes.
    fn verify<E: End>(
        &mut self,
        task: &Task<'_>,
        end: &E,
        (qp, number): (u64, u64),
        at: u64,
        but: usize,
    ) -> Result<()> {
        contents(task, task.origin.other(), qp, number, &mut self.want);
        end.read(at, &mut self.got)?;
        let len = self.want.len().saturating_sub(but);
        let pairs = self.want.iter().zip(&self.got).take(len);
        if let Some(bad) = pairs.clone().position(|(want, got)| want != got) {
            let wrong = pairs.filter(|(want, got)| want != got).count();
            bail!(
                "message {number} on queue pair {qp} of thread {} arrived wrong: {wrong} of {len} bytes, \
                 the first at {bad}",
                task.thread
            );
        }
        Ok(())
    }
}

impl<'a> Task<'a> {
    /// Returns the state of the first thread of an end.
    pub fn new(plan: &Plan<'a>, origin: Origin) -> Self {
        Self {
            config: plan.config,
            layout: plan.layout,
            control: plan.control,
            thread: 0,
            origin,
        }
    }

    /// Returns the state of another thread.
    pub fn of(self, thread: usize) -> Self {
        let thread = thread as u64;
        Self { thread, ..self }
    }

    fn inline(&self) -> bool {
        self.layout.size <= self.config.inline
    }

    fn event(&self) -> bool {
        self.config.mode == Mode::Event
    }

    /// Returns the name of the peer's message in errors.
    fn awaited(&self) -> &'static str {
        match self.config.transport {
            Transport::Rc => "the peer's message",
            Transport::Uc | Transport::Ud => {
                "the peer's message, which is not repeated if it is lost"
            }
        }
    }

    fn is_latency(&self) -> bool {
        self.config.metric == Metric::Latency
    }

    /// Returns whether both sides exchange messages by receives.
    fn by_receives(&self) -> bool {
        match self.config.test {
            Test::Send | Test::WriteImm => true,
            Test::Write => self.is_latency() && self.event(),
            _ => false,
        }
    }

    /// Returns where the data of a read or an atomic operation arrives. The peer reads the outbox,
    /// and its atomic operations change the inbox.
    fn result(&self, qp: u64, number: u64) -> u64 {
        match self.config.test.is_atomic() {
            true => self.layout.outbox(qp, number),
            false => self.layout.inbox(qp, number),
        }
    }
}

/// Creates the ends of all threads, which accept receives.
pub fn ends<E: End>(plan: &Plan<'_>, task: Task<'_>) -> Result<Vec<E>> {
    let ends = (0..plan.config.threads as usize).map(|thread| {
        let mut end = E::new(plan)?;
        prepare(&task.of(thread), &mut end)?;
        Ok(end)
    });
    ends.collect()
}

/// Posts receives and stores the data of reads, before the ends are connected.
fn prepare<E: End>(task: &Task<'_>, end: &mut E) -> Result<()> {
    let layout = &task.layout;
    let is_server = task.origin == Origin::Server;
    if task.by_receives() && (is_server || task.is_latency()) {
        let receives = match task.is_latency() {
            true => 2,
            false => layout.rx_depth(task.config),
        };
        let queues = if task.config.srq { 1 } else { task.config.qps };
        for qp in 0..queues.into() {
            for number in 0..receives {
                end.post(&[receive(task, qp, number)])?;
            }
        }
    }
    if is_server && task.config.verify && task.config.test == Test::Read {
        let mut scratch = Scratch::new(task);
        for qp in 0..task.config.qps.into() {
            for slot in 0..layout.slots {
                scratch.fill(task, end, (qp, slot), layout.outbox(qp, slot))?;
            }
        }
    }
    Ok(())
}

fn receive(task: &Task<'_>, qp: u64, number: u64) -> Op {
    // A device puts the network header of a datagram before the message.
    let head = task.layout.head;
    let at = task.layout.inbox(qp, number) - u64::from(head);
    let mut op = Op::new(Kind::Recv, qp, at, 0, task.layout.size + head);
    // The receives of a shared queue may complete in another order than they were posted in.
    op.id = RECEIVE | if task.config.srq { number } else { qp };
    op
}

/// The work of one thread of the server.
#[derive(Clone, Debug, Default)]
pub struct Served {
    pub verified: u64,
    /// The messages that arrived on each queue pair, if the thread counts them.
    pub received: Option<Vec<u64>>,
}

/// Runs the server while the client measures.
pub fn serve<E: End>(task: &Task<'_>, end: &mut E) -> Result<Served> {
    let verified = match task.config.test {
        Test::Write if task.is_latency() && !task.event() => write_pong(task, end)?,
        _ if task.by_receives() && task.is_latency() => message_pong(task, end)?,
        Test::Send | Test::WriteImm => return receiver(task, end),
        _ => 0,
    };
    Ok(Served {
        verified,
        received: None,
    })
}

/// Verifies the messages that the peer wrote, after the measurement, and returns their number.
pub fn inspect<E: End>(task: &Task<'_>, end: &E, sent: &[u64]) -> Result<u64> {
    let config = task.config;
    ensure!(
        sent.len() == config.qps as usize,
        "the peer counts {} queue pairs",
        sent.len()
    );
    if !config.verify || task.is_latency() && !config.test.is_atomic() {
        return Ok(0);
    }
    let mut verified = 0;
    let mut scratch = Scratch::new(task);
    for (qp, sent) in (0_u64..).zip(sent) {
        match config.test {
            Test::Write => {
                for number in sent.saturating_sub(task.layout.slots)..*sent {
                    let at = task.layout.inbox(qp, number);
                    scratch.verify(task, end, (qp, number), at, 0)?;
                    verified += 1;
                }
            }
            Test::FetchAdd | Test::CmpSwap => {
                let mut word = [0; 8];
                end.read(task.layout.inbox(qp, 0), &mut word)?;
                let value = u64::from_ne_bytes(word);
                ensure!(
                    value == *sent,
                    "after {sent} atomic operations the number is {value}"
                );
                verified += 1;
            }
            _ => {}
        }
    }
    Ok(verified)
}

/// Returns the number of messages that did not arrive, if they were counted and may be lost.
pub fn lost<'a>(
    config: &Config,
    sent: &[Vec<u64>],
    received: impl Iterator<Item = Option<&'a Vec<u64>>>,
) -> Result<Option<u64>> {
    if !config.is_counted() {
        return Ok(None);
    }
    let received: u64 = received.flatten().flatten().sum();
    let sent = sent.iter().flatten();
    let sent = sent.fold(0, |sum: u64, n| sum.saturating_add(*n));
    let lost = sent.checked_sub(received);
    let lost = lost.filter(|lost| *lost == 0 || config.is_lossy());
    let lost = lost.with_context(|| format!("of {sent} messages {received} arrived"))?;
    Ok(config.is_lossy().then_some(lost))
}

/// Runs the client.
pub fn measure<E: End>(task: &Task<'_>, end: &mut E) -> Result<Measured> {
    if !task.is_latency() {
        return Flow::new(task).run(end);
    }
    match task.config.test {
        Test::Write if !task.event() => ping(task, end, |side, end, i, last| {
            let mark = if last { LAST_MARK } else { mark(i) };
            side.write(end, i, mark)?;
            side.arrival(end, i, |got| got == mark).map(drop)
        }),
        _ if task.by_receives() => ping(task, end, |side, end, i, last| {
            let ops = side.ops(end, i, last)?;
            side.exchange(end, i, &ops).map(drop)
        }),
        _ => one_by_one(task, end),
    }
}

/// Returns the mark of message number `i`, which is not the last.
fn mark(i: u64) -> u8 {
    (i % 254) as u8 + 1
}

/// Repeats `round`, which sends a message and waits for the answer.
fn ping<E: End>(
    task: &Task<'_>,
    end: &mut E,
    mut round: impl FnMut(&mut Side<'_>, &mut E, u64, bool) -> Result<()>,
) -> Result<Measured> {
    let mut side = Side::new(task);
    let mut latencies = Latencies::new()?;
    let mut limit = Limit::new(task.config);
    let began = Instant::now();
    let mut posted = began;
    let mut i = 0;
    loop {
        let last = limit.is_last(i, posted, task.control);
        round(&mut side, end, i, last)?;
        side.make_room(end, false)?;
        let now = Instant::now();
        if i >= task.config.warmup {
            latencies.record(now.duration_since(posted) / 2);
        }
        posted = now;
        i += 1;
        if last {
            break;
        }
    }
    side.make_room(end, true)?;
    Ok(of_latencies(task, latencies, i, began.elapsed()))
}

fn write_pong<E: End>(task: &Task<'_>, end: &mut E) -> Result<u64> {
    let mut side = Side::new(task);
    for i in 0.. {
        let want = mark(i);
        let got = side.arrival(end, i, |got| got == want || got == LAST_MARK)?;
        side.write(end, i, got)?;
        side.make_room(end, false)?;
        if got == LAST_MARK {
            side.make_room(end, true)?;
            return Ok(side.verified);
        }
    }
    Ok(0)
}

fn message_pong<E: End>(task: &Task<'_>, end: &mut E) -> Result<u64> {
    let mut side = Side::new(task);
    let mut last = side.exchange(end, 0, &[])?;
    for i in 0.. {
        let ops = side.ops(end, i, last)?;
        if last {
            end.post(&ops)?;
            side.make_room(end, true)?;
            return Ok(side.verified);
        }
        // One call posts the answer and sleeps until the next message.
        last = side.exchange(end, i + 1, &ops)?;
        side.make_room(end, false)?;
    }
    Ok(0)
}

/// A side of an exchange, one message at a time.
struct Side<'a> {
    task: &'a Task<'a>,
    scratch: Scratch,
    /// Outstanding signaled requests.
    signaled: u64,
    done: Vec<Done>,
    verified: u64,
}

impl<'a> Side<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        Self {
            task,
            scratch: Scratch::new(task),
            signaled: 0,
            done: Vec::with_capacity(64),
            verified: 0,
        }
    }

    /// Counts the next request, number `i`, and returns whether it is signaled.
    fn is_signaled(&mut self, i: u64, last: bool) -> bool {
        let signaled = (i + 1) % u64::from(self.task.config.cq_mod) == 0 || last;
        self.signaled += u64::from(signaled);
        signaled
    }

    /// Takes the completions of its own requests, and returns whether there were any.
    fn reap<E: End>(&mut self, end: &mut E) -> Result<bool> {
        if self.signaled == 0 {
            return Ok(false);
        }
        self.done.clear();
        let n = end.reap(Queue::Send, &mut self.done)? as u64;
        self.signaled -= n;
        Ok(n != 0)
    }

    /// Waits until the requests up to the next signaled one fit, or until all are complete.
    fn make_room<E: End>(&mut self, end: &mut E, all: bool) -> Result<()> {
        let (task, config) = (self.task, self.task.config);
        let (every, depth) = (u64::from(config.cq_mod), u64::from(config.depth));
        loop {
            self.reap(end)?;
            let full = (self.signaled + 1) * every > depth;
            if !(self.signaled != 0 && (all || full)) {
                return Ok(());
            }
            if task.event() {
                end.post_and_wait(&[], Queue::Send, 1)?;
            } else {
                let what = "the end of what was posted";
                task.control.spin(what, || self.reap(end))?;
            }
        }
    }

    // --- writes, whose last byte the peer polls: one slot is enough

    fn write<E: End>(&mut self, end: &mut E, i: u64, mark: u8) -> Result<()> {
        let layout = &self.task.layout;
        let (inbox, outbox) = (layout.inbox(0, 0), layout.outbox(0, 0));
        if self.task.config.verify {
            self.scratch.fill(self.task, end, (0, i), outbox)?;
        }
        end.store(outbox + u64::from(layout.size) - 1, mark)?;
        let mut op = Op::new(Kind::Write, 0, outbox, inbox, layout.size);
        op.inline = self.task.inline();
        op.signaled = self.is_signaled(i, mark == LAST_MARK);
        end.post(&[op])
    }

    /// Polls until the peer's message arrived, and returns its mark.
    fn arrival<E: End>(
        &mut self,
        end: &mut E,
        i: u64,
        expected: impl Fn(u8) -> bool,
    ) -> Result<u8> {
        let task = self.task;
        let inbox = task.layout.inbox(0, 0);
        let at = inbox + u64::from(task.layout.size) - 1;
        let mut got = 0;
        task.control.spin(task.awaited(), || {
            got = end.load(at)?;
            Ok(expected(got))
        })?;
        if task.config.verify {
            // Adapters with relaxed ordering may place the last byte before the others.
            let until = Instant::now() + task.control.timeout;
            while let Err(wrong) = self.scratch.verify(task, end, (0, i), inbox, 1) {
                task.control.check()?;
                ensure!(Instant::now() < until, wrong);
            }
            self.verified += 1;
        }
        Ok(got)
    }

    // --- messages that consume receives: sends, or writes with immediate data

    /// Returns message number `i`, and the receive for the message after the next.
    fn ops<E: End>(&mut self, end: &E, i: u64, last: bool) -> Result<[Op; 2]> {
        let (task, layout) = (self.task, &self.task.layout);
        let (inbox, outbox) = (layout.inbox(0, i), layout.outbox(0, i));
        if task.config.verify {
            self.scratch.fill(task, end, (0, i), outbox)?;
        }
        let is_write = task.config.test != Test::Send;
        let kind = if is_write { Kind::Write } else { Kind::Send };
        let mut op = Op::new(kind, 0, outbox, inbox, layout.size);
        op.inline = task.inline();
        op.signaled = self.is_signaled(i, last);
        op.imm = match (last, is_write) {
            (true, _) => Some(LAST_IMM),
            (false, true) => Some(0),
            (false, false) => None,
        };
        Ok([receive(task, 0, i + 2), op])
    }

    /// Posts `ops`, waits for the peer's message number `i`, and returns whether it is the last.
    fn exchange<E: End>(&mut self, end: &mut E, i: u64, ops: &[Op]) -> Result<bool> {
        let (task, done) = (self.task, &mut self.done);
        done.clear();
        post_and_await(task, end, ops, Queue::Recv, done)?;
        let [done] = done.as_slice() else {
            bail!("{} messages where one was due", done.len());
        };
        let imm = done.imm;
        if task.config.verify {
            let at = task.layout.inbox(0, i);
            self.scratch.verify(task, end, (0, i), at, 0)?;
            self.verified += 1;
        }
        Ok(imm == Some(LAST_IMM))
    }
}

/// Posts requests, and waits for a completion.
fn post_and_await<E: End>(
    task: &Task<'_>,
    end: &mut E,
    ops: &[Op],
    queue: Queue,
    done: &mut Vec<Done>,
) -> Result<()> {
    if task.event() {
        end.post_and_wait(ops, queue, 1)?;
        while end.reap(queue, done)? == 0 {
            end.post_and_wait(&[], queue, 1)?;
        }
        return Ok(());
    }
    if !ops.is_empty() {
        end.post(ops)?;
    }
    let what = match queue {
        Queue::Send => "the completion",
        Queue::Recv => task.awaited(),
    };
    task.control.spin(what, || Ok(end.reap(queue, done)? != 0))
}

fn of_latencies(
    task: &Task<'_>,
    latencies: Latencies,
    messages: u64,
    elapsed: Duration,
) -> Measured {
    Measured {
        latencies: Some(latencies),
        messages: messages.saturating_sub(task.config.warmup),
        elapsed,
        peak: 0.0,
        sent: vec![messages],
        // Every answer was verified.
        verified: if task.config.verify { messages } else { 0 },
    }
}

/// Returns the immediate data of message number `number`.
fn numbered(number: u64) -> u32 {
    FIRST_IMM + (number % NUMBERS) as u32
}

/// Returns request number `number` of a queue pair, for reads, writes and atomics.
fn request(task: &Task<'_>, qp: u64, number: u64) -> Op {
    let layout = &task.layout;
    let (inbox, outbox) = (layout.inbox(qp, number), layout.outbox(qp, number));
    let size = layout.size;
    match task.config.test {
        Test::Read => Op::new(Kind::Read, qp, inbox, outbox, size),
        Test::Send => {
            let mut op = Op::new(Kind::Send, qp, outbox, 0, size);
            op.imm = task.config.is_lossy().then(|| numbered(number));
            op
        }
        Test::FetchAdd | Test::CmpSwap => {
            // The results have slots; the operand is one number per queue pair.
            let add = task.config.test == Test::FetchAdd;
            let kind = if add { Kind::FetchAdd } else { Kind::CmpSwap };
            let result = task.result(qp, number);
            let mut op = Op::new(kind, qp, result, layout.inbox(qp, 0), 8);
            op.args = if add { (1, 0) } else { (number, number + 1) };
            op
        }
        _ => {
            let mut op = Op::new(Kind::Write, qp, outbox, inbox, size);
            op.inline = task.inline();
            op.imm = (task.config.test == Test::WriteImm).then(|| numbered(number));
            op
        }
    }
}

/// Prepares the contents of a request before it is posted.
fn dress<E: End>(
    task: &Task<'_>,
    end: &E,
    scratch: &mut Scratch,
    qp: u64,
    number: u64,
) -> Result<()> {
    let at = match task.config.test {
        Test::Write | Test::WriteImm | Test::Send => task.layout.outbox(qp, number),
        // Changes the buffer, so that old data does not pass for read data.
        _ => task.result(qp, number),
    };
    scratch.fill(task, end, (qp, number), at)
}

/// Verifies a completed request, and returns whether it had contents to verify.
fn look<E: End>(
    task: &Task<'_>,
    end: &E,
    scratch: &mut Scratch,
    qp: u64,
    number: u64,
) -> Result<bool> {
    let at = task.result(qp, number);
    match task.config.test {
        Test::Read => {
            let slot = number % task.layout.slots;
            scratch.verify(task, end, (qp, slot), at, 0)?;
            Ok(true)
        }
        Test::FetchAdd | Test::CmpSwap => {
            let mut word = [0; 8];
            end.read(at, &mut word)?;
            let value = u64::from_ne_bytes(word);
            ensure!(value == number, "atomic operation {number} found {value}");
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Repeats posting a request and waiting for its completion.
fn one_by_one<E: End>(task: &Task<'_>, end: &mut E) -> Result<Measured> {
    let mut latencies = Latencies::new()?;
    let mut limit = Limit::new(task.config);
    let mut scratch = Scratch::new(task);
    let mut done = Vec::with_capacity(64);
    let began = Instant::now();
    let mut i = 0;
    let mut verified = 0;
    loop {
        let op = request(task, 0, i);
        if task.config.verify {
            dress(task, end, &mut scratch, 0, i)?;
        }
        let posted = Instant::now();
        let last = limit.is_last(i, posted, task.control);
        done.clear();
        post_and_await(task, end, &[op], Queue::Send, &mut done)?;
        let took = posted.elapsed();
        if i >= task.config.warmup {
            latencies.record(took);
        }
        if task.config.verify && look(task, end, &mut scratch, 0, i)? {
            verified += 1;
        }
        i += 1;
        if last {
            break;
        }
    }
    let mut measured = of_latencies(task, latencies, i, began.elapsed());
    measured.verified = verified;
    Ok(measured)
}

/// The state of a loop with many outstanding requests.
struct Flow<'a> {
    task: &'a Task<'a>,
    depth: u64,
    /// Requests per queue pair: posted, outstanding, complete.
    posted: Vec<u64>,
    flying: Vec<u64>,
    done: Vec<u64>,
    /// The queue pair whose turn it is.
    turn: usize,
    /// Outstanding signaled requests.
    signals: u64,
    ops: Vec<Op>,
    reaped: Vec<Done>,
    scratch: Scratch,
    verified: u64,
}

/// The best tenth of a run.
struct Peak {
    slice: u64,
    time: Duration,
    began: Instant,
    messages: u64,
    best: f64,
}

impl Peak {
    fn new(amount: Amount, list: u64, began: Instant) -> Self {
        let (slice, time) = match amount {
            Amount::Iterations(n) => ((n / 10).max(list).max(1), Duration::ZERO),
            Amount::Millis(ms) => (list.max(1), Duration::from_millis(ms) / 10),
        };
        Self {
            slice,
            time,
            began,
            messages: 0,
            best: 0.0,
        }
    }

    fn add(&mut self, messages: u64) {
        self.messages += messages;
        if self.messages >= self.slice {
            let now = Instant::now();
            let took = now.duration_since(self.began);
            if took >= self.time && !took.is_zero() {
                self.best = self.best.max(self.messages as f64 / took.as_secs_f64());
                (self.began, self.messages) = (now, 0);
            }
        }
    }
}

impl<'a> Flow<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        let qps = task.config.qps as usize;
        Self {
            task,
            depth: task.layout.depth(task.config),
            posted: vec![0; qps],
            flying: vec![0; qps],
            done: vec![0; qps],
            turn: 0,
            signals: 0,
            ops: Vec::with_capacity(task.config.list as usize),
            reaped: Vec::with_capacity(256),
            scratch: Scratch::new(task),
            verified: 0,
        }
    }

    /// Distributes a list of `n` over the queue pairs, from the one whose turn it is.
    ///
    /// Returns queue pairs, each with a number of requests.
    fn shares(&self, n: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (qps, turn) = (self.flying.len(), self.turn);
        let (each, more) = (n / qps as u64, n % qps as u64);
        (0..qps)
            .map(move |i| ((turn + i) % qps, each + u64::from((i as u64) < more)))
            .filter(|(_, share)| *share != 0)
    }

    fn fits(&self, n: u64) -> bool {
        self.shares(n)
            .all(|(qp, share)| self.flying.get(qp).is_some_and(|f| f + share <= self.depth))
    }

    /// Creates the requests of a list of `n`.
    fn fill<E: End>(&mut self, end: &E, n: u64) -> Result<()> {
        let task = self.task;
        self.ops.clear();
        for (qp, share) in self.shares(n) {
            let (Some(posted), Some(flying)) = (self.posted.get_mut(qp), self.flying.get_mut(qp))
            else {
                continue;
            };
            // Requests since the last signaled one.
            let mut since = 0;
            for i in 1..=share {
                if task.config.verify {
                    dress(task, end, &mut self.scratch, qp as u64, *posted)?;
                }
                let mut op = request(task, qp as u64, *posted);
                since += 1;
                op.signaled = i == share || since == u64::from(task.config.cq_mod);
                op.id = ((qp as u64) << 32) | since;
                if op.signaled {
                    self.signals += 1;
                    since = 0;
                }
                self.ops.push(op);
                *posted += 1;
            }
            *flying += share;
        }
        let qps = self.flying.len();
        self.turn = (self.turn + (n as usize % qps)) % qps;
        Ok(())
    }

    /// Takes completions, and returns the number of messages that they complete.
    fn reap<E: End>(&mut self, end: &mut E) -> Result<u64> {
        self.reaped.clear();
        end.reap(Queue::Send, &mut self.reaped)?;
        let mut messages = 0;
        for done in &self.reaped {
            let (qp, share) = ((done.id >> 32) as usize, done.id & 0xffff_ffff);
            let (Some(flying), Some(count)) = (self.flying.get_mut(qp), self.done.get_mut(qp))
            else {
                bail!("a completion of no queue pair");
            };
            ensure!(*flying >= share, "more completions than requests");
            *flying -= share;
            self.signals -= 1;
            if self.task.config.verify {
                for number in *count..*count + share {
                    let (task, scratch) = (self.task, &mut self.scratch);
                    self.verified += u64::from(look(task, end, scratch, qp as u64, number)?);
                }
            }
            *count += share;
            messages += share;
        }
        Ok(messages)
    }

    /// Sleeps or polls until there is a completion.
    ///
    /// With `post`, the same call posts the requests that `fill` created.
    fn wait<E: End>(&mut self, end: &mut E, post: bool, min: u64) -> Result<u64> {
        if self.task.event() {
            let ops = if post { self.ops.as_slice() } else { &[] };
            let min = min.clamp(1, self.signals.max(1)) as u32;
            end.post_and_wait(ops, Queue::Send, min)?;
            return self.reap(end);
        }
        if post {
            end.post(&self.ops)?;
        }
        let mut messages = 0;
        let control = self.task.control;
        control.spin("a completion", || {
            messages = self.reap(end)?;
            Ok(messages != 0)
        })?;
        Ok(messages)
    }

    /// Posts lists until the end condition holds, and waits for all completions.
    fn phase<E: End>(&mut self, end: &mut E, amount: Amount, peak: &mut Peak) -> Result<u64> {
        let began = Instant::now();
        let most_per_s = self.task.config.most_per_s(self.task.layout.size);
        let list = u64::from(self.task.config.list).min(self.depth * self.flying.len() as u64);
        // Completions per list.
        let every = u64::from(self.task.config.cq_mod);
        let each = self.shares(list).map(|(_, share)| share.div_ceil(every));
        let each = each.sum();
        let mut total = 0;
        loop {
            let n = match amount {
                _ if self.task.control.stopped() => 0,
                Amount::Iterations(all) => list.min(all - total),
                Amount::Millis(ms) if began.elapsed() < Duration::from_millis(ms) => list,
                Amount::Millis(_) => 0,
            };
            if n == 0 {
                break;
            }
            while !self.fits(n) {
                let done = self.wait(end, false, each)?;
                peak.add(done);
            }
            if let Some(most_per_s) = most_per_s {
                let due = began + Duration::from_secs_f64(total as f64 / most_per_s);
                self.pause(end, due, peak)?;
            }
            self.fill(end, n)?;
            total += n;
            let done = if self.task.event() && !self.fits(list) {
                self.wait(end, true, each)?
            } else {
                end.post(&self.ops)?;
                self.reap(end)?
            };
            peak.add(done);
        }
        while self.signals != 0 {
            let done = self.wait(end, false, self.signals)?;
            peak.add(done);
        }
        Ok(total)
    }

    /// Waits until `due`, while it takes completions.
    fn pause<E: End>(&mut self, end: &mut E, due: Instant, peak: &mut Peak) -> Result<()> {
        let control = self.task.control;
        loop {
            control.check()?;
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() || control.stopped() {
                return Ok(());
            }
            peak.add(self.reap(end)?);
            std::thread::sleep(left.min(PAUSE));
        }
    }

    fn run<E: End>(mut self, end: &mut E) -> Result<Measured> {
        let config = self.task.config;
        let mut peak = Peak::new(config.amount, config.list.into(), Instant::now());
        if config.warmup != 0 {
            self.phase(end, Amount::Iterations(config.warmup), &mut peak)?;
        }
        let began = Instant::now();
        peak = Peak::new(config.amount, config.list.into(), began);
        let messages = self.phase(end, config.amount, &mut peak)?;
        let elapsed = began.elapsed();
        if self.task.by_receives() {
            self.farewell(end)?;
        }
        let average = messages as f64 / elapsed.as_secs_f64().max(1e-9);
        Ok(Measured {
            latencies: None,
            messages,
            elapsed,
            peak: peak.best.max(average),
            verified: self.verified,
            sent: self.posted,
        })
    }

    /// Sends the last message on each queue pair. Where it may be lost, it is repeated until the peer
    /// has it.
    fn farewell<E: End>(&mut self, end: &mut E) -> Result<()> {
        let began = Instant::now();
        let control = self.task.control;
        let lossy = self.task.config.is_lossy();
        self.last_messages(end)?;
        while lossy && !control.heard.load(Ordering::Relaxed) {
            control.check()?;
            ensure!(
                began.elapsed() < control.timeout,
                "the peer did not receive the last message for {:?}",
                control.timeout
            );
            std::thread::sleep(AGAIN);
            self.last_messages(end)?;
        }
        Ok(())
    }

    fn last_messages<E: End>(&mut self, end: &mut E) -> Result<()> {
        for qp in 0..self.flying.len() {
            let number = self.posted.get(qp).copied().unwrap_or(0);
            let mut op = request(self.task, qp as u64, number);
            op.imm = Some(LAST_IMM);
            op.id = (qp as u64) << 32;
            self.signals += 1;
            end.post(&[op])?;
        }
        while self.signals != 0 {
            if self.task.event() {
                end.post_and_wait(&[], Queue::Send, self.signals as u32)?;
            }
            self.reap(end)?;
            self.task.control.check()?;
        }
        Ok(())
    }
}

/// The receives of a side, on all its queue pairs.
struct Receiver<'a> {
    task: &'a Task<'a>,
    rx_depth: u64,
    queues: Vec<Received>,
    verified: u64,
    /// The receives to post again.
    again: Vec<Op>,
    scratch: Scratch,
}

/// The receives of a queue pair.
#[derive(Clone, Copy, Default)]
struct Received {
    /// Completed receives.
    taken: u64,
    /// Messages without the last one.
    messages: u64,
    is_over: bool,
}

impl<'a> Receiver<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        Self {
            task,
            rx_depth: task.layout.rx_depth(task.config),
            queues: vec![Received::default(); task.config.qps as usize],
            verified: 0,
            again: Vec::with_capacity(256),
            scratch: Scratch::new(task),
        }
    }

    /// Returns whether the last message of each queue pair has arrived.
    fn is_over(&self) -> bool {
        self.queues.iter().all(|queue| queue.is_over)
    }

    fn messages(&self) -> u64 {
        self.queues.iter().map(|queue| queue.messages).sum()
    }

    /// Returns the number of messages on each queue pair.
    fn counts(&self) -> Vec<u64> {
        self.queues.iter().map(|queue| queue.messages).collect()
    }

    /// Takes a completed receive, and prepares another one in its place.
    fn take<E: End>(&mut self, end: &E, done: &Done) -> Result<()> {
        let (task, tag) = (self.task, done.id & !RECEIVE);
        let shared = task.config.srq;
        let qp = if shared { done.qp.into() } else { tag };
        let Some(queue) = self.queues.get_mut(qp as usize) else {
            bail!("a completion of no queue pair");
        };
        // Where the message arrived, and the next one to arrive there.
        let (place, number, next) = match shared {
            true => (0, tag, tag),
            false => (qp, queue.taken, queue.taken + self.rx_depth),
        };
        queue.taken += 1;
        self.again.push(receive(task, place, next));
        if done.imm == Some(LAST_IMM) {
            let again = std::mem::replace(&mut queue.is_over, true);
            if !again && self.is_over() {
                task.control.over.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(());
        }
        if task.config.verify {
            let named = done.imm.and_then(|imm| imm.checked_sub(FIRST_IMM));
            let name = named.map_or(queue.messages, u64::from);
            let at = task.layout.inbox(place, number);
            self.scratch.verify(task, end, (qp, name), at, 0)?;
            self.verified += 1;
        }
        queue.messages += 1;
        Ok(())
    }

    /// Posts the receives again, and waits for completions.
    fn wait<E: End>(&mut self, end: &mut E, done: &mut Vec<Done>) -> Result<()> {
        let task = self.task;
        if task.event() {
            end.post_and_wait(&self.again, Queue::Recv, self.expected())?;
            self.again.clear();
            end.reap(Queue::Recv, done)?;
            return Ok(());
        }
        if !self.again.is_empty() {
            end.post(&self.again)?;
            self.again.clear();
        }
        task.control
            .spin(task.awaited(), || Ok(end.reap(Queue::Recv, done)? != 0))
    }

    /// Returns the number of messages to sleep for: a list, if all of it is sure to arrive.
    fn expected(&self) -> u32 {
        let list = u64::from(self.task.config.list).min(self.rx_depth);
        match self.task.config.messages() {
            Some(total) if !self.task.config.is_lossy() && self.messages() + list <= total => {
                list.clamp(1, self.rx_depth.div_ceil(2)) as u32
            }
            _ => 1,
        }
    }
}

/// Receives messages until each queue pair had its last.
fn receiver<E: End>(task: &Task<'_>, end: &mut E) -> Result<Served> {
    let mut receiver = Receiver::new(task);
    let mut done = Vec::with_capacity(256);
    while !receiver.is_over() {
        done.clear();
        receiver.wait(end, &mut done)?;
        for one in &done {
            receiver.take(end, one)?;
        }
    }
    Ok(Served {
        verified: receiver.verified,
        received: Some(receiver.counts()),
    })
}
