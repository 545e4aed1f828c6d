// SPDX-License-Identifier: GPL-2.0

//! The queue pair that registers the memory regions of a protection domain.
//!
//! A [`FastRegQp`] has a reliable queue pair of its own for REG_MR and LOCAL_INV requests. It is
//! connected to itself, so that memory can be registered before any other queue pair exists, and
//! without using the queues of others. What a queue pair has registered is invalidated by the one that
//! took its place.

use super::{
    cgroup::{
        Charge,
        Resource, //
    },
    mr::Register,
    path::LocalPath,
    pd::Pd,
    post::{
        Data,
        Target, //
    },
    qp::Qp,
    qp_attr::{
        mask,
        random_psn,
        Attributes,
        State, //
    },
    silence::Silence,
    waiter::{
        self,
        WaitHandler,
        Waiter, //
    },
    wr::Operation, //
};
use crate::{
    bindings,
    ext::{
        errno::{
            eaddrnotavail,
            enodata,
            eopnotsupp, //
        },
        fault, //
    }, //
};
use core::cell::Cell;
use kernel::{
    new_mutex,
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Msecs, //
    }, //
};

/// The milliseconds after which a thread that waits for a request polls for its completion.
const LOOK_MS: Msecs = 100;
/// How often it does so before its queue pair fails: no device takes twenty seconds.
const LOOKS: u32 = 200;
/// How often it does so when the last registration of the owner was late.
const LOOKS_AGAIN: u32 = 10;

/// A reliable queue pair that is connected to itself.
struct Loop {
    path: LocalPath,
    qp: Arc<Qp<WaitHandler>>,
}

impl Loop {
    /// Creates one in `pd`. Sleeps. Fails as [`FastRegQp::new`] does.
    fn new(pd: &Arc<Pd>) -> Result<Self> {
        let this = Self {
            path: LocalPath::find(pd.device(), pd.device())?,
            qp: Qp::with_waiters(pd, 2, 0)?,
        };
        this.connect()?;
        Ok(this)
    }

    /// Brings the queue pair from RESET to RTS. Sleeps.
    ///
    /// Fails with [`eaddrnotavail`] when the address was removed.
    fn connect(&self) -> Result {
        // Random: a packet from another queue pair of this device has the right addresses, and with
        // the right PSN it would move the queue pair to ERR.
        let attributes = self.path.attributes(self.qp.number(), random_psn());
        self.qp.bring_up(&attributes).map_err(|err| {
            if err == enodata() {
                eaddrnotavail()
            } else {
                err
            }
        })
    }

    /// Brings the queue pair from any state to RTS. Sleeps.
    fn reconnect(&self) -> Result {
        let reset = Attributes {
            qp_state: State::Reset as u32,
            ..Attributes::default()
        };
        self.qp.modify(&reset, mask::STATE)?;
        self.connect()
    }

    /// Waits for a request, and returns its status, and whether it came too late. Sleeps. A local
    /// operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// This polls: a driver completes the requests of a failed device when the queue is polled, but
    /// need not report that, see `rust_ulp_wait_drained()` in bindings/ib.c. A driver may also post a
    /// request to an adapter that has stopped. After `most` polls this moves the queue pair to
    /// ERR, which has the driver flush the request, with bnxt_re even if the adapter does not answer
    /// (drivers/infiniband/hw/bnxt_re/ib_verbs.c:bnxt_re_modify_qp). A driver that refuses the change
    /// flushes nothing (drivers/infiniband/hw/irdma/verbs.c:irdma_modify_qp_roce): then the queue pair
    /// is destroyed.
    fn status_of(&self, waiter: &Waiter, most: u32) -> (u32, bool) {
        let mut looks = 0u32;
        loop {
            if let Some(status) = waiter.status_within(msecs_to_jiffies(LOOK_MS)) {
                return (status, looks > most);
            }
            if looks == most {
                let failed = Attributes {
                    qp_state: State::Err as u32,
                    ..Attributes::default()
                };
                pr_warn_once!("a device does not register memory: its queue pair fails\n");
                if self.qp.modify(&failed, mask::STATE).is_err() {
                    // Completes the request as flushed.
                    self.qp.shut_down();
                }
            }
            looks = looks.saturating_add(1);
            self.qp.look();
        }
    }
}

/// Registers memory in a protection domain.
///
/// ```
/// fn new_fast_reg(device: &device::Device) -> Result<Arc<FastRegQp>> {
///     FastRegQp::new(pd::Pd::new(device)?)
/// }
/// ```
#[pin_data]
pub(crate) struct FastRegQp {
    pd: Arc<Pd>,
    silence: Arc<Silence>,
    /// For the queue pair and its completion queue.
    _charges: [Charge; 2],
    /// [`None`] after one that has failed and did not come back: the address at which its path begins
    /// was removed, or the driver resets no queue pair. Held over a request: there is one at a time.
    /// Taken before `Qp::modifying`.
    #[pin]
    current: Mutex<Option<Loop>>,
}

impl FastRegQp {
    /// The number of times that a request is posted at most.
    const TRIES: u32 = 4;

    /// Creates the registration queue pair of `pd`, and charges the current process for it. Sleeps.
    /// Fails with
    ///
    /// - [`edquot`](crate::ext::errno::edquot) when the limit of the rdma cgroup is reached,
    /// - [`eopnotsupp`] when the device cannot register memory, see
    ///   [`Device::obstacle`](super::device::Device::obstacle),
    /// - [`eaddrnotavail`] when no port of the device has an address yet.
    pub(crate) fn new(pd: Arc<Pd>) -> Result<Arc<Self>> {
        Self::with_silence(pd, Silence::new()?)
    }

    /// Creates one as [`Self::new`] does, whose owner has `silence`.
    pub(crate) fn with_silence(pd: Arc<Pd>, silence: Arc<Silence>) -> Result<Arc<Self>> {
        if pd.device().obstacle().is_some() {
            return Err(eopnotsupp());
        }
        let charge = || Charge::new(pd.device(), Resource::Object);
        let charges = [charge()?, charge()?];
        let first = Loop::new(&pd)?;
        Arc::pin_init(
            pin_init!(Self {
                pd,
                silence,
                _charges: charges,
                current <- new_mutex!(Some(first), "rdma::FastRegQp::current"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Posts one request, sets `posted`, and waits for it, see [`Loop::status_of`].
    ///
    /// A request that was flushed is posted again, [`Self::TRIES`] times in all: another packet
    /// moved the queue pair to ERR. Where that does not come back, another one takes its place, which
    /// fails as [`Self::new`] does. Fails with [`EIO`] after all tries, or when the device refuses the
    /// request or does not carry it out.
    fn run(&self, operation: &Operation<'_>, posted: &Cell<bool>) -> Result {
        let mut current = self.current.lock();
        for _ in 0..Self::TRIES {
            if current.is_none() {
                *current = Some(Loop::new(&self.pd)?);
            }
            let Some(this) = &*current else {
                break;
            };
            let waiter = waiter::post(Target::Send(&this.qp), operation, Data::None)?;
            posted.set(true);
            let late = &self.silence.registrations;
            let most = match late.load(Relaxed) {
                true => LOOKS_AGAIN,
                false => LOOKS,
            };
            let (status, is_late) = this.status_of(&waiter, most);
            if is_late || status == bindings::IB_WC_SUCCESS {
                late.store(is_late, Relaxed);
            }
            let injected = fault::point().is_err();
            let is_done = status == bindings::IB_WC_SUCCESS && !injected;
            // One that is late was moved to ERR, whatever came of the request.
            if (is_late || !is_done) && this.reconnect().is_err() {
                *current = None;
            }
            if is_done {
                return Ok(());
            }
            if is_late || status != bindings::IB_WC_WR_FLUSH_ERR {
                break;
            }
        }
        Err(EIO)
    }
}

// SAFETY: The domain does not change. `run` returns when the device is done with the request or its
// queue pair has ended; of one that the driver did not destroy, `Pd::destroy_qp` has leaked the
// domain.
unsafe impl Register for FastRegQp {
    fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    unsafe fn register(
        &self,
        mr: *mut bindings::ib_mr,
        key: u32,
        access: u32,
        posted: &Cell<bool>,
    ) -> Result {
        // SAFETY: By the requirement. `run` returns when the request is done, or the domain is leaked:
        // then `Region::end` keeps the region.
        self.run(&unsafe { Operation::register(mr, key, access) }, posted)
    }

    fn invalidate(&self, rkey: u32) -> Result {
        if !self.pd.device().has_local_inv() {
            return Err(eopnotsupp());
        }
        self.run(&Operation::invalidate(rkey), &Cell::new(false))
    }
}
