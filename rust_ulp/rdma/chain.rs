// SPDX-License-Identifier: GPL-2.0

//! Chains: requests that are put together outside of any lock, and posted in one go.

use super::{
    ah::Ah,
    pd::Pd,
    qp::Qp,
    qp_attr::State,
    queue::{
        Queue,
        Wr,
        NONE, //
    },
    request::{
        QueueKind,
        WrContext,
        WrHandler, //
    },
    srq::Srq,
    wr::{
        Flags,
        Local,
        Operation,
        Tail, //
    }, //
};
use crate::{
    bindings,
    kernel::errno::enotconn, //
};
use core::cell::UnsafeCell;
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::Arc, //
};

/// Where requests go.
pub(crate) enum Target<H: WrHandler> {
    /// The send queue of a queue pair.
    Send(Arc<Qp<H>>),
    /// The receive queue of a queue pair.
    Recv(Arc<Qp<H>>),
    /// A shared receive queue.
    Shared(Arc<Srq<H>>),
}

/// A [`Target`] that is borrowed.
pub(crate) enum TargetRef<'a, H: WrHandler> {
    /// The send queue of a queue pair.
    Send(&'a Arc<Qp<H>>),
    /// The receive queue of a queue pair.
    Recv(&'a Arc<Qp<H>>),
    /// A shared receive queue.
    Shared(&'a Arc<Srq<H>>),
}

impl<H: WrHandler> Clone for TargetRef<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: WrHandler> Copy for TargetRef<'_, H> {}

impl<H: WrHandler> PartialEq for TargetRef<'_, H> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Send(a), Self::Send(b)) | (Self::Recv(a), Self::Recv(b)) => Arc::ptr_eq(a, b),
            (Self::Shared(a), Self::Shared(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl<H: WrHandler> Target<H> {
    /// The same, borrowed.
    pub(crate) fn as_ref(&self) -> TargetRef<'_, H> {
        match self {
            Self::Send(qp) => TargetRef::Send(qp),
            Self::Recv(qp) => TargetRef::Recv(qp),
            Self::Shared(srq) => TargetRef::Shared(srq),
        }
    }

    /// Hands the requests that begin with `first` to the device.
    ///
    /// # Safety
    ///
    /// They are requests of that kind, linked, the last one ends the list; they, their elements and
    /// their inline data stay as they are until the call returns. Each has a `wr_cqe` and a place
    /// in the completion queue. `bad` is valid.
    unsafe fn post(&self, first: *mut Wr, bad: *mut *const c_void) -> c_int {
        // SAFETY: The queue pairs and queues are valid; for the rest see the requirements.
        unsafe {
            match self {
                Self::Send(qp) => {
                    bindings::rust_ulp_post_send(qp.as_raw(), first.cast(), bad.cast())
                }
                Self::Recv(qp) => {
                    bindings::rust_ulp_post_recv(qp.as_raw(), first.cast(), bad.cast())
                }
                Self::Shared(srq) => {
                    bindings::rust_ulp_post_srq_recv(srq.as_raw(), first.cast(), bad.cast())
                }
            }
        }
    }
}

impl<'a, H: WrHandler> TargetRef<'a, H> {
    /// A reference of one's own.
    pub(crate) fn to_owned(self) -> Target<H> {
        match self {
            Self::Send(qp) => Target::Send(qp.clone()),
            Self::Recv(qp) => Target::Recv(qp.clone()),
            Self::Shared(srq) => Target::Shared(srq.clone()),
        }
    }

    fn queue(self) -> &'a Queue<H::Request> {
        match self {
            Self::Send(qp) => qp.queue(QueueKind::Send),
            Self::Recv(qp) => qp.queue(QueueKind::Recv),
            Self::Shared(srq) => srq.queue(),
        }
    }

    fn handler(self) -> &'a H {
        match self {
            Self::Send(qp) | Self::Recv(qp) => qp.handler(),
            Self::Shared(srq) => srq.handler(),
        }
    }

    /// Returns the protection domain, whose memory and addresses the requests may use.
    fn pd(self) -> &'a Arc<Pd> {
        match self {
            Self::Send(qp) | Self::Recv(qp) => qp.pd(),
            Self::Shared(srq) => srq.pd(),
        }
    }

    /// The number of the queue pair; 0 for a shared receive queue.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Send(qp) | Self::Recv(qp) => qp.number(),
            Self::Shared(_) => 0,
        }
    }

    /// Which queue of a queue pair it is.
    pub(crate) fn kind(self) -> QueueKind {
        match self {
            Self::Send(_) => QueueKind::Send,
            Self::Recv(_) | Self::Shared(_) => QueueKind::Recv,
        }
    }

    /// Whether it is in a state that takes requests.
    pub(crate) fn is_ready(self) -> bool {
        match self {
            Self::Send(qp) => qp.state() >= State::Rts,
            Self::Recv(qp) => qp.state() >= State::Init,
            Self::Shared(_) => true,
        }
    }
}

/// Data that goes with a request.
pub(crate) struct Inline<'a> {
    /// Bytes.
    pub(crate) length: usize,
    /// Puts them where it is told, that many; called once. What it fails with, pushing fails with.
    pub(crate) copy: &'a mut dyn FnMut(&mut [u8]) -> Result,
}

/// Requests for one queue, in order, not yet posted.
///
/// Dropping it cancels them.
///
/// # Invariants
///
/// Owns the slots of the list from `first` to `last`, which has `count` of them, and those of the
/// list from `spare` on.
pub(crate) struct Chain<H: WrHandler> {
    target: Target<H>,
    first: u32,
    last: u32,
    count: u32,
    /// Slots that were taken ahead.
    spare: u32,
    /// How many requests are still to come, as far as is known.
    expected: u32,
    /// Whether some have a deadline.
    timed: bool,
}

impl<H: WrHandler> Chain<H> {
    /// An empty chain, which about `expected` requests are for: slots are taken ahead for these.
    pub(crate) fn new(target: Target<H>, expected: u32) -> Self {
        // INVARIANT: It owns nothing.
        Self {
            target,
            first: NONE,
            last: NONE,
            count: 0,
            spare: NONE,
            expected,
            timed: false,
        }
    }

    /// Where it goes.
    pub(crate) fn target(&self) -> TargetRef<'_, H> {
        self.target.as_ref()
    }

    /// Appends a send request that reads or writes `locals`.
    ///
    /// `inline` is data that goes into the slot now, instead of `locals`. [`EAGAIN`] when the queue is full,
    /// [`E2BIG`] for too many `locals`, [`EMSGSIZE`] for too much inline data, [`EINVAL`] when it is
    /// a datagram and the queue pair's type is another, or the other way round, [`EXDEV`] when memory
    /// or the address belongs to another protection domain; then `discard` was called for `request`.
    /// May sleep.
    pub(crate) fn push(
        &mut self,
        operation: &Operation,
        flags: Flags,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        request: H::Request,
    ) -> Result {
        let is_inline = inline.is_some();
        let fill = |cqe: *mut bindings::ib_cqe, list: *mut bindings::ib_sge, count: u32| {
            let mut wr = bindings::ib_send_wr {
                sg_list: list,
                num_sge: count as i32,
                send_flags: (if flags.fence {
                    bindings::IB_SEND_FENCE
                } else {
                    0
                }) | (if flags.signaled {
                    bindings::IB_SEND_SIGNALED
                } else {
                    0
                }) | (if flags.solicited {
                    bindings::IB_SEND_SOLICITED
                } else {
                    0
                }) | (if is_inline {
                    bindings::IB_SEND_INLINE
                } else {
                    0
                }),
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = cqe;
            match *operation {
                Operation::Write {
                    remote_addr,
                    rkey,
                    imm,
                } => {
                    wr.opcode = bindings::IB_WR_RDMA_WRITE;
                    if let Some(imm) = imm {
                        wr.opcode = bindings::IB_WR_RDMA_WRITE_WITH_IMM;
                        wr.ex.imm_data = imm.to_be();
                    }
                    Wr {
                        rdma: bindings::ib_rdma_wr {
                            wr,
                            remote_addr,
                            rkey,
                        },
                    }
                }
                Operation::Read { remote_addr, rkey } => {
                    wr.opcode = bindings::IB_WR_RDMA_READ;
                    Wr {
                        rdma: bindings::ib_rdma_wr {
                            wr,
                            remote_addr,
                            rkey,
                        },
                    }
                }
                Operation::Send(tail) => {
                    wr.opcode = match tail {
                        Tail::None => bindings::IB_WR_SEND,
                        Tail::Imm(imm) => {
                            wr.ex.imm_data = imm.to_be();
                            bindings::IB_WR_SEND_WITH_IMM
                        }
                        Tail::Invalidate(rkey) => {
                            wr.ex.invalidate_rkey = rkey;
                            bindings::IB_WR_SEND_WITH_INV
                        }
                    };
                    Wr { send: wr }
                }
                Operation::Datagram {
                    ref ah,
                    qp_num,
                    qkey,
                    imm,
                } => {
                    wr.opcode = bindings::IB_WR_SEND;
                    if let Some(imm) = imm {
                        wr.opcode = bindings::IB_WR_SEND_WITH_IMM;
                        wr.ex.imm_data = imm.to_be();
                    }
                    Wr {
                        ud: bindings::ib_ud_wr {
                            wr,
                            ah: ah.as_raw(),
                            remote_qpn: qp_num,
                            remote_qkey: qkey,
                            ..Default::default()
                        },
                    }
                }
                Operation::CompareSwap {
                    remote_addr,
                    rkey,
                    compare,
                    swap,
                } => {
                    wr.opcode = bindings::IB_WR_ATOMIC_CMP_AND_SWP;
                    Wr {
                        atomic: bindings::ib_atomic_wr {
                            wr,
                            remote_addr,
                            compare_add: compare,
                            swap,
                            rkey,
                            ..Default::default()
                        },
                    }
                }
                Operation::FetchAdd {
                    remote_addr,
                    rkey,
                    add,
                } => {
                    wr.opcode = bindings::IB_WR_ATOMIC_FETCH_AND_ADD;
                    Wr {
                        atomic: bindings::ib_atomic_wr {
                            wr,
                            remote_addr,
                            compare_add: add,
                            rkey,
                            ..Default::default()
                        },
                    }
                }
            }
        };
        let ah = match operation {
            Operation::Datagram { ah, .. } => Some(ah),
            _ => None,
        };
        // A datagram needs its address, and other requests have no use for one.
        let fits = match &self.target {
            Target::Send(qp) => qp.note_address(ah),
            Target::Recv(_) | Target::Shared(_) => false,
        };
        if !fits {
            self.target().handler().discard(request);
            return Err(EINVAL);
        }
        if ah.is_some_and(|ah| !Arc::ptr_eq(ah.pd(), self.target().pd())) {
            self.target().handler().discard(request);
            return Err(EXDEV);
        }
        self.push_slot(locals, inline, flags.signaled, ah.cloned(), request, fill)
    }

    /// Appends a receive request that fills `locals`. Errors as for [`Self::push`]. May sleep.
    pub(crate) fn push_recv(
        &mut self,
        locals: impl Iterator<Item = Local>,
        request: H::Request,
    ) -> Result {
        if self.target().kind() != QueueKind::Recv {
            self.target().handler().discard(request);
            return Err(EINVAL);
        }
        self.push_slot(locals, None, true, None, request, |cqe, list, count| {
            let mut wr = bindings::ib_recv_wr {
                sg_list: list,
                num_sge: count as i32,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = cqe;
            Wr { recv: wr }
        })
    }

    /// Appends a request that registers `mr`, which the request must hold. May sleep.
    ///
    /// # Safety
    ///
    /// `mr` is mapped, and lives until the request is done.
    pub(super) unsafe fn push_register(
        &mut self,
        mr: *mut bindings::ib_mr,
        key: u32,
        access: u32,
        request: H::Request,
    ) -> Result {
        let none = core::iter::empty();
        self.push_slot(none, None, true, None, request, |cqe, _, _| {
            let mut wr = bindings::ib_send_wr {
                opcode: bindings::IB_WR_REG_MR,
                send_flags: bindings::IB_SEND_SIGNALED,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = cqe;
            Wr {
                reg: bindings::ib_reg_wr {
                    wr,
                    mr,
                    key,
                    access: access as i32,
                },
            }
        })
    }

    /// Appends a request that invalidates the key `rkey`. May sleep.
    pub(super) fn push_invalidate(&mut self, rkey: u32, request: H::Request) -> Result {
        let none = core::iter::empty();
        self.push_slot(none, None, true, None, request, |cqe, _, _| {
            let mut wr = bindings::ib_send_wr {
                opcode: bindings::IB_WR_LOCAL_INV,
                send_flags: bindings::IB_SEND_SIGNALED,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = cqe;
            wr.ex.invalidate_rkey = rkey;
            Wr { send: wr }
        })
    }

    fn push_slot(
        &mut self,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        signaled: bool,
        ah: Option<Arc<Ah>>,
        request: H::Request,
        fill: impl FnOnce(*mut bindings::ib_cqe, *mut bindings::ib_sge, u32) -> Wr,
    ) -> Result {
        let target = self.target.as_ref();
        let queue = target.queue();
        if self.spare == NONE {
            // INVARIANT: They were just taken.
            self.spare = queue.take(self.expected.max(1));
        }
        let index = self.spare;
        // SAFETY: By the type invariant the chain owns it, if there is one.
        let Some(content) = (unsafe { queue.content(index) }) else {
            target.handler().discard(request);
            return Err(EAGAIN);
        };
        // INVARIANT: It leaves that list.
        self.spare = content.next;
        self.expected = self.expected.saturating_sub(1);
        let result = Self::fill_slot(target, index, locals, inline, signaled, fill);
        // SAFETY: The slot was taken above and is in no list; the reference above is not used any more.
        let content = unsafe { queue.content(index) };
        match (result, content) {
            (Ok(()), Some(content)) => {
                request.placed(index);
                self.timed |= request.timeout_ns() != 0;
                content.request = Some(request);
                content.ah = ah;
                content.next = NONE;
                // SAFETY: By the type invariant the chain owns its last slot.
                match unsafe { queue.content(self.last) } {
                    Some(last) => last.next = index,
                    None => self.first = index,
                }
                // INVARIANT: The slot is at the end of the list.
                self.last = index;
                self.count = self.count.wrapping_add(1);
                Ok(())
            }
            (result, _) => {
                target.handler().discard(request);
                // SAFETY: The slot was taken above and is not used after this.
                unsafe { queue.put(&mut queue.lists.lock(), index) };
                result
            }
        }
    }

    /// Makes slot `index`, which the caller owns, hold a request.
    fn fill_slot(
        target: TargetRef<'_, H>,
        index: u32,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        signaled: bool,
        fill: impl FnOnce(*mut bindings::ib_cqe, *mut bindings::ib_sge, u32) -> Wr,
    ) -> Result {
        let queue = target.queue();
        // SAFETY: The caller owns the slot.
        unsafe { queue.clear(index) };
        let cqe = queue.cqe(index).ok_or(EINVAL)?;
        let (keeps, sges) = queue.pieces(index);
        // Of all elements, not of the first one.
        let list = UnsafeCell::raw_get(sges.as_ptr());
        let mut count = 0u32;
        let mut pieces = keeps.iter().zip(sges);
        if let Some(data) = inline {
            let start = (index as usize).saturating_mul(queue.max_inline as usize);
            let room = queue
                .inline
                .get(start..start.saturating_add(queue.max_inline as usize))
                .unwrap_or(&[]);
            let room = room.get(..data.length).ok_or(EMSGSIZE)?;
            let first = UnsafeCell::raw_get(room.as_ptr());
            // SAFETY: The caller owns the slot and its part of the array: this is the only
            // reference to these bytes, which are initialised.
            (data.copy)(unsafe { core::slice::from_raw_parts_mut(first, room.len()) })?;
            if !room.is_empty() {
                let (_, sge) = pieces.next().ok_or(E2BIG)?;
                let raw = bindings::ib_sge {
                    // Drivers take the address of inline data for one of the kernel.
                    addr: first as u64,
                    length: room.len() as u32,
                    lkey: 0,
                };
                // SAFETY: The caller owns the slot and its part of the array.
                unsafe { *sge.get() = raw };
                count = 1;
            }
        } else {
            for local in locals {
                let (keep, sge) = pieces.next().ok_or(E2BIG)?;
                if !Arc::ptr_eq(local.pd(), target.pd()) {
                    return Err(EXDEV);
                }
                // SAFETY: The caller owns the slot and its parts of the arrays.
                unsafe {
                    *sge.get() = local.to_raw();
                    *keep.get() = Some(local);
                }
                count = count.wrapping_add(1);
            }
        }
        let wr = fill(cqe, list, count);
        // SAFETY: The caller owns the slot.
        let content = unsafe { queue.content(index) }.ok_or(EINVAL)?;
        content.wr = wr;
        content.signaled = signaled;
        content.canceled = false;
        content.deadline = 0;
        Ok(())
    }

    /// Posts the chain; `before` is called for each request, in order, before the device has any.
    ///
    /// Returns how many the device took, and the error with which it refused the next one: then
    /// that one and those after it are cancelled. [`enotconn`] when the queue pair is not in a
    /// state that takes them, with nothing posted. Does not sleep, but for cancelling.
    pub(crate) fn post(mut self, mut before: impl FnMut(&H::Request)) -> (u32, Result) {
        let target = self.target.as_ref();
        let queue = target.queue();
        if self.count == 0 {
            return (0, Ok(()));
        }
        let mut lists = queue.lists.lock();
        if lists.closed || !target.is_ready() {
            drop(lists);
            return (0, Err(enotconn()));
        }

        // Link the requests, and see to it that the queue cannot fill up with silent ones.
        let half = (queue.depth() / 2).max(1);
        let (mut at, mut before_it) = (self.first, lists.last);
        let mut earliest = u64::MAX;
        // SAFETY: By the type invariant the chain owns the slots of its list.
        while let Some(content) = unsafe { queue.content(at) } {
            if let Some(request) = &content.request {
                before(request);
                if self.timed {
                    content.deadline = Queue::<H::Request>::deadline(request.timeout_ns());
                    if content.deadline != 0 {
                        earliest = earliest.min(content.deadline);
                    }
                }
            }
            let next = content.next;
            queue.set_number(&mut lists, at);
            content.prev = before_it;
            before_it = at;
            let next_wr = queue.wr(next);
            match target.kind() {
                QueueKind::Recv => {
                    // A receive queue's slots hold receive requests.
                    content.wr.recv.next = next_wr.cast();
                }
                QueueKind::Send => {
                    lists.silent = lists.silent.wrapping_add(1);
                    // A request with a deadline says when it is done.
                    let force = lists.silent >= half || content.deadline != 0;
                    if content.signaled || force {
                        lists.silent = 0;
                    }
                    // Every kind of send request begins with the general part.
                    content.wr.send.next = next_wr.cast();
                    if force {
                        // SAFETY: As said, the general part is there.
                        unsafe { content.wr.send.send_flags |= bindings::IB_SEND_SIGNALED };
                    }
                }
            }
            at = next;
        }

        // Under the lock, so that the list of posted slots is in the order of posting.
        let tail_before = lists.last;
        let first_wr = queue.wr(self.first);
        // SAFETY: The list is not empty, so its last slot is posted, and the lock is held.
        match unsafe { queue.content(lists.last) } {
            Some(last) => last.next = self.first,
            None => lists.first = self.first,
        }
        lists.last = self.last;
        lists.posted = lists.posted.wrapping_add(self.count);

        // A driver that refuses all of it may leave this alone.
        let mut bad: *const c_void = first_wr.cast_const().cast();
        let bad_out: *mut *const c_void = &mut bad;
        // SAFETY: The requests are linked, the last one ends the list; they, their elements and
        // their inline data live in slots that nobody touches until the call returns. Each has a
        // `wr_cqe` and a place in the completion queue.
        let err = unsafe { self.target.post(first_wr, bad_out) };
        lists.used = true;
        queue.watch(&mut lists, earliest);
        if err == 0 {
            // INVARIANT: The slots are the queue's now.
            let count = core::mem::replace(&mut self.count, 0);
            return (count, Ok(()));
        }

        // The device took those before `bad`: cut the list there and take the rest back.
        let mut taken = 0u32;
        let mut last_taken = tail_before;
        let mut at = self.first;
        // SAFETY: The slots are still in the list, and the lock is held: those that the device
        // took cannot complete before it is released.
        while let Some(content) = unsafe { queue.content(at) } {
            if queue.wr(at).cast_const().cast() == bad {
                break;
            }
            taken = taken.wrapping_add(1);
            last_taken = at;
            at = content.next;
        }
        lists.last = last_taken;
        // SAFETY: As above.
        match unsafe { queue.content(last_taken) } {
            Some(last) => last.next = NONE,
            None => lists.first = NONE,
        }
        lists.posted = lists
            .posted
            .saturating_sub(self.count.saturating_sub(taken));
        let mut rest = at;
        // SAFETY: These slots the device did not take; they are in no list but the chain's.
        while let Some(content) = unsafe { queue.content(rest) } {
            queue.clear_number(&mut lists, rest);
            rest = content.next;
        }
        drop(lists);
        // INVARIANT: What is left of the list is ours.
        self.first = at;
        self.count = self.count.saturating_sub(taken);
        (taken, to_result(err))
    }
}

impl<H: WrHandler> Drop for Chain<H> {
    fn drop(&mut self) {
        let target = self.target.as_ref();
        let queue = target.queue();
        while self.count > 0 {
            self.count = self.count.wrapping_sub(1);
            let index = self.first;
            // SAFETY: By the type invariant the chain owns the slot.
            let Some(content) = (unsafe { queue.content(index) }) else {
                return;
            };
            self.first = content.next;
            if let Some(request) = &mut content.request {
                target.handler().discard(request.detach());
            }
            // SAFETY: The slot is not used after this.
            unsafe { queue.put(&mut queue.lists.lock(), index) };
        }
        // SAFETY: By the type invariant the chain owns them, and it goes.
        unsafe { queue.put_all(self.spare) };
    }
}
