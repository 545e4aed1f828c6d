// SPDX-License-Identifier: MIT OR Apache-2.0

//! The manual pages and completions of the tool, generated from its arguments.

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `ulp generate`.
#[derive(Args, Debug)]
pub struct Generate {
    /// The directory for man/ and completions/.
    dir: PathBuf,
}

impl Generate {
    /// Writes a manual page per command and a completion per shell.
    pub fn run(self, tool: Command) -> Result<ExitCode> {
        // Hidden commands have no page and are not offered by the shells.
        let shown = tool.get_subcommands().filter(|sub| !sub.is_hide_set());
        let tool = Command::new("ulp")
            .version(env!("CARGO_PKG_VERSION"))
            .about(tool.get_about().cloned().unwrap_or_default())
            .subcommand_required(true)
            .disable_help_subcommand(true)
            .args(tool.get_arguments().cloned())
            .subcommands(shown.cloned().collect::<Vec<_>>());
        let (man, completions) = (self.dir.join("man"), self.dir.join("completions"));
        for dir in [&man, &completions] {
            fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        }
        clap_mangen::generate_to(tool.clone(), &man).context("writing the manual pages")?;
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            clap_complete::generate_to(shell, &mut tool.clone(), "ulp", &completions)
                .context("writing the completions")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
