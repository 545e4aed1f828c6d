// SPDX-License-Identifier: GPL-2.0
//! A peer's memory is not this side's.
//@ error E0308: expected `LocalSlice<'_>`, found `RemoteSlice`

pub fn promise(qp: &Qp<Rc>, here: LocalSlice, there: RemoteSlice) -> Result<()> {
    qp.post(Write::new(there, there))?; //~ BAD
    qp.post(Write::new(here, there))
}
