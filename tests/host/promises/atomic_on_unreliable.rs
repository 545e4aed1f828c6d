// SPDX-License-Identifier: GPL-2.0
//! An atomic operation needs a reliable connection.
//@ error E0277: Post<'_, Uc>` is not satisfied

pub fn promise(rc: &Qp<Rc>, uc: &Qp<Uc>, at: RemoteSlice, dst: LocalSlice) -> Result<()> {
    rc.post(FetchAdd::new(at, 1, dst.clone()))?;
    uc.post(FetchAdd::new(at, 1, dst))?; //~ BAD
    Ok(())
}
