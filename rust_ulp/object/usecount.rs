// SPDX-License-Identifier: GPL-2.0

//! How many objects need another one, which cannot be destroyed meanwhile.

use core::ops::Deref;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

/// How many other objects need an object.
pub(crate) struct UseCount(Atomic<i32>);

impl UseCount {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// How many there are now.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.load(Relaxed)).unwrap_or(0)
    }
}

/// An object that others may need.
pub(crate) trait Counted {
    /// How many do.
    fn use_count(&self) -> &UseCount;
}

/// A reference to an object that must not be destroyed while this exists.
pub(crate) struct UseRef<T: Counted>(Arc<T>);

impl<T: Counted> UseRef<T> {
    /// Counts another one who needs `object`. The table's lock is held.
    pub(super) fn new(object: Arc<T>) -> Self {
        // The table's lock orders this against `Table::remove`.
        object.use_count().0.add(1, Relaxed);
        Self(object)
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
