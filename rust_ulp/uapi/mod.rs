// SPDX-License-Identifier: GPL-2.0

//! The ABI, as the module uses it.

#[allow(dead_code, unreachable_pub)]
pub(crate) mod abi;
#[allow(dead_code, unreachable_pub)]
pub(crate) mod ring;
