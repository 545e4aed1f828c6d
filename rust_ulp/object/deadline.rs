// SPDX-License-Identifier: GPL-2.0

//! The time until which a command waits.

use crate::{
    ext::timer::{
        jiffies_of,
        now_ns, //
    },
    uapi::abi, //
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        lock::{
            Backend,
            Guard, //
        },
        CondVar,
        CondVarTimeoutResult, //
    }, //
};

/// The time until which a command waits: `timeout_ns` of its struct.
pub(crate) struct Deadline {
    timeout_ns: u64,
    /// The time at which the deadline began. A command that does not sleep needs none.
    start: Cell<Option<u64>>,
}

impl Deadline {
    /// Makes the deadline of a command that waits for `timeout_ns`.
    pub(crate) fn new(timeout_ns: u64) -> Self {
        Self {
            timeout_ns,
            start: Cell::new(None),
        }
    }

    /// Returns the nanoseconds left; 0 when the time has run out, [`u64::MAX`] without a limit. The
    /// deadline begins with the first call.
    pub(crate) fn left_ns(&self) -> u64 {
        if self.timeout_ns == abi::TIMEOUT_INFINITE {
            return u64::MAX;
        }
        match (self.timeout_ns, self.start.get()) {
            (0, _) => 0,
            (timeout, Some(start)) => timeout.saturating_sub(now_ns().saturating_sub(start)),
            (timeout, None) => {
                self.start.set(Some(now_ns()));
                timeout
            }
        }
    }

    /// Returns what the command writes back to `timeout_ns`: a caller that repeats the command then
    /// waits for the rest of the time only.
    pub(crate) fn rest(&self) -> u64 {
        match self.start.get() {
            Some(_) => self.left_ns(),
            None => self.timeout_ns,
        }
    }

    /// Sleeps until `changed` is notified; may wake spuriously. Returns [`EINTR`] when a signal
    /// comes, `false` when the time has run out.
    pub(crate) fn wait<T, B: Backend>(
        &self,
        changed: &CondVar,
        guard: &mut Guard<'_, T, B>,
    ) -> Result<bool> {
        let jiffies = match self.left_ns() {
            0 => return Ok(false),
            u64::MAX if changed.wait_interruptible(guard) => return Err(EINTR),
            u64::MAX => return Ok(true),
            left => jiffies_of(left),
        };
        match changed.wait_interruptible_timeout(guard, jiffies) {
            CondVarTimeoutResult::Signal { .. } => Err(EINTR),
            _ => Ok(true),
        }
    }
}
