// SPDX-License-Identifier: GPL-2.0

//! Protection domains, each with its registrar.
//!
//! Runs in process context.

use crate::{
    handle::{
        Needed,
        Users, //
    },
    rdma::{
        mr::Registrar,
        pd::Pd, //
    },
    sys::net::NetNs, //
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
    users: Users,
}

impl PdObject {
    /// Wraps `pd`.
    pub(crate) fn new(pd: Arc<Pd>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                registrar <- new_mutex!(None, "rust_ulp::PdObject::registrar"),
                users: Users::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// What registers memory in it. Sleeps.
    pub(crate) fn registrar(&self, net: &NetNs) -> Result<Arc<Registrar>> {
        let mut slot = self.registrar.lock();
        if let Some(registrar) = &*slot {
            return Ok(registrar.clone());
        }
        let registrar = Registrar::new(self.pd.clone(), net)?;
        *slot = Some(registrar.clone());
        Ok(registrar)
    }
}

impl Needed for PdObject {
    fn users(&self) -> &Users {
        &self.users
    }
}
