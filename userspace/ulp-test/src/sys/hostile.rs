// SPDX-License-Identifier: MIT OR Apache-2.0

//! What only the fuzzer does: memory that is taken apart, children, coverage.
//!
//! As in the parent module, whatever the kernel is made to write to is an [`Area`] or a [`Mapping`].

use super::{page, Area, Fd, Mapping, Uring};
use io_uring::types::{SubmitArgs, Timespec};
use nix::errno::Errno;
use nix::sys::mman::{mmap, mprotect, munmap, MapFlags, ProtFlags};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn owned(fd: i32) -> Result<OwnedFd, Errno> {
    let fd = Errno::result(fd)?;
    // SAFETY: The kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd that never blocks.
pub fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: The call takes no address.
    owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Number of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: The call takes no argument.
    unsafe { libc::gettid() }
}

impl Fd {
    /// Another number of the same open file.
    pub fn again(&self) -> std::io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Lets read() return where it would wait.
    pub fn never_block(&self) -> Result<(), Errno> {
        // SAFETY: The call takes no address.
        let set = unsafe { libc::fcntl(self.number(), libc::F_SETFL, libc::O_NONBLOCK) };
        Errno::result(set).map(drop)
    }

    /// Reads up to `len` bytes to `at`, a number that comes from an [`Area`] or [`super::Wild`].
    pub fn read_to(&self, at: u64, len: usize) -> Result<usize, Errno> {
        // SAFETY: The kernel writes at the address: see the head of the parent module.
        let got = unsafe { libc::read(self.number(), at as usize as *mut libc::c_void, len) };
        Errno::result(got).map(|got| got as usize)
    }

    /// What poll() says of the file now.
    pub fn poll_now(&self) -> Result<i16, Errno> {
        let mut what = libc::pollfd {
            fd: self.number(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: One struct, which is ours.
        Errno::result(unsafe { libc::poll(&mut what, 1, 0) })?;
        Ok(what.revents)
    }
}

/// An epoll of files.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Makes one.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: The call takes no address.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Watches the file for the events of the mask.
    pub fn add(&self, fd: &Fd, events: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events, u64: 0 };
        let (epoll, op) = (self.0.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: The struct is ours.
        let done = unsafe { libc::epoll_ctl(epoll, op, fd.number(), &mut event) };
        Errno::result(done).map(drop)
    }

    /// Waits so many milliseconds at most: how many are ready.
    pub fn wait(&self, millis: i32) -> Result<i32, Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: Eight structs, which are ours.
        Errno::result(unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 8, millis)
        })
    }
}

impl Mapping {
    /// Gives up all but the first `len` bytes, whole pages.
    pub fn truncate(&mut self, len: usize) -> Result<(), Errno> {
        let len = len.next_multiple_of(page()).max(page());
        if len >= self.len {
            return Ok(());
        }
        // SAFETY: The tail of our mapping, into which nobody has a reference.
        unsafe { munmap(self.base.byte_add(len), self.len - len) }?;
        // INVARIANT: What is left.
        self.len = len;
        Ok(())
    }

    /// Changes what is allowed of all of it.
    pub fn protect(&self, prot: ProtFlags) -> Result<(), Errno> {
        // SAFETY: Into our mapping nobody has a reference.
        unsafe { mprotect(self.base, self.len, prot) }
    }

    /// Moves it elsewhere with another length, of whole pages.
    pub fn remap(&mut self, len: usize) -> Result<(), Errno> {
        let at = self.base.as_ptr();
        // SAFETY: The mapping is ours, and may move: nobody has a reference into it.
        let base = unsafe { libc::mremap(at, self.len, len, libc::MREMAP_MAYMOVE) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // INVARIANT: That is where the mapping is now, and how long.
        self.base = NonNull::new(base).ok_or(Errno::EFAULT)?;
        self.len = len;
        Ok(())
    }

    /// Tells the kernel something of its pages.
    pub fn advise(&self, advice: i32) -> Result<(), Errno> {
        // SAFETY: None of the kinds of advice that the fuzzer has takes memory from others.
        Errno::result(unsafe { libc::madvise(self.base.as_ptr(), self.len, advice) }).map(drop)
    }
}

impl Uring {
    /// Submits, and waits so long at most until `want` completions are there.
    pub fn enter_for(&self, want: usize, most: Duration) -> std::io::Result<usize> {
        let patience = Timespec::from(most);
        let args = SubmitArgs::new().timespec(&patience);
        self.0.submitter().submit_with_args(want, &args)
    }
}

/// A call of a child: number of the file, of the command, and where its struct is.
pub type ChildCall = (i32, u32, u64);

/// Forks a child, which issues the calls and exits; false when it had to be killed after `most`.
///
/// The structs stand in an [`Area`]: the child has a copy of it.
pub fn fork_child(calls: &[ChildCall], most: Duration) -> Result<bool, Errno> {
    // SAFETY: The child does nothing but system calls.
    let child = Errno::result(unsafe { libc::fork() })?;
    if child == 0 {
        for &(fd, cmd, at) in calls {
            // SAFETY: The kernel reads and writes in an area that nobody refers to.
            unsafe { libc::ioctl(fd, libc::c_ulong::from(cmd), at) };
        }
        // SAFETY: Ends the child, whatever else there is in its memory.
        unsafe { libc::_exit(0) };
    }
    let end = Instant::now() + most;
    loop {
        // SAFETY: No status is asked for.
        let gone = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) };
        if Errno::result(gone)? == child {
            return Ok(true);
        }
        if Instant::now() > end {
            // SAFETY: The calls take no address; the child has not been waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// A dma-buf of that many pages, out of memory that nobody maps.
pub fn dma_buf(pages: usize) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    let device = File::open("/dev/udmabuf").map_err(|_| Errno::ENODEV)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: The name is a string with its NUL.
    let memory = owned(unsafe { libc::memfd_create(c"fuzz".as_ptr(), flags) })?;
    let fd = memory.as_raw_fd();
    // SAFETY: The calls take no address.
    unsafe {
        Errno::result(libc::ftruncate(fd, (pages * page()) as libc::off_t))?;
        Errno::result(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK))?;
    }
    let create = Create {
        memfd: fd as u32,
        flags: 1,
        offset: 0,
        size: (pages * page()) as u64,
    };
    // SAFETY: The struct is ours.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &create) })
}

/// What the kernel executes of what is instrumented, for the calling thread.
///
/// # Invariants
///
/// `base` is the address of `WORDS` words, mapped until this is dropped: a count, and as many
/// addresses. The kernel writes them only while the thread that has enabled it is in a call.
#[derive(Debug)]
pub struct Kcov {
    _file: File,
    base: NonNull<libc::c_void>,
}

impl Kcov {
    const WORDS: usize = 1 << 16;

    /// Begins, for this thread.
    pub fn begin() -> std::io::Result<Self> {
        const INIT_TRACE: libc::c_ulong = 0x8008_6301;
        const ENABLE: libc::c_ulong = 0x6364;
        let path = "/sys/kernel/debug/kcov";
        let file = File::options().read(true).write(true).open(path)?;
        // SAFETY: The argument is a number.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), INIT_TRACE, Self::WORDS) })?;
        let bytes = NonZeroUsize::new(Self::WORDS * 8).unwrap_or(NonZeroUsize::MIN);
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, wherever the kernel likes.
        let base = unsafe { mmap(None, bytes, prot, MapFlags::MAP_SHARED, &file, 0) }?;
        let cover = Self { _file: file, base };
        // SAFETY: The argument is a number: KCOV_TRACE_PC.
        Errno::result(unsafe { libc::ioctl(cover._file.as_raw_fd(), ENABLE, 0) })?;
        Ok(cover)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < Self::WORDS, "no word there");
        // SAFETY: Inside the mapping, aligned, and mapped for as long as `self` is borrowed.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast::<u64>().add(index)) }
    }

    /// Forgets what was executed.
    pub fn reset(&self) {
        self.word(0).store(0, Ordering::Relaxed);
    }

    /// What was executed since, address by address.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let count = self.word(0).load(Ordering::Relaxed) as usize;
        (1..=count.min(Self::WORDS - 1)).map(|index| self.word(index).load(Ordering::Relaxed))
    }
}

impl Drop for Kcov {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours. A failure would leave it mapped.
        let _ = unsafe { munmap(self.base, Self::WORDS * 8) };
    }
}

impl Area {
    /// Whether that address lies inside.
    pub fn has(&self, address: u64) -> bool {
        (self.at(0)..self.at(self.len)).contains(&address)
    }
}
