// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks of tokio and of smol.

use super::*;
use crate::wait::{self, Who};
use crate::wire::{Hello, Message, Refusal, TransportType};
use crate::{AsyncCq, AsyncEvents, AsyncRequests, RequestFuture};
use futures_core::Stream;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::task::{Context, Poll, Waker};

async fn sleep(time: Duration) {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::time::sleep(time).await;
    } else {
        async_io::Timer::after(time).await;
    }
}

/// Both, one beside the other, in one task.
pub(super) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut of_a, mut of_b) = (None, None);
    poll_fn(move |cx| {
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

/// What the future returns within `time`, or that it does not.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut end) = (pin!(future), pin!(sleep(time)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Runs a task in one thread of each runtime.
pub(super) fn on_each(task: impl AsyncFn()) {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async { within(SOON, task()).await.unwrap() });
    async_io::block_on(async { within(SOON, task()).await.unwrap() });
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

fn send<T: std::marker::Send>(future: T) -> T {
    future
}

#[test]
fn a_task_waits_for_completions() {
    on_each(async || {
        let p = pair();
        p.kernel.complete(abi::Cqe::default()); // one that was there before
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        assert!(AsyncCq::new(&p.cq).is_err(), "one at a time");
        let _ = send(cq.wait()).await.unwrap();
        let poster = async {
            for i in 0..200 {
                p.completes(i);
                if i % 3 == 0 {
                    sleep(Duration::from_millis(1)).await;
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
        let (all, ()) = both(taker, poster).await;
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert_eq!(cq.wait_into(&mut []).await.unwrap(), 0);
    });
}

#[test]
fn a_task_of_another_runtime_waits_for_files_of_its_own() {
    on_each(async || {
        let p = pair();
        let file = async_io::Async::new_nonblocking(p.cq.eventfd().unwrap()).unwrap();
        let events = async_io::Async::new_nonblocking(p.device.events()).unwrap();
        let wait = |cx: &mut Context<'_>| {
            let file = &file;
            file.get_ref().poll_wait(cx, |cx| file.poll_readable(cx))
        };
        let event = |cx: &mut Context<'_>| {
            let events = &events;
            events
                .get_ref()
                .poll_next_event(cx, |cx| events.poll_readable(cx))
        };
        assert!(within(NOW, poll_fn(wait)).await.is_none());
        let poster = async {
            for i in 0..50 {
                p.completes(i);
                if i % 3 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let taker = async {
            let mut all = Vec::new();
            while all.len() < 50 {
                all.push(poll_fn(wait).await.unwrap().wr_id);
            }
            all
        };
        let (all, ()) = both(taker, poster).await;
        assert_eq!(all, (0..50).collect::<Vec<_>>());
        // What the runtime fails with is told.
        let broken = |_: &mut Context<'_>| {
            let error = std::io::Error::from_raw_os_error(libc::EMFILE);
            Poll::Ready(Err(error))
        };
        let error = poll_fn(|cx| file.get_ref().poll_wait(cx, broken)).await;
        assert_eq!(error.unwrap_err().errno(), Some(libc::EMFILE));

        assert!(within(NOW, poll_fn(event)).await.is_none());
        let gone = async {
            sleep(NOW).await;
            p.kernel.remove();
        };
        let ((event, error), ()) = both(both(poll_fn(event), poll_fn(wait)), gone).await;
        assert_eq!(event.unwrap().kind, EventKind::DeviceRemoved);
        assert!(matches!(error, Err(Error::DeviceGone)));
    });
}

#[test]
fn a_wait_that_is_dropped_takes_nothing() {
    on_each(async || {
        let p = pair();
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        for i in 0..20 {
            assert!(within(NOW, cq.wait()).await.is_none());
            p.completes(i);
            // Polled once and dropped, with something there.
            let mut out = [Completion::EMPTY; 0];
            let _ = within(NOW, cq.wait_into(&mut out)).await;
            let done = cq.wait().await.unwrap().ok().unwrap();
            assert_eq!(done.wr_id, i);
        }
    });
}

#[test]
fn a_device_that_goes_wakes_a_task() {
    on_each(async || {
        let p = pair();
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        let mut events = AsyncEvents::new(&p.device).unwrap();
        let gone = async {
            sleep(NOW).await;
            p.kernel.remove();
        };
        let ((error, event), ()) = both(both(next(&mut cq), next(&mut events)), gone).await;
        assert!(matches!(error, Some(Err(Error::DeviceGone))));
        assert_eq!(event.unwrap().unwrap().kind, EventKind::DeviceRemoved);
        // After an error there is nothing more.
        assert!(next(&mut cq).await.is_none());
        assert!(matches!(
            next(&mut events).await,
            Some(Err(Error::DeviceGone))
        ));
        assert!(next(&mut events).await.is_none());
    });
}

#[test]
fn a_task_that_waits_allocates_nothing() {
    on_each(async || {
        let p = pair();
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        for i in 0..40 {
            let before = allocations();
            p.b.post_recv(Recv::empty().timeout(NOW)).unwrap();
            p.arrives(0);
            let _ = cq.wait().await.unwrap();
            assert!(i < 10 || allocations() == before);
        }
    });
}

#[test]
fn a_stream_of_completions_and_of_events() {
    on_each(async || {
        let p = pair();
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        let mut events = AsyncEvents::new(&p.device).unwrap();
        let others = async {
            for i in 0..300 {
                p.completes(i);
                p.kernel.happen(abi::Event {
                    event: abi::EVENT_PORT_ACTIVE,
                    port: i as u32,
                    ..abi::Event::default()
                });
                if i % 7 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        let takers = both(
            async {
                for i in 0..300 {
                    assert_eq!(next(&mut cq).await.unwrap().unwrap().wr_id, i);
                }
            },
            async {
                for port in 0..300 {
                    let event = next(&mut events).await.unwrap().unwrap();
                    assert_eq!(event.kind, EventKind::PortActive { port });
                }
            },
        );
        both(takers, others).await;
    });
}

/// Whatever else the task does is done though its queue always has a completion.
async fn stays_fair(mut always_ready: impl AsyncFnMut(), others_ran: &std::cell::Cell<bool>) {
    let busy = async {
        for n in 0..100_000 {
            always_ready().await;
            if others_ran.get() {
                return n;
            }
        }
        panic!("nobody else ever ran");
    };
    let other = async {
        sleep(Duration::from_millis(1)).await;
        others_ran.set(true);
    };
    // In this order: both share the budget of one task.
    both(other, busy).await;
}

#[test]
fn a_busy_queue_lets_others_run() {
    on_each(async || {
        let p = pair();
        let (ran, requests) = (std::cell::Cell::new(false), pair());
        let mut cq = AsyncCq::new(&p.cq).unwrap();
        let wait = async || {
            p.completes(0);
            let _ = cq.wait().await.unwrap();
        };
        stays_fair(wait, &ran).await;
        ran.set(false);
        let post = AsyncRequests::new(&requests.cq).unwrap();
        let wait = async || {
            let sent = post.post(&requests.a, Send::empty()).unwrap();
            requests.sent();
            sent.await.unwrap().check().unwrap();
        };
        stays_fair(wait, &ran).await;
    });
}

/// The same with tasks of their own, of a runtime with one thread.
#[test]
fn a_busy_queue_starves_no_task_of_tokio() {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let p = pair();
        let ran = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = ran.clone();
        // The runtime polls tasks in the order in which they were spawned.
        let busy = tokio::spawn(async move {
            let mut cq = AsyncCq::new(&p.cq).unwrap();
            for n in 0..100_000 {
                p.completes(0);
                let _ = cq.wait().await.unwrap();
                if seen.load(Ordering::Acquire) {
                    return n;
                }
            }
            panic!("the other task never ran");
        });
        let other = tokio::spawn(async move { ran.store(true, Ordering::Release) });
        busy.await.unwrap();
        other.await.unwrap();
    });
}

/// The events of a device go to one of those who read them, and requests to connect to whoever takes
/// these.
#[test]
fn a_task_hears_of_a_request_whose_event_somebody_else_takes() {
    on_each(async || {
        let kernel = Kernel::new();
        let device = kernel.device();
        let addr = ([127, 0, 0, 1], 18515).into();
        let listener = cm::Listener::bind(&device, addr, 1).unwrap();
        let mut requests = listener.requests().unwrap();
        for _ in 0..3 {
            let woken = Arc::new(Woken::default());
            let mut next = pin!(requests.next_request());
            let first = next.as_mut();
            assert!(first
                .poll(&mut Context::from_waker(&woken.clone().into()))
                .is_pending());
            kernel.ask();
            let event = device.events().next_event().unwrap().unwrap();
            assert_eq!(event.kind, EventKind::ConnectRequest { waiting: 1 });
            while woken.0.load(Ordering::Acquire) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            drop(next.await.unwrap());
        }
    });
}

/// A client may write, and hang up before the server's task looks at the connection.
#[test]
fn a_task_accepts_a_connection_that_the_peer_has_ended_since() {
    on_each(async || {
        let kernel = Kernel::new();
        let device = kernel.device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let addr = ([127, 0, 0, 1], 18515).into();
        let listener = cm::Listener::bind(&device, addr, 1).unwrap();
        kernel.ask();
        kernel.confirm(abi::QPS_ERR);
        let request = listener.next_request(NOW).unwrap();
        let qp = pd.qp_builder::<Rc>(&cq).build().unwrap();
        let options = cm::AcceptOptions::new();
        let connection = request.accept_async(qp, &options).await.unwrap();
        assert_eq!(connection.qp().query().unwrap().state, QpState::Err);
    });
}

/// A task that learns of a change and has no budget left to look may never look: it can be dropped.
#[test]
fn a_change_that_a_task_has_no_budget_for_wakes_those_who_share_it() {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let mut looked_and_woke = 0;
        for spent in 0..=128 {
            let watch = crate::reactor::Watch::new().unwrap();
            let file = nix::sys::eventfd::EventFd::from_value(1).unwrap();
            let readable = nix::sys::epoll::EpollFlags::EPOLLIN;
            watch.add(&file, readable).unwrap();
            // The runtime gets to know.
            sleep(Duration::from_millis(1)).await;
            let shared = Arc::new(Woken::default());
            let waker = shared.clone().into();
            let mut looks = 0;
            poll_fn(|cx| {
                for _ in 0..spent {
                    if let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) {
                        budget.made_progress();
                    }
                }
                let taken = watch.poll_shared(cx, &waker, || {
                    looks += 1;
                    Ok(None::<()>)
                });
                assert!(taken.is_pending());
                Poll::Ready(())
            })
            .await;
            tokio::task::yield_now().await; // the budget of another turn
            let is_left = poll_fn(|cx| Poll::Ready(watch.poll_changed(cx).is_ready())).await;
            // It has looked after the change, or somebody will.
            let woke = shared.0.load(Ordering::Acquire) != 0;
            assert!(is_left || looks == 2 || woke, "{spent} spent");
            looked_and_woke += u32::from(woke);
        }
        assert_ne!(looked_and_woke, 0);
    });
}

// --- requests ---------------------------------------------------------------------------------------

/// Polls once, without waiting for anything.
fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn each_request_is_a_future() {
    on_each(async || {
        let p = pair();
        let requests = AsyncRequests::new(&p.cq).unwrap();
        let receives: Vec<RequestFuture> = (0..10)
            .map(|_| requests.post(&p.b, Recv::empty()).unwrap())
            .collect();
        let poster = async {
            for imm in 0..10 {
                sleep(Duration::from_millis(1)).await;
                let done = requests.post(&p.a, Send::empty()).unwrap();
                p.sent();
                p.arrives(imm);
                assert_eq!(send(done).await.unwrap().opcode, Opcode::Send);
            }
        };
        let taker = async {
            // The last one first: the others do not need to be polled.
            let mut imms = Vec::new();
            for receive in receives.into_iter().rev() {
                imms.push(receive.await.unwrap().imm.unwrap());
            }
            imms
        };
        let (imms, ()) = both(taker, poster).await;
        assert_eq!(imms, (0..10).rev().collect::<Vec<_>>());
        assert_eq!(p.cq.poll().unwrap(), None);
    });
}

#[test]
fn a_completion_of_a_request_posted_otherwise_resolves_no_future() {
    on_each(async || {
        let p = pair();
        let requests = AsyncRequests::new(&p.cq).unwrap();
        // As every builder numbers it, and as programs do.
        for wr_id in [0, 1, u64::from(u32::MAX), 1 << 32, 0x7fff_ffff_ffff] {
            p.b.post_recv(Recv::empty().wr_id(wr_id)).unwrap();
        }
        let mut receives: Vec<RequestFuture> = (0..3)
            .map(|_| requests.post(&p.b, Recv::empty()).unwrap())
            .collect();
        for imm in 0..5 {
            p.arrives(imm);
        }
        // The five completed, and were dropped.
        for receive in &mut receives {
            assert!(look(receive).is_none());
        }
        assert_eq!(p.cq.poll().unwrap(), None);
        for (imm, receive) in (5..).zip(receives) {
            p.arrives(imm);
            assert_eq!(receive.await.unwrap().imm, Some(imm));
        }
    });
}

#[test]
fn a_completion_of_another_queue_s_request_resolves_no_future() {
    on_each(async || {
        let p = pair();
        let first = AsyncRequests::new(&p.cq).unwrap();
        drop(first.post(&p.b, Recv::empty()).unwrap()); // stays in flight
        drop(first);
        // As the reader of the queue before this one numbered it; and as a table of the program's does.
        let requests = AsyncRequests::new(&p.cq).unwrap();
        let number = crate::wr::Tag::unique().wr_id(0, 0);
        p.b.post_recv(Recv::empty().wr_id(number)).unwrap();
        let mut receive = requests.post(&p.b, Recv::empty()).unwrap();
        for imm in 0..2 {
            p.arrives(imm);
            assert!(look(&mut receive).is_none());
        }
        p.arrives(2);
        assert_eq!(receive.await.unwrap().imm, Some(2));
    });
}

#[test]
fn whoever_was_polled_first_does_not_have_to_be_polled_again() {
    on_each(async || {
        let p = pair();
        let requests = AsyncRequests::new(&p.cq).unwrap();
        let mut first = requests.post(&p.b, Recv::empty()).unwrap();
        let second = requests.post(&p.b, Recv::empty()).unwrap();
        poll_fn(|cx| {
            assert!(Pin::new(&mut first).poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let poster = async {
            for imm in 0..2 {
                sleep(NOW).await;
                p.arrives(imm);
            }
        };
        // `first` is not polled meanwhile; the completion of both comes.
        let (done, ()) = both(second, poster).await;
        assert_eq!(done.unwrap().imm, Some(1));
        assert_eq!(look(&mut first).unwrap().unwrap().imm, Some(0));
    });
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(std::sync::atomic::AtomicU32);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn each_request_wakes_its_own_task() {
    on_each(async || {
        let p = pair();
        let requests = AsyncRequests::new(&p.cq).unwrap();
        let of = |woken: &Arc<Woken>, future: &mut RequestFuture| {
            let waker = Waker::from(woken.clone());
            let mut cx = Context::from_waker(&waker);
            Pin::new(future).poll(&mut cx).is_ready()
        };
        let (one, two) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let count = |woken: &Woken| woken.0.load(Ordering::Relaxed);
        // The task that looked last goes: the other one is woken all the same.
        let mut first = requests.post(&p.b, Recv::empty()).unwrap();
        let mut second = requests.post(&p.b, Recv::empty()).unwrap();
        assert!(!of(&one, &mut first) && !of(&two, &mut second));
        drop(second);
        p.arrives(0);
        while count(&one) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(of(&one, &mut first));
        // One task takes the completion of another, and wakes it at once.
        p.arrives(0);
        let mut third = requests.post(&p.b, Recv::empty()).unwrap();
        // Until no wake-up for what came before is left.
        let mut before = u32::MAX;
        while before != count(&one) {
            before = count(&one);
            assert!(!of(&one, &mut third));
            sleep(NOW).await;
        }
        let (before, mut other) = (count(&one), requests.post(&p.b, Recv::empty()).unwrap());
        p.arrives(0);
        assert!(!of(&two, &mut other));
        assert_eq!(count(&one), before + 1);
        assert!(of(&one, &mut third));
    });
}

#[test]
fn requests_of_two_threads() {
    let p = pair();
    on_each(async || {
        let requests = AsyncRequests::new(&p.cq).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    async_io::block_on(async {
                        for _ in 0..500 {
                            let receive = requests.post(&p.b, Recv::empty()).unwrap();
                            let sent = requests.post(&p.a, Send::empty()).unwrap();
                            p.sent();
                            p.arrives(0);
                            let (sent, received) = both(sent, receive).await;
                            assert_eq!(sent.unwrap().opcode, Opcode::Send);
                            assert_eq!(received.unwrap().opcode, Opcode::Recv);
                        }
                    });
                });
            }
        });
    });
}

#[test]
fn requests_that_fail() {
    on_each(async || {
        let p = pair();
        let requests = AsyncRequests::new(&p.cq).unwrap();
        // Refused, and so once more: no number is used up.
        for _ in 0..2 {
            p.kernel.refuse("SUBMIT", Errno::EAGAIN);
        }
        let error = requests.post(&p.a, Send::empty()).unwrap_err();
        assert!(error.is_backpressure(), "{error}");
        drop(requests.post(&p.b, Recv::empty()).unwrap());
        assert_eq!(requests.slots(), 1);
        // Of a queue pair that completes elsewhere.
        let cq = p.device.create_cq(16).unwrap();
        let other = p.a.pd().qp_builder::<Rc>(&cq).build().unwrap();
        let error = requests.post(&other, Recv::empty()).unwrap_err();
        assert_matches!(error, Error::OtherCq);
        let error = requests.post(&pair().a, Send::empty()).unwrap_err();
        assert_matches!(error, Error::OtherCq);
        // One that fails, and one that is flushed after it.
        for status in [Status::RemoteAccess, Status::Flushed] {
            let request = requests.post(&p.a, Send::empty()).unwrap();
            let change = |cqe: &mut abi::Cqe| cqe.status = status.code();
            p.kernel.finish(p.a.handle(), change);
            let failed = request.await.unwrap();
            assert_eq!(failed.status, status);
            assert_matches!(failed.check().unwrap_err(), Error::Completion(_));
        }
        // The device goes.
        let waits = requests.post(&p.b, Recv::empty()).unwrap();
        let gone = async {
            sleep(NOW).await;
            p.kernel.remove();
        };
        let (error, ()) = both(waits, gone).await;
        assert!(matches!(error, Err(Error::DeviceGone)));
    });
}

#[test]
fn a_request_that_is_dropped_is_forgotten() {
    on_each(async || {
        let p = pair_of(2048);
        let requests = AsyncRequests::new(&p.cq).unwrap();
        for round in 0..200 {
            let mut first = requests.post(&p.b, Recv::empty()).unwrap();
            let second = requests.post(&p.b, Recv::empty()).unwrap();
            if round % 2 == 0 {
                assert!(look(&mut first).is_none());
            }
            if round % 3 == 0 {
                // It has completed, and nobody looked.
                p.arrives(1);
                drop(first);
            } else {
                drop(first);
                p.arrives(1);
            }
            p.arrives(round);
            assert_eq!(second.await.unwrap().imm, Some(round));
        }
        assert!(requests.slots() <= 4, "{} slots", requests.slots());
        // A queue pair that goes completes nothing: the numbers of its requests come back.
        let pd = p.a.pd();
        for _ in 0..200 {
            let qp = pd.qp_builder::<Rc>(&p.cq).build().unwrap();
            let mut receive = requests.post(&qp, Recv::empty()).unwrap();
            assert!(look(&mut receive).is_none());
            let objects = p.kernel.objects();
            drop(qp); // which the future keeps
            assert_eq!(p.kernel.objects(), objects);
            assert!(look(&mut receive).is_none());
        }
        assert!(requests.slots() <= 16, "{} slots", requests.slots());
    });
}

#[test]
fn completions_of_requests_that_were_dropped_leave_room_for_others() {
    on_each(async || {
        let p = pair_of(4);
        let requests = AsyncRequests::new(&p.cq).unwrap();
        let post = || {
            let request = requests.post(&p.a, Send::empty()).unwrap();
            p.sent();
            request
        };
        let mut waits = post();
        for count in 1..100 {
            if count % 4 == 0 {
                p.kernel.stumble(0, Errno::EAGAIN); // the queue is full
            }
            drop(post());
        }
        assert!(requests.slots() <= 8, "{} slots", requests.slots());
        // The completion of the first one was kept.
        assert_eq!(look(&mut waits).unwrap().unwrap().status, Status::Success);
    });
}

// --- connecting -------------------------------------------------------------------------------------

/// A waker that has a future, as the task of an executor has.
struct TaskOf {
    _request: RequestFuture,
}

impl std::task::Wake for TaskOf {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn the_last_waker_of_a_task_is_dropped_without_a_lock() {
    let (done, ended) = std::sync::mpsc::channel();
    let test = move || {
        on_each(async || {
            let p = pair();
            let requests = AsyncRequests::new(&p.cq).unwrap();
            let post = || requests.post(&p.b, Recv::empty()).unwrap();
            for is_dropped in [false, true] {
                let (mut first, second) = (post(), post());
                let task = TaskOf { _request: second };
                let waker = Waker::from(Arc::new(task));
                let polled = Pin::new(&mut first).poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
                // From here on the task is what the first request has to wake, and nothing else.
                drop(waker);
                if is_dropped {
                    drop(first);
                } else {
                    assert!(look(&mut first).is_none());
                }
            }
            assert_eq!(requests.slots(), 4);
        });
        let _ = done.send(());
    };
    let test = std::thread::spawn(test);
    let result = ended.recv_timeout(20 * SOON);
    assert_ne!(result, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
    test.join().unwrap();
}

fn prepared(kernel: &Arc<Kernel>) -> (Device, PreparedQp<Rc>) {
    let device = kernel.device();
    let cq = device.create_cq(64).unwrap();
    let qp = device.alloc_pd().unwrap().qp_builder(&cq).build().unwrap();
    (device, qp)
}

#[test]
fn tasks_connect_over_tcp() {
    on_each(async || {
        let kernel = Kernel::new();
        let ((_, a), (device, b)) = (prepared(&kernel), prepared(&kernel));
        let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
        let mut listener = listener.into_async().unwrap();
        let addr = listener.local_addr().unwrap();
        let mem = b.pd().alloc_buffer(64).unwrap();
        let grant = mem.grant(.., Access::REMOTE_WRITE).unwrap();
        let theirs = grant.remote();
        let accept = async {
            assert!(within(NOW, listener.accept()).await.is_none());
            let incoming = next(&mut listener).await.unwrap().unwrap();
            let (qp, peer) = send(incoming.accept_async(b, &[&grant], SOON))
                .await
                .unwrap();
            assert!(within(NOW, peer.gone()).await.is_none());
            peer.gone().await.unwrap();
            qp
        };
        let connect = async {
            sleep(NOW * 2).await;
            // Nobody is at the first address.
            let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let addrs = [nobody.local_addr().unwrap(), addr];
            drop(nobody);
            let connecting = send(a.connect_tcp_async(&addrs, &[], TcpOptions::new()));
            let (qp, peer) = connecting.await.unwrap();
            assert_eq!(peer.grant(0).unwrap(), theirs);
            sleep(NOW * 2).await;
            drop(peer);
            qp
        };
        drop(both(accept, connect).await);
        kernel.remove();
        let error = next(&mut listener).await.unwrap().unwrap_err();
        assert_matches!(error, Error::DeviceGone);
        assert!(next(&mut listener).await.is_none());
    });
}

#[test]
fn while_the_kernel_looks_for_the_way_to_a_peer_other_tasks_run() {
    on_each(async || {
        let kernel = Kernel::new();
        let ((_, a), (device, b)) = (prepared(&kernel), prepared(&kernel));
        let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
        let addrs = [listener.local_addr().unwrap()];
        let mut listener = listener.into_async().unwrap();
        kernel.resolve_slowly();
        let accept = async {
            let incoming = listener.accept().await.unwrap();
            incoming.accept_async(b, &[], SOON).await.unwrap()
        };
        let connect = async {
            let connecting = a.connect_tcp_async(&addrs, &[], TcpOptions::new());
            connecting.await.unwrap()
        };
        // The same thread lets first the one end and then the other go on.
        let other = async {
            for _ in 0..2 {
                while kernel.resolving() == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
                kernel.resolve();
            }
        };
        let (((to_a, _), (to_b, _)), ()) = both(both(accept, connect), other).await;
        assert_eq!(to_a.peer().qp_num, to_b.qp_num());
    });
}

/// The peer chooses the address, and so how long the kernel looks for the way to it.
#[test]
fn the_time_of_a_task_ends_while_the_kernel_looks_for_the_way_to_a_peer() {
    on_each(async || {
        let mut time = NOW;
        loop {
            let kernel = Kernel::new();
            let (device, qp) = prepared(&kernel);
            kernel.resolve_slowly();
            let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let hello = Message::Hello(Hello {
                transport: TransportType::Rc,
                endpoint: qp.endpoint(),
                grants: Vec::new(),
            });
            peer.write_all(&hello.encode()).unwrap();
            let incoming = listener.accept(SOON).unwrap();
            let error = incoming.accept_async(qp, &[], time).await.unwrap_err();
            assert!(matches!(error.error(), Error::Timeout { .. }), "{error}");
            let was_resolving = kernel.resolving() == 1;
            kernel.resolve();
            // What the helper thread did was undone.
            let qp = error.into_qp();
            assert_eq!(qp.query().unwrap().state, QpState::Init);
            if was_resolving {
                let mut told = Vec::new();
                peer.read_to_end(&mut told).unwrap();
                assert_eq!(told, Message::Refusal(Refusal::Setup).encode());
                break;
            }
            time *= 2; // it was over before
        }
    });
}

#[test]
fn a_silent_peer_has_its_time_in_a_task_too() {
    on_each(async || {
        let kernel = Kernel::new();
        let (device, qp) = prepared(&kernel);
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap();
        let options = TcpOptions::new().timeout(NOW * 4);
        let error = qp
            .connect_tcp_async(&[addr], &[], options)
            .await
            .unwrap_err();
        assert!(matches!(error.error(), Error::Timeout { .. }), "{error}");
        // The queue pair is there; nobody listens now.
        drop(silent);
        let options = options.retry_refused();
        let addrs = [addr];
        let error = error.into_qp().connect_tcp_async(&addrs, &[], options);
        let error = error.await.unwrap_err();
        assert!(matches!(error.error(), Error::Tcp { .. }), "{error}");
        // One that says nothing when it is accepted, while the device goes.
        let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let incoming = listener.into_async().unwrap().accept().await.unwrap();
        let accept = incoming.accept_async(error.into_qp(), &[], SOON);
        let gone = async {
            sleep(NOW).await;
            kernel.remove();
        };
        let (error, ()) = both(accept, gone).await;
        let error = error.unwrap_err();
        assert!(matches!(error.error(), Error::DeviceGone), "{error}");
    });
}

/// Events that nobody takes, and events that somebody else takes, do not end it.
#[test]
fn a_pause_lasts_its_time_and_ends_with_the_device() {
    on_each(async || {
        let kernel = Kernel::new();
        let device = kernel.device();
        let pause = |who, time| wait::pause(device.inner(), who, time);
        let lasts = async || {
            let begin = std::time::Instant::now();
            pause(Who::Task, NOW * 4).await.unwrap();
            assert!(begin.elapsed() >= NOW * 4, "{:?}", begin.elapsed());
        };
        kernel.ask();
        lasts().await;
        device.inner().taken_events().unwrap();
        assert!(device.events().next_event().unwrap().is_some());
        lasts().await;
        let gone = async {
            sleep(NOW).await;
            kernel.remove();
        };
        let (ended, ()) = both(pause(Who::Task, SOON / 2), gone).await;
        assert!(matches!(ended, Err(Error::DeviceGone)), "{ended:?}");
        let ended = wait::run(pause(Who::Thread, SOON / 2));
        assert!(matches!(ended, Err(Error::DeviceGone)), "{ended:?}");
    });
}

// --- futures that are dropped -----------------------------------------------------------------------

/// Polls the future up to `count` times, whenever it is woken, and drops it. Returns what it
/// returned.
pub(super) async fn polled<T>(count: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == count {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            // The drop comes with the next wake-up, or at once.
            Poll::Pending if polls == count => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[test]
fn connecting_can_be_dropped_at_any_time() {
    on_each(async || {
        let kernel = Kernel::new();
        let (device, _qp) = prepared(&kernel);
        let listener = Listener::bind(&device, "127.0.0.1:0").unwrap();
        let mut listener = listener.into_async().unwrap();
        let addrs = [listener.local_addr().unwrap()];
        let cq = device.create_cq(64).unwrap();
        let pd = device.alloc_pd().unwrap();
        let qp = || pd.qp_builder::<Rc>(&cq).build().unwrap();
        let objects = kernel.objects();
        for (connects, accepts) in (0..8).flat_map(|n| [(n, 99), (99, n), (n, n)]) {
            let accept = async {
                let incoming = within(NOW * 4, listener.accept()).await?.unwrap();
                polled(accepts, incoming.accept_async(qp(), &[], NOW * 4)).await
            };
            let options = TcpOptions::new().timeout(NOW * 4);
            let connect = polled(connects, qp().connect_tcp_async(&addrs, &[], options));
            drop(both(accept, connect).await);
            // A helper thread may be about to drop the queue pair.
            let gone = async {
                while kernel.objects() != objects {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            let is_gone = within(SOON / 2, gone).await.is_some();
            assert!(is_gone, "after {connects} and {accepts} polls");
        }
        // What remains works.
        let accept = async {
            let incoming = listener.accept().await.unwrap();
            incoming.accept_async(qp(), &[], SOON).await.unwrap()
        };
        let connect = qp().connect_tcp_async(&addrs, &[], TcpOptions::new());
        let (_theirs, ours) = both(accept, connect).await;
        drop(ours.unwrap());
    });
}
