// SPDX-License-Identifier: GPL-2.0

//! Connections of a file.
//!
//! A connection owns an identifier of the connection manager, and its stage. It begins with
//! CONNECT, or as a request that a listener received and ACCEPT takes. The commands run in the
//! caller's context, one step after the other. The handler runs in process context with the
//! manager's handler mutex held: it stores the event, wakes the command that waits, and moves the
//! queue pair to ERR when the peer has ended the connection.
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
    events::FileEvents,
    kernel::{
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
        qp_attr::{
            mask,
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

/// The longest time to resolve a link-layer address: the kernel asks a neighbour three times, a
/// second apart.
const ADDRESS_MILLIS: u32 = 4000;
/// The longest time of the first attempt; each further attempt takes twice as long as the last one.
const FIRST_LOOK_MILLIS: u32 = 10;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// CONNECT has begun.
    Begun,
    /// The peer's address is resolved.
    AddrResolved,
    /// The route to the peer is resolved.
    RouteResolved,
    /// The peer has accepted.
    ConnectResponse,
    /// It is a request that was not answered.
    Requested,
    /// ACCEPT has begun.
    Accepting,
    /// Both ends have established it.
    Established,
    /// It was established and has ended, or a request whose answer failed.
    Ended,
    /// The timewait period is over.
    TimewaitExit,
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
}

impl Progress {
    fn fail(&mut self, err: Error) {
        self.failure.get_or_insert(err);
    }

    /// Notes that the manager has brought the queue pair to RTS, as it does on iWARP. Sleeps.
    fn come_up(&mut self, message: &cm::Message<'_>) {
        let Some(qp) = self.qp.as_ref().filter(|qp| qp.qp().is_iwarp()) else {
            return;
        };
        if self.stage == Stage::RouteResolved {
            self.private = PrivateData::new(message.private_data);
        }
        // This side answers the requests that the peer has outstanding, and the other way round.
        self.param.responder_resources = message.parameters.initiator_depth;
        self.param.initiator_depth = message.parameters.responder_resources;
        qp.qp().came_up(self.param.initiator_depth.into());
    }
}

/// The part of a connection that its handler and its commands share.
#[pin_data]
pub(crate) struct Shared {
    handle: Atomic<u32>,
    /// The value that the caller of CONNECT or ACCEPT gave the connection; 0 for a request.
    user_data: Atomic<u64>,
    #[pin]
    progress: Mutex<Progress>,
    #[pin]
    changed: CondVar,
    file: Arc<FileEvents>,
}

impl Shared {
    fn new(stage: Stage, file: Arc<FileEvents>) -> Result<Arc<Self>> {
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
        };
        Arc::pin_init(
            pin_init!(Self {
                handle: Atomic::new(0),
                user_data: Atomic::new(0),
                progress <- new_mutex!(progress, "rust_ulp::Connection::progress"),
                changed <- new_condvar!("rust_ulp::Connection::changed"),
                file,
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the shared part for a request that has just arrived.
    pub(crate) fn requested(request: &cm::Request<'_>, file: Arc<FileEvents>) -> Result<Arc<Self>> {
        let this = Self::new(Stage::Requested, file)?;
        let message = request.message();
        let parameters = message.parameters;
        let mut progress = this.progress.lock();
        progress.peer = parameters;
        progress.private = PrivateData::new(message.private_data);
        progress.addresses = request.id().addresses();
        progress.param = abi::ConnParam {
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
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

impl cm::Handler for Shared {
    fn event(&self, id: &cm::LockedId<'_>, event: &cm::Event<'_>) {
        let handle = self.handle.load(Relaxed);
        trace::cm_event(handle, event.number(), event.status());
        let mut progress = self.progress.lock();
        let mut raised = None;
        match (event, progress.stage) {
            (cm::Event::AddressResolved, Stage::Begun) => progress.stage = Stage::AddrResolved,
            (cm::Event::RouteResolved, Stage::AddrResolved) => {
                progress.stage = Stage::RouteResolved
            }
            (cm::Event::Response(message), Stage::RouteResolved) => {
                progress.peer = message.parameters;
                progress.private = PrivateData::new(message.private_data);
                progress.stage = Stage::ConnectResponse;
            }
            // At the requester's end only on iWARP.
            (cm::Event::Established(message), Stage::RouteResolved | Stage::Accepting) => {
                progress.come_up(message);
                progress.stage = Stage::Established;
            }
            (
                cm::Event::Disconnected | cm::Event::Rejected { .. },
                Stage::Established, //
            ) => {
                self.end(&mut progress, true);
                // Fails when the event was no disconnect request, which needs no answer.
                let _ = id.disconnect();
                raised = Some(abi::EVENT_DISCONNECTED);
            }
            (
                cm::Event::Disconnected | cm::Event::Rejected { .. },
                Stage::Requested | Stage::Accepting,
            ) => progress.fail(econnreset()),
            (cm::Event::Rejected { .. }, Stage::Ended | Stage::TimewaitExit) => (),
            (
                cm::Event::Rejected {
                    reason,
                    private_data,
                },
                _,
            ) => {
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
                raised = Some(abi::EVENT_UNREACHABLE);
            }
            (cm::Event::Unreachable(_), _) => progress.fail(ETIMEDOUT),
            (cm::Event::TimewaitExit, Stage::Ended) => {
                progress.stage = Stage::TimewaitExit;
                raised = Some(abi::EVENT_TIMEWAIT_EXIT);
            }
            (cm::Event::AddressChange, _) => raised = Some(abi::EVENT_ADDR_CHANGE),
            // Another device than the file's is removed: when the file's own device is, this module
            // has dropped its identifiers before. CONNECT gives up the route when it wakes.
            (cm::Event::DeviceRemoval, _) => progress.fail(ehostunreach()),
            _ => (),
        }
        drop(progress);
        self.changed.notify_all();
        if let Some(event) = raised.filter(|_| handle != 0) {
            let user_data = self.user_data.load(Relaxed);
            self.file.raise(event, handle, user_data, 0);
        }
    }
}

/// Returns the part of `param` that an iWARP connection has.
fn of_streams(param: &abi::ConnParam) -> abi::ConnParam {
    abi::ConnParam {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        access_flags: param.access_flags,
        ..Default::default()
    }
}

/// The parameters of CONNECT.
pub(crate) struct ConnectParams<'a> {
    pub(crate) dst: SocketAddr,
    pub(crate) src: Option<SocketAddr>,
    pub(crate) param: abi::ConnParam,
    pub(crate) private_data: &'a [u8],
    /// The number of the file's device.
    pub(crate) device: u32,
}

/// The times at which steps of CONNECT ended, in microseconds from its start.
pub(crate) struct ConnectTimes {
    /// The start, of [`now_ns`].
    start: u64,
    pub(crate) resolve: u32,
    pub(crate) route: u32,
    pub(crate) connect: u32,
}

impl ConnectTimes {
    /// Makes the times of a CONNECT that starts now.
    pub(crate) fn new() -> Self {
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
}

/// A connection of a file, or a request for one.
pub(crate) struct Connection {
    // Before the part that its handler uses.
    id: cm::OwnedId<Shared>,
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
        let shared = Shared::new(Stage::Begun, file)?;
        shared.user_data.store(user_data, Relaxed);
        shared.progress.lock().qp = Some(claim);
        let id = cm::OwnedId::connection(net, device, shared.clone())?;
        Ok(Arc::new(Self { id, shared }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Makes a connection of a request, whose identifier has `shared` as its handler.
    pub(crate) fn of_request(id: cm::OwnedId<Shared>, shared: Arc<Shared>) -> Self {
        Self { id, shared }
    }

    /// Sets its handle, for events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.shared.handle.store(handle, Relaxed);
    }

    /// Wakes the threads that wait for it, with `err`.
    pub(crate) fn close(&self, err: Error) {
        self.shared.progress.lock().closed.get_or_insert(err);
        self.shared.changed.notify_all();
    }

    /// Returns whether it is a request whose sender has gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.shared.progress.lock().failure.is_some()
    }

    /// Waits until it has left stage `from`. Sleeps.
    fn pass(&self, from: Stage, deadline: &Deadline) -> Result {
        let mut progress = self.shared.progress.lock();
        loop {
            if let Some(err) = progress.closed.or(progress.failure) {
                return Err(err);
            }
            if progress.stage != from {
                return Ok(());
            }
            if !deadline.wait(&self.shared.changed, &mut progress)? {
                return Err(etime());
            }
        }
    }

    /// Connects `qp`, in RESET or INIT, which this connection has claimed. Sleeps.
    ///
    /// When it fails, the connection is to be dropped. The queue pair is in the state that it was
    /// in, except that from beyond INIT it goes back to RESET, and on iWARP to ERR.
    pub(crate) fn connect(
        &self,
        qp: &QpObject,
        params: &ConnectParams<'_>,
        deadline: &Deadline,
        times: &mut ConnectTimes,
    ) -> Result {
        if params.param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
            self.id.set_traffic_class(params.param.traffic_class);
        }
        self.set_timers(&params.param)?;
        self.resolve(params, deadline, times)?;
        self.request(qp, params)?;
        let answered = self.pass(Stage::RouteResolved, deadline);
        if qp.qp().is_iwarp() {
            answered
                .and_then(|()| self.came_up())
                .inspect_err(|_| self.give_up(qp))?;
            times.connect = times.elapsed();
            return Ok(());
        }
        answered?;
        times.connect = times.elapsed();
        let from = qp.qp().state();
        self.establish(qp, &params.param)
            .inspect_err(|_| self.take_back(qp, from))
    }

    /// Resolves the address of the peer, and the route to it. Sleeps.
    fn resolve(
        &self,
        params: &ConnectParams<'_>,
        deadline: &Deadline,
        times: &mut ConnectTimes,
    ) -> Result {
        self.resolve_address(params, deadline)
            .map_err(|err| match err {
                // The address is not one of a device. A device that goes has closed the gate.
                err if err == ENODEV && !self.is_closed() => eaddrnotavail(),
                err if err == ETIMEDOUT => ehostunreach(),
                err => err,
            })?;
        times.resolve = times.elapsed();
        if self.id.device_index() != Some(params.device) {
            return Err(EXDEV);
        }
        self.id
            .resolve_route(deadline.millis().ok_or_else(etime)?)
            .and_then(|()| self.pass(Stage::AddrResolved, deadline))
            .map_err(|err| match err {
                err if err == ENODEV && !self.is_closed() => ehostunreach(),
                err => err,
            })?;
        times.route = times.elapsed();
        Ok(())
    }

    /// Sends the connection request. Sleeps.
    fn request(&self, qp: &QpObject, params: &ConnectParams<'_>) -> Result {
        let param = &params.param;
        let id = self.id.lock();
        if param.path_mtu != 0 {
            id.limit_mtu(param.path_mtu);
        }
        let parameters = cm::Parameters {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
            retry_count: param.retry_cnt,
            rnr_retry_count: param.rnr_retry,
            qp_num: qp.number(),
        };
        if qp.qp().is_iwarp() {
            qp.qp().prepare(param.access_flags)?;
            self.shared.progress.lock().param = of_streams(param);
        }
        id.connect(&parameters, params.private_data)
    }

    /// Brings `qp` to RTS after the peer has accepted, and tells the peer. Sleeps.
    fn establish(&self, qp: &QpObject, param: &abi::ConnParam) -> Result {
        let agreed = self.bring_up(qp, param)?;
        let id = self.id.lock();
        let mut progress = self.shared.progress.lock();
        // The peer may have gone since.
        if let Some(err) = progress.closed.or(progress.failure) {
            return Err(err);
        }
        progress.param = agreed;
        progress.addresses = id.addresses();
        drop(progress);
        id.establish()?;
        self.shared.progress.lock().stage = Stage::Established;
        Ok(())
    }

    /// Ends [`Self::connect`] on iWARP, where the manager has connected the queue pair.
    fn came_up(&self) -> Result {
        let id = self.id.lock();
        let mut progress = self.shared.progress.lock();
        // The peer may have gone since.
        if let Some(err) = progress.closed.or(progress.failure) {
            return Err(err);
        }
        if progress.stage != Stage::Established {
            return Err(econnreset());
        }
        progress.addresses = id.addresses();
        Ok(())
    }

    /// Moves `qp`, of iWARP, to ERR. Sleeps.
    fn give_up(&self, qp: &QpObject) {
        // When the driver refuses, the queue pair is as bad as it can be.
        let _ = qp.move_to(State::Err);
    }

    /// Resolves the link-layer address of the peer. Sleeps.
    ///
    /// The resolver (`rdma_resolve_ip()`) looks at the neighbour entry, and then queues its request
    /// for the neighbour's answer. It finds an answer that arrives between the two only when its
    /// time is over. So there are several attempts, and the first one is short.
    fn resolve_address(&self, params: &ConnectParams<'_>, deadline: &Deadline) -> Result {
        let mut millis = FIRST_LOOK_MILLIS;
        let mut spent = 0u32;
        loop {
            let now = millis.min(deadline.millis().ok_or_else(etime)?);
            let result = self
                .id
                .resolve_address(params.src, params.dst, now)
                .and_then(|()| self.pass(Stage::Begun, deadline));
            spent = spent.saturating_add(now);
            if result != Err(ETIMEDOUT) || spent >= ADDRESS_MILLIS {
                return result;
            }
            let mut progress = self.shared.progress.lock();
            if progress.failure == Some(ETIMEDOUT) {
                progress.failure = None;
            }
            drop(progress);
            millis = millis.saturating_mul(2);
        }
    }

    fn is_closed(&self) -> bool {
        self.shared.progress.lock().closed.is_some()
    }

    fn set_timers(&self, param: &abi::ConnParam) -> Result {
        if param.ack_timeout != 0 {
            self.id.set_ack_timeout(param.ack_timeout)?;
        }
        self.id.set_min_rnr_timer(param.min_rnr_timer)
    }

    /// Brings `qp` to RTS with the manager's attributes and `param`; returns the negotiated
    /// parameters. Sleeps.
    fn bring_up(&self, qp: &QpObject, param: &abi::ConnParam) -> Result<abi::ConnParam> {
        const KNOWN: u32 = mask::STATE
            | mask::ACCESS_FLAGS
            | mask::PKEY_INDEX
            | mask::PORT
            | mask::AV
            | mask::PATH_MTU
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::RQ_PSN
            | mask::MAX_QP_RD_ATOMIC
            | mask::MIN_RNR_TIMER
            | mask::SQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::DEST_QPN;
        let mut agreed = *param;
        for state in [State::Init, State::Rtr, State::Rts] {
            // The other attributes are of alternate paths, which are not supported.
            let known = self.id.lock().qp_attributes(state);
            // The manager knows before its handler does that the peer has gone.
            let (mut attributes, mask) =
                known.map_err(|err| if err == EINVAL { econnreset() } else { err })?;
            match state {
                State::Init => attributes.access_flags = param.access_flags,
                State::Rtr => {
                    if param.path_mtu != 0 {
                        attributes.path_mtu = attributes.path_mtu.min(param.path_mtu.into());
                    }
                    if param.flags & abi::CONN_TRAFFIC_CLASS != 0 {
                        attributes.av.traffic_class = param.traffic_class;
                    }
                    // A peer may answer with more than the request asked for and the device
                    // supports.
                    attributes.max_dest_rd_atomic =
                        attributes.max_dest_rd_atomic.min(param.responder_resources);
                    agreed.responder_resources = attributes.max_dest_rd_atomic;
                    agreed.path_mtu = attributes.path_mtu as u8;
                    agreed.traffic_class = attributes.av.traffic_class;
                    agreed.min_rnr_timer = attributes.min_rnr_timer;
                }
                _ => {
                    attributes.max_rd_atomic = attributes.max_rd_atomic.min(param.initiator_depth);
                    agreed.initiator_depth = attributes.max_rd_atomic;
                    agreed.retry_cnt = attributes.retry_cnt;
                    agreed.rnr_retry = attributes.rnr_retry;
                    agreed.ack_timeout = attributes.timeout;
                }
            }
            qp.modify(&attributes, mask & KNOWN)?;
        }
        Ok(agreed)
    }

    /// Undoes [`Self::bring_up`]. Sleeps.
    fn take_back(&self, qp: &QpObject, from: State) {
        if qp.qp().state() != from {
            // When the driver refuses, the queue pair is as bad as it can be.
            let _ = qp.move_to(State::Reset);
        }
    }

    /// Accepts the request with the queue pair of `claim`, which is `qp`, in RESET or INIT. Sleeps.
    ///
    /// After an outer error nothing has changed: [`eisconn`] when it is a connection already or
    /// becomes one, [`enotconn`] when it was one. After an inner error the request is to be
    /// dropped, which rejects it: [`econnreset`] when the peer has gone.
    pub(crate) fn accept(
        &self,
        claim: Claim,
        qp: &QpObject,
        param: &abi::ConnParam,
        private_data: &[u8],
        user_data: u64,
        deadline: &Deadline,
    ) -> Result<Result> {
        let mut progress = self.shared.progress.lock();
        match progress.stage {
            Stage::Requested => (),
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            _ => return Err(enotconn()),
        }
        if let Some(err) = progress.closed {
            return Err(err);
        }
        if let Some(err) = progress.failure {
            return Ok(Err(err));
        }
        if param.path_mtu != 0 && param.path_mtu < progress.param.path_mtu {
            // The peer would not learn of it, and would send longer packets.
            return Err(ERANGE);
        }
        let asked = progress.param;
        progress.stage = Stage::Accepting;
        self.shared.user_data.store(user_data, Relaxed);
        progress.qp = Some(claim);
        drop(progress);

        let from = qp.qp().state();
        let param = abi::ConnParam {
            responder_resources: param.responder_resources.min(asked.responder_resources),
            initiator_depth: param.initiator_depth.min(asked.initiator_depth),
            ..*param
        };
        let result = if qp.qp().is_iwarp() {
            let agreed = of_streams(&param);
            qp.qp().prepare(param.access_flags).map(|()| agreed)
        } else {
            self.set_timers(&param)
                .and_then(|()| self.bring_up(qp, &param))
        };
        let agreed = match result {
            Ok(agreed) => agreed,
            Err(err) => {
                self.take_back(qp, from);
                let mut progress = self.shared.progress.lock();
                let spent = err == econnreset();
                progress.stage = if spent {
                    Stage::Ended
                } else {
                    Stage::Requested
                };
                self.shared.user_data.store(0, Relaxed);
                let claim = progress.qp.take();
                drop(progress);
                drop(claim);
                return if spent { Ok(Err(err)) } else { Err(err) };
            }
        };
        self.shared.progress.lock().param = agreed;

        let parameters = cm::Parameters {
            responder_resources: agreed.responder_resources,
            initiator_depth: agreed.initiator_depth,
            flow_control: param.flags & abi::CONN_FLOW_CONTROL != 0,
            retry_count: 0,
            rnr_retry_count: param.rnr_retry,
            qp_num: qp.number(),
        };
        // Not held while waiting: the handler takes it.
        let id = self.id.lock();
        let answered = id.accept(&parameters, private_data);
        drop(id);
        let result = answered
            // The manager's error when the requester has gone.
            .map_err(|err| if err == EINVAL { econnreset() } else { err })
            .and_then(|()| self.pass(Stage::Accepting, deadline));
        let Err(err) = result else {
            return Ok(Ok(()));
        };
        let mut progress = self.shared.progress.lock();
        if progress.stage == Stage::Established && progress.closed.is_none() {
            // The peer has answered at the last moment.
            return Ok(Ok(()));
        }
        // No rejection here: the manager would go on sending its answer, and wait for that when the
        // identifier is dropped. Dropping the identifier stops the answer.
        progress.stage = Stage::Ended;
        let claim = progress.qp.take();
        drop(progress);
        if qp.qp().is_iwarp() {
            self.give_up(qp);
        } else {
            self.take_back(qp, from);
        }
        drop(claim);
        Ok(Err(err))
    }

    /// Rejects the request. Sleeps.
    ///
    /// Returns [`eisconn`] when it was accepted, [`enotconn`] when it is over, and [`ENOMEM`] when
    /// the message could not be sent for want of memory: then the request waits on.
    pub(crate) fn reject(&self, private_data: &[u8]) -> Result {
        let id = self.id.lock();
        let mut progress = self.shared.progress.lock();
        match progress.stage {
            Stage::Requested => progress.stage = Stage::Ended,
            Stage::Accepting | Stage::Established => return Err(eisconn()),
            _ => return Err(enotconn()),
        }
        drop(progress);
        if id.reject(cm::REJECT_CONSUMER, private_data) == Err(ENOMEM) {
            self.shared.progress.lock().stage = Stage::Requested;
            return Err(ENOMEM);
        }
        // Any other failure says that the peer has gone already.
        Ok(())
    }

    /// Ends the connection; its queue pair goes to ERR. Sleeps. [`enotconn`].
    pub(crate) fn disconnect(&self) -> Result {
        let id = self.id.lock();
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
            Stage::Established => abi::CONN_ESTABLISHED,
            Stage::Ended => abi::CONN_DISCONNECTED,
            Stage::TimewaitExit => abi::CONN_TIMEWAIT_OVER,
            _ => abi::CONN_REQUESTED,
        };
        (state, progress.qp.as_ref().map_or(0, |qp| qp.handle()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The manager tells the peer when the identifier is dropped.
        let mut progress = self.shared.progress.lock();
        if progress.stage == Stage::Established {
            self.shared.end(&mut progress, false);
        }
    }
}
