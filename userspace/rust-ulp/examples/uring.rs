// SPDX-License-Identifier: MIT OR Apache-2.0

//! A write and a message by io_uring: the message goes out only if the write succeeded. A thread of
//! the kernel posts them, without a system call. Needs the feature `io-uring`.
//!
//!     uring listen 0.0.0.0:18515
//!     uring 10.9.0.2:18515 "hello"

use rust_ulp::qp::Rc;
use rust_ulp::uring::Ring;
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{Access, Device, RemoteSlice};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, message] => connect(addr, message.as_bytes()),
        _ => Err("usage: uring listen ADDR:PORT | uring ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("uring: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let grant = buf.grant(..2048, Access::REMOTE_WRITE)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::empty())?; // reports to the completion queue, as ever
    let (_qp, peer) = qp.accept_tcp(addr, &[&grant])?;
    let told = cq.wait(LONG)?.ok()?;
    let text = buf.to_vec(..told.imm.unwrap_or(0) as usize)?;
    println!("it wrote {:?}", String::from_utf8_lossy(&text));
    // A receive that nothing comes for ends at its deadline.
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let mut ring = Ring::builder().entries(8).build()?;
    ring.push(&qp, Recv::empty().timeout(Duration::from_millis(50)))?;
    ring.submit()?;
    println!("{}", ring.wait(LONG)?.result?);
    Ok(peer.wait_gone(LONG)?) // when it has its acknowledgements
}

fn connect(addr: &str, message: &[u8]) -> Result<()> {
    let mut ring = Ring::builder()
        .entries(8)
        .sqpoll(Duration::from_millis(200))
        .build()?;
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let src = pd.alloc_buffer(4096)?;
    src.write_at(0, message)?;
    let (qp, peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    let src = src.slice(..message.len())?;
    ring.push(&qp, Write::new(src, peer.grant(0)?).wr_id(1))?;
    ring.link();
    ring.push(&qp, Send::empty().imm(message.len() as u32).wr_id(2))?;
    ring.submit()?;
    for _ in 0..2 {
        println!("{}", ring.wait(LONG)?.result?.ok()?);
    }
    // One that fails takes the next one with it.
    let nowhere = RemoteSlice::new(0, 4096, 1)?;
    ring.push(&qp, Write::new(src, nowhere).wr_id(3))?;
    ring.link();
    ring.push(&qp, Send::empty().wr_id(4))?;
    ring.submit()?;
    println!("{}", ring.wait(LONG)?.result?);
    let error = ring.wait(LONG)?.result.err().ok_or("it was sent")?;
    println!("{error}");
    Ok(())
}
