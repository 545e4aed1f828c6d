// SPDX-License-Identifier: MIT OR Apache-2.0

//! The client, which measures.

use super::config::{Backend, Metric, Test, VERSION};
use super::end::{join, Aborted, Control, End, Run, Task};
use super::loops::{self, Limit, Measured};
use super::stats::{Latencies, Row, Throughput};
use super::wire::{of_version, Message, Wire, MAGIC};
use super::{connect, register};
use crate::machine::Machine;
use crate::output::causes;
use crate::wire::{dial, CONNECT_TIMEOUT};
use anyhow::{bail, ensure, Result};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The interval of messages to the server that the client is alive.
const TICK: Duration = Duration::from_millis(200);

/// The outcome of a measurement.
#[derive(Default)]
pub struct Outcome {
    pub rows: Vec<Row>,
    pub server: Option<Machine>,
    /// The reason that there are no more rows.
    pub error: Option<anyhow::Error>,
}

/// Runs the measurement. The outcome has the rows that were finished before a failure.
pub fn run(run: Run<'_>, host: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let result = match run.config.test {
        Test::Register => register::run(run, &mut outcome.rows),
        _ => with_server(run, host, &mut outcome),
    };
    outcome.error = result.err();
    outcome
}

fn with_server(run: Run<'_>, host: &str, outcome: &mut Outcome) -> Result<()> {
    let config = run.config;
    let timeout = config.timeout().min(CONNECT_TIMEOUT);
    let advice = "start `ulp bench serve` there, or give its port with -p";
    let tcp = dial(host, run.device.source, timeout, advice)?;
    let mut wire = Wire::new(tcp, config.timeout())?;
    wire.send(&Message::Hello {
        magic: MAGIC.to_owned(),
        version: VERSION,
        config: serde_json::to_value(config)?,
    })?;
    let (version, machine) =
        expect!(wire, Message::Welcome { version, machine } => (version, machine));
    outcome.server = Some(of_version("server", version, machine)?);
    if config.test == Test::Connect {
        return connect::run(run, &mut wire, &mut outcome.rows);
    }
    for size in &config.sizes {
        if run.stop.load(Ordering::Relaxed) {
            break;
        }
        match with_end!(config.backend, row(run, *size, &mut wire)) {
            Ok(row) => outcome.rows.push(row),
            Err(error) => {
                let why = causes(&error);
                let _ = wire.send(&Message::Failed { why });
                return Err(error);
            }
        }
    }
    let _ = wire.send(&Message::Bye);
    Ok(())
}

/// Measures one size.
fn row<E: End>(run: Run<'_>, size: u32, wire: &mut Wire) -> Result<Row> {
    let task = Task::new(run, size);
    let mut ends: Vec<E> = loops::ends(&task, false)?;
    wire.send(&Message::Row {
        size,
        ends: ends.iter().map(End::address).collect(),
    })?;
    let theirs = expect!(wire, Message::Ready { ends } => ends);
    let n = theirs.len();
    ensure!(n == ends.len(), "the server has {n} ends");
    for (end, peer) in ends.iter_mut().zip(&theirs) {
        peer.check(run.config.qps, task.layout.bytes())?;
        end.connect(peer)?;
    }
    wire.send(&Message::Start)?;
    let all = measure_all(&mut ends, &task, wire)?;
    wire.send(&Message::Finish {
        sent: all.iter().map(|m| m.sent).sum(),
    })?;
    let lost = expect!(wire, Message::Done { lost } => lost);
    let mut row = Row::new(run, size);
    row.lost = lost;
    sum_up(row, &all)
}

/// Runs the threads, and reads the messages of the server meanwhile.
///
/// Returns the measurements of the threads, or the failure that caused the others.
fn measure_all<E: End>(ends: &mut [E], task: &Task<'_>, wire: &mut Wire) -> Result<Vec<Measured>> {
    let control = &task.control;
    // Where messages may be lost, the threads end when the server has told of the last ones.
    let tick = if task.config.is_lossy() {
        TICK / 10
    } else {
        TICK
    };
    // Each thread has a sender until it ends.
    let (running, ended) = channel::<()>();
    // The threads that pass it are released together.
    let gate = Mutex::new(());
    let mut watched = Ok(());
    let all = std::thread::scope(|scope| {
        let closed = gate.lock();
        let threads = ends.iter_mut().map(|end| {
            let (running, gate) = (running.clone(), &gate);
            // The name identifies the thread in traces.
            let named = std::thread::Builder::new().name("measure".to_owned());
            named.spawn_scoped(scope, move || {
                let _running = running;
                drop(gate.lock());
                control.guard(loops::measure(task, end))
            })
        });
        let threads: std::io::Result<Vec<_>> = threads.collect();
        let threads = control.guard(threads.map_err(Into::into));
        drop((running, closed));
        while ended.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
            if watched.is_ok() {
                watched = control.guard(watch(wire, control));
            }
        }
        join(threads?)
    });
    let failure = match all {
        Ok(all) => return watched.map(|()| all),
        Err(failure) => failure,
    };
    // A failed request may be a consequence of a failure of the server.
    let watched = watched.and_then(|()| wire.receive_within(TICK).map(drop));
    match watched {
        Err(error) if failure.is::<Aborted>() || causes(&error).contains("the peer failed") => {
            Err(error)
        }
        _ => Err(failure),
    }
}

/// Tells the server that the client is alive, and takes what it says.
fn watch(wire: &mut Wire, control: &Control) -> Result<()> {
    wire.send(&Message::Alive)?;
    match wire.receive_within(Duration::from_millis(1))? {
        None => {}
        Some(Message::Heard) => control.heard.store(true, Ordering::Relaxed),
        Some(other) => bail!("the server said {other:?}"),
    }
    Ok(())
}

/// Puts the results of all threads into a row.
fn sum_up(mut row: Row, all: &[Measured]) -> Result<Row> {
    let messages: u64 = all.iter().map(|m| m.messages).sum();
    let elapsed = all.iter().map(|m| m.elapsed).max().unwrap_or_default();
    let mut latencies = Latencies::new()?;
    for some in all.iter().filter_map(|m| m.latencies.as_ref()) {
        latencies.merge(some)?;
    }
    row.iterations = messages;
    row.elapsed_ns = elapsed.as_nanos() as u64;
    row.latency_ns = latencies.sum_up();
    if row.metric != Metric::Latency {
        let rate = messages as f64 / elapsed.as_secs_f64().max(1e-9);
        let bytes = rate * f64::from(row.size);
        row.throughput = Some(Throughput {
            avg_mib_s: bytes / f64::from(1 << 20),
            avg_gbit_s: bytes * 8.0 / 1e9,
            msg_rate_mpps: rate / 1e6,
            messages_per_s: rate,
        });
    }
    Ok(row)
}

/// Repeats an operation that has several steps, and appends a row for each step.
pub fn repeat(
    names: &[&str],
    run: Run<'_>,
    size: u32,
    rows: &mut Vec<Row>,
    mut one: impl FnMut() -> Result<Vec<Duration>>,
) -> Result<()> {
    let latencies = names.iter().map(|_| Latencies::new());
    let mut latencies = latencies.collect::<Result<Vec<_>>>()?;
    let mut elapsed = vec![Duration::ZERO; names.len()];
    let mut limit = Limit::new(run.config);
    let mut count = 0;
    let mut rounds = (0..).map(|i| -> Result<bool> {
        let last = limit.is_last(i, Instant::now(), run.stop);
        let times = one()?;
        if i >= run.config.warmup {
            count += 1;
            let steps = latencies.iter_mut().zip(&mut elapsed);
            for ((latencies, elapsed), time) in steps.zip(times) {
                latencies.record(time);
                *elapsed += time;
            }
        }
        Ok(last)
    });
    let end = rounds.find(|last| !matches!(last, Ok(false)));
    drop(rounds);
    let steps = names.iter().zip(&latencies).zip(elapsed);
    for ((name, latencies), elapsed) in steps.filter(|_| count != 0) {
        rows.push(Row {
            step: Some((*name).to_owned()),
            iterations: count,
            elapsed_ns: elapsed.as_nanos() as u64,
            latency_ns: latencies.sum_up(),
            ..Row::new(run, size)
        });
    }
    end.map_or(Ok(()), |last| last.map(drop))
}

/// The beginning of a round, and the ends of its steps.
pub struct Times(Vec<Instant>);

impl Times {
    pub fn begin() -> Self {
        let mut times = Vec::with_capacity(8);
        times.push(Instant::now());
        Self(times)
    }

    /// Ends a step.
    pub fn step(&mut self) {
        self.0.push(Instant::now());
    }

    /// Ends the last step, and returns the times of all steps, and their sum.
    pub fn end(mut self) -> Vec<Duration> {
        self.step();
        let ends = self.0.iter().skip(1);
        let steps = self.0.iter().zip(ends).map(|(from, to)| *to - *from);
        let mut steps: Vec<_> = steps.collect();
        steps.push(steps.iter().sum());
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::{Amount, Config};
    use crate::bench::loops::tests::with_task;

    #[test]
    fn the_time_of_a_step_is_that_of_its_iterations() {
        let config = Config {
            amount: Amount::Iterations(3),
            warmup: 2,
            ..crate::bench::config::tests::config()
        };
        let mut rows = Vec::new();
        with_task(&config, |task| {
            let (device, stop) = (task.device, &task.control.stop);
            let run = Run {
                config: &config,
                device,
                stop,
            };
            let steps = || Ok(vec![Duration::from_secs(1), Duration::from_secs(2)]);
            repeat(&["short", "long"], run, 8, &mut rows, steps).unwrap();
        });
        let rows = rows.iter().map(|row| (row.iterations, row.elapsed_ns));
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows, [(3, 3_000_000_000), (3, 6_000_000_000)]);
    }
}
