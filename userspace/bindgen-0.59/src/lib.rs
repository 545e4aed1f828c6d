// SPDX-License-Identifier: MIT OR Apache-2.0

//! The current bindgen in the place of bindgen 0.59, which rdma-sys 0.3.0 builds with.
//!
//! bindgen 0.59 panics on the headers of rdma-core with libclang 16 or newer. The current one has every
//! method that the build script of rdma-sys calls, so that its names are all that this crate has to
//! provide. The workspace's `[patch.crates-io]` puts it in the place of bindgen 0.59.

pub use current::*;
