// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting while a connection is made: a thread sleeps, or a task does. What has to be done is
//! written once, as futures.

use crate::device::DeviceInner;
use crate::error::{Error, Result};
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::reactor::Watch;
use nix::poll::PollFlags;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::epoll::EpollFlags;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Who waits.
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

/// A time-out, and the removal of a device, for a task.
#[cfg(any(feature = "smol", feature = "tokio"))]
#[derive(Debug)]
pub(crate) struct TaskWait {
    watch: Watch,
    timer: TimerFd,
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl TaskWait {
    /// Watches for events of `device`, its removal among them.
    pub(crate) fn new(device: &DeviceInner) -> Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
        let timer = timer.map_err(|errno| Error::sys("timerfd_create", errno))?;
        let watch = Watch::device(device)?;
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
pub(crate) async fn pause(device: &DeviceInner, who: Who, time: Duration) -> Result<()> {
    #[cfg(any(feature = "smol", feature = "tokio"))]
    if who == Who::Task {
        return TaskWait::new(device)?.changed(time).await;
    }
    let _ = (device, who);
    std::thread::sleep(time);
    Ok(())
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
        #[cfg(not(any(feature = "smol", feature = "tokio")))]
        let _ = (who, file);
        #[cfg(any(feature = "smol", feature = "tokio"))]
        let task = match who {
            Who::Thread => None,
            Who::Task => {
                let wait = TaskWait::new(device)?;
                let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
                wait.watch.add(file, flags)?;
                Some(wait)
            }
        };
        Ok(Self {
            device: device.clone(),
            #[cfg(any(feature = "smol", feature = "tokio"))]
            task,
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
