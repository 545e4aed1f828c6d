// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
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
#![doc = include_str!("../README.md")]
//!
//! # Misuse that does not compile
//!
//! What cannot work does not compile: a queue pair that is not connected ([`PreparedQp`]) takes
//! receives only, connecting turns it into a [`Qp`], and a peer's memory ([`RemoteSlice`]) is not
//! one's own ([`LocalSlice`]):
//!
//! ```compile_fail
//! # use rust_ulp::error::Result;
//! # use rust_ulp::qp::Rc;
//! # use rust_ulp::wr::Send;
//! # use rust_ulp::*;
//! fn too_early(qp: PreparedQp<Rc>) -> Result<()> {
//!     qp.post(Send::empty())
//! }
//! ```
//!
//! # Thread safety
//!
//! Every type is `Send` and `Sync`. Posting to one [`Qp`] from several threads is allowed: the
//! requests of a call are posted in their order, up to the first one that is refused. Clones of a
//! [`Cq`] share one ring: several threads may reap it, and each completion goes to one of them. A
//! [`Buffer`] may be read and written by several threads and by peers at the same time; what that
//! gives is said there.
//!
//! # Resource cleanup
//!
//! [`Device`], [`Pd`], [`Cq`], [`Buffer`], [`Grant`], [`Qp`] and the like are counted references
//! without lifetimes. What is made keeps what it was made of, so the order in which they are
//! dropped does not matter; the last reference destroys the kernel's object, and the last of a
//! device closes its file, with which the kernel frees whatever is left. Dropping, forgetting or
//! giving up waiting for anything while requests are in flight is harmless: the kernel keeps the
//! memory until the device is done with it.
//!
//! Requests alone borrow, until they are posted: their memory ([`LocalSlice`]), bytes that go inline,
//! and the [`Destination`] of a datagram. So building one counts no owner of anything.
//!
//! When a device is removed, waits end and every call says [`Error::DeviceGone`]; buffers stay
//! readable. A forked child must not use these types, and does not inherit the mappings of buffers
//! and rings; memory that the caller registered with [`Pd::register_raw`] is inherited as any other
//! of the caller's. A child may drop these types: that takes no lock, and changes nothing for the
//! parent. Types of tasks are registered with a runtime, which decides whether a child may drop
//! them.
//!
//! # Tasks
//!
//! With the feature `tokio` or `smol`, tasks wait in place of threads: `AsyncCq`, `AsyncEvents`,
//! `AsyncRequests`, `AsyncListener`, `cm::Requests`, and the functions whose names end in `_async`.
//! Inside of a runtime of tokio they use that, elsewhere smol. A queue that is never empty does not
//! starve other tasks: what is taken counts against the budget of tokio, and with smol a task
//! yields after 128 completions. Without the feature `smol`, all of these panic outside of a
//! runtime of tokio, and in any case inside of one that has I/O disabled.
//!
//! With another runtime no feature is needed: [`CqEventFd::poll_wait`](cq::CqEventFd::poll_wait) and
//! [`Events::poll_next_event`](events::Events::poll_next_event) take the runtime's way to wait for a
//! file. Connecting is [`PreparedQp::begin_connect_cm`] and
//! [`cm::Request::begin_accept`] there, whose end is an event.
//!
//! These calls sleep, and a task that makes one keeps its thread from running others:
//!
//! - [`Device::open`] and whatever makes or destroys an object of the kernel: buffers, grants,
//!   queues, and the drop of the last clone. To destroy a queue pair the kernel waits for the
//!   device to be done with its requests.
//! - [`Pd::create_ah`], [`PreparedQp::connect`] and [`Qp::modify`] to the state Rtr, for some
//!   seconds while the kernel resolves a peer's address. `connect_tcp_async` and `accept_async`
//!   have a helper thread do that; after one that failed,
//!   [`ConnectError::into_qp`](qp::ConnectError::into_qp) waits for that thread.
//! - Whatever takes a name in place of an address: [`PreparedQp::connect_tcp`],
//!   [`Listener::bind`](tcp::Listener::bind).
//! - All functions named `wait`, and all with a timeout.
//!
//! A program calls them before it serves, or in a thread for blocking calls such as those of
//! `tokio::task::spawn_blocking`. Posting, polling and canceling do not sleep.
//!
//! Every future can be dropped at any time:
//!
//! - One that waits for a completion, an event or a peer has taken nothing.
//! - One of a request leaves the request in flight, and its completion is dropped when it comes.
//! - One that connects or accepts gives the attempt up: the peer sees the connection end. The queue
//!   pair goes with it.
//!
//! # Safety
//!
//! No function hands out a reference to memory that a peer or a device can change. A [`Buffer`]
//! copies bytes in and out, and loads, stores and adds numbers, by atomic accesses of one size. The
//! kernel frees memory, not a `Drop` that can be forgotten. A [`RemoteSlice`] is a number, which
//! the peer's device checks. The crate checks the content of a ring before it uses it. All system
//! calls and shared memory are in one private module.
//!
//! One function is `unsafe`: [`Pd::register_raw`], which registers memory that the caller owns.
//! [`Buffer::as_ptr`] is the way in the other direction.
//!
//! # What there is
//!
//! | | |
//! |---|---|
//! | transports | [`Rc`](qp::Rc) and [`Uc`](qp::Uc) with one peer, [`Ud`](qp::Ud) with any |
//! | operations | [`Write`](wr::Write) and [`Send`](wr::Send) with or without immediate data, [`SendInvalidate`](wr::SendInvalidate), [`Read`](wr::Read), [`CompareSwap`](wr::CompareSwap), [`FetchAdd`](wr::FetchAdd), [`Recv`](wr::Recv); several elements, inline, fenced, solicited, unsignaled |
//! | datagrams | [`SendTo`](wr::SendTo) a [`Destination`] behind an [`AddressHandle`]; [`Qp::received`] finds payload and sender, [`Qp::reply_to`] the way back |
//! | posting | [`Qp::post`]; deadlines on every request ([`Send::timeout`](wr::Send::timeout)), [`Qp::cancel`]; [`Qp::batch`] and, over many queue pairs, [`Device::batch`]: one system call, which can also wait |
//! | receiving | [`Recv`](wr::Recv) per queue pair, or an [`Srq`] that many share |
//! | completions | [`Cq::poll`] and [`Cq::poll_into`] without a system call, [`Cq::wait`] with a deadline, [`Cq::eventfd`] for `poll` and `epoll` |
//! | connecting | [`PreparedQp::connect_cm`], [`cm::Listener`] by the RDMA connection manager, with [`cm::Pending`] when nobody waits; [`PreparedQp::connect_tcp`], [`Listener`](tcp::Listener) over TCP; [`PreparedQp::connect`] with an [`Endpoint`] that came another way; [`PreparedQp::modify`] step by step |
//! | events | [`Device::events`]: ports, queues, connections, removal |
//! | tasks | completions, events, requests and connecting as futures and streams, with `tokio` or `smol` |
//! | memory | [`Buffer`] of 4 KiB or 2 MiB pages on a chosen NUMA node, of this process's own memory, or of a dma-buf; [`Grant`] of a part, with rights, revocable, which can end with a queue pair or when the peer invalidates the key |
//!
//! Of the programs in `examples/`, begin with `rdma_write`, one write over TCP parameters. Then comes
//! the one that is nearest to yours: `hello_cm` (the connection manager), `echo_rc` (messages),
//! `clients` (a server of several clients), `remote_read`, `batch`, `hello_ud` (datagrams),
//! `async_tokio` (tasks), `uring` (io_uring), `dmabuf` (memory of another device). The crate
//! `rust-ulp-extra` has a byte stream, and a pool of registered memory.
//!
//! [`from_verbs`] tells for each call of libibverbs and librdmacm what there is instead.
//!
//! Posting and reaping allocate nothing, once a batch of that size was posted before.
//!
//! # Errors
//!
//! A function that is described as another one fails and panics as that one. Without a section for
//! its errors, a function has those errors, or [`Error::DeviceGone`] alone.
//!
//! Each [`Error`] says what happened and what to do. [`Error::kind`] is what a program matches, and
//! `std::io::Error` has the nearest kind of its own. [`Error::is_backpressure`] tells a full queue,
//! after which one reaps and posts again, from what is wrong; [`Error::is_retryable`] tells what
//! may work later. A request that failed is a [`CompletionError`](error::CompletionError) with both
//! ends and a decoded [`Status`], whose [`explanation`](Status::explanation) says what to do. The
//! tool `ulp diagnose` looks for the cause at both ends.

// The tests of the tree compile the sources of rust-ulp-extra, too: see build.rs.
#[cfg(all(test, extra))]
extern crate self as rust_ulp;

#[path = "uapi/ring.rs"]
#[allow(dead_code)] // the producer's half
mod ring;

mod access;
mod ah;
#[cfg(any(feature = "smol", feature = "tokio"))]
mod asynchronous;
mod atomic;
mod attr;
mod batch;
mod buffer;
pub mod cm;
mod completion;
mod copy;
pub mod cq;
mod datagram;
mod deadline;
pub mod device;
mod endpoint;
pub mod error;
pub mod events;
#[cfg(test)]
mod fake;
#[cfg(doc)]
pub mod from_verbs;
#[cfg(any(feature = "smol", feature = "tokio"))]
mod future;
mod gid;
pub mod grant;
mod info;
mod kind;
pub mod memory;
mod numbered;
mod object;
mod params;
mod path;
mod pd;
mod port;
mod post;
pub mod qp;
mod range;
#[cfg(any(feature = "smol", feature = "tokio"))]
mod reactor;
mod refusal;
mod remote;
mod sealed;
#[cfg(feature = "serde")]
mod serialize;
pub mod srq;
mod state;
mod status;
mod sync;
#[allow(unsafe_code)]
mod sys;
mod tag;
pub mod tcp;
// They need every feature.
#[cfg(all(
    test,
    feature = "io-uring",
    feature = "serde",
    feature = "smol",
    feature = "tokio"
))]
mod tests;
mod transport;
#[cfg(feature = "io-uring")]
#[cfg_attr(docsrs, doc(cfg(feature = "io-uring")))]
pub mod uring;
mod wait;
pub mod wire;
pub mod wr;

// The kernel's build compares the layout with C; the host tests have a C compiler do it.
macro_rules! abi_check {
    ($($_:tt)*) => {};
}

#[path = "uapi/abi.rs"]
#[allow(dead_code)]
mod abi;

pub use access::Access;
pub use ah::{AddressHandle, Destination};
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
pub use asynchronous::{AsyncCq, AsyncEvents};
pub use batch::{DeviceBatch, QpBatch};
pub use buffer::{Buffer, LocalSlice};
pub use completion::Completion;
pub use cq::Cq;
pub use datagram::{Datagram, Grh};
pub use device::Device;
pub use endpoint::{Endpoint, Mtu};
pub use error::Error;
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
pub use future::{AsyncRequests, RequestFuture};
pub use gid::{Gid, Guid};
pub use grant::Grant;
pub use pd::Pd;
pub use qp::{PreparedQp, Qp};
pub use remote::RemoteSlice;
pub use srq::Srq;
pub use status::{Opcode, Status};
