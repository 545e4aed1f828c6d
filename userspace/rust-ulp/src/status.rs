// SPDX-License-Identifier: MIT OR Apache-2.0

//! The status and the opcode of a completion.

use crate::abi;
use crate::numbered::numbered;
use std::fmt;

macro_rules! statuses {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $name:literal, $explanation:literal;)*) => {
        numbered! {
            /// The status of a completed request.
            pub enum Status(pub u16) {
                $($(#[$meta])* $variant = $code,)*
            }
        }

        impl Status {
            /// Returns its short name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(_) => "unknown status",
                }
            }

            /// Returns what happened, and what to do.
            pub fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => $explanation,)*
                    Self::Other(_) => "the driver gave a status that has no name; see its vendor code",
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    Success = 0, "success", "nothing to do";
    /// The data did not fit.
    LocalLength = 1, "local length error",
        "what arrived is longer than the receive posted for it, or a message is longer than the port \
         allows; post larger receives, or split the message";
    /// The queue pair cannot do that.
    LocalQpOperation = 2, "local queue pair operation error",
        "the queue pair could not carry the request out: compare its type, state and limits with the request, \
         and connect a new queue pair";
    /// Obsolete.
    LocalEecOperation = 3, "local EE context operation error", "obsolete, so a driver's error: see its vendor code and the kernel's log";
    /// Local memory was not the queue pair's to use.
    LocalProtection = 4, "local protection error",
        "the request's local memory is not registered, or in another protection domain: was its buffer \
         destroyed while the request was in flight?";
    /// An earlier request failed.
    Flushed = 5, "flushed",
        "the queue pair failed or was disconnected before this request was done. A completion of the same queue \
         pair with another status has the cause; connect a new queue pair, and post the request again";
    /// A window was not bound.
    WindowBind = 6, "memory window bind error", "the window or its region does not allow it: make a grant of a buffer instead";
    /// The peer answered nonsense.
    BadResponse = 7, "bad response",
        "the peer's device answered with a packet that fits no request: do both ends agree on PSNs, \
         MTU and type of queue pair?";
    /// Local memory lacked a right.
    LocalAccess = 8, "local access error",
        "the receive buffer does not allow what the peer did to it: receive into a Buffer that is not read-only";
    /// The peer could not take the request.
    RemoteInvalidRequest = 9, "remote invalid request",
        "the peer's queue pair does not take such a request: its receive is too small for the message, and \
         completes there with status 1; or it does not allow the operation (access flags, responder resources)";
    /// The peer's memory was not ours to use.
    RemoteAccess = 10, "remote access error",
        "the peer's memory refused the access: a wrong or revoked rkey, an address or length outside \
         of the grant, or a right that the grant or the peer's queue pair lacks; not a network problem";
    /// The peer failed.
    RemoteOperation = 11, "remote operation error",
        "the peer's device could not carry the request out: the message may be longer than the receive that the \
         peer posted, which Soft-RoCE reports with this status. Send less, or have the peer post larger receives; \
         the peer's completions and its kernel's log have the rest";
    /// No answer.
    RetryExceeded = 12, "retry exceeded",
        "no acknowledgement after all retries. First see whether the peer's program has ended (Peer::is_gone()) \
         or its queue pair has failed: then connect a new queue pair. If the peer lives, ulp diagnose HOST looks for the \
         cause: a wrong GID at either end, a firewall for UDP port 4791, lost packets (no flow control, MTU), or \
         ends that disagree on PSNs. For a peer that is only slow, raise QpBuilder::timeout()";
    /// No receive.
    RnrRetryExceeded = 13, "receiver not ready",
        "the peer had no receive posted: it has to post them before it is sent to, and more of them; or \
         raise QpBuilder::rnr_retry() here and min_rnr_timer() there";
    /// Obsolete.
    LocalRddViolation = 14, "local RDD violation", "obsolete, so a driver's error: see its vendor code and the kernel's log";
    /// Obsolete.
    RemoteInvalidRd = 15, "remote invalid RD request", "obsolete, so a driver's error: see its vendor code and the kernel's log";
    /// The peer gave it up.
    RemoteAbort = 16, "remote abort", "the peer gave the operation up: its own output may say why";
    /// Obsolete.
    InvalidEecn = 17, "invalid EE context number", "obsolete, so a driver's error: see its vendor code and the kernel's log";
    /// Obsolete.
    InvalidEecState = 18, "invalid EE context state", "obsolete, so a driver's error: see its vendor code and the kernel's log";
    /// The device failed.
    Fatal = 19, "fatal error", "the device failed: see the kernel's log";
    /// No answer in time.
    ResponseTimeout = 20, "response timeout", "the peer did not answer in time: see whether its program runs, and \
        connect a new queue pair";
    /// Something else.
    General = 21, "general error", "the driver gave no reason: see its vendor code";
    /// The deadline of the request has passed.
    TimedOut = 256, "timed out",
        "the deadline of the request has passed, and nobody waits for it any more; but the device is not done \
         with it: its data may still arrive, here or at the peer, so leave its memory alone while the queue \
         pair lives. Wait longer, or make a new queue pair";
    /// The request was canceled.
    Canceled = 257, "canceled",
        "the request was canceled, and nobody waits for it any more; but the device is not done with it: its \
         data may still arrive, here or at the peer, so leave its memory alone while the queue pair lives";
}

/// Writes its number and its name.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {} ({})", self.code(), self.name())
    }
}

impl Status {
    /// Returns what happened to a request of that kind, and what to do.
    pub(crate) fn explanation_for(self, opcode: Opcode) -> &'static str {
        let is_receive = matches!(opcode, Opcode::Recv | Opcode::RecvWriteImm);
        match self {
            Self::LocalQpOperation if is_receive => {
                "the message is longer than the receive that took it, which Soft-RoCE reports with this \
                 status, or the receive's memory was taken away. Post receives as large as the peer's longest \
                 message, and connect a new queue pair"
            }
            Self::Flushed if is_receive => {
                "no message came for this receive before the queue pair failed or was disconnected, so its \
                 memory has no data. A completion of the same queue pair with another status has the cause; if \
                 there is none, the peer has disconnected or ended. To go on, connect a new queue pair"
            }
            _ => self.explanation(),
        }
    }

    /// Returns true if the device may still be at work on a request that ended so: see
    /// [`Self::TimedOut`] and [`Self::Canceled`].
    pub fn is_unfinished(self) -> bool {
        matches!(self, Self::TimedOut | Self::Canceled)
    }
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wr_opcode")]
#[non_exhaustive]
#[repr(u8)]
pub enum WrOpcode {
    /// [`Write`](crate::wr::Write).
    Write = abi::WR_RDMA_WRITE,
    /// [`Write::imm`](crate::wr::Write::imm).
    WriteImm = abi::WR_RDMA_WRITE_WITH_IMM,
    /// [`Send`](crate::wr::Send), [`SendTo`](crate::wr::SendTo).
    Send = abi::WR_SEND,
    /// [`Send::imm`](crate::wr::Send::imm), [`SendTo::imm`](crate::wr::SendTo::imm).
    SendImm = abi::WR_SEND_WITH_IMM,
    /// [`Read`](crate::wr::Read).
    Read = abi::WR_RDMA_READ,
    /// [`CompareSwap`](crate::wr::CompareSwap).
    CompareSwap = abi::WR_ATOMIC_CMP_AND_SWP,
    /// [`FetchAdd`](crate::wr::FetchAdd).
    FetchAdd = abi::WR_ATOMIC_FETCH_AND_ADD,
    /// [`SendInvalidate`](crate::wr::SendInvalidate).
    SendInvalidate = abi::WR_SEND_WITH_INV,
}

/// Returns the opcode of the completion, `WC_*`, of a request with the opcode `WR_*`.
#[cfg(feature = "io-uring")]
pub(crate) fn completed_opcode(opcode: u8) -> u8 {
    match opcode {
        abi::WR_RDMA_WRITE | abi::WR_RDMA_WRITE_WITH_IMM => abi::WC_RDMA_WRITE,
        abi::WR_RDMA_READ => abi::WC_RDMA_READ,
        abi::WR_ATOMIC_CMP_AND_SWP => abi::WC_COMP_SWAP,
        abi::WR_ATOMIC_FETCH_AND_ADD => abi::WC_FETCH_ADD,
        abi::WR_RECV => abi::WC_RECV,
        _ => abi::WC_SEND,
    }
}

numbered! {
    /// The kind of a completed request. It is valid for failed requests too.
    pub enum Opcode(pub(crate) u8) {
        /// A send.
        Send = abi::WC_SEND,
        /// An RDMA Write, with or without immediate data.
        Write = abi::WC_RDMA_WRITE,
        /// An RDMA Read.
        Read = abi::WC_RDMA_READ,
        /// A compare-and-swap.
        CompareSwap = abi::WC_COMP_SWAP,
        /// A fetch-and-add.
        FetchAdd = abi::WC_FETCH_ADD,
        /// A receive, completed by a send.
        Recv = abi::WC_RECV,
        /// A receive, completed by an RDMA Write with immediate data.
        RecvWriteImm = abi::WC_RECV_RDMA_WITH_IMM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_numbers() {
        assert_eq!(Status::from_code(12), Status::RetryExceeded);
        assert_eq!(Status::from_code(13), Status::RnrRetryExceeded);
        assert_eq!(Status::from_code(10), Status::RemoteAccess);
    }

    #[test]
    fn a_status_is_shown_as_number_and_name() {
        let shown = |code| Status::from_code(code).to_string();
        assert_eq!(shown(12), "status 12 (retry exceeded)");
        assert_eq!(shown(99), "status 99 (unknown status)");
    }
}
