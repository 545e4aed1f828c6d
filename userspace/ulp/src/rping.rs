// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp rping`: server or client of librdmacm's `rping`, which connects by the RDMA connection
//! manager.
//!
//! A message has 16 bytes: address (8), key and size (4 each) in network order. The client sends
//! the address of its source. The server reads the source and sends a message. The client sends the
//! address of its sink. The server writes the data there and sends a message.

use crate::args::{address, size_in, DeviceArg};
use crate::listen;
use crate::output::{interrupts, FormatArgs};
use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use rust_ulp::grant::GrantOptions;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Read, Recv, Send, Write};
use rust_ulp::{cm, Access, Buffer, Cq, Device, Error, Opcode, Qp, RemoteSlice, Status};
use schemars::JsonSchema;
use serde::Serialize;
use std::net::ToSocketAddrs;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const INFO: usize = 16;
/// The largest size that rping takes.
const MAX: usize = 64 * 1024;

/// Arguments of `ulp rping`: those of `rping`.
#[derive(Debug, Args)]
pub struct Rping {
    /// Host of the server [default: be the server, of one client]
    host: Option<String>,
    /// Address that the server listens at
    #[arg(
        short,
        long,
        visible_alias = "listen",
        value_name = "ADDRESS",
        default_value = "0.0.0.0"
    )]
    addr: String,
    /// Port of the connection manager
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    #[command(flatten)]
    device: DeviceArg,
    /// Pings that the client sends
    #[arg(short = 'C', long, default_value_t = 10)]
    count: u64,
    /// Bytes per ping of the client, 17 to 65535
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "100", value_parser = size_in(17..=65_535, "17 and 65535 bytes"))]
    size: u32,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Role {
    Client,
    Server,
}

/// The output of `ulp rping`.
#[derive(Serialize, JsonSchema)]
pub struct Summary {
    role: Role,
    pings: u64,
    seconds: f64,
}

/// One end. Its memory has the messages at the start, and the data behind them.
struct End<'a> {
    qp: Qp<Rc>,
    cq: Cq,
    memory: Buffer,
    stop: &'a AtomicBool,
}

const DATA: usize = 64;

impl End<'_> {
    /// Waits for a request of this end, and records whether a message arrived meanwhile.
    fn finish(&self, what: Opcode, arrived: &mut bool) -> Result<()> {
        loop {
            let done = listen::completion(&self.cq, self.stop)?.ok()?;
            if done.opcode == Opcode::Recv {
                ensure!(
                    done.byte_len as usize == INFO,
                    "a message of {} bytes, not {INFO}",
                    done.byte_len
                );
                *arrived = true;
            } else {
                ensure!(
                    done.opcode == what,
                    "{:?} completed, not {what:?}",
                    done.opcode
                );
                return Ok(());
            }
        }
    }

    /// Waits for a message of the peer; returns [`None`] if the peer disconnected.
    fn message(&self, arrived: &mut bool) -> Result<Option<RemoteSlice>> {
        if !*arrived {
            let done = listen::completion(&self.cq, self.stop)?;
            if done.status == Status::Flushed {
                return Ok(None);
            }
            let done = done.ok()?;
            ensure!(
                done.opcode == Opcode::Recv && done.byte_len as usize == INFO,
                "the peer sent something other than a message of rping"
            );
        }
        *arrived = false;
        let bytes = self.memory.to_vec(INFO..2 * INFO)?;
        self.post_recv()?;
        let number = |from: usize, to: usize| {
            let bytes = bytes.get(from..to).unwrap_or_default();
            bytes
                .iter()
                .fold(0u64, |n, byte| (n << 8) | u64::from(*byte))
        };
        // Address (8 bytes), rkey (4), length (4).
        Ok(Some(RemoteSlice::new(
            number(0, 8),
            number(12, 16),
            number(8, 12) as u32,
        )?))
    }

    fn post_recv(&self) -> Result<()> {
        Ok(self
            .qp
            .post_recv(Recv::new(self.memory.slice(INFO..2 * INFO)?))?)
    }

    fn send(&self, info: &RemoteSlice, arrived: &mut bool) -> Result<()> {
        let mut bytes = info.addr().to_be_bytes().to_vec();
        bytes.extend(info.rkey().to_be_bytes());
        bytes.extend(u32::try_from(info.len())?.to_be_bytes());
        self.qp.post(Send::inline_bytes(&bytes))?;
        self.finish(Opcode::Send, arrived)
    }
}

impl Rping {
    /// Serves one client. Returns the number of pings, and when the client connected.
    fn server(&self, device: &Device, stop: &AtomicBool) -> Result<(u64, Instant)> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let memory = pd.alloc_buffer(DATA + MAX)?;
        let addr = address(&self.addr, self.port)
            .to_socket_addrs()
            .context("the address to listen at")?
            .next()
            .context("no such address")?;
        let listener = cm::Listener::bind(device, addr, 1)?;
        message!("listening at {}", listener.local_addr());
        let request = listen::request(&listener, stop)?;
        let begin = Instant::now();
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::new(memory.slice(INFO..2 * INFO)?))?;
        let connection = request.accept(qp, &cm::AcceptOptions::new())?;
        let end = End {
            qp: connection.qp().clone(),
            cq,
            memory,
            stop,
        };
        let none = RemoteSlice::new(0, 0, 0)?;
        let (mut pings, mut arrived) = (0, false);
        loop {
            let Some(source) = end.message(&mut arrived)? else {
                return Ok((pings, begin));
            };
            let len = usize::try_from(source.len())?;
            ensure!(len <= MAX, "a source of {len} bytes");
            end.qp
                .post(Read::new(source, end.memory.slice(DATA..DATA + len)?))?;
            end.finish(Opcode::Read, &mut arrived)?;
            end.send(&none, &mut arrived)?;
            let Some(sink) = end.message(&mut arrived)? else {
                bail!("the client disconnected in the middle of a ping")
            };
            ensure!(
                sink.len() >= len as u64,
                "a sink of {} bytes for {len}",
                sink.len()
            );
            end.qp
                .post(Write::new(end.memory.slice(DATA..DATA + len)?, sink))?;
            end.finish(Opcode::Write, &mut arrived)?;
            pings += 1;
            if let Err(error) = end.send(&none, &mut arrived) {
                // A client disconnects right after its last ping, so its acknowledgement may be
                // lost.
                let flushed = matches!(error.downcast_ref(), Some(Error::Completion(e)) if e.status == Status::Flushed);
                ensure!(flushed, error);
                return Ok((pings, begin));
            }
        }
    }

    /// Pings a server. Returns the number of pings, and when it began to connect.
    fn client(&self, host: &str, device: &Device, stop: &AtomicBool) -> Result<(u64, Instant)> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let size = self.size as usize;
        let memory = pd.alloc_buffer(DATA + 2 * MAX)?;
        let (source, sink) = (DATA, DATA + MAX);
        let from = memory.grant_with(
            source..source + size,
            Access::REMOTE_READ,
            GrantOptions::new(),
        )?;
        let to = memory.grant_with(sink..sink + size, Access::REMOTE_WRITE, GrantOptions::new())?;
        let addr = address(host, self.port)
            .to_socket_addrs()?
            .next()
            .context("no such host")?;
        let begin = Instant::now();
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::new(memory.slice(INFO..2 * INFO)?))?;
        let connection = qp.connect_cm(addr, &cm::ConnectOptions::new())?;
        message!(
            "connected from {} to {}",
            connection.local_addr(),
            connection.peer_addr()
        );
        let end = End {
            qp: connection.qp().clone(),
            cq,
            memory,
            stop,
        };
        let mut arrived = false;
        let hung_up = "the server disconnected";
        for ping in 0..self.count {
            let mut data = format!("rdma-ping-{ping}: ").into_bytes();
            let text = (0..).map(|n| b'A' + ((ping + n) % 58) as u8);
            data.extend(text.take(size.saturating_sub(data.len() + 1)));
            data.resize(size, 0);
            end.memory.write_at(source, &data)?;
            end.memory.fill(sink..sink + size, 0)?;
            end.send(&from.remote(), &mut arrived)?;
            end.message(&mut arrived)?.context(hung_up)?;
            end.send(&to.remote(), &mut arrived)?;
            end.message(&mut arrived)?.context(hung_up)?;
            ensure!(
                end.memory.to_vec(sink..sink + size)? == data,
                "ping {ping} came back changed"
            );
        }
        connection.disconnect()?;
        Ok((self.count, begin))
    }

    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let device = self.device.open()?;
        let (role, (pings, begin)) = match &self.host {
            Some(host) => (Role::Client, self.client(host, &device, &stop)?),
            None => (Role::Server, self.server(&device, &stop)?),
        };
        let seconds = begin.elapsed().as_secs_f64();
        let summary = Summary {
            role,
            pings,
            seconds,
        };
        self.format.print(&summary, || match role {
            Role::Client => format!("client: {pings} pings, each came back unchanged"),
            Role::Server => format!("server: {pings} pings, each read and written back"),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
