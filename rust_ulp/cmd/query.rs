// SPDX-License-Identifier: GPL-2.0

//! Commands that ask: what the module is, which devices there are, what one can do.
//!
//! Runs in process context.

use crate::{
    device::{
        choose,
        name_of,
        Choice, //
    },
    file::Context,
    kernel::{
        compat::HAS_URING,
        user::{
            write_entry,
            Arg, //
        }, //
    },
    limits::{
        MAX_BATCH,
        MAX_BUFFER,
        MAX_CQ_ENTRIES,
        MAX_INLINE,
        MAX_QUEUE_DEPTH,
        MAX_SGE, //
    },
    logic::numbered,
    rdma::{
        device::{
            mtu_bytes,
            LinkLayer, //
        },
        gid::GidType, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

pub(crate) fn module(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Query>::read(arg, abi::Query::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    arg.value = abi::Query {
        size: arg.value.size,
        flags: 0,
        abi_version: abi::ABI_VERSION,
        max_objects: this.registry().parameters().max_objects,
        features: abi::FEATURE_CALL
            | abi::FEATURE_GRANTS
            | abi::FEATURE_DATAGRAM
            | abi::FEATURE_SRQ
            | abi::FEATURE_EVENTS
            | abi::FEATURE_CM
            | abi::FEATURE_CANCEL
            | abi::FEATURE_EVENTFD
            | abi::FEATURE_URING
            | abi::FEATURE_USER_MEMORY
            | abi::FEATURE_DMABUF,
        max_buffer: MAX_BUFFER,
        max_batch: MAX_BATCH,
        max_cq_entries: MAX_CQ_ENTRIES,
        max_queue_depth: MAX_QUEUE_DEPTH,
        max_sge: MAX_SGE,
        max_inline: MAX_INLINE,
        max_entries: this.quota().usage().1,
    };
    if !HAS_URING {
        arg.value.features &= !abi::FEATURE_URING;
    }
    arg.write()
}

pub(crate) fn devices(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::DeviceList>::read(arg, abi::DeviceList::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let mut entries = KVec::new();
    let mut result = Ok(());
    // The name of the default one; there may be none.
    let default = this
        .registry()
        .find(this.net(), b"")
        .ok()
        .map(|device| device.index());
    this.registry().for_each(this.net(), |device, live| {
        let mut flags = 0;
        if default == Some(device.index()) {
            flags |= abi::DEVICE_DEFAULT;
        }
        if choose(live.device(), this.net()).is_some_and(|choice: Choice| choice.is_local()) {
            flags |= abi::DEVICE_LOCAL_NET;
        }
        let entry = abi::DeviceEntry {
            name: live.device().name(),
            node_guid: live.attributes.node_guid,
            index: device.index(),
            flags,
            phys_ports: live.attributes.phys_ports,
            pad: 0,
        };
        if result.is_ok() {
            result = entries.push(entry, GFP_KERNEL);
        }
    });
    result?;
    let value = &mut arg.value;
    if value.capacity > 0 && value.entry_size < abi::DeviceEntry::SIZE {
        return Err(EINVAL);
    }
    for (index, entry) in numbered(entries.iter()).take(value.capacity as usize) {
        write_entry(value.entries, value.entry_size, index as usize, entry)?;
    }
    value.count = entries.len() as u32;
    arg.write()
}

pub(crate) fn attach(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Attach>::read(arg, abi::Attach::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let name = arg.value.name;
    if name.last() != Some(&0) {
        return Err(EINVAL);
    }
    // A struct that cannot be written is found out before anything changes.
    arg.write()?;
    Context::attach(this, name_of(&name))?;

    let alive = this.enter()?;
    let choice = choose(alive.device(), this.net());
    let value = &mut arg.value;
    value.name = alive.device().name();
    value.index = alive.attributes.index;
    value.phys_ports = alive.attributes.phys_ports;
    value.port = choice.map_or(1, |choice| choice.port);
    value.gid_index = choice.map_or(u32::MAX, |choice| choice.gid_index);
    drop(alive);
    arg.write()
}

pub(crate) fn device(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::DeviceQuery>::read(arg, abi::DeviceQuery::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let attributes = &alive.attributes;
    let [rc_send_ops, uc_send_ops, ud_send_ops] = alive.send_ops;
    let mut caps = 0;
    if attributes.max_fast_reg_pages > 0 {
        caps |= abi::CAP_FAST_REG;
    }
    if attributes.max_srq > 0 {
        caps |= abi::CAP_SRQ;
    }
    if attributes.virt_dma {
        caps |= abi::CAP_VIRT_DMA;
    }
    arg.value = abi::DeviceQuery {
        size: arg.value.size,
        flags: 0,
        name: alive.device().name(),
        fw_ver: alive.device().firmware(),
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
        pad: 0,
    };
    drop(alive);
    arg.write()
}

pub(crate) fn port(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::PortQuery>::read(arg, abi::PortQuery::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let number = arg.value.port;
    let port = alive.device().port(number)?;
    arg.value = abi::PortQuery {
        size: arg.value.size,
        flags: 0,
        port: number,
        state: port.state(),
        phys_state: port.phys_state(),
        max_mtu: mtu_bytes(port.max_mtu()),
        active_mtu: mtu_bytes(port.active_mtu()),
        link_layer: match port.link_layer {
            LinkLayer::Unspecified => abi::LINK_UNSPECIFIED,
            LinkLayer::InfiniBand => abi::LINK_INFINIBAND,
            LinkLayer::Ethernet => abi::LINK_ETHERNET,
        },
        lid: port.lid(),
        sm_lid: port.sm_lid(),
        lmc: port.lmc(),
        sm_sl: port.sm_sl(),
        max_msg_sz: port.max_msg_sz(),
        gid_tbl_len: port.gid_tbl_len(),
        pkey_tbl_len: port.pkey_tbl_len(),
        active_width: port.active_width(),
        active_speed: port.active_speed(),
        port_cap_flags: port.port_cap_flags(),
        bad_pkey_cntr: port.bad_pkey_cntr(),
        qkey_viol_cntr: port.qkey_viol_cntr(),
        ifindex: alive.device().port_ifindex(number, this.net()),
        pad: 0,
    };
    drop(alive);
    arg.write()
}

pub(crate) fn gids(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::GidQuery>::read(arg, abi::GidQuery::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let number = arg.value.port;
    alive.device().port(number)?;
    let preferred = choose(alive.device(), this.net())
        .filter(|choice| choice.port == number)
        .map(|choice| choice.gid_index);
    let mut entries = KVec::new();
    let mut result = Ok(());
    alive.device().for_each_gid(|port, index| {
        if port != number {
            return;
        }
        let Ok(gid) = alive.device().gid(number, index, this.net()) else {
            return;
        };
        let mut flags = 0;
        if gid.is_ipv4() {
            flags |= abi::GID_IPV4;
        }
        if gid.is_link_local() {
            flags |= abi::GID_LINK_LOCAL;
        }
        if gid.local_net {
            flags |= abi::GID_LOCAL_NET;
        }
        if preferred == Some(index) {
            flags |= abi::GID_PREFERRED;
        }
        let entry = abi::GidEntry {
            gid: gid.raw,
            index,
            ifindex: gid.ifindex,
            gid_type: match gid.gid_type {
                GidType::Ib => abi::GID_IB,
                GidType::RoceV1 => abi::GID_ROCE_V1,
                GidType::RoceV2 => abi::GID_ROCE_V2,
            },
            flags,
            ifname: gid.ifname,
        };
        if result.is_ok() {
            result = entries.push(entry, GFP_KERNEL);
        }
    });
    drop(alive);
    result?;

    let value = &mut arg.value;
    if value.capacity > 0 && value.entry_size < abi::GidEntry::SIZE {
        return Err(EINVAL);
    }
    for (index, entry) in numbered(entries.iter()).take(value.capacity as usize) {
        write_entry(value.entries, value.entry_size, index as usize, entry)?;
    }
    value.count = entries.len() as u32;
    arg.write()
}

pub(crate) fn pkey(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::PkeyQuery>::read(arg, abi::PkeyQuery::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    arg.value.pkey = alive.device().pkey(arg.value.port, arg.value.index)?.into();
    drop(alive);
    arg.write()
}
