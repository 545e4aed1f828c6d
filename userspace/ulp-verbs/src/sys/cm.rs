// SPDX-License-Identifier: MIT OR Apache-2.0

//! librdmacm's way to a connection, step by step.

use super::{check, made, Memory, QueuePair, VerbsCq};
use crate::{Error, Kind, Request, Result, Transport};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rdma_sys as ib;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

/// Where events of connections arrive.
///
/// # Invariants
///
/// It is what librdmacm returned, and is destroyed in drop().
#[derive(Debug)]
pub struct Channel {
    channel: NonNull<ib::rdma_event_channel>,
}

// SAFETY: librdmacm is thread safe, and its objects belong to no thread.
unsafe impl Send for Channel {}
// SAFETY: As above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Makes one.
    pub fn new() -> Result<Arc<Self>> {
        // SAFETY: It takes nothing.
        let channel = unsafe { ib::rdma_create_event_channel() };
        // INVARIANT: As returned.
        Ok(Arc::new(Self {
            channel: made("rdma_create_event_channel", channel)?,
        }))
    }

    /// Takes the next event and acknowledges it: what it is, its status, and the identifier that it is of.
    /// [`None`] when there is none in time.
    fn next(
        &self,
        call: &'static str,
        timeout: Duration,
    ) -> Result<Option<(u32, i32, *mut ib::rdma_cm_id)>> {
        // SAFETY: The channel exists by the type invariants, with its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) };
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(Error::new(call, errno as i32)),
        }
        let mut event = null_mut();
        // SAFETY: The channel exists; `event` is a place for a pointer.
        let ret = unsafe { ib::rdma_get_cm_event(self.channel.as_ptr(), &mut event) };
        check("rdma_get_cm_event", ret)?;
        let event = made("rdma_get_cm_event", event)?;
        // SAFETY: The event is there until it is acknowledged.
        let got = unsafe { event.as_ref() };
        let got = (got.event, got.status, got.id);
        // SAFETY: Taken above, acknowledged once.
        check("rdma_ack_cm_event", unsafe {
            ib::rdma_ack_cm_event(event.as_ptr())
        })?;
        Ok(Some(got))
    }

    /// Takes the next event: its kind and its status.
    fn wait(&self, call: &'static str, timeout: Duration) -> Result<(u32, i32)> {
        let next = self.next(call, timeout)?;
        let (got, status, _) = next.ok_or(Error::new(call, libc::ETIMEDOUT))?;
        Ok((got, status))
    }

    /// Takes the next event, which has to be `want`.
    fn expect(&self, want: u32, call: &'static str, timeout: Duration) -> Result<()> {
        let (got, status) = self.wait(call, timeout)?;
        expected(got, want, status, call)
    }
}

/// What an event says that is not the one that was waited for.
fn expected(got: u32, want: u32, status: i32, call: &'static str) -> Result<()> {
    if got == want {
        return Ok(());
    }
    let refused = ib::rdma_cm_event_type::RDMA_CM_EVENT_REJECTED;
    Err(match (got, status) {
        (got, _) if got == refused => Error::new(call, libc::ECONNREFUSED),
        (_, status) if status < 0 => Error::new(call, -status),
        _ => Error::new(call, libc::EPROTO),
    })
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: It exists by the type invariants; identifiers hold a reference, so there is none.
        unsafe { ib::rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}

/// The parameters of a connection with one read or atomic at a time, and six repetitions of what finds
/// no receive.
fn param(qp: &QueuePair) -> ib::rdma_conn_param {
    // SAFETY: Plain numbers and a pointer, for which zero is a value.
    let mut param: ib::rdma_conn_param = unsafe { zeroed() };
    param.responder_resources = 1;
    param.initiator_depth = 1;
    param.retry_count = 6;
    param.rnr_retry_count = 6;
    param.qp_num = qp.qp_num();
    param
}

/// A connection on its way: an identifier of librdmacm, and its queue pair once it has one.
///
/// # Invariants
///
/// It is what librdmacm returned, and is destroyed in drop(), after its queue pair.
#[derive(Debug)]
pub struct Id {
    id: NonNull<ib::rdma_cm_id>,
    qp: Option<QueuePair>,
    channel: Arc<Channel>,
}

impl Id {
    /// `rdma_create_id`.
    pub fn new(channel: &Arc<Channel>) -> Result<Self> {
        let mut id = null_mut();
        let (raw, tcp) = (channel.channel.as_ptr(), ib::rdma_port_space::RDMA_PS_TCP);
        // SAFETY: The channel exists, and is kept as long as the identifier.
        let ret = unsafe { ib::rdma_create_id(raw, &mut id, null_mut(), tcp) };
        check("rdma_create_id", ret)?;
        // INVARIANT: As returned.
        Ok(Self {
            id: made("rdma_create_id", id)?,
            qp: None,
            channel: channel.clone(),
        })
    }

    /// `rdma_resolve_addr`, and its event. Without `source` the route has the address to connect from.
    pub fn resolve_addr(
        &self,
        source: Option<IpAddr>,
        addr: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let addr = SockaddrStorage::from(addr);
        let source = source.map(|ip| SockaddrStorage::from(SocketAddr::new(ip, 0)));
        let src = source.as_ref();
        let src = src.map_or(null_mut(), |source| source.as_ptr().cast_mut());
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let dst = addr.as_ptr().cast_mut();
        // SAFETY: The identifier exists by the type invariants; the addresses are valid and are copied.
        let ret = unsafe { ib::rdma_resolve_addr(self.id.as_ptr(), src, dst, ms) };
        check("rdma_resolve_addr", ret)?;
        let want = ib::rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED;
        self.channel.expect(want, "rdma_resolve_addr", timeout)
    }

    /// `rdma_resolve_route`, and its event. Fails with `ENOTCONN` before [`Self::resolve_addr`].
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: The identifier exists by the type invariants.
        if unsafe { (*self.id.as_ptr()).verbs.is_null() } {
            // librdmacm reads the device of this context.
            return Err(Error::new("rdma_resolve_route", libc::ENOTCONN));
        }
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: The identifier exists by the type invariants.
        let ret = unsafe { ib::rdma_resolve_route(self.id.as_ptr(), ms) };
        check("rdma_resolve_route", ret)?;
        let want = ib::rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED;
        self.channel.expect(want, "rdma_resolve_route", timeout)
    }

    /// Makes the queue pair that [`Self::connect`] connects, of the context of `memory`, which has to be of
    /// the device that the address was resolved to.
    pub fn create_qp(&mut self, memory: &Arc<Memory>, cq: &Arc<VerbsCq>) -> Result<()> {
        let qp = QueuePair::new(Transport::Rc, memory, cq, cq, (4, 4, 0), None)?;
        self.modify(&qp, ib::ibv_qp_state::IBV_QPS_INIT)?;
        self.qp = Some(qp);
        Ok(())
    }

    /// Takes the queue pair to a state with the attributes that librdmacm has for it.
    fn modify(&self, qp: &QueuePair, state: ib::ibv_qp_state::Type) -> Result<()> {
        let mut attr = QueuePair::attr();
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: The identifier exists; both are ours to be written.
        let ret = unsafe { ib::rdma_init_qp_attr(self.id.as_ptr(), &mut attr, &mut mask) };
        check("rdma_init_qp_attr", ret)?;
        qp.modify(&mut attr, mask)
    }

    /// `rdma_connect`, and its events, up to a queue pair in the state Rts.
    pub fn connect(&self, timeout: Duration) -> Result<()> {
        let qp = self.qp.as_ref();
        let qp = qp.ok_or(Error::new("rdma_connect", libc::ENOTCONN))?;
        use ib::rdma_cm_event_type as event;
        let mut param = param(qp);
        // SAFETY: The identifier exists; the parameters are copied.
        let ret = unsafe { ib::rdma_connect(self.id.as_ptr(), &mut param) };
        check("rdma_connect", ret)?;
        // The queue pair is the caller's: so are its states, and the last word of the handshake.
        let response = event::RDMA_CM_EVENT_CONNECT_RESPONSE;
        self.channel.expect(response, "rdma_connect", timeout)?;
        self.modify(qp, ib::ibv_qp_state::IBV_QPS_RTR)?;
        self.modify(qp, ib::ibv_qp_state::IBV_QPS_RTS)?;
        // SAFETY: The identifier exists, and has a response.
        check("rdma_establish", unsafe {
            ib::rdma_establish(self.id.as_ptr())
        })
    }

    /// `rdma_accept` with `qp`, in the state Reset, for which it is taken to Rts; and its event. False when
    /// the peer, by then, has hung up.
    pub fn accept(&mut self, qp: QueuePair, timeout: Duration) -> Result<bool> {
        self.modify(&qp, ib::ibv_qp_state::IBV_QPS_INIT)?;
        self.modify(&qp, ib::ibv_qp_state::IBV_QPS_RTR)?;
        self.modify(&qp, ib::ibv_qp_state::IBV_QPS_RTS)?;
        let mut param = param(&qp);
        // SAFETY: The identifier exists, and is of a request; the parameters are copied.
        let ret = unsafe { ib::rdma_accept(self.id.as_ptr(), &mut param) };
        check("rdma_accept", ret)?;
        self.qp = Some(qp);
        use ib::rdma_cm_event_type as event;
        let (got, status) = self.channel.wait("rdma_accept", timeout)?;
        if got == event::RDMA_CM_EVENT_DISCONNECTED {
            // The last word of the handshake and the peer's farewell can overtake each other: ib_cm's
            // workqueue has an order on each processor alone.
            self.hang_up()?;
            return Ok(false);
        }
        expected(got, event::RDMA_CM_EVENT_ESTABLISHED, status, "rdma_accept").map(|()| true)
    }

    fn hang_up(&self) -> Result<()> {
        // SAFETY: The identifier exists by the type invariants.
        let ret = unsafe { ib::rdma_disconnect(self.id.as_ptr()) };
        check("rdma_disconnect", ret)
    }

    /// Waits until the peer has hung up, and answers that. False when it has not in time.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<bool> {
        let call = "waiting for the end of a connection";
        let want = ib::rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED;
        match self.channel.next(call, timeout)? {
            None => Ok(false),
            Some((got, _, _)) if got == want => self.hang_up().map(|()| true),
            Some(_) => Err(Error::new(call, libc::EPROTO)),
        }
    }

    /// Posts a signaled write of the first `len` bytes of its memory.
    pub fn write(&self, remote: (u64, u32), len: u32) -> Result<()> {
        let qp = self.qp.as_ref();
        let qp = qp.ok_or(Error::new("ibv_post_send", libc::ENOTCONN))?;
        let request = Request {
            kind: Kind::Write { remote, imm: None },
            wr_id: 0,
            offset: 0,
            len,
            signaled: true,
            inline: false,
        };
        qp.post(&mut super::Requests::default(), std::iter::once(request))
    }

    /// `rdma_disconnect`, and its event.
    pub fn disconnect(&self, timeout: Duration) -> Result<()> {
        self.hang_up()?;
        if let Some(qp) = &self.qp {
            qp.fail()?;
        }
        let want = ib::rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED;
        self.channel.expect(want, "rdma_disconnect", timeout)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        drop(self.qp.take());
        // SAFETY: It exists by the type invariants, all its events were acknowledged, and its queue pair
        // is gone.
        unsafe { ib::rdma_destroy_id(self.id.as_ptr()) };
    }
}

/// An identifier that listens. One connection at a time: all events arrive at one channel.
#[derive(Debug)]
pub struct Listener(Id);

impl Listener {
    /// `rdma_bind_addr`, to a port of the system's choice if it is 0, and `rdma_listen`.
    pub fn bind(addr: SocketAddr) -> Result<Self> {
        let id = Id::new(&Channel::new()?)?;
        let addr = SockaddrStorage::from(addr);
        // SAFETY: The identifier exists; the address is a valid one and is copied.
        let ret = unsafe { ib::rdma_bind_addr(id.id.as_ptr(), addr.as_ptr().cast_mut()) };
        check("rdma_bind_addr", ret)?;
        // SAFETY: The identifier exists.
        check("rdma_listen", unsafe {
            ib::rdma_listen(id.id.as_ptr(), 16)
        })?;
        Ok(Self(id))
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        // SAFETY: The identifier exists and is bound: its address is one of the internet, with the port in
        // the same place in each family.
        u16::from_be(unsafe {
            self.0
                .id
                .as_ref()
                .route
                .addr
                .src_addr_union
                .src_sin
                .sin_port
        })
    }

    /// Takes the identifier of a request, which its event brought.
    fn request(&self, call: &'static str, id: *mut ib::rdma_cm_id) -> Result<Id> {
        // INVARIANT: As it came with the event, which makes it the receiver's.
        Ok(Id {
            id: made(call, id)?,
            qp: None,
            channel: self.0.channel.clone(),
        })
    }

    /// Takes the next request. [`None`] when there is none in time.
    pub fn next_request(&self, timeout: Duration) -> Result<Option<Id>> {
        let call = "waiting for a request";
        let Some((got, _, id)) = self.0.channel.next(call, timeout)? else {
            return Ok(None);
        };
        if got != ib::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            // Of a connection before that is over.
            return Ok(None);
        }
        self.request(call, id).map(Some)
    }
}
