// SPDX-License-Identifier: GPL-2.0

//! InfiniBand verbs.
//!
//! Safe abstractions over the kernel's RDMA core for upper-layer protocols: clients, protection
//! domains, completion queues, queue pairs, shared receive queues, address handles, memory regions
//! made by fast registration, events and connections. They do not depend on the protocol that uses
//! them. `samples/rdma_ping.rs` is a module that uses them.
//!
//! The examples are no doctests, since those run as KUnit tests of the kernel's own tree only.
//! `scripts/check examples` compiles them. Each sees the kernel crate's prelude, `ARef`, `Arc`, the
//! modules of its folder, and the names of its file.
//!
//! # Lifetime
//!
//! Every object holds references to the objects that it was made from: a queue pair to its
//! protection domain and completion queues, and those to the device. Removing a device waits for
//! its references. A client whose [`client::Client::remove`] returns without having dropped its
//! objects hangs the removal, but nothing is used after it was freed.
//!
//! # Thread safety
//!
//! Objects of a device are [`Send`] and [`Sync`]. The methods of `struct ib_device` "must be fully
//! reentrant": the driver synchronizes calls that use the same object at the same time
//! (Documentation/infiniband/core_locking.rst, "Reentrancy", of Linux 7.2.12). The core adds atomic
//! reference counts, and locks of its own. A lock of this crate serializes what neither of them does:
//! polling a completion queue directly, draining, and changes of a queue pair's state.
//!
//! # Contexts
//!
//! | function | may sleep | called with |
//! |---|---|---|
//! | [`client::Client::add`], `remove`, `rename` | yes | `add` under the core's `devices_rwsem` |
//! | creating and dropping an object | yes | nothing held |
//! | [`post::Run::push`] | yes | |
//! | [`post::Run::post`] | yes, for memory | takes the queue's lock, under it the driver's |
//! | dropping a [`post::Scratch`] | yes: drops what the slots still held | nothing held |
//! | [`srq::Srq::reclaim`] | yes | nothing held that a handler takes |
//! | [`cq::Cq::serve`] | yes | nothing held that a handler takes |
//! | [`event::Handler::event`] | yes | the core's `event_handler_rwsem`, perhaps `rtnl_lock` |
//! | [`request::WrHandler::complete`], `complete_unsignaled` | as [`cq::PollContext`] says | nothing held |
//! | [`request::WrHandler::cancel`] | no | the queue's lock held |
//! | [`request::WrHandler::discard`] | no | the queue's lock held when the driver refused the request |
//! | [`cm::Handler::event`], [`cm::Listener::request`] | yes | the handler mutex; of a request, its listener's too |
//! | [`request::WrHandler::event`], [`cq::Handler::event`], `completion` | no | the driver's locks held, and that of a queue which is posted to; interrupts off on rxe |
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

// This is a library: a module may use a part of it only.
#![allow(dead_code)]

pub(crate) mod ah;
pub(crate) mod buffer;
pub(crate) mod cgroup;
pub(crate) mod client;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod fast_reg;
pub(crate) mod gid;
pub(crate) mod mr;
pub(crate) mod path;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
mod queue;
mod quirks;
pub(crate) mod request;
pub(crate) mod silence;
pub(crate) mod srq;
pub(crate) mod waiter;
pub(crate) mod wr;
