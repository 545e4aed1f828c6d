// SPDX-License-Identifier: GPL-2.0
//! Nobody keeps a copy of a queue pair from before it was connected.
//@ error E0599: no method named `clone` found for struct `Qp`

pub fn promise(prepared: PreparedQp<Rc>, peer: Endpoint) -> Result<()> {
    let _ = prepared.clone(); //~ BAD
    let qp = prepared.connect(peer)?;
    drop(qp.clone());
    Ok(())
}
