// SPDX-License-Identifier: GPL-2.0
//! Nor by way of TCP.
//@ error E0599: the method `connect_tcp` exists for struct `Qp<Ud, Init>`, but its trait bounds

pub fn promise(rc: PreparedQp<Rc>, ud: PreparedQp<Ud>) -> Result<()> {
    rc.connect_tcp("192.0.2.1:1", &[])?;
    ud.connect_tcp("192.0.2.1:1", &[])?; //~ BAD
    drop(ud);
    Ok(())
}
