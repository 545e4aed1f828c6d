// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting for files in tasks: the one place that knows tokio and smol.
//!
//! A [`Watch`] is an epoll instance whose own descriptor is all that the runtime sees. So files
//! that need other flags than "readable", time-outs, and the removal of the device cost one
//! descriptor of the runtime, and are the same with each runtime.

use crate::device::DeviceInner;
use crate::error::{Error, Result, EPOLL_CTL};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
#[cfg(feature = "smol")]
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{ready, Context, Poll, Waker};

/// Completions that a task of smol takes in a row before it lets others run. It is the budget that
/// tokio gives its tasks.
#[cfg(feature = "smol")]
const BUDGET: u32 = 128;

/// The epoll instance, registered with a runtime by a descriptor of its own.
#[derive(Debug)]
enum Reactor {
    #[cfg(feature = "tokio")]
    Tokio(tokio::io::unix::AsyncFd<OwnedFd>),
    #[cfg(feature = "smol")]
    Smol(async_io::Async<OwnedFd>, AtomicU32),
}

fn failed(error: std::io::Error) -> Error {
    Error::io("epoll of a task", &error)
}

impl Reactor {
    /// Registers `fd` with tokio.
    #[cfg(feature = "tokio")]
    fn tokio(fd: OwnedFd) -> Result<Self> {
        crate::sys::async_fd(fd).map(Self::Tokio).map_err(failed)
    }

    /// Registers `fd` with the runtime of the caller.
    #[cfg(not(feature = "smol"))]
    fn new(fd: OwnedFd) -> Result<Self> {
        Self::tokio(fd)
    }

    /// Registers `fd` with the runtime of the caller: with tokio inside of one of its runtimes, else
    /// with smol.
    #[cfg(feature = "smol")]
    fn new(fd: OwnedFd) -> Result<Self> {
        #[cfg(feature = "tokio")]
        if tokio::runtime::Handle::try_current().is_ok() {
            return Self::tokio(fd);
        }
        let fd = async_io::Async::new_nonblocking(fd).map_err(failed)?;
        Ok(Self::Smol(fd, AtomicU32::new(0)))
    }

    /// Waits until the epoll instance may have something to tell since the last time that this was
    /// ready.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            #[cfg(feature = "tokio")]
            Self::Tokio(fd) => {
                let ready = ready!(fd.poll_read_ready(cx)).map_err(failed);
                Poll::Ready(ready.map(|mut guard| guard.clear_ready()))
            }
            #[cfg(feature = "smol")]
            Self::Smol(fd, taken) => {
                let ready = fd.poll_readable(cx);
                if ready.is_pending() {
                    taken.store(0, Ordering::Relaxed);
                }
                ready.map_err(failed)
            }
        }
    }

    /// Calls `take`, which takes what is there without waiting, unless the task has had its share
    /// and others have to run first.
    fn poll_take<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce() -> Result<Option<T>>,
    ) -> Poll<Result<Option<T>>> {
        match self {
            #[cfg(feature = "tokio")]
            Self::Tokio(_) => {
                let budget = ready!(tokio::task::coop::poll_proceed(cx));
                let taken = take();
                if !matches!(taken, Ok(None)) {
                    budget.made_progress();
                }
                Poll::Ready(taken)
            }
            #[cfg(feature = "smol")]
            Self::Smol(_, taken) => {
                if taken.load(Ordering::Relaxed) >= BUDGET {
                    taken.store(0, Ordering::Relaxed);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                taken.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(take())
            }
        }
    }
}

/// Files of which a task waits for a change.
#[derive(Debug)]
pub(crate) struct Watch {
    reactor: Reactor,
    epoll: Epoll,
}

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Panics
    ///
    /// Without the feature `smol`, outside of a runtime of tokio that has I/O enabled.
    pub(crate) fn new() -> Result<Self> {
        let sys = |errno| Error::sys("epoll_create", errno);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(sys)?;
        let fd = epoll.0.try_clone().map_err(failed)?;
        Ok(Self {
            reactor: Reactor::new(fd)?,
            epoll,
        })
    }

    /// Watches for events and the removal of `device`.
    pub(crate) fn device(device: &DeviceInner) -> Result<Self> {
        let watch = Self::new()?;
        watch.add(&device.file().event_source(), EpollFlags::EPOLLIN)?;
        Ok(watch)
    }

    /// Watches for changes of the objects of `device` that its events tell of, whoever takes these, and
    /// for its removal. The file of the device does not do alone: it is readable no more when another
    /// task or thread was faster and has taken the event.
    pub(crate) fn objects(device: &DeviceInner) -> Result<Self> {
        let watch = Self::device(device)?;
        watch.add(device.taken_events()?, EpollFlags::EPOLLIN)?;
        Ok(watch)
    }

    /// Watches `file`. Epoll reports its errors and its end in any case. It reports each change
    /// once.
    pub(crate) fn add(&self, file: &impl AsFd, flags: EpollFlags) -> Result<()> {
        let event = EpollEvent::new(flags | EpollFlags::EPOLLET, 0);
        let added = self.epoll.add(file, event);
        added.map_err(|errno| Error::sys(EPOLL_CTL, errno))
    }

    /// Waits until one of the files has changed since the last time that this was ready: one first
    /// looks whether there is something, and then waits.
    ///
    /// One task waits at a time: the last one that called is woken.
    pub(crate) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            ready!(self.reactor.poll_readable(cx))?;
            // What changes from here on makes it readable again.
            let mut events = [EpollEvent::empty(); 4];
            match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Poll::Ready(Ok(())),
                Err(errno) => return Poll::Ready(Err(Error::sys("epoll_wait", errno))),
            }
        }
    }

    /// Waits until one of the files has changed.
    pub(crate) async fn changed(&self) -> Result<()> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// Waits until `take` returns something, or an error. It is called at once, and after each
    /// change. Nothing is waited for once something was taken.
    pub(crate) fn poll_until<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnMut() -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let waker = cx.waker().clone();
        self.poll_shared(cx, &waker, take)
    }

    /// Waits as [`Self::poll_until`]; a change wakes `waker`, that of all tasks that wait.
    pub(crate) fn poll_shared<T>(
        &self,
        cx: &mut Context<'_>,
        waker: &Waker,
        mut take: impl FnMut() -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let mut has_changed = false;
        loop {
            let taken = self.reactor.poll_take(cx, &mut take);
            if has_changed && !matches!(taken, Poll::Ready(Ok(_))) {
                // The change is told once, to this task, which has not looked: it has had its share, or
                // has failed. The others have to look themselves, in case this one is dropped.
                waker.wake_by_ref();
            }
            if let Some(taken) = ready!(taken)? {
                return Poll::Ready(Ok(taken));
            }
            ready!(self.poll_changed(&mut Context::from_waker(waker)))?;
            has_changed = true;
        }
    }

    /// Waits until `take` returns something, as [`Self::poll_until`].
    pub(crate) async fn until<T>(&self, mut take: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        poll_fn(|cx| self.poll_until(cx, &mut take)).await
    }
}
