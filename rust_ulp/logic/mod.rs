// SPDX-License-Identifier: GPL-2.0

//! What can be decided without the kernel.
//!
//! These files touch no kernel API, allocate nothing and cannot panic; the host tests compile them
//! too.

pub(crate) mod decode;
pub(crate) mod handle;
