// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connecting by exchanged parameters over TCP. [`crate::wire`] has the messages.
//!
//! TCP carries nothing but the parameters, unprotected: whoever can reach the port can connect, and
//! whoever can listen learns the keys. Use it where the network is trusted.

use crate::deadline::Deadline;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::grant::Grant;
use crate::qp::{PreparedQp, Qp};
use crate::refusal::{Refusal, WireError};
use crate::remote::RemoteSlice;
use crate::sys;
use crate::transport::{Connected, Transport};
use crate::wire::{Header, Hello, Message, HEADER_LEN, MAX_BODY, MAX_GRANTS};
use nix::poll::PollFlags;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long an exchange may take, from the connection to the point where both sides are ready,
/// unless said otherwise.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long [`PreparedQp::accept_tcp`] waits for somebody to connect.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The other side of a connection made by this module.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Peer {
    /// Its TCP address.
    pub addr: SocketAddr,
    /// Its end of the connection.
    pub endpoint: Endpoint,
    /// What it granted, with the rights, in the order in which it did.
    pub grants: Vec<RemoteSlice>,
    /// Open as long as one of the two sides has use for the other: see [`Self::wait_gone`].
    tcp: Arc<TcpStream>,
}

impl Peer {
    /// The peer's grant number `index`, from 0.
    ///
    /// # Errors
    ///
    /// [`Error::Range`] if it granted fewer.
    pub fn grant(&self, index: usize) -> Result<RemoteSlice> {
        self.grants.get(index).copied().ok_or(Error::Range {
            what: "grants of the peer",
            offset: index as u64,
            len: 1,
            capacity: self.grants.len() as u64,
        })
    }

    /// Waits until the peer has dropped its own `Peer`, with all clones of it, or its process has
    /// ended.
    ///
    /// A request that has arrived here need not be acknowledged yet, and a queue pair that goes
    /// acknowledges nothing any more: the peer's request then ends with `retry exceeded`, though it
    /// was carried out. So who received the last request waits for this before the queue pair is
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], [`Error::Tcp`]; [`Error::Wire`] if the peer sends something instead.
    pub fn wait_gone(&self, timeout: Duration) -> Result<()> {
        const WHAT: &str = "waiting for the peer to hang up";
        let deadline = Deadline::after(timeout);
        while !self.is_gone()? {
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timeout(WHAT));
            }
            self.wait_readable(left)?;
        }
        Ok(())
    }

    /// Returns true once [`Self::wait_gone`] would return at once. Does not wait.
    ///
    /// The file of [`AsFd`] is readable from then on, for `poll`, `epoll` and the like.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`]; [`Error::Wire`] if the peer sends something instead.
    pub fn is_gone(&self) -> Result<bool> {
        if !self.wait_readable(Duration::ZERO)? {
            return Ok(false);
        }
        match (&*self.tcp).read(&mut [0]) {
            Ok(0) => Ok(true),
            Ok(_) => Err(WireError::OutOfTurn.into()),
            Err(error) => match error.kind() {
                std::io::ErrorKind::ConnectionReset => Ok(true),
                // Another thread has read what was there.
                std::io::ErrorKind::Interrupted
                | std::io::ErrorKind::WouldBlock
                | std::io::ErrorKind::TimedOut => Ok(false),
                _ => Err(tcp("reading from the peer", Some(self.addr))(error)),
            },
        }
    }

    /// Waits until the TCP connection can be read, a signal comes, or the time is over.
    fn wait_readable(&self, timeout: Duration) -> Result<bool> {
        let waited = sys::wait_for(self.tcp.as_fd(), PollFlags::POLLIN, timeout);
        waited.map_err(|errno| Error::sys("poll", errno))
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

fn tcp(what: &'static str, peer: Option<SocketAddr>) -> impl Fn(std::io::Error) -> Error {
    move |cause| Error::Tcp { what, peer, cause }
}

/// A TCP connection on which everything has to be done by one deadline.
struct Stream {
    tcp: TcpStream,
    peer: SocketAddr,
    deadline: Deadline,
}

impl Stream {
    fn new(tcp: TcpStream, peer: SocketAddr, deadline: Deadline) -> Result<Self> {
        // Each message is waited for.
        tcp.set_nodelay(true)
            .map_err(self::tcp("setting up", Some(peer)))?;
        Ok(Self {
            tcp,
            peer,
            deadline,
        })
    }

    fn left(&self, what: &'static str) -> Result<Duration> {
        match self.deadline.left() {
            Duration::ZERO => Err(self.deadline.timeout(what)),
            left => Ok(left),
        }
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> Error {
        match source.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                self.deadline.timeout(what)
            }
            _ => tcp(what, Some(self.peer))(source),
        }
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        const WHAT: &str = "sending to the peer";
        let bytes = message.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let left = self.left(WHAT)?;
            let result = self
                .tcp
                .set_write_timeout(Some(left))
                .and_then(|()| self.tcp.write(rest));
            match result {
                Ok(n) => rest = rest.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(WHAT, error)),
            }
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        const WHAT: &str = "waiting for the peer's message";
        while !buffer.is_empty() {
            let left = self.left(WHAT)?;
            let result = self
                .tcp
                .set_read_timeout(Some(left))
                .and_then(|()| self.tcp.read(buffer));
            match result {
                Ok(0) => {
                    let eof = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(self.failed(WHAT, eof));
                }
                Ok(n) => buffer = std::mem::take(&mut buffer).get_mut(n..).unwrap_or_default(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(WHAT, error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Message> {
        let mut header = [0; HEADER_LEN];
        self.fill(&mut header)?;
        let header = Header::decode(&header)?;
        let mut body = [0; MAX_BODY];
        // The header was checked: it fits.
        let body = body.get_mut(..header.body_len()).unwrap_or_default();
        self.fill(body)?;
        Ok(header.decode_body(body)?)
    }

    fn receive_hello(&mut self) -> Result<Hello> {
        match self.receive() {
            Ok(Message::Hello(hello)) => Ok(hello),
            Ok(Message::Refusal(reason)) => Err(Error::Refused(reason)),
            Ok(Message::Ready) => Err(WireError::OutOfTurn.into()),
            Err(error) => Err(error),
        }
    }

    fn receive_ready(&mut self) -> Result<()> {
        match self.receive()? {
            Message::Ready => Ok(()),
            Message::Refusal(reason) => Err(Error::Refused(reason)),
            Message::Hello(_) => Err(WireError::OutOfTurn.into()),
        }
    }

    /// Tells the peer, as far as it listens, that it came to nothing, and why here.
    fn refuse<T>(&mut self, reason: Refusal, error: Error) -> Result<T> {
        let _ = self.send(&Message::Refusal(reason));
        Err(error)
    }
}

fn hello<T: Transport>(local: Endpoint, grants: &[&Grant]) -> Result<Message> {
    if grants.len() > MAX_GRANTS {
        return Err(Error::TooMany {
            what: "grants",
            count: grants.len() as u64,
            max: MAX_GRANTS as u64,
        });
    }
    Ok(Message::Hello(Hello {
        transport: T::QP_TYPE as u8,
        endpoint: local,
        grants: grants.iter().map(|grant| grant.remote()).collect(),
    }))
}

fn peer(stream: Stream, hello: &Hello) -> Peer {
    Peer {
        addr: stream.peer,
        endpoint: hello.endpoint,
        grants: hello.grants.clone(),
        tcp: Arc::new(stream.tcp),
    }
}

/// How [`PreparedQp::connect_tcp_with`] connects.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    timeout: Duration,
    retry_refused: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            timeout: EXCHANGE_TIMEOUT,
            retry_refused: false,
        }
    }
}

impl TcpOptions {
    /// How long everything together may take; [`EXCHANGE_TIMEOUT`] unless said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Retries while the peer refuses the TCP connection, until the timeout has passed.
    ///
    /// Without this option the first refusal fails. After the timeout the error is that refusal
    /// ([`Error::Tcp`]), which names the address.
    pub fn retry_refused(mut self) -> Self {
        self.retry_refused = true;
        self
    }
}

fn resolve(addr: impl ToSocketAddrs) -> Result<Vec<SocketAddr>> {
    let addrs: Vec<_> = addr
        .to_socket_addrs()
        .map_err(tcp("resolving the address", None))?
        .collect();
    if addrs.is_empty() {
        let none = std::io::ErrorKind::AddrNotAvailable.into();
        return Err(tcp("resolving the address", None)(none));
    }
    Ok(addrs)
}

/// Connects to the first address that takes it.
fn dial(addr: impl ToSocketAddrs, options: &TcpOptions) -> Result<Stream> {
    const WHAT: &str = "connecting to";
    let deadline = Deadline::after(options.timeout);
    let addrs = resolve(addr)?;
    let mut last = None;
    loop {
        for addr in &addrs {
            let left = deadline.left();
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(addr, left) {
                Ok(tcp) => return Stream::new(tcp, *addr, deadline),
                Err(error) => last = Some((*addr, error)),
            }
        }
        match last {
            None => return Err(deadline.timeout(WHAT)),
            Some((_, ref error))
                if options.retry_refused
                    && error.kind() == std::io::ErrorKind::ConnectionRefused
                    && !deadline.left().is_zero() =>
            {
                std::thread::sleep(Duration::from_millis(50).min(deadline.left()));
            }
            Some((_, error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                return Err(deadline.timeout(WHAT));
            }
            Some((addr, error)) => return Err(tcp(WHAT, Some(addr))(error)),
        }
    }
}

impl<T: Connected> PreparedQp<T> {
    /// Connects to a peer that accepts at `addr` ([`Self::accept_tcp`], [`Listener`]), telling it
    /// of `grants`. When this returns, both sides can send.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`] if nobody listens there or the connection breaks, [`Error::Timeout`] if it
    /// takes longer than [`EXCHANGE_TIMEOUT`], [`Error::Wire`] if the peer is another kind of
    /// program, [`Error::Refused`] if it does not want to; as [`Self::connect`]. The queue pair is
    /// gone then.
    pub fn connect_tcp(self, addr: impl ToSocketAddrs, grants: &[&Grant]) -> Result<(Qp<T>, Peer)> {
        self.connect_tcp_with(addr, grants, TcpOptions::default())
    }

    /// The same as [`Self::connect_tcp`], with options.
    ///
    /// # Errors
    ///
    /// As [`Self::connect_tcp`].
    pub fn connect_tcp_with(
        self,
        addr: impl ToSocketAddrs,
        grants: &[&Grant],
        options: TcpOptions,
    ) -> Result<(Qp<T>, Peer)> {
        let hello = hello::<T>(self.endpoint(), grants)?;
        let mut stream = dial(addr, &options)?;
        stream.send(&hello)?;
        let theirs = stream.receive_hello()?;
        if u32::from(theirs.transport) != T::QP_TYPE {
            return stream.refuse(Refusal::Transport, Error::Refused(Refusal::Transport));
        }
        let qp = match self.connect(theirs.endpoint) {
            Ok(qp) => qp,
            Err(error) => return stream.refuse(Refusal::Setup, error),
        };
        stream.send(&Message::Ready)?;
        stream.receive_ready()?;
        Ok((qp, peer(stream, &theirs)))
    }

    /// Waits at `addr` for one peer that connects, tells it of `grants`, and connects. When this
    /// returns, both sides can send. [`Listener`] serves many peers.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if nobody comes within [`ACCEPT_TIMEOUT`]; as [`Listener::bind`] and
    /// [`Incoming::accept`].
    pub fn accept_tcp(self, addr: impl ToSocketAddrs, grants: &[&Grant]) -> Result<(Qp<T>, Peer)> {
        Listener::bind(addr)?
            .accept(ACCEPT_TIMEOUT)?
            .accept(self, grants)
    }
}

/// Takes connections of many peers.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
}

impl Listener {
    /// Listens at `addr`. Port 0 takes any that is free; [`Self::local_addr`] tells which.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self> {
        let addrs = resolve(addr)?;
        let failed = tcp("listening at", addrs.first().copied());
        let listener = TcpListener::bind(addrs.as_slice()).map_err(&failed)?;
        // Somebody who is gone again before it is accepted is not to be waited for.
        listener.set_nonblocking(true).map_err(&failed)?;
        Ok(Self { tcp: listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.tcp
            .local_addr()
            .map_err(tcp("asking for the address", None))
    }

    /// Waits for somebody who connects. What they have to say is not waited for here: a slow peer
    /// delays nobody if [`Incoming::accept`] is called on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], [`Error::Tcp`].
    pub fn accept(&self, timeout: Duration) -> Result<Incoming> {
        const WHAT: &str = "waiting for a peer to connect";
        let deadline = Deadline::after(timeout);
        loop {
            match self.tcp.accept() {
                Ok((tcp, addr)) => {
                    tcp.set_nonblocking(false)
                        .map_err(self::tcp("setting up", Some(addr)))?;
                    return Ok(Incoming { tcp, addr });
                }
                Err(error) => match error.kind() {
                    std::io::ErrorKind::WouldBlock
                    | std::io::ErrorKind::Interrupted
                    | std::io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(tcp(WHAT, None)(error)),
                },
            }
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timeout(WHAT));
            }
            let waited = sys::wait_for(self.tcp.as_fd(), PollFlags::POLLIN, left);
            waited.map_err(|errno| Error::sys("poll", errno))?;
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// Somebody who connected to a [`Listener`]. Dropping it hangs up.
#[derive(Debug)]
#[must_use = "the peer waits: accept or refuse"]
pub struct Incoming {
    tcp: TcpStream,
    addr: SocketAddr,
}

impl Incoming {
    /// Where it came from.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connects `qp` to it, telling it of `grants`. When this returns, both sides can send.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it takes longer than [`EXCHANGE_TIMEOUT`], [`Error::Wire`] if the peer
    /// is another kind of program, [`Error::Refused`] if the two do not fit; [`Error::Tcp`]; as
    /// [`PreparedQp::connect`]. The queue pair is gone then, and the peer was told.
    pub fn accept<T: Connected>(
        self,
        qp: PreparedQp<T>,
        grants: &[&Grant],
    ) -> Result<(Qp<T>, Peer)> {
        self.accept_within(qp, grants, EXCHANGE_TIMEOUT)
    }

    /// The same as [`Self::accept`], with another time limit.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    pub fn accept_within<T: Connected>(
        self,
        qp: PreparedQp<T>,
        grants: &[&Grant],
        timeout: Duration,
    ) -> Result<(Qp<T>, Peer)> {
        let hello = hello::<T>(qp.endpoint(), grants)?;
        let mut stream = Stream::new(self.tcp, self.addr, Deadline::after(timeout))?;
        let theirs = match stream.receive_hello() {
            Ok(theirs) => theirs,
            Err(error @ Error::Wire(_)) => return stream.refuse(Refusal::Protocol, error),
            Err(error) => return Err(error),
        };
        if u32::from(theirs.transport) != T::QP_TYPE {
            return stream.refuse(Refusal::Transport, Error::Refused(Refusal::Transport));
        }
        if let Err(error) = qp.ready_to_receive(&theirs.endpoint) {
            return stream.refuse(Refusal::Setup, error);
        }
        stream.send(&hello)?;
        stream.receive_ready()?;
        let qp = match qp.ready_to_send(theirs.endpoint) {
            Ok(qp) => qp,
            Err(error) => return stream.refuse(Refusal::Setup, error),
        };
        stream.send(&Message::Ready)?;
        Ok((qp, peer(stream, &theirs)))
    }

    /// Tells it that there will be no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`], [`Error::Timeout`]: then it was not told, but hung up on.
    pub fn refuse(self, reason: Refusal) -> Result<()> {
        let deadline = Deadline::after(Duration::from_secs(1));
        let mut stream = Stream::new(self.tcp, self.addr, deadline)?;
        // What it has to say is read first: data that nobody read would turn the end of the
        // connection into a reset, which can overtake the refusal.
        let _ = stream.receive_hello();
        stream.send(&Message::Refusal(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Mtu;
    use crate::gid::Gid;

    /// One that has `tcp` to its peer.
    fn at(tcp: TcpStream) -> Peer {
        let hello = Hello {
            transport: 2,
            endpoint: Endpoint::new(1, 0, Gid([0; 16]), Mtu::B1024),
            grants: Vec::new(),
        };
        let addr = tcp.peer_addr().unwrap();
        peer(
            Stream::new(tcp, addr, Deadline::after(EXCHANGE_TIMEOUT)).unwrap(),
            &hello,
        )
    }

    fn pair() -> (Peer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (at(listener.accept().unwrap().0), there)
    }

    #[test]
    fn a_peer_is_gone_with_its_last_clone() {
        let (here, there) = pair();
        let there = at(there);
        let clone = there.clone();
        drop(there);
        assert!(!here.is_gone().unwrap());
        let error = here.wait_gone(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        drop(clone);
        here.wait_gone(EXCHANGE_TIMEOUT).unwrap();
        assert!(here.is_gone().unwrap());
        here.wait_gone(EXCHANGE_TIMEOUT).unwrap();
    }

    #[test]
    fn a_peer_that_says_more_is_not_gone() {
        let (here, mut there) = pair();
        there.write_all(b"more").unwrap();
        let error = here.wait_gone(EXCHANGE_TIMEOUT).unwrap_err();
        assert!(
            matches!(error, Error::Wire(WireError::OutOfTurn)),
            "{error}"
        );
    }
}
