// SPDX-License-Identifier: GPL-2.0

//! Queue pairs of a file. Process context.

use super::{
    completion::{
        one_more,
        Completions,
        Request, //
    },
    cq::CqObject,
    grant::QpGrants,
    pd::PdObject,
    quota,
    srq::SrqObject,
    usecount::{
        Counted,
        UseCount,
        UseRef, //
    }, //
};
use crate::{
    device::Device,
    ext::errno::eisconn,
    rdma::{
        self,
        qp::{
            slot_bytes,
            Qp, //
        },
        qp_attr::{
            mask,
            Attributes,
            Capacity,
            QpType,
            State, //
        },
        request::{
            Posted,
            QueueKind, //
        }, //
    },
    trace::{
        self,
        ulp_debug, //
    }, //
};
use core::{
    mem::size_of,
    ops::Deref, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// The queues that a queue pair uses.
pub(crate) struct Queues {
    /// Where its sends complete.
    pub(crate) send_cq: UseRef<CqObject>,
    /// Where its receives complete.
    pub(crate) recv_cq: UseRef<CqObject>,
    /// Where its receives come from, when not from its own queue.
    pub(crate) srq: Option<UseRef<SrqObject>>,
}

impl Queues {
    /// Returns [`EXDEV`] when the shared receive queue is not of `pd`, or does not complete in
    /// `recv_cq`.
    fn check(&self, pd: &PdObject) -> Result {
        match &self.srq {
            Some(srq)
                if !core::ptr::eq(srq.pd(), pd) || !core::ptr::eq(srq.cq(), &*self.recv_cq) =>
            {
                Err(EXDEV)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the capacity of the device's queue pair for a caller that asked for `asked`: elements
/// may be cut at the borders of keys.
fn with_cuts(asked: Capacity, device: &rdma::device::Attributes) -> Capacity {
    Capacity {
        max_send_sge: one_more(asked.max_send_sge, device.max_send_sge),
        max_recv_sge: match asked.max_recv_sge {
            0 => 0,
            asked => one_more(asked, device.max_recv_sge),
        },
        ..asked
    }
}

/// The choices of the creator of a queue pair.
pub(crate) struct QpOptions {
    /// Whether every send request generates a completion.
    pub(crate) sig_all: bool,
    /// The value for completions and events.
    pub(crate) user_data: u64,
}

// A queue pair of 128 and 128 requests takes 16 KiB of the module's memory at most, without what only
// some requests have.
static_assert!(
    256 * slot_bytes::<Request>()
        + size_of::<Qp<Completions>>()
        + size_of::<QpObject>()
        + size_of::<QpGrants>()
        <= 16 << 10
);

/// A queue pair of a file.
#[pin_data(PinnedDrop)]
pub(crate) struct QpObject {
    // Before what it needs: the device's queue pair goes first.
    qp: Arc<Qp<Completions>>,
    pd: UseRef<PdObject>,
    send_cq: UseRef<CqObject>,
    recv_cq: UseRef<CqObject>,
    srq: Option<UseRef<SrqObject>>,
    /// As the caller asked; the device's queue pair has room for elements that are cut up.
    capacity: Capacity,
    sig_all: bool,
    /// Whether a connection has it, see [`Claim`]. Held while its owner changes attributes.
    /// Lock order: after `Connection::id`, before `PdObject::fast_reg`.
    #[pin]
    claimed: Mutex<bool>,
    use_count: UseCount,
    _charge: quota::QuotaCharge,
}

impl QpObject {
    /// Makes a queue pair. Sleeps.
    ///
    /// Returns [`EXDEV`] when `srq` belongs to another domain or does not complete in `recv_cq`.
    pub(crate) fn new(
        pd: UseRef<PdObject>,
        queues: Queues,
        qp_type: QpType,
        capacity: Capacity,
        options: QpOptions,
        device: Arc<Device>,
        charge: quota::QuotaCharge,
    ) -> Result<Arc<Self>> {
        queues.check(&pd)?;
        let Queues {
            send_cq,
            recv_cq,
            srq,
        } = queues;
        let handler = Completions::of_queue_pair(
            qp_type,
            send_cq.ring().clone(),
            recv_cq.ring().clone(),
            QpGrants::new(recv_cq.ring().file().clone(), device)?,
            options.user_data,
        );
        let qp = Qp::new(
            pd.pd().clone(),
            send_cq.cq().clone(),
            recv_cq.cq().clone(),
            srq.as_ref().map(|srq| srq.srq().clone()),
            qp_type,
            with_cuts(capacity, &pd.pd().device().attributes()),
            handler,
        )?;
        qp.handler().set_number(qp.number());
        Arc::pin_init(
            pin_init!(Self {
                qp,
                pd,
                send_cq,
                recv_cq,
                srq,
                capacity,
                sig_all: options.sig_all,
                claimed <- new_mutex!(false, "rust_ulp::QpObject::claimed"),
                use_count: UseCount::new(),
                _charge: charge,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the device's queue pair.
    pub(crate) fn qp(&self) -> &Arc<Qp<Completions>> {
        &self.qp
    }

    /// Returns the sizes that the caller asked for.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the grants that end with it.
    pub(crate) fn grants(&self) -> Option<Arc<QpGrants>> {
        self.qp.handler().grants().cloned()
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Returns the requests that its send and its receive queue have taken.
    pub(super) fn posted(&self) -> [Posted; 2] {
        [QueueKind::Send, QueueKind::Recv].map(|kind| self.qp.posted(kind))
    }

    /// Returns its protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }

    /// Returns whether its receives come from a shared queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Returns whether every send request makes a completion.
    pub(crate) fn sig_all(&self) -> bool {
        self.sig_all
    }

    /// Sets its handle, for completions.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.qp.handler().set_handle(handle);
    }

    /// Returns its handle.
    pub(crate) fn handle(&self) -> u32 {
        self.qp.handler().handle()
    }

    /// Changes attributes for the owner of the file. Sleeps.
    ///
    /// Returns [`eisconn`] while a connection has the queue pair, except on the way to ERR, and the
    /// errors of [`Qp::modify`].
    pub(crate) fn modify_by_owner(&self, attributes: &Attributes, mask: u32) -> Result {
        // Held until the end: no connection begins with a queue pair that is changing.
        let claimed = self.claimed.lock();
        let to_err = mask & mask::STATE != 0 && attributes.qp_state == State::Err as u32;
        if *claimed && !to_err {
            return Err(eisconn());
        }
        self.modify(attributes, mask)
    }

    /// Changes attributes as [`Qp::modify`] does, and traces that. Sleeps.
    pub(crate) fn modify(&self, attributes: &Attributes, mask: u32) -> Result {
        let from = self.qp.state();
        let to = if mask & mask::STATE != 0 {
            State::from_raw(attributes.qp_state).ok_or(EINVAL)?
        } else {
            from
        };
        let result = self.qp.modify(attributes, mask);
        if result.is_ok() && mask & mask::PORT != 0 {
            // The first completion comes from RTR on.
            let has_lids = self.qp.pd().device().has_lids(attributes.port);
            self.qp.handler().set_port(attributes.port, has_lids);
        }
        let has_ended = match result {
            Ok(()) => mask & mask::STATE != 0 && matches!(to, State::Reset | State::Err),
            // A change that the driver gave up may have taken it there.
            Err(_) => self.qp.state() == State::Err,
        };
        if has_ended {
            self.qp.handler().end_grants();
        }
        trace::qp_modify(
            self.number(),
            from as u32,
            to as u32,
            result.err().map_or(0, |err| err.to_errno()),
        );
        ulp_debug!(
            "qp {}: {:?} -> {:?}: {:?}\n",
            self.number(),
            from,
            to,
            result
        );
        result
    }

    /// Ends it, whoever else has a reference: what it uses can be destroyed after that. Sleeps.
    pub(crate) fn shut_down(&self) {
        self.qp.shut_down();
        // A grant that is made meanwhile ends here, or is refused: the queue pair has failed.
        self.qp.handler().end_grants();
        self.pd.release();
        self.send_cq.release();
        self.recv_cq.release();
        if let Some(srq) = &self.srq {
            srq.release();
        }
    }

    /// Changes the state only. Sleeps.
    pub(crate) fn move_to(&self, state: State) -> Result {
        let attributes = Attributes {
            qp_state: state as u32,
            ..Default::default()
        };
        self.modify(&attributes, mask::STATE)
    }
}

#[pinned_drop]
impl PinnedDrop for QpObject {
    fn drop(self: Pin<&mut Self>) {
        self.shut_down();
    }
}

impl Counted for QpObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

/// The right of one connection to a queue pair.
pub(crate) struct Claim {
    qp: UseRef<QpObject>,
    /// The state of the queue pair at that time.
    from: State,
}

impl Claim {
    /// Claims `qp`. Sleeps. Returns [`eisconn`] when another connection has it.
    pub(crate) fn new(qp: UseRef<QpObject>) -> Result<Self> {
        if core::mem::replace(&mut *qp.claimed.lock(), true) {
            return Err(eisconn());
        }
        let from = qp.qp().state();
        Ok(Self { qp, from })
    }

    /// Gives the queue pair free, after it was brought back to RESET unless it is in the state of
    /// the beginning still; to ERR, where the driver has no way back. Sleeps.
    pub(super) fn give_back(self) {
        if self.qp().state() != self.from {
            // When the driver refuses both, the queue pair is as bad as it can be.
            let _ = self
                .move_to(State::Reset)
                .or_else(|_| self.move_to(State::Err));
        }
    }

    /// Returns the queue pair.
    pub(super) fn object(&self) -> Arc<QpObject> {
        self.qp.object().clone()
    }
}

impl Deref for Claim {
    type Target = QpObject;

    fn deref(&self) -> &QpObject {
        &self.qp
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.qp.claimed.lock() = false;
    }
}
