// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! Its slots are those of a queue pair's queue, but any queue pair that uses it may take any of
//! them, so they complete out of order. A completion names the queue pair, whose owner gets it.
//!
//! # Requests that nobody completes
//!
//! A queue pair takes a request when a message begins, and completes it when the message ends. One
//! that goes in between takes the request with it: rxe holds a copy of it in the queue pair
//! (`get_srq_wqe()` in `rxe_resp.c`), and neither the flush on the way to ERR nor the end of the
//! queue pair completes it. The verbs call that leakage (see `__ib_drain_srq()` in the core).
//!
//! It is found out by order. Requests are numbered as they are posted, and where a driver takes
//! them in that order, each one older than one that has completed was taken. Each queue pair
//! completes what it takes in that order too, so it cannot hold any request that is older than the
//! last one which it completed, or than the newest that had been completed when it was made. What
//! was taken, and no queue pair can hold, is given back as flushed: [`Srq::reclaim`]. A queue pair
//! that is reset may still hold its request, for rxe completes it with the next error.

use super::{
    cq::Cq,
    event::Event,
    pd::Pd,
    qp_attr::mask,
    queue::{
        Calls,
        Queue,
        WrSlot,
        NONE, //
    },
    request::{
        CancelReason,
        QueueKind,
        WrContext,
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
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// How far a queue pair has come: it holds no request whose number is not above this one.
struct Mark(Atomic<u64>);

impl Mark {
    fn set(&self, number: u64) {
        self.0.store(number, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A request that was in a slot.
struct Taken<R> {
    request: R,
    number: u64,
    canceled: bool,
}

/// That a queue pair uses a shared receive queue.
pub(super) struct Membership<H: WrHandler> {
    srq: Arc<Srq<H>>,
    mark: Arc<Mark>,
}

impl<H: WrHandler> Membership<H> {
    /// Joins `srq`, on behalf of a queue pair that is about to be made. Sleeps.
    pub(super) fn new(srq: Arc<Srq<H>>) -> Result<Self> {
        let mut marks = srq.marks.lock();
        // All that is older than this was taken by others.
        let mark = Arc::new(Mark(Atomic::new(srq.newest.load(Relaxed))), GFP_KERNEL)?;
        marks.push(mark.clone(), GFP_KERNEL)?;
        drop(marks);
        Ok(Self { srq, mark })
    }

    /// The shared receive queue.
    pub(super) fn srq(&self) -> &Arc<Srq<H>> {
        &self.srq
    }
}

impl<H: WrHandler> Drop for Membership<H> {
    /// The queue pair is gone, and its completions are handled. Sleeps.
    fn drop(&mut self) {
        self.srq
            .marks
            .lock()
            .retain(|other| !Arc::ptr_eq(other, &self.mark));
        self.srq.suspect();
        self.srq.reclaim();
    }
}

/// What a shared receive queue finds by a completion: the owner of a queue pair, and how far that
/// has come. It is the context of each queue pair, whether it uses a shared receive queue or not.
pub(super) struct Member<H: WrHandler> {
    handler: H,
    shared: Option<Membership<H>>,
}

impl<H: WrHandler> Member<H> {
    /// Of a queue pair of `handler`.
    pub(super) fn new(handler: H, shared: Option<Membership<H>>) -> Self {
        Self { handler, shared }
    }

    /// The owner of the queue pair.
    pub(super) fn handler(&self) -> &H {
        &self.handler
    }

    /// The shared receive queue that the queue pair uses.
    pub(super) fn shared(&self) -> Option<&Membership<H>> {
        self.shared.as_ref()
    }
}

/// `struct ib_srq`: a queue of receive requests for several queue pairs.
///
/// # Invariants
///
/// - `ptr` is a shared receive queue of `pd`, owned; its context is this value.
/// - `marker` is a queue pair of `pd` and `cq`, owned, in ERR, and nobody posts to it.
/// - Every slot of the queue points back at this value, which does not move.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq<H: WrHandler> {
    ptr: NonNull<bindings::ib_srq>,
    marker: NonNull<bindings::ib_qp>,
    max_wr: u32,
    max_sge: u32,
    /// Whether the driver takes requests in the order of posting.
    in_order: bool,
    #[pin]
    queue: Queue<H::Request>,
    /// The highest number of a request that has completed.
    newest: Atomic<u64>,
    /// The highest number of a request that a queue pair may have had when it ended; 0 when all of
    /// them are accounted for.
    suspect: Atomic<u64>,
    /// Of the queue pairs that use it.
    #[pin]
    marks: Mutex<KVec<Arc<Mark>>>,
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
    /// Creates a shared receive queue for `max_wr` requests of `max_sge` pieces each. Sleeps.
    ///
    /// The caller checks both against the device's limits. The queue pairs that use the queue complete
    /// their receives in `cq`, which has room for `max_wr` completions and for
    /// [`CQ_RESERVE`](super::qp::CQ_RESERVE) more. Fails with [`EXDEV`] when `pd` and `cq` belong to
    /// different devices.
    pub(crate) fn new(
        pd: Arc<Pd>,
        cq: Arc<Cq>,
        max_wr: u32,
        max_sge: u32,
        handler: H,
    ) -> Result<Arc<Self>> {
        if pd.device() != cq.device() {
            return Err(EXDEV);
        }
        let in_order = pd.device().is_driven_by(c"rdma_rxe");
        let marker = Self::new_marker(&pd, &cq)?;
        let destroy = kernel::types::ScopeGuard::new(|| {
            // SAFETY: The queue pair is ours, and nothing is posted to it.
            unsafe { bindings::rust_ulp_h_destroy_qp(marker.as_ptr()) };
        });
        let raw_pd = pd.as_raw();
        fault::point()?;
        let this = Arc::pin_init(
            try_pin_init!(&this in Self {
                marker,
                in_order,
                // SAFETY: The functions take a value like this, which is complete when something is
                // posted, and stops the queue's timer before it goes.
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
                marks <- new_mutex!(KVec::new(), "rdma::Srq::marks"),
                handler,
                ptr: {
                    // SAFETY: The domain is valid and outlives the queue. Its context is this
                    // value: no event is raised before there are requests, by which time the value
                    // is complete.
                    let ptr = from_err_ptr(unsafe {
                        bindings::rust_ulp_h_create_srq(
                            raw_pd,
                            Some(Self::event),
                            this.as_ptr().cast(),
                            max_wr,
                            max_sge,
                        )
                    })?;
                    NonNull::new(ptr).ok_or(ENOMEM)?
                },
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

    /// A queue pair that is in ERR: what is posted to it completes at once, behind all that stands
    /// in the completion queue already.
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
        // There is no way from RESET to ERR in the state table.
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
                // SAFETY: Ours, and nothing was posted to it.
                unsafe { bindings::rust_ulp_h_destroy_qp(ptr.as_ptr()) };
                return Err(err);
            }
        }
        Ok(ptr)
    }

    /// The C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_srq {
        self.ptr.as_ptr()
    }

    pub(super) fn queue(&self) -> &Queue<H::Request> {
        &self.queue
    }

    /// The owner.
    pub(crate) fn handler(&self) -> &H {
        &self.handler
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the completion queue of its receives.
    pub(super) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// Requests that it holds at most.
    pub(crate) fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Pieces of memory of a request at most.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Requests posted and not completed.
    pub(crate) fn in_flight(&self) -> u32 {
        self.queue.lists.lock().posted
    }

    /// Raises [`Event::SrqLimit`] once, when fewer than `limit` requests are left; 0 does not.
    /// Sleeps.
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

    /// The limit that is armed, 0 when none is. Sleeps.
    pub(crate) fn limit(&self) -> Result<u32> {
        let mut attr = bindings::ib_srq_attr::default();
        fault::point()?;
        // SAFETY: The queue and the attributes are valid.
        to_result(unsafe { bindings::ib_query_srq(self.as_raw(), &mut attr) })?;
        Ok(attr.srq_limit)
    }

    /// # Safety
    ///
    /// Called by the driver, with the context of a queue like this.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The context is the queue, which outlives its events, see `new`.
        let (this, event) = unsafe { (&*context.cast::<Self>(), &*event) };
        this.handler.event(Event::new(event));
    }

    /// Called by `rust_ulp_completion` for each completion of a request of a queue like this.
    ///
    /// # Safety
    ///
    /// `wc` is the completion of such a request.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The core passes a completion that is valid during the call. Its `wr_cqe` came out
        // of `Queue::cqe`. The slot lives in the queue, which outlives the queue pairs that use it;
        // they wait for their completions before they are freed.
        let (slot, wc) = unsafe {
            let wc = &*wc;
            (WrSlot::<H::Request>::from_cqe(wc.__bindgen_anon_1.wr_cqe), wc)
        };
        // SAFETY: By the type invariant.
        let this = unsafe { &*slot.owner.cast::<Self>() };
        // SAFETY: The queue pair is one that uses this queue, so its context is a `Member<H>`; it waits
        // for this completion before it goes.
        let member = unsafe { &*bindings::rust_ulp_h_qp_context(wc.qp).cast::<Member<H>>() };
        this.completed(slot.index, member, &WorkCompletion::new(wc));
    }

    fn completed(&self, index: u32, member: &Member<H>, wc: &WorkCompletion) {
        let Some(Taken {
            request,
            number,
            canceled,
        }) = self.take_back(index)
        else {
            pr_warn_once!("a driver completed a shared request twice\n");
            return;
        };
        // Completions of one queue are handled one after the other: nobody else stores.
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

    /// Frees slot `index`, when it is posted.
    fn take_back(&self, index: u32) -> Option<Taken<H::Request>> {
        let mut lists = self.queue.lists.lock();
        let number = self.queue.number(index);
        if number == 0 {
            return None;
        }
        // SAFETY: A slot that has a number is in the list of posted ones, and the lock is held.
        let content = unsafe { self.queue.content(index) }?;
        let request = content.request.as_mut().map(WrContext::detach);
        let canceled = content.canceled;
        // SAFETY: The slot is in the list, and is not used after this.
        unsafe {
            self.queue.unlink(&mut lists, index);
            self.queue.put(&mut lists, index);
        }
        Some(Taken {
            request: request?,
            number,
            canceled,
        })
    }

    /// Called in a softirq.
    ///
    /// # Safety
    ///
    /// `this` is a queue like this.
    unsafe extern "C" fn expired(this: *const c_void) {
        // SAFETY: By the requirement.
        let this = unsafe { &*this.cast::<Self>() };
        let tell = |request| this.handler.cancel(request, CancelReason::Timeout);
        this.queue.expire(tell);
    }

    /// Gives up the requests that `which` names, and returns how many it were.
    pub(crate) fn cancel(&self, which: impl Fn(&H::Request) -> bool) -> u32 {
        let tell = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel(which, tell)
    }

    /// The same for what is in slot `slot`.
    pub(crate) fn cancel_slot(&self, slot: u32, which: impl Fn(&H::Request) -> bool) -> bool {
        let tell = |request| self.handler.cancel(request, CancelReason::Canceled);
        self.queue.cancel_slot(slot, which, tell)
    }

    /// Waits until all completions that stand in the completion queue are handled. Sleeps.
    pub(super) fn synchronize(&self) {
        // SAFETY: By the type invariant the queue pair is in ERR and nobody posts to it; it has
        // room for a request, and the completion queue, made by `ib_alloc_cq`, for its completion.
        let drain = || unsafe { bindings::ib_drain_rq(self.marker.as_ptr()) };
        self.cq.with_reserve(drain);
    }

    /// Notes that a queue pair ends, or was reset: it may have taken any request that is posted.
    pub(super) fn suspect(&self) {
        let number = self.queue.lists.lock().number;
        self.suspect.store(number, Relaxed);
    }

    /// Completes, as flushed, what queue pairs have taken that are gone; how, the description of
    /// this module says. Does nothing while there can be none. Sleeps.
    pub(crate) fn reclaim(&self) {
        let suspect = self.suspect.load(Relaxed);
        if !self.in_order || suspect == 0 {
            return;
        }
        // Also keeps others from doing the same.
        let marks = self.marks.lock();
        // Before the marks: what is completed from here on is left for the next time.
        let newest = self.newest.load(Relaxed);
        let passed = marks.iter().map(|mark| mark.get()).fold(newest, u64::min);
        loop {
            let lists = self.queue.lists.lock();
            let first = lists.first;
            let number = self.queue.number(first);
            drop(lists);
            // The oldest stands first.
            match number {
                0 => break,
                number if number <= passed => self.flush(first),
                number if number <= suspect => return,
                _ => break,
            }
        }
        // One that joined the list meanwhile is newer than those that were looked for; a queue
        // pair that ended meanwhile waits for its turn, and looks once more.
        let _ = self.suspect.cmpxchg(suspect, 0, Relaxed);
    }

    fn flush(&self, index: u32) {
        let wc = &WorkCompletion::FLUSHED;
        match self.take_back(index) {
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
        // SAFETY: Owned; the queue pairs that used it held references to this value.
        let err = unsafe { bindings::rust_ulp_h_destroy_srq(self.ptr.as_ptr()) };
        if err != 0 {
            pr_warn_once!(
                "a driver refused to destroy a shared receive queue: {}\n",
                err
            );
        }
        // SAFETY: Owned, and nothing is posted to it outside of `synchronize`.
        let err = unsafe { bindings::rust_ulp_h_destroy_qp(self.marker.as_ptr()) };
        if err != 0 {
            pr_warn_once!("a driver refused to destroy a queue pair: {}\n", err);
        }
        loop {
            let first = self.queue.lists.lock().first;
            if first == NONE {
                break;
            }
            self.flush(first);
        }
        self.queue.stop();
    }
}
