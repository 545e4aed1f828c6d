// SPDX-License-Identifier: GPL-2.0
//! A batch does not outlive its queue pair.
//@ error E0505: cannot move out of `qp` because it is borrowed

pub fn promise(qp: Qp<Rc>) -> Result<usize> {
    let mut batch = qp.batch();
    batch.push(Recv::empty())?;
    drop(qp); //~ BAD
    batch.submit()
}
