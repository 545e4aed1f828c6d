// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the memory of a process on another host.
//!
//!     remote_read offer 0.0.0.0:18515 "some text"
//!     remote_read 10.9.0.1:18515

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::tcp::TcpOptions;
use rust_ulp::wr::Read;
use rust_ulp::{Access, Device};
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["offer", addr, text] => offer(addr, text),
        [addr] => read(addr),
        _ => {
            eprintln!("usage: remote_read offer ADDR:PORT TEXT | remote_read ADDR:PORT");
            std::process::exit(2)
        }
    };
    if let Err(line) = result.map_err(|error| format!("remote_read: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn offer(addr: &str, text: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    buf.write_at(0, text.as_bytes())?;
    let grant = buf.grant(..text.len(), Access::REMOTE_READ)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let (_qp, peer) = qp.accept_tcp(addr, &[&grant])?;
    peer.wait_gone(Duration::from_secs(30))?;
    println!("{} has left", peer.endpoint);
    Ok(())
}

fn read(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let (qp, peer) = qp.connect_tcp_with(addr, &[], TcpOptions::new().retry_refused())?;
    let theirs = peer.grant(0)?;
    let len = theirs.len() as usize;
    qp.post(Read::new(theirs, buf.slice(..len)?))?;
    println!("{}", cq.wait(Duration::from_secs(30))?.ok()?);
    println!("{:?}", String::from_utf8_lossy(&buf.to_vec(..len)?));
    Ok(())
}
