// SPDX-License-Identifier: GPL-2.0

//! Addresses as the caller gives them: checks, and what the verbs take for them.

use crate::{
    device::DeviceState,
    file::UlpFile,
    rdma::{
        self,
        ah::AddressVector, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

pub(super) fn port_exists(live: &DeviceState, port: u8) -> bool {
    port != 0 && u32::from(port) <= live.attributes.phys_ports
}

pub(super) fn address_vector(ah: &abi::AhAttr) -> AddressVector {
    AddressVector {
        dgid: ah.dgid,
        flow_label: ah.flow_label,
        sgid_index: ah.sgid_index,
        hop_limit: ah.hop_limit,
        traffic_class: ah.traffic_class,
        sl: ah.sl,
        dlid: ah.dlid,
        port: ah.port_num.into(),
        grh: ah.is_global != 0,
        static_rate: ah.static_rate,
        src_path_bits: ah.src_path_bits,
        dmac: ah.dmac,
    }
}

/// Checks that our end of `av` is there. Sleeps.
///
/// [`ENOENT`] for a GID index that is not in use, [`EINVAL`] for an address without a GRH on
/// Ethernet.
pub(super) fn check_address(context: &UlpFile, live: &DeviceState, av: &AddressVector) -> Result {
    let port = live.device().port(av.port)?;
    if av.grh && u32::from(av.sgid_index) >= port.gid_tbl_len() {
        return Err(ENOENT);
    }
    if port.link_layer == rdma::device::LinkLayer::Ethernet {
        if !av.grh {
            return Err(EINVAL);
        }
        live.device()
            .gid(av.port, av.sgid_index.into(), context.net())?;
    }
    Ok(())
}

/// Whether `av` lacks a link-layer address that its port needs. Sleeps.
pub(super) fn needs_resolving(live: &DeviceState, av: &AddressVector) -> Result<bool> {
    let port = live.device().port(av.port)?;
    Ok(port.link_layer == rdma::device::LinkLayer::Ethernet && av.dmac == [0; 6])
}
