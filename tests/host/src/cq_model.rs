// SPDX-License-Identifier: GPL-2.0

//! The ring of a completion queue with those who wait for it, in every order of events (loom).
//!
//! `build.rs` takes the code out of `rust_ulp/object/ring.rs` as it stands. What it stands on is here in a
//! form that loom knows: the lock, the condition variables, the shared page.

use crate::logic::ring::{Consumer, Producer, SharedIndex};
use crate::uapi::abi;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;

/// Errors of the kernel, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errno(i32);

const EIO: Errno = Errno(5);
const EINTR: Errno = Errno(4);
const EAGAIN: Errno = Errno(11);
const ENODEV: Errno = Errno(19);
const ENOENT: Errno = Errno(2);
const EBUSY: Errno = Errno(16);

#[allow(dead_code)]
type Error = Errno;

fn ecanceled() -> Errno {
    Errno(125)
}

fn etime() -> Errno {
    Errno(62)
}

type Result<T = (), E = Errno> = std::result::Result<T, E>;

/// `kernel::sync::atomic`.
struct Atomic<T>(AtomicU32, std::marker::PhantomData<T>);
struct Relaxed;

impl<T> Atomic<T> {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value), std::marker::PhantomData)
    }

    fn load(&self, _: Relaxed) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, value: u32, _: Relaxed) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// `sys::lock`: a lock whose guard can be lent to a condition variable.
struct SpinLockBh<T>(loom::sync::Mutex<T>);

struct Guard<'a, T> {
    lock: &'a loom::sync::Mutex<T>,
    inner: Option<loom::sync::MutexGuard<'a, T>>,
}

impl<T> SpinLockBh<T> {
    fn lock(&self) -> Guard<'_, T> {
        Guard {
            lock: &self.0,
            inner: Some(self.0.lock().unwrap()),
        }
    }
}

impl<T> std::ops::Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().unwrap()
    }
}

impl<T> std::ops::DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().unwrap()
    }
}

/// `kernel::sync::CondVar`: a wait queue with a lock of its own, as the kernel has it. No signal comes
/// and nobody's time is ever up, unless he asks for less than [`SLICE`] where `naps` is set: who is not
/// woken sleeps for ever, and loom reports that.
struct CondVar {
    /// Whether short sleeps end by themselves.
    naps: bool,
    /// How often everybody was woken.
    wakeups: loom::sync::Mutex<u32>,
    woken: loom::sync::Condvar,
}

#[allow(dead_code)]
enum CondVarTimeoutResult {
    Woken { jiffies: u64 },
    Signal { jiffies: u64 },
}

/// A short sleep, in milliseconds: one that makes up for a wake-up that may be missed.
const SLICE: u64 = 10_000;

impl CondVar {
    fn new() -> Self {
        Self {
            naps: false,
            wakeups: loom::sync::Mutex::new(0),
            woken: loom::sync::Condvar::new(),
        }
    }

    fn notify_all(&self) {
        *self.wakeups.lock().unwrap() += 1;
        self.woken.notify_all();
    }

    /// Puts the caller into the queue: it is woken by whoever wakes from now on.
    fn prepare(&self) -> u32 {
        *self.wakeups.lock().unwrap()
    }

    /// Sleeps, unless somebody woke the caller since it was put into the queue.
    fn sleep(&self, prepared: u32) {
        let mut wakeups = self.wakeups.lock().unwrap();
        while *wakeups == prepared {
            wakeups = self.woken.wait(wakeups).unwrap();
        }
    }

    fn wait_interruptible_timeout<T>(
        &self,
        guard: &mut Guard<'_, T>,
        jiffies: u64,
    ) -> CondVarTimeoutResult {
        let prepared = self.prepare();
        guard.inner = None;
        if self.naps && jiffies <= SLICE {
            thread::yield_now();
        } else {
            self.sleep(prepared);
        }
        guard.inner = Some(guard.lock.lock().unwrap());
        CondVarTimeoutResult::Woken { jiffies }
    }
}

fn msecs_to_jiffies(millis: u32) -> u64 {
    millis.into()
}

/// `object::deadline::Deadline`: its time stands still.
struct Deadline(u64);

impl Deadline {
    fn left_ns(&self) -> u64 {
        self.0
    }
}

mod trace {
    pub fn deliver(_handle: u32, _user_data: u64, _tail: u32, _unread: u32, _wake: bool) {}
    pub fn stream(_handle: u32, _count: u32) {}
}

/// `sys::eventfd`.
struct EventFd;

impl EventFd {
    fn signal(&self) {}
}

/// `sys::uring`: task work that is queued once, and runs in a thread of its own.
struct Stream(Arc<Task>);

struct Task {
    queued: loom::sync::Mutex<bool>,
    added: loom::sync::Condvar,
}

impl Task {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queued: loom::sync::Mutex::new(false),
            added: loom::sync::Condvar::new(),
        })
    }

    /// Sleeps until there is work, and takes it.
    fn take(&self) {
        let mut queued = self.queued.lock().unwrap();
        while !*queued {
            queued = self.added.wait(queued).unwrap();
        }
        *queued = false;
    }
}

impl Stream {
    fn wake(&self) {
        let before = std::mem::replace(&mut *self.0.queued.lock().unwrap(), true);
        assert!(!before, "task work was queued twice");
        self.0.added.notify_all();
    }
}

// All that ring.rs has of it, whether the model asks for it or not.
#[allow(dead_code)]
trait Source {
    fn begin(&self, stream: Stream) -> Result;
    fn poll(&self) -> Result<bool>;
    fn copied(&self);
    fn end(&self);
}

struct Event;

impl Event {
    const CQ_ERR: Self = Self;

    fn number(self) -> u32 {
        abi::EVENT_CQ_ERR
    }
}

const FOR_EVER: &Deadline = &Deadline(u64::MAX);
const ENTRIES: usize = 4;

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

/// The entries of the ring.
struct Pages {
    entries: [UnsafeCell<u64>; ENTRIES],
}

// SAFETY: Loom checks every access to the cells.
unsafe impl Sync for Pages {}
// SAFETY: As above.
unsafe impl Send for Pages {}

impl Pages {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| UnsafeCell::new(0)),
        }
    }

    fn write(&self, offset: usize, cqe: &abi::Cqe) -> Result {
        let slot = (offset - abi::CQ_ENTRIES_OFFSET) / abi::Cqe::SIZE as usize;
        // SAFETY: Checked by loom.
        self.entries[slot].with_mut(|entry| unsafe { *entry = cqe.user_data });
        Ok(())
    }

    fn read(&self, slot: u32) -> u64 {
        // SAFETY: Checked by loom.
        self.entries[slot as usize].with(|entry| unsafe { *entry })
    }
}

/// What `poll` and `epoll` sleep on.
struct FileEvents {
    wait: CondVar,
}

impl FileEvents {
    /// Keeps a record, under a lock of its own, and wakes everybody.
    fn raise(&self, _event: u32, _handle: u32, _user_data: u64, _info: u32) {
        self.wait.notify_all();
    }
}

fn check(scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(scenario);
}

/// The ring of `object/ring.rs`, or a variant of it, with what is done to it.
macro_rules! model {
    ($name:ident) => {
        #[allow(dead_code, clippy::all)]
        mod $name {
            use super::*;

            pub struct Ring {
                handle: Atomic<u32>,
                pages: Pages,
                header: Header,
                entries: u32,
                entry_size: u32,
                state: SpinLockBh<State>,
                waiters: CondVar,
                failed: Atomic<u32>,
                file: Arc<FileEvents>,
            }

            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));

            impl Ring {
                fn write(&self, slot: u32, cqe: &abi::Cqe) {
                    let _ = self.pages.write(self.offset(slot), cqe);
                }
            }

            fn ring(entries: u32) -> Arc<Ring> {
                let file = Arc::new(FileEvents {
                    wait: CondVar::new(),
                });
                ring_of(entries, file)
            }

            fn ring_of(entries: u32, file: Arc<FileEvents>) -> Arc<Ring> {
                Arc::new(Ring {
                    handle: Atomic::new(0),
                    pages: Pages::new(),
                    header: Header {
                        head: Word::new(),
                        tail: Word::new(),
                        flags: Word::new(),
                        dropped: Word::new(),
                    },
                    entries,
                    entry_size: abi::Cqe::SIZE,
                    state: SpinLockBh(loom::sync::Mutex::new(new_state(entries))),
                    waiters: CondVar::new(),
                    failed: Atomic::new(0),
                    file,
                })
            }

            /// The device: completes requests `1..=count`, each when there is room for it.
            fn device(ring: &Arc<Ring>, count: u64) -> thread::JoinHandle<()> {
                let ring = ring.clone();
                thread::spawn(move || {
                    for user_data in 1..=count {
                        while let Err(errno) = ring.reserve(1) {
                            assert_eq!(errno, EAGAIN);
                            thread::yield_now();
                        }
                        ring.push(&abi::Cqe {
                            user_data,
                            ..Default::default()
                        });
                    }
                })
            }

            /// One who posts a list of two requests, or as much of it as there are places for, and gives `back`
            /// of these places: how many it posted.
            fn poster(ring: &Arc<Ring>, back: u32) -> thread::JoinHandle<u32> {
                let ring = ring.clone();
                thread::spawn(move || {
                    let places = ring.reserve(2).unwrap_or(0);
                    let back = back.min(places);
                    ring.release(back);
                    for _ in back..places {
                        ring.push(&abi::Cqe::default());
                    }
                    places - back
                })
            }

            /// Two post lists for a ring that may have no room for both, while somebody takes.
            pub fn takes_lists() {
                check(|| {
                    let ring = ring(2);
                    let posters = [poster(&ring, 1), poster(&ring, 0)];
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
                    assert_eq!(ring.pages.read(slot), *next);
                    *next += 1;
                    consumer.advance();
                }
                consumer.release(&ring.header.head);
            }

            /// One who waits and takes until it has all.
            pub fn waits_and_takes(entries: u32, count: u64) {
                check(move || {
                    let ring = ring(entries);
                    let device = device(&ring, count);
                    let (mut consumer, mut next) = (Consumer::new(entries).unwrap(), 1);
                    while next <= count {
                        assert_eq!(ring.wait(1, FOR_EVER), Ok(()));
                        drain(&ring, &mut consumer, &mut next);
                    }
                    device.join().unwrap();
                    assert_eq!(ring.usage(), (0, 0));
                    assert_eq!(ring.header.dropped.load_acquire(), 0);
                });
            }

            /// One who waits for two, beside one who waits for the first and then sees to the second.
            pub fn waits_for_more_than_another() {
                check(|| {
                    let ring = ring(2);
                    let device = device(&ring, 1);
                    let other = {
                        let ring = ring.clone();
                        thread::spawn(move || assert_eq!(ring.wait(2, FOR_EVER), Ok(())))
                    };
                    assert_eq!(ring.wait(1, FOR_EVER), Ok(()));
                    ring.push(&abi::Cqe::default());
                    other.join().unwrap();
                    device.join().unwrap();
                    assert_eq!(ring.unread(), 2);
                });
            }

            /// One who polls the file and takes until it has all.
            pub fn polls_and_takes(count: u64) {
                check(move || {
                    let ring = ring(2);
                    let device = device(&ring, count);
                    let (mut consumer, mut next) = (Consumer::new(2).unwrap(), 1);
                    while next <= count {
                        let prepared = ring.file.wait.prepare();
                        if ring.poll() {
                            drain(&ring, &mut consumer, &mut next);
                        } else {
                            ring.file.wait.sleep(prepared);
                        }
                    }
                    device.join().unwrap();
                });
            }

            /// One who polled the file, as `epoll` does, before the ring was made.
            pub fn polled_before_it_was_made() {
                check(|| {
                    let file = Arc::new(FileEvents {
                        wait: CondVar::new(),
                    });
                    let prepared = file.wait.prepare();
                    let ring = ring_of(2, file.clone());
                    let device = device(&ring, 1);
                    file.wait.sleep(prepared);
                    assert!(ring.poll());
                    device.join().unwrap();
                });
            }

            /// Has the stream look at the ring until it ends: with what.
            fn streams(ring: &Ring, task: &Task, next: &mut u64) -> Errno {
                loop {
                    task.take();
                    loop {
                        match ring.poll_stream() {
                            Err(errno) => return errno,
                            Ok(false) => break,
                            Ok(true) => (),
                        }
                        let (first, count) = {
                            let state = ring.state.lock();
                            (state.producer.oldest(), state.producer.unread())
                        };
                        for i in 0..count {
                            let entries = ring.entries();
                            assert_eq!(
                                ring.pages.read(first.wrapping_add(i) & (entries - 1)),
                                *next
                            );
                            *next += 1;
                        }
                        if let Some(streaming) = &mut ring.state.lock().stream {
                            streaming.copied = count;
                        }
                        ring.copied();
                    }
                }
            }

            impl Ring {
                fn poll_stream(&self) -> Result<bool> {
                    Source::poll(self)
                }
            }

            /// A stream that takes all, until the device goes.
            pub fn is_streamed(count: u64) {
                check(move || {
                    let ring = ring(2);
                    let task = Task::new();
                    let device = {
                        let ring = ring.clone();
                        thread::spawn(move || {
                            for user_data in 1..=count {
                                while ring.reserve(1).is_err() {
                                    thread::yield_now();
                                }
                                ring.push(&abi::Cqe {
                                    user_data,
                                    ..Default::default()
                                });
                            }
                            ring.close(ENODEV);
                        })
                    };
                    assert_eq!(ring.begin(Stream(task.clone())), Ok(()));
                    let mut next = 1;
                    assert_eq!(streams(&ring, &task, &mut next), ENODEV);
                    assert_eq!(next, count + 1);
                    device.join().unwrap();
                });
            }

            /// A stream that is canceled while something comes.
            pub fn is_streamed_no_more() {
                check(|| {
                    let ring = ring(2);
                    let task = Task::new();
                    assert_eq!(ring.begin(Stream(task.clone())), Ok(()));
                    let device = device(&ring, 1);
                    let other = {
                        let ring = ring.clone();
                        thread::spawn(move || ring.cancel_stream(|_| true))
                    };
                    let mut next = 1;
                    assert_eq!(streams(&ring, &task, &mut next), ecanceled());
                    device.join().unwrap();
                    other.join().unwrap();
                    // What it has not taken is there for the next one.
                    assert_eq!(u64::from(ring.unread()), 2 - next);
                });
            }

            /// The device goes while somebody waits.
            pub fn is_killed() {
                check(|| {
                    let ring = ring(2);
                    let remover = {
                        let ring = ring.clone();
                        thread::spawn(move || ring.close(ENODEV))
                    };
                    assert_eq!(ring.wait(1, FOR_EVER), Err(ENODEV));
                    remover.join().unwrap();
                    assert!(ring.poll());
                });
            }

            /// The device's queue fails while somebody waits. An event comes in any context and may
            /// take no lock: here a waiter may look by himself now and then.
            pub fn fails() {
                check(|| {
                    let mut ring = ring(2);
                    if let Some(ring) = Arc::get_mut(&mut ring) {
                        ring.waiters.naps = true;
                    }
                    let device = {
                        let ring = ring.clone();
                        thread::spawn(move || ring.event(Event::CQ_ERR))
                    };
                    assert_eq!(ring.wait(1, FOR_EVER), Err(EIO));
                    device.join().unwrap();
                });
            }

            /// The device's queue fails while somebody polls.
            pub fn fails_while_polled() {
                check(|| {
                    let ring = ring(2);
                    let device = {
                        let ring = ring.clone();
                        thread::spawn(move || ring.event(Event::CQ_ERR))
                    };
                    let prepared = ring.file.wait.prepare();
                    if !ring.poll() {
                        ring.file.wait.sleep(prepared);
                        assert!(ring.poll());
                    }
                    device.join().unwrap();
                });
            }
        }
    };
}

model!(cq_ring);
// Each lacks one thing: the tests that it breaks show that they test it.
model!(without_threshold);
model!(without_polled);
model!(without_wakeup);
model!(without_minimum);
model!(without_lock);
model!(without_woken);
model!(without_signal);
model!(without_room);

const SCENARIOS: [(&str, fn()); 19] = [
    ("waits", || cq_ring::waits_and_takes(2, 3)),
    ("waits 1", || cq_ring::waits_and_takes(1, 2)),
    ("thresholds", cq_ring::waits_for_more_than_another),
    ("lists", cq_ring::takes_lists),
    ("without room", without_room::takes_lists),
    ("polls", || cq_ring::polls_and_takes(3)),
    ("polled before", cq_ring::polled_before_it_was_made),
    ("killed", cq_ring::is_killed),
    ("streamed", || cq_ring::is_streamed(2)),
    ("stream canceled", cq_ring::is_streamed_no_more),
    ("without woken", || without_woken::is_streamed(2)),
    ("without signal", || without_signal::is_streamed(2)),
    ("fails", cq_ring::fails),
    ("fails polled", cq_ring::fails_while_polled),
    ("without threshold", || {
        without_threshold::waits_and_takes(2, 2)
    }),
    ("without wakeup", || without_wakeup::waits_and_takes(2, 2)),
    (
        "without minimum",
        without_minimum::waits_for_more_than_another,
    ),
    ("without polled", || without_polled::polls_and_takes(2)),
    ("without lock", || without_lock::waits_and_takes(2, 2)),
];

const SCENARIO: &str = "RUST_ULP_SCENARIO";

/// Runs a scenario in a process of its own: somebody who sleeps for ever ends it by an abort.
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
        // The first panic says it; those that follow it are of loom's own.
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

/// Somebody sleeps for ever.
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

#[test]
fn a_threshold_does_not_hide_another() {
    passes("thresholds");
}

#[test]
fn a_poller_gets_all() {
    passes("polls");
}

#[test]
fn a_poller_hears_of_rings_made_later() {
    passes("polled before");
}

#[test]
fn removal_ends_a_wait() {
    passes("killed");
}

#[test]
fn a_stream_gets_all() {
    passes("streamed");
    hangs("without woken");
    hangs("without signal");
}

#[test]
fn a_stream_that_is_canceled_ends() {
    passes("stream canceled");
}

#[test]
fn failure_ends_a_wait() {
    passes("fails");
}

#[test]
fn failure_wakes_a_poller() {
    passes("fails polled");
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

#[test]
fn the_mark_of_a_poller_is_needed() {
    hangs("without polled");
}

/// A threshold that is set after the lock was given up comes too late.
#[test]
fn the_lock_is_needed() {
    hangs("without lock");
}
