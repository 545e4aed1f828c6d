// SPDX-License-Identifier: MIT OR Apache-2.0

//! `kv bench`: a mix of gets and puts of keys with a Zipf distribution, as YCSB has it. Every value
//! is verified.

use crate::client::{Faults, Store};
use crate::common::{address, ERROR};
use crate::tcp::TcpStore;
use crate::wire::Change;
use crate::{size, ClientArgs, PORT};
use anyhow::{anyhow, bail, ensure, Result};
use clap::{Args, ValueEnum};
use rand::{rngs::SmallRng, Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::Instant;

/// The exponent of YCSB.
const SKEW: f64 = 0.99;
/// Keys of which no two have the same value, if their numbers differ by less than this.
const DIFFERENT: usize = 1 << 20;

/// Arguments of `kv bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    client: ClientArgs,
    /// The kind of server.
    #[arg(long, value_enum, default_value = "rdma")]
    over: Over,
    /// Gets among 100 operations; the others are puts.
    #[arg(short, long, default_value_t = 95, value_parser = clap::value_parser!(u32).range(0..=100))]
    gets: u32,
    /// Keys that are put before the measurement.
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    records: u32,
    /// Operations per client.
    #[arg(short = 'n', long, default_value_t = 1000)]
    ops: u64,
    /// Clients, each a thread with a connection of its own.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Operations that a client begins at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    depth: u32,
    /// Size of the values.
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = size)]
    value: u64,
    /// Print the result as JSON.
    #[arg(short, long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    /// `kv serve`.
    Rdma,
    /// `kv serve --tcp`.
    Tcp,
}

/// A store of either kind, and what it can do.
enum Client {
    Rdma(Box<Store>),
    Tcp(TcpStore),
}

impl Client {
    /// Gets keys, which must have these values.
    fn get(&mut self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        let got = match self {
            Self::Rdma(store) => store
                .get(keys)
                .into_iter()
                .collect::<crate::error::Result<_>>(),
            Self::Tcp(store) => store.get(keys),
        };
        check(keys, values, &got?)
    }

    fn put(&mut self, keys: &[&[u8]], values: &[&[u8]]) -> Result<()> {
        let changes = keys.iter().zip(values);
        let changes: Vec<_> = changes
            .map(|(key, value)| Change {
                key,
                value: Some(value),
            })
            .collect();
        let done = match self {
            Self::Rdma(store) => store.change(&changes).into_iter().collect(),
            Self::Tcp(store) => store.change(&changes),
        };
        ensure!(done?.len() == changes.len(), "a put has no result");
        Ok(())
    }
}

/// Fails unless these are the values of the keys.
fn check(keys: &[&[u8]], values: &[&[u8]], got: &[Option<Vec<u8>>]) -> Result<()> {
    ensure!(got.len() == keys.len(), "a get has no result");
    for ((key, value), got) in keys.iter().zip(values).zip(got) {
        let key = String::from_utf8_lossy(key);
        match got {
            Some(got) if got == value => {}
            Some(_) => bail!("{key} has another value than the one that was put; is another program writing there?"),
            None => bail!("{key} has no value; does the server have enough memory?"),
        }
    }
    Ok(())
}

/// The only value of each key.
struct Values {
    /// Random bytes, in which the value of a key begins at the key's number.
    bytes: Vec<u8>,
    len: usize,
}

impl Values {
    fn new(records: u32, len: u64) -> Self {
        // Servers refuse a byte more than the limit.
        let len = len.min(crate::layout::MAX_VALUE as u64 + 1) as usize;
        let mut bytes = vec![0; DIFFERENT.min(records as usize) + len];
        SmallRng::seed_from_u64(0).fill_bytes(&mut bytes);
        Self { bytes, len }
    }

    fn of(&self, number: u32) -> &[u8] {
        let start = number as usize % DIFFERENT;
        self.bytes.get(start..start + self.len).unwrap_or_default()
    }
}

/// Returns the number of the key of a rank of popularity. Popular keys are not neighbors.
fn scrambled(rank: u64, records: u32) -> u32 {
    // Less than `records`.
    (SmallRng::seed_from_u64(rank).next_u64() % u64::from(records)) as u32
}

fn key(number: u32) -> String {
    format!("user{number:019}")
}

impl Bench {
    fn connect(&self) -> Result<Client> {
        match self.over {
            Over::Rdma => Ok(Client::Rdma(Box::new(
                self.client.connect(Faults::default())?,
            ))),
            Over::Tcp => match &self.client.servers[..] {
                [name] => Ok(Client::Tcp(TcpStore::connect(&address(name, PORT))?)),
                _ => bail!("--over rdma alone takes several servers"),
            },
        }
    }

    fn load(&self, values: &Values) -> Result<()> {
        let mut client = self.connect()?;
        let numbers: Vec<u32> = (0..self.records).collect();
        for some in numbers.chunks(self.depth as usize) {
            act(some, values, |keys, values| client.put(keys, values))?;
        }
        Ok(())
    }

    /// Runs the operations of one client. Returns how many there were.
    fn client(&self, values: &Values, n: u32, start: &Barrier, stop: &AtomicBool) -> Result<u64> {
        let connected = self.connect();
        let mut random = SmallRng::seed_from_u64(1000 + u64::from(n));
        let zipf = Zipf::new(f64::from(self.records), SKEW)?;
        // A client that cannot connect does not keep the others waiting.
        start.wait();
        let mut client = connected?;
        let mut done = 0;
        while done < self.ops && !stop.load(Ordering::Relaxed) {
            let count = (self.ops - done).min(self.depth.into());
            let (mut gets, mut puts) = (Vec::new(), Vec::new());
            for _ in 0..count {
                let number = scrambled(zipf.sample(&mut random) as u64, self.records);
                match random.random_range(0..100) < self.gets {
                    true => gets.push(number),
                    false => puts.push(number),
                }
            }
            act(&gets, values, |keys, values| client.get(keys, values))?;
            act(&puts, values, |keys, values| client.put(keys, values))?;
            done += count;
        }
        Ok(done)
    }

    /// Measures, and prints the result.
    ///
    /// # Errors
    ///
    /// An operation fails, or a value is another one than was put.
    pub fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let values = Values::new(self.records, self.value);
        self.load(&values)?;
        let start = Barrier::new(self.clients as usize + 1);
        let (operations, seconds) = std::thread::scope(|scope| {
            let (start, values, this) = (&start, &values, &self);
            let client = |n| scope.spawn(move || this.client(values, n, start, stop));
            let clients: Vec<_> = (0..self.clients).map(client).collect();
            start.wait();
            let begin = Instant::now();
            let mut operations = 0;
            for client in clients {
                operations += client.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            anyhow::Ok((operations, begin.elapsed().as_secs_f64()))
        })?;
        let (over, rate) = (format!("{:?}", self.over), operations as f64 / seconds);
        match self.json {
            true => {
                let over = over.to_lowercase();
                let result = serde_json::json!({
                    "over": over, "gets_percent": self.gets, "records": self.records, "clients": self.clients,
                    "depth": self.depth, "value": self.value, "operations": operations, "operations_per_s": rate,
                });
                println!("{result}");
            }
            false => println!(
                "{} % gets over {over}: {operations} operations, {rate:.0} per second",
                self.gets
            ),
        }
        Ok(match stop.load(Ordering::Relaxed) {
            true => ExitCode::from(ERROR),
            false => ExitCode::SUCCESS,
        })
    }
}

/// Calls `act` with the keys of these numbers, and their values.
fn act(
    numbers: &[u32],
    values: &Values,
    act: impl FnOnce(&[&[u8]], &[&[u8]]) -> Result<()>,
) -> Result<()> {
    let keys: Vec<String> = numbers.iter().copied().map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let values: Vec<&[u8]> = numbers.iter().map(|number| values.of(*number)).collect();
    match numbers.is_empty() {
        true => Ok(()),
        false => act(&keys, &values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_keys_are_there() {
        let zipf = Zipf::new(1000.0, SKEW).unwrap();
        let mut random = SmallRng::seed_from_u64(1);
        let ranks: Vec<u64> = (0..10_000)
            .map(|_| zipf.sample(&mut random) as u64)
            .collect();
        assert!(ranks.iter().all(|rank| (1..=1000).contains(rank)));
        // The most popular one is asked for in 13 of 100 cases.
        let first = ranks.iter().filter(|rank| **rank == 1).count();
        assert!((1000..1700).contains(&first), "{first}");
        assert!(scrambled(1, 1000) != scrambled(2, 1000));
        assert!((1..1000).all(|rank| scrambled(rank, 10) < 10));
    }

    #[test]
    fn wrong_contents_are_errors() {
        let values = Values::new(3, 64);
        let (first, second) = (values.of(1), values.of(2));
        assert!(first != second && first.len() == 64 && second.len() == 64);
        let said = |got: &[Option<Vec<u8>>]| {
            let checked = check(&[b"a", b"b"], &[first, second], got);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(said(&[Some(first.to_vec()), Some(second.to_vec())]), Ok(()));
        let mut wrong = first.to_vec();
        wrong[63] ^= 1;
        for bytes in [&wrong[..], second, &first[1..], &[]] {
            let error = said(&[Some(bytes.to_vec()), Some(second.to_vec())]).unwrap_err();
            assert!(error.starts_with("a has another value"), "{error}");
        }
        let error = said(&[None, Some(second.to_vec())]).unwrap_err();
        assert!(error.starts_with("a has no value"), "{error}");
        assert!(said(&[Some(first.to_vec())]).is_err());
    }
}
