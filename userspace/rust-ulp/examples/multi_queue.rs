// SPDX-License-Identifier: MIT OR Apache-2.0

//! A queue pair and a completion thread for each processor, and a worker that posts to each.
//!
//!     multi_queue listen 0.0.0.0:18515 4        # lanes; the other end has as many
//!     multi_queue 10.9.0.2:18515 4

use rust_ulp::{Access, Device, Lane, Listener, Rc, RemoteSlice, Result, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const WRITES: u64 = 500;
const DEPTH: u64 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [listener, addr, lanes] if listener == "listen" => listen(addr, lanes.parse().unwrap_or(1)),
        [addr, lanes] => connect(addr, lanes.parse().unwrap_or(1)),
        _ => panic!("usage: multi_queue listen ADDR:PORT LANES | multi_queue ADDR:PORT LANES"),
    };
    if let Err(error) = result {
        eprintln!("multi_queue: {error}");
        std::process::exit(1)
    }
}

/// Is written to: 8 bytes for each lane.
fn listen(addr: &str, lanes: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, listener) = (dev.alloc_pd()?, Listener::bind(addr)?);
    let (buf, mut peers) = (pd.alloc_buffer(8 * lanes)?, Vec::new());
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let multi = dev.multi_queue().lanes(lanes).build(|_, cq| {
        let qp = pd.create_qp::<Rc>(cq).build()?;
        let (qp, peer) = listener.accept(LONG)?.accept(qp, &[&grant])?;
        peers.push(peer);
        Ok(qp)
    })?;
    let end = Instant::now() + LONG;
    for i in 0..lanes {
        while buf.load_u64(8 * i, Ordering::Acquire)? != WRITES {
            assert!(Instant::now() < end, "lane {i} is late");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{lanes} lanes, each written to {WRITES} times");
    peers.iter().try_for_each(|peer| peer.wait_gone(LONG))?;
    multi.stop(LONG).map(drop)
}

fn connect(addr: &str, lanes: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, mut to) = (dev.alloc_pd()?, Vec::new());
    let multi = dev.multi_queue().lanes(lanes).pinned().build(|i, cq| {
        let (qp, peer) = pd.create_qp::<Rc>(cq).build()?.connect_tcp(addr, &[])?;
        to.push((peer.grant(0)?.slice(8 * i as u64..)?, peer));
        Ok(qp)
    })?;
    std::thread::scope(|scope| {
        for (lane, (to, _peer)) in multi.lanes().iter().zip(&to) {
            scope.spawn(|| work(lane, *to).unwrap());
        }
    });
    let cpus = multi.lanes().iter().flat_map(Lane::cpu);
    println!("{lanes} lanes on processors {:?}", cpus.collect::<Vec<_>>());
    multi.stop(LONG).map(drop)
}

/// Writes numbers, with some under way at a time.
fn work(lane: &Lane<Rc>, to: RemoteSlice) -> Result<()> {
    let done = || lane.completions().wait(LONG)?.ok().map(drop);
    for i in 1..=WRITES {
        (i > DEPTH).then(done).transpose()?;
        lane.qp().post(Write::inline_bytes(&i.to_ne_bytes(), to))?;
    }
    (0..DEPTH).try_for_each(|_| done())
}
