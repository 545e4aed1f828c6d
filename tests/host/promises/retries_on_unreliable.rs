// SPDX-License-Identifier: GPL-2.0
//! What is not acknowledged is not repeated.
//@ error E0599: no method named `retry_cnt` found for struct `QpBuilder<Uc>`

pub fn promise(pd: &Pd, cq: &Cq) -> Result<()> {
    pd.qp_builder::<Rc>(cq).retry_cnt(Retries::DEFAULT).build()?;
    let uc = pd.qp_builder::<Uc>(cq);
    let uc = uc.retry_cnt(Retries::DEFAULT); //~ BAD
    uc.build()?;
    Ok(())
}
