// SPDX-License-Identifier: MIT OR Apache-2.0

//! What requests carry, batches that stop, the states of a queue pair, and memory of every origin.

use super::*;
use dma_heap::{Heap, HeapKind};
use rust_ulp::qp::Path;
use rust_ulp::Mtu;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

pub fn run(r: &mut Report, a: &Host, b: &Host) {
    for part in [kinds, immediate, unsignaled, batches, states, origins] {
        part(r, a, b);
    }
}

fn kinds(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "RC: requests of each kind carry their bytes",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, Some(Access::all()))?;
            let (here, there) = (a.pd.alloc_buffer(4096)?, b.pd.alloc_buffer(4096)?);
            let grant = there.grant(.., Access::all())?;
            let remote = |range: Range<u64>| grant.remote().slice(range);
            here.write_at(0, b"0123456789abcdef")?;
            there.store_u64(1024, 40, Ordering::Release)?;
            let into = [there.slice(400..402)?, there.slice(500..600)?];
            second.post_recv(Recv::scatter(&into).wr_id(1))?;
            second.post(Recv::new(there.slice(700..710)?).wr_id(2))?;
            second.post_recv(Recv::empty().wr_id(3))?;

            let pieces = [here.slice(..2)?, here.slice(10..13)?, here.slice(15..16)?];
            first.post(Write::gather(&pieces, remote(64..128)?))?;
            first.post(Write::inline_bytes(b"inline", remote(80..86)?))?;
            first.post(Read::new(remote(80..86)?, here.slice(128..134)?))?;
            let parts = [here.slice(200..204)?, here.slice(300..301)?];
            first.post(Read::scatter(remote(64..80)?, &parts))?;
            first.post(Send::new(here.slice(..4)?).imm(5))?;
            first.post(Send::inline_bytes(b"xyz").solicited().fenced())?;
            first.post(Send::empty())?;
            let word = remote(1024..1032)?;
            first.post(FetchAdd::new(word, 2, here.slice(1032..1040)?))?;
            first.post(CompareSwap::new(word, 42, 7, here.slice(1040..1048)?))?;
            let mut opcodes = Vec::new();
            for _ in 0..9 {
                opcodes.push(a.cq.wait(hang())?.ok()?.opcode);
            }
            let mut received = Vec::new();
            for _ in 0..3 {
                let done = b.cq.wait(hang())?.ok()?;
                received.push((done.opcode, done.wr_id, done.byte_len, done.imm));
            }
            let bytes = |at: usize, len| there.to_vec(at..at + len);
            let (written, read) = (bytes(64, 22)?, here.to_vec(128..134)?);
            let scattered = (here.to_vec(200..204)?, here.to_vec(300..302)?);
            let (sent, second) = ((bytes(400, 2)?, bytes(500, 3)?), bytes(700, 4)?);
            let old = [1032, 1040].map(|at| here.load_u64(at, Ordering::Acquire).ok());
            let new = there.load_u64(1024, Ordering::Acquire)?;
            let kinds = [
                Opcode::Write,
                Opcode::Write,
                Opcode::Read,
                Opcode::Read,
                Opcode::Send,
                Opcode::Send,
                Opcode::Send,
                Opcode::FetchAdd,
                Opcode::CompareSwap,
            ];
            let receives = [(1, 4, Some(5)), (2, 3, None), (3, 0, None)];
            let receives = receives.map(|(wr_id, len, imm)| (Opcode::Recv, wr_id, len, imm));
            let want = b"01abcf\0\0\0\0\0\0\0\0\0\0inline";
            Ok(equal("completions", &opcodes[..], &kinds[..])
                .and_then(|()| equal("receives", &received[..], &receives[..]))
                .and_then(|()| equal("written", &written[..], &want[..]))
                .and_then(|()| equal("read", &read[..], b"inline"))
                .and_then(|()| {
                    let got = (&scattered.0[..], &scattered.1[..]);
                    equal("read into two places", got, (b"01ab", b"c\0"))
                })
                .and_then(|()| {
                    let got = (&sent.0[..], &sent.1[..]);
                    equal("received in two places", got, (b"01", b"23\0"))
                })
                .and_then(|()| equal("sent inline", &second[..], b"xyz\0"))
                .and_then(|()| equal("atomics returned", old, [Some(40), Some(42)]))
                .and_then(|()| equal("atomics left", new, 7)))
        },
    );
}

fn immediate(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "RC: a write with immediate data takes a receive, and both complete once",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let (src, dst) = (a.pd.alloc_buffer(4096)?, b.pd.alloc_buffer(4096)?);
            let grant = dst.grant(1024.., Access::REMOTE_WRITE)?;
            second.post_recv(Recv::empty().wr_id(9))?;
            src.write_at(3, b"hello")?;
            let write = Write::new(src.slice(3..8)?, grant.remote());
            first.post(write.imm(0x1234_5678).wr_id(7))?;
            let (ours, theirs) = (a.cq.wait(hang())?.ok()?, b.cq.wait(hang())?.ok()?);
            let whose = (theirs.is_of(&second), theirs.is_of(&first));
            let came = (theirs.opcode, theirs.wr_id, theirs.byte_len, theirs.imm);
            let left = (a.cq.poll()?, b.cq.poll()?);
            let bytes = dst.to_vec(1024..1029)?;
            Ok(equal("whose", whose, (true, false))
                .and_then(|()| check("whose is the write's", ours.is_of(&first)))
                .and_then(|()| {
                    let want = (Opcode::RecvWriteImm, 9, 5, Some(0x1234_5678));
                    equal("the receive", came, want)
                })
                .and_then(|()| {
                    let got = (ours.opcode, ours.wr_id, ours.imm);
                    equal("the write", got, (Opcode::Write, 7, None))
                })
                .and_then(|()| equal("more of them", left, (None, None)))
                .and_then(|()| equal("the bytes", &bytes[..], b"hello")))
        },
    );
}

fn unsignaled(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "RC: an unsignaled request completes if it fails, and the next one is flushed",
        (a, b),
        |a, b| {
            let [first, second] = connect(a, b, None)?;
            let (src, dst) = (a.pd.alloc_buffer(8)?, b.pd.alloc_buffer(8)?);
            let grant = dst.grant(.., Access::REMOTE_WRITE)?;
            let write = |to| Ok(Write::new(src.slice(..)?, to)) as R<Write>;
            first.post(write(grant.remote())?.signaled(false).wr_id(1))?;
            let wrong = RemoteSlice::new(1 << 40, 8, 0xbad_bad)?;
            first.post(write(wrong)?.signaled(false).wr_id(3))?;
            let Err(Error::Completion(error)) = a.cq.wait(hang())?.ok() else {
                return Ok(Err("it succeeded".to_owned()));
            };
            while first.query()?.state != QpState::Err {
                std::thread::sleep(Duration::from_millis(1));
            }
            first.post(write(grant.remote())?.wr_id(4))?;
            let flushed = a.cq.wait(hang())?;
            let peer = second.endpoint();
            Ok(equal(
                "the failure",
                (error.wr_id, error.opcode, error.status),
                (3, Opcode::Write, Status::RemoteAccess),
            )
            .and_then(|()| {
                let got = (error.qp_num, error.peer);
                equal("ends", got, (first.qp_num(), Some((peer.qp_num, peer.gid))))
            })
            .and_then(|()| {
                let got = (flushed.wr_id, flushed.status);
                equal("the next one", got, (4, Status::Flushed))
            }))
        },
    );
}

fn batches(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "a batch that finds its completion queue full goes on where it stopped",
        (a, b),
        |a, b| {
            let small = Host {
                cq: a.dev.create_cq(4)?,
                ..fresh(a)?
            };
            let [first, _second] = connect(&small, b, None)?;
            let (src, dst) = (a.pd.alloc_buffer(64)?, b.pd.alloc_buffer(4096)?);
            let grant = dst.grant(.., Access::REMOTE_WRITE)?;
            src.write_at(0, b"abcdefgh")?;
            let piece = |range| src.slice(range);
            let (mut pieces, mut texts) = (Vec::new(), Vec::new());
            for i in 0..10 {
                pieces.push([piece(i % 4..i % 4 + 2)?, piece(6..8)?]);
                texts.push([b'0' + i as u8; 3]);
            }
            let mut batch = first.batch();
            for ((pieces, text), i) in pieces.iter().zip(&texts).zip(0..) {
                let dst = |at| grant.remote().slice(at..);
                batch.push(Write::gather(pieces, dst(i * 16)?).wr_id(2 * i))?;
                batch.push(Write::inline_bytes(text, dst(i * 16 + 8)?).wr_id(2 * i + 1))?;
            }
            let (mut order, mut rest, mut first_stop) = (Vec::new(), 20, None);
            loop {
                match batch.submit_and_wait(1, hang()) {
                    Err(Error::Batch {
                        index,
                        posted,
                        cause,
                    }) if cause.is_backpressure() => {
                        rest -= posted as usize;
                        first_stop.get_or_insert((index, posted));
                        if batch.len() != rest {
                            return Ok(equal("requests that are left", batch.len(), rest));
                        }
                    }
                    other => {
                        rest -= other?;
                        break;
                    }
                }
                while let Some(done) = small.cq.poll()? {
                    order.push(done.ok()?.wr_id);
                }
            }
            while order.len() < 20 {
                order.push(small.cq.wait(hang())?.ok()?.wr_id);
            }
            let mut want = vec![0; 160];
            for ((place, text), i) in want.chunks_mut(16).zip(&texts).zip(0..) {
                place[..2].copy_from_slice(&b"abcdefgh"[i % 4..i % 4 + 2]);
                place[2..4].copy_from_slice(b"gh");
                place[8..11].copy_from_slice(text);
            }
            let (is_empty, room) = (batch.is_empty(), small.cq.entries());
            let bytes = dst.to_vec(..160)?;
            // It takes requests again.
            batch.push(Write::inline_bytes(b"zz", grant.remote()))?;
            let again = batch.submit_and_wait(1, hang())?;
            Ok(equal("the first stop", first_stop, Some((room, room)))
                .and_then(|()| equal("left in the end", (rest, is_empty), (0, true)))
                .and_then(|()| equal("completions", order, (0..20).collect()))
                .and_then(|()| equal("bytes", bytes, want))
                .and_then(|()| equal("posted after that", again, 1)))
        },
    );
}

fn states(r: &mut Report, a: &Host, b: &Host) {
    case(
        r,
        "RC: a queue pair changes its states in their order, or the error says what is wrong",
        (a, b),
        |a, b| {
            let qp = a.qp().build()?;
            qp.post_recv(Recv::empty())?;
            let in_flight = qp.query()?.recvs_in_flight;
            let from = |error: &Error| match error {
                Error::InvalidTransition { current, next, .. } => Some((*current, *next)),
                _ => None,
            };
            let skips = qp.modify(QpAttr::to(QpState::Rts)).err();
            let skips = skips.as_ref().and_then(from);
            let lacks = QpAttr::to(QpState::Rtr).dest_qp_num(7).rq_psn(1);
            let lacks = qp.modify(lacks).err().map(|error| error.to_string());
            let lacks = lacks.unwrap_or_default();
            let failed = a.qp().build()?;
            failed.modify(QpAttr::to(QpState::Err))?;
            let early = [qp, failed].map(|qp| {
                let error = qp.into_connected().err();
                error.as_ref().and_then(from).map(|(current, _)| current)
            });

            // By hand, and with another GID than it was built with.
            let chosen = a.dev.default_gid()?;
            let other = u8::from(chosen.gid_index == 0);
            let qp = a.qp().gid(chosen.port, other).build()?;
            let built = qp.endpoint().gid;
            let peer = b.qp().build()?;
            let path = Path::new(peer.endpoint().gid, chosen.port, chosen.gid_index);
            let attr = QpAttr::to(QpState::Rtr)
                .path(path)
                .path_mtu(Mtu::B256)
                .dest_qp_num(peer.qp_num())
                .rq_psn(6)
                .max_dest_rd_atomic(1)
                .min_rnr_timer(RnrTimer::new(12)?);
            qp.modify(attr)?;
            let attr = QpAttr::to(QpState::Rts)
                .timeout(AckTimeout::DEFAULT)
                .retry_cnt(Retries::new(7)?)
                .rnr_retry(RnrRetries::FOREVER)
                .sq_psn(8);
            let incomplete = qp.modify(attr).err();
            let incomplete = incomplete.as_ref().and_then(from);
            qp.modify(attr.max_rd_atomic(1))?;
            let qp = qp.into_connected()?;
            let (to, own) = (*qp.peer(), qp.endpoint());
            let missing = "without path, path_mtu, min_rnr_timer, max_dest_rd_atomic;";
            Ok(equal("receives in flight", in_flight, 1)
                .and_then(|()| equal("too far", skips, Some((QpState::Init, QpState::Rts))))
                .and_then(|()| check(lacks.clone(), lacks.contains(missing)))
                .and_then(|()| {
                    let want = [Some(QpState::Init), Some(QpState::Err)];
                    equal("not connected", early, want)
                })
                .and_then(|()| {
                    let want = Some((QpState::Rtr, QpState::Rts));
                    equal("an attribute is missing", incomplete, want)
                })
                .and_then(|()| {
                    let want = (peer.qp_num(), peer.endpoint().gid, Mtu::B256);
                    equal("its peer", (to.qp_num, to.gid, to.mtu), want)
                })
                .and_then(|()| equal("its PSN", own.psn, 8))
                .and_then(|()| equal("its GID", own.gid, chosen.gid))
                .and_then(|()| check("another GID at first", built != chosen.gid)))
        },
    );
}

fn origins(r: &mut Report, a: &Host, b: &Host) {
    const HEAP: &str = "a dma-buf of the system's heap";
    const OWN: &str = "memory of the caller";
    for name in ["memory that the crate maps", OWN, HEAP] {
        let title = format!("{name}: a peer writes to it and adds to it, and it is a source");
        if name == HEAP && !std::path::Path::new("/dev/dma_heap/system").exists() {
            r.skip(title, "the kernel has no heap of dma-bufs");
            continue;
        }
        case(r, &title, (a, b), |a, b| {
            let [first, second] = connect(a, b, Some(Access::all()))?;
            let ours = a.pd.alloc_buffer(4096)?;
            let mem = match name {
                HEAP => {
                    let heap = Heap::new(HeapKind::System).ok();
                    let Some(file) = heap.and_then(|heap| heap.allocate(8192).ok()) else {
                        return Ok(Err("there is no dma-buf".to_owned()));
                    };
                    b.pd.dmabuf_builder(file).map().build()?
                }
                OWN => {
                    let own: Vec<_> = (0..1024).map(|_| AtomicU64::new(0)).collect();
                    crate::sys::register(&b.pd, Vec::leak(own))?
                }
                _ => b.pd.user_memory_builder(5000).build()?,
            };
            let grant = mem.grant(.., Access::all())?;
            ours.write_at(0, b"to and fro")?;
            first.post(Write::new(ours.slice(..10)?, grant.remote().slice(77..)?))?;
            pass(&a.cq, Opcode::Write)?;
            let written = mem.to_vec(77..87)?;
            let into = ours.grant(.., Access::REMOTE_WRITE)?;
            second.post(Write::new(mem.slice(77..87)?, into.remote().slice(512..)?))?;
            pass(&b.cq, Opcode::Write)?;
            let came_back = ours.to_vec(512..522)?;
            mem.store_u64(256, 40, Ordering::Release)?;
            let word = grant.remote().slice(256..264)?;
            first.post(FetchAdd::new(word, 2, ours.slice(..8)?))?;
            pass(&a.cq, Opcode::FetchAdd)?;
            let sum = mem.load_u64(256, Ordering::Acquire)?;
            let kind = mem.query()?.kind;
            let want = if name == HEAP {
                BufferKind::Dmabuf
            } else {
                BufferKind::User
            };
            Ok(equal("its kind", kind, want)
                .and_then(|()| equal("written", &written[..], b"to and fro"))
                .and_then(|()| equal("from it", &came_back[..], b"to and fro"))
                .and_then(|()| equal("the sum", sum, 42)))
        });
    }
}
