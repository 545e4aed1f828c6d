// SPDX-License-Identifier: MIT OR Apache-2.0

//! The device file, and waiting for files.

use super::{Mapping, Process};
use crate::abi;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

pub(crate) use crate::abi::Command;

/// Commands that write to nothing but their own struct.
pub(crate) trait Plain: Command {}

macro_rules! plain {
    ($($ty:ident)*) => { $(impl Plain for abi::$ty {})* };
}
plain!(Query Attach DeviceQuery PortQuery PkeyQuery PdCreate CqCreate QpCreate QpModify QpQuery
    BufferCreate BufferImport BufferQuery GrantCreate GrantQuery AhCreate SrqCreate SrqModify SrqQuery Listen GetRequest Accept Reject
    Connect ConnWait Disconnect ConnQuery Destroy Cancel CqEventfd);

/// The stand-in for the kernel in unit tests.
#[cfg(test)]
pub(crate) trait FakeKernel: std::fmt::Debug + Send + Sync {
    /// Carries out the command `name`, whose struct is `arg`.
    fn command(&self, name: &'static str, arg: &mut dyn std::any::Any) -> Result<(), Errno>;

    /// Takes events, as many as there are and fit, and returns how many.
    fn read_events(&self, out: &mut [abi::Event]) -> Result<usize, Errno>;

    /// Sleeps until there may be an event, or the time is over.
    fn wait_event(&self, timeout: Duration);

    /// Returns whether the device was removed.
    fn is_gone(&self) -> bool;

    /// Returns a file that becomes readable with each event, and with the removal of the device.
    fn event_file(&self) -> BorrowedFd<'_>;
}

/// An open `/dev/rust_ulp`.
#[derive(Debug)]
pub(crate) struct File {
    fd: OwnedFd,
    owner: Process,
    #[cfg(test)]
    fake: Option<std::sync::Arc<dyn FakeKernel>>,
}

impl File {
    pub(crate) fn open(path: &str) -> std::io::Result<Self> {
        let owner = Process::this()?;
        // The standard library sets O_CLOEXEC. O_NONBLOCK is about reading events: who wants to
        // wait for them, polls.
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(Self {
            fd: file.into(),
            owner,
            #[cfg(test)]
            fake: None,
        })
    }

    #[cfg(test)]
    pub(crate) fn fake(fake: std::sync::Arc<dyn FakeKernel>, fd: OwnedFd) -> Self {
        Self {
            fd,
            owner: Process::this().unwrap(),
            fake: Some(fake),
        }
    }

    /// Returns whether another process opened it: this one is a forked child, and must not destroy
    /// what is the parent's. Takes no lock, and a `drop` asks before it takes one: a thread of the
    /// parent may have held any lock at the fork.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.owner.is_this()
    }

    /// Issues a command. One that a signal interrupts has changed nothing, and is issued again.
    ///
    /// # Safety
    ///
    /// Wherever an address in `arg` names memory that this command writes to, that memory is the
    /// caller's to be written, as far as the struct says that it goes.
    unsafe fn issue<C: Command>(&self, arg: &mut C) -> Result<(), Errno> {
        loop {
            // SAFETY: What the caller promised.
            match unsafe { self.issue_once(arg) } {
                Err(Errno::EINTR) => continue,
                result => return result,
            }
        }
    }

    /// Issues a command.
    ///
    /// # Safety
    ///
    /// As [`Self::issue`].
    unsafe fn issue_once<C: Command>(&self, arg: &mut C) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            return fake.command(C::NAME, arg);
        }
        let (fd, arg) = (self.fd.as_raw_fd(), std::ptr::from_mut(arg));
        // SAFETY: Every command takes a pointer to its struct, whose size is in it. The reference
        // is unique; the rest is the caller's promise.
        Errno::result(unsafe { libc::ioctl(fd, libc::c_ulong::from(C::NR), arg) }).map(drop)
    }

    /// Issues a command that writes to nothing but `arg`.
    pub(crate) fn call<C: Plain>(&self, arg: &mut C) -> Result<(), Errno> {
        // SAFETY: There are no addresses in a `Plain` command.
        unsafe { self.issue(arg) }
    }

    /// Reads as many events as there are and fit into `events`, and returns how many. Does not
    /// sleep.
    pub(crate) fn read_events(&self, events: &mut [abi::Event]) -> Result<usize, Errno> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            return fake.read_events(events);
        }
        loop {
            let len = size_of_val(events);
            // SAFETY: `events` is a unique reference to so many bytes of plain data, for which any
            // bytes are valid.
            let got = unsafe { libc::read(self.fd.as_raw_fd(), events.as_mut_ptr().cast(), len) };
            match usize::try_from(got) {
                Ok(bytes) => return Ok(bytes / size_of::<abi::Event>()),
                Err(_) if Errno::last() == Errno::EINTR => {}
                Err(_) => return Err(Errno::last()),
            }
        }
    }

    /// Sleeps until there may be an event, the device is gone, or the time is over.
    pub(crate) fn wait_event(&self, timeout: Duration) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            fake.wait_event(timeout);
            return Ok(());
        }
        wait_for(self.as_fd(), PollFlags::POLLIN, timeout).map(drop)
    }

    /// Sleeps until `fd` is ready for `flags`, a signal comes, or the time is over. Returns true if
    /// `fd` is ready, and `ENODEV` when the device was removed.
    pub(crate) fn wait_beside(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        left: Duration,
    ) -> Result<bool, Errno> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            // Its file reports nothing, so this looks now and then.
            let ready = wait_for(fd, flags, left.min(Duration::from_millis(1)))?;
            return if fake.is_gone() {
                Err(Errno::ENODEV)
            } else {
                Ok(ready)
            };
        }
        // The removal of the device is reported without being asked for.
        let mut fds = [
            PollFd::new(fd, flags),
            PollFd::new(self.as_fd(), PollFlags::empty()),
        ];
        wait_for_any(&mut fds, left)?;
        let [fd, device] = fds.map(|fd| fd.any().unwrap_or(true));
        if device {
            return Err(Errno::ENODEV);
        }
        Ok(fd)
    }

    /// Returns the file that is readable while there are events and reports the device's removal.
    pub(crate) fn event_source(&self) -> BorrowedFd<'_> {
        #[cfg(test)]
        if let Some(fake) = &self.fake {
            return fake.event_file();
        }
        self.as_fd()
    }

    /// Fills `entries` with devices and returns how many there are, which may be more.
    pub(crate) fn device_list(&self, entries: &mut [abi::DeviceEntry]) -> Result<u32, Errno> {
        let mut arg = abi::DeviceList {
            entries: entries.as_mut_ptr().expose_provenance() as u64,
            capacity: u32::try_from(entries.len()).unwrap_or(u32::MAX),
            ..abi::DeviceList::new()
        };
        // SAFETY: `entries` is a unique reference to at least `capacity` entries of `entry_size`,
        // plain data for which any bytes are valid.
        unsafe { self.issue(&mut arg) }?;
        Ok(arg.count)
    }

    /// Fills `entries` with GIDs of `port` and returns how many there are, which may be more.
    pub(crate) fn gid_query(&self, port: u32, entries: &mut [abi::GidEntry]) -> Result<u32, Errno> {
        let mut arg = abi::GidQuery {
            entries: entries.as_mut_ptr().expose_provenance() as u64,
            capacity: u32::try_from(entries.len()).unwrap_or(u32::MAX),
            port,
            ..abi::GidQuery::new()
        };
        // SAFETY: As in `device_list`.
        unsafe { self.issue(&mut arg) }?;
        Ok(arg.count)
    }

    /// Registers the first `arg.length` bytes of `map`, whose address it fills in.
    pub(crate) fn register(
        &self,
        map: &Mapping,
        arg: &mut abi::BufferRegister,
    ) -> Result<(), Errno> {
        if arg.length > map.len as u64 {
            return Err(Errno::EFAULT);
        }
        arg.addr = map.base.as_ptr().expose_provenance() as u64;
        // SAFETY: The command itself writes to its own struct. What devices write there from now
        // on, they write to a mapping that is ours, of which nobody has a reference but to atomics;
        // and the kernel keeps its pages for them when it is unmapped.
        unsafe { self.issue(arg) }
    }

    /// Posts `wrs` and waits as `arg` says; `arg` is written back in every case. Entries are as
    /// long as their version.
    ///
    /// Addresses within `wrs` are only read from: a wrong one is an `EFAULT`, or a request with
    /// other bytes of this process in it. [`crate::wr`] sees to it that they are right.
    pub(crate) fn submit(&self, wrs: &[abi::Wr], arg: &mut abi::Submit) -> Result<(), Errno> {
        arg.wrs = if wrs.is_empty() {
            0
        } else {
            wrs.as_ptr().expose_provenance() as u64
        };
        arg.nr_wrs = u32::try_from(wrs.len()).map_err(|_| Errno::E2BIG)?;
        arg.wr_size = abi::Wr::SIZE;
        // SAFETY: SUBMIT writes to its own struct alone; what else it has addresses of, it reads.
        unsafe { self.issue(arg) }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleeps until `fd` is ready for `flags`, a signal comes, or the time is over. Returns true if
/// `fd` is ready.
pub(crate) fn wait_for(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    left: Duration,
) -> Result<bool, Errno> {
    wait_for_any(&mut [PollFd::new(fd, flags)], left)
}

/// Sleeps until one of `fds` is ready, a signal comes, or the time is over. Returns true if one is
/// ready.
fn wait_for_any(fds: &mut [PollFd<'_>], left: Duration) -> Result<bool, Errno> {
    // Rounded up, so that it does not turn into a busy loop at the end.
    let ms = left.as_nanos().div_ceil(1_000_000);
    let timeout = i32::try_from(ms).map_or(PollTimeout::MAX, |ms| {
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns a file that a task of tokio waits for, until it is readable.
///
/// # Panics
///
/// Outside of a runtime of tokio that has I/O enabled.
#[cfg(feature = "tokio")]
pub(crate) fn async_fd(fd: OwnedFd) -> std::io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    let interest = tokio::io::Interest::READABLE;
    // SAFETY: An `OwnedFd` is one open descriptor for as long as it lives, and the `AsyncFd` owns
    // it.
    let fd = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, interest) };
    Ok(fd?)
}
