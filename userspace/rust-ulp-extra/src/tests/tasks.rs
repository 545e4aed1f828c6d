// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams in tasks of tokio and of smol.

use super::asynchronous::{both, on_each, polled};
use super::extra::stream::{AsyncReceiver, AsyncSender};
use super::stream::{carry_out, Carrier, Ends};
use super::*;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};

fn ends(ring: usize) -> (Carrier, Ends) {
    let e = super::stream::ends(ring, ring);
    (e.carrier(), e)
}

/// Two ends, and what carries out what they have posted.
fn async_ends(ring: usize) -> (impl Fn() -> bool, AsyncSender, AsyncReceiver) {
    let e = super::stream::ends(ring, ring);
    let (kernel, ends) = (e.kernel.clone(), e.ends());
    (
        move || carry_out(&kernel, ends),
        e.sender.into_async().unwrap(),
        e.receiver.into_async().unwrap(),
    )
}

/// Runs a task, and carries out what it posts.
async fn carried<T>(carry_out: impl Fn() -> bool, task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    poll_fn(|cx| {
        let polled = task.as_mut().poll(cx);
        if carry_out() {
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await
}

async fn read(receiver: &mut AsyncReceiver, out: &mut [u8]) -> usize {
    let read = poll_fn(|cx| futures_io::AsyncRead::poll_read(Pin::new(&mut *receiver), cx, out));
    read.await.unwrap()
}

fn data() -> Vec<u8> {
    (0..3000u32).map(|n| n as u8 ^ (n >> 8) as u8).collect()
}

#[test]
fn a_stream_in_tasks() {
    on_each(async || {
        let (carry_out, mut sender, mut receiver) = async_ends(32);
        let task = async {
            let data = data();
            let send = async {
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let n = poll_fn(|cx| {
                        if rest.len() % 2 == 0 {
                            tokio::io::AsyncWrite::poll_write(Pin::new(&mut sender), cx, rest)
                        } else {
                            futures_io::AsyncWrite::poll_write(Pin::new(&mut sender), cx, rest)
                        }
                    });
                    rest = &rest[n.await.unwrap()..];
                }
                poll_fn(|cx| tokio::io::AsyncWrite::poll_flush(Pin::new(&mut sender), cx))
                    .await
                    .unwrap();
                poll_fn(|cx| futures_io::AsyncWrite::poll_close(Pin::new(&mut sender), cx))
                    .await
                    .unwrap();
            };
            let receive = async {
                let (mut all, mut some) = (Vec::new(), [0; 7]);
                loop {
                    let n = if all.len() % 2 == 0 {
                        let mut out = tokio::io::ReadBuf::new(&mut some);
                        poll_fn(|cx| {
                            tokio::io::AsyncRead::poll_read(Pin::new(&mut receiver), cx, &mut out)
                        })
                        .await
                        .unwrap();
                        out.filled().len()
                    } else {
                        read(&mut receiver, &mut some).await
                    };
                    if n == 0 {
                        return all;
                    }
                    all.extend_from_slice(&some[..n]);
                }
            };
            let ((), all) = both(send, receive).await;
            assert!(all == data);
            let error =
                poll_fn(|cx| tokio::io::AsyncWrite::poll_write(Pin::new(&mut sender), cx, b"x"));
            assert_eq!(
                error.await.unwrap_err().kind(),
                std::io::ErrorKind::NotConnected
            );
            assert_eq!(sender.into_inner().in_flight(), 0);
        };
        carried(carry_out, task).await;
    });
}

#[test]
fn a_stream_of_the_standard_library() {
    let (_carrier, mut e) = ends(32);
    let data = data();
    let got = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            e.sender.write_all(&data).unwrap();
            e.sender.flush().unwrap();
            e.sender.finish(SOON).unwrap();
        });
        let mut got = Vec::new();
        e.receiver.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        got
    });
    assert!(got == data);
    let (_carrier, mut e) = ends(32);
    e.receiver.set_timeout(Some(NOW));
    let error = e.receiver.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    e.sender.set_timeout(Some(NOW));
    assert_eq!(e.sender.write(&[]).unwrap(), 0);
    let error = e.sender.write_all(&[0; 33]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn reads_and_writes_of_a_stream_can_be_dropped_at_any_time() {
    on_each(async || {
        let (carry_out, mut sender, mut receiver) = async_ends(32);
        let task = async {
            let data = data();
            let (mut sent, mut got) = (0, Vec::new());
            for round in 0.. {
                if got.len() == data.len() {
                    break;
                }
                let write = poll_fn(|cx| {
                    futures_io::AsyncWrite::poll_write(Pin::new(&mut sender), cx, &data[sent..])
                });
                if let Some(n) = polled(round % 3, write).await {
                    sent += n.unwrap();
                }
                let mut some = [0; 11];
                if let Some(n) = polled(round % 2, read(&mut receiver, &mut some)).await {
                    got.extend_from_slice(&some[..n]);
                }
            }
            assert!(got == data);
        };
        carried(carry_out, task).await;
    });
}

#[test]
fn a_task_reads_the_end_though_the_sender_is_gone() {
    on_each(async || {
        let (_kernel, receiver) = super::stream::ended();
        let mut receiver = receiver.into_async().unwrap();
        for _ in 0..2 {
            assert_eq!(read(&mut receiver, &mut [0; 8]).await, 0);
        }
    });
}
