// SPDX-License-Identifier: MIT OR Apache-2.0

//! The crate from the outside, on the stub of `fake.rs`. Its requests run in the guest: `ulp-test api`.

use crate::device::AtomicCap;
use crate::error::ErrorKind;
use crate::events::EventKind;
use crate::fake::{Kernel, Posted};
use crate::qp::{
    AckTimeout, ConnectError, QpAttr, QpState, Rc, Retries, RnrRetries, RnrTimer, TrafficClass, Uc,
    Ud,
};
use crate::sys::counting::{self, allocations};
use crate::tcp::{Listener, TcpOptions};
use crate::wr::{CompareSwap, FetchAdd, Read, Recv, Send, SendTo, WrOpcode, Write};
use crate::{
    abi, cm, Access, Buffer, Completion, Cq, Device, Endpoint, Error, Gid, Grh, Mtu, Opcode,
    PreparedQp, Qp, RemoteSlice, Srq, Status,
};
use nix::errno::Errno;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Asserts that an error, a variable, is one of a pattern.
macro_rules! assert_matches {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        assert!(matches!($error, $pattern $(if $guard)?), "{}", $error)
    };
}

mod asynchronous;
mod cancel;
mod memory;
mod numbers;
mod uring;

// Those of rust-ulp-extra, where its sources are: see build.rs.
#[cfg(extra)]
#[allow(dead_code)] // what only users of rust-ulp-extra call
mod extra;
#[cfg(extra)]
#[path = "../../rust-ulp-extra/src/tests/pool.rs"]
mod pool;
#[cfg(extra)]
#[path = "../../rust-ulp-extra/src/tests/stream.rs"]
mod stream;
#[cfg(extra)]
#[path = "../../rust-ulp-extra/src/tests/tasks.rs"]
mod tasks;

const SOON: Duration = Duration::from_secs(5);
const NOW: Duration = Duration::from_millis(5);

/// Two queue pairs that are connected with each other, on one device.
struct Pair {
    kernel: Arc<Kernel>,
    device: Device,
    cq: Cq,
    a: Qp<Rc>,
    b: Qp<Rc>,
    mem: Buffer,
}

fn pair_of(cq_entries: u32) -> Pair {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (
        device.alloc_pd().unwrap(),
        device.create_cq(cq_entries).unwrap(),
    );
    let build = || pd.qp_builder::<Rc>(&cq).build().unwrap();
    let (a, b) = (build(), build());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    Pair {
        a: a.connect(at_b).unwrap(),
        b: b.connect(at_a).unwrap(),
        mem: pd.alloc_buffer(8192).unwrap(),
        kernel,
        device,
        cq,
    }
}

fn pair() -> Pair {
    pair_of(64)
}

impl Pair {
    /// Completes the oldest request of `a`.
    fn sent(&self) {
        self.kernel.finish(self.a.handle(), |_| {});
    }

    /// Completes the oldest receive of `b` with a message that has this immediate data.
    fn arrives(&self, imm: u32) {
        self.kernel.arrive(self.b.handle(), |cqe| {
            (cqe.flags, cqe.imm_data) = (abi::WC_WITH_IMM, imm);
        });
    }

    /// Completes something with this number.
    fn completes(&self, wr_id: u64) {
        self.kernel.complete(abi::Cqe {
            user_data: wr_id,
            ..Default::default()
        });
    }
}

/// Returns the offset and the length of each element of a request.
fn places(posted: &Posted) -> Vec<(u64, u32)> {
    let elements = posted.elements.iter();
    elements.map(|it| (it.offset, it.length)).collect()
}

fn drain(cq: &Cq) -> Vec<Completion> {
    let mut all = Vec::new();
    while let Some(completion) = cq.poll().unwrap() {
        all.push(completion);
    }
    all
}

#[test]
fn a_completion_is_of_the_queue_pair_of_its_own_device() {
    let (p, other) = (pair(), pair());
    assert_eq!(p.a.handle(), other.a.handle());
    p.b.post_recv(Recv::empty()).unwrap();
    p.a.post(Send::empty()).unwrap();
    p.arrives(0);
    p.sent();
    for done in drain(&p.cq) {
        let mine = if done.opcode == Opcode::Recv {
            (&p.b, &other.b)
        } else {
            (&p.a, &other.a)
        };
        assert!(done.is_of(mine.0) && !done.is_of(mine.1), "{done}");
    }
}

#[test]
fn an_iterator_takes_the_completions_that_are_there() {
    let p = pair();
    assert!(p.cq.completions().next().is_none());
    let complete = |numbers: std::ops::Range<u64>| numbers.for_each(|n| p.completes(n));
    let numbers = |completions: crate::cq::Completions<'_>, n| -> Vec<u64> {
        let some = completions.take(n).map(|done| done.unwrap().wr_id);
        some.collect()
    };
    complete(0..5);
    // An iterator leaves to the next one the completions that it does not take.
    assert_eq!(numbers(p.cq.completions(), 2), [0, 1]);
    let mut rest = p.cq.completions();
    assert_eq!(rest.by_ref().count(), 3);
    // More may come.
    complete(5..7);
    assert_eq!(numbers(rest.clone(), 9), [5, 6]);
    p.kernel.remove();
    assert!(matches!(rest.next(), Some(Err(Error::DeviceGone))));
    assert!(rest.next().is_none() && rest.next().is_none());
}

#[test]
fn what_peers_exchange_is_a_key_of_a_map() {
    let p = pair();
    let grant = p.mem.grant(.., Access::all()).unwrap();
    let (all, part) = (grant.remote(), grant.remote().slice(8..).unwrap());
    let set: std::collections::HashSet<_> = [all, part, all].into();
    assert_eq!(set.len(), 2);
    let ends: std::collections::HashSet<_> = [p.a.endpoint(), p.b.endpoint(), *p.b.peer()].into();
    assert_eq!(ends.len(), 2);
}

#[test]
fn everything_crosses_threads() {
    fn check<T: std::marker::Send + Sync + 'static>() {}
    check::<Device>();
    check::<Cq>();
    check::<Qp<Rc>>();
    check::<PreparedQp<Rc>>();
    check::<Buffer>();
    check::<crate::Grant>();
    check::<crate::LocalSlice<'static>>();
    check::<Error>();
    check::<Listener>();
    check::<Qp<Uc>>();
    check::<Qp<Ud>>();
    check::<Srq>();
    check::<crate::AddressHandle>();
    check::<crate::events::Events>();
    check::<cm::Listener>();
    check::<cm::Request>();
    check::<cm::Connection>();
    check::<ConnectError>();
    check::<crate::cq::Completions<'static>>();
    check::<crate::cq::CqEventFd>();
    check::<crate::AsyncCq>();
    check::<crate::AsyncEvents>();
    check::<crate::tcp::AsyncListener>();
    check::<crate::AsyncRequests>();
    check::<crate::RequestFuture>();
    check::<cm::Requests>();
    check::<crate::uring::Ring>();
    #[cfg(extra)]
    {
        use extra::{pool, stream};
        check::<(
            pool::Pool<'static>,
            pool::Chunk<'static>,
            pool::ChunkError<'static>,
        )>();
        check::<(stream::Sender, stream::Receiver)>();
        check::<(stream::AsyncSender, stream::AsyncReceiver)>();
    }
}

// --- requests -----------------------------------------------------------------------------------------

#[test]
fn requests_that_cannot_work_are_refused_here() {
    let p = pair();
    let grant = p.mem.grant(0..16, Access::REMOTE_READ).unwrap();
    let local = |range: std::ops::Range<usize>| p.mem.slice(range).unwrap();
    p.kernel.log();
    let error =
        p.a.post(Write::new(local(0..8), grant.remote()))
            .unwrap_err();
    assert_matches!(
        error,
        Error::Access {
            needed: Access::REMOTE_WRITE,
            granted: Access::REMOTE_READ
        }
    );
    let error =
        p.a.post(Read::new(grant.remote(), local(0..17)))
            .unwrap_err();
    assert_matches!(
        error,
        Error::Range {
            len: 17,
            capacity: 16,
            ..
        }
    );
    let odd = RemoteSlice::new(0x1004, 8, 1).unwrap();
    let error = p.a.post(FetchAdd::new(odd, 1, local(0..8))).unwrap_err();
    assert_matches!(error, Error::Misaligned { align: 8, .. });
    for (target, result, text) in [
        (
            4,
            0..8,
            "request to the peer's memory: 8 bytes at 0 do not fit into 4; pass a smaller range",
        ),
        (
            64,
            0..16,
            "length of an atomic operation's result is 16; pass 8",
        ),
        (
            64,
            0..4,
            "length of an atomic operation's result is 4; pass 8",
        ),
    ] {
        let target = RemoteSlice::new(0x1000, target, 1).unwrap();
        let error = p.a.post(FetchAdd::new(target, 1, local(result)));
        assert_eq!(error.unwrap_err().to_string(), text);
    }
    let many = vec![local(0..1); 17];
    let error = p.a.post(Send::gather(&many)).unwrap_err();
    assert_matches!(
        error,
        Error::TooMany {
            what: "elements",
            count: 17,
            max: 16
        }
    );
    let max = p.a.caps().max_inline;
    assert_eq!(max, 64);
    let bytes = [0; 65];
    let too_long = [Send::inline_bytes(&bytes), Send::new(local(0..65)).inline()];
    for send in too_long {
        let error = p.a.post(send).unwrap_err();
        assert_matches!(
            error,
            Error::TooMany {
                what: "inline bytes",
                count: 65,
                max: 64
            }
        );
    }
    assert!(
        p.kernel.log().is_empty(),
        "nothing of that went to the kernel"
    );
    p.a.post(Send::inline_bytes(&bytes[..64])).unwrap();
}

// --- batches ------------------------------------------------------------------------------------------

#[test]
fn a_batch_is_one_call() {
    let p = pair();
    let grant = p.mem.grant(4096.., Access::REMOTE_WRITE).unwrap();
    let piece = |range: std::ops::Range<usize>| p.mem.slice(range).unwrap();
    let pieces: [_; 4] = std::array::from_fn(|i| [piece(i..i + 2), piece(6..8)]);
    p.kernel.log();
    let mut batch = p.a.batch();
    assert!(batch.is_empty());
    for i in 0..4 {
        let dst = grant.remote().slice(i * 16..).unwrap();
        let pieces = &pieces[i as usize];
        batch.push(Write::gather(pieces, dst).wr_id(i)).unwrap();
    }
    batch
        .push(Write::inline_bytes(b"zz", grant.remote().slice(100..).unwrap()).wr_id(4))
        .unwrap();
    assert_eq!(batch.len(), 5);
    (0..5).for_each(|wr_id| p.completes(wr_id));
    assert_eq!(batch.submit_and_wait(5, SOON).unwrap(), 5);
    assert_eq!(p.kernel.log(), ["SUBMIT"]);
    let posted = p.kernel.posted();
    let order: Vec<u64> = posted.iter().map(|it| it.wr.user_data).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    let to = |it: &Posted| it.wr.remote_addr - grant.remote().addr();
    for (posted, i) in posted.iter().take(4).zip(0..) {
        assert_eq!((to(posted), places(posted)), (i * 16, vec![(i, 2), (6, 2)]));
    }
    assert_eq!((to(&posted[4]), &posted[4].inline[..]), (100, &b"zz"[..]));
}

#[test]
fn a_batch_over_queue_pairs() {
    let p = pair();
    let mut batch = p.device.batch();
    batch.push(&p.b, Recv::empty().wr_id(1)).unwrap();
    batch.push(&p.a, Send::empty().wr_id(2)).unwrap();
    (0..2).for_each(|wr_id| p.completes(wr_id));
    p.kernel.log();
    assert_eq!(batch.submit_and_wait(&p.cq, 2, SOON).unwrap(), 2);
    assert_eq!(p.kernel.log(), ["SUBMIT"]);
    let posted = p.kernel.posted();
    let of: Vec<_> = posted
        .iter()
        .map(|it| (it.wr.qp, it.wr.user_data))
        .collect();
    assert_eq!(of, [(p.b.handle(), 1), (p.a.handle(), 2)]);
    let srq = p.a.pd().srq_builder(&p.cq).build().unwrap();
    batch.push(&srq, Recv::empty().wr_id(3)).unwrap();
    assert_eq!(batch.submit().unwrap(), 1);
    assert_eq!(p.kernel.posted()[0].wr.qp, srq.handle());
    batch.push(&p.a, Recv::empty()).unwrap();
    batch.push(&p.b, Recv::empty()).unwrap();
    assert_eq!(batch.submit().unwrap(), 2);

    let other = p.kernel.device();
    let mut batch = other.batch();
    let error = batch.push(&p.a, Send::empty()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    assert!(batch.is_empty());
}

#[test]
fn what_a_batch_says_when_it_is_refused() {
    let p = pair();
    let mut batch = p.a.batch();
    for _ in 0..64 {
        batch.push(Recv::empty()).unwrap();
    }
    let error = batch.push(Recv::empty()).unwrap_err();
    assert_matches!(
        error,
        Error::TooMany {
            what: "requests",
            count: 65,
            max: 64
        }
    );
    drop(batch);

    let mut batch = p.a.batch();
    for _ in 0..3 {
        batch.push(Recv::empty()).unwrap();
    }
    p.kernel.stumble(2, Errno::EAGAIN);
    let error = batch.submit().unwrap_err();
    let Error::Batch {
        index: 2,
        posted: 2,
        cause,
    } = &error
    else {
        panic!("{error}");
    };
    assert!(matches!(**cause, Error::QueueFull));
    assert!(
        error.is_backpressure() && !error.is_retryable(),
        "some were posted"
    );
    assert_eq!(error.errno(), Some(libc::EAGAIN));
    assert_eq!(batch.len(), 1, "the one that was refused is left");
    drop(batch);

    p.kernel.stumble(0, Errno::EAGAIN);
    let error = p.a.post_recv(Recv::empty()).unwrap_err();
    assert!(matches!(error, Error::QueueFull));
    assert!(error.is_backpressure() && error.is_retryable());
    let mut batch = p.a.batch();
    batch.push(Recv::empty()).unwrap();
    p.kernel.stumble(0, Errno::EAGAIN);
    let error = batch.submit().unwrap_err();
    assert!(
        error.is_backpressure() && error.is_retryable(),
        "nothing was posted"
    );
}

/// A program may add requests for ever to a batch that is never empty.
#[test]
fn a_batch_that_is_never_empty_does_not_grow() {
    let p = pair();
    let grant = p.mem.grant(4096.., Access::REMOTE_WRITE).unwrap();
    let pieces: [_; 2] = std::array::from_fn(|i| p.mem.slice(i * 6..i * 6 + 2).unwrap());
    let dst = |at| grant.remote().slice(at..).unwrap();
    let numbers: [_; 200] = std::array::from_fn(|i| [i as u8]);
    let (mut of_qp, mut of_device) = (p.a.batch(), p.device.batch());
    let mut allocated = Vec::new();
    for (round, number) in numbers.iter().enumerate() {
        let before = allocations();
        let (inline, gather) = (Write::inline_bytes, Write::gather);
        of_qp.push(inline(number, dst(4))).unwrap();
        of_qp.push(gather(&pieces, dst(0))).unwrap();
        of_device.push(&p.a, inline(number, dst(68))).unwrap();
        of_device.push(&p.a, gather(&pieces, dst(64))).unwrap();
        // The last one is refused, and every other time the last two.
        let left = 1 + round % 2;
        let count = (of_qp.len() - left) as u32;
        p.kernel.stumble(count, Errno::EIO);
        let error = of_qp.submit().unwrap_err();
        assert!(!error.is_backpressure());
        assert_matches!(error, Error::Batch { index, posted, .. } if (index, posted) == (count, count));
        p.kernel
            .stumble((of_device.len() - left) as u32, Errno::EIO);
        drop(of_device.submit().unwrap_err());
        assert_eq!((of_qp.len(), of_device.len()), (left, left));
        counting::uncounted(|| allocated.push(allocations() - before));
    }
    // Each was posted once, in its order, with what it had when it was added.
    let posted = p.kernel.posted();
    for at in [0, 64] {
        let to = grant.remote().addr() + at;
        let of = |to| posted.iter().filter(move |it| it.wr.remote_addr == to);
        let inline: Vec<_> = of(to + 4).flat_map(|it| &it.inline).collect();
        assert_eq!(inline, numbers[..199].iter().flatten().collect::<Vec<_>>());
        assert!(of(to).all(|it| places(it) == [(0, 2), (6, 2)]));
        assert_eq!(of(to).count(), 199);
    }
    // An error allocates.
    for round in 20..200 {
        assert_eq!(allocated[round], allocated[round - 2], "round {round}");
    }
}

#[test]
fn a_batch_that_waits_says_when_the_time_is_up() {
    let p = pair();
    let mut batch = p.a.batch();
    batch.push(Recv::empty()).unwrap();
    let error = batch.submit_and_wait(1, NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
}

// --- nothing is allocated ---------------------------------------------------------------------------------

#[test]
fn posting_and_reaping_allocate_nothing() {
    let p = pair();
    let grant = p.mem.grant(.., Access::all()).unwrap();
    let pieces: [_; 4] = std::array::from_fn(|i| p.mem.slice(i * 8..i * 8 + 8).unwrap());
    let one = &pieces[0];
    let dst = grant.remote().slice(4096..4608).unwrap();
    let mut out = [Completion::EMPTY; 16];
    let round = |out: &mut [Completion]| {
        p.a.post(Write::new(*one, dst)).unwrap();
        p.a.post(Write::gather(&pieces, dst)).unwrap();
        p.a.post(Write::inline_bytes(b"12345678", dst)).unwrap();
        p.a.post(Read::new(dst, *one)).unwrap();
        p.a.post(FetchAdd::new(dst, 1, *one)).unwrap();
        p.b.post_recv(Recv::scatter(&pieces)).unwrap();
        p.a.post(Send::new(*one).imm(1)).unwrap();
        (0..6).for_each(|_| p.sent());
        p.arrives(1);
        assert_eq!(p.cq.wait_for(7, SOON).unwrap(), 7);
        assert_eq!(p.cq.poll_into(out).unwrap(), 7);
        assert!(out.iter().all(|completion| completion.ok().is_ok()));

        let mut batch = p.a.batch();
        for i in 0..4 {
            batch.push(Write::new(*one, dst).wr_id(i)).unwrap();
        }
        batch.push(Write::gather(&pieces, dst)).unwrap();
        (0..7).for_each(|wr_id| p.completes(wr_id));
        batch.submit_and_wait(5, SOON).unwrap();
        let mut batch = p.device.batch();
        batch.push(&p.b, Recv::new(*one)).unwrap();
        batch.push(&p.a, Send::inline_bytes(b"x")).unwrap();
        batch.submit_and_wait(&p.cq, 7, SOON).unwrap();
        for _ in 0..7 {
            let _ = p.cq.wait(SOON).unwrap().ok().unwrap();
        }
        assert!(p.cq.poll().unwrap().is_none());
        drop(p.kernel.posted());
        let mut bytes = [0; 100];
        p.mem.read_at(3, &mut bytes).unwrap();
        p.mem.write_at(5, &bytes).unwrap();
    };
    // The first round may make room that the others find.
    round(&mut out);
    let before = allocations();
    for _ in 0..100 {
        round(&mut out);
    }
    assert_eq!(allocations() - before, 0);
    // The counter counts.
    drop(p.mem.to_vec(..).unwrap());
    assert_eq!(allocations() - before, 1);
}

// --- completion queues ------------------------------------------------------------------------------------

#[test]
fn reaping_makes_no_system_call() {
    let p = pair();
    for _ in 0..3 {
        p.kernel.complete(abi::Cqe::default());
    }
    p.kernel.log();
    let mut out = [Completion::EMPTY; 2];
    assert_eq!(p.cq.poll_into(&mut out).unwrap(), 2);
    assert!(p.cq.wait(SOON).is_ok());
    assert!(p.cq.poll().unwrap().is_none());
    assert_eq!(p.cq.poll_into(&mut []).unwrap(), 0);
    assert!(p.kernel.log().is_empty());
}

#[test]
fn waiting_ends() {
    let p = pair();
    let error = p.cq.wait(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { after: NOW, .. });
    assert!(error.is_retryable());
    p.kernel.complete(abi::Cqe::default());
    let error = p.cq.wait_for(2, NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    assert_eq!(p.cq.wait_for(1, SOON).unwrap(), 1);
    let error = p.cq.wait_for(65, SOON).unwrap_err();
    assert_matches!(
        error,
        Error::Value {
            value: 65,
            min: 0,
            max: 64,
            ..
        }
    );
    assert!(p.cq.wait(Duration::MAX).is_ok());
    // A signal whose handler returns ends nothing.
    p.kernel.refuse("SUBMIT", Errno::EINTR);
    assert!(matches!(p.cq.wait(NOW), Err(Error::Timeout { .. })));
    p.kernel.refuse("SUBMIT", Errno::ENODEV);
    assert!(matches!(p.cq.wait(SOON), Err(Error::DeviceGone)));
}

#[test]
fn another_thread_is_waited_for() {
    let p = pair();
    let (cq, kernel) = (p.cq.clone(), p.kernel.clone());
    let waiter = std::thread::spawn(move || cq.wait(SOON).unwrap().wr_id);
    std::thread::sleep(NOW);
    kernel.complete(abi::Cqe {
        user_data: 77,
        ..Default::default()
    });
    assert_eq!(waiter.join().unwrap(), 77);
}

#[test]
fn a_ring_that_makes_no_sense_is_corrupt() {
    for tail in [65, 1 << 31, u32::MAX] {
        let p = pair();
        p.kernel.set_tail(tail);
        assert!(matches!(p.cq.poll(), Err(Error::CqCorrupt)));
        assert!(matches!(p.cq.wait(SOON), Err(Error::CqCorrupt)));
        assert!(matches!(p.cq.wait_for(1, SOON), Err(Error::CqCorrupt)));
    }
}

#[test]
fn what_came_before_the_end_is_taken_first() {
    for (flags, what) in [
        (abi::CQ_OVERFLOW, "5 completions were lost"),
        (abi::CQ_ERROR, "the device reported an error"),
        (abi::CQ_DEAD, "the RDMA device was removed"),
        (abi::CQ_DEAD | abi::CQ_OVERFLOW, "5 completions were lost"),
    ] {
        let p = pair();
        p.kernel.complete(abi::Cqe {
            user_data: 1,
            ..Default::default()
        });
        p.kernel.set_flags(flags, 5);
        assert_eq!(p.cq.wait(SOON).unwrap().wr_id, 1);
        let error = p.cq.poll().unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert!(p.cq.wait(SOON).is_err());
        assert!(p.cq.wait_for(1, SOON).is_err());
    }
}

/// Nobody waits, asleep or spinning, for completions that a failed queue will not bring.
#[test]
fn a_failed_queue_is_not_waited_for() {
    let p = pair();
    p.kernel.complete(abi::Cqe::default());
    p.kernel.set_flags(abi::CQ_ERROR, 0);
    p.kernel.log(); // takes what was said so far
    assert!(matches!(p.cq.wait_for(2, NOW), Err(Error::CqFailed)));
    assert_eq!(p.kernel.log().len(), 1);
    let mut batch = p.a.batch();
    let error = batch.submit_and_wait(2, NOW).unwrap_err();
    assert_matches!(error, Error::CqFailed);
    // What is there can still be taken.
    assert_eq!(p.cq.wait_for(1, SOON).unwrap(), 1);
    assert!(p.cq.wait(SOON).is_ok());
}

/// The same while both happen: a completion, then the end, while somebody looks.
#[test]
fn what_comes_with_the_end_is_taken_first() {
    let p = pair();
    let (go, rounds) = std::sync::mpsc::channel();
    let kernel = p.kernel.clone();
    let device = std::thread::spawn(move || {
        for id in rounds {
            kernel.complete(abi::Cqe {
                user_data: id,
                ..Default::default()
            });
            kernel.set_flags(abi::CQ_DEAD, 0);
        }
    });
    for id in 0..3000u64 {
        p.kernel.set_flags(0, 0);
        go.send(id).unwrap();
        let mut taken = false;
        loop {
            match p.cq.poll() {
                Ok(None) => {}
                Ok(Some(completion)) => {
                    assert_eq!(completion.wr_id, id);
                    taken = true;
                }
                Err(error) => {
                    assert!(matches!(error, Error::DeviceGone) && taken, "{error}");
                    break;
                }
            }
        }
    }
    drop(go);
    device.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn completions_decode(
        ids: (u64, u32, u32),
        status in prop_oneof![Just(0u16), 0u16..30, any::<u16>()],
        opcode: u8,
        flags: u8,
        rest: (u32, u32, u32, u32),
    ) {
        let p = pair();
        let (user_data, qp, qp_num) = ids;
        let (vendor_err, byte_len, imm_data, src_qp) = rest;
        p.kernel.complete(abi::Cqe {
            user_data, qp, qp_num, status, opcode, flags, vendor_err, byte_len, imm_data, src_qp,
            ..Default::default()
        });
        let got = p.cq.poll().unwrap().unwrap();
        prop_assert_eq!((got.wr_id, got.qp_num, got.byte_len), (user_data, qp_num, byte_len));
        prop_assert_eq!((got.status.code(), got.vendor_err), (status, vendor_err));
        prop_assert_eq!(got.imm, (flags & abi::WC_WITH_IMM != 0).then_some(imm_data));
        prop_assert!(got.to_string().contains(&user_data.to_string()));
        match got.ok() {
            Ok(_) => prop_assert_eq!(status, 0),
            Err(error) => {
                prop_assert!(status != 0);
                prop_assert!(error.to_string().contains(&status.to_string()));
            }
        }
    }
}

#[test]
fn opcodes_have_their_names() {
    let p = pair();
    for (code, opcode) in [
        (abi::WC_SEND, Opcode::Send),
        (abi::WC_RDMA_WRITE, Opcode::Write),
        (abi::WC_RDMA_READ, Opcode::Read),
        (abi::WC_COMP_SWAP, Opcode::CompareSwap),
        (abi::WC_FETCH_ADD, Opcode::FetchAdd),
        (abi::WC_RECV, Opcode::Recv),
        (abi::WC_RECV_RDMA_WITH_IMM, Opcode::RecvWriteImm),
        (99, Opcode::Other(99)),
    ] {
        p.kernel.complete(abi::Cqe {
            opcode: code,
            ..Default::default()
        });
        assert_eq!(p.cq.poll().unwrap().unwrap().opcode, opcode);
    }
}

#[test]
fn a_ring_goes_round() {
    let p = pair_of(4);
    for id in 0..1000 {
        p.kernel.complete(abi::Cqe {
            user_data: id,
            ..Default::default()
        });
        assert_eq!(p.cq.poll().unwrap().unwrap().wr_id, id);
    }
}

// --- buffers ------------------------------------------------------------------------------------------

#[test]
fn accesses_stay_within_and_are_aligned() {
    let p = pair();
    let mem = p.a.pd().alloc_buffer(13).unwrap();
    assert_eq!(
        (mem.len(), mem.is_empty(), mem.page_size()),
        (13, false, 4096)
    );
    // The mapping is longer than that, which is nobody's business.
    let far = usize::MAX;
    for (offset, len) in [(13, 1), (14, 0), (0, 14), (far, 1), (1, far), (far, far)] {
        let len = len.min(64);
        let error = mem.read_at(offset, &mut vec![0; len]).unwrap_err();
        assert_matches!(error, Error::Range { capacity: 13, .. });
        assert!(mem.write_at(offset, &vec![0; len]).is_err());
        assert!(mem.copy_from(0, &mem, offset, len).is_err());
        assert!(mem.copy_from(offset, &mem, 0, len).is_err());
        assert!(mem
            .slice(offset..offset.saturating_add(len).max(14))
            .is_err());
        assert!(mem
            .fill(offset..offset.saturating_add(len).max(14), 1)
            .is_err());
    }
    assert!(mem.copy_from(0, &mem, 0, usize::MAX).is_err());
    mem.read_at(13, &mut []).unwrap();
    let relaxed = Ordering::Relaxed;
    assert!(mem.load_u8(12, relaxed).is_ok() && mem.load_u8(13, relaxed).is_err());
    assert!(mem.load_u16(10, relaxed).is_ok() && mem.load_u32(8, relaxed).is_ok());
    // Bytes 8 to 15 are a word, but not all of it is the buffer's.
    assert!(matches!(mem.load_u64(8, relaxed), Err(Error::Range { .. })));
    assert!(matches!(
        mem.store_u64(8, 1, relaxed),
        Err(Error::Range { .. })
    ));
    assert!(matches!(
        mem.compare_exchange_u64(8, 0, 1, relaxed),
        Err(Error::Range { .. })
    ));
    for offset in 1..5 {
        assert!(matches!(
            mem.load_u64(offset, relaxed),
            Err(Error::Misaligned { align: 8, .. })
        ));
        assert!(matches!(
            mem.store_u64(offset, 1, relaxed),
            Err(Error::Misaligned { .. })
        ));
        assert!(matches!(
            mem.compare_exchange_u64(offset, 0, 1, relaxed),
            Err(Error::Misaligned { .. })
        ));
        assert_eq!(mem.load_u32(offset, relaxed).is_ok(), offset % 4 == 0);
        assert_eq!(mem.load_u16(offset, relaxed).is_ok(), offset % 2 == 0);
    }
    assert!(mem.load_u64(far - 7, relaxed).is_err());
    assert_eq!(
        mem.to_vec(..).unwrap(),
        [0; 13],
        "what was refused has changed nothing"
    );
}

#[test]
fn numbers_are_where_the_bytes_are() {
    let p = pair();
    let bytes: Vec<u8> = (1..=16).collect();
    p.mem.write_at(0, &bytes).unwrap();
    let all = [
        Ordering::Relaxed,
        Ordering::Acquire,
        Ordering::Release,
        Ordering::AcqRel,
        Ordering::SeqCst,
    ];
    for order in all {
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(p.mem.load_u8(at, order).unwrap(), *byte);
        }
        for at in (0..16).step_by(2) {
            let want = u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap());
            assert_eq!(p.mem.load_u16(at, order).unwrap(), want);
        }
        for at in (0..16).step_by(4) {
            let want = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(p.mem.load_u32(at, order).unwrap(), want);
        }
        p.mem.store_u64(64, 5, order).unwrap();
        assert_eq!(p.mem.compare_exchange_u64(64, 6, 7, order).unwrap(), 5);
        assert_eq!(p.mem.compare_exchange_u64(64, 5, 7, order).unwrap(), 5);
        assert_eq!(p.mem.load_u64(64, order).unwrap(), 7);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Fill(usize, usize, u8),
    Copy(usize, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || 0usize..4000;
    prop_oneof![
        (at(), prop::collection::vec(any::<u8>(), 0..64))
            .prop_map(|(at, bytes)| Change::Write(at, bytes)),
        (at(), at(), any::<u8>()).prop_map(|(at, len, value)| Change::Fill(at, len, value)),
        (at(), at(), at()).prop_map(|(to, from, len)| Change::Copy(to, from, len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_buffer_is_a_vector(changes in prop::collection::vec(change(), 1..20)) {
        const LEN: usize = 4001;
        let p = pair();
        let mem = p.a.pd().alloc_buffer(LEN).unwrap();
        let mut plain = vec![0u8; LEN];
        for change in changes {
            let (fits, done) = match change {
                Change::Write(at, bytes) => {
                    let fits = at + bytes.len() <= LEN;
                    if fits {
                        plain[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    (fits, mem.write_at(at, &bytes))
                }
                Change::Fill(at, len, value) => {
                    let fits = at + len <= LEN;
                    if fits {
                        plain[at..at + len].fill(value);
                    }
                    (fits, mem.fill(at..at + len, value))
                }
                Change::Copy(to, from, len) => {
                    let fits = to + len <= LEN && from + len <= LEN;
                    if fits {
                        plain.copy_within(from..from + len, to);
                    }
                    (fits, mem.copy_from(to, &mem, from, len))
                }
            };
            prop_assert_eq!(done.is_ok(), fits);
            prop_assert_eq!(&mem.to_vec(..).unwrap(), &plain);
        }
    }

    #[test]
    fn parts_of_parts(ranges in prop::collection::vec((0usize..100, 0usize..100), 1..6)) {
        let p = pair();
        let grant = p.mem.grant(0..100, Access::REMOTE_READ).unwrap();
        let (mut local, mut remote) = (p.mem.slice(0..100).unwrap(), grant.remote());
        let (mut start, mut len) = (0, 100);
        for (from, to) in ranges {
            let (l, r) = (local.slice(from..to), remote.slice(from as u64..to as u64));
            let fits = from <= to && to <= len;
            prop_assert_eq!((l.is_ok(), r.is_ok()), (fits, fits));
            if let (Ok(l), Ok(r)) = (l, r) {
                (start, len) = (start + from, to - from);
                prop_assert_eq!((l.offset(), l.len(), l.is_empty()), (start, len, len == 0));
                prop_assert_eq!(r.addr(), grant.remote().addr() + start as u64);
                prop_assert_eq!((r.len(), r.rkey()), (len as u64, grant.remote().rkey()));
                // A part has the rights of the whole.
                prop_assert_eq!(r.access(), Some(Access::REMOTE_READ));
                (local, remote) = (l, r);
            }
        }
    }
}

// --- lives --------------------------------------------------------------------------------------------

#[test]
fn everything_goes_whatever_the_order() {
    let p = pair();
    let grant = p.mem.grant(.., Access::REMOTE_READ).unwrap();
    let kept = p.mem.clone();
    let kernel = p.kernel.clone();
    assert_eq!(kernel.objects(), 6);
    // The domain, the queue and the device go first, as far as their owner is concerned.
    let Pair {
        device,
        cq,
        a,
        b,
        mem,
        ..
    } = p;
    drop((device, cq));
    drop(mem);
    let (other, pd) = (a.clone(), a.pd().clone());
    drop((a, b));
    assert_eq!(kernel.objects(), 5);
    drop(other);
    drop(grant);
    assert_eq!(kernel.objects(), 2);
    drop(pd);
    kept.write_at(0, b"x").unwrap();
    drop(kept);
    assert_eq!(kernel.objects(), 0);
}

#[test]
fn half_made_things_go_again() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1).unwrap());
    kernel.refuse("QP_MODIFY", Errno::ERANGE);
    let error = pd.qp_builder::<Rc>(&cq).build().unwrap_err();
    assert_eq!(error.errno(), Some(libc::ERANGE));
    assert_eq!(kernel.objects(), 2);
    kernel.refuse("QP_CREATE", Errno::EOPNOTSUPP);
    let error = pd.qp_builder::<Ud>(&cq).build().unwrap_err();
    assert!(matches!(error, Error::Unsupported { what: "QP_CREATE" }));
    assert_eq!(device.create_cq(0).unwrap_err().errno(), Some(libc::ERANGE));
    for len in [0, (1 << 26) + 1, usize::MAX] {
        for error in
            [pd.alloc_buffer(len), pd.user_memory_builder(len).build()].map(Result::unwrap_err)
        {
            let text = format!("the length of a buffer is {len}; pass a number from 1 to 67108864");
            assert_eq!(error.to_string(), text);
        }
    }
    assert_eq!(kernel.objects(), 2);
    assert_eq!(
        kernel
            .log()
            .iter()
            .filter(|name| **name == "DESTROY")
            .count(),
        1
    );
}

// --- devices and queue pairs ------------------------------------------------------------------------------

/// The addresses of an interface may change while a device is open.
#[test]
fn a_new_queue_pair_has_the_gid_that_its_port_has_now() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let endpoint = || pd.qp_builder::<Rc>(&cq).build().map(|qp| qp.endpoint());
    let opened = device.default_gid().unwrap();
    assert_eq!(endpoint().unwrap().gid, opened.gid);
    let mut new = opened.gid.0;
    new[15] += 1;
    kernel.set_address(new);
    assert_eq!(endpoint().unwrap().gid, Gid(new));
    assert_ne!(device.default_gid().unwrap().gid, Gid(new));
}

#[test]
fn devices_are_found_and_explained() {
    let kernel = Kernel::new();
    let device = Device::attach(kernel.file(), "fake0").unwrap();
    let chosen = device.default_gid().unwrap();
    assert_eq!((chosen.port, chosen.gid_index), (1, 1));
    for part in [
        "RoCE v2",
        "an IPv4 address of eth0",
        "rather than index 0",
        "link-local",
    ] {
        assert!(chosen.reason.contains(part), "{chosen}");
    }
    assert!(device
        .to_string()
        .starts_with("fake0, port 1, GID index 1, ::ffff:10.9.0.1: "));
    assert_eq!(device.gids(1).unwrap().len(), 2);
    assert_eq!(device.gids(2).unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(device.port(2).unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(device.pkey(1, 0).unwrap(), 0xffff);
    assert!(device.info().supports::<Rc>(WrOpcode::Write));
    assert!(!device.info().supports::<Ud>(WrOpcode::Write));
    assert_eq!(device.info().atomic_cap, AtomicCap::Glob);
    assert_eq!(device.info().atomic_cap.to_string(), "ATOMIC_GLOB");

    // More than the first question has room for.
    let mut entries = vec![abi::DeviceEntry::default(); 20];
    assert_eq!(kernel.file().device_list(&mut entries[..16]).unwrap(), 20);
    assert_eq!(kernel.file().device_list(&mut entries).unwrap(), 20);
    assert_eq!(&entries[19].name[..7], b"fake19\0");

    for name in ["fake1", &"x".repeat(64), "a\0b"] {
        let error = Device::attach(kernel.file(), name).unwrap_err();
        assert_matches!(error, Error::NoDevice { .. });
    }
    assert!(matches!(Device::open(""), Err(Error::NoDevice { .. })));
    kernel.refuse("ATTACH", Errno::EOPNOTSUPP);
    let error = Device::attach(kernel.file(), "").unwrap_err();
    assert_matches!(error, Error::Unsupported { .. });
    assert!(error.to_string().contains("iWARP"), "{error}");
    kernel.refuse("QUERY", Errno::EINVAL);
    let error = Device::attach(kernel.file(), "").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the module speaks ABI version 2, this program 3; build both from the same tree, and reload the module"
    );
    kernel.upgrade();
    let error = Device::attach(kernel.file(), "").unwrap_err();
    assert_matches!(
        error,
        Error::Abi { kernel, library }
            if (kernel, library) == (abi::ABI_VERSION + 1, abi::ABI_VERSION)
    );
}

#[test]
fn an_entry_of_the_device_list_is_shown_as_name_index_and_guid() {
    let entry = crate::device::DeviceEntry {
        name: "rxe1".to_owned(),
        index: 3,
        node_guid: crate::gid::Guid([2, 0, 0x5e, 0xff, 0xfe, 0, 0x53, 1]),
        ports: 1,
        is_default: true,
        local_net: true,
    };
    assert_eq!(entry.to_string(), "rxe1, index 3, GUID 0200:5eff:fe00:5301");
}

#[test]
fn a_connection_is_what_both_ends_can() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let qp = pd
        .qp_builder::<Rc>(&cq)
        .mtu(Mtu::B4096)
        .timeout(AckTimeout::new(3).unwrap())
        .retry_cnt(Retries::new(2).unwrap())
        .rnr_retry(RnrRetries::new(1).unwrap())
        .min_rnr_timer(RnrTimer::new(9).unwrap())
        .access(Access::REMOTE_READ)
        .traffic_class(TrafficClass(0x60))
        .flow_label(0xabcde)
        .hop_limit(7)
        .sl(5)
        .pkey_index(0)
        .gid(1, 0)
        .build()
        .unwrap();
    let end = qp.endpoint();
    // The port does 1,024 bytes, the device 12 reads at a time.
    assert_eq!(
        (end.mtu, end.responder, end.initiator),
        (Mtu::B1024, 16, 12)
    );
    assert!(end.psn < 1 << 24);
    let peer = Endpoint::new(0x77, 0x1234, Gid([9; 16]), Mtu::B512).rd_atomic(3, 200);
    let qp = qp.connect(peer).unwrap();
    let info = qp.query().unwrap();
    assert_eq!((info.state, info.path_mtu), (QpState::Rts, Some(Mtu::B512)));
    assert_eq!((info.max_rd_atomic, info.max_dest_rd_atomic), (3, 16));
    assert_eq!(
        (info.rq_psn, info.sq_psn, info.dest_qp_num),
        (0x1234, end.psn, 0x77)
    );
    assert_eq!((info.timeout.code(), info.retry_cnt.count()), (3, 2));
    assert_eq!(
        (info.rnr_retry.count(), info.min_rnr_timer.code()),
        (Some(1), 9)
    );
    assert_eq!(info.access, Access::REMOTE_READ);
    let path = info.path;
    assert_eq!((path.gid, path.gid_index, path.port), (Gid([9; 16]), 0, 1));
    assert_eq!(
        (
            path.traffic_class.0,
            path.flow_label,
            path.hop_limit,
            path.sl
        ),
        (0x60, 0xabcde, 7, 5)
    );
    assert_eq!((qp.peer(), qp.endpoint()), (&peer, end));
}

#[test]
fn inline_data_is_left_out_where_nobody_asked_for_it() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let build = |builder: crate::qp::QpBuilder<Rc>| {
        kernel.refuse("QP_CREATE", Errno::EINVAL);
        builder.build().map(|qp| qp.caps().max_inline)
    };
    assert_eq!(build(pd.qp_builder(&cq)).unwrap(), 0);
    let error = build(pd.qp_builder(&cq).max_inline(64)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL as i32));
}

#[test]
fn names_and_numbers() {
    for code in 0..=255 {
        assert_eq!(QpState::from_code(code).code(), code);
        if let Some(mtu) = Mtu::from_code(code) {
            assert_eq!((mtu as u8, Mtu::at_most(mtu.bytes())), (code, mtu));
        }
    }
    assert_eq!((Mtu::B256.bytes(), Mtu::B4096.bytes()), (256, 4096));
    assert_eq!(
        (Mtu::at_most(0), Mtu::at_most(1500), Mtu::at_most(u32::MAX)),
        (Mtu::B256, Mtu::B1024, Mtu::B4096)
    );
    let gid: Gid = "::ffff:10.9.0.2".parse().unwrap();
    assert_eq!(gid.ipv4(), Some([10, 9, 0, 2].into()));
    assert_eq!(gid, Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 2)));
    assert_eq!(Gid::default().ipv4(), None);
    assert_eq!(
        crate::Guid([1, 2, 3, 4, 5, 6, 7, 0xff]).to_string(),
        "0102:0304:0506:07ff"
    );
}

// --- the exchange ---------------------------------------------------------------------------------------

/// A queue pair on a kernel, with a grant of 64 bytes.
fn end(kernel: &Arc<Kernel>) -> (PreparedQp<Rc>, crate::Grant, Cq) {
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let grant = pd
        .alloc_buffer(64)
        .unwrap()
        .grant(.., Access::REMOTE_WRITE)
        .unwrap();
    (pd.qp_builder::<Rc>(&cq).build().unwrap(), grant, cq)
}

#[test]
fn two_programs_meet() {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (theirs, grant, _) = end(&kernel);
    let peer = std::thread::spawn(move || {
        let incoming = listener.accept(SOON).unwrap();
        let (qp, about) = incoming.accept(theirs, &[&grant]).unwrap();
        (qp, about, grant)
    });
    let (ours, ..) = end(&kernel);
    let (qp, about) = ours.connect_tcp(addr, &[]).unwrap();
    let (their_qp, about_us, _grant) = peer.join().unwrap();
    assert_eq!(
        (about.addr, about.endpoint, about.grants.len()),
        (addr, their_qp.endpoint(), 1)
    );
    assert_eq!(
        (about_us.endpoint, about_us.grants.len()),
        (qp.endpoint(), 0)
    );
    let dst = about.grant(0).unwrap();
    assert_eq!(dst.access(), Some(Access::REMOTE_WRITE));
    let error = about.grant(1).unwrap_err();
    assert!(error.to_string().ends_with("is 1; pass 0"), "{error}");
    let error = about_us.grant(0).unwrap_err();
    assert!(
        error.to_string().ends_with("is 0; there is none"),
        "{error}"
    );
}

/// What `connect_tcp` says to a peer that answers so, and then hangs up.
fn connects_to(answer: &'static [u8]) -> Error {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        // The hello without a grant, so that closing does not become a reset.
        tcp.read_exact(&mut [0; 44]).unwrap();
        tcp.write_all(answer).unwrap();
    });
    let kernel = Kernel::new();
    let (qp, ..) = end(&kernel);
    let error = qp.connect_tcp(addr, &[]).unwrap_err();
    peer.join().unwrap();
    let destroyed = || kernel.log().iter().filter(|it| **it == "DESTROY").count();
    let before = destroyed();
    let error = Error::from(error);
    // Nothing is left of the queue pair, which the other kind of error had.
    assert_eq!(destroyed(), before + 1);
    error
}

#[test]
fn peers_that_speak_something_else() {
    let error = connects_to(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert_matches!(error, Error::Wire(crate::wire::WireError::Magic));
    let error = connects_to(b"RULP\0\x02\0\x01\0\0\0\x20");
    assert_matches!(error, Error::Wire(crate::wire::WireError::Version(2)));
    let error = connects_to(b"RULP\0\x01\0\x01\xff\xff\xff\xff");
    assert_matches!(error, Error::Wire(crate::wire::WireError::Length(u32::MAX)));
    let error = connects_to(b"RULP\0\x01\0\x03\0\0\0\0");
    assert_matches!(error, Error::Wire(crate::wire::WireError::OutOfTurn));
    let error = connects_to(b"RULP\0\x01\0\x02\0\0\0\x04\0\x04\0\0");
    assert_matches!(error, Error::Refused(crate::wire::Refusal::Busy));
    for cut in [b"" as &[u8], b"RULP", b"RULP\0\x01\0\x01\0\0\0\x20\x02\x03"] {
        let error = connects_to(cut);
        assert_matches!(error, Error::Tcp { .. });
    }
}

/// What `accept` says to a peer that says so.
fn accepts(what: &[u8], timeout: Duration) -> (Error, Vec<u8>) {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let mut tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    tcp.write_all(what).unwrap();
    let (qp, grant, _) = end(&kernel);
    let incoming = listener.accept(SOON).unwrap();
    let error = incoming.accept_within(qp, &[&grant], timeout).unwrap_err();
    let mut answer = Vec::new();
    let _ = tcp.read_to_end(&mut answer);
    (error.into(), answer)
}

#[test]
fn strangers_are_told_and_silent_ones_are_not_waited_for() {
    let refusal = |reason: u8| {
        let mut bytes = b"RULP\0\x01\0\x02\0\0\0\x04\0".to_vec();
        bytes.extend([reason, 0, 0]);
        bytes
    };
    let (error, answer) = accepts(b"GET / HTTP/1", SOON);
    assert_matches!(error, Error::Wire(_));
    assert_eq!(answer, refusal(5));
    let (error, answer) = accepts(b"RULP\0\x01", NOW);
    assert_matches!(error, Error::Timeout { .. });
    assert!(answer.is_empty());
    // A datagram queue pair.
    let mut hello = b"RULP\0\x01\0\x01\0\0\0\x20\x04\x03\x01\x01".to_vec();
    hello.extend([0; 28]);
    let (error, answer) = accepts(&hello, SOON);
    assert_matches!(error, Error::Refused(crate::wire::Refusal::Transport));
    assert_eq!(answer, refusal(2));
}

#[test]
fn whoever_waits_for_a_peer_hears_that_the_device_is_gone() {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (theirs, grant, _) = end(&kernel);
    // Both wait for a peer that says nothing.
    let silent = TcpStream::connect(addr).unwrap();
    let incoming = listener.accept(SOON).unwrap();
    let slow = std::thread::spawn(move || {
        incoming.accept(theirs, &[&grant]).map(drop)?;
        Ok(())
    });
    let idle = std::thread::spawn(move || listener.accept(Duration::MAX).map(drop));
    std::thread::sleep(NOW);
    assert!(!slow.is_finished() && !idle.is_finished());
    kernel.remove();
    for waiter in [slow, idle] {
        let error = waiter.join().unwrap().unwrap_err();
        assert_matches!(error, Error::DeviceGone);
    }
    drop(silent);
}

#[test]
fn both_ends_of_an_exchange_ask_a_silent_host_whether_it_is_there() {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let ((ours, ..), (theirs, ..)) = (end(&kernel), end(&kernel));
    let (there, here) = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            listener
                .accept(SOON)?
                .accept(theirs, &[])
                .map_err(Error::from)
        });
        let here = ours.connect_tcp(addr, &[]).unwrap();
        (there.join().unwrap().unwrap(), here)
    });
    for peer in [&there.1, &here.1] {
        let tcp = socket2::SockRef::from(peer);
        assert!(tcp.keepalive().unwrap());
        let (idle, between) = (tcp.tcp_keepalive_time(), tcp.tcp_keepalive_interval());
        let over = idle.unwrap() + between.unwrap() * tcp.tcp_keepalive_retries().unwrap();
        assert_eq!(over, Duration::from_secs(60));
        assert_eq!(tcp.tcp_user_timeout().unwrap(), Some(over));
    }
}

/// A queue pair whose peer hung up when it was connected already.
#[test]
fn a_queue_pair_is_given_back_as_it_was() {
    let kernel = Kernel::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut hello = [0; 44];
        tcp.read_exact(&mut hello).unwrap();
        // It says the same, and nothing more.
        tcp.write_all(&hello).unwrap();
        let mut ready = [0; 12];
        tcp.read_exact(&mut ready).unwrap();
    });
    let (qp, ..) = end(&kernel);
    let (at, broken) = (qp.endpoint(), qp.connect_tcp(addr, &[]).unwrap_err());
    peer.join().unwrap();
    assert!(matches!(broken.error(), Error::Tcp { .. }), "{broken}");
    let qp = broken.into_qp();
    assert_eq!(qp.query().unwrap().state, QpState::Init);
    // An end that does not exist: a number of more than 24 bits.
    let wrong = Endpoint::new(1 << 24, 0, at.gid, Mtu::B1024);
    let refused = qp.connect(wrong).unwrap_err();
    assert!(matches!(refused.error(), Error::Value { .. }), "{refused}");
    let qp = refused.into_qp().connect(at).unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::Rts);
}

#[test]
fn refusing_and_nobody_there() {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    assert!(matches!(listener.accept(NOW), Err(Error::Timeout { .. })));
    let refuser = std::thread::spawn(move || {
        let incoming = listener.accept(SOON).unwrap();
        incoming.refuse(crate::wire::Refusal::Declined).unwrap();
    });
    let (qp, grant, _) = end(&kernel);
    let number = qp.qp_num();
    let refused = qp.connect_tcp(addr, &[&grant]).unwrap_err();
    assert!(
        matches!(
            refused.error(),
            Error::Refused(crate::wire::Refusal::Declined)
        ),
        "{refused}"
    );
    refuser.join().unwrap();

    // Now nobody listens there. The queue pair is the same.
    let refused = refused.into_qp().connect_tcp(addr, &[]).unwrap_err();
    assert!(
        matches!(refused.error(), Error::Tcp { peer: Some(_), .. }),
        "{refused}"
    );
    assert!(refused.error().is_retryable());
    let options = TcpOptions::new().timeout(NOW).retry_refused();
    let qp = refused.into_qp();
    assert_eq!(qp.qp_num(), number);
    let error = Error::from(qp.connect_tcp_with(addr, &[], options).unwrap_err());
    // The time limit does not hide what was refused, and where.
    assert_matches!(
        &error,
        Error::Tcp { peer: Some(peer), cause, .. }
            if *peer == addr && cause.kind() == std::io::ErrorKind::ConnectionRefused
    );
    // The listener opens its port while its peer retries.
    let device = kernel.device();
    let listens_later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        let listener = Listener::bind(&device, addr).unwrap();
        let incoming = listener.accept(SOON).unwrap();
        incoming.refuse(crate::wire::Refusal::Declined).unwrap();
    });
    let (qp, ..) = end(&kernel);
    let options = TcpOptions::new().timeout(SOON).retry_refused();
    let error = Error::from(qp.connect_tcp_with(addr, &[], options).unwrap_err());
    assert_matches!(error, Error::Refused(crate::wire::Refusal::Declined));
    listens_later.join().unwrap();
    let (qp, grant, _) = end(&kernel);
    let error = Error::from(qp.connect_tcp(addr, &[&grant; 65]).unwrap_err());
    assert_matches!(
        error,
        Error::TooMany {
            what: "grants",
            count: 65,
            max: 64
        }
    );
}

// --- errors -----------------------------------------------------------------------------------------------

/// Each says what happened and what to do.
#[test]
fn errors_say_what_to_do() {
    let open = |errno| Error::Open {
        path: "/dev/rust_ulp".into(),
        cause: std::io::Error::from_raw_os_error(errno),
    };
    let tcp = |errno| Error::Tcp {
        what: "waiting for a peer to connect",
        peer: None,
        cause: std::io::Error::from_raw_os_error(errno),
    };
    let value = |value, min, max| Error::Value {
        what: "it",
        value,
        min,
        max,
    };
    let all: Vec<(Error, &[&str])> = vec![
        (
            open(libc::ENOENT),
            &["/dev/rust_ulp", "load the kernel module rust_ulp"],
        ),
        (open(libc::EACCES), &["run as root", "group rdma"]),
        (open(libc::EMFILE), &["this process", "ulimit -n"]),
        (open(libc::ENFILE), &["fs.file-max"]),
        (open(libc::EIO), &["dmesg"]),
        (
            Error::Abi {
                kernel: 2,
                library: 1,
            },
            &["version 2", "this program 1", "same tree"],
        ),
        (
            Error::Unsupported { what: "QP_CREATE" },
            &["QP_CREATE", "Device::info()"],
        ),
        (
            Error::NoDevice { name: "x".into() },
            &["named \"x\"", "rdma link add"],
        ),
        (
            Error::NoDevice { name: "".into() },
            &["no RDMA device that", "rdma link"],
        ),
        (
            Error::NoUsableGid {
                port: 1,
                tried: "none".into(),
            },
            &["port 1", "IPv4", "QpBuilder::gid()"],
        ),
        (
            Error::InvalidTransition {
                current: QpState::Init,
                next: QpState::Rtr,
                missing: QpAttr::new().rq_psn(1).path_mtu(Mtu::B1024).set(),
                extra: QpAttr::new().qkey(1).set(),
            },
            &["Init to Rtr without path_mtu, rq_psn with qkey;", "QpAttr"],
        ),
        (Error::NotConnected, &["the state", "connect it", "INIT"]),
        (
            Error::Range {
                what: "x",
                offset: 1,
                len: 2,
                capacity: 3,
            },
            &["x: 2 bytes at 1", "into 3", "smaller"],
        ),
        (
            Error::Misaligned {
                offset: 4,
                align: 8,
            },
            &["offset 4", "multiple of 8", "pass one that is"],
        ),
        (
            Error::Access {
                needed: Access::REMOTE_WRITE,
                granted: Access::empty(),
            },
            &["REMOTE_WRITE", "grant more"],
        ),
        (
            Error::TooMany {
                what: "elements",
                count: 9,
                max: 8,
            },
            &["9 elements", "8", "split it"],
        ),
        (
            Error::TooMany {
                what: "inline bytes",
                count: 65,
                max: 64,
            },
            &[
                "65 inline bytes",
                "64",
                "a Buffer",
                "QpBuilder::max_inline()",
            ],
        ),
        (value(9, 0, 7), &["it is 9; pass 7 at most"]),
        (value(0, 1, 7), &["it is 0; pass a number from 1 to 7"]),
        (value(4, 8, 8), &["it is 4; pass 8"]),
        (value(4, 8, u64::MAX), &["it is 4; pass 8 or more"]),
        (value(0, 1, 0), &["it is 0; there is none"]),
        (
            Error::sys("SUBMIT", Errno::EMSGSIZE),
            &[
                "2^31",
                "PortInfo::active_mtu",
                "QpCaps::max_inline",
                "split it",
            ],
        ),
        (Error::QueueFull, &["is full", "reap completions"]),
        (
            Error::Batch {
                index: 3,
                posted: 0,
                cause: Box::new(Error::QueueFull),
            },
            &["request 3", "reap completions", "0 requests were posted"],
        ),
        (
            Error::CqOverflow { dropped: 4 },
            &["4 completions", "larger one"],
        ),
        (Error::CqFailed, &["destroy it"]),
        (Error::CqCorrupt, &["overwritten", "new one"]),
        (
            Error::Busy { what: "DESTROY" },
            &["DESTROY", "drop that one first"],
        ),
        (
            Error::Timeout {
                what: "waiting for",
                peer: Some(([10, 9, 0, 1], 7).into()),
                after: NOW,
            },
            &["waiting for 10.9.0.1:7: ", "5ms", "wait longer"],
        ),
        (
            Error::Tcp {
                what: "connecting to",
                peer: None,
                cause: std::io::ErrorKind::NotFound.into(),
            },
            &["connecting to", "check that the peer runs"],
        ),
        (
            Error::Tcp {
                what: "listening at",
                peer: Some(([10, 9, 0, 9], 1).into()),
                cause: std::io::ErrorKind::AddrNotAvailable.into(),
            },
            &[
                "listening at 10.9.0.9:1: ",
                "no interface of this network namespace",
                "`ip addr`",
            ],
        ),
        (
            tcp(libc::EMFILE),
            &[
                "this process has too many open files",
                "close some",
                "ulimit -n",
            ],
        ),
        (tcp(libc::ENFILE), &["this machine", "fs.file-max"]),
        (
            Error::Tcp {
                what: "waiting for a message of the peer",
                peer: None,
                cause: std::io::ErrorKind::UnexpectedEof.into(),
            },
            &["the peer hung up: see what it says"],
        ),
        (
            Error::Wire(crate::wire::WireError::Magic),
            &["magic", "rust_ulp program of this version"],
        ),
        (
            Error::Refused(crate::wire::Refusal::Busy),
            &["refused", "try later"],
        ),
        (Error::DeviceGone, &["drop all", "open a device again"]),
        (
            Error::Sys {
                call: "QP_CREATE",
                errno: libc::EXDEV,
            },
            &["QP_CREATE", "EXDEV", "protection domains"],
        ),
        (
            Error::Sys {
                call: "MMAP",
                errno: 4000,
            },
            &["error 4000", "driver's own"],
        ),
    ];
    for (error, parts) in all {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(!text.contains("  ") && !text.contains('\n'), "{text:?}");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert!(
            cause.is_none_or(|cause| !text.contains(&cause)),
            "{text:?} has its cause"
        );
        let io = std::io::Error::from(error);
        assert_eq!(io.to_string(), text);
    }
}

fn failed(status: Status) -> Error {
    let p = pair();
    p.a.post(Send::empty()).unwrap();
    p.kernel
        .finish(p.a.handle(), |cqe| cqe.status = status.code());
    p.cq.wait(SOON).unwrap().check().unwrap_err()
}

fn sys(errno: i32) -> Error {
    Error::Sys { call: "X", errno }
}

#[test]
fn an_io_error_of_a_failed_call_has_the_kind_of_its_errno() {
    use std::io::ErrorKind::*;
    for (errno, kind) in [
        (libc::EACCES, PermissionDenied),
        (libc::EADDRINUSE, AddrInUse),
        (libc::EADDRNOTAVAIL, AddrNotAvailable),
        (libc::EAGAIN, WouldBlock),
        (libc::ECONNREFUSED, ConnectionRefused),
        (libc::ECONNRESET, ConnectionReset),
        (libc::EDQUOT, QuotaExceeded),
        (libc::EHOSTUNREACH, HostUnreachable),
        (libc::EINTR, Interrupted),
        (libc::EINVAL, InvalidInput),
        (libc::EMFILE, QuotaExceeded),
        (libc::ENETUNREACH, HostUnreachable),
        (libc::ENOENT, NotFound),
        (libc::ENOMEM, OutOfMemory),
        (libc::ENOTCONN, NotConnected),
        (libc::ENOTTY, Unsupported),
        (libc::EPERM, PermissionDenied),
        (libc::ERANGE, InvalidInput),
        (libc::ETIME, TimedOut),
        (libc::ETIMEDOUT, TimedOut),
        (libc::EIO, Other),
        (4000, Other),
    ] {
        let error = std::io::Error::from(sys(errno));
        assert_eq!(error.kind(), kind, "{error}");
        // In a batch, too.
        let batch = Error::Batch {
            index: 0,
            posted: 0,
            cause: Box::new(sys(errno)),
        };
        assert_eq!(std::io::Error::from(batch).kind(), kind, "{error}");
    }
}

#[test]
fn an_io_error_of_a_failed_request_tells_a_lost_peer_from_a_refusal() {
    use std::io::ErrorKind::*;
    for (status, kind) in [
        (Status::RetryExceeded, ConnectionReset),
        (Status::Flushed, ConnectionReset),
        (Status::RemoteAbort, ConnectionReset),
        (Status::ResponseTimeout, ConnectionReset),
        (Status::TimedOut, TimedOut),
        (Status::RemoteAccess, ConnectionAborted),
        (Status::RnrRetryExceeded, ConnectionAborted),
        (Status::LocalProtection, ConnectionAborted),
    ] {
        let error = std::io::Error::from(failed(status));
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn an_error_of_each_variant_has_its_kind() {
    let named = |kind: ErrorKind, error: Error| assert_eq!(error.kind(), kind, "{error}");
    let io = std::io::Error::from_raw_os_error;
    let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (path, peer) = (String::new(), None);
    let cause = io(libc::EACCES);
    named(ErrorKind::PermissionDenied, Error::Open { path, cause });
    let cause = io(libc::ENOSYS);
    named(ErrorKind::Unsupported, Error::NoUring { cause });
    let (what, cause) = ("X", eof);
    named(ErrorKind::ConnectionLost, Error::Tcp { what, peer, cause });
    named(ErrorKind::WouldBlock, Error::QueueFull);
    named(ErrorKind::NotConnected, Error::NotConnected);
    named(ErrorKind::DeviceGone, Error::DeviceGone);
    named(ErrorKind::Busy, Error::Busy { what });
    named(ErrorKind::CqFailed, Error::CqOverflow { dropped: 1 });
    named(ErrorKind::Protocol, Error::Stream { what });
    named(
        ErrorKind::ConnectionRefused,
        Error::Refused(crate::wire::Refusal::Busy),
    );
    named(ErrorKind::OutOfRange, sys(libc::ERANGE));
    named(ErrorKind::Unsupported, Error::sys("X", Errno::EOPNOTSUPP));
    named(ErrorKind::RequestFailed, failed(Status::RemoteAccess));
    named(ErrorKind::ConnectionLost, failed(Status::RetryExceeded));
    named(ErrorKind::Canceled, failed(Status::Canceled));
}

#[test]
fn a_gid_of_another_family_than_the_peer_s_is_named_with_the_right_index() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    // Index 0 is link-local, index 1 an IPv4 address.
    let gids = device.gids(1).unwrap();
    for (wrong, right) in [(0, 1), (1, 0)] {
        let qp = pd.qp_builder::<Rc>(&cq).gid(1, wrong).build().unwrap();
        let theirs = gids[usize::from(right)].gid;
        kernel.refuse("QP_MODIFY", Errno::EINVAL);
        let error = qp.connect(Endpoint::new(7, 0, theirs, Mtu::B1024));
        let error = Error::from(error.unwrap_err());
        let ours = gids[usize::from(wrong)].gid;
        assert_matches!(
            error,
            Error::GidFamily { port: 1, index, local, peer, usable: Some(usable) }
                if index == wrong && local == ours && peer == theirs && usable == right
        );
        assert_eq!(error.errno(), Some(libc::EINVAL));
        let text = error.to_string();
        for part in [
            format!("GID index {wrong} of port 1"),
            format!("use GID index {right} here"),
            "an IPv4 address".into(),
            "an IPv6 address".into(),
            ours.to_string(),
            theirs.to_string(),
        ] {
            assert!(text.contains(&part), "{part:?} is not in {text:?}");
        }
    }
    // If both GIDs are of one family, EINVAL has another cause.
    let qp = pd.qp_builder::<Rc>(&cq).gid(1, 1).build().unwrap();
    kernel.refuse("QP_MODIFY", Errno::EINVAL);
    let error = qp.connect(Endpoint::new(7, 0, gids[1].gid, Mtu::B1024));
    let error = Error::from(error.unwrap_err());
    assert_matches!(error, Error::Sys { .. });
}

/// Every errno of the header has words here.
#[test]
fn errnos_of_the_header_are_explained() {
    let header = include_str!("uapi/rust_ulp.h");
    let words: BTreeSet<&str> = header.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let mut known = 0;
    for errno in 1..200 {
        let name = format!("{:?}", Errno::from_raw(errno));
        if !words.contains(name.as_str()) {
            continue;
        }
        known += 1;
        let error = match Errno::from_raw(errno) {
            // It comes with a status, and becomes a completion.
            Errno::EREMOTEIO => continue,
            Errno::EIO => Error::sys("DESTROY", Errno::EIO),
            errno => Error::sys("SUBMIT", errno),
        };
        let text = error.to_string();
        assert!(!text.contains("the driver's own error"), "{name}: {text}");
        let is_the_driver_s = matches!(errno, libc::EIO);
        assert_eq!(error.kind() == ErrorKind::Other, is_the_driver_s, "{name}");
    }
    assert!(known > 35, "{known}");
}

/// Some error numbers have another meaning for some commands.
#[test]
fn an_errno_is_explained_by_the_command_that_failed() {
    let p = pair();
    let pd = p.a.pd();
    let refuse = |command, errno| p.kernel.refuse(command, errno);
    let explained = |error: Error, parts: &[&str], kind, is_retryable| {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert_eq!(error.kind(), kind, "{text}");
        assert_eq!(error.is_retryable(), is_retryable, "{text}");
        assert!(!error.is_backpressure(), "{text}");
    };
    let pinned = ["EAGAIN", "cannot be pinned now: try again"];
    refuse("BUFFER_REGISTER", Errno::EAGAIN);
    let error = pd.user_memory_builder(4096).build().unwrap_err();
    explained(error, &pinned, ErrorKind::WouldBlock, true);
    refuse("BUFFER_IMPORT", Errno::EAGAIN);
    let none = std::fs::File::open("/dev/null").unwrap();
    let error = pd.dmabuf_builder(none.into()).build().unwrap_err();
    explained(error, &pinned, ErrorKind::WouldBlock, true);

    refuse("CQ_CREATE", Errno::EPERM);
    let cq = p
        .device
        .cq_builder(8)
        .delivery(crate::cq::Delivery::Softirq);
    let rights = ["EPERM", "CAP_SYS_NICE", "user_softirq=1", "user_vector=1"];
    let denied = ErrorKind::PermissionDenied;
    explained(cq.build().unwrap_err(), &rights, denied, false);
    refuse("QP_MODIFY", Errno::EPERM);
    let qp = pd.qp_builder::<Ud>(&p.cq).qkey(1 << 31).build();
    explained(qp.unwrap_err(), &["EPERM", "CAP_NET_RAW"], denied, false);
    explained(
        Error::sys("LISTEN", Errno::EACCES),
        &["1024"],
        denied,
        false,
    );

    let state = ["EPROTO", "neither in the state Reset nor in Init"];
    refuse("CONNECT", Errno::EPROTO);
    let (anywhere, there) = ("0.0.0.0:0".parse().unwrap(), "10.9.0.1:9".parse().unwrap());
    let qp = || pd.qp_builder::<Rc>(&p.cq).build().unwrap();
    let error = qp().connect_cm(there, &cm::ConnectOptions::new());
    let error = Error::from(error.unwrap_err());
    explained(error, &state, ErrorKind::InvalidState, false);
    let listener = cm::Listener::bind(&p.device, anywhere, 1).unwrap();
    p.kernel.ask();
    refuse("ACCEPT", Errno::EPROTO);
    let request = listener.next_request(NOW).unwrap();
    let error = request.accept(qp(), &cm::AcceptOptions::new());
    let error = Error::from(error.unwrap_err());
    explained(error, &state, ErrorKind::InvalidState, false);
    refuse("CONN_WAIT", Errno::EPROTO);
    let error = qp().connect_cm(there, &cm::ConnectOptions::new());
    let error = Error::from(error.unwrap_err());
    explained(error, &["EPROTO", "the peer"], ErrorKind::Protocol, false);

    let hint = |call, errno, part: &str| {
        let text = Error::sys(call, errno).to_string();
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    };
    for call in ["eventfd", "epoll_create", "timerfd_create"] {
        hint(call, Errno::EMFILE, "ulimit -n");
        hint(call, Errno::ENFILE, "fs.file-max");
    }
    hint(
        "CQ_CREATE",
        Errno::EMFILE,
        "this Device has as many objects",
    );
    hint(
        "QP_MODIFY",
        Errno::EHOSTUNREACH,
        "no route to the peer's GID",
    );
    hint("DESTROY", Errno::EIO, "did not revoke a key");
    hint("SUBMIT", Errno::EIO, "the driver's own error");
    hint("SUBMIT (waiting)", Errno::EIO, "the driver's own error");
    hint(
        "io_uring_enter",
        Errno::EEXIST,
        "RingBuilder::single_issuer()",
    );
    hint("epoll_ctl", Errno::ENOSPC, "fs.epoll.max_user_watches");
    for errno in [Errno::EIO, Errno::EINVAL, Errno::ENOSYS] {
        hint(
            "epoll_wait",
            errno,
            "see the manual page of that system call",
        );
    }
}

#[test]
fn statuses_are_explained() {
    for code in (1..=21).chain([256, 257]) {
        let status = Status::from_code(code);
        assert!(!matches!(status, Status::Other(_)), "{code}");
        assert!(
            !status.name().is_empty() && status.explanation().len() > 20,
            "{status:?}"
        );
    }
    assert!(matches!(Status::from_code(22), Status::Other(22)));
    assert!(matches!(Status::from_code(258), Status::Other(258)));
}

/// A failed completion says what to do next, and a receive another thing than a send.
#[test]
fn failed_completions_say_what_to_do() {
    let p = pair();
    let too_long = "the message is longer than the receive that took it";
    for (status, opcode, has, lacks) in [
        (
            2,
            abi::WC_RECV,
            &[too_long, "as large as the peer's longest message"][..],
            "its type, state",
        ),
        (
            2,
            abi::WC_RECV_RDMA_WITH_IMM,
            &[too_long],
            "its type, state",
        ),
        (
            2,
            abi::WC_RDMA_WRITE,
            &["compare its type, state and limits"],
            too_long,
        ),
        (10, abi::WC_RDMA_WRITE, &["rkey"], too_long),
        (256, abi::WC_RECV, &["leave its memory alone"], too_long),
        (9, abi::WC_SEND, &["its receive is too small"], too_long),
        (
            11,
            abi::WC_SEND,
            &[
                "longer than the receive that the peer posted",
                "larger receives",
            ],
            too_long,
        ),
        (
            12,
            abi::WC_RDMA_WRITE,
            &[
                "Peer::is_gone()",
                "connect a new queue pair",
                "ulp diagnose HOST",
                "4791",
            ],
            too_long,
        ),
        (
            5,
            abi::WC_RECV,
            &[
                "no message came",
                "the peer has disconnected or ended",
                "connect a new",
            ],
            "post the request",
        ),
        (
            5,
            abi::WC_SEND,
            &["another status has the cause", "post the request again"],
            "no message came",
        ),
    ] {
        let mut cqe = abi::Cqe {
            user_data: 7,
            status,
            opcode,
            vendor_err: 0x2a,
            ..Default::default()
        };
        (cqe.qp, cqe.qp_num) = (p.a.handle(), p.a.qp_num());
        p.kernel.complete(cqe);
        let error = p.cq.wait(SOON).unwrap().check().unwrap_err();
        let text = error.to_string();
        let Error::Completion(error) = error else {
            panic!("{text}");
        };
        assert_eq!((error.wr_id, error.vendor_err), (7, 0x2a));
        assert_eq!(error.opcode, Opcode::from_code(opcode));
        assert_eq!(error.status, Status::from_code(status));
        assert_eq!(error.qp_num, p.a.qp_num());
        assert_eq!(error.peer, Some((p.b.qp_num(), p.b.endpoint().gid)));
        let head = format!(
            "{:?} request 7 on queue pair {} to queue pair {} at {}: {} (status {status}, vendor code 0x2a): ",
            Opcode::from_code(opcode),
            p.a.qp_num(),
            p.b.qp_num(),
            p.b.endpoint().gid,
            Status::from_code(status).name()
        );
        assert!(text.starts_with(&head), "{text}");
        for part in has {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains(lacks), "{lacks:?} is in {text}");
        assert!(!text.contains("  "), "{text}");
    }
}

// --- addresses that do not answer -------------------------------------------------------------------------

/// An address at which nobody answers: the queue of its listener is full.
fn silent_address() -> (std::net::SocketAddr, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = socket();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut sockets = vec![listener];
    loop {
        let next = socket();
        let full = next.connect_timeout(&addr, 10 * NOW).is_err();
        sockets.push(next);
        if full {
            return (addr.as_socket().unwrap(), sockets);
        }
    }
}

#[test]
fn a_silent_address_leaves_time_for_the_others() {
    let (kernel, (silent, _full)) = (Kernel::new(), silent_address());
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let qp = || pd.qp_builder::<Rc>(&cq).build().unwrap();
    let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
    let addrs = [silent, listener.local_addr().unwrap()];
    std::thread::scope(|scope| {
        let accept = scope.spawn(|| listener.accept(SOON).unwrap().accept(qp(), &[]).unwrap());
        let options = TcpOptions::new().timeout(100 * NOW);
        let (_qp, peer) = qp().connect_tcp_with(&addrs[..], &[], options).unwrap();
        assert_eq!(peer.addr, addrs[1]);
        drop(accept.join().unwrap());
    });
    let options = TcpOptions::new().timeout(4 * NOW);
    let error = qp().connect_tcp_with(silent, &[], options).unwrap_err();
    let after = |error: &Error| matches!(error, Error::Timeout { after, peer, .. } if (*after, *peer) == (4 * NOW, Some(silent)));
    assert!(after(error.error()), "{error}");
    assert!(error.to_string().contains(&silent.to_string()), "{error}");
    // The device goes meanwhile.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(4 * NOW);
            kernel.remove();
        });
        let error = error.into_qp().connect_tcp(silent, &[]).unwrap_err();
        assert!(matches!(error.error(), Error::DeviceGone), "{error}");
    });
}

/// A host of two families has an address of a family that this host may have no route for.
#[test]
fn a_refusal_is_retried_though_another_address_cannot_be_reached() {
    let kernel = Kernel::new();
    let (qp, ..) = end(&kernel);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = nobody.local_addr().unwrap();
    drop(nobody);
    // TCP has no broadcast: this fails at once.
    let unreachable = std::net::SocketAddr::from(([255, 255, 255, 255], 9));
    for addrs in [[refusing, unreachable], [unreachable, refusing]] {
        let device = Device::from_inner(qp.device_inner());
        let options = TcpOptions::new().timeout(NOW).retry_refused();
        let (again, ..) = end(&kernel);
        let error = Error::from(
            again
                .connect_tcp_with(&addrs[..], &[], options)
                .unwrap_err(),
        );
        assert_matches!(
            &error,
            Error::Tcp { peer: Some(peer), cause, .. }
                if *peer == refusing && cause.kind() == std::io::ErrorKind::ConnectionRefused
        );
        // The listener opens its port while its peer retries.
        let listens_later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let listener = Listener::bind(&device, refusing).unwrap();
            let incoming = listener.accept(SOON).unwrap();
            incoming.refuse(crate::wire::Refusal::Declined).unwrap();
        });
        let (again, ..) = end(&kernel);
        let options = TcpOptions::new().timeout(SOON).retry_refused();
        let error = Error::from(
            again
                .connect_tcp_with(&addrs[..], &[], options)
                .unwrap_err(),
        );
        assert_matches!(error, Error::Refused(crate::wire::Refusal::Declined));
        listens_later.join().unwrap();
    }
}

#[test]
fn an_unreliable_connection_by_tcp() {
    let kernel = Kernel::new();
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let theirs = pd.qp_builder::<Uc>(&cq).build().unwrap();
    let peer = std::thread::spawn(move || listener.accept(SOON).unwrap().accept(theirs, &[]));
    let ours = pd.qp_builder::<Uc>(&cq).build().unwrap();
    let (qp, _) = ours.connect_tcp(addr, &[]).unwrap();
    let (their_qp, _) = peer.join().unwrap().unwrap();
    assert_eq!(*qp.peer(), their_qp.endpoint());

    // The two ends have to be of one kind.
    let listener = Listener::bind(&kernel.device(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let theirs = pd.qp_builder::<Rc>(&cq).build().unwrap();
    let peer = std::thread::spawn(move || listener.accept(SOON).unwrap().accept(theirs, &[]));
    let ours = pd.qp_builder::<Uc>(&cq).build().unwrap();
    for error in [
        Error::from(ours.connect_tcp(addr, &[]).map(drop).unwrap_err()),
        peer.join().unwrap().map(drop).unwrap_err().into(),
    ] {
        assert_matches!(error, Error::Refused(crate::wire::Refusal::Transport));
    }
}

// --- datagrams --------------------------------------------------------------------------------------------

/// Queue pairs that are ready, with their memory.
struct Datagrams {
    kernel: Arc<Kernel>,
    cq: Cq,
    mem: Buffer,
    a: Qp<Ud>,
    b: Qp<Ud>,
}

fn datagrams() -> Datagrams {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let build = |qkey| pd.qp_builder::<Ud>(&cq).qkey(qkey).build().unwrap();
    Datagrams {
        a: build(0x11).ready().unwrap(),
        b: build(0x22).ready().unwrap(),
        mem: pd.alloc_buffer(8192).unwrap(),
        cq,
        kernel,
    }
}

impl Datagrams {
    /// Completes the oldest receive of `b` with a datagram of so many bytes.
    fn arrives(&self, len: u32) {
        self.kernel.arrive(self.b.handle(), |cqe| {
            (cqe.flags, cqe.byte_len) = (abi::WC_GRH, len + Grh::LEN as u32);
        });
    }
}

/// The answer comes from the GID that was asked.
#[test]
fn an_answer_to_another_gid() {
    let d = datagrams();
    let room = d.mem.slice(0..64).unwrap();
    let mut header = [0; Grh::LEN];
    header[0] = 0x60;
    header[8..24].copy_from_slice(&[0xaa; 16]);
    let came_to = |d: &Datagrams, gid: &str| {
        let gid: Gid = gid.parse().unwrap();
        let mut header = header;
        header[24..].copy_from_slice(&gid.0);
        d.mem.write_at(0, &header).unwrap();
        let mut cqe = abi::Cqe {
            opcode: abi::WC_RECV,
            flags: abi::WC_GRH,
            byte_len: 40,
            src_qp: 77,
            ..Default::default()
        };
        cqe.qp = d.b.handle();
        d.kernel.complete(cqe);
        let got = d.b.received(&d.cq.wait(SOON).unwrap(), &room).unwrap();
        let to = d.b.reply_to(&got).unwrap();
        assert_eq!((to.qp_num(), to.ah().path().gid), (77, Gid([0xaa; 16])));
        to.ah().path().gid_index
    };
    assert_eq!(came_to(&d, "fe80::1"), 0);
    assert_eq!(came_to(&d, "::ffff:10.9.0.1"), 1);
    // No host can answer for a multicast group.
    assert_eq!(came_to(&d, "ff0e::1"), 1);
}

#[test]
fn what_is_no_datagram_of_ours() {
    let d = datagrams();
    let room = d.mem.slice(0..64).unwrap();
    d.b.post_recv(Recv::new(room)).unwrap();
    let to = d.a.address(&d.b.endpoint()).unwrap();
    let to = to.queue_pair(d.b.qp_num(), d.b.qkey());
    d.a.post(SendTo::inline_bytes(b"0123456789", &to)).unwrap();
    d.arrives(10);
    d.kernel.finish(d.a.handle(), |_| {});
    let (came, left) = (d.cq.wait(SOON).unwrap(), d.cq.wait(SOON).unwrap());
    for (qp, done, room) in [
        (&d.a, came, room),
        (&d.b, left, room),
        (&d.b, came, room.slice(0..49).unwrap()),
    ] {
        let error = qp.received(&done, &room).unwrap_err();
        assert_matches!(error, Error::NotADatagram);
    }
    assert!(d.b.received(&came, &room.slice(0..50).unwrap()).is_ok());
    d.kernel.complete(abi::Cqe {
        status: 1,
        ..Default::default()
    });
    let failed = d.cq.wait(SOON).unwrap();
    let error = d.b.received(&failed, &room).unwrap_err();
    assert_matches!(error, Error::Completion(_));
    // Shorter than its header can be.
    let mut cqe = abi::Cqe {
        opcode: abi::WC_RECV,
        byte_len: 39,
        ..Default::default()
    };
    cqe.qp = d.b.handle();
    d.kernel.complete(cqe);
    let short = d.cq.wait(SOON).unwrap();
    assert!(matches!(
        d.b.received(&short, &room),
        Err(Error::NotADatagram)
    ));
}

#[test]
fn datagrams_that_cannot_go() {
    let d = datagrams();
    let to = d.a.address(&d.b.endpoint()).unwrap().queue_pair(1, 2);
    d.kernel.log();
    let long = d.mem.slice(0..1025).unwrap();
    let error = d.a.post(SendTo::new(long, &to)).unwrap_err();
    assert_matches!(
        error,
        Error::DatagramTooLong {
            len: 1025,
            mtu: 1024
        }
    );
    for part in [
        "1025 bytes",
        "one packet of 1024",
        "port's MTU",
        "connection",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let mut batch = d.a.batch();
    assert!(batch.push(SendTo::new(long, &to)).is_err());
    drop(batch);
    let far = to.ah().queue_pair(1 << 24, 2);
    let error = d.a.post(SendTo::empty(&far)).unwrap_err();
    assert_matches!(
        error,
        Error::Value {
            value: 0x100_0000,
            max: 0xff_ffff,
            ..
        }
    );
    assert!(d.kernel.log().is_empty());
    d.a.post(SendTo::new(d.mem.slice(0..1024).unwrap(), &to))
        .unwrap();
    for errno in [Errno::EHOSTUNREACH, Errno::ENOENT] {
        d.kernel.refuse("AH_CREATE", errno);
        let error = d.a.address(&Endpoint::new(1, 2, Gid::default(), Mtu::B256));
        assert_eq!(error.unwrap_err().errno(), Some(errno as i32));
    }
}

/// Numbers of another file name other things there.
#[test]
fn what_is_of_another_device_is_refused() {
    let d = datagrams();
    let other = d.kernel.device();
    let pd = other.alloc_pd().unwrap();
    let buffer = pd.alloc_buffer(64).unwrap();
    let slice = buffer.slice(..).unwrap();
    let ah = pd.create_ah(*d.a.address(&d.b.endpoint()).unwrap().path());
    let foreign = ah.unwrap().queue_pair(1, 2);
    let ours = d.a.address(&d.b.endpoint()).unwrap().queue_pair(1, 2);
    d.kernel.log();
    for error in [
        d.a.post(SendTo::empty(&foreign)).unwrap_err(),
        d.a.post(SendTo::new(slice, &ours)).unwrap_err(),
        d.a.post_recv(Recv::new(slice)).unwrap_err(),
        d.a.batch().push(SendTo::empty(&foreign)).unwrap_err(),
    ] {
        assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    }
    assert!(!d.kernel.log().contains(&"SUBMIT"));
}

/// In the file of the other device, their numbers name queues of its own.
#[test]
fn queues_of_another_device_are_refused() {
    let (one, two) = (Kernel::new(), Kernel::new());
    let (here, there) = (one.device(), two.device());
    let objects = |device: &Device| {
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let srq = pd.srq_builder(&cq).build().unwrap();
        (pd, cq, srq)
    };
    let ((pd, ours, _srq), (_pd, theirs, shared)) = (objects(&here), objects(&there));
    assert_eq!(ours.handle(), theirs.handle());
    let before = one.objects();
    let refused = |error: Error| assert_eq!(error.errno(), Some(libc::EXDEV), "{error}");
    refused(pd.qp_builder::<Rc>(&theirs).build().unwrap_err());
    refused(
        pd.qp_builder::<Rc>(&ours)
            .recv_cq(&theirs)
            .build()
            .unwrap_err(),
    );
    refused(pd.qp_builder::<Rc>(&ours).srq(&shared).build().unwrap_err());
    refused(pd.srq_builder(&theirs).build().unwrap_err());
    assert_eq!(one.objects(), before);
    // Nor does a batch wait for one.
    let qp = pd.qp_builder::<Rc>(&ours).build().unwrap();
    let mut batch = here.batch();
    batch.push(&qp, Recv::empty()).unwrap();
    one.log();
    let error = batch.submit_and_wait(&theirs, 1, NOW).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    assert_eq!((batch.len(), one.log()), (1, Vec::new()));
    // Clones and other values of one open device are the same device.
    let same = Device::from_inner(here.inner());
    let other = same.create_cq(16).unwrap();
    let _qp = pd.qp_builder::<Rc>(&other).build().unwrap();
}

#[test]
fn datagrams_allocate_nothing() {
    let d = datagrams();
    let room = d.mem.slice(0..100).unwrap();
    let to = d.a.address(&d.b.endpoint()).unwrap();
    let to = to.queue_pair(d.b.qp_num(), d.b.qkey());
    let round = || {
        d.b.post_recv(Recv::new(room)).unwrap();
        d.a.post(SendTo::inline_bytes(b"datagram", &to)).unwrap();
        d.arrives(8);
        d.kernel.finish(d.a.handle(), |_| {});
        let came = d.cq.wait(SOON).unwrap();
        let got = d.b.received(&came, &room).unwrap();
        assert_eq!((got.payload.len(), Grh::LEN), (8, 40));
        let _ = d.cq.wait(SOON).unwrap().ok().unwrap();
        let mut batch = d.a.batch();
        batch.push(SendTo::inline_bytes(b"lost", &to)).unwrap();
        d.kernel.complete(abi::Cqe::default());
        batch.submit_and_wait(1, SOON).unwrap();
        drop(d.kernel.posted());
        let _ = d.cq.wait(SOON).unwrap().ok().unwrap();
    };
    round();
    let before = allocations();
    for _ in 0..50 {
        round();
    }
    assert_eq!(allocations() - before, 0);
}

// --- shared receive queues ----------------------------------------------------------------------------------

/// A shared receive queue decides where receives complete, and the queue pair has none of its own.
#[test]
fn a_shared_receive_queue_prevails_whatever_the_order_of_the_options() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let pd = device.alloc_pd().unwrap();
    let [cq, own, shared] = [(); 3].map(|()| device.create_cq(16).unwrap());
    let srq = pd.srq_builder(&shared).build().unwrap();
    let builder = || pd.qp_builder::<Rc>(&cq);
    for builder in [
        builder()
            .recv_cq(&own)
            .max_recv_wr(9)
            .max_sge(2, 3)
            .srq(&srq),
        builder()
            .srq(&srq)
            .recv_cq(&own)
            .max_recv_wr(9)
            .max_sge(2, 3),
        builder()
            .max_sge(2, 3)
            .srq(&srq)
            .max_recv_wr(9)
            .recv_cq(&cq),
    ] {
        let qp = builder.build().unwrap();
        assert!(*qp.recv_cq() == shared && *qp.send_cq() == cq);
        let caps = qp.caps();
        assert_eq!((caps.max_recv_wr, caps.max_recv_sge), (0, 0));
        assert_eq!(caps.max_send_sge, 2);
        assert!(qp.srq().is_some());
        kernel.log();
        let error = qp.post_recv(Recv::empty()).unwrap_err();
        assert_matches!(error, Error::SharedReceives);
        assert!(kernel.log().is_empty());
    }
    // It lives as long as a queue pair that uses it.
    let qp = builder().srq(&srq).build().unwrap();
    let before = kernel.objects();
    drop(srq);
    assert_eq!(kernel.objects(), before);
    drop(qp);
    assert_eq!(kernel.objects(), before - 2);
}

// --- events ------------------------------------------------------------------------------------------------

#[test]
fn events_come_in_their_order_and_end() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let events = device.events();
    let cq = device.create_cq(1).unwrap();
    assert_eq!(events.next_event().unwrap(), None);
    let error = events.wait(NOW).unwrap_err();
    assert_matches!(error, Error::Timeout { .. });
    let happen = |event, port, info| {
        kernel.happen(abi::Event {
            event,
            port,
            info,
            handle: cq.handle(),
            time_ns: 1_500_000_000,
            user_data: 0,
        });
    };
    happen(abi::EVENT_CQ_ERR, 0, 0);
    happen(abi::EVENT_PORT_ERR, 2, 0);
    happen(abi::EVENT_LOST, 0, 7);
    happen(999, 3, 4);
    let event = events.wait(SOON).unwrap();
    assert_eq!(event.kind, EventKind::CqError);
    assert_eq!(event.time, Duration::from_millis(1500));
    assert!(event.is_about(&cq));
    // The same number of another file is another object.
    let other = kernel.device();
    assert!(!other.events().next_event().unwrap().unwrap().is_about(&cq));
    assert_eq!(
        events.wait(SOON).unwrap().kind,
        EventKind::Lost { count: 7 }
    );
    let unknown = EventKind::Other {
        code: 999,
        port: 3,
        info: 4,
    };
    assert_eq!(events.next_event().unwrap().unwrap().kind, unknown);

    // Whoever waits is told, and then there is nothing more.
    let waiter = std::thread::spawn({
        let events = events.clone();
        move || events.wait(SOON).unwrap().kind
    });
    std::thread::sleep(NOW);
    kernel.remove();
    assert_eq!(waiter.join().unwrap(), EventKind::DeviceRemoved);
    assert!(matches!(events.next_event(), Err(Error::DeviceGone)));
    assert!(matches!(events.wait(SOON), Err(Error::DeviceGone)));
}

#[test]
fn each_event_goes_to_one_of_several_threads() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let events = device.events();
            std::thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    match events.wait(SOON).unwrap().kind {
                        EventKind::Lost { count: u32::MAX } => return got,
                        EventKind::Lost { count } => got.push(count),
                        kind => panic!("{kind:?}"),
                    }
                }
            })
        })
        .collect();
    for n in (0..200).chain([u32::MAX; 4]) {
        kernel.happen(abi::Event {
            event: abi::EVENT_LOST,
            info: n,
            ..Default::default()
        });
    }
    let mut all: Vec<u32> = Vec::new();
    for reader in readers {
        all.extend(reader.join().unwrap());
    }
    all.sort();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
}

/// Every event of the header has a name here.
#[test]
fn events_of_the_header_are_named() {
    let header = include_str!("uapi/rust_ulp.h");
    let kernel = Kernel::new();
    let device = kernel.device();
    let events = device.events();
    let mut known = 0;
    for line in header.lines() {
        let Some(rest) = line.strip_prefix("#define RUST_ULP_EVENT_") else {
            continue;
        };
        if rest.starts_with("SIZE_V1") {
            continue;
        }
        let code = rest.split_whitespace().nth(1).unwrap().parse().unwrap();
        kernel.happen(abi::Event {
            event: code,
            ..Default::default()
        });
        let kind = events.next_event().unwrap().unwrap().kind;
        assert!(!matches!(kind, EventKind::Other { .. }), "{rest}");
        known += 1;
    }
    assert_eq!(known, 30);
}
