// SPDX-License-Identifier: MIT OR Apache-2.0

//! Enums of numbers that the ABI, the wire or a specification defines.

/// Defines an enum whose variants stand for numbers, with a variant `Other` for all other numbers.
///
/// The two conversions have the visibility that stands before the type of the numbers. An attribute
/// after that type is one of `Other`.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($vis:vis $ty:ty $(, #[$other:meta])?) {
            $($(#[$of:meta])* $variant:ident = $code:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$of])* $variant,)*
            /// A number that this crate does not know.
            $(#[$other])?
            Other($ty),
        }

        // Some enums need only one of the two.
        #[allow(dead_code)]
        impl $name {
            /// Returns the value with this number.
            $vis fn from_code(code: $ty) -> Self {
                $(if code == $code {
                    return Self::$variant;
                })*
                Self::Other(code)
            }

            /// Returns its number.
            $vis fn code(self) -> $ty {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }
        }
    };
}
pub(crate) use numbered;
