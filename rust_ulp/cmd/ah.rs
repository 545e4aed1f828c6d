// SPDX-License-Identifier: GPL-2.0

//! Commands of addresses.

use super::address::{
    address_vector,
    check_address,
    port_exists, //
};
use crate::{
    device::DeviceGuard,
    file::UlpFile,
    kernel::errno::eopnotsupp,
    object::{
        ah::AhObject,
        Object, //
    },
    rdma::qp_attr::QpType,
    uapi::abi, //
};
use kernel::prelude::*;

/// Checks what the device has no part in.
pub(super) fn check(value: &abi::AhCreate) -> Result {
    if value.attr.is_global > 1 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Makes an address.
pub(super) fn create(
    file: &UlpFile,
    device: &DeviceGuard<'_>,
    value: &mut abi::AhCreate,
) -> Result<Object> {
    if device.send_ops(QpType::Ud) == 0 {
        return Err(eopnotsupp());
    }
    if value.attr.flow_label > 0xf_ffff {
        return Err(ERANGE);
    }
    if !port_exists(device, value.attr.port_num) {
        return Err(ENOENT);
    }
    let pd = file.table().lock().use_pd(value.pd)?;
    let av = address_vector(&value.attr);
    check_address(file, device, &av)?;
    let (object, av) = AhObject::new(pd, &av)?;
    value.attr.dmac = av.dmac;
    value.attr.hop_limit = av.hop_limit;
    Ok(Object::Ah(object))
}
