// SPDX-License-Identifier: GPL-2.0

//! The queue pair that registers the memory regions of a protection domain.
//!
//! A [`FastRegQp`] has a reliable queue pair of its own for REG_MR and LOCAL_INV requests. It is
//! connected to itself, so that memory can be registered before any other queue pair exists, and
//! without using the queues of others.

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
use kernel::{
    new_mutex,
    pr_warn_once,
    prelude::*,
    sync::{
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

/// Registers memory in a protection domain.
///
/// ```
/// fn new_fast_reg(device: &device::Device) -> Result<Arc<FastRegQp>> {
///     FastRegQp::new(pd::Pd::new(device)?)
/// }
/// ```
///
/// # Invariants
///
/// `path` connects `qp`, or has connected it.
#[pin_data]
pub(crate) struct FastRegQp {
    path: LocalPath,
    qp: Arc<Qp<WaitHandler>>,
    /// For the queue pair and its completion queue.
    _charges: [Charge; 2],
    /// Whether the last request failed, and the recovery with it. Held over a request: there is one at a
    /// time. Taken before `Qp::modifying`.
    #[pin]
    has_failed: Mutex<bool>,
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
        if pd.device().obstacle().is_some() {
            return Err(eopnotsupp());
        }
        let charge = || Charge::new(pd.device(), Resource::Object);
        let charges = [charge()?, charge()?];
        let qp = Qp::with_waiters(&pd, 2, 0)?;
        let path = LocalPath::find(pd.device(), pd.device())?;
        // INVARIANT: Connected below, else dropped.
        let this = Arc::pin_init(
            pin_init!(Self {
                path,
                qp,
                _charges: charges,
                has_failed <- new_mutex!(false, "rdma::FastRegQp::has_failed"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        this.connect()?;
        Ok(this)
    }

    /// Brings the queue pair from RESET to RTS, connected to itself. Sleeps.
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

    /// Waits for a request, and returns its status, and whether it came too late. Sleeps for as long
    /// as the device takes. A local operation needs no peer, and is flushed when the queue pair fails.
    ///
    /// This polls: a driver completes the requests of a failed device when the queue is polled, but
    /// need not report that, see `rust_ulp_wait_drained()` in bindings/ib.c. A driver may also post a
    /// request to an adapter that has stopped. After [`LOOKS`] polls this moves the queue pair to
    /// ERR, which has the driver flush the request, with bnxt_re even if the adapter does not answer
    /// (drivers/infiniband/hw/bnxt_re/ib_verbs.c:bnxt_re_modify_qp).
    fn status_of(&self, waiter: &Waiter) -> (u32, bool) {
        let mut looks = 0u32;
        loop {
            if let Some(status) = waiter.status_within(msecs_to_jiffies(LOOK_MS)) {
                return (status, looks >= LOOKS);
            }
            looks = looks.saturating_add(1);
            if looks == LOOKS {
                let failed = Attributes {
                    qp_state: State::Err as u32,
                    ..Attributes::default()
                };
                pr_warn_once!("a device does not register memory: its queue pair fails\n");
                // If the driver refuses that, too, nothing else is left to do.
                let _ = self.qp.modify(&failed, mask::STATE);
            }
            self.qp.look();
        }
    }

    /// Posts one request and waits for it, see [`Self::status_of`].
    ///
    /// A request that was flushed is posted again, [`Self::TRIES`] times in all: another packet
    /// moved the queue pair to ERR. Fails with [`EIO`] after that, or when the device refuses the
    /// request or does not carry it out.
    fn run(&self, operation: &Operation<'_>) -> Result {
        let mut has_failed = self.has_failed.lock();
        for _ in 0..Self::TRIES {
            if *has_failed {
                self.recover(&mut has_failed)?;
            }
            let waiter = waiter::post(Target::Send(&self.qp), operation, Data::None)?;
            let (status, is_late) = self.status_of(&waiter);
            let injected = fault::point().is_err();
            if status == bindings::IB_WC_SUCCESS && !injected {
                // Then the queue pair was moved to ERR.
                *has_failed = is_late;
                return Ok(());
            }
            // The queue pair failed with the request. If the recovery fails, the next request
            // repeats it.
            let recovered = self.recover(&mut has_failed);
            if status != bindings::IB_WC_WR_FLUSH_ERR || is_late || recovered.is_err() {
                break;
            }
        }
        Err(EIO)
    }

    /// Returns whether it registers memory. If its queue pair has failed, this tries again to bring it
    /// back. Sleeps.
    ///
    /// Some never come back: the address at which the path begins was removed, or the driver resets no
    /// queue pair. What they have registered stays.
    pub(crate) fn is_ready(&self) -> bool {
        let mut has_failed = self.has_failed.lock();
        !*has_failed || self.recover(&mut has_failed).is_ok()
    }

    /// Returns the queue pair to RTS, and sets `has_failed` unless that succeeds. Sleeps. Fails with
    /// [`eaddrnotavail`] as [`Self::connect`] does, else with [`EIO`].
    fn recover(&self, has_failed: &mut bool) -> Result {
        let reset = Attributes {
            qp_state: State::Reset as u32,
            ..Attributes::default()
        };
        let result = self.qp.modify(&reset, mask::STATE);
        let result = result.and_then(|()| self.connect());
        *has_failed = result.is_err();
        result.map_err(|err| if err == eaddrnotavail() { err } else { EIO })
    }
}

impl Register for FastRegQp {
    fn pd(&self) -> &Arc<Pd> {
        self.qp.pd()
    }

    unsafe fn register(&self, mr: *mut bindings::ib_mr, key: u32, access: u32) -> Result {
        // SAFETY: By the requirement. `run` returns when the request is done.
        self.run(&unsafe { Operation::register(mr, key, access) })
    }

    fn invalidate(&self, rkey: u32) -> Result {
        if !self.pd().device().has_local_inv() {
            return Err(eopnotsupp());
        }
        self.run(&Operation::invalidate(rkey))
    }
}
