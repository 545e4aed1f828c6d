// SPDX-License-Identifier: GPL-2.0

//! Addresses of datagrams' receivers. Runs in process context.

use super::{
    pd::PdObject,
    usecount::UseRef, //
};
use crate::rdma::ah::{
    AddressVector,
    Ah, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// An address of a file.
///
/// Requests keep the device's address handle, not this: it may be destroyed while they are under
/// way.
pub(crate) struct AhObject {
    ah: Arc<Ah>,
    pd: UseRef<PdObject>,
}

impl AhObject {
    /// Makes an address for `av`; returns with it what that has become. Sleeps.
    pub(crate) fn new(
        pd: UseRef<PdObject>,
        av: &AddressVector,
    ) -> Result<(Arc<Self>, AddressVector)> {
        let (ah, av) = Ah::new(pd.pd().clone(), av)?;
        Ok((Arc::new(Self { ah, pd }, GFP_KERNEL_ACCOUNT)?, av))
    }

    /// The device's address handle.
    pub(crate) fn ah(&self) -> &Arc<Ah> {
        &self.ah
    }

    /// Its protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }
}
