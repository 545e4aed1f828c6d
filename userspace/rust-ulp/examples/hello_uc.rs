// SPDX-License-Identifier: MIT OR Apache-2.0

//! A message over an unreliable connection, and its answer.
//!
//!     hello_uc listen 0.0.0.0:18515
//!     hello_uc 10.9.0.2:18515 "hello"
//!
//! It is as over a reliable one, but that nobody acknowledges: a message that is lost, or finds no receive, is
//! missed by none but who waits for it. The one who asks has to ask again.

use rust_ulp::qp::Uc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Cq, Device, Error, Opcode, PreparedQp};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => answer(addr),
        [addr, message] => ask(addr, message),
        _ => Err("usage: hello_uc listen ADDR:PORT | hello_uc ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("hello_uc: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// A queue pair with one receive, there before anybody sends.
fn open() -> Result<(PreparedQp<Uc>, Cq, Buffer)> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Uc>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    Ok((qp, cq, buf))
}

fn receive(cq: &Cq, buf: &Buffer, seconds: u64) -> rust_ulp::error::Result<String> {
    loop {
        let done = cq.wait(Duration::from_secs(seconds))?.ok()?;
        if done.opcode == Opcode::Recv {
            let bytes = buf.to_vec(..done.byte_len as usize)?;
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

fn answer(addr: &str) -> Result<()> {
    let (qp, cq, buf) = open()?;
    let (qp, _) = qp.accept_tcp(addr, &[])?;
    println!("{} says {:?}", qp.peer(), receive(&cq, &buf, 30)?);
    qp.post(Send::inline_bytes(b"hello to you"))?;
    cq.wait(Duration::from_secs(5))?.check()?; // it has left; whether it arrives, nobody says
    Ok(())
}

fn ask(addr: &str, message: &str) -> Result<()> {
    let (qp, cq, buf) = open()?;
    let (qp, _) = qp.connect_tcp(addr, &[])?;
    for _ in 0..5 {
        qp.post(Send::inline_bytes(message.as_bytes()))?;
        match receive(&cq, &buf, 2) {
            Err(Error::Timeout { .. }) => println!("no answer: asking again"),
            got => {
                println!("the answer is {:?}", got?);
                return Ok(());
            }
        }
    }
    Err("nobody answers".into())
}
