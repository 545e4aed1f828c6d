// SPDX-License-Identifier: GPL-2.0

//! Pages that are kept longer than the memory regions that covered them.

use crate::kernel::pages::Pages;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Memory that a peer had a key to, and that a response to its read may still be made of.
///
/// It stays here until the protection domain goes, and with that all its queue pairs.
#[pin_data]
pub(super) struct DeferredPages {
    #[pin]
    kept: Mutex<KVVec<Arc<Pages>>>,
}

impl DeferredPages {
    /// Most that one keeps.
    const MAX: usize = 1024;

    /// An empty one. Sleeps.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                kept <- new_mutex!(KVVec::new(), "rdma::DeferredPages::kept"),
            }),
            GFP_KERNEL,
        )
    }

    /// Keeps `pages`. [`ENOMEM`] when it is full. Sleeps.
    pub(super) fn keep(&self, pages: &Arc<Pages>) -> Result {
        let mut kept = self.kept.lock();
        if kept.iter().any(|other| Arc::ptr_eq(other, pages)) {
            return Ok(());
        }
        if kept.len() >= Self::MAX {
            return Err(ENOMEM);
        }
        Ok(kept.push(pages.clone(), GFP_KERNEL_ACCOUNT)?)
    }
}
