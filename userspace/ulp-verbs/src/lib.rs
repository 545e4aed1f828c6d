// SPDX-License-Identifier: MIT OR Apache-2.0
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![deny(clippy::undocumented_unsafe_blocks, unsafe_code)]

//! libibverbs and librdmacm in safe Rust, as far as `ulp bench` needs them to compare with.
//!
//! Not a general binding: a queue pair has one peer and reaches one [`Memory`], in whose offsets all its
//! requests are given. That makes posting safe: a range is checked before it is posted, and a queue
//! pair keeps its memory until libibverbs has destroyed it.
//!
//! The bindings are rdma-sys 0.3.0, which generates them from the installed headers and links libibverbs
//! and librdmacm. The workspace replaces the bindgen that it builds with; see `bindgen-0.59`. The crates
//! `sideway` and `ibverbs` bring bindings of their own and do not build on rdma-sys.

use std::fmt;

#[allow(unsafe_code)]
mod sys;

pub use sys::{
    cm, status_text, Context, Memory, QueuePair, RegisteredOnce, Requests, Srq, VerbsCq,
};

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Which one.
    pub call: &'static str,
    /// The error number that it gave, or 0.
    pub errno: i32,
}

impl Error {
    /// `call` failed with `errno`.
    pub fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }

    fn last(call: &'static str) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error();
        Self::new(call, errno.unwrap_or(0))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {text}", self.call)?;
        match self.errno {
            0 => f.write_str(
                " (is libibverbs installed? apt-get install rdma-core ibverbs-providers)",
            ),
            libc::ENOMEM => f.write_str(" (locked memory? see ulimit -l)"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// What a call gives.
pub type Result<T> = std::result::Result<T, Error>;

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram, with [`QKEY`].
    Ud,
}

/// The Q_Key of datagrams, that of `ibv_ud_pingpong`.
pub const QKEY: u32 = 0x1111_1111;

/// Who a queue pair talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of its queue pair.
    pub qp_num: u32,
    /// Number of its first packet.
    pub psn: u32,
    /// Its GID.
    pub gid: [u8; 16],
    /// Its LID; 0 but for InfiniBand.
    pub lid: u16,
    /// `enum ibv_mtu` of the path, 1 to 5.
    pub mtu: u8,
    /// Reads and atomics that it answers at a time.
    pub responder: u8,
    /// Reads and atomics that it has under way at a time.
    pub initiator: u8,
    /// Service level of the path.
    pub sl: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// The wait for an acknowledgement: 0 for ever, 1 to 31 for 4.096 us * 2^n.
    pub timeout: u8,
}

/// A completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// As given when it was posted.
    pub wr_id: u64,
    /// `enum ibv_wc_status`: 0 is success.
    pub status: u32,
    /// Immediate data of a receive, in host order.
    pub imm: Option<u32>,
    /// Bytes received.
    pub byte_len: u32,
    /// The number of the queue pair.
    pub qp_num: u32,
}

/// What a request does. Ranges are offsets into the queue pair's [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `IBV_WR_RDMA_WRITE`, with immediate data or without.
    Write {
        /// Where to.
        remote: (u64, u32),
        /// Immediate data.
        imm: Option<u32>,
    },
    /// `IBV_WR_RDMA_READ`.
    Read {
        /// Where from.
        remote: (u64, u32),
    },
    /// `IBV_WR_SEND`, with immediate data or without.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAdd {
        /// Where.
        remote: (u64, u32),
        /// What to add.
        add: u64,
    },
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`.
    CmpSwap {
        /// Where.
        remote: (u64, u32),
        /// What has to be there.
        compare: u64,
        /// What is put there then.
        swap: u64,
    },
}

/// A request of the send queue. Remote memory is address and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub kind: Kind,
    /// Comes back in its completion.
    pub wr_id: u64,
    /// First byte of the local range.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
    /// Whether it completes when it succeeds.
    pub signaled: bool,
    /// Whether the data is taken while it is posted.
    pub inline: bool,
}
