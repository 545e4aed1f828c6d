// SPDX-License-Identifier: GPL-2.0

//! Commands of protection domains.

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    object::{
        pd::PdObject,
        Object, //
    },
    rdma::pd::Pd,
    uapi::abi, //
};
use kernel::prelude::*;

/// Makes a protection domain.
pub(super) fn create(
    _file: &UlpFile,
    device: &DeviceGuard<'_>,
    _value: &mut abi::PdCreate,
) -> Result<Object> {
    Ok(Object::Pd(PdObject::new(Pd::new(device.device())?)?))
}
