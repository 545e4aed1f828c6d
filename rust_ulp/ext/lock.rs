// SPDX-License-Identifier: GPL-2.0

//! Spinlocks that disable softirqs, or all interrupts.
//!
//! A [`SpinLockBh`] protects what completion handlers in softirqs share with processes that post
//! requests. A [`SpinLockIrq`] protects what events of drivers change, which are raised with
//! interrupts off.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use crate::bindings;
use kernel::{
    ffi::{
        c_char,
        c_ulong, //
    },
    sync::lock::{
        spinlock::SpinLockBackend,
        Backend,
        Lock, //
    }, //
};

/// `spin_lock_bh()` and `spin_unlock_bh()`.
///
/// ```
/// fn lock(lock: &SpinLockBh<u32>) -> ::kernel::sync::lock::Guard<'_, u32, SpinLockBhBackend> {
///     lock.lock()
/// }
/// ```
pub(crate) struct SpinLockBhBackend;

/// A `spinlock_t` that is always taken with softirqs disabled, in process context or in a softirq.
/// Interrupts must be on.
///
/// ```
/// fn new_counter() -> Result<Arc<SpinLockBh<u32>>> {
///     let counter = Arc::pin_init(new_spinlock_bh!(0, "counter"), GFP_KERNEL)?;
///     *counter.lock() += 1;
///     Ok(counter)
/// }
/// ```
pub(crate) type SpinLockBh<T> = Lock<T, SpinLockBhBackend>;

// SAFETY: The kernel's `spinlock_t` ensures mutual exclusion. `relock` is the default one, which
// locks in the same way.
unsafe impl Backend for SpinLockBhBackend {
    type State = kernel::bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: The same requirements.
        unsafe { SpinLockBackend::init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller ensures that `ptr` is initialized.
        unsafe { bindings::rust_ulp_h_spin_lock_bh(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The caller ensures that `ptr` is initialized.
        (unsafe { bindings::rust_ulp_h_spin_trylock_bh(ptr) } != 0).then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, _guard_state: &Self::GuardState) {
        // SAFETY: The caller owns the lock.
        unsafe { bindings::rust_ulp_h_spin_unlock_bh(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // Without lockdep this would call an empty function each time the lock is taken.
        if cfg!(CONFIG_LOCKDEP) {
            // SAFETY: The same requirements.
            unsafe { SpinLockBackend::assert_is_held(ptr) }
        }
    }
}

/// Creates a [`SpinLockBh`] initializer with the given name and a new lock class.
macro_rules! new_spinlock_bh {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::ext::lock::SpinLockBh::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_spinlock_bh;

/// `spin_lock_irqsave()` and `spin_unlock_irqrestore()`.
///
/// ```
/// fn lock(lock: &SpinLockIrq<u32>) -> ::kernel::sync::lock::Guard<'_, u32, SpinLockIrqBackend> {
///     lock.lock()
/// }
/// ```
pub(crate) struct SpinLockIrqBackend;

/// A `spinlock_t` that is always taken with interrupts disabled. Any context.
///
/// ```
/// fn new_log() -> Result<Arc<SpinLockIrq<[u32; 8]>>> {
///     Arc::pin_init(new_spinlock_irq!([0; 8], "log"), GFP_KERNEL)
/// }
/// ```
pub(crate) type SpinLockIrq<T> = Lock<T, SpinLockIrqBackend>;

// SAFETY: The kernel's `spinlock_t` ensures mutual exclusion. The default `relock` locks again, and
// keeps the new flags.
unsafe impl Backend for SpinLockIrqBackend {
    type State = kernel::bindings::spinlock_t;
    type GuardState = c_ulong;

    #[inline]
    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: The same requirements.
        unsafe { SpinLockBackend::init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller ensures that `ptr` is initialized.
        unsafe { bindings::rust_ulp_h_spin_lock_irqsave(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: The caller ensures that `ptr` is initialized.
        let locked = unsafe { bindings::rust_ulp_h_spin_trylock_irqsave(ptr, &mut flags) };
        locked.then_some(flags)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: The caller owns the lock, and the flags are those of the call that took it.
        unsafe { bindings::rust_ulp_h_spin_unlock_irqrestore(ptr, *flags) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The same requirements.
        unsafe { SpinLockBackend::assert_is_held(ptr) }
    }
}

/// Creates a [`SpinLockIrq`] initializer with the given name and a new lock class.
macro_rules! new_spinlock_irq {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::ext::lock::SpinLockIrq::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_spinlock_irq;
