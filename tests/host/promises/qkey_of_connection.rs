// SPDX-License-Identifier: GPL-2.0
//! A connection has no Q_Key.
//@ error E0599: no method named `qkey` found for struct `QpBuilder<Rc>`

pub fn promise(pd: &Pd, cq: &Cq) -> Result<()> {
    pd.qp_builder::<Ud>(cq).qkey(1).build()?;
    let rc = pd.qp_builder::<Rc>(cq);
    let rc = rc.qkey(1); //~ BAD
    rc.build()?;
    Ok(())
}
