// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp top`: a live view of devices, queue pairs and open files, with rates.
//!
//! - this file: the readings, and what two of them in a row tell
//! - [`screen`]: the view in a terminal
//!
//! Queue pairs and devices come from netlink and sysfs. Counters of requests come from the fdinfo of
//! open files of `/dev/rust_ulp`, which the kernel shows to their owner and to root.

mod screen;

use crate::args::duration;
use crate::output::{self, interrupts, or_dash, FormatArgs};
use crate::rdma::{self, RdmaDevice};
use crate::show::{self, trouble, upper, Filter, RETRIES};
use crate::system::{self, FileQp, QueueCounters, UlpFile};
use crate::{netlink, output::Usage};
use anyhow::{bail, Context, Result};
use clap::{Args, ValueEnum};
use rust_ulp::Status;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `ulp top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    filter: Filter,
    /// Show only queue pairs and files with this text in one of their columns
    #[arg(short, long = "filter", value_name = "TEXT", default_value = "")]
    text: String,
    /// Column by which the queue pairs are sorted
    #[arg(short, long, value_enum, default_value_t = Column::Bytes)]
    sort: Column,
    /// Time between two readings, in seconds or with a unit
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Take two readings, print them once as text, and end
    #[arg(short = '1', long)]
    once: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// A column by which queue pairs are sorted: rates and counts from the largest on, words from A on,
/// the numbers of queue pairs and processes from the smallest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Column {
    Device,
    Qpn,
    State,
    /// Requests in flight
    InFlight,
    /// Send requests per second
    Sends,
    /// Bytes per second in both directions
    Bytes,
    Errors,
    Pid,
    Program,
}

/// The output of `ulp top`; one per interval without `--once`.
#[derive(Serialize, JsonSchema)]
pub struct Top {
    /// The seconds since the reading before.
    interval_s: f64,
    devices: Vec<DeviceRow>,
    queue_pairs: Vec<QpRow>,
    files: Vec<FileRow>,
}

#[derive(Serialize, JsonSchema)]
struct DeviceRow {
    device: String,
    /// The state of the first port.
    state: Option<&'static str>,
    netdev: Option<String>,
    queue_pairs: usize,
    /// The open files of /dev/rust_ulp that are attached to the device and that this user may inspect.
    files: usize,
    /// Sent bytes per second; null where the driver does not count them.
    tx_bytes_per_s: Option<f64>,
    rx_bytes_per_s: Option<f64>,
    /// The requests that were sent again, in total.
    retries: u64,
    /// The counters of faults that are not 0, in total.
    troubles: BTreeMap<String, u64>,
}

#[derive(Serialize, JsonSchema)]
struct QpRow {
    #[serde(flatten)]
    qp: show::QpRow,
    /// What fdinfo tells; null for queue pairs of others, and for files that this user may not
    /// inspect.
    counters: Option<QpCounters>,
}

#[derive(Serialize, JsonSchema)]
struct QpCounters {
    /// The number of the open file.
    file: u32,
    /// Send requests in flight.
    sends: u32,
    /// Receives in flight.
    recvs: u32,
    /// Send requests posted in total.
    posted_sends: u64,
    posted_recvs: u64,
    /// Bytes of the posted send requests.
    send_bytes: u64,
    /// Bytes that completed receives got.
    recv_bytes: u64,
    /// Completions that were not successes, in total, by status.
    errors: BTreeMap<String, u64>,
    sends_per_s: f64,
    send_bytes_per_s: f64,
    /// Completed receives per second.
    recvs_per_s: f64,
    recv_bytes_per_s: f64,
    /// Send requests took less than so long; null unless the module's parameter `latency` is on.
    latency: Option<Latency>,
}

/// Upper bounds of latencies: powers of two.
#[derive(Serialize, JsonSchema)]
struct Latency {
    /// Half of the requests took less, in microseconds.
    p50_us: f64,
    /// 99 of 100 requests took less, in microseconds.
    p99_us: f64,
}

#[derive(Serialize, JsonSchema)]
struct FileRow {
    /// The serial number of the open file.
    file: u32,
    device: Option<String>,
    /// The processes that have it open.
    pids: Vec<u32>,
    program: Option<String>,
    command: Option<String>,
    /// The number of objects of each kind.
    objects: BTreeMap<String, u32>,
    buffer_bytes: u64,
    /// The queue entries in use.
    entries: u64,
    /// Requests of all queues, destroyed ones included.
    posted_sends: u64,
    posted_recvs: u64,
    errors: BTreeMap<String, u64>,
}

/// What is read at one time.
struct Reading {
    at: Instant,
    devices: Vec<DeviceReading>,
    files: Vec<UlpFile>,
}

struct DeviceReading {
    device: RdmaDevice,
    queue_pairs: Vec<netlink::QpEntry>,
    /// The driver's counters and those of the specification, of all ports together.
    counters: BTreeMap<String, u64>,
}

impl DeviceReading {
    fn new(device: RdmaDevice) -> Result<Self> {
        let queue_pairs = netlink::queue_pairs(device.index)
            .with_context(|| format!("listing the queue pairs of {}", device.name))?;
        let mut counters = BTreeMap::new();
        for port in &device.ports {
            let hardware = netlink::counters(device.index, port.port)
                .with_context(|| format!("{}: the driver's counters", device.name))?;
            let ports = rdma::Sysfs::default().port_counters(&device.name, port.port);
            for (name, value) in hardware.into_iter().flatten().chain(ports) {
                *counters.entry(name).or_default() += value;
            }
        }
        Ok(Self {
            device,
            queue_pairs,
            counters,
        })
    }

    /// Returns the bytes that the device has sent or received, whichever counter has them.
    fn bytes(&self, driver: &str, specified: &str) -> Option<u64> {
        let words = || Some(self.counters.get(specified)?.wrapping_mul(4));
        self.counters.get(driver).copied().or_else(words)
    }
}

impl Reading {
    fn new(filter: &Filter) -> Result<Self> {
        let devices = filter.devices()?.into_iter().map(DeviceReading::new);
        Ok(Self {
            at: Instant::now(),
            devices: devices.collect::<Result<_>>()?,
            files: system::files(),
        })
    }
}

/// Returns the completions that were not successes, by the names of their statuses.
fn errors(queues: [&QueueCounters; 2]) -> BTreeMap<String, u64> {
    let mut errors = BTreeMap::new();
    for (code, count) in queues.into_iter().flat_map(|queue| &queue.completed) {
        let name = match Status::from_code(*code) {
            Status::Success => continue,
            Status::Other(code) => format!("status_{code}"),
            status => status.name().replace([' ', '-'], "_"),
        };
        *errors.entry(name).or_default() += count;
    }
    errors
}

/// Returns the upper bound of the latency that a part of all requests has, in microseconds.
fn quantile(histogram: &BTreeMap<u64, u64>, part: f64) -> f64 {
    let total: u64 = histogram.values().sum();
    let mut seen = 0;
    let bound = histogram.iter().find(|(_, count)| {
        seen += **count;
        seen as f64 >= total as f64 * part
    });
    bound.map_or(0.0, |(below_ns, _)| *below_ns as f64 / 1000.0)
}

fn succeeded(queue: &QueueCounters) -> u64 {
    queue.completed.get(&0).copied().unwrap_or(0)
}

impl QpCounters {
    /// Compares a queue pair with what it was `seconds` ago; a new one began with zeros.
    fn new(file: &UlpFile, qp: &FileQp, before: Option<&FileQp>, seconds: f64) -> Self {
        let none = FileQp::default();
        let before = before.unwrap_or(&none);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let latency = (!qp.latency.is_empty()).then(|| Latency {
            p50_us: quantile(&qp.latency, 0.5),
            p99_us: quantile(&qp.latency, 0.99),
        });
        Self {
            file: file.id,
            sends: qp.sends,
            recvs: qp.receives,
            posted_sends: qp.send.posted,
            posted_recvs: qp.recv.posted,
            send_bytes: qp.send.bytes,
            recv_bytes: qp.recv.bytes,
            errors: errors([&qp.send, &qp.recv]),
            sends_per_s: rate(qp.send.posted, before.send.posted),
            send_bytes_per_s: rate(qp.send.bytes, before.send.bytes),
            recvs_per_s: rate(succeeded(&qp.recv), succeeded(&before.recv)),
            recv_bytes_per_s: rate(qp.recv.bytes, before.recv.bytes),
            latency,
        }
    }
}

/// A table: its title, the names of its columns, its rows.
type Table = (&'static str, &'static [&'static str], Vec<Vec<String>>);

impl Top {
    /// Compares a reading with the one before it.
    fn new(before: &Reading, now: &Reading) -> Self {
        let interval_s = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let mut queue_pairs = Vec::new();
        for reading in &now.devices {
            let device = &reading.device.name;
            for qp in &reading.queue_pairs {
                let owner = system::owner(&now.files, device, qp.number);
                let counters = owner.map(|(file, known)| {
                    let before = system::owner(&before.files, device, qp.number)
                        .filter(|(other, _)| other.id == file.id)
                        .map(|(_, qp)| qp);
                    QpCounters::new(file, known, before, interval_s)
                });
                let qp = show::QpRow::new(device, qp, owner);
                queue_pairs.push(QpRow { qp, counters });
            }
        }
        let known = |file: &&UlpFile| {
            let mut devices = now.devices.iter();
            let device = file.device.as_ref();
            device.is_none_or(|name| devices.any(|reading| reading.device.name == *name))
        };
        Self {
            interval_s,
            devices: now
                .devices
                .iter()
                .map(|reading| DeviceRow::new(reading, before, &now.files, interval_s))
                .collect(),
            queue_pairs,
            files: now.files.iter().filter(known).map(FileRow::new).collect(),
        }
    }

    /// Keeps the queue pairs and files that have `text` in a column, and sorts the queue pairs.
    fn arrange(&mut self, text: &str, column: Column, reverse: bool) {
        let has = |cells: &[String]| cells.iter().any(|cell| cell.contains(text));
        self.queue_pairs
            .retain(|row| text.is_empty() || has(&row.cells()));
        self.files
            .retain(|row| text.is_empty() || has(&row.cells()));
        self.queue_pairs.sort_by(|a, b| {
            let order = column.compare(a, b);
            let order = if reverse { order.reverse() } else { order };
            order.then_with(|| (&a.qp.device, a.qp.qp_num).cmp(&(&b.qp.device, b.qp.qp_num)))
        });
    }

    fn tables(&self) -> [Table; 3] {
        [
            (
                "Devices",
                &[
                    "DEVICE", "STATE", "NETDEV", "QPS", "FILES", "TX B/s", "RX B/s", "RETRIES",
                    "TROUBLE",
                ],
                self.devices.iter().map(DeviceRow::cells).collect(),
            ),
            (
                "Queue pairs",
                &[
                    "DEVICE", "QPN", "TYPE", "STATE", "PEER QPN", "SENDS", "RECVS", "SENDS/s",
                    "TX B/s", "RECVS/s", "RX B/s", "POSTED", "p99 us", "PID", "PROGRAM", "ERRORS",
                ],
                self.queue_pairs.iter().map(QpRow::cells).collect(),
            ),
            (
                "Open files of /dev/rust_ulp",
                &[
                    "FILE", "DEVICE", "PID", "PROGRAM", "QPS", "BUFFERS", "BYTES", "GRANTS",
                    "ENTRIES", "SENDS", "RECVS", "ERRORS", "COMMAND",
                ],
                self.files.iter().map(FileRow::cells).collect(),
            ),
        ]
    }

    fn text(&self) -> String {
        let tables = self
            .tables()
            .map(|(_, head, rows)| output::table(head, rows));
        tables.join("\n\n")
    }
}

impl Column {
    fn compare(self, a: &QpRow, b: &QpRow) -> std::cmp::Ordering {
        let number = |of: fn(&QpCounters) -> f64| {
            let get = |row: &QpRow| row.counters.as_ref().map_or(-1.0, of);
            get(b).total_cmp(&get(a))
        };
        match self {
            Self::Device => a.qp.device.cmp(&b.qp.device),
            Self::Qpn => a.qp.qp_num.cmp(&b.qp.qp_num),
            Self::State => a.qp.state.cmp(b.qp.state),
            Self::InFlight => number(|c| f64::from(c.sends) + f64::from(c.recvs)),
            Self::Sends => number(|c| c.sends_per_s),
            Self::Bytes => number(|c| c.send_bytes_per_s + c.recv_bytes_per_s),
            Self::Errors => number(|c| c.errors.values().sum::<u64>() as f64),
            Self::Pid => a.qp.pid.cmp(&b.qp.pid),
            Self::Program => a.qp.program.cmp(&b.qp.program),
        }
    }
}

/// Formats a number of things per second.
fn per_second(rate: f64) -> String {
    format!("{rate:.0}")
}

/// Formats counts by their names.
fn counts(counts: &BTreeMap<String, u64>) -> String {
    let texts: Vec<_> = counts
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    match texts.is_empty() {
        true => "-".to_owned(),
        false => texts.join(", "),
    }
}

impl DeviceRow {
    fn new(reading: &DeviceReading, before: &Reading, files: &[UlpFile], seconds: f64) -> Self {
        let name = &reading.device.name;
        let before = before.devices.iter().find(|it| it.device.name == *name);
        let rate = |driver, specified| {
            let now = reading.bytes(driver, specified)?;
            let before = before?.bytes(driver, specified)?;
            Some(now.saturating_sub(before) as f64 / seconds)
        };
        let port = reading.device.ports.first();
        let retries = RETRIES
            .iter()
            .filter_map(|name| reading.counters.get(*name));
        let faulty = |(name, value): &(&String, &u64)| **value != 0 && trouble(name).is_some();
        Self {
            device: name.clone(),
            state: port.map(|port| port.state),
            netdev: port.and_then(|port| port.netdev.clone()),
            queue_pairs: reading.queue_pairs.len(),
            files: files
                .iter()
                .filter(|file| file.device.as_ref() == Some(name))
                .count(),
            tx_bytes_per_s: rate("sent_bytes", "port_xmit_data"),
            rx_bytes_per_s: rate("rcvd_bytes", "port_rcv_data"),
            retries: retries.sum(),
            troubles: reading
                .counters
                .iter()
                .filter(faulty)
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.device.clone(),
            or_dash(self.state.map(upper)),
            or_dash(self.netdev.as_ref()),
            self.queue_pairs.to_string(),
            self.files.to_string(),
            or_dash(self.tx_bytes_per_s.map(per_second)),
            or_dash(self.rx_bytes_per_s.map(per_second)),
            self.retries.to_string(),
            counts(&self.troubles),
        ]
    }
}

impl QpRow {
    fn cells(&self) -> Vec<String> {
        let counters = self.counters.as_ref();
        let of = |get: fn(&QpCounters) -> String| or_dash(counters.map(get));
        let qp = &self.qp;
        vec![
            qp.device.clone(),
            qp.qp_num.to_string(),
            upper(qp.r#type),
            upper(qp.state),
            or_dash(qp.dest_qp_num),
            of(|c| c.sends.to_string()),
            of(|c| c.recvs.to_string()),
            of(|c| per_second(c.sends_per_s)),
            of(|c| per_second(c.send_bytes_per_s)),
            of(|c| per_second(c.recvs_per_s)),
            of(|c| per_second(c.recv_bytes_per_s)),
            of(|c| c.posted_sends.to_string()),
            or_dash(counters.and_then(|c| Some(c.latency.as_ref()?.p99_us))),
            or_dash(qp.pid),
            show::program_or_module(qp.program.as_ref(), qp.module.as_ref()),
            of(|c| counts(&c.errors)),
        ]
    }
}

impl FileRow {
    fn new(file: &UlpFile) -> Self {
        let pid = file.pids.first().copied();
        Self {
            file: file.id,
            device: file.device.clone(),
            pids: file.pids.clone(),
            program: pid.and_then(system::program),
            command: pid.and_then(system::command),
            objects: file.objects.clone(),
            buffer_bytes: file.buffer_bytes,
            entries: file.entries,
            posted_sends: file.send.posted,
            posted_recvs: file.recv.posted,
            errors: errors([&file.send, &file.recv]),
        }
    }

    fn cells(&self) -> Vec<String> {
        let objects = |kind| self.objects.get(kind).copied().unwrap_or(0).to_string();
        let pids: Vec<_> = self.pids.iter().map(u32::to_string).collect();
        vec![
            self.file.to_string(),
            or_dash(self.device.as_ref()),
            pids.join(","),
            or_dash(self.program.as_ref()),
            objects("qp"),
            objects("buffer"),
            self.buffer_bytes.to_string(),
            objects("grant"),
            self.entries.to_string(),
            self.posted_sends.to_string(),
            self.posted_recvs.to_string(),
            counts(&self.errors),
            or_dash(self.command.as_ref()),
        ]
    }
}

/// Sleeps, at most until `stop` is set.
fn sleep(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50).min(end - Instant::now()));
    }
}

impl TopArgs {
    pub fn run(self) -> Result<ExitCode> {
        if !self.once && !self.format.is_json() {
            if !std::io::stdout().is_terminal() {
                bail!(Usage(
                    "top: the standard output is no terminal: use --once or --json".to_owned()
                ));
            }
            return screen::run(&self);
        }
        let stop = interrupts()?;
        let mut last = Reading::new(&self.filter)?;
        loop {
            sleep(self.interval, &stop);
            let now = Reading::new(&self.filter)?;
            let mut top = Top::new(&last, &now);
            top.arrange(&self.text, self.sort, false);
            if self.once {
                self.format.print(&top, || top.text())?;
                return Ok(ExitCode::SUCCESS);
            }
            self.format.stream(&top, String::new)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(ExitCode::SUCCESS);
            }
            last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(qp_num: u32, program: &str, bytes: Option<f64>) -> QpRow {
        let qp = FileQp::default();
        let counters = bytes.map(|bytes| QpCounters {
            send_bytes_per_s: bytes,
            ..QpCounters::new(&UlpFile::default(), &qp, None, 1.0)
        });
        let mut qp = show::QpRow::new("rxe0", &netlink::QpEntry::default(), None);
        (qp.qp_num, qp.program) = (qp_num, Some(program.to_owned()));
        QpRow { qp, counters }
    }

    #[test]
    fn rows_are_filtered_and_sorted() {
        let mut top = Top {
            interval_s: 1.0,
            devices: Vec::new(),
            queue_pairs: vec![
                row(1, "slow", Some(1.0)),
                row(2, "fast", Some(9.0)),
                row(3, "other", None),
            ],
            files: Vec::new(),
        };
        let mut order = |column, reverse| {
            top.arrange("", column, reverse);
            let numbers: Vec<_> = top.queue_pairs.iter().map(|row| row.qp.qp_num).collect();
            numbers
        };
        assert_eq!(order(Column::Bytes, false), [2, 1, 3]);
        assert_eq!(order(Column::Bytes, true), [3, 1, 2]);
        assert_eq!(order(Column::Program, false), [2, 3, 1]);
        top.arrange("s", Column::Qpn, false);
        assert_eq!(top.queue_pairs.len(), 2, "the text is in fast and in slow");
    }

    #[test]
    fn rates_and_errors_come_from_two_readings() {
        let qp = |posted, flushed| FileQp {
            number: 7,
            send: QueueCounters {
                posted,
                bytes: posted * 8,
                completed: [(0, posted), (5, flushed)].into(),
            },
            latency: [(2048, 98), (4096, 1), (8192, 1)].into(),
            ..FileQp::default()
        };
        let file = UlpFile::default();
        let got = QpCounters::new(&file, &qp(30, 2), Some(&qp(10, 0)), 2.0);
        assert_eq!((got.sends_per_s, got.send_bytes_per_s), (10.0, 80.0));
        assert_eq!(got.errors.values().sum::<u64>(), 2);
        let latency = got.latency.unwrap();
        assert_eq!((latency.p50_us, latency.p99_us), (2.048, 4.096));
    }
}
