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

/// Whether a device failed to say in time that a queue pair has left its shared receive queue. The
/// queues of one owner share it, so that a broken device is waited for once.
///
/// ```
/// fn of_file() -> Result<Arc<Silence>> {
///     Silence::new()
/// }
/// ```
pub(crate) struct Silence(pub(super) AtomicFlag);

impl Silence {
    /// Makes that of an owner whose device has not failed.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(AtomicFlag::new(false)), GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns whether the device has failed to say so.
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Notes that another owner has waited in vain.
    pub(crate) fn note(&self) {
        self.0.store(true, Relaxed);
    }
}
