// SPDX-License-Identifier: MIT OR Apache-2.0

//! Standard input of one host to standard output of another, through a ring in its memory.
//!
//!     stream listen 0.0.0.0:18515 > copy
//!     stream 10.9.0.2:18515 < file

use rust_ulp::qp::Rc;
use rust_ulp::Device;
use rust_ulp_extra::stream::{PreparedReceiver, PreparedSender, ENTRIES};
use std::io::{stdin, stdout, Read, Write};
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const LONG: Duration = Duration::from_secs(30);
const RING: usize = 64 * 1024;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr] => connect(addr),
        _ => Err("usage: stream listen ADDR:PORT | stream ADDR:PORT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("stream: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(ENTRIES)?);
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let ring = PreparedReceiver::new(&qp, RING)?;
    let (qp, peer) = qp.accept_tcp(addr, &[ring.grant()])?;
    let mut receiver = ring.start(qp)?;
    let mut bytes = [0; 8192];
    while let n @ 1.. = receiver.recv(&mut bytes, LONG)? {
        stdout().write_all(&bytes[..n])?;
    }
    stdout().flush()?;
    Ok(peer.wait_gone(LONG)?) // when it has its last acknowledgement
}

fn connect(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(ENTRIES)?);
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let sender = PreparedSender::new(&qp, RING)?;
    let (qp, peer) = qp.connect_tcp(addr, &[])?;
    let mut sender = sender.start(qp, peer.grant(0)?)?;
    let mut bytes = [0; 8192];
    while let n @ 1.. = stdin().read(&mut bytes)? {
        sender.send(&bytes[..n], LONG)?;
    }
    sender.finish(LONG)?;
    Ok(())
}
