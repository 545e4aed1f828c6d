// SPDX-License-Identifier: GPL-2.0

//! SUBMIT: many requests, then a wait.
//!
//! Three steps. First, outside the gate, everything is copied from user space, once, and what can
//! be said without looking anything up is said. Then, inside, handles are resolved and each request
//! is put into a slot of its queue pair; requests that follow each other for the same queue form a
//! chain. A request that is refused drops all chains: none was posted. Last, the chains are posted
//! in order. Process context; nothing is allocated once the room for a batch is there.

use crate::{
    context::Context,
    handle::{
        Object,
        Table, //
    },
    logic::{
        decode::{
            decode,
            Elements,
            Limits,
            Op,
            Receiver, //
        },
        numbered, //
    },
    pd::PdObject,
    qp::{
        Completions,
        QpObject,
        Request, //
    },
    rdma::{
        chain::{
            Chain,
            Target, //
        },
        qp::QpType,
        wr::{
            Flags,
            Operation,
            Tail, //
        }, //
    },
    srq::SrqObject,
    sys::{
        dyndbg::ulp_debug,
        errno::{
            ebadfd,
            enotconn,
            eopnotsupp,
            etime, //
        },
        trace,
        user::{
            read_array,
            read_bytes,
            Arg, //
        }, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

/// Most requests of one call.
pub(crate) const MAX_BATCH: u32 = 1024;

/// Longest message: IBA 9.4.1.
const MAX_MESSAGE: u64 = 1 << 31;

/// Room for a batch that is kept with a file when it is not larger than this, in requests.
const KEEP: usize = 256;

const LIMITS: Limits = Limits {
    max_sge: crate::ioctl::MAX_SGE,
    max_inline: crate::ioctl::MAX_INLINE,
};

/// A request that was copied from user space.
struct Staged {
    request: crate::logic::decode::Request,
    /// Its elements in [`Scratch::sges`].
    first_sge: usize,
    num_sge: usize,
    /// Its inline data in [`Scratch::inline`], or room for that when it comes from buffers.
    inline_at: usize,
    inline_len: usize,
}

/// Room for one batch.
pub(crate) struct Scratch {
    wrs: KVVec<abi::Wr>,
    staged: KVVec<Staged>,
    sges: KVVec<abi::Sge>,
    inline: KVVec<u8>,
    chains: KVVec<Chain<Completions>>,
}

impl Scratch {
    /// No room yet: it grows to what is needed.
    pub(crate) fn new() -> Self {
        Self {
            wrs: KVVec::new(),
            staged: KVVec::new(),
            sges: KVVec::new(),
            inline: KVVec::new(),
            chains: KVVec::new(),
        }
    }

    fn clear(&mut self) {
        self.chains.clear();
        self.wrs.clear();
        self.staged.clear();
        self.sges.clear();
        self.inline.clear();
    }
}

/// What went wrong, and with which request.
struct Bad {
    index: u32,
    error: Error,
}

/// The command.
pub(crate) fn submit(this: ArcBorrow<'_, Context>, arg: usize) -> Result {
    let mut arg = Arg::<abi::Submit>::read(arg, abi::Submit::SIZE)?;
    let value = &mut arg.value;
    if value.flags != 0 || value.timeout_ns > abi::TIMEOUT_MAX_NS {
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
    value.posted = 0;
    value.bad_index = 0;
    value.completed = 0;
    value.wait_error = 0;
    // A struct that cannot be written is found out before anything is posted.
    arg.write()?;

    let mut scratch = this.take_scratch()?;
    let result = run(&this, &mut arg.value, &mut scratch);
    if scratch.staged.capacity() <= KEEP {
        this.give_scratch(scratch);
    }
    match result {
        Ok(()) => arg.write(),
        Err(err) => {
            // What the caller learns from it is the error; the struct is a help.
            let _ = arg.write();
            Err(err)
        }
    }
}

fn run(this: &Context, value: &mut abi::Submit, scratch: &mut Scratch) -> Result {
    // Also empties it when the last call was cut short.
    scratch.clear();
    let staged = stage(value, scratch).map_err(|bad| {
        value.bad_index = bad.index;
        bad.error
    });
    // A husk says so, whatever else is wrong.
    let alive = this.enter()?;
    staged?;
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
    let resolved = resolve(&table, &alive, scratch);
    drop(table);
    if let Err(bad) = resolved {
        // Cancels what was put into slots.
        scratch.chains.clear();
        value.bad_index = bad.index;
        return Err(bad.error);
    }

    let mut result = Ok(());
    for chain in scratch.chains.drain_all() {
        if result.is_err() {
            // Cancelled, when it is dropped.
            continue;
        }
        let number = chain.target().number();
        let (posted, outcome) = chain.post(|request| {
            trace::post(
                number,
                request.user_data,
                request.opcode.into(),
                request.length,
            );
            ulp_debug!(
                "qp {}: post user_data {:#x} opcode {} length {}\n",
                number,
                request.user_data,
                request.opcode,
                request.length
            );
        });
        value.posted = value.posted.saturating_add(posted);
        result = outcome;
    }
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

/// Copies all requests and what they point to. Sleeps.
fn stage(value: &abi::Submit, scratch: &mut Scratch) -> Result<(), Bad> {
    let at = |index: u32| move |error: Error| Bad { index, error };
    let count = value.nr_wrs as usize;
    if count == 0 {
        return Ok(());
    }
    let memory = |_: kernel::alloc::AllocError| Bad {
        index: 0,
        error: ENOMEM,
    };
    scratch
        .wrs
        .resize(count, abi::Wr::default(), GFP_KERNEL_ACCOUNT)
        .map_err(memory)?;
    scratch
        .staged
        .reserve(count, GFP_KERNEL_ACCOUNT)
        .map_err(memory)?;
    read_array(value.wrs, value.wr_size, abi::WR_SIZE_V1, &mut scratch.wrs)
        .map_err(|(index, error)| Bad { index, error })?;

    let Scratch {
        wrs,
        staged,
        sges,
        inline,
        ..
    } = scratch;
    for (index, wr) in numbered(wrs.iter()) {
        let fail = at(index);
        let request = decode(wr, LIMITS)
            .map_err(|refusal| fail(Error::from_errno(refusal.errno().wrapping_neg())))?;
        let first_sge = sges.len();
        let mut num_sge = 0;
        match request.elements {
            Elements::None => (),
            Elements::One(sge) => {
                sges.push(sge, GFP_KERNEL_ACCOUNT).map_err(memory)?;
                num_sge = 1;
            }
            Elements::Array { addr, count } => {
                num_sge = count as usize;
                let total = first_sge.saturating_add(num_sge);
                sges.resize(total, abi::Sge::default(), GFP_KERNEL_ACCOUNT)
                    .map_err(memory)?;
                let part = sges.get_mut(first_sge..total).ok_or_else(|| fail(EINVAL))?;
                read_array(addr, abi::Sge::SIZE, abi::Sge::SIZE, part)
                    .map_err(|(_, error)| fail(error))?;
            }
        }
        let list = sges.get(first_sge..).unwrap_or(&[]);
        let length: u64 = list
            .iter()
            .map(|sge| u64::from(sge.length))
            .fold(0, u64::saturating_add);
        if length > MAX_MESSAGE {
            return Err(fail(EMSGSIZE));
        }

        let inline_at = inline.len();
        let mut inline_len = 0;
        if request.inline {
            if length > LIMITS.max_inline.into() {
                return Err(fail(EMSGSIZE));
            }
            // Elements in user memory; those in buffers are read when these are found.
            let user = list.iter().any(|sge| sge.buffer == 0);
            if user && list.iter().any(|sge| sge.buffer != 0) {
                return Err(fail(EINVAL));
            }
            inline_len = length as usize;
            let total = inline_at.saturating_add(inline_len);
            inline
                .resize(total, 0, GFP_KERNEL_ACCOUNT)
                .map_err(memory)?;
            if user {
                let mut to = inline_at;
                for sge in list {
                    let end = to.saturating_add(sge.length as usize);
                    let part = inline.get_mut(to..end).ok_or_else(|| fail(EINVAL))?;
                    read_bytes(sge.offset, part).map_err(fail)?;
                    to = end;
                }
            }
        }
        staged
            .push(
                Staged {
                    request,
                    first_sge,
                    num_sge,
                    inline_at,
                    inline_len,
                },
                GFP_KERNEL_ACCOUNT,
            )
            .map_err(memory)?;
    }
    Ok(())
}

/// Puts every request into a slot of its queue.
fn resolve(table: &Table, live: &crate::device::Live, scratch: &mut Scratch) -> Result<(), Bad> {
    let Scratch {
        staged,
        sges,
        inline,
        chains,
        ..
    } = scratch;
    let mut last: Option<(u32, Queue)> = None;
    for (index, staged) in numbered(staged.iter()) {
        let fail = |error: Error| Bad { index, error };
        let handle = staged.request.qp;
        let queue = match last.take() {
            Some((was, queue)) if was == handle => queue,
            _ => table.get(handle).and_then(Queue::new).map_err(fail)?,
        };
        let sges = sges
            .get(staged.first_sge..staged.first_sge.saturating_add(staged.num_sge))
            .unwrap_or(&[]);
        let data = inline
            .get_mut(staged.inline_at..staged.inline_at.saturating_add(staged.inline_len))
            .unwrap_or(&mut []);
        push(table, live, &queue, &staged.request, sges, data, chains).map_err(fail)?;
        last = Some((handle, queue));
    }
    Ok(())
}

/// What a request's handle may name.
enum Named {
    Pair(Arc<QpObject>),
    Shared(Arc<SrqObject>),
}

/// What a request's handle names, and where its requests go.
struct Queue {
    named: Named,
    /// Send requests; a shared receive queue has none.
    send: Option<Target<Completions>>,
    /// Receive requests; a queue pair that has a shared receive queue has none.
    recv: Option<Target<Completions>>,
}

impl Queue {
    /// [`ebadfd`] when `object` takes no requests. Sleeps.
    fn new(object: &Object) -> Result<Self> {
        match object {
            Object::Qp(qp) => Ok(Self {
                send: Some(Target::Send(qp.qp().clone())),
                recv: (!qp.has_srq()).then(|| Target::Recv(qp.qp().clone())),
                named: Named::Pair(qp.clone()),
            }),
            Object::Srq(srq) => {
                // There may be more room than there seems to be.
                srq.srq().reclaim();
                Ok(Self {
                    send: None,
                    recv: Some(Target::Shared(srq.srq().clone())),
                    named: Named::Shared(srq.clone()),
                })
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
        &self,
        live: &crate::device::Live,
        request: &crate::logic::decode::Request,
    ) -> Result<(&Target<Completions>, u32, u32)> {
        let is_recv = request.op == Op::Recv;
        let (max_sge, room) = match &self.named {
            Named::Shared(srq) => (srq.max_sge(), srq.srq().max_sge()),
            Named::Pair(qp) if is_recv => {
                (qp.capacity().max_recv_sge, qp.qp().capacity().max_recv_sge)
            }
            Named::Pair(qp) => {
                if live.send_ops(qp.qp().qp_type()) & (1 << (request.opcode & 63)) == 0 {
                    return Err(eopnotsupp());
                }
                (qp.capacity().max_send_sge, qp.qp().capacity().max_send_sge)
            }
        };
        let target = if is_recv {
            self.recv.as_ref().ok_or_else(eopnotsupp)?
        } else {
            self.send.as_ref().ok_or_else(ebadfd)?
        };
        Ok((target, max_sge, room))
    }

    fn pd(&self) -> &PdObject {
        match &self.named {
            Named::Pair(qp) => qp.pd(),
            Named::Shared(srq) => srq.pd(),
        }
    }

    fn handler(&self) -> &Completions {
        match &self.named {
            Named::Pair(qp) => qp.qp().handler(),
            Named::Shared(srq) => srq.srq().handler(),
        }
    }

    /// Bytes of inline data that a request may have.
    fn max_inline(&self) -> u32 {
        match &self.named {
            Named::Pair(qp) => qp.qp().capacity().max_inline,
            Named::Shared(_) => 0,
        }
    }

    /// Whether every send request makes a completion.
    fn sig_all(&self) -> bool {
        match &self.named {
            Named::Pair(qp) => qp.sig_all(),
            Named::Shared(_) => false,
        }
    }
}

/// What a send of `length` bytes is on its queue pair: a datagram or not.
///
/// [`EINVAL`] when a connection's send names a receiver, [`EXDEV`] for an address of another domain,
/// [`ERANGE`] for a number of more than 24 bits, [`EMSGSIZE`] for more than goes into a packet.
fn send(
    table: &Table,
    queue: &Queue,
    imm: Option<u32>,
    invalidate: Option<u32>,
    to: Option<Receiver>,
    length: u32,
) -> Result<Operation> {
    let Named::Pair(qp) = &queue.named else {
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

/// Puts one request into a slot, at the end of the last chain or of a new one.
fn push(
    table: &Table,
    live: &crate::device::Live,
    queue: &Queue,
    request: &crate::logic::decode::Request,
    sges: &[abi::Sge],
    inline: &mut [u8],
    chains: &mut KVVec<Chain<Completions>>,
) -> Result {
    let (target, max_sge, room) = queue.target(live, request)?;
    if !target.is_ready() {
        return Err(enotconn());
    }
    if !request.inline && sges.len() > max_sge as usize {
        return Err(E2BIG);
    }

    // All elements are checked before the first is used.
    let mut length = 0u32;
    let mut pieces = 0u64;
    let writes = matches!(
        request.op,
        Op::Recv | Op::Read { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. }
    );
    for sge in sges {
        length = length.checked_add(sge.length).ok_or(EMSGSIZE)?;
        if request.inline && sge.buffer == 0 {
            continue;
        }
        let buffer = table.buffer(sge.buffer)?;
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
    }
    if !request.inline && pieces > room.into() {
        return Err(E2BIG);
    }
    if request.inline {
        if length > queue.max_inline() {
            return Err(EMSGSIZE);
        }
        // What is in user memory was copied with the request.
        let mut rest = &mut *inline;
        for sge in sges.iter().filter(|sge| sge.buffer != 0) {
            let (part, tail) = rest
                .split_at_mut_checked(sge.length as usize)
                .ok_or(EMSGSIZE)?;
            let offset = usize::try_from(sge.offset).map_err(|_| ERANGE)?;
            table.buffer(sge.buffer)?.pages().read(offset, part)?;
            rest = tail;
        }
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
        chains.push(Chain::new(target.clone()), GFP_KERNEL_ACCOUNT)?;
    }
    let chain = chains.last_mut().ok_or(ENOMEM)?;

    queue.handler().ring(request.opcode).reserve()?;
    // From here on the queue gives the place in the ring back.
    let kept = Request {
        user_data: request.user_data,
        opcode: request.opcode,
        length,
    };
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
    let Some(operation) = operation else {
        return chain.push_recv(locals, kept);
    };
    let flags = Flags {
        fence: request.fence,
        signaled: request.signaled || queue.sig_all(),
        solicited: request.solicited,
    };
    let inline = request.inline.then_some(&*inline);
    chain.push(&operation, flags, locals, inline, kept)
}
