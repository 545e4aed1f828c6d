// SPDX-License-Identifier: GPL-2.0
//! Nor is it indexed, for reading or writing.
//@ error E0608: cannot index into a value of type `&Buffer`

pub fn promise(buffer: &Buffer) -> Result<u8> {
    let byte = buffer.load_u8(0, std::sync::atomic::Ordering::Relaxed)?;
    let byte = buffer[0]; //~ BAD
    Ok(byte)
}
