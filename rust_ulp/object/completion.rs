// SPDX-License-Identifier: GPL-2.0

//! Completions: makes entries of a ring of them, and completes commands of io_uring.
//!
//! The handler runs in the context of the completion queue's polling, which may be a softirq.

use super::{
    grant::QpGrants,
    ring::Ring, //
};
use crate::{
    counters::Counters,
    ext::uring::{
        self,
        CmdRef, //
    },
    logic::cq_ring::CqRing,
    rdma::{
        event::Event,
        qp::slot_bytes,
        qp_attr::QpType,
        request::{
            CancelReason,
            Posted,
            QueueKind,
            WrContext,
            WrHandler, //
        },
        wr::WorkCompletion, //
    },
    trace::{
        self,
        ulp_debug, //
    },
    uapi::{
        abi,
        decode::TimeLimit, //
    }, //
};
use core::num::{
    NonZeroU16,
    NonZeroU8, //
};
use kernel::{
    static_assert,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

const _: () = {
    assert!(uring::INDEX_SHIFT as usize == abi::URING_INDEX_SHIFT);
    assert!(uring::DETAIL_SHIFT as usize == abi::URING_VENDOR_ERR_SHIFT);
};

/// The data that is kept with each request.
pub(crate) struct Request {
    /// The caller's value.
    pub(crate) user_data: u64,
    /// `WR_*`.
    pub(crate) opcode: u8,
    /// The length in bytes.
    pub(crate) length: u32,
    /// The time that it may take.
    pub(crate) limit: Option<TimeLimit>,
    /// The command of io_uring that it is part of, unless it [shares](Report::sharing) that of a later
    /// request.
    pub(crate) cmd_ref: Option<CmdRef>,
    /// How its end is reported.
    pub(crate) report: Report,
    /// When it was posted, if latencies are recorded, else 0: see
    /// [`start_ns`](crate::counters::start_ns).
    pub(crate) start_ns: u64,
}

/// How the end of a request is reported, as bits of which one is always set.
#[derive(Clone, Copy)]
pub(crate) struct Report(NonZeroU8);

impl Report {
    const IN_RING: u8 = 1 << 1;
    const SIGNALED: u8 = 1 << 2;
    const SHARING: u8 = 1 << 3;

    /// Returns that of a request which has a place in the completion ring if `in_ring`, and makes an
    /// entry there when it succeeds if `signaled`.
    pub(crate) fn new(in_ring: bool, signaled: bool) -> Self {
        let in_ring = if in_ring { Self::IN_RING } else { 0 };
        Self(NonZeroU8::MIN | in_ring).or_signaled(signaled)
    }

    /// Returns the same for a request that is signaled if `signaled`, too.
    #[inline(always)]
    pub(crate) fn or_signaled(self, signaled: bool) -> Self {
        Self(self.0 | if signaled { Self::SIGNALED } else { 0 })
    }

    /// Returns the same for a request that shares the reference of a later one to a command. It has no
    /// place in the completion ring.
    pub(crate) fn sharing(self) -> Self {
        Self(self.0 | Self::SHARING)
    }

    fn in_ring(self) -> bool {
        self.0.get() & Self::IN_RING != 0
    }

    fn is_signaled(self) -> bool {
        self.0.get() & Self::SIGNALED != 0
    }

    fn is_sharing(self) -> bool {
        self.0.get() & Self::SHARING != 0
    }
}

/// The part of a [`Request`] that its slot keeps.
// The queue needs the two bytes up to the next multiple of 8.
#[derive(Clone, Copy)]
#[repr(C, packed(2))]
pub(crate) struct Kept {
    user_data: u64,
    length: u32,
    opcode: u8,
    report: Report,
}

static_assert!(slot_bytes::<Request>() == 40);

impl Kept {
    /// Returns the caller's value.
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data
    }
}

impl Request {
    /// Returns the queue that the request is for.
    fn kind(&self) -> QueueKind {
        if self.opcode == abi::WR_RECV {
            QueueKind::Recv
        } else {
            QueueKind::Send
        }
    }
}

/// Requests that were not signaled and succeeded.
#[derive(Default)]
pub(crate) struct Unsignaled {
    /// The number of those with a place in the completion ring.
    in_ring: u32,
    /// The number of the others.
    others: u32,
    /// A reference of one of them to a command of io_uring.
    cmd_ref: Option<CmdRef>,
}

impl WrContext for Request {
    type Kept = Kept;
    type Reference = CmdRef;
    type Unsignaled = Unsignaled;

    #[inline(always)]
    fn split(self) -> (Kept, Option<CmdRef>) {
        let kept = Kept {
            user_data: self.user_data,
            length: self.length,
            opcode: self.opcode,
            report: self.report,
        };
        (kept, self.cmd_ref)
    }

    #[inline(always)]
    fn join(kept: Kept, cmd_ref: Option<CmdRef>, start_ns: u64) -> Self {
        Self {
            user_data: kept.user_data,
            opcode: kept.opcode,
            length: kept.length,
            // The queue keeps the deadline.
            limit: None,
            cmd_ref,
            report: kept.report,
            start_ns,
        }
    }

    fn start_ns(&self) -> u64 {
        self.start_ns
    }

    fn is_sharing(kept: &Kept) -> bool {
        kept.report.is_sharing()
    }

    fn end_sharing(kept: &mut Kept) {
        kept.report.0 = NonZeroU8::MIN | kept.report.0.get() & !Report::SHARING;
    }

    fn shared(cmd_ref: &CmdRef, places: u32) -> Option<CmdRef> {
        Some(cmd_ref.before(places))
    }

    fn placed(cmd_ref: &CmdRef, index: u32) {
        cmd_ref.placed(index);
    }

    fn complete_unsignaled(self, done: &mut Unsignaled) {
        let count = if self.report.in_ring() {
            &mut done.in_ring
        } else {
            &mut done.others
        };
        *count = count.saturating_add(1);
        if self.cmd_ref.is_some() {
            done.cmd_ref = self.cmd_ref;
        }
    }

    fn is_plain(&self) -> bool {
        self.cmd_ref.is_none()
    }

    fn complete_plain(kept: &Kept, count: u32, done: &mut Unsignaled) {
        let sum = if kept.report.in_ring() {
            &mut done.in_ring
        } else {
            &mut done.others
        };
        *sum = sum.saturating_add(count);
    }

    fn bytes(&self) -> u32 {
        self.length
    }

    fn end_ns(&self, now: u64) -> u64 {
        self.limit.map_or(0, |limit| limit.end(now))
    }
}

/// The owner of a queue pair, or of a shared receive queue.
pub(crate) struct Completions {
    handle: Atomic<u32>,
    number: Atomic<u32>,
    /// The value that the creator of the queue pair gave it.
    user_data: u64,
    send_ring: Arc<Ring>,
    recv_ring: Arc<Ring>,
    /// Whether a GRH stands before the received data.
    datagrams: bool,
    /// The port of the queue pair. Of a completion drivers need not set it.
    port: Atomic<u32>,
    /// Whether that is one of InfiniBand.
    has_lids: AtomicFlag,
    /// The grants that end with the queue pair; a shared receive queue has none.
    grants: Option<Arc<QpGrants>>,
    /// Whether every failed request takes the queue pair to ERR.
    reliable: bool,
    counters: Counters,
}

impl Completions {
    /// Makes the handler of a queue pair of type `qp_type`.
    pub(super) fn of_queue_pair(
        qp_type: QpType,
        send_ring: Arc<Ring>,
        recv_ring: Arc<Ring>,
        grants: Arc<QpGrants>,
        user_data: u64,
    ) -> Self {
        Self {
            handle: Atomic::new(0),
            number: Atomic::new(0),
            user_data,
            send_ring,
            recv_ring,
            datagrams: qp_type == QpType::Ud,
            port: Atomic::new(0),
            has_lids: AtomicFlag::new(false),
            grants: Some(grants),
            reliable: qp_type == QpType::Rc,
            counters: Counters::new(),
        }
    }

    /// Makes the handler of a shared receive queue, which completes in `ring` the receives that no
    /// queue pair completes.
    pub(crate) fn of_shared_queue(ring: Arc<Ring>) -> Self {
        Self {
            handle: Atomic::new(0),
            number: Atomic::new(0),
            user_data: 0,
            send_ring: ring.clone(),
            recv_ring: ring,
            datagrams: false,
            port: Atomic::new(0),
            has_lids: AtomicFlag::new(false),
            grants: None,
            reliable: false,
            counters: Counters::new(),
        }
    }

    /// Returns the counters of what the queues do not count themselves.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts a completion that the device reported.
    fn count(&self, kind: QueueKind, request: &Request, wc: &WorkCompletion) {
        if !wc.is_success() {
            self.counters.failed(kind, wc.status as u16);
            return;
        }
        self.counters.succeeded(kind, 1);
        if kind == QueueKind::Recv {
            self.counters.received(wc.byte_len);
        } else if request.start_ns != 0 {
            self.counters.took(request.start_ns);
        }
    }

    /// Sets its handle, for completions and events.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Relaxed);
    }

    /// Returns its handle.
    pub(super) fn handle(&self) -> u32 {
        self.handle.load(Relaxed)
    }

    /// Returns the value that the creator of the queue pair gave it.
    pub(crate) fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Sets the number of the queue pair, for completions.
    pub(super) fn set_number(&self, number: u32) {
        self.number.store(number, Relaxed);
    }

    /// Sets the port of the queue pair, for completions, and whether it is one of InfiniBand.
    pub(super) fn set_port(&self, port: u32, has_lids: bool) {
        self.port.store(port, Relaxed);
        self.has_lids.store(has_lids, Relaxed);
    }

    /// Returns the grants that end with the queue pair.
    pub(super) fn grants(&self) -> Option<&Arc<QpGrants>> {
        self.grants.as_ref()
    }

    /// Ends the grants: the queue pair has gone to ERR or RESET. Any context.
    pub(crate) fn end_grants(&self) {
        if let Some(grants) = &self.grants {
            grants.end_all();
        }
    }

    /// Ends grants when a completion reports that they were used or that the queue pair failed.
    fn look_for_ends(&self, kind: QueueKind, wc: &WorkCompletion) {
        let Some(grants) = &self.grants else {
            return;
        };
        if !wc.is_success() {
            // A failed send takes an unreliable queue pair to SQE only.
            if self.reliable || kind == QueueKind::Recv {
                grants.end_all();
            }
            return;
        }
        if kind == QueueKind::Recv {
            if let Some(rkey) = wc.invalidated {
                grants.used(rkey);
            }
        }
    }

    /// Returns the ring in which requests with that opcode complete.
    pub(crate) fn ring(&self, opcode: u8) -> &Ring {
        if opcode == abi::WR_RECV {
            &self.recv_ring
        } else {
            &self.send_ring
        }
    }

    /// Returns the part that all completions of `request` have in common.
    fn cqe(&self, request: &Request) -> abi::Cqe {
        abi::Cqe {
            user_data: request.user_data,
            qp_user_data: self.user_data,
            qp: self.handle.load(Relaxed),
            qp_num: self.number.load(Relaxed),
            opcode: wc_opcode(request.opcode),
            ..Default::default()
        }
    }

    /// Reports the completion to the command of io_uring that `request` is part of.
    fn finish(request: &mut Request, cqe: &abi::Cqe) {
        let Some(cmd_ref) = request.cmd_ref.take() else {
            return;
        };
        if let Some(status) = NonZeroU16::new(cqe.status) {
            cmd_ref.fail(status, cqe.vendor_err);
            return;
        }
        let mut extra = u64::from(cqe.imm_data)
            | u64::from(cqe.src_qp & 0xff_ffff) << abi::URING_SRC_QP_SHIFT
            | u64::from(cqe.flags) << abi::URING_FLAGS_SHIFT;
        if cqe.opcode == abi::WC_RECV_RDMA_WITH_IMM {
            extra |= abi::URING_RDMA_WITH_IMM;
        }
        let res = i32::try_from(cqe.byte_len).unwrap_or(i32::MAX);
        cmd_ref.succeed(res, extra);
    }

    /// Gives up the place of `request`, which makes no entry.
    fn give_up(&self, request: &Request) {
        let ring = self.ring(request.opcode);
        if request.report.in_ring() {
            ring.release(1);
        } else {
            ring.leave(1);
        }
    }

    /// Traces a completion.
    fn trace(cqe: &abi::Cqe) {
        trace::completion(
            cqe.qp_num,
            cqe.user_data,
            cqe.opcode.into(),
            cqe.status.into(),
            cqe.byte_len,
        );
    }

    /// Traces a completion, and prints a debug message.
    fn note(cqe: &abi::Cqe) {
        Self::trace(cqe);
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

/// Returns the opcode of the completion of a request, `WC_*`.
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

impl WrHandler for Completions {
    type Request = Request;

    fn complete(&self, kind: QueueKind, mut request: Request, wc: &WorkCompletion) {
        self.look_for_ends(kind, wc);
        self.count(kind, &request, wc);
        let mut cqe = abi::Cqe {
            status: wc.status as u16,
            // Drivers need not set it when a request succeeds.
            vendor_err: if wc.is_success() { 0 } else { wc.vendor_err },
            ..self.cqe(&request)
        };
        if wc.is_success() {
            match kind {
                QueueKind::Send => {
                    // Drivers need not report the length of a read or an atomic.
                    if matches!(
                        cqe.opcode,
                        abi::WC_RDMA_READ | abi::WC_COMP_SWAP | abi::WC_FETCH_ADD
                    ) {
                        cqe.byte_len = request.length;
                    }
                }
                QueueKind::Recv => {
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
                    // Drivers need not set these of connected queue pairs, and report a GRH for
                    // every packet that had one on the wire, as with RoCE.
                    if self.datagrams {
                        if wc.grh {
                            cqe.flags |= abi::WC_GRH;
                        }
                        cqe.src_qp = wc.src_qp & 0xff_ffff;
                        cqe.port = self.port.load(Relaxed);
                        if self.has_lids.load(Relaxed) {
                            cqe.pkey_index = wc.pkey_index;
                            cqe.slid = wc.slid as u16;
                            cqe.sl = wc.sl & 0xf;
                            cqe.dlid_path_bits = wc.dlid_path_bits & 0x7f;
                        }
                    }
                }
            }
        }
        Self::note(&cqe);
        // Before the command completes: its submitter may use the place at once.
        if request.report.in_ring() && (request.report.is_signaled() || !wc.is_success()) {
            self.ring(request.opcode).push(&cqe);
        } else {
            self.give_up(&request);
        }
        Self::finish(&mut request, &cqe);
    }

    fn complete_unsignaled(&self, done: Unsignaled) {
        // Before the command completes, as in `complete`. Receives are all signaled.
        let count = done.in_ring.saturating_add(done.others);
        self.counters.succeeded(QueueKind::Send, count);
        if done.in_ring > 0 {
            self.send_ring.release(done.in_ring);
        }
        if done.others > 0 {
            self.send_ring.leave(done.others);
        }
        drop(done.cmd_ref);
    }

    fn cancel(&self, mut request: Request, why: CancelReason) {
        let cqe = abi::Cqe {
            status: match why {
                CancelReason::Timeout => abi::WC_STATUS_TIMEOUT,
                CancelReason::Canceled => abi::WC_STATUS_CANCELED,
            },
            ..self.cqe(&request)
        };
        // Not printed: the queue's lock is held.
        Self::trace(&cqe);
        self.counters.failed(request.kind(), cqe.status);
        if request.report.in_ring() {
            self.ring(request.opcode).push_early(&cqe);
        }
        Self::finish(&mut request, &cqe);
    }

    fn complete_canceled(&self, request: Request, wc: &WorkCompletion) {
        self.look_for_ends(request.kind(), wc);
        let number = self.number.load(Relaxed);
        trace::complete_canceled(
            number,
            request.user_data,
            wc_opcode(request.opcode).into(),
            wc.status,
        );
        ulp_debug!(
            "qp {}: done canceled user_data {:#x} opcode {} status {}\n",
            number,
            request.user_data,
            wc_opcode(request.opcode),
            wc.status
        );
        self.ring(request.opcode).leave(1);
    }

    fn discard(&self, request: Request) {
        // Drops the reference to the command, whose issuer reports the error.
        self.give_up(&request);
    }

    fn destroyed(&self, sends: Posted, recvs: Posted) {
        let file = self.recv_ring.file();
        file.ended.absorb(&self.counters, sends, recvs);
    }

    fn event(&self, event: Event) {
        if matches!(
            event,
            Event::QP_FATAL | Event::QP_REQ_ERR | Event::QP_ACCESS_ERR | Event::QP_LAST_WQE_REACHED
        ) {
            self.end_grants();
        }
        let handle = self.handle.load(Relaxed);
        self.recv_ring
            .file()
            .raise(event.number(), handle, self.user_data, 0);
    }
}

/// Returns the elements that the device's queue gets for a caller that asked for `asked`.
///
/// That is one more, for an element that lies across two keys of its buffer, where the device has
/// it.
pub(crate) fn one_more(asked: u32, max: u32) -> u32 {
    asked.saturating_add(1).min(max).max(asked)
}
