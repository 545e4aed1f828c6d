// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: receive-first

//! Lab 5: an echo of messages.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Result, Wire, LONG};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Cq, Device, Opcode, Qp};

/// Receives, which come first in the buffer; twice as many places to send from come behind.
const RECEIVES: usize = 16;
const PLACES: usize = 3 * RECEIVES;

fn main() {
    lab::run(work)
}

/// Answers `count` messages of at most `size` bytes.
fn echo(qp: &Qp<Rc>, cq: &Cq, buf: &Buffer, size: usize, count: usize) -> Result<()> {
    let mut free: Vec<usize> = (RECEIVES..PLACES).collect();
    let mut sent = 0;
    while sent < count {
        let done = cq.wait(LONG)?.ok()?;
        let place = done.wr_id as usize;
        if done.opcode != Opcode::Recv {
            // An answer has arrived: its place is free again.
            free.push(place);
            sent += 1;
            continue;
        }
        let len = done.byte_len as usize;
        let to = free.pop().ok_or("no place to send from")?;
        buf.copy_from(to * size, buf, place * size, len)?;
        // learner 2: the message is copied: answer it, with a receive for the next one in time
        //? qp.post(Send::new(buf.slice(to * size..to * size + len)?).wr_id(to as u64))?;
        qp.post_recv(Recv::new(buf.slice(place * size..(place + 1) * size)?).wr_id(place as u64))?;
        qp.post(Send::new(buf.slice(to * size..to * size + len)?).wr_id(to as u64))?;
        // end 2
    }
    Ok(())
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let (size, count) = (
        peer.number("size")? as usize,
        peer.number("count")? as usize,
    );
    let dev = Device::open(device)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(4 * RECEIVES as u32)?);
    let buf = pd.alloc_buffer(PLACES * size)?;
    let qp = pd
        .qp_builder::<Rc>(&cq)
        .max_send_wr(64)
        .max_recv_wr(64)
        .build()?;
    // learner 1: when does a receive have to be there? `place` of the buffer is for the request with this `wr_id`
    for place in 0..RECEIVES {
        qp.post_recv(Recv::new(buf.slice(place * size..(place + 1) * size)?).wr_id(place as u64))?;
    }
    // end 1
    let own = qp.endpoint();
    wire.say(&format!(
        "qpn={} psn={} gid={} receives={RECEIVES}",
        own.qp_num, own.psn, own.gid
    ))?;
    let qp = qp.connect(peer.endpoint()?)?;
    wire.say("connected")?;
    echo(&qp, &cq, &buf, size, count)?;
    wire.say("done")?;
    // learner 3: now the peer uses up the receives; how often is a Send on the line that finds none?
    //? let sends = peer.number("count")?;
    let sends = peer.number("rnr_retry")? + 1;
    // end 3
    wire.say(&format!("sends={sends}"))?;
    wire.wait_for("bye")
}
