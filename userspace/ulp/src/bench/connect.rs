// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures connecting by the RDMA connection manager, up to the first completed write.
//!
//! The open device, its protection domain and a completion queue exist before the measurement. With
//! /dev/rust_ulp, the client creates a buffer and a queue pair, connects, waits for the connection,
//! and writes 8 bytes. With librdmacm, it registers fresh pages, creates an identifier, resolves
//! address and route, creates a queue pair, connects, and writes; it fetches and acknowledges an
//! event after each step. Both sleep until the completion. The server uses the same back end, creates its queue
//! pair before the request, and reports before each round that it is idle.

use super::call;
use super::client::{repeat, Times};
use super::config::Backend;
use super::end::{DeviceOptions, Run};
use super::stats::Row;
#[cfg(feature = "verbs")]
use super::verbs::connect::{client, Theirs};
use super::wire::{Message, Wire};
use anyhow::{bail, ensure, Context as _, Result};
use rust_ulp::cm::{AcceptOptions, ConnectOptions, Connection, Listener};
use rust_ulp::error::ErrorKind;
use rust_ulp::events::{EventKind, Events};
use rust_ulp::qp::Rc;
use rust_ulp::{Access, Cq, Grant, Pd, PreparedQp, RemoteSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The steps of a connection; the last is their sum.
const STEPS: &[&str] = &["buffer", "connect", "write", "total"];
/// The size of the write and of its buffer.
pub const BYTES: usize = 8;
pub const BUFFER: usize = 4096;

pub fn run(run: Run<'_>, wire: &mut Wire, rows: &mut Vec<Row>) -> Result<()> {
    let (device, timeout) = (run.device, run.config.timeout());
    let peer = wire.peer_addr()?;
    wire.send(&Message::Row {
        size: BYTES as u32,
        ends: Vec::new(),
    })?;
    let (port, memory) = expect!(wire, Message::Listening { port, memory } => (port, memory));
    let target = (at_port(peer, port), memory);
    let mut one: Box<dyn FnMut() -> Result<Vec<Duration>>> = match run.config.backend {
        // Config::check() leaves io_uring out.
        Backend::Call | Backend::Uring => Box::new(ours(device, target, timeout)?),
        #[cfg(feature = "verbs")]
        Backend::Verbs => Box::new(client(device, target, timeout)?),
        #[cfg(not(feature = "verbs"))]
        Backend::Verbs => return super::without_verbs(),
    };
    repeat(STEPS, run, BYTES as u32, rows, || {
        wire.send(&Message::Alive)?;
        expect!(wire, Message::Alive => ());
        one()
    })?;
    wire.send(&Message::Bye)
}

/// Returns an address with another port: that of IPv4 for an IPv4-mapped one, and with its interface
/// for one of a link.
fn at_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(_) => {
            addr.set_port(port);
            addr
        }
    }
}

/// The address of the server, and its buffer.
pub type Target = (SocketAddr, RemoteSlice);

fn ours(
    device: &DeviceOptions,
    (addr, remote): Target,
    timeout: Duration,
) -> Result<impl FnMut() -> Result<Vec<Duration>>> {
    let source = device.source;
    let (device, _) = call::open(device)?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(4)?);
    let mut options = ConnectOptions::new().timeout(timeout);
    if let Some(ip) = source {
        options = options.source(SocketAddr::new(ip, 0));
    }
    Ok(move || {
        let mut times = Times::begin();
        let buffer = pd.alloc_buffer(BUFFER)?;
        times.step();
        let builder = pd.qp_builder::<Rc>(&cq).max_send_wr(4);
        let qp = builder.max_recv_wr(4).build()?;
        let connection = qp
            .connect_cm(addr, &options)
            .map_err(|error| anyhow::anyhow!("connecting to {addr}: {}", error.error()))?;
        times.step();
        let write = rust_ulp::wr::Write::new(buffer.slice(..BYTES)?, remote.slice(..BYTES as u64)?);
        let mut batch = connection.qp().batch();
        batch.push(write)?;
        batch.submit_and_wait(1, timeout)?;
        drop(batch);
        cq.wait(timeout)?.check()?;
        let times = times.end();
        connection.disconnect()?;
        Ok(times)
    })
}

/// Accepts connections until the client is done.
pub fn serve(run: Run<'_>, wire: &mut Wire, local: SocketAddr) -> Result<()> {
    let (device, timeout) = (run.device, run.config.timeout());
    expect!(wire, Message::Row { .. } => ());
    let addr = at_port(local, 0);
    let mut server: Box<dyn Server> = match run.config.peer_backend {
        // Config::check() leaves io_uring out.
        Backend::Call | Backend::Uring => Box::new(Ours::new(device, addr, timeout)?),
        #[cfg(feature = "verbs")]
        Backend::Verbs => Box::new(Theirs::new(device, addr, timeout)?),
        #[cfg(not(feature = "verbs"))]
        Backend::Verbs => return super::without_verbs(),
    };
    let (port, memory) = server.target();
    wire.send(&Message::Listening { port, memory })?;
    // A message that came before the end of the previous connection was seen.
    let mut early = None;
    loop {
        let next = match early.take() {
            Some(message) => message,
            None => wire.receive()?,
        };
        match next {
            Message::Alive => {}
            Message::Bye => return Ok(()),
            other => bail!("the client said {other:?}"),
        }
        server.prepare()?;
        wire.send(&Message::Alive)?;
        let began = Instant::now();
        let mut go_on = || -> Result<()> {
            if early.is_none() {
                early = wire.receive_within(Duration::from_millis(1))?;
            }
            let late = began.elapsed() > timeout;
            ensure!(!late, "the connection did not end");
            ensure!(!run.stop.load(Ordering::Relaxed), "interrupted");
            Ok(())
        };
        while !server.accept()? {
            go_on()?;
        }
        while !server.is_over()? {
            go_on()?;
        }
    }
}

/// The interval at which a server that waits checks whether the run is over.
pub const SLICE: Duration = Duration::from_millis(200);

/// A server that accepts one connection at a time.
pub trait Server {
    /// Returns its port and its buffer.
    fn target(&self) -> (u16, RemoteSlice);
    /// Creates the objects of the next connection.
    fn prepare(&mut self) -> Result<()>;
    /// Accepts a connection; returns false if there was no request.
    fn accept(&mut self) -> Result<bool>;
    /// Returns whether the peer has disconnected; then this end disconnects, too.
    fn is_over(&mut self) -> Result<bool>;
}

struct Ours {
    listener: Listener,
    events: Events,
    connection: Option<Connection>,
    next: Option<PreparedQp<Rc>>,
    options: AcceptOptions,
    cq: Cq,
    pd: Pd,
    grant: Grant,
}

impl Ours {
    fn new(options: &DeviceOptions, addr: SocketAddr, timeout: Duration) -> Result<Self> {
        let (device, _) = call::open(options)?;
        let pd = device.alloc_pd()?;
        Ok(Self {
            listener: Listener::bind(&device, addr, 16)?,
            events: device.events(),
            connection: None,
            next: None,
            options: AcceptOptions::new().timeout(timeout),
            cq: device.create_cq(16)?,
            grant: pd.alloc_buffer(BUFFER)?.grant(.., Access::REMOTE_WRITE)?,
            pd,
        })
    }
}

impl Server for Ours {
    fn target(&self) -> (u16, RemoteSlice) {
        (self.listener.local_addr().port(), self.grant.remote())
    }

    fn prepare(&mut self) -> Result<()> {
        let builder = self.pd.qp_builder::<Rc>(&self.cq);
        let builder = builder.max_send_wr(1).max_recv_wr(1);
        self.next = Some(builder.access(Access::REMOTE_WRITE).build()?);
        Ok(())
    }

    fn accept(&mut self) -> Result<bool> {
        let request = match self.listener.next_request(SLICE) {
            Ok(request) => request,
            Err(rust_ulp::Error::Timeout { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let qp = self.next.take().context("no queue pair is prepared")?;
        match request.accept(qp, &self.options) {
            Ok(connection) => self.connection = Some(connection),
            // The client wrote and disconnected, and its last message of the set-up (RTU) was lost.
            Err(error) if error.error().kind() == ErrorKind::ConnectionLost => {}
            Err(error) => bail!("accepting: {}", error.error()),
        }
        Ok(true)
    }

    fn is_over(&mut self) -> Result<bool> {
        let Some(connection) = &self.connection else {
            return Ok(true);
        };
        let event = match self.events.wait(SLICE) {
            Ok(event) => event,
            Err(rust_ulp::Error::Timeout { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let over = event.kind == EventKind::Disconnected && event.is_about(connection);
        if over {
            self.connection = None;
        }
        Ok(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_link_keeps_its_interface() {
        for (addr, want) in [
            ("[fe80::1%3]:7", "[fe80::1%3]:8"),
            ("[fd09::1]:7", "[fd09::1]:8"),
            ("[::ffff:10.9.0.1]:7", "10.9.0.1:8"),
            ("10.9.0.1:7", "10.9.0.1:8"),
        ] {
            let [addr, want]: [SocketAddr; 2] = [addr, want].map(|addr| addr.parse().unwrap());
            assert_eq!(at_port(addr, 8), want);
        }
    }
}
