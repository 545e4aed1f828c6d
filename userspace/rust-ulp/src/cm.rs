// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connecting by the RDMA connection manager: addresses of IP, no TCP.
//!
//! The manager finds device, port, GID and path by the addresses, and brings both queue pairs up.
//! Each side can say something along: 56 bytes with a request, 196 with its acceptance, 148 with
//! its rejection. The options here put grants and data into these in the form of
//! [`wire::PrivateData`]; other programs' forms go as they are ([`ConnectOptions::raw`]).
//!
//! ```no_run
//! use rust_ulp::{cm, Access, Device, Rc, Recv, Result, Write};
//! use std::time::Duration;
//!
//! const LONG: Duration = Duration::from_secs(30);
//!
//! fn target(addr: std::net::SocketAddr) -> Result<Vec<u8>> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let buf = pd.alloc_buffer(4096)?;
//!     let grant = buf.grant(.., Access::REMOTE_WRITE)?;
//!     let qp = pd.qp_builder::<Rc>(&cq).build()?;
//!     qp.post_recv(Recv::empty())?;
//!     let request = cm::Listener::bind(&dev, addr, 8)?.next_request(LONG)?;
//!     let _connection = request.accept(qp, &cm::AcceptOptions::new().grant(&grant))?;
//!     let done = cq.wait(LONG)?.ok()?;
//!     buf.to_vec(..done.byte_len as usize)
//! }
//!
//! fn writer(addr: std::net::SocketAddr) -> Result<()> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let qp = pd.qp_builder::<Rc>(&cq).build()?;
//!     let connection = qp.connect_cm(addr, &cm::ConnectOptions::new())?;
//!     let grant = connection.private().grant(0)?;
//!     connection.qp().post(Write::inline_bytes(b"hello", grant).imm(1))?;
//!     cq.wait(LONG)?.check()?;
//!     Ok(())
//! }
//! ```

use crate::abi;
use crate::access::Access;
use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::endpoint::Mtu;
use crate::error::{Error, Result};
use crate::grant::Grant;
use crate::object::Object;
use crate::params::{AckTimeout, Retries, RnrRetries, TrafficClass};
use crate::qp::{ConnectError, PreparedQp, Qp};
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::reactor::Watch;
pub use crate::refusal::{Private, RejectReason, Rejection};
use crate::remote::RemoteSlice;
use crate::sys::Command;
use crate::transport::Rc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::wait::TaskWait;
use crate::wire;
use nix::errno::Errno;
use std::fmt;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// How long connecting and accepting may take unless said otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;

fn to_abi(addr: &SocketAddr) -> abi::Addr {
    let mut bytes = [0; 16];
    let (family, scope_id) = match addr {
        SocketAddr::V4(v4) => {
            for (to, from) in bytes.iter_mut().zip(v4.ip().octets()) {
                *to = from;
            }
            (AF_INET, 0)
        }
        SocketAddr::V6(v6) => {
            bytes = v6.ip().octets();
            (AF_INET6, v6.scope_id())
        }
    };
    abi::Addr {
        family,
        port: addr.port(),
        scope_id,
        addr: bytes,
    }
}

/// An address that the kernel gave; one that it left out is `0.0.0.0:0`.
fn from_abi(addr: &abi::Addr) -> SocketAddr {
    if addr.family == AF_INET6 {
        return SocketAddrV6::new(addr.addr.into(), addr.port, 0, addr.scope_id).into();
    }
    let [a, b, c, d, ..] = addr.addr;
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), addr.port)
}

/// What one side says along with a request, an acceptance or a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Saying {
    Form(wire::PrivateData),
    Raw(Vec<u8>),
}

impl Default for Saying {
    fn default() -> Self {
        Self::Raw(Vec::new())
    }
}

impl Saying {
    /// Changes the form; bytes that were to go as they are give way to an empty one.
    fn form(&mut self, change: impl FnOnce(&mut wire::PrivateData)) {
        let mut form = match std::mem::take(self) {
            Self::Form(form) => form,
            Self::Raw(_) => wire::PrivateData::default(),
        };
        change(&mut form);
        *self = Self::Form(form);
    }

    /// As the ABI has it: the bytes, and how many there are.
    fn encode(&self, max: usize) -> Result<([u8; abi::CM_PRIVATE_MAX], u32)> {
        let bytes = match self {
            Self::Form(form) => form.encode(),
            Self::Raw(raw) => raw.clone(),
        };
        if bytes.len() > max {
            return Err(Error::TooMany {
                what: "bytes of private data",
                count: bytes.len() as u64,
                max: max as u64,
            });
        }
        let mut field = [0; abi::CM_PRIVATE_MAX];
        for (to, from) in field.iter_mut().zip(&bytes) {
            *to = *from;
        }
        Ok((field, bytes.len() as u32))
    }
}

macro_rules! options {
    (
        $(#[$meta:meta])*
        $name:ident { $($extra:ident: $ty:ty)* }, $max:literal, $grants:literal
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            timeout: Duration,
            flow_control: bool,
            user_data: u64,
            saying: Saying,
            $($extra: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl $name {
            /// A time limit of [`TIMEOUT`], and nothing said.
            pub fn new() -> Self {
                Self {
                    timeout: TIMEOUT,
                    flow_control: false,
                    user_data: 0,
                    saying: Saying::default(),
                    $($extra: <$ty>::default(),)*
                }
            }

            /// How long it may take; [`TIMEOUT`] unless said.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.timeout = timeout;
                self
            }

            /// Sets a value that events about the connection carry
            /// ([`Event::user_data`](crate::Event::user_data)); 0 unless said.
            pub fn user_data(mut self, value: u64) -> Self {
                self.user_data = value;
                self
            }

            #[doc = concat!("Tells the peer of a grant, with its rights. Each takes 24 bytes of the ", $max,
                " there are, and 4 are taken by the form: at most ", $grants, ".")]
            pub fn grant(mut self, grant: &Grant) -> Self {
                self.saying.form(|form| form.grants.push(grant.remote()));
                self
            }

            /// Tells the peer so many bytes, in the form of [`wire::PrivateData`].
            pub fn data(mut self, data: &[u8]) -> Self {
                self.saying.form(|form| form.data = data.to_vec());
                self
            }

            #[doc = concat!("Tells the peer these bytes, at most ", $max, ", in place of that form: for peers ",
                "that have one of their own. The peer may see zeros behind them.")]
            pub fn raw(mut self, bytes: &[u8]) -> Self {
                self.saying = Saying::Raw(bytes.to_vec());
                self
            }

            /// End-to-end flow control, where the device has it; off unless said.
            #[doc(alias = "RUST_ULP_CONN_FLOW_CONTROL")]
            pub fn flow_control(mut self, on: bool) -> Self {
                self.flow_control = on;
                self
            }
        }
    };
}

options! {
    /// How [`PreparedQp::connect_cm`] connects.
    #[doc(alias = "rust_ulp_connect")]
    ConnectOptions { source: Option<SocketAddr> }, "56", "2"
}

options! {
    /// How [`Request::accept`] accepts.
    #[doc(alias = "rust_ulp_accept")]
    AcceptOptions {}, "196", "8"
}

impl ConnectOptions {
    /// The address to connect from, with port 0 for any; as the route says unless said.
    pub fn source(mut self, addr: SocketAddr) -> Self {
        self.source = Some(addr);
        self
    }
}

impl Private {
    /// What they say in the form of this crate.
    ///
    /// # Errors
    ///
    /// [`Error::Wire`] if they are not in that form.
    pub fn message(&self) -> Result<wire::PrivateData> {
        Ok(wire::PrivateData::decode(self.raw())?)
    }

    /// The grant number `index`, from 0.
    ///
    /// # Errors
    ///
    /// As [`Self::message`]; [`Error::Range`] if there are fewer.
    pub fn grant(&self, index: usize) -> Result<RemoteSlice> {
        let grants = self.message()?.grants;
        grants.get(index).copied().ok_or(Error::Range {
            what: "grants of the peer, by number from 0",
            offset: index as u64,
            len: 1,
            capacity: grants.len() as u64,
        })
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Ok(message) => fmt::Debug::fmt(&message, f),
            Err(_) => write!(f, "Private({:02x?})", self.raw()),
        }
    }
}

/// What both sides agreed on, or what one asks for.
///
/// The requester's retries hold for both ends. How often an end repeats what found no receive, the
/// other end says: [`QpBuilder::rnr_retry`](crate::QpBuilder::rnr_retry) is what it tells its peer
/// to do here.
#[doc(alias = "rust_ulp_conn_param")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Params {
    /// Reads and atomics that this side answers at a time.
    pub responder: u8,
    /// Reads and atomics that this side has under way at a time.
    pub initiator: u8,
    /// How often to repeat what was not acknowledged.
    pub retry_cnt: Retries,
    /// How often to repeat what found no receive.
    pub rnr_retry: RnrRetries,
    /// How long to wait for an acknowledgement, if it was said.
    pub timeout: Option<AckTimeout>,
    /// DSCP and ECN, if they were said.
    pub traffic_class: Option<TrafficClass>,
    /// Bytes per packet, if they were said.
    pub path_mtu: Option<Mtu>,
    /// What the peer may do.
    pub access: Access,
    /// End-to-end flow control.
    pub flow_control: bool,
}

impl Params {
    fn new(param: &abi::ConnParam) -> Self {
        let class = param.flags & abi::CONN_TRAFFIC_CLASS != 0;
        Self {
            responder: param.responder_resources,
            initiator: param.initiator_depth,
            retry_cnt: Retries::from_abi(param.retry_cnt),
            rnr_retry: RnrRetries::from_abi(param.rnr_retry),
            timeout: (param.ack_timeout != 0).then_some(AckTimeout::from_abi(param.ack_timeout)),
            traffic_class: class.then_some(TrafficClass(param.traffic_class)),
            path_mtu: Mtu::from_code(param.path_mtu),
            access: Access::from_bits_truncate(param.access_flags),
            flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
        }
    }
}

/// How long the steps of connecting took, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// Until the address was resolved to a device.
    pub resolved: Duration,
    /// Until the route was known.
    pub routed: Duration,
    /// Until the peer had answered.
    pub connected: Duration,
}

/// What a [`Connection`] is in.
#[doc(alias = "RUST_ULP_CONN")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It waits for requests: a listener.
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
    fn from_code(code: u32) -> Self {
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

/// What the kernel says of a [`Connection`].
#[doc(alias = "rust_ulp_conn_query")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// What it is in.
    pub state: State,
    /// This side's address.
    pub local: SocketAddr,
    /// The other side's address.
    pub peer: SocketAddr,
    /// What was agreed.
    pub params: Params,
    /// Number of the peer's queue pair.
    pub peer_qp_num: u32,
    /// The value of [`ConnectOptions::user_data`] or [`AcceptOptions::user_data`].
    pub user_data: u64,
}

/// What the kernel says of a [`Listener`].
#[doc(alias = "rust_ulp_conn_query")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// Where it listens.
    pub local: SocketAddr,
    /// Requests that were not taken.
    pub waiting: u32,
    /// Requests that it keeps waiting.
    pub backlog: u32,
    /// Requests that came while so many waited, and were rejected.
    pub rejected: u32,
    /// The value of [`Listener::bind_with`].
    pub user_data: u64,
}

fn query(device: &DeviceInner, handle: u32) -> Result<abi::ConnQuery> {
    let mut arg = abi::ConnQuery {
        conn: handle,
        ..Command::new()
    };
    device.call(&mut arg)?;
    Ok(arg)
}

// Dropped in this order: the object with its device.
#[derive(Debug)]
struct ListenerInner {
    object: Object,
    device: Arc<DeviceInner>,
    local: SocketAddr,
}

/// Takes requests of peers that connect ([`PreparedQp::connect_cm`], or any program that uses the
/// connection manager).
///
/// Cheap to clone; several threads may take requests. Dropping the last clone rejects those that
/// wait, and leaves connections alone.
/// [`EventKind::ConnectRequest`](crate::EventKind::ConnectRequest) tells of requests to those who
/// wait for other things as well.
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

    /// The same as [`Self::bind`], with a value that events about the listener carry
    /// ([`Event::user_data`](crate::Event::user_data)).
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
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
                device: device.clone(),
                local: from_abi(&arg.addr),
            }),
        })
    }

    /// Where it listens.
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
        let device = &self.inner.device;
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
    ///
    /// # Panics
    ///
    /// As [`AsyncCq::new`](crate::AsyncCq::new).
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub fn requests(&self) -> Result<Requests> {
        let device = &self.inner.device;
        device.needs(abi::FEATURE_EVENTS, "events")?;
        Ok(Requests {
            listener: self.clone(),
            watch: Watch::device(device)?,
            ended: false,
        })
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`].
    pub fn query(&self) -> Result<ListenerInfo> {
        let arg = query(&self.inner.device, self.handle())?;
        Ok(ListenerInfo {
            local: from_abi(&arg.local),
            waiting: arg.waiting,
            backlog: arg.backlog,
            rejected: arg.rejected,
            user_data: arg.user_data,
        })
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.device
    }
}

/// The requests of a [`Listener`], for a task; from [`Listener::requests`].
///
/// It is a [`Stream`](futures_core::Stream) of requests, which ends after the first error. Waiting
/// is cancel-safe: a future that is dropped has taken no request. It takes no events: those of the
/// device stay for [`Events`](crate::Events).
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
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`].
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
impl futures_core::Stream for Requests {
    type Item = Result<Request>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll_next_request(cx));
        self.ended = next.is_err();
        Poll::Ready(Some(next))
    }
}

/// Somebody who wants to connect. Dropping it rejects.
#[derive(Debug)]
#[must_use = "the peer waits: accept or reject"]
pub struct Request {
    object: Object,
    device: Arc<DeviceInner>,
    peer: SocketAddr,
    local: SocketAddr,
    param: abi::ConnParam,
    peer_qp_num: u32,
    private: Private,
}

impl Request {
    fn new(device: &Arc<DeviceInner>, arg: &abi::GetRequest) -> Self {
        Self {
            object: Object::new(device, arg.handle),
            device: device.clone(),
            peer: from_abi(&arg.peer),
            local: from_abi(&arg.local),
            param: arg.param,
            peer_qp_num: arg.peer_qp_num,
            private: Private::new(&arg.private_data, arg.private_len),
        }
    }

    /// Where it comes from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Where it came to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What it asks for, as seen from here.
    pub fn params(&self) -> Params {
        Params::new(&self.param)
    }

    /// Number of the peer's queue pair.
    pub fn peer_qp_num(&self) -> u32 {
        self.peer_qp_num
    }

    /// What it said.
    pub fn private(&self) -> &Private {
        &self.private
    }

    /// Connects `qp` to it. When this returns, both sides can send.
    ///
    /// # Errors
    ///
    /// With [`Error::Timeout`] if the peer does not answer in time, [`Error::Sys`] with
    /// `ECONNRESET` if it went away, `EXDEV` if it came over another
    /// device than that of `qp`, `ERANGE` if `qp` was built with a smaller MTU than the peer has
    /// asked for; [`Error::TooMany`] for too much private data; [`Error::DeviceGone`]. The peer is
    /// rejected then.
    pub fn accept(
        self,
        qp: PreparedQp<Rc>,
        options: &AcceptOptions,
    ) -> Result<Connection, ConnectError> {
        match self.attempt(&qp, options) {
            Ok((object, attempt)) => attempt.finish(Some(object), qp, options.timeout),
            Err(error) => Err(ConnectError::new(error, qp)),
        }
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
        match self.attempt(&qp, options) {
            Ok((object, attempt)) => attempt.begin(Some(object), qp),
            Err(error) => Err(ConnectError::new(error, qp)),
        }
    }

    /// Does what [`Self::accept`] does in a task. Needs the feature `tokio` or `smol`.
    ///
    /// Dropping the future rejects the peer or hangs up, and drops the queue pair.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    ///
    /// # Panics
    ///
    /// As [`AsyncCq::new`](crate::AsyncCq::new).
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn accept_async(
        self,
        qp: PreparedQp<Rc>,
        options: &AcceptOptions,
    ) -> Result<Connection, ConnectError> {
        let wait = match TaskWait::new(&self.device) {
            Ok(wait) => wait,
            Err(error) => return Err(ConnectError::new(error, qp)),
        };
        let pending = self.begin_accept(qp, options)?;
        pending.end(wait, options.timeout).await
    }

    fn attempt(self, qp: &PreparedQp<Rc>, options: &AcceptOptions) -> Result<(Object, Attempt)> {
        let (private_data, private_len) = options.saying.encode(abi::CM_REP_PRIVATE_MAX)?;
        // Handles of another file name other things there.
        if !Arc::ptr_eq(&self.device, qp.device_inner()) {
            return Err(Error::sys(abi::Accept::NAME, Errno::EXDEV));
        }
        let mut param = param(qp, options.flow_control);
        let asked = &self.param;
        param.responder_resources = param.responder_resources.min(asked.responder_resources);
        param.initiator_depth = param.initiator_depth.min(asked.initiator_depth);
        let arg = abi::Accept {
            request: self.object.handle(),
            qp: qp.handle(),
            param,
            private_len,
            private_data,
            user_data: options.user_data,
            ..Command::new()
        };
        let parts = ConnectionParts {
            local: self.local,
            peer: self.peer,
            param: self.param,
            private: self.private,
            timings: None,
        };
        Ok((self.object, Attempt::Accept(Box::new((arg, parts)))))
    }

    /// Tells it no, with at most 148 bytes that say why.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`] for more bytes; [`Error::Sys`] with `ECONNRESET` if it went away;
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
        self.device.call(&mut arg)?;
        self.object.is_gone();
        Ok(())
    }
}

/// What a queue pair was built for.
fn param(qp: &PreparedQp<Rc>, flow_control: bool) -> abi::ConnParam {
    let (params, end) = (qp.params(), qp.endpoint());
    let mut flags = 0;
    if params.traffic_class.is_some() {
        flags |= abi::CONN_TRAFFIC_CLASS;
    }
    if flow_control {
        flags |= abi::CONN_FLOW_CONTROL;
    }
    abi::ConnParam {
        responder_resources: end.responder,
        initiator_depth: end.initiator,
        retry_cnt: params.retry_cnt.count(),
        rnr_retry: params.rnr_retry.code(),
        min_rnr_timer: params.min_rnr_timer.code(),
        ack_timeout: params.timeout.code(),
        traffic_class: params.traffic_class.unwrap_or_default().0,
        path_mtu: params.mtu.map_or(0, |mtu| mtu as u8),
        access_flags: qp.access().bits(),
        flags,
        ..abi::ConnParam::default()
    }
}

impl PreparedQp<Rc> {
    /// Connects to a peer that listens at `addr` with the connection manager ([`Listener`]). When
    /// this returns, both sides can send.
    ///
    /// Device, port and GID are those of the route; the rest is as the queue pair was built. An
    /// [`AckTimeout::FOREVER`] leaves that to the manager here.
    ///
    /// # Errors
    ///
    /// With [`Error::Rejected`] if the peer, or its manager, does not want it; [`Error::Timeout`];
    /// [`Error::Sys`] with `EHOSTUNREACH` or `ENETUNREACH` if there is no way, `ETIMEDOUT` if
    /// nobody answers, `ECONNRESET` if the peer went away in the middle, `EADDRNOTAVAIL` for a source address of no device, `EXDEV`
    /// if the route is that of another device; [`Error::TooMany`] for too much private data;
    /// [`Error::DeviceGone`]. The queue pair can be tried again.
    pub fn connect_cm(
        self,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Connection, ConnectError> {
        match self.attempt(addr, options) {
            Ok(attempt) => attempt.finish(None, self, options.timeout),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }

    /// Begins what [`Self::connect_cm`] does, and does not wait for the peer.
    ///
    /// # Errors
    ///
    /// As [`Self::connect_cm`], as far as they are known at once; [`Error::Sys`] with `EOPNOTSUPP`
    /// on iWARP.
    pub fn begin_connect_cm(
        self,
        addr: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Pending, ConnectError> {
        match self.attempt(addr, options) {
            Ok(attempt) => attempt.begin(None, self),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }

    /// Does what [`Self::connect_cm`] does in a task. Needs the feature `tokio` or `smol`.
    ///
    /// Dropping the future gives the attempt up, and drops the queue pair.
    ///
    /// # Errors
    ///
    /// As [`Self::connect_cm`] and [`Self::begin_connect_cm`].
    ///
    /// # Panics
    ///
    /// As [`AsyncCq::new`](crate::AsyncCq::new).
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

    fn attempt(&self, addr: SocketAddr, options: &ConnectOptions) -> Result<Attempt> {
        let (private_data, private_len) = options.saying.encode(abi::CM_REQ_PRIVATE_MAX)?;
        Ok(Attempt::Connect(Box::new((
            abi::Connect {
                qp: self.handle(),
                dst: to_abi(&addr),
                src: options.source.as_ref().map(to_abi).unwrap_or_default(),
                param: param(self, options.flow_control),
                private_len,
                private_data,
                user_data: options.user_data,
                ..Command::new()
            },
            addr,
        ))))
    }
}

/// An attempt to connect: the struct of its command, and what the connection will be told of.
#[derive(Debug)]
enum Attempt {
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
    fn begin(
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
    fn finish(
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
    async fn end(self, wait: TaskWait, timeout: Duration) -> Result<Connection, ConnectError> {
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

#[derive(Debug)]
struct ConnectionParts {
    local: SocketAddr,
    peer: SocketAddr,
    param: abi::ConnParam,
    private: Private,
    timings: Option<Timings>,
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
/// [`EventKind::Disconnected`](crate::EventKind::Disconnected) tells that the peer has ended it.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<ConnectionInner>,
}

impl Connection {
    fn new(
        object: Object,
        qp: PreparedQp<Rc>,
        parts: ConnectionParts,
    ) -> Result<Self, ConnectError> {
        let qp = match qp.take_connected() {
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

    /// Its queue pair.
    pub fn qp(&self) -> &Qp<Rc> {
        &self.inner.qp
    }

    /// This side's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.parts.local
    }

    /// The other side's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.parts.peer
    }

    /// What was agreed.
    pub fn params(&self) -> Params {
        Params::new(&self.inner.parts.param)
    }

    /// What the peer said when it accepted, or with its request.
    pub fn private(&self) -> &Private {
        &self.inner.parts.private
    }

    /// How long connecting took, at the side that did.
    pub fn timings(&self) -> Option<Timings> {
        self.inner.parts.timings
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

    /// What the kernel says of it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`].
    pub fn query(&self) -> Result<ConnectionInfo> {
        let arg = query(self.device_inner(), self.handle())?;
        Ok(ConnectionInfo {
            state: State::from_code(arg.state),
            local: from_abi(&arg.local),
            peer: from_abi(&arg.peer),
            params: Params::new(&arg.param),
            peer_qp_num: arg.peer_qp_num,
            user_data: arg.user_data,
        })
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        self.inner.qp.device_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    proptest! {
        #[test]
        fn addresses_come_back(octets: [u8; 16], v4: [u8; 4], port: u16, scope: u32) {
            let v6 = SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope);
            let v4 = SocketAddr::new(IpAddr::V4(v4.into()), port);
            for addr in [v4, v6.into()] {
                prop_assert_eq!(from_abi(&to_abi(&addr)), addr);
            }
        }

        #[test]
        fn reasons_keep_their_numbers(code: u32) {
            for code in [code, code % 40] {
                prop_assert_eq!(RejectReason::from_code(code).code(), code);
            }
        }
    }

    #[test]
    fn addresses_are_as_the_header_has_them() {
        let addr = to_abi(&"10.9.0.2:7174".parse().unwrap());
        assert_eq!((addr.family, addr.port, addr.scope_id), (2, 7174, 0));
        assert_eq!(addr.addr, [10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let addr = to_abi(&"[fe80::1%3]:9".parse().unwrap());
        assert_eq!((addr.family, addr.port, addr.scope_id), (10, 9, 3));
        assert_eq!((addr.addr[0], addr.addr[15]), (0xfe, 1));
        let nothing = from_abi(&abi::Addr::default());
        assert_eq!(nothing, "0.0.0.0:0".parse().unwrap());
    }
}
