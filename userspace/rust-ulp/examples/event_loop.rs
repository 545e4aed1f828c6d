// SPDX-License-Identifier: MIT OR Apache-2.0

//! A thread that sleeps until a file says that there is something to do: an eventfd, that completions have come, or
//! the device, that something has happened to it. A program with sockets waits for those in the same call.
//!
//!     event_loop listen 0.0.0.0:18515
//!     event_loop 10.9.0.2:18515 1000        # so many messages

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use rust_ulp::cq::CqEventFd;
use rust_ulp::events::{EventKind, Events};
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Device, Srq};
use std::os::fd::AsFd;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + std::marker::Send + Sync>>;
const LONG: Duration = Duration::from_secs(30);
const RECEIVES: u32 = 64;
const FEW: u32 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", addr] => listen(addr),
        [addr, count] => send(addr, count),
        _ => Err("usage: event_loop listen ADDR:PORT | event_loop ADDR:PORT COUNT".into()),
    };
    if let Err(line) = result.map_err(|error| format!("event_loop: {error}\n")) {
        eprint!("{line}"); // one write, so that lines of two programs do not mix
        std::process::exit(1)
    }
}

fn listen(addr: &str) -> Result<()> {
    let dev = Device::open_default()?;
    let (pd, cq, events) = (dev.alloc_pd()?, dev.create_cq(256)?, dev.events());
    let srq = pd.srq_builder(&cq).max_wr(RECEIVES).limit(FEW).build()?;
    srq.post_recvs((0..RECEIVES).map(|_| Recv::empty()))?;
    let arrived = cq.eventfd()?;
    let (_qp, peer) = (pd.qp_builder::<Rc>(&cq).srq(&srq).build()?).accept_tcp(addr, &[])?;
    let thread = std::thread::spawn(move || run(&arrived, &events, &srq));
    let (count, refilled) = thread.join().map_err(|_| "the thread broke off")??;
    println!("{count} messages, in order; receives posted anew {refilled} times");
    Ok(peer.wait_gone(LONG)?) // when it has its acknowledgement
}

fn run(arrived: &CqEventFd, events: &Events, srq: &Srq) -> Result<(u32, u32)> {
    let (mut count, mut refilled, mut used) = (0, 0, 0);
    loop {
        let mut files = [
            PollFd::new(arrived.as_fd(), PollFlags::POLLIN),
            PollFd::new(events.as_fd(), PollFlags::POLLIN),
        ];
        assert!(poll(&mut files, PollTimeout::try_from(LONG)?)? > 0);
        arrived.take()?; // before the queue is looked at: what comes from now on wakes again
        while let Some(done) = arrived.cq().poll()? {
            match done.ok()?.imm {
                Some(u32::MAX) => return Ok((count, refilled)),
                n if n == Some(count) => (count, used) = (count + 1, used + 1),
                n => return Err(format!("{n:?} came for {count}").into()),
            }
        }
        while let Some(event) = events.next_event()? {
            if event.kind == EventKind::SrqLimit {
                srq.post_recvs((0..used).map(|_| Recv::empty()))?;
                srq.arm_limit(FEW)?;
                (used, refilled) = (0, refilled + 1);
            }
        }
    }
}

fn send(addr: &str, count: &str) -> Result<()> {
    let (dev, count) = (Device::open_default()?, count.parse::<u32>()?);
    let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
    let (qp, _peer) = pd.qp_builder::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
    (0..count).chain([u32::MAX]).try_for_each(|n| {
        qp.post(Send::empty().imm(n))?;
        Ok(cq.wait(LONG)?.ok().map(drop)?)
    })
}
