// SPDX-License-Identifier: GPL-2.0

//! Areas of an address space: `struct vm_area_struct`.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use kernel::mm::virt::{
    flags,
    VmaNew, //
};

/// An area that `mmap` is setting up.
///
/// ```
/// fn mmap(pages: &Arc<pages::Pages>, area: &Area<'_>) -> Result {
///     if area.len() != pages.len() {
///         return Err(EINVAL);
///     }
///     pages.map(area, 0)
/// }
/// ```
pub(crate) struct Area<'a> {
    vma: &'a VmaNew,
}

impl<'a> Area<'a> {
    /// Wraps `vma`.
    pub(crate) fn new(vma: &'a VmaNew) -> Self {
        Self { vma }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.vma.end().wrapping_sub(self.vma.start())
    }

    /// Returns whether it is `MAP_SHARED`.
    pub(crate) fn is_shared(&self) -> bool {
        self.vma.flags() & flags::SHARED != 0
    }

    /// Returns the offset in the file at which it begins, in pages.
    pub(crate) fn page_offset(&self) -> usize {
        // SAFETY: The area is valid while `self` is, and nobody else changes it.
        unsafe { (*self.vma.as_ptr()).vm_pgoff }
    }

    /// Returns the type of the kernel crate.
    pub(crate) fn vma(&self) -> &VmaNew {
        self.vma
    }
}
