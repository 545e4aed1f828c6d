// SPDX-License-Identifier: GPL-2.0

//! Commands of completion queues.

use super::access::{
    check_entry_size,
    Ctx, //
};
use crate::{
    ext::{
        eventfd::EventFd,
        task, //
    },
    limits::{
        MAX_BUSY_POLL_US,
        MAX_CQ_ENTRIES, //
    },
    logic::cq_ring::CqRing,
    object::{
        cq::{
            CqObject,
            CqOptions, //
        },
        quota,
        Object, //
    },
    rdma,
    uapi::abi, //
};
use kernel::prelude::*;

/// Returns the delivery for a completion queue that asks for `requested`.
///
/// Returns [`EPERM`] for the softirq, which takes CPU time from other processes, unless the
/// module's parameters or `CAP_SYS_NICE` allow it.
fn choose_delivery(ctx: &Ctx<'_>, requested: u32) -> Result<u32> {
    let parameters = ctx.file.registry().parameters();
    match requested {
        // `Parameters::check` allows the workqueue and the softirq.
        abi::DELIVER_DEFAULT => Ok(parameters.delivery),
        abi::DELIVER_SOFTIRQ
            if parameters.delivery != requested
                && parameters.user_softirq == 0
                && !task::may_raise_priority() =>
        {
            Err(EPERM)
        }
        abi::DELIVER_WORKQUEUE | abi::DELIVER_SOFTIRQ => Ok(requested),
        _ => Err(EINVAL),
    }
}

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check(value: &abi::CqCreate) -> Result {
    if value.busy_poll_us > MAX_BUSY_POLL_US {
        return Err(ERANGE);
    }
    check_entry_size(value.cqe_size, abi::CQE_SIZE_V1, abi::Cqe::SIZE)
}

/// Creates a completion queue.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::CqCreate) -> Result<Object> {
    let delivery = choose_delivery(ctx, value.delivery)?;
    if value.busy_poll_us != 0 && delivery != abi::DELIVER_WORKQUEUE {
        return Err(EINVAL);
    }
    let attributes = &ctx.device.attributes;
    let room = attributes.max_cqe.saturating_sub(rdma::qp::CQ_RESERVE);
    let entries = value.entries.checked_next_power_of_two().ok_or(ERANGE)?;
    if value.entries == 0 || entries > MAX_CQ_ENTRIES.min(room) {
        return Err(ERANGE);
    }
    if value.comp_vector >= attributes.num_comp_vectors {
        return Err(ERANGE);
    }
    if value.comp_vector != 0
        && ctx.file.registry().parameters().user_vector == 0
        && !task::may_raise_priority()
    {
        // Its interrupts take CPU time from the processes of another CPU.
        return Err(EPERM);
    }
    let object = CqObject::new(
        ctx.device.device(),
        &CqOptions {
            entries,
            entry_size: value.cqe_size,
            delivery,
            comp_vector: value.comp_vector,
            busy_poll_us: value.busy_poll_us,
        },
        ctx.file.events().clone(),
        ctx.file.mmap_offsets(),
        (ctx.file.quota()).take(entries, quota::completion_queue(entries))?,
    )?;
    value.entries = entries;
    value.delivery = delivery;
    value.mmap_offset = object.mmap_offset();
    value.mmap_size = object.mmap_size();
    Ok(Object::Cq(object))
}

/// Sets or removes the eventfd of a completion queue.
pub(super) fn eventfd(ctx: &Ctx<'_>, value: &abi::CqEventfd) -> Result {
    let cq = ctx.file.table().read().cq(value.cq)?.clone();
    let eventfd = match value.fd {
        -1 => None,
        fd => Some(EventFd::get(fd)?),
    };
    cq.ring().set_eventfd(eventfd)
}
