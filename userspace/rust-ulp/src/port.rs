// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ports of a device, and their GIDs.

use crate::abi;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::info::info;
use crate::numbered::numbered;
use crate::sys::File;
use std::fmt;

/// Returns the text of a NUL-terminated field.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

numbered! {
    /// The state of a port.
    pub enum PortState(pub(crate) u32) {
        /// No link, or its interface is down.
        Down = 1,
        /// Link, not yet configured by the subnet manager.
        Init = 2,
        /// Configured, not yet active.
        Armed = 3,
        /// Carries traffic.
        Active = 4,
        /// Carries traffic, link error being recovered.
        ActiveDefer = 5,
    }
}

numbered! {
    /// The link layer of a port. A layer that is not specified is `Other(0)`.
    pub enum LinkLayer(pub(crate) u32) {
        /// InfiniBand: peers are addressed by LID.
        InfiniBand = abi::LINK_INFINIBAND,
        /// Ethernet (RoCE): peers are addressed by GID.
        Ethernet = abi::LINK_ETHERNET,
    }
}

numbered! {
    /// The state of the physical link of a port.
    pub enum PhysState(pub(crate) u32) {
        /// The port saves power.
        Sleep = 1,
        /// The port looks for a peer.
        Polling = 2,
        /// The port is switched off.
        Disabled = 3,
        /// The port agrees on the link with the peer.
        Training = 4,
        /// The link is up.
        LinkUp = 5,
        /// The port repairs the link after errors.
        ErrorRecovery = 6,
        /// The port is tested.
        PhyTest = 7,
    }
}

numbered! {
    /// The rate of each lane of a link.
    pub enum LinkSpeed(pub(crate) u32) {
        /// 2.5 Gbit/s.
        Sdr = 1,
        /// 5 Gbit/s.
        Ddr = 2,
        /// 10 Gbit/s.
        Qdr = 4,
        /// 10.3 Gbit/s.
        Fdr10 = 8,
        /// 14.1 Gbit/s.
        Fdr = 16,
        /// 25.8 Gbit/s.
        Edr = 32,
        /// 53.1 Gbit/s.
        Hdr = 64,
        /// 106.3 Gbit/s.
        Ndr = 128,
        /// 212.5 Gbit/s.
        Xdr = 256,
    }
}

bitflags::bitflags! {
    /// The capabilities of a port, as its device tells; most of them are InfiniBand's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PortCaps: u32 {
        /// A subnet manager runs on it.
        const SM = 1 << 1;
        /// The port sends notices.
        const NOTICE = 1 << 2;
        /// The port sends traps.
        const TRAP = 1 << 3;
        /// Queue pairs of the port can move to another path.
        const AUTO_MIGRATION = 1 << 5;
        /// The port maps service levels to virtual lanes.
        const SL_MAP = 1 << 6;
        /// The port answers the connection manager.
        const CM = 1 << 16;
        /// The port can be managed over SNMP.
        const SNMP_TUNNEL = 1 << 17;
        /// The port asks its clients to register again.
        const CLIENT_REREGISTER = 1 << 25;
        /// GIDs of the port are IP addresses.
        const IP_BASED_GIDS = 1 << 26;
        const _ = !0;
    }
}

info! {
    /// A port of a device.
    #[doc(alias = "rust_ulp_port_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PortInfo(arg: &abi::PortQuery) {
        /// The port, from 1.
        pub port: u32,
        /// The state.
        pub state: PortState = PortState::from_code(arg.state),
        /// The state of its physical link.
        pub phys_state: PhysState = PhysState::from_code(arg.phys_state),
        /// Largest MTU, bytes.
        pub max_mtu: u32,
        /// MTU, bytes.
        pub active_mtu: u32,
        /// The layer below it.
        pub link_layer: LinkLayer = LinkLayer::from_code(arg.link_layer),
        /// Local identifier; InfiniBand, and Omni-Path, where it may have 32 bits.
        pub lid: u32,
        /// The subnet manager's LID.
        pub sm_lid: u32,
        /// Bits of the LID that select a path; InfiniBand only.
        pub lmc: u8 = arg.lmc as u8,
        /// The subnet manager's service level; InfiniBand only.
        pub sm_sl: u8 = arg.sm_sl as u8,
        /// Bytes of one message.
        pub max_msg_size: u32 = arg.max_msg_sz,
        /// Entries of its GID table.
        pub gid_table_len: u32 = arg.gid_tbl_len,
        /// Entries of its P_Key table.
        pub pkey_table_len: u32 = arg.pkey_tbl_len,
        /// Lanes of its link, if they are known.
        pub active_width: Option<u32> = lanes(arg.active_width),
        /// Rate of each lane of its link.
        pub active_speed: LinkSpeed = LinkSpeed::from_code(arg.active_speed),
        /// The capabilities.
        pub capabilities: PortCaps = PortCaps::from_bits_retain(arg.port_cap_flags),
        /// Packets with a wrong P_Key.
        pub bad_pkeys: u32 = arg.bad_pkey_cntr,
        /// Packets with a wrong Q_Key.
        pub qkey_violations: u32 = arg.qkey_viol_cntr,
        /// The network interface, when that is in this network namespace.
        pub ifindex: Option<u32> = (arg.ifindex != 0).then_some(arg.ifindex),
    }
}

impl PortInfo {
    /// Returns the LID if it has 16 bits, as those of an [`Endpoint`](crate::Endpoint) do.
    pub(crate) fn short_lid(&self) -> Result<u16> {
        let what = "a LID of more than 16 bits";
        u16::try_from(self.lid).map_err(|_| Error::Unsupported { what })
    }
}

/// Returns the number of lanes of a link.
fn lanes(width: u32) -> Option<u32> {
    match width {
        1 => Some(1),
        2 => Some(4),
        4 => Some(8),
        8 => Some(12),
        16 => Some(2),
        _ => None,
    }
}

numbered! {
    /// The protocol of a GID on the wire.
    pub enum GidType(pub(crate) u32) {
        /// InfiniBand.
        Ib = abi::GID_IB,
        /// RoCE v1: Ethernet, one broadcast domain.
        RoceV1 = abi::GID_ROCE_V1,
        /// RoCE v2: UDP, can be routed.
        RoceV2 = abi::GID_ROCE_V2,
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(n) => write!(f, "GID type {n}"),
        }
    }
}

/// An entry of a port's GID table.
#[doc(alias = "rust_ulp_gid_entry")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The index in the table. An address names it by 8 bits, so entries above 255 are not listed.
    pub index: u8,
    /// The protocol.
    pub gid_type: GidType,
    /// Number and name of its network interface, when that is in this network namespace.
    pub interface: Option<(u32, String)>,
    /// True if it is an IPv4 address (`::ffff:a.b.c.d`).
    pub is_ipv4: bool,
    /// True if it is good for one link only (`fe80::/10`).
    pub is_link_local: bool,
    /// True if [`Device::default_gid`](crate::Device::default_gid) names it.
    pub is_preferred: bool,
}

impl GidEntry {
    fn in_words(&self) -> String {
        let address = if self.is_ipv4 {
            "an IPv4 address"
        } else if self.is_link_local {
            "a link-local address"
        } else {
            "an IPv6 address"
        };
        match &self.interface {
            Some((_, name)) => format!("{}, {address} of {name}", self.gid_type),
            None if self.gid_type == GidType::Ib => self.gid_type.to_string(),
            None => format!(
                "{}, {address} of an interface in another network namespace",
                self.gid_type
            ),
        }
    }
}

/// The port and GID that a queue pair uses unless told otherwise, and why.
#[doc(alias = "rust_ulp_attach")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "Chosen")]
#[non_exhaustive]
pub struct DefaultGid {
    /// The port, from 1.
    pub port: u32,
    /// Index into its GID table.
    pub gid_index: u8,
    /// The GID.
    pub gid: Gid,
    /// The reason for this choice, as text.
    pub reason: String,
}

impl fmt::Display for DefaultGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, GID index {}, {}: {}",
            self.port, self.gid_index, self.gid, self.reason
        )
    }
}

/// Asks with arrays that grow until they hold everything.
pub(crate) fn all<T: Clone, E>(
    zero: T,
    mut ask: impl FnMut(&mut [T]) -> std::result::Result<u32, E>,
) -> std::result::Result<Vec<T>, E> {
    let mut entries = vec![zero.clone(); 16];
    loop {
        let count = ask(&mut entries)? as usize;
        // Nothing has more of anything than this.
        if count <= entries.len() || entries.len() >= 1 << 16 {
            entries.truncate(count);
            return Ok(entries);
        }
        entries.resize(count.min(1 << 16), zero.clone());
    }
}

pub(crate) fn gids(file: &File, port: u32) -> Result<Vec<GidEntry>> {
    let raw = all(abi::GidEntry::default(), |entries| {
        file.gid_query(port, entries)
    });
    let raw = raw.map_err(|errno| Error::sys("GID_QUERY", errno))?;
    let entry = |entry: &abi::GidEntry| {
        Some(GidEntry {
            gid: Gid(entry.gid),
            index: u8::try_from(entry.index).ok()?,
            gid_type: GidType::from_code(entry.gid_type),
            interface: (entry.flags & abi::GID_LOCAL_NET != 0)
                .then(|| (entry.ifindex, text(&entry.ifname))),
            is_ipv4: entry.flags & abi::GID_IPV4 != 0,
            is_link_local: entry.flags & abi::GID_LINK_LOCAL != 0,
            is_preferred: entry.flags & abi::GID_PREFERRED != 0,
        })
    };
    Ok(raw.iter().filter_map(entry).collect())
}

/// Returns the error of an address that was refused because its two GIDs are of different families, if
/// they are.
pub(crate) fn family_error(file: &File, ah: &abi::AhAttr) -> Option<Error> {
    let gids = gids(file, ah.port_num).ok()?;
    let local = gids.iter().find(|gid| gid.index == ah.sgid_index)?;
    let peer = Gid(ah.dgid);
    let is_ipv4 = peer.ipv4().is_some();
    // An address of InfiniBand or of RoCE v1 has no family.
    if local.gid_type != GidType::RoceV2 || local.gid.ipv4().is_some() == is_ipv4 {
        return None;
    }
    let of_peer = |gid: &&GidEntry| {
        gid.gid_type == GidType::RoceV2 && gid.interface.is_some() && gid.is_ipv4 == is_ipv4
    };
    // A link-local address reaches one link only.
    let usable = gids.iter().filter(of_peer);
    let usable = usable.min_by_key(|gid| (!gid.is_preferred, gid.is_link_local, gid.index));
    Some(Error::GidFamily {
        port: ah.port_num,
        index: local.index,
        local: local.gid,
        peer,
        usable: usable.map(|gid| gid.index),
    })
}

/// Returns the choice of ATTACH with the reason, or what there is, if it chose none.
pub(crate) fn choose(attach: &abi::Attach, gids: &[GidEntry]) -> Result<DefaultGid, String> {
    let tried = || {
        let all: Vec<String> = gids
            .iter()
            .map(|gid| format!("index {}: {}", gid.index, gid.in_words()))
            .collect();
        if all.is_empty() {
            "none in this network namespace".to_owned()
        } else {
            all.join("; ")
        }
    };
    let gid = gids
        .iter()
        .find(|gid| u32::from(gid.index) == attach.gid_index);
    let gid = gid.ok_or_else(tried)?;
    let others: Vec<String> = gids
        .iter()
        .filter(|other| other.index != gid.index)
        .map(|other| format!("{} ({})", other.index, other.in_words()))
        .collect();
    let reason = if others.is_empty() {
        format!("{}; the only one of port {}", gid.in_words(), attach.port)
    } else {
        format!(
            "{}; rather than index {}",
            gid.in_words(),
            others.join(", ")
        )
    };
    Ok(DefaultGid {
        port: attach.port,
        gid_index: gid.index,
        gid: gid.gid,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_port_have_names() {
        let port = |phys_state, active_width, active_speed| {
            PortInfo::new(&abi::PortQuery {
                port: 3,
                state: 4,
                phys_state,
                active_width,
                active_speed,
                port_cap_flags: (1 << 16) | (1 << 30),
                ..crate::sys::Command::new()
            })
        };
        let up = port(5, 2, 32);
        assert_eq!((up.port, up.state), (3, PortState::Active));
        assert_eq!(
            (up.phys_state, up.active_width),
            (PhysState::LinkUp, Some(4))
        );
        assert_eq!(up.active_speed, LinkSpeed::Edr);
        assert!(up.capabilities.contains(PortCaps::CM));
        assert_eq!(up.capabilities.bits() & !PortCaps::CM.bits(), 1 << 30);
        let lanes = [1, 2, 4, 8, 16, 3].map(|code| port(0, code, 0).active_width);
        assert_eq!(lanes, [Some(1), Some(4), Some(8), Some(12), Some(2), None]);
        assert_eq!(port(9, 0, 0).phys_state, PhysState::Other(9));
        assert_eq!(port(3, 0, 256).phys_state, PhysState::Disabled);
        assert_eq!(port(3, 0, 256).active_speed, LinkSpeed::Xdr);
        assert_eq!(port(3, 0, 7).active_speed, LinkSpeed::Other(7));
    }
}
