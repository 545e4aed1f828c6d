// SPDX-License-Identifier: MIT OR Apache-2.0

//! Chunks of a buffer that are handed out, sent or received into, and come back.

use crate::buffer::LocalSlice;
use crate::completion::Completion;
use crate::error::{Error, Result};
use crate::post::post_one;
use crate::sync::lock;
use crate::wr::{Request, RequestFor};
use crossbeam_queue::ArrayQueue;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Bits of a request's number: which pool, which chunk, and how often that was in flight before.
const TAG_BITS: u32 = 20;
const INDEX_BITS: u32 = 22;
const ROUND_BITS: u32 = 64 - TAG_BITS - INDEX_BITS;

/// The next pool's number.
static NEXT_TAG: AtomicU32 = AtomicU32::new(1);

/// Of a chunk: rounds, times 2, and 1 while a request is in flight.
const IN_FLIGHT: u32 = 1;

#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    /// What it was posted to.
    queue: Mutex<Weak<()>>,
}

#[derive(Debug)]
struct Inner {
    memory: LocalSlice,
    chunk_len: usize,
    /// Chunks that nobody has.
    free: ArrayQueue<u32>,
    slots: Box<[Slot]>,
    tag: u64,
}

impl Inner {
    /// Takes a chunk out of flight: true for the one caller who did.
    fn land(&self, index: u32, flying: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| {
            // What follows reads what the device wrote: the completion's own ordering sees to that.
            // This one is for those who see the chunk land at another thread.
            let landed = flying.wrapping_add(1);
            let order = (Ordering::AcqRel, Ordering::Acquire);
            let swapped = slot
                .state
                .compare_exchange(flying, landed, order.0, order.1);
            swapped.is_ok()
        })
    }

    fn free(&self, index: u32) {
        // There is room for all that there are, and each is there once.
        let _ = self.free.push(index);
    }
}

/// A part of a buffer as chunks of one length, for requests.
///
/// ```no_run
/// # use rust_ulp::*;
/// # fn example(qp: Qp<Rc>, buffer: Buffer) -> Result<()> {
/// let pool = Pool::new(buffer.slice(..)?, 4096)?;
/// let chunk = pool.take().ok_or(Error::QueueFull)?;
/// chunk.write_at(0, b"hello")?;
/// chunk.post(&qp, |memory| Ok(Send::new(memory.slice(..5)?)))?;
/// // ...
/// while let Some(done) = qp.send_cq().poll()? {
///     if let Some(chunk) = pool.complete(&done) {
///         drop(chunk); // or posted again
///     }
///     let _ = done.ok()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A chunk that was posted is the request's, and comes back by [`Self::complete`] with its
/// completion, good or bad: nobody else gets it before. Requests that have timed out or were
/// canceled may still be under way, and those of a queue pair that is dropped have no completion:
/// their chunks come back when the queue is gone. A chunk that is forgotten never comes back; that
/// harms nobody else.
///
/// Chunks are handed out without a lock. Cheap to clone: clones share the chunks. A chunk keeps the
/// pool, and the pool its buffer.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

impl Pool {
    /// As many chunks of `chunk_len` bytes as fit into `memory`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if none fits, [`Error::TooMany`] if there would be more than 4,194,304.
    pub fn new(memory: LocalSlice, chunk_len: usize) -> Result<Self> {
        let Some(count @ 1..) = memory.len().checked_div(chunk_len) else {
            return Err(Error::Range {
                what: "a chunk",
                offset: 0,
                len: chunk_len as u64,
                capacity: memory.len() as u64,
            });
        };
        let max = 1 << INDEX_BITS;
        if count > max {
            return Err(Error::TooMany {
                what: "chunks",
                count: count as u64,
                max: max as u64,
            });
        }
        let slots = (0..count).map(|_| Slot {
            state: AtomicU32::new(0),
            queue: Mutex::new(Weak::new()),
        });
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed) % (1 << TAG_BITS);
        let inner = Inner {
            memory,
            chunk_len,
            free: ArrayQueue::new(count),
            slots: slots.collect(),
            // Not 0: small numbers are everybody's.
            tag: u64::from(tag.max(1)),
        };
        // `count` is at most 2^22.
        for index in 0..count as u32 {
            inner.free(index);
        }
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Takes a chunk, if there is one. Its bytes are what they were.
    pub fn take(&self) -> Option<Chunk> {
        let free = &self.inner.free;
        let index = free.pop().or_else(|| {
            self.reclaim();
            free.pop()
        })?;
        Some(Chunk::new(&self.inner, index))
    }

    /// The chunk of the request that has completed, if it was one of this pool's. Not if it has
    /// timed out or was canceled: the device may still be at it.
    pub fn complete(&self, done: &Completion) -> Option<Chunk> {
        let number = done.wr_id;
        if number >> (INDEX_BITS + ROUND_BITS) != self.inner.tag || done.status.is_unfinished() {
            return None;
        }
        let index = (number >> ROUND_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let slot = self.inner.slots.get(index as usize)?;
        let flying = slot.state.load(Ordering::Acquire);
        let named = wr_id(self.inner.tag, index, flying) == number;
        if flying & IN_FLIGHT == 0 || !named || !self.inner.land(index, flying) {
            return None;
        }
        Some(Chunk::new(&self.inner, index))
    }

    /// Takes chunks back that were in flight on queues that are gone, and returns how many. Done by
    /// [`Self::take`] when there are none left.
    pub fn reclaim(&self) -> usize {
        let mut count = 0;
        for (slot, index) in self.inner.slots.iter().zip(0..) {
            let flying = slot.state.load(Ordering::Acquire);
            if flying & IN_FLIGHT == 0 || lock(&slot.queue).strong_count() != 0 {
                continue;
            }
            if self.inner.land(index, flying) {
                self.inner.free(index);
                count += 1;
            }
        }
        count
    }

    /// Bytes of a chunk.
    pub fn chunk_len(&self) -> usize {
        self.inner.chunk_len
    }

    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.inner.slots.len()
    }

    /// Never true: there are no empty pools.
    pub fn is_empty(&self) -> bool {
        self.inner.slots.is_empty()
    }

    /// How many chunks nobody has.
    pub fn available(&self) -> usize {
        self.inner.free.len()
    }
}

/// The number of the request for a chunk in that state.
fn wr_id(tag: u64, index: u32, flying: u32) -> u64 {
    let round = u64::from(flying >> 1) & ((1 << ROUND_BITS) - 1);
    (((tag << INDEX_BITS) | u64::from(index)) << ROUND_BITS) | round
}

/// A chunk of a [`Pool`]: one's own until it is posted or dropped.
#[derive(Debug)]
#[must_use = "a chunk goes back when it is dropped"]
#[doc(alias = "Piece")]
pub struct Chunk {
    pool: Arc<Inner>,
    index: u32,
    /// Not the request's.
    ours: bool,
}

impl Chunk {
    fn new(pool: &Arc<Inner>, index: u32) -> Self {
        Self {
            pool: pool.clone(),
            index,
            ours: true,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pool.chunk_len
    }

    /// Never true: there are no empty chunks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where in its buffer it starts.
    pub fn offset(&self) -> usize {
        // All chunks are within the memory.
        self.pool.memory.offset() + self.index as usize * self.pool.chunk_len
    }

    fn check(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.offset() + offset),
            _ => Err(Error::Range {
                what: "range of a chunk",
                offset: offset as u64,
                len: len as u64,
                capacity: self.len() as u64,
            }),
        }
    }

    /// Copies bytes from `offset` on out into `dst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if they are not all within the chunk; as
    /// [`Buffer::read_at`](crate::Buffer::read_at).
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let at = self.check(offset, dst.len())?;
        self.pool.memory.buffer().read_at(at, dst)
    }

    /// Copies `src` into the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it does not fit; as [`Buffer::write_at`](crate::Buffer::write_at).
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        let at = self.check(offset, src.len())?;
        self.pool.memory.buffer().write_at(at, src)
    }

    /// Posts the request that `request` makes of this chunk's memory, or of a part of it. It is
    /// signaled, and its number is the pool's: what it says of these does not count.
    ///
    /// # Errors
    ///
    /// What `request` says, and as [`Qp::post`](crate::Qp::post); with the chunk, since nothing was
    /// posted.
    pub fn post<'a, Q, R: RequestFor<'a, Q>>(
        self,
        queue: Q,
        request: impl FnOnce(LocalSlice) -> Result<R>,
    ) -> Result<(), ChunkError> {
        let posted = request(self.local()).and_then(|request| {
            let target = R::target(&queue);
            let wr_id = self.fly(target.life);
            let request: Request<'a> = request.into();
            post_one(&target, &request.tracked(wr_id))
        });
        match posted {
            Ok(()) => {
                self.gone();
                Ok(())
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Its memory, for requests.
    pub(crate) fn local(&self) -> LocalSlice {
        let start = self.offset() - self.pool.memory.offset();
        self.pool.memory.part(start, self.len())
    }

    fn slot(&self) -> Option<&Slot> {
        self.pool.slots.get(self.index as usize)
    }

    /// It is about to be posted: the number of the request.
    pub(crate) fn fly(&self, queue: &Arc<()>) -> u64 {
        let Some(slot) = self.slot() else {
            return 0; // there is one for each index
        };
        *lock(&slot.queue) = Arc::downgrade(queue);
        let flying = slot.state.load(Ordering::Relaxed) | IN_FLIGHT;
        slot.state.store(flying, Ordering::Release);
        wr_id(self.pool.tag, self.index, flying)
    }

    /// It was posted: its completion has it from now on, and may have had it already.
    pub(crate) fn gone(mut self) {
        self.ours = false;
    }

    /// It was not posted.
    pub(crate) fn refused(self, error: Error) -> ChunkError {
        self.ground();
        ChunkError { error, chunk: self }
    }

    /// Takes it out of flight if it is.
    fn ground(&self) {
        if let Some(slot) = self.slot() {
            let flying = slot.state.load(Ordering::Relaxed);
            if flying & IN_FLIGHT != 0 {
                slot.state.store(flying.wrapping_add(1), Ordering::Release);
            }
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.ours {
            self.ground();
            self.pool.free(self.index);
        }
    }
}

/// A chunk that was not posted, and why.
#[doc(alias = "PieceError")]
pub struct ChunkError {
    error: Error,
    chunk: Chunk,
}

impl ChunkError {
    /// Why.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The chunk, to be posted again.
    pub fn into_chunk(self) -> Chunk {
        self.chunk
    }
}

impl fmt::Debug for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChunkError").field(&self.error).finish()
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for ChunkError {}

/// The chunk goes back.
impl From<ChunkError> for Error {
    fn from(error: ChunkError) -> Self {
        error.error
    }
}
