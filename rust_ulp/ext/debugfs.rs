// SPDX-License-Identifier: GPL-2.0

//! A file of text in debugfs.
//!
//! The kernel crate has `debugfs`, but its `file_operations` have no owner: `full_proxy_release()`
//! of a file that is open would call them after the module was unloaded. The file of this module
//! (`debugfs.c`) has one: an open file holds the module.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

use crate::bindings;
use kernel::{
    prelude::*,
    seq_file::SeqFile,
    sync::Arc, //
};

/// The content of a file in debugfs.
///
/// ```
/// use ::kernel::{seq_file::SeqFile, seq_print};
///
/// struct Count(u32);
///
/// impl Show for Count {
///     fn show(&self, m: &SeqFile) {
///         seq_print!(m, "{}\n", self.0);
///     }
/// }
/// ```
pub(crate) trait Show: Send + Sync + 'static {
    /// Prints the text. Process context, may sleep.
    ///
    /// Called again, with a larger buffer, if the text did not fit.
    fn show(&self, m: &SeqFile);
}

/// The data that the file's operations find.
///
/// # Invariants
///
/// `base.show` is [`show`] for this `T`.
#[repr(C)]
struct Inner<T> {
    base: bindings::rust_ulp_h_debugfs_file,
    shared: Arc<T>,
}

/// A directory with one file, which root can read. Dropping it removes both, and waits until nobody
/// reads. Sleeps.
///
/// ```
/// fn init<T: Show>(shared: Arc<T>) -> Result<File<T>> {
///     File::new(c"pinger", c"count", shared) // Kept until the module is unloaded.
/// }
/// ```
///
/// # Invariants
///
/// `dir` is what `rust_ulp_h_debugfs_create` returned for `inner`.
pub(crate) struct File<T: Show> {
    dir: *mut kernel::bindings::dentry,
    /// An owning pointer, for the readers have it as well.
    inner: *mut Inner<T>,
}

// SAFETY: `dir` is used by `drop` only, from any thread, and `Inner` has an `Arc<T>` and a function.
unsafe impl<T: Show> Send for File<T> {}
// SAFETY: As above; nothing is done by a reference.
unsafe impl<T: Show> Sync for File<T> {}

impl<T: Show> File<T> {
    /// Creates the file `name` in the directory `dir`; a kernel without debugfs has none. Sleeps.
    pub(crate) fn new(dir: &CStr, name: &CStr, shared: Arc<T>) -> Result<Self> {
        // INVARIANT: The function is that of `T`.
        let inner = KBox::new(
            Inner {
                base: bindings::rust_ulp_h_debugfs_file {
                    show: Some(show::<T>),
                },
                shared,
            },
            GFP_KERNEL,
        )?;
        let inner = KBox::into_raw(inner);
        // SAFETY: The strings are copied. `drop` removes the file before it frees `inner`, of which
        // `base` is the first field.
        let dir = unsafe {
            bindings::rust_ulp_h_debugfs_create(dir.as_char_ptr(), name.as_char_ptr(), inner.cast())
        };
        // INVARIANT: As the call above says.
        Ok(Self { dir, inner })
    }
}

impl<T: Show> Drop for File<T> {
    fn drop(&mut self) {
        // SAFETY: By the invariants; `debugfs_remove()` accepts errors, and waits for readers.
        unsafe { bindings::rust_ulp_h_debugfs_remove(self.dir) };
        // SAFETY: `new` made it from a box, and nobody reads it any more.
        drop(unsafe { KBox::from_raw(self.inner) });
    }
}

/// # Safety
///
/// `file` is the `base` of an [`Inner<T>`], and `m` is valid; both during the call.
unsafe extern "C" fn show<T: Show>(
    file: *const bindings::rust_ulp_h_debugfs_file,
    m: *mut kernel::bindings::seq_file,
) {
    // SAFETY: By the requirement. Nobody has a mutable reference to it.
    let inner = unsafe { &*file.cast::<Inner<T>>() };
    // SAFETY: By the requirement.
    inner.shared.show(unsafe { SeqFile::from_raw(m) });
}
