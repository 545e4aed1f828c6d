// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of a peer.

use crate::access::Access;
use crate::error::{Error, Result};
use crate::range::checked;
use std::fmt;
use std::ops::RangeBounds;

/// A peer's memory, as its [`Grant`](crate::Grant) names it.
///
/// It is a number that one believes: the peer's device checks it when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    addr: u64,
    len: u64,
    rkey: u32,
    access: Option<Access>,
}

impl RemoteSlice {
    /// Bytes of the wire form.
    pub const WIRE_LEN: usize = 20;

    /// Names memory of `len` bytes at `addr` in the peer's terms, under the key `rkey`.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it runs over the end of the address space.
    pub fn new(addr: u64, len: u64, rkey: u32) -> Result<Self> {
        if addr.checked_add(len).is_none() {
            return Err(Error::Range {
                what: "remote address",
                offset: addr,
                len,
                capacity: u64::MAX,
            });
        }
        Ok(Self {
            addr,
            len,
            rkey,
            access: None,
        })
    }

    /// Returns the address of its first byte, in the peer's terms.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns its length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Returns the rights that the peer told it grants, if it told them. Requests that need others
    /// are refused before they are posted.
    #[inline]
    pub fn access(&self) -> Option<Access> {
        self.access
    }

    pub(crate) fn with_access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Returns a part of it.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if that is not within it.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        let (offset, len) = checked(range, "part of a remote slice", self.len)?;
        Ok(Self {
            // `addr + self.len` does not overflow, and `offset` is at most `self.len`.
            addr: self.addr.wrapping_add(offset),
            len,
            ..*self
        })
    }

    /// Returns the wire form: address (8 bytes), length (8), key (4), in network order. It does not
    /// carry the rights.
    pub fn to_bytes(&self) -> [u8; Self::WIRE_LEN] {
        let mut bytes = [0; Self::WIRE_LEN];
        let fields = self.addr.to_be_bytes().into_iter();
        let fields = fields.chain(self.len.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(fields.chain(self.rkey.to_be_bytes())) {
            *to = from;
        }
        bytes
    }

    /// Reads the wire form.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it runs over the end of the address space.
    pub fn from_bytes(bytes: &[u8; Self::WIRE_LEN]) -> Result<Self> {
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes.get(range).unwrap_or_default();
            bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b))
        };
        Self::new(number(0..8), number(8..16), number(16..20) as u32)
    }
}

impl fmt::Display for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x} under rkey {:#x}",
            self.len, self.addr, self.rkey
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ops::Bound;

    proptest! {
        #[test]
        fn remote_slices_stay_within(addr: u64, len: u64, start: u64, end: u64) {
            if let Ok(all) = RemoteSlice::new(addr, len, 7) {
                prop_assert_eq!(RemoteSlice::from_bytes(&all.to_bytes()).ok(), Some(all));
                if let Ok(part) = all.slice(start..end) {
                    prop_assert!(part.addr >= addr && part.addr + part.len <= addr + len);
                }
            } else {
                prop_assert!(addr.checked_add(len).is_none());
            }
        }
    }

    #[test]
    fn range_ends_do_not_wrap() {
        let all = RemoteSlice::new(8, 8, 1).unwrap();
        assert!(all.slice(..=u64::MAX).is_err());
        assert!(all
            .slice((Bound::Excluded(u64::MAX), Bound::Unbounded))
            .is_err());
        assert!(all.slice(9..).is_err());
        assert_eq!(all.slice(8..).unwrap().len(), 0);
        assert!(RemoteSlice::new(u64::MAX, 1, 1).is_err());
    }
}
