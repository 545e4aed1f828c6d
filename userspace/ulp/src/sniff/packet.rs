// SPDX-License-Identifier: MIT OR Apache-2.0

//! The headers of a RoCE v2 packet: those of the InfiniBand transport, chapter 9 of its
//! specification, behind UDP port 4791 (annex A17).

use crate::lang::{Lang, Texts};
use rust_ulp::qp::RnrTimer;
use std::fmt;
use std::net::IpAddr;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const IPPROTO_UDP: u8 = 17;
const PORT: u16 = 4791;
/// Bytes of an IPv6 header, of a UDP header, of the checksum at the end.
const IPV6: usize = 40;
const UDP: usize = 8;
const ICRC: usize = 4;
/// The bits of a queue pair number, of a PSN and of an MSN.
const LOW_24: u32 = 0xff_ffff;
/// The queue pair of the connection manager, and the opcode of a congestion notification.
const GSI: u32 = 1;
const CNP: u8 = 0x81;
/// The upper three bits of the opcodes of datagrams.
const UD: u8 = 3;

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
pub fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_be_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_be_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    take(&mut bytes.get(at..)?).map(u16::from_be_bytes)
}

fn address_at<const N: usize>(bytes: &[u8], at: usize) -> Option<IpAddr>
where
    IpAddr: From<[u8; N]>,
{
    take(&mut bytes.get(at..)?).map(IpAddr::from)
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
#[derive(Debug)]
pub struct Packet {
    pub opcode: u8,
    pub qp_num: u32,
    pub psn: u32,
    /// The other fields of its headers, in words.
    fields: String,
    /// What an acknowledgement says (AETH).
    syndrome: u8,
    /// What a message of the connection manager is.
    message: Option<&'static str>,
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
        // Only the first fragment has a UDP header, and none has the whole packet.
        ETH_P_IP if u16_at(frame, 6)? & 0x3fff != 0 => return None,
        ETH_P_IP => {
            let addresses = [address_at::<4>(frame, 12)?, address_at::<4>(frame, 16)?];
            let udp = usize::from(frame.first()? & 0xf) * 4;
            (addresses, u16_at(frame, 2)?.into(), frame.get(9)?, udp)
        }
        ETH_P_IPV6 => {
            let addresses = [address_at::<16>(frame, 8)?, address_at::<16>(frame, 24)?];
            let len = IPV6 + usize::from(u16_at(frame, 4)?);
            (addresses, len, frame.get(6)?, IPV6)
        }
        _ => return None,
    };
    let packet = frame.get(..len)?;
    let is_roce = *protocol == IPPROTO_UDP && u16_at(packet, udp + 2)? == PORT;
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
        let qp_num = take_u32(&mut rest)? & LOW_24;
        let last = take_u32(&mut rest)?;
        let mut this = Self {
            opcode,
            qp_num,
            psn: last & LOW_24,
            fields: String::new(),
            syndrome: 0,
            message: None,
            has_icrc: sum == icrc(covered, udp).to_le_bytes(),
        };
        if last >> 31 == 1 {
            this.fields += " ackreq";
        }
        if flags & 0x80 != 0 {
            this.fields += " solicited";
        }
        this.headers(&mut rest)?;
        // At most three bytes at the end of the data fill it up to a multiple of four.
        let len = rest.len().checked_sub(usize::from((flags >> 4) & 3))?;
        if len != 0 {
            this.fields += &format!(" data {len}");
        }
        if opcode >> 5 == UD && qp_num == GSI {
            this.message = message(rest);
        }
        Some((addresses, this))
    }

    /// Takes the headers between BTH and data off.
    fn headers(&mut self, rest: &mut &[u8]) -> Option<()> {
        let operation = self.operation();
        if self.opcode >> 5 == UD {
            let (qkey, from) = (take_u32(rest)?, take_u32(rest)? & LOW_24);
            self.fields += &format!(" from qp {from} qkey {qkey:#x}");
        }
        // RETH and AtomicETH begin alike.
        if matches!(operation, 6 | 10..=12 | 19 | 20) {
            let (addr, rkey) = (take_u64(rest)?, take_u32(rest)?);
            self.fields += &format!(" addr {addr:#x} rkey {rkey:#x}");
        }
        self.fields += &match operation {
            6 | 10 | 12 => format!(" length {}", take_u32(rest)?),
            11 => format!(" length {} imm {:#x}", take_u32(rest)?, take_u32(rest)?),
            19 | 20 => match (operation, take_u64(rest)?, take_u64(rest)?) {
                (19, swap, compare) => format!(" swap {swap:#x} compare {compare:#x}"),
                (_, add, _) => format!(" add {add:#x}"),
            },
            13 | 15..=18 => {
                let answer = take_u32(rest)?;
                self.syndrome = answer.to_be_bytes()[0];
                format!(" syndrome {:#04x} msn {}", self.syndrome, answer & LOW_24)
            }
            22 | 23 => format!(" invalidates rkey {:#x}", take_u32(rest)?),
            3 | 5 | 9 => format!(" imm {:#x}", take_u32(rest)?),
            _ => String::new(),
        };
        if operation == 18 {
            self.fields += &format!(" original {:#x}", take_u64(rest)?);
        }
        Some(())
    }

    /// Returns the lower five bits of the opcode. Those of a congestion notification mean nothing.
    fn operation(&self) -> u8 {
        self.opcode & 31
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
            UD => "UD",
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
            (UD, 4 | 5) if self.message.is_some() => "mad",
            (UD, 4 | 5) => "ud",
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
        match (self.syndrome >> 5, self.syndrome & 31) {
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
    let at = usize::from(u16_at(datagram, 16)?).checked_sub(0x10);
    Some(at.and_then(|at| names.get(at)).copied().unwrap_or(""))
}

impl fmt::Display for Packet {
    /// Writes the name and the fields, without the meaning.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.message {
            Some(message) => format!("{} {message}", self.name()),
            None => self.name(),
        };
        let (qp, psn, fields) = (self.qp_num, self.psn, &self.fields);
        write!(f, "{name:24} qp {qp} psn {psn:#x}{fields}")
    }
}
