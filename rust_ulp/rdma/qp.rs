// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! A queue pair owns a slot for each request that its queues may hold. A request is put together
//! in a free slot, outside of any lock, as part of a [`Chain`]; posting the chain hands its slots
//! to the device, in order; the completion gives them back. So posting allocates nothing, and what
//! a request refers to lives in the slot for as long as the device may touch it.
//!
//! Each request that is pushed ends in exactly one call of its [`Handler`]: `complete`, `retire`
//! for one that was not signalled and succeeded, or `cancel` when it never reached the device. The
//! memory regions that it refers to stay in its slot after that, until the slot is used again,
//! [`Qp::purge`] is called, or the queue pair goes: completions may be handled in a softirq, where
//! a region could not be deregistered.

use super::{
    ah::AddressVector,
    cq::{
        Cq,
        PollContext, //
    },
    device::Device,
    event::Event,
    pd::Pd,
    wr::{
        Flags,
        Local,
        Operation,
        Tail,
        WorkCompletion, //
    }, //
};
use crate::{
    bindings,
    sys::{
        errno::{
            enotconn,
            eproto, //
        },
        lock::{
            new_spinlock_bh,
            SpinLockBh, //
        }, //
    }, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
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
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Transport of a queue pair: `enum ib_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    fn to_raw(self) -> bindings::ib_qp_type {
        match self {
            Self::Rc => bindings::IB_QPT_RC,
            Self::Uc => bindings::IB_QPT_UC,
            Self::Ud => bindings::IB_QPT_UD,
        }
    }
}

/// State of a queue pair: `enum ib_qp_state`, IBA 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum State {
    /// Made, or taken back to that.
    Reset = bindings::IB_QPS_RESET,
    /// Takes receive requests.
    Init = bindings::IB_QPS_INIT,
    /// Ready to receive.
    Rtr = bindings::IB_QPS_RTR,
    /// Ready to send.
    Rts = bindings::IB_QPS_RTS,
    /// The send queue drains.
    Sqd = bindings::IB_QPS_SQD,
    /// The send queue failed (unreliable transports).
    Sqe = bindings::IB_QPS_SQE,
    /// Failed: all requests are flushed.
    Err = bindings::IB_QPS_ERR,
}

impl State {
    /// The state of that number.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            bindings::IB_QPS_RESET => Self::Reset,
            bindings::IB_QPS_INIT => Self::Init,
            bindings::IB_QPS_RTR => Self::Rtr,
            bindings::IB_QPS_RTS => Self::Rts,
            bindings::IB_QPS_SQD => Self::Sqd,
            bindings::IB_QPS_SQE => Self::Sqe,
            bindings::IB_QPS_ERR => Self::Err,
            _ => return None,
        })
    }
}

/// Which attributes of an [`Attributes`] count: `enum ib_qp_attr_mask`.
pub(crate) mod mask {
    use crate::bindings;
    pub(crate) const STATE: u32 = bindings::IB_QP_STATE;
    pub(crate) const ACCESS_FLAGS: u32 = bindings::IB_QP_ACCESS_FLAGS;
    pub(crate) const PKEY_INDEX: u32 = bindings::IB_QP_PKEY_INDEX;
    pub(crate) const PORT: u32 = bindings::IB_QP_PORT;
    pub(crate) const AV: u32 = bindings::IB_QP_AV;
    pub(crate) const PATH_MTU: u32 = bindings::IB_QP_PATH_MTU;
    pub(crate) const TIMEOUT: u32 = bindings::IB_QP_TIMEOUT;
    pub(crate) const RETRY_CNT: u32 = bindings::IB_QP_RETRY_CNT;
    pub(crate) const RNR_RETRY: u32 = bindings::IB_QP_RNR_RETRY;
    pub(crate) const RQ_PSN: u32 = bindings::IB_QP_RQ_PSN;
    pub(crate) const MAX_QP_RD_ATOMIC: u32 = bindings::IB_QP_MAX_QP_RD_ATOMIC;
    pub(crate) const MIN_RNR_TIMER: u32 = bindings::IB_QP_MIN_RNR_TIMER;
    pub(crate) const SQ_PSN: u32 = bindings::IB_QP_SQ_PSN;
    pub(crate) const MAX_DEST_RD_ATOMIC: u32 = bindings::IB_QP_MAX_DEST_RD_ATOMIC;
    pub(crate) const DEST_QPN: u32 = bindings::IB_QP_DEST_QPN;
}

/// Attributes of a queue pair: `struct ib_qp_attr`, without alternate paths.
#[derive(Clone, Copy, Default)]
pub(crate) struct Attributes {
    /// The state to go to, or that it is in.
    pub(crate) qp_state: u32,
    /// The state it is believed to be in.
    pub(crate) cur_qp_state: u32,
    /// `enum ib_mtu`.
    pub(crate) path_mtu: u32,
    /// Q_Key, on UD.
    pub(crate) qkey: u32,
    /// First packet sequence number expected; 24 bits.
    pub(crate) rq_psn: u32,
    /// First packet sequence number sent; 24 bits.
    pub(crate) sq_psn: u32,
    /// The peer's number; 24 bits.
    pub(crate) dest_qp_num: u32,
    /// What the peer may do: [`access`](super::mr::access).
    pub(crate) access_flags: u32,
    /// The way to the peer.
    pub(crate) av: AddressVector,
    /// Index of the P_Key.
    pub(crate) pkey_index: u16,
    /// Whether to raise [`Event::SqDrained`].
    pub(crate) en_sqd_async_notify: bool,
    /// Whether it is draining.
    pub(crate) sq_draining: bool,
    /// Reads and atomics outstanding at most.
    pub(crate) max_rd_atomic: u8,
    /// Reads and atomics answered at a time at most.
    pub(crate) max_dest_rd_atomic: u8,
    /// `enum ib_rnr_timeout`.
    pub(crate) min_rnr_timer: u8,
    /// Port.
    pub(crate) port: u32,
    /// 4.096 us * 2^n; 0 waits for ever.
    pub(crate) timeout: u8,
    /// 0 to 7.
    pub(crate) retry_cnt: u8,
    /// 0 to 6; 7 tries for ever.
    pub(crate) rnr_retry: u8,
}

impl Attributes {
    fn to_raw(self, device: &Device, mask: u32) -> bindings::ib_qp_attr {
        bindings::ib_qp_attr {
            qp_state: self.qp_state,
            cur_qp_state: self.cur_qp_state,
            path_mtu: self.path_mtu,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: self.access_flags as i32,
            ah_attr: if mask & mask::AV != 0 {
                self.av.to_raw(device)
            } else {
                Default::default()
            },
            pkey_index: self.pkey_index,
            en_sqd_async_notify: self.en_sqd_async_notify.into(),
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            port_num: self.port,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..Default::default()
        }
    }

    pub(super) fn from_raw(raw: &bindings::ib_qp_attr) -> Self {
        Self {
            qp_state: raw.qp_state,
            cur_qp_state: raw.cur_qp_state,
            path_mtu: raw.path_mtu,
            qkey: raw.qkey,
            rq_psn: raw.rq_psn,
            sq_psn: raw.sq_psn,
            dest_qp_num: raw.dest_qp_num,
            access_flags: raw.qp_access_flags as u32,
            av: AddressVector::from_raw(&raw.ah_attr),
            pkey_index: raw.pkey_index,
            en_sqd_async_notify: raw.en_sqd_async_notify != 0,
            sq_draining: raw.sq_draining != 0,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
            min_rnr_timer: raw.min_rnr_timer,
            port: raw.port_num,
            timeout: raw.timeout,
            retry_cnt: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
        }
    }
}

/// Sizes of a queue pair: `struct ib_qp_cap`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Capacity {
    /// Requests in the send queue.
    pub(crate) max_send_wr: u32,
    /// Requests in the receive queue.
    pub(crate) max_recv_wr: u32,
    /// Pieces of memory of a send request.
    pub(crate) max_send_sge: u32,
    /// Pieces of memory of a receive request.
    pub(crate) max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub(crate) max_inline: u32,
}

/// Which queue of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// The owner of a queue pair.
///
/// Completions of one queue are handled one after the other, in the order of posting.
pub(crate) trait Handler: Send + Sync + 'static {
    /// What the owner keeps with a request. A copy of it goes to the methods below, and is dropped
    /// there: its destructor must not sleep.
    type Request: Send + Clone + 'static;

    /// A request is done. In the context of the queue's [`PollContext`]; in a softirq it must not
    /// sleep. No lock is held.
    fn complete(&self, side: Side, request: &Self::Request, wc: &WorkCompletion);

    /// A request that was not signalled succeeded. Context as for `complete`.
    fn retire(&self, request: &Self::Request);

    /// A request was not posted. Process context, or whatever the caller of [`Chain::post`] is in.
    fn cancel(&self, request: &Self::Request);

    /// Something happened to the queue pair. Any context, interrupts may be off: must not sleep.
    fn event(&self, event: Event);
}

/// No slot.
const NONE: u32 = u32::MAX;

/// The request as the driver takes it: one of them, all beginning with the general part.
union Wr {
    send: bindings::ib_send_wr,
    rdma: bindings::ib_rdma_wr,
    atomic: bindings::ib_atomic_wr,
    reg: bindings::ib_reg_wr,
    recv: bindings::ib_recv_wr,
}

/// What is in a slot. Belongs to whoever owns the slot: see [`Slot`].
struct Content<R> {
    /// The next slot of the list that this one is in.
    next: u32,
    wr: Wr,
    /// Whether the owner wants to hear of it when it succeeds.
    signaled: bool,
    request: Option<R>,
}

/// Room for one request.
///
/// # Invariants
///
/// - `hook` is never changed once the queue pair exists.
/// - `content`, and the parts of the queue's arrays that belong to the slot, are accessed by one
///   owner at a time: the queue, under its lock, for a slot in the list of free ones or in the
///   list of posted ones; a chain for a slot in it.
#[repr(C)]
struct Slot<R> {
    hook: bindings::rust_ulp_cqe_hook,
    /// The queue pair, for `hook`.
    qp: *const c_void,
    side: Side,
    index: u32,
    content: UnsafeCell<Content<R>>,
}

/// The lists that every slot of a queue is in, except for those in chains.
struct Lists {
    /// Free slots: a stack.
    free: u32,
    /// Posted slots: a queue, in the order of posting.
    first: u32,
    last: u32,
    posted: u32,
    /// Requests posted since the last one that makes a completion.
    silent: u32,
    /// Nothing can be posted: the queue is being drained.
    closed: bool,
}

/// One of the two queues.
#[pin_data]
struct Queue<R: Send> {
    #[pin]
    lists: SpinLockBh<Lists>,
    slots: KVVec<Slot<R>>,
    /// `max_sge` for each slot.
    sges: KVVec<UnsafeCell<bindings::ib_sge>>,
    /// What `sges` point into.
    locals: KVVec<UnsafeCell<Option<Local>>>,
    /// `max_inline` for each slot.
    inline: KVVec<UnsafeCell<u8>>,
    max_sge: u32,
    max_inline: u32,
}

// SAFETY: Slots and their parts have one owner at a time, see `Slot`; the requests are `Send`.
unsafe impl<R: Send> Send for Queue<R> {}
// SAFETY: As above.
unsafe impl<R: Send> Sync for Queue<R> {}

impl<R: Send> Queue<R> {
    /// Slots `0..depth`, not yet tied to a queue pair; see [`Qp::new`].
    fn new(
        side: Side,
        qp: *const c_void,
        done: unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc),
        depth: u32,
        max_sge: u32,
        max_inline: u32,
    ) -> Result<impl PinInit<Self>> {
        let count = depth as usize;
        let total_sge = count.checked_mul(max_sge as usize).ok_or(ERANGE)?;
        let total_inline = count.checked_mul(max_inline as usize).ok_or(ERANGE)?;
        let mut slots = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for index in 0..depth {
            let next = index.wrapping_add(1);
            let slot = Slot {
                hook: bindings::rust_ulp_cqe_hook {
                    cqe: bindings::ib_cqe {
                        done: Some(bindings::rust_ulp_completion),
                    },
                    done: Some(done),
                },
                qp,
                side,
                index,
                content: UnsafeCell::new(Content {
                    next: if next < depth { next } else { NONE },
                    wr: Wr {
                        send: Default::default(),
                    },
                    signaled: false,
                    request: None,
                }),
            };
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        let mut sges = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        let mut locals = KVVec::with_capacity(total_sge, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..total_sge {
            sges.push(UnsafeCell::new(Default::default()), GFP_KERNEL_ACCOUNT)?;
            locals.push(UnsafeCell::new(None), GFP_KERNEL_ACCOUNT)?;
        }
        let mut inline = KVVec::with_capacity(total_inline, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..total_inline {
            inline.push(UnsafeCell::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        let lists = Lists {
            free: if depth > 0 { 0 } else { NONE },
            first: NONE,
            last: NONE,
            posted: 0,
            silent: 0,
            closed: false,
        };
        Ok(pin_init!(Self {
            lists <- new_spinlock_bh!(lists, "rdma::Queue::lists"),
            slots,
            sges,
            locals,
            inline,
            max_sge,
            max_inline,
        }))
    }

    fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Content of slot `index`.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and makes no other reference to its content meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn content(&self, index: u32) -> Option<&mut Content<R>> {
        self.slots
            .get(index as usize)
            // SAFETY: By the requirement the reference is the only one.
            .map(|slot| unsafe { &mut *slot.content.get() })
    }

    /// The parts of `locals` and `sges` that belong to slot `index`.
    fn pieces(
        &self,
        index: u32,
    ) -> impl Iterator<Item = (&UnsafeCell<Option<Local>>, &UnsafeCell<bindings::ib_sge>)> {
        let start = (index as usize).saturating_mul(self.max_sge as usize);
        let end = start.saturating_add(self.max_sge as usize);
        let locals = self.locals.get(start..end).unwrap_or(&[]);
        let sges = self.sges.get(start..end).unwrap_or(&[]);
        locals.iter().zip(sges)
    }

    /// Drops what slot `index` still holds of its last request. Sleeps.
    ///
    /// # Safety
    ///
    /// The caller owns the slot.
    unsafe fn clear(&self, index: u32) {
        // SAFETY: By the requirement.
        if let Some(content) = unsafe { self.content(index) } {
            content.request = None;
        }
        for (local, _) in self.pieces(index) {
            // SAFETY: By the requirement the caller owns the slot's parts too.
            unsafe { *local.get() = None };
        }
    }

    /// Takes a free slot.
    fn take(&self) -> Option<u32> {
        let mut lists = self.lists.lock();
        let index = lists.free;
        // SAFETY: The slot is in the list of free ones, and the lock is held.
        lists.free = unsafe { self.content(index) }?.next;
        Some(index)
    }

    /// Gives slot `index` back.
    ///
    /// # Safety
    ///
    /// The caller owns the slot, and does so no longer.
    unsafe fn put(&self, lists: &mut Lists, index: u32) {
        // SAFETY: By the requirement.
        if let Some(content) = unsafe { self.content(index) } {
            content.next = lists.free;
            lists.free = index;
        }
    }
}

/// A queue pair.
///
/// # Invariants
///
/// - `ptr` is a queue pair of `pd`, `send_cq` and `recv_cq`, owned.
/// - Every slot of both queues points back at this value, which does not move.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp<H: Handler> {
    ptr: NonNull<bindings::ib_qp>,
    number: u32,
    qp_type: QpType,
    capacity: Capacity,
    /// The state that it was last brought to; failures are not seen here.
    state: Atomic<u32>,
    /// Serialises changes of the state.
    #[pin]
    modifying: Mutex<()>,
    #[pin]
    send: Queue<H::Request>,
    #[pin]
    recv: Queue<H::Request>,
    handler: H,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    pd: Arc<Pd>,
}

// SAFETY: The core and the drivers lock what they change; the rest is `Send` and `Sync` by itself.
unsafe impl<H: Handler> Send for Qp<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for Qp<H> {}

/// Entries that a completion queue needs beside those for requests: the core posts one more to
/// a queue when it drains it, and only one at a time is drained into the same completion queue.
pub(crate) const CQ_RESERVE: u32 = 1;

impl<H: Handler> Qp<H> {
    /// Creates a queue pair. Sleeps.
    ///
    /// The queues hold exactly what `capacity` says; the caller checks it against the device's
    /// limits, and sees to it that the completion queues have room for all of it and for
    /// [`CQ_RESERVE`] more.
    pub(crate) fn new(
        pd: Arc<Pd>,
        send_cq: Arc<Cq>,
        recv_cq: Arc<Cq>,
        qp_type: QpType,
        capacity: Capacity,
        handler: H,
    ) -> Result<Arc<Self>> {
        let mut init = bindings::ib_qp_init_attr {
            event_handler: Some(Self::event),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            cap: bindings::ib_qp_cap {
                // One more each for the request that drains the queue.
                max_send_wr: capacity.max_send_wr.checked_add(1).ok_or(ERANGE)?,
                max_recv_wr: capacity.max_recv_wr.checked_add(1).ok_or(ERANGE)?,
                max_send_sge: capacity.max_send_sge,
                max_recv_sge: capacity.max_recv_sge,
                max_inline_data: capacity.max_inline,
                ..Default::default()
            },
            sq_sig_type: bindings::IB_SIGNAL_REQ_WR,
            qp_type: qp_type.to_raw(),
            ..Default::default()
        };
        let raw_pd = pd.as_raw();
        Arc::pin_init(
            try_pin_init!(&this in Self {
                modifying <- new_mutex!((), "rdma::Qp::modifying"),
                send <- Queue::new(
                    Side::Send,
                    this.as_ptr().cast(),
                    Self::done,
                    capacity.max_send_wr,
                    capacity.max_send_sge,
                    capacity.max_inline,
                )?,
                recv <- Queue::new(
                    Side::Recv,
                    this.as_ptr().cast(),
                    Self::done,
                    capacity.max_recv_wr,
                    capacity.max_recv_sge,
                    0,
                )?,
                handler,
                qp_type,
                capacity,
                state: Atomic::new(bindings::IB_QPS_RESET),
                ptr: {
                    init.qp_context = this.as_ptr().cast();
                    // SAFETY: The domain and the queues are valid and outlive the queue pair. Its
                    // context is this value: no event is raised before the queue pair leaves
                    // RESET, by which time the value is complete.
                    let ptr = from_err_ptr(unsafe {
                        bindings::rust_ulp_h_create_qp(raw_pd, &mut init)
                    })?;
                    NonNull::new(ptr).ok_or(ENOMEM)?
                },
                // SAFETY: Just created. Nothing can fail any more, so it is not lost.
                number: unsafe { bindings::rust_ulp_h_qp_num(ptr.as_ptr()) },
                send_cq,
                recv_cq,
                pd,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The number, as the wire and `rdma resource` show it.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The transport.
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The sizes.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The owner.
    pub(crate) fn handler(&self) -> &H {
        &self.handler
    }

    /// The state that it was last brought to.
    pub(crate) fn state(&self) -> State {
        State::from_raw(self.state.load(Acquire)).unwrap_or(State::Err)
    }

    /// Requests in the send and in the receive queue.
    pub(crate) fn in_flight(&self) -> (u32, u32) {
        // Not in one expression: it would hold the first lock while it takes the second.
        let sends = self.send.lists.lock().posted;
        let recvs = self.recv.lists.lock().posted;
        (sends, recvs)
    }

    fn queue(&self, side: Side) -> &Queue<H::Request> {
        match side {
            Side::Send => &self.send,
            Side::Recv => &self.recv,
        }
    }

    /// # Safety
    ///
    /// Called by the driver, with the context of a queue pair like this.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The context is the queue pair, which outlives its events, see `new`.
        let (this, event) = unsafe { (&*context.cast::<Self>(), &*event) };
        this.handler.event(Event::new(event));
    }

    /// Called by `rust_ulp_completion` for each completion of a request of a queue pair like this.
    ///
    /// # Safety
    ///
    /// `wc` is the completion of such a request, which completes for the first time.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The core passes a completion that is valid during the call. Its `wr_cqe` is the
        // first field of the slot of a request that was posted and did not complete before; the
        // slot lives in the queue pair, which drains its queues before it goes.
        let (slot, wc) = unsafe {
            let wc = &*wc;
            (&*wc.__bindgen_anon_1.wr_cqe.cast::<Slot<H::Request>>(), wc)
        };
        // SAFETY: By the type invariant.
        let this = unsafe { &*slot.qp.cast::<Self>() };
        this.completed(slot.side, slot.index, &WorkCompletion::new(wc));
    }

    /// Takes the slots up to `index` off the list of posted ones, oldest first.
    fn completed(&self, side: Side, index: u32, wc: &WorkCompletion) {
        let queue = self.queue(side);
        loop {
            let mut lists = queue.lists.lock();
            let first = lists.first;
            // SAFETY: The slot is in the list of posted ones, and the lock is held.
            let Some(content) = (unsafe { queue.content(first) }) else {
                // A completion of a request that is not posted: the driver made it twice.
                drop(lists);
                pr_warn_once!("a driver completed a request twice\n");
                return;
            };
            lists.first = content.next;
            if lists.first == NONE {
                lists.last = NONE;
            }
            lists.posted = lists.posted.saturating_sub(1);
            let (request, signaled) = (content.request.clone(), content.signaled);
            // SAFETY: The slot was just taken off its list, and is not used after this.
            unsafe { queue.put(&mut lists, first) };
            drop(lists);

            let done = first == index;
            if let Some(request) = &request {
                // One before the one that completed made no completion, so it succeeded; and one
                // that succeeded and was only signalled to free the queue is not reported.
                if done && (signaled || !wc.is_success()) {
                    self.handler.complete(side, request, wc);
                } else {
                    self.handler.retire(request);
                }
            }
            if done {
                return;
            }
        }
    }

    /// Drops what free slots still hold of their last requests. Sleeps.
    pub(crate) fn purge(&self) {
        for queue in [&self.send, &self.recv] {
            let mut kept = NONE;
            while let Some(index) = queue.take() {
                // SAFETY: It was just taken.
                unsafe { queue.clear(index) };
                // SAFETY: As above; the link is ours while we own the slot.
                if let Some(content) = unsafe { queue.content(index) } {
                    content.next = kept;
                }
                kept = index;
            }
            let mut lists = queue.lists.lock();
            while kept != NONE {
                let index = kept;
                // SAFETY: These are the slots that were taken above.
                kept = match unsafe { queue.content(index) } {
                    Some(content) => content.next,
                    None => NONE,
                };
                // SAFETY: Ours, and not used after this.
                unsafe { queue.put(&mut lists, index) };
            }
        }
    }

    /// Changes attributes; [`mask`] says which. Sleeps.
    ///
    /// [`eproto`] when the state table (IBA 10.3.1) does not allow the change from the state that
    /// it was last brought to. On the way to RESET the queues are drained first, so that every
    /// request completes.
    pub(crate) fn modify(&self, attributes: &Attributes, mask: u32) -> Result {
        let _modifying = self.modifying.lock();
        let from = self.state.load(Relaxed);
        let to = if mask & mask::STATE != 0 {
            attributes.qp_state
        } else {
            from
        };
        // SAFETY: Pure function of its arguments.
        let is_ok = unsafe { bindings::ib_modify_qp_is_ok(from, to, self.qp_type.to_raw(), mask) };
        if !is_ok {
            return Err(eproto());
        }
        if to == bindings::IB_QPS_RESET {
            self.drain();
        }
        let mut raw = attributes.to_raw(self.pd.device(), mask);
        let result =
            // SAFETY: The queue pair and the attributes are valid.
            to_result(unsafe { bindings::ib_modify_qp(self.ptr.as_ptr(), &mut raw, mask as i32) });
        if result.is_ok() {
            self.state.store(to, Release);
        }
        if to == bindings::IB_QPS_RESET {
            self.open_queues();
        }
        result
    }

    /// What the device says of the queue pair. Sleeps.
    pub(crate) fn query(&self) -> Result<Attributes> {
        let mut raw = bindings::ib_qp_attr::default();
        let mut init = bindings::ib_qp_init_attr::default();
        let all = mask::STATE
            | mask::ACCESS_FLAGS
            | mask::PKEY_INDEX
            | mask::PORT
            | mask::AV
            | mask::PATH_MTU
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::RQ_PSN
            | mask::MAX_QP_RD_ATOMIC
            | mask::MIN_RNR_TIMER
            | mask::SQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::DEST_QPN;
        // SAFETY: All pointers are valid.
        to_result(unsafe {
            bindings::ib_query_qp(self.ptr.as_ptr(), &mut raw, all as i32, &mut init)
        })?;
        Ok(Attributes::from_raw(&raw))
    }

    /// Lets nobody post, moves the queue pair to ERR and waits until all requests are done. Sleeps.
    fn drain(&self) {
        for queue in [&self.send, &self.recv] {
            queue.lists.lock().closed = true;
        }
        if self.in_flight() == (0, 0) {
            return;
        }
        let qp = self.ptr.as_ptr();
        // SAFETY: The queue pair is valid; nobody posts, since both queues are closed; each has
        // room for one more request, and the completion queues, made by `ib_alloc_cq`, for one
        // more completion.
        let drain_sq = || unsafe { bindings::ib_drain_sq(qp) };
        self.send_cq.with_reserve(drain_sq);
        // SAFETY: As above.
        let drain_rq = || unsafe { bindings::ib_drain_rq(qp) };
        self.recv_cq.with_reserve(drain_rq);
        self.state.store(bindings::IB_QPS_ERR, Release);
        for cq in [&self.send_cq, &self.recv_cq] {
            if cq.poll_context() == PollContext::Direct {
                // Another thread may have polled completions of ours and not yet handled them.
                cq.synchronize();
            }
        }
    }

    fn open_queues(&self) {
        // A driver that lost completions, by an overflow of its queue, will not make them now.
        for side in [Side::Send, Side::Recv] {
            self.flush(side);
            self.queue(side).lists.lock().closed = false;
        }
    }

    /// Completes what is still posted. The device must be done with the queue pair's requests.
    fn flush(&self, side: Side) {
        let queue = self.queue(side);
        loop {
            let first = queue.lists.lock().first;
            if first == NONE {
                return;
            }
            self.completed(side, first, &WorkCompletion::FLUSHED);
        }
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for Qp<H> {
    fn drop(self: Pin<&mut Self>) {
        self.drain();
        // SAFETY: Owned; nobody uses it any more, and no completion of it is under way.
        let err = unsafe { bindings::rust_ulp_h_destroy_qp(self.ptr.as_ptr()) };
        if err != 0 {
            pr_warn_once!("a driver refused to destroy a queue pair: {}\n", err);
        }
        self.flush(Side::Send);
        self.flush(Side::Recv);
    }
}

/// Requests for one queue of a queue pair, in order, not yet posted.
///
/// Dropping it cancels them.
///
/// # Invariants
///
/// Owns the slots of the list from `first` to `last`, which has `count` of them.
pub(crate) struct Chain<H: Handler> {
    qp: Arc<Qp<H>>,
    side: Side,
    first: u32,
    last: u32,
    count: u32,
}

impl<H: Handler> Chain<H> {
    /// An empty chain.
    pub(crate) fn new(qp: Arc<Qp<H>>, side: Side) -> Self {
        // INVARIANT: It owns nothing.
        Self {
            qp,
            side,
            first: NONE,
            last: NONE,
            count: 0,
        }
    }

    /// The queue pair.
    pub(crate) fn qp(&self) -> &Arc<Qp<H>> {
        &self.qp
    }

    /// Which queue.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Appends a send request that reads or writes `locals`.
    ///
    /// `inline` is data that is taken now, instead of `locals`. [`EAGAIN`] when the queue is full,
    /// [`E2BIG`] for too many `locals`, [`EMSGSIZE`] for too much inline data; then `cancel` was
    /// called for `request`. May sleep.
    pub(crate) fn push(
        &mut self,
        operation: &Operation,
        flags: Flags,
        locals: impl Iterator<Item = Local>,
        inline: Option<&[u8]>,
        request: H::Request,
    ) -> Result {
        let qp = self.qp.clone();
        let fill = |slot: &Slot<H::Request>, list: *mut bindings::ib_sge, count: u32| {
            let mut wr = bindings::ib_send_wr {
                sg_list: list,
                num_sge: count as i32,
                send_flags: (if flags.fence {
                    bindings::IB_SEND_FENCE
                } else {
                    0
                }) | (if flags.signaled {
                    bindings::IB_SEND_SIGNALED
                } else {
                    0
                }) | (if flags.solicited {
                    bindings::IB_SEND_SOLICITED
                } else {
                    0
                }) | (if inline.is_some() {
                    bindings::IB_SEND_INLINE
                } else {
                    0
                }),
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = core::ptr::from_ref(&slot.hook.cqe).cast_mut();
            match *operation {
                Operation::Write {
                    remote_addr,
                    rkey,
                    imm,
                } => {
                    wr.opcode = bindings::IB_WR_RDMA_WRITE;
                    if let Some(imm) = imm {
                        wr.opcode = bindings::IB_WR_RDMA_WRITE_WITH_IMM;
                        wr.ex.imm_data = imm.to_be();
                    }
                    Wr {
                        rdma: bindings::ib_rdma_wr {
                            wr,
                            remote_addr,
                            rkey,
                        },
                    }
                }
                Operation::Read { remote_addr, rkey } => {
                    wr.opcode = bindings::IB_WR_RDMA_READ;
                    Wr {
                        rdma: bindings::ib_rdma_wr {
                            wr,
                            remote_addr,
                            rkey,
                        },
                    }
                }
                Operation::Send(tail) => {
                    wr.opcode = match tail {
                        Tail::None => bindings::IB_WR_SEND,
                        Tail::Imm(imm) => {
                            wr.ex.imm_data = imm.to_be();
                            bindings::IB_WR_SEND_WITH_IMM
                        }
                        Tail::Invalidate(rkey) => {
                            wr.ex.invalidate_rkey = rkey;
                            bindings::IB_WR_SEND_WITH_INV
                        }
                    };
                    Wr { send: wr }
                }
                Operation::CompareSwap {
                    remote_addr,
                    rkey,
                    compare,
                    swap,
                } => {
                    wr.opcode = bindings::IB_WR_ATOMIC_CMP_AND_SWP;
                    Wr {
                        atomic: bindings::ib_atomic_wr {
                            wr,
                            remote_addr,
                            compare_add: compare,
                            swap,
                            rkey,
                            ..Default::default()
                        },
                    }
                }
                Operation::FetchAdd {
                    remote_addr,
                    rkey,
                    add,
                } => {
                    wr.opcode = bindings::IB_WR_ATOMIC_FETCH_AND_ADD;
                    Wr {
                        atomic: bindings::ib_atomic_wr {
                            wr,
                            remote_addr,
                            compare_add: add,
                            rkey,
                            ..Default::default()
                        },
                    }
                }
            }
        };
        if self.side != Side::Send {
            qp.handler.cancel(&request);
            return Err(EINVAL);
        }
        self.push_slot(locals, inline, flags.signaled, request, fill)
    }

    /// Appends a receive request that fills `locals`. Errors as for [`Self::push`]. May sleep.
    pub(crate) fn push_recv(
        &mut self,
        locals: impl Iterator<Item = Local>,
        request: H::Request,
    ) -> Result {
        if self.side != Side::Recv {
            self.qp.handler.cancel(&request);
            return Err(EINVAL);
        }
        self.push_slot(locals, None, true, request, |slot, list, count| {
            let mut wr = bindings::ib_recv_wr {
                sg_list: list,
                num_sge: count as i32,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = core::ptr::from_ref(&slot.hook.cqe).cast_mut();
            Wr { recv: wr }
        })
    }

    /// Appends a request that registers `mr`, which the request must hold. May sleep.
    ///
    /// # Safety
    ///
    /// `mr` is mapped, and lives until the request is done.
    pub(super) unsafe fn push_register(
        &mut self,
        mr: *mut bindings::ib_mr,
        key: u32,
        access: u32,
        request: H::Request,
    ) -> Result {
        self.push_slot(core::iter::empty(), None, true, request, |slot, _, _| {
            let mut wr = bindings::ib_send_wr {
                opcode: bindings::IB_WR_REG_MR,
                send_flags: bindings::IB_SEND_SIGNALED,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = core::ptr::from_ref(&slot.hook.cqe).cast_mut();
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
        self.push_slot(core::iter::empty(), None, true, request, |slot, _, _| {
            let mut wr = bindings::ib_send_wr {
                opcode: bindings::IB_WR_LOCAL_INV,
                send_flags: bindings::IB_SEND_SIGNALED,
                ..Default::default()
            };
            wr.__bindgen_anon_1.wr_cqe = core::ptr::from_ref(&slot.hook.cqe).cast_mut();
            wr.ex.invalidate_rkey = rkey;
            Wr { send: wr }
        })
    }

    fn push_slot(
        &mut self,
        locals: impl Iterator<Item = Local>,
        inline: Option<&[u8]>,
        signaled: bool,
        request: H::Request,
        fill: impl FnOnce(&Slot<H::Request>, *mut bindings::ib_sge, u32) -> Wr,
    ) -> Result {
        let qp = self.qp.clone();
        let queue = qp.queue(self.side);
        let Some(index) = queue.take() else {
            qp.handler.cancel(&request);
            return Err(EAGAIN);
        };
        let result = self.fill_slot(queue, index, locals, inline, signaled, fill);
        // SAFETY: The slot was taken above and is in no list.
        let content = unsafe { queue.content(index) };
        match (result, content) {
            (Ok(()), Some(content)) => {
                content.request = Some(request);
                content.next = NONE;
                // SAFETY: By the type invariant the chain owns its last slot.
                match unsafe { queue.content(self.last) } {
                    Some(last) => last.next = index,
                    None => self.first = index,
                }
                // INVARIANT: The slot is at the end of the list.
                self.last = index;
                self.count = self.count.wrapping_add(1);
                Ok(())
            }
            (result, _) => {
                qp.handler.cancel(&request);
                // SAFETY: The slot was taken above and is not used after this.
                unsafe { queue.put(&mut queue.lists.lock(), index) };
                result
            }
        }
    }

    /// Makes slot `index`, which the caller owns, hold a request.
    fn fill_slot(
        &self,
        queue: &Queue<H::Request>,
        index: u32,
        locals: impl Iterator<Item = Local>,
        inline: Option<&[u8]>,
        signaled: bool,
        fill: impl FnOnce(&Slot<H::Request>, *mut bindings::ib_sge, u32) -> Wr,
    ) -> Result {
        // SAFETY: The caller owns the slot.
        unsafe { queue.clear(index) };
        let slot = queue.slots.get(index as usize).ok_or(EINVAL)?;
        let list = queue
            .pieces(index)
            .next()
            .map_or(core::ptr::null_mut(), |(_, sge)| sge.get());
        let mut count = 0u32;
        let mut pieces = queue.pieces(index);
        if let Some(data) = inline {
            let start = (index as usize).saturating_mul(queue.max_inline as usize);
            let room = queue
                .inline
                .get(start..start.saturating_add(queue.max_inline as usize))
                .unwrap_or(&[]);
            if data.len() > room.len() {
                return Err(EMSGSIZE);
            }
            for (to, from) in room.iter().zip(data) {
                // SAFETY: The caller owns the slot and its part of the array.
                unsafe { *to.get() = *from };
            }
            if let Some(first) = room.first().filter(|_| !data.is_empty()) {
                let (_, sge) = pieces.next().ok_or(E2BIG)?;
                let raw = bindings::ib_sge {
                    // Drivers take the address of inline data for one of the kernel.
                    addr: first.get() as u64,
                    length: data.len() as u32,
                    lkey: 0,
                };
                // SAFETY: The caller owns the slot and its part of the array.
                unsafe { *sge.get() = raw };
                count = 1;
            }
        } else {
            for local in locals {
                let (keep, sge) = pieces.next().ok_or(E2BIG)?;
                // SAFETY: The caller owns the slot and its parts of the arrays.
                unsafe {
                    *sge.get() = local.to_raw();
                    *keep.get() = Some(local);
                }
                count = count.wrapping_add(1);
            }
        }
        let wr = fill(slot, list, count);
        // SAFETY: The caller owns the slot.
        let content = unsafe { queue.content(index) }.ok_or(EINVAL)?;
        content.wr = wr;
        content.signaled = signaled;
        Ok(())
    }

    /// Posts the chain; `before` is called for each request, in order, before the device has any.
    ///
    /// Returns how many the device took, and the error with which it refused the next one: then
    /// that one and those after it are cancelled. [`enotconn`] when the queue pair is not in a
    /// state that takes them, with nothing posted. Does not sleep, but for cancelling.
    pub(crate) fn post(mut self, mut before: impl FnMut(&H::Request)) -> (u32, Result) {
        let qp = self.qp.clone();
        let queue = qp.queue(self.side);
        if self.count == 0 {
            return (0, Ok(()));
        }
        let mut lists = queue.lists.lock();
        let takes = match self.side {
            Side::Send => qp.state() >= State::Rts,
            Side::Recv => qp.state() >= State::Init,
        };
        if lists.closed || !takes {
            drop(lists);
            return (0, Err(enotconn()));
        }

        // Link the requests, and see to it that the queue cannot fill up with silent ones.
        let half = (queue.depth() / 2).max(1);
        let mut at = self.first;
        // SAFETY: By the type invariant the chain owns the slots of its list.
        while let Some(content) = unsafe { queue.content(at) } {
            if let Some(request) = &content.request {
                before(request);
            }
            let next = content.next;
            // SAFETY: As above; `next` is another slot than `at`.
            let next_wr = match unsafe { queue.content(next) } {
                Some(next) => core::ptr::from_mut(&mut next.wr),
                None => core::ptr::null_mut(),
            };
            match self.side {
                Side::Recv => {
                    // A receive queue's slots hold receive requests.
                    content.wr.recv.next = next_wr.cast();
                }
                Side::Send => {
                    lists.silent = lists.silent.wrapping_add(1);
                    let force = lists.silent >= half;
                    if content.signaled || force {
                        lists.silent = 0;
                    }
                    // Every kind of send request begins with the general part.
                    content.wr.send.next = next_wr.cast();
                    if force {
                        // SAFETY: As said, the general part is there.
                        unsafe { content.wr.send.send_flags |= bindings::IB_SEND_SIGNALED };
                    }
                }
            }
            at = next;
        }

        // Under the lock, so that the list of posted slots is in the order of posting.
        let tail_before = lists.last;
        // SAFETY: The chain owns its first slot.
        let first_wr = match unsafe { queue.content(self.first) } {
            Some(content) => core::ptr::from_mut(&mut content.wr),
            None => core::ptr::null_mut(),
        };
        // SAFETY: The list is not empty, so its last slot is posted, and the lock is held.
        match unsafe { queue.content(lists.last) } {
            Some(last) => last.next = self.first,
            None => lists.first = self.first,
        }
        lists.last = self.last;
        lists.posted = lists.posted.wrapping_add(self.count);

        // A driver that refuses all of it may leave this alone.
        let mut bad: *const c_void = first_wr.cast_const().cast();
        let bad_out: *mut *const c_void = &mut bad;
        let raw = qp.ptr.as_ptr();
        // SAFETY: The queue pair is valid. The requests are linked, the last one ends the list;
        // they, their elements and their inline data live in slots that nobody touches until the
        // call returns. Each has a `wr_cqe` and a slot in the completion queue.
        let err = unsafe {
            match self.side {
                Side::Send => bindings::rust_ulp_post_send(raw, first_wr.cast(), bad_out.cast()),
                Side::Recv => bindings::rust_ulp_post_recv(raw, first_wr.cast(), bad_out.cast()),
            }
        };
        if err == 0 {
            // INVARIANT: The slots are the queue's now.
            let count = core::mem::replace(&mut self.count, 0);
            return (count, Ok(()));
        }

        // The device took those before `bad`: cut the list there and take the rest back.
        let mut taken = 0u32;
        let mut last_taken = tail_before;
        let mut at = self.first;
        // SAFETY: The slots are still in the list, and the lock is held: those that the device
        // took cannot complete before it is released.
        while let Some(content) = unsafe { queue.content(at) } {
            if core::ptr::from_mut(&mut content.wr)
                .cast::<c_void>()
                .cast_const()
                == bad
            {
                break;
            }
            taken = taken.wrapping_add(1);
            last_taken = at;
            at = content.next;
        }
        lists.last = last_taken;
        // SAFETY: As above.
        match unsafe { queue.content(last_taken) } {
            Some(last) => last.next = NONE,
            None => lists.first = NONE,
        }
        lists.posted = lists
            .posted
            .saturating_sub(self.count.saturating_sub(taken));
        drop(lists);
        // INVARIANT: What is left of the list is ours.
        self.first = at;
        self.count = self.count.saturating_sub(taken);
        (taken, to_result(err))
    }
}

impl<H: Handler> Drop for Chain<H> {
    fn drop(&mut self) {
        let queue = self.qp.queue(self.side);
        while self.count > 0 {
            self.count = self.count.wrapping_sub(1);
            let index = self.first;
            // SAFETY: By the type invariant the chain owns the slot.
            let Some(content) = (unsafe { queue.content(index) }) else {
                return;
            };
            self.first = content.next;
            if let Some(request) = &content.request {
                self.qp.handler.cancel(request);
            }
            // SAFETY: The slot is not used after this.
            unsafe { queue.put(&mut queue.lists.lock(), index) };
        }
    }
}
