// SPDX-License-Identifier: GPL-2.0

//! Copies requests from user space once, and what they point to. Process context; sleeps.

use crate::{
    ext::{
        late_vec::LateVec,
        user::{
            append_array,
            read_array,
            read_bytes, //
        }, //
    },
    limits::{
        MAX_INLINE,
        MAX_MESSAGE,
        MAX_SGE, //
    },
    logic::numbered,
    uapi::{
        abi,
        decode::{
            check,
            Limits,
            Refusal,
            Rule, //
        }, //
    }, //
};
use core::mem::MaybeUninit;
use kernel::prelude::*;

/// The limits for requests of any device.
const LIMITS: Limits = Limits {
    max_sge: MAX_SGE,
    max_inline: MAX_INLINE,
};

/// The requests of a command.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// `count` requests of `size` bytes each, at `addr` in user space.
    Array {
        /// Their address.
        addr: u64,
        /// Their number.
        count: u32,
        /// The size of each.
        size: u32,
    },
    /// One request that was copied.
    One(&'a abi::Wr),
}

impl Source<'_> {
    /// Returns the number of requests.
    pub(super) fn count(self) -> u32 {
        match self {
            Self::Array { count, .. } => count,
            Self::One(_) => 1,
        }
    }
}

/// Requests that were copied from user space, and the data that they point to.
pub(super) struct Copied<'a> {
    pub(super) wrs: &'a [abi::Wr],
    /// The error of the request after these, if one could not be copied.
    pub(super) result: Result,
    sges: LateVec<abi::Sge>,
    /// Inline data of the requests for which there was room.
    near: &'a mut [u8],
    /// Inline data of the others.
    far: LateVec<u8>,
}

/// What requests have outside of their structs: lists of elements, and inline data. [`Self::sges_of`]
/// and [`Self::inline`] are called for each of them that [has any](has_data), in order.
pub(super) struct Outside<'c> {
    sges: &'c [abi::Sge],
    near: Bytes<'c>,
    far: Bytes<'c>,
}

impl<'c> Outside<'c> {
    /// Returns the elements of the next request.
    pub(super) fn sges_of(&mut self, wr: &'c abi::Wr) -> &'c [abi::Sge] {
        let count = usize::from(wr.num_sge);
        if count <= 1 {
            return core::slice::from_ref(&wr.sge).get(..count).unwrap_or(&[]);
        }
        let (list, rest) = self.sges.split_at_checked(count).unwrap_or_default();
        self.sges = rest;
        list
    }

    /// Returns the `length` bytes of inline data of the next request. What is in buffers is not there
    /// yet.
    pub(super) fn inline(&mut self, length: u32) -> &'c mut [u8] {
        let length = length as usize;
        // As `copy_inline` decides.
        if length <= self.near.0.len() {
            self.near.take(length)
        } else {
            self.far.take(length)
        }
    }
}

/// Room for inline data, which is taken from its start on.
struct Bytes<'c>(&'c mut [u8]);

impl<'c> Bytes<'c> {
    /// Takes `length` bytes; none if it has fewer.
    fn take(&mut self, length: usize) -> &'c mut [u8] {
        let all = core::mem::take(&mut self.0);
        let (first, rest) = all.split_at_mut_checked(length).unwrap_or_default();
        self.0 = rest;
        first
    }
}

/// Returns whether `wr` has data outside of its struct.
#[inline(always)]
fn has_data(wr: &abi::Wr) -> bool {
    wr.num_sge > 1 || wr.num_sge == 1 && wr.flags & abi::SEND_INLINE != 0
}

/// Checks a request that was copied. Fails with the errno for the caller.
#[inline(always)]
pub(super) fn checked(wr: &abi::Wr) -> Result<Rule> {
    match check(wr, LIMITS) {
        Ok(rule) => Ok(rule),
        Err(refusal) => Err(errno(refusal)),
    }
}

#[cold]
fn errno(refusal: Refusal) -> Error {
    Error::from_errno(refusal.errno().wrapping_neg())
}

/// Copies requests to `room`, from number `first` on, as many as it takes, up to the first one that
/// cannot be copied. `near` is room for their inline data.
pub(super) fn copy<'a>(
    source: Source<'_>,
    first: u32,
    room: &'a mut [MaybeUninit<abi::Wr>],
    near: &'a mut [u8],
) -> Copied<'a> {
    let (wrs, result): (&[abi::Wr], Result) = match source {
        Source::One(wr) => match room.first_mut() {
            Some(place) => (core::slice::from_ref(place.write(*wr)), Ok(())),
            None => (&[], Err(ENOMEM)),
        },
        Source::Array { addr, count, size } => {
            let left = count.saturating_sub(first) as usize;
            let offset = u64::from(first).saturating_mul(size.into());
            match (addr.checked_add(offset), left.min(room.len())) {
                (_, 0) => (&[], Ok(())),
                (None, _) => (&[], Err(EFAULT)),
                (Some(at), count) => {
                    let room = room.get_mut(..count).unwrap_or_default();
                    read_array(at, size, abi::WR_SIZE_V1, room)
                }
            }
        }
    };
    let mut copied = Copied {
        wrs,
        result,
        sges: LateVec::new(),
        near,
        far: LateVec::new(),
    };
    if wrs.iter().any(has_data) {
        copied.copy_data();
    }
    copied
}

impl<'a> Copied<'a> {
    /// Copies what the requests point to. The first request for which that fails, and those after it,
    /// are left out.
    #[cold]
    fn copy_data(&mut self) {
        let wrs = self.wrs;
        let mut near = Bytes(&mut *self.near);
        for (index, wr) in numbered(wrs.iter()).filter(|(_, wr)| has_data(wr)) {
            if let Err(error) = copy_one(wr, &mut self.sges, &mut near, &mut self.far) {
                self.wrs = wrs.get(..index as usize).unwrap_or(&[]);
                self.result = Err(error);
                return;
            }
        }
    }

    /// Returns the requests, and what they have outside of their structs.
    pub(super) fn parts(&mut self) -> (&[abi::Wr], Outside<'_>) {
        let outside = Outside {
            sges: &self.sges,
            near: Bytes(&mut *self.near),
            far: Bytes(&mut self.far),
        };
        (self.wrs, outside)
    }
}

/// Copies what a request points to: appends its elements to `sges`, and its inline data to `near` or
/// `far`.
fn copy_one(
    wr: &abi::Wr,
    sges: &mut LateVec<abi::Sge>,
    near: &mut Bytes<'_>,
    far: &mut LateVec<u8>,
) -> Result {
    checked(wr)?;
    let first = sges.len();
    let list = if wr.num_sge > 1 {
        append_array(wr.sge.offset, wr.num_sge.into(), sges.made())?;
        sges.get(first..).unwrap_or(&[])
    } else {
        core::slice::from_ref(&wr.sge)
    };
    copy_inline(list, wr.flags & abi::SEND_INLINE != 0, near, far)
}

/// Checks the length of a request with these elements, and takes room for its inline data, which it
/// copies if that is in user memory.
///
/// Inline data in buffers is copied later, when the buffers are looked up. Returns [`EMSGSIZE`] for
/// a request that is too long, [`EINVAL`] for inline data in both.
fn copy_inline(
    sges: &[abi::Sge],
    is_inline: bool,
    near: &mut Bytes<'_>,
    far: &mut LateVec<u8>,
) -> Result {
    let length = sges
        .iter()
        .map(|sge| u64::from(sge.length))
        .fold(0, u64::saturating_add);
    let most = if is_inline {
        LIMITS.max_inline.into()
    } else {
        MAX_MESSAGE
    };
    if length > most {
        return Err(EMSGSIZE);
    }
    if !is_inline {
        return Ok(());
    }
    let in_buffers = sges.iter().any(|sge| sge.buffer != 0);
    if in_buffers && sges.iter().any(|sge| sge.buffer == 0) {
        return Err(EINVAL);
    }
    let length = length as usize;
    let data = if length <= near.0.len() {
        near.take(length)
    } else {
        let first = far.len();
        far.made()
            .resize(first.saturating_add(length), 0, GFP_KERNEL_ACCOUNT)?;
        far.get_mut(first..).unwrap_or_default()
    };
    if in_buffers {
        return Ok(());
    }
    let mut data = Bytes(data);
    for sge in sges {
        read_bytes(sge.offset, data.take(sge.length as usize))?;
    }
    Ok(())
}
