// SPDX-License-Identifier: MIT OR Apache-2.0

//! Has scripts/abi write what the header says of each member, for the tests of bad input and the fuzzer.

use std::path::PathBuf;
use std::process::Command;

const ABI: &str = "../../scripts/abi";
const HEADER: &str = "../../rust_ulp/uapi/rust_ulp.h";

fn main() {
    for path in ["build.rs", ABI, HEADER] {
        println!("cargo::rerun-if-changed={path}");
    }
    let output = Command::new(ABI).arg("--annotations").output();
    let output = output.unwrap_or_else(|e| panic!("{ABI}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{ABI}: {said}");
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    std::fs::write(folder.join("annotations.rs"), output.stdout).expect("writing annotations.rs");
}
