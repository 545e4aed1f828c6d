// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of a report, with perftest's columns and some more.

use super::stats::{LatencyNs, Report, Row, Throughput};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

/// A column: its title, and its value.
type Column<T> = (&'static str, fn(&T) -> String);

const LATENCY: &[Column<LatencyNs>] = &[
    ("t_min[usec]", |l| us(l.min as f64)),
    ("t_max[usec]", |l| us(l.max as f64)),
    ("t_typical[usec]", |l| us(l.typical as f64)),
    ("t_avg[usec]", |l| us(l.avg)),
    ("t_stdev[usec]", |l| us(l.stdev)),
    ("90%[usec]", |l| us(l.p90 as f64)),
    ("99%[usec]", |l| us(l.p99 as f64)),
    ("99.9%[usec]", |l| us(l.p99_9 as f64)),
    ("99.99%[usec]", |l| us(l.p99_99 as f64)),
];
const MIB: &[Column<Throughput>] = &[
    ("BW peak[MiB/sec]", |t| format!("{:.2}", t.peak_mib_s)),
    ("BW average[MiB/sec]", |t| format!("{:.2}", t.avg_mib_s)),
];
/// The column in place of those in MiB/s, if the throughput is printed in Gbit/s alone.
const GBIT: &[Column<Throughput>] = &[("BW peak[Gb/sec]", |t| {
    format!("{:.3}", t.peak_mib_s * f64::from(1 << 23) / 1e9)
})];
const THROUGHPUT: &[Column<Throughput>] = &[
    ("BW average[Gb/sec]", |t| format!("{:.3}", t.avg_gbit_s)),
    ("MsgRate[Mpps]", |t| format!("{:.6}", t.msg_rate_mpps)),
];

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}

/// Formats a report: its parameters, then its rows. With `gbits` the throughput is in Gbit/s.
pub fn render(report: &Report, gbits: bool) -> String {
    let config = &report.config;
    let mut title = format!("{} {}, {}", config.test, config.metric, config.backend);
    if config.peer_backend != config.backend && report.server.is_some() {
        title += &format!(" to {}", config.peer_backend);
    }
    if config.is_lossy() {
        title += &format!(", {}", config.transport);
    }
    title += match config.mode {
        super::config::Mode::Poll => ", polling",
        super::config::Mode::Event => ", by events",
    };
    if config.list_test() {
        title += &format!(
            ", {} thread(s), {} queue pair(s) each, depth {}, lists of {}, inline {}",
            config.threads, config.qps, config.depth, config.list, config.inline
        );
    }
    let steps = report.rows.iter().any(|row| row.step.is_some());
    let many = report.rows.iter().any(|row| row.throughput.is_some());
    let mut table = Table::new();
    table.load_preset(NOTHING);
    let mut head = vec!["#bytes", "#iterations"];
    if steps {
        head.insert(0, "step");
    }
    let throughput = [if gbits { GBIT } else { MIB }, THROUGHPUT].concat();
    match many {
        true => head.extend(throughput.iter().map(|(title, _)| *title)),
        false => head.extend(LATENCY.iter().map(|(title, _)| *title)),
    }
    let lost = report.rows.iter().any(|row| row.lost.is_some());
    if lost {
        head.push("#lost");
    }
    table.set_header(head);
    for row in &report.rows {
        let mut cells = cells(row, steps, &throughput);
        cells.extend(row.lost.map(|lost| lost.to_string()));
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let interrupted = if report.interrupted {
        "\n(interrupted)"
    } else {
        ""
    };
    format!("{title}\n{table}{interrupted}")
}

fn cells(row: &Row, steps: bool, throughput: &[Column<Throughput>]) -> Vec<String> {
    let mut cells = vec![row.size.to_string(), row.iterations.to_string()];
    if steps {
        cells.insert(0, row.step.clone().unwrap_or_default());
    }
    if let Some(t) = &row.throughput {
        cells.extend(throughput.iter().map(|(_, value)| value(t)));
    } else if let Some(l) = &row.latency_ns {
        cells.extend(LATENCY.iter().map(|(_, value)| value(l)));
    }
    cells
}
