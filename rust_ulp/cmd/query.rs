// SPDX-License-Identifier: GPL-2.0

//! Commands of the module, its devices, and their ports. They run in process context.

use super::access::{
    check_entry_size,
    Ctx, //
};
use crate::{
    device::{
        choose,
        name_of,
        Choice, //
    },
    ext::user::write_entries,
    file::UlpFile,
    limits::{
        MAX_BATCH,
        MAX_BUFFER,
        MAX_CQ_ENTRIES,
        MAX_INLINE,
        MAX_QUEUE_DEPTH,
        MAX_SGE, //
    },
    rdma::{
        device::{
            mtu_bytes,
            LinkLayer, //
        },
        gid::{
            Gid,
            GidType, //
        }, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Describes the module.
pub(super) fn module(file: &UlpFile, value: &mut abi::Query) -> Result {
    *value = abi::Query {
        size: value.size,
        flags: 0,
        abi_version: abi::ABI_VERSION,
        max_objects: file.registry().parameters().max_objects,
        max_buffer: MAX_BUFFER,
        max_batch: MAX_BATCH,
        max_cq_entries: MAX_CQ_ENTRIES,
        max_queue_depth: MAX_QUEUE_DEPTH,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_entries: file.quota().usage().1,
        event_size: abi::Event::SIZE,
        cqe_size: abi::Cqe::SIZE,
    };
    Ok(())
}

/// Lists the devices that the file may attach to.
pub(super) fn devices(file: &UlpFile, value: &mut abi::DeviceList) -> Result {
    let mut entries = KVec::new();
    let mut result = Ok(());
    // The preferred GID of the default device, and the position of that device.
    let mut default: Option<(Choice, usize)> = None;
    file.registry().for_each(file.net(), |device, state| {
        let mut flags = 0;
        if let Some(choice) = choose(state.device(), file.net()) {
            flags |= abi::DEVICE_LOCAL_NET;
            // As `Registry::find` decides.
            if default.is_none_or(|(was, _)| choice.is_better_than(&was)) {
                default = Some((choice, entries.len()));
            }
        }
        let entry = abi::DeviceEntry {
            name: device.name(),
            node_guid: state.attributes.node_guid,
            index: device.index(),
            flags,
            phys_ports: state.attributes.phys_ports,
            pad: 0,
        };
        if result.is_ok() {
            result = entries.push(entry, GFP_KERNEL_ACCOUNT);
        }
    });
    result?;
    if let Some(entry) = default.and_then(|(_, at)| entries.get_mut(at)) {
        entry.flags |= abi::DEVICE_DEFAULT;
    }
    write_entries(value.entries, value.entry_size, value.capacity, &entries)?;
    value.count = entries.len() as u32;
    Ok(())
}

/// Checks that the name is NUL-terminated, and the size of events.
pub(super) fn check_attach(value: &abi::Attach) -> Result {
    if value.name.last() != Some(&0) {
        return Err(EINVAL);
    }
    check_entry_size(value.event_size, abi::EVENT_SIZE_V1, abi::Event::SIZE)
}

/// Attaches the file to a device.
pub(super) fn attach(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Attach) -> Result {
    let name = value.name;
    UlpFile::attach(file, name_of(&name), value.event_size)?;

    let device = file.enter()?;
    let choice = choose(device.device(), file.net());
    value.name = file.device()?.name();
    value.index = device.attributes.index;
    value.phys_ports = device.attributes.phys_ports;
    value.port = choice.map_or(1, |choice| choice.port);
    value.gid_index = choice.map_or(u32::MAX, |choice| choice.gid_index);
    Ok(())
}

/// Describes the device.
pub(super) fn device(ctx: &Ctx<'_>, value: &mut abi::DeviceQuery) -> Result {
    let device = &ctx.device;
    let attributes = &device.attributes;
    let [rc_send_ops, uc_send_ops, ud_send_ops] = device.send_ops;
    let mut caps = 0;
    if attributes.max_srq > 0 {
        caps |= abi::CAP_SRQ;
    }
    if attributes.virt_dma {
        caps |= abi::CAP_VIRT_DMA;
    }
    *value = abi::DeviceQuery {
        size: value.size,
        flags: 0,
        name: ctx.file.device()?.name(),
        fw_ver: device.device().firmware(),
        node_guid: attributes.node_guid,
        sys_image_guid: attributes.sys_image_guid,
        max_mr_size: attributes.max_mr_size,
        page_size_cap: attributes.page_size_cap,
        caps,
        rc_send_ops,
        uc_send_ops,
        ud_send_ops,
        vendor_id: attributes.vendor_id,
        vendor_part_id: attributes.vendor_part_id,
        hw_ver: attributes.hw_ver,
        phys_ports: attributes.phys_ports,
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        max_send_sge: attributes.max_send_sge,
        max_recv_sge: attributes.max_recv_sge,
        max_cq: attributes.max_cq,
        max_cqe: attributes.max_cqe,
        max_mr: attributes.max_mr,
        max_pd: attributes.max_pd,
        max_qp_rd_atom: attributes.max_qp_rd_atom,
        max_qp_init_rd_atom: attributes.max_qp_init_rd_atom,
        max_srq: attributes.max_srq,
        max_srq_wr: attributes.max_srq_wr,
        max_fast_reg_pages: attributes.max_fast_reg_pages,
        num_comp_vectors: attributes.num_comp_vectors,
        local_ca_ack_delay: attributes.local_ca_ack_delay,
        atomic_cap: attributes.atomic_cap,
        device_cap_flags: attributes.device_cap_flags,
        max_sge_rd: attributes.max_sge_rd,
        max_srq_sge: attributes.max_srq_sge,
    };
    Ok(())
}

/// Describes a port.
pub(super) fn port(ctx: &Ctx<'_>, value: &mut abi::PortQuery) -> Result {
    let device = ctx.device.device();
    let number = value.port;
    let port = device.port(number)?;
    *value = abi::PortQuery {
        size: value.size,
        flags: 0,
        port: number,
        state: port.state,
        phys_state: port.phys_state.into(),
        max_mtu: mtu_bytes(port.max_mtu),
        active_mtu: mtu_bytes(port.active_mtu),
        link_layer: match port.link_layer {
            LinkLayer::Unspecified => abi::LINK_UNSPECIFIED,
            LinkLayer::InfiniBand => abi::LINK_INFINIBAND,
            LinkLayer::Ethernet => abi::LINK_ETHERNET,
        },
        lid: port.lid,
        sm_lid: port.sm_lid,
        lmc: port.lmc.into(),
        sm_sl: port.sm_sl.into(),
        max_msg_sz: port.max_msg_sz,
        gid_tbl_len: port.gid_tbl_len(),
        pkey_tbl_len: port.pkey_tbl_len.into(),
        active_width: port.active_width.into(),
        active_speed: port.active_speed.into(),
        port_cap_flags: port.port_cap_flags,
        bad_pkey_cntr: port.bad_pkey_cntr,
        qkey_viol_cntr: port.qkey_viol_cntr,
        ifindex: device.port_ifindex(number, ctx.file.net()),
        pad: 0,
    };
    Ok(())
}

/// Lists the GIDs of a port.
pub(super) fn gids(file: &UlpFile, value: &mut abi::GidQuery) -> Result {
    let device = file.enter()?;
    let number = value.port;
    device.device().port(number)?;
    let preferred = choose(device.device(), file.net())
        .filter(|choice| choice.port == number)
        .map(|choice| choice.gid_index);
    let mut entries = KVec::new();
    let mut result = Ok(());
    device.device().for_each_gid(|port, index| {
        if port != number {
            return;
        }
        let Ok(gid) = device.device().gid(number, index, Some(file.net())) else {
            return;
        };
        // The address is the business of another namespace.
        if gid.foreign_net {
            return;
        }
        if result.is_ok() {
            let entry = gid_entry(&gid, index, preferred == Some(index));
            result = entries.push(entry, GFP_KERNEL_ACCOUNT);
        }
    });
    drop(device);
    result?;
    write_entries(value.entries, value.entry_size, value.capacity, &entries)?;
    value.count = entries.len() as u32;
    Ok(())
}

/// Describes the GID at `index`.
fn gid_entry(gid: &Gid, index: u32, preferred: bool) -> abi::GidEntry {
    let flags = [
        (gid.is_ipv4(), abi::GID_IPV4),
        (gid.is_link_local(), abi::GID_LINK_LOCAL),
        (gid.local_net, abi::GID_LOCAL_NET),
        (preferred, abi::GID_PREFERRED),
    ];
    abi::GidEntry {
        gid: gid.raw,
        index,
        ifindex: gid.ifindex,
        gid_type: match gid.gid_type {
            GidType::Ib => abi::GID_IB,
            GidType::RoceV1 => abi::GID_ROCE_V1,
            GidType::RoceV2 => abi::GID_ROCE_V2,
        },
        flags: flags
            .into_iter()
            .fold(0, |all, (set, flag)| if set { all | flag } else { all }),
        ifname: gid.ifname,
    }
}

/// Returns one P_Key of a port.
pub(super) fn pkey(ctx: &Ctx<'_>, value: &mut abi::PkeyQuery) -> Result {
    value.pkey = ctx.device.device().pkey(value.port, value.index)?.into();
    Ok(())
}
