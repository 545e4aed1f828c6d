// SPDX-License-Identifier: MIT OR Apache-2.0

//! Chunks that are handed out and come back.

use super::extra::pool::{Chunk, Pool};
use super::*;
use crate::sync::without_locks;
use crate::sys::holds_in_child;
use std::collections::HashSet;

/// A pool that outlives its test, in memory that is never freed.
fn pool(p: &Pair, chunks: usize) -> Pool<'static> {
    let mem = p.a.pd().alloc_buffer(chunks * 64 + 63).unwrap();
    let mem: &'static Buffer = Box::leak(Box::new(mem));
    Pool::new(mem.slice(..).unwrap(), 64).unwrap()
}

fn take<'b>(pool: &Pool<'b>) -> Chunk<'b> {
    pool.take().unwrap()
}

fn send(chunk: Chunk<'_>, qp: &Qp<Rc>) {
    chunk.post(qp, |memory| Ok(Send::new(memory))).unwrap();
}

#[test]
fn a_pool_without_a_chunk_is_an_error() {
    let p = pair();
    let text = |len, chunk_len| {
        let mem = p.mem.slice(..len).unwrap();
        Pool::new(mem, chunk_len).unwrap_err().to_string()
    };
    let pass = "pass a number from 1 to 900";
    let zero = text(900, 0);
    assert_eq!(zero, format!("the length of a chunk is 0; {pass}"));
    let long = text(900, 901);
    assert_eq!(long, format!("the length of a chunk is 901; {pass}"));
    assert_eq!(text(0, 64), "the length of a chunk is 64; there is none");
    assert_eq!(text(0, 0), "the length of a chunk is 0; there is none");
}

#[test]
fn chunks_stay_within() {
    let p = pair();
    let mem = p.mem.slice(100..1000).unwrap();
    assert_eq!(Pool::new(mem, 900).unwrap().len(), 1);
    let pool = Pool::new(mem, 400).unwrap();
    assert_eq!(
        (pool.len(), pool.chunk_len(), pool.available()),
        (2, 400, 2)
    );
    let (one, two) = (take(&pool), take(&pool));
    assert!(pool.take().is_none());
    assert_eq!((one.offset(), two.offset()), (100, 500));
    two.write_at(395, b"12345").unwrap();
    assert_eq!(p.mem.to_vec(895..900).unwrap(), b"12345");
    let error = two.write_at(396, b"12345").unwrap_err();
    assert_matches!(
        error,
        Error::Range {
            offset: 396,
            capacity: 400,
            ..
        }
    );
    let mut byte = [0];
    assert!(one.read_at(400, &mut byte).is_err());
    assert!(one.read_at(usize::MAX, &mut byte).is_err());
    drop(one);
    assert_eq!(take(&pool).offset(), 100);
    // The chunks keep the pool.
    drop(pool);
    two.read_at(395, &mut byte).unwrap();
    assert_eq!(&byte, b"1");
}

#[test]
fn a_chunk_comes_back_with_its_completion() {
    let p = pair();
    let pool = pool(&p, 2);
    let chunk = take(&pool);
    chunk.write_at(0, b"hello").unwrap();
    // A receive has its chunk as long as nothing came.
    take(&pool)
        .post(&p.b, |memory| Ok(Recv::new(memory).wr_id(77)))
        .unwrap();
    chunk
        .post(&p.a, |memory| {
            Ok(Send::new(memory.slice(..5)?).signaled(false).wr_id(78))
        })
        .unwrap();
    // The chunk that it sends goes with the request, which completes though it said otherwise.
    let sent = p.kernel.take(p.a.handle(), false).unwrap();
    assert_eq!(places(&sent), [(0, 5)]);
    assert_ne!(sent.wr.flags & abi::SEND_SIGNALED, 0);
    p.kernel.arrive(p.b.handle(), |cqe| cqe.byte_len = 5);
    p.kernel.end(&sent, |_| {});
    assert!(pool.take().is_none());
    let (theirs, ours) = (p.cq.wait(SOON).unwrap(), p.cq.wait(SOON).unwrap());
    assert!(pool.take().is_none());
    let got = pool.complete(&theirs).unwrap();
    assert_eq!(theirs.byte_len, 5);
    let sent = pool.complete(&ours).unwrap();
    assert_eq!((got.offset(), sent.offset()), (64, 0));
    let mut bytes = [0; 5];
    sent.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    // Once each.
    assert!(pool.complete(&theirs).is_none() && pool.complete(&ours).is_none());
    drop((got, sent));
    assert_eq!(pool.available(), 2);
    assert!(pool.complete(&theirs).is_none() && pool.complete(&ours).is_none());
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_chunk_that_is_not_posted() {
    let p = pair();
    let pool = pool(&p, 1);
    p.kernel.refuse("SUBMIT", Errno::EAGAIN);
    let refused = take(&pool)
        .post(&p.a, |memory| Ok(Send::new(memory)))
        .unwrap_err();
    assert!(refused.error().is_backpressure());
    let chunk = refused.into_chunk();
    let refused = chunk
        .post(&p.a, |memory| Ok(Send::new(memory.slice(65..)?)))
        .unwrap_err();
    assert!(matches!(refused.error(), Error::Range { .. }));
    assert_eq!(pool.available(), 0);
    assert!(matches!(Error::from(refused), Error::Range { .. }));
    assert_eq!(pool.available(), 1);
    // And it still works.
    send(take(&pool), &p.a);
    p.sent();
    assert_eq!(
        drain(&p.cq).iter().filter_map(|c| pool.complete(c)).count(),
        1
    );
}

#[test]
fn completions_of_others_are_not_taken() {
    let p = pair();
    let (one, other) = (pool(&p, 1), pool(&p, 1));
    send(take(&one), &p.a);
    let status = Status::RnrRetryExceeded;
    p.kernel
        .finish(p.a.handle(), |cqe| cqe.status = status.code());
    let failed = p.cq.wait(SOON).unwrap();
    assert_eq!(failed.status, status);
    assert!(other.complete(&failed).is_none());
    let forged = |wr_id| {
        let mut forged = failed;
        forged.wr_id = wr_id;
        forged
    };
    for wr_id in [0, 1, failed.wr_id + 1, failed.wr_id - 1, u64::MAX] {
        assert!(one.complete(&forged(wr_id)).is_none(), "{wr_id:#x}");
    }
    assert!(one.complete(&failed).is_some());
    // The same number later is another request's.
    send(take(&one), &p.a);
    assert!(one.complete(&failed).is_none());
    p.sent();
    let second = p.cq.wait(SOON).unwrap();
    assert_ne!(second.wr_id, failed.wr_id);
    assert!(one.complete(&second).is_some());
}

#[test]
fn chunks_of_what_has_no_completion_come_back() {
    let p = pair();
    let pool = pool(&p, 3);
    for _ in 0..3 {
        take(&pool)
            .post(&p.b, |memory| Ok(Recv::new(memory)))
            .unwrap();
    }
    assert_eq!(pool.reclaim(), 0);
    // Timed out or canceled is not done.
    p.arrives(0);
    let done = drain(&p.cq);
    let theirs = done.iter().find(|c| c.opcode == Opcode::Recv).unwrap();
    for status in [Status::TimedOut, Status::Canceled] {
        let mut unfinished = *theirs;
        unfinished.status = status;
        assert!(pool.complete(&unfinished).is_none());
    }
    assert!(pool.take().is_none());
    let clone = p.b.clone();
    drop(p.b);
    assert!(pool.take().is_none());
    drop(clone);
    assert_eq!(take(&pool).len(), 64);
    assert_eq!(pool.available(), 3);
    assert_eq!(pool.reclaim(), 0);
}

#[test]
fn a_queue_pair_that_the_kernel_keeps_keeps_its_chunks() {
    let p = pair();
    let pool = pool(&p, 1);
    take(&pool)
        .post(&p.b, |memory| Ok(Recv::new(memory)))
        .unwrap();
    p.kernel.refuse("DESTROY", Errno::EBUSY);
    drop(p.b);
    assert_eq!(pool.reclaim(), 0);
    assert!(pool.take().is_none());
}

#[test]
fn a_forked_child_takes_no_lock_to_drop_what_is_in_flight() {
    let p = pair();
    let pool = Pool::new(p.mem.slice(..).unwrap(), 64).unwrap();
    let batch = p.a.batch();
    let chunk = pool.take().unwrap();
    let before = pool.available();
    assert!(holds_in_child(|| {
        without_locks(|| drop((batch, chunk)));
        pool.available() == before
    }));
}

#[test]
fn chunks_allocate_nothing() {
    let p = pair();
    let pool = pool(&p, 4);
    let round = || {
        take(&pool)
            .post(&p.b, |memory| Ok(Recv::new(memory)))
            .unwrap();
        send(take(&pool), &p.a);
        p.sent();
        p.arrives(0);
        while let Some(done) = p.cq.poll().unwrap() {
            assert!(pool.complete(&done).is_some());
        }
        assert_eq!(pool.available(), 4);
    };
    round();
    let before = allocations();
    (0..100).for_each(|_| round());
    assert_eq!(allocations() - before, 0);
}

#[test]
fn many_threads_take_and_return() {
    let p = pair();
    let pool = pool(&p, 7);
    let taken: Vec<_> = (0..7)
        .map(|_| std::sync::atomic::AtomicBool::new(false))
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let Some(chunk) = pool.take() else { continue };
                    let one = &taken[chunk.offset() / 64];
                    assert!(!one.swap(true, Ordering::AcqRel), "two have it");
                    one.store(false, Ordering::Release);
                }
            });
        }
    });
    assert_eq!(pool.available(), 7);
}

#[derive(Clone, Debug)]
enum Step {
    Take,
    Drop(prop::sample::Index),
    Recv(prop::sample::Index),
    Send,
    Reap,
}

proptest! {
    // Each chunk is at one place, whatever is done: with us, in flight, or free.
    #[test]
    fn pieces_are_where_they_are(steps in prop::collection::vec(
        prop_oneof![
            3 => Just(Step::Take),
            1 => any::<prop::sample::Index>().prop_map(Step::Drop),
            2 => any::<prop::sample::Index>().prop_map(Step::Recv),
            1 => Just(Step::Send),
            1 => Just(Step::Reap),
        ],
        1..60,
    )) {
        let p = pair();
        let pool = pool(&p, 5);
        let (mut ours, mut posted, mut landed) = (Vec::new(), 0, 0);
        for step in steps {
            match step {
                Step::Take => ours.extend(pool.take()),
                Step::Drop(at) if !ours.is_empty() => drop(ours.remove(at.index(ours.len()))),
                Step::Recv(at) if !ours.is_empty() => {
                    let chunk: Chunk = ours.remove(at.index(ours.len()));
                    chunk.post(&p.b, |memory| Ok(Recv::new(memory))).unwrap();
                    posted += 1;
                }
                Step::Send if posted > landed => {
                    p.arrives(0);
                    landed += 1;
                }
                Step::Reap => {
                    for done in drain(&p.cq) {
                        ours.extend(pool.complete(&done));
                        posted -= 1;
                        landed -= 1;
                    }
                }
                _ => {}
            }
            let places: HashSet<_> = ours.iter().map(Chunk::offset).collect();
            prop_assert_eq!(places.len(), ours.len());
            prop_assert_eq!(pool.available() + ours.len() + posted, 5);
        }
    }
}
