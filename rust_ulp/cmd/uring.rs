// SPDX-License-Identifier: GPL-2.0

//! Commands of io_uring.
//!
//! A command has one work request, or the address of an array. It is parsed and posted as
//! [`super::submit`] describes. The slot of each request keeps a reference to the command, which
//! completes when all its requests have completed. A command needs no allocation. While its
//! completion waits for the submitting task, it refers to no object of the device.
//!
//! Context: process context, in the submitting task, an io_uring worker or the SQPOLL thread.
//! `uring_lock` may be held. It is therefore taken before the device's gate, and a thread inside
//! the gate must not take it. A command waits only for short locks and for user memory. It never
//! returns EAGAIN to be issued again by a worker, so commands keep their order.

use super::{
    cancel,
    resolve::SubmitCtx,
    submit, //
};
use crate::{
    file::UlpFile,
    kernel::uring::{
        Canceling,
        CmdRef,
        IssueResult,
        UringCmd, //
    },
    limits::MAX_BATCH,
    logic::cq_ring::CqRing,
    object::{
        batch::Batch,
        completion::Request,
        Object,
        ObjectTable, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Issues a command.
pub(crate) fn issue(this: &UlpFile, cmd: UringCmd<'_>) -> IssueResult {
    // On a disassociated file ENODEV takes precedence over other errors.
    match this.device() {
        Ok(device) if device.is_gone() => return cmd.refuse(ENODEV),
        Ok(_) => (),
        Err(error) => return cmd.refuse(error),
    }
    let step = match cmd.op() {
        abi::URING_REQUEST => request(this, &cmd),
        abi::URING_BATCH => batch(this, &cmd),
        abi::URING_CANCEL => cancel_requests(this, &cmd).map(Step::Answer),
        abi::URING_STREAM => return stream(this, cmd),
        _ => Err(ENOTTY),
    };
    match step {
        Ok(Step::Post {
            batch,
            count,
            in_ring,
        }) => begin(this, cmd, batch, count, in_ring),
        Ok(Step::Answer(number)) => cmd.answer(number),
        Err(error) => cmd.refuse(error),
    }
}

/// The next step of a command.
enum Step {
    /// Complete it with this result.
    Answer(u32),
    /// Post these requests.
    Post {
        batch: KBox<Batch>,
        count: u16,
        in_ring: bool,
    },
}

/// Parses the requests of a command with `parse`.
fn parsed(
    this: &UlpFile,
    count: u16,
    in_ring: bool,
    parse: impl FnOnce(&mut Batch) -> Result,
) -> Result<Step> {
    let mut batch = this.take_batch()?;
    match parse(&mut batch) {
        Ok(()) => Ok(Step::Post {
            batch,
            count,
            in_ring,
        }),
        Err(error) => {
            submit::give_back(this, batch);
            Err(error)
        }
    }
}

fn request(this: &UlpFile, cmd: &UringCmd<'_>) -> Result<Step> {
    let wr: abi::Wr = cmd.read()?;
    parsed(this, 1, false, |batch| batch.parse_one(wr))
}

fn batch(this: &UlpFile, cmd: &UringCmd<'_>) -> Result<Step> {
    let value: abi::UringBatch = cmd.read()?;
    if value.flags & !abi::URING_RING != 0 || value.nr_wrs == 0 {
        return Err(EINVAL);
    }
    if u32::from(value.nr_wrs) > MAX_BATCH {
        return Err(E2BIG);
    }
    let in_ring = value.flags & abi::URING_RING != 0;
    parsed(this, value.nr_wrs, in_ring, |batch| {
        batch
            .parse(value.wrs, value.nr_wrs.into(), value.wr_size.into())
            .map_err(|bad| bad.error)
    })
}

/// Posts the parsed requests, all or none.
fn begin(
    this: &UlpFile,
    cmd: UringCmd<'_>,
    mut batch: KBox<Batch>,
    count: u16,
    in_ring: bool,
) -> IssueResult {
    let queue = batch.first_queue();
    trace::uring(this.id(), cmd.op(), queue, count.into());
    ulp_debug!(
        "file {}: io_uring: {} requests, queue {:#x}\n",
        this.id(),
        count,
        queue
    );
    let reply = cmd.begin(count, queue, |command| {
        let device = this.enter().map_err(|error| (0, error))?;
        let table = this.table().lock();
        let resolved = batch.resolve(&SubmitCtx {
            table: &table,
            device: &device,
            command: Some(command),
            in_ring,
        });
        drop(table);
        if let Err(bad) = resolved {
            batch.discard();
            return Err((bad.index, bad.error));
        }
        let (posted, result) = batch.post();
        result.map_err(|error| (posted, error))
    });
    submit::give_back(this, batch);
    reply
}

/// Cancels requests as CANCEL does.
fn cancel_requests(this: &UlpFile, cmd: &UringCmd<'_>) -> Result<u32> {
    let value: abi::UringCancel = cmd.read()?;
    cancel::cancel_matching(this, value.queue, value.user_data, value.flags)
}

/// Starts to copy completions from a ring to provided buffers.
fn stream(this: &UlpFile, cmd: UringCmd<'_>) -> IssueResult {
    let value = match cmd.read::<abi::UringStream>() {
        Ok(value) if value.flags == 0 && value.reserved == 0 => value,
        Ok(_) => return cmd.refuse(EINVAL),
        Err(error) => return cmd.refuse(error),
    };
    trace::uring(this.id(), cmd.op(), value.cq, 0);
    ulp_debug!("file {}: io_uring: stream of {:#x}\n", this.id(), value.cq);
    cmd.stream(value.cq, || {
        let device = this.enter()?;
        let cq = this.table().lock().cq(value.cq)?.clone();
        // Tuples are dropped in order: the queue, perhaps its last reference, before the guard.
        Ok((cq.ring().clone(), (cq, device)))
    })
}

/// Cancels a command whose io_uring or task ends.
///
/// A request that is not found has completed, is about to, or is not posted yet. io_uring calls
/// again for a command that has not completed. One search cancels the requests of all commands that
/// end together: it runs with `uring_lock` held, and the user chooses the number of commands.
pub(crate) fn cancel(this: &UlpFile, command: &Canceling<'_>) {
    if !command.is_stream() && command.is_complete() {
        return;
    }
    // Device removal completes all requests.
    let Ok(_device) = this.enter() else {
        return;
    };
    let table = this.table().lock();
    if command.is_stream() {
        if let Ok(cq) = table.cq(command.queue()) {
            cq.ring().cancel_stream(|stream| command.is(stream));
        }
        return;
    }
    let found = if command.is_single() {
        cancel_single(&table, command).into()
    } else {
        let which = of_command(|cmd_ref| command.ends_with(cmd_ref));
        table
            .iter()
            .map(|(_, object)| match object {
                Object::Qp(qp) => qp.qp().cancel(which),
                Object::Srq(srq) => srq.srq().cancel(which),
                _ => 0,
            })
            .fold(0, u32::saturating_add)
    };
    drop(table);
    trace::uring_cancel(this.id(), command.queue(), found);
}

/// Cancels the one request of `command`; returns whether it was found.
fn cancel_single(table: &ObjectTable, command: &Canceling<'_>) -> bool {
    let which = of_command(|cmd_ref| command.has(cmd_ref));
    match (table.get(command.queue()), command.slot()) {
        (Ok(Object::Qp(qp)), Some(slot)) => qp.qp().cancel_slot(slot, which),
        (Ok(Object::Srq(srq)), Some(slot)) => srq.srq().cancel_slot(slot, which),
        _ => false,
    }
}

/// Returns a test for the requests of the commands that `which` names.
fn of_command(which: impl Fn(&CmdRef) -> bool + Copy) -> impl Fn(&Request) -> bool + Copy {
    move |request| request.cmd_ref.as_ref().is_some_and(which)
}
