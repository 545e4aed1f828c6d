// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completion queues: options, delivery, and an eventfd to wait for them.

use crate::abi;
use crate::completion::Completion;
use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::error::{Error, Result};
use crate::object::Object;
use crate::params::at_most;
use crate::ring::{Consumer, Corrupt};
use crate::sync::lock;
use crate::sys::{Command, RingMap};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// The context that moves completions from the device into the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Delivery {
    /// The choice of the module's parameter.
    #[default]
    Default = abi::DELIVER_DEFAULT,
    /// A thread that waits for the queue, and a kernel worker when none does.
    Workqueue = abi::DELIVER_WORKQUEUE,
    /// The softirq of the processor that saw the completion: least delay.
    Softirq = abi::DELIVER_SOFTIRQ,
}

/// Options of a [`Cq`]; from [`Device::cq_builder`].
#[doc(alias = "rust_ulp_cq_create")]
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct CqBuilder {
    device: Arc<DeviceInner>,
    entries: u32,
    delivery: Delivery,
    comp_vector: u32,
    busy_poll: Duration,
}

impl CqBuilder {
    /// Sets the context that moves completions into the ring.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets the completion vector, below
    /// [`DeviceInfo::num_comp_vectors`](crate::device::DeviceInfo::num_comp_vectors); 0 unless
    /// said.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }

    /// Sets how long a thread that waits polls the device's queue before each sleep:
    /// at most 10 ms, in steps of a microsecond; zero unless said.
    ///
    /// That saves the time of a task switch. While the thread polls, other tasks run that wait for
    /// the processor. It needs [`Delivery::Workqueue`].
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Makes the completion queue.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] for a longer [`Self::busy_poll`]; [`Error::Sys`] with `EINVAL` for one with
    /// another delivery, `EPERM` for [`Delivery::Softirq`] or a [`Self::comp_vector`] other than 0
    /// without `CAP_SYS_NICE`, unless the module's parameters allow them. Otherwise as
    /// [`Device::create_cq`].
    pub fn build(self) -> Result<Cq> {
        let device = &self.device;
        let busy_poll_us = u32::try_from(self.busy_poll.as_micros()).unwrap_or(u32::MAX);
        let mut arg = abi::CqCreate {
            entries: self.entries,
            delivery: self.delivery as u32,
            comp_vector: self.comp_vector,
            busy_poll_us: at_most(
                "the time of busy polling, in microseconds",
                busy_poll_us,
                MAX_BUSY_POLL_US,
            )?,
            ..Command::new()
        };
        device.call(&mut arg)?;
        let object = Object::new(device, arg.handle);
        let consumer = Consumer::new(arg.entries).ok_or(Error::CqCorrupt)?;
        let ring = RingMap::new(device.file(), arg.mmap_offset, arg.mmap_size, arg.entries)
            .map_err(|errno| Error::sys("mmap of a completion ring", errno))?;
        Ok(Cq {
            inner: Arc::new(Inner {
                consumer: Mutex::new(consumer),
                ring,
                object,
                entries: arg.entries,
                delivery: match arg.delivery {
                    abi::DELIVER_WORKQUEUE => Delivery::Workqueue,
                    abi::DELIVER_SOFTIRQ => Delivery::Softirq,
                    _ => Delivery::Default,
                },
            }),
        })
    }
}

// Dropped in this order: the mapping, the object with its device.
#[derive(Debug)]
struct Inner {
    consumer: Mutex<Consumer>,
    ring: RingMap,
    object: Object,
    entries: u32,
    delivery: Delivery,
}

/// The name of a wait in errors.
const WAITING: &str = "SUBMIT (waiting)";

/// The longest time of busy polling: @busy_poll_us of the header.
const MAX_BUSY_POLL_US: u32 = 10_000;

/// A queue in which requests report their end, mapped into this process.
///
/// Reaping makes no system call. Cheap to clone; destroyed when the last clone and the last queue
/// pair on it is gone. Clones share one ring behind a lock that costs two atomic operations while
/// nobody else holds it: several threads may reap one queue, and each completion goes to one of
/// them.
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Arc<Inner>,
}

/// Clones are equal, and no other queues.
impl PartialEq for Cq {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Cq {}

impl Device {
    /// Makes a completion queue with room for at least `entries` completions.
    ///
    /// There has to be room for every request in flight on it; posting says
    /// [`Error::QueueFull`] where there is not.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] with `ERANGE` for more than
    /// [`Limits::max_cq_entries`](crate::device::Limits::max_cq_entries) or none, `EMFILE`,
    /// `ENOMEM`; [`Error::DeviceGone`].
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        self.cq_builder(entries).build()
    }

    /// Returns options for a completion queue with room for at least `entries` completions.
    pub fn cq_builder(&self, entries: u32) -> CqBuilder {
        CqBuilder {
            device: self.inner().clone(),
            entries,
            delivery: Delivery::default(),
            comp_vector: 0,
            busy_poll: Duration::ZERO,
        }
    }
}

impl Cq {
    /// Returns the number of completions that it has room for: a power of two, at least what was
    /// asked for.
    pub fn entries(&self) -> u32 {
        self.inner.entries
    }

    /// Returns the context that moves completions into it.
    pub fn delivery(&self) -> Delivery {
        self.inner.delivery
    }

    /// Takes the oldest completion, if there is one. Makes no system call.
    ///
    /// # Errors
    ///
    /// Once nothing is left to take: [`Error::CqOverflow`] if completions were lost,
    /// [`Error::CqFailed`] if the queue failed, [`Error::DeviceGone`] if nothing more will come.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mut one = None;
        self.take(1, |completion| one = Some(completion))?;
        Ok(one)
    }

    /// Returns an iterator that takes completions, the oldest first, until none is left. Makes no
    /// system call.
    ///
    /// Each item is what [`Self::poll`] returns. The iterator ends after an error. What it has not
    /// returned when it is dropped stays in the queue. While requests complete faster than the
    /// caller takes them, it does not end: use [`Iterator::take`].
    ///
    /// ```
    /// # use rust_ulp::error::Result;
    /// # use rust_ulp::Cq;
    /// fn reap(cq: &Cq) -> Result<u64> {
    ///     let mut bytes = 0;
    ///     for done in cq.completions() {
    ///         bytes += u64::from(done?.ok()?.byte_len);
    ///     }
    ///     Ok(bytes)
    /// }
    /// ```
    pub fn completions(&self) -> Completions<'_> {
        Completions { cq: Some(self) }
    }

    /// Takes as many completions as there are and fit into `out`, oldest first, and returns how
    /// many. Makes no system call, and fails as [`Self::poll`].
    pub fn poll_into(&self, out: &mut [Completion]) -> Result<usize> {
        let mut places = out.iter_mut();
        self.take(places.len(), |completion| {
            if let Some(place) = places.next() {
                *place = completion;
            }
        })
    }

    /// Takes up to `max` completions, the oldest first, and returns how many there were.
    fn take(&self, max: usize, mut each: impl FnMut(Completion)) -> Result<usize> {
        let ring = &self.inner.ring;
        let mut n = 0;
        {
            let mut consumer = lock(&self.inner.consumer);
            if (consumer.ready() as usize) < max {
                consumer
                    .refresh(&ring.tail())
                    .map_err(|Corrupt| Error::CqCorrupt)?;
            }
            while n < max {
                let Some(slot) = consumer.slot() else { break };
                let Some(cqe) = ring.entry(slot) else {
                    return Err(Error::CqCorrupt);
                };
                each(Completion::new(&cqe, &self.inner.object.device));
                consumer.advance();
                n += 1;
            }
            if n != 0 {
                consumer.release(&ring.head());
            }
        }
        if n == 0 && max != 0 {
            self.health()?;
        }
        Ok(n)
    }

    /// Returns the error that the flags of an empty ring tell.
    pub(crate) fn health(&self) -> Result<()> {
        let ring = &self.inner.ring;
        let flags = ring.flags();
        if flags == 0 {
            return Ok(());
        }
        // What came before the flag was set is to be taken first.
        let ready = lock(&self.inner.consumer).refresh(&ring.tail());
        if ready.map_err(|Corrupt| Error::CqCorrupt)? != 0 {
            return Ok(());
        }
        if flags & abi::CQ_OVERFLOW != 0 {
            return Err(Error::CqOverflow {
                dropped: ring.dropped(),
            });
        }
        if flags & abi::CQ_ERROR != 0 {
            return Err(Error::CqFailed);
        }
        if flags & abi::CQ_DEAD != 0 {
            return Err(Error::DeviceGone);
        }
        Ok(())
    }

    /// Takes the oldest completion, sleeping until there is one.
    ///
    /// A signal whose handler returns does not end the wait. To be woken by other things as well, wait
    /// for the file of [`Self::eventfd`].
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; [`Error::DeviceGone`] as soon as the
    /// device is removed; as [`Self::poll`].
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            // Another thread may take what this one was woken for: then it waits again.
            self.sleep(1, &deadline)?;
        }
    }

    /// Sleeps until `n` completions can be taken, and returns how many can.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if `n` is more than [`Self::entries`]; [`Error::Timeout`] if there are
    /// fewer within `timeout`, which can still be taken; as [`Self::poll`].
    pub fn wait_for(&self, n: u32, timeout: Duration) -> Result<u32> {
        self.wait_until(n, &Deadline::after(timeout))
    }

    pub(crate) fn wait_until(&self, n: u32, deadline: &Deadline) -> Result<u32> {
        at_most(
            "the number of completions to wait for",
            n,
            self.inner.entries,
        )?;
        loop {
            let ready = lock(&self.inner.consumer).refresh(&self.inner.ring.tail());
            let ready = ready.map_err(|Corrupt| Error::CqCorrupt)?;
            if ready >= n {
                return Ok(ready);
            }
            if ready == 0 {
                self.health()?;
            }
            self.sleep(n, deadline)?;
        }
    }

    /// Returns a file that becomes readable when a completion arrives, for `poll`, `epoll` and the
    /// like. A queue has one at a time.
    ///
    /// What arrived before is not counted: look at the queue first, and only then at the file.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the queue has one already; [`Error::Sys`] with `EMFILE` without room for a
    /// descriptor; [`Error::DeviceGone`].
    #[doc(alias = "rust_ulp_cq_eventfd")]
    pub fn eventfd(&self) -> Result<CqEventFd> {
        let device = &self.inner.object.device;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let fd = EventFd::from_value_and_flags(0, flags);
        let fd = fd.map_err(|errno| Error::sys("eventfd", errno))?;
        let mut arg = abi::CqEventfd {
            cq: self.handle(),
            fd: fd.as_fd().as_raw_fd(),
            ..Command::new()
        };
        device.call(&mut arg)?;
        Ok(CqEventFd {
            fd,
            cq: self.clone(),
        })
    }

    /// Sleeps until the kernel sees `n` completions that were not taken.
    fn sleep(&self, n: u32, deadline: &Deadline) -> Result<()> {
        let (completed, wait_error) = self.ask_for(n, deadline)?;
        match Errno::from_raw(wait_error.saturating_neg()) {
            Errno::EIO => Err(Error::CqFailed),
            // What arrived at the last moment counts.
            Errno::ETIME if completed < n => Err(deadline.timeout("waiting for completions")),
            errno @ (Errno::ENODEV | Errno::ENOENT) => Err(Error::sys(WAITING, errno)),
            _ => Ok(()),
        }
    }

    /// Sleeps in the kernel. Returns the completions that were not taken, and why it ended.
    fn ask_for(&self, n: u32, deadline: &Deadline) -> Result<(u32, i32)> {
        let device = &self.inner.object.device;
        let mut arg = abi::Submit {
            cq: self.handle(),
            min_complete: n,
            timeout_ns: deadline.left_ns(),
            ..Command::new()
        };
        let result = device.file().submit(&[], &mut arg);
        result.map_err(|errno| Error::sys(WAITING, errno))?;
        deadline.set_left_ns(arg.timeout_ns);
        Ok((arg.completed, arg.wait_error))
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.object.device
    }
}

/// An iterator that takes completions out of a queue; from [`Cq::completions`].
#[derive(Clone, Debug)]
#[must_use = "nothing is taken before it is iterated"]
pub struct Completions<'a> {
    /// [`None`] after an error.
    cq: Option<&'a Cq>,
}

impl Iterator for Completions<'_> {
    type Item = Result<Completion>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.cq?.poll().transpose();
        if matches!(next, Some(Err(_))) {
            self.cq = None;
        }
        next
    }
}

/// A file that becomes readable when a completion arrives in a queue, and when the device is
/// removed; from [`Cq::eventfd`].
///
/// It stays readable until [`Self::take`]. The order that loses nothing: wait for the file, take,
/// then poll the queue until it is empty. It keeps its queue.
#[derive(Debug)]
pub struct CqEventFd {
    fd: EventFd,
    cq: Cq,
}

impl CqEventFd {
    /// Returns how many completions have arrived since the last call. Does not sleep.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn take(&self) -> Result<u64> {
        loop {
            match self.fd.read() {
                Ok(n) => return Ok(n),
                Err(Errno::EAGAIN) => return Ok(0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::sys("read of an eventfd", errno)),
            }
        }
    }

    /// Takes the oldest completion, in a task of any runtime; registers the task to be woken if there
    /// is none. `poll_readable` is how the runtime waits for this file: it is ready when the file may
    /// have become readable since it was ready before.
    ///
    /// ```
    /// # use async_io::Async;
    /// # use rust_ulp::cq::CqEventFd;
    /// # use rust_ulp::error::Result;
    /// # use rust_ulp::Completion;
    /// # use std::future::poll_fn;
    /// async fn next(file: &Async<CqEventFd>) -> Result<Completion> {
    ///     poll_fn(|cx| file.get_ref().poll_wait(cx, |cx| file.poll_readable(cx))).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`]; [`Error::Sys`] with what `poll_readable` fails with.
    pub fn poll_wait(
        &self,
        cx: &mut Context<'_>,
        mut poll_readable: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<()>>,
    ) -> Poll<Result<Completion>> {
        loop {
            if let Some(completion) = self.cq.poll()? {
                return Poll::Ready(Ok(completion));
            }
            ready!(poll_readable(cx)).map_err(|error| Error::io("waiting for a file", &error))?;
            // What arrives from here on makes it readable again, and the queue is looked at once more.
            self.take()?;
        }
    }

    /// Returns its queue.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }
}

impl AsFd for CqEventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for CqEventFd {
    fn drop(&mut self) {
        if self.cq.inner.object.device.file().is_inherited() {
            return;
        }
        let mut arg = abi::CqEventfd {
            cq: self.cq.handle(),
            fd: -1,
            ..Command::new()
        };
        // An error leaves nothing to do: the device is gone.
        let _ = self.cq.inner.object.device.call(&mut arg);
    }
}
