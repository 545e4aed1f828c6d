// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT

//! The protocol of the completion ring: the kernel is the producer, user space the consumer.
//!
//! Both sides can write the memory of the ring. The producer writes entries and `tail`, the consumer
//! writes `head`. Both indices wrap at 2^32 and are masked to address an entry.
//!
//! Ordering: the producer writes an entry, then stores `tail` with release. The consumer loads
//! `tail` with acquire, copies entries, then stores `head` with release. The producer loads `head`
//! with acquire before it overwrites an entry.
//!
//! Trust: the producer keeps private copies of `tail` and of the number of entries, and never reads
//! those from the ring. It accepts a new `head` only from the range that a correct consumer can
//! store: from the last accepted `head` to its own `tail`. The consumer reports corruption if
//! `tail` is further ahead than the length of the ring.
//!
//! The kernel, the crate and the host tests (under loom) compile this file. It cannot panic.

/// An index in the ring that the other side accesses concurrently.
pub trait SharedIndex {
    /// Loads the index with acquire ordering.
    fn load_acquire(&self) -> u32;
    /// Stores the index with release ordering.
    fn store_release(&self, value: u32);
}

/// The producer's state of a ring.
///
/// # Invariants
///
/// `entries` is a power of two; `tail - head`, modulo 2^32, is at most `entries`.
#[derive(Debug)]
pub struct Producer {
    /// Index of the next entry to write.
    tail: u32,
    /// The consumer's index, as last accepted.
    head: u32,
    entries: u32,
}

impl Producer {
    /// Creates the state of an empty ring. Rounds `entries` up to a power of two, at most 2^31.
    pub const fn new(entries: u32) -> Self {
        // INVARIANT: `entries` is a power of two, and `tail - head` is 0.
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

    /// Returns the length of the ring.
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of entries written so far, modulo 2^32.
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the number of unread entries as of the last [`Self::refresh`].
    pub const fn unread(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Loads the consumer's index, and returns the number of unread entries.
    pub fn refresh(&mut self, head: &impl SharedIndex) -> u32 {
        let head = head.load_acquire();
        // A correct consumer advances by at most the unread entries.
        if head.wrapping_sub(self.head) <= self.unread() {
            // INVARIANT: `tail - head` does not grow.
            self.head = head;
        }
        self.unread()
    }

    /// Returns the position of the next entry to write, or [`None`] if the ring is full as of the
    /// last [`Self::refresh`]. The caller writes the entry, then calls [`Self::publish`].
    pub const fn slot(&self) -> Option<u32> {
        if self.unread() >= self.entries {
            return None;
        }
        Some(self.tail & self.entries.wrapping_sub(1))
    }

    /// Publishes the entry at [`Self::slot`] to the consumer. Does nothing if the ring is full.
    pub fn publish(&mut self, tail: &impl SharedIndex) {
        if self.unread() >= self.entries {
            return;
        }
        // INVARIANT: `tail - head` was less than `entries`.
        self.tail = self.tail.wrapping_add(1);
        tail.store_release(self.tail);
    }
}

/// The consumer's state of a ring.
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

/// The error for a producer's index that is out of range: the ring was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Consumer {
    /// Creates the state of an empty ring, or returns [`None`] unless `entries` is a power of two.
    pub const fn new(entries: u32) -> Option<Self> {
        if !entries.is_power_of_two() {
            return None;
        }
        // INVARIANT: `entries` is a power of two, as just checked.
        Some(Self {
            head: 0,
            tail: 0,
            entries,
        })
    }

    /// Returns the number of unread entries as of the last [`Self::refresh`].
    pub const fn ready(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Loads the producer's index, and returns the number of unread entries.
    pub fn refresh(&mut self, tail: &impl SharedIndex) -> Result<u32, Corrupt> {
        let tail = tail.load_acquire();
        if tail.wrapping_sub(self.head) > self.entries {
            return Err(Corrupt);
        }
        self.tail = tail;
        Ok(self.ready())
    }

    /// Returns the position of the next entry to read, or [`None`] if all are read as of the last
    /// [`Self::refresh`]. The caller copies the entry, then calls [`Self::advance`], and
    /// [`Self::release`] after one or more entries.
    pub const fn slot(&self) -> Option<u32> {
        if self.ready() == 0 {
            return None;
        }
        Some(self.head & self.entries.wrapping_sub(1))
    }

    /// Advances past the entry at [`Self::slot`]. Does nothing if there is none.
    pub fn advance(&mut self) {
        if self.ready() != 0 {
            self.head = self.head.wrapping_add(1);
        }
    }

    /// Returns the entries before [`Self::slot`] to the producer.
    pub fn release(&self, head: &impl SharedIndex) {
        head.store_release(self.head);
    }
}
