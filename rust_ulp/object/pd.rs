// SPDX-License-Identifier: GPL-2.0

//! Protection domains, each with the queue pair that registers its memory. Process context.

use super::usecount::{
    Counted,
    UseCount, //
};
use crate::{
    kernel::net::NetNs,
    rdma::{
        cgroup::{
            Charge,
            Resource, //
        },
        cm,
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
    /// Created when memory is first registered, with the charges for its objects. Lock order: before
    /// the handler mutexes of the connection manager, after `rdmacg_mutex`. On iWARP held while it
    /// connects.
    #[pin]
    fast_reg: Mutex<Option<(Arc<FastRegQp>, KVVec<Charge>)>>,
    /// Connects the registration queue pair, on iWARP.
    #[pin]
    loopback: LoopbackConnector,
    use_count: UseCount,
}

/// Traces an event of the connection of a registration queue pair.
fn trace_event(event: &cm::Event<'_>) {
    trace::cm_event(0, event.number(), event.status());
}

impl PdObject {
    /// Wraps `pd`.
    pub(crate) fn new(pd: Arc<Pd>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                fast_reg <- new_mutex!(None, "rust_ulp::PdObject::fast_reg"),
                loopback <- LoopbackConnector::new(trace_event),
                use_count: UseCount::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the device's protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the queue pair that registers memory in it. Sleeps: on iWARP, the first call waits
    /// until the queue pair is connected.
    ///
    /// The first call charges the current process for the queue pair and its completion queue, and
    /// fails with [`edquot`](crate::kernel::errno::edquot) when the limit of the rdma cgroup is
    /// reached.
    pub(crate) fn fast_reg(&self, net: &NetNs) -> Result<Arc<FastRegQp>> {
        let usable = |slot: &Option<(Arc<FastRegQp>, KVVec<Charge>)>| {
            let (fast_reg, _) = slot.as_ref()?;
            (!fast_reg.is_over()).then(|| fast_reg.clone())
        };
        if let Some(fast_reg) = usable(&self.fast_reg.lock()) {
            return Ok(fast_reg);
        }
        let device = self.pd.device();
        // Without the lock, which is dropped before them.
        let mut charges = KVVec::new();
        for _ in 0..FastRegQp::objects(device) {
            charges.push(Charge::new(device, Resource::Object)?, GFP_KERNEL_ACCOUNT)?;
        }
        let mut slot = self.fast_reg.lock();
        if let Some(fast_reg) = usable(&slot) {
            return Ok(fast_reg);
        }
        let fast_reg = FastRegQp::new(self.pd.clone(), &self.loopback, net)?;
        let old = slot.replace((fast_reg.clone(), charges));
        drop(slot);
        // The registrations keep the old one.
        drop(old);
        Ok(fast_reg)
    }

    /// Wakes the threads that wait for the connection, with `err`. Sleeps.
    pub(crate) fn close(&self, err: Error) {
        self.loopback.close(err);
    }
}

impl Counted for PdObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
