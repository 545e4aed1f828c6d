// SPDX-License-Identifier: GPL-2.0

//! Commands of grants.

use super::access::Ctx;
use crate::{
    ext::errno::enotconn,
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

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check(value: &abi::GrantCreate) -> Result {
    if value.flags & abi::GRANT_ONE_SHOT_INV != 0 && value.qp == 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Gives the peer access to a range of a buffer.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::GrantCreate) -> Result<Object> {
    let table = ctx.file.table().read();
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
        user_data: value.user_data,
    };
    let grants = qp.as_ref().and_then(|qp| qp.grants());
    let object = GrantObject::new(buffer, grants, attr)?;
    // A queue pair that fails after this check ends the grant. One that failed before may have
    // ended its grants before this one was added.
    if qp.is_some_and(|qp| qp.qp().has_failed()) {
        return Err(enotconn());
    }
    value.addr = object.addr();
    // The grant may have ended already.
    value.rkey = object.key().unwrap_or(0);
    value.length = object.attr().length;
    Ok(Object::Grant(object))
}

/// Describes a grant.
pub(super) fn query(ctx: &Ctx<'_>, value: &mut abi::GrantQuery) -> Result {
    let grant = ctx.file.table().read().grant(value.grant)?.clone();
    let attr = grant.attr();
    let (state, rkey) = grant.state();
    *value = abi::GrantQuery {
        size: value.size,
        flags: 0,
        grant: value.grant,
        state,
        buffer: attr.buffer,
        qp: attr.qp,
        offset: attr.offset,
        length: attr.length,
        addr: grant.addr(),
        rkey,
        access: attr.access,
        grant_flags: attr.flags & abi::GRANT_ONE_SHOT_INV,
        pad: 0,
        user_data: attr.user_data,
    };
    Ok(())
}
