// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of this process, registered where it is, open to one peer for one use.
//!
//!     user_memory listen 0.0.0.0:18515
//!     user_memory 10.9.0.2:18515 "hello"

use rust_ulp::events::EventKind;
use rust_ulp::grant::GrantOptions;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send, Write};
use rust_ulp::{Access, Device};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LEN: usize = 8 << 20;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, message] => connect(addr, message.as_bytes()),
        _ => Err("usage: user_memory listen ADDR:PORT | user_memory ADDR:PORT MESSAGE".into()),
    };
    if let Err(line) = result.map_err(|error| format!("user_memory: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq, events) = (dev.alloc_pd()?, dev.create_cq(16)?, dev.events());
    let buf = pd.user_memory_builder(LEN).huge_pages().build()?;
    let info = buf.query()?;
    println!(
        "{:?} memory: {} bytes in pieces of {}, {} keys, {} bytes charged",
        info.kind, info.len, info.page_size, info.keys, info.charged
    );
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    qp.post_recv(Recv::empty())?;
    // The last bytes of it, for this peer and once.
    let once = GrantOptions::new().ends_on_invalidate(&qp);
    let grant = buf.grant_with(LEN - 4096.., Access::REMOTE_WRITE, once)?;
    let (_qp, peer) = qp.accept_tcp(addr, &[&grant])?;
    cq.wait(LONG)?.check()?;
    let ended = loop {
        match events.wait(LONG)? {
            event if !event.is_about(&grant) => {}
            event => break event.kind,
        }
    };
    match ended {
        EventKind::GrantEnded { state } => println!("the grant has ended: {state:?}"),
        other => return Err(format!("{other:?} came instead").into()),
    }
    let bytes = buf.to_vec(LEN - 4096..)?;
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    println!("it wrote {:?}", String::from_utf8_lossy(text));
    Ok(peer.wait_gone(LONG)?) // when it has its acknowledgement
}

fn connect(addr: &str, message: &[u8]) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let src = pd.user_memory_builder(4096).build()?;
    src.write_at(0, message)?;
    let (qp, peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    let grant = peer.grant(0)?;
    qp.post(Write::new(src.slice(..message.len())?, grant))?;
    // The send arrives after the write, and ends the grant.
    qp.post(Send::empty().invalidate(grant))?;
    for _ in 0..2 {
        println!("{}", cq.wait(LONG)?.ok()?);
    }
    Ok(())
}
