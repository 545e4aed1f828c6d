// SPDX-License-Identifier: GPL-2.0

//! Copies requests from user space once, and what they point to. Process context; sleeps.

use crate::{
    ext::user::{
        append_array,
        read_array,
        read_bytes, //
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
    /// The data of the requests that point to some, in their order.
    pub(super) data: KVVec<WrData>,
    sges: KVVec<abi::Sge>,
    inline: KVVec<u8>,
}

/// The parts of a request outside of its struct: several elements, or inline data.
pub(super) struct WrData {
    /// The number of the request in [`Copied::wrs`].
    pub(super) index: u32,
    /// Index of its first element in [`Copied::sges`].
    first_sge: usize,
    /// Number of its elements.
    num_sge: usize,
    /// Index of its inline data in [`Copied::inline`], when that comes from user memory.
    inline_at: usize,
    /// Bytes of inline data.
    inline_len: usize,
}

/// Returns whether `wr` has data outside of its struct: several elements, or inline data that is in
/// no buffer.
#[inline(always)]
fn has_data(wr: &abi::Wr) -> bool {
    wr.num_sge > 1 || wr.num_sge == 1 && wr.flags & abi::SEND_INLINE != 0 && wr.sge.buffer == 0
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
/// cannot be copied.
pub(super) fn copy<'a>(
    source: Source<'_>,
    first: u32,
    room: &'a mut [MaybeUninit<abi::Wr>],
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
        data: KVVec::new(),
        sges: KVVec::new(),
        inline: KVVec::new(),
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
        for (index, wr) in numbered(wrs.iter()).filter(|(_, wr)| has_data(wr)) {
            if let Err(error) = self.copy_one(index, wr) {
                self.wrs = wrs.get(..index as usize).unwrap_or(&[]);
                self.result = Err(error);
                return;
            }
        }
    }

    /// Copies what request number `index` points to.
    fn copy_one(&mut self, index: u32, wr: &abi::Wr) -> Result {
        checked(wr)?;
        let first_sge = self.sges.len();
        match wr.num_sge {
            1 => self.sges.push(wr.sge, GFP_KERNEL_ACCOUNT)?,
            count => append_array(wr.sge.offset, count.into(), &mut self.sges)?,
        }
        let list = self.sges.get(first_sge..).unwrap_or(&[]);
        let inline_at = self.inline.len();
        copy_inline(&mut self.inline, list, wr.flags & abi::SEND_INLINE != 0)?;
        let data = WrData {
            index,
            first_sge,
            num_sge: list.len(),
            inline_at,
            inline_len: self.inline.len().saturating_sub(inline_at),
        };
        Ok(self.data.push(data, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the elements and the inline data of a request.
    pub(super) fn of(&self, data: &WrData) -> (&[abi::Sge], &[u8]) {
        let (sge, byte) = (data.first_sge, data.inline_at);
        let sges = self.sges.get(sge..sge.saturating_add(data.num_sge));
        let inline = self.inline.get(byte..byte.saturating_add(data.inline_len));
        (sges.unwrap_or(&[]), inline.unwrap_or(&[]))
    }
}

/// Checks the length of a request with these elements, and appends its inline data to `inline` if
/// that is in user memory.
///
/// Inline data in buffers is copied later, when the buffers are looked up. Returns [`EMSGSIZE`] for
/// a request that is too long, [`EINVAL`] for inline data in both.
fn copy_inline(inline: &mut KVVec<u8>, sges: &[abi::Sge], is_inline: bool) -> Result {
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
    if !is_inline || sges.iter().all(|sge| sge.buffer != 0) {
        return Ok(());
    }
    if sges.iter().any(|sge| sge.buffer != 0) {
        return Err(EINVAL);
    }
    let mut to = inline.len();
    let total = to.saturating_add(length as usize);
    inline.resize(total, 0, GFP_KERNEL_ACCOUNT)?;
    for sge in sges {
        let end = to.saturating_add(sge.length as usize);
        let part = inline.get_mut(to..end).ok_or(EINVAL)?;
        read_bytes(sge.offset, part)?;
        to = end;
    }
    Ok(())
}
