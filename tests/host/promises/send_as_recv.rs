// SPDX-License-Identifier: GPL-2.0
//! What a queue pair that is not connected takes, is a receive.
//@ error E0308: expected `Recv<'_>`, found `Send<'_>`

pub fn promise(qp: PreparedQp<Rc>, src: LocalSlice) -> Result<()> {
    qp.post_recv(Recv::new(src.clone()))?;
    qp.post_recv(Send::new(src))?; //~ BAD
    Ok(())
}
