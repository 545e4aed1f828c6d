// SPDX-License-Identifier: GPL-2.0

//! What a module with a character device needs of the kernel, and the kernel crate does not have.
//!
//! This folder depends neither on RDMA nor on the objects of this module. Of the module's code,
//! only this folder, `rdma/` and `bindings/` contain `unsafe`. `scripts/check examples` compiles
//! the examples.

pub(crate) mod area;
pub(crate) mod chardev;
pub(crate) mod charge;
pub(crate) mod compat;
pub(crate) mod debugfs;
pub(crate) mod dmabuf;
pub(crate) mod dyndbg;
pub(crate) mod errno;
pub(crate) mod eventfd;
pub(crate) mod fault;
pub(crate) mod gate;
pub(crate) mod late_vec;
pub(crate) mod lock;
pub(crate) mod net;
pub(crate) mod pages;
pub(crate) mod parameter;
mod pinned;
pub(crate) mod rwsem;
pub(crate) mod task;
pub(crate) mod timer;
pub(crate) mod tracepoint;
pub(crate) mod uring;
pub(crate) mod workqueue;
#[macro_use]
pub(crate) mod user;
