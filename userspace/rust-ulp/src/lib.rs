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
//!
//! One side grants memory and waits for somebody to connect; the other side writes into it:
//!
//! ```no_run
//! use rust_ulp::{Access, Device, Rc, Recv, Result, Write};
//! use std::time::Duration;
//!
//! fn target(addr: &str) -> Result<Vec<u8>> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let buf = pd.alloc_buffer(4096)?;
//!     let grant = buf.grant(.., Access::REMOTE_WRITE)?;
//!     let qp = pd.create_qp::<Rc>(&cq).build()?;
//!     qp.post_recv(Recv::empty())?;
//!     let (_qp, _peer) = qp.accept_tcp(addr, &[&grant])?;
//!     let done = cq.wait(Duration::from_secs(30))?.ok()?;
//!     buf.to_vec(..done.byte_len as usize)
//! }
//!
//! fn writer(addr: &str) -> Result<()> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let (qp, peer) = pd.create_qp::<Rc>(&cq).build()?.connect_tcp(addr, &[])?;
//!     qp.post(Write::inline_bytes(b"hello", peer.grant(0)?).imm(1))?;
//!     let _ = cq.wait(Duration::from_secs(30))?.ok()?;
//!     Ok(())
//! }
//! ```
//!
//! What cannot work does not compile: a queue pair that is not connected ([`PreparedQp`]) takes receives
//! only, connecting turns it into a [`Qp`], and a peer's memory ([`RemoteSlice`]) is not one's own
//! ([`LocalSlice`]):
//!
//! ```compile_fail
//! # use rust_ulp::*;
//! fn too_early(qp: PreparedQp<Rc>) -> Result<()> {
//!     qp.post(Send::empty())
//! }
//! ```
//!
//! All handles are cheap to clone, may be sent to other threads, and keep what they need; the order in
//! which they are dropped does not matter. There is no reference to memory that a peer can change: a
//! [`Buffer`] copies bytes in and out.

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
