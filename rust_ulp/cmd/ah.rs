// SPDX-License-Identifier: GPL-2.0

//! Commands of address handles.

use super::{
    access::Ctx,
    address::{
        address_vector,
        check_address,
        check_path,
        port_exists,
        with_mac, //
    }, //
};
use crate::{
    ext::errno::eopnotsupp,
    object::{
        ah::AhObject,
        Object, //
    },
    rdma::qp_attr::QpType,
    uapi::abi, //
};
use kernel::prelude::*;

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check(value: &abi::AhCreate) -> Result {
    check_path(&value.attr)
}

/// Creates an address handle.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::AhCreate) -> Result<Object> {
    if ctx.device.send_ops(QpType::Ud) == 0 {
        return Err(eopnotsupp());
    }
    if !port_exists(&ctx.device, value.attr.port_num) {
        return Err(ENOENT);
    }
    let pd = ctx.file.table().read().use_pd(value.pd)?;
    let mut av = address_vector(&value.attr);
    let _gid = check_address(ctx, &av)?;
    if av.dmac != [0; 6] {
        // The handle resolves none.
        av = with_mac(&ctx.device, pd.pd(), av)?;
    }
    let (object, av) = AhObject::new(pd, &av)?;
    value.attr.dmac = av.dmac;
    value.attr.hop_limit = av.hop_limit;
    Ok(Object::Ah(object))
}
