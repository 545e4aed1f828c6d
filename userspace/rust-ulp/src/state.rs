// SPDX-License-Identifier: MIT OR Apache-2.0

//! The states of a queue pair, and the names of its attributes.

use crate::abi;
use std::fmt;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QpState {
    /// Just made; takes nothing.
    Reset,
    /// Takes receives.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// Sends what it has and takes no more.
    Sqd,
    /// A send has failed on an unreliable queue pair.
    Sqe,
    /// A request has failed; everything is flushed.
    Err,
    /// A number that this crate does not know.
    Other(u8),
}

impl QpState {
    /// The state with this number.
    pub fn from_code(code: u8) -> Self {
        match code {
            abi::QPS_RESET => Self::Reset,
            abi::QPS_INIT => Self::Init,
            abi::QPS_RTR => Self::Rtr,
            abi::QPS_RTS => Self::Rts,
            abi::QPS_SQD => Self::Sqd,
            abi::QPS_SQE => Self::Sqe,
            abi::QPS_ERR => Self::Err,
            code => Self::Other(code),
        }
    }

    /// Returns its number.
    pub fn code(self) -> u8 {
        match self {
            Self::Reset => abi::QPS_RESET,
            Self::Init => abi::QPS_INIT,
            Self::Rtr => abi::QPS_RTR,
            Self::Rts => abi::QPS_RTS,
            Self::Sqd => abi::QPS_SQD,
            Self::Sqe => abi::QPS_SQE,
            Self::Err => abi::QPS_ERR,
            Self::Other(code) => code,
        }
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
