// SPDX-License-Identifier: MIT OR Apache-2.0

//! The results of measurements.

use super::config::{Backend, Config, Metric, Mode, Test};
use super::end::Run;
use crate::machine::Machine;
use anyhow::Result;
use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest latency of the histogram. Longer ones count as this one, apart from the maximum.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Latencies in ns. Percentiles are exact to 0.1 %; minimum, maximum, average and deviation are
/// exact.
///
/// Recording allocates no memory.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    n: u64,
    min: u64,
    max: u64,
    mean: f64,
    /// Sum of the squares of the distances from the mean.
    squares: f64,
}

impl Latencies {
    pub fn new() -> Result<Self> {
        Ok(Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
            n: 0,
            min: u64::MAX,
            max: 0,
            mean: 0.0,
            squares: 0.0,
        })
    }

    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns);
        self.n += 1;
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        let off = ns as f64 - self.mean;
        self.mean += off / self.n as f64;
        self.squares += off * (ns as f64 - self.mean);
    }

    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.histogram.add(&other.histogram)?;
        let (a, b) = (self.n as f64, other.n as f64);
        if other.n != 0 {
            let off = other.mean - self.mean;
            self.squares += other.squares + off * off * a * b / (a + b);
            self.mean += off * b / (a + b);
        }
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        Ok(())
    }

    /// Returns the statistics, or [`None`] if nothing was recorded.
    pub fn sum_up(&self) -> Option<LatencyNs> {
        if self.n == 0 {
            return None;
        }
        // The highest value of a bucket may be above the maximum.
        let clamp = |ns: u64| ns.clamp(self.min, self.max);
        let at = |quantile| clamp(self.histogram.value_at_quantile(quantile));
        let curve = self
            .histogram
            .iter_quantiles(5)
            .map(|v| (v.quantile_iterated_to(), clamp(v.value_iterated_to())));
        Some(LatencyNs {
            min: self.min,
            max: self.max,
            typical: at(0.5),
            avg: self.mean,
            stdev: (self.squares / self.n as f64).sqrt(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            curve: curve.collect(),
        })
    }
}

/// Latencies in ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyNs {
    pub min: u64,
    pub max: u64,
    /// The median, by its name in perftest.
    pub typical: u64,
    pub avg: f64,
    pub stdev: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub p99_99: u64,
    /// Quantiles from 0 to 1, each with its latency.
    pub curve: Vec<(f64, u64)>,
}

/// The throughput with many requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Throughput {
    /// A MiB is 1,048,576 bytes.
    pub avg_mib_s: f64,
    /// The same in 1,000,000,000 bits per second.
    #[serde(default)]
    pub avg_gbit_s: f64,
    /// Millions of messages per second.
    pub msg_rate_mpps: f64,
    pub messages_per_s: f64,
}

/// A row of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    pub test: Test,
    pub metric: Metric,
    pub backend: Backend,
    /// Null for registrations, which wait for no completion.
    pub mode: Option<Mode>,
    /// The step of a connection or a registration.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<String>,
    /// Bytes per message.
    pub size: u32,
    /// Measured messages of all threads.
    pub iterations: u64,
    /// The time of these messages, without the warm-up; of a step, the sum of its times.
    pub elapsed_ns: u64,
    /// Messages that were sent and did not arrive, among them those of the warm-up; null where the
    /// transport repeats them or nobody counts them. The throughput is that of the sender.
    #[serde(default)]
    pub lost: Option<u64>,
    /// Whether Ctrl-C ended the row.
    pub interrupted: bool,
    pub latency_ns: Option<LatencyNs>,
    pub throughput: Option<Throughput>,
}

impl Row {
    /// Returns a row without results.
    pub fn new(run: Run<'_>, size: u32) -> Self {
        let config = run.config;
        Self {
            test: config.test,
            metric: config.metric,
            backend: config.backend,
            mode: config.row_mode(),
            step: None,
            size,
            iterations: 0,
            elapsed_ns: 0,
            lost: None,
            interrupted: run.stop.load(Ordering::Relaxed),
            latency_ns: None,
            throughput: None,
        }
    }
}

/// The output of `ulp bench`: the parameters, the machines and the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    pub version: u32,
    pub config: Config,
    /// The command line.
    pub command: Vec<String>,
    pub client: Machine,
    /// The machine of the server; null for measurements without a server.
    pub server: Option<Machine>,
    pub rows: Vec<Row>,
    pub interrupted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_known_series() {
        let mut all = Latencies::new().unwrap();
        let mut halves = [Latencies::new().unwrap(), Latencies::new().unwrap()];
        for i in 1..=10_000_u64 {
            all.record(Duration::from_nanos(i * 1000));
            halves[(i % 2) as usize].record(Duration::from_nanos(i * 1000));
        }
        let [mut merged, odd] = halves;
        merged.merge(&odd).unwrap();
        for latencies in [&all, &merged] {
            let l = latencies.sum_up().unwrap();
            assert_eq!((l.min, l.max), (1000, 10_000_000));
            assert!((l.avg - 5_000_500.0).abs() < 1.0, "{}", l.avg);
            assert!((l.stdev - 2_886_751.0).abs() < 10.0, "{}", l.stdev);
            for (got, want) in [
                (l.p50, 5_000_000.0),
                (l.p90, 9_000_000.0),
                (l.p99, 9_900_000.0),
                (l.p99_9, 9_990_000.0),
                (l.p99_99, 9_999_000.0),
            ] {
                assert!((got as f64 / want - 1.0).abs() < 0.002, "{got} {want}");
            }
            assert!(l
                .curve
                .windows(2)
                .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
            assert_eq!(l.curve.last().unwrap().1, 10_000_000);
        }
        assert_eq!(Latencies::new().unwrap().sum_up(), None);
    }

    #[test]
    fn the_true_maximum_stands() {
        let mut l = Latencies::new().unwrap();
        l.record(Duration::from_secs(7200));
        l.record(Duration::from_nanos(123_456_789));
        let l = l.sum_up().unwrap();
        assert_eq!((l.min, l.max), (123_456_789, 7_200_000_000_000));
    }
}
