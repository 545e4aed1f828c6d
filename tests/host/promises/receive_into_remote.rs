// SPDX-License-Identifier: GPL-2.0
//! What is received comes into local memory.
//@ error E0308: expected `LocalSlice<'_>`, found `RemoteSlice`

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, there: RemoteSlice) -> Result<()> {
    qp.post_recv(Recv::new(here))?;
    qp.post_recv(Recv::new(there))?; //~ BAD
    drop(there);
    Ok(())
}
