// SPDX-License-Identifier: GPL-2.0

//! Address handles, for the receivers of datagrams. Process context.

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

/// An address handle of a file.
///
/// Requests hold the device's address handle, so a process may destroy this object while they are
/// in flight.
pub(crate) struct AhObject {
    ah: Arc<Ah>,
    _pd: UseRef<PdObject>,
}

impl AhObject {
    /// Creates an address handle for `av`, and returns it with the resolved `av`. Sleeps.
    pub(crate) fn new(
        pd: UseRef<PdObject>,
        av: &AddressVector,
    ) -> Result<(Arc<Self>, AddressVector)> {
        let (ah, av) = Ah::new(pd.pd().clone(), av)?;
        Ok((Arc::new(Self { ah, _pd: pd }, GFP_KERNEL_ACCOUNT)?, av))
    }

    /// Returns the device's address handle.
    pub(crate) fn ah(&self) -> &Arc<Ah> {
        &self.ah
    }
}
