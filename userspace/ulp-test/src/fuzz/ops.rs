// SPDX-License-Identifier: MIT OR Apache-2.0

//! The operations: each makes something mostly right out of what there is, and issues it.

use super::actor::{Actor, Mapped, ARGS, DATA};
use super::world::{lock, Kind, Object, Open, Seat};
use crate::file::{Command, INIT, REMOTE, RTR, RTS};
use crate::report::{hang, patience};
use crate::sys::hostile::{dma_buf, eventfd, fork_child, Epoll};
use crate::sys::{abi, arg, bytes, PAGE};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// An operation.
pub type Op = for<'a, 'w> fn(&'a mut Actor<'w>);

/// All of them: name, how often, what it does.
pub const OPS: &[(&str, u32, Op)] = &[
    ("query", 12, query),
    ("attach", 2, attach),
    ("no_command", 2, no_command),
    ("pd", 6, pd),
    ("cq", 12, cq),
    ("qp", 15, qp),
    ("srq", 9, srq),
    ("srq_modify", 6, srq_modify),
    ("ah", 9, ah),
    ("buffer", 12, buffer),
    ("register", 9, register),
    ("import", 1, import),
    ("grant", 15, grant),
    ("modify", 18, modify),
    ("pair", 6, pair),
    ("query_object", 24, query_object),
    ("destroy", 24, destroy),
    ("submit", 120, submit),
    ("write", 60, write),
    ("cancel", 12, cancel),
    ("cq_eventfd", 6, cq_eventfd),
    ("map", 12, map),
    ("unmap", 6, unmap),
    ("remap", 6, remap),
    ("ring_reap", 60, ring_reap),
    ("ring_scribble", 24, ring_scribble),
    ("bytes", 20, memory),
    ("shared", 12, shared),
    ("read", 10, read),
    ("poll", 10, poll),
    ("epoll", 6, epoll),
    ("fdinfo", 1, fdinfo),
    ("listen", 3, listen),
    ("get_request", 3, get_request),
    ("accept", 2, accept),
    ("reject", 2, reject),
    ("connect", 1, connect),
    ("wait for a connection", 1, wait_for_connection),
    ("meet", 1, meet),
    ("disconnect", 2, disconnect),
    ("fork", 1, fork),
    ("reopen", 1, reopen),
    ("dup", 1, dup),
    ("uring", 60, super::rings::entries),
    ("uring_end", 1, super::rings::end),
];

/// What the calls with numbers that are no command's are counted as.
pub const NO_COMMAND: &str = "a command that is none";

/// Those that neither make nor destroy anything: how many objects there are does not depend on how
/// often they are done, and they take the least time.
pub const QUICK: &[&str] = &[
    "query",
    "no_command",
    "srq_modify",
    "modify",
    "query_object",
    "submit",
    "write",
    "cancel",
    "cq_eventfd",
    "ring_reap",
    "ring_scribble",
    "bytes",
    "shared",
    "read",
    "poll",
    "epoll",
    "uring",
];

const PORTS: u16 = 18600;

// --- what there is -----------------------------------------------------------------

fn query(a: &mut Actor<'_>) {
    let open = a.file();
    let port = if a.dice.one_in(8) { a.dice.any32() } else { 1 };
    match a.dice.below(6) {
        0 => a.issue(&open, abi::Query::new()),
        1 => {
            let list = abi::DeviceList {
                entries: a.args.at(PAGE),
                entry_size: abi::DeviceEntry::SIZE - a.dice.below(2) as u32,
                capacity: a.dice.below(4) as u32,
                ..abi::DeviceList::new()
            };
            a.issue(&open, list);
        }
        2 => a.issue(&open, abi::DeviceQuery::new()),
        3 => {
            let arg = arg!(PortQuery, port);
            a.issue(&open, arg);
        }
        4 => {
            // A thousand entries take their time to look through.
            let size = abi::GidEntry::SIZE + 8 * a.dice.below(3) as u32;
            let arg = abi::GidQuery {
                entries: a.args.at(PAGE),
                entry_size: size,
                capacity: a.dice.below(8) as u32,
                port,
                ..abi::GidQuery::new()
            };
            a.issue(&open, arg);
        }
        _ => {
            let arg = abi::PkeyQuery {
                port,
                index: if a.dice.one_in(3) { a.dice.any32() } else { 0 },
                ..abi::PkeyQuery::new()
            };
            a.issue(&open, arg);
        }
    }
}

/// Attaches, and learns where the host is.
pub fn attach_file(a: &mut Actor<'_>, open: &Open) {
    let mut arg = abi::Attach::new();
    if a.spoil != 0 && a.dice.one_in(4) {
        let name = a
            .dice
            .of([&b"rxe1"[..], b"rxe2", b"rxe9", &[0xff; 64], b"../rxe1"]);
        arg.name[..name.len()].copy_from_slice(name);
    }
    let (Ok(()), out) = a.cmd(open, arg) else {
        return;
    };
    let mut seat = Seat {
        port: out.port,
        gid_index: out.gid_index,
        gid: [0; 16],
    };
    let spoil = std::mem::take(&mut a.spoil);
    let gids = abi::GidQuery {
        entries: a.args.at(PAGE),
        entry_size: abi::GidEntry::SIZE,
        capacity: 16,
        port: out.port,
        ..abi::GidQuery::new()
    };
    let (result, got) = a.cmd(open, gids);
    a.spoil = spoil;
    let size = size_of::<abi::GidEntry>();
    for i in 0..got.count.min(16) as usize {
        let entry: abi::GidEntry = crate::sys::value(&a.args.get(PAGE + i * size, size));
        if result.is_ok() && entry.index == out.gid_index {
            seat.gid = entry.gid;
            lock(&a.world.seats)[open.host] = seat;
        }
    }
}

fn attach(a: &mut Actor<'_>) {
    let open = a.file();
    attach_file(a, &open);
}

fn no_command(a: &mut Actor<'_>) {
    let open = a.file();
    let numbers = [0x07, 0x0f, 0x1a, 0x23, 0x38, 0x46, 0x80, 0xff];
    let nr = match a.dice.below(3) {
        0 => (abi::IOC_MAGIC << 8) | a.dice.of(numbers),
        // The right number, as a command that carries a size; another magic.
        1 => abi::IOC_QUERY | 0xc018_0000,
        _ => 0xbe << 8,
    };
    let _ = a.cmd_as(&open, NO_COMMAND, nr, abi::Query::new());
}

// --- making objects --------------------------------------------------------------------

fn object(kind: Kind, handle: u32) -> Object {
    Object {
        kind,
        handle,
        at: 0,
        len: 0,
        number: 0,
    }
}

fn pd(a: &mut Actor<'_>) {
    let open = a.file();
    a.create(&open, abi::PdCreate::new(), |out| {
        object(Kind::Pd, out.handle)
    });
}

fn make_cq(a: &mut Actor<'_>, open: &Open, entries: u32) -> Option<Object> {
    let delivery = a.dice.below(4) as u32;
    let busy_poll_us = match delivery {
        abi::DELIVER_WORKQUEUE => a.dice.of([0, 0, 1, 50, 1000, 10_000]),
        // Refused, but for 0.
        _ => a.dice.of([0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    };
    let arg = arg!(CqCreate, entries, delivery, busy_poll_us);
    a.create(open, arg, |out| Object {
        at: out.mmap_offset,
        len: out.mmap_size,
        number: out.entries,
        ..object(Kind::Cq, out.handle)
    })
}

fn cq(a: &mut Actor<'_>) {
    let open = a.file();
    let entries = match a.dice.below(12) {
        0 => a.dice.any32() % 40_000,
        1 => 1,
        _ => a.dice.of([16, 64, 64, 128, 200, 256]),
    };
    make_cq(a, &open, entries);
}

fn depth(a: &mut Actor<'_>) -> u32 {
    match a.dice.below(16) {
        0 => a.dice.any32() % 20_000,
        1 => 0,
        _ => a.dice.of([1, 4, 16, 32, 64]),
    }
}

fn make_qp(a: &mut Actor<'_>, open: &Open, qp_type: u32) -> Option<Object> {
    let arg = abi::QpCreate {
        flags: u32::from(a.dice.one_in(4)),
        pd: a.handle(open, Kind::Pd),
        send_cq: a.handle(open, Kind::Cq),
        recv_cq: a.handle(open, Kind::Cq),
        srq: if a.dice.one_in(5) {
            a.handle(open, Kind::Srq)
        } else {
            0
        },
        qp_type,
        max_send_wr: depth(a),
        max_recv_wr: depth(a),
        max_send_sge: a.dice.below(9) as u32,
        max_recv_sge: a.dice.below(9) as u32,
        max_inline: a.dice.of([0, 16, 64, 512]),
        ..abi::QpCreate::new()
    };
    a.create(open, arg, |out| Object {
        number: out.qp_num,
        at: out.qp_type.into(),
        ..object(Kind::Qp, out.handle)
    })
}

fn qp_type(a: &mut Actor<'_>) -> u32 {
    match a.dice.below(16) {
        0 => a.dice.any32(),
        1..=4 => abi::QPT_UD,
        5..=7 => abi::QPT_UC,
        _ => abi::QPT_RC,
    }
}

fn qp(a: &mut Actor<'_>) {
    let open = a.file();
    let kind = qp_type(a);
    let Some(made) = make_qp(a, &open, kind) else {
        return;
    };
    if a.dice.one_in(4) {
        return;
    }
    let peers = lock(&a.world.peers).clone();
    let (peer, number) = a.dice.pick(&peers).unwrap_or((0, 0));
    for state in [abi::QPS_INIT, abi::QPS_RTR, abi::QPS_RTS] {
        step(a, &open, made, state, peer, number);
    }
}

fn srq(a: &mut Actor<'_>) {
    let open = a.file();
    let arg = abi::SrqCreate {
        pd: a.handle(&open, Kind::Pd),
        cq: a.handle(&open, Kind::Cq),
        max_wr: depth(a),
        max_sge: a.dice.below(6) as u32,
        limit: a.dice.below(3) as u32,
        ..abi::SrqCreate::new()
    };
    a.create(&open, arg, |out| object(Kind::Srq, out.handle));
}

fn srq_modify(a: &mut Actor<'_>) {
    let open = a.file();
    let arg = abi::SrqModify {
        srq: a.handle(&open, Kind::Srq),
        limit: if a.dice.one_in(4) {
            a.dice.any32()
        } else {
            a.dice.below(5) as u32
        },
        ..abi::SrqModify::new()
    };
    a.issue(&open, arg);
}

fn address(a: &mut Actor<'_>, host: usize, peer: usize) -> abi::AhAttr {
    let (own, other) = (a.seat(host), a.seat(peer));
    let mut ah = abi::AhAttr {
        dgid: other.gid,
        sgid_index: own.gid_index as u8,
        hop_limit: 64,
        port_num: own.port,
        is_global: 1,
        ..abi::AhAttr::default()
    };
    // An address that nobody has takes seconds to be looked for.
    match a.dice.below(400) {
        0 => ah.dgid[a.dice.below(16)] = a.dice.word() as u8,
        1 => ah.sgid_index = a.dice.word() as u8,
        2 => ah.flow_label = a.dice.any32(),
        3 => {
            ah.dmac = a.dice.word().to_ne_bytes().repeat(2)[..6]
                .try_into()
                .unwrap_or([0; 6])
        }
        4 => ah.sl = a.dice.word() as u8,
        5 => ah.is_global = 0,
        _ => (),
    }
    ah
}

fn ah(a: &mut Actor<'_>) {
    let open = a.file();
    let peer = a.dice.below(2);
    let arg = abi::AhCreate {
        pd: a.handle(&open, Kind::Pd),
        attr: address(a, open.host, peer),
        ..abi::AhCreate::new()
    };
    a.create(&open, arg, |out| object(Kind::Ah, out.handle));
}

fn make_buffer(a: &mut Actor<'_>, open: &Open, length: u64, page_size: u32) -> Option<Object> {
    let arg = abi::BufferCreate {
        pd: a.handle(open, Kind::Pd),
        node: if a.dice.one_in(8) { 0 } else { abi::NODE_ANY },
        length,
        page_size,
        ..abi::BufferCreate::new()
    };
    a.create(open, arg, |out| Object {
        at: out.mmap_offset,
        len: out.length,
        ..object(Kind::Buffer, out.handle)
    })
}

fn buffer(a: &mut Actor<'_>) {
    let open = a.file();
    let pages = match a.dice.below(16) {
        0 => a.dice.below(700),
        _ => a.dice.below(8) + 1,
    };
    let page_size = match a.dice.below(12) {
        0 => 1 << 21,
        1 => 1 << a.dice.below(32),
        2 => 4096,
        _ => 0,
    };
    make_buffer(a, &open, (pages * PAGE) as u64, page_size);
}

fn register(a: &mut Actor<'_>) {
    let open = a.file();
    let first = a.dice.below(DATA * PAGE);
    let most = DATA * PAGE - first + a.dice.below(16);
    let arg = abi::BufferRegister {
        flags: u32::from(a.dice.one_in(6)),
        pd: a.handle(&open, Kind::Pd),
        addr: a.data.at(first),
        length: (a.dice.below(most) + 1) as u64,
        ..abi::BufferRegister::new()
    };
    let len = arg.length;
    a.create(&open, arg, |out| Object {
        len,
        ..object(Kind::Buffer, out.handle)
    });
}

fn import(a: &mut Actor<'_>) {
    let open = a.file();
    let pages = a.dice.below(8) + 1;
    let made = dma_buf(pages);
    let fd = match a.dice.below(8) {
        0 => -1,
        1 => open.fd.number(),
        _ => made.as_ref().map_or(0, AsRawFd::as_raw_fd),
    };
    let arg = abi::BufferImport {
        flags: u32::from(a.dice.one_in(6)),
        pd: a.handle(&open, Kind::Pd),
        fd,
        offset: (a.dice.below(3) * PAGE) as u64,
        length: (a.dice.below(10) * PAGE) as u64,
        ..abi::BufferImport::new()
    };
    a.create(&open, arg, |out| Object {
        len: out.length,
        ..object(Kind::Buffer, out.handle)
    });
}

fn grant(a: &mut Actor<'_>) {
    let open = a.file();
    let buffer = a.one(&open, Kind::Buffer);
    let len = buffer.map_or(PAGE as u64, |buffer| buffer.len).max(1);
    let offset = if a.dice.one_in(3) {
        a.dice.below(len as usize) as u64
    } else {
        0
    };
    let mut arg = abi::GrantCreate {
        flags: a.dice.of([0, 0, 0, 1, 2, 3]),
        buffer: buffer.map_or(0, |buffer| buffer.handle),
        access: if a.dice.one_in(3) {
            a.dice.below(16) as u32
        } else {
            REMOTE
        },
        offset,
        length: if a.dice.one_in(16) {
            a.dice.any64()
        } else {
            len - offset
        },
        qp: if a.dice.one_in(3) {
            a.handle(&open, Kind::Qp)
        } else {
            0
        },
        ..abi::GrantCreate::new()
    };
    if a.dice.one_in(4) {
        arg.flags |= abi::GRANT_PARTIAL;
    }
    a.create(&open, arg, |out| Object {
        at: out.addr,
        len: out.length,
        number: out.rkey,
        ..object(Kind::Grant, out.handle)
    });
}

// --- queue pairs -------------------------------------------------------------------------

fn attributes(a: &mut Actor<'_>, host: usize, peer: usize, number: u32) -> abi::QpAttr {
    abi::QpAttr {
        qkey: 0x1111,
        dest_qp_num: number,
        access_flags: REMOTE,
        path_mtu: 3,
        port_num: a.seat(host).port,
        // Short: what is broken ends soon.
        timeout: 10,
        retry_cnt: 2,
        rnr_retry: 2,
        min_rnr_timer: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ah: address(a, host, peer),
        ..abi::QpAttr::default()
    }
}

/// One transition, with what it needs by the type of the queue pair.
fn step(a: &mut Actor<'_>, open: &Open, qp: Object, state: u8, peer: usize, number: u32) {
    const RELIABLE: u32 = abi::QP_MAX_DEST_RD_ATOMIC | abi::QP_MIN_RNR_TIMER;
    let mask = match (qp.at as u32, state) {
        (abi::QPT_UD, abi::QPS_INIT) => (INIT & !abi::QP_ACCESS_FLAGS) | abi::QP_QKEY,
        (abi::QPT_UD, abi::QPS_RTS) => abi::QP_STATE | abi::QP_SQ_PSN,
        (abi::QPT_UD, _) => abi::QP_STATE,
        (abi::QPT_UC, abi::QPS_RTR) => RTR & !RELIABLE,
        (abi::QPT_UC, abi::QPS_RTS) => abi::QP_STATE | abi::QP_SQ_PSN,
        (_, abi::QPS_INIT) => INIT,
        (_, abi::QPS_RTR) => RTR,
        (_, abi::QPS_RTS) => RTS,
        _ => abi::QP_STATE,
    };
    let mut attr = attributes(a, open.host, peer, number);
    attr.qp_state = state;
    let arg = arg!(QpModify, qp = qp.handle, attr_mask = mask, attr);
    a.issue(open, arg);
}

fn modify(a: &mut Actor<'_>) {
    let open = a.file();
    let qp = a.one(&open, Kind::Qp).unwrap_or(object(Kind::Qp, 0));
    let peers = lock(&a.world.peers).clone();
    let (peer, number) = a.dice.pick(&peers).unwrap_or((0, 0));
    let state = a.dice.of([0, 1, 1, 2, 2, 3, 3, 4, 6]);
    if !a.dice.one_in(3) {
        return step(a, &open, qp, state, peer, number);
    }
    let mut attr = attributes(a, open.host, peer, number);
    attr.qp_state = state;
    attr.cur_qp_state = a.dice.below(8) as u8;
    attr.en_sqd_async_notify = a.dice.below(3) as u8;
    attr.qkey = a.dice.any32();
    attr.max_rd_atomic = a.dice.any32() as u8;
    let arg = abi::QpModify {
        qp: a.handle(&open, Kind::Qp),
        attr_mask: a.dice.any32() | u32::from(!a.dice.one_in(4)),
        attr,
        ..abi::QpModify::new()
    };
    a.issue(&open, arg);
}

/// Two queue pairs, connected to each other, of one file or of two.
fn pair(a: &mut Actor<'_>) {
    // Here most should go well.
    a.spoil *= 8;
    let (here, there) = (a.file(), a.file());
    let kind = if a.dice.one_in(4) {
        abi::QPT_UC
    } else {
        abi::QPT_RC
    };
    let Some(first) = make_qp(a, &here, kind) else {
        return;
    };
    let Some(second) = make_qp(a, &there, kind) else {
        return;
    };
    for state in [abi::QPS_INIT, abi::QPS_RTR, abi::QPS_RTS] {
        step(a, &here, first, state, there.host, second.number);
        step(a, &there, second, state, here.host, first.number);
    }
}

fn query_object(a: &mut Actor<'_>) {
    let open = a.file();
    match a.dice.below(5) {
        0 => {
            let qp = a.handle(&open, Kind::Qp);
            a.issue(&open, arg!(QpQuery, qp));
        }
        1 => {
            let buffer = a.handle(&open, Kind::Buffer);
            a.issue(&open, arg!(BufferQuery, buffer));
        }
        2 => {
            let grant = a.handle(&open, Kind::Grant);
            a.issue(&open, arg!(GrantQuery, grant));
        }
        3 => {
            let srq = a.handle(&open, Kind::Srq);
            a.issue(&open, arg!(SrqQuery, srq));
        }
        _ => {
            let kind = a.dice.of([Kind::Conn, Kind::Listener, Kind::Request]);
            let conn = a.handle(&open, kind);
            a.issue(&open, arg!(ConnQuery, conn));
        }
    }
}

fn destroy(a: &mut Actor<'_>) {
    let open = a.file();
    if a.dice.one_in(8) {
        // One that is not known, or is somebody else's too.
        let handle = a.handle(&open, Kind::Pd);
        let arg = arg!(Destroy, handle = handle ^ (1 << a.dice.below(32)));
        a.issue(&open, arg);
        return;
    }
    let mut objects = lock(&open.objects);
    if objects.is_empty() {
        return;
    }
    let at = a.dice.below(objects.len());
    let object = objects.swap_remove(at);
    drop(objects);
    a.destroy(&open, object);
}

// --- requests --------------------------------------------------------------------------------

fn element(a: &mut Actor<'_>, open: &Open, most: u64) -> abi::Sge {
    let buffer = a.one(open, Kind::Buffer);
    let len = buffer.map_or(PAGE as u64, |buffer| buffer.len).max(1);
    let length = match a.odd(16) {
        0 => a.dice.any64(),
        1 => len,
        2 => 0,
        _ => a.dice.below(256) as u64,
    };
    let offset = match a.odd(16) {
        0 => a.dice.any64(),
        1 => len.wrapping_sub(length),
        2 => len - 1,
        _ => a.dice.below(len.min(4096) as usize) as u64,
    };
    abi::Sge {
        buffer: match a.odd(20) {
            0 => a.handle(open, Kind::Buffer),
            _ => buffer.map_or(0, |buffer| buffer.handle),
        },
        length: length.min(most) as u32,
        offset,
    }
}

/// A request of a file; elements of one that has several go to `at` of the thread's own area.
pub fn request(a: &mut Actor<'_>, open: &Open, at: usize) -> abi::Wr {
    let qp = a.one(open, Kind::Qp);
    let opcode = match a.dice.below(24) {
        0 if !a.careful => a.dice.word() as u8,
        1..=6 => abi::WR_RDMA_WRITE,
        7 => abi::WR_RDMA_WRITE_WITH_IMM,
        8..=11 => abi::WR_SEND,
        12 => abi::WR_SEND_WITH_IMM,
        13 | 14 => abi::WR_RDMA_READ,
        15 => abi::WR_ATOMIC_CMP_AND_SWP,
        16 => abi::WR_ATOMIC_FETCH_AND_ADD,
        17 => abi::WR_SEND_WITH_INV,
        _ => abi::WR_RECV,
    };
    let mut wr = abi::Wr {
        user_data: a.dice.below(8) as u64,
        qp: match a.odd(20) {
            0 => a.handle(open, Kind::Qp),
            1 => a.handle(open, Kind::Srq),
            _ => qp.map_or(0, |qp| qp.handle),
        },
        opcode,
        num_sge: 1,
        sge: element(a, open, 1 << 20),
        ..abi::Wr::default()
    };
    if opcode != abi::WR_RECV {
        wr.flags = match a.odd(12) {
            0 => a.dice.any32() as u16,
            1 => abi::SEND_FENCE | abi::SEND_SIGNALED,
            2 => abi::SEND_SIGNALED | abi::SEND_INLINE,
            3 => 0,
            _ => abi::SEND_SIGNALED,
        };
    }
    if matches!(opcode, abi::WR_RDMA_WRITE..=abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_RDMA_READ..=abi::WR_ATOMIC_FETCH_AND_ADD)
    {
        let keys = lock(&a.world.keys).clone();
        let (addr, rkey, len) = a.dice.pick(&keys).unwrap_or((0, 0, 1));
        let offset = match a.odd(12) {
            0 => a.dice.any64(),
            1 => len,
            _ => a.dice.below((len as usize).min(2048)) as u64,
        };
        wr.remote_addr = addr.wrapping_add(offset);
        wr.rkey = if a.odd(16) == 0 {
            rkey ^ a.dice.any32()
        } else {
            rkey
        };
    }
    match opcode {
        abi::WR_ATOMIC_CMP_AND_SWP | abi::WR_ATOMIC_FETCH_AND_ADD => {
            wr.sge.length = 8;
            wr.remote_addr &= !7;
            let both = opcode == abi::WR_ATOMIC_CMP_AND_SWP || a.odd(8) == 0;
            wr.args = abi::WrAtomic {
                compare_add: a.dice.any64(),
                swap: if both { a.dice.any64() } else { 0 },
            }
            .into();
        }
        abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_SEND_WITH_IMM | abi::WR_SEND_WITH_INV => {
            let keys = lock(&a.world.keys).clone();
            wr.imm_data = a.dice.pick(&keys).map_or(0, |key| key.1);
        }
        _ => (),
    }
    if matches!(opcode, abi::WR_SEND | abi::WR_SEND_WITH_IMM)
        && qp.is_some_and(|qp| qp.at as u32 == abi::QPT_UD)
    {
        let peers = lock(&a.world.peers).clone();
        let number = a.dice.pick(&peers).map_or(0, |peer| peer.1);
        wr.args = abi::WrUd {
            ah: a.handle(open, Kind::Ah),
            qp_num: number,
            qkey: 0x1111,
            pad: u32::from(a.odd(40) == 0),
        }
        .into();
    }
    if a.dice.one_in(8) {
        wr.flags |= abi::REQUEST_TIMEOUT;
        wr.timeout_ns = match a.odd(4) {
            0 => a.dice.any64(),
            1 => abi::TIMEOUT_INFINITE,
            _ => 1 << a.dice.below(26),
        };
    }
    match a.odd(12) {
        0 => {
            wr.num_sge = 0;
            wr.sge = abi::Sge::default();
        }
        1 => {
            let count = a.dice.below(6);
            for i in 0..count {
                let sge = element(a, open, 4096);
                a.args.put(at + i * 16, &bytes(&sge));
            }
            wr.num_sge = count as u8 + a.dice.below(2) as u8;
            wr.sge = abi::Sge {
                offset: a.args.at(at),
                ..abi::Sge::default()
            };
        }
        2 if wr.flags & abi::SEND_INLINE != 0 => {
            wr.sge.buffer = 0;
            wr.sge.offset = a.args.at(at);
        }
        _ => (),
    }
    wr
}

/// Requests at `at` of the thread's area: how many, and bytes of each.
pub fn requests(a: &mut Actor<'_>, open: &Open, at: usize) -> (u32, u32) {
    let count = match a.dice.below(24) {
        0 => a.dice.below(64) as u32,
        _ => a.dice.below(4) as u32 + 1,
    };
    let size = match a.odd(20) {
        0 => a.dice.any32() % 200,
        1 | 2 => abi::Wr::SIZE + 8,
        _ => abi::Wr::SIZE,
    };
    for i in 0..count {
        let wr = request(a, open, ARGS * PAGE - PAGE + (i as usize % 32) * 112);
        let mut raw = bytes(&wr);
        raw.truncate(size as usize);
        if a.odd(40) == 0 && !raw.is_empty() {
            let index = a.dice.below(raw.len());
            raw[index] = a.dice.word() as u8;
        }
        let to = at + (i * size.min(128)) as usize;
        if to + raw.len() <= (ARGS - 1) * PAGE {
            a.args.put(to, &raw);
        }
    }
    let count = if a.odd(20) == 0 {
        a.dice.any32()
    } else {
        count
    };
    (count, size)
}

fn submit(a: &mut Actor<'_>) {
    let open = a.file();
    let (nr_wrs, wr_size) = requests(a, &open, PAGE);
    let in_shared = a.dice.one_in(8);
    let waits = a.dice.one_in(4);
    let arg = abi::Submit {
        wrs: if in_shared {
            a.world.shared.at(0)
        } else {
            a.args.at(PAGE)
        },
        nr_wrs: if in_shared { nr_wrs % 40 } else { nr_wrs },
        wr_size,
        cq: if waits { a.handle(&open, Kind::Cq) } else { 0 },
        min_complete: if waits { a.dice.below(4) as u32 } else { 0 },
        timeout_ns: if waits { a.wait() } else { 0 },
        ..abi::Submit::new()
    };
    let (result, out) = a.cmd(&open, arg);
    let stopped = Errno::from_raw(out.stop_error.saturating_neg());
    let fits = match result {
        Ok(()) if out.stop_error == 0 => out.posted == out.nr_wrs,
        Ok(()) => stopped == Errno::EAGAIN && (1..out.nr_wrs).contains(&out.posted),
        // A call that is refused before the requests are looked at writes nothing.
        Err(errno) if stopped != errno => true,
        Err(Errno::EAGAIN) => out.posted == 0,
        Err(_) => out.posted < out.nr_wrs,
    };
    if !fits {
        a.finding(format!(
            "SUBMIT is {result:?}, stop_error {stopped:?}, and posted {} of {}",
            out.posted, out.nr_wrs
        ));
    }
    let allowed = [
        0,
        libc::ETIME,
        libc::EINTR,
        libc::EIO,
        libc::ENODEV,
        libc::ENOENT,
    ];
    if result.is_ok() && !allowed.contains(&out.wait_error.saturating_neg()) {
        a.finding(format!("the wait of SUBMIT is {}", out.wait_error));
    }
}

/// A write or send that should work, of a queue pair in any state.
fn write(a: &mut Actor<'_>) {
    let open = a.file();
    let (Some(qp), Some(buffer)) = (a.one(&open, Kind::Qp), a.one(&open, Kind::Buffer)) else {
        return;
    };
    let keys = lock(&a.world.keys).clone();
    let (addr, rkey, len) = a.dice.pick(&keys).unwrap_or((0, 0, 1));
    let length = a.dice.below(1200.min(len.min(buffer.len)) as usize) as u32;
    let opcode = a.dice.of([
        abi::WR_RDMA_WRITE,
        abi::WR_RDMA_READ,
        abi::WR_SEND,
        abi::WR_RECV,
    ]);
    let remote = matches!(opcode, abi::WR_RDMA_WRITE | abi::WR_RDMA_READ);
    let wr = abi::Wr {
        user_data: a.dice.below(8) as u64,
        qp: qp.handle,
        opcode,
        num_sge: 1,
        flags: if opcode == abi::WR_RECV {
            0
        } else {
            abi::SEND_SIGNALED
        },
        remote_addr: if remote { addr } else { 0 },
        rkey: if remote { rkey } else { 0 },
        sge: abi::Sge {
            buffer: buffer.handle,
            length,
            offset: 0,
        },
        ..abi::Wr::default()
    };
    let count = a.dice.below(6) + 1;
    for i in 0..count {
        a.args.put(PAGE + i * size_of::<abi::Wr>(), &bytes(&wr));
    }
    let arg = abi::Submit {
        wrs: a.args.at(PAGE),
        nr_wrs: count as u32,
        wr_size: abi::Wr::SIZE,
        ..abi::Submit::new()
    };
    a.spoil *= 4;
    a.issue(&open, arg);
}

fn cancel(a: &mut Actor<'_>) {
    let open = a.file();
    let kind = if a.dice.one_in(4) {
        Kind::Srq
    } else {
        Kind::Qp
    };
    let all = a.dice.one_in(3);
    let arg = abi::Cancel {
        flags: u32::from(all),
        queue: a.handle(&open, kind),
        user_data: if all { 0 } else { a.dice.below(8) as u64 },
        ..abi::Cancel::new()
    };
    a.issue(&open, arg);
}

fn cq_eventfd(a: &mut Actor<'_>) {
    let open = a.file();
    if a.eventfds.len() < 4 {
        a.eventfds.extend(eventfd());
    } else if a.dice.one_in(4) {
        let at = a.dice.below(4);
        a.eventfds.swap_remove(at);
    }
    let fds: Vec<_> = a.eventfds.iter().map(AsRawFd::as_raw_fd).collect();
    let fd = match a.dice.below(8) {
        0 => open.fd.number(),
        1 => a.dice.any32() as i32,
        2 | 3 => -1,
        _ => a.dice.pick(&fds).unwrap_or(-1),
    };
    let cq = a.handle(&open, Kind::Cq);
    a.issue(&open, arg!(CqEventfd, cq, fd));
}

// --- mappings ------------------------------------------------------------------------------------

fn map(a: &mut Actor<'_>) {
    let open = a.file();
    let is_ring = a.dice.one_in(2);
    let kind = if is_ring { Kind::Cq } else { Kind::Buffer };
    let object = a.one(&open, kind).unwrap_or(object(kind, 0));
    let (mut at, mut len) = (object.at, object.len);
    let mut prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let mut flags = MapFlags::MAP_SHARED;
    match a.dice.below(12) {
        0 => at = a.dice.any64() & !4095,
        1 => at = at.wrapping_add((a.dice.below(4) * PAGE) as u64),
        2 => len = a.dice.any64() % (1 << 33),
        3 => len += PAGE as u64,
        4 => len = PAGE as u64,
        5 => prot = ProtFlags::PROT_READ,
        6 => prot |= ProtFlags::PROT_EXEC,
        7 => prot = ProtFlags::PROT_NONE,
        8 => flags = MapFlags::MAP_PRIVATE,
        9 => flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE | MapFlags::MAP_LOCKED,
        _ => (),
    }
    // As the kernel rounds it.
    let len = (len as usize).next_multiple_of(PAGE);
    let got = open.fd.map(at, len, prot, flags);
    a.note("mmap", got.as_ref().map(drop).map_err(|errno| *errno));
    let Ok(map) = got else {
        return;
    };
    // The upper half of an offset is the handle, the lower one bytes into the object.
    let end = (at & 0xffff_ffff) + map.len() as u64;
    if at >> 32 == u64::from(object.handle) && end > object.len {
        return a.finding("a mapping is larger than its object".to_owned());
    }
    if a.maps.len() > 16 {
        let which = a.dice.below(a.maps.len());
        a.maps.swap_remove(which);
    }
    a.maps.push(Mapped {
        is_ring: is_ring && at == object.at,
        entries: object.number,
        writable: prot.contains(ProtFlags::PROT_WRITE),
        readable: prot.contains(ProtFlags::PROT_READ),
        map,
    });
}

/// The number of a mapping that is allowed to be read, and written if need be.
fn mapped(a: &mut Actor<'_>, ring: bool, write: bool) -> Option<usize> {
    let list = a.maps.iter().enumerate();
    let list = list.filter(|(_, m)| m.is_ring == ring && m.readable && (m.writable || !write));
    let list: Vec<_> = list.map(|(number, _)| number).collect();
    a.dice.pick(&list)
}

fn unmap(a: &mut Actor<'_>) {
    if a.maps.is_empty() {
        return;
    }
    let which = a.dice.below(a.maps.len());
    if a.dice.one_in(2) {
        a.maps.swap_remove(which);
        return a.note("munmap", Ok(()));
    }
    let len = a.dice.below(a.maps[which].map.len());
    let result = a.maps[which].map.truncate(len);
    a.note("munmap", result);
}

fn remap(a: &mut Actor<'_>) {
    if a.maps.is_empty() {
        return;
    }
    let which = a.dice.below(a.maps.len());
    let len = a.maps[which].map.len();
    match a.dice.below(4) {
        0 => {
            let pages = a.dice.below(len / PAGE + 2).max(1);
            let result = a.maps[which].map.remap(pages * PAGE);
            a.note("mremap", result);
            if result.is_ok() && pages * PAGE > len {
                // What lies behind is nobody's.
                a.maps.swap_remove(which);
            }
        }
        1 => {
            let advice = a.dice.of([
                libc::MADV_DONTNEED,
                libc::MADV_DOFORK,
                libc::MADV_DONTFORK,
                libc::MADV_WILLNEED,
                libc::MADV_REMOVE,
                libc::MADV_HUGEPAGE,
                libc::MADV_MERGEABLE,
                libc::MADV_DODUMP,
            ]);
            let result = a.maps[which].map.advise(advice);
            a.note("madvise", result);
        }
        _ => {
            let (read, write, exec) = (a.dice.below(4), a.dice.below(2), a.dice.below(8));
            let mut prot = ProtFlags::PROT_NONE;
            prot.set(ProtFlags::PROT_READ, read != 0);
            prot.set(ProtFlags::PROT_WRITE, write != 0 && read != 0);
            prot.set(ProtFlags::PROT_EXEC, exec == 0);
            let result = a.maps[which].map.protect(prot);
            a.note("mprotect", result);
            if result.is_ok() {
                a.maps[which].readable = read != 0;
                a.maps[which].writable = write != 0 && read != 0;
            }
        }
    }
}

/// Takes completions out of a ring, as one should.
fn ring_reap(a: &mut Actor<'_>) {
    let Some(which) = mapped(a, true, true) else {
        return;
    };
    let map = &a.maps[which].map;
    let tail = map.load(offset_of!(abi::CqRing, tail));
    map.store(offset_of!(abi::CqRing, head), tail);
    a.note("ring", Ok(()));
}

/// Puts into a ring what nobody should.
fn ring_scribble(a: &mut Actor<'_>) {
    let Some(which) = mapped(a, true, true) else {
        return;
    };
    let value = a.dice.any32();
    let entries = a.maps[which].entries;
    let map = &a.maps[which].map;
    let head = map.load(offset_of!(abi::CqRing, head));
    let tail = map.load(offset_of!(abi::CqRing, tail));
    let offset = offset_of!(abi::CqRing, head);
    match a.dice.below(10) {
        0 => map.store(offset, value),
        1 => map.store(offset, tail.wrapping_add(1)),
        2 => map.store(offset, tail.wrapping_sub(entries)),
        3 => map.store(offset, tail.wrapping_sub(entries).wrapping_sub(1)),
        4 => map.store(offset, head.wrapping_sub(1)),
        5 => map.store(offset, head.wrapping_add(1)),
        6 => map.store(offset, tail ^ 0x8000_0000),
        7 => {
            let at = 4 * a.dice.below(PAGE / 4);
            a.maps[which].map.store(at, value);
        }
        8 => {
            let at = 4 * a.dice.below(a.maps[which].map.len() / 4);
            a.maps[which].map.store(at, value);
        }
        _ => map.store(offset_of!(abi::CqRing, tail), value),
    }
    a.note("ring", Ok(()));
}

fn memory(a: &mut Actor<'_>) {
    let Some(which) = mapped(a, false, false) else {
        return;
    };
    let len = a.maps[which].map.len();
    let at = a.dice.below(len - 64);
    let word = a.dice.word();
    let mapped = &a.maps[which];
    if mapped.writable {
        mapped.map.put(at, &word.to_ne_bytes());
    } else {
        mapped.map.get(at, 64);
    }
    a.note("buffer bytes", Ok(()));
}

/// Writes requests, whole and in parts, where other threads have theirs read from.
fn shared(a: &mut Actor<'_>) {
    let open = a.file();
    let wr = request(a, &open, ARGS * PAGE - PAGE);
    let raw = bytes(&wr);
    let slot = a.dice.below(40) * size_of::<abi::Wr>();
    let from = a.dice.below(raw.len());
    let count = a.dice.below(raw.len() - from) + 1;
    a.world.shared.put(slot + from, &raw[from..from + count]);
    a.note("shared requests", Ok(()));
}

// --- files ------------------------------------------------------------------------------------------

fn read(a: &mut Actor<'_>) {
    let open = a.file();
    let len = a.dice.of([0, 1, 31, 32, 33, 64, 320, 2 * PAGE]);
    let result = open.fd.read_to(a.args.at(2 * PAGE), len);
    if let Ok(got) = result {
        if got % size_of::<abi::Event>() != 0 || got > len {
            a.finding(format!("read() of {len} bytes gave {got}"));
        }
    }
    a.note("read", result.map(drop));
}

fn poll(a: &mut Actor<'_>) {
    let open = a.file();
    let result = open.fd.poll_now();
    a.note("poll", result.map(drop));
}

fn epoll(a: &mut Actor<'_>) {
    let open = a.file();
    if a.epoll.is_none() || a.dice.one_in(32) {
        a.epoll = Epoll::new().ok();
    }
    let events = a.dice.of([1u32, 3, 0x8000_0001, 0xc000_0003, 0x4000_0002]);
    if let Some(epoll) = &a.epoll {
        // Also what was added before: EEXIST is the kernel's.
        let _ = epoll.add(&open.fd, events);
        let result = epoll.wait(0);
        a.note("epoll", result.map(drop));
    }
}

fn fdinfo(a: &mut Actor<'_>) {
    let open = a.file();
    let path = format!("/proc/self/fdinfo/{}", open.fd.number());
    if let Ok(text) = std::fs::read_to_string(path) {
        if !text.contains("rust_ulp-file:") {
            a.finding("fdinfo has no line of ours".to_owned());
        }
    }
    a.note("fdinfo", Ok(()));
}

fn reopen(a: &mut Actor<'_>) {
    let slot = a.dice.below(a.world.slots.len());
    let host = slot % 2;
    match a.world.open(host) {
        Ok(open) => {
            a.world.replace(slot, open);
            a.note("reopen", Ok(()));
        }
        Err(error) => return a.finding(format!("opening the device: {error}")),
    }
    if !a.dice.one_in(4) {
        let open = a.world.file(slot);
        furnish(a, &open);
    }
}

fn dup(a: &mut Actor<'_>) {
    let open = a.file();
    let slot = a.dice.below(a.world.slots.len());
    if slot % 2 != open.host {
        return;
    }
    let Ok(fd) = open.fd.again() else {
        return;
    };
    let twin = Open {
        fd,
        host: open.host,
        objects: open.objects.clone(),
        stale: open.stale.clone(),
    };
    a.world.replace(slot, twin);
    a.note("dup", Ok(()));
}

/// An object or two of every kind, and a connection with itself.
pub fn furnish(a: &mut Actor<'_>, open: &Open) {
    let spoil = std::mem::take(&mut a.spoil);
    attach_file(a, open);
    a.create(open, abi::PdCreate::new(), |out| {
        object(Kind::Pd, out.handle)
    });
    make_cq(a, open, 128);
    if let Some(buffer) = make_buffer(a, open, 4 * PAGE as u64, 0) {
        let arg = abi::GrantCreate {
            buffer: buffer.handle,
            access: REMOTE,
            length: buffer.len,
            ..abi::GrantCreate::new()
        };
        a.create(open, arg, |out| Object {
            at: out.addr,
            len: out.length,
            number: out.rkey,
            ..object(Kind::Grant, out.handle)
        });
    }
    let pair = [make_qp(a, open, abi::QPT_RC), make_qp(a, open, abi::QPT_RC)];
    if let [Some(first), Some(second)] = pair {
        for state in [abi::QPS_INIT, abi::QPS_RTR, abi::QPS_RTS] {
            step(a, open, first, state, open.host, second.number);
            step(a, open, second, state, open.host, first.number);
        }
    }
    a.spoil = spoil;
}

/// A child that has the files, not the mappings, and acts on them.
fn fork(a: &mut Actor<'_>) {
    let open = a.file();
    let mut calls = Vec::new();
    for i in 0..a.dice.below(4) + 1 {
        let at = 3 * PAGE + i * 256;
        let kind = a.dice.of([Kind::Qp, Kind::Cq, Kind::Buffer, Kind::Grant]);
        let handle = a.handle(&open, kind);
        let (nr, raw) = match a.dice.below(5) {
            0 => (abi::IOC_PD_CREATE, bytes(&abi::PdCreate::new())),
            1 => {
                let arg = arg!(Destroy, handle);
                (arg.handle != 0).then(|| lock(&open.objects).retain(|o| o.handle != handle));
                (abi::IOC_DESTROY, bytes(&arg))
            }
            2 => {
                let wr = request(a, &open, ARGS * PAGE - PAGE);
                a.args.put(5 * PAGE, &bytes(&wr));
                let arg = abi::Submit {
                    wrs: a.args.at(5 * PAGE),
                    nr_wrs: 1,
                    wr_size: abi::Wr::SIZE,
                    ..abi::Submit::new()
                };
                (abi::IOC_SUBMIT, bytes(&arg))
            }
            3 => {
                let arg = abi::BufferRegister {
                    pd: a.handle(&open, Kind::Pd),
                    addr: a.data.at(0),
                    length: PAGE as u64,
                    ..abi::BufferRegister::new()
                };
                (abi::IOC_BUFFER_REGISTER, bytes(&arg))
            }
            _ => {
                let arg = arg!(QpQuery, qp = handle);
                (abi::IOC_QP_QUERY, bytes(&arg))
            }
        };
        a.args.put(at, &raw);
        calls.push((open.fd.number(), nr, a.args.at(at)));
    }
    match fork_child(&calls, hang()) {
        Ok(true) => a.note("fork", Ok(())),
        Ok(false) => a.finding("a child did not end".to_owned()),
        Err(errno) => a.note("fork", Err(errno)),
    }
}

// --- connections ---------------------------------------------------------------------------------------

fn net(host: usize, port: u16) -> abi::Addr {
    let mut addr = [0; 16];
    addr[..4].copy_from_slice(&[10, 9, 0, host as u8 % 2 + 1]);
    abi::Addr {
        family: 2,
        port,
        scope_id: 0,
        addr,
    }
}

fn port(a: &mut Actor<'_>) -> u16 {
    PORTS + a.dice.below(6) as u16
}

fn parameters(a: &mut Actor<'_>) -> abi::ConnParam {
    let mut param = abi::ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        retry_cnt: 2,
        rnr_retry: 2,
        min_rnr_timer: 1,
        access_flags: REMOTE,
        ..abi::ConnParam::default()
    };
    match a.dice.below(12) {
        0 => param.responder_resources = a.dice.word() as u8,
        1 => param.retry_cnt = a.dice.word() as u8,
        2 => param.path_mtu = a.dice.word() as u8,
        3 => param.flags = a.dice.any32(),
        _ => (),
    }
    param
}

fn make_listener(a: &mut Actor<'_>, open: &Open, port: u16) -> Option<Object> {
    let mut addr = net(open.host, port);
    match a.dice.below(8) {
        0 => addr.addr = [0; 16],
        1 => addr.family = 10,
        2 => addr.addr[3] = a.dice.word() as u8,
        _ => (),
    }
    let arg = arg!(Listen, addr, backlog = a.dice.below(4) as u32 + 1);
    a.create(open, arg, |out| Object {
        number: out.addr.port.into(),
        ..object(Kind::Listener, out.handle)
    })
}

fn listen(a: &mut Actor<'_>) {
    let open = a.file();
    let port = port(a);
    make_listener(a, &open, port);
}

fn take_request(a: &mut Actor<'_>, open: &Open, listener: u32, wait: u64) -> Option<Object> {
    let arg = arg!(GetRequest, listener, timeout_ns = wait);
    a.create(open, arg, |out| object(Kind::Request, out.handle))
}

fn get_request(a: &mut Actor<'_>) {
    let open = a.file();
    let listener = a.handle(&open, Kind::Listener);
    let wait = a.wait();
    take_request(a, &open, listener, wait);
}

fn answer(a: &mut Actor<'_>, open: &Open, request: Object, qp: u32) {
    let arg = abi::Accept {
        request: request.handle,
        qp,
        param: parameters(a),
        private_len: a.dice.below(64) as u32,
        ..abi::Accept::new()
    };
    let result = a.cmd(open, arg).0;
    let mut objects = lock(&open.objects);
    for object in objects.iter_mut().filter(|o| o.handle == request.handle) {
        if result.is_ok() {
            object.kind = Kind::Conn;
        }
    }
}

fn accept(a: &mut Actor<'_>) {
    let open = a.file();
    let request = a
        .one(&open, Kind::Request)
        .unwrap_or(object(Kind::Request, 1));
    let qp = a.handle(&open, Kind::Qp);
    answer(a, &open, request, qp);
}

fn refuse(a: &mut Actor<'_>, open: &Open, request: u32) {
    let arg = arg!(Reject, request, private_len = a.dice.below(160) as u32);
    if a.cmd(open, arg).0.is_ok() {
        lock(&open.objects).retain(|object| object.handle != request);
    }
}

fn reject(a: &mut Actor<'_>) {
    let open = a.file();
    let request = a.handle(&open, Kind::Request);
    refuse(a, &open, request);
}

fn ask(a: &mut Actor<'_>, open: &Open, qp: u32, dst: abi::Addr) -> Option<u32> {
    let arg = abi::Connect {
        qp,
        dst,
        src: if a.dice.one_in(4) {
            net(open.host, 0)
        } else {
            abi::Addr::default()
        },
        param: parameters(a),
        private_len: a.dice.below(64) as u32,
        ..abi::Connect::new()
    };
    let (result, out) = a.cmd(open, arg);
    result.ok()?;
    a.made(open, object(Kind::Conn, out.handle));
    Some(out.handle)
}

fn conn_wait(a: &mut Actor<'_>, open: &Open, conn: u32, timeout_ns: u64) {
    let arg = arg!(ConnWait, conn, timeout_ns);
    // The error of an attempt is the attempt's.
    let _ = a.cmd(open, arg);
}

/// Waits for an attempt, or for what is none.
fn wait_for_connection(a: &mut Actor<'_>) {
    let open = a.file();
    let kind = if a.dice.one_in(4) {
        Kind::Request
    } else {
        Kind::Conn
    };
    let conn = a.handle(&open, kind);
    let wait = a.wait();
    conn_wait(a, &open, conn, wait);
}

fn connect(a: &mut Actor<'_>) {
    let open = a.file();
    let mut dst = net(a.dice.below(2), port(a));
    if a.dice.one_in(6) {
        dst.addr[3] = a.dice.word() as u8;
    }
    let qp = a.handle(&open, Kind::Qp);
    ask(a, &open, qp, dst);
}

/// One side asks, in a thread of its own, and the other one accepts, or rejects now and then.
fn meet(a: &mut Actor<'_>) {
    // Nothing depends on how late this is, but how often they meet.
    let long = 40_000_000 * u64::from(patience());
    a.spoil *= 8;
    let (here, there) = (a.file(), a.file());
    let port = port(a);
    let listener = match a.one(&here, Kind::Listener) {
        Some(listener) => Some(listener),
        None => make_listener(a, &here, port),
    };
    let Some(listener) = listener else {
        return;
    };
    let (Some(own), Some(other)) = (
        make_qp(a, &here, abi::QPT_RC),
        make_qp(a, &there, abi::QPT_RC),
    ) else {
        return;
    };
    let dst = net(here.host, listener.number as u16);
    let (world, number, seed) = (a.world, a.number, a.dice.word());
    let doing = a.doing;
    let asked = std::thread::scope(|scope| {
        let peer = Arc::clone(&there);
        let asks = scope.spawn(move || {
            let mut b = Actor::new(world, number)?;
            b.dice = super::dice::Dice::new(seed.into(), Vec::new());
            b.doing = doing;
            if let Some(conn) = ask(&mut b, &peer, other.handle, dst) {
                conn_wait(&mut b, &peer, conn, long);
            }
            Ok::<_, Errno>(b.counts)
        });
        if let Some(request) = take_request(a, &here, listener.handle, long) {
            if a.dice.one_in(4) {
                refuse(a, &here, request.handle);
            } else {
                let conn = request.handle;
                answer(a, &here, request, own.handle);
                conn_wait(a, &here, conn, long);
            }
        }
        asks.join()
    });
    if let Ok(Ok(counts)) = asked {
        for (what, count) in counts {
            *a.counts.entry(what).or_default() += count;
        }
    }
}

fn disconnect(a: &mut Actor<'_>) {
    let open = a.file();
    let conn = a.handle(&open, Kind::Conn);
    a.issue(&open, arg!(Disconnect, conn));
}
