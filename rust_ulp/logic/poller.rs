// SPDX-License-Identifier: GPL-2.0

//! The thread that polls a device's completion queue while it waits, in place of a worker.
//!
//! A completion queue that is armed calls its handler once. The handler calls the thread, if there
//! is one, else the worker. The called one polls until the queue is empty, and arms it. A thread
//! that ends while it is called still does that: no call is lost.

/// The state of a [`Poller`], changed with full ordering: what the device wrote before a call is
/// seen after it is taken.
#[allow(unreachable_pub)]
pub trait SharedState {
    /// Stores `value`, and returns the value before.
    fn swap(&self, value: u32) -> u32;
    /// Stores `to` if the value is `from`, and returns whether it was.
    fn replace(&self, from: u32, to: u32) -> bool;
    /// Returns whether the value is `value`, without ordering.
    fn is(&self, value: u32) -> bool;
}

/// There is no thread.
const ABSENT: u32 = 0;
/// There is a thread.
const PRESENT: u32 = 1;
/// The thread was called, and has not taken the call.
const CALLED: u32 = 2;

/// The thread that polls.
#[allow(unreachable_pub)]
pub struct Poller<S>(S);

#[allow(unreachable_pub)]
impl<S: SharedState> Poller<S> {
    /// Makes one without a thread. The value of `state` is 0.
    pub const fn new(state: S) -> Self {
        Self(state)
    }

    /// Makes the caller the thread that polls. Returns `false` when another one is.
    pub fn begin(&self) -> bool {
        self.0.replace(ABSENT, PRESENT)
    }

    /// Returns whether there may be a thread.
    pub fn is_present(&self) -> bool {
        !self.0.is(ABSENT)
    }

    /// Calls the thread, which must then be woken. Returns `false` when there is none.
    pub fn call(&self) -> bool {
        // The second one orders this call before the thread takes the one before.
        self.0.replace(PRESENT, CALLED) || self.0.replace(CALLED, CALLED)
    }

    /// Takes the call: the thread polls the queue and arms it. Returns `false` when there is none.
    pub fn take(&self) -> bool {
        self.0.swap(PRESENT) == CALLED
    }

    /// Ends the thread's polling. Returns whether it was called, and must poll once more.
    pub fn end(&self) -> bool {
        self.0.swap(ABSENT) == CALLED
    }
}
