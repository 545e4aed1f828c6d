// SPDX-License-Identifier: GPL-2.0

//! The send requests that must be signaled, whatever their owner asked for.

/// Counts the requests of a send queue since the last one that is signaled.
///
/// A device reports a request that is not signaled only by the completion of a later one. A queue
/// in which no request is signaled could fill up and never be emptied, so one in half a queue is
/// signaled in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Unsignaled(u32);

#[allow(unreachable_pub)]
impl Unsignaled {
    /// Counts the next request of a queue of `depth`, and returns whether it must be signaled: one that
    /// is need not.
    #[inline(always)]
    pub fn next(&mut self, signaled: bool, depth: u32) -> bool {
        if signaled {
            self.0 = 0;
            return false;
        }
        self.0 = self.0.wrapping_add(1);
        let must = self.0 >= depth / 2;
        if must {
            self.0 = 0;
        }
        must
    }
}
