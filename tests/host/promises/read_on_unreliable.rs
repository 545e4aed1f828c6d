// SPDX-License-Identifier: GPL-2.0
//! A read needs a reliable connection: there is nobody to answer on an unreliable one.
//@ error E0277: Post<'_, Uc>` is not satisfied

pub fn promise(uc: &Qp<Uc>, remote: RemoteSlice, local: LocalSlice) -> Result<()> {
    uc.post(Write::new(local.clone(), remote))?;
    uc.post(Send::new(local.clone()))?;
    uc.post(Read::new(remote, local))?; //~ BAD
    Ok(())
}
