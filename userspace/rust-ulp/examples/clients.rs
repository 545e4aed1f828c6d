// SPDX-License-Identifier: MIT OR Apache-2.0

//! A server with one thread, one completion queue and one set of receives for all of its clients.
//!
//!     clients listen 0.0.0.0:18515 3        # clients
//!     clients 10.9.0.2:18515 hello 100      # times

use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Device, Opcode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: std::time::Duration = std::time::Duration::from_secs(30);
const SLOT: usize = 64;
const SLOTS: usize = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr, clients] => listen(addr, clients),
        [addr, message, count] => ask(addr, message, count),
        _ => Err("usage: clients listen ADDR:PORT N | clients ADDR:PORT MESSAGE COUNT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("clients: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str, clients: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let listener = Listener::bind(&dev, addr)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
    let buf = pd.alloc_buffer(SLOTS * SLOT)?;
    let srq = pd.srq_builder(&cq).max_wr(SLOTS as u32).build()?;
    let slot = |n: usize| buf.slice(n * SLOT..(n + 1) * SLOT);
    let offer = |n: usize| srq.post_recv(Recv::new(slot(n)?).wr_id(n as u64));
    (0..SLOTS).try_for_each(offer)?;
    let (mut ends, mut left) = (Vec::new(), clients.parse()?);
    for _ in 0..left {
        let qp = pd.qp_builder::<Rc>(&cq).srq(&srq).build()?;
        ends.push((listener.accept(LONG)?.accept(qp, &[])?, 0));
    }
    while left > 0 {
        let done = cq.wait(LONG)?.ok()?;
        if done.opcode == Opcode::Send {
            continue; // an answer has arrived
        }
        let client = ends.iter_mut().find(|((qp, _), _)| done.is_of(qp));
        let ((qp, peer), count) = client.ok_or("nobody's")?;
        let message = slot(done.wr_id as usize)?.slice(..done.byte_len as usize)?;
        if message.is_empty() {
            println!("{} sent {count} messages", peer.endpoint);
            left -= 1;
        } else {
            qp.post(Send::inline_bytes(&message.to_vec()?))?; // copied now: its slot is free
            *count += 1;
        }
        offer(done.wr_id as usize)?;
    }
    (ends.iter()).try_for_each(|((_, peer), _)| Ok(peer.wait_gone(LONG)?))
}

fn ask(addr: &str, message: &str, count: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(SLOT)?;
    let (qp, _peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    for _ in 0..count.parse()? {
        qp.post_recv(Recv::new(buf.slice(..)?))?;
        qp.post(Send::inline_bytes(message.as_bytes()))?;
        (0..2).try_for_each(|_| cq.wait(LONG)?.check())?; // the message is there, and the answer
        assert_eq!(buf.to_vec(..message.len())?, message.as_bytes());
    }
    println!("{count} answers");
    qp.post(Send::empty())?;
    Ok(cq.wait(LONG)?.ok().map(drop)?)
}
