// SPDX-License-Identifier: GPL-2.0

//! The type, state, sizes and other attributes of a queue pair.

use super::{
    ah::AddressVector,
    device::Device, //
};
use crate::bindings;

/// The transport of a queue pair: `enum ib_qp_type`.
///
/// ```
/// fn is_connected(qp_type: QpType) -> bool {
///     qp_type != QpType::Ud
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    pub(super) fn to_raw(self) -> bindings::ib_qp_type {
        match self {
            Self::Rc => bindings::IB_QPT_RC,
            Self::Uc => bindings::IB_QPT_UC,
            Self::Ud => bindings::IB_QPT_UD,
        }
    }
}

/// The state of a queue pair: `enum ib_qp_state`, IBA 10.3.1.
///
/// ```
/// fn takes_sends(state: State) -> bool {
///     state >= State::Rts
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum State {
    /// Created, or reset.
    Reset = bindings::IB_QPS_RESET,
    /// Accepts receive requests.
    Init = bindings::IB_QPS_INIT,
    /// Ready to receive.
    Rtr = bindings::IB_QPS_RTR,
    /// Ready to send.
    Rts = bindings::IB_QPS_RTS,
    /// The send queue drains. Requests that are posted now begin in RTS. On rxe they begin when
    /// another request is posted in RTS: `rxe_qp_from_attr()` does not wake the requester.
    Sqd = bindings::IB_QPS_SQD,
    /// The send queue failed (unreliable transports).
    Sqe = bindings::IB_QPS_SQE,
    /// Failed: all requests are flushed.
    Err = bindings::IB_QPS_ERR,
}

impl State {
    /// Returns the state with the number `raw`.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            bindings::IB_QPS_RESET => Self::Reset,
            bindings::IB_QPS_INIT => Self::Init,
            bindings::IB_QPS_RTR => Self::Rtr,
            bindings::IB_QPS_RTS => Self::Rts,
            bindings::IB_QPS_SQD => Self::Sqd,
            bindings::IB_QPS_SQE => Self::Sqe,
            bindings::IB_QPS_ERR => Self::Err,
            _ => return None,
        })
    }
}

/// The bits that select attributes of an [`Attributes`]: `enum ib_qp_attr_mask`.
///
/// ```
/// fn names_path(selected: u32) -> bool {
///     selected & (mask::AV | mask::PATH_MTU) != 0
/// }
/// ```
pub(crate) mod mask {
    use crate::bindings;
    pub(crate) const STATE: u32 = bindings::IB_QP_STATE;
    pub(crate) const ACCESS_FLAGS: u32 = bindings::IB_QP_ACCESS_FLAGS;
    pub(crate) const PKEY_INDEX: u32 = bindings::IB_QP_PKEY_INDEX;
    pub(crate) const PORT: u32 = bindings::IB_QP_PORT;
    pub(crate) const AV: u32 = bindings::IB_QP_AV;
    pub(crate) const QKEY: u32 = bindings::IB_QP_QKEY;
    pub(crate) const PATH_MTU: u32 = bindings::IB_QP_PATH_MTU;
    pub(crate) const TIMEOUT: u32 = bindings::IB_QP_TIMEOUT;
    pub(crate) const RETRY_CNT: u32 = bindings::IB_QP_RETRY_CNT;
    pub(crate) const RNR_RETRY: u32 = bindings::IB_QP_RNR_RETRY;
    pub(crate) const RQ_PSN: u32 = bindings::IB_QP_RQ_PSN;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = bindings::IB_QP_MAX_QP_RD_ATOMIC;
    pub(crate) const MIN_RNR_TIMER: u32 = bindings::IB_QP_MIN_RNR_TIMER;
    pub(crate) const SQ_PSN: u32 = bindings::IB_QP_SQ_PSN;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = bindings::IB_QP_MAX_DEST_RD_ATOMIC;
    pub(crate) const DEST_QPN: u32 = bindings::IB_QP_DEST_QPN;
    /// The attributes above, with which a driver describes a queue pair.
    pub(crate) const ALL: u32 = STATE
        | ACCESS_FLAGS
        | PKEY_INDEX
        | PORT
        | AV
        | QKEY
        | PATH_MTU
        | TIMEOUT
        | RETRY_CNT
        | RNR_RETRY
        | RQ_PSN
        | MAX_QP_RD_ATOMIC
        | MIN_RNR_TIMER
        | SQ_PSN
        | MAX_DEST_RD_ATOMIC
        | DEST_QPN;
}

/// Returns whether a queue pair may go from state `from` to state `to` with the attributes `mask`.
pub(super) fn is_transition(from: u32, to: u32, qp_type: QpType, mask: u32) -> bool {
    // SAFETY: A pure function of its arguments.
    unsafe { bindings::ib_modify_qp_is_ok(from, to, qp_type.to_raw(), mask) }
}

/// Returns the attributes that a transition requires, without the state
/// (drivers/infiniband/core/verbs.c:qp_state_table, which is not exported).
fn required(from: State, to: State, qp_type: QpType) -> u32 {
    match (from, to, qp_type) {
        (State::Reset, State::Init, QpType::Ud) => mask::PKEY_INDEX | mask::PORT | mask::QKEY,
        (State::Reset, State::Init, _) => mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        (State::Init, State::Rtr, QpType::Uc) => {
            mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN
        }
        (State::Init, State::Rtr, QpType::Rc) => {
            required(from, to, QpType::Uc) | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER
        }
        (State::Rtr, State::Rts, QpType::Rc) => {
            mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::SQ_PSN
                | mask::MAX_QP_RD_ATOMIC
        }
        (State::Rtr, State::Rts, _) => mask::SQ_PSN,
        _ => 0,
    }
}

/// Returns the attributes that are missing from `mask` for a transition, and those that the
/// transition does not take. If there is no such transition, the latter is [`mask::STATE`].
pub(crate) fn mismatch(from: State, to: State, qp_type: QpType, mask: u32) -> (u32, u32) {
    let needed = required(from, to, qp_type) | mask::STATE;
    let is_ok = |mask| is_transition(from as u32, to as u32, qp_type, mask);
    if !is_ok(needed) {
        return (0, mask::STATE);
    }
    let extra = (0..u32::BITS)
        .map(|bit| 1u32.rotate_left(bit) & mask & !needed)
        .filter(|&bit| !is_ok(needed | bit))
        .fold(0, |bits, bit| bits | bit);
    (needed & !mask & !mask::STATE, extra)
}

/// The attributes of a queue pair: `struct ib_qp_attr`, without alternate paths.
///
/// ```
/// fn fail(qp: &qp::Qp<waiter::WaitHandler>) -> Result {
///     let error = Attributes { qp_state: State::Err as u32, ..Attributes::default() };
///     qp.modify(&error, mask::STATE)
/// }
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Attributes {
    /// The state to move to, or the present one.
    pub(crate) qp_state: u32,
    /// The state that the caller assumes.
    pub(crate) cur_qp_state: u32,
    /// `enum ib_mtu`.
    pub(crate) path_mtu: u32,
    /// Q_Key, on UD.
    pub(crate) qkey: u32,
    /// The first expected packet sequence number; 24 bits.
    pub(crate) rq_psn: u32,
    /// The first sent packet sequence number; 24 bits.
    pub(crate) sq_psn: u32,
    /// The number of the peer's queue pair; 24 bits.
    pub(crate) dest_qp_num: u32,
    /// The rights of the peer: [`access`](super::mr::access).
    pub(crate) access_flags: u32,
    /// The path to the peer.
    pub(crate) av: AddressVector,
    /// Index of the P_Key.
    pub(crate) pkey_index: u16,
    /// Whether to raise `IB_EVENT_SQ_DRAINED`.
    pub(crate) en_sqd_async_notify: bool,
    /// Whether the send queue is draining.
    pub(crate) sq_draining: bool,
    /// The limit of outstanding reads and atomics.
    pub(crate) max_rd_atomic: u8,
    /// The limit of reads and atomics that are answered at a time.
    pub(crate) max_dest_rd_atomic: u8,
    /// `enum ib_rnr_timeout`.
    pub(crate) min_rnr_timer: u8,
    /// Port.
    pub(crate) port: u32,
    /// The acknowledgement timeout, 4.096 us * 2^n; 0 is infinite.
    pub(crate) timeout: u8,
    /// The number of retries, 0 to 7.
    pub(crate) retry_cnt: u8,
    /// The number of retries after RNR, 0 to 6; 7 is infinite.
    pub(crate) rnr_retry: u8,
}

impl Attributes {
    /// Returns the attributes with the rights `access` of the peer, and at most `reads` outstanding
    /// reads and atomics in each direction.
    pub(crate) fn with_rights(self, access: u32, reads: u8) -> Self {
        Self {
            access_flags: access,
            max_rd_atomic: reads,
            max_dest_rd_atomic: reads,
            ..self
        }
    }

    pub(super) fn to_raw(self, device: &Device, mask: u32) -> bindings::ib_qp_attr {
        bindings::ib_qp_attr {
            qp_state: self.qp_state,
            cur_qp_state: self.cur_qp_state,
            path_mtu: self.path_mtu,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: self.access_flags as i32,
            ah_attr: if mask & mask::AV != 0 {
                self.av.to_raw(device)
            } else {
                Default::default()
            },
            pkey_index: self.pkey_index,
            en_sqd_async_notify: self.en_sqd_async_notify.into(),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..Default::default()
        }
    }

    pub(super) fn from_raw(raw: &bindings::ib_qp_attr) -> Self {
        Self {
            qp_state: raw.qp_state,
            cur_qp_state: raw.cur_qp_state,
            path_mtu: raw.path_mtu,
            qkey: raw.qkey,
            rq_psn: raw.rq_psn,
            sq_psn: raw.sq_psn,
            dest_qp_num: raw.dest_qp_num,
            access_flags: raw.qp_access_flags as u32,
            av: AddressVector::from_raw(&raw.ah_attr),
            pkey_index: raw.pkey_index,
            en_sqd_async_notify: raw.en_sqd_async_notify != 0,
            sq_draining: raw.sq_draining != 0,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            min_rnr_timer: raw.min_rnr_timer,
            port: raw.port_num,
            timeout: raw.timeout,
            retry_cnt: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
        }
    }
}

/// The sizes of a queue pair: `struct ib_qp_cap`.
///
/// ```
/// fn one_element(max_send_wr: u32, max_recv_wr: u32) -> Capacity {
///     let (max_send_sge, max_recv_sge, max_inline) = (1, 1, 0);
///     Capacity { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline }
/// }
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Capacity {
    /// Requests in the send queue.
    pub(crate) max_send_wr: u32,
    /// Requests in the receive queue.
    pub(crate) max_recv_wr: u32,
    /// Elements of a send request.
    pub(crate) max_send_sge: u32,
    /// Elements of a receive request.
    pub(crate) max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub(crate) max_inline: u32,
}

/// Returns a random packet sequence number of 24 bits.
pub(crate) fn random_psn() -> u32 {
    // SAFETY: The helper has no argument.
    unsafe { kernel::bindings::get_random_u64() as u32 & 0xff_ffff }
}
