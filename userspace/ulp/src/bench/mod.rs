// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp bench`: one set of loops over several back ends.
//!
//! - [`config`]: the parameters of a measurement; [`wire`]: the messages to the server
//! - [`end`]: the interface of the back ends; [`call`], [`uring`], [`verbs`]: the back ends;
//!   [`qp`]: the queue pairs of the first two
//! - [`loops`]: the measurements; [`connect`], [`register`]: the measurements without messages
//! - [`client`], [`server`]: the two roles; [`stats`], [`table`], [`plot`]: the results;
//!   [`study`]: many measurements, which are compared

/// Calls a function with the type of the end of a back end.
macro_rules! with_end {
    ($backend:expr, $run:ident($($argument:expr),*)) => {
        match $backend {
            Backend::Call => $run::<super::call::CallEnd>($($argument),*),
            Backend::Uring => $run::<super::uring::UringEnd>($($argument),*),
            #[cfg(feature = "verbs")]
            Backend::Verbs => $run::<super::verbs::VerbsEnd>($($argument),*),
            #[cfg(not(feature = "verbs"))]
            Backend::Verbs => super::without_verbs(),
        }
    };
}

/// Receives a message, which must be of a kind, and returns what it has.
macro_rules! expect {
    ($wire:expr, $message:pat => $value:expr) => {
        match $wire.receive()? {
            $message => $value,
            other => anyhow::bail!("the peer said {other:?}"),
        }
    };
}

mod call;
mod client;
mod config;
mod connect;
mod end;
mod loops;
mod plot;
pub(crate) mod qp;
mod register;
mod server;
mod stats;
mod study;
mod table;
mod uring;
#[cfg(feature = "verbs")]
mod verbs;
mod wire;

use crate::args::{address, duration, size_u32};
use crate::machine::Machine;
use crate::output::{self, causes, interrupts, FormatArgs, Usage, VERSION};
use anyhow::Result;
use clap::{Args, Subcommand};
use config::{Amount, Backend, Config, Metric, Mode, Test, Transport};
use end::{DeviceOptions, Run};
pub use stats::Report;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
pub use study::Study;

/// Arguments of `ulp bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures RDMA Write.
    Write {
        /// Write with immediate data, which consumes a receive at the server.
        #[arg(long)]
        write_with_imm: bool,
        #[command(flatten)]
        measure: Measure,
    },
    /// Measures RDMA Read.
    Read(Measure),
    /// Measures Send and Receive.
    Send(Measure),
    /// Measures atomic operations on 8 bytes.
    Atomic {
        /// The operation.
        #[arg(long, default_value = "fetch-add", value_parser = ["fetch-add", "cmp-swap"])]
        op: String,
        #[command(flatten)]
        measure: Measure,
    },
    /// Measures connecting by the RDMA connection manager, up to the first completed write.
    Connect {
        /// Host of `ulp bench serve`: an address of its RDMA device.
        host: String,
        #[command(flatten)]
        common: Common,
    },
    /// Measures granting peers access to memory, and revoking it. Needs no server.
    Register {
        /// Sizes of the memory; a row for each.
        #[arg(short, long, value_name = "SIZE", value_delimiter = ',', value_parser = size_u32)]
        size: Option<Vec<u32>>,
        #[command(flatten)]
        common: Common,
    },
    /// Changes the parameters of a measurement one by one, and says which of them matter most.
    ///
    /// The base is the rate of sends of 8 bytes over RC, with lists of 16 requests. --events and
    /// the other options apply to the base.
    Study {
        /// Host of `ulp bench serve`.
        host: String,
        /// Runs of each measurement; the median counts.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
        repeat: u32,
        #[command(flatten)]
        common: Common,
    },
    /// Serves the clients of all measurements, which send the configuration.
    #[command(visible_alias = "server")]
    Serve {
        /// End after one client, with the exit status of its measurement.
        #[arg(long)]
        once: bool,
        /// Listen at this address only.
        #[arg(long, value_name = "ADDRESS", default_value = "::")]
        listen: String,
        #[command(flatten)]
        device: DeviceOptions,
    },
    /// Draws percentile curves, and bandwidth and rate over the message size, as SVG.
    Plot {
        /// JSON outputs of ulp bench; each has one report or several.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Directory of the pictures.
        #[arg(short, long, default_value = ".")]
        out: PathBuf,
    },
}

/// The options of all measurements.
#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    device: DeviceOptions,
    /// Interface to the device.
    #[arg(long, value_enum, default_value_t = Backend::Call)]
    backend: Backend,
    /// Iterations per thread [default: 1000; bandwidth and rate: 10240; connect: 200]
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u64>,
    /// Time to measure instead of iterations, in seconds or with a unit.
    #[arg(short = 'D', long, value_name = "TIME", conflicts_with = "iters", value_parser = duration)]
    duration: Option<Duration>,
    /// Messages per thread before the measurement [default: a tenth of -n or of its default, at most
    /// 1000]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Sleep until a completion event instead of polling.
    #[arg(short, long)]
    events: bool,
    /// Deadline of each step, in seconds or with a unit.
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    timeout: Duration,
    /// Address of this host to connect from [default: that of the route]
    #[arg(long = "bind_source_ip", value_name = "ADDRESS")]
    bind_source_ip: Option<IpAddr>,
    #[command(flatten)]
    format: FormatArgs,
    /// Has no effect; perftest's option against a warning about the CPU frequency.
    #[arg(short = 'F', long, hide_short_help = true)]
    cpu_freq: bool,
}

/// The options of measurements of messages.
#[derive(Debug, Args)]
struct Measure {
    /// Quantity to measure.
    #[arg(value_enum)]
    metric: Metric,
    /// Host of `ulp bench serve`.
    host: String,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    config: Box<Config>,
    /// Bytes per message, such as 8 or 64K; a row for each [default: 8; bandwidth: 64K, with UD 1K]
    #[arg(short, long, value_name = "SIZE", value_delimiter = ',', value_parser = size_u32)]
    size: Option<Vec<u32>>,
    /// Measure all powers of two from 2 bytes to 8 MiB, with UD to 1 KiB.
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Requests per post, over all queue pairs of a thread [default: bandwidth: 16; rate: 64]
    #[arg(short = 'l', long, value_name = "N")]
    post_list: Option<u32>,
    /// Size of the largest message that is sent inline, of write and send [default: latency: 64; else
    /// 0]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = size_u32)]
    inline_size: Option<u32>,
    /// Signal every Nth request, and the last of each list [default: 64, at most -t]
    #[arg(short = 'Q', long, value_name = "N")]
    cq_mod: Option<u32>,
    #[command(flatten)]
    ends: Ends,
    /// Interface to the device at the server [default: as --backend]
    #[arg(long, value_enum)]
    peer_backend: Option<Backend>,
}

impl Common {
    fn options(&self) -> DeviceOptions {
        DeviceOptions {
            source: self.bind_source_ip,
            ..self.device.clone()
        }
    }

    /// Checks that a measurement without messages has no options that have no effect there.
    fn check(&self, test: Test) -> Result<()> {
        let chosen = self.device.ib_port.is_some() || self.device.gid_index.is_some();
        let what = match test {
            Test::Connect if chosen => {
                "the addresses of a connection choose its port and its GID: no -i, no -x"
            }
            Test::Register if chosen || self.events || self.bind_source_ip.is_some() => {
                "a registration has no peer, and waits for nothing: no -e, -i, -x, --bind_source_ip"
            }
            _ => return Ok(()),
        };
        Err(Usage(what.to_owned()).into())
    }

    /// Returns the parameters of a measurement, of which `base` has the others.
    fn config(&self, test: Test, metric: Metric, base: Config) -> Config {
        let default = match test {
            Test::Connect => 200,
            _ if metric == Metric::Latency => 1000,
            _ => 10_240,
        };
        let amount = match self.duration {
            Some(duration) => Amount::Millis(duration.as_millis() as u64),
            None => Amount::Iterations(self.iters.unwrap_or(default)),
        };
        let tenth = self.iters.unwrap_or(default) / 10;
        Config {
            test,
            metric,
            backend: self.backend,
            peer_backend: self.backend,
            mode: match self.events || test == Test::Connect {
                true => Mode::Event,
                false => Mode::Poll,
            },
            sizes: vec![8],
            amount,
            warmup: self.warmup.unwrap_or(tenth.min(1000)),
            timeout_ms: self.timeout.as_millis() as u64,
            ..base
        }
    }
}

impl Measure {
    fn run(&self, test: Test) -> Result<ExitCode> {
        measure(&self.common, &self.config(test), &self.host, &self.ends)
    }

    fn sizes(&self, test: Test) -> Vec<u32> {
        let datagrams = self.config.transport == Transport::Ud;
        match &self.size {
            _ if self.all => {
                let last = if datagrams { 10 } else { 23 };
                (1..=last).map(|power| 1 << power).collect()
            }
            Some(sizes) => sizes.clone(),
            None if self.metric != Metric::Bandwidth || test.is_atomic() => vec![8],
            None if datagrams => vec![1024],
            None => vec![65_536],
        }
    }

    fn config(&self, test: Test) -> Config {
        let list = match self.metric {
            Metric::Latency => 1,
            Metric::Bandwidth => 16,
            Metric::Rate => 64,
        };
        let base: &Config = &self.config;
        let room = base.depth.saturating_mul(base.qps);
        let config = Config {
            peer_backend: self.peer_backend.unwrap_or(self.common.backend),
            sizes: self.sizes(test),
            list: self.post_list.unwrap_or(list.min(room.max(1))),
            cq_mod: self.cq_mod.unwrap_or(64.min(base.depth.max(1))),
            ..self.common.config(test, self.metric, base.clone())
        };
        let inline = match self.metric {
            Metric::Latency if config.has_inline() => 64,
            _ => 0,
        };
        Config {
            inline: self.inline_size.unwrap_or(inline),
            ..config
        }
    }
}

/// Parses a rate.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("the rate must be a number above 0".to_owned()),
    }
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Write {
                write_with_imm,
                measure: m,
            } => m.run(match write_with_imm {
                true => Test::WriteImm,
                false => Test::Write,
            }),
            Command::Read(m) => m.run(Test::Read),
            Command::Send(m) => m.run(Test::Send),
            Command::Atomic { op, measure: m } => m.run(match op.as_str() {
                "cmp-swap" => Test::CmpSwap,
                _ => Test::FetchAdd,
            }),
            Command::Connect { host, common } => {
                let config = common.config(Test::Connect, Metric::Latency, Config::default());
                measure(&common, &config, &host, &Ends::default())
            }
            Command::Register { size, common } => {
                let mut config = common.config(Test::Register, Metric::Latency, Config::default());
                config.sizes = size.unwrap_or_else(|| vec![4096, 65_536, 1 << 20]);
                measure(&common, &config, "", &Ends::default())
            }
            Command::Study {
                host,
                repeat,
                common,
            } => study(&common, repeat, &host),
            Command::Serve {
                once,
                listen,
                device,
            } => {
                let stop = interrupts()?;
                server::run(&address(&listen, device.port), once, &device, &stop)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Plot { files, out } => {
                for path in plot::run(&files, &out)? {
                    output::print(&path.display().to_string())?;
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Fails for the back end `verbs` of a tool that is built without it.
#[cfg(not(feature = "verbs"))]
fn without_verbs<T>() -> Result<T> {
    anyhow::bail!(
        "this tool is built without libibverbs; run ulp-bench-verbs in place of `ulp bench`, from the \
         package rust-ulp-bench-verbs, or build with `--features verbs`"
    )
}

fn study(common: &Common, repeat: u32, host: &str) -> Result<ExitCode> {
    let base = study::base(common.config(Test::Send, Metric::Rate, Config::default()));
    base.check().map_err(|error| Usage(causes(&error)))?;
    let run = Run {
        config: &base,
        device: &common.options(),
        stop: &interrupts()?,
    };
    let study = study::run(run, repeat, &address(host, common.device.port))?;
    common.format.print(&study, || study.text())?;
    if study.interrupted {
        return Ok(output::interrupted());
    }
    Ok(ExitCode::SUCCESS)
}

/// The options for the rows.
#[derive(Args, Debug, Default)]
struct Ends {
    /// Fail, with the exit status 1, if a row has fewer million messages per second.
    #[arg(long, value_name = "MPPS", value_parser = rate)]
    min_rate: Option<f64>,
    /// Print the throughput in Gbit/s instead of MiB/s.
    #[arg(long = "report_gbits")]
    gbits: bool,
    /// Repeat the measurement until Ctrl-C, and print its results after each duration (-D).
    #[arg(
        long = "run_infinitely",
        requires = "duration",
        conflicts_with = "min_rate"
    )]
    forever: bool,
}

/// Measures, and prints the rows.
fn measure(common: &Common, config: &Config, host: &str, ends: &Ends) -> Result<ExitCode> {
    config.check().map_err(|error| Usage(causes(&error)))?;
    common.check(config.test)?;
    if ends.min_rate.is_some() && config.metric == Metric::Latency {
        let what = "a latency has no rate: --min-rate is for bandwidth and rate";
        return Err(Usage(what.to_owned()).into());
    }
    let run = Run {
        config,
        device: &common.options(),
        stop: &interrupts()?,
    };
    let host = address(host, common.device.port);
    loop {
        let outcome = client::run(run, &host);
        let interrupted = run.stop.load(Ordering::Relaxed);
        let report = Report {
            version: VERSION,
            config: config.clone(),
            command: output::command_line(std::env::args_os()),
            client: Machine::here(),
            server: outcome.server,
            rows: outcome.rows,
            interrupted,
        };
        if outcome.error.is_none() || !report.rows.is_empty() {
            output::print(&match common.format.is_json() {
                true => serde_json::to_string_pretty(&report)?,
                false => table::render(&report, ends.gbits),
            })?;
        }
        match outcome.error {
            Some(error) => return Err(error),
            None if interrupted => return Ok(output::interrupted()),
            None if ends.forever => {}
            None => return Ok(output::answer(is_enough(&report.rows, ends.min_rate))),
        }
    }
}

/// Returns whether no row has a lower rate, and says which has.
fn is_enough(rows: &[stats::Row], min_rate: Option<f64>) -> bool {
    let min = min_rate.unwrap_or(0.0);
    let rates = rows
        .iter()
        .filter_map(|row| Some((row.throughput?.msg_rate_mpps, row.size)));
    let slow = rates.into_iter().find(|(rate, _)| *rate < min);
    if let Some((rate, size)) = slow {
        message!("ulp: {rate:.6} Mpps of {size} bytes are less than --min-rate {min}");
    }
    slow.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn the_default_of_the_warm_up_is_as_the_help_says() {
        for (words, metric, want) in [
            (vec![], Metric::Latency, 100),
            (vec![], Metric::Bandwidth, 1000),
            (vec!["-n", "200"], Metric::Bandwidth, 20),
            (vec!["-n", "1000000"], Metric::Latency, 1000),
            (vec!["-D", "1"], Metric::Latency, 100),
            (vec!["-D", "1"], Metric::Bandwidth, 1000),
            (vec!["-D", "1"], Metric::Rate, 1000),
            (vec!["-D", "1", "--warmup", "7"], Metric::Rate, 7),
        ] {
            let parsed = Words::try_parse_from([vec!["ulp"], words.clone()].concat());
            let common = parsed.unwrap().common;
            let config = common.config(Test::Write, metric, Config::default());
            assert_eq!(config.warmup, want, "{words:?} {metric:?}");
        }
    }
}
