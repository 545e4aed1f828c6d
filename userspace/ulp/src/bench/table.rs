// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of a report, with perftest's columns and some more.

use super::stats::{LatencyNs, Report, Row};
use crate::output::padded_table;

/// A column: its title, and its value in a row that has one.
type Column = (&'static str, fn(&Row) -> Option<String>);

/// The columns, of which a table has those with values.
const COLUMNS: &[Column] = &[
    ("step", |r| r.step.clone()),
    ("#bytes", |r| Some(r.size.to_string())),
    ("#iterations", |r| Some(r.iterations.to_string())),
    ("t_min[usec]", |r| us(r, |l| l.min as f64)),
    ("t_max[usec]", |r| us(r, |l| l.max as f64)),
    ("t_typical[usec]", |r| us(r, |l| l.typical as f64)),
    ("t_avg[usec]", |r| us(r, |l| l.avg)),
    ("t_stdev[usec]", |r| us(r, |l| l.stdev)),
    ("90%[usec]", |r| us(r, |l| l.p90 as f64)),
    ("99%[usec]", |r| us(r, |l| l.p99 as f64)),
    ("99.9%[usec]", |r| us(r, |l| l.p99_9 as f64)),
    ("99.99%[usec]", |r| us(r, |l| l.p99_99 as f64)),
    (MIB, |r| Some(format!("{:.2}", r.throughput?.avg_mib_s))),
    ("BW average[Gb/sec]", |r| {
        Some(format!("{:.3}", r.throughput?.avg_gbit_s))
    }),
    ("MsgRate[Mpps]", |r| {
        Some(format!("{:.6}", r.throughput?.msg_rate_mpps))
    }),
    ("#lost", |r| Some(r.lost?.to_string())),
];
/// The column that is left out if the throughput is printed in Gbit/s.
const MIB: &str = "BW average[MiB/sec]";

fn us(row: &Row, ns: fn(&LatencyNs) -> f64) -> Option<String> {
    Some(format!("{:.2}", ns(row.latency_ns.as_ref()?) / 1000.0))
}

/// Formats a report: its parameters, then its rows. With `gbits` the throughput is in Gbit/s.
pub fn render(report: &Report, gbits: bool) -> String {
    let (config, rows) = (&report.config, &report.rows);
    let mut title = format!("{} {}, {}", config.test, config.metric, config.backend);
    if config.peer_backend != config.backend && report.server.is_some() {
        title += &format!(" to {}", config.peer_backend);
    }
    if config.is_lossy() {
        title += &format!(", {}", config.transport);
    }
    if let Some(mode) = config.row_mode() {
        title += &format!(", {mode}");
    }
    if config.list_test() {
        title += &format!(
            ", {} thread(s), {} queue pair(s) each, depth {}, lists of {}",
            config.threads, config.qps, config.depth, config.list
        );
    }
    if config.has_inline() {
        title += &format!(", inline {}", config.inline);
    }
    let columns = COLUMNS.iter().filter(|(title, value)| {
        rows.iter().any(|row| value(row).is_some()) && !(gbits && *title == MIB)
    });
    let columns: Vec<_> = columns.collect();
    let cells = rows.iter().map(|row| {
        let cells = columns.iter().map(|(_, value)| value(row));
        cells.map(Option::unwrap_or_default).collect()
    });
    let head: Vec<_> = columns.iter().map(|(title, _)| *title).collect();
    let table = padded_table((1, 1), 0, &head, cells);
    let interrupted = if report.interrupted {
        "\n(interrupted)"
    } else {
        ""
    };
    format!("{title}\n{table}{interrupted}")
}
