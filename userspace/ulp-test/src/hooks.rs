// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peers that the tests of the tool `ulp` need, and that the tool does not have.
//!
//! `kv serve` is a hostile server of the key-value store, `kv worker` a client that records its
//! random operations, `kv check` the check of these records, `kv load` many clients that fill a
//! store. `revoking-peer` revokes its key too early.

use clap::{Args, Subcommand, ValueEnum};
use nix::time::{clock_gettime, ClockId};
use rand::{rngs::SmallRng, RngExt, SeedableRng};
use rust_ulp::qp::{QpAttr, QpState, Rc};
use rust_ulp::tcp::{Listener, Peer};
use rust_ulp::wr::Recv;
use rust_ulp::{Access, Cq, Device, Grant, Mtu, Qp};
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;
use ulp_kv::history::{check, Operation, Outcome, Record};
use ulp_kv::{Condition, Op, Options, Outcome as Got, Server, ServerOptions, Store};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// The key-value store.
    #[command(subcommand)]
    Kv(Kv),
    /// Serves `ulp diagnose PEER`, but revokes the key before the client uses it.
    RevokingPeer {
        /// HOST:PORT
        listen: String,
    },
    /// Serves `ulp diagnose PEER`, but with a broken queue pair for the first client.
    BrokenPeer {
        /// HOST:PORT
        listen: String,
        /// What is wrong with it.
        #[arg(value_enum)]
        what: Break,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Break {
    /// It sends to another queue pair.
    Number,
    /// It expects other packet numbers.
    Psn,
    /// It sends to another address.
    Gid,
    /// It is destroyed.
    Dead,
}

#[derive(Debug, Subcommand)]
pub enum Kv {
    /// Serves a table, and does something wrong all the time.
    Serve(Serve),
    /// Makes random operations and records them, for `check`.
    Worker(Worker),
    /// Tells whether a correct store can have produced the records of some clients.
    Check(Check),
    /// Has many clients fill a store, and others verify every value.
    Load(Load),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// HOST:PORT
    listen: String,
    /// What is wrong with it.
    #[arg(value_enum)]
    what: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// It overwrites all records.
    Records,
    /// It shows random bytes instead of its memory.
    All,
    /// It cuts a client off after every eighth write.
    Cuts,
}

#[derive(Debug, Args)]
pub struct Worker {
    /// The servers, HOST:PORT.
    #[arg(short, long, required = true, value_delimiter = ',')]
    servers: Vec<String>,
    /// The number of the client in its records, and the seed of its random numbers.
    #[arg(long)]
    id: u64,
    /// Operations.
    #[arg(long, default_value_t = 300)]
    ops: u64,
    /// Keys.
    #[arg(long, default_value_t = 4)]
    keys: u32,
    /// Bytes of the longest value.
    #[arg(long, default_value_t = 8192)]
    size: usize,
    /// Stop within the first record that each get reads, until something else was written there.
    #[arg(long)]
    stall: bool,
    /// Milliseconds that an operation may take.
    #[arg(long, default_value_t = 60_000)]
    patience: u64,
    /// Return values without verification.
    #[arg(long)]
    unverified: bool,
    /// Break the connection after every so many operations; 0 is never.
    #[arg(long, default_value_t = 0)]
    breaks: u64,
    /// Operations at a time, each of a client of its own in the records.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    depth: u64,
}

#[derive(Debug, Args)]
pub struct Load {
    /// The servers, HOST:PORT.
    #[arg(short, long, required = true, value_delimiter = ',')]
    servers: Vec<String>,
    /// Clients, each a thread with connections of its own.
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Operations that a client has in flight.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Bytes of all values together; without it, until the store is full.
    #[arg(long)]
    bytes: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The records of the workers.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Returns a flag that SIGINT and SIGTERM set.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Runs `ulp-test kv ...`, `ulp-test revoking-peer ...` and `ulp-test broken-peer ...`.
///
/// The exit status is 0, 1 for a torn value and for records that no correct store can produce, 2
/// for errors.
pub fn run(command: Command) -> ExitCode {
    let done = match command {
        Command::Kv(Kv::Serve(serve)) => serve.run(),
        Command::Kv(Kv::Worker(worker)) => worker.run(),
        Command::Kv(Kv::Check(check)) => check.run(),
        Command::Kv(Kv::Load(load)) => load.run(),
        Command::RevokingPeer { listen } => revoking_peer(&listen),
        Command::BrokenPeer { listen, what } => broken_peer(&listen, what),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ulp-test: {error}");
        ExitCode::from(2)
    })
}

/// Serves one client of `ulp diagnose` after the other.
fn revoking_peer(listen: &str) -> Result<ExitCode> {
    let (stop, device) = (interrupts()?, Device::open_default()?);
    let listener = Listener::bind(&device, listen)?;
    while !stop.load(Ordering::Relaxed) {
        let incoming = match listener.accept(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => continue,
            incoming => incoming?,
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let buffer = pd.alloc_buffer(1 << 16)?;
        let grant = buffer.grant(.., Access::REMOTE_WRITE)?;
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        grant.revoke()?;
        let _qp = incoming.accept(qp, &[&grant])?;
        wait(&cq, &stop)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects a queue pair anew, as it was but for one attribute.
fn break_qp(qp: &Qp<Rc>, what: Break) -> rust_ulp::error::Result<()> {
    let (info, mut peer) = (qp.query()?, *qp.peer());
    let mut path = info.path;
    match what {
        // Soft-RoCE acknowledges packets that are behind: these are ahead.
        Break::Psn => peer.psn = peer.psn.wrapping_sub(0x40_0000) & 0xff_ffff,
        Break::Number => peer.qp_num = 0xab_cdef,
        // The test gives the other host this address, but not on the interface of its device.
        Break::Gid => path.gid = std::net::Ipv4Addr::new(10, 9, 0, 99).into(),
        Break::Dead => {}
    }
    qp.modify(QpAttr::to(QpState::Reset))?;
    let init = QpAttr::to(QpState::Init).pkey_index(info.pkey_index);
    qp.modify(init.port(info.port).access(info.access))?;
    let rtr = QpAttr::to(QpState::Rtr)
        .path(path)
        .path_mtu(Mtu::B256)
        .dest_qp_num(peer.qp_num)
        .rq_psn(peer.psn)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(info.min_rnr_timer);
    qp.modify(rtr)?;
    let rts = QpAttr::to(QpState::Rts)
        .timeout(info.timeout)
        .retry_cnt(info.retry_cnt)
        .rnr_retry(info.rnr_retry)
        .sq_psn(qp.local().psn)
        .max_rd_atomic(1);
    qp.modify(rts).map(drop)
}

/// Serves clients of `ulp diagnose`, which connect a second time when the first queue pair fails.
fn broken_peer(listen: &str, what: Break) -> Result<ExitCode> {
    let (stop, device) = (interrupts()?, Device::open_default()?);
    let listener = Listener::bind(&device, listen)?;
    let mut first: Option<(Option<Qp<Rc>>, Peer, Grant)> = None;
    while !stop.load(Ordering::Relaxed) {
        let incoming = match listener.accept(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => continue,
            incoming => incoming?,
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let (buffer, page) = (pd.alloc_buffer(1 << 16)?, pd.alloc_buffer(4096)?);
        if let Some((Some(qp), ..)) = &first {
            page.write_at(0, &qp.report()?.to_bytes())?;
        }
        let data = buffer.grant(.., Access::REMOTE_WRITE)?;
        let reports = page.grant(.., Access::REMOTE_READ)?;
        let qp = pd.qp_builder::<Rc>(&cq).build()?;
        qp.post_recv(Recv::empty())?;
        let (qp, peer) = incoming.accept(qp, &[&data, &reports])?;
        if first.is_some() {
            wait(&cq, &stop)?;
            continue;
        }
        let qp = match what {
            Break::Dead => None,
            what => {
                break_qp(&qp, what)?;
                Some(qp)
            }
        };
        // Its key stays valid.
        first = Some((qp, peer, data));
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for any completion: the write of the client ends the connection.
fn wait(cq: &Cq, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        match cq.wait(Duration::from_millis(200)) {
            Err(rust_ulp::Error::Timeout { .. }) => {}
            done => return Ok(done.map(|_| ())?),
        }
    }
    Ok(())
}

impl Serve {
    fn run(&self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let options = ServerOptions {
            memory: 1 << 20,
            max_value: 1 << 13,
            ..ServerOptions::default()
        };
        let mut server = Server::new(&self.listen, &options)?;
        match self.what {
            Fault::All => server.show_nonsense()?,
            Fault::Cuts => server.cut_clients(8),
            Fault::Records => {}
        }
        eprintln!("listening at {}", server.local_addr()?);
        let (server, stop) = (&server, &stop);
        std::thread::scope(|scope| {
            if self.what == Fault::Records {
                scope.spawn(move || server.scribble(stop));
            }
            server.run(stop)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(Duration::from(time).as_nanos() as u64)
}

/// Returns a value that repeats a number, so that a mixture of two values is detected.
fn fill(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Returns the number of a value, if the value is whole.
fn number(value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
    (value == fill(number, value.len())).then_some(number)
}

/// An operation of a worker on a key, with its condition and its value.
type Step = (String, Operation, Condition, Vec<u8>);

fn op_of((key, operation, only_if, value): &Step) -> Op<'_> {
    let (key, only_if) = (key.as_bytes(), *only_if);
    match operation {
        Operation::Put(_) | Operation::Swap(..) => Op::Put {
            key,
            value,
            ttl: None,
            only_if,
        },
        Operation::Delete => Op::Delete { key, only_if },
        Operation::Get => Op::get(key),
    }
}

impl Worker {
    fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        let mut options = Options::default();
        if self.unverified {
            options.unverified();
        }
        if self.stall {
            options.stall();
        }
        options.patience = Duration::from_millis(self.patience);
        let mut store = Store::connect(&self.servers, options)?;
        let mut random = SmallRng::seed_from_u64(self.id);
        // Operations of one batch are at the same time: none has to be before another.
        let say = |of: u64, key: &str, begin, end| -> Result<()> {
            let record = Record {
                time: now()?,
                client: self.id * 100 + of,
                key: key.to_owned(),
                begin,
                end,
            };
            // One write per line, because a test may kill this process at any time.
            let line = serde_json::to_string(&record)? + "\n";
            Ok(std::io::stdout().write_all(line.as_bytes())?)
        };
        let mut torn = 0u64;
        // The last value that this client saw of each key, and its version.
        let mut seen: HashMap<String, (u64, u64)> = HashMap::new();
        for first in (0..self.ops).step_by(self.depth as usize) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let mut batch: Vec<Step> = Vec::new();
            for n in first..self.ops.min(first + self.depth) {
                let key = format!("key {}", random.random_range(0..self.keys.max(1)));
                let new = (self.id << 32) | n;
                let mut only_if = Condition::Always;
                let operation = match (random.random_range(0..10), seen.get(&key)) {
                    (0, _) => Operation::Delete,
                    (1 | 2, Some((value, version))) => {
                        only_if = Condition::Version(*version);
                        Operation::Swap(*value, new)
                    }
                    (1..=4, _) => Operation::Put(new),
                    _ => Operation::Get,
                };
                if matches!(operation, Operation::Swap(..)) {
                    seen.remove(&key);
                }
                let value = match operation {
                    Operation::Put(value) | Operation::Swap(_, value) => {
                        fill(value, random.random_range(8..=self.size.max(8)))
                    }
                    _ => Vec::new(),
                };
                if self.breaks != 0 && n % self.breaks == self.breaks - 1 {
                    store.break_link(key.as_bytes())?;
                }
                batch.push((key, operation, only_if, value));
            }
            for (of, (key, operation, ..)) in (0..).zip(&batch) {
                say(of, key, Some(*operation), None)?;
            }
            let ops: Vec<Op> = batch.iter().map(op_of).collect();
            let results = store.run(&ops);
            for ((of, (key, operation, ..)), result) in (0..).zip(&batch).zip(results) {
                let outcome = match result {
                    Ok(Got::Written(_)) if matches!(operation, Operation::Swap(..)) => {
                        Outcome::Swapped(true)
                    }
                    Ok(Got::Written(_)) => Outcome::Done,
                    Ok(Got::Unmet(_)) => Outcome::Swapped(false),
                    Ok(Got::Deleted(was)) => Outcome::Deleted(was),
                    Ok(Got::Value(None)) => Outcome::Found(None),
                    Ok(Got::Value(Some(value))) => {
                        let number = number(&value.bytes).unwrap_or_else(|| {
                            torn += 1;
                            u64::MAX
                        });
                        seen.insert(key.clone(), (number, value.version));
                        Outcome::Found(Some(number))
                    }
                    Ok(Got::Sum(_)) => Outcome::Unknown,
                    Err(error) => {
                        eprintln!("{key}: {operation:?}: {error}");
                        if error.is_reconnectable() {
                            // A server that is started again takes a while.
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        match error.is_unknown() {
                            true => Outcome::Unknown,
                            false => Outcome::Failed,
                        }
                    }
                };
                say(of, key, None, Some(outcome))?;
            }
        }
        let stats = store.stats();
        eprintln!(
            "{} round trips, {} torn reads met, {} believed, {} reconnects",
            stats.round_trips, stats.torn, torn, stats.reconnects
        );
        Ok(match torn {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

impl Load {
    fn options(&self) -> Options {
        let mut options = Options::default();
        options.depth = self.depth;
        options
    }

    /// Runs a thread for each client, and returns what they return.
    fn clients<T: Send>(&self, each: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
        std::thread::scope(|scope| {
            let run = |n| {
                let each = &each;
                scope.spawn(move || each(n).map_err(|error| format!("client {n}: {error}")))
            };
            let threads: Vec<_> = (0..self.clients).map(run).collect();
            let done = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => Ok(done?),
                Err(_) => Err("a client panicked".into()),
            });
            done.collect()
        })
    }

    /// Has a client put its keys and get them again. Returns how many there are, and the round
    /// trips of the gets.
    fn put(&self, client: u64) -> Result<(u64, u64)> {
        let mut store = Store::connect(&self.servers, self.options())?;
        let most = self
            .bytes
            .map(|bytes| bytes / self.clients / self.size.max(1) as u64);
        let most = most.unwrap_or(u64::MAX);
        let mut count = 0;
        while count < most {
            let numbers = count..most.min(count + 8 * self.depth as u64);
            let pairs: Vec<_> = numbers.map(|n| pair(client, n, self.size)).collect();
            let ops: Vec<Op> = pairs
                .iter()
                .map(|(key, value)| Op::put(key, value))
                .collect();
            let mut full = false;
            for result in store.run(&ops) {
                match result {
                    Ok(_) if !full => count += 1,
                    // Of a batch in which one was refused: it is not verified.
                    Ok(_) => {}
                    Err(ulp_kv::Error::Full { .. }) if self.bytes.is_none() => full = true,
                    Err(error) => return Err(error.into()),
                }
            }
            if full {
                break;
            }
        }
        let before = store.stats().round_trips;
        self.verify(&mut store, client, count)?;
        Ok((count, store.stats().round_trips - before))
    }

    /// Verifies the keys of a client.
    fn verify(&self, store: &mut Store, client: u64, count: u64) -> Result<()> {
        for first in (0..count).step_by(8 * self.depth) {
            let numbers = first..count.min(first + 8 * self.depth as u64);
            let pairs: Vec<_> = numbers.map(|n| pair(client, n, self.size)).collect();
            let ops: Vec<Op> = pairs.iter().map(|(key, _)| Op::get(key)).collect();
            for ((key, value), result) in pairs.iter().zip(store.run(&ops)) {
                match result? {
                    Got::Value(Some(found)) if found.bytes == *value => {}
                    Got::Value(Some(_)) => return Err(format!("{key:?} has a wrong value").into()),
                    other => return Err(format!("{key:?}: {other:?}").into()),
                }
            }
        }
        Ok(())
    }

    fn run(self) -> Result<ExitCode> {
        let put = self.clients(|client| self.put(client))?;
        let keys: u64 = put.iter().map(|(count, _)| count).sum();
        let trips: u64 = put.iter().map(|(_, trips)| trips).sum();
        println!(
            "loaded {keys} keys, {} bytes of values",
            keys * self.size as u64
        );
        println!("remembered {keys} keys in {trips} round trips");
        // Each client reads what another has put.
        let trips = self.clients(|client| {
            let mut store = Store::connect(&self.servers, self.options())?;
            let of = (client + 1) % self.clients;
            self.verify(
                &mut store,
                of,
                put.get(of as usize).map_or(0, |(count, _)| *count),
            )?;
            Ok(store.stats().round_trips)
        })?;
        println!(
            "verified {keys} keys in {} round trips",
            trips.iter().sum::<u64>()
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a key of a client, and the value that belongs to it.
fn pair(client: u64, n: u64, len: usize) -> (Vec<u8>, Vec<u8>) {
    let number = (client << 40) | n;
    (
        number.to_be_bytes().to_vec(),
        fill(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), len),
    )
}

impl Check {
    fn run(self) -> Result<ExitCode> {
        let mut history = Vec::new();
        for path in &self.files {
            let file = std::fs::File::open(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            for line in BufReader::new(file).lines() {
                let line = line?;
                // The last line of a client that was killed may be incomplete.
                if let Ok(record) = serde_json::from_str::<Record>(&line) {
                    history.push(record);
                }
            }
        }
        if history.is_empty() {
            return Err("there are no records in these files".into());
        }
        let count = match check(&history) {
            Ok(count) => count,
            Err(violation) => {
                eprintln!("ulp-test: {violation}");
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
