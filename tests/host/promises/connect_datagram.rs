// SPDX-License-Identifier: GPL-2.0
//! A datagram queue pair is connected to nobody.
//@ error E0599: the method `connect` exists for struct `Qp<Ud, Init>`, but its trait bounds

pub fn promise(pd: &Pd, cq: &Cq, peer: Endpoint) -> Result<()> {
    let qp = pd.qp_builder::<Rc>(cq).build()?;
    qp.connect(peer)?;
    let qp = pd.qp_builder::<Ud>(cq).build()?;
    qp.connect(peer)?; //~ BAD
    drop(qp);
    Ok(())
}
