// SPDX-License-Identifier: GPL-2.0

//! Submission rings: the requests that user space writes to shared memory. Process context.
//!
//! User space can write every word of the ring at any time. A word that it owns is read once, and
//! only the copy is checked and used; what the kernel writes there it never reads back. The index
//! of the next entry to read is private ([`Consumer`]).

use super::{
    batch::Batch,
    mmap::{
        MmapOffset,
        MmapOffsets, //
    },
    quota::QuotaCharge, //
};
use crate::{
    kernel::pages::{
        AllocPolicy,
        Pages,
        Word, //
    },
    logic::ring::Consumer,
    uapi::abi, //
};
use core::mem::offset_of;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Bytes of an entry.
const ENTRY: usize = abi::RING_ENTRY_SIZE;

/// The requests of a ring that are not posted, and the memory to post them with.
pub(crate) struct Pending {
    /// The entries that are not posted.
    pub(crate) entries: Consumer,
    /// The requests of the last call.
    pub(crate) batch: Batch,
}

/// The wait that a call asks for.
pub(crate) struct WaitArgs {
    /// `TIMEOUT_*`.
    pub(crate) flags: u32,
    /// The handle of the completion queue.
    pub(crate) cq: u32,
    /// How many completions to wait for.
    pub(crate) min_complete: u32,
    /// How long to wait.
    pub(crate) timeout_ns: u64,
}

/// The words of the header that change.
struct Header {
    tail: Word,
    flags: Word,
    cq: Word,
    min_complete: Word,
    timeout_ns: [Word; 2],
    head: Word,
    posted: Word,
    bad_index: Word,
    completed: Word,
    wait_error: Word,
}

impl Header {
    fn of(pages: &Arc<Pages>) -> Result<Self> {
        let word = |offset| pages.word(offset);
        Ok(Self {
            tail: word(offset_of!(abi::Ring, tail))?,
            flags: word(offset_of!(abi::Ring, flags))?,
            cq: word(offset_of!(abi::Ring, cq))?,
            min_complete: word(offset_of!(abi::Ring, min_complete))?,
            timeout_ns: [
                word(offset_of!(abi::Ring, timeout_ns))?,
                word(offset_of!(abi::Ring, timeout_ns).wrapping_add(4))?,
            ],
            head: word(offset_of!(abi::Ring, head))?,
            posted: word(offset_of!(abi::Ring, posted))?,
            bad_index: word(offset_of!(abi::Ring, bad_index))?,
            completed: word(offset_of!(abi::Ring, completed))?,
            wait_error: word(offset_of!(abi::Ring, wait_error))?,
        })
    }

    /// Reads the time limit of a wait, each half once.
    fn timeout_ns(&self) -> u64 {
        let halves = self.timeout_ns.each_ref().map(Word::load);
        let [[a, b, c, d], [e, f, g, h]] = halves.map(u32::to_ne_bytes);
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    /// Writes the time that a wait has left.
    fn set_timeout_ns(&self, left_ns: u64) {
        let [a, b, c, d, e, f, g, h] = left_ns.to_ne_bytes();
        let [first, second] = &self.timeout_ns;
        first.store(u32::from_ne_bytes([a, b, c, d]));
        second.store(u32::from_ne_bytes([e, f, g, h]));
    }
}

/// A submission ring.
#[pin_data]
pub(crate) struct SubmitRing {
    pages: Arc<Pages>,
    header: Header,
    /// Lock order: after the gate, before `mmap_lock` and `UlpFile::table`. Held while requests are
    /// posted, so that they keep the order of their entries.
    #[pin]
    pending: Mutex<Pending>,
    entries: u32,
    mmap_offset: MmapOffset,
}

impl SubmitRing {
    /// Creates a ring of `entries` entries, a power of two. Sleeps.
    pub(crate) fn new(
        entries: u32,
        offsets: &Arc<MmapOffsets>,
        charge: QuotaCharge,
    ) -> Result<Arc<Self>> {
        let bytes = (entries as usize)
            .checked_mul(ENTRY)
            .and_then(|bytes| bytes.checked_add(abi::RING_ENTRIES_OFFSET))
            .ok_or(ERANGE)?;
        let charge = Arc::new(charge, GFP_KERNEL_ACCOUNT)?;
        let pages = Arc::new(
            Pages::new(bytes, 0, None, AllocPolicy::Reclaim, false)?.holding(charge),
            GFP_KERNEL_ACCOUNT,
        )?;
        let header = abi::Ring {
            entries,
            entry_size: ENTRY as u32,
            entries_offset: abi::RING_ENTRIES_OFFSET as u32,
            ..Default::default()
        };
        pages.write(0, &header)?;
        let pending = Pending {
            entries: Consumer::new(entries).ok_or(EINVAL)?,
            batch: Batch::new(),
        };
        let header = Header::of(&pages)?;
        let mmap_offset = offsets.reserve(pages.len())?;
        Arc::pin_init(
            pin_init!(Self {
                pages,
                header,
                pending <- new_mutex!(pending, "rust_ulp::SubmitRing::pending"),
                entries,
                mmap_offset,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns the pages, for mapping.
    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Sets its handle, by which lookups of its offset name it.
    pub(super) fn set_handle(&self, handle: u32) {
        self.mmap_offset.set_handle(handle);
    }

    /// Returns the offset at which user space maps the ring.
    pub(crate) fn mmap_offset(&self) -> u64 {
        self.mmap_offset.bytes()
    }

    /// Returns the requests that are not posted. Its lock is taken before the file's table.
    pub(crate) fn pending(&self) -> &Mutex<Pending> {
        &self.pending
    }

    /// Reads the wait that user space asks for, if any. Returns [`EINVAL`] for undefined flags.
    pub(crate) fn wait_args(&self) -> Result<Option<WaitArgs>> {
        let flags = self.header.flags.load();
        if flags & !abi::TIMEOUT_ABSOLUTE != 0 {
            return Err(EINVAL);
        }
        let cq = self.header.cq.load();
        if cq == 0 {
            return Ok(None);
        }
        Ok(Some(WaitArgs {
            flags,
            cq,
            min_complete: self.header.min_complete.load(),
            timeout_ns: self.header.timeout_ns(),
        }))
    }

    /// Copies the requests up to the tail that user space has stored to the batch of `pending`. The
    /// entries stay pending. Sleeps.
    ///
    /// Returns the number of the request that is bad, and its error.
    pub(crate) fn parse(&self, pending: &mut Pending) -> Result<(), (u32, Error)> {
        let Pending { entries, batch } = pending;
        entries
            .refresh(&self.header.tail)
            .map_err(|_| (0, EINVAL))?;
        batch
            .parse_ring(&self.pages, entries.clone())
            .map_err(|bad| (bad.index, bad.error))
    }

    /// Consumes the entries of the first `posted` requests of the batch, and reports how many
    /// requests were posted.
    pub(crate) fn consume(&self, pending: &mut Pending, posted: u32) {
        pending.entries.advance_by(pending.batch.entries_of(posted));
        pending.entries.release(&self.header.head);
        self.header.posted.store(posted);
    }

    /// Reports the number of the request that failed.
    pub(crate) fn report_bad(&self, index: u32) {
        self.header.bad_index.store(index);
    }

    /// Reports the result of a wait: the unread completions, and the time that is left.
    pub(crate) fn report_wait(&self, completed: u32, error: i32, left_ns: u64) {
        self.header.completed.store(completed);
        self.header.wait_error.store(error as u32);
        self.header.set_timeout_ns(left_ns);
    }
}

// The header and the entries need not be in different pages.
const _: () = assert!(core::mem::size_of::<abi::Ring>() <= abi::RING_ENTRIES_OFFSET);
