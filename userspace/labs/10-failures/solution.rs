// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: status

//! Lab 10: names a mistake by what it left behind.
//!
//!     main FILE

use lab::{Line, Result};

fn main() {
    lab::run(work)
}

/// A packet of the connection.
struct Packet {
    to: String,
    opcode: u32,
    psn: u32,
    /// Of an acknowledgement.
    syndrome: Option<u32>,
}

/// What was seen of a round.
struct Evidence {
    /// The address of the peer.
    peer: String,
    /// The status of the last request.
    status: u32,
    packets: Vec<Packet>,
}

impl Evidence {
    fn read(file: &str) -> Result<Self> {
        let (mut peer, mut status, mut packets) = (String::new(), 0, Vec::new());
        for line in std::fs::read_to_string(file)?.lines() {
            let line = Line(line.to_string());
            if let Ok(address) = line.text("peer") {
                peer = address.to_string();
            } else if let Ok(value) = line.short("status") {
                status = value;
            } else {
                packets.push(Packet {
                    to: line.text("to")?.to_string(),
                    opcode: line.short("packet")?,
                    psn: line.short("psn")?,
                    syndrome: line.short("syndrome").ok(),
                });
            }
        }
        Ok(Self {
            peer,
            status,
            packets,
        })
    }

    /// How many packets have this opcode.
    fn count(&self, opcode: u32) -> usize {
        self.packets.iter().filter(|p| p.opcode == opcode).count()
    }
}

/// The name of the mistake.
fn name(seen: &Evidence) -> &'static str {
    match seen.status {
        // learner 1: three mistakes have a status of their own
        //? 1 => "rnr",
        13 => "rnr",
        10 => "rkey",
        9 => "mtu",
        // end 1
        12 => no_answer(seen),
        _ => repeated(seen),
    }
}

/// Status 12: the packets tell which of three mistakes it was.
fn no_answer(seen: &Evidence) -> &'static str {
    // learner 2: gid, psn or timeout?
    //? let _ = (&seen.peer, &seen.packets);
    //? "timeout"
    if seen.packets.iter().any(|p| p.syndrome == Some(0x60)) {
        "psn"
    } else if seen.packets.iter().any(|p| p.to != seen.peer) {
        "gid"
    } else {
        "timeout"
    }
    // end 2
}

/// Status 0: some packets were lost, which cost time only.
fn repeated(seen: &Evidence) -> &'static str {
    // learner 3: loss or pfc? What was sent more than once?
    //? let _ = seen.count(4);
    //? "loss"
    if seen.count(4) > 1 {
        "loss"
    } else {
        "pfc"
    }
    // end 3
}

fn work(args: &[&str]) -> Result<()> {
    let [file] = *args else {
        return Err("usage: main FILE".into());
    };
    println!("{}", name(&Evidence::read(file)?));
    Ok(())
}
