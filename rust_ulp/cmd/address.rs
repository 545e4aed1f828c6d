// SPDX-License-Identifier: GPL-2.0

//! Conversion and checks of paths to a peer.

use super::access::Ctx;
use crate::{
    device::DeviceState,
    rdma::{
        self,
        ah::AddressVector,
        gid::GidRef,
        pd::Pd, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Returns whether the device has a port with this number.
pub(super) fn port_exists(device: &DeviceState, port: u32) -> bool {
    port != 0 && port <= device.attributes.phys_ports
}

/// Checks the members of a path that do not depend on the device.
///
/// Returns [`EINVAL`] for an undefined value, and [`ERANGE`] for a number that is too large.
pub(super) fn check_path(ah: &abi::AhAttr) -> Result {
    // `enum ib_rate` has no 1 and no 24.
    if ah.is_global > 1 || !matches!(ah.static_rate, 0 | 2..=23 | 25) {
        return Err(EINVAL);
    }
    if ah.flow_label > 0xf_ffff || ah.sl > 15 || ah.src_path_bits > 127 {
        return Err(ERANGE);
    }
    Ok(())
}

/// Converts a path from the ABI.
pub(super) fn address_vector(ah: &abi::AhAttr) -> AddressVector {
    AddressVector {
        dgid: ah.dgid,
        flow_label: ah.flow_label,
        sgid_index: ah.sgid_index,
        hop_limit: ah.hop_limit,
        traffic_class: ah.traffic_class,
        sl: ah.sl,
        dlid: u32::from(ah.dlid_high) << 16 | u32::from(ah.dlid),
        port: ah.port_num,
        grh: ah.is_global != 0,
        static_rate: ah.static_rate,
        src_path_bits: ah.src_path_bits,
        dmac: ah.dmac,
    }
}

/// Converts a path to the ABI.
pub(super) fn ah_attr(av: &AddressVector) -> abi::AhAttr {
    abi::AhAttr {
        dgid: av.dgid,
        flow_label: av.flow_label,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        sl: av.sl,
        dlid: av.dlid as u16,
        dlid_high: (av.dlid >> 16) as u16,
        port_num: av.port,
        is_global: av.grh.into(),
        static_rate: av.static_rate,
        src_path_bits: av.src_path_bits,
        dmac: av.dmac,
        pad: 0,
        pad2: 0,
        reserved: [0; 5],
    }
}

/// Checks the local end of `av`. Sleeps.
///
/// The caller keeps the returned reference until the device has the path. Until then, the index
/// cannot become that of a GID in another namespace.
///
/// Returns [`ENOENT`] if the GID index is not in use or the netdev of the GID is in another network
/// namespace than the file's, and [`EINVAL`] for a path without GRH on Ethernet.
pub(super) fn check_address(ctx: &Ctx<'_>, av: &AddressVector) -> Result<Option<GidRef>> {
    let device = ctx.device.device();
    if !av.grh {
        return match device.port(av.port)?.link_layer {
            rdma::device::LinkLayer::Ethernet => Err(EINVAL),
            _ => Ok(None),
        };
    }
    let held = device.hold_gid(av.port, av.sgid_index.into())?;
    let gid = device.gid(av.port, av.sgid_index.into(), Some(ctx.file.net()))?;
    if gid.foreign_net {
        return Err(ENOENT);
    }
    Ok(Some(held))
}

/// Returns `av` with the MAC address of the peer, if its port needs one. Sleeps.
///
/// As with uverbs, a user does not choose it: an adapter may keep it in a table that all users share
/// (drivers/infiniband/hw/irdma/utils.c:irdma_add_arp). Returns [`EPERM`] for a MAC address that is
/// not the peer's, and the errors of [`AddressVector::resolve`].
pub(super) fn with_mac(device: &DeviceState, pd: &Pd, av: AddressVector) -> Result<AddressVector> {
    if device.device().port(av.port)?.link_layer != rdma::device::LinkLayer::Ethernet {
        return Ok(av);
    }
    let asked = av.dmac;
    let found = AddressVector { dmac: [0; 6], ..av }.resolve(pd)?;
    if asked != [0; 6] && asked != found.dmac {
        return Err(EPERM);
    }
    Ok(found)
}
