// SPDX-License-Identifier: MIT OR Apache-2.0

//! An RDMA Write from one host into the memory of another.
//!
//!     rdma_write listen 0.0.0.0:18515       # on the host that is written to
//!     rdma_write 10.9.0.2:18515 "hello"     # on the host that writes

use rust_ulp::{error::Result, qp::Rc, tcp::TcpOptions, wr::Recv, wr::Write, Access, Device};
use std::time::Duration;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => receive(addr),
        [addr, message] => write(addr, message.as_bytes()),
        _ => {
            eprintln!("usage: rdma_write listen ADDR:PORT | rdma_write ADDR:PORT MESSAGE");
            std::process::exit(2)
        }
    };
    if let Err(line) = result.map_err(|error| format!("rdma_write: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn receive(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    println!("{dev}");
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
    let buf = pd.alloc_buffer(4096)?;
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::empty().wr_id(1))?; // completed by a write with immediate data
    println!("{} grants {}", qp.endpoint(), grant.remote());
    let (_qp, peer) = qp.accept_tcp(addr, &[&grant])?;
    let done = cq.wait(Duration::from_secs(30))?.ok()?;
    let got = buf.to_vec(..done.byte_len as usize)?;
    let text = String::from_utf8_lossy(&got);
    println!("{done}\n{} wrote {text:?}", peer.endpoint);
    peer.wait_gone(Duration::from_secs(30)) // it leaves when it has its acknowledgement
}

fn write(addr: &str, message: &[u8]) -> Result<()> {
    let dev = Device::open_default()?;
    println!("{dev}");
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
    let src = pd.alloc_buffer(4096)?;
    src.write_at(0, message)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let (qp, peer) = qp.connect_tcp_with(addr, &[], TcpOptions::new().retry_refused())?;
    let (src, dst) = (src.slice(..message.len())?, peer.grant(0)?);
    println!("{} writes to {}, {dst}", qp.endpoint(), qp.peer());
    qp.post(Write::new(src, dst).imm(1).wr_id(7))?;
    println!("{}", cq.wait(Duration::from_secs(30))?.ok()?);
    Ok(())
}
