// SPDX-License-Identifier: MIT OR Apache-2.0

//! Flow control by credits: the receiver posts a new receive for each that has completed, and sends
//! a credit for it; a sender without credits waits. It does not retry, so that a message without a
//! receive would end the connection.
//!
//!     credits listen 0.0.0.0:18515
//!     credits 10.9.0.2:18515 1000        # so many messages

use rust_ulp::qp::{Rc, RnrRetries};
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Device, Opcode};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);
const WINDOW: u32 = 16;
const LAST: u32 = u32::MAX;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, count] => send(addr, count),
        _ => Err("usage: credits listen ADDR:PORT | credits ADDR:PORT MESSAGES".into()),
    };
    if let Err(line) = result.map_err(|error| format!("credits: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(4 * WINDOW)?);
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    (0..WINDOW).try_for_each(|_| qp.post_recv(Recv::empty()))?;
    let (qp, peer) = qp.accept_tcp(addr, &[])?;
    let (mut count, mut freed) = (0, 0);
    loop {
        match cq.wait(LONG)?.ok()?.imm {
            Some(LAST) => break,
            Some(n) if n == count => (count, freed) = (count + 1, freed + 1),
            Some(n) => return Err(format!("message {n} came for {count}").into()),
            None => continue, // credits have arrived there
        }
        qp.post_recv(Recv::empty())?;
        if freed >= WINDOW / 2 {
            qp.post(Send::empty().imm(std::mem::take(&mut freed)))?;
        }
    }
    println!("{count} messages, in order");
    Ok(peer.wait_gone(LONG)?) // when it has its acknowledgement
}

fn send(addr: &str, count: &str) -> Result<()> {
    let (dev, count) = (Device::open_default()?, count.parse::<u32>()?);
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(8 * WINDOW)?);
    let qp = pd.qp_builder::<Rc>(&cq).rnr_retry(RnrRetries::new(0)?);
    let qp = qp.build()?;
    (0..4).try_for_each(|_| qp.post_recv(Recv::empty()))?; // credits come by two at most
    let (qp, _peer) = qp.connect_tcp(addr, &[])?;
    let (mut posted, mut sent, mut credits) = (0, 0, WINDOW);
    while sent <= count {
        if credits > 0 && posted <= count {
            qp.post(Send::empty().imm(if posted < count { posted } else { LAST }))?;
            (posted, credits) = (posted + 1, credits - 1);
            continue;
        }
        let done = cq.wait(LONG)?.ok()?;
        if let (Opcode::Recv, Some(more)) = (done.opcode, done.imm) {
            qp.post_recv(Recv::empty())?;
            credits += more;
        } else {
            sent += 1;
        }
    }
    println!("{count} messages");
    Ok(())
}
