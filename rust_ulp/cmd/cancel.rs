// SPDX-License-Identifier: GPL-2.0

//! CANCEL: cancels work requests in flight. Runs in process context.

use crate::{
    ext::errno::ebadfd,
    file::UlpFile,
    object::{
        completion::Request,
        Object, //
    },
    rdma::request::SlotRef,
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check(value: &abi::Cancel) -> Result {
    check_which(value.user_data, value.flags)
}

/// Checks the command of io_uring as [`check`] does.
pub(super) fn check_uring(value: &abi::UringCancel) -> Result {
    check_which(value.user_data, value.flags)
}

fn check_which(user_data: u64, flags: u32) -> Result {
    if flags == abi::CANCEL_ALL && user_data != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Runs the command.
pub(super) fn cancel(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Cancel) -> Result {
    value.canceled = cancel_matching(&file, value.queue, value.user_data, value.flags)?;
    Ok(())
}

/// Cancels the requests of queue `handle` that have `user_data`, or all with `CANCEL_ALL`.
///
/// Returns their number. Returns [`ENOENT`] if there is no such object, and [`ebadfd`] if it is not
/// a queue.
pub(crate) fn cancel_matching(
    file: &UlpFile,
    handle: u32,
    user_data: u64,
    flags: u32,
) -> Result<u32> {
    let _device = file.enter()?;
    let all = flags == abi::CANCEL_ALL;
    let which = |slot: SlotRef<'_, Request>| all || slot.kept.user_data() == user_data;
    // No reference to another object, which the last one ends.
    let object = match file.table().read().get(handle)? {
        queue @ (Object::Qp(_) | Object::Srq(_)) => queue.clone(),
        _ => return Err(ebadfd()),
    };
    let canceled = match &object {
        Object::Qp(qp) => qp.qp().cancel(which),
        Object::Srq(srq) => srq.srq().cancel(which),
        _ => return Err(ebadfd()),
    };
    trace::cancel(file.id(), handle, user_data, canceled);
    ulp_debug!(
        "file {}: canceled {} of queue {:#x}\n",
        file.id(),
        canceled,
        handle
    );
    Ok(canceled)
}
