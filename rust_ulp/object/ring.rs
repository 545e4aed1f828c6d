// SPDX-License-Identifier: GPL-2.0

//! The completion ring that user space reads, and the threads that wait for it.
//!
//! The protocol is [`CqRing`]. Its methods `push`, `release`, `push_early` and `leave` run in the
//! context of the completion queue's polling, which may be a softirq. The rest runs in process
//! context.

use super::deadline::Deadline;
use crate::{
    events::FileEvents,
    ext::{
        errno::{
            etime, //
        },
        eventfd::EventFd,
        lock::{
            new_spinlock_bh,
            new_spinlock_irq,
            SpinLockBh,
            SpinLockBhBackend,
            SpinLockIrq, //
        },
        pages::{
            AllocPolicy,
            Pages,
            Word, //
        },
        task,
        timer::{
            jiffies_of,
            now_ns, //
        }, //
    },
    logic::{
        cq_ring::{
            CqRing,
            Failure,
            Header,
            State, //
        },
        poller::{
            Call,
            Pollers,
            SharedState,
            Tick, //
        },
        ring::SharedIndex, //
    },
    rdma::{
        self,
        event::Event, //
    },
    trace,
    uapi::abi, //
};
use core::ops::ControlFlow::{
    Break,
    Continue, //
};
use kernel::{
    new_condvar,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        lock::Guard,
        Arc,
        CondVar,
        CondVarTimeoutResult, //
    },
    transmute::AsBytes, //
};

impl SharedIndex for Word {
    fn load_acquire(&self) -> u32 {
        Self::load_acquire(self)
    }

    fn store_release(&self, value: u32) {
        Self::store_release(self, value);
    }
}

impl SharedState for Atomic<u32> {
    fn load(&self) -> u32 {
        Self::load(self, Relaxed)
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.cmpxchg(from, to, Full).is_ok()
    }
}

impl From<Failure> for Error {
    fn from(why: Failure) -> Self {
        match why {
            Failure::Full => EAGAIN,
            Failure::TimedOut => etime(),
            Failure::Interrupted => EINTR,
            Failure::QueueFailed => EIO,
            Failure::Destroyed => ENOENT,
            Failure::Removed => ENODEV,
            Failure::Busy => EBUSY,
        }
    }
}

/// Returns the words of the header in `pages`.
fn header_of(pages: &Arc<Pages>) -> Result<Header<Word>> {
    Ok(Header {
        head: pages.word(core::mem::offset_of!(abi::CqRing, head))?,
        tail: pages.word(core::mem::offset_of!(abi::CqRing, tail))?,
        flags: pages.word(core::mem::offset_of!(abi::CqRing, flags))?,
        dropped: pages.word(core::mem::offset_of!(abi::CqRing, dropped))?,
    })
}

/// A ring of completions.
#[pin_data]
pub(crate) struct Ring {
    handle: Atomic<u32>,
    pages: Arc<Pages>,
    header: Header<Word>,
    entries: u32,
    /// The bytes of an entry, as user space knows it: a multiple of 8, at most the size of
    /// [`abi::Cqe`].
    entry_size: u32,
    /// How long a thread polls the device's queue before it sleeps.
    busy_poll_us: u32,
    /// Lock order: after `rdma::Queue::lists`, before `FileEvents::log` and wait queues. Held while
    /// the eventfd is signaled.
    #[pin]
    state: SpinLockBh<State<Ring>>,
    /// How often waiting threads were woken. Taken in any context, after all locks of this crate.
    #[pin]
    wakeups: SpinLockIrq<u64>,
    #[pin]
    waiters: CondVar,
    /// Where those of them sleep that poll the device's queue.
    #[pin]
    servers: CondVar,
    /// How many those are, and whether they are called.
    pollers: Pollers<Atomic<u32>>,
    /// Events of the device's queue, seen in any context.
    failed: AtomicFlag,
    file: Arc<FileEvents>,
}

impl rdma::cq::Handler for Ring {
    fn event(&self, event: Event) {
        // Interrupts may be off, which rules out `state`. The lock of `wakeups` orders this before the
        // wake-up.
        self.failed.store(true, Relaxed);
        self.wake_waiters();
        self.file
            .raise(event.number(), self.handle.load(Relaxed), 0, 0);
    }

    fn after_event(&self) {
        if self.has_failed() {
            self.note_failure(&mut self.lock());
        }
    }

    fn completion(&self) -> Call {
        self.call_waiter()
    }

    fn tick(&self) -> Tick {
        let tick = self.pollers.tick();
        if tick == Tick::TakeOver {
            trace::take_over(self.handle.load(Relaxed));
        }
        tick
    }
}

impl CqRing for Ring {
    type Entry = abi::Cqe;
    type Word = Word;
    type EventFd = EventFd;
    type Polls = Atomic<u32>;
    type Guard<'a> = Guard<'a, State<Self>, SpinLockBhBackend>;
    type Error = Error;

    const DEAD: u32 = abi::CQ_DEAD;
    const ERROR: u32 = abi::CQ_ERROR;
    const OVERFLOW: u32 = abi::CQ_OVERFLOW;

    fn lock(&self) -> Self::Guard<'_> {
        self.state.lock()
    }

    fn header(&self) -> &Header<Word> {
        &self.header
    }

    fn write(&self, slot: u32, cqe: &abi::Cqe) {
        // No entry crosses the border of a page, beyond which `Pages::write` does not write: they have
        // one size, which divides that of a page.
        const _: () = assert!(abi::CQE_SIZE_V1 as usize == size_of::<abi::Cqe>());
        const _: () = assert!(PAGE_SIZE % size_of::<abi::Cqe>() == 0);
        // As far as user space knows it.
        if let Some(known) = cqe.as_bytes().get(..self.entry_size as usize) {
            let _ = self.pages.write(self.offset(slot), known);
        }
    }

    fn wake_waiters(&self) {
        self.count_wakeup();
        self.servers.notify_all();
        self.waiters.notify_all();
    }

    fn wake_waiter(&self) {
        self.count_wakeup();
        self.servers.notify_one();
    }

    fn signal(eventfd: &EventFd) {
        eventfd.signal();
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    fn wakeups(&self) -> u64 {
        *self.wakeups.lock()
    }

    fn sleep(&self, seen: u64, left_ns: u64, polls: bool) -> bool {
        let queue = if polls { &self.servers } else { &self.waiters };
        let mut wakeups = self.wakeups.lock();
        if *wakeups != seen {
            return true;
        }
        if left_ns == u64::MAX {
            return !queue.wait_interruptible(&mut wakeups);
        }
        let result = queue.wait_interruptible_timeout(&mut wakeups, jiffies_of(left_ns));
        !matches!(result, CondVarTimeoutResult::Signal { .. })
    }

    fn pollers(&self) -> &Pollers<Atomic<u32>> {
        &self.pollers
    }

    fn trace(&self, cqe: &abi::Cqe, tail: u32, unread: u32, wake: bool) {
        trace::deliver(self.handle.load(Relaxed), cqe.user_data, tail, unread, wake);
    }
}

impl Ring {
    /// Creates a ring of `entries` entries: a power of two, at most
    /// [`MAX_CQ_ENTRIES`](crate::limits::MAX_CQ_ENTRIES). Sleeps.
    ///
    /// Each entry has the first `entry_size` bytes of [`abi::Cqe`], a multiple of 8. The thread
    /// that polls the device's queue does so for `busy_poll_us` before it sleeps. The pages keep
    /// `charge`, which is for the entries.
    pub(crate) fn new(
        entries: u32,
        entry_size: u32,
        busy_poll_us: u32,
        file: Arc<FileEvents>,
        charge: Arc<dyn Send + Sync>,
    ) -> Result<Arc<Self>> {
        let bytes = (entry_size as usize)
            .checked_mul(entries as usize)
            .and_then(|bytes| bytes.checked_add(abi::CQ_ENTRIES_OFFSET))
            .ok_or(ERANGE)?;
        let pages = Arc::new(
            Pages::new(bytes, 0, None, AllocPolicy::Reclaim, false)?.holding(charge),
            GFP_KERNEL_ACCOUNT,
        )?;
        let header = abi::CqRing {
            entries,
            entry_size,
            entries_offset: abi::CQ_ENTRIES_OFFSET as u32,
            ..Default::default()
        };
        pages.write(0, &header)?;
        let header = header_of(&pages)?;
        let state = State::new(entries);
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                pages,
                header,
                entries,
                entry_size,
                busy_poll_us,
                state <- new_spinlock_bh!(state, "rust_ulp::Ring::state"),
                wakeups <- new_spinlock_irq!(0, "rust_ulp::Ring::wakeups"),
                waiters <- new_condvar!("rust_ulp::Ring::waiters"),
                servers <- new_condvar!("rust_ulp::Ring::servers"),
                pollers: Pollers::new(Atomic::new(0)),
                failed: AtomicFlag::new(false),
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

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the offset of the entry at position `slot`.
    const fn offset(&self, slot: u32) -> usize {
        (slot as usize)
            .saturating_mul(self.entry_size as usize)
            .saturating_add(abi::CQ_ENTRIES_OFFSET)
    }

    /// Ends waits: with [`ENODEV`] when the device goes, else with [`ENOENT`].
    pub(super) fn close(&self, err: Error) {
        let why = if err == ENODEV {
            Failure::Removed
        } else {
            Failure::Destroyed
        };
        self.end_waits(why);
    }

    /// Waits until `min` entries are unread, and returns how many are. Sleeps.
    ///
    /// [`etime`] when the time runs out, [`EINTR`] when a signal comes, [`EIO`] when the device's
    /// queue has failed, and the error that [`Self::close`] was told.
    pub(crate) fn wait(&self, min: u32, deadline: &Deadline) -> Result<u32> {
        self.wait_until(min, || deadline.left_ns(), || Ok(None), None::<fn()>)
    }

    fn count_wakeup(&self) {
        let mut wakeups = self.wakeups.lock();
        *wakeups = wakeups.wrapping_add(1);
    }

    /// Returns how many entries are unread if there are `min`. Fails as [`Self::wait`] does, but for
    /// the time.
    fn try_wait(&self, min: u32) -> Result<Option<u32>> {
        match self.before_sleep(min, &|| 0) {
            Ok(Break(unread)) => Ok(Some(unread)),
            Ok(Continue(_)) => Ok(None),
            Err(err) if err == etime() => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Has the calling thread handle the completions of the device's queue `cq` in place of a worker,
    /// until the result is dropped: in [`Serving::wait`] and in the drop. Of several threads that do
    /// so at the same time, any one serves all.
    pub(super) fn serve<'a>(&'a self, cq: &'a rdma::cq::Cq) -> Serving<'a> {
        Serving {
            is_first: self.pollers.begin(),
            ring: self,
            cq,
        }
    }

    /// Polls the device's queue `cq` for `busy_poll_us`, and no longer than the caller has a reason
    /// to wait for `min` entries. Returns how many are unread if there are `min`; fails as
    /// [`Self::wait`] does, but for the time. Sleeps: other tasks run in between.
    ///
    /// The limit of a CPU cgroup holds: the scheduler throttles a task at its return to user space
    /// only, until the quota has paid for what it used
    /// (kernel/sched/fair.c:task_throttle_setup_work()).
    fn busy_poll(&self, min: u32, deadline: &Deadline, cq: &rdma::cq::Cq) -> Result<Option<u32>> {
        if self.busy_poll_us == 0 || min == 0 {
            return Ok(None);
        }
        // Read when the first poll has found too little: a fast device needs no clock.
        let mut end = None;
        loop {
            self.pollers.stay();
            let any = cq.process();
            if let Some(unread) = self.try_wait(min)? {
                return Ok(Some(unread));
            }
            let now = now_ns();
            let end = *end.get_or_insert_with(|| {
                let longest = u64::from(self.busy_poll_us).saturating_mul(1000);
                now.saturating_add(longest.min(deadline.left_ns()))
            });
            if now >= end || kernel::current!().signal_pending() {
                return Ok(None);
            }
            if !any {
                task::relax();
            }
        }
    }
}

/// A thread that handles completions in place of a worker, see [`Ring::serve`].
pub(super) struct Serving<'a> {
    ring: &'a Ring,
    cq: &'a rdma::cq::Cq,
    /// Whether no other thread did so when this one began.
    is_first: bool,
}

impl Serving<'_> {
    /// Waits as [`Ring::wait`] does. Sleeps.
    pub(super) fn wait(&self, min: u32, deadline: &Deadline) -> Result<u32> {
        let poll = || match self.is_first {
            true => self.ring.busy_poll(min, deadline, self.cq),
            false => Ok(None),
        };
        let serve = Some(|| self.cq.serve());
        (self.ring).wait_until(min, || deadline.left_ns(), poll, serve)
    }
}

impl Drop for Serving<'_> {
    /// Sleeps.
    fn drop(&mut self) {
        if self.ring.pollers.end() {
            self.cq.arm();
        }
    }
}

// The header and the entries need not be in different pages.
const _: () = assert!(core::mem::size_of::<abi::CqRing>() <= abi::CQ_ENTRIES_OFFSET);

#[kunit_tests(rust_ulp_ring)]
mod tests {
    use super::*;

    fn ring_of(entries: u32, entry_size: u32) -> Result<Arc<Ring>> {
        let no_charge = Arc::new((), GFP_KERNEL)?;
        Ring::new(entries, entry_size, 0, FileEvents::new(0)?, no_charge)
    }

    fn ring(entries: u32) -> Result<Arc<Ring>> {
        ring_of(entries, abi::Cqe::SIZE)
    }

    fn cqe(user_data: u64) -> abi::Cqe {
        abi::Cqe {
            user_data,
            ..Default::default()
        }
    }

    #[test]
    fn writes_entries_as_long_as_user_space_knows_them() -> Result {
        let ring = ring_of(4, 16)?;
        for user_data in 1..=2 {
            ring.reserve(1, 0)?;
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
    fn waits_for_what_is_there_and_no_longer_than_told() -> Result {
        let ring = ring(4)?;
        let now = Deadline::new(0);
        assert_eq!(ring.wait(0, &now), Ok(0));
        assert_eq!(ring.wait(1, &now).err(), Some(etime()));
        let later = Deadline::new(2_000_000);
        assert_eq!(ring.wait(1, &later).err(), Some(etime()));
        assert_eq!(later.rest(), 0);
        ring.reserve(1, 0)?;
        ring.push(&cqe(3));
        let forever = Deadline::new(abi::TIMEOUT_INFINITE);
        assert_eq!(ring.wait(1, &forever), Ok(1));
        assert_eq!(ring.wait(2, &now).err(), Some(etime()));
        Ok(())
    }

    #[test]
    fn dies_and_fails_for_good() -> Result {
        let now = Deadline::new(0);
        let failed = ring(2)?;
        rdma::cq::Handler::event(&*failed, Event::CQ_ERR);
        assert_eq!(failed.header.flags.load_acquire(), 0);
        rdma::cq::Handler::after_event(&*failed);
        assert_eq!(failed.header.flags.load_acquire(), abi::CQ_ERROR);
        assert_eq!(failed.file().take(false)?.event, abi::EVENT_CQ_ERR);
        assert_eq!(failed.file().take(false).err(), Some(EAGAIN));
        assert_eq!(failed.wait(1, &now).err(), Some(EIO));
        let dead = ring(2)?;
        dead.close(ENODEV);
        assert_eq!(dead.wait(0, &now).err(), Some(ENODEV));
        assert_eq!(dead.header.flags.load_acquire(), 0);
        dead.die();
        assert_eq!(dead.header.flags.load_acquire(), abi::CQ_DEAD);
        let destroyed = ring(2)?;
        destroyed.close(ENOENT);
        assert_eq!(destroyed.wait(0, &now).err(), Some(ENOENT));
        assert_eq!(destroyed.header.flags.load_acquire(), 0);
        Ok(())
    }
}
