// SPDX-License-Identifier: GPL-2.0

//! Operations on memory of a peer, as a request names them and as `rdma/` posts them.

/// An operation on memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Remote {
    /// Address in the peer's memory region. For atomics a multiple of 8.
    pub addr: u64,
    /// Key of that region.
    pub rkey: u32,
    /// The operation.
    pub op: RemoteOp,
}

/// The access of an operation to the memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum RemoteOp {
    /// `IB_WR_RDMA_WRITE`, or `IB_WR_RDMA_WRITE_WITH_IMM` with immediate data.
    Write {
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// `IB_WR_RDMA_READ`.
    Read,
    /// `IB_WR_ATOMIC_CMP_AND_SWP`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The value that replaces the expected one.
        swap: u64,
    },
    /// `IB_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAdd {
        /// The addend, modulo 2^64.
        add: u64,
    },
}
