// SPDX-License-Identifier: GPL-2.0

//! The calls that the owner of a queue pair or of a shared receive queue gets for its requests.
//!
//! Each request that gets a slot ends in exactly one call of its [`WrHandler`]:
//!
//! - `complete` when the device reports it,
//! - `complete_unsignaled` when it was not signaled and succeeded,
//! - `discard` when the driver refused it,
//! - `cancel` when its deadline has passed or its owner cancels it. When the device is done with
//!   such a request, `complete_canceled` is called too.

use super::{
    event::Event,
    wr::WorkCompletion, //
};

/// One of the two queues of a queue pair.
///
/// ```
/// fn name(kind: QueueKind) -> &'static str {
///     match kind {
///         QueueKind::Send => "send queue",
///         QueueKind::Recv => "receive queue",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// The send queue.
    Send,
    /// The receive queue of the queue pair, or a shared one.
    Recv,
}

/// The data that the owner of a queue keeps with a request.
///
/// It goes to the handler when the request ends. The destructors of its parts must not sleep.
///
/// ```
/// struct Request { user_data: u64 }
///
/// impl WrContext for Request {
///     type Kept = u64;
///     type Reference = ();
///     type Unsignaled = u32;
///
///     fn split(self) -> (u64, Option<()>) {
///         (self.user_data, None)
///     }
///
///     fn join(user_data: u64, _: Option<()>, _start_ns: u64) -> Self {
///         Self { user_data }
///     }
///
///     fn complete_unsignaled(self, count: &mut u32) {
///         *count += 1;
///     }
/// }
/// ```
pub(crate) trait WrContext: Send + Sized + 'static {
    /// The part that every slot has room for. [`WrHandler::cancel`] gets a copy of it.
    type Kept: Clone + Send;

    /// The part that only some requests have. It goes to the first call of the handler for the
    /// request: after [`WrHandler::cancel`], [`WrHandler::complete_canceled`] gets none.
    ///
    /// A request that is not signaled may [share](Self::is_sharing) that of the next request of its
    /// run that has one. It gets one [of its own](Self::shared) when it fails or is canceled, and
    /// none when it succeeds. When the driver has refused the request whose reference it shares, it
    /// gets none: no completion may report it.
    type Reference: Send;

    /// The report to the handler about requests that were not signaled and succeeded.
    type Unsignaled: Default;

    /// Splits the request into its parts. Any context, with the queue's lock held; must not sleep.
    /// The same holds for the functions below.
    fn split(self) -> (Self::Kept, Option<Self::Reference>);

    /// Joins the parts; `start_ns` is what [`Self::start_ns`] returned.
    fn join(kept: Self::Kept, reference: Option<Self::Reference>, start_ns: u64) -> Self;

    /// Returns a time that is kept with the request, 0 for none.
    fn start_ns(&self) -> u64 {
        0
    }

    /// Returns whether the request whose part is `kept` shares a reference. It has none itself.
    fn is_sharing(_kept: &Self::Kept) -> bool {
        false
    }

    /// Notes that the request shares no reference any more.
    fn end_sharing(_kept: &mut Self::Kept) {}

    /// Returns a reference for the request that shares `reference`, and is `places` before the one
    /// that has it.
    fn shared(_reference: &Self::Reference, _places: u32) -> Option<Self::Reference> {
        None
    }

    /// Called when a request with `reference` is put into slot `index` of its queue, before the device
    /// has it.
    fn placed(_reference: &Self::Reference, _index: u32) {}

    /// Adds the request to `done`: it was not signaled, and succeeded.
    fn complete_unsignaled(self, done: &mut Self::Unsignaled);

    /// Returns whether the request, if it is not signaled and succeeds, needs only be counted:
    /// [`Self::complete_plain`] is called in place of [`Self::complete_unsignaled`]. It has no
    /// reference then, and what the slot kept is dropped later.
    fn is_plain(&self) -> bool {
        false
    }

    /// Adds `count` plain requests to `done`. All are sharing, or none, and `kept` is the part of one
    /// of them.
    fn complete_plain(_kept: &Self::Kept, _count: u32, _done: &mut Self::Unsignaled) {}

    /// Returns the number of bytes that [`Posted`] counts.
    fn bytes(&self) -> u32 {
        0
    }

    /// Returns the deadline of the request if it is posted at `now`, both in nanoseconds of
    /// `CLOCK_MONOTONIC`; 0 for none, whatever `now` is.
    fn end_ns(&self, _now: u64) -> u64 {
        0
    }
}

/// The parts of a request in a slot.
///
/// ```
/// fn is_first(request: SlotRef<'_, Arc<waiter::Waiter>>, first: &Arc<waiter::Waiter>) -> bool {
///     Arc::ptr_eq(request.kept, first)
/// }
/// ```
pub(crate) struct SlotRef<'a, R: WrContext> {
    /// What the slot keeps.
    pub(crate) kept: &'a R::Kept,
    /// The reference, if there is one.
    pub(crate) reference: Option<&'a R::Reference>,
}

/// The requests that a queue has taken since it was created.
///
/// ```
/// fn mean(posted: Posted) -> Option<u64> {
///     posted.bytes.checked_div(posted.requests)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    /// The number of requests.
    pub(crate) requests: u64,
    /// Their [`WrContext::bytes`] together.
    pub(crate) bytes: u64,
}

/// Why a request was canceled.
///
/// ```
/// fn errno(why: CancelReason) -> Error {
///     match why {
///         CancelReason::Timeout => ETIMEDOUT,
///         CancelReason::Canceled => EINTR,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelReason {
    /// Its deadline has passed.
    Timeout,
    /// Its owner canceled it.
    Canceled,
}

/// The owner of a queue pair or of a shared receive queue.
///
/// Completions of one queue are handled one after the other, in the order of posting.
/// [`WaitHandler`](super::waiter::WaitHandler) is an implementation, and this one counts:
///
/// ```
/// # struct Nothing;
/// # impl WrContext for Nothing {
/// #     type Kept = ();
/// #     type Reference = ();
/// #     type Unsignaled = ();
/// #     fn split(self) -> ((), Option<()>) { ((), None) }
/// #     fn join(_: (), _: Option<()>, _: u64) -> Self { Self }
/// #     fn complete_unsignaled(self, _: &mut ()) {}
/// # }
/// use ::kernel::sync::atomic::{Atomic, Relaxed};
///
/// struct Counter { received: Atomic<u32>, late: Atomic<u32> }
///
/// impl WrHandler for Counter {
///     type Request = Nothing;
///
///     fn complete(&self, kind: QueueKind, _: Nothing, wc: &wr::WorkCompletion) {
///         if kind == QueueKind::Recv && wc.is_success() {
///             self.received.add(1, Relaxed);
///         }
///     }
///
///     fn cancel(&self, _: Nothing, why: CancelReason) {
///         if why == CancelReason::Timeout {
///             self.late.add(1, Relaxed);
///         }
///     }
///
///     fn complete_unsignaled(&self, _: ()) {}
///     fn complete_canceled(&self, _: Nothing, _: &wr::WorkCompletion) {}
///     fn discard(&self, _: Nothing) {}
///     fn event(&self, _: event::Event) {}
/// }
/// ```
pub(crate) trait WrHandler: Send + Sync + 'static {
    /// The data that the owner keeps with a request.
    type Request: WrContext;

    /// A request has completed. Called without locks, in the context that the
    /// [`PollContext`](super::cq::PollContext) of the completion queue names: must not sleep in a
    /// softirq.
    ///
    /// A request of a shared receive queue goes to the owner of the queue pair that used it, with the
    /// list of queue pairs of the queue locked: must not sleep. When that queue pair no longer exists,
    /// it goes to the owner of the shared receive queue, with the same lock held, or in process context
    /// with the progress of these queue pairs locked.
    fn complete(&self, kind: QueueKind, request: Self::Request, wc: &WorkCompletion);

    /// Unsignaled send requests succeeded. Context as for `complete`.
    fn complete_unsignaled(&self, done: <Self::Request as WrContext>::Unsignaled);

    /// A request was canceled; the device still has it. Process context with the queue's lock held:
    /// must not sleep, and must not call the queue.
    fn cancel(&self, request: Self::Request, why: CancelReason);

    /// The device is done with a request that was canceled. Context and owner as for `complete`.
    fn complete_canceled(&self, request: Self::Request, wc: &WorkCompletion);

    /// The driver refused the request. Called with the queue's lock held in the context of
    /// [`Run::post`](super::post::Run::post): must not sleep, and must not call the queue.
    fn discard(&self, request: Self::Request);

    /// The queue pair or the shared receive queue was destroyed, after the last of the calls above.
    /// Process context; may sleep.
    fn destroyed(&self, _sends: Posted, _recvs: Posted) {}

    /// The queue pair or the shared receive queue raised `event`. Any context, perhaps with
    /// interrupts off: must not sleep.
    fn event(&self, event: Event);
}
