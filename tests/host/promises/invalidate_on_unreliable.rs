// SPDX-License-Identifier: GPL-2.0
//! A key is taken away over a reliable connection.
//@ error E0277: Post<'_, Uc>` is not satisfied

pub fn promise(rc: &Qp<Rc>, uc: &Qp<Uc>, grant: RemoteSlice) -> Result<()> {
    rc.post(Send::empty().invalidate(grant))?;
    uc.post(Send::empty().invalidate(grant))?; //~ BAD
    Ok(())
}
