// SPDX-License-Identifier: MIT OR Apache-2.0

//! The back end `uring`: requests are entries of an io_uring, and a list is one entry.
//!
//! Completions come through the ring, so the completion queues of the queue pairs stay empty. The
//! other objects are those of [`CallEnd`]. The ring belongs to the thread that measures. The receives
//! that are posted before it runs complete in their queue, which has an eventfd until they are gone.
//!
//! One system call submits and sleeps. With `--sqpoll` a kernel thread submits, and polling makes
//! no system call.

use super::call::CallEnd;
use super::config::RING_ENTRIES;
use super::end::{Control, Done, End, Kind, Op, Queue, Task};
use super::wire::EndAddress;
use anyhow::{bail, Context, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use rust_ulp as ulp;
use rust_ulp::cq::CqEventFd;
use rust_ulp::uring::{Cqe, Ring};
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a thread that waits checks whether the run is over.
const SLICE: Duration = Duration::from_millis(250);
/// The idle time after which the kernel thread sleeps.
const IDLE: Duration = Duration::from_millis(50);
/// The mark of an entry that is a list, in its user data.
const LIST: u64 = 1 << 63;
/// The mark of a receive.
const RECV: u64 = 1 << 62;
/// The mark of an unsignaled request, whose completion is dropped.
const SILENT: u64 = 1 << 61;

pub struct UringEnd {
    // Dropped first, which ends the requests in flight.
    ring: Option<Ring>,
    entries: u32,
    sqpoll: bool,
    end: CallEnd,
    /// The receives that were posted before there was a ring, and have not completed.
    early: usize,
    /// The file that becomes readable when one of those completes.
    early_file: Option<CqEventFd>,
    /// The sends and lists in flight.
    sends: u32,
    /// The signaled requests of each list in flight.
    lists: Vec<Vec<u64>>,
    free: Vec<usize>,
    sent: VecDeque<Done>,
    received: VecDeque<Done>,
    control: Arc<Control>,
}

fn made(ring: &mut Option<Ring>) -> Result<&mut Ring> {
    ring.as_mut().context("there is no ring yet")
}

/// Returns what says whether `timeout` has passed since it was first asked: reading the clock is not
/// part of the measurement.
fn overdue(timeout: Duration) -> impl FnMut() -> bool {
    let mut until = None;
    move || {
        let now = Instant::now();
        now >= *until.get_or_insert(now + timeout)
    }
}

fn is_backpressure(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ulp::Error>();
    error.is_some_and(ulp::Error::is_backpressure)
}

impl UringEnd {
    /// Makes the ring, for the thread that calls.
    fn begin(&mut self) -> Result<()> {
        if self.ring.is_some() {
            return Ok(());
        }
        let mut builder = Ring::builder().entries(self.entries).single_issuer();
        if self.sqpoll {
            builder = builder.sqpoll(IDLE);
        }
        self.ring = Some(builder.build()?);
        if self.early != 0 {
            self.early_file = Some(self.end.recv_cq().eventfd()?);
        }
        Ok(())
    }

    /// Submits the added entries, and waits for a kernel thread that is behind.
    fn submit(&mut self) -> Result<()> {
        let mut overdue = overdue(self.control.timeout);
        loop {
            match made(&mut self.ring)?.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.is_backpressure() && !overdue() => {
                    self.control.check()?;
                    self.drain()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes all completions.
    fn drain(&mut self) -> Result<()> {
        while self.early != 0 {
            let Some(completion) = self.end.recv_cq().poll()? else {
                break;
            };
            let completion = completion.ok()?;
            let done = Done::new(completion.wr_id, completion.imm);
            self.received.push_back(done);
            self.early -= 1;
            if self.early == 0 {
                self.early_file = None;
            }
        }
        while let Some(finished) = made(&mut self.ring)?.poll()? {
            self.take(finished)?;
        }
        Ok(())
    }

    fn take(&mut self, finished: Cqe) -> Result<()> {
        let number = finished.wr_id;
        let completion = finished.result?.ok()?;
        if number & RECV == 0 {
            self.sends = self.sends.saturating_sub(1);
        }
        if number & LIST != 0 {
            let index = (number & !LIST) as usize;
            let ids = self
                .lists
                .get_mut(index)
                .context("a completion of no list")?;
            self.sent
                .extend(ids.drain(..).map(|id| Done::new(id, None)));
            self.free.push(index);
        } else if number & RECV != 0 {
            let done = Done::new(number & !RECV, completion.imm);
            self.received.push_back(done);
        } else if number & SILENT == 0 {
            self.sent.push_back(Done::new(number, None));
        }
        Ok(())
    }

    /// Returns the number of a list of sends in flight, of which it notes the signaled ones.
    fn list(&mut self, ops: &[Op]) -> Result<u64> {
        let index = self.free.pop().unwrap_or(self.lists.len());
        if index == self.lists.len() {
            self.lists.push(Vec::new());
        }
        let ids = self.lists.get_mut(index).context("no such list")?;
        ids.clear();
        ids.extend(ops.iter().filter(|op| op.signaled).map(|op| op.id));
        Ok(index as u64)
    }

    /// Adds requests as one entry: a receive, or sends.
    fn push(&mut self, ops: &[Op]) -> Result<()> {
        let number = match ops {
            [_] => SILENT,
            _ => LIST | self.list(ops)?,
        };
        loop {
            let ring = made(&mut self.ring)?;
            let pushed = match ops {
                [op] if op.kind == Kind::Recv => {
                    let id = op.id | RECV;
                    self.end.push(ring, &Op { id, ..*op })
                }
                [op] if op.signaled => self.end.push(ring, op),
                // It needs no completion of the device, only of io_uring.
                [_] => {
                    let posted = self.end.batch(ops)?.post_by(ring, number);
                    posted.map_err(Into::into)
                }
                // One completion for all: only the last of a queue pair has to be signaled.
                _ => {
                    let posted = self.end.batch(ops)?.submit_by(ring, number);
                    posted.map_err(Into::into)
                }
            };
            match pushed {
                Ok(()) => {
                    let is_recv = ops.first().is_some_and(|op| op.kind == Kind::Recv);
                    self.sends += u32::from(!is_recv);
                    return Ok(());
                }
                Err(error) if is_backpressure(&error) => self.make_room()?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Submits the added entries, and sleeps until the ring has `count` completions, or an early
    /// receive has completed. Returns false when that takes longer than a slice.
    fn sleep(&mut self, count: u32) -> Result<bool> {
        let ring = made(&mut self.ring)?;
        let Some(file) = &self.early_file else {
            return match ring.submit_and_wait(count, SLICE) {
                Ok(_) => Ok(true),
                Err(ulp::Error::Timeout { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            };
        };
        ring.submit()?;
        let mut fds = [ring.as_fd(), file.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let time = PollTimeout::try_from(SLICE).unwrap_or(PollTimeout::MAX);
        let is_ready = match poll(&mut fds, time) {
            Ok(n) => n != 0,
            Err(nix::errno::Errno::EINTR) => true,
            Err(errno) => return Err(errno).context("waiting for the peer"),
        };
        // Before the queue is looked at: what comes later makes the file readable again.
        file.take()?;
        Ok(is_ready)
    }

    /// Submits the entries of a full ring, and waits for a completion.
    fn make_room(&mut self) -> Result<()> {
        self.submit()?;
        let finished = made(&mut self.ring)?.wait(self.control.timeout)?;
        self.take(finished)?;
        self.drain()
    }

    fn add(&mut self, ops: &[Op]) -> Result<()> {
        // Each receive is an entry of its own.
        for list in ops.chunk_by(|a, b| a.kind != Kind::Recv && b.kind != Kind::Recv) {
            self.push(list)?;
        }
        Ok(())
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Done> {
        match queue {
            Queue::Send => &mut self.sent,
            Queue::Recv => &mut self.received,
        }
    }
}

impl End for UringEnd {
    fn new(task: &Task<'_>) -> Result<Self> {
        let config = task.config;
        // Every receive is an entry of its own; sends are lists, or are posted one by one.
        let (sends, recvs) = config.requests(0);
        let entries = (sends + recvs).clamp(128, RING_ENTRIES).next_power_of_two();
        Ok(Self {
            ring: None,
            entries,
            sqpoll: config.sqpoll,
            end: CallEnd::new(task)?,
            early: 0,
            early_file: None,
            sends: 0,
            lists: Vec::new(),
            free: Vec::new(),
            sent: VecDeque::with_capacity(1024),
            received: VecDeque::with_capacity(1024),
            control: task.control.clone(),
        })
    }

    fn address(&self) -> EndAddress {
        self.end.address()
    }

    fn connect(&mut self, peer: &EndAddress) -> Result<()> {
        self.end.connect(peer)
    }

    fn post(&mut self, ops: &[Op]) -> Result<()> {
        if !self.end.is_connected() {
            self.early += ops.len();
            return self.end.post(ops);
        }
        self.begin()?;
        self.add(ops)?;
        self.submit()
    }

    fn post_and_wait(&mut self, ops: &[Op], queue: Queue, min: u32) -> Result<()> {
        self.begin()?;
        self.add(ops)?;
        let mut posted = ops.is_empty();
        // A list of sends is one entry, and an early receive makes none.
        let min = if queue == Queue::Send || self.early != 0 {
            1
        } else {
            min
        };
        // The peer's answer comes after the completions of what it answers.
        let answers = ops.iter().any(|op| op.kind != Kind::Recv) && queue == Queue::Recv;
        let mut overdue = overdue(self.control.timeout);
        loop {
            self.drain()?;
            let here = u32::try_from(self.queue(queue).len()).unwrap_or(u32::MAX);
            if here >= min {
                return if posted { Ok(()) } else { self.submit() };
            }
            self.control.check()?;
            let sends = if answers { self.sends } else { 0 };
            match self.sleep(min - here + sends) {
                Ok(true) => posted = true,
                Err(error) if is_backpressure(&error) && !overdue() => {}
                Ok(false) => {
                    posted = true;
                    self.drain()?;
                    // The last completions are fewer than `min`.
                    if !self.queue(queue).is_empty() {
                        return Ok(());
                    }
                    if overdue() {
                        bail!("no completion for {:?}", self.control.timeout);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn reap(&mut self, queue: Queue, done: &mut Vec<Done>) -> Result<usize> {
        self.begin()?;
        self.drain()?;
        let ready = self.queue(queue);
        let n = ready.len();
        done.extend(ready.drain(..));
        Ok(n)
    }

    fn load(&self, offset: u64) -> Result<u8> {
        self.end.load(offset)
    }

    fn store(&self, offset: u64, byte: u8) -> Result<()> {
        self.end.store(offset, byte)
    }
}
