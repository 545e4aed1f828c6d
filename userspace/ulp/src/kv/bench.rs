// SPDX-License-Identifier: MIT OR Apache-2.0

//! YCSB's core workloads A, B and C, over RDMA or over TCP.

use super::{size, ClientArgs};
use crate::output::{interrupts, print, table, Format, FormatArgs, VERSION};
use anyhow::Result;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::{rngs::SmallRng, Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Serialize;
use serde_json::json;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::Instant;
use ulp_kv::{tcp::TcpStore, Kv, Store};

/// How popular the most popular keys are; YCSB's.
const SKEW: f64 = 0.99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Workload {
    /// Half gets, half puts.
    A,
    /// 95 % gets, 5 % puts.
    B,
    /// Gets only.
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
    /// The mixes; a row for each.
    #[arg(short, long, value_enum, value_delimiter = ',', default_values = ["a", "b", "c"])]
    workload: Vec<Workload>,
    /// Keys, which are put first.
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    records: u32,
    /// Operations of each client.
    #[arg(short = 'n', long, default_value_t = 1000)]
    ops: u64,
    /// Clients at a time, each a thread with a connection of its own.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// Bytes of a value.
    #[arg(long, default_value = "1KiB", value_parser = size)]
    value: u64,
    /// The servers are those of `ulp kv server --tcp`; one of them.
    #[arg(long)]
    tcp: bool,
    /// Of the dice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    format: FormatArgs,
}

/// What was measured; latencies in microseconds.
#[derive(Serialize)]
struct Row {
    workload: Workload,
    operations: u64,
    seconds: f64,
    operations_per_s: f64,
    get_p50: Option<f64>,
    get_p99: Option<f64>,
    put_p50: Option<f64>,
    put_p99: Option<f64>,
}

/// What one client has seen, in nanoseconds.
struct Seen {
    gets: Histogram<u64>,
    puts: Histogram<u64>,
}

impl Seen {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(100, 100_000_000_000, 3);
        Ok(Self {
            gets: histogram()?,
            puts: histogram()?,
        })
    }
}

/// The key of a rank: popular ones are not neighbours.
fn key(rank: u64, records: u32) -> String {
    let scrambled = SmallRng::seed_from_u64(rank).next_u64() % u64::from(records);
    format!("user{scrambled:019}")
}

impl Bench {
    fn connect(&self) -> Result<Box<dyn Kv + Send>> {
        let names = self.client.names();
        Ok(match (self.tcp, names.first()) {
            (true, Some(name)) => Box::new(TcpStore::connect(name)?),
            _ => Box::new(Store::connect(&names, self.client.options())?),
        })
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

    fn value(&self) -> Vec<u8> {
        vec![
            b'v';
            usize::try_from(self.value)
                .unwrap_or(usize::MAX)
                .min(1 << 20)
        ]
    }

    fn load(&self, stop: &AtomicBool) -> Result<()> {
        let (mut store, value) = (self.connect()?, self.value());
        let bar = self.bar(self.records.into(), "putting keys");
        for n in 0..self.records {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            store.put(format!("user{n:019}").as_bytes(), &value)?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// One client's share.
    fn client(
        &self,
        workload: Workload,
        n: u32,
        start: &Barrier,
        stop: &AtomicBool,
        bar: &ProgressBar,
    ) -> Result<Seen> {
        let connected = self.connect();
        let (mut seen, value) = (Seen::new()?, self.value());
        let mut random =
            SmallRng::seed_from_u64(self.seed.wrapping_mul(1000).wrapping_add(n.into()));
        let zipf = Zipf::new(f64::from(self.records), SKEW)?;
        // Whoever cannot connect does not keep the others waiting.
        start.wait();
        let mut store = connected?;
        for _ in 0..self.ops {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let key = key(zipf.sample(&mut random) as u64, self.records);
            let get = random.random_range(0..100) < workload.gets_percent();
            let begin = Instant::now();
            match get {
                true => drop(store.get(key.as_bytes())?),
                false => store.put(key.as_bytes(), &value)?,
            }
            let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let histogram = if get { &mut seen.gets } else { &mut seen.puts };
            histogram.saturating_record(took);
            bar.inc(1);
        }
        Ok(seen)
    }

    fn measure(&self, workload: Workload, stop: &AtomicBool) -> Result<Row> {
        let start = Barrier::new(self.clients as usize + 1);
        let bar = self.bar(
            self.ops.saturating_mul(self.clients.into()),
            &format!("workload {workload:?}"),
        );
        let (seen, seconds) = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|n| {
                    let (start, bar) = (&start, &bar);
                    scope.spawn(move || self.client(workload, n, start, stop, bar))
                })
                .collect();
            start.wait();
            let begin = Instant::now();
            let mut all = Seen::new()?;
            for client in clients {
                let seen = client
                    .join()
                    .map_err(|_| anyhow::anyhow!("a client broke off"))??;
                all.gets.add(&seen.gets)?;
                all.puts.add(&seen.puts)?;
            }
            anyhow::Ok((all, begin.elapsed().as_secs_f64()))
        })?;
        bar.finish_and_clear();
        let at = |histogram: &Histogram<u64>, percent| {
            (!histogram.is_empty()).then(|| histogram.value_at_percentile(percent) as f64 / 1000.0)
        };
        let operations = seen.gets.len() + seen.puts.len();
        Ok(Row {
            workload,
            operations,
            seconds,
            operations_per_s: operations as f64 / seconds,
            get_p50: at(&seen.gets, 50.0),
            get_p99: at(&seen.gets, 99.0),
            put_p50: at(&seen.puts, 50.0),
            put_p99: at(&seen.puts, 99.0),
        })
    }

    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        self.load(&stop)?;
        let mut rows = Vec::new();
        for workload in &self.workload {
            if !stop.load(Ordering::Relaxed) {
                rows.push(self.measure(*workload, &stop)?);
            }
        }
        let carrier = if self.tcp { "TCP" } else { "RDMA" };
        let interrupted = stop.load(Ordering::Relaxed);
        match self.format.format {
            Format::Json => print(&serde_json::to_string_pretty(&json!({
                "version": VERSION, "carrier": carrier, "records": self.records, "clients": self.clients,
                "value": self.value, "seed": self.seed, "interrupted": interrupted, "rows": rows,
            }))?)?,
            Format::Table => {
                let us = |value: Option<f64>| {
                    value.map_or_else(|| "-".to_owned(), |us| format!("{us:.0}"))
                };
                let cells = rows.iter().map(|row| {
                    vec![
                        format!("{:?}", row.workload),
                        carrier.to_owned(),
                        row.operations.to_string(),
                        format!("{:.0}", row.operations_per_s),
                        us(row.get_p50),
                        us(row.get_p99),
                        us(row.put_p50),
                        us(row.put_p99),
                    ]
                });
                let head = [
                    "MIX",
                    "OVER",
                    "OPS",
                    "OPS/S",
                    "GET 50%[us]",
                    "GET 99%[us]",
                    "PUT 50%[us]",
                    "PUT 99%[us]",
                ];
                print(&table(&head, cells))?;
            }
        }
        if interrupted {
            eprintln!("ulp: interrupted");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
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
        assert!(key(1, 1000) != key(2, 1000));
        assert!((1..1000).all(|rank| key(rank, 10).as_str() < "user0000000000000000010"));
    }
}
