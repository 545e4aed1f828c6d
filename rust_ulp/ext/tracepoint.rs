// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of a module.
//!
//! A header of the module defines them with the kernel's `TRACE_EVENT()`. The kernel crate's
//! `declare_trace!` looks for the tracepoint among the kernel's own bindings, so an out-of-tree
//! module needs this one.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

/// Declares safe functions that fire tracepoints of a header that bindgen reads. Any context.
///
/// Each costs a jump that the kernel patches while its event is off.
///
/// # Safety
///
/// A C file of the module includes that header with `CREATE_TRACE_POINTS`, which defines
/// `__tracepoint_EVENT` of each event as a `struct tracepoint`.
macro_rules! tracepoints {
    ($(
        $(#[$meta:meta])*
        $event:ident as $name:ident($($arg:ident: $ty:ty),* $(,)?);
    )*) => { ::kernel::macros::paste! {
        #[allow(improper_ctypes)]
        extern "C" {
            $(static [<__tracepoint_ $event>]: ::kernel::bindings::tracepoint;)*
        }
        $(
            $(#[$meta])*
            #[inline(always)]
            pub(crate) fn $name($($arg: $ty),*) {
                #[cfg(CONFIG_TRACEPOINTS)]
                {
                    // SAFETY: By the requirement of the macro the tracepoint is defined, with its
                    // key.
                    let on = unsafe {
                        ::kernel::jump_label::static_branch_unlikely!(
                            [<__tracepoint_ $event>],
                            ::kernel::bindings::tracepoint,
                            key
                        )
                    };
                    if on {
                        // SAFETY: All arguments are plain values, of the types that bindgen found.
                        unsafe { $crate::bindings::[<rust_do_trace_ $event>]($($arg),*) };
                    }
                }
            }
        )*
    } };
}
pub(crate) use tracepoints;
