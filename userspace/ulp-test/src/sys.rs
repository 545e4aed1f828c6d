// SPDX-License-Identifier: MIT OR Apache-2.0

//! System calls with arguments that no library would pass: the only module with `unsafe`.
//!
//! Whatever the kernel is made to write to is an [`Area`] or a [`Mapping`], memory of its own that
//! nobody has references into. The addresses that a command carries inside its struct are numbers
//! here: they come from [`Area::at`], or from [`Wild`], where nothing is ever mapped.

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{cqueue, squeue, IoUring};
use nix::errno::Errno;
use nix::sys::mman::{mmap, mmap_anonymous, mprotect, munmap, MapFlags, ProtFlags};
use rust_ulp::{Buffer, Pd};
use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

pub mod hostile;

/// Registers memory of this process that lives for ever.
pub fn register(pd: &Pd, memory: &'static [AtomicU64]) -> rust_ulp::error::Result<Buffer> {
    let ptr = memory.as_ptr().cast_mut().cast();
    // SAFETY: The memory lives for ever, and this process accesses it by atomics alone.
    unsafe { pd.register_raw(ptr, size_of_val(memory)) }
}

/// Bytes of the smallest page of any kernel, and of the largest struct of the ABI.
pub const PAGE: usize = 4096;

/// Bytes of a page of this kernel, a multiple of [`PAGE`].
pub fn page() -> usize {
    // SAFETY: The call takes no address.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE)
}

/// A struct of the ABI.
///
/// # Safety
///
/// It has no padding, and any bytes are a value of it.
pub unsafe trait Plain: Copy {}

// SAFETY: Any four bytes are one.
unsafe impl Plain for u32 {}

macro_rules! abi_check {
    ($name:ident, $c:ident, $($field:ident)*) => {
        // SAFETY: `abi!` makes structs of integers only, and asserts that they have no padding.
        unsafe impl $crate::sys::Plain for $name {}
    };
}

/// The ABI.
#[path = "../../../rust_ulp/uapi/abi.rs"]
#[allow(dead_code)]
pub mod abi;

/// The argument of a command: these members, the sizes that it has to say, and zero in all others.
///
/// For what fits into a line; a longer one is better read as the literal of a struct.
macro_rules! arg {
    ($command:ident $(, $member:ident $(= $value:expr)?)+) => {
        $crate::sys::abi::$command {
            $($member $(: $value)?,)+
            ..<$crate::sys::abi::$command as $crate::sys::abi::Command>::new()
        }
    };
}
pub(crate) use arg;

/// The bytes of a struct.
pub fn bytes<T: Plain>(value: &T) -> Vec<u8> {
    // SAFETY: The struct is that long and, being `Plain`, initialised everywhere.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }.to_vec()
}

/// The struct of these bytes. Panics when there are too few.
pub fn value<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>(), "too few bytes of a struct");
    // SAFETY: There are enough bytes, and any are a value of a `Plain` type.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Addresses at which nothing is mapped.
#[derive(Clone, Copy, Debug)]
pub enum Wild {
    /// No address.
    Null,
    /// Below what any process may map.
    Unmapped,
    /// The kernel's direct mapping of all memory.
    Kernel,
    /// No address in any address space with 48 bits.
    NonCanonical,
    /// The last one that there is.
    Last,
}

impl Wild {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Null,
        Self::Unmapped,
        Self::Kernel,
        Self::NonCanonical,
        Self::Last,
    ];

    /// The number.
    pub const fn address(self) -> u64 {
        match self {
            Self::Null => 0,
            Self::Unmapped => 0x1000,
            Self::Kernel => 0xffff_8880_0010_0000,
            Self::NonCanonical => 0x8000_0000_0000,
            Self::Last => u64::MAX,
        }
    }
}

/// Where the argument of a command is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In memory.
    In(&'a Area, usize),
    /// Nowhere.
    Wild(Wild),
}

/// Pages for arguments, followed by one that cannot be accessed.
///
/// # Invariants
///
/// `base` is the address of `len` bytes of anonymous memory, readable, and of a page that is
/// neither readable nor writable; nothing unmaps them before this is dropped.
#[derive(Debug)]
pub struct Area {
    base: NonNull<libc::c_void>,
    len: usize,
    writable: bool,
}

impl Area {
    /// At least `count` times [`PAGE`], zeroed.
    pub fn new(count: usize) -> Result<Self, Errno> {
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let len = (count * PAGE).next_multiple_of(page());
        let whole = NonZeroUsize::new(len + page()).ok_or(Errno::EINVAL)?;
        // SAFETY: A new mapping, wherever the kernel likes.
        let base = unsafe { mmap_anonymous(None, whole, prot, MapFlags::MAP_PRIVATE) }?;
        let area = Self {
            base,
            len,
            writable: true,
        };
        // SAFETY: The last page of that mapping, into which nobody has a reference.
        unsafe { mprotect(area.base.byte_add(area.len), page(), ProtFlags::PROT_NONE) }?;
        Ok(area)
    }

    /// The same pages, which from now on can only be read.
    pub fn read_only(mut self) -> Result<Self, Errno> {
        // SAFETY: The pages of this mapping, into which nobody has a reference.
        unsafe { mprotect(self.base, self.len, ProtFlags::PROT_READ) }?;
        self.writable = false;
        Ok(self)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of the byte at `offset`, for a command. May be the one behind the end.
    pub fn at(&self, offset: usize) -> u64 {
        self.base.as_ptr().expose_provenance() as u64 + offset as u64
    }

    /// Writes as much of `bytes` at `offset` as has room there. Panics when it cannot be written.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable && offset <= self.len, "no place to write to");
        let len = bytes.len().min(self.len - offset);
        // SAFETY: Inside, writable, and nobody has a reference to it.
        unsafe {
            let to = self.base.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len);
        }
    }

    /// Reads `len` bytes at `offset`. Panics when there are not so many.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "nothing to read there");
        let mut out = vec![0; len];
        // SAFETY: Inside, and the vector has that length.
        unsafe {
            let from = self.base.as_ptr().cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len);
        }
        out
    }
}

/// Memory that a thread writes over while the kernel reads it.
///
/// # Invariants
///
/// `base` is the address of `len` bytes, writable, mapped for as long as `'a`.
#[derive(Debug)]
pub struct Racing<'a> {
    base: NonNull<libc::c_void>,
    len: usize,
    _memory: std::marker::PhantomData<&'a mut ()>,
}

// SAFETY: Bytes are written as atomics; nobody else but the kernel accesses them meanwhile, since
// whoever has made this lends the memory to it.
unsafe impl Sync for Racing<'_> {}
// SAFETY: As above.
unsafe impl Send for Racing<'_> {}

impl<'a> Racing<'a> {
    /// Borrows the area, alone.
    pub fn new(area: &'a mut Area) -> Self {
        assert!(area.writable, "no place to write to");
        Self {
            base: area.base,
            len: area.len,
            _memory: std::marker::PhantomData,
        }
    }

    /// Borrows a mapping, alone.
    pub fn of(map: &'a mut Mapping) -> Self {
        Self {
            base: map.base,
            len: map.len,
            _memory: std::marker::PhantomData,
        }
    }

    /// The address, as [`Area::at`].
    pub fn at(&self, offset: usize) -> u64 {
        self.base.as_ptr().expose_provenance() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`. Panics when there is no room.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "no place to write to");
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: Inside, writable, and accessed in this way only.
            let to = unsafe { AtomicU8::from_ptr(self.base.as_ptr().cast::<u8>().add(at)) };
            to.store(*byte, Ordering::Relaxed);
        }
    }
}

// SAFETY: The memory is its own, and whoever has the area may access it from any thread.
unsafe impl Send for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours. A failure would leave it mapped.
        let _ = unsafe { munmap(self.base, self.len + page()) };
    }
}

/// An open `/dev/rust_ulp`.
#[derive(Debug)]
pub struct Fd(OwnedFd);

impl Fd {
    /// Opens it.
    pub fn open() -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(abi::DEVICE_PATH)?;
        Ok(Self(file.into()))
    }

    /// What is open as the standard input, once more.
    pub fn stdin() -> Result<Self, Errno> {
        let copy = std::io::stdin().as_fd().try_clone_to_owned();
        copy.map(Self)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Closes the file while others may use it: from now on its number means /dev/null.
    pub fn blank(&self) -> Result<(), Errno> {
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        // SAFETY: The call takes no address. The number stays ours.
        let status = unsafe { libc::dup3(null.as_raw_fd(), self.0.as_raw_fd(), libc::O_CLOEXEC) };
        Errno::result(status).map(drop)
    }

    /// Reads one event.
    pub fn read_event(&self) -> Result<usize, Errno> {
        let mut event = [0; size_of::<abi::Event>()];
        nix::unistd::read(&self.0, &mut event)
    }

    /// Issues the command as it stands, once.
    pub fn ioctl(&self, cmd: u32, place: Place<'_>) -> Result<(), Errno> {
        let address = match place {
            Place::In(area, offset) => area.at(offset),
            Place::Wild(wild) => wild.address(),
        };
        // SAFETY: The kernel reads and writes at the address and at those that stand there: see the
        // head of this module.
        let status = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::c_ulong::from(cmd), address) };
        Errno::result(status).map(drop)
    }

    /// Maps `len` bytes at `offset`.
    pub fn map(
        &self,
        offset: u64,
        len: usize,
        prot: ProtFlags,
        flags: MapFlags,
    ) -> Result<Mapping, Errno> {
        let bytes = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        // SAFETY: A new mapping, wherever the kernel likes.
        let base = unsafe { mmap(None, bytes, prot, flags, &self.0, offset as libc::off_t) }?;
        Ok(Mapping { base, len })
    }

    /// Maps `len` bytes at `offset` the usual way.
    pub fn share(&self, offset: u64, len: u64) -> Result<Mapping, Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::EOVERFLOW)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        self.map(offset, len, prot, MapFlags::MAP_SHARED)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Memory of the device's file.
///
/// # Invariants
///
/// `base` is the address of a mapping of `len` bytes, which nothing unmaps before this is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<libc::c_void>,
    len: usize,
}

impl Mapping {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes at `offset` out. Panics when there are not so many.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "nothing to read there");
        (offset..offset + len)
            // SAFETY: Inside the mapping; what a device writes meanwhile is one byte or another.
            .map(|at| unsafe { self.base.as_ptr().cast::<u8>().add(at).read_volatile() })
            .collect()
    }

    /// Copies `bytes` to `offset`. Panics when there is no room.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "no place to write to");
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: Inside the mapping, into which nobody has a reference.
            unsafe {
                self.base
                    .as_ptr()
                    .cast::<u8>()
                    .add(at)
                    .write_volatile(*byte)
            };
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset % 4 == 0 && offset + 4 <= self.len, "no word there");
        // SAFETY: Inside the mapping, aligned, and mapped for as long as `self` is borrowed.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast::<u8>().add(offset).cast()) }
    }

    /// Loads the word at `offset`.
    pub fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the word at `offset`.
    pub fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Asks for other rights, and takes them back when that worked.
    pub fn try_protect(&self, prot: ProtFlags) -> Result<(), Errno> {
        // SAFETY: Into our mapping nobody has a reference.
        unsafe { mprotect(self.base, self.len, prot) }?;
        let usual = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: As above.
        unsafe { mprotect(self.base, self.len, usual) }
    }

    /// Asks for one page more.
    pub fn try_grow(&mut self) -> Result<(), Errno> {
        // SAFETY: The mapping is ours, and may move: nobody has a reference into it.
        let base = unsafe {
            libc::mremap(
                self.base.as_ptr(),
                self.len,
                self.len + PAGE,
                libc::MREMAP_MAYMOVE,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // INVARIANT: That is where the mapping is now.
        self.base = NonNull::new(base).ok_or(Errno::EFAULT)?;
        self.len += PAGE;
        Ok(())
    }
}

impl Mapping {
    /// Two mappings: of the first `at` bytes, and of the rest. Panics when that is no inner page.
    pub fn split(self, at: usize) -> (Self, Self) {
        assert!(at % PAGE == 0 && at > 0 && at < self.len, "no page there");
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: Inside the mapping.
        let second = unsafe { whole.base.byte_add(at) };
        // INVARIANT: Each has its part, and the whole is forgotten.
        (
            Self {
                base: whole.base,
                len: at,
            },
            Self {
                base: second,
                len: whole.len - at,
            },
        )
    }

    /// Moves the pages to another address.
    pub fn relocate(&mut self) -> Result<(), Errno> {
        let len = NonZeroUsize::new(self.len).ok_or(Errno::EINVAL)?;
        let (none, private) = (ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE);
        // SAFETY: A new mapping, wherever the kernel likes.
        let place = unsafe { mmap_anonymous(None, len, none, private) }?;
        // SAFETY: Both are ours, of that length, and nobody has a reference into either.
        let base = unsafe {
            libc::mremap(
                self.base.as_ptr(),
                self.len,
                self.len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                place.as_ptr(),
            )
        };
        if base == libc::MAP_FAILED {
            let errno = Errno::last();
            // SAFETY: It is ours, and nobody has a reference into it.
            let _ = unsafe { munmap(place, self.len) };
            return Err(errno);
        }
        // INVARIANT: That is where the mapping is now.
        self.base = place;
        Ok(())
    }
}

/// A forked process; waits for its end when it is dropped.
#[derive(Debug)]
pub struct Forked(libc::pid_t);

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: A child of ours that nobody else waits for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Forks a process that has a copy of every open file, issues a command on `file` and ends after
/// so many milliseconds.
pub fn linger(file: &Fd, milliseconds: u32) -> Result<Forked, Errno> {
    let mut query = abi::Query {
        size: abi::Query::SIZE,
        ..abi::Query::default()
    };
    let at = std::ptr::from_mut(&mut query);
    let number = file.number();
    // SAFETY: The child calls nothing but what a signal handler may.
    match Errno::result(unsafe { libc::fork() })? {
        0 => {
            // SAFETY: The struct is on the child's own stack, and as large as the kernel may write.
            unsafe { libc::ioctl(number, libc::c_ulong::from(abi::IOC_QUERY), at) };
            // SAFETY: The calls take no address.
            unsafe {
                libc::usleep(milliseconds * 1000);
                libc::_exit(0)
            }
        }
        child => Ok(Forked(child)),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours. A failure would leave it mapped.
        let _ = unsafe { munmap(self.base, self.len) };
    }
}

/// Takes this thread into the network namespace of that open file.
pub fn enter_net(namespace: &impl AsFd) -> Result<(), Errno> {
    // SAFETY: The call takes no address.
    let status = unsafe { libc::setns(namespace.as_fd().as_raw_fd(), libc::CLONE_NEWNET) };
    Errno::result(status).map(drop)
}

/// Sends a signal to a thread of this process, by its number in `/proc/self/task`.
pub fn send_signal(thread: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: The call takes no address.
    let status = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    Errno::result(status).map(drop)
}

/// An io_uring with large entries on both sides.
///
/// What its entries point at is, as everywhere here, memory into which nobody has references:
/// [`Area::at`]. It must outlive the ring, or what was asked for there.
#[allow(missing_debug_implementations)]
pub struct Uring(IoUring<squeue::Entry128, cqueue::Entry32>);

impl Uring {
    /// Makes one of `entries` entries, as `set` says.
    pub fn new(
        entries: u32,
        set: impl FnOnce(&mut io_uring::Builder<squeue::Entry128, cqueue::Entry32>),
    ) -> std::io::Result<Self> {
        let mut builder = IoUring::builder();
        set(&mut builder);
        builder.build(entries).map(Self)
    }

    /// Puts an entry into the ring; false when there is no room.
    pub fn push(&mut self, entry: &squeue::Entry128) -> bool {
        // SAFETY: See the type: what the entry points at is nobody's.
        unsafe { self.0.submission().push(entry) }.is_ok()
    }

    /// Submits, and waits until `want` completions are there, or some seconds have passed.
    pub fn enter(&self, want: usize) -> std::io::Result<usize> {
        let patience = Timespec::new().sec(10);
        let args = SubmitArgs::new().timespec(&patience);
        self.0.submitter().submit_with_args(want, &args)
    }

    /// Submits, as far as the kernel does not do that itself.
    pub fn submit(&self) -> std::io::Result<usize> {
        self.0.submit()
    }

    /// Takes the completions that are there: the number of each, its result, flags, and the first
    /// further word.
    pub fn reap(&mut self) -> Vec<(u64, i32, u32, u64)> {
        let done = self.0.completion();
        done.map(|c| (c.user_data(), c.result(), c.flags(), c.big_cqe()[0]))
            .collect()
    }

    /// Maps the memory of its `entries` entries once more.
    pub fn map_entries(&self, entries: usize) -> Result<Mapping, Errno> {
        let len = entries * size_of::<squeue::Entry128>();
        let bytes = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: The ring is open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) };
        // SAFETY: A new mapping, wherever the kernel likes.
        let base = unsafe { mmap(None, bytes, prot, MapFlags::MAP_SHARED, fd, OFF_SQES) }?;
        Ok(Mapping { base, len })
    }

    /// Has the file be number `index` of the ring.
    pub fn register(&self, files: &[i32]) -> std::io::Result<()> {
        self.0.submitter().register_files(files)
    }
}

/// An io_uring with the usual entries.
#[allow(missing_debug_implementations)]
pub struct SmallUring(IoUring);

impl SmallUring {
    /// Makes one.
    pub fn new(entries: u32) -> std::io::Result<Self> {
        IoUring::new(entries).map(Self)
    }

    /// Submits an entry, and waits for one completion: its result.
    pub fn run(&mut self, entry: &squeue::Entry) -> std::io::Result<i32> {
        // SAFETY: See [`Uring`].
        unsafe { self.0.submission().push(entry) }.map_err(std::io::Error::other)?;
        let patience = Timespec::from(crate::report::hang());
        let args = SubmitArgs::new().timespec(&patience);
        self.0.submitter().submit_with_args(1, &args)?;
        let done = self.0.completion().next();
        done.map(|c| c.result())
            .ok_or_else(|| std::io::Error::other("no completion"))
    }
}

/// `IORING_OFF_SQES`.
const OFF_SQES: libc::off_t = 0x1000_0000;

/// Says of a command that it completes many times, into buffers of `group`; none does.
pub fn multishot(entry: &mut squeue::Entry128, group: u16) {
    const FLAGS: usize = 1;
    const COMMAND_FLAGS: usize = 28;
    const GROUP: usize = 40;
    let bytes = std::ptr::from_mut(entry).cast::<[u8; 128]>();
    // SAFETY: An entry is those 128 bytes, all of which may be anything.
    let bytes = unsafe { &mut *bytes };
    bytes[FLAGS] |= 1 << 5;
    bytes[COMMAND_FLAGS..COMMAND_FLAGS + 4].copy_from_slice(&2u32.to_ne_bytes());
    bytes[GROUP..GROUP + 2].copy_from_slice(&group.to_ne_bytes());
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
