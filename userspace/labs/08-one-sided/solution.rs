// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: memory

//! Lab 8: reads and writes memory of a process that is stopped.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Result, Wire, LONG};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Read, Write};
use rust_ulp::{Buffer, Cq, Device, Qp, RemoteSlice};

fn main() {
    lab::run(work)
}

/// Fetches the number at `from`, adds `add` and puts the sum to `to`: 8 bytes, the most significant first. `imm` tells
/// the peer.
fn add(
    qp: &Qp<Rc>,
    cq: &Cq,
    buf: &Buffer,
    from: RemoteSlice,
    to: RemoteSlice,
    add: u64,
    imm: u32,
) -> Result<()> {
    let mut number = [0; 8];
    // learner 1: fetch the number; its bytes are in the buffer when the request has completed
    qp.post(Read::new(from, buf.slice(..8)?))?;
    cq.wait(LONG)?.check()?;
    buf.read_at(0, &mut number)?;
    // end 1
    let sum = u64::from_be_bytes(number).wrapping_add(add);
    // learner 2: put the sum there; it has arrived when the request has completed
    //? let _ = (sum, to, buf, cq, from, qp, imm);
    buf.write_at(8, &sum.to_be_bytes())?;
    qp.post(Write::new(buf.slice(8..16)?, to).imm(imm))?;
    cq.wait(LONG)?.check()?;
    // end 2
    Ok(())
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let dev = Device::open(device)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let own = qp.endpoint();
    wire.say(&format!(
        "qpn={} psn={} gid={}",
        own.qp_num, own.psn, own.gid
    ))?;
    let qp = qp.connect(peer.endpoint()?)?;
    wire.wait_for("stopped")?;
    let (base, rkey) = (peer.number("addr")?, peer.short("rkey")?);
    let from = RemoteSlice::new(base + peer.number("from")?, 8, rkey)?;
    let to = RemoteSlice::new(base + peer.number("to")?, 8, rkey)?;
    let (number, imm) = (peer.number("add")?, peer.short("imm")?);
    add(&qp, &cq, &buf, from, to, number, imm)?;
    wire.say("done")?;
    wire.wait_for("bye")
}
