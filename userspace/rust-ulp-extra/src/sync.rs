// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock even after a panic of its holder: no lock of this crate protects data that a
/// panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
