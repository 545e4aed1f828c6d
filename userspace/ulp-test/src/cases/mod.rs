// SPDX-License-Identifier: MIT OR Apache-2.0

//! `ulp-test abi`: every command with everything wrong that can be wrong.

mod args;
mod handles;
mod maps;
pub mod matrix;
mod modify;
mod ranges;
mod submit;
mod whole;

use crate::report::Report;

/// All cases. Wants a default device.
pub fn run(r: &mut Report) {
    args::run(r);
    matrix::run(r);
    handles::run(r);
    ranges::run(r);
    modify::run(r);
    submit::run(r);
    maps::run(r);
    whole::run(r);
}
