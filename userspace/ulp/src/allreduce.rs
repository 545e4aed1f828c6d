// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp allreduce`: adds up vectors of several hosts, such that each host has all of the sums.
//!
//! The algorithm is the ring all-reduce. Each rank has a vector of numbers, cut into as many chunks
//! as there are ranks. The first half has `ranks - 1` steps. In each step every rank writes a chunk
//! to the next rank, which adds the chunk to its own. After that, each rank has the sums of one
//! chunk. In the second half the sums go around the ring in the same way. Each rank sends `2 (ranks
//! - 1) / ranks` times its vector.
//!
//! Over RDMA a step is one RDMA Write with immediate data, the number of the step. In the first
//! half it writes to a slot of its own in the inbox of the next rank, in the second half to its
//! final place. A round begins when all ranks have ended the previous one, so no rank overwrites
//! data in use. Over TCP, for comparison, the same bytes go through a socket.
//!
//! - [`ring`]: the connections between the ranks, barriers, and the detection of lost ranks

mod ring;

use crate::args::{address, duration, DeviceArg};
use crate::output::{self, interrupts, table, FormatArgs, Usage};
use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use ring::{Data, Ring};
use rust_ulp::{
    Access, Buffer, Cq, Error, Grant, Listener, Opcode, Qp, Rc, Recv, RemoteSlice, Write,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// TCP port of a rank.
const PORT: u16 = 7180;
/// The interval at which a rank that waits checks for lost ranks and Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);
/// The size of an `f32`.
const WORD: usize = 4;

/// Arguments of `ulp allreduce`. All ranks get the same, apart from `--rank`.
#[derive(Debug, Args)]
pub struct AllReduce {
    /// The ranks in order, 2 to 16 times HOST or HOST:PORT; each listens at its own address
    #[arg(required = true, value_delimiter = ',', value_name = "HOST,...")]
    ranks: Vec<String>,
    /// The number of this rank, from 0
    #[arg(short, long)]
    rank: usize,
    /// Numbers per vector, of 4 bytes each
    #[arg(short = 'n', long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    count: u32,
    /// Rounds
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Transports to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rdma", "tcp"])]
    over: Vec<Over>,
    /// Time to wait for the other ranks, in seconds or with a unit
    #[arg(short, long, value_name = "TIME", default_value = "30", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    device: DeviceArg,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Over {
    Rdma,
    Tcp,
}

impl Over {
    fn name(self) -> &'static str {
        match self {
            Self::Rdma => "RDMA",
            Self::Tcp => "TCP",
        }
    }
}

/// The output of `ulp allreduce`.
#[derive(Serialize, JsonSchema)]
pub struct Results {
    rows: Vec<Row>,
}

/// The measurements of one transport.
#[derive(Serialize, JsonSchema)]
struct Row {
    over: Over,
    rank: usize,
    ranks: usize,
    /// The size of the vector.
    bytes: usize,
    iterations: usize,
    median_us: f64,
    min_us: f64,
    /// The size of the vector, divided by the median.
    bandwidth_mib_s: f64,
    /// The bytes that each rank sends, divided by the median.
    sent_mib_s: f64,
    /// Sums that differ from those of plain addition.
    wrong: usize,
}

/// Returns an element of the vector of a rank: a multiple of 1/8, so that sums are exact in any
/// order.
fn number(rank: usize, iteration: usize, place: usize) -> f32 {
    let mixed = (place as u32)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(rank as u32 * 977 + iteration as u32 * 131)
        >> 16;
    (mixed % 4001) as f32 / 8.0 - 250.0
}

/// Returns the vector of a rank, as bytes.
fn vector(rank: usize, iteration: usize, count: usize) -> Vec<u8> {
    let numbers = (0..count).map(|place| number(rank, iteration, place));
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// Adds the numbers of `theirs` to those of `ours`.
fn add(ours: &mut [u8], theirs: &[u8]) {
    for (ours, theirs) in ours.chunks_exact_mut(WORD).zip(theirs.chunks_exact(WORD)) {
        if let (Ok(a), Ok(b)) = (<[u8; WORD]>::try_from(&*ours), theirs.try_into()) {
            ours.copy_from_slice(&(f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes());
        }
    }
}

/// Returns the number of sums that differ from those of plain addition.
fn wrong(sums: &[u8], ranks: usize, iteration: usize) -> usize {
    let is_wrong = |(place, sum): (usize, &[u8])| {
        let want: f32 = (0..ranks).map(|rank| number(rank, iteration, place)).sum();
        sum != want.to_le_bytes()
    };
    let sums = sums.chunks_exact(WORD).enumerate();
    sums.filter(|sum| is_wrong(*sum)).count()
}

/// Returns the bytes of a chunk.
fn chunk(chunk: usize, ranks: usize, count: usize) -> Range<usize> {
    let start = |chunk: usize| chunk * count / ranks * WORD;
    start(chunk)..start(chunk + 1)
}

/// One step of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// From 0.
    number: usize,
    /// The bytes that go to the next rank.
    sends: Range<usize>,
    /// The bytes that come from the previous rank.
    takes: Range<usize>,
    /// Whether the rank adds the bytes to its own, rather than replaces its own.
    adds: bool,
}

/// Returns the steps of a rank, in order.
fn steps(rank: usize, ranks: usize, count: usize) -> impl Iterator<Item = Step> {
    (0..2 * (ranks - 1)).map(move |number| {
        let adds = number < ranks - 1;
        // The chunk that came in the previous step goes on.
        let sends = rank + 2 * ranks - number;
        Step {
            number,
            sends: chunk(sends % ranks, ranks, count),
            takes: chunk((sends - 1) % ranks, ranks, count),
            adds,
        }
    })
}

/// A transport of the steps.
trait Carrier {
    /// Stores the vector of this rank.
    fn fill(&mut self, vector: &[u8]) -> Result<()>;
    /// Sends and receives the chunks of a step.
    fn step(&mut self, step: &Step, ring: &Ring) -> Result<()>;
    /// Returns the vector.
    fn result(&mut self) -> Result<Vec<u8>>;
}

struct Rdma {
    cq: Cq,
    /// To the next rank.
    next: Qp<Rc>,
    /// From the one before, which nothing is posted to but receives.
    prev: Qp<Rc>,
    /// This rank's vector, and behind it the inbox.
    memory: Buffer,
    /// By which the rank before writes to it, for as long as there is this.
    _grant: Grant,
    /// The same of the next rank.
    theirs: RemoteSlice,
    count: usize,
    /// Bytes of a place in the inbox.
    place: usize,
    ours: Vec<u8>,
    came: Vec<u8>,
    /// Steps of this round that have come; the rank before may be ahead.
    come: usize,
}

impl Rdma {
    fn connect(ring: &Ring, device: &DeviceArg, count: usize) -> Result<Self> {
        let device = device.open()?;
        let ranks = ring.ranks();
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
        let place = count.div_ceil(ranks) * WORD;
        let memory = pd.alloc_buffer(count * WORD + (ranks - 1) * place)?;
        let grant = memory
            .grant(.., Access::REMOTE_WRITE)
            .context("the vector needs memory under one key: take a smaller --count")?;
        let listener = Listener::bind((ring.own_ip()?, 0))?;
        let next_port = ring.tell(listener.local_addr()?.port())?;
        let (next, prev) = (
            pd.create_qp::<Rc>(&cq).build()?,
            pd.create_qp::<Rc>(&cq).build()?,
        );
        // Receives for a whole round, because the previous rank may be ahead.
        (0..2 * ranks).try_for_each(|_| prev.post_recv(Recv::empty()))?;
        let (ip, patience) = (ring.next_ip()?, ring.patience());
        let accept = || listener.accept(patience)?.accept(prev, &[&grant]);
        let (prev, next) = std::thread::scope(|scope| {
            let prev = scope.spawn(accept);
            let next = next.connect_tcp((ip, next_port), &[]);
            (prev.join(), next)
        });
        let (next, peer) = next.context("connecting to the next rank")?;
        let prev = prev.map_err(|_| anyhow!("a thread panicked"))?;
        let (prev, _) = prev.context("waiting for the previous rank")?;
        let theirs = peer.grant(0)?;
        ensure!(
            theirs.len() == memory.len() as u64,
            "the next rank has another --count"
        );
        Ok(Self {
            cq,
            next,
            prev,
            memory,
            _grant: grant,
            theirs,
            count,
            place,
            ours: Vec::new(),
            came: Vec::new(),
            come: 0,
        })
    }

    /// Returns the offset that the chunk of a step of the first half is written to.
    fn inbox(&self, step: &Step) -> usize {
        self.count * WORD + step.number * self.place
    }
}

impl Carrier for Rdma {
    fn fill(&mut self, vector: &[u8]) -> Result<()> {
        self.come = 0;
        Ok(self.memory.write_at(0, vector)?)
    }

    fn step(&mut self, step: &Step, ring: &Ring) -> Result<()> {
        let to = match step.adds {
            true => self.inbox(step),
            false => step.sends.start,
        } as u64;
        let len = step.sends.len() as u64;
        let write = Write::new(
            self.memory.slice(step.sends.clone())?,
            self.theirs.slice(to..to + len)?,
        );
        // At most 2 * (16 - 1).
        self.next.post(write.imm(step.number as u32))?;
        let mut sent = false;
        let deadline = Instant::now() + ring.patience();
        while !sent || self.come <= step.number {
            let done = match self.cq.wait(SLICE) {
                Err(Error::Timeout { .. }) => {
                    ring.look(deadline)?;
                    continue;
                }
                done => done?,
            };
            let done = match done.ok() {
                Ok(done) => done,
                Err(error) => return Err(ring.why(error)),
            };
            match (done.opcode, done.imm) {
                (Opcode::Write, _) => sent = true,
                (Opcode::RecvWriteImm, Some(imm)) if imm as usize == self.come => {
                    self.prev.post_recv(Recv::empty())?;
                    self.come += 1;
                }
                (opcode, imm) => bail!(
                    "unexpected completion {opcode:?} {imm:?} after {} steps",
                    self.come
                ),
            }
        }
        if step.adds {
            let len = step.takes.len();
            self.ours.resize(len, 0);
            self.came.resize(len, 0);
            self.memory.read_at(step.takes.start, &mut self.ours)?;
            self.memory.read_at(self.inbox(step), &mut self.came)?;
            add(&mut self.ours, &self.came);
            self.memory.write_at(step.takes.start, &self.ours)?;
        }
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<u8>> {
        Ok(self.memory.to_vec(..self.count * WORD)?)
    }
}

struct Tcp {
    data: Data,
    vector: Vec<u8>,
    came: Vec<u8>,
}

impl Carrier for Tcp {
    fn fill(&mut self, vector: &[u8]) -> Result<()> {
        self.vector = vector.to_vec();
        Ok(())
    }

    fn step(&mut self, step: &Step, ring: &Ring) -> Result<()> {
        self.came.resize(step.takes.len(), 0);
        let sends = self.vector.get(step.sends.clone()).unwrap_or_default();
        self.data.exchange(sends, &mut self.came, ring)?;
        let ours = self.vector.get_mut(step.takes.clone()).unwrap_or_default();
        match step.adds {
            true => add(ours, &self.came),
            false => ours.copy_from_slice(&self.came),
        }
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<u8>> {
        Ok(self.vector.clone())
    }
}

impl AllReduce {
    /// All iterations over one carrier.
    fn measure(&self, over: Over, ring: &Ring) -> Result<Row> {
        let (ranks, count) = (self.ranks.len(), self.count as usize);
        let mut carrier: Box<dyn Carrier> = match over {
            Over::Rdma => Box::new(Rdma::connect(ring, &self.device, count)?),
            Over::Tcp => Box::new(Tcp {
                data: ring.data()?,
                vector: Vec::new(),
                came: Vec::new(),
            }),
        };
        message!("rank {} of {ranks}: over {}", self.rank, over.name());
        let (mut times, mut bad) = (Vec::new(), 0);
        for iteration in 0..self.iters as usize {
            carrier.fill(&vector(self.rank, iteration, count))?;
            ring.meet()?;
            let begin = Instant::now();
            for step in steps(self.rank, ranks, count) {
                carrier.step(&step, ring)?;
            }
            times.push(begin.elapsed().as_secs_f64());
            bad += wrong(&carrier.result()?, ranks, iteration);
        }
        // No rank leaves while another waits for an acknowledgement.
        ring.meet()?;
        times.sort_by(f64::total_cmp);
        let bytes = count * WORD;
        let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        let bandwidth = bytes as f64 / median / f64::from(1 << 20);
        Ok(Row {
            over,
            rank: self.rank,
            ranks,
            bytes,
            iterations: times.len(),
            median_us: median * 1e6,
            min_us: times.first().copied().unwrap_or(f64::NAN) * 1e6,
            bandwidth_mib_s: bandwidth,
            sent_mib_s: bandwidth * (2 * (ranks - 1)) as f64 / ranks as f64,
            wrong: bad,
        })
    }

    pub fn run(self) -> Result<ExitCode> {
        let ranks = self.ranks.len();
        let usage = |text: String| anyhow::Error::new(Usage(text));
        ensure!(
            (2..=16).contains(&ranks),
            usage(format!("{ranks} ranks: 2 to 16 are possible"))
        );
        ensure!(
            self.rank < ranks,
            usage(format!(
                "--rank {}: there are {ranks} ranks, from 0",
                self.rank
            ))
        );
        ensure!(
            self.count as usize >= ranks,
            usage(format!(
                "--count {}: at least one for each rank",
                self.count
            ))
        );
        let names = self.ranks.iter().map(|host| address(host, PORT)).collect();
        let stop = interrupts()?;
        let ring = Ring::connect(names, self.rank, self.count, self.timeout, stop.clone())?;
        let (mut results, mut failed) = (Results { rows: Vec::new() }, None);
        for over in &self.over {
            match self.measure(*over, &ring) {
                Ok(row) => results.rows.push(row),
                Err(error) => {
                    failed = Some(ring.leave(error));
                    break;
                }
            }
        }
        if !results.rows.is_empty() {
            let head = [
                "OVER",
                "RANK",
                "RANKS",
                "BYTES",
                "ITERATIONS",
                "MEDIAN[us]",
                "MIN[us]",
                "MiB/s",
                "SENT[MiB/s]",
                "WRONG",
            ];
            let cells = |row: &Row| {
                vec![
                    row.over.name().to_owned(),
                    row.rank.to_string(),
                    row.ranks.to_string(),
                    row.bytes.to_string(),
                    row.iterations.to_string(),
                    format!("{:.0}", row.median_us),
                    format!("{:.0}", row.min_us),
                    format!("{:.1}", row.bandwidth_mib_s),
                    format!("{:.1}", row.sent_mib_s),
                    row.wrong.to_string(),
                ]
            };
            self.format
                .print(&results, || table(&head, results.rows.iter().map(cells)))?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        ensure!(
            results.rows.iter().all(|row| row.wrong == 0),
            "sums differ from those of plain addition"
        );
        Ok(match stop.load(Ordering::Relaxed) {
            true => output::interrupted(),
            false => ExitCode::SUCCESS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of all ranks, each of which takes what the one before has sent.
    fn reduce(ranks: usize, count: usize) -> Vec<Vec<u8>> {
        let mut vectors: Vec<_> = (0..ranks).map(|rank| vector(rank, 3, count)).collect();
        let all: Vec<Vec<Step>> = (0..ranks)
            .map(|rank| steps(rank, ranks, count).collect())
            .collect();
        for n in 0..2 * (ranks - 1) {
            let sent: Vec<Vec<u8>> = (0..ranks)
                .map(|rank| vectors[rank][all[rank][n].sends.clone()].to_vec())
                .collect();
            for rank in 0..ranks {
                let (step, prev) = (&all[rank][n], (rank + ranks - 1) % ranks);
                assert_eq!(step.takes, all[prev][n].sends);
                let ours = &mut vectors[rank][step.takes.clone()];
                match step.adds {
                    true => add(ours, &sent[prev]),
                    false => ours.copy_from_slice(&sent[prev]),
                }
            }
        }
        vectors
    }

    #[test]
    fn every_rank_has_the_plain_sums() {
        for ranks in 2..=5 {
            for count in [ranks, ranks + 1, 97, 1000] {
                for sums in reduce(ranks, count) {
                    assert_eq!(wrong(&sums, ranks, 3), 0, "{ranks} ranks, {count} numbers");
                }
            }
        }
    }

    #[test]
    fn a_wrong_sum_is_noticed() {
        let mut sums = reduce(3, 100).remove(1);
        sums[41] ^= 1;
        assert_eq!(wrong(&sums, 3, 3), 1);
        assert_ne!(wrong(&sums, 3, 4), 0);
    }

    #[test]
    fn chunks_are_all_of_it_and_no_place_is_too_small() {
        for ranks in 2..=16 {
            for count in [16, 17, 1 << 26] {
                let mut end = 0;
                for n in 0..ranks {
                    let bytes = chunk(n, ranks, count);
                    assert_eq!(bytes.start, end);
                    assert!(bytes.len() <= count.div_ceil(ranks) * WORD);
                    end = bytes.end;
                }
                assert_eq!(end, count * WORD);
            }
        }
    }
}
