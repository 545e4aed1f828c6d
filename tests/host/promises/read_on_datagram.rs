// SPDX-License-Identifier: GPL-2.0
//! RDMA goes over connections.
//@ error E0277: Post<'_, Ud>` is not satisfied

pub fn promise(rc: &Qp<Rc>, ud: &Qp<Ud>, src: RemoteSlice, dst: LocalSlice) -> Result<()> {
    rc.post(Read::new(src, dst.clone()))?;
    ud.post_recv(Recv::new(dst.clone()))?;
    ud.post(Read::new(src, dst))?; //~ BAD
    Ok(())
}
