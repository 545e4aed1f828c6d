// SPDX-License-Identifier: GPL-2.0

//! Devices that do not answer.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Whether a device has failed to answer in time. The objects of one owner share it, so that a broken
/// device is waited for once.
///
/// ```
/// fn of_file() -> Result<Arc<Silence>> {
///     Silence::new()
/// }
/// ```
pub(crate) struct Silence {
    /// It did not say that a queue pair has left its shared receive queue.
    pub(super) events: AtomicFlag,
    /// It did not carry a registration out, and none after it.
    pub(super) requests: AtomicFlag,
}

impl Silence {
    /// Makes that of an owner whose device has not failed.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let this = Self {
            events: AtomicFlag::new(false),
            requests: AtomicFlag::new(false),
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether the device has failed to answer.
    pub(crate) fn is_known(&self) -> bool {
        self.events.load(Relaxed) || self.requests.load(Relaxed)
    }

    /// Notes that another owner has waited in vain.
    pub(crate) fn note(&self) {
        self.events.store(true, Relaxed);
        self.requests.store(true, Relaxed);
    }
}
