// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests in the VM run: cases against `/dev/rust_ulp` as it stands in `rust_ulp.h`.
//!
//! `abi` makes every command wrong in every way, by system calls of its own, and `uring` issues
//! requests by io_uring; `fuzz` does all of it at random, `load` until it is stopped; `api` and
//! `rights` go through the crate. `revoking-peer` and `broken-peer` are careless peers of the tool
//! `ulp`; `tasks` drops futures. All but these and `load` print KTAP.

/// The values that the header allows for each member that the kernel reads, and the errnos of each
/// command, as `build.rs` has them made.
mod annotations {
    include!(concat!(env!("OUT_DIR"), "/annotations.rs"));
}
mod api;
mod cases;
#[allow(dead_code)] // what only the tool calls
#[path = "../../ulp/src/diagnose/cause.rs"]
mod cause;
mod file;
mod fuzz;
mod hooks;
mod hosts;
mod load;
mod report;
mod rights;
mod sys;
mod tasks;
mod uring;

use clap::Parser;
use report::Report;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(about = "What the tests in the VM run")]
enum Command {
    /// Makes every command wrong in every way, by system calls of its own.
    Abi,
    /// Goes through the crate.
    Api,
    /// Tries what each right of a grant allows.
    Rights,
    /// Issues requests by io_uring.
    Uring {
        /// Only this part.
        part: Option<String>,
    },
    /// Does everything that a process can do to the device, at random.
    Fuzz(fuzz::Options),
    /// Keeps the device busy until it is stopped.
    Load {
        #[arg(default_value_t = 1)]
        seed: u64,
        /// A file of the device is handed to this process.
        #[arg(long)]
        passed: bool,
    },
    /// Allocates memory of each NUMA node.
    Nodes {
        /// The number of nodes.
        count: u16,
    },
    /// One end of a stream between tasks that drop futures all the time.
    Tasks {
        /// `tokio` or `smol`, then `listen ADDR:PORT` or `ADDR:PORT`.
        words: Vec<String>,
    },
    #[command(flatten)]
    Hooks(hooks::Command),
}

fn main() -> ExitCode {
    let part: fn(&mut Report) = match Command::parse() {
        Command::Fuzz(options) => return fuzz::run(&options),
        Command::Load { seed, passed } => return load::run(seed, passed),
        Command::Nodes { count } => {
            let mut report = Report::new();
            api::nodes(&mut report, count);
            return report.status();
        }
        Command::Tasks { words } => return tasks::run(&words),
        Command::Hooks(command) => return hooks::run(command),
        Command::Uring { part: Some(part) } => {
            let mut report = Report::new();
            uring::part(&mut report, &part);
            return report.status();
        }
        Command::Abi => cases::run,
        Command::Api => api::run,
        Command::Rights => rights::run,
        Command::Uring { part: None } => uring::suite,
    };
    let mut report = Report::new();
    part(&mut report);
    report.status()
}
