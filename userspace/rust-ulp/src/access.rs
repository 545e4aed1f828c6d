// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rights over memory.

use crate::abi;

bitflags::bitflags! {
    /// Rights over memory, and of a queue pair's peer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The peer may write (RDMA Write).
        const REMOTE_WRITE = abi::ACCESS_REMOTE_WRITE;
        /// The peer may read (RDMA Read).
        const REMOTE_READ = abi::ACCESS_REMOTE_READ;
        /// The peer may do atomic operations.
        const REMOTE_ATOMIC = abi::ACCESS_REMOTE_ATOMIC;
    }
}
