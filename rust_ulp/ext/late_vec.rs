// SPDX-License-Identifier: GPL-2.0

//! A vector that costs nothing until something is added.

use core::ops::{
    Deref,
    DerefMut, //
};
use kernel::prelude::*;

/// A vector that is made when [`Self::made`] is called first.
///
/// A [`KVVec`] calls the allocator when it is dropped, even if it has never had memory
/// (rust/kernel/alloc/kvec.rs:Vec::drop, rust/kernel/alloc/allocator.rs:ReallocFunc::call): 90
/// instructions each.
///
/// ```
/// # use late_vec::LateVec;
/// fn add(values: &mut LateVec<u32>, value: u32) -> Result<usize> {
///     values.made().push(value, GFP_KERNEL)?;
///     Ok(values.len())
/// }
/// ```
pub(crate) struct LateVec<T>(Option<KVVec<T>>);

impl<T> LateVec<T> {
    /// Returns an empty vector.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Returns the vector, to change its length.
    pub(crate) fn made(&mut self) -> &mut KVVec<T> {
        self.0.get_or_insert_with(KVVec::new)
    }

    /// Removes the entries from number `length` on.
    pub(crate) fn truncate(&mut self, length: usize) {
        if let Some(values) = &mut self.0 {
            values.truncate(length);
        }
    }
}

impl<T> Deref for LateVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<T> DerefMut for LateVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}
