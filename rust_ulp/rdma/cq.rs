// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! `ib_alloc_cq()` makes them. They are polled, and the `done()` of each request is called, in the
//! context that [`PollContext`] names. A thread that waits can poll in place of a worker: see
//! [`Handler::completion`].

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
        atomic::{
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// The context in which a completion queue is polled: `enum ib_poll_context`.
///
/// ```
/// fn may_sleep(context: PollContext) -> bool {
///     context != PollContext::SoftIrq
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollContext {
    /// The caller of [`Cq::process`]; a worker while a queue pair is drained.
    Direct,
    /// A softirq: completion handlers must not sleep.
    SoftIrq,
    /// A worker on the core's workqueue, or a thread in [`Cq::serve`]: completion handlers run in
    /// process context.
    Workqueue,
}

/// The owner of a completion queue.
///
/// ```
/// struct Log;
///
/// impl Handler for Log {
///     fn event(&self, event: event::Event) {
///         pr_err!("a completion queue raised event {}\n", event.number());
///     }
/// }
/// ```
pub(crate) trait Handler: Send + Sync + 'static {
    /// The queue overflowed or failed: [`Event::CQ_ERR`]. Any context; must not sleep.
    fn event(&self, event: Event);

    /// The queue was empty and armed, and has a completion. Returns whether a thread was woken that
    /// will call [`Cq::serve`]; if not, a worker polls the queue. Any context; must not sleep.
    ///
    /// Not called unless the queue is [`PollContext::Workqueue`].
    fn completion(&self) -> bool {
        false
    }
}

/// The completions that a thread handles before it leaves the rest to a worker.
const SERVE_BUDGET: c_int = 256;
/// The completions that a worker handles before others get the CPU: `IB_POLL_BUDGET_WORKQUEUE`.
const WORK_BUDGET: c_int = 65536;

/// The context of a queue, which the driver and the worker get.
#[pin_data]
struct Context {
    handler: Arc<dyn Handler>,
    /// Whether completions call the handler or a worker: not those of a [`PollContext::Direct`]
    /// queue, but while a queue pair is drained.
    calls: AtomicFlag,
    /// Serializes the threads and the worker that poll, so that completions are handled in order.
    /// While it is held by others, no handler runs. Taken after `draining` and `Srq::joining`. Not taken
    /// for softirqs.
    #[pin]
    polling: Mutex<()>,
}

impl Context {
    /// # Safety
    ///
    /// Called by the driver, with the context of a queue.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The driver passes the context of the queue, which outlives the queue, and an
        // event that is valid during the call.
        let (this, event) = unsafe { (&*context.cast::<Self>(), &*event) };
        this.handler.event(Event::new(event));
    }

    /// # Safety
    ///
    /// Called by the driver, with a queue that is polled by work, and its context.
    unsafe extern "C" fn completion(cq: *mut bindings::ib_cq, context: *mut c_void) {
        // SAFETY: As in `event`.
        let this = unsafe { &*context.cast::<Self>() };
        if this.calls.load(Relaxed) && !this.handler.completion() {
            // SAFETY: By the requirement.
            unsafe { bindings::rust_ulp_h_queue_cq_work(cq) };
        }
    }

    /// # Safety
    ///
    /// Called with the work of a queue that has such a context.
    unsafe extern "C" fn work(work: *mut kernel::bindings::work_struct) {
        let mut context = core::ptr::null_mut();
        // SAFETY: By the requirement. `ib_free_cq()` waits for the work before it frees the queue
        // (`cancel_work_sync()`, drivers/infiniband/core/cq.c), and the context is freed later.
        unsafe {
            let cq = bindings::rust_ulp_h_cq_of_work(work, &mut context);
            (*context.cast::<Self>()).serve(cq, WORK_BUDGET);
        }
    }

    /// Polls the queue until it is empty, and arms it. After `budget` completions a worker goes on.
    /// Sleeps.
    ///
    /// # Safety
    ///
    /// `cq` is a queue with this context that no softirq polls.
    unsafe fn serve(&self, cq: *mut bindings::ib_cq, budget: c_int) {
        let mut left = budget;
        while left > 0 {
            // SAFETY: By the requirement.
            let done = unsafe { self.poll(cq, left) };
            // A driver may claim that there is more, and have nothing.
            left = left.saturating_sub(done.max(1));
            // SAFETY: By the requirement.
            if left > 0 && !unsafe { bindings::rust_ulp_h_arm_cq(cq, done) } {
                return;
            }
        }
        // SAFETY: By the requirement.
        unsafe { bindings::rust_ulp_h_queue_cq_work(cq) };
    }

    /// Handles at most `budget` completions, and returns how many. Sleeps.
    ///
    /// # Safety
    ///
    /// `cq` is a queue with this context that no softirq polls.
    unsafe fn poll(&self, cq: *mut bindings::ib_cq, budget: c_int) -> c_int {
        let _polling = self.polling.lock();
        // SAFETY: By the requirement. The lock keeps others from polling it.
        unsafe { bindings::ib_process_cq_direct(cq, budget) }
    }
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
/// - `ptr` is a completion queue of `device` with the context `context`, and this value owns it.
/// - `core_handler` is the core's handler of completions unless a softirq polls the queue.
#[pin_data(PinnedDrop)]
pub(crate) struct Cq {
    ptr: NonNull<bindings::ib_cq>,
    poll_context: PollContext,
    device: ARef<Device>,
    context: Arc<Context>,
    core_handler: bindings::ib_comp_handler,
    /// Held while a queue that completes here is drained: there is room for one such request. Taken
    /// after `Qp::modifying`.
    #[pin]
    draining: Mutex<()>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. `Context::polling` excludes those
// that poll from each other. The context has a `Handler`, which is `Send` and `Sync`.
unsafe impl Send for Cq {}
// SAFETY: As above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Allocates a completion queue for `entries` completions. Sleeps.
    ///
    /// Fails with [`EINVAL`] when the device has no completion vector with the number `vector`,
    /// which drivers do not check, or when it does not accept `entries`.
    pub(crate) fn new(
        device: &Device,
        entries: u32,
        vector: u32,
        poll_context: PollContext,
        handler: Arc<dyn Handler>,
    ) -> Result<Arc<Self>> {
        if entries == 0 || vector >= device.attributes().num_comp_vectors.max(1) {
            return Err(EINVAL);
        }
        let entries = c_int::try_from(entries).map_err(|_| EINVAL)?;
        let vector = c_int::try_from(vector).map_err(|_| EINVAL)?;
        let context = Arc::pin_init(
            pin_init!(Context {
                handler,
                calls: AtomicFlag::new(poll_context != PollContext::Direct),
                polling <- new_mutex!((), "rdma::Cq::polling"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: This value, or the guard below, frees the queue before the context goes.
        let ptr = unsafe { Self::alloc(device, entries, vector, poll_context, &context) }?;
        let free = kernel::types::ScopeGuard::new(|| {
            // SAFETY: The queue is owned and unused.
            unsafe { bindings::ib_free_cq(ptr.as_ptr()) };
        });
        let core_handler = match poll_context {
            // SAFETY: The queue is polled by work, and has no queue pair yet. The functions take
            // the context for what it is.
            PollContext::Direct | PollContext::Workqueue => unsafe {
                bindings::rust_ulp_h_take_over_cq(
                    ptr.as_ptr(),
                    Some(Context::completion),
                    Some(Context::work),
                )
            },
            PollContext::SoftIrq => None,
        };
        // INVARIANT: `ptr` was just allocated with this context.
        let cq = Arc::pin_init(
            try_pin_init!(Self {
                ptr,
                poll_context,
                device: device.into(),
                context: context.clone(),
                core_handler,
                draining <- new_mutex!((), "rdma::Cq::draining"),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        free.dismiss();
        Ok(cq)
    }

    /// Has the core allocate a queue with the context `context`. Sleeps.
    ///
    /// # Safety
    ///
    /// The context is valid until the queue is freed.
    unsafe fn alloc(
        device: &Device,
        entries: c_int,
        vector: c_int,
        poll_context: PollContext,
        context: &Arc<Context>,
    ) -> Result<NonNull<bindings::ib_cq>> {
        let raw_context = match poll_context {
            PollContext::SoftIrq => bindings::IB_POLL_SOFTIRQ,
            // Of `IB_POLL_DIRECT` queues, the core and the drivers wait a tenth of a second for each
            // queue that they drain (`__ib_drain_sq()`, drivers/infiniband/core/verbs.c:2926;
            // `handle_drain_completion()`, hw/mlx5/qp.c:5848).
            PollContext::Direct | PollContext::Workqueue => bindings::IB_POLL_WORKQUEUE,
        };
        fault::point()?;
        // SAFETY: The device is registered. The context is valid by the requirement, and `event`
        // takes it for what it is.
        let ptr = from_err_ptr(unsafe {
            bindings::rust_ulp_h_alloc_cq(
                device.as_raw(),
                Arc::as_ptr(context).cast_mut().cast::<c_void>(),
                entries,
                vector,
                raw_context,
                Some(Context::event),
            )
        })?;
        NonNull::new(ptr).ok_or(ENOMEM)
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
        // SAFETY: By the type invariant; no softirq polls the queue.
        let done = unsafe { self.context.poll(self.as_raw(), budget.into()) };
        u32::try_from(done).unwrap_or(0)
    }

    /// Handles what has completed in the context of the caller, and arms the queue: what
    /// [`Handler::completion`] promises. Sleeps. Leaves what is more than its share to a worker.
    ///
    /// Does nothing unless the queue is [`PollContext::Workqueue`]. The caller must not hold what
    /// its completion handlers wait for.
    pub(crate) fn serve(&self) {
        if self.poll_context == PollContext::Workqueue {
            // SAFETY: By the type invariant; the queue is polled by work.
            unsafe { self.context.serve(self.as_raw(), SERVE_BUDGET) };
        }
    }

    /// Handles what is in the queue now, and waits until what others have polled is handled. Sleeps.
    ///
    /// Of a queue pair that was destroyed or reset before, no completion is left: the device makes no
    /// others, and a driver need not take away those that were not polled.
    pub(super) fn empty(&self) {
        let _polling = self.context.polling.lock();
        // SAFETY: By the type invariant the queue is valid. The lock keeps others from polling it; the
        // helper stops a softirq that does.
        unsafe { bindings::rust_ulp_h_empty_cq(self.as_raw()) };
    }

    /// Runs `drain`, which may complete one request more than the queue has room for otherwise, and
    /// waits until it has completed. Sleeps.
    pub(super) fn with_reserve(&self, drain: impl FnOnce()) {
        let _draining = self.draining.lock();
        if self.poll_context != PollContext::Direct {
            return drain();
        }
        // Before the queue is armed, so that the handler of what completes later sees it.
        self.context.calls.xchg(true, Full);
        // SAFETY: By the type invariant; no softirq polls the queue.
        unsafe { self.context.serve(self.as_raw(), SERVE_BUDGET) };
        drain();
        // The queue stays armed, perhaps, and calls nobody.
        self.context.calls.store(false, Relaxed);
    }
}

#[pinned_drop]
impl PinnedDrop for Cq {
    fn drop(self: Pin<&mut Self>) {
        fault::step();
        // SAFETY: Owned.
        if unsafe { bindings::rust_ulp_h_cq_is_used(self.ptr.as_ptr()) } {
            // A driver did not destroy a queue pair: the queue cannot be freed.
            // SAFETY: Owned, and leaked.
            unsafe { bindings::rust_ulp_h_stop_cq(self.ptr.as_ptr(), self.core_handler) };
        } else {
            // SAFETY: Owned. The queue pairs that used it held references to this value, and the
            // core waits for its own polling.
            unsafe { bindings::ib_free_cq(self.ptr.as_ptr()) };
        }
        // The queue no longer exists, or calls nothing of this crate any more: the context may go.
    }
}
