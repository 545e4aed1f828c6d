// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp sniff`: the RoCE v2 packets of an interface, each decoded and explained in one line.

mod packet;

use crate::lang::{Lang, LangArg};
use crate::output::{interrupts, print};
use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    recvmsg, setsockopt, socket, sockopt, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags,
    SockFlag, SockProtocol, SockType,
};
use nix::sys::time::{TimeSpec, TimeVal};
use packet::{number, Packet, Request, TEXTS};
use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest frame; with offloads of the interface it may exceed its MTU.
const FRAME: usize = 1 << 18;
/// The requests that are remembered in order to recognize them when they come again.
const REQUESTS: usize = 1 << 16;
/// The first word of a pcap file with microseconds, of one with nanoseconds, and LINKTYPE_ETHERNET.
const PCAP: u32 = 0xa1b2_c3d4;
const PCAP_NS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;

/// Arguments of `ulp sniff`.
#[derive(Debug, Default, Args)]
pub struct Sniff {
    /// Network interface [default: all of this network namespace]
    interface: Option<String>,
    /// Write the packets into this file as well, for Wireshark (pcap)
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Read the packets of this file (pcap) instead of those of an interface
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["interface", "write"])]
    read: Option<PathBuf>,
    /// End after so many packets
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    lang: LangArg,
}

/// Prints packets, and writes them to a file.
#[derive(Default)]
struct Printer {
    lang: Lang,
    count: u64,
    limit: Option<u64>,
    first: Option<Duration>,
    /// When each request was seen last.
    requests: HashMap<Request, Duration>,
    file: Option<File>,
}

impl Printer {
    /// Creates a pcap file for the packets. A file of that name loses what it has.
    fn write_to(&mut self, path: &Path) -> Result<()> {
        // The magic number, version 2.4, no time zone, no accuracy.
        let head = [PCAP_NS, (4 << 16) | 2, 0, 0, FRAME as u32, ETHERNET];
        let head = head.map(u32::to_le_bytes).concat();
        let file = File::create(path).and_then(|mut file| file.write_all(&head).map(|()| file));
        self.file = Some(file.with_context(|| format!("{}: cannot be written", path.display()))?);
        Ok(())
    }

    /// Returns the line of a frame, if it is a RoCE v2 packet.
    fn line(&mut self, at: Duration, frame: &[u8]) -> Option<String> {
        let packet = Packet::decode(frame, self.lang)?;
        if self.requests.len() >= REQUESTS {
            self.requests.clear();
        }
        let before = packet.request.and_then(|it| self.requests.insert(it, at));
        let again = before.map_or_else(String::new, |before| {
            let ms = at.saturating_sub(before).as_secs_f64() * 1e3;
            format!("{} {ms:.1} ms; ", self.lang.text(TEXTS, "again"))
        });
        self.count += 1;
        let since = at.saturating_sub(*self.first.get_or_insert(at));
        let (since, fields, meaning) = (since.as_secs_f64(), packet.fields, packet.meaning);
        Some(format!("{since:>10.6} {fields}: {again}{meaning}"))
    }

    /// Takes a frame. Returns whether there are enough.
    fn frame(&mut self, at: Duration, frame: &[u8]) -> Result<bool> {
        let Some(line) = self.line(at, frame) else {
            return Ok(false);
        };
        if let Some(file) = &mut self.file {
            let len = frame.len() as u32;
            let head = [at.as_secs() as u32, at.subsec_nanos(), len, len];
            let record = [&head.map(u32::to_le_bytes).concat(), frame].concat();
            file.write_all(&record).context("writing the pcap file")?;
        }
        print(&line)?;
        Ok(self.limit.is_some_and(|limit| self.count >= limit))
    }
}

/// Opens a socket for the frames of all interfaces.
fn open() -> Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let fd = match socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll) {
        Err(Errno::EPERM) => bail!("packets can be captured by root only (CAP_NET_RAW): use sudo"),
        fd => fd.context("opening a packet socket")?,
    };
    // Without CAP_NET_ADMIN it has the usual room, and loses packets of a long burst.
    let _ = setsockopt(&fd, sockopt::RcvBufForce, &(16 << 20));
    setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000))?;
    Ok(fd)
}

fn capture(args: &Sniff, printer: &mut Printer) -> Result<()> {
    let stop = interrupts()?;
    let name = args.interface.as_deref();
    let place = name.unwrap_or("all interfaces");
    let wanted = name.map(if_nametoindex).transpose().with_context(|| {
        format!("no network interface {place} in this network namespace; `ip link` lists them")
    })?;
    let fd = open()?;
    if let Some(path) = &args.write {
        printer.write_to(path)?;
    }
    message!("capturing at {place} until Ctrl-C");
    let (mut frame, mut control) = (vec![0; FRAME], cmsg_space!(TimeSpec));
    while !stop.load(Ordering::Relaxed) {
        let mut parts = [IoSliceMut::new(&mut frame)];
        let (socket, flags) = (fd.as_raw_fd(), MsgFlags::empty());
        let received = match recvmsg::<LinkAddr>(socket, &mut parts, Some(&mut control), flags) {
            Err(Errno::EAGAIN | Errno::EINTR) => continue,
            received => received.context("receiving a packet")?,
        };
        let at = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
            _ => None,
        });
        let (Some(from), Some(at), len) = (received.address, at, received.bytes) else {
            continue;
        };
        // The loopback interface has each packet twice.
        let is_copy =
            from.hatype() == libc::ARPHRD_LOOPBACK && from.pkttype() == libc::PACKET_OUTGOING;
        let is_wanted = wanted.is_none_or(|index| from.ifindex() == index as usize);
        let frame = frame.get(..len).unwrap_or_default();
        if is_wanted && !is_copy && printer.frame(at, frame)? {
            break;
        }
    }
    message!("{} packets", printer.count);
    Ok(())
}

/// Returns the frames of a pcap file, with their times.
fn frames(bytes: &[u8]) -> Result<Vec<(Duration, &[u8])>> {
    let word = |at| number(bytes, at..at + 4).map(|word| (word as u32).swap_bytes());
    let unit = match word(0) {
        Some(PCAP) => 1000,
        Some(PCAP_NS) => 1,
        _ => bail!("this is not a pcap file of a little-endian host; `tcpdump -w` writes one"),
    };
    // The version, the time zone, the accuracy and the longest frame are between them.
    let is_ethernet = word(20) == Some(ETHERNET);
    ensure!(is_ethernet, "its packets are not Ethernet frames");
    let mut place = 24;
    let next = || {
        let fraction = word(place + 4)?.checked_mul(unit)?;
        let at = Duration::from_secs(word(place)?.into()) + Duration::from_nanos(fraction.into());
        let frame = bytes.get(place + 16..)?.get(..word(place + 8)? as usize)?;
        place += 16 + frame.len();
        Some((at, frame))
    };
    Ok(std::iter::from_fn(next).collect())
}

fn replay(path: &Path, printer: &mut Printer) -> Result<()> {
    let name = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(name)?;
    for (at, frame) in frames(&bytes).with_context(name)? {
        if printer.frame(at, frame)? {
            break;
        }
    }
    Ok(())
}

impl Sniff {
    pub fn run(self) -> Result<ExitCode> {
        let mut printer = Printer {
            lang: self.lang.get(),
            limit: self.count,
            ..Printer::default()
        };
        match &self.read {
            Some(path) => replay(path, &mut printer)?,
            None => capture(&self, &mut printer)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests;
