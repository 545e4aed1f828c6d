// SPDX-License-Identifier: GPL-2.0

//! The lines of `/proc/PID/fdinfo/FD` about the objects and counters of a file. Process context.

use super::{
    buffer::BufferObject,
    connection::Connection,
    cq::CqObject,
    listener::Listener,
    qp::QpObject,
    srq::SrqObject,
    Object, //
};
use crate::{
    counters::Counters,
    logic::cq_ring::CqRing,
    rdma::request::{
        Posted,
        QueueKind, //
    },
    uapi::abi, //
};
use kernel::{
    prelude::*,
    seq_file::SeqFile,
    seq_print, //
};

/// The sum of the counters of a file.
pub(crate) struct Totals {
    counters: KBox<Counters>,
}

impl Totals {
    /// Begins with the queues of the file that were destroyed. Sleeps.
    pub(crate) fn new(ended: &Counters) -> Result<Self> {
        let counters = KBox::new(Counters::new(), GFP_KERNEL)?;
        counters.absorb(ended, Posted::default(), Posted::default());
        Ok(Self { counters })
    }

    /// Adds the queues of `object`.
    pub(crate) fn add(&self, object: &Object) {
        match object {
            Object::Qp(qp) => {
                let [sends, recvs] = qp.posted();
                let counters = qp.qp().handler().counters();
                self.counters.absorb(counters, sends, recvs);
            }
            Object::Srq(srq) => {
                let counters = srq.srq().handler().counters();
                let recvs = srq.srq().posted();
                self.counters.absorb(counters, Posted::default(), recvs);
            }
            _ => (),
        }
    }

    /// Prints the counters of the file.
    pub(crate) fn show(&self, m: &SeqFile) {
        let none = Posted::default();
        show_queue(m, "send", None, &self.counters, QueueKind::Send, none);
        show_queue(m, "recv", None, &self.counters, QueueKind::Recv, none);
        show_latencies(m, "latency", None, &self.counters);
    }
}

/// Prints the beginning of a line, with a handle if there is one.
fn begin(m: &SeqFile, key: &str, handle: Option<u32>) {
    seq_print!(m, "rust_ulp-{}:\t", key);
    if let Some(handle) = handle {
        seq_print!(m, "{:#x} ", handle);
    }
}

/// Prints the counters of a queue: `posted`, in addition to those of `counters`, then the number of
/// completions for each status.
fn show_queue(
    m: &SeqFile,
    key: &str,
    handle: Option<u32>,
    counters: &Counters,
    kind: QueueKind,
    posted: Posted,
) {
    let posted = counters.posted(kind, posted);
    begin(m, key, handle);
    seq_print!(
        m,
        "posted {} bytes {} status",
        posted.requests,
        posted.bytes
    );
    for (status, count) in counters.completed(kind) {
        seq_print!(m, " {}:{}", status, count);
    }
    seq_print!(m, "\n");
}

/// Prints how many send requests took less than so many nanoseconds. Prints nothing if latencies
/// were not recorded.
fn show_latencies(m: &SeqFile, key: &str, handle: Option<u32>, counters: &Counters) {
    if counters.latencies().next().is_none() {
        return;
    }
    begin(m, key, handle);
    seq_print!(m, "below_ns");
    for (below_ns, count) in counters.latencies() {
        seq_print!(m, " {}:{}", below_ns, count);
    }
    seq_print!(m, "\n");
}

/// Prints the lines of `object`.
pub(crate) fn show(m: &SeqFile, handle: u32, object: &Object) {
    match object {
        Object::Pd(_) => seq_print!(m, "rust_ulp-pd:\t{:#x}\n", handle),
        Object::Cq(cq) => show_cq(m, handle, cq),
        Object::Qp(qp) => show_qp(m, handle, qp),
        Object::Buffer(buffer) => show_buffer(m, handle, buffer),
        Object::Ah(_) => seq_print!(m, "rust_ulp-ah:\t{:#x}\n", handle),
        Object::Srq(srq) => show_srq(m, handle, srq),
        Object::Listener(listener) => show_listener(m, handle, listener),
        Object::Connection(connection) => show_connection(m, handle, connection),
        Object::Grant(grant) => seq_print!(
            m,
            "rust_ulp-grant:\t{:#x} addr {:#x} bytes {} access {:#x}\n",
            handle,
            grant.addr(),
            grant.attr().length,
            grant.attr().access
        ),
    }
}

fn show_cq(m: &SeqFile, handle: u32, cq: &CqObject) {
    let (unread, reserved) = cq.ring().usage();
    seq_print!(
        m,
        "rust_ulp-cq:\t{:#x} entries {} unread {} reserved {} delivery {}\n",
        handle,
        cq.ring().entries(),
        unread,
        reserved,
        match cq.delivery() {
            abi::DELIVER_SOFTIRQ => "softirq",
            _ => "workqueue",
        }
    );
}

fn show_qp(m: &SeqFile, handle: u32, qp: &QpObject) {
    let (sends, recvs) = qp.qp().in_flight();
    seq_print!(
        m,
        "rust_ulp-qp:\t{:#x} qpn {} {:?} {:?} sends {} recvs {}\n",
        handle,
        qp.number(),
        qp.qp().qp_type(),
        qp.qp().state(),
        sends,
        recvs
    );
    let (handle, counters) = (Some(handle), qp.qp().handler().counters());
    let [sends, recvs] = qp.posted();
    show_queue(m, "qp-send", handle, counters, QueueKind::Send, sends);
    show_queue(m, "qp-recv", handle, counters, QueueKind::Recv, recvs);
    show_latencies(m, "qp-latency", handle, counters);
}

fn show_srq(m: &SeqFile, handle: u32, srq: &SrqObject) {
    let srq = srq.srq();
    seq_print!(
        m,
        "rust_ulp-srq:\t{:#x} entries {} recvs {}\n",
        handle,
        srq.max_wr(),
        srq.in_flight()
    );
    let (handle, counters) = (Some(handle), srq.handler().counters());
    show_queue(
        m,
        "srq-recv",
        handle,
        counters,
        QueueKind::Recv,
        srq.posted(),
    );
}

fn show_buffer(m: &SeqFile, handle: u32, buffer: &BufferObject) {
    seq_print!(
        m,
        "rust_ulp-buffer:\t{:#x} bytes {} chunk {} node {} keys {} charged {}\n",
        handle,
        buffer.length(),
        buffer.pages().chunk_size(),
        buffer.pages().node(),
        buffer.keys(),
        buffer.pages().charged()
    );
}

fn show_listener(m: &SeqFile, handle: u32, listener: &Listener) {
    let (waiting, rejected) = listener.backlog().usage();
    seq_print!(
        m,
        "rust_ulp-listener:\t{:#x} backlog {} waiting {} rejected {}\n",
        handle,
        listener.backlog().limit(),
        waiting,
        rejected
    );
}

fn show_connection(m: &SeqFile, handle: u32, connection: &Connection) {
    // The caller holds the table, which others want to change.
    let Some((state, qp)) = connection.try_state() else {
        seq_print!(m, "rust_ulp-connection:\t{:#x} busy\n", handle);
        return;
    };
    seq_print!(
        m,
        "rust_ulp-connection:\t{:#x} qp {:#x} {}\n",
        handle,
        qp,
        match state {
            abi::CONN_REQUESTED => "requested",
            abi::CONN_CONNECTING => "connecting",
            abi::CONN_ESTABLISHED => "established",
            abi::CONN_FAILED => "failed",
            _ => "ended",
        }
    );
}
