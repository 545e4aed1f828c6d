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

/// A picture: its axes, and the points of its curves, each with its name.
struct Picture {
    title: String,
    x: &'static str,
    y: &'static str,
    x_label: fn(&f64) -> String,
    curves: Vec<(String, Vec<(f64, f64)>)>,
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
        for report in read(file)? {
            for row in &report.rows {
                add(&mut pictures, &report, row);
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

/// Adds a row to its pictures, which have the names of their files.
fn add(pictures: &mut BTreeMap<String, Picture>, report: &Report, row: &Row) {
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
        picture.curves.push((name, points.collect()));
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
            match curves.find(|(other, _)| *other == name) {
                Some((_, points)) => points.push(point),
                None => picture.curves.push((name.clone(), vec![point])),
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
    for (_, points) in &mut picture.curves {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let points = || picture.curves.iter().flat_map(|(_, points)| points);
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
    for ((name, points), color) in picture.curves.iter().zip(COLORS.iter().cycle()) {
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
