// SPDX-License-Identifier: GPL-2.0

//! A workqueue of our own.
//!
//! The kernel crate has the system's, which nobody can wait for when the module goes.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::bindings;
use core::{
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::Queue, //
};

/// A workqueue: work that sleeps, in no order, on any CPU.
///
/// # Invariants
///
/// `ptr` is a workqueue, owned.
pub(crate) struct Workqueue {
    ptr: NonNull<kernel::bindings::workqueue_struct>,
}

// SAFETY: Any context may queue work: `__queue_work()` takes the lock of the pool
// (kernel/workqueue.c:2275).
unsafe impl Send for Workqueue {}
// SAFETY: As above.
unsafe impl Sync for Workqueue {}

impl Workqueue {
    /// Makes a workqueue. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // SAFETY: Takes nothing.
        let ptr = unsafe { bindings::rust_ulp_h_alloc_workqueue() };
        // INVARIANT: Just made.
        let this = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }
}

impl Deref for Workqueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        // SAFETY: By the type invariant; the result does not outlive `self`.
        unsafe { Queue::from_raw(self.ptr.as_ptr()) }
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. What is in it is done first.
        unsafe { kernel::bindings::destroy_workqueue(self.ptr.as_ptr()) };
    }
}

/// Waits, when it is dropped, until all work in the workqueue is done.
///
/// Work that holds what holds the workqueue must not drop it last: who makes a workqueue keeps one
/// of these, and drops it when nobody enqueues any more.
pub(crate) struct Drain(pub(crate) Arc<Workqueue>);

impl Drop for Drain {
    fn drop(&mut self) {
        // SAFETY: By the type invariant of the workqueue.
        unsafe { bindings::rust_ulp_h_flush_workqueue(self.0.ptr.as_ptr()) };
    }
}
