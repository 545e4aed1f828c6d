// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connecting by exchanged parameters over TCP. [`crate::wire`] has the messages.
//!
//! TCP carries nothing but the parameters, unprotected: whoever can reach the port can connect, and
//! whoever can listen learns the keys. Use it where the network is trusted.

use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::grant::Grant;
use crate::qp::{ConnectError, PreparedQp, Qp};
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

/// Waits until `tcp` is ready for `flags`, a signal comes, or the time is over.
///
/// Fails with [`Error::DeviceGone`] as soon as the device is removed.
fn wait_beside(
    device: &DeviceInner,
    tcp: &impl AsFd,
    flags: PollFlags,
    left: Duration,
) -> Result<()> {
    let waited = device.file().wait_beside(tcp.as_fd(), flags, left);
    waited.map(drop).map_err(|errno| Error::sys("poll", errno))
}

/// A TCP connection on which everything has to be done by one deadline, and while the device lives.
struct Stream {
    tcp: TcpStream,
    peer: SocketAddr,
    device: Arc<DeviceInner>,
    deadline: Deadline,
}

impl Stream {
    fn new(
        tcp: TcpStream,
        peer: SocketAddr,
        device: &Arc<DeviceInner>,
        deadline: Deadline,
    ) -> Result<Self> {
        // Each message is waited for.
        tcp.set_nodelay(true)
            .map_err(self::tcp("setting up", Some(peer)))?;
        // Otherwise a reader could sleep though the device is gone.
        tcp.set_nonblocking(true)
            .map_err(self::tcp("setting up", Some(peer)))?;
        Ok(Self {
            tcp,
            peer,
            device: device.clone(),
            deadline,
        })
    }

    fn left(&self, what: &'static str) -> Result<Duration> {
        match self.deadline.left() {
            Duration::ZERO => Err(self.deadline.timeout(what)),
            left => Ok(left),
        }
    }

    /// Waits until `tcp` is ready for `flags`, or a signal comes.
    fn wait(&self, what: &'static str, flags: PollFlags) -> Result<()> {
        wait_beside(&self.device, &self.tcp, flags, self.left(what)?)
    }

    /// Takes what a call on `tcp` returned; 0 when it has to be repeated.
    fn taken(&self, what: &'static str, result: std::io::Result<usize>) -> Result<usize> {
        match result {
            Ok(0) => Err(tcp(what, Some(self.peer))(
                std::io::ErrorKind::UnexpectedEof.into(),
            )),
            Ok(n) => Ok(n),
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock => Ok(0),
                _ => Err(tcp(what, Some(self.peer))(error)),
            },
        }
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        const WHAT: &str = "sending to the peer";
        let bytes = message.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            self.wait(WHAT, PollFlags::POLLOUT)?;
            let result = self.tcp.write(rest);
            let n = self.taken(WHAT, result)?;
            rest = rest.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        const WHAT: &str = "waiting for the peer's message";
        while !buffer.is_empty() {
            self.wait(WHAT, PollFlags::POLLIN)?;
            let result = self.tcp.read(buffer);
            let n = self.taken(WHAT, result)?;
            buffer = std::mem::take(&mut buffer).get_mut(n..).unwrap_or_default();
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

    /// Refuses a peer with another kind of queue pair.
    fn check_transport<T: Transport>(&mut self, theirs: &Hello) -> Result<()> {
        if u32::from(theirs.transport) == T::QP_TYPE {
            return Ok(());
        }
        self.refuse(Refusal::Transport, Error::Refused(Refusal::Transport))
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

/// Tries the addresses one after the other. Each gets an equal share of the time that is left, since
/// one that does not answer would else take all of it. Returns the last error.
fn first_of<T>(
    addrs: &[SocketAddr],
    deadline: &Deadline,
    connect: impl Fn(&SocketAddr, Duration) -> std::io::Result<T>,
) -> std::result::Result<(SocketAddr, T), Option<(SocketAddr, std::io::Error)>> {
    let mut last = None;
    for (addr, others) in addrs.iter().zip((0..addrs.len() as u32).rev()) {
        let share = deadline.left() / (others + 1);
        if share.is_zero() {
            break;
        }
        match connect(addr, share) {
            Ok(connected) => return Ok((*addr, connected)),
            Err(error) => last = Some((*addr, error)),
        }
    }
    Err(last)
}

/// Connects to the first address that takes it.
fn dial(
    device: &Arc<DeviceInner>,
    addr: impl ToSocketAddrs,
    options: &TcpOptions,
) -> Result<Stream> {
    const WHAT: &str = "connecting to";
    let deadline = Deadline::after(options.timeout);
    let addrs = resolve(addr)?;
    let mut last = None;
    loop {
        match first_of(&addrs, &deadline, TcpStream::connect_timeout) {
            Ok((addr, tcp)) => return Stream::new(tcp, addr, device, deadline),
            Err(error) => last = error.or(last),
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
    /// The exchange has no authentication: whoever can listen learns the keys of the grants. Use it
    /// in trusted networks only.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`] if nobody listens there or the connection breaks, [`Error::Timeout`] if it
    /// takes longer than [`EXCHANGE_TIMEOUT`], [`Error::Wire`] if the peer is another kind of
    /// program, [`Error::Refused`] if it does not want to; as [`Self::connect`]. The queue pair can
    /// be tried again.
    pub fn connect_tcp(
        self,
        addr: impl ToSocketAddrs,
        grants: &[&Grant],
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
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
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        self.agreed(|qp| {
            let hello = hello::<T>(qp.endpoint(), grants)?;
            let mut stream = dial(qp.device_inner(), addr, &options)?;
            stream.send(&hello)?;
            let theirs = stream.receive_hello()?;
            stream.check_transport::<T>(&theirs)?;
            let end = &theirs.endpoint;
            let ready = qp
                .ready_to_receive(end)
                .and_then(|()| qp.ready_to_send(end));
            ready.or_else(|error| stream.refuse(Refusal::Setup, error))?;
            stream.send(&Message::Ready)?;
            stream.receive_ready()?;
            Ok((stream, theirs))
        })
    }

    /// Waits at `addr` for one peer that connects, tells it of `grants`, and connects. When this
    /// returns, both sides can send. [`Listener`] serves many peers.
    ///
    /// The exchange has no authentication: see [`Self::connect_tcp`].
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if nobody comes within [`ACCEPT_TIMEOUT`]; as [`Listener::bind`] and
    /// [`Incoming::accept`].
    pub fn accept_tcp(
        self,
        addr: impl ToSocketAddrs,
        grants: &[&Grant],
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        match Listener::new(self.device_inner(), addr).and_then(|it| it.accept(ACCEPT_TIMEOUT)) {
            Ok(incoming) => incoming.accept(self, grants),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }

    /// Runs an exchange after which it is connected.
    fn agreed(
        self,
        exchange: impl FnOnce(&Self) -> Result<(Stream, Hello)>,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        match exchange(&self) {
            Ok((stream, theirs)) => Ok((self.into_qp(theirs.endpoint), peer(stream, &theirs))),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }
}

/// Takes connections of many peers.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    device: Arc<DeviceInner>,
}

impl Listener {
    /// Listens at `addr` for peers that want to reach `device`. Port 0 takes any that is free;
    /// [`Self::local_addr`] tells which.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn bind(device: &Device, addr: impl ToSocketAddrs) -> Result<Self> {
        Self::new(device.inner(), addr)
    }

    fn new(device: &Arc<DeviceInner>, addr: impl ToSocketAddrs) -> Result<Self> {
        let addrs = resolve(addr)?;
        let failed = tcp("listening at", addrs.first().copied());
        let listener = TcpListener::bind(addrs.as_slice()).map_err(&failed)?;
        // Somebody who is gone again before it is accepted is not to be waited for.
        listener.set_nonblocking(true).map_err(&failed)?;
        Ok(Self {
            tcp: listener,
            device: device.clone(),
        })
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
    /// [`Error::Timeout`], [`Error::Tcp`]; [`Error::DeviceGone`] as soon as the device is removed.
    pub fn accept(&self, timeout: Duration) -> Result<Incoming> {
        const WHAT: &str = "waiting for a peer to connect";
        let deadline = Deadline::after(timeout);
        loop {
            match self.tcp.accept() {
                Ok((tcp, addr)) => {
                    return Ok(Incoming {
                        tcp,
                        addr,
                        device: self.device.clone(),
                    });
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
            wait_beside(&self.device, &self.tcp, PollFlags::POLLIN, left)?;
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
    device: Arc<DeviceInner>,
}

impl Incoming {
    /// Where it came from.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the TCP connection, for a protocol of the caller's own in place of [`Self::accept`].
    /// Calls on it block.
    pub fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    /// Connects `qp` to it, telling it of `grants`. When this returns, both sides can send.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it takes longer than [`EXCHANGE_TIMEOUT`], [`Error::Wire`] if the peer
    /// is another kind of program, [`Error::Refused`] if the two do not fit; [`Error::Tcp`]; as
    /// [`PreparedQp::connect`]. The peer was told, and the queue pair can be tried again.
    pub fn accept<T: Connected>(
        self,
        qp: PreparedQp<T>,
        grants: &[&Grant],
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
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
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        qp.agreed(|qp| {
            let hello = hello::<T>(qp.endpoint(), grants)?;
            let mut stream =
                Stream::new(self.tcp, self.addr, &self.device, Deadline::after(timeout))?;
            let theirs = match stream.receive_hello() {
                Err(error @ Error::Wire(_)) => return stream.refuse(Refusal::Protocol, error),
                hello => hello?,
            };
            stream.check_transport::<T>(&theirs)?;
            if let Err(error) = qp.ready_to_receive(&theirs.endpoint) {
                return stream.refuse(Refusal::Setup, error);
            }
            stream.send(&hello)?;
            stream.receive_ready()?;
            if let Err(error) = qp.ready_to_send(&theirs.endpoint) {
                return stream.refuse(Refusal::Setup, error);
            }
            stream.send(&Message::Ready)?;
            Ok((stream, theirs))
        })
    }

    /// Tells it that there will be no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`], [`Error::Timeout`]: then it was not told, but hung up on.
    pub fn refuse(self, reason: Refusal) -> Result<()> {
        let deadline = Deadline::after(Duration::from_secs(1));
        let mut stream = Stream::new(self.tcp, self.addr, &self.device, deadline)?;
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
        Peer {
            addr: tcp.peer_addr().unwrap(),
            endpoint: Endpoint::new(1, 0, Gid([0; 16]), Mtu::B1024),
            grants: Vec::new(),
            tcp: Arc::new(tcp),
        }
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

    #[test]
    fn a_silent_address_leaves_time_for_the_others() {
        let addrs = [1, 2, 3].map(|n| SocketAddr::from(([127, 0, 0, n], 7)));
        let deadline = Deadline::after(EXCHANGE_TIMEOUT);
        // Each uses all of the time that it gets, but for the last one.
        let spent = std::cell::Cell::new(Duration::ZERO);
        let connect = |addr: &SocketAddr, share: Duration| {
            spent.set(spent.get() + share);
            match addr == &addrs[2] {
                true => Ok(share),
                false => Err(std::io::ErrorKind::TimedOut.into()),
            }
        };
        let (addr, share) = first_of(&addrs[1..], &deadline, connect).unwrap();
        assert_eq!(addr, addrs[2]);
        assert!(spent.get() - share <= EXCHANGE_TIMEOUT / 2, "{spent:?}");
        let (addr, error) = first_of(&addrs[..2], &deadline, connect)
            .unwrap_err()
            .unwrap();
        assert_eq!(
            (addr, error.kind()),
            (addrs[1], std::io::ErrorKind::TimedOut)
        );
    }
}
