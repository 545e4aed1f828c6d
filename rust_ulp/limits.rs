// SPDX-License-Identifier: GPL-2.0

//! The limits that hold for every device and every file, and the module parameters.

use crate::{
    logic::handle::MAX_OBJECTS,
    uapi::abi, //
};
use kernel::prelude::*;

/// Maximum requests in one queue.
pub(crate) const MAX_QUEUE_DEPTH: u32 = 1 << 14;

/// Maximum elements of a request.
pub(crate) const MAX_SGE: u32 = 16;

/// Maximum inline bytes of a request.
pub(crate) const MAX_INLINE: u32 = 512;

/// Maximum requests of one SUBMIT.
pub(crate) const MAX_BATCH: u32 = 1024;

/// Maximum bytes of a message: IBA 9.4.1.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// Maximum entries of a completion ring, which is one chunk of pages.
pub(crate) const MAX_CQ_ENTRIES: u32 = 1 << 15;

/// Maximum bytes of a buffer: 1 GiB. A device may allow less.
pub(crate) const MAX_BUFFER: u64 = 1 << 30;

/// Maximum pending requests of a listener.
pub(crate) const MAX_BACKLOG: u32 = 1024;

/// The rights that a peer can have.
pub(crate) const REMOTE_ACCESS: u32 =
    abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;

/// The module parameters. They do not change while the module is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Parameters {
    /// Maximum objects of one open file.
    pub(crate) max_objects: u32,
    /// Maximum entries of all queues of one open file together.
    pub(crate) max_entries: u32,
    /// The context that delivers completions by default: `DELIVER_WORKQUEUE` or `DELIVER_SOFTIRQ`.
    pub(crate) delivery: u32,
    /// 1 when every process may choose delivery by softirq.
    pub(crate) user_softirq: u32,
}

impl Parameters {
    /// Checks the parameters. Logs an error and returns [`EINVAL`] if one is out of range.
    pub(crate) fn check(self) -> Result<Self> {
        let delivery = abi::DELIVER_WORKQUEUE..=abi::DELIVER_SOFTIRQ;
        if (1..=MAX_OBJECTS).contains(&self.max_objects)
            && delivery.contains(&self.delivery)
            && self.max_entries != 0
            && self.user_softirq <= 1
        {
            return Ok(self);
        }
        pr_err!(
            "max_objects must be 1 to 65536, max_entries at least 1, delivery 1 or 2, user_softirq 0 or 1\n"
        );
        Err(EINVAL)
    }
}
