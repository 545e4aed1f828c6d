// SPDX-License-Identifier: GPL-2.0
//! Nor is there an address of it.
//@ error E0599: no method named `as_ptr` found for reference `&Buffer`

use rust_ulp::*;

pub fn promise(buffer: &Buffer) -> usize {
    let _ = buffer.as_ptr(); //~ BAD
    buffer.len()
}
