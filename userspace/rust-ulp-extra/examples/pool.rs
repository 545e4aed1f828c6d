// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages from and into chunks of a pool: each chunk is one's own, or its request's.
//!
//!     pool listen 0.0.0.0:18515
//!     pool 10.9.0.2:18515 1000        # so many messages

use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Device, Error};
use rust_ulp_extra::pool::Pool;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, count] => connect(addr, count),
        _ => Err("usage: pool listen ADDR:PORT | pool ADDR:PORT COUNT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("pool: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(64)?);
    let buf = pd.alloc_buffer(32 * 1024)?;
    let pool = Pool::new(buf.slice(..)?, 1024)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    while let Some(chunk) = pool.take() {
        let posted = chunk.post(&qp, |memory| Ok(Recv::new(memory)));
        posted.map_err(Error::from)?;
    }
    let (qp, peer) = qp.accept_tcp(addr, &[])?;
    for expected in 0u64.. {
        let done = cq.wait(LONG)?.ok()?;
        let chunk = pool.complete(&done).ok_or("no chunk of the pool")?;
        let mut number = [0; 8];
        chunk.read_at(0, &mut number)?;
        if done.byte_len == 0 {
            println!("{expected} messages, in order");
            return Ok(peer.wait_gone(LONG)?); // when it has its acknowledgement
        }
        assert_eq!(u64::from_le_bytes(number), expected);
        let posted = chunk.post(&qp, |memory| Ok(Recv::new(memory))); // for the next message
        posted.map_err(Error::from)?;
    }
    Ok(())
}

fn connect(addr: &str, count: &str) -> Result<()> {
    let count: u64 = count.parse()?;
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(64)?);
    let buf = pd.alloc_buffer(8 * 1024)?;
    let pool = Pool::new(buf.slice(..)?, 1024)?;
    let (qp, _peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    for number in 0..=count {
        // None is free: wait for one.
        let chunk = match pool.take() {
            Some(chunk) => chunk,
            None => (pool.complete(&cq.wait(LONG)?.ok()?)).ok_or("no chunk of the pool")?,
        };
        chunk.write_at(0, &number.to_le_bytes())?;
        let len = if number == count { 0 } else { 1024 };
        let posted = chunk.post(&qp, |memory| Ok(Send::new(memory.slice(..len)?)));
        posted.map_err(Error::from)?;
    }
    while pool.available() < pool.len() {
        drop(pool.complete(&cq.wait(LONG)?.ok()?));
    }
    println!("{count} messages from {} chunks", pool.len());
    Ok(())
}
