// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attempts to connect and to accept.

use super::addr::from_abi;
use super::connection::{Connection, ConnectionParts, Timings};
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

/// An attempt to connect: the struct of its command, and what the connection will be told of.
#[derive(Debug)]
pub(super) enum Attempt {
    Connect(Box<(abi::Connect, SocketAddr)>),
    Accept(Box<(abi::Accept, ConnectionParts)>),
}

impl Attempt {
    /// Issues the command, which waits for as long as `deadline` says, or not at all.
    fn issue(&mut self, device: &DeviceInner, deadline: Option<&Deadline>) -> Result<()> {
        // An attempt that begins needs some time.
        let timeout_ns = deadline.map_or(0, |deadline| deadline.left_ns().max(1));
        let flags = deadline.map_or(abi::NONBLOCK, |_| 0);
        // Repeated after a signal, a command waits on.
        let (result, name) = match self {
            Self::Connect(attempt) => {
                (attempt.0.timeout_ns, attempt.0.flags) = (timeout_ns, flags);
                (device.file().call(&mut attempt.0), abi::Connect::NAME)
            }
            Self::Accept(attempt) => {
                (attempt.0.timeout_ns, attempt.0.flags) = (timeout_ns, flags);
                (device.file().call(&mut attempt.0), abi::Accept::NAME)
            }
        };
        result.map_err(|errno| match (&*self, errno, deadline) {
            (Self::Connect(attempt), Errno::ECONNREFUSED, _) => {
                let (arg, peer) = &**attempt;
                Error::Rejected(Box::new(Rejection {
                    peer: *peer,
                    reason: RejectReason::from_code(arg.reject_reason),
                    private: Private::new(&arg.peer_private_data, arg.peer_private_len),
                }))
            }
            (Self::Connect(attempt), Errno::ETIME, Some(deadline)) => {
                deadline.timeout_of("connecting to", Some(attempt.1))
            }
            (Self::Accept(_), Errno::ETIME, Some(deadline)) => {
                deadline.timeout("accepting a connection")
            }
            (_, errno, _) => Error::sys(name, errno),
        })
    }

    /// Returns the connection, once CONNECT has returned one.
    fn object(&self, device: &Arc<DeviceInner>) -> Option<Object> {
        match self {
            Self::Connect(attempt) if attempt.0.handle != 0 => {
                Some(Object::new(device, attempt.0.handle))
            }
            _ => None,
        }
    }

    /// Starts the attempt. `object` is the request that is accepted.
    pub(super) fn begin(
        mut self,
        object: Option<Object>,
        qp: PreparedQp<Rc>,
    ) -> Result<Pending, ConnectError> {
        let result = self.issue(qp.device_inner(), None);
        match (result, object.or_else(|| self.object(qp.device_inner()))) {
            (Ok(()), Some(object)) => Ok(Pending {
                object,
                qp,
                attempt: self,
            }),
            (result, object) => {
                drop(object);
                let none = || Error::sys(abi::Connect::NAME, Errno::ENOENT);
                Err(ConnectError::new(result.err().unwrap_or_else(none), qp))
            }
        }
    }

    /// Waits for the end of the attempt, which begins if there is no `object`.
    pub(super) fn finish(
        mut self,
        object: Option<Object>,
        qp: PreparedQp<Rc>,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        let result = self.issue(qp.device_inner(), Some(&Deadline::after(timeout)));
        let object = object.or_else(|| self.object(qp.device_inner()));
        let object = match (result, object) {
            (Ok(()), Some(object)) => object,
            (result, object) => {
                // Before the queue pair, which a pending attempt has.
                drop(object);
                let none = || Error::sys(abi::Connect::NAME, Errno::ENOENT);
                return Err(ConnectError::new(result.err().unwrap_or_else(none), qp));
            }
        };
        let micros = |n: u32| Duration::from_micros(n.into());
        let parts = match self {
            Self::Accept(attempt) => {
                let (arg, parts) = *attempt;
                ConnectionParts {
                    param: arg.agreed,
                    ..parts
                }
            }
            Self::Connect(attempt) => {
                let (arg, peer) = &*attempt;
                ConnectionParts {
                    local: from_abi(&arg.local),
                    peer: *peer,
                    param: arg.agreed,
                    private: Private::new(&arg.peer_private_data, arg.peer_private_len),
                    timings: Some(Timings {
                        resolved: micros(arg.resolve_us),
                        routed: micros(arg.route_us),
                        connected: micros(arg.connect_us),
                    }),
                }
            }
        };
        Connection::new(object, qp, parts)
    }
}

/// An attempt to connect that nobody waits for, from [`PreparedQp::begin_connect_cm`] and
/// [`Request::begin_accept`].
///
/// [`EventKind::Established`](crate::EventKind::Established) or
/// [`EventKind::ConnectFailed`](crate::EventKind::ConnectFailed) tells that it is over:
/// [`Self::finish`] does not sleep then. Dropping it gives the attempt up.
// Dropped in this order: the object, the queue pair that it needs.
#[derive(Debug)]
#[must_use = "dropping it gives the attempt up"]
pub struct Pending {
    object: Object,
    qp: PreparedQp<Rc>,
    attempt: Attempt,
}

impl Pending {
    /// Returns [`State::Connecting`], or what it has come to.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`].
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
        let error = loop {
            match self.state() {
                Ok(State::Connecting) => {}
                Ok(_) => return self.finish(timeout), // which does not sleep
                Err(error) => break error,
            }
            let left = deadline.left();
            if left.is_zero() {
                break match &self.attempt {
                    Attempt::Connect(attempt) => {
                        deadline.timeout_of("connecting to", Some(attempt.1))
                    }
                    _ => deadline.timeout("accepting a connection"),
                };
            }
            // Events of other objects wake it, too.
            if let Err(error) = wait.changed(left).await {
                break error;
            }
        };
        // Before the queue pair, which it needs.
        drop(self.object);
        Err(ConnectError::new(error, self.qp))
    }

    /// Waits until it is over, at most for `timeout`; then it is given up.
    ///
    /// # Errors
    ///
    /// As [`PreparedQp::connect_cm`] and [`Request::accept`].
    pub fn finish(self, timeout: Duration) -> Result<Connection, ConnectError> {
        self.attempt.finish(Some(self.object), self.qp, timeout)
    }

    pub(crate) fn handle(&self) -> u32 {
        self.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        self.qp.device_inner()
    }
}
