// SPDX-License-Identifier: MIT OR Apache-2.0

//! Several clients on one server, as many messages as one likes, and never one without a receive: the server posts a
//! new receive for each that completes, and tells of it by credits; a client without credits waits.
//!
//!     credits listen 0.0.0.0:18515 CLIENTS
//!     credits 10.9.0.2:18515 MESSAGES
//!
//! Clients do not repeat what finds no receive: one message too many would end the connection.

use rust_ulp::{Device, Incoming, Listener, Opcode, Rc, Recv, RnrRetries, Send};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + std::marker::Send + Sync>>;
const LONG: Duration = Duration::from_secs(30);
const WINDOW: u32 = 16;
const LAST: u32 = u32::MAX;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr, clients] => listen(addr, clients),
        [addr, messages] => send(addr, messages),
        _ => Err("usage: credits listen ADDR:PORT CLIENTS | credits ADDR:PORT MESSAGES".into()),
    };
    if let Err(error) = result {
        eprintln!("credits: {error}");
        std::process::exit(1)
    }
}

fn listen(addr: &str, clients: &str) -> Result<()> {
    let (dev, listener) = (Device::open_default()?, Listener::bind(addr)?);
    let mut threads = Vec::new();
    for _ in 0..clients.parse()? {
        let (dev, incoming) = (dev.clone(), listener.accept(LONG)?);
        threads.push(std::thread::spawn(move || serve(&dev, incoming)));
    }
    for thread in threads {
        let count = thread.join().map_err(|_| "a thread broke off")??;
        println!("{count} messages, in order");
    }
    Ok(())
}

/// One client, each of whose messages is the number of those before it.
fn serve(dev: &Device, incoming: Incoming) -> Result<u32> {
    let cq = dev.create_cq(4 * WINDOW)?;
    let qp = dev.alloc_pd()?.create_qp::<Rc>(&cq).build()?;
    (0..WINDOW).try_for_each(|_| qp.post_recv(Recv::empty()))?;
    let (qp, _) = incoming.accept(qp, &[])?;
    let (mut count, mut freed) = (0, 0);
    loop {
        match cq.wait(LONG)?.ok()?.imm {
            Some(LAST) => return Ok(count),
            Some(n) if n == count => (count, freed) = (count + 1, freed + 1),
            Some(n) => return Err(format!("message {n} came for {count}").into()),
            None => continue, // credits have arrived there
        }
        qp.post_recv(Recv::empty())?;
        if freed >= WINDOW / 2 {
            qp.post(Send::empty().imm(std::mem::take(&mut freed)))?;
        }
    }
}

fn send(addr: &str, messages: &str) -> Result<()> {
    let (dev, messages) = (Device::open_default()?, messages.parse::<u32>()?);
    let cq = dev.create_cq(8 * WINDOW)?;
    let pd = dev.alloc_pd()?;
    let qp = pd
        .create_qp::<Rc>(&cq)
        .rnr_retry(RnrRetries::new(0)?)
        .build()?;
    (0..4).try_for_each(|_| qp.post_recv(Recv::empty()))?; // credits come by two at most
    let (qp, _) = qp.connect_tcp(addr, &[])?;
    let (mut posted, mut sent, mut credits) = (0, 0, WINDOW);
    while sent <= messages {
        if credits > 0 && posted <= messages {
            qp.post(Send::empty().imm(if posted < messages { posted } else { LAST }))?;
            (posted, credits) = (posted + 1, credits - 1);
            continue;
        }
        let done = cq.wait(LONG)?.ok()?;
        match (done.opcode, done.imm) {
            (Opcode::Recv, Some(more)) => {
                qp.post_recv(Recv::empty())?;
                credits += more;
            }
            _ => sent += 1,
        }
    }
    println!("{messages} messages");
    Ok(())
}
