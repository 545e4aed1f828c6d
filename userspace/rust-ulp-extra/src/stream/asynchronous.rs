// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams for tasks.

use super::{Receiver, Sender};
use rust_ulp::error::Result;
use rust_ulp::AsyncCq;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The end of a stream that a task writes to; from [`Sender::into_async`].
///
/// Bytes go into the receiver's ring at once: there is nothing to flush. Closing (`shutdown` of
/// tokio, `close` of futures-io) tells the end, and waits until the receiver has taken everything.
///
/// A `write` that is dropped has sent nothing. A `write_all` that is dropped has sent a part, as with
/// any stream, and the next write follows it.
#[derive(Debug)]
pub struct AsyncSender {
    sender: Sender,
    cq: AsyncCq,
}

impl Sender {
    /// Gives it to a task, as [`AsyncCq::new`] a queue. Needs the feature `tokio` or `smol`.
    pub fn into_async(self) -> Result<AsyncSender> {
        let cq = AsyncCq::new(self.qp().send_cq())?;
        Ok(AsyncSender { sender: self, cq })
    }
}

impl AsyncSender {
    /// Returns what threads use.
    pub fn into_inner(self) -> Sender {
        self.sender
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let Self { sender, cq } = self;
        let sent = cq.poll_until(cx, || {
            let n = sender.try_send(bytes)?;
            Ok((n != 0 || bytes.is_empty()).then_some(n))
        });
        sent.map_err(Into::into)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Self { sender, cq } = self;
        let finished = cq.poll_until(cx, || Ok(sender.try_finish()?.then_some(())));
        finished.map_err(Into::into)
    }
}

/// The end of a stream that a task reads from; from [`Receiver::into_async`].
///
/// A `read` that is dropped has taken nothing. A `read_exact` that is dropped has taken a part, as
/// with any stream.
#[derive(Debug)]
pub struct AsyncReceiver {
    receiver: Receiver,
    cq: AsyncCq,
}

impl Receiver {
    /// Gives it to a task, as [`AsyncCq::new`] a queue. Needs the feature `tokio` or `smol`.
    pub fn into_async(self) -> Result<AsyncReceiver> {
        let cq = AsyncCq::new(self.qp().send_cq())?;
        Ok(AsyncReceiver { receiver: self, cq })
    }
}

impl AsyncReceiver {
    /// Returns what threads use.
    pub fn into_inner(self) -> Receiver {
        self.receiver
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<std::io::Result<usize>> {
        let Self { receiver, cq } = self;
        let received = cq.poll_until(cx, || {
            Ok(match receiver.try_recv(out)? {
                // Who sees the end may drop this at once: what was given back is to arrive before.
                Some(0) if !out.is_empty() && !receiver.end.is_finished() => None,
                received => received,
            })
        });
        received.map_err(Into::into)
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for AsyncSender {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.get_mut().poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.get_mut().poll_finish(cx)
    }
}

#[cfg(feature = "smol")]
impl futures_io::AsyncWrite for AsyncSender {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.get_mut().poll_send(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.get_mut().poll_finish(cx)
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for AsyncReceiver {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let received = self.get_mut().poll_recv(cx, out.initialize_unfilled());
        received.map_ok(|n| out.advance(n))
    }
}

#[cfg(feature = "smol")]
impl futures_io::AsyncRead for AsyncReceiver {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        self.get_mut().poll_recv(cx, out)
    }
}
