// SPDX-License-Identifier: GPL-2.0

//! The ABI, and the code that module, crate and host tests share for it.

#[allow(dead_code, unreachable_pub)]
pub(crate) mod abi;
#[allow(dead_code)]
pub(crate) mod decode;
#[allow(dead_code, unreachable_pub)]
pub(crate) mod ring;
