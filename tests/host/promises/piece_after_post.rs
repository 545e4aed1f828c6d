// SPDX-License-Identifier: GPL-2.0
//! A piece that was posted is the request's: nobody reads it before it came back.
//@ error E0382: borrow of moved value: `piece`

use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>, piece: Piece, to: RemoteSlice) -> Result<()> {
    let mut bytes = [0; 8];
    piece.read_at(0, &mut bytes)?;
    piece.post(qp, |memory| Ok(Write::new(memory, to)))?;
    piece.read_at(0, &mut bytes)?; //~ BAD
    Ok(())
}
