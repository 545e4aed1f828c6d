// SPDX-License-Identifier: GPL-2.0

//! Tells the tests which compiler they are built with, and gives them a folder.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|e| panic!("Cargo sets RUSTC: {e}"));
    println!("cargo:rustc-env=HOST_RUSTC={rustc}");
}
