// SPDX-License-Identifier: GPL-2.0

//! Protection domains, each with its registrar.
//!
//! Runs in process context.

use super::usecount::{
    Counted,
    UseCount, //
};
use crate::{
    kernel::net::NetNs,
    rdma::{
        fast_reg::Registrar,
        loopback::Maker,
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
    registrar: Mutex<Option<Arc<Registrar>>>,
    /// What connects the registrar, on iWARP.
    #[pin]
    loopback: Maker,
    use_count: UseCount,
}

impl PdObject {
    /// Wraps `pd`.
    pub(crate) fn new(pd: Arc<Pd>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                registrar <- new_mutex!(None, "rust_ulp::PdObject::registrar"),
                loopback <- Maker::new(|event| trace::cm_event(0, event.number(), event.status())),
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
    pub(crate) fn registrar(&self, net: &NetNs) -> Result<Arc<Registrar>> {
        let mut slot = self.registrar.lock();
        if let Some(registrar) = slot.as_ref().filter(|registrar| !registrar.is_over()) {
            return Ok(registrar.clone());
        }
        let registrar = Registrar::new(self.pd.clone(), &self.loopback, net)?;
        let old = slot.replace(registrar.clone());
        drop(slot);
        // What it has registered keeps it.
        drop(old);
        Ok(registrar)
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
