// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! `ib_create_cq()` makes them, with handlers of this file. Nobody else polls them: the contexts
//! that [`PollContext`] names do, and call the `done()` of each request. A thread that waits can
//! poll in place of a worker: see [`Handler::completion`].
//!
//! # What the core does with a queue of `ib_alloc_cq()` only
//!
//! The core's `ib_drain_sq()` and `ib_drain_rq()` demand such a queue. A [`Qp`](super::qp::Qp)
//! posts a last request of its own instead, and waits for it. `poll_ctx` of a queue of
//! `ib_create_cq()` is 0, which is `IB_POLL_SOFTIRQ`. In Linux 7.2.12 these functions read it,
//! below drivers/infiniband:
//!
//! - core/verbs.c:__ib_drain_sq(), __ib_drain_rq(), hw/mlx4/qp.c:handle_drain_completion(),
//!   hw/mlx5/qp.c:handle_drain_completion() and hw/hns/hns_roce_hw_v2.c:handle_drain_completion():
//!   only `ib_drain_sq()` and `ib_drain_rq()` call them. They poll an `IB_POLL_DIRECT` queue
//!   themselves, and when a device has failed, they wait for the core's work in the queue.
//! - core/cq.c:rdma_dim_init(), ib_free_cq() and the pools: they get queues of `ib_alloc_cq()`.
//! - hw/hns/hns_roce_main.c:check_and_get_armed_cq(): when a device has failed, it calls the
//!   handler of every queue that is not `IB_POLL_DIRECT`.
//! - core/nldev.c:fill_res_cq_entry() shows it.
//!
//! A failed device of mlx4, mlx5 or hns refuses the last request. Its driver has called the
//! handlers, and flushes what is polled (hw/mlx5/main.c:mlx5_ib_handle_internal_error(),
//! hw/mlx5/cq.c:mlx5_ib_poll_sw_comp()); the rest is completed after the queue pair was destroyed,
//! as `Qp::shut_down` does for every driver that refuses.

use super::{
    device::Device,
    event::Event, //
};
use crate::{
    bindings,
    ext::{
        fault,
        timer::{
            now_ns,
            Timer, //
        }, //
    },
    logic::poller::{
        Call,
        Tick, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::{
        c_int,
        c_void, //
    },
    new_mutex,
    pr_warn_once,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        rcu,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// The context in which a completion queue is polled.
///
/// ```
/// fn may_sleep(context: PollContext) -> bool {
///     context != PollContext::SoftIrq
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollContext {
    /// A softirq: completion handlers must not sleep.
    SoftIrq,
    /// A worker, or a thread in [`Cq::serve`]: completion handlers run in process context.
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

    /// Called by a worker or a softirq after [`Self::event`], and at other times. Must not sleep.
    fn after_event(&self) {}

    /// The queue was armed, and has a completion. Calls a thread that will call [`Cq::serve`], or
    /// returns [`Call::Nobody`]: a worker polls the queue. Any context; must not sleep.
    ///
    /// Not called unless the queue is [`PollContext::Workqueue`].
    fn completion(&self) -> Call {
        Call::Nobody
    }

    /// Looks [`TICK_NS`] after [`Self::completion`] whether the thread has come. Softirq.
    fn tick(&self) -> Tick {
        Tick::Stop
    }
}

/// The nanoseconds after which [`Handler::tick`] is called. A worker takes over from a thread that
/// has not come after two of them.
const TICK_NS: u64 = 4_000_000;

/// The completions that a thread, or a softirq, handles before it leaves the rest to others.
const SERVE_BUDGET: c_int = 256;
/// The completions that a worker handles before others get the CPU, and the lock: the most in one hold
/// of that.
const WORK_BUDGET: c_int = 1024;

/// The context of a queue, which the driver and the worker get.
///
/// # Invariants
///
/// - `ptr` is a completion queue whose context is this value.
/// - `handler` is valid while `is_open` is set, and until the RCU read sections that began before
///   it was cleared have ended.
#[pin_data]
struct Context {
    handler: NonNull<dyn Handler>,
    poll_context: PollContext,
    /// Whether the handler is called.
    is_open: AtomicFlag,
    /// Whether the last poll has left nothing in the queue.
    was_emptied: AtomicFlag,
    /// Serializes the threads and the worker that poll, so that completions are handled in order.
    /// While it is held by others, no handler runs. Taken after `draining` and `Srq::joining`. Not
    /// taken by softirqs.
    #[pin]
    polling: Mutex<()>,
    /// Polls the queue and arms it: in a worker, or in a softirq.
    #[pin]
    work: Opaque<kernel::bindings::work_struct>,
    /// Calls [`Handler::tick`].
    #[pin]
    timer: Timer,
    ptr: NonNull<bindings::ib_cq>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. `polling` excludes those that poll
// from each other, and a softirq does not run its work twice at once. A `Handler` is `Send` and
// `Sync`. The functions of workqueues change `work` atomically.
unsafe impl Send for Context {}
// SAFETY: As above.
unsafe impl Sync for Context {}

impl Context {
    /// Creates the queue, not armed, with its context. Sleeps.
    ///
    /// # Safety
    ///
    /// `handler` is valid as the type invariant says.
    unsafe fn new(
        device: &Device,
        entries: u32,
        vector: u32,
        poll_context: PollContext,
        handler: NonNull<dyn Handler>,
    ) -> Result<Arc<Self>> {
        let is_softirq = poll_context == PollContext::SoftIrq;
        // INVARIANT: `create` makes a queue with this context.
        Arc::pin_init(
            try_pin_init!(&this in Self {
                handler,
                poll_context,
                is_open: AtomicFlag::new(true),
                was_emptied: AtomicFlag::new(true),
                polling <- new_mutex!((), "rdma::Cq::polling"),
                work <- Opaque::ffi_init(|work| {
                    // SAFETY: `work` is memory for a work item, which is pinned from here on.
                    unsafe { bindings::rust_ulp_h_init_cq_work(work, Some(Self::work), is_softirq) }
                }),
                // SAFETY: The timer starts when the queue was armed, and stops before the context
                // goes.
                timer <- unsafe { Timer::new(Self::tick, this.as_ptr().cast_const().cast()) },
                // SAFETY: All other fields are initialized, and nothing fails after this. No event is
                // raised before a queue pair uses the queue, and then the value is complete.
                ptr: unsafe { Self::create(device, this.as_ptr(), entries, vector) }?,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Has the driver create a queue whose context is `this`. Sleeps.
    ///
    /// # Safety
    ///
    /// `this` is initialized but for `ptr`, and outlives the queue. `ptr` is set before the queue
    /// is armed, and before it raises an event.
    unsafe fn create(
        device: &Device,
        this: *mut Self,
        entries: u32,
        vector: u32,
    ) -> Result<NonNull<bindings::ib_cq>> {
        fault::point()?;
        // SAFETY: The device is registered. The functions take the context for what it is.
        let ptr = from_err_ptr(unsafe {
            bindings::rust_ulp_h_create_cq(
                device.as_raw(),
                Some(Self::completion),
                Some(Self::event),
                this.cast::<c_void>(),
                entries,
                vector,
            )
        })?;
        NonNull::new(ptr).ok_or(ENOMEM)
    }

    /// Calls `f` with the handler, if there still is one. Any context.
    fn with_handler<T>(&self, f: impl FnOnce(&dyn Handler) -> T) -> Option<T> {
        let _rcu = rcu::read_lock();
        // SAFETY: By the type invariant; this is an RCU read section.
        (self.is_open.load(Relaxed)).then(|| f(unsafe { self.handler.as_ref() }))
    }

    /// # Safety
    ///
    /// Called by the driver, with the context of a queue.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The driver passes the context of the queue, which outlives the queue, and an
        // event that is valid during the call.
        let (this, event) = unsafe { (&*context.cast::<Self>(), &*event) };
        this.with_handler(|handler| handler.event(Event::new(event)));
        this.queue_work();
    }

    /// # Safety
    ///
    /// Called by the driver, with the context of a queue that was armed.
    unsafe extern "C" fn completion(_cq: *mut bindings::ib_cq, context: *mut c_void) {
        // SAFETY: As in `event`.
        let this = unsafe { &*context.cast::<Self>() };
        let call = match this.poll_context {
            PollContext::Workqueue => this.with_handler(|handler| handler.completion()),
            PollContext::SoftIrq => None,
        };
        match call {
            None | Some(Call::Nobody) => this.queue_work(),
            Some(Call::Start) => this.start_timer(),
            Some(Call::Threads) => (),
        }
    }

    /// Has [`Self::tick`] called in [`TICK_NS`]. Any context.
    fn start_timer(&self) {
        self.timer.start(now_ns().saturating_add(TICK_NS));
    }

    /// # Safety
    ///
    /// Called by the timer of a context, with the context.
    unsafe extern "C" fn tick(this: *const c_void) {
        // SAFETY: By the requirement. The drop of the timer waits for this function.
        let this = unsafe { &*this.cast::<Self>() };
        match this.with_handler(|handler| handler.tick()) {
            None | Some(Tick::Stop) => (),
            Some(Tick::Again) => this.start_timer(),
            Some(Tick::TakeOver) => this.queue_work(),
        }
    }

    /// Has the worker, or a softirq, poll the queue. Any context.
    fn queue_work(&self) {
        let is_softirq = self.poll_context == PollContext::SoftIrq;
        // SAFETY: The work is initialized. The drop of `Cq` disables it and waits for it, before
        // the queue and its context go.
        unsafe { bindings::rust_ulp_h_queue_cq_work(self.work.get(), is_softirq) };
    }

    /// # Safety
    ///
    /// Called with the work of a context.
    unsafe extern "C" fn work(work: *mut kernel::bindings::work_struct) {
        let work = Opaque::cast_from(work);
        // SAFETY: By the requirement. The context outlives its work, see `queue_work`.
        let this = unsafe { &*kernel::container_of!(work, Self, work) };
        this.with_handler(|handler| handler.after_event());
        if this.poll_context == PollContext::SoftIrq {
            // SAFETY: The work of a queue runs once at a time, and nobody else polls, see
            // `Cq::empty`.
            if !unsafe { this.poll_and_arm(SERVE_BUDGET) } {
                this.queue_work();
            }
        } else {
            this.serve(WORK_BUDGET);
        }
    }

    /// Polls the queue until it is empty, and arms it. After `budget` completions a worker goes on.
    /// Sleeps. The queue is [`PollContext::Workqueue`].
    fn serve(&self, budget: c_int) {
        let polling = self.polling.lock();
        // SAFETY: The lock keeps others from polling the queue.
        let is_armed = unsafe { self.poll_and_arm(budget) };
        drop(polling);
        if !is_armed {
            self.queue_work();
        }
    }

    /// Arms the queue, and does what [`Self::serve`] does if it may have completions. Sleeps.
    ///
    /// A driver need only report what came since the last poll, see `ib_req_notify_cq()`
    /// (include/rdma/ib_verbs.h).
    fn arm(&self, budget: c_int) {
        let polling = self.polling.lock();
        let is_done = self.was_emptied.load(Relaxed)
            // SAFETY: By the type invariant.
            && !unsafe { bindings::rust_ulp_h_arm_cq(self.ptr.as_ptr()) };
        drop(polling);
        if !is_done {
            self.serve(budget);
        }
    }

    /// Handles at most `budget` completions. Returns whether the queue is empty, and armed.
    ///
    /// # Safety
    ///
    /// Nobody else polls the queue.
    unsafe fn poll_and_arm(&self, budget: c_int) -> bool {
        let mut left = budget;
        while left > 0 {
            // SAFETY: By the requirement.
            let done = unsafe { self.poll(left) };
            // A driver may claim that there is more, and have nothing.
            left = left.saturating_sub(done.max(1));
            // SAFETY: By the type invariant.
            if left > 0 && !unsafe { bindings::rust_ulp_h_arm_cq(self.ptr.as_ptr()) } {
                return true;
            }
        }
        false
    }

    /// Handles at most `budget` completions, and returns how many.
    ///
    /// # Safety
    ///
    /// Nobody else polls the queue.
    unsafe fn poll(&self, budget: c_int) -> c_int {
        // SAFETY: By the type invariant and the requirement.
        let done = unsafe { bindings::ib_process_cq_direct(self.ptr.as_ptr(), budget) };
        self.was_emptied.store(done < budget, Relaxed);
        done
    }
}

/// The workers that poll the completion queues of this module, and the name of the owner of its
/// objects. There is one such value at a time.
pub(super) struct Workers(());

impl Workers {
    /// Starts them. Sleeps. Fails with [`EBUSY`] when they run.
    pub(super) fn new() -> Result<Self> {
        // SAFETY: The module is initialized in one thread.
        to_result(unsafe { bindings::rust_ulp_h_start() })?;
        Ok(Self(()))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: They run. No completion queue is left that would use them: no device has a client
        // of this module any more. `Pd::drop` keeps the name for a domain that stays, and what is in
        // that has the same.
        unsafe { bindings::rust_ulp_h_stop() };
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
/// `context` has a completion queue of `device`, which this value owns, and `handler`.
#[pin_data(PinnedDrop)]
pub(crate) struct Cq {
    context: Arc<Context>,
    /// Kept for the context, which has a pointer to it.
    handler: Arc<dyn Handler>,
    device: ARef<Device>,
    /// Held while a queue that completes here is drained: there is room for one such request. Taken
    /// after `Qp::modifying`.
    #[pin]
    draining: Mutex<()>,
}

impl Cq {
    /// Creates a completion queue for `entries` completions. Sleeps.
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
        let is_valid = c_int::try_from(entries).is_ok_and(|entries| entries > 0);
        if !is_valid || vector >= device.attributes().num_comp_vectors.max(1) {
            return Err(EINVAL);
        }
        let raw_handler = NonNull::from(&*handler);
        // INVARIANT: The queue is created with this handler.
        let cq = Arc::pin_init(
            try_pin_init!(Self {
                handler,
                // SAFETY: Nothing fails after this, and the drop of this value keeps the handler
                // until the queue is destroyed, or closed.
                context: unsafe {
                    Context::new(device, entries, vector, poll_context, raw_handler)
                }?,
                device: device.into(),
                draining <- new_mutex!((), "rdma::Cq::draining"),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: By the type invariant of the context. The queue is empty.
        unsafe { bindings::rust_ulp_h_arm_cq(cq.as_raw()) };
        Ok(cq)
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.context.ptr.as_ptr()
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Handles some of what has completed in the context of the caller, and returns whether that
    /// was anything. Does not arm the queue. Sleeps.
    ///
    /// Does nothing unless the queue is [`PollContext::Workqueue`]. The caller must not hold what
    /// its completion handlers wait for.
    pub(crate) fn process(&self) -> bool {
        if self.context.poll_context != PollContext::Workqueue {
            return false;
        }
        let _polling = self.context.polling.lock();
        // SAFETY: The lock keeps others from polling the queue.
        unsafe { self.context.poll(SERVE_BUDGET) > 0 }
    }

    /// Handles what has completed in the context of the caller, and arms the queue: what
    /// [`Handler::completion`] promises. Sleeps. Leaves what is more than its share to a worker.
    ///
    /// Does nothing unless the queue is [`PollContext::Workqueue`]. The caller must not hold what
    /// its completion handlers wait for.
    pub(crate) fn serve(&self) {
        if self.context.poll_context == PollContext::Workqueue {
            self.context.serve(SERVE_BUDGET);
        }
    }

    /// Does what [`Self::serve`] does, but arms the queue first, and polls only if the driver then
    /// reports completions. Sleeps. For a thread that stops to wait.
    pub(crate) fn arm(&self) {
        if self.context.poll_context == PollContext::Workqueue {
            self.context.arm(SERVE_BUDGET);
        }
    }

    /// Has a worker, or a softirq, poll the queue, though the driver has reported nothing. Any
    /// context.
    pub(super) fn look(&self) {
        self.context.queue_work();
    }

    /// Handles what is in the queue now, and waits until what others have polled is handled.
    /// Sleeps.
    ///
    /// Of a queue pair that was destroyed or reset before, no completion is left: the device makes
    /// no others, and a driver need not take away those that were not polled. They are no more than
    /// the queue has entries: later ones are of other queue pairs.
    pub(super) fn empty(&self) {
        let context = &*self.context;
        let is_softirq = context.poll_context == PollContext::SoftIrq;
        if is_softirq {
            // SAFETY: The work is initialized, and the caller may sleep.
            unsafe { kernel::bindings::disable_work_sync(context.work.get()) };
        }
        // SAFETY: By the type invariant of the context.
        let mut left = unsafe { bindings::rust_ulp_h_cq_entries(self.as_raw()) };
        while left > 0 {
            let polling = context.polling.lock();
            // SAFETY: The lock keeps others from polling the queue, and no softirq does.
            let done = unsafe { context.poll(left.min(WORK_BUDGET)) };
            drop(polling);
            if done <= 0 {
                break;
            }
            left = left.saturating_sub(done);
        }
        if is_softirq {
            // SAFETY: The work was disabled above.
            unsafe { kernel::bindings::enable_work(context.work.get()) };
            // A call of the driver in between had no effect: run the work once.
            context.queue_work();
        }
    }

    /// Runs `drain`, which may complete one request more than the queue has room for otherwise, and
    /// waits until it has completed; returns its result. Sleeps.
    ///
    /// `drain` gets the work that polls the queue, and whether it is one of a softirq.
    pub(super) fn with_reserve<T>(
        &self,
        drain: impl FnOnce(*mut kernel::bindings::work_struct, bool) -> T,
    ) -> T {
        let _draining = self.draining.lock();
        let context = &self.context;
        drain(
            context.work.get(),
            context.poll_context == PollContext::SoftIrq,
        )
    }
}

#[pinned_drop]
impl PinnedDrop for Cq {
    fn drop(self: Pin<&mut Self>) {
        fault::step();
        let context = &self.context;
        // SAFETY: The work is initialized. From here on nothing runs it.
        unsafe { kernel::bindings::disable_work_sync(context.work.get()) };
        // SAFETY: Owned. The queue pairs that used it held references to this value.
        let err = unsafe { bindings::ib_destroy_cq_user(self.as_raw(), core::ptr::null_mut()) };
        if err == 0 {
            return;
        }
        // It has a queue pair that the driver did not destroy, or the driver refuses.
        pr_warn_once!(
            "a completion queue cannot be destroyed: {}; it is leaked, the module stays\n",
            err
        );
        // The driver calls the functions of the context as long as the queue exists.
        // SAFETY: Nothing but a call.
        unsafe { bindings::rust_ulp_h_keep_module() };
        core::mem::forget(context.clone());
        context.is_open.store(false, Relaxed);
        // INVARIANT: The handler goes after this.
        // SAFETY: The caller may sleep, outside of RCU read sections.
        unsafe { kernel::bindings::synchronize_rcu() };
    }
}
