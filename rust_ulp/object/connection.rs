// SPDX-License-Identifier: GPL-2.0

//! Connections of a file.
//!
//! A connection owns an identifier of the connection manager, and its stage. It begins with
//! CONNECT, or as a request that a listener received and ACCEPT takes. The handler runs in process
//! context with the manager's handler mutex held: it stores the event, resolves the route and sends
//! the request as soon as that can be done, and moves the queue pair to ERR when the peer has ended
//! the connection.
//!
//! The other steps of an attempt run outside of the handler, see [`Connection::step`]: by the
//! command that waits for the attempt, or, when none does, by the work of [`Background`].
//!
//! The queue pair leaves its state only when the peer has answered (CONNECT) or is about to be
//! answered (ACCEPT). In RTS it takes data before the manager's last message has arrived, so a
//! packet that comes first needs no special case.

use super::{
    deadline::Deadline,
    qp::{
        Claim,
        QpObject, //
    }, //
};
use crate::{
    device::Device,
    events::FileEvents,
    kernel::{
        errno::{
            eaddrnotavail,
            econnrefused,
            econnreset,
            ehostunreach,
            eisconn,
            enotconn,
            eproto,
            etime, //
        },
        net::NetNs,
        timer::now_ns, //
    },
    rdma::{
        self,
        cm,
        qp_attr::{
            mask,
            Attributes,
            State, //
        }, //
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
        Mutex, //
    },
    workqueue::{
        impl_has_work,
        Work,
        WorkItem, //
    }, //
};

/// The longest time to resolve a link-layer address: the kernel asks a neighbour three times, a
/// second apart.
const ADDRESS_MILLIS: u32 = 4000;
/// The longest time of the first attempt; each further attempt takes twice as long as the last one.
const FIRST_LOOK_MILLIS: u32 = 10;
/// The largest Local ACK Timeout. The manager keeps memory of a connection for 2^n * 4 us after its
/// end, outside of all limits: for 8 s, or 16 s with the Target ACK Delay of the peer. A peer that
/// rejects right after an answer with a large delay has it kept for that long
/// (drivers/infiniband/core/cm.c:cm_rej_handler), before the module learns of the answer.
pub(crate) const MAX_ACK_TIMEOUT: u8 = 21;
/// The longest time to resolve a route, which on InfiniBand asks the subnet administrator.
const ROUTE_MILLIS: u32 = 4000;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// CONNECT has begun: the peer's address is being resolved.
    AddrQuery,
    /// The peer's address is resolved.
    AddrResolved,
    /// The route to the peer is being resolved.
    RouteQuery,
    /// The route to the peer is resolved.
    RouteResolved,
    /// The connection request is on its way.
    Connect,
    /// The peer has accepted.
    ConnectResponse,
    /// It is a request that was not answered.
    Requested,
    /// ACCEPT has begun.
    Accepting,
    /// Both ends have established it.
    Established,
    /// The attempt has failed, and its queue pair is free again.
    Failed,
    /// It was established and has ended, or a request that was rejected.
    Ended,
    /// The timewait period is over.
    TimewaitExit,
}

impl Stage {
    /// Returns whether CONNECT or ACCEPT is establishing the connection.
    fn is_attempt(self) -> bool {
        matches!(
            self,
            Self::AddrQuery
                | Self::AddrResolved
                | Self::RouteQuery
                | Self::RouteResolved
                | Self::Connect
                | Self::ConnectResponse
                | Self::Accepting
        )
    }
}

/// The private data of the peer.
#[derive(Clone, Copy)]
pub(crate) struct PrivateData {
    pub(crate) len: u32,
    pub(crate) data: [u8; abi::CM_PRIVATE_MAX],
}

impl PrivateData {
    fn new(data: &[u8]) -> Self {
        let mut this = Self {
            len: 0,
            data: [0; abi::CM_PRIVATE_MAX],
        };
        for (to, from) in this.data.iter_mut().zip(data) {
            *to = *from;
            this.len = this.len.wrapping_add(1);
        }
        this
    }

    fn bytes(&self) -> &[u8] {
        self.data.get(..self.len as usize).unwrap_or(&[])
    }
}

struct Progress {
    stage: Stage,
    /// The error that ended the attempt.
    failure: Option<Error>,
    /// The error with which waiting threads leave.
    closed: Option<Error>,
    reject_reason: u32,
    /// The parameters of the peer's last message.
    peer: cm::Parameters,
    private: PrivateData,
    /// The parameters that the peer asks for, or the negotiated ones.
    param: abi::ConnParam,
    addresses: (Option<SocketAddr>, Option<SocketAddr>),
    qp: Option<Claim>,
    /// The handle of the queue pair of the attempt, even after the attempt.
    qp_handle: u32,
    /// The state of the queue pair before the attempt.
    from: State,
    /// The parameters of CONNECT.
    params: Option<ConnectParams>,
    times: ConnectTimes,
    /// The number of commands that wait for the attempt.
    waiting: u32,
    /// Whether a command has left the attempt pending: events report its end.
    is_pending: bool,
    background: Option<Arc<Background>>,
}

impl Progress {
    fn fail(&mut self, err: Error) {
        self.failure.get_or_insert(err);
        if self.stage == Stage::Requested {
            self.stage = Stage::Failed;
        }
    }

    /// Returns whether [`Connection::step`] has something to do.
    fn is_due(&self) -> bool {
        self.closed.is_none()
            && (self.stage == Stage::ConnectResponse
                || self.stage.is_attempt() && self.failure.is_some())
    }

    /// Has the next step taken in the background, if it is due and no command waits.
    fn queue_work(&self) {
        if self.waiting == 0 && self.is_due() {
            if let Some(background) = &self.background {
                // Work that is queued already will see the present stage.
                let _ = background.device.workqueue().enqueue(background.clone());
            }
        }
    }

    /// Returns the queue pair of the attempt.
    fn object(&self) -> Result<Arc<QpObject>> {
        self.qp.as_ref().map(Claim::object).ok_or_else(econnreset)
    }
}

/// The requests of a listener.
pub(crate) trait Admitted: Send + Sync {
    /// Notes that the sender of a request has gone. A handler of the request may call this. Sleeps.
    fn note_dead(self: Arc<Self>);
}

/// The part of a connection that its handler and its commands share.
#[pin_data]
pub(crate) struct Shared {
    handle: Atomic<u32>,
    /// The value that the caller of CONNECT or ACCEPT gave the connection; 0 for a request.
    user_data: Atomic<u64>,
    /// Lock order: after the handler mutex of an identifier, before `rdma::Qp::modifying`. Held
    /// while the queue pair moves to ERR.
    #[pin]
    progress: Mutex<Progress>,
    #[pin]
    changed: CondVar,
    /// Held during a step. Lock order: after `Background::connection`, before the manager's handler
    /// mutex.
    #[pin]
    stepping: Mutex<()>,
    file: Arc<FileEvents>,
    /// Where a request was admitted.
    backlog: Option<Arc<dyn Admitted>>,
}

/// Takes the steps of an attempt that no command waits for.
#[pin_data]
struct Background {
    device: Arc<Device>,
    /// The connection, from when a command left its attempt until it is destroyed. Held during a
    /// step, so a connection that was destroyed takes none. Lock order: before `stepping`;
    /// never under the table's lock.
    #[pin]
    connection: Mutex<Option<Arc<Connection>>>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Background { self.work }
}

impl Background {
    fn new(device: Arc<Device>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device,
                connection <- new_mutex!(None, "rust_ulp::Background::connection"),
                work <- new_work!("rust_ulp::Background::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

impl WorkItem for Background {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Ok(_guard) = this.device.enter() else {
            // The removal of the device ends the connection.
            return;
        };
        if let Some(connection) = &*this.connection.lock() {
            while connection.is_due_here() {
                connection.step();
            }
        }
    }
}

impl Shared {
    fn new(
        stage: Stage,
        file: Arc<FileEvents>,
        backlog: Option<Arc<dyn Admitted>>,
    ) -> Result<Arc<Self>> {
        let progress = Progress {
            stage,
            failure: None,
            closed: None,
            reject_reason: 0,
            peer: cm::Parameters::default(),
            private: PrivateData::new(&[]),
            param: abi::ConnParam::default(),
            addresses: (None, None),
            qp: None,
            qp_handle: 0,
            from: State::Reset,
            params: None,
            times: ConnectTimes::new(),
            waiting: 0,
            is_pending: false,
            background: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                user_data: Atomic::new(0),
                progress <- new_mutex!(progress, "rust_ulp::Connection::progress"),
                changed <- new_condvar!("rust_ulp::Connection::changed"),
                stepping <- new_mutex!((), "rust_ulp::Connection::stepping"),
                file,
                backlog,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Makes the shared part for a request that has just arrived. `reads` are the most outstanding
    /// reads of a queue pair as responder and as initiator.
    pub(crate) fn requested(
        request: &cm::Request<'_>,
        reads: (u8, u8),
        file: Arc<FileEvents>,
        backlog: Arc<dyn Admitted>,
    ) -> Result<Arc<Self>> {
        let this = Self::new(Stage::Requested, file, Some(backlog))?;
        let message = request.message();
        let parameters = message.parameters;
        let mut progress = this.progress.lock();
        progress.peer = parameters;
        progress.private = PrivateData::new(message.private_data);
        progress.addresses = request.id().addresses();
        progress.param = abi::ConnParam {
            responder_resources: parameters.responder_resources.min(reads.0),
            initiator_depth: parameters.initiator_depth.min(reads.1),
            retry_cnt: parameters.retry_count,
            rnr_retry: parameters.rnr_retry_count,
            ..Default::default()
        };
        if parameters.flow_control {
            progress.param.flags |= abi::CONN_FLOW_CONTROL;
        }
        if let Some(path) = request.id().path() {
            progress.param.path_mtu = path.mtu;
            progress.param.traffic_class = path.traffic_class;
        }
        drop(progress);
        Ok(this)
    }

    /// Notes that an established connection has ended: its requests are flushed. Sleeps.
    fn end(&self, progress: &mut Progress, by_peer: bool) {
        progress.stage = Stage::Ended;
        let handle = self.handle.load(Relaxed);
        trace::disconnect(handle, by_peer);
        ulp_debug!("connection {:#x}: ended, by peer {}\n", handle, by_peer);
        if let Some(qp) = &progress.qp {
            if (State::Rtr..=State::Sqe).contains(&qp.qp().state()) {
                // When the driver refuses, the queue pair is as bad as it can be.
                let _ = qp.move_to(State::Err);
            }
        }
    }
}

impl Shared {
    /// Notes an event of an attempt. Returns whether it was one.
    fn attempt_event(
        &self,
        progress: &mut Progress,
        id: &cm::LockedId<'_>,
        event: &cm::Event<'_>,
    ) -> bool {
        match (event, progress.stage) {
            (cm::Event::AddressResolved, Stage::AddrQuery) => progress.stage = Stage::AddrResolved,
            (cm::Event::RouteResolved, Stage::RouteQuery) => progress.stage = Stage::RouteResolved,
            (cm::Event::Response(message), Stage::Connect) => {
                progress.peer = message.parameters;
                progress.private = PrivateData::new(message.private_data);
                progress.stage = Stage::ConnectResponse;
            }
            (cm::Event::Established, Stage::Accepting) => {
                progress.addresses = id.addresses();
                self.established(progress);
            }
            _ => return false,
        }
        true
    }

    /// Takes the next step of the attempt in the handler: a switch to the command and back would cost
    /// more than the step. Sleeps.
    fn go_on(&self, id: &cm::LockedId<'_>) {
        let progress = self.progress.lock();
        let stage = progress.stage;
        if progress.closed.is_some() {
            return;
        }
        drop(progress);
        let result = match stage {
            Stage::AddrResolved => self.resolve_route(id.id()),
            Stage::RouteResolved => self.request(id),
            _ => return,
        };
        if let Err(err) = result {
            self.progress.lock().fail(err);
        }
    }

    /// Starts to resolve the route to the peer. Sleeps.
    fn resolve_route(&self, id: &cm::Id) -> Result {
        let mut progress = self.progress.lock();
        progress.times.resolve = progress.times.elapsed();
        progress.stage = Stage::RouteQuery;
        let device = progress.params.as_ref().map(|params| params.device);
        drop(progress);
        if id.device_index() != device {
            return Err(EXDEV);
        }
        id.resolve_route(ROUTE_MILLIS)
    }

    /// Sends the connection request. Sleeps.
    fn request(&self, id: &cm::LockedId<'_>) -> Result {
        let mut progress = self.progress.lock();
        progress.times.route = progress.times.elapsed();
        let params = *progress.params.as_ref().ok_or(EINVAL)?;
        let qp = progress.object()?;
        let param = &params.param;
        id.limit_path(param.path_mtu, param.ack_timeout);
        let parameters = cm::Parameters {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
            retry_count: param.retry_cnt,
            rnr_retry_count: param.rnr_retry,
            qp_num: qp.number(),
        };
        progress.stage = Stage::Connect;
        drop(progress);
        id.connect(&parameters, params.private.bytes())
            // Nothing was sent.
            .inspect_err(|_| self.progress.lock().stage = Stage::RouteResolved)
    }

    /// Notes an event that ends an attempt or a connection. Returns the event to report, `EVENT_*`.
    /// Sleeps.
    fn end_event(
        &self,
        progress: &mut Progress,
        id: &cm::LockedId<'_>,
        event: &cm::Event<'_>,
    ) -> Option<u32> {
        match (event, progress.stage) {
            (cm::Event::Disconnected | cm::Event::Rejected { .. }, Stage::Established) => {
                self.end(progress, true);
                // Fails when the event was no disconnect request, which needs no answer.
                let _ = id.disconnect();
                return Some(abi::EVENT_DISCONNECTED);
            }
            (
                cm::Event::Disconnected | cm::Event::Rejected { .. },
                Stage::Requested | Stage::Accepting,
            ) => progress.fail(econnreset()),
            (
                cm::Event::Rejected {
                    reason,
                    private_data,
                },
                stage,
            ) if stage.is_attempt() => {
                progress.reject_reason = *reason;
                progress.private = PrivateData::new(private_data);
                progress.fail(econnrefused());
            }
            (
                cm::Event::AddressError(err)
                | cm::Event::RouteError(err)
                | cm::Event::ConnectError(err),
                _,
            ) => progress.fail(*err),
            (cm::Event::Unreachable(_), Stage::Established) => {
                return Some(abi::EVENT_UNREACHABLE);
            }
            (cm::Event::Unreachable(_), _) => progress.fail(ETIMEDOUT),
            (cm::Event::TimewaitExit, Stage::Ended) => {
                progress.stage = Stage::TimewaitExit;
                return Some(abi::EVENT_TIMEWAIT_EXIT);
            }
            (cm::Event::AddressChange, _) => return Some(abi::EVENT_ADDR_CHANGE),
            // Another device than the file's is removed: when the file's own device is, this module
            // has dropped its identifiers before. The attempt gives up the identifier.
            (cm::Event::DeviceRemoval, _) => progress.fail(ehostunreach()),
            _ => (),
        }
        None
    }

    /// Notes that the connection is established.
    fn established(&self, progress: &mut Progress) {
        progress.stage = Stage::Established;
        progress.times.connect = progress.times.elapsed();
        if progress.is_pending {
            self.raise(abi::EVENT_ESTABLISHED, 0);
        }
    }

    /// Reports an event of the connection to the file, if it has a handle.
    fn raise(&self, event: u32, info: u32) {
        let handle = self.handle.load(Relaxed);
        if handle != 0 {
            let user_data = self.user_data.load(Relaxed);
            self.file.raise(event, handle, user_data, info);
        }
    }
}

impl cm::Handler for Shared {
    fn event(&self, id: &cm::LockedId<'_>, event: &cm::Event<'_>) {
        let handle = self.handle.load(Relaxed);
        trace::cm_event(handle, event.number(), event.status());
        let mut progress = self.progress.lock();
        // An attempt that has failed, or whose connection is closed, goes no further.
        let goes_on = progress.failure.is_none() && progress.closed.is_none();
        let waits = progress.stage == Stage::Requested;
        let raised = if goes_on && self.attempt_event(&mut progress, id, event) {
            drop(progress);
            self.go_on(id);
            progress = self.progress.lock();
            None
        } else {
            self.end_event(&mut progress, id, event)
        };
        progress.queue_work();
        let is_dead = waits && progress.failure.is_some();
        let wakes = progress.is_due() || !progress.stage.is_attempt();
        drop(progress);
        if wakes {
            self.changed.notify_all();
        }
        if let Some(event) = raised {
            self.raise(event, 0);
        }
        if let Some(backlog) = self.backlog.as_ref().filter(|_| is_dead) {
            backlog.clone().note_dead();
        }
    }
}

/// Limits the manager's attributes for RTR to `param`, and sets those of `agreed`. Returns [`eproto`]
/// for an MTU that is not defined, which drivers would take.
fn agree_rtr(
    attributes: &mut Attributes,
    param: &abi::ConnParam,
    agreed: &mut abi::ConnParam,
) -> Result {
    if !(1..=5).contains(&attributes.path_mtu) {
        return Err(eproto());
    }
    if param.path_mtu != 0 {
        attributes.path_mtu = attributes.path_mtu.min(param.path_mtu.into());
    }
    if param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
        attributes.av.traffic_class = param.traffic_class;
    }
    // A peer may answer with more than the request asked for and the device supports.
    attributes.max_dest_rd_atomic = attributes.max_dest_rd_atomic.min(param.responder_resources);
    agreed.responder_resources = attributes.max_dest_rd_atomic;
    agreed.path_mtu = attributes.path_mtu as u8;
    agreed.traffic_class = attributes.av.traffic_class;
    agreed.min_rnr_timer = attributes.min_rnr_timer;
    Ok(())
}

/// Limits the manager's attributes for RTS to `param`, and sets those of `agreed`. Returns [`eproto`]
/// when the peer's answer makes the timewait state too long.
fn agree_rts(
    attributes: &mut Attributes,
    param: &abi::ConnParam,
    agreed: &mut abi::ConnParam,
) -> Result {
    // At the requester the manager takes the longer of `param.ack_timeout` and the peer's Target ACK
    // Delay, or twice that (drivers/infiniband/core/cm.c:cm_rep_handler). A connection that is
    // rejected now has no timewait state (drivers/infiniband/core/cm.c:cm_send_rej_locked).
    if attributes.timeout > MAX_ACK_TIMEOUT.saturating_add(1) {
        return Err(eproto());
    }
    if param.ack_timeout != 0 {
        attributes.timeout = param.ack_timeout;
    }
    attributes.max_rd_atomic = attributes.max_rd_atomic.min(param.initiator_depth);
    agreed.initiator_depth = attributes.max_rd_atomic;
    agreed.retry_cnt = attributes.retry_cnt;
    agreed.rnr_retry = attributes.rnr_retry;
    agreed.ack_timeout = attributes.timeout;
    Ok(())
}

/// Brings the queue pair of an attempt that ends in `stage` back to the state `from`, and gives it
/// free. Sleeps.
///
/// A queue pair beyond INIT goes to RESET.
fn give_back(claim: Option<Claim>, from: State) {
    let Some(claim) = claim else {
        return;
    };
    if claim.qp().state() != from {
        // When the driver refuses, the queue pair is as bad as it can be.
        let _ = claim.move_to(State::Reset);
    }
}

/// The parameters of CONNECT.
#[derive(Clone, Copy)]
pub(crate) struct ConnectParams {
    pub(crate) dst: SocketAddr,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) param: abi::ConnParam,
    pub(crate) private: PrivateData,
    /// The number of the file's device.
    pub(crate) device: u32,
    /// The duration of the present attempt to resolve the address, and of all before.
    millis: u32,
    spent: u32,
}

impl ConnectParams {
    /// Makes the parameters. `private_data` is at most [`abi::CM_PRIVATE_MAX`] bytes.
    pub(crate) fn new(
        dst: SocketAddr,
        src: Option<SocketAddr>,
        param: abi::ConnParam,
        private_data: &[u8],
        device: u32,
    ) -> Self {
        Self {
            dst,
            src,
            param,
            private: PrivateData::new(private_data),
            device,
            millis: FIRST_LOOK_MILLIS,
            spent: 0,
        }
    }
}

/// The outcome of an attempt at the end of a command that waited for it.
pub(crate) struct AttemptResult {
    /// The result of the attempt, or what ended the wait.
    pub(crate) result: Result,
    /// Whether the attempt goes on.
    pub(crate) is_pending: bool,
}

impl AttemptResult {
    /// Makes the value for an attempt that is over.
    pub(crate) fn over(result: Result) -> Self {
        Self {
            result,
            is_pending: false,
        }
    }

    /// Makes the value for an attempt that goes on.
    pub(crate) fn pending(result: Result) -> Self {
        Self {
            result,
            is_pending: true,
        }
    }
}

/// The times at which steps of CONNECT ended, in microseconds from its start.
#[derive(Clone, Copy)]
pub(crate) struct ConnectTimes {
    /// The start, of [`now_ns`].
    start: u64,
    pub(crate) resolve: u32,
    pub(crate) route: u32,
    pub(crate) connect: u32,
}

impl ConnectTimes {
    /// Makes the times of a CONNECT that starts now.
    fn new() -> Self {
        Self {
            start: now_ns(),
            resolve: 0,
            route: 0,
            connect: 0,
        }
    }

    /// Returns the microseconds since the start.
    fn elapsed(&self) -> u32 {
        let elapsed = now_ns().saturating_sub(self.start);
        u32::try_from(elapsed / 1000).unwrap_or(u32::MAX)
    }
}

/// The answer of the peer, and the negotiated parameters.
pub(crate) struct Outcome {
    pub(crate) param: abi::ConnParam,
    pub(crate) peer_qp_num: u32,
    pub(crate) reject_reason: u32,
    pub(crate) private: PrivateData,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) times: ConnectTimes,
}

/// A connection of a file, or a request for one.
#[pin_data(PinnedDrop)]
pub(crate) struct Connection {
    /// [`None`] after a failed attempt: the identifier would prevent the removal of the device that
    /// the route or the source address belongs to, which need not be the file's. No lock is taken
    /// under it: who uses the identifier has another reference.
    // Before the part that its handler uses.
    #[pin]
    id: Mutex<Option<Arc<cm::OwnedId<Shared>>>>,
    shared: Arc<Shared>,
}

impl Connection {
    /// Makes a connection for [`Self::connect`] with the queue pair of `claim`. Sleeps.
    pub(crate) fn new(
        net: &NetNs,
        device: &rdma::device::Device,
        claim: Claim,
        user_data: u64,
        file: Arc<FileEvents>,
    ) -> Result<Arc<Self>> {
        let shared = Shared::new(Stage::AddrQuery, file, None)?;
        shared.user_data.store(user_data, Relaxed);
        let mut progress = shared.progress.lock();
        progress.from = claim.qp().state();
        progress.qp_handle = claim.handle();
        progress.qp = Some(claim);
        drop(progress);
        let id = cm::OwnedId::connection(net, device, shared.clone())?;
        let id = Arc::new(id, GFP_KERNEL_ACCOUNT)?;
        Arc::pin_init(Self::of_identifier(id, shared), GFP_KERNEL_ACCOUNT)
    }

    /// Makes a connection of an identifier that has `shared` as its handler, such as a request's.
    pub(crate) fn of_identifier(
        id: Arc<cm::OwnedId<Shared>>,
        shared: Arc<Shared>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            id <- new_mutex!(Some(id), "rust_ulp::Connection::id"),
            shared,
        })
    }

    /// Returns the identifier, or [`econnreset`] after a failed attempt. Dropping it sleeps.
    fn id(&self) -> Result<Arc<cm::OwnedId<Shared>>> {
        self.id.lock().clone().ok_or_else(econnreset)
    }

    /// Sets its handle, for events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.shared.handle.store(handle, Relaxed);
    }

    /// Wakes the threads that wait for it, with `err`. The attempt begins no further step. Sleeps.
    pub(crate) fn close(&self, err: Error) {
        self.shared.progress.lock().closed.get_or_insert(err);
        self.shared.changed.notify_all();
    }

    /// Waits for the step that the background takes, and takes the background's reference away.
    /// After [`Self::close`], and not under the table's lock: a step takes the handler mutex.
    /// Sleeps.
    pub(crate) fn end_background(&self) {
        let background = self.shared.progress.lock().background.clone();
        // The caller has another reference: this one is not the last.
        drop(background.and_then(|background| background.connection.lock().take()));
    }

    /// Returns whether it is a request whose sender has gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.shared.progress.lock().failure.is_some()
    }

    /// Returns whether the work of [`Background`] has to take a step.
    fn is_due_here(&self) -> bool {
        self.shared.progress.lock().is_due()
    }

    /// Returns whether CONNECT made it with the queue pair `qp`.
    pub(crate) fn is_connect_of(&self, qp: u32) -> bool {
        let progress = self.shared.progress.lock();
        progress.params.is_some() && progress.qp_handle == qp
    }

    /// Returns whether an ACCEPT with the queue pair `qp` has left it pending.
    pub(crate) fn is_accept_of(&self, qp: u32) -> bool {
        let progress = self.shared.progress.lock();
        progress.params.is_none() && progress.is_pending && progress.qp_handle == qp
    }

    /// Leaves the attempt pending: from now on its steps run in the background. Sleeps.
    pub(crate) fn leave(self: &Arc<Self>) {
        let mut progress = self.shared.progress.lock();
        progress.is_pending = true;
        let background = progress.background.clone();
        drop(progress);
        let Some(background) = background else {
            return;
        };
        let mut connection = background.connection.lock();
        let progress = self.shared.progress.lock();
        // Otherwise `end_background` may have looked, and nobody would take the reference away.
        if progress.closed.is_none() {
            *connection = Some(self.clone());
        }
        drop(connection);
        progress.queue_work();
    }

    /// Waits until the attempt is over, and takes its steps meanwhile. Sleeps.
    pub(crate) fn attend(self: &Arc<Self>, deadline: &Deadline) -> AttemptResult {
        let mut progress = self.shared.progress.lock();
        progress.waiting = progress.waiting.saturating_add(1);
        let attended = loop {
            if let Some(err) = progress.closed {
                break AttemptResult::over(Err(err));
            }
            if !progress.stage.is_attempt() {
                break AttemptResult::over(match progress.stage {
                    Stage::Failed => Err(progress.failure.unwrap_or_else(econnreset)),
                    // The peer may have ended it since: that is another event.
                    _ => Ok(()),
                });
            }
            if progress.is_due() {
                drop(progress);
                self.step();
                progress = self.shared.progress.lock();
                continue;
            }
            match deadline.wait(&self.shared.changed, &mut progress) {
                Ok(true) => (),
                Ok(false) => break AttemptResult::pending(Err(etime())),
                Err(err) => break AttemptResult::pending(Err(err)),
            }
        };
        progress.waiting = progress.waiting.saturating_sub(1);
        // Before the lock is dropped: the end of the attempt either was seen above, or is reported.
        progress.is_pending |= attended.is_pending;
        drop(progress);
        if attended.is_pending {
            self.leave();
        }
        attended
    }

    /// Starts to connect the queue pair, in RESET or INIT, that this connection has claimed.
    /// Sleeps.
    pub(crate) fn connect(&self, device: Arc<Device>, params: ConnectParams) -> Result {
        let background = Background::new(device)?;
        let id = self.id()?;
        if params.param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
            id.set_traffic_class(params.param.traffic_class);
        }
        id.set_min_rnr_timer(params.param.min_rnr_timer)?;
        let mut progress = self.shared.progress.lock();
        progress.background = Some(background);
        progress.params = Some(params);
        drop(progress);
        id.resolve_address(params.src, params.dst, params.millis)
            .map_err(|err| self.explain(Stage::AddrQuery, err))
    }

    /// Takes the next step of the attempt, if one is due. Sleeps.
    fn step(&self) {
        let _stepping = self.shared.stepping.lock();
        let progress = self.shared.progress.lock();
        let (stage, failure) = (progress.stage, progress.failure);
        if !progress.is_due() {
            return;
        }
        drop(progress);
        let result = match (stage, failure) {
            (Stage::AddrQuery, Some(err)) if err == ETIMEDOUT => self.resolve_again(),
            (_, Some(err)) => Err(err),
            _ => self.establish(),
        };
        if let Err(err) = result {
            self.give_up(err);
        }
    }

    /// Resolves the link-layer address of the peer once more. Sleeps.
    ///
    /// The resolver (`rdma_resolve_ip()`) looks at the neighbour entry, and then queues its request
    /// for the neighbour's answer. It finds an answer that arrives between the two only when its
    /// time is over. So there are several attempts, and the first one is short. The handler cannot
    /// begin one: `rdma_resolve_addr()` would wait for it to return.
    fn resolve_again(&self) -> Result {
        let mut progress = self.shared.progress.lock();
        let params = progress.params.as_mut().ok_or(EINVAL)?;
        params.spent = params.spent.saturating_add(params.millis);
        if params.spent >= ADDRESS_MILLIS {
            return Err(ETIMEDOUT);
        }
        params.millis = params.millis.saturating_mul(2);
        let (src, dst, millis) = (params.src, params.dst, params.millis);
        progress.failure = None;
        drop(progress);
        self.id()?.resolve_address(src, dst, millis)
    }

    /// Brings the queue pair to RTS after the peer has accepted, and tells the peer. Sleeps.
    fn establish(&self) -> Result {
        let progress = self.shared.progress.lock();
        let param = progress.params.as_ref().ok_or(EINVAL)?.param;
        let qp = progress.object()?;
        drop(progress);
        let id = self.id()?;
        let agreed = self.bring_up(&qp, &param).inspect_err(|_| {
            // Without this the peer would wait until the connection is destroyed.
            let _ = id.lock().reject(cm::REJECT_CONSUMER, &[]);
        })?;
        let id = id.lock();
        let mut progress = self.shared.progress.lock();
        // The peer may have gone since.
        if let Some(err) = progress.closed.or(progress.failure) {
            return Err(err);
        }
        progress.param = agreed;
        progress.addresses = id.addresses();
        drop(progress);
        id.establish()?;
        self.shared.established(&mut self.shared.progress.lock());
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Ends the attempt with `err`: gives the queue pair and the identifier back, and reports the
    /// failure. Sleeps. The caller holds no lock that the handler takes.
    fn give_up(&self, err: Error) {
        let mut progress = self.shared.progress.lock();
        // No event moves a failed attempt to another stage.
        let err = self.explain_closed(progress.stage, err, progress.closed.is_some());
        progress.failure = Some(err);
        let (claim, from) = (progress.qp.take(), progress.from);
        drop(progress);
        give_back(claim, from);
        // Not dropped under the lock.
        let id = self.id.lock().take();
        drop(id);
        let mut progress = self.shared.progress.lock();
        progress.stage = Stage::Failed;
        let is_pending = progress.is_pending;
        drop(progress);
        self.shared.changed.notify_all();
        if is_pending {
            let errno = err.to_errno().unsigned_abs();
            self.shared.raise(abi::EVENT_CONNECT_FAILED, errno);
        }
    }

    /// Returns the errno of the ABI for an error of the manager in `stage`.
    fn explain(&self, stage: Stage, err: Error) -> Error {
        let is_closed = self.shared.progress.lock().closed.is_some();
        self.explain_closed(stage, err, is_closed)
    }

    /// Returns the errno as [`Self::explain`] does. A connection whose device goes `is_closed`.
    fn explain_closed(&self, stage: Stage, err: Error, is_closed: bool) -> Error {
        match stage {
            // The address is not one of a device.
            Stage::AddrQuery if err == ENODEV && !is_closed => eaddrnotavail(),
            Stage::AddrQuery if err == ETIMEDOUT => ehostunreach(),
            Stage::RouteQuery if err == ENODEV && !is_closed => ehostunreach(),
            // The arguments were checked: the interface goes (`__mkroute_output()`), the MTU is below
            // what RoCE needs (`cma_resolve_iboe_route()`), or the port goes (`cm_init_av_by_path()`).
            Stage::AddrQuery | Stage::RouteQuery | Stage::RouteResolved if err == EINVAL => {
                ehostunreach()
            }
            // The manager knows before its handler does that the peer has gone.
            Stage::Accepting | Stage::ConnectResponse if err == EINVAL => econnreset(),
            _ => err,
        }
    }

    /// Brings `qp` to RTS with the manager's attributes and `param`; returns the negotiated
    /// parameters. Sleeps.
    fn bring_up(&self, qp: &QpObject, param: &abi::ConnParam) -> Result<abi::ConnParam> {
        let id = self.id()?;
        let mut agreed = *param;
        for state in [State::Init, State::Rtr, State::Rts] {
            let known = id.lock().qp_attributes(state);
            // The manager knows before its handler does that the peer has gone.
            let (mut attributes, mask) =
                known.map_err(|err| if err == EINVAL { econnreset() } else { err })?;
            match state {
                State::Init => attributes.access_flags = param.access_flags,
                State::Rtr => agree_rtr(&mut attributes, param, &mut agreed)?,
                _ => agree_rts(&mut attributes, param, &mut agreed)?,
            }
            // The others are of alternate paths, which are not supported.
            qp.modify(&attributes, mask & mask::ALL)?;
        }
        Ok(agreed)
    }

    /// Starts to accept the request with the queue pair of `claim`, in RESET or INIT. Sleeps.
    ///
    /// Returns [`eisconn`] when it is a connection already or becomes one, [`enotconn`] when it was
    /// one, and [`econnreset`] when the peer has gone: then it has failed. After any other error
    /// before the answer is sent, the request still waits. With `nonblock`, events report the end
    /// of the attempt.
    pub(crate) fn accept(
        &self,
        device: Arc<Device>,
        claim: Claim,
        param: &abi::ConnParam,
        private_data: &[u8],
        user_data: u64,
        nonblock: bool,
    ) -> Result {
        let background = Background::new(device)?;
        let qp = claim.object();
        let param = self.begin_accept(background, claim, param)?;
        self.shared.user_data.store(user_data, Relaxed);
        let agreed = match self.prepare(&qp, &param) {
            Ok(agreed) => agreed,
            Err(err) if err == econnreset() => {
                self.give_up(err);
                return Err(err);
            }
            Err(err) => {
                self.undo_accept();
                return Err(err);
            }
        };
        let mut progress = self.shared.progress.lock();
        progress.param = agreed;
        // Before the answer: the peer may confirm it at once.
        progress.is_pending = nonblock;
        drop(progress);
        let parameters = cm::Parameters {
            responder_resources: agreed.responder_resources,
            initiator_depth: agreed.initiator_depth,
            flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
            retry_count: 0,
            rnr_retry_count: param.rnr_retry,
            qp_num: qp.number(),
        };
        let answered = (self.id()).and_then(|id| id.lock().accept(&parameters, private_data));
        answered.map_err(|err| {
            let err = self.explain(Stage::Accepting, err);
            self.shared.progress.lock().is_pending = false;
            self.give_up(err);
            err
        })
    }

    /// Moves the request to [`Stage::Accepting`]; returns `param`, limited to what the peer asks
    /// for.
    fn begin_accept(
        &self,
        background: Arc<Background>,
        claim: Claim,
        param: &abi::ConnParam,
    ) -> Result<abi::ConnParam> {
        let mut progress = self.shared.progress.lock();
        if let Some(err) = progress.closed {
            return Err(err);
        }
        match progress.stage {
            Stage::Requested => (),
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            Stage::Failed => return Err(progress.failure.unwrap_or_else(econnreset)),
            _ => return Err(enotconn()),
        }
        let asked = progress.param;
        if param.path_mtu != 0 && param.path_mtu < asked.path_mtu {
            // The peer would not learn of it, and would send longer packets.
            return Err(ERANGE);
        }
        progress.stage = Stage::Accepting;
        progress.from = claim.qp().state();
        progress.qp_handle = claim.handle();
        progress.qp = Some(claim);
        progress.background = Some(background);
        Ok(abi::ConnParam {
            responder_resources: param.responder_resources.min(asked.responder_resources),
            initiator_depth: param.initiator_depth.min(asked.initiator_depth),
            ..*param
        })
    }

    /// Prepares `qp` for the answer by bringing it to RTS; returns the negotiated parameters.
    /// Sleeps.
    fn prepare(&self, qp: &QpObject, param: &abi::ConnParam) -> Result<abi::ConnParam> {
        self.id()?.set_min_rnr_timer(param.min_rnr_timer)?;
        self.bring_up(qp, param)
    }

    /// Undoes [`Self::begin_accept`] and [`Self::prepare`]. Sleeps.
    fn undo_accept(&self) {
        let mut progress = self.shared.progress.lock();
        self.shared.user_data.store(0, Relaxed);
        let (claim, from) = (progress.qp.take(), progress.from);
        drop(progress);
        give_back(claim, from);
        let mut progress = self.shared.progress.lock();
        progress.stage = match progress.failure {
            None => Stage::Requested,
            Some(_) => Stage::Failed,
        };
    }

    /// Rejects the request. Sleeps.
    ///
    /// Returns [`eisconn`] when it was accepted, [`enotconn`] when it is over, and [`ENOMEM`] when
    /// the message could not be sent for want of memory: then the request still waits.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        let id = self.id().ok();
        let id = id.as_ref().map(|id| id.lock());
        let mut progress = self.shared.progress.lock();
        match progress.stage {
            // A requester that has gone is not told.
            Stage::Requested | Stage::Failed => progress.stage = Stage::Ended,
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            _ => return Err(enotconn()),
        }
        drop(progress);
        // The handler stays locked until the stage is right again.
        let rejected = id
            .as_ref()
            .map_or(Ok(()), |id| id.reject(cm::REJECT_CONSUMER, private_data));
        if rejected == Err(ENOMEM) {
            self.shared.progress.lock().stage = Stage::Requested;
            return Err(ENOMEM);
        }
        // Any other failure says that the peer has gone already.
        Ok(())
    }

    /// Ends the connection, and moves its queue pair to ERR. Sleeps. Returns [`enotconn`] when it
    /// is not established.
    pub(crate) fn disconnect(&self) -> Result {
        let id = self.id().map_err(|_| enotconn())?;
        let id = id.lock();
        let mut progress = self.shared.progress.lock();
        if progress.stage != Stage::Established {
            return Err(enotconn());
        }
        self.shared.end(&mut progress, false);
        drop(progress);
        // Fails when the peer has disconnected already.
        let _ = id.disconnect();
        Ok(())
    }

    /// Returns the peer's answer and the negotiated parameters.
    pub(crate) fn outcome(&self) -> Outcome {
        let progress = self.shared.progress.lock();
        let (local, peer) = progress.addresses;
        Outcome {
            param: progress.param,
            peer_qp_num: progress.peer.qp_num,
            reject_reason: progress.reject_reason,
            private: progress.private,
            local,
            peer,
            times: progress.times,
        }
    }

    /// Returns the value that the caller of CONNECT or ACCEPT gave it; 0 for a request.
    pub(crate) fn user_data(&self) -> u64 {
        self.shared.user_data.load(Relaxed)
    }

    /// Returns its state, `CONN_*`, and the handle of its queue pair or 0.
    pub(crate) fn state(&self) -> (u32, u32) {
        let progress = self.shared.progress.lock();
        let state = match progress.stage {
            Stage::Requested => abi::CONN_REQUESTED,
            Stage::Established => abi::CONN_ESTABLISHED,
            Stage::Ended => abi::CONN_DISCONNECTED,
            Stage::TimewaitExit => abi::CONN_TIMEWAIT_OVER,
            Stage::Failed => abi::CONN_FAILED,
            _ => abi::CONN_CONNECTING,
        };
        (state, progress.qp.as_ref().map_or(0, |qp| qp.handle()))
    }
}

#[pinned_drop]
impl PinnedDrop for Connection {
    fn drop(self: Pin<&mut Self>) {
        // The manager tells the peer when the identifier is dropped.
        let mut progress = self.shared.progress.lock();
        if progress.stage == Stage::Established {
            self.shared.end(&mut progress, false);
        } else if progress.stage.is_attempt() {
            progress.stage = Stage::Failed;
            let (claim, from) = (progress.qp.take(), progress.from);
            drop(progress);
            give_back(claim, from);
        }
    }
}
