// SPDX-License-Identifier: GPL-2.0
//! The connection manager makes reliable connections.
//@ error E0599: no method named `connect_cm` found for struct `Qp<Uc, Init>`

pub fn promise(rc: PreparedQp<Rc>, uc: PreparedQp<Uc>, at: std::net::SocketAddr) -> Result<()> {
    rc.connect_cm(at, &cm::ConnectOptions::new())?;
    uc.connect_cm(at, &cm::ConnectOptions::new())?; //~ BAD
    drop(uc);
    Ok(())
}
