// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of a report, with perftest's columns and some more.

use super::stats::{LatencyNs, Report, Row};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}

fn latency(l: &LatencyNs) -> Vec<String> {
    let whole = |ns: u64| us(ns as f64);
    vec![
        whole(l.min),
        whole(l.max),
        whole(l.typical),
        us(l.avg),
        us(l.stdev),
        whole(l.p90),
        whole(l.p99),
        whole(l.p99_9),
        whole(l.p99_99),
    ]
}

const LATENCY: &[&str] = &[
    "t_min[usec]",
    "t_max[usec]",
    "t_typical[usec]",
    "t_avg[usec]",
    "t_stdev[usec]",
    "90%[usec]",
    "99%[usec]",
    "99.9%[usec]",
    "99.99%[usec]",
];
/// The columns of the throughput in MiB/s, and those in Gbit/s alone.
const THROUGHPUT: &[&str] = &[
    "BW peak[MiB/sec]",
    "BW average[MiB/sec]",
    "BW average[Gb/sec]",
    "MsgRate[Mpps]",
];

const THROUGHPUT_GBITS: &[&str] = &["BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]"];

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
    head.extend(match (many, gbits) {
        (false, _) => LATENCY,
        (true, false) => THROUGHPUT,
        (true, true) => THROUGHPUT_GBITS,
    });
    if config.verify {
        head.push("#verified");
    }
    let lost = report.rows.iter().any(|row| row.lost.is_some());
    if lost {
        head.push("#lost");
    }
    table.set_header(head);
    for row in &report.rows {
        let count = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
        let mut cells = cells(row, steps, gbits);
        cells.extend(config.verify.then(|| count(row.verified)));
        cells.extend(lost.then(|| count(row.lost)));
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

fn cells(row: &Row, steps: bool, gbits: bool) -> Vec<String> {
    let mut cells = vec![row.size.to_string(), row.iterations.to_string()];
    if steps {
        cells.insert(0, row.step.clone().unwrap_or_default());
    }
    if let Some(t) = &row.throughput {
        if gbits {
            let peak = t.peak_mib_s * f64::from(1 << 23) / 1e9;
            cells.push(format!("{peak:.3}"));
        } else {
            cells.push(format!("{:.2}", t.peak_mib_s));
            cells.push(format!("{:.2}", t.avg_mib_s));
        }
        cells.push(format!("{:.3}", t.avg_gbit_s));
        cells.push(format!("{:.6}", t.msg_rate_mpps));
    } else if let Some(l) = &row.latency_ns {
        cells.extend(latency(l));
    }
    cells
}
