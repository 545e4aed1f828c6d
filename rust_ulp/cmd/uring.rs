// SPDX-License-Identifier: GPL-2.0

//! Commands of io_uring.
//!
//! A command has one work request, or the address of an array. It is parsed and posted as
//! [`super::submit`] describes. The slot of each request keeps a reference to the command, which
//! completes when all its requests have completed; with `URING_RING` it completes when they are
//! posted. A command needs no allocation. While its completion waits for the submitting task, it
//! refers to no object of the device.
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
    ext::{
        uring::{
            Canceling,
            CmdRef,
            IssueResult,
            PendingCmd,
            UringCmd, //
        }, //
    },
    file::UlpFile,
    limits::MAX_BATCH,
    object::{
        batch::Batch,
        completion::Request,
        Object,
        ObjectTable, //
    },
    rdma::request::SlotRef,
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Declares the commands, as `commands!` of [`super`] does. Handlers get the copy of the struct.
macro_rules! commands {
    ($(
        $number:ident: $name:ident {
            $(flags: $flags:expr)? $(, check: $check:path)?
        } => $handler:path;
    )*) => {
        fn dispatch(this: &UlpFile, cmd: UringCmd<'_>) -> IssueResult {
            match cmd.op() {
                $(abi::$number => {
                    fn check(_value: &abi::$name) -> Result {
                        $(if _value.flags & !$flags != 0 {
                            return Err(EINVAL);
                        })?
                        $($check(_value)?;)?
                        Ok(())
                    }
                    match cmd.read().and_then(|value| check(&value).map(|()| value)) {
                        Ok(value) => $handler(this, cmd, value),
                        Err(error) => cmd.refuse(error),
                    }
                })*
                _ => cmd.refuse(ENOTTY),
            }
        }
    };
}

commands! {
    URING_REQUEST: Wr {} => request;
    URING_BATCH: UringBatch { flags: abi::URING_RING, check: check_batch } => batch;
    URING_CANCEL: UringCancel { flags: abi::CANCEL_ALL, check: cancel::check_uring }
        => cancel_requests;
}

/// Issues a command.
pub(crate) fn issue(this: &UlpFile, cmd: UringCmd<'_>) -> IssueResult {
    // On a disassociated file ENODEV takes precedence over other errors.
    match this.device() {
        Ok(device) if device.is_gone() => cmd.refuse(ENODEV),
        Ok(_) => dispatch(this, cmd),
        Err(error) => cmd.refuse(error),
    }
}

/// Posts one request.
fn request(this: &UlpFile, cmd: UringCmd<'_>, wr: abi::Wr) -> IssueResult {
    post(this, cmd, 1, false, |batch| batch.parse_one(wr))
}

/// Checks the members that do not depend on the requests.
fn check_batch(value: &abi::UringBatch) -> Result {
    match u32::from(value.nr_wrs) {
        0 => Err(EINVAL),
        1..=MAX_BATCH => Ok(()),
        _ => Err(E2BIG),
    }
}

/// Posts an array of requests. With `URING_RING` they complete in the rings of their completion
/// queues, and the command completes at once.
fn batch(this: &UlpFile, cmd: UringCmd<'_>, value: abi::UringBatch) -> IssueResult {
    let in_ring = value.flags & abi::URING_RING != 0;
    post(this, cmd, value.nr_wrs, in_ring, |batch| {
        batch.parse(value.wrs, value.nr_wrs.into(), value.wr_size.into())
    })
}

/// Parses the requests of a command with `parse`, and posts them, up to the first one that is
/// refused.
fn post(
    this: &UlpFile,
    cmd: UringCmd<'_>,
    count: u16,
    in_ring: bool,
    parse: impl FnOnce(&mut Batch) -> Result,
) -> IssueResult {
    let mut batch = match this.take_batch() {
        Ok(batch) => batch,
        Err(error) => return cmd.refuse(error),
    };
    let parsed = parse(&mut batch);
    let reply = begin(this, cmd, (&mut batch, parsed), count, in_ring);
    submit::give_back(this, batch);
    reply
}

/// Posts the requests in the batch, up to the first one that is refused. The result of parsing comes
/// with them.
fn begin(
    this: &UlpFile,
    cmd: UringCmd<'_>,
    (batch, parsed): (&mut Batch, Result),
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
    if !in_ring {
        return cmd.begin(count, queue, |command| {
            resolve_and_post(this, (batch, parsed), Some(command))
        });
    }
    match resolve_and_post(this, (batch, parsed), None) {
        Ok(()) => cmd.answer(count.into()),
        Err((index, error)) => cmd.refuse_part(index, error),
    }
}

/// Posts the requests in the batch, up to the first one that is refused. They are parts of `command`,
/// or complete in completion rings. Returns the number of the request that was refused, and its error.
fn resolve_and_post(
    this: &UlpFile,
    (batch, parsed): (&mut Batch, Result),
    command: Option<&PendingCmd>,
) -> Result<(), (u32, Error)> {
    let device = this.enter().map_err(|error| (0, error))?;
    let table = this.table().read();
    let resolved = batch.resolve(&SubmitCtx {
        table: &table,
        device: &device,
        command,
    });
    drop(table);
    let (posted, result) = batch.post();
    result
        .and(resolved)
        .and(parsed)
        .map_err(|error| (posted, error))
}

/// Cancels requests as CANCEL does.
fn cancel_requests(this: &UlpFile, cmd: UringCmd<'_>, value: abi::UringCancel) -> IssueResult {
    match cancel::cancel_matching(this, value.queue, value.user_data, value.flags) {
        Ok(number) => cmd.answer(number),
        Err(error) => cmd.refuse(error),
    }
}

/// Cancels a command whose io_uring or task ends.
///
/// A request that is not found has completed, is about to, or is not posted yet. io_uring calls
/// again for a command that has not completed. One search cancels the requests of all commands that
/// end together: it runs with `uring_lock` held, and the user chooses the number of commands.
pub(crate) fn cancel(this: &UlpFile, command: &Canceling<'_>) {
    if command.is_complete() {
        return;
    }
    // Device removal completes all requests.
    let Ok(_device) = this.enter() else {
        return;
    };
    let table = this.table().read();
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
fn of_command(
    which: impl Fn(&CmdRef) -> bool + Copy,
) -> impl Fn(SlotRef<'_, Request>) -> bool + Copy {
    move |slot| slot.reference.is_some_and(which)
}
