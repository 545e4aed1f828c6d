// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connecting by the RDMA connection manager: addresses of IP, no TCP.
//!
//! The manager finds device, port, GID and path by the addresses, and brings both queue pairs up.
//! Each side can say something along: 56 bytes with a request, 196 with its acceptance, 148 with
//! its rejection. The options here put grants and data into these in the form of
//! [`wire::PrivateData`]; other programs' forms go as they are ([`ConnectOptions::raw`]).
//!
//! ```no_run
//! use rust_ulp::error::Result;
//! use rust_ulp::qp::Rc;
//! use rust_ulp::wr::{Recv, Write};
//! use rust_ulp::{cm, Access, Device};
//! use std::time::Duration;
//!
//! const LONG: Duration = Duration::from_secs(30);
//!
//! fn target(addr: std::net::SocketAddr) -> Result<Vec<u8>> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let buf = pd.alloc_buffer(4096)?;
//!     let grant = buf.grant(.., Access::REMOTE_WRITE)?;
//!     let qp = pd.qp_builder::<Rc>(&cq).build()?;
//!     qp.post_recv(Recv::empty())?;
//!     let request = cm::Listener::bind(&dev, addr, 8)?.next_request(LONG)?;
//!     let _connection = request.accept(qp, &cm::AcceptOptions::new().grant(&grant))?;
//!     let done = cq.wait(LONG)?.ok()?;
//!     buf.to_vec(..done.byte_len as usize)
//! }
//!
//! fn writer(addr: std::net::SocketAddr) -> Result<()> {
//!     let dev = Device::open_default()?;
//!     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(16)?);
//!     let qp = pd.qp_builder::<Rc>(&cq).build()?;
//!     let connection = qp.connect_cm(addr, &cm::ConnectOptions::new())?;
//!     let grant = connection.private().grant(0)?;
//!     connection.qp().post(Write::inline_bytes(b"hello", grant).imm(1))?;
//!     cq.wait(LONG)?.check()?;
//!     Ok(())
//! }
//! ```

mod addr;
mod connect;
mod connection;
mod listener;
mod options;
mod params;
mod pending;
mod private;
mod request;
mod state;

pub use crate::refusal::{Private, RejectReason, Rejection};
#[cfg(doc)]
use crate::wire;
pub use connection::{Connection, ConnectionInfo};
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
pub use listener::Requests;
pub use listener::{Listener, ListenerInfo};
pub use options::{AcceptOptions, ConnectOptions, TIMEOUT};
pub use params::Params;
pub use pending::Pending;
pub use request::Request;
pub use state::State;
