// SPDX-License-Identifier: MIT OR Apache-2.0

//! Manual pages and completions of the tool, from what it says of itself in `--help`.

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Where they go.
#[derive(Args, Debug)]
pub struct Generate {
    /// The directory that gets man/ and completions/
    dir: PathBuf,
}

impl Generate {
    /// Writes a page per subcommand and a completion per shell.
    pub fn run(self, tool: Command) -> Result<ExitCode> {
        // The shells would offer hidden subcommands, too.
        let shown = tool.get_subcommands().filter(|sub| !sub.is_hide_set());
        let tool = Command::new("ulp")
            .version(env!("CARGO_PKG_VERSION"))
            .about(tool.get_about().cloned().unwrap_or_default())
            .subcommand_required(true)
            .disable_help_subcommand(true)
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
