// SPDX-License-Identifier: GPL-2.0
//! Nobody's memory is reached by datagrams: there are no rights to give.
//@ error E0599: the method `access` exists for struct `QpBuilder<Ud>`, but its trait bounds

pub fn promise(pd: &Pd, cq: &Cq) -> Result<()> {
    pd.qp_builder::<Uc>(cq).access(Access::REMOTE_WRITE).build()?;
    let ud = pd.qp_builder::<Ud>(cq).qkey(1);
    let ud = ud.access(Access::REMOTE_WRITE); //~ BAD
    ud.build()?;
    Ok(())
}
