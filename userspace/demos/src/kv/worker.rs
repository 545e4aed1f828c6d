// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kv worker` makes random operations and writes down what it did and saw; `kv check` tells
//! whether a correct store can have done that; `kv fill` fills a store and verifies every value.

use crate::client::{Faults, Store};
use crate::error::Error;
use crate::history::{check, Operation, Outcome, Record};
use crate::wire::Change;
use crate::ClientArgs;
use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use nix::time::{clock_gettime, ClockId};
use rand::{rngs::SmallRng, RngExt, SeedableRng};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Arguments of `kv worker`.
#[derive(Debug, Args)]
pub struct Worker {
    #[command(flatten)]
    client: ClientArgs,
    /// The number of the client in its records, and the seed of its random numbers.
    #[arg(long)]
    id: u64,
    /// Operations.
    #[arg(long, default_value_t = 300)]
    ops: u64,
    /// Keys.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Bytes of the longest value.
    #[arg(long, default_value_t = 8192)]
    size: usize,
    /// Operations at a time, each of a client of its own in the records.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    depth: u64,
    /// Break the connection after every so many operations.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    breaks: Option<u64>,
    /// Stop for good within the change with this number, by a client that changes the memory itself.
    #[arg(long)]
    halt: Option<u64>,
    /// Read each record in two parts, with time for a change between them.
    #[arg(long)]
    stall: bool,
    /// Believe values without verification.
    #[arg(long)]
    unverified: bool,
}

/// Arguments of `kv check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The records of the workers.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Arguments of `kv fill`.
#[derive(Debug, Args)]
pub struct Fill {
    #[command(flatten)]
    client: ClientArgs,
    /// Bytes of each value.
    #[arg(long, default_value_t = 4096)]
    size: usize,
}

/// Returns a value that repeats a number, so that a mixture of two values is noticed.
fn fill(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Returns the number of a value, if the value is whole.
fn number(value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*value.first_chunk()?);
    (value == fill(number, value.len())).then_some(number)
}

impl Worker {
    /// Writes down the begin or the end of an operation, by one write: a test may kill this process.
    fn note(
        &self,
        of: u64,
        key: &str,
        begin: Option<Operation>,
        end: Option<Outcome>,
    ) -> Result<()> {
        let time = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64;
        let (client, key) = (self.id * 100 + of, key.to_owned());
        let record = Record {
            time,
            client,
            key,
            begin,
            end,
        };
        let line = serde_json::to_string(&record)? + "\n";
        Ok(std::io::stdout().write_all(line.as_bytes())?)
    }

    /// Runs it. The exit status is 1 if a value was not whole.
    ///
    /// # Errors
    ///
    /// No server is there at the begin.
    pub fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let faults = Faults {
            halt: self.halt,
            stall: self.stall,
            unverified: self.unverified,
        };
        let mut store = self.client.connect(faults)?;
        let mut random = SmallRng::seed_from_u64(self.id);
        let mut believed = 0u64;
        for first in (0..self.ops).step_by(self.depth as usize) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (mut gets, mut changes) = (Vec::new(), Vec::new());
            for n in first..self.ops.min(first + self.depth) {
                let (of, key) = (
                    n - first,
                    format!("key {}", random.random_range(0..self.keys)),
                );
                if self.breaks.is_some_and(|every| n % every == every - 1) {
                    store.break_link(key.as_bytes())?;
                }
                let new = (self.id << 32) | n;
                let operation = match random.random_range(0..10) {
                    0 => Operation::Delete,
                    1..=4 => Operation::Put(new),
                    _ => Operation::Get,
                };
                self.note(of, &key, Some(operation), None)?;
                match operation {
                    Operation::Get => gets.push((of, key)),
                    Operation::Delete => changes.push((of, key, None)),
                    Operation::Put(_) => {
                        let len = random.random_range(8..=self.size.max(8));
                        changes.push((of, key, Some(fill(new, len))));
                    }
                }
            }
            let keys: Vec<&[u8]> = gets.iter().map(|(_, key)| key.as_bytes()).collect();
            for ((of, key), got) in gets.iter().zip(store.get(&keys)) {
                let found = got.map(|value| {
                    Outcome::Found(value.map(|value| {
                        number(&value).unwrap_or_else(|| {
                            believed += 1;
                            u64::MAX
                        })
                    }))
                });
                let outcome = found.unwrap_or_else(|error| failed(key, &error));
                self.note(*of, key, None, Some(outcome))?;
            }
            let asked: Vec<Change<'_>> = changes
                .iter()
                .map(|(_, key, value)| Change {
                    key: key.as_bytes(),
                    value: value.as_deref(),
                })
                .collect();
            for ((of, key, value), done) in changes.iter().zip(store.change(&asked)) {
                let outcome = match (done, value) {
                    (Ok(_), Some(_)) => Outcome::Done,
                    (Ok(was), None) => Outcome::Deleted(was),
                    (Err(error), _) => failed(key, &error),
                };
                self.note(*of, key, None, Some(outcome))?;
            }
        }
        let stats = store.stats();
        eprintln!(
            "{} round trips, {} torn reads met, {believed} believed, {} reconnects",
            stats.round_trips, stats.torn, stats.reconnects
        );
        Ok(match believed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// Returns the outcome of an operation that failed, after a moment if its server is gone.
fn failed(key: &str, error: &Error) -> Outcome {
    eprintln!("{key}: {error}");
    if matches!(error, Error::Unreachable { .. } | Error::Gone { .. }) {
        // A server that is started again takes a while.
        std::thread::sleep(Duration::from_millis(50));
    }
    match error.is_unknown() {
        true => Outcome::Unknown,
        false => Outcome::Failed,
    }
}

impl Check {
    /// Runs it. The exit status is 1 if no correct store can have done that.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or there are no records.
    pub fn run(self) -> Result<ExitCode> {
        let mut history: Vec<Record> = Vec::new();
        for path in &self.files {
            let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
            for line in BufReader::new(file).lines() {
                // The last line of a client that was killed may be incomplete.
                history.extend(serde_json::from_str::<Record>(&line?).ok());
            }
        }
        ensure!(!history.is_empty(), "there are no records in these files");
        let count = match check(&history) {
            Ok(count) => count,
            Err(violation) => {
                eprintln!("kv: {violation}");
                return Ok(ExitCode::FAILURE);
            }
        };
        let unknown = history
            .iter()
            .filter(|record| record.end == Some(Outcome::Unknown))
            .count();
        println!("linearizable: {count} operations, {unknown} of unknown outcome");
        Ok(ExitCode::SUCCESS)
    }
}

/// Puts that `kv fill` makes at a time.
const AT_ONCE: u64 = 32;

impl Fill {
    fn verify(&self, store: &mut Store, count: u64) -> Result<u64> {
        let before = store.stats().round_trips;
        for first in (0..count).step_by(AT_ONCE as usize) {
            let keys: Vec<_> = (first..count.min(first + AT_ONCE))
                .map(u64::to_be_bytes)
                .collect();
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            for (n, got) in (first..).zip(store.get(&keys)) {
                ensure!(
                    got? == Some(fill(!n, self.size)),
                    "key {n} has a wrong value"
                );
            }
        }
        Ok(store.stats().round_trips - before)
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// An operation fails otherwise than for lack of room, or a value is wrong.
    pub fn run(self) -> Result<ExitCode> {
        let mut store = self.client.connect(Faults::default())?;
        let mut count = 0;
        'fill: loop {
            let pairs = (count..count + AT_ONCE).map(|n| (n.to_be_bytes(), fill(!n, self.size)));
            let pairs: Vec<_> = pairs.collect();
            let changes = pairs.iter().map(|(key, value)| Change {
                key,
                value: Some(value),
            });
            for done in store.change(&changes.collect::<Vec<_>>()) {
                match done {
                    Ok(_) => count += 1,
                    Err(error @ (Error::NoSlot | Error::NoMemory)) => {
                        eprintln!("{error}");
                        break 'fill;
                    }
                    Err(error) => bail!(error),
                }
            }
        }
        let remembered = self.verify(&mut store, count)?;
        let looked_up = self.verify(&mut self.client.connect(Faults::default())?, count)?;
        println!("{count} keys: {remembered} round trips where they are remembered, {looked_up} where not");
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_is_seen() {
        let (one, other) = (fill(7, 100), fill(8, 100));
        assert_eq!((number(&one), number(&other)), (Some(7), Some(8)));
        let mixed: Vec<u8> = one[..64].iter().chain(&other[64..]).copied().collect();
        assert_eq!(number(&mixed), None);
        assert_eq!(number(b"short"), None);
    }
}
