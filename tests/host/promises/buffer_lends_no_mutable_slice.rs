// SPDX-License-Identifier: GPL-2.0
//! What cannot be read by reference cannot be written by one.
//@ error E0277: AsMut<[u8]>` is not satisfied

fn bytes(_: &mut impl AsMut<[u8]>) {}

pub fn promise(mut buffer: Buffer) -> Result<()> {
    bytes(&mut buffer.to_vec(..)?);
    bytes(&mut buffer); //~ BAD
    buffer = buffer.clone();
    drop(buffer);
    Ok(())
}
