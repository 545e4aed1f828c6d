// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connections by parameters that are exchanged over TCP. [`crate::wire`] has the messages.
//!
//! TCP carries nothing but the parameters, unprotected: whoever can reach the port can connect, and
//! whoever can listen learns the keys. Use it where the network is trusted.

use crate::deadline::Deadline;
use crate::device::{Device, DeviceInner};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::grant::Grant;
use crate::params::nth;
use crate::qp::{ConnectError, PreparedQp, Qp};
#[cfg(any(feature = "smol", feature = "tokio"))]
use crate::reactor::Watch;
use crate::refusal::{Refusal, WireError};
use crate::remote::RemoteSlice;
use crate::sys::{self, Process};
use crate::transport::{Connected, Transport};
use crate::wait::{self, FileWait, Who};
use crate::wire::{Header, Hello, Message, HEADER_LEN, MAX_BODY, MAX_GRANTS};
use nix::poll::PollFlags;
#[cfg(any(feature = "smol", feature = "tokio"))]
use nix::sys::epoll::EpollFlags;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
#[cfg(any(feature = "smol", feature = "tokio"))]
use std::task::{Context, Poll};
use std::time::Duration;

/// The time limit of an exchange, from the connection to the point where both sides are ready,
/// unless said otherwise: 10 seconds.
pub const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that [`PreparedQp::accept_tcp`] waits for a peer to connect: 60 seconds.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that the host of a peer may be silent before the connection to it has failed. It is
/// asked `PROBES` times whether it is there, from `IDLE` on, every `BETWEEN`.
const HOST_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(20);
const BETWEEN: Duration = Duration::from_secs(10);
const PROBES: u32 = 4;

/// The time between a refusal and the next attempt.
const RETRY: Duration = Duration::from_millis(50);

const ACCEPTING: &str = "waiting for a peer to connect";

/// The other side of a connection made by this module.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Peer {
    /// The TCP address.
    pub addr: SocketAddr,
    /// The peer's end of the connection.
    pub endpoint: Endpoint,
    /// The peer's grants with their rights, in the order in which it passed them.
    pub grants: Vec<RemoteSlice>,
    /// Open as long as one of the two sides has use for the other: see [`Self::wait_gone`].
    tcp: Arc<Connection>,
}

impl Peer {
    /// Returns the peer's grant number `index`, from 0.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if it granted fewer.
    pub fn grant(&self, index: usize) -> Result<RemoteSlice> {
        nth("the index of a grant of the peer", &self.grants, index)
    }

    /// Waits until the peer has dropped its own `Peer`, with all clones of it, its process has ended,
    /// or its host has not answered for a minute.
    ///
    /// A request that has arrived here need not be acknowledged yet, and a queue pair that goes
    /// acknowledges nothing any more: the peer's request then ends with `retry exceeded`, though it
    /// was carried out. So who received the last request waits for this before the queue pair is
    /// dropped. The queue pair lives on after this, and completions of what arrived before can still
    /// be taken: the TCP connection says nothing about the queue pair.
    ///
    /// A child that the peer has forked keeps the connection until it ends or executes another
    /// program, if the peer is killed. If the peer drops its `Peer`, this returns all the same.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], [`Error::Tcp`]; [`Error::Wire`] if the peer sends something instead.
    pub fn wait_gone(&self, timeout: Duration) -> Result<()> {
        const WHAT: &str = "waiting for the hang-up of the peer";
        let deadline = Deadline::after(timeout);
        while !self.is_gone()? {
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timeout_of(WHAT, Some(self.addr)));
            }
            self.wait_readable(left)?;
        }
        Ok(())
    }

    /// Returns true once [`Self::wait_gone`] would return at once. Does not wait.
    ///
    /// Requests of a process that was killed may still arrive after this. Drop the queue pair, or
    /// revoke the grants, before somebody else gets its work: none arrives after that.
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
        match (&self.tcp.0).read(&mut [0]) {
            Ok(0) => Ok(true),
            Ok(_) => Err(WireError::OutOfTurn.into()),
            Err(error) => match error.kind() {
                // Its host does not know the connection any more, does not answer, or cannot be reached.
                std::io::ErrorKind::ConnectionReset
                | std::io::ErrorKind::TimedOut
                | std::io::ErrorKind::HostUnreachable
                | std::io::ErrorKind::NetworkUnreachable => Ok(true),
                // Another thread has read what was there.
                std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock => Ok(false),
                _ => Err(tcp("reading from the peer", Some(self.addr))(error)),
            },
        }
    }

    /// Waits as [`Self::wait_gone`], in a task and without a time limit. Needs the feature `tokio`
    /// or `smol`.
    ///
    /// It is cancel-safe.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn gone(&self) -> Result<()> {
        let watch = Watch::new()?;
        watch.add(self, EpollFlags::EPOLLIN)?;
        watch.until(|| Ok(self.is_gone()?.then_some(()))).await
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

/// A TCP connection that ends with this value, although a forked child has a copy of its descriptor.
#[derive(Debug)]
struct Connection(TcpStream, Process);

impl Connection {
    fn new(tcp: TcpStream) -> Result<Self> {
        let owner = Process::this().map_err(|errno| Error::sys("mmap", errno))?;
        Ok(Self(tcp, owner))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a child, the connection is the parent's.
        if self.1.is_this() {
            let _ = self.0.shutdown(Shutdown::Both);
        }
    }
}

/// Has the kernel end the connection when the other host has vanished: see tcp(7). That host would
/// not say so itself.
fn watch_host(tcp: &TcpStream) -> std::io::Result<()> {
    let socket = SockRef::from(tcp);
    let keepalive = TcpKeepalive::new()
        .with_time(IDLE)
        .with_interval(BETWEEN)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    // The limit is for sent data, and for the last probe.
    socket.set_tcp_user_timeout(Some(HOST_TIMEOUT))
}

/// A TCP connection on which everything has to be done by one deadline, and while the device lives.
struct Stream {
    tcp: Connection,
    peer: SocketAddr,
    wait: FileWait,
    deadline: Deadline,
}

impl Stream {
    fn new(
        tcp: TcpStream,
        peer: SocketAddr,
        device: &Arc<DeviceInner>,
        deadline: Deadline,
        who: Who,
    ) -> Result<Self> {
        // Each message is waited for.
        tcp.set_nodelay(true)
            .map_err(self::tcp("setting up", Some(peer)))?;
        // Otherwise a reader could sleep though the device is gone.
        tcp.set_nonblocking(true)
            .map_err(self::tcp("setting up", Some(peer)))?;
        watch_host(&tcp).map_err(self::tcp("setting up", Some(peer)))?;
        let tcp = Connection::new(tcp)?;
        Ok(Self {
            wait: FileWait::new(device, who, &tcp)?,
            tcp,
            peer,
            deadline,
        })
    }

    /// Waits until what was not ready for `flags` may be so.
    async fn wait(&mut self, what: &'static str, flags: PollFlags) -> Result<()> {
        match self.deadline.left() {
            Duration::ZERO => Err(self.deadline.timeout_of(what, Some(self.peer))),
            left => self.wait.wait(&self.tcp, flags, left).await,
        }
    }

    /// Takes what a call on `tcp` returned; 0 when it has to be repeated after a wait for `flags`.
    async fn taken(
        &mut self,
        what: &'static str,
        flags: PollFlags,
        result: std::io::Result<usize>,
    ) -> Result<usize> {
        match result {
            Ok(0) => Err(tcp(what, Some(self.peer))(
                std::io::ErrorKind::UnexpectedEof.into(),
            )),
            Ok(n) => Ok(n),
            Err(error) => match error.kind() {
                std::io::ErrorKind::Interrupted => Ok(0),
                std::io::ErrorKind::WouldBlock => self.wait(what, flags).await.map(|()| 0),
                _ => Err(tcp(what, Some(self.peer))(error)),
            },
        }
    }

    async fn send(&mut self, message: &Message) -> Result<()> {
        let bytes = message.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let result = self.tcp.0.write(rest);
            let n = self.taken("sending to the peer", PollFlags::POLLOUT, result);
            rest = rest.get(n.await?..).unwrap_or_default();
        }
        Ok(())
    }

    async fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let result = self.tcp.0.read(buffer);
            let n = self.taken(
                "waiting for a message of the peer",
                PollFlags::POLLIN,
                result,
            );
            let n = n.await?;
            buffer = std::mem::take(&mut buffer).get_mut(n..).unwrap_or_default();
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<Message> {
        let mut header = [0; HEADER_LEN];
        self.fill(&mut header).await?;
        let header = Header::decode(&header)?;
        let mut body = [0; MAX_BODY];
        // The header was checked: it fits.
        let body = body.get_mut(..header.body_len()).unwrap_or_default();
        self.fill(body).await?;
        Ok(header.decode_body(body)?)
    }

    async fn receive_hello(&mut self) -> Result<Hello> {
        match self.receive().await? {
            Message::Hello(hello) => Ok(hello),
            Message::Refusal(reason) => Err(Error::Refused(reason)),
            Message::Ready => Err(WireError::OutOfTurn.into()),
        }
    }

    async fn receive_ready(&mut self) -> Result<()> {
        match self.receive().await? {
            Message::Ready => Ok(()),
            Message::Refusal(reason) => Err(Error::Refused(reason)),
            Message::Hello(_) => Err(WireError::OutOfTurn.into()),
        }
    }

    /// Refuses a peer with another kind of queue pair.
    async fn check_transport<T: Transport>(&mut self, theirs: &Hello) -> Result<()> {
        if theirs.transport == T::TYPE {
            return Ok(());
        }
        let error = Error::Refused(Refusal::Transport);
        self.refuse(Refusal::Transport, error).await
    }

    /// Tells the peer, as far as it listens, that it came to nothing, and why here.
    async fn refuse<T>(&mut self, reason: Refusal, error: Error) -> Result<T> {
        let _ = self.send(&Message::Refusal(reason)).await;
        Err(error)
    }

    /// Takes `qp` to the state Rtr, towards the end that the peer told.
    async fn ready_to_receive<T: Connected>(
        &mut self,
        who: Who,
        qp: &PreparedQp<T>,
        end: &Endpoint,
    ) -> Result<()> {
        let over = async {
            loop {
                let what = "resolving the address of the peer";
                if let Err(error) = self.wait(what, PollFlags::empty()).await {
                    return error;
                }
            }
        };
        qp.ready_to_receive(who, end, over).await
    }

    /// Tells the peer why the queue pair could not be set up, if it could not.
    async fn set_up(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.refuse(Refusal::Setup, error).await,
        }
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
        transport: T::TYPE,
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

/// Options of [`PreparedQp::connect_tcp_with`].
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
    /// Returns options with a time limit of [`EXCHANGE_TIMEOUT`], and the first refusal fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of everything together. The default is [`EXCHANGE_TIMEOUT`]. The kernel
    /// may exceed it by some seconds in a thread, while it resolves the GID that the peer told.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Retries while the peer refuses the TCP connection, until the timeout has passed. Of a peer with
    /// several addresses, one that refuses is enough.
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

/// Returns the connection of a socket whose attempt to connect is over.
fn connected(socket: Socket) -> std::io::Result<TcpStream> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let tcp = TcpStream::from(socket);
    // TCP connects a socket with itself when the kernel gave it the local port that it connects to.
    let local = tcp.local_addr()?;
    if tcp.peer_addr().is_ok_and(|peer| peer == local) {
        return Err(std::io::Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    Ok(tcp)
}

/// Connects to `addr` within `share`.
async fn connect(
    device: &Arc<DeviceInner>,
    who: Who,
    addr: SocketAddr,
    share: Duration,
) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&addr.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let deadline = Deadline::after(share);
    let mut wait = FileWait::new(device, who, &socket)?;
    loop {
        if sys::wait_for(socket.as_fd(), PollFlags::POLLOUT, Duration::ZERO)? {
            return connected(socket);
        }
        match deadline.left() {
            Duration::ZERO => return Err(std::io::ErrorKind::TimedOut.into()),
            left => wait.wait(&socket, PollFlags::POLLOUT, left).await?,
        }
    }
}

fn is_refusal(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionRefused
}

/// Connects to the first address that takes it. Each gets an equal share of the time that is left,
/// since one that does not answer would else take all of it.
async fn first_of(
    device: &Arc<DeviceInner>,
    who: Who,
    addrs: &[SocketAddr],
    deadline: &mut Deadline,
) -> std::result::Result<(SocketAddr, TcpStream), Option<(SocketAddr, std::io::Error)>> {
    let mut last = None;
    for (addr, others) in addrs.iter().zip((0..addrs.len() as u32).rev()) {
        let share = deadline.left() / (others + 1);
        if share.is_zero() {
            break;
        }
        match connect(device, who, *addr, share).await {
            Ok(tcp) => return Ok((*addr, tcp)),
            // A refusal tells more than that there is no way to another address: the host is there.
            // What this crate fails with, such as that the device is gone, counts in any case.
            Err(error)
                if last.as_ref().is_some_and(|(_, last)| is_refusal(last))
                    && !error.get_ref().is_some_and(|cause| cause.is::<Error>()) => {}
            Err(error) => last = Some((*addr, error)),
        }
    }
    Err(last)
}

/// Connects to one of the addresses.
async fn dial(
    device: &Arc<DeviceInner>,
    who: Who,
    addrs: &[SocketAddr],
    options: &TcpOptions,
) -> Result<Stream> {
    const WHAT: &str = "connecting to";
    let mut deadline = Deadline::after(options.timeout);
    let mut last = None;
    loop {
        match first_of(device, who, addrs, &mut deadline).await {
            Ok((addr, tcp)) => return Stream::new(tcp, addr, device, deadline, who),
            Err(error) => last = error.or(last),
        }
        let Some((addr, error)) = last.take() else {
            return Err(deadline.timeout_of(WHAT, addrs.first().copied()));
        };
        if is_refusal(&error) && options.retry_refused && !deadline.left().is_zero() {
            last = Some((addr, error));
            wait::pause(device, who, RETRY.min(deadline.left())).await?;
            continue;
        }
        return Err(match error.downcast::<Error>() {
            Ok(error) => error, // such as that the device is gone
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                deadline.timeout_of(WHAT, Some(addr))
            }
            Err(error) => tcp(WHAT, Some(addr))(error),
        });
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
        self.connect_tcp_with(addr, grants, TcpOptions::new())
    }

    /// Connects as [`Self::connect_tcp`], with options.
    pub fn connect_tcp_with(
        self,
        addr: impl ToSocketAddrs,
        grants: &[&Grant],
        options: TcpOptions,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        match resolve(addr) {
            Ok(addrs) => wait::run(self.connect_by(Who::Thread, &addrs, grants, options)),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }

    /// Connects as [`Self::connect_tcp_with`], in a task. Needs the feature `tokio` or `smol`.
    ///
    /// It takes addresses, since looking up names would block, and tries one after the other. A
    /// helper thread does the one step that may sleep: the kernel resolves the peer's address
    /// there.
    ///
    /// Dropping the future hangs up and drops the queue pair, which a helper thread may keep until
    /// the kernel has resolved the address.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn connect_tcp_async(
        self,
        addrs: &[SocketAddr],
        grants: &[&Grant],
        options: TcpOptions,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        self.connect_by(Who::Task, addrs, grants, options).await
    }

    async fn connect_by(
        self,
        who: Who,
        addrs: &[SocketAddr],
        grants: &[&Grant],
        options: TcpOptions,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        let agreed = self.agree(who, addrs, grants, options).await;
        self.agreed(agreed)
    }

    /// Runs the exchange at the side that connects.
    async fn agree(
        &self,
        who: Who,
        addrs: &[SocketAddr],
        grants: &[&Grant],
        options: TcpOptions,
    ) -> Result<(Stream, Hello)> {
        let hello = hello::<T>(self.endpoint(), grants)?;
        let mut stream = dial(self.device_inner(), who, addrs, &options).await?;
        stream.send(&hello).await?;
        let theirs = stream.receive_hello().await?;
        stream.check_transport::<T>(&theirs).await?;
        let end = &theirs.endpoint;
        let ready = stream.ready_to_receive(who, self, end).await;
        let ready = ready.and_then(|()| self.ready_to_send(end));
        stream.set_up(ready).await?;
        stream.send(&Message::Ready).await?;
        stream.receive_ready().await?;
        Ok((stream, theirs))
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

    /// Ends an exchange.
    fn agreed(self, exchange: Result<(Stream, Hello)>) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        match exchange {
            Ok((stream, theirs)) => Ok((self.into_qp(theirs.endpoint), peer(stream, &theirs))),
            Err(error) => Err(ConnectError::new(error, self)),
        }
    }
}

/// Takes connections of many peers.
///
/// The exchange has no authentication: whoever can reach the port can connect and learns the keys
/// of the grants, and so does whoever can listen on the network. Use it in trusted networks only.
///
/// An error of [`Incoming::accept`] concerns that peer alone, which may be no program of this kind:
/// a server goes on with the next.
///
/// ```no_run
/// use rust_ulp::error::Result;
/// use rust_ulp::qp::Rc;
/// use rust_ulp::tcp::{Listener, Peer};
/// use rust_ulp::{Device, Error, Qp};
/// use std::time::Duration;
///
/// fn serve(dev: &Device) -> Result<()> {
///     let (pd, cq) = (dev.alloc_pd()?, dev.create_cq(256)?);
///     let listener = Listener::bind(dev, "0.0.0.0:18515")?;
///     let mut clients: Vec<(Qp<Rc>, Peer)> = Vec::new();
///     loop {
///         match listener.accept(Duration::from_secs(1)) {
///             Ok(incoming) => {
///                 // Both fail for this client alone: `build` when there are too many.
///                 let qp = pd.qp_builder(&cq).build();
///                 match qp.and_then(|qp| Ok(incoming.accept(qp, &[])?)) {
///                     Ok(client) => clients.push(client),
///                     Err(error) => eprintln!("a client: {error}"),
///                 }
///             }
///             Err(Error::Timeout { .. }) => {
///                 clients.retain(|(_, peer)| !matches!(peer.is_gone(), Ok(true)));
///             }
///             Err(error) => return Err(error),
///         }
///     }
/// }
/// ```
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
        // A peer that is gone again before it is accepted is not waited for.
        listener.set_nonblocking(true).map_err(&failed)?;
        Ok(Self {
            tcp: listener,
            device: device.clone(),
        })
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.tcp
            .local_addr()
            .map_err(tcp("asking for the address", None))
    }

    /// Waits for a peer that connects. Its message is not waited for here: a slow peer
    /// delays nobody if [`Incoming::accept`] is called on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], [`Error::Tcp`]; [`Error::DeviceGone`] as soon as the device is removed.
    pub fn accept(&self, timeout: Duration) -> Result<Incoming> {
        let deadline = Deadline::after(timeout);
        let mut wait = FileWait::new(&self.device, Who::Thread, &self.tcp)?;
        loop {
            if let Some(incoming) = self.try_accept()? {
                return Ok(incoming);
            }
            let left = deadline.left();
            if left.is_zero() {
                return Err(deadline.timeout(ACCEPTING));
            }
            wait::run(wait.wait(&self.tcp, PollFlags::POLLIN, left))?;
        }
    }

    /// Takes somebody who connected, if there is one.
    fn try_accept(&self) -> Result<Option<Incoming>> {
        match self.tcp.accept() {
            Ok((tcp, addr)) => Ok(Some(Incoming {
                tcp,
                addr,
                device: self.device.clone(),
            })),
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock
                | std::io::ErrorKind::Interrupted
                | std::io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(tcp(ACCEPTING, None)(error)),
            },
        }
    }

    /// Returns those who connect, for a task. Needs the feature `tokio` or `smol`.
    ///
    /// # Errors
    ///
    /// [`Error::Sys`] if the runtime cannot take it.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub fn into_async(self) -> Result<AsyncListener> {
        let watch = Watch::device(&self.device)?;
        watch.add(&self.tcp, EpollFlags::EPOLLIN)?;
        Ok(AsyncListener {
            listener: self,
            watch,
            ended: false,
        })
    }
}

/// Takes connections of many peers in a task; from [`Listener::into_async`].
///
/// It is a [`Stream`](futures_core::Stream) of those who connect, which ends after the first error.
/// Waiting is cancel-safe: a future that is dropped has taken nobody.
#[cfg(any(feature = "smol", feature = "tokio"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
#[derive(Debug)]
pub struct AsyncListener {
    listener: Listener,
    watch: Watch,
    ended: bool,
}

#[cfg(any(feature = "smol", feature = "tokio"))]
impl AsyncListener {
    /// Returns the address at which it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits for a peer that connects.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`]; [`Error::DeviceGone`] as soon as the device is removed.
    pub async fn accept(&mut self) -> Result<Incoming> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Incoming>> {
        let listener = &self.listener;
        self.watch.poll_until(cx, || {
            // Nobody is taken for a device that is gone.
            let (file, tcp) = (listener.device.file(), listener.tcp.as_fd());
            let looked = file.wait_beside(tcp, PollFlags::POLLIN, Duration::ZERO);
            looked.map_err(|errno| Error::sys("poll", errno))?;
            listener.try_accept()
        })
    }
}

#[cfg(any(feature = "smol", feature = "tokio"))]
crate::asynchronous::stream!(AsyncListener, Incoming, poll_accept);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// A peer that connected to a [`Listener`]. Dropping it closes the connection.
#[derive(Debug)]
#[must_use = "the peer waits: accept or refuse"]
pub struct Incoming {
    tcp: TcpStream,
    addr: SocketAddr,
    device: Arc<DeviceInner>,
}

impl Incoming {
    /// Returns the peer's TCP address.
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

    /// Accepts as [`Self::accept`], with another time limit, which the kernel may exceed by some
    /// seconds while it resolves the GID that the peer told.
    pub fn accept_within<T: Connected>(
        self,
        qp: PreparedQp<T>,
        grants: &[&Grant],
        timeout: Duration,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        wait::run(self.accept_by(Who::Thread, qp, grants, timeout))
    }

    /// Accepts as [`Self::accept_within`], in a task. Needs the feature `tokio` or `smol`.
    ///
    /// Dropping the future hangs up and drops the queue pair, which a helper thread may keep until
    /// the kernel has resolved the peer's address.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`]; [`Error::Sys`] if no helper thread can be started.
    #[cfg(any(feature = "smol", feature = "tokio"))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "smol", feature = "tokio"))))]
    pub async fn accept_async<T: Connected>(
        self,
        qp: PreparedQp<T>,
        grants: &[&Grant],
        timeout: Duration,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        self.accept_by(Who::Task, qp, grants, timeout).await
    }

    async fn accept_by<T: Connected>(
        self,
        who: Who,
        qp: PreparedQp<T>,
        grants: &[&Grant],
        timeout: Duration,
    ) -> Result<(Qp<T>, Peer), ConnectError<T>> {
        let agreed = self.agree(who, &qp, grants, timeout).await;
        qp.agreed(agreed)
    }

    /// Runs the exchange at the side that accepts.
    async fn agree<T: Connected>(
        self,
        who: Who,
        qp: &PreparedQp<T>,
        grants: &[&Grant],
        timeout: Duration,
    ) -> Result<(Stream, Hello)> {
        let hello = hello::<T>(qp.endpoint(), grants)?;
        let deadline = Deadline::after(timeout);
        let mut stream = Stream::new(self.tcp, self.addr, &self.device, deadline, who)?;
        let theirs = match stream.receive_hello().await {
            Err(error @ Error::Wire(_)) => return stream.refuse(Refusal::Protocol, error).await,
            hello => hello?,
        };
        stream.check_transport::<T>(&theirs).await?;
        let ready = stream.ready_to_receive(who, qp, &theirs.endpoint).await;
        stream.set_up(ready).await?;
        stream.send(&hello).await?;
        stream.receive_ready().await?;
        let ready = qp.ready_to_send(&theirs.endpoint);
        stream.set_up(ready).await?;
        stream.send(&Message::Ready).await?;
        Ok((stream, theirs))
    }

    /// Refuses the peer and tells it the reason.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`], [`Error::Timeout`]: then it was not told, but hung up on.
    pub fn refuse(self, reason: Refusal) -> Result<()> {
        let deadline = Deadline::after(Duration::from_secs(1));
        let mut stream = Stream::new(self.tcp, self.addr, &self.device, deadline, Who::Thread)?;
        wait::run(async {
            // What it has to say is read first: data that nobody read would turn the end of the
            // connection into a reset, which can overtake the refusal.
            let _ = stream.receive_hello().await;
            stream.send(&Message::Refusal(reason)).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Mtu;
    use crate::gid::Gid;

    /// Returns one that has `tcp` to its peer.
    fn at(tcp: TcpStream) -> Peer {
        Peer {
            addr: tcp.peer_addr().unwrap(),
            endpoint: Endpoint::new(1, 0, Gid([0; 16]), Mtu::B1024),
            grants: Vec::new(),
            tcp: Arc::new(Connection::new(tcp).unwrap()),
        }
    }

    fn pair() -> (Peer, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (at(listener.accept().unwrap().0), there)
    }

    #[test]
    fn a_socket_that_is_connected_with_itself_was_refused() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        socket.bind(&any.into()).unwrap();
        socket.connect(&socket.local_addr().unwrap()).unwrap();
        assert!(is_refusal(&connected(socket).unwrap_err()));

        let listener = TcpListener::bind(any).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let addr = listener.local_addr().unwrap();
        socket.connect(&addr.into()).unwrap();
        assert_eq!(connected(socket).unwrap().peer_addr().unwrap(), addr);
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
    fn a_peer_is_gone_although_a_child_has_a_copy_of_its_connection() {
        let (here, there) = pair();
        let mut there = Some(at(there));
        // The child drops a copy.
        assert!(sys::holds_in_child(|| {
            drop(there.take());
            true
        }));
        assert!(!here.is_gone().unwrap());
        assert!(there.is_some());

        let (here, there) = pair();
        // The copy of a child that lives on.
        let copy = there.try_clone().unwrap();
        drop(at(there));
        here.wait_gone(EXCHANGE_TIMEOUT).unwrap();
        drop(copy);
    }

    #[test]
    fn a_peer_whose_host_does_not_answer_any_more_is_gone() {
        let (here, there) = pair();
        here.tcp.0.set_nonblocking(true).unwrap();
        // The peer takes nothing; its host answers, but has no room, which ends in the same error.
        while (&here.tcp.0).write(&[0; 65536]).is_ok() {}
        assert!(!here.is_gone().unwrap());
        let soon = Some(Duration::from_millis(1));
        SockRef::from(&here).set_tcp_user_timeout(soon).unwrap();
        assert!(here.wait_readable(EXCHANGE_TIMEOUT).unwrap());
        let is_gone = here.is_gone().unwrap();
        assert!(is_gone && here.is_gone().unwrap());
        here.wait_gone(EXCHANGE_TIMEOUT).unwrap();
        drop(there);
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
