// SPDX-License-Identifier: MIT OR Apache-2.0

//! Echoes of 64 bytes, over TCP and then over a reliable connection, timed once they are connected.
//!
//!     echo_rc listen 0.0.0.0:18515
//!     echo_rc 10.9.0.2:18515 1000

use rust_ulp::qp::Rc;
use rust_ulp::tcp::TcpOptions;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Cq, Device, Opcode, PreparedQp, Qp};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LEN: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => echo(addr),
        [addr, rounds] => time(addr, rounds),
        _ => Err("usage: echo_rc listen ADDR:PORT | echo_rc ADDR:PORT ROUNDS".into()),
    };
    if let Err(line) = result.map_err(|error| format!("echo_rc: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn open() -> Result<(PreparedQp<Rc>, Cq, Buffer)> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(LEN)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?; // before anybody sends
    Ok((qp, cq, buf))
}

/// Waits for a message, and posts the receive of the next one.
fn receive(qp: &Qp<Rc>, cq: &Cq, buf: &Buffer) -> Result<Vec<u8>> {
    while cq.wait(Duration::from_secs(30))?.ok()?.opcode != Opcode::Recv {}
    let message = buf.to_vec(..)?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    Ok(message)
}

fn echo(addr: &str) -> Result<()> {
    let (tcp, _) = TcpListener::bind(addr)?.accept()?;
    let echoed = std::io::copy(&mut &tcp, &mut &tcp)?;
    let (qp, cq, buf) = open()?;
    let (qp, peer) = qp.accept_tcp(addr, &[])?;
    for _ in 0..echoed / LEN as u64 {
        qp.post(Send::inline_bytes(&receive(&qp, &cq, &buf)?))?;
    }
    Ok(peer.wait_gone(Duration::from_secs(30))?) // it leaves when it has the last echo
}

fn time(addr: &str, rounds: &str) -> Result<()> {
    let rounds: u32 = rounds.parse()?;
    let mut tcp = TcpStream::connect(addr)?;
    let (begin, mut answer) = (Instant::now(), [0; LEN]);
    for n in 0..rounds {
        tcp.write_all(&[n as u8; LEN])?;
        tcp.read_exact(&mut answer)?;
    }
    println!("TCP:  {:?} for each of {rounds}", begin.elapsed() / rounds);
    drop(tcp); // the server goes on to RDMA, for as many rounds
    let (qp, cq, buf) = open()?;
    let (qp, _peer) = qp.connect_tcp_with(addr, &[], TcpOptions::new().retry_refused())?;
    let begin = Instant::now();
    for n in 0..rounds {
        qp.post(Send::inline_bytes(&[n as u8; LEN]))?;
        assert_eq!(receive(&qp, &cq, &buf)?, [n as u8; LEN]);
    }
    println!("RDMA: {:?} for each of {rounds}", begin.elapsed() / rounds);
    Ok(())
}
