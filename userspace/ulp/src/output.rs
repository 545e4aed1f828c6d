// SPDX-License-Identifier: MIT OR Apache-2.0

//! The output and the exit status of all commands.
//!
//! Results go to the standard output, as a table or as JSON. Messages go to the standard error.

use anyhow::{bail, Result};
use clap::{Args, ValueEnum};
use comfy_table::{presets::NOTHING, CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// The version of the JSON documents, which each of them carries.
pub const VERSION: u32 = 2;

/// The exit status of errors, and of commands that Ctrl-C interrupted.
pub const ERROR: u8 = 2;

/// Prints a message to the standard error.
macro_rules! message {
    ($($arg:tt)*) => { $crate::output::message(format_args!($($arg)*)) };
}

/// Writes a line to the standard error in one call, so that lines of several processes do not mix.
///
/// A standard error that is closed is not a failure of the command.
pub fn message(text: fmt::Arguments<'_>) {
    let text: Vec<_> = text.to_string().split('\n').map(printable).collect();
    let _ = anstream::stderr().write_all(format!("{}\n", text.join("\n")).as_bytes());
}

/// Returns a text without control characters: a terminal would obey those that the name of another
/// user's process has, or the message of a peer.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Returns the command line for a report; what is not UTF-8 is replaced.
pub fn command_line(words: impl Iterator<Item = std::ffi::OsString>) -> Vec<String> {
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// An error in the arguments that clap cannot find.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The error of a write to a standard output that its reader has closed (`ulp ... | head`).
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the standard output is closed")
    }
}

impl std::error::Error for Closed {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// The options `--format` and `--json`.
#[derive(Debug, Args)]
pub struct FormatArgs {
    /// Format of the results; `ulp schema` prints the JSON Schema of each command
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Short for --format json
    #[arg(short, long, conflicts_with = "format")]
    json: bool,
}

impl FormatArgs {
    pub fn is_json(&self) -> bool {
        self.json || self.format == Format::Json
    }

    /// Prints a result: the document as JSON, or else the text.
    pub fn print<T: Serialize>(&self, document: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self.is_json() {
            true => print(&serde_json::to_string_pretty(&versioned(document))?),
            false => print(&text()),
        }
    }

    /// Prints an element of a stream: one JSON object per line, or else the text.
    pub fn stream<T: Serialize>(&self, document: &T, text: impl FnOnce() -> String) -> Result<()> {
        match self.is_json() {
            true => print(&serde_json::to_string(&versioned(document))?),
            false => print(&text()),
        }
    }
}

/// A document with the version of the format.
#[derive(Serialize)]
pub struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    document: &'a T,
}

pub fn versioned<T>(document: &T) -> Versioned<'_, T> {
    Versioned {
        version: VERSION,
        document,
    }
}

/// Returns the JSON Schema of a document, the version included.
pub fn schema<T: JsonSchema>() -> schemars::Schema {
    let mut schema = schemars::schema_for!(T);
    let entry = |key: &str| serde_json::json!(key);
    let object = schema.ensure_object();
    if let Some(properties) = object
        .entry("properties")
        .or_insert(serde_json::json!({}))
        .as_object_mut()
    {
        properties.insert("version".to_owned(), serde_json::json!({"const": VERSION}));
    }
    if let Some(required) = object
        .entry("required")
        .or_insert(serde_json::json!([]))
        .as_array_mut()
    {
        if !required.contains(&entry("version")) {
            required.push(entry("version"));
        }
    }
    schema
}

/// Prints a line, or several, to the standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = anstream::stdout().lock();
    write(&mut out, format!("{text}\n").as_bytes())
}

/// Writes bytes to `out`, which is the standard output.
pub fn write(out: &mut impl Write, bytes: &[u8]) -> Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => bail!(Closed),
        written => Ok(written?),
    }
}

/// Formats columns under their heads, without lines.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    padded_table((1, 1), usize::MAX, head, rows)
}

/// Formats columns as [`table`], with so many blanks before and after each cell. The columns from
/// number `right` on are aligned to the right.
pub fn padded_table(
    padding: (u16, u16),
    right: usize,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(head);
    let cells = |row: Vec<String>| row.iter().map(|cell| printable(cell)).collect::<Vec<_>>();
    table.add_rows(rows.into_iter().map(cells));
    for column in table.column_iter_mut() {
        column.set_padding(padding);
    }
    for column in table.column_iter_mut().skip(right) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Returns the text of an optional value, or "-".
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Returns the exit status of an answer: 0 for yes, 1 for no.
pub fn answer(yes: bool) -> ExitCode {
    match yes {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns the exit status of a command that Ctrl-C ended before it was done, and says so.
pub fn interrupted() -> ExitCode {
    message!("ulp: interrupted");
    ExitCode::from(ERROR)
}

/// How the module is loaded, where that is what is missing.
fn hint(error: &anyhow::Error) -> &'static str {
    let is_missing = |error: &rust_ulp::Error| {
        matches!(error, rust_ulp::Error::Open { .. })
            && error.kind() == rust_ulp::error::ErrorKind::NotFound
    };
    let mut errors = error.chain().filter_map(|cause| cause.downcast_ref());
    match errors.any(is_missing) {
        true => ": modprobe rust_ulp, or insmod build/$(uname -r)/rust_ulp.ko",
        false => "",
    }
}

/// Returns the exit status of a failed command, after a message about the failure.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    if error.is::<Closed>() {
        return ExitCode::SUCCESS;
    }
    message!("ulp: {}{}", causes(error), hint(error));
    ExitCode::from(ERROR)
}

/// Formats an error with its causes on one line: the text of a peer is no message of its own. A cause
/// that the text above it already names is left out.
pub fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let causes = error.chain().map(ToString::to_string);
    for cause in causes.map(|cause| cause.replace('\n', " ")) {
        if !text.contains(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

/// Returns a flag that Ctrl-C and SIGTERM set. A second signal ends the program.
pub fn interrupts() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, ERROR.into(), stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that names its cause itself.
    #[derive(Debug)]
    struct Told(std::io::Error);

    impl fmt::Display for Told {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "one cannot be reached: {}", self.0)
        }
    }

    impl std::error::Error for Told {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        use anyhow::Context;
        let refused = || std::io::Error::from(ErrorKind::ConnectionRefused);
        let told = Told(refused());
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
    fn a_peer_cannot_forge_a_message() {
        let said = anyhow::anyhow!("the peer failed: x\nulp: all is well");
        let text = causes(&said.context("row"));
        assert_eq!(text, "row: the peer failed: x ulp: all is well");
    }

    #[test]
    fn a_terminal_gets_no_control_characters_of_others() {
        let name = "a\x1b]0;title\x07\nb\u{9b}2J\u{7f}名";
        let text = table(&["PROGRAM", "N"], [vec![name.to_owned(), "1".to_owned()]]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text:?}");
        assert!(lines[1].contains("a?]0;title??b?2J?名"), "{text:?}");
    }

    #[test]
    fn a_command_line_may_have_any_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let words = [&b"/tmp/\xff/ulp"[..], b"bench"].map(|word| word.to_vec());
        let line = command_line(words.map(std::ffi::OsString::from_vec).into_iter());
        assert_eq!(line, ["/tmp/\u{fffd}/ulp", "bench"]);
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let text = table(
            &["A", "LONG"],
            [vec!["wide cell".to_owned(), "b".to_owned()]],
        );
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }
}
