// SPDX-License-Identifier: GPL-2.0

//! SUBMIT: many requests, then a wait; and CANCEL.
//!
//! Three steps, each a method of [`Batch`]. First, outside the gate, everything is copied from
//! user space, once, and what can be said without looking anything up is said. Then, inside, handles
//! are resolved and each request is put into a slot of its queue pair; requests that follow each
//! other for the same queue form a chain. A request that is refused drops all chains: none was
//! posted. Last, the chains are posted in order. Process context; nothing is allocated once the room
//! for a batch is there. The commands of io_uring take the same steps, see [`crate::cmd::uring`].

use crate::{
    device::DeviceState,
    file::UlpFile,
    kernel::{
        errno::{
            ebadfd,
            enotconn,
            eopnotsupp,
            etime, //
        },
        pages::PAGE_SIZE,
        uring::PendingCmd, //
    },
    limits::MAX_BATCH,
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
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::ArcBorrow, //
};

/// Checks what needs no queue.
pub(super) fn check_cancel(value: &abi::Cancel) -> Result {
    check_which(value.user_data, value.flags)
}

fn check_which(user_data: u64, flags: u32) -> Result {
    if flags & !abi::CANCEL_ALL != 0 || (flags == abi::CANCEL_ALL && user_data != 0) {
        return Err(EINVAL);
    }
    Ok(())
}

/// Cancels requests.
pub(super) fn cancel(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Cancel) -> Result {
    value.canceled = cancel_matching(&file, value.queue, value.user_data, value.flags)?;
    Ok(())
}

/// Cancels the requests of the queue called `handle` that have `user_data`, or all of them.
///
/// Returns how many it were. [`EINVAL`], [`EBADF`], [`ebadfd`].
pub(crate) fn cancel_matching(
    this: &UlpFile,
    handle: u32,
    user_data: u64,
    flags: u32,
) -> Result<u32> {
    let _alive = this.enter()?;
    let all = flags == abi::CANCEL_ALL;
    check_which(user_data, flags)?;
    let which = |request: &Request| all || request.user_data == user_data;
    let object = this.table().lock().get(handle)?.clone();
    let canceled = match &object {
        Object::Qp(qp) => qp.qp().cancel(which),
        Object::Srq(srq) => srq.srq().cancel(which),
        _ => return Err(ebadfd()),
    };
    trace::cancel(this.id(), handle, user_data, canceled);
    ulp_debug!(
        "file {}: canceled {} of queue {:#x}\n",
        this.id(),
        canceled,
        handle
    );
    Ok(canceled)
}

/// Where a batch comes from, and what it refers to.
pub(crate) struct SubmitCtx<'a> {
    /// Has what its handles name.
    pub(crate) table: &'a ObjectTable,
    /// The device.
    pub(crate) live: &'a DeviceState,
    /// The command of io_uring that hears of its requests.
    pub(crate) command: Option<&'a PendingCmd>,
    /// Whether they make entries in completion rings.
    pub(crate) in_ring: bool,
}

/// Checks what needs no object.
pub(super) fn check(value: &abi::Submit) -> Result {
    if value.timeout_ns > abi::TIMEOUT_MAX_NS {
        return Err(EINVAL);
    }
    if value.cq == 0 && (value.min_complete != 0 || value.timeout_ns != 0) {
        return Err(EINVAL);
    }
    if value.nr_wrs > MAX_BATCH {
        return Err(E2BIG);
    }
    if value.nr_wrs > 0 && value.wr_size < abi::WR_SIZE_V1 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Submits requests, and waits for completions.
pub(super) fn submit(file: ArcBorrow<'_, UlpFile>, value: &mut abi::Submit) -> Result {
    value.posted = 0;
    value.bad_index = 0;
    value.completed = 0;
    value.wait_error = 0;
    let mut batch = file.take_batch()?;
    let result = run(&file, value, &mut batch);
    give_back(&file, batch);
    result
}

/// Gives the room for a batch back, unless it has grown beyond what is worth keeping.
pub(crate) fn give_back(this: &UlpFile, batch: KBox<Batch>) {
    if batch.is_small() {
        this.give_batch(batch);
    }
}

fn run(this: &UlpFile, value: &mut abi::Submit, batch: &mut Batch) -> Result {
    let parsed = batch
        .parse(value.wrs, value.nr_wrs, value.wr_size)
        .map_err(|bad| {
            value.bad_index = bad.index;
            bad.error
        });
    // A husk says so, whatever else is wrong.
    let alive = this.enter()?;
    parsed?;
    trace::submit(this.id(), value.nr_wrs, value.cq, value.min_complete);

    let table = this.table().lock();
    let cq = match value.cq {
        0 => None,
        handle => Some(table.cq(handle)?.clone()),
    };
    if cq
        .as_ref()
        .is_some_and(|cq| value.min_complete > cq.ring().entries())
    {
        return Err(ERANGE);
    }
    let ctx = SubmitCtx {
        table: &table,
        live: &alive,
        command: None,
        in_ring: true,
    };
    let resolved = batch.resolve(&ctx);
    drop(table);
    if let Err(bad) = resolved {
        batch.discard();
        value.bad_index = bad.index;
        return Err(bad.error);
    }
    let (posted, result) = batch.post();
    value.posted = posted;
    if result.is_err() {
        value.bad_index = value.posted;
        return result;
    }

    if let Some(cq) = cq {
        let outcome = cq.wait(value.min_complete, value.timeout_ns);
        value.completed = cq.ring().unread();
        trace::wait(
            this.id(),
            value.cq,
            value.completed,
            outcome.err().map_or(0, |err| err.to_errno()),
        );
        match outcome {
            Ok(()) => (),
            Err(err) if err == etime() || err == EINTR || err == EIO => {
                value.wait_error = err.to_errno();
            }
            Err(err) => return Err(err),
        }
    }
    Ok(())
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
        let mut walk = LookupCache::default();
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
            let part = BatchItem {
                index,
                request: &parsed.request,
                sges,
                inline: data,
                left: run.left,
            };
            push(ctx, queue, part, chains, &mut walk).map_err(fail)?;
        }
        Ok(())
    }
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

    /// Where a request goes, and how many elements it may have there: of the caller, and in all
    /// when they are cut up.
    ///
    /// [`ebadfd`] for a send request to a shared receive queue, [`eopnotsupp`] for a receive request
    /// to a queue pair that has one, and for what the device or the type does not do.
    fn target(
        self,
        live: &DeviceState,
        request: &crate::object::decode::Request,
    ) -> Result<(TargetRef<'a, Completions>, u32, u32)> {
        let is_recv = request.op == Op::Recv;
        match self {
            Self::Shared(_) if !is_recv => Err(ebadfd()),
            Self::Shared(srq) => Ok((
                TargetRef::Shared(srq.srq()),
                srq.max_sge(),
                srq.srq().max_sge(),
            )),
            Self::Pair(qp) if is_recv => {
                if qp.has_srq() {
                    return Err(eopnotsupp());
                }
                Ok((
                    TargetRef::Recv(qp.qp()),
                    qp.capacity().max_recv_sge,
                    qp.qp().capacity().max_recv_sge,
                ))
            }
            Self::Pair(qp) => {
                if live.send_ops(qp.qp().qp_type()) & (1 << (request.opcode & 63)) == 0 {
                    return Err(eopnotsupp());
                }
                Ok((
                    TargetRef::Send(qp.qp()),
                    qp.capacity().max_send_sge,
                    qp.qp().capacity().max_send_sge,
                ))
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
    /// Takes one ctx in `ring` out of `room`, which has those for `left` requests filled up if it has none.
    /// [`EAGAIN`].
    fn take(room: &mut Option<Self>, ring: &'a Ring, in_ring: bool, left: u32) -> Result {
        if let Some(had) = room {
            if had.left > 0 && core::ptr::eq(had.ring, ring) {
                had.left = had.left.saturating_sub(1);
                return Ok(());
            }
        }
        *room = None;
        let got = if in_ring {
            ring.reserve(left.max(1))?
        } else {
            ring.admit(left.max(1))?
        };
        *room = Some(Self {
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
    room: Option<CqReservation<'a>>,
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
    request: &'a crate::object::decode::Request,
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

/// What is known of a request's memory.
struct Extent {
    /// Bytes.
    length: u32,
    /// Elements, or pieces of memory when they are cut up, whichever is more.
    pieces: u64,
    /// How far into a page the first element begins.
    within: u64,
}

/// Whether a device of iWARP is to have a send request. Some that siw refuses stop its queue for good,
/// and for some it reads memory that nobody has named; see `docs/providers.md`.
///
/// [`E2BIG`] for more than one piece of memory; [`eopnotsupp`] for a read into none, one that is
/// fenced, one on a connection that has none, a message without data that is inline, and a short one
/// that is not and lies across the end of a page.
fn fits_iwarp(
    queue: Queue<'_>,
    request: &crate::object::decode::Request,
    extent: &Extent,
) -> Result {
    let Queue::Pair(qp) = queue else {
        return Ok(());
    };
    let Extent {
        length,
        pieces,
        within,
    } = *extent;
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

/// Puts one request into a slot, at the end of the last chain or of a new one.
fn push<'a>(
    ctx: &SubmitCtx<'a>,
    queue: Queue<'a>,
    part: BatchItem<'_>,
    chains: &mut KVVec<Chain<Completions>>,
    walk: &mut LookupCache<'a>,
) -> Result {
    let &SubmitCtx { table, live, .. } = ctx;
    let BatchItem {
        index,
        request,
        sges,
        inline,
        left,
    } = part;
    let (target, max_sge, most) = queue.target(live, request)?;
    if !target.is_ready() {
        return Err(enotconn());
    }
    if !request.inline && sges.len() > max_sge as usize {
        return Err(E2BIG);
    }

    // All elements are checked before the first is used.
    let mut length = 0u32;
    let mut pieces = 0u64;
    // The piece of the one element, if it is that: nearly all requests are so.
    let mut whole = None;
    let writes = matches!(
        request.op,
        Op::Recv | Op::Read { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. }
    );
    for sge in sges {
        length = length.checked_add(sge.length).ok_or(EMSGSIZE)?;
        if request.inline && sge.buffer == 0 {
            continue;
        }
        let buffer = walk.buffer(table, sge.buffer)?;
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
        pieces = pieces.saturating_add(buffer.pieces(sge.offset, sge.length));
        if sges.len() == 1 && !request.inline {
            whole = buffer.local(sge.offset, sge.length);
        }
    }
    if !request.inline && pieces > most.into() {
        return Err(E2BIG);
    }
    if live.is_iwarp {
        let within = match sges {
            [sge] if !request.inline => {
                let lead = walk.buffer(table, sge.buffer)?.pages().lead();
                sge.offset.saturating_add(lead as u64) & PAGE_BITS
            }
            _ => 0,
        };
        let extent = Extent {
            length,
            pieces: pieces.max(sges.len() as u64),
            within,
        };
        fits_iwarp(queue, request, &extent)?;
    }
    if request.inline && length > queue.max_inline() {
        return Err(EMSGSIZE);
    }

    let operation = match request.op {
        Op::Recv => None,
        Op::Write {
            remote_addr,
            rkey,
            imm,
        } => Some(Operation::Write {
            remote_addr,
            rkey,
            imm,
        }),
        Op::Read { remote_addr, rkey } => Some(Operation::Read { remote_addr, rkey }),
        Op::Send {
            imm,
            invalidate,
            to,
        } => Some(send(table, queue, imm, invalidate, to, length)?),
        Op::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
        } => Some(Operation::CompareSwap {
            remote_addr,
            rkey,
            compare,
            swap,
        }),
        Op::FetchAdd {
            remote_addr,
            rkey,
            add,
        } => Some(Operation::FetchAdd {
            remote_addr,
            rkey,
            add,
        }),
    };

    if !chains.last().is_some_and(|chain| chain.target() == target) {
        chains.push(Chain::new(target.to_owned(), left), GFP_KERNEL_ACCOUNT)?;
    }
    let chain = chains.last_mut().ok_or(ENOMEM)?;

    let ring = queue.handler().ring(request.opcode);
    CqReservation::take(&mut walk.room, ring, ctx.in_ring, left)?;
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
    // What is in user memory was copied with the request.
    let mut copy = |slot: &mut [u8]| {
        if slot.len() == inline.len() {
            slot.copy_from_slice(inline);
            return Ok(());
        }
        let mut rest = slot;
        for sge in sges {
            let (part, tail) = rest
                .split_at_mut_checked(sge.length as usize)
                .ok_or(EMSGSIZE)?;
            let offset = usize::try_from(sge.offset).map_err(|_| ERANGE)?;
            table.buffer(sge.buffer)?.pages().read(offset, part)?;
            rest = tail;
        }
        Ok(())
    };
    let inline = request.inline.then_some(Inline {
        length: length as usize,
        copy: &mut copy,
    });
    let operation = operation.as_ref();
    if let Some(local) = whole {
        return append(chain, operation, flags, Some(local), inline, kept);
    }
    let locals = sges
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
    append(chain, operation, flags, locals, inline, kept)
}

/// Puts a request, which is a receive without an `operation`, at the end of `chain`.
fn append(
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
