// SPDX-License-Identifier: MIT OR Apache-2.0

//! A message over a reliable connection, and its answer.
//!
//!     hello_rc listen 0.0.0.0:18515
//!     hello_rc 10.9.0.2:18515 "hello"
//!
//! Unlike with TCP, the memory is registered, the receives are posted before anybody sends, and the
//! message goes from one program's memory to the other's with no copy in between.

use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Cq, Device, Opcode, PreparedQp};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => answer(addr),
        [addr, message] => ask(addr, message),
        _ => Err("usage: hello_rc listen ADDR:PORT | hello_rc ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("hello_rc: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// A queue pair with one receive, there before anybody sends.
fn open() -> Result<(PreparedQp<Rc>, Cq, Buffer)> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    Ok((qp, cq, buf))
}

fn receive(cq: &Cq, buf: &Buffer) -> Result<String> {
    loop {
        let done = cq.wait(LONG)?.ok()?;
        if done.opcode == Opcode::Recv {
            let bytes = buf.to_vec(..done.byte_len as usize)?;
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

fn answer(addr: &str) -> Result<()> {
    let (qp, cq, buf) = open()?;
    let (qp, _peer) = qp.accept_tcp(addr, &[])?; // the other side waits until it is dropped
    println!("{} says {:?}", qp.peer(), receive(&cq, &buf)?);
    qp.post(Send::inline_bytes(b"hello to you"))?;
    cq.wait(LONG)?.check()?; // acknowledged: it has arrived
    Ok(())
}

fn ask(addr: &str, message: &str) -> Result<()> {
    let (qp, cq, buf) = open()?;
    let (qp, peer) = qp.connect_tcp(addr, &[])?;
    qp.post(Send::inline_bytes(message.as_bytes()))?;
    println!("the answer is {:?}", receive(&cq, &buf)?);
    peer.wait_gone(LONG)?; // the queue pair acknowledges the answer, so it lives on until then
    Ok(())
}
