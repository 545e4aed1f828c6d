// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
#![deny(unsafe_code)]

//! `ulp`: the command-line tool of rust_ulp.
//!
//! Results go to the standard output, progress and messages to the standard error. The exit status is 0
//! if what was asked for was done, 1 if it failed or was interrupted, 2 for arguments that make no
//! sense.

mod bench;
mod generate;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// RDMA by /dev/rust_ulp: tools.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures latency, bandwidth and rate, over this device and over libibverbs.
    Bench(bench::Bench),
    /// Writes the manual pages and the completions of all subcommands.
    #[command(hide = true)]
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    // Clap ends with status 2 for bad arguments, with 0 after --help.
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Bench(bench) => bench.run(),
        Command::Generate(generate) => generate.run(Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) if error.is::<bench::Usage>() => {
            eprintln!("ulp: {error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("ulp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
