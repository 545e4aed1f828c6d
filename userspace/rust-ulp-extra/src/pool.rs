// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pools: a buffer divided into chunks of one length, for requests.

use super::sync::lock;
use rust_ulp::error::Result;
use rust_ulp::wr::{QueueLife, RequestFor, Tag};
use rust_ulp::{Completion, Error, LocalSlice};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The state of a chunk is twice the number of its posts, and one more while a request has it.
const IN_FLIGHT: u32 = 1;

#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    /// The queue of its last request.
    queue: Mutex<QueueLife>,
}

#[derive(Debug)]
struct Inner<'b> {
    memory: LocalSlice<'b>,
    chunk_len: usize,
    /// Free chunks.
    free: Mutex<VecDeque<u32>>,
    slots: Box<[Slot]>,
    tag: Tag,
}

impl Inner<'_> {
    /// Takes a chunk back from its request. Returns true for the one caller that did.
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

    fn pop(&self) -> Option<u32> {
        lock(&self.free).pop_front()
    }

    fn free(&self, index: u32) {
        // Each chunk is in there at most once: this does not allocate.
        lock(&self.free).push_back(index);
    }
}

/// A part of a buffer, divided into chunks of one length.
///
/// ```no_run
/// # use rust_ulp::error::Result;
/// # use rust_ulp_extra::pool::Pool;
/// # use rust_ulp::qp::Rc;
/// # use rust_ulp::wr::Send;
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
///     done.check()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Posting moves a chunk into its request. [`Self::complete`] returns it with the completion,
/// whether the request succeeded or failed. A request that has timed out or was canceled may still
/// access its chunk, and the requests of a queue pair that is dropped have no completion: these
/// chunks come back when the queue is gone. A chunk that the program forgets never comes back;
/// nothing else breaks.
///
/// A clone is cheap, and shares the chunks. A chunk keeps the pool, which borrows its buffer.
#[derive(Clone, Debug)]
pub struct Pool<'b> {
    inner: Arc<Inner<'b>>,
}

impl<'b> Pool<'b> {
    /// Divides `memory` into as many chunks of `chunk_len` bytes as fit.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if `chunk_len` is 0 or more than `memory` has, [`Error::TooMany`] if there
    /// would be more than 4,194,304 chunks.
    pub fn new(memory: LocalSlice<'b>, chunk_len: usize) -> Result<Self> {
        let len = memory.len();
        if !(1..=len).contains(&chunk_len) {
            return Err(Error::Value {
                what: "the length of a chunk",
                value: chunk_len as u64,
                min: 1,
                max: len as u64,
            });
        }
        let count = len / chunk_len;
        let max = Tag::INDICES as usize;
        if count > max {
            return Err(Error::TooMany {
                what: "chunks",
                count: count as u64,
                max: max as u64,
            });
        }
        let slots = (0..count).map(|_| Slot {
            state: AtomicU32::new(0),
            queue: Mutex::default(),
        });
        let inner = Inner {
            memory,
            chunk_len,
            // `count` is at most 2^22.
            free: Mutex::new((0..count as u32).collect()),
            slots: slots.collect(),
            tag: Tag::unique(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Takes a free chunk, if there is one. Its bytes are those that were last written to it.
    pub fn take(&self) -> Option<Chunk<'b>> {
        let index = self.inner.pop().or_else(|| {
            self.reclaim();
            self.inner.pop()
        })?;
        Some(Chunk::new(&self.inner, index))
    }

    /// Returns the chunk of a completed request of this pool. Returns [`None`] for other requests,
    /// and for one that has timed out or was canceled: the device may still access its chunk.
    pub fn complete(&self, done: &Completion) -> Option<Chunk<'b>> {
        if done.status.is_unfinished() {
            return None;
        }
        let index = self.inner.tag.index(done.wr_id)?;
        let slot = self.inner.slots.get(index as usize)?;
        let flying = slot.state.load(Ordering::Acquire);
        let named = wr_id(self.inner.tag, index, flying) == done.wr_id;
        if flying & IN_FLIGHT == 0 || !named || !self.inner.land(index, flying) {
            return None;
        }
        Some(Chunk::new(&self.inner, index))
    }

    /// Takes back the chunks in flight on queues that are gone, and returns how many there were.
    /// [`Self::take`] does so when no chunk is free.
    pub fn reclaim(&self) -> usize {
        let mut count = 0;
        for (slot, index) in self.inner.slots.iter().zip(0..) {
            let flying = slot.state.load(Ordering::Acquire);
            if flying & IN_FLIGHT == 0 {
                continue;
            }
            // A queue exists while a chunk is posted to it, and a request that was not posted has left
            // that state by then.
            let is_lost = lock(&slot.queue).is_gone();
            if is_lost && self.inner.land(index, flying) {
                self.inner.free(index);
                count += 1;
            }
        }
        count
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_len(&self) -> usize {
        self.inner.chunk_len
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.inner.slots.len()
    }

    /// Returns false: every pool has a chunk.
    pub fn is_empty(&self) -> bool {
        self.inner.slots.is_empty()
    }

    /// Returns the number of free chunks.
    pub fn available(&self) -> usize {
        lock(&self.inner.free).len()
    }
}

/// Returns the `wr_id` of the request that a chunk in that state is posted with.
fn wr_id(tag: Tag, index: u32, flying: u32) -> u64 {
    tag.wr_id(index, flying >> 1)
}

/// A chunk of a [`Pool`], which belongs to its holder until it is posted or dropped.
#[derive(Debug)]
#[must_use = "a chunk goes back when it is dropped"]
#[doc(alias = "Piece")]
pub struct Chunk<'b> {
    pool: Arc<Inner<'b>>,
    index: u32,
    /// True if the chunk belongs to its holder, not to a request.
    ours: bool,
}

impl<'b> Chunk<'b> {
    fn new(pool: &Arc<Inner<'b>>, index: u32) -> Self {
        Self {
            pool: pool.clone(),
            index,
            ours: true,
        }
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.pool.chunk_len
    }

    /// Returns false: no chunk is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its offset in its buffer.
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

    /// Copies the bytes from `offset` on into `dst`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if they are not all within the chunk; as
    /// [`Buffer::read_at`](rust_ulp::Buffer::read_at).
    pub fn read_at(&self, offset: usize, dst: &mut [u8]) -> Result<()> {
        let at = self.check(offset, dst.len())?;
        self.pool.memory.buffer().read_at(at, dst)
    }

    /// Copies `src` into the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it does not fit; as [`Buffer::write_at`](rust_ulp::Buffer::write_at).
    pub fn write_at(&self, offset: usize, src: &[u8]) -> Result<()> {
        let at = self.check(offset, src.len())?;
        self.pool.memory.buffer().write_at(at, src)
    }

    /// Posts the request that `request` makes of this chunk's memory, or of a part of it. The pool
    /// sets the request's `wr_id` and makes it signaled.
    ///
    /// # Errors
    ///
    /// The errors of `request` and of [`Qp::post`](rust_ulp::Qp::post). The error returns the chunk,
    /// since nothing was posted.
    pub fn post<'a, Q, R: RequestFor<'a, Q>>(
        mut self,
        queue: Q,
        request: impl FnOnce(LocalSlice<'b>) -> Result<R>,
    ) -> Result<(), ChunkError<'b>> {
        let posted = self.local().and_then(request).and_then(|request| {
            let wr_id = self.fly(R::life_of(&queue));
            request.tracked(wr_id).post_to(queue)
        });
        match posted {
            // Its completion may have come already.
            Ok(()) => {
                self.ours = false;
                Ok(())
            }
            Err(error) => {
                self.ground();
                Err(ChunkError { error, chunk: self })
            }
        }
    }

    /// Returns its memory, for requests.
    fn local(&self) -> Result<LocalSlice<'b>> {
        let start = self.offset() - self.pool.memory.offset();
        self.pool.memory.slice(start..start + self.len())
    }

    fn slot(&self) -> Option<&Slot> {
        self.pool.slots.get(self.index as usize)
    }

    /// Marks it as posted, and returns the `wr_id` of the request.
    fn fly(&self, queue: QueueLife) -> u64 {
        let Some(slot) = self.slot() else {
            return 0; // there is one for each index
        };
        // Before the state, which tells `Pool::reclaim` to look at it.
        *lock(&slot.queue) = queue;
        let flying = slot.state.load(Ordering::Relaxed) | IN_FLIGHT;
        slot.state.store(flying, Ordering::Release);
        wr_id(self.pool.tag, self.index, flying)
    }

    /// Takes it back from its request if it has one.
    fn ground(&self) {
        if let Some(slot) = self.slot() {
            let flying = slot.state.load(Ordering::Relaxed);
            if flying & IN_FLIGHT != 0 {
                slot.state.store(flying.wrapping_add(1), Ordering::Release);
            }
        }
    }
}

impl Drop for Chunk<'_> {
    fn drop(&mut self) {
        if self.ours && !self.pool.memory.buffer().is_inherited() {
            self.ground();
            self.pool.free(self.index);
        }
    }
}

/// The error of posting a chunk, with the chunk.
///
/// It borrows what the chunk does. `?` makes an [`Error`] of it, which drops the chunk; for a
/// `Box<dyn Error>`, `map_err(rust_ulp::Error::from)?` does.
#[doc(alias = "PieceError")]
pub struct ChunkError<'b> {
    error: Error,
    chunk: Chunk<'b>,
}

impl<'b> ChunkError<'b> {
    /// Returns the error.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the chunk, to be posted again.
    pub fn into_chunk(self) -> Chunk<'b> {
        self.chunk
    }
}

impl fmt::Debug for ChunkError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChunkError").field(&self.error).finish()
    }
}

impl fmt::Display for ChunkError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for ChunkError<'_> {}

/// Drops the chunk, which is free again.
impl From<ChunkError<'_>> for Error {
    fn from(error: ChunkError<'_>) -> Self {
        error.error
    }
}
