// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prints KTAP: a line for each case as it ends, and the plan at the end.

use std::fmt::{Debug, Display};
use std::process::ExitCode;
use std::time::Duration;

/// Why a case failed.
pub type Why = String;

/// What a case is: nothing, or why it failed.
pub type Outcome<T = ()> = Result<T, Why>;

/// Counts cases and prints a line for each.
#[derive(Debug)]
pub struct Report {
    cases: u32,
    bad: u32,
}

/// Returns the text as one line without `#`, which begins a directive in KTAP.
fn plain(text: impl Display) -> String {
    text.to_string().replace('\n', " ").replace('#', "_")
}

impl Report {
    /// Begins a report.
    pub fn new() -> Self {
        println!("KTAP version 1");
        Self { cases: 0, bad: 0 }
    }

    /// One case.
    pub fn case(&mut self, name: impl Display, case: impl FnOnce() -> Outcome) {
        let outcome = case();
        self.cases += 1;
        let (number, name) = (self.cases, plain(name));
        match outcome.map_err(plain) {
            Ok(()) => println!("ok {number} {name}"),
            Err(why) => {
                self.bad += 1;
                println!("not ok {number} {name} # failed: {why}");
            }
        }
    }

    /// A case that cannot run here.
    pub fn skip(&mut self, name: impl Display, why: &str) {
        self.cases += 1;
        println!("ok {} {} # SKIP {}", self.cases, plain(name), plain(why));
    }

    /// What `make` makes, or a failed case with that name.
    pub fn need<T>(&mut self, name: impl Display, make: impl FnOnce() -> Outcome<T>) -> Option<T> {
        match make() {
            Ok(value) => Some(value),
            Err(why) => {
                self.case(name, || Err(why));
                None
            }
        }
    }

    /// Prints the plan; 0 when there were cases, and none failed.
    pub fn status(&self) -> ExitCode {
        println!("1..{}", self.cases);
        if self.cases > 0 && self.bad == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Returns what a deadline is multiplied by: `ULP_PATIENCE`, see `tests/vm/lib.sh`.
pub fn patience() -> u32 {
    let patience = std::env::var("ULP_PATIENCE").ok();
    patience.and_then(|value| value.parse().ok()).unwrap_or(5)
}

/// Returns a deadline that only a hang meets, and that the device takes.
pub fn hang() -> Duration {
    Duration::from_secs(3600).min(Duration::from_secs(20) * patience())
}

/// Fails when the two differ.
pub fn equal<T: PartialEq + Debug>(what: impl Display, got: T, want: T) -> Outcome {
    if got == want {
        Ok(())
    } else {
        Err(format!("{what}: got {got:?}, want {want:?}"))
    }
}

/// Fails when it is not so.
pub fn check(what: impl Display, so: bool) -> Outcome {
    if so {
        Ok(())
    } else {
        Err(what.to_string())
    }
}

/// A failure in words, with what was done.
pub fn because<E: Display>(what: &str) -> impl FnOnce(E) -> Why + '_ {
    move |error| format!("{what}: {error}")
}
