// SPDX-License-Identifier: GPL-2.0

//! A timer that fires in a softirq.
//!
//! The kernel crate's `HrTimer` has to be started through the pointer that owns what it lies in;
//! this one is started by whoever holds a reference, under a lock if need be.
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
/// # Invariants
///
/// `raw` is initialised, and calls a function with what that function takes.
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
    /// A timer that calls `expired` with `context`, in a softirq, when it is due.
    ///
    /// # Safety
    ///
    /// `expired` may be called with `context` from the first [`Self::start`] on, until the timer is
    /// dropped or [`Self::cancel`] was called with no other start after it.
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

    /// Makes it due at `at_ns` of [`now_ns`], instead of when it was before. Any
    /// context.
    pub(crate) fn start(&self, at_ns: u64) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::rust_ulp_h_timer_start(self.raw.get(), at_ns.min(i64::MAX as u64)) };
    }

    /// Takes that back, and waits until its function has returned, should it run. Process context,
    /// with no lock held that the function takes.
    pub(crate) fn cancel(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { bindings::rust_ulp_h_timer_cancel(self.raw.get()) };
    }
}

#[pinned_drop]
impl PinnedDrop for Timer {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds. Any context but NMI.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: May be called outside of NMIs.
    let now = unsafe { kernel::bindings::ktime_get() };
    u64::try_from(now).unwrap_or(0)
}
