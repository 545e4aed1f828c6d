// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server: its memory, and the clients that come and go. [`engine`](crate::engine) serves their
//! messages; gets that read its memory do not pass through here.

use crate::control::{
    is_proved, proof, Control, End, FromClient, FromServer, Members, Nonce, Segment, Welcome,
    MAX_MEMBERS, MAX_SEGMENTS, VERSION,
};
use crate::dump;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::layout::{Geometry, MAX_MEMORY};
use crate::replies::Replies;
use crate::service::Done;
use crate::table::{Table, LAST_VERSION};
use crate::wire::{message_len, MESSAGE, WINDOW};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{setsockopt, sockopt};
use rand::{rngs::SmallRng, Rng};
use rust_ulp::grant::GrantOptions;
use rust_ulp::memory::PageSize;
use rust_ulp::qp::{Rc, RnrTimer};
use rust_ulp::{Access, Buffer, Device, Grant, Pd, Qp, RemoteSlice};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long a client may take to say who it is, in all.
const HELLO: Duration = Duration::from_secs(30);
/// Seconds after which a client's host that is silent is asked whether it is there, and between the
/// questions; after so many of them without an answer it is gone.
const SILENT: u32 = 60;
const BETWEEN_PROBES: u32 = 10;
const PROBES: u32 = 6;
/// Sends of a session that the queue pair takes: more than are under way.
const SENDS: u32 = 64;
/// How often a server looks whether it is to stop.
pub const TICK: Duration = Duration::from_millis(100);
/// The epoch while keys move.
pub const MOVING: u64 = u64::MAX;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these protect is never half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client: its queue pair, and the connection whose end is its end.
#[derive(Debug)]
pub struct Session {
    /// Dropped first: after that nothing of this client is taken any more.
    pub qp: Qp<Rc>,
    /// The memory of the answers to its last [`WINDOW`] messages.
    pub answers: Buffer,
    /// The TCP connection.
    pub tcp: TcpStream,
    /// The client, which is the same on its next connection.
    pub client: u64,
}

impl Session {
    /// Ends the session: its thread then drops it.
    pub fn end(&self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
    }
}

#[derive(Debug, Default)]
pub struct Sessions {
    /// The sessions by the user data of their queue pairs.
    pub all: BTreeMap<u64, Session>,
    last: u64,
}

/// What a server has done.
#[derive(Debug, Default)]
pub struct ServerStats {
    /// Clients that connected.
    pub clients: AtomicU64,
    /// Requests that changed something, or were to.
    pub requests: AtomicU64,
    /// Gets that the server answered.
    pub gets: AtomicU64,
    /// Requests that came a second time, and were not carried out again.
    pub repeated: AtomicU64,
    /// Keys that were deleted because their time was over.
    pub expired: AtomicU64,
}

/// The members, and whether keys move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    pub members: Members,
    pub moving: bool,
}

impl Membership {
    /// Returns the epoch that requests must have.
    pub fn epoch(&self) -> u64 {
        match self.moving {
            true => MOVING,
            false => self.members.epoch,
        }
    }
}

/// The time in seconds since the epoch of Unix, on a clock that is never set.
#[derive(Debug)]
struct Clock {
    start: Instant,
    then: Duration,
}

impl Clock {
    fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            start: Instant::now(),
            then: since.unwrap_or_default(),
        }
    }

    fn now(&self) -> Duration {
        self.then + self.start.elapsed()
    }
}

/// What the threads of a server share.
#[derive(Debug)]
pub struct Shared {
    pub device: Device,
    pd: Pd,
    #[cfg(feature = "test-hooks")]
    memory: Buffer,
    grants: Vec<Grant>,
    geometry: Geometry,
    run: u64,
    clock: Clock,
    secret: Option<Vec<u8>>,
    pub sessions: Mutex<Sessions>,
    pub replies: Mutex<Replies>,
    /// Taken before [`Self::membership`].
    pub table: Mutex<Table<Buffer>>,
    pub membership: Mutex<Membership>,
    pub engine: Engine,
    pub stats: ServerStats,
    /// As the parameter of [`Server::cut_clients`].
    #[cfg(feature = "test-hooks")]
    cut_every: Option<u64>,
}

impl Shared {
    /// Counts what was done for a client.
    pub fn count(&self, done: &Done) {
        self.stats
            .requests
            .fetch_add(done.writes, Ordering::Relaxed);
        self.stats
            .repeated
            .fetch_add(done.repeated, Ordering::Relaxed);
        self.stats.gets.fetch_add(done.gets, Ordering::Relaxed);
        #[cfg(feature = "test-hooks")]
        self.cut(done.writes - done.repeated);
    }

    /// Cuts a client off if so many writes were carried out, `new` of them just now.
    #[cfg(feature = "test-hooks")]
    fn cut(&self, new: u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let done = count(&self.stats.requests) - count(&self.stats.repeated);
        if self
            .cut_every
            .is_none_or(|every| done / every == (done - new) / every)
        {
            return;
        }
        let sessions = lock(&self.sessions);
        if let Some((_, session)) = sessions.all.first_key_value() {
            let error = rust_ulp::qp::QpAttr::to(rust_ulp::qp::QpState::Err);
            let _ = session.qp.modify(error);
            session.end();
        }
    }

    /// Returns the second since the epoch of Unix.
    pub fn now(&self) -> u32 {
        u32::try_from(self.clock.now().as_secs()).unwrap_or(u32::MAX)
    }

    /// Connects a client. Returns the number of the session that has begun, of which the client does
    /// not know yet.
    fn welcome(&self, control: &mut Control) -> std::io::Result<Option<(u64, FromServer)>> {
        let refuse = |control: &mut Control, what: String| {
            control.send(&FromServer::Refused(what)).map(|()| None)
        };
        let mut random = rand::make_rng::<SmallRng>();
        let nonce: Nonce = [random.next_u64(), random.next_u64()];
        control.send(&FromServer::Challenge {
            version: VERSION,
            nonce,
        })?;
        let (client, nonces, end, proved) = match control.receive_within(HELLO)? {
            FromClient::Hello {
                version: VERSION,
                client,
                nonce: theirs,
                end,
                proof,
            } => (client, [theirs, nonce], end, proof),
            FromClient::Hello { version, .. } => {
                let what = format!("it speaks version {VERSION}, this client {version}");
                return refuse(control, what);
            }
            _ => return refuse(control, "nobody said hello".to_owned()),
        };
        let secret = self.secret.as_deref();
        if !is_proved(&proved, secret, "client", nonces, &end) {
            let what = "this client does not have the server's secret; name its --secret-file";
            return refuse(control, what.to_owned());
        }
        let Some(peer) = end.endpoint() else {
            let what = "this client's end of the connection makes no sense";
            return refuse(control, what.to_owned());
        };
        let number = {
            let mut sessions = lock(&self.sessions);
            sessions.last += 1;
            sessions.last
        };
        let connected = || -> rust_ulp::error::Result<_> {
            let qp = self
                .pd
                .qp_builder::<Rc>(self.engine.cq())
                .srq(self.engine.srq())
                .max_send_wr(SENDS)
                .user_data(number)
                .access(Access::REMOTE_READ)
                .min_rnr_timer(RnrTimer::at_least(Duration::from_micros(300)))
                .build()?;
            let here = qp.endpoint();
            let answers = self.pd.alloc_buffer(WINDOW as usize * MESSAGE)?;
            Ok((qp.connect(peer)?, answers, here))
        };
        let (qp, answers, here) = match connected() {
            Ok(connected) => connected,
            Err(error) => return refuse(control, format!("no connection: {error}")),
        };
        let tcp = control.stream().try_clone()?;
        let known = lock(&self.replies).connect(client);
        let session = Session {
            qp,
            answers,
            tcp,
            client,
        };
        lock(&self.sessions).all.insert(number, session);
        self.stats.clients.fetch_add(1, Ordering::Relaxed);
        let segment = |grant: &Grant| {
            let remote = grant.remote();
            Segment(remote.addr(), remote.len(), remote.rkey())
        };
        let here: End = here.into();
        let welcome = Welcome {
            run: self.run,
            known,
            window: WINDOW,
            // At most some MiB.
            request: message_len(self.geometry.max_value) as u32,
            answer: MESSAGE as u32,
            proof: proof(secret, "server", nonces, &here),
            end: here,
            geometry: self.geometry,
            segments: self.grants.iter().map(segment).collect(),
            members: lock(&self.membership).members.clone(),
        };
        Ok(Some((number, FromServer::Welcome(Box::new(welcome)))))
    }

    /// Serves a client until it goes.
    fn serve(&self, tcp: TcpStream) -> std::io::Result<()> {
        probe(&tcp)?;
        let mut control = Control::new(tcp)?;
        let Some((number, welcome)) = self.welcome(&mut control)? else {
            return Ok(());
        };
        // Whatever ends this, the session ends with it.
        let served = self.answer(&mut control, &welcome);
        let session = lock(&self.sessions).all.remove(&number);
        drop(session);
        served
    }

    /// Answers a client until it or its host goes.
    fn answer(&self, control: &mut Control, welcome: &FromServer) -> std::io::Result<()> {
        control.send(welcome)?;
        loop {
            let answer = match control.receive()? {
                FromClient::GetMembers => {
                    FromServer::Members(lock(&self.membership).members.clone())
                }
                FromClient::SetMembers {
                    members,
                    moving,
                    next_version,
                } => self.set_members(members, moving, next_version),
                FromClient::Hello { .. } => FromServer::Refused("it said hello before".to_owned()),
            };
            control.send(&answer)?;
        }
    }

    fn set_members(&self, members: Members, moving: bool, next_version: u64) -> FromServer {
        let count = members.names.len();
        let long = members.names.iter().any(|name| name.len() > MAX_NAME);
        if count == 0 || count > MAX_MEMBERS || long || members.epoch == MOVING {
            let what = format!(
                "a list of members has 1 to {MAX_MEMBERS} names of at most {MAX_NAME} bytes"
            );
            return FromServer::Refused(what);
        }
        if next_version >= LAST_VERSION {
            return FromServer::Refused(format!("versions end before {LAST_VERSION}"));
        }
        // No request is being carried out while this is locked.
        let mut table = lock(&self.table);
        let mut membership = lock(&self.membership);
        let current = &membership.members;
        if members.epoch < current.epoch
            || (members.epoch == current.epoch && members.names != current.names)
        {
            return FromServer::Refused(format!(
                "the list of members has the number {} already",
                membership.members.epoch
            ));
        }
        *membership = Membership { members, moving };
        table.skip_versions(next_version);
        match table.set_epoch(membership.epoch()) {
            Ok(()) => FromServer::Changed {
                next_version: table.next_version(),
            },
            Err(error) => FromServer::Refused(error.to_string()),
        }
    }
}

/// Bytes of the longest name of a member.
const MAX_NAME: usize = 200;

/// Has the kernel end the connection when the other host has vanished: see tcp(7).
fn probe(tcp: &TcpStream) -> std::io::Result<()> {
    setsockopt(tcp, sockopt::KeepAlive, &true)?;
    setsockopt(tcp, sockopt::TcpKeepIdle, &SILENT)?;
    setsockopt(tcp, sockopt::TcpKeepInterval, &BETWEEN_PROBES)?;
    setsockopt(tcp, sockopt::TcpKeepCount, &PROBES)?;
    Ok(())
}

/// How a server is to be.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Bytes of memory.
    pub memory: u64,
    /// Keys that there are slots for; 0 is one for every 512 bytes of memory.
    pub keys: u64,
    /// Bytes of the longest value.
    pub max_value: u32,
    /// The device; the default one unless said.
    pub device: Option<String>,
    /// What clients must know to connect.
    pub secret: Option<Vec<u8>>,
    /// The file that the contents are loaded from, and saved to at the end.
    pub file: Option<PathBuf>,
    /// How often the contents are saved besides.
    pub save_every: Option<Duration>,
}

/// A server. It ends when [`Self::run`] does.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    file: Option<PathBuf>,
    save_every: Option<Duration>,
}

/// Returns the error of a listener.
fn unreachable(server: &str, cause: std::io::Error) -> Error {
    Error::Unreachable {
        server: server.to_owned(),
        cause,
    }
}

/// Returns whether accept(2) fails with this only as long as others have what it needs.
fn is_for_now(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}

/// Returns whether accept(2) fails with this when nobody is there, or is there any more.
fn is_nobody(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

impl Server {
    /// Makes the table, with the contents of the file if there is one, and listens at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] for less or more memory than a table can have, [`Error::File`] if the file
    /// cannot be read, [`Error::Full`] if its contents do not fit, [`Error::Unreachable`] if it
    /// cannot listen there, [`Error::Rdma`].
    pub fn new(addr: &str, options: &ServerOptions) -> Result<Self> {
        let too_much = || Error::Memory {
            len: options.memory,
            max_value: options.max_value,
            buckets: 0,
        };
        if options.memory > MAX_MEMORY {
            return Err(too_much());
        }
        let len = usize::try_from(options.memory).map_err(|_| too_much())?;
        let device = match &options.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let pd = device.alloc_pd()?;
        // As few keys as can be: 2 MiB pages, where there are so many in a row.
        let huge = pd.buffer_builder(len).pages(PageSize::Huge).build();
        let memory = huge.or_else(|_| pd.buffer_builder(len).build())?;
        let grants = memory.grant_all(.., Access::REMOTE_READ, GrantOptions::new())?;
        let remotes: Vec<RemoteSlice> = grants.iter().map(Grant::remote).collect();
        let segment = remotes
            .first()
            .map_or(0, |first| first.len().next_multiple_of(256));
        let mut whole = remotes.iter().rev().skip(1);
        if !whole.all(|remote| remote.len() == segment) || remotes.len() > MAX_SEGMENTS {
            return Err(too_much());
        }
        let mut random = rand::make_rng::<SmallRng>();
        let keys = match options.keys {
            0 => options.memory / 512,
            keys => keys,
        };
        let (seed, run) = (random.next_u64(), random.next_u64());
        let geometry = Geometry::new(options.memory, segment, keys, options.max_value, seed)?;
        let clock = Clock::new();
        // Later than those of all earlier runs.
        let first = u64::try_from(clock.now().as_nanos()).unwrap_or(1);
        let mut table = Table::new(memory.clone(), geometry, first)?;
        let engine = Engine::new(&device, &pd, options.max_value)?;
        let mut membership = Membership::default();
        if let Some(path) = &options.file {
            let now = u32::try_from(clock.now().as_secs()).unwrap_or(u32::MAX);
            membership = dump::load(path, &mut table, now)?;
            table.set_epoch(membership.epoch())?;
        }
        let listener = TcpListener::bind(addr).and_then(|listener| {
            // A client that is gone again before it is accepted is not waited for.
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|cause| unreachable(addr, cause))?;
        Ok(Self {
            shared: Arc::new(Shared {
                device,
                pd,
                #[cfg(feature = "test-hooks")]
                memory,
                grants,
                geometry,
                run,
                clock,
                secret: options.secret.clone(),
                sessions: Mutex::default(),
                replies: Mutex::default(),
                table: Mutex::new(table),
                membership: Mutex::new(membership),
                engine,
                stats: ServerStats::default(),
                #[cfg(feature = "test-hooks")]
                cut_every: None,
            }),
            listener,
            file: options.file.clone(),
            save_every: options.save_every,
        })
    }

    /// Returns where it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let addr = self.listener.local_addr();
        addr.map_err(|error| unreachable("this", error))
    }

    /// Returns the sizes of the table.
    pub fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Returns the number of keys in the table, and the share of the memory that they take.
    pub fn contents(&self) -> (u64, f64) {
        let table = lock(&self.shared.table);
        (table.keys(), table.used())
    }

    /// Returns how many remote keys its memory has.
    pub fn remote_keys(&self) -> usize {
        self.shared.grants.len()
    }

    /// Returns what it has done.
    pub fn stats(&self) -> &ServerStats {
        &self.shared.stats
    }

    /// Serves clients until `stop` is set, then saves the contents if there is a file.
    ///
    /// Each client has a thread, which sleeps; one more carries out the writes. A client that comes
    /// while there is no descriptor or memory for another waits until there is.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if it cannot listen any more, [`Error::Rdma`] as soon as the device is
    /// removed, [`Error::File`] if the contents cannot be saved.
    pub fn run(&self, stop: &AtomicBool) -> Result<()> {
        let over = AtomicBool::new(false);
        let stopped = || stop.load(Ordering::Relaxed) || over.load(Ordering::Relaxed);
        let served = std::thread::scope(|scope| {
            let engine = scope.spawn(|| {
                let done = self.shared.engine.run(&self.shared, &stopped);
                over.store(true, Ordering::Relaxed);
                done
            });
            let saver = scope.spawn(|| self.save_until(&stopped));
            let accepted = self.accept(&stopped);
            over.store(true, Ordering::Relaxed);
            let failed = || Error::Refused {
                server: "this server".to_owned(),
                what: "one of its threads panicked; report that".to_owned(),
            };
            let saved = saver.join().unwrap_or_else(|_| Err(failed()));
            let done = engine.join().unwrap_or_else(|_| Err(failed()));
            accepted.and(done).and(saved)
        });
        served.and(self.save())
    }

    fn accept(&self, stopped: &dyn Fn() -> bool) -> Result<()> {
        let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
        while !stopped() {
            // Not a `rust_ulp::tcp::Listener`, whose wait each completion interrupts. The engine
            // notices when the device goes.
            let mut waits = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            let waited = poll(&mut waits, tick);
            let tcp = match self.listener.accept() {
                Ok((tcp, _)) => tcp,
                Err(cause) if waited.is_err() || is_for_now(&cause) => {
                    std::thread::sleep(TICK);
                    continue;
                }
                Err(cause) if is_nobody(&cause) => continue,
                Err(cause) => return Err(unreachable("this", cause)),
            };
            let shared = self.shared.clone();
            // One that cannot be served goes without an answer.
            let name = std::thread::Builder::new().name("kv client".to_owned());
            let _ = name.spawn(move || shared.serve(tcp));
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let table = lock(&self.shared.table);
        let membership = lock(&self.shared.membership).clone();
        dump::save(path, &table, &membership)
    }

    /// Saves the contents now and then.
    fn save_until(&self, stopped: &dyn Fn() -> bool) -> Result<()> {
        let Some(every) = self.save_every else {
            return Ok(());
        };
        let mut last = Instant::now();
        while !stopped() {
            std::thread::sleep(TICK);
            if last.elapsed() >= every {
                self.save()?;
                last = Instant::now();
            }
        }
        Ok(())
    }

    /// Makes the server cut the client off that has been connected for longest, as an error of the
    /// network does, after every `every` requests.
    #[cfg(feature = "test-hooks")]
    pub fn cut_clients(&mut self, every: u64) {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.cut_every = Some(every);
        }
    }

    /// Overwrites all records with random bytes until `stop` is set, as a hostile server does.
    ///
    /// # Errors
    ///
    /// [`Error::Rdma`].
    #[cfg(feature = "test-hooks")]
    pub fn scribble(&self, stop: &AtomicBool) -> Result<()> {
        let geometry = &self.shared.geometry;
        let first = geometry.bucket(geometry.buckets) as usize;
        while !stop.load(Ordering::Relaxed) {
            nonsense(&self.shared.memory, first)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Shows clients random bytes instead of its memory, as a hostile server does.
    ///
    /// # Errors
    ///
    /// [`Error::Rdma`].
    #[cfg(feature = "test-hooks")]
    pub fn show_nonsense(&mut self) -> Result<()> {
        let other = self.shared.pd.alloc_buffer(self.shared.memory.len())?;
        nonsense(&other, 0)?;
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.grants = other.grant_all(.., Access::REMOTE_READ, GrantOptions::new())?;
            shared.geometry.segment = shared
                .grants
                .first()
                .map_or(0, |first| first.remote().len().next_multiple_of(256));
        }
        Ok(())
    }
}

/// Overwrites memory from `first` on with random bytes.
#[cfg(feature = "test-hooks")]
fn nonsense(memory: &Buffer, first: usize) -> Result<()> {
    let mut random: SmallRng = rand::SeedableRng::seed_from_u64(1);
    for at in (first..memory.len() / 8 * 8).step_by(8) {
        memory.store_u64(at, random.next_u64(), Ordering::Relaxed)?;
    }
    Ok(())
}
