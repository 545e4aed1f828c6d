// SPDX-License-Identifier: GPL-2.0

//! Batches: work requests that are copied from user space once, before any lookup.
//!
//! They come from user memory, or from a submission ring.
//!
//! Process context. A batch that was used before has its memory, and allocates nothing.

use super::completion::Completions;
use crate::{
    kernel::{
        pages::{
            Block,
            Pages, //
        },
        user::{
            read_array,
            read_bytes, //
        }, //
    },
    limits::{
        MAX_INLINE,
        MAX_MESSAGE,
        MAX_SGE, //
    },
    logic::{
        numbered,
        ring::Consumer, //
    },
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
use kernel::{
    prelude::*,
    transmute::AsBytes, //
};

/// Most requests in a batch that a file keeps for reuse.
const KEEP: usize = 256;

/// Bytes of an entry of a submission ring.
const ENTRY: usize = abi::RING_ENTRY_SIZE;

const LIMITS: Limits = Limits {
    max_sge: MAX_SGE,
    max_inline: MAX_INLINE,
};

/// The parts of a request outside of its struct: several elements, inline data, or further entries
/// of a ring.
pub(crate) struct WrData {
    /// The number of the request.
    pub(crate) index: u32,
    /// Entries of the ring after that of the request.
    more_entries: u32,
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

    /// Makes room for `count` requests. The entries that there are stay. May sleep.
    fn resize(&mut self, count: u32) -> Result<(), kernel::alloc::AllocError> {
        let count = count as usize;
        let had = self.wrs.len();
        self.wrs.truncate(count);
        if had < count {
            self.wrs
                .resize(count, abi::Wr::default(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// Returns whether it is small enough to keep.
    pub(crate) fn is_small(&self) -> bool {
        self.wrs.capacity() <= KEEP
    }

    /// Copies `count` requests of `size` bytes each at `addr`, and the data that they point to.
    /// Sleeps.
    pub(crate) fn parse(&mut self, addr: u64, count: u32, size: u32) -> Result<(), BadWr> {
        // The last use may have ended early.
        self.clear();
        self.resize(count).map_err(Self::no_memory)?;
        if count > 0 {
            read_array(addr, size, abi::WR_SIZE_V1, &mut self.wrs)
                .map_err(|(index, error)| BadWr { index, error })?;
        }
        self.copy_data()
    }

    /// Copies the requests in `entries` of the submission ring in `pages`, each word once. Sleeps.
    pub(crate) fn parse_ring(&mut self, pages: &Pages, entries: Consumer) -> Result<(), BadWr> {
        // The last use may have ended early.
        self.clear();
        self.resize(entries.ready()).map_err(Self::no_memory)?;
        let (wrs, mut data) = self.split();
        let parsed = data.copy_ring(wrs, RingMemory::new(pages, entries));
        wrs.truncate(*parsed.as_ref().unwrap_or(&0) as usize);
        parsed.map(|_| ())
    }

    /// Returns the requests, and the data that they point to.
    fn split(&mut self) -> (&mut KVVec<abi::Wr>, BatchData<'_>) {
        let Self {
            wrs,
            data,
            sges,
            inline,
            ..
        } = self;
        (wrs, BatchData { data, sges, inline })
    }

    /// Returns the number of requests.
    pub(crate) fn len(&self) -> u32 {
        self.wrs.len() as u32
    }

    /// Returns the number of entries of a ring that the first `count` requests have.
    pub(crate) fn entries_of(&self, count: u32) -> u32 {
        self.data
            .iter()
            .take_while(|data| data.index < count)
            .fold(count, |sum, data| sum.saturating_add(data.more_entries))
    }

    /// Takes one request that was copied, and copies the data that it points to. Sleeps.
    pub(crate) fn parse_one(&mut self, wr: abi::Wr) -> Result {
        self.clear();
        self.wrs.clear();
        self.wrs.push(wr, GFP_KERNEL_ACCOUNT)?;
        self.copy_data().map_err(|bad| bad.error)
    }

    /// Returns the queue of the first request, 0 without requests.
    pub(crate) fn first_queue(&self) -> u32 {
        self.wrs.first().map_or(0, |wr| wr.qp)
    }

    fn no_memory(_: kernel::alloc::AllocError) -> BadWr {
        BadWr {
            index: 0,
            error: ENOMEM,
        }
    }

    /// Copies what the requests point to. Sleeps.
    fn copy_data(&mut self) -> Result<(), BadWr> {
        let (wrs, mut data) = self.split();
        numbered(wrs.iter())
            .filter(|(_, wr)| has_data(wr))
            .try_for_each(|(index, wr)| data.copy_of(index, wr, &mut UserMemory))
    }

    /// Discards the requests that are in the chain. Sleeps.
    pub(crate) fn discard(&mut self) {
        self.chain.clear();
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

/// The data that the requests of a batch point to.
struct BatchData<'a> {
    data: &'a mut KVVec<WrData>,
    sges: &'a mut KVVec<abi::Sge>,
    inline: &'a mut KVVec<u8>,
}

impl BatchData<'_> {
    /// Copies the requests in `ring` to `wrs`. Returns how many there are.
    fn copy_ring(&mut self, wrs: &mut [abi::Wr], mut ring: RingMemory<'_>) -> Result<u32, BadWr> {
        let mut count = 0;
        for (index, wr) in numbered(wrs.iter_mut()) {
            if ring.entries.ready() == 0 {
                break;
            }
            count = index.wrapping_add(1);
            let fail = |error: Error| BadWr { index, error };
            ring.start_wr(wr).map_err(fail)?;
            if has_data(wr) || wr.flags & abi::REQUEST_TIMEOUT != 0 {
                self.copy_long(index, wr, &mut ring)?;
            }
        }
        Ok(count)
    }

    /// Copies the rest of request number `index`, whose first entry is in `wr`.
    #[inline(never)]
    fn copy_long(
        &mut self,
        index: u32,
        wr: &mut abi::Wr,
        ring: &mut RingMemory<'_>,
    ) -> Result<(), BadWr> {
        let before = ring.entries.ready();
        ring.finish_wr(wr).map_err(|error| BadWr { index, error })?;
        self.copy_of(index, wr, ring)?;
        if let Some(data) = self.data.last_mut() {
            data.more_entries = before.wrapping_sub(ring.entries.ready());
        }
        Ok(())
    }

    /// Copies what request number `index` points to in `memory`. Sleeps.
    fn copy_of(&mut self, index: u32, wr: &abi::Wr, memory: &mut impl Memory) -> Result<(), BadWr> {
        let Self { data, sges, inline } = self;
        let fail = |error: Error| BadWr { index, error };
        let request = decoded(wr).map_err(fail)?;
        let first_sge = sges.len();
        copy_elements(sges, &request.elements, memory).map_err(fail)?;
        let list = sges.get(first_sge..).unwrap_or(&[]);
        let inline_at = inline.len();
        copy_inline(inline, list, &request, memory).map_err(fail)?;
        let item = WrData {
            index,
            more_entries: 0,
            first_sge,
            num_sge: list.len(),
            inline_at,
            inline_len: inline.len().saturating_sub(inline_at),
        };
        data.push(item, GFP_KERNEL_ACCOUNT)
            .map_err(Batch::no_memory)
    }
}

/// The memory that a request points to.
trait Memory {
    /// Copies the elements at `addr`. Sleeps.
    fn elements(&mut self, addr: u64, to: &mut [abi::Sge]) -> Result;

    /// Copies the inline data at `addr`. Sleeps.
    fn bytes(&mut self, addr: u64, to: &mut [u8]) -> Result;
}

/// The memory of the current process.
struct UserMemory;

impl Memory for UserMemory {
    fn elements(&mut self, addr: u64, to: &mut [abi::Sge]) -> Result {
        read_array(addr, abi::Sge::SIZE, abi::Sge::SIZE, to).map_err(|(_, error)| error)
    }

    fn bytes(&mut self, addr: u64, to: &mut [u8]) -> Result {
        read_bytes(addr, to)
    }
}

/// A submission ring. What a request would point to is in the entries after its own, so all
/// addresses are 0.
struct RingMemory<'a> {
    pages: &'a Pages,
    /// The chunk of the last entry, and its offset.
    chunk: Option<(usize, Block<'a>)>,
    /// The entries that are not copied yet.
    entries: Consumer,
}

impl<'a> RingMemory<'a> {
    fn new(pages: &'a Pages, entries: Consumer) -> Self {
        Self {
            pages,
            chunk: None,
            entries,
        }
    }

    /// Copies the next entry. [`EINVAL`] if there is none.
    #[inline(always)]
    fn next(&mut self, to: &mut [u8; ENTRY]) -> Result {
        // Masked by the length of the ring, which user space cannot change: a mispredicted branch
        // leads to no other memory.
        let slot = self.entries.slot().ok_or(EINVAL)? as usize;
        self.entries.advance();
        let offset = slot
            .wrapping_mul(ENTRY)
            .wrapping_add(abi::RING_ENTRIES_OFFSET);
        let size = self.pages.chunk_size();
        let within = offset & size.wrapping_sub(1);
        let begin = offset.wrapping_sub(within);
        let chunk = match &self.chunk {
            Some((at, chunk)) if *at == begin => chunk,
            _ => {
                let chunk = self.pages.block(begin, size)?;
                &self.chunk.insert((begin, chunk)).1
            }
        };
        chunk.read_words(within, to)
    }

    /// Copies the first entry of the next request.
    #[inline(always)]
    fn start_wr(&mut self, wr: &mut abi::Wr) -> Result {
        let bytes = wr.as_bytes_mut();
        self.next(bytes.first_chunk_mut().ok_or(EINVAL)?)?;
        wr.timeout_ns = 0;
        wr.reserved = 0;
        Ok(())
    }

    /// Copies the rest of `wr`, if it has a timeout. [`E2BIG`] for bytes that the kernel does not
    /// know, unless they are zero.
    fn finish_wr(&mut self, wr: &mut abi::Wr) -> Result {
        if wr.flags & abi::REQUEST_TIMEOUT == 0 {
            return Ok(());
        }
        let mut entry = [0; ENTRY];
        self.next(&mut entry)?;
        let rest = wr.as_bytes_mut().get_mut(ENTRY..).ok_or(EINVAL)?;
        let (known, unknown) = entry.split_at_checked(rest.len()).ok_or(EINVAL)?;
        rest.copy_from_slice(known);
        if unknown.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        Ok(())
    }

    /// Copies as many entries as `to` needs. [`EINVAL`] for an address.
    fn copy(&mut self, addr: u64, to: &mut [u8]) -> Result {
        if addr != 0 {
            return Err(EINVAL);
        }
        for part in to.chunks_mut(ENTRY) {
            let mut entry = [0; ENTRY];
            self.next(&mut entry)?;
            part.copy_from_slice(entry.get(..part.len()).ok_or(EINVAL)?);
        }
        Ok(())
    }
}

impl Memory for RingMemory<'_> {
    fn elements(&mut self, addr: u64, to: &mut [abi::Sge]) -> Result {
        let mut bytes = [0; MAX_SGE as usize * abi::Sge::SIZE as usize];
        let size = abi::Sge::SIZE as usize;
        let bytes = bytes.get_mut(..to.len().wrapping_mul(size)).ok_or(EINVAL)?;
        self.copy(addr, bytes)?;
        for (sge, from) in to.iter_mut().zip(bytes.chunks_exact(size)) {
            sge.as_bytes_mut().copy_from_slice(from);
        }
        Ok(())
    }

    fn bytes(&mut self, addr: u64, to: &mut [u8]) -> Result {
        self.copy(addr, to)
    }
}

/// Appends the elements of a request to `sges`. Sleeps.
fn copy_elements(
    sges: &mut KVVec<abi::Sge>,
    elements: &Elements,
    memory: &mut impl Memory,
) -> Result {
    match *elements {
        Elements::None => Ok(()),
        Elements::One(sge) => Ok(sges.push(sge, GFP_KERNEL_ACCOUNT)?),
        Elements::Array { addr, count } => {
            let first = sges.len();
            let total = first.saturating_add(count as usize);
            sges.resize(total, abi::Sge::default(), GFP_KERNEL_ACCOUNT)?;
            let part = sges.get_mut(first..total).ok_or(EINVAL)?;
            memory.elements(addr, part)
        }
    }
}

/// Checks the length of a request with these elements, and appends its inline data to `inline` if
/// that is in `memory`. Sleeps.
///
/// Inline data in buffers is copied later, when the buffers are looked up. Returns [`EMSGSIZE`] for
/// a request that is too long, [`EINVAL`] for inline data in both.
fn copy_inline(
    inline: &mut KVVec<u8>,
    sges: &[abi::Sge],
    request: &DecodedWr,
    memory: &mut impl Memory,
) -> Result {
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
        memory.bytes(sge.offset, part)?;
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
