// SPDX-License-Identifier: GPL-2.0
//! What a queue pair that is not connected takes, is a receive.
//@ error E0308: expected `Recv<'_>`, found `Send<'_>`

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::{Recv, Send};
use rust_ulp::*;

pub fn promise(qp: PreparedQp<Rc>, src: LocalSlice) -> Result<()> {
    qp.post_recv(Recv::new(src.clone()))?;
    qp.post_recv(Send::new(src))?; //~ BAD
    Ok(())
}
