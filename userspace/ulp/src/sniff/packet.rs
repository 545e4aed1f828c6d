// SPDX-License-Identifier: MIT OR Apache-2.0

//! The headers of a RoCE v2 packet: those of the InfiniBand transport, chapter 9 of its
//! specification, behind UDP port 4791 (annex A17).

use crate::lang::{Lang, Texts};
use rust_ulp::qp::RnrTimer;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const IPPROTO_UDP: u8 = 17;
const PORT: u16 = 4791;
/// Bytes of an IPv6 header, of a UDP header, of the checksum at the end.
const IPV6: usize = 40;
const UDP: usize = 8;
const ICRC: usize = 4;
/// The queue pair of the connection manager, and the opcode of a congestion notification.
const GSI: u32 = 1;
const CNP: u8 = 0x81;

pub const TEXTS: Texts = [include_str!("en.txt"), include_str!("zh.txt")];

/// The operations of a reliable connection, by the lower five bits of the opcode, and the keys of
/// their texts.
pub const OPERATIONS: [(&str, &str); 24] = [
    ("SEND First", "send.first"),
    ("SEND Middle", "send.middle"),
    ("SEND Last", "send.last"),
    ("SEND Last with Immediate", "send.last"),
    ("SEND Only", "send.only"),
    ("SEND Only with Immediate", "send.only"),
    ("RDMA WRITE First", "write.first"),
    ("RDMA WRITE Middle", "write.middle"),
    ("RDMA WRITE Last", "write.last"),
    ("RDMA WRITE Last with Immediate", "write.imm"),
    ("RDMA WRITE Only", "write.only"),
    ("RDMA WRITE Only with Immediate", "write.imm"),
    ("RDMA READ Request", "read.request"),
    ("RDMA READ response First", "read.response"),
    ("RDMA READ response Middle", "read.response"),
    ("RDMA READ response Last", "read.response"),
    ("RDMA READ response Only", "read.response"),
    ("Acknowledge", "ack"),
    ("ATOMIC Acknowledge", "atomic.response"),
    ("CmpSwap", "atomic.request"),
    ("FetchAdd", "atomic.request"),
    ("", "unknown"),
    ("SEND Last with Invalidate", "send.last"),
    ("SEND Only with Invalidate", "send.only"),
];

/// Takes the first bytes off.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    take(&mut bytes.get(at..)?).map(u16::from_be_bytes)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_be_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_be_bytes)
}

/// Computes the checksum of Ethernet, which the ICRC is as well.
fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut crc = !0;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let low = crc & 1;
            crc = (crc >> 1) ^ (low * 0xedb8_8320);
        }
    }
    !crc
}

/// Computes the ICRC of an IP packet without its last four bytes, whose UDP header is at `udp`.
/// What may change on the way counts as ones.
fn icrc(packet: &[u8], udp: usize) -> u32 {
    let is_ipv4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    let masked = packet.iter().enumerate().map(|(at, byte)| match at {
        // The type of service, the time to live, the checksum.
        1 | 8 | 10 | 11 if is_ipv4 => 0xff,
        // The traffic class, the flow label, the hop limit.
        0 if !is_ipv4 => byte | 0x0f,
        1..=3 | 7 if !is_ipv4 => 0xff,
        // The checksum of UDP, and the byte of the BTH before the queue pair.
        at if [udp + 6, udp + 7, udp + UDP + 4].contains(&at) => 0xff,
        _ => *byte,
    });
    // In the place of an LRH.
    crc32([0xff; 8].into_iter().chain(masked))
}

/// A RoCE v2 packet.
#[derive(Debug, Default)]
pub struct Packet {
    pub opcode: u8,
    pub qp_num: u32,
    pub psn: u32,
    ack_request: bool,
    solicited: bool,
    /// Q_Key and source queue pair (DETH).
    datagram: Option<(u32, u32)>,
    /// Address, rkey and length (RETH).
    remote: Option<(u64, u32, u32)>,
    /// Address, rkey, and the operands (AtomicETH).
    atomic: Option<(u64, u32, u64, u64)>,
    /// Syndrome and message sequence number (AETH).
    answer: Option<(u8, u32)>,
    original: Option<u64>,
    immediate: Option<u32>,
    invalidated: Option<u32>,
    /// What a message of the connection manager is.
    message: Option<&'static str>,
    /// Bytes of data.
    len: usize,
    has_icrc: bool,
}

/// Takes an IP packet with UDP to the port of RoCE v2 out of an Ethernet frame: the addresses, the
/// packet, and where its UDP header is.
fn network(mut frame: &[u8]) -> Option<([IpAddr; 2], &[u8], usize)> {
    take::<12>(&mut frame)?;
    let mut ethertype = take(&mut frame).map(u16::from_be_bytes)?;
    if ethertype == ETH_P_8021Q {
        take::<2>(&mut frame)?;
        ethertype = take(&mut frame).map(u16::from_be_bytes)?;
    }
    let (addresses, len, protocol, udp) = match ethertype {
        ETH_P_IP => {
            let address = |at| {
                let bytes: [u8; 4] = take(&mut frame.get(at..)?)?;
                Some(IpAddr::from(Ipv4Addr::from(bytes)))
            };
            // Only the first fragment has a UDP header, and none has the whole packet.
            if u16_at(frame, 6)? & 0x3fff != 0 {
                return None;
            }
            let udp = usize::from(frame.first()? & 0xf) * 4;
            let len = usize::from(u16_at(frame, 2)?);
            ([address(12)?, address(16)?], len, *frame.get(9)?, udp)
        }
        ETH_P_IPV6 => {
            let address = |at| {
                let bytes: [u8; 16] = take(&mut frame.get(at..)?)?;
                Some(IpAddr::from(Ipv6Addr::from(bytes)))
            };
            let len = IPV6 + usize::from(u16_at(frame, 4)?);
            ([address(8)?, address(24)?], len, *frame.get(6)?, IPV6)
        }
        _ => return None,
    };
    let packet = frame.get(..len)?;
    let is_roce = protocol == IPPROTO_UDP && u16_at(packet, udp + 2)? == PORT;
    is_roce.then_some((addresses, packet, udp))
}

impl Packet {
    /// Decodes an Ethernet frame: the addresses and the packet. Returns [`None`] for a frame of
    /// another protocol, and for one that is too short for its headers.
    pub fn decode(frame: &[u8]) -> Option<([IpAddr; 2], Self)> {
        let (addresses, packet, udp) = network(frame)?;
        let (covered, sum) = packet.split_at_checked(packet.len().checked_sub(ICRC)?)?;
        let mut rest = covered.get(udp + UDP..)?;
        let [opcode, flags, _, _] = take(&mut rest)?;
        let qp_num = take_u32(&mut rest)? & 0xff_ffff;
        let last = take_u32(&mut rest)?;
        let mut this = Self {
            opcode,
            qp_num,
            psn: last & 0xff_ffff,
            ack_request: last >> 31 == 1,
            solicited: flags & 0x80 != 0,
            has_icrc: sum == icrc(covered, udp).to_le_bytes(),
            ..Self::default()
        };
        let operation = this.operation();
        if opcode >> 5 == 3 {
            this.datagram = Some((take_u32(&mut rest)?, take_u32(&mut rest)? & 0xff_ffff));
        }
        match operation {
            6 | 10..=12 => {
                let (addr, rkey) = (take_u64(&mut rest)?, take_u32(&mut rest)?);
                this.remote = Some((addr, rkey, take_u32(&mut rest)?));
            }
            13 | 15..=18 => {
                let [syndrome, msn @ ..] = take::<4>(&mut rest)?;
                let msn = msn
                    .iter()
                    .fold(0, |sum, byte| (sum << 8) | u32::from(*byte));
                this.answer = Some((syndrome, msn));
            }
            19 | 20 => {
                let (addr, rkey) = (take_u64(&mut rest)?, take_u32(&mut rest)?);
                let (first, second) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                this.atomic = Some((addr, rkey, first, second));
            }
            22 | 23 => this.invalidated = Some(take_u32(&mut rest)?),
            _ => {}
        }
        if operation == 18 {
            this.original = Some(take_u64(&mut rest)?);
        }
        if [3, 5, 9, 11].contains(&operation) {
            this.immediate = Some(take_u32(&mut rest)?);
        }
        // Four bytes, the last of which the flags say not to count.
        this.len = rest.len().checked_sub(usize::from((flags >> 4) & 3))?;
        if this.datagram.is_some() && qp_num == GSI {
            this.message = message(rest);
        }
        Some((addresses, this))
    }

    /// Returns the lower five bits of the opcode; 31 for a congestion notification.
    fn operation(&self) -> u8 {
        match self.opcode {
            CNP => 31,
            opcode => opcode & 31,
        }
    }

    /// Returns whether the packet is a request of a reliable connection: such a packet is sent
    /// again when no answer comes.
    pub fn is_request(&self) -> bool {
        self.opcode >> 5 == 0 && !(13..=18).contains(&self.operation())
    }

    /// Returns the name of the opcode.
    fn name(&self) -> String {
        let transport = match self.opcode >> 5 {
            _ if self.opcode == CNP => return "CNP".to_owned(),
            0 => "RC",
            1 => "UC",
            2 => "RD",
            3 => "UD",
            5 => "XRC",
            _ => "",
        };
        match OPERATIONS.get(usize::from(self.operation())) {
            Some((name, _)) if !name.is_empty() && !transport.is_empty() => {
                format!("{transport} {name}")
            }
            _ => format!("opcode {:#04x}", self.opcode),
        }
    }

    /// Returns what the packet means.
    pub fn meaning(&self, lang: Lang) -> String {
        let key = match (self.opcode >> 5, self.operation()) {
            _ if self.opcode == CNP => "cnp",
            (3, 4 | 5) if self.message.is_some() => "mad",
            (3, 4 | 5) => "ud",
            (0 | 1 | 5, operation) => OPERATIONS
                .get(usize::from(operation))
                .map_or("unknown", |(_, key)| *key),
            _ => "unknown",
        };
        let meaning = match key {
            "ack" => self.answered(lang),
            key => lang.text(TEXTS, key).to_owned(),
        };
        match self.has_icrc {
            true => meaning,
            false => format!("{}; {meaning}", lang.text(TEXTS, "icrc")),
        }
    }

    /// Returns what an acknowledgement says: bits 5 and 6 of the syndrome are its kind.
    fn answered(&self, lang: Lang) -> String {
        let text = |key: &str| lang.text(TEXTS, key).to_owned();
        let syndrome = self.answer.map_or(0, |(syndrome, _)| syndrome);
        match (syndrome >> 5, syndrome & 31) {
            (0, _) => text("ack"),
            (1, timer) => {
                let time = RnrTimer::new(timer).map_or_else(|_| String::new(), |it| it.to_string());
                format!("{} {time}", text("nak.rnr"))
            }
            (3, code @ 0..=3) => text(&format!("nak.{code}")),
            _ => text("nak"),
        }
    }
}

/// Returns the name of a message of the connection manager, by the attribute of its header (chapter
/// 16.7); an empty one for another management datagram.
fn message(datagram: &[u8]) -> Option<&'static str> {
    let names = [
        "REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
    ];
    let attribute = usize::from(u16_at(datagram, 16)?);
    let name = |at| names.get(at).copied();
    Some(attribute.checked_sub(0x10).and_then(name).unwrap_or(""))
}

impl fmt::Display for Packet {
    /// Writes the name and the fields, without the meaning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.message {
            Some(message) => format!("{} {message}", self.name()),
            None => self.name(),
        };
        write!(f, "{name:24} qp {} psn {:#x}", self.qp_num, self.psn)?;
        if self.ack_request {
            f.write_str(" ackreq")?;
        }
        if self.solicited {
            f.write_str(" solicited")?;
        }
        if let Some((qkey, from)) = self.datagram {
            write!(f, " from qp {from} qkey {qkey:#x}")?;
        }
        if let Some((addr, rkey, len)) = self.remote {
            write!(f, " addr {addr:#x} rkey {rkey:#x} length {len}")?;
        }
        if let Some((addr, rkey, first, second)) = self.atomic {
            write!(f, " addr {addr:#x} rkey {rkey:#x}")?;
            match self.operation() {
                19 => write!(f, " swap {first:#x} compare {second:#x}")?,
                _ => write!(f, " add {first:#x}")?,
            }
        }
        if let Some((syndrome, msn)) = self.answer {
            write!(f, " syndrome {syndrome:#04x} msn {msn}")?;
        }
        if let Some(original) = self.original {
            write!(f, " original {original:#x}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, " imm {immediate:#x}")?;
        }
        if let Some(rkey) = self.invalidated {
            write!(f, " invalidates rkey {rkey:#x}")?;
        }
        match self.len {
            0 => Ok(()),
            len => write!(f, " data {len}"),
        }
    }
}
