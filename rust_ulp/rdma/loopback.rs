// SPDX-License-Identifier: GPL-2.0

//! Two queue pairs that are connected to each other, on iWARP.
//!
//! An iWARP queue pair reaches RTS only by a connection, which is a TCP stream. When one is needed
//! before there is a peer, the device connects to itself: a listener on one of its addresses, an
//! identifier that connects to the listener, and the identifier of the resulting request. The
//! request carries a secret, so that the listener turns others away.
//!
//! The handlers note what happened, and wake the task that makes the pair. They run with handler
//! mutexes of the connection manager held, and take `LoopbackConn::progress` under those.

use super::{
    cm,
    pd::Pd,
    qp::Qp,
    request::WrHandler, //
};
use crate::kernel::{
    errno::{
        eaddrinuse,
        eaddrnotavail,
        econnrefused,
        econnreset, //
    },
    fault,
    net::NetNs,
    timer::now_ns, //
};
use core::net::{
    IpAddr,
    SocketAddr, //
};
use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::msecs_to_jiffies, //
};

/// The time that making a pair may take.
const TIMEOUT_MILLIS: u64 = 10_000;
/// The number of ports that are tried: the manager does not know which ports TCP gave to others.
const PORTS: u32 = 8;
/// The limit of waiting requests: those of others, and the one of the pair.
const BACKLOG: u32 = 8;

/// The steps of a connection.
mod step {
    pub(super) const ADDRESS: u32 = 1 << 0;
    pub(super) const ROUTE: u32 = 1 << 1;
    pub(super) const REQUEST: u32 = 1 << 2;
    /// The requesting end is connected.
    pub(super) const NEAR: u32 = 1 << 3;
    /// The listening end is connected.
    pub(super) const FAR: u32 = 1 << 4;
}

struct Progress {
    /// The [`step`]s that have happened.
    steps: u32,
    /// The request that arrived, until it is taken.
    request: Option<cm::OwnedId<LoopbackId>>,
    /// Why the connection failed or ended.
    failure: Option<Error>,
}

/// A function that gets each event of the identifiers of pairs. Process context, handler mutex
/// held.
///
/// ```
/// const LOG: Observer = |event| pr_info!("event {}\n", event.number());
/// ```
pub(crate) type Observer = fn(&cm::Event<'_>);

/// The state of a connection, which its handlers share with the task that makes the pair.
#[pin_data]
struct LoopbackConn {
    observe: Observer,
    secret: [u8; 16],
    /// Lock order: after the handler mutex of an identifier.
    #[pin]
    progress: Mutex<Progress>,
    #[pin]
    changed: CondVar,
}

impl LoopbackConn {
    fn new(observe: Observer) -> Result<Arc<Self>> {
        let mut secret = [0; 16];
        for half in secret.chunks_mut(8) {
            // SAFETY: The helper has no argument.
            let number = unsafe { kernel::bindings::get_random_u64() };
            for (to, from) in half.iter_mut().zip(number.to_ne_bytes()) {
                *to = from;
            }
        }
        let progress = Progress {
            steps: 0,
            request: None,
            failure: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                observe,
                secret,
                progress <- new_mutex!(progress, "rdma::loopback::LoopbackConn::progress"),
                changed <- new_condvar!("rdma::loopback::LoopbackConn::changed"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn reach(&self, step: u32) {
        self.progress.lock().steps |= step;
        self.changed.notify_all();
    }

    fn fail(&self, err: Error) {
        self.progress.lock().failure.get_or_insert(err);
        self.changed.notify_all();
    }

    /// Rejects the request that has arrived, and those that will. Sleeps.
    fn give_up(&self, err: Error) {
        let mut progress = self.progress.lock();
        progress.failure.get_or_insert(err);
        let request = progress.request.take();
        drop(progress);
        drop(request);
    }

    /// Waits until all of `steps` have happened, but not after `until`, in the time of [`now_ns`].
    /// Sleeps.
    ///
    /// Fails with [`ETIMEDOUT`], with [`EINTR`] when a signal arrives, and with the error of the
    /// connection.
    fn wait(&self, steps: u32, until: u64) -> Result {
        let mut progress = self.progress.lock();
        loop {
            if let Some(err) = progress.failure {
                return Err(err);
            }
            if progress.steps & steps == steps {
                return Ok(());
            }
            let millis = until.saturating_sub(now_ns()).div_ceil(1_000_000);
            if millis == 0 {
                return Err(ETIMEDOUT);
            }
            let jiffies = msecs_to_jiffies(u32::try_from(millis).unwrap_or(u32::MAX)).max(1);
            if let CondVarTimeoutResult::Signal { .. } = self
                .changed
                .wait_interruptible_timeout(&mut progress, jiffies)
            {
                return Err(EINTR);
            }
        }
    }
}

/// The owner of an identifier at one end.
struct LoopbackId {
    conn: Arc<LoopbackConn>,
    /// The step when this end is connected: [`step::NEAR`] or [`step::FAR`].
    connected: u32,
}

impl cm::Handler for LoopbackId {
    fn event(&self, _id: &cm::LockedId<'_>, event: &cm::Event<'_>) {
        (self.conn.observe)(event);
        match event {
            cm::Event::AddressResolved => self.conn.reach(step::ADDRESS),
            cm::Event::RouteResolved => self.conn.reach(step::ROUTE),
            cm::Event::Established(_) => self.conn.reach(self.connected),
            cm::Event::AddressError(err)
            | cm::Event::RouteError(err)
            | cm::Event::ConnectError(err)
            | cm::Event::Unreachable(err) => self.conn.fail(*err),
            cm::Event::Rejected { .. } => self.conn.fail(econnrefused()),
            cm::Event::Disconnected | cm::Event::DeviceRemoval => self.conn.fail(econnreset()),
            _ => (),
        }
    }
}

/// The owner of the listener.
struct LoopbackListener(Arc<LoopbackConn>);

impl cm::Listener for LoopbackListener {
    fn request(&self, request: cm::Request<'_>) {
        let conn = &self.0;
        if !request.message().private_data.starts_with(&conn.secret) {
            // A request of another peer. The manager rejects it, since it is not kept.
            return;
        }
        let owner = Arc::new(
            LoopbackId {
                conn: conn.clone(),
                connected: step::FAR,
            },
            GFP_KERNEL_ACCOUNT,
        );
        let prepared = owner.map_err(Error::from).and_then(cm::Prepared::new);
        let mut progress = conn.progress.lock();
        match prepared {
            // The request arrives once.
            Ok(prepared) if progress.request.is_none() && progress.failure.is_none() => {
                progress.request = Some(request.keep(prepared));
                progress.steps |= step::REQUEST;
            }
            Ok(_) => (),
            Err(err) => {
                progress.failure.get_or_insert(err);
            }
        }
        drop(progress);
        conn.changed.notify_all();
    }

    fn event(&self, event: &cm::Event<'_>) {
        (self.0.observe)(event);
    }
}

/// Makes pairs, one at a time, until it is closed.
///
/// ```
/// # use crate::kernel::net::NetNs;
/// fn new_fast_reg(device: &device::Device, net: &NetNs) -> Result<Arc<fast_reg::FastRegQp>> {
///     let connector = Arc::pin_init(LoopbackConnector::new(|_event| ()), GFP_KERNEL)?;
///     fast_reg::FastRegQp::new(pd::Pd::new(device)?, &connector, net)
/// }
/// ```
#[pin_data]
pub(crate) struct LoopbackConnector {
    observe: Observer,
    /// Lock order: before the handler mutexes of identifiers.
    #[pin]
    state: Mutex<ConnectorState>,
}

struct ConnectorState {
    closed: Option<Error>,
    conn: Option<Arc<LoopbackConn>>,
}

impl LoopbackConnector {
    /// Creates a connector. `observe` gets the events of its connections.
    pub(crate) fn new(observe: Observer) -> impl PinInit<Self> {
        let state = ConnectorState {
            closed: None,
            conn: None,
        };
        pin_init!(Self {
            observe,
            state <- new_mutex!(state, "rdma::loopback::LoopbackConnector::state"),
        })
    }

    /// Fails the connection attempt in progress, and all later ones, with `err`. Sleeps.
    pub(crate) fn close(&self, err: Error) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(err);
        if let Some(conn) = &state.conn {
            conn.fail(err);
        }
    }

    fn begin(&self, conn: Arc<LoopbackConn>) -> Result {
        let mut state = self.state.lock();
        if let Some(err) = state.closed {
            return Err(err);
        }
        state.conn = Some(conn);
        Ok(())
    }

    fn end(&self) {
        let conn = self.state.lock().conn.take();
        drop(conn);
    }
}

/// The connection of two queue pairs with each other.
///
/// Dropping it ends the connection and moves the queue pairs to ERR. That sleeps.
pub(super) struct LoopbackPair {
    _near: cm::OwnedId<LoopbackId>,
    _far: cm::OwnedId<LoopbackId>,
    conn: Arc<LoopbackConn>,
}

impl LoopbackPair {
    /// Connects `near` with `far`, two new queue pairs of `pd`, by an address that the device has
    /// in `net`. Sleeps for at most [`TIMEOUT_MILLIS`], and as long again as a driver takes to give
    /// up.
    ///
    /// When it fails, the queue pairs are of no more use. It fails with [`eaddrnotavail`] when the
    /// device has no address in `net` or the current process is in another namespace, with
    /// [`EINTR`] when a signal arrives, with [`ETIMEDOUT`], and with the error of
    /// [`LoopbackConnector::close`].
    pub(super) fn new<H: WrHandler>(
        pd: &Pd,
        connector: &LoopbackConnector,
        net: &NetNs,
        near: &Qp<H>,
        far: &Qp<H>,
    ) -> Result<Self> {
        if !net.is_current() {
            // siw connects in the current one, see "iWARP" in docs/providers.md.
            return Err(eaddrnotavail());
        }
        let conn = LoopbackConn::new(connector.observe)?;
        connector.begin(conn.clone())?;
        let result = Self::connect(pd, net, &conn, near, far);
        connector.end();
        result
    }

    /// As [`Self::new`], with a connection that [`LoopbackConnector::close`] can fail.
    fn connect<H: WrHandler>(
        pd: &Pd,
        net: &NetNs,
        conn: &Arc<LoopbackConn>,
        near: &Qp<H>,
        far: &Qp<H>,
    ) -> Result<Self> {
        let until = now_ns().saturating_add(TIMEOUT_MILLIS.saturating_mul(1_000_000));
        let device = pd.device();
        let ip = (1..=device.attributes().phys_ports)
            .find_map(|port| device.port_addr(port, net))
            .ok_or_else(eaddrnotavail)?;
        let listener = Self::open(pd, net, ip, conn)?;
        let addr = listener.lock().addresses().0.ok_or(EINVAL)?;

        let owner = LoopbackId {
            conn: conn.clone(),
            connected: step::NEAR,
        };
        let id = cm::OwnedId::connection(net, device, Arc::new(owner, GFP_KERNEL_ACCOUNT)?)?;
        let millis = TIMEOUT_MILLIS as u32;
        id.resolve_address(Some(SocketAddr::new(ip, 0)), addr, millis)?;
        conn.wait(step::ADDRESS, until)?;
        id.resolve_route(millis)?;
        conn.wait(step::ROUTE, until)?;
        Self::check(pd, &id)?;
        let parameters = |qp: &Qp<H>| cm::Parameters {
            qp_num: qp.number(),
            ..Default::default()
        };
        near.prepare(0)?;
        far.prepare(0)?;
        id.lock().connect(&parameters(near), &conn.secret)?;

        // Dropping `id` waits for the answer to its request, so every request that arrives is
        // answered.
        let request = conn
            .wait(step::REQUEST, until)
            .and_then(|()| conn.progress.lock().request.take().ok_or(EINVAL))
            .inspect_err(|err| conn.give_up(*err))?;
        request.lock().accept(&parameters(far), &[])?;
        conn.wait(step::NEAR | step::FAR, until)?;
        near.set_established(0);
        far.set_established(0);
        Ok(Self {
            _near: id,
            _far: request,
            conn: conn.clone(),
        })
    }

    /// Listens on a port of `ip`. Sleeps.
    fn open(
        pd: &Pd,
        net: &NetNs,
        ip: IpAddr,
        conn: &Arc<LoopbackConn>,
    ) -> Result<cm::OwnedId<LoopbackListener>> {
        let mut result = Err(eaddrinuse());
        for _ in 0..PORTS {
            let owner = Arc::new(LoopbackListener(conn.clone()), GFP_KERNEL_ACCOUNT)?;
            let listener = cm::OwnedId::listener(net, pd.device(), SocketAddr::new(ip, 0), owner)?;
            Self::check(pd, &listener)?;
            result = listener.listen(BACKLOG).map(|()| listener);
            if !matches!(&result, Err(err) if *err == eaddrinuse()) {
                break;
            }
        }
        result
    }

    /// Checks that the manager chose the device of `pd`: another device may have the same address.
    fn check(pd: &Pd, id: &cm::Id) -> Result {
        fault::point()?;
        if id.device_index() == Some(pd.device().attributes().index) {
            Ok(())
        } else {
            Err(eaddrnotavail())
        }
    }

    /// Returns whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.conn.progress.lock().failure.is_some()
    }
}
