// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! `ib_alloc_cq()` makes them: the core polls them and calls the `done()` of each request, in the
//! context that [`PollContext`] names.

use super::{
    device::Device,
    event::Event, //
};
use crate::{
    bindings,
    kernel::fault, //
};
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    ffi::{
        c_int,
        c_void, //
    },
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    }, //
};

/// The context in which a completion queue is polled: `enum ib_poll_context`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollContext {
    /// The caller of [`Cq::process`].
    Direct,
    /// A softirq: completion handlers must not sleep.
    SoftIrq,
    /// A worker of the core: completion handlers run in process context.
    Workqueue,
}

/// The owner of a completion queue.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The queue overflowed or failed: [`Event::CQ_ERR`]. Any context; must not sleep.
    fn event(&self, event: Event);
}

/// A completion queue: `struct ib_cq`.
///
/// ```
/// fn queue(device: &device::Device, requests: u32) -> Result<Arc<Cq>> {
///     let handler = Arc::new(waiter::WaitHandler, GFP_KERNEL)?;
///     let entries = requests.checked_add(qp::CQ_RESERVE).ok_or(ERANGE)?;
///     Cq::new(device, entries, 0, PollContext::Workqueue, handler)
/// }
/// ```
///
/// # Invariants
///
/// - `ptr` is a completion queue of `device` that this value owns.
/// - `context` came out of `Arc::into_raw`, and `drop_context` frees it.
#[pin_data(PinnedDrop)]
pub(crate) struct Cq {
    ptr: NonNull<bindings::ib_cq>,
    poll_context: PollContext,
    device: ARef<Device>,
    context: *const c_void,
    drop_context: unsafe fn(*const c_void),
    /// Serializes direct polling, so that completions are handled in order. While it is held by
    /// others, no handler runs. Taken after `draining`.
    #[pin]
    polling: Mutex<()>,
    /// Held while a queue that completes here is drained: there is room for one such request. Taken
    /// after `Qp::modifying` and `Srq::marks`.
    #[pin]
    draining: Mutex<()>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. `polling` excludes callers that
// poll directly from each other. The context is a `Handler`, which is `Send` and `Sync`.
unsafe impl Send for Cq {}
// SAFETY: As above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Allocates a completion queue for `entries` completions. Sleeps.
    ///
    /// `vector` is less than the number of completion vectors of the device. Fails with [`EINVAL`]
    /// when the device does not accept one of them.
    pub(crate) fn new<H: Handler>(
        device: &Device,
        entries: u32,
        vector: u32,
        poll_context: PollContext,
        handler: Arc<H>,
    ) -> Result<Arc<Self>> {
        let entries = c_int::try_from(entries).map_err(|_| EINVAL)?;
        let vector = c_int::try_from(vector).map_err(|_| EINVAL)?;
        if entries == 0 {
            return Err(EINVAL);
        }
        let context = Arc::into_raw(handler).cast::<c_void>();
        // SAFETY: The context is valid until the queue is freed.
        let ptr = unsafe { Self::alloc::<H>(device, entries, vector, poll_context, context) }
            .inspect_err(|_| {
                // SAFETY: The context came out of `Arc::into_raw` above, and is not used any more.
                unsafe { Self::drop_context::<H>(context) };
            })?;
        let free = kernel::types::ScopeGuard::new(|| {
            // SAFETY: The queue is owned and unused, and the context is freed after it.
            unsafe {
                bindings::ib_free_cq(ptr.as_ptr());
                Self::drop_context::<H>(context);
            }
        });
        // INVARIANT: `ptr` was just allocated, `context` came out of `Arc::into_raw`.
        let cq = Arc::pin_init(
            try_pin_init!(Self {
                ptr,
                poll_context,
                device: device.into(),
                context,
                drop_context: Self::drop_context::<H>,
                polling <- new_mutex!((), "rdma::Cq::polling"),
                draining <- new_mutex!((), "rdma::Cq::draining"),
            }? Error),
            GFP_KERNEL,
        )?;
        free.dismiss();
        Ok(cq)
    }

    /// Has the core allocate a queue with the context `context`. Sleeps.
    ///
    /// # Safety
    ///
    /// `context` came out of `Arc::<H>::into_raw`, and is valid until the queue is freed.
    unsafe fn alloc<H: Handler>(
        device: &Device,
        entries: c_int,
        vector: c_int,
        poll_context: PollContext,
        context: *const c_void,
    ) -> Result<NonNull<bindings::ib_cq>> {
        let raw_context = match poll_context {
            PollContext::Direct => bindings::IB_POLL_DIRECT,
            PollContext::SoftIrq => bindings::IB_POLL_SOFTIRQ,
            PollContext::Workqueue => bindings::IB_POLL_WORKQUEUE,
        };
        fault::point()?;
        // SAFETY: The device is registered. The context is valid by the requirement, and `event`
        // takes it for what it is.
        let ptr = from_err_ptr(unsafe {
            bindings::rust_ulp_h_alloc_cq(
                device.as_raw(),
                context.cast_mut(),
                entries,
                vector,
                raw_context,
                Some(Self::event::<H>),
            )
        })?;
        NonNull::new(ptr).ok_or(ENOMEM)
    }

    /// # Safety
    ///
    /// `context` came out of `Arc::<H>::into_raw`, and is not used any more.
    unsafe fn drop_context<H: Handler>(context: *const c_void) {
        // SAFETY: By the requirement.
        drop(unsafe { Arc::from_raw(context.cast::<H>()) });
    }

    /// # Safety
    ///
    /// Called by the driver, with the context of a queue that was made for an `H`.
    unsafe extern "C" fn event<H: Handler>(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The driver passes the context of the queue, which outlives the queue, and an
        // event that is valid during the call.
        let (handler, event) = unsafe { (&*context.cast::<H>(), &*event) };
        handler.event(Event::new(event));
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.ptr.as_ptr()
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Handles at most `budget` completions in the context of the caller, and returns how many.
    /// Sleeps.
    ///
    /// Does nothing unless the queue is [`PollContext::Direct`].
    pub(crate) fn process(&self, budget: u16) -> u32 {
        if self.poll_context != PollContext::Direct {
            return 0;
        }
        let _polling = self.polling.lock();
        // SAFETY: The queue is valid and polled directly, and the lock keeps others from polling
        // it.
        let done = unsafe { bindings::ib_process_cq_direct(self.as_raw(), budget.into()) };
        u32::try_from(done).unwrap_or(0)
    }

    /// Runs `drain`, which may complete one request more than the queue has room for otherwise.
    /// Sleeps.
    ///
    /// The core's draining polls a [`PollContext::Direct`] queue. The lock keeps others from
    /// polling it, and waits for those that handle what they polled before.
    pub(super) fn with_reserve(&self, drain: impl FnOnce()) {
        let _draining = self.draining.lock();
        let _polling = (self.poll_context == PollContext::Direct).then(|| self.polling.lock());
        drain();
    }
}

#[pinned_drop]
impl PinnedDrop for Cq {
    fn drop(self: Pin<&mut Self>) {
        fault::step();
        // SAFETY: Owned. The queue pairs that used it held references to this value, and the core
        // waits for its own polling.
        unsafe { bindings::ib_free_cq(self.ptr.as_ptr()) };
        // SAFETY: By the type invariant. The queue no longer exists, so nothing uses the context.
        unsafe { (self.drop_context)(self.context) };
    }
}
