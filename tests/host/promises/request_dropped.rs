// SPDX-License-Identifier: GPL-2.0
//! A request that nobody posts is a mistake.
//@ error unused_must_use: a request does nothing before it is posted

#![deny(unused_must_use)]

use rust_ulp::error::Result;
use rust_ulp::qp::Rc;
use rust_ulp::wr::Send;
use rust_ulp::*;

pub fn promise(qp: &Qp<Rc>, src: LocalSlice) -> Result<()> {
    Send::new(src.clone()); //~ BAD
    qp.post(Send::new(src))
}
