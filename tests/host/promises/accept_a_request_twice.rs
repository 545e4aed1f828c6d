// SPDX-License-Identifier: GPL-2.0
//! A request is accepted or rejected, and once.
//@ error E0382: use of moved value: `request`

pub fn promise(request: cm::Request, qp: PreparedQp<Rc>) -> Result<()> {
    request.accept(qp, &cm::AcceptOptions::new())?;
    request.reject(b"")?; //~ BAD
    Ok(())
}
