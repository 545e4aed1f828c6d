// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: init

//! Lab 4: brings a queue pair to RTS, step by step.
//!
//!     main DEVICE ADDRESS:PORT

use lab::{Line, Result, Wire, LONG};
use rust_ulp::qp::{AckTimeout, Path, QpAttr, QpState, Rc, Retries, RnrRetries, RnrTimer};
use rust_ulp::wr::Write;
use rust_ulp::{Access, Device, Mtu, PreparedQp, Qp, RemoteSlice};

fn main() {
    lab::run(work)
}

/// From RESET to RTS. `index` is that of the GID to send from; the line is the peer's.
fn bring_up(qp: &PreparedQp<Rc>, index: u8, peer: &Line) -> Result<()> {
    // The crate has taken it to INIT: back to RESET, to go the whole way.
    qp.modify(QpAttr::to(QpState::Reset))?;
    // learner 1: RESET -> INIT
    //? let init = QpAttr::to(QpState::Init);
    let init = QpAttr::to(QpState::Init)
        .pkey_index(0)
        .port(1)
        .access(Access::REMOTE_WRITE);
    // end 1
    qp.modify(init)?;
    // learner 2: INIT -> RTR: where the peer is, and what it sends first
    //? let rtr = QpAttr::to(QpState::Rtr);
    let rtr = QpAttr::to(QpState::Rtr)
        .path(Path::new(peer.gid("gid")?, 1, index))
        .path_mtu(Mtu::at_most(peer.short("mtu")?))
        .dest_qp_num(peer.short("qpn")?)
        .rq_psn(peer.short("psn")?)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(RnrTimer::new(12)?);
    // end 2
    qp.modify(rtr)?;
    // learner 3: RTR -> RTS: what this end sends first, and how it repeats
    //? let rts = QpAttr::to(QpState::Rts);
    let rts = QpAttr::to(QpState::Rts)
        .sq_psn(peer.short("start")?)
        .timeout(AckTimeout::new(14)?)
        .retry_cnt(Retries::new(7)?)
        .rnr_retry(RnrRetries::new(7)?)
        .max_rd_atomic(1);
    // end 3
    qp.modify(rts)?;
    Ok(())
}

/// Asks for a transition, and prints what comes of it.
fn attempt(qp: &Qp<Rc>, attr: QpAttr) {
    match qp.modify(attr) {
        Ok(_) => println!("it is taken"),
        Err(error) => println!("{error}"),
    }
}

/// Asks for transitions that are refused. Returns why, in their order.
fn refused(qp: &Qp<Rc>) -> Result<&'static str> {
    qp.modify(QpAttr::to(QpState::Reset))?;
    // learner 4: attempt() three: no such transition, an attribute is missing, one too many
    //? Ok("")
    let init = QpAttr::to(QpState::Init)
        .pkey_index(0)
        .access(Access::REMOTE_WRITE);
    attempt(qp, QpAttr::to(QpState::Rts));
    attempt(qp, init);
    attempt(qp, init.port(1).sq_psn(0));
    Ok("state,missing,extra")
    // end 4
}

fn work(args: &[&str]) -> Result<()> {
    let [device, addr] = *args else {
        return Err("usage: main DEVICE ADDRESS:PORT".into());
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let dev = Device::open(device)?;
    let index = dev.default_gid()?.gid_index;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(1 << 16)?;
    let qp = pd.qp_builder::<Rc>(&cq).gid(1, index).build()?;
    wire.say(&format!(
        "qpn={} psn={} gid={}",
        qp.qp_num(),
        peer.short("start")?,
        qp.endpoint().gid
    ))?;
    bring_up(&qp, index, &peer)?;
    let qp = qp.into_connected()?;
    wire.say("connected")?;
    wire.wait_for("ready")?;

    // As many bytes as the peer wants: each one more than the one before.
    let (len, nonce) = (peer.number("len")? as usize, peer.number("nonce")?);
    let bytes: Vec<u8> = (0..len).map(|i| (nonce as usize + i) as u8).collect();
    buf.write_at(0, &bytes)?;
    let there = RemoteSlice::new(peer.number("addr")?, len as u64, peer.short("rkey")?)?;
    qp.post(Write::new(buf.slice(..len)?, there))?;
    cq.wait(LONG)?.check()?;
    wire.say("done")?;
    wire.say(&format!("refused={}", refused(&qp)?))?;
    wire.wait_for("bye")
}
