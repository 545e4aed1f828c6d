// SPDX-License-Identifier: GPL-2.0

//! Error codes that the kernel crate does not name in every kernel.
//!
//! C header: [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)

use kernel::{
    bindings,
    error::Error, //
};

macro_rules! errnos {
    ($($(#[$meta:meta])* $name:ident = $value:ident;)*) => { $(
        $(#[$meta])*
        pub(crate) fn $name() -> Error {
            // The codes are small constants: negating them cannot overflow.
            Error::from_errno((bindings::$value as kernel::ffi::c_int).wrapping_neg())
        }
    )* };
}

errnos! {
    /// Operation already in progress.
    ealready = EALREADY;
    /// Address in use.
    eaddrinuse = EADDRINUSE;
    /// Cannot assign the requested address.
    eaddrnotavail = EADDRNOTAVAIL;
    /// Handle of another type.
    ebadfd = EBADFD;
    /// The content is not what it should be.
    ebadmsg = EBADMSG;
    /// Connection refused.
    econnrefused = ECONNREFUSED;
    /// Connection reset by the peer.
    econnreset = ECONNRESET;
    /// Over a quota.
    edquot = EDQUOT;
    /// No route to the host.
    ehostunreach = EHOSTUNREACH;
    /// The endpoint is connected.
    eisconn = EISCONN;
    /// No data: of the core, for an entry of a GID table that is empty.
    enodata = ENODATA;
    /// The endpoint is not connected.
    enotconn = ENOTCONN;
    /// Not supported.
    eopnotsupp = EOPNOTSUPP;
    /// Protocol error.
    eproto = EPROTO;
    /// Protocol not supported.
    eprotonosupport = EPROTONOSUPPORT;
    /// Timer expired.
    etime = ETIME;
}
