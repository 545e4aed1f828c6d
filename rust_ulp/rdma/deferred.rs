// SPDX-License-Identifier: GPL-2.0

//! Pages that outlive the memory regions that covered them.

use crate::kernel::pages::Pages;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Pages that a response to a peer's read may still use.
///
/// They are kept until the protection domain is dropped, when its queue pairs no longer exist.
#[pin_data]
pub(super) struct DeferredPages {
    /// Nothing is taken under it.
    #[pin]
    kept: Mutex<KVVec<Arc<Pages>>>,
}

impl DeferredPages {
    /// The limit of kept pages.
    const MAX: usize = 1024;

    /// Creates an empty list. Sleeps.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                kept <- new_mutex!(KVVec::new(), "rdma::DeferredPages::kept"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Keeps `pages`. Sleeps. Fails with [`ENOMEM`] when the list is full.
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
