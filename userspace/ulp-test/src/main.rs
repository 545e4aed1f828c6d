// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests in the VM run: cases against `/dev/rust_ulp` as it stands in `rust_ulp.h`.
//!
//! `abi` makes every command wrong in every way, by system calls of its own, and `uring` issues
//! requests by io_uring; `fuzz` does all of it at random, `load` until it is stopped; `api`, `rights` and
//! `write-sizes` go through the crate. Each case is a line, `ok NAME` or `not ok NAME - WHY`.

mod api;
mod cases;
mod file;
mod fuzz;
mod hosts;
mod load;
mod report;
mod rights;
mod sizes;
mod sys;
mod uring;

use report::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut report = Report::default();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fuzz", ref options @ ..] => return fuzz::run(&mut report, options),
        ["abi"] => cases::run(&mut report),
        ["api"] => api::run(&mut report),
        ["rights"] => rights::run(&mut report),
        ["write-sizes"] => sizes::run(&mut report),
        ["uring"] => uring::suite(&mut report),
        ["uring", what] => uring::part(&mut report, what),
        ["load", ref rest @ ..] => return load::run(rest),
        _ => {
            eprintln!(
                "usage: ulp-test abi|api|rights|write-sizes|uring [PART]|fuzz [OPTION...]|load [SEED]"
            );
            return ExitCode::from(2);
        }
    }
    report.status()
}
