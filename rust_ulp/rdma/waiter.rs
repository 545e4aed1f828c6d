// SPDX-License-Identifier: GPL-2.0

//! Requests that their poster waits for.
//!
//! The queue pairs of [`WaitHandler`] have a completion queue of their own. A worker of this module
//! handles its completions, and wakes the [`Waiter`] of each request.

use super::{
    cq::{
        self,
        Cq,
        PollContext, //
    },
    event::Event,
    pd::Pd,
    post::{
        Data,
        Place,
        Run,
        Scratch,
        Target, //
    },
    qp::{
        Qp,
        CQ_RESERVE, //
    },
    qp_attr::{
        Capacity,
        QpType, //
    },
    request::{
        CancelReason,
        QueueKind,
        WrContext,
        WrHandler, //
    },
    wr::{
        Flags,
        Local,
        Opcode,
        Operation,
        Plain,
        WorkCompletion, //
    }, //
};
use crate::bindings;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
    types::Opaque, //
};

/// Waits for one request.
///
/// ```
/// fn send(qp: &Arc<qp::Qp<WaitHandler>>, buffer: &buffer::Buffer) -> Result {
///     qp.post_send(&wr::Operation::send(), buffer.local()?)?.wait_within(1000)
/// }
/// ```
#[pin_data]
pub(crate) struct Waiter {
    /// Not the `Completion` of the kernel crate, which has no time limit.
    #[pin]
    done: Opaque<kernel::bindings::completion>,
    status: Atomic<u32>,
}

// SAFETY: A completion belongs to no task.
unsafe impl Send for Waiter {}
// SAFETY: The functions of a completion take its lock.
unsafe impl Sync for Waiter {}

impl Waiter {
    /// Waits for the request, but no longer than `limit`, and returns its `enum ib_wc_status`.
    /// Sleeps. A request that the device never got has `IB_WC_GENERAL_ERR`.
    pub(super) fn status_within(&self, limit: Jiffies) -> Option<u32> {
        // SAFETY: The completion is initialized.
        let left = unsafe { kernel::bindings::wait_for_completion_timeout(self.done.get(), limit) };
        (left != 0).then(|| self.status.load(Acquire))
    }

    /// Waits for the request, but no longer than `millis`. Sleeps.
    ///
    /// Fails with [`ETIMEDOUT`] when the request goes on, and with [`EIO`] when it failed.
    pub(crate) fn wait_within(&self, millis: u32) -> Result {
        match self.status_within(msecs_to_jiffies(millis)) {
            None => Err(ETIMEDOUT),
            Some(bindings::IB_WC_SUCCESS) => Ok(()),
            Some(_) => Err(EIO),
        }
    }

    /// Wakes the waiter: the request is over.
    fn end(&self) {
        // SAFETY: The completion is initialized.
        unsafe { kernel::bindings::complete_all(self.done.get()) };
    }
}

impl WrContext for Arc<Waiter> {
    type Kept = Self;
    type Reference = ();
    type Unsignaled = ();

    fn split(self) -> (Self, Option<()>) {
        (self, None)
    }

    fn join(kept: Self, _: Option<()>, _start_ns: u64) -> Self {
        kept
    }

    fn complete_unsignaled(self, _done: &mut ()) {
        // Not reached: every request is signaled.
    }
}

/// The owner of queue pairs whose requests have a [`Waiter`].
///
/// ```
/// fn new_qp(pd: &Arc<pd::Pd>) -> Result<Arc<qp::Qp<WaitHandler>>> {
///     qp::Qp::with_waiters(pd, 16, 16)
/// }
/// ```
pub(crate) struct WaitHandler;

impl WrHandler for WaitHandler {
    type Request = Arc<Waiter>;

    fn complete(&self, _kind: QueueKind, request: Arc<Waiter>, wc: &WorkCompletion) {
        request.status.store(wc.status, Release);
        request.end();
    }

    fn complete_unsignaled(&self, _done: ()) {}

    fn cancel(&self, request: Arc<Waiter>, _why: CancelReason) {
        // Not reached: nobody cancels these requests.
        request.end();
    }

    fn complete_canceled(&self, _request: Arc<Waiter>, _wc: &WorkCompletion) {}

    fn discard(&self, request: Arc<Waiter>) {
        request.end();
    }

    fn event(&self, _event: Event) {}
}

impl cq::Handler for WaitHandler {
    fn event(&self, _event: Event) {}
}

impl Qp<WaitHandler> {
    /// Creates a reliable queue pair of `pd` and its completion queue, for `sends` and `recvs`
    /// requests of one element each. Sleeps.
    pub(crate) fn with_waiters(pd: &Arc<Pd>, sends: u32, recvs: u32) -> Result<Arc<Self>> {
        let handler = Arc::new(WaitHandler, GFP_KERNEL_ACCOUNT)?;
        let capacity = Capacity {
            max_send_wr: sends,
            max_recv_wr: recvs,
            max_send_sge: 1,
            // Even without receives: mlx5 cannot size its receive queue otherwise.
            max_recv_sge: 1,
            ..Capacity::default()
        };
        let entries = sends.saturating_add(recvs).saturating_add(CQ_RESERVE);
        let cq = Cq::new(pd.device(), entries, 0, PollContext::Workqueue, handler)?;
        let (pd, handler) = (pd.clone(), WaitHandler);
        Self::new(pd, cq.clone(), cq, None, QpType::Rc, capacity, handler)
    }

    /// Posts a send request that reads or writes `local`. Sleeps. Fails as [`Run::push`] and
    /// [`Run::post`] do.
    pub(crate) fn post_send(
        &self,
        operation: &Operation<'_>,
        local: Local<'_>,
    ) -> Result<Arc<Waiter>> {
        post(Target::Send(self), operation, Data::One(local))
    }

    /// Posts a receive request that fills `local`. Sleeps. Fails as [`Self::post_send`] does.
    pub(crate) fn post_recv(&self, local: Local<'_>) -> Result<Arc<Waiter>> {
        let operation = Plain::new(Opcode::RECV, 0).into();
        post(Target::Recv(self), &operation, Data::One(local))
    }
}

/// Posts a signaled request. Sleeps. Fails as [`Run::push`] and [`Run::post`] do.
pub(super) fn post(
    target: Target<'_, WaitHandler>,
    operation: &Operation<'_>,
    data: Data<'_, '_, '_>,
) -> Result<Arc<Waiter>> {
    let waiter = Arc::pin_init(
        pin_init!(Waiter {
            done <- Opaque::ffi_init(|done| {
                // SAFETY: `done` is memory for a completion, which is pinned from here on.
                unsafe { kernel::bindings::init_completion(done) }
            }),
            status: Atomic::new(bindings::IB_WC_GENERAL_ERR),
        }),
        GFP_KERNEL_ACCOUNT,
    )?;
    let mut place = [Place::uninit()];
    let mut scratch = Scratch::new(&mut place);
    let mut run = Run::new(target, &mut scratch);
    run.push_other(operation, Flags::SIGNALED, data)?;
    run.post(false, |_| waiter.clone()).1?;
    Ok(waiter)
}
