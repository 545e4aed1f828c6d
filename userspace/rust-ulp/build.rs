// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tells the tests that the sources of rust-ulp-extra are here: `cfg(extra)`.
//!
//! The package lacks both this file (`exclude` in Cargo.toml) and those sources, and its tests do
//! without them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=extra");
}
