// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decisions: drawn from a seed, or given, and kept so that they can be given again.
//!
//! A program is a list of operations, each with the words that it drew. As text, an operation is
//! a line: its name, and its words in hexadecimal. Words that are missing are drawn.

use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use std::fmt;

/// A generator for `seed`, another one for each `stream`.
pub fn generator(seed: u64, stream: u64) -> XorShiftRng {
    XorShiftRng::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Numbers at whose borders something changes.
const BORDERS: [u64; 30] = [
    0,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    63,
    64,
    65,
    80,
    127,
    255,
    256,
    257,
    511,
    513,
    1023,
    1025,
    4095,
    4096,
    4097,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX,
];

/// The decisions of one operation.
#[derive(Debug)]
pub struct Dice {
    rng: XorShiftRng,
    given: Vec<u32>,
    /// The words that were drawn.
    pub drawn: Vec<u32>,
}

impl Dice {
    /// First those that are given, then others by `seed`.
    pub fn new(seed: u64, given: Vec<u32>) -> Self {
        Self {
            rng: XorShiftRng::seed_from_u64(seed),
            given,
            drawn: Vec::new(),
        }
    }

    /// A word.
    pub fn word(&mut self) -> u32 {
        let given = self.given.get(self.drawn.len()).copied();
        let word = given.unwrap_or_else(|| self.rng.next_u32());
        self.drawn.push(word);
        word
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.word() as usize % count.max(1)
    }

    /// True once in `count` times.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let index = self.below(list.len());
        list.get(index).copied()
    }

    /// One of an array that is not empty.
    pub fn of<T: Copy, const N: usize>(&mut self, list: [T; N]) -> T {
        list[self.below(N)]
    }

    /// Any number, those at borders rather than others.
    pub fn any64(&mut self) -> u64 {
        match self.below(4) {
            0 => (u64::from(self.word()) << 32) | u64::from(self.word()),
            1 => 1 << self.below(64),
            _ => self.of(BORDERS),
        }
    }

    /// The same in 32 bits.
    pub fn any32(&mut self) -> u32 {
        self.any64() as u32
    }
}

/// One operation of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Its words.
    pub words: Vec<u32>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.words
            .iter()
            .try_for_each(|word| write!(f, " {word:x}"))
    }
}

/// Reads a program; `name_of` knows the operations.
pub fn parse(
    text: &str,
    name_of: impl Fn(&str) -> Option<&'static str>,
) -> Result<Vec<Step>, String> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or(""));
    let mut program = Vec::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let mut parts = line.split_whitespace();
        let name = parts.next().and_then(&name_of);
        let name = name.ok_or(format!("no such operation: {line}"))?;
        let words = parts.map(|word| u32::from_str_radix(word, 16));
        let words: Result<_, _> = words.collect();
        let words = words.map_err(|error| format!("{line}: {error}"))?;
        program.push(Step { name, words });
    }
    Ok(program)
}

/// Changes a program a little. `other` is one to take from, `fresh` the name of an operation.
pub fn mutate(program: &mut Vec<Step>, other: &[Step], fresh: &'static str, rng: &mut XorShiftRng) {
    let mut below = |count: usize| rng.next_u32() as usize % count.max(1);
    for _ in 0..=below(4) {
        let at = below(program.len());
        match below(8) {
            0 => program.insert(
                at,
                Step {
                    name: fresh,
                    words: Vec::new(),
                },
            ),
            1 if program.len() > 1 => drop(program.remove(at)),
            2 if !program.is_empty() => {
                let again = program[at].clone();
                program.insert(at, again);
            }
            3 => {
                let from = below(other.len());
                program.truncate(at + 1);
                program.extend(other.iter().skip(from).cloned());
            }
            4 => {
                if let Some(step) = program.get_mut(at) {
                    step.words.truncate(below(step.words.len()));
                }
            }
            _ => {
                if let Some(step) = program.get_mut(at) {
                    let (which, how, bit) = (below(step.words.len()), below(3), below(32));
                    let value = below(usize::MAX) as u32;
                    if let Some(word) = step.words.get_mut(which) {
                        *word = match how {
                            0 => value,
                            1 => *word ^ (1 << bit),
                            _ => word.wrapping_add(value % 5).wrapping_sub(2),
                        };
                    }
                }
            }
        }
    }
    program.truncate(24);
}
