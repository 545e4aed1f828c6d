// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp diagnose`: what is wrong with this host, or between it and a peer, and what mends it.
//!
//! - [`host`]: module, node, devices, port, addresses, memory, a write to itself, counters, flow control
//! - [`peer`]: what only two hosts can tell, with `ulp diagnose --serve` at the other one

mod host;
mod peer;

use crate::output::{self, colours, interrupts, Format, FormatArgs, VERSION};
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Arguments of `ulp diagnose`.
#[derive(Debug, Args)]
pub struct Diagnose {
    /// Where `ulp diagnose --serve` runs, to look at what is between [default: look at this host only]
    #[arg(conflicts_with = "serve")]
    peer: Option<String>,
    /// Be that peer, until Ctrl-C.
    #[arg(long)]
    serve: bool,
    /// Listen at this address only.
    #[arg(long, default_value = "::", requires = "serve")]
    listen: String,
    /// TCP port of the peer.
    #[arg(short, long, default_value_t = 18516)]
    port: u16,
    /// RDMA device [default: the first whose interface is in this network namespace]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Index of the GID that the program uses [default: the one that is chosen by itself]
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u8>,
    /// Memory that the program registers, in KiB.
    #[arg(short, long, value_name = "KIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: u64,
    #[command(flatten)]
    format: FormatArgs,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could; or to be known.
    Note,
    /// Does not work.
    Fail,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub what: String,
    /// The command that mends it.
    pub cure: Option<String>,
}

/// What was found so far. Each thing is told as soon as it is found.
pub struct Findings {
    format: Format,
    coloured: bool,
    stop: std::sync::Arc<AtomicBool>,
    all: Vec<Finding>,
}

impl Findings {
    fn add(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        what: String,
        cure: Option<String>,
    ) -> Result<()> {
        if self.format == Format::Table {
            let (word, colour) = match verdict {
                Verdict::Ok => ("ok", 32),
                Verdict::Note => ("note", 33),
                Verdict::Fail => ("FAIL", 31),
            };
            let word = match self.coloured {
                true => format!("\x1b[{colour}m{word:4}\x1b[0m"),
                false => format!("{word:4}"),
            };
            output::print(&format!("{word} {check:12} {what}"))?;
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

    pub fn ok(&mut self, check: &'static str, what: impl Into<String>) -> Result<()> {
        self.add(check, Verdict::Ok, what.into(), None)
    }

    pub fn note(&mut self, check: &'static str, what: impl Into<String>) -> Result<()> {
        self.add(check, Verdict::Note, what.into(), None)
    }

    /// Something that works, and the command that makes it better.
    pub fn could(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Result<()> {
        self.add(check, Verdict::Note, what.into(), Some(cure.into()))
    }

    /// Something that does not work, and the command that mends it.
    pub fn fail(
        &mut self,
        check: &'static str,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Result<()> {
        self.add(check, Verdict::Fail, what.into(), Some(cure.into()))
    }

    /// Whether somebody pressed Ctrl-C.
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
            format: self.format.format,
            coloured: colours(),
            stop,
            all: Vec::new(),
        };
        let device = host::look(&self, &mut findings)?;
        if let (Some(peer), Some(device), false) = (&self.peer, device, findings.is_over()) {
            peer::look(&self, peer, &device, &mut findings)?;
        }
        let failed = findings
            .all
            .iter()
            .filter(|f| f.verdict == Verdict::Fail)
            .count();
        let interrupted = findings.is_over();
        match self.format.format {
            Format::Table => eprintln!("{failed} of {} checks failed", findings.all.len()),
            Format::Json => output::print(&serde_json::to_string_pretty(&json!({
                "version": VERSION, "failed": failed, "interrupted": interrupted, "findings": findings.all,
            }))?)?,
        }
        if interrupted {
            eprintln!("ulp: interrupted");
        }
        Ok(match failed == 0 && !interrupted {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}
