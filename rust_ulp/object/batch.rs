// SPDX-License-Identifier: GPL-2.0

//! Batches: requests that are copied from user space, once, and looked at without looking anything up.
//!
//! Process context; nothing is allocated once the room for a batch is there.

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

/// The largest batch that a file keeps for reuse, in requests.
const KEEP: usize = 256;

const LIMITS: Limits = Limits {
    max_sge: MAX_SGE,
    max_inline: MAX_INLINE,
};

/// A request that was copied from user space.
pub(crate) struct ParsedWr {
    /// What it is.
    pub(crate) request: DecodedWr,
    /// Its elements in [`Batch::sges`].
    pub(crate) first_sge: usize,
    /// How many there are.
    pub(crate) num_sge: usize,
    /// Its inline data in [`Batch::inline`], when that comes from user memory.
    pub(crate) inline_at: usize,
    /// Bytes of that.
    pub(crate) inline_len: usize,
}

/// Work requests that were copied from user space, and what they refer to.
pub(crate) struct Batch {
    wrs: KVVec<abi::Wr>,
    pub(crate) parsed: KVVec<ParsedWr>,
    pub(crate) sges: KVVec<abi::Sge>,
    pub(crate) inline: KVVec<u8>,
    pub(crate) chains: KVVec<Chain<Completions>>,
}

impl Batch {
    /// No room yet: it grows to what is needed.
    pub(crate) fn new() -> Self {
        Self {
            wrs: KVVec::new(),
            parsed: KVVec::new(),
            sges: KVVec::new(),
            inline: KVVec::new(),
            chains: KVVec::new(),
        }
    }

    /// Empties it, but for the entries, which are copied over.
    fn clear(&mut self) {
        self.chains.clear();
        self.parsed.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Whether it is worth keeping.
    pub(crate) fn is_small(&self) -> bool {
        self.parsed.capacity() <= KEEP
    }

    /// Copies `count` requests of `size` bytes each at `addr`, and what they point to. Sleeps.
    pub(crate) fn parse(&mut self, addr: u64, count: u32, size: u32) -> Result<(), BadWr> {
        // Also empties it when the last batch was cut short.
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

    /// Takes one request that was copied, and copies what it points to. Sleeps.
    pub(crate) fn parse_one(&mut self, wr: abi::Wr) -> Result {
        self.clear();
        self.wrs.clear();
        self.wrs.push(wr, GFP_KERNEL_ACCOUNT)?;
        self.decode().map_err(|bad| bad.error)
    }

    /// What the first request names; 0 when there is none.
    pub(crate) fn first_queue(&self) -> u32 {
        self.parsed.first().map_or(0, |parsed| parsed.request.qp)
    }

    fn no_memory(_: kernel::alloc::AllocError) -> BadWr {
        BadWr {
            index: 0,
            error: ENOMEM,
        }
    }

    /// Looks at what was copied, and copies what that points to. Sleeps.
    fn decode(&mut self) -> Result<(), BadWr> {
        let at = |index: u32| move |error: Error| BadWr { index, error };
        let memory = Self::no_memory;
        self.parsed
            .reserve(self.wrs.len(), GFP_KERNEL_ACCOUNT)
            .map_err(memory)?;

        let Batch {
            wrs,
            parsed,
            sges,
            inline,
            ..
        } = self;
        for (index, wr) in numbered(wrs.iter()) {
            let fail = at(index);
            let request = decode(wr, LIMITS)
                .map_err(|refusal| fail(Error::from_errno(refusal.errno().wrapping_neg())))?;
            let first_sge = sges.len();
            let mut num_sge = 0;
            match request.elements {
                Elements::None => (),
                Elements::One(sge) => {
                    sges.push(sge, GFP_KERNEL_ACCOUNT).map_err(memory)?;
                    num_sge = 1;
                }
                Elements::Array { addr, count } => {
                    num_sge = count as usize;
                    let total = first_sge.saturating_add(num_sge);
                    sges.resize(total, abi::Sge::default(), GFP_KERNEL_ACCOUNT)
                        .map_err(memory)?;
                    let part = sges.get_mut(first_sge..total).ok_or_else(|| fail(EINVAL))?;
                    read_array(addr, abi::Sge::SIZE, abi::Sge::SIZE, part)
                        .map_err(|(_, error)| fail(error))?;
                }
            }
            let list = sges.get(first_sge..).unwrap_or(&[]);
            let length: u64 = list
                .iter()
                .map(|sge| u64::from(sge.length))
                .fold(0, u64::saturating_add);
            if length > MAX_MESSAGE {
                return Err(fail(EMSGSIZE));
            }

            let inline_at = inline.len();
            let mut inline_len = 0;
            if request.inline {
                if length > LIMITS.max_inline.into() {
                    return Err(fail(EMSGSIZE));
                }
                // Elements in user memory; those in buffers are read when these are found.
                let user = list.iter().any(|sge| sge.buffer == 0);
                if user && list.iter().any(|sge| sge.buffer != 0) {
                    return Err(fail(EINVAL));
                }
                if user {
                    inline_len = length as usize;
                    let total = inline_at.saturating_add(inline_len);
                    inline
                        .resize(total, 0, GFP_KERNEL_ACCOUNT)
                        .map_err(memory)?;
                    let mut to = inline_at;
                    for sge in list {
                        let end = to.saturating_add(sge.length as usize);
                        let part = inline.get_mut(to..end).ok_or_else(|| fail(EINVAL))?;
                        read_bytes(sge.offset, part).map_err(fail)?;
                        to = end;
                    }
                }
            }
            parsed
                .push(
                    ParsedWr {
                        request,
                        first_sge,
                        num_sge,
                        inline_at,
                        inline_len,
                    },
                    GFP_KERNEL_ACCOUNT,
                )
                .map_err(memory)?;
        }
        Ok(())
    }

    /// Takes back what was put into slots and not posted. Sleeps.
    pub(crate) fn discard(&mut self) {
        self.chains.clear();
    }

    /// Posts what was put into slots, in order: how many the devices took, and the error with which
    /// one refused the next. Those after that are taken back. Sleeps only for that.
    pub(crate) fn post(&mut self) -> (u32, Result) {
        let (mut total, mut result) = (0u32, Ok(()));
        for chain in self.chains.drain_all() {
            if result.is_err() {
                // Cancelled, when it is dropped.
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

/// What went wrong, and with which request.
pub(crate) struct BadWr {
    /// The request.
    pub(crate) index: u32,
    /// What.
    pub(crate) error: Error,
}
