// SPDX-License-Identifier: GPL-2.0
//! Over a connection there is one receiver, and no other can be named.
//@ error E0277: Post<'_, Rc>` is not satisfied

pub fn promise(rc: &Qp<Rc>, ud: &Qp<Ud>, to: &Destination) -> Result<()> {
    ud.post(SendTo::empty(to))?;
    rc.post(SendTo::empty(to))?; //~ BAD
    Ok(())
}
