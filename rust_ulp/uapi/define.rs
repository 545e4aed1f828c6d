// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT

//! What `abi.rs` is made with: the macros that define a struct and a command of the ABI.
//!
//! Neither file touches a library, so that the module, user space and the host tests compile them.
//! A crate that includes `abi.rs` defines the macro `abi_check!` before: `abi!` calls it once for
//! each struct as `abi_check!(RustName, c_name, field field ...)`.

/// A value whose bytes are all zero.
pub trait Zero {
    /// That value.
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
    /// Number of the command.
    const NR: u32;
    /// Name of the command: that of its constant without `IOC_`.
    const NAME: &'static str;

    /// Returns a struct that is zero but for its size.
    fn new() -> Self;
}

/// Defines the structs of the ABI: `repr(C)`, without padding, with the value zero as default.
///
/// Each has the size that is named, and each field the offset.
macro_rules! abi {
    ($(
        $(#[$meta:meta])*
        struct $name:ident = $c:ident, $size:literal bytes {
            $($(#[$fmeta:meta])* @$offset:literal $field:ident: $ty:ty,)*
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC struct: `", stringify!($c), "`.")]
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name {
                $($(#[$fmeta])* pub $field: $ty,)*
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
                /// The struct's size as the ABI carries it.
                pub const SIZE: u32 = $size;
                /// Name, offset and size of every field.
                pub const LAYOUT: &'static [(&'static str, usize, usize)] =
                    &[$((stringify!($field), $offset, ::core::mem::size_of::<$ty>()),)*];
            }

            const _: () = {
                assert!(::core::mem::size_of::<$name>() == $size);
                // No padding: what is written to the other side holds no byte that was not set.
                assert!($size == 0 $(+ ::core::mem::size_of::<$ty>())*);
                $(assert!(::core::mem::offset_of!($name, $field) == $offset);)*
            };

            abi_check!($name, $c, $($field)*);
        )*

        /// Each struct: its name in C, its size, its layout and the types of its fields.
        #[allow(clippy::type_complexity)]
        pub const STRUCTS: &[(&str, u32, &[(&str, usize, usize)], &[&str])] =
            &[$((stringify!($c), $size, $name::LAYOUT, &[$(stringify!($ty)),*]),)*];
    };
}

/// Names the command that takes each struct.
macro_rules! commands {
    ($($name:ident = $nr:ident, $text:literal;)*) => { $(
        impl Command for $name {
            const NR: u32 = $nr;
            const NAME: &'static str = $text;

            fn new() -> Self {
                Self { size: Self::SIZE, ..Self::ZERO }
            }
        }
    )* };
}
