// SPDX-License-Identifier: GPL-2.0

//! Commands of grants.

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    kernel::errno::enotconn,
    object::{
        grant::{
            GrantAttr,
            GrantObject, //
        },
        Object, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Checks what the device has no part in.
pub(super) fn check(value: &abi::GrantCreate) -> Result {
    if value.flags & abi::GRANT_ONE_SHOT != 0 && value.qp == 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Grants a peer the use of a range of a buffer.
pub(super) fn create(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::GrantCreate,
) -> Result<Object> {
    let table = file.table().lock();
    let buffer = table.use_buffer(value.buffer)?;
    let qp = match value.qp {
        0 => None,
        handle => Some(table.qp(handle)?.clone()),
    };
    drop(table);
    if qp
        .as_ref()
        .is_some_and(|qp| !core::ptr::eq(qp.pd(), buffer.pd()))
    {
        return Err(EXDEV);
    }
    let attr = GrantAttr {
        offset: value.offset,
        length: value.length,
        access: value.access,
        flags: value.flags,
        buffer: value.buffer,
        qp: value.qp,
    };
    let grants = qp.as_ref().and_then(|qp| qp.grants());
    let object = GrantObject::new(buffer, file.net(), grants, attr)?;
    // A queue pair that fails from here on ends the grant. One that has failed may have ended its
    // grants before it had this one.
    if qp.is_some_and(|qp| qp.qp().has_failed()) {
        return Err(enotconn());
    }
    // It may have ended by now.
    let (addr, rkey) = object.key().unwrap_or((object.addr(), 0));
    value.addr = addr;
    value.rkey = rkey;
    value.length = object.attr().length;
    Ok(Object::Grant(object))
}

/// Gives a grant another key.
pub(super) fn rotate(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::GrantRotate,
) -> Result {
    let grant = file.table().lock().grant(value.grant)?.clone();
    let (addr, rkey) = grant.rotate(file.net())?;
    value.addr = addr;
    value.rkey = rkey;
    Ok(())
}

/// Says what a grant is, and whether it has ended.
pub(super) fn query(
    file: &UlpFile,
    _device: &DeviceGuard<'_>,
    value: &mut abi::GrantQuery,
) -> Result {
    let grant = file.table().lock().grant(value.grant)?.clone();
    let attr = grant.attr();
    let state = grant.state();
    *value = abi::GrantQuery {
        size: value.size,
        flags: attr.flags & abi::GRANT_ONE_SHOT,
        grant: value.grant,
        state,
        buffer: attr.buffer,
        qp: attr.qp,
        offset: attr.offset,
        length: attr.length,
        addr: grant.addr(),
        rkey: grant.key().map_or(0, |(_, rkey)| rkey),
        access: attr.access,
    };
    Ok(())
}
