// SPDX-License-Identifier: GPL-2.0
//! Nobody's memory is reached by datagrams.
//@ error E0277: Post<'_, Ud>` is not satisfied

pub fn promise(uc: &Qp<Uc>, ud: &Qp<Ud>, src: LocalSlice, dst: RemoteSlice) -> Result<()> {
    uc.post(Write::new(src.clone(), dst))?;
    let mut batch = ud.batch();
    batch.push(Recv::new(src.clone()))?;
    batch.push(Write::new(src, dst))?; //~ BAD
    Ok(())
}
