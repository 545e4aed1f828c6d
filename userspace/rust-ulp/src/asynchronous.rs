// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting for completions and events in tasks of tokio.

use crate::completion::Completion;
use crate::cq::{Cq, CqEventFd};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::events::{Event, Events};
use crate::sys::async_fd;
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| {
        let errno = error.raw_os_error().map(Errno::from_raw);
        Error::sys(call, errno.unwrap_or(Errno::EIO))
    }
}

/// A completion queue whose completions a task waits for. Needs the feature `tokio`.
///
/// Waiting is cancel-safe: a future that is dropped, in a `select!` or after a time-out, has taken
/// nothing. One task waits at a time, which the compiler sees to; polling the [`Cq`] besides is
/// allowed, and each completion goes to one who takes it.
#[derive(Debug)]
pub struct AsyncCq {
    fd: AsyncFd<OwnedFd>,
    eventfd: CqEventFd,
}

impl AsyncCq {
    /// Gives the queue its eventfd, and that to the runtime.
    ///
    /// # Errors
    ///
    /// As [`Cq::eventfd`]; [`Error::Sys`] if the runtime cannot take it.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio that has I/O enabled.
    pub fn new(cq: &Cq) -> Result<Self> {
        let eventfd = cq.eventfd()?;
        let fd = async_fd(&eventfd, Interest::READABLE);
        Ok(Self {
            fd: fd.map_err(failed("epoll of an eventfd"))?,
            eventfd,
        })
    }

    /// The queue.
    pub fn cq(&self) -> &Cq {
        self.eventfd.cq()
    }

    /// Takes the oldest completion, waiting until there is one.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub async fn wait(&mut self) -> Result<Completion> {
        let mut one = [Completion::EMPTY];
        self.wait_into(&mut one).await?;
        let [done] = one;
        Ok(done)
    }

    /// Takes as many completions as there are and fit into `out`, waiting until there is one, and
    /// returns how many.
    ///
    /// # Errors
    ///
    /// As [`Cq::poll`].
    pub async fn wait_into(&mut self, out: &mut [Completion]) -> Result<usize> {
        loop {
            // Nothing is awaited once something was taken.
            let n = self.cq().poll_into(out)?;
            if n != 0 || out.is_empty() {
                return Ok(n);
            }
            let mut ready = self
                .fd
                .readable()
                .await
                .map_err(failed("epoll of an eventfd"))?;
            // In this order: what arrives after each of these makes it readable again, or is seen
            // by the next look at the ring.
            ready.clear_ready();
            self.eventfd.take()?;
        }
    }
}

/// The events of a device, which a task waits for. Needs the feature `tokio`.
///
/// Waiting is cancel-safe.
#[derive(Debug)]
pub struct AsyncEvents {
    events: Events,
    fd: AsyncFd<OwnedFd>,
}

impl AsyncEvents {
    /// Gives the device's file to the runtime.
    ///
    /// # Errors
    ///
    /// As [`Device::events`]; [`Error::Sys`] with `EMFILE` without room for a descriptor.
    ///
    /// # Panics
    ///
    /// As [`AsyncCq::new`].
    pub fn new(device: &Device) -> Result<Self> {
        let events = device.events()?;
        let fd = async_fd(device, Interest::PRIORITY);
        Ok(Self {
            events,
            fd: fd.map_err(failed("epoll of a device"))?,
        })
    }

    /// Takes the oldest event, waiting until there is one.
    ///
    /// # Errors
    ///
    /// As [`Events::next_event`].
    pub async fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.events.next_event()? {
                return Ok(event);
            }
            let ready = self.fd.ready(Interest::PRIORITY).await;
            // What comes after this makes it ready again; what came before is looked for first.
            ready.map_err(failed("epoll of a device"))?.clear_ready();
        }
    }
}
