// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks, and memory that is kept from one use to the next.

use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock even after a panic of its holder: no lock of this crate protects data that a
/// panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps one value between two uses, for a module that the owner of the cache does not know.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<Box<dyn Any + Send>>>);

impl Cache {
    /// Takes the value out, or a new one if there is none of this type.
    pub(crate) fn take<T: Default + 'static>(&self) -> T {
        let mut place = lock(&self.0);
        let kept = place.as_mut().and_then(|kept| kept.downcast_mut::<T>());
        kept.map(std::mem::take).unwrap_or_default()
    }

    /// Keeps `value`. Allocates the first time only.
    pub(crate) fn put<T: Send + 'static>(&self, value: T) {
        let mut place = lock(&self.0);
        match place.as_mut().and_then(|kept| kept.downcast_mut::<T>()) {
            Some(kept) => *kept = value,
            None => *place = Some(Box::new(value)),
        }
    }
}
