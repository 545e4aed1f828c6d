// SPDX-License-Identifier: GPL-2.0

//! Commands of queue pairs.

use super::{
    access::Ctx,
    address::{
        address_vector,
        ah_attr,
        check_address,
        check_path,
        port_exists,
        with_mac, //
    }, //
};
use crate::{
    device::DeviceState,
    ext::errno::{
        eopnotsupp,
        eproto, //
    },
    limits::{
        MAX_INLINE,
        MAX_QUEUE_DEPTH,
        MAX_SGE,
        REMOTE_ACCESS, //
    },
    object::{
        qp::{
            QpObject,
            QpOptions,
            Queues, //
        },
        quota,
        Object, //
    },
    rdma::{
        self,
        ah::AddressVector,
        gid::GidRef,
        qp_attr::{
            mask,
            mismatch,
            Attributes,
            Capacity,
            QpType,
            State, //
        }, //
    },
    uapi::abi, //
};
use kernel::prelude::*;

/// Creates a queue pair.
pub(super) fn create(ctx: &Ctx<'_>, value: &mut abi::QpCreate) -> Result<Object> {
    let qp_type = match value.qp_type {
        abi::QPT_RC => QpType::Rc,
        abi::QPT_UC => QpType::Uc,
        abi::QPT_UD => QpType::Ud,
        _ => return Err(EINVAL),
    };
    if ctx.device.send_ops(qp_type) == 0 {
        return Err(eopnotsupp());
    }
    check_sizes(value, &ctx.device.attributes)?;
    let table = ctx.file.table().read();
    let pd = table.use_pd(value.pd)?;
    let send_cq = table.use_cq(value.send_cq)?;
    let recv_cq = table.use_cq(value.recv_cq)?;
    let srq = match value.srq {
        0 => None,
        handle => Some(table.use_srq(handle)?),
    };
    drop(table);
    let capacity = capacity(value);
    let entries = capacity.max_send_wr.saturating_add(capacity.max_recv_wr);
    let sends = quota::send_queue(
        capacity.max_send_wr,
        capacity.max_send_sge,
        capacity.max_inline,
    );
    let recvs = match srq {
        Some(_) => 0,
        None => quota::recv_queue(capacity.max_recv_wr, capacity.max_recv_sge),
    };
    let charge = (ctx.file.quota()).take(entries, sends.saturating_add(recvs))?;
    let object = QpObject::new(
        pd,
        Queues {
            send_cq,
            recv_cq,
            srq,
        },
        qp_type,
        capacity,
        QpOptions {
            sig_all: value.flags & abi::QP_SIG_ALL != 0,
            user_data: value.user_data,
        },
        ctx.file.device()?.clone(),
        charge,
    )?;
    value.max_send_wr = capacity.max_send_wr;
    value.max_recv_wr = capacity.max_recv_wr;
    value.max_send_sge = capacity.max_send_sge;
    value.max_recv_sge = capacity.max_recv_sge;
    value.qp_num = object.number();
    Ok(Object::Qp(object))
}

/// Returns the sizes of the queues. With a shared receive queue, the queue pair has none of its
/// own.
fn capacity(value: &abi::QpCreate) -> Capacity {
    let (max_recv_wr, max_recv_sge) = match value.srq {
        0 => (value.max_recv_wr.max(1), value.max_recv_sge.max(1)),
        _ => (0, 0),
    };
    Capacity {
        max_send_wr: value.max_send_wr.max(1),
        max_recv_wr,
        max_send_sge: value.max_send_sge.max(1),
        max_recv_sge,
        max_inline: value.max_inline,
    }
}

/// Checks the sizes of the queues against the limits of the module and of the device.
fn check_sizes(value: &abi::QpCreate, device: &rdma::device::Attributes) -> Result {
    // Draining needs one more request in each queue.
    let depth = MAX_QUEUE_DEPTH.min(device.max_qp_wr.saturating_sub(1));
    if value.max_send_wr > depth
        || value.max_recv_wr > depth
        || value.max_send_sge > MAX_SGE.min(device.max_send_sge)
        || value.max_recv_sge > MAX_SGE.min(device.max_recv_sge)
        || value.max_inline > MAX_INLINE
    {
        return Err(ERANGE);
    }
    Ok(())
}

/// The attributes that QP_MODIFY can change.
const MODIFIABLE: u32 = mask::ALL | abi::QP_CUR_STATE | abi::QP_EN_SQD_ASYNC_NOTIFY;

/// Checks each attribute that `attr_mask` selects. Sleeps.
///
/// Returns [`EINVAL`] for an undefined value, [`ERANGE`] for a number that is too large, and
/// [`ENOENT`] for a port that the device lacks.
fn check_attributes(device: &DeviceState, value: &abi::QpModify) -> Result {
    let (attr, given) = (&value.attr, |bit: u32| value.attr_mask & bit != 0);
    if value.attr_mask & !MODIFIABLE != 0
        || given(abi::QP_STATE) && State::from_raw(attr.qp_state.into()).is_none()
        || given(abi::QP_CUR_STATE) && State::from_raw(attr.cur_qp_state.into()).is_none()
        || given(abi::QP_ACCESS_FLAGS) && attr.access_flags & !REMOTE_ACCESS != 0
        || given(abi::QP_PATH_MTU) && !(1..=5).contains(&attr.path_mtu)
        || given(abi::QP_EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify > 1
    {
        return Err(EINVAL);
    }
    const BITS_24: u32 = 0xff_ffff;
    let attributes = &device.attributes;
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
    {
        return Err(ERANGE);
    }
    if given(abi::QP_AV) {
        check_path(&attr.ah)?;
    }
    if given(abi::QP_PORT) && !port_exists(device, attr.port_num)
        || given(abi::QP_AV) && !port_exists(device, attr.ah.port_num)
    {
        return Err(ENOENT);
    }
    if given(abi::QP_PATH_MTU) {
        let port = if given(abi::QP_AV) {
            attr.ah.port_num
        } else {
            1
        };
        // The MTU of a path is at most that of the port.
        if u32::from(attr.path_mtu) > device.device().port(port)?.active_mtu {
            return Err(ERANGE);
        }
    }
    Ok(())
}

/// Checks the P_Key index against the table of the port that the queue pair has or is to have.
/// Sleeps.
fn check_pkey(ctx: &Ctx<'_>, qp: &QpObject, from: State, value: &abi::QpModify) -> Result {
    if value.attr_mask & abi::QP_PKEY_INDEX == 0 {
        return Ok(());
    }
    let port = if value.attr_mask & abi::QP_PORT != 0 {
        value.attr.port_num
    } else if matches!(from, State::Reset | State::Err) {
        // It has no port, and no transition from these states takes the index without one.
        return Err(eproto());
    } else {
        qp.qp().query()?.port
    };
    let device = ctx.device.device();
    device.pkey(port, value.attr.pkey_index.into()).map(drop)
}

/// Returns the path of QP_MODIFY, with the MAC address of the peer if the port needs one, and the
/// reference of [`check_address`]. Sleeps.
fn path(
    ctx: &Ctx<'_>,
    qp: &QpObject,
    from: State,
    value: &abi::QpModify,
) -> Result<(AddressVector, Option<GidRef>)> {
    let av = address_vector(&value.attr.ah);
    if value.attr_mask & abi::QP_AV == 0 {
        return Ok((av, None));
    }
    if matches!(from, State::Reset | State::Err) {
        // No transition from these states takes a path: do not resolve it.
        return Err(eproto());
    }
    let gid = check_address(ctx, &av)?;
    Ok((with_mac(&ctx.device, qp.pd().pd(), av)?, gid))
}

/// Changes the state and the attributes of a queue pair.
///
/// If it returns [`eproto`], the masks in `value` say which attributes are wrong.
pub(super) fn modify(ctx: &Ctx<'_>, value: &mut abi::QpModify) -> Result {
    (value.missing_mask, value.extra_mask) = (0, 0);
    let qp = ctx.file.table().read().qp(value.qp)?.clone();
    check_attributes(&ctx.device, value)?;

    let from = qp.qp().find_state()?;
    if value.attr_mask & abi::QP_CUR_STATE != 0
        && State::from_raw(value.attr.cur_qp_state.into()) != Some(from)
    {
        (value.missing_mask, value.extra_mask) = (0, abi::QP_CUR_STATE);
        return Err(eproto());
    }
    let to = if value.attr_mask & abi::QP_STATE != 0 {
        State::from_raw(value.attr.qp_state.into()).ok_or(EINVAL)?
    } else {
        from
    };
    let result = change(ctx, &qp, from, to, value);
    if result == Err(eproto()) {
        (value.missing_mask, value.extra_mask) =
            mismatch(from, to, qp.qp().qp_type(), value.attr_mask);
    }
    result
}

/// Moves `qp` from state `from` to state `to`. Sleeps.
fn change(
    ctx: &Ctx<'_>,
    qp: &QpObject,
    from: State,
    to: State,
    value: &mut abi::QpModify,
) -> Result {
    let attr = &value.attr;
    check_pkey(ctx, qp, from, value)?;
    let (av, _gid) = path(ctx, qp, from, value)?;
    if value.attr_mask & abi::QP_QKEY != 0
        && attr.qkey & rdma::qp::CONTROLLED_QKEY != 0
        && !rdma::qp::may_control_qkeys()
    {
        return Err(EPERM);
    }
    let attributes = Attributes {
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
        port: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
    };
    qp.modify_by_owner(&attributes, value.attr_mask)?;
    if value.attr_mask & mask::AV != 0 {
        value.attr.ah.dmac = av.dmac;
        value.attr.ah.hop_limit = av.hop_limit;
    }
    Ok(())
}

/// Converts attributes to the ABI.
fn qp_attr(attr: &Attributes) -> abi::QpAttr {
    abi::QpAttr {
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        // Drivers add LOCAL_WRITE (hw/bnxt_re/ib_verbs.c:bnxt_re_modify_qp).
        access_flags: attr.access_flags & REMOTE_ACCESS,
        pkey_index: attr.pkey_index,
        qp_state: attr.qp_state as u8,
        cur_qp_state: attr.cur_qp_state as u8,
        path_mtu: attr.path_mtu as u8,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        min_rnr_timer: attr.min_rnr_timer,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        pad: [0; 3],
        ah: ah_attr(&attr.av),
        reserved: [0; 6],
    }
}

/// Describes a queue pair.
pub(super) fn query(ctx: &Ctx<'_>, value: &mut abi::QpQuery) -> Result {
    let qp = ctx.file.table().read().qp(value.qp)?.clone();
    let attr = qp.qp().query()?;
    if State::from_raw(attr.qp_state) == Some(State::Err) {
        // Not every driver reports an event when it moves a queue pair to ERR.
        qp.qp().handler().end_grants();
    }
    let (sends_in_flight, recvs_in_flight) = qp.qp().in_flight();
    let capacity = qp.capacity();
    *value = abi::QpQuery {
        size: value.size,
        flags: 0,
        qp: value.qp,
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
        sends_in_flight,
        recvs_in_flight,
        attr: qp_attr(&attr),
        user_data: qp.qp().handler().user_data(),
    };
    Ok(())
}
