// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kinds of errors, for programs that decide by them.

use std::io;

/// The kind of an [`Error`](crate::Error); from [`Error::kind`](crate::Error::kind).
///
/// Programs match it instead of error numbers. The kind of a batch's error is that of its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program passed an argument that nothing takes.
    InvalidInput,
    /// The state of an object does not allow the call.
    InvalidState,
    /// The program asked for more than the object, the device or the machine has.
    OutOfRange,
    /// The module, the device or the kernel does not do it.
    Unsupported,
    /// There is no such device, object, port, GID, P_Key or file.
    NotFound,
    /// The process, the memory or the peer's grant lacks a right.
    PermissionDenied,
    /// A queue is full ([`Error::is_backpressure`](crate::Error::is_backpressure)), nothing is there
    /// yet, or the kernel cannot pin memory now.
    WouldBlock,
    /// Memory is short, or over a limit on memory.
    OutOfMemory,
    /// A limit on the number of objects, entries or files is reached.
    LimitReached,
    /// Another object, process or ring uses it.
    Busy,
    /// The deadline passed.
    TimedOut,
    /// The request was canceled, or an earlier entry of its chain failed.
    Canceled,
    /// A signal came.
    Interrupted,
    /// The queue pair, or the grant, is not connected or not connected any more.
    NotConnected,
    /// The peer, or its connection manager, refused the connection, or nobody listens.
    ConnectionRefused,
    /// The peer does not answer any more, or has ended the connection.
    ConnectionLost,
    /// No route leads to the peer.
    Unreachable,
    /// Somebody listens at that address already.
    AddrInUse,
    /// No device or interface has that address.
    AddrNotAvailable,
    /// A request completed with an error that is not the loss of the peer: a refused access, no receive,
    /// a wrong length. The [`Status`](crate::Status) has the reason.
    RequestFailed,
    /// The peer, or the module, does not keep to the protocol.
    Protocol,
    /// The device was removed.
    DeviceGone,
    /// The completion queue lost completions, or failed.
    CqFailed,
    /// None of these.
    Other,
}

impl ErrorKind {
    /// Returns the kind of an error number.
    pub(crate) fn of_errno(errno: i32) -> Self {
        match errno {
            libc::E2BIG
            | libc::EALREADY
            | libc::EBADF
            | libc::EBADFD
            | libc::EFAULT
            | libc::EINVAL
            | libc::EISCONN
            | libc::EMSGSIZE
            | libc::EXDEV
            | libc::ENXIO => Self::InvalidInput,
            libc::ERANGE => Self::OutOfRange,
            libc::ENOSYS | libc::ENOTTY | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT => {
                Self::Unsupported
            }
            libc::ENOENT => Self::NotFound,
            libc::EACCES | libc::EPERM => Self::PermissionDenied,
            libc::EAGAIN => Self::WouldBlock,
            libc::ENOMEM => Self::OutOfMemory,
            libc::EDQUOT | libc::EMFILE | libc::ENFILE => Self::LimitReached,
            libc::EBUSY => Self::Busy,
            libc::ETIME | libc::ETIMEDOUT => Self::TimedOut,
            libc::ECANCELED => Self::Canceled,
            libc::EINTR => Self::Interrupted,
            libc::ENOTCONN => Self::NotConnected,
            libc::ECONNREFUSED => Self::ConnectionRefused,
            libc::ECONNABORTED | libc::ECONNRESET | libc::EPIPE => Self::ConnectionLost,
            libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENETUNREACH => Self::Unreachable,
            libc::EADDRINUSE => Self::AddrInUse,
            libc::EADDRNOTAVAIL => Self::AddrNotAvailable,
            libc::EPROTO => Self::Protocol,
            libc::ENODEV => Self::DeviceGone,
            _ => Self::Other,
        }
    }

    /// Returns the kind of an error of the standard library.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        if let Some(errno) = error.raw_os_error() {
            return Self::of_errno(errno);
        }
        match error.kind() {
            io::ErrorKind::InvalidInput => Self::InvalidInput,
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::AddrNotAvailable => Self::AddrNotAvailable,
            io::ErrorKind::UnexpectedEof => Self::ConnectionLost,
            _ => Self::Other,
        }
    }

    /// Returns the kind that the standard library has for it.
    pub(crate) fn to_io(self) -> io::ErrorKind {
        match self {
            Self::InvalidInput | Self::InvalidState | Self::OutOfRange => {
                io::ErrorKind::InvalidInput
            }
            Self::Unsupported => io::ErrorKind::Unsupported,
            Self::NotFound | Self::DeviceGone => io::ErrorKind::NotFound,
            Self::PermissionDenied => io::ErrorKind::PermissionDenied,
            Self::WouldBlock => io::ErrorKind::WouldBlock,
            Self::OutOfMemory => io::ErrorKind::OutOfMemory,
            Self::LimitReached => io::ErrorKind::QuotaExceeded,
            Self::Busy => io::ErrorKind::ResourceBusy,
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::Interrupted => io::ErrorKind::Interrupted,
            Self::NotConnected => io::ErrorKind::NotConnected,
            Self::ConnectionRefused => io::ErrorKind::ConnectionRefused,
            Self::ConnectionLost => io::ErrorKind::ConnectionReset,
            Self::Unreachable => io::ErrorKind::HostUnreachable,
            Self::AddrInUse => io::ErrorKind::AddrInUse,
            Self::AddrNotAvailable => io::ErrorKind::AddrNotAvailable,
            // The queue pair is in the state ERR then.
            Self::RequestFailed => io::ErrorKind::ConnectionAborted,
            Self::Protocol => io::ErrorKind::InvalidData,
            Self::Canceled | Self::CqFailed | Self::Other => io::ErrorKind::Other,
        }
    }
}
