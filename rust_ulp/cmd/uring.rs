// SPDX-License-Identifier: GPL-2.0

//! Commands of io_uring.
//!
//! A command has one work request, or the address of an array. They are posted as
//! [`crate::request`] describes. The requests keep references to the command, which completes when
//! all of them have completed: the last one of a run of sends has one for the run, and each receive
//! has its own. With `URING_RING` a command completes when its requests are posted. It needs no
//! allocation. While its completion waits for the submitting task, it refers to no object of the
//! device.
//!
//! Context: process context, in the submitting task, an io_uring worker or the SQPOLL thread.
//! `uring_lock` may be held. It is therefore taken before the device's gate, and a thread inside
//! the gate must not take it. A command waits only for short locks and for user memory. It never
//! returns EAGAIN to be issued again by a worker, so commands keep their order.

use super::cancel;
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
        completion::Request,
        Object,
        ObjectTable, //
    },
    rdma::request::SlotRef,
    request::{
        Requests,
        Source, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use core::cell::Cell;
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
        // No buffer is registered here or chosen.
        Ok(_) if cmd.has_flags() => cmd.refuse(EINVAL),
        Ok(_) => dispatch(this, cmd),
        Err(error) => cmd.refuse(error),
    }
}

/// Posts one request.
fn request(this: &UlpFile, cmd: UringCmd<'_>, wr: abi::Wr) -> IssueResult {
    post(this, cmd, Source::One(&wr), 1, false)
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
    let source = Source::Array {
        addr: value.wrs,
        count: value.nr_wrs.into(),
        size: value.wr_size.into(),
    };
    post(this, cmd, source, value.nr_wrs, in_ring)
}

/// Posts the requests of a command, up to the first one that is refused. They are parts of the
/// command, or complete in completion rings.
fn post(
    this: &UlpFile,
    cmd: UringCmd<'_>,
    source: Source<'_>,
    count: u16,
    in_ring: bool,
) -> IssueResult {
    let op = cmd.op();
    let post = |command: Option<&PendingCmd>| {
        let requests = Requests {
            file: this,
            source,
            command,
            cq: 0,
            reported: Cell::new(0),
        };
        let mut device = None;
        let (posted, result) = requests.post(&mut device, |_, part| {
            if !part.is_first {
                return Ok(());
            }
            trace::uring(this.id(), op, part.queue, count.into());
            ulp_debug!(
                "file {}: io_uring: {} requests, queue {:#x}\n",
                this.id(),
                count,
                part.queue
            );
            if let Some(command) = command {
                command.set_queue(part.queue);
            }
            Ok(())
        });
        result.map_err(|error| (posted, error))
    };
    if !in_ring {
        return cmd.begin(count, |command| post(Some(command)));
    }
    match post(None) {
        Ok(()) => cmd.answer(count.into()),
        Err((index, error)) => cmd.refuse_part(index, error),
    }
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
