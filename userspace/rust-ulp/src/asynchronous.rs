// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completions and events for tasks.

use crate::completion::Completion;
use crate::cq::{Cq, CqEventFd};
use crate::device::Device;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::events::{Event, Events};
use crate::reactor::Watch;
#[cfg(doc)]
use futures_core::Stream;
use nix::sys::epoll::EpollFlags;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// A completion queue whose completions a task waits for. Needs the feature `tokio` or `smol`.
///
/// It is a [`Stream`] of completions, which ends after the first error. Waiting is cancel-safe: a
/// future that is dropped, in a `select!` or after a time-out, has taken nothing. One task waits at
/// a time, which the compiler sees to; polling the [`Cq`] besides is allowed, and each completion
/// goes to one who takes it.
///
/// A queue that always has completions does not keep other tasks from running: each completion
/// counts against the budget that tokio gives a task, and with smol the task yields after 128 of
/// them.
#[derive(Debug)]
pub struct AsyncCq {
    watch: Watch,
    eventfd: CqEventFd,
    /// An error was told by the stream.
    ended: bool,
}

impl AsyncCq {
    /// Gives the queue its eventfd, and that to the runtime: to tokio inside of one of its runtimes,
    /// else to smol.
    ///
    /// # Errors
    ///
    /// As [`Cq::eventfd`]; [`Error::Sys`] if the runtime cannot take it.
    ///
    /// # Panics
    ///
    /// Without the feature `smol`, outside of a runtime of tokio. Inside of one that has I/O
    /// disabled.
    pub fn new(cq: &Cq) -> Result<Self> {
        let watch = Watch::new()?;
        let eventfd = cq.eventfd()?;
        watch.add(&eventfd, EpollFlags::EPOLLIN)?;
        Ok(Self {
            watch,
            eventfd,
            ended: false,
        })
    }

    /// Returns the queue.
    pub fn cq(&self) -> &Cq {
        self.eventfd.cq()
    }

    /// Takes the oldest completion as [`Cq::poll`], waiting until there is one.
    pub async fn wait(&mut self) -> Result<Completion> {
        poll_fn(|cx| self.poll_wait(cx)).await
    }

    /// Takes the oldest completion as [`Cq::poll`]; registers the task to be woken if there is none.
    pub fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        self.watch.poll_until(cx, || self.eventfd.cq().poll())
    }

    /// Calls `take` until it returns something; registers the task to be woken if it returns none.
    ///
    /// `take` takes completions from [`Self::cq`] without waiting, as those do who use the queue for
    /// a protocol of their own.
    ///
    /// # Errors
    ///
    /// Those of `take`; [`Error::Sys`] if the runtime cannot wait.
    pub fn poll_until<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnMut() -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        self.watch.poll_until(cx, take)
    }

    /// Takes as many completions as there are and fit into `out`, waiting until there is one, and
    /// returns how many. Fails as [`Cq::poll`].
    pub async fn wait_into(&mut self, out: &mut [Completion]) -> Result<usize> {
        let take = || {
            let n = self.eventfd.cq().poll_into(out)?;
            Ok((n != 0 || out.is_empty()).then_some(n))
        };
        self.watch.until(take).await
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }
}

/// Makes `$name` a stream of what its function `$poll` returns. It ends after the first error, which
/// its field `ended` says.
macro_rules! stream {
    ($name:ident, $item:ty, $poll:ident) => {
        impl futures_core::Stream for $name {
            type Item = crate::error::Result<$item>;

            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                if self.ended {
                    return std::task::Poll::Ready(None);
                }
                let next = std::task::ready!(self.$poll(cx));
                self.ended = next.is_err();
                std::task::Poll::Ready(Some(next))
            }
        }
    };
}
pub(crate) use stream;

stream!(AsyncCq, Completion, poll_wait);

/// The events of a device, which a task waits for. Needs the feature `tokio` or `smol`.
///
/// It is a [`Stream`] of events, which ends after the first error: that of a device that was
/// removed. Waiting is cancel-safe.
#[derive(Debug)]
pub struct AsyncEvents {
    events: Events,
    watch: Watch,
    ended: bool,
}

impl AsyncEvents {
    /// Gives the device's file to the runtime.
    ///
    /// # Errors
    ///
    /// As [`Device::events`]; [`Error::Sys`] with `EMFILE` without room for a descriptor.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            events: device.events(),
            watch: Watch::device(device.inner())?,
            ended: false,
        })
    }

    /// Takes the oldest event as [`Events::next_event`], waiting until there is one.
    pub async fn next_event(&mut self) -> Result<Event> {
        poll_fn(|cx| self.poll_next_event(cx)).await
    }

    /// Takes the oldest event as [`Events::next_event`]; registers the task to be woken if there is
    /// none.
    pub fn poll_next_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        self.watch.poll_until(cx, || self.events.next_event())
    }
}

stream!(AsyncEvents, Event, poll_next_event);
