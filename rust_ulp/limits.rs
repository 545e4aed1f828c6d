// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for every device and every file, and the parameters of the module.

use crate::{
    logic::handle::MAX_OBJECTS,
    uapi::abi, //
};
use kernel::prelude::*;

/// Most requests in one queue.
pub(crate) const MAX_QUEUE_DEPTH: u32 = 1 << 14;

/// Most elements of a request.
pub(crate) const MAX_SGE: u32 = 16;

/// Most inline bytes of a request.
pub(crate) const MAX_INLINE: u32 = 512;

/// Most requests of one call.
pub(crate) const MAX_BATCH: u32 = 1024;

/// Longest message: IBA 9.4.1.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// Most entries of a completion ring: as many as fit into the largest chunk of pages beside the header.
pub(crate) const MAX_CQ_ENTRIES: u32 = 1 << 15;

/// Most bytes of a buffer, before the device's limit: 1 GiB.
pub(crate) const MAX_BUFFER: u64 = 1 << 30;

/// Most requests that a listener keeps waiting.
pub(crate) const MAX_BACKLOG: u32 = 1024;

/// The parameters of the module, which do not change while it is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    /// Objects that one open file may have.
    pub(crate) max_objects: u32,
    /// Entries that all queues of one open file may have together.
    pub(crate) max_entries: u32,
    /// Who moves completions by default: `DELIVER_*`.
    pub(crate) delivery: u32,
}

impl Parameters {
    /// Checks them. [`EINVAL`].
    pub(crate) fn check(self) -> Result<Self> {
        let delivery = abi::DELIVER_WORKQUEUE..=abi::DELIVER_SOFTIRQ;
        if (1..=MAX_OBJECTS).contains(&self.max_objects)
            && delivery.contains(&self.delivery)
            && self.max_entries != 0
        {
            return Ok(self);
        }
        pr_err!("max_objects must be 1 to 65536, max_entries at least 1, delivery 1 or 2\n");
        Err(EINVAL)
    }
}
