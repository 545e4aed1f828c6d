// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks, and memory that is kept from one use to the next.

use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock even after a panic of its holder: no lock of this crate protects data that a
/// panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    assert!(!LOCKLESS.get(), "takes a lock");
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps one value between two uses, for a module that the owner of the cache does not know.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<Box<dyn Any + Send>>>);

impl Cache {
    /// Takes the value out, or a new one if there is none of this type.
    pub(crate) fn take<T: Default + 'static>(&self) -> Box<T> {
        let kept = lock(&self.0).take();
        let kept = kept.and_then(|kept| kept.downcast().ok());
        kept.unwrap_or_default()
    }

    /// Keeps `value`, and drops the one that is kept already.
    pub(crate) fn put<T: Send + 'static>(&self, value: Box<T>) {
        let before = lock(&self.0).replace(value);
        drop(before);
    }
}

#[cfg(test)]
thread_local! {
    static LOCKLESS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs `f`, in which [`lock`] panics.
#[cfg(test)]
pub(crate) fn without_locks(f: impl FnOnce()) {
    LOCKLESS.set(true);
    f();
    LOCKLESS.set(false);
}
