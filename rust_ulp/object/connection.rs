// SPDX-License-Identifier: GPL-2.0

//! Connections of a file.
//!
//! A connection owns an identifier of the connection manager, and its stage. It begins with
//! CONNECT, or as a request that a listener received and ACCEPT takes. Both commands only begin an
//! attempt; CONN_WAIT waits for its end.
//!
//! Two actors take the steps of an attempt. The handler runs in process context with the manager's
//! handler mutex held: it stores the event, resolves the route and sends the request as soon as
//! that can be done, and moves the queue pair to ERR when the peer has ended the connection. All
//! other steps run in the work of the connection, see [`Connection::run`]: it brings the queue pair
//! to RTS when the peer has accepted, and gives the identifier of an attempt that failed back.
//!
//! The parameters, and what both ends agree on, are in [`super::conn_param`].
//!
//! The queue pair leaves its state only when the peer has answered (CONNECT) or is about to be
//! answered (ACCEPT). In RTS it takes data before the manager's last message has arrived, so a
//! packet that comes first needs no special case.

use super::{
    conn_param::{
        bring_up,
        limit,
        message,
        ConnectParams,
        Outcome,
        PrivateData, //
    },
    deadline::Deadline,
    qp::Claim, //
};
use crate::{
    device::Device,
    events::FileEvents,
    ext::{
        errno::{
            eaddrnotavail,
            econnrefused,
            econnreset,
            ehostunreach,
            eisconn,
            enotconn,
            etime, //
        },
        net::NetNs,
        timer::now_ns, //
    },
    rdma::{
        self,
        cm,
        qp_attr::State, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
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
        MutexGuard, //
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
/// The longest time to resolve a route, which on InfiniBand asks the subnet administrator.
const ROUTE_MILLIS: u32 = 4000;
/// The time after which the sender of a request has given up, unless it was asked for more time: it
/// sends the request 16 times, 4.3 s apart (`CMA_MAX_CM_RETRIES` and `CMA_CM_RESPONSE_TIMEOUT`,
/// drivers/infiniband/core/cma.c).
const REQUEST_NS: u64 = 69_000_000_000;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// CONNECT has begun: the peer's address is being resolved.
    AddrQuery,
    /// The route to the peer is being resolved.
    RouteQuery,
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
    /// It is a request whose sender has gone.
    Gone,
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
                | Self::RouteQuery
                | Self::Connect
                | Self::ConnectResponse
                | Self::Accepting
        )
    }

    /// Returns the errno of the ABI for an error of the manager in this stage.
    fn explain(self, err: Error) -> Error {
        match self {
            // The address is not one of a device.
            Self::AddrQuery if err == ENODEV => eaddrnotavail(),
            Self::AddrQuery if err == ETIMEDOUT => ehostunreach(),
            Self::RouteQuery if err == ENODEV => ehostunreach(),
            // The arguments were checked: the interface goes (`__mkroute_output()`), the MTU is below
            // what RoCE needs (`cma_resolve_iboe_route()`), or the port goes (`cm_init_av_by_path()`).
            Self::AddrQuery | Self::RouteQuery if err == EINVAL => ehostunreach(),
            // The manager knows before its handler does that the peer has gone.
            Self::Accepting if err == EINVAL => econnreset(),
            _ => err,
        }
    }
}

struct Progress {
    stage: Stage,
    /// The error that ended the attempt, or the request.
    failure: Option<Error>,
    /// The error with which waiting threads leave. No further step is begun.
    closed: Option<Error>,
    outcome: Outcome,
    qp: Option<Claim>,
    /// The parameters that CONNECT passed.
    connect: Option<ConnectParams>,
    /// The time of the present look for the peer's link-layer address.
    look_millis: u32,
}

impl Progress {
    fn new(stage: Stage, outcome: Outcome) -> Self {
        Self {
            stage,
            failure: None,
            closed: None,
            outcome,
            qp: None,
            connect: None,
            look_millis: FIRST_LOOK_MILLIS,
        }
    }

    /// Notes the error that ends the attempt, or the request.
    fn fail(&mut self, err: Error) {
        if self.stage.is_attempt() || self.stage == Stage::Requested {
            self.failure.get_or_insert(err);
        }
        if self.stage == Stage::Requested {
            self.stage = Stage::Gone;
        }
    }

    /// Returns whether the work of the connection has something to do.
    fn is_due(&self) -> bool {
        self.closed.is_none() && (self.stage == Stage::ConnectResponse || self.failure.is_some())
    }

    /// Returns the number of the queue pair, or 0.
    fn number(&self) -> u32 {
        self.qp.as_ref().map_or(0, |qp| qp.number())
    }

    /// Returns the state, `CONN_*`, and the handle of the queue pair or 0.
    fn state(&self) -> (u32, u32) {
        let state = match self.stage {
            Stage::Requested => abi::CONN_REQUESTED,
            Stage::Established => abi::CONN_ESTABLISHED,
            Stage::Ended => abi::CONN_DISCONNECTED,
            Stage::TimewaitExit => abi::CONN_TIMEWAIT_OVER,
            Stage::Gone | Stage::Failed => abi::CONN_FAILED,
            _ => abi::CONN_CONNECTING,
        };
        (state, self.qp.as_ref().map_or(0, |qp| qp.handle()))
    }
}

/// A connection of a file, or a request for one.
///
/// Its identifier holds a reference to it, as the owner that gets the events. So it exists until
/// [`Self::end`], or until an attempt that failed has given the identifier back.
#[pin_data]
pub(crate) struct Connection {
    handle: Atomic<u32>,
    /// The value that the caller of CONNECT or ACCEPT gave the connection; 0 for a request.
    user_data: Atomic<u64>,
    /// The file's device.
    device: Arc<Device>,
    file: Arc<FileEvents>,
    /// When a request arrived, as [`now_ns`] tells.
    start_ns: u64,
    /// The identifier, until the connection has ended or its attempt has failed: it would prevent the
    /// removal of the device that the route or the source address belongs to, which need not be the
    /// file's. Held during a step outside of the handler, so steps exclude each other. Lock order:
    /// before the manager's handler mutex; never under the table's lock.
    #[pin]
    id: Mutex<Option<cm::OwnedId<Self>>>,
    /// Lock order: after the handler mutex of an identifier, before `rdma::Qp::modifying`. Held
    /// while the queue pair moves to ERR.
    #[pin]
    progress: Mutex<Progress>,
    #[pin]
    changed: CondVar,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl HasWork<Self> for Connection { self.work }
}

impl WorkItem for Connection {
    type Pointer = Arc<Self>;

    /// Takes the next step of the attempt, if one is due. Sleeps.
    fn run(this: Arc<Self>) {
        // No guard of the device: its removal ends the connection, which waits for this lock.
        let mut place = this.id.lock();
        let progress = this.progress.lock();
        let (stage, failure, number) = (progress.stage, progress.failure, progress.number());
        let is_due = progress.is_due();
        drop(progress);
        let Some(id) = place.as_ref().filter(|_| is_due) else {
            return;
        };
        let result = match failure {
            Some(err) if err == ETIMEDOUT && stage == Stage::AddrQuery => this.resolve_again(id),
            Some(err) => Err(err),
            None => this.establish(id),
        };
        if let Err(err) = result {
            let err = this.give_up(&mut place, err);
            if stage.is_attempt() {
                this.trace_end(number, Err(err));
                this.raise(abi::EVENT_CONNECT_FAILED, err.to_errno().unsigned_abs());
            }
        }
    }
}

impl Connection {
    fn new(
        progress: Progress,
        user_data: u64,
        device: Arc<Device>,
        file: Arc<FileEvents>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                user_data: Atomic::new(user_data),
                device,
                file,
                start_ns: now_ns(),
                id <- new_mutex!(None, "rust_ulp::Connection::id"),
                progress <- new_mutex!(progress, "rust_ulp::Connection::progress"),
                changed <- new_condvar!("rust_ulp::Connection::changed"),
                work <- new_work!("rust_ulp::Connection::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Makes a connection for CONNECT with the queue pair of `claim`, which [`Self::start`] begins.
    /// Sleeps.
    pub(crate) fn connecting(
        net: &NetNs,
        ib_device: &rdma::device::Device,
        device: Arc<Device>,
        file: Arc<FileEvents>,
        claim: Claim,
        connect: ConnectParams,
        user_data: u64,
    ) -> Result<Arc<Self>> {
        let progress = Progress {
            qp: Some(claim),
            connect: Some(connect),
            ..Progress::new(Stage::AddrQuery, Outcome::none())
        };
        let this = Self::new(progress, user_data, device, file)?;
        let id = cm::OwnedId::connection(net, ib_device, this.clone())?;
        *this.id.lock() = Some(id);
        Ok(this)
    }

    /// Makes a connection for a request that has just arrived, and that [`Self::keep`] keeps. `reads`
    /// are the most outstanding reads of a queue pair as responder and as initiator.
    pub(crate) fn requested(
        request: &cm::Request<'_>,
        reads: (u8, u8),
        device: Arc<Device>,
        file: Arc<FileEvents>,
    ) -> Result<Arc<Self>> {
        let outcome = Outcome::of_request(request, reads);
        Self::new(Progress::new(Stage::Requested, outcome), 0, device, file)
    }

    /// Keeps `request`, for which [`Self::requested`] made this connection. In the handler.
    pub(crate) fn keep(&self, request: cm::Request<'_>, prepared: cm::Prepared<Self>) {
        // The lock comes before the handler mutex, which is held. It is free: only the listener knows
        // the connection, and no event of it has arrived yet. If it were not, the manager would
        // reject the request.
        if let Some(mut id) = self.id.try_lock() {
            *id = Some(request.keep(prepared));
        }
    }

    /// Has the work of the connection take the next step.
    fn queue_work(self: &Arc<Self>) {
        // Work that is queued already will see the present stage.
        let _ = self.device.workqueue().enqueue(self.clone());
    }

    /// Returns whether it is a request whose sender has gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.progress.lock().failure.is_some()
    }

    /// Gives a request up whose sender must have given up; returns whether it is one. The work of
    /// the connection rejects it.
    pub(crate) fn expire(self: &Arc<Self>) -> bool {
        let is_old = now_ns().saturating_sub(self.start_ns) > REQUEST_NS;
        if is_old {
            self.progress.lock().fail(ETIMEDOUT);
            self.queue_work();
        }
        is_old
    }

    /// Wakes the threads that wait for it, with `err`. The attempt begins no further step. Sleeps.
    pub(crate) fn close(&self, err: Error) {
        self.progress.lock().closed.get_or_insert(err);
        self.changed.notify_all();
    }

    /// Ends the connection: rejects a request, gives an attempt up, and disconnects. Wakes the threads
    /// that wait for it, with `err`. Sleeps. The caller holds no lock that the handler takes.
    pub(crate) fn end(&self, err: Error) {
        self.close(err);
        let mut id = self.id.lock();
        let mut progress = self.progress.lock();
        let stage = progress.stage;
        if stage == Stage::Established {
            self.note_end(&mut progress, false);
        } else if stage.is_attempt() {
            progress.stage = Stage::Failed;
        }
        let claim = progress.qp.take();
        drop(progress);
        if let Some(claim) = claim.filter(|_| stage.is_attempt()) {
            claim.give_back();
        }
        // The manager tells the peer. Waits for the handler.
        *id = None;
    }

    /// Notes that an established connection has ended: its requests are flushed. Sleeps.
    fn note_end(&self, progress: &mut Progress, by_peer: bool) {
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

    /// Reports an event of the connection to the file, if it has a handle.
    fn raise(&self, event: u32, info: u32) {
        let handle = self.handle.load(Relaxed);
        if handle != 0 {
            let user_data = self.user_data.load(Relaxed);
            self.file.raise(event, handle, user_data, info);
        }
    }

    /// Reports the end of an attempt with the queue pair `number`, or that ACCEPT began none, to the
    /// tracepoint and the debug messages.
    pub(crate) fn trace_end(&self, number: u32, result: Result) {
        let handle = self.handle.load(Relaxed);
        trace::connect(handle, number, result.err().map_or(0, |err| err.to_errno()));
        ulp_debug!(
            "connection {:#x}: connected with qp {}: {:?}\n",
            handle,
            number,
            result
        );
    }
}

/// What the handler does.
impl Connection {
    /// Notes an event of an attempt, and takes its next step if the handler can take that. Returns
    /// whether it was one. Sleeps.
    fn attempt_event(&self, id: &cm::LockedId<'_>, event: &cm::Event<'_>) -> bool {
        let mut progress = self.progress.lock();
        // An attempt that has failed, or whose connection is closed, goes no further.
        if progress.failure.is_some() || progress.closed.is_some() {
            return false;
        }
        let result = match (event, progress.stage) {
            (cm::Event::AddressResolved, Stage::AddrQuery) => {
                progress.stage = Stage::RouteQuery;
                drop(progress);
                self.resolve_route(id.id())
            }
            (cm::Event::RouteResolved, Stage::RouteQuery) => self.request(id, progress),
            (cm::Event::Response(message), Stage::Connect) => {
                progress.outcome.peer_qp_num = message.parameters.qp_num;
                progress.outcome.private = PrivateData::new(message.private_data);
                progress.stage = Stage::ConnectResponse;
                return true;
            }
            (cm::Event::Established, Stage::Accepting) => {
                self.established(&mut progress, id);
                return true;
            }
            _ => return false,
        };
        if let Err(err) = result {
            self.progress.lock().fail(err);
        }
        true
    }

    /// Starts to resolve the route to the peer. Sleeps.
    fn resolve_route(&self, id: &cm::Id) -> Result {
        if id.device_index() != Some(self.device.index()) {
            return Err(EXDEV);
        }
        id.resolve_route(ROUTE_MILLIS)
    }

    /// Sends the connection request. Sleeps.
    fn request(&self, id: &cm::LockedId<'_>, progress: MutexGuard<'_, Progress>) -> Result {
        let ConnectParams { param, private, .. } = *progress.connect.as_ref().ok_or(EINVAL)?;
        let qp_num = progress.number();
        drop(progress);
        id.limit_path(param.path_mtu, param.ack_timeout);
        id.connect(&message(&param, qp_num), private.bytes())?;
        // The answer cannot have been noted: its handler waits for this one.
        let mut progress = self.progress.lock();
        if progress.closed.is_none() {
            progress.stage = Stage::Connect;
        }
        Ok(())
    }

    /// Notes an event that ends an attempt or a connection. Returns the event to report, `EVENT_*`.
    /// Sleeps.
    fn end_event(&self, id: &cm::LockedId<'_>, event: &cm::Event<'_>) -> Option<u32> {
        let mut progress = self.progress.lock();
        match (event, progress.stage) {
            (cm::Event::Disconnected | cm::Event::Rejected { .. }, Stage::Established) => {
                self.note_end(&mut progress, true);
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
                progress.outcome.reject_reason = *reason;
                progress.outcome.private = PrivateData::new(private_data);
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

    /// Notes that the connection is established, and wakes the threads that wait for it.
    fn established(&self, progress: &mut Progress, id: &cm::LockedId<'_>) {
        let outcome = &mut progress.outcome;
        (outcome.local, outcome.peer) = id.addresses();
        progress.stage = Stage::Established;
        self.trace_end(progress.number(), Ok(()));
        self.raise(abi::EVENT_ESTABLISHED, 0);
        self.changed.notify_all();
    }
}

impl cm::Handler for Connection {
    fn event(self: &Arc<Self>, id: &cm::LockedId<'_>, event: &cm::Event<'_>) {
        let handle = self.handle.load(Relaxed);
        trace::cm_event(handle, event.number(), event.status());
        if !self.attempt_event(id, event) {
            if let Some(event) = self.end_event(id, event) {
                self.raise(event, 0);
            }
        }
        if self.progress.lock().is_due() {
            self.queue_work();
        }
    }
}

/// What the commands do, and the work of the connection.
impl Connection {
    /// Sets its handle, for events, and starts to connect the queue pair, in RESET or INIT, if it was
    /// made for CONNECT. Sleeps.
    pub(crate) fn start(&self, handle: u32) -> Result {
        self.handle.store(handle, Relaxed);
        let id = self.id.lock();
        let connect = self.progress.lock().connect;
        let (Some(id), Some(connect)) = (id.as_ref(), connect) else {
            return Ok(());
        };
        if connect.param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
            id.set_traffic_class(connect.param.traffic_class);
        }
        id.resolve_address(connect.src, connect.dst, FIRST_LOOK_MILLIS)
            .map_err(|err| {
                // The manager says of a device that goes what it says of an address of no device.
                let closed = self.progress.lock().closed;
                closed.unwrap_or_else(|| Stage::AddrQuery.explain(err))
            })
    }

    /// Waits until the attempt is over. Sleeps. Returns its error if it failed, [`enotconn`] for a
    /// request that was not accepted, [`etime`] when the time runs out, and [`EINTR`] when a signal
    /// arrives.
    pub(crate) fn wait(&self, deadline: &Deadline) -> Result {
        let mut progress = self.progress.lock();
        loop {
            if let Some(err) = progress.closed {
                return Err(err);
            }
            match progress.stage {
                Stage::Requested => return Err(enotconn()),
                stage if stage.is_attempt() => (),
                // The peer may have ended it since: that is another event.
                _ => return progress.failure.map_or(Ok(()), Err),
            }
            if !deadline.wait(&self.changed, &mut progress)? {
                return Err(etime());
            }
        }
    }

    /// Resolves the link-layer address of the peer once more. Sleeps.
    ///
    /// The resolver (`rdma_resolve_ip()`) looks at the neighbour entry, and then queues its request
    /// for the neighbour's answer. It finds an answer that arrives between the two only when its
    /// time is over. So there are several attempts, and the first one is short. The handler cannot
    /// begin one: `rdma_resolve_addr()` would wait for it to return.
    fn resolve_again(&self, id: &cm::OwnedId<Self>) -> Result {
        let mut progress = self.progress.lock();
        let ConnectParams { src, dst, .. } = *progress.connect.as_ref().ok_or(EINVAL)?;
        let millis = progress.look_millis.saturating_mul(2);
        if millis > ADDRESS_MILLIS {
            return Err(ETIMEDOUT);
        }
        progress.look_millis = millis;
        progress.failure = None;
        drop(progress);
        id.resolve_address(src, dst, millis)
    }

    /// Brings the queue pair to RTS after the peer has accepted, and tells the peer. Sleeps.
    fn establish(&self, id: &cm::OwnedId<Self>) -> Result {
        let progress = self.progress.lock();
        let param = progress.connect.as_ref().ok_or(EINVAL)?.param;
        let qp = (progress.qp.as_ref().map(Claim::object)).ok_or_else(econnreset)?;
        drop(progress);
        let agreed = bring_up(id, &qp, &param).inspect_err(|_| {
            // Without this the peer would wait until the connection is destroyed.
            let _ = id.lock().reject(cm::REJECT_CONSUMER, &[]);
        })?;
        let id = id.lock();
        let mut progress = self.progress.lock();
        if progress.closed.is_some() {
            // The thread that closed the connection ends it.
            return Ok(());
        }
        // The peer may have gone since.
        progress.failure.map_or(Ok(()), Err)?;
        progress.outcome.param = agreed;
        drop(progress);
        // The manager knows before its handler does that the peer has gone.
        id.establish()
            .map_err(|err| if err == EINVAL { econnreset() } else { err })?;
        self.established(&mut self.progress.lock(), &id);
        Ok(())
    }

    /// Ends the attempt with `err`: gives the queue pair and the identifier back. Returns the errno of
    /// the ABI. Sleeps. The caller holds no lock that the handler takes.
    fn give_up(&self, id: &mut Option<cm::OwnedId<Self>>, err: Error) -> Error {
        let mut progress = self.progress.lock();
        // No event moves a failed attempt to another stage.
        // A failure that the event handler noted came first.
        let err = progress.stage.explain(progress.failure.unwrap_or(err));
        progress.failure = Some(err);
        let claim = progress.qp.take();
        drop(progress);
        if let Some(claim) = claim {
            claim.give_back();
        }
        // Not dropped under the lock of the progress: waits for the handler.
        *id = None;
        let mut progress = self.progress.lock();
        if progress.stage != Stage::Gone {
            progress.stage = Stage::Failed;
        }
        drop(progress);
        self.changed.notify_all();
        err
    }

    /// Starts to accept the request with the queue pair of `claim`, in RESET or INIT. Sleeps.
    ///
    /// Returns [`eisconn`] when it is a connection already or becomes one, [`enotconn`] when it was
    /// one, and [`econnreset`] when the peer has gone: then it has failed. After any other error
    /// before the answer is sent, the request still waits.
    pub(crate) fn accept(
        &self,
        claim: Claim,
        param: &abi::ConnParam,
        private_data: &[u8],
        user_data: u64,
    ) -> Result {
        let mut place = self.id.lock();
        let qp = claim.object();
        let param = self.take_request(claim, param)?;
        self.user_data.store(user_data, Relaxed);
        let id = place.as_ref().ok_or_else(econnreset);
        let agreed = match id.and_then(|id| bring_up(id, &qp, &param)) {
            Ok(agreed) => agreed,
            Err(err) if err == econnreset() => return Err(self.end_accept(&mut place, err)),
            Err(err) => {
                self.leave_request();
                return Err(err);
            }
        };
        self.progress.lock().outcome.param = agreed;
        let parameters = cm::Parameters {
            responder_resources: agreed.responder_resources,
            initiator_depth: agreed.initiator_depth,
            ..message(&param, qp.number())
        };
        let answered = (place.as_ref().ok_or_else(econnreset))
            .and_then(|id| id.lock().accept(&parameters, private_data));
        answered.map_err(|err| self.end_accept(&mut place, err))
    }

    /// Ends an attempt to accept with `err`: gives the queue pair and the identifier back. Returns the
    /// errno of the ABI. Sleeps.
    fn end_accept(&self, id: &mut Option<cm::OwnedId<Self>>, err: Error) -> Error {
        let err = Stage::Accepting.explain(err);
        if err == econnreset() {
            // As if the handler had heard before this call that the sender has gone.
            self.user_data.store(0, Relaxed);
            self.progress.lock().stage = Stage::Gone;
        }
        self.give_up(id, err)
    }

    /// Moves the request to [`Stage::Accepting`]; returns `param`, limited to what the peer asks
    /// for.
    fn take_request(&self, claim: Claim, param: &abi::ConnParam) -> Result<abi::ConnParam> {
        let mut progress = self.progress.lock();
        if let Some(err) = progress.closed {
            return Err(err);
        }
        match progress.stage {
            Stage::Requested => (),
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            Stage::Gone | Stage::Failed => return Err(progress.failure.unwrap_or_else(econnreset)),
            _ => return Err(enotconn()),
        }
        let param = limit(param, &progress.outcome.param)?;
        progress.stage = Stage::Accepting;
        progress.qp = Some(claim);
        Ok(param)
    }

    /// Undoes [`Self::take_request`], and what was done to the queue pair since. Sleeps.
    fn leave_request(&self) {
        self.user_data.store(0, Relaxed);
        let claim = self.progress.lock().qp.take();
        if let Some(claim) = claim {
            claim.give_back();
        }
        let mut progress = self.progress.lock();
        progress.stage = match progress.failure {
            None => Stage::Requested,
            Some(_) => Stage::Gone,
        };
        drop(progress);
        // CONN_WAIT may have seen the attempt.
        self.changed.notify_all();
    }

    /// Rejects the request. Sleeps.
    ///
    /// Returns [`eisconn`] when it was accepted, and [`enotconn`] when it is over.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        let id = self.id.lock();
        let id = id.as_ref().map(|id| id.lock());
        let mut progress = self.progress.lock();
        match progress.stage {
            // A requester that has gone is not told.
            Stage::Requested | Stage::Gone => progress.stage = Stage::Ended,
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            _ => return Err(enotconn()),
        }
        progress.failure = Some(enotconn());
        drop(progress);
        if let Some(id) = &id {
            // Fails when the peer has gone, and without memory for the message. Then the manager has
            // forgotten the request (`cm_send_rej_locked()`): the peer repeats it, as a new one.
            let _ = id.reject(cm::REJECT_CONSUMER, private_data);
        }
        Ok(())
    }

    /// Ends the connection, and moves its queue pair to ERR. Sleeps. Returns [`enotconn`] when it
    /// is not established.
    pub(crate) fn disconnect(&self) -> Result {
        let id = self.id.lock();
        let id = id.as_ref().ok_or_else(enotconn)?.lock();
        let mut progress = self.progress.lock();
        if progress.stage != Stage::Established {
            return Err(enotconn());
        }
        self.note_end(&mut progress, false);
        drop(progress);
        // Fails when the peer has disconnected already.
        let _ = id.disconnect();
        Ok(())
    }

    /// Returns the peer's answer and the negotiated parameters.
    pub(crate) fn outcome(&self) -> Outcome {
        self.progress.lock().outcome
    }

    /// Returns the value that the caller of CONNECT or ACCEPT gave it; 0 for a request.
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data.load(Relaxed)
    }

    /// Returns its state, `CONN_*`, and the handle of its queue pair or 0; [`None`] while another
    /// thread changes them, which may wait for the driver.
    pub(crate) fn try_state(&self) -> Option<(u32, u32)> {
        Some(self.progress.try_lock()?.state())
    }

    /// Returns its state, `CONN_*`, the handle of its queue pair or 0, and what [`Self::outcome`]
    /// returns, of one moment. Sleeps.
    pub(crate) fn look(&self) -> (u32, u32, Outcome) {
        let progress = self.progress.lock();
        let (state, qp) = progress.state();
        (state, qp, progress.outcome)
    }
}
