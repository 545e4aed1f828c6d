// SPDX-License-Identifier: GPL-2.0

//! The producer's side of a completion ring: reservations and waiters.
//!
//! Every request reserves an entry in the ring of its completion queue before it is posted. So
//! every completion has a place, whatever user space does with the ring.
//!
//! A send request that is not signaled gives its entry back when the device reports a later request
//! of its queue pair. Nothing obliges user space to post one. So the device reports each send whose
//! entry leaves less than half of the ring free, see [`Reserved::silent`]: the others hold half of
//! the ring at most, and a full ring always has entries that are unread or whose requests the device
//! reports.
//!
//! [`CqRing`] names what a ring is made of: a lock, memory, wait queues. Its provided methods are
//! the protocol. The host tests compile them for threads of loom.

use super::{
    poller::{Call, Pollers, SharedState},
    ring::{Producer, SharedIndex}, //
};
use core::ops::ControlFlow::{self, Break, Continue};

/// The reason why a call on a ring fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Failure {
    /// All entries are unread or reserved, or the device has as many requests as there are entries.
    Full,
    /// The time ran out.
    TimedOut,
    /// A signal came.
    Interrupted,
    /// The device's queue has failed.
    QueueFailed,
    /// The completion queue is destroyed.
    Destroyed,
    /// The device is gone.
    Removed,
    /// The ring has an eventfd.
    Busy,
}

/// Entries that [`CqRing::reserve`] keeps free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Reserved {
    /// The number of entries.
    pub count: u32,
    /// The number of entries that leave at least half of the ring free, when they are used one by
    /// one. The device must report the requests that use the other entries.
    pub silent: u32,
}

/// The words of the header that change after its creation.
#[allow(unreachable_pub)]
pub struct Header<W> {
    /// The consumer's index.
    pub head: W,
    /// The producer's index.
    pub tail: W,
    /// The flags, `CQ_*`.
    pub flags: W,
    /// The number of entries that did not fit.
    pub dropped: W,
}

/// The state of a ring, which its lock protects.
#[allow(unreachable_pub)]
pub struct State<R: CqRing> {
    producer: Producer,
    /// Entries that requests in flight have reserved.
    reserved: u32,
    /// Requests that the device has, and that have no entry kept free. Together with the others
    /// they are no more than there are entries: the device's own queue has room for so many.
    others: u32,
    /// The fewest unread entries that a thread waits for; [`u32::MAX`] without such a thread.
    pub wake_at: u32,
    dropped: u32,
    flags: u32,
    /// Counts the entries that are put into the ring.
    eventfd: Option<R::EventFd>,
    /// Why waits end.
    closed: Option<Failure>,
}

#[allow(unreachable_pub)]
impl<R: CqRing> State<R> {
    /// Creates the state of an empty ring of `entries` entries, a power of two.
    pub const fn new(entries: u32) -> Self {
        Self {
            producer: Producer::new(entries),
            reserved: 0,
            others: 0,
            wake_at: u32::MAX,
            dropped: 0,
            flags: 0,
            eventfd: None,
            closed: None,
        }
    }

    /// Signals an entry, or the end, to the eventfd.
    #[inline(always)]
    fn signal(&self) {
        if let Some(eventfd) = &self.eventfd {
            R::signal(eventfd);
        }
    }

    /// Returns the number of unread entries.
    fn look(&mut self, header: &Header<R::Word>) -> u32 {
        self.producer.refresh(&header.head)
    }

    /// Returns how many entries can be reserved while `unread` are unread.
    fn room(&self, unread: u32) -> u32 {
        let taken = unread.max(self.others).saturating_add(self.reserved);
        self.producer.entries().saturating_sub(taken)
    }

    fn set_flags(&mut self, header: &Header<R::Word>, flags: u32) {
        self.flags |= flags;
        header.flags.store_release(self.flags);
    }
}

/// Returns `count` and as many of `ahead` as leave `half` of the `free` entries, but no more than there
/// are.
fn with_ahead(count: u32, ahead: u32, free: u32, half: u32) -> u32 {
    let count = count.min(free);
    let spare = free.saturating_sub(count).saturating_sub(half);
    count.saturating_add(ahead.min(spare))
}

/// A ring of completions.
///
/// [`Self::push`], [`Self::push_early`], [`Self::release`] and [`Self::leave`] may be called in any
/// context in which the lock may be taken.
#[allow(unreachable_pub)]
pub trait CqRing: Sized {
    /// A completion.
    type Entry;
    /// A word of the header.
    type Word: SharedIndex;
    /// An eventfd.
    type EventFd;
    /// The state of the threads that poll the device's queue.
    type Polls: SharedState;
    /// The lock of the state, while it is held.
    type Guard<'a>: core::ops::DerefMut<Target = State<Self>>
    where
        Self: 'a;
    /// The error of the methods.
    type Error: From<Failure>;
    /// The flag of the header: the device is gone.
    const DEAD: u32;
    /// The flag of the header: the device's queue has failed.
    const ERROR: u32;
    /// The flag of the header: an entry did not fit.
    const OVERFLOW: u32;

    /// Takes the lock.
    fn lock(&self) -> Self::Guard<'_>;

    /// Returns the words of the header.
    fn header(&self) -> &Header<Self::Word>;

    /// Writes the entry at position `slot`.
    fn write(&self, slot: u32, entry: &Self::Entry);

    /// Wakes the threads that wait for entries.
    fn wake_waiters(&self);

    /// Wakes one of them that polls the device's queue.
    fn wake_waiter(&self);

    /// Adds one to an eventfd.
    fn signal(eventfd: &Self::EventFd);

    /// Returns whether the device's queue has failed.
    fn has_failed(&self) -> bool;

    /// Returns how often [`Self::wake_waiters`] and [`Self::wake_waiter`] were called.
    fn wakeups(&self) -> u64;

    /// Sleeps until [`Self::wakeups`] is no longer `seen`, at most `left_ns`, without a limit for
    /// [`u64::MAX`]; may wake spuriously. Returns `false` when a signal came. `polls` says whether the
    /// thread polls the device's queue.
    fn sleep(&self, seen: u64, left_ns: u64, polls: bool) -> bool;

    /// Returns the threads that poll the device's queue.
    fn pollers(&self) -> &Pollers<Self::Polls>;

    /// Traces an entry that became the one before `tail`; `wake` says whether it woke waiters.
    fn trace(&self, entry: &Self::Entry, tail: u32, unread: u32, wake: bool);

    /// Keeps entries free for `count` requests, or for as many as there is room for, and for up to
    /// `ahead` more, as long as half of the ring stays free. Fails with [`Failure::Full`] when all are
    /// unread or reserved, or the device has as many requests as there are entries.
    fn reserve(&self, count: u32, ahead: u32) -> Result<Reserved, Self::Error> {
        let mut state = self.lock();
        let half = state.producer.entries().div_ceil(2);
        // Entries that were unread at the last look may have been read since.
        let mut free = state.room(state.producer.unread());
        if free < half.saturating_add(count).saturating_add(ahead) {
            let unread = state.look(self.header());
            free = state.room(unread);
        }
        let count = with_ahead(count, ahead, free, half);
        if count == 0 {
            return Err(Failure::Full.into());
        }
        state.reserved = state.reserved.saturating_add(count);
        Ok(Reserved {
            count,
            silent: free.saturating_sub(half).min(count),
        })
    }

    /// Undoes [`Self::reserve`] for `count` requests, which make no completion.
    fn release(&self, count: u32) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(count);
    }

    /// Lets `count` requests in that need no entry, or as many as there is room for, and `ahead` more as
    /// [`Self::reserve`] does, and returns how many; [`Self::leave`] when the device is done with one.
    /// [`Failure::Full`] when it has as many as there are entries.
    fn admit(&self, count: u32, ahead: u32) -> Result<u32, Self::Error> {
        let mut state = self.lock();
        let (taken, entries) = (
            state.others.saturating_add(state.reserved),
            state.producer.entries(),
        );
        let free = entries.saturating_sub(taken);
        let count = with_ahead(count, ahead, free, entries.div_ceil(2));
        if count == 0 {
            return Err(Failure::Full.into());
        }
        state.others = state.others.saturating_add(count);
        Ok(count)
    }

    /// Notes that the device is done with `count` requests that had no entry reserved.
    fn leave(&self, count: u32) {
        let mut state = self.lock();
        state.others = state.others.saturating_sub(count);
    }

    /// Puts `entry` into the place that its request reserved, and wakes the threads that wait for
    /// it.
    fn push(&self, entry: &Self::Entry) {
        self.put(entry, 0);
    }

    /// Puts `entry` into the ring as [`Self::push`] does, for a request that the device still has,
    /// until [`Self::leave`].
    fn push_early(&self, entry: &Self::Entry) {
        self.put(entry, 1);
    }

    /// Puts `entry` into the ring; `others` requests more have no entry reserved.
    fn put(&self, entry: &Self::Entry, others: u32) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(1);
        state.others = state.others.saturating_add(others);
        let Some(slot) = state.producer.slot() else {
            // Not reached while every request reserves an entry; but never silent.
            state.dropped = state.dropped.saturating_add(1);
            self.header().dropped.store_release(state.dropped);
            state.set_flags(self.header(), Self::OVERFLOW);
            state.signal();
            return;
        };
        self.write(slot, entry);
        state.producer.publish(&self.header().tail);
        state.signal();
        let unread = state.look(self.header());
        let wake = unread >= state.wake_at;
        if wake {
            state.wake_at = u32::MAX;
        }
        let tail = state.producer.tail();
        drop(state);

        self.trace(entry, tail, unread, wake);
        if wake {
            self.wake_waiters();
        }
    }

    /// Ends waits, now and from now on: with [`Failure::Destroyed`] when the queue is destroyed,
    /// with [`Failure::Removed`] when its device goes.
    fn end_waits(&self, why: Failure) {
        let mut state = self.lock();
        state.closed.get_or_insert(why);
        drop(state);
        self.wake_waiters();
    }

    /// Tells user space that the device is gone. No entry follows.
    fn die(&self) {
        let mut state = self.lock();
        state.set_flags(self.header(), Self::DEAD);
        state.signal();
    }

    /// Has `eventfd` count what is put into the ring from now on, its failure and its end; [`None`]
    /// takes it away. [`Failure::Busy`] when there is one.
    fn set_eventfd(&self, eventfd: Option<Self::EventFd>) -> Result<(), Self::Error> {
        let mut state = self.lock();
        if eventfd.is_some() && state.eventfd.is_some() {
            drop(state);
            return Err(Failure::Busy.into());
        }
        let old = core::mem::replace(&mut state.eventfd, eventfd);
        drop(state);
        drop(old);
        Ok(())
    }

    /// Sets the flag of a failed queue, and signals that to the eventfd.
    fn note_failure(&self, state: &mut State<Self>) {
        if self.has_failed() && state.flags & Self::ERROR == 0 {
            state.set_flags(self.header(), Self::ERROR);
            state.signal();
        }
    }

    /// Returns how many entries user space has not read.
    fn unread(&self) -> u32 {
        let mut state = self.lock();
        self.note_failure(&mut state);
        state.look(self.header())
    }

    /// Returns how many entries are unread, and how many are reserved.
    fn usage(&self) -> (u32, u32) {
        let mut state = self.lock();
        (state.look(self.header()), state.reserved)
    }

    /// Calls the threads that wait: the device's queue has completions, and is not armed. Unless the
    /// result is [`Call::Nobody`], one of them will poll and arm it, or [`Pollers::tick`] has the
    /// worker do that.
    fn call_waiter(&self) -> Call {
        let call = self.pollers().call();
        if call != Call::Nobody {
            self.wake_waiter();
        }
        call
    }

    /// Waits until `min` entries are unread, and returns how many are; `left_ns` returns the time
    /// that is left, [`u64::MAX`] without a limit. Sleeps.
    ///
    /// In a thread of [`Self::pollers`], `poll` polls the device's queue for a while, or does
    /// nothing, and does not change whether it is armed. It returns how many entries are unread if
    /// it has seen that there are `min`: a call that came meanwhile is left to [`Pollers::end`].
    /// `serve` polls the queue until it is empty, and arms it. Both put completions into the ring.
    /// Other threads have no `serve`.
    ///
    /// Fails with [`Failure::TimedOut`] when the time runs out, with [`Failure::Interrupted`] when
    /// a signal arrives, with [`Failure::QueueFailed`] when the device's queue has failed, and with
    /// the argument of [`Self::end_waits`].
    fn wait_until(
        &self,
        min: u32,
        left_ns: impl Fn() -> u64,
        poll: impl Fn() -> Result<Option<u32>, Self::Error>,
        serve: Option<impl Fn()>,
    ) -> Result<u32, Self::Error> {
        loop {
            if let Some(unread) = poll()? {
                return Ok(unread);
            }
            // Before the look at the calls and the ring: a wake-up after that look ends the sleep.
            let seen = self.wakeups();
            if let Some(serve) = &serve {
                if self.pollers().take() {
                    serve();
                }
            }
            match self.before_sleep(min, &left_ns)? {
                Break(unread) => return Ok(unread),
                Continue(left) if self.sleep(seen, left, serve.is_some()) => (),
                Continue(_) => return Err(Failure::Interrupted.into()),
            }
        }
    }

    /// Returns how many entries are unread if a thread that waits for `min` has them; else how many
    /// nanoseconds it may sleep. The next entry that makes them `min` wakes it.
    fn before_sleep(
        &self,
        min: u32,
        left_ns: &impl Fn() -> u64,
    ) -> Result<ControlFlow<u32, u64>, Self::Error> {
        let mut state = self.lock();
        self.note_failure(&mut state);
        if let Some(why) = state.closed {
            return Err(why.into());
        }
        let unread = state.look(self.header());
        if unread >= min {
            return Ok(Break(unread));
        }
        if state.flags & Self::ERROR != 0 {
            return Err(Failure::QueueFailed.into());
        }
        let left = left_ns();
        if left == 0 {
            return Err(Failure::TimedOut.into());
        }
        // A thread that wakes, for any reason, looks again and sets this again.
        state.wake_at = state.wake_at.min(min);
        Ok(Continue(left))
    }
}
