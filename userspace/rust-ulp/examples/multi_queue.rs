// SPDX-License-Identifier: MIT OR Apache-2.0

//! A queue pair, a completion queue and a pinned thread for each processor: no lock is shared.
//!
//!     multi_queue listen 0.0.0.0:18515 4        # queues; the other end has as many
//!     multi_queue 10.9.0.2:18515 4

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use rust_ulp::wr::{Recv, Write};
use rust_ulp::{error::Result, qp::Rc, tcp::Listener, Access, Device};
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const WRITES: u64 = 500;
const DEPTH: u64 = 16;
/// The bytes of a queue.
const PART: u64 = 8 * WRITES;

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

/// Is written to: 8 bytes for each write of each queue.
fn listen(addr: &str, queues: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16 + queues as u32)?);
    let (buf, mut peers) = (pd.alloc_buffer(queues * PART as usize)?, Vec::new());
    let grant = buf.grant(.., Access::REMOTE_WRITE)?;
    let listener = Listener::bind(&dev, addr)?;
    for _ in 0..queues {
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        peers.push(listener.accept(LONG)?.accept(qp, &[&grant])?);
    }
    // The message behind the writes: polling their memory would not show which of them landed.
    (0..queues).try_for_each(|_| cq.wait(LONG)?.check())?;
    for i in 0..queues * WRITES as usize {
        let number = buf.load_u64(8 * i, Ordering::Acquire)?;
        assert_eq!(number, i as u64 % WRITES + 1);
    }
    println!("{queues} queues, each written to {WRITES} times");
    let mut peers = peers.iter();
    peers.try_for_each(|(_qp, peer)| peer.wait_gone(LONG))
}

fn connect(addr: &str, queues: usize) -> Result<()> {
    let dev = Device::open_default()?;
    let mine = sched_getaffinity(Pid::from_raw(0)).expect("the processors of this process");
    let is_mine = |cpu: &usize| mine.is_set(*cpu) == Ok(true);
    let cpus: Vec<_> = (0..CpuSet::count()).filter(is_mine).collect();
    let cpus: Vec<_> = cpus.into_iter().cycle().take(queues).collect();
    std::thread::scope(|scope| {
        for (i, cpu) in cpus.iter().enumerate() {
            let dev = &dev;
            scope.spawn(move || work(dev, addr, i, *cpu).unwrap());
        }
    });
    println!("{queues} queues on processors {cpus:?}");
    Ok(())
}

/// Writes numbers from one processor, with some under way at a time.
fn work(dev: &Device, addr: &str, i: usize, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a processor of this machine");
    sched_setaffinity(Pid::from_raw(0), &set).expect("pinning this thread");
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(DEPTH as u32)?);
    let qp = pd.qp_builder::<Rc>(&cq).build()?;
    let (qp, peer) = qp.connect_tcp(addr, &[])?;
    let to = peer.grant(0)?.slice(PART * i as u64..)?;
    let done = || cq.wait(LONG)?.check();
    for i in 1..=WRITES {
        (i > DEPTH).then(done).transpose()?;
        let number = i.to_ne_bytes();
        let write = Write::inline_bytes(&number, to.slice(8 * (i - 1)..)?);
        qp.post(if i == WRITES { write.imm(0) } else { write })?;
    }
    (0..DEPTH).try_for_each(|_| done())
}
