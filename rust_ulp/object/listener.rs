// SPDX-License-Identifier: GPL-2.0

//! Listeners of a file, and the connection requests that wait at them.
//!
//! The connection manager's handler admits requests, in process context with its handler mutexes
//! held, and GET_REQUEST takes them. A request whose sender has gone keeps its place until the place
//! is needed. It has no identifier any more: its work has given that back.

use super::{
    conn_param::MAX_ACK_TIMEOUT,
    connection::Connection,
    deadline::Deadline,
    quota::QuotaCharge, //
};
use crate::{
    device::Device,
    events::FileEvents,
    ext::{
        errno::{
            eaddrinuse,
            eaddrnotavail,
            etime, //
        },
        net::NetNs, //
    },
    rdma::{
        self,
        cm, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use core::net::SocketAddr;
use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        Mutex, //
    }, //
};

struct Waiting {
    /// In the order of their arrival. Has memory for `limit` of them.
    requests: KVVec<Arc<Connection>>,
    limit: usize,
    rejected: u32,
    /// The reason why no request is admitted any more.
    closed: Option<Error>,
}

impl Waiting {
    /// Makes room for `len` requests. Sleeps.
    fn new(len: u32) -> Result<Self> {
        Ok(Self {
            requests: KVVec::with_capacity(len as usize, GFP_KERNEL_ACCOUNT)?,
            limit: len as usize,
            rejected: 0,
            closed: None,
        })
    }

    /// Returns whether there is room for a request. Makes room if all places are taken: gives up
    /// those whose senders have gone, or must have given up.
    fn has_room(&mut self) -> bool {
        if self.requests.len() >= self.limit {
            self.requests
                .retain(|request| !request.is_gone() && !request.expire());
        }
        self.closed.is_none() && self.requests.len() < self.limit
    }
}

/// The requests of a listener, which its handler and the commands share.
#[pin_data]
pub(crate) struct Backlog {
    handle: Atomic<u32>,
    /// The value that the creator of the listener gave it.
    user_data: u64,
    /// The file's device.
    device: Arc<Device>,
    /// The most outstanding reads of a queue pair as responder and as initiator.
    reads: (u8, u8),
    /// Lock order: after the handler mutex of an identifier.
    #[pin]
    waiting: Mutex<Waiting>,
    #[pin]
    arrived: CondVar,
    file: Arc<FileEvents>,
}

impl Backlog {
    /// Makes a backlog of `len` requests of `device`, the file's, with `reads` at most as responder
    /// and as initiator. Sleeps.
    pub(crate) fn new(
        len: u32,
        device: Arc<Device>,
        reads: (u8, u8),
        user_data: u64,
        file: Arc<FileEvents>,
    ) -> Result<Arc<Self>> {
        let waiting = Waiting::new(len)?;
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                user_data,
                device,
                reads,
                waiting <- new_mutex!(waiting, "rust_ulp::Backlog::waiting"),
                arrived <- new_condvar!("rust_ulp::Backlog::arrived"),
                file,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the value that the creator of the listener gave it.
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Returns the most requests that it holds.
    pub(crate) fn limit(&self) -> u32 {
        self.waiting.lock().limit as u32
    }

    /// Returns how many requests wait, and how many were rejected for want of room.
    pub(crate) fn usage(&self) -> (u32, u32) {
        let mut waiting = self.waiting.lock();
        waiting.requests.retain(|request| !request.is_gone());
        (waiting.requests.len() as u32, waiting.rejected)
    }

    /// Takes the oldest request whose sender is still there. Sleeps.
    ///
    /// Returns [`etime`] when no request arrives in time, [`EINTR`] when a signal arrives, and the
    /// error with which the listener was closed.
    pub(crate) fn take(&self, deadline: &Deadline) -> Result<Arc<Connection>> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(err) = waiting.closed {
                return Err(err);
            }
            match waiting.requests.remove(0) {
                Ok(request) if request.is_gone() => (),
                Ok(request) => return Ok(request),
                Err(_) if deadline.wait(&self.arrived, &mut waiting)? => (),
                Err(_) => return Err(etime()),
            }
        }
    }

    /// Puts a request back that was taken, and for which there is no handle. Rejects it when its
    /// place is taken, or the listener closed. Sleeps.
    pub(crate) fn put_back(&self, request: Arc<Connection>) {
        let mut waiting = self.waiting.lock();
        let is_back = waiting.has_room()
            && (waiting.requests)
                .insert_within_capacity(0, request.clone())
                .is_ok();
        drop(waiting);
        if is_back {
            self.arrived.notify_all();
        } else {
            request.end(ENOENT);
        }
    }

    /// Admits the request and takes it out of `arrived`. Returns [`EAGAIN`] when there is no room.
    fn admit(&self, arrived: &mut Option<cm::Request<'_>>) -> Result {
        let request = arrived.as_ref().ok_or(EINVAL)?;
        let (device, file) = (self.device.clone(), self.file.clone());
        let connection = Connection::requested(request, self.reads, device, file)?;
        let prepared = cm::Prepared::new(connection.clone())?;
        let mut waiting = self.waiting.lock();
        if !waiting.has_room() {
            return Err(EAGAIN);
        }
        (waiting.requests)
            .push_within_capacity(connection.clone())
            .map_err(|_| EAGAIN)?;
        if let Some(request) = arrived.take() {
            connection.keep(request, prepared);
        }
        Ok(())
    }
}

/// Returns whether a connection may have the path that its requester asks for.
fn is_supported(path: &cm::Path) -> bool {
    (1..=5).contains(&path.mtu) && path.ack_timeout <= MAX_ACK_TIMEOUT
}

/// The owner of a listener's identifier.
struct RequestHandler(Arc<Backlog>);

impl cm::Listener for RequestHandler {
    fn request(&self, request: cm::Request<'_>) {
        let backlog = &self.0;
        let handle = backlog.handle.load(Relaxed);
        let peer = request.message().parameters.qp_num;
        let id = request.id();
        if id.id().device_index() != Some(backlog.device.index()) {
            // A listener on any address receives the requests of all devices.
            trace::request(handle, peer, 0, EXDEV.to_errno());
            let _ = id.reject(cm::REJECT_NO_LISTENER, &[]);
            return;
        }
        if id.path().is_some_and(|path| !is_supported(&path)) {
            trace::request(handle, peer, 0, EINVAL.to_errno());
            let _ = id.reject(cm::REJECT_UNSUPPORTED, &[]);
            return;
        }
        let mut request = Some(request);
        let result = backlog.admit(&mut request);
        if let Some(request) = &request {
            let _ = request.id().reject(cm::REJECT_NO_RESOURCES, &[]);
        }
        let mut waiting = backlog.waiting.lock();
        if result.is_err() {
            waiting.rejected = waiting.rejected.saturating_add(1);
        }
        let count = waiting.requests.len() as u32;
        drop(waiting);
        trace::request(
            handle,
            peer,
            count,
            result.err().map_or(0, |err| err.to_errno()),
        );
        ulp_debug!(
            "listener {:#x}: request of qp {}: {:?}\n",
            handle,
            peer,
            result
        );
        if result.is_ok() {
            backlog.arrived.notify_all();
            backlog
                .file
                .raise(abi::EVENT_CONNECT_REQUEST, handle, backlog.user_data, count);
        }
    }

    fn event(&self, event: &cm::Event<'_>) {
        let backlog = &self.0;
        let handle = backlog.handle.load(Relaxed);
        trace::cm_event(handle, event.number(), event.status());
        if matches!(event, cm::Event::AddressChange) && handle != 0 {
            backlog
                .file
                .raise(abi::EVENT_ADDR_CHANGE, handle, backlog.user_data, 0);
        }
    }
}

/// A listener of a file.
pub(crate) struct Listener {
    id: cm::OwnedId<RequestHandler>,
    backlog: Arc<Backlog>,
    addr: SocketAddr,
    /// For the places of the backlog.
    _charge: QuotaCharge,
}

impl Listener {
    /// Binds a listener to `addr`. Requests arrive after [`Self::listen`]. Sleeps.
    ///
    /// Returns [`eaddrinuse`] when the port is taken, [`eaddrnotavail`] when no device has the
    /// address, and [`EXDEV`] when another device has it.
    pub(crate) fn new(
        net: &NetNs,
        device: &rdma::device::Device,
        addr: SocketAddr,
        backlog: Arc<Backlog>,
        charge: QuotaCharge,
    ) -> Result<Arc<Self>> {
        let wildcard = addr.ip().is_unspecified();
        let index = device.attributes().index;
        if !wildcard && cm::is_wildcard(addr.ip()) {
            // The connection manager would take it for any address.
            return Err(eaddrnotavail());
        }
        let id = Self::bind(net, device, addr, &backlog)?;
        if !wildcard && id.device_index() != Some(index) {
            return Err(EXDEV);
        }
        let addr = id.lock().addresses().0.unwrap_or(addr);
        Ok(Arc::new(
            Self {
                id,
                backlog,
                addr,
                _charge: charge,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Binds an identifier to `addr`. Sleeps. The errors are those of [`Self::new`].
    fn bind(
        net: &NetNs,
        device: &rdma::device::Device,
        addr: SocketAddr,
        backlog: &Arc<Backlog>,
    ) -> Result<cm::OwnedId<RequestHandler>> {
        let owner = Arc::new(RequestHandler(backlog.clone()), GFP_KERNEL_ACCOUNT)?;
        let bind = |addr| cm::OwnedId::listener(net, device, addr, owner.clone());
        bind(addr).map_err(|err| {
            if err != ENODEV && err != eaddrnotavail() && err != EBUSY {
                return err;
            }
            // One errno for an address that no device has, and for a port that a listener on any
            // address has. With another port, only the former stays.
            let any_port = SocketAddr::new(addr.ip(), 0);
            let is_there = addr.ip().is_unspecified() || addr.port() != 0 && bind(any_port).is_ok();
            if is_there {
                eaddrinuse()
            } else {
                eaddrnotavail()
            }
        })
    }

    /// Sets its handle, for events, and starts to listen. Sleeps.
    pub(crate) fn listen(&self, handle: u32) -> Result {
        self.backlog.handle.store(handle, Relaxed);
        self.id.listen(self.backlog.limit())?;
        ulp_debug!("listener {:#x}: port {}\n", handle, self.addr.port());
        Ok(())
    }

    /// Returns its requests. They may be held outside the gate.
    pub(crate) fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Returns the address that it listens on.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Admits no request any more, and wakes the threads that wait for one, with `err`.
    pub(crate) fn close(&self, err: Error) {
        self.backlog.waiting.lock().closed.get_or_insert(err);
        self.backlog.arrived.notify_all();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close(ENOENT);
        // No other is admitted.
        let requests = core::mem::take(&mut self.backlog.waiting.lock().requests);
        for request in requests {
            // Rejects it. The lock is not held.
            request.end(ENOENT);
        }
    }
}
