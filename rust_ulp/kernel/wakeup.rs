// SPDX-License-Identifier: GPL-2.0

//! Waking one thread from any context.
//!
//! The kernel crate's `Completion` completes once, for all, and its wait ends for no signal.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    bindings,
    prelude::*,
    time::Jiffies,
    types::Opaque, //
};

/// Lets one thread sleep until another one wakes it. A wake-up that comes before the sleep ends it
/// at once.
///
/// ```
/// fn wait(wakeup: &Wakeup, is_done: impl Fn() -> bool) -> Result {
///     while !is_done() {
///         if !wakeup.sleep(100) {
///             return Err(EINTR);
///         }
///     }
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// `raw` is initialized.
#[pin_data]
pub(crate) struct Wakeup {
    #[pin]
    raw: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` is changed under the lock of its wait queue:
// kernel/sched/completion.c:complete_with_flags(), do_wait_for_common().
unsafe impl Send for Wakeup {}
// SAFETY: As above.
unsafe impl Sync for Wakeup {}

impl Wakeup {
    /// Creates a value for a thread that nobody has woken.
    pub(crate) fn new() -> impl PinInit<Self> {
        // INVARIANT: `init_completion()` initializes it.
        pin_init!(Self {
            raw <- Opaque::ffi_init(|raw| {
                // SAFETY: `raw` is memory for a completion, which does not move.
                unsafe { bindings::init_completion(raw) }
            }),
        })
    }

    /// Wakes the thread that sleeps, or that sleeps next. Any context.
    pub(crate) fn wake(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::complete(self.raw.get()) };
    }

    /// Forgets the wake-ups that no thread has slept for. Any context.
    pub(crate) fn reset(&self) {
        // SAFETY: By the type invariant.
        while unsafe { bindings::try_wait_for_completion(self.raw.get()) } {}
    }

    /// Sleeps until [`Self::wake`] is called, at most `jiffies`. Returns `false` when a signal
    /// came.
    pub(crate) fn sleep(&self, jiffies: Jiffies) -> bool {
        // SAFETY: By the type invariant; the caller is in process context, since it may sleep.
        unsafe { bindings::wait_for_completion_interruptible_timeout(self.raw.get(), jiffies) >= 0 }
    }
}
