// SPDX-License-Identifier: GPL-2.0
//! A peer's memory is not this side's.
//@ error E0308: expected `LocalSlice<'_>`, found `RemoteSlice`

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::Write;
use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, there: RemoteSlice) -> Result<()> {
    qp.post(Write::new(there, there))?; //~ BAD
    qp.post(Write::new(here, there))
}
