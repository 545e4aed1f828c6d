// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: qkey

//! Lab 7: an echo of datagrams.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Result, Wire, LONG};
use rust_ulp::qp::Ud;
use rust_ulp::wr::{Recv, SendTo};
use rust_ulp::{Buffer, Cq, Device, Grh, Opcode, Qp};

const RECEIVES: usize = 16;

fn main() {
    lab::run(work)
}

/// How long a receive has to be for a datagram of `size` bytes.
fn room(size: usize) -> usize {
    // learner 1: what does the device put before the datagram?
    //? size
    Grh::LEN + size
    // end 1
}

/// A receive into a place of the buffer.
fn post_receive(qp: &Qp<Ud>, buf: &Buffer, room: usize, place: usize) -> Result<()> {
    Ok(qp.post_recv(Recv::new(buf.slice(place * room..(place + 1) * room)?).wr_id(place as u64))?)
}

/// Answers datagrams until one says "stop".
fn echo(qp: &Qp<Ud>, cq: &Cq, buf: &Buffer, room: usize) -> Result<()> {
    loop {
        let done = cq.wait(LONG)?.ok()?;
        if done.opcode != Opcode::Recv {
            continue; // an answer has left; whether it arrives, nobody says
        }
        let place = done.wr_id as usize;
        let datagram = qp.received(&done, &buf.slice(place * room..(place + 1) * room)?)?;
        let from = qp.reply_to(&datagram)?;
        // learner 2: what are the bytes of the datagram?
        //? let bytes = buf.to_vec(place * room..place * room + done.byte_len as usize)?;
        let bytes = datagram.payload.to_vec()?;
        // end 2
        post_receive(qp, buf, room, place)?;
        if bytes == b"stop" {
            return Ok(());
        }
        qp.post(SendTo::inline_bytes(&bytes, &from))?;
    }
}

/// How many of so many messages arrive when the line drops the 5th, the 10th, ... packet: by UC, each
/// of one packet; by UC, each of five packets (`packets=` of the line); by RC.
fn arrivals(messages: u64) -> String {
    // learner 4: what does the line take from each?
    //? let (uc, parts, rc) = (messages, messages, messages);
    let (uc, parts, rc) = (messages - messages / 5, 0, messages);
    // end 4
    format!("uc={uc} parts={parts} rc={rc}")
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let room = room(peer.number("size")? as usize);
    let dev = Device::open(device)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(128)?);
    let buf = pd.alloc_buffer(RECEIVES * room)?;
    // learner 3: both ends of a datagram need one Q_Key
    //? let builder = pd.qp_builder::<Ud>(&cq).max_inline(128);
    let builder = pd
        .qp_builder::<Ud>(&cq)
        .max_inline(128)
        .qkey(peer.short("qkey")?);
    // end 3
    let qp = builder.max_send_wr(64).max_recv_wr(64).build()?.ready()?;
    for place in 0..RECEIVES {
        post_receive(&qp, &buf, room, place)?;
    }
    wire.say(&format!(
        "qpn={} gid={} receives={RECEIVES}",
        qp.qp_num(),
        qp.endpoint().gid
    ))?;
    echo(&qp, &cq, &buf, room)?;
    wire.say("done")?;
    let plan = wire.hear()?;
    wire.say(&arrivals(plan.number("messages")?))?;
    wire.wait_for("bye")
}
