// SPDX-License-Identifier: GPL-2.0

//! Connections through the RDMA connection manager.
//!
//! An identifier stands for a connection, for one that is being established, or for a listener. Its
//! creator names the owner that gets its events. The manager has a handler mutex for each
//! identifier, and holds it while it calls the [`Handler`] or [`Listener`], so these calls exclude
//! each other. Operations that need the mutex are methods of [`LockedId`].
//!
//! An identifier has no queue pair. The owner of the queue pair changes its state, with the
//! attributes that [`LockedId::qp_attributes`] returns.
//!
//! Dropping an identifier waits for its handler. A handler must not drop it, and nobody may drop it
//! with a lock held that the handler takes.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use super::{
    device::Device,
    qp_attr::{
        Attributes,
        State, //
    }, //
};
use crate::{
    bindings,
    ext::{
        errno::econnrefused,
        fault,
        net::{
            sockaddr_from_raw,
            sockaddr_to_raw,
            NetNs,
            AF_INET6, //
        }, //
    }, //
};
use core::{
    cell::Cell,
    net::{
        IpAddr,
        SocketAddr, //
    },
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::{
        c_int,
        c_ulong, //
    },
    prelude::*,
    sync::Arc,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// Returns whether the manager treats `ip` as any address or as none: unspecified addresses,
/// network 0, and loopback.
pub(crate) fn is_wildcard(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => matches!(v4.octets(), [0 | 127, ..]),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_loopback(),
    }
}

/// Returns whether `addr` is an IPv6 address with the scope of a link, as `ipv6_addr_type()` does.
fn is_link_local(addr: &bindings::rust_ulp_h_addr) -> bool {
    match addr.addr {
        _ if addr.family != AF_INET6 => false,
        [0xfe, second, ..] => second & 0xc0 == 0x80,
        // Multicast, RFC 4291, 2.7.
        [0xff, second, ..] => second & 0xf == 2,
        _ => false,
    }
}

/// The parameters of a request or an answer: `struct rdma_conn_param` without private data.
///
/// ```
/// fn parameters(qp: &qp::Qp<waiter::WaitHandler>) -> Parameters {
///     Parameters { qp_num: qp.number(), retry_count: 7, rnr_retry_count: 7, ..Default::default() }
/// }
/// ```
#[derive(Clone, Copy, Default)]
pub(crate) struct Parameters {
    /// The number of reads and atomics that the sender of this message answers at a time. In an
    /// event, the number that the receiver is to answer.
    pub(crate) responder_resources: u8,
    /// The number of reads and atomics that the sender of this message has outstanding. In an event
    /// as above.
    pub(crate) initiator_depth: u8,
    /// Whether to use end-to-end flow control.
    pub(crate) flow_control: bool,
    /// The number of retries of both ends, 0 to 7; only in a request.
    pub(crate) retry_count: u8,
    /// The number of retries after RNR, 0 to 7, for the end that receives this message.
    pub(crate) rnr_retry_count: u8,
    /// The number of the sender's queue pair.
    pub(crate) qp_num: u32,
}

impl Parameters {
    fn to_raw(self, private_data: &[u8]) -> Result<bindings::rdma_conn_param> {
        Ok(bindings::rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: u8::try_from(private_data.len()).map_err(|_| EINVAL)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            qp_num: self.qp_num,
            ..Default::default()
        })
    }
}

/// A request or an answer of the peer.
///
/// ```
/// fn is_greeting(message: &Message<'_>) -> bool {
///     message.private_data.starts_with(b"hello")
/// }
/// ```
pub(crate) struct Message<'a> {
    /// The parameters, as seen from this end.
    pub(crate) parameters: Parameters,
    /// The peer's private data, padded with zeros by the manager.
    pub(crate) private_data: &'a [u8],
}

/// An event of a connection: `enum rdma_cm_event_type`.
///
/// ```
/// fn failure(event: &Event<'_>) -> Option<Error> {
///     match event {
///         Event::AddressError(err) | Event::RouteError(err) => Some(*err),
///         Event::ConnectError(err) | Event::Unreachable(err) => Some(*err),
///         _ => None,
///     }
/// }
/// ```
pub(crate) enum Event<'a> {
    /// The address is resolved, and the manager has chosen a device.
    AddressResolved,
    /// The address cannot be resolved.
    AddressError(Error),
    /// The route is resolved.
    RouteResolved,
    /// The route cannot be resolved.
    RouteError(Error),
    /// The peer accepts. The owner moves the queue pair to RTS, then calls [`LockedId::establish`].
    Response(Message<'a>),
    /// The connection attempt failed.
    ConnectError(Error),
    /// The peer does not answer, or its link-layer address has changed.
    Unreachable(Error),
    /// The peer rejects.
    Rejected {
        /// The reason, IBA 12.6.7.2.
        reason: u32,
        /// The private data of the peer's consumer, if that rejected.
        private_data: &'a [u8],
    },
    /// The requester has confirmed the answer: the connection is established.
    Established,
    /// The connection has ended; [`LockedId::disconnect`] answers the peer.
    Disconnected,
    /// The device is being removed: the identifier must be dropped soon.
    DeviceRemoval,
    /// The address has moved to another device.
    AddressChange,
    /// The timewait state has ended: no packet of the connection is under way.
    TimewaitExit,
    /// Another event, as its number.
    Other(u32),
}

impl Event<'_> {
    /// Returns the number in `enum rdma_cm_event_type`.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::AddressResolved => bindings::RDMA_CM_EVENT_ADDR_RESOLVED,
            Self::AddressError(_) => bindings::RDMA_CM_EVENT_ADDR_ERROR,
            Self::RouteResolved => bindings::RDMA_CM_EVENT_ROUTE_RESOLVED,
            Self::RouteError(_) => bindings::RDMA_CM_EVENT_ROUTE_ERROR,
            Self::Response(_) => bindings::RDMA_CM_EVENT_CONNECT_RESPONSE,
            Self::ConnectError(_) => bindings::RDMA_CM_EVENT_CONNECT_ERROR,
            Self::Unreachable(_) => bindings::RDMA_CM_EVENT_UNREACHABLE,
            Self::Rejected { .. } => bindings::RDMA_CM_EVENT_REJECTED,
            Self::Established => bindings::RDMA_CM_EVENT_ESTABLISHED,
            Self::Disconnected => bindings::RDMA_CM_EVENT_DISCONNECTED,
            Self::DeviceRemoval => bindings::RDMA_CM_EVENT_DEVICE_REMOVAL,
            Self::AddressChange => bindings::RDMA_CM_EVENT_ADDR_CHANGE,
            Self::TimewaitExit => bindings::RDMA_CM_EVENT_TIMEWAIT_EXIT,
            Self::Other(other) => *other,
        }
    }

    /// Returns the errno, or the peer's reason to reject, else 0.
    pub(crate) fn status(&self) -> i32 {
        match self {
            Self::AddressError(err)
            | Self::RouteError(err)
            | Self::ConnectError(err)
            | Self::Unreachable(err) => err.to_errno(),
            Self::Rejected { reason, .. } => *reason as i32,
            _ => 0,
        }
    }
}

/// The reason of a consumer that rejects.
pub(crate) const REJECT_CONSUMER: u8 = bindings::IB_CM_REJ_CONSUMER_DEFINED as u8;
/// The reason of an end without resources.
pub(crate) const REJECT_NO_RESOURCES: u8 = bindings::IB_CM_REJ_NO_RESOURCES as u8;
/// The reason of an end that does not support what the request asks for.
pub(crate) const REJECT_UNSUPPORTED: u8 = bindings::IB_CM_REJ_UNSUPPORTED as u8;
/// The reason of an end without a listener.
pub(crate) const REJECT_NO_LISTENER: u8 = bindings::IB_CM_REJ_INVALID_SERVICE_ID as u8;

/// Returns the error of a status of the manager, which is not always an errno.
fn error_of(status: i32) -> Error {
    match status {
        -4095..=-1 => Error::from_errno(status),
        _ => EIO,
    }
}

/// A C event.
struct RawEvent<'a>(&'a bindings::rdma_cm_event);

impl<'a> RawEvent<'a> {
    /// # Safety
    ///
    /// `event` is valid during `'a`.
    unsafe fn new(event: *mut bindings::rdma_cm_event) -> Self {
        // SAFETY: By the requirement.
        Self(unsafe { &*event })
    }

    fn message(&self) -> Message<'a> {
        // SAFETY: The manager initializes all of an event with zeros
        // (drivers/infiniband/core/cma.c), and sets this variant of the union for identifiers of
        // `RDMA_PS_TCP`.
        let conn = unsafe { &self.0.param.conn };
        let len = usize::from(conn.private_data_len);
        let private_data: &[u8] = if conn.private_data.is_null() || len == 0 {
            &[]
        } else {
            // SAFETY: The manager gives the length of the data in its copy of the peer's message.
            // The copy lives as long as the event, and nobody writes to it.
            unsafe { core::slice::from_raw_parts(conn.private_data.cast(), len) }
        };
        Message {
            parameters: Parameters {
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                flow_control: conn.flow_control != 0,
                retry_count: conn.retry_count,
                rnr_retry_count: conn.rnr_retry_count,
                qp_num: conn.qp_num,
            },
            private_data,
        }
    }

    fn event(&self) -> Event<'a> {
        let error = error_of(self.0.status);
        match self.0.event {
            bindings::RDMA_CM_EVENT_ADDR_RESOLVED => Event::AddressResolved,
            bindings::RDMA_CM_EVENT_ADDR_ERROR => Event::AddressError(error),
            bindings::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::RouteResolved,
            bindings::RDMA_CM_EVENT_ROUTE_ERROR => Event::RouteError(error),
            bindings::RDMA_CM_EVENT_CONNECT_RESPONSE => Event::Response(self.message()),
            bindings::RDMA_CM_EVENT_CONNECT_ERROR => Event::ConnectError(error),
            bindings::RDMA_CM_EVENT_UNREACHABLE => Event::Unreachable(error),
            bindings::RDMA_CM_EVENT_REJECTED => {
                let reason = u32::try_from(self.0.status).unwrap_or(0);
                Event::Rejected {
                    reason,
                    private_data: if reason == u32::from(REJECT_CONSUMER) {
                        self.message().private_data
                    } else {
                        &[]
                    },
                }
            }
            bindings::RDMA_CM_EVENT_ESTABLISHED => Event::Established,
            bindings::RDMA_CM_EVENT_DISCONNECTED => Event::Disconnected,
            bindings::RDMA_CM_EVENT_DEVICE_REMOVAL => Event::DeviceRemoval,
            bindings::RDMA_CM_EVENT_ADDR_CHANGE => Event::AddressChange,
            bindings::RDMA_CM_EVENT_TIMEWAIT_EXIT => Event::TimewaitExit,
            other => Event::Other(other),
        }
    }
}

/// An identifier of the connection manager: `struct rdma_cm_id`.
///
/// ```
/// fn is_bound_to(id: &Id, device: &device::Device) -> bool {
///     id.device_index() == Some(device.attributes().index)
/// }
/// ```
///
/// # Invariants
///
/// Always an identifier that exists.
#[repr(transparent)]
pub(crate) struct Id(Opaque<bindings::rdma_cm_id>);

// SAFETY: The manager changes the state of an identifier under its spinlock and its handler mutex
// (drivers/infiniband/core/cma.c:cma_comp_exch). Operations that need the caller to hold the mutex
// are methods of `LockedId`.
unsafe impl Send for Id {}
// SAFETY: As above.
unsafe impl Sync for Id {}

impl Id {
    /// # Safety
    ///
    /// `ptr` is an identifier that exists during `'a`.
    unsafe fn from_raw<'a>(ptr: *mut bindings::rdma_cm_id) -> &'a Self {
        // SAFETY: By the requirement. The type is transparent.
        unsafe { &*ptr.cast() }
    }

    fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.0.get()
    }

    /// Takes the handler mutex. Sleeps. The handler must not call this.
    pub(crate) fn lock(&self) -> Guard<'_> {
        // SAFETY: By the type invariant.
        unsafe { bindings::rdma_lock_handler(self.as_raw()) };
        Guard(LockedId(self, NotThreadSafe))
    }

    /// Returns the number of the device that the identifier is bound to, as `rdma dev` shows it.
    ///
    /// Does not sleep. The number does not change after the address is resolved, or after binding
    /// to an address that is no wildcard.
    pub(crate) fn device_index(&self) -> Option<u32> {
        let mut index = 0;
        // SAFETY: By the type invariant. The device exists while the identifier is bound to it.
        unsafe { bindings::rust_ulp_h_cm_device_index(self.as_raw(), &mut index) }.then_some(index)
    }

    /// Starts to resolve the route, for at most `millis`. Sleeps. Ends in [`Event::RouteResolved`]
    /// or [`Event::RouteError`].
    pub(crate) fn resolve_route(&self, millis: u32) -> Result {
        // The manager uses the device without a check.
        self.device_index().ok_or(EINVAL)?;
        fault::point()?;
        // SAFETY: By the type invariant. The manager checks the state.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), millis as c_ulong) })
    }
}

/// An [`Id`] whose handler mutex the current task holds.
///
/// ```
/// fn peer(id: &LockedId<'_>) -> Option<core::net::SocketAddr> {
///     let (_local, peer) = id.addresses();
///     peer
/// }
/// ```
///
/// # Invariants
///
/// The mutex is held while the value exists. The mutex excludes the methods of two values from each
/// other, and only the task that locked it may unlock it, so the value stays with that task.
pub(crate) struct LockedId<'a>(&'a Id, NotThreadSafe);

/// Holds the handler mutex of an [`Id`].
///
/// ```
/// fn hang_up<H: Handler>(id: &OwnedId<H>) -> Result {
///     id.lock().disconnect()
/// }
/// ```
pub(crate) struct Guard<'a>(LockedId<'a>);

impl<'a> Deref for Guard<'a> {
    type Target = LockedId<'a>;

    fn deref(&self) -> &LockedId<'a> {
        &self.0
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: `Id::lock` took the mutex in this task.
        unsafe { bindings::rdma_unlock_handler(self.0 .0.as_raw()) };
    }
}

/// The path of a connection, as the manager knows it.
///
/// ```
/// fn dscp<H: Handler>(id: &OwnedId<H>) -> Option<u8> {
///     let path: Path = id.lock().path()?;
///     Some(path.traffic_class >> 2)
/// }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// The MTU: `enum ib_mtu`.
    pub(crate) mtu: u8,
    /// The upper six bits are the DSCP.
    pub(crate) traffic_class: u8,
    /// The Local ACK Timeout that the sender of a request asks for. It is also the duration of the
    /// timewait state: the manager keeps memory of a connection for 2^(`ack_timeout` - 8) ms after its
    /// end (`cm_enter_timewait()`, drivers/infiniband/core/cm.c).
    pub(crate) ack_timeout: u8,
}

impl LockedId<'_> {
    fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.0.as_raw()
    }

    /// Returns the identifier.
    pub(crate) fn id(&self) -> &Id {
        self.0
    }

    /// Returns the local address and the peer's, as far as they are known. Does not sleep.
    pub(crate) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let mut local = bindings::rust_ulp_h_addr::default();
        let mut peer = bindings::rust_ulp_h_addr::default();
        let mut ifindex = 0;
        // SAFETY: All pointers are valid.
        unsafe {
            bindings::rust_ulp_h_cm_addrs(self.as_raw(), &mut local, &mut peer, &mut ifindex)
        };
        for addr in [&mut local, &mut peer] {
            addr.scope_id = match addr.scope_id {
                _ if !is_link_local(addr) => 0,
                // The manager does not always set it.
                0 => ifindex,
                scope_id => scope_id,
            };
        }
        (sockaddr_from_raw(&local), sockaddr_from_raw(&peer))
    }

    /// Returns the path, once the route is resolved. Does not sleep.
    pub(crate) fn path(&self) -> Option<Path> {
        let mut path = Path {
            mtu: 0,
            traffic_class: 0,
            ack_timeout: 0,
        };
        // SAFETY: All pointers are valid. The manager changes the path only while it resolves the
        // route, and announces the result with the handler mutex held.
        unsafe {
            bindings::rust_ulp_h_cm_path(
                self.as_raw(),
                &mut path.mtu,
                &mut path.traffic_class,
                &mut path.ack_timeout,
            )
        }
        .then_some(path)
    }

    /// Lowers the MTU of the path, `enum ib_mtu`, and sets the Local ACK Timeout that the peer is
    /// told, which on InfiniBand is that of the route. 0 changes nothing. Does not sleep. Call it
    /// before [`Self::connect`], which tells the peer.
    pub(crate) fn limit_path(&self, mtu: u8, ack_timeout: u8) {
        // SAFETY: By the type invariant of `Id`.
        unsafe { bindings::rust_ulp_h_cm_limit_path(self.as_raw(), mtu, ack_timeout) };
    }

    /// Returns the attributes that move the queue pair to `state`, one of INIT, RTR and RTS, and
    /// their mask. Sleeps. Fails with [`EINVAL`] when the connection is not in a state for that.
    pub(crate) fn qp_attributes(&self, state: State) -> Result<(Attributes, u32)> {
        // The manager uses the device without a check.
        self.0.device_index().ok_or(EINVAL)?;
        let mut raw = bindings::ib_qp_attr {
            qp_state: state as u32,
            ..Default::default()
        };
        let mut mask = 0;
        fault::point()?;
        // SAFETY: All pointers are valid, and there is a device.
        to_result(unsafe { bindings::rdma_init_qp_attr(self.as_raw(), &mut raw, &mut mask) })?;
        Ok((Attributes::from_raw(&raw), mask as u32))
    }

    /// Sends a connection request. Sleeps. Fails with [`EINVAL`] for more than 56 bytes of private
    /// data.
    pub(crate) fn connect(&self, parameters: &Parameters, private_data: &[u8]) -> Result {
        let mut raw = parameters.to_raw(private_data)?;
        fault::point()?;
        // SAFETY: The parameters and the private data are valid, and the manager copies them. It
        // checks the state of the identifier.
        to_result(unsafe { bindings::rdma_connect_locked(self.as_raw(), &mut raw) })
    }

    /// Accepts a request. Sleeps. Fails with [`EINVAL`] for more than 196 bytes of private data, and
    /// when there is no request. When it fails otherwise, the manager has rejected the request.
    pub(crate) fn accept(&self, parameters: &Parameters, private_data: &[u8]) -> Result {
        let mut raw = parameters.to_raw(private_data)?;
        fault::point().inspect_err(|_| self.give_up())?;
        // SAFETY: As above, and the handler mutex is held.
        to_result(unsafe { bindings::rdma_accept(self.as_raw(), &mut raw) })
    }

    /// Confirms the answer of the peer. Sleeps. When it fails, the manager has rejected the answer.
    pub(crate) fn establish(&self) -> Result {
        fault::point().inspect_err(|_| self.give_up())?;
        // SAFETY: The handler mutex is held. Without parameters this confirms an answer.
        to_result(unsafe { bindings::rdma_accept(self.as_raw(), core::ptr::null_mut()) })
    }

    /// Rejects, as the manager does when it fails to accept.
    fn give_up(&self) {
        let _ = self.reject(REJECT_CONSUMER, &[]);
    }

    /// Rejects a request or an answer. Sleeps. Fails with [`EINVAL`] for more than 148 bytes of
    /// private data, and when there is nothing to reject.
    ///
    /// Not for a request that was accepted and is not established: the manager would continue to
    /// send its answer, and dropping the identifier would wait for that.
    pub(crate) fn reject(&self, reason: u8, private_data: &[u8]) -> Result {
        let len = u8::try_from(private_data.len()).map_err(|_| EINVAL)?;
        fault::point()?;
        // SAFETY: The data is valid, and the manager copies it and checks the state.
        to_result(unsafe {
            bindings::rdma_reject(self.as_raw(), private_data.as_ptr().cast(), len, reason)
        })
    }

    /// Ends the connection, or answers a peer that ended it. Sleeps. Fails when there is nothing to
    /// end.
    pub(crate) fn disconnect(&self) -> Result {
        fault::point()?;
        // SAFETY: By the type invariant of `Id`. The manager checks the state.
        to_result(unsafe { bindings::rdma_disconnect(self.as_raw()) })
    }
}

/// The owner of a connection's identifier.
///
/// ```
/// struct Log;
///
/// impl Handler for Log {
///     fn event(self: &Arc<Self>, _id: &LockedId<'_>, event: &Event<'_>) {
///         pr_info!("event {} with status {}\n", event.number(), event.status());
///     }
/// }
/// ```
pub(crate) trait Handler: Send + Sync + 'static {
    /// The connection raised `event`. Process context with the handler mutex held: may sleep, but
    /// not for long; must not drop the identifier.
    fn event(self: &Arc<Self>, id: &LockedId<'_>, event: &Event<'_>);
}

/// The owner of a listener's identifier.
///
/// ```
/// # use {crate::ext::net::NetNs, core::net::SocketAddr};
/// /// An owner that keeps no request: the manager rejects each of them.
/// struct Refuser;
///
/// impl Listener for Refuser {
///     fn request(&self, _request: Request<'_>) {}
///     fn event(&self, _event: &Event<'_>) {}
/// }
///
/// fn listen(net: &NetNs, device: &device::Device, addr: SocketAddr) -> Result<OwnedId<Refuser>> {
///     let id = OwnedId::listener(net, device, addr, Arc::new(Refuser, GFP_KERNEL)?)?;
///     id.listen(16)?;
///     Ok(id)
/// }
/// ```
pub(crate) trait Listener: Send + Sync + 'static {
    /// A request arrived; it is destroyed unless it is kept. Context as for [`Handler::event`]; a
    /// listener on all devices may get several at a time. Must drop neither the listener's
    /// identifier nor the request's.
    fn request(&self, request: Request<'_>);

    /// The listener raised `event`. Context as for [`Handler::event`].
    fn event(&self, event: &Event<'_>);
}

/// The context of an identifier.
#[repr(C)]
struct Hook<T> {
    hook: bindings::rust_ulp_cm_hook,
    owner: Arc<T>,
}

/// An owned identifier. Dropping it waits for its handler and destroys it, which sleeps.
///
/// ```
/// # use core::net::SocketAddr;
/// /// The owner of a connection to a peer.
/// struct Caller;
///
/// impl Handler for Caller {
///     fn event(self: &Arc<Self>, id: &LockedId<'_>, event: &Event<'_>) {
///         let result = match event {
///             Event::RouteResolved => id.connect(&Parameters::default(), b"hello"),
///             Event::Response(_) => id.establish(),
///             _ => Ok(()), // The other steps: `OwnedId::resolve_route`, `Qp::modify`.
///         };
///         result.unwrap_or_else(|err| pr_err!("{err:?}\n"));
///     }
/// }
///
/// fn call(net: &crate::ext::net::NetNs, device: &device::Device, peer: SocketAddr,
///         owner: Arc<Caller>) -> Result<OwnedId<Caller>> {
///     let id = OwnedId::connection(net, device, owner)?;
///     id.resolve_address(None, peer, 1000)?;
///     Ok(id)
/// }
/// ```
///
/// # Invariants
///
/// - `ptr` is an identifier that this value owns.
/// - Its context is `hook`, which this value owns, and whose function takes an identifier of `T`.
pub(crate) struct OwnedId<T> {
    ptr: NonNull<bindings::rdma_cm_id>,
    hook: NonNull<Hook<T>>,
}

// SAFETY: As for `Id`. The owner is `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for OwnedId<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for OwnedId<T> {}

/// The memory that an [`OwnedId`] needs beside the identifier.
///
/// ```
/// fn prepare<H: Handler>(owner: H) -> Result<Prepared<H>> {
///     Prepared::new(Arc::new(owner, GFP_KERNEL)?)
/// }
/// ```
pub(crate) struct Prepared<H>(KBox<Hook<H>>);

impl<H: Handler> Prepared<H> {
    /// Allocates the memory for an identifier of `owner`. May sleep.
    pub(crate) fn new(owner: Arc<H>) -> Result<Self> {
        let hook = Hook {
            hook: bindings::rust_ulp_cm_hook {
                event: Some(OwnedId::<H>::handle),
            },
            owner,
        };
        Ok(Self(KBox::new(hook, GFP_KERNEL_ACCOUNT)?))
    }
}

impl<T> OwnedId<T> {
    fn new(net: &NetNs, device: &Device, hook: KBox<Hook<T>>) -> Result<Self> {
        fault::point()?;
        let hook = NonNull::from(KBox::leak(hook));
        // SAFETY: The namespace and the device are valid. The hook lives until the identifier is
        // destroyed.
        let ptr = from_err_ptr(unsafe {
            bindings::rust_ulp_h_cm_create(net.as_ptr(), device.as_raw(), hook.as_ptr().cast())
        });
        match ptr.and_then(|ptr| NonNull::new(ptr).ok_or(ENOMEM)) {
            // INVARIANT: The identifier was just made with that context.
            Ok(ptr) => Ok(Self { ptr, hook }),
            Err(err) => {
                // SAFETY: The hook was leaked above, and nobody else has it.
                drop(unsafe { KBox::from_raw(hook.as_ptr()) });
                Err(err)
            }
        }
    }

    /// Returns the owner of the identifier `id`.
    ///
    /// # Safety
    ///
    /// `id` is the identifier of an [`OwnedId<T>`], or of a request to it that nobody has kept, and
    /// the handler mutex is held during `'a`.
    unsafe fn owner<'a>(id: *mut bindings::rdma_cm_id) -> &'a Arc<T> {
        // SAFETY: By the type invariant the context is a hook. It is freed only after the
        // identifier is destroyed, which waits for the mutex.
        let hook = unsafe { &*bindings::rust_ulp_h_cm_hook(id).cast::<Hook<T>>() };
        &hook.owner
    }
}

impl<T> Deref for OwnedId<T> {
    type Target = Id;

    fn deref(&self) -> &Id {
        // SAFETY: By the type invariant.
        unsafe { Id::from_raw(self.ptr.as_ptr()) }
    }
}

impl<T> Drop for OwnedId<T> {
    fn drop(&mut self) {
        fault::step();
        // SAFETY: Owned. Waits for the handler; nobody uses the context afterwards.
        unsafe { bindings::rdma_destroy_id(self.ptr.as_ptr()) };
        // SAFETY: By the type invariant the hook is owned, and nobody uses it any more.
        drop(unsafe { KBox::from_raw(self.hook.as_ptr()) });
    }
}

impl<H: Handler> OwnedId<H> {
    /// Creates an identifier for a connection, whose events `owner` gets. Sleeps.
    ///
    /// Its type is reliable connected, in the port space of TCP and the namespace `net`. It uses
    /// devices of the kind of `device`, since RoCE and iWARP may share an address.
    pub(crate) fn connection(net: &NetNs, device: &Device, owner: Arc<H>) -> Result<Self> {
        Self::new(net, device, Prepared::new(owner)?.0)
    }

    /// # Safety
    ///
    /// Called by the manager with the handler mutex held for an identifier like this.
    unsafe extern "C" fn handle(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> c_int {
        // SAFETY: By the requirements. The event is valid during the call.
        let (owner, id, event) =
            unsafe { (Self::owner(id), Id::from_raw(id), RawEvent::new(event)) };
        owner.event(&LockedId(id, NotThreadSafe), &event.event());
        0
    }

    /// Sets the traffic class of later resolutions. Sleeps.
    pub(crate) fn set_traffic_class(&self, class: u8) {
        // SAFETY: By the type invariant.
        unsafe { bindings::rdma_set_service_type(self.as_raw(), class.into()) };
    }

    /// Starts to resolve the link-layer address of `dst`, from `src` or from the source of the
    /// route, for at most `millis`. Sleeps. Ends in [`Event::AddressResolved`] or
    /// [`Event::AddressError`].
    pub(crate) fn resolve_address(
        &self,
        src: Option<SocketAddr>,
        dst: SocketAddr,
        millis: u32,
    ) -> Result {
        let src = src.map(|src| sockaddr_to_raw(&src));
        let src = src.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        fault::point()?;
        // SAFETY: All pointers are valid, or null where the manager allows that.
        to_result(unsafe {
            bindings::rust_ulp_h_cm_resolve_addr(
                self.as_raw(),
                src,
                &sockaddr_to_raw(&dst),
                millis as c_ulong,
            )
        })
    }
}

impl<L: Listener> OwnedId<L> {
    /// Creates an identifier that is bound to `addr` in the namespace `net`, on devices of the kind
    /// of `device`. Sleeps. An unspecified address is any address; the manager chooses port 0.
    /// Fails with
    ///
    /// - `EADDRINUSE` when a listener on the same address has the port,
    /// - `EADDRNOTAVAIL` when a listener on any address has the port,
    /// - [`ENODEV`] or `EADDRNOTAVAIL` when no device has the address,
    /// - [`EACCES`] for a port below 1024 without `CAP_NET_BIND_SERVICE`.
    pub(crate) fn listener(
        net: &NetNs,
        device: &Device,
        addr: SocketAddr,
        owner: Arc<L>,
    ) -> Result<Self> {
        let hook = Hook {
            hook: bindings::rust_ulp_cm_hook {
                event: Some(Self::arrived),
            },
            owner,
        };
        let this = Self::new(net, device, KBox::new(hook, GFP_KERNEL_ACCOUNT)?)?;
        fault::point()?;
        // SAFETY: Both pointers are valid.
        to_result(unsafe { bindings::rust_ulp_h_cm_bind(this.as_raw(), &sockaddr_to_raw(&addr)) })?;
        Ok(this)
    }

    /// Lets requests arrive; at most `backlog` wait. Sleeps.
    pub(crate) fn listen(&self, backlog: u32) -> Result {
        let backlog = c_int::try_from(backlog).map_err(|_| ERANGE)?;
        fault::point()?;
        // SAFETY: By the type invariant, and the identifier is bound.
        to_result(unsafe { bindings::rdma_listen(self.as_raw(), backlog) })
    }

    /// # Safety
    ///
    /// Called by the manager with the handler mutex held, for an identifier like this, or for the
    /// identifier of a request, which has the context of its listener.
    unsafe extern "C" fn arrived(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> c_int {
        // SAFETY: By the requirements. The mutex of the listener is held too.
        let (owner, id, event) =
            unsafe { (Self::owner(id), Id::from_raw(id), RawEvent::new(event)) };
        if event.0.event != bindings::RDMA_CM_EVENT_CONNECT_REQUEST {
            owner.event(&event.event());
            return 0;
        }
        let kept = Cell::new(false);
        owner.request(Request {
            id: LockedId(id, NotThreadSafe),
            message: event.message(),
            kept: &kept,
        });
        if kept.get() {
            0
        } else {
            // The manager destroys the identifier, and rejects the request if that was not done.
            econnrefused().to_errno()
        }
    }
}

/// A request that has just arrived.
///
/// ```
/// struct Kept;
///
/// impl Handler for Kept {
///     fn event(self: &Arc<Self>, _id: &LockedId<'_>, _event: &Event<'_>) {}
/// }
///
/// fn keep(request: Request<'_>) -> Result<OwnedId<Kept>> {
///     pr_info!("{} bytes of private data\n", request.message().private_data.len());
///     Ok(request.keep(Prepared::new(Arc::new(Kept, GFP_KERNEL)?)?))
/// }
/// ```
pub(crate) struct Request<'a> {
    id: LockedId<'a>,
    message: Message<'a>,
    kept: &'a Cell<bool>,
}

impl Request<'_> {
    /// Returns the identifier of the request.
    pub(crate) fn id(&self) -> &LockedId<'_> {
        &self.id
    }

    /// Returns the message of the peer.
    pub(crate) fn message(&self) -> &Message<'_> {
        &self.message
    }

    /// Keeps the request. From now on the owner in `prepared` gets its events. Does not sleep.
    ///
    /// The result must not be dropped before [`Listener::request`] returns.
    pub(crate) fn keep<H: Handler>(self, prepared: Prepared<H>) -> OwnedId<H> {
        let hook = NonNull::from(KBox::leak(prepared.0));
        let ptr = self.id.as_raw();
        // SAFETY: The handler mutex is held, so nobody uses the context. The hook lives until the
        // identifier is destroyed.
        unsafe { bindings::rust_ulp_h_cm_set_hook(ptr, hook.as_ptr().cast()) };
        self.kept.set(true);
        // INVARIANT: The manager leaves the identifier to this value. Its context is the hook.
        OwnedId {
            // SAFETY: The identifier exists, so this is not null.
            ptr: unsafe { NonNull::new_unchecked(ptr) },
            hook,
        }
    }
}
