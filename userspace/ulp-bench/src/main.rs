// SPDX-License-Identifier: MIT OR Apache-2.0

//! Our side of the comparison with perftest: the same loops as `ib_write_lat`, `ib_write_bw -l`,
//! `ib_send_lat -e` and `ib_send_bw -e`, over the crate. `tests/bench/run` runs both.

use rust_ulp::{
    Access, Buffer, Cq, CqOptions, Delivery, Device, Grant, Peer, Qp, Rc, Recv, RemoteSlice,
    RnrTimer, Send, Write,
};
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: ulp-bench TEST [OPTION...] listen|connect ADDRESS:PORT
  write-lat   writes back and forth, both ends spin on their memory: half a round trip
  write-bw    writes one way
  send-lat    sends back and forth, both ends sleep for the receive: half a round trip
  send-bw     sends one way, both ends sleep
Options, the same at both ends:
  --size N      bytes per message (8)
  --iters N     messages (1000)
  --depth N     messages in flight, write-bw and send-bw (128)
  --batch N     messages per call, write-bw and send-bw (64)
  --delivery workqueue|softirq|caller   who moves completions into the ring
  --spin        write-bw: take completions from the ring without sleeping
  --inline      write-lat: the data travels in the request
The connecting end prints one line of JSON.";

/// Longer than any single step takes, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Options {
    test: Test,
    listen: bool,
    addr: String,
    size: usize,
    iters: usize,
    depth: usize,
    batch: usize,
    delivery: Delivery,
    spin: bool,
    inline: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Test {
    WriteLat,
    WriteBw,
    SendLat,
    SendBw,
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let test = match args.next()?.as_str() {
        "write-lat" => Test::WriteLat,
        "write-bw" => Test::WriteBw,
        "send-lat" => Test::SendLat,
        "send-bw" => Test::SendBw,
        _ => return None,
    };
    let mut o = Options {
        test,
        listen: false,
        addr: String::new(),
        size: 8,
        iters: 1000,
        depth: 128,
        batch: 64,
        delivery: Delivery::Default,
        spin: false,
        inline: false,
    };
    loop {
        let arg = args.next()?;
        let mut number = |max| {
            let n = args.next()?.parse().ok()?;
            (1..=max).contains(&n).then_some(n)
        };
        match arg.as_str() {
            "--size" => o.size = number(1 << 30)?,
            "--iters" => o.iters = number(1 << 30)?,
            "--depth" => o.depth = number(4096)?,
            "--batch" => o.batch = number(4096)?,
            "--spin" => o.spin = true,
            "--inline" => o.inline = true,
            "--delivery" => {
                o.delivery = match args.next()?.as_str() {
                    "workqueue" => Delivery::Workqueue,
                    "softirq" => Delivery::Softirq,
                    "caller" => Delivery::Caller,
                    _ => return None,
                }
            }
            "listen" | "connect" => {
                o.listen = arg == "listen";
                o.addr = args.next()?;
                break;
            }
            _ => return None,
        }
    }
    let lists = matches!(o.test, Test::WriteBw | Test::SendBw);
    let fits = !lists || o.depth % o.batch == 0 && o.iters % o.batch == 0;
    let aligned = o.test != Test::WriteLat || o.size % 8 == 0;
    let delivered = !(o.spin && o.delivery == Delivery::Caller);
    (args.next().is_none() && fits && aligned && delivered).then_some(o)
}

/// One end of the connection.
struct End {
    device: Device,
    buffer: Buffer,
    send_cq: Cq,
    recv_cq: Cq,
    qp: Qp<Rc>,
    _grant: Grant,
    remote: RemoteSlice,
}

impl End {
    /// The first `size` bytes of the buffer are the inbox, the rest the outbox.
    fn new(o: &Options) -> Result<Self> {
        let device = Device::open_default()?;
        let pd = device.alloc_pd()?;
        let buffer = pd.alloc_buffer(2 * o.size)?;
        let grant = buffer.grant(..o.size, Access::REMOTE_WRITE)?;
        let queue = |entries: usize| {
            let options = CqOptions::default().delivery(o.delivery);
            device.create_cq_with(u32::try_from(entries).unwrap_or(u32::MAX), options)
        };
        let receives = o.receives();
        let (send_cq, recv_cq) = (queue(o.depth + 2)?, queue(receives + 2)?);
        let prepared = pd
            .create_qp::<Rc>(&send_cq)
            .recv_cq(&recv_cq)
            .max_send_wr(u32::try_from(o.depth + 1)?)
            .max_recv_wr(u32::try_from(receives + 1)?)
            .min_rnr_timer(RnrTimer::new(12)?)
            .build()?;
        let inbox = buffer.slice(..o.size)?;
        for _ in 0..receives {
            prepared.post_recv(Recv::new(inbox.clone()))?;
        }
        let (qp, peer): (Qp<Rc>, Peer) = if o.listen {
            prepared.accept_tcp(o.addr.as_str(), &[&grant])?
        } else {
            prepared.connect_tcp(o.addr.as_str(), &[&grant])?
        };
        let remote = peer.grant(0)?;
        Ok(Self {
            device,
            buffer,
            send_cq,
            recv_cq,
            qp,
            _grant: grant,
            remote,
        })
    }

    /// Sleeps until so many sends are done, and takes what is there.
    fn sent(&self, n: usize) -> Result<usize> {
        self.send_cq.wait_for(u32::try_from(n)?, PATIENCE)?;
        reap(&self.send_cq)
    }
}

/// Takes what is there without sleeping; how many that were. All must have succeeded.
fn reap(cq: &Cq) -> Result<usize> {
    let mut n = 0;
    while let Some(completion) = cq.poll()? {
        let _ = completion.ok()?;
        n += 1;
    }
    Ok(n)
}

impl Options {
    /// Receives that are kept posted.
    fn receives(&self) -> usize {
        match self.test {
            Test::WriteLat | Test::WriteBw => 1,
            Test::SendLat => 2,
            Test::SendBw => 512.max(2 * self.batch),
        }
    }
}

/// Half the round trips from the times at which each message was posted.
fn latency(posted: &[Instant]) -> Result<()> {
    let mut half: Vec<f64> = posted
        .windows(2)
        .filter_map(|pair| Some(pair.get(1)?.duration_since(*pair.first()?)))
        .map(|round| round.as_secs_f64() * 1e6 / 2.0)
        .collect();
    half.sort_by(f64::total_cmp);
    let at = |percent: usize| half.get((half.len() * percent / 100).min(half.len() - 1));
    match (half.is_empty(), at(50), at(99)) {
        (false, Some(median), Some(p99)) => {
            println!("{{\"median_us\": {median:.2}, \"p99_us\": {p99:.2}}}");
            Ok(())
        }
        _ => Err("at least two messages are needed".into()),
    }
}

fn rate(o: &Options, took: Duration) {
    let messages = o.iters as f64 / took.as_secs_f64();
    let mib = messages * o.size as f64 / f64::from(1 << 20);
    println!("{{\"mib_s\": {mib:.3}, \"msg_s\": {messages:.1}}}");
}

fn write_lat(o: &Options, end: &End) -> Result<()> {
    let word = o.size - 8;
    let outbox = end.buffer.slice(o.size..2 * o.size)?;
    let mut posted = Vec::with_capacity(o.iters);
    let mut done = 0;
    let arrival = |number: u64| -> Result<()> {
        let start = Instant::now();
        let mut spins = 0_u32;
        while end.buffer.load_u64(word, Ordering::Acquire)? != number {
            std::hint::spin_loop();
            spins = spins.wrapping_add(1);
            if spins % (1 << 20) == 0 && start.elapsed() > PATIENCE {
                return Err(format!("message {number} did not arrive").into());
            }
        }
        Ok(())
    };
    for i in 1..=o.iters as u64 {
        if o.listen {
            arrival(i)?;
        }
        posted.push(Instant::now());
        let bytes = i.to_ne_bytes();
        let write = if o.inline {
            Write::inline_bytes(&bytes, end.remote.slice(word as u64..)?)
        } else {
            end.buffer.store_u64(o.size + word, i, Ordering::Release)?;
            Write::new(outbox.clone(), end.remote)
        };
        if o.delivery == Delivery::Caller {
            // One call posts this write and moves the completion of the one before it into the ring.
            let mut batch = end.qp.batch();
            batch.push(write)?;
            batch.submit_and_wait(0, Duration::ZERO)?;
        } else {
            end.qp.post(write)?;
        }
        if o.delivery != Delivery::Caller {
            while reap(&end.send_cq)? == 0 {
                std::hint::spin_loop();
            }
        }
        if !o.listen {
            arrival(i)?;
        }
        if o.delivery == Delivery::Caller {
            done += reap(&end.send_cq)?;
        }
    }
    if o.delivery == Delivery::Caller {
        done += end.sent(o.iters - done)?;
        if done != o.iters {
            return Err(format!("{done} of {} writes completed", o.iters).into());
        }
    }
    if !o.listen {
        latency(&posted)?;
    }
    Ok(())
}

/// Posts all messages in lists, the last of each signalled, with so many in flight.
fn one_way(o: &Options, end: &End) -> Result<Duration> {
    let outbox = end.buffer.slice(o.size..2 * o.size)?;
    let (lists, room) = (o.iters / o.batch, o.depth / o.batch);
    let mut flying = 0;
    let start = Instant::now();
    for _ in 0..lists {
        let mut batch = end.qp.batch();
        for i in 1..=o.batch {
            if o.test == Test::WriteBw {
                batch.push(Write::new(outbox.clone(), end.remote).signaled(i == o.batch))?;
            } else {
                batch.push(Send::new(outbox.clone()).signaled(i == o.batch))?;
            }
        }
        flying += 1;
        if flying < room || o.spin {
            batch.submit()?;
        } else {
            batch.submit_and_wait(1, PATIENCE)?;
        }
        flying -= reap(&end.send_cq)?;
        while flying >= room {
            std::hint::spin_loop();
            flying -= reap(&end.send_cq)?;
        }
    }
    while flying > 0 {
        flying -= if o.spin {
            reap(&end.send_cq)?
        } else {
            end.sent(1)?
        };
    }
    Ok(start.elapsed())
}

fn write_bw(o: &Options, end: &End) -> Result<()> {
    if o.listen {
        // Nothing to do until the writer says that it was all.
        let _ = end.recv_cq.wait(10 * PATIENCE)?.ok()?;
        return Ok(());
    }
    let took = one_way(o, end)?;
    end.qp
        .post(Write::new(end.buffer.slice(o.size..o.size)?, end.remote).imm(1))?;
    end.sent(1)?;
    rate(o, took);
    Ok(())
}

fn send_lat(o: &Options, end: &End) -> Result<()> {
    let (inbox, outbox) = (
        end.buffer.slice(..o.size)?,
        end.buffer.slice(o.size..2 * o.size)?,
    );
    let mut posted = Vec::with_capacity(o.iters);
    let mut flying = 0;
    if o.listen {
        let _ = end.recv_cq.wait(PATIENCE)?.ok()?;
    }
    for i in 1..=o.iters {
        // One call per message: the next receive, the send, and the sleep for the answer.
        let last = i == o.iters && o.listen;
        let mut batch = end.device.batch();
        if !last {
            batch.push(&end.qp, Recv::new(inbox.clone()))?;
        }
        let signaled = i % 64 == 0 || i == o.iters;
        flying += usize::from(signaled);
        batch.push(&end.qp, Send::new(outbox.clone()).signaled(signaled))?;
        posted.push(Instant::now());
        if last {
            batch.submit()?;
        } else {
            batch.submit_and_wait(&end.recv_cq, 1, PATIENCE)?;
            let _ = end.recv_cq.wait(PATIENCE)?.ok()?;
        }
        flying -= reap(&end.send_cq)?;
    }
    // The last message is on its way until it is acknowledged.
    end.sent(flying)?;
    if !o.listen {
        latency(&posted)?;
    }
    Ok(())
}

fn send_bw(o: &Options, end: &End) -> Result<()> {
    if !o.listen {
        let took = one_way(o, end)?;
        rate(o, took);
        return Ok(());
    }
    let inbox = end.buffer.slice(..o.size)?;
    let mut left = o.iters;
    while left > 0 {
        end.recv_cq
            .wait_for(u32::try_from(o.batch.min(left))?, PATIENCE)?;
        let mut again = end.qp.batch();
        for _ in 0..reap(&end.recv_cq)? {
            left -= 1;
            again.push(Recv::new(inbox.clone()))?;
        }
        if !again.is_empty() {
            again.submit()?;
        }
    }
    Ok(())
}

fn run(o: &Options) -> Result<()> {
    let end = End::new(o)?;
    match o.test {
        Test::WriteLat => write_lat(o, &end),
        Test::WriteBw => write_bw(o, &end),
        Test::SendLat => send_lat(o, &end),
        Test::SendBw => send_bw(o, &end),
    }
}

fn main() -> ExitCode {
    let Some(options) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ulp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
