// SPDX-License-Identifier: MIT OR Apache-2.0

//! Types of queue pairs: transports, and the states that a type says.

use crate::abi;
use crate::attr::QpInfo;
use crate::endpoint::{Endpoint, Mtu};
use crate::sealed;
use crate::wire::TransportType;
use std::fmt;

/// The transport of a queue pair: [`Rc`](crate::qp::Rc), [`Uc`](crate::qp::Uc) or [`Ud`].
pub trait Transport: sealed::Sealed + fmt::Debug + 'static {
    /// The number of the transport in the ABI.
    #[doc(hidden)]
    const QP_TYPE: u32;

    /// The number of the transport in messages.
    #[doc(hidden)]
    const TYPE: TransportType;

    /// The type of the other end.
    #[doc(hidden)]
    type Peer: Copy + fmt::Debug + std::marker::Send + Sync + 'static;

    /// Returns the other end, as the kernel knows it.
    #[doc(hidden)]
    fn peer(info: &QpInfo, mtu: Mtu) -> Self::Peer;

    /// Returns the other end, if it is one.
    #[doc(hidden)]
    fn end(peer: &Self::Peer) -> Option<&Endpoint>;
}

/// A transport with one peer: [`Rc`](crate::qp::Rc) or [`Uc`](crate::qp::Uc).
pub trait Connected: Transport<Peer = Endpoint> {
    /// True if the peer acknowledges what arrives.
    #[doc(hidden)]
    const RELIABLE: bool;
}

macro_rules! transports {
    ($($(#[$meta:meta])* $name:ident = $value:ident, $reliable:literal;)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl Transport for $name {
            const QP_TYPE: u32 = abi::$value;
            const TYPE: TransportType = TransportType::$name;
            type Peer = Endpoint;

            fn peer(info: &QpInfo, mtu: Mtu) -> Endpoint {
                let mtu = info.path_mtu.unwrap_or(mtu);
                Endpoint::new(info.dest_qp_num, info.rq_psn, info.path.gid, mtu)
            }

            fn end(peer: &Endpoint) -> Option<&Endpoint> {
                Some(peer)
            }
        }

        impl Connected for $name {
            const RELIABLE: bool = $reliable;
        }
    )* };
}

transports! {
    /// Reliable connection: one peer; everything arrives once and in order, or the queue pair
    /// fails.
    Rc = QPT_RC, true;
    /// Unreliable connection: one peer. Sends and writes only; a message that loses a packet is
    /// lost whole, and nobody is told: its sender's completion says that it left.
    Uc = QPT_UC, false;
}

/// Unreliable datagram: any peers, sends of one packet each, at most [`Endpoint::mtu`] bytes. What
/// is lost is lost.
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

impl Ud {
    /// The Q_Key of queue pairs that are not given one; the one of `ibv_ud_pingpong`, too.
    pub const DEFAULT_QKEY: u32 = 0x1111_1111;
}

impl sealed::Sealed for Ud {}

impl Transport for Ud {
    const QP_TYPE: u32 = abi::QPT_UD;
    const TYPE: TransportType = TransportType::Ud;
    type Peer = ();

    fn peer(_info: &QpInfo, _mtu: Mtu) {}

    fn end(_peer: &()) -> Option<&Endpoint> {
        None
    }
}

/// A state of a queue pair that its type says: [`Init`] or [`Rts`].
pub trait State: sealed::Sealed + fmt::Debug + 'static {
    /// The type of the other end.
    #[doc(hidden)]
    type Peer<T: Transport>: Copy + fmt::Debug + std::marker::Send + Sync + 'static;
}

/// The state of a [`PreparedQp`](crate::PreparedQp): it takes receives.
#[derive(Clone, Copy, Debug)]
pub enum Init {}

/// The state of a queue pair that was connected, or made ready: it takes any request.
#[derive(Clone, Copy, Debug)]
pub enum Rts {}

impl sealed::Sealed for Init {}
impl sealed::Sealed for Rts {}

impl State for Init {
    type Peer<T: Transport> = ();
}

impl State for Rts {
    type Peer<T: Transport> = T::Peer;
}
