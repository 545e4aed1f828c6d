// SPDX-License-Identifier: MIT OR Apache-2.0

//! The lines that a suite counts: `ok NAME`, or `not ok NAME - WHY`.

use std::fmt::{Debug, Display};
use std::process::ExitCode;

/// Why a case failed.
pub type Why = String;

/// What a case is: nothing, or why it failed.
pub type Outcome<T = ()> = Result<T, Why>;

/// Counts cases and prints a line for each.
#[derive(Debug, Default)]
pub struct Report {
    good: u32,
    bad: u32,
}

impl Report {
    /// One case.
    pub fn case(&mut self, name: impl Display, case: impl FnOnce() -> Outcome) {
        match case() {
            Ok(()) => {
                self.good += 1;
                println!("ok {name}");
            }
            Err(why) => {
                self.bad += 1;
                println!("not ok {name} - {}", why.replace('\n', " "));
            }
        }
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

    /// 0 when there were cases and all were good.
    pub fn status(&self) -> ExitCode {
        if self.good > 0 && self.bad == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
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
