// SPDX-License-Identifier: GPL-2.0

//! Use counts: an object cannot be destroyed while other objects use it.

use core::ops::Deref;
use kernel::sync::{
    atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    },
    Arc, //
};

/// The number of other objects that use an object.
pub(crate) struct UseCount(Atomic<i32>);

impl UseCount {
    /// Makes a count that is zero.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns the present number.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.load(Relaxed)).unwrap_or(0)
    }
}

/// An object that others may use.
pub(crate) trait Counted {
    /// Returns its use count.
    fn use_count(&self) -> &UseCount;
}

/// A reference to an object that must not be destroyed before [`UseRef::release`], or while this
/// exists.
pub(crate) struct UseRef<T: Counted> {
    object: Arc<T>,
    is_counted: AtomicFlag,
}

impl<T: Counted> UseRef<T> {
    /// Counts another user of `object`. The table's lock is held.
    pub(super) fn new(object: Arc<T>) -> Self {
        // The table's lock orders this against `Table::remove`.
        object.use_count().0.add(1, Relaxed);
        Self {
            object,
            is_counted: AtomicFlag::new(true),
        }
    }

    /// Lets others destroy the object, which stays valid. Later calls do nothing.
    pub(super) fn release(&self) {
        if self.is_counted.xchg(false, Relaxed) {
            self.object.use_count().0.add(-1, Relaxed);
        }
    }

    /// Returns the object.
    pub(super) fn object(&self) -> &Arc<T> {
        &self.object
    }
}

impl<T: Counted> Deref for UseRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Counted> Drop for UseRef<T> {
    fn drop(&mut self) {
        self.release();
    }
}
