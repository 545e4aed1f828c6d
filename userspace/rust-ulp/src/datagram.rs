// SPDX-License-Identifier: MIT OR Apache-2.0

//! Datagrams that were received.

use crate::abi;
use crate::ah::{AddressHandle, Destination};
use crate::buffer::LocalSlice;
use crate::completion::Completion;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::params::TrafficClass;
use crate::qp::Qp;
use crate::status::Opcode;
use crate::transport::Ud;
use std::net::Ipv4Addr;

/// The network header of a datagram: the 40 bytes before its payload.
///
/// RoCE v2 over IPv6 and InfiniBand have a global route header, which looks like that of IPv6. RoCE
/// v2 over IPv4 has 20 bytes without meaning, then the IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grh {
    /// The sender's GID.
    pub src: Gid,
    /// The GID that it was sent to.
    pub dst: Gid,
    /// DSCP and ECN: how the network marked it on its way.
    pub traffic_class: TrafficClass,
    /// 20 bits; 0 with IPv4.
    pub flow_label: u32,
    /// Routers that it could still have passed.
    pub hop_limit: u8,
    /// Bytes after the header, as the header has it.
    pub payload_len: u16,
}

impl Grh {
    /// Bytes before the payload of every datagram that is received, header or not.
    pub const LEN: usize = 40;

    /// Reads the header. [`None`] if it is neither.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [first, ..] = bytes;
        let (_, v4) = bytes.split_last_chunk::<20>()?;
        match first >> 4 {
            // The first 20 bytes may be anything before an IPv4 header: it is one if its sum is
            // right.
            6 if !ipv4_sum_is_right(v4) => Some(Self::ipv6(bytes)),
            _ if v4.first()? >> 4 == 4 => Some(Self::ipv4(v4)),
            _ => None,
        }
    }

    fn ipv6(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, len @ ..] = *bytes;
        let [len0, len1, _next, hop_limit, gids @ ..] = len;
        let mut src = [0; 16];
        let mut dst = [0; 16];
        for (to, from) in src.iter_mut().chain(&mut dst).zip(gids) {
            *to = from;
        }
        Self {
            src: Gid(src),
            dst: Gid(dst),
            traffic_class: TrafficClass((a << 4) | (b >> 4)),
            flow_label: u32::from_be_bytes([0, b & 0xf, c, d]),
            hop_limit,
            payload_len: u16::from_be_bytes([len0, len1]),
        }
    }

    fn ipv4(header: &[u8; 20]) -> Self {
        let [_, tos, len0, len1, _, _, _, _, ttl, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3] =
            *header;
        Self {
            src: Ipv4Addr::new(s0, s1, s2, s3).into(),
            dst: Ipv4Addr::new(d0, d1, d2, d3).into(),
            traffic_class: TrafficClass(tos),
            flow_label: 0,
            hop_limit: ttl,
            payload_len: u16::from_be_bytes([len0, len1]).saturating_sub(20),
        }
    }
}

/// Returns whether this is an IPv4 header without options whose checksum is right.
fn ipv4_sum_is_right(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2).map(|pair| match pair {
        [a, b] => u32::from(u16::from_be_bytes([*a, *b])),
        _ => 0,
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header.first() == Some(&0x45) && folded == 0xffff
}

/// A datagram that was received; from [`Qp::received`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Datagram<'b> {
    /// The bytes behind the network header, in the slice that was posted.
    pub payload: LocalSlice<'b>,
    /// Number of the queue pair that sent it.
    pub src_qp: u32,
    /// Immediate data, in host order, where the sender gave some.
    pub imm: Option<u32>,
    /// The network header. Always there with RoCE; on InfiniBand not within a subnet.
    pub grh: Option<Grh>,
    /// Service level that it came with.
    pub sl: u8,
    /// The sender's LID; InfiniBand only.
    pub src_lid: u16,
    /// Index into the port's P_Key table of its P_Key; InfiniBand only.
    pub pkey_index: u16,
}

impl Qp<Ud> {
    /// Creates an address handle for the host of `peer`, by this queue pair's port and GID, with
    /// the options that it was built with. Fails as [`Pd::create_ah`](crate::Pd::create_ah).
    pub fn address(&self, peer: &Endpoint) -> Result<AddressHandle> {
        self.pd().create_ah(self.path_to(peer.gid, peer.lid))
    }

    /// Returns the datagram of a completed receive, which was posted with `into` to this queue pair
    /// or to the shared receive queue that it uses.
    ///
    /// The device puts 40 bytes for the network header ([`Grh`]) before the payload: receives have
    /// to be so much longer than the longest datagram.
    ///
    /// A receive of a shared receive queue that was added to a ring of io_uring by `Ring::push` is
    /// not known as one of this queue pair: post it by `DeviceBatch::post_by`.
    ///
    /// # Errors
    ///
    /// [`Error::Completion`] if it failed. [`Error::NotADatagram`] if it is no receive of this
    /// queue pair, or does not fit to `into`.
    pub fn received<'b>(&self, done: &Completion, into: &LocalSlice<'b>) -> Result<Datagram<'b>> {
        let done = (*done).ok()?;
        let total = done.byte_len as usize;
        let is_ours = done.is_of(self) && done.opcode == Opcode::Recv;
        if !is_ours || !(Grh::LEN..=into.len()).contains(&total) {
            return Err(Error::NotADatagram);
        }
        let mut header = [0; Grh::LEN];
        into.buffer().read_at(into.offset(), &mut header)?;
        Ok(Datagram {
            payload: into.slice(Grh::LEN..total)?,
            src_qp: done.src_qp,
            imm: done.imm,
            grh: if done.flags & abi::WC_GRH != 0 {
                Grh::parse(&header)
            } else {
                None
            },
            sl: done.sl,
            src_lid: done.slid,
            pkey_index: done.pkey_index,
        })
    }

    /// Returns the queue pair that sent a datagram, reached from the GID that the datagram was sent
    /// to, if this port has it. The Q_Key is this queue pair's own. Fails as
    /// [`Pd::create_ah`](crate::Pd::create_ah).
    pub fn reply_to(&self, datagram: &Datagram<'_>) -> Result<Destination> {
        let gid = datagram.grh.map_or(Gid::default(), |grh| grh.src);
        let mut path = self.path_to(gid, datagram.src_lid);
        match datagram.grh {
            // Sent to another GID of this port: nobody else can answer for that one.
            Some(grh) if grh.dst != self.endpoint().gid => {
                let gids = Device::from_inner(self.device_inner()).gids(path.port)?;
                if let Some(found) = gids.iter().find(|entry| entry.gid == grh.dst) {
                    path.gid_index = found.index;
                }
            }
            Some(_) => {}
            None => path.is_global = false,
        }
        let ah = self.pd().create_ah(path)?;
        Ok(ah.queue_pair(datagram.src_qp, self.qkey()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns rxe's header of a datagram from 10.9.0.1 to 10.9.0.2: 20 bytes, then IPv4.
    pub(crate) fn ipv4(garbage: u8) -> [u8; Grh::LEN] {
        let mut bytes = [garbage; Grh::LEN];
        let header = [
            0x45, 0xb8, 0x01, 0x00, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2,
        ];
        bytes[20..].copy_from_slice(&header);
        let sum: u32 = header
            .chunks(2)
            .map(|pair| (u32::from(pair[0]) << 8) | u32::from(pair[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    #[test]
    fn an_ipv4_header_whatever_stands_before() {
        for garbage in [0, 0x45, 0x60, 0xff] {
            let grh = Grh::parse(&ipv4(garbage)).unwrap();
            assert_eq!(grh.src.ipv4(), Some(Ipv4Addr::new(10, 9, 0, 1)));
            assert_eq!(grh.dst.ipv4(), Some(Ipv4Addr::new(10, 9, 0, 2)));
            assert_eq!((grh.traffic_class.dscp(), grh.hop_limit), (46, 64));
            assert_eq!((grh.payload_len, grh.flow_label), (256 - 20, 0));
        }
    }

    #[test]
    fn an_ipv6_header() {
        let mut bytes = [0; Grh::LEN];
        bytes[..8].copy_from_slice(&[0x6b, 0x8a, 0xbc, 0xde, 0x01, 0x02, 0x1b, 7]);
        bytes[8..24].copy_from_slice(&[0x11; 16]);
        bytes[24..].copy_from_slice(&[0x22; 16]);
        let grh = Grh::parse(&bytes).unwrap();
        assert_eq!((grh.src, grh.dst), (Gid([0x11; 16]), Gid([0x22; 16])));
        assert_eq!((grh.traffic_class.0, grh.flow_label), (0xb8, 0xabcde));
        assert_eq!((grh.hop_limit, grh.payload_len), (7, 0x102));
        assert_eq!(Grh::parse(&[0; Grh::LEN]), None);
        // The last 20 bytes of an IPv6 header may begin as an IPv4 header does.
        bytes[20] = 0x45;
        assert_eq!(Grh::parse(&bytes).unwrap().hop_limit, 7);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_none(bytes: [u8; 40]) {
            if let Some(grh) = Grh::parse(&bytes) {
                prop_assert!(grh.flow_label < 1 << 20);
            }
        }
    }
}
