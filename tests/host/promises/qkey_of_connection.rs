// SPDX-License-Identifier: GPL-2.0
//! A connection has no Q_Key.
//@ error E0599: no method named `qkey` found for struct `QpBuilder<Rc>`

use rust_ulp::*;

pub fn promise(pd: &Pd, cq: &Cq) -> Result<()> {
    pd.create_qp::<Ud>(cq).qkey(1).build()?;
    let rc = pd.create_qp::<Rc>(cq);
    let rc = rc.qkey(1); //~ BAD
    rc.build()?;
    Ok(())
}
