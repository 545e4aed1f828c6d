// SPDX-License-Identifier: GPL-2.0

//! Use counts: an object cannot be destroyed while other objects use it.

use core::ops::Deref;
use kernel::sync::{
    atomic::{
        Atomic,
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

/// A reference to an object that must not be destroyed while this exists.
pub(crate) struct UseRef<T: Counted>(Arc<T>);

impl<T: Counted> UseRef<T> {
    /// Counts another user of `object`. The table's lock is held.
    pub(super) fn new(object: Arc<T>) -> Self {
        // The table's lock orders this against `Table::remove`.
        object.use_count().0.add(1, Relaxed);
        Self(object)
    }

    /// Returns the object.
    pub(super) fn object(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Counted> Deref for UseRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Counted> Drop for UseRef<T> {
    fn drop(&mut self) {
        self.0.use_count().0.add(-1, Relaxed);
    }
}
