// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sources of rust-ulp-extra, over this crate and its stub of the kernel. For them this crate is
//! `rust_ulp`.

// Theirs is the same, but does not notice what must take no lock.
use crate::sync;

#[path = "../../../rust-ulp-extra/src/pool.rs"]
pub(super) mod pool;
#[path = "../../../rust-ulp-extra/src/stream.rs"]
pub(super) mod stream;
