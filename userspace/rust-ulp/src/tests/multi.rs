// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lanes with their threads.

use super::*;
use crate::multi::MultiQueue;

/// `n` queues, and the queue pairs at their other ends.
fn queues(
    n: usize,
    with: impl FnOnce(crate::multi::MultiQueueBuilder) -> crate::multi::MultiQueueBuilder,
) -> (Arc<Kernel>, MultiQueue<Rc>, Vec<Qp<Rc>>, Cq) {
    let kernel = Kernel::new();
    let device = kernel.device();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(1024).unwrap());
    let mut peers = Vec::new();
    let builder = with(device.multi_queue_builder().queues(n));
    let multi = builder.build(|_, queue_cq| {
        let ours = pd.qp_builder::<Rc>(queue_cq).build()?;
        let theirs = pd.qp_builder::<Rc>(&cq).build()?;
        let (at, to) = (ours.endpoint(), theirs.endpoint());
        peers.push(theirs.connect(at)?);
        Ok(ours.connect(to)?)
    });
    (kernel, multi.unwrap(), peers, cq)
}

#[test]
fn each_queue_has_its_completions() {
    let (_, multi, peers, _) = queues(3, |builder| builder.pinned());
    assert_eq!(multi.queues().len(), 3);
    for (i, peer) in peers.iter().enumerate() {
        let queue = multi.queue(i + 3);
        assert!(queue.cpu().is_some());
        queue.qp().post_recv(Recv::empty().wr_id(i as u64)).unwrap();
        peer.post(Send::empty()).unwrap();
        let done = queue.completions().wait(SOON).unwrap().ok().unwrap();
        assert!(done.is_of(queue.qp()));
        assert_eq!(done.wr_id, i as u64);
        assert!(queue.completions().try_next().unwrap().is_none());
    }
    let error = multi.here().completions().wait(NOW).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { after: NOW, .. }),
        "{error}"
    );
    let cpu = multi.here().cpu();
    assert!(multi.queues().iter().any(|queue| queue.cpu() == cpu));
    assert!(multi.stop(SOON).unwrap().is_empty());
}

#[test]
fn any_thread_takes_any_of_one_stream() {
    let (_, multi, peers, _) = queues(4, |builder| builder.one_stream());
    let taken = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..3)
            .map(|i| {
                let completions = multi.queue(i).completions().clone();
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    while let Ok(done) = completions.wait(Duration::from_millis(300)) {
                        mine.push((done.qp_num, done.wr_id));
                    }
                    mine
                })
            })
            .collect();
        for i in 0..100 {
            for (queue, peer) in multi.queues().iter().zip(&peers) {
                queue.qp().post_recv(Recv::empty().wr_id(i)).unwrap();
                peer.post(Send::empty().signaled(false)).unwrap();
            }
        }
        takers
            .into_iter()
            .flat_map(|taker| taker.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(taken.len(), 400);
    let all: std::collections::HashSet<_> = taken.into_iter().collect();
    assert_eq!(all.len(), 400, "each once");
}

#[test]
fn a_stop_leaves_nothing_in_flight() {
    let (kernel, multi, peers, _) = queues(2, |builder| builder.entries(64));
    let clone = multi.queue(0).completions().clone();
    for queue in multi.queues() {
        for i in 0..40 {
            queue.qp().post_recv(Recv::empty().wr_id(i)).unwrap();
        }
    }
    peers[0].post(Send::empty()).unwrap();
    let left = multi.stop(SOON).unwrap();
    let count = |status| left.iter().filter(|done| done.status == status).count();
    assert_eq!((count(Status::Success), count(Status::Flushed)), (1, 79));
    let error = clone.try_next().unwrap_err();
    assert!(matches!(error, Error::Stopped), "{error}");
    assert!(matches!(clone.wait(SOON), Err(Error::Stopped)));
    drop(peers);
    // The threads have let go: one device, one domain and one queue may be left with us.
    until(|| kernel.objects() <= 1);
}

fn until(what: impl Fn() -> bool) {
    let end = std::time::Instant::now() + SOON;
    while !what() {
        assert!(std::time::Instant::now() < end, "it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nobody_takes_and_it_is_dropped() {
    let (kernel, multi, peers, cq) = queues(2, |builder| builder.entries(4));
    let queue = multi.queue(0);
    // 4 in the ring, 4 handed over, and as many as the thread has in its hands.
    let mut posted = 0;
    let end = std::time::Instant::now() + Duration::from_millis(500);
    while std::time::Instant::now() < end {
        match queue.qp().post_recv(Recv::empty()) {
            Ok(()) => {
                posted += 1;
                peers[0].post(Send::empty().signaled(false)).unwrap();
            }
            Err(error) => assert!(error.is_backpressure(), "{error}"),
        }
    }
    assert!((8..=4 + 4 + 32).contains(&posted), "{posted}");
    // Nothing was lost.
    for _ in 0..posted {
        let _ = queue.completions().wait(SOON).unwrap().ok().unwrap();
    }
    queue.qp().post_recv(Recv::empty()).unwrap();
    drop(multi);
    drop((peers, cq));
    until(|| kernel.objects() == 0);
}

#[test]
fn a_queue_that_fails_is_told_once() {
    let (kernel, multi, _peers, _) = queues(1, |builder| builder);
    kernel.set_flags_of(1, abi::CQ_OVERFLOW, 7);
    let completions = multi.queue(0).completions();
    let error = completions.wait(SOON).unwrap_err();
    assert!(matches!(error, Error::CqOverflow { dropped: 7 }), "{error}");
    assert!(matches!(completions.wait(SOON), Err(Error::Stopped)));
    assert!(multi.stop(SOON).unwrap().is_empty());
}

#[test]
fn a_stop_has_its_deadline() {
    let (kernel, multi, _peers, _) = queues(1, |builder| builder);
    multi.queue(0).qp().post_recv(Recv::empty()).unwrap();
    kernel.hold_back();
    let error = multi.stop(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn queues_that_cannot_be() {
    let kernel = Kernel::new();
    let device = kernel.device();
    let error = device
        .multi_queue_builder()
        .queues(0)
        .build::<Rc>(|_, _| unreachable!())
        .unwrap_err();
    assert!(matches!(error, Error::Range { .. }), "{error}");
    let pd = device.alloc_pd().unwrap();
    let error = device
        .multi_queue_builder()
        .queues(3)
        .build::<Ud>(|i, cq| match i {
            2 => Err(Error::NotConnected),
            _ => pd.qp_builder(cq).build()?.ready(),
        })
        .unwrap_err();
    assert!(matches!(error, Error::NotConnected), "{error}");
    drop(pd);
    until(|| kernel.objects() == 0);
}

#[test]
fn handing_over_allocates_nothing() {
    let (_, multi, peers, cq) = queues(1, |builder| builder);
    let queue = multi.queue(0);
    let round = || {
        queue.qp().post_recv(Recv::empty()).unwrap();
        peers[0].post(Send::empty()).unwrap();
        let _ = queue.completions().wait(SOON).unwrap().ok().unwrap();
        let _ = cq.wait(SOON).unwrap().ok().unwrap();
    };
    // On this thread; what the other one does is the same code as `wait`. Who has to sleep for the
    // first time, or finds a queue of the fake longer than ever, allocates for that once: all is
    // there in the end.
    let allocates = |_| {
        let before = allocations();
        (0..200).for_each(|_| round());
        allocations() - before
    };
    let counts: Vec<_> = (0..10)
        .map(allocates)
        .take_while(|count| *count > 0)
        .collect();
    assert!(counts.len() < 10, "{counts:?}");
}
