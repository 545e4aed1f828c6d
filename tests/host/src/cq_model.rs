// SPDX-License-Identifier: GPL-2.0

//! `logic/cq_ring.rs` with the threads that wait for a ring, in every order of events (loom).
//!
//! What a ring is made of is here in a form that loom knows: the lock, the wait queues, the shared
//! page. With a [`Flaw`], one of them does less than it should: the scenarios that then fail show
//! that they test it.

use crate::logic::cq_ring::{CqRing, Failure, Header, State};
use crate::logic::poller::{Call, Pollers, SharedState, Tick};
use crate::logic::ring::{Consumer, SharedIndex};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;
use std::ops::ControlFlow::{Break, Continue};
use std::ops::{Deref, DerefMut};

/// What a ring lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    Nothing,
    /// The threshold of a thread that sleeps.
    Threshold,
    /// The smaller of two thresholds.
    Minimum,
    /// The wake-ups of waiters.
    Wakeup,
    /// The wake-ups between the look at the ring and the sleep.
    Seen,
    /// All signals of an eventfd but the first.
    Woken,
    /// The signals of an eventfd.
    Signal,
    /// All entries of a list but the first.
    Room,
    /// The room of an entry, until it can be read.
    Late,
    /// The wake-up of the thread that is called.
    Called,
    /// The last poll of a thread that ends while it is called.
    LastPoll,
    /// The poll of a thread that ends while it is called, and whose arming finds completions.
    Missed,
    /// The lock of those that poll the device's queue.
    Order,
    /// The worker in place of a thread that was called.
    Relief,
}

/// A wait queue with a lock of its own, as the kernel has it. No signal comes and no time runs out:
/// a thread that is not woken sleeps for ever, and loom reports that.
struct WaitQueue {
    /// How often all were woken.
    wakeups: loom::sync::Mutex<u32>,
    /// Where those sleep that do not poll the device's queue, and those that do.
    woken: [loom::sync::Condvar; 2],
}

impl WaitQueue {
    fn new() -> Self {
        Self {
            wakeups: loom::sync::Mutex::new(0),
            woken: std::array::from_fn(|_| loom::sync::Condvar::new()),
        }
    }

    fn notify_all(&self) {
        *self.wakeups.lock().unwrap() += 1;
        self.woken.iter().for_each(loom::sync::Condvar::notify_all);
    }

    fn notify_one(&self) {
        *self.wakeups.lock().unwrap() += 1;
        self.woken[1].notify_one();
    }

    /// Puts the caller into the queue: later wake-ups wake it.
    fn prepare(&self) -> u32 {
        *self.wakeups.lock().unwrap()
    }

    /// Sleeps, unless the caller was woken since it was put into the queue.
    fn sleep(&self, prepared: u32, polls: bool) {
        let mut wakeups = self.wakeups.lock().unwrap();
        while *wakeups == prepared {
            wakeups = self.woken[usize::from(polls)].wait(wakeups).unwrap();
        }
    }
}

/// The device's queue.
struct DeviceQueue {
    /// The completions that it has made.
    made: AtomicU32,
    armed: AtomicU32,
    /// The completions that were handled, changed under `polling`.
    handled: AtomicU32,
    polling: loom::sync::Mutex<()>,
}

/// An eventfd.
struct EventFd {
    flaw: Flaw,
    /// The signals that were not read, and all of them.
    count: loom::sync::Mutex<(u64, u64)>,
    signaled: loom::sync::Condvar,
}

impl EventFd {
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Self {
            flaw,
            count: loom::sync::Mutex::new((0, 0)),
            signaled: loom::sync::Condvar::new(),
        })
    }

    fn signal(&self) {
        let mut count = self.count.lock().unwrap();
        count.1 += 1;
        if self.flaw == Flaw::Signal || self.flaw == Flaw::Woken && count.1 > 1 {
            return;
        }
        count.0 += 1;
        self.signaled.notify_all();
    }

    /// Sleeps until there is a signal, and takes all.
    fn read(&self) {
        let mut count = self.count.lock().unwrap();
        while count.0 == 0 {
            count = self.signaled.wait(count).unwrap();
        }
        count.0 = 0;
    }
}

/// A word of the header.
struct Word(AtomicU32);

impl Word {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl SharedIndex for Word {
    fn load_acquire(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

impl SharedState for AtomicU32 {
    fn load(&self) -> u32 {
        Self::load(self, Ordering::Relaxed)
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        fence(Ordering::SeqCst);
        let before = self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before.is_ok()
    }
}

/// The entries of the ring.
struct Entries([UnsafeCell<u64>; 4]);

// SAFETY: Loom checks every access to the cells.
unsafe impl Sync for Entries {}
// SAFETY: As above.
unsafe impl Send for Entries {}

impl Entries {
    fn read(&self, slot: u32) -> u64 {
        // SAFETY: Checked by loom.
        self.0[slot as usize].with(|entry| unsafe { *entry })
    }
}

struct Ring {
    flaw: Flaw,
    entries: Entries,
    header: Header<Word>,
    state: loom::sync::Mutex<State<Ring>>,
    waiters: WaitQueue,
    pollers: Pollers<AtomicU32>,
    failed: AtomicU32,
}

/// The lock of the state, while it is held.
struct Guard<'a> {
    ring: &'a Ring,
    inner: Option<loom::sync::MutexGuard<'a, State<Ring>>>,
    /// The threshold when the lock was taken.
    before: u32,
}

impl Guard<'_> {
    fn lock(&mut self) {
        let state = self.ring.state.lock().unwrap();
        self.before = state.wake_at;
        self.inner = Some(state);
    }

    fn unlock(&mut self) {
        if let Some(mut state) = self.inner.take() {
            match self.ring.flaw {
                Flaw::Threshold => state.wake_at = u32::MAX,
                // A smaller threshold was there already.
                Flaw::Minimum if state.wake_at == self.before => {
                    state.wake_at = state.wake_at.saturating_add(1);
                }
                _ => (),
            }
        }
    }
}

impl Deref for Guard<'_> {
    type Target = State<Ring>;

    fn deref(&self) -> &Self::Target {
        self.inner.as_ref().unwrap()
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.inner.as_mut().unwrap()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.unlock();
    }
}

impl CqRing for Ring {
    type Entry = u64;
    type Word = Word;
    type EventFd = Arc<EventFd>;
    type Polls = AtomicU32;
    type Guard<'a> = Guard<'a>;
    type Error = Failure;

    const DEAD: u32 = 1;
    const ERROR: u32 = 2;
    const OVERFLOW: u32 = 4;

    fn lock(&self) -> Guard<'_> {
        let mut guard = Guard {
            ring: self,
            inner: None,
            before: 0,
        };
        guard.lock();
        guard
    }

    fn header(&self) -> &Header<Word> {
        &self.header
    }

    fn write(&self, slot: u32, entry: &u64) {
        // SAFETY: Checked by loom.
        self.entries.0[slot as usize].with_mut(|to| unsafe { *to = *entry });
    }

    fn wake_waiters(&self) {
        if self.flaw != Flaw::Wakeup {
            self.waiters.notify_all();
        }
    }

    fn wake_waiter(&self) {
        if self.flaw != Flaw::Called {
            self.waiters.notify_one();
        }
    }

    fn signal(eventfd: &Arc<EventFd>) {
        eventfd.signal();
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    fn wakeups(&self) -> u64 {
        self.waiters.prepare().into()
    }

    fn sleep(&self, seen: u64, _left_ns: u64, polls: bool) -> bool {
        let seen = match self.flaw {
            Flaw::Seen => self.waiters.prepare(),
            _ => seen as u32,
        };
        self.waiters.sleep(seen, polls);
        true
    }

    fn pollers(&self) -> &Pollers<AtomicU32> {
        &self.pollers
    }

    fn trace(&self, _entry: &u64, _tail: u32, _unread: u32, _wake: bool) {}
}

impl Ring {
    fn new(entries: u32, flaw: Flaw) -> Self {
        Self {
            flaw,
            entries: Entries(std::array::from_fn(|_| UnsafeCell::new(0))),
            header: Header {
                head: Word::new(),
                tail: Word::new(),
                flags: Word::new(),
                dropped: Word::new(),
            },
            state: loom::sync::Mutex::new(State::new(entries)),
            waiters: WaitQueue::new(),
            pollers: Pollers::new(AtomicU32::new(0)),
            failed: AtomicU32::new(0),
        }
    }

    fn wait(&self, min: u32) -> Result<(), Failure> {
        self.wait_until(min, || u64::MAX, || Ok(None), None::<fn()>)
            .map(drop)
    }

    /// As `Serving` of object/ring.rs, with the device's queue; `is_busy` says whether the
    /// thread polls it before it sleeps.
    fn wait_serving(&self, min: u32, device: &DeviceQueue, is_busy: bool) -> Result<(), Failure> {
        let is_first = self.pollers.begin();
        let poll = || {
            if !is_busy || !is_first {
                return Ok(None);
            }
            device.process(self);
            // As `try_wait` of object/ring.rs.
            match self.before_sleep(min, &|| 0) {
                Ok(Break(unread)) => Ok(Some(unread)),
                Ok(Continue(_)) | Err(Failure::TimedOut) => Ok(None),
                Err(why) => Err(why),
            }
        };
        let result = self
            .wait_until(min, || u64::MAX, poll, Some(|| device.serve(self)))
            .map(drop);
        if self.pollers.end() && self.flaw != Flaw::LastPoll {
            device.arm(self);
        }
        result
    }

    /// The device's queue fails.
    fn fail(&self) {
        self.failed.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.wake_waiters();
    }
}

impl DeviceQueue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            made: AtomicU32::new(0),
            armed: AtomicU32::new(1),
            handled: AtomicU32::new(0),
            polling: loom::sync::Mutex::new(()),
        })
    }

    /// A request is completed. The handler is called if the queue is armed.
    fn complete(&self, ring: &Ring) {
        ring.reserve(1, 0).unwrap();
        self.made.fetch_add(1, Ordering::SeqCst);
        if self.armed.swap(0, Ordering::SeqCst) == 0 {
            return;
        }
        if ring.call_waiter() == Call::Nobody {
            // The worker.
            self.serve(ring);
        }
    }

    /// Handles what is completed. The lock is held.
    fn poll(&self, ring: &Ring) {
        let made = self.made.load(Ordering::SeqCst);
        for next in self.handled.load(Ordering::SeqCst)..made {
            ring.push(&(u64::from(next) + 1));
            self.handled.store(next + 1, Ordering::SeqCst);
        }
    }

    /// Handles what is completed: as `Cq::process` of rdma/cq.rs.
    fn process(&self, ring: &Ring) {
        let _polling = self.polling.lock().unwrap();
        self.poll(ring);
    }

    /// Arms the queue, and handles what is completed by then: as `Context::arm` of rdma/cq.rs.
    fn arm(&self, ring: &Ring) {
        let polling = self.polling.lock().unwrap();
        self.armed.swap(1, Ordering::SeqCst);
        let missed = self.made.load(Ordering::SeqCst) != self.handled.load(Ordering::SeqCst);
        drop(polling);
        if missed && ring.flaw != Flaw::Missed {
            self.serve(ring);
        }
    }

    /// Handles what is completed, and arms the queue: as `Context::serve` of rdma/cq.rs.
    fn serve(&self, ring: &Ring) {
        let _polling = (ring.flaw != Flaw::Order).then(|| self.polling.lock().unwrap());
        loop {
            self.poll(ring);
            self.armed.swap(1, Ordering::SeqCst);
            if self.made.load(Ordering::SeqCst) == self.handled.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}

fn check(scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(scenario);
}

fn ring(entries: u32, flaw: Flaw) -> Arc<Ring> {
    Arc::new(Ring::new(entries, flaw))
}

/// Runs `work` with the ring in a thread.
fn spawn<T: 'static>(
    ring: &Arc<Ring>,
    work: impl FnOnce(&Ring) -> T + 'static,
) -> thread::JoinHandle<T> {
    let ring = ring.clone();
    thread::spawn(move || work(&ring))
}

/// The device: completes requests `1..=count`, each when there is room for it.
fn complete(ring: &Ring, count: u64) {
    for user_data in 1..=count {
        while let Err(err) = ring.reserve(1, 0) {
            assert_eq!(err, Failure::Full);
            thread::yield_now();
        }
        ring.push(&user_data);
    }
}

/// Posts a list of two requests, or as much of it as there is room for, and gives `back` of these
/// places. Returns how many it posted.
fn post_list(ring: &Ring, back: u32) -> u32 {
    let places = ring.reserve(2, 0).map_or(0, |got| got.count);
    if ring.flaw == Flaw::Room {
        ring.release(places.saturating_sub(1));
    }
    let back = back.min(places);
    ring.release(back);
    for _ in back..places {
        ring.push(&0);
    }
    places - back
}

/// Two threads post lists to a ring that may have no room for both, while the consumer takes.
fn takes_lists(flaw: Flaw) {
    check(move || {
        let ring = ring(2, flaw);
        let posters = [1, 0].map(|back| spawn(&ring, move |ring| post_list(ring, back)));
        let mut consumer = Consumer::new(2).unwrap();
        let mut taken = 0;
        let mut take = || {
            consumer.refresh(&ring.header.tail).unwrap();
            while consumer.slot().is_some() {
                taken += 1;
                consumer.advance();
            }
            consumer.release(&ring.header.head);
            taken
        };
        take();
        let posted: u32 = posters.into_iter().map(|it| it.join().unwrap()).sum();
        assert_eq!(take(), posted);
        assert_eq!(ring.header.dropped.load_acquire(), 0);
        assert_eq!(ring.usage(), (0, 0));
    });
}

/// Takes what is there; each comes once, in order, whole.
fn drain(ring: &Ring, consumer: &mut Consumer, next: &mut u64) {
    consumer.refresh(&ring.header.tail).unwrap();
    while let Some(slot) = consumer.slot() {
        assert_eq!(ring.entries.read(slot), *next);
        *next += 1;
        consumer.advance();
    }
    consumer.release(&ring.header.head);
}

/// A thread waits and takes until it has all.
fn waits_and_takes(entries: u32, count: u64, flaw: Flaw) {
    check(move || {
        let ring = ring(entries, flaw);
        let device = spawn(&ring, move |ring| complete(ring, count));
        let (mut consumer, mut next) = (Consumer::new(entries).unwrap(), 1);
        while next <= count {
            assert_eq!(ring.wait(1), Ok(()));
            drain(&ring, &mut consumer, &mut next);
        }
        device.join().unwrap();
        assert_eq!(ring.usage(), (0, 0));
        assert_eq!(ring.header.dropped.load_acquire(), 0);
    });
}

/// A thread takes what there is, and reserves as much: each entry that it took has made room.
fn takes_and_reserves(flaw: Flaw) {
    check(move || {
        let ring = ring(2, flaw);
        assert_eq!(reserved(&ring, 2), Ok(2));
        let device = spawn(&ring, |ring| {
            for user_data in 1..=2 {
                if ring.flaw == Flaw::Late {
                    ring.push_early(&user_data);
                    ring.leave(1);
                } else {
                    ring.push(&user_data);
                }
            }
        });
        let (mut consumer, mut next) = (Consumer::new(2).unwrap(), 1);
        while next <= 2 {
            assert_eq!(ring.wait(1), Ok(()));
            let before = next;
            drain(&ring, &mut consumer, &mut next);
            let taken = (next - before) as u32;
            assert_eq!(reserved(&ring, taken), Ok(taken));
        }
        device.join().unwrap();
    });
}

/// A thread waits for two, beside one that waits for the first and then completes the second.
fn waits_for_more_than_another(flaw: Flaw) {
    check(move || {
        let ring = ring(2, flaw);
        let device = spawn(&ring, |ring| complete(ring, 1));
        let other = spawn(&ring, |ring| assert_eq!(ring.wait(2), Ok(())));
        assert_eq!(ring.wait(1), Ok(()));
        ring.push(&0);
        other.join().unwrap();
        device.join().unwrap();
        assert_eq!(ring.unread(), 2);
    });
}

/// A thread polls the device's queue while it waits, until it has all.
fn serves_and_takes(count: u64, is_busy: bool, flaw: Flaw) {
    check(move || {
        let (ring, queue) = (ring(2, flaw), DeviceQueue::new());
        let device = {
            let queue = queue.clone();
            spawn(&ring, move |ring| {
                (0..count).for_each(|_| queue.complete(ring))
            })
        };
        let (mut consumer, mut next) = (Consumer::new(2).unwrap(), 1);
        while next <= count {
            assert_eq!(ring.wait_serving(1, &queue, is_busy), Ok(()));
            drain(&ring, &mut consumer, &mut next);
        }
        device.join().unwrap();
        assert_eq!(ring.usage(), (0, 0));
    });
}

/// Of two threads that wait, one has enough before the other.
fn serves_another(flaw: Flaw) {
    check(move || {
        let (ring, queue) = (ring(2, flaw), DeviceQueue::new());
        queue.complete(&ring);
        let (first, second) = (queue.clone(), queue.clone());
        let other = spawn(&ring, move |ring| {
            assert_eq!(ring.wait_serving(1, &first, false), Ok(()));
        });
        let device = spawn(&ring, move |ring| second.complete(ring));
        assert_eq!(ring.wait_serving(2, &queue, false), Ok(()));
        other.join().unwrap();
        device.join().unwrap();
    });
}

/// A thread that waits is called, and comes while the worker takes over.
fn is_relieved(flaw: Flaw) {
    check(move || {
        let (ring, queue) = (ring(2, flaw), DeviceQueue::new());
        ring.pollers.begin();
        queue.complete(&ring);
        let timer = {
            let queue = queue.clone();
            spawn(&ring, move |ring| loop {
                match ring.pollers.tick() {
                    Tick::Again => (),
                    Tick::Stop => return,
                    Tick::TakeOver if ring.flaw == Flaw::Relief => return,
                    Tick::TakeOver => return queue.serve(ring),
                }
            })
        };
        assert_eq!(ring.wait_serving(1, &queue, false), Ok(()));
        timer.join().unwrap();
        // The queue is armed: whoever is there handles what comes.
        queue.complete(&ring);
        assert_eq!(ring.wait_serving(2, &queue, false), Ok(()));
        assert_eq!(ring.usage(), (2, 0));
    });
}

/// A thread of low priority waits beside one that polls.
fn serves_one_that_does_not_poll() {
    check(|| {
        let (ring, queue) = (ring(2, Flaw::Nothing), DeviceQueue::new());
        let other = spawn(&ring, |ring| assert_eq!(ring.wait(1), Ok(())));
        let device = {
            let queue = queue.clone();
            spawn(&ring, move |ring| queue.complete(ring))
        };
        assert_eq!(ring.wait_serving(1, &queue, false), Ok(()));
        other.join().unwrap();
        device.join().unwrap();
    });
}

/// A worker is called while the one that armed the queue sees that it missed something.
fn serves_twice_at_once(flaw: Flaw) {
    check(move || {
        let (ring, queue) = (ring(2, flaw), DeviceQueue::new());
        let devices = [queue.clone(), queue.clone()]
            .map(|queue| spawn(&ring, move |ring| queue.complete(ring)));
        devices.into_iter().for_each(|it| it.join().unwrap());
        let (mut consumer, mut next) = (Consumer::new(2).unwrap(), 1);
        drain(&ring, &mut consumer, &mut next);
        assert_eq!((next, ring.header.dropped.load_acquire()), (3, 0));
    });
}

/// A thread reads an eventfd, and takes what is there, until the device goes.
fn is_signaled(count: u64, flaw: Flaw) {
    check(move || {
        let ring = ring(2, flaw);
        let eventfd = EventFd::new(flaw);
        assert_eq!(ring.set_eventfd(Some(eventfd.clone())), Ok(()));
        let device = spawn(&ring, move |ring| {
            ring.end_waits(Failure::Removed);
            complete(ring, count);
            ring.die();
        });
        let (mut consumer, mut next) = (Consumer::new(2).unwrap(), 1);
        let mut is_dead = false;
        while !is_dead {
            eventfd.read();
            is_dead = ring.header.flags.load_acquire() & Ring::DEAD != 0;
            drain(&ring, &mut consumer, &mut next);
        }
        assert_eq!(next, count + 1);
        device.join().unwrap();
    });
}

/// The device goes while a thread waits.
fn is_removed() {
    check(|| {
        let ring = ring(2, Flaw::Nothing);
        let remover = spawn(&ring, |ring| ring.end_waits(Failure::Removed));
        assert_eq!(ring.wait(1), Err(Failure::Removed));
        remover.join().unwrap();
    });
}

/// The device's queue fails while a thread waits. An event comes in any context, and may not take
/// the lock of the ring.
fn fails() {
    check(|| {
        let ring = ring(2, Flaw::Nothing);
        let device = spawn(&ring, Ring::fail);
        assert_eq!(ring.wait(1), Err(Failure::QueueFailed));
        device.join().unwrap();
    });
}

/// The device's queue fails while a thread polls it and waits.
fn fails_while_served() {
    check(|| {
        let (ring, queue) = (ring(2, Flaw::Nothing), DeviceQueue::new());
        let device = spawn(&ring, Ring::fail);
        assert_eq!(
            ring.wait_serving(1, &queue, false),
            Err(Failure::QueueFailed)
        );
        device.join().unwrap();
    });
}

const SCENARIOS: [(&str, fn()); 29] = [
    ("serves", || serves_and_takes(2, false, Flaw::Nothing)),
    ("serves busily", || serves_and_takes(2, true, Flaw::Nothing)),
    ("serves another", || serves_another(Flaw::Nothing)),
    ("without call", || serves_and_takes(2, false, Flaw::Called)),
    ("called unseen", || serves_and_takes(1, false, Flaw::Seen)),
    ("without last poll", || serves_another(Flaw::LastPoll)),
    ("without missed", || serves_another(Flaw::Missed)),
    ("serves an idle one", serves_one_that_does_not_poll),
    ("relieved", || is_relieved(Flaw::Nothing)),
    ("without relief", || is_relieved(Flaw::Relief)),
    ("serves twice", || serves_twice_at_once(Flaw::Nothing)),
    ("without order", || serves_twice_at_once(Flaw::Order)),
    ("waits", || waits_and_takes(2, 3, Flaw::Nothing)),
    ("waits 1", || waits_and_takes(1, 2, Flaw::Nothing)),
    ("thresholds", || waits_for_more_than_another(Flaw::Nothing)),
    ("lists", || takes_lists(Flaw::Nothing)),
    ("without room", || takes_lists(Flaw::Room)),
    ("reserves", || takes_and_reserves(Flaw::Nothing)),
    ("with late room", || takes_and_reserves(Flaw::Late)),
    ("removed", is_removed),
    ("signaled", || is_signaled(2, Flaw::Nothing)),
    ("without woken", || is_signaled(2, Flaw::Woken)),
    ("without signal", || is_signaled(2, Flaw::Signal)),
    ("fails", fails),
    ("fails served", fails_while_served),
    ("without threshold", || {
        waits_and_takes(2, 2, Flaw::Threshold)
    }),
    ("without wakeup", || waits_and_takes(2, 2, Flaw::Wakeup)),
    ("without minimum", || {
        waits_for_more_than_another(Flaw::Minimum)
    }),
    ("without seen", || waits_and_takes(2, 2, Flaw::Seen)),
];

const SCENARIO: &str = "RUST_ULP_SCENARIO";

/// Runs a scenario in a process of its own: a thread that sleeps for ever ends it by an abort.
fn run(name: &str) -> std::result::Result<(), String> {
    assert!(SCENARIOS.iter().any(|(known, _)| *known == name), "{name}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cq_model::scenario", "--nocapture"])
        .env(SCENARIO, name)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        // The first panic says it; those that follow are of loom itself.
        false => Err(String::from_utf8_lossy(&output.stderr)
            .lines()
            .take(3)
            .collect::<Vec<_>>()
            .join("\n")),
    }
}

/// Nothing by itself: [`run`] calls it.
#[test]
fn scenario() {
    if let Ok(name) = std::env::var(SCENARIO) {
        let (_, scenario) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
        scenario();
    }
}

fn passes(name: &str) {
    if let Err(why) = run(name) {
        panic!("{name}: {why}");
    }
}

/// A thread sleeps for ever.
fn hangs(name: &str) {
    let why = run(name).unwrap_err();
    assert!(why.contains("deadlock; threads"), "{name}: {why}");
}

#[test]
fn a_waiter_gets_all() {
    passes("waits");
    passes("waits 1");
}

#[test]
fn a_waiter_that_polls_gets_all() {
    passes("serves");
    passes("serves busily");
    hangs("without call");
}

/// A call that comes after the look at the ring ends the sleep.
#[test]
fn calls_count_as_wakeups() {
    hangs("called unseen");
}

/// It has its entry from the worker, and was called for the other's since.
#[test]
fn a_waiter_that_ends_leaves_no_call() {
    passes("serves another");
    passes("serves an idle one");
    hangs("without last poll");
    hangs("without missed");
}

#[test]
fn a_waiter_that_does_not_come_is_relieved() {
    passes("relieved");
    hangs("without relief");
}

#[test]
fn the_second_tick_takes_a_call_away() {
    check(|| {
        let pollers = Pollers::new(AtomicU32::new(0));
        assert_eq!((pollers.call(), pollers.tick()), (Call::Nobody, Tick::Stop));
        assert!(pollers.begin());
        assert_eq!(
            (pollers.call(), pollers.call()),
            (Call::Start, Call::Threads)
        );
        assert_eq!(
            (pollers.tick(), pollers.tick()),
            (Tick::Again, Tick::TakeOver)
        );
        // The threads are not called before one has taken part.
        assert_eq!((pollers.call(), pollers.tick()), (Call::Nobody, Tick::Stop));
        assert!(!pollers.take());
        assert_eq!((pollers.call(), pollers.tick()), (Call::Start, Tick::Again));
        assert!(pollers.take());
        assert_eq!(
            (pollers.call(), pollers.tick()),
            (Call::Threads, Tick::Again)
        );
        // One that polls without taking the call is there.
        pollers.stay();
        assert_eq!(
            (pollers.tick(), pollers.tick()),
            (Tick::Again, Tick::TakeOver)
        );
        assert!(!pollers.begin());
        assert_eq!(pollers.call(), Call::Start);
        assert!(pollers.end());
        assert!(!pollers.end());
        assert_eq!((pollers.tick(), pollers.call()), (Tick::Stop, Call::Nobody));
    });
}

/// Two that poll at once hand out an entry twice.
#[test]
fn polling_takes_a_lock() {
    passes("serves twice");
    let why = run("without order").unwrap_err();
    assert!(!why.contains("deadlock; threads"), "{why}");
}

#[test]
fn lists_share_what_room_there_is() {
    passes("lists");
}

/// Places for a whole list that count as one are had by others, too: a ring overflows, or a place
/// stays taken.
#[test]
fn each_place_of_a_list_counts() {
    let why = run("without room").unwrap_err();
    assert!(!why.contains("deadlock"), "{why}");
}

/// A request that is posted as soon as a completion was read finds its place.
#[test]
fn an_entry_that_can_be_read_has_made_room() {
    passes("reserves");
    let why = run("with late room").unwrap_err();
    assert!(!why.contains("deadlock"), "{why}");
}

#[test]
fn a_threshold_does_not_hide_another() {
    passes("thresholds");
}

#[test]
fn removal_ends_a_wait() {
    passes("removed");
}

#[test]
fn an_eventfd_announces_all() {
    passes("signaled");
    hangs("without woken");
    hangs("without signal");
}

#[test]
fn failure_ends_a_wait() {
    passes("fails");
    passes("fails served");
}

#[test]
fn the_threshold_is_needed() {
    hangs("without threshold");
}

#[test]
fn the_wakeup_is_needed() {
    hangs("without wakeup");
}

#[test]
fn the_smallest_threshold_counts() {
    hangs("without minimum");
}

/// A threshold that is set after the lock was given up comes too late.
#[test]
fn the_count_of_wakeups_is_needed() {
    hangs("without seen");
}

#[test]
fn has_room_for_what_is_reserved() {
    check(|| {
        let ring = ring(4, Flaw::Nothing);
        for _ in 0..4 {
            ring.reserve(1, 0).unwrap();
        }
        assert_eq!(ring.reserve(1, 0), Err(Failure::Full));
        // A request that makes no completion gives its place back, one that makes one does not.
        ring.release(1);
        ring.reserve(1, 0).unwrap();
        ring.push(&1);
        assert_eq!(ring.usage(), (1, 3));
        assert_eq!(ring.reserve(1, 0), Err(Failure::Full));
        // Nor does the consumer before it has read.
        ring.header.head.store_release(1);
        ring.reserve(1, 0).unwrap();
    });
}

/// Reserves entries, and returns how many.
fn reserved(ring: &Ring, count: u32) -> Result<u32, Failure> {
    ring.reserve(count, 0).map(|got| got.count)
}

#[test]
fn reserves_as_much_as_there_is() {
    check(|| {
        let ring = ring(4, Flaw::Nothing);
        assert_eq!(reserved(&ring, 3), Ok(3));
        assert_eq!(ring.admit(2, 0), Ok(1));
        assert_eq!(ring.reserve(1, 0), Err(Failure::Full));
        ring.release(2);
        assert_eq!(ring.admit(1, 0), Ok(1));
        assert_eq!(reserved(&ring, 2), Ok(1));
        assert_eq!(ring.admit(1, 0), Err(Failure::Full));
        ring.leave(2);
        ring.release(2);
        assert_eq!(reserved(&ring, u32::MAX), Ok(4));
    });
}

/// Room ahead is what leaves half of the ring free, and none of it is needed.
#[test]
fn reserves_ahead_while_half_stays_free() {
    check(|| {
        let ring = ring(8, Flaw::Nothing);
        let ahead = |count, ahead| ring.reserve(count, ahead).map(|got| got.count);
        assert_eq!(ahead(1, 2), Ok(3));
        assert_eq!(ahead(1, 7), Ok(1));
        assert_eq!(ahead(2, 7), Ok(2));
        ring.release(6);
        assert_eq!(ahead(5, 7), Ok(5));
        assert_eq!(ring.admit(1, 7), Ok(1));
        assert_eq!(ahead(5, 7), Ok(2));
        assert_eq!(ahead(1, 7), Err(Failure::Full));
        ring.release(7);
        ring.leave(1);
        assert_eq!(ring.admit(1, 7), Ok(4));
        ring.leave(4);
        // Unread entries count, until the consumer's index is looked at again.
        ahead(4, 0).unwrap();
        (0..4).for_each(|entry| ring.push(&entry));
        assert_eq!(ahead(1, 7), Ok(1));
        ring.header.head.store_release(4);
        assert_eq!(ahead(1, 2), Ok(3));
    });
}

/// Requests that the device does not report hold half of the ring at most.
#[test]
fn half_of_the_entries_are_for_silent_requests() {
    check(|| {
        let silent = |ring: &Ring, count| ring.reserve(count, 0).map(|got| got.silent);
        let half = ring(4, Flaw::Nothing);
        assert_eq!(silent(&half, 1), Ok(1));
        assert_eq!(silent(&half, 2), Ok(1));
        assert_eq!(silent(&half, 1), Ok(0));
        assert_eq!(silent(&half, 1), Err(Failure::Full));
        half.release(4);
        assert_eq!(silent(&half, 4), Ok(2));
        assert_eq!(silent(&ring(1, Flaw::Nothing), 1), Ok(0));
        // Unread entries and requests without an entry count until they are read, or done.
        let other = ring(4, Flaw::Nothing);
        assert_eq!(other.admit(1, 0), Ok(1));
        assert_eq!(silent(&other, 2), Ok(1));
        other.push(&1);
        other.push(&2);
        assert_eq!(silent(&other, 1), Ok(0));
        other.release(1);
        other.header.head.store_release(2);
        assert_eq!(silent(&other, 2), Ok(1));
        other.leave(1);
        other.release(2);
        assert_eq!(silent(&other, 2), Ok(2));
    });
}

#[test]
fn has_no_more_at_the_device_than_there_are_entries() {
    check(|| {
        let ring = ring(2, Flaw::Nothing);
        for _ in 0..2 {
            ring.reserve(1, 0).unwrap();
            ring.push_early(&1);
        }
        // Read or not, the device has two.
        ring.header.head.store_release(2);
        assert_eq!(ring.usage(), (0, 0));
        assert_eq!(ring.reserve(1, 0), Err(Failure::Full));
        ring.leave(1);
        ring.reserve(1, 0).unwrap();
        assert_eq!(ring.reserve(1, 0), Err(Failure::Full));
    });
}

#[test]
fn believes_no_nonsense_of_the_consumer() {
    check(|| {
        let ring = ring(4, Flaw::Nothing);
        for head in [1, 5, 0x8000_0000, u32::MAX] {
            ring.header.head.store_release(head);
            assert_eq!(ring.unread(), 0);
        }
        for _ in 0..4 {
            ring.reserve(1, 0).unwrap();
            ring.push(&2);
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
    });
}

#[test]
fn reports_what_does_not_fit() {
    check(|| {
        let ring = ring(1, Flaw::Nothing);
        ring.push(&1);
        ring.push(&2);
        assert_eq!(ring.unread(), 1);
        assert_eq!(ring.header.flags.load_acquire(), Ring::OVERFLOW);
        assert_eq!(ring.header.dropped.load_acquire(), 1);
    });
}
