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

/// What a device has not done in time.
///
/// ```
/// fn of_file(silence: &Silence) -> Late {
///     silence.known()
/// }
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Late {
    /// It did not say that a queue pair has left its shared receive queue.
    events: bool,
    /// It did not carry out the last registration.
    registrations: bool,
}

/// What the objects of one owner know of a device that does not answer in time. They share it, so
/// that a broken device is waited for once.
///
/// ```
/// fn of_file() -> Result<Arc<Silence>> {
///     Silence::new()
/// }
/// ```
pub(crate) struct Silence {
    /// See [`Late::events`].
    pub(super) events: AtomicFlag,
    /// See [`Late::registrations`].
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

    /// Returns what the device has not done in time.
    pub(crate) fn known(&self) -> Late {
        Late {
            events: self.events.load(Relaxed),
            registrations: self.registrations.load(Relaxed),
        }
    }

    /// Notes what another owner has waited for in vain.
    pub(crate) fn note(&self, late: Late) {
        if late.events {
            self.events.store(true, Relaxed);
        }
        if late.registrations {
            self.registrations.store(true, Relaxed);
        }
    }
}
