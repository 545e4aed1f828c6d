// SPDX-License-Identifier: MIT OR Apache-2.0

//! Work requests, which [`Qp::post`](crate::Qp::post), batches and rings take.
//!
//! A constructor takes what a request needs, and setters the rest.
//!
//! [`Send`], [`Read`] and [`Write`] have the names of traits of the standard library. A program that
//! uses both imports this module, and writes `wr::Write`.

use crate::abi;
use crate::access::Access;
use crate::ah::Destination;
use crate::buffer::LocalSlice;
use crate::device::DeviceInner;
use crate::error::{Error, Result, INLINE_BYTES};
use crate::remote::RemoteSlice;
use crate::sealed;
use crate::sys::{self, Command};
use crate::transport::{Rc, Transport, Uc, Ud};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use crate::status::WrOpcode;
pub use crate::tag::Tag;

/// Bytes of a message, at most.
const MAX_MESSAGE: u32 = 1 << 31;

/// The place of a request's data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local<'a> {
    None,
    One(LocalSlice<'a>),
    Many(&'a [LocalSlice<'a>]),
    Bytes(&'a [u8]),
}

/// A request of any type, ready to be posted: what the builders become.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Request<'a> {
    pub(crate) head: Head,
    pub(crate) local: Local<'a>,
    pub(crate) to: Option<&'a Destination>,
}

/// The parts of a request besides its data and its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    user_data: u64,
    timeout_ns: u64,
    remote: Option<RemoteSlice>,
    /// Arguments of an atomic operation.
    args: abi::WrArgs,
    needed: Access,
    imm_data: u32,
    flags: u16,
    opcode: u8,
}

// Compilers move so many bytes without a call.
const _: () = assert!(size_of::<Request<'_>>() <= 128);

impl<'a> Request<'a> {
    #[inline]
    fn new(opcode: u8, local: Local<'a>) -> Self {
        let head = Head {
            user_data: 0,
            timeout_ns: 0,
            remote: None,
            args: abi::WrArgs::default(),
            needed: Access::empty(),
            imm_data: 0,
            flags: abi::SEND_SIGNALED,
            opcode,
        };
        Self {
            head,
            local,
            to: None,
        }
    }

    #[inline]
    fn remote(mut self, remote: RemoteSlice, needed: Access) -> Self {
        self.head.remote = Some(remote);
        self.head.needed = needed;
        self
    }

    /// Sets the number by which its completion is waited for, and makes it signaled.
    #[inline]
    pub(crate) fn tracked(mut self, wr_id: u64) -> Self {
        self.head.user_data = wr_id;
        if self.head.opcode != abi::WR_RECV {
            self.flag(abi::SEND_SIGNALED, true);
        }
        self
    }

    #[cfg(any(feature = "smol", feature = "tokio"))]
    pub(crate) fn is_receive(&self) -> bool {
        self.head.opcode == abi::WR_RECV
    }

    #[inline]
    fn timeout(&mut self, timeout: Duration) {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(abi::TIMEOUT_INFINITE);
        self.head.timeout_ns = ns.max(1);
        self.flag(abi::REQUEST_TIMEOUT, true);
    }

    #[inline]
    fn flag(&mut self, flag: u16, on: bool) {
        if on {
            self.head.flags |= flag;
        } else {
            self.head.flags &= !flag;
        }
    }

    /// Returns the request as the ABI has it, checked as far as this side can. With several
    /// elements, `wr.sge.offset` is left for the caller to fill in.
    #[inline]
    pub(crate) fn encode(&self, target: &Target<'_>) -> Result<abi::Wr> {
        let data = match &self.local {
            Local::One(slice) => Data::of_one(slice, target),
            other => Data::of_other(other, target)?,
        };
        let len = data.len;
        let mut wr = self.head.encode(data, target)?;
        if let Some(to) = self.to {
            wr.args = to_receiver(to, target, len)?;
        }
        Ok(wr)
    }
}

impl Head {
    /// Returns the request with that data and without a receiver, see [`Request::encode`].
    // The caller knows most of what is asked here, once it is inlined.
    #[inline(always)]
    pub(crate) fn encode(self, data: Data, target: &Target<'_>) -> Result<abi::Wr> {
        let flags = self.flags | data.inline;
        at_most(MAX_MESSAGE, "bytes", data.len)?;
        if flags & abi::SEND_INLINE != 0 {
            at_most(target.max_inline, INLINE_BYTES, data.len)?;
        }
        if self.opcode == abi::WR_RECV && !target.takes_receives {
            return Err(Error::SharedReceives);
        }
        if !data.is_here {
            return Err(elsewhere());
        }
        let (mut remote_addr, mut rkey) = (0, 0);
        if let Some(remote) = self.remote {
            let is_granted = match remote.access() {
                Some(granted) => granted.contains(self.needed),
                None => true,
            };
            let is_atomic = self.needed == Access::REMOTE_ATOMIC;
            if !is_granted || is_atomic || data.len > remote.len() {
                check_remote(remote, self.needed, data.len)?;
            }
            (remote_addr, rkey) = (remote.addr(), remote.rkey());
        }
        Ok(abi::Wr {
            user_data: self.user_data,
            qp: target.handle,
            opcode: self.opcode,
            num_sge: data.num_sge,
            flags,
            remote_addr,
            rkey,
            imm_data: self.imm_data,
            sge: data.sge,
            args: self.args,
            timeout_ns: self.timeout_ns,
        })
    }
}

/// Checks the memory of a peer for a request of `len` bytes that needs these rights.
#[inline(never)]
fn check_remote(remote: RemoteSlice, needed: Access, len: u64) -> Result<()> {
    if let Some(granted) = remote.access() {
        if !granted.contains(needed) {
            return Err(Error::Access { needed, granted });
        }
    }
    let atomic = needed == Access::REMOTE_ATOMIC;
    if atomic && len != 8 {
        return Err(Error::Value {
            what: "length of an atomic operation's result",
            value: len,
            min: 8,
            max: 8,
        });
    }
    if len > remote.len() {
        return Err(Error::Range {
            what: "request to the peer's memory",
            offset: 0,
            len,
            capacity: remote.len(),
        });
    }
    if atomic && remote.addr() % 8 != 0 {
        return Err(Error::Misaligned {
            offset: remote.addr(),
            align: 8,
        });
    }
    Ok(())
}

/// A request's data, as the ABI has it.
pub(crate) struct Data {
    /// Bytes.
    len: u64,
    /// True if all of it belongs to the device of the queue: the same number may name another
    /// object there.
    is_here: bool,
    /// The flag of inline bytes that are in no buffer.
    inline: u16,
    num_sge: u8,
    sge: abi::Sge,
}

impl Data {
    #[inline]
    pub(crate) fn of_one(slice: &LocalSlice<'_>, target: &Target<'_>) -> Self {
        Self {
            len: slice.len() as u64,
            is_here: Arc::ptr_eq(slice.device(), target.device),
            inline: 0,
            num_sge: 1,
            sge: slice.sge(),
        }
    }

    /// Fails with [`Error::TooMany`] for more elements than the device takes.
    #[inline(never)]
    fn of_other(local: &Local<'_>, target: &Target<'_>) -> Result<Self> {
        let none = Self {
            len: 0,
            is_here: true,
            inline: 0,
            num_sge: 0,
            sge: abi::Sge::default(),
        };
        Ok(match local {
            Local::None => none,
            Local::Bytes([]) => Self {
                inline: abi::SEND_INLINE,
                ..none
            },
            Local::One(slice) | Local::Many([slice]) => Self::of_one(slice, target),
            Local::Many(slices) => {
                let max_sge = target.device.limits().max_sge.min(u8::MAX.into());
                at_most(max_sge, "elements", slices.len() as u64)?;
                let lens = slices.iter().map(|slice| slice.len() as u64);
                let is_here = |slice: &LocalSlice<'_>| Arc::ptr_eq(slice.device(), target.device);
                Self {
                    len: lens.fold(0, u64::saturating_add),
                    is_here: slices.iter().all(is_here),
                    num_sge: slices.len() as u8,
                    ..none
                }
            }
            Local::Bytes(bytes) => Self {
                len: bytes.len() as u64,
                inline: abi::SEND_INLINE,
                num_sge: 1,
                sge: abi::Sge {
                    buffer: 0,
                    length: bytes.len() as u32,
                    offset: sys::address_of(bytes),
                },
                ..none
            },
        })
    }
}

/// Returns the arguments of a datagram of `len` bytes to `to`.
#[inline(never)]
fn to_receiver(to: &Destination, target: &Target<'_>, len: u64) -> Result<abi::WrArgs> {
    if !Arc::ptr_eq(to.ah().pd().device(), target.device) {
        return Err(elsewhere());
    }
    if let Some(mtu) = target.mtu.filter(|mtu| len > u64::from(*mtu)) {
        return Err(Error::DatagramTooLong { len, mtu });
    }
    Ok(to.to_abi()?.into())
}

/// Returns the error for an object of another device.
#[cold]
pub(crate) fn elsewhere() -> Error {
    Error::Sys {
        call: abi::Submit::NAME,
        errno: libc::ENOENT,
    }
}

/// Returns an error if `count` is more than `max`.
#[inline]
fn at_most(max: u32, what: &'static str, count: u64) -> Result<()> {
    if count > max.into() {
        return Err(too_many(what, count, max));
    }
    Ok(())
}

#[cold]
fn too_many(what: &'static str, count: u64, max: u32) -> Error {
    let max = max.into();
    Error::TooMany { what, count, max }
}

/// A request of a type that the caller does not know: each builder of this module.
pub trait AnyRequest<'a>: Into<Request<'a>> + sealed::Sealed {
    /// Sets the number that the completion carries, and has a request that succeeds make one.
    fn tracked(self, wr_id: u64) -> Self;
}

/// A request that a connected queue pair of transport `T` can post: the builders of this module.
pub trait Post<'a, T: Transport>: AnyRequest<'a> {}

/// A queue with a request that it takes, for [`DeviceBatch`](crate::DeviceBatch): a
/// [`Qp`](crate::Qp) with whatever it can post, a [`PreparedQp`](crate::PreparedQp) or a
/// [`Srq`](crate::Srq) with a [`Recv`].
pub trait RequestFor<'a, Q>: AnyRequest<'a> {
    /// Returns the queue as posting needs it.
    #[doc(hidden)]
    fn target(queue: &Q) -> Target<'_>;

    /// Posts the request to `queue`, as [`Qp::post`](crate::Qp::post).
    fn post_to(self, queue: Q) -> Result<()>;

    /// Returns what tells whether `queue` still exists, without keeping it.
    fn life_of(queue: &Q) -> QueueLife {
        QueueLife(Arc::downgrade(Self::target(queue).life))
    }
}

/// Tells whether a queue still exists, without keeping it.
///
/// As long as a queue exists, its requests may complete, and the device may access their memory.
/// Afterwards neither happens any more.
#[derive(Clone, Debug, Default)]
pub struct QueueLife(Weak<()>);

impl QueueLife {
    /// Returns true once the kernel has destroyed the queue, and for the default value.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// A queue to which [`AsyncRequests`](crate::AsyncRequests) posts: a [`Qp`](crate::Qp), a
/// [`PreparedQp`](crate::PreparedQp) or a [`Srq`](crate::Srq).
#[cfg(any(feature = "smol", feature = "tokio"))]
pub trait RequestQueue: sealed::Sealed {
    /// Returns a reference that keeps the queue from being destroyed.
    #[doc(hidden)]
    fn keep(&self) -> Arc<dyn std::any::Any + std::marker::Send + Sync>;

    /// Returns the completion queue of its receives or sends.
    #[doc(hidden)]
    fn completes_to(&self, receives: bool) -> &crate::cq::Cq;
}

/// A queue, as posting needs it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Target<'q> {
    pub(crate) handle: u32,
    /// 0 where it is none of one queue pair.
    #[cfg(feature = "io-uring")]
    pub(crate) qp_num: u32,
    /// Gone with the queue.
    pub(crate) life: &'q Arc<()>,
    pub(crate) device: &'q Arc<DeviceInner>,
    /// Most bytes of a datagram.
    pub(crate) mtu: Option<u32>,
    pub(crate) takes_receives: bool,
    /// Most inline bytes of a request.
    pub(crate) max_inline: u32,
}

/// Declares the builder of a request, with the options that it has and the transports that post it.
macro_rules! request {
    ($(#[$meta:meta])* $name:ident: $($option:ident),*; $($transport:ty),*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[must_use = "a request does nothing before it is posted"]
        pub struct $name<'a> {
            request: Request<'a>,
        }

        $($option!($name);)*
        $(impl<'a> Post<'a, $transport> for $name<'a> {})*

        impl<'a> $name<'a> {
            /// Sets a number of the caller's, which the completion carries. The default is 0.
            #[inline]
            pub fn wr_id(mut self, wr_id: u64) -> Self {
                self.request.head.user_data = wr_id;
                self
            }

            /// Sets how long it may take from when it is posted on, in units of about a
            /// millisecond for each 1,024 requests that the queue has room for, or part of these;
            /// there is no limit unless said. Afterwards it completes as
            /// [`Status::TimedOut`](crate::Status::TimedOut), which says nothing of the queue pair:
            /// that goes on, and the device is not done with the request.
            #[inline]
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.request.timeout(timeout);
                self
            }
        }

        impl<'a> From<$name<'a>> for Request<'a> {
            #[inline]
            fn from(op: $name<'a>) -> Self {
                op.request
            }
        }

        impl<'a> AnyRequest<'a> for $name<'a> {
            #[inline]
            fn tracked(mut self, wr_id: u64) -> Self {
                self.request = self.request.tracked(wr_id);
                self
            }
        }

        impl sealed::Sealed for $name<'_> {}
    };
}

macro_rules! signaled {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Sets whether it makes a completion when it succeeds: true unless said. It makes one
            /// when it fails in any case. A queue pair whose requests are all unsignaled fills up:
            /// the slots of unsignaled requests are free again when a later signaled one completes.
            ///
            /// A signaled request that has succeeded says that all unsignaled ones that were posted
            /// before it to the same queue pair have succeeded, too: sends of a queue pair complete
            /// in order, and after one has failed all later ones are flushed.
            #[doc(alias = "RUST_ULP_SEND_SIGNALED")]
            #[inline]
            pub fn signaled(mut self, signaled: bool) -> Self {
                self.request.flag(abi::SEND_SIGNALED, signaled);
                self
            }
        }
    };
}

macro_rules! fenced {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Has it start only after the reads and atomics that were posted before it are done.
            #[doc(alias = "RUST_ULP_SEND_FENCE")]
            #[inline]
            pub fn fenced(mut self) -> Self {
                self.request.flag(abi::SEND_FENCE, true);
                self
            }
        }
    };
}

macro_rules! immediate {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Sets a number that the peer's completion carries, in host order on both sides.
            #[inline]
            pub fn imm(mut self, imm: u32) -> Self {
                self.request.head.opcode = abi::WR_SEND_WITH_IMM;
                self.request.head.imm_data = imm;
                self
            }
        }
    };
}

macro_rules! solicited {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// Wakes a peer that waits for solicited completions only.
            #[doc(alias = "RUST_ULP_SEND_SOLICITED")]
            #[inline]
            pub fn solicited(mut self) -> Self {
                self.request.flag(abi::SEND_SOLICITED, true);
                self
            }

            /// Takes the data while it is posted, so that the memory can be changed at once. At
            /// most [`QpCaps::max_inline`](crate::qp::QpCaps::max_inline) bytes.
            #[doc(alias = "RUST_ULP_SEND_INLINE")]
            #[inline]
            pub fn inline(mut self) -> Self {
                self.request.flag(abi::SEND_INLINE, true);
                self
            }
        }
    };
}

request! {
    /// An RDMA Write: local bytes go into the peer's memory, without the peer's program taking part.
    ///
    /// Needs [`Access::REMOTE_WRITE`].
    #[doc(alias = "RUST_ULP_WR_RDMA_WRITE")]
    Write: signaled, fenced, solicited; Rc, Uc
}

impl<'a> Write<'a> {
    #[inline]
    fn with(local: Local<'a>, dst: RemoteSlice) -> Self {
        Self {
            request: Request::new(abi::WR_RDMA_WRITE, local).remote(dst, Access::REMOTE_WRITE),
        }
    }

    /// Writes `src` to the start of `dst`, which may be longer.
    #[inline]
    pub fn new(src: LocalSlice<'a>, dst: RemoteSlice) -> Self {
        Self::with(Local::One(src), dst)
    }

    /// Writes several pieces, one after the other, to the start of `dst`.
    #[inline]
    pub fn gather(src: &'a [LocalSlice<'a>], dst: RemoteSlice) -> Self {
        Self::with(Local::Many(src), dst)
    }

    /// Writes bytes that are taken while the request is posted: no buffer is needed. At most
    /// [`QpCaps::max_inline`](crate::qp::QpCaps::max_inline) of them.
    #[inline]
    pub fn inline_bytes(src: &'a [u8], dst: RemoteSlice) -> Self {
        Self::with(Local::Bytes(src), dst)
    }

    /// Completes a receive of the peer's, too, which gets this number (in host order on both
    /// sides).
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.request.head.opcode = abi::WR_RDMA_WRITE_WITH_IMM;
        self.request.head.imm_data = imm;
        self
    }
}

request! {
    /// An RDMA Read: bytes of the peer's memory come here, without the peer's program taking part.
    ///
    /// Nothing is promised about the order in which one Read takes its bytes.
    ///
    /// Needs [`Access::REMOTE_READ`].
    #[doc(alias = "RUST_ULP_WR_RDMA_READ")]
    Read: signaled, fenced; Rc
}

impl<'a> Read<'a> {
    #[inline]
    fn with(src: RemoteSlice, local: Local<'a>) -> Self {
        Self {
            request: Request::new(abi::WR_RDMA_READ, local).remote(src, Access::REMOTE_READ),
        }
    }

    /// Fills `dst` from the start of `src`, which may be longer.
    #[inline]
    pub fn new(src: RemoteSlice, dst: LocalSlice<'a>) -> Self {
        Self::with(src, Local::One(dst))
    }

    /// Fills several pieces, one after the other, from the start of `src`.
    #[inline]
    pub fn scatter(src: RemoteSlice, dst: &'a [LocalSlice<'a>]) -> Self {
        Self::with(src, Local::Many(dst))
    }
}

request! {
    /// A send: the message goes into the receive that the peer posted first.
    #[doc(alias = "RUST_ULP_WR_SEND")]
    Send: signaled, fenced, solicited, immediate; Rc, Uc
}

impl<'a> Send<'a> {
    #[inline]
    fn with(local: Local<'a>) -> Self {
        Self {
            request: Request::new(abi::WR_SEND, local),
        }
    }

    /// Sends `src`.
    #[inline]
    pub fn new(src: LocalSlice<'a>) -> Self {
        Self::with(Local::One(src))
    }

    /// Sends several pieces as one message.
    #[inline]
    pub fn gather(src: &'a [LocalSlice<'a>]) -> Self {
        Self::with(Local::Many(src))
    }

    /// Sends bytes that are taken while the request is posted: no buffer is needed. At most
    /// [`QpCaps::max_inline`](crate::qp::QpCaps::max_inline) of them.
    #[inline]
    pub fn inline_bytes(src: &'a [u8]) -> Self {
        Self::with(Local::Bytes(src))
    }

    /// Sends a message of no bytes.
    #[inline]
    pub fn empty() -> Self {
        Self::with(Local::None)
    }
}

impl<'a> Send<'a> {
    /// Invalidates a grant of the peer's, too: when the message has arrived, the key of `grant` is
    /// invalid, and the peer is told which one it was
    /// ([`Completion::invalidated`](crate::Completion::invalidated)). Not every device does it:
    /// [`DeviceInfo::supports`](crate::device::DeviceInfo::supports) tells.
    #[inline]
    pub fn invalidate(self, grant: RemoteSlice) -> SendInvalidate<'a> {
        let mut request = self.request;
        request.head.opcode = abi::WR_SEND_WITH_INV;
        request.head.imm_data = grant.rkey();
        SendInvalidate { request }
    }
}

request! {
    /// A send that takes a grant of the peer's away. Made by [`Send::invalidate`]; it carries no
    /// immediate data.
    #[doc(alias = "RUST_ULP_WR_SEND_WITH_INV")]
    SendInvalidate: signaled, fenced, solicited; Rc
}

request! {
    /// A datagram: the message goes into the first receive of the queue pair that it is for, behind 40
    /// bytes for the network header, if that has a receive and takes the Q_Key. At most
    /// [`Endpoint::mtu`](crate::Endpoint) bytes. Its completion says that it left, not that it arrived.
    #[doc(alias = "RUST_ULP_WR_SEND")]
    SendTo: signaled, solicited, immediate; Ud
}

impl<'a> SendTo<'a> {
    #[inline]
    fn with(local: Local<'a>, to: &'a Destination) -> Self {
        let mut request = Request::new(abi::WR_SEND, local);
        request.to = Some(to);
        Self { request }
    }

    /// Sends `src` to `to`.
    #[inline]
    pub fn new(src: LocalSlice<'a>, to: &'a Destination) -> Self {
        Self::with(Local::One(src), to)
    }

    /// Sends several pieces as one datagram.
    #[inline]
    pub fn gather(src: &'a [LocalSlice<'a>], to: &'a Destination) -> Self {
        Self::with(Local::Many(src), to)
    }

    /// Sends bytes that are taken while the request is posted: no buffer is needed. At most
    /// [`QpCaps::max_inline`](crate::qp::QpCaps::max_inline) of them.
    #[inline]
    pub fn inline_bytes(src: &'a [u8], to: &'a Destination) -> Self {
        Self::with(Local::Bytes(src), to)
    }

    /// Sends a datagram of no bytes.
    #[inline]
    pub fn empty(to: &'a Destination) -> Self {
        Self::with(Local::None, to)
    }
}

request! {
    /// A compare-and-swap of 8 aligned bytes of the peer's memory.
    ///
    /// The word has the byte order of the peer's processor, and `result` that of this one. The operation
    /// is atomic for other atomic operations of the same device, but not for the peer's processor: see
    /// [`FetchAdd`].
    ///
    /// Needs [`Access::REMOTE_ATOMIC`].
    #[doc(alias = "RUST_ULP_WR_ATOMIC_CMP_AND_SWP")]
    CompareSwap: signaled, fenced; Rc
}

impl<'a> CompareSwap<'a> {
    /// Puts `swap` at the start of `target` if `compare` is there; what was there before comes to
    /// `result`, which has 8 bytes.
    #[inline]
    pub fn new(target: RemoteSlice, compare: u64, swap: u64, result: LocalSlice<'a>) -> Self {
        let local = Local::One(result);
        let mut request =
            Request::new(abi::WR_ATOMIC_CMP_AND_SWP, local).remote(target, Access::REMOTE_ATOMIC);
        request.head.args = abi::WrAtomic {
            compare_add: compare,
            swap,
        }
        .into();
        Self { request }
    }
}

request! {
    /// An addition to 8 aligned bytes of the peer's memory.
    ///
    /// The word has the byte order of the peer's processor, as its program sees it with
    /// [`Buffer::load_u64`](crate::Buffer::load_u64). What was there comes to `result` in the byte order
    /// of this one. Sums wrap.
    ///
    /// The operation is atomic for the atomic operations of all peers that come through the same device.
    /// It is not atomic for the peer's processor: with most devices, Soft-RoCE among them, an addition by
    /// [`Buffer::fetch_add_u64`](crate::Buffer::fetch_add_u64) or a store at the same time is lost, or
    /// loses this one. A program on the peer's host that changes the word, too, posts its own atomic
    /// operations to a queue pair that is connected to that device. Loading the word is safe.
    ///
    /// ```no_run
    /// # use rust_ulp::error::Result;
    /// # use rust_ulp::qp::Rc;
    /// # use rust_ulp::wr::FetchAdd;
    /// # use rust_ulp::*;
    /// # use std::sync::atomic::Ordering;
    /// # use std::time::Duration;
    /// /// Reserves `n` bytes of a log of the peer's, and returns where they begin.
    /// fn reserve(qp: &Qp<Rc>, tail: RemoteSlice, n: u64, old: &Buffer) -> Result<u64> {
    ///     qp.post(FetchAdd::new(tail, n, old.slice(..8)?))?;
    ///     qp.send_cq().wait(Duration::from_secs(5))?.check()?;
    ///     old.load_u64(0, Ordering::Acquire)
    /// }
    /// ```
    ///
    /// Needs [`Access::REMOTE_ATOMIC`].
    #[doc(alias = "RUST_ULP_WR_ATOMIC_FETCH_AND_ADD")]
    FetchAdd: signaled, fenced; Rc
}

impl<'a> FetchAdd<'a> {
    /// Adds `add` to the number at the start of `target`; what was there before comes to `result`,
    /// which has 8 bytes.
    #[inline]
    pub fn new(target: RemoteSlice, add: u64, result: LocalSlice<'a>) -> Self {
        let local = Local::One(result);
        let mut request =
            Request::new(abi::WR_ATOMIC_FETCH_AND_ADD, local).remote(target, Access::REMOTE_ATOMIC);
        request.head.args = abi::WrAtomic {
            compare_add: add,
            swap: 0,
        }
        .into();
        Self { request }
    }
}

request! {
    /// A receive: room for a message of the peer's, or for the notice of a write with immediate data.
    #[doc(alias = "RUST_ULP_WR_RECV")]
    Recv:;
}

impl<'a> Recv<'a> {
    #[inline]
    fn with(local: Local<'a>) -> Self {
        let mut request = Request::new(abi::WR_RECV, local);
        request.head.flags = 0;
        Self { request }
    }

    /// Receives into `dst`.
    #[inline]
    pub fn new(dst: LocalSlice<'a>) -> Self {
        Self::with(Local::One(dst))
    }

    /// Receives into several pieces, one after the other.
    #[inline]
    pub fn scatter(dst: &'a [LocalSlice<'a>]) -> Self {
        Self::with(Local::Many(dst))
    }

    /// Receives a message of no bytes, or the notice of a write with immediate data.
    #[inline]
    pub fn empty() -> Self {
        Self::with(Local::None)
    }
}

impl<'a, T: Transport> Post<'a, T> for Recv<'a> {}
