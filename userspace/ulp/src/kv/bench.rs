// SPDX-License-Identifier: MIT OR Apache-2.0

//! The core workloads A, B and C of YCSB, over RDMA, over TCP, or with memcached.

use super::ClientArgs;
use crate::args::size;
use crate::output::{self, interrupts, table, FormatArgs};
use anyhow::{bail, ensure, Result};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::{rngs::SmallRng, Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::Instant;
use ulp_kv::tcp::{Protocol, TcpStore};
use ulp_kv::{Kv, Op, Outcome, Store, MAX_DEPTH, MAX_VALUE};

/// The exponent of the Zipf distribution, as in YCSB.
const SKEW: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Workload {
    /// 50 % gets, 50 % puts.
    A,
    /// 95 % gets, 5 % puts.
    B,
    /// 100 % gets.
    C,
}

impl Workload {
    fn gets_percent(self) -> u32 {
        match self {
            Self::A => 50,
            Self::B => 95,
            Self::C => 100,
        }
    }
}

/// Arguments of `ulp kv bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    client: ClientArgs,
    /// The workloads; a row for each.
    #[arg(short, long, value_enum, value_delimiter = ',', default_values = ["a", "b", "c"])]
    workload: Vec<Workload>,
    /// Keys that are put before the measurement.
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    records: u32,
    /// Operations per client.
    #[arg(short = 'n', long, default_value_t = 1000)]
    ops: u64,
    /// Concurrent clients, each a thread with a connection of its own.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Operations that a client has in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=MAX_DEPTH as i64))]
    depth: u32,
    /// Size of the values.
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = size)]
    value: u64,
    /// The kind of server. All but that of `ulp kv serve` are single servers.
    #[arg(long, value_enum, default_value = "rdma")]
    over: Over,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    format: FormatArgs,
}

/// What serves the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Over {
    /// `ulp kv serve`.
    Rdma,
    /// `ulp kv serve --tcp`.
    Tcp,
    /// memcached 1.6, whose usual port is 11211.
    Memcached,
}

/// The output of `ulp kv bench`.
#[derive(Serialize, JsonSchema)]
pub struct Results {
    over: Over,
    records: u32,
    clients: u32,
    /// The operations that a client has in flight.
    depth: u32,
    /// The size of the values in bytes.
    value: u64,
    seed: u64,
    /// Whether Ctrl-C ended the measurement.
    interrupted: bool,
    rows: Vec<Row>,
}

/// The measurements of a workload.
#[derive(Serialize, JsonSchema)]
struct Row {
    workload: Workload,
    operations: u64,
    seconds: f64,
    operations_per_s: f64,
    gets: u64,
    /// Half of the batches of as many operations as a client has in flight took at most so long.
    batch_p50_us: Option<f64>,
    /// The same of 99 in 100 batches.
    batch_p99_us: Option<f64>,
}

/// What one client did: its batches in nanoseconds, its operations, and how many were gets.
struct Seen {
    batches: Histogram<u64>,
    operations: u64,
    gets: u64,
}

impl Seen {
    fn new() -> Result<Self> {
        Ok(Self {
            batches: Histogram::new_with_bounds(100, 100_000_000_000, 3)?,
            operations: 0,
            gets: 0,
        })
    }
}

/// Keys of which no two have the same value, if their numbers differ by less than this.
const DIFFERENT: usize = 1 << 20;

/// The only value of each key.
struct Values {
    /// Random bytes, in which the value of a key begins at the key's number.
    bytes: Vec<u8>,
    len: usize,
}

impl Values {
    /// Makes the values of `records` keys, of `len` bytes each.
    fn new(records: u32, len: u64) -> Self {
        // Servers refuse a byte more than the limit.
        let len = len.min(MAX_VALUE as u64 + 1) as usize;
        let mut bytes = vec![0; DIFFERENT.min(records as usize) + len];
        SmallRng::seed_from_u64(0).fill_bytes(&mut bytes);
        Self { bytes, len }
    }

    /// Returns the value of a key.
    fn of(&self, number: u32) -> &[u8] {
        let start = number as usize % DIFFERENT;
        let value = self.bytes.get(start..start + self.len);
        value.unwrap_or_default()
    }
}

/// Runs operations. All of them have to succeed, and gets to give what `values` says.
fn run(store: &mut dyn Kv, ops: &[Op<'_>], values: &[&[u8]]) -> Result<()> {
    let results = store.run(ops);
    ensure!(results.len() == ops.len(), "an operation has no result");
    for ((op, value), result) in ops.iter().zip(values).zip(results) {
        let key = || String::from_utf8_lossy(op.key()).into_owned();
        match (op, result?) {
            (Op::Get { .. }, Outcome::Value(Some(got))) if got.bytes == *value => {}
            (Op::Get { .. }, Outcome::Value(Some(_))) => bail!(
                "{} has another value than the one that was put; is another program writing there?",
                key()
            ),
            (Op::Put { .. }, Outcome::Written(_)) => {}
            _ => bail!(
                "{} has no value; does the server have enough memory?",
                key()
            ),
        }
    }
    Ok(())
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
    fn connect(&self) -> Result<Box<dyn Kv + Send>> {
        let names = self.client.names();
        let protocol = match self.over {
            Over::Rdma => {
                let mut options = self.client.options()?;
                options.depth = self.depth as usize;
                return Ok(Box::new(Store::connect(&names, options)?));
            }
            Over::Tcp => Protocol::Own,
            Over::Memcached => Protocol::Memcached,
        };
        let [name] = &names[..] else {
            bail!("--over rdma alone takes several servers");
        };
        let store = TcpStore::connect(name, protocol, self.depth as usize)?;
        Ok(Box::new(store))
    }

    fn bar(&self, length: u64, what: &str) -> ProgressBar {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr_with_hz(5),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(length), target).with_message(what.to_owned());
        match ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {elapsed}") {
            Ok(style) => bar.with_style(style.progress_chars("=> ")),
            Err(_) => bar,
        }
    }

    fn load(&self, values: &Values, stop: &AtomicBool) -> Result<()> {
        let mut store = self.connect()?;
        let bar = self.bar(self.records.into(), "putting keys");
        let numbers: Vec<u32> = (0..self.records).collect();
        for some in numbers.chunks(self.depth as usize) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let keys: Vec<String> = some.iter().copied().map(key).collect();
            let values: Vec<&[u8]> = some.iter().map(|number| values.of(*number)).collect();
            let puts = keys.iter().zip(&values);
            let puts: Vec<Op> = puts
                .map(|(key, value)| Op::put(key.as_bytes(), value))
                .collect();
            run(&mut *store, &puts, &values)?;
            bar.inc(some.len() as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Runs the operations of one client.
    fn client(
        &self,
        (workload, values): (Workload, &Values),
        n: u32,
        start: &Barrier,
        stop: &AtomicBool,
        bar: &ProgressBar,
    ) -> Result<Seen> {
        let connected = self.connect();
        let mut seen = Seen::new()?;
        let mut random =
            SmallRng::seed_from_u64(self.seed.wrapping_mul(1000).wrapping_add(n.into()));
        let zipf = Zipf::new(f64::from(self.records), SKEW)?;
        // A client that cannot connect does not keep the others waiting.
        start.wait();
        let mut store = connected?;
        let mut left = self.ops;
        while left > 0 && !stop.load(Ordering::Relaxed) {
            let count = left.min(self.depth.into());
            left -= count;
            let numbers: Vec<u32> = (0..count)
                .map(|_| scrambled(zipf.sample(&mut random) as u64, self.records))
                .collect();
            let keys: Vec<String> = numbers.iter().copied().map(key).collect();
            let values: Vec<&[u8]> = numbers.iter().map(|number| values.of(*number)).collect();
            let mut gets = 0;
            let ops: Vec<Op> = keys
                .iter()
                .zip(&values)
                .map(
                    |(key, value)| match random.random_range(0..100) < workload.gets_percent() {
                        true => {
                            gets += 1;
                            Op::get(key.as_bytes())
                        }
                        false => Op::put(key.as_bytes(), value),
                    },
                )
                .collect();
            let begin = Instant::now();
            run(&mut *store, &ops, &values)?;
            let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            seen.batches.saturating_record(took);
            seen.operations += count;
            seen.gets += gets;
            bar.inc(count);
        }
        Ok(seen)
    }

    fn measure(&self, workload: Workload, values: &Values, stop: &AtomicBool) -> Result<Row> {
        let start = Barrier::new(self.clients as usize + 1);
        let bar = self.bar(
            self.ops.saturating_mul(self.clients.into()),
            &format!("workload {workload:?}"),
        );
        let (seen, seconds) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|n| {
                    let (start, bar) = (&start, &bar);
                    scope.spawn(move || self.client((workload, values), n, start, stop, bar))
                })
                .collect();
            start.wait();
            let begin = Instant::now();
            let mut all = Seen::new()?;
            for client in clients {
                let seen = client
                    .join()
                    .map_err(|_| anyhow::anyhow!("a client panicked"))??;
                all.batches.add(&seen.batches)?;
                all.operations += seen.operations;
                all.gets += seen.gets;
            }
            anyhow::Ok((all, begin.elapsed().as_secs_f64()))
        })?;
        bar.finish_and_clear();
        let at = |percent| {
            let batches = &seen.batches;
            (!batches.is_empty()).then(|| batches.value_at_percentile(percent) as f64 / 1000.0)
        };
        Ok(Row {
            workload,
            operations: seen.operations,
            seconds,
            operations_per_s: seen.operations as f64 / seconds,
            gets: seen.gets,
            batch_p50_us: at(50.0),
            batch_p99_us: at(99.0),
        })
    }

    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let values = Values::new(self.records, self.value);
        self.load(&values, &stop)?;
        let mut rows = Vec::new();
        for workload in &self.workload {
            if !stop.load(Ordering::Relaxed) {
                rows.push(self.measure(*workload, &values, &stop)?);
            }
        }
        let results = Results {
            over: self.over,
            records: self.records,
            clients: self.clients,
            depth: self.depth,
            value: self.value,
            seed: self.seed,
            interrupted: stop.load(Ordering::Relaxed),
            rows,
        };
        self.format.print(&results, || results.text())?;
        Ok(match results.interrupted {
            true => output::interrupted(),
            false => ExitCode::SUCCESS,
        })
    }
}

impl Results {
    fn text(&self) -> String {
        let us = |value: Option<f64>| output::or_dash(value.map(|us| format!("{us:.0}")));
        let over = match self.over {
            Over::Rdma => "RDMA",
            Over::Tcp => "TCP",
            Over::Memcached => "memcached",
        };
        let cells = |row: &Row| {
            vec![
                format!("{:?}", row.workload),
                over.to_owned(),
                row.operations.to_string(),
                format!("{:.0}", row.operations_per_s),
                us(row.batch_p50_us),
                us(row.batch_p99_us),
            ]
        };
        let head = [
            "MIX",
            "OVER",
            "OPS",
            "OPS/S",
            "BATCH 50%[us]",
            "BATCH 99%[us]",
        ];
        table(&head, self.rows.iter().map(cells))
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

    /// A store that gives the same outcomes to whatever is asked.
    struct Says(Vec<Outcome>);

    impl Kv for Says {
        fn run(&mut self, _: &[Op<'_>]) -> Vec<ulp_kv::Result<Outcome>> {
            self.0.iter().cloned().map(Ok).collect()
        }
    }

    #[test]
    fn wrong_contents_are_errors() {
        let values = Values::new(3, 64);
        let (first, second) = (values.of(1), values.of(2));
        assert!(first != second && first.len() == 64 && second.len() == 64);
        let value = |bytes: &[u8]| {
            Outcome::Value(Some(ulp_kv::Value {
                bytes: bytes.to_vec(),
                version: 1,
            }))
        };
        let ops = [Op::get(b"a"), Op::put(b"b", second)];
        let said = |outcomes: &[Outcome]| {
            let ran = run(&mut Says(outcomes.to_vec()), &ops, &[first, second]);
            ran.map_err(|error| error.to_string())
        };
        let put = Outcome::Written(1);
        assert_eq!(said(&[value(first), put.clone()]), Ok(()));
        let mut wrong = first.to_vec();
        wrong[63] ^= 1;
        for bytes in [&wrong, second, &first[1..], &[]] {
            let error = said(&[value(bytes), put.clone()]).unwrap_err();
            assert!(error.starts_with("a has another value"), "{error}");
        }
        let error = said(&[Outcome::Value(None), put.clone()]).unwrap_err();
        assert!(error.starts_with("a has no value"), "{error}");
        assert!(said(&[value(first), value(second)]).is_err());
        assert!(said(&[put.clone(), put]).is_err());
        assert!(said(&[value(first)]).is_err());
    }
}
