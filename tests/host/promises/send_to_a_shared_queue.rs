// SPDX-License-Identifier: GPL-2.0
//! A shared receive queue takes receives.
//@ error E0277: RequestFor<'_, &Srq>` is not satisfied

pub fn promise(device: &Device, srq: &Srq) -> Result<()> {
    let mut batch = device.batch();
    batch.push(srq, Recv::empty())?;
    batch.push(srq, Send::empty())?; //~ BAD
    Ok(())
}
