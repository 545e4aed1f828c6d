// SPDX-License-Identifier: MIT OR Apache-2.0

//! What can go wrong.

use thiserror::Error;

/// An error of a store or a server.
#[derive(Debug, Error)]
pub enum Error {
    /// A key has no bytes, or too many.
    #[error("a key of {0} bytes: keys have 1 to 255")]
    Key(usize),
    /// A value is too long.
    #[error("a value of {len} bytes: the server takes {max} at most (--max-value)")]
    TooLarge {
        /// Its bytes.
        len: usize,
        /// The most that the server takes.
        max: usize,
    },
    /// A server has no slot for another key.
    #[error("the server has no free slot for this key; start it with more --keys")]
    NoSlot,
    /// A server has no block for a record.
    #[error("the server has no free memory for this record; start it with more --memory")]
    NoMemory,
    /// Others change the key all the time.
    #[error("the key was being changed all the time")]
    Contended,
    /// A server's memory makes no sense.
    #[error("the server's memory is corrupt: {0}")]
    Corrupt(&'static str),
    /// The sizes of a server do not fit.
    #[error("{len} bytes cannot have {buckets} buckets and a value of {max_value} bytes; take more --memory or fewer --keys")]
    Memory {
        /// Bytes of the memory.
        len: u64,
        /// The buckets.
        buckets: u32,
        /// Bytes of the longest value.
        max_value: u32,
    },
    /// Nobody serves there.
    #[error("{server} cannot be reached: {cause}; is `kv serve` running there?")]
    Unreachable {
        /// HOST:PORT.
        server: String,
        /// Why.
        cause: String,
    },
    /// A connection broke. Whether a change was made is not known.
    #[error("{server} is gone, or has cut this client off: {cause}; a change may have been made")]
    Gone {
        /// HOST:PORT.
        server: String,
        /// Why.
        cause: String,
    },
    /// A request failed.
    #[error(transparent)]
    Rdma(#[from] rust_ulp::Error),
}

impl Error {
    /// Returns whether a change that failed with this may have been made, or may still be.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Rdma(_))
    }
}

/// A result with that error.
pub type Result<T> = std::result::Result<T, Error>;
