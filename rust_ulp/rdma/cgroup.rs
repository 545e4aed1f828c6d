// SPDX-License-Identifier: GPL-2.0

//! The rdma cgroup.
//!
//! It counts the handles and the objects of a device that the processes of a cgroup have. Without
//! `CONFIG_CGROUP_RDMA` nothing is counted.
//!
//! C header: [`include/linux/cgroup_rdma.h`](srctree/include/linux/cgroup_rdma.h)

use super::device::Device;
use crate::{
    bindings,
    ext::errno::edquot, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::aref::ARef, //
};

/// A counted resource: `enum rdmacg_resource_type`.
///
/// ```
/// fn open(device: &device::Device) -> Result<Charge> {
///     Charge::new(device, Resource::Handle)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    /// An open device: `hca_handle`.
    Handle,
    /// An object of a device: `hca_object`.
    Object,
}

/// A charge for one unit of a resource. Dropping it returns the charge; that must happen before
/// [`Client::remove`](super::client::Client::remove) returns.
///
/// ```
/// fn new_pd(device: &device::Device) -> Result<(Arc<pd::Pd>, Charge)> {
///     let charge = Charge::new(device, Resource::Object)?;
///     Ok((pd::Pd::new(device)?, charge))
/// }
/// ```
///
/// # Invariants
///
/// Charging `resource` of `device` returned `cgroup`.
pub(crate) struct Charge {
    cgroup: *mut bindings::rdma_cgroup,
    resource: Resource,
    device: ARef<Device>,
}

// SAFETY: Any task may return a charge: `rdmacg_uncharge()` takes `rdmacg_mutex` and looks at the
// arguments only (kernel/cgroup/rdma.c:rdmacg_uncharge_hierarchy).
unsafe impl Send for Charge {}
// SAFETY: As above. A shared reference gives access to nothing.
unsafe impl Sync for Charge {}

impl Charge {
    /// Charges the current process for one unit. Sleeps. Fails with [`edquot`] when its cgroup, or
    /// one above that, has reached its limit.
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
        // INVARIANT: `cgroup` was just charged.
        Ok(Self {
            cgroup,
            resource,
            device: device.into(),
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The charge is returned once.
        unsafe {
            bindings::rust_ulp_h_rdmacg_uncharge(
                self.device.as_raw(),
                self.resource == Resource::Object,
                self.cgroup,
            );
        }
    }
}
