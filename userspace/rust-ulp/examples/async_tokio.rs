// SPDX-License-Identifier: MIT OR Apache-2.0

//! A task of tokio that waits for completions and events. Needs the feature `tokio`.
//!
//!     async_tokio listen 10.9.0.2:18515
//!     async_tokio 10.9.0.2:18515 "hello"

use rust_ulp::events::EventKind;
use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{AsyncCq, AsyncEvents, Device};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Err(error) => Err(error.into()),
        Ok(tokio) => match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["listen", addr] => tokio.block_on(run(addr, None)),
            [addr, message] => tokio.block_on(run(addr, Some(message.as_bytes()))),
            _ => Err("usage: async_tokio listen ADDR:PORT | async_tokio ADDR:PORT MESSAGE".into()),
        },
    };
    if let Err(line) = result.map_err(|error| format!("async_tokio: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// Says something, or says what it was told.
async fn run(addr: &str, message: Option<&[u8]>) -> Result<()> {
    let addr: SocketAddr = addr.parse()?; // looking up a name would block
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let srq = pd.srq_builder(&cq).max_wr(4).limit(1).build()?;
    let qp = pd.qp_builder::<Rc>(&cq).srq(&srq).build()?;
    srq.post_recv(Recv::new(buf.slice(..)?))?;
    let mut events = AsyncEvents::new(&dev)?;
    let mut done = AsyncCq::new(&cq)?;
    // A wait that is given up has taken nothing.
    let nothing = timeout(Duration::from_millis(20), done.wait()).await;
    println!("nothing came: {}", nothing.is_err());
    let (qp, peer) = match message {
        None => {
            let mut listener = Listener::bind(&dev, addr)?.into_async()?;
            let incoming = timeout(LONG, listener.accept()).await??;
            incoming.accept_async(qp, &[], LONG).await?
        }
        Some(message) => {
            let options = Default::default();
            let (qp, peer) = qp.connect_tcp_async(&[addr], &[], options).await?;
            qp.post(Send::inline_bytes(message).signaled(false))?;
            (qp, peer)
        }
    };
    let received = timeout(LONG, done.wait()).await??.ok()?;
    let got = buf.slice(..received.byte_len as usize)?;
    println!("it says {:?}", String::from_utf8_lossy(&got.to_vec()?));
    if message.is_none() {
        qp.post(Send::new(got))?;
        timeout(LONG, done.wait()).await??.check()?;
    }
    // The last receive is gone, of which an event tells.
    while timeout(LONG, events.next_event()).await??.kind != EventKind::SrqLimit {}
    println!("no receives are left");
    if message.is_some() {
        timeout(LONG, peer.gone()).await??; // it has its acknowledgement
    }
    Ok(())
}
