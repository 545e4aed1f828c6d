// SPDX-License-Identifier: MIT OR Apache-2.0

//! How results come out, for all commands.

use anyhow::Result;
use clap::{Args, ValueEnum};
use comfy_table::{presets::NOTHING, Table};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::net::Ipv6Addr;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Version of what `--format json` prints.
pub const VERSION: u32 = 1;

/// Arguments that make no sense: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Json,
}

#[derive(Debug, Args)]
pub struct FormatArgs {
    /// How the results are printed.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

/// Prints a result.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints rows: under their heads, or as `{"version": 1, NAME: [ROW...]}`.
pub fn rows<T: Serialize>(
    format: Format,
    name: &str,
    rows: &[T],
    head: &[&str],
    cells: impl Fn(&T) -> Vec<Vec<String>>,
) -> Result<()> {
    match format {
        Format::Table => print(&table(head, rows.iter().flat_map(cells))),
        Format::Json => print(&serde_json::to_string_pretty(
            &serde_json::json!({"version": VERSION, name: rows}),
        )?),
    }
}

/// Columns under their heads, without lines.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(head);
    table.add_rows(rows);
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Whether nobody reads any more (`ulp ... | head`).
pub fn is_closed(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// An error with its causes, each once: many errors name their cause themselves.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

/// Whether words may have colours: on a terminal, unless `NO_COLOR` says otherwise.
pub fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

/// Set by Ctrl-C; a second one ends the program.
pub fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// HOST and a port, HOST:PORT, or an IPv6 address in brackets or without.
pub fn address(host: &str, port: u16) -> String {
    if host.parse::<Ipv6Addr>().is_ok() {
        return format!("[{host}]:{port}");
    }
    let has_port = match host.rsplit_once(':') {
        Some((rest, port)) => {
            port.parse::<u16>().is_ok() && (!rest.contains(':') || rest.ends_with(']'))
        }
        None => false,
    };
    if has_port {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_a_port() {
        for (host, want) in [
            ("10.9.0.1", "10.9.0.1:7"),
            ("10.9.0.1:8", "10.9.0.1:8"),
            ("name", "name:7"),
            ("fd09::1", "[fd09::1]:7"),
            ("[fd09::1]", "[fd09::1]:7"),
            ("[fd09::1]:8", "[fd09::1]:8"),
            ("::", "[::]:7"),
        ] {
            assert_eq!(address(host, 7), want);
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        use anyhow::Context;
        let refused = || std::io::Error::from(ErrorKind::ConnectionRefused);
        let told = ulp_kv::Error::Unreachable {
            server: "one".to_owned(),
            cause: refused(),
        };
        let text = causes(&anyhow::Error::new(told).context("a pair"));
        assert_eq!(text.matches("connection refused").count(), 1, "{text}");
        assert!(
            text.starts_with("a pair: one cannot be reached: "),
            "{text}"
        );
        let untold = Err::<(), _>(refused()).context("connecting").unwrap_err();
        assert_eq!(causes(&untold), "connecting: connection refused");
    }

    #[test]
    fn tables_have_no_blanks_behind() {
        let text = table(
            &["A", "LONG"],
            [vec!["wide cell".to_owned(), "b".to_owned()]],
        );
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }
}
