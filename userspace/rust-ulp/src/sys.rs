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

mod file;
mod map;
#[cfg(feature = "io-uring")]
mod uring;

use nix::errno::Errno;
#[cfg(test)]
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

#[cfg(feature = "tokio")]
pub(crate) use file::async_fd;
#[cfg(test)]
pub(crate) use file::FakeKernel;
pub(crate) use file::{wait_for, Command, File, Plain};
pub(crate) use map::{address_of, Mapping, RingMap};
#[cfg(feature = "io-uring")]
pub(crate) use uring::{batch_bytes, request_bytes, Uring};

/// The process that made something. A forked child has a copy of the value, but neither the
/// mappings nor the handles are the child's.
///
/// A process ID does not tell them apart: a child in a new PID namespace may have the ID of its
/// parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

/// Memory that holds the number of this process. The kernel gives a forked child zeros instead.
static PROCESS: OnceLock<Mapping> = OnceLock::new();

/// The last number that this process or one of its ancestors took.
static LAST_PROCESS: AtomicU64 = AtomicU64::new(0);

impl Process {
    /// Returns this process, to which it gives a number if it has none.
    pub(crate) fn this() -> Result<Self, Errno> {
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
    pub(crate) fn is_this(self) -> bool {
        let word = PROCESS.get().and_then(|page| page.words().first());
        word.is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
}

/// Returns the file behind a descriptor of this process, for the stub of the kernel.
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

/// Runs `f`, whose thread gets a signal with a handler after `time`.
#[cfg(test)]
pub(crate) fn interrupted_after<T>(time: std::time::Duration, f: impl FnOnce() -> T) -> T {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
    extern "C" fn nothing(_: libc::c_int) {}
    // Without SA_RESTART, the call that it interrupts ends.
    let handler = SigHandler::Handler(nothing);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: The handler does nothing, which is safe in any context.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    let thread = pthread_self();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(time);
            // That thread waits for the end of this scope.
            pthread_kill(thread, Signal::SIGUSR1).unwrap();
        });
        f()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Returns how often this thread has allocated.
    pub(crate) fn allocations() -> u64 {
        COUNT.with(Cell::get)
    }

    /// Runs `f`, whose allocations are not counted.
    pub(crate) fn uncounted<T>(f: impl FnOnce() -> T) -> T {
        let before = PAUSED.with(|paused| paused.replace(true));
        let result = f();
        PAUSED.with(|paused| paused.set(before));
        result
    }
}
