// SPDX-License-Identifier: GPL-2.0

//! Paths between devices of this machine, and from a device to itself.

use super::{
    ah::AddressVector,
    device::{
        Device,
        Port, //
    },
    gid::{
        Gid,
        GidType, //
    },
    qp_attr::Attributes, //
};
use crate::ext::errno::{
    eaddrnotavail,
    enodata, //
};
use kernel::prelude::*;

/// The number of GIDs of a port that are considered.
const MAX_GIDS: u32 = 256;

/// A path to a device of this machine.
///
/// ```
/// # use {qp::Qp, waiter::WaitHandler};
/// fn connect(near: &Qp<WaitHandler>, far: &Qp<WaitHandler>) -> Result {
///     let path = LocalPath::find(near.pd().device(), far.pd().device())?;
///     near.bring_up(&path.attributes(far.number(), 1))
/// }
/// ```
pub(crate) struct LocalPath {
    av: AddressVector,
    mtu: u32,
}

impl LocalPath {
    /// Finds a path from `from` to `to`, which may be the same device. Sleeps.
    ///
    /// The path leads from the first GID of `from` to the first GID of the same kind of `to`. A
    /// link-local GID of RoCE does not reach another device, which may be on another link. Fails
    /// with [`eaddrnotavail`] when there are no such GIDs.
    pub(crate) fn find(from: &Device, to: &Device) -> Result<Self> {
        let is_self = from == to;
        let (mut path, sgid) = first(from, |number, index, port, gid| {
            let reaches = is_self || gid.gid_type == GidType::Ib || !gid.is_link_local();
            let av = AddressVector {
                port: number,
                sgid_index: u8::try_from(index)?,
                ..AddressVector::default()
            };
            let mtu = port.active_mtu;
            Ok(reaches.then_some((Self { av, mtu }, gid)))
        })?;
        let kind = |gid: &Gid| (gid.gid_type, gid.is_ipv4(), gid.is_link_local());
        let (av, mtu) = first(to, |number, index, port, gid| {
            if kind(&gid) != kind(&sgid) {
                return Ok(None);
            }
            let av = match AddressVector::to_gid(to, port, number, index, gid.raw) {
                // The GID or its netdev was removed since the search.
                Err(err) if err == enodata() || err == ENODEV => return Ok(None),
                av => av?,
            };
            Ok(Some((av, port.active_mtu)))
        })?;
        path.av = AddressVector {
            port: path.av.port,
            sgid_index: path.av.sgid_index,
            ..av
        };
        path.mtu = path.mtu.min(mtu);
        Ok(path)
    }

    /// Returns the attributes of a reliable queue pair that this path connects to the queue pair
    /// number `peer`. Both begin with the PSN `psn`. The peer gets no rights.
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

/// Returns the first result of `choose` for a GID of `device`, of an active port if there is one.
/// The arguments of `choose` are the number of the port, the index of the GID, the port and the
/// GID.
fn first<T>(
    device: &Device,
    choose: impl Fn(u32, u32, &Port, Gid) -> Result<Option<T>>,
) -> Result<T> {
    for active in [true, false] {
        for number in 1..=device.attributes().phys_ports {
            let port = device.port(number)?;
            if port.is_active() != active {
                continue;
            }
            for index in 0..port.gid_tbl_len().min(MAX_GIDS) {
                let Ok(gid) = device.gid(number, index, None) else {
                    continue;
                };
                if let Some(chosen) = choose(number, index, &port, gid)? {
                    return Ok(chosen);
                }
            }
        }
    }
    Err(eaddrnotavail())
}
