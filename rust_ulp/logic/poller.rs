// SPDX-License-Identifier: GPL-2.0

//! The threads that poll a device's completion queue while they wait, in place of a worker.
//!
//! A completion queue that is armed calls its handler once. If threads wait, the handler calls
//! them, and wakes one; else it calls the worker. The thread that takes the call polls until the
//! queue is empty, and arms it. A thread that stops to wait takes a call that no other one has
//! taken: no call is lost.

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
/// A thread that waits.
const THREAD: u32 = 2;

/// The threads that wait for a queue and poll it.
#[allow(unreachable_pub)]
pub struct Pollers<S>(S);

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
        self.update(|state| Some(state.saturating_add(THREAD)))
            .is_some_and(|before| before < THREAD)
    }

    /// Calls the threads, one of which must then be woken. Returns `false` when there is none.
    pub fn call(&self) -> bool {
        self.update(|state| (state >= THREAD).then_some(state | CALLED))
            .is_some()
    }

    /// Takes the call: the thread polls the queue and arms it. Returns `false` when there is none.
    pub fn take(&self) -> bool {
        self.update(|state| (state & CALLED != 0).then_some(state & !CALLED))
            .is_some()
    }

    /// Removes the calling thread. Returns whether there is a call, which it takes: it must poll
    /// once more.
    pub fn end(&self) -> bool {
        self.update(|state| Some(state.saturating_sub(THREAD) & !CALLED))
            .is_some_and(|before| before & CALLED != 0)
    }
}
