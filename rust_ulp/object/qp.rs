// SPDX-License-Identifier: GPL-2.0

//! Queue pairs of a file: from a completion to an entry of a ring.
//!
//! The handler runs in the context of the completion queue's polling, a softirq at worst.

use super::{
    cq::{
        CqObject,
        Ring, //
    },
    grant::Bonds,
    pd::PdObject,
    quota,
    srq::SrqObject,
    table::{
        Need,
        Needed,
        Users, //
    }, //
};
use crate::{
    device::Device,
    kernel::{
        errno::eisconn,
        uring::Share, //
    },
    rdma::{
        self,
        event::Event,
        qp::Qp,
        qp_attr::{
            mask,
            Attributes,
            QpType,
            State, //
        },
        request::{
            Abandoned,
            Handler,
            Side,
            Ticket, //
        },
        wr::WorkCompletion, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::abi, //
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};

/// What is kept with each request.
pub(crate) struct Request {
    /// The caller's.
    pub(crate) user_data: u64,
    /// `WR_*`.
    pub(crate) opcode: u8,
    /// Bytes.
    pub(crate) length: u32,
    /// How long it may take; 0 for as long as it takes.
    pub(crate) timeout_ns: u64,
    /// The command of io_uring that hears of it.
    pub(crate) share: Option<Share>,
    /// Whether it has a place in the completion ring.
    pub(crate) in_ring: bool,
    /// Whether it makes an entry there when it succeeds.
    pub(crate) signaled: bool,
}

impl Ticket for Request {
    fn detach(&mut self) -> Self {
        Self {
            share: self.share.take(),
            ..*self
        }
    }

    fn placed(&self, index: u32) {
        if let Some(share) = &self.share {
            share.placed(index);
        }
    }

    fn timeout_ns(&self) -> u64 {
        self.timeout_ns
    }
}

/// The owner of a queue pair, or of a shared receive queue.
pub(crate) struct Completions {
    handle: Atomic<u32>,
    number: Atomic<u32>,
    send_ring: Arc<Ring>,
    recv_ring: Arc<Ring>,
    /// Whether a GRH stands before what is received.
    datagrams: bool,
    /// The grants that end with the queue pair; a shared receive queue has none.
    bonds: Option<Arc<Bonds>>,
    /// Whether a request that fails takes the queue pair to ERR in any case.
    reliable: bool,
}

impl Completions {
    /// Of a shared receive queue, which completes in `ring` what no queue pair does.
    pub(crate) fn of_shared_queue(ring: Arc<Ring>) -> Self {
        Self {
            handle: Atomic::new(0),
            number: Atomic::new(0),
            send_ring: ring.clone(),
            recv_ring: ring,
            datagrams: false,
            bonds: None,
            reliable: false,
        }
    }

    /// Tells it its handle, for completions and events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Relaxed);
    }

    /// The queue pair has gone to ERR or RESET: its grants end. Any context.
    pub(crate) fn end_grants(&self) {
        if let Some(bonds) = &self.bonds {
            bonds.end_all();
        }
    }

    /// Looks for signs of what ends grants in a completion.
    fn look_for_ends(&self, side: Side, wc: &WorkCompletion) {
        let Some(bonds) = &self.bonds else {
            return;
        };
        if !wc.is_success() {
            // Sends that fail take an unreliable queue pair to SQE only.
            if self.reliable || side == Side::Recv {
                bonds.end_all();
            }
            return;
        }
        if side == Side::Recv {
            if let Some(rkey) = wc.invalidated {
                bonds.used(rkey);
            }
            if let Some(imm) = wc.imm {
                if wc.opcode == u32::from(abi::WC_RECV_RDMA_WITH_IMM) {
                    bonds.used(imm);
                }
            }
        }
    }

    /// Where requests with that opcode complete.
    pub(crate) fn ring(&self, opcode: u8) -> &Ring {
        if opcode == abi::WR_RECV {
            &self.recv_ring
        } else {
            &self.send_ring
        }
    }

    /// What every completion of `request` says.
    fn cqe(&self, request: &Request) -> abi::Cqe {
        abi::Cqe {
            user_data: request.user_data,
            qp: self.handle.load(Relaxed),
            qp_num: self.number.load(Relaxed),
            opcode: wc_opcode(request.opcode),
            ..Default::default()
        }
    }

    /// Tells the command of io_uring that `request` is part of.
    fn finish(request: &mut Request, cqe: &abi::Cqe) {
        let Some(share) = request.share.take() else {
            return;
        };
        let res = match cqe.status {
            0 => i32::try_from(cqe.byte_len).unwrap_or(i32::MAX),
            status => abi::URING_FAILED.saturating_sub(status.into()),
        };
        let high = u32::from(cqe.opcode) | u32::from(cqe.flags) << 8;
        share.finish(res, u64::from(cqe.imm_data) | u64::from(high) << 32);
    }

    /// Gives up the place of `request`, which makes no entry.
    fn give_up(&self, request: &Request) {
        let ring = self.ring(request.opcode);
        if request.in_ring {
            ring.release(1);
        } else {
            ring.leave(1);
        }
    }

    /// Tells those who trace.
    fn note(cqe: &abi::Cqe) {
        trace::completion(
            cqe.qp_num,
            cqe.user_data,
            cqe.opcode.into(),
            cqe.status.into(),
            cqe.byte_len,
        );
        ulp_debug!(
            "qp {}: done user_data {:#x} opcode {} status {} bytes {}\n",
            cqe.qp_num,
            cqe.user_data,
            cqe.opcode,
            cqe.status,
            cqe.byte_len
        );
    }
}

/// The completion's opcode of a request, `WC_*`.
const fn wc_opcode(opcode: u8) -> u8 {
    match opcode {
        abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM => abi::WC_RDMA_WRITE,
        abi::WR_RDMA_READ => abi::WC_RDMA_READ,
        abi::WR_ATOMIC_CMP_AND_SWP => abi::WC_COMP_SWAP,
        abi::WR_ATOMIC_FETCH_AND_ADD => abi::WC_FETCH_ADD,
        abi::WR_RECV => abi::WC_RECV,
        _ => abi::WC_SEND,
    }
}

impl Handler for Completions {
    type Request = Request;

    fn complete(&self, side: Side, mut request: Request, wc: &WorkCompletion) {
        self.look_for_ends(side, wc);
        let mut cqe = abi::Cqe {
            status: wc.status as u16,
            vendor_err: wc.vendor_err,
            ..self.cqe(&request)
        };
        if wc.is_success() {
            match side {
                Side::Send => {
                    // Drivers need not say how much a read or an atomic brought.
                    if matches!(
                        cqe.opcode,
                        abi::WC_RDMA_READ | abi::WC_COMP_SWAP | abi::WC_FETCH_ADD
                    ) {
                        cqe.byte_len = request.length;
                    }
                }
                Side::Recv => {
                    if wc.opcode == u32::from(abi::WC_RECV_RDMA_WITH_IMM) {
                        cqe.opcode = abi::WC_RECV_RDMA_WITH_IMM;
                    }
                    cqe.byte_len = wc.byte_len;
                    if let Some(imm) = wc.imm {
                        cqe.flags |= abi::WC_WITH_IMM;
                        cqe.imm_data = imm;
                    }
                    if let Some(rkey) = wc.invalidated {
                        cqe.flags |= abi::WC_WITH_INVALIDATE;
                        cqe.imm_data = rkey;
                    }
                    // Drivers say so for every packet that had one on the wire, as with RoCE.
                    if wc.grh && self.datagrams {
                        cqe.flags |= abi::WC_GRH;
                    }
                    cqe.src_qp = wc.src_qp;
                    cqe.pkey_index = wc.pkey_index;
                    cqe.slid = wc.slid as u16;
                    cqe.sl = wc.sl;
                    cqe.dlid_path_bits = wc.dlid_path_bits;
                    cqe.port = wc.port as u8;
                }
            }
        }
        Self::note(&cqe);
        Self::finish(&mut request, &cqe);
        if request.in_ring && (request.signaled || !wc.is_success()) {
            self.ring(request.opcode).push(&cqe);
        } else {
            self.give_up(&request);
        }
    }

    fn retire(&self, count: u32) {
        // What io_uring is to hear of is signalled, as every receive is: these have places in the ring.
        self.send_ring.release(count);
    }

    fn abandon(&self, mut request: Request, why: Abandoned) {
        let cqe = abi::Cqe {
            status: match why {
                Abandoned::Timeout => abi::WC_STATUS_TIMEOUT,
                Abandoned::Canceled => abi::WC_STATUS_CANCELED,
            },
            ..self.cqe(&request)
        };
        Self::note(&cqe);
        Self::finish(&mut request, &cqe);
        if request.in_ring {
            self.ring(request.opcode).push_early(&cqe);
        }
    }

    fn late(&self, request: Request, wc: &WorkCompletion) {
        let side = if request.opcode == abi::WR_RECV {
            Side::Recv
        } else {
            Side::Send
        };
        self.look_for_ends(side, wc);
        let number = self.number.load(Relaxed);
        trace::late(
            number,
            request.user_data,
            wc_opcode(request.opcode).into(),
            wc.status,
        );
        ulp_debug!(
            "qp {}: late user_data {:#x} opcode {} status {}\n",
            number,
            request.user_data,
            wc_opcode(request.opcode),
            wc.status
        );
        self.ring(request.opcode).leave(1);
    }

    fn cancel(&self, request: Request) {
        // Its share goes with it: whoever has begun the command knows why.
        self.give_up(&request);
    }

    fn event(&self, event: Event) {
        if matches!(
            event,
            Event::QpFatal | Event::QpReqErr | Event::QpAccessErr | Event::QpLastWqeReached
        ) {
            self.end_grants();
        }
        let handle = self.handle.load(Relaxed);
        self.recv_ring.file().raise(event.number(), handle, 0);
    }
}

/// Elements of a request where `asked` were asked for: one more, for an element that lies across
/// the keys of its buffer, where the device has it.
pub(crate) fn one_more(asked: u32, max: u32) -> u32 {
    asked.saturating_add(1).min(max).max(asked)
}

/// The queues that a queue pair uses.
pub(crate) struct Queues {
    /// Where its sends complete.
    pub(crate) send_cq: Need<CqObject>,
    /// Where its receives complete.
    pub(crate) recv_cq: Need<CqObject>,
    /// Where its receives come from, when not from its own queue.
    pub(crate) srq: Option<Need<SrqObject>>,
}

/// A queue pair of a file.
pub(crate) struct QpObject {
    // Before what it needs: the device's queue pair goes first.
    qp: Arc<Qp<Completions>>,
    pd: Need<PdObject>,
    _send_cq: Need<CqObject>,
    _recv_cq: Need<CqObject>,
    srq: Option<Need<SrqObject>>,
    /// As the caller wants it; the device's has room for elements that are cut up.
    capacity: rdma::qp_attr::Capacity,
    sig_all: bool,
    /// A connection has it: see [`Claim`].
    claimed: AtomicFlag,
    users: Users,
    _share: quota::Share,
}

impl QpObject {
    /// Makes a queue pair. Sleeps.
    ///
    /// [`EXDEV`] when `srq` is of another domain, or completes elsewhere than in `recv_cq`.
    pub(crate) fn new(
        pd: Need<PdObject>,
        queues: Queues,
        qp_type: QpType,
        capacity: rdma::qp_attr::Capacity,
        sig_all: bool,
        device: Arc<Device>,
        share: quota::Share,
    ) -> Result<Arc<Self>> {
        let Queues {
            send_cq,
            recv_cq,
            srq,
        } = queues;
        if srq.as_ref().is_some_and(|srq| {
            !core::ptr::eq(srq.pd(), &*pd) || !core::ptr::eq(srq.cq(), &*recv_cq)
        }) {
            return Err(EXDEV);
        }
        let handler = Completions {
            handle: Atomic::new(0),
            number: Atomic::new(0),
            send_ring: send_cq.ring().clone(),
            recv_ring: recv_cq.ring().clone(),
            datagrams: qp_type == QpType::Ud,
            bonds: Some(Bonds::new(recv_cq.ring().file().clone(), device)?),
            reliable: qp_type == QpType::Rc,
        };
        let attributes = pd.pd().device().attributes();
        let real = rdma::qp_attr::Capacity {
            max_send_sge: one_more(capacity.max_send_sge, attributes.max_send_sge),
            max_recv_sge: match capacity.max_recv_sge {
                0 => 0,
                asked => one_more(asked, attributes.max_recv_sge),
            },
            ..capacity
        };
        let qp = Qp::new(
            pd.pd().clone(),
            send_cq.cq().clone(),
            recv_cq.cq().clone(),
            srq.as_ref().map(|srq| srq.srq().clone()),
            qp_type,
            real,
            handler,
        )?;
        qp.handler().number.store(qp.number(), Relaxed);
        Ok(Arc::new(
            Self {
                qp,
                pd,
                _send_cq: send_cq,
                _recv_cq: recv_cq,
                srq,
                capacity,
                sig_all,
                claimed: AtomicFlag::new(false),
                users: Users::new(),
                _share: share,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// The device's queue pair.
    pub(crate) fn qp(&self) -> &Arc<Qp<Completions>> {
        &self.qp
    }

    /// The sizes that it was asked to have.
    pub(crate) fn capacity(&self) -> rdma::qp_attr::Capacity {
        self.capacity
    }

    /// The grants that end with it.
    pub(crate) fn bonds(&self) -> Option<Arc<Bonds>> {
        self.qp.handler().bonds.clone()
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Its protection domain.
    pub(crate) fn pd(&self) -> &PdObject {
        &self.pd
    }

    /// Whether its receives come from a shared queue.
    pub(crate) fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Whether every send request makes a completion.
    pub(crate) fn sig_all(&self) -> bool {
        self.sig_all
    }

    /// Tells it its handle, for completions.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.qp.handler().set_handle(handle);
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> u32 {
        self.qp.handler().handle.load(Relaxed)
    }

    /// Changes attributes as [`Qp::modify`] does, and says so. Sleeps.
    pub(crate) fn modify(&self, attributes: &Attributes, mask: u32) -> Result {
        let from = self.qp.state();
        let to = if mask & mask::STATE != 0 {
            State::from_raw(attributes.qp_state).ok_or(EINVAL)?
        } else {
            from
        };
        let result = self.qp.modify(attributes, mask);
        if result.is_ok() && mask & mask::STATE != 0 && matches!(to, State::Reset | State::Err) {
            self.qp.handler().end_grants();
        }
        trace::qp_modify(
            self.number(),
            from as u32,
            to as u32,
            result.err().map_or(0, |err| err.to_errno()),
        );
        ulp_debug!(
            "qp {}: {:?} -> {:?}: {:?}\n",
            self.number(),
            from,
            to,
            result
        );
        result
    }

    /// Changes nothing but the state. Sleeps.
    pub(crate) fn move_to(&self, state: State) -> Result {
        let attributes = Attributes {
            qp_state: state as u32,
            ..Default::default()
        };
        self.modify(&attributes, mask::STATE)
    }
}

impl Drop for QpObject {
    fn drop(&mut self) {
        self.qp.handler().end_grants();
    }
}

impl Needed for QpObject {
    fn users(&self) -> &Users {
        &self.users
    }
}

/// The right of one connection to a queue pair.
pub(crate) struct Claim(Need<QpObject>);

impl Claim {
    /// Claims `qp`. [`eisconn`] when another connection has it.
    pub(crate) fn new(qp: Need<QpObject>) -> Result<Self> {
        if qp.claimed.xchg(true, Full) {
            return Err(eisconn());
        }
        Ok(Self(qp))
    }
}

impl Deref for Claim {
    type Target = QpObject;

    fn deref(&self) -> &QpObject {
        &self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.claimed.store(false, Release);
    }
}
