// SPDX-License-Identifier: GPL-2.0

//! SUBMIT: posts work requests, and waits for completions.
//!
//! The command takes these steps, in process context:
//!
//! 1. Outside the gate, [`Batch::parse`] copies the requests from user space once, and the data
//!    that they point to.
//! 2. Inside the gate, [`super::resolve`] decodes them, looks handles up, and puts the requests into
//!    a chain.
//! 3. The thread becomes a waiter, see [`CqObject::waiter`], and [`Batch::post`] posts the requests in
//!    order.
//! 4. The command waits for completions.
//!
//! Each step ends at the first request that it refuses, and the next one takes those before it.
//!
//! The commands of io_uring take steps 1 to 3, see [`super::uring`].

use super::resolve::SubmitCtx;
use crate::{
    file::UlpFile,
    limits::MAX_BATCH,
    logic::cq_ring::CqRing,
    object::{
        batch::Batch,
        cq::CqObject,
        deadline::Deadline,
        ObjectTable, //
    },
    trace,
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

/// Checks the members that depend on neither an object nor the device.
pub(super) fn check(value: &abi::Submit) -> Result {
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

/// Runs the command.
pub(super) fn submit(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Submit) -> Result {
    value.posted = 0;
    value.stop_error = 0;
    value.completed = 0;
    value.wait_error = 0;
    let mut batch = file.take_batch()?;
    let result = post_and_wait(&file, value, &mut batch);
    give_back(&file, batch);
    result
}

/// Returns a batch to the file for reuse, and frees it if it is large.
pub(crate) fn give_back(file: &UlpFile, batch: KBox<Batch>) {
    if batch.is_small() {
        file.give_batch(batch);
    }
}

fn post_and_wait(file: &UlpFile, value: &mut abi::Submit, batch: &mut Batch) -> Result {
    let parsed = batch.parse(value.wrs, value.nr_wrs, value.wr_size);
    // On a disassociated file ENODEV takes precedence over other errors.
    let device = file.enter()?;
    trace::submit(file.id(), value.nr_wrs, value.cq, value.min_complete);

    let table = file.table().read();
    let cq = find_cq(&table, value.cq, value.min_complete)?;
    let ctx = SubmitCtx {
        table: &table,
        device: &device,
        command: None,
    };
    let resolved = batch.resolve(&ctx);
    drop(table);
    // A completion that arrives while the requests are posted finds this thread, and calls no worker.
    let waiter = cq.as_ref().map(|cq| cq.waiter());
    let (posted, result) = batch.post();
    value.posted = posted;
    if let Err(error) = result.and(resolved).and(parsed) {
        value.stop_error = error.to_errno();
        if error != EAGAIN || posted == 0 {
            return Err(error);
        }
    }
    if let (Some(cq), Some(waiter)) = (&cq, waiter) {
        let deadline = Deadline::new(value.timeout_ns);
        let result = waiter.wait(value.min_complete, &deadline);
        // Handles what it was called for since.
        drop(waiter);
        (value.completed, value.wait_error) = match result {
            Ok(unread) => (unread, 0),
            // It must not look like an error of the requests, which are posted.
            Err(err) => (cq.ring().unread(), err.to_errno()),
        };
        trace::wait(file.id(), value.cq, value.completed, value.wait_error);
        value.timeout_ns = deadline.rest();
    }
    Ok(())
}

/// Returns the completion queue that a command waits for `min` completions of; [`None`] for 0.
///
/// Returns [`ERANGE`] if it has fewer entries, [`ENOENT`] or [`ebadfd`] if there is no such queue.
///
/// [`ebadfd`]: crate::ext::errno::ebadfd
fn find_cq(table: &ObjectTable, handle: u32, min: u32) -> Result<Option<Arc<CqObject>>> {
    if handle == 0 {
        return Ok(None);
    }
    let cq = table.cq(handle)?;
    if min > cq.ring().entries() {
        return Err(ERANGE);
    }
    Ok(Some(cq.clone()))
}
