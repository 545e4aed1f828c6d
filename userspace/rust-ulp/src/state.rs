// SPDX-License-Identifier: MIT OR Apache-2.0

//! The states of a queue pair.

use crate::abi;

/// What a queue pair is in.
///
/// Header: `RUST_ULP_QPS_*`, which is `enum ib_qp_state`.
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

    /// Its number.
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
