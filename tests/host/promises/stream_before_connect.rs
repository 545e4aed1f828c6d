// SPDX-License-Identifier: GPL-2.0
//! A stream begins when its queue pair is connected.
//@ error E0308: mismatched types

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
