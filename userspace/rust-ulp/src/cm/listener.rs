// SPDX-License-Identifier: MIT OR Apache-2.0

//! Listening for peers that connect.

use super::addr::{from_abi, to_abi};
use super::request::Request;
use super::state::query;
use crate::abi;
use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::error::{Error, Result};
use crate::info::info;
use crate::object::Object;
#[cfg(doc)]
use crate::qp::PreparedQp;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::reactor::Watch;
use crate::sys::Command;
use nix::errno::Errno;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::task::{Context, Poll};
use std::time::Duration;

info! {
    /// The state of a [`Listener`], as the kernel has it.
    #[doc(alias = "rust_ulp_conn_query")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ListenerInfo(arg: &abi::ConnQuery) {
        /// The address at which it listens.
        pub local: SocketAddr = from_abi(&arg.local),
        /// Requests that were not taken.
        pub waiting: u32,
        /// Requests that it keeps waiting.
        pub backlog: u32,
        /// Requests that came while so many waited, and were rejected.
        pub rejected: u32,
        /// The value of [`Listener::bind_with`].
        pub user_data: u64,
    }
}

#[derive(Debug)]
struct ListenerInner {
    object: Object,
    local: SocketAddr,
}

/// Takes requests of peers that connect ([`PreparedQp::connect_cm`], or any program that uses the
/// connection manager).
///
/// Cheap to clone; several threads may take requests. Dropping the last clone rejects those that
/// wait, and leaves connections alone.
/// [`EventKind::ConnectRequest`](crate::events::EventKind::ConnectRequest) tells of requests to
/// those who wait for other things as well.
///
/// A server, which goes on when one client fails:
///
/// ```no_run
/// use rust_ulp::error::Result;
/// use rust_ulp::qp::Rc;
/// use rust_ulp::{cm, Access, Device, Error};
/// use std::time::Duration;
///
/// fn serve(dev: &Device) -> Result<()> {
///     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
///     let memory = pd.alloc_buffer(4096)?;
///     let grant = memory.grant(.., Access::REMOTE_READ)?;
///     let listener = cm::Listener::bind(dev, ([0, 0, 0, 0], 18515).into(), 64)?;
///     let mut clients = Vec::new();
///     loop {
///         let request = match listener.next_request(Duration::from_secs(1)) {
///             Ok(request) => request,
///             Err(Error::Timeout { .. }) => {
///                 // A connection that has ended stays Disconnected until it is dropped.
///                 clients.retain(is_connected);
///                 continue;
///             }
///             Err(error) => return Err(error),
///         };
///         let peer = request.peer_addr();
///         // Both fail for this client alone: `build` when there are too many.
///         let qp = pd.qp_builder::<Rc>(&cq).build();
///         let options = cm::AcceptOptions::new().grant(&grant);
///         match qp.and_then(|qp| Ok(request.accept(qp, &options)?)) {
///             Ok(connection) => clients.push(connection),
///             Err(error) => eprintln!("{peer}: {error}"),
///         }
///     }
/// }
///
/// fn is_connected(client: &cm::Connection) -> bool {
///     matches!(client.query(), Ok(info) if info.state == cm::State::Established)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Listener {
    inner: Arc<ListenerInner>,
}

impl Listener {
    /// Listens at `addr` for peers that reach it over this device. Address `0.0.0.0` or `::` takes
    /// any, and port 0 one that is free; [`Self::local_addr`] tells which. An IPv6 link-local
    /// address needs its scope. At most `backlog` requests, 1 to 1,024, are kept waiting; more are
    /// rejected.
    #[doc(alias = "rust_ulp_listen")]
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `EADDRINUSE` if the port is taken, `EACCES` if it is below 1,024 and for
    /// the privileged, `EADDRNOTAVAIL` if no device has that address, `EXDEV` if another device has
    /// it, `ERANGE` for another backlog; [`Error::DeviceGone`].
    pub fn bind(device: &Device, addr: SocketAddr, backlog: u32) -> Result<Self> {
        Self::bind_with(device, addr, backlog, 0)
    }

    /// Listens as [`Self::bind`], with a value that events about the listener carry
    /// ([`Event::user_data`](crate::events::Event::user_data)).
    pub fn bind_with(
        device: &Device,
        addr: SocketAddr,
        backlog: u32,
        user_data: u64,
    ) -> Result<Self> {
        let mut arg = abi::Listen {
            addr: to_abi(&addr),
            backlog,
            user_data,
            ..Command::new()
        };
        let device = device.inner();
        device.call(&mut arg)?;
        Ok(Self {
            inner: Arc::new(ListenerInner {
                object: Object::new(device, arg.handle),
                local: from_abi(&arg.addr),
            }),
        })
    }

    /// Returns the address at which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Takes the oldest request, sleeping until there is one.
    #[doc(alias = "rust_ulp_get_request")]
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; zero does not sleep.
    /// [`Error::DeviceGone`].
    pub fn next_request(&self, timeout: Duration) -> Result<Request> {
        let device = &self.inner.object.device;
        let deadline = Deadline::after(timeout);
        let mut arg = abi::GetRequest {
            listener: self.handle(),
            timeout_ns: deadline.left_ns(),
            ..Command::new()
        };
        // Repeated after a signal, it waits for what is left of the time.
        match device.file().call(&mut arg) {
            Ok(()) => Ok(Request::new(device, &arg)),
            Err(Errno::ETIME) => Err(deadline.timeout("waiting for a connection request")),
            Err(errno) => Err(Error::sys(abi::GetRequest::NAME, errno)),
        }
    }

    /// Returns the requests, for a task. Needs the feature `tokio` or `smol`.
    ///
    /// # Errors
    ///
    /// As [`Device::events`]; [`Error::Sys`] if the runtime cannot take it.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub fn requests(&self) -> Result<Requests> {
        let device = &self.inner.object.device;
        Ok(Requests {
            listener: self.clone(),
            watch: Watch::objects(device)?,
            ended: false,
        })
    }

    /// Asks the kernel for its state.
    pub fn query(&self) -> Result<ListenerInfo> {
        let arg = query(&self.inner.object.device, self.handle())?;
        Ok(ListenerInfo::new(&arg))
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.object.device
    }
}

/// The requests of a [`Listener`], for a task; from [`Listener::requests`].
///
/// It is a [`Stream`](futures_core::Stream) of requests, which ends after the first error. Waiting
/// is cancel-safe: a future that is dropped has taken no request. It takes no events: those of the
/// device stay for [`Events`](crate::events::Events).
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
#[derive(Debug)]
pub struct Requests {
    listener: Listener,
    watch: Watch,
    ended: bool,
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl Requests {
    /// Takes the oldest request, waiting until there is one.
    pub async fn next_request(&mut self) -> Result<Request> {
        poll_fn(|cx| self.poll_next_request(cx)).await
    }

    fn poll_next_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Request>> {
        let listener = &self.listener;
        self.watch
            .poll_until(cx, || match listener.next_request(Duration::ZERO) {
                Ok(request) => Ok(Some(request)),
                Err(Error::Timeout { .. }) => Ok(None),
                Err(error) => Err(error),
            })
    }
}

#[cfg(any(feature = "smol", feature = "tokio"))]
crate::asynchronous::stream!(Requests, Request, poll_next_request);
