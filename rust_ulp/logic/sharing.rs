// SPDX-License-Identifier: GPL-2.0

//! Who has the reference that the requests of a run share.
//!
//! A queue that completes in order posts a run at a time, and the last request of a run has the
//! reference for all of them. A request that shares one shares that of the next request that has
//! one. When a request that has one is canceled, [`heir`] says which older request is to have it from
//! then on.

use super::order::{
    Link,
    Order, //
};
use core::ops::DerefMut;

/// The most requests of a run.
#[allow(unreachable_pub)]
pub const MAX_RUN: u32 = 64;

/// What the request in a posted slot has of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub)]
pub enum Share {
    /// It has none, and shares none.
    None,
    /// It has one.
    Own,
    /// It shares that of the next request that has one.
    Next,
    /// It was canceled.
    Canceled,
}

/// Returns the slot whose reference the request in the posted slot `slot` shares, and how many places
/// behind it that is.
#[allow(unreachable_pub)]
pub fn holder<L: DerefMut<Target = [Link]>>(
    order: &Order<L>,
    slot: u32,
    share: impl Fn(u32) -> Share,
) -> Option<(u32, u32)> {
    let mut at = slot;
    for places in 0..MAX_RUN {
        if share(at) == Share::Own {
            return Some((at, places));
        }
        if order.last() == Some(at) {
            break;
        }
        at = order.next(at);
    }
    None
}

/// Returns the newest slot that shares the reference of the posted slot `slot`, and how many places
/// before it that is. No slot between them needs the reference: their requests were canceled.
#[allow(unreachable_pub)]
pub fn heir<L: DerefMut<Target = [Link]>>(
    order: &Order<L>,
    slot: u32,
    share: impl Fn(u32) -> Share,
) -> Option<(u32, u32)> {
    let mut at = slot;
    for places in 1..MAX_RUN {
        if order.first() == Some(at) {
            break;
        }
        at = order.prev(at);
        match share(at) {
            Share::Next => return Some((at, places)),
            Share::Canceled => (),
            Share::None | Share::Own => break,
        }
    }
    None
}
