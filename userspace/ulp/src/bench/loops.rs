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
//! client's last message says that it is the last.
//!
//! UC and UD may lose messages. There the client repeats the last message until the server has it, and
//! the server counts what arrived.

use super::config::{Amount, Config, Metric, Mode, Test, Transport};
use super::end::{Done, End, Kind, Op, Queue, Task};
use super::stats::Latencies;
use anyhow::{bail, ensure, Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The last byte of the last written message; others have 1 to 254.
const LAST_MARK: u8 = 255;
/// Immediate data of the last message.
const LAST_IMM: u32 = 1;
/// The mark of a receive, in its identifier.
const RECEIVE: u64 = 1 << 60;
/// The longest sleep of an end that is ahead of its limit of the rate.
const PAUSE: Duration = Duration::from_millis(1);
/// The interval at which the last message is repeated where it may be lost.
const AGAIN: Duration = Duration::from_millis(10);

/// The measurements of one thread of the client.
#[derive(Clone, Debug)]
pub struct Measured {
    pub latencies: Option<Latencies>,
    pub messages: u64,
    pub elapsed: Duration,
    /// Messages, with those of the warm-up.
    pub sent: u64,
}

/// The end condition of a loop.
pub struct Limit<'a> {
    config: &'a Config,
    began: Option<Instant>,
}

impl<'a> Limit<'a> {
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            began: None,
        }
    }

    /// Returns whether message number `i`, posted at `now`, is the last.
    pub fn is_last(&mut self, i: u64, now: Instant, stop: &AtomicBool) -> bool {
        if stop.load(Ordering::Relaxed) {
            return true;
        }
        match self.config.amount {
            Amount::Iterations(n) => i + 1 >= n.saturating_add(self.config.warmup),
            Amount::Millis(_) if i < self.config.warmup => false,
            Amount::Millis(ms) => {
                let began = *self.began.get_or_insert(now);
                now.duration_since(began) >= Duration::from_millis(ms)
            }
        }
    }
}

impl Task<'_> {
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
}

/// Creates the ends of all threads, which accept receives.
pub fn ends<E: End>(task: &Task<'_>, is_server: bool) -> Result<Vec<E>> {
    let ends = (0..task.config.threads).map(|_| {
        let mut end = E::new(task)?;
        prepare(task, is_server, &mut end)?;
        Ok(end)
    });
    ends.collect()
}

/// Posts receives, before the ends are connected.
fn prepare<E: End>(task: &Task<'_>, is_server: bool, end: &mut E) -> Result<()> {
    let config = task.config;
    if !task.by_receives() || !(is_server || task.is_latency()) {
        return Ok(());
    }
    let receives = if task.is_latency() {
        2
    } else {
        config.rx_depth
    };
    let queues = if config.srq { 1 } else { config.qps };
    for qp in 0..queues.into() {
        for _ in 0..receives {
            end.post(&[receive(task, qp)])?;
        }
    }
    Ok(())
}

fn receive(task: &Task<'_>, qp: u64) -> Op {
    // A device puts the network header of a datagram before the message.
    let head = task.layout.head;
    let at = task.layout.inbox(qp) - u64::from(head);
    let mut op = Op::new(Kind::Recv, qp, at, 0, task.layout.size + head);
    op.id = RECEIVE | qp;
    op
}

/// Runs the server while the client measures.
///
/// Returns the number of messages that arrived, if the test counts them.
pub fn serve<E: End>(task: &Task<'_>, end: &mut E) -> Result<u64> {
    match task.config.test {
        Test::Write if task.is_latency() && !task.event() => write_pong(task, end)?,
        _ if task.by_receives() && task.is_latency() => message_pong(task, end)?,
        Test::Send | Test::WriteImm => return receiver(task, end),
        _ => {}
    }
    Ok(0)
}

/// Returns the number of messages that did not arrive, if they were counted and may be lost.
pub fn lost(config: &Config, sent: u64, received: u64) -> Result<Option<u64>> {
    if !config.is_counted() {
        return Ok(None);
    }
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
            side.arrival(end, |got| got == mark).map(drop)
        }),
        _ if task.by_receives() => ping(task, end, |side, end, i, last| {
            let ops = side.ops(i, last);
            side.exchange(end, &ops).map(drop)
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
    let measured = latencies(task, |posted, i, last| {
        round(&mut side, end, i, last)?;
        side.make_room(end, false)?;
        let before = std::mem::replace(posted, Instant::now());
        Ok(posted.duration_since(before) / 2)
    })?;
    side.make_room(end, true)?;
    Ok(measured)
}

/// Repeats `round`, which is given the time of the previous request, the number of its own, and
/// whether it is the last; it sets the time, and returns a latency.
fn latencies(
    task: &Task<'_>,
    mut round: impl FnMut(&mut Instant, u64, bool) -> Result<Duration>,
) -> Result<Measured> {
    let mut latencies = Latencies::new()?;
    let mut limit = Limit::new(task.config);
    let mut began = None;
    let mut posted = Instant::now();
    let mut messages = 0;
    let mut last = false;
    while !last {
        if messages == task.config.warmup {
            posted = Instant::now();
            began = Some(posted);
        }
        last = limit.is_last(messages, posted, &task.control.stop);
        let took = round(&mut posted, messages, last)?;
        if messages >= task.config.warmup {
            latencies.record(took);
        }
        messages += 1;
    }
    Ok(Measured {
        latencies: Some(latencies),
        messages: messages.saturating_sub(task.config.warmup),
        elapsed: began.map_or(Duration::ZERO, |began| began.elapsed()),
        sent: messages,
    })
}

fn write_pong<E: End>(task: &Task<'_>, end: &mut E) -> Result<()> {
    let mut side = Side::new(task);
    for i in 0.. {
        let want = mark(i);
        let got = side.arrival(end, |got| got == want || got == LAST_MARK)?;
        side.write(end, i, got)?;
        side.make_room(end, false)?;
        if got == LAST_MARK {
            break;
        }
    }
    side.make_room(end, true)
}

fn message_pong<E: End>(task: &Task<'_>, end: &mut E) -> Result<()> {
    let mut side = Side::new(task);
    let mut last = side.exchange(end, &[])?;
    for i in 0.. {
        let ops = side.ops(i, last);
        if last {
            end.post(&ops)?;
            break;
        }
        // One call posts the answer and sleeps until the next message.
        last = side.exchange(end, &ops)?;
        side.make_room(end, false)?;
    }
    side.make_room(end, true)
}

/// A side of an exchange, one message at a time.
struct Side<'a> {
    task: &'a Task<'a>,
    /// Outstanding signaled requests.
    signaled: u64,
    done: Vec<Done>,
}

impl<'a> Side<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        Self {
            task,
            signaled: 0,
            done: Vec::with_capacity(64),
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

    // --- writes, whose last byte the peer polls

    fn write<E: End>(&mut self, end: &mut E, i: u64, mark: u8) -> Result<()> {
        let layout = &self.task.layout;
        let (inbox, outbox) = (layout.inbox(0), layout.outbox(0));
        end.store(outbox + u64::from(layout.size) - 1, mark)?;
        let mut op = Op::new(Kind::Write, 0, outbox, inbox, layout.size);
        op.inline = self.task.inline();
        op.signaled = self.is_signaled(i, mark == LAST_MARK);
        end.post(&[op])
    }

    /// Polls until the peer's message arrived, and returns its mark.
    fn arrival<E: End>(&mut self, end: &mut E, expected: impl Fn(u8) -> bool) -> Result<u8> {
        let task = self.task;
        let inbox = task.layout.inbox(0);
        let at = inbox + u64::from(task.layout.size) - 1;
        let mut got = 0;
        task.control.spin(task.awaited(), || {
            got = end.load(at)?;
            Ok(expected(got))
        })?;
        Ok(got)
    }

    // --- messages that consume receives: sends, or writes with immediate data

    /// Returns message number `i`, and the receive for the message after the next.
    fn ops(&mut self, i: u64, last: bool) -> [Op; 2] {
        let (task, layout) = (self.task, &self.task.layout);
        let (inbox, outbox) = (layout.inbox(0), layout.outbox(0));
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
        [receive(task, 0), op]
    }

    /// Posts `ops`, waits for the peer's message, and returns whether it is the last.
    fn exchange<E: End>(&mut self, end: &mut E, ops: &[Op]) -> Result<bool> {
        let (task, done) = (self.task, &mut self.done);
        done.clear();
        post_and_await(task, end, ops, (Queue::Recv, 1), done)?;
        let [done] = done.as_slice() else {
            bail!("{} messages where one was due", done.len());
        };
        Ok(done.imm == Some(LAST_IMM))
    }
}

/// Posts requests, and waits for a completion, or sleeps until there are `min`.
fn post_and_await<E: End>(
    task: &Task<'_>,
    end: &mut E,
    ops: &[Op],
    (queue, min): (Queue, u32),
    done: &mut Vec<Done>,
) -> Result<()> {
    if task.event() {
        end.post_and_wait(ops, queue, min)?;
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

/// Returns request number `number` of a queue pair.
fn request(task: &Task<'_>, qp: u64, number: u64) -> Op {
    let layout = &task.layout;
    let (inbox, outbox) = (layout.inbox(qp), layout.outbox(qp));
    let size = layout.size;
    match task.config.test {
        Test::Read => Op::new(Kind::Read, qp, inbox, outbox, size),
        Test::Send => Op {
            inline: task.inline(),
            ..Op::new(Kind::Send, qp, outbox, 0, size)
        },
        Test::FetchAdd | Test::CmpSwap => {
            // The operand is one number per queue pair.
            let add = task.config.test == Test::FetchAdd;
            let kind = if add { Kind::FetchAdd } else { Kind::CmpSwap };
            let mut op = Op::new(kind, qp, outbox, inbox, 8);
            op.args = if add { (1, 0) } else { (number, number + 1) };
            op
        }
        _ => {
            let mut op = Op::new(Kind::Write, qp, outbox, inbox, size);
            op.inline = task.inline();
            op.imm = (task.config.test == Test::WriteImm).then_some(0);
            op
        }
    }
}

/// Repeats posting a request and waiting for its completion.
fn one_by_one<E: End>(task: &Task<'_>, end: &mut E) -> Result<Measured> {
    let mut done = Vec::with_capacity(64);
    latencies(task, |posted, i, _| {
        let op = request(task, 0, i);
        done.clear();
        *posted = Instant::now();
        post_and_await(task, end, &[op], (Queue::Send, 1), &mut done)?;
        Ok(posted.elapsed())
    })
}

/// The state of a loop with many outstanding requests.
struct Flow<'a> {
    task: &'a Task<'a>,
    depth: u64,
    /// Requests per queue pair: posted, outstanding.
    posted: Vec<u64>,
    flying: Vec<u64>,
    /// The queue pair whose turn it is.
    turn: usize,
    /// Outstanding signaled requests.
    signals: u64,
    ops: Vec<Op>,
    reaped: Vec<Done>,
}

impl<'a> Flow<'a> {
    fn new(task: &'a Task<'a>) -> Self {
        let qps = task.config.qps as usize;
        Self {
            task,
            depth: task.config.depth.into(),
            posted: vec![0; qps],
            flying: vec![0; qps],
            turn: 0,
            signals: 0,
            ops: Vec::with_capacity(task.config.list as usize),
            reaped: Vec::with_capacity(256),
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
    fn fill(&mut self, n: u64) {
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
    }

    /// Takes completions, and returns whether there were any.
    fn reap<E: End>(&mut self, end: &mut E) -> Result<bool> {
        self.reaped.clear();
        end.reap(Queue::Send, &mut self.reaped)?;
        for done in &self.reaped {
            let (qp, share) = ((done.id >> 32) as usize, done.id & 0xffff_ffff);
            let flying = self.flying.get_mut(qp);
            let flying = flying.context("a completion of no queue pair")?;
            ensure!(*flying >= share, "more completions than requests");
            *flying -= share;
            self.signals -= 1;
        }
        Ok(!self.reaped.is_empty())
    }

    /// Sleeps or polls until there is a completion.
    ///
    /// With `post`, the same call posts the requests that `fill` created.
    fn wait<E: End>(&mut self, end: &mut E, post: bool, min: u64) -> Result<()> {
        if self.task.event() {
            let ops = if post { self.ops.as_slice() } else { &[] };
            let min = min.clamp(1, self.signals.max(1)) as u32;
            end.post_and_wait(ops, Queue::Send, min)?;
            return self.reap(end).map(drop);
        }
        if post {
            end.post(&self.ops)?;
        }
        let control = &self.task.control;
        control.spin("a completion", || self.reap(end))
    }

    /// Posts lists until the end condition holds, and waits for all completions.
    ///
    /// A limit of the rate does not make it longer than the duration of the row.
    fn phase<E: End>(&mut self, end: &mut E, amount: Amount) -> Result<u64> {
        let began = Instant::now();
        let most_per_s = self.task.config.most_per_s(self.task.layout.size);
        let longest = match self.task.config.amount {
            Amount::Millis(ms) => Duration::from_millis(ms),
            Amount::Iterations(_) => Duration::MAX,
        };
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
                self.wait(end, false, each)?;
            }
            if let Some(most_per_s) = most_per_s {
                let due = Duration::try_from_secs_f64(total as f64 / most_per_s);
                let due = due.unwrap_or(Duration::MAX);
                self.pause(end, began, due.min(longest))?;
                if due >= longest {
                    break;
                }
            }
            self.fill(n);
            total += n;
            if self.task.event() && !self.fits(list) {
                self.wait(end, true, each)?;
            } else {
                end.post(&self.ops)?;
                self.reap(end)?;
            }
        }
        self.finish(end)?;
        Ok(total)
    }

    /// Waits for all completions.
    fn finish<E: End>(&mut self, end: &mut E) -> Result<()> {
        while self.signals != 0 {
            self.wait(end, false, self.signals)?;
        }
        Ok(())
    }

    /// Waits until `due` after `began`, while it takes completions.
    fn pause<E: End>(&mut self, end: &mut E, began: Instant, due: Duration) -> Result<()> {
        let control = &self.task.control;
        loop {
            control.check()?;
            let left = due.saturating_sub(began.elapsed());
            if left.is_zero() || control.stopped() {
                return Ok(());
            }
            self.reap(end)?;
            std::thread::sleep(left.min(PAUSE));
        }
    }

    fn run<E: End>(mut self, end: &mut E) -> Result<Measured> {
        let config = self.task.config;
        if config.warmup != 0 {
            self.phase(end, Amount::Iterations(config.warmup))?;
        }
        let began = Instant::now();
        let messages = self.phase(end, config.amount)?;
        let elapsed = began.elapsed();
        if self.task.by_receives() {
            self.farewell(end)?;
        }
        Ok(Measured {
            latencies: None,
            messages,
            elapsed,
            sent: self.posted.iter().sum(),
        })
    }

    /// Sends the last message on each queue pair. Where it may be lost, it is repeated until the peer
    /// has it.
    fn farewell<E: End>(&mut self, end: &mut E) -> Result<()> {
        let began = Instant::now();
        let control = &self.task.control;
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
        self.finish(end)
    }
}

/// The receives of a side, on all its queue pairs.
struct Receiver<'a> {
    task: &'a Task<'a>,
    /// Messages without the last one of each queue pair.
    messages: u64,
    /// Whether the last message of each queue pair has arrived.
    over: Vec<bool>,
    /// The receives to post again.
    again: Vec<Op>,
}

impl Receiver<'_> {
    fn is_over(&self) -> bool {
        self.over.iter().all(|over| *over)
    }

    /// Takes a completed receive, and prepares another one in its place.
    fn take(&mut self, done: &Done) -> Result<()> {
        let (task, place) = (self.task, done.id & !RECEIVE);
        let qp = if task.config.srq {
            done.qp.into()
        } else {
            place
        };
        self.again.push(receive(task, place));
        if done.imm != Some(LAST_IMM) {
            self.messages += 1;
            return Ok(());
        }
        let over = self.over.get_mut(qp as usize);
        let again = std::mem::replace(over.context("a completion of no queue pair")?, true);
        if !again && self.is_over() {
            task.control.over.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Posts the receives again, and waits for completions.
    fn wait<E: End>(&mut self, end: &mut E, done: &mut Vec<Done>) -> Result<()> {
        let what = (Queue::Recv, self.expected());
        post_and_await(self.task, end, &self.again, what, done)?;
        self.again.clear();
        Ok(())
    }

    /// Returns the number of messages to sleep for: a list, if all of it is sure to arrive.
    fn expected(&self) -> u32 {
        let (config, rx_depth) = (self.task.config, self.task.config.rx_depth);
        let list = config.list.min(rx_depth);
        match config.messages() {
            Some(total) if !config.is_lossy() && self.messages + u64::from(list) <= total => {
                list.clamp(1, rx_depth.div_ceil(2))
            }
            _ => 1,
        }
    }
}

/// Receives messages until each queue pair had its last, and returns their number.
fn receiver<E: End>(task: &Task<'_>, end: &mut E) -> Result<u64> {
    let mut receiver = Receiver {
        task,
        messages: 0,
        over: vec![false; task.config.qps as usize],
        again: Vec::with_capacity(256),
    };
    let mut done = Vec::with_capacity(256);
    while !receiver.is_over() {
        done.clear();
        receiver.wait(end, &mut done)?;
        for one in &done {
            receiver.take(one)?;
        }
    }
    Ok(receiver.messages)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::args::DeviceArg;
    use crate::bench::config::tests::config;
    use crate::bench::end::{DeviceOptions, Run};
    use crate::bench::wire::EndAddress;

    /// An end whose requests are complete as soon as they are posted.
    struct Fake(Vec<Done>);

    impl End for Fake {
        fn new(_: &Task<'_>) -> Result<Self> {
            Ok(Self(Vec::new()))
        }

        fn address(&self) -> EndAddress {
            unreachable!("nobody connects to it")
        }

        fn connect(&mut self, _: &EndAddress) -> Result<()> {
            Ok(())
        }

        fn post(&mut self, ops: &[Op]) -> Result<()> {
            let signaled = ops.iter().filter(|op| op.signaled);
            self.0.extend(signaled.map(|op| Done::new(op.id, None)));
            Ok(())
        }

        fn post_and_wait(&mut self, ops: &[Op], _: Queue, _: u32) -> Result<()> {
            self.post(ops)
        }

        fn reap(&mut self, _: Queue, done: &mut Vec<Done>) -> Result<usize> {
            let n = self.0.len();
            done.append(&mut self.0);
            Ok(n)
        }

        fn load(&self, _: u64) -> Result<u8> {
            Ok(0)
        }

        fn store(&self, _: u64, _: u8) -> Result<()> {
            Ok(())
        }
    }

    /// Calls `test` with the task of a configuration, whose messages have 64 bytes.
    pub fn with_task<T>(config: &Config, test: impl FnOnce(&Task<'_>) -> T) -> T {
        let device = &DeviceOptions {
            name: DeviceArg { name: None },
            ib_port: None,
            gid_index: None,
            port: 0,
            source: None,
        };
        let stop = &std::sync::Arc::new(AtomicBool::new(false));
        let run = Run {
            config,
            device,
            stop,
        };
        test(&Task::new(run, 64))
    }

    #[test]
    fn sends_and_writes_up_to_the_inline_size_are_inline() {
        for (test, inline, want) in [
            (Test::Write, 64, true),
            (Test::WriteImm, 64, true),
            (Test::Send, 64, true),
            (Test::Send, 63, false),
            (Test::Read, 64, false),
            (Test::FetchAdd, 64, false),
            (Test::CmpSwap, 64, false),
        ] {
            let config = Config {
                test,
                inline,
                ..config()
            };
            let op = with_task(&config, |task| request(task, 0, 0));
            assert_eq!(op.inline, want, "{test} {inline}");
        }
    }

    #[test]
    fn the_time_of_a_latency_is_without_the_warm_up() {
        let config = Config {
            metric: Metric::Latency,
            amount: Amount::Iterations(1),
            warmup: 2,
            ..config()
        };
        with_task(&config, |task| {
            let mut since = None;
            let measured = latencies(task, |_, i, _| {
                if i < 2 {
                    std::thread::sleep(Duration::from_millis(10));
                    since = Some(Instant::now());
                }
                Ok(Duration::ZERO)
            });
            let measured = measured.unwrap();
            assert_eq!((measured.messages, measured.sent), (1, 3));
            assert!(measured.elapsed <= since.unwrap().elapsed());
        });
    }

    #[test]
    fn a_limit_of_the_rate_does_not_prolong_a_duration() {
        // The second list is due after an hour, after the end of time.
        for rate in [1e-8, 1e-300] {
            let config = Config {
                test: Test::Write,
                amount: Amount::Millis(20),
                warmup: 100,
                rate_limit: Some(rate),
                ..config()
            };
            with_task(&config, |task| {
                let stop = task.control.stop.clone();
                let (done, result) = std::sync::mpsc::channel();
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let measured = measure(task, &mut Fake(Vec::new()));
                        done.send(measured.unwrap()).unwrap();
                    });
                    let measured = result.recv_timeout(Duration::from_secs(30));
                    stop.store(true, Ordering::Relaxed);
                    let measured = measured.expect("it should have ended");
                    assert_eq!((measured.messages, measured.sent), (64, 128), "{rate}");
                    assert!(measured.elapsed >= Duration::from_millis(20));
                });
            });
        }
    }
}
