// SPDX-License-Identifier: MIT OR Apache-2.0

//! The same requests by io_uring, and entries that are none.

use super::actor::{Actor, ARGS};
use super::ops::{request, requests};
use super::world::{Kind, Open};
use crate::sys::{abi, bytes, multishot, Plain, Uring, PAGE};
use io_uring::squeue::{Entry128, Flags};
use io_uring::{opcode, types};
use nix::errno::Errno;
use std::time::Duration;

/// What entries are called when they complete: their `user_data` has the number.
const NAMES: [&str; 7] = [
    "uring REQUEST",
    "uring BATCH",
    "uring CANCEL",
    "uring none",
    "uring poll",
    "uring cancel",
    "uring spoiled",
];
const GROUP: u16 = 3;
const ENTRIES: u32 = 64;

/// A ring of a thread.
pub struct Rings {
    ring: Uring,
    /// Files that it knows by number.
    registered: bool,
}

fn make(a: &mut Actor<'_>) -> Option<Rings> {
    let how = a.dice.below(12);
    let made = Uring::new(ENTRIES, |builder| match how {
        0 => drop(builder.setup_sqpoll(1)),
        1 | 2 => drop(builder.setup_single_issuer().setup_defer_taskrun()),
        3 => drop(builder.setup_coop_taskrun().setup_taskrun_flag()),
        _ => (),
    });
    a.note(
        "uring made",
        made.as_ref().map(drop).map_err(|_| Errno::ENOMEM),
    );
    let ring = made.ok()?;
    let registered = a.dice.one_in(2) && ring.register(&[a.world.file(0).fd.number()]).is_ok();
    Some(Rings { ring, registered })
}

fn entry<T: Plain>(fd: i32, fixed: bool, op: u32, arg: &T) -> Entry128 {
    let mut cmd = [0; 80];
    let arg = bytes(arg);
    cmd[..arg.len()].copy_from_slice(&arg);
    if fixed {
        return opcode::UringCmd80::new(types::Fixed(0), op)
            .cmd(cmd)
            .build();
    }
    opcode::UringCmd80::new(types::Fd(fd), op).cmd(cmd).build()
}

fn one(a: &mut Actor<'_>, open: &Open, at: usize, fixed: bool) -> Entry128 {
    let fd = open.fd.number();
    let kind = match a.dice.below(16) {
        0..=6 => 0,
        7..=9 => 1,
        10 | 11 => 2,
        other => other - 9,
    };
    let mut made = match kind {
        0 => {
            let wr = request(a, open, ARGS * PAGE - PAGE);
            entry(fd, fixed, abi::URING_REQUEST, &wr)
        }
        1 => {
            let (count, size) = requests(a, open, at);
            let arg = abi::UringBatch {
                wrs: if a.dice.one_in(8) {
                    a.world.shared.at(0)
                } else {
                    a.args.at(at)
                },
                nr_wrs: count as u16,
                wr_size: size as u16,
                flags: if a.dice.one_in(16) {
                    a.dice.any32()
                } else {
                    a.dice.below(2) as u32
                },
            };
            entry(fd, fixed, abi::URING_BATCH, &arg)
        }
        2 => {
            let all = a.dice.one_in(2);
            let queue = if a.dice.one_in(4) {
                Kind::Srq
            } else {
                Kind::Qp
            };
            let arg = abi::UringCancel {
                user_data: if all { 0 } else { a.dice.below(8) as u64 },
                queue: a.handle(open, queue),
                flags: u32::from(all),
            };
            entry(fd, fixed, abi::URING_CANCEL, &arg)
        }
        3 => {
            let op = match a.dice.below(3) {
                0 => abi::URING_CANCEL + 1,
                1 => abi::IOC_SUBMIT,
                _ => a.dice.any32() | 0x8000_0000,
            };
            entry(fd, fixed, op, &abi::Wr::default())
        }
        4 => {
            let poll = opcode::PollAdd::new(types::Fd(fd), 3);
            poll.multi(a.dice.one_in(2)).build().into()
        }
        5 => {
            let which = a.dice.below(NAMES.len()) as u64;
            opcode::AsyncCancel::new(which).build().into()
        }
        _ => {
            let mut cmd = [0; 80];
            let wr = request(a, open, ARGS * PAGE - PAGE);
            cmd[..size_of::<abi::Wr>()].copy_from_slice(&bytes(&wr));
            for _ in 0..a.dice.below(6) {
                let at = a.dice.below(80);
                cmd[at] = a.dice.word() as u8;
            }
            let op = a
                .dice
                .of([abi::URING_REQUEST, abi::URING_BATCH, abi::URING_CANCEL]);
            // A batch that names what is not ours to be read is refused, or reads garbage: no harm.
            let mut made = opcode::UringCmd80::new(types::Fd(fd), op).cmd(cmd).build();
            if a.dice.one_in(3) {
                multishot(&mut made, GROUP);
            }
            made
        }
    };
    let flags = match a.dice.below(16) {
        0 => Flags::ASYNC,
        1 | 2 => Flags::IO_LINK,
        3 => Flags::IO_HARDLINK,
        4 => Flags::IO_DRAIN,
        5 => Flags::SKIP_SUCCESS,
        _ => Flags::empty(),
    };
    // A poll completes many times: it is not told to be silent.
    if kind < 4 && !flags.is_empty() {
        made = made.flags(flags);
    }
    made.user_data(kind as u64)
}

/// Some entries, and what has completed.
pub fn entries(a: &mut Actor<'_>) {
    if a.rings.is_none() {
        a.rings = make(a);
    }
    let open = a.file();
    let fixed = a.dice.one_in(4) && a.rings.as_ref().is_some_and(|rings| rings.registered);
    let count = a.dice.below(4) + 1;
    let list: Vec<_> = (0..count)
        .map(|i| one(a, &open, PAGE + i * PAGE, fixed))
        .collect();
    let millis = if a.dice.one_in(6) {
        a.dice.below(5) as u64
    } else {
        0
    };
    let Some(Rings { ring, .. }) = &mut a.rings else {
        return;
    };
    for entry in &list {
        ring.push(entry);
    }
    // Whether it waits in vain is no matter; EBUSY is a ring whose completions are to be taken first.
    if millis > 0 {
        let _ = ring.enter_for(1, Duration::from_millis(millis));
    } else {
        let _ = ring.submit();
    }
    for (user_data, res, ..) in ring.reap() {
        let what = NAMES[user_data as usize % NAMES.len()];
        match Errno::from_raw(res.saturating_neg()) {
            _ if res >= 0 => a.note(what, Ok(())),
            // It completed with a status.
            Errno::EREMOTEIO => a.note(what, Ok(())),
            errno => a.note(what, Err(errno)),
        }
    }
}

/// The ring goes, with what is under way.
pub fn end(a: &mut Actor<'_>) {
    if a.rings.take().is_some() {
        a.note("uring ended", Ok(()));
    }
}
