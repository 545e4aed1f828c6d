// SPDX-License-Identifier: GPL-2.0
//! Nobody keeps a second handle of a piece.
//@ error E0599: no method named `clone` found for struct `Piece

use rust_ulp::*;

pub fn promise(pool: &Pool) -> Option<usize> {
    let piece = pool.take()?;
    let _ = piece.clone(); //~ BAD
    Some(piece.len())
}
