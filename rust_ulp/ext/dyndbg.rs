// SPDX-License-Identifier: GPL-2.0

//! Debug messages for `dynamic_debug`.
//!
//! The kernel crate's `pr_debug!` is compiled only with debug assertions, and has no entry in
//! `/proc/dynamic_debug/control`. [`dynamic_pr_debug!`] has one. It is silent until it is enabled
//! by file, line, format or function, which here is the Rust module, at run time or by the
//! parameter `dyndbg=`.
//!
//! The module loader takes the section `__dyndbg` as an array of `struct _ddebug`. Each site puts
//! one there, asks its static key whether to print, which is a patched jump, and prints with
//! `__dynamic_pr_debug()`. A kernel without `CONFIG_DYNAMIC_DEBUG` has no sites.
//!
//! C header: [`include/linux/dynamic_debug.h`](srctree/include/linux/dynamic_debug.h)

#[cfg(CONFIG_DYNAMIC_DEBUG)]
use core::cell::UnsafeCell;
#[cfg(CONFIG_DYNAMIC_DEBUG)]
use kernel::{
    bindings,
    str::CStrExt as _, //
};

/// `struct _ddebug`, with the union around its key flattened to the variant in use.
///
/// ```
/// fn note(number: u32) {
///     dynamic_pr_debug!("pinger", "request {}\n", number); // Has a `Site` of its own.
/// }
/// ```
///
/// # Invariants
///
/// The strings are NUL-terminated and live for ever.
#[cfg(CONFIG_DYNAMIC_DEBUG)]
#[repr(C, align(8))]
pub(crate) struct Site {
    modname: *const u8,
    function: *const u8,
    filename: *const u8,
    format: *const u8,
    /// The line in bits 0 to 17, the class in bits 18 to 23, and the flags, which the kernel
    /// changes, from bit 24 on.
    bits: UnsafeCell<u32>,
    /// Public for the macro, which needs its offset and type. The kernel changes it. Rust makes no
    /// reference to it, and the cell above keeps the site out of read-only memory.
    pub(crate) key: bindings::static_key_false,
}

#[cfg(CONFIG_DYNAMIC_DEBUG)]
// SAFETY: The kernel changes the flags and the key under its own locks, and reads them as atomics.
// Rust does not access them.
unsafe impl Sync for Site {}

#[cfg(CONFIG_DYNAMIC_DEBUG)]
const _: () = {
    assert!(core::mem::size_of::<Site>() == core::mem::size_of::<bindings::_ddebug>());
    assert!(core::mem::offset_of!(Site, key) == core::mem::offset_of!(bindings::_ddebug, key));
    assert!(
        core::mem::offset_of!(Site, format) == core::mem::offset_of!(bindings::_ddebug, format)
    );
};

#[cfg(CONFIG_DYNAMIC_DEBUG)]
impl Site {
    /// Returns a site that does not print. Each string ends with a NUL. Only the macro calls this.
    pub(crate) const fn new(
        modname: &'static str,
        function: &'static str,
        filename: &'static str,
        format: &'static str,
        line: u32,
    ) -> Self {
        assert!(ends_with_nul(modname) && ends_with_nul(function));
        assert!(ends_with_nul(filename) && ends_with_nul(format));
        // INVARIANT: The strings were just checked.
        Self {
            modname: modname.as_ptr(),
            function: function.as_ptr(),
            filename: filename.as_ptr(),
            format: format.as_ptr(),
            // Class 63 is _DPRINTK_CLASS_DFLT.
            bits: UnsafeCell::new((line & 0x3_ffff) | (63 << 18)),
            // SAFETY: Zero is a static key that is false and has no sites yet.
            key: unsafe { core::mem::zeroed() },
        }
    }

    /// Prints `args` as the flags of this site say. Any context.
    pub(crate) fn print(&'static self, args: kernel::fmt::Arguments<'_>) {
        // SAFETY: `self` has the layout of a descriptor, as asserted above, and lives for ever.
        // `%s` takes a string, which `modname` is by the type invariant, and `%pA` takes a pointer
        // to `Arguments`.
        unsafe {
            bindings::__dynamic_pr_debug(
                core::ptr::from_ref(self).cast_mut().cast(),
                c"%s: %pA".as_char_ptr(),
                self.modname,
                core::ptr::from_ref(&args).cast::<kernel::ffi::c_void>(),
            )
        };
    }
}

#[cfg(CONFIG_DYNAMIC_DEBUG)]
const fn ends_with_nul(s: &str) -> bool {
    matches!(s.as_bytes(), [.., 0])
}

/// Prints a line with `dynamic_debug`. Costs a patched jump when it is off. Any context.
///
/// `$module` is the name of the module, a literal.
macro_rules! dynamic_pr_debug {
    ($module:literal, $format:tt $($args:tt)*) => {{
        #[cfg(CONFIG_DYNAMIC_DEBUG)]
        {
            // No `#[used]`: newer compilers then set SHF_GNU_RETAIN, the kernel's SHF_RO_AFTER_INIT.
            #[link_section = "__dyndbg"]
            static SITE: $crate::ext::dyndbg::Site = $crate::ext::dyndbg::Site::new(
                concat!($module, "\0"),
                concat!(module_path!(), "\0"),
                concat!(file!(), "\0"),
                concat!($module, ": ", $format, "\0"),
                line!(),
            );
            // SAFETY: `SITE.key` is a static key, which the kernel finds through the section.
            let on = unsafe {
                ::kernel::jump_label::static_branch_unlikely!(
                    SITE,
                    $crate::ext::dyndbg::Site,
                    key
                )
            };
            if on {
                SITE.print(::kernel::prelude::fmt!($format $($args)*));
            }
        }
        // Uses the arguments, so that they are not reported as unused.
        #[cfg(not(CONFIG_DYNAMIC_DEBUG))]
        if false {
            let _ = ::kernel::prelude::fmt!($format $($args)*);
        }
    }};
}
pub(crate) use dynamic_pr_debug;
