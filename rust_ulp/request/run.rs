// SPDX-License-Identifier: GPL-2.0

//! Looks up what requests name, checks them, and posts them, from queue to queue.
//!
//! Here are the checks of handles, ranges, rights and opcodes; those of what a queue takes are in
//! [`Run::push`]. Process context, inside the device's gate, with the file's table locked.

use super::copy::{
    checked,
    Outside, //
};
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
    limits::MAX_MESSAGE,
    logic::cq_ring::{
        CqRing,
        Reserved, //
    },
    object::{
        buffer::BufferObject,
        completion::{
            Completions,
            Report,
            Request, //
        },
        pd::PdObject,
        ring::Ring,
        Object,
        ObjectTable, //
    },
    rdma::{
        post::{
            Data,
            Run,
            Scratch,
            Slot,
            Target, //
        },
        qp_attr::QpType,
        wr::{
            Flags,
            LocalMemory,
            Opcode,
            Operation,
            Plain, //
        }, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::{
        abi::{
            self,
            Zero, //
        },
        decode::{
            shape,
            Rule,
            TimeLimit, //
        }, //
    }, //
};
use kernel::prelude::*;

/// The environment of requests.
pub(super) struct Ctx<'a> {
    /// The table that resolves their handles.
    pub(super) table: &'a ObjectTable,
    /// The device.
    pub(super) device: &'a DeviceState,
    /// See [`super::Requests::command`].
    pub(super) command: Option<&'a PendingCmd>,
    /// The number of the first request in its command.
    pub(super) base: u32,
}

impl Ctx<'_> {
    /// Returns whether the requests add entries to completion rings.
    #[inline(always)]
    fn in_ring(&self) -> bool {
        self.command.is_none()
    }
}

/// Posts the requests `wrs`, in order, up to the first one that is refused. Returns how many were
/// posted, and the error of that one.
pub(super) fn post<'s>(
    ctx: &Ctx<'_>,
    wrs: &'s [abi::Wr],
    outside: Outside<'s>,
    scratch: &mut Scratch<'s>,
) -> (u32, Result) {
    let mut cache = Cache {
        reservation: None,
        buffer: None,
        outside,
    };
    let mut posted = 0u32;
    while let Some(rest @ [first, ..]) = wrs.get(posted as usize..) {
        let queue = match QueueRun::find(ctx, first) {
            Ok(queue) => queue,
            // What is wrong with the request itself takes precedence.
            Err(error) => return (posted, Err(checked(first).err().unwrap_or(error))),
        };
        let (count, result) = queue.post(ctx, rest, posted, scratch, &mut cache);
        posted = posted.saturating_add(count);
        if result.is_err() {
            return (posted, result);
        }
    }
    (posted, Ok(()))
}

/// Returns how many of the requests `wrs`, which were posted, add an entry to the ring of the
/// completion queue `cq` when they succeed. Sleeps.
#[inline(never)]
pub(super) fn reported(ctx: &Ctx<'_>, wrs: &[abi::Wr], cq: u32) -> u32 {
    let Ok(cq) = ctx.table.cq(cq) else {
        return 0;
    };
    let ring: &Ring = cq.ring();
    let (mut key, mut all_signaled) = (None, None);
    let is_reported = |wr: &&abi::Wr| {
        if key != Some(key_of(wr)) {
            key = Some(key_of(wr));
            // Nothing waits for what completes in another ring or is being flushed.
            let queue = QueueRun::find(ctx, wr).ok();
            let queue = queue.filter(|queue| core::ptr::eq(queue.ring, ring));
            all_signaled = queue.map(|queue| queue.all_signaled);
        }
        all_signaled.is_some_and(|all| all || wr.flags & abi::SEND_SIGNALED != 0)
    };
    let each = wrs.iter().filter(is_reported);
    each.fold(0, |count: u32, _| count.wrapping_add(1))
}

/// Room in a completion queue. Dropping it returns the unused room.
struct CqReservation<'a> {
    ring: &'a Ring,
    /// Whether the requests add entries to the ring. Others only count as in flight.
    in_ring: bool,
    left: u32,
    /// How many of the requests need not be reported by the device.
    silent: u32,
}

impl<'a> CqReservation<'a> {
    /// Takes room for the first of the requests `rest` from `reservation`. If that has none in `ring`,
    /// first reserves room for those of them that are for the same queue, and for the others when it
    /// had room there, so that a call that goes from queue to queue locks a ring that they have in
    /// common once. Returns whether the device must report the request, and [`EAGAIN`] if the ring is
    /// full.
    #[inline(always)]
    fn take(
        reservation: &mut Option<Self>,
        ring: &'a Ring,
        in_ring: bool,
        rest: &[abi::Wr],
    ) -> Result<bool> {
        if let Some(had) = reservation {
            if had.left > 0 && core::ptr::eq(had.ring, ring) {
                return Ok(had.take_one());
            }
        }
        Self::renew(reservation, ring, in_ring, rest)
    }

    #[inline(never)]
    fn renew(
        reservation: &mut Option<Self>,
        ring: &'a Ring,
        in_ring: bool,
        rest: &[abi::Wr],
    ) -> Result<bool> {
        // No more than are copied at a time.
        let key = rest.first().map(key_of);
        let run = rest.iter().take_while(|it| Some(key_of(it)) == key);
        let left = run.count() as u32;
        // It stays when this fails: the requests of the run that are not posted go back to it.
        let ahead = match reservation {
            Some(had) if core::ptr::eq(had.ring, ring) => (rest.len() as u32).saturating_sub(left),
            _ => 0,
        };
        let Reserved { count, silent } = if in_ring {
            ring.reserve(left, ahead)?
        } else {
            // The device reports the last request of each run.
            let count = ring.admit(left, ahead)?;
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
        match self.silent.checked_sub(1) {
            Some(silent) => {
                self.silent = silent;
                false
            }
            None => true,
        }
    }

    /// Takes back the room of `count` requests that were not posted.
    fn give(&mut self, count: u32) {
        self.left = self.left.saturating_add(count);
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

/// A buffer that was looked up, and what requests need of it.
struct Known<'a> {
    handle: u32,
    buffer: &'a BufferObject,
    pd: &'a PdObject,
    length: u64,
    is_read_only: bool,
    /// Its memory, if that has one key.
    memory: Option<LocalMemory<'a>>,
}

/// What a request may use of those before it.
struct Cache<'a, 's> {
    reservation: Option<CqReservation<'a>>,
    /// The last buffer.
    buffer: Option<Known<'a>>,
    /// What the requests from the current one on have outside of their structs.
    outside: Outside<'s>,
}

impl<'a> Cache<'a, '_> {
    /// Looks up a buffer. Returns [`ENOENT`] or [`ebadfd`].
    #[inline(always)]
    fn buffer(&mut self, table: &'a ObjectTable, handle: u32) -> Result<&Known<'a>> {
        let is_known = match &self.buffer {
            Some(known) => known.handle == handle,
            None => false,
        };
        if !is_known {
            self.look_up(table, handle)?;
        }
        self.buffer.as_ref().ok_or(ENOENT)
    }

    #[inline(never)]
    fn look_up(&mut self, table: &'a ObjectTable, handle: u32) -> Result {
        let buffer: &BufferObject = table.buffer(handle)?;
        self.buffer = Some(Known {
            handle,
            buffer,
            pd: buffer.pd(),
            length: buffer.length(),
            is_read_only: buffer.is_read_only(),
            memory: buffer.memory(),
        });
        Ok(())
    }
}

/// Returns the queue of a request: its handle, and whether it is a receive.
#[inline(always)]
fn key_of(wr: &abi::Wr) -> (u32, bool) {
    (wr.qp, wr.opcode == abi::WR_RECV)
}

/// What the requests of a run have in common that are of one [`shape`], have one element, and neither
/// inline data nor arguments. It was checked for the first of them.
#[derive(Clone, Copy)]
struct Alike {
    shape: u32,
    rule: Rule,
    opcode: Opcode,
    flags: Flags,
}

impl Alike {
    /// Returns whether `wr` is one of them.
    #[inline(always)]
    fn has(&self, wr: &abi::Wr) -> bool {
        self.shape == shape(wr) && self.rule.accepts_another(wr)
    }
}

/// The operation codes by the `opcode` of a request; those of the others are not used.
static OPCODES: [Opcode; 10] = [
    Opcode::WRITE,
    Opcode::WRITE_WITH_IMM,
    Opcode::SEND,
    Opcode::SEND_WITH_IMM,
    Opcode::READ,
    Opcode::COMPARE_SWAP,
    Opcode::FETCH_ADD,
    Opcode::RECV,
    Opcode::RECV,
    Opcode::SEND_WITH_INV,
];

/// Returns the operation code of a request that was checked.
fn opcode_of(wr: &abi::Wr) -> Opcode {
    match OPCODES.get(usize::from(wr.opcode)) {
        Some(opcode) => *opcode,
        None => Opcode::RECV,
    }
}

/// Returns the operation of a request with that code, but for its arguments.
#[inline(always)]
fn operation_of(opcode: Opcode, wr: &abi::Wr) -> Plain {
    Plain::new(opcode, wr.imm_data).on(wr.remote_addr, wr.rkey)
}

/// A request, and those after it.
#[derive(Clone, Copy)]
struct Item<'s> {
    wr: &'s abi::Wr,
    rule: Rule,
    rest: &'s [abi::Wr],
}

/// Consecutive requests for the same queue, and what is looked up or checked once for them.
struct QueueRun<'a> {
    target: Target<'a, Completions>,
    pd: &'a PdObject,
    /// Where the requests complete.
    ring: &'a Ring,
    /// Maximum elements, as the caller counts them.
    max_sge: u32,
    /// Maximum elements of the device. An element that crosses a border between keys becomes
    /// several.
    max_pieces: u32,
    /// Whether each is reported to the owner, whatever its flags say.
    all_signaled: bool,
    /// Whether sends are datagrams.
    is_datagram: bool,
    /// The supported opcodes of send requests: bit `n` stands for opcode `n`.
    opcodes: u64,
    /// The number of the queue pair.
    number: u32,
}

impl<'a> QueueRun<'a> {
    /// Finds the queue of the request `first`. Sleeps.
    ///
    /// Returns [`ENOENT`], or [`ebadfd`] for an object of another type and for a send request to a
    /// shared receive queue. Returns [`eopnotsupp`] for a receive request to a queue pair that has a
    /// shared receive queue, and for an opcode that the device or the type of the queue pair does
    /// not support. Returns [`enotconn`] if the queue does not take requests in its state.
    fn find(ctx: &Ctx<'a>, first: &abi::Wr) -> Result<Self> {
        let (_, is_recv) = key_of(first);
        let run = |target: Target<'a, Completions>, pd, max_sge, max_pieces| Self {
            target,
            pd,
            ring: target.handler().ring(first.opcode),
            max_sge,
            max_pieces,
            all_signaled: is_recv,
            is_datagram: false,
            opcodes: u64::MAX,
            number: target.number(),
        };
        let run = match ctx.table.get(first.qp)? {
            Object::Qp(qp) if is_recv => {
                if qp.has_srq() {
                    return Err(eopnotsupp());
                }
                let (asked, real) = (qp.capacity(), qp.qp().capacity());
                let target = Target::Recv(qp.qp());
                run(target, qp.pd(), asked.max_recv_sge, real.max_recv_sge)
            }
            Object::Qp(qp) => {
                let (asked, real) = (qp.capacity(), qp.qp().capacity());
                let target = Target::Send(qp.qp());
                Self {
                    all_signaled: qp.sig_all(),
                    is_datagram: qp.qp().qp_type() == QpType::Ud,
                    opcodes: ctx.device.send_ops(qp.qp().qp_type()),
                    ..run(target, qp.pd(), asked.max_send_sge, real.max_send_sge)
                }
            }
            Object::Srq(srq) => {
                // Completes requests of failed queue pairs, which makes room.
                srq.srq().reclaim();
                if !is_recv {
                    return Err(ebadfd());
                }
                let target = Target::Shared(srq.srq());
                run(target, srq.pd(), srq.max_sge(), srq.srq().max_sge())
            }
            _ => return Err(ebadfd()),
        };
        run.check_opcode(first.opcode)?;
        if !run.target.is_ready() {
            return Err(enotconn());
        }
        Ok(run)
    }

    /// Returns [`eopnotsupp`] for an unsupported opcode.
    #[inline(always)]
    fn check_opcode(&self, opcode: u8) -> Result {
        if self.opcodes & (1 << (opcode & 63)) == 0 {
            return Err(eopnotsupp());
        }
        Ok(())
    }

    /// Builds the requests, which `wrs` begins with, up to the first one that is refused, and posts
    /// them. The first one is number `first` of what was copied. Returns how many were posted, and the
    /// error of the one after them.
    fn post<'s>(
        &self,
        ctx: &Ctx<'a>,
        wrs: &'s [abi::Wr],
        first: u32,
        scratch: &mut Scratch<'s>,
        cache: &mut Cache<'a, 's>,
    ) -> (u32, Result) {
        let Some(head) = wrs.first() else {
            return (0, Ok(()));
        };
        let start_ns = start_ns();
        let mut run = Run::new(self.target, scratch);
        let mut refused = Self::expect(&mut run, ctx, start_ns);
        let key = key_of(head);
        let (mut built, mut rest, mut alike) = (0u32, wrs, None);
        while let ([wr, after @ ..], true) = (rest, refused.is_ok()) {
            if key_of(wr) != key {
                break;
            }
            refused = self.build(ctx, (wr, rest), &mut run, cache, &mut alike);
            if refused.is_ok() {
                built = built.wrapping_add(1);
            }
            rest = after;
        }
        let mut slots = 0u32;
        let made = &mut slots;
        let base = ctx.base.wrapping_add(first);
        let (command, is_recv) = (ctx.command, key.1);
        let report = Report::new(ctx.in_ring(), self.all_signaled);
        let (posted, result) = run.post(!ctx.in_ring(), move |slot| {
            let Slot { at, is_last, bytes } = slot;
            *made = at.wrapping_add(1);
            let wr = wrs.get(at as usize).unwrap_or(head);
            let limit = TimeLimit::of(wr);
            let report = report.or_signaled(wr.flags & abi::SEND_SIGNALED != 0);
            let ends = limit.is_some_and(|limit| limit.ns != abi::TIMEOUT_INFINITE);
            let (cmd_ref, report) = match command {
                None => (None, report),
                // Those that the device reports.
                Some(command) if is_last || is_recv || ends => {
                    (Some(command.cmd_ref(base.wrapping_add(at))), report)
                }
                // Those that are not reported share the reference of the next one that is.
                Some(_) => (None, report.sharing()),
            };
            Request {
                user_data: wr.user_data,
                opcode: wr.opcode,
                length: bytes,
                limit,
                cmd_ref,
                report,
                start_ns,
            }
        });
        if let (Some(reservation), 1..) = (&mut cache.reservation, built.wrapping_sub(slots)) {
            reservation.give(built.wrapping_sub(slots));
        }
        (posted, result.and(refused))
    }

    /// Prepares `run` for what all requests have.
    fn expect(run: &mut Run<'_, '_, Completions>, ctx: &Ctx<'a>, start_ns: u64) -> Result {
        if ctx.command.is_some() {
            run.expect_references()?;
        }
        if start_ns != 0 {
            run.expect_starts()?;
        }
        Ok(())
    }

    /// Checks the request `wr`, which `rest` begins with, and builds it in `run`. `alike` is what was
    /// found out about earlier requests of the run.
    #[inline(always)]
    fn build<'s>(
        &self,
        ctx: &Ctx<'a>,
        (wr, rest): (&'s abi::Wr, &'s [abi::Wr]),
        run: &mut Run<'_, 's, Completions>,
        cache: &mut Cache<'a, 's>,
        alike: &mut Option<Alike>,
    ) -> Result {
        let known = match *alike {
            Some(known) if known.has(wr) => known,
            _ => match self.look_at(ctx, wr)? {
                (_, Some(new)) => *alike.insert(new),
                (rule, None) => return self.build_other(ctx, Item { wr, rule, rest }, run, cache),
            },
        };
        let (rule, length) = (known.rule, wr.sge.length);
        if u64::from(length) > MAX_MESSAGE {
            return Err(EMSGSIZE);
        }
        let buffer = self.element(ctx, &wr.sge, rule, cache)?;
        let local = match &buffer.memory {
            Some(memory) => memory.local(wr.sge.offset, length),
            None => None,
        };
        let Some(local) = local else {
            return self.build_other(ctx, Item { wr, rule, rest }, run, cache);
        };
        let flags = known.flags.and(self.admit(ctx, wr, rest, run, cache)?);
        let pushed = run.push(operation_of(known.opcode, wr), flags, local);
        if pushed.is_err() {
            Self::give_back(cache);
            return pushed;
        }
        self.note(wr, length);
        Ok(())
    }

    /// Checks the request `wr`, but for its memory and its arguments. Returns the rule of its opcode, and
    /// what others may have in common with it.
    #[inline(never)]
    fn look_at(&self, ctx: &Ctx<'a>, wr: &abi::Wr) -> Result<(Rule, Option<Alike>)> {
        let rule = checked(wr)?;
        if wr.num_sge != 1 || wr.flags & abi::SEND_INLINE != 0 || self.is_special(wr, rule) {
            return Ok((rule, None));
        }
        if u64::from(wr.sge.length) > MAX_MESSAGE {
            return Err(EMSGSIZE);
        }
        self.check_opcode(wr.opcode)?;
        if self.max_sge == 0 {
            return Err(E2BIG);
        }
        let alike = Alike {
            shape: shape(wr),
            rule,
            opcode: opcode_of(wr),
            flags: self.flags(ctx, wr),
        };
        Ok((rule, Some(alike)))
    }

    /// Returns whether a request has operands, a receiver, or should have one.
    #[inline(always)]
    fn is_special(&self, wr: &abi::Wr, rule: Rule) -> bool {
        rule.is_atomic()
            || rule.has_receiver() && (self.is_datagram || wr.args != abi::WrArgs::ZERO)
    }

    /// Does what [`Self::build`] does for a request that does not use one key for one element, and one
    /// that [is special](Self::is_special).
    #[inline(never)]
    fn build_other<'s>(
        &self,
        ctx: &Ctx<'a>,
        item: Item<'s>,
        run: &mut Run<'_, 's, Completions>,
        cache: &mut Cache<'a, 's>,
    ) -> Result {
        let wr = item.wr;
        let sges = cache.outside.sges_of(wr);
        if let [sge] = sges {
            if u64::from(sge.length) > MAX_MESSAGE {
                return Err(EMSGSIZE);
            }
        }
        self.check_opcode(wr.opcode)?;
        let length = self.check_memory(ctx, item, sges, cache)?;
        let operation = self.operation(ctx.table, item, length)?;
        let needed = self.admit(ctx, wr, item.rest, run, cache)?;
        let flags = self.flags(ctx, wr).and(needed);
        let pushed = if wr.flags & abi::SEND_INLINE != 0 {
            let inline = cache.outside.inline(length);
            read_buffers(ctx.table, sges, inline)
                .and_then(|()| run.push_other(&operation, flags, Data::Inline(inline)))
        } else {
            let mut locals = sges
                .iter()
                .filter(|sge| sge.length > 0)
                .filter_map(|sge| Some((ctx.table.buffer(sge.buffer).ok()?, sge)))
                .flat_map(|(buffer, sge)| buffer.locals(sge.offset, sge.length));
            run.push_other(&operation, flags, Data::Many(&mut locals))
        };
        if pushed.is_err() {
            Self::give_back(cache);
            return pushed;
        }
        self.note(wr, length);
        Ok(())
    }

    /// Checks one element of a request.
    ///
    /// Returns [`ENOENT`] or [`ebadfd`] for a handle that is not a buffer, [`EXDEV`] for a buffer of
    /// another protection domain, [`ERANGE`] for bytes outside the buffer, and [`EACCES`] if the
    /// buffer is read-only and the request writes.
    #[inline(always)]
    fn element<'c>(
        &self,
        ctx: &Ctx<'a>,
        sge: &abi::Sge,
        rule: Rule,
        cache: &'c mut Cache<'a, '_>,
    ) -> Result<&'c Known<'a>> {
        let known = cache.buffer(ctx.table, sge.buffer)?;
        if !core::ptr::eq(known.pd, self.pd) {
            return Err(EXDEV);
        }
        let end = sge.offset.checked_add(sge.length.into()).ok_or(ERANGE)?;
        if end > known.length {
            return Err(ERANGE);
        }
        if rule.writes_local() && known.is_read_only {
            return Err(EACCES);
        }
        Ok(known)
    }

    /// Checks the memory of a request with the elements `sges`, and returns its bytes.
    ///
    /// Returns [`E2BIG`] for too many elements. The device limits those of a read: erdma takes one
    /// (drivers/infiniband/hw/erdma/erdma_qp.c:erdma_push_one_sqe). An atomic has one key: drivers
    /// pass the first part alone, and irdma without its length, so that the adapter would write behind
    /// it (drivers/infiniband/hw/irdma/verbs.c:irdma_post_send). Returns [`EMSGSIZE`] if the message is
    /// too long, or has too much inline data, and the errors of [`Self::element`].
    fn check_memory(
        &self,
        ctx: &Ctx<'a>,
        item: Item<'_>,
        sges: &[abi::Sge],
        cache: &mut Cache<'a, '_>,
    ) -> Result<u32> {
        let is_inline = item.wr.flags & abi::SEND_INLINE != 0;
        if !is_inline && sges.len() > self.max_sge as usize {
            return Err(E2BIG);
        }
        let (mut length, mut pieces) = (0u32, 0u64);
        for sge in sges {
            length = length.checked_add(sge.length).ok_or(EMSGSIZE)?;
            if is_inline && sge.buffer == 0 {
                continue;
            }
            let known = self.element(ctx, sge, item.rule, cache)?;
            pieces = pieces.saturating_add(known.buffer.pieces(sge.offset, sge.length));
        }
        let max_pieces = match item.wr.opcode {
            _ if item.rule.is_atomic() => 1,
            abi::WR_RDMA_READ => self.max_pieces.min(ctx.device.attributes.max_sge_rd),
            _ => self.max_pieces,
        };
        if !is_inline && pieces > max_pieces.into() {
            return Err(E2BIG);
        }
        if is_inline && length > self.target.max_inline() {
            return Err(EMSGSIZE);
        }
        Ok(length)
    }

    /// Reserves room in the completion queue for the request `wr`, which `rest` begins with. Returns the
    /// flag that it needs if the device must report it. Sleeps for the first one with a time limit. From
    /// here on, the run owns the room, or [`Self::give_back`] returns it.
    #[inline(always)]
    fn admit(
        &self,
        ctx: &Ctx<'a>,
        wr: &abi::Wr,
        rest: &[abi::Wr],
        run: &mut Run<'_, '_, Completions>,
        cache: &mut Cache<'a, '_>,
    ) -> Result<Flags> {
        if wr.flags & abi::REQUEST_TIMEOUT != 0 {
            run.expect_deadlines()?;
        }
        let (reservation, in_ring) = (&mut cache.reservation, ctx.in_ring());
        let must_report = CqReservation::take(reservation, self.ring, in_ring, rest)?;
        Ok(Flags::SIGNALED.only_if(must_report && in_ring))
    }

    /// Returns the flags of a request, but for what [`Self::admit`] returns.
    fn flags(&self, ctx: &Ctx<'a>, wr: &abi::Wr) -> Flags {
        let flag = |asked, flag: Flags| flag.only_if(wr.flags & asked != 0);
        // A command of io_uring completes when the device has completed all requests. The last
        // one of consecutive requests for a queue reports those before it.
        let is_signaled = wr.flags & abi::SEND_SIGNALED != 0 || self.all_signaled;
        flag(abi::SEND_FENCE, Flags::FENCE)
            .and(flag(abi::SEND_SOLICITED, Flags::SOLICITED))
            .and(Flags::SIGNALED.only_if(is_signaled && ctx.in_ring()))
    }

    /// Returns the room of a request that was not built.
    #[cold]
    fn give_back(cache: &mut Cache<'a, '_>) {
        if let Some(reservation) = &mut cache.reservation {
            reservation.give(1);
        }
    }

    /// Traces a request that is about to be posted, and prints a debug message.
    #[inline(always)]
    fn note(&self, wr: &abi::Wr, length: u32) {
        trace::post(self.number, wr.user_data, wr.opcode.into(), length);
        ulp_debug!(
            "qp {}: post user_data {:#x} opcode {} length {}\n",
            // Copies: references would keep these in memory.
            { self.number },
            { wr.user_data },
            { wr.opcode },
            { length }
        );
    }

    /// Returns the operation of a request of `length` bytes. Fails as [`Self::datagram`] does, and
    /// with [`EINVAL`] if a message names a receiver.
    fn operation<'t>(
        &self,
        table: &'t ObjectTable,
        item: Item<'_>,
        length: u32,
    ) -> Result<Operation<'t>> {
        let Item { wr, rule, .. } = item;
        let operation = Operation::from(operation_of(opcode_of(wr), wr));
        if rule.is_atomic() {
            let abi::WrAtomic { compare_add, swap } = wr.args.into();
            return Ok(operation.with([compare_add, swap]));
        }
        if !rule.has_receiver() {
            return Ok(operation);
        }
        if self.is_datagram {
            return self.datagram(table, operation, wr, length);
        }
        if wr.args != abi::WrArgs::ZERO {
            return Err(EINVAL);
        }
        Ok(operation)
    }

    /// Returns the `operation` of `length` bytes as a datagram.
    ///
    /// Returns [`ENOENT`] without a receiver, [`ERANGE`] for a queue pair number of more than 24 bits,
    /// and [`EMSGSIZE`] if the datagram is longer than a packet.
    #[inline(never)]
    fn datagram<'t>(
        &self,
        table: &'t ObjectTable,
        operation: Operation<'t>,
        wr: &abi::Wr,
        length: u32,
    ) -> Result<Operation<'t>> {
        let Target::Send(qp) = self.target else {
            return Err(ebadfd());
        };
        let to = abi::WrUd::from(wr.args);
        if wr.args == abi::WrArgs::ZERO {
            return Err(ENOENT);
        }
        let ah = table.ah(to.ah)?;
        if to.qp_num > 0xff_ffff {
            return Err(ERANGE);
        }
        // Devices drop longer datagrams and report success: C10-93.1.1, rxe_requester().
        if length > ah.ah().max_datagram() {
            return Err(EMSGSIZE);
        }
        Ok(operation.to(ah.ah(), to.qp_num, qp.qkey_for(to.qkey)))
    }
}

/// Copies the inline data of a request that is in buffers to `inline`. What is in user memory was
/// copied before.
fn read_buffers(table: &ObjectTable, sges: &[abi::Sge], inline: &mut [u8]) -> Result {
    let mut rest = inline;
    for sge in sges.iter().filter(|sge| sge.buffer != 0) {
        let (part, tail) = rest
            .split_at_mut_checked(sge.length as usize)
            .ok_or(EMSGSIZE)?;
        let offset = usize::try_from(sge.offset).map_err(|_| ERANGE)?;
        let pages = table.buffer(sge.buffer)?.pages();
        if pages.device().is_some() {
            return Err(eopnotsupp());
        }
        pages.read(offset, part)?;
        rest = tail;
    }
    Ok(())
}
