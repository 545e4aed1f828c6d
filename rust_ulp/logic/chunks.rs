// SPDX-License-Identifier: GPL-2.0

//! Sizes of the physically contiguous chunks that make up a buffer.
//!
//! A chunk is `2^order` contiguous pages, aligned to its size. A device limits the number of chunks
//! per key. A page has `2^shift` bytes.

/// Returns the bytes of a chunk.
const fn bytes(shift: u32, order: u32) -> u64 {
    1 << (shift.wrapping_add(order) & 63)
}

/// The chunk sizes to try for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub struct Plan {
    shift: u32,
    largest: u32,
    smallest: u32,
    length: u64,
}

#[allow(unreachable_pub)]
impl Plan {
    /// Plans the allocation of `length` bytes in chunks of `page_size` bytes, 4 KiB or 2 MiB. Where
    /// pages have more than 4 KiB, a chunk is a page instead.
    ///
    /// With `page_size` 0, the plan starts with the largest chunks, up to 2 MiB, that waste at most
    /// an eighth of `length`, and goes down to a page. Returns [`None`] for another size.
    pub fn new(shift: u32, length: u64, page_size: u32) -> Option<Self> {
        let large = 21u32.saturating_sub(shift);
        let (largest, smallest) = match page_size {
            0x1000 => (0, 0),
            0x20_0000 => (large, large),
            0 => {
                let mut order = large;
                while order > 0 && wasted(shift, length, order) > length / 8 {
                    order = order.wrapping_sub(1);
                }
                (order, 0)
            }
            _ => return None,
        };
        Some(Self {
            shift,
            largest,
            smallest,
            length,
        })
    }

    /// Returns the orders to try, from large to small, and whether the allocation may reclaim
    /// memory.
    ///
    /// It may for the smallest order, and for the smallest order with which the buffer needs one
    /// key.
    ///
    /// `max_bytes` returns the maximum bytes per key for chunks of the given size, or 0 if the
    /// device does not support the size, which is then skipped.
    pub fn attempts(self, max_bytes: impl Fn(u64) -> u64) -> impl Iterator<Item = (u32, bool)> {
        let shift = self.shift;
        let one_key = move |order: u32, max_bytes: &dyn Fn(u64) -> u64| {
            rounded(shift, self.length, order) <= max_bytes(bytes(shift, order))
        };
        let mut next = Some(self.largest);
        core::iter::from_fn(move || loop {
            let order = next?;
            next = order.checked_sub(1).filter(|order| *order >= self.smallest);
            if max_bytes(bytes(shift, order)) == 0 {
                continue;
            }
            let last_of_one =
                one_key(order, &max_bytes) && !next.is_some_and(|order| one_key(order, &max_bytes));
            return Some((order, next.is_none() || last_of_one));
        })
    }
}

/// Rounds `length` up to whole chunks.
fn rounded(shift: u32, length: u64, order: u32) -> u64 {
    let mask = bytes(shift, order).wrapping_sub(1);
    length.saturating_add(mask) & !mask
}

/// Returns the largest of the page sizes `sizes` with which a device can register memory at the
/// address `iova`, or 0 if there is none.
///
/// `extents` are the DMA addresses and the lengths of the memory. As `ib_umem_find_best_pgsz()`:
/// below the page size all addresses agree with `iova`, and each extent but the last ends with a
/// page. Bit n of `sizes` stands for pages of 2^n bytes.
#[allow(unreachable_pub)]
pub fn page_size(extents: impl Iterator<Item = (u64, u64)>, iova: u64, sizes: u64) -> u64 {
    // Collects the bits in which the addresses differ from those in the region, and the places at
    // which an extent begins that does not continue the last one. The lowest bit is the limit.
    let mut bits = 0;
    let mut at = iova;
    let mut end = None;
    for (addr, length) in extents {
        bits |= addr ^ at;
        if end.is_some_and(|end| end != addr) {
            bits |= at;
        }
        at = at.wrapping_add(length);
        end = Some(addr.wrapping_add(length));
    }
    let allowed = sizes & (bits ^ bits.wrapping_sub(1));
    allowed.checked_ilog2().map_or(0, |log| 1 << (log & 63))
}

/// Returns the bytes that whole chunks have beyond `length`.
fn wasted(shift: u32, length: u64, order: u32) -> u64 {
    rounded(shift, length, order).saturating_sub(length)
}

/// Returns the largest order, up to `max`, in whose chunks the pages are contiguous.
///
/// The pages have consecutive numbers from `number` on and are in `frames`. Every chunk that begins
/// at a multiple of its size in page numbers must be contiguous, and aligned, in frames. Partial
/// chunks at both ends count as well. Bit n of `sizes` allows chunks of 2^n bytes; order 0 is
/// always allowed.
#[allow(unreachable_pub)]
pub fn common_order(
    shift: u32,
    frames: impl Iterator<Item = usize>,
    number: usize,
    sizes: u64,
    max: u32,
) -> u32 {
    // Collects the bits in which number and frame differ, and the numbers at which a contiguous
    // range begins. The lowest bit limits the size of a chunk.
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
    while order > 0 && sizes & bytes(shift, order) == 0 {
        order = order.wrapping_sub(1);
    }
    order
}
