// SPDX-License-Identifier: MIT OR Apache-2.0

//! One end of a connection.

use crate::gid::Gid;
use std::fmt;

/// Bytes of payload per packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1,024 bytes.
    B1024 = 3,
    /// 2,048 bytes.
    B2048 = 4,
    /// 4,096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Returns the MTU with this number on the wire, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// Returns the largest MTU of at most so many bytes, but at least 256.
    pub fn at_most(bytes: u32) -> Self {
        match bytes {
            4096.. => Self::B4096,
            2048.. => Self::B2048,
            1024.. => Self::B1024,
            512.. => Self::B512,
            _ => Self::B256,
        }
    }

    /// Returns the MTU in bytes.
    pub fn bytes(self) -> u32 {
        128 << (self as u8)
    }
}

/// One end of a connection, as the other end needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct Endpoint {
    /// Number of the queue pair: 24 bits.
    pub qp_num: u32,
    /// Number of the first packet that it sends: 24 bits.
    pub psn: u32,
    /// The GID.
    pub gid: Gid,
    /// The LID; InfiniBand only, else 0.
    pub lid: u16,
    /// The largest MTU that it can do.
    pub mtu: Mtu,
    /// Reads and atomics that it answers at a time.
    pub responder: u8,
    /// Reads and atomics that it has under way at a time.
    pub initiator: u8,
}

impl Endpoint {
    /// Makes an end that does one read or atomic at a time.
    pub fn new(qp_num: u32, psn: u32, gid: Gid, mtu: Mtu) -> Self {
        Self {
            qp_num,
            psn,
            gid,
            lid: 0,
            mtu,
            responder: 1,
            initiator: 1,
        }
    }

    /// Sets the numbers of reads and atomics at a time.
    pub fn rd_atomic(mut self, responder: u8, initiator: u8) -> Self {
        self.responder = responder;
        self.initiator = initiator;
        self
    }

    /// Sets the LID, for InfiniBand.
    pub fn lid(mut self, lid: u16) -> Self {
        self.lid = lid;
        self
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue pair {} at {}", self.qp_num, self.gid)
    }
}
