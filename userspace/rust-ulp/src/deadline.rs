// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deadlines: the end of a wait.

use crate::abi;
use crate::error::Error;
use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The end of a wait. The time runs from the first look at it: telling what time it is can be a
/// system call, and most waits need none, or one.
///
/// A wait that consists of commands alone needs none: each command says what it has left.
#[derive(Clone)]
pub(crate) struct Deadline {
    /// None: never.
    at: OnceCell<Option<Instant>>,
    after: Duration,
    /// Nanoseconds that the last command has left, for the next one.
    left_ns: Cell<u64>,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        let ns = u64::try_from(after.as_nanos()).unwrap_or(abi::TIMEOUT_INFINITE);
        Self {
            at: OnceCell::new(),
            after,
            left_ns: Cell::new(ns),
        }
    }

    /// Returns the time that is left, zero when it has passed.
    pub(crate) fn left(&self) -> Duration {
        let Some(at) = self.at.get() else {
            let _ = self.at.set(Instant::now().checked_add(self.after));
            return self.after;
        };
        match at {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    /// Returns `timeout_ns` of the next command.
    pub(crate) fn left_ns(&self) -> u64 {
        self.left_ns.get()
    }

    /// Notes `timeout_ns` as a command wrote it.
    pub(crate) fn set_left_ns(&self, left: u64) {
        self.left_ns.set(left);
    }

    pub(crate) fn timeout(&self, what: &'static str) -> Error {
        self.timeout_of(what, None)
    }

    /// Returns the error of a wait for this peer.
    pub(crate) fn timeout_of(&self, what: &'static str, peer: Option<SocketAddr>) -> Error {
        Error::Timeout {
            what,
            peer,
            after: self.after,
        }
    }
}
