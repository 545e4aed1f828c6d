// SPDX-License-Identifier: MIT OR Apache-2.0

//! Protection domains.

use crate::abi;
use crate::device::{Device, DeviceInner};
use crate::error::Result;
use crate::object::Object;
use crate::sys::Command;
use std::sync::Arc;

/// A protection domain: queue pairs reach the buffers of their own domain only.
///
/// Cheap to clone; destroyed when the last clone, buffer and queue pair of it is gone.
#[derive(Clone, Debug)]
pub struct Pd {
    inner: Arc<Object>,
}

impl Device {
    /// Makes a protection domain: queue pairs reach the buffers of their own domain only.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`](crate::Error::Sys) with `EMFILE` with too many objects,
    /// [`Error::DeviceGone`](crate::Error::DeviceGone).
    #[doc(alias = "rust_ulp_pd_create")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let mut arg: abi::PdCreate = Command::new();
        self.inner().call(&mut arg)?;
        Ok(Pd {
            inner: Arc::new(Object::new(self.inner(), arg.handle)),
        })
    }
}

impl Pd {
    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle()
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.inner.device
    }
}
