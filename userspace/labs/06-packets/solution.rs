// SPDX-License-Identifier: MIT OR Apache-2.0
//? starter fails: bth

//! Lab 6: reads a capture.
//!
//!     main FILE                       # a line for each RoCE packet
//!     main predict TIMEOUT RETRY_CNT  # seconds until status 12

use lab::Result;
use std::collections::HashMap;

fn main() {
    lab::run(work)
}

/// A number of `len` bytes, the most significant first, at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Result<u32> {
    let field = bytes.get(at..at + len).ok_or("the packet is too short")?;
    Ok(field.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

/// When, in us, a packet was there last, by its opcode, queue pair and PSN.
type Seen = HashMap<(u32, u32, u32), u64>;

/// The fields of a packet, from the BTH on, which was there at `now`, in us.
fn decode(bth: &[u8], now: u64, seen: &mut Seen) -> Result<String> {
    // learner 1: opcode, destination queue pair and PSN, in the base transport header
    //? let (opcode, qpn, psn) = (0, 0, 0);
    let (opcode, qpn, psn) = (number(bth, 0, 1)?, number(bth, 5, 3)?, number(bth, 9, 3)?);
    // end 1
    let mut line = format!("opcode={opcode} qpn={qpn} psn={psn}");
    // learner 2: rkey and length, in the RETH, which some packets of writes and read requests have
    //? let reth: Option<(u32, u32)> = None;
    let reth = match opcode {
        6 | 10 | 11 | 12 => Some((number(bth, 20, 4)?, number(bth, 24, 4)?)),
        _ => None,
    };
    // end 2
    if let Some((rkey, len)) = reth {
        line += &format!(" rkey={rkey} len={len}");
    }
    // learner 3: the syndrome, in the AETH of acknowledgements and of most read responses
    //? let syndrome: Option<u32> = None;
    let syndrome = match opcode {
        13 | 15 | 16 | 17 => Some(number(bth, 12, 1)?),
        _ => None,
    };
    // end 3
    if let Some(syndrome) = syndrome {
        line += &format!(" syndrome={syndrome}");
    }
    // learner 5: the gap, in us, to the packet before with the same opcode, queue pair and PSN
    //? let gap: Option<u64> = None;
    let before = seen.insert((opcode, qpn, psn), now);
    let gap = before.map(|before| now - before);
    // end 5
    if let Some(gap) = gap {
        line += &format!(" gap={gap}");
    }
    Ok(line)
}

/// Seconds until a request that nobody acknowledges completes with status 12, at least.
fn predict(timeout: u32, retry_cnt: u32) -> f64 {
    // learner 4: how long is one wait, and how many are there?
    //? f64::from(retry_cnt) * f64::from(timeout)
    f64::from(retry_cnt + 1) * 4.096e-6 * f64::from(timeout).exp2()
    // end 4
}

fn work(args: &[&str]) -> Result<()> {
    match *args {
        ["predict", timeout, retry_cnt] => {
            println!("{:.4}", predict(timeout.parse()?, retry_cnt.parse()?))
        }
        [file] => {
            // A pcap file: 24 bytes, then 16 before each frame: seconds, microseconds, length. All of IPv4.
            let capture = std::fs::read(file)?;
            let (mut at, mut seen) = (24, Seen::new());
            while let Some(head) = capture.get(at..at + 12) {
                let word = |i| {
                    u64::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3], 0, 0, 0, 0])
                };
                let (now, length) = (word(0) * 1_000_000 + word(4), word(8) as usize);
                let frame = capture
                    .get(at + 16..at + 16 + length)
                    .ok_or("the file ends within a frame")?;
                let bth = frame.get(14 + 20 + 8..).ok_or("a short frame")?;
                println!("{}", decode(bth, now, &mut seen)?);
                at += 16 + length;
            }
        }
        _ => return Err("usage: main FILE | main predict TIMEOUT RETRY_CNT".into()),
    }
    Ok(())
}
