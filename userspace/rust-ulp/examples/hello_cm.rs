// SPDX-License-Identifier: MIT OR Apache-2.0

//! A write to a host that the RDMA connection manager finds by its IP address, and an answer.
//!
//!     hello_cm listen 10.9.0.2:7174
//!     hello_cm 10.9.0.2:7174 "hello"
//!
//! There is no TCP: the grant of the memory comes with the manager's own messages.

use rust_ulp::events::EventKind;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{cm, Access, Device, Opcode};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, message] => connect(addr, message),
        _ => Err("usage: hello_cm listen ADDR:PORT | hello_cm ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("hello_cm: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::empty())?; // completed by a write with immediate data
    let listener = cm::Listener::bind(&dev, addr.parse()?, 4)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.next_request(LONG)?;
    let (peer, name) = (request.peer_addr(), request.private().message()?.data);
    let name = String::from_utf8_lossy(&name);
    println!("{peer} ({name}) wants to connect");
    let connection = request.accept(qp, &cm::AcceptOptions::new().grant(&grant))?;
    let done = cq.wait(LONG)?.ok()?;
    let got = buf.to_vec(..done.byte_len as usize)?;
    println!("it wrote {:?}", String::from_utf8_lossy(&got));
    connection.qp().post(Send::inline_bytes(b"hello to you"))?;
    cq.wait(LONG)?.check()?; // acknowledged: it has arrived
    Ok(())
}

fn connect(addr: &str, message: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    let options = cm::ConnectOptions::new().data(b"hello_cm");
    let connection = qp.connect_cm(addr.parse()?, &options)?;
    let (local, peer) = (connection.local_addr(), connection.peer_addr());
    println!("connected from {local} to {peer}");
    let grant = connection.private().grant(0)?;
    let write = Write::inline_bytes(message.as_bytes(), grant).imm(1);
    connection.qp().post(write)?;
    loop {
        let done = cq.wait(LONG)?.ok()?;
        if done.opcode == Opcode::Recv {
            let got = buf.to_vec(..done.byte_len as usize)?;
            println!("the answer is {:?}", String::from_utf8_lossy(&got));
            break;
        }
    }
    // The other end hangs up, once it knows that its answer is here.
    while dev.events().wait(LONG)?.kind != EventKind::Disconnected {}
    Ok(())
}
