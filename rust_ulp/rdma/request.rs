// SPDX-License-Identifier: GPL-2.0

//! What the owner of a queue pair, or of a shared receive queue, hears of its requests.
//!
//! Each request that is pushed ends in exactly one call of its [`WrHandler`]: `complete`, `complete_unsignaled`
//! for those that were not signalled and succeeded, `discard` when it never reached the device, or
//! `cancel` when its owner does not want to wait for the device any longer. What the device says
//! of one that was canceled is swallowed, and ends in a call of `complete_canceled`.

use super::{
    event::Event,
    wr::WorkCompletion, //
};

/// Which queue of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// The send queue.
    Send,
    /// The receive queue, the pair's own or a shared one.
    Recv,
}

/// What the owner of a queue keeps with a request.
///
/// It stays in the request's slot until that is used again; what is to be told of the request goes
/// out of it before. Its destructor may sleep, that of what [`Self::detach`] returns must not.
pub(crate) trait WrContext: Send + Sized + 'static {
    /// Takes out what the owner is told with. Called once for the one end of the request, unless that is
    /// `complete_unsignaled`, and once more when it was canceled. Any context, must not sleep.
    fn detach(&mut self) -> Self;

    /// How long it may take, from the post on; 0 for as long as it takes.
    fn timeout_ns(&self) -> u64 {
        0
    }

    /// It was put into slot `index` of its queue.
    fn placed(&self, _index: u32) {}
}

/// Why nobody waits for a request any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelReason {
    /// Its deadline has passed.
    Timeout,
    /// Its owner said so.
    Canceled,
}

/// The owner of a queue pair, or of a shared receive queue.
///
/// Completions of one queue are handled one after the other, in the order of posting.
pub(crate) trait WrHandler: Send + Sync + 'static {
    /// What the owner keeps with a request. What it detaches goes to the methods below.
    type Request: WrContext;

    /// A request is done. In the context of the queue's [`PollContext`](super::cq::PollContext); in
    /// a softirq it must not sleep. No lock is held.
    ///
    /// For a request of a shared receive queue it is called on the owner of the queue pair that
    /// used it; on that of the shared receive queue when that queue pair is gone, in process
    /// context and with the list of its queue pairs locked.
    fn complete(&self, kind: QueueKind, request: Self::Request, wc: &WorkCompletion);

    /// So many send requests that were not signalled succeeded; they stay as they are. Context as for
    /// `complete`.
    fn complete_unsignaled(&self, count: u32);

    /// A request is over for its owner, not for the device. In a softirq, or process context, with
    /// the queue's lock held: must not sleep, nor call the queue.
    fn cancel(&self, request: Self::Request, why: CancelReason);

    /// The device is done with a request that was canceled. Context and owner as for `complete`.
    fn complete_canceled(&self, request: Self::Request, wc: &WorkCompletion);

    /// A request was not posted, or the driver has said nothing of it. Process context, or whatever the
    /// caller of [`Chain::post`](super::chain::Chain::post) is in, or as for `complete`.
    fn discard(&self, request: Self::Request);

    /// Something happened to the queue pair, or to the shared receive queue. Any context, interrupts
    /// may be off: must not sleep.
    fn event(&self, event: Event);
}
