// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test tasks`: a stream between tasks that drop futures all the time: attempts to connect,
//! waits, reads, writes and requests. Nothing breaks, and every byte arrives.

use rust_ulp::qp::Rc;
use rust_ulp::stream::{PreparedReceiver, PreparedSender, ENTRIES};
use rust_ulp::tcp::Listener;
use rust_ulp::wr::Recv;
use rust_ulp::{AsyncCq, AsyncRequests, Device, PreparedQp};
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);
const BYTES: u32 = 300_000;
const ATTEMPTS: usize = 16;

/// Runs one end of the stream.
pub fn run(words: &[String]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = runtime.map_err(Into::into).and_then(|tokio| match words {
        [listen, addr] if listen == "listen" => tokio.block_on(listen_at(addr)),
        [addr] => tokio.block_on(connect(addr)),
        _ => Err("usage: ulp-test tasks [listen] ADDR:PORT".into()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ulp-test: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Polls the future up to `count` times and drops it. Returns what it returned.
async fn polled<T>(count: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if polls == count => Poll::Ready(None),
        Poll::Pending => {
            polls += 1;
            Poll::Pending
        }
    })
    .await
}

fn prepared(dev: &Device) -> Result<PreparedQp<Rc>> {
    let cq = dev.create_cq(ENTRIES)?;
    Ok(dev.alloc_pd()?.qp_builder::<Rc>(&cq).build()?)
}

async fn listen_at(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let mut listener = Listener::bind(&dev, addr)?.into_async()?;
    let mut broken = 0;
    // Most of those who connect give up on the way, or just after it.
    let (mut receiver, peer) = loop {
        let qp = prepared(&dev)?;
        let ring = PreparedReceiver::new(&qp, 4096)?;
        let incoming = listener.accept().await?;
        let Ok((qp, peer)) = incoming.accept_async(qp, &[ring.grant()], LONG).await else {
            broken += 1;
            continue;
        };
        let mut byte = [0];
        let mut receiver = ring.start(qp)?.into_async()?;
        let mut out = ReadBuf::new(&mut byte);
        let mut gone = pin!(peer.gone());
        let first = poll_fn(
            |cx| match AsyncRead::poll_read(pin!(&mut receiver), cx, &mut out) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                Poll::Pending => gone.as_mut().poll(cx).map(|_| None),
            },
        );
        if let Some(Ok(())) = first.await {
            break (receiver, peer.clone());
        }
        broken += 1;
    };
    println!("{broken} of {ATTEMPTS} attempts came to nothing");
    let mut count = 1u32; // the first byte is there
    for round in 0.. {
        let mut bytes = [0; 1000];
        let mut out = ReadBuf::new(&mut bytes);
        let read = poll_fn(|cx| AsyncRead::poll_read(pin!(&mut receiver), cx, &mut out));
        let Some(read) = polled(round % 2, read).await else {
            continue;
        };
        read?;
        for byte in out.filled() {
            if *byte != count as u8 {
                return Err(format!("byte {count} is {byte}").into());
            }
            count += 1;
        }
        if out.filled().is_empty() {
            break;
        }
    }
    println!("{count} bytes, in order");
    peer.gone().await?;
    Ok(())
}

async fn connect(addr: &str) -> Result<()> {
    let (dev, addrs) = (Device::open_default()?, [addr.parse()?]);
    for polls in 0..ATTEMPTS {
        // Also with futures of a request and of the queue, which nothing wakes.
        let qp = prepared(&dev)?;
        let requests = AsyncRequests::new(qp.recv_cq())?;
        polled(0, requests.post(&qp, Recv::empty())?).await;
        drop(requests);
        polled(0, AsyncCq::new(qp.send_cq())?.wait()).await;
        drop(
            polled(
                polls / 2,
                qp.connect_tcp_async(&addrs, &[], Default::default()),
            )
            .await,
        );
    }
    let qp = prepared(&dev)?;
    let sender = PreparedSender::new(&qp, 4096)?;
    let (qp, peer) = qp
        .connect_tcp_async(&addrs, &[], Default::default())
        .await?;
    let mut sender = sender.start(qp, peer.grant(0)?)?.into_async()?;
    let bytes: Vec<u8> = (0..BYTES).map(|n| n as u8).collect();
    let (mut rest, mut dropped) = (&bytes[..], 0);
    for round in 0.. {
        let write = poll_fn(|cx| AsyncWrite::poll_write(pin!(&mut sender), cx, rest));
        match polled(round % 3, write).await {
            Some(n) => rest = &rest[n?..],
            None => dropped += 1,
        }
        if rest.is_empty() {
            break;
        }
    }
    println!("{dropped} writes were dropped");
    poll_fn(|cx| AsyncWrite::poll_shutdown(pin!(&mut sender), cx)).await?;
    Ok(())
}
