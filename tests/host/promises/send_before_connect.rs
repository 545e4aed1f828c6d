// SPDX-License-Identifier: GPL-2.0
//! A queue pair that is not connected takes receives, and nothing else.
//@ error E0599: no method named `post` found for struct `Qp<Rc, Init>`

pub fn promise(qp: PreparedQp<Rc>, src: LocalSlice) -> Result<()> {
    qp.post_recv(Recv::empty())?;
    qp.post(Send::new(src))?; //~ BAD
    Ok(())
}
