// SPDX-License-Identifier: GPL-2.0

//! A workqueue of the module.
//!
//! The kernel crate has the system's workqueues only, which a module cannot wait for when it is
//! unloaded.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use core::{
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::Queue, //
};

/// A workqueue for work that sleeps, in no order, on any CPU.
///
/// ```
/// fn enqueue<W>(queue: &Workqueue, work: W) -> W::EnqueueOutput
/// where
///     W: ::kernel::workqueue::RawWorkItem<0> + Send + 'static,
/// {
///     queue.enqueue(work)
/// }
/// ```
///
/// # Invariants
///
/// `ptr` is a workqueue that this value owns.
pub(crate) struct Workqueue {
    ptr: NonNull<kernel::bindings::workqueue_struct>,
}

// SAFETY: Any context may queue work, which takes the lock of the pool
// (kernel/workqueue.c:__queue_work).
unsafe impl Send for Workqueue {}
// SAFETY: As above.
unsafe impl Sync for Workqueue {}

impl Workqueue {
    /// Creates a workqueue whose workers show `name`. Sleeps.
    pub(crate) fn new(name: &CStr) -> Result<Arc<Self>> {
        let (format, flags) = (c"%s".as_char_ptr(), kernel::bindings::wq_flags_WQ_UNBOUND);
        // SAFETY: The format takes one string. The kernel copies it.
        let ptr = unsafe {
            kernel::bindings::alloc_workqueue_noprof(format, flags, 0, name.as_char_ptr())
        };
        // INVARIANT: The workqueue was just created.
        let this = Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }
}

impl Deref for Workqueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        // SAFETY: By the type invariant. The result does not outlive `self`.
        unsafe { Queue::from_raw(self.ptr.as_ptr()) }
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The work in the queue is done first.
        unsafe { kernel::bindings::destroy_workqueue(self.ptr.as_ptr()) };
    }
}

/// Waits for all work in the workqueue when it is dropped.
///
/// Work that holds a reference to the workqueue must not drop the last one. The creator of a
/// workqueue keeps a `Drain`, and drops it when nobody queues work any more.
///
/// ```
/// fn new_queue() -> Result<(Arc<Workqueue>, Drain)> {
///     let queue = Workqueue::new(c"pinger")?;
///     Ok((queue.clone(), Drain(queue)))
/// }
/// ```
pub(crate) struct Drain(pub(crate) Arc<Workqueue>);

impl Drop for Drain {
    fn drop(&mut self) {
        // SAFETY: By the type invariant of the workqueue.
        unsafe { kernel::bindings::__flush_workqueue(self.0.ptr.as_ptr()) };
    }
}
