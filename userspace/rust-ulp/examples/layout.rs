// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where memory lies: on which NUMA node, in which pages, and what is aligned to what.
//!
//!     layout listen 0.0.0.0:18515
//!     layout 10.9.0.2:18515
//!
//! Best are memory on the device's node, in large pages, of which a key holds many; data that begin with a page; and
//! words for atomics each in a cache line of its own. They have to be aligned to their 8 bytes.

use rust_ulp::error::{ErrorKind, Result};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{FetchAdd, Write};
use rust_ulp::{Access, Device, Pd};
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 4 << 20;
const LINE: usize = 64;
const PAGE: usize = 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr] => connect(addr),
        _ => panic!("usage: layout listen ADDR:PORT | layout ADDR:PORT"),
    };
    if let Err(line) = result.map_err(|error| format!("layout: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// Memory of each node that there is.
fn show(pd: &Pd) -> Result<()> {
    for node in 0.. {
        let buf = match pd.buffer_builder(LEN).node(node).build() {
            Err(error) if error.kind() == ErrorKind::OutOfRange => break, // no such node
            buf => buf?.query()?,
        };
        let (is, size) = (buf.node, buf.page_size);
        println!("asked for node {node}: node {is}, pages of {size}");
    }
    Ok(())
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    show(&pd)?;
    let path = format!("/sys/class/infiniband/{}/device/numa_node", dev.name());
    let node = std::fs::read_to_string(path).unwrap_or_default();
    let node = node.trim().parse().unwrap_or(0); // software has none
    let buf = pd.buffer_builder(2 * PAGE).node(node).build()?;
    let grant = buf.grant(.., Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let (_qp, peer) = qp.accept_tcp(addr, &[&grant])?;
    peer.wait_gone(LONG)?;
    for word in [0, LINE] {
        println!("word at {word}: {}", buf.load_u64(word, Ordering::Acquire)?);
    }
    let data = buf.to_vec(PAGE..PAGE + 5)?;
    println!("data at {PAGE}: {:?}", String::from_utf8_lossy(&data));
    Ok(())
}

fn connect(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let (qp, peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    let (old, to) = (pd.alloc_buffer(8)?, peer.grant(0)?);
    for (word, add) in [(0, 3), (LINE, 4), (0, 2), (LINE + 4, 1)] {
        match qp.post(FetchAdd::new(to.slice(word as u64..)?, add, old.slice(..)?)) {
            Ok(()) => println!("{}", cq.wait(LONG)?.ok()?),
            Err(error) => println!("word at {word}: {error}"), // the driver never sees it
        }
    }
    qp.post(Write::inline_bytes(b"hello", to.slice(PAGE as u64..)?))?;
    cq.wait(LONG)?.ok().map(drop)
}
