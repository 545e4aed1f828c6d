// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connections that the connection manager keeps.

use super::addr::from_abi;
use super::params::Params;
use super::state::{query, State};
#[cfg(doc)]
use super::{AcceptOptions, ConnectOptions};
use crate::abi;
use crate::device::DeviceInner;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::info::info;
use crate::object::Object;
use crate::qp::{ConnectError, PreparedQp, Qp, QpState};
use crate::refusal::Private;
use crate::sys::Command;
use crate::transport::Rc;
use std::net::SocketAddr;
use std::sync::Arc;

info! {
    /// The state of a [`Connection`], as the kernel has it.
    #[doc(alias = "rust_ulp_conn_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ConnectionInfo(arg: &abi::ConnQuery) {
        /// The state of the connection.
        pub state: State = State::from_code(arg.state),
        /// The address of this side.
        pub local: SocketAddr = from_abi(&arg.local),
        /// The address of the other side.
        pub peer: SocketAddr = from_abi(&arg.peer),
        /// The parameters that both sides agreed on.
        pub params: Params = Params::new(&arg.param),
        /// Number of the peer's queue pair.
        pub peer_qp_num: u32,
        /// The value of [`ConnectOptions::user_data`] or [`AcceptOptions::user_data`].
        pub user_data: u64,
    }
}

#[derive(Debug)]
pub(super) struct ConnectionParts {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) param: abi::ConnParam,
    pub(super) private: Private,
}

// Dropped in this order: the object, the queue pair that it needs.
#[derive(Debug)]
struct ConnectionInner {
    object: Object,
    qp: Qp<Rc>,
    parts: ConnectionParts,
}

/// A connection that the manager keeps, with its queue pair.
///
/// Cheap to clone. Dropping the last clone ends the connection: the peer is told, and the queue
/// pair goes to the error state, in which a clone of it that lives on takes nothing more.
/// [`EventKind::Disconnected`](crate::events::EventKind::Disconnected) tells that the peer has
/// ended it.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<ConnectionInner>,
}

impl Connection {
    pub(super) fn new(
        object: Object,
        qp: PreparedQp<Rc>,
        parts: ConnectionParts,
    ) -> Result<Self, ConnectError> {
        // The peer may have ended the connection since: then the module has moved the queue pair to
        // the error state, and an event says so.
        let qp = match qp.take_connected(&[QpState::Rts, QpState::Err]) {
            Ok(qp) => qp,
            Err((error, qp)) => {
                // Before the queue pair, which it needs.
                drop(object);
                return Err(ConnectError::new(error, *qp));
            }
        };
        Ok(Self {
            inner: Arc::new(ConnectionInner { object, qp, parts }),
        })
    }

    /// Returns its queue pair.
    pub fn qp(&self) -> &Qp<Rc> {
        &self.inner.qp
    }

    /// Returns this side's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.parts.local
    }

    /// Returns the address of the other side.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.parts.peer
    }

    /// Returns the parameters that both sides agreed on.
    pub fn params(&self) -> Params {
        Params::new(&self.inner.parts.param)
    }

    /// Returns the private data of the peer's acceptance or request.
    pub fn private(&self) -> &Private {
        &self.inner.parts.private
    }

    /// Ends it, for all clones: the peer is told, and the queue pair goes to the error state and
    /// flushes.
    #[doc(alias = "rust_ulp_disconnect")]
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ENOTCONN` if it has ended; [`Error::DeviceGone`].
    pub fn disconnect(&self) -> Result<()> {
        let mut arg = abi::Disconnect {
            conn: self.handle(),
            ..Command::new()
        };
        self.device_inner().call(&mut arg)
    }

    /// Asks the kernel for its state.
    pub fn query(&self) -> Result<ConnectionInfo> {
        let arg = query(self.device_inner(), self.handle())?;
        Ok(ConnectionInfo::new(&arg))
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        self.inner.qp.device_inner()
    }
}
