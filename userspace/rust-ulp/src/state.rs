// SPDX-License-Identifier: MIT OR Apache-2.0

//! The states of a queue pair, and the names of its attributes.

use crate::abi;
use crate::numbered::numbered;
use std::fmt;

numbered! {
    /// The state of a queue pair.
    pub enum QpState(pub u8) {
        /// Just made; takes nothing.
        Reset = abi::QPS_RESET,
        /// Takes receives.
        Init = abi::QPS_INIT,
        /// Ready to receive.
        Rtr = abi::QPS_RTR,
        /// Ready to send as well.
        Rts = abi::QPS_RTS,
        /// Sends what it has and takes no more.
        Sqd = abi::QPS_SQD,
        /// A send has failed on an unreliable queue pair.
        Sqe = abi::QPS_SQE,
        /// A request has failed; everything is flushed.
        Err = abi::QPS_ERR,
    }
}

/// The bit of each attribute, and the name of its method in [`QpAttr`](crate::qp::QpAttr).
const NAMES: [(u32, &str); 18] = [
    (abi::QP_STATE, "state"),
    (abi::QP_CUR_STATE, "current_state"),
    (abi::QP_EN_SQD_ASYNC_NOTIFY, "sqd_event"),
    (abi::QP_ACCESS_FLAGS, "access"),
    (abi::QP_PKEY_INDEX, "pkey_index"),
    (abi::QP_PORT, "port"),
    (abi::QP_QKEY, "qkey"),
    (abi::QP_AV, "path"),
    (abi::QP_PATH_MTU, "path_mtu"),
    (abi::QP_TIMEOUT, "timeout"),
    (abi::QP_RETRY_CNT, "retry_cnt"),
    (abi::QP_RNR_RETRY, "rnr_retry"),
    (abi::QP_RQ_PSN, "rq_psn"),
    (abi::QP_MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    (abi::QP_MIN_RNR_TIMER, "min_rnr_timer"),
    (abi::QP_SQ_PSN, "sq_psn"),
    (abi::QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (abi::QP_DEST_QPN, "dest_qp_num"),
];

/// A set of attributes, by the names of the methods of [`QpAttr`](crate::qp::QpAttr), or `state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrSet {
    pub(crate) mask: u32,
}

impl AttrSet {
    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.mask == 0
    }

    /// Returns the names of the attributes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let known = NAMES.iter().filter(move |(bit, _)| self.mask & bit != 0);
        known.map(|(_, name)| *name)
    }
}

impl fmt::Display for AttrSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name}")?;
        }
        Ok(())
    }
}
