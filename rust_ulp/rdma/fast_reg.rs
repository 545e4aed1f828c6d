// SPDX-License-Identifier: GPL-2.0

//! The queue pair by which memory regions of a protection domain are registered.
//!
//! For REG_MR and LOCAL_INV requests a [`FastRegQp`] keeps a reliable queue pair of its own, connected
//! to itself, so that memory can be registered before any other queue pair exists, and without a
//! request in the queues of anyone else. On iWARP, where that cannot be, it has two that are connected
//! to each other.

use super::{
    chain::{
        Chain,
        Target, //
    },
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
#[pin_data]
pub(crate) struct FastRegQp {
    // Before the queue pair: that goes last.
    way: RegPath,
    qp: Arc<Qp<WaitHandler>>,
    /// One request at a time.
    #[pin]
    post_lock: Mutex<()>,
}

/// What a registration queue pair is connected to.
enum RegPath {
    /// Itself.
    Itself(LocalPath),
    /// Another one, on iWARP. There is no way back when that has ended.
    Other {
        pair: LoopbackPair,
        _qp: Arc<Qp<WaitHandler>>,
    },
}

impl FastRegQp {
    /// How often a request is posted at most.
    const TRIES: u32 = 4;

    /// Creates the registration queue pair of `pd`. On iWARP `connector` connects it. Sleeps.
    ///
    /// [`eopnotsupp`] when the device has no fast registration; [`eaddrnotavail`] when none of its
    /// ports has an address yet. On iWARP it takes as long as [`LoopbackPair::new`] says, and fails as that
    /// does.
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

    /// Creates it for a device that is not iWARP, else [`eopnotsupp`]. Otherwise as [`Self::new`].
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

    fn of(way: RegPath, qp: Arc<Qp<WaitHandler>>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                way,
                qp,
                post_lock <- new_mutex!((), "rdma::FastRegQp::post_lock"),
            }),
            GFP_KERNEL,
        )
    }

    fn queue_pair(pd: &Arc<Pd>) -> Result<Arc<Qp<WaitHandler>>> {
        if pd.device().attributes().max_fast_reg_pages == 0 {
            return Err(eopnotsupp());
        }
        Qp::with_waiters(pd, 2, 0)
    }

    /// Whether it will never register anything any more, so that another one has to be made.
    pub(crate) fn is_over(&self) -> bool {
        match &self.way {
            RegPath::Itself(_) => false,
            RegPath::Other { pair, .. } => pair.is_over() || self.qp.state() != State::Rts,
        }
    }

    /// Brings the queue pair from RESET to RTS, connected to itself.
    ///
    /// [`eaddrnotavail`] when the address that was found has gone, [`EIO`] when there is no such way.
    fn connect(&self) -> Result {
        let RegPath::Itself(path) = &self.way else {
            return Err(EIO);
        };
        // A packet that another queue pair of this device sends here has the right addresses: with the
        // right number, too, it would take the queue pair to ERR.
        let attributes = path.attributes(self.qp.number(), random_psn());
        self.qp.bring_up(&attributes).map_err(|err| {
            if err == enodata() {
                eaddrnotavail()
            } else {
                err
            }
        })
    }

    /// Posts one request and waits for it. Sleeps, for as long as the device takes: a local
    /// operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// One that was flushed did not fail itself: somebody took the queue pair to ERR, by a packet that he
    /// had no right to send. It is posted again, [`Self::TRIES`] times in all. [`EIO`] after that, or
    /// when the device refuses it.
    fn run(&self, push: impl Fn(&mut Chain<WaitHandler>, Arc<Waiter>) -> Result) -> Result {
        let _turn = self.post_lock.lock();
        for _ in 0..Self::TRIES {
            if self.qp.state() != State::Rts {
                // The last one failed, and so did the way back.
                self.recover()?;
            }
            let status = waiter::post(Target::Send(self.qp.clone()), &push)?.status();
            let injected = fault::point().is_err();
            if status == bindings::IB_WC_SUCCESS && !injected {
                return Ok(());
            }
            // The queue pair failed with the request. What that leaves to be done the next one does.
            let recovered = self.recover();
            if status != bindings::IB_WC_WR_FLUSH_ERR || recovered.is_err() {
                break;
            }
        }
        Err(EIO)
    }

    /// Takes the queue pair back to RTS; where it has no way there, to ERR. Sleeps.
    fn recover(&self) -> Result {
        if let RegPath::Other { .. } = self.way {
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
            // SAFETY: By the requirement, and `run` returns when the request is done.
            unsafe { chain.push_register(mr, key, access, waiter) }
        })
    }

    fn invalidate(&self, rkey: u32) -> Result {
        self.run(|chain, waiter| chain.push_invalidate(rkey, waiter))
    }
}
