// SPDX-License-Identifier: GPL-2.0
//! What is received comes into local memory.
//@ error E0308: expected `LocalSlice<'_>`, found `RemoteSlice`

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::Recv;
use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, there: RemoteSlice) -> Result<()> {
    qp.post_recv(Recv::new(here))?;
    qp.post_recv(Recv::new(there))?; //~ BAD
    drop(there);
    Ok(())
}
