// SPDX-License-Identifier: GPL-2.0
//! It does not turn into a slice where one is wanted.
//@ error E0308: expected `&[u8]`, found `&Buffer`

fn bytes(_: &[u8]) {}

pub fn promise(buffer: &Buffer) -> Result<()> {
    bytes(&buffer.to_vec(..)?);
    bytes(buffer); //~ BAD
    Ok(())
}
