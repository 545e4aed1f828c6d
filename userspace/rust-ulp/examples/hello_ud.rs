// SPDX-License-Identifier: MIT OR Apache-2.0

//! A datagram from one host to another, and its answer.
//!
//!     hello_ud listen                     # on one host; prints its GID and number
//!     hello_ud GID NUMBER "hello"         # on the other
//!
//! Nobody connects, and nobody tells of what is lost: the one who asks has to ask again.

use rust_ulp::qp::Ud;
use rust_ulp::wr::{Recv, SendTo};
use rust_ulp::{error, Buffer, Cq, Datagram, Device, Endpoint, Error, Grh, Mtu, Opcode, Qp};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen"] => answer(),
        [gid, number, message] => ask(gid, number, message),
        _ => Err("usage: hello_ud listen | hello_ud GID NUMBER MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("hello_ud: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// A queue pair with one receive.
fn open() -> Result<(Qp<Ud>, Cq, Buffer)> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(Grh::LEN + 1024)?; // the network header stands before the message
    let qp = pd.qp_builder::<Ud>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    Ok((qp.ready()?, cq, buf))
}

fn receive<'b>(qp: &Qp<Ud>, cq: &Cq, buf: &'b Buffer, seconds: u64) -> error::Result<Datagram<'b>> {
    loop {
        let done = cq.wait(Duration::from_secs(seconds))?.ok()?;
        if done.opcode == Opcode::Recv {
            return qp.received(&done, &buf.slice(..)?);
        }
    }
}

fn answer() -> Result<()> {
    let (qp, cq, buf) = open()?;
    println!("{} {}", qp.endpoint().gid, qp.qp_num());
    let got = receive(&qp, &cq, &buf, 60)?;
    let from = qp.reply_to(&got)?;
    let (who, text) = (from.ah().path().gid, got.payload.to_vec()?);
    println!("{who} says {:?}", String::from_utf8_lossy(&text));
    qp.post(SendTo::inline_bytes(b"hello to you", &from))?;
    cq.wait(Duration::from_secs(5))?.check()?; // it has left; whether it arrives, nobody says
    Ok(())
}

fn ask(gid: &str, number: &str, message: &str) -> Result<()> {
    let (qp, cq, buf) = open()?;
    let peer = Endpoint::new(number.parse()?, 0, gid.parse()?, Mtu::B1024);
    let to = qp.address(&peer)?.queue_pair(peer.qp_num, qp.qkey());
    for _ in 0..5 {
        qp.post(SendTo::inline_bytes(message.as_bytes(), &to))?;
        match receive(&qp, &cq, &buf, 2) {
            Err(Error::Timeout { .. }) => println!("no answer: asking again"),
            got => {
                let text = got?.payload.to_vec()?;
                println!("the answer is {:?}", String::from_utf8_lossy(&text));
                return Ok(());
            }
        }
    }
    Err("nobody answers".into())
}
