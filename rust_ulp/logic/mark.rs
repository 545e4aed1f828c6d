// SPDX-License-Identifier: GPL-2.0

//! What a queue knows of the request in a slot, in 16 bits.

/// The marks of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Mark(u16);

/// Whether the success of the request is reported.
const REPORTED: u16 = 1 << 15;
/// Whether the request was canceled.
const CANCELED: u16 = 1 << 14;
/// Whether the slot keeps memory.
const KEEPING: u16 = 1 << 13;
/// The number of plain requests.
const PLAIN: u16 = KEEPING - 1;

#[allow(unreachable_pub)]
impl Mark {
    /// Returns the marks of a request that is posted now, in the slot with the marks `self`: whether it
    /// is `reported`, and the number of consecutive `plain` requests that end with it. A number that
    /// does not fit becomes a lower one.
    #[inline(always)]
    pub fn posted(self, reported: bool, plain: u32) -> Self {
        let reported = if reported { REPORTED } else { 0 };
        Self(self.0 & KEEPING | reported | plain as u16 & PLAIN)
    }

    /// Returns whether the success of the request is reported.
    pub fn is_reported(self) -> bool {
        self.0 & REPORTED != 0
    }

    /// Returns the number of consecutive plain requests that end with this one.
    pub fn plain(self) -> u32 {
        u32::from(self.0 & PLAIN)
    }

    /// Returns whether the request was canceled.
    pub fn is_canceled(self) -> bool {
        self.0 & CANCELED != 0
    }

    /// Notes that the request was canceled.
    pub fn cancel(&mut self) {
        self.0 |= CANCELED;
    }

    /// Returns whether the slot keeps memory, of this request or of earlier ones.
    pub fn is_keeping(self) -> bool {
        self.0 & KEEPING != 0
    }

    /// Sets whether the slot keeps memory.
    pub fn keep(&mut self, keeping: bool) {
        self.0 = self.0 & !KEEPING | if keeping { KEEPING } else { 0 };
    }
}
