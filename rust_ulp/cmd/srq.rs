// SPDX-License-Identifier: GPL-2.0

//! Commands of shared receive queues.

use super::access::Ctx;
use crate::{
    ext::errno::eopnotsupp,
    limits::{
        MAX_QUEUE_DEPTH,
        MAX_SGE, //
    },
    object::{
        quota,
        srq::SrqObject,
        Object, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Creates a shared receive queue.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::SrqCreate) -> Result<Object> {
    let attributes = &ctx.device.attributes;
    if attributes.max_srq == 0 {
        return Err(eopnotsupp());
    }
    let (max_wr, max_sge) = (value.max_wr.max(1), value.max_sge.max(1));
    if max_wr > MAX_QUEUE_DEPTH.min(attributes.max_srq_wr)
        || max_sge > MAX_SGE.min(attributes.max_srq_sge)
        || value.limit > max_wr
    {
        return Err(ERANGE);
    }
    let table = ctx.file.table().read();
    let pd = table.use_pd(value.pd)?;
    let cq = table.use_cq(value.cq)?;
    drop(table);
    let charge = (ctx.file.quota()).take(max_wr, quota::recv_queue(max_wr, max_sge))?;
    let object = SrqObject::new(pd, cq, max_wr, max_sge, ctx.file.silence().clone(), charge)?;
    if value.limit != 0 {
        object.srq().set_limit(value.limit)?;
    }
    value.max_wr = max_wr;
    value.max_sge = max_sge;
    Ok(Object::Srq(object))
}

/// Arms the limit of a shared receive queue.
pub(super) fn modify(ctx: &Ctx<'_>, value: &abi::SrqModify) -> Result {
    let srq = ctx.file.table().read().srq(value.srq)?.clone();
    if value.limit > srq.srq().max_wr() {
        return Err(ERANGE);
    }
    srq.srq().set_limit(value.limit)
}

/// Describes a shared receive queue.
pub(super) fn query(ctx: &Ctx<'_>, value: &mut abi::SrqQuery) -> Result {
    let srq = ctx.file.table().read().srq(value.srq)?.clone();
    srq.srq().reclaim();
    *value = abi::SrqQuery {
        size: value.size,
        flags: 0,
        srq: value.srq,
        max_wr: srq.srq().max_wr(),
        max_sge: srq.max_sge(),
        limit: srq.srq().limit()?,
        recvs_in_flight: srq.srq().in_flight(),
        orphans: srq.srq().overtaken(),
    };
    Ok(())
}
