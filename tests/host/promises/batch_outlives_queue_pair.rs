// SPDX-License-Identifier: GPL-2.0
//! A batch does not outlive its queue pair.
//@ error E0505: cannot move out of `qp` because it is borrowed

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::Recv;
use rust_ulp::*;

pub fn promise(qp: Qp<Rc>) -> Result<usize> {
    let mut batch = qp.batch();
    batch.push(Recv::empty())?;
    drop(qp); //~ BAD
    batch.submit()
}
