// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp pingpong`: a peer of `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`, or of
//! itself.
//!
//! The two exchange their addresses by TCP, as `LID:QPN:PSN:GID` in hexadecimal digits and a NUL,
//! 52 bytes. The client sends its address first, and answers the server's with `done` and a NUL.
//! The client also sends the first message; each end answers a message with a message.

use crate::args::{address, size_u32, DeviceArg};
use crate::output::{interrupts, FormatArgs};
use anyhow::{bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use rust_ulp::{
    Buffer, Completion, Connected, Cq, Endpoint, Error, Gid, Grh, Mtu, Opcode, PreparedQp, Qp,
    QpBuilder, Rc, Recv, Send, SendTo, Transport, Uc, Ud,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LINE: usize = 52;
/// The stride of the bytes that the stock programs verify with -c: the first byte of each page.
const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Rc,
    Uc,
    Ud,
}

/// Arguments of `ulp pingpong`: those of `ibv_*_pingpong`.
#[derive(Debug, Args)]
pub struct Pingpong {
    /// Transport
    #[arg(value_enum)]
    kind: Kind,
    /// Host of the server [default: be the server]
    host: Option<String>,
    /// TCP port of the server
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
    #[command(flatten)]
    device: DeviceArg,
    /// Index of the GID [default: RoCE v2, IPv4]
    #[arg(short = 'g', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Bytes per message, at most 1MiB; for ud at most the MTU [default: 4096; for ud 1024]
    #[arg(short, long, value_parser = message_size)]
    size: Option<u32>,
    /// Path MTU in bytes
    #[arg(short, long, default_value_t = 1024)]
    mtu: u32,
    /// Receives that are kept posted
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    rx_depth: u32,
    /// Messages in each direction
    #[arg(short = 'n', long, default_value_t = 1000)]
    iters: u64,
    /// Verify the contents of the messages
    #[arg(short = 'c', long)]
    check: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// The output of `ulp pingpong`.
#[derive(Serialize, JsonSchema)]
pub struct Summary {
    messages: u64,
    /// The bytes of both directions.
    bytes: u64,
    seconds: f64,
    /// Messages with wrong contents; counted with `--check`.
    invalid: u64,
}

impl Summary {
    /// Formats the summary as the stock programs do.
    fn text(&self) -> String {
        let Self {
            messages,
            bytes,
            seconds,
            ..
        } = *self;
        let (rate, each) = (
            bytes as f64 * 8e-6 / seconds,
            seconds * 1e6 / messages.max(1) as f64,
        );
        format!(
            "{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec\n\
             {messages} iters in {seconds:.2} seconds = {each:.2} usec/iter"
        )
    }
}

/// Parses the size of a message.
fn message_size(text: &str) -> std::result::Result<u32, String> {
    match size_u32(text)? {
        size @ 1..=0x10_0000 => Ok(size),
        _ => Err("the size must be between 1 byte and 1MiB".to_owned()),
    }
}

fn line(end: &Endpoint) -> Vec<u8> {
    let gid = u128::from_be_bytes(end.gid.0);
    let line = format!(
        "{:04x}:{:06x}:{:06x}:{gid:032x}\0",
        end.lid, end.qp_num, end.psn
    );
    line.into_bytes()
}

fn parse(line: &[u8], mtu: Mtu) -> Option<Endpoint> {
    let text = std::str::from_utf8(line.split(|byte| *byte == 0).next()?).ok()?;
    let mut words = text.split(':');
    let mut number = || u32::from_str_radix(words.next()?, 16).ok();
    let (lid, qp_num, psn) = (number()?, number()?, number()?);
    let digits = words.next()?;
    if digits.len() != 32 || qp_num > 0xff_ffff || psn > 0xff_ffff {
        return None;
    }
    let gid = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
    let end = Endpoint::new(qp_num, psn, Gid(gid), mtu);
    Some(end.lid(u16::try_from(lid).ok()?))
}

/// A queue pair that sends messages to one peer.
trait Player {
    fn send(&self, buffer: &Buffer, len: usize) -> rust_ulp::Result<()>;
    fn post_recv(&self, recv: Recv<'_>) -> rust_ulp::Result<()>;
}

impl<T: Connected> Player for Qp<T>
where
    for<'a> Send<'a>: rust_ulp::Post<'a, T>,
{
    fn send(&self, buffer: &Buffer, len: usize) -> rust_ulp::Result<()> {
        self.post(Send::new(buffer.slice(..len)?))
    }

    fn post_recv(&self, recv: Recv<'_>) -> rust_ulp::Result<()> {
        Qp::post_recv(self, recv)
    }
}

struct Datagrams {
    qp: Qp<Ud>,
    to: rust_ulp::Destination,
}

impl Player for Datagrams {
    fn send(&self, buffer: &Buffer, len: usize) -> rust_ulp::Result<()> {
        self.qp.post(SendTo::new(buffer.slice(..len)?, &self.to))
    }

    fn post_recv(&self, recv: Recv<'_>) -> rust_ulp::Result<()> {
        self.qp.post_recv(recv)
    }
}

/// The memory of one end: the message to send, then the receives.
struct Memory {
    buffer: Buffer,
    len: usize,
    /// Bytes of the global routing header before a message.
    head: usize,
    depth: usize,
}

impl Memory {
    fn new(pd: &rust_ulp::Pd, len: usize, head: usize, depth: usize) -> Result<Self> {
        let buffer = pd.alloc_buffer((len + head) * (depth + 1))?;
        buffer.fill(..len, 0x7b)?;
        for at in (0..len).step_by(PAGE) {
            buffer.fill(at..at + 1, 0)?;
        }
        Ok(Self {
            buffer,
            len,
            head,
            depth,
        })
    }

    fn at(&self, slot: usize) -> usize {
        (self.len + self.head) * (slot + 1)
    }

    fn recv(&self, slot: usize) -> rust_ulp::Result<Recv<'static>> {
        let at = self.at(slot);
        Ok(Recv::new(self.buffer.slice(at..at + self.head + self.len)?).wr_id(slot as u64))
    }

    /// Returns whether a message is as the stock programs send it.
    fn is_good(&self, done: &Completion) -> Result<bool> {
        let at = self.at(usize::try_from(done.wr_id)?) + self.head;
        let data = self.buffer.to_vec(at..at + self.len)?;
        let first = data.iter().step_by(PAGE).all(|byte| *byte == 0);
        Ok(first && done.byte_len as usize == self.len + self.head)
    }
}

/// The TCP connection, and whether this end sends first: the client does.
struct Meeting {
    tcp: TcpStream,
    first: bool,
}

impl Pingpong {
    fn meet(&self, stop: &AtomicBool) -> Result<Meeting> {
        if let Some(host) = &self.host {
            let host = address(host, self.port);
            let tcp = TcpStream::connect(&host)
                .with_context(|| format!("{host}: does ibv_*_pingpong listen there?"))?;
            tcp.set_read_timeout(Some(PATIENCE))?;
            return Ok(Meeting { tcp, first: true });
        }
        let listener = TcpListener::bind(("::", self.port)).context("listening")?;
        listener.set_nonblocking(true)?;
        message!("listening at {}", listener.local_addr()?);
        loop {
            match listener.accept() {
                Ok((tcp, _)) => {
                    tcp.set_nonblocking(false)?;
                    tcp.set_read_timeout(Some(PATIENCE))?;
                    return Ok(Meeting { tcp, first: false });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Exchanges the addresses, and calls `connect` with the peer's address at the right time.
    fn exchange<P>(
        &self,
        meeting: &mut Meeting,
        here: &Endpoint,
        connect: impl FnOnce(Endpoint) -> Result<P>,
    ) -> Result<P> {
        let mut theirs = [0; LINE];
        if meeting.first {
            meeting.tcp.write_all(&line(here))?;
        }
        meeting
            .tcp
            .read_exact(&mut theirs)
            .context("the peer closed the connection")?;
        let peer =
            parse(&theirs, Mtu::at_most(self.mtu)).context("the peer sent an invalid address")?;
        message!(
            "local:  QPN {:#08x}, PSN {:#08x}, GID {}",
            here.qp_num,
            here.psn,
            here.gid
        );
        message!(
            "remote: QPN {:#08x}, PSN {:#08x}, GID {}",
            peer.qp_num,
            peer.psn,
            peer.gid
        );
        let player = connect(peer)?;
        if meeting.first {
            meeting.tcp.write_all(b"done\0")?;
        } else {
            meeting.tcp.write_all(&line(here))?;
            let mut done = [0; 5];
            meeting
                .tcp
                .read_exact(&mut done)
                .context("the peer closed the connection")?;
        }
        Ok(player)
    }

    fn build<T: Transport>(&self, builder: QpBuilder<T>) -> rust_ulp::Result<PreparedQp<T>> {
        match self.gid_index {
            Some(index) => builder.gid(1, index).build(),
            None => builder.build(),
        }
    }

    fn play(
        &self,
        player: &dyn Player,
        memory: &Memory,
        cq: &Cq,
        first: bool,
        stop: &AtomicBool,
    ) -> Result<(u64, u64)> {
        let (mut sent, mut received, mut wrong) = (0, 0, 0);
        let (mut sending, mut due) = (false, u64::from(first));
        let mut last = Instant::now();
        while sent < self.iters || received < self.iters {
            if due > 0 && !sending && sent < self.iters {
                player.send(&memory.buffer, memory.len)?;
                (sending, due) = (true, due - 1);
            }
            let done = match cq.wait(Duration::from_millis(200)) {
                Ok(done) => done.ok()?,
                Err(Error::Timeout { .. }) => {
                    ensure!(
                        !stop.load(Ordering::Relaxed),
                        "interrupted after {received} messages"
                    );
                    ensure!(
                        last.elapsed() < PATIENCE,
                        "no more messages arrive, after {received} messages"
                    );
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            last = Instant::now();
            if done.opcode == Opcode::Recv {
                if self.check && !memory.is_good(&done)? {
                    wrong += 1;
                }
                received += 1;
                due += 1;
                player.post_recv(memory.recv(usize::try_from(done.wr_id)?)?)?;
            } else {
                sent += 1;
                sending = false;
            }
        }
        Ok((received, wrong))
    }

    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let device = self.device.open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2048)?);
        let default = if self.kind == Kind::Ud { 1024 } else { 4096 };
        let len = self.size.unwrap_or(default) as usize;
        let depth = self.rx_depth;
        let head = if self.kind == Kind::Ud { Grh::LEN } else { 0 };
        let memory = Memory::new(&pd, len, head, depth as usize)?;
        let receives = || (0..memory.depth).map(|slot| memory.recv(slot));
        let mut meeting = self.meet(&stop)?;
        let mtu = Mtu::at_most(self.mtu);
        let player: Box<dyn Player> = match self.kind {
            Kind::Rc => {
                let qp = self.build(pd.create_qp::<Rc>(&cq).max_recv_wr(depth).mtu(mtu))?;
                receives().try_for_each(|recv| qp.post_recv(recv?))?;
                let here = qp.endpoint();
                Box::new(self.exchange(&mut meeting, &here, |peer| Ok(qp.connect(peer)?))?)
            }
            Kind::Uc => {
                let qp = self.build(pd.create_qp::<Uc>(&cq).max_recv_wr(depth).mtu(mtu))?;
                receives().try_for_each(|recv| qp.post_recv(recv?))?;
                let here = qp.endpoint();
                Box::new(self.exchange(&mut meeting, &here, |peer| Ok(qp.connect(peer)?))?)
            }
            Kind::Ud => {
                let qp = self.build(pd.create_qp::<Ud>(&cq).max_recv_wr(depth))?;
                receives().try_for_each(|recv| qp.post_recv(recv?))?;
                let here = qp.endpoint();
                Box::new(self.exchange(&mut meeting, &here, |peer| {
                    let qp = qp.ready()?;
                    let to = qp.address(&peer)?.queue_pair(peer.qp_num, Ud::DEFAULT_QKEY);
                    Ok(Datagrams { qp, to })
                })?)
            }
        };
        let begin = Instant::now();
        let (received, wrong) = self.play(player.as_ref(), &memory, &cq, meeting.first, &stop)?;
        let seconds = begin.elapsed().as_secs_f64();
        let bytes = received * len as u64 * 2;
        let summary = Summary {
            messages: received,
            bytes,
            seconds,
            invalid: wrong,
        };
        self.format.print(&summary, || summary.text())?;
        if wrong > 0 {
            bail!("{wrong} messages had wrong contents");
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_stock_programs() {
        let gid: Gid = "::ffff:10.9.0.1".parse().unwrap();
        let end = Endpoint::new(0x11, 0xabc, gid, Mtu::B1024);
        let bytes = line(&end);
        assert_eq!(bytes.len(), LINE);
        assert_eq!(
            bytes,
            b"0000:000011:000abc:00000000000000000000ffff0a090001\0"
        );
        assert_eq!(parse(&bytes, Mtu::B1024), Some(end));
        for bad in [
            &b"nonsense"[..],
            b"0000:000011:000abc:00\0",
            b"0000:1000011:000abc:00000000000000000000ffff0a090001",
            b"",
        ] {
            assert_eq!(parse(bad, Mtu::B1024), None);
        }
    }
}
