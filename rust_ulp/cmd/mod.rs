// SPDX-License-Identifier: GPL-2.0

//! Control commands: from a struct of the caller to an object, and back.
//!
//! Every command reads its struct once, checks all of it, goes into the device's gate, acts, leaves
//! the gate, and writes the struct back. An object that was made is not to be found before its
//! handle was written; when that fails, it is destroyed again.

pub(crate) mod cm;
pub(crate) mod query;
pub(crate) mod submit;
pub(crate) mod uring;

use crate::{
    device::Live,
    file::Context,
    kernel::{
        errno::{
            eopnotsupp,
            eproto, //
        },
        eventfd::EventFd,
        pages::{
            self,
            Pages, //
        },
        user::{
            Arg,
            Plain, //
        }, //
    },
    limits::{
        MAX_CQ_ENTRIES,
        MAX_INLINE,
        MAX_QUEUE_DEPTH,
        MAX_SGE, //
    },
    object::{
        ah::AhObject,
        buffer::{
            self,
            BufferObject, //
        },
        cq::{
            mmap_offset,
            CqObject, //
        },
        grant::{
            self,
            GrantObject,
            Terms, //
        },
        pd::PdObject,
        qp::{
            QpObject,
            Queues, //
        },
        srq::SrqObject,
        Object, //
    },
    rdma::{
        self,
        ah::AddressVector,
        qp_attr::{
            mask,
            QpType,
            State, //
        }, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// A command.
type Command = fn(ArcBorrow<'_, Context>, usize) -> Result;

/// Runs command `cmd`. Sleeps. [`ENOTTY`] for what is no command.
pub(crate) fn dispatch(this: ArcBorrow<'_, Context>, cmd: u32, arg: usize) -> Result {
    let command: Command = match cmd {
        abi::IOC_QUERY => query::module,
        abi::IOC_DEVICE_LIST => query::devices,
        abi::IOC_ATTACH => query::attach,
        abi::IOC_DEVICE_QUERY => query::device,
        abi::IOC_PORT_QUERY => query::port,
        abi::IOC_GID_QUERY => query::gids,
        abi::IOC_PKEY_QUERY => query::pkey,
        abi::IOC_PD_CREATE => pd_create,
        abi::IOC_CQ_CREATE => cq_create,
        abi::IOC_QP_CREATE => qp_create,
        abi::IOC_QP_MODIFY => qp_modify,
        abi::IOC_QP_QUERY => qp_query,
        abi::IOC_BUFFER_CREATE => buffer_create,
        abi::IOC_GRANT_CREATE => grant_create,
        abi::IOC_BUFFER_REGISTER => buffer_register,
        abi::IOC_BUFFER_IMPORT => buffer_import,
        abi::IOC_BUFFER_QUERY => buffer_query,
        abi::IOC_GRANT_ROTATE => grant_rotate,
        abi::IOC_GRANT_QUERY => grant_query,
        abi::IOC_AH_CREATE => ah_create,
        abi::IOC_SRQ_CREATE => srq_create,
        abi::IOC_SRQ_MODIFY => srq_modify,
        abi::IOC_SRQ_QUERY => srq_query,
        abi::IOC_DESTROY => destroy,
        abi::IOC_SUBMIT => submit::submit,
        abi::IOC_CANCEL => submit::cancel,
        abi::IOC_CQ_EVENTFD => cq_eventfd,
        abi::IOC_LISTEN => cm::listen,
        abi::IOC_GET_REQUEST => cm::get_request,
        abi::IOC_ACCEPT => cm::accept,
        abi::IOC_REJECT => cm::reject,
        abi::IOC_CONNECT => cm::connect,
        abi::IOC_DISCONNECT => cm::disconnect,
        abi::IOC_CONN_QUERY => cm::query,
        _ => return Err(ENOTTY),
    };
    // A husk has one answer to all of them. The gate decides for those that use the device; this
    // is for the rest.
    if this.device().is_ok_and(|device| device.is_gone()) {
        return Err(ENODEV);
    }
    command(this, arg)
}

/// Makes an object: `make` checks the struct, makes the object, and fills in everything but the
/// handle, which `set` puts into struct and object.
fn create<T: Plain>(
    this: ArcBorrow<'_, Context>,
    arg: &mut Arg<T>,
    make: impl FnOnce(&Context, &Live, &mut T) -> Result<Object>,
    set: impl FnOnce(&mut T, &Object, u32),
) -> Result {
    let alive = this.enter()?;
    let object = make(&this, &alive, &mut arg.value)?;
    let kept = object.clone();
    let handle = this.insert(object)?;
    set(&mut arg.value, &kept, handle);
    // Not ours to hold outside the gate: if the device goes meanwhile, the table gives it up.
    drop(kept);
    drop(alive);
    publish(this, arg, handle)
}

/// Writes the struct back, and lets `handle`, which is in it, be found; if that fails, destroys the
/// object. Not to be called inside the gate.
pub(crate) fn publish<T: Plain>(this: ArcBorrow<'_, Context>, arg: &Arg<T>, handle: u32) -> Result {
    let written = arg.write();
    let alive = this.enter()?;
    match written {
        Ok(()) => this.table().lock().publish(handle),
        Err(err) => {
            // Nobody knows the handle, so nobody can need the object.
            this.destroy(&alive, handle, false)?;
            Err(err)
        }
    }
}

fn pd_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::PdCreate>::read(arg, abi::PdCreate::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |_, live, _| {
            Ok(Object::Pd(PdObject::new(rdma::pd::Pd::new(
                live.device(),
            )?)?))
        },
        |value, _, handle| value.handle = handle,
    )
}

fn cq_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::CqCreate>::read(arg, abi::CqCreate::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |context, live, value| {
            let delivery = match value.delivery {
                abi::DELIVER_DEFAULT => match context.registry().parameters().delivery {
                    abi::DELIVER_SOFTIRQ => abi::DELIVER_SOFTIRQ,
                    _ => abi::DELIVER_WORKQUEUE,
                },
                delivery @ abi::DELIVER_WORKQUEUE..=abi::DELIVER_CALLER => delivery,
                _ => return Err(EINVAL),
            };
            let room = live.attributes.max_cqe.saturating_sub(rdma::qp::CQ_RESERVE);
            let entries = value.entries.checked_next_power_of_two().ok_or(ERANGE)?;
            if value.entries == 0 || entries > MAX_CQ_ENTRIES.min(room) {
                return Err(ERANGE);
            }
            if value.comp_vector >= live.attributes.num_comp_vectors {
                return Err(ERANGE);
            }
            let object = CqObject::new(
                live.device(),
                entries,
                delivery,
                value.comp_vector,
                context.events().clone(),
                context.quota().take(entries)?,
            )?;
            value.entries = entries;
            value.delivery = delivery;
            value.mmap_size = object.mmap_size();
            Ok(Object::Cq(object))
        },
        |value, object, handle| {
            if let Object::Cq(cq) = object {
                cq.ring().set_handle(handle);
            }
            value.handle = handle;
            value.mmap_offset = mmap_offset(handle);
        },
    )
}

fn cq_eventfd(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let value = Arg::<abi::CqEventfd>::read(arg, abi::CqEventfd::SIZE)?.value;
    let _alive = this.enter()?;
    if value.flags != 0 {
        return Err(EINVAL);
    }
    let cq = this.table().lock().cq(value.cq)?.clone();
    let eventfd = match value.fd {
        -1 => None,
        fd => Some(EventFd::get(fd)?),
    };
    cq.ring().set_eventfd(eventfd)
}

fn qp_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::QpCreate>::read(arg, abi::QpCreate::SIZE)?;
    if arg.value.flags & !abi::QP_SIG_ALL != 0 {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |context, live, value| {
            let qp_type = match value.qp_type {
                abi::QPT_RC => QpType::Rc,
                abi::QPT_UC => QpType::Uc,
                abi::QPT_UD => QpType::Ud,
                _ => return Err(EINVAL),
            };
            if live.send_ops(qp_type) == 0 {
                return Err(eopnotsupp());
            }
            let attributes = &live.attributes;
            // One more each is needed for draining.
            let depth = MAX_QUEUE_DEPTH.min(attributes.max_qp_wr.saturating_sub(1));
            if value.max_send_wr > depth
                || value.max_recv_wr > depth
                || value.max_send_sge > MAX_SGE.min(attributes.max_send_sge)
                || value.max_recv_sge > MAX_SGE.min(attributes.max_recv_sge)
                || value.max_inline > MAX_INLINE
            {
                return Err(ERANGE);
            }
            let table = context.table().lock();
            let pd = table.need_pd(value.pd)?;
            let send_cq = table.need_cq(value.send_cq)?;
            let recv_cq = table.need_cq(value.recv_cq)?;
            let srq = match value.srq {
                0 => None,
                handle => Some(table.need_srq(handle)?),
            };
            drop(table);
            // Those that come from a shared queue have no place in this one.
            let (max_recv_wr, max_recv_sge) = match &srq {
                None => (value.max_recv_wr.max(1), value.max_recv_sge.max(1)),
                Some(_) => (0, 0),
            };
            let capacity = rdma::qp_attr::Capacity {
                max_send_wr: value.max_send_wr.max(1),
                max_recv_wr,
                max_send_sge: value.max_send_sge.max(1),
                max_recv_sge,
                max_inline: value.max_inline,
            };
            let entries = capacity.max_send_wr.saturating_add(max_recv_wr);
            let share = context.quota().take(entries)?;
            let object = QpObject::new(
                pd,
                Queues {
                    send_cq,
                    recv_cq,
                    srq,
                },
                qp_type,
                capacity,
                value.flags & abi::QP_SIG_ALL != 0,
                context.device()?.clone(),
                share,
            )?;
            value.max_send_wr = capacity.max_send_wr;
            value.max_recv_wr = capacity.max_recv_wr;
            value.max_send_sge = capacity.max_send_sge;
            value.max_recv_sge = capacity.max_recv_sge;
            value.qp_num = object.number();
            Ok(Object::Qp(object))
        },
        |value, object, handle| {
            if let Object::Qp(qp) = object {
                qp.set_handle(handle);
            }
            value.handle = handle;
        },
    )
}

/// The attributes that a command may change.
const MODIFIABLE: u32 = abi::QP_STATE
    | abi::QP_CUR_STATE
    | abi::QP_EN_SQD_ASYNC_NOTIFY
    | abi::QP_ACCESS_FLAGS
    | abi::QP_PKEY_INDEX
    | abi::QP_PORT
    | abi::QP_QKEY
    | abi::QP_AV
    | abi::QP_PATH_MTU
    | abi::QP_TIMEOUT
    | abi::QP_RETRY_CNT
    | abi::QP_RNR_RETRY
    | abi::QP_RQ_PSN
    | abi::QP_MAX_QP_RD_ATOMIC
    | abi::QP_MIN_RNR_TIMER
    | abi::QP_SQ_PSN
    | abi::QP_MAX_DEST_RD_ATOMIC
    | abi::QP_DEST_QPN;

/// Checks the attributes that count, one by one.
fn check_attributes(live: &Live, value: &abi::QpModify) -> Result {
    let (attr, given) = (&value.attr, |bit: u32| value.attr_mask & bit != 0);
    if value.flags != 0 || value.attr_mask & !MODIFIABLE != 0 || attr.pad != [0; 2] {
        return Err(EINVAL);
    }
    const REMOTE: u32 =
        abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
    if given(abi::QP_STATE) && State::from_raw(attr.qp_state.into()).is_none()
        || given(abi::QP_CUR_STATE) && State::from_raw(attr.cur_qp_state.into()).is_none()
        || given(abi::QP_ACCESS_FLAGS) && attr.access_flags & !REMOTE != 0
        || given(abi::QP_PATH_MTU) && !(1..=5).contains(&attr.path_mtu)
        || given(abi::QP_AV) && attr.ah.is_global > 1
        || given(abi::QP_EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify > 1
    {
        return Err(EINVAL);
    }
    const BITS_24: u32 = 0xff_ffff;
    let attributes = &live.attributes;
    if given(abi::QP_RQ_PSN) && attr.rq_psn > BITS_24
        || given(abi::QP_SQ_PSN) && attr.sq_psn > BITS_24
        || given(abi::QP_DEST_QPN) && attr.dest_qp_num > BITS_24
        || given(abi::QP_TIMEOUT) && attr.timeout > 31
        || given(abi::QP_RETRY_CNT) && attr.retry_cnt > 7
        || given(abi::QP_RNR_RETRY) && attr.rnr_retry > 7
        || given(abi::QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || given(abi::QP_MAX_QP_RD_ATOMIC)
            && u32::from(attr.max_rd_atomic) > attributes.max_qp_init_rd_atom
        || given(abi::QP_MAX_DEST_RD_ATOMIC)
            && u32::from(attr.max_dest_rd_atomic) > attributes.max_qp_rd_atom
        || given(abi::QP_AV) && attr.ah.flow_label > 0xf_ffff
    {
        return Err(ERANGE);
    }
    if given(abi::QP_PORT) && !port_exists(live, attr.port_num)
        || given(abi::QP_AV) && !port_exists(live, attr.ah.port_num)
    {
        return Err(ENOENT);
    }
    if given(abi::QP_PATH_MTU) {
        // The path may be narrower than the port, never wider.
        let port = if given(abi::QP_AV) {
            attr.ah.port_num
        } else {
            1
        };
        if u32::from(attr.path_mtu) > live.device().port(port.into())?.active_mtu() {
            return Err(ERANGE);
        }
    }
    if given(abi::QP_PKEY_INDEX) && given(abi::QP_PORT) {
        live.device()
            .pkey(attr.port_num.into(), attr.pkey_index.into())?;
    }
    Ok(())
}

fn port_exists(live: &Live, port: u8) -> bool {
    port != 0 && u32::from(port) <= live.attributes.phys_ports
}

fn address_vector(ah: &abi::AhAttr) -> AddressVector {
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
fn check_address(context: &Context, live: &Live, av: &AddressVector) -> Result {
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
fn needs_resolving(live: &Live, av: &AddressVector) -> Result<bool> {
    let port = live.device().port(av.port)?;
    Ok(port.link_layer == rdma::device::LinkLayer::Ethernet && av.dmac == [0; 6])
}

fn qp_modify(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::QpModify>::read(arg, abi::QpModify::SIZE)?;
    // A struct that cannot be written is found out before anything changes.
    arg.write()?;
    let alive = this.enter()?;
    let qp = this.table().lock().qp(arg.value.qp)?.clone();
    if alive.is_iwarp {
        return Err(eopnotsupp());
    }
    check_attributes(&alive, &arg.value)?;

    let value = &mut arg.value;
    let attr = &value.attr;
    let mut av = address_vector(&attr.ah);
    let from = qp.qp().state();
    if value.attr_mask & abi::QP_CUR_STATE != 0
        && State::from_raw(attr.cur_qp_state.into()) != Some(from)
    {
        return Err(eproto());
    }
    let to = if value.attr_mask & abi::QP_STATE != 0 {
        State::from_raw(attr.qp_state.into()).ok_or(EINVAL)?
    } else {
        from
    };
    if value.attr_mask & abi::QP_AV != 0 {
        if from == State::Reset || from == State::Err {
            // The address would be resolved for nothing.
            return Err(eproto());
        }
        check_address(&this, &alive, &av)?;
        if needs_resolving(&alive, &av)? {
            av = av.resolve(qp.pd().pd())?;
        }
    }
    if value.attr_mask & abi::QP_QKEY != 0
        && attr.qkey & rdma::qp::CONTROLLED_QKEY != 0
        && !rdma::qp::may_control_qkeys()
    {
        return Err(EPERM);
    }
    let attributes = rdma::qp_attr::Attributes {
        qp_state: to as u32,
        cur_qp_state: attr.cur_qp_state.into(),
        path_mtu: attr.path_mtu.into(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        access_flags: attr.access_flags,
        av,
        pkey_index: attr.pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port: attr.port_num.into(),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    };
    qp.modify(&attributes, value.attr_mask)?;
    if value.attr_mask & mask::AV != 0 {
        value.attr.ah.dmac = av.dmac;
        value.attr.ah.hop_limit = av.hop_limit;
    }
    drop(qp);
    drop(alive);
    arg.write()
}

fn qp_query(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::QpQuery>::read(arg, abi::QpQuery::SIZE)?;
    if arg.value.flags != 0 || arg.value.attr.pad != [0; 2] {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let qp = this.table().lock().qp(arg.value.qp)?.clone();
    let attr = qp.qp().query()?;
    if State::from_raw(attr.qp_state) == Some(State::Err) {
        // A driver that said so to nobody else.
        qp.qp().handler().end_grants();
    }
    let (sends, recvs) = qp.qp().in_flight();
    let capacity = qp.capacity();
    arg.value = abi::QpQuery {
        size: arg.value.size,
        flags: 0,
        qp: arg.value.qp,
        qp_num: qp.number(),
        qp_type: match qp.qp().qp_type() {
            QpType::Rc => abi::QPT_RC,
            QpType::Uc => abi::QPT_UC,
            QpType::Ud => abi::QPT_UD,
        },
        max_send_wr: capacity.max_send_wr,
        max_recv_wr: capacity.max_recv_wr,
        max_send_sge: capacity.max_send_sge,
        max_recv_sge: capacity.max_recv_sge,
        max_inline: capacity.max_inline,
        sends_in_flight: sends,
        recvs_in_flight: recvs,
        attr: abi::QpAttr {
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            access_flags: attr.access_flags,
            pkey_index: attr.pkey_index,
            qp_state: attr.qp_state as u8,
            cur_qp_state: attr.cur_qp_state as u8,
            path_mtu: attr.path_mtu as u8,
            port_num: attr.port as u8,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            min_rnr_timer: attr.min_rnr_timer,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            en_sqd_async_notify: attr.en_sqd_async_notify.into(),
            sq_draining: attr.sq_draining.into(),
            pad: [0; 2],
            ah: abi::AhAttr {
                dgid: attr.av.dgid,
                flow_label: attr.av.flow_label,
                sgid_index: attr.av.sgid_index,
                hop_limit: attr.av.hop_limit,
                traffic_class: attr.av.traffic_class,
                sl: attr.av.sl,
                dlid: attr.av.dlid,
                port_num: attr.av.port as u8,
                is_global: attr.av.grh.into(),
                static_rate: attr.av.static_rate,
                src_path_bits: attr.av.src_path_bits,
                dmac: attr.av.dmac,
            },
        },
    };
    drop(qp);
    drop(alive);
    arg.write()
}

fn buffer_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::BufferCreate>::read(arg, abi::BufferCreate::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let value = &arg.value;
    let node = match value.node {
        abi::NODE_ANY => None,
        node if pages::node_is_online(node) => Some(node),
        _ => return Err(ERANGE),
    };
    this.table().lock().pd(value.pd)?;
    let attributes = alive.attributes;
    drop(alive);
    // Outside the gate: it may take long until there are large pages.
    let pages = buffer::allocate(&attributes, value.length, value.page_size, node)?;
    create(
        this,
        &mut arg,
        |context, _, value| {
            let pd = context.table().lock().need_pd(value.pd)?;
            let kind = abi::BUFFER_PAGES;
            let object = BufferObject::register(pd, context.net(), pages, kind, false)?;
            value.length = object.length();
            value.page_size = object.pages().chunk_size() as u32;
            value.node = object.pages().node();
            value.key_bytes = object.key_bytes();
            value.keys = object.keys();
            Ok(Object::Buffer(object))
        },
        |value, _, handle| {
            value.handle = handle;
            value.mmap_offset = mmap_offset(handle);
        },
    )
}

fn buffer_register(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::BufferRegister>::read(arg, abi::BufferRegister::SIZE)?;
    let read_only = arg.value.flags & abi::BUFFER_READ_ONLY != 0;
    if arg.value.flags & !abi::BUFFER_READ_ONLY != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let sizes = alive.attributes.page_size_cap;
    this.table().lock().pd(arg.value.pd)?;
    drop(alive);
    // Outside the gate: the caller decides how long its page faults take.
    let pages = buffer::pin(arg.value.addr, arg.value.length, read_only, sizes)?;
    create(
        this,
        &mut arg,
        |context, _, value| {
            let pd = context.table().lock().need_pd(value.pd)?;
            let kind = abi::BUFFER_USER;
            let object = BufferObject::register(pd, context.net(), pages, kind, read_only)?;
            value.key_bytes = object.key_bytes();
            value.keys = object.keys();
            value.page_size = object.pages().chunk_size() as u32;
            Ok(Object::Buffer(object))
        },
        |value, _, handle| value.handle = handle,
    )
}

fn buffer_import(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::BufferImport>::read(arg, abi::BufferImport::SIZE)?;
    let read_only = arg.value.flags & abi::BUFFER_READ_ONLY != 0;
    if arg.value.flags & !abi::BUFFER_READ_ONLY != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let sizes = alive.attributes.page_size_cap;
    let is_software = alive.attributes.virt_dma;
    this.table().lock().pd(arg.value.pd)?;
    drop(alive);
    let value = &arg.value;
    let what = buffer::import(value.fd, value.offset, value.length, read_only, sizes);
    let mapped = if is_software {
        // Outside the gate: the exporter decides how long it takes.
        Some(Pages::import(&what)?)
    } else {
        None
    };
    create(
        this,
        &mut arg,
        |context, _, value| {
            let pd = context.table().lock().need_pd(value.pd)?;
            let pages = match mapped {
                Some(pages) => pages,
                None => buffer::attach(pd.pd().device(), &what)?,
            };
            let kind = abi::BUFFER_DMABUF;
            let object = BufferObject::register(pd, context.net(), pages, kind, read_only)?;
            value.length = object.length();
            value.key_bytes = object.key_bytes();
            value.keys = object.keys();
            value.page_size = object.pages().chunk_size() as u32;
            Ok(Object::Buffer(object))
        },
        |value, _, handle| value.handle = handle,
    )
}

fn buffer_query(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::BufferQuery>::read(arg, abi::BufferQuery::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let buffer = this.table().lock().buffer(arg.value.buffer)?.clone();
    arg.value = abi::BufferQuery {
        size: arg.value.size,
        flags: if buffer.is_read_only() {
            abi::BUFFER_READ_ONLY
        } else {
            0
        },
        buffer: arg.value.buffer,
        kind: buffer.kind(),
        length: buffer.length(),
        charged: buffer.pages().charged(),
        mmap_offset: if buffer.pages().can_be_mapped() {
            mmap_offset(arg.value.buffer)
        } else {
            0
        },
        key_bytes: buffer.key_bytes(),
        keys: buffer.keys(),
        page_size: buffer.pages().chunk_size() as u32,
        node: buffer.pages().node(),
        grants: grant::count_of(&buffer),
    };
    drop(buffer);
    drop(alive);
    arg.write()
}

fn grant_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::GrantCreate>::read(arg, abi::GrantCreate::SIZE)?;
    let flags = arg.value.flags;
    if flags & !(abi::GRANT_ONE_SHOT | abi::GRANT_PARTIAL) != 0
        || arg.value.pad != 0
        || flags & abi::GRANT_ONE_SHOT != 0 && arg.value.qp == 0
    {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |context, _, value| {
            let table = context.table().lock();
            let buffer = table.need_buffer(value.buffer)?;
            let qp = match value.qp {
                0 => None,
                handle => Some(table.qp(handle)?.clone()),
            };
            drop(table);
            if qp
                .as_ref()
                .is_some_and(|qp| !core::ptr::eq(qp.pd(), buffer.pd()))
            {
                return Err(EXDEV);
            }
            let terms = Terms {
                offset: value.offset,
                length: value.length,
                access: value.access,
                flags: value.flags,
                buffer: value.buffer,
                qp: value.qp,
            };
            let bonds = qp.and_then(|qp| qp.bonds());
            let object = GrantObject::new(buffer, context.net(), bonds, terms)?;
            // It may have ended by now.
            let (addr, rkey) = object.key().unwrap_or((object.addr(), 0));
            value.addr = addr;
            value.rkey = rkey;
            value.length = object.terms().length;
            Ok(Object::Grant(object))
        },
        |value, object, handle| {
            if let Object::Grant(grant) = object {
                grant.set_handle(handle);
            }
            value.handle = handle;
        },
    )
}

fn grant_rotate(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::GrantRotate>::read(arg, abi::GrantRotate::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    // A struct that cannot be written is found out before anything changes.
    arg.write()?;
    let alive = this.enter()?;
    let grant = this.table().lock().grant(arg.value.grant)?.clone();
    let (addr, rkey) = grant.rotate(this.net())?;
    arg.value.addr = addr;
    arg.value.rkey = rkey;
    drop(grant);
    drop(alive);
    arg.write()
}

fn grant_query(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::GrantQuery>::read(arg, abi::GrantQuery::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let grant = this.table().lock().grant(arg.value.grant)?.clone();
    let terms = grant.terms();
    let state = grant.state();
    arg.value = abi::GrantQuery {
        size: arg.value.size,
        flags: terms.flags & abi::GRANT_ONE_SHOT,
        grant: arg.value.grant,
        state,
        buffer: terms.buffer,
        qp: terms.qp,
        offset: terms.offset,
        length: terms.length,
        addr: grant.addr(),
        rkey: grant.key().map_or(0, |(_, rkey)| rkey),
        access: terms.access,
    };
    drop(grant);
    drop(alive);
    arg.write()
}

fn ah_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::AhCreate>::read(arg, abi::AhCreate::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 || arg.value.attr.is_global > 1 {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |context, live, value| {
            if live.send_ops(QpType::Ud) == 0 {
                return Err(eopnotsupp());
            }
            if value.attr.flow_label > 0xf_ffff {
                return Err(ERANGE);
            }
            if !port_exists(live, value.attr.port_num) {
                return Err(ENOENT);
            }
            let pd = context.table().lock().need_pd(value.pd)?;
            let av = address_vector(&value.attr);
            check_address(context, live, &av)?;
            let (object, av) = AhObject::new(pd, &av)?;
            value.attr.dmac = av.dmac;
            value.attr.hop_limit = av.hop_limit;
            Ok(Object::Ah(object))
        },
        |value, _, handle| value.handle = handle,
    )
}

fn srq_create(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::SrqCreate>::read(arg, abi::SrqCreate::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    create(
        this,
        &mut arg,
        |context, live, value| {
            let attributes = &live.attributes;
            if attributes.max_srq == 0 {
                return Err(eopnotsupp());
            }
            if value.max_wr > MAX_QUEUE_DEPTH.min(attributes.max_srq_wr)
                || value.max_sge > MAX_SGE.min(attributes.max_srq_sge)
                || value.limit > value.max_wr
            {
                return Err(ERANGE);
            }
            let (max_wr, max_sge) = (value.max_wr.max(1), value.max_sge.max(1));
            let table = context.table().lock();
            let pd = table.need_pd(value.pd)?;
            let cq = table.need_cq(value.cq)?;
            drop(table);
            let share = context.quota().take(max_wr)?;
            let object = SrqObject::new(pd, cq, max_wr, max_sge, share)?;
            if value.limit != 0 {
                object.srq().set_limit(value.limit)?;
            }
            value.max_wr = max_wr;
            value.max_sge = max_sge;
            Ok(Object::Srq(object))
        },
        |value, object, handle| {
            if let Object::Srq(srq) = object {
                srq.set_handle(handle);
            }
            value.handle = handle;
        },
    )
}

fn srq_modify(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let arg = Arg::<abi::SrqModify>::read(arg, abi::SrqModify::SIZE)?;
    if arg.value.flags != 0 {
        return Err(EINVAL);
    }
    let _alive = this.enter()?;
    let srq = this.table().lock().srq(arg.value.srq)?.clone();
    if arg.value.limit > srq.srq().max_wr() {
        return Err(ERANGE);
    }
    srq.srq().set_limit(arg.value.limit)
}

fn srq_query(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::SrqQuery>::read(arg, abi::SrqQuery::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    let srq = this.table().lock().srq(arg.value.srq)?.clone();
    srq.srq().reclaim();
    arg.value = abi::SrqQuery {
        size: arg.value.size,
        flags: 0,
        srq: arg.value.srq,
        max_wr: srq.srq().max_wr(),
        max_sge: srq.max_sge(),
        limit: srq.srq().limit()?,
        recvs_in_flight: srq.srq().in_flight(),
        pad: 0,
    };
    drop(srq);
    drop(alive);
    arg.write()
}

fn destroy(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let arg = Arg::<abi::Destroy>::read(arg, abi::Destroy::SIZE)?;
    if arg.value.flags != 0 || arg.value.pad != 0 {
        return Err(EINVAL);
    }
    let alive = this.enter()?;
    this.destroy(&alive, arg.value.handle, true)
}
