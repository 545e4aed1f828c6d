// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranges of memory, checked against what there is.

use crate::error::{Error, Result};
use std::ops::{Bound, RangeBounds};

/// Returns offset and length of `range` in something of `capacity` bytes, if it is within.
#[inline]
fn resolve(range: (Bound<u64>, Bound<u64>), capacity: u64) -> Option<(u64, u64)> {
    let start = match range.0 {
        Bound::Included(n) => n,
        Bound::Excluded(n) => n.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.1 {
        Bound::Included(n) => n.checked_add(1)?,
        Bound::Excluded(n) => n,
        Bound::Unbounded => capacity,
    };
    if end > capacity {
        return None;
    }
    Some((start, end.checked_sub(start)?))
}

#[inline]
pub(crate) fn checked(
    range: (Bound<u64>, Bound<u64>),
    what: &'static str,
    cap: u64,
) -> Result<(u64, u64)> {
    resolve(range, cap).ok_or_else(|| outside(range, what, cap))
}

#[cold]
fn outside(range: (Bound<u64>, Bound<u64>), what: &'static str, cap: u64) -> Error {
    let offset = match range.0 {
        Bound::Included(n) | Bound::Excluded(n) => n,
        Bound::Unbounded => 0,
    };
    let end = match range.1 {
        Bound::Included(n) => n.saturating_add(1),
        Bound::Excluded(n) => n,
        Bound::Unbounded => cap,
    };
    Error::Range {
        what,
        offset,
        len: end.saturating_sub(offset),
        capacity: cap,
    }
}

#[inline]
pub(crate) fn widen(range: impl RangeBounds<usize>) -> (Bound<u64>, Bound<u64>) {
    let bound = |bound: Bound<&usize>| match bound {
        Bound::Included(n) => Bound::Included(*n as u64),
        Bound::Excluded(n) => Bound::Excluded(*n as u64),
        Bound::Unbounded => Bound::Unbounded,
    };
    (bound(range.start_bound()), bound(range.end_bound()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges(start in 0u64..20, end in 0u64..20, cap in 0u64..20) {
            let got = resolve((Bound::Included(start), Bound::Excluded(end)), cap);
            let want = (start <= end && end <= cap).then(|| (start, end - start));
            prop_assert_eq!(got, want);
        }
    }
}
