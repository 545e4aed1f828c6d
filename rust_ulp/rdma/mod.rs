// SPDX-License-Identifier: GPL-2.0

//! InfiniBand verbs.
//!
//! Safe abstractions over the kernel's RDMA core, for upper-layer protocols: clients that come and
//! go with devices, protection domains, completion queues, queue pairs, shared receive queues,
//! address handles, memory regions made by fast registration, events, connections. They know nothing
//! of the protocol that uses them.
//!
//! # Lifetime
//!
//! Every object holds references to what it was made from: a queue pair to its protection domain
//! and completion queues, those to the device. A device does not go away before its references are
//! given back; so a client whose [`client::Client::remove`] returns without having dropped its
//! objects hangs the removal, but nothing is ever used after it is gone.
//!
//! # Thread safety
//!
//! Objects of a device are [`Send`] and [`Sync`]: the methods of `struct ib_device` "must be fully
//! reentrant", and the driver synchronizes calls that use the same object at the same time
//! (Documentation/infiniband/core_locking.rst:48, "Reentrancy"). The core adds counts of references,
//! which are atomic, and locks of its own. What neither of them serializes, a lock here does: polling
//! a completion queue directly, draining, and changes of a queue pair's state. Line numbers in this
//! crate are those of Linux 7.2.12.
//!
//! # Contexts

//!
//! | what | may sleep | called with |
//! |---|---|---|
//! | [`client::Client::add`], `remove`, `rename` | yes | `add` under the core's `devices_rwsem` |
//! | making and dropping any object | yes | nothing held |
//! | [`chain::Chain::push`] | yes: drops what its slot still held | |
//! | [`chain::Chain::post`] | no | takes the queue's lock, under it the driver's |
//! | [`srq::Srq::reclaim`] | yes | nothing held that a handler takes |
//! | [`event::Handler::event`] | yes | the core's `event_handler_rwsem`, perhaps `rtnl_lock` |
//! | [`request::WrHandler::complete`], `complete_unsignaled` | as [`cq::PollContext`] says | nothing held |
//! | [`request::WrHandler::discard`] | as its caller may | nothing held |
//! | [`cm::Handler::event`], [`cm::Listener::request`] | yes | the identifier's handler mutex; of a request, its listener's too |
//! | [`request::WrHandler::event`], [`cq::Handler::event`] | no: rxe calls under its locks, interrupts off | driver's locks |
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

// A library: it offers more than its consumer uses.
#![allow(dead_code)]

pub(crate) mod ah;
pub(crate) mod buffer;
pub(crate) mod cgroup;
pub(crate) mod chain;
pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
mod deferred;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod fast_reg;
pub(crate) mod gid;
pub(crate) mod loopback;
pub(crate) mod mr;
pub(crate) mod path;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod qp_attr;
mod queue;
pub(crate) mod request;
pub(crate) mod srq;
pub(crate) mod waiter;
pub(crate) mod wr;
