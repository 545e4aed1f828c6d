// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests of peers that connect.

use super::addr::from_abi;
use super::connection::Connection;
use super::options::{AcceptOptions, Saying};
use super::params::{param, Params};
use super::pending::{Pending, Side};
use crate::abi;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::qp::{ConnectError, PreparedQp};
use crate::refusal::Private;
use crate::sys::Command;
use crate::transport::Rc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::wait::TaskWait;
use nix::errno::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// A request to connect. Dropping it rejects the request.
#[derive(Debug)]
#[must_use = "the peer waits: accept or reject"]
pub struct Request {
    object: Object,
    peer: SocketAddr,
    local: SocketAddr,
    param: abi::ConnParam,
    peer_qp_num: u32,
    private: Private,
}

impl Request {
    pub(super) fn new(device: &Arc<DeviceInner>, arg: &abi::GetRequest) -> Self {
        Self {
            object: Object::new(device, arg.handle),
            peer: from_abi(&arg.peer),
            local: from_abi(&arg.local),
            param: arg.param,
            peer_qp_num: arg.peer_qp_num,
            private: Private::new(&arg.private_data, arg.private_len),
        }
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Returns this side's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the parameters that it asks for, as seen from here.
    pub fn params(&self) -> Params {
        Params::new(&self.param)
    }

    /// Returns the number of the peer's queue pair.
    pub fn peer_qp_num(&self) -> u32 {
        self.peer_qp_num
    }

    /// Returns its private data.
    pub fn private(&self) -> &Private {
        &self.private
    }

    /// Connects `qp` to it. When this returns, both sides can send.
    ///
    /// A peer that has written and ended the connection by then is no error:
    /// [`EventKind::Disconnected`](crate::events::EventKind::Disconnected) tells that, and what is
    /// posted completes as [`Status::Flushed`](crate::Status::Flushed).
    ///
    /// # Errors
    ///
    /// With [`Error::Timeout`] if the peer does not answer in time, [`Error::Sys`] with
    /// `ECONNRESET` if it went away, `EXDEV` if it came over another device than that of `qp`,
    /// `ERANGE` if `qp` was built with a smaller MTU than the peer has asked for, or with an
    /// [`AckTimeout`](crate::qp::AckTimeout) above 21, `EPROTO` if
    /// [`Qp::modify`](crate::Qp::modify) took `qp` to another state than Reset or Init;
    /// [`Error::TooMany`] for too much private data; [`Error::DeviceGone`]. The peer is rejected
    /// then.
    pub fn accept(
        self,
        qp: PreparedQp<Rc>,
        options: &AcceptOptions,
    ) -> Result<Connection, ConnectError> {
        self.begin_accept(qp, options)?.finish(options.timeout)
    }

    /// Begins what [`Self::accept`] does, and does not wait for the peer.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`], as far as they are known at once.
    pub fn begin_accept(
        self,
        qp: PreparedQp<Rc>,
        options: &AcceptOptions,
    ) -> Result<Pending, ConnectError> {
        match self.begin(&qp, options) {
            Ok(()) => Ok(Pending::new(self.object, qp, self.peer, Side::Accepting)),
            Err(error) => {
                // Rejects the peer.
                drop(self.object);
                Err(ConnectError::new(error, qp))
            }
        }
    }

    /// Accepts as [`Self::accept`], in a task. Needs the feature `tokio` or `smol`.
    ///
    /// Dropping the future rejects the peer or hangs up, and drops the queue pair.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn accept_async(
        self,
        qp: PreparedQp<Rc>,
        options: &AcceptOptions,
    ) -> Result<Connection, ConnectError> {
        let wait = match TaskWait::new(&self.object.device) {
            Ok(wait) => wait,
            Err(error) => return Err(ConnectError::new(error, qp)),
        };
        let pending = self.begin_accept(qp, options)?;
        pending.end(wait, options.timeout).await
    }

    fn begin(&self, qp: &PreparedQp<Rc>, options: &AcceptOptions) -> Result<()> {
        let (private_data, private_len) = options.saying.encode(abi::CM_REP_PRIVATE_MAX)?;
        // Handles of another file name other things there.
        if !Arc::ptr_eq(&self.object.device, qp.device_inner()) {
            return Err(Error::sys(abi::Accept::NAME, Errno::EXDEV));
        }
        let mut param = param(qp, options.flow_control);
        let asked = &self.param;
        param.responder_resources = param.responder_resources.min(asked.responder_resources);
        param.initiator_depth = param.initiator_depth.min(asked.initiator_depth);
        let mut arg = abi::Accept {
            request: self.object.handle(),
            qp: qp.handle(),
            param,
            private_len,
            private_data,
            user_data: options.user_data,
            ..Command::new()
        };
        self.object.device.call(&mut arg)
    }

    /// Rejects the request, with at most 148 bytes of private data.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] for more bytes; [`Error::Sys`] with `ENOTCONN` if the request has ended,
    /// `EISCONN` if it was accepted, `ENOMEM` without memory for the message;
    /// [`Error::DeviceGone`].
    pub fn reject(self, why: &[u8]) -> Result<()> {
        let saying = Saying::Raw(why.to_vec());
        let (private_data, private_len) = saying.encode(abi::CM_REJ_PRIVATE_MAX)?;
        let mut arg = abi::Reject {
            request: self.object.handle(),
            private_len,
            private_data,
            ..Command::new()
        };
        self.object.device.call(&mut arg)?;
        self.object.set_gone();
        Ok(())
    }
}
