// SPDX-License-Identifier: MIT OR Apache-2.0

//! From nothing to the first completed write, by the RDMA connection manager: CONNECT against
//! librdmacm's sequence.
//!
//! Not counted is what both have before: the open device, memory, completion queue. Ours makes a queue
//! pair, connects by one call, and writes 8 bytes; librdmacm makes an identifier, resolves address and
//! route, makes a queue pair, connects, and writes, with an event to fetch and to acknowledge after each
//! step. Both sleep for the completion. The server's listener is that of /dev/rust_ulp for both.

use super::call;
use super::client::{Rounds, Steps};
use super::config::{Backend, Config};
use super::end::DeviceOptions;
use super::progress::Progress;
use super::stats::Row;
use super::verbs;
use super::wire::{EndAddress, Message, Wire};
use anyhow::{bail, ensure, Context as _, Result};
use rust_ulp::cm::{AcceptOptions, ConnectOptions, Listener};
use rust_ulp::{Access, Device, PreparedQp, Rc};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ulp_verbs::{cm, Memory, VerbsCq};

/// What a connection has; the last is all of it together.
const STEPS: &[&str] = &["address", "route", "connect", "write", "total"];
const BYTES: usize = 8;

pub fn run(
    config: &Config,
    device: &DeviceOptions,
    wire: &mut Wire,
    stop: &Arc<AtomicBool>,
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let peer = wire.peer_addr()?;
    wire.send(&Message::Row {
        size: BYTES as u32,
        ends: Vec::new(),
    })?;
    let (port, end) = match wire.receive()? {
        Message::Listening { port, end } => (port, end),
        other => bail!("the server said {other:?}"),
    };
    let target = Target {
        addr: SocketAddr::new(peer.ip().to_canonical(), port),
        end,
    };
    progress.begin(config, BYTES as u32);
    let mut steps = Steps::new(STEPS)?;
    let mut rounds = Rounds::new(config);
    let result = (|| -> Result<()> {
        let mut one: Box<dyn FnMut() -> Result<[Duration; 5]>> = match config.backend {
            // Config::check() leaves io_uring out.
            Backend::Call | Backend::Uring => Box::new(ours(device, target, config.timeout())?),
            Backend::Verbs => Box::new(theirs(device, target, config.timeout())?),
        };
        let mut said = Instant::now();
        while let Some(counts) = rounds.next(stop) {
            let times = one()?;
            if counts {
                steps.record(&times);
            }
            if said.elapsed() > Duration::from_millis(200) {
                progress.show(steps.count());
                wire.send(&Message::Alive)?;
                said = Instant::now();
            }
        }
        Ok(())
    })();
    progress.end();
    if steps.count() != 0 {
        steps.rows(config, BYTES as u32, stop.load(Ordering::Relaxed), rows);
    }
    result?;
    wire.send(&Message::Bye)
}

/// Where to connect to, and what may be written there.
struct Target {
    addr: SocketAddr,
    end: EndAddress,
}

fn ours(
    device: &DeviceOptions,
    target: Target,
    timeout: Duration,
) -> Result<impl FnMut() -> Result<[Duration; 5]>> {
    let (device, _) = call::open(device)?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
    let buffer = pd.alloc_buffer(BYTES)?;
    let remote = rust_ulp::RemoteSlice::new(target.end.addr, target.end.len, target.end.rkey)?;
    let options = ConnectOptions::new().timeout(timeout);
    Ok(move || {
        let start = Instant::now();
        let qp = pd
            .create_qp::<Rc>(&cq)
            .max_send_wr(4)
            .max_recv_wr(4)
            .build()?;
        let connection = qp
            .connect_cm(target.addr, &options)
            .map_err(|error| anyhow::anyhow!("connecting to {}: {}", target.addr, error.error()))?;
        let connected = start.elapsed();
        let write = rust_ulp::Write::new(buffer.slice(..)?, remote.slice(..BYTES as u64)?);
        connection.qp().post(write)?;
        let _ = cq.wait(timeout)?.ok()?;
        let total = start.elapsed();
        let timings = connection.timings().context("a connection without times")?;
        connection.disconnect()?;
        let routed = timings.routed;
        Ok([
            timings.resolved,
            routed.saturating_sub(timings.resolved),
            connected.saturating_sub(routed),
            total.saturating_sub(connected),
            total,
        ])
    })
}

fn theirs(
    device: &DeviceOptions,
    target: Target,
    timeout: Duration,
) -> Result<impl FnMut() -> Result<[Duration; 5]>> {
    let chosen = verbs::open(device)?;
    let memory = Memory::new(&chosen.context, BYTES)?;
    let cq = VerbsCq::new(&chosen.context, 16)?;
    let channel = cm::Channel::new()?;
    let remote = (target.end.addr, target.end.rkey);
    Ok(move || {
        let start = Instant::now();
        let mut id = cm::Id::new(&channel)?;
        id.resolve_addr(target.addr, timeout)?;
        let resolved = start.elapsed();
        id.resolve_route(timeout)?;
        let routed = start.elapsed();
        id.create_qp(&memory, &cq)?;
        id.connect(timeout)?;
        let connected = start.elapsed();
        id.write(remote, BYTES as u32)?;
        let mut status = None;
        while status.is_none() {
            if cq.poll(1, |done| status = Some(done.status))? != 0 {
                break;
            }
            cq.arm()?;
            if cq.poll(1, |done| status = Some(done.status))? == 0 {
                // Nobody else makes events here; a write that fails makes one, too.
                cq.wait_event()?;
            }
        }
        let total = start.elapsed();
        ensure!(
            status == Some(0),
            "the write failed: {}",
            ulp_verbs::status_text(status.unwrap_or(5))
        );
        id.disconnect(timeout)?;
        // What the end of the queue pair flushed.
        while cq.poll(16, |_| {})? != 0 {}
        Ok([
            resolved,
            routed.saturating_sub(resolved),
            connected.saturating_sub(routed),
            total.saturating_sub(connected),
            total,
        ])
    })
}

/// Takes connections until the client says that it was all.
pub fn serve(
    config: &Config,
    device: &DeviceOptions,
    wire: &mut Wire,
    local: SocketAddr,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    match wire.receive()? {
        Message::Row { .. } => {}
        other => bail!("the client said {other:?}"),
    }
    let (device, _) = call::open(device).context("connections are accepted by /dev/rust_ulp")?;
    let pd = device.alloc_pd()?;
    let buffer = pd.alloc_buffer(4096)?;
    let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
    let listener = Listener::bind(&device, SocketAddr::new(local.ip().to_canonical(), 0), 16)?;
    let remote = grant.remote();
    wire.send(&Message::Listening {
        port: listener.local_addr().port(),
        end: EndAddress {
            qps: Vec::new(),
            addr: remote.addr(),
            len: remote.len(),
            rkey: remote.rkey(),
        },
    })?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&device, &pd, &listener, &over, config.timeout()));
        let result = (|| {
            let (mut silent, tick) = (Duration::ZERO, Duration::from_millis(100));
            while !accepting.is_finished() {
                match wire.receive_within(tick)? {
                    None => silent += tick,
                    Some(Message::Alive) => silent = Duration::ZERO,
                    Some(Message::Bye) => return Ok(()),
                    Some(other) => bail!("the client said {other:?}"),
                }
                ensure!(
                    silent < config.timeout(),
                    "the client said nothing for {silent:?}"
                );
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            }
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        match accepting.join() {
            // Why it accepts no more is the reason of whatever else went wrong.
            Ok(accepted) => accepted.and(result),
            Err(_) => bail!("a thread of the server panicked"),
        }
    })
}

fn accept(
    device: &Device,
    pd: &rust_ulp::Pd,
    listener: &Listener,
    over: &AtomicBool,
    timeout: Duration,
) -> Result<()> {
    let cq = device.create_cq(16)?;
    let options = AcceptOptions::new().timeout(timeout);
    // Made before they are needed, so that this is not what is measured.
    let prepare = || -> Result<PreparedQp<Rc>> {
        let builder = pd.create_qp::<Rc>(&cq).max_send_wr(1).max_recv_wr(1);
        Ok(builder.access(Access::REMOTE_WRITE).build()?)
    };
    let mut next = Some(prepare()?);
    let mut connections = VecDeque::new();
    while !over.load(Ordering::Relaxed) {
        let request = match listener.next_request(Duration::from_millis(200)) {
            Ok(request) => request,
            Err(rust_ulp::Error::Timeout { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let qp = match next.take() {
            Some(qp) => qp,
            None => prepare()?,
        };
        match request.accept(qp, &options) {
            Ok(connection) => connections.push_back(connection),
            // The client had written and hung up before accept() looked what had become of it.
            Err(error)
                if matches!(error.error(), rust_ulp::Error::InvalidTransition { .. })
                    || error.error().errno() == Some(libc::ECONNRESET) => {}
            Err(error) => bail!("accepting: {}", error.error()),
        }
        next = Some(prepare()?);
        // The client has one connection at a time.
        if connections.len() > 2 {
            connections.pop_front();
        }
    }
    Ok(())
}
