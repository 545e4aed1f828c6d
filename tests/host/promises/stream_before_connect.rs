// SPDX-License-Identifier: GPL-2.0
//! A stream begins when its queue pair is connected.
//@ error E0308: mismatched types

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::*;
use rust_ulp_extra::stream;

pub fn promise(
    sender: stream::PreparedSender,
    prepared: PreparedQp<Rc>,
    peer: Endpoint,
    ring: RemoteSlice,
) -> Result<()> {
    let _ = sender.start(prepared, ring)?; //~ BAD
    let qp = prepared.connect(peer)?;
    let _ = sender.start(qp, ring)?;
    Ok(())
}
