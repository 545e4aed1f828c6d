// SPDX-License-Identifier: GPL-2.0

//! Memory for the requests of a call, which a file keeps for the next one.

use crate::{
    rdma::post::{
        Built,
        MAX_POST, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Memory for as many requests as are posted at a time. Nothing is left in it after a call.
pub(crate) struct Room {
    /// The requests as user space has them.
    pub(crate) wrs: KVVec<abi::Wr>,
    /// The requests as drivers take them.
    pub(crate) places: KVVec<Built>,
}

impl Room {
    /// Allocates the memory. Sleeps.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            wrs: KVVec::with_capacity(MAX_POST, GFP_KERNEL_ACCOUNT)?,
            places: KVVec::with_capacity(MAX_POST, GFP_KERNEL_ACCOUNT)?,
        })
    }
}
