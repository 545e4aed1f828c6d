// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp bench study`: changes one parameter of a measurement at a time, and says which of them
//! matter most.
//!
//! The parameters that are not changed are those of the base, which is measured for each of them
//! again in turn with the others, so that a host that becomes slower changes all of them.

use super::client;
use super::config::{Config, Metric, Mode, Test, Transport};
use super::end::DeviceOptions;
use super::machine::Machine;
use super::stats::Row;
use anyhow::{Context, Result};
use clap::ValueEnum;
use comfy_table::{presets::NOTHING, CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// A parameter that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// The type of the queue pairs, for sends.
    Transport,
    /// The operation.
    Operation,
    /// Bytes per message.
    Size,
    /// Whether the message is copied into the request.
    Inline,
    /// Requests per post.
    List,
    /// The distance of signaled requests.
    Signaling,
    /// Polling, or sleeping until an event.
    Waiting,
    /// Queue pairs of the thread.
    QueuePairs,
}

impl Factor {
    fn name(self) -> &'static str {
        match self {
            Self::Transport => "transport (-c)",
            Self::Operation => "operation",
            Self::Size => "size (-s)",
            Self::Inline => "inline (-I)",
            Self::List => "list (-l)",
            Self::Signaling => "signaling (-Q)",
            Self::Waiting => "waiting (-e)",
            Self::QueuePairs => "queue pairs (-q)",
        }
    }

    /// Returns the values, each with its measurement.
    fn values(self, base: &Config) -> Vec<(String, Config)> {
        let change = |name: &str, change: &dyn Fn(&mut Config)| {
            let mut config = base.clone();
            change(&mut config);
            (name.to_owned(), config)
        };
        let numbers = |numbers: [u32; 3], set: fn(&mut Config, u32)| {
            let values = numbers.into_iter();
            let values = values.map(|n| change(&n.to_string(), &move |config| set(config, n)));
            values.collect::<Vec<_>>()
        };
        match self {
            Self::Transport => [Transport::Rc, Transport::Uc, Transport::Ud]
                .map(|transport| {
                    let name = transport.to_string();
                    change(&name, &move |config| config.transport = transport)
                })
                .to_vec(),
            Self::Operation => [
                Test::Send,
                Test::WriteImm,
                Test::Write,
                Test::Read,
                Test::FetchAdd,
            ]
            .map(|test| change(&test.to_string(), &move |config| config.test = test))
            .to_vec(),
            Self::Size => numbers([8, 1024, 65_536], |config, n| config.sizes = vec![n]),
            Self::Inline => {
                let sizes = [0, base.sizes.first().copied().unwrap_or(0)];
                sizes
                    .map(|n| change(&n.to_string(), &move |config| config.inline = n))
                    .to_vec()
            }
            Self::List => numbers([1, 16, 64], |config, n| config.list = n),
            Self::Signaling => numbers([1, 4, 64], |config, n| config.cq_mod = n),
            Self::Waiting => [("polling", Mode::Poll), ("events", Mode::Event)]
                .map(|(name, mode)| change(name, &move |config| config.mode = mode))
                .to_vec(),
            Self::QueuePairs => numbers([1, 4, 16], |config, n| config.qps = n),
        }
    }
}

/// The measurement of a value.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Value {
    pub factor: Factor,
    pub value: String,
    /// Messages that arrived, per second: the median of the runs.
    pub messages_per_s: f64,
    pub gbit_s: f64,
    /// The slowest and the fastest run, in messages per second.
    pub range: (f64, f64),
}

/// The effect of a factor.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Effect {
    pub factor: Factor,
    /// The values with the highest and with the lowest rate; for the size, with the highest and the
    /// lowest throughput.
    pub best: String,
    pub worst: String,
    /// How many times the best is the worst.
    pub ratio: f64,
    /// Whether the runs of both overlap, so that the difference may be chance.
    pub may_be_chance: bool,
}

/// The output of `ulp bench study`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Study {
    /// The parameters that are not changed.
    pub config: Config,
    pub command: Vec<String>,
    pub client: Machine,
    pub server: Option<Machine>,
    pub values: Vec<Value>,
    /// The factors, those that matter most first.
    pub effects: Vec<Effect>,
    pub interrupted: bool,
}

/// Returns the parameters that are not changed.
pub fn base(common: Config) -> Config {
    Config {
        test: Test::Send,
        metric: Metric::Rate,
        sizes: vec![8],
        list: 16,
        cq_mod: 64,
        ..common
    }
}

/// Runs all measurements `repeat` times. Ctrl-C ends them; what is complete is summed up.
pub fn run(
    base: &Config,
    repeat: u32,
    device: &DeviceOptions,
    host: &str,
    stop: &Arc<AtomicBool>,
) -> Result<Study> {
    let mut study = Study {
        config: base.clone(),
        command: std::env::args().collect(),
        client: Machine::here(),
        server: None,
        values: Vec::new(),
        effects: Vec::new(),
        interrupted: false,
    };
    for factor in Factor::value_variants() {
        let values = factor.values(base);
        let mut runs = vec![Vec::new(); values.len()];
        for _ in 0..repeat {
            for ((name, config), runs) in values.iter().zip(&mut runs) {
                let outcome = client::run(config, device, host, stop);
                if stop.load(Ordering::Relaxed) {
                    study.interrupted = true;
                    return Ok(study.sum_up());
                }
                if let Some(error) = outcome.error {
                    return Err(error).with_context(|| format!("{} {name}", factor.name()));
                }
                study.server = outcome.server;
                runs.extend(outcome.rows.first().map(|row| arrived(config, row)));
            }
        }
        let measured = values.iter().zip(&mut runs);
        let measured = measured.filter_map(|(value, runs)| Value::new(*factor, value, runs));
        study.values.extend(measured);
    }
    Ok(study.sum_up())
}

/// Returns the rate of the messages that arrived.
fn arrived(config: &Config, row: &Row) -> f64 {
    let rate = row.throughput.map_or(0.0, |t| t.messages_per_s);
    let sent = row.iterations.saturating_add(config.warmup).max(1);
    let lost = row.lost.unwrap_or(0).min(sent);
    rate * (sent - lost) as f64 / sent as f64
}

impl Value {
    fn new(factor: Factor, (name, config): &(String, Config), runs: &mut [f64]) -> Option<Self> {
        runs.sort_by(f64::total_cmp);
        let median = *runs.get(runs.len() / 2)?;
        let bits = config.sizes.first().copied().unwrap_or(0) * 8;
        Some(Self {
            factor,
            value: name.clone(),
            messages_per_s: median,
            gbit_s: median * f64::from(bits) / 1e9,
            range: (*runs.first()?, *runs.last()?),
        })
    }

    /// Returns what is compared: messages, or for the size bits, per second.
    fn score(&self) -> f64 {
        match self.factor {
            Factor::Size => self.gbit_s,
            _ => self.messages_per_s,
        }
    }
}

impl Effect {
    fn of(factor: Factor, values: &[Value]) -> Option<Self> {
        let of_factor = || values.iter().filter(move |value| value.factor == factor);
        let by_score = |a: &&Value, b: &&Value| a.score().total_cmp(&b.score());
        let (worst, best) = (of_factor().min_by(by_score)?, of_factor().max_by(by_score)?);
        // Ranges are in messages, which differ by the size in any case.
        let overlap = factor != Factor::Size && worst.range.1 >= best.range.0;
        Some(Self {
            factor,
            best: best.value.clone(),
            worst: worst.value.clone(),
            ratio: best.score() / worst.score().max(f64::MIN_POSITIVE),
            may_be_chance: overlap,
        })
    }

    fn text(&self) -> String {
        let unit = if self.factor == Factor::Size {
            " of the throughput"
        } else {
            ""
        };
        let name = self.factor.name();
        if self.may_be_chance {
            return format!("{name}: no difference beyond that of repeated runs");
        }
        format!(
            "{name}: {} is {:.2} times{unit} {}",
            self.best, self.ratio, self.worst
        )
    }
}

impl Study {
    /// Ranks the factors.
    fn sum_up(mut self) -> Self {
        let effects = Factor::value_variants().iter();
        self.effects = effects
            .filter_map(|factor| Effect::of(*factor, &self.values))
            .collect();
        self.effects.sort_by(|a, b| {
            let order = b.ratio.total_cmp(&a.ratio);
            a.may_be_chance.cmp(&b.may_be_chance).then(order)
        });
        self
    }

    /// Formats the study as tables.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(NOTHING);
        table.set_header([
            "factor",
            "value",
            "messages/s",
            "slowest",
            "fastest",
            "Gbit/s",
        ]);
        for value in &self.values {
            table.add_row([
                value.factor.name().to_owned(),
                value.value.clone(),
                format!("{:.0}", value.messages_per_s),
                format!("{:.0}", value.range.0),
                format!("{:.0}", value.range.1),
                format!("{:.3}", value.gbit_s),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{table}\n\nwhat matters, the most first:");
        for effect in &self.effects {
            text += &format!("\n  {}", effect.text());
        }
        if self.interrupted {
            text += "\n(interrupted)";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::tests::config;

    #[test]
    fn every_value_is_a_valid_measurement() {
        let base = base(Config {
            list: 16,
            qps: 1,
            ..config()
        });
        for factor in Factor::value_variants() {
            let values = factor.values(&base);
            assert!(values.len() >= 2, "{factor:?}");
            for (name, config) in values {
                config
                    .check()
                    .unwrap_or_else(|error| panic!("{factor:?} {name}: {error}"));
            }
        }
    }

    #[test]
    fn the_largest_effect_comes_first_and_chance_last() {
        let value = |factor, name: &str, rate: f64, range| Value {
            factor,
            value: name.to_owned(),
            messages_per_s: rate,
            gbit_s: rate,
            range,
        };
        let study = Study {
            config: config(),
            command: Vec::new(),
            client: Machine::default(),
            server: None,
            values: vec![
                value(Factor::List, "1", 10.0, (9.0, 11.0)),
                value(Factor::List, "64", 20.0, (19.0, 21.0)),
                value(Factor::Inline, "0", 10.0, (1.0, 90.0)),
                value(Factor::Inline, "8", 80.0, (2.0, 99.0)),
                value(Factor::Waiting, "polling", 30.0, (29.0, 31.0)),
                value(Factor::Waiting, "events", 10.0, (9.0, 11.0)),
            ],
            effects: Vec::new(),
            interrupted: false,
        };
        let study = study.sum_up();
        let order: Vec<_> = study.effects.iter().map(|effect| effect.factor).collect();
        assert_eq!(order, [Factor::Waiting, Factor::List, Factor::Inline]);
        assert!((study.effects[0].ratio - 3.0).abs() < 1e-9);
        assert!(study
            .text()
            .contains("waiting (-e): polling is 3.00 times events"));
        assert!(study.text().contains("inline (-I): no difference"));
    }
}
