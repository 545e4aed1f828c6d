// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp bench`: one set of loops over several back ends.
//!
//! - [`config`]: what is measured; [`wire`]: how the server is told
//! - [`end`]: what a back end has to do; [`call`], [`uring`], [`verbs`]: the back ends
//! - [`loops`]: the measurements themselves; [`connect`], [`register`]: those without messages
//! - [`client`], [`server`]: the two sides; [`stats`], [`table`], [`plot`]: what comes out

mod call;
mod client;
mod config;
mod connect;
mod end;
mod loops;
mod machine;
mod plot;
mod progress;
mod register;
mod server;
mod stats;
mod table;
mod uring;
mod verbs;
mod wire;

use crate::output::{address, causes, interrupts, Format, Usage};
use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use config::{Amount, Backend, Config, Delivery, Metric, Mode, Test};
use end::DeviceOptions;
use machine::Machine;
use progress::Progress;
use stats::{Report, REPORT_VERSION};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Arguments of `ulp bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// RDMA Write.
    Write(Measure),
    /// RDMA Read.
    Read(Measure),
    /// Send and receive.
    Send(Measure),
    /// Atomic operations on 8 bytes.
    Atomic {
        /// Which one.
        #[arg(long, value_enum, default_value_t = Atomic::FetchAdd)]
        op: Atomic,
        #[command(flatten)]
        measure: Measure,
    },
    /// From nothing to the first completed write, by the RDMA connection manager.
    Connect {
        /// Where `ulp bench serve` runs: an address of its RDMA device.
        host: String,
        #[command(flatten)]
        common: Common,
    },
    /// Making memory reachable for peers, and taking that back. Needs no server.
    Register {
        /// Bytes; a row for each.
        #[arg(short, long, value_delimiter = ',', value_parser = size)]
        size: Option<Vec<u32>>,
        #[command(flatten)]
        common: Common,
    },
    /// The other side of all measurements: the client sends the configuration.
    Serve {
        /// End after one client, with its success or failure.
        #[arg(long)]
        once: bool,
        /// Listen at this address only.
        #[arg(long, default_value = "::")]
        listen: String,
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Draws percentile curves, and bandwidth and rate over size, as SVG.
    Plot {
        /// Outputs of --format json; each has one report or a list of them.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where to.
        #[arg(short, long, default_value = ".")]
        out: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Atomic {
    FetchAdd,
    CmpSwap,
}

/// Which device; perftest's letters.
#[derive(Debug, Args)]
struct DeviceArgs {
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Port of the device [default: that of the interface]
    #[arg(short, long, value_name = "N")]
    ib_port: Option<u8>,
    /// Index of the GID [default: RoCE v2, IPv4]
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u8>,
    /// TCP port of the server.
    #[arg(short, long, default_value_t = 18515)]
    port: u16,
}

impl DeviceArgs {
    fn options(&self) -> DeviceOptions {
        DeviceOptions {
            name: self.device.clone(),
            port: self.ib_port,
            gid_index: self.gid_index,
        }
    }
}

/// What all measurements have.
#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    device: DeviceArgs,
    /// What carries it.
    #[arg(short, long, value_enum, default_value_t = Backend::Call)]
    backend: Backend,
    /// Iterations, per thread [default: 1000; 10240 of bandwidth and rate, 200 of connect]
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u64>,
    /// Seconds, in place of iterations.
    #[arg(short = 'D', long, value_name = "S", conflicts_with = "iters", value_parser = seconds)]
    duration: Option<u64>,
    /// Messages before those that count, per thread [default: a tenth of -n, at most 1000]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Sleep for completions in place of looking for them.
    #[arg(short, long)]
    events: bool,
    /// Seconds that anything may take.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: u64,
    /// How the results are printed.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Write the results as JSON to this file, too.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// As perftest's: nothing is said about the CPU's frequency. Without effect here.
    #[arg(short = 'F', long, hide_short_help = true)]
    cpu_freq: bool,
}

/// What measurements of messages have.
#[derive(Debug, Args)]
struct Measure {
    /// What of it.
    #[arg(value_enum)]
    metric: Metric,
    /// Where `ulp bench serve` runs.
    host: String,
    #[command(flatten)]
    common: Common,
    /// Bytes per message, such as 8 or 64K; a row for each [default: 8; 64K of bandwidth]
    #[arg(short, long, value_delimiter = ',', value_parser = size)]
    size: Option<Vec<u32>>,
    /// All sizes from 2 bytes to 8 MiB, by powers of two.
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Requests per posting, over all queue pairs of a thread [default: 16 of bandwidth, 64 of rate]
    #[arg(short = 'l', long, value_name = "N")]
    post_list: Option<u32>,
    /// Requests in flight, per queue pair.
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    tx_depth: u32,
    /// Receives kept posted, per queue pair.
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    rx_depth: u32,
    /// Queue pairs, per thread.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    qp: u32,
    /// Threads, each with a device file, queues and queue pairs of its own.
    #[arg(short = 'T', long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Messages of at most so many bytes travel in the request [default: 64 of latency, else 0]
    #[arg(short = 'I', long, value_name = "BYTES")]
    inline_size: Option<u32>,
    /// Of requests posted one by one, one in so many is signaled [default: 64, as far as -t allows]
    #[arg(short = 'Q', long, value_name = "N")]
    cq_mod: Option<u32>,
    /// Verify the contents of messages; that takes its time.
    #[arg(long, visible_alias = "data-validation")]
    verify: bool,
    /// What carries it at the server [default: the same]
    #[arg(long, value_enum)]
    peer_backend: Option<Backend>,
    /// Who moves completions of /dev/rust_ulp into the ring.
    #[arg(long, value_enum, default_value_t = Delivery::Default)]
    delivery: Delivery,
    /// By io_uring: a thread of the kernel's submits (IORING_SETUP_SQPOLL).
    #[arg(long)]
    sqpoll: bool,
}

/// A number of bytes, with K or M.
fn size(text: &str) -> std::result::Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    let n: u32 = digits.parse().map_err(|e| format!("{e}"))?;
    n.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// Seconds, in ms.
fn seconds(text: &str) -> std::result::Result<u64, String> {
    let s: f64 = text.parse().map_err(|e| format!("{e}"))?;
    match s > 0.0 && s <= 86_400.0 {
        true => Ok((s * 1000.0).ceil() as u64),
        false => Err("it is above 0 and at most 86400".to_owned()),
    }
}

impl Common {
    fn config(&self, test: Test, metric: Metric) -> Config {
        let default = match test {
            Test::Connect => 200,
            _ if metric == Metric::Latency => 1000,
            _ => 10_240,
        };
        let amount = match self.duration {
            Some(ms) => Amount::Millis(ms),
            None => Amount::Iterations(self.iters.unwrap_or(default)),
        };
        let warmup = match amount {
            Amount::Iterations(n) => (n / 10).min(1000),
            Amount::Millis(_) => default / 10,
        };
        Config {
            test,
            metric,
            backend: self.backend,
            peer_backend: self.backend,
            mode: if self.events { Mode::Event } else { Mode::Poll },
            delivery: Delivery::Default,
            sqpoll: false,
            sizes: vec![8],
            amount,
            warmup: self.warmup.unwrap_or(warmup),
            depth: 1,
            rx_depth: 2,
            list: 1,
            cq_mod: 1,
            qps: 1,
            threads: 1,
            inline: 0,
            verify: false,
            timeout_ms: self.timeout,
        }
    }
}

impl Measure {
    fn config(&self, test: Test) -> Config {
        let latency = self.metric == Metric::Latency;
        let sizes = match (&self.size, self.all) {
            (_, true) => (1..=23).map(|power| 1 << power).collect(),
            (Some(sizes), false) => sizes.clone(),
            (None, false) if self.metric == Metric::Bandwidth && !test.is_atomic() => vec![65_536],
            (None, false) => vec![8],
        };
        let list = match self.metric {
            Metric::Latency => 1,
            Metric::Bandwidth => 16,
            Metric::Rate => 64,
        };
        let room = self.tx_depth.saturating_mul(self.qp);
        Config {
            peer_backend: self.peer_backend.unwrap_or(self.common.backend),
            delivery: self.delivery,
            sqpoll: self.sqpoll,
            sizes,
            depth: self.tx_depth,
            rx_depth: self.rx_depth,
            list: self.post_list.unwrap_or(list.min(room.max(1))),
            cq_mod: self.cq_mod.unwrap_or(64.min(self.tx_depth.max(1))),
            qps: self.qp,
            threads: self.threads,
            inline: self.inline_size.unwrap_or(if latency { 64 } else { 0 }),
            verify: self.verify,
            ..self.common.config(test, self.metric)
        }
    }
}

impl Bench {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Write(m) => measure(&m.common, m.config(Test::Write), &m.host),
            Command::Read(m) => measure(&m.common, m.config(Test::Read), &m.host),
            Command::Send(m) => measure(&m.common, m.config(Test::Send), &m.host),
            Command::Atomic { op, measure: m } => {
                let test = match op {
                    Atomic::FetchAdd => Test::FetchAdd,
                    Atomic::CmpSwap => Test::CmpSwap,
                };
                measure(&m.common, m.config(test), &m.host)
            }
            Command::Connect { host, common } => measure(
                &common,
                common.config(Test::Connect, Metric::Latency),
                &host,
            ),
            Command::Register { size, common } => {
                let mut config = common.config(Test::Register, Metric::Latency);
                config.sizes = size.unwrap_or_else(|| vec![4096, 65_536, 1 << 20]);
                measure(&common, config, "")
            }
            Command::Serve {
                once,
                listen,
                device,
            } => {
                let stop = interrupts()?;
                server::run(
                    &address(&listen, device.port),
                    once,
                    &device.options(),
                    &stop,
                )?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Plot { files, out } => {
                let mut stdout = std::io::stdout();
                for path in plot::run(&files, &out)? {
                    writeln!(stdout, "{}", path.display())?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn measure(common: &Common, config: Config, host: &str) -> Result<ExitCode> {
    config.check().map_err(|error| Usage(causes(&error)))?;
    let stop = interrupts()?;
    let progress = Progress::new();
    let host = address(host, common.device.port);
    let outcome = client::run(&config, &common.device.options(), &host, &stop, &progress);
    let interrupted = stop.load(Ordering::Relaxed);
    let report = Report {
        version: REPORT_VERSION,
        config,
        command: std::env::args().collect(),
        client: Machine::here(),
        server: outcome.server,
        rows: outcome.rows,
        interrupted,
    };
    if outcome.error.is_none() || !report.rows.is_empty() {
        let text = match common.format {
            Format::Table => table::render(&report),
            Format::Json => serde_json::to_string_pretty(&report)?,
        };
        writeln!(std::io::stdout(), "{text}")?;
        if let Some(path) = &common.output {
            std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
                .with_context(|| format!("{}", path.display()))?;
        }
    }
    match outcome.error {
        Some(error) => Err(error),
        None if interrupted => {
            eprintln!("ulp: interrupted");
            Ok(ExitCode::FAILURE)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_seconds() {
        assert_eq!(
            (size("8"), size("64K"), size("1M")),
            (Ok(8), Ok(65_536), Ok(1 << 20))
        );
        assert!(size("4096M").is_err() && size("-1").is_err() && size("").is_err());
        assert_eq!((seconds("0.5"), seconds("2")), (Ok(500), Ok(2000)));
        assert!(seconds("0").is_err() && seconds("nan").is_err() && seconds("1e9").is_err());
    }
}
