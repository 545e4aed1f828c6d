// SPDX-License-Identifier: GPL-2.0

//! Posting: requests are built without a lock, in the place from which the driver reads them, and
//! posted together under the lock of their queue.
//!
//! A [`Scratch`] is memory for a few requests: on the stack, or allocated by the caller. A [`Run`]
//! builds consecutive requests for one queue there. [`Run::post`] gives each the next slot of the
//! queue and calls the driver once.

use super::{
    ah::Ah,
    mr::Memory,
    pd::Pd,
    qp::Qp,
    qp_attr::{
        QpType,
        State, //
    },
    queue::{
        Lists,
        MoreMemory,
        Needs,
        Queue, //
    },
    request::{
        QueueKind,
        WrHandler, //
    },
    srq::Srq,
    wr::{
        Flags,
        Local,
        Operation,
        Plain,
        Wr, //
    }, //
};
use crate::{
    bindings,
    ext::{
        errno::enotconn,
        late_vec::LateVec, //
    }, //
};
use core::mem::MaybeUninit;
use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::Arc, //
};

/// The most requests that are posted at once, with bottom halves disabled.
pub(crate) const MAX_POST: usize = 64;

/// The queue that requests are posted to.
///
/// ```
/// fn takes_receives<H: request::WrHandler>(qp: &qp::Qp<H>) -> bool {
///     Target::Recv(qp).is_ready()
/// }
/// ```
pub(crate) enum Target<'a, H: WrHandler> {
    /// The send queue of a queue pair.
    Send(&'a Qp<H>),
    /// The receive queue of a queue pair.
    Recv(&'a Qp<H>),
    /// A shared receive queue.
    Shared(&'a Srq<H>),
}

impl<H: WrHandler> Clone for Target<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: WrHandler> Copy for Target<'_, H> {}

impl<'a, H: WrHandler> Target<'a, H> {
    fn queue(self) -> &'a Queue<H::Request> {
        match self {
            Self::Send(qp) => qp.queue(QueueKind::Send),
            Self::Recv(qp) => qp.queue(QueueKind::Recv),
            Self::Shared(srq) => srq.queue(),
        }
    }

    /// Returns the owner.
    pub(crate) fn handler(self) -> &'a H {
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

    /// Returns the most bytes of inline data.
    pub(crate) fn max_inline(self) -> u32 {
        self.queue().max_inline
    }

    /// Returns whether the target is in a state that takes requests.
    pub(crate) fn is_ready(self) -> bool {
        match self {
            Self::Send(qp) => qp.state() >= State::Rts,
            Self::Recv(qp) => qp.state() >= State::Init,
            Self::Shared(_) => true,
        }
    }

    /// Has the driver post the requests that begin with `first`. Returns its error.
    ///
    /// # Safety
    ///
    /// - The requests are of the kind of the target, linked, and the last one ends the list.
    /// - They, their elements and their inline data do not change until the call returns.
    /// - Each has a `wr_cqe` and a place in the completion queue.
    /// - `bad` is valid.
    unsafe fn call_driver(self, first: *mut Wr, bad: *mut *const c_void) -> c_int {
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

/// The memory of a request.
///
/// ```
/// fn greeting() -> Data<'static, 'static, 'static> {
///     Data::Inline(b"hello")
/// }
/// ```
pub(crate) enum Data<'d, 'l, 's> {
    /// Nothing.
    None,
    /// One element.
    One(Local<'l>),
    /// Any number of elements.
    Many(&'d mut dyn Iterator<Item = Local<'l>>),
    /// Inline data, which the driver copies when the request is posted.
    Inline(&'s [u8]),
}

/// A request in the form that drivers take.
///
/// ```
/// fn room_for(requests: usize) -> Result<KVVec<Built>> {
///     Ok(KVVec::with_capacity(requests, GFP_KERNEL)?)
/// }
/// ```
pub(crate) struct Built {
    wr: Wr,
    /// Its element, if it has one.
    sge: bindings::ib_sge,
    /// The place in [`Scratch::elements`] of its elements, if it has several.
    first: u32,
    /// The bytes of its data.
    bytes: u32,
    /// Memory that its slot is to keep, of the request or of those before it. When it is posted, what
    /// its slot has kept before.
    memory: Option<Arc<Memory>>,
    /// The address of a datagram. When the request is posted, what its slot has kept before.
    ah: Option<Arc<Ah>>,
}

// SAFETY: The pointers in `wr` are set and used during a call of `Run::post`. All else is `Send`.
unsafe impl Send for Built {}

/// Memory for one request.
///
/// ```
/// fn in_room(room: &mut KVVec<Built>) -> Scratch<'_> {
///     let places: &mut [Place] = room.spare_capacity_mut();
///     Scratch::new(places)
/// }
/// ```
pub(crate) type Place = MaybeUninit<Built>;

/// Memory in which requests are built.
///
/// Drivers copy work requests, their elements and inline data when they are posted, so the memory
/// is free again when [`Run::post`] returns. Consumers in the kernel rely on that: they post requests
/// that are on the stack (drivers/nvme/host/rdma.c:nvme_rdma_post_send and nvme_rdma_post_recv). These
/// functions of drivers/infiniband copy the elements, and the inline data where [`Qp::new`] lets the
/// queue pair have some:
///
/// | driver | send | receive |
/// |---|---|---|
/// | rxe | rxe_verbs.c:init_send_wqe | rxe_verbs.c:post_one_recv |
/// | mlx5 | wr.c:mlx5_ib_post_send | wr.c:mlx5_ib_post_recv |
/// | bnxt_re | ib_verbs.c:bnxt_re_copy_wr_payload | ib_verbs.c:bnxt_re_post_recv |
/// | hns | hns_roce_hw_v2.c:set_rc_inl | hns_roce_hw_v2.c:fill_recv_sge_to_wqe |
/// | rdmavt | qp.c:rvt_post_one_wr | qp.c:rvt_post_recv, rvt_post_srq_recv |
///
/// Dropping it drops what the slots of the requests have kept before, for example memory regions.
/// That sleeps.
///
/// ```
/// # use {waiter::{WaitHandler, Waiter}};
/// fn write_and_send(qp: &qp::Qp<WaitHandler>, local: wr::Local<'_>, peer: &mr::Mr,
///                   waiters: [Arc<Waiter>; 2]) -> Result {
///     let flags = wr::Flags::SIGNALED;
///     let mut places = [const { Place::uninit() }; 2];
///     let mut scratch = Scratch::new(&mut places);
///     let mut run = Run::new(Target::Send(qp), &mut scratch);
///     run.push_other(&wr::Operation::write_to(peer), flags, Data::One(local))?;
///     run.push_other(&wr::Operation::send(), flags, Data::None)?;
///     run.post(false, |slot| waiters[(slot.at & 1) as usize].clone()).1
/// }
/// ```
///
/// # Invariants
///
/// The first `count` entries of `places` are initialized.
pub(crate) struct Scratch<'s> {
    places: &'s mut [Place],
    count: usize,
    /// The elements of requests that have several.
    elements: LateVec<bindings::ib_sge>,
    /// The memory of these elements, but for the first one of each request.
    more: LateVec<MoreMemory>,
    /// What slots have kept of earlier requests, beyond what [`Built::memory`] and `more` take.
    stale: LateVec<Arc<Memory>>,
}

impl<'s> Scratch<'s> {
    /// Returns memory for as many requests as `places` has entries.
    pub(crate) fn new(places: &'s mut [Place]) -> Self {
        // INVARIANT: `count` is 0.
        Self {
            places,
            count: 0,
            elements: LateVec::new(),
            more: LateVec::new(),
            stale: LateVec::new(),
        }
    }

    /// Returns the requests from number `first` on.
    #[inline(always)]
    fn built(&mut self, first: usize) -> &mut [Built] {
        let places = self.places.get_mut(first..self.count).unwrap_or_default();
        let places: *mut [Place] = places;
        // SAFETY: By the type invariant these entries are initialized.
        unsafe { &mut *(places as *mut [Built]) }
    }

    /// Makes request number `count` - 1 after number `first` keep its memory, which a later request
    /// has: that is not posted.
    #[cold]
    fn keep_last(&mut self, first: usize, count: usize) {
        let built = self.built(first);
        let later = built
            .iter()
            .skip(count)
            .find_map(|built| built.memory.clone());
        if let Some(last) = count.checked_sub(1).and_then(|last| built.get_mut(last)) {
            if last.memory.is_none() {
                last.memory = later;
            }
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // The rest of them needs no drop.
        for built in self.built(0) {
            drop(built.memory.take());
            drop(built.ah.take());
        }
    }
}

/// Splits `more` behind the memory of request number `at`, with which it begins if it has some.
#[inline(never)]
fn split_behind(at: u32, more: &mut [MoreMemory]) -> (&mut [MoreMemory], &mut [MoreMemory]) {
    let count = more.iter().take_while(|more| more.at == at).count();
    more.split_at_mut_checked(count).unwrap_or_default()
}

/// The slot that a request gets.
///
/// ```
/// fn is_reported(slot: Slot) -> bool {
///     slot.is_last || slot.at % 16 == 15
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The number of the request in its run.
    pub(crate) at: u32,
    /// Whether no later request of the run gets a slot.
    pub(crate) is_last: bool,
    /// The bytes of its data.
    pub(crate) bytes: u32,
}

/// The data of a request that is being built.
#[derive(Default)]
struct NewData {
    num_sge: c_int,
    sge: bindings::ib_sge,
    first: u32,
    bytes: u32,
    memory: Option<Arc<Memory>>,
}

/// Consecutive requests for one queue.
///
/// [`Self::push`] builds requests, up to the first one that it refuses. [`Self::post`] posts those
/// before. Process context.
///
/// ```
/// # use {waiter::{WaitHandler, Waiter}};
/// fn receive(qp: &qp::Qp<WaitHandler>, local: wr::Local<'_>, waiter: Arc<Waiter>) -> Result {
///     let mut places = [const { Place::uninit() }; 1];
///     let mut scratch = Scratch::new(&mut places);
///     let mut run = Run::new(Target::Recv(qp), &mut scratch);
///     run.push(wr::Plain::new(wr::Opcode::RECV, 0), wr::Flags::NONE, local)?;
///     run.post(false, |_| waiter.clone()).1
/// }
/// ```
pub(crate) struct Run<'a, 's, H: WrHandler> {
    target: Target<'a, H>,
    scratch: &'a mut Scratch<'s>,
    /// The number in `scratch` of the first request.
    first: usize,
    /// The number in [`Scratch::more`] of the first entry of the run.
    first_more: usize,
    /// The memory of the requests before the next one, up to one of other memory. A queue pair
    /// completes requests in order, so that the slot of the last of them keeps it.
    memory: Option<Arc<Memory>>,
    /// What requests need that only some have, for which the queue has memory.
    needs: Needs,
    is_send: bool,
    /// Whether the queue takes datagrams.
    is_datagram: bool,
    /// Whether the queue is shared: each request keeps its memory itself.
    is_shared: bool,
    max_sge: u32,
}

impl<'a, 's, H: WrHandler> Run<'a, 's, H> {
    /// Returns a run without requests.
    pub(crate) fn new(target: Target<'a, H>, scratch: &'a mut Scratch<'s>) -> Self {
        Self {
            target,
            first: scratch.count,
            first_more: scratch.more.len(),
            scratch,
            memory: None,
            needs: Needs::NONE,
            is_send: matches!(target, Target::Send(_)),
            is_datagram: matches!(target, Target::Send(qp) if qp.qp_type() == QpType::Ud),
            is_shared: matches!(target, Target::Shared(_)),
            max_sge: target.queue().max_sge,
        }
    }

    /// Prepares for requests with a [`Reference`](super::request::WrContext::Reference). Sleeps. Fails with [`ENOMEM`].
    pub(crate) fn expect_references(&mut self) -> Result {
        self.expect(Needs::REFERENCE)
    }

    /// Prepares for requests with a [`start_ns`](super::request::WrContext::start_ns). Sleeps. Fails with [`ENOMEM`].
    pub(crate) fn expect_starts(&mut self) -> Result {
        self.expect(Needs::START)
    }

    /// Prepares for requests with a deadline: [`end_ns`](super::request::WrContext::end_ns) of one may not be 0. Sleeps. Fails
    /// with [`ENOMEM`].
    pub(crate) fn expect_deadlines(&mut self) -> Result {
        self.expect(Needs::DEADLINE)
    }

    /// Has the queue make memory for what a request `needs`.
    fn expect(&mut self, needs: Needs) -> Result {
        if !self.needs.has(needs) {
            self.target.queue().reserve_sides(needs)?;
            self.needs = self.needs.and(needs);
        }
        Ok(())
    }

    /// Builds the next request, with the element `local`. May sleep. `flags` have no meaning for a
    /// receive.
    ///
    /// The memory and the address of a datagram stay alive until the device is done with the request,
    /// and longer, see [`super::qp`]. When it fails, the run is as before. It fails with
    ///
    /// - [`EINVAL`] for an operation of another kind of queue, for a datagram on a connected queue
    ///   pair, and for other sends on UD,
    /// - [`EXDEV`] when the memory or the address belongs to another protection domain,
    /// - [`E2BIG`] for too many elements,
    /// - [`ENOMEM`] when there is no memory, or no place is left.
    #[inline(always)]
    pub(crate) fn push(&mut self, operation: Plain, flags: Flags, local: Local<'_>) -> Result {
        if operation.is_partial() {
            return Err(EINVAL);
        }
        self.check(operation.is_recv(), None)?;
        if self.max_sge == 0 {
            return Err(E2BIG);
        }
        let place = self.place()?;
        let is_same = match &self.memory {
            Some(memory) => Arc::ptr_eq(memory, local.memory),
            None => false,
        };
        let memory = if is_same {
            None
        } else {
            self.change_memory(local)?
        };
        let new = NewData {
            num_sge: 1,
            sge: local.raw,
            first: 0,
            bytes: local.raw.length,
            memory,
        };
        // SAFETY: `place` is memory for a request.
        unsafe { operation.fill(&raw mut (*place).wr, flags.to_raw(false), new.num_sge) };
        self.build(place, new, None);
        Ok(())
    }

    /// Builds the next request as [`Self::push`] does, with any `operation` and `data`. Fails with
    /// [`EMSGSIZE`] for too much inline data, too.
    #[inline(never)]
    pub(crate) fn push_other(
        &mut self,
        operation: &Operation<'_>,
        flags: Flags,
        data: Data<'_, '_, 's>,
    ) -> Result {
        let ah = operation.ah();
        self.check(operation.is_recv(), ah)?;
        let place = self.place()?;
        let (elements, more) = (self.scratch.elements.len(), self.scratch.more.len());
        let is_inline = matches!(data, Data::Inline(_));
        let new = match data {
            Data::None => Ok(NewData::default()),
            Data::One(local) => self.many(&mut core::iter::once(local)),
            Data::Many(locals) => self.many(locals),
            Data::Inline(data) => self.inline(data),
        };
        match new {
            Ok(new) => {
                let send_flags = flags.to_raw(is_inline);
                // SAFETY: `place` is memory for a request.
                unsafe { operation.fill(&raw mut (*place).wr, send_flags, new.num_sge) };
                self.build(place, new, ah.cloned());
            }
            Err(error) => {
                self.scratch.elements.truncate(elements);
                self.scratch.more.truncate(more);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks that the queue takes a receive, or a send to `ah`.
    #[inline(always)]
    fn check(&mut self, is_recv: bool, ah: Option<&Arc<Ah>>) -> Result {
        if is_recv == self.is_send {
            return Err(EINVAL);
        }
        if self.is_datagram || ah.is_some() {
            return self.check_address(ah);
        }
        Ok(())
    }

    /// Checks that the queue takes datagrams and the request is one to an address of the protection
    /// domain, or neither. Sleeps.
    #[inline(never)]
    fn check_address(&mut self, ah: Option<&Arc<Ah>>) -> Result {
        let Target::Send(qp) = self.target else {
            return Err(EINVAL);
        };
        if ah.is_some_and(|ah| !Arc::ptr_eq(ah.pd(), qp.pd())) {
            return Err(EXDEV);
        }
        if !qp.note_address(ah) {
            return Err(EINVAL);
        }
        self.expect(Needs::ADDRESS)
    }

    /// Returns the place of the next request; [`ENOMEM`] if none is left.
    #[inline(always)]
    fn place(&mut self) -> Result<*mut Built> {
        let at = self.scratch.count;
        Ok(self.scratch.places.get_mut(at).ok_or(ENOMEM)?.as_mut_ptr())
    }

    /// Writes the next request to its [`Self::place`], where its operation is.
    #[inline(always)]
    fn build(&mut self, place: *mut Built, new: NewData, ah: Option<Arc<Ah>>) {
        // SAFETY: `place` is memory for a request. Each of its fields is written, and of `wr` those
        // that drivers read were.
        unsafe {
            (&raw mut (*place).sge).write(new.sge);
            (&raw mut (*place).first).write(new.first);
            (&raw mut (*place).bytes).write(new.bytes);
            (&raw mut (*place).memory).write(new.memory);
            (&raw mut (*place).ah).write(ah);
        }
        // INVARIANT: Just initialized.
        self.scratch.count = self.scratch.count.wrapping_add(1);
    }

    /// Notes that the next request uses the memory of `local`, and those before it other memory.
    /// Returns what the next request keeps itself. Fails with [`EXDEV`].
    #[inline(never)]
    fn change_memory(&mut self, local: Local<'_>) -> Result<Option<Arc<Memory>>> {
        let memory = self.new_memory(local)?;
        if self.is_shared {
            return Ok(Some(memory));
        }
        self.end_memory();
        self.memory = Some(memory);
        Ok(None)
    }

    /// Makes the last request keep the memory of those up to it.
    fn end_memory(&mut self) {
        let first = self.first;
        if let (Some(memory), Some(last)) =
            (self.memory.take(), self.scratch.built(first).last_mut())
        {
            last.memory = Some(memory);
        }
    }

    /// Returns a new reference to the memory of `local`. Fails with [`EXDEV`].
    fn new_memory(&self, local: Local<'_>) -> Result<Arc<Memory>> {
        if !Arc::ptr_eq(local.memory.pd(), self.target.pd()) {
            return Err(EXDEV);
        }
        Ok(local.memory.clone())
    }

    /// Returns the data of a request with the elements `locals`.
    fn many<'l>(&mut self, locals: &mut dyn Iterator<Item = Local<'l>>) -> Result<NewData> {
        let at = self.scratch.count.saturating_sub(self.first) as u32;
        let mut new = NewData {
            first: self.scratch.elements.len() as u32,
            ..NewData::default()
        };
        let mut last: Option<&Arc<Memory>> = None;
        for local in locals {
            if new.num_sge as u32 >= self.max_sge {
                return Err(E2BIG);
            }
            new.num_sge = new.num_sge.wrapping_add(1);
            new.sge = local.raw;
            new.bytes = new.bytes.wrapping_add(local.raw.length);
            let elements = self.scratch.elements.made();
            elements.push(new.sge, GFP_KERNEL_ACCOUNT)?;
            if last.is_some_and(|last| Arc::ptr_eq(last, local.memory)) {
                continue;
            }
            last = Some(local.memory);
            let memory = Some(self.new_memory(local)?);
            if new.memory.is_none() {
                new.memory = memory;
                continue;
            }
            self.expect(Needs::MEMORY)?;
            let more = MoreMemory { at, memory };
            self.scratch.more.made().push(more, GFP_KERNEL_ACCOUNT)?;
        }
        // The request keeps memory itself, and cannot keep that of those before it.
        self.end_memory();
        Ok(new)
    }

    /// Returns the inline `data` of a request. Drivers take it by its kernel address.
    fn inline(&self, data: &'s [u8]) -> Result<NewData> {
        if !self.is_send {
            return Err(EINVAL);
        }
        if data.len() > self.target.queue().max_inline as usize {
            return Err(EMSGSIZE);
        }
        if data.is_empty() {
            return Ok(NewData::default());
        }
        if self.max_sge == 0 {
            return Err(E2BIG);
        }
        let bytes = data.len() as u32;
        Ok(NewData {
            num_sge: 1,
            sge: bindings::ib_sge {
                addr: data.as_ptr() as u64,
                length: bytes,
                lkey: 0,
            },
            bytes,
            ..NewData::default()
        })
    }

    /// Posts the requests. With `reports_last`, the device reports the last one that it gets.
    ///
    /// Calls `make` for each request that gets a slot, in order, under the lock of the queue. The queue
    /// keeps what that returns, see [`super::request`]. `make` must not sleep.
    ///
    /// Returns how many requests the device took, and the error with which the next one was refused:
    ///
    /// - [`enotconn`] when the queue is not in a state that takes requests, and has taken none,
    /// - [`EAGAIN`] when the queue is full,
    /// - the error of the driver; `discard` was called for those that it refused.
    #[inline(never)]
    pub(crate) fn post(
        mut self,
        reports_last: bool,
        mut make: impl FnMut(Slot) -> H::Request,
    ) -> (u32, Result) {
        self.end_memory();
        let queue = self.target.queue();
        if queue.keeps_many() {
            // Without memory, the slots keep for longer what they would give away.
            let _ = self.scratch.stale.made().reserve(MAX_POST, GFP_KERNEL);
        }
        let wanted = self.scratch.count.saturating_sub(self.first) as u32;
        if wanted == 0 {
            return (0, Ok(()));
        }
        // Held over the driver's call, so that the posted slots are in the order of posting.
        let mut lists = queue.lists.lock();
        if lists.closed || !self.target.is_ready() {
            drop(lists);
            return (0, Err(enotconn()));
        }
        let count = queue.free(&lists).min(wanted);
        let slots = match count {
            0 => None,
            _ => lists.order.push(count),
        };
        let Some(slot) = slots else {
            drop(lists);
            return (0, Err(EAGAIN));
        };
        if count < wanted {
            self.scratch.keep_last(self.first, count as usize);
        }
        let unsignaled = lists.unsignaled;
        let first = self.fill_slots(&mut lists, (slot, count), reports_last, &mut make);
        // A driver that refuses all requests may leave this alone.
        let mut bad: *const c_void = first.cast_const().cast();
        let bad_out: *mut *const c_void = &mut bad;
        // SAFETY: `fill_slots` has linked the requests, and the last one ends the list. They and their
        // elements belong to the scratch, which nobody accesses until the call returns; their inline
        // data is borrowed for `'s`. Each has a `wr_cqe`, and the caller keeps a place in the
        // completion queue.
        let err = unsafe { self.target.call_driver(first, bad_out) };
        lists.used = true;
        let (mut taken, mut old) = (count, None);
        if err != 0 {
            lists.unsignaled = unsignaled;
            (taken, old) = self.take_back(&mut lists, count, bad);
        }
        if self.needs.has(Needs::DEADLINE) {
            queue.start_timer(&mut lists);
        }
        drop(lists);
        drop(old);
        match to_result(err) {
            Ok(()) if count < wanted => (taken, Err(EAGAIN)),
            result => (taken, result),
        }
    }

    /// Puts the first `count` requests, at least one, into as many slots from `index` on, which were just
    /// posted, and links them for the driver. Returns the first of them. The links are derived from that pointer: the requests are not
    /// borrowed again while the driver follows them.
    // Apart from what builds requests: together they do not fit the registers.
    #[inline(never)]
    fn fill_slots(
        &mut self,
        lists: &mut Lists<H::Request>,
        (mut index, count): (u32, u32),
        reports_last: bool,
        make: &mut impl FnMut(Slot) -> H::Request,
    ) -> *mut Wr {
        let queue = self.target.queue();
        let (is_send, timed) = (self.is_send, self.needs.has(Needs::DEADLINE));
        let depth = queue.depth();
        let elements = self.scratch.elements.as_mut_ptr();
        let first = self.scratch.built(self.first).as_mut_ptr();
        let Scratch { more, stale, .. } = &mut *self.scratch;
        let mut more = more.get_mut(self.first_more..).unwrap_or_default();
        let mut previous: *mut Wr = core::ptr::null_mut();
        for at in 0..count {
            let place = first.wrapping_add(at as usize);
            // SAFETY: The run has more than `at` requests, and nobody else accesses this one.
            let built = unsafe { &mut *place };
            // A receive is always reported.
            let is_last = at.wrapping_add(1) == count;
            let signaled = !is_send || reports_last && is_last || built.wr.is_signaled();
            let bytes = built.bytes;
            let make = || make(Slot { at, is_last, bytes });
            let ah = &mut built.ah;
            let Some(posted) = queue.push(lists, index, make, signaled, timed, ah) else {
                // Not reached: `index` is a slot.
                break;
            };
            if posted.is_keeping || built.memory.is_some() {
                let (mine, rest) = split_behind(at, core::mem::take(&mut more));
                more = rest;
                queue.keep(lists, index, &mut built.memory, mine, stale);
            }
            if is_send {
                let signaled = signaled || posted.is_timed;
                if lists.unsignaled.next(signaled, depth) || signaled {
                    built.wr.signal();
                }
            }
            let sg_list = if built.wr.num_sge() > 1 {
                elements.wrapping_add(built.first as usize)
            } else {
                // SAFETY: A pointer into the request is made.
                unsafe { &raw mut (*place).sge }
            };
            // SAFETY: As above.
            let wr = unsafe { &raw mut (*place).wr };
            // SAFETY: `build` has filled both, if there is one before.
            unsafe { Wr::link(wr, posted.cqe, sg_list, previous) };
            previous = wr;
            index = lists.order.next(index);
        }
        // SAFETY: A pointer into the first request is made; the caller says that there is one.
        unsafe { &raw mut (*first).wr }
    }

    /// Takes back the requests from `bad` on, of `count` that are in slots: the device has not taken
    /// them. Returns how many are before that, and a reference that is to be dropped without the
    /// lock.
    #[cold]
    fn take_back(
        &mut self,
        lists: &mut Lists<H::Request>,
        count: u32,
        bad: *const c_void,
    ) -> (u32, Option<Arc<Memory>>) {
        let queue = self.target.queue();
        let built = self.scratch.built(self.first);
        let before_bad = built
            .iter()
            .take_while(|built| core::ptr::from_ref(&built.wr).cast() != bad);
        let taken = (before_bad.count() as u32).min(count);
        let mut carried = None;
        for _ in taken..count {
            let Some((request, memory)) = queue.pop(lists) else {
                break;
            };
            self.target.handler().discard(request);
            // The memory of the last request that was taken may be in the slot of a later one: in
            // the first of those that keep some.
            carried = memory.or(carried);
        }
        queue.end_sharing(lists, taken);
        if self.is_send {
            for built in built.iter().take(taken as usize) {
                let signaled = built.wr.is_signaled();
                lists.unsignaled.next(signaled, queue.depth());
            }
        }
        let old = match carried {
            Some(memory) if taken > 0 => queue.adopt(lists, memory),
            other => other,
        };
        (taken, old)
    }
}
