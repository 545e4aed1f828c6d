// SPDX-License-Identifier: GPL-2.0

//! Batches: work requests that are copied from user space once, before any lookup.
//!
//! Process context. A batch that was used before has its memory, and allocates nothing.

use super::completion::Completions;
use crate::{
    ext::user::{
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

/// The parts of a request outside of its struct: several elements, or inline data.
pub(crate) struct WrData {
    /// The number of the request.
    pub(crate) index: u32,
    /// Index of its first element in [`Batch::sges`].
    first_sge: usize,
    /// Number of its elements.
    num_sge: usize,
    /// Index of its inline data in [`Batch::inline`], when that comes from user memory.
    inline_at: usize,
    /// Bytes of inline data.
    inline_len: usize,
}

/// Work requests that were copied from user space, and the data that they point to.
pub(crate) struct Batch {
    pub(crate) wrs: KVVec<abi::Wr>,
    /// The data of the requests that point to some, in their order.
    pub(crate) data: KVVec<WrData>,
    pub(crate) sges: KVVec<abi::Sge>,
    pub(crate) inline: KVVec<u8>,
    pub(crate) chain: Chain<Completions>,
}

/// Returns whether `wr` has data outside of its struct: several elements, or inline data that is in
/// no buffer.
#[inline(always)]
fn has_data(wr: &abi::Wr) -> bool {
    wr.num_sge > 1 || wr.num_sge == 1 && wr.flags & abi::SEND_INLINE != 0 && wr.sge.buffer == 0
}

/// Decodes a request that was copied. Fails with the errno for the caller.
#[inline(never)]
pub(crate) fn decoded(wr: &abi::Wr) -> Result<DecodedWr> {
    decode(wr, LIMITS).map_err(|refusal| Error::from_errno(refusal.errno().wrapping_neg()))
}

impl WrData {
    /// Copies what request number `index` points to: appends its elements to `sges`, and its inline
    /// data to `inline`. Sleeps.
    fn copy(
        index: u32,
        wr: &abi::Wr,
        sges: &mut KVVec<abi::Sge>,
        inline: &mut KVVec<u8>,
    ) -> Result<Self> {
        let request = decoded(wr)?;
        let first_sge = sges.len();
        copy_elements(sges, &request.elements)?;
        let list = sges.get(first_sge..).unwrap_or(&[]);
        let inline_at = inline.len();
        copy_inline(inline, list, &request)?;
        Ok(Self {
            index,
            first_sge,
            num_sge: list.len(),
            inline_at,
            inline_len: inline.len().saturating_sub(inline_at),
        })
    }

    /// Returns the elements and the inline data, out of those of the batch.
    pub(crate) fn of<'a>(
        &self,
        sges: &'a [abi::Sge],
        inline: &'a [u8],
    ) -> (&'a [abi::Sge], &'a [u8]) {
        let (sge, byte) = (self.first_sge, self.inline_at);
        (
            sges.get(sge..sge.saturating_add(self.num_sge))
                .unwrap_or(&[]),
            inline
                .get(byte..byte.saturating_add(self.inline_len))
                .unwrap_or(&[]),
        )
    }
}

impl Batch {
    /// Makes an empty batch, which grows as needed.
    pub(crate) fn new() -> Self {
        Self {
            wrs: KVVec::new(),
            data: KVVec::new(),
            sges: KVVec::new(),
            inline: KVVec::new(),
            chain: Chain::new(),
        }
    }

    /// Empties it. The entries stay, to be overwritten.
    fn clear(&mut self) {
        self.chain.clear();
        self.data.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Makes room for `count` requests. The entries that there are stay, unless it fails. May sleep.
    fn resize(&mut self, count: u32) -> Result {
        let count = count as usize;
        let had = self.wrs.len();
        self.wrs.truncate(count);
        if had < count {
            self.wrs
                .resize(count, abi::Wr::default(), GFP_KERNEL_ACCOUNT)
                .inspect_err(|_| self.wrs.clear())?;
        }
        Ok(())
    }

    /// Returns whether it is small enough to keep.
    pub(crate) fn is_small(&self) -> bool {
        self.wrs.capacity() <= KEEP
    }

    /// Copies `count` requests of `size` bytes each at `addr`, and the data that they point to, up to
    /// the first request that cannot be copied. Sleeps.
    ///
    /// Returns the errno of that one; those before it are in the batch.
    pub(crate) fn parse(&mut self, addr: u64, count: u32, size: u32) -> Result {
        // The last use may have ended early.
        self.clear();
        self.resize(count)?;
        let copied = match count {
            0 => Ok(()),
            _ => read_array(addr, size, abi::WR_SIZE_V1, &mut self.wrs),
        };
        let copied = copied.map_err(|(index, error)| self.end_before(index, error));
        self.copy_data().and(copied)
    }

    /// Removes the requests from number `index` on, and returns `error`, which is that one's.
    fn end_before(&mut self, index: u32, error: Error) -> Error {
        self.wrs.truncate(index as usize);
        error
    }

    /// Takes one request that was copied, and copies the data that it points to. Sleeps. The batch is
    /// empty when it fails.
    pub(crate) fn parse_one(&mut self, wr: abi::Wr) -> Result {
        self.clear();
        self.wrs.clear();
        self.wrs.push(wr, GFP_KERNEL_ACCOUNT)?;
        self.copy_data()
    }

    /// Returns the queue of the first request, 0 without requests.
    pub(crate) fn first_queue(&self) -> u32 {
        self.wrs.first().map_or(0, |wr| wr.qp)
    }

    /// Copies what the requests point to, up to the first request that cannot be copied. Sleeps.
    fn copy_data(&mut self) -> Result {
        let Self {
            wrs,
            data,
            sges,
            inline,
            ..
        } = self;
        let copied = numbered(wrs.iter())
            .filter(|(_, wr)| has_data(wr))
            .try_for_each(|(index, wr)| {
                let item = WrData::copy(index, wr, sges, inline)
                    .and_then(|item| Ok(data.push(item, GFP_KERNEL_ACCOUNT)?));
                item.map_err(|error| (index, error))
            });
        copied.map_err(|(index, error)| self.end_before(index, error))
    }

    /// Posts the requests that are in the chain, in order, as [`Chain::post`] does.
    pub(crate) fn post(&mut self) -> (u32, Result) {
        self.chain.post(|number, request| {
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
        })
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
