// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many requests by one call: writes, the last one signaled, and sends on several queue pairs.
//!
//!     batch listen 0.0.0.0:18515
//!     batch 10.9.0.2:18515

use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{Access, Device};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);
const BATCHES: u64 = 16;
const SIZE: u64 = 64;
const BYTES: usize = (8 * BATCHES * SIZE) as usize;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr] => connect(addr),
        _ => Err("usage: batch listen ADDR:PORT | batch ADDR:PORT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("batch: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let listener = Listener::bind(&dev, addr)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(BYTES)?;
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let mut ends = Vec::new();
    for _ in 0..2 {
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        ends.push(listener.accept(LONG)?.accept(qp, &[&grant])?);
    }
    // One message by each, when all of the writes have come.
    cq.wait_for(2, LONG)?;
    for n in 0..BATCHES * SIZE {
        let number = buf.load_u64(8 * n as usize, std::sync::atomic::Ordering::Acquire)?;
        (number == n).then_some(()).ok_or("not what was written")?;
    }
    println!("{} writes, each in its place", BATCHES * SIZE);
    (ends.iter()).try_for_each(|(_, peer)| Ok(peer.wait_gone(LONG)?))
}

fn connect(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
    let (one, peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    let (two, _peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    let (buf, to) = (pd.alloc_buffer(BYTES)?, peer.grant(0)?);
    for batch in 0..BATCHES {
        let mut writes = one.batch();
        for n in batch * SIZE..(batch + 1) * SIZE {
            let (at, to) = (8 * n as usize, to.slice(8 * n..8 * n + 8)?);
            buf.write_at(at, &n.to_ne_bytes())?;
            let write = Write::new(buf.slice(at..at + 8)?, to).wr_id(n);
            writes.push(write.signaled(n % SIZE == SIZE - 1))?;
        }
        writes.submit_and_wait(1, LONG)?; // posts them, and sleeps until the last is done
        println!("{}", cq.wait(LONG)?.ok()?);
    }
    // A batch ends at the first one that cannot be posted. Those before it are on their way.
    let foreign = dev.alloc_pd()?.alloc_buffer(8)?;
    let mut both = dev.batch();
    both.push(&one, Send::empty())?;
    both.push(&two, Send::new(foreign.slice(..)?))?;
    println!("{}", both.submit().err().ok_or("it was posted")?);
    two.post(Send::empty())?;
    (0..2).try_for_each(|_| Ok(cq.wait(LONG)?.ok().map(drop)?))
}
