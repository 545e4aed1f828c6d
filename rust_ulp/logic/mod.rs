// SPDX-License-Identifier: GPL-2.0

//! What can be decided without the kernel.
//!
//! These files touch no kernel API, allocate nothing and cannot panic; the host tests compile them
//! too.

pub(crate) mod chunks;
pub(crate) mod deadlines;
pub(crate) mod events;
pub(crate) mod handle;
pub(crate) mod unsignaled;

/// Numbers what `iter` yields from 0 on; wraps where `enumerate` would panic.
pub(crate) fn numbered<T>(iter: impl Iterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    iter.scan(0u32, |next, item| {
        let number = *next;
        *next = next.wrapping_add(1);
        Some((number, item))
    })
}
