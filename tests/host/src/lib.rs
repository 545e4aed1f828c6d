// SPDX-License-Identifier: GPL-2.0

//! Tests of what needs no kernel. The sources of the module that touch none of its API are compiled
//! here as they stand.
#![cfg(test)]

/// Called by `define.rs` once for each struct; `layout.rs` looks at the layout in its own way.
macro_rules! abi_check {
    ($($_:tt)*) => {};
}

#[path = "../../../rust_ulp/uapi/mod.rs"]
mod uapi;

#[path = "../../../rust_ulp/logic/mod.rs"]
#[allow(dead_code)]
mod logic;

mod chunks;
mod cq_model;
mod deadlines;
mod decode;
mod events;
mod handle;
mod latency;
mod layout;
mod mark;
mod order;
mod ring;
mod ring_model;
mod sharing;
mod sources;
mod unsignaled;

/// The root of the repository.
fn repository() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
