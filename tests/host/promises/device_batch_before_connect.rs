// SPDX-License-Identifier: GPL-2.0
//! A batch over queue pairs takes no send for one that is not connected.
//@ error E0277: RequestFor<'_, &Qp<Rc, Init>>` is not satisfied

pub fn promise(dev: &Device, qp: &PreparedQp<Rc>, src: LocalSlice) -> Result<()> {
    let mut batch = dev.batch();
    batch.push(qp, Recv::new(src.clone()))?;
    batch.push(qp, Send::new(src))?; //~ BAD
    batch.submit()?;
    Ok(())
}
