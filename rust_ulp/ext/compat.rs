// SPDX-License-Identifier: GPL-2.0

//! Differences between kernels.

/// The result of a module parameter's `value()`: a reference in 7.2, the value from 7.3 on.
///
/// ```
/// fn doubled(parameter: impl Parameter) -> u32 {
///     parameter.get().saturating_mul(2)
/// }
/// ```
pub(crate) trait Parameter {
    /// Returns the value.
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
