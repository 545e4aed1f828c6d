// SPDX-License-Identifier: MIT OR Apache-2.0

//! Has the C compiler's front end say how large the types of libibverbs and librdmacm are here.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=sizes.h");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo names the directory"));
    bindgen::Builder::default()
        .header("sizes.h")
        .allowlist_type("sizes")
        .prepend_enum_name(false)
        .generate()
        .expect("the headers of libibverbs and librdmacm")
        .write_to_file(out.join("sizes.rs"))
        .expect("the directory is there");
}
