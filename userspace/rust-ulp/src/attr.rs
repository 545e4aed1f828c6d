// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attributes of a queue pair.

use crate::abi;
use crate::access::Access;
use crate::endpoint::Mtu;
use crate::info::info;
use crate::params::{AckTimeout, Retries, RnrRetries, RnrTimer};
use crate::path::Path;
use crate::state::{AttrSet, QpState};

/// Attributes for [`PreparedQp::modify`](crate::PreparedQp::modify) and
/// [`Qp::modify`](crate::Qp::modify): those that are set are given to the kernel.
///
/// Each transition needs these attributes:
///
/// | to | RC | UC | UD |
/// |---|---|---|---|
/// | Init | `pkey_index`, `port`, `access` | the same | `pkey_index`, `port`, `qkey` |
/// | Rtr | `path`, `path_mtu`, `dest_qp_num`, `rq_psn`, `max_dest_rd_atomic`, `min_rnr_timer` | `path`, `path_mtu`, `dest_qp_num`, `rq_psn` | none |
/// | Rts | `timeout`, `retry_cnt`, `rnr_retry`, `sq_psn`, `max_rd_atomic` | `sq_psn` | `sq_psn` |
/// | Sqd, Err, Reset | none | none | none |
#[doc(alias = "rust_ulp_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "attributes do nothing before they are given to `modify`"]
pub struct QpAttr {
    pub(crate) attr: abi::QpAttr,
    pub(crate) mask: u32,
}

macro_rules! attributes {
    ($($(#[$meta:meta])* $name:ident($ty:ty) = $mask:ident, |$attr:ident, $value:ident| $set:expr;)*) => {
        impl QpAttr { $(
            $(#[$meta])*
            pub fn $name(mut self, $value: $ty) -> Self {
                let $attr = &mut self.attr;
                $set;
                self.mask |= abi::$mask;
                self
            }
        )* }
    };
}

attributes! {
    /// Sets the state that the queue pair must be in.
    current_state(QpState) = QP_CUR_STATE, |attr, state| attr.cur_qp_state = state.code();
    /// Sets the rights of the peer to memory that is granted.
    access(Access) = QP_ACCESS_FLAGS, |attr, access| attr.access_flags = access.bits();
    /// Sets the index into the port's P_Key table.
    pkey_index(u16) = QP_PKEY_INDEX, |attr, index| attr.pkey_index = index;
    /// Sets the port, from 1.
    port(u32) = QP_PORT, |attr, port| attr.port_num = port;
    /// Sets the Q_Key of datagrams.
    qkey(u32) = QP_QKEY, |attr, qkey| attr.qkey = qkey;
    /// Sets the path to the peer.
    path(Path) = QP_AV, |attr, path| attr.ah = path.to_abi();
    /// Sets the bytes per packet.
    path_mtu(Mtu) = QP_PATH_MTU, |attr, mtu| attr.path_mtu = mtu as u8;
    /// Sets how long to wait for an acknowledgement.
    timeout(AckTimeout) = QP_TIMEOUT, |attr, timeout| attr.timeout = timeout.code();
    /// Sets how often to repeat a request that is not acknowledged.
    retry_cnt(Retries) = QP_RETRY_CNT, |attr, count| attr.retry_cnt = count.count();
    /// Sets how often to repeat a request that finds no receive.
    rnr_retry(RnrRetries) = QP_RNR_RETRY, |attr, count| attr.rnr_retry = count.code();
    /// Sets the number of the first packet to be received: 24 bits.
    rq_psn(u32) = QP_RQ_PSN, |attr, psn| attr.rq_psn = psn;
    /// Sets the number of reads and atomics under way at a time.
    max_rd_atomic(u8) = QP_MAX_QP_RD_ATOMIC, |attr, count| attr.max_rd_atomic = count;
    /// Sets how long a peer waits whose request found no receive.
    min_rnr_timer(RnrTimer) = QP_MIN_RNR_TIMER, |attr, timer| attr.min_rnr_timer = timer.code();
    /// Sets the number of the first packet to be sent: 24 bits.
    sq_psn(u32) = QP_SQ_PSN, |attr, psn| attr.sq_psn = psn;
    /// Sets the number of reads and atomics of the peer answered at a time.
    max_dest_rd_atomic(u8) = QP_MAX_DEST_RD_ATOMIC, |attr, count| attr.max_dest_rd_atomic = count;
    /// Sets the number of the peer's queue pair: 24 bits.
    dest_qp_num(u32) = QP_DEST_QPN, |attr, number| attr.dest_qp_num = number;
    /// Sets whether an event tells that the send queue is drained (state Sqd).
    sqd_event(bool) = QP_EN_SQD_ASYNC_NOTIFY, |attr, on| attr.en_sqd_async_notify = on.into();
}

impl Default for QpAttr {
    fn default() -> Self {
        Self::new()
    }
}

impl QpAttr {
    /// Returns an empty set of attributes.
    pub fn new() -> Self {
        Self {
            attr: abi::QpAttr::default(),
            mask: 0,
        }
    }

    /// Returns the attributes that have the state to go to, and no other yet.
    pub fn to(state: QpState) -> Self {
        let mut attr = Self::new();
        attr.attr.qp_state = state.code();
        attr.mask = abi::QP_STATE;
        attr
    }

    /// Returns the attributes that are set.
    pub fn set(&self) -> AttrSet {
        AttrSet { mask: self.mask }
    }

    pub(crate) fn next(&self) -> Option<QpState> {
        (self.mask & abi::QP_STATE != 0).then(|| QpState::from_code(self.attr.qp_state))
    }
}

info! {
    /// The capacities of a queue pair, as the device granted them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpCaps(arg: &abi::QpQuery) {
        /// Send requests in flight.
        pub max_send_wr: u32,
        /// Receive requests in flight.
        pub max_recv_wr: u32,
        /// Elements per send request.
        pub max_send_sge: u32,
        /// Elements per receive request.
        pub max_recv_sge: u32,
        /// Inline bytes per send request.
        pub max_inline: u32,
    }
}

info! {
    /// The state and the attributes of a queue pair, as the kernel has them.
    #[doc(alias = "rust_ulp_qp_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpInfo(arg: &abi::QpQuery) {
        /// The number of the queue pair.
        pub qp_num: u32,
        /// The state of the queue pair.
        pub state: QpState = QpState::from_code(arg.attr.qp_state),
        /// The capacities of the queue pair.
        pub caps: QpCaps = QpCaps::new(arg),
        /// Send requests not yet completed.
        pub sends_in_flight: u32,
        /// Receive requests not yet completed.
        pub recvs_in_flight: u32,
        /// The rights of the peer.
        pub access: Access = Access::from_bits_truncate(arg.attr.access_flags),
        /// Number of the peer's queue pair.
        pub dest_qp_num: u32 = arg.attr.dest_qp_num,
        /// The path to the peer.
        pub path: Path = Path::from_abi(&arg.attr.ah),
        /// Bytes per packet, once it is connected.
        pub path_mtu: Option<Mtu> = Mtu::from_code(arg.attr.path_mtu),
        /// First packet expected, 24 bits.
        pub rq_psn: u32 = arg.attr.rq_psn,
        /// First packet sent, 24 bits.
        pub sq_psn: u32 = arg.attr.sq_psn,
        /// Wait for an acknowledgement; RC only, as the others down to
        /// [`Self::max_dest_rd_atomic`].
        pub timeout: AckTimeout = AckTimeout(arg.attr.timeout),
        /// Repeats of what was not acknowledged.
        pub retry_cnt: Retries = Retries(arg.attr.retry_cnt),
        /// Repeats of what found no receive.
        pub rnr_retry: RnrRetries = RnrRetries(arg.attr.rnr_retry),
        /// Wait of a peer whose request found no receive.
        pub min_rnr_timer: RnrTimer = RnrTimer(arg.attr.min_rnr_timer),
        /// Reads and atomics under way at a time.
        pub max_rd_atomic: u8 = arg.attr.max_rd_atomic,
        /// Reads and atomics of the peer answered at a time.
        pub max_dest_rd_atomic: u8 = arg.attr.max_dest_rd_atomic,
        /// The index into the port's P_Key table.
        pub pkey_index: u16 = arg.attr.pkey_index,
        /// The port.
        pub port: u32 = arg.attr.port_num,
        /// True while a queue pair in [`QpState::Sqd`] has sends to finish.
        pub sq_draining: bool = arg.attr.sq_draining != 0,
        /// The Q_Key that it takes; UD only.
        pub qkey: u32 = arg.attr.qkey,
    }
}
