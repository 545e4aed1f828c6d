// SPDX-License-Identifier: MIT OR Apache-2.0

#![deny(missing_docs, unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

//! Adds up vectors of several hosts, such that each host has all of the sums, as a demonstration.
//!
//! The algorithm is the ring all-reduce. Each rank has a vector of numbers, cut into as many chunks
//! as there are ranks. The first half has `ranks - 1` steps. In each step every rank writes a chunk
//! to the next rank, which adds the chunk to its own. After that, each rank has the sums of one
//! chunk. In the second half the sums go around the ring in the same way. Each rank sends `2 (ranks
//! - 1) / ranks` times its vector.
//!
//! Chunk `n` begins its way at rank `n`, so its sums are added up in the order of the ranks from
//! there on. Every rank has the same bits, also where a sum is rounded.
//!
//! Over RDMA a chunk goes in up to [`PIECES`] pieces. A piece is one RDMA Write with immediate data,
//! the number of the piece. In the first half it writes to a slot of its own in the inbox of the
//! next rank, in the second half to its final place. A rank adds a piece and passes it on when it
//! has come, while the device transfers others. A round begins when all ranks have ended the
//! previous one, so no rank overwrites data in use. Over TCP, for comparison, the same bytes go
//! through a socket, a chunk at a time.
//!
//! - [`number`]: the types of numbers, and sums of them
//! - [`ring`]: the connections between the ranks, barriers, and the detection of lost ranks

#[path = "../common.rs"]
mod common;
mod number;
mod ring;

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::{Parser, ValueEnum};
use common::{address, interrupts};
use number::{add, chunk, vector, wrong, Type};
use ring::{Data, Deadline, Ring};
use rust_ulp::qp::Rc;
use rust_ulp::tcp::{Listener, TcpOptions};
use rust_ulp::wr::{Recv, Write};
use rust_ulp::{Access, Buffer, Completion, Cq, Device, Error, Grant, Opcode, Qp, RemoteSlice};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// TCP port of a rank.
const PORT: u16 = 7180;
/// The interval at which a rank that waits checks for lost ranks and Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);
/// The most pieces that a chunk is cut into.
const PIECES: usize = 8;
/// The smallest size of a piece, in bytes: smaller ones cost more requests than overlap gains.
const PIECE: usize = 16 << 10;

/// Adds up vectors of 2 to 4 hosts with a ring all-reduce, by RDMA and by TCP. All ranks get the same
/// arguments, apart from --rank.
#[derive(Debug, Parser)]
struct AllReduce {
    /// The ranks in order, 2 to 4 times HOST or HOST:PORT; each listens at its own address
    #[arg(required = true, value_delimiter = ',', value_name = "HOST,...")]
    ranks: Vec<String>,
    /// The number of this rank, from 0
    #[arg(short, long)]
    rank: usize,
    /// Numbers per vector
    #[arg(short = 'n', long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 26))]
    count: u32,
    /// Type of the numbers
    #[arg(long = "type", value_enum, default_value_t = Type::F32)]
    numbers: Type,
    /// Rounds
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Transports to measure, one after the other
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["rdma", "tcp"])]
    over: Vec<Over>,
    /// Seconds to wait for progress of the other ranks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Over {
    Rdma,
    Tcp,
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
fn steps(rank: usize, ranks: usize, count: usize, numbers: Type) -> impl Iterator<Item = Step> {
    (0..2 * (ranks - 1)).map(move |number| {
        let adds = number < ranks - 1;
        // The chunk that came in the previous step goes on.
        let sends = rank + 2 * ranks - number;
        Step {
            number,
            sends: chunk(sends % ranks, ranks, count, numbers),
            takes: chunk((sends - 1) % ranks, ranks, count, numbers),
            adds,
        }
    })
}

/// Returns the pieces of a chunk of `bytes`, in order. All have the same length, but the last one
/// may be shorter.
fn pieces(bytes: Range<usize>, numbers: Type) -> impl Iterator<Item = Range<usize>> {
    let piece = bytes.len().div_ceil(PIECES).max(PIECE);
    let (piece, end) = (piece.next_multiple_of(numbers.bytes()), bytes.end);
    bytes
        .step_by(piece)
        .map(move |start| start..end.min(start + piece))
}

/// A transport of the steps.
trait Carrier {
    /// Stores the vector of this rank.
    fn fill(&mut self, vector: &[u8]) -> Result<()>;
    /// Takes all steps of a round.
    fn reduce(&mut self, steps: &[Step], ring: &Ring) -> Result<()>;
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
    numbers: Type,
    /// Bytes of the vector.
    bytes: usize,
    /// Bytes of a place in the inbox.
    place: usize,
}

impl Rdma {
    fn connect(ring: &Ring, device: Option<&str>, count: usize, numbers: Type) -> Result<Self> {
        let device = match device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let ranks = ring.ranks();
        // All requests of a round at once.
        let most = 2 * (ranks - 1) * PIECES;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(2 * most as u32)?);
        let bytes = count * numbers.bytes();
        let place = count.div_ceil(ranks) * numbers.bytes();
        let memory = pd.alloc_buffer(bytes + (ranks - 1) * place)?;
        let grant = memory
            .grant(.., Access::REMOTE_WRITE)
            .context("the vector needs memory under one key: take a smaller --count")?;
        let listener = Listener::bind(&device, ring.own_addr(0)?)?;
        let next_port = ring.tell(listener.local_addr()?.port())?;
        let (next, prev) = (
            pd.qp_builder::<Rc>(&cq).max_send_wr(most as u32).build()?,
            pd.qp_builder::<Rc>(&cq).max_recv_wr(most as u32).build()?,
        );
        // Receives for a whole round, because the previous rank may be ahead.
        (0..most).try_for_each(|_| prev.post_recv(Recv::empty()))?;
        let (addr, patience) = (ring.next_addr(next_port)?, ring.patience);
        let accept = || -> rust_ulp::error::Result<_> {
            Ok(listener.accept(patience)?.accept(prev, &[&grant])?)
        };
        let (prev, next) = std::thread::scope(|scope| {
            let prev = scope.spawn(accept);
            let options = TcpOptions::default().timeout(patience);
            let next = next.connect_tcp_with(addr, &[], options);
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
            numbers,
            bytes,
            place,
        })
    }

    /// Returns the offset at which the next rank takes a piece of a chunk of `step`.
    fn target(&self, step: &Step, chunk: &Range<usize>, piece: &Range<usize>) -> usize {
        match step.adds {
            true => self.bytes + step.number * self.place + (piece.start - chunk.start),
            false => piece.start,
        }
    }

    /// Writes a piece of the chunk that this rank sends in `step`.
    fn send(&self, step: &Step, index: usize, piece: Range<usize>) -> Result<()> {
        let to = self.target(step, &step.sends, &piece) as u64;
        let remote = self.theirs.slice(to..to + piece.len() as u64)?;
        let imm = (step.number * PIECES + index) as u32;
        let write = Write::new(self.memory.slice(piece)?, remote).imm(imm);
        Ok(self.next.post(write)?)
    }

    /// Adds a piece that came into the inbox to this rank's own.
    fn add(&self, step: &Step, piece: &Range<usize>) -> Result<()> {
        let from = self.target(step, &step.takes, piece);
        let mut ours = self.memory.to_vec(piece.clone())?;
        let came = self.memory.to_vec(from..from + piece.len())?;
        add(self.numbers, &mut ours, &came);
        Ok(self.memory.write_at(piece.start, &ours)?)
    }

    /// Waits for the completion of a request.
    fn completion(&self, ring: &Ring, deadline: &mut Deadline) -> Result<Completion> {
        loop {
            match self.cq.wait(SLICE) {
                Err(Error::Timeout { .. }) => ring.look(deadline)?,
                done => {
                    let done = done?.ok().map_err(|error| ring.why(error))?;
                    deadline.progress();
                    return Ok(done);
                }
            }
        }
    }
}

impl Carrier for Rdma {
    fn fill(&mut self, vector: &[u8]) -> Result<()> {
        Ok(self.memory.write_at(0, vector)?)
    }

    fn reduce(&mut self, steps: &[Step], ring: &Ring) -> Result<()> {
        let numbers = self.numbers;
        let mut expected = Vec::new();
        for step in steps {
            let pieces = pieces(step.takes.clone(), numbers).enumerate();
            expected.extend(pieces.map(|(index, piece)| (step, index, piece)));
        }
        let mut sent = 0;
        if let Some(first) = steps.first() {
            for (index, piece) in pieces(first.sends.clone(), numbers).enumerate() {
                self.send(first, index, piece)?;
                sent += 1;
            }
        }
        let mut deadline = ring.deadline();
        // The pieces come in the order of the previous rank's writes.
        for (step, index, piece) in expected {
            loop {
                let done = self.completion(ring, &mut deadline)?;
                match (done.opcode, done.imm) {
                    (Opcode::Write, _) => sent -= 1,
                    (Opcode::RecvWriteImm, Some(imm)) => {
                        let want = step.number * PIECES + index;
                        ensure!(
                            imm as usize == want,
                            "piece {imm} came, and piece {want} was expected"
                        );
                        break;
                    }
                    (opcode, imm) => bail!("unexpected completion {opcode:?} {imm:?}"),
                }
            }
            self.prev.post_recv(Recv::empty())?;
            if step.adds {
                self.add(step, &piece)?;
            }
            // What has come in a step goes on in the next one.
            if let Some(next) = steps.get(step.number + 1) {
                self.send(next, index, piece)?;
                sent += 1;
            }
        }
        while sent > 0 {
            let done = self.completion(ring, &mut deadline)?;
            ensure!(
                done.opcode == Opcode::Write,
                "unexpected completion {:?} {:?} at the end",
                done.opcode,
                done.imm
            );
            sent -= 1;
        }
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<u8>> {
        Ok(self.memory.to_vec(..self.bytes)?)
    }
}

struct Tcp {
    data: Data,
    numbers: Type,
    vector: Vec<u8>,
    came: Vec<u8>,
}

impl Carrier for Tcp {
    fn fill(&mut self, vector: &[u8]) -> Result<()> {
        self.vector = vector.to_vec();
        Ok(())
    }

    fn reduce(&mut self, steps: &[Step], ring: &Ring) -> Result<()> {
        let mut deadline = ring.deadline();
        for step in steps {
            self.came.resize(step.takes.len(), 0);
            let sends = self.vector.get(step.sends.clone()).unwrap_or_default();
            self.data
                .exchange(sends, &mut self.came, ring, &mut deadline)?;
            let ours = self.vector.get_mut(step.takes.clone()).unwrap_or_default();
            match step.adds {
                true => add(self.numbers, ours, &self.came),
                false => ours.copy_from_slice(&self.came),
            }
        }
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<u8>> {
        Ok(self.vector.clone())
    }
}

/// Returns the median of sorted numbers: the mean of two where their number is even.
fn median(sorted: &[f64]) -> f64 {
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    (at(sorted.len().saturating_sub(1) / 2) + at(sorted.len() / 2)) / 2.0
}

impl AllReduce {
    /// Runs all iterations over one carrier, and prints a row about them. Returns the number of sums
    /// that differ from those of addition in the order of the ring.
    fn measure(&self, over: Over, ring: &Ring) -> Result<usize> {
        let (ranks, count, numbers) = (self.ranks.len(), self.count as usize, self.numbers);
        let steps: Vec<_> = steps(self.rank, ranks, count, numbers).collect();
        let mut carrier: Box<dyn Carrier> = match over {
            Over::Rdma => Box::new(Rdma::connect(ring, self.device.as_deref(), count, numbers)?),
            Over::Tcp => Box::new(Tcp {
                data: ring.data()?,
                numbers,
                vector: Vec::new(),
                came: Vec::new(),
            }),
        };
        let name = format!("{over:?}").to_uppercase();
        eprintln!("rank {} of {ranks}: over {name}", self.rank);
        let (mut times, mut bad) = (Vec::new(), 0);
        for iteration in 0..self.iters as usize {
            carrier.fill(&vector(numbers, self.rank, iteration, count))?;
            ring.meet()?;
            let begin = Instant::now();
            carrier.reduce(&steps, ring)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
            bad += wrong(numbers, &carrier.result()?, ranks, iteration);
        }
        // No rank leaves while another waits for an acknowledgement.
        ring.meet()?;
        times.sort_by(f64::total_cmp);
        let (median_us, min_us) = (median(&times), times.first().copied().unwrap_or(f64::NAN));
        let kind = format!("{numbers:?}").to_lowercase();
        let (rank, iters, bytes) = (self.rank, self.iters, count * numbers.bytes());
        let mib_s = bytes as f64 / median_us * 1e6 / f64::from(1 << 20);
        println!(
            "{name} {kind} {rank} {ranks} {bytes} {iters} {median_us:.0} {min_us:.0} {mib_s:.1} {bad}"
        );
        Ok(bad)
    }

    fn run(self) -> Result<ExitCode> {
        let ranks = self.ranks.len();
        ensure!(
            (2..=4).contains(&ranks),
            "{ranks} ranks: 2 to 4 are possible"
        );
        let rank = self.rank;
        ensure!(
            rank < ranks,
            "--rank {rank}: there are {ranks} ranks, from 0"
        );
        let count = self.count;
        ensure!(
            count as usize >= ranks,
            "--count {count}: at least one for each rank"
        );
        let names = self.ranks.iter().map(|host| address(host, PORT)).collect();
        let (stop, timeout) = (interrupts()?, Duration::from_secs(self.timeout));
        let vector = (count, self.numbers);
        let ring = Ring::connect(names, rank, vector, timeout, stop.clone())?;
        println!("OVER TYPE RANK RANKS BYTES ITERATIONS MEDIAN[us] MIN[us] MiB/s WRONG");
        let mut wrong = 0;
        for over in &self.over {
            let measured = self.measure(*over, &ring);
            wrong += measured.map_err(|error| ring.leave(error))?;
        }
        ensure!(
            wrong == 0,
            "sums differ from those of addition in the order of the ring"
        );
        Ok(match stop.load(Ordering::Relaxed) {
            true => ExitCode::from(common::ERROR),
            false => ExitCode::SUCCESS,
        })
    }
}

fn main() -> ExitCode {
    common::ended("allreduce", AllReduce::parse().run())
}

#[cfg(test)]
mod tests {
    use super::number::ALL;
    use super::*;

    /// The steps of all ranks, each of which takes what the one before has sent.
    fn reduce(numbers: Type, ranks: usize, count: usize) -> Vec<Vec<u8>> {
        let mut vectors: Vec<_> = (0..ranks)
            .map(|rank| vector(numbers, rank, 3, count))
            .collect();
        let all: Vec<Vec<Step>> = (0..ranks)
            .map(|rank| steps(rank, ranks, count, numbers).collect())
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
                    true => add(numbers, ours, &sent[prev]),
                    false => ours.copy_from_slice(&sent[prev]),
                }
            }
        }
        vectors
    }

    #[test]
    fn every_rank_has_the_sums() {
        for numbers in ALL {
            for ranks in 2..=4 {
                for count in [ranks, ranks + 1, 97, 1000] {
                    for sums in reduce(numbers, ranks, count) {
                        let bad = wrong(numbers, &sums, ranks, 3);
                        assert_eq!(bad, 0, "{ranks} ranks, {count} of {numbers:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(median(&[1.0, 9.0]), 5.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_wrong_sum_is_noticed() {
        for numbers in ALL {
            let mut sums = reduce(numbers, 3, 100).remove(1);
            sums[41] ^= 1;
            assert_eq!(wrong(numbers, &sums, 3, 3), 1);
            assert_ne!(wrong(numbers, &sums, 3, 4), 0);
        }
    }

    #[test]
    fn pieces_are_all_of_a_chunk() {
        for numbers in ALL {
            for len in [1, 7, 4096, PIECE, PIECE + 1, PIECES * PIECE + 1, 10 << 20] {
                let bytes = 24..24 + len * numbers.bytes();
                let all: Vec<_> = pieces(bytes.clone(), numbers).collect();
                assert!(all.len() <= PIECES, "{} of {len}", all.len());
                let mut end = bytes.start;
                for piece in all {
                    assert_eq!(piece.start, end);
                    assert_eq!(piece.len() % numbers.bytes(), 0);
                    end = piece.end;
                }
                assert_eq!(end, bytes.end);
            }
        }
    }
}
