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

/// What the objects of one owner know of a device that does not answer in time. They share it, so
/// that a broken device is waited for once.
///
/// ```
/// fn of_file() -> Result<Arc<Silence>> {
///     Silence::new()
/// }
/// ```
pub(crate) struct Silence {
    /// It did not say that a queue pair has left its shared receive queue.
    pub(super) events: AtomicFlag,
    /// It did not carry out the last registration.
    pub(super) registrations: AtomicFlag,
}

impl Silence {
    /// Makes that of an owner whose device has not failed.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let this = Self {
            events: AtomicFlag::new(false),
            registrations: AtomicFlag::new(false),
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Notes what another owner has waited for in vain.
    pub(crate) fn note(&self, other: &Self) {
        if other.events.load(Relaxed) {
            self.events.store(true, Relaxed);
        }
        if other.registrations.load(Relaxed) {
            self.registrations.store(true, Relaxed);
        }
    }
}
