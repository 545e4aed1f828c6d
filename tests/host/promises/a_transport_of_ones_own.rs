// SPDX-License-Identifier: GPL-2.0
//! There are three transports.
//@ error E0277: Sealed` is not satisfied

#[derive(Debug)]
pub enum Mine {}

impl Transport for Mine { //~ BAD
    const QP_TYPE: u32 = 2; //~ BAD
} //~ BAD

pub fn promise() -> u32 {
    <Rc as Transport>::QP_TYPE
}
