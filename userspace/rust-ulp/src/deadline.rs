// SPDX-License-Identifier: MIT OR Apache-2.0

//! When waiting ends.

use crate::abi;
use crate::error::Error;
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// When waiting ends. The time runs from the first look at it: telling what time it is can be a
/// system call, and most waits need none, or one.
#[derive(Clone)]
pub(crate) struct Deadline {
    /// None: never.
    at: OnceCell<Option<Instant>>,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        Self {
            at: OnceCell::new(),
            after,
        }
    }

    /// What is left of it, zero when it has passed.
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

    /// What is left of it, as far as one call may wait.
    pub(crate) fn left_ns(&self) -> u64 {
        let left = u64::try_from(self.left().as_nanos()).unwrap_or(u64::MAX);
        left.min(abi::TIMEOUT_MAX_NS)
    }

    pub(crate) fn timeout(&self, what: &'static str) -> Error {
        Error::Timeout {
            what,
            after: self.after,
        }
    }
}
