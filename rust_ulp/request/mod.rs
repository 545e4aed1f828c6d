// SPDX-License-Identifier: GPL-2.0

//! Requests: from memory of user space to the queues of a device.
//!
//! [`Requests::post`] takes these steps with as many requests at a time as a [`Room`] has places for,
//! in process context:
//!
//! 1. Outside the gate, [`copy`] copies the requests once, and what they point to.
//! 2. Inside the gate, with the file's table locked, [`run`] goes from queue to queue. It looks up
//!    what the requests name, checks each and builds it in a [`Scratch`].
//! 3. Under the lock of the queue, [`Run::post`](crate::rdma::post::Run::post) gives them slots, and
//!    calls the driver once.
//! 4. Without the table, the scratch drops what the slots have kept before.
//!
//! The first request that a step refuses ends it. Those before it are posted.
//!
//! A few requests are on the stack, more in a room, of which a file keeps some.
//!
//! [`Room`]: crate::object::room::Room

mod copy;
mod run;

use crate::{
    device::DeviceGuard,
    ext::uring::PendingCmd,
    file::UlpFile,
    object::ObjectTable,
    rdma::post::{
        Place,
        Scratch, //
    },
    uapi::abi, //
};
use core::{
    cell::Cell,
    mem::MaybeUninit, //
};
use kernel::prelude::*;

pub(crate) use copy::Source;

/// The most requests that are on the stack.
const ON_STACK: usize = 8;

/// The most bytes of inline data that are on the stack.
const INLINE_ON_STACK: usize = 128;

/// Requests of a command that are posted at a time.
pub(crate) struct Part {
    /// The queue of the first of them, 0 without one.
    pub(crate) queue: u32,
    /// Whether they are the first of the command.
    pub(crate) is_first: bool,
    /// Whether none after them is copied.
    pub(crate) is_last: bool,
}

/// The requests of a command, and how they complete.
pub(crate) struct Requests<'a> {
    /// The file that posts them.
    pub(crate) file: &'a UlpFile,
    /// Where they are.
    pub(crate) source: Source<'a>,
    /// The command of io_uring that completes when they have completed. Without one, they add
    /// entries to completion rings.
    pub(crate) command: Option<&'a PendingCmd>,
    /// The completion queue of which `reported` speaks, or 0.
    pub(crate) cq: u32,
    /// How many of those that were posted add an entry to the ring of `cq` when they succeed. Valid
    /// when the queue of the next one was full.
    pub(crate) reported: Cell<u32>,
}

impl<'a> Requests<'a> {
    /// Posts the requests, up to the first one that is refused. Sleeps. Returns how many were posted,
    /// and the error of the one after them.
    ///
    /// Calls `enter` before each part is posted, inside the gate and with the table locked. If that
    /// fails, nothing more is posted. `device` becomes the guard of the gate in which the last part was
    /// posted. On a disassociated file [`ENODEV`] takes precedence over other errors.
    pub(crate) fn post(
        &self,
        device: &mut Option<DeviceGuard<'a>>,
        enter: impl FnMut(&ObjectTable, Part) -> Result,
    ) -> (u32, Result) {
        let count = self.source.count() as usize;
        if count <= ON_STACK {
            self.post_on_stack(device, enter)
        } else {
            self.post_many(device, enter)
        }
    }

    #[inline(never)]
    fn post_on_stack(
        &self,
        device: &mut Option<DeviceGuard<'a>>,
        enter: impl FnMut(&ObjectTable, Part) -> Result,
    ) -> (u32, Result) {
        let mut room = [const { MaybeUninit::uninit() }; ON_STACK];
        let mut places = [const { Place::uninit() }; ON_STACK];
        let mut inline = [0; INLINE_ON_STACK];
        self.post_in(&mut room, &mut places, &mut inline, device, enter)
    }

    #[inline(never)]
    fn post_many(
        &self,
        device: &mut Option<DeviceGuard<'a>>,
        enter: impl FnMut(&ObjectTable, Part) -> Result,
    ) -> (u32, Result) {
        let mut room = match self.file.take_room() {
            Ok(room) => room,
            Err(error) => return (0, Err(error)),
        };
        let (wrs, places) = (&mut room.wrs, &mut room.places);
        let (wrs, places) = (wrs.spare_capacity_mut(), places.spare_capacity_mut());
        let outcome = self.post_in(wrs, places, &mut [], device, enter);
        self.file.give_room(room);
        outcome
    }

    /// Posts the requests, as many at a time as there is room for.
    #[inline(never)]
    fn post_in(
        &self,
        room: &mut [MaybeUninit<abi::Wr>],
        places: &mut [Place],
        inline: &mut [u8],
        device: &mut Option<DeviceGuard<'a>>,
        mut enter: impl FnMut(&ObjectTable, Part) -> Result,
    ) -> (u32, Result) {
        let count = self.source.count();
        let mut posted = 0u32;
        loop {
            // Not over a copy: user space decides how long that takes.
            *device = None;
            let mut copied = copy::copy(self.source, posted, room, inline);
            let end = posted.saturating_add(copied.wrs.len() as u32);
            let part = Part {
                queue: copied.wrs.first().map_or(0, |wr| wr.qp),
                is_first: posted == 0,
                is_last: end >= count || copied.result.is_err(),
            };
            let device = match self.file.enter() {
                Ok(guard) => device.insert(guard),
                Err(error) => return (posted, Err(error)),
            };
            let after = copied.result;
            let (wrs, outside) = copied.parts();
            // Dropped without the lock of the table, which must not be held for so long.
            let mut scratch = Scratch::new(places);
            let table = self.file.table().read();
            if let Err(error) = enter(&table, part) {
                return (posted, Err(error));
            }
            let ctx = run::Ctx {
                table: &table,
                device,
                command: self.command,
                base: posted,
            };
            let (more, result) = run::post(&ctx, wrs, outside, &mut scratch);
            if end < count || result == Err(EAGAIN) {
                let wrs = wrs.get(..more as usize).unwrap_or_default();
                let reported = run::reported(&ctx, wrs, self.cq);
                self.reported
                    .set(self.reported.get().saturating_add(reported));
            }
            drop(table);
            posted = posted.saturating_add(more);
            let result = result.and(after);
            if result.is_err() || end >= count {
                return (posted, result);
            }
        }
    }
}
