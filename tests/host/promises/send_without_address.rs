// SPDX-License-Identifier: GPL-2.0
//! A datagram says who it is for.
//@ error E0277: Post<'_, Ud>` is not satisfied

pub fn promise(ud: &Qp<Ud>, to: &Destination, src: LocalSlice) -> Result<()> {
    ud.post(SendTo::new(src.clone(), to))?;
    ud.post(Send::new(src))?; //~ BAD
    Ok(())
}
