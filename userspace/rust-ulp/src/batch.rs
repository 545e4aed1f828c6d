// SPDX-License-Identifier: MIT OR Apache-2.0

//! Posting: many requests by one call.

use crate::abi;
use crate::ah::{AddressHandle, Destination};
use crate::buffer::{Buffer, LocalSlice};
use crate::cq::Cq;
use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::error::{Error, Result};
use crate::post::submit_error;
use crate::qp::Qp;
use crate::sync::Cache;
use crate::sys::{self, Command};
use crate::transport::Transport;
use crate::wr::{elsewhere, Data, Local, Post, Request, RequestFor, Target};
use nix::errno::Errno;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// The outcome of SUBMIT.
#[derive(Clone, Copy, Debug)]
struct Submitted {
    /// The number of requests that were posted.
    posted: u32,
    /// The error that refused the next one.
    stopped: Option<Errno>,
    /// The completions that can be taken.
    completed: u32,
}

/// The requests of a batch as the ABI has them. Kept from one batch to the next.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    wrs: Vec<abi::Wr>,
    /// Elements of requests with several; but for the time of a call, `wr.sge.offset` is an index
    /// into these, or into the bytes.
    sges: Vec<abi::Sge>,
    /// Bytes of inline requests.
    bytes: Vec<u8>,
    /// Objects that the requests of a batch in a ring refer to.
    #[cfg(feature = "io-uring")]
    buffers: Vec<Buffer>,
    #[cfg(feature = "io-uring")]
    addresses: Vec<AddressHandle>,
    /// Empty memory for what a batch borrows.
    borrowed: Borrowed<'static>,
}

/// The objects that the requests of a batch borrow. A ring to which the batch is given keeps them.
#[derive(Debug, Default)]
struct Borrowed<'a> {
    buffers: Vec<&'a Buffer>,
    addresses: Vec<&'a AddressHandle>,
    /// The lengths that the two had after each request was added.
    ends: Vec<(usize, usize)>,
}

impl<'a> Borrowed<'a> {
    /// Adds what a request borrows.
    #[inline]
    fn add(&mut self, local: Local<'a>, to: Option<&'a Destination>) {
        match local {
            Local::One(slice) => self.buffers.push(slice.buffer()),
            Local::Many(slices) => self.add_several(slices),
            Local::None | Local::Bytes(_) => {}
        }
        if let Some(to) = to {
            self.addresses.push(to.ah());
        }
        self.ends.push((self.buffers.len(), self.addresses.len()));
    }

    #[inline(never)]
    fn add_several(&mut self, slices: &'a [LocalSlice<'a>]) {
        self.buffers.extend(slices.iter().map(LocalSlice::buffer));
    }

    /// Removes what the first `posted` requests borrow.
    fn remove(&mut self, posted: usize) {
        let end = self.ends.drain(..posted).next_back();
        if let Some((buffers, addresses)) = end {
            self.buffers.drain(..buffers);
            self.addresses.drain(..addresses);
            for (of_buffers, of_addresses) in &mut self.ends {
                *of_buffers -= buffers;
                *of_addresses -= addresses;
            }
        }
    }

    fn clear(&mut self) {
        self.buffers.clear();
        self.addresses.clear();
        self.ends.clear();
    }

    /// Returns its memory, with nothing in it.
    fn into_memory(mut self) -> Borrowed<'static> {
        self.clear();
        // The standard library makes the new vector in the memory of the old one.
        Borrowed {
            buffers: self.buffers.into_iter().map_while(|_| None).collect(),
            addresses: self.addresses.into_iter().map_while(|_| None).collect(),
            ends: self.ends,
        }
    }
}

impl Storage {
    /// Adds a request of any kind, with what it has outside of its struct.
    #[inline(never)]
    fn push_other(&mut self, target: &Target<'_>, request: Request<'_>) -> Result<()> {
        let mut wr = request.encode(target)?;
        match (&request.local, wr.num_sge) {
            (Local::Many(slices), 2..) => {
                wr.sge.offset = self.sges.len() as u64;
                self.sges.extend(slices.iter().map(LocalSlice::sge));
            }
            (Local::Bytes(inline), 1) => {
                wr.sge.offset = self.bytes.len() as u64;
                self.bytes.extend_from_slice(inline);
            }
            _ => {}
        }
        self.wrs.push(wr);
        Ok(())
    }

    /// Makes the requests point at their elements and inline bytes, which stand in here.
    fn point(&mut self) {
        for wr in &mut self.wrs {
            // An index that `push` made: what it is of is there.
            let index = usize::try_from(wr.sge.offset).unwrap_or(usize::MAX);
            if wr.num_sge > 1 {
                wr.sge.offset = sys::address_of(self.sges.get(index..).unwrap_or_default());
            } else if wr.num_sge == 1 && wr.sge.buffer == 0 {
                wr.sge.offset = sys::address_of(self.bytes.get(index..).unwrap_or_default());
            }
        }
    }

    /// Undoes [`Self::point`], and removes the elements and inline bytes before those of the first
    /// request that has some.
    fn unpoint(&mut self) {
        // The requests have them in their order.
        let (mut first_sge, mut first_byte) = (None, None);
        for wr in &mut self.wrs {
            if wr.num_sge > 1 {
                let first = *first_sge.get_or_insert(wr.sge.offset);
                wr.sge.offset = wr.sge.offset.wrapping_sub(first) / u64::from(abi::Sge::SIZE);
            } else if wr.num_sge == 1 && wr.sge.buffer == 0 {
                let first = *first_byte.get_or_insert(wr.sge.offset);
                wr.sge.offset = wr.sge.offset.wrapping_sub(first);
            }
        }
        remove_before(first_sge, &mut self.sges);
        remove_before(first_byte, &mut self.bytes);
    }

    /// Removes the first `posted` requests, with their elements and inline bytes.
    fn remove(&mut self, posted: u32) {
        if posted as usize >= self.wrs.len() {
            self.clear();
            return;
        }
        self.wrs.drain(..posted as usize);
        self.unpoint();
    }

    /// Issues SUBMIT, and removes what was posted. Fails if the call was refused, not a request.
    fn submit(
        &mut self,
        device: &DeviceInner,
        wait: Option<(u32, u32, &Deadline)>,
    ) -> Result<Submitted, Errno> {
        self.point();
        let mut arg: abi::Submit = Command::new();
        if let Some((cq, min, until)) = wait {
            arg.cq = cq;
            arg.min_complete = min;
            arg.timeout_ns = until.left_ns();
        }
        let result = device.file().submit(&self.wrs, &mut arg);
        if let Some((_, _, until)) = wait {
            until.set_left_ns(arg.timeout_ns);
        }
        self.remove(arg.posted);
        let stopped = match (result, arg.stop_error) {
            (Err(errno), 0) => return Err(errno),
            (_, 0) => None,
            (_, error) => Some(Errno::from_raw(error.wrapping_neg())),
        };
        Ok(Submitted {
            posted: arg.posted,
            stopped,
            completed: arg.completed,
        })
    }

    #[cfg(feature = "io-uring")]
    pub(crate) fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Returns the command of a batch with these flags. The requests stay where they are.
    #[cfg(feature = "io-uring")]
    pub(crate) fn command(&mut self, flags: u32) -> abi::UringBatch {
        self.point();
        abi::UringBatch {
            wrs: sys::address_of(&self.wrs),
            // At most what goes into one call; and the sizes are small.
            nr_wrs: self.wrs.len() as u16,
            wr_size: abi::Wr::SIZE as u16,
            flags,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.bytes.clear();
        #[cfg(feature = "io-uring")]
        self.buffers.clear();
        #[cfg(feature = "io-uring")]
        self.addresses.clear();
    }
}

/// Removes what is before the address `first`, or everything without one.
fn remove_before<T>(first: Option<u64>, all: &mut Vec<T>) {
    let bytes = first.map(|first| first.wrapping_sub(sys::address_of(all)));
    let count = bytes.and_then(|bytes| usize::try_from(bytes / size_of::<T>() as u64).ok());
    all.drain(..count.unwrap_or(all.len()).min(all.len()));
}

/// Returns the error of a batch whose request number `index` was refused. Those before it were posted.
pub(crate) fn refused_error(index: u32, errno: Errno) -> Error {
    Error::Batch {
        index,
        posted: index,
        cause: Box::new(submit_error(errno)),
    }
}

#[cold]
fn too_many_requests(max: u32) -> Error {
    Error::TooMany {
        what: "requests",
        count: u64::from(max).saturating_add(1),
        max: max.into(),
    }
}

/// A batch of one queue pair or of many, for requests that borrow for `'a`.
#[derive(Debug)]
struct Core<'a> {
    device: &'a Arc<DeviceInner>,
    home: &'a Cache,
    /// There until it is dropped.
    storage: Option<Box<Storage>>,
    /// The requests' borrows, which last as long as the batch.
    requests: PhantomData<Request<'a>>,
}

impl<'a> Core<'a> {
    fn new(device: &'a Arc<DeviceInner>, home: &'a Cache) -> Self {
        Self {
            device,
            home,
            storage: Some(home.take()),
            requests: PhantomData,
        }
    }

    #[inline]
    fn storage(&mut self) -> &mut Storage {
        self.storage.get_or_insert_default()
    }

    // Takes the request apart at once, so that its parts need not be in memory. See `Head::encode`.
    #[inline(always)]
    fn push(&mut self, target: &Target<'_>, request: Request<'a>) -> Result<()> {
        let Request { head, local, to } = request;
        if !Arc::ptr_eq(target.device, self.device) {
            return Err(elsewhere());
        }
        let max = self.device.limits().max_batch;
        let storage = self.storage();
        if storage.wrs.len() >= max as usize {
            return Err(too_many_requests(max));
        }
        match (local, to) {
            (Local::One(slice), None) => {
                let wr = head.encode(Data::of_one(&slice, target), target)?;
                storage.wrs.push(wr);
                Ok(())
            }
            (local, to) => storage.push_other(target, Request { head, local, to }),
        }
    }

    fn len(&self) -> usize {
        self.storage.as_ref().map_or(0, |storage| storage.wrs.len())
    }

    /// Posts everything, and removes it; with `wait`, sleeps until so many completions are there.
    fn submit(&mut self, wait: Option<(&Cq, u32, Duration)>) -> Result<usize> {
        // The handle of another file names another queue there.
        if wait.is_some_and(|(cq, ..)| !Arc::ptr_eq(cq.device_inner(), self.device)) {
            return Err(elsewhere());
        }
        let wait = wait.map(|(cq, min, timeout)| (cq, min, Deadline::after(timeout)));
        let args = wait
            .as_ref()
            .map(|(cq, min, until)| (cq.handle(), *min, until));
        let storage = self.storage.get_or_insert_default();
        let did = storage.submit(self.device, args).map_err(submit_error)?;
        if let Some(errno) = did.stopped {
            return Err(refused_error(did.posted, errno));
        }
        if let Some((cq, min, deadline)) = &wait {
            if did.completed < *min {
                cq.wait_until(*min, deadline)?;
            }
        }
        Ok(did.posted as usize)
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        if self.device.file().is_inherited() {
            return;
        }
        if let Some(mut storage) = self.storage.take() {
            storage.clear();
            self.home.put(storage);
        }
    }
}

/// Requests for one queue pair, to be posted by one call. Made by [`Qp::batch`].
///
/// Nothing is posted before [`Self::submit`]; dropping the batch forgets it.
#[derive(Debug)]
#[must_use = "nothing is posted before `submit`"]
pub struct QpBatch<'a, T: Transport> {
    qp: &'a Qp<T>,
    core: Core<'a>,
}

impl<'a, T: Transport> QpBatch<'a, T> {
    /// Adds a request. They are posted in the order in which they were added.
    ///
    /// # Errors
    ///
    /// Those of a request that can be told before it is posted: [`Error::Range`],
    /// [`Error::Access`], [`Error::Misaligned`], [`Error::TooMany`] and the like. The batch is then
    /// as it was.
    #[inline]
    pub fn push(&mut self, request: impl Post<'a, T>) -> Result<()> {
        self.core.push(&self.qp.target(), request.into())
    }

    /// Returns the number of requests in it.
    pub fn len(&self) -> usize {
        self.core.len()
    }

    /// Returns true if it has no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts all of it, and returns how many there were. The batch is empty then.
    ///
    /// # Errors
    ///
    /// [`Error::Batch`] with what a request was refused for. Those before it were posted, and are in
    /// the batch no more; that one and those after it stay, and the next call begins with them.
    ///
    /// ```
    /// # use rust_ulp::error::Result;
    /// # use rust_ulp::qp::Rc;
    /// # use rust_ulp::*;
    /// # use std::time::Duration;
    /// /// Posts more than the queues may have room for.
    /// fn post_all(mut batch: QpBatch<'_, Rc>, cq: &Cq) -> Result<()> {
    ///     loop {
    ///         match batch.submit() {
    ///             Err(error) if error.is_backpressure() => {
    ///                 let _ = cq.wait(Duration::from_secs(1))?.ok()?;
    ///             }
    ///             result => return result.map(drop),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn submit(&mut self) -> Result<usize> {
        self.core.submit(None)
    }

    /// Posts all of it, then sleeps until `min` completions can be taken from the queue pair's send
    /// queue, all by one call. Returns how many were posted.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`]. If a queue was full after the first request, it has slept first, but for
    /// no more completions than the posted requests make there: for none if all are unsignaled.
    /// [`Error::Timeout`] if there are fewer completions within `timeout`: then everything was
    /// posted.
    pub fn submit_and_wait(&mut self, min: u32, timeout: Duration) -> Result<usize> {
        self.core.submit(Some((self.qp.send_cq(), min, timeout)))
    }
}

/// Requests for any queue pairs of a device, to be posted by one call. Made by [`Device::batch`].
///
/// Nothing is posted before [`Self::submit`]; dropping the batch forgets it. The batch does not keep
/// the queue pairs: after one of them was dropped, [`Self::submit`] fails with `ENOENT`.
#[derive(Debug)]
#[must_use = "nothing is posted before `submit`"]
pub struct DeviceBatch<'a> {
    core: Core<'a>,
    borrowed: Borrowed<'a>,
}

impl<'a> DeviceBatch<'a> {
    /// Adds a request for a queue pair: `batch.push(&qp, Write::new(src, dst))`. Those for one
    /// queue pair are posted in the order in which they were added.
    ///
    /// # Errors
    ///
    /// As [`QpBatch::push`]; [`Error::Sys`] with `ENOENT` for a queue pair of another `Device`.
    #[inline]
    pub fn push<Q, R: RequestFor<'a, Q>>(&mut self, qp: Q, request: R) -> Result<()> {
        let target = R::target(&qp);
        let request = request.into();
        let Request { local, to, .. } = request;
        self.core.push(&target, request)?;
        self.borrowed.add(local, to);
        Ok(())
    }

    /// Has `take` take the requests with all that they refer to, for a ring. If it fails, they stay.
    #[cfg(feature = "io-uring")]
    pub(crate) fn give(
        &mut self,
        take: impl FnOnce(&Arc<DeviceInner>, &mut Storage) -> Result<()>,
    ) -> Result<()> {
        let storage = self.core.storage.get_or_insert_default();
        let Borrowed {
            buffers, addresses, ..
        } = &self.borrowed;
        storage.buffers.extend(buffers.iter().copied().cloned());
        let addresses = addresses.iter().copied().cloned();
        storage.addresses.extend(addresses);
        let result = take(self.core.device, storage);
        match &result {
            Ok(()) => {
                storage.clear();
                self.borrowed.clear();
            }
            Err(_) => {
                storage.buffers.clear();
                storage.addresses.clear();
            }
        }
        result
    }

    /// Returns the number of requests in it.
    pub fn len(&self) -> usize {
        self.core.len()
    }

    /// Returns true if it has no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts all of it as [`QpBatch::submit`], and returns how many there were.
    pub fn submit(&mut self) -> Result<usize> {
        self.submitting(None)
    }

    /// Posts all of it, then sleeps until `min` completions can be taken from `cq`, all by one
    /// call. Returns how many were posted.
    ///
    /// # Errors
    ///
    /// As [`QpBatch::submit_and_wait`]; [`Error::Sys`] with `ENOENT` for a queue of another `Device`:
    /// then nothing was posted.
    pub fn submit_and_wait(&mut self, cq: &Cq, min: u32, timeout: Duration) -> Result<usize> {
        self.submitting(Some((cq, min, timeout)))
    }

    fn submitting(&mut self, wait: Option<(&Cq, u32, Duration)>) -> Result<usize> {
        let before = self.len();
        let result = self.core.submit(wait);
        self.borrowed.remove(before - self.len());
        result
    }
}

impl Drop for DeviceBatch<'_> {
    fn drop(&mut self) {
        let borrowed = std::mem::take(&mut self.borrowed);
        self.core.storage().borrowed = borrowed.into_memory();
    }
}

impl Device {
    /// Returns an empty batch of requests for any of this device's queue pairs and shared receive
    /// queues, to be posted by one call.
    pub fn batch(&self) -> DeviceBatch<'_> {
        let mut core = Core::new(self.inner(), &self.inner().storage);
        let borrowed = std::mem::take(&mut core.storage().borrowed);
        DeviceBatch { core, borrowed }
    }
}

impl<T: Transport> Qp<T> {
    /// Returns an empty batch of requests, to be posted by one call.
    pub fn batch(&self) -> QpBatch<'_, T> {
        QpBatch {
            qp: self,
            core: Core::new(self.device_inner(), self.storage()),
        }
    }
}
