// SPDX-License-Identifier: GPL-2.0

//! Pure code.
//!
//! These files use no kernel API, allocate nothing and cannot panic. The host tests compile them
//! too, and the crate compiles `ring.rs`.

pub(crate) mod chunks;
pub(crate) mod cq_ring;
pub(crate) mod deadlines;
pub(crate) mod events;
pub(crate) mod handle;
pub(crate) mod latency;
pub(crate) mod mark;
pub(crate) mod order;
pub(crate) mod poller;
#[allow(dead_code, unreachable_pub)]
pub(crate) mod ring;
pub(crate) mod sharing;
pub(crate) mod unsignaled;

/// Pairs each item of `iter` with its number, from 0 on. Wraps where `enumerate` would panic.
pub(crate) fn numbered<T>(iter: impl Iterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    iter.scan(0u32, |next, item| {
        let number = *next;
        *next = next.wrapping_add(1);
        Some((number, item))
    })
}
