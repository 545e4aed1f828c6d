// SPDX-License-Identifier: GPL-2.0
//! A request is accepted or rejected, and once.
//@ error E0382: use of moved value: `request`

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::*;

pub fn promise(request: cm::Request, qp: PreparedQp<Rc>) -> Result<()> {
    request.accept(qp, &cm::AcceptOptions::new())?;
    request.reject(b"")?; //~ BAD
    Ok(())
}
