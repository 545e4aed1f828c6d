// SPDX-License-Identifier: GPL-2.0

//! Batches: work requests that are copied from user space once, and checked before any lookup.
//!
//! Process context. A batch that was used before has its memory, and allocates nothing.

use super::completion::Completions;
use crate::{
    kernel::user::{
        read_array,
        read_bytes, //
    },
    limits::{
        MAX_INLINE,
        MAX_MESSAGE,
        MAX_SGE, //
    },
    logic::numbered,
    rdma::chain::Chain,
    trace::{
        self,
        ulp_debug, //
    },
    uapi::{
        abi,
        decode::{
            decode,
            DecodedWr,
            Elements,
            Limits, //
        }, //
    }, //
};
use kernel::prelude::*;

/// Most requests in a batch that a file keeps for reuse.
const KEEP: usize = 256;

const LIMITS: Limits = Limits {
    max_sge: MAX_SGE,
    max_inline: MAX_INLINE,
};

/// A request that was copied from user space.
pub(crate) struct ParsedWr {
    /// The decoded request.
    pub(crate) request: DecodedWr,
    /// Index of its first element in [`Batch::sges`].
    pub(crate) first_sge: usize,
    /// Number of its elements.
    pub(crate) num_sge: usize,
    /// Index of its inline data in [`Batch::inline`], when that comes from user memory.
    pub(crate) inline_at: usize,
    /// Bytes of inline data.
    pub(crate) inline_len: usize,
}

/// Work requests that were copied from user space, and the data that they point to.
pub(crate) struct Batch {
    wrs: KVVec<abi::Wr>,
    pub(crate) parsed: KVVec<ParsedWr>,
    pub(crate) sges: KVVec<abi::Sge>,
    pub(crate) inline: KVVec<u8>,
    pub(crate) chains: KVVec<Chain<Completions>>,
}

impl Batch {
    /// Makes an empty batch, which grows as needed.
    pub(crate) fn new() -> Self {
        Self {
            wrs: KVVec::new(),
            parsed: KVVec::new(),
            sges: KVVec::new(),
            inline: KVVec::new(),
            chains: KVVec::new(),
        }
    }

    /// Empties it. The entries stay, to be overwritten.
    fn clear(&mut self) {
        self.chains.clear();
        self.parsed.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Returns whether it is small enough to keep.
    pub(crate) fn is_small(&self) -> bool {
        self.parsed.capacity() <= KEEP
    }

    /// Copies `count` requests of `size` bytes each at `addr`, and the data that they point to.
    /// Sleeps.
    pub(crate) fn parse(&mut self, addr: u64, count: u32, size: u32) -> Result<(), BadWr> {
        // The last use may have ended early.
        self.clear();
        let had = self.wrs.len();
        self.wrs.truncate(count as usize);
        if had < count as usize {
            self.wrs
                .resize(count as usize, abi::Wr::default(), GFP_KERNEL_ACCOUNT)
                .map_err(Self::no_memory)?;
        }
        if count > 0 {
            read_array(addr, size, abi::WR_SIZE_V1, &mut self.wrs)
                .map_err(|(index, error)| BadWr { index, error })?;
        }
        self.decode()
    }

    /// Takes one request that was copied, and copies the data that it points to. Sleeps.
    pub(crate) fn parse_one(&mut self, wr: abi::Wr) -> Result {
        self.clear();
        self.wrs.clear();
        self.wrs.push(wr, GFP_KERNEL_ACCOUNT)?;
        self.decode().map_err(|bad| bad.error)
    }

    /// Returns the queue of the first request, 0 without requests.
    pub(crate) fn first_queue(&self) -> u32 {
        self.parsed.first().map_or(0, |parsed| parsed.request.qp)
    }

    fn no_memory(_: kernel::alloc::AllocError) -> BadWr {
        BadWr {
            index: 0,
            error: ENOMEM,
        }
    }

    /// Decodes the requests that were copied, and copies what they point to. Sleeps.
    fn decode(&mut self) -> Result<(), BadWr> {
        let Batch {
            wrs,
            parsed,
            sges,
            inline,
            ..
        } = self;
        parsed
            .reserve(wrs.len(), GFP_KERNEL_ACCOUNT)
            .map_err(Self::no_memory)?;
        for (index, wr) in numbered(wrs.iter()) {
            let fail = |error: Error| BadWr { index, error };
            let request = decode(wr, LIMITS)
                .map_err(|refusal| fail(Error::from_errno(refusal.errno().wrapping_neg())))?;
            let first_sge = sges.len();
            copy_elements(sges, &request.elements).map_err(fail)?;
            let list = sges.get(first_sge..).unwrap_or(&[]);
            let inline_at = inline.len();
            copy_inline(inline, list, &request).map_err(fail)?;
            let item = ParsedWr {
                first_sge,
                num_sge: list.len(),
                inline_at,
                inline_len: inline.len().saturating_sub(inline_at),
                request,
            };
            parsed
                .push(item, GFP_KERNEL_ACCOUNT)
                .map_err(Self::no_memory)?;
        }
        Ok(())
    }

    /// Takes back the requests that are in slots and were not posted. Sleeps.
    pub(crate) fn discard(&mut self) {
        self.chains.clear();
    }

    /// Posts the requests that are in slots, in order.
    ///
    /// Returns how many the device took, and the error with which it refused the next one. That one
    /// and those after it are taken back. Sleeps only to take requests back.
    pub(crate) fn post(&mut self) -> (u32, Result) {
        let (mut total, mut result) = (0u32, Ok(()));
        for chain in self.chains.drain_all() {
            if result.is_err() {
                // Dropping the chain takes its requests back.
                continue;
            }
            let number = chain.target().number();
            let (posted, outcome) = chain.post(|request| {
                trace::post(
                    number,
                    request.user_data,
                    request.opcode.into(),
                    request.length,
                );
                ulp_debug!(
                    "qp {}: post user_data {:#x} opcode {} length {}\n",
                    number,
                    request.user_data,
                    request.opcode,
                    request.length
                );
            });
            total = total.saturating_add(posted);
            result = outcome;
        }
        (total, result)
    }
}

/// Appends the elements of a request to `sges`. Sleeps.
fn copy_elements(sges: &mut KVVec<abi::Sge>, elements: &Elements) -> Result {
    match *elements {
        Elements::None => Ok(()),
        Elements::One(sge) => Ok(sges.push(sge, GFP_KERNEL_ACCOUNT)?),
        Elements::Array { addr, count } => {
            let first = sges.len();
            let total = first.saturating_add(count as usize);
            sges.resize(total, abi::Sge::default(), GFP_KERNEL_ACCOUNT)?;
            let part = sges.get_mut(first..total).ok_or(EINVAL)?;
            read_array(addr, abi::Sge::SIZE, abi::Sge::SIZE, part).map_err(|(_, error)| error)
        }
    }
}

/// Checks the length of a request with these elements, and appends its inline data to `inline` if
/// that is in user memory. Sleeps.
///
/// Inline data in buffers is copied later, when the buffers are looked up. Returns [`EMSGSIZE`] for
/// a request that is too long, [`EINVAL`] for inline data in both.
fn copy_inline(inline: &mut KVVec<u8>, sges: &[abi::Sge], request: &DecodedWr) -> Result {
    let length = sges
        .iter()
        .map(|sge| u64::from(sge.length))
        .fold(0, u64::saturating_add);
    let most = if request.inline {
        LIMITS.max_inline.into()
    } else {
        MAX_MESSAGE
    };
    if length > most {
        return Err(EMSGSIZE);
    }
    if !request.inline || sges.iter().all(|sge| sge.buffer != 0) {
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

/// A request that was refused, and why.
pub(crate) struct BadWr {
    /// The number of the request.
    pub(crate) index: u32,
    /// The errno.
    pub(crate) error: Error,
}
