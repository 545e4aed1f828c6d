// SPDX-License-Identifier: MIT OR Apache-2.0

//! Structs of what the kernel says of an object.

/// Defines a struct, and how it is made of a struct of the ABI. A field is initialized by its
/// expression, or from the field of the same name.
macro_rules! info {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($arg:ident: &$from:ty) {
            $($(#[$of:meta])* $vis:vis $field:ident: $ty:ty $(= $value:expr)?,)*
        }
    ) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name {
            $($(#[$of])* $vis $field: $ty,)*
        }

        impl $name {
            pub(crate) fn new($arg: &$from) -> Self {
                Self {
                    $($field: info!(@$arg.$field $($value)?),)*
                }
            }
        }
    };
    (@$arg:ident.$field:ident) => {
        $arg.$field
    };
    (@$arg:ident.$field:ident $value:expr) => {
        $value
    };
}
pub(crate) use info;
