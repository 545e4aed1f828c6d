// SPDX-License-Identifier: GPL-2.0

//! Where kernels differ.

/// Whether the kernel has io_uring. What a driver needs of it is exported from 7.2 on.
pub(crate) const HAS_URING: bool = cfg!(CONFIG_IO_URING);

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
