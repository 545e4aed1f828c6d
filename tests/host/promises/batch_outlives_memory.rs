// SPDX-License-Identifier: GPL-2.0
//! A request borrows its memory until it is posted.
//@ error E0505: cannot move out of `buf` because it is borrowed

pub fn promise(qp: &Qp<Rc>, buf: Buffer, to: RemoteSlice) -> Result<usize> {
    let mut batch = qp.batch();
    batch.push(Write::new(buf.slice(..8)?, to))?;
    drop(buf); //~ BAD
    batch.submit()
}
