// SPDX-License-Identifier: GPL-2.0
//! A batch is posted once.
//@ error E0382: use of moved value: `batch`

use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>) -> Result<()> {
    let batch = qp.batch();
    batch.submit()?;
    batch.submit()?; //~ BAD
    Ok(())
}
