// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asynchronous events of ports, queues and connections, and the removal of a device.

use crate::abi;
use crate::cm;
use crate::cq::Cq;
use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::error::{Error, Result};
use crate::grant::{Grant, GrantState};
use crate::qp::Qp;
use crate::sealed;
use crate::srq::Srq;
use crate::transport::{State, Transport};
use nix::errno::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A completion queue has failed: nothing more comes of it.
    CqError,
    /// A queue pair has failed.
    QpFatal,
    /// A peer sent a request that makes no sense; the queue pair is in error.
    QpRequestError,
    /// A peer accessed memory that it may not; the queue pair is in error.
    QpAccessError,
    /// A packet came for a queue pair that cannot send yet: the other end is ready.
    CommunicationEstablished,
    /// A queue pair in [`QpState::Sqd`](crate::qp::QpState::Sqd) has sent what it had.
    SqDrained,
    /// A queue pair uses its other path now.
    PathMigrated,
    /// A queue pair could not change to its other path.
    PathMigrationFailed,
    /// The device has failed.
    DeviceFatal,
    /// A port carries traffic.
    PortActive {
        /// The port, from 1.
        port: u32,
    },
    /// A port carries no traffic any more.
    PortError {
        /// The port, from 1.
        port: u32,
    },
    /// A port has another LID.
    LidChange {
        /// The port, from 1.
        port: u32,
    },
    /// A port has other P_Keys.
    PkeyChange {
        /// The port, from 1.
        port: u32,
    },
    /// A port has another subnet manager.
    SmChange {
        /// The port, from 1.
        port: u32,
    },
    /// A shared receive queue has failed.
    SrqError,
    /// A shared receive queue has fewer receives than its limit, which is disarmed now.
    SrqLimit,
    /// A queue pair in error takes nothing more from its shared receive queue.
    LastWqeReached,
    /// The subnet manager wants its clients to register again.
    ClientReregister {
        /// The port, from 1.
        port: u32,
    },
    /// A port has other GIDs: addresses have come or gone.
    GidChange {
        /// The port, from 1.
        port: u32,
    },
    /// The device was removed. This is the last event; after it there is [`Error::DeviceGone`].
    DeviceRemoved,
    /// The device has another name.
    DeviceRenamed,
    /// Events were lost because nobody read them.
    Lost {
        /// The number of lost events.
        count: u32,
    },
    /// A [`Grant`] has ended, and nothing lands by it any more.
    GrantEnded {
        /// The reason: [`GrantState::Used`] or [`GrantState::Expired`].
        state: GrantState,
    },
    /// A peer asks to connect to a [`cm::Listener`].
    ConnectRequest {
        /// Requests that wait.
        waiting: u32,
    },
    /// The peer has ended a [`cm::Connection`].
    Disconnected,
    /// Late packets of a [`cm::Connection`] are gone.
    TimewaitExit,
    /// The address of a [`cm::Connection`] or [`cm::Listener`] has moved to another device or host.
    AddressChange,
    /// The peer of a [`cm::Connection`] does not answer.
    Unreachable,
    /// A connection is established: a [`cm::Pending`] or its connection.
    Established,
    /// An attempt to connect has failed: that of a [`cm::Pending`].
    ConnectFailed {
        /// The error number.
        errno: i32,
    },
    /// A number that this crate does not know.
    Other {
        /// The number.
        code: u32,
        /// The port that it names, or 0.
        port: u32,
        /// Further information.
        info: u32,
    },
}

impl EventKind {
    fn from_abi(event: &abi::Event) -> Self {
        let (port, info) = (event.port, event.info);
        match event.event {
            abi::EVENT_CQ_ERR => Self::CqError,
            abi::EVENT_QP_FATAL => Self::QpFatal,
            abi::EVENT_QP_REQ_ERR => Self::QpRequestError,
            abi::EVENT_QP_ACCESS_ERR => Self::QpAccessError,
            abi::EVENT_COMM_EST => Self::CommunicationEstablished,
            abi::EVENT_SQ_DRAINED => Self::SqDrained,
            abi::EVENT_PATH_MIG => Self::PathMigrated,
            abi::EVENT_PATH_MIG_ERR => Self::PathMigrationFailed,
            abi::EVENT_DEVICE_FATAL => Self::DeviceFatal,
            abi::EVENT_PORT_ACTIVE => Self::PortActive { port },
            abi::EVENT_PORT_ERR => Self::PortError { port },
            abi::EVENT_LID_CHANGE => Self::LidChange { port },
            abi::EVENT_PKEY_CHANGE => Self::PkeyChange { port },
            abi::EVENT_SM_CHANGE => Self::SmChange { port },
            abi::EVENT_SRQ_ERR => Self::SrqError,
            abi::EVENT_SRQ_LIMIT => Self::SrqLimit,
            abi::EVENT_LAST_WQE_REACHED => Self::LastWqeReached,
            abi::EVENT_CLIENT_REREGISTER => Self::ClientReregister { port },
            abi::EVENT_GID_CHANGE => Self::GidChange { port },
            abi::EVENT_DEVICE_REMOVED => Self::DeviceRemoved,
            abi::EVENT_DEVICE_RENAMED => Self::DeviceRenamed,
            abi::EVENT_LOST => Self::Lost { count: info },
            abi::EVENT_GRANT_ENDED => Self::GrantEnded {
                state: GrantState::from_code(info),
            },
            abi::EVENT_CONNECT_REQUEST => Self::ConnectRequest { waiting: info },
            abi::EVENT_DISCONNECTED => Self::Disconnected,
            abi::EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            abi::EVENT_ADDR_CHANGE => Self::AddressChange,
            abi::EVENT_UNREACHABLE => Self::Unreachable,
            abi::EVENT_ESTABLISHED => Self::Established,
            abi::EVENT_CONNECT_FAILED => Self::ConnectFailed {
                errno: i32::try_from(info).unwrap_or(0),
            },
            code => Self::Other { code, port, info },
        }
    }
}

/// An object that events are about: a queue pair, a completion or shared receive queue, a grant, a
/// listener or a connection.
pub trait EventSource: sealed::Sealed {
    /// Returns the handle, and the number of the device.
    #[doc(hidden)]
    fn source(&self) -> (u32, u64);
}

macro_rules! sources {
    ($([$($generic:tt)*] $ty:ty;)*) => { $(
        impl<$($generic)*> sealed::Sealed for $ty {}

        impl<$($generic)*> EventSource for $ty {
            fn source(&self) -> (u32, u64) {
                (self.handle(), self.device_inner().id())
            }
        }
    )* };
}

sources! {
    [] Cq;
    [] Srq;
    [] Grant;
    [T: Transport, S: State] Qp<T, S>;
    [] cm::Listener;
    [] cm::Connection;
    [] cm::Pending;
}

/// Something that happened on a device; from [`Events`].
#[doc(alias = "rust_ulp_event")]
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The time of the event, on `CLOCK_MONOTONIC`.
    pub time: Duration,
    /// The value that the object got when it was made, or 0.
    pub user_data: u64,
    handle: u32,
    /// Number of the device, to tell handles of different devices apart.
    device: u64,
}

impl Event {
    fn new(event: &abi::Event, device: &DeviceInner) -> Self {
        Self {
            kind: EventKind::from_abi(event),
            time: Duration::from_nanos(event.time_ns),
            user_data: event.user_data,
            handle: event.handle,
            device: device.id(),
        }
    }

    /// Returns true if the event is about this object.
    pub fn is_about(&self, object: &impl EventSource) -> bool {
        (self.handle, self.device) == object.source()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("kind", &self.kind)
            .field("time", &self.time)
            .field("handle", &self.handle)
            .finish()
    }
}

/// The events of a [`Device`]; from [`Device::events`].
///
/// A device keeps 256 events; what happens beyond is counted, and told as [`EventKind::Lost`].
/// Several threads may read: each event goes to one of them. All of a device's `Events`, clones or
/// not, read the same stream.
///
/// [`AsFd`] gives the device's file, which is readable (`POLLIN`) while there are events.
#[derive(Clone, Debug)]
pub struct Events {
    device: Arc<DeviceInner>,
}

impl Device {
    /// Returns what happens on it: ports, queues, connections, its removal.
    pub fn events(&self) -> Events {
        Events {
            device: self.inner().clone(),
        }
    }
}

impl Events {
    /// Takes the oldest event, if there is one. Does not sleep.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceGone`] after [`EventKind::DeviceRemoved`] was taken.
    pub fn next_event(&self) -> Result<Option<Event>> {
        let mut one = [abi::Event::default()];
        match self.device.file().read_events(&mut one) {
            Ok(0) | Err(Errno::EAGAIN) => Ok(None),
            Ok(_) => {
                self.device.event_was_taken();
                let [event] = one;
                Ok(Some(Event::new(&event, &self.device)))
            }
            Err(errno) => Err(Error::sys("read() of events", errno)),
        }
    }

    /// Takes the oldest event, in a task of any runtime; registers the task to be woken if there is
    /// none. `poll_readable` is how the runtime waits for this file, as that of
    /// [`CqEventFd::poll_wait`](crate::cq::CqEventFd::poll_wait).
    ///
    /// # Errors
    ///
    /// As [`Self::next_event`]; [`Error::Sys`] with what `poll_readable` fails with.
    pub fn poll_next_event(
        &self,
        cx: &mut Context<'_>,
        mut poll_readable: impl FnMut(&mut Context<'_>) -> Poll<std::io::Result<()>>,
    ) -> Poll<Result<Event>> {
        loop {
            if let Some(event) = self.next_event()? {
                return Poll::Ready(Ok(event));
            }
            ready!(poll_readable(cx)).map_err(|error| Error::io("waiting for a file", &error))?;
        }
    }

    /// Takes the oldest event, sleeping until there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there is none within `timeout`; as [`Self::next_event`].
    pub fn wait(&self, timeout: Duration) -> Result<Event> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(event) = self.next_event()? {
                return Ok(event);
            }
            // Another thread may take what this one is woken for: then it waits again.
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timeout("waiting for an event"));
            }
            let waited = self.device.file().wait_event(left);
            waited.map_err(|errno| Error::sys("poll", errno))?;
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.file().event_source()
    }
}
