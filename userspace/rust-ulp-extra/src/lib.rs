// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]
#![doc = include_str!("../README.md")]

// The tests of what needs a kernel are among those of rust-ulp, whose tests have a fake one and, in
// the tree, compile these files.
pub mod pool;
pub mod stream;
mod sync;
