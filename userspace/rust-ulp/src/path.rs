// SPDX-License-Identifier: MIT OR Apache-2.0

//! The path to a peer.

use crate::abi;
use crate::gid::Gid;
use crate::params::TrafficClass;

/// The path to a peer.
#[doc(alias = "rust_ulp_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// The peer's GID.
    pub gid: Gid,
    /// Index of the GID to send from.
    pub gid_index: u8,
    /// The port to send from, from 1.
    pub port: u32,
    /// Routers that may be passed; 0: as the route says.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: TrafficClass,
    /// 20 bits; selects among equal routes.
    pub flow_label: u32,
    /// Service level: 0 to 15, and with RoCE 0 to 7.
    pub sl: u8,
    /// The peer's LID; InfiniBand only.
    pub lid: u16,
    /// True if GIDs and hop limit count: always with RoCE, and on InfiniBand between subnets.
    pub is_global: bool,
}

impl Path {
    /// Returns the path to `gid` from the GID at `gid_index` of `port`, else as the route says.
    pub fn new(gid: Gid, port: u32, gid_index: u8) -> Self {
        Self {
            gid,
            gid_index,
            port,
            hop_limit: 0,
            traffic_class: TrafficClass::default(),
            flow_label: 0,
            sl: 0,
            lid: 0,
            is_global: true,
        }
    }

    pub(crate) fn to_abi(self) -> abi::AhAttr {
        abi::AhAttr {
            dgid: self.gid.0,
            flow_label: self.flow_label,
            sgid_index: self.gid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class.0,
            sl: self.sl,
            dlid: self.lid,
            port_num: self.port,
            is_global: self.is_global.into(),
            ..abi::AhAttr::default()
        }
    }

    pub(crate) fn from_abi(ah: &abi::AhAttr) -> Self {
        Self {
            gid: Gid(ah.dgid),
            gid_index: ah.sgid_index,
            port: ah.port_num,
            hop_limit: ah.hop_limit,
            traffic_class: TrafficClass(ah.traffic_class),
            flow_label: ah.flow_label,
            sl: ah.sl,
            lid: ah.dlid,
            is_global: ah.is_global != 0,
        }
    }
}
