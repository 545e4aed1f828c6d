// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is measured, and how: the client makes it from its options and sends it to the server whole.

use anyhow::{bail, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// RDMA Write.
    Write,
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
    /// Making memory reachable for peers, and taking that back.
    Register,
}

impl Test {
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "fetch-add",
            Self::CmpSwap => "cmp-swap",
            Self::Connect => "connect",
            Self::Register => "register",
        })
    }
}

/// What of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The time of one: half a round trip of writes and sends, a whole one of reads and atomics.
    #[value(alias = "lat")]
    Latency,
    /// Many in flight: bytes per second.
    #[value(alias = "bw")]
    Bandwidth,
    /// Many in flight: messages per second.
    Rate,
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Rate => "rate",
        })
    }
}

/// What carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// /dev/rust_ulp, by one system call for many requests.
    Call,
    /// /dev/rust_ulp, by io_uring.
    Uring,
    /// libibverbs.
    Verbs,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Call => "call",
            Self::Uring => "uring",
            Self::Verbs => "verbs",
        })
    }
}

/// Who moves completions of /dev/rust_ulp into the mapped ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// As the module's parameter says.
    #[default]
    Default,
    /// A kernel worker.
    Workqueue,
    /// The softirq that saw the completion.
    Softirq,
    /// The call that waits for it.
    Caller,
}

/// How one learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By looking again and again.
    Poll,
    /// By sleeping until woken.
    Event,
}

/// How long a row takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// So many messages per thread.
    Iterations(u64),
    /// So many milliseconds.
    Millis(u64),
}

/// Version of [`Config`] and of the messages about it.
pub const VERSION: u32 = 1;

/// The limits of what a client may ask of a server.
pub const MAX_SIZE: u32 = 16 << 20;
const MAX_ITERATIONS: u64 = 1 << 40;
const MAX_DEPTH: u32 = 8192;
const MAX_QPS: u32 = 256;
const MAX_THREADS: u32 = 64;
const MAX_INLINE: u32 = 4096;
/// Bytes of one end's buffer, and of all ends of a run.
const MAX_MEMORY: u64 = 64 << 20;
const MAX_ALL_MEMORY: u64 = 512 << 20;
/// Bytes of slots of one end, where each message has its own.
const SLOT_MEMORY: u64 = 16 << 20;
/// Entries of a ring of io_uring; twice as many can be in flight.
pub const RING_ENTRIES: u32 = 16_384;
/// Alignment of slots.
const ALIGN: u64 = 64;

/// A whole measurement. Every number is checked by [`Config::check`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub test: Test,
    pub metric: Metric,
    pub backend: Backend,
    /// The server's.
    pub peer_backend: Backend,
    pub mode: Mode,
    pub delivery: Delivery,
    /// A thread of the kernel's submits what goes by io_uring, at both ends.
    pub sqpoll: bool,
    /// Bytes per message; a row each.
    pub sizes: Vec<u32>,
    pub amount: Amount,
    /// Messages before those that count, per thread.
    pub warmup: u64,
    /// Requests in flight, per queue pair.
    pub depth: u32,
    /// Receives kept posted, per queue pair.
    pub rx_depth: u32,
    /// Requests per posting, over all queue pairs of a thread.
    pub list: u32,
    /// One request in so many is signaled, where they are posted one by one.
    pub cq_mod: u32,
    /// Queue pairs per thread.
    pub qps: u32,
    pub threads: u32,
    /// Messages of at most so many bytes travel in the request.
    pub inline: u32,
    /// Whether the contents of every message are verified.
    pub verify: bool,
    /// How long anything may take before it counts as failed.
    pub timeout_ms: u64,
}

fn range<T: PartialOrd + std::fmt::Display>(what: &str, n: T, min: T, max: T) -> Result<()> {
    if n < min || n > max {
        bail!("{what} is {min} to {max}, not {n}");
    }
    Ok(())
}

impl Config {
    /// Whether it can be run: the client's options and what a server is sent go through this.
    pub fn check(&self) -> Result<()> {
        range("the number of sizes", self.sizes.len(), 1, 64)?;
        for size in &self.sizes {
            range("a message's size", *size, 1, MAX_SIZE)?;
        }
        match self.amount {
            Amount::Iterations(n) => range("the number of iterations", n, 1, MAX_ITERATIONS)?,
            Amount::Millis(ms) => range("the duration in ms", ms, 1, 86_400_000)?,
        }
        range(
            "the number of messages of the warm-up",
            self.warmup,
            0,
            MAX_ITERATIONS,
        )?;
        range("the depth (-t)", self.depth, 1, MAX_DEPTH)?;
        range("the depth of receives (-r)", self.rx_depth, 2, MAX_DEPTH)?;
        range("the list (-l)", self.list, 1, 4096)?;
        range("the moderation (-Q)", self.cq_mod, 1, MAX_DEPTH)?;
        range("the number of queue pairs (-q)", self.qps, 1, MAX_QPS)?;
        range("the number of threads", self.threads, 1, MAX_THREADS)?;
        range("the inline size (-I)", self.inline, 0, MAX_INLINE)?;
        range("the timeout in ms", self.timeout_ms, 100, 3_600_000)?;
        if self.list > self.depth.saturating_mul(self.qps) {
            bail!(
                "a list (-l) of {} does not fit into {} queue pairs (-q) of depth (-t) {}",
                self.list,
                self.qps,
                self.depth
            );
        }
        if self.cq_mod > self.depth {
            bail!(
                "the moderation (-Q) is {}, more than the depth (-t) of {}",
                self.cq_mod,
                self.depth
            );
        }
        // Queues of completions are per thread.
        let entries = u64::from(self.qps) * u64::from(self.depth.max(self.rx_depth));
        range("queue pairs (-q) times depth (-t, -r)", entries, 1, 65_536)?;
        if [self.backend, self.peer_backend].contains(&Backend::Uring) {
            // Each receive is an entry of the ring.
            let entries = u64::from(self.qps) * u64::from(self.depth + self.rx_depth);
            let what = "by io_uring, queue pairs (-q) times depths (-t and -r)";
            range(what, entries, 1, 2 * u64::from(RING_ENTRIES))?;
        }
        if self.metric == Metric::Latency && self.qps != 1 && self.list_test() {
            bail!("latency is measured on one queue pair (-q) per thread");
        }
        if !self.list_test() && self.backend == Backend::Uring {
            bail!("connections and registrations do not go by io_uring");
        }
        if self.test.is_atomic() && self.sizes != [8] {
            bail!("an atomic operation has 8 bytes");
        }
        if self.list_test() {
            let memory = self
                .sizes
                .iter()
                .map(|size| Layout::new(self, *size).bytes());
            let memory = memory.max().unwrap_or(0);
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

    /// Whether messages are exchanged, in contrast to connections and registrations.
    pub fn list_test(&self) -> bool {
        !matches!(self.test, Test::Connect | Test::Register)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Messages per thread, the warm-up's included, where that is known.
    pub fn messages(&self) -> Option<u64> {
        match self.amount {
            Amount::Iterations(n) => Some(n.saturating_add(self.warmup)),
            Amount::Millis(_) => None,
        }
    }
}

/// Where messages lie in an end's buffer: the same at both ends.
///
/// The first half is where messages arrive, the second where they come from. In each, every queue pair
/// has `slots` slots.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub size: u32,
    pub slots: u64,
    stride: u64,
    qps: u64,
}

impl Layout {
    pub fn new(config: &Config, size: u32) -> Self {
        let stride = u64::from(size.max(8)).next_multiple_of(ALIGN);
        let qps = u64::from(config.qps);
        let slots = if config.verify {
            let room = (SLOT_MEMORY / (2 * stride * qps)).max(2);
            room.min(config.depth.max(config.rx_depth).into()).max(2)
        } else {
            1
        };
        Self {
            size,
            slots,
            stride,
            qps,
        }
    }

    /// Requests in flight per queue pair, so that each has a slot of its own where contents count.
    pub fn depth(&self, config: &Config) -> u64 {
        match config.verify {
            true => u64::from(config.depth).min(self.slots),
            false => config.depth.into(),
        }
    }

    /// Receives posted per queue pair, likewise.
    pub fn rx_depth(&self, config: &Config) -> u64 {
        match config.verify {
            true => u64::from(config.rx_depth).min(self.slots),
            false => config.rx_depth.into(),
        }
    }

    fn half(&self) -> u64 {
        self.stride * self.slots * self.qps
    }

    pub fn bytes(&self) -> u64 {
        2 * self.half()
    }

    /// Where message `number` of queue pair `qp` arrives.
    pub fn inbox(&self, qp: u64, number: u64) -> u64 {
        (qp * self.slots + number % self.slots) * self.stride
    }

    /// Where it comes from.
    pub fn outbox(&self, qp: u64, number: u64) -> u64 {
        self.half() + self.inbox(qp, number)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn config() -> Config {
        Config {
            test: Test::Write,
            metric: Metric::Rate,
            backend: Backend::Call,
            peer_backend: Backend::Verbs,
            mode: Mode::Event,
            delivery: Delivery::Default,
            sqpoll: false,
            sizes: vec![8, 64],
            amount: Amount::Iterations(100),
            warmup: 10,
            depth: 128,
            rx_depth: 512,
            list: 64,
            cq_mod: 64,
            qps: 2,
            threads: 1,
            inline: 0,
            verify: true,
            timeout_ms: 1000,
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
    fn what_is_out_of_range_is_refused() {
        let spoil: &[fn(&mut Config)] = &[
            |c| c.sizes = vec![],
            |c| c.sizes = vec![0],
            |c| c.sizes = vec![MAX_SIZE + 1],
            |c| c.sizes = vec![1; 65],
            |c| c.amount = Amount::Iterations(0),
            |c| c.amount = Amount::Iterations(u64::MAX),
            |c| c.amount = Amount::Millis(0),
            |c| c.warmup = u64::MAX,
            |c| c.depth = 0,
            |c| c.depth = u32::MAX,
            |c| c.rx_depth = 1,
            |c| c.list = 0,
            |c| c.list = 257,
            |c| c.cq_mod = 0,
            |c| c.cq_mod = 129,
            |c| c.qps = 0,
            |c| c.qps = u32::MAX,
            |c| c.threads = 0,
            |c| c.threads = u32::MAX,
            |c| c.inline = u32::MAX,
            |c| c.timeout_ms = 0,
            |c| c.timeout_ms = u64::MAX,
            |c| c.test = Test::FetchAdd,
            |c| c.metric = Metric::Latency,
            |c| (c.qps, c.depth) = (256, 8192),
            |c| (c.qps, c.sizes) = (16, vec![MAX_SIZE]),
            |c| (c.peer_backend, c.qps, c.rx_depth) = (Backend::Uring, 8, 8192),
            |c| (c.test, c.backend) = (Test::Connect, Backend::Uring),
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
    fn slots_do_not_overlap_and_are_inside() {
        for verify in [false, true] {
            for size in [1, 8, 63, 64, 65, 4096] {
                let config = Config { verify, ..config() };
                let layout = Layout::new(&config, size);
                let mut seen = std::collections::BTreeMap::new();
                for qp in 0..2 {
                    for slot in 0..layout.slots {
                        for at in [layout.inbox(qp, slot), layout.outbox(qp, slot)] {
                            assert!(at + u64::from(size) <= layout.bytes());
                            assert_eq!(seen.insert(at, at + u64::from(size)), None);
                        }
                    }
                }
                let ends: Vec<_> = seen.into_iter().collect();
                assert!(ends.windows(2).all(|w| w[0].1 <= w[1].0));
                assert!(layout.depth(&config) >= 1);
            }
        }
    }
}
