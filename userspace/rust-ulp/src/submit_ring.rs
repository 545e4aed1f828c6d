// SPDX-License-Identifier: MIT OR Apache-2.0

//! Submission rings: requests are encoded into memory that the kernel reads.
//!
//! A device keeps the rings that nobody uses. Whoever posts takes one, so that threads share none.

use crate::abi;
use crate::deadline::Deadline;
use crate::sync::lock;
use crate::sys::{sge_words, wr_words, Command, File, Said, SubmitMap, ENTRY_WORDS};
use nix::errno::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Entries of a new ring.
const ENTRIES: u32 = 128;
/// Most rings of a device. Each thread that posts or waits at the same time as others needs one.
const MOST: usize = 16;

/// Why nothing, or not everything, was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) errno: Errno,
    /// The request that was refused, and how many were posted.
    pub(crate) index: u32,
    pub(crate) posted: u32,
}

/// A submission ring of this process.
#[derive(Debug)]
pub(crate) struct SubmitRing {
    map: SubmitMap,
    handle: u32,
    entries: u32,
    /// The kernel's index of the next entry, as far as it said.
    head: u32,
    /// The index of the next entry to write.
    tail: u32,
}

impl SubmitRing {
    fn create(file: &File, entries: u32) -> Result<Self, Errno> {
        let mut arg = abi::RingCreate {
            entries,
            ..Command::new()
        };
        file.call(&mut arg)?;
        let map = SubmitMap::new(file, arg.mmap_offset, arg.mmap_size, arg.entries);
        let map = map.inspect_err(|_| destroy(file, arg.handle))?;
        Ok(Self {
            map,
            handle: arg.handle,
            entries: arg.entries,
            head: 0,
            tail: 0,
        })
    }

    /// Adds a request. `sges` are its elements, if it has several, and `bytes` its inline data, if
    /// that is in no buffer; then the address in `wr.sge` has no meaning.
    ///
    /// `ENOSPC` when there is no room for all of it: the ring is then as it was.
    #[inline]
    pub(crate) fn push(
        &mut self,
        wr: &abi::Wr,
        sges: impl ExactSizeIterator<Item = abi::Sge>,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        if sges.len() > 0 || !bytes.is_empty() || wr.flags & abi::REQUEST_TIMEOUT != 0 {
            return self.push_long(wr, sges, bytes);
        }
        match wr_words(wr).first_chunk() {
            Some(first) if self.put(first) => Ok(()),
            _ => Err(Errno::ENOSPC),
        }
    }

    /// As [`Self::push`], for a request that has several entries.
    #[inline(never)]
    fn push_long(
        &mut self,
        wr: &abi::Wr,
        mut sges: impl ExactSizeIterator<Item = abi::Sge>,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let before = self.tail;
        let mut wr = *wr;
        if sges.len() > 0 || !bytes.is_empty() {
            wr.sge.offset = 0;
        }
        let words = wr_words(&wr);
        let mut fits = words.first_chunk().is_some_and(|first| self.put(first));
        if wr.flags & abi::REQUEST_TIMEOUT != 0 {
            let [.., timeout, reserved] = *words;
            fits &= self.put(&[timeout, reserved, 0, 0, 0, 0, 0, 0]);
        }
        while sges.len() > 0 {
            let mut entry = [0; ENTRY_WORDS];
            for (to, sge) in entry.chunks_exact_mut(2).zip(sges.by_ref()) {
                to.copy_from_slice(&sge_words(sge));
            }
            fits &= self.put(&entry);
        }
        for bytes in bytes.chunks(ENTRY_WORDS * 8) {
            let mut entry = [0; ENTRY_WORDS];
            for (to, bytes) in entry.iter_mut().zip(bytes.chunks(8)) {
                let mut word = [0; 8];
                for (to, byte) in word.iter_mut().zip(bytes) {
                    *to = *byte;
                }
                *to = u64::from_ne_bytes(word);
            }
            fits &= self.put(&entry);
        }
        if !fits {
            self.tail = before;
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Writes the next entry. False when there is no room.
    #[inline]
    fn put(&mut self, words: &[u64; ENTRY_WORDS]) -> bool {
        if self.tail.wrapping_sub(self.head) >= self.entries {
            return false;
        }
        self.map
            .put(self.tail & self.entries.wrapping_sub(1), words);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Has the kernel post what was added, then wait for completions of a queue: its handle, how
    /// many, and until when. Returns what the kernel says of the wait. What was not posted is
    /// forgotten.
    pub(crate) fn kick(
        &mut self,
        file: &File,
        wait: Option<(u32, u32, &Deadline)>,
    ) -> Result<Option<Said>, Refused> {
        let (cq, min, timeout) =
            wait.map_or((0, 0, 0), |(cq, min, until)| (cq, min, until.left_ns()));
        self.map.ask(self.tail, cq, min, timeout);
        let kicked = file.kick(self.handle);
        self.kicked(kicked)?;
        Ok(wait.map(|(_, _, until)| {
            let said = self.map.said();
            until.set_left_ns(said.timeout_ns);
            said
        }))
    }

    /// Has what was added posted by the next `URING_KICK` of the handle that this returns.
    #[cfg(feature = "io-uring")]
    pub(crate) fn offer(&self) -> u32 {
        self.map.ask(self.tail, 0, 0, 0);
        self.handle
    }

    /// Takes the result of a call that was to post what was added. What was not posted is forgotten.
    pub(crate) fn kicked(&mut self, result: Result<(), Errno>) -> Result<(), Refused> {
        let Err(errno) = result else {
            self.head = self.tail;
            return Ok(());
        };
        let said = self.map.said();
        (self.head, self.tail) = (said.head, said.head);
        Err(Refused {
            errno,
            index: said.bad_index,
            posted: said.posted,
        })
    }

    /// Forgets what was added and not posted.
    fn clear(&mut self) {
        self.tail = self.head;
    }
}

fn destroy(file: &File, handle: u32) {
    let mut arg = abi::Destroy {
        handle,
        ..Command::new()
    };
    // An error leaves nothing to do: the device is gone, or the file is closed soon.
    let _ = file.call(&mut arg);
}

/// The rings of a device that nobody uses.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Whether the module makes rings.
    offered: bool,
    #[expect(clippy::vec_box, reason = "to take one moves a pointer")]
    free: Mutex<Vec<Box<SubmitRing>>>,
    /// How many were made.
    made: AtomicUsize,
}

impl Rings {
    pub(crate) fn new(offered: bool) -> Self {
        Self {
            offered,
            free: Mutex::default(),
            made: AtomicUsize::new(0),
        }
    }

    /// Takes a ring, or makes one. None if the module makes none, or there are enough: then SUBMIT
    /// does it.
    #[inline]
    pub(crate) fn take(&self, file: &File) -> Option<Box<SubmitRing>> {
        let free = lock(&self.free).pop();
        if free.is_some() || !self.offered {
            return free;
        }
        if self.made.fetch_add(1, Ordering::Relaxed) < MOST {
            if let Ok(ring) = SubmitRing::create(file, ENTRIES) {
                return Some(Box::new(ring));
            }
        }
        self.made.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Keeps a ring for the next one.
    #[inline]
    pub(crate) fn put(&self, mut ring: Box<SubmitRing>) {
        ring.clear();
        lock(&self.free).push(ring);
    }
}
