// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp schema`: the JSON Schema of the output of each command, made from the types that are
//! printed.

use crate::output::{print, schema};
use crate::{bench, diagnose, pingpong, resources, rping, selftest, show, top};
use anyhow::Result;
use clap::ValueEnum;
use std::process::ExitCode;

/// Arguments of `ulp schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command; commands with the same output share a schema
    #[arg(value_enum)]
    command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Command {
    Devices,
    Gids,
    /// A line per event
    Events,
    /// A line per interval with --watch
    Counters,
    Qp,
    Resources,
    /// A line per interval without --once
    Top,
    Diagnose,
    /// Also the report
    Selftest,
    Pingpong,
    Rping,
    /// All commands of bench that measure, but for bench study
    Bench,
    BenchStudy,
}

impl Args {
    pub fn run(self) -> Result<ExitCode> {
        let schema = match self.command {
            Command::Devices => schema::<show::DeviceList>(),
            Command::Gids => schema::<show::GidList>(),
            Command::Events => schema::<show::EventRow>(),
            Command::Counters => schema::<show::CounterList>(),
            Command::Qp => schema::<show::QpList>(),
            Command::Resources => schema::<resources::ResourceList>(),
            Command::Top => schema::<top::Top>(),
            Command::Diagnose => schema::<diagnose::Diagnosis>(),
            Command::Selftest => schema::<selftest::Report>(),
            Command::Pingpong => schema::<pingpong::Summary>(),
            Command::Rping => schema::<rping::Summary>(),
            Command::Bench => schema::<bench::Report>(),
            Command::BenchStudy => schema::<bench::Study>(),
        };
        print(&serde_json::to_string_pretty(&schema)?)?;
        Ok(ExitCode::SUCCESS)
    }
}
