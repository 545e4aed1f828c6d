// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pictures of reports: percentile curves, and bandwidth and rate over the message size, as SVG.

use super::stats::{Report, Row};
use super::Usage;
use crate::output::VERSION;
use anyhow::{anyhow, bail, Context, Result};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A picture: its axes, and its curves.
struct Picture {
    title: String,
    x: &'static str,
    y: &'static str,
    x_label: fn(&f64) -> String,
    curves: Vec<Curve>,
}

/// A curve.
struct Curve {
    name: String,
    /// The report that it is of.
    report: String,
    points: Vec<(f64, f64)>,
}

impl Picture {
    /// Returns the name of each curve; with its report where those of several have the same name.
    fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.curves.iter().map(|curve| {
            let same = self.curves.iter().filter(|other| other.name == curve.name);
            match same.count() {
                1 => curve.name.clone(),
                _ => format!("{}, {}", curve.name, curve.report),
            }
        })
    }
}

const COLORS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x7f, 0x7f, 0x7f),
];

/// Draws the pictures of some reports, and returns the files that were written.
pub fn run(files: &[PathBuf], out: &Path) -> Result<Vec<PathBuf>> {
    let mut pictures = BTreeMap::new();
    for file in files {
        let reports = read(file)?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        for (number, report) in reports.iter().enumerate() {
            let shown = match reports.len() {
                1 => stem.to_string(),
                _ => format!("{stem} {}", number + 1),
            };
            for row in &report.rows {
                add(&mut pictures, report, &shown, row);
            }
        }
    }
    if pictures.is_empty() {
        bail!("the reports have no rows");
    }
    fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
    let mut written = Vec::new();
    for (name, picture) in &mut pictures {
        let path = out.join(format!("{name}.svg"));
        draw(&path, picture).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// Adds a row of a report with a name to its pictures, which have the names of their files.
fn add(pictures: &mut BTreeMap<String, Picture>, report: &Report, shown: &str, row: &Row) {
    let name = name(report, row);
    if let Some(latency) = &row.latency_ns {
        let title = match &row.step {
            Some(step) => format!("{} {step}", row.test),
            None => format!("{} latency, {} B", row.test, row.size),
        };
        let file = slug(&format!("latency {title}"));
        let picture = pictures.entry(file).or_insert_with(|| Picture {
            title,
            x: "percentile",
            y: "us",
            x_label: percentile,
            curves: Vec::new(),
        });
        let points = latency.curve.iter().filter(|(q, _)| *q < 1.0);
        let points = points.map(|(q, ns)| (1.0 / (1.0 - q), *ns as f64 / 1000.0));
        picture.curves.push(Curve {
            name,
            report: shown.to_owned(),
            points: points.collect(),
        });
    } else if let Some(t) = &row.throughput {
        for (what, y, value) in [
            ("bandwidth", "MiB/s", t.avg_mib_s),
            ("rate", "messages/s", t.messages_per_s),
        ] {
            let file = slug(&format!("{what} {}", row.test));
            let picture = pictures.entry(file).or_insert_with(|| Picture {
                title: format!("{} {what} over size", row.test),
                x: "bytes",
                y,
                x_label: size,
                curves: Vec::new(),
            });
            let point = (row.size.into(), value);
            let mut curves = picture.curves.iter_mut();
            match curves.find(|curve| curve.name == name && curve.report == shown) {
                Some(curve) => curve.points.push(point),
                None => picture.curves.push(Curve {
                    name: name.clone(),
                    report: shown.to_owned(),
                    points: vec![point],
                }),
            }
        }
    }
}

/// Reads a file with reports, one after the other.
fn read(file: &Path) -> Result<Vec<Report>> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{shown}"))?;
    let reports = serde_json::Deserializer::from_str(&text).into_iter();
    let reports: Vec<Report> = reports.collect::<Result<_, _>>().unwrap_or_default();
    if reports.is_empty() || reports.iter().any(|r| r.version != VERSION) {
        bail!(Usage(format!(
            "{shown} is not a JSON output of ulp bench, or of another version than {VERSION}"
        )));
    }
    Ok(reports)
}

/// Returns the name of a curve.
fn name(report: &Report, row: &Row) -> String {
    let config = &report.config;
    let mut name = row.backend.to_string();
    if let Some(mode) = row.mode {
        name += &format!(" {mode}");
    }
    if config.is_lossy() {
        name += &format!(", {}", config.transport);
    }
    if row.step.is_some() {
        name += &format!(", {} B", row.size);
    }
    if row.throughput.is_some() {
        name += &format!(", lists of {}", config.list);
        if config.qps * config.threads != 1 {
            name += &format!(", {} queue pairs", config.qps * config.threads);
        }
    }
    name
}

fn slug(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

fn percentile(x: &f64) -> String {
    format!("{}%", 100.0 * (1.0 - 1.0 / x.max(1.0)))
}

fn size(bytes: &f64) -> String {
    match *bytes as u64 {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} Mi", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} Ki", n >> 10),
        n => n.to_string(),
    }
}

/// Returns the smallest and the largest number, apart from each other for a logarithmic axis.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|v| v.is_finite() && *v > 0.0)
        .fold((f64::MAX, 0.0_f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
    match low <= high {
        true => (low, (high * 1.02).max(low * 1.5)),
        false => (1.0, 2.0),
    }
}

fn draw(
    path: &Path,
    picture: &mut Picture,
) -> std::result::Result<(), DrawingAreaErrorKind<std::io::Error>> {
    for curve in &mut picture.curves {
        curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let points = || picture.curves.iter().flat_map(|curve| &curve.points);
    let (x0, x1) = span(points().map(|p| p.0));
    let (y0, y1) = span(points().map(|p| p.1));
    let root = SVGBackend::new(path, (860, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&picture.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((x0..x1).log_scale(), (y0..y1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(picture.x)
        .y_desc(picture.y)
        .x_label_formatter(&picture.x_label)
        .y_label_formatter(&|y| format!("{y:.0$}", usize::from(*y < 10.0)))
        .label_style(("sans-serif", 13))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    let curves = picture.names().zip(&picture.curves);
    for ((name, Curve { points, .. }), color) in curves.zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if points.len() <= 32 {
            let dot = |point: &(f64, f64)| Circle::new(*point, 3, color.filled());
            chart.draw_series(points.iter().map(dot))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::{Backend, Config, Metric, Mode, Test, Transport};
    use crate::bench::stats::{Latencies, Throughput};
    use crate::machine::Machine;
    use std::time::Duration;

    fn report(config: Config) -> Report {
        let one = |size: &u32| {
            let mut latencies = Latencies::new().unwrap();
            latencies.record(Duration::from_micros(3));
            let is_step = config.test == Test::Register;
            Row {
                test: config.test,
                metric: config.metric,
                backend: Backend::Call,
                mode: Some(Mode::Event),
                step: is_step.then(|| "total".to_owned()),
                size: *size,
                iterations: 1,
                elapsed_ns: 3000,
                lost: None,
                interrupted: false,
                latency_ns: latencies.sum_up().filter(|_| is_step),
                throughput: (!is_step).then_some(Throughput {
                    avg_mib_s: 1.0,
                    avg_gbit_s: 1.0,
                    msg_rate_mpps: 1.0,
                    messages_per_s: 1.0,
                }),
            }
        };
        Report {
            version: VERSION,
            rows: config.sizes.iter().map(one).collect(),
            config,
            command: Vec::new(),
            client: Machine::default(),
            server: None,
            interrupted: false,
        }
    }

    #[test]
    fn the_curves_of_a_picture_have_different_names() {
        let config = |test, metric, transport| Config {
            test,
            metric,
            transport,
            sizes: vec![8, 64],
            ..Config::default()
        };
        let rate = |transport| report(config(Test::Send, Metric::Rate, transport));
        let register = report(config(Test::Register, Metric::Latency, Transport::Rc));
        let mut pictures = BTreeMap::new();
        for (name, report) in [
            ("before", rate(Transport::Rc)),
            ("after", rate(Transport::Rc)),
            ("ud", rate(Transport::Ud)),
            ("register", register),
        ] {
            for row in &report.rows {
                add(&mut pictures, &report, name, row);
            }
        }
        let names = |file: &str| pictures[file].names().collect::<Vec<_>>();
        let event = "call by events";
        assert_eq!(
            names("rate-send"),
            [
                format!("{event}, lists of 1, before"),
                format!("{event}, lists of 1, after"),
                format!("{event}, UD, lists of 1"),
            ]
        );
        let points = pictures["rate-send"].curves.iter();
        assert!(points.map(|curve| curve.points.len()).all(|len| len == 2));
        assert_eq!(
            names("latency-register-total"),
            [format!("{event}, 8 B"), format!("{event}, 64 B")]
        );
    }
}
