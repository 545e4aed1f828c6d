// SPDX-License-Identifier: GPL-2.0
//! Only unsafe code reads through the address of a buffer.
//@ error E0133: is unsafe and requires unsafe

pub fn promise(buffer: &Buffer) -> Option<usize> {
    let pointer = buffer.as_ptr()?;
    let _ = pointer.as_ref(); //~ BAD
    Some(pointer.addr().get())
}
