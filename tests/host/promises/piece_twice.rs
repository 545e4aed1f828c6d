// SPDX-License-Identifier: GPL-2.0
//! A piece is in one request at a time.
//@ error E0382: use of moved value: `piece`

use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>, piece: Piece, to: RemoteSlice) -> Result<()> {
    piece.post(qp, |memory| Ok(Write::new(memory, to)))?;
    piece.post(qp, |memory| Ok(Send::new(memory)))?; //~ BAD
    Ok(())
}
