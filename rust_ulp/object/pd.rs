// SPDX-License-Identifier: GPL-2.0

//! Protection domains, each with the queue pair that registers its memory. Process context.

use super::usecount::{
    Counted,
    UseCount, //
};
use crate::{
    rdma::{
        fast_reg::FastRegQp,
        pd::Pd,
        silence::Silence, //
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

/// A protection domain of a file.
#[pin_data]
pub(crate) struct PdObject {
    pd: Arc<Pd>,
    /// That of the file.
    silence: Arc<Silence>,
    /// Created when memory is first registered. Lock order: before `rdmacg_mutex` and the locks of
    /// `rdma::FastRegQp`.
    #[pin]
    fast_reg: Mutex<Option<Arc<FastRegQp>>>,
    use_count: UseCount,
}

impl PdObject {
    /// Wraps `pd`.
    pub(crate) fn new(pd: Arc<Pd>, silence: Arc<Silence>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pd,
                silence,
                fast_reg <- new_mutex!(None, "rust_ulp::PdObject::fast_reg"),
                use_count: UseCount::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the device's protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the queue pair that registers memory in it, which the first call creates. Sleeps. Fails
    /// as [`FastRegQp::new`] does.
    pub(crate) fn fast_reg(&self) -> Result<Arc<FastRegQp>> {
        let mut slot = self.fast_reg.lock();
        if let Some(fast_reg) = &*slot {
            return Ok(fast_reg.clone());
        }
        let fast_reg = FastRegQp::with_silence(self.pd.clone(), self.silence.clone())?;
        Ok(slot.insert(fast_reg).clone())
    }
}

impl Counted for PdObject {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}
