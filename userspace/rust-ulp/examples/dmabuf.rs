// SPDX-License-Identifier: MIT OR Apache-2.0

//! A message from a dma-buf, which is memory of another driver, into a dma-buf of the peer.
//!
//!     dmabuf listen 0.0.0.0:18515
//!     dmabuf 10.9.0.2:18515 "hello"
//!
//! Both allocate theirs from the kernel's DMA heap. With a GPU, `export` returns the descriptor of
//! its driver; without `map()`, since only the GPU reads and writes the memory.

use dma_heap::{Heap, HeapKind};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Device, Pd};
use std::{os::fd::OwnedFd, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LEN: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, message] => connect(addr, message.as_bytes()),
        _ => Err("usage: dmabuf listen ADDR:PORT | dmabuf ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("dmabuf: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// Makes a dma-buf, whose descriptor any importer takes.
fn export() -> Result<OwnedFd> {
    let heap = Heap::new(HeapKind::System).map_err(|e| format!("/dev/dma_heap/system: {e}"))?;
    Ok(heap.allocate(LEN)?)
}

/// Registers a dma-buf with `dev`, and maps it into this process too.
fn import(dev: &Device, pd: &Pd) -> Result<Buffer> {
    let buf = pd.dmabuf_builder(export()?).map().build()?;
    let (name, info) = (dev.name(), buf.query()?);
    println!("{name} imports a {:?} of {} bytes", info.kind, info.len);
    Ok(buf)
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = import(&dev, &pd)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::new(buf.slice(..)?))?;
    let (_qp, peer) = qp.accept_tcp(addr, &[])?;
    let bytes = buf.to_vec(..cq.wait(LONG)?.ok()?.byte_len as usize)?;
    let first = bytes
        .iter()
        .position(|byte| *byte != 0)
        .unwrap_or(bytes.len());
    println!(
        "{} bytes, of which the last say {:?}",
        bytes.len(),
        String::from_utf8_lossy(&bytes[first..])
    );
    Ok(peer.wait_gone(LONG)?) // when it has its acknowledgement
}

fn connect(addr: &str, message: &[u8]) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = import(&dev, &pd)?;
    let start = LEN
        .checked_sub(message.len())
        .ok_or("the message is too long")?;
    buf.write_at(start, message)?;
    let (qp, _) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    qp.post(Send::new(buf.slice(..)?))?;
    println!("{}", cq.wait(LONG)?.ok()?);
    Ok(())
}
