// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deadlines, and files that tell of completions.

use super::*;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::os::fd::AsFd;

#[test]
fn every_request_can_have_a_deadline() {
    let p = pair();
    let grant = p.mem.grant(4096.., Access::all()).unwrap();
    let (dst, word) = (grant.remote(), grant.remote().slice(..8).unwrap());
    let one = p.mem.slice(..8).unwrap();
    let t = SOON;
    p.a.post(Write::new(one, dst).timeout(t)).unwrap();
    p.a.post(Read::new(dst, one).timeout(t)).unwrap();
    p.a.post(FetchAdd::new(word, 1, one).timeout(t)).unwrap();
    p.a.post(CompareSwap::new(word, 1, 2, one).timeout(t))
        .unwrap();
    p.b.post_recv(Recv::new(one).timeout(t)).unwrap();
    p.a.post(Send::new(one).timeout(t)).unwrap();
    let gone = p.mem.grant(..8, Access::REMOTE_READ).unwrap();
    p.b.post_recv(Recv::new(one)).unwrap();
    p.a.post(Send::empty().invalidate(gone.remote()).timeout(t))
        .unwrap();
    let times = || -> Vec<u64> {
        let posted = p.kernel.posted();
        posted.iter().map(|it| it.wr.timeout_ns).collect()
    };
    let ns = t.as_nanos() as u64;
    assert_eq!(times(), [ns, ns, ns, ns, ns, ns, 0, ns]);

    // Requests with deadlines of their own in a batch, and without.
    let mut batch = p.a.batch();
    for i in 0..4u64 {
        let write = Write::new(one, dst);
        let late = i % 2 == 1;
        batch
            .push(if late {
                write.timeout(t * i as u32)
            } else {
                write
            })
            .unwrap();
    }
    batch.submit().unwrap();
    assert_eq!(times(), [0, ns, 0, 3 * ns]);

    for (timeout, want) in [
        (Duration::ZERO, 1),
        (Duration::from_secs(3601), 3_601_000_000_000),
        (Duration::from_nanos(u64::MAX), u64::MAX),
        (Duration::MAX, abi::TIMEOUT_INFINITE),
    ] {
        p.a.post(Write::new(one, dst).timeout(timeout)).unwrap();
        assert_eq!(times(), [want]);
    }
}

fn readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let timeout = PollTimeout::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
}

#[test]
fn a_file_that_counts_completions() {
    let p = pair();
    p.kernel.complete(abi::Cqe::default()); // before: not counted
    let eventfd = p.cq.eventfd().unwrap();
    assert!(!readable(&eventfd, Duration::ZERO));
    assert_eq!(eventfd.take().unwrap(), 0);
    assert!(matches!(p.cq.eventfd(), Err(Error::Busy { .. })));
    for _ in 0..3 {
        p.kernel.complete(abi::Cqe::default());
    }
    assert!(readable(&eventfd, SOON));
    assert_eq!((eventfd.take().unwrap(), eventfd.take().unwrap()), (3, 0));
    assert!(!readable(&eventfd, Duration::ZERO));
    assert_eq!(drain(eventfd.cq()).len(), 4);
    // Another one when that one is gone.
    drop(eventfd);
    let eventfd = p.cq.eventfd().unwrap();
    p.kernel.remove();
    assert!(readable(&eventfd, SOON));
    assert!(matches!(p.cq.poll(), Err(Error::DeviceGone)));
    // It keeps its queue.
    let (kernel, before) = (p.kernel.clone(), p.kernel.objects());
    drop(p);
    assert!(kernel.objects() < before && kernel.objects() > 0);
    drop(eventfd);
    assert_eq!(kernel.objects(), 0);
}

#[test]
fn deadlines_allocate_nothing() {
    let p = pair();
    let grant = p.mem.grant(4096.., Access::all()).unwrap();
    let (one, dst) = (p.mem.slice(..8).unwrap(), grant.remote());
    let round = || {
        let write = || Write::new(one, dst).timeout(SOON);
        p.a.post(write()).unwrap();
        p.sent();
        (0..4).for_each(|wr_id| p.completes(wr_id));
        let mut batch = p.a.batch();
        for _ in 0..4 {
            batch.push(write()).unwrap();
        }
        batch.submit_and_wait(5, SOON).unwrap();
        p.b.post_recv(Recv::empty()).unwrap();
        p.arrives(0);
        p.b.cancel_all().unwrap();
        drop(p.kernel.posted());
        for _ in 0..6 {
            let _ = p.cq.wait(SOON).unwrap();
        }
    };
    round();
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
