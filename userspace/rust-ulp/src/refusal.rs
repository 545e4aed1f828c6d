// SPDX-License-Identifier: MIT OR Apache-2.0

//! Refused and rejected connections: the reasons of the peer and of its connection manager.

use crate::abi;
use crate::numbered::numbered;
use std::fmt;
use std::net::SocketAddr;

/// The reason why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The magic is another one.
    #[error("its first bytes are not the magic")]
    Magic,
    /// The version is another one.
    #[error("it speaks version {0}, this side version 1")]
    Version(u16),
    /// There is no such type of message.
    #[error("a message of unknown type {0}")]
    Type(u16),
    /// The length is none that the type can have.
    #[error("a message of {0} bytes, which its type cannot have")]
    Length(u32),
    /// A field has a value that it cannot have.
    #[error("a message whose {0} makes no sense")]
    Field(&'static str),
    /// A message of a type that is not due.
    #[error("a message out of turn")]
    OutOfTurn,
}

numbered! {
    /// The reason why a connection was refused.
    #[derive(thiserror::Error)]
    pub enum Refusal(
        pub(crate) u16,
        #[error("its reason has number {0}, unknown here; take the same version of this crate at both ends")]
    ) {
        /// The program did not want it.
        #[error("its program declined; its own output may say why")]
        Declined = 1,
        /// The two ends have queue pairs of different types.
        #[error("its queue pair is of another transport; make both of one type (Rc or Uc)")]
        Transport = 2,
        /// The peer could not bring its queue pair up.
        #[error(
            "its queue pair could not be connected; see whether that host has a route to this end's GID, and what its \
             program and its kernel's log say"
        )]
        Setup = 3,
        /// The peer has no room.
        #[error("it has no room for more connections; try later")]
        Busy = 4,
        /// The peer did not understand.
        #[error("it did not understand what this side said: is it of the same version?")]
        Protocol = 5,
    }
}

/// The private data of the peer's request, acceptance or rejection.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Private {
    bytes: Vec<u8>,
}

impl Private {
    pub(crate) fn new(field: &[u8; abi::CM_PRIVATE_MAX], len: u32) -> Self {
        let bytes = field.iter().take(len as usize);
        Self {
            bytes: bytes.copied().collect(),
        }
    }

    /// Returns the bytes as they came. The manager fills up with zeros: the sender has to tell the
    /// length.
    pub fn raw(&self) -> &[u8] {
        &self.bytes
    }
}

macro_rules! reasons {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $text:literal;)*) => {
        numbered! {
            /// The reason why a request was rejected.
            ///
            /// The reasons of the InfiniBand Architecture Specification, 12.6.7.2.
            pub enum RejectReason(pub u32) {
                $($(#[$meta])* $variant = $code,)*
            }
        }

        impl RejectReason {
            /// Returns what happened, and what to do.
            pub fn explanation(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(_) => "look the reason up in the list of IBA 12.6.7.2",
                }
            }
        }
    };
}

reasons! {
    /// No queue pair.
    NoQp = 1, "the peer has no queue pair to spare; try later";
    /// No resources.
    NoResources = 3, "the peer has no memory or other resources to spare; try later";
    /// The peer's manager heard no answer.
    Timeout = 4, "the peer's manager waited for an answer in vain: packets are lost on the way; see whether both \
        hosts reach each other (ping), and try again";
    /// Unsupported.
    Unsupported = 5, "the peer's manager does not support such a request; connect over TCP (connect_tcp())";
    /// No process listens.
    NoListener = 8, "nobody listens at that address and port: is the peer's program running, and does it \
        listen with the connection manager (not with TCP)?";
    /// Another transport.
    Transport = 9, "the peer listens for queue pairs of another type; make both of one type";
    /// A stale connection.
    Stale = 10, "the peer still knows a connection of an earlier queue pair with this number; try again";
    /// The GID is none of the peer's.
    InvalidGid = 12, "the peer does not know the GID that it was addressed by: compare `rdma link` and \
        `ip addr` there with the address that was asked for";
    /// The MTU is too large.
    InvalidMtu = 26, "the peer cannot do that MTU: set a smaller one with QpBuilder::mtu()";
    /// Too many reads and atomics.
    Resources = 27, "the peer does not answer so many reads and atomics: QpBuilder::rd_atomic()";
    /// The peer's program said no.
    Program = 28, "the peer's program rejected it, or has as many requests waiting as it wants to; its private \
        data may say why";
}

/// A rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The address that was asked.
    pub peer: SocketAddr,
    /// The reason.
    pub reason: RejectReason,
    /// The private data of the peer.
    pub private: Private,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, text) = (self.reason.code(), self.reason.explanation());
        write!(
            f,
            "{} rejected the connection (reason {reason}): {text}",
            self.peer
        )
    }
}
