// SPDX-License-Identifier: GPL-2.0

//! Decodes requests, resolves their handles, and puts the requests into a chain.
//!
//! If a check fails, the chain is emptied and no request is posted. Runs in process context, inside
//! the device's gate, with the file's table locked. Allocates only until the batch has grown to its
//! size.

use crate::{
    counters::start_ns,
    device::DeviceState,
    kernel::{
        errno::{
            ebadfd,
            enotconn,
            eopnotsupp, //
        },
        pages::PAGE_SIZE,
        uring::PendingCmd, //
    },
    limits::MAX_MESSAGE,
    logic::{
        cq_ring::CqRing,
        remote::RemoteOp, //
    },
    object::{
        batch::{
            decoded,
            BadWr,
            Batch, //
        },
        buffer::BufferObject,
        completion::{
            Completions,
            Request, //
        },
        pd::PdObject,
        qp::QpObject,
        ring::Ring,
        srq::SrqObject,
        Object,
        ObjectTable, //
    },
    rdma::{
        chain::{
            Chain,
            Inline,
            TargetRef, //
        },
        qp_attr::QpType,
        wr::{
            Flags,
            Local,
            Operation,
            Tail, //
        }, //
    },
    uapi::{
        abi,
        decode::{
            DecodedWr,
            Elements,
            Op,
            Receiver, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    transmute::AsBytes, //
};

/// The environment that a batch is resolved in.
pub(crate) struct SubmitCtx<'a> {
    /// The table that resolves the handles of the batch.
    pub(crate) table: &'a ObjectTable,
    /// The device.
    pub(crate) device: &'a DeviceState,
    /// The io_uring command that completes when the requests have completed.
    pub(crate) command: Option<&'a PendingCmd>,
    /// Whether the requests add entries to completion rings.
    pub(crate) in_ring: bool,
}

impl SubmitCtx<'_> {
    /// Returns what is kept with request number `index`, apart from what it says itself.
    #[inline(always)]
    fn request(&self, index: u32) -> Request {
        Request {
            user_data: 0,
            opcode: 0,
            length: 0,
            limit: None,
            cmd_ref: self.command.map(|command| command.cmd_ref(index)),
            in_ring: self.in_ring,
            signaled: false,
            start_ns: start_ns(),
        }
    }

    /// Returns whether the device reports the success of a request of `run`.
    ///
    /// An io_uring command completes when the device has completed all requests. The last one of
    /// consecutive requests for a queue reports those before it.
    #[inline(always)]
    fn is_reported(&self, run: &QueueRun<'_>, signaled: bool) -> bool {
        signaled && self.in_ring || self.command.is_some() && run.left <= 1
    }
}

impl Batch {
    /// Puts each request into the chain. Sleeps.
    ///
    /// If a check fails, earlier requests stay in the chain until [`Self::discard`].
    pub(crate) fn resolve(&mut self, ctx: &SubmitCtx<'_>) -> Result<(), BadWr> {
        let Self {
            wrs,
            data,
            sges,
            inline,
            chain,
        } = self;
        let mut left: &[abi::Wr] = wrs;
        let is_alone = left.len() == 1;
        let mut data = data.iter().peekable();
        let mut run: Option<QueueRun<'_>> = None;
        let mut cache = LookupCache::default();
        let mut index = 0;
        while let Some((wr, rest)) = left.split_first() {
            let fail = |error: Error| BadWr { index, error };
            let request = decoded(wr).map_err(fail)?;
            let run = match &mut run {
                Some(run) if run.left > 1 => {
                    run.left = run.left.wrapping_sub(1);
                    run
                }
                run => {
                    let new = QueueRun::begin(ctx, left).map_err(fail)?;
                    // Of several requests, the caller is told which one found no slot.
                    chain.begin(new.target, new.left, is_alone).map_err(fail)?;
                    run.insert(new)
                }
            };
            let (sges, inline) = match data.next_if(|data| data.index == index) {
                Some(data) => data.of(sges, inline),
                None => match &request.elements {
                    Elements::One(sge) if u64::from(sge.length) > MAX_MESSAGE => {
                        return Err(fail(EMSGSIZE));
                    }
                    Elements::One(sge) => (core::slice::from_ref(sge), &[][..]),
                    _ => (&[][..], &[][..]),
                },
            };
            let item = BatchItem {
                index,
                request: &request,
                sges,
                inline,
            };
            push(ctx, run, item, chain, &mut cache).map_err(fail)?;
            (left, index) = (rest, index.wrapping_add(1));
            if let Some(model) = Model::of(ctx, run, wr, &request, &cache) {
                let count = model.repeat(ctx, run, (index, left), chain, &mut cache)?;
                left = left.get(count as usize..).unwrap_or(&[]);
                index = index.wrapping_add(count);
            }
        }
        Ok(())
    }
}

/// A queue pair or a shared receive queue.
#[derive(Clone, Copy)]
enum Queue<'a> {
    Pair(&'a QpObject),
    Shared(&'a SrqObject),
}

impl<'a> Queue<'a> {
    /// Looks up a queue. Returns [`ENOENT`], or [`ebadfd`] for an object of another type. Sleeps.
    fn find(table: &'a ObjectTable, handle: u32) -> Result<Self> {
        match table.get(handle)? {
            Object::Qp(qp) => Ok(Self::Pair(qp)),
            Object::Srq(srq) => {
                // Completes requests of failed queue pairs, which makes room.
                srq.srq().reclaim();
                Ok(Self::Shared(srq))
            }
            _ => Err(ebadfd()),
        }
    }

    /// Returns the protection domain.
    fn pd(self) -> &'a PdObject {
        match self {
            Self::Pair(qp) => qp.pd(),
            Self::Shared(srq) => srq.pd(),
        }
    }

    /// Returns the completion handler.
    fn handler(self) -> &'a Completions {
        match self {
            Self::Pair(qp) => qp.qp().handler(),
            Self::Shared(srq) => srq.srq().handler(),
        }
    }
}

/// Returns the operation for a send of `length` bytes: a datagram on UD, else a message.
///
/// Returns [`EINVAL`] if a message names a receiver, [`ERANGE`] for a queue pair number of more than
/// 24 bits, and [`EMSGSIZE`] if a datagram is longer than a packet.
fn send(
    table: &ObjectTable,
    queue: Queue<'_>,
    imm: Option<u32>,
    invalidate: Option<u32>,
    to: Option<Receiver>,
    length: u32,
) -> Result<Operation> {
    let Queue::Pair(qp) = queue else {
        return Err(ebadfd());
    };
    if qp.qp().qp_type() != QpType::Ud {
        if to.is_some() {
            return Err(EINVAL);
        }
        return Ok(Operation::Send(match (imm, invalidate) {
            (_, Some(rkey)) => Tail::Invalidate(rkey),
            (Some(imm), None) => Tail::Imm(imm),
            (None, None) => Tail::None,
        }));
    }
    let to = to.ok_or(ENOENT)?;
    let ah = table.ah(to.ah)?;
    if to.qp_num > 0xff_ffff {
        return Err(ERANGE);
    }
    // Devices drop longer datagrams and report success: C10-93.1.1, rxe_requester().
    if length > ah.ah().max_datagram() {
        return Err(EMSGSIZE);
    }
    Ok(Operation::Datagram {
        ah: ah.ah().clone(),
        qp_num: to.qp_num,
        qkey: qp.qp().qkey_for(to.qkey),
        imm,
    })
}

/// Consecutive requests for the same queue, and what is looked up or checked once for them.
struct QueueRun<'a> {
    queue: Queue<'a>,
    target: TargetRef<'a, Completions>,
    pd: &'a PdObject,
    /// Where the requests complete.
    ring: &'a Ring,
    /// Maximum elements, as the caller counts them.
    max_sge: u32,
    /// Maximum elements of the device. An element that crosses a border between keys becomes
    /// several.
    max_pieces: u32,
    /// Whether they are receives.
    is_recv: bool,
    /// Whether every send request generates a completion.
    sig_all: bool,
    /// The supported opcodes of send requests: bit `n` stands for opcode `n`.
    opcodes: u64,
    /// The number of requests from the current one on.
    left: u32,
}

impl<'a> QueueRun<'a> {
    /// Begins the run of the first of `rest`. Sleeps.
    ///
    /// Returns the errors of [`Queue::find`]. Returns [`ebadfd`] for a send request to a shared
    /// receive queue. Returns [`eopnotsupp`] for a receive request to a queue pair that has a
    /// shared receive queue, and for an opcode that the device or the type of the queue pair does
    /// not support. Returns [`enotconn`] if the queue does not take requests in its state.
    fn begin(ctx: &SubmitCtx<'a>, rest: &[abi::Wr]) -> Result<Self> {
        let key = |wr: &abi::Wr| (wr.qp, wr.opcode == abi::WR_RECV);
        let first = rest.first().ok_or(EINVAL)?;
        let (_, is_recv) = key(first);
        let count = rest
            .iter()
            .take_while(|it| key(it) == (first.qp, is_recv))
            .count();
        let queue = Queue::find(ctx.table, first.qp)?;
        let run = |target, max_sge, max_pieces| Self {
            queue,
            target,
            pd: queue.pd(),
            ring: queue.handler().ring(first.opcode),
            max_sge,
            max_pieces,
            is_recv,
            sig_all: false,
            opcodes: u64::MAX,
            left: u32::try_from(count).unwrap_or(1),
        };
        let run = match queue {
            Queue::Shared(_) if !is_recv => return Err(ebadfd()),
            Queue::Shared(srq) => {
                let target = TargetRef::Shared(srq.srq());
                run(target, srq.max_sge(), srq.srq().max_sge())
            }
            Queue::Pair(qp) if is_recv => {
                if qp.has_srq() {
                    return Err(eopnotsupp());
                }
                let (asked, real) = (qp.capacity(), qp.qp().capacity());
                let target = TargetRef::Recv(qp.qp());
                run(target, asked.max_recv_sge, real.max_recv_sge)
            }
            Queue::Pair(qp) => {
                let (asked, real) = (qp.capacity(), qp.qp().capacity());
                let target = TargetRef::Send(qp.qp());
                Self {
                    sig_all: qp.sig_all(),
                    opcodes: ctx.device.send_ops(qp.qp().qp_type()),
                    ..run(target, asked.max_send_sge, real.max_send_sge)
                }
            }
        };
        run.check_opcode(first.opcode)?;
        if !run.target.is_ready() {
            return Err(enotconn());
        }
        Ok(run)
    }

    /// Returns [`eopnotsupp`] for an unsupported opcode.
    fn check_opcode(&self, opcode: u8) -> Result {
        if self.opcodes & (1 << (opcode & 63)) == 0 {
            return Err(eopnotsupp());
        }
        Ok(())
    }
}

/// Room in a completion queue for requests of a batch. Dropping it returns the unused room.
struct CqReservation<'a> {
    ring: &'a Ring,
    /// Whether the requests add entries to the ring. Others only count as in flight.
    in_ring: bool,
    left: u32,
}

impl<'a> CqReservation<'a> {
    /// Takes room for one request from `reservation`. If that has none in `ring`, first reserves
    /// room for up to `left` requests there. Returns [`EAGAIN`] if the ring is full.
    #[inline(always)]
    fn take(reservation: &mut Option<Self>, ring: &'a Ring, in_ring: bool, left: u32) -> Result {
        if let Some(had) = reservation {
            if had.left > 0 && core::ptr::eq(had.ring, ring) {
                had.left = had.left.saturating_sub(1);
                return Ok(());
            }
        }
        *reservation = None;
        let got = if in_ring {
            ring.reserve(left.max(1))?
        } else {
            ring.admit(left.max(1))?
        };
        *reservation = Some(Self {
            ring,
            in_ring,
            left: got.saturating_sub(1),
        });
        Ok(())
    }
}

impl Drop for CqReservation<'_> {
    fn drop(&mut self) {
        match (self.left, self.in_ring) {
            (0, _) => (),
            (left, true) => self.ring.release(left),
            (left, false) => self.ring.leave(left),
        }
    }
}

/// The results of earlier requests of a batch that the next request may use.
#[derive(Default)]
struct LookupCache<'a> {
    reservation: Option<CqReservation<'a>>,
    /// The handle and the buffer of the last lookup.
    buffer: Option<(u32, &'a BufferObject)>,
}

impl<'a> LookupCache<'a> {
    /// Looks up a buffer. Returns [`ENOENT`] or [`ebadfd`].
    fn buffer(&mut self, table: &'a ObjectTable, handle: u32) -> Result<&'a BufferObject> {
        match self.buffer {
            Some((was, buffer)) if was == handle => Ok(buffer),
            _ => {
                let buffer: &BufferObject = table.buffer(handle)?;
                self.buffer = Some((handle, buffer));
                Ok(buffer)
            }
        }
    }
}

/// A request that was put into the chain. Those after it in its run may be alike: an RDMA Write or
/// Read, a send that is no datagram, or a receive, with one element in a buffer of one key, without
/// a time limit, inline data or iWARP.
///
/// A request that is alike differs from it in `user_data`, in whether it is signaled, and in where
/// its data is, so that the outcome of all other checks is the same: the table is locked, and the
/// objects and the run are the same ones.
struct Model<'a> {
    /// The words of the request, 0 where others may differ.
    words: WrWords,
    /// The bits in which a request that is alike does not differ.
    mask: WrWords,
    buffer: &'a BufferObject,
}

/// A request in words.
type WrWords = [u64; core::mem::size_of::<abi::Wr>() / 8];

/// Returns the words of `wr`.
#[inline(always)]
fn words(wr: &abi::Wr) -> WrWords {
    let mut words = [0; core::mem::size_of::<abi::Wr>() / 8];
    for (word, bytes) in words.iter_mut().zip(wr.as_bytes().chunks_exact(8)) {
        *word = bytes.first_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
    }
    words
}

impl<'a> Model<'a> {
    /// Returns the model that `wr` is for the next request of `run`, if there is one.
    fn of(
        ctx: &SubmitCtx<'a>,
        run: &QueueRun<'a>,
        wr: &abi::Wr,
        request: &DecodedWr,
        cache: &LookupCache<'a>,
    ) -> Option<Self> {
        let (true, Elements::One(sge)) = (run.left > 1, request.elements) else {
            return None;
        };
        let (handle, buffer) = cache.buffer?;
        let (remote_addr, free_flags) = match request.op {
            Op::Remote(remote) => match remote.op {
                RemoteOp::Write { .. } | RemoteOp::Read => (0, abi::SEND_SIGNALED),
                _ => return None,
            },
            Op::Send { to: None, .. } => (u64::MAX, abi::SEND_SIGNALED),
            Op::Send { .. } => return None,
            Op::Recv => (u64::MAX, 0),
        };
        let fits = !request.inline
            && request.limit.is_none()
            && handle == sge.buffer
            && sge.length > 0
            && !ctx.device.is_iwarp;
        if !fits || buffer.keys() != 1 {
            return None;
        }
        let mask = words(&abi::Wr {
            user_data: 0,
            qp: u32::MAX,
            opcode: u8::MAX,
            num_sge: u8::MAX,
            flags: !free_flags,
            remote_addr,
            rkey: u32::MAX,
            imm_data: u32::MAX,
            sge: abi::Sge {
                buffer: u32::MAX,
                length: 0,
                offset: 0,
            },
            arg0: u64::MAX,
            arg1: u64::MAX,
            timeout_ns: u64::MAX,
            reserved: u64::MAX,
        });
        let mut words = words(wr);
        for (word, mask) in words.iter_mut().zip(&mask) {
            *word &= mask;
        }
        Some(Self {
            words,
            mask,
            buffer,
        })
    }

    /// Returns the memory of `wr`, if that is alike and its memory is inside the buffer.
    #[inline(always)]
    fn local(&self, wr: &abi::Wr) -> Option<Local<'a>> {
        let masked = words(wr).into_iter().zip(&self.mask);
        let pairs = masked.map(|(word, mask)| word & mask).zip(&self.words);
        let differs = pairs.fold(0, |all, (word, model)| all | (word ^ model));
        if differs != 0 || u64::from(wr.sge.length) > MAX_MESSAGE {
            return None;
        }
        // The one key is for the whole buffer: this finds nothing beyond its end.
        self.buffer.local(wr.sge.offset, wr.sge.length)
    }

    /// Puts those of `rest`, the requests after it in the batch, into `chain` that are alike and of
    /// the same run, up to the first one that is not. The number of the first one comes with them.
    /// Returns how many.
    fn repeat(
        &self,
        ctx: &SubmitCtx<'a>,
        run: &mut QueueRun<'a>,
        (first, rest): (u32, &[abi::Wr]),
        chain: &mut Chain<Completions>,
        cache: &mut LookupCache<'a>,
    ) -> Result<u32, BadWr> {
        let Some(mut repeat) = chain.repeat() else {
            return Ok(0);
        };
        let mut count = 0u32;
        for wr in rest.iter().take(run.left.saturating_sub(1) as usize) {
            let Some(local) = self.local(wr) else {
                break;
            };
            run.left = run.left.wrapping_sub(1);
            let index = first.wrapping_add(count);
            let fail = |error: Error| BadWr { index, error };
            CqReservation::take(&mut cache.reservation, run.ring, ctx.in_ring, run.left)
                .map_err(fail)?;
            // From here on, the request owns the room and returns it.
            let signaled = wr.flags & abi::SEND_SIGNALED != 0 || run.sig_all || run.is_recv;
            let kept = Request {
                user_data: wr.user_data,
                opcode: wr.opcode,
                length: wr.sge.length,
                signaled,
                ..ctx.request(index)
            };
            let flags = Flags {
                fence: wr.flags & abi::SEND_FENCE != 0,
                signaled: ctx.is_reported(run, signaled),
                solicited: wr.flags & abi::SEND_SOLICITED != 0,
            };
            repeat
                .push(wr.remote_addr, flags, local, kept)
                .map_err(fail)?;
            count = count.wrapping_add(1);
        }
        Ok(count)
    }
}

/// One request of a batch.
#[derive(Clone, Copy)]
struct BatchItem<'a> {
    index: u32,
    request: &'a DecodedWr,
    sges: &'a [abi::Sge],
    /// Its inline data if that was copied from user memory.
    inline: &'a [u8],
}

/// Maximum bytes that siw copies to send them inline.
const SHORT: u32 = 64;
/// The bits of a position that are its offset in a page.
const PAGE_BITS: u64 = PAGE_SIZE as u64 - 1;

/// The memory of a request.
struct Extent<'a> {
    /// Bytes of all elements.
    length: u32,
    /// Elements of the device, one for each key that an element uses.
    pieces: u64,
    /// Offset of the first element in its page. Set on iWARP only.
    within: u64,
    /// The memory of a request with one element that uses one key, which is the common case.
    whole: Option<Local<'a>>,
}

/// Checks a send request for an iWARP device.
///
/// siw stops its queue for good after some of the requests that it refuses, and reads unrelated
/// memory for others; see `docs/providers.md`.
///
/// Returns [`E2BIG`] for more than one piece of memory. Returns [`eopnotsupp`] for:
///
/// - a read without data, with a fence, or on a connection that agreed on no reads
/// - an inline message without data
/// - a short message, not inline, that crosses the end of a page
fn fits_iwarp(queue: Queue<'_>, request: &DecodedWr, extent: &Extent<'_>) -> Result {
    let Queue::Pair(qp) = queue else {
        return Ok(());
    };
    let &Extent {
        length,
        pieces,
        within,
        ..
    } = extent;
    let fits = match request.op {
        Op::Recv => return Ok(()),
        _ if request.inline => length > 0,
        _ if pieces > 1 => return Err(E2BIG),
        op if op.is_read() => length > 0 && !request.fence && qp.qp().max_reads() > 0,
        _ => length > SHORT || within.saturating_add(length.into()) <= PAGE_BITS.saturating_add(1),
    };
    if fits {
        Ok(())
    } else {
        Err(eopnotsupp())
    }
}

/// Checks all elements of a request.
///
/// Returns [`ENOENT`] or [`ebadfd`] for a handle that is not a buffer, [`EXDEV`] for a buffer of
/// another protection domain, [`ERANGE`] for bytes outside the buffer, [`EACCES`] if the buffer is
/// read-only and the request writes, and [`EMSGSIZE`] if the message is too long.
#[inline(always)]
fn check_elements<'a>(
    ctx: &SubmitCtx<'a>,
    run: &QueueRun<'a>,
    item: &BatchItem<'_>,
    cache: &mut LookupCache<'a>,
) -> Result<Extent<'a>> {
    let &BatchItem { request, sges, .. } = item;
    let mut extent = Extent {
        length: 0,
        pieces: 0,
        within: 0,
        whole: None,
    };
    let writes = request.op.writes_local();
    for sge in sges {
        extent.length = extent.length.checked_add(sge.length).ok_or(EMSGSIZE)?;
        if request.inline && sge.buffer == 0 {
            continue;
        }
        let buffer = cache.buffer(ctx.table, sge.buffer)?;
        if !core::ptr::eq(buffer.pd(), run.pd) {
            return Err(EXDEV);
        }
        let end = sge.offset.checked_add(sge.length.into()).ok_or(ERANGE)?;
        if end > buffer.length() {
            return Err(ERANGE);
        }
        if writes && buffer.is_read_only() {
            return Err(EACCES);
        }
        let pieces = buffer.pieces(sge.offset, sge.length);
        extent.pieces = extent.pieces.saturating_add(pieces);
        if sges.len() == 1 && !request.inline {
            extent.whole = buffer.local(sge.offset, sge.length);
            if ctx.device.is_iwarp {
                let position = sge.offset.saturating_add(buffer.pages().lead() as u64);
                extent.within = position & PAGE_BITS;
            }
        }
    }
    Ok(extent)
}

/// Returns the operation of a request of `length` bytes, or [`None`] for a receive. Fails as
/// [`send`] does.
#[inline(always)]
fn operation(
    table: &ObjectTable,
    queue: Queue<'_>,
    op: Op,
    length: u32,
) -> Result<Option<Operation>> {
    Ok(Some(match op {
        Op::Recv => return Ok(None),
        Op::Remote(remote) => Operation::Remote(remote),
        Op::Send {
            imm,
            invalidate,
            to,
        } => send(table, queue, imm, invalidate, to, length)?,
    }))
}

/// Checks the memory of a request against the limits of its queue.
///
/// Returns [`E2BIG`] for too many elements, and the errors of [`check_elements`] and
/// [`fits_iwarp`].
#[inline(always)]
fn check_memory<'a>(
    ctx: &SubmitCtx<'a>,
    run: &QueueRun<'a>,
    item: &BatchItem<'_>,
    cache: &mut LookupCache<'a>,
) -> Result<Extent<'a>> {
    let &BatchItem { request, sges, .. } = item;
    if !request.inline && sges.len() > run.max_sge as usize {
        return Err(E2BIG);
    }
    let mut extent = check_elements(ctx, run, item, cache)?;
    if !request.inline && extent.pieces > run.max_pieces.into() {
        return Err(E2BIG);
    }
    if ctx.device.is_iwarp {
        extent.pieces = extent.pieces.max(sges.len() as u64);
        fits_iwarp(run.queue, request, &extent)?;
    }
    Ok(extent)
}

/// Puts one request at the end of `chain`.
fn push<'a>(
    ctx: &SubmitCtx<'a>,
    run: &QueueRun<'a>,
    item: BatchItem<'_>,
    chain: &mut Chain<Completions>,
    cache: &mut LookupCache<'a>,
) -> Result {
    let BatchItem { index, request, .. } = item;
    run.check_opcode(request.opcode)?;
    let extent = check_memory(ctx, run, &item, cache)?;
    let length = extent.length;
    let operation = operation(ctx.table, run.queue, request.op, length)?;
    CqReservation::take(&mut cache.reservation, run.ring, ctx.in_ring, run.left)?;
    // From here on, the request owns the room and returns it.
    let signaled = request.signaled || run.sig_all || run.is_recv;
    let kept = Request {
        user_data: request.user_data,
        opcode: request.opcode,
        length,
        limit: request.limit,
        signaled,
        ..ctx.request(index)
    };
    let flags = Flags {
        fence: request.fence,
        signaled: ctx.is_reported(run, signaled),
        solicited: request.solicited,
    };
    append(
        ctx.table,
        chain,
        &item,
        operation.as_ref(),
        flags,
        extent,
        kept,
    )
}

/// Copies the inline data of a request to `slot`.
fn copy_inline(table: &ObjectTable, item: &BatchItem<'_>, slot: &mut [u8]) -> Result {
    if slot.len() == item.inline.len() {
        // `Batch::parse` copied the data from user memory.
        slot.copy_from_slice(item.inline);
        return Ok(());
    }
    let mut rest = slot;
    for sge in item.sges {
        let (part, tail) = rest
            .split_at_mut_checked(sge.length as usize)
            .ok_or(EMSGSIZE)?;
        let offset = usize::try_from(sge.offset).map_err(|_| ERANGE)?;
        table.buffer(sge.buffer)?.pages().read(offset, part)?;
        rest = tail;
    }
    Ok(())
}

/// Puts a request at the end of `chain`: a receive if `operation` is [`None`].
#[inline(always)]
fn append(
    table: &ObjectTable,
    chain: &mut Chain<Completions>,
    item: &BatchItem<'_>,
    operation: Option<&Operation>,
    flags: Flags,
    extent: Extent<'_>,
    kept: Request,
) -> Result {
    let mut copy = |slot: &mut [u8]| copy_inline(table, item, slot);
    let inline = item.request.inline.then_some(Inline {
        length: extent.length as usize,
        copy: &mut copy,
    });
    if let Some(local) = extent.whole {
        return append_locals(chain, operation, flags, Some(local), inline, kept);
    }
    let locals = item
        .sges
        .iter()
        .filter(|sge| sge.length > 0)
        .filter_map(|sge| Some((table.buffer(sge.buffer).ok()?, sge)))
        .flat_map(|(buffer, sge)| buffer.locals(sge.offset, sge.length));
    append_locals(chain, operation, flags, locals, inline, kept)
}

/// Puts a request with the memory `locals` at the end of `chain`.
fn append_locals<'a>(
    chain: &mut Chain<Completions>,
    operation: Option<&Operation>,
    flags: Flags,
    locals: impl IntoIterator<Item = Local<'a>>,
    inline: Option<Inline<'_>>,
    kept: Request,
) -> Result {
    match operation {
        None => chain.push_recv(locals.into_iter(), kept),
        Some(operation) => chain.push(operation, flags, locals.into_iter(), inline, kept),
    }
}
