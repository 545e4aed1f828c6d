// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues of a file. Process context.
//!
//! A receive completes on the queue pair that used it, see [`crate::object::qp`].

use super::{
    completion::{
        one_more,
        Completions, //
    },
    cq::CqObject,
    pd::PdObject,
    quota::QuotaCharge,
    usecount::{
        Counted,
        UseCount,
        UseRef, //
    }, //
};
use crate::rdma::{
    silence::Silence,
    srq::Srq, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A shared receive queue of a file.
pub(crate) struct SrqObject {
    // Before what it needs: the device's queue goes first.
    srq: Arc<Srq<Completions>>,
    pd: UseRef<PdObject>,
    cq: UseRef<CqObject>,
    /// As the caller asked; the device's queue has room for elements that are cut up.
    max_sge: u32,
    use_count: UseCount,
    _charge: QuotaCharge,
}

impl SrqObject {
    /// Creates a shared receive queue for `max_wr` requests of `max_sge` elements. Sleeps.
    pub(crate) fn new(
        pd: UseRef<PdObject>,
        cq: UseRef<CqObject>,
        max_wr: u32,
        max_sge: u32,
        silence: Arc<Silence>,
        charge: QuotaCharge,
    ) -> Result<Arc<Self>> {
        let handler = Completions::of_shared_queue(cq.ring().clone());
        let room = one_more(max_sge, pd.pd().device().attributes().max_srq_sge);
        let (domain, queue) = (pd.pd().clone(), cq.cq().clone());
        let srq = Srq::new(domain, queue, max_wr, room, silence, handler)?;
        Ok(Arc::new(
            Self {
                srq,
                pd,
                cq,
                max_sge,
                use_count: UseCount::new(),
                _charge: charge,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Returns the device's queue.
    pub(crate) fn srq(&self) -> &Arc<Srq<Completions>> {
        &self.srq
    }

    /// Returns the most elements of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns its protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }

    /// Returns the completion queue of its requests.
    pub(crate) fn cq(&self) -> &CqObject {
        &self.cq
    }

    /// Shuts the device's queue down, and lets others destroy what it uses, whoever else has a
    /// reference. Sleeps.
    pub(crate) fn shut_down(&self) {
        self.srq.shut_down();
        self.pd.release();
        self.cq.release();
    }

    /// Sets its handle, for completions and events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.srq.handler().set_handle(handle);
    }
}

impl Counted for SrqObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
