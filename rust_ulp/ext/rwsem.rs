// SPDX-License-Identifier: GPL-2.0

//! A lock that many readers or one writer hold.
//!
//! The kernel crate has locks for one holder only.
//!
//! C header: [`include/linux/rwsem.h`](srctree/include/linux/rwsem.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{
        Deref,
        DerefMut, //
    },
    pin::Pin, //
};
use kernel::{
    bindings,
    prelude::*,
    str::CStr,
    sync::LockClassKey,
    types::{
        NotThreadSafe,
        Opaque, //
    }, //
};

/// A `struct rw_semaphore`. Process context; taking it sleeps.
///
/// A writer that waits goes before readers that come later: a thread must not take it twice, not even
/// to read.
///
/// ```
/// fn longest(names: &RwSemaphore<KVec<usize>>, new: usize) -> Result<Option<usize>> {
///     names.write().push(new, GFP_KERNEL)?;
///     Ok(names.read().iter().copied().max())
/// }
/// ```
///
/// # Invariants
///
/// `raw` is initialized.
#[pin_data]
pub(crate) struct RwSemaphore<T> {
    #[pin]
    raw: Opaque<bindings::rw_semaphore>,
    data: UnsafeCell<T>,
}

// SAFETY: It passes the value on to one thread at a time, or references to it to several.
unsafe impl<T: Send> Send for RwSemaphore<T> {}
// SAFETY: As above: a writer may move the value to its thread, and readers share it.
unsafe impl<T: Send + Sync> Sync for RwSemaphore<T> {}

impl<T> RwSemaphore<T> {
    /// Creates one, see [`new_rwsem`].
    pub(crate) fn new(
        data: T,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        // INVARIANT: `__init_rwsem()` initializes it.
        pin_init!(Self {
            raw <- Opaque::ffi_init(|raw| {
                // SAFETY: `raw` is memory for a semaphore that does not move. The name and the key
                // live for ever.
                unsafe { bindings::__init_rwsem(raw, name.as_char_ptr(), key.as_ptr()) }
            }),
            data: UnsafeCell::new(data),
        })
    }

    /// Takes it to read. Sleeps while there is a writer.
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        // SAFETY: By the type invariant.
        unsafe { bindings::down_read(self.raw.get()) };
        // INVARIANT: Just taken.
        ReadGuard {
            lock: self,
            _task: PhantomData,
        }
    }

    /// Takes it to write. Sleeps while there is another holder.
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        // SAFETY: By the type invariant.
        unsafe { bindings::down_write(self.raw.get()) };
        // INVARIANT: Just taken.
        WriteGuard {
            lock: self,
            _task: PhantomData,
        }
    }
}

/// Holds an [`RwSemaphore`] to read. The task that took it releases it.
///
/// ```
/// fn first<'a>(guard: &'a ReadGuard<'_, KVec<u32>>) -> Option<&'a u32> {
///     guard.first()
/// }
/// ```
///
/// # Invariants
///
/// The current task has taken `lock` to read.
#[must_use = "it is released at once"]
pub(crate) struct ReadGuard<'a, T> {
    lock: &'a RwSemaphore<T>,
    _task: PhantomData<NotThreadSafe>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant there is no writer.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::up_read(self.lock.raw.get()) };
    }
}

/// Holds an [`RwSemaphore`] to write. The task that took it releases it.
///
/// ```
/// fn clear(mut guard: WriteGuard<'_, KVec<u32>>) {
///     guard.clear();
/// }
/// ```
///
/// # Invariants
///
/// The current task has taken `lock` to write.
#[must_use = "it is released at once"]
pub(crate) struct WriteGuard<'a, T> {
    lock: &'a RwSemaphore<T>,
    _task: PhantomData<NotThreadSafe>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant there is no other holder.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: By the type invariant there is no other holder.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::up_write(self.lock.raw.get()) };
    }
}

/// Creates an [`RwSemaphore`] initializer with the given name and a new lock class.
macro_rules! new_rwsem {
    ($inner:expr, $name:literal) => {
        $crate::ext::rwsem::RwSemaphore::new(
            $inner,
            ::kernel::c_str!($name),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_rwsem;
