// SPDX-License-Identifier: GPL-2.0

//! Network namespaces, and socket addresses.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use crate::bindings;
use core::{
    net::{
        SocketAddr,
        SocketAddrV4,
        SocketAddrV6, //
    },
    ptr::NonNull, //
};

/// A reference to a network namespace.
///
/// ```
/// fn own() -> Result<NetNs> {
///     NetNs::current().ok_or(ESRCH)
/// }
/// ```
///
/// # Invariants
///
/// `ptr` is a namespace, and this value owns a reference to it.
pub(crate) struct NetNs {
    ptr: NonNull<kernel::bindings::net>,
}

// SAFETY: The reference count of a namespace is atomic, and nothing else is accessed.
unsafe impl Send for NetNs {}
// SAFETY: As above.
unsafe impl Sync for NetNs {}

impl NetNs {
    /// Returns the namespace of the current process, [`None`] when the task is exiting. Process
    /// context.
    pub(crate) fn current() -> Option<Self> {
        // SAFETY: The helper reads the current task's `nsproxy`, which only that task changes
        // ("the namespaces access rules", include/linux/nsproxy.h), and which is null once the task
        // exits.
        let ptr = unsafe { bindings::rust_ulp_h_current_net() };
        // INVARIANT: The helper took a reference.
        NonNull::new(ptr).map(|ptr| Self { ptr })
    }

    /// Returns the C pointer, which is valid while `self` is.
    pub(crate) fn as_ptr(&self) -> *mut kernel::bindings::net {
        self.ptr.as_ptr()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the reference.
        unsafe { bindings::rust_ulp_h_put_net(self.ptr.as_ptr()) };
    }
}

/// The address family of IPv4.
pub(crate) const AF_INET: u16 = 2;
/// The address family of IPv6.
pub(crate) const AF_INET6: u16 = 10;

/// Returns `addr` in the form that C takes.
pub(crate) fn sockaddr_to_raw(addr: &SocketAddr) -> bindings::rust_ulp_h_addr {
    let mut raw = bindings::rust_ulp_h_addr {
        port: addr.port(),
        ..Default::default()
    };
    match addr {
        SocketAddr::V4(v4) => {
            raw.family = AF_INET;
            for (to, from) in raw.addr.iter_mut().zip(v4.ip().octets()) {
                *to = from;
            }
        }
        SocketAddr::V6(v6) => {
            raw.family = AF_INET6;
            raw.addr = v6.ip().octets();
            raw.scope_id = v6.scope_id();
        }
    }
    raw
}

/// Returns the address of `raw`, [`None`] when it is of another family.
pub(crate) fn sockaddr_from_raw(raw: &bindings::rust_ulp_h_addr) -> Option<SocketAddr> {
    match raw.family {
        AF_INET => {
            let [a, b, c, d, ..] = raw.addr;
            Some(SocketAddrV4::new([a, b, c, d].into(), raw.port).into())
        }
        AF_INET6 => Some(SocketAddrV6::new(raw.addr.into(), raw.port, 0, raw.scope_id).into()),
        _ => None,
    }
}
