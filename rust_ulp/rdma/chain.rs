// SPDX-License-Identifier: GPL-2.0

//! Chains: requests that are built without a lock, and posted together.

use super::{
    ah::Ah,
    pd::Pd,
    qp::Qp,
    qp_attr::State,
    queue::{
        Lists,
        Queue,
        SlotParts,
        SlotRef,
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
        Wr, //
    }, //
};
use crate::{
    bindings,
    kernel::errno::enotconn,
    logic::unsignaled::Unsignaled, //
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

/// The queue that requests are posted to.
pub(crate) enum Target<H: WrHandler> {
    /// The send queue of a queue pair.
    Send(Arc<Qp<H>>),
    /// The receive queue of a queue pair.
    Recv(Arc<Qp<H>>),
    /// A shared receive queue.
    Shared(Arc<Srq<H>>),
}

/// A borrowed [`Target`].
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
    /// Borrows the target.
    pub(crate) fn as_ref(&self) -> TargetRef<'_, H> {
        match self {
            Self::Send(qp) => TargetRef::Send(qp),
            Self::Recv(qp) => TargetRef::Recv(qp),
            Self::Shared(srq) => TargetRef::Shared(srq),
        }
    }

    /// Posts the requests that begin with `first`. Returns the driver's error.
    ///
    /// # Safety
    ///
    /// - The requests are of the kind of the target, linked, and the last one ends the list.
    /// - They, their elements and their inline data do not change until the call returns.
    /// - Each has a `wr_cqe` and a place in the completion queue.
    /// - `bad` is valid.
    unsafe fn post(&self, first: *mut Wr, bad: *mut *const c_void) -> c_int {
        // SAFETY: The queue pairs and queues are valid. For the rest see the requirements.
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
    /// Returns an owned target.
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

    /// Returns the number of the queue pair; 0 for a shared receive queue.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Send(qp) | Self::Recv(qp) => qp.number(),
            Self::Shared(_) => 0,
        }
    }

    /// Returns which queue of a queue pair the target is.
    pub(crate) fn kind(self) -> QueueKind {
        match self {
            Self::Send(_) => QueueKind::Send,
            Self::Recv(_) | Self::Shared(_) => QueueKind::Recv,
        }
    }

    /// Returns whether the target is in a state that takes requests.
    pub(crate) fn is_ready(self) -> bool {
        match self {
            Self::Send(qp) => qp.state() >= State::Rts,
            Self::Recv(qp) => qp.state() >= State::Init,
            Self::Shared(_) => true,
        }
    }
}

/// Inline data of a request.
///
/// ```
/// fn with_greeting(post: impl FnOnce(Inline<'_>) -> Result) -> Result {
///     post(Inline { length: 5, copy: &mut |slot| Ok(slot.copy_from_slice(b"hello")) })
/// }
/// ```
pub(crate) struct Inline<'a> {
    /// The number of bytes.
    pub(crate) length: usize,
    /// Copies that many bytes to its argument. Called once; pushing fails with its error.
    pub(crate) copy: &'a mut dyn FnMut(&mut [u8]) -> Result,
}

/// Requests for one queue, in order, that are not posted yet.
///
/// Dropping a chain discards its requests.
///
/// ```
/// # use core::iter::{empty, once};
/// fn write_and_send(qp: Arc<qp::Qp<waiter::WaitHandler>>, local: wr::Local, peer: &mr::Mr,
///                   [first, second]: [Arc<waiter::Waiter>; 2]) -> Result {
///     let flags = wr::Flags { signaled: true, ..wr::Flags::default() };
///     let mut chain = Chain::new(Target::Send(qp), 2);
///     chain.push(&wr::Operation::write_to(peer), flags, once(local), None, first)?;
///     chain.push(&wr::Operation::Send(wr::Tail::None), flags, empty(), None, second)?;
///     let (_posted, result) = chain.post(|_request| ());
///     result
/// }
/// ```
///
/// # Invariants
///
/// The chain owns the `count` slots of the list from `first` to `last`, and the slots of the list
/// from `spare` on.
pub(crate) struct Chain<H: WrHandler> {
    target: Target<H>,
    first: u32,
    last: u32,
    count: u32,
    /// Slots that were taken ahead.
    spare: u32,
    /// How many requests the caller still expects to push.
    expected: u32,
    /// Whether a request has a timeout.
    timed: bool,
}

impl<H: WrHandler> Chain<H> {
    /// Creates an empty chain, and takes slots ahead for about `expected` requests.
    pub(crate) fn new(target: Target<H>, expected: u32) -> Self {
        // INVARIANT: The chain owns no slot.
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

    /// Returns the target.
    pub(crate) fn target(&self) -> TargetRef<'_, H> {
        self.target.as_ref()
    }

    /// Appends a send request that reads or writes `locals`. May sleep.
    ///
    /// `inline` is data that is copied into the slot now, instead of `locals`.
    ///
    /// When it fails, `discard` was called for `request`. It fails with
    ///
    /// - [`EAGAIN`] when the queue is full,
    /// - [`ENOMEM`] when there is no memory for its deadline,
    /// - [`E2BIG`] for too many `locals`, [`EMSGSIZE`] for too much inline data,
    /// - [`EINVAL`] for a datagram on a connected queue pair, and the other way round,
    /// - [`EXDEV`] when the memory or the address belongs to another protection domain.
    pub(crate) fn push(
        &mut self,
        operation: &Operation,
        flags: Flags,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        request: H::Request,
    ) -> Result {
        let ah = operation.ah();
        if let Err(err) = self.check_address(ah) {
            self.target().handler().discard(request);
            return Err(err);
        }
        let send_flags = flags.to_raw(inline.is_some());
        let fill = |parts: SlotParts| operation.to_raw(parts.send_wr(send_flags));
        self.push_slot(locals, inline, flags.signaled, ah.cloned(), request, fill)
    }

    /// Checks that a send request fits the target: datagrams have an address of its protection
    /// domain, other requests have none.
    fn check_address(&self, ah: Option<&Arc<Ah>>) -> Result {
        match &self.target {
            Target::Send(qp) if qp.note_address(ah) => (),
            _ => return Err(EINVAL),
        }
        match ah {
            Some(ah) if !Arc::ptr_eq(ah.pd(), self.target().pd()) => Err(EXDEV),
            _ => Ok(()),
        }
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
        self.push_slot(locals, None, true, None, request, |parts| {
            let mut wr = bindings::ib_recv_wr {
                sg_list: parts.sg_list,
                num_sge: parts.num_sge,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = parts.cqe;
            Wr { recv: wr }
        })
    }

    /// Appends a request that registers `mr`. May sleep.
    ///
    /// # Safety
    ///
    /// `mr` is mapped, belongs to the protection domain of the queue pair, and lives until the
    /// request is done.
    pub(super) unsafe fn push_register(
        &mut self,
        mr: *mut bindings::ib_mr,
        key: u32,
        access: u32,
        request: H::Request,
    ) -> Result {
        let none = core::iter::empty();
        self.push_slot(none, None, true, None, request, |parts| {
            let mut wr = parts.send_wr(bindings::IB_SEND_SIGNALED);
            wr.opcode = bindings::IB_WR_REG_MR;
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
        self.push_slot(none, None, true, None, request, |parts| {
            let mut wr = parts.send_wr(bindings::IB_SEND_SIGNALED);
            wr.opcode = bindings::IB_WR_LOCAL_INV;
            wr.ex.invalidate_rkey = rkey;
            Wr { send: wr }
        })
    }

    /// Fills a free slot and appends it to the chain.
    fn push_slot(
        &mut self,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        signaled: bool,
        ah: Option<Arc<Ah>>,
        request: H::Request,
        fill: impl FnOnce(SlotParts) -> Wr,
    ) -> Result {
        if request.timeout_ns() != 0 && !self.timed {
            if let Err(err) = self.target().queue().reserve_deadlines() {
                self.target().handler().discard(request);
                return Err(err);
            }
        }
        let Some(index) = self.take_slot() else {
            self.target().handler().discard(request);
            return Err(EAGAIN);
        };
        let target = self.target.as_ref();
        let queue = target.queue();
        // SAFETY: `take_slot` gave the slot to this call, and there is no reference to it.
        let slot = unsafe { queue.slot(index) }.ok_or(EINVAL);
        let filled = slot.and_then(|mut slot| {
            Self::fill_slot(target, index, &mut slot, locals, inline, fill)?;
            Ok(slot.content)
        });
        match filled {
            Ok(content) => {
                content.signaled = signaled;
                request.placed(index);
                self.timed |= request.timeout_ns() != 0;
                content.request = Some(request);
                content.ah = ah;
                content.next = NONE;
                self.append(index);
                Ok(())
            }
            Err(err) => {
                target.handler().discard(request);
                // SAFETY: As above, and the slot is not used after this.
                unsafe { queue.put(&mut queue.lists.lock(), index) };
                Err(err)
            }
        }
    }

    /// Takes a spare slot, and refills the spare slots when there are none. The caller owns the
    /// slot.
    fn take_slot(&mut self) -> Option<u32> {
        let queue = self.target.as_ref().queue();
        if self.spare == NONE {
            // INVARIANT: The queue gives these slots to the chain.
            self.spare = queue.take(self.expected.max(1));
        }
        let index = self.spare;
        // SAFETY: By the type invariant the chain owns the slot, if there is one.
        let content = unsafe { queue.content(index) }?;
        // INVARIANT: The slot leaves the list of spare ones.
        self.spare = content.next;
        self.expected = self.expected.saturating_sub(1);
        Some(index)
    }

    /// Puts slot `index`, which the caller owns and whose `next` is [`NONE`], at the end of the
    /// chain.
    fn append(&mut self, index: u32) {
        // SAFETY: By the type invariant the chain owns its last slot.
        match unsafe { self.target.as_ref().queue().content(self.last) } {
            Some(last) => last.next = index,
            None => self.first = index,
        }
        // INVARIANT: The slot is the end of the list.
        self.last = index;
        self.count = self.count.wrapping_add(1);
    }

    /// Makes `slot`, which has that index, hold the request that `fill` makes.
    fn fill_slot(
        target: TargetRef<'_, H>,
        index: u32,
        slot: &mut SlotRef<'_, H::Request>,
        locals: impl Iterator<Item = Local>,
        inline: Option<Inline<'_>>,
        fill: impl FnOnce(SlotParts) -> Wr,
    ) -> Result {
        // Until the slot is filled, each element may keep memory alive.
        let held = core::mem::replace(&mut slot.content.held, u32::MAX);
        let (count, kept) = match inline {
            // SAFETY: The caller has the only reference to the slot.
            Some(inline) => unsafe { Self::fill_inline(target.queue(), index, slot, inline) }?,
            None => Self::fill_elements(target, slot, locals)?,
        };
        // The memory of the last request that was not overwritten.
        let rest = slot.locals.get_mut(kept as usize..).unwrap_or(&mut []);
        let count_rest = held.saturating_sub(kept) as usize;
        rest.iter_mut()
            .take(count_rest)
            .for_each(|local| *local = None);

        let content = &mut *slot.content;
        content.held = kept;
        content.wr = fill(SlotParts {
            cqe: slot.cqe,
            sg_list: slot.sges.as_mut_ptr(),
            num_sge: count as c_int,
        });
        content.canceled = false;
        content.deadline = 0;
        Ok(())
    }

    /// Copies `inline` into slot `index`. Returns how many elements that takes, and that none of
    /// them keeps memory alive.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, whose other parts are `slot`.
    unsafe fn fill_inline(
        queue: &Queue<H::Request>,
        index: u32,
        slot: &mut SlotRef<'_, H::Request>,
        inline: Inline<'_>,
    ) -> Result<(u32, u32)> {
        let start = (index as usize).saturating_mul(queue.max_inline as usize);
        let room = queue
            .inline
            .get(start..start.saturating_add(queue.max_inline as usize))
            .and_then(|room| room.get(..inline.length))
            .ok_or(EMSGSIZE)?;
        let first = UnsafeCell::raw_get(room.as_ptr());
        // SAFETY: By the requirement this is the only reference to these bytes, which are
        // initialised.
        (inline.copy)(unsafe { core::slice::from_raw_parts_mut(first, room.len()) })?;
        if room.is_empty() {
            return Ok((0, 0));
        }
        *slot.sges.first_mut().ok_or(E2BIG)? = bindings::ib_sge {
            // Drivers take the address of inline data as a kernel address.
            addr: first as u64,
            length: room.len() as u32,
            lkey: 0,
        };
        Ok((1, 0))
    }

    /// Puts `locals` into the elements of `slot`. Returns how many there are, and the same number,
    /// since each keeps memory alive.
    fn fill_elements(
        target: TargetRef<'_, H>,
        slot: &mut SlotRef<'_, H::Request>,
        locals: impl Iterator<Item = Local>,
    ) -> Result<(u32, u32)> {
        let pd = target.pd();
        let mut elements = slot.locals.iter_mut().zip(slot.sges.iter_mut());
        let mut count = 0u32;
        for local in locals {
            let (keep, sge) = elements.next().ok_or(E2BIG)?;
            if !Arc::ptr_eq(local.pd(), pd) {
                return Err(EXDEV);
            }
            *sge = local.to_raw();
            *keep = Some(local);
            count = count.wrapping_add(1);
        }
        Ok((count, count))
    }

    /// Posts the chain. Calls `before` for each request, in order, before the device has any. Does
    /// not sleep, except when it discards requests.
    ///
    /// Returns how many requests the device took, and the error with which it refused the next one.
    /// The refused requests are discarded. Fails with [`enotconn`], with nothing posted, when the
    /// queue pair is not in a state that takes requests.
    pub(crate) fn post(mut self, before: impl FnMut(&H::Request)) -> (u32, Result) {
        let target = self.target.as_ref();
        let queue = target.queue();
        if self.count == 0 {
            return (0, Ok(()));
        }
        // Held over the driver's call, so that the list of posted slots is in the order of posting.
        let mut lists = queue.lists.lock();
        if lists.closed || !target.is_ready() {
            drop(lists);
            return (0, Err(enotconn()));
        }
        let before_chain = (lists.last, lists.unsignaled);
        self.link(&mut lists, before);
        self.enqueue(&mut lists);

        let first = queue.wr(self.first);
        // A driver that refuses all requests may leave this alone.
        let mut bad: *const c_void = first.cast_const().cast();
        let bad_out: *mut *const c_void = &mut bad;
        // SAFETY: `link` has linked the requests, and the last one ends the list. They, their
        // elements and their inline data are in slots that nobody accesses until the call returns.
        // Each has a `wr_cqe`, and the caller of `push` keeps a place in the completion queue.
        let err = unsafe { self.target.post(first, bad_out) };
        lists.used = true;
        let (taken, rest) = if err == 0 {
            (self.count, NONE)
        } else {
            self.take_back(&mut lists, before_chain, bad)
        };
        if self.timed {
            queue.start_timer(&mut lists);
        }
        drop(lists);
        // INVARIANT: The queue owns the slots that the device took.
        self.first = rest;
        self.count = self.count.saturating_sub(taken);
        (taken, to_result(err))
    }

    /// Numbers the requests of the chain, notes their deadlines, and links them for the driver.
    fn link(&self, lists: &mut Lists, mut before: impl FnMut(&H::Request)) {
        let target = self.target.as_ref();
        let queue = target.queue();
        let (mut at, mut before_it) = (self.first, lists.last);
        // SAFETY: By the type invariant the chain owns the slots of its list.
        while let Some(content) = unsafe { queue.content(at) } {
            if let Some(request) = &content.request {
                before(request);
                if self.timed {
                    content.deadline = Queue::<H::Request>::deadline(request.timeout_ns());
                }
            }
            queue.set_number(lists, at);
            if content.deadline != 0 {
                queue.set_deadline(lists, at, content.deadline);
            }
            content.prev = before_it;
            let next_wr = queue.wr(content.next);
            match target.kind() {
                QueueKind::Recv => {
                    // The slots of a receive queue hold receive requests.
                    content.wr.recv.next = next_wr.cast();
                }
                QueueKind::Send => {
                    let is_signaled = content.is_signaled();
                    let must_signal = lists.unsignaled.next(is_signaled, queue.depth());
                    // Every variant of a send request begins with the general part.
                    content.wr.send.next = next_wr.cast();
                    if is_signaled || must_signal {
                        // SAFETY: The general part is there, as said above.
                        unsafe { content.wr.send.send_flags |= bindings::IB_SEND_SIGNALED };
                    }
                }
            }
            before_it = at;
            at = content.next;
        }
    }

    /// Appends the chain to the list of posted slots.
    fn enqueue(&self, lists: &mut Lists) {
        // SAFETY: The last slot of the list, if there is one, is posted, and the lock is held.
        match unsafe { self.target.as_ref().queue().content(lists.last) } {
            Some(last) => last.next = self.first,
            None => lists.first = self.first,
        }
        lists.last = self.last;
        lists.posted = lists.posted.wrapping_add(self.count);
    }

    /// Removes the slots that the device has not taken from the list of posted slots: those from
    /// the request `bad` on. `before_chain` has the last slot of the list, and the count of
    /// unsignaled requests, before the chain.
    ///
    /// Returns how many slots the device took, and the first of the others.
    fn take_back(
        &self,
        lists: &mut Lists,
        before_chain: (u32, Unsignaled),
        bad: *const c_void,
    ) -> (u32, u32) {
        let queue = self.target.as_ref().queue();
        let (mut taken, mut at) = (0u32, self.first);
        let (mut last_taken, mut unsignaled) = before_chain;
        // SAFETY: The slots are posted, and the lock is held: requests that the device took do not
        // complete before it is released.
        while let Some(content) = unsafe { queue.content(at) } {
            if queue.wr(at).cast_const().cast() == bad {
                break;
            }
            taken = taken.wrapping_add(1);
            if let (Some(request), false) = (&mut content.request, content.signaled) {
                request.chain_refused();
            }
            unsignaled.next(content.is_signaled(), queue.depth());
            last_taken = at;
            at = content.next;
        }
        lists.last = last_taken;
        lists.unsignaled = unsignaled;
        // SAFETY: As above.
        match unsafe { queue.content(last_taken) } {
            Some(last) => last.next = NONE,
            None => lists.first = NONE,
        }
        lists.posted = lists
            .posted
            .saturating_sub(self.count.saturating_sub(taken));
        let rest = at;
        // SAFETY: The device has not taken these slots, and only the chain's list contains them.
        while let Some(content) = unsafe { queue.content(at) } {
            queue.clear_number(lists, at);
            at = content.next;
        }
        (taken, rest)
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
        // SAFETY: By the type invariant the chain owns these slots, and does not use them again.
        unsafe { queue.put_all(self.spare) };
    }
}
