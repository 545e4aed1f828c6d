// SPDX-License-Identifier: GPL-2.0

//! The parameters of a connection: what each end asks for, and what both agree on.

use super::qp::QpObject;
use crate::{
    ext::errno::{
        econnreset,
        eproto, //
    },
    rdma::{
        cm,
        qp_attr::{
            mask,
            Attributes,
            State, //
        }, //
    },
    uapi::abi, //
};
use core::net::SocketAddr;
use kernel::prelude::*;

/// The largest Local ACK Timeout. The manager keeps memory of a connection for 2^n * 4 us after its
/// end, outside of all limits: for 8 s, or 16 s with the Target ACK Delay of the peer. A peer that
/// rejects right after an answer with a large delay has it kept for that long
/// (drivers/infiniband/core/cm.c:cm_rej_handler), before the module learns of the answer.
pub(crate) const MAX_ACK_TIMEOUT: u8 = 21;

/// Private data of a message of the manager.
#[derive(Clone, Copy)]
pub(crate) struct PrivateData {
    pub(crate) len: u32,
    pub(crate) data: [u8; abi::CM_PRIVATE_MAX],
}

impl PrivateData {
    /// Copies `data`, at most [`abi::CM_PRIVATE_MAX`] bytes.
    pub(crate) fn new(data: &[u8]) -> Self {
        let mut this = Self {
            len: 0,
            data: [0; abi::CM_PRIVATE_MAX],
        };
        for (to, from) in this.data.iter_mut().zip(data) {
            *to = *from;
            this.len = this.len.wrapping_add(1);
        }
        this
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.data.get(..self.len as usize).unwrap_or(&[])
    }
}

/// The parameters of CONNECT.
#[derive(Clone, Copy)]
pub(crate) struct ConnectParams {
    pub(crate) dst: SocketAddr,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) param: abi::ConnParam,
    pub(crate) private: PrivateData,
}

/// What the peer has sent, and what was agreed.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// The parameters that the peer asks for, or the negotiated ones.
    pub(crate) param: abi::ConnParam,
    pub(crate) peer_qp_num: u32,
    pub(crate) reject_reason: u32,
    /// The peer's last private data.
    pub(crate) private: PrivateData,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
}

impl Outcome {
    /// Returns that of an attempt of which nothing is known.
    pub(super) fn none() -> Self {
        Self {
            param: abi::ConnParam::default(),
            peer_qp_num: 0,
            reject_reason: 0,
            private: PrivateData::new(&[]),
            local: None,
            peer: None,
        }
    }

    /// Returns what the sender of `request` asks for. `reads` are the most outstanding reads of a
    /// queue pair as responder and as initiator.
    pub(super) fn of_request(request: &cm::Request<'_>, reads: (u8, u8)) -> Self {
        let message = request.message();
        let parameters = message.parameters;
        let path = request.id().path();
        let (local, peer) = request.id().addresses();
        Self {
            param: abi::ConnParam {
                responder_resources: parameters.responder_resources.min(reads.0),
                initiator_depth: parameters.initiator_depth.min(reads.1),
                retry_cnt: parameters.retry_count,
                rnr_retry: parameters.rnr_retry_count,
                path_mtu: path.map_or(0, |path| path.mtu),
                traffic_class: path.map_or(0, |path| path.traffic_class),
                flags: if parameters.flow_control {
                    abi::CONN_FLOW_CONTROL
                } else {
                    0
                },
                ..Default::default()
            },
            peer_qp_num: parameters.qp_num,
            reject_reason: 0,
            private: PrivateData::new(message.private_data),
            local,
            peer,
        }
    }
}

/// Limits `param` of ACCEPT to what the peer has `asked` for. Returns [`ERANGE`] for a smaller MTU:
/// the peer would not learn of it, and would send longer packets.
pub(super) fn limit(param: &abi::ConnParam, asked: &abi::ConnParam) -> Result<abi::ConnParam> {
    if param.path_mtu != 0 && param.path_mtu < asked.path_mtu {
        return Err(ERANGE);
    }
    Ok(abi::ConnParam {
        responder_resources: param.responder_resources.min(asked.responder_resources),
        initiator_depth: param.initiator_depth.min(asked.initiator_depth),
        ..*param
    })
}

/// Returns `param` as a request or an answer has it, with the number of the queue pair.
pub(super) fn message(param: &abi::ConnParam, qp_num: u32) -> cm::Parameters {
    cm::Parameters {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
        retry_count: param.retry_cnt,
        rnr_retry_count: param.rnr_retry,
        qp_num,
    }
}

/// Brings `qp` to RTS with the manager's attributes and `param`; returns the negotiated parameters.
/// Sleeps.
pub(super) fn bring_up(
    id: &cm::Id,
    qp: &QpObject,
    param: &abi::ConnParam,
) -> Result<abi::ConnParam> {
    let mut agreed = *param;
    for state in [State::Init, State::Rtr, State::Rts] {
        let known = id.lock().qp_attributes(state);
        // The manager knows before its handler does that the peer has gone.
        let (mut attributes, mask) =
            known.map_err(|err| if err == EINVAL { econnreset() } else { err })?;
        match state {
            State::Init => attributes.access_flags = param.access_flags,
            State::Rtr => agree_rtr(&mut attributes, param, &mut agreed)?,
            _ => agree_rts(&mut attributes, param, &mut agreed)?,
        }
        // The others are of alternate paths, which are not supported.
        qp.modify(&attributes, mask & mask::ALL)?;
    }
    Ok(agreed)
}

/// Limits the manager's attributes for RTR to `param`, and sets those of `agreed`. Returns [`eproto`]
/// for an MTU that is not defined, which drivers would take.
fn agree_rtr(
    attributes: &mut Attributes,
    param: &abi::ConnParam,
    agreed: &mut abi::ConnParam,
) -> Result {
    if !(1..=5).contains(&attributes.path_mtu) {
        return Err(eproto());
    }
    if param.path_mtu != 0 {
        attributes.path_mtu = attributes.path_mtu.min(param.path_mtu.into());
    }
    if param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
        attributes.av.traffic_class = param.traffic_class;
    }
    attributes.min_rnr_timer = param.min_rnr_timer;
    // A peer may answer with more than the request asked for and the device supports.
    attributes.max_dest_rd_atomic = attributes.max_dest_rd_atomic.min(param.responder_resources);
    agreed.responder_resources = attributes.max_dest_rd_atomic;
    agreed.path_mtu = attributes.path_mtu as u8;
    agreed.traffic_class = attributes.av.traffic_class;
    Ok(())
}

/// Limits the manager's attributes for RTS to `param`, and sets those of `agreed`. Returns [`eproto`]
/// when the peer's answer makes the timewait state too long.
fn agree_rts(
    attributes: &mut Attributes,
    param: &abi::ConnParam,
    agreed: &mut abi::ConnParam,
) -> Result {
    // At the requester the manager takes the longer of `param.ack_timeout` and the peer's Target ACK
    // Delay, or twice that (drivers/infiniband/core/cm.c:cm_rep_handler). A connection that is
    // rejected now has no timewait state (drivers/infiniband/core/cm.c:cm_send_rej_locked).
    if attributes.timeout > MAX_ACK_TIMEOUT.saturating_add(1) {
        return Err(eproto());
    }
    if param.ack_timeout != 0 {
        attributes.timeout = param.ack_timeout;
    }
    attributes.max_rd_atomic = attributes.max_rd_atomic.min(param.initiator_depth);
    agreed.initiator_depth = attributes.max_rd_atomic;
    agreed.retry_cnt = attributes.retry_cnt;
    agreed.rnr_retry = attributes.rnr_retry;
    agreed.ack_timeout = attributes.timeout;
    Ok(())
}
