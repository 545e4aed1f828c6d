// SPDX-License-Identifier: GPL-2.0

//! The way between two devices of this machine, and from a device to itself.

use super::{
    ah::AddressVector,
    device::{
        Device,
        LinkLayer,
        Port, //
    },
    gid::{
        Gid,
        GidType, //
    },
    qp_attr::Attributes, //
};
use crate::kernel::{
    errno::eaddrnotavail,
    net::NetNs, //
};
use kernel::prelude::*;

/// GIDs of a port that are looked at.
const MAX_GIDS: u32 = 256;

/// The way to a device of this machine.
pub(crate) struct LocalPath {
    av: AddressVector,
    mtu: u32,
}

impl LocalPath {
    /// Finds the way from `from` to `to`, which may be the same device. Sleeps.
    ///
    /// It leads from the first GID of `from` to the first of the same kind of `to`. Another device
    /// is not reached by a link-local GID of RoCE, since it may be on another link.
    /// [`eaddrnotavail`] when there are no such GIDs.
    pub(crate) fn find(from: &Device, to: &Device, net: &NetNs) -> Result<Self> {
        let is_self = from == to;
        let (mut path, sgid) = first(from, net, |number, index, port, gid| {
            let reaches = is_self || gid.gid_type == GidType::Ib || !gid.is_link_local();
            let av = AddressVector {
                port: number,
                sgid_index: u8::try_from(index).ok()?,
                ..AddressVector::default()
            };
            let mtu = port.active_mtu();
            reaches.then_some((Self { av, mtu }, gid))
        })?;
        let kind = |gid: &Gid| (gid.gid_type, gid.is_ipv4(), gid.is_link_local());
        let (av, mtu) = first(to, net, |number, index, port, gid| {
            if kind(&gid) != kind(&sgid) {
                return None;
            }
            // The GID may have gone meanwhile.
            let mut av = AddressVector::to_gid(to, number, index, gid.raw).ok()?;
            if port.link_layer == LinkLayer::InfiniBand {
                av.dlid = port.lid() as u16;
            }
            Some((av, port.active_mtu()))
        })?;
        path.av = AddressVector {
            port: path.av.port,
            sgid_index: path.av.sgid_index,
            ..av
        };
        path.mtu = path.mtu.min(mtu);
        Ok(path)
    }

    /// Returns the attributes of a reliable queue pair that is connected this way to the queue pair
    /// with the number `peer`. `psn` is the first PSN of both. The peer gets no rights.
    pub(crate) fn attributes(&self, peer: u32, psn: u32) -> Attributes {
        Attributes {
            dest_qp_num: peer,
            sq_psn: psn,
            rq_psn: psn,
            port: self.av.port,
            av: self.av,
            path_mtu: self.mtu,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            ..Attributes::default()
        }
    }
}

/// What `choose` returns for the first GID of `device` that it takes; its arguments are the number
/// of the port, the index of the GID, the port and the GID.
fn first<T>(
    device: &Device,
    net: &NetNs,
    choose: impl Fn(u32, u32, &Port, Gid) -> Option<T>,
) -> Result<T> {
    for number in 1..=device.attributes().phys_ports {
        let port = device.port(number)?;
        for index in 0..port.gid_tbl_len().min(MAX_GIDS) {
            let Ok(gid) = device.gid(number, index, net) else {
                continue;
            };
            if let Some(chosen) = choose(number, index, &port, gid) {
                return Ok(chosen);
            }
        }
    }
    Err(eaddrnotavail())
}
