// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pictures of reports: percentile curves, and bandwidth and rate over the message size, as SVG.

use super::stats::{Report, Row};
use super::Usage;
use crate::output::VERSION;
use anyhow::{bail, Context, Result};
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A line with its name.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The points of each line.
type Named = BTreeMap<String, Vec<(f64, f64)>>;

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
    let mut latencies: BTreeMap<String, Vec<Curve>> = BTreeMap::new();
    // Test, and whether bytes or messages are counted.
    let mut flows: BTreeMap<(String, bool), Named> = BTreeMap::new();
    for file in files {
        for report in read(file)? {
            for row in &report.rows {
                let name = name(&report, row);
                if let Some(latency) = &row.latency_ns {
                    let points = latency.curve.iter().filter(|(q, _)| *q < 1.0);
                    let points = points.map(|(q, ns)| (1.0 / (1.0 - q), *ns as f64 / 1000.0));
                    let title = match &row.step {
                        Some(step) => format!("{} {step}", row.test),
                        None => format!("{} latency, {} B", row.test, row.size),
                    };
                    latencies.entry(title).or_default().push(Curve {
                        name,
                        points: points.collect(),
                    });
                } else if let Some(t) = &row.throughput {
                    for (bytes, value) in [(true, t.avg_mib_s), (false, t.messages_per_s)] {
                        let curves = flows.entry((row.test.to_string(), bytes)).or_default();
                        curves
                            .entry(name.clone())
                            .or_default()
                            .push((row.size.into(), value));
                    }
                }
            }
        }
    }
    if latencies.is_empty() && flows.is_empty() {
        bail!("the reports have no rows");
    }
    fs::create_dir_all(out).with_context(|| format!("{}", out.display()))?;
    let mut written = Vec::new();
    for (title, curves) in &latencies {
        let path = out.join(format!("latency-{}.svg", slug(title)));
        let x = |x: &f64| match *x {
            x if x <= 1.0 => "0%".to_owned(),
            x => format!("{}%", 100.0 * (1.0 - 1.0 / x)),
        };
        let axes = Axes {
            title,
            x: "percentile",
            y: "us",
        };
        draw(&path, &axes, curves, &x)?;
        written.push(path);
    }
    for ((test, bytes), curves) in &flows {
        let what = if *bytes { "bandwidth" } else { "rate" };
        let path = out.join(format!("{what}-{}.svg", slug(test)));
        let curves: Vec<_> = curves
            .iter()
            .map(|(name, points)| {
                let mut points = points.clone();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                Curve {
                    name: name.clone(),
                    points,
                }
            })
            .collect();
        let axes = Axes {
            title: &format!("{test} {what} over size"),
            x: "bytes",
            y: if *bytes { "MiB/s" } else { "messages/s" },
        };
        draw(&path, &axes, &curves, &|x| size(*x))?;
        written.push(path);
    }
    Ok(written)
}

/// Reads a file with a report, or with a list of reports.
fn read(file: &Path) -> Result<Vec<Report>> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(Box<Report>),
        Many(Vec<Report>),
    }
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{shown}"))?;
    let reports = match serde_json::from_str(&text) {
        Ok(OneOrMany::One(report)) => vec![*report],
        Ok(OneOrMany::Many(reports)) => reports,
        Err(_) => bail!(Usage(format!(
            "{shown} is not a JSON output of ulp bench, or of another version than {VERSION}"
        ))),
    };
    if reports.iter().any(|r| r.version != VERSION) {
        bail!(Usage(format!(
            "{shown} is of another version than {VERSION}"
        )));
    }
    Ok(reports)
}

/// Returns the name of a curve.
fn name(report: &Report, row: &Row) -> String {
    let mode = match row.mode {
        super::config::Mode::Poll => "polling",
        super::config::Mode::Event => "by events",
    };
    let mut name = format!("{} {mode}", row.backend);
    let config = &report.config;
    if row.throughput.is_some() {
        name += &format!(", lists of {}", config.list);
        if config.qps * config.threads != 1 {
            name += &format!(", {} queue pairs", config.qps * config.threads);
        }
    }
    name
}

fn slug(title: &str) -> String {
    let letters = title
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    let text: String = letters.collect();
    text.split('-')
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

fn size(bytes: f64) -> String {
    match bytes as u64 {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} Mi", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} Ki", n >> 10),
        n => n.to_string(),
    }
}

struct Axes<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
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
    axes: &Axes<'_>,
    curves: &[Curve],
    x_label: &dyn Fn(&f64) -> String,
) -> Result<()> {
    let points = || curves.iter().flat_map(|c| c.points.iter());
    let (x0, x1) = span(points().map(|p| p.0));
    let (y0, y1) = span(points().map(|p| p.1));
    let failed = |e: &dyn std::fmt::Display| anyhow::anyhow!("{}: {e}", path.display());
    let root = SVGBackend::new(path, (860, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((x0..x1).log_scale(), (y0..y1).log_scale())
        .map_err(|e| failed(&e))?;
    mesh(&mut chart, axes, x_label).map_err(|e| failed(&e))?;
    for (curve, color) in curves.iter().zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(2);
        let color = *color;
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))
            .map_err(|e| failed(&e))?
            .label(curve.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if curve.points.len() <= 32 {
            let dots = curve
                .points
                .iter()
                .map(|p| Circle::new(*p, 3, color.filled()));
            chart.draw_series(dots).map_err(|e| failed(&e))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()
        .map_err(|e| failed(&e))?;
    root.present().map_err(|e| failed(&e))
}

type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn mesh<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    axes: &Axes<'_>,
    x_label: &dyn Fn(&f64) -> String,
) -> std::result::Result<(), Failure<'a>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&|x| x_label(x))
        .y_label_formatter(&|y| {
            if *y >= 10.0 {
                format!("{y:.0}")
            } else {
                format!("{y:.1}")
            }
        })
        .label_style(("sans-serif", 13))
        .light_line_style(BLACK.mix(0.06))
        .draw()
}
