// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: family

//! Lab 3: chooses the GID to send from.
//!
//!     main DEVICE ADDRESS:PORT [INDEX]

use lab::{Result, Wire, LONG};
use rust_ulp::device::{GidEntry, GidType};
use rust_ulp::qp::Rc;
use rust_ulp::wr::Write;
use rust_ulp::{Device, Endpoint, Gid, Mtu, RemoteSlice};

fn main() {
    lab::run(work)
}

/// The index to send from towards `peer`. `wanted` is what the user asked for; without it, the program chooses.
fn choose(gids: &[GidEntry], peer: Gid, wanted: Option<u8>) -> Result<u8> {
    // learner 1: which entries are good? look at each field of `GidEntry`; `Gid::ipv4` tells the family
    //? let good = |entry: &&GidEntry| true;
    let good = |entry: &&GidEntry| {
        entry.gid_type == GidType::RoceV2
            && entry.interface.is_some()
            && entry.gid.ipv4().is_some() == peer.ipv4().is_some()
            && !entry.is_link_local
    };
    // end 1
    // learner 2: the entry that the user asked for has to be a good one, too
    //? let found = match wanted {
    //?     Some(index) => return Ok(index),
    //?     None => gids.iter().find(good),
    //? };
    let found = match wanted {
        Some(index) => gids.iter().filter(good).find(|entry| entry.index == index),
        None => gids.iter().find(good),
    };
    // end 2
    let entry = found.ok_or_else(|| format!("no such GID leads to {peer}"))?;
    Ok(entry.index)
}

fn work(args: &[&str]) -> Result<()> {
    let (device, addr, wanted) = match *args {
        [device, addr] => (device, addr, None),
        [device, addr, index] => (device, addr, Some(index.parse()?)),
        _ => return Err("usage: main DEVICE ADDRESS:PORT [INDEX]".into()),
    };
    let mut wire = Wire::connect(addr)?;
    let peer = wire.hear()?;
    let dev = Device::open(device)?;
    let index = choose(&dev.gids(1)?, peer.gid("gid")?, wanted)?;

    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let buf = pd.alloc_buffer(4096)?;
    let qp = pd.qp_builder::<Rc>(&cq).gid(1, index).build()?;
    let own = qp.endpoint();
    wire.say(&format!(
        "qpn={} psn={} gid={}",
        own.qp_num, own.psn, own.gid
    ))?;
    let theirs = Endpoint::new(
        peer.short("qpn")?,
        peer.short("psn")?,
        peer.gid("gid")?,
        Mtu::B1024,
    );
    let qp = qp.connect(theirs)?;
    wire.wait_for("ready")?;

    // The peer's number, into its memory.
    buf.write_at(0, &peer.number("nonce")?.to_be_bytes())?;
    let there = RemoteSlice::new(peer.number("addr")?, 8, peer.short("rkey")?)?;
    qp.post(Write::new(buf.slice(..8)?, there))?;
    cq.wait(LONG)?.check()?;
    wire.say("done")?;
    wire.wait_for("bye")
}
