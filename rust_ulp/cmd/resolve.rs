// SPDX-License-Identifier: GPL-2.0

//! Decodes requests, resolves their handles, and puts the requests into a chain.
//!
//! The first request that a check refuses ends the chain; those before it are posted. Runs in process
//! context, inside the device's gate, with the file's table locked. Allocates only until the batch
//! has grown to its size.

use crate::{
    counters::start_ns,
    device::DeviceState,
    ext::{
        errno::{
            ebadfd,
            enotconn,
            eopnotsupp, //
        },
        uring::PendingCmd, //
    },
    limits::{
        MAX_INLINE,
        MAX_MESSAGE, //
    },
    logic::cq_ring::{
        CqRing,
        Reserved, //
    },
    object::{
        batch::{
            decoded,
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
            Alike,
            Chain,
            Inline,
            TargetRef,
            MAX_RUN, //
        },
        qp_attr::QpType,
        wr::{
            Flags,
            Local,
            Operation,
            PlainOp,
            Tail, //
        }, //
    },
    uapi::{
        abi::{
            self,
            Zero, //
        },
        decode::{
            is_plain,
            DecodedWr,
            Elements,
            Op,
            Receiver, //
        }, //
    }, //
};
use kernel::prelude::*;

/// The environment that a batch is resolved in.
pub(crate) struct SubmitCtx<'a> {
    /// The table that resolves the handles of the batch.
    pub(crate) table: &'a ObjectTable,
    /// The device.
    pub(crate) device: &'a DeviceState,
    /// The io_uring command that completes when the requests have completed. Without one, the
    /// requests add entries to completion rings.
    pub(crate) command: Option<&'a PendingCmd>,
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
            in_ring: self.in_ring(),
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
        if self.in_ring() {
            signaled
        } else {
            run.left <= 1
        }
    }

    /// Returns whether the requests add entries to completion rings.
    #[inline(always)]
    fn in_ring(&self) -> bool {
        self.command.is_none()
    }
}

impl Batch {
    /// Puts the requests into the chain, in order, up to the first one that is refused. Sleeps.
    ///
    /// Returns the errno of that one; those before it stay in the chain, to be posted.
    pub(crate) fn resolve(&mut self, ctx: &SubmitCtx<'_>) -> Result {
        let result = self.fill_chain(ctx);
        if result.is_err() && ctx.command.is_some() {
            self.chain.report_last();
        }
        result
    }

    fn fill_chain(&mut self, ctx: &SubmitCtx<'_>) -> Result {
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
        let mut cache = LookupCache::default();
        let mut index = 0;
        while let Some(first) = left.first() {
            let mut run = match QueueRun::begin(ctx, left) {
                Ok(run) => run,
                // What is wrong with the request itself takes precedence.
                Err(error) => return Err(decoded(first).err().unwrap_or(error)),
            };
            // Of several requests, those that find a slot are posted.
            chain.begin(run.target, run.left, is_alone)?;
            while let (Some((wr, rest)), 1..) = (left.split_first(), run.left) {
                let count = push_plain(ctx, &mut run, (index, left), chain, &mut cache)?;
                if count > 0 {
                    left = left.get(count as usize..).unwrap_or(&[]);
                    index = index.wrapping_add(count);
                    continue;
                }
                let request = decoded(wr)?;
                let (sges, inline) = match data.next_if(|data| data.index == index) {
                    Some(data) => data.of(sges, inline),
                    None => match &request.elements {
                        Elements::One(sge) if u64::from(sge.length) > MAX_MESSAGE => {
                            return Err(EMSGSIZE);
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
                push(ctx, &run, item, chain, &mut cache)?;
                run.left = run.left.wrapping_sub(1);
                (left, index) = (rest, index.wrapping_add(1));
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
        return Ok(Operation::Send(Tail::new(imm, invalidate)));
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

/// Consecutive requests for the same queue, at most [`MAX_RUN`], and what is looked up or checked
/// once for them.
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
            .take(MAX_RUN as usize)
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
    /// How many of the requests need not be reported by the device.
    silent: u32,
}

impl<'a> CqReservation<'a> {
    /// Takes room for one request from `reservation`. If that has none in `ring`, first reserves
    /// room for up to `left` requests there. Returns whether the device must report the request,
    /// and [`EAGAIN`] if the ring is full.
    #[inline(always)]
    fn take(
        reservation: &mut Option<Self>,
        ring: &'a Ring,
        in_ring: bool,
        left: u32,
    ) -> Result<bool> {
        if let Some(had) = reservation {
            if had.left > 0 && core::ptr::eq(had.ring, ring) {
                return Ok(had.take_one());
            }
        }
        *reservation = None;
        let Reserved { count, silent } = if in_ring {
            ring.reserve(left.max(1))?
        } else {
            // The device reports the last request of each run.
            let count = ring.admit(left.max(1))?;
            Reserved {
                count,
                silent: count,
            }
        };
        let new = reservation.insert(Self {
            ring,
            in_ring,
            left: count,
            silent,
        });
        Ok(new.take_one())
    }

    /// Takes room for one request. Returns whether the device must report it.
    #[inline(always)]
    fn take_one(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        let must_report = self.silent == 0;
        self.silent = self.silent.saturating_sub(1);
        must_report
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

/// Returns the operation and the buffer of `wr` if that is a plain request that all checks accept,
/// but for those of where its data is. [`None`] for a shared receive queue.
#[inline(always)]
fn check_plain<'a>(
    ctx: &SubmitCtx<'a>,
    run: &QueueRun<'a>,
    wr: &abi::Wr,
    cache: &mut LookupCache<'a>,
) -> Option<(PlainOp, &'a BufferObject)> {
    let is_checked = is_plain(wr) && run.check_opcode(wr.opcode).is_ok();
    if !is_checked || run.max_sge.min(run.max_pieces) == 0 {
        return None;
    }
    let (rkey, imm) = (wr.rkey, wr.imm_data);
    let op = match (wr.opcode, run.target) {
        (abi::WR_RDMA_WRITE, TargetRef::Send(_)) => PlainOp::Write { rkey, imm: None },
        (abi::WR_RDMA_WRITE_WITH_IMM, TargetRef::Send(_)) => PlainOp::Write {
            rkey,
            imm: Some(imm),
        },
        (abi::WR_RDMA_READ, TargetRef::Send(_)) => PlainOp::Read { rkey },
        (abi::WR_RECV, TargetRef::Recv(_)) => PlainOp::Recv,
        (opcode, TargetRef::Send(qp)) if qp.qp_type() != QpType::Ud => {
            PlainOp::Send(match opcode {
                abi::WR_SEND => Tail::None,
                abi::WR_SEND_WITH_IMM => Tail::Imm(imm),
                abi::WR_SEND_WITH_INV => Tail::Invalidate(imm),
                _ => return None,
            })
        }
        _ => return None,
    };
    let buffer = cache.buffer(ctx.table, wr.sge.buffer).ok()?;
    let writes = matches!(op, PlainOp::Read { .. } | PlainOp::Recv);
    let fits = core::ptr::eq(buffer.pd(), run.pd) && !(writes && buffer.is_read_only());
    fits.then_some((op, buffer))
}

/// Returns the memory of the plain request `wr` if it is inside `buffer`, and that has one key.
#[inline(always)]
fn plain_local<'a>(buffer: &'a BufferObject, wr: &abi::Wr) -> Option<Local<'a>> {
    if u64::from(wr.sge.length) > MAX_MESSAGE {
        return None;
    }
    // The one key is for the whole buffer: this finds nothing beyond its end.
    buffer.local(wr.sge.offset, wr.sge.length)
}

/// Returns whether `wr` is like the plain request `model`.
///
/// A request that is alike differs in `user_data`, in whether it is signaled, and in where its data
/// is, so that the outcome of all other checks is the same: the table is locked, and the objects and
/// the run are the same ones.
#[inline(always)]
fn is_like(wr: &abi::Wr, model: &abi::Wr) -> bool {
    // Names all fields, so that none is forgotten.
    let &abi::Wr {
        user_data: _,
        qp,
        opcode,
        num_sge,
        flags,
        remote_addr,
        rkey,
        imm_data,
        sge: abi::Sge {
            buffer,
            length: _,
            offset: _,
        },
        args,
        timeout_ns,
    } = wr;
    let is_remote = matches!(
        opcode,
        abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM | abi::WR_RDMA_READ
    );
    let free = if opcode == abi::WR_RECV {
        0
    } else {
        abi::SEND_SIGNALED
    };
    qp == model.qp
        && (opcode, num_sge) == (model.opcode, model.num_sge)
        && (flags ^ model.flags) & !free == 0
        && (is_remote || remote_addr == 0)
        && (rkey, imm_data, buffer) == (model.rkey, model.imm_data, model.sge.buffer)
        && (args == abi::WrArgs::ZERO && timeout_ns == 0)
}

/// Reserves room in the completion queue of `run` for the plain request `wr`, number `index`, and
/// returns what is kept with it, and its flags. The request then owns the room and returns it.
#[inline(always)]
fn admit_plain<'a>(
    ctx: &SubmitCtx<'a>,
    run: &QueueRun<'a>,
    (index, wr): (u32, &abi::Wr),
    cache: &mut LookupCache<'a>,
) -> Result<(Request, Flags)> {
    let must_report =
        CqReservation::take(&mut cache.reservation, run.ring, ctx.in_ring(), run.left)?;
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
        signaled: ctx.is_reported(run, signaled || must_report),
        solicited: wr.flags & abi::SEND_SOLICITED != 0,
    };
    Ok((kept, flags))
}

/// Puts the first of `left`, if it is plain, and those after it that are alike and of the same run,
/// into `chain`. The number of the first one comes with them. Returns how many; none if the first is
/// not plain, or a check does not accept it.
#[inline(always)]
fn push_plain<'a>(
    ctx: &SubmitCtx<'a>,
    run: &mut QueueRun<'a>,
    (index, left): (u32, &[abi::Wr]),
    chain: &mut Chain<Completions>,
    cache: &mut LookupCache<'a>,
) -> Result<u32> {
    let Some((wr, rest)) = left.split_first() else {
        return Ok(0);
    };
    let Some((op, buffer)) = check_plain(ctx, run, wr, cache) else {
        return Ok(0);
    };
    let Some(local) = plain_local(buffer, wr) else {
        return Ok(0);
    };
    if wr.flags & abi::SEND_INLINE != 0 {
        return push_copied(ctx, run, (index, wr), (op, buffer), chain, cache);
    }
    let mut alike = chain.alike(op, local)?;
    let (kept, flags) = admit_plain(ctx, run, (index, wr), cache)?;
    alike.push(wr.remote_addr, flags, local, kept)?;
    run.left = run.left.wrapping_sub(1);
    if run.left == 0 {
        return Ok(1);
    }
    push_alike(ctx, run, (wr, buffer), (index, rest), &mut alike, cache)
}

/// Puts those at the beginning of `rest`, the requests after number `first` in the batch, into a chain
/// that are like `model`, which is number `first`, and of the same run. Returns how many there are,
/// with number `first`.
#[inline(never)]
fn push_alike<'a>(
    ctx: &SubmitCtx<'a>,
    run: &mut QueueRun<'a>,
    (model, buffer): (&abi::Wr, &'a BufferObject),
    (first, rest): (u32, &[abi::Wr]),
    alike: &mut Alike<'_, Completions>,
    cache: &mut LookupCache<'a>,
) -> Result<u32> {
    let mut count = 1u32;
    for wr in rest.iter().take(run.left as usize) {
        if !is_like(wr, model) {
            break;
        }
        let Some(local) = plain_local(buffer, wr) else {
            break;
        };
        let index = first.wrapping_add(count);
        let (kept, flags) = admit_plain(ctx, run, (index, wr), cache)?;
        alike.push(wr.remote_addr, flags, local, kept)?;
        run.left = run.left.wrapping_sub(1);
        count = count.wrapping_add(1);
    }
    Ok(count)
}

/// Does what [`push_plain`] does for a request alone, whose inline data is in `buffer`.
#[inline(never)]
fn push_copied<'a>(
    ctx: &SubmitCtx<'a>,
    run: &mut QueueRun<'a>,
    (index, wr): (u32, &abi::Wr),
    (op, buffer): (PlainOp, &'a BufferObject),
    chain: &mut Chain<Completions>,
    cache: &mut LookupCache<'a>,
) -> Result<u32> {
    let offset = usize::try_from(wr.sge.offset).map_err(|_| ERANGE)?;
    if wr.sge.length > MAX_INLINE {
        return Ok(0);
    }
    let (kept, flags) = admit_plain(ctx, run, (index, wr), cache)?;
    let mut copy = |slot: &mut [u8]| buffer.pages().read(offset, slot);
    let inline = Inline {
        length: wr.sge.length as usize,
        copy: &mut copy,
    };
    chain.push_copied(op, wr.remote_addr, flags, inline, kept)?;
    run.left = run.left.wrapping_sub(1);
    Ok(1)
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

/// The memory of a request.
struct Extent<'a> {
    /// Bytes of all elements.
    length: u32,
    /// Elements of the device, one for each key that an element uses.
    pieces: u64,
    /// The memory of a request with one element that uses one key, which is the common case.
    whole: Option<Local<'a>>,
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
/// Returns [`E2BIG`] for too many elements, and the errors of [`check_elements`].
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
    let extent = check_elements(ctx, run, item, cache)?;
    if !request.inline && extent.pieces > run.max_pieces.into() {
        return Err(E2BIG);
    }
    Ok(extent)
}

/// Puts one request at the end of `chain`.
#[inline(never)]
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
    let must_report =
        CqReservation::take(&mut cache.reservation, run.ring, ctx.in_ring(), run.left)?;
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
        signaled: ctx.is_reported(run, signaled || must_report),
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
