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

    /// No room for another key.
    #[error("{server} has no room for another key where this one belongs; delete some, or start it with more --memory")]
    Full {
        /// The server.
        server: String,
    },

    /// A table that does not fit.
    #[error("{len} bytes are no memory for a table of values of {max_value} bytes: it takes 5 MiB or so for values of 64 KiB, and at most {MAX_MEMORY}")]
    Memory {
        /// Bytes of the memory.
        len: u64,
        /// Bytes of the longest value.
        max_value: u32,
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

    /// Others changed the same bucket all the time.
    #[error("{server}: others changed the same records for so long that this gave up; try again")]
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

    /// Whether connecting again may help.
    pub fn is_reconnectable(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Unreachable { .. })
    }
}

impl From<rust_ulp::ConnectError> for Error {
    fn from(error: rust_ulp::ConnectError) -> Self {
        Self::Rdma(error.into())
    }
}
