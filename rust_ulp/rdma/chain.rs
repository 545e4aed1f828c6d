// SPDX-License-Identifier: GPL-2.0

//! Chains: requests that are built without a lock, and posted together.

use super::{
    ah::Ah,
    mr::Memory,
    pd::Pd,
    qp::Qp,
    qp_attr::State,
    queue::{
        Lists,
        Needs,
        NewWr,
        PostedWr,
        Queue,
        UsedMemory, //
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
        PlainOp,
        RawOp,
        Wr, //
    }, //
};
use crate::{
    bindings,
    ext::errno::enotconn, //
};
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
///
/// ```
/// fn keep<H: request::WrHandler>(qp: &Arc<qp::Qp<H>>) -> Target<H> {
///     TargetRef::Send(qp).to_owned()
/// }
/// ```
pub(crate) enum Target<H: WrHandler> {
    /// The send queue of a queue pair.
    Send(Arc<Qp<H>>),
    /// The receive queue of a queue pair.
    Recv(Arc<Qp<H>>),
    /// A shared receive queue.
    Shared(Arc<Srq<H>>),
}

/// A borrowed [`Target`].
///
/// ```
/// fn takes_receives<H: request::WrHandler>(qp: &Arc<qp::Qp<H>>) -> bool {
///     TargetRef::Recv(qp).is_ready()
/// }
/// ```
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

/// The parts of a request that a [`Chain`] keeps beside the form that drivers take.
struct StagedWr<R> {
    request: Option<R>,
    /// The address of a datagram, kept alive for the device.
    ah: Option<Arc<Ah>>,
    /// The place of its elements in [`Chain::sges`].
    first_sge: u32,
    /// Whether its success is reported to the owner.
    signaled: bool,
    /// Whether the address of its element is a place in [`Chain::inline`].
    inline: bool,
}

/// The most requests that are posted in one hold of a queue's lock, with bottom halves disabled.
pub(crate) const MAX_RUN: u32 = 64;

/// Consecutive requests of a chain for one queue.
struct QueueRun<H: WrHandler> {
    target: Target<H>,
    /// The number in the chain of its first request.
    first: u32,
    count: u32,
    /// The slots that are reserved for it; [`None`] if it takes them when it is posted.
    reserved: Option<u32>,
    /// How many requests the caller still expects to push.
    expected: u32,
    /// What requests need that only some have, for which the queue has memory.
    needs: Needs,
    /// Whether a request has inline data.
    inline: bool,
}

impl<H: WrHandler> QueueRun<H> {
    /// Takes a reserved slot for the next request, which `needs` that; first reserves slots for those
    /// that are expected, if none is left. Returns [`EAGAIN`] if the queue is full.
    #[inline(always)]
    fn take_slot(&mut self, needs: Needs) -> Result {
        if !self.needs.has(needs) {
            self.reserve_sides(needs)?;
        }
        if let Some(reserved) = self.reserved.filter(|&reserved| reserved <= self.count) {
            let queue = self.target.as_ref().queue();
            let more = queue.reserve(self.expected.max(1));
            if more == 0 {
                return Err(EAGAIN);
            }
            self.reserved = Some(reserved.saturating_add(more));
        }
        self.expected = self.expected.saturating_sub(1);
        Ok(())
    }

    /// Has the queue make memory for what a request `needs`. Sleeps.
    #[cold]
    fn reserve_sides(&mut self, needs: Needs) -> Result {
        self.target.as_ref().queue().reserve_sides(needs)?;
        self.needs = self.needs.and(needs);
        Ok(())
    }
}

/// Requests in order, that are not posted yet. Consecutive requests for the same queue are posted
/// together.
///
/// Drivers copy work requests, their elements and inline data when they are posted, so the chain can
/// be used again at once. Consumers in the kernel rely on that: they post requests that are on the
/// stack (drivers/nvme/host/rdma.c:nvme_rdma_post_send and nvme_rdma_post_recv). These functions of
/// drivers/infiniband copy the elements and the inline data:
///
/// | driver | send | receive |
/// |---|---|---|
/// | rxe | rxe_verbs.c:init_send_wqe | rxe_verbs.c:post_one_recv |
/// | mlx5 | wr.c:mlx5_ib_post_send | wr.c:mlx5_ib_post_recv |
/// | bnxt_re | ib_verbs.c:bnxt_re_copy_wr_payload | ib_verbs.c:bnxt_re_post_recv |
/// | hns | hns_roce_hw_v2.c:set_rc_inl | hns_roce_hw_v2.c:fill_recv_sge_to_wqe |
/// | rdmavt | qp.c:rvt_post_one_wr | qp.c:rvt_post_recv, rvt_post_srq_recv |
///
/// Dropping a chain discards its requests.
///
/// ```
/// # use core::iter::{empty, once};
/// fn write_and_send(qp: &Arc<qp::Qp<waiter::WaitHandler>>, local: wr::Local<'_>, peer: &mr::Mr,
///                   [first, second]: [Arc<waiter::Waiter>; 2]) -> Result {
///     let flags = wr::Flags { signaled: true, ..wr::Flags::default() };
///     let mut chain = Chain::new();
///     chain.begin(TargetRef::Send(qp), 2, true)?;
///     chain.push(&wr::Operation::write_to(peer), flags, once(local), None, first)?;
///     chain.push(&wr::Operation::Send(wr::Tail::None), flags, empty(), None, second)?;
///     let (_posted, result) = chain.post(|_number, _request| ());
///     result
/// }
/// ```
pub(crate) struct Chain<H: WrHandler> {
    runs: KVVec<QueueRun<H>>,
    staged: KVVec<StagedWr<H::Request>>,
    /// The requests in the form that drivers take, in the order of `staged`. Those beyond the
    /// length of that are not used.
    wrs: KVVec<Wr>,
    sges: KVVec<bindings::ib_sge>,
    inline: KVVec<u8>,
    used: KVVec<UsedMemory>,
    /// Memory that slots have kept for earlier requests, to be dropped without a lock.
    stale: KVVec<Arc<Memory>>,
}

// SAFETY: The pointers in `wrs` and `sges` are set and used during a call of `post`. All else is
// `Send`.
unsafe impl<H: WrHandler> Send for Chain<H> {}

impl<H: WrHandler> Chain<H> {
    /// Creates an empty chain.
    pub(crate) const fn new() -> Self {
        Self {
            runs: KVVec::new(),
            staged: KVVec::new(),
            wrs: KVVec::new(),
            sges: KVVec::new(),
            inline: KVVec::new(),
            used: KVVec::new(),
            stale: KVVec::new(),
        }
    }

    /// Has the next requests go to `target`, about `expected` of them, and at most [`MAX_RUN`].
    /// Sleeps.
    ///
    /// Requests that are `alone` in the chain get their slots when they are posted, all or none.
    pub(crate) fn begin(&mut self, target: TargetRef<'_, H>, expected: u32, alone: bool) -> Result {
        self.stale.reserve(expected as usize, GFP_KERNEL_ACCOUNT)?;
        let first = self.staged.len() as u32;
        let run = QueueRun {
            target: target.to_owned(),
            first,
            count: 0,
            reserved: (!alone).then_some(0),
            expected,
            needs: Needs::NONE,
            inline: false,
        };
        Ok(self.runs.push(run, GFP_KERNEL_ACCOUNT)?)
    }

    /// Appends a send request that reads or writes `locals`. May sleep.
    ///
    /// `inline` is data that is copied into the chain now, instead of `locals`.
    ///
    /// When it fails, `discard` was called for `request`. It fails with
    ///
    /// - [`EAGAIN`] when the queue is full,
    /// - [`ENOMEM`] when there is no memory,
    /// - [`E2BIG`] for too many `locals`, [`EMSGSIZE`] for too much inline data,
    /// - [`EINVAL`] for a datagram on a connected queue pair, the other way round, and for a receive
    ///   queue,
    /// - [`EXDEV`] when the memory or the address belongs to another protection domain.
    #[inline(always)]
    pub(crate) fn push<'a>(
        &mut self,
        operation: &Operation,
        flags: Flags,
        locals: impl Iterator<Item = Local<'a>>,
        inline: Option<Inline<'_>>,
        request: H::Request,
    ) -> Result {
        let send_flags = flags.to_raw(inline.is_some());
        let new = NewRequest {
            kind: QueueKind::Send,
            request,
            signaled: flags.signaled,
            ah: operation.ah(),
        };
        self.push_wr(new, locals, inline, |wr, num_sge| {
            operation.fill(wr, send_wr(send_flags, num_sge));
        })
    }

    /// Appends a plain send request with the operation `op`, for `remote_addr` of the peer, 0 unless
    /// it is an RDMA Write. `inline` is its data, not empty. Otherwise as [`Self::push`]. May sleep.
    pub(crate) fn push_copied(
        &mut self,
        op: PlainOp,
        remote_addr: u64,
        flags: Flags,
        inline: Inline<'_>,
        request: H::Request,
    ) -> Result {
        let kind = match op {
            PlainOp::Recv => QueueKind::Recv,
            _ => QueueKind::Send,
        };
        let new = NewRequest {
            kind,
            request,
            signaled: flags.signaled,
            ah: None,
        };
        self.push_wr(new, core::iter::empty(), Some(inline), |wr, _| {
            op.to_raw().fill(wr, remote_addr, flags.to_raw(true));
        })
    }

    /// Returns what appends plain requests for memory of the region of `local`, all with the
    /// operation `op`. May sleep. It fails with
    ///
    /// - [`ENOMEM`] when there is no memory,
    /// - [`E2BIG`] when the queue has no elements,
    /// - [`EINVAL`] for an operation of another queue, and for a shared receive queue,
    /// - [`EXDEV`] when the memory belongs to another protection domain.
    #[inline(always)]
    pub(crate) fn alike(&mut self, op: PlainOp, local: Local<'_>) -> Result<Alike<'_, H>> {
        let run = self.runs.last_mut().ok_or(EINVAL)?;
        let target = run.target.as_ref();
        let fits = match (op, target) {
            (PlainOp::Recv, TargetRef::Recv(_)) => true,
            (PlainOp::Recv, _) => false,
            (_, TargetRef::Send(qp)) => qp.note_address(None),
            _ => false,
        };
        if !fits {
            return Err(EINVAL);
        }
        if target.queue().max_sge == 0 {
            return Err(E2BIG);
        }
        let count = run.expected.max(1) as usize;
        self.staged.reserve(count, GFP_KERNEL_ACCOUNT)?;
        self.sges.reserve(count, GFP_KERNEL_ACCOUNT)?;
        let before = self.used.last().map(|used| (self.used.len(), used.last));
        use_memory(&mut self.used, target, run.first, self.staged.len(), local)?;
        let count = self.used.len();
        let used = self.used.last_mut().ok_or(EINVAL)?;
        if let Some((_, last)) = before.filter(|(had, _)| *had == count) {
            // Until a request is appended, the last one that uses it is the one before.
            used.last = last;
        }
        Ok(Alike {
            base: local.memory.addr(),
            lkey: local.memory.lkey(),
            op: op.to_raw(),
            run,
            used,
            staged: &mut self.staged,
            wrs: &mut self.wrs,
            sges: &mut self.sges,
        })
    }

    /// Appends a receive request that fills `locals`. Errors as for [`Self::push`]. May sleep.
    #[inline(always)]
    pub(crate) fn push_recv<'a>(
        &mut self,
        locals: impl Iterator<Item = Local<'a>>,
        request: H::Request,
    ) -> Result {
        let new = NewRequest {
            kind: QueueKind::Recv,
            request,
            signaled: true,
            ah: None,
        };
        self.push_wr(new, locals, None, |wr, num_sge| {
            wr.recv = recv_wr(num_sge);
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
        self.push_signaled(request, |to| {
            let mut wr = send_wr(bindings::IB_SEND_SIGNALED, 0);
            wr.opcode = bindings::IB_WR_REG_MR;
            to.reg = bindings::ib_reg_wr {
                wr,
                mr,
                key,
                access: access as i32,
            };
        })
    }

    /// Appends a request that invalidates the key `rkey`. May sleep.
    pub(super) fn push_invalidate(&mut self, rkey: u32, request: H::Request) -> Result {
        self.push_signaled(request, |to| {
            let mut wr = send_wr(bindings::IB_SEND_SIGNALED, 0);
            wr.opcode = bindings::IB_WR_LOCAL_INV;
            wr.ex.invalidate_rkey = rkey;
            to.send = wr;
        })
    }

    /// Appends a signaled send request without elements.
    fn push_signaled(&mut self, request: H::Request, fill: impl FnOnce(&mut Wr)) -> Result {
        let new = NewRequest {
            kind: QueueKind::Send,
            request,
            signaled: true,
            ah: None,
        };
        self.push_wr(new, core::iter::empty(), None, |wr, _| fill(wr))
    }

    /// Appends a request, which `fill` writes for its number of elements.
    #[inline(always)]
    fn push_wr<'a>(
        &mut self,
        new: NewRequest<'_, H::Request>,
        locals: impl Iterator<Item = Local<'a>>,
        inline: Option<Inline<'_>>,
        fill: impl FnOnce(&mut Wr, c_int),
    ) -> Result {
        let (marks, is_inline) = (self.marks(), inline.is_some());
        let filled = self.admit(&new).and_then(|()| {
            match inline {
                Some(inline) => self.push_inline(inline),
                None => self.push_elements(locals),
            }?;
            let num_sge = self.sges.len().wrapping_sub(marks.sges);
            fill(self.next_wr()?, num_sge as c_int);
            Ok(self.staged.reserve(1, GFP_KERNEL_ACCOUNT)?)
        });
        let staged = StagedWr {
            request: Some(new.request),
            ah: new.ah.cloned(),
            first_sge: marks.sges as u32,
            signaled: new.signaled,
            inline: is_inline && self.sges.len() > marks.sges,
        };
        self.stage(marks, filled, staged)
    }

    /// Returns where the memory of the next request begins.
    #[inline(always)]
    fn marks(&self) -> Marks {
        Marks {
            sges: self.sges.len(),
            used: self.used.len(),
            last: self.used.last().map(|used| used.last),
        }
    }

    /// Returns the place of the next request in the form that drivers take. May sleep.
    #[inline(always)]
    fn next_wr(&mut self) -> Result<&mut Wr> {
        let at = self.staged.len();
        if self.wrs.len() <= at {
            let wr = Wr {
                send: Default::default(),
            };
            self.wrs.push(wr, GFP_KERNEL_ACCOUNT)?;
        }
        self.wrs.get_mut(at).ok_or(ENOMEM)
    }

    /// Adds `staged` to the chain if it was `filled`. Otherwise takes back what was added since
    /// `marks`, and discards its request.
    #[inline(always)]
    fn stage(&mut self, marks: Marks, filled: Result, staged: StagedWr<H::Request>) -> Result {
        let (staged, result) = match filled {
            Err(err) => (staged, Err(err)),
            Ok(()) => match self.staged.push_within_capacity(staged) {
                Ok(()) => {
                    let run = self.runs.last_mut().ok_or(EINVAL)?;
                    run.count = run.count.wrapping_add(1);
                    return Ok(());
                }
                Err(full) => (full.0, Err(ENOMEM)),
            },
        };
        self.take_back(marks, staged);
        result
    }

    /// Takes back what was added since `marks`, and discards the request.
    #[cold]
    fn take_back(&mut self, marks: Marks, staged: StagedWr<H::Request>) {
        self.sges.truncate(marks.sges);
        self.used.truncate(marks.used);
        if let (Some(used), Some(last)) = (self.used.last_mut(), marks.last) {
            used.last = last;
        }
        if let (Some(run), Some(request)) = (self.runs.last(), staged.request) {
            run.target.as_ref().handler().discard(request);
        }
    }

    /// Checks that `new` fits its queue, and takes a reserved slot for it.
    #[inline(always)]
    fn admit(&mut self, new: &NewRequest<'_, H::Request>) -> Result {
        let run = self.runs.last_mut().ok_or(EINVAL)?;
        let target = run.target.as_ref();
        if target.kind() != new.kind {
            return Err(EINVAL);
        }
        if let TargetRef::Send(qp) = target {
            // Datagrams have an address of the protection domain, other requests have none.
            if new.ah.is_some_and(|ah| !Arc::ptr_eq(ah.pd(), qp.pd())) {
                return Err(EXDEV);
            }
            if !qp.note_address(new.ah) {
                return Err(EINVAL);
            }
        }
        run.take_slot(Needs::of(&new.request, new.ah))
    }

    /// Copies `inline`, and makes it the element of the next request.
    fn push_inline(&mut self, inline: Inline<'_>) -> Result {
        let run = self.runs.last_mut().ok_or(EINVAL)?;
        run.inline = true;
        let queue = run.target.as_ref().queue();
        if inline.length > queue.max_inline as usize {
            return Err(EMSGSIZE);
        }
        let start = self.inline.len();
        let end = start.saturating_add(inline.length);
        self.inline.resize(end, 0, GFP_KERNEL_ACCOUNT)?;
        let room = self.inline.get_mut(start..end).ok_or(EINVAL)?;
        (inline.copy)(room)?;
        if room.is_empty() {
            return Ok(());
        }
        if queue.max_sge == 0 {
            return Err(E2BIG);
        }
        let element = bindings::ib_sge {
            addr: start as u64,
            length: inline.length as u32,
            lkey: 0,
        };
        Ok(self.sges.push(element, GFP_KERNEL_ACCOUNT)?)
    }

    /// Makes `locals` the elements of the next request.
    #[inline(always)]
    fn push_elements<'a>(&mut self, locals: impl Iterator<Item = Local<'a>>) -> Result {
        let run = self.runs.last_mut().ok_or(EINVAL)?;
        let target = run.target.as_ref();
        let at = self.staged.len() as u32;
        // Of a shared receive queue, each request keeps its memory itself.
        let oldest = match target {
            TargetRef::Shared(_) => at,
            _ => run.first,
        };
        let mut left = target.queue().max_sge;
        for local in locals {
            left = left.checked_sub(1).ok_or(E2BIG)?;
            let is_second = use_memory(&mut self.used, target, oldest, self.staged.len(), local)?;
            if is_second && !run.needs.has(Needs::MEMORY) {
                target.queue().reserve_sides(Needs::MEMORY)?;
                run.needs = run.needs.and(Needs::MEMORY);
            }
            self.sges.push(local.to_raw(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// Has the device report the last request, as the caller appends no more: it reports those before
    /// it for the same queue.
    pub(crate) fn report_last(&mut self) {
        if let Some(staged) = self.staged.last_mut() {
            staged.signaled = true;
        }
    }

    /// Posts the requests. Calls `before` for each, in order, with the number of its queue pair, before
    /// the device has it or refuses it. Sleeps to drop what the slots kept before, not to post.
    ///
    /// Returns how many requests the devices took, and the error with which the next one was
    /// refused. That one and those after it are discarded. The error is [`enotconn`], with nothing
    /// of the run posted, when the queue pair is not in a state that takes requests.
    pub(crate) fn post(&mut self, mut before: impl FnMut(u32, &H::Request)) -> (u32, Result) {
        let (mut total, mut result) = (0u32, Ok(()));
        let mut rest: &mut [UsedMemory] = &mut self.used;
        for run in self.runs.iter_mut() {
            let end = run.first.saturating_add(run.count);
            let count = rest.iter().take_while(|used| used.last < end).count();
            let (used, tail) = rest.split_at_mut_checked(count).unwrap_or_default();
            rest = tail;
            let (first, end) = (run.first as usize, end as usize);
            let staging = Staging {
                staged: self.staged.get_mut(first..end).unwrap_or_default(),
                wrs: self.wrs.get_mut(first..end).unwrap_or_default(),
                sges: &mut self.sges,
                inline: &mut self.inline,
                used,
                stale: &mut self.stale,
            };
            let (posted, outcome) = staging.post(run, &mut before);
            total = total.saturating_add(posted);
            result = outcome;
            if result.is_err() {
                break;
            }
        }
        if result.is_err() {
            self.discard();
        }
        self.reset();
        (total, result)
    }

    /// Discards the requests, and drops what the chain holds. Sleeps.
    pub(crate) fn clear(&mut self) {
        // Nothing is added without a run.
        if !self.runs.is_empty() {
            self.discard();
            self.reset();
        }
    }

    /// Discards the requests that are not posted, and gives up their slots.
    #[cold]
    fn discard(&mut self) {
        for run in self.runs.iter() {
            let target = run.target.as_ref();
            let (first, count) = (run.first as usize, run.count as usize);
            for staged in self.staged.iter_mut().skip(first).take(count) {
                if let Some(request) = staged.request.take() {
                    target.handler().discard(request);
                }
            }
            if let Some(reserved @ 1..) = run.reserved {
                let queue = target.queue();
                queue.release(&mut queue.lists.lock(), reserved);
            }
        }
    }

    /// Drops what the chain holds. Sleeps. No request is left that must be discarded.
    fn reset(&mut self) {
        self.runs.clear();
        self.staged.clear();
        self.sges.clear();
        self.inline.clear();
        self.used.clear();
        self.stale.clear();
    }
}

impl<H: WrHandler> Drop for Chain<H> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Has request number `at` use the region of `local`, which belongs to the protection domain of
/// `target`, else [`EXDEV`]. An entry of `used` serves it that request `oldest` or a later one was
/// the last to use. Returns whether the request is the last to use another region, too. May sleep.
#[inline(always)]
fn use_memory<H: WrHandler>(
    used: &mut KVVec<UsedMemory>,
    target: TargetRef<'_, H>,
    oldest: u32,
    at: usize,
    local: Local<'_>,
) -> Result<bool> {
    let at = at as u32;
    let mut is_second = false;
    match used.last_mut() {
        Some(used) if used.last >= oldest && used.is(local.memory) => used.last = at,
        last => {
            is_second = last.is_some_and(|used| used.last == at);
            if !Arc::ptr_eq(local.memory.pd(), target.pd()) {
                return Err(EXDEV);
            }
            let memory = Some(local.memory.clone());
            let (first, last) = (at, at);
            used.push(
                UsedMemory {
                    first,
                    last,
                    memory,
                },
                GFP_KERNEL_ACCOUNT,
            )?;
        }
    }
    Ok(is_second)
}

/// Appends plain requests to a chain, see [`Chain::alike`].
///
/// ```
/// fn write_twice(chain: &mut Chain<waiter::WaitHandler>, peer: &mr::Mr, local: wr::Local<'_>,
///                [first, second]: [Arc<waiter::Waiter>; 2]) -> Result {
///     let op = wr::PlainOp::Write { rkey: peer.rkey(), imm: None };
///     let mut alike = chain.alike(op, local)?;
///     alike.push(peer.addr(), wr::Flags::default(), local, first)?;
///     alike.push(peer.addr(), wr::Flags::default(), local, second)
/// }
/// ```
pub(crate) struct Alike<'a, H: WrHandler> {
    run: &'a mut QueueRun<H>,
    op: RawOp,
    /// The memory of the requests, and its address and key.
    used: &'a mut UsedMemory,
    base: u64,
    lkey: u32,
    staged: &'a mut KVVec<StagedWr<H::Request>>,
    wrs: &'a mut KVVec<Wr>,
    sges: &'a mut KVVec<bindings::ib_sge>,
}

impl<H: WrHandler> Alike<'_, H> {
    /// Appends a request without a deadline for `local`, and for `remote_addr` of the peer, 0 unless
    /// it is an RDMA Write or Read. May sleep. `flags` have no meaning for a receive.
    ///
    /// When it fails, `discard` was called for `request`. It fails as [`Chain::push`] does, and with
    /// [`EINVAL`] when `local` is in another region, or the request has a deadline.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        remote_addr: u64,
        flags: Flags,
        local: Local<'_>,
        request: H::Request,
    ) -> Result {
        let at = self.staged.len();
        let filled = self.fill(at, remote_addr, flags, local, &request);
        let staged = StagedWr {
            request: Some(request),
            ah: None,
            first_sge: (self.sges.len() as u32).wrapping_sub(1),
            signaled: flags.signaled || matches!(self.op, RawOp::Recv),
            inline: false,
        };
        let (staged, result) = match filled {
            Ok(()) => match self.staged.push_within_capacity(staged) {
                Ok(()) => {
                    self.used.last = at as u32;
                    self.run.count = self.run.count.wrapping_add(1);
                    return Ok(());
                }
                Err(full) => (full.0, Err(ENOMEM)),
            },
            Err(err) => (staged, Err(err)),
        };
        if let Some(request) = staged.request {
            self.run.target.as_ref().handler().discard(request);
        }
        result
    }

    /// Writes request number `at` in the form that drivers take.
    #[inline(always)]
    fn fill(
        &mut self,
        at: usize,
        remote_addr: u64,
        flags: Flags,
        local: Local<'_>,
        request: &H::Request,
    ) -> Result {
        if !self.used.is(local.memory) || request.end_ns(0) != 0 {
            return Err(EINVAL);
        }
        self.run.take_slot(Needs::of(request, None))?;
        if self.wrs.len() <= at {
            let recv = Default::default();
            self.wrs.push(Wr { recv }, GFP_KERNEL_ACCOUNT)?;
        }
        let wr = self.wrs.get_mut(at).ok_or(ENOMEM)?;
        self.op.fill(wr, remote_addr, flags.to_raw(false));
        let element = local.to_raw_with(self.base, self.lkey);
        self.sges.push_within_capacity(element).map_err(|_| ENOMEM)
    }
}

/// Returns a receive request.
fn recv_wr(num_sge: c_int) -> bindings::ib_recv_wr {
    bindings::ib_recv_wr {
        num_sge,
        ..Default::default()
    }
}

/// Returns the general part of a send request.
fn send_wr(send_flags: c_int, num_sge: c_int) -> bindings::ib_send_wr {
    bindings::ib_send_wr {
        num_sge,
        send_flags,
        ..Default::default()
    }
}

/// Where the memory of a request begins in a chain.
struct Marks {
    sges: usize,
    used: usize,
    /// The last request that uses the last memory before it.
    last: Option<u32>,
}

/// A request that is pushed.
struct NewRequest<'a, R> {
    kind: QueueKind,
    request: R,
    signaled: bool,
    ah: Option<&'a Arc<Ah>>,
}

impl<R: WrContext> StagedWr<R> {
    /// Puts the request into the next slot of `queue`. [`None`] if no slot is free, or the request
    /// was taken before. `needs` are those of the run.
    #[inline(always)]
    fn fill_slot(
        &mut self,
        queue: &Queue<R>,
        lists: &mut Lists<R>,
        needs: Needs,
    ) -> Option<PostedWr> {
        let deadline = match &self.request {
            Some(request) if needs.has(Needs::DEADLINE) => Queue::deadline(request),
            _ => 0,
        };
        let new = NewWr {
            request: &mut self.request,
            signaled: self.signaled,
            ah: &mut self.ah,
        };
        let posted = queue.push(lists, new)?;
        if deadline != 0 {
            lists.set_deadline(posted.index, deadline);
            // Always reported: the queue must know in time that it is done.
            self.signaled = true;
        }
        Some(posted)
    }
}

/// Returns the number of regions at the beginning of `used` that request number `at` is the last to
/// use.
#[inline(always)]
fn regions_of(at: u32, used: &[UsedMemory]) -> usize {
    match used.first() {
        Some(first) if first.last == at => used.iter().take_while(|used| used.last == at).count(),
        _ => 0,
    }
}

/// Makes the slot of a request keep the first `count` regions of `used`, and returns the rest. What
/// the slot has kept before is moved to `stale` or there.
#[inline(always)]
fn keep_memory<'a, R: WrContext>(
    queue: &Queue<R>,
    lists: &mut Lists<R>,
    posted: &PostedWr,
    count: usize,
    used: &'a mut [UsedMemory],
    stale: &mut KVVec<Arc<Memory>>,
) -> &'a mut [UsedMemory] {
    if count == 0 && !posted.is_keeping {
        return used;
    }
    let (mine, rest) = used.split_at_mut_checked(count).unwrap_or_default();
    queue.keep(lists, posted.index, mine, stale);
    rest
}

/// The fields that a request gets when it is in a slot, in the form that drivers take.
struct DriverWr {
    cqe: *mut bindings::ib_cqe,
    sg_list: *mut bindings::ib_sge,
    /// Whether the device reports the success of a send request.
    is_reported: bool,
}

impl DriverWr {
    /// Completes the request `wr`, and makes it the one after `previous`, unless that is null.
    ///
    /// # Safety
    ///
    /// Both are valid, and requests of `kind`. Send requests all begin with the general part.
    #[inline(always)]
    unsafe fn link(self, kind: QueueKind, wr: *mut Wr, previous: *mut Wr) {
        // SAFETY: By the requirements.
        unsafe {
            match kind {
                QueueKind::Send => {
                    if self.is_reported {
                        (*wr).send.send_flags |= bindings::IB_SEND_SIGNALED;
                    }
                    (*wr).send.__bindgen_anon_1.wr_cqe = self.cqe;
                    (*wr).send.sg_list = self.sg_list;
                    if !previous.is_null() {
                        (*previous).send.next = wr.cast();
                    }
                }
                QueueKind::Recv => {
                    (*wr).recv.__bindgen_anon_1.wr_cqe = self.cqe;
                    (*wr).recv.sg_list = self.sg_list;
                    if !previous.is_null() {
                        (*previous).recv.next = wr.cast();
                    }
                }
            }
        }
    }
}

/// The parts of a chain that are posted together.
struct Staging<'a, R> {
    staged: &'a mut [StagedWr<R>],
    wrs: &'a mut [Wr],
    /// The elements and the inline data of the whole chain.
    sges: &'a mut [bindings::ib_sge],
    inline: &'a mut [u8],
    /// Their memory, in the order of the last requests that use it.
    used: &'a mut [UsedMemory],
    stale: &'a mut KVVec<Arc<Memory>>,
}

impl<R: WrContext> Staging<'_, R> {
    /// Posts the requests. Returns how many the device took, and the error with which it refused the
    /// next one. Takes the refused ones back.
    fn post<H: WrHandler<Request = R>>(
        mut self,
        run: &mut QueueRun<H>,
        before: &mut impl FnMut(u32, &R),
    ) -> (u32, Result) {
        let target = run.target.as_ref();
        let queue = target.queue();
        if self.staged.is_empty() {
            // The first request of the run was refused when it was pushed.
            let reserved = run.reserved.replace(0).unwrap_or(0);
            queue.release(&mut queue.lists.lock(), reserved);
            return (0, Ok(()));
        }
        // Without the lock: what it prints may take long.
        for request in self
            .staged
            .iter()
            .filter_map(|staged| staged.request.as_ref())
        {
            before(target.number(), request);
        }
        // Held over the driver's call, so that the posted slots are in the order of posting.
        let mut lists = queue.lists.lock();
        if lists.closed || !target.is_ready() {
            drop(lists);
            return (0, Err(enotconn()));
        }
        if !queue.has_sides(&lists, run.needs) {
            // Not reached: `take_slot` has reserved them.
            drop(lists);
            return (0, Err(ENOMEM));
        }
        let reserved = run.reserved.replace(0);
        if reserved.is_none() && queue.free(&lists) < self.staged.len() as u32 {
            drop(lists);
            return (0, Err(EAGAIN));
        }
        if run.inline {
            self.set_inline();
        }
        let unsignaled = lists.unsignaled;
        let (first, count) = self.fill_slots(run, &mut lists);
        queue.release(&mut lists, reserved.unwrap_or(0));
        // A driver that refuses all requests may leave this alone.
        let mut bad: *const c_void = first.cast_const().cast();
        let bad_out: *mut *const c_void = &mut bad;
        let err = if count < self.staged.len() as u32 {
            // Not reached: the slots were reserved, or are known to be free.
            EAGAIN.to_errno()
        } else {
            // SAFETY: `fill_slots` has linked the requests, and the last one ends the list. They,
            // their elements and their inline data belong to this value, which nobody accesses
            // until the call returns. Each has a `wr_cqe`, and the caller of `push` keeps a place
            // in the completion queue.
            unsafe { run.target.post(first, bad_out) }
        };
        lists.used = true;
        let (mut taken, mut old) = (count, None);
        if err != 0 {
            let before_bad = self
                .wrs
                .iter()
                .take_while(|wr| core::ptr::from_ref(*wr).cast() != bad);
            taken = (before_bad.count() as u32).min(count);
            lists.unsignaled = unsignaled;
            old = self.take_back(run, &mut lists, taken, count);
        }
        if run.needs.has(Needs::DEADLINE) {
            queue.start_timer(&mut lists);
        }
        drop(lists);
        drop(old);
        (taken, to_result(err))
    }

    /// Gives the elements of inline data their addresses. Drivers take these as kernel addresses.
    fn set_inline(&mut self) {
        let base = self.inline.as_ptr() as u64;
        for staged in self.staged.iter().filter(|staged| staged.inline) {
            if let Some(sge) = self.sges.get_mut(staged.first_sge as usize) {
                sge.addr = sge.addr.wrapping_add(base);
            }
        }
    }

    /// Puts the requests into slots, and links them for the driver. Returns the first of them, and
    /// how many there are. The links are derived from that pointer: `wrs` is not borrowed again
    /// while the driver follows them.
    #[inline(always)]
    fn fill_slots<H: WrHandler<Request = R>>(
        &mut self,
        run: &QueueRun<H>,
        lists: &mut Lists<R>,
    ) -> (*mut Wr, u32) {
        let target = run.target.as_ref();
        let (queue, kind) = (target.queue(), target.kind());
        let depth = queue.depth();
        let mut used: &mut [UsedMemory] = self.used;
        let sges = self.sges.as_mut_ptr();
        let (places, first) = (self.wrs.len(), self.wrs.as_mut_ptr());
        let mut previous: *mut Wr = core::ptr::null_mut();
        let (mut at, mut count) = (run.first, 0u32);
        for (staged, place) in self.staged.iter_mut().zip(0..places) {
            let regions = regions_of(at, used);
            if !queue.has_room(lists, regions) {
                // Not reached: see `use_memory`.
                break;
            }
            let Some(posted) = staged.fill_slot(queue, lists, run.needs) else {
                break;
            };
            used = keep_memory(queue, lists, &posted, regions, used, self.stale);
            let is_reported = kind == QueueKind::Send
                && (lists.unsignaled.next(staged.signaled, depth) || staged.signaled);
            let driver = DriverWr {
                cqe: posted.cqe,
                sg_list: sges.wrapping_add(staged.first_sge as usize),
                is_reported,
            };
            let wr = first.wrapping_add(place);
            // SAFETY: `wr` and `previous`, if that is not null, are entries of `wrs`. Those of a send
            // queue are send requests, and those of a receive queue are receive requests: `push_wr` and
            // `alike` check that.
            unsafe { driver.link(kind, wr, previous) };
            previous = wr;
            at = at.wrapping_add(1);
            count = count.wrapping_add(1);
        }
        (first, count)
    }

    /// Takes back the requests from number `taken` on, of `count` that are in slots: the device has
    /// not taken them. Returns a reference that is to be dropped without the lock.
    fn take_back<H: WrHandler<Request = R>>(
        &mut self,
        run: &QueueRun<H>,
        lists: &mut Lists<R>,
        taken: u32,
        count: u32,
    ) -> Option<Arc<Memory>> {
        let target = run.target.as_ref();
        let queue = target.queue();
        let bad = run.first.wrapping_add(taken);
        // The slot of the last request keeps the memory of those before it; such memory is its
        // first. At most one is that of requests on both sides.
        let spans = |used: &&UsedMemory| used.first < bad && used.last >= bad;
        let keeper = self.used.iter().find(spans).map(|used| used.last);
        let mut carried = None;
        for place in (taken..count).rev() {
            let (request, memory) = queue.pop(lists)?;
            let at = run.first.wrapping_add(place);
            if keeper == Some(at) {
                carried = memory;
            }
            if let Some(staged) = self.staged.get_mut(place as usize) {
                staged.request = Some(request);
            }
        }
        let mut index = lists.order.last();
        for staged in self.staged.iter().take(taken as usize) {
            lists.unsignaled.next(staged.signaled, queue.depth());
            if let Some(at) = index {
                queue.forget_reference(lists, at);
                index = Some(lists.order.prev(at));
            }
        }
        let last = bad.wrapping_sub(1);
        let before = self.used.iter().skip_while(|used| used.last != last);
        let place = before.take_while(|used| used.last == last).count();
        queue.adopt(lists, place as u32, carried?)
    }
}
