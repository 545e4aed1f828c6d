// SPDX-License-Identifier: GPL-2.0

//! Listeners of a file, and the connection requests that wait at them.
//!
//! The connection manager's handler admits requests, in process context with its handler mutexes
//! held, and GET_REQUEST takes them. A request that is admitted has its place, so the handler never
//! has to drop it.

use super::{
    connection::{
        Admitted,
        Connection,
        Shared,
        MAX_ACK_TIMEOUT, //
    },
    deadline::Deadline,
    quota::QuotaCharge, //
};
use crate::{
    device::Device,
    events::FileEvents,
    kernel::{
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
    new_work,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        Mutex,
        UniqueArc, //
    },
    workqueue::{
        impl_has_work,
        Work,
        WorkItem, //
    }, //
};

/// Requests in the order of their arrival: a ring.
struct Waiting {
    places: KVVec<Option<Arc<Connection>>>,
    first: usize,
    len: usize,
    /// Requests that are to be dropped, since their senders have gone. Has memory for as many as
    /// there are places.
    dead: KVVec<Arc<Connection>>,
    /// Places kept free for requests that may be put back.
    taken: usize,
    rejected: u32,
    /// The reason why no request is admitted any more.
    closed: Option<Error>,
}

impl Waiting {
    /// Makes an empty ring of `len` places. Sleeps.
    fn new(len: u32) -> Result<Self> {
        let mut places = KVVec::with_capacity(len as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..len {
            places.push(None, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            places,
            first: 0,
            len: 0,
            dead: KVVec::with_capacity(len as usize, GFP_KERNEL_ACCOUNT)?,
            taken: 0,
            rejected: 0,
            closed: None,
        })
    }

    fn place(&mut self, offset: usize) -> Option<&mut Option<Arc<Connection>>> {
        let at = self.first.saturating_add(offset);
        let at = at.checked_sub(self.places.len()).unwrap_or(at);
        self.places.get_mut(at)
    }

    /// Returns the place behind the last request; [`None`] when all are in use.
    fn free(&mut self) -> Option<&mut Option<Arc<Connection>>> {
        if self.len.saturating_add(self.taken) >= self.places.len() {
            return None;
        }
        self.place(self.len)
    }

    fn pop(&mut self) -> Option<Arc<Connection>> {
        if self.len == 0 {
            return None;
        }
        let connection = self.place(0)?.take();
        let next = self.first.saturating_add(1);
        self.first = if next < self.places.len() { next } else { 0 };
        self.len = self.len.saturating_sub(1);
        connection
    }

    /// Moves the requests whose senders have gone to `dead`, as far as that has room.
    fn move_dead(&mut self) {
        let (len, mut kept) = (self.len, 0usize);
        for offset in 0..len {
            let Some(mut connection) = self.place(offset).and_then(Option::take) else {
                continue;
            };
            if connection.is_dead() {
                match self.dead.push_within_capacity(connection) {
                    Ok(()) => continue,
                    Err(full) => connection = full.0,
                }
            }
            if let Some(place) = self.place(kept) {
                *place = Some(connection);
            }
            kept = kept.saturating_add(1);
        }
        self.len = kept;
    }

    /// Puts `connection` before all others. There is a free place.
    fn put_back(&mut self, connection: Arc<Connection>) {
        let last = self.places.len().saturating_sub(1);
        self.first = self.first.checked_sub(1).unwrap_or(last);
        self.len = self.len.saturating_add(1);
        if let Some(place) = self.place(0) {
            *place = Some(connection);
        }
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
    /// Drops the requests whose senders have gone.
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Backlog { self.work }
}

impl WorkItem for Backlog {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Otherwise the removal of the device drops them with the listener.
        if let Ok(_guard) = this.device.enter() {
            while let Some(connection) = this.take_dead() {
                drop(connection);
            }
        }
    }
}

impl Admitted for Backlog {
    fn note_dead(self: Arc<Self>) {
        self.waiting.lock().move_dead();
        let device = self.device.clone();
        // Work that is queued already will see it.
        let _ = device.workqueue().enqueue(self);
    }
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
                work <- new_work!("rust_ulp::Backlog::work"),
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
        self.waiting.lock().places.len() as u32
    }

    /// Returns how many requests wait, and how many were rejected for want of room.
    pub(crate) fn usage(&self) -> (u32, u32) {
        let waiting = self.waiting.lock();
        (waiting.len as u32, waiting.rejected)
    }

    /// Takes the oldest request whose sender is still there. Sleeps.
    ///
    /// The caller then calls [`Self::put_back`] or [`Self::forget`]. Returns [`etime`] when no
    /// request arrives in time, [`EINTR`] when a signal arrives, and the error with which the
    /// listener was closed.
    pub(crate) fn take(&self, deadline: &Deadline) -> Result<Arc<Connection>> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(err) = waiting.closed {
                return Err(err);
            }
            let Some(connection) = waiting.pop() else {
                if !deadline.wait(&self.arrived, &mut waiting)? {
                    return Err(etime());
                }
                continue;
            };
            if !connection.is_dead() {
                waiting.taken = waiting.taken.saturating_add(1);
                return Ok(connection);
            }
            drop(waiting);
            drop(connection);
            waiting = self.waiting.lock();
        }
    }

    /// Gives the places of requests back whose senders have gone, and returns a request to drop,
    /// without the lock and not in a handler. Sleeps.
    fn take_dead(&self) -> Option<Arc<Connection>> {
        let mut waiting = self.waiting.lock();
        waiting.move_dead();
        waiting.dead.pop()
    }

    /// Puts a request back that was taken; drops it when the listener is closed. Sleeps.
    pub(crate) fn put_back(self: &Arc<Self>, connection: Arc<Connection>) {
        let mut waiting = self.waiting.lock();
        waiting.taken = waiting.taken.saturating_sub(1);
        if waiting.closed.is_some() {
            drop(waiting);
            return;
        }
        waiting.put_back(connection);
        drop(waiting);
        // Its sender may have gone since it was taken.
        self.clone().note_dead();
        self.arrived.notify_all();
    }

    /// Notes that a request that was taken is not put back.
    pub(crate) fn forget(&self) {
        let mut waiting = self.waiting.lock();
        waiting.taken = waiting.taken.saturating_sub(1);
    }

    /// Admits the request and takes it out of `arrived`. Returns [`EAGAIN`] when there is no room.
    fn admit(self: &Arc<Self>, arrived: &mut Option<cm::Request<'_>>) -> Result {
        let request = arrived.as_ref().ok_or(EINVAL)?;
        let shared = Shared::requested(request, self.reads, self.file.clone(), self.clone())?;
        let prepared = cm::Prepared::new(shared.clone())?;
        let identifier = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let room = UniqueArc::new_uninit(GFP_KERNEL)?;
        let mut waiting = self.waiting.lock();
        let place = match waiting.closed {
            None => waiting.free(),
            Some(_) => None,
        };
        let Some(place) = place else {
            return Err(EAGAIN);
        };
        let Some(request) = arrived.take() else {
            return Err(EINVAL);
        };
        let id = identifier.write(request.keep(prepared)).into();
        let Ok(connection) = room.pin_init_with(Connection::of_identifier(id, shared));
        *place = Some(connection.into());
        waiting.len = waiting.len.saturating_add(1);
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
        let count = waiting.len as u32;
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
        loop {
            let connection = self.backlog.waiting.lock().pop();
            let Some(connection) = connection else {
                break;
            };
            // Rejects it. The lock is not held.
            drop(connection);
        }
        while let Some(connection) = self.backlog.take_dead() {
            drop(connection);
        }
    }
}
