// SPDX-License-Identifier: GPL-2.0

//! The ABI, the decoder of its requests, and the order of its events. The host tests compile these
//! files too.

#[allow(dead_code, unreachable_pub)]
pub(crate) mod abi;
#[allow(dead_code)]
pub(crate) mod decode;
mod event;
