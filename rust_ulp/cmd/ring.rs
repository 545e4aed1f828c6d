// SPDX-License-Identifier: GPL-2.0

//! Submission rings: RING_CREATE, and KICK, which posts their requests and waits for completions.
//! URING_KICK does not wait.
//!
//! KICK takes the steps of [`super::submit`], and copies the requests from the ring in place of user
//! memory. It copies nothing from or to user memory, and runs inside the gate as a whole.

use super::{
    access::Ctx,
    resolve::SubmitCtx,
    submit, //
};
use crate::{
    device::DeviceGuard,
    file::UlpFile,
    limits::MAX_BATCH,
    object::{
        batch::Batch,
        cq::CqObject,
        deadline::Deadline,
        submit_ring::{
            SubmitRing,
            WaitArgs, //
        },
        Object, //
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

/// Creates a submission ring.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::RingCreate) -> Result<Object> {
    if value.entries == 0 || value.entries > MAX_BATCH {
        return Err(ERANGE);
    }
    let entries = value.entries.checked_next_power_of_two().ok_or(ERANGE)?;
    let charge = ctx.file.quota().take(entries, 0)?;
    let ring = SubmitRing::new(entries, ctx.file.mmap_offsets(), charge)?;
    value.entries = entries;
    value.mmap_offset = ring.mmap_offset();
    value.mmap_size = ring.pages().len() as u64;
    Ok(Object::Ring(ring))
}

/// Runs KICK for the ring with this handle.
pub(super) fn kick(file: ArcBorrow<'_, UlpFile>, handle: u32) -> Result {
    let device = file.enter()?;
    let ring = file.table().read().ring(handle)?.clone();
    let (_, cq) = post(&file, &device, &ring, ring.wait_args())?;
    let Some((wait, cq)) = cq else {
        return Ok(());
    };
    let deadline = Deadline::new(wait.timeout_ns, wait.flags);
    let (completed, error) = submit::wait(&file, (wait.cq, &cq), wait.min_complete, &deadline);
    ring.report_wait(completed, error, deadline.rest());
    Ok(())
}

/// Posts the requests of the ring with this handle; returns how many.
pub(super) fn kick_nowait(file: &UlpFile, handle: u32) -> Result<u32> {
    let device = file.enter()?;
    let ring = file.table().read().ring(handle)?.clone();
    let (posted, _) = post(file, &device, &ring, Ok(None))?;
    Ok(posted)
}

/// The wait of a call, and its completion queue.
type Wait = (WaitArgs, Arc<CqObject>);

/// Posts the requests of `ring`. Returns how many, and the wait that follows. Reports the number of
/// a request that failed in the ring.
fn post(
    file: &UlpFile,
    device: &DeviceGuard<'_>,
    ring: &SubmitRing,
    wait: Result<Option<WaitArgs>>,
) -> Result<(u32, Option<Wait>)> {
    let mut pending = ring.pending().lock();
    let parsed = wait
        .map_err(|error| (0, error))
        .and_then(|wait| ring.parse(&mut pending).map(|()| wait));
    let mut refused = None;
    let posted = parsed.and_then(|wait| {
        let batch = &mut pending.batch;
        let (cq, min) = wait.as_ref().map_or((0, 0), |it| (it.cq, it.min_complete));
        trace::submit(file.id(), batch.len(), cq, min);
        let table = file.table().read();
        let ctx = SubmitCtx {
            table: &table,
            device,
            command: None,
        };
        let cq = submit::find_cq(&table, cq, min).map_err(|error| (0, error))?;
        let resolved = batch.resolve(&ctx);
        drop(table);
        if let Err(bad) = resolved {
            batch.discard();
            return Err((bad.index, bad.error));
        }
        let (posted, result) = batch.post();
        refused = result.err().map(|error| (posted, error));
        Ok((posted, wait.zip(cq)))
    });
    ring.consume(&mut pending, posted.as_ref().map_or(0, |it| it.0));
    if !pending.batch.is_small() {
        pending.batch = Batch::new();
    }
    drop(pending);
    refused.map_or(posted, Err).map_err(|(index, error)| {
        ring.report_bad(index);
        error
    })
}
