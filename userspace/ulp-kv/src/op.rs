// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations, and what they give.

use crate::error::{Error, Result};
use crate::layout::MAX_KEY;
use crate::wire::{Condition, Write};
use std::time::Duration;

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// Looks the key up: [`Outcome::Value`].
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Sets the value: [`Outcome::Written`], or [`Outcome::Unmet`].
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// After this time, rounded up to seconds, and at most a second later the server deletes the
        /// key.
        ttl: Option<Duration>,
        /// What it depends on.
        only_if: Condition,
    },
    /// Deletes the key: [`Outcome::Deleted`].
    Delete {
        /// The key.
        key: &'a [u8],
        /// What it depends on.
        only_if: Condition,
    },
    /// Adds to the decimal number that is the value, where a key that does not exist counts as 0:
    /// [`Outcome::Sum`]. The key keeps its time.
    Add {
        /// The key.
        key: &'a [u8],
        /// What to add.
        by: i64,
    },
    /// Sets the value with all that it had on another server: [`Outcome::Written`]. Servers take
    /// that only while [`Store::set_members`](crate::Store::set_members) moves keys.
    #[doc(hidden)]
    Move {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Its version.
        version: u64,
        /// When it expires, in seconds since the epoch of Unix; 0 is never.
        expires: u32,
    },
}

impl<'a> Op<'a> {
    /// Makes a get.
    pub fn get(key: &'a [u8]) -> Self {
        Self::Get { key }
    }

    /// Makes a put that depends on nothing.
    pub fn put(key: &'a [u8], value: &'a [u8]) -> Self {
        Self::Put {
            key,
            value,
            ttl: None,
            only_if: Condition::Always,
        }
    }

    /// Returns the key.
    pub fn key(&self) -> &'a [u8] {
        match self {
            Self::Get { key }
            | Self::Put { key, .. }
            | Self::Delete { key, .. }
            | Self::Add { key, .. }
            | Self::Move { key, .. } => key,
        }
    }

    /// Returns what the server is asked for; [`None`] for a get.
    pub(crate) fn write(&self) -> Option<(Condition, Write<'a>)> {
        Some(match *self {
            Self::Get { .. } => return None,
            Self::Put {
                value,
                ttl,
                only_if,
                ..
            } => (
                only_if,
                Write::Put {
                    value,
                    ttl: ttl.map_or(0, seconds),
                },
            ),
            Self::Delete { only_if, .. } => (only_if, Write::Delete),
            Self::Add { by, .. } => (Condition::Always, Write::Add(by)),
            Self::Move {
                value,
                version,
                expires,
                ..
            } => (
                Condition::Always,
                Write::Move {
                    value,
                    version,
                    expires,
                },
            ),
        })
    }

    /// Checks the key.
    pub(crate) fn check(&self) -> Result<()> {
        match self.key().len() {
            1..=MAX_KEY => Ok(()),
            len => Err(Error::Key { len }),
        }
    }
}

/// Returns a time in seconds, rounded up; at least 1.
fn seconds(time: Duration) -> u32 {
    let seconds = time
        .as_secs()
        .saturating_add(u64::from(time.subsec_nanos() != 0));
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The version, which no other value of this key has or had, for [`Condition::Version`].
    pub version: u64,
}

/// What an operation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value, if the key exists.
    Value(Option<Value>),
    /// The value was set, and has this version.
    Written(u64),
    /// The condition was not met: the key has this version, or does not exist.
    Unmet(Option<u64>),
    /// Whether the key was deleted: false if it did not exist, or the condition was not met.
    Deleted(bool),
    /// The sum.
    Sum(i64),
}

/// A store, whatever carries it.
pub trait Kv {
    /// Carries out operations, several of them at a time, in any order. The results are in the order
    /// of `ops`.
    fn run(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        for (time, want) in [(0, 1), (1, 1), (1000, 1), (1001, 2)] {
            assert_eq!(seconds(Duration::from_millis(time)), want);
        }
        assert_eq!(seconds(Duration::MAX), u32::MAX);
    }
}
