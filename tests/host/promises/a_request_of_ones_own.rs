// SPDX-License-Identifier: GPL-2.0
//! What can be posted is this crate's to say.
//@ error E0277: Sealed` is not satisfied

pub struct Mine;

impl From<Mine> for Request<'static> {
    fn from(_: Mine) -> Self {
        Send::empty().into()
    }
}

impl AnyRequest<'static> for Mine { fn tracked(self, _: u64) -> Self { self } } //~ BAD
impl Post<'static, Rc> for Mine {} //~ BAD

pub fn promise() -> Request<'static> {
    Mine.into()
}
