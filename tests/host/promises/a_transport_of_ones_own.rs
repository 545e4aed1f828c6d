// SPDX-License-Identifier: GPL-2.0
//! There are three transports.
//@ error E0277: Sealed` is not satisfied

use rust_ulp::qp::{Rc, Transport};
use rust_ulp::*;

#[derive(Debug)]
pub enum Mine {}

impl Transport for Mine { //~ BAD
    const QP_TYPE: u32 = 2; //~ BAD
} //~ BAD

pub fn promise() -> u32 {
    <Rc as Transport>::QP_TYPE
}
