// SPDX-License-Identifier: GPL-2.0
//! A request that nobody posts is a mistake.
//@ error unused_must_use: a request does nothing before it is posted

#![deny(unused_must_use)]

pub fn promise(qp: &Qp<Rc>, src: LocalSlice) -> Result<()> {
    Send::new(src.clone()); //~ BAD
    qp.post(Send::new(src))
}
