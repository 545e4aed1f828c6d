// SPDX-License-Identifier: GPL-2.0
//! A connection needs a peer before it is ready.
//@ error E0599: no method named `ready` found for struct `Qp<Uc, Init>`

pub fn promise(uc: PreparedQp<Uc>, ud: PreparedQp<Ud>) -> Result<()> {
    ud.ready()?;
    uc.ready()?; //~ BAD
    drop(uc);
    Ok(())
}
