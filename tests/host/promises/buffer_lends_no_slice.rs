// SPDX-License-Identifier: GPL-2.0
//! A peer may write to a buffer at any time: there is no reference to its bytes.
//@ error E0277: AsRef<[u8]>` is not satisfied

fn bytes(_: &impl AsRef<[u8]>) {}

pub fn promise(buffer: &Buffer) -> Result<()> {
    bytes(&buffer.to_vec(..)?);
    bytes(buffer); //~ BAD
    Ok(())
}
