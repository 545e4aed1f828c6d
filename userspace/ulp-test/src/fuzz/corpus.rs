// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs that are worth keeping, and what of the module they reach.

use super::dice::Step;
use std::collections::HashSet;

/// Programs, and the addresses in the kernel that any of them has reached.
#[derive(Debug, Default)]
pub struct Corpus {
    /// The programs.
    pub programs: Vec<Vec<Step>>,
    /// The addresses.
    pub reached: HashSet<u64>,
}

impl Corpus {
    /// Notes what was reached: how many of the addresses are new.
    pub fn reach(&mut self, addresses: impl Iterator<Item = u64>) -> usize {
        let before = self.reached.len();
        self.reached.extend(addresses);
        self.reached.len() - before
    }
}

/// A program as a file has it.
pub fn text(program: &[Step]) -> String {
    let lines = program.iter().map(|step| format!("{step}\n"));
    lines.collect()
}
