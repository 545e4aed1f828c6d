// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attempts to connect and to accept.

use super::addr::from_abi;
use super::connection::{Connection, ConnectionParts};
use super::state::{query, State};
#[cfg(doc)]
use super::Request;
use crate::abi;
use crate::deadline::Deadline;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::qp::{ConnectError, PreparedQp};
use crate::refusal::{Private, RejectReason, Rejection};
use crate::sys::Command;
use crate::transport::Rc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::wait::TaskWait;
use nix::errno::Errno;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The side of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Connecting,
    Accepting,
}

/// An attempt to connect, from [`PreparedQp::begin_connect_cm`] and [`Request::begin_accept`].
///
/// [`EventKind::Established`](crate::events::EventKind::Established) or
/// [`EventKind::ConnectFailed`](crate::events::EventKind::ConnectFailed) tells that it is over:
/// [`Self::finish`] does not sleep then. Dropping it gives the attempt up.
// Dropped in this order: the object, the queue pair that it needs.
#[derive(Debug)]
#[must_use = "dropping it gives the attempt up"]
pub struct Pending {
    object: Object,
    qp: PreparedQp<Rc>,
    peer: SocketAddr,
    side: Side,
}

impl Pending {
    /// Makes the value for an attempt that has begun.
    pub(super) fn new(object: Object, qp: PreparedQp<Rc>, peer: SocketAddr, side: Side) -> Self {
        Self {
            object,
            qp,
            peer,
            side,
        }
    }

    /// Returns [`State::Connecting`], or what it has come to.
    pub fn state(&self) -> Result<State> {
        let arg = query(self.device_inner(), self.handle())?;
        Ok(State::from_code(arg.state))
    }

    /// Waits in a task until it is over, at most for `timeout`; then it is given up.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    pub(super) async fn end(
        self,
        wait: TaskWait,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let deadline = Deadline::after(timeout);
        loop {
            match self.state() {
                Ok(State::Connecting) => {}
                Ok(_) => return self.finish(timeout), // which does not sleep
                Err(error) => return Err(self.give_up(error)),
            }
            let left = deadline.left();
            if left.is_zero() {
                let error = self.timed_out(&deadline);
                return Err(self.give_up(error));
            }
            // Events of other objects wake it, too.
            if let Err(error) = wait.changed(left).await {
                return Err(self.give_up(error));
            }
        }
    }

    /// Waits until it is over, at most for `timeout`; then it is given up.
    ///
    /// If the connection came about, and the peer has ended it since, this returns it all the same,
    /// as [`Request::accept`] does.
    #[doc(alias = "rust_ulp_conn_wait")]
    ///
    /// # Errors
    ///
    /// As [`PreparedQp::connect_cm`] and [`Request::accept`].
    pub fn finish(self, timeout: Duration) -> Result<Connection, ConnectError> {
        let deadline = Deadline::after(timeout);
        let mut arg = abi::ConnWait {
            conn: self.handle(),
            timeout_ns: deadline.left_ns(),
            ..Command::new()
        };
        // Repeated after a signal, the command waits for what is left of the time.
        let result = self.device_inner().file().call(&mut arg);
        let private = Private::new(&arg.private_data, arg.private_len);
        let error = match result {
            Ok(()) => {
                let parts = ConnectionParts {
                    local: from_abi(&arg.local),
                    peer: self.peer,
                    param: arg.agreed,
                    private,
                };
                return Connection::new(self.object, self.qp, parts);
            }
            Err(Errno::ECONNREFUSED) => Error::Rejected(Box::new(Rejection {
                peer: self.peer,
                reason: RejectReason::from_code(arg.reject_reason),
                private,
            })),
            Err(Errno::ETIME) => self.timed_out(&deadline),
            Err(errno) => Error::sys(abi::ConnWait::NAME, errno),
        };
        Err(self.give_up(error))
    }

    fn timed_out(&self, deadline: &Deadline) -> Error {
        match self.side {
            Side::Connecting => deadline.timeout_of("connecting to", Some(self.peer)),
            Side::Accepting => deadline.timeout("accepting a connection"),
        }
    }

    fn give_up(self, error: Error) -> ConnectError {
        // Before the queue pair, which it needs.
        drop(self.object);
        ConnectError::new(error, self.qp)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        self.qp.device_inner()
    }
}
