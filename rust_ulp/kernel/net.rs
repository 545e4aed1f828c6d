// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use crate::bindings;
use core::ptr::NonNull;

/// A reference to a network namespace.
///
/// # Invariants
///
/// `ptr` is a namespace of which this value owns a reference.
pub(crate) struct NetNs {
    ptr: NonNull<kernel::bindings::net>,
}

// SAFETY: The reference count of a namespace is atomic, and nothing else is touched.
unsafe impl Send for NetNs {}
// SAFETY: As above.
unsafe impl Sync for NetNs {}

impl NetNs {
    /// The namespace of the current process, or [`None`] for a task that is exiting.
    pub(crate) fn current() -> Option<Self> {
        // SAFETY: Takes no argument; the helper reads the current task's namespaces, which only
        // that task changes.
        let ptr = unsafe { bindings::rust_ulp_h_current_net() };
        // INVARIANT: The helper took a reference.
        NonNull::new(ptr).map(|ptr| Self { ptr })
    }

    /// The C pointer, valid while `self` is.
    pub(crate) fn as_ptr(&self) -> *mut kernel::bindings::net {
        self.ptr.as_ptr()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the reference is ours to give back.
        unsafe { bindings::rust_ulp_h_put_net(self.ptr.as_ptr()) };
    }
}
