// SPDX-License-Identifier: GPL-2.0

//! A timer that fires in a softirq.
//!
//! The kernel crate's `HrTimer` is started through the pointer that owns its container. This one is
//! started through a reference, which may be under a lock.
//!
//! C header: [`include/linux/hrtimer.h`](srctree/include/linux/hrtimer.h)

use crate::bindings;
use kernel::{
    ffi::c_void,
    prelude::*,
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
/// `raw` is initialized, and calls its function with the context of that function.
#[pin_data(PinnedDrop)]
pub(crate) struct Timer {
    #[pin]
    raw: Opaque<bindings::rust_ulp_timer>,
}

// SAFETY: The kernel changes a timer under the lock of its base: `lock_hrtimer_base()`,
// kernel/time/hrtimer.c:1508 (start) and 1633 (cancel).
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
            raw <- Opaque::ffi_init(move |raw| {
                // SAFETY: `raw` is memory for a timer, which does not move.
                unsafe { bindings::rust_ulp_h_timer_init(raw, Some(expired), context) }
            }),
        })
    }

    /// Sets the time to `at_ns`, in the time of [`now_ns`]. Any context.
    pub(crate) fn start(&self, at_ns: u64) {
        // SAFETY: By the type invariant the timer is initialized.
        unsafe { bindings::rust_ulp_h_timer_start(self.raw.get(), at_ns.min(i64::MAX as u64)) };
    }

    /// Stops the timer, and waits until its function has returned. Process context, without locks
    /// that the function takes.
    pub(crate) fn cancel(&self) {
        // SAFETY: By the type invariant the timer is initialized.
        unsafe { bindings::rust_ulp_h_timer_cancel(self.raw.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for Timer {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds. Any context except NMI.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: The function may be called in any context except NMI.
    let now = unsafe { kernel::bindings::ktime_get() };
    u64::try_from(now).unwrap_or(0)
}
