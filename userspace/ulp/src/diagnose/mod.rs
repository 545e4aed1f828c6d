// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp diagnose`: finds faults of this host, or between it and a peer, and names the repair of
//! each.
//!
//! - [`host`]: module, node, device, port, addresses, memory, a write to itself, counters, flow
//!   control
//! - [`peer`]: checks of the path to another host, where `ulp diagnose --serve` runs
//!
//! The English text of a finding stands where it is found; `zh.txt` has the Chinese text of each.

/// Returns a text in the language of some [`Findings`], with the values in its places.
macro_rules! say {
    ($found:expr, $english:literal $(, $value:expr)* $(,)?) => {
        $found.say($english, &[$(&$value),*])
    };
}

mod cause;
mod host;
mod peer;
#[cfg(test)]
mod tests;

pub use host::refusal;

use crate::args::{size_in, DeviceArg};
use crate::lang::{fill, Lang, LangArg};
use crate::output::{self, answer, interrupts, FormatArgs};
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arguments of `ulp diagnose`.
#[derive(Debug, Args)]
pub struct Diagnose {
    /// Host where `ulp diagnose --serve` runs, to test the path to it [default: test this host
    /// only]
    #[arg(conflicts_with = "serve")]
    peer: Option<String>,
    /// Serve the peers that test the path to this host, until Ctrl-C
    #[arg(long, conflicts_with_all = ["memory", "lang", "format", "json"])]
    serve: bool,
    /// Listen at this address only
    #[arg(long, value_name = "ADDRESS", default_value = "::", requires = "serve")]
    listen: String,
    /// TCP port of the peer
    #[arg(short, long, default_value_t = 18516)]
    port: u16,
    #[command(flatten)]
    device: DeviceArg,
    /// Index of the GID to test [default: the GID that programs use by default]
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Size of the memory to register, at most 1GiB
    #[arg(short, long, value_name = "SIZE", default_value = "1MiB", value_parser = size_in(1..=1 << 30, "1 byte and 1GiB"))]
    memory: u32,
    #[command(flatten)]
    lang: LangArg,
    #[command(flatten)]
    format: FormatArgs,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The checked object works.
    Ok,
    /// The checked object works, but could work better, or its state is worth knowing.
    Note,
    /// The checked object does not work.
    Fail,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub what: String,
    /// The command that repairs the fault.
    pub cure: Option<String>,
}

/// The output of `ulp diagnose`.
#[derive(Serialize, JsonSchema)]
pub struct Diagnosis {
    /// The number of failed checks.
    failed: usize,
    /// Whether Ctrl-C ended the diagnosis before all checks were done.
    interrupted: bool,
    findings: Vec<Finding>,
}

/// The Chinese text of each finding, cure, cause and counter.
const CHINESE: &str = include_str!("zh.txt");

/// The findings so far. The table is printed line by line.
pub struct Findings {
    is_json: bool,
    lang: Lang,
    stop: std::sync::Arc<AtomicBool>,
    all: Vec<Finding>,
}

impl Findings {
    /// Returns a text in the language of the findings, with the values in its places.
    pub fn say(&self, english: &'static str, values: &[&dyn Display]) -> String {
        fill(self.lang.translate(CHINESE, english), values)
    }

    fn add(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        what: String,
        cure: Option<String>,
    ) -> Result<()> {
        if !self.is_json {
            let (word, color) = match verdict {
                Verdict::Ok => ("ok", AnsiColor::Green),
                Verdict::Note => ("note", AnsiColor::Yellow),
                Verdict::Fail => ("FAIL", AnsiColor::Red),
            };
            let style = Style::new().fg_color(Some(color.into()));
            let name = check.replace('_', " ");
            output::print(&format!("{style}{word:4}{style:#} {name:12} {what}"))?;
            if let Some(cure) = &cure {
                output::print(&format!("     {:12} -> {cure}", ""))?;
            }
        }
        self.all.push(Finding {
            check,
            verdict,
            what,
            cure,
        });
        Ok(())
    }

    /// Adds a check that passed.
    pub fn ok(&mut self, check: &'static str, what: impl Into<String>) -> Result<()> {
        self.add(check, Verdict::Ok, what.into(), None)
    }

    /// Adds a fact that is worth knowing.
    pub fn note(&mut self, check: &'static str, what: impl Into<String>) -> Result<()> {
        self.add(check, Verdict::Note, what.into(), None)
    }

    /// Adds a finding that works, with the command that improves it.
    pub fn could(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Result<()> {
        self.add(check, Verdict::Note, what.into(), Some(cure.into()))
    }

    /// Adds a fault, with the command that repairs it.
    pub fn fail(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Result<()> {
        self.add(check, Verdict::Fail, what.into(), Some(cure.into()))
    }

    /// Returns whether Ctrl-C was pressed.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Diagnose {
    pub fn run(self) -> Result<ExitCode> {
        let stop = interrupts()?;
        if self.serve {
            peer::serve(&self, &stop)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut findings = Findings {
            is_json: self.format.is_json(),
            lang: self.lang.get(),
            stop,
            all: Vec::new(),
        };
        let device = host::check(&self, &mut findings)?;
        if let (Some(peer), Some(device), false) = (&self.peer, device, findings.is_over()) {
            peer::check(&self, peer, &device, &mut findings)?;
        }
        let interrupted = findings.is_over();
        let is_failed = |finding: &&Finding| finding.verdict == Verdict::Fail;
        let (failed, all) = (
            findings.all.iter().filter(is_failed).count(),
            findings.all.len(),
        );
        let summary = say!(findings, "{0} of {1} checks failed", failed, all);
        let diagnosis = Diagnosis {
            failed,
            interrupted,
            findings: findings.all,
        };
        if self.format.is_json() {
            self.format.print(&diagnosis, String::new)?;
        } else {
            message!("{summary}");
        }
        Ok(match interrupted {
            true => output::interrupted(),
            false => answer(diagnosis.failed == 0),
        })
    }
}
