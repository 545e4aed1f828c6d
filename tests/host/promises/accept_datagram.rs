// SPDX-License-Identifier: GPL-2.0
//! A peer that connects is given a connected queue pair.
//@ error E0277: Connected` is not satisfied

pub fn promise(peers: [Incoming; 2], rc: PreparedQp<Rc>, ud: PreparedQp<Ud>) -> Result<()> {
    let [one, other] = peers;
    drop((&other, &ud));
    one.accept(rc, &[])?;
    other.accept(ud, &[])?; //~ BAD
    Ok(())
}
