// SPDX-License-Identifier: GPL-2.0

//! Protection domains, each with the queue pair that registers its memory.
//!
//! Runs in process context.

use super::usecount::{
    Counted,
    UseCount, //
};
use crate::{
    kernel::net::NetNs,
    rdma::{
        fast_reg::FastRegQp,
        loopback::LoopbackConnector,
        pd::Pd, //
    },
    trace, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// A protection domain of a file.
#[pin_data]
pub(crate) struct PdObject {
    pd: Arc<Pd>,
    /// Made when memory is first registered.
    #[pin]
    fast_reg: Mutex<Option<Arc<FastRegQp>>>,
    /// Connects the registration queue pair, on iWARP.
    #[pin]
    loopback: LoopbackConnector,
    use_count: UseCount,
}

impl PdObject {
    /// Wraps `pd`.
    pub(crate) fn new(pd: Arc<Pd>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                fast_reg <- new_mutex!(None, "rust_ulp::PdObject::fast_reg"),
                loopback <- LoopbackConnector::new(|event| trace::cm_event(0, event.number(), event.status())),
                use_count: UseCount::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// What registers memory in it. Sleeps; on iWARP, the first time, until that is connected.
    pub(crate) fn fast_reg(&self, net: &NetNs) -> Result<Arc<FastRegQp>> {
        let mut slot = self.fast_reg.lock();
        if let Some(fast_reg) = slot.as_ref().filter(|fast_reg| !fast_reg.is_over()) {
            return Ok(fast_reg.clone());
        }
        let fast_reg = FastRegQp::new(self.pd.clone(), &self.loopback, net)?;
        let old = slot.replace(fast_reg.clone());
        drop(slot);
        // What it has registered keeps it.
        drop(old);
        Ok(fast_reg)
    }

    /// Makes those who wait inside it leave, with `err`. Sleeps.
    pub(crate) fn close(&self, err: Error) {
        self.loopback.close(err);
    }
}

impl Counted for PdObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
