// SPDX-License-Identifier: GPL-2.0
//! Nor is this side's memory a peer's, before it was granted.
//@ error E0308: expected `RemoteSlice`, found `LocalSlice<'_>`

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, grant: &Grant) -> Result<()> {
    qp.post(Write::new(here.clone(), here.clone()))?; //~ BAD
    qp.post(Write::new(here, grant.remote()))
}
