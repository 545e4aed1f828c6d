// SPDX-License-Identifier: GPL-2.0

//! The lines of `/proc/PID/fdinfo/FD` about the objects of a file. Process context.

use super::{
    buffer::BufferObject,
    connection::Connection,
    cq::CqObject,
    listener::Listener,
    qp::QpObject,
    Object, //
};
use crate::{
    logic::cq_ring::CqRing,
    uapi::abi, //
};
use kernel::{
    seq_file::SeqFile,
    seq_print, //
};

/// Prints the line of `object`.
pub(crate) fn show(m: &SeqFile, handle: u32, object: &Object) {
    match object {
        Object::Pd(_) => seq_print!(m, "rust_ulp-pd:\t{:#x}\n", handle),
        Object::Cq(cq) => show_cq(m, handle, cq),
        Object::Qp(qp) => show_qp(m, handle, qp),
        Object::Buffer(buffer) => show_buffer(m, handle, buffer),
        Object::Ah(_) => seq_print!(m, "rust_ulp-ah:\t{:#x}\n", handle),
        Object::Srq(srq) => seq_print!(
            m,
            "rust_ulp-srq:\t{:#x} entries {} recvs {}\n",
            handle,
            srq.srq().max_wr(),
            srq.srq().in_flight()
        ),
        Object::Listener(listener) => show_listener(m, handle, listener),
        Object::Connection(connection) => show_connection(m, handle, connection),
        Object::Ring(ring) => seq_print!(
            m,
            "rust_ulp-ring:\t{:#x} entries {}\n",
            handle,
            ring.entries()
        ),
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
            abi::DELIVER_CALLER => "caller",
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
    let (state, qp) = connection.state();
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
