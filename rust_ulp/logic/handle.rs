// SPDX-License-Identifier: GPL-2.0

//! Handles, by which user space identifies objects.
//!
//! A handle is not zero and has 31 bits: the kind of the object in bits 27 to 30, a generation in
//! bits 16 to 26, an index in bits 0 to 15. The generation of an index changes each time that its
//! object is destroyed. A stale handle is therefore detected until 2,047 other objects have used
//! its index. The table reuses the index first that has been free for longest.

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs, unreachable_pub)]
pub enum Kind {
    Pd = 1,
    Cq = 2,
    Qp = 3,
    Buffer = 4,
    Grant = 5,
    Ah = 6,
    Srq = 7,
    Listener = 8,
    Connection = 9,
}

impl Kind {
    /// All kinds, in the order of destruction: each object before the objects that it uses.
    #[allow(unreachable_pub)]
    pub const TEARDOWN: [Self; 9] = [
        Self::Listener,
        Self::Connection,
        Self::Qp,
        Self::Srq,
        Self::Ah,
        Self::Grant,
        Self::Buffer,
        Self::Cq,
        Self::Pd,
    ];

    const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Pd,
            2 => Self::Cq,
            3 => Self::Qp,
            4 => Self::Buffer,
            5 => Self::Grant,
            6 => Self::Ah,
            7 => Self::Srq,
            8 => Self::Listener,
            9 => Self::Connection,
            _ => return None,
        })
    }
}

/// Maximum objects in a table.
#[allow(unreachable_pub)]
pub const MAX_OBJECTS: u32 = 1 << 16;

const GENERATIONS: u16 = (1 << 11) - 1;

/// The parts of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Handle {
    /// Type of the object.
    pub kind: Kind,
    /// Index in the table.
    pub index: u16,
    /// Below 2,047.
    pub generation: u16,
}

#[allow(unreachable_pub)]
impl Handle {
    /// Splits a handle, or returns [`None`] if the number cannot be a handle.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if raw >> 31 != 0 {
            return None;
        }
        match Kind::from_raw((raw >> 27) & 0xf) {
            Some(kind) => Some(Self {
                kind,
                index: (raw & 0xffff) as u16,
                generation: ((raw >> 16) & 0x7ff) as u16,
            }),
            None => None,
        }
    }

    /// Returns the handle as a number.
    pub const fn to_raw(self) -> u32 {
        ((self.kind as u32) << 27) | (((self.generation & 0x7ff) as u32) << 16) | self.index as u32
    }

    /// Returns the generation after `generation`.
    pub const fn next_generation(generation: u16) -> u16 {
        match generation.checked_add(1) {
            Some(next) if next < GENERATIONS => next,
            _ => 0,
        }
    }
}
