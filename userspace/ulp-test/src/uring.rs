// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests by io_uring.
//!
//! Without an argument, all cases that need nothing but a device. `hold` and `sqpoll` are for the
//! suite, which disturbs them; `off` is for where io_uring is disabled.

use crate::file::{array, timed, Command, File, Set};
use crate::hosts::Dice;
use crate::report::{because, check, equal, hang, Outcome, Report};
use crate::sys::hostile::thread_id;
use crate::sys::{abi, bytes, value, Area, Fd, Place, Racing, SmallUring, Uring, PAGE};
use io_uring::squeue::{Entry128, Flags};
use io_uring::{cqueue, opcode, types};
use nix::errno::Errno;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

type Builder = io_uring::Builder<Entry128, cqueue::Entry32>;
type Setup = fn(&mut Builder);

const CANCELED: i32 = -(Errno::ECANCELED as i32);
/// `res` of a request that completed with a status.
const FAILED: i32 = -(Errno::EREMOTEIO as i32);
const FLUSHED: u16 = 5;

/// What [`run`] returns for a request that completed like that, which is no errno.
const fn failed(status: u16) -> i32 {
    i32::MIN + status as i32
}

/// The extra word of request number `index` of a batch, which failed with that status.
fn failure(status: u16, index: u64) -> u64 {
    u64::from(status) | (index << abi::URING_INDEX_SHIFT)
}

/// A completion of a failure without the error code of the vendor.
fn without_vendor(done: Vec<(u64, i32, u32, u64)>) -> Vec<(u64, i32, u32, u64)> {
    let known = |extra| u64::from(extra as u32);
    done.into_iter()
        .map(|(number, res, flags, extra)| (number, res, flags, known(extra)))
        .collect()
}

const fn refused(errno: Errno) -> i32 {
    -(errno as i32)
}

/// An entry for the command `op` on `fd`, with the struct in it.
fn entry<T: crate::sys::Plain>(fd: i32, op: u32, number: u64, arg: &T) -> Entry128 {
    let mut cmd = [0; 80];
    let arg = bytes(arg);
    cmd[..arg.len()].copy_from_slice(&arg);
    let build = opcode::UringCmd80::new(types::Fd(fd), op).cmd(cmd).build();
    build.user_data(number)
}

fn request(set: &Set, number: u64, wr: abi::Wr) -> Entry128 {
    let wr = abi::Wr {
        user_data: number,
        ..wr
    };
    entry(set.file.fd().number(), abi::URING_REQUEST, number, &wr)
}

/// A batch of what stands in `area`.
fn batch(set: &Set, number: u64, area: &Area, count: u16, flags: u32) -> Entry128 {
    batch_at(set, number, area.at(0), count, flags)
}

/// The same, of what stands at that address.
fn batch_at(set: &Set, number: u64, wrs: u64, count: u16, flags: u32) -> Entry128 {
    let arg = abi::UringBatch {
        wrs,
        nr_wrs: count,
        wr_size: abi::Wr::SIZE as u16,
        flags,
    };
    entry(set.file.fd().number(), abi::URING_BATCH, number, &arg)
}

fn cancel(set: &Set, number: u64, queue: u32, user_data: u64, flags: u32) -> Entry128 {
    let arg = abi::UringCancel {
        user_data,
        queue,
        flags,
    };
    entry(set.file.fd().number(), abi::URING_CANCEL, number, &arg)
}

fn ring() -> Outcome<Uring> {
    Uring::new(256, |_| ()).map_err(because("making a ring"))
}

/// Submits `entries`, and takes `want` completions, as (number, res), with [`failed`] of the status
/// in place of -EREMOTEIO.
fn run(ring: &mut Uring, entries: &[Entry128], want: usize) -> Outcome<Vec<(u64, i32)>> {
    let done = full(ring, entries, want)?.into_iter();
    done.map(|(number, res, _, extra)| match (res, extra as u16) {
        (FAILED, status @ 1..) => Ok((number, failed(status))),
        (FAILED, 0) => Err(format!("{number}: -EREMOTEIO without a status")),
        (..0, status @ 1..) => Err(format!("{number}: res {res} with the status {status}")),
        _ => Ok((number, res)),
    })
    .collect()
}

/// Does the same, and returns (number, res, flags, first extra word).
fn full(ring: &mut Uring, entries: &[Entry128], want: usize) -> Outcome<Vec<(u64, i32, u32, u64)>> {
    for entry in entries {
        check("the ring is full", ring.push(entry))?;
    }
    let mut out = Vec::new();
    let end = Instant::now() + hang();
    loop {
        match ring.enter(want.saturating_sub(out.len()).max(usize::from(want > 0))) {
            Ok(_) => (),
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => (),
            Err(error) => return Err(format!("io_uring_enter: {error}")),
        }
        out.extend(ring.reap());
        if out.len() >= want {
            return Ok(out);
        }
        check(
            format!("{} of {want} completions came: {out:?}", out.len()),
            Instant::now() < end,
        )?;
    }
}

/// A send of the first bytes of the buffer from `a` to `b`.
fn send(set: &Set) -> abi::Wr {
    abi::Wr {
        opcode: abi::WR_SEND,
        remote_addr: 0,
        rkey: 0,
        ..set.write()
    }
}

/// A receive of `b`, into the third page.
fn recv(set: &Set) -> abi::Wr {
    abi::Wr {
        qp: set.b.handle,
        sge: set.sge(2 * PAGE as u64, 64),
        ..set.recv()
    }
}

fn in_flight(set: &Set, qp: u32) -> Outcome<(u32, u32)> {
    let got = set.file.query(qp)?;
    Ok((got.sends_in_flight, got.recvs_in_flight))
}

/// Waits until the device has no request of `qp`.
fn drained(set: &Set, qp: u32) -> Outcome {
    let end = Instant::now() + hang();
    while in_flight(set, qp)? != (0, 0) {
        check("the device still has requests", Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The extra word of a request on a connection that succeeded.
fn word(flags: u8, imm: u32) -> u64 {
    u64::from(imm) | (u64::from(flags) << abi::URING_FLAGS_SHIFT)
}

// --- one request ------------------------------------------------------------------

fn operations(ring: &mut Uring) -> Outcome {
    let set = Set::new()?;
    set.memory.put(0, &[7; 64]);
    let done = full(ring, &[request(&set, 1, set.write())], 1)?;
    equal("a write", done, vec![(1, 0, 0, 0)])?;
    equal("its data", set.memory.get(PAGE, 64), vec![7; 64])?;

    let read = abi::Wr {
        opcode: abi::WR_RDMA_READ,
        flags: 0,
        sge: set.sge(3 * PAGE as u64, 33),
        ..set.write()
    };
    let done = full(ring, &[request(&set, 2, read)], 1)?;
    equal("a read", done, vec![(2, 33, 0, 0)])?;
    equal("its data", set.memory.get(3 * PAGE, 33), vec![7; 33])?;

    let add = abi::Wr {
        opcode: abi::WR_ATOMIC_FETCH_AND_ADD,
        args: abi::WrAtomic {
            compare_add: 5,
            swap: 0,
        }
        .into(),
        sge: set.sge(3 * PAGE as u64, 8),
        ..set.write()
    };
    // As tests/vm/personality.py says of the adapter.
    let has_atomics = std::env::var("ULP_ATOMICS").is_ok_and(|has| has == "True");
    let want = if has_atomics {
        8
    } else {
        refused(Errno::EOPNOTSUPP)
    };
    let done = full(ring, &[request(&set, 3, add)], 1)?;
    equal("an atomic", done, vec![(3, want, 0, 0)])?;

    let imm = abi::Wr {
        opcode: abi::WR_SEND_WITH_IMM,
        imm_data: 0xdead_beef,
        flags: abi::SEND_INLINE,
        ..send(&set)
    };
    let mut done = full(
        ring,
        &[request(&set, 4, recv(&set)), request(&set, 5, imm)],
        2,
    )?;
    done.sort_unstable();
    equal(
        "a send and its receive",
        done,
        vec![
            (4, 64, 0, word(abi::WC_WITH_IMM, 0xdead_beef)),
            (5, 0, 0, 0),
        ],
    )?;
    equal("its data", set.memory.get(2 * PAGE, 64), vec![7; 64])?;

    let imm = abi::Wr {
        opcode: abi::WR_RDMA_WRITE_WITH_IMM,
        imm_data: 0x1234_5678,
        ..set.write()
    };
    let mut done = full(
        ring,
        &[request(&set, 6, recv(&set)), request(&set, 7, imm)],
        2,
    )?;
    done.sort_unstable();
    let told = word(abi::WC_WITH_IMM, 0x1234_5678) | abi::URING_RDMA_WITH_IMM;
    let bytes = imm.sge.length as i32;
    let want = vec![(6, bytes, 0, told), (7, 0, 0, 0)];
    equal("a write with immediate data and its receive", done, want)?;
    equal("entries in the ring of the queue", set.ring.reap().len(), 0)?;
    drained(&set, set.a.handle)?;
    set.works(1)
}

/// All that may be wrong of an entry.
fn refusals() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let fd = set.file.fd().number();
    let mut one = |what: &str, entry: Entry128, want: i32| {
        equal(what, run(&mut ring, &[entry], 1)?, vec![(9, want)])
    };
    let wr = set.write();
    let bad = |qp| request(&set, 9, abi::Wr { qp, ..wr });
    one("no handle", bad(0), refused(Errno::ENOENT))?;
    one("a buffer's", bad(set.buffer.handle), refused(Errno::EBADFD))?;
    one("in INIT", bad(set.idle.handle), refused(Errno::ENOTCONN))?;
    let late = abi::Wr {
        timeout_ns: 1,
        ..wr
    };
    one("a deadline", request(&set, 9, late), refused(Errno::EINVAL))?;
    let args = abi::WrUd {
        pad: 1,
        ..abi::WrUd::default()
    }
    .into();
    let arguments = request(&set, 9, abi::Wr { args, ..wr });
    one("arguments", arguments, refused(Errno::EINVAL))?;
    for at in size_of::<abi::Wr>()..80 {
        let mut cmd = [0; 80];
        cmd[..size_of::<abi::Wr>()].copy_from_slice(&bytes(&wr));
        cmd[at] = 1;
        let entry = opcode::UringCmd80::new(types::Fd(fd), abi::URING_REQUEST);
        one(
            &format!("byte {at} of a request is not zero"),
            entry.cmd(cmd).build().user_data(9),
            refused(Errno::E2BIG),
        )?;
    }
    let op = |op| entry(fd, op, 9, &wr);
    one(
        "no command",
        op(abi::URING_CANCEL + 1),
        refused(Errno::ENOTTY),
    )?;
    one("an ioctl", op(abi::IOC_SUBMIT), refused(Errno::ENOTTY))?;
    let unattached = File::open()?;
    let entry_of = |fd: i32, op: u32, arg: &abi::UringBatch| entry(fd, op, 9, arg);
    one(
        "before ATTACH",
        entry(unattached.fd().number(), abi::URING_REQUEST, 9, &wr),
        refused(Errno::ENXIO),
    )?;

    let area = array(&[wr, abi::Wr { qp: 0, ..wr }])?;
    one(
        "a batch of none",
        batch(&set, 9, &area, 0, 0),
        refused(Errno::EINVAL),
    )?;
    one(
        "a flag",
        batch(&set, 9, &area, 1, 2),
        refused(Errno::EINVAL),
    )?;
    one(
        "too many",
        batch(&set, 9, &area, 1025, 0),
        refused(Errno::E2BIG),
    )?;
    let small = abi::UringBatch {
        wrs: area.at(0),
        nr_wrs: 1,
        wr_size: abi::Wr::SIZE as u16 - 1,
        flags: 0,
    };
    one(
        "a size",
        entry_of(fd, abi::URING_BATCH, &small),
        refused(Errno::EINVAL),
    )?;
    let nowhere = abi::UringBatch {
        wrs: 0x1000,
        wr_size: abi::Wr::SIZE as u16,
        ..small
    };
    one(
        "nowhere",
        entry_of(fd, abi::URING_BATCH, &nowhere),
        refused(Errno::EFAULT),
    )?;
    for (what, queue, user_data, flags, want) in [
        ("no handle", 0, 0, 0, Errno::ENOENT),
        ("a buffer's", set.buffer.handle, 0, 0, Errno::EBADFD),
        ("a flag", set.a.handle, 0, 2, Errno::EINVAL),
        (
            "all, and one",
            set.a.handle,
            1,
            abi::CANCEL_ALL,
            Errno::EINVAL,
        ),
    ] {
        one(
            what,
            cancel(&set, 9, queue, user_data, flags),
            refused(want),
        )?;
    }
    let long = Area::new(1).map_err(because("mapping memory"))?;
    let batch_of_one = abi::UringBatch {
        wrs: long.at(0),
        nr_wrs: 1,
        wr_size: abi::Wr::SIZE as u16 + 16,
        flags: 0,
    };
    let which = abi::UringCancel {
        queue: set.a.handle,
        ..abi::UringCancel::default()
    };
    for (op, raw) in [
        (abi::URING_BATCH, bytes(&batch_of_one)),
        (abi::URING_CANCEL, bytes(&which)),
    ] {
        for at in [16, 79] {
            let mut cmd = [0; 80];
            cmd[..raw.len()].copy_from_slice(&raw);
            cmd[at] = 1;
            let entry = opcode::UringCmd80::new(types::Fd(fd), op).cmd(cmd).build();
            one(
                "a byte after the struct",
                entry.user_data(9),
                refused(Errno::E2BIG),
            )?;
        }
    }
    // A request that is longer than the kernel knows goes by a batch.
    let wr = abi::Wr { user_data: 9, ..wr };
    long.put(0, &bytes(&wr));
    one(
        "a longer request with zeros",
        entry_of(fd, abi::URING_BATCH, &batch_of_one),
        0,
    )?;
    long.put(size_of::<abi::Wr>() + 15, &[1]);
    one(
        "a longer request without",
        entry_of(fd, abi::URING_BATCH, &batch_of_one),
        refused(Errno::E2BIG),
    )?;
    equal(
        "the second one is bad",
        full(&mut ring, &[batch(&set, 9, &area, 2, 0)], 1)?,
        vec![(9, refused(Errno::ENOENT), 0, failure(0, 1))],
    )?;
    equal(
        "the first has ended",
        in_flight(&set, set.a.handle)?,
        (0, 0),
    )?;
    let fill = abi::Wr {
        qp: set.idle.handle,
        ..recv(&set)
    };
    let entries: Vec<_> = (0..64).map(|i| request(&set, i, fill)).collect();
    run(&mut ring, &entries, 0)?;
    equal(
        "one more than the queue has room for",
        run(&mut ring, &[request(&set, 64, fill)], 1)?,
        vec![(64, refused(Errno::EAGAIN))],
    )?;
    let all = cancel(&set, 99, set.idle.handle, 0, abi::CANCEL_ALL);
    let mut done = run(&mut ring, &[all], 65)?;
    done.sort_unstable();
    let mut want: Vec<_> = (0..64)
        .map(|i| (i, failed(abi::WC_STATUS_CANCELED)))
        .collect();
    want.push((99, 64));
    equal("the others are canceled", done, want)?;

    let mut plain = SmallUring::new(8).map_err(because("making a ring"))?;
    let cmd = opcode::UringCmd16::new(types::Fd(fd), abi::URING_REQUEST);
    let got = plain.run(&cmd.build()).map_err(because("running"))?;
    equal(
        "a request in an entry of 64 bytes",
        got,
        refused(Errno::EINVAL),
    )?;
    let arg = abi::UringBatch {
        wrs: area.at(0),
        nr_wrs: 1,
        wr_size: abi::Wr::SIZE as u16,
        flags: 0,
    };
    let mut cmd = [0; 16];
    cmd.copy_from_slice(&bytes(&arg));
    let entry = opcode::UringCmd16::new(types::Fd(fd), abi::URING_BATCH).cmd(cmd);
    let got = plain.run(&entry.build()).map_err(because("running"))?;
    equal("a batch in one", got, 0)?;
    set.works(2)
}

fn statuses() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let wrong = abi::Wr {
        rkey: set.grant.rkey ^ 0x5500,
        ..set.write()
    };
    let done = full(
        &mut ring,
        &[
            request(&set, 1, set.write()),
            request(&set, 2, wrong),
            request(&set, 3, set.write()),
        ],
        3,
    )?;
    let want = vec![
        (1, 0, 0, 0),
        (2, FAILED, 0, failure(10, 0)),
        (3, FAILED, 0, failure(FLUSHED, 0)),
    ];
    let what = "a write with a wrong key, and those around it";
    equal(what, without_vendor(done), want)
}

fn order() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    for round in 0..8 {
        let entries: Vec<_> = (0..60).map(|i| request(&set, i, set.write())).collect();
        let want: Vec<_> = (0..60).map(|i| (i, 0)).collect();
        let done = run(&mut ring, &entries, 60)?;
        equal(format!("round {round}"), done, want)?;
    }
    Ok(())
}

// --- batches ------------------------------------------------------------------------

fn batches() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let numbered = |wr: abi::Wr, user_data| abi::Wr { user_data, ..wr };
    let area = array(
        &(0..60)
            .map(|i| numbered(set.write(), i))
            .collect::<Vec<_>>(),
    )?;
    let done = full(&mut ring, &[batch(&set, 1, &area, 60, 0)], 1)?;
    equal("sixty writes", done, vec![(1, 60, 0, 0)])?;
    equal("make no entries in the ring", set.ring.reap().len(), 0)?;

    let done = run(&mut ring, &[batch(&set, 2, &area, 60, abi::URING_RING)], 1)?;
    equal("sixty more", done, vec![(2, 60)])?;
    let numbers: Vec<_> = set.wait(60)?.iter().map(|c| c.user_data).collect();
    equal("with entries", numbers, (0..60).collect())?;
    let silent = abi::Wr {
        flags: 0,
        ..set.write()
    };
    let area = array(&[silent, silent, set.write()])?;
    let done = run(&mut ring, &[batch(&set, 3, &area, 3, abi::URING_RING)], 1)?;
    equal("silent ones", done, vec![(3, 3)])?;
    equal("make none", set.wait(1)?.len(), 1)?;
    drained(&set, set.a.handle)?;
    equal("make none later", set.ring.reap().len(), 0)?;

    let area = array(&[abi::Wr {
        opcode: abi::WR_RDMA_READ,
        sge: set.sge(3 * PAGE as u64, 21),
        ..set.write()
    }])?;
    let done = full(&mut ring, &[batch(&set, 4, &area, 1, 0)], 1)?;
    let want = vec![(4, 21, 0, 0)];
    equal("one is as that request", done, want)?;

    // Receives stay under way: a batch completes when all of it has.
    let area = array(&[recv(&set), recv(&set), set.write()])?;
    run(&mut ring, &[batch(&set, 5, &area, 3, 0)], 0)?;
    let sends = array(&[send(&set)])?;
    equal(
        "the first of two is received",
        run(&mut ring, &[batch(&set, 6, &sends, 1, 0)], 1)?,
        vec![(6, 0)],
    )?;
    let mut done = run(&mut ring, &[batch(&set, 7, &sends, 1, 0)], 2)?;
    done.sort_unstable();
    equal("and the second", done, vec![(5, 3), (7, 0)])?;

    // With entries in the ring of the queue it completes when it is posted.
    let area = array(&[recv(&set), recv(&set)])?;
    let done = full(&mut ring, &[batch(&set, 9, &area, 2, abi::URING_RING)], 1)?;
    equal("two receives are posted", done, vec![(9, 2, 0, 0)])?;
    let all = cancel(&set, 10, set.b.handle, 0, abi::CANCEL_ALL);
    equal("and under way", run(&mut ring, &[all], 1)?, vec![(10, 2)])?;
    let statuses: Vec<_> = set.wait(2)?.iter().map(|c| c.status).collect();
    let canceled = abi::WC_STATUS_CANCELED;
    equal("and end in the ring", statuses, vec![canceled, canceled])?;
    let nobodys = abi::Wr {
        qp: 0,
        ..set.write()
    };
    let area = array(&[set.write(), nobodys])?;
    for flags in [0, abi::URING_RING] {
        let done = full(&mut ring, &[batch(&set, 11, &area, 2, flags)], 1)?;
        let want = vec![(11, refused(Errno::ENOENT), 0, failure(0, 1))];
        equal("a refusal names the request", done, want)?;
    }
    drained(&set, set.a.handle)?;
    let statuses: Vec<_> = set.ring.reap().iter().map(|c| c.status).collect();
    equal("the one before it completes in the ring", statuses, vec![0])?;

    let wrong = abi::Wr {
        rkey: set.grant.rkey ^ 0x5500,
        ..set.write()
    };
    let area = array(&[set.write(), set.write(), wrong, set.write(), set.write()])?;
    let done = full(&mut ring, &[batch(&set, 8, &area, 5, 0)], 1)?;
    equal(
        "what failed first counts",
        without_vendor(done),
        vec![(8, FAILED, 0, failure(10, 2))],
    )
}

/// The parts of a batch end in another order than they were posted in.
fn batch_parts() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let sends = |timeout_ns| {
        let part = |user_data, timeout_ns| abi::Wr {
            user_data,
            ..timed(send(&set), timeout_ns)
        };
        array(&[part(0, 0), part(1, 0), part(2, timeout_ns)])
    };
    let receives: Vec<_> = (20..23).map(|i| request(&set, i, recv(&set))).collect();
    let received = |done: &[(u64, i32, u32, u64)]| done.iter().filter(|it| it.0 >= 20).count();
    let canceled = |index| failure(abi::WC_STATUS_CANCELED, index);

    // Without a receive, the peer accepts none of them.
    let area = sends(0)?;
    run(&mut ring, &[batch(&set, 1, &area, 3, 0)], 0)?;
    let done = run(&mut ring, &[cancel(&set, 10, set.a.handle, 2, 0)], 1)?;
    equal("the last one is canceled", done, vec![(10, 1)])?;
    let done = full(&mut ring, &receives, 4)?;
    equal("all messages arrive", received(&done), 3)?;
    let got = done.iter().find(|it| it.0 == 1).copied();
    equal(
        "the batch says which",
        got,
        Some((1, FAILED, 0, canceled(2))),
    )?;

    let area = sends(1)?;
    run(&mut ring, &[batch(&set, 2, &area, 3, 0)], 0)?;
    let end = Instant::now() + hang();
    while set.file.query(set.a.handle)?.sends_in_flight != 3 {
        check("they are not posted", Instant::now() < end)?;
    }
    let first = cancel(&set, 11, set.a.handle, 0, 0);
    let done = run(&mut ring, &[first], 1)?;
    equal("the first one is canceled", done, vec![(11, 1)])?;
    let done = full(&mut ring, &receives, 4)?;
    equal("all of those arrive", received(&done), 3)?;
    let got = done.iter().find(|it| it.0 == 2).copied();
    equal(
        "of two failures the lower index counts",
        got,
        Some((2, FAILED, 0, canceled(0))),
    )?;

    // The reference that the parts share goes from the last one to older ones, as those are canceled.
    let area = sends(0)?;
    run(&mut ring, &[batch(&set, 4, &area, 3, 0)], 0)?;
    for index in [2, 1] {
        let one = cancel(&set, 30 + index, set.a.handle, index, 0);
        let done = run(&mut ring, &[one], 1)?;
        equal("one more is canceled", done, vec![(30 + index, 1)])?;
    }
    // The same three once more: the first ones of both batches are canceled.
    run(&mut ring, &[batch(&set, 5, &area, 3, 0)], 0)?;
    let both = cancel(&set, 33, set.a.handle, 0, 0);
    let mut done = full(&mut ring, &[both], 2)?;
    done.sort_unstable();
    let end = |batch| (batch, FAILED, 0, canceled(0));
    let want = vec![end(4), (33, 2, 0, 0)];
    equal("the batch without any other ends", done, want)?;
    let done = full(&mut ring, &receives, 3)?;
    equal("its messages arrive", received(&done), 3)?;
    let done = full(&mut ring, &receives, 4)?;
    equal("those of the other arrive", received(&done), 3)?;
    let got = done.iter().find(|it| it.0 == 5).copied();
    equal("which ends with them", got, Some(end(5)))?;

    for number in [6, 7] {
        run(&mut ring, &[batch(&set, number, &area, 3, 0)], 0)?;
    }
    let all = cancel(&set, 34, set.a.handle, 0, abi::CANCEL_ALL);
    let mut done = full(&mut ring, &[all], 3)?;
    done.sort_unstable();
    let want = vec![end(6), end(7), (34, 6, 0, 0)];
    equal("two batches are canceled, and each says which", done, want)?;
    let done = full(&mut ring, &receives, 3)?;
    equal("the messages of one arrive", received(&done), 3)?;
    let done = full(&mut ring, &receives, 3)?;
    equal("and those of the other", received(&done), 3)?;

    // Each part gives its place back: there is room for a full queue, again and again.
    drained(&set, set.a.handle)?;
    let area = array(&vec![set.write(); 60])?;
    for round in 0..20 {
        let done = run(&mut ring, &[batch(&set, 3, &area, 60, 0)], 1)?;
        equal(format!("round {round}"), done, vec![(3, 60)])?;
    }
    set.works(4)
}

// --- what does not wait for the device ------------------------------------------------

fn cancels() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let entries: Vec<_> = (0..8).map(|i| request(&set, i, recv(&set))).collect();
    run(&mut ring, &entries, 0)?;
    let mut done = run(&mut ring, &[cancel(&set, 99, set.b.handle, 3, 0)], 2)?;
    done.sort_unstable();
    let canceled = failed(abi::WC_STATUS_CANCELED);
    equal("one of eight", done, vec![(3, canceled), (99, 1)])?;
    equal("the device has all", in_flight(&set, set.b.handle)?, (0, 8))?;
    let sends: Vec<_> = (10..14).map(|i| request(&set, i, send(&set))).collect();
    let mut done = run(&mut ring, &sends, 7)?;
    done.sort_unstable();
    let got: Vec<_> = done.iter().map(|it| it.0).collect();
    equal("its message is lost", got, vec![0, 1, 2, 10, 11, 12, 13])?;
    let late: Vec<_> = (20..22)
        .map(|i| {
            let timeout_ns = if i == 20 { 20_000_000 } else { 0 };
            request(&set, i, timed(recv(&set), timeout_ns))
        })
        .collect();
    let done = run(&mut ring, &late, 1)?;
    equal(
        "one times out",
        done,
        vec![(20, failed(abi::WC_STATUS_TIMEOUT))],
    )?;

    let area = array(&[recv(&set), recv(&set)])?;
    run(&mut ring, &[batch(&set, 30, &area, 2, 0)], 0)?;
    let mut done = run(
        &mut ring,
        &[cancel(&set, 98, set.b.handle, 0, abi::CANCEL_ALL)],
        7,
    )?;
    done.sort_unstable();
    let want: Vec<_> = [4, 5, 6, 7, 21, 30]
        .into_iter()
        .map(|i| (i, canceled))
        .collect();
    equal("all of them, and a batch", &done[..6], &want[..])?;
    equal("that is counted by requests", done[6], (98, 7))?;
    // The call sees them, too.
    run(&mut ring, &[request(&set, 40, recv(&set))], 0)?;
    let out = set.file.accepted(&abi::Cancel {
        queue: set.b.handle,
        user_data: 40,
        ..<abi::Cancel as crate::file::Command>::new()
    })?;
    equal("by the call", out.canceled, 1)?;
    equal("is told", run(&mut ring, &[], 1)?, vec![(40, canceled)])?;
    for i in 0..10 {
        run(&mut ring, &[request(&set, 50 + i, send(&set))], 1)?;
    }
    drained(&set, set.b.handle)
}

fn links() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    run(
        &mut ring,
        &[request(&set, 1, recv(&set)), request(&set, 2, recv(&set))],
        0,
    )?;
    let linked = |entry: Entry128| entry.flags(Flags::IO_LINK);
    let done = run(
        &mut ring,
        &[
            linked(request(&set, 3, set.write())),
            request(&set, 4, send(&set)),
        ],
        3,
    )?;
    let mut got = done.clone();
    got.sort_unstable();
    equal("a write, then a send", got, vec![(1, 64), (3, 0), (4, 0)])?;
    let at = |number| done.iter().position(|it| it.0 == number);
    check("the send is first", at(3) < at(4))?;
    let wrong = abi::Wr {
        rkey: set.grant.rkey ^ 0x5500,
        ..set.write()
    };
    let mut done = run(
        &mut ring,
        &[
            linked(request(&set, 5, wrong)),
            request(&set, 6, send(&set)),
        ],
        3,
    )?;
    done.sort_unstable();
    // The peer's queue pair fails with it, and its receive with that.
    let want = vec![(2, failed(FLUSHED)), (5, failed(10)), (6, CANCELED)];
    equal("a write that fails, and no send", done, want)
}

fn several() -> Outcome {
    let (set, mut first) = (Set::new()?, ring()?);
    let (other, mut second) = (Set::new()?, ring()?);
    let fixed = |set: &Set, number: u64, index: u32| {
        let mut cmd = [0; 80];
        let wr = abi::Wr {
            user_data: number,
            ..set.write()
        };
        cmd[..size_of::<abi::Wr>()].copy_from_slice(&bytes(&wr));
        let entry = opcode::UringCmd80::new(types::Fixed(index), abi::URING_REQUEST);
        entry.cmd(cmd).build().user_data(number)
    };
    let files = [set.file.fd().number(), other.file.fd().number()];
    first
        .register(&files)
        .map_err(because("registering files"))?;
    let mut done = run(&mut first, &[fixed(&set, 1, 0), fixed(&other, 2, 1)], 2)?;
    done.sort_unstable();
    equal("one ring, two registered files", done, vec![(1, 0), (2, 0)])?;
    for ring in [&mut first, &mut second] {
        let entries: Vec<_> = (0..20).map(|i| request(&set, i, set.write())).collect();
        let want: Vec<_> = (0..20).map(|i| (i, 0)).collect();
        equal("two rings, one file", run(ring, &entries, 20)?, want)?;
    }
    // A receive by one ring, of what another one sends, and the call at the same time.
    run(&mut first, &[request(&set, 3, recv(&set))], 0)?;
    equal(
        "sent",
        run(&mut second, &[request(&set, 4, send(&set))], 1)?,
        vec![(4, 0)],
    )?;
    equal("received", run(&mut first, &[], 1)?, vec![(3, 64)])?;
    set.works(3)?;
    // One by a worker of io_uring.
    let aside = request(&set, 5, set.write()).flags(Flags::ASYNC);
    equal("by a worker", run(&mut first, &[aside], 1)?, vec![(5, 0)])
}

// --- the end of things ------------------------------------------------------------------

/// A ring goes while its requests are under way.
fn ring_exit() -> Outcome {
    let set = Set::new()?;
    let area = array(&[recv(&set), recv(&set), recv(&set)])?;
    for turn in 0..4u32 {
        let mut ring = ring()?;
        let entries: Vec<_> = (0..4).map(|i| request(&set, i, recv(&set))).collect();
        run(&mut ring, &entries, 0)?;
        run(&mut ring, &[batch(&set, 9, &area, 3, 0)], 0)?;
        drop(ring);
        equal(
            "the device keeps them",
            in_flight(&set, set.b.handle)?,
            (0, 7 * (turn + 1)),
        )?;
    }
    for _ in 0..28 {
        set.file.post(&[send(&set)])?;
    }
    let sends = set.wait(28)?;
    let lost = sends.iter().all(|c| (c.status, c.qp) == (0, set.a.handle));
    check("their messages are lost", lost)?;
    drained(&set, set.b.handle)
}

/// Completion, deadline, cancel and the reset of the queue pair, all at the same time: each request
/// completes once.
fn races() -> Outcome {
    const COUNT: u64 = 24;
    let (set, mut ring) = (Set::new()?, ring()?);
    let stop = AtomicBool::new(false);
    let cancels = [set.a.handle, set.b.handle].map(|qp| cancel(&set, 0, qp, 0, abi::CANCEL_ALL));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Outcome {
            let mut ring = self::ring()?;
            while !stop.load(Ordering::Relaxed) {
                let done = run(&mut ring, &cancels, 2)?;
                check(format!("{done:?}"), done.iter().all(|it| it.1 >= 0))?;
                std::thread::sleep(Duration::from_micros(700));
            }
            Ok(())
        });
        let mut dice = Dice::new(1);
        let result: Outcome = (|| {
            for round in 0..150 {
                let entries: Vec<_> = (0..COUNT)
                    .map(|i| {
                        let timeout_ns = [0, 1, 1_000_000][dice.next() as usize % 3];
                        let wr = if i % 2 == 0 { recv(&set) } else { send(&set) };
                        request(&set, i, timed(wr, timeout_ns))
                    })
                    .collect();
                for entry in &entries {
                    check("no room", ring.push(entry))?;
                }
                ring.submit().map_err(because("submitting"))?;
                if round % 8 == 7 {
                    for (qp, peer) in [(set.a, set.b), (set.b, set.a)] {
                        let reset = set.file.modify_args(qp.handle, abi::QPS_RESET, 0);
                        set.file.accepted(&reset)?;
                        set.file.bring(qp.handle, abi::QPS_RTS, peer.qp_num)?;
                    }
                }
                let mut done = run(&mut ring, &[], COUNT as usize)?;
                done.sort_unstable();
                let numbers: Vec<_> = done.iter().map(|it| it.0).collect();
                equal(format!("round {round}"), numbers, (0..COUNT).collect())?;
                for (_, res) in done {
                    check(format!("res {res}"), documented(res))?;
                }
            }
            equal("more", ring.reap().len(), 0)
        })();
        stop.store(true, Ordering::Relaxed);
        let other = other.join().unwrap_or_else(|_| Err("a panic".to_owned()));
        result.and(other)
    })?;
    for qp in [set.a, set.b] {
        set.file
            .accepted(&set.file.modify_args(qp.handle, abi::QPS_RESET, 0))?;
        equal("with the device", in_flight(&set, qp.handle)?, (0, 0))?;
    }
    equal("more", ring.reap().len(), 0)
}

/// A thread that waits for a completion.
struct Waiter<'scope> {
    thread: ScopedJoinHandle<'scope, Outcome<Result<(), Errno>>>,
    id: mpsc::Receiver<i32>,
}

impl<'scope> Waiter<'scope> {
    fn start<'env>(scope: &'scope Scope<'scope, 'env>, file: &'env Fd, cq: u32) -> Self {
        let (tell, id) = mpsc::channel();
        let thread = scope.spawn(move || {
            let area = array(&[abi::Submit {
                cq,
                min_complete: 1,
                timeout_ns: hang().as_nanos() as u64,
                ..abi::Submit::new()
            }])?;
            tell.send(thread_id()).map_err(because("a channel"))?;
            let result = file.ioctl(abi::Submit::NR, Place::In(&area, 0));
            let out: abi::Submit = value(&area.get(0, size_of::<abi::Submit>()));
            Ok(result.and(match out.wait_error {
                0 => Ok(()),
                error => Err(Errno::from_raw(-error)),
            }))
        });
        Self { thread, id }
    }

    /// Returns when the thread sleeps.
    fn sleeps(&self) -> Outcome {
        let id = self.id.recv().map_err(because("a channel"))?;
        let end = Instant::now() + hang();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"))
                .map_err(because("a thread's state"))?;
            if stat.contains(") S ") {
                return Ok(());
            }
            check("a thread does not wait", Instant::now() < end)?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(self) -> Outcome<Result<(), Errno>> {
        let panicked = |_| Err("a panic".to_owned());
        self.thread.join().unwrap_or_else(panicked)
    }
}

/// A queue pair goes, and a completion queue that a thread waits for.
fn destroyed() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let entries: Vec<_> = (0..4).map(|i| request(&set, i, recv(&set))).collect();
    run(&mut ring, &entries, 0)?;
    let own = set.file.cq(16)?;
    std::thread::scope(|scope| {
        // A thread that waits for the queue holds it.
        let waiter = Waiter::start(scope, set.file.fd(), own.handle);
        let slept = waiter.sleeps();
        set.file.destroy(own.handle)?;
        slept?;
        equal("a wait", waiter.end()?, Err(Errno::ENOENT))
    })?;
    set.file.destroy(set.b.handle)?;
    let want: Vec<_> = (0..4).map(|i| (i, failed(FLUSHED))).collect();
    equal("requests", run(&mut ring, &[], 4)?, want)
}

// --- hostile --------------------------------------------------------------------------------

/// What may become of a request that nobody knows.
const DOCUMENTED: [Errno; 12] = [
    Errno::EINVAL,
    Errno::ENOENT,
    Errno::EBADFD,
    Errno::ENOTCONN,
    Errno::E2BIG,
    Errno::EFAULT,
    Errno::EMSGSIZE,
    Errno::ERANGE,
    Errno::EXDEV,
    Errno::EOPNOTSUPP,
    Errno::EAGAIN,
    Errno::EPERM,
];

/// Whether that may be the result of one.
fn documented(res: i32) -> bool {
    res >= 0
        || res == FAILED
        || (failed(1)..=failed(abi::WC_STATUS_CANCELED)).contains(&res)
        || DOCUMENTED.iter().any(|errno| res == refused(*errno))
}

/// A thread writes over the entries of an io_uring, and over a completion ring.
fn hostile_rings(sqpoll: bool) -> Outcome {
    const ENTRIES: usize = 8;
    let (set, other) = (Set::new()?, Set::new()?);
    let mut ring = Uring::new(ENTRIES as u32, |builder| {
        if sqpoll {
            builder.setup_sqpoll(100);
        }
    })
    .map_err(because("making a ring"))?;
    let entries = ring.map_entries(ENTRIES);
    let mut entries = entries.map_err(because("mapping the entries"))?;
    let completions = set.file.fd().share(set.cq.mmap_offset, set.cq.mmap_size);
    let mut completions = completions.map_err(because("mapping the ring"))?;
    let (entries, completions) = (Racing::of(&mut entries), Racing::of(&mut completions));
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice::new(1);
            while !stop.load(Ordering::Relaxed) {
                let state = dice.next();
                if state & 3 == 0 {
                    let word = (state >> 32) as u32 & 0x8000_03ff;
                    let at = (state >> 8) as usize % 32 * 4;
                    completions.put(at, &word.to_ne_bytes());
                } else {
                    // Only what is ours to read: the command of an entry.
                    let at = (state >> 8) as usize % ENTRIES * 128 + 48;
                    entries.put(at + (state >> 16) as usize % 80, &[(state >> 40) as u8]);
                }
                std::hint::spin_loop();
            }
        });
        let result: Outcome = (|| {
            for round in 0..1500u64 {
                while !ring.push(&request(&set, round, set.write())) {
                    ring.submit().map_err(because("submitting"))?;
                }
                ring.submit().map_err(because("submitting"))?;
                for (_, res, ..) in ring.reap() {
                    check(format!("res {res}"), documented(res))?;
                }
                let (got, out) = set.file.submit(
                    &[set.write()],
                    abi::Submit {
                        cq: set.cq.handle,
                        min_complete: 1,
                        timeout_ns: 1000,
                        ..<abi::Submit as crate::file::Command>::new()
                    },
                )?;
                if let Err(errno) = got {
                    check(format!("{errno:?}"), DOCUMENTED.contains(&errno))?;
                }
                let error = Errno::from_raw(-out.wait_error);
                // EINTR: io_uring has something for the thread to do.
                let waited = [Errno::ETIME, Errno::EINTR].contains(&error);
                check(
                    format!("the wait is {error:?}"),
                    out.wait_error == 0 || waited,
                )?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        result
    });
    result?;
    other.works(4)
}

/// A thread writes over the requests of a batch while the kernel takes them.
fn hostile() -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let mut area = array(&vec![set.write(); 32])?;
    let good = bytes(&set.write());
    let size = good.len();
    let stop = AtomicBool::new(false);
    let area = Racing::new(&mut area);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice::new(1);
            while !stop.load(Ordering::Relaxed) {
                let state = dice.next();
                let at = state as usize % (32 * size);
                if state & 0x700 == 0 {
                    area.put(at / size * size, &good);
                } else {
                    area.put(at, &[(state >> 32) as u8]);
                }
            }
        });
        let result: Outcome = (|| {
            for round in 0..400u64 {
                let by_call = round % 4 == 3;
                if by_call {
                    let (got, _) = set.file.call(&abi::Submit {
                        wrs: area.at(0),
                        nr_wrs: 32,
                        wr_size: abi::Wr::SIZE,
                        ..<abi::Submit as crate::file::Command>::new()
                    });
                    if let Err(errno) = got {
                        check(format!("{errno:?}"), DOCUMENTED.contains(&errno))?;
                    }
                    set.ring.reap();
                } else {
                    check(
                        "no room",
                        ring.push(&batch_at(&set, round, area.at(0), 32, 0)),
                    )?;
                    ring.submit().map_err(because("submitting"))?;
                    for (_, res, ..) in ring.reap() {
                        check(format!("res {res}"), documented(res))?;
                    }
                }
                for qp in [set.a, set.b] {
                    if round % 16 == 15 || set.file.query(qp.handle)?.attr.qp_state == abi::QPS_ERR
                    {
                        set.file
                            .accepted(&set.file.modify_args(qp.handle, abi::QPS_RESET, 0))?;
                        let peer = if qp.handle == set.a.handle {
                            set.b
                        } else {
                            set.a
                        };
                        set.file.bring(qp.handle, abi::QPS_RTS, peer.qp_num)?;
                    }
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        result
    });
    result?;
    drop(ring);
    for (qp, peer) in [(set.a, set.b), (set.b, set.a)] {
        set.file
            .accepted(&set.file.modify_args(qp.handle, abi::QPS_RESET, 0))?;
        set.file.bring(qp.handle, abi::QPS_RTS, peer.qp_num)?;
    }
    set.ring.reap();
    set.works(9)
}

// --- what the suite runs -------------------------------------------------------------------

/// Has all kinds of requests under way, and waits until there is a file of the name in `ULP_GO`;
/// then says how each ended.
fn hold(report: &mut Report, sqpoll: bool) -> Outcome {
    let set = Set::new()?;
    let mut ring = Uring::new(256, |builder| {
        if sqpoll {
            builder.setup_sqpoll(100);
        }
    })
    .map_err(because("making a ring"))?;
    let area = array(&[recv(&set), recv(&set), recv(&set)])?;
    let mut entries: Vec<_> = (0..16).map(|i| request(&set, i, recv(&set))).collect();
    entries.push(batch(&set, 16, &area, 3, 0));
    entries.push(batch(&set, 17, &area, 3, abi::URING_RING));
    entries.push(request(&set, 18, recv(&set)).flags(Flags::ASYNC));
    for entry in &entries {
        check("the ring is full", ring.push(entry))?;
    }
    ring.submit().map_err(because("submitting"))?;
    let end = Instant::now() + hang();
    while in_flight(&set, set.b.handle)?.1 != 23 {
        check("they are not posted", Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("holding");
    std::io::stdout().flush().map_err(because("writing"))?;
    let go = std::env::var_os("ULP_GO").ok_or("no ULP_GO")?;
    let end = Instant::now() + hang();
    while !std::path::Path::new(&go).exists() {
        check("nobody says go", Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    report.case("each completes once, flushed", || {
        let mut done = run(&mut ring, &[], 19)?;
        done.sort_unstable();
        let numbers: Vec<_> = done.iter().map(|it| it.0).collect();
        equal("numbers", numbers, (0..19).collect())?;
        for (number, res) in done {
            // The entry for the ring of the queue completed when it was posted.
            let want = if number == 17 { 3 } else { failed(FLUSHED) };
            equal(format!("the result of {number}"), res, want)?;
        }
        equal("more", ring.reap().len(), 0)?;
        equal(
            "a husk",
            run(&mut ring, &[request(&set, 30, recv(&set))], 1)?,
            vec![(30, refused(Errno::ENODEV))],
        )
    });
    Ok(())
}

/// Posts and reaps with no system call, between two lines of output.
fn sqpoll(_report: &mut Report) -> Outcome {
    let set = Set::new()?;
    let mut ring = Uring::new(256, |builder| {
        builder.setup_sqpoll(20_000);
    })
    .map_err(because("making a ring"))?;
    let entry = request(&set, 1, set.write());
    let turn = |ring: &mut Uring, count: usize| -> Outcome {
        let mut left = 0;
        let mut posted = 0;
        let mut spins = 0u64;
        while posted < count || left > 0 {
            if posted < count && left < 32 && ring.push(&entry) {
                posted += 1;
                left += 1;
                continue;
            }
            for (_, res, ..) in ring.reap() {
                equal("res", res, 0)?;
                left -= 1;
            }
            spins += 1;
            check("it takes too long", spins < 2_000_000_000)?;
            std::hint::spin_loop();
        }
        Ok(())
    };
    check("no room", ring.push(&entry))?;
    ring.submit().map_err(because("submitting"))?;
    run(&mut ring, &[], 1)?;
    turn(&mut ring, 100)?;
    println!("begin");
    turn(&mut ring, 1000)?;
    println!("end");
    Ok(())
}

/// Posts 1,000 writes by one way in, between two lines in the file that `ULP_MARKER` names.
fn thousand(how: &str) -> Outcome {
    let (set, mut ring) = (Set::new()?, ring()?);
    let wrs = vec![set.write(); 10];
    let area = array(&wrs)?;
    let one: Vec<_> = (0..10).map(|i| request(&set, i, set.write())).collect();
    let all = [batch(&set, 1, &area, 10, 0)];
    let submit = abi::Submit {
        wrs: area.at(0),
        nr_wrs: 10,
        wr_size: abi::Wr::SIZE,
        cq: set.cq.handle,
        min_complete: 10,
        timeout_ns: 10_000_000_000,
        ..<abi::Submit as crate::file::Command>::new()
    };
    let mark = |what: &str| match std::env::var_os("ULP_MARKER") {
        Some(path) => std::fs::write(path, what).map_err(because("marking")),
        None => Ok(()),
    };
    let mut turn = || -> Outcome {
        match how {
            "call" => {
                set.file.accepted(&submit)?;
                equal("completions", set.ring.reap().len(), 10)
            }
            "request" => run(&mut ring, &one, 10).map(drop),
            _ => run(&mut ring, &all, 1).map(drop),
        }
    };
    for _ in 0..10 {
        turn()?;
    }
    mark("begin")?;
    for _ in 0..100 {
        turn()?;
    }
    mark("end")
}

/// io_uring is disabled: a clear error, and the call works.
fn off() -> Outcome {
    let error = Uring::new(8, |_| ())
        .err()
        .and_then(|error| error.raw_os_error());
    equal("making a ring", error, Some(libc::EPERM))?;
    Set::new()?.works(5)
}

/// Runs all cases that need nothing but a device.
pub fn suite(report: &mut Report) {
    let kinds: [(&str, Setup); 4] = [
        ("a plain ring", |_| ()),
        ("one that defers its work", |builder| {
            builder.setup_single_issuer().setup_defer_taskrun();
        }),
        ("one that is told of work", |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        }),
        ("one that polls", |builder| {
            builder.setup_sqpoll(100);
        }),
    ];
    for (name, set) in kinds {
        report.case(format!("uring: every operation, by {name}"), || {
            let mut ring = Uring::new(64, set).map_err(because("making a ring"))?;
            operations(&mut ring)
        });
    }
    report.case("uring: what is refused", refusals);
    report.case("uring: what fails", statuses);
    report.case("uring: the order of completions", order);
    report.case("uring: batches", batches);
    report.case("uring: parts of a batch", batch_parts);
    report.case("uring: cancel and deadlines", cancels);
    report.case("uring: linked entries", links);
    report.case("uring: ends that race", races);
    report.case("uring: several rings and files", several);
    report.case("uring: a ring that goes", ring_exit);
    report.case("uring: objects that go", destroyed);
    report.case(
        "uring: requests that change while the kernel reads them",
        hostile,
    );
    for sqpoll in [false, true] {
        let name = format!("uring: rings that a thread overwrites, polled: {sqpoll}");
        report.case(name, || hostile_rings(sqpoll));
    }
}

/// The hostile cases again and again, for `ULP_RING_SECONDS`: says how often.
fn for_minutes() -> Outcome {
    let seconds = std::env::var("ULP_RING_SECONDS").ok();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(30);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < end {
        hostile()?;
        hostile_rings(false)?;
        hostile_rings(true)?;
        rounds += 1;
    }
    println!("# {rounds} rounds in {seconds} s");
    Ok(())
}

/// Runs one of the parts that the suite disturbs.
pub fn part(report: &mut Report, what: &str) {
    let done = match what {
        "hold" => hold(report, false),
        "hold-sqpoll" => hold(report, true),
        "sqpoll" => sqpoll(report),
        "off" => off(),
        "call" | "request" | "batch" => thousand(what),
        "hostile" => for_minutes(),
        _ => Err("no such part".to_owned()),
    };
    report.case(format!("uring: {what}"), || done);
}
