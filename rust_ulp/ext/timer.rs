// SPDX-License-Identifier: GPL-2.0

//! Timers that fire in a softirq, or have a worker call a function.
//!
//! The kernel crate's `HrTimer` is started through the pointer that owns its container. This one is
//! started through a reference, which may be under a lock.
//!
//! C headers: [`include/linux/hrtimer.h`](srctree/include/linux/hrtimer.h),
//! [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::bindings::{
    rust_ulp_h_init_timer_work,
    rust_ulp_h_queue_timer_work, //
};
use kernel::{
    bindings,
    ffi::c_void,
    prelude::*,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    types::Opaque, //
};

/// A timer.
///
/// ```
/// fn in_a_second(timer: &Timer) {
///     timer.start(now_ns().saturating_add(1_000_000_000));
/// }
/// ```
///
/// # Invariants
///
/// `raw` is initialized, and calls [`Self::fire`]. `expired` may be called with `context` then.
#[pin_data(PinnedDrop)]
pub(crate) struct Timer {
    #[pin]
    raw: Opaque<bindings::hrtimer>,
    expired: unsafe extern "C" fn(*const c_void),
    context: *const c_void,
}

// SAFETY: The kernel changes a timer under the lock of its base
// (kernel/time/hrtimer.c:hrtimer_start_range_ns and hrtimer_try_to_cancel).
unsafe impl Send for Timer {}
// SAFETY: As above.
unsafe impl Sync for Timer {}

impl Timer {
    /// Creates a timer that calls `expired` with `context` in a softirq.
    ///
    /// # Safety
    ///
    /// `expired` may be called with `context` from the first [`Self::start`] on, until the timer is
    /// dropped, or until [`Self::cancel`] returns and nobody starts it again.
    pub(crate) unsafe fn new(
        expired: unsafe extern "C" fn(*const c_void),
        context: *const c_void,
    ) -> impl PinInit<Self> {
        // INVARIANT: By the requirement.
        pin_init!(Self {
            raw <- Opaque::ffi_init(|raw| {
                // SAFETY: `raw` is memory for a timer, which does not move.
                unsafe {
                    bindings::hrtimer_setup(
                        raw,
                        Some(Self::fire),
                        bindings::CLOCK_MONOTONIC as bindings::clockid_t,
                        bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT,
                    )
                }
            }),
            expired,
            context,
        })
    }

    /// Called in a softirq.
    ///
    /// # Safety
    ///
    /// `raw` is a field of a timer.
    unsafe extern "C" fn fire(raw: *mut bindings::hrtimer) -> bindings::hrtimer_restart {
        // SAFETY: By the requirement. A timer that is dropped waits for this function.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(raw), Self, raw) };
        // SAFETY: By the type invariant.
        unsafe { (this.expired)(this.context) };
        // `HRTIMER_NORESTART`, whose name differs between kernels.
        // SAFETY: An integer in 7.2, from 7.3 on a struct of one. The value is 0.
        unsafe { core::mem::zeroed() }
    }

    /// Sets the time to `at_ns`, in the time of [`now_ns`]. Any context.
    pub(crate) fn start(&self, at_ns: u64) {
        let at = i64::try_from(at_ns).unwrap_or(i64::MAX);
        let mode = bindings::hrtimer_mode_HRTIMER_MODE_ABS_SOFT;
        // SAFETY: By the type invariant the timer is initialized.
        unsafe { bindings::hrtimer_start_range_ns(self.raw.get(), at, 0, mode) };
    }

    /// Stops the timer, and waits until its function has returned. Process context, without locks
    /// that the function takes.
    pub(crate) fn cancel(&self) {
        // SAFETY: By the type invariant the timer is initialized.
        unsafe { bindings::hrtimer_cancel(self.raw.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for Timer {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// A timer that has a worker call a function, in process context.
///
/// ```
/// fn in_a_second(timer: &WorkTimer) {
///     timer.start(now_ns().saturating_add(1_000_000_000));
/// }
/// ```
///
/// # Invariants
///
/// - `timer` calls [`Self::fire`] with `work`.
/// - `work` is initialized, and calls [`Self::run`]. `expired` may be called with `context` then.
#[pin_data(PinnedDrop)]
pub(crate) struct WorkTimer {
    #[pin]
    timer: Timer,
    #[pin]
    work: Opaque<bindings::work_struct>,
    expired: unsafe extern "C" fn(*const c_void),
    context: *const c_void,
}

// SAFETY: A timer is `Send` and `Sync`, and the functions of workqueues change `work` atomically.
unsafe impl Send for WorkTimer {}
// SAFETY: As above.
unsafe impl Sync for WorkTimer {}

impl WorkTimer {
    /// Creates a timer that has a worker call `expired` with `context`.
    ///
    /// # Safety
    ///
    /// `expired` may be called with `context` from the first [`Self::start`] on, until the timer is
    /// dropped, or until [`Self::cancel`] returns.
    pub(crate) unsafe fn new(
        expired: unsafe extern "C" fn(*const c_void),
        context: *const c_void,
    ) -> impl PinInit<Self> {
        // INVARIANT: By the requirement.
        pin_init!(&this in Self {
            work <- Opaque::ffi_init(|work| {
                // SAFETY: `work` is memory for a work item, which does not move.
                unsafe { rust_ulp_h_init_timer_work(work, Some(Self::run)) }
            }),
            // SAFETY: `fire` takes a pointer to `work`, and a timer goes before that: `cancel`.
            timer <- unsafe { Timer::new(Self::fire, (&raw const (*this.as_ptr()).work).cast()) },
            expired,
            context,
        })
    }

    /// Called in a softirq. Work that is queued already is not queued twice.
    ///
    /// # Safety
    ///
    /// `work` is a field of a timer.
    unsafe extern "C" fn fire(work: *const c_void) {
        // SAFETY: By the requirement. The timer waits for its work before it is dropped.
        unsafe { rust_ulp_h_queue_timer_work(work.cast_mut().cast()) };
    }

    /// Called by a worker.
    ///
    /// # Safety
    ///
    /// `work` is a field of a timer.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: By the requirement. A timer that is dropped waits for this function.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), Self, work) };
        // SAFETY: By the type invariant.
        unsafe { (this.expired)(this.context) };
    }

    /// Sets the time to `at_ns`, in the time of [`now_ns`]. Any context.
    pub(crate) fn start(&self, at_ns: u64) {
        self.timer.start(at_ns);
    }

    /// Stops the timer for good, and waits until its function has returned. Sleeps; the caller holds
    /// no lock that the function takes.
    pub(crate) fn cancel(&self) {
        // SAFETY: By the type invariant the work is initialized. From here on it is not queued,
        // whatever the timer does, and its function does not start the timer.
        unsafe { bindings::disable_work_sync(self.work.get()) };
        self.timer.cancel();
    }
}

#[pinned_drop]
impl PinnedDrop for WorkTimer {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// Returns what the time namespace of the current task adds to the time of [`now_ns`].
fn offset_ns() -> i64 {
    // SAFETY: The function reads the namespaces of the current task, which no other task replaces
    // (kernel/nsproxy.c:switch_task_namespaces).
    unsafe { crate::bindings::rust_ulp_h_timens_offset() }
}

/// Converts a time of [`now_ns`] to `CLOCK_MONOTONIC` as the current task sees it. Process context.
pub(crate) fn to_task_ns(time: u64) -> u64 {
    time.saturating_add_signed(offset_ns())
}

/// Returns the jiffies, at least one, of a sleep that ends not before `ns` nanoseconds, or before 24
/// days.
pub(crate) fn jiffies_of(ns: u64) -> Jiffies {
    let millis = u32::try_from(ns.div_ceil(1_000_000)).unwrap_or(u32::MAX);
    // More is no time-out at all (kernel/time/time.c:__msecs_to_jiffies).
    msecs_to_jiffies(millis.min(u32::MAX / 2)).max(1)
}

/// Returns `CLOCK_MONOTONIC` of the host in nanoseconds. Any context except NMI.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: The function may be called in any context except NMI.
    let now = unsafe { bindings::ktime_get() };
    u64::try_from(now).unwrap_or(0)
}
