// SPDX-License-Identifier: MIT OR Apache-2.0

//! The progress bar, on the standard error if that is a terminal.

use super::config::{Amount, Config};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A progress bar, which is hidden if the standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(5)
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            bar: ProgressBar::with_draw_target(Some(1), target),
        }
    }

    /// Starts the bar for a row.
    pub fn begin(&self, config: &Config, size: u32) {
        let threads = if config.list_test() {
            u64::from(config.threads)
        } else {
            1
        };
        let (template, length) = match config.amount {
            Amount::Iterations(n) => {
                let all = n.saturating_add(config.warmup).saturating_mul(threads);
                ("{msg} [{bar:30}] {pos}/{len} {elapsed}", all)
            }
            Amount::Millis(_) => ("{msg} {pos} {elapsed}", 0),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.reset();
        self.bar.set_length(length);
        self.bar.set_message(format!(
            "{} {} {size} B, {}",
            config.test, config.metric, config.backend
        ));
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }

    /// Shows the number of messages so far.
    pub fn show(&self, messages: u64) {
        self.bar.set_position(messages);
    }

    /// Ends the bar of the row.
    pub fn end(&self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
    }
}
