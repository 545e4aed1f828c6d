// SPDX-License-Identifier: GPL-2.0

//! Where kernels differ.

/// What a module parameter's `value()` returns: a reference in 7.2, the value from 7.3 on.
pub(crate) trait Parameter {
    /// The value.
    fn get(self) -> u32;
}

impl Parameter for u32 {
    fn get(self) -> u32 {
        self
    }
}

impl Parameter for &u32 {
    fn get(self) -> u32 {
        *self
    }
}
