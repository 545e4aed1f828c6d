// SPDX-License-Identifier: GPL-2.0
//! Only datagrams come with a header before them.
//@ error E0599: no method named `received` found for reference `&Qp<Rc>`

pub fn promise(rc: &Qp<Rc>, ud: &Qp<Ud>, done: Completion, into: LocalSlice) -> Result<()> {
    drop((ud.received(&done, &into)?, rc.endpoint()));
    drop(rc.received(&done, &into)?); //~ BAD
    Ok(())
}
