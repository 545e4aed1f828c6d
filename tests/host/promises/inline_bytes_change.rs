// SPDX-License-Identifier: GPL-2.0
//! Nor do they change while the batch has them.
//@ error E0506: cannot assign to `bytes[_]` because it is borrowed

pub fn promise(qp: &Qp<Rc>) -> Result<u8> {
    let mut bytes = [1, 2, 3];
    let mut batch = qp.batch();
    batch.push(Send::inline_bytes(&bytes))?;
    bytes[0] = 9; //~ BAD
    batch.submit()?;
    drop(batch);
    bytes[0] = 8;
    Ok(bytes[0])
}
