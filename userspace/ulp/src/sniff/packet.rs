// SPDX-License-Identifier: MIT OR Apache-2.0

//! The headers of a RoCE v2 packet: those of the InfiniBand transport, chapter 9 of its
//! specification, behind UDP port 4791 (annex A17).

use crate::lang::{Lang, Texts};
use libc::{c_int, ETH_P_8021Q, ETH_P_IP, ETH_P_IPV6, IPPROTO_UDP};
use rust_ulp::qp::RnrTimer;
use std::net::IpAddr;
use std::ops::Range;

const PORT: u64 = 4791;
/// Bytes of an IPv6 header and of a UDP header.
const IPV6: usize = 40;
const UDP: usize = 8;
/// The queue pair of the connection manager, and the opcode of a congestion notification.
const GSI: u64 = 1;
const CNP: u64 = 0x81;

pub const TEXTS: Texts = [include_str!("en.txt"), include_str!("zh.txt")];

/// The transports, by the upper three bits of the opcode.
const TRANSPORTS: [&str; 8] = ["RC", "UC", "RD", "UD", "", "XRC", "", ""];

/// The fields of a header: the label and the bytes of each. One without a label is not printed.
type Header = &'static [(&'static str, usize)];
const RETH: Header = &[("addr", 8), ("rkey", 4), ("length", 4)];
/// AtomicETH, whose operands depend on the operation.
const CMP_SWAP: Header = &[("addr", 8), ("rkey", 4), ("swap", 8), ("compare", 8)];
const FETCH_ADD: Header = &[("addr", 8), ("rkey", 4), ("add", 8), ("", 8)];
const AETH: Header = &[("syndrome", 1), ("msn", 3)];
const ATOMIC_ACK: Header = &[("original", 8)];
const IMM: Header = &[("imm", 4)];
const IETH: Header = &[("invalidates rkey", 4)];

/// An operation: its name, the key of its text, and its headers between BTH and data.
type Operation = (&'static str, &'static str, &'static [Header]);
const UNKNOWN: Operation = ("", "unknown", &[]);
/// The operations of a reliable connection, by the lower five bits of the opcode.
pub const OPERATIONS: [Operation; 24] = [
    ("SEND First", "send.first", &[]),
    ("SEND Middle", "send.middle", &[]),
    ("SEND Last", "send.last", &[]),
    ("SEND Last with Immediate", "send.last", &[IMM]),
    ("SEND Only", "send.only", &[]),
    ("SEND Only with Immediate", "send.only", &[IMM]),
    ("RDMA WRITE First", "write.first", &[RETH]),
    ("RDMA WRITE Middle", "write.middle", &[]),
    ("RDMA WRITE Last", "write.last", &[]),
    ("RDMA WRITE Last with Immediate", "write.imm", &[IMM]),
    ("RDMA WRITE Only", "write.only", &[RETH]),
    ("RDMA WRITE Only with Immediate", "write.imm", &[RETH, IMM]),
    ("RDMA READ Request", "read.request", &[RETH]),
    ("RDMA READ response First", "read.response", &[AETH]),
    ("RDMA READ response Middle", "read.response", &[]),
    ("RDMA READ response Last", "read.response", &[AETH]),
    ("RDMA READ response Only", "read.response", &[AETH]),
    ("Acknowledge", "ack", &[AETH]),
    ("ATOMIC Acknowledge", "atomic.response", &[AETH, ATOMIC_ACK]),
    ("CmpSwap", "atomic.request", &[CMP_SWAP]),
    ("FetchAdd", "atomic.request", &[FETCH_ADD]),
    UNKNOWN,
    ("SEND Last with Invalidate", "send.last", &[IETH]),
    ("SEND Only with Invalidate", "send.only", &[IETH]),
];

/// The messages of the connection manager, by the attributes from 0x10 on (chapter 16.7).
const MESSAGES: [&str; 11] = [
    "REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
];

/// Returns the number in network order at a place of at most eight bytes.
pub fn number(bytes: &[u8], place: Range<usize>) -> Option<u64> {
    let bytes = bytes.get(place)?.iter();
    Some(bytes.fold(0, |number, byte| (number << 8) | u64::from(*byte)))
}

/// Computes the ICRC of an IP packet without its last four bytes, whose UDP header is at `udp`: the
/// checksum of Ethernet. What may change on the way counts as ones.
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
    let bytes = [0xff; 8].into_iter().chain(masked);
    !bytes.fold(!0, |crc, byte| {
        let shift = |crc: u32, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320);
        (0..8).fold(crc ^ u32::from(byte), shift)
    })
}

/// Takes an IP packet with UDP to the port of RoCE v2 out of an Ethernet frame: the addresses, the
/// packet, and where its UDP header is.
fn network(frame: &[u8]) -> Option<([IpAddr; 2], &[u8], usize)> {
    let (ethertype, packet) = match number(frame, 12..14)? as c_int {
        ETH_P_8021Q => (number(frame, 16..18)? as c_int, frame.get(18..)?),
        ethertype => (ethertype, frame.get(14..)?),
    };
    let v4 = |at| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let v6 = |at| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
    let word = |at| Some(number(packet, at..at + 2)? as usize);
    let ihl = usize::from(packet.first()? & 0xf);
    let (addresses, protocol, udp, len) = match ethertype {
        // Only the first fragment has a UDP header, and none has the whole packet.
        ETH_P_IP if word(6)? & 0x3fff != 0 => return None,
        ETH_P_IP => ([v4(12)?, v4(16)?], packet.get(9)?, ihl * 4, word(2)?),
        ETH_P_IPV6 => ([v6(8)?, v6(24)?], packet.get(6)?, IPV6, IPV6 + word(4)?),
        _ => return None,
    };
    let packet = packet.get(..len)?;
    let is_udp = c_int::from(*protocol) == IPPROTO_UDP;
    (is_udp && number(packet, udp + 2..udp + 4)? == PORT).then_some((addresses, packet, udp))
}

/// Returns the text of a key; for an acknowledgement the one of its syndrome, whose bits 5 and 6 are
/// its kind.
fn meaning(lang: Lang, key: &str, syndrome: u64) -> String {
    let text = |key: &str| lang.text(TEXTS, key).to_owned();
    match (key, syndrome >> 5, syndrome as u8 & 31) {
        ("ack", 1, timer) => {
            let time = RnrTimer::new(timer).map_or_else(|_| String::new(), |it| it.to_string());
            format!("{} {time}", text("nak.rnr"))
        }
        ("ack", 3, code @ 0..=3) => text(&format!("nak.{code}")),
        ("ack", 1.., _) => text("nak"),
        _ => text(key),
    }
}

/// Identifies a request: addresses, queue pair, opcode and PSN.
pub type Request = ([IpAddr; 2], [u64; 3]);

/// A RoCE v2 packet.
#[derive(Debug)]
pub struct Packet {
    /// Identifies the packet if it is a request of a reliable connection: such a packet is sent
    /// again when no answer comes.
    pub request: Option<Request>,
    /// The addresses, the name and the fields of the headers.
    pub fields: String,
    pub meaning: String,
}

impl Packet {
    /// Decodes an Ethernet frame. Returns [`None`] for a frame of another protocol, and for one that
    /// is too short for its headers.
    pub fn decode(frame: &[u8], lang: Lang) -> Option<Self> {
        let ([from, to], packet, udp) = network(frame)?;
        let (covered, sum) = packet.split_last_chunk()?;
        let mut at = udp + UDP;
        let mut take = |len| {
            at += len;
            number(covered, at - len..at)
        };
        let (opcode, flags, _, qp_num) = (take(1)?, take(1)?, take(3)?, take(3)?);
        let (ack, psn) = (take(1)?, take(3)?);
        let ackreq = if ack >> 7 == 1 { " ackreq" } else { "" };
        let solicited = if flags >> 7 == 1 { " solicited" } else { "" };
        let mut fields = format!("qp {qp_num} psn {psn:#x}{ackreq}{solicited}");
        let transport = *TRANSPORTS.get(opcode as usize >> 5)?;
        let is_answer = (13..=18).contains(&(opcode & 31));
        match transport {
            // DETH.
            "UD" => {
                let (qkey, _, from) = (take(4)?, take(1)?, take(3)?);
                fields += &format!(" from qp {from} qkey {qkey:#x}");
            }
            // XRCETH.
            "XRC" if !is_answer => {
                let (_, srq) = (take(1)?, take(3)?);
                fields += &format!(" srq {srq}");
            }
            _ => {}
        }
        // The lower five bits of a congestion notification mean nothing, and name no header.
        let operation = OPERATIONS.get(opcode as usize & 31);
        let (name, key, mut headers) = operation.copied().unwrap_or(UNKNOWN);
        // The headers of RD are others, and not decoded.
        if transport == "RD" {
            headers = &[];
        }
        let mut syndrome = 0;
        for (label, len) in headers.iter().copied().flatten() {
            let value = take(*len)?;
            match *label {
                "" => {}
                "length" | "msn" => fields += &format!(" {label} {value}"),
                "syndrome" => {
                    syndrome = value;
                    fields += &format!(" {label} {value:#04x}");
                }
                _ => fields += &format!(" {label} {value:#x}"),
            }
        }
        let data = covered.get(at..)?;
        // At most three bytes at the end of the data fill it up to a multiple of four.
        let len = data.len().checked_sub((flags as usize >> 4) & 3)?;
        if len != 0 && transport != "RD" {
            fields += &format!(" data {len}");
        }
        let known = format!("{transport} {name}");
        let (mut name, mut key) = match (transport, name) {
            _ if opcode == CNP => ("CNP".to_owned(), "cnp"),
            ("", _) | (_, "") => (format!("opcode {opcode:#04x}"), "unknown"),
            ("UD", "SEND Only" | "SEND Only with Immediate") => (known, "ud"),
            ("UD" | "RD", _) => (known, "unknown"),
            _ => (known, key),
        };
        let is_mad = transport == "UD" && qp_num == GSI;
        if let Some(attribute) = number(data, 16..18).filter(|_| is_mad) {
            // Another management datagram has none of the names.
            let message = MESSAGES.iter().zip(0x10..).find(|(_, at)| *at == attribute);
            name = format!("{name} {}", message.map_or("", |(name, _)| name));
            key = if key == "ud" { "mad" } else { key };
        }
        let mut meaning = meaning(lang, key, syndrome);
        if *sum != icrc(covered, udp).to_le_bytes() {
            meaning = format!("{}; {meaning}", lang.text(TEXTS, "icrc"));
        }
        let is_request = transport == "RC" && !is_answer;
        Some(Self {
            request: is_request.then_some(([from, to], [qp_num, opcode, psn])),
            fields: format!("{from} > {to} {name:24} {fields}"),
            meaning,
        })
    }
}
