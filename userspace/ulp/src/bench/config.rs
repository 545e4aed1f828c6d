// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parameters of a measurement. The client makes them from its options and sends them to the
//! server.

use crate::args::size_u32;
use anyhow::{bail, Result};
use clap::{Args, Parser, ValueEnum};
use rust_ulp::{Grh, Mtu};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// RDMA Write.
    Write,
    /// RDMA Write with immediate data, which consumes a receive.
    WriteImm,
    /// RDMA Read.
    Read,
    /// Send and receive.
    Send,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CmpSwap,
    /// Connecting by the RDMA connection manager, up to the first completed write.
    Connect,
    /// Granting peers access to memory, and revoking it.
    Register,
}

impl Test {
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time per operation: half a round trip of writes and sends, a whole one of reads and atomics.
    #[value(alias = "lat")]
    Latency,
    /// Bytes per second, with many requests outstanding.
    #[value(alias = "bw")]
    Bandwidth,
    /// Messages per second, with many requests outstanding.
    Rate,
}

/// The transport of the queue pairs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    #[value(name = "RC")]
    Rc,
    /// Unreliable connection: sends and writes, which may be lost.
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagram: sends of one packet, which may be lost.
    #[value(name = "UD")]
    Ud,
}

/// The interface to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// /dev/rust_ulp, with one system call for many requests.
    Call,
    /// /dev/rust_ulp, with io_uring.
    Uring,
    /// libibverbs, with the tool ulp-bench-verbs or one that is built with the feature `verbs`.
    Verbs,
}

/// Prints values by the names that they have on the command line.
macro_rules! display_names {
    ($($type:ty),*) => {
        $(impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = self.to_possible_value();
                f.pad(value.as_ref().map_or("", |value| value.get_name()))
            }
        })*
    };
}

display_names!(Test, Metric, Transport, Backend);

/// The context that moves completions of /dev/rust_ulp into the mapped ring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// The default of the module's parameter.
    #[default]
    Default,
    /// A kernel worker.
    Workqueue,
    /// The softirq that handles the completion.
    Softirq,
}

/// The way to wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By polling.
    Poll,
    /// By sleeping until an event.
    Event,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Poll => "polling",
            Self::Event => "by events",
        })
    }
}

/// The length of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// Messages per thread.
    Iterations(u64),
    /// Milliseconds.
    Millis(u64),
}

/// The version of [`Config`] and of the messages between client and server.
pub const VERSION: u32 = 9;

/// The largest message that a client may request of a server.
pub const MAX_SIZE: u32 = 16 << 20;
/// The largest memory that is registered, that of a buffer of the module.
const MAX_REGISTER: u32 = 1 << 30;
const MAX_ITERATIONS: u64 = 1 << 40;
const MAX_DEPTH: u32 = 8192;
const MAX_QPS: u32 = 256;
const MAX_THREADS: u32 = 64;
const MAX_INLINE: u32 = 4096;
/// The sizes of the buffer of one end, and of the buffers of all ends of a run.
const MAX_MEMORY: u64 = 64 << 20;
const MAX_ALL_MEMORY: u64 = 512 << 20;
/// The entries of an io_uring; twice as many requests can be in flight.
pub const RING_ENTRIES: u32 = 16_384;
/// Alignment of messages in a buffer.
const ALIGN: u64 = 64;
/// The size of the largest datagram, that of a packet.
const MAX_DATAGRAM: u32 = 4096;

/// The parameters of a measurement, most of which are options. [`Config::check`] checks every number.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[arg(skip = Test::Write)]
    pub test: Test,
    #[arg(skip = Metric::Latency)]
    pub metric: Metric,
    /// Transport of the queue pairs: RC, UC (write and send) or UD (send)
    #[arg(short = 'c', long = "connection", value_enum, value_name = "TYPE", default_value_t = Transport::Rc, ignore_case = true)]
    pub transport: Transport,
    #[arg(skip = Backend::Call)]
    pub backend: Backend,
    /// The back end of the server.
    #[arg(skip = Backend::Call)]
    pub peer_backend: Backend,
    #[arg(skip = Mode::Poll)]
    pub mode: Mode,
    /// Context that moves completions of /dev/rust_ulp into the ring.
    #[arg(long, value_enum, default_value_t = Delivery::Default)]
    pub delivery: Delivery,
    /// Time for which a waiting thread polls the device's queue before it sleeps, of /dev/rust_ulp
    /// with -e.
    #[arg(long = "busy-poll", value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub busy_poll_us: u32,
    /// With io_uring, let a kernel thread submit (IORING_SETUP_SQPOLL), at both ends.
    #[arg(long)]
    pub sqpoll: bool,
    /// Bytes per message; a row for each.
    #[arg(skip)]
    pub sizes: Vec<u32>,
    #[arg(skip = Amount::Iterations(1))]
    pub amount: Amount,
    /// Messages before the measurement, per thread.
    #[arg(skip)]
    pub warmup: u64,
    /// Outstanding requests per queue pair.
    #[arg(
        short = 't',
        long = "tx-depth",
        value_name = "N",
        default_value_t = 128
    )]
    pub depth: u32,
    /// Posted receives per queue pair.
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub rx_depth: u32,
    /// Requests per post, over all queue pairs of a thread.
    #[arg(skip = 1_u32)]
    pub list: u32,
    /// The distance of signaled requests. The last one of a list is always signaled.
    #[arg(skip = 1_u32)]
    pub cq_mod: u32,
    /// Queue pairs per thread.
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1)]
    pub qps: u32,
    /// Threads, each with its own open device, completion queues and queue pairs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// Have the threads share one open device. Only with the back end call.
    #[arg(long)]
    pub one_file: bool,
    /// The size of the largest message that is sent inline.
    #[arg(skip)]
    pub inline: u32,
    /// Path MTU in bytes [default: that of the ports]
    #[arg(short, long, value_name = "SIZE", value_parser = size_u32)]
    pub mtu: Option<u32>,
    /// Service level.
    #[arg(short = 'S', long, value_name = "N", default_value_t = 0)]
    pub sl: u8,
    /// Traffic class, in IPv4 the type of service.
    #[arg(long = "tclass", value_name = "N", default_value_t = 0)]
    pub traffic_class: u8,
    /// Outstanding reads and atomics per queue pair, of read and atomic [default: 16, as far as the
    /// device goes]
    #[arg(short, long, value_name = "N")]
    pub outs: Option<u8>,
    /// Wait for an acknowledgement before a repetition: 4.096 us * 2^N, 0 for ever; of RC.
    #[arg(short = 'u', long, value_name = "N", default_value_t = 14)]
    pub qp_timeout: u8,
    /// Have the queue pairs of a thread share a receive queue, with -r receives; of send, and not by
    /// io_uring.
    #[arg(long = "use-srq")]
    pub srq: bool,
    /// Limit of the rate at which each end sends, in Gbit/s, of bandwidth and rate.
    #[arg(long = "rate_limit", value_name = "GBIT", value_parser = super::rate)]
    pub rate_limit: Option<f64>,
    /// The deadline of each step.
    #[arg(skip)]
    pub timeout_ms: u64,
}

impl Default for Config {
    /// Returns the parameters without any option.
    fn default() -> Self {
        #[derive(Parser)]
        struct Defaults {
            #[command(flatten)]
            config: Config,
        }
        Defaults::parse_from([""]).config
    }
}

/// The outstanding reads and atomics of a queue pair, as far as the device goes.
const OUTS: u8 = 16;

fn range<T: PartialOrd + std::fmt::Display>(what: &str, n: T, min: T, max: T) -> Result<()> {
    if n < min || n > max {
        bail!("{what} is {min} to {max}, not {n}");
    }
    Ok(())
}

impl Config {
    /// Checks the parameters; both the client and the server do.
    pub fn check(&self) -> Result<()> {
        range("the number of sizes", self.sizes.len(), 1, 64)?;
        for size in &self.sizes {
            match self.test {
                Test::Register => range("the size of the memory (-s)", *size, 1, MAX_REGISTER)?,
                _ => range("a message's size", *size, 1, MAX_SIZE)?,
            }
        }
        match self.amount {
            Amount::Iterations(n) => range("the number of iterations", n, 1, MAX_ITERATIONS)?,
            Amount::Millis(ms) => range("the duration in ms", ms, 1, 86_400_000)?,
        }
        range("the warm-up", self.warmup, 0, MAX_ITERATIONS)?;
        range("the depth (-t)", self.depth, 1, MAX_DEPTH)?;
        range("the depth of receives (-r)", self.rx_depth, 2, MAX_DEPTH)?;
        range("the number of queue pairs (-q)", self.qps, 1, MAX_QPS)?;
        range("the number of threads", self.threads, 1, MAX_THREADS)?;
        range("the inline size (-I)", self.inline, 0, MAX_INLINE)?;
        range("the timeout in ms", self.timeout_ms, 100, 3_600_000)?;
        range("the service level (-S)", self.sl, 0, 15)?;
        range("the timeout of queue pairs (-u)", self.qp_timeout, 0, 31)?;
        if self.mtu.is_some_and(|mtu| Mtu::at_most(mtu).bytes() != mtu) {
            bail!("the MTU (-m) is 256, 512, 1024, 2048 or 4096");
        }
        let room = self.depth.saturating_mul(self.qps);
        let what = "the list (-l), with these depth (-t) and queue pairs (-q),";
        range(what, self.list, 1, room.min(4096))?;
        let what = "the moderation (-Q), with this depth (-t),";
        range(what, self.cq_mod, 1, self.depth)?;
        // The completion queues belong to a thread.
        let (sends, recvs) = self.requests(0);
        let entries = sends.max(recvs);
        range("queue pairs (-q) times depth (-t, -r)", entries, 1, 65_536)?;
        if [self.backend, self.peer_backend].contains(&Backend::Uring) {
            // Each receive is an entry of the ring.
            let what = "by io_uring, queue pairs (-q) times depths (-t and -r)";
            range(what, sends + recvs, 1, 2 * RING_ENTRIES)?;
        }
        if self.one_file && (self.backend != Backend::Call || !self.list_test()) {
            bail!("threads share an open device (--one-file) only when their requests go by /dev/rust_ulp");
        }
        self.check_transport()?;
        self.check_limits()?;
        if self.metric == Metric::Latency && self.qps != 1 && self.list_test() {
            bail!("latency is measured on one queue pair (-q) per thread");
        }
        if !self.list_test() && self.backend == Backend::Uring {
            bail!("connections and registrations cannot use io_uring");
        }
        if self.test.is_atomic() && self.sizes != [8] {
            bail!("an atomic operation has 8 bytes");
        }
        if self.list_test() {
            let largest = self.sizes.iter().max().copied();
            let memory = Layout::new(self, largest.unwrap_or(0)).bytes();
            if memory > MAX_MEMORY || memory * u64::from(self.threads) > MAX_ALL_MEMORY {
                bail!(
                    "{} queue pairs (-q) on {} threads with messages of that size need more than \
                     {} MiB per thread or {} MiB together",
                    self.qps,
                    self.threads,
                    MAX_MEMORY >> 20,
                    MAX_ALL_MEMORY >> 20
                );
            }
        }
        Ok(())
    }

    /// Checks that the transport has the operation.
    fn check_transport(&self) -> Result<()> {
        let (transport, test) = (self.transport, self.test);
        let has = match transport {
            Transport::Rc => true,
            Transport::Uc => [Test::Write, Test::WriteImm, Test::Send].contains(&test),
            Transport::Ud => test == Test::Send,
        };
        if !has {
            bail!("{transport} (-c) has no {test}; UC has write and send, UD has send");
        }
        let largest = self.mtu.unwrap_or(MAX_DATAGRAM);
        if transport == Transport::Ud && self.sizes.iter().any(|size| *size > largest) {
            bail!("a datagram (-c UD) is one packet: its size (-s) is at most {largest}");
        }
        Ok(())
    }

    /// Checks the options that only some operations have.
    fn check_limits(&self) -> Result<()> {
        range("outstanding reads and atomics (-o)", self.outs(), 1, 255)?;
        if self.outs.is_some() && self.test != Test::Read && !self.test.is_atomic() {
            bail!("only reads and atomics are outstanding at the peer (-o)");
        }
        if self.srq && self.test != Test::Send {
            bail!("only sends arrive at a shared receive queue (--use-srq)");
        }
        let ends = [self.backend, self.peer_backend];
        if self.delivery != Delivery::Default && ends == [Backend::Verbs; 2] {
            bail!("libibverbs has no choice of the delivery (--delivery)");
        }
        let can_wait = self.mode == Mode::Event && ends.contains(&Backend::Call);
        if self.busy_poll_us != 0 && !can_wait {
            bail!("only the back end call with -e polls before it sleeps (--busy-poll)");
        }
        if self.sqpoll && !ends.contains(&Backend::Uring) {
            bail!("only the back end uring has a kernel thread that submits (--sqpoll)");
        }
        if self.srq && ends.contains(&Backend::Uring) {
            bail!("io_uring does not tell which queue pair took a shared receive (--use-srq)");
        }
        if self.inline != 0 && !self.has_inline() {
            bail!("only writes and sends have inline data (-I)");
        }
        if let Some(limit) = self.rate_limit {
            if !(limit > 0.0 && limit.is_finite()) {
                bail!("the limit of the rate (--rate_limit) is a number above 0");
            }
            if self.metric == Metric::Latency {
                bail!("a latency has no rate: --rate_limit is for bandwidth and rate");
            }
        }
        Ok(())
    }

    /// Returns whether messages may be lost without an error.
    pub fn is_lossy(&self) -> bool {
        self.transport != Transport::Rc
    }

    /// Returns whether the receiver of the messages counts them.
    pub fn is_counted(&self) -> bool {
        self.metric != Metric::Latency && [Test::Send, Test::WriteImm].contains(&self.test)
    }

    /// Returns the way to wait for completions, if there are any.
    pub fn row_mode(&self) -> Option<Mode> {
        (self.test != Test::Register).then_some(self.mode)
    }

    /// Returns whether the requests can carry their data inline.
    pub fn has_inline(&self) -> bool {
        [Test::Write, Test::WriteImm, Test::Send].contains(&self.test)
    }

    /// Returns whether messages are exchanged, in contrast to connections and registrations.
    pub fn list_test(&self) -> bool {
        !matches!(self.test, Test::Connect | Test::Register)
    }

    /// Returns the sends and the receives that an end may have in flight, with `spare` more on each
    /// queue.
    pub fn requests(&self, spare: u32) -> (u32, u32) {
        let receivers = if self.srq { 1 } else { self.qps };
        (
            self.qps * (self.depth + spare),
            receivers * (self.rx_depth + spare),
        )
    }

    /// Returns the outstanding reads and atomics of a queue pair.
    pub fn outs(&self) -> u8 {
        self.outs.unwrap_or(OUTS)
    }

    /// Returns the most messages of `size` bytes per second that a thread may post, if there is a
    /// limit.
    pub fn most_per_s(&self, size: u32) -> Option<f64> {
        let bits = f64::from(size) * 8.0 * f64::from(self.threads);
        Some(self.rate_limit? * 1e9 / bits)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Returns the number of messages per thread, with those of the warm-up, if it is known.
    pub fn messages(&self) -> Option<u64> {
        match self.amount {
            Amount::Iterations(n) => Some(n.saturating_add(self.warmup)),
            Amount::Millis(_) => None,
        }
    }
}

/// The layout of messages in the buffer of an end, the same at both ends.
///
/// Messages arrive in the first half and leave from the second. All messages of a queue pair have one
/// place in each half.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub size: u32,
    /// Bytes of the network header that a device puts before a message that it receives.
    pub head: u32,
    stride: u64,
    qps: u64,
}

impl Layout {
    pub fn new(config: &Config, size: u32) -> Self {
        let head = match config.transport {
            Transport::Ud => Grh::LEN as u32,
            Transport::Rc | Transport::Uc => 0,
        };
        let stride = u64::from(size.max(8).saturating_add(head)).next_multiple_of(ALIGN);
        Self {
            size,
            head,
            stride,
            qps: config.qps.into(),
        }
    }

    pub fn bytes(&self) -> u64 {
        2 * self.stride * self.qps
    }

    /// Returns the offset that messages of queue pair `qp` arrive at.
    pub fn inbox(&self, qp: u64) -> u64 {
        qp * self.stride + u64::from(self.head)
    }

    /// Returns the offset that messages of queue pair `qp` leave from.
    pub fn outbox(&self, qp: u64) -> u64 {
        self.inbox(self.qps + qp)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn config() -> Config {
        Config {
            metric: Metric::Rate,
            peer_backend: Backend::Verbs,
            mode: Mode::Event,
            sizes: vec![8, 64],
            amount: Amount::Iterations(100),
            warmup: 10,
            list: 64,
            cq_mod: 64,
            qps: 2,
            timeout_ms: 1000,
            ..Config::default()
        }
    }

    #[test]
    fn a_good_one_is_good_and_survives_the_wire() {
        let config = config();
        config.check().unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
    }

    #[test]
    fn without_options_there_is_one_queue_pair_with_the_usual_depths() {
        let config = Config {
            sizes: vec![8],
            timeout_ms: 1000,
            ..Config::default()
        };
        config.check().unwrap();
        let queues = (config.threads, config.qps, config.depth, config.rx_depth);
        assert_eq!(queues, (1, 1, 128, 512));
        assert_eq!((config.transport, config.qp_timeout), (Transport::Rc, 14));
    }

    #[test]
    fn a_registration_may_be_as_large_as_a_buffer() {
        let mut config = Config {
            test: Test::Register,
            sizes: vec![1 << 30],
            ..config()
        };
        config.check().unwrap();
        config.test = Test::Write;
        assert!(config.check().is_err());
    }

    #[test]
    fn a_shared_queue_has_its_receives_once() {
        let mut config = Config {
            test: Test::Send,
            qps: 16,
            rx_depth: 6000,
            ..config()
        };
        let refused = config.check().unwrap_err().to_string();
        assert!(
            refused.contains("queue pairs (-q) times depth"),
            "{refused}"
        );
        config.srq = true;
        config.check().unwrap();
        assert_eq!(config.requests(2), (16 * 130, 6002));
    }

    #[test]
    fn a_limit_of_the_rate_is_in_messages_of_a_thread() {
        let config = |rate_limit| Config {
            threads: 2,
            rate_limit,
            ..config()
        };
        assert_eq!(config(Some(0.8)).most_per_s(1000), Some(50_000.0));
        assert_eq!(config(None).most_per_s(1000), None);
    }

    /// Tests the rules that no command line of `REFUSED` in `main.rs` breaks.
    #[test]
    fn what_is_out_of_range_is_refused() {
        let spoil: &[fn(&mut Config)] = &[
            |c| c.sizes = vec![],
            |c| c.sizes = vec![1; 65],
            |c| c.amount = Amount::Iterations(0),
            |c| c.amount = Amount::Iterations(u64::MAX),
            |c| c.amount = Amount::Millis(0),
            |c| c.warmup = u64::MAX,
            |c| c.depth = 0,
            |c| c.depth = u32::MAX,
            |c| c.rx_depth = 1,
            |c| c.list = 0,
            |c| c.cq_mod = 0,
            |c| c.cq_mod = 129,
            |c| c.qps = u32::MAX,
            |c| c.threads = 0,
            |c| (c.one_file, c.backend) = (true, Backend::Uring),
            |c| c.threads = u32::MAX,
            |c| c.inline = u32::MAX,
            |c| c.mtu = Some(1500),
            |c| c.sl = 16,
            |c| c.timeout_ms = 0,
            |c| c.timeout_ms = u64::MAX,
            |c| (c.qps, c.depth) = (256, 8192),
            |c| (c.qps, c.sizes) = (16, vec![MAX_SIZE]),
            |c| (c.peer_backend, c.qps, c.rx_depth) = (Backend::Uring, 8, 8192),
            |c| (c.test, c.transport) = (Test::Connect, Transport::Uc),
            |c| (c.test, c.sizes) = (Test::Register, vec![(1 << 30) + 1]),
            |c| (c.test, c.srq, c.peer_backend) = (Test::Send, true, Backend::Uring),
            |c| c.rate_limit = Some(0.0),
            |c| c.rate_limit = Some(f64::INFINITY),
            |c| {
                (c.test, c.transport, c.mtu, c.sizes) =
                    (Test::Send, Transport::Ud, Some(1024), vec![1025])
            },
        ];
        for (i, spoil) in spoil.iter().enumerate() {
            let mut config = config();
            spoil(&mut config);
            assert!(config.check().is_err(), "number {i}");
        }
    }

    #[test]
    fn unknown_fields_are_refused() {
        let mut value = serde_json::to_value(config()).unwrap();
        value["surprise"] = 1.into();
        assert!(serde_json::from_value::<Config>(value).is_err());
    }

    #[test]
    fn messages_do_not_overlap_and_are_inside() {
        for transport in [Transport::Rc, Transport::Ud] {
            for size in [1, 8, 63, 64, 65, 4096] {
                let config = Config {
                    transport,
                    ..config()
                };
                let layout = Layout::new(&config, size);
                let mut seen = std::collections::BTreeMap::new();
                for qp in 0..2 {
                    for at in [layout.inbox(qp), layout.outbox(qp)] {
                        assert!(at + u64::from(size) <= layout.bytes());
                        let start = at - u64::from(layout.head);
                        assert_eq!(seen.insert(start, at + u64::from(size)), None);
                    }
                }
                let ends: Vec<_> = seen.into_iter().collect();
                assert!(ends.windows(2).all(|w| w[0].1 <= w[1].0));
            }
        }
    }
}
