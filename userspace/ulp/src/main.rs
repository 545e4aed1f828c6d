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

mod allreduce;
mod bench;
mod diagnose;
mod generate;
mod kv;
mod netlink;
mod output;
mod pingpong;
mod rping;
mod show;
mod steps;
mod system;

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
    /// Lists the RDMA devices, their ports and what they can do.
    Devices(show::Devices),
    /// Lists the GIDs of the ports, and says which one is used and why.
    Gids(show::Gids),
    /// Prints what happens on a device as it happens, until Ctrl-C.
    Events(show::Events),
    /// Prints a device's counters, and what those that tell of trouble mean.
    Counters(show::Counters),
    /// Lists the queue pairs of all programs, with their states.
    Qp(show::Qps),
    /// Finds what is wrong with this host, or between it and a peer, and says how to mend it.
    Diagnose(diagnose::Diagnose),
    /// Makes a connection step by step and says what each means; or makes a classic mistake.
    Steps(steps::Steps),
    /// The other end of ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong, or of itself.
    Pingpong(pingpong::Pingpong),
    /// Either end of rping.
    Rping(rping::Rping),
    /// A key-value store in memory that is read and written from afar.
    Kv(kv::Kv),
    /// Adds up numbers of several hosts, such that each has the sums: a ring all-reduce, beside the same over TCP.
    #[command(name = "allreduce")]
    AllReduce(allreduce::AllReduce),
    /// Measures latency, bandwidth and rate, over this device and over libibverbs.
    Bench(bench::Bench),
    /// Writes the manual pages and the completions of all subcommands.
    #[command(hide = true)]
    Generate(generate::Generate),
    /// Prints what completes these commands in a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ulp", &mut text);
    output::print(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    // Clap ends with status 2 for bad arguments, with 0 after --help.
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Devices(devices) => devices.run(),
        Command::Gids(gids) => gids.run(),
        Command::Events(events) => events.run(),
        Command::Counters(counters) => counters.run(),
        Command::Qp(qps) => qps.run(),
        Command::Diagnose(diagnose) => diagnose.run(),
        Command::Steps(steps) => steps.run(),
        Command::Pingpong(pingpong) => pingpong.run(),
        Command::Rping(rping) => rping.run(),
        Command::Kv(kv) => kv.run(),
        Command::AllReduce(allreduce) => allreduce.run(),
        Command::Bench(bench) => bench.run(),
        Command::Generate(generate) => generate.run(Cli::command()),
        Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(code) => code,
        Err(error) if error.is::<output::Usage>() => {
            eprintln!("ulp: {error}");
            ExitCode::from(2)
        }
        Err(error) if output::is_closed(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ulp: {}", output::causes(&error));
            ExitCode::FAILURE
        }
    }
}
