// SPDX-License-Identifier: GPL-2.0
//! A receive always makes a completion.
//@ error E0599: no method named `signaled` found for struct `Recv

pub fn promise(qp: &Qp<Rc>) -> Result<()> {
    qp.post(Send::empty().signaled(false))?;
    let recv = Recv::empty();
    let recv = recv.signaled(false); //~ BAD
    qp.post(recv)
}
