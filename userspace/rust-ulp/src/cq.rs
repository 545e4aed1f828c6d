// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completion queues.

use crate::abi;
use crate::device::{DeviceInner, Object};
use crate::error::{CompletionError, Error, Result};
use crate::qp::{Gid, Qp, Transport};
use crate::ring::{Consumer, Corrupt};
use crate::sync::lock;
use crate::sys::{Command, RingMap};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::OnceCell;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Who moves completions from the device into the ring.
///
/// Header: `RUST_ULP_DELIVER_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// As the module's parameter says.
    #[default]
    Default,
    /// A kernel worker.
    Workqueue,
    /// The softirq of the processor that saw the completion: least delay.
    Softirq,
    /// Only [`Cq::wait`], [`Cq::wait_for`] and batches that wait, on this queue. [`Cq::poll`] alone, or
    /// polling the file, then sees nothing.
    Caller,
}

/// How a completion queue is made, for [`Device::create_cq_with`](crate::Device::create_cq_with).
///
/// Header struct: `rust_ulp_cq_create`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqOptions {
    delivery: Delivery,
    comp_vector: u32,
}

impl CqOptions {
    /// Who moves completions into the ring.
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// The completion vector, below
    /// [`DeviceInfo::num_comp_vectors`](crate::DeviceInfo::num_comp_vectors); 0 unless said.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.comp_vector = vector;
        self
    }
}

macro_rules! statuses {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $name:literal, $explanation:literal;)*) => {
        /// How a request ended.
        ///
        /// Header: `rust_ulp_cqe.status`: `enum ib_wc_status`, or `RUST_ULP_WC_STATUS_*`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$meta])* $variant,)*
            /// A number that this crate does not know.
            Other(u16),
        }

        impl Status {
            /// The status with this number.
            pub fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    code => Self::Other(code),
                }
            }

            /// Its number.
            pub fn code(self) -> u16 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// Its name, short.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(_) => "unknown status",
                }
            }

            /// What happened, and what to do.
            pub fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => $explanation,)*
                    Self::Other(_) => "the driver gave a status that has no name; see its vendor code",
                }
            }
        }
    };
}

statuses! {
    /// It worked.
    Success = 0, "success", "nothing to do";
    /// The data did not fit.
    LocalLength = 1, "local length error",
        "what arrived is longer than the receive posted for it, or a message is longer than the port \
         allows; post larger receives, or split the message";
    /// The queue pair cannot do that.
    LocalQpOperation = 2, "local queue pair operation error",
        "the queue pair could not carry the request out: check its type, state and limits";
    /// Obsolete.
    LocalEecOperation = 3, "local EE context operation error", "obsolete: a driver's error";
    /// Local memory was not the queue pair's to use.
    LocalProtection = 4, "local protection error",
        "the request's local memory is not registered, or in another protection domain: was its buffer \
         destroyed while the request was in flight?";
    /// An earlier request failed.
    Flushed = 5, "flushed",
        "the queue pair went to the error state before this request was done: an earlier completion \
         on it has the cause, or the peer or its device went away";
    /// A window was not bound.
    WindowBind = 6, "memory window bind error", "the window or its region does not allow it";
    /// The peer answered nonsense.
    BadResponse = 7, "bad response",
        "the peer's device answered with a packet that fits no request: do both ends agree on PSNs, \
         MTU and type of queue pair?";
    /// Local memory lacked a right.
    LocalAccess = 8, "local access error",
        "the receive buffer does not allow what the peer did to it";
    /// The peer could not take the request.
    RemoteInvalidRequest = 9, "remote invalid request",
        "the peer's queue pair does not take such a request: its receive is too small for the message, \
         or it does not allow the operation (access flags, responder resources)";
    /// The peer's memory was not ours to use.
    RemoteAccess = 10, "remote access error",
        "the peer's memory refused the access: a wrong or revoked rkey, an address or length outside \
         of the grant, or a right that the grant or the peer's queue pair lacks; not a network problem";
    /// The peer failed.
    RemoteOperation = 11, "remote operation error",
        "the peer's device could not carry the request out: see its completions and its log";
    /// No answer.
    RetryExceeded = 12, "retry exceeded",
        "no acknowledgement after all retries: is the peer's queue pair gone or not yet ready to \
         receive, the GID index wrong on either end (Device::chosen() gives the reason for it), no route \
         or a firewall for UDP port 4791, a path that drops packets (no flow control, MTU), or do the \
         two ends disagree on PSNs? A peer that is only slow wants a longer QpBuilder::timeout()";
    /// No receive.
    RnrRetryExceeded = 13, "receiver not ready",
        "the peer had no receive posted: it has to post them before it is sent to, and more of them; or \
         raise QpBuilder::rnr_retry() here and min_rnr_timer() there";
    /// Obsolete.
    LocalRddViolation = 14, "local RDD violation", "obsolete: a driver's error";
    /// Obsolete.
    RemoteInvalidRd = 15, "remote invalid RD request", "obsolete: a driver's error";
    /// The peer gave it up.
    RemoteAbort = 16, "remote abort", "the peer gave the operation up";
    /// Obsolete.
    InvalidEecn = 17, "invalid EE context number", "obsolete: a driver's error";
    /// Obsolete.
    InvalidEecState = 18, "invalid EE context state", "obsolete: a driver's error";
    /// The device failed.
    Fatal = 19, "fatal error", "the device failed: see the kernel's log";
    /// No answer in time.
    ResponseTimeout = 20, "response timeout", "the peer did not answer in time";
    /// Something else.
    General = 21, "general error", "the driver gave no reason: see its vendor code";
    /// Its deadline has passed.
    TimedOut = 256, "timed out",
        "the deadline of the request has passed, and nobody waits for it any more; but the device is not done \
         with it: its data may still arrive, here or at the peer, so leave its memory alone while the queue \
         pair lives. Wait longer, or make a new queue pair";
    /// It was given up.
    Canceled = 257, "canceled",
        "the request was canceled, and nobody waits for it any more; but the device is not done with it: its \
         data may still arrive, here or at the peer, so leave its memory alone while the queue pair lives";
}

impl Status {
    /// Whether the device may still be at work on a request that ended so: see [`Self::TimedOut`] and
    /// [`Self::Canceled`].
    pub fn is_unfinished(self) -> bool {
        matches!(self, Self::TimedOut | Self::Canceled)
    }
}

/// What a completed request was. Valid for failed requests too.
///
/// Header: `RUST_ULP_WC_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Opcode {
    /// A send.
    Send,
    /// An RDMA Write, with or without immediate data.
    Write,
    /// An RDMA Read.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A local invalidation.
    LocalInvalidate,
    /// A receive, completed by a send.
    Recv,
    /// A receive, completed by an RDMA Write with immediate data.
    RecvWriteImm,
    /// A number that this crate does not know.
    Other(u8),
}

impl Opcode {
    fn from_code(code: u8) -> Self {
        match code {
            abi::WC_SEND => Self::Send,
            abi::WC_RDMA_WRITE => Self::Write,
            abi::WC_RDMA_READ => Self::Read,
            abi::WC_COMP_SWAP => Self::CompareSwap,
            abi::WC_FETCH_ADD => Self::FetchAdd,
            abi::WC_LOCAL_INV => Self::LocalInvalidate,
            abi::WC_RECV => Self::Recv,
            abi::WC_RECV_RDMA_WITH_IMM => Self::RecvWriteImm,
            code => Self::Other(code),
        }
    }
}

/// The end of one request, good or bad: [`Self::ok`] tells.
///
/// Header struct: `rust_ulp_cqe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the request may have failed: call `ok()`"]
#[non_exhaustive]
pub struct Completion {
    /// The request's number, as given to it with `wr_id`.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub opcode: Opcode,
    /// The driver's own code for a failure.
    pub vendor_err: u32,
    /// Bytes received, read, or fetched by an atomic, if it succeeded; else 0. For
    /// [`Opcode::RecvWriteImm`], bytes that the peer wrote.
    pub byte_len: u32,
    /// Immediate data, in host order, where the peer sent some.
    pub imm: Option<u32>,
    /// The key of this side's grant that the peer took away with its message.
    pub invalidated: Option<u32>,
    /// Number of the queue pair that it was posted to.
    pub qp_num: u32,
    qp: u32,
    peer: Option<(u32, Gid)>,
    pub(crate) flags: u8,
    pub(crate) sl: u8,
    pub(crate) slid: u16,
    pub(crate) pkey_index: u16,
    pub(crate) src_qp: u32,
}

impl Completion {
    /// An empty one, to fill arrays with for [`Cq::poll_into`].
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: Status::Success,
        opcode: Opcode::Send,
        vendor_err: 0,
        byte_len: 0,
        imm: None,
        invalidated: None,
        qp_num: 0,
        qp: 0,
        peer: None,
        flags: 0,
        sl: 0,
        slid: 0,
        pkey_index: 0,
        src_qp: 0,
    };

    pub(crate) fn new(cqe: &abi::Cqe, device: &DeviceInner) -> Self {
        let failed = cqe.status != 0;
        Self {
            wr_id: cqe.user_data,
            status: Status::from_code(cqe.status),
            opcode: Opcode::from_code(cqe.opcode),
            vendor_err: cqe.vendor_err,
            byte_len: cqe.byte_len,
            imm: (cqe.flags & abi::WC_WITH_IMM != 0).then_some(cqe.imm_data),
            invalidated: (cqe.flags & abi::WC_WITH_INVALIDATE != 0).then_some(cqe.imm_data),
            qp_num: cqe.qp_num,
            qp: cqe.qp,
            // Only failures are explained: the others do not pay for it.
            peer: if failed { device.peer_of(cqe.qp) } else { None },
            flags: cqe.flags,
            sl: cqe.sl,
            slid: cqe.slid,
            pkey_index: cqe.pkey_index,
            src_qp: cqe.src_qp,
        }
    }

    /// Itself if the request succeeded.
    ///
    /// # Errors
    ///
    /// [`Error::Completion`] with what is known about the failure.
    pub fn ok(self) -> Result<Self> {
        if self.status == Status::Success {
            return Ok(self);
        }
        Err(Error::Completion(CompletionError {
            wr_id: self.wr_id,
            opcode: self.opcode,
            status: self.status,
            vendor_err: self.vendor_err,
            qp_num: self.qp_num,
            peer: self.peer,
        }))
    }

    /// Whether the request was posted to this queue pair.
    pub fn is_of<T: Transport>(&self, qp: &Qp<T>) -> bool {
        self.qp == qp.handle()
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} request {} on queue pair {:#x}: {}",
            self.opcode,
            self.wr_id,
            self.qp_num,
            self.status.name()
        )?;
        if self.byte_len != 0 {
            write!(f, ", {} bytes", self.byte_len)?;
        }
        if let Some(imm) = self.imm {
            write!(f, ", immediate data {imm:#x}")?;
        }
        Ok(())
    }
}

// Dropped in this order: the mapping, the object with its device.
#[derive(Debug)]
struct Inner {
    consumer: Mutex<Consumer>,
    ring: RingMap,
    object: Object,
    device: Arc<DeviceInner>,
    entries: u32,
    delivery: Delivery,
    /// `STREAM_*`.
    stream: AtomicU32,
}

/// The process reads the ring.
const STREAM_NONE: u32 = 0;
/// The kernel reads it, for a ring of io_uring.
#[cfg(feature = "io-uring")]
const STREAM_BEGUN: u32 = 1;
/// The kernel has read it: so the process cannot.
#[cfg(feature = "io-uring")]
const STREAM_ENDED: u32 = 2;

/// A queue in which requests report their end, mapped into this process.
///
/// Reaping makes no system call. Cheap to clone; destroyed when the last clone and the last queue pair
/// on it is gone. Clones share one ring behind a lock that costs two atomic operations while nobody
/// else holds it: several threads may reap one queue, and each completion goes to one of them.
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Arc<Inner>,
}

/// When waiting ends. The time runs from the first look at it: telling what time it is can be a system call, and
/// most waits need none, or one.
#[derive(Clone)]
pub(crate) struct Deadline {
    /// None: never.
    at: OnceCell<Option<Instant>>,
    after: Duration,
}

impl Deadline {
    pub(crate) fn after(after: Duration) -> Self {
        Self {
            at: OnceCell::new(),
            after,
        }
    }

    /// What is left of it, zero when it has passed.
    pub(crate) fn left(&self) -> Duration {
        let Some(at) = self.at.get() else {
            let _ = self.at.set(Instant::now().checked_add(self.after));
            return self.after;
        };
        match at {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        }
    }

    /// What is left of it, as far as one call may wait.
    pub(crate) fn left_ns(&self) -> u64 {
        let left = u64::try_from(self.left().as_nanos()).unwrap_or(u64::MAX);
        left.min(abi::TIMEOUT_MAX_NS)
    }

    pub(crate) fn timeout(&self, what: &'static str) -> Error {
        Error::Timeout {
            what,
            after: self.after,
        }
    }
}

impl Cq {
    pub(crate) fn create(
        device: &Arc<DeviceInner>,
        entries: u32,
        options: CqOptions,
    ) -> Result<Self> {
        let mut arg = abi::CqCreate {
            entries,
            delivery: match options.delivery {
                Delivery::Default => abi::DELIVER_DEFAULT,
                Delivery::Workqueue => abi::DELIVER_WORKQUEUE,
                Delivery::Softirq => abi::DELIVER_SOFTIRQ,
                Delivery::Caller => abi::DELIVER_CALLER,
            },
            comp_vector: options.comp_vector,
            ..Command::new()
        };
        device.call(&mut arg)?;
        let object = Object::new(device, arg.handle);
        let consumer = Consumer::new(arg.entries).ok_or(Error::CqCorrupt)?;
        let ring = RingMap::new(device.file(), arg.mmap_offset, arg.mmap_size, arg.entries)
            .map_err(|errno| Error::sys("mmap of a completion ring", errno))?;
        Ok(Self {
            inner: Arc::new(Inner {
                consumer: Mutex::new(consumer),
                ring,
                object,
                device: device.clone(),
                entries: arg.entries,
                delivery: match arg.delivery {
                    abi::DELIVER_WORKQUEUE => Delivery::Workqueue,
                    abi::DELIVER_SOFTIRQ => Delivery::Softirq,
                    abi::DELIVER_CALLER => Delivery::Caller,
                    _ => Delivery::Default,
                },
                stream: AtomicU32::new(STREAM_NONE),
            }),
        })
    }

    /// How many completions it has room for: a power of two, at least what was asked for.
    pub fn entries(&self) -> u32 {
        self.inner.entries
    }

    /// Who moves completions into it.
    pub fn delivery(&self) -> Delivery {
        self.inner.delivery
    }

    /// Takes the oldest completion, if there is one. Makes no system call.
    ///
    /// # Errors
    ///
    /// Once nothing is left to take: [`Error::CqOverflow`] if completions were lost,
    /// [`Error::CqFailed`] if the queue failed, [`Error::DeviceGone`] if nothing more will come.
    /// [`Error::Streamed`] if a ring of io_uring is its reader.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mut one = [Completion::EMPTY];
        let n = self.poll_into(&mut one)?;
        let [completion] = one;
        Ok((n != 0).then_some(completion))
    }

    /// Takes as many completions as there are and fit into `out`, oldest first, and returns how many.
    /// Makes no system call.
    ///
    /// # Errors
    ///
    /// As [`Self::poll`].
    pub fn poll_into(&self, out: &mut [Completion]) -> Result<usize> {
        self.is_ours()?;
        let ring = &self.inner.ring;
        let mut n = 0;
        {
            let mut consumer = lock(&self.inner.consumer);
            if (consumer.ready() as usize) < out.len() {
                consumer
                    .refresh(&ring.tail())
                    .map_err(|Corrupt| Error::CqCorrupt)?;
            }
            for completion in out.iter_mut() {
                let Some(slot) = consumer.slot() else { break };
                let cqe = ring.entry(slot).ok_or(Error::CqCorrupt)?;
                *completion = Completion::new(&cqe, &self.inner.device);
                consumer.advance();
                n += 1;
            }
            if n != 0 {
                consumer.release(&ring.head());
            }
        }
        if n == 0 && !out.is_empty() {
            self.health()?;
        }
        Ok(n)
    }

    /// [`Error::Streamed`] if the kernel is its reader, or was.
    fn is_ours(&self) -> Result<()> {
        match self.inner.stream.load(Ordering::Relaxed) {
            STREAM_NONE => Ok(()),
            _ => Err(Error::Streamed),
        }
    }

    /// From now on the kernel reads it, for one ring of io_uring. [`Error::Streamed`] if it does so for another.
    #[cfg(feature = "io-uring")]
    pub(crate) fn begin_stream(&self) -> Result<()> {
        match self.inner.stream.swap(STREAM_BEGUN, Ordering::Relaxed) {
            STREAM_BEGUN => Err(Error::Streamed),
            _ => Ok(()),
        }
    }

    /// That is over: another ring may begin.
    #[cfg(feature = "io-uring")]
    pub(crate) fn end_stream(&self) {
        self.inner.stream.store(STREAM_ENDED, Ordering::Relaxed);
    }

    /// What the ring's flags say, when it is empty.
    fn health(&self) -> Result<()> {
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
    /// A signal whose handler returns does not end the wait; to be woken by other things, poll the
    /// device's file.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; [`Error::DeviceGone`] as soon as the device
    /// is removed; as [`Self::poll`].
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
    /// [`Error::Range`] if `n` is more than [`Self::entries`]; [`Error::Timeout`] if there are fewer
    /// within `timeout`, which can still be taken; as [`Self::poll`].
    pub fn wait_for(&self, n: u32, timeout: Duration) -> Result<u32> {
        self.wait_until(n, &Deadline::after(timeout))
    }

    pub(crate) fn wait_until(&self, n: u32, deadline: &Deadline) -> Result<u32> {
        self.is_ours()?;
        if n > self.inner.entries {
            return Err(Error::Range {
                what: "completions to wait for",
                offset: 0,
                len: n.into(),
                capacity: self.inner.entries.into(),
            });
        }
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

    /// A file that becomes readable when a completion arrives, for `poll`, `epoll` and the like. A queue has
    /// one at a time. With [`Delivery::Caller`] nothing arrives by itself.
    ///
    /// What arrived before is not counted: look at the queue first, and only then at the file.
    ///
    /// Header struct: `rust_ulp_cq_eventfd`.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the queue has one already; [`Error::Unsupported`] if the module has none;
    /// [`Error::Sys`] with `EMFILE` without room for a descriptor; [`Error::DeviceGone`].
    pub fn eventfd(&self) -> Result<CqEventFd> {
        let device = &self.inner.device;
        device.needs(abi::FEATURE_EVENTFD, "an eventfd of a completion queue")?;
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
        let mut arg = abi::Submit {
            cq: self.handle(),
            min_complete: n,
            timeout_ns: deadline.left_ns(),
            ..Command::new()
        };
        let device = &self.inner.device;
        match device.file().submit(&[], &mut arg) {
            Ok(()) => {}
            Err(errno) => return Err(Error::sys("SUBMIT (waiting)", errno)),
        }
        // Here before the time is over, with less than was waited for: nothing more will come.
        if arg.wait_error == -libc::EIO {
            return Err(Error::CqFailed);
        }
        // What arrived at the last moment counts.
        if arg.completed < n && deadline.left().is_zero() {
            return Err(deadline.timeout("waiting for completions"));
        }
        Ok(())
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.object.handle()
    }

    pub(crate) fn device_inner(&self) -> &Arc<DeviceInner> {
        &self.inner.device
    }
}

/// A file that becomes readable when a completion arrives in a queue, and when the device is removed; from
/// [`Cq::eventfd`].
///
/// It stays readable until [`Self::take`]. The order that loses nothing: wait for the file, take, then poll
/// the queue until it is empty. It keeps its queue.
#[derive(Debug)]
pub struct CqEventFd {
    fd: EventFd,
    cq: Cq,
}

impl CqEventFd {
    /// How many completions have arrived since the last time. Does not sleep.
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

    /// Its queue.
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
        let mut arg = abi::CqEventfd {
            cq: self.cq.handle(),
            fd: -1,
            ..Command::new()
        };
        // An error leaves nothing to do: the device is gone.
        let _ = self.cq.inner.device.call(&mut arg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_numbers() {
        for code in 0..64 {
            assert_eq!(Status::from_code(code).code(), code);
        }
        assert_eq!(Status::from_code(12), Status::RetryExceeded);
        assert_eq!(Status::from_code(13), Status::RnrRetryExceeded);
        assert_eq!(Status::from_code(10), Status::RemoteAccess);
    }
}
