// SPDX-License-Identifier: GPL-2.0

//! Commands of protection domains.

use super::access::Ctx;
use crate::{
    object::{
        pd::PdObject,
        Object, //
    },
    rdma::pd::Pd,
    uapi::abi, //
};
use kernel::prelude::*;

/// Creates a protection domain.
pub(super) fn create(ctx: &Ctx<'_>, _value: &mut abi::PdCreate) -> Result<Object> {
    let pd = Pd::new(ctx.device.device())?;
    Ok(Object::Pd(PdObject::new(pd, ctx.file.silence().clone())?))
}
