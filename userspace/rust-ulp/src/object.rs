// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles of the kernel.

use crate::abi;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::sys::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A handle of the kernel's, destroyed when this is dropped.
#[derive(Debug)]
pub(crate) struct Object {
    handle: u32,
    gone: AtomicBool,
    /// Gone when the kernel has let go of it, and of what was in flight on it.
    life: Arc<()>,
    // Dropped after the body of `drop`: the device outlives its objects.
    pub(crate) device: Arc<DeviceInner>,
}

impl Object {
    pub(crate) fn new(device: &Arc<DeviceInner>, handle: u32) -> Self {
        Self {
            handle,
            gone: AtomicBool::new(false),
            life: Arc::new(()),
            device: device.clone(),
        }
    }

    #[inline]
    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    #[inline]
    pub(crate) fn life(&self) -> &Arc<()> {
        &self.life
    }

    /// Notes that the kernel has destroyed it.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Destroys it now. The second time, this is the `ENOENT` that the kernel would say.
    pub(crate) fn destroy(&self) -> Result<()> {
        let mut arg = abi::Destroy {
            handle: self.handle,
            ..Command::new()
        };
        if self.gone.swap(true, Ordering::AcqRel) {
            return Err(Error::Sys {
                call: abi::Destroy::NAME,
                errno: libc::ENOENT,
            });
        }
        let result = self.device.call(&mut arg);
        // EIO: the driver did not revoke the key of a grant.
        if matches!(
            result,
            Err(Error::Busy { .. }
                | Error::Sys {
                    errno: libc::EIO,
                    ..
                })
        ) {
            self.gone.store(false, Ordering::Release);
        }
        result
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.device.file().is_inherited() {
            return;
        }
        // An error leaves nothing to do: the device is gone, or it was destroyed before. What is
        // left goes when the file is closed.
        if let Err(Error::Busy { .. }) = self.destroy() {
            std::mem::forget(self.life.clone());
        }
    }
}
