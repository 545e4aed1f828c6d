// SPDX-License-Identifier: MIT OR Apache-2.0

//! System calls and shared memory: the only module of the crate with `unsafe`.
//!
//! What it hands out is safe to use in any way:
//!
//! - A [`File`] takes commands as structs of the ABI. The kernel checks what they say, and writes
//!   only to the struct itself and to the arrays that are passed as slices.
//! - A [`Mapping`] is shared memory as a slice of `AtomicU64`, and all access to it in this process
//!   has that one size and alignment: nobody gets a reference to bytes that a device or another
//!   process can change, and no two accesses of different sizes race.
//! - A [`RingMap`] is the mapping of a completion ring: its header as `AtomicU32`, its entries as
//!   words that are copied out.

use crate::abi;
use crate::ring::SharedIndex;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::mman::{madvise, mmap, mmap_anonymous, munmap, MapFlags, MmapAdvise, ProtFlags};
use std::fs::OpenOptions;
#[cfg(feature = "io-uring")]
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
#[cfg(feature = "io-uring")]
use std::os::fd::FromRawFd;
#[cfg(any(test, feature = "io-uring"))]
use std::os::fd::RawFd;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
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

/// What answers in place of the kernel in unit tests.
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
    #[cfg(any(feature = "smol", feature = "tokio"))]
    fn event_file(&self) -> BorrowedFd<'_>;
}

/// The process that made something. A forked child has a copy of the value, but neither the
/// mappings nor the handles are the child's.
///
/// A process ID does not tell them apart: a child in a new PID namespace may have the ID of its
/// parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process(u64);

/// Memory that holds the number of this process. The kernel gives a forked child zeros instead.
static PROCESS: OnceLock<Mapping> = OnceLock::new();

/// The last number that this process or one of its ancestors took.
static LAST_PROCESS: AtomicU64 = AtomicU64::new(0);

impl Process {
    /// Returns this process, to which it gives a number if it has none.
    fn this() -> Result<Self, Errno> {
        let page = match PROCESS.get() {
            Some(page) => page,
            None => {
                let page = Mapping::wiped_on_fork()?;
                PROCESS.get_or_init(|| page)
            }
        };
        let word = page.words().first().ok_or(Errno::EFAULT)?;
        // A child counts on from what its parent had taken when it forked, so no process has the
        // number of an ancestor.
        let next = match word.load(Ordering::Relaxed) {
            0 => LAST_PROCESS.fetch_add(1, Ordering::Relaxed) + 1,
            number => return Ok(Self(number)),
        };
        match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(Self(next)),
            Err(number) => Ok(Self(number)), // another thread's
        }
    }

    /// Returns whether it is the process that runs. Takes no lock.
    fn is_this(self) -> bool {
        let word = PROCESS.get().and_then(|page| page.words().first());
        word.is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
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

    /// The file that is readable while there are events, and reports the removal of the device.
    #[cfg(any(feature = "smol", feature = "tokio"))]
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

/// A file that a task of tokio waits for, until it is readable.
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

/// A ring of io_uring with entries of 128 bytes and completions of 32, for commands of device
/// files.
#[cfg(feature = "io-uring")]
pub(crate) struct Uring {
    /// Dropped in the process that made it, once.
    ring: ManuallyDrop<io_uring::IoUring<io_uring::squeue::Entry128, io_uring::cqueue::Entry32>>,
    owner: Process,
    /// Entries that go into the ring together.
    staged: Vec<io_uring::squeue::Entry128>,
    /// The next entry is linked to the last one of these.
    links: bool,
}

/// What a completion of a [`Uring`] says.
#[cfg(feature = "io-uring")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UringCqe {
    pub(crate) user_data: u64,
    pub(crate) res: i32,
    pub(crate) extra: u64,
}

#[cfg(feature = "io-uring")]
impl Uring {
    /// Sets a ring up, with a thread of the kernel's that takes the entries if `idle_ms` says how
    /// long it looks for them before it sleeps. With `single_issuer` only this thread may use it,
    /// if the kernel takes that.
    pub(crate) fn new(
        entries: u32,
        idle_ms: Option<u32>,
        single_issuer: bool,
    ) -> std::io::Result<Self> {
        let owner = Process::this()?;
        let mut builder = io_uring::IoUring::builder();
        if let Some(idle_ms) = idle_ms {
            builder.setup_sqpoll(idle_ms);
        }
        builder.dontfork();
        let plain = builder.clone();
        if single_issuer {
            builder.setup_single_issuer();
            builder.setup_defer_taskrun().setup_taskrun_flag();
        }
        let ring = match builder.build(entries) {
            Err(error) if single_issuer && error.raw_os_error() == Some(libc::EINVAL) => {
                plain.build(entries)?
            }
            built => built?,
        };
        let staged = Vec::with_capacity(ring.params().sq_entries() as usize);
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            owner,
            staged,
            links: false,
        })
    }

    /// Entries that go into the ring together at most.
    pub(crate) fn entries(&self) -> u32 {
        self.ring.params().sq_entries()
    }

    pub(crate) fn staged(&self) -> usize {
        self.staged.len()
    }

    /// Adds a command to what goes into the ring next. There is room for [`Self::entries`].
    pub(crate) fn stage(&mut self, file: RawFd, op: u32, cmd: [u8; 80], user_data: u64) {
        if std::mem::take(&mut self.links) {
            if let Some(last) = self.staged.pop() {
                self.staged
                    .push(last.flags(io_uring::squeue::Flags::IO_LINK));
            }
        }
        let entry = io_uring::opcode::UringCmd80::new(io_uring::types::Fd(file), op).cmd(cmd);
        self.staged.push(entry.build().user_data(user_data));
    }

    /// Takes back what was added and is not in the ring yet: the numbers.
    pub(crate) fn discard(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.staged.drain(..).map(|entry| entry.get_user_data())
    }

    /// Has the next command that is added start only when the last one has succeeded. Without a next
    /// one before [`Self::put`] there is no link: the kernel would link it to whatever comes next.
    pub(crate) fn link(&mut self) {
        self.links = !self.staged.is_empty();
    }

    /// Puts what was added into the ring, and ends a chain. [`Self::enter`] has the kernel take it.
    /// Returns false when there is no room.
    pub(crate) fn put(&mut self) -> bool {
        if !self.staged.is_empty() {
            let mut queue = self.ring.submission();
            // SAFETY: What a command of /dev/rust_ulp has addresses of, the kernel reads and does
            // not write, and copies: a wrong one is an EFAULT, or a request with other bytes of
            // this process in it. Where the data is, it names by handles of the kernel's.
            // `crate::uring` keeps what is read.
            if unsafe { queue.push_multiple(&self.staged) }.is_err() {
                return false;
            }
            drop(queue);
            self.staged.clear();
        }
        self.links = false;
        true
    }

    /// Has the kernel take what is in the ring, if it does not do so by itself. After an error the
    /// entries stay in the ring, and the next call submits them.
    pub(crate) fn enter(&mut self) -> std::io::Result<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Completions that can be taken.
    pub(crate) fn ready(&mut self) -> usize {
        self.ring.completion().len()
    }

    /// Sleeps until there are `min` completions, a signal comes, or the time is over, and returns
    /// whether it is over. The kernel takes what was put into the ring, by the same call.
    pub(crate) fn wait(&mut self, min: usize, timeout: Duration) -> std::io::Result<bool> {
        let timeout = io_uring::types::Timespec::from(timeout);
        let args = io_uring::types::SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(min, &args) {
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME) => Ok(true),
                Some(libc::EINTR) => Ok(false),
                _ => Err(error),
            },
            Ok(_) => Ok(false),
        }
    }

    /// Has the kernel report the requests that have completed, where it waits to be asked.
    pub(crate) fn refresh(&mut self) -> std::io::Result<()> {
        if self.ring.submission().taskrun() {
            self.enter()?;
        }
        Ok(())
    }

    /// Takes the oldest completion, if there is one.
    pub(crate) fn next(&mut self) -> Option<UringCqe> {
        let entry = self.ring.completion().next()?;
        let [extra, _] = *entry.big_cqe();
        Some(UringCqe {
            user_data: entry.user_data(),
            res: entry.result(),
            extra,
        })
    }

    /// Takes the completions that there are. A forked child has none: the memory is the parent's.
    pub(crate) fn rest(&mut self) -> impl Iterator<Item = UringCqe> + '_ {
        let is_ours = self.owner.is_this();
        std::iter::from_fn(move || is_ours.then(|| self.next()).flatten())
    }
}

#[cfg(feature = "io-uring")]
impl Drop for Uring {
    fn drop(&mut self) {
        if !self.owner.is_this() {
            // A child has the descriptor, but not the memory, which is marked not to be inherited.
            // SAFETY: The ring is not dropped here or later: nothing else closes its descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(self.ring.as_raw_fd()) });
            return;
        }
        // SAFETY: This is the only place that drops it, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

#[cfg(feature = "io-uring")]
impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// A request as the bytes of a command.
#[cfg(feature = "io-uring")]
pub(crate) fn request_bytes(wr: &abi::Wr) -> [u8; 80] {
    // SAFETY: Both are 72 bytes, and a `Wr` has no padding.
    command(unsafe { std::mem::transmute::<abi::Wr, [u8; 72]>(*wr) })
}

/// A batch as the bytes of a command.
#[cfg(feature = "io-uring")]
pub(crate) fn batch_bytes(batch: &abi::UringBatch) -> [u8; 80] {
    // SAFETY: Both are 16 bytes, and a `UringBatch` has no padding.
    command(unsafe { std::mem::transmute::<abi::UringBatch, [u8; 16]>(*batch) })
}

/// Returns the bytes of a command that begins with `head`.
#[cfg(feature = "io-uring")]
fn command<const N: usize>(head: [u8; N]) -> [u8; 80] {
    let mut bytes = [0; 80];
    for (to, from) in bytes.iter_mut().zip(head) {
        *to = from;
    }
    bytes
}

/// The address of memory that a request reads while it is submitted.
pub(crate) fn address_of<T>(slice: &[T]) -> u64 {
    slice.as_ptr().expose_provenance() as u64
}

/// Memory that is shared with the kernel, devices and whoever they let write to it: of the device
/// file or of a dma-buf, or anonymous to be registered.
///
/// # Invariants
///
/// `base` is the address of a mapping of `len` bytes, readable, and writable if `writable` says so,
/// which nothing unmaps before this is dropped. Both are multiples of 8.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<libc::c_void>,
    len: usize,
    writable: bool,
    /// The process that unmaps it when this is dropped; [`None`] if somebody else owns the memory.
    owner: Option<Process>,
}

// SAFETY: A mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: All access through a shared reference is atomic.
unsafe impl Sync for Mapping {}

/// A length as mmap() has it, rounded up.
fn whole(len: u64, multiple: usize) -> Result<NonZeroUsize, Errno> {
    usize::try_from(len)
        .ok()
        .and_then(|len| len.checked_next_multiple_of(multiple))
        .and_then(NonZeroUsize::new)
        .ok_or(Errno::EOVERFLOW)
}

impl Mapping {
    /// Maps `len` bytes of `file`, rounded up to whole words, at `offset`, to be read and written.
    pub(crate) fn new(file: &impl AsFd, offset: u64, len: u64) -> Result<Self, Errno> {
        Self::shared(file, offset, len, true)
    }

    /// The same, to be read, and written only if `writable`.
    pub(crate) fn shared(
        file: &impl AsFd,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Self, Errno> {
        let len = whole(len, 8)?;
        let mut prot = ProtFlags::PROT_READ;
        prot.set(ProtFlags::PROT_WRITE, writable);
        let offset = libc::off_t::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
        let owner = Process::this()?;
        // SAFETY: A new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, file, offset) }?;
        // INVARIANT: mmap() returned a mapping of this length; pages are aligned.
        Ok(Self {
            base,
            len: len.get(),
            writable,
            owner: Some(owner),
        })
    }

    /// Memory of `len` bytes at `base` that somebody else owns. Fails with `EFAULT` for a null
    /// pointer, and with `EINVAL` unless both are multiples of 8.
    ///
    /// # Safety
    ///
    /// Until this is dropped the memory stays mapped, readable and writable, and this process
    /// accesses it by aligned atomics of 8 bytes only, if at all while others do.
    pub(crate) unsafe fn borrowed(base: *mut u8, len: usize) -> Result<Self, Errno> {
        let base = NonNull::new(base).ok_or(Errno::EFAULT)?;
        if base.addr().get() % 8 != 0 || len % 8 != 0 {
            return Err(Errno::EINVAL);
        }
        // INVARIANT: What the caller promised, and what was checked.
        Ok(Self {
            base: base.cast(),
            len,
            writable: true,
            owner: None,
        })
    }

    /// The address of the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// Maps `len` bytes of zeros that belong to this process alone, rounded up to whole pages of 4
    /// KiB, or of 2 MiB with `huge`, of which the kernel is asked to make them. A forked child does
    /// not get them.
    pub(crate) fn anonymous(len: u64, huge: bool) -> Result<Self, Errno> {
        let len = whole(len, if huge { 2 << 20 } else { 4096 })?;
        let owner = Process::this()?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }?;
        // INVARIANT: mmap() returned a mapping of this length; pages are aligned.
        let map = Self {
            base,
            len: len.get(),
            writable: true,
            owner: Some(owner),
        };
        // SAFETY: It is all ours, and what is advised leaves its contents as they are.
        unsafe { madvise(map.base, map.len, MmapAdvise::MADV_DONTFORK) }?;
        if huge {
            // A kernel without huge pages says no, and small ones do.
            // SAFETY: As before.
            let _ = unsafe { madvise(map.base, map.len, MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(map)
    }

    /// Maps a page of zeros that stays for as long as the process, and that a forked child gets as
    /// zeros again.
    fn wiped_on_fork() -> Result<Self, Errno> {
        let len = whole(1, 4096)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }?;
        // INVARIANT: mmap() returned a mapping of this length; pages are aligned.
        let map = Self {
            base,
            len: len.get(),
            writable: true,
            owner: None,
        };
        // SAFETY: It is all ours, and what is advised leaves its contents here as they are.
        unsafe { madvise(map.base, map.len, MmapAdvise::MADV_WIPEONFORK) }?;
        Ok(map)
    }

    /// Whether the memory may be stored to. A store to memory that is mapped for reading raises a
    /// signal.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The memory as words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: By the type invariants this is `len / 8` aligned words that stay mapped as long
        // as `self` is borrowed. Any bytes are a valid AtomicU64, which may change behind a shared
        // reference. The kernel's and the devices' accesses are outside of this program; those of
        // this program all go through this slice and have this size, or through a `RingMap`, which
        // keeps words of its header (u32) and all others (u64) apart.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.owner.is_some_and(Process::is_this) {
            // A forked child does not have this mapping, and may have another one at its address.
            return;
        }
        // SAFETY: By the type invariants it is ours, and all borrows of it have ended. A failure
        // would leave it mapped, which harms nobody.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// An index of a completion ring.
pub(crate) struct Index<'a>(&'a AtomicU32);

impl SharedIndex for Index<'_> {
    fn load_acquire(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

/// The mapping of a completion ring.
///
/// # Invariants
///
/// The mapping is longer than the ring's header.
#[derive(Debug)]
pub(crate) struct RingMap {
    map: Mapping,
}

const _: () = assert!(
    size_of::<abi::CqRing>() <= abi::CQ_ENTRIES_OFFSET
        && size_of::<abi::Cqe>() == 64
        && abi::CQ_ENTRIES_OFFSET % 8 == 0
);

impl RingMap {
    /// Maps a ring of `entries` entries.
    pub(crate) fn new(file: &File, offset: u64, len: u64, entries: u32) -> Result<Self, Errno> {
        let need = u64::from(entries)
            .saturating_mul(u64::from(abi::Cqe::SIZE))
            .saturating_add(abi::CQ_ENTRIES_OFFSET as u64);
        if len < need {
            return Err(Errno::EPROTO);
        }
        // INVARIANT: `need` is more than the header.
        Ok(Self {
            map: Mapping::new(file, offset, len)?,
        })
    }

    fn header(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0 && offset < size_of::<abi::CqRing>());
        // SAFETY: `offset` is one of the four below: within the header, which by the type
        // invariants is within the mapping, and aligned. All accesses of this program to the header
        // are of this size. It stays mapped as long as `self` is borrowed.
        unsafe { AtomicU32::from_ptr(self.map.base.as_ptr().cast::<u8>().add(offset).cast()) }
    }

    pub(crate) fn head(&self) -> Index<'_> {
        Index(self.header(std::mem::offset_of!(abi::CqRing, head)))
    }

    pub(crate) fn tail(&self) -> Index<'_> {
        Index(self.header(std::mem::offset_of!(abi::CqRing, tail)))
    }

    pub(crate) fn flags(&self) -> u32 {
        self.header(std::mem::offset_of!(abi::CqRing, flags))
            .load(Ordering::Acquire)
    }

    pub(crate) fn dropped(&self) -> u32 {
        self.header(std::mem::offset_of!(abi::CqRing, dropped))
            .load(Ordering::Relaxed)
    }

    /// Copies the entry at `slot` out, or [`None`] when the ring has no such entry.
    pub(crate) fn entry(&self, slot: u32) -> Option<abi::Cqe> {
        let first = usize::try_from(slot)
            .ok()?
            .checked_mul(CQE_WORDS)?
            .checked_add(abi::CQ_ENTRIES_OFFSET / 8)?;
        copy_cqe(self.map.words(), first)
    }
}

/// Words of a completion.
const CQE_WORDS: usize = size_of::<abi::Cqe>() / 8;

/// Copies the completion that begins at word `first` out.
fn copy_cqe(words: &[AtomicU64], first: usize) -> Option<abi::Cqe> {
    let words = words.get(first..)?.first_chunk::<CQE_WORDS>()?;
    let copy: [u64; CQE_WORDS] = std::array::from_fn(|i| match words.get(i) {
        Some(word) => word.load(Ordering::Relaxed),
        None => 0,
    });
    // SAFETY: Both are 64 bytes without padding, and any bytes are a valid `Cqe`.
    Some(unsafe { std::mem::transmute::<[u64; CQE_WORDS], abi::Cqe>(copy) })
}

/// The file behind a descriptor of this process, for the fake kernel.
#[cfg(test)]
pub(crate) fn look_up(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: Whoever passed the descriptor has it open over the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    fd.map_err(|_| Errno::EBADF)
}

/// Runs `f` in a forked child and returns whether it returned true there.
#[cfg(test)]
pub(crate) fn holds_in_child(f: impl FnOnce() -> bool) -> bool {
    let patience = std::env::var("ULP_PATIENCE").ok();
    let patience = patience.and_then(|text| text.parse().ok()).unwrap_or(1);
    // SAFETY: The child is a copy of this thread alone. It runs `f`, which waits for no other
    // thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: A child that hangs ends.
        unsafe { libc::alarm(60 * patience) };
        let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: The child ends here, and runs nothing that the parent registered for its own end.
        unsafe { libc::_exit(i32::from(!holds.unwrap_or(false))) }
    }
    let mut status = 0;
    // SAFETY: The status is this function's own.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    ended == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_unmap_what_it_does_not_have() {
        let map = Mapping::anonymous(4096, false).unwrap();
        assert!(holds_in_child(move || {
            // The child has other memory at that address.
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
            let (at, len) = (Some(map.base.addr()), whole(4096, 8).unwrap());
            // SAFETY: Nothing is mapped there.
            let own = unsafe { mmap_anonymous(at, len, prot, flags) }.unwrap();
            let own = own.cast::<u8>().as_ptr();
            // SAFETY: It was mapped above.
            unsafe { own.write_volatile(7) };
            drop(map);
            // SAFETY: As above; the drop does not end it.
            (unsafe { own.read_volatile() }) == 7
        }));
    }

    #[test]
    fn a_child_with_the_process_id_of_its_parent_is_another_process() {
        use nix::sched::{unshare, CloneFlags};
        let pid = std::process::id;
        let parent = Process::this().unwrap();
        assert!(parent.is_this());
        assert!(holds_in_child(|| {
            if unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID).is_err() {
                return !parent.is_this(); // this machine makes no namespaces
            }
            holds_in_child(|| {
                let child = Process::this().unwrap();
                unshare(CloneFlags::CLONE_NEWPID).unwrap();
                assert!(pid() == 1 && child.is_this() && child != parent && !parent.is_this());
                holds_in_child(|| {
                    let before = child.is_this();
                    let this = Process::this().unwrap();
                    pid() == 1 && !before && this.is_this() && !child.is_this() && this != parent
                })
            })
        }));
        assert!(parent.is_this());
    }

    #[cfg(feature = "io-uring")]
    #[test]
    fn a_link_after_the_last_entry_does_not_reach_the_next_submit() {
        let Ok(mut ring) = Uring::new(4, None, false) else {
            return; // this machine has no io_uring
        };
        // It takes no commands.
        let flags = nix::sys::memfd::MFdFlags::empty();
        let file = nix::sys::memfd::memfd_create(c"none", flags).unwrap();
        let mut run = |link_inside: bool| {
            ring.stage(file.as_raw_fd(), 0, [0; 80], 1);
            ring.link();
            // Without the call for the kernel to take them, as with SQPOLL or after a failure.
            assert!(link_inside || ring.put());
            ring.stage(file.as_raw_fd(), 0, [0; 80], 2);
            assert!(ring.put());
            ring.wait(2, Duration::from_secs(20)).unwrap();
            let mut results = [0; 2];
            for result in &mut results {
                *result = ring.next().unwrap().res;
            }
            results
        };
        let refused = -libc::EOPNOTSUPP;
        assert_eq!(run(true), [refused, -libc::ECANCELED]);
        assert_eq!(run(false), [refused, refused]);
        assert_eq!(run(true), [refused, -libc::ECANCELED]);
    }

    #[cfg(feature = "io-uring")]
    #[test]
    fn a_child_takes_nothing_from_a_ring() {
        let Ok(ring) = Uring::new(4, None, false) else {
            return; // this machine has no io_uring
        };
        let mut ring = Some(ring);
        assert!(holds_in_child(|| {
            drop(ring.take());
            true
        }));
        // The parent's is as it was.
        let mut ring = ring.unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        ring.stage(file.as_raw_fd(), 0, [0; 80], 7);
        assert!(ring.put());
        ring.wait(1, Duration::from_secs(20)).unwrap();
        assert_eq!(ring.next().map(|cqe| cqe.user_data), Some(7));
    }
}

/// Counts what the tests allocate.
#[cfg(test)]
pub(crate) mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<u64> = const { Cell::new(0) };
        static PAUSED: Cell<bool> = const { Cell::new(false) };
    }

    struct Counting;

    fn count() {
        // A thread that ends has no counter any more.
        let _ = PAUSED.try_with(|paused| {
            if !paused.get() {
                let _ = COUNT.try_with(|count| count.set(count.get() + 1));
            }
        });
    }

    // SAFETY: It is the system's allocator; the counter does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count();
            // SAFETY: What the caller promised.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            count();
            // SAFETY: What the caller promised.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count();
            // SAFETY: What the caller promised.
            unsafe { System.realloc(ptr, layout, size) }
        }

        unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
            // SAFETY: What the caller promised.
            unsafe { System.dealloc(ptr, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// How often this thread has allocated.
    pub(crate) fn allocations() -> u64 {
        COUNT.with(Cell::get)
    }

    /// What `f` allocates is not counted.
    pub(crate) fn uncounted<T>(f: impl FnOnce() -> T) -> T {
        let before = PAUSED.with(|paused| paused.replace(true));
        let result = f();
        PAUSED.with(|paused| paused.set(before));
        result
    }
}
