// SPDX-License-Identifier: MIT OR Apache-2.0

//! A queue pair and a completion thread for each processor, and a worker that posts to each.
//!
//!     multi_queue listen 0.0.0.0:18515 4        # queues; the other end has as many
//!     multi_queue 10.9.0.2:18515 4

use rust_ulp::error::Result;
use rust_ulp::multi::Queue;
use rust_ulp::qp::Rc;
use rust_ulp::tcp::Listener;
use rust_ulp::wr::Write;
use rust_ulp::{Access, Device, RemoteSlice};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const WRITES: u64 = 500;
const DEPTH: u64 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [listener, addr, n] if listener == "listen" => listen(addr, n.parse().unwrap_or(1)),
        [addr, n] => connect(addr, n.parse().unwrap_or(1)),
        _ => panic!("usage: multi_queue listen ADDR:PORT QUEUES | multi_queue ADDR:PORT QUEUES"),
    };
    if let Err(line) = result.map_err(|error| format!("multi_queue: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

/// Is written to: 8 bytes for each queue.
fn listen(addr: &str, queues: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, listener) = (dev.alloc_pd()?, Listener::bind(&dev, addr)?);
    let (buf, mut peers) = (pd.alloc_buffer(8 * queues)?, Vec::new());
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let multi = dev.multi_queue_builder().queues(queues).build(|_, cq| {
        let qp = pd.qp_builder::<Rc>(cq).build()?;
        let (qp, peer) = listener.accept(LONG)?.accept(qp, &[&grant])?;
        peers.push(peer);
        Ok(qp)
    })?;
    let end = Instant::now() + LONG;
    for i in 0..queues {
        while buf.load_u64(8 * i, Ordering::Acquire)? != WRITES {
            assert!(Instant::now() < end, "queue {i} is late");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("{queues} queues, each written to {WRITES} times");
    peers.iter().try_for_each(|peer| peer.wait_gone(LONG))?;
    multi.stop(LONG).map(drop)
}

fn connect(addr: &str, queues: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, mut to) = (dev.alloc_pd()?, Vec::new());
    let multi = dev
        .multi_queue_builder()
        .queues(queues)
        .pinned()
        .build(|i, cq| {
            let (qp, peer) = pd.qp_builder::<Rc>(cq).build()?.connect_tcp(addr, &[])?;
            to.push((peer.grant(0)?.slice(8 * i as u64..)?, peer));
            Ok(qp)
        })?;
    std::thread::scope(|scope| {
        for (queue, (to, _peer)) in multi.queues().iter().zip(&to) {
            scope.spawn(|| work(queue, *to).unwrap());
        }
    });
    let cpus: Vec<_> = multi.queues().iter().flat_map(Queue::cpu).collect();
    println!("{queues} queues on processors {cpus:?}");
    multi.stop(LONG).map(drop)
}

/// Writes numbers, with some under way at a time.
fn work(queue: &Queue<Rc>, to: RemoteSlice) -> Result<()> {
    let done = || queue.completions().wait(LONG)?.ok().map(drop);
    for i in 1..=WRITES {
        (i > DEPTH).then(done).transpose()?;
        queue.qp().post(Write::inline_bytes(&i.to_ne_bytes(), to))?;
    }
    (0..DEPTH).try_for_each(|_| done())
}
