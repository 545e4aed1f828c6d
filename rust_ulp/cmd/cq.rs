// SPDX-License-Identifier: GPL-2.0

//! Commands of completion queues.

use crate::{
    device::DeviceGuard,
    file::UlpFile,
    kernel::eventfd::EventFd,
    limits::MAX_CQ_ENTRIES,
    object::{
        cq::CqObject,
        Object, //
    },
    rdma,
    uapi::abi, //
};
use kernel::prelude::*;

/// Makes a completion queue.
pub(super) fn create(
    file: &UlpFile,
    device: &DeviceGuard<'_>,
    value: &mut abi::CqCreate,
) -> Result<Object> {
    let delivery = match value.delivery {
        abi::DELIVER_DEFAULT => match file.registry().parameters().delivery {
            abi::DELIVER_SOFTIRQ => abi::DELIVER_SOFTIRQ,
            _ => abi::DELIVER_WORKQUEUE,
        },
        delivery @ abi::DELIVER_WORKQUEUE..=abi::DELIVER_CALLER => delivery,
        _ => return Err(EINVAL),
    };
    let room = device
        .attributes
        .max_cqe
        .saturating_sub(rdma::qp::CQ_RESERVE);
    let entries = value.entries.checked_next_power_of_two().ok_or(ERANGE)?;
    if value.entries == 0 || entries > MAX_CQ_ENTRIES.min(room) {
        return Err(ERANGE);
    }
    if value.comp_vector >= device.attributes.num_comp_vectors {
        return Err(ERANGE);
    }
    let object = CqObject::new(
        device.device(),
        entries,
        delivery,
        value.comp_vector,
        file.events().clone(),
        file.quota().take(entries)?,
    )?;
    value.entries = entries;
    value.delivery = delivery;
    value.mmap_size = object.mmap_size();
    Ok(Object::Cq(object))
}

/// Has an eventfd count what is put into a ring.
pub(super) fn eventfd(file: &UlpFile, _device: &DeviceGuard<'_>, value: &abi::CqEventfd) -> Result {
    let cq = file.table().lock().cq(value.cq)?.clone();
    let eventfd = match value.fd {
        -1 => None,
        fd => Some(EventFd::get(fd)?),
    };
    cq.ring().set_eventfd(eventfd)
}
