// SPDX-License-Identifier: GPL-2.0
//! Nobody keeps a second handle of a chunk.
//@ error E0599: no method named `clone` found for struct `Chunk

pub fn promise(pool: &Pool) -> Option<usize> {
    let chunk = pool.take()?;
    let _ = chunk.clone(); //~ BAD
    Some(chunk.len())
}
