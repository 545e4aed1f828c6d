// SPDX-License-Identifier: GPL-2.0

//! The rdma cgroup.
//!
//! Counts what the processes of a cgroup have of a device: handles, and objects. Without
//! `CONFIG_CGROUP_RDMA` nothing is counted.
//!
//! C header: [`include/linux/cgroup_rdma.h`](srctree/include/linux/cgroup_rdma.h)

use super::device::Device;
use crate::{
    bindings,
    kernel::errno::edquot, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::aref::ARef, //
};

/// What is counted: `enum rdmacg_resource_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// An open device: `hca_handle`.
    Handle,
    /// Anything made on it: `hca_object`.
    Object,
}

/// One of a resource, counted until this is dropped. That must be before
/// [`Client::remove`](super::client::Client::remove) returns.
///
/// # Invariants
///
/// `cgroup` is what the charge for `resource` of `device` returned.
pub(crate) struct Charge {
    cgroup: *mut bindings::rdma_cgroup,
    resource: Resource,
    device: ARef<Device>,
}

// SAFETY: Any task may return a charge: `rdmacg_uncharge()` takes `rdmacg_mutex` and looks at the
// arguments only (kernel/cgroup/rdma.c:307).
unsafe impl Send for Charge {}
// SAFETY: As above; nothing is done by reference.
unsafe impl Sync for Charge {}

impl Charge {
    /// Counts one more for the current process. Sleeps.
    ///
    /// [`edquot`] when its cgroup, or one above that, may have no more.
    pub(crate) fn new(device: &Device, resource: Resource) -> Result<Self> {
        let mut cgroup = core::ptr::null_mut();
        // SAFETY: The device is registered.
        to_result(unsafe {
            bindings::rust_ulp_h_rdmacg_charge(
                device.as_raw(),
                resource == Resource::Object,
                &mut cgroup,
            )
        })
        .map_err(|err| if err == EAGAIN { edquot() } else { err })?;
        // INVARIANT: That was it.
        Ok(Self {
            cgroup,
            resource,
            device: device.into(),
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; given back once.
        unsafe {
            bindings::rust_ulp_h_rdmacg_uncharge(
                self.device.as_raw(),
                self.resource == Resource::Object,
                self.cgroup,
            );
        }
    }
}
