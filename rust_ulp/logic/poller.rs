// SPDX-License-Identifier: GPL-2.0

//! The threads that poll a device's completion queue while they wait, in place of a worker.
//!
//! A completion queue that is armed calls its handler once. If threads wait, the handler calls
//! them, and wakes one; else it calls the worker. The thread that takes the call polls until the
//! queue is empty, and arms it. A thread that stops to wait takes a call that no other one has
//! taken: no call is lost.
//!
//! Nothing obliges the scheduler to run that thread soon. So a timer runs from a call on. It ticks
//! until a tick finds no call. The second tick since a call takes the call away: the worker polls in
//! place of the threads. It does so from then on, until one of the threads takes part again. The
//! timer does not help when a thread loses its CPU while it polls, see `CqObject::waiter`.

/// The state of [`Pollers`].
#[allow(unreachable_pub)]
pub trait SharedState {
    /// Returns the value, without ordering.
    fn load(&self) -> u32;
    /// Stores `to` if the value is `from`, with full ordering, and returns whether it was: what the
    /// device wrote before a call is seen after it is taken.
    fn replace(&self, from: u32, to: u32) -> bool;
}

/// The threads were called, and none has taken the call.
const CALLED: u32 = 1;
/// The timer has ticked since then.
const LATE: u32 = 2;
/// The timer runs.
const TIMED: u32 = 4;
/// A call was taken away from the threads, and none has taken part since.
const ABSENT: u32 = 8;
/// A thread that waits.
const THREAD: u32 = 16;

/// The threads that wait for a queue and poll it.
#[allow(unreachable_pub)]
pub struct Pollers<S>(S);

/// The result of [`Pollers::call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Call {
    /// No thread will poll: the worker must.
    Nobody,
    /// The threads are called, one of which must be woken. The timer runs.
    Threads,
    /// The same, and the timer must be started.
    Start,
}

/// The result of [`Pollers::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Tick {
    /// No thread is called. The timer stops.
    Stop,
    /// A thread is called. The timer must be started again.
    Again,
    /// The worker must poll, in place of a thread that was called. The timer stops.
    TakeOver,
}

#[allow(unreachable_pub)]
impl<S: SharedState> Pollers<S> {
    /// Makes a value without threads. The value of `state` is 0.
    pub const fn new(state: S) -> Self {
        Self(state)
    }

    /// Changes the state to what `change` returns, and returns the state before; [`None`] when
    /// `change` does.
    fn update(&self, change: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        loop {
            let from = self.0.load();
            if self.0.replace(from, change(from)?) {
                return Some(from);
            }
        }
    }

    /// Adds the calling thread. Returns whether it is the only one.
    pub fn begin(&self) -> bool {
        self.update(|state| Some((state & !ABSENT).saturating_add(THREAD)))
            .is_some_and(|before| before < THREAD)
    }

    /// Calls the threads, if there are any that take part.
    pub fn call(&self) -> Call {
        let is_there = |state| state >= THREAD && state & ABSENT == 0;
        match self.update(|state| is_there(state).then_some(state | CALLED | TIMED)) {
            None => Call::Nobody,
            Some(before) if before & TIMED != 0 => Call::Threads,
            Some(_) => Call::Start,
        }
    }

    /// Takes the call: the thread polls the queue and arms it. Returns `false` when there is none.
    pub fn take(&self) -> bool {
        let is_news = |state| state & (CALLED | ABSENT) != 0;
        self.update(|state| is_news(state).then_some(state & !(CALLED | LATE | ABSENT)))
            .is_some_and(|before| before & CALLED != 0)
    }

    /// Shows that the calling thread runs, and polls the queue without taking the call.
    pub fn stay(&self) {
        if self.0.load() & LATE != 0 {
            self.update(|state| (state & LATE != 0).then_some(state & !LATE));
        }
    }

    /// Looks, when the timer ticks, whether a thread was called and has not taken the call.
    pub fn tick(&self) -> Tick {
        let before = self.update(|state| {
            Some(match state & (CALLED | LATE) {
                0 => state & !TIMED,
                CALLED => state | LATE,
                _ => (state & !(CALLED | LATE | TIMED)) | ABSENT,
            })
        });
        match before.map(|before| before & (CALLED | LATE)) {
            Some(CALLED) => Tick::Again,
            None | Some(0) => Tick::Stop,
            Some(_) => Tick::TakeOver,
        }
    }

    /// Removes the calling thread. Returns whether there is a call, which it takes: it must arm
    /// the queue, and poll what came before that.
    pub fn end(&self) -> bool {
        self.update(|state| Some(state.saturating_sub(THREAD) & !(CALLED | LATE | ABSENT)))
            .is_some_and(|before| before & CALLED != 0)
    }
}
