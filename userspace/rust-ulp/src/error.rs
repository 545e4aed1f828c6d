// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors, which say what failed, why, and what to do next.

use crate::abi;
use crate::access::Access;
use crate::gid::Gid;
use crate::refusal::{Refusal, RejectReason, Rejection, WireError};
use crate::state::{AttrSet, QpState};
use crate::status::{Opcode, Status};
use crate::sys::Command;
use nix::errno::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub use crate::kind::ErrorKind;

/// The name of the limit that too long inline data exceeds.
pub(crate) const INLINE_BYTES: &str = "inline bytes";

/// The name of epoll_ctl(2) in errors.
pub(crate) const EPOLL_CTL: &str = "epoll_ctl";

/// The name of io_uring_enter(2) in errors.
pub(crate) const URING_ENTER: &str = "io_uring_enter";

/// The advice for `EMFILE` of a system call.
const PROCESS_FILES: &str =
    "this process has too many open files: close some, or raise the limit (ulimit -n)";

/// The advice for `ENFILE` of a system call.
const SYSTEM_FILES: &str =
    "this machine has too many open files: close some, or raise the limit (sysctl fs.file-max)";

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. Its text says what failed, why, and what to do.
///
/// The text of an error has the text of its cause. [`std::error::Error::source`] therefore returns
/// none, so that no program prints the cause twice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device file cannot be opened.
    #[error("cannot open {path}: {cause}; {}", open_hint(.cause))]
    Open {
        /// The path that was tried.
        path: String,
        /// The system's reason.
        cause: std::io::Error,
    },

    /// Module and crate speak different versions of the ABI.
    #[error(
        "the module speaks ABI version {kernel}, this program {library}; \
         build both from the same tree, and reload the module"
    )]
    Abi {
        /// The module's version.
        kernel: u32,
        /// The version of this crate.
        library: u32,
    },

    /// The module, the device or the type of queue pair does not do that (`EOPNOTSUPP`).
    #[error("{what} is not supported here; Device::info() says what this device does")]
    Unsupported {
        /// The name that was asked for.
        what: &'static str,
    },

    /// No device by that name, or none at all, that this process may use (`ENOENT`).
    #[error(
        "{}; `rdma link` shows what there is, `rdma link add rxe0 type rxe netdev NETDEV` makes \
         one", no_device(.name)
    )]
    NoDevice {
        /// The name that was asked for, empty for the default device.
        name: String,
    },

    /// The port has no GID by which a peer could reach it.
    #[error(
        "port {port} has no usable GID ({tried}); give its network interface an IPv4 address \
         and bring it up, or choose a GID with QpBuilder::gid()"
    )]
    NoUsableGid {
        /// The port, from 1.
        port: u32,
        /// A description of its table.
        tried: String,
    },

    /// The GID to send from and the GID of the peer are an IPv4 address and an IPv6 address (`EINVAL`).
    #[error(
        "GID index {index} of port {port} is {} ({local}), the GID of the peer {} ({peer}): both must be of \
         one family; {}, or have the peer use a GID of this family",
        family(*.local), family(*.peer), index_hint(*.usable)
    )]
    GidFamily {
        /// The port, from 1.
        port: u32,
        /// Index of the GID to send from.
        index: u8,
        /// The GID to send from.
        local: Gid,
        /// The GID of the peer.
        peer: Gid,
        /// Index of a GID of the port that is of the peer's family.
        usable: Option<u8>,
    },

    /// The queue pair's state table does not allow that (`EPROTO`).
    #[error(
        "a queue pair does not go from {current:?} to {next:?}{}; \
         RC wants Reset, Init, Rtr, Rts in this order, each with the attributes that QpAttr lists",
        wrong_attributes(*.missing, *.extra)
    )]
    InvalidTransition {
        /// The state that it is in.
        current: QpState,
        /// The state that was asked for.
        next: QpState,
        /// Attributes that the transition requires and that were not given.
        missing: AttrSet,
        /// Attributes that the transition does not take. `state`: there is no such transition.
        extra: AttrSet,
    },

    /// The queue pair is not in a state that takes this request (`ENOTCONN`).
    #[error(
        "the state of the queue pair does not allow this request: connect it first; a receive \
         needs the state INIT"
    )]
    NotConnected,

    /// The memory of a buffer is not mapped into this process.
    #[error(
        "the memory is not mapped into this process, only the device reaches it; \
         map a dma-buf with DmabufBuilder::map()"
    )]
    NotMapped,

    /// The memory of a buffer is mapped for reading only.
    #[error(
        "the memory is mapped for reading only; import the dma-buf without DmabufBuilder::read_only() \
         to write to it"
    )]
    ReadOnly,

    /// io_uring cannot be used here.
    #[error(
        "io_uring cannot be used here: {cause}; {}. Qp::post() and batches work without it",
        uring_hint(.cause)
    )]
    NoUring {
        /// The system's reason.
        cause: std::io::Error,
    },

    /// The peer does not keep to the rules of a byte stream, that of `rust-ulp-extra`.
    #[error("the peer breaks the rules of the stream: {what}; close it, and trust nothing of it")]
    Stream {
        /// The name of the violation.
        what: &'static str,
    },

    /// A range outside of what there is.
    #[error("{what}: {len} bytes at {offset} do not fit into {capacity}; pass a smaller range")]
    Range {
        /// The name of the memory that was addressed.
        what: &'static str,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes that there are.
        capacity: u64,
    },

    /// A value outside its range.
    #[error("{what} is {value}; {}", allowed(*.min, *.max))]
    Value {
        /// The name of the value.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest that there is.
        min: u64,
        /// The largest that there is, or `u64::MAX` without a limit. Less than `min` if there is none.
        max: u64,
    },

    /// A datagram that does not fit into one packet.
    #[error(
        "a datagram of {len} bytes does not fit into one packet of {mtu}, which is this port's MTU, and \
         datagrams are not split; send at most {mtu} bytes at a time, or use a connection"
    )]
    DatagramTooLong {
        /// Bytes that it has.
        len: u64,
        /// Bytes that fit: the port's active MTU.
        mtu: u32,
    },

    /// A completion is not that of a datagram received into this slice.
    #[error(
        "this completion is no datagram that came into this slice; pass the completion of a receive of \
         this queue pair, and the slice that it was posted with"
    )]
    NotADatagram,

    /// A receive for a queue pair that takes its receives from a shared receive queue.
    #[error(
        "the queue pair takes its receives from a shared receive queue; post them to that one"
    )]
    SharedReceives,

    /// A request whose completion goes to another completion queue.
    #[error(
        "the completion of this request goes to another completion queue; post it with the \
         AsyncRequests of its own queue"
    )]
    OtherCq,

    /// An address that is not a multiple of the size of what is there.
    #[error(
        "offset {offset} is not a multiple of {align}, which this access needs; pass one that is"
    )]
    Misaligned {
        /// The offset or address.
        offset: u64,
        /// The alignment that the access needs.
        align: u64,
    },

    /// The peer's grant lacks a right that the operation needs.
    #[error("the operation needs {needed:?}, the peer granted {granted:?}; have it grant more")]
    Access {
        /// The rights that the operation needs.
        needed: Access,
        /// The rights that the peer granted.
        granted: Access,
    },

    /// More elements, requests or bytes than one call, request or message takes.
    #[error(
        "{count} {what} are more than the {max} that one request or call takes; {}",
        too_many_hint(.what)
    )]
    TooMany {
        /// The name of what exceeds its limit.
        what: &'static str,
        /// Their number.
        count: u64,
        /// The largest number that is allowed.
        max: u64,
    },

    /// A queue is full, and the request was not posted (`EAGAIN`): reap completions and try again.
    #[error(
        "the queue pair's queue, or the completion queue that must have room for every request \
         in flight, is full: reap completions and post again"
    )]
    QueueFull,

    /// A request of a batch was refused. Those before it were posted, and those after it were not.
    #[error("request {index} of the batch: {cause} ({posted} requests were posted)")]
    Batch {
        /// Position in the batch of the request that was refused.
        index: u32,
        /// Requests that were posted: those before `index`. More, and at most so many, when a batch
        /// of a ring of io_uring has a request that was posted and failed.
        posted: u32,
        /// The error of that request.
        cause: Box<Error>,
    },

    /// Completions did not fit into the completion queue and are lost.
    #[error(
        "{dropped} completions were lost because the completion queue was full; \
         tear its queue pairs down and make a larger one"
    )]
    CqOverflow {
        /// Completions that are lost, modulo 2^32.
        dropped: u32,
    },

    /// The device reported that the completion queue itself failed.
    #[error(
        "the device reported an error of the completion queue; destroy it and its queue pairs"
    )]
    CqFailed,

    /// The memory of the completion ring makes no sense: something in this process wrote over it.
    #[error("the completion ring was overwritten by something in this process; make a new one")]
    CqCorrupt,

    /// Another object needs this one (`EBUSY`).
    #[error("{what}: another object still needs this one; drop that one first")]
    Busy {
        /// The command.
        what: &'static str,
    },

    /// The deadline passed. After [`Cq::wait`](crate::Cq::wait) and the like, what was posted stays
    /// posted.
    #[error(
        "{what}{}: nothing within {after:?}; wait longer, or see whether the peer is alive",
        at(.peer)
    )]
    Timeout {
        /// The name of the wait.
        what: &'static str,
        /// The address of the peer, when it is known.
        peer: Option<SocketAddr>,
        /// The time limit.
        after: Duration,
    },

    /// A request completed with an error.
    #[error(transparent)]
    Completion(#[from] CompletionError),

    /// A TCP operation of the exchange failed.
    #[error(
        "{what}{}: {cause}; {}", at(.peer), tcp_hint(.cause)
    )]
    Tcp {
        /// The name of the operation.
        what: &'static str,
        /// The peer, when known.
        peer: Option<SocketAddr>,
        /// The system's reason.
        cause: std::io::Error,
    },

    /// The peer sent something that is no message of the exchange.
    #[error(
        "the peer does not speak this exchange: {0}; is it a rust_ulp program of this version?"
    )]
    Wire(WireError),

    /// The peer, or this side, refused the connection.
    #[error("the connection was refused: {0}")]
    Refused(Refusal),

    /// The peer, or its connection manager, rejected the connection.
    #[error("{0}")]
    Rejected(Box<Rejection>),

    /// The device was removed (`ENODEV`): drop everything of it, and open another.
    #[error("the RDMA device was removed; drop all of its objects and open a device again")]
    DeviceGone,

    /// A system call failed otherwise.
    #[error("{call}: {} ({}); {}", errno_name(*.errno), errno_text(*.errno), errno_hint(.call, *.errno))]
    Sys {
        /// The call: the name of a command of the device, or `mmap` and the like.
        call: &'static str,
        /// The error number.
        errno: i32,
    },
}

impl Error {
    /// Returns true if the same call may work when it is repeated later with nothing else changed:
    /// a full queue, a time-out, memory that is short or cannot be pinned now, files or memory that are
    /// short for a TCP connection, a peer that is not there yet.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::QueueFull | Self::Timeout { .. } | Self::Busy { .. } => true,
            Self::Batch { posted, cause, .. } => *posted == 0 && cause.is_retryable(),
            Self::Tcp { cause, .. } => {
                use std::io::ErrorKind::*;
                let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].map(Some);
                matches!(
                    cause.kind(),
                    ConnectionRefused | ConnectionReset | TimedOut | WouldBlock | Interrupted
                ) || short.contains(&cause.raw_os_error())
            }
            Self::Sys { errno, .. } => {
                [libc::EAGAIN, libc::ENOMEM, libc::EINTR, libc::ETIMEDOUT].contains(errno)
            }
            // Nobody listens yet, or has room.
            Self::Rejected(rejection) => {
                use RejectReason::*;
                let reason = rejection.reason;
                matches!(reason, NoQp | NoResources | Timeout | NoListener | Stale)
            }
            Self::Open { cause, .. } => cause.kind() == std::io::ErrorKind::Interrupted,
            _ => false,
        }
    }

    /// Returns true if a queue was full: reap completions, then post again. Nothing is wrong.
    ///
    /// The first requests of a batch may be posted: [`Self::Batch`] says how many. The batch keeps
    /// the others, and [`QpBatch::submit`](crate::QpBatch::submit) posts them when it is called
    /// again.
    pub fn is_backpressure(&self) -> bool {
        match self {
            Self::QueueFull => true,
            Self::Batch { cause, .. } => cause.is_backpressure(),
            _ => false,
        }
    }

    /// Returns its kind, by which a program decides what to do.
    ///
    /// ```
    /// # use rust_ulp::error::{ErrorKind, Result};
    /// # use rust_ulp::*;
    /// /// Returns memory of a NUMA node, or none if the machine has no such node.
    /// fn of_node(pd: &Pd, node: u16) -> Result<Option<Buffer>> {
    ///     match pd.buffer_builder(4096).node(node).build() {
    ///         Err(error) if error.kind() == ErrorKind::OutOfRange => Ok(None),
    ///         made => made.map(Some),
    ///     }
    /// }
    /// ```
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open { cause, .. } | Self::Tcp { cause, .. } | Self::NoUring { cause } => {
                ErrorKind::of_io(cause)
            }
            Self::Sys { call, errno } if is_of_state(call, *errno) => ErrorKind::InvalidState,
            Self::Sys { errno, .. } => ErrorKind::of_errno(*errno),
            Self::Batch { cause, .. } => cause.kind(),
            Self::Completion(error) => error.kind(),
            Self::Range { .. }
            | Self::Value { .. }
            | Self::Misaligned { .. }
            | Self::TooMany { .. }
            | Self::DatagramTooLong { .. }
            | Self::NotADatagram
            | Self::OtherCq
            | Self::SharedReceives
            | Self::GidFamily { .. }
            | Self::NotMapped => ErrorKind::InvalidInput,
            Self::InvalidTransition { .. } => ErrorKind::InvalidState,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::NoDevice { .. } | Self::NoUsableGid { .. } => ErrorKind::NotFound,
            Self::Access { .. } | Self::ReadOnly => ErrorKind::PermissionDenied,
            Self::QueueFull => ErrorKind::WouldBlock,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Timeout { .. } => ErrorKind::TimedOut,
            Self::NotConnected => ErrorKind::NotConnected,
            Self::Refused(_) | Self::Rejected(_) => ErrorKind::ConnectionRefused,
            Self::Abi { .. } | Self::Stream { .. } | Self::Wire(_) => ErrorKind::Protocol,
            Self::DeviceGone => ErrorKind::DeviceGone,
            Self::CqOverflow { .. } | Self::CqFailed | Self::CqCorrupt => ErrorKind::CqFailed,
        }
    }

    /// Returns the error number of the system, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { cause, .. } | Self::Tcp { cause, .. } | Self::NoUring { cause } => {
                cause.raw_os_error()
            }
            Self::Unsupported { .. } => Some(libc::EOPNOTSUPP),
            Self::NoDevice { .. } => Some(libc::ENOENT),
            Self::InvalidTransition { .. } => Some(libc::EPROTO),
            Self::GidFamily { .. } => Some(libc::EINVAL),
            Self::NotConnected => Some(libc::ENOTCONN),
            Self::QueueFull => Some(libc::EAGAIN),
            Self::Busy { .. } => Some(libc::EBUSY),
            Self::Timeout { .. } => Some(libc::ETIME),
            Self::DeviceGone => Some(libc::ENODEV),
            Self::Rejected(_) => Some(libc::ECONNREFUSED),
            Self::Batch { cause, .. } => cause.errno(),
            Self::Sys { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    pub(crate) fn io(call: &'static str, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw);
        Self::sys(call, errno.unwrap_or(Errno::EIO))
    }

    pub(crate) fn sys(call: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ENODEV => Self::DeviceGone,
            Errno::EBUSY => Self::Busy { what: call },
            Errno::EOPNOTSUPP => Self::Unsupported { what: call },
            errno => Self::Sys {
                call,
                errno: errno as i32,
            },
        }
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Open { cause, .. } | Error::Tcp { cause, .. } | Error::NoUring { cause } => {
                cause.kind()
            }
            _ => error.kind().to_io(),
        };
        Self::new(kind, error)
    }
}

/// A request that completed with an error, with both ends where they are known.
#[doc(alias = "rust_ulp_cqe")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", Explained(self))]
#[non_exhaustive]
pub struct CompletionError {
    /// The request's number, as given to it with `wr_id`.
    pub wr_id: u64,
    /// The kind of the request.
    pub opcode: Opcode,
    /// The status of the request.
    pub status: Status,
    /// The driver's own code; 0 on software devices.
    pub vendor_err: u32,
    /// Number of this side's queue pair.
    pub qp_num: u32,
    /// The other side: its queue pair's number and its GID, when this crate made the connection and
    /// the queue pair still exists.
    pub peer: Option<(u32, Gid)>,
}

impl CompletionError {
    /// Returns its kind, as [`Error::kind`].
    pub fn kind(&self) -> ErrorKind {
        match self.status {
            Status::RetryExceeded
            | Status::Flushed
            | Status::RemoteAbort
            | Status::ResponseTimeout => ErrorKind::ConnectionLost,
            Status::TimedOut => ErrorKind::TimedOut,
            Status::Canceled => ErrorKind::Canceled,
            _ => ErrorKind::RequestFailed,
        }
    }
}

struct Explained<'a>(&'a CompletionError);

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = self.0;
        write!(
            f,
            "{:?} request {} on queue pair {}",
            e.opcode, e.wr_id, e.qp_num
        )?;
        if let Some((qpn, gid)) = &e.peer {
            write!(f, " to queue pair {qpn} at {gid}")?;
        }
        write!(f, ": {} (status {}", e.status.name(), e.status.code())?;
        if e.vendor_err != 0 {
            write!(f, ", vendor code {:#x}", e.vendor_err)?;
        }
        write!(f, "): {}", e.status.explanation_for(e.opcode))
    }
}

fn open_hint(cause: &std::io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::ENOENT) => "load the kernel module rust_ulp",
        Some(libc::EACCES | libc::EPERM) => {
            "run as root, or install the udev rule and join the group rdma"
        }
        Some(libc::EMFILE) => PROCESS_FILES,
        Some(libc::ENFILE) => SYSTEM_FILES,
        _ => "see dmesg",
    }
}

fn uring_hint(cause: &std::io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it is disabled: see sysctl kernel.io_uring_disabled and kernel.io_uring_group, or a container's \
             seccomp filter"
        }
        Some(libc::ENOSYS) => "the kernel has none, or a container's seccomp filter hides it",
        Some(libc::ENOMEM) => "no memory, or over a limit: see ulimit -l",
        _ => "see io_uring_setup(2)",
    }
}

fn family(gid: Gid) -> &'static str {
    match gid.ipv4() {
        Some(_) => "an IPv4 address",
        None => "an IPv6 address",
    }
}

fn index_hint(usable: Option<u8>) -> String {
    match usable {
        Some(index) => format!("use GID index {index} here (QpBuilder::gid())"),
        None => "give the network interface here an address of that family".to_owned(),
    }
}

fn wrong_attributes(missing: AttrSet, extra: AttrSet) -> String {
    let mut text = String::new();
    if !missing.is_empty() {
        text += &format!(" without {missing}");
    }
    // A state that cannot be reached stands in the text already.
    if !extra.is_empty() && extra.mask != abi::QP_STATE {
        text += &format!(" with {extra}");
    }
    text
}

fn no_device(name: &str) -> String {
    if name.is_empty() {
        "no RDMA device that this process may use has a GID in this network namespace; open one by \
         its name, or from the namespace of its network interface"
            .to_owned()
    } else {
        format!("no RDMA device named {name:?} that this process may use")
    }
}

fn at(peer: &Option<SocketAddr>) -> String {
    match peer {
        Some(peer) => format!(" {peer}"),
        None => String::new(),
    }
}

fn tcp_hint(cause: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::*;
    // The standard library has no kind for these two.
    match cause.raw_os_error() {
        Some(libc::EMFILE) => return PROCESS_FILES,
        Some(libc::ENFILE) => return SYSTEM_FILES,
        _ => {}
    }
    match cause.kind() {
        AddrNotAvailable => {
            "no interface of this network namespace has that address: see `ip addr`"
        }
        AddrInUse => "another program listens there: take another port",
        InvalidInput => "write it as ADDRESS:PORT",
        UnexpectedEof => "the peer hung up: see what it says",
        _ => "check that the peer runs, its address, and firewalls",
    }
}

fn too_many_hint(what: &str) -> &'static str {
    match what {
        INLINE_BYTES => "send them from a Buffer, or raise QpBuilder::max_inline()",
        _ => "split it",
    }
}

fn allowed(min: u64, max: u64) -> String {
    match (min, max) {
        _ if min > max => "there is none".to_owned(),
        _ if min == max => format!("pass {max}"),
        (min, u64::MAX) => format!("pass {min} or more"),
        (0, max) => format!("pass {max} at most"),
        (min, max) => format!("pass a number from {min} to {max}"),
    }
}

fn errno_name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => format!("error {errno}"),
        known => format!("{known:?}"),
    }
}

fn errno_text(errno: i32) -> &'static str {
    Errno::from_raw(errno).desc()
}

/// Returns whether the state of a queue pair does not allow it to be connected.
fn is_of_state(call: &str, errno: i32) -> bool {
    errno == libc::EPROTO && [abi::Connect::NAME, abi::Accept::NAME].contains(&call)
}

/// Returns whether `call` is a command of the device, whose names are in capital letters, and not a
/// system call.
fn is_command(call: &str) -> bool {
    call.starts_with(|first: char| first.is_ascii_uppercase())
}

/// Returns the meaning of an error number of `call`, as the header has it.
fn errno_hint(call: &str, errno: i32) -> &'static str {
    match errno {
        libc::EAGAIN if [abi::BufferRegister::NAME, abi::BufferImport::NAME].contains(&call) => {
            "the memory cannot be pinned now: try again"
        }
        libc::EAGAIN => "a resource of the system is short now: try again later",
        libc::EPERM if call == abi::CqCreate::NAME => {
            "Delivery::Softirq and a completion vector other than 0 take CPU time from other processes: they \
             need CAP_SYS_NICE, or the module parameter user_softirq=1 or user_vector=1"
        }
        libc::EPERM if call == abi::QpModify::NAME => {
            "a Q_Key with the highest bit set needs CAP_NET_RAW: take another"
        }
        errno if is_of_state(call, errno) => {
            "the queue pair is neither in the state Reset nor in Init: take it to Reset by Qp::modify()"
        }
        libc::EPROTO => {
            "the peer's connection manager, or the module, sent a value that is not defined: see what \
             software runs there"
        }
        libc::E2BIG => {
            "more elements or requests than allowed, or the module is older than this program"
        }
        libc::EALREADY => "the file is attached already",
        libc::EBADF => "the file descriptor is not open",
        libc::EBADFD => "the object is of another type",
        libc::ECANCELED => "an earlier request of its chain did not succeed, or the ring ended",
        libc::EDQUOT => {
            "over a limit of this open file (module parameter max_entries), of this user (max_user_objects, \
             max_user_queues) or of the rdma cgroup"
        }
        libc::EFAULT => "an address that cannot be read or written",
        libc::EINTR => "a signal came: try again",
        libc::EIO if call == abi::Destroy::NAME => {
            "the driver did not revoke a key, which the peer can still use: try again, or drop the Device"
        }
        libc::EINVAL if is_command(call) => {
            "the module does not know such a size, flag, name or number"
        }
        libc::EMFILE if is_command(call) => {
            "this Device has as many objects as it may have: drop some"
        }
        libc::EMFILE => PROCESS_FILES,
        libc::ENFILE => SYSTEM_FILES,
        libc::EEXIST if call == URING_ENTER => {
            "only the thread that built a ring with RingBuilder::single_issuer() may use it"
        }
        libc::ENOSPC if call == EPOLL_CTL => {
            "this user's tasks wait for too many files: raise the limit (sysctl fs.epoll.max_user_watches)"
        }
        libc::EMSGSIZE => {
            "the request has more bytes than a message (2^31), a datagram (PortInfo::active_mtu) or inline data \
             (QpCaps::max_inline) may have: split it"
        }
        libc::ENOENT => {
            "no such object, port, GID or P_Key that this process may use: an object was destroyed, or belongs \
             to another Device"
        }
        libc::ENOMEM => "no memory, or over a limit on memory: see ulimit -l",
        libc::ENOTTY => "the module is older than this program, or this is another device",
        libc::ENXIO => "the file is not attached to a device",
        libc::EPROTONOSUPPORT => "the module does not write records of that size: build both from one tree",
        libc::ERANGE => "a number outside of what the object or the device has room for",
        libc::EXDEV => "the objects are of different protection domains, or of different Devices",
        libc::ETIME => "the time ran out: wait longer",
        libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "no route to the peer's GID: check addresses and the GID's network interface"
        }
        libc::ETIMEDOUT => "the peer does not answer: is its host up, and its address right?",
        libc::EADDRINUSE => "somebody listens at that port already: take another, or 0 for any",
        libc::EADDRNOTAVAIL => {
            "no RDMA device has that local address: see `rdma link` and `ip addr`"
        }
        libc::ECONNREFUSED => "the peer rejected the connection",
        libc::ECONNRESET => "the peer went away in the middle: try again, or take the next request",
        libc::EISCONN => "the queue pair, or the request, has a connection already: make a new one",
        libc::ENOTCONN => "the connection has ended: make a new one",
        libc::EACCES | libc::EPERM => {
            "not allowed: check ownership and limits, and whether memory is read-only; ports below 1024 are \
             for the privileged"
        }
        _ if is_command(call) => "the driver's own error",
        _ => "see the manual page of that system call",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_without_files_or_memory_can_accept_later() {
        let accepting = |errno| Error::Tcp {
            what: "waiting for a peer to connect",
            peer: None,
            cause: std::io::Error::from_raw_os_error(errno),
        };
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM] {
            assert!(accepting(errno).is_retryable(), "{errno}");
        }
        assert!(!accepting(libc::EINVAL).is_retryable());
    }
}
