// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! The slots are those of a [`Queue`], but any queue pair that uses the shared receive queue may
//! take any of them, so they complete out of order. A completion names its queue pair, whose owner
//! gets it.
//!
//! # Requests that nobody completes
//!
//! A queue pair takes a request when a message begins, and completes it when the message ends. A
//! queue pair that fails in between never completes the request: rxe holds a copy in the queue pair
//! (`get_srq_wqe()` in `rxe_resp.c`), which neither the flush nor the end of the queue pair
//! completes. The core calls that leakage (`__ib_drain_srq()`).
//!
//! [`Srq::reclaim`] finds such requests by their order, on drivers that take requests in the order
//! of posting:
//!
//! - Requests are numbered as they are posted. When one has completed, all older ones were taken.
//! - A queue pair completes what it takes in the same order. It holds no request that is older than
//!   the last one that it completed, and none that is older than the newest completed one when it
//!   was created.
//! - A request that was taken, and that no queue pair can hold, is completed as flushed.
//!
//! A queue pair that was reset may still hold its request: rxe completes it with the next error.

use super::{
    cq::Cq,
    event::Event,
    pd::{
        Life,
        Pd, //
    },
    queue::{
        Calls,
        CqeOwner,
        Queue,
        TakenWr, //
    },
    request::{
        CancelReason,
        Posted,
        QueueKind,
        SlotRef,
        WrHandler, //
    },
    silence::Silence,
    wr::WorkCompletion, //
};
use crate::{
    bindings,
    ext::{
        fault,
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        }, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_void,
    new_mutex,
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        MutexGuard, //
    },
    time::msecs_to_jiffies, //
};

/// How long [`Srq::wait_for_last_wqe`] waits, in milliseconds.
const LAST_WQE_MS: u32 = 10_000;

/// The progress of a queue pair: it holds no request up to this number.
struct Mark(Atomic<u64>);

impl Mark {
    fn set(&self, number: u64) {
        self.0.store(number, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The use of a shared receive queue by a queue pair.
pub(super) struct Membership<H: WrHandler> {
    srq: Arc<Srq<H>>,
    mark: Arc<Mark>,
}

impl<H: WrHandler> Membership<H> {
    /// Prepares the use of `srq` by a queue pair that is about to be created.
    pub(super) fn new(srq: Arc<Srq<H>>) -> Result<Self> {
        let mark = Arc::new(Mark(Atomic::new(0)), GFP_KERNEL_ACCOUNT)?;
        Ok(Self { srq, mark })
    }

    /// Returns the shared receive queue.
    pub(super) fn srq(&self) -> &Arc<Srq<H>> {
        &self.srq
    }
}

/// The owner of a queue pair, and its use of a shared receive queue.
pub(super) struct Member<H: WrHandler> {
    handler: H,
    shared: Option<Membership<H>>,
}

impl<H: WrHandler> Member<H> {
    /// Creates that of a queue pair.
    pub(super) fn new(handler: H, shared: Option<Membership<H>>) -> Self {
        Self { handler, shared }
    }

    /// Returns the owner of the queue pair.
    pub(super) fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns the use of a shared receive queue, if the queue pair has one.
    pub(super) fn shared(&self) -> Option<&Membership<H>> {
        self.shared.as_ref()
    }

    /// Joins the shared receive queue, if there is one, for the new queue pair `qp`. Sleeps: until
    /// [`Self::leave`] of one that had the same address is over.
    ///
    /// # Safety
    ///
    /// `self` is valid until `leave` returns.
    pub(super) unsafe fn join(&self, qp: NonNull<bindings::ib_qp>) -> Result {
        let Some(Membership { srq, mark }) = &self.shared else {
            return Ok(());
        };
        let _joining = srq.joining.lock();
        srq.reserve_member()?;
        // Older requests were taken by others.
        mark.set(srq.newest.load(Relaxed));
        srq.marks.lock().push(mark.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut members = srq.members.lock();
        let at = MemberRef::place(&members, address(qp.as_ptr()));
        // Not reached: there is room, and `at` is not beyond the end.
        members
            .insert_within_capacity(at, MemberRef::new(qp, self))
            .map_err(|_| ENOMEM)
    }

    /// Leaves the shared receive queue, if there is one: `destroy` has the driver destroy the queue
    /// pair `qp`, and returns its result. Completions that the device made before that are handled when
    /// this returns; a driver may leave them in the completion queue. Sleeps.
    pub(super) fn leave<T>(&self, qp: NonNull<bindings::ib_qp>, destroy: impl FnOnce() -> T) -> T {
        let Some(Membership { srq, mark }) = &self.shared else {
            return destroy();
        };
        // The memory of the queue pair may be that of a new one as soon as it is destroyed. That one
        // joins later: until then, what has this address is of this queue pair.
        let joining = srq.joining.lock();
        let result = destroy();
        srq.cq.empty();
        srq.members
            .lock()
            .retain(|other| other.qp != address(qp.as_ptr()));
        srq.marks.lock().retain(|other| !Arc::ptr_eq(other, mark));
        drop(joining);
        srq.suspect();
        srq.reclaim();
        result
    }
}

/// Returns the address of a queue pair, which nothing is read from.
fn address(qp: *const bindings::ib_qp) -> usize {
    qp as usize
}

/// A queue pair in the list of a shared receive queue.
///
/// # Invariants
///
/// `member` is valid while this is in the list.
struct MemberRef<H: WrHandler> {
    /// The address of its `struct ib_qp`.
    qp: usize,
    member: NonNull<Member<H>>,
}

impl<H: WrHandler> MemberRef<H> {
    fn new(qp: NonNull<bindings::ib_qp>, member: &Member<H>) -> Self {
        Self {
            qp: address(qp.as_ptr()),
            member: member.into(),
        }
    }

    /// Returns the index of the first of `members`, which are in order, whose address is not below
    /// `qp`.
    fn place(members: &[Self], qp: usize) -> usize {
        let (mut low, mut high) = (0usize, members.len());
        while low < high {
            let middle = low.midpoint(high);
            match members.get(middle) {
                Some(member) if member.qp < qp => low = middle.saturating_add(1),
                _ => high = middle,
            }
        }
        low
    }

    /// Returns the one of `members`, which are in order, with the address `qp`.
    fn find(members: &[Self], qp: usize) -> Option<&Self> {
        let member = members.get(Self::place(members, qp))?;
        (member.qp == qp).then_some(member)
    }
}

// SAFETY: A `Member` is `Send` and `Sync`: its handler is, by the bounds of `WrHandler`, and so are
// `Srq` and `Mark`.
unsafe impl<H: WrHandler> Send for MemberRef<H> {}

/// A queue of receive requests for several queue pairs: `struct ib_srq`.
///
/// Dropping it ends it, see [`Srq::shut_down`]. That sleeps.
///
/// ```
/// # use {post::{Place, Run, Scratch, Target}, waiter::{WaitHandler, Waiter}, wr::{Flags, Opcode, Plain}};
/// fn post(pd: Arc<pd::Pd>, cq: Arc<cq::Cq>, local: wr::Local<'_>, request: Arc<Waiter>) -> Result {
///     let srq = Srq::new(pd, cq, 128, 1, silence::Silence::new()?, WaitHandler)?;
///     let mut place = [Place::uninit()];
///     let mut scratch = Scratch::new(&mut place);
///     let mut run = Run::new(Target::Shared(&srq), &mut scratch);
///     run.push(Plain::new(Opcode::RECV, 0), Flags::NONE, local)?;
///     run.post(false, |_| request.clone()).1
/// }
/// ```
///
/// # Invariants
///
/// - `ptr` is a shared receive queue of `pd` that this value owns. Its context is this value. It is
///   valid while `life` is held and says [`Life::Alive`], and while the lock of the queue is held and
///   that is not closed.
/// - `pd` and `cq` belong to one device.
/// - Every slot of the queue points back at this value, which does not move.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq<H: WrHandler> {
    ptr: NonNull<bindings::ib_srq>,
    max_wr: u32,
    max_sge: u32,
    /// Whether the driver takes requests in the order of posting.
    in_order: bool,
    silence: Arc<Silence>,
    /// Serializes queries, changes, and the end. Taken before `Cq::polling`.
    #[pin]
    life: Mutex<Life>,
    #[pin]
    queue: Queue<H::Request>,
    /// The highest number of a completed request.
    newest: Atomic<u64>,
    /// The highest number of a request that a queue pair may have held when it ended; 0 when every
    /// such request is accounted for.
    suspect: Atomic<u64>,
    /// Held while a queue pair joins, and while one that leaves is destroyed. Taken before `marks`.
    #[pin]
    joining: Mutex<()>,
    /// The queue pairs that use the queue, by their addresses. Held over the calls of their handlers.
    /// Taken before the locks of handlers.
    #[pin]
    members: SpinLockBh<KVVec<MemberRef<H>>>,
    /// The progress of the queue pairs that use the queue. Taken before `Queue::lists`.
    #[pin]
    marks: Mutex<KVVec<Arc<Mark>>>,
    handler: H,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. The other fields are `Send` and
// `Sync` by themselves; `handler` and the requests are so by the bounds of `WrHandler`.
unsafe impl<H: WrHandler> Send for Srq<H> {}
// SAFETY: As above.
unsafe impl<H: WrHandler> Sync for Srq<H> {}

impl<H: WrHandler> Srq<H> {
    /// Creates a shared receive queue for `max_wr` requests of `max_sge` elements each. Sleeps.
    ///
    /// The caller checks both against the limits of the device. The queue pairs that use the queue
    /// complete their receives in `cq`, which has room for `max_wr` completions and for
    /// [`CQ_RESERVE`](super::qp::CQ_RESERVE) more. Fails with [`EXDEV`] when `pd` and `cq` belong
    /// to different devices.
    pub(crate) fn new(
        pd: Arc<Pd>,
        cq: Arc<Cq>,
        max_wr: u32,
        max_sge: u32,
        silence: Arc<Silence>,
        handler: H,
    ) -> Result<Arc<Self>> {
        if pd.device() != cq.device() {
            return Err(EXDEV);
        }
        let in_order = pd.device().has_ordered_srq();
        let raw_pd = pd.as_raw();
        fault::point()?;
        Arc::pin_init(
            try_pin_init!(&this in Self {
                in_order,
                silence,
                life <- new_mutex!(Life::Alive, "rdma::Srq::life"),
                // SAFETY: The functions take a value like this. It is complete when something is
                // posted, and stops the queue's timer before it is freed.
                queue <- unsafe {
                    Queue::new(
                        QueueKind::Recv,
                        true,
                        this.as_ptr().cast(),
                        Calls { done: Self::done, expired: Self::expired },
                        max_wr,
                        max_sge,
                        0,
                    )
                }?,
                newest: Atomic::new(0),
                suspect: Atomic::new(0),
                joining <- new_mutex!((), "rdma::Srq::joining"),
                members <- new_spinlock_bh!(KVVec::new(), "rdma::Srq::members"),
                marks <- new_mutex!(KVVec::new(), "rdma::Srq::marks"),
                handler,
                // SAFETY: The domain outlives the queue. No event is raised before there are
                // requests, and then the value is complete.
                ptr: unsafe { Self::create(raw_pd, this.as_ptr(), max_wr, max_sge) }?,
                max_wr,
                max_sge,
                cq,
                pd,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Has the driver create a queue in `pd`, whose context is `this`. Sleeps.
    ///
    /// # Safety
    ///
    /// `pd` is valid and outlives the queue. `this` is complete when the queue raises an event.
    unsafe fn create(
        pd: *mut bindings::ib_pd,
        this: *mut Self,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<NonNull<bindings::ib_srq>> {
        // SAFETY: By the requirements.
        let ptr = from_err_ptr(unsafe {
            bindings::rust_ulp_h_create_srq(pd, Some(Self::event), this.cast(), max_wr, max_sge)
        })?;
        NonNull::new(ptr).ok_or(ENOMEM)
    }

    /// Makes room in `members` for one more. `joining` is held, so that it stays. Sleeps.
    fn reserve_member(&self) -> Result {
        let members = self.members.lock();
        let (len, room) = (members.len(), members.capacity());
        drop(members);
        if len < room {
            return Ok(());
        }
        let wanted = len.checked_mul(2).ok_or(ENOMEM)?.max(4);
        let mut larger = KVVec::with_capacity(wanted, GFP_KERNEL_ACCOUNT)?;
        let mut members = self.members.lock();
        for member in members.drain_all() {
            // Not reached: there is room.
            larger.push_within_capacity(member).map_err(|_| ENOMEM)?;
        }
        core::mem::swap(&mut *members, &mut larger);
        drop(members);
        // What is left is freed without the lock.
        drop(larger);
        Ok(())
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_srq {
        self.ptr.as_ptr()
    }

    pub(super) fn queue(&self) -> &Queue<H::Request> {
        &self.queue
    }

    /// Returns the requests that the queue has taken.
    pub(crate) fn posted(&self) -> Posted {
        self.queue.posted()
    }

    /// Returns the owner.
    pub(crate) fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns the protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the completion queue of the receives.
    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Returns the number of requests that the queue can hold.
    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Returns the number of elements that a request can have.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the number of posted requests. Process context or softirq.
    pub(crate) fn in_flight(&self) -> u32 {
        self.queue.lists.lock().order.posted()
    }

    /// Returns the number of posted requests that are older than one that has completed: queue
    /// pairs have taken them. 0 where the driver does not take requests in the order of posting.
    /// Process context or softirq.
    pub(crate) fn overtaken(&self) -> u32 {
        if !self.in_order {
            return 0;
        }
        let lists = self.queue.lists.lock();
        // None of these has completed.
        let younger = lists.number.saturating_sub(self.newest.load(Relaxed));
        lists
            .order
            .posted()
            .saturating_sub(u32::try_from(younger).unwrap_or(u32::MAX))
    }

    /// Has the device raise `IB_EVENT_SRQ_LIMIT_REACHED` once, when fewer than `limit` requests are
    /// left; 0 disarms it. Sleeps. Fails with [`ENOENT`] when the queue has ended.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        let mut attr = bindings::ib_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        let _life = self.lock()?;
        fault::point()?;
        // SAFETY: The queue and the attributes are valid.
        to_result(unsafe {
            bindings::ib_modify_srq(self.as_raw(), &mut attr, bindings::IB_SRQ_LIMIT)
        })
    }

    /// Returns the armed limit, 0 when none is. Sleeps. Fails with [`ENOENT`] when the queue has ended.
    pub(crate) fn limit(&self) -> Result<u32> {
        let mut attr = bindings::ib_srq_attr::default();
        let _life = self.lock()?;
        fault::point()?;
        // SAFETY: The queue and the attributes are valid.
        to_result(unsafe { bindings::ib_query_srq(self.as_raw(), &mut attr) })?;
        Ok(attr.srq_limit)
    }

    /// # Safety
    ///
    /// Called by the driver with the context of a queue like this.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The context is the queue, which outlives its events, see `new`.
        let (this, event) = unsafe { (&*context.cast::<Self>(), &*event) };
        this.handler.event(Event::new(event));
    }

    /// Handles the completion of a request of a queue like this. Called by `rust_ulp_completion`.
    ///
    /// # Safety
    ///
    /// `wc` is the completion of such a request.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The core passes a completion that is valid during the call. Its `wr_cqe` came out
        // of `Queue::push`. The slot lives in the queue, which outlives the queue pairs that use it:
        // `Member::leave` empties the completion queue after the driver has destroyed one. While there
        // is one that it did not destroy, `ib_destroy_srq_user()` (drivers/infiniband/core/verbs.c)
        // refuses, and then `shut_down` has completions ignored.
        let ((owner, index), wc) = unsafe {
            let wc = &*wc;
            (CqeOwner::slot_of(wc.__bindgen_anon_1.wr_cqe), wc)
        };
        // SAFETY: By the type invariant.
        let this = unsafe { &*owner.context.cast::<Self>() };
        // Nothing is read through `wc.qp`: a driver may have made the completion while the queue pair
        // was destroyed (`rxe_receiver()`, drivers/infiniband/sw/rxe/rxe_resp.c).
        let qp = address(wc.qp);
        let members = this.members.lock();
        match MemberRef::find(&members, qp) {
            Some(found) => {
                // SAFETY: By the type invariant of `MemberRef`. The lock keeps it in the list.
                let member = unsafe { found.member.as_ref() };
                this.completed(index, member, &WorkCompletion::new(wc));
            }
            // The receive belongs to a queue pair that its driver did not destroy.
            None => this.flush(index),
        }
    }

    fn completed(&self, index: u32, member: &Member<H>, wc: &WorkCompletion) {
        let Some(TakenWr {
            request,
            number,
            canceled,
        }) = self.queue.take(index)
        else {
            pr_warn_once!("a driver completed a shared request twice\n");
            return;
        };
        // Only this function stores it, and completions of one queue are handled one after the
        // other.
        if number > self.newest.load(Relaxed) {
            self.newest.store(number, Relaxed);
        }
        if let Some(shared) = &member.shared {
            shared.mark.set(number);
        }
        if canceled {
            member.handler.complete_canceled(request, wc);
        } else {
            member.handler.complete(QueueKind::Recv, request, wc);
        }
    }

    /// Cancels requests whose deadline has passed. Called by a worker.
    ///
    /// # Safety
    ///
    /// `this` is a queue like this.
    unsafe extern "C" fn expired(this: *const c_void) {
        // SAFETY: By the requirement.
        let this = unsafe { &*this.cast::<Self>() };
        let report = |request| this.handler.cancel(request, CancelReason::Timeout);
        this.queue.expire(report);
    }

    /// Cancels the requests that `which` selects, and returns how many it canceled. Context as for
    /// [`Qp::cancel`](super::qp::Qp::cancel).
    pub(crate) fn cancel(&self, which: impl Fn(SlotRef<'_, H::Request>) -> bool) -> u32 {
        let report = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel(which, report)
    }

    /// Cancels the request in slot `slot`, if `which` selects it. Context as for [`Self::cancel`].
    pub(crate) fn cancel_slot(
        &self,
        slot: u32,
        which: impl Fn(SlotRef<'_, H::Request>) -> bool,
    ) -> bool {
        let report = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel_slot(slot, which, report)
    }

    /// Waits until the device has said that `qp`, which is in ERR, has left the queue. Sleeps.
    ///
    /// A device that has once not said so in time, because it is broken, is not waited for again by the
    /// same owner: see [`Silence`]. A queue pair that was not waited for may complete a request until it
    /// is destroyed, and may keep one.
    ///
    /// # Safety
    ///
    /// `qp` is a valid queue pair that uses this queue.
    pub(super) unsafe fn wait_for_last_wqe(&self, qp: *mut bindings::ib_qp) {
        let jiffies = msecs_to_jiffies(LAST_WQE_MS);
        let silent = &self.silence.events;
        // SAFETY: By the requirement.
        if silent.load(Relaxed) || unsafe { bindings::rust_ulp_h_wait_last_wqe(qp, jiffies) } {
            return;
        }
        silent.store(true, Relaxed);
        pr_warn_once!("a driver did not say that a queue pair took its last request\n");
    }

    /// Notes that a queue pair ends or was reset: it may have taken any posted request.
    pub(super) fn suspect(&self) {
        let number = self.queue.lists.lock().number;
        self.suspect.store(number, Relaxed);
    }

    /// Completes, as flushed, the requests that were taken by queue pairs which no longer exist.
    /// Sleeps. The description of this module says how.
    pub(crate) fn reclaim(&self) {
        let suspect = self.suspect.load(Relaxed);
        if !self.in_order || suspect == 0 {
            return;
        }
        // Held to the end: one thread at a time reclaims.
        let marks = self.marks.lock();
        // Read before the marks: a later call handles what completes from here on.
        let newest = self.newest.load(Relaxed);
        let passed = marks.iter().map(|mark| mark.get()).fold(newest, u64::min);
        while let Some((first, number)) = self.queue.oldest() {
            match number {
                number if number <= passed => self.flush(first),
                number if number <= suspect => return,
                _ => break,
            }
        }
        // A queue pair that joined since then holds newer requests only. A queue pair that ended
        // since then has changed `suspect`, and calls this again.
        let _ = self.suspect.cmpxchg(suspect, 0, Relaxed);
    }

    fn flush(&self, index: u32) {
        let wc = &WorkCompletion::FLUSHED;
        match self.queue.take(index) {
            Some(taken) if taken.canceled => self.handler.complete_canceled(taken.request, wc),
            Some(taken) => self.handler.complete(QueueKind::Recv, taken.request, wc),
            None => (),
        }
    }

    /// Drops what free slots still hold of their last requests. Sleeps.
    pub(crate) fn purge(&self) {
        self.queue.purge();
    }

    /// Keeps the device's queue from ending. Sleeps. Fails with [`ENOENT`] when it has ended.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Life>> {
        let life = self.life.lock();
        match *life {
            Life::Alive => Ok(life),
            Life::Ended | Life::Leaked => Err(ENOENT),
        }
    }

    /// Ends the queue, whoever else has it: refuses requests, has the driver destroy it, and completes
    /// those that are left as flushed. Later calls do nothing. Sleeps.
    ///
    /// The queue pairs that use it have ended before.
    pub(crate) fn shut_down(&self) {
        let mut life = self.life.lock();
        if *life != Life::Alive {
            return;
        }
        self.queue.lists.lock().closed = true;
        fault::step();
        // SAFETY: Owned. Nothing is posted any more, and `life` is held: nobody uses it. A queue pair
        // that its driver did not destroy makes this fail.
        let err =
            unsafe { bindings::ib_destroy_srq_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
        *life = match err {
            0 => Life::Ended,
            _ => Life::Leaked,
        };
        if err != 0 {
            pr_warn_once!(
                "a driver refused to destroy a shared receive queue: {}; it is leaked\n",
                err
            );
            // SAFETY: The queue is still valid.
            unsafe { bindings::rust_ulp_h_disown_srq(self.ptr.as_ptr()) };
            self.pd.leak();
        }
        // A leaked queue pair may have completed requests.
        self.cq.empty();
        while let Some((first, _)) = self.queue.oldest() {
            self.flush(first);
        }
        self.queue.stop();
        if err != 0 {
            self.queue.ignore();
            self.cq.empty();
        }
        self.handler
            .destroyed(Posted::default(), self.queue.posted());
    }
}

#[pinned_drop]
impl<H: WrHandler> PinnedDrop for Srq<H> {
    fn drop(self: Pin<&mut Self>) {
        self.shut_down();
        if *self.life.lock() == Life::Leaked {
            // SAFETY: Nothing is moved.
            unsafe { self.get_unchecked_mut() }.queue.leak();
        }
    }
}
