// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which errors the header allows of each command: any other is a finding.

use nix::errno::Errno::{self, *};

/// What every command may say, whatever it is.
const ANY: &[Errno] = &[E2BIG, EFAULT, EINVAL, ENODEV, ENXIO];
/// What may be wrong with a handle.
const HANDLE: &[Errno] = &[ENOENT, EBADFD];
/// What may be in the way of one more object.
const MAKE: &[Errno] = &[EDQUOT, EMFILE, ENOMEM];
/// What may be in the way of pinning memory, or of making a key for it.
const PIN: &[Errno] = &[EAGAIN, EINTR, EOPNOTSUPP, ERANGE];
/// What a route may be.
const ROUTE: &[Errno] = &[EHOSTUNREACH, ENETUNREACH, ETIMEDOUT];
/// What a request may be refused for.
const POST: &[Errno] = &[
    EACCES, EAGAIN, EBADFD, EMSGSIZE, ENOENT, ENOMEM, ENOTCONN, EOPNOTSUPP, ERANGE, EXDEV,
];

/// What io_uring says itself: of a link; of a number that is no file, or another's, when it comes to
/// an entry that the thread has prepared before another thread closed the file.
const RING: &[Errno] = &[ECANCELED, EBADF, EOPNOTSUPP];

/// The lists that hold for `what`: the name of a command, or of another call.
fn lists(what: &str) -> &'static [&'static [Errno]] {
    match what {
        "QUERY" | "DEVICE_LIST" | "DEVICE_QUERY" => &[ANY],
        "ATTACH" => &[
            ANY,
            &[EALREADY, ENOENT, ENOMEM, EOPNOTSUPP, EPROTONOSUPPORT],
        ],
        "PORT_QUERY" | "GID_QUERY" | "PKEY_QUERY" => &[ANY, &[ENOENT]],
        "PD_CREATE" => &[ANY, MAKE],
        "CQ_CREATE" => &[ANY, MAKE, &[EPERM, EPROTONOSUPPORT, ERANGE]],
        "QP_CREATE" => &[ANY, HANDLE, MAKE, &[EOPNOTSUPP, ERANGE, EXDEV]],
        "QP_MODIFY" => &[
            ANY,
            HANDLE,
            ROUTE,
            &[EISCONN, ENOMEM, EPERM, EPROTO, ERANGE],
        ],
        "QP_QUERY" | "SRQ_QUERY" | "BUFFER_QUERY" | "GRANT_QUERY" | "CONN_QUERY" => &[ANY, HANDLE],
        "BUFFER_CREATE" => &[ANY, HANDLE, MAKE, &[EINTR, EOPNOTSUPP, ERANGE]],
        "BUFFER_REGISTER" => &[ANY, HANDLE, MAKE, PIN],
        "BUFFER_IMPORT" => &[ANY, HANDLE, MAKE, PIN, &[EACCES, EBADF]],
        "GRANT_CREATE" => &[
            ANY,
            HANDLE,
            MAKE,
            &[EACCES, ENOTCONN, EOPNOTSUPP, ERANGE, EXDEV],
        ],
        "AH_CREATE" => &[ANY, HANDLE, MAKE, ROUTE, &[EOPNOTSUPP, ERANGE]],
        "SRQ_CREATE" => &[ANY, HANDLE, MAKE, &[EOPNOTSUPP, ERANGE]],
        "SRQ_MODIFY" => &[ANY, HANDLE, &[ERANGE]],
        "DESTROY" => &[ANY, &[EBUSY, ENOENT]],
        "SUBMIT" => &[ANY, POST],
        "CANCEL" => &[ANY, HANDLE],
        "CQ_EVENTFD" => &[ANY, HANDLE, &[EBADF, EBUSY]],
        "LISTEN" => &[
            ANY,
            MAKE,
            &[EACCES, EADDRINUSE, EADDRNOTAVAIL, ERANGE, EXDEV],
        ],
        "GET_REQUEST" => &[ANY, HANDLE, MAKE, &[EINTR, ETIME]],
        "REJECT" => &[ANY, HANDLE, &[EISCONN, EMSGSIZE, ENOMEM, ENOTCONN]],
        "ACCEPT" => &[
            ANY,
            HANDLE,
            ROUTE,
            &[
                ECONNRESET, EISCONN, EMSGSIZE, ENOMEM, ENOTCONN, EOPNOTSUPP, EPROTO, ERANGE,
            ],
        ],
        "CONNECT" => &[
            ANY,
            HANDLE,
            MAKE,
            &[
                EACCES,
                EADDRNOTAVAIL,
                EHOSTUNREACH,
                EISCONN,
                EMSGSIZE,
                ENETUNREACH,
                EOPNOTSUPP,
                EPROTO,
                ERANGE,
            ],
        ],
        "CONN_WAIT" => &[
            ANY,
            HANDLE,
            ROUTE,
            &[
                EADDRNOTAVAIL,
                ECONNREFUSED,
                ECONNRESET,
                EINTR,
                ENOMEM,
                ENOTCONN,
                EPROTO,
                ETIME,
                EXDEV,
            ],
        ],
        "DISCONNECT" => &[ANY, HANDLE, &[ENOTCONN]],
        super::ops::NO_COMMAND => &[ANY, &[ENOTTY]],
        // What is not the module's to say: the kernel's mmap() and its kin.
        "mmap" => &[
            ANY,
            &[EACCES, EAGAIN, ENOENT, ENOMEM, EOVERFLOW, EPERM, EOPNOTSUPP],
        ],
        "munmap" | "mprotect" | "mremap" | "madvise" => &[ANY, &[EACCES, ENOMEM, EPERM, EAGAIN]],
        "read" => &[ANY, &[EAGAIN]],
        "uring poll" => &[ANY, RING, &[EAGAIN, EALREADY]],
        "uring cancel" => &[ANY, RING, &[ENOENT, EALREADY]],
        "uring REQUEST" | "uring BATCH" => &[ANY, POST, RING],
        "uring CANCEL" => &[ANY, HANDLE, RING],
        "uring none" => &[ANY, RING, &[ENOTTY]],
        "uring spoiled" => &[ANY, POST, RING],
        "fork" => &[&[EAGAIN, ENOMEM]],
        _ => &[],
    }
}

/// Whether the header, or what is said above of the kernel's own calls, allows it.
pub fn is_documented(what: &str, errno: Errno) -> bool {
    lists(what).iter().any(|list| list.contains(&errno))
}
