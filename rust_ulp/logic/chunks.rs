// SPDX-License-Identifier: GPL-2.0

//! In which chunks memory is taken, and in which it lies.
//!
//! A chunk is `2^order` pages that follow each other and begin at a multiple of their size. A device
//! puts so many chunks of a size under one key.

/// Pages of 2 MiB, in pages of 4 KiB.
const LARGE_ORDER: u32 = 9;
const PAGE_SHIFT: u32 = 12;

/// Bytes of a chunk.
const fn bytes(order: u32) -> u64 {
    1 << (PAGE_SHIFT.wrapping_add(order) & 63)
}

/// The orders to try for a buffer, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Plan {
    largest: u32,
    smallest: u32,
    length: u64,
}

#[allow(unreachable_pub)]
impl Plan {
    /// For `length` bytes in pages of `page_size` bytes, 4 KiB or 2 MiB, or of a good size when that
    /// is 0: the largest, up to 2 MiB, that wastes no more than an eighth, and all that are smaller.
    ///
    /// [`None`] for another size.
    pub fn new(length: u64, page_size: u32) -> Option<Self> {
        let (largest, smallest) = match page_size {
            0x1000 => (0, 0),
            0x20_0000 => (LARGE_ORDER, LARGE_ORDER),
            0 => {
                let mut order = LARGE_ORDER;
                while order > 0 && rounded(length, order).saturating_sub(length) > length / 8 {
                    order = order.wrapping_sub(1);
                }
                (order, 0)
            }
            _ => return None,
        };
        Some(Self {
            largest,
            smallest,
            length,
        })
    }

    /// The orders, and whether there is to be an effort: for the last one, and for the smallest of
    /// which the device puts all under one key. What cannot be had so is taken in smaller chunks, and
    /// with more keys.
    ///
    /// `max_bytes` says how much the device puts under one key in chunks of so many bytes; 0 for a
    /// size that it does not have, which is left out.
    pub fn attempts(self, max_bytes: impl Fn(u64) -> u64) -> impl Iterator<Item = (u32, bool)> {
        let one_key = move |order: u32, max_bytes: &dyn Fn(u64) -> u64| {
            rounded(self.length, order) <= max_bytes(bytes(order))
        };
        let mut next = Some(self.largest);
        core::iter::from_fn(move || loop {
            let order = next?;
            next = order.checked_sub(1).filter(|order| *order >= self.smallest);
            if max_bytes(bytes(order)) == 0 {
                continue;
            }
            let last_of_one =
                one_key(order, &max_bytes) && !next.is_some_and(|order| one_key(order, &max_bytes));
            return Some((order, next.is_none() || last_of_one));
        })
    }
}

/// `length` in whole chunks.
fn rounded(length: u64, order: u32) -> u64 {
    let mask = bytes(order).wrapping_sub(1);
    length.saturating_add(mask) & !mask
}

/// The largest order, up to `max`, of those that `sizes` has the bit of the bytes of, in which pages
/// lie in memory: of the pages with the numbers from `number` on, which are in `frames`, every chunk
/// that begins at a multiple of its size is in one piece, and begins at a multiple there.
///
/// Also the size of what is left of a chunk at both ends. 0 when there is no other.
#[allow(unreachable_pub)]
pub fn common_order(
    frames: impl Iterator<Item = usize>,
    number: usize,
    sizes: u64,
    max: u32,
) -> u32 {
    // Where both numbers differ, and where a piece ends: chunks are no larger than the lowest bit.
    let mut bits = 0usize;
    let mut last: Option<usize> = None;
    let mut number = number;
    for frame in frames {
        bits |= frame ^ number;
        if last.is_some_and(|last| last.wrapping_add(1) != frame) {
            bits |= number;
        }
        last = Some(frame);
        number = number.wrapping_add(1);
    }
    let mut order = bits.trailing_zeros().min(max);
    while order > 0 && sizes & bytes(order) == 0 {
        order = order.wrapping_sub(1);
    }
    order
}
