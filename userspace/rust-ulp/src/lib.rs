// SPDX-License-Identifier: MIT OR Apache-2.0
#![deny(
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks
)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        unsafe_code
    )
)]

//! RDMA from safe Rust, over `/dev/rust_ulp` and without libibverbs.

#[path = "../../../rust_ulp/uapi/ring.rs"]
#[allow(dead_code)] // the producer's half
mod ring;

mod batch;
mod buffer;
mod cq;
mod device;
mod error;
mod exchange;
#[cfg(test)]
mod fake;
mod qp;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
pub mod wire;
mod wr;

// The kernel's build compares the layout with C; the host tests have a C compiler do it.
macro_rules! abi_check {
    ($($_:tt)*) => {};
}

#[path = "../../../rust_ulp/uapi/abi.rs"]
#[allow(dead_code)]
mod abi;

pub use batch::{DeviceBatch, QpBatch};
pub use buffer::{Access, Buffer, BufferBuilder, Grant, LocalSlice, PageSize, RemoteSlice};
pub use cq::{Completion, Cq, CqOptions, Delivery, Opcode, Status};
pub use device::{
    Chosen, Device, DeviceEntry, DeviceInfo, GidEntry, GidType, Guid, Limits, LinkLayer, Pd,
    PortInfo, PortState,
};
pub use error::{CompletionError, Error, Result};
pub use exchange::{Incoming, Listener, Peer, TcpOptions, ACCEPT_TIMEOUT, EXCHANGE_TIMEOUT};
pub use qp::{
    Endpoint, Gid, Mtu, Path, PreparedQp, Qp, QpAttr, QpBuilder, QpCaps, QpInfo, QpState, Rc,
    Transport, Uc, Ud,
};
#[doc(hidden)]
pub use wr::Target;
pub use wr::{CompareSwap, FetchAdd, Post, Read, Recv, Request, RequestFor, Send, Write};
