// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks that wait for completions.

use super::*;
use crate::AsyncCq;
use std::future::Future;
use tokio::time::{sleep, timeout};

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { timeout(SOON, future).await.unwrap() })
}

#[test]
fn a_task_waits_for_completions() {
    let p = pair();
    run(async {
        p.kernel.complete(abi::Cqe::default()); // one that was there before
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        assert!(AsyncCq::new(&p.cq).is_err(), "one at a time");
        let _ = cq.wait().await.unwrap();
        let poster = async {
            for i in 0..200 {
                p.b.post_recv(Recv::empty().wr_id(i)).unwrap();
                p.a.post(Send::empty().signaled(false)).unwrap();
                if i % 3 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                if i % 20 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        };
        let taker = async {
            let mut some = [Completion::EMPTY; 4];
            let mut all = Vec::new();
            while all.len() < 200 {
                let n = cq.wait_into(&mut some).await.unwrap();
                all.extend(some[..n].iter().map(|done| done.wr_id));
            }
            all
        };
        let (all, ()) = futures(taker, poster).await;
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert_eq!(cq.wait_into(&mut []).await.unwrap(), 0);
    });
}

/// Both, one beside the other.
async fn futures<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut of_a, mut of_b) = (None, None);
    std::future::poll_fn(move |cx| {
        use std::task::Poll;
        if of_a.is_none() {
            if let Poll::Ready(value) = a.as_mut().poll(cx) {
                of_a = Some(value);
            }
        }
        if of_b.is_none() {
            if let Poll::Ready(value) = b.as_mut().poll(cx) {
                of_b = Some(value);
            }
        }
        match (of_a.take(), of_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (of_a, of_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn a_wait_that_is_dropped_takes_nothing() {
    let p = pair();
    run(async {
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        for i in 0..20 {
            assert!(timeout(NOW, cq.wait()).await.is_err());
            p.b.post_recv(Recv::empty().wr_id(i)).unwrap();
            p.a.post(Send::empty().signaled(false)).unwrap();
            // Polled once and dropped, with something there.
            let mut out = [Completion::EMPTY; 0];
            let _ = timeout(NOW, cq.wait_into(&mut out)).await;
            let done = cq.wait().await.unwrap().ok().unwrap();
            assert_eq!(done.wr_id, i);
        }
    });
}

#[test]
fn a_device_that_goes_wakes_a_task() {
    let p = pair();
    run(async {
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        let gone = async {
            sleep(NOW).await;
            p.kernel.remove();
        };
        let (error, ()) = futures(cq.wait(), gone).await;
        assert!(matches!(error, Err(Error::DeviceGone)));
    });
}

#[test]
fn a_task_that_waits_allocates_nothing() {
    let p = pair();
    run(async {
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        for i in 0..40 {
            let before = allocations();
            p.b.post_recv(Recv::empty().timeout(NOW)).unwrap();
            p.a.post(Send::empty().signaled(false)).unwrap();
            let _ = cq.wait().await.unwrap();
            assert!(i < 10 || allocations() == before);
        }
    });
}
