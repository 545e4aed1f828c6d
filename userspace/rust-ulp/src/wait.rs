// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting while a connection is made: a thread sleeps, or a task does. What has to be done is
//! written once, as futures.

use crate::deadline::Deadline;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::reactor::Watch;
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::sync::lock;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::errno::Errno;
use nix::poll::PollFlags;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::epoll::EpollFlags;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::future::poll_fn;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::sync::mpsc::{sync_channel, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// The waiter: a thread, or a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Thread,
    #[cfg(any(feature = "smol", feature = "tokio"))]
    Task,
}

/// Runs a future in which a thread waits: it is ready at once.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return value;
        }
    }
}

/// A thread that works on for a task that does not wait any longer.
pub(crate) type Helper = Mutex<Option<JoinHandle<()>>>;

/// Runs `work`, which may sleep: in this thread, or in a thread of its own while a task waits. That
/// thread runs to the end of `work` in any case.
///
/// A task fails with what `over` returns, if that is ready before there is a result. Then `helper`
/// gets the thread.
pub(crate) async fn blocking<T: Send + 'static>(
    who: Who,
    over: impl Future<Output = Error>,
    helper: &Helper,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    #[cfg(not(any(feature = "smol", feature = "tokio")))]
    let _ = (over, helper);
    match who {
        Who::Thread => Ok(work()),
        #[cfg(any(feature = "smol", feature = "tokio"))]
        Who::Task => helped(over, helper, work).await,
    }
}

/// Runs `work` in a thread of its own, which wakes the task at the end.
#[cfg(any(feature = "smol", feature = "tokio"))]
async fn helped<T: Send + 'static>(
    over: impl Future<Output = Error>,
    helper: &Helper,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (done, doing) = sync_channel(1);
    let waker = Arc::new(Mutex::new(Waker::noop().clone()));
    let at_end = WakeAtEnd(waker.clone());
    let run = move || {
        let _at_end = at_end; // after `done` is dropped, so that the task also hears of a panic
        let done = done;
        let _ = done.send(work());
    };
    let thread = std::thread::Builder::new().name("rust-ulp-helper".into());
    let errno = |error: std::io::Error| error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
    let spawned = thread.spawn(run);
    let thread = spawned.map_err(|error| Error::sys("a helper thread", errno(error)))?;
    let mut over = pin!(over);
    let waited = poll_fn(move |cx| {
        // First the waker: what ends from here on wakes this task.
        let new = cx.waker().clone();
        let before = std::mem::replace(&mut *lock(&waker), new);
        drop(before); // without the lock
        match doing.try_recv() {
            Ok(value) => Poll::Ready(Ok(value)),
            Err(TryRecvError::Empty) => over.as_mut().poll(cx).map(Err),
            // It has panicked.
            Err(TryRecvError::Disconnected) => {
                Poll::Ready(Err(Error::sys("a helper thread", Errno::EIO)))
            }
        }
    })
    .await;
    if waited.is_err() {
        *lock(helper) = Some(thread);
    }
    waited
}

/// Wakes a task when it is dropped.
#[cfg(any(feature = "smol", feature = "tokio"))]
struct WakeAtEnd(Arc<Mutex<Waker>>);

#[cfg(any(feature = "smol", feature = "tokio"))]
impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        // Without the lock: who is woken may come here.
        let waker = lock(&self.0).clone();
        waker.wake();
    }
}

/// A time-out, and the removal of a device, for a task.
#[cfg(any(feature = "smol", feature = "tokio"))]
#[derive(Debug)]
pub(crate) struct TaskWait {
    watch: Watch,
    timer: TimerFd,
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl TaskWait {
    /// Watches for events of `device`, its removal among them, whoever takes these.
    pub(crate) fn new(device: &DeviceInner) -> Result<Self> {
        Self::with(Watch::objects(device)?)
    }

    /// Watches for the removal of `device` alone.
    fn removal(device: &DeviceInner) -> Result<Self> {
        let watch = Watch::new()?;
        // Epoll reports a hang-up without being asked for.
        watch.add(&device.file().event_source(), EpollFlags::empty())?;
        Self::with(watch)
    }

    fn with(watch: Watch) -> Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
        let timer = timer.map_err(|errno| Error::sys("timerfd_create", errno))?;
        watch.add(&timer, EpollFlags::EPOLLIN)?;
        Ok(Self { watch, timer })
    }

    /// Waits until something has changed since the last time, or for `left`.
    pub(crate) async fn changed(&self, left: Duration) -> Result<()> {
        // Zero would stop the timer. More than the type of the kernel holds is for ever.
        let left = left.clamp(
            Duration::from_nanos(1),
            Duration::from_secs(i32::MAX as u64),
        );
        let flags = TimerSetTimeFlags::empty();
        let set = self.timer.set(Expiration::OneShot(left.into()), flags);
        set.map_err(|errno| Error::sys("timerfd_settime", errno))?;
        self.watch.changed().await
    }
}

/// Waits for `time`.
///
/// Fails with [`Error::DeviceGone`] as soon as the device is removed.
pub(crate) async fn pause(device: &Arc<DeviceInner>, who: Who, time: Duration) -> Result<()> {
    let deadline = Deadline::after(time);
    let mut wait = FileWait::removal(device, who)?;
    loop {
        match deadline.left() {
            Duration::ZERO => return Ok(()),
            left => {
                let file = device.file().event_source();
                wait.wait(&file, PollFlags::empty(), left).await?;
            }
        }
    }
}

/// Waits for one file, for a time, and for the removal of a device.
#[derive(Debug)]
pub(crate) struct FileWait {
    device: Arc<DeviceInner>,
    #[cfg(any(feature = "smol", feature = "tokio"))]
    task: Option<TaskWait>,
}

impl FileWait {
    pub(crate) fn new(device: &Arc<DeviceInner>, who: Who, file: &impl AsFd) -> Result<Self> {
        let wait = Self::removal(device, who)?;
        #[cfg(not(any(feature = "smol", feature = "tokio")))]
        let _ = file;
        #[cfg(any(feature = "smol", feature = "tokio"))]
        if let Some(task) = &wait.task {
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
            task.watch.add(file, flags)?;
        }
        Ok(wait)
    }

    /// Waits for a time, and for the removal of the device.
    fn removal(device: &Arc<DeviceInner>, who: Who) -> Result<Self> {
        #[cfg(not(any(feature = "smol", feature = "tokio")))]
        let _ = who;
        Ok(Self {
            device: device.clone(),
            #[cfg(any(feature = "smol", feature = "tokio"))]
            task: match who {
                Who::Thread => None,
                Who::Task => Some(TaskWait::removal(device)?),
            },
        })
    }

    /// Waits until `file`, which was not ready for `flags`, may be so, a signal comes, or the time
    /// is over.
    ///
    /// Fails with [`Error::DeviceGone`] as soon as the device is removed.
    pub(crate) async fn wait(
        &mut self,
        file: &impl AsFd,
        flags: PollFlags,
        left: Duration,
    ) -> Result<()> {
        #[cfg(any(feature = "smol", feature = "tokio"))]
        let left = match &mut self.task {
            None => left,
            Some(task) => {
                task.changed(left).await?;
                Duration::ZERO
            }
        };
        let waited = self.device.file().wait_beside(file.as_fd(), flags, left);
        waited.map(drop).map_err(|errno| Error::sys("poll", errno))
    }
}
