// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! A queue pair has a slot for each request that its queues may hold. A [`Run`](super::post::Run)
//! builds requests in memory of its poster. Posting the run gives each request the next slot, which
//! keeps what the completion needs. The queues complete in order, so a completion frees all slots
//! up to its own at once.
//!
//! [`super::request`] describes how a request ends. The memory regions and the address of a request
//! stay in its slot, or in that of a later request for the same memory. They are dropped when the
//! slot is reused, by [`Qp::purge`], or with the queue pair: a completion handler may run in a
//! softirq, where they could not be destroyed.

pub(crate) use super::queue::slot_bytes;
use super::{
    ah::Ah,
    cq::Cq,
    event::Event,
    pd::{
        Life,
        Pd, //
    },
    qp_attr::{
        is_transition,
        mask,
        Attributes,
        Capacity,
        QpType,
        State, //
    },
    queue::{
        Calls,
        CqeOwner,
        Queue, //
    },
    request::{
        CancelReason,
        Posted,
        QueueKind,
        SlotRef,
        WrHandler, //
    },
    srq::{
        Member,
        Membership,
        Srq, //
    },
    wr::WorkCompletion, //
};
use crate::{
    bindings,
    ext::{
        errno::{
            eopnotsupp,
            eproto, //
        },
        fault, //
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
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};

/// The attempts to move a queue pair to RESET until the device reports that state. A task of rxe
/// that `rxe_qp_reset()` has not yet stopped may call `rxe_qp_error()`, which sets ERR. No such
/// task runs the second time.
///
/// Where the driver keeps packets (`Rule::KeepsPackets`), all of them are made: each stops the receive
/// task for a moment, and a packet that arrives in that moment stays queued until the next, see
/// [`Qp::release_packets`]. In RESET only packets arrive that rxe had checked before, and those are
/// waited for after the first. One that comes over loopback may still be late.
const RESETS: u32 = 3;

/// A queue pair: `struct ib_qp`.
///
/// Dropping it ends it, see [`Qp::shut_down`]. That sleeps.
///
/// ```
/// # use {qp_attr::{Capacity, QpType}, waiter::WaitHandler};
/// fn new_qp(pd: Arc<pd::Pd>, cq: Arc<cq::Cq>) -> Result<Arc<Qp<WaitHandler>>> {
///     let capacity = Capacity { max_send_wr: 16, max_send_sge: 1, ..Capacity::default() };
///     Qp::new(pd, cq.clone(), cq, None, QpType::Rc, capacity, WaitHandler)
/// }
/// ```
///
/// # Invariants
///
/// - `ptr` is a queue pair of `pd`, `send_cq`, `recv_cq` and the shared receive queue of `member`,
///   all of one device. This value owns it. Its context is `member`. It is valid while `modifying` is
///   held and says [`Life::Alive`], and while the lock of one of its queues is held and that is not
///   closed.
/// - Every slot of both queues points back at this value, which does not move.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<H: WrHandler> {
    ptr: NonNull<bindings::ib_qp>,
    number: u32,
    qp_type: QpType,
    capacity: Capacity,
    /// What the last change set, or ERR or SQE when that was found. The device may have gone to ERR since.
    state: Atomic<u32>,
    /// Serializes changes of the state, queries, and the end. Taken before `Cq::draining`.
    #[pin]
    modifying: Mutex<Life>,
    #[pin]
    send: Queue<H::Request>,
    #[pin]
    recv: Queue<H::Request>,
    /// The queue key of a UD queue pair.
    qkey: Atomic<u32>,
    /// The first address of a send request: draining a UD queue pair needs one. The address handle
    /// lives as long as this value, even if its owner destroys it. Nothing is taken under it.
    #[pin]
    address: Mutex<Option<Arc<Ah>>>,
    /// Whether `address` is set.
    addressed: AtomicFlag,
    /// The owner, and the shared receive queue if there is one: the context of the queue pair.
    member: Member<H>,
    /// Whether it may have taken receives of the shared receive queue since RESET.
    receives: AtomicFlag,
    /// Whether the event that ends the use of the shared receive queue was reported, or is not to
    /// be.
    finished: AtomicFlag,
    /// Whether the driver may keep packets, see [`Qp::release_packets`].
    keeps_packets: bool,
    /// If so, the number of the newest receive that had completed when its receive task last was
    /// stopped, see [`Self::release_packets`]; [`u64::MAX`] if it never was.
    quiet_since: Atomic<u64>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    pd: Arc<Pd>,
}

// SAFETY: Drivers are reentrant, see "Thread safety" in mod.rs. The other fields are `Send` and
// `Sync` by themselves; `handler` and the requests are so by the bounds of `WrHandler`.
unsafe impl<H: WrHandler> Send for Qp<H> {}
// SAFETY: As above.
unsafe impl<H: WrHandler> Sync for Qp<H> {}

/// The bit of a queue key that only privileged processes may set, see [`may_control_qkeys`].
pub(crate) const CONTROLLED_QKEY: u32 = 1 << 31;

/// Returns whether the current process may set [`CONTROLLED_QKEY`]: it has `CAP_NET_RAW`, which
/// uverbs demands in `modify_qp()`. Process context.
pub(crate) fn may_control_qkeys() -> bool {
    // SAFETY: The helper looks at the current process only.
    unsafe { kernel::bindings::capable(kernel::bindings::CAP_NET_RAW as i32) }
}

/// The entries that a completion queue needs for draining. [`Qp`] posts one more request to a queue
/// that it drains, and one queue at a time drains into a completion queue.
pub(crate) const CQ_RESERVE: u32 = 1;

impl<H: WrHandler> Qp<H> {
    /// Creates a queue pair. Sleeps.
    ///
    /// The queues hold exactly what `capacity` says. The caller checks it against the limits of the
    /// device, and ensures that the completion queues have room for all requests and for
    /// [`CQ_RESERVE`] more. A queue pair with `srq` takes its receives from there, and does not use
    /// its own receive queue.
    ///
    /// Fails with
    ///
    /// - [`EXDEV`] when the objects belong to different devices, or when `recv_cq` is not the
    ///   completion queue of `srq`,
    /// - [`ENOENT`] when `srq` has ended,
    /// - [`EINVAL`] when the driver does not take inline data, or not so much.
    pub(crate) fn new(
        pd: Arc<Pd>,
        send_cq: Arc<Cq>,
        recv_cq: Arc<Cq>,
        srq: Option<Arc<Srq<H>>>,
        qp_type: QpType,
        capacity: Capacity,
        handler: H,
    ) -> Result<Arc<Self>> {
        Self::check_devices(&pd, &send_cq, &recv_cq, srq.as_deref())?;
        // Until the queue pair is there: then the driver keeps the queue.
        let _srq_life = srq.as_deref().map(Srq::lock).transpose()?;
        let shared = srq.clone().map(Membership::new).transpose()?;
        let has_inline = qp_type != QpType::Ud || pd.device().has_ud_inline();
        if capacity.max_inline > 0 && !has_inline {
            return Err(EINVAL);
        }
        let mut init = Self::init_attr(&send_cq, &recv_cq, shared.as_ref(), qp_type, &capacity)?;
        let raw_pd = pd.as_raw();
        fault::point()?;
        let this = Arc::pin_init(
            try_pin_init!(&this in Self {
                modifying <- new_mutex!(Life::Alive, "rdma::Qp::modifying"),
                // SAFETY: The value is complete when something is posted, and stops the timers of
                // its queues before it is freed.
                send <- unsafe { Self::new_queue(QueueKind::Send, this.as_ptr(), &capacity) }?,
                // SAFETY: As above.
                recv <- unsafe { Self::new_queue(QueueKind::Recv, this.as_ptr(), &capacity) }?,
                qkey: Atomic::new(0),
                address <- new_mutex!(None, "rdma::Qp::address"),
                addressed: AtomicFlag::new(false),
                receives: AtomicFlag::new(false),
                finished: AtomicFlag::new(false),
                keeps_packets: pd.device().keeps_packets(),
                quiet_since: Atomic::new(u64::MAX),
                member: Member::new(handler, shared),
                qp_type,
                capacity,
                state: Atomic::new(bindings::IB_QPS_RESET),
                ptr: {
                    // SAFETY: A pointer to a field of this value is made.
                    init.qp_context = unsafe { &raw mut (*this.as_ptr()).member }.cast();
                    // SAFETY: The domain and the queues are valid and outlive the queue pair. Its
                    // context is in this value. No event is raised before the queue pair leaves
                    // RESET, and then the value is complete.
                    let ptr = from_err_ptr(unsafe {
                        bindings::rust_ulp_h_create_qp(raw_pd, &mut init)
                    })?;
                    let ptr = NonNull::new(ptr).ok_or(ENOMEM)?;
                    // A driver that takes less ignores the flag: it would take the address of the data
                    // for that of an element, and read there after the post has returned
                    // (drivers/infiniband/sw/rdmavt/qp.c:rvt_create_qp,
                    // drivers/infiniband/hw/mlx4/qp.c:set_kernel_sq_size).
                    if init.cap.max_inline_data < capacity.max_inline {
                        // SAFETY: It was just created, and nobody uses it.
                        if !unsafe { pd.destroy_qp(ptr) } {
                            // SAFETY: The queue pair is still valid.
                            unsafe { bindings::rust_ulp_h_disown_qp(ptr.as_ptr()) };
                        }
                        return Err(EINVAL);
                    }
                    ptr
                },
                // SAFETY: The queue pair was just created. Nothing after this fails, so it is not
                // leaked.
                number: unsafe { bindings::rust_ulp_h_qp_num(ptr.as_ptr()) },
                send_cq,
                recv_cq,
                pd,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: `shut_down` leaves, at the latest in the drop.
        unsafe { this.member.join(this.ptr) }?;
        Ok(this)
    }

    /// Checks that the objects belong to one device, and that `recv_cq` is the completion queue of
    /// `srq`. The queue pair drains only that one before it frees what completions use.
    fn check_devices(pd: &Pd, send_cq: &Cq, recv_cq: &Arc<Cq>, srq: Option<&Srq<H>>) -> Result {
        let device = pd.device();
        let same_cq = srq.is_none_or(|srq| Arc::ptr_eq(srq.cq(), recv_cq));
        if device == send_cq.device() && device == recv_cq.device() && same_cq {
            Ok(())
        } else {
            Err(EXDEV)
        }
    }

    /// Returns what the driver creates a queue pair from, without the context. Each queue has room
    /// for one more request, which drains it.
    fn init_attr(
        send_cq: &Cq,
        recv_cq: &Cq,
        shared: Option<&Membership<H>>,
        qp_type: QpType,
        capacity: &Capacity,
    ) -> Result<bindings::ib_qp_init_attr> {
        let max_recv_wr = match shared {
            Some(_) => 0,
            None => capacity.max_recv_wr.checked_add(1).ok_or(ERANGE)?,
        };
        Ok(bindings::ib_qp_init_attr {
            event_handler: Some(Self::event),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: shared.map_or(core::ptr::null_mut(), |shared| shared.srq().as_raw()),
            cap: bindings::ib_qp_cap {
                max_send_wr: capacity.max_send_wr.checked_add(1).ok_or(ERANGE)?,
                max_recv_wr,
                max_send_sge: capacity.max_send_sge,
                max_recv_sge: capacity.max_recv_sge,
                max_inline_data: capacity.max_inline,
                ..Default::default()
            },
            sq_sig_type: bindings::IB_SIGNAL_REQ_WR,
            qp_type: qp_type.to_raw(),
            ..Default::default()
        })
    }

    /// Creates one of the queues of `this`. Sleeps.
    ///
    /// # Safety
    ///
    /// `this` is complete when something is posted to the queue, and stops the queue's timer before
    /// it is freed.
    unsafe fn new_queue(
        kind: QueueKind,
        this: *const Self,
        capacity: &Capacity,
    ) -> Result<impl PinInit<Queue<H::Request>>> {
        let (expired, depth, max_sge, max_inline): (unsafe extern "C" fn(_), _, _, _) = match kind {
            QueueKind::Send => (
                Self::send_expired,
                capacity.max_send_wr,
                capacity.max_send_sge,
                capacity.max_inline,
            ),
            QueueKind::Recv => (
                Self::recv_expired,
                capacity.max_recv_wr,
                capacity.max_recv_sge,
                0,
            ),
        };
        let calls = Calls {
            done: Self::done,
            expired,
        };
        // SAFETY: The functions take a value like this. For the rest see the requirement.
        unsafe { Queue::new(kind, false, this.cast(), calls, depth, max_sge, max_inline) }
    }

    /// Returns the number, as the wire and `rdma resource` show it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the transport.
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns the sizes of the queues.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the owner.
    pub(crate) fn handler(&self) -> &H {
        self.member.handler()
    }

    /// Keeps the device's queue pair from changing and from ending. Sleeps. Fails with [`ENOENT`] when
    /// it has ended.
    fn lock(&self) -> Result<MutexGuard<'_, Life>> {
        let life = self.modifying.lock();
        match *life {
            Life::Alive => Ok(life),
            Life::Ended | Life::Leaked => Err(ENOENT),
        }
    }

    /// Returns the state that it was last moved to, and SQE once [`Self::find_state`] has found that.
    pub(crate) fn state(&self) -> State {
        State::from_raw(self.state.load(Acquire)).unwrap_or(State::Err)
    }

    /// Returns what [`Self::state`] does, after a look at the device. That moves an unreliable queue
    /// pair to SQE when a send fails, and nobody is told (IBA 10.3.1;
    /// drivers/infiniband/ulp/ipoib/ipoib_ib.c:ipoib_qp_state_validate). Sleeps. Fails with
    /// [`ENOENT`] when the queue pair has ended.
    pub(crate) fn find_state(&self) -> Result<State> {
        let _life = self.lock()?;
        let may_fail = self.qp_type != QpType::Rc && self.state() == State::Rts;
        if may_fail && self.device_state() == Some(bindings::IB_QPS_SQE) {
            self.state.store(bindings::IB_QPS_SQE, Release);
        }
        Ok(self.state())
    }

    /// Returns the number of posted requests in the send and in the receive queue. Process context
    /// or softirq.
    pub(crate) fn in_flight(&self) -> (u32, u32) {
        // Not one expression: it would hold the first lock while it takes the second.
        let sends = self.send.lists.lock().order.posted();
        let recvs = self.recv.lists.lock().order.posted();
        (sends, recvs)
    }

    /// Has the completions of sends polled, though the driver has reported none. Any context.
    pub(super) fn look(&self) {
        self.send_cq.look();
    }

    /// Returns the requests that one of the queues has taken.
    pub(crate) fn posted(&self, kind: QueueKind) -> Posted {
        self.queue(kind).posted()
    }

    /// Returns the C pointer.
    pub(super) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.ptr.as_ptr()
    }

    /// Returns the queue key that a datagram carries. If `qkey` has the highest bit set, that is
    /// the key of the queue pair (IBA 10.2.5); rxe ignores this rule.
    pub(crate) fn qkey_for(&self, qkey: u32) -> u32 {
        if qkey & CONTROLLED_QKEY != 0 {
            self.qkey.load(Relaxed)
        } else {
            qkey
        }
    }

    /// Returns whether a send request to `ah` fits the transport, and keeps the first address.
    /// Sleeps.
    pub(super) fn note_address(&self, ah: Option<&Arc<Ah>>) -> bool {
        match ah {
            Some(ah) if self.qp_type == QpType::Ud => {
                if !self.addressed.load(Acquire) {
                    self.address.lock().get_or_insert_with(|| ah.clone());
                    self.addressed.store(true, Release);
                }
                true
            }
            Some(_) => false,
            None => self.qp_type != QpType::Ud,
        }
    }

    pub(super) fn queue(&self, kind: QueueKind) -> &Queue<H::Request> {
        match kind {
            QueueKind::Send => &self.send,
            QueueKind::Recv => &self.recv,
        }
    }

    /// # Safety
    ///
    /// Called by the driver with the context of a queue pair like this.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The context is a field of the queue pair, which outlives its events, see `new`.
        let (this, event) = unsafe {
            let this = kernel::container_of!(context.cast::<Member<H>>(), Self, member);
            (&*this, &*event)
        };
        let event = Event::new(event);
        // rxe raises the event again for each packet that arrives later.
        if event == Event::QP_LAST_WQE_REACHED && this.finished.xchg(true, Full) {
            return;
        }
        this.handler().event(event);
    }

    /// Handles the completion of a request of a queue pair like this. Called by
    /// `rust_ulp_completion`.
    ///
    /// # Safety
    ///
    /// `wc` is the first completion of such a request.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The core passes a completion that is valid during the call. Its `wr_cqe` came out
        // of `Queue::push`. The slot lives in the queue pair, which empties its completion queues before
        // it is freed.
        let ((owner, index), wc) = unsafe {
            let wc = &*wc;
            (CqeOwner::slot_of(wc.__bindgen_anon_1.wr_cqe), wc)
        };
        // SAFETY: By the type invariant.
        let this = unsafe { &*owner.context.cast::<Self>() };
        this.completed(owner.kind, index, &WorkCompletion::new(wc));
    }

    /// Completes the posted slots up to `index`, the oldest first. A slot is free before the handler
    /// reports its request: a process that has read the completion finds room for another request.
    fn completed(&self, kind: QueueKind, index: u32, wc: &WorkCompletion) {
        loop {
            let Some(completed) = self.queue(kind).complete(index, wc.is_success()) else {
                pr_warn_once!("a driver completed a request twice\n");
                return;
            };
            if let Some(unsignaled) = completed.unsignaled {
                self.handler().complete_unsignaled(unsignaled);
            }
            match completed.request {
                Some(request) if completed.canceled => {
                    self.handler().complete_canceled(request, wc);
                }
                Some(request) if completed.is_last => self.handler().complete(kind, request, wc),
                Some(request) => self
                    .handler()
                    .complete(kind, request, &WorkCompletion::LOST),
                None => (),
            }
            if completed.is_last {
                return;
            }
        }
    }

    /// Cancels sends whose deadline has passed. Called by a worker.
    ///
    /// # Safety
    ///
    /// `this` is a queue pair like this.
    unsafe extern "C" fn send_expired(this: *const c_void) {
        // SAFETY: By the requirement.
        unsafe { &*this.cast::<Self>() }.expired(QueueKind::Send);
    }

    /// Cancels receives whose deadline has passed. Called by a worker.
    ///
    /// # Safety
    ///
    /// `this` is a queue pair like this.
    unsafe extern "C" fn recv_expired(this: *const c_void) {
        // SAFETY: By the requirement.
        unsafe { &*this.cast::<Self>() }.expired(QueueKind::Recv);
    }

    fn expired(&self, kind: QueueKind) {
        self.queue(kind)
            .expire(|request| self.handler().cancel(request, CancelReason::Timeout));
    }

    /// Cancels the requests of both queues that `which` selects, and returns how many it canceled.
    /// Process context. Calls `which` and [`WrHandler::cancel`] with the queue's lock held.
    pub(crate) fn cancel(&self, which: impl Fn(SlotRef<'_, H::Request>) -> bool) -> u32 {
        let canceled = |request| self.handler().cancel(request, CancelReason::Canceled);
        let sends = self.send.cancel(&which, canceled);
        let recvs = self.recv.cancel(&which, canceled);
        sends.saturating_add(recvs)
    }

    /// Cancels the request in slot `slot` of one of the queues, if `which` selects it. Context as
    /// for [`Self::cancel`].
    pub(crate) fn cancel_slot(
        &self,
        slot: u32,
        which: impl Fn(SlotRef<'_, H::Request>) -> bool,
    ) -> bool {
        let canceled = |request| self.handler().cancel(request, CancelReason::Canceled);
        self.send.cancel_slot(slot, &which, canceled)
            || self.recv.cancel_slot(slot, &which, canceled)
    }

    /// Drops what free slots still hold of their last requests. Sleeps.
    pub(crate) fn purge(&self) {
        self.send.purge();
        self.recv.purge();
    }

    /// Changes the attributes that `mask` names, see [`mask`]. Sleeps.
    ///
    /// A change to RESET drains the queues first, so that every request completes, and checks the
    /// result, see [`RESETS`]. It fails with
    ///
    /// - [`eopnotsupp`] when the driver does not bring a queue pair back to RESET,
    /// - [`eproto`] when the state table (IBA 10.3.1) does not allow the change from
    ///   [`Self::state`],
    /// - [`ENOENT`] when the queue pair has ended, see [`Self::shut_down`],
    /// - [`EIO`] when the device has not come to RESET after all attempts; it is in ERR,
    /// - the error of the driver. If the driver gave up halfway, the queue pair is in ERR.
    pub(crate) fn modify(&self, attributes: &Attributes, mask: u32) -> Result {
        let _life = self.lock()?;
        let from = self.state.load(Relaxed);
        let to = if mask & mask::STATE != 0 {
            attributes.qp_state
        } else {
            from
        };
        if !is_transition(from, to, self.qp_type, mask) {
            return Err(eproto());
        }
        let is_back = to == bindings::IB_QPS_RESET && from != to;
        if is_back && !self.pd.device().has_reset() {
            return Err(eopnotsupp());
        }
        let drained = to != bindings::IB_QPS_RESET || self.drain();
        if from == bindings::IB_QPS_INIT && to == bindings::IB_QPS_RTR {
            self.begin_receiving();
        }
        if is_back || mask & mask::MAX_DEST_RD_ATOMIC != 0 {
            self.note_quiet();
        }
        let all = self.keeps_packets && is_back;
        let result = fault::point().and_then(|()| {
            let is_there = |state| state == bindings::IB_QPS_RESET;
            for turn in 1..=RESETS {
                let mut raw = attributes.to_raw(self.pd.device(), mask);
                // SAFETY: The queue pair and the attributes are valid.
                to_result(unsafe {
                    bindings::ib_modify_qp(self.ptr.as_ptr(), &mut raw, mask as i32)
                })
                .inspect_err(|&err| self.settle(err, from, to, mask))?;
                if all && turn == 1 {
                    // The network hands a packet to rxe in an RCU read section
                    // (`netif_receive_skb()`, net/core/dev.c), and a preempted task gets time to run.
                    // SAFETY: The caller may sleep.
                    unsafe { kernel::bindings::synchronize_rcu() };
                }
                let is_last = turn == RESETS || !all;
                let is_done = to != bindings::IB_QPS_RESET
                    || is_last && self.device_state().is_none_or(is_there);
                if is_done {
                    return Ok(());
                }
            }
            Err(EIO)
        });
        if result.is_ok() {
            if mask & mask::QKEY != 0 {
                self.qkey.store(attributes.qkey, Relaxed);
            }
            self.state.store(to, Release);
        } else if from == bindings::IB_QPS_INIT && self.device_state() == Some(from) {
            // It has not begun to receive.
            self.receives.store(false, Relaxed);
        }
        if to == bindings::IB_QPS_RESET && (drained || result.is_ok()) {
            // Handles earlier completions, unless a drain has waited for them.
            if !drained || self.member.shared().is_some() {
                self.empty_cqs();
            }
            self.open_queues();
        }
        result
    }

    /// Brings a reliable queue pair from RESET through INIT and RTR to RTS. Sleeps.
    ///
    /// Fails as [`Self::modify`] does, and with `ENODATA` when the source address of `attributes`
    /// no longer exists.
    pub(crate) fn bring_up(&self, attributes: &Attributes) -> Result {
        let to = |state: State, mask: u32| {
            let attributes = Attributes {
                qp_state: state as u32,
                ..*attributes
            };
            self.modify(&attributes, mask::STATE | mask)
        };
        to(
            State::Init,
            mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        )?;
        to(
            State::Rtr,
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        )?;
        to(
            State::Rts,
            mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::SQ_PSN
                | mask::MAX_QP_RD_ATOMIC,
        )
    }

    /// Moves a queue pair to ERR when its driver gave a change up halfway, or when it had failed before
    /// and nobody was told. From ERR it drains, and may be reset. Sleeps.
    ///
    /// When rxe has no memory for the reads of a peer, `rxe_qp_from_attr()` has already set the new
    /// state and stopped the receive task. A second try would be refused, and receives would not be
    /// flushed. Setting the number of reads to 0 needs no memory, and starts the task again.
    fn settle(&self, err: Error, from: u32, to: u32, mask: u32) {
        let reads = mask & mask::MAX_DEST_RD_ATOMIC;
        let Some(now) = self.device_state() else {
            return;
        };
        let is_stopped = reads != 0 && from == to && err == ENOMEM;
        if now == from && !is_stopped {
            return;
        }
        if reads != 0 {
            let none = bindings::ib_qp_attr::default();
            self.change(none, reads, c"to take no reads");
        }
        if now != bindings::IB_QPS_ERR {
            self.fail();
        }
        self.state.store(bindings::IB_QPS_ERR, Release);
    }

    /// Returns whether the queue pair is in ERR, by a change or by a failure, or has ended. Sleeps.
    pub(crate) fn has_failed(&self) -> bool {
        let is_failed = |_| self.device_state() == Some(bindings::IB_QPS_ERR);
        self.state() == State::Err || self.lock().map_or(true, is_failed)
    }

    /// Returns the state that the device reports. `modifying` is held. Sleeps.
    fn device_state(&self) -> Option<u32> {
        let mut raw = bindings::ib_qp_attr::default();
        let mut init = bindings::ib_qp_init_attr::default();
        // SAFETY: All pointers are valid.
        let err = unsafe {
            bindings::ib_query_qp(self.ptr.as_ptr(), &mut raw, mask::STATE as i32, &mut init)
        };
        (err == 0).then_some(raw.qp_state)
    }

    /// Queries the attributes. Sleeps. Fails with [`ENOENT`] when the queue pair has ended.
    pub(crate) fn query(&self) -> Result<Attributes> {
        let _life = self.lock()?;
        let mut raw = bindings::ib_qp_attr::default();
        let mut init = bindings::ib_qp_init_attr::default();
        fault::point()?;
        // SAFETY: All pointers are valid.
        to_result(unsafe {
            bindings::ib_query_qp(self.ptr.as_ptr(), &mut raw, mask::ALL as i32, &mut init)
        })?;
        Ok(Attributes::from_raw(&raw))
    }

    /// Makes a change that no driver should refuse, and returns whether this one made it. `what`
    /// completes the message that it refused. Sleeps.
    fn change(&self, mut raw: bindings::ib_qp_attr, mask: u32, what: &CStr) -> bool {
        // SAFETY: The queue pair and the attributes are valid.
        let err = unsafe { bindings::ib_modify_qp(self.ptr.as_ptr(), &mut raw, mask as i32) };
        if err != 0 {
            pr_warn_once!("a driver refused {}: {}\n", what, err);
        }
        err == 0
    }

    /// Moves the queue pair to ERR, and returns whether the driver did that. Sleeps.
    fn fail(&self) -> bool {
        let raw = bindings::ib_qp_attr {
            qp_state: bindings::IB_QPS_ERR,
            ..Default::default()
        };
        self.change(raw, mask::STATE, c"to move a queue pair to ERR")
    }

    /// Refuses new requests, moves the queue pair to ERR, and waits until the handlers of all
    /// requests have returned. Returns false when the driver refuses that. Sleeps.
    ///
    /// A queue that nothing was posted to since it was last drained needs no draining. An empty
    /// queue may need it: the handler of its last completion may still run. A driver may take no other
    /// way to RESET than through ERR (drivers/infiniband/hw/qedr/verbs.c:qedr_update_qp_state).
    fn drain(&self) -> bool {
        fault::step();
        let used = [&self.send, &self.recv].map(|queue| {
            let mut lists = queue.lists.lock();
            lists.closed = true;
            lists.used
        });
        let [sent, received] = used;
        let qp = self.ptr.as_ptr();
        // Of another one, drivers need not say that it has left the queue.
        let shared = self.member.shared().filter(|_| self.receives.load(Relaxed));
        let is_used = sent || received || shared.is_some();
        // One that has not begun to receive from a shared queue would say, at any later time, that it
        // has left that queue.
        let has_srq = self.member.shared().is_some();
        if is_used || !has_srq && self.state() != State::Reset {
            let is_failed = self.fail();
            // Also when the driver refuses: nothing more can be posted.
            self.state.store(bindings::IB_QPS_ERR, Release);
            if !is_failed {
                return false;
            }
        }
        let mut drained = true;
        // Nobody posts, since both queues are closed. Each queue has room for one more request, and
        // the completion queues have room for one more completion.
        if sent {
            let address = self.address.lock().clone();
            let ah = address
                .as_ref()
                .map_or(core::ptr::null_mut(), |ah| ah.as_raw());
            // SAFETY: The queue pair is valid and in ERR, and the address belongs to its domain. A
            // UD queue pair that has sent has one. For the room see above. The completion queue
            // lives longer than this, and the work is its own.
            let drain_sq = |work, bh| unsafe { bindings::rust_ulp_h_drain_sq(qp, ah, work, bh) };
            drained &= self.send_cq.with_reserve(drain_sq) == 0;
        }
        if received {
            // SAFETY: The queue pair is valid and in ERR. For the room, and for the work, see above.
            let drain_rq = |work, bh| unsafe { bindings::rust_ulp_h_drain_rq(qp, work, bh) };
            drained &= self.recv_cq.with_reserve(drain_rq) == 0;
        }
        if !drained {
            pr_warn_once!("a driver refused the last request of a queue\n");
        }
        if let Some(shared) = shared {
            // SAFETY: The queue pair is valid, and uses this shared receive queue.
            unsafe { shared.srq().wait_for_last_wqe(qp) };
            self.recv_cq.empty();
            shared.srq().suspect();
        }
        drained
    }

    /// Returns whether the device has requests, or may have taken some of a shared receive queue.
    ///
    /// Without any, a queue pair is destroyed in the state that it has. rxe acknowledges a message
    /// after its completion, and does not when the queue pair is in ERR by then
    /// (rxe_resp.c:do_complete), while `rxe_destroy_qp()` waits for the acknowledgment.
    fn has_work(&self) -> bool {
        let has_posted = |queue: &Queue<_>| queue.lists.lock().order.posted() > 0;
        self.member.shared().is_some() || has_posted(&self.send) || has_posted(&self.recv)
    }

    /// Notes that packets which arrive from now on may stay queued in rxe.
    fn note_quiet(&self) {
        if self.keeps_packets {
            let done = self.recv.lists.lock().done();
            self.quiet_since.store(done, Relaxed);
        }
    }

    /// Has rxe drop the packets that it keeps for a queue pair which is about to be destroyed. Sleeps.
    ///
    /// `rxe_disable_task()` (rxe_task.c) stops the receive task for a moment, on the way to RESET
    /// (`rxe_qp_reset()`) and where MAX_DEST_RD_ATOMIC is set (`rxe_qp_from_attr()`). A packet that `rxe_resp_queue_pkt()`
    /// queues in that moment schedules nothing, and `rxe_enable_task()` does not do so later. It stays
    /// until another one arrives, and holds a reference to this queue pair and, over loopback, to its
    /// sender. `__rxe_cleanup()` waits 50 s for such references, uninterruptibly. Then the queue pair
    /// is freed in spite of them.
    ///
    /// The change to ERR schedules the task. A receive that has completed since then shows that the
    /// task has run; its acknowledgment may be on its way, see [`Self::has_work`].
    fn release_packets(&self) {
        let quiet_since = self.quiet_since.load(Relaxed);
        let is_quiet = self.recv.lists.lock().done() <= quiet_since;
        if quiet_since == u64::MAX || !is_quiet || self.state() == State::Err {
            return;
        }
        if self.state() == State::Reset {
            // The state table has no way from RESET to ERR. rxe has one port.
            let raw = bindings::ib_qp_attr {
                qp_state: bindings::IB_QPS_INIT,
                port_num: 1,
                ..Default::default()
            };
            let also = match self.qp_type {
                QpType::Ud => mask::QKEY,
                _ => mask::ACCESS_FLAGS,
            };
            let mask = mask::STATE | mask::PKEY_INDEX | mask::PORT | also;
            if !self.change(raw, mask, c"to move a queue pair to INIT") {
                return;
            }
        }
        self.fail();
    }

    /// Empties the completion queues, see [`Cq::empty`]. Sleeps.
    fn empty_cqs(&self) {
        self.send_cq.empty();
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.empty();
        }
    }

    /// Ends the queue pair, whoever else has it: refuses requests, waits until the handlers of all
    /// requests have returned, and has the driver destroy it. When this returns, nothing of the peer
    /// arrives through it. If the driver refuses to destroy it, as ionic may, and to move it to ERR,
    /// the adapter may still write to the memory of its requests, which is leaked; the caller is not
    /// told. Later calls do nothing. Sleeps.
    pub(crate) fn shut_down(&self) {
        let mut life = self.modifying.lock();
        if *life != Life::Alive {
            return;
        }
        // The owner that destroys the queue pair need not hear of its end.
        self.finished.store(true, Release);
        for queue in [&self.send, &self.recv] {
            queue.lists.lock().closed = true;
        }
        if self.has_work() {
            self.drain();
        }
        self.release_packets();
        fault::step();
        // SAFETY: Owned. Both queues are closed and stay so, and `life` is held: nobody uses it. A
        // completion that is being handled, since it was not drained, uses the slots only.
        let destroy = || unsafe { self.pd.destroy_qp(self.ptr) };
        let is_destroyed = self.member.leave(self.ptr, destroy);
        self.state.store(bindings::IB_QPS_ERR, Release);
        *life = if is_destroyed {
            Life::Ended
        } else {
            self.fail();
            // SAFETY: The queue pair is still valid.
            unsafe { bindings::rust_ulp_h_disown_qp(self.ptr.as_ptr()) };
            Life::Leaked
        };
        self.empty_cqs();
        for kind in [QueueKind::Send, QueueKind::Recv] {
            self.flush(kind);
            self.queue(kind).stop();
        }
        if !is_destroyed {
            self.send.ignore();
            self.recv.ignore();
            self.empty_cqs();
        }
        self.handler()
            .destroyed(self.send.posted(), self.recv.posted());
    }

    fn open_queues(&self) {
        // A driver that lost completions, because a completion queue overflowed, does not make them
        // any more.
        for kind in [QueueKind::Send, QueueKind::Recv] {
            self.flush(kind);
            let mut lists = self.queue(kind).lists.lock();
            lists.closed = false;
            lists.used = false;
        }
        self.receives.store(false, Relaxed);
    }

    /// Prepares for the change to RTR, from which on a queue pair takes receives. Drops a last-WQE
    /// event of the time before, however late it came.
    fn begin_receiving(&self) {
        if self.member.shared().is_some() {
            // SAFETY: The queue pair is valid, and nobody waits for the event.
            unsafe { bindings::rust_ulp_h_forget_last_wqe(self.ptr.as_ptr()) };
            self.finished.store(false, Release);
            self.receives.store(true, Relaxed);
        }
    }

    /// Completes the requests that are still posted. The device is done with them.
    fn flush(&self, kind: QueueKind) {
        let queue = self.queue(kind);
        while let Some((first, _)) = queue.oldest() {
            self.completed(kind, first, &WorkCompletion::FLUSHED);
        }
    }
}

#[pinned_drop]
impl<H: WrHandler> PinnedDrop for Qp<H> {
    fn drop(self: Pin<&mut Self>) {
        self.shut_down();
        if *self.modifying.lock() == Life::Leaked {
            // SAFETY: The queues are not moved.
            let this = unsafe { self.get_unchecked_mut() };
            this.send.leak();
            this.recv.leak();
        }
    }
}
