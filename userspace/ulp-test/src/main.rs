// SPDX-License-Identifier: GPL-2.0

//! What the tests in the VM run: cases against `/dev/rust_ulp` as it stands in `rust_ulp.h`.

fn main() -> std::process::ExitCode {
    eprintln!("usage: ulp-test abi|rights|write-sizes");
    std::process::ExitCode::from(2)
}
