// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT

//! The macros that `abi.rs` uses to define the structs and commands of the ABI.
//!
//! Both files use `core` only, so that the module, user space and the host tests can compile them.
//! A crate that includes `abi.rs` first defines the macro `abi_check!`. `abi!` calls it for each
//! struct, as `abi_check!(RustName, c_name, field field ...)`.

/// A type that has a value whose bytes are all zero.
pub trait Zero {
    /// The value whose bytes are all zero.
    const ZERO: Self;
}

macro_rules! impl_zero {
    ($($t:ty)*) => { $(impl Zero for $t { const ZERO: Self = 0; })* };
}
impl_zero!(u8 u16 u32 u64 i32);

impl<T: Zero, const N: usize> Zero for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}

/// A struct that is the argument of one command.
pub trait Command: Zero + Copy + Default + 'static {
    /// The ioctl request number of the command.
    const NR: u32;
    /// The name of the command: that of its constant without `IOC_`.
    const NAME: &'static str;

    /// Returns a struct whose `size` and sizes of other structs are set. Its other members are
    /// zero.
    fn new() -> Self;
}

/// Defines the numbers of the ABI, and a list of them.
macro_rules! numbers {
    ($($ty:ident: $($name:ident = $value:expr),+;)*) => {
        $($(pub const $name: $ty = $value;)+)*

        /// The name and the value of each number.
        pub const NUMBERS: &[(&str, i128)] = &[$($((stringify!($name), $name as i128),)+)*];
    };
}

/// Returns `N` bytes of `bytes` from `at` on: zeros if there are not as many.
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or([0; N], |part| *part)
}

/// Copies `part` to `bytes` at `at`: nothing if it does not fit.
pub(super) fn set_part<const N: usize>(bytes: &mut [u8], at: usize, part: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = part;
    }
}

/// Defines the unions of the ABI as bytes, which are converted from and to each arm.
///
/// Each arm is a struct of integers that has the size of the union. So the bytes are a value of each
/// arm, and nothing is read or written but integers in the byte order of the host.
macro_rules! unions {
    ($(
        $(#[$meta:meta])*
        union $name:ident = $c:ident.$member:ident, $size:literal bytes, align $align:tt {
            $($arm:ident: $of:ident = $(@$offset:literal $field:ident: $ty:ty),*;)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C, align($align))]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name([u8; $size]);

            impl Zero for $name {
                const ZERO: Self = Self([0; $size]);
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }

            $(
                impl From<$of> for $name {
                    #[inline(always)]
                    fn from(arm: $of) -> Self {
                        let mut union = Self::ZERO;
                        $(define::set_part(&mut union.0, $offset, arm.$field.to_ne_bytes());)*
                        union
                    }
                }

                impl From<$name> for $of {
                    #[inline(always)]
                    fn from(union: $name) -> Self {
                        Self {
                            $($field: <$ty>::from_ne_bytes(define::part(&union.0, $offset)),)*
                        }
                    }
                }

                const _: () = assert!(::core::mem::size_of::<$of>() == $size);
            )*
        )*

        /// The arms of each union: the names in C of its struct and its member, and the name and the
        /// type of each arm.
        #[allow(clippy::type_complexity)]
        pub const UNIONS: &[(&str, &str, &[(&str, &str)])] = &[$((
            stringify!($c),
            stringify!($member),
            &[$((stringify!($arm), stringify!($of)),)*],
        ),)*];
    };
}

/// Defines the structs of the ABI: `repr(C)`, without padding, with zero as the default.
///
/// Asserts the size of each struct and the offset of each field at compile time. Implements
/// [`Command`] for a struct with the number and the name of a command.
macro_rules! abi {
    ($(
        $(#[$meta:meta])*
        struct $name:ident = $c:ident, $size:literal bytes
            $(, $nr:ident $text:literal $(, $sized:ident = $of:ident)*)? {
            $(@$offset:literal $field:ident: $ty:ty),*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC struct: `", stringify!($c), "`.")]
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name {
                $(pub $field: $ty,)*
            }

            impl Zero for $name {
                const ZERO: Self = Self { $($field: <$ty as Zero>::ZERO,)* };
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }

            impl $name {
                /// The size of the struct in bytes.
                pub const SIZE: u32 = $size;
                /// The name, offset and size of each field.
                pub const LAYOUT: &'static [(&'static str, usize, usize)] =
                    &[$((stringify!($field), $offset, ::core::mem::size_of::<$ty>()),)*];
            }

            $(impl Command for $name {
                const NR: u32 = $nr;
                const NAME: &'static str = $text;

                fn new() -> Self {
                    Self { size: Self::SIZE, $($sized: $of::SIZE,)* ..Self::ZERO }
                }
            })?

            const _: () = {
                assert!(::core::mem::size_of::<$name>() == $size);
                // Without padding, no uninitialized byte is copied to the other side.
                assert!($size == 0 $(+ ::core::mem::size_of::<$ty>())*);
                $(assert!(::core::mem::offset_of!($name, $field) == $offset);)*
            };

            abi_check!($name, $c, $($field)*);
        )*

        /// The name in C, the size, the layout and the types of the fields of each struct.
        #[allow(clippy::type_complexity)]
        pub const STRUCTS: &[(&str, u32, &[(&str, usize, usize)], &[&str])] =
            &[$((stringify!($c), $size, $name::LAYOUT, &[$(stringify!($ty)),*]),)*];
    };
}
