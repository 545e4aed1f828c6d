// SPDX-License-Identifier: GPL-2.0

//! Registered buffers of the kernel.

use super::{
    fast_reg::FastRegQp,
    mr::Mr,
    wr::Local, //
};
use crate::ext::{
    errno::ebadmsg,
    pages::{
        AllocPolicy,
        Pages, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    transmute::AsBytes, //
};

/// Allocated pages, and a memory region that covers their first bytes.
///
/// ```
/// fn hello(fast_reg: &Arc<fast_reg::FastRegQp>) -> Result<Buffer> {
///     let buffer = Buffer::new(fast_reg, 64, mr::access::LOCAL_WRITE | mr::access::REMOTE_READ)?;
///     buffer.write(&[1u8; 64])?;
///     Ok(buffer)
/// }
/// ```
pub(crate) struct Buffer {
    mr: Mr,
    pages: Arc<Pages>,
}

impl Buffer {
    /// Allocates `len` zeroed bytes, and registers them with the rights `access`. Sleeps.
    ///
    /// Fails as [`Pages::new`] and [`Mr::register`] do.
    pub(crate) fn new(fast_reg: &Arc<FastRegQp>, len: usize, access: u32) -> Result<Self> {
        let pages = Pages::new(len, 0, None, AllocPolicy::Reclaim, false)?;
        let pages = Arc::new(pages, GFP_KERNEL_ACCOUNT)?;
        let mr = Mr::register(fast_reg.clone(), pages.clone(), 0, len, access)?;
        Ok(Self { mr, pages })
    }

    /// Returns the memory region, whose address and key the peer needs.
    pub(crate) fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns the whole buffer, for a local request.
    pub(crate) fn local(&self) -> Result<Local<'_>> {
        let len = u32::try_from(self.mr.memory().length()).map_err(|_| ERANGE)?;
        Local::new(self.mr.memory(), 0, len)
    }

    /// Writes `value` to the beginning. Fails as [`Pages::write`] does.
    pub(crate) fn write(&self, value: &impl AsBytes) -> Result {
        self.pages.write(0, value)
    }

    /// Checks that the buffer begins with `bytes`, else fails with [`ebadmsg`].
    pub(crate) fn check(&self, bytes: &[u8]) -> Result {
        for (offset, byte) in crate::logic::numbered(bytes.iter()) {
            let mut found = [0];
            self.pages.read(offset as usize, &mut found)?;
            if found != [*byte] {
                return Err(ebadmsg());
            }
        }
        Ok(())
    }
}
