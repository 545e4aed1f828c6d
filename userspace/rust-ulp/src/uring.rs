// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests by io_uring: posted and reaped without a system call for each, and with
//! [`RingBuilder::sqpoll`] without any. Needs the feature `io-uring`.
//!
//! ```no_run
//! use rust_ulp::error::Result;
//! use rust_ulp::qp::Rc;
//! use rust_ulp::uring::Ring;
//! use rust_ulp::wr::{Send, Write};
//! use rust_ulp::{LocalSlice, Qp, RemoteSlice};
//! use std::time::Duration;
//!
//! fn write_then_tell(qp: &Qp<Rc>, from: LocalSlice<'_>, to: RemoteSlice) -> Result<()> {
//!     let mut ring = Ring::builder().entries(64).build()?;
//!     ring.push(qp, Write::new(from, to).wr_id(1))?;
//!     ring.link(); // what follows starts only if that succeeded
//!     ring.push(qp, Send::inline_bytes(b"it is there").wr_id(2))?;
//!     ring.submit()?;
//!     for _ in 0..2 {
//!         let done = ring.wait(Duration::from_secs(5))?;
//!         println!("{}: {}", done.wr_id, done.result?.ok()?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A request of a ring completes in the ring, and not in the completion queue of its queue pair. It
//! still takes an entry of that completion queue while it is in flight. One ring serves any queue
//! pairs of any devices. Rings and [`Qp::post`](crate::Qp::post) may post to one queue pair at the
//! same time; requests are in the order in which the kernel takes them.
//!
//! [`DeviceBatch::post_by`] only posts through the ring: its requests complete in their completion
//! queues, as those of calls do. One loop takes all completions: it sleeps in `poll` or `epoll` on
//! the ring ([`AsFd`]) and on [`Cq::eventfd`](crate::Cq::eventfd) of each completion queue.
//!
//! A completion in the ring has less to say than one in a completion queue:
//!
//! - [`Completion::qp_user_data`] is 0.
//! - That of a receive of a shared receive queue ([`Srq`](crate::Srq)) names no queue pair:
//!   [`Completion::qp_num`] is 0, and [`Completion::is_of`] is false for all queue pairs.
//! - That of a datagram names no LID, service level and P_Key, so that there is no answer to its
//!   sender ([`Qp::reply_to`](crate::Qp::reply_to)) on InfiniBand.
//!
//! Post by [`DeviceBatch::post_by`] where this matters.
//!
//! The ring keeps what a request refers to until it has completed: its buffers, its device, and
//! copies of its elements and inline bytes. A program may drop or forget a ring with requests in
//! flight: the kernel cancels them, or completes them without a completion.

use crate::abi;
use crate::ah::AddressHandle;
use crate::batch::{refused_error, DeviceBatch, Storage};
use crate::buffer::{Buffer, LocalSlice};
use crate::completion::Completion;
use crate::deadline::Deadline;
use crate::device::DeviceInner;
use crate::error::{Error, Result, URING_ENTER};
use crate::params::within;
use crate::post::submit_error;
use crate::status::completed_opcode;
use crate::sys::{self, Uring};
use crate::wr::{Local, Request, RequestFor, Target};
use nix::errno::Errno;
use std::fmt;
use std::mem::take;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Options of a [`Ring`]; from [`Ring::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct RingBuilder {
    entries: u32,
    idle: Option<Duration>,
    single_issuer: bool,
}

impl RingBuilder {
    /// Sets how many entries can be added between two submits: 1 to 32,768, rounded up to a power of
    /// two; 128 by default. Twice as many can be in flight.
    pub fn entries(mut self, n: u32) -> Self {
        self.entries = n;
        self
    }

    /// Has a kernel thread take what is submitted, without a system call. The thread uses a
    /// processor while there is work, and sleeps after `idle` without work.
    ///
    /// `IORING_SETUP_SQPOLL`.
    #[doc(alias = "kernel_thread")]
    pub fn sqpoll(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Says that only the thread that builds the ring uses it, and drops it: the kernel then wakes
    /// this thread once for as many completions as it waits for. In other threads the ring's
    /// functions fail with `EEXIST`. [`Ring::poll`] makes a system call when requests have
    /// completed. Has no effect with [`Self::sqpoll`].
    ///
    /// `IORING_SETUP_SINGLE_ISSUER` and `IORING_SETUP_DEFER_TASKRUN`.
    pub fn single_issuer(mut self) -> Self {
        self.single_issuer = true;
        self
    }

    /// Makes the ring.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for another number of [`Self::entries`]; [`Error::NoUring`] where there is no
    /// io_uring, or it is disabled.
    pub fn build(self) -> Result<Ring> {
        within("the entries of a ring", self.entries.into(), 1, MAX_ENTRIES)?;
        let idle = self.idle.map(|idle| {
            let ms = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
            ms.max(1) // 0 is the kernel's choice
        });
        let uring = Uring::new(self.entries, idle, self.single_issuer);
        let uring = uring.map_err(|cause| Error::NoUring { cause })?;
        // Completions never wait for room.
        let slots = uring.entries().saturating_mul(2);
        Ok(Ring {
            uring,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..slots).rev().collect(),
        })
    }
}

/// The objects that an entry refers to, until it has completed.
#[derive(Debug, Default)]
struct Slot {
    wr_id: u64,
    queue: u32,
    qp_num: u32,
    /// The opcode of its completion.
    opcode: u8,
    device: Option<Arc<DeviceInner>>,
    /// The requests of a batch.
    count: Option<u32>,
    keep: Vec<Buffer>,
    to: Option<AddressHandle>,
    memory: Memory,
}

/// The memory that the kernel reads after the entry was submitted.
#[derive(Debug, Default)]
struct Memory {
    sges: Vec<abi::Sge>,
    bytes: Vec<u8>,
    batch: Storage,
}

/// A completion of a ring: of a request, or of a batch.
#[derive(Debug)]
#[doc(alias = "Finished")]
#[doc(alias = "io_uring_cqe")]
#[non_exhaustive]
pub struct Cqe {
    /// The `wr_id` of the request or batch.
    pub wr_id: u64,
    /// The outcome; [`Completion::ok`] tells whether a request succeeded. If nothing was posted,
    /// this is the error of [`Qp::post`](crate::Qp::post), or `ECANCELED` if an earlier entry of its
    /// chain failed. A batch that succeeded has a completion with its `wr_id` alone. Another one has
    /// [`Error::Batch`] with the request that comes first in the batch of those that failed or were
    /// refused. When that one was refused, those before it were posted and have succeeded.
    pub result: Result<Completion>,
}

/// An instance of io_uring for the requests of this crate.
///
/// [`AsFd`] gives its file, which is readable while there are completions. Call [`Self::poll`]
/// until it returns none before waiting for the file.
pub struct Ring {
    // Goes first: then nobody takes entries any more.
    uring: Uring,
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("entries", &self.uring.entries())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl Ring {
    /// Returns the options of a new ring.
    pub fn builder() -> RingBuilder {
        RingBuilder {
            entries: 128,
            idle: None,
            single_issuer: false,
        }
    }

    /// Adds a request to those that [`Self::submit`] submits next.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`] if there is no room: submit and reap. Those of a request that can be
    /// told before it is posted, as of [`QpBatch::push`](crate::QpBatch::push).
    pub fn push<'a, Q, R: RequestFor<'a, Q>>(&mut self, queue: Q, request: R) -> Result<()> {
        self.push_request(&R::target(&queue), request.into())
    }

    fn push_request(&mut self, target: &Target<'_>, request: Request<'_>) -> Result<()> {
        let device = target.device;
        let mut wr = request.encode(target)?;
        let index = self.room()?;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(Error::QueueFull); // there is one for each index
        };
        match request.local {
            Local::None => {}
            Local::Bytes(bytes) => {
                slot.memory.bytes.extend_from_slice(bytes);
                if wr.num_sge == 1 {
                    wr.sge.offset = sys::address_of(&slot.memory.bytes);
                }
            }
            Local::One(slice) => slot.keep.push(slice.buffer().clone()),
            Local::Many(slices) => {
                slot.keep
                    .extend(slices.iter().map(|slice| slice.buffer().clone()));
                if wr.num_sge > 1 {
                    slot.memory.sges.extend(slices.iter().map(LocalSlice::sge));
                    wr.sge.offset = sys::address_of(&slot.memory.sges);
                }
            }
        }
        slot.wr_id = wr.user_data;
        (slot.queue, slot.qp_num) = (target.handle, target.qp_num);
        slot.opcode = completed_opcode(wr.opcode);
        slot.to = request.to.map(|to| to.ah().clone());
        self.stage(device, index, abi::URING_REQUEST, sys::request_bytes(&wr));
        Ok(())
    }

    /// Adds a batch, whose memory it takes. With `is_posting` it completes when it is posted.
    fn push_batch(
        &mut self,
        device: &Arc<DeviceInner>,
        storage: &mut Storage,
        wr_id: u64,
        is_posting: bool,
    ) -> Result<()> {
        let count = storage.len() as u64;
        within(
            "the number of requests of a batch",
            count,
            1,
            u16::MAX.into(),
        )?;
        let index = self.room()?;
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(Error::QueueFull); // there is one for each index
        };
        // The memory of the one before goes back in exchange.
        std::mem::swap(&mut slot.memory.batch, storage);
        let flags = if is_posting { abi::URING_RING } else { 0 };
        let command = slot.memory.batch.command(flags);
        (slot.wr_id, slot.queue, slot.qp_num) = (wr_id, 0, 0);
        slot.opcode = abi::WC_SEND;
        slot.count = Some(u32::from(command.nr_wrs));
        self.stage(device, index, abi::URING_BATCH, sys::batch_bytes(&command));
        Ok(())
    }

    /// Adds the command of the slot that [`Self::room`] returned.
    fn stage(&mut self, device: &Arc<DeviceInner>, index: u32, op: u32, bytes: [u8; 80]) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.device = Some(device.clone());
        }
        let file = device.file().as_fd().as_raw_fd();
        self.uring.stage(file, op, bytes, index.into());
        self.free.pop();
    }

    /// Returns the slot for the next entry, which is the last of those that are free.
    fn room(&self) -> Result<u32> {
        if self.uring.staged() >= self.uring.entries() as usize {
            return Err(Error::QueueFull);
        }
        self.free.last().copied().ok_or(Error::QueueFull)
    }

    /// Makes the next entry start only when the last one has succeeded; otherwise the next one ends
    /// with `ECANCELED`. [`Self::submit`] ends a chain: the last entry before it is linked to none.
    pub fn link(&mut self) {
        self.uring.link();
    }

    /// Submits the entries that were added, and returns how many there were.
    ///
    /// # Errors
    ///
    /// [`Error::QueueFull`] if the kernel thread has not yet taken what was submitted before: reap,
    /// and submit again. [`Error::Sys`] if the kernel takes no entries now: they stay in the ring,
    /// and the next call that submits or waits has the kernel take them.
    pub fn submit(&mut self) -> Result<usize> {
        let count = self.uring.staged();
        if !self.uring.put() {
            return Err(Error::QueueFull);
        }
        self.uring.enter().map_err(|error| failed(&error))?;
        Ok(count)
    }

    /// Submits the entries that were added and sleeps until there are `min` completions to take, by
    /// one system call. Returns how many entries were submitted.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]. [`Error::Timeout`] if there are fewer completions within `timeout`:
    /// everything was submitted. [`Error::Value`] if `min` exceeds what may be in flight, twice the
    /// entries of the ring: nothing was submitted.
    pub fn submit_and_wait(&mut self, min: u32, timeout: Duration) -> Result<usize> {
        let most = self.slots.len() as u64;
        within("the number of completions to wait for", min.into(), 0, most)?;
        let count = self.uring.staged();
        let wanted = min as usize;
        if self.uring.ready() >= wanted {
            return self.submit();
        }
        if !self.uring.put() {
            return Err(Error::QueueFull);
        }
        self.sleep(wanted, &Deadline::after(timeout))?;
        Ok(count)
    }

    /// Sleeps until there are `wanted` completions, more than there are. The kernel takes what was
    /// put into the ring, by the same call.
    fn sleep(&mut self, wanted: usize, deadline: &Deadline) -> Result<()> {
        loop {
            // The call may end early: a signal interrupts it, and one that submits returns how many
            // entries it took, whether or not the time is over.
            let time = deadline.left().min(LONGEST);
            let over = self.uring.wait(wanted, time);
            let over = over.map_err(|error| failed(&error))? && time < LONGEST;
            if self.uring.ready() >= wanted {
                return Ok(());
            }
            if over || deadline.left().is_zero() {
                return Err(deadline.timeout(WAITING));
            }
        }
    }

    /// Takes the oldest completion, if there is one. Makes a system call only as
    /// [`RingBuilder::single_issuer`] says.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] if that call fails.
    pub fn poll(&mut self) -> Result<Option<Cqe>> {
        let cqe = match self.uring.next() {
            None => {
                self.uring.refresh().map_err(|error| failed(&error))?;
                self.uring.next()
            }
            cqe => cqe,
        };
        let Some(cqe) = cqe else {
            return Ok(None);
        };
        let index = u32::try_from(cqe.user_data).unwrap_or(u32::MAX);
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Ok(None); // none has such a number
        };
        let finished = slot.finish(cqe.res, cqe.extra);
        self.free.push(index);
        Ok(Some(finished))
    }

    /// Takes the oldest completion, sleeping until there is one. Does not submit entries.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; [`Error::Sys`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Cqe> {
        if let Some(finished) = self.poll()? {
            return Ok(finished);
        }
        let deadline = Deadline::after(timeout);
        loop {
            self.sleep(1, &deadline)?;
            if let Some(finished) = self.poll()? {
                return Ok(finished);
            }
            if deadline.left().is_zero() {
                return Err(deadline.timeout(WAITING));
            }
        }
    }

    /// Returns how often it has waited in the kernel.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> u32 {
        self.uring.waits
    }

    /// Returns how many entries were added and have not completed.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl DeviceBatch<'_> {
    /// Adds the whole batch to a ring as one entry, which completes when all requests have
    /// completed. `wr_id` is the number of the entry. If a request is refused, those before it are
    /// posted, and the entry completes when they have completed.
    ///
    /// The batch is empty then, and can be filled anew.
    ///
    /// # Errors
    ///
    /// As [`Ring::push`]; [`Error::Value`] for a batch of no requests, or of more than 65,535. The
    /// batch is as it was: after [`Error::QueueFull`], submit and reap, and try again.
    pub fn submit_by(&mut self, ring: &mut Ring, wr_id: u64) -> Result<()> {
        self.give(|device, storage| ring.push_batch(device, storage, wr_id, false))
    }

    /// Adds the posting of the batch to a ring as one entry, which completes as soon as the requests
    /// are posted. The requests complete in their completion queues. `wr_id` is the number of the
    /// entry; its result is that of [`Self::submit`]. The batch is empty then. Fails as
    /// [`Self::submit_by`].
    #[doc(alias = "URING_RING")]
    pub fn post_by(&mut self, ring: &mut Ring, wr_id: u64) -> Result<()> {
        self.give(|device, storage| ring.push_batch(device, storage, wr_id, true))
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.uring.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for index in self.uring.discard() {
            let slot = usize::try_from(index).ok();
            if let Some(slot) = slot.and_then(|index| self.slots.get_mut(index)) {
                drop(take(slot));
            }
        }
        for cqe in self.uring.rest() {
            let slot = usize::try_from(cqe.user_data).ok();
            if let Some(slot) = slot.and_then(|index| self.slots.get_mut(index)) {
                slot.finish(cqe.res, cqe.extra);
            }
        }
        // The kernel may still be about to read what is in flight, from memory that nobody must
        // have then: it stays where it is.
        for slot in self.slots.iter_mut().filter(|slot| slot.device.is_some()) {
            std::mem::forget(take(&mut slot.memory));
        }
    }
}

/// The name of a wait in errors.
const WAITING: &str = "waiting for completions of a ring";

/// The most entries of an io_uring: IORING_MAX_ENTRIES of the kernel.
const MAX_ENTRIES: u64 = 32_768;

/// The longest sleep of one call, which every kernel takes.
const LONGEST: Duration = Duration::from_secs(3600);

fn failed(error: &std::io::Error) -> Error {
    Error::io(URING_ENTER, error)
}

impl Slot {
    /// Returns the completion, and frees the slot.
    fn finish(&mut self, res: i32, extra: u64) -> Cqe {
        let wr_id = self.wr_id;
        let result = match self.device.take() {
            Some(device) => self.outcome(res, extra, &device),
            None => Err(Error::CqCorrupt), // it was not in flight
        };
        self.keep.clear();
        self.to = None;
        self.count = None;
        self.memory.sges.clear();
        self.memory.bytes.clear();
        self.memory.batch.clear();
        Cqe { wr_id, result }
    }

    fn outcome(&self, res: i32, extra: u64, device: &DeviceInner) -> Result<Completion> {
        let mut cqe = abi::Cqe {
            user_data: self.wr_id,
            qp: self.queue,
            qp_num: self.qp_num,
            opcode: self.opcode,
            ..abi::Cqe::default()
        };
        if let Ok(bytes) = u32::try_from(res) {
            if self.count.is_none() {
                if extra & abi::URING_RDMA_WITH_IMM != 0 {
                    cqe.opcode = abi::WC_RECV_RDMA_WITH_IMM;
                }
                let word = extra & !abi::URING_RDMA_WITH_IMM;
                cqe.imm_data = word as u32;
                cqe.src_qp = (word >> abi::URING_SRC_QP_SHIFT) as u32 & 0xff_ffff;
                cqe.flags = (word >> abi::URING_FLAGS_SHIFT) as u8;
                cqe.byte_len = bytes;
            }
            return Ok(Completion::new(&cqe, device));
        }
        let index = u32::from((extra >> abi::URING_INDEX_SHIFT) as u16);
        cqe.status = extra as u16;
        if cqe.status == 0 {
            let errno = Errno::from_raw(res.wrapping_neg());
            return Err(match (self.count, index) {
                (Some(_), 1..) => refused_error(index, errno),
                _ => submit_error(errno),
            });
        }
        cqe.vendor_err = (extra >> abi::URING_VENDOR_ERR_SHIFT) as u32;
        let done = Completion::new(&cqe, device);
        let Some(count) = self.count else {
            return Ok(done);
        };
        done.ok().map_err(|cause| Error::Batch {
            index,
            posted: count,
            cause: Box::new(cause),
        })
    }
}

#[cfg(test)]
#[path = "tests/uring_results.rs"]
mod tests;
