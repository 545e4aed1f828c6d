// SPDX-License-Identifier: MIT OR Apache-2.0
#![deny(missing_docs, unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

//! A key-value store over RDMA, as a demonstration: docs/kv.md has its protocol and why it is right.
//!
//! - [`layout`]: the server's memory
//! - [`table`]: lookups and changes, for whoever can read and change that memory
//! - [`server`], [`client`], [`wire`]: both ends, and the messages between them
//! - [`tcp`]: the same store over TCP, to compare with; [`bench`] measures both
//! - [`history`]: the check that a history is linearizable; [`worker`] makes histories

mod bench;
mod client;
#[path = "../common.rs"]
mod common;
mod error;
mod history;
mod layout;
mod server;
mod table;
mod tcp;
mod wire;
mod worker;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use client::{Faults, Store};
use common::{address, interrupts};
use layout::Mode;
use server::{Options, Server};
use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use wire::Change;

/// TCP port of servers.
const PORT: u16 = 7170;

/// Parses a number of bytes, such as 65536, 64K, 64KiB, 1MiB or 1GiB.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text.get(digits.len()..).unwrap_or_default() {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        unit => return Err(format!("unknown unit {unit:?}; use KiB, MiB or GiB")),
    };
    let n: u64 = digits.parse().map_err(|error| format!("{error}"))?;
    n.checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".to_owned())
}

/// A key-value store whose clients read the server's memory, and may change it themselves.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a table until Ctrl-C.
    Serve(Serve),
    /// Sets the value of a key.
    Put {
        /// The key, 1 to 255 bytes.
        key: String,
        /// The value, at most 64 KiB; `-` reads it from the standard input.
        value: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Prints the value of a key as it is; those of several keys a line each.
    Get {
        /// The keys.
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Measures a mix of gets and puts.
    Bench(bench::Bench),
    /// Makes random operations and writes them down, for `check`.
    Worker(worker::Worker),
    /// Tells whether a correct store can have done what workers wrote down.
    Check(worker::Check),
    /// Fills a store, verifies every value, and counts round trips.
    Fill(worker::Fill),
}

#[derive(Debug, Args)]
struct Serve {
    /// Size of the memory, such as 64MiB; at most 1GiB.
    #[arg(short, long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    memory: u64,
    /// Number of keys that there are slots for [default: one for every 512 bytes of memory].
    #[arg(short, long, value_name = "NUMBER")]
    keys: Option<u64>,
    /// Size of the longest value, at most 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = size)]
    max_value: u64,
    /// Let clients change the memory themselves, by Write and compare-and-swap.
    #[arg(long)]
    one_sided: bool,
    /// Listen at this address only.
    #[arg(long, value_name = "ADDRESS", default_value = "::")]
    listen: String,
    /// TCP port.
    #[arg(short, long, default_value_t = PORT)]
    port: u16,
    /// RDMA device [default: the first whose interface is in this network namespace].
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Serve a store over TCP instead, for comparison.
    #[arg(long, conflicts_with = "one_sided")]
    tcp: bool,
    /// Overwrite all records with random bytes, as a hostile server might.
    #[arg(long, hide = true)]
    scribble: bool,
}

/// The options of all clients.
#[derive(Clone, Debug, Args)]
struct ClientArgs {
    /// The servers, HOST or HOST:PORT. All clients must name the same ones by the same words.
    #[arg(
        short,
        long,
        required = true,
        value_delimiter = ',',
        value_name = "HOST,..."
    )]
    servers: Vec<String>,
    /// RDMA device [default: the first whose interface is in this network namespace].
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

impl ClientArgs {
    fn connect(&self, faults: Faults) -> Result<Store> {
        let names: Vec<_> = self
            .servers
            .iter()
            .map(|host| address(host, PORT))
            .collect();
        Ok(Store::connect(&names, self.device.as_deref(), faults)?)
    }

    /// Makes one change. Returns whether the key has a value then, or had one before a delete.
    fn change(&self, key: &str, value: Option<&[u8]>) -> Result<bool> {
        let key = key.as_bytes();
        let done = self
            .connect(Faults::default())?
            .change(&[Change { key, value }])
            .pop();
        Ok(done.context("a change has no result")??)
    }
}

impl Serve {
    fn run(&self, stop: &AtomicBool) -> Result<()> {
        let listen = address(&self.listen, self.port);
        if self.tcp {
            return tcp::run(&listen, stop).with_context(|| format!("listening at {listen}"));
        }
        let options = Options {
            memory: self.memory,
            keys: self.keys.unwrap_or(self.memory / 512),
            max_value: u32::try_from(self.max_value).unwrap_or(u32::MAX),
            device: self.device.clone(),
            mode: match self.one_sided {
                true => Mode::OneSided,
                false => Mode::Message,
            },
        };
        let server = Server::new(&listen, &options)?;
        eprintln!("{}", server.describe()?);
        std::thread::scope(|scope| {
            if self.scribble {
                scope.spawn(|| server.scribble(stop));
            }
            server.run(stop)
        })?;
        eprintln!("{}", server.summary()?);
        Ok(())
    }
}

/// Returns the exit status of an answer: 0 for yes, 1 for no.
fn answer(yes: bool, key: &str) -> ExitCode {
    if !yes {
        eprintln!("kv: there is no key {key:?}");
    }
    ExitCode::from(u8::from(!yes))
}

/// Prints values; those of several keys with line ends.
fn get(keys: &[String], client: &ClientArgs) -> Result<ExitCode> {
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut status = ExitCode::SUCCESS;
    let mut text = Vec::new();
    for (key, value) in keys
        .iter()
        .zip(client.connect(Faults::default())?.get(&names))
    {
        match value? {
            Some(value) => text.extend(value),
            None => status = answer(false, key),
        }
        if keys.len() > 1 {
            text.push(b'\n');
        }
    }
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(status)
}

fn run(command: Command) -> Result<ExitCode> {
    let stop = interrupts()?;
    match command {
        Command::Serve(serve) => serve.run(&stop)?,
        Command::Put { key, value, client } => {
            let mut bytes = value.into_bytes();
            if bytes == b"-" {
                bytes.clear();
                // One byte more than the limit, so that a longer value is refused.
                let most = layout::MAX_VALUE as u64 + 1;
                let input = std::io::stdin().take(most).read_to_end(&mut bytes);
                input.context("reading the value")?;
            }
            client.change(&key, Some(&bytes))?;
        }
        Command::Get { keys, client } => return get(&keys, &client),
        Command::Delete { key, client } => return Ok(answer(client.change(&key, None)?, &key)),
        Command::Bench(bench) => return bench.run(&stop),
        Command::Worker(worker) => return worker.run(&stop),
        Command::Check(check) => return check.run(),
        Command::Fill(fill) => return fill.run(),
    }
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    common::ended("kv", run(Cli::parse().command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_worker_that_breaks_its_connection_after_no_operation_is_refused() {
        let parse = |breaks: &str| {
            Cli::try_parse_from(format!("kv worker -s host --id 1 --breaks {breaks}").split(' '))
        };
        assert!(parse("1").is_ok());
        let error = parse("0").unwrap_err().to_string();
        assert!(error.contains("0 is not in 1.."), "{error}");
    }

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, want) in [
            ("7", 7),
            ("64K", 65_536),
            ("3MiB", 3 << 20),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(size(text), Ok(want), "{text}");
        }
        for bad in ["", "-1", "GiB", "1TiB", "99999999999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
