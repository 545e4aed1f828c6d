// SPDX-License-Identifier: GPL-2.0

//! Eventfds.
//!
//! C header: [`include/linux/eventfd.h`](srctree/include/linux/eventfd.h)

use core::ptr::NonNull;
use kernel::{
    bindings::eventfd_ctx,
    error::from_err_ptr,
    prelude::*, //
};

/// The counter of an eventfd.
///
/// ```
/// fn signal(fd: i32) -> Result {
///     EventFd::get(fd)?.signal();
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// The value owns a reference to the context.
pub(crate) struct EventFd(NonNull<eventfd_ctx>);

// SAFETY: References are a `kref`, and the counter changes under the lock of the wait queue
// (fs/eventfd.c:eventfd_signal_mask).
unsafe impl Send for EventFd {}
// SAFETY: As above.
unsafe impl Sync for EventFd {}

impl EventFd {
    /// Returns the eventfd with the descriptor `fd` of the current process. Process context. Fails
    /// with [`EBADF`], and with [`EINVAL`] when the descriptor is no eventfd.
    pub(crate) fn get(fd: i32) -> Result<Self> {
        // SAFETY: The function looks `fd` up in the current process.
        let ptr = from_err_ptr(unsafe { kernel::bindings::eventfd_ctx_fdget(fd) })?;
        // INVARIANT: The reference was just taken.
        Ok(Self(NonNull::new(ptr).ok_or(EBADF)?))
    }

    /// Adds one to the counter. Any context.
    pub(crate) fn signal(&self) {
        // SAFETY: By the type invariant.
        unsafe { kernel::bindings::eventfd_signal_mask(self.0.as_ptr(), 0) };
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { kernel::bindings::eventfd_ctx_put(self.0.as_ptr()) };
    }
}
