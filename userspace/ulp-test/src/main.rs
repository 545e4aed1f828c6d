// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests in the VM run: cases against `/dev/rust_ulp` as it stands in `rust_ulp.h`.
//!
//! `abi` makes every command wrong in every way, by system calls of its own, and `uring` issues
//! requests by io_uring; `fuzz` does all of it at random, `load` until it is stopped; `api`,
//! `rights` and `write-sizes` go through the crate. `kv` and `revoking-peer` are careless and
//! hostile peers of the tool `ulp`. All but these and `load` print KTAP.

mod api;
mod cases;
mod file;
mod fuzz;
mod hooks;
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
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let part: fn(&mut Report, &str) = match args[..] {
        ["fuzz", ref options @ ..] => return fuzz::run(options),
        ["load", ref rest @ ..] => return load::run(rest),
        ["kv" | "revoking-peer", ..] => return hooks::run(),
        ["abi"] => |report, _| cases::run(report),
        ["api"] => |report, _| api::run(report),
        ["rights"] => |report, _| rights::run(report),
        ["write-sizes"] => |report, _| sizes::run(report),
        ["uring"] => |report, _| uring::suite(report),
        ["uring", _] => uring::part,
        _ => {
            eprintln!(
                "usage: ulp-test abi|api|rights|write-sizes|uring [PART]|fuzz [OPTION...]|load [SEED]|kv|revoking-peer"
            );
            return ExitCode::from(2);
        }
    };
    let mut report = Report::new();
    part(&mut report, args.get(1).copied().unwrap_or_default());
    report.status()
}
