// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp bench study`: changes one parameter of a measurement at a time, and says which of them
//! matter most.
//!
//! The parameters that are not changed are those of the base, which is measured for each of them
//! again in turn with the others, so that a host that becomes slower changes all of them.

use super::client;
use super::config::{Config, Metric, Mode, Test, Transport};
use super::end::Run;
use super::stats::Row;
use crate::machine::Machine;
use crate::output;
use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::Ordering;

/// A parameter that is changed: its name with its option, and a function that sets value number `i`
/// and returns its name.
type Factor = (&'static str, fn(&mut Config, usize) -> Option<String>);

/// The size of the messages, which are compared by bytes.
const SIZE: &str = "size (-s)";
const FACTORS: &[Factor] = &[
    ("transport (-c)", |c, i| {
        use Transport::{Rc, Uc, Ud};
        pick(&mut c.transport, &[Rc, Uc, Ud], i)
    }),
    ("operation", |c, i| {
        use Test::{FetchAdd, Read, Send, Write, WriteImm};
        pick(&mut c.test, &[Send, WriteImm, Write, Read, FetchAdd], i)
    }),
    (SIZE, |c, i| {
        pick(c.sizes.first_mut()?, &[8, 1024, 65_536], i)
    }),
    ("inline (-I)", |c, i| pick(&mut c.inline, &[0, 8], i)),
    ("list (-l)", |c, i| pick(&mut c.list, &[1, 16, 64], i)),
    ("signaling (-Q)", |c, i| pick(&mut c.cq_mod, &[1, 4, 64], i)),
    ("waiting (-e)", |c, i| {
        pick(&mut c.mode, &[Mode::Poll, Mode::Event], i)
    }),
    ("queue pairs (-q)", |c, i| pick(&mut c.qps, &[1, 4, 16], i)),
];

fn pick<T: Copy + ToString>(place: &mut T, values: &[T], i: usize) -> Option<String> {
    *place = *values.get(i)?;
    Some(place.to_string())
}

/// Returns the values of a factor, each with its measurement.
fn values(set: fn(&mut Config, usize) -> Option<String>, base: &Config) -> Vec<(String, Config)> {
    let values = (0..).map_while(|i| {
        let mut config = base.clone();
        Some((set(&mut config, i)?, config))
    });
    values.collect()
}

/// The measurement of a value.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Value {
    pub factor: &'static str,
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
    pub factor: &'static str,
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
pub fn run(base: Run<'_>, repeat: u32, host: &str) -> Result<Study> {
    let mut study = Study {
        config: base.config.clone(),
        command: output::command_line(std::env::args_os()),
        client: Machine::here(),
        server: None,
        values: Vec::new(),
        effects: Vec::new(),
        interrupted: false,
    };
    for (factor, set) in FACTORS {
        let values = values(*set, base.config);
        let mut runs = vec![Vec::new(); values.len()];
        for _ in 0..repeat {
            for ((name, config), runs) in values.iter().zip(&mut runs) {
                let outcome = client::run(Run { config, ..base }, host);
                if base.stop.load(Ordering::Relaxed) {
                    study.interrupted = true;
                    return Ok(study.sum_up());
                }
                if let Some(error) = outcome.error {
                    return Err(error).with_context(|| format!("{factor} {name}"));
                }
                study.server = outcome.server;
                runs.extend(outcome.rows.first().map(|row| arrived(config, row)));
            }
        }
        let measured = values.iter().zip(&mut runs);
        let measured = measured.filter_map(|(value, runs)| Value::new(factor, value, runs));
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
    fn new(
        factor: &'static str,
        (name, config): &(String, Config),
        runs: &mut [f64],
    ) -> Option<Self> {
        runs.sort_by(f64::total_cmp);
        // One of an odd number of runs, the mean of two of an even one.
        let middle = |last: usize| runs.get(runs.len().checked_sub(last)? / 2).copied();
        let median = (middle(1)? + middle(0)?) / 2.0;
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
            SIZE => self.gbit_s,
            _ => self.messages_per_s,
        }
    }
}

impl Effect {
    fn of(factor: &'static str, values: &[Value]) -> Option<Self> {
        let of_factor = || values.iter().filter(move |value| value.factor == factor);
        let by_score = |a: &&Value, b: &&Value| a.score().total_cmp(&b.score());
        let (worst, best) = (of_factor().min_by(by_score)?, of_factor().max_by(by_score)?);
        // Ranges are in messages, which differ by the size in any case.
        let overlap = factor != SIZE && worst.range.1 >= best.range.0;
        Some(Self {
            factor,
            best: best.value.clone(),
            worst: worst.value.clone(),
            ratio: best.score() / worst.score().max(f64::MIN_POSITIVE),
            may_be_chance: overlap,
        })
    }

    fn text(&self) -> String {
        let name = self.factor;
        let unit = match self.factor {
            SIZE => " of the throughput",
            _ => "",
        };
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
        let effects = FACTORS.iter();
        self.effects = effects
            .filter_map(|(factor, _)| Effect::of(factor, &self.values))
            .collect();
        self.effects.sort_by(|a, b| {
            let order = b.ratio.total_cmp(&a.ratio);
            a.may_be_chance.cmp(&b.may_be_chance).then(order)
        });
        self
    }

    /// Formats the study as tables.
    pub fn text(&self) -> String {
        let head = [
            "factor",
            "value",
            "messages/s",
            "slowest",
            "fastest",
            "Gbit/s",
        ];
        let rows = self.values.iter().map(|value| {
            vec![
                value.factor.to_owned(),
                value.value.clone(),
                format!("{:.0}", value.messages_per_s),
                format!("{:.0}", value.range.0),
                format!("{:.0}", value.range.1),
                format!("{:.3}", value.gbit_s),
            ]
        });
        let table = output::padded_table((1, 1), 2, &head, rows);
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
        for (factor, set) in FACTORS {
            let values = values(*set, &base);
            assert!(values.len() >= 2, "{factor}");
            for (name, config) in values {
                let checked = config.check();
                checked.unwrap_or_else(|error| panic!("{factor} {name}: {error}"));
            }
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |runs: &[f64]| {
            let value = ("8".to_owned(), config());
            Value::new(SIZE, &value, &mut runs.to_vec()).map(|value| value.messages_per_s)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[7.0]), Some(7.0));
        assert_eq!(of(&[9.0, 1.0]), Some(5.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[9.0, 1.0, 4.0, 2.0]), Some(3.0));
    }

    #[test]
    fn the_largest_effect_comes_first_and_chance_last() {
        let value = |factor, value: &str, rate: f64, range| Value {
            factor,
            value: value.to_owned(),
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
                value("list (-l)", "1", 10.0, (9.0, 11.0)),
                value("list (-l)", "64", 20.0, (19.0, 21.0)),
                value("inline (-I)", "0", 10.0, (1.0, 90.0)),
                value("inline (-I)", "8", 80.0, (2.0, 99.0)),
                value("waiting (-e)", "polling", 30.0, (29.0, 31.0)),
                value("waiting (-e)", "events", 10.0, (9.0, 11.0)),
            ],
            effects: Vec::new(),
            interrupted: false,
        };
        let study = study.sum_up();
        let order: Vec<_> = study.effects.iter().map(|effect| effect.factor).collect();
        assert_eq!(order, ["waiting (-e)", "list (-l)", "inline (-I)"]);
        assert!((study.effects[0].ratio - 3.0).abs() < 1e-9);
        assert!(study
            .text()
            .contains("waiting (-e): polling is 3.00 times events"));
        assert!(study.text().contains("inline (-I): no difference"));
    }
}
