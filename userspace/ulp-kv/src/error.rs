// SPDX-License-Identifier: MIT OR Apache-2.0

//! What can go wrong with a store.

use crate::layout::{MAX_KEY, MAX_MEMORY};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. The text says what happened and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that is too long, or empty.
    #[error("a key of {len} bytes: keys have 1 to {MAX_KEY}")]
    Key {
        /// Bytes that it has.
        len: usize,
    },

    /// A value that is too large.
    #[error("a value of {len} bytes: {server} takes {max} at most; start it with a larger --max-value (to 64KiB)")]
    TooLarge {
        /// Bytes that it has.
        len: usize,
        /// Bytes that it may have.
        max: usize,
        /// The server.
        server: String,
    },

    /// No room for the record.
    #[error("{server} has no free {of} for this record; delete keys, or start it with more --memory or --keys")]
    Full {
        /// The server.
        server: String,
        /// `memory`, or `slots` of the two buckets of the key.
        of: &'static str,
    },

    /// The value is no number.
    #[error("the value of this key on {server} is not a decimal number of 64 bits, or the sum is not; put another value first")]
    NoNumber {
        /// The server.
        server: String,
    },

    /// A file that contents are saved to cannot be read or written.
    #[error("{path}: {cause}; name another --file, or repair it")]
    File {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },

    /// A table that does not fit.
    #[error("{buckets} buckets of 128 bytes and a value of {max_value} bytes do not fit into {len} bytes of memory; name fewer --keys or more --memory, at most {MAX_MEMORY}")]
    Memory {
        /// Bytes of the memory.
        len: u64,
        /// Bytes of the longest value.
        max_value: u32,
        /// Buckets.
        buckets: u32,
    },

    /// No server was named.
    #[error("no server was named")]
    NoServer,

    /// The server is not there.
    #[error("{server} cannot be reached: {cause}; is `ulp kv serve` running there?")]
    Unreachable {
        /// The server.
        server: String,
        /// Why.
        cause: std::io::Error,
    },

    /// The server has gone, or it has cut this client off. Whether the last change was made is not known.
    #[error(
        "{server} is gone, or has cut this client off ({why}); whether a change that was under way was made is not known; \
         connect again"
    )]
    Gone {
        /// The server.
        server: String,
        /// What was seen of it.
        why: String,
    },

    /// The server says what makes no sense.
    #[error("{server} is no server of this kind, or its memory is corrupt: {what}; do not trust what it has")]
    Corrupt {
        /// The server.
        server: String,
        /// What makes no sense.
        what: String,
    },

    /// Others changed the same key, or the members, all the time.
    #[error("{server}: the key or the list of members was being changed for so long that this gave up; try again")]
    Contended {
        /// The server.
        server: String,
    },

    /// RDMA failed on this side.
    #[error(transparent)]
    Rdma(#[from] rust_ulp::Error),

    /// The server could not do it.
    #[error("{server}: {what}")]
    Refused {
        /// The server.
        server: String,
        /// What it says.
        what: String,
    },
}

impl Error {
    /// Whether a change that failed with this may have been made nevertheless.
    pub fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::Gone { .. } | Self::Rdma(_) | Self::Corrupt { .. }
        )
    }

    /// Whether a server that was reached has hung up.
    pub(crate) fn is_hang_up(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let kind = match self {
            Self::Unreachable { cause, .. } => cause.kind(),
            _ => return false,
        };
        matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
    }

    /// Whether connecting again may help.
    pub fn is_reconnectable(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Unreachable { .. })
    }
}

impl From<rust_ulp::qp::ConnectError> for Error {
    fn from(error: rust_ulp::qp::ConnectError) -> Self {
        Self::Rdma(error.into())
    }
}
