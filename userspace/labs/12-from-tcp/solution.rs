// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: receive-first

//! Lab 12: an echo by TCP, and the same by RDMA.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Result, Wire, LONG};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Buffer, Cq, Device, Opcode, Qp};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// Places for messages in the buffer. Answers go out from where the messages came in: nothing is copied.
const PLACES: usize = 4;

fn main() {
    lab::run(work)
}

/// The echo as it was: the kernel copies each message twice.
fn echo_tcp(mut stream: TcpStream, size: usize, count: usize) -> Result<()> {
    let mut message = vec![0; size];
    for _ in 0..count {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
    Ok(())
}

/// The same echo by messages.
fn echo_rdma(qp: &Qp<Rc>, cq: &Cq, buf: &Buffer, size: usize, count: usize) -> Result<()> {
    let mut answered = 0;
    while answered < count {
        let done = cq.wait(LONG)?.ok()?;
        let place = done.wr_id as usize;
        if done.opcode == Opcode::Recv {
            // learner 2: instead of write_all(): answer from the place where the message is
            //? let len = 0;
            let len = done.byte_len as usize;
            // end 2
            qp.post(Send::new(buf.slice(place * size..place * size + len)?).wr_id(place as u64))?;
        } else {
            answered += 1;
            // learner 3: the answer has arrived: what may its place be used for now?
            qp.post_recv(
                Recv::new(buf.slice(place * size..(place + 1) * size)?).wr_id(place as u64),
            )?;
            // end 3
        }
    }
    Ok(())
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let size = peer.number("size")? as usize;
    let count = peer.number("count")? as usize;
    let stream = TcpStream::connect(peer.text("tcp")?)?;
    stream.set_nodelay(true)?;
    echo_tcp(stream, size, count)?;

    let dev = Device::open(device)?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(4 * PLACES as u32)?);
    let buf = pd.alloc_buffer(PLACES * size)?;
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    // learner 1: instead of read_exact(): where do messages go? `place` is for the request with this `wr_id`
    for place in 0..PLACES {
        qp.post_recv(Recv::new(buf.slice(place * size..(place + 1) * size)?).wr_id(place as u64))?;
    }
    // end 1
    let own = qp.endpoint();
    wire.say(&format!(
        "qpn={} psn={} gid={}",
        own.qp_num, own.psn, own.gid
    ))?;
    let qp = qp.connect(peer.endpoint()?)?;
    wire.say("connected")?;
    echo_rdma(&qp, &cq, &buf, size, count)?;
    wire.say("done")?;
    wire.wait_for("bye")
}
