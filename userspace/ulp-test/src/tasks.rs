// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test tasks`: a stream between tasks of tokio or of smol that drop futures all the time:
//! attempts to connect, waits, reads, writes and requests. Nothing breaks, and every byte arrives.
//! Then the same with attempts by the RDMA connection manager, and a write, a read and messages over
//! a connection.

use rust_ulp::events::EventKind;
use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::{Read, Recv, Send, Write};
use rust_ulp::{cm, Access, AsyncCq, AsyncRequests, Buffer, Device, PreparedQp};
use rust_ulp_extra::stream::{PreparedReceiver, PreparedSender, ENTRIES};
use std::future::{poll_fn, Future};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);
const BYTES: u32 = 300_000;
const ATTEMPTS: usize = 16;
const MESSAGE: &[u8] = b"hello task";
/// The private data of the attempt by the connection manager that is not dropped.
const LAST: &[u8] = b"last";
const USAGE: &str = "usage: ulp-test tasks tokio|smol [listen] ADDR:PORT";

/// Runs one end of the stream.
pub fn run(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["tokio", ref end @ ..] => in_tokio(run_end(end)),
        ["smol", ref end @ ..] => async_io::block_on(run_end(end)),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ulp-test: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_tokio(end: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(end)
}

async fn run_end(words: &[&str]) -> Result<()> {
    match words {
        ["listen", addr] => {
            listen_at(addr).await?;
            listen_by_manager(addr).await
        }
        [addr] => {
            connect(addr).await?;
            connect_by_manager(addr).await
        }
        _ => Err(USAGE.into()),
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

fn tell(buf: &Buffer) -> Result<()> {
    let got = buf.to_vec(..MESSAGE.len())?;
    println!("by the manager: {:?}", String::from_utf8_lossy(&got));
    Ok(())
}

async fn listen_by_manager(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let grant = buf.grant(.., Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let requests = AsyncRequests::new(&cq)?;
    // A write with immediate data completes the first, messages the others.
    let written = requests.post(&qp, Recv::empty())?;
    let told = requests.post(&qp, Recv::empty())?;
    let known = requests.post(&qp, Recv::empty())?;
    let listener = cm::Listener::bind(&dev, addr.parse()?, 4)?;
    let mut waiting = listener.requests()?;
    let options = cm::AcceptOptions::new().timeout(LONG).grant(&grant);
    let mut dropped = 0;
    let request = loop {
        // A wait that is dropped has taken nobody.
        polled(0, waiting.next_request()).await;
        let request = waiting.next_request().await?;
        if request.private().message().is_ok_and(|it| it.data == LAST) {
            break request;
        }
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        polled(dropped % 3, request.accept_async(qp, &options)).await;
        dropped += 1;
    };
    println!("{dropped} attempts by the manager were dropped");
    let connection = request.accept_async(qp, &options).await?;
    written.await?.check()?;
    tell(&buf)?;
    told.await?.check()?;
    known.await?.check()?;
    let answer = requests.post(connection.qp(), Send::empty())?;
    Ok(answer.await?.check()?)
}

async fn connect_by_manager(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let requests = AsyncRequests::new(&cq)?;
    let (addr, options) = (addr.parse()?, cm::ConnectOptions::new().timeout(LONG));
    // Two that come to nothing: nobody takes the one, and nobody listens at the other's address.
    let own = dev
        .default_gid()?
        .gid
        .ipv4()
        .ok_or("the GID is no IPv4 address")?;
    let listener = cm::Listener::bind(&dev, SocketAddr::new(own.into(), 0), 1)?;
    let hasty = cm::ConnectOptions::new().timeout(Duration::from_millis(100));
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let late = qp.connect_cm_async(listener.local_addr(), &hasty).await;
    let Err(late) = late else {
        return Err("nobody accepted, and it is connected".into());
    };
    println!("not taken: {:?}", late.error().kind());
    let closed = listener.local_addr();
    drop(listener);
    let nobody = late.into_qp().connect_cm_async(closed, &options).await;
    let reason = nobody.err().and_then(|e| Some(e.rejection()?.reason));
    println!("nobody listens: {reason:?}");
    for polls in 0..ATTEMPTS {
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        polled(polls / 4, qp.connect_cm_async(addr, &options)).await;
    }
    let options = options.data(LAST);
    // The other end may not listen yet.
    let (connection, answer) = loop {
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        let answer = requests.post(&qp, Recv::empty())?;
        match qp.connect_cm_async(addr, &options).await {
            Ok(connection) => break (connection, answer),
            Err(error) if error.rejection().is_some() => {}
            Err(error) => return Err(error.into()),
        }
    };
    let (qp, grant) = (connection.qp(), connection.private().grant(0)?);
    let write = requests.post(qp, Write::inline_bytes(MESSAGE, grant).imm(1))?;
    let back = grant.slice(..MESSAGE.len() as u64)?;
    let read = requests.post(qp, Read::new(back, buf.slice(..MESSAGE.len())?))?;
    // Both are under way; in which order they are awaited does not matter.
    read.await?.check()?;
    write.await?.check()?;
    tell(&buf)?;
    requests.post(qp, Send::empty())?.await?.check()?;
    // rxe completes a receive before it acknowledges the message. The other end answers when it knows
    // that this one has the acknowledgement, and hangs up when it has that of the answer.
    drop(requests.post(qp, Send::empty())?);
    answer.await?.check()?;
    loop {
        let event = dev.events().wait(LONG)?;
        if event.kind == EventKind::Disconnected && event.is_about(&connection) {
            return Ok(());
        }
    }
}
