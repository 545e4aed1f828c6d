// SPDX-License-Identifier: GPL-2.0

//! Handles: how user space names an object.
//!
//! A handle is not zero and has 31 bits: the kind of the object in bits 27 to 30, a generation in
//! bits 16 to 26, an index in bits 0 to 15. The generation of an index changes each time that an
//! object in it is destroyed, so a stale handle is recognised until 2,047 others have had its
//! index; indices are used again in turn, the longest unused first.

/// What a handle names.
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
    /// All of them, in the order in which they can be destroyed: users before what they use.
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

/// How many objects there can be at most.
#[allow(unreachable_pub)]
pub const MAX_OBJECTS: u32 = 1 << 16;

const GENERATIONS: u16 = (1 << 11) - 1;

/// A handle, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Handle {
    /// What it names.
    pub kind: Kind,
    /// Place in the table.
    pub index: u16,
    /// Below 2,047.
    pub generation: u16,
}

#[allow(unreachable_pub)]
impl Handle {
    /// Takes a handle apart; [`None`] when it cannot be one.
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

    /// Puts it together.
    pub const fn to_raw(self) -> u32 {
        ((self.kind as u32) << 27) | (((self.generation & 0x7ff) as u32) << 16) | self.index as u32
    }

    /// The generation that follows `generation`.
    pub const fn next_generation(generation: u16) -> u16 {
        match generation.checked_add(1) {
            Some(next) if next < GENERATIONS => next,
            _ => 0,
        }
    }
}
