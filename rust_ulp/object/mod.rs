// SPDX-License-Identifier: GPL-2.0

//! The objects of an open file, and the table that has them.

pub(crate) mod ah;
pub(crate) mod buffer;
pub(crate) mod connection;
pub(crate) mod cq;
pub(crate) mod events;
pub(crate) mod grant;
pub(crate) mod listener;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod quota;
pub(crate) mod srq;
pub(crate) mod table;
