// SPDX-License-Identifier: MIT OR Apache-2.0

//! States of connections and listeners.

#[cfg(doc)]
use super::Connection;
use crate::abi;
use crate::device::DeviceInner;
use crate::error::Result;
use crate::numbered::numbered;
use crate::sys::Command;

numbered! {
    /// The state of a [`Connection`].
    #[doc(alias = "RUST_ULP_CONN")]
    pub enum State(pub(crate) u32) {
        /// A listener waits for requests.
        Listening = abi::CONN_LISTENING,
        /// A request, neither accepted nor rejected.
        Requested = abi::CONN_REQUESTED,
        /// One side has begun to connect or to accept.
        Connecting = abi::CONN_CONNECTING,
        /// Both sides can send.
        Established = abi::CONN_ESTABLISHED,
        /// One side has ended it.
        Disconnected = abi::CONN_DISCONNECTED,
        /// The connection has ended, and late packets are gone.
        TimewaitOver = abi::CONN_TIMEWAIT_OVER,
        /// The connection was never established.
        Failed = abi::CONN_FAILED,
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
