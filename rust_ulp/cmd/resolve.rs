// SPDX-License-Identifier: GPL-2.0

//! From requests that were copied to slots of their queues.
//!
//! Handles are resolved, and each request is put into a slot of its queue; requests that follow each
//! other for the same queue form a chain. A request that is refused drops all chains: none was posted.
//! Runs in process context, inside the device's gate, with the file's table locked. Nothing is allocated
//! once the batch has its room.

use crate::{
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
    logic::numbered,
    object::{
        batch::{
            BadWr,
            Batch,
            ParsedWr, //
        },
        buffer::BufferObject,
        completion::{
            Completions,
            Request, //
        },
        decode::{
            DecodedWr,
            Op,
            Receiver, //
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
    uapi::abi, //
};
use kernel::prelude::*;

/// The environment that a batch is resolved in.
pub(crate) struct SubmitCtx<'a> {
    /// The table that resolves the handles of the batch.
    pub(crate) table: &'a ObjectTable,
    /// The device.
    pub(crate) device: &'a DeviceState,
    /// The command of io_uring that hears of its requests.
    pub(crate) command: Option<&'a PendingCmd>,
    /// Whether they make entries in completion rings.
    pub(crate) in_ring: bool,
}

impl Batch {
    /// Puts every request into a slot of its queue. Sleeps.
    ///
    /// When one is refused, those before it are in their slots still: [`Self::discard`].
    pub(crate) fn resolve(&mut self, ctx: &SubmitCtx<'_>) -> Result<(), BadWr> {
        let Self {
            parsed,
            sges,
            inline,
            chains,
            ..
        } = self;
        let all: &[ParsedWr] = parsed;
        let mut last: Option<(u32, Queue<'_>)> = None;
        let mut run = QueueRun::default();
        let mut cache = LookupCache::default();
        for (index, parsed) in numbered(all.iter()) {
            let fail = |error: Error| BadWr { index, error };
            let handle = parsed.request.qp;
            let queue = match last {
                Some((was, queue)) if was == handle => queue,
                _ => Queue::find(ctx.table, handle).map_err(fail)?,
            };
            last = Some((handle, queue));
            run.next(|| all.get(index as usize..).unwrap_or(&[]));
            let sges = sges
                .get(parsed.first_sge..parsed.first_sge.saturating_add(parsed.num_sge))
                .unwrap_or(&[]);
            let data = inline
                .get(parsed.inline_at..parsed.inline_at.saturating_add(parsed.inline_len))
                .unwrap_or(&[]);
            let item = BatchItem {
                index,
                request: &parsed.request,
                sges,
                inline: data,
                left: run.left,
            };
            push(ctx, queue, item, chains, &mut cache).map_err(fail)?;
        }
        Ok(())
    }
}

/// Where a request goes.
struct QueueTarget<'a> {
    target: TargetRef<'a, Completions>,
    /// Elements that the caller may name.
    max_sge: u32,
    /// Elements in all, when they are cut where the keys of their buffers end.
    max_pieces: u32,
}

/// What a request's handle names.
#[derive(Clone, Copy)]
enum Queue<'a> {
    Pair(&'a QpObject),
    Shared(&'a SrqObject),
}

impl<'a> Queue<'a> {
    /// [`EBADF`], [`ebadfd`] when it takes no requests. Sleeps.
    fn find(table: &'a ObjectTable, handle: u32) -> Result<Self> {
        match table.get(handle)? {
            Object::Qp(qp) => Ok(Self::Pair(qp)),
            Object::Srq(srq) => {
                // There may be more room than there seems to be.
                srq.srq().reclaim();
                Ok(Self::Shared(srq))
            }
            _ => Err(ebadfd()),
        }
    }

    /// Returns where a request goes, and how many elements it may have there.
    ///
    /// [`ebadfd`] for a send request to a shared receive queue, [`eopnotsupp`] for a receive request
    /// to a queue pair that has one, and for what the device or the type does not do.
    fn target(self, device: &DeviceState, request: &DecodedWr) -> Result<QueueTarget<'a>> {
        let is_recv = request.op == Op::Recv;
        match self {
            Self::Shared(_) if !is_recv => Err(ebadfd()),
            Self::Shared(srq) => Ok(QueueTarget {
                target: TargetRef::Shared(srq.srq()),
                max_sge: srq.max_sge(),
                max_pieces: srq.srq().max_sge(),
            }),
            Self::Pair(qp) if is_recv => {
                if qp.has_srq() {
                    return Err(eopnotsupp());
                }
                Ok(QueueTarget {
                    target: TargetRef::Recv(qp.qp()),
                    max_sge: qp.capacity().max_recv_sge,
                    max_pieces: qp.qp().capacity().max_recv_sge,
                })
            }
            Self::Pair(qp) => {
                if device.send_ops(qp.qp().qp_type()) & (1 << (request.opcode & 63)) == 0 {
                    return Err(eopnotsupp());
                }
                Ok(QueueTarget {
                    target: TargetRef::Send(qp.qp()),
                    max_sge: qp.capacity().max_send_sge,
                    max_pieces: qp.qp().capacity().max_send_sge,
                })
            }
        }
    }

    fn pd(self) -> &'a PdObject {
        match self {
            Self::Pair(qp) => qp.pd(),
            Self::Shared(srq) => srq.pd(),
        }
    }

    fn handler(self) -> &'a Completions {
        match self {
            Self::Pair(qp) => qp.qp().handler(),
            Self::Shared(srq) => srq.srq().handler(),
        }
    }

    /// Bytes of inline data that a request may have.
    fn max_inline(self) -> u32 {
        match self {
            Self::Pair(qp) => qp.qp().capacity().max_inline,
            Self::Shared(_) => 0,
        }
    }

    /// Whether every send request makes a completion.
    fn sig_all(self) -> bool {
        match self {
            Self::Pair(qp) => qp.sig_all(),
            Self::Shared(_) => false,
        }
    }
}

/// What a send of `length` bytes is on its queue pair: a datagram or not.
///
/// [`EINVAL`] when a connection's send names a receiver, [`EXDEV`] for an address of another domain,
/// [`ERANGE`] for a number of more than 24 bits, [`EMSGSIZE`] for more than goes into a packet.
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
    let to = to.ok_or(EBADF)?;
    let ah = table.ah(to.ah)?;
    if !core::ptr::eq(ah.pd(), qp.pd()) {
        return Err(EXDEV);
    }
    if to.qp_num > 0xff_ffff {
        return Err(ERANGE);
    }
    // Devices drop what is longer and call it a success: C10-93.1.1, rxe_requester().
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

/// How many requests follow each other for the same queue.
#[derive(Default)]
struct QueueRun {
    /// Those still to come, the present one included.
    left: u32,
}

impl QueueRun {
    /// Goes on to the next request; `rest` is that and those after it.
    fn next<'a>(&mut self, rest: impl FnOnce() -> &'a [ParsedWr]) {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        let rest = rest();
        let key = |parsed: &ParsedWr| (parsed.request.qp, parsed.request.op == Op::Recv);
        let first = rest.first().map(key);
        let same = rest.iter().take_while(|it| Some(key(it)) == first);
        self.left = u32::try_from(same.count()).unwrap_or(1);
    }
}

/// Places in a completion ring that were had for requests to come; dropping it gives them back.
struct CqReservation<'a> {
    ring: &'a Ring,
    /// Whether they are entries, or requests without one.
    in_ring: bool,
    left: u32,
}

impl<'a> CqReservation<'a> {
    /// Takes one place in `ring` out of `reservation`, which has those for `left` requests filled up if it has none.
    /// [`EAGAIN`].
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

/// What the requests of a batch had so far, for the next one.
#[derive(Default)]
struct LookupCache<'a> {
    reservation: Option<CqReservation<'a>>,
    /// The buffer that was looked up last, with its handle.
    buffer: Option<(u32, &'a BufferObject)>,
}

impl<'a> LookupCache<'a> {
    /// The buffer called `handle`. [`EBADF`], [`ebadfd`].
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

/// One request of a batch.
#[derive(Clone, Copy)]
struct BatchItem<'a> {
    index: u32,
    request: &'a DecodedWr,
    sges: &'a [abi::Sge],
    /// Its inline data, when that comes from user memory.
    inline: &'a [u8],
    /// Requests for the same queue from this one on.
    left: u32,
}

/// siw sends no more bytes than that, and in fact fewer, out of a copy of its own.
const SHORT: u32 = 64;
/// The part of a position that is within a page.
const PAGE_BITS: u64 = PAGE_SIZE as u64 - 1;

/// The memory of a request.
struct Extent {
    /// Bytes.
    length: u32,
    /// Elements, or pieces of memory when they are cut up, whichever is more.
    pieces: u64,
    /// Where in a page the first element begins. Only known on iWARP.
    within: u64,
    /// The piece of the one element, if it is that: nearly all requests are so.
    whole: Option<Local>,
}

/// Whether a device of iWARP is to have a send request. Some that siw refuses stop its queue for good,
/// and for some it reads memory that nobody has named; see `docs/providers.md`.
///
/// [`E2BIG`] for more than one piece of memory; [`eopnotsupp`] for a read into none, one that is
/// fenced, one on a connection that has none, a message without data that is inline, and a short one
/// that is not and lies across the end of a page.
fn fits_iwarp(queue: Queue<'_>, request: &DecodedWr, extent: &Extent) -> Result {
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
        Op::Read { .. } => length > 0 && !request.fence && qp.qp().max_reads() > 0,
        _ => length > SHORT || within.saturating_add(length.into()) <= PAGE_BITS.saturating_add(1),
    };
    if fits {
        Ok(())
    } else {
        Err(eopnotsupp())
    }
}

/// Checks the elements of a request, all of them before the first is used.
///
/// [`EBADF`], [`ebadfd`] for a handle that names no buffer, [`EXDEV`] for a buffer of another domain,
/// [`ERANGE`] for bytes outside of it, [`EACCES`] when it is read-only and the request writes,
/// [`EMSGSIZE`] for a message that is too long.
#[inline(always)]
fn check_elements<'a>(
    ctx: &SubmitCtx<'a>,
    queue: Queue<'a>,
    item: &BatchItem<'_>,
    cache: &mut LookupCache<'a>,
) -> Result<Extent> {
    let &BatchItem { request, sges, .. } = item;
    let mut extent = Extent {
        length: 0,
        pieces: 0,
        within: 0,
        whole: None,
    };
    let writes = matches!(
        request.op,
        Op::Recv | Op::Read { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. }
    );
    for sge in sges {
        extent.length = extent.length.checked_add(sge.length).ok_or(EMSGSIZE)?;
        if request.inline && sge.buffer == 0 {
            continue;
        }
        let buffer = cache.buffer(ctx.table, sge.buffer)?;
        if !core::ptr::eq(buffer.pd(), queue.pd()) {
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

/// The operation of a request of `length` bytes; [`None`] for a receive. Errors as for [`send`].
#[inline(always)]
fn operation(
    table: &ObjectTable,
    queue: Queue<'_>,
    op: Op,
    length: u32,
) -> Result<Option<Operation>> {
    Ok(Some(match op {
        Op::Recv => return Ok(None),
        Op::Write {
            remote_addr,
            rkey,
            imm,
        } => Operation::Write {
            remote_addr,
            rkey,
            imm,
        },
        Op::Read { remote_addr, rkey } => Operation::Read { remote_addr, rkey },
        Op::Send {
            imm,
            invalidate,
            to,
        } => send(table, queue, imm, invalidate, to, length)?,
        Op::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
        } => Operation::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
        },
        Op::FetchAdd {
            remote_addr,
            rkey,
            add,
        } => Operation::FetchAdd {
            remote_addr,
            rkey,
            add,
        },
    }))
}

/// Puts one request into a slot, at the end of the last chain or of a new one.
fn push<'a>(
    ctx: &SubmitCtx<'a>,
    queue: Queue<'a>,
    item: BatchItem<'_>,
    chains: &mut KVVec<Chain<Completions>>,
    cache: &mut LookupCache<'a>,
) -> Result {
    let BatchItem {
        index,
        request,
        sges,
        left,
        ..
    } = item;
    let QueueTarget {
        target,
        max_sge,
        max_pieces,
    } = queue.target(ctx.device, request)?;
    if !target.is_ready() {
        return Err(enotconn());
    }
    if !request.inline && sges.len() > max_sge as usize {
        return Err(E2BIG);
    }
    let mut extent = check_elements(ctx, queue, &item, cache)?;
    if !request.inline && extent.pieces > max_pieces.into() {
        return Err(E2BIG);
    }
    if ctx.device.is_iwarp {
        extent.pieces = extent.pieces.max(sges.len() as u64);
        fits_iwarp(queue, request, &extent)?;
    }
    let length = extent.length;
    if request.inline && length > queue.max_inline() {
        return Err(EMSGSIZE);
    }
    let operation = operation(ctx.table, queue, request.op, length)?;

    if !chains.last().is_some_and(|chain| chain.target() == target) {
        chains.push(Chain::new(target.to_owned(), left), GFP_KERNEL_ACCOUNT)?;
    }
    let chain = chains.last_mut().ok_or(ENOMEM)?;
    let ring = queue.handler().ring(request.opcode);
    CqReservation::take(&mut cache.reservation, ring, ctx.in_ring, left)?;
    // From here on the queue gives that back.
    let signaled = request.signaled || queue.sig_all() || request.op == Op::Recv;
    let kept = Request {
        user_data: request.user_data,
        opcode: request.opcode,
        length,
        timeout_ns: request.timeout_ns,
        cmd_ref: ctx.command.map(|command| command.cmd_ref(index)),
        in_ring: ctx.in_ring,
        signaled,
    };
    let flags = Flags {
        fence: request.fence,
        // Who has asked by io_uring hears of all.
        signaled: signaled || ctx.command.is_some(),
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
        // It was in user memory, and was copied with the request.
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

/// Puts a request, which is a receive without an `operation`, at the end of `chain`.
#[inline(always)]
fn append(
    table: &ObjectTable,
    chain: &mut Chain<Completions>,
    item: &BatchItem<'_>,
    operation: Option<&Operation>,
    flags: Flags,
    extent: Extent,
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
        .filter_map(|sge| {
            Some(
                table
                    .buffer(sge.buffer)
                    .ok()?
                    .locals(sge.offset, sge.length),
            )
        })
        .flatten();
    append_locals(chain, operation, flags, locals, inline, kept)
}

fn append_locals(
    chain: &mut Chain<Completions>,
    operation: Option<&Operation>,
    flags: Flags,
    locals: impl IntoIterator<Item = Local>,
    inline: Option<Inline<'_>>,
    kept: Request,
) -> Result {
    match operation {
        None => chain.push_recv(locals.into_iter(), kept),
        Some(operation) => chain.push(operation, flags, locals.into_iter(), inline, kept),
    }
}
