// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test api`: each transport, shared receives, events, the connection manager, deadlines, memory, grants
//! and diagnoses, through the crate, against a real device.

use crate::cause::{Evidence, Here, QpReport, RetryCause};
use crate::hosts::{connect, pattern, Host};
use crate::report::{because, check, equal, hang, Outcome, Report};
use crate::sys::send_signal;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use rust_ulp::error::{CompletionError, ErrorKind};
use rust_ulp::events::EventKind;
use rust_ulp::grant::{GrantOptions, GrantState};
use rust_ulp::memory::BufferKind;
use rust_ulp::qp::{
    AckTimeout, QpAttr, QpState, Rc, Retries, RnrRetries, RnrTimer, TrafficClass, Uc, Ud,
};
use rust_ulp::uring::{Ring, RingBuilder};
use rust_ulp::wr::{CompareSwap, FetchAdd, Read, Recv, Send, SendTo, Write};
use rust_ulp::{
    cm, Access, Completion, Cq, Device, Endpoint, Error, Grant, Grh, Mtu, Opcode, Qp, RemoteSlice,
    Status,
};
use rust_ulp_extra::pool::Pool;
use signal_hook::consts::SIGUSR1;
use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::{Duration, Instant};

mod requests;

const SHORT: Duration = Duration::from_millis(300);

type R<T = ()> = rust_ulp::error::Result<T>;

/// A case whose calls of the crate are all to succeed. Each has completion queues of its own: what
/// the queue pairs of a case leave when they go is not taken for another's.
fn case(
    r: &mut Report,
    name: &str,
    (a, b): (&Host, &Host),
    run: impl FnOnce(&Host, &Host) -> R<Outcome>,
) {
    let run = || run(&fresh(a)?, &fresh(b)?);
    r.case(name, || run().map_err(because("a call"))?);
}

fn fresh(host: &Host) -> R<Host> {
    Ok(Host {
        dev: host.dev.clone(),
        pd: host.pd.clone(),
        cq: host.dev.create_cq(256)?,
    })
}

/// The next good completion with that opcode; what is not of that kind is passed over.
fn next(cq: &Cq, opcode: Opcode) -> R<Completion> {
    loop {
        let done = cq.wait(hang())?.ok()?;
        if done.opcode == opcode {
            return Ok(done);
        }
    }
}

/// The same for those who need no more than that it came.
fn pass(cq: &Cq, opcode: Opcode) -> R {
    next(cq, opcode).map(drop)
}

/// The first failure on `qp`; what is left of others is passed over.
fn failure(qp: &Qp<Rc>, cq: &Cq) -> Outcome<CompletionError> {
    loop {
        let done = cq.wait(hang()).map_err(because("waiting"))?;
        match done.ok() {
            Ok(_) => {}
            Err(_) if !done.is_of(qp) => {}
            Err(Error::Completion(error)) => return Ok(error),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// All of it. Wants `two-hosts`, or a default device.
pub fn run(r: &mut Report) {
    let Some([a, b]) = r.need("two ends", Host::two) else {
        return;
    };
    requests::run(r, &a, &b);
    unreliable(r, &a, &b);
    invalidating(r, &a, &b);
    for part in [
        datagrams,
        shared,
        events,
        manager,
        manager_refuses,
        manager_and_signals,
        unfinished,
        files,
        rings,
        memory,
    ] {
        part(r, &a, &b);
    }
    diagnoses(r, &a, &b);
}

// --- unreliable connections ---------------------------------------------------------------------------------

fn unreliable(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "UC: writes and sends arrive whole and in order",
        (a, b),
        |a, b| {
            const LEN: usize = 10_000; // several packets
            let (src, dst) = (a.pd.alloc_buffer(LEN)?, b.pd.alloc_buffer(2 * LEN)?);
            let grant = dst.grant(..LEN, Access::REMOTE_WRITE)?;
            let (first, second) = (
                a.pd.qp_builder::<Uc>(&a.cq).mtu(Mtu::B512).build()?,
                b.pd.qp_builder::<Uc>(&b.cq).build()?,
            );
            for i in 0..2 {
                second.post_recv(Recv::new(dst.slice(LEN..)?).wr_id(i))?;
            }
            let (to, from) = (second.endpoint(), first.endpoint());
            let (second, first) = (second.connect(from)?, first.connect(to)?);
            let data = pattern(3, LEN);
            src.write_at(0, &data)?;
            first.post(Write::new(src.slice(..)?, grant.remote()).imm(7).wr_id(1))?;
            first.post(Send::new(src.slice(5..)?).wr_id(2))?;
            let (one, two) = (b.cq.wait(hang())?.ok()?, b.cq.wait(hang())?.ok()?);
            let kinds = [
                (one.opcode, one.wr_id, one.imm),
                (two.opcode, two.wr_id, two.imm),
            ];
            for _ in 0..2 {
                a.cq.wait(hang())?.check()?;
            }
            let got = (dst.to_vec(..LEN)?, dst.to_vec(LEN..2 * LEN - 5)?);
            let info = first.query()?;
            // Nobody is told that there is no receive, and no such memory.
            first.post(Send::empty())?;
            let wrong = RemoteSlice::new(1 << 40, 8, 0xbad_bad)?;
            first.post(Write::inline_bytes(b"lost too", wrong))?;
            for _ in 0..2 {
                a.cq.wait(hang())?.check()?;
            }
            let after = [&first, &second].map(|qp| qp.query().map(|info| info.state).ok());
            let ends = (*first.peer() == to, first.endpoint() == from);
            Ok(equal(
                "completions",
                kinds,
                [(Opcode::RecvWriteImm, 0, Some(7)), (Opcode::Recv, 1, None)],
            )
            .and_then(|()| check("what was written", got.0 == data))
            .and_then(|()| check("what was sent", got.1 == data[5..]))
            .and_then(|()| equal("its peer", info.dest_qp_num, second.qp_num()))
            .and_then(|()| {
                equal(
                    "what it lets its peer do",
                    info.access,
                    Access::REMOTE_WRITE,
                )
            })
            .and_then(|()| equal("its MTU", info.path_mtu, Some(Mtu::B512)))
            .and_then(|()| equal("its ends", ends, (true, true)))
            .and_then(|()| equal("the states", after, [Some(QpState::Rts); 2])))
        },
    );
}

// --- messages that take grants away ----------------------------------------------------------------------------

fn invalidating(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "RC: a send takes a grant away, and no other",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let mem = b.pd.alloc_buffer(8192)?;
            let gone = mem.grant(..4096, Access::REMOTE_WRITE)?;
            let kept = mem.grant(4096.., Access::REMOTE_WRITE)?;
            second.post_recv(Recv::empty().wr_id(1))?;
            first.post(Write::inline_bytes(b"once", gone.remote()))?;
            // The key takes the place of the immediate data.
            first.post(Send::empty().imm(9).invalidate(gone.remote()).wr_id(2))?;
            let came = next(&b.cq, Opcode::Recv)?;
            let told = (came.wr_id, came.imm, came.invalidated);
            first.post(Write::inline_bytes(b"kept", kept.remote()))?;
            let sent = next(&a.cq, Opcode::Send)?;
            let sent = (sent.wr_id, sent.invalidated);
            pass(&a.cq, Opcode::Write)?;
            first.post(Write::inline_bytes(b"twice", gone.remote()))?;
            let refused = failure(&first, &a.cq).map(|error| error.status);
            let bytes = (mem.to_vec(..5)?, mem.to_vec(4096..4100)?);
            // The kernel's own revoke has nothing against a key that is dead already.
            gone.revoke()?;
            let key = Some(gone.remote().rkey());
            Ok(equal("told", told, (1, None, key))
                .and_then(|()| equal("the sender is told", sent, (2, None)))
                .and_then(|()| equal("then", refused, Ok(Status::RemoteAccess)))
                .and_then(|()| equal("bytes", (&bytes.0[..], &bytes.1[..]), (b"once\0", b"kept"))))
        },
    );
}

// --- datagrams ----------------------------------------------------------------------------------------------

fn datagrams(r: &mut Report, a: &Host, b: &Host) {
    for (name, ipv4) in [("IPv4", true), ("IPv6", false)] {
        case(
            r,
            &format!("UD over {name}: a datagram and its answer"),
            (a, b),
            |a, b| {
                let open = |host: &Host| -> R<Qp<Ud>> {
                    let chosen = host.dev.default_gid()?;
                    let gids = host.dev.gids(chosen.port)?;
                    let gid = gids
                        .iter()
                        .find(|gid| gid.is_ipv4 == ipv4 && !gid.is_link_local);
                    let index = gid.map_or(chosen.gid_index, |gid| gid.index);
                    let qp = host.pd.qp_builder::<Ud>(&host.cq).gid(chosen.port, index);
                    qp.traffic_class(TrafficClass(0x20)).build()?.ready()
                };
                let (asker, answerer) = (open(a)?, open(b)?);
                let info = asker.query()?;
                let mtu = asker.endpoint().mtu.bytes() as usize;
                let (mem_a, mem_b) = (a.pd.alloc_buffer(8192)?, b.pd.alloc_buffer(8192)?);
                let (room_a, room_b) = (mem_a.slice(..4096)?, mem_b.slice(..Grh::LEN + mtu)?);
                answerer.post_recv(Recv::new(room_b).wr_id(1))?;
                asker.post_recv(Recv::new(room_a).wr_id(2))?;
                let data = pattern(4, mtu);
                mem_a.write_at(4096, &data)?;
                let ah = asker.address(&answerer.endpoint())?;
                // Whoever has another Q_Key does not take it; nobody is told.
                let stranger = ah.queue_pair(answerer.qp_num(), 0x1234);
                asker.post(SendTo::inline_bytes(b"lost", &stranger))?;
                pass(&a.cq, Opcode::Send)?;
                let to = ah.queue_pair(answerer.qp_num(), answerer.qkey());
                let whole = mem_a.slice(4096..4096 + mtu)?;
                asker.post(SendTo::new(whole, &to).imm(0xfeed))?;
                let got = answerer.received(&next(&b.cq, Opcode::Recv)?, &room_b)?;
                let back = answerer.reply_to(&got)?;
                answerer.post(SendTo::inline_bytes(b"thanks", &back))?;
                let answer = asker.received(&next(&a.cq, Opcode::Recv)?, &room_a)?;
                let said = answer.payload.to_vec()?;
                let back_to = (back.qp_num(), back.qkey());
                let hops = (ah.path().hop_limit, got.grh.map(|grh| grh.hop_limit));
                let parts = [got.payload.slice(..3)?, got.payload.slice(7..11)?];
                asker.post_recv(Recv::new(room_a))?;
                answerer.post(SendTo::gather(&parts, &back))?;
                let parts = asker.received(&next(&a.cq, Opcode::Recv)?, &room_a)?;
                let parts = parts.payload.to_vec()? == [&data[..3], &data[7..11]].concat();
                let too_long = mem_a.slice(4096 - 1..4096 + mtu)?;
                let refused = asker.post(SendTo::new(too_long, &to));
                let payload = got.payload.to_vec()?;
                let ends = |grh: Option<Grh>| grh.map(|grh| (grh.src, grh.dst));
                let (at_a, at_b) = (asker.endpoint().gid, answerer.endpoint().gid);
                Ok(check("the bytes", payload == data)
                    .and_then(|()| {
                        let want = (QpState::Rts, asker.qkey());
                        equal("the asker", (info.state, info.qkey), want)
                    })
                    .and_then(|()| {
                        let want = (asker.qp_num(), answerer.qkey());
                        equal("who is answered", back_to, want)
                    })
                    .and_then(|()| equal("hops", hops, (64, Some(64))))
                    .and_then(|()| check("an answer of parts", parts))
                    .and_then(|()| equal("who sent it", got.src_qp, asker.qp_num()))
                    .and_then(|()| equal("immediate data", got.imm, Some(0xfeed)))
                    .and_then(|()| equal("its header", ends(got.grh), Some((at_a, at_b))))
                    .and_then(|()| {
                        let class = got.grh.map(|grh| grh.traffic_class.0);
                        equal("its traffic class", class, Some(0x20))
                    })
                    .and_then(|()| equal("the answer", &said[..], b"thanks"))
                    .and_then(|()| equal("its header", ends(answer.grh), Some((at_b, at_a))))
                    .and_then(|()| {
                        let named = matches!(refused, Err(Error::DatagramTooLong { .. }));
                        check("a datagram that is too long is refused", named)
                    }))
            },
        );
    }
    case(
        r,
        "UD: addresses may go while datagrams are under way",
        (a, b),
        |a, b| {
            let (from, to) = (
                a.pd.qp_builder::<Ud>(&a.cq).build()?.ready()?,
                b.pd.qp_builder::<Ud>(&b.cq).build()?.ready()?,
            );
            let mem = b.pd.alloc_buffer(4096)?;
            for i in 0..32 {
                to.post_recv(Recv::new(mem.slice(..128)?).wr_id(i))?;
            }
            for _ in 0..32 {
                let ah = from.address(&to.endpoint())?;
                from.post(SendTo::inline_bytes(
                    b"x",
                    &ah.queue_pair(to.qp_num(), to.qkey()),
                ))?;
            }
            for _ in 0..32 {
                pass(&a.cq, Opcode::Send)?;
            }
            let mut order = Vec::new();
            for _ in 0..32 {
                order.push(next(&b.cq, Opcode::Recv)?.wr_id);
            }
            Ok(equal("completions", order, (0..32).collect()))
        },
    );
}

// --- shared receives ------------------------------------------------------------------------------------------

fn shared(r: &mut Report, a: &Host, b: &Host) {
    case(r, "SRQ: two connections share receives", (a, b), |a, b| {
        let srq = b.pd.srq_builder(&b.cq).max_wr(16).max_sge(1).build()?;
        let mem = b.pd.alloc_buffer(4096)?;
        let pair = || -> R<(Qp<Rc>, Qp<Rc>)> {
            let first = a.qp().build()?;
            let second = b.qp().srq(&srq).build()?;
            let (to, from) = (second.endpoint(), first.endpoint());
            let second = second.connect(from)?;
            Ok((first.connect(to)?, second))
        };
        let ((a1, b1), (a2, b2)) = (pair()?, pair()?);
        let rooms = (0..8).map(|i| mem.slice(i * 64..i * 64 + 64));
        let rooms = rooms.collect::<R<Vec<_>>>()?;
        let mut batch = b.dev.batch();
        for (room, i) in rooms.iter().zip(0..) {
            batch.push(&srq, Recv::new(*room).wr_id(i))?;
        }
        batch.submit()?;
        let before = srq.query()?;
        let mut seen = Vec::new();
        for i in 0..8u8 {
            let (from, to) = if i % 3 == 0 { (&a1, &b1) } else { (&a2, &b2) };
            from.post(Send::inline_bytes(&[i; 5]))?;
            let done = next(&b.cq, Opcode::Recv)?;
            pass(&a.cq, Opcode::Send)?;
            let bytes = mem.to_vec(usize::from(i) * 64..usize::from(i) * 64 + 5)?;
            seen.push((done.wr_id, done.is_of(to), bytes == [i; 5]));
        }
        let refused = b1.post_recv(Recv::empty());
        let sizes = (srq.max_wr(), srq.max_sge());
        let limit = srq.arm_limit(17).err().and_then(|error| error.errno());
        (0..16).try_for_each(|_| srq.post_recv(Recv::empty()))?;
        let full = srq.post_recv(Recv::empty()).err();
        let full = full.is_some_and(|error| error.is_backpressure());
        Ok(equal("posted", before.recvs_in_flight, 8)
            .and_then(|()| equal("sizes", sizes, (16, 1)))
            .and_then(|()| equal("a limit beyond them", limit, Some(libc::ERANGE)))
            .and_then(|()| check("a full one: back-pressure", full))
            .and_then(|()| {
                equal(
                    "who got what",
                    seen,
                    (0..8).map(|i| (i, true, true)).collect(),
                )
            })
            .and_then(|()| {
                check(
                    "its own receive",
                    matches!(refused, Err(Error::SharedReceives)),
                )
            }))
    });
}

// --- events -----------------------------------------------------------------------------------------------------

fn events(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "events: the limit of a shared receive queue, once",
        (a, b),
        |a, b| {
            let srq = b.pd.srq_builder(&b.cq).max_wr(16).limit(2).build()?;
            let events = b.dev.events();
            while events.next_event()?.is_some() {}
            let first = a.qp().build()?;
            let second = b.qp().srq(&srq).build()?;
            let (to, from) = (second.endpoint(), first.endpoint());
            let (_second, first) = (second.connect(from)?, first.connect(to)?);
            (0..4).try_for_each(|i| srq.post_recv(Recv::empty().wr_id(i)))?;
            for _ in 0..2 {
                first.post(Send::empty())?;
                pass(&b.cq, Opcode::Recv)?;
                pass(&a.cq, Opcode::Send)?;
            }
            let early = events.next_event()?;
            first.post(Send::empty())?;
            let event = events.wait(hang())?;
            pass(&b.cq, Opcode::Recv)?;
            pass(&a.cq, Opcode::Send)?;
            let info = srq.query()?;
            first.post(Send::empty())?;
            pass(&b.cq, Opcode::Recv)?;
            pass(&a.cq, Opcode::Send)?;
            let late = events.wait(SHORT);
            Ok(equal("before", early, None)
                .and_then(|()| equal("then", event.kind, EventKind::SrqLimit))
                .and_then(|()| {
                    let about = (event.is_about(&srq), event.is_about(&b.cq));
                    equal("it is about the queue", about, (true, false))
                })
                .and_then(|()| equal("disarmed", info.limit, None))
                .and_then(|()| check("once", matches!(late, Err(Error::Timeout { .. })))))
        },
    );
    case(
        r,
        "events: each goes to one of several readers",
        (a, b),
        |a, b| {
            let srq = b.pd.srq_builder(&b.cq).max_wr(16).build()?;
            let events = b.dev.events();
            let done = Arc::new(AtomicBool::new(false));
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let events = events.clone();
                    let done = Arc::clone(&done);
                    std::thread::spawn(move || loop {
                        let told = events.wait(SHORT).is_ok();
                        if told || done.load(Ordering::Relaxed) {
                            return told;
                        }
                    })
                })
                .collect();
            let first = a.qp().build()?;
            let second = b.qp().srq(&srq).build()?;
            let (to, from) = (second.endpoint(), first.endpoint());
            let (_second, first) = (second.connect(from)?, first.connect(to)?);
            (0..2).try_for_each(|i| srq.post_recv(Recv::empty().wr_id(i)))?;
            srq.arm_limit(2)?;
            first.post(Send::empty())?;
            pass(&b.cq, Opcode::Recv)?;
            pass(&a.cq, Opcode::Send)?;
            let end = Instant::now() + hang();
            while Instant::now() < end && !readers.iter().any(|reader| reader.is_finished()) {
                std::thread::sleep(SHORT);
            }
            // Leaves a second reader time to report the same event, which only one may get.
            std::thread::sleep(SHORT);
            done.store(true, Ordering::Relaxed);
            let told = readers.into_iter().filter_map(|reader| reader.join().ok());
            Ok(equal(
                "readers who were told",
                told.filter(|told| *told).count(),
                1,
            ))
        },
    );
}

// --- the connection manager -------------------------------------------------------------------------------------

fn address(host: &Host, port: u16) -> Outcome<SocketAddr> {
    let gid = host.dev.default_gid().map_err(because("its GID"))?.gid;
    let ip = gid.ipv4().ok_or("the chosen GID is no IPv4 address")?;
    Ok(SocketAddr::new(ip.into(), port))
}

fn manager(r: &mut Report, a: &Host, b: &Host) {
    let Some(any) = r.need("an address", || address(b, 0)) else {
        return;
    };
    case(
        r,
        "CM: a grant comes with the acceptance, a write goes",
        (a, b),
        |a, b| {
            // What was left in the shared receive queues above was flushed when they went.
            while let Some(completion) = b.cq.poll()? {
                let _ = completion.ok();
            }
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let addr = listener.local_addr();
            let mem = b.pd.alloc_buffer(4096)?;
            let grant = mem.grant(.., Access::REMOTE_WRITE)?;
            let theirs = b.qp().build()?;
            theirs.post_recv(Recv::empty().wr_id(9))?;
            let mut qp = a.qp().mtu(Mtu::B512).timeout(AckTimeout::at_least(SHORT));
            qp = qp.rd_atomic(3).rnr_retry(RnrRetries::new(2)?);
            qp = qp.retry_cnt(Retries::new(3)?);
            let ours = qp.traffic_class(TrafficClass::from_dscp(10)?).build()?;
            let (theirs, ours) = std::thread::scope(|scope| {
                let acceptor = scope.spawn(|| -> R<_> {
                    let request = listener.next_request(hang())?;
                    let private = request.private();
                    let said = (private.message()?.data, private.raw().len());
                    let asked = (request.params(), said, request.peer_qp_num());
                    let options = cm::AcceptOptions::new().grant(&grant).data(b"welcome");
                    Ok((request.accept(theirs, &options)?, asked))
                });
                let options = cm::ConnectOptions::new().data(b"me").timeout(hang());
                let ours = ours.connect_cm(addr, &options.flow_control());
                (acceptor.join(), ours)
            });
            let ours = ours?;
            let (theirs, (asked, (said, padded), number)) =
                theirs.map_err(|_| Error::NotConnected)??;
            let dst = ours.private().grant(0)?;
            let other = ours.private().grant(1).err().map(|error| error.kind());
            let agreed = [ours.params(), theirs.params()].map(|p| (p.responder, p.initiator));
            ours.qp()
                .post(Write::inline_bytes(b"by the manager", dst).imm(1))?;
            let came = next(&b.cq, Opcode::RecvWriteImm)?;
            pass(&a.cq, Opcode::Write)?;
            let got = mem.to_vec(..14)?;
            let info = ours.qp().query()?;
            let state = ours.query()?.state;
            let ends = (ours.qp().endpoint(), *theirs.qp().peer());
            let welcome = ours.private().message()?.data;
            let told = theirs.qp().query()?.rnr_retry.count();
            theirs.disconnect()?;
            let gone = loop {
                // The word takes its time.
                let state = ours.query()?.state;
                if state != cm::State::Established {
                    break state;
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            Ok(equal("what came", (came.wr_id, came.byte_len), (9, 14))
                .and_then(|()| equal("the bytes", &got[..], b"by the manager"))
                .and_then(|()| {
                    equal(
                        "what was said",
                        (&said[..], &welcome[..]),
                        (b"me", b"welcome"),
                    )
                })
                // Its end of the private data is zeros.
                .and_then(|()| equal("bytes of private data", padded, 56))
                .and_then(|()| equal("asked for", (asked.responder, asked.initiator), (3, 3)))
                .and_then(|()| {
                    let retries = (asked.retry_cnt.count(), asked.rnr_retry.count());
                    equal("retries asked for", retries, (3, Some(2)))
                })
                .and_then(|()| check("flow control is asked for", asked.flow_control))
                .and_then(|()| equal("the asking queue pair", number, ends.0.qp_num))
                .and_then(|()| equal("agreed", agreed, [(3, 3); 2]))
                .and_then(|()| equal("rights", dst.access(), Some(Access::REMOTE_WRITE)))
                .and_then(|()| equal("a second grant", other, Some(ErrorKind::InvalidInput)))
                .and_then(|()| equal("MTU", info.path_mtu, Some(Mtu::B512)))
                .and_then(|()| equal("RNR retries of the peer", told, Some(2)))
                .and_then(|()| equal("traffic class", info.path.traffic_class.dscp(), 10))
                .and_then(|()| equal("state", state, cm::State::Established))
                .and_then(|()| equal("number", ends.0.qp_num, ends.1.qp_num))
                .and_then(|()| equal("first packet", ends.0.psn, ends.1.psn))
                .and_then(|()| check("it has ended", gone != cm::State::Established)))
        },
    );
    case(
        r,
        "CM: a rejection says why and leaves the queue pair",
        (a, b),
        |a, b| {
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let addr = listener.local_addr();
            let ours = a.qp().build()?;
            ours.post_recv(Recv::empty())?;
            let (rejected, refused) = std::thread::scope(|scope| {
                let rejecter = scope.spawn(|| -> R<_> {
                    let request = listener.next_request(hang())?;
                    let said = request.private().message().err();
                    request.reject(b"not today")?;
                    Ok(said.map(|error| matches!(error, Error::Wire(_))))
                });
                let options = cm::ConnectOptions::new().raw(b"another form");
                let refused = ours.connect_cm(addr, &options.timeout(hang()));
                (rejecter.join(), refused)
            });
            let is_wire = rejected.map_err(|_| Error::NotConnected)??;
            let Err(error) = refused else {
                return Ok(Err("it connected".to_owned()));
            };
            let rejection = error.rejection().cloned();
            let text = error.to_string();
            drop(listener);
            let ours = error.into_qp();
            let left = ours.query()?;
            let nobody = ours.connect_cm(addr, &cm::ConnectOptions::new().timeout(hang()));
            let nobody = nobody.err().map(Error::from);
            let nobody = nobody.ok_or(Error::NotConnected)?;
            let hint = (nobody.is_retryable(), nobody.errno());
            let words = nobody.to_string().contains("nobody listens");
            Ok(match rejection {
                Some(rejection) => equal("why", rejection.reason, cm::RejectReason::Program)
                    .and_then(|()| {
                        check("words", rejection.private.raw().starts_with(b"not today"))
                    }),
                None => Err("it was no rejection".to_owned()),
            }
            .and_then(|()| {
                let named = text.contains("reason 28") && text.contains(&addr.to_string());
                check("the text has reason and address", named)
            })
            .and_then(|()| equal("data of another form", is_wire, Some(true)))
            .and_then(|()| equal("its receives", left.recvs_in_flight, 1))
            .and_then(|()| check("nobody listens: it says so", words))
            .and_then(|()| {
                let refused = Some(libc::ECONNREFUSED);
                equal("nobody listens", hint, (true, refused))
            }))
        },
    );
    // Of files of their own, whose events are of this case.
    let Some([a2, b2]) = r.need("two more ends", Host::two) else {
        return;
    };
    case(
        r,
        "CM: both sides connect without waiting",
        (a, b),
        |_, _| {
            let (a, b) = (&a2, &b2);
            let listener = cm::Listener::bind_with(&b.dev, any, 4, 5)?;
            let options = cm::ConnectOptions::new().data(b"later").user_data(6);
            let ours = a.qp().build()?;
            let ours = ours.begin_connect_cm(listener.local_addr(), &options)?;
            let (asked, wanted) = (b.dev.events(), a.dev.events());
            let request = asked.wait(hang())?;
            let first = (request.kind, request.user_data, request.is_about(&listener));
            let state = ours.state()?;
            let options = cm::AcceptOptions::new().data(b"welcome").user_data(7);
            let theirs = listener.next_request(Duration::ZERO)?;
            let later = theirs.private().message()?.data;
            let theirs = theirs.begin_accept(b.qp().build()?, &options)?;
            let ends = [
                (wanted.wait(hang())?, &ours, 6),
                (asked.wait(hang())?, &theirs, 7),
            ];
            let told = ends.map(|(event, pending, value)| {
                event.kind == EventKind::Established
                    && event.user_data == value
                    && event.is_about(pending)
            });
            // Over: nobody waits any more.
            let (ours, theirs) = (ours.finish(Duration::ZERO)?, theirs.finish(Duration::ZERO)?);
            let numbers = (ours.qp().peer().qp_num, theirs.qp().peer().qp_num);
            let values = (ours.query()?.user_data, theirs.query()?.user_data);
            theirs.qp().post_recv(Recv::empty().wr_id(3))?;
            ours.qp().post(Send::empty())?;
            let came = next(&b.cq, Opcode::Recv)?.wr_id;
            let welcome = ours.private().message()?.data;
            // It ends at both sides when one is dropped.
            let survivor = ours.qp().clone();
            drop(ours);
            let end = asked.wait(hang())?;
            let end = (end.kind, end.user_data, end.is_about(&theirs));
            let states = (theirs.query()?.state, survivor.query()?.state);
            let again = theirs.disconnect().err().ok_or(Error::NotConnected)?;
            let waiting = EventKind::ConnectRequest { waiting: 1 };
            Ok(equal("the request", first, (waiting, 5, true))
                .and_then(|()| equal("until then", state, cm::State::Connecting))
                .and_then(|()| equal("both are told", told, [true; 2]))
                .and_then(|()| {
                    let own = (theirs.qp().qp_num(), survivor.qp_num());
                    equal("they have each other", numbers, own)
                })
                .and_then(|()| equal("their values", values, (6, 7)))
                .and_then(|()| equal("a message", came, 3))
                .and_then(|()| {
                    let said = (&later[..], &welcome[..]);
                    equal("what was said", said, (b"later", b"welcome"))
                })
                .and_then(|()| equal("the end", end, (EventKind::Disconnected, 7, true)))
                .and_then(|()| {
                    let want = (cm::State::Disconnected, QpState::Err);
                    equal("states after it", states, want)
                })
                .and_then(|()| equal("ending it again", again.errno(), Some(libc::ENOTCONN)))
                .and_then(|()| check("it says so", again.to_string().contains("has ended"))))
        },
    );
    case(
        r,
        "CM: finish() of a connection that its peer has used and ended: it has the message",
        (&a2, &b2),
        |a, b| {
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let options = cm::ConnectOptions::new();
            let ours = a.qp().build()?;
            let ours = ours.begin_connect_cm(listener.local_addr(), &options)?;
            let theirs = b.qp().build()?;
            theirs.post_recv(Recv::empty().wr_id(4))?;
            let request = listener.next_request(hang())?;
            let theirs = request.begin_accept(theirs, &cm::AcceptOptions::new())?;
            let ours = ours.finish(hang())?;
            ours.qp().post(Send::empty())?;
            let came = next(&b.cq, Opcode::Recv)?.wr_id;
            let events = b.dev.events();
            let told = |kind| -> R {
                loop {
                    let event = events.wait(hang())?;
                    if event.kind == kind && event.is_about(&theirs) {
                        return Ok(());
                    }
                }
            };
            // Its end may overtake what establishes the connection.
            told(EventKind::Established)?;
            drop(ours);
            told(EventKind::Disconnected)?;
            let theirs = theirs.finish(Duration::ZERO)?;
            theirs.qp().post(Send::empty())?;
            let status = b.cq.wait(hang())?.status;
            let states = (theirs.query()?.state, theirs.qp().query()?.state);
            Ok(equal("the message", came, 4)
                .and_then(|()| equal("a send after it", status, Status::Flushed))
                .and_then(|()| {
                    let want = (cm::State::Disconnected, QpState::Err);
                    equal("states", states, want)
                }))
        },
    );
    case(
        r,
        "CM: the time limit ends a request that nobody takes",
        (a, b),
        |a, b| {
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let options = cm::ConnectOptions::new().timeout(SHORT);
            let ours = a.qp().build()?.connect_cm(listener.local_addr(), &options);
            let empty = cm::Listener::bind(&b.dev, any, 1)?.next_request(SHORT);
            let taken = cm::Listener::bind(&b.dev, listener.local_addr(), 1);
            Ok(match ours {
                Err(error) => check("a time-out", matches!(error.error(), Error::Timeout { .. })),
                Ok(_) => Err("it connected".to_owned()),
            }
            .and_then(|()| check("no request", matches!(empty, Err(Error::Timeout { .. }))))
            .and_then(|()| {
                let errno = taken.err().and_then(|error| error.errno());
                equal("the port is taken", errno, Some(libc::EADDRINUSE))
            }))
        },
    );
}

/// Attempts that fail, limits of a listener, and what private data takes.
fn manager_refuses(r: &mut Report, a: &Host, b: &Host) {
    let Some(any) = r.need("an address", || address(b, 0)) else {
        return;
    };
    let options = cm::ConnectOptions::new();
    case(
        r,
        "CM: attempts for which nobody waits fail, and say why",
        (a, b),
        |a, b| {
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let addr = listener.local_addr();
            let begin = || -> R<_> { Ok(a.qp().build()?.begin_connect_cm(addr, &options)?) };
            let failed = |pending: cm::Pending| -> R<_> {
                while pending.state()? == cm::State::Connecting {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let state = pending.state()?;
                let error = pending.finish(Duration::ZERO).err();
                let rejection = error.and_then(|error| error.rejection().cloned());
                Ok((state, rejection))
            };
            let rejected = begin()?;
            listener.next_request(hang())?.reject(b"no")?;
            let rejected = failed(rejected)?;
            let dropped = begin()?;
            drop(listener.next_request(hang())?);
            let dropped = failed(dropped)?;
            let timed_out = begin()?.finish(SHORT).err();
            let timed_out = timed_out.map(|error| error.error().kind());
            drop(listener);
            let nobody = failed(begin()?)?;
            let said = rejected.1.as_ref().map(|it| it.private.raw()[..2].to_vec());
            let program = cm::RejectReason::Program;
            let reasons = [&rejected, &dropped, &nobody].map(|(state, rejection)| {
                let reason = rejection.as_ref().map(|it| it.reason);
                (*state, reason)
            });
            let want = [program, program, cm::RejectReason::NoListener];
            let want = want.map(|reason| (cm::State::Failed, Some(reason)));
            Ok(equal("rejected, dropped, nobody there", reasons, want)
                .and_then(|()| equal("what was said", said.as_deref(), Some(&b"no"[..])))
                .and_then(|()| equal("not taken", timed_out, Some(ErrorKind::TimedOut))))
        },
    );
    case(
        r,
        "CM: accepting a request whose sender has gone: ECONNRESET",
        (a, b),
        |a, b| {
            let listener = cm::Listener::bind(&b.dev, any, 4)?;
            let addr = listener.local_addr();
            let gone = a.qp().build()?.begin_connect_cm(addr, &options)?;
            let late = listener.next_request(hang())?;
            drop(gone);
            // What is sent after the word that it is gone has come, too.
            let next = a.qp().build()?.begin_connect_cm(addr, &options)?;
            let request = listener.next_request(hang())?;
            let error = late.accept(b.qp().build()?, &cm::AcceptOptions::new());
            let Err(error) = error else {
                return Ok(Err("it connected".to_owned()));
            };
            let errno = error.error().errno();
            let state = error.into_qp().query()?.state;
            drop((request, next));
            Ok(equal("the error", errno, Some(libc::ECONNRESET))
                .and_then(|()| equal("its queue pair", state, QpState::Init)))
        },
    );
    case(
        r,
        "CM: a listener keeps its backlog, and counts the others",
        (a, b),
        |a, b| {
            let none = cm::Listener::bind(&b.dev, any, 0);
            let none = none.err().and_then(|error| error.errno());
            let listener = cm::Listener::bind(&b.dev, any, 2)?;
            let addr = listener.local_addr();
            let begin = || -> R<_> { Ok(a.qp().build()?.begin_connect_cm(addr, &options)?) };
            let (one, two) = (begin()?, begin()?);
            while listener.query()?.waiting != 2 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let third = begin()?.finish(hang()).err();
            let third = third.map(|error| error.rejection().is_some());
            let info = listener.query()?;
            let numbers = (info.waiting, info.backlog, info.rejected);
            // A queue pair of another file than the listener's; too long a word.
            let other = listener.next_request(hang())?;
            let other = other.accept(a.qp().build()?, &cm::AcceptOptions::new());
            let other = other.err().and_then(|error| error.error().errno());
            let long = listener.next_request(hang())?.reject(&[0; 149]).err();
            let long = matches!(
                long,
                Some(Error::TooMany {
                    count: 149,
                    max: 148,
                    ..
                })
            );
            let ended = [one, two].map(|pending| pending.finish(hang()).err());
            let ended = ended.map(|error| error.is_some_and(|e| e.rejection().is_some()));
            Ok(equal("no backlog", none, Some(libc::ERANGE))
                .and_then(|()| equal("the third is rejected", third, Some(true)))
                .and_then(|()| equal("waiting, backlog, rejected", numbers, (2, 2, 1)))
                .and_then(|()| equal("another file", other, Some(libc::EXDEV)))
                .and_then(|()| check("149 bytes of a rejection: TooMany", long))
                .and_then(|()| equal("both are rejected then", ended, [true; 2])))
        },
    );
    case(
        r,
        "CM: more private data than a request carries: TooMany",
        (a, b),
        |a, _| {
            let grant = a.pd.alloc_buffer(4096)?;
            let grant = grant.grant(.., Access::REMOTE_READ)?;
            let options = options.clone().grant(&grant).grant(&grant);
            // Two grants leave four bytes.
            let long = a
                .qp()
                .build()?
                .begin_connect_cm(any, &options.data(b"12345"));
            let Err(error) = long else {
                return Ok(Err("it began".to_owned()));
            };
            let is_it = matches!(
                error.error(),
                Error::TooMany {
                    count: 57,
                    max: 56,
                    ..
                }
            );
            Ok(check(error.to_string(), is_it))
        },
    );
}

/// The RoCE packets to a host of `two-hosts` are lost until it is dropped.
struct Deaf(&'static str);

impl Deaf {
    fn new(host: &'static str) -> Outcome<Self> {
        let rules = "add table inet deaf; \
            add chain inet deaf in { type filter hook input priority 0; }; \
            add rule inet deaf in udp dport 4791 drop";
        nft(host, rules).map(|()| Self(host))
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        let _ = nft(self.0, "delete table inet deaf");
    }
}

fn nft(host: &str, rules: &str) -> Outcome {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host, "nft", rules]);
    let status = command.stdin(Stdio::null()).status();
    check("nft", status.map_err(because("ip netns"))?.success())
}

/// Waits until it is so.
fn until(what: &str, so: impl Fn() -> bool) -> Outcome {
    let end = Instant::now() + hang();
    while !so() {
        check(what, Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Returns whether a thread of this process sleeps in the module.
fn sleeps_in_module(thread: i32) -> bool {
    let read = |name| fs::read_to_string(format!("/proc/self/task/{thread}/{name}"));
    let (stack, stat) = (read("stack"), read("stat"));
    stack.is_ok_and(|stack| stack.contains("rust_ulp")) && stat.is_ok_and(|s| s.contains(") S "))
}

/// Runs `wait` in a thread, which three signals wake while it sleeps in the module, then `end`,
/// which may take the time that it is given: none if a signal has ended the wait.
///
/// The handler runs in that thread, so that the system call has ended each time.
fn interrupted<T: std::marker::Send, E: Display + std::marker::Send, U>(
    what: &str,
    wait: impl FnOnce() -> Result<T, E> + std::marker::Send,
    end: impl FnOnce(Duration) -> U,
) -> Outcome<(T, U)> {
    let handled = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGUSR1, handled.clone()).map_err(because("the handler"))?;
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let waiter = scope.spawn(move || {
            let _ = tell.send(fs::read_link("/proc/thread-self"));
            wait()
        });
        let thread = told.recv().map_err(because("the thread"))?;
        let thread = thread.map_err(because("/proc/thread-self"))?;
        let thread = thread
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let thread = thread.ok_or("the number of the thread")?;
        let sleeps = || sleeps_in_module(thread) || waiter.is_finished();
        let mut signals = 0;
        until("it sleeps", sleeps)?;
        while signals < 3 && !waiter.is_finished() {
            handled.store(false, Ordering::Relaxed);
            send_signal(thread, SIGUSR1).map_err(because("tgkill"))?;
            until("the handler runs", || handled.load(Ordering::Relaxed))?;
            signals += 1;
            until("it sleeps again", sleeps)?;
        }
        let time = if waiter.is_finished() {
            Duration::ZERO
        } else {
            hang()
        };
        let end = end(time);
        let got = waiter
            .join()
            .map_err(|_| "it panicked")?
            .map_err(because(what))?;
        equal("signals that it waited on after", signals, 3)?;
        Ok((got, end))
    })
}

/// Signals whose handlers return, while the connection manager is waited for.
fn manager_and_signals(r: &mut Report, a: &Host, b: &Host) {
    let Some(any) = r.need("an address", || address(b, 0)) else {
        return;
    };
    let name = "CM: signals end no wait: next_request(), accept(), connect_cm()";
    if !std::path::Path::new("/run/netns/h1").exists() {
        return r.skip(name, "it needs two hosts");
    }
    r.case(name, || {
        let (long, accepting) = (
            cm::ConnectOptions::new().timeout(hang()),
            cm::AcceptOptions::new().timeout(hang()),
        );
        let qp = |host: &Host| host.qp().build().map_err(because("a queue pair"));
        let listener = cm::Listener::bind(&b.dev, any, 4).map_err(because("listening"))?;
        let addr = listener.local_addr();
        let (first, second, third, fourth) = (qp(a)?, qp(b)?, qp(a)?, qp(b)?);

        let (request, pending) = interrupted(
            "next_request()",
            || listener.next_request(hang()),
            |_| first.begin_connect_cm(addr, &long),
        )?;
        let pending = pending.map_err(because("begin_connect_cm()"))?;
        // The acceptance does not arrive, so that the message that ends its wait does not come.
        let deaf = Deaf::new("h1")?;
        let (theirs, ours) = interrupted(
            "accept()",
            || request.accept(second, &accepting),
            |time| {
                drop(deaf);
                pending.finish(time)
            },
        )?;
        let ours = ours.map_err(because("finish()"))?;
        let peers = (ours.qp().peer().qp_num, theirs.qp().peer().qp_num);
        let want = (theirs.qp().qp_num(), ours.qp().qp_num());
        equal("each other's number", peers, want)?;

        let (ours, theirs) = interrupted(
            "connect_cm()",
            || third.connect_cm(addr, &long),
            |time| {
                let request = listener.next_request(time);
                request.map(|request| request.accept(fourth, &accepting))
            },
        )?;
        let theirs = theirs.map_err(because("the second request"))?;
        let theirs = theirs.map_err(because("the second accept()"))?;
        let number = ours.qp().peer().qp_num;
        equal("the peer of the second", number, theirs.qp().qp_num())
    });
}

// --- deadlines, cancel, eventfds --------------------------------------------------------------------------------

fn unfinished(r: &mut Report, a: &Host, b: &Host) {
    for fate in ["dropped", "forgotten", "canceled", "late"] {
        let name = format!("a request of each kind in flight: {fate}");
        case(r, &name, (a, b), |a, b| in_flight(a, b, fate));
    }
    case(
        r,
        "a receive times out, and the queue pair goes on",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            // Each request of a batch has its own deadline.
            let mut batch = second.batch();
            batch.push(Recv::empty().wr_id(1).timeout(SHORT / 10))?;
            batch.push(Recv::empty().wr_id(3))?;
            batch.submit_and_wait(1, hang())?;
            let late = b.cq.wait(hang())?;
            // The device has it still: the first message is lost to it.
            second.post_recv(Recv::empty().wr_id(2))?;
            for _ in 0..3 {
                first.post(Send::empty().timeout(hang()))?;
                pass(&a.cq, Opcode::Send)?;
            }
            let mut done = Vec::new();
            for _ in 0..2 {
                done.push(next(&b.cq, Opcode::Recv)?.wr_id);
            }
            Ok(
                equal("first", (late.wr_id, late.status), (1, Status::TimedOut))
                    .and_then(|()| check("it is of its queue", late.is_of(&second)))
                    .and_then(|()| check("it is unfinished", late.status.is_unfinished()))
                    .and_then(|()| equal("then", &done[..], &[3, 2])),
            )
        },
    );
    case(
        r,
        "canceling by number and all, of each queue",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            for wr_id in [5, 6, 5, 7] {
                second.post_recv(Recv::empty().wr_id(wr_id))?;
            }
            second.post_recv(Recv::empty().wr_id(0))?;
            let counts = [
                second.cancel(8)?,
                second.cancel(5)?,
                second.cancel(5)?,
                second.cancel(0)?,
                first.cancel_all()?,
                second.cancel_all()?,
            ];
            // Those that were canceled do not complete again.
            second.modify(QpAttr::to(QpState::Err))?;
            let prepared = b.qp().build()?;
            (8..10).try_for_each(|i| prepared.post_recv(Recv::empty().wr_id(i)))?;
            let early = [prepared.cancel(8)?, prepared.cancel_all()?];
            let srq = b.pd.srq_builder(&b.cq).max_wr(8).build()?;
            (0..3).try_for_each(|i| srq.post_recv(Recv::empty().wr_id(i)))?;
            let shared = [srq.cancel(1)?, srq.cancel_all()?];
            let mut told = Vec::new();
            for _ in 0..10 {
                let done = b.cq.wait(hang())?;
                told.push((done.wr_id, done.status == Status::Canceled));
            }
            let more = b.cq.poll()?;
            let order = [5, 5, 0, 6, 7, 8, 9, 1, 0, 2].map(|wr_id| (wr_id, true));
            Ok(equal("how many", counts, [0, 2, 0, 1, 0, 2])
                .and_then(|()| equal("of one not connected", early, [1, 1]))
                .and_then(|()| equal("nothing else", more, None))
                .and_then(|()| equal("of the shared ones", shared, [1, 2]))
                .and_then(|()| equal("completions", &told[..], &order[..])))
        },
    );
    case(
        r,
        "pieces in flight come back with their queue pair",
        (a, b),
        |a, b| {
            let [_first, second] = connect(a, b, None)?;
            let memory = b.pd.alloc_buffer(4096)?;
            let pool = Pool::new(memory.slice(..)?, 1024)?;
            while let Some(piece) = pool.take() {
                piece.post(&second, |memory| Ok(Recv::new(memory)))?;
            }
            second.cancel_all()?;
            let mut back = 0;
            for _ in 0..pool.len() {
                back += usize::from(pool.complete(&b.cq.wait(hang())?).is_some());
            }
            let before = pool.reclaim();
            drop(second);
            Ok(equal("by completions", back, 0)
                .and_then(|()| equal("before it goes", before, 0))
                .and_then(|()| equal("after", pool.reclaim(), pool.len())))
        },
    );
}

/// One request of each kind that waits for its peer, who has no receive for the first, and one receive: what
/// becomes of them when they are given up.
fn in_flight(a: &Host, b: &Host, fate: &str) -> R<Outcome> {
    let first = a.qp().rnr_retry(RnrRetries::FOREVER).build()?;
    let second = b.qp().access(Access::all()).build()?;
    let (to, from) = (second.endpoint(), first.endpoint());
    let (first, second) = (first.connect(to)?, second.connect(from)?);
    let (mem, theirs) = (a.pd.alloc_buffer(4096)?, b.pd.alloc_buffer(4096)?);
    let grant = theirs.grant(..8, Access::all())?;
    let (here, there) = (|| mem.slice(..8), grant.remote());
    macro_rules! post {
        ($request:expr) => {
            match fate {
                "late" => first.post($request.timeout(SHORT))?,
                _ => first.post($request)?,
            }
        };
    }
    first.post_recv(Recv::new(here()?))?;
    post!(Send::new(here()?));
    post!(Write::new(here()?, there));
    post!(Read::new(there, here()?));
    post!(CompareSwap::new(there, 0, 1, here()?));
    post!(FetchAdd::new(there, 1, here()?));
    let mut statuses = Vec::new();
    let mut told = |count: usize| -> R {
        for _ in 0..count {
            statuses.push(a.cq.wait(hang())?.status);
        }
        Ok(())
    };
    let want = match fate {
        "dropped" => {
            drop((mem, first));
            told(6)?;
            [Status::Flushed; 6]
        }
        "forgotten" => {
            std::mem::forget((mem, first));
            second.post_recv(Recv::new(theirs.slice(8..16)?))?;
            told(5)?;
            // Its queue pair is nobody's, and keeps the receive.
            statuses.push(Status::Success);
            [Status::Success; 6]
        }
        "canceled" => {
            first.cancel_all()?;
            told(6)?;
            [Status::Canceled; 6]
        }
        _ => {
            told(5)?;
            first.cancel_all()?;
            told(1)?;
            let mut want = [Status::TimedOut; 6];
            want[5] = Status::Canceled;
            want
        }
    };
    let [again, _peer] = connect(a, b, None)?;
    again.post(Write::new(a.pd.alloc_buffer(8)?.slice(..)?, there).wr_id(99))?;
    let last = a.cq.wait(hang())?;
    Ok(equal("statuses", &statuses[..], &want[..]).and_then(|()| {
        equal(
            "and another goes on",
            (last.wr_id, last.status),
            (99, Status::Success),
        )
    }))
}

fn rings(r: &mut Report, a: &Host, b: &Host) {
    rings_of(r, a, b, "", Ring::builder);
    let builder = || Ring::builder().single_issuer();
    rings_of(r, a, b, ", to a ring of one thread", builder);
    case(
        r,
        "a ring of one thread reports to poll, and to no other thread",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let mut ring = builder().entries(16).build()?;
            ring.push(&second, Recv::empty().wr_id(1))?;
            let elsewhere = std::thread::scope(|scope| scope.spawn(|| ring.submit()).join());
            let elsewhere = elsewhere.map(|result| result.map_err(|error| error.errno()));
            ring.submit()?;
            first.post(Send::empty())?;
            let mut fds = [PollFd::new(ring.as_fd(), PollFlags::POLLIN)];
            let readable = poll(&mut fds, PollTimeout::from(10_000_u16));
            let done = ring.poll()?.map(|done| done.wr_id);
            Ok(check(
                "another thread",
                matches!(elsewhere, Ok(Err(Some(libc::EEXIST)))),
            )
            .and_then(|()| equal("readable", readable, Ok(1)))
            .and_then(|()| equal("the receive", done, Some(1))))
        },
    );
}

fn rings_of(r: &mut Report, a: &Host, b: &Host, whose: &str, builder: fn() -> RingBuilder) {
    case(
        r,
        &format!("beside an eventfd, a ring has its own completions alone{whose}"),
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let exchange = |numbers: std::ops::Range<u64>| {
                for number in numbers {
                    second.post_recv(Recv::empty().wr_id(number))?;
                    first.post(Send::empty())?;
                    pass(&a.cq, Opcode::Send)?;
                }
                R::Ok(())
            };
            let mut ring = builder().entries(16).build()?;
            let file = b.cq.eventfd()?;
            let mut numbers = Vec::new();
            let mut take = |want: usize| -> R<Outcome> {
                while numbers.len() < want {
                    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
                    let ready = poll(&mut fds, PollTimeout::from(60_000_u16));
                    if ready != Ok(1) {
                        return Ok(Err(format!("{ready:?} after {numbers:?}")));
                    }
                    file.take()?;
                    while let Some(done) = b.cq.poll()? {
                        done.check()?;
                        numbers.push(done.wr_id);
                    }
                }
                Ok(Ok(()))
            };
            exchange(0..40)?;
            let early = take(40)?;
            // A request of the ring's own between them.
            ring.push(&second, Recv::empty().wr_id(1000))?;
            ring.submit()?;
            first.post(Send::empty())?;
            let own = ring.wait(hang())?;
            own.result?.check()?;
            exchange(40..60)?;
            let late = take(60)?;
            let nothing = ring.wait(SHORT);
            Ok(early
                .and(late)
                .and_then(|()| equal("numbers", numbers, (0..60).collect()))
                .and_then(|()| equal("the ring's", own.wr_id, 1000))
                .and_then(|()| {
                    check(
                        "nothing else",
                        matches!(nothing, Err(Error::Timeout { .. })),
                    )
                }))
        },
    );
    case(
        r,
        &format!("one call submits and waits for as many as it says{whose}"),
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let mut ring = builder().entries(16).build()?;
            for number in 0..4 {
                ring.push(&second, Recv::empty().wr_id(number))?;
            }
            ring.submit()?;
            for number in 4..8 {
                ring.push(&first, Send::empty().wr_id(number))?;
            }
            let posted = ring.submit_and_wait(8, hang())?;
            let mut numbers = Vec::new();
            while let Some(done) = ring.poll()? {
                done.result?.check()?;
                numbers.push(done.wr_id);
            }
            numbers.sort_unstable();
            // What is not there in time is an error, and what was added was submitted all the same.
            ring.push(&second, Recv::empty().wr_id(8))?;
            let late = ring.submit_and_wait(1, SHORT);
            first.post(Send::empty())?;
            let done = ring.wait(hang())?;
            Ok(equal("submitted", posted, 4)
                .and_then(|()| equal("numbers", numbers, (0..8).collect()))
                .and_then(|()| check("the time", matches!(late, Err(Error::Timeout { .. }))))
                .and_then(|()| equal("and then", done.wr_id, 8)))
        },
    );
    case(
        r,
        &format!("what was posted by a ring that is dropped is posted{whose}"),
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            for _ in 0..4 {
                second.post_recv(Recv::empty())?;
                let mut ring = builder().entries(4).build()?;
                let mut batch = a.dev.batch();
                batch.push(&first, Send::empty())?;
                batch.post_by(&mut ring, 1)?;
                ring.submit()?;
                drop(ring);
                pass(&a.cq, Opcode::Send)?;
                pass(&b.cq, Opcode::Recv)?;
            }
            Ok(Ok(()))
        },
    );
}

fn files(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "a file counts the completions of its queue",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let file = b.cq.eventfd()?;
            let busy = b.cq.eventfd();
            for i in 0..3 {
                second.post_recv(Recv::empty().wr_id(i))?;
                first.post(Send::empty())?;
                pass(&a.cq, Opcode::Send)?;
            }
            for _ in 0..3 {
                pass(&b.cq, Opcode::Recv)?;
            }
            let counts = (file.take()?, file.take()?);
            drop(file);
            let again = b.cq.eventfd();
            Ok(equal("completions", counts, (3, 0))
                .and_then(|()| check("one at a time", matches!(busy, Err(Error::Busy { .. }))))
                .and_then(|()| check("and then another", again.is_ok())))
        },
    );
}

/// `ulp-test nodes`: memory of each NUMA node, of which there are so many.
pub fn nodes(r: &mut Report, count: u16) {
    r.case("memory of each NUMA node, and of no other", || {
        let run = || -> R<Outcome> {
            let pd = Device::open_default()?.alloc_pd()?;
            let mut found = Vec::new();
            for node in 0..count {
                let info = pd.buffer_builder(4 << 20).node(node).build()?.query()?;
                found.push(info.node);
            }
            let beyond = pd.buffer_builder(4096).node(count).build();
            let refused = beyond.err().map(|error| error.kind());
            Ok(equal("nodes", found, (0..i32::from(count)).collect())
                .and_then(|()| equal("one more", refused, Some(ErrorKind::OutOfRange))))
        };
        run().map_err(because("a call"))?
    });
}

// --- memory and grants ------------------------------------------------------------------------------------------

fn memory(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "memory of this process at both ends, unaligned",
        (a, b),
        |a, b| {
            const LEN: usize = 3 << 20;
            let [first, _second] = connect(a, b, None)?;
            let (src, dst) = (
                a.pd.user_memory_builder(LEN).read_only().build()?,
                b.pd.user_memory_builder(LEN).huge_pages().build()?,
            );
            let data = pattern(9, LEN);
            src.write_at(0, &data)?;
            let grants = dst.grant_all(.., Access::all(), GrantOptions::new())?;
            for grant in &grants {
                let (from, len) = (grant.offset(), grant.remote().len() as usize);
                first.post(Write::new(src.slice(from..from + len)?, grant.remote()))?;
                a.cq.wait(hang())?.check()?;
            }
            // More than one key.
            let whole = dst.grant(.., Access::REMOTE_WRITE).err();
            let whole = whole.map(|error| error.errno());
            let (of_src, of_dst) = (src.query()?, dst.query()?);
            let same = dst.to_vec(..)? == data;
            Ok(check("the bytes", same)
                .and_then(|()| {
                    let want = (grants.len() > 1).then_some(Some(libc::ERANGE));
                    equal("all of it under one key", whole, want)
                })
                .and_then(|()| equal("whose", of_dst.kind, BufferKind::User))
                .and_then(|()| equal("grants", of_dst.grants as usize, grants.len()))
                .and_then(|()| check("charged", of_dst.charged >= LEN as u64))
                .and_then(|()| check("read-only", of_src.read_only && !of_dst.read_only)))
        },
    );
    case(
        r,
        "a key that was revoked opens nothing after its range is granted again",
        (a, b),
        |a, b| {
            let [first, _second] = connect(a, b, None)?;
            let mem = b.pd.alloc_buffer(4096)?;
            let grant = mem.grant(..64, Access::REMOTE_WRITE)?;
            let old = grant.remote();
            grant.revoke()?;
            let again = mem.grant(..64, Access::REMOTE_WRITE)?;
            let new = again.remote();
            first.post(Write::inline_bytes(b"new", new))?;
            a.cq.wait(hang())?.check()?;
            first.post(Write::inline_bytes(b"old", old))?;
            let refused = failure(&first, &a.cq).map(|error| error.status);
            let bytes = mem.to_vec(..3)?;
            let none = mem.grant(8..8, Access::REMOTE_READ).err();
            let rightless = mem.grant(.., Access::empty()).err();
            let bad = [none, rightless].map(|error| error.and_then(|error| error.errno()));
            Ok(check("another key", old.rkey() != new.rkey())
                .and_then(|()| equal("its length", new.len(), 64))
                .and_then(|()| equal("then", refused, Ok(Status::RemoteAccess)))
                .and_then(|()| check("bytes", bytes == b"new"))
                .and_then(|()| {
                    let want = [Some(libc::ERANGE), Some(libc::EINVAL)];
                    equal("a grant of nothing, and without rights", bad, want)
                }))
        },
    );
    case(
        r,
        "grants end by use and with their queue pair",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let events = b.dev.events();
            while events.next_event()?.is_some() {}
            let mem = b.pd.alloc_buffer(4096)?;
            let write = Access::REMOTE_WRITE;
            let bind = GrantOptions::new().bound_to(&second);
            let once = GrantOptions::new().ends_on_invalidate(&second).user_data(9);
            let once = mem.grant_with(..64, write, once)?;
            let bound = mem.grant_with(64..128, write, bind)?;
            let before = (once.query()?, bound.query()?);
            let before = [before.0.one_shot, before.0.bound, before.1.bound];
            let key = once.remote();
            first.post(Write::inline_bytes(b"x", key))?;
            pass(&a.cq, Opcode::Write)?;
            second.post_recv(Recv::empty())?;
            first.post(Send::empty().invalidate(key))?;
            pass(&b.cq, Opcode::Recv)?;
            pass(&a.cq, Opcode::Send)?;
            let of = |grant: &Grant| -> R<_> {
                loop {
                    let event = events.wait(hang())?;
                    if let EventKind::GrantEnded { state } = event.kind {
                        let about = event.is_about(grant) && !event.is_about(&second);
                        let info = grant.query()?;
                        let keyless = info.state == state && info.rkey.is_none();
                        return Ok((state, about && keyless, event.user_data));
                    }
                }
            };
            let used = of(&once)?;
            let still = bound.query()?.state;
            // The end of a grant that was dropped is not told.
            drop(mem.grant_with(128..256, write, bind)?);
            second.modify(QpAttr::to(QpState::Err))?;
            let expired = of(&bound)?;
            let prepared = b.qp().build()?;
            let bind = GrantOptions::new().bound_to(&prepared);
            let bound = mem.grant_with(64..128, write, bind)?;
            drop(prepared);
            let dropped = of(&bound)?;
            let more = events.next_event()?.map(|event| event.kind);
            let more = more.filter(|kind| matches!(kind, EventKind::GrantEnded { .. }));
            // Its key opens nothing.
            let [again, _peer] = connect(a, b, None)?;
            again.post(Write::inline_bytes(b"y", key))?;
            let refused = failure(&again, &a.cq).map(|error| error.status);
            Ok(equal("used", used, (GrantState::Used, true, 9))
                .and_then(|()| equal("for one use, bound, bound", before, [true; 3]))
                .and_then(|()| equal("the other", still, GrantState::Active))
                .and_then(|()| equal("expired", expired, (GrantState::Expired, true, 0)))
                .and_then(|()| {
                    let want = (GrantState::Expired, true, 0);
                    equal("of one that was dropped", dropped, want)
                })
                .and_then(|()| equal("more of them", more, None))
                .and_then(|()| equal("then", refused, Ok(Status::RemoteAccess))))
        },
    );
}

// --- diagnoses ----------------------------------------------------------------------------------------------------

/// Waits for a failed request, and until its queue pair is in ERR.
fn failed(qp: &Qp<Rc>, cq: &Cq) -> Outcome<CompletionError> {
    let error = failure(qp, cq)?;
    // rxe completes the request before it moves the queue pair to ERR (rxe_comp.c, COMPST_ERROR).
    let end = std::time::Instant::now() + hang();
    loop {
        let info = qp.query().map_err(because("asking for its state"))?;
        if info.state == QpState::Err {
            return Ok(error);
        }
        check("its queue pair fails", std::time::Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a request fail, and looks for what its explanation says.
fn explained(qp: &Qp<Rc>, cq: &Cq, statuses: &[Status], part: &str) -> Outcome {
    let error = failed(qp, cq)?;
    let (text, status) = (error.to_string(), error.status);
    check(format!("status {status:?}"), statuses.contains(&status))?;
    check(format!("{part:?} is not in {text}"), text.contains(part))
}

/// Makes a request fail, and compares the one cause that `ulp diagnose` names by this evidence.
fn caused(a: &Host, qp: &Qp<Rc>, evidence: Evidence, cause: Option<RetryCause>) -> Outcome {
    let error = failed(qp, &a.cq)?;
    equal("status", error.status, Status::RetryExceeded)?;
    let here = Here::of(&a.dev, qp).map_err(because("looking at this end"))?;
    equal(
        "the cause",
        evidence.cause(&here, &qp.endpoint(), qp.peer()),
        cause,
    )
}

fn diagnoses(r: &mut Report, a: &Host, b: &Host) {
    let impatient = |a: &Host| -> R<_> {
        let qp = a
            .qp()
            .timeout(AckTimeout::at_least(Duration::from_millis(8)));
        Ok(qp.retry_cnt(Retries::new(1)?))
    };
    case(r, "diagnosis: receiver not ready", (a, b), |a, b| {
        let first = a.qp().rnr_retry(RnrRetries::new(1)?).build()?;
        let second = b
            .qp()
            .min_rnr_timer(RnrTimer::at_least(SHORT / 100))
            .build()?;
        let (to, from) = (second.endpoint(), first.endpoint());
        let (_second, first) = (second.connect(from)?, first.connect(to)?);
        first.post(Send::empty())?;
        Ok(explained(
            &first,
            &a.cq,
            &[Status::RnrRetryExceeded],
            "no receive posted",
        ))
    });
    case(r, "diagnosis: the peer is dead", (a, b), |a, b| {
        let first = impatient(a)?.build()?;
        let away = b.qp().build()?.endpoint(); // and it is gone
        let first = first.connect(away)?;
        first.post(Send::empty())?;
        let evidence = Evidence::default().peer_gone();
        Ok(caused(a, &first, evidence, Some(RetryCause::PeerDead)))
    });
    case(
        r,
        "diagnosis: the peer's queue pair has failed",
        (a, b),
        |a, b| {
            let (first, second) = (impatient(a)?.build()?, b.qp().build()?);
            let (to, from) = (second.endpoint(), first.endpoint());
            let (second, first) = (second.connect(from)?, first.connect(to)?);
            second.modify(QpAttr::to(QpState::Err))?;
            first.post(Send::empty())?;
            let evidence = Evidence::default().peer(QpReport::of(&second)?);
            Ok(caused(a, &first, evidence, Some(RetryCause::PeerDead)))
        },
    );
    // What comes is ahead of what is expected. Behind, Soft-RoCE takes it for a repeat, and
    // acknowledges what it is not: then nothing ever fails.
    let psn = |from: Endpoint| {
        let psn = from.psn.wrapping_sub(0x40_0000) & 0xff_ffff;
        Endpoint::new(from.qp_num, psn, from.gid, from.mtu).rd_atomic(1, 1)
    };
    let number = |from: Endpoint| Endpoint::new(0xab_cdef, from.psn, from.gid, from.mtu);
    for (name, wrong, cause) in [
        (
            "packet numbers",
            &psn as &dyn Fn(Endpoint) -> Endpoint,
            RetryCause::WrongPsn,
        ),
        ("queue pair numbers", &number, RetryCause::WrongNumber),
    ] {
        case(
            r,
            &format!("diagnosis: the ends disagree on {name}"),
            (a, b),
            |a, b| {
                let (first, second) = (impatient(a)?.build()?, b.qp().build()?);
                let (to, from) = (second.endpoint(), first.endpoint());
                let (second, first) = (second.connect(wrong(from))?, first.connect(to)?);
                second.post_recv(Recv::empty())?;
                first.post(Send::empty())?;
                let evidence = Evidence::default().peer(QpReport::of(&second)?);
                Ok(caused(a, &first, evidence, Some(cause)))
            },
        );
    }
    case(
        r,
        "diagnosis: nothing is known of the peer",
        (a, b),
        |a, b| {
            let first = impatient(a)?.build()?;
            let away = b.qp().build()?.endpoint();
            let first = first.connect(away)?;
            first.post(Send::empty())?;
            Ok(caused(a, &first, Evidence::default(), None))
        },
    );
    case(r, "diagnosis: no such remote memory", (a, b), |a, b| {
        let [first, _second] = connect(a, b, None)?;
        first.post(Write::inline_bytes(
            b"x",
            RemoteSlice::new(0, 8, 0xbad_bad)?,
        ))?;
        Ok(explained(&first, &a.cq, &[Status::RemoteAccess], "revoked"))
    });
    case(
        r,
        "diagnosis: a receive that is too small, at both ends",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let mem = b.pd.alloc_buffer(64)?;
            second.post_recv(Recv::new(mem.slice(..4)?))?;
            first.post(Send::inline_bytes(b"longer than that"))?;
            // The specification has the responder answer with an invalid request; Soft-RoCE does otherwise.
            let answers = [Status::RemoteInvalidRequest, Status::RemoteOperation];
            let own = [Status::LocalLength, Status::LocalQpOperation];
            let longer = "longer than the receive";
            Ok(explained(&first, &a.cq, &answers, "receive")
                .and_then(|()| explained(&second, &b.cq, &own, longer)))
        },
    );
}
