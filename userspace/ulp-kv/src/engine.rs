// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thread of a server that serves the messages of all clients, one after the other.
//!
//! Messages arrive in a shared receive queue. The answers to all that are there leave by one call,
//! which waits for the next ones.

use crate::error::Result;
use crate::server::{lock, Shared, TICK};
use crate::service::{Done, Service};
use crate::wire::{message_len, MESSAGE, WINDOW};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Completion, Cq, Device, LocalSlice, Opcode, Pd, Qp, Srq};
use std::sync::atomic::Ordering;

/// Bytes of all receives together, if that many receives are between these two numbers.
const RECEIVE_BYTES: usize = 16 << 20;
const MIN_RECEIVES: usize = 128;
const MAX_RECEIVES: usize = 512;
/// Completions taken at a time.
const BATCH: usize = 256;
/// Entries of the completion queue.
const ENTRIES: u32 = 1 << 14;

/// The queues of the server.
#[derive(Debug)]
pub struct Engine {
    cq: Cq,
    srq: Srq,
    buffer: Buffer,
    lane_len: usize,
    lanes: usize,
}

/// What a batch posts.
#[derive(Clone, Copy, Debug)]
enum Post {
    /// The answer to the message with this number, of so many bytes, by the session with this
    /// number.
    Answer(u64, u32, usize),
    /// A receive into this lane.
    Recv(u64),
}

/// What the thread keeps from one message to the next.
#[derive(Debug, Default)]
struct Scratch {
    message: Vec<u8>,
    answer: Vec<u8>,
    posts: Vec<Post>,
    /// Lanes whose receives are to be posted.
    lanes: Vec<u64>,
    /// Those of `posts` that are in a batch.
    taken: Vec<usize>,
    /// Queue pairs of that batch.
    qps: Vec<Qp<Rc>>,
}

/// Returns the answer's memory: of a client's buffer, the place that its message's number says. The
/// client knows the answer to the message that had it before.
fn place(answers: &Buffer, number: u32, len: usize) -> rust_ulp::error::Result<LocalSlice> {
    let start = (number % WINDOW) as usize * MESSAGE;
    answers.slice(start..start + len.min(MESSAGE))
}

impl Engine {
    /// Makes the queues and posts the receives.
    pub fn new(device: &Device, pd: &Pd, max_value: u32) -> Result<Self> {
        let lane_len = message_len(max_value);
        let lanes = (RECEIVE_BYTES / lane_len).clamp(MIN_RECEIVES, MAX_RECEIVES);
        let lanes = lanes.min(device.info().max_srq_wr as usize).max(1);
        let cq = device.create_cq(ENTRIES.min(device.limits().max_cq_entries))?;
        let srq = pd
            .srq_builder(&cq)
            .max_wr(lanes as u32)
            .max_sge(1)
            .build()?;
        let buffer = pd.alloc_buffer(lanes * lane_len)?;
        let engine = Self {
            cq,
            srq,
            buffer,
            lane_len,
            lanes,
        };
        for lane in 0..lanes as u64 {
            engine.srq.post_recv(engine.recv(lane)?)?;
        }
        Ok(engine)
    }

    /// Returns the completion queue of all queue pairs.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Returns the shared receive queue.
    pub fn srq(&self) -> &Srq {
        &self.srq
    }

    fn recv(&self, lane: u64) -> Result<Recv<'static>> {
        let start = lane as usize * self.lane_len;
        let memory = self.buffer.slice(start..start + self.lane_len)?;
        Ok(Recv::new(memory).wr_id(lane))
    }

    /// Serves messages, and deletes the keys whose time is over, until `stopped`.
    pub fn run(&self, shared: &Shared, stopped: &dyn Fn() -> bool) -> Result<()> {
        let mut completions = [Completion::EMPTY; BATCH];
        let mut scratch = Scratch::default();
        let mut last = 0;
        while !stopped() {
            let now = shared.now();
            if now != last {
                let expired = lock(&shared.table).expire(now)?;
                shared.stats.expired.fetch_add(expired, Ordering::Relaxed);
                last = now;
            }
            let count = self.cq.poll_into(&mut completions)?;
            for completion in completions.iter().take(count) {
                self.take(shared, completion, now, &mut scratch)?;
            }
            self.post(shared, &mut scratch, count < BATCH)?;
        }
        Ok(())
    }

    /// Takes a completion, and adds what follows from it.
    fn take(
        &self,
        shared: &Shared,
        completion: &Completion,
        now: u32,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let number = completion.qp_user_data;
        let mut good = completion.check().is_ok();
        // A notice of a write takes a receive, too.
        if completion.opcode != Opcode::Send {
            if good && completion.opcode == Opcode::Recv {
                good = self.message(shared, completion, now, scratch)?;
            }
            scratch.lanes.push(completion.wr_id);
        }
        if !good {
            if let Some(session) = lock(&shared.sessions).all.get(&number) {
                session.end();
            }
        }
        Ok(())
    }

    /// Serves a message. Returns whether it makes sense.
    fn message(
        &self,
        shared: &Shared,
        completion: &Completion,
        now: u32,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        let session = completion.qp_user_data;
        let (client, answers) = match lock(&shared.sessions).all.get(&session) {
            Some(session) => (session.client, session.answers.clone()),
            None => return Ok(true),
        };
        let len = (completion.byte_len as usize).min(self.lane_len);
        if scratch.message.len() < len {
            scratch.message.resize(self.lane_len, 0);
        }
        let Some(message) = scratch.message.get_mut(..len) else {
            return Ok(false);
        };
        let lane = completion.wr_id as usize;
        self.buffer.read_at(lane * self.lane_len, message)?;
        let mut done = Done::default();
        let number = {
            let mut replies = lock(&shared.replies);
            let mut table = lock(&shared.table);
            let epoch = lock(&shared.membership).epoch();
            let mut service = Service {
                table: &mut table,
                replies: &mut replies,
                epoch,
                now,
                most: MESSAGE,
            };
            service.serve(client, message, &mut scratch.answer, &mut done)?
        };
        shared.count(&done);
        let Some(number) = number else {
            return Ok(false);
        };
        let memory = place(&answers, number, scratch.answer.len())?;
        answers.write_at(memory.offset(), &scratch.answer)?;
        let post = Post::Answer(session, number, scratch.answer.len());
        scratch.posts.push(post);
        Ok(true)
    }

    /// Posts everything, and with `wait` sleeps until there are messages. Ends the sessions whose
    /// queue pairs do not take their answers.
    fn post(&self, shared: &Shared, scratch: &mut Scratch, wait: bool) -> Result<()> {
        // Receives are posted in lists, which take fewer calls of the driver.
        if scratch.lanes.len() >= self.lanes / 8 {
            let recvs = scratch.lanes.drain(..).map(Post::Recv);
            scratch.posts.extend(recvs);
        }
        let mut first = 0;
        loop {
            let sessions = lock(&shared.sessions);
            let mut batch = shared.device.batch();
            scratch.taken.clear();
            for (n, post) in scratch.posts.iter().enumerate().skip(first) {
                match *post {
                    Post::Recv(lane) => batch.push(&self.srq, self.recv(lane)?)?,
                    Post::Answer(number, message, len) => {
                        let Some(session) = sessions.all.get(&number) else {
                            continue;
                        };
                        let send = Send::new(place(&session.answers, message, len)?);
                        // The client's next message with this place shows that it has the answer.
                        batch.push(&session.qp, send.signaled(false))?;
                        // Its handle is not given to another while the batch is under way.
                        scratch.qps.push(session.qp.clone());
                    }
                }
                scratch.taken.push(n);
            }
            drop(sessions);
            let posted = match wait {
                true => batch.submit_and_wait(&self.cq, 1, TICK),
                false => batch.submit(),
            };
            scratch.qps.clear();
            let (posted, bad, error) = match posted {
                Ok(_) | Err(rust_ulp::Error::Timeout { .. }) => break,
                Err(rust_ulp::Error::Batch {
                    index,
                    posted,
                    cause,
                }) => (posted as usize, index as usize, *cause),
                Err(error) => return Err(error.into()),
            };
            // The first ones are posted. The bad one is left out, and the others follow.
            let bad = scratch.taken.get(bad.max(posted)).copied();
            let place = bad.and_then(|bad| scratch.posts.get_mut(bad));
            let Some((Post::Answer(number, ..), bad)) = place.as_deref().zip(bad) else {
                return Err(error.into());
            };
            if let Some(session) = lock(&shared.sessions).all.get(number) {
                session.end();
            }
            scratch.posts.remove(bad);
            first = scratch.taken.get(posted).copied().unwrap_or(bad);
        }
        scratch.posts.clear();
        Ok(())
    }
}
