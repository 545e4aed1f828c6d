// SPDX-License-Identifier: MIT OR Apache-2.0

//! States of connections and listeners.

#[cfg(doc)]
use super::Connection;
use crate::abi;
use crate::device::DeviceInner;
use crate::error::Result;
use crate::sys::Command;

/// The state of a [`Connection`].
#[doc(alias = "RUST_ULP_CONN")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// A listener waits for requests.
    Listening,
    /// A request, neither accepted nor rejected.
    Requested,
    /// One side has begun to connect or to accept.
    Connecting,
    /// Both sides can send.
    Established,
    /// One side has ended it.
    Disconnected,
    /// It has ended, and late packets are gone.
    TimewaitOver,
    /// It did not come about.
    Failed,
    /// A number that this crate does not know.
    Other(u32),
}

impl State {
    pub(super) fn from_code(code: u32) -> Self {
        match code {
            abi::CONN_LISTENING => Self::Listening,
            abi::CONN_REQUESTED => Self::Requested,
            abi::CONN_CONNECTING => Self::Connecting,
            abi::CONN_ESTABLISHED => Self::Established,
            abi::CONN_DISCONNECTED => Self::Disconnected,
            abi::CONN_TIMEWAIT_OVER => Self::TimewaitOver,
            abi::CONN_FAILED => Self::Failed,
            code => Self::Other(code),
        }
    }
}

pub(super) fn query(device: &DeviceInner, handle: u32) -> Result<abi::ConnQuery> {
    let mut arg = abi::ConnQuery {
        conn: handle,
        ..Command::new()
    };
    device.call(&mut arg)?;
    Ok(arg)
}
