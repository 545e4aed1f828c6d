// SPDX-License-Identifier: GPL-2.0
//! A chunk is in one request at a time.
//@ error E0382: use of moved value: `chunk`

pub fn promise(qp: &Qp<Rc>, chunk: Chunk, to: RemoteSlice) -> Result<()> {
    chunk.post(qp, |memory| Ok(Write::new(memory, to)))?;
    chunk.post(qp, |memory| Ok(Send::new(memory)))?; //~ BAD
    Ok(())
}
