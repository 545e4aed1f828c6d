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
    pd::Pd,
    qp_attr::mask,
    queue::{
        Calls,
        Queue,
        TakenWr,
        WrSlot, //
    },
    request::{
        CancelReason,
        Posted,
        QueueKind,
        WrHandler, //
    },
    wr::WorkCompletion, //
};
use crate::{
    bindings,
    kernel::fault, //
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
            AtomicFlag,
            Relaxed, //
        },
        Arc,
        Mutex, //
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
    /// Joins `srq` for a queue pair that is about to be created. Sleeps.
    pub(super) fn new(srq: Arc<Srq<H>>) -> Result<Self> {
        let mut marks = srq.marks.lock();
        // Older requests were taken by others.
        let mark = Arc::new(
            Mark(Atomic::new(srq.newest.load(Relaxed))),
            GFP_KERNEL_ACCOUNT,
        )?;
        marks.push(mark.clone(), GFP_KERNEL_ACCOUNT)?;
        drop(marks);
        Ok(Self { srq, mark })
    }

    /// Returns the shared receive queue.
    pub(super) fn srq(&self) -> &Arc<Srq<H>> {
        &self.srq
    }
}

impl<H: WrHandler> Drop for Membership<H> {
    /// Leaves the shared receive queue: the queue pair no longer exists, and its completions are
    /// handled. Sleeps.
    fn drop(&mut self) {
        self.srq
            .marks
            .lock()
            .retain(|other| !Arc::ptr_eq(other, &self.mark));
        self.srq.suspect();
        self.srq.reclaim();
    }
}

/// The context of every queue pair, by which a shared receive queue finds the owner and the
/// progress of the queue pair that completed a request.
pub(super) struct Member<H: WrHandler> {
    handler: H,
    shared: Option<Membership<H>>,
}

impl<H: WrHandler> Member<H> {
    /// Creates the context of a queue pair.
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
}

/// Whether a device failed to say in time that a queue pair has left its shared receive queue. All
/// queues of a device share one, so that a broken device is waited for once.
///
/// ```
/// fn of_device() -> Result<Arc<Silence>> {
///     Silence::new()
/// }
/// ```
pub(crate) struct Silence(AtomicFlag);

impl Silence {
    /// Makes that of a device which has not failed.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self(AtomicFlag::new(false)), GFP_KERNEL)?)
    }
}

/// A queue of receive requests for several queue pairs: `struct ib_srq`.
///
/// ```
/// # use {chain::{Chain, TargetRef}, waiter::{WaitHandler, Waiter}};
/// fn post(pd: Arc<pd::Pd>, cq: Arc<cq::Cq>, local: wr::Local<'_>, request: Arc<Waiter>) -> Result {
///     let srq = Srq::new(pd, cq, 128, 1, Silence::new()?, WaitHandler)?;
///     let mut chain = Chain::new();
///     chain.begin(TargetRef::Shared(&srq), 1, true)?;
///     chain.push_recv(core::iter::once(local), request)?;
///     chain.post(|_number, _request| ()).1
/// }
/// ```
///
/// # Invariants
///
/// - `ptr` is a shared receive queue of `pd` that this value owns. Its context is this value.
/// - `marker` is a queue pair of `pd` and `cq` in ERR that this value owns, and nobody posts to it.
/// - `pd` and `cq` belong to one device.
/// - Every slot of the queue points back at this value, which does not move.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq<H: WrHandler> {
    ptr: NonNull<bindings::ib_srq>,
    marker: NonNull<bindings::ib_qp>,
    max_wr: u32,
    max_sge: u32,
    /// Whether the driver takes requests in the order of posting.
    in_order: bool,
    silence: Arc<Silence>,
    #[pin]
    queue: Queue<H::Request>,
    /// The highest number of a completed request.
    newest: Atomic<u64>,
    /// The highest number of a request that a queue pair may have held when it ended; 0 when every
    /// such request is accounted for.
    suspect: Atomic<u64>,
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
        let in_order = pd.device().is_driven_by(c"rdma_rxe");
        let marker = Self::new_marker(&pd, &cq)?;
        let marker_pd = pd.clone();
        let destroy = kernel::types::ScopeGuard::new(|| {
            // SAFETY: The queue pair is owned, and nothing is posted to it.
            unsafe { marker_pd.destroy_qp(marker) };
        });
        let raw_pd = pd.as_raw();
        fault::point()?;
        let this = Arc::pin_init(
            try_pin_init!(&this in Self {
                marker,
                in_order,
                silence,
                // SAFETY: The functions take a value like this. It is complete when something is
                // posted, and stops the queue's timer before it is freed.
                queue <- unsafe {
                    Queue::new(
                        QueueKind::Recv,
                        this.as_ptr().cast(),
                        Calls { done: Self::done, expired: Self::expired },
                        max_wr,
                        max_sge,
                        0,
                    )
                }?,
                newest: Atomic::new(0),
                suspect: Atomic::new(0),
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
        )?;
        destroy.dismiss();
        Ok(this)
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

    /// Creates a queue pair in ERR. What is posted to it completes at once, after everything in the
    /// completion queue.
    fn new_marker(pd: &Pd, cq: &Cq) -> Result<NonNull<bindings::ib_qp>> {
        let mut init = bindings::ib_qp_init_attr {
            send_cq: cq.as_raw(),
            recv_cq: cq.as_raw(),
            cap: bindings::ib_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..Default::default()
            },
            sq_sig_type: bindings::IB_SIGNAL_REQ_WR,
            qp_type: bindings::IB_QPT_RC,
            ..Default::default()
        };
        fault::point()?;
        // SAFETY: The domain and the queue are valid and outlive the queue pair.
        let ptr = from_err_ptr(unsafe { bindings::rust_ulp_h_create_qp(pd.as_raw(), &mut init) })?;
        let ptr = NonNull::new(ptr).ok_or(ENOMEM)?;
        // The state table has no way from RESET to ERR.
        for (state, also) in [
            (
                bindings::IB_QPS_INIT,
                mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
            ),
            (bindings::IB_QPS_ERR, 0),
        ] {
            let mut raw = bindings::ib_qp_attr {
                qp_state: state,
                port_num: 1,
                ..Default::default()
            };
            let also = mask::STATE | also;
            let modified = fault::point().and_then(|()| {
                // SAFETY: The queue pair and the attributes are valid.
                to_result(unsafe { bindings::ib_modify_qp(ptr.as_ptr(), &mut raw, also as i32) })
            });
            if let Err(err) = modified {
                // SAFETY: The queue pair is owned, and nothing was posted to it.
                unsafe { bindings::ib_destroy_qp_user(ptr.as_ptr(), core::ptr::null_mut()) };
                return Err(err);
            }
        }
        Ok(ptr)
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
    /// left; 0 disarms it. Sleeps.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        let mut attr = bindings::ib_srq_attr {
            srq_limit: limit,
            ..Default::default()
        };
        fault::point()?;
        // SAFETY: The queue and the attributes are valid.
        to_result(unsafe {
            bindings::ib_modify_srq(self.as_raw(), &mut attr, bindings::IB_SRQ_LIMIT)
        })
    }

    /// Returns the armed limit, 0 when none is. Sleeps.
    pub(crate) fn limit(&self) -> Result<u32> {
        let mut attr = bindings::ib_srq_attr::default();
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
        // of `Queue::push`. The slot lives in the queue, which outlives the queue pairs that use
        // it. They wait for their completions before they are freed.
        let (slot, wc) = unsafe {
            let wc = &*wc;
            (
                WrSlot::<H::Request>::from_cqe(wc.__bindgen_anon_1.wr_cqe),
                wc,
            )
        };
        // SAFETY: By the type invariant.
        let this = unsafe { &*slot.owner.cast::<Self>() };
        // SAFETY: The queue pair uses this queue, so its context is a `Member<H>`, or null when its
        // driver did not destroy it. The drop of `Qp` waits for this completion before it frees the
        // context.
        match unsafe {
            let context = bindings::rust_ulp_h_qp_context(wc.qp);
            context.cast::<Member<H>>().as_ref()
        } {
            Some(member) => this.completed(slot.index, member, &WorkCompletion::new(wc)),
            None => this.flush(slot.index),
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

    /// Cancels requests whose deadline has passed. Called in a softirq.
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
    pub(crate) fn cancel(&self, which: impl Fn(&H::Request) -> bool) -> u32 {
        let report = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel(which, report)
    }

    /// Cancels the request in slot `slot`, if `which` selects it. Context as for [`Self::cancel`].
    pub(crate) fn cancel_slot(&self, slot: u32, which: impl Fn(&H::Request) -> bool) -> bool {
        let report = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel_slot(slot, which, report)
    }

    /// Waits until the device has said that `qp`, which is in ERR, has left the queue. Sleeps.
    ///
    /// A device that has once not said so in time, because it is broken, is not waited for again: see
    /// [`Silence`].
    ///
    /// # Safety
    ///
    /// `qp` is a valid queue pair that uses this queue.
    pub(super) unsafe fn wait_for_last_wqe(&self, qp: *mut bindings::ib_qp) {
        let jiffies = msecs_to_jiffies(LAST_WQE_MS);
        let silent = &self.silence.0;
        // SAFETY: By the requirement.
        if silent.load(Relaxed) || unsafe { bindings::rust_ulp_h_wait_last_wqe(qp, jiffies) } {
            return;
        }
        silent.store(true, Relaxed);
        pr_warn_once!("a driver did not say that a queue pair took its last request\n");
    }

    /// Waits until all completions in the completion queue are handled. Sleeps.
    pub(super) fn synchronize(&self) {
        // SAFETY: By the type invariant the queue pair is in ERR and nobody posts to it. It has
        // room for a request, and the completion queue, which `ib_alloc_cq` made, has room for its
        // completion.
        let drain = || unsafe { bindings::ib_drain_rq(self.marker.as_ptr()) };
        self.cq.with_reserve(drain);
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
}

#[pinned_drop]
impl<H: WrHandler> PinnedDrop for Srq<H> {
    fn drop(self: Pin<&mut Self>) {
        fault::step();
        // SAFETY: Owned. The queue pairs that used it held references to this value.
        let err =
            unsafe { bindings::ib_destroy_srq_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
        if err != 0 {
            pr_warn_once!(
                "a driver refused to destroy a shared receive queue: {}; it is leaked\n",
                err
            );
            // SAFETY: The queue is still valid.
            unsafe { bindings::rust_ulp_h_disown_srq(self.ptr.as_ptr()) };
            self.pd.leak();
        }
        // SAFETY: Owned. Only `synchronize` posts to it.
        unsafe { self.pd.destroy_qp(self.marker) };
        while let Some((first, _)) = self.queue.oldest() {
            self.flush(first);
        }
        self.queue.stop();
        self.handler
            .destroyed(Posted::default(), self.queue.posted());
        // SAFETY: Nothing is moved.
        let this = unsafe { self.get_unchecked_mut() };
        if err != 0 {
            this.queue.leak();
        }
        // Of a queue pair that was not drained, completions may still be handled.
        this.cq.synchronize();
    }
}
