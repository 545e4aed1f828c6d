// SPDX-License-Identifier: GPL-2.0
//! Only what is sent can be taken along at once.
//@ error E0599: no method named `inline` found for struct `Read

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, there: RemoteSlice) -> Result<()> {
    qp.post(Write::new(here.clone(), there).inline())?;
    let read = Read::new(there, here);
    let read = read.inline(); //~ BAD
    qp.post(read)
}
