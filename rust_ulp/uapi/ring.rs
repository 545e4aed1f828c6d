// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT

//! The protocol of the completion ring: one producer, the kernel; one consumer, user space.
//!
//! The ring is memory that both sides can write. The kernel writes entries and `tail`, user space
//! writes `head`. Both indices run freely over 2^32 and are masked when an entry is addressed.
//!
//! Ordering: the producer writes an entry, then publishes it by storing `tail` with release; the
//! consumer loads `tail` with acquire, copies entries, then gives them back by storing `head` with
//! release; the producer loads `head` with acquire before it writes over an entry.
//!
//! Trust: the producer keeps `tail` and the number of entries to itself and never reads them from
//! the ring. Of `head` it believes only what a correct consumer could have stored: a value between
//! the last one that it believed and its own `tail`. The consumer in turn treats a `tail` that is
//! further ahead than the ring is long as corruption.
//!
//! Kernel, crate and host tests (there under loom) compile this file. It cannot panic.

/// An index in the ring that the other side reads or writes concurrently.
pub trait SharedIndex {
    /// Loads with acquire ordering.
    fn load_acquire(&self) -> u32;
    /// Stores with release ordering.
    fn store_release(&self, value: u32);
}

/// The producer's view of a ring of `entries` entries, a power of two.
///
/// # Invariants
///
/// `entries` is a power of two; `tail - head`, modulo 2^32, is at most `entries`.
#[derive(Debug)]
pub struct Producer {
    /// Next entry to write.
    tail: u32,
    /// The consumer's index, as last believed.
    head: u32,
    entries: u32,
}

impl Producer {
    /// A view of an empty ring. `entries` is rounded up to a power of two, at most 2^31.
    pub const fn new(entries: u32) -> Self {
        // INVARIANT: A power of two, and an empty ring.
        let entries = match entries.checked_next_power_of_two() {
            Some(n) => n,
            None => 1 << 31,
        };
        Self {
            tail: 0,
            head: 0,
            entries,
        }
    }

    /// Length of the ring.
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// The producer's index: how many entries were ever written, modulo 2^32.
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// Entries that the consumer has not given back, as last seen.
    pub const fn unread(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Looks at the consumer's index and returns the entries that it has not given back.
    pub fn refresh(&mut self, head: &impl SharedIndex) -> u32 {
        let head = head.load_acquire();
        // How far the consumer says it went, against how far it can have gone.
        if head.wrapping_sub(self.head) <= self.unread() {
            // INVARIANT: `unread` can only shrink.
            self.head = head;
        }
        self.unread()
    }

    /// Position of the entry to write next, or [`None`] when the ring is full, as last seen.
    ///
    /// Write the entry, then call [`Self::publish`].
    pub const fn slot(&self) -> Option<u32> {
        if self.unread() >= self.entries {
            return None;
        }
        Some(self.tail & self.entries.wrapping_sub(1))
    }

    /// Position of the oldest entry that was not given back, for a producer that reads its ring itself.
    pub const fn oldest(&self) -> u32 {
        self.head & self.entries.wrapping_sub(1)
    }

    /// Takes back the `count` oldest entries, or as many as there are, in place of a consumer.
    pub fn take_back(&mut self, count: u32) {
        let unread = self.unread();
        let count = if count < unread { count } else { unread };
        // INVARIANT: `unread` can only shrink.
        self.head = self.head.wrapping_add(count);
    }

    /// Hands the entry at [`Self::slot`] to the consumer. Does nothing when the ring is full.
    pub fn publish(&mut self, tail: &impl SharedIndex) {
        if self.unread() >= self.entries {
            return;
        }
        // INVARIANT: There was room for one more.
        self.tail = self.tail.wrapping_add(1);
        tail.store_release(self.tail);
    }
}

/// The consumer's view of a ring.
///
/// # Invariants
///
/// `entries` is a power of two.
#[derive(Debug)]
pub struct Consumer {
    head: u32,
    /// The producer's index, as last loaded.
    tail: u32,
    entries: u32,
}

/// The producer's index makes no sense: something wrote over the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Consumer {
    /// A view of a fresh ring, or [`None`] unless `entries` is a power of two.
    pub const fn new(entries: u32) -> Option<Self> {
        if !entries.is_power_of_two() {
            return None;
        }
        // INVARIANT: Just checked.
        Some(Self {
            head: 0,
            tail: 0,
            entries,
        })
    }

    /// Entries ready to be read as of the last look at the producer's index.
    pub const fn ready(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Looks at the producer's index and returns how many entries are ready.
    pub fn refresh(&mut self, tail: &impl SharedIndex) -> Result<u32, Corrupt> {
        let tail = tail.load_acquire();
        if tail.wrapping_sub(self.head) > self.entries {
            return Err(Corrupt);
        }
        self.tail = tail;
        Ok(self.ready())
    }

    /// Position of the next entry to read, or [`None`] when none is ready as of the last look.
    ///
    /// Copy the entry, then call [`Self::advance`], and after one or more of them
    /// [`Self::release`].
    pub const fn slot(&self) -> Option<u32> {
        if self.ready() == 0 {
            return None;
        }
        Some(self.head & self.entries.wrapping_sub(1))
    }

    /// Steps over the entry at [`Self::slot`]. Does nothing when none is ready.
    pub fn advance(&mut self) {
        if self.ready() != 0 {
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Gives the entries that were stepped over back to the producer.
    pub fn release(&self, head: &impl SharedIndex) {
        head.store_release(self.head);
    }
}
