// SPDX-License-Identifier: MIT OR Apache-2.0

//! A future for each posted request.

use crate::asynchronous::AsyncCq;
use crate::completion::Completion;
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::post::post_one;
use crate::sync::lock;
use crate::wr::{QueueLife, Request, RequestFor, RequestQueue, Tag};
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll, Wake, Waker};

/// Completions that are taken out of the queue at a time.
const CHUNK: usize = 16;

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// Nobody was woken for it yet.
    Waiting(Option<Waker>),
    Done(Completion),
    /// Nobody waits for it any more.
    Dropped,
}

/// A request in flight.
#[derive(Debug, Default)]
struct Slot {
    /// Earlier uses of the slot.
    round: u32,
    state: State,
    /// The life of the queue that it was posted to.
    queue: QueueLife,
}

#[derive(Debug)]
struct Slots {
    tag: Tag,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Memory for those who are to be woken.
    wakers: Vec<Waker>,
}

impl Slots {
    fn new() -> Self {
        Self {
            tag: Tag::unique(),
            slots: Vec::new(),
            free: Vec::new(),
            wakers: Vec::new(),
        }
    }

    /// Returns the slot of the request with that number. There is none for the number of a request
    /// that was posted otherwise, or for which nobody waits any more.
    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let (tag, index) = (self.tag, self.tag.index(number)?);
        let slot = self.slots.get_mut(index as usize)?;
        (tag.wr_id(index, slot.round) == number).then_some(slot)
    }

    /// Takes a slot, and returns the number of its request.
    fn take(&mut self, queue: QueueLife) -> Result<u64> {
        if self.free.is_empty() && self.slots.len() == self.slots.capacity() {
            // Requests of a queue that is gone do not complete any more.
            let lost = |slot: &Slot| matches!(slot.state, State::Dropped) && slot.queue.is_gone();
            let numbers = (0..).zip(&self.slots).filter(|(_, slot)| lost(slot));
            let lost: Vec<u64> = numbers
                .map(|(index, slot)| self.tag.wr_id(index, slot.round))
                .collect();
            lost.into_iter().for_each(|number| self.free(number));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                if index >= Tag::INDICES {
                    return Err(Error::QueueFull);
                }
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = self.slots.get_mut(index as usize).ok_or(Error::QueueFull)?;
        slot.state = State::Waiting(None);
        slot.queue = queue;
        Ok(self.tag.wr_id(index, slot.round))
    }

    fn free(&mut self, number: u64) {
        if let (Some(index), Some(slot)) = (self.tag.index(number), self.slot(number)) {
            slot.state = State::Free;
            slot.queue = QueueLife::default();
            slot.round = slot.round.wrapping_add(1);
            self.free.push(index);
        }
    }

    /// Hands a completion to the future that waits for it, and returns who is to be woken.
    fn deliver(&mut self, done: Completion) -> Option<Waker> {
        let slot = self.slot(done.wr_id)?;
        match std::mem::take(&mut slot.state) {
            State::Waiting(waker) => {
                slot.state = State::Done(done);
                waker
            }
            State::Dropped => {
                self.free(done.wr_id);
                None
            }
            state => {
                slot.state = state;
                None
            }
        }
    }
}

/// The requests that are waited for. As a waker it wakes all who wait: whoever comes first takes
/// the completions, and hands the others theirs.
#[derive(Debug)]
struct Table(Mutex<Slots>);

impl Table {
    /// Wakes those that `which` returns.
    fn wake_those(&self, which: impl FnOnce(&mut Slots, &mut Vec<Waker>)) {
        let mut slots = lock(&self.0);
        let mut wakers = std::mem::take(&mut slots.wakers);
        which(&mut slots, &mut wakers);
        drop(slots);
        // Without the lock: who is woken may come here.
        wakers.drain(..).for_each(Waker::wake);
        lock(&self.0).wakers = wakers;
    }
}

impl Wake for Table {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_those(|slots, wakers| {
            wakers.extend(
                slots
                    .slots
                    .iter_mut()
                    .filter_map(|slot| match &mut slot.state {
                        State::Waiting(waker) => waker.take(),
                        _ => None,
                    }),
            );
        });
    }
}

#[derive(Debug)]
struct Shared {
    cq: AsyncCq,
    table: Arc<Table>,
    /// The waker of that table.
    waker: Waker,
}

impl Shared {
    /// Takes what has completed, and wakes those who wait for it.
    fn reap(&self) -> Result<()> {
        let mut some = [Completion::EMPTY; CHUNK];
        loop {
            let n = self.cq.cq().poll_into(&mut some)?;
            if n != 0 {
                self.table.wake_those(|slots, wakers| {
                    let some = some.iter().take(n);
                    wakers.extend(some.filter_map(|done| slots.deliver(*done)));
                });
            }
            // An empty queue says whether it has failed.
            if n == 0 {
                return Ok(());
            }
        }
    }

    /// Returns the completion of a request, or notes who waits for it.
    fn take(&self, number: u64, waker: &Waker) -> Option<Completion> {
        let waker = waker.clone();
        let mut slots = lock(&self.table.0);
        let slot = slots.slot(number)?;
        if let State::Done(done) = slot.state {
            slots.free(number);
            return Some(done);
        }
        let before = std::mem::replace(&mut slot.state, State::Waiting(Some(waker)));
        // Without the lock: with its last waker a task may go that has such futures itself.
        drop(slots);
        drop(before);
        None
    }
}

/// Posts requests, each of which is a future. Needs the feature `tokio` or `smol`.
///
/// ```no_run
/// # use rust_ulp::error::Result;
/// # use rust_ulp::qp::Rc;
/// # use rust_ulp::wr::{Read, Write};
/// # use rust_ulp::*;
/// # async fn example(qp: Qp<Rc>, buffer: Buffer, peer: RemoteSlice) -> Result<()> {
/// let requests = AsyncRequests::new(qp.send_cq())?;
/// let write = requests.post(&qp, Write::new(buffer.slice(..64)?, peer))?;
/// let read = requests.post(&qp, Read::new(peer, buffer.slice(64..128)?))?;
/// write.await?.check()?;
/// read.await?.check()?;
/// # Ok(())
/// # }
/// ```
///
/// It is the only reader of its completion queue, and gives each request its number and a
/// completion: all requests of that queue are posted through it. Completions of requests that were
/// posted otherwise are dropped: the numbers of this type have a tag in their upper bits, which no
/// small number has, and no address. Cheap to clone; tasks and threads share it.
///
/// Dropping a [`RequestFuture`] is harmless at any time. The request stays in flight, the kernel
/// keeps its memory until the device is done with it, and the completion is dropped when it comes.
/// So a receive that nobody waits for still takes a message: [`Qp::cancel_all`](crate::Qp::cancel_all)
/// and deadlines ([`Recv::timeout`](crate::wr::Recv::timeout)) end receives.
#[derive(Clone, Debug)]
pub struct AsyncRequests {
    shared: Arc<Shared>,
}

impl AsyncRequests {
    /// Becomes the reader of `cq`, as [`AsyncCq::new`].
    pub fn new(cq: &Cq) -> Result<Self> {
        let table = Arc::new(Table(Mutex::new(Slots::new())));
        Ok(Self {
            shared: Arc::new(Shared {
                cq: AsyncCq::new(cq)?,
                waker: table.clone().into(),
                table,
            }),
        })
    }

    /// Returns the queue.
    pub fn cq(&self) -> &Cq {
        self.shared.cq.cq()
    }

    /// Returns how many numbers were ever in use at a time, or a little more.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        lock(&self.shared.table.0).slots.len()
    }

    /// Posts a request. It is under way when this returns, whether or not the future is polled.
    ///
    /// # Errors
    ///
    /// As [`Qp::post`](crate::Qp::post): after [`Error::QueueFull`], one awaits a request and tries
    /// again. [`Error::OtherCq`] if the request completes to another queue.
    pub fn post<'a, Q: RequestQueue, R>(&self, queue: &Q, request: R) -> Result<RequestFuture>
    where
        R: for<'q> RequestFor<'a, &'q Q>,
    {
        let target = R::target(&queue);
        let request: Request<'a> = request.into();
        if queue.completes_to(request.is_receive()) != self.cq() {
            return Err(Error::OtherCq);
        }
        let number = lock(&self.shared.table.0).take(R::life_of(&queue))?;
        // From here on its drop frees the number.
        let mut future = RequestFuture {
            shared: self.shared.clone(),
            number: Some(number),
            _queue: queue.keep(),
        };
        let request = request.tracked(number);
        let mut posted = post_one(&target, &request);
        if posted.as_ref().is_err_and(Error::is_backpressure) {
            // Completions take room until they are read. If the futures were dropped, no task polls.
            let reaped = self.shared.reap();
            posted = reaped.and_then(|()| post_one(&target, &request));
        }
        if let Err(error) = posted {
            future.number = None;
            lock(&self.shared.table.0).free(number);
            return Err(error);
        }
        Ok(future)
    }
}

/// A request that was posted by [`AsyncRequests::post`]; its output is its completion.
///
/// As with [`Cq::wait`], the completion says whether the request succeeded, and an error is about
/// the queue or the device. The future keeps the queue pair. It may be polled in any task, and
/// dropped at any time.
#[must_use = "the request may fail: await it"]
pub struct RequestFuture {
    shared: Arc<Shared>,
    /// None once it has completed.
    number: Option<u64>,
    _queue: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for RequestFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("RequestFuture");
        debug.field("number", &self.number).finish()
    }
}

impl Future for RequestFuture {
    type Output = Result<Completion>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(number) = self.number else {
            return Poll::Pending; // it has completed: nobody polls it again
        };
        let (shared, waker) = (&*self.shared, cx.waker().clone());
        let watch = shared.cq.watch();
        let taken = watch.poll_shared(cx, &shared.waker, || {
            let reaped = shared.reap();
            if let Some(done) = shared.take(number, &waker) {
                return Ok(Some(done));
            }
            // Another task, which reaped before this one was noted, may have been told of an error.
            reaped.and_then(|()| shared.cq.cq().health()).map(|()| None)
        });
        let taken = ready!(taken);
        if taken.is_ok() {
            self.number = None;
        }
        Poll::Ready(taken)
    }
}

impl RequestFuture {
    fn cq(&self) -> &Cq {
        self.shared.cq.cq()
    }
}

impl Drop for RequestFuture {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        if self.cq().device_inner().file().is_inherited() {
            return;
        }
        let mut slots = lock(&self.shared.table.0);
        let Some(slot) = slots.slot(number) else {
            return;
        };
        if !matches!(slot.state, State::Waiting(_)) {
            slots.free(number);
            return;
        }
        let before = std::mem::replace(&mut slot.state, State::Dropped);
        // Without the lock, as in `Shared::take`.
        drop(slots);
        drop(before);
    }
}
