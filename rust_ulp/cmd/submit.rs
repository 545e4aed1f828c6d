// SPDX-License-Identifier: GPL-2.0

//! SUBMIT: posts work requests, and waits for completions.
//!
//! First, outside the gate, [`Batch::parse`] copies the requests from user space, once, and checks what
//! needs no object. Then, inside, [`super::resolve`] puts them into slots of their queues, and
//! [`Batch::post`] posts them in order. Last comes the wait. Process context. The commands of io_uring
//! take the same steps, see [`super::uring`].

use super::resolve::SubmitCtx;
use crate::{
    file::UlpFile,
    kernel::errno::etime,
    limits::MAX_BATCH,
    object::batch::Batch,
    trace,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Checks what needs no object.
pub(super) fn check(value: &abi::Submit) -> Result {
    if value.timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    if value.cq == 0 && (value.min_complete != 0 || value.timeout_ns != 0) {
        return Err(EINVAL);
    }
    if value.nr_wrs > MAX_BATCH {
        return Err(E2BIG);
    }
    if value.nr_wrs > 0 && value.wr_size < abi::WR_SIZE_V1 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Submits requests, and waits for completions.
pub(super) fn submit(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Submit) -> Result {
    value.posted = 0;
    value.bad_index = 0;
    value.completed = 0;
    value.wait_error = 0;
    let mut batch = file.take_batch()?;
    let result = run(&file, value, &mut batch);
    give_back(&file, batch);
    result
}

/// Gives the room for a batch back, unless it has grown beyond what is worth keeping.
pub(crate) fn give_back(file: &UlpFile, batch: KBox<Batch>) {
    if batch.is_small() {
        file.give_batch(batch);
    }
}

fn run(file: &UlpFile, value: &mut abi::Submit, batch: &mut Batch) -> Result {
    let parsed = batch
        .parse(value.wrs, value.nr_wrs, value.wr_size)
        .map_err(|bad| {
            value.bad_index = bad.index;
            bad.error
        });
    // On a disassociated file ENODEV comes before other errors.
    let device = file.enter()?;
    parsed?;
    trace::submit(file.id(), value.nr_wrs, value.cq, value.min_complete);

    let table = file.table().lock();
    let cq = match value.cq {
        0 => None,
        handle => Some(table.cq(handle)?.clone()),
    };
    if cq
        .as_ref()
        .is_some_and(|cq| value.min_complete > cq.ring().entries())
    {
        return Err(ERANGE);
    }
    let ctx = SubmitCtx {
        table: &table,
        device: &device,
        command: None,
        in_ring: true,
    };
    let resolved = batch.resolve(&ctx);
    drop(table);
    if let Err(bad) = resolved {
        batch.discard();
        value.bad_index = bad.index;
        return Err(bad.error);
    }
    let (posted, result) = batch.post();
    value.posted = posted;
    if result.is_err() {
        value.bad_index = value.posted;
        return result;
    }

    if let Some(cq) = cq {
        let outcome = cq.wait(value.min_complete, value.timeout_ns);
        value.completed = cq.ring().unread();
        trace::wait(
            file.id(),
            value.cq,
            value.completed,
            outcome.err().map_or(0, |err| err.to_errno()),
        );
        match outcome {
            Ok(()) => (),
            Err(err) if err == etime() || err == EINTR || err == EIO => {
                value.wait_error = err.to_errno();
            }
            Err(err) => return Err(err),
        }
    }
    Ok(())
}
