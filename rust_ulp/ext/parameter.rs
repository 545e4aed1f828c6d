// SPDX-License-Identifier: GPL-2.0

//! Module parameters that C defines.
//!
//! User space may change such a parameter at any time. A parameter of the kernel crate does not
//! change while the module is loaded.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

/// Declares safe functions that read the variables of parameters. Any context.
///
/// A header that bindgen reads declares the variables, and `bindings/parameters` names them.
macro_rules! parameters {
    ($(
        $(#[$meta:meta])*
        $variable:ident as $name:ident: $ty:ty;
    )*) => { $(
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name() -> $ty {
            // SAFETY: bindgen found the variable in a header of C, with this type, else this would
            // not compile. C defines it, else the module would not link. It exists as long as the
            // module.
            unsafe { (&raw const $crate::bindings::$variable).read_volatile() }
        }
    )* };
}
pub(crate) use parameters;
