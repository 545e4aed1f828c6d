// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp pingpong`: a peer of `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`, or of itself.
//!
//! The two exchange their addresses by TCP, as `LID:QPN:PSN:GID` in hexadecimal digits and a NUL,
//! 52 bytes. The client sends its address first, and answers the server's with `done` and a NUL.
//! The client also sends the first message; each end answers a message with a message.
//!
//! [`cm`] is a peer of `rdma_client` and `rdma_server`.
//!
//! With a shared receive queue an end has several queue pairs, and always sends 256 addresses, of
//! which the last ones are 0. The messages are counted over all queue pairs.

mod cm;

use crate::args::{address, default_port, size_in, size_u32, DeviceArg};
use crate::bench::qp::{Alone, Connected, Prepared};
use crate::listen::{Listener, PATIENCE};
use crate::output::{answer, interrupts, FormatArgs, Usage};
use crate::wire;
use anyhow::{ensure, Context, Result};
use clap::{Args, ValueEnum};
use nix::unistd::{sysconf, SysconfVar};
use rust_ulp::qp::{QpBuilder, Rc, Transport, Uc, Ud};
use rust_ulp::wr::{Recv, Send, SendTo};
use rust_ulp::{Buffer, Completion, Cq, Device, Endpoint, Error, Gid, Grh, Mtu, Opcode, Pd, Srq};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LINE: usize = 52;
const PORT: u16 = 18515;
/// The addresses that an end with a shared receive queue sends.
const MAX_QPS: usize = 256;
/// The smallest page of a kernel. With -c, the stock programs set and verify the first byte of each
/// page.
const PAGE: usize = 4096;
/// How long queue pairs stay that have receives left, for the last acknowledgment to go out.
const LAST_ACK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Rc,
    Uc,
    Ud,
    /// RC with a receive queue that several queue pairs share
    Srq,
    /// One message of 16 bytes each way, as rdma_client and rdma_server exchange them
    Cm,
}

/// Arguments of `ulp pingpong`: those of `ibv_*_pingpong`.
#[derive(Debug, Args)]
pub struct Pingpong {
    /// Transport
    #[arg(value_enum)]
    kind: Kind,
    /// Host of the server [default: be the server]
    host: Option<String>,
    /// TCP port of the server, with cm port of the connection manager [default: 18515; cm: 7471]
    #[arg(short, long)]
    port: Option<u16>,
    #[command(flatten)]
    device: DeviceArg,
    /// Index of the GID [default: RoCE v2, IPv4]
    #[arg(short = 'g', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Bytes per message, at most 1MiB; for ud at most the MTU [default: 4096; for ud 1024]
    #[arg(short, long, value_name = "SIZE", value_parser = size_in(1..=1 << 20, "1 byte and 1MiB"))]
    size: Option<u32>,
    /// Path MTU in bytes [default: 1024]
    #[arg(short, long, value_name = "SIZE", value_parser = path_mtu)]
    mtu: Option<u32>,
    /// Receives that are kept posted [default: 64]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    rx_depth: Option<u32>,
    /// Queue pairs of srq, at most as many as receives [default: 16]
    #[arg(short = 'q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_QPS as i64))]
    num_qp: Option<u32>,
    /// Messages in each direction [default: 1000]
    #[arg(short = 'n', long)]
    iters: Option<u64>,
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

    /// Returns the exit status, after a message about wrong contents.
    fn answer(&self) -> ExitCode {
        if self.invalid > 0 {
            message!("ulp: {} messages had wrong contents", self.invalid);
        }
        answer(self.invalid == 0)
    }
}

/// Parses a path MTU.
fn path_mtu(text: &str) -> std::result::Result<u32, String> {
    match size_u32(text)? {
        size if Mtu::at_most(size).bytes() == size => Ok(size),
        _ => Err("the MTU is 256, 512, 1024, 2048 or 4096".to_owned()),
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

/// Returns the addresses of an end, followed by empty ones up to `count`.
fn lines(ends: &[Endpoint], count: usize) -> Vec<u8> {
    let none = Endpoint::new(0, 0, Gid::default(), Mtu::B256);
    let ends = ends.iter().chain(std::iter::repeat(&none));
    ends.take(count).flat_map(line).collect()
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
struct Player {
    qp: Connected,
    /// Where it takes its receives from, if it shares them.
    srq: Option<Srq>,
}

impl Player {
    fn send(&self, buffer: &Buffer, len: usize) -> rust_ulp::error::Result<()> {
        let message = buffer.slice(..len)?;
        match &self.qp {
            Connected::Rc(qp) => qp.post(Send::new(message)),
            Connected::Uc(qp) => qp.post(Send::new(message)),
            Connected::Ud(qp, to) => qp.post(SendTo::new(message, to)),
        }
    }

    fn post_recv(&self, recv: Recv<'_>) -> rust_ulp::error::Result<()> {
        match (&self.srq, &self.qp) {
            (Some(srq), _) => srq.post_recv(recv),
            (None, Connected::Rc(qp)) => qp.post_recv(recv),
            (None, Connected::Uc(qp)) => qp.post_recv(recv),
            (None, Connected::Ud(qp, _)) => qp.post_recv(recv),
        }
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

    fn recv(&self, slot: usize) -> rust_ulp::error::Result<Recv<'_>> {
        let at = self.at(slot);
        Ok(Recv::new(self.buffer.slice(at..at + self.head + self.len)?).wr_id(slot as u64))
    }

    /// Returns whether a message is as the stock programs send it, where the peer's pages are no
    /// larger than ours.
    fn is_good(&self, done: &Completion) -> Result<bool> {
        let at = self.at(usize::try_from(done.wr_id)?) + self.head;
        let data = self.buffer.to_vec(at..at + self.len)?;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|size| usize::try_from(size).ok());
        let stride = page.unwrap_or(PAGE).max(PAGE);
        let first = data.iter().step_by(stride).all(|byte| *byte == 0);
        Ok(first && done.byte_len as usize == self.len + self.head)
    }
}

/// The messages of a queue pair.
#[derive(Clone, Default)]
struct Turn {
    is_sending: bool,
    /// Messages that the peer is owed.
    due: u64,
}

/// The TCP connection, and whether this end sends first: the client does.
struct Meeting<'a> {
    tcp: TcpStream,
    first: bool,
    stop: &'a AtomicBool,
}

impl Meeting<'_> {
    fn read(&self, buffer: &mut [u8]) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        wire::fill(&self.tcp, buffer, (PATIENCE, until), Some(self.stop))
    }
}

/// What the queue pairs of an end are made of, and the connection to the peer.
struct Parts<'a> {
    pd: &'a Pd,
    /// The port that the index of a GID belongs to.
    port: u32,
    cq: &'a Cq,
    memory: &'a Memory,
    meeting: Meeting<'a>,
}

impl Pingpong {
    fn meet<'a>(&self, device: &Device, stop: &'a AtomicBool) -> Result<Meeting<'a>> {
        if let Some(host) = &self.host {
            let host = address(host, self.port());
            let advice = "does ibv_*_pingpong listen there?";
            let tcp = wire::dial(&host, None, wire::CONNECT_TIMEOUT, advice)?;
            let first = true;
            return Ok(Meeting { tcp, first, stop });
        }
        let listener = Listener::bind(Some(device), &address("::", self.port()))?;
        message!("listening at {}", listener.local_addr()?);
        let (tcp, _) = listener.accept(stop)?.context("interrupted")?;
        let first = false;
        Ok(Meeting { tcp, first, stop })
    }

    /// Exchanges the addresses, and calls `connect` with those of the peer at the right time.
    fn exchange<P>(
        &self,
        meeting: &mut Meeting<'_>,
        here: &[Endpoint],
        connect: impl FnOnce(Vec<Endpoint>) -> Result<P>,
    ) -> Result<P> {
        let count = if self.kind == Kind::Srq { MAX_QPS } else { 1 };
        let ours = lines(here, count);
        let mut theirs = vec![0; ours.len()];
        if meeting.first {
            meeting.tcp.write_all(&ours)?;
        }
        meeting
            .read(&mut theirs)
            .context("the peer sent no address: is it a program of the same kind?")?;
        let mtu = self.mtu();
        let peers = theirs.chunks(LINE).take(here.len());
        let peers: Option<Vec<_>> = peers.map(|line| parse(line, mtu)).collect();
        let peers = peers.context("the peer sent an invalid address")?;
        ensure!(
            self.kind != Kind::Srq || peers.iter().all(|peer| peer.qp_num != 0),
            "the peer has fewer than {} queue pairs (-q)",
            here.len()
        );
        for (name, ends) in [("local: ", here), ("remote:", &peers)] {
            for end in ends {
                let (qp_num, psn, gid) = (end.qp_num, end.psn, end.gid);
                message!("{name} QPN {qp_num:#08x}, PSN {psn:#08x}, GID {gid}");
            }
        }
        let player = connect(peers)?;
        if meeting.first {
            meeting.tcp.write_all(b"done\0")?;
        } else {
            meeting.tcp.write_all(&ours)?;
            let mut done = [0; 5];
            meeting
                .read(&mut done)
                .context("the peer did not say that it is ready")?;
        }
        Ok(player)
    }

    fn builder<T: Transport>(
        &self,
        parts: &Parts<'_>,
        srq: Option<&Srq>,
        index: u32,
    ) -> QpBuilder<T> {
        let builder = parts.pd.qp_builder::<T>(parts.cq);
        let builder = builder.max_recv_wr(self.rx_depth()).user_data(index.into());
        let builder = match srq {
            Some(srq) => builder.srq(srq),
            None => builder,
        };
        match self.gid_index {
            Some(gid) => builder.gid(parts.port, gid),
            None => builder,
        }
    }

    /// Creates queue pair number `index`.
    fn prepare(&self, parts: &Parts<'_>, srq: Option<&Srq>, index: u32) -> Result<Prepared> {
        Ok(match self.kind {
            Kind::Rc | Kind::Srq | Kind::Cm => {
                let builder = self.builder::<Rc>(parts, srq, index);
                Prepared::Rc(builder.mtu(self.mtu()).build()?)
            }
            Kind::Uc => {
                let builder = self.builder::<Uc>(parts, srq, index);
                Prepared::Uc(builder.mtu(self.mtu()).build()?)
            }
            Kind::Ud => Prepared::Ud(self.builder::<Ud>(parts, srq, index).build()?),
        })
    }

    /// Meets the peer, and connects all queue pairs.
    fn connect(&self, parts: &mut Parts<'_>) -> Result<Vec<Player>> {
        let srq = parts.pd.srq_builder(parts.cq).max_wr(self.rx_depth());
        let srq = (self.kind == Kind::Srq).then(|| srq.build()).transpose()?;
        let count = srq.as_ref().map_or(1, |_| self.num_qp());
        let prepared = (0..count).map(|index| self.prepare(parts, srq.as_ref(), index));
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        for slot in 0..parts.memory.depth {
            let recv = parts.memory.recv(slot)?;
            match (&srq, prepared.first()) {
                (Some(srq), _) => srq.post_recv(recv)?,
                (None, Some(qp)) => qp.push(&mut Alone, recv)?,
                (None, None) => {}
            }
        }
        let here: Vec<_> = prepared.iter().map(Prepared::endpoint).collect();
        self.exchange(&mut parts.meeting, &here, |peers| {
            let pairs = prepared.into_iter().zip(peers);
            let players = pairs.map(|(qp, peer)| {
                let (qp, srq) = (qp.connect(peer)?, srq.clone());
                Ok(Player { qp, srq })
            });
            players.collect()
        })
    }

    fn play(
        &self,
        players: &[Player],
        memory: &Memory,
        cq: &Cq,
        first: bool,
        stop: &AtomicBool,
    ) -> Result<(u64, u64)> {
        let (mut posted, mut sent, mut received, mut wrong) = (0, 0, 0, 0);
        let turn = Turn {
            is_sending: false,
            due: u64::from(first),
        };
        let mut turns = vec![turn; players.len()];
        let iters = self.iters();
        let mut wanted = self.receives_wanted() - memory.depth as u64;
        let mut last = Instant::now();
        while sent < iters || received < iters {
            for (player, turn) in players.iter().zip(&mut turns) {
                if turn.due > 0 && !turn.is_sending && posted < iters {
                    player.send(&memory.buffer, memory.len)?;
                    (turn.is_sending, turn.due) = (true, turn.due - 1);
                    posted += 1;
                }
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
            let index = usize::try_from(done.qp_user_data)?;
            let both = players.get(index).zip(turns.get_mut(index));
            let (player, turn) = both.context("a completion of no queue pair")?;
            if done.opcode == Opcode::Recv {
                if self.check && !memory.is_good(&done)? {
                    wrong += 1;
                }
                received += 1;
                turn.due += 1;
                if wanted > 0 {
                    player.post_recv(memory.recv(usize::try_from(done.wr_id)?)?)?;
                    wanted -= 1;
                }
            } else {
                sent += 1;
                turn.is_sending = false;
            }
        }
        // The stock programs send some more while other queue pairs are behind.
        Ok((received.min(iters), wrong))
    }

    fn port(&self) -> u16 {
        let default = if self.kind == Kind::Cm {
            cm::PORT
        } else {
            PORT
        };
        self.port.unwrap_or(default)
    }

    /// Returns how many receives are posted in all.
    ///
    /// One queue pair has none left at the end: to flush one it would go to ERR, in which rxe may not
    /// acknowledge the last message any more. The stock programs have a retry count of 7, and with
    /// that rxe repeats for ever (rxe_comp.c:775).
    fn receives_wanted(&self) -> u64 {
        match self.kind {
            Kind::Srq => u64::MAX,
            _ => self.iters(),
        }
    }

    fn mtu(&self) -> Mtu {
        Mtu::at_most(self.mtu.unwrap_or(1024))
    }

    fn rx_depth(&self) -> u32 {
        self.rx_depth.unwrap_or(64)
    }

    fn num_qp(&self) -> u32 {
        self.num_qp.unwrap_or(16)
    }

    fn iters(&self) -> u64 {
        self.iters.unwrap_or(1000)
    }

    /// Checks that no option was given that the kind of the messages has no use for.
    fn check(&self) -> Result<()> {
        let options = [
            ("-g", self.gid_index.is_some(), self.kind != Kind::Cm),
            ("-s", self.size.is_some(), self.kind != Kind::Cm),
            ("-m", self.mtu.is_some(), self.kind != Kind::Cm),
            ("-r", self.rx_depth.is_some(), self.kind != Kind::Cm),
            ("-q", self.num_qp.is_some(), self.kind == Kind::Srq),
            ("-n", self.iters.is_some(), self.kind != Kind::Cm),
            ("-c", self.check, self.kind != Kind::Cm),
        ];
        let kind = self.kind.to_possible_value();
        let kind = kind.as_ref().map_or("", |kind| kind.get_name());
        let text = match options.iter().find(|(_, given, used)| *given && !used) {
            Some((option, ..)) => format!("pingpong {kind} has no {option}"),
            None if self.kind == Kind::Srq && self.num_qp() > self.rx_depth() => {
                "srq needs a receive (-r) for each queue pair (-q)".to_owned()
            }
            None => return Ok(()),
        };
        Err(Usage(text).into())
    }

    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        self.check()?;
        let device = self.device.open()?;
        if self.kind == Kind::Cm {
            let summary = cm::run(&device, self.host.as_deref(), self.port(), &stop)?;
            self.format.print(&summary, || summary.text())?;
            return Ok(ExitCode::SUCCESS);
        }
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2048)?);
        let default = if self.kind == Kind::Ud { 1024 } else { 4096 };
        let len = self.size.unwrap_or(default) as usize;
        let head = if self.kind == Kind::Ud { Grh::LEN } else { 0 };
        let depth = self.receives_wanted().min(self.rx_depth().into()) as usize;
        let memory = Memory::new(&pd, len, head, depth)?;
        let mut parts = Parts {
            pd: &pd,
            port: default_port(&device),
            cq: &cq,
            memory: &memory,
            meeting: self.meet(&device, &stop)?,
        };
        let first = parts.meeting.first;
        let players = self.connect(&mut parts)?;
        let begin = Instant::now();
        let (received, wrong) = self.play(&players, &memory, &cq, first, &stop)?;
        let seconds = begin.elapsed().as_secs_f64();
        if self.kind == Kind::Srq {
            // Receives are left, see `receives_wanted`.
            std::thread::sleep(LAST_ACK);
        }
        let bytes = received * len as u64 * 2;
        let summary = Summary {
            messages: received,
            bytes,
            seconds,
            invalid: wrong,
        };
        self.format.print(&summary, || summary.text())?;
        Ok(summary.answer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_contents_are_a_failed_check() {
        for (invalid, status) in [(0, ExitCode::SUCCESS), (3, ExitCode::FAILURE)] {
            let summary = Summary {
                messages: 10,
                bytes: 20,
                seconds: 1.0,
                invalid,
            };
            let got = summary.answer();
            assert_eq!(format!("{got:?}"), format!("{status:?}"));
        }
    }

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
