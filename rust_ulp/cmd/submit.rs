// SPDX-License-Identifier: GPL-2.0

//! SUBMIT: posts work requests, as [`crate::request`] does, and waits for completions.
//!
//! When the last requests are copied, and before they are posted, the thread becomes a waiter, see
//! [`CqObject::waiter`]. If a queue is full before that, it becomes one then. Process context.

use crate::{
    file::UlpFile,
    limits::MAX_BATCH,
    logic::cq_ring::CqRing,
    object::{
        cq::CqObject,
        deadline::Deadline,
        ObjectTable, //
    },
    request::{
        Requests,
        Source, //
    },
    trace,
    uapi::abi, //
};
use core::cell::{
    Cell,
    OnceCell, //
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
    let file: &UlpFile = &file;
    let requests = Requests {
        file,
        source: Source::Array {
            addr: value.wrs,
            count: value.nr_wrs,
            size: value.wr_size,
        },
        command: None,
        cq: value.cq,
        reported: Cell::new(0),
    };
    // Dropped in the other order: the device keeps its completion queue from being used up.
    let mut device = None;
    let cq = OnceCell::new();
    let mut waiter = None;
    let (mut is_entered, mut lost) = (false, Ok(()));
    let (posted, result) = requests.post(&mut device, |table, part| {
        if part.is_first {
            trace::submit(file.id(), value.nr_wrs, value.cq, value.min_complete);
        }
        match find_cq(table, value.cq, value.min_complete) {
            Ok(Some(found)) if part.is_last => {
                // A completion that arrives while the requests are posted finds this thread, and
                // calls no worker.
                let _ = cq.set(found.clone());
                waiter = cq.get().map(|cq: &Arc<CqObject>| cq.waiter());
            }
            Ok(_) => (),
            Err(error) if part.is_first => return Err(error),
            // Another thread has destroyed it since the first part was posted: no request is refused
            // for that.
            Err(error) => lost = Err(error),
        }
        is_entered = true;
        Ok(())
    });
    value.posted = posted;
    let mut min = value.min_complete;
    if let Err(error) = result {
        if !is_entered {
            // It is the command that is refused, and no request.
            return Err(error);
        }
        value.stop_error = error.to_errno();
        if error != EAGAIN || posted == 0 {
            return Err(error);
        }
        // The one that was refused may be the first that is reported.
        min = min.min(requests.reported.get());
    }
    if value.cq != 0 && cq.get().is_none() && lost.is_ok() {
        // The request that was refused is not among the last ones.
        match find_cq(&file.table().read(), value.cq, value.min_complete) {
            Ok(Some(found)) => {
                let _ = cq.set(found.clone());
                waiter = cq.get().map(|cq| cq.waiter());
            }
            Ok(None) => (),
            Err(error) => lost = Err(error),
        }
    }
    if let Err(error) = lost {
        value.wait_error = error.to_errno();
    }
    if let (Some(cq), Some(waiter)) = (cq.get(), waiter) {
        let deadline = Deadline::new(value.timeout_ns);
        let result = waiter.wait(min, &deadline);
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
fn find_cq(table: &ObjectTable, handle: u32, min: u32) -> Result<Option<&Arc<CqObject>>> {
    if handle == 0 {
        return Ok(None);
    }
    let cq = table.cq(handle)?;
    if min > cq.ring().entries() {
        return Err(ERANGE);
    }
    Ok(Some(cq))
}
