// SPDX-License-Identifier: GPL-2.0
//! What holds a queue pair in a state that it does not know posts receives, and nothing else.
//@ error E0599: no method named `post` found for reference `&Qp<Rc, S>`

pub fn promise<S: State>(qp: &Qp<Rc, S>, src: LocalSlice) -> Result<()> {
    qp.post_recv(Recv::empty())?;
    qp.post(Send::new(src))?; //~ BAD
    Ok(())
}
