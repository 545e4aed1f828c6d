// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connecting to a peer that listens.

use super::addr::to_abi;
use super::connection::Connection;
use super::options::ConnectOptions;
use super::params::param;
use super::pending::{Pending, Side};
#[cfg(doc)]
use super::Listener;
use crate::abi;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::object::Object;
#[cfg(doc)]
use crate::params::AckTimeout;
use crate::qp::{ConnectError, PreparedQp};
use crate::sys::Command;
use crate::transport::Rc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::wait::TaskWait;
use std::net::SocketAddr;

impl PreparedQp<Rc> {
    /// Connects to a peer that listens at `addr` with the connection manager ([`Listener`]). When
    /// this returns, both sides can send.
    ///
    /// Device, port and GID are those of the route; the rest is as the queue pair was built. An
    /// [`AckTimeout::FOREVER`] leaves that to the manager here.
    ///
    /// A peer that has ended the connection by then is no error, as with
    /// [`Request::accept`](super::Request::accept).
    ///
    /// # Errors
    ///
    /// With [`Error::Rejected`] if the peer, or its manager, does not want it; [`Error::Timeout`];
    /// [`Error::Sys`] with `EHOSTUNREACH` or `ENETUNREACH` if there is no way, `ETIMEDOUT` if
    /// nobody answers, `ECONNRESET` if the peer went away in the middle, `EADDRNOTAVAIL` for a source
    /// address of no device, `EXDEV` if the route is that of another device, `ERANGE` for an
    /// [`AckTimeout`] above 21, `EPROTO` if [`Qp::modify`](crate::Qp::modify) took the queue pair
    /// to another state than Reset or Init, or if the peer answers with a value that is not
    /// defined; [`Error::TooMany`] for too much private data; [`Error::DeviceGone`]. The queue pair
    /// can be tried again.
    pub fn connect_cm(
        self,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        self.begin_connect_cm(addr, options)?
            .finish(options.timeout)
    }

    /// Begins what [`Self::connect_cm`] does, and does not wait for the peer.
    ///
    /// # Errors
    ///
    /// As [`Self::connect_cm`], as far as they are known at once.
    pub fn begin_connect_cm(
        self,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Pending, ConnectError> {
        match self.begin(addr, options) {
            Ok(object) => Ok(Pending::new(object, self, addr, Side::Connecting)),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }

    /// Connects as [`Self::connect_cm`], in a task. Needs the feature `tokio` or `smol`.
    ///
    /// Dropping the future gives the attempt up, and drops the queue pair.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn connect_cm_async(
        self,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        let wait = match TaskWait::new(self.device_inner()) {
            Ok(wait) => wait,
            Err(error) => return Err(ConnectError::new(error, self)),
        };
        let pending = self.begin_connect_cm(addr, options)?;
        pending.end(wait, options.timeout).await
    }

    fn begin(&self, addr: SocketAddr, options: &ConnectOptions) -> Result<Object> {
        let (private_data, private_len) = options.saying.encode(abi::CM_REQ_PRIVATE_MAX)?;
        let mut arg = abi::Connect {
            qp: self.handle(),
            dst: to_abi(&addr),
            src: options.source.as_ref().map(to_abi).unwrap_or_default(),
            param: param(self, options.flow_control),
            private_len,
            private_data,
            user_data: options.user_data,
            ..Command::new()
        };
        let device = self.device_inner();
        device.call(&mut arg)?;
        Ok(Object::new(device, arg.handle))
    }
}
