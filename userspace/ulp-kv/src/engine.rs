// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thread of a server that carries out the writes of all clients, one after the other.
//!
//! Requests arrive in a shared receive queue. The replies to all that are there leave by one call.

use crate::error::Result;
use crate::layout::MAX_KEY;
use crate::server::{lock, Shared, MOVING, TICK};
use crate::wire::{Reply, Request, Status, Write, REPLY_LEN, REQUEST_HEADER};
use rust_ulp::{Buffer, Completion, Cq, Device, LocalSlice, Opcode, Pd, Recv, Send, Srq};
use std::sync::atomic::Ordering;

/// Writes that a client may have in flight.
pub const WINDOW: u32 = 64;
/// Bytes of all receives together, if that many receives are between these two numbers.
const RECEIVE_BYTES: usize = 16 << 20;
const MIN_RECEIVES: usize = 128;
const MAX_RECEIVES: usize = 1024;
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
}

/// What a batch posts.
enum Post {
    /// A reply, by the session with this number.
    Reply(u64, [u8; REPLY_LEN]),
    /// A receive into this lane.
    Recv(u64),
}

impl Engine {
    /// Makes the queues and posts the receives.
    pub fn new(device: &Device, pd: &Pd, max_value: u32) -> Result<Self> {
        let lane_len = (REQUEST_HEADER + MAX_KEY + max_value as usize).next_multiple_of(64);
        let lanes = (RECEIVE_BYTES / lane_len).clamp(MIN_RECEIVES, MAX_RECEIVES);
        let lanes = lanes.min(device.info().max_srq_wr as usize).max(1);
        let cq = device.create_cq(ENTRIES.min(device.limits().max_cq_entries))?;
        let srq = pd.create_srq(&cq).max_wr(lanes as u32).max_sge(1).build()?;
        let buffer = pd.alloc_buffer(lanes * lane_len)?;
        let engine = Self {
            cq,
            srq,
            buffer,
            lane_len,
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

    fn lane(&self, lane: u64, len: usize) -> Result<LocalSlice> {
        let start = lane as usize * self.lane_len;
        Ok(self.buffer.slice(start..start + len.min(self.lane_len))?)
    }

    fn recv(&self, lane: u64) -> Result<Recv<'static>> {
        Ok(Recv::new(self.lane(lane, self.lane_len)?).wr_id(lane))
    }

    /// Carries out requests, and deletes the keys whose time is over, until `stopped`.
    pub fn run(&self, shared: &Shared, stopped: &dyn Fn() -> bool) -> Result<()> {
        let mut completions = [Completion::EMPTY; BATCH];
        let mut last = 0;
        while !stopped() {
            let now = shared.now();
            if now != last {
                let expired = lock(&shared.table).expire(now)?;
                shared.stats.expired.fetch_add(expired, Ordering::Relaxed);
                last = now;
            }
            let count = self.cq.poll_into(&mut completions)?;
            if count == 0 {
                match self.cq.wait_for(1, TICK) {
                    Err(rust_ulp::Error::Timeout { .. }) => {}
                    done => {
                        done?;
                    }
                }
                continue;
            }
            let mut posts = Vec::with_capacity(2 * count);
            for completion in completions.iter().take(count) {
                self.take(shared, completion, now, &mut posts)?;
            }
            self.post(shared, &posts)?;
        }
        Ok(())
    }

    /// Takes a completion, and adds what follows from it.
    fn take(
        &self,
        shared: &Shared,
        completion: &Completion,
        now: u32,
        posts: &mut Vec<Post>,
    ) -> Result<()> {
        let number = completion.qp_user_data;
        let good = completion.check().is_ok();
        // A notice of a write takes a receive, too.
        if completion.opcode != Opcode::Send {
            if good && completion.opcode == Opcode::Recv {
                let len = completion.byte_len as usize;
                let bytes = self.lane(completion.wr_id, len)?.to_vec()?;
                let reply = self.request(shared, number, &bytes, now)?;
                posts.extend(reply.map(|reply| Post::Reply(number, reply.encode())));
            }
            posts.push(Post::Recv(completion.wr_id));
        }
        if !good {
            if let Some(session) = lock(&shared.sessions).all.get(&number) {
                session.end();
            }
        }
        Ok(())
    }

    /// Carries out a request. Returns the reply, unless the session is over.
    fn request(
        &self,
        shared: &Shared,
        number: u64,
        bytes: &[u8],
        now: u32,
    ) -> Result<Option<Reply>> {
        let client = match lock(&shared.sessions).all.get(&number) {
            Some(session) => session.client,
            None => return Ok(None),
        };
        let Some(request) = Request::decode(bytes) else {
            return Ok(Some(Reply::new(0, Status::Invalid)));
        };
        shared.stats.requests.fetch_add(1, Ordering::Relaxed);
        let mut replies = lock(&shared.replies);
        if let Some(reply) = replies.known(client, request.sequence, request.done) {
            shared.stats.repeated.fetch_add(1, Ordering::Relaxed);
            return Ok(Some(reply));
        }
        let mut table = lock(&shared.table);
        if request.epoch != lock(&shared.membership).epoch() {
            // It may come again with the right one.
            return Ok(Some(Reply::new(request.sequence, Status::Epoch)));
        }
        if matches!(request.write, Write::Move { .. }) && request.epoch != MOVING {
            return Ok(Some(Reply::new(request.sequence, Status::Invalid)));
        }
        let reply = table.apply(&request, now)?;
        replies.keep(client, reply);
        #[cfg(feature = "test-hooks")]
        shared.cut();
        Ok(Some(reply))
    }

    /// Posts everything. Ends the sessions whose queue pairs do not take their replies.
    fn post(&self, shared: &Shared, posts: &[Post]) -> Result<()> {
        let mut rest = posts;
        while !rest.is_empty() {
            let sessions = lock(&shared.sessions);
            let mut batch = shared.device.batch();
            // Those of `rest` that are in the batch.
            let mut taken: Vec<usize> = Vec::with_capacity(rest.len());
            for (n, post) in rest.iter().enumerate() {
                match post {
                    Post::Recv(lane) => batch.push(&self.srq, self.recv(*lane)?)?,
                    Post::Reply(number, bytes) => match sessions.all.get(number) {
                        Some(session) => batch.push(&session.qp, Send::inline_bytes(bytes))?,
                        None => continue,
                    },
                }
                taken.push(n);
            }
            let (posted, bad, error) = match batch.submit() {
                Ok(_) => return Ok(()),
                Err(rust_ulp::Error::Batch {
                    index,
                    posted,
                    cause,
                }) => (posted as usize, index as usize, *cause),
                Err(error) => return Err(error.into()),
            };
            // The first ones are posted. The bad one is left out, and the others follow.
            let bad = taken.get(bad.max(posted)).copied().unwrap_or(rest.len());
            let Some(Post::Reply(number, _)) = rest.get(bad) else {
                return Err(error.into());
            };
            if let Some(session) = sessions.all.get(number) {
                session.end();
            }
            let first = taken.get(posted).copied().unwrap_or(rest.len());
            let (before, after) = (rest.get(first..bad), rest.get(bad + 1..));
            drop(sessions);
            self.post(shared, before.unwrap_or_default())?;
            rest = after.unwrap_or_default();
        }
        Ok(())
    }
}
