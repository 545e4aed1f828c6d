// SPDX-License-Identifier: GPL-2.0

//! The completion ring that user space reads, and the threads that wait for it.
//!
//! Every request reserves an entry in the ring of its completion queue before it is posted. So every
//! completion has a place, whatever user space does with the ring. [`Ring::push`], [`Ring::release`],
//! [`Ring::push_early`] and [`Ring::leave`] run in the context of the completion queue's polling,
//! which may be a softirq. The rest runs in process context.

use super::deadline::Deadline;
use crate::{
    events::FileEvents,
    kernel::{
        errno::{
            ecanceled,
            enobufs,
            etime, //
        },
        eventfd::EventFd,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        },
        pages::{
            AllocPolicy,
            Pages,
            Word, //
        },
        uring::{
            Source,
            Stream, //
        }, //
    },
    logic::ring::{
        Producer,
        SharedIndex, //
    },
    rdma::{
        self,
        event::Event, //
    },
    trace,
    uapi::abi, //
};
use kernel::{
    new_condvar,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult, //
    },
    time::msecs_to_jiffies,
    transmute::AsBytes,
    uaccess::UserSliceWriter, //
};

impl SharedIndex for Word {
    fn load_acquire(&self) -> u32 {
        Self::load_acquire(self)
    }

    fn store_release(&self, value: u32) {
        Self::store_release(self, value);
    }
}

/// The words of the header that change after its creation.
struct Header {
    head: Word,
    tail: Word,
    flags: Word,
    dropped: Word,
}

impl Header {
    fn of(pages: &Arc<Pages>) -> Result<Self> {
        Ok(Self {
            head: pages.word(core::mem::offset_of!(abi::CqRing, head))?,
            tail: pages.word(core::mem::offset_of!(abi::CqRing, tail))?,
            flags: pages.word(core::mem::offset_of!(abi::CqRing, flags))?,
            dropped: pages.word(core::mem::offset_of!(abi::CqRing, dropped))?,
        })
    }
}

/// The state of a ring, which its lock protects.
struct State {
    producer: Producer,
    /// Entries that requests in flight have reserved.
    reserved: u32,
    /// Requests that the device has, and that have no entry kept free. Together with the others
    /// they are no more than there are entries: the device's own queue has room for so many.
    others: u32,
    /// The fewest unread entries that a thread waits for; `u32::MAX` without such a thread.
    wake_at: u32,
    /// Whether a thread polls the file and was not woken since.
    polled: bool,
    dropped: u32,
    flags: u32,
    /// Counts the entries that are put into the ring.
    eventfd: Option<EventFd>,
    /// The stream that reads the ring in place of user space.
    stream: Option<Streaming>,
    /// Whether there was a stream: the consumer's index is the kernel's then.
    streamed: bool,
    /// The error with which waits and the stream end: the queue was destroyed, or its device is
    /// gone.
    closed: Option<Error>,
}

/// A stream that takes the entries of a ring.
struct Streaming {
    stream: Stream,
    /// Whether it was woken and has not looked since.
    woken: bool,
    /// Whether it is to end, even with unread entries.
    canceled: bool,
    /// Entries that it has copied and that have not arrived.
    copied: u32,
}

impl State {
    /// Signals an entry, or the end, to the eventfd and the stream.
    fn signal(&mut self) {
        if let Some(eventfd) = &self.eventfd {
            eventfd.signal();
        }
        if let Some(streaming) = &mut self.stream {
            streaming.wake();
        }
    }
}

impl Streaming {
    fn wake(&mut self) {
        if !core::mem::replace(&mut self.woken, true) {
            self.stream.wake();
        }
    }
}

/// A ring of completions.
#[pin_data]
pub(crate) struct Ring {
    handle: Atomic<u32>,
    pages: Arc<Pages>,
    header: Header,
    entries: u32,
    /// The bytes of an entry, as user space knows it: a multiple of 8, at most the size of
    /// [`abi::Cqe`].
    entry_size: u32,
    #[pin]
    state: SpinLockBh<State>,
    #[pin]
    waiters: CondVar,
    /// Events of the device's queue, seen in any context.
    failed: Atomic<u32>,
    file: Arc<FileEvents>,
}

impl rdma::cq::Handler for Ring {
    fn event(&self, event: Event) {
        // Interrupts may be off: take no lock of the ring. The next thread that looks will see it.
        self.failed.store(1, Relaxed);
        self.waiters.notify_all();
        self.file
            .raise(event.number(), self.handle.load(Relaxed), 0, 0);
    }
}

impl Source for Ring {
    fn begin(&self, stream: Stream) -> Result {
        let mut state = self.state.lock();
        if state.stream.is_some() {
            return Err(EBUSY);
        }
        // Entries that user space has read are not streamed.
        self.look(&mut state);
        state.streamed = true;
        let mut streaming = Streaming {
            stream,
            woken: false,
            canceled: false,
            copied: 0,
        };
        if state.producer.unread() > 0 || state.closed.is_some() {
            streaming.wake();
        }
        state.stream = Some(streaming);
        Ok(())
    }

    fn poll(&self) -> Result<bool> {
        let mut state = self.state.lock();
        let (unread, closed) = (state.producer.unread(), state.closed);
        let streaming = state.stream.as_mut().ok_or(ENOENT)?;
        let end = if streaming.canceled {
            ecanceled()
        } else if unread > 0 {
            return Ok(true);
        } else if let Some(err) = closed {
            err
        } else {
            streaming.woken = false;
            return Ok(false);
        };
        state.stream = None;
        Err(end)
    }

    fn copy(&self, mut to: UserSliceWriter) -> Result<usize> {
        let size = self.entry_size as usize;
        let room = to.len().checked_div(size).unwrap_or(0);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let state = self.state.lock();
        let (first, entries) = (state.producer.oldest(), self.entries);
        let count = state.producer.unread().min(room);
        drop(state);
        if count == 0 {
            return Err(enobufs());
        }
        // The entries are not overwritten before `take_back`.
        for index in 0..count {
            let mut cqe = abi::Cqe::default();
            let slot = first.wrapping_add(index) & entries.wrapping_sub(1);
            let known = cqe.as_bytes_mut().get_mut(..size).ok_or(EINVAL)?;
            self.pages.read(self.offset(slot), known)?;
            to.write_slice(known)?;
        }
        if let Some(streaming) = &mut self.state.lock().stream {
            streaming.copied = count;
        }
        Ok((count as usize).saturating_mul(size))
    }

    fn copied(&self) {
        let mut state = self.state.lock();
        let count = match &mut state.stream {
            Some(streaming) => core::mem::take(&mut streaming.copied),
            None => 0,
        };
        state.producer.take_back(count);
        drop(state);
        trace::stream(self.handle.load(Relaxed), count);
    }

    fn end(&self) {
        self.state.lock().stream = None;
    }
}

impl Ring {
    /// Creates a ring of `entries` entries: a power of two, at most
    /// [`MAX_CQ_ENTRIES`](crate::limits::MAX_CQ_ENTRIES). Sleeps.
    ///
    /// Each entry has the first `entry_size` bytes of [`abi::Cqe`], a multiple of 8.
    pub(crate) fn new(
        entries: u32,
        entry_size: u32,
        node: Option<i32>,
        file: Arc<FileEvents>,
    ) -> Result<Arc<Self>> {
        let bytes = (entry_size as usize)
            .checked_mul(entries as usize)
            .and_then(|bytes| bytes.checked_add(abi::CQ_ENTRIES_OFFSET))
            .ok_or(ERANGE)?;
        let pages = Arc::new(
            Pages::new(bytes, 0, node, AllocPolicy::Reclaim, false)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let header = abi::CqRing {
            entries,
            entry_size,
            entries_offset: abi::CQ_ENTRIES_OFFSET as u32,
            ..Default::default()
        };
        pages.write(0, &header)?;
        let header = Header::of(&pages)?;
        let state = State {
            producer: Producer::new(entries),
            reserved: 0,
            others: 0,
            wake_at: u32::MAX,
            // Threads that polled the file before this ring was created have not registered with
            // it.
            polled: true,
            dropped: 0,
            flags: 0,
            eventfd: None,
            stream: None,
            streamed: false,
            closed: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                pages,
                header,
                entries,
                entry_size,
                state <- new_spinlock_bh!(state, "rust_ulp::Ring::state"),
                waiters <- new_condvar!("rust_ulp::Ring::waiters"),
                failed: Atomic::new(0),
                file,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the pages, for mapping.
    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Returns the file's events.
    pub(crate) fn file(&self) -> &Arc<FileEvents> {
        &self.file
    }

    /// Sets its handle, for traces and events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Relaxed);
    }

    /// Returns the offset of the entry at position `slot`.
    const fn offset(&self, slot: u32) -> usize {
        (slot as usize)
            .saturating_mul(self.entry_size as usize)
            .saturating_add(abi::CQ_ENTRIES_OFFSET)
    }

    /// Writes `cqe` to the entry at position `slot`, as far as user space knows it.
    fn write(&self, slot: u32, cqe: &abi::Cqe) {
        if let Some(known) = cqe.as_bytes().get(..self.entry_size as usize) {
            let _ = self.pages.write(self.offset(slot), known);
        }
    }

    /// Returns the number of unread entries.
    fn look(&self, state: &mut State) -> u32 {
        if state.streamed {
            state.producer.unread()
        } else {
            state.producer.refresh(&self.header.head)
        }
    }

    /// Lets `count` requests in that need no entry, or as many as there is room for, and returns
    /// how many; [`Self::leave`] when the device is done with one. [`EAGAIN`] when it has as many
    /// as there are entries.
    pub(crate) fn admit(&self, count: u32) -> Result<u32> {
        let mut state = self.state.lock();
        let taken = state.others.saturating_add(state.reserved);
        let count = count.min(state.producer.entries().saturating_sub(taken));
        if count == 0 {
            return Err(EAGAIN);
        }
        state.others = state.others.saturating_add(count);
        Ok(count)
    }

    /// Ends the stream that `which` names.
    pub(crate) fn cancel_stream(&self, which: impl FnOnce(&Stream) -> bool) {
        let mut state = self.state.lock();
        if let Some(streaming) = &mut state.stream {
            if which(&streaming.stream) {
                streaming.canceled = true;
                streaming.wake();
            }
        }
    }

    /// Keeps entries free for `count` requests, or for as many as there is room for, and returns
    /// how many. [`EAGAIN`] when all are read-ahead or taken, or the device has as many requests as
    /// there are entries.
    pub(crate) fn reserve(&self, count: u32) -> Result<u32> {
        let mut state = self.state.lock();
        let room = |state: &State, unread: u32| {
            let taken = unread.max(state.others).saturating_add(state.reserved);
            state.producer.entries().saturating_sub(taken)
        };
        // Entries that were unread at the last look may have been read since.
        let mut free = room(&state, state.producer.unread());
        if free < count {
            let unread = self.look(&mut state);
            free = room(&state, unread);
        }
        let count = count.min(free);
        if count == 0 {
            return Err(EAGAIN);
        }
        state.reserved = state.reserved.saturating_add(count);
        Ok(count)
    }

    /// Undoes [`Self::reserve`] for `count` requests, which make no completion.
    pub(crate) fn release(&self, count: u32) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(count);
    }

    /// Puts `cqe` into the entry that its request reserved, and wakes the threads that wait for it.
    pub(crate) fn push(&self, cqe: &abi::Cqe) {
        self.put(cqe, 0);
    }

    /// Does the same for a request that the device still has, until [`Self::leave`].
    pub(crate) fn push_early(&self, cqe: &abi::Cqe) {
        self.put(cqe, 1);
    }

    /// Notes that the device is done with `count` requests that had no entry reserved.
    pub(crate) fn leave(&self, count: u32) {
        let mut state = self.state.lock();
        state.others = state.others.saturating_sub(count);
    }

    fn put(&self, cqe: &abi::Cqe, others: u32) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
        state.others = state.others.saturating_add(others);
        let Some(slot) = state.producer.slot() else {
            // Not reached while every request reserves an entry; but never silent.
            state.dropped = state.dropped.saturating_add(1);
            self.header.dropped.store_release(state.dropped);
            self.set_flags(&mut state, abi::CQ_OVERFLOW);
            state.signal();
            return;
        };
        self.write(slot, cqe);
        state.producer.publish(&self.header.tail);
        state.signal();
        let unread = self.look(&mut state);
        let wake = unread >= state.wake_at;
        if wake {
            state.wake_at = u32::MAX;
        }
        let polled = core::mem::replace(&mut state.polled, false);
        let tail = state.producer.tail();
        drop(state);

        trace::deliver(self.handle.load(Relaxed), cqe.user_data, tail, unread, wake);
        if wake {
            self.waiters.notify_all();
        }
        if polled {
            self.file.wait.notify_all();
        }
    }

    fn set_flags(&self, state: &mut State, flags: u32) {
        state.flags |= flags;
        self.header.flags.store_release(state.flags);
    }

    /// Ends waits and the stream, now and from now on: with [`ENOENT`] when the queue is destroyed,
    /// with [`ENODEV`] when its device goes. The stream first takes what is unread.
    pub(super) fn close(&self, err: Error) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(err);
        if err == ENODEV {
            self.set_flags(&mut state, abi::CQ_DEAD);
            state.signal();
        } else if let Some(streaming) = &mut state.stream {
            streaming.wake();
        }
        drop(state);
        self.waiters.notify_all();
        self.file.wait.notify_all();
    }

    /// Has `eventfd` count what is put into the ring from now on, and the ring's end; [`None`]
    /// takes it away. [`EBUSY`] when there is one.
    pub(crate) fn set_eventfd(&self, eventfd: Option<EventFd>) -> Result {
        let mut state = self.state.lock();
        if eventfd.is_some() && state.eventfd.is_some() {
            drop(state);
            return Err(EBUSY);
        }
        let old = core::mem::replace(&mut state.eventfd, eventfd);
        drop(state);
        drop(old);
        Ok(())
    }

    /// Returns how many entries user space has not read.
    pub(crate) fn unread(&self) -> u32 {
        let mut state = self.state.lock();
        self.note_failure(&mut state);
        self.look(&mut state)
    }

    /// Whether `poll` should say that there is something; if not, the next completion wakes those
    /// who have registered with the file's [`FileEvents`] before this call.
    ///
    /// Both happen under the ring's lock, as [`Self::push`] does: no wake-up is lost between them.
    pub(crate) fn poll(&self) -> bool {
        let mut state = self.state.lock();
        state.polled = true;
        self.note_failure(&mut state);
        self.look(&mut state) > 0 || state.flags != 0
    }

    fn note_failure(&self, state: &mut State) {
        if self.failed.load(Relaxed) != 0 && state.flags & abi::CQ_ERROR == 0 {
            self.set_flags(state, abi::CQ_ERROR);
        }
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns how many entries are unread, and how many are reserved.
    pub(crate) fn usage(&self) -> (u32, u32) {
        let mut state = self.state.lock();
        (self.look(&mut state), state.reserved)
    }

    /// Waits until `min` entries are unread. Sleeps.
    ///
    /// [`etime`] when the time runs out, [`EINTR`] when a signal comes, [`EIO`] when the device's
    /// queue has failed, and the error that [`Self::close`] was told.
    pub(crate) fn wait(&self, min: u32, deadline: &Deadline) -> Result {
        let mut state = self.state.lock();
        loop {
            self.note_failure(&mut state);
            if let Some(err) = state.closed {
                return Err(err);
            }
            if self.look(&mut state) >= min {
                return Ok(());
            }
            if state.flags & abi::CQ_ERROR != 0 {
                return Err(EIO);
            }
            let left = deadline.left_ns();
            if left == 0 {
                return Err(etime());
            }
            // In slices: the device's failure is noted without the lock, so it may fall between the
            // look above and the sleep below, and wake nobody.
            let millis = u32::try_from(left.div_ceil(1_000_000))
                .unwrap_or(u32::MAX / 2)
                .min(1000);
            // A thread that wakes, for any reason, looks again and sets this again.
            state.wake_at = state.wake_at.min(min);
            let jiffies = msecs_to_jiffies(millis).max(1);
            if let CondVarTimeoutResult::Signal { .. } =
                self.waiters.wait_interruptible_timeout(&mut state, jiffies)
            {
                return Err(EINTR);
            }
        }
    }
}

// The header and the entries need not be in different pages.
const _: () = assert!(core::mem::size_of::<abi::CqRing>() <= abi::CQ_ENTRIES_OFFSET);

#[kunit_tests(rust_ulp_ring)]
mod tests {
    use super::*;

    fn ring(entries: u32) -> Result<Arc<Ring>> {
        Ring::new(entries, abi::Cqe::SIZE, None, FileEvents::new(0)?)
    }

    fn cqe(user_data: u64) -> abi::Cqe {
        abi::Cqe {
            user_data,
            ..Default::default()
        }
    }

    #[test]
    fn has_room_for_what_is_reserved() -> Result {
        let ring = ring(4)?;
        for _ in 0..4 {
            ring.reserve(1)?;
        }
        assert_eq!(ring.reserve(1).err(), Some(EAGAIN));
        // A request that makes no completion gives its place back, one that makes one does not.
        ring.release(1);
        ring.reserve(1)?;
        ring.push(&cqe(1));
        assert_eq!(ring.usage(), (1, 3));
        assert_eq!(ring.reserve(1).err(), Some(EAGAIN));
        // Nor does the consumer before it has read.
        ring.header.head.store_release(1);
        ring.reserve(1)?;
        Ok(())
    }

    #[test]
    fn reserves_as_much_as_there_is() -> Result {
        let ring = ring(4)?;
        assert_eq!(ring.reserve(3), Ok(3));
        assert_eq!(ring.admit(2), Ok(1));
        assert_eq!(ring.reserve(1).err(), Some(EAGAIN));
        ring.release(2);
        assert_eq!(ring.admit(1), Ok(1));
        assert_eq!(ring.reserve(2), Ok(1));
        assert_eq!(ring.admit(1).err(), Some(EAGAIN));
        ring.leave(2);
        ring.release(2);
        assert_eq!(ring.reserve(u32::MAX), Ok(4));
        Ok(())
    }

    #[test]
    fn has_no_more_at_the_device_than_there_are_entries() -> Result {
        let ring = ring(2)?;
        for _ in 0..2 {
            ring.reserve(1)?;
            ring.push_early(&cqe(1));
        }
        // Read or not, the device has two.
        ring.header.head.store_release(2);
        assert_eq!(ring.usage(), (0, 0));
        assert_eq!(ring.reserve(1).err(), Some(EAGAIN));
        ring.leave(1);
        ring.reserve(1)?;
        assert_eq!(ring.reserve(1).err(), Some(EAGAIN));
        Ok(())
    }

    #[test]
    fn writes_entries_as_long_as_user_space_knows_them() -> Result {
        let ring = Ring::new(4, 16, None, FileEvents::new(0)?)?;
        for user_data in 1..=2 {
            ring.reserve(1)?;
            ring.push(&abi::Cqe {
                qp_user_data: 7,
                vendor_err: u32::MAX,
                ..cqe(user_data)
            });
        }
        let mut words = [0u8; 48];
        ring.pages.read(abi::CQ_ENTRIES_OFFSET, &mut words)?;
        let word = |at: usize| words.get(at).copied();
        // The entries follow each other, and nothing is behind them.
        assert_eq!((word(0), word(8)), (Some(1), Some(7)));
        assert_eq!((word(16), word(24)), (Some(2), Some(7)));
        assert!(words.iter().skip(32).all(|&byte| byte == 0));
        Ok(())
    }

    #[test]
    fn believes_no_nonsense_of_the_consumer() -> Result {
        let ring = ring(4)?;
        for head in [1, 5, 0x8000_0000, u32::MAX] {
            ring.header.head.store_release(head);
            assert_eq!(ring.unread(), 0);
        }
        for _ in 0..4 {
            ring.reserve(1)?;
            ring.push(&cqe(2));
        }
        assert_eq!(ring.unread(), 4);
        ring.header.head.store_release(2);
        assert_eq!(ring.unread(), 2);
        // Back again, and beyond the end.
        for head in [0, 1, 5, u32::MAX] {
            ring.header.head.store_release(head);
            assert_eq!(ring.unread(), 2);
        }
        // What the consumer writes over the kernel's fields changes nothing.
        ring.header.tail.store_release(77);
        assert_eq!(ring.unread(), 2);
        Ok(())
    }

    #[test]
    fn reports_what_does_not_fit() -> Result {
        let ring = ring(1)?;
        ring.push(&cqe(1));
        ring.push(&cqe(2));
        assert_eq!(ring.unread(), 1);
        assert_eq!(ring.header.flags.load_acquire(), abi::CQ_OVERFLOW);
        assert_eq!(ring.header.dropped.load_acquire(), 1);
        Ok(())
    }

    #[test]
    fn waits_for_what_is_there_and_no_longer_than_told() -> Result {
        let ring = ring(4)?;
        let now = Deadline::new(0, 0);
        assert_eq!(ring.wait(0, &now), Ok(()));
        assert_eq!(ring.wait(1, &now).err(), Some(etime()));
        let later = Deadline::new(2_000_000, 0);
        assert_eq!(ring.wait(1, &later).err(), Some(etime()));
        assert_eq!(later.rest(), 0);
        let past = Deadline::new(1, abi::TIMEOUT_ABSOLUTE);
        assert_eq!(ring.wait(1, &past).err(), Some(etime()));
        assert_eq!(past.rest(), 1);
        ring.reserve(1)?;
        ring.push(&cqe(3));
        let forever = Deadline::new(abi::TIMEOUT_INFINITE, 0);
        assert_eq!(ring.wait(1, &forever), Ok(()));
        assert_eq!(ring.wait(2, &now).err(), Some(etime()));
        Ok(())
    }

    #[test]
    fn dies_and_fails_for_good() -> Result {
        let now = Deadline::new(0, 0);
        let failed = ring(2)?;
        rdma::cq::Handler::event(&*failed, Event::CQ_ERR);
        assert_eq!(failed.file().take(false)?.event, abi::EVENT_CQ_ERR);
        assert_eq!(failed.file().take(false).err(), Some(EAGAIN));
        assert!(failed.poll());
        assert_eq!(failed.wait(1, &now).err(), Some(EIO));
        let dead = ring(2)?;
        dead.close(ENODEV);
        assert!(dead.poll());
        assert_eq!(dead.wait(0, &now).err(), Some(ENODEV));
        assert_eq!(dead.header.flags.load_acquire(), abi::CQ_DEAD);
        let destroyed = ring(2)?;
        destroyed.close(ENOENT);
        assert_eq!(destroyed.wait(0, &now).err(), Some(ENOENT));
        assert_eq!(destroyed.header.flags.load_acquire(), 0);
        Ok(())
    }
}
