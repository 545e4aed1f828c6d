// SPDX-License-Identifier: GPL-2.0
//! A chunk that was posted is the request's: nobody reads it before it came back.
//@ error E0382: borrow of moved value: `chunk`

pub fn promise(qp: &Qp<Rc>, chunk: Chunk, to: RemoteSlice) -> Result<()> {
    let mut bytes = [0; 8];
    chunk.read_at(0, &mut bytes)?;
    chunk.post(qp, |memory| Ok(Write::new(memory, to)))?;
    chunk.read_at(0, &mut bytes)?; //~ BAD
    Ok(())
}
