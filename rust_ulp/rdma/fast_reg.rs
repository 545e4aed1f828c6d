// SPDX-License-Identifier: GPL-2.0

//! The queue pair that registers the memory regions of a protection domain.
//!
//! A [`FastRegQp`] has a reliable queue pair of its own for REG_MR and LOCAL_INV requests. It is
//! connected to itself, so that memory can be registered before any other queue pair exists, and
//! without using the queues of others. On iWARP, which has no such connection, it has two queue
//! pairs that are connected to each other.

use super::{
    chain::{
        Chain,
        TargetRef, //
    },
    device::Device,
    loopback::{
        LoopbackConnector,
        LoopbackPair, //
    },
    mr::Register,
    path::LocalPath,
    pd::Pd,
    qp::Qp,
    qp_attr::{
        mask,
        random_psn,
        Attributes,
        State, //
    },
    waiter::{
        self,
        WaitHandler,
        Waiter, //
    }, //
};
use crate::{
    bindings,
    kernel::{
        errno::{
            eaddrnotavail,
            enodata,
            eopnotsupp, //
        },
        fault,
        net::NetNs, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Registers memory in a protection domain.
///
/// ```
/// fn new_fast_reg(device: &device::Device) -> Result<Arc<FastRegQp>> {
///     let net = crate::kernel::net::NetNs::current().ok_or(ESRCH)?;
///     FastRegQp::to_itself(pd::Pd::new(device)?, &net)
/// }
/// ```
///
/// # Invariants
///
/// `path` connects `qp`, or has connected it.
#[pin_data]
pub(crate) struct FastRegQp {
    // Dropped before the queue pair that it connects.
    path: RegPath,
    qp: Arc<Qp<WaitHandler>>,
    /// Held over a request: there is one at a time. Taken before `Qp::modifying`.
    #[pin]
    post_lock: Mutex<Chain<WaitHandler>>,
}

/// The peer of a registration queue pair.
enum RegPath {
    /// The queue pair itself.
    Itself(LocalPath),
    /// Another queue pair, on iWARP. It cannot be connected again.
    Other {
        pair: LoopbackPair,
        _qp: Arc<Qp<WaitHandler>>,
    },
}

impl FastRegQp {
    /// The number of times that a request is posted at most.
    const TRIES: u32 = 4;

    /// Returns the number of verbs objects that a registration queue pair of `device` is made of:
    /// queue pairs, each with a completion queue.
    pub(crate) fn objects(device: &Device) -> u32 {
        if device.is_iwarp() {
            4
        } else {
            2
        }
    }

    /// Creates the registration queue pair of `pd`. On iWARP `connector` connects it. Sleeps.
    ///
    /// On iWARP it takes as long as [`LoopbackPair::new`], and fails as that does. Otherwise it
    /// fails with
    ///
    /// - [`eopnotsupp`] when the device has no fast registration,
    /// - [`eaddrnotavail`] when no port of the device has an address yet.
    pub(crate) fn new(
        pd: Arc<Pd>,
        connector: &LoopbackConnector,
        net: &NetNs,
    ) -> Result<Arc<Self>> {
        if pd.device().is_iwarp() {
            Self::with_pair(pd, connector, net)
        } else {
            Self::to_itself(pd, net)
        }
    }

    /// As [`Self::new`] for devices other than iWARP; fails with [`eopnotsupp`] on iWARP. Sleeps.
    pub(crate) fn to_itself(pd: Arc<Pd>, net: &NetNs) -> Result<Arc<Self>> {
        if pd.device().is_iwarp() {
            return Err(eopnotsupp());
        }
        let qp = Self::queue_pair(&pd)?;
        let path = LocalPath::find(pd.device(), pd.device(), net)?;
        let this = Self::of(RegPath::Itself(path), qp)?;
        this.connect()?;
        Ok(this)
    }

    fn with_pair(pd: Arc<Pd>, connector: &LoopbackConnector, net: &NetNs) -> Result<Arc<Self>> {
        let (near, far) = (Self::queue_pair(&pd)?, Self::queue_pair(&pd)?);
        let pair = LoopbackPair::new(&pd, connector, net, &near, &far)?;
        Self::of(RegPath::Other { pair, _qp: far }, near)
    }

    fn of(path: RegPath, qp: Arc<Qp<WaitHandler>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                path,
                qp,
                post_lock <- new_mutex!(Chain::new(), "rdma::FastRegQp::post_lock"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn queue_pair(pd: &Arc<Pd>) -> Result<Arc<Qp<WaitHandler>>> {
        if pd.device().attributes().max_fast_reg_pages == 0 {
            return Err(eopnotsupp());
        }
        Qp::with_waiters(pd, 2, 0)
    }

    /// Returns whether it cannot register anything any more, and must be replaced.
    pub(crate) fn is_over(&self) -> bool {
        match &self.path {
            RegPath::Itself(_) => false,
            RegPath::Other { pair, .. } => pair.is_over() || self.qp.state() != State::Rts,
        }
    }

    /// Brings the queue pair from RESET to RTS, connected to itself. Sleeps.
    ///
    /// Fails with [`eaddrnotavail`] when the address was removed, and with [`EIO`] on iWARP.
    fn connect(&self) -> Result {
        let RegPath::Itself(path) = &self.path else {
            return Err(EIO);
        };
        // Random: a packet from another queue pair of this device has the right addresses, and with
        // the right PSN it would move the queue pair to ERR.
        let attributes = path.attributes(self.qp.number(), random_psn());
        self.qp.bring_up(&attributes).map_err(|err| {
            if err == enodata() {
                eaddrnotavail()
            } else {
                err
            }
        })
    }

    /// Posts one request and waits for it. Sleeps for as long as the device takes. A local
    /// operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// A request that was flushed is posted again, [`Self::TRIES`] times in all: another packet
    /// moved the queue pair to ERR. Fails with [`EIO`] after that, or when the device refuses the
    /// request.
    fn run(&self, push: impl Fn(&mut Chain<WaitHandler>, Arc<Waiter>) -> Result) -> Result {
        let mut chain = self.post_lock.lock();
        for _ in 0..Self::TRIES {
            if self.qp.state() != State::Rts {
                // The last request failed, and the recovery with it.
                self.recover()?;
            }
            let status = waiter::post(TargetRef::Send(&self.qp), &mut chain, &push)?.status();
            let injected = fault::point().is_err();
            if status == bindings::IB_WC_SUCCESS && !injected {
                return Ok(());
            }
            // The queue pair failed with the request. If the recovery fails, the next request
            // repeats it.
            let recovered = self.recover();
            if status != bindings::IB_WC_WR_FLUSH_ERR || recovered.is_err() {
                break;
            }
        }
        Err(EIO)
    }

    /// Returns the queue pair to RTS. On iWARP moves it to ERR and fails. Sleeps.
    fn recover(&self) -> Result {
        if let RegPath::Other { .. } = self.path {
            let error = Attributes {
                qp_state: State::Err as u32,
                ..Attributes::default()
            };
            self.qp.modify(&error, mask::STATE)?;
            return Err(EIO);
        }
        let reset = Attributes {
            qp_state: State::Reset as u32,
            ..Attributes::default()
        };
        self.qp.modify(&reset, mask::STATE)?;
        self.connect()
    }
}

impl Register for FastRegQp {
    fn pd(&self) -> &Arc<Pd> {
        self.qp.pd()
    }

    unsafe fn register(&self, mr: *mut bindings::ib_mr, key: u32, access: u32) -> Result {
        self.run(|chain, waiter| {
            // SAFETY: By the requirement. `run` returns when the request is done.
            unsafe { chain.push_register(mr, key, access, waiter) }
        })
    }

    fn invalidate(&self, rkey: u32) -> Result {
        if !self.pd().device().has_local_inv() {
            return Err(eopnotsupp());
        }
        self.run(|chain, waiter| chain.push_invalidate(rkey, waiter))
    }
}
