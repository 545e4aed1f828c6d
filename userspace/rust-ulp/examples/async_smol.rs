// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks of smol: a connection by the RDMA connection manager, and requests that are futures. Needs the feature
//! `smol`.
//!
//!     async_smol listen 10.9.0.2:7174
//!     async_smol 10.9.0.2:7174 "hello"

use rust_ulp::qp::Rc;
use rust_ulp::wr::{Read, Recv, Send, Write};
use rust_ulp::{cm, Access, AsyncRequests, Device};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => async_io::block_on(listen(addr)),
        [addr, message] => async_io::block_on(ask(addr, message)),
        _ => Err("usage: async_smol listen ADDR:PORT | async_smol ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("async_smol: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

async fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let grant = buf.grant(.., Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let requests = AsyncRequests::new(&cq)?;
    // A write with immediate data completes the first, a message the second.
    let written = requests.post(&qp, Recv::empty())?;
    let told = requests.post(&qp, Recv::empty())?;
    let listener = cm::Listener::bind(&dev, addr.parse()?, 4)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.requests()?.next_request().await?;
    let options = cm::AcceptOptions::new().timeout(LONG).grant(&grant);
    let connection = request.accept_async(qp, &options).await?;
    let done = written.await?.ok()?;
    let got = buf.to_vec(..done.byte_len as usize)?;
    println!("it wrote {:?}", String::from_utf8_lossy(&got));
    told.await?.check()?;
    println!("it has read it back");
    requests
        .post(connection.qp(), Send::empty())?
        .await?
        .check()?;
    Ok(())
}

async fn ask(addr: &str, message: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let requests = AsyncRequests::new(&cq)?;
    let answer = requests.post(&qp, Recv::empty())?;
    let options = cm::ConnectOptions::new().timeout(LONG);
    let connection = qp.connect_cm_async(addr.parse()?, &options).await?;
    let (qp, grant) = (connection.qp(), connection.private().grant(0)?);
    let write = requests.post(qp, Write::inline_bytes(message.as_bytes(), grant).imm(1))?;
    let back = grant.slice(..message.len() as u64)?;
    let read = requests.post(qp, Read::new(back, buf.slice(..message.len())?))?;
    // Both are under way; in which order they are awaited does not matter.
    read.await?.check()?;
    write.await?.check()?;
    let got = buf.to_vec(..message.len())?;
    println!("read back {:?}", String::from_utf8_lossy(&got));
    requests.post(qp, Send::empty())?.await?.check()?;
    answer.await?.check()?;
    Ok(())
}
