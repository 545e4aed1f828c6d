// SPDX-License-Identifier: MIT OR Apache-2.0

//! Deadlines, what is canceled, and files that tell of completions.

use super::*;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::os::fd::AsFd;

const SHORT: Duration = Duration::from_millis(20);

#[test]
fn a_receive_that_nothing_comes_for() {
    let p = pair();
    p.b.post_recv(Recv::empty().wr_id(1).timeout(SHORT))
        .unwrap();
    p.b.post_recv(Recv::empty().wr_id(2)).unwrap();
    let late = p.cq.wait(SOON).unwrap();
    assert_eq!((late.wr_id, late.status), (1, Status::TimedOut));
    assert!(late.is_of(&p.b) && late.status.is_unfinished());
    let error = late.ok().unwrap_err().to_string();
    assert!(error.contains("leave its memory alone"), "{error}");
    // The queue pair goes on, but the first message is lost to that receive.
    p.a.post(Send::empty().signaled(false)).unwrap();
    assert!(p.cq.poll().unwrap().is_none());
    p.a.post(Send::empty().signaled(false)).unwrap();
    let done = p.cq.wait(SOON).unwrap().ok().unwrap();
    assert_eq!(done.wr_id, 2);
}

#[test]
fn deadlines_in_a_batch_are_their_requests_own() {
    let p = pair();
    let mut batch = p.b.batch();
    for i in 0..4 {
        let recv = Recv::empty().wr_id(i);
        let late = i % 2 == 1;
        batch
            .push(if late { recv.timeout(SHORT) } else { recv })
            .unwrap();
    }
    batch.submit_and_wait(2, SOON).unwrap();
    let late: Vec<_> = drain(&p.cq)
        .iter()
        .map(|done| (done.wr_id, done.status))
        .collect();
    assert_eq!(late, [(1, Status::TimedOut), (3, Status::TimedOut)]);
    assert!(matches!(p.cq.wait(SHORT), Err(Error::Timeout { .. })));
}

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
    assert!(drain(&p.cq).iter().all(|done| done.ok().is_ok()));

    // A request with a deadline in a batch of requests without one.
    for with in [false, true] {
        let mut batch = p.a.batch();
        for i in 0..4 {
            let write = Write::new(one, dst).wr_id(i);
            let late = with && i == 2;
            batch
                .push(if late { write.timeout(t) } else { write })
                .unwrap();
        }
        batch.submit_and_wait(4, SOON).unwrap();
        let order: Vec<_> = drain(&p.cq).iter().map(|done| done.wr_id).collect();
        assert_eq!(order, [0, 1, 2, 3]);
    }

    for timeout in [
        Duration::ZERO,
        Duration::from_secs(3601),
        Duration::from_nanos(u64::MAX),
        Duration::MAX,
    ] {
        p.a.post(Write::new(one, dst).timeout(timeout)).unwrap();
    }
}

#[test]
fn canceling_by_number_and_all() {
    let p = pair();
    for wr_id in [1, 2, 1, 0, 3] {
        p.b.post_recv(Recv::empty().wr_id(wr_id)).unwrap();
    }
    assert_eq!(p.b.cancel(7).unwrap(), 0);
    assert_eq!(p.b.cancel(1).unwrap(), 2);
    assert_eq!(p.b.cancel(1).unwrap(), 0);
    assert_eq!(p.b.cancel(0).unwrap(), 1);
    assert_eq!(p.a.cancel_all().unwrap(), 0);
    assert_eq!(p.b.cancel_all().unwrap(), 2);
    let done = drain(&p.cq);
    let order: Vec<_> = done.iter().map(|done| done.wr_id).collect();
    assert_eq!(order, [1, 1, 0, 2, 3]);
    assert!(done.iter().all(|done| done.status == Status::Canceled));
    // Those that wait for nothing any more have no second end.
    p.b.modify(QpAttr::to(QpState::Err)).unwrap();
    assert!(p.cq.poll().unwrap().is_none());

    let prepared = p.b.pd().qp_builder::<Rc>(&p.cq).build().unwrap();
    prepared.post_recv(Recv::empty().wr_id(5)).unwrap();
    prepared.post_recv(Recv::empty().wr_id(6)).unwrap();
    assert_eq!((prepared.cancel(5), prepared.cancel_all()).0.unwrap(), 1);
    let srq = p.b.pd().srq_builder(&p.cq).build().unwrap();
    (0..3).for_each(|i| srq.post_recv(Recv::empty().wr_id(i)).unwrap());
    assert_eq!(srq.cancel(2).unwrap(), 1);
    assert_eq!(srq.cancel_all().unwrap(), 2);
    assert_eq!(drain(&p.cq).len(), 5);
}

#[test]
fn dropping_and_forgetting_what_is_in_flight() {
    let p = pair();
    let before = p.kernel.objects();
    let mem = p.b.pd().user_memory_builder(4096).build().unwrap();
    let (late, now) = (SOON, Duration::ZERO);
    for timeout in [late, now] {
        let slice = mem.slice(..).unwrap();
        p.b.post_recv(Recv::new(slice).timeout(timeout)).unwrap();
    }
    drop(mem);
    assert_eq!(p.kernel.objects(), before, "to this process it is gone");
    assert_eq!(p.cq.wait(SOON).unwrap().status, Status::TimedOut);
    assert_eq!(p.b.cancel_all().unwrap(), 1);
    std::mem::forget(p.b.clone());
    drop((p.b, p.a));
    assert_eq!(p.cq.wait(SOON).unwrap().status, Status::Canceled);
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
        let mut batch = p.a.batch();
        for _ in 0..4 {
            batch.push(write()).unwrap();
        }
        batch.submit_and_wait(5, SOON).unwrap();
        p.b.post_recv(Recv::empty()).unwrap();
        p.b.cancel_all().unwrap();
        for _ in 0..6 {
            let _ = p.cq.wait(SOON).unwrap();
        }
    };
    round();
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}
