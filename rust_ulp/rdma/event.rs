// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events.

use crate::bindings;

/// What happened: `enum ib_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A completion queue overflowed or failed.
    CqErr,
    /// A queue pair failed.
    QpFatal,
    /// A queue pair got a request that it cannot take.
    QpReqErr,
    /// A queue pair got a request that it may not carry out.
    QpAccessErr,
    /// A queue pair in RTR got its first packet.
    CommEst,
    /// A send queue in SQD has drained.
    SqDrained,
    /// A queue pair of a shared receive queue will take no more from it.
    QpLastWqeReached,
    /// Any other, as its number.
    Other(u32),
}

impl Event {
    /// The event that `raw` describes.
    pub(super) fn new(raw: &bindings::ib_event) -> Self {
        match raw.event {
            bindings::IB_EVENT_CQ_ERR => Self::CqErr,
            bindings::IB_EVENT_QP_FATAL => Self::QpFatal,
            bindings::IB_EVENT_QP_REQ_ERR => Self::QpReqErr,
            bindings::IB_EVENT_QP_ACCESS_ERR => Self::QpAccessErr,
            bindings::IB_EVENT_COMM_EST => Self::CommEst,
            bindings::IB_EVENT_SQ_DRAINED => Self::SqDrained,
            bindings::IB_EVENT_QP_LAST_WQE_REACHED => Self::QpLastWqeReached,
            other => Self::Other(other),
        }
    }
}
