// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client that does things at random and writes down what it did and saw; and who looks at what several wrote.

use super::ClientArgs;
use crate::output::{interrupts, print};
use anyhow::{bail, Context, Result};
use clap::Args;
use nix::time::{clock_gettime, ClockId};
use rand::{rngs::SmallRng, Rng, SeedableRng};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use ulp_kv::history::{check, Operation, Outcome, Record};

/// Arguments of `ulp kv worker`.
#[derive(Debug, Args)]
pub struct Worker {
    #[command(flatten)]
    client: ClientArgs,
    /// The number in what it writes down, and of its dice.
    #[arg(long)]
    id: u64,
    /// How many operations.
    #[arg(long, default_value_t = 300)]
    ops: u64,
    /// On how many keys.
    #[arg(long, default_value_t = 4)]
    keys: u32,
    /// Bytes of the longest value.
    #[arg(long, default_value_t = 8192)]
    size: usize,
    /// Milliseconds to sleep between the two reads of a get.
    #[arg(long, default_value_t = 0)]
    slow: u64,
    /// How long somebody may have a lock before it complains, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    lease: u64,
    /// How long others may be in its way, in milliseconds.
    #[arg(long, default_value_t = 60_000)]
    patience: u64,
    /// Believe what is read.
    #[arg(long)]
    unverified: bool,
    /// At the end take a lock and keep it until Ctrl-C.
    #[arg(long)]
    hold: bool,
}

/// Arguments of `ulp kv check`.
#[derive(Debug, Args)]
pub struct Check {
    /// What workers wrote.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(Duration::from(time).as_nanos() as u64)
}

/// The number over and over: a mixture of two is seen.
fn fill(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The number of a value, if it is whole.
fn number(value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
    (value == fill(number, value.len())).then_some(number)
}

impl Worker {
    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let mut options = self.client.options();
        options.verify = !self.unverified;
        options.slow = Duration::from_millis(self.slow);
        options.lease = Duration::from_millis(self.lease);
        options.patience = Duration::from_millis(self.patience);
        let mut store = ulp_kv::Store::connect(&self.client.names(), options)?;
        let mut random = SmallRng::seed_from_u64(self.id);
        let say = |key: &str, begin, end| -> Result<()> {
            let record = Record {
                time: now()?,
                client: self.id,
                key: key.to_owned(),
                begin,
                end,
            };
            print(&serde_json::to_string(&record)?)
        };
        let mut torn = 0u64;
        for n in 0..self.ops {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let key = format!("key {}", random.random_range(0..self.keys.max(1)));
            let operation = match random.random_range(0..10) {
                0 => Operation::Delete,
                1..=4 => Operation::Put((self.id << 32) | n),
                _ => Operation::Get,
            };
            say(&key, Some(operation), None)?;
            let done = match operation {
                Operation::Put(value) => {
                    let len = random.random_range(8..=self.size.max(8));
                    store
                        .put(key.as_bytes(), &fill(value, len))
                        .map(|()| Outcome::Done)
                }
                Operation::Delete => store.delete(key.as_bytes()).map(Outcome::Deleted),
                Operation::Get => store.get(key.as_bytes()).map(|value| match value {
                    None => Outcome::Found(None),
                    Some(value) => Outcome::Found(Some(number(&value).unwrap_or_else(|| {
                        torn += 1;
                        u64::MAX
                    }))),
                }),
            };
            let outcome = done.unwrap_or_else(|error| {
                eprintln!("{key}: {operation:?}: {error}");
                if error.is_reconnectable() {
                    // A server that is started anew takes its time.
                    std::thread::sleep(Duration::from_millis(50));
                }
                match error.is_unknown() {
                    true => Outcome::Unknown,
                    false => Outcome::Failed,
                }
            });
            say(&key, None, Some(outcome))?;
        }
        if self.hold {
            store.hold(b"key 0")?;
            eprintln!("holding");
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
            match store.put(b"key 0", b"after it was held") {
                Ok(()) => eprintln!("put"),
                Err(error) => eprintln!("{error}"),
            }
            store.put(b"key 0", b"connected again")?;
            eprintln!("put again");
        }
        let stats = store.stats();
        eprintln!(
            "{} round trips, {} torn reads met, {} believed, {} locks were others', {} complaints, {} reconnects",
            stats.round_trips, stats.torn, torn, stats.lock_misses, stats.complaints, stats.reconnects
        );
        Ok(match torn {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

impl Check {
    pub fn run(self) -> Result<ExitCode> {
        let mut history = Vec::new();
        for path in &self.files {
            let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
            for line in BufReader::new(file).lines() {
                let line = line?;
                // One who was killed may have been writing.
                if let Ok(record) = serde_json::from_str::<Record>(&line) {
                    history.push(record);
                }
            }
        }
        if history.is_empty() {
            bail!("there is no history in these files");
        }
        let count = check(&history)?;
        let unknown = history
            .iter()
            .filter(|record| record.end == Some(Outcome::Unknown))
            .count();
        print(&format!(
            "linearizable: {count} operations, {unknown} of unknown outcome"
        ))?;
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
