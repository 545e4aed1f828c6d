// SPDX-License-Identifier: MIT OR Apache-2.0

//! A ring of io_uring.

use super::Process;
use crate::abi;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A ring of io_uring with entries of 128 bytes and completions of 32, for commands of device
/// files.
pub(crate) struct Uring {
    /// Dropped in the process that made it, once.
    ring: ManuallyDrop<io_uring::IoUring<io_uring::squeue::Entry128, io_uring::cqueue::Entry32>>,
    owner: Process,
    /// Entries that go into the ring together.
    staged: Vec<io_uring::squeue::Entry128>,
    /// The next entry is linked to the last one of these.
    links: bool,
    /// Calls of [`Self::wait`].
    #[cfg(test)]
    pub(crate) waits: u32,
}

/// A completion of a [`Uring`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct UringCqe {
    pub(crate) user_data: u64,
    pub(crate) res: i32,
    pub(crate) extra: u64,
}

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
        // One entry that the kernel refuses keeps none of those after it back.
        builder.dontfork().setup_submit_all();
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
            #[cfg(test)]
            waits: 0,
        })
    }

    /// Returns how many entries go into the ring together at most.
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

    /// Has the next command that is added start only when the last one has succeeded. Without a
    /// next one before [`Self::put`] there is no link: the kernel would link it to whatever comes
    /// next.
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
        let has_thread = self.ring.params().is_setup_sqpoll();
        loop {
            match self.ring.submit() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error),
                // It may take a part, when memory is short.
                Ok(n) if n > 0 && !has_thread && !self.ring.submission().is_empty() => {}
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Returns how many completions can be taken.
    pub(crate) fn ready(&mut self) -> usize {
        self.ring.completion().len()
    }

    /// Sleeps until there are `min` completions, a signal comes, or the time is over, and returns
    /// whether it is over. The kernel takes what was put into the ring, by the same call.
    pub(crate) fn wait(&mut self, min: usize, timeout: Duration) -> std::io::Result<bool> {
        #[cfg(test)]
        {
            self.waits += 1;
        }
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

impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Returns a request as the bytes of a command.
pub(crate) fn request_bytes(wr: &abi::Wr) -> [u8; 80] {
    // SAFETY: Both are 72 bytes, and a `Wr` has no padding.
    command(unsafe { std::mem::transmute::<abi::Wr, [u8; 72]>(*wr) })
}

/// Returns a batch as the bytes of a command.
pub(crate) fn batch_bytes(batch: &abi::UringBatch) -> [u8; 80] {
    // SAFETY: Both are 16 bytes, and a `UringBatch` has no padding.
    command(unsafe { std::mem::transmute::<abi::UringBatch, [u8; 16]>(*batch) })
}

/// Returns the bytes of a command that begins with `head`.
fn command<const N: usize>(head: [u8; N]) -> [u8; 80] {
    let mut bytes = [0; 80];
    for (to, from) in bytes.iter_mut().zip(head) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::holds_in_child;

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

    #[test]
    fn an_entry_that_is_refused_keeps_no_other_back() {
        let Ok(mut ring) = Uring::new(4, None, false) else {
            return; // this machine has no io_uring
        };
        // It takes no commands.
        let flags = nix::sys::memfd::MFdFlags::empty();
        let file = nix::sys::memfd::memfd_create(c"none", flags).unwrap();
        ring.stage(file.as_raw_fd(), 0, [0; 80], 1);
        ring.stage(file.as_raw_fd(), 0, [0; 80], 2);
        // A command takes no buffer of a group: the kernel refuses it while it prepares it.
        let first = ring.staged.remove(0);
        let first = first.flags(io_uring::squeue::Flags::BUFFER_SELECT);
        ring.staged.insert(0, first);
        assert!(ring.put());
        ring.enter().unwrap();
        let mut results = [0; 2];
        for result in &mut results {
            *result = ring.next().unwrap().res;
        }
        // Which kernel finds it at which step decides the errno of the first.
        assert!([-libc::EINVAL, -libc::EOPNOTSUPP].contains(&results[0]));
        assert_eq!(results[1], -libc::EOPNOTSUPP);
    }

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
