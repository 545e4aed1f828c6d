// SPDX-License-Identifier: GPL-2.0
//! A queue pair that is not connected has no other end.
//@ error E0599: no method named `peer` found for struct `Qp<Rc, Init>`

pub fn promise(prepared: PreparedQp<Rc>, peer: Endpoint) -> Result<()> {
    println!("{}", prepared.peer()); //~ BAD
    println!("{}", prepared.connect(peer)?.peer());
    Ok(())
}
