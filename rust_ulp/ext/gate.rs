// SPDX-License-Identifier: GPL-2.0

//! A gate around a value that can be revoked.
//!
//! A user of the value enters the gate, and holds a [`GateGuard`] while inside; it may sleep.
//! Closing the gate refuses new users, waits for the last guard, and returns the value. Unlike the
//! kernel crate's `Revocable`, its users may sleep: it counts them in a percpu counter, as the
//! block layer does to freeze its queues. lockdep sees the gate as a lock, see `bindings/sync.c`.
//!
//! C header: [`include/linux/percpu-refcount.h`](srctree/include/linux/percpu-refcount.h)

use crate::bindings;
use core::{
    cell::UnsafeCell,
    ops::Deref, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Completion, //
    },
    types::Opaque, //
};

/// A value that can be used until its gate is closed.
///
/// ```
/// fn revoke() -> Result {
///     let gate = Arc::pin_init(Gate::new(7), GFP_KERNEL)?;
///     assert_eq!(*gate.enter()?, 7);
///     assert_eq!(gate.close(|| ()), Some(7));
///     assert_eq!(gate.enter().err(), Some(ENODEV));
///     Ok(())
/// }
/// ```
///
/// # Invariants
///
/// - `refs` is initialized, and only [`Gate::close`] drops its first reference.
/// - `value` is [`Some`] while a guard exists or can be had.
#[pin_data(PinnedDrop)]
pub(crate) struct Gate<T: Send + Sync> {
    #[pin]
    refs: Opaque<bindings::rust_ulp_h_gate>,
    #[pin]
    drained: Completion,
    closed: AtomicFlag,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: A gate gives `&T` to any thread, and `T` to the thread that closes it.
unsafe impl<T: Send + Sync> Send for Gate<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

/// The right to use the value behind a [`Gate`], which does not close while this exists.
///
/// ```
/// fn read(gate: &Gate<u32>) -> Result<u32> {
///     let guard: GateGuard<'_, u32> = gate.enter()?;
///     Ok(*guard)
/// }
/// ```
///
/// # Invariants
///
/// The value owns a reference of `gate.refs`.
pub(crate) struct GateGuard<'a, T: Send + Sync> {
    gate: &'a Gate<T>,
}

impl<T: Send + Sync> Gate<T> {
    /// Creates an open gate around `value`. Sleeps.
    pub(crate) fn new(value: T) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            refs <- Opaque::try_ffi_init(|slot| {
                // SAFETY: `slot` is memory for a gate of the helpers, and its counter may call
                // `Self::release` in any context.
                kernel::error::to_result(unsafe {
                    bindings::rust_ulp_h_gate_init(slot, Some(Self::release))
                })
            }),
            drained <- Completion::new(),
            closed: AtomicFlag::new(false),
            // INVARIANT: The value is there, and the gate is open.
            value: UnsafeCell::new(Some(value)),
        }? Error)
    }

    /// Called when the last reference is dropped, in any context.
    ///
    /// # Safety
    ///
    /// `refs` is the counter of a gate.
    unsafe extern "C" fn release(refs: *mut kernel::bindings::percpu_ref) {
        // SAFETY: `refs` is the counter of `Self::refs`, a field of a gate, which outlives its counter.
        let gate = unsafe {
            let helper = kernel::container_of!(refs, bindings::rust_ulp_h_gate, refs);
            &*kernel::container_of!(Opaque::cast_from(helper), Self, refs)
        };
        gate.drained.complete_all();
    }

    /// Enters the gate. Does not sleep. Fails with [`ENODEV`] when the gate is closed.
    pub(crate) fn enter(&self) -> Result<GateGuard<'_, T>> {
        // SAFETY: By the type invariant the counter is initialized.
        if unsafe { bindings::rust_ulp_h_gate_enter(self.refs.get()) } {
            // INVARIANT: The reference was just taken.
            Ok(GateGuard { gate: self })
        } else {
            Err(ENODEV)
        }
    }

    /// Returns whether the gate is closed or being closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Closes the gate, and returns the value; [`None`] when it was closed before. Sleeps.
    ///
    /// Calls `wake_waiters`, which must make the users leave soon, and waits until they have left.
    /// A caller that holds a guard would wait for ever, and so would one that holds a lock which a
    /// user takes inside the gate.
    pub(crate) fn close(&self, wake_waiters: impl FnOnce()) -> Option<T> {
        if self.closed.xchg(true, Full) {
            return None;
        }
        // SAFETY: The counter is initialized, and `closed` lets one caller get here, once.
        unsafe { bindings::rust_ulp_h_gate_kill(self.refs.get()) };
        wake_waiters();
        self.drained.wait_for_completion();
        // SAFETY: No reference exists or can be had any more, so nobody else accesses the value.
        unsafe { (*self.value.get()).take() }
    }
}

impl<T: Send + Sync> Deref for GateGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: The value is taken only when no guard exists, and is only read before.
        match unsafe { &*self.gate.value.get() } {
            Some(value) => value,
            // SAFETY: By the invariants of `Gate` and `GateGuard` the value is there.
            None => unsafe { core::hint::unreachable_unchecked() },
        }
    }
}

impl<T: Send + Sync> Drop for GateGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the reference.
        unsafe { bindings::rust_ulp_h_gate_leave(self.gate.refs.get()) };
    }
}

#[pinned_drop]
impl<T: Send + Sync> PinnedDrop for Gate<T> {
    fn drop(self: Pin<&mut Self>) {
        drop(self.close(|| ()));
        // SAFETY: The counter is initialized and dead, and nobody can reach it any more.
        unsafe { kernel::bindings::percpu_ref_exit(&raw mut (*self.refs.get()).refs) };
    }
}

#[cfg(not(ulp_sample))]
#[kunit_tests(rust_ulp_gate)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn lets_in_until_closed() -> Result {
        let gate = Arc::pin_init(Gate::new(7u32), GFP_KERNEL)?;
        assert!(!gate.is_closed());
        assert_eq!(*gate.enter()?, 7);
        {
            let first = gate.enter()?;
            let second = gate.enter()?;
            assert_eq!(*first + *second, 14);
        }
        assert_eq!(gate.close(|| ()), Some(7));
        assert!(gate.is_closed());
        assert_eq!(gate.enter().err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn closes_once_and_tells_those_inside() -> Result {
        let gate = Arc::pin_init(Gate::new(1u32), GFP_KERNEL)?;
        let mut told = 0;
        assert_eq!(gate.close(|| told += 1), Some(1));
        assert_eq!(gate.close(|| told += 1), None);
        assert_eq!(told, 1);
        Ok(())
    }

    #[test]
    fn goes_open() -> Result {
        let gate = Arc::pin_init(Gate::new(KBox::new(1u8, GFP_KERNEL)?), GFP_KERNEL);
        drop(gate?);
        Ok(())
    }
}
