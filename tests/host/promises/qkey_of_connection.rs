// SPDX-License-Identifier: GPL-2.0
//! A connection has no Q_Key.
//@ error E0599: no method named `qkey` found for struct `QpBuilder<Rc>`

use rust_ulp::error::Result;
use rust_ulp::qp::{Rc, Ud};
use rust_ulp::*;

pub fn promise(pd: &Pd, cq: &Cq) -> Result<()> {
    pd.qp_builder::<Ud>(cq).qkey(1).build()?;
    let rc = pd.qp_builder::<Rc>(cq);
    let rc = rc.qkey(1); //~ BAD
    rc.build()?;
    Ok(())
}
