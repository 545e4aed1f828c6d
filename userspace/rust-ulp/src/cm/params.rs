// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parameters of a connection.

use crate::abi;
use crate::access::Access;
use crate::endpoint::Mtu;
use crate::info::info;
use crate::params::{AckTimeout, Retries, RnrRetries, TrafficClass};
use crate::qp::PreparedQp;
use crate::transport::Rc;

info! {
    /// Parameters of a connection: those that both sides agreed on, or that one asks for.
    ///
    /// The requester's retries hold for both ends. How often an end repeats what found no receive,
    /// the other end says: [`QpBuilder::rnr_retry`](crate::qp::QpBuilder::rnr_retry) is what it
    /// tells its peer to do here.
    #[doc(alias = "rust_ulp_conn_param")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Params(param: &abi::ConnParam) {
        /// Reads and atomics that this side answers at a time.
        pub responder: u8 = param.responder_resources,
        /// Reads and atomics that this side has under way at a time.
        pub initiator: u8 = param.initiator_depth,
        /// Repeats of a request that is not acknowledged.
        pub retry_cnt: Retries = Retries(param.retry_cnt),
        /// Repeats of a request that finds no receive.
        pub rnr_retry: RnrRetries = RnrRetries(param.rnr_retry),
        /// Wait of an end for an acknowledgement, if the manager told it.
        pub timeout: Option<AckTimeout> =
            (param.ack_timeout != 0).then_some(AckTimeout(param.ack_timeout)),
        /// DSCP and ECN, if they were said.
        pub traffic_class: Option<TrafficClass> =
            (param.flags & abi::CONN_TRAFFIC_CLASS != 0)
                .then_some(TrafficClass(param.traffic_class)),
        /// Bytes per packet, if they were said.
        pub path_mtu: Option<Mtu> = Mtu::from_code(param.path_mtu),
        /// The rights of the peer.
        pub access: Access = Access::from_bits_truncate(param.access_flags),
        /// End-to-end flow control.
        pub flow_control: bool = param.flags & abi::CONN_FLOW_CONTROL != 0,
    }
}

/// Returns the parameters for which a queue pair was built.
pub(super) fn param(qp: &PreparedQp<Rc>, flow_control: bool) -> abi::ConnParam {
    let (params, end) = (qp.params(), qp.endpoint());
    let mut flags = 0;
    if params.traffic_class.is_some() {
        flags |= abi::CONN_TRAFFIC_CLASS;
    }
    if flow_control {
        flags |= abi::CONN_FLOW_CONTROL;
    }
    abi::ConnParam {
        responder_resources: end.responder,
        initiator_depth: end.initiator,
        retry_cnt: params.retry_cnt.count(),
        rnr_retry: params.rnr_retry.code(),
        min_rnr_timer: params.min_rnr_timer.code(),
        ack_timeout: params.timeout.code(),
        traffic_class: params.traffic_class.unwrap_or_default().0,
        path_mtu: params.mtu.map_or(0, |mtu| mtu as u8),
        access_flags: qp.access().bits(),
        flags,
        ..abi::ConnParam::default()
    }
}
