// SPDX-License-Identifier: MIT OR Apache-2.0

//! A trait that nobody outside of this crate can implement.

/// Nobody else implements the traits that have this one above them.
pub trait Sealed {}
