// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server: memory, and who may reach it. No get, put or delete passes through here; what does
//! is who comes, who goes, and whose locks are to be given back then.

use crate::control::{Control, FromClient, FromServer, Segment, MAX_SEGMENTS, VERSION};
use crate::error::{Error, Result};
use crate::layout::{Geometry, Lock, MAX_MEMORY};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use rand::{rngs::SmallRng, Rng};
use rust_ulp::{
    Access, Buffer, CompareSwap, Cq, Device, Grant, GrantOptions, Listener, PageSize, Pd, Qp, Rc,
    RemoteSlice,
};
use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a client may take to say who it is, in all.
const HELLO: Duration = Duration::from_secs(30);
/// Seconds after which a client's host that is silent is asked whether it is there, and between the
/// questions; after so many of them without an answer it is gone.
const SILENT: u32 = 60;
const BETWEEN_PROBES: u32 = 10;
const PROBES: u32 = 6;
/// How often a server looks whether it is to stop.
const TICK: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these protect is never half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client: the queue pair over which it reaches the memory, and the connection whose end is its
/// end.
#[derive(Debug)]
struct Session {
    // Dropped first, which takes it down: after that nothing of this client lands any more.
    _qp: Qp<Rc>,
    tcp: TcpStream,
}

#[derive(Debug, Default)]
struct Sessions {
    all: HashMap<u32, Session>,
    last_id: u32,
}

/// What a server has done.
#[derive(Debug, Default)]
pub struct ServerStats {
    /// Clients that came.
    pub clients: AtomicU64,
    /// Clients that were cut off because others complained.
    pub cut_off: AtomicU64,
    /// Locks of clients that are gone.
    pub locks_freed: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    device: Device,
    pd: Pd,
    cq: Cq,
    memory: Buffer,
    grants: Vec<Grant>,
    table: Geometry,
    run: u64,
    sessions: Mutex<Sessions>,
    /// Held while a session ends, so that nobody gives back the locks of a client whose queue pair
    /// is still there. Taken before `sessions`.
    own: Mutex<Own>,
    stats: ServerStats,
}

/// A queue pair of the server's to itself: words that clients swap are swapped here by the device,
/// too. What the processor does atomically need not be so for the device.
#[derive(Debug)]
struct Own {
    qp: Qp<Rc>,
    _other: Qp<Rc>,
    cq: Cq,
    result: Buffer,
    memory: Vec<RemoteSlice>,
    segment: u64,
}

impl Own {
    fn new(device: &Device, pd: &Pd, grants: &[Grant], segment: u64) -> Result<Self> {
        let cq = device.create_cq(16)?;
        let (one, other) = (
            pd.create_qp::<Rc>(&cq).build()?,
            pd.create_qp::<Rc>(&cq).build()?,
        );
        let (here, there) = (one.endpoint(), other.endpoint());
        let (other, qp) = (other.connect(here)?, one.connect(there)?);
        let result = pd.alloc_buffer(8)?;
        Ok(Self {
            qp,
            _other: other,
            cq,
            result,
            memory: grants.iter().map(Grant::remote).collect(),
            segment,
        })
    }

    fn swap(&self, offset: u64, old: u64, new: u64) -> Result<bool> {
        let index = usize::try_from(offset / self.segment).unwrap_or(usize::MAX);
        let part = self.memory.get(index).ok_or(Error::Memory {
            len: offset,
            max_value: 0,
        })?;
        let at = offset % self.segment;
        let target = part.slice(at..at.saturating_add(8))?;
        self.qp
            .post(CompareSwap::new(target, old, new, self.result.slice(..)?))?;
        self.cq.wait(Duration::from_secs(60))?.check()?;
        Ok(self.result.load_u64(0, Ordering::Acquire)? == old)
    }
}

impl Shared {
    fn word(&self, offset: u64) -> Result<u64> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(u64::from_le(
            self.memory.load_u64(offset, Ordering::Acquire)?,
        ))
    }

    /// Takes a client's queue pair down, then gives its locks back. In this order: a write of its
    /// that is still on its way would else land in what is another's by then.
    fn end(&self, id: u32) -> Result<bool> {
        let mut own = lock(&self.own);
        let session = lock(&self.sessions).all.remove(&id);
        let was_there = session.is_some();
        if let Some(session) = session {
            let _ = session.tcp.shutdown(Shutdown::Both);
            drop(session);
        }
        for bucket in 0..self.table.buckets {
            self.give_back(&mut own, self.table.bucket(bucket), id)?;
        }
        Ok(was_there)
    }

    /// Frees the lock at `at` if it is of `id`, which is gone.
    fn give_back(&self, own: &mut Own, at: u64, id: u32) -> Result<()> {
        let held = || {
            self.word(at)
                .map(|word| Some(Lock(word)).filter(|lock| lock.owner() == id))
        };
        let Some(lock) = held()? else {
            return Ok(());
        };
        let free = |own: &Own| own.swap(at, lock.0, lock.freed().0);
        // Nobody else changes it: compare-and-swaps of others do not find it free.
        let mut freed = free(own);
        if freed.is_err() {
            // A queue pair has no second chance after an error, so another takes its place. The lock
            // may be free: it can be the answer that was lost.
            *own = Own::new(&self.device, &self.pd, &self.grants, own.segment)?;
            freed = match held()? {
                None => Ok(true),
                Some(_) => free(own),
            };
        }
        if freed? {
            self.stats.locks_freed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Cuts off the one who has had a lock all the time since a client looked first.
    fn stuck(&self, bucket: u32, seen: u64) -> Result<FromServer> {
        if bucket >= self.table.buckets || Lock(seen).owner() == 0 {
            return Ok(FromServer::Refused("there is no such lock".to_owned()));
        }
        if self.word(self.table.bucket(bucket))? == seen && self.end(Lock(seen).owner())? {
            self.stats.cut_off.fetch_add(1, Ordering::Relaxed);
        }
        Ok(FromServer::Freed)
    }

    /// Returns the number of the session that has begun, of which the client does not know yet.
    fn welcome(&self, control: &mut Control) -> std::io::Result<Option<(u32, FromServer)>> {
        let refuse = |control: &mut Control, what: String| {
            control.send(&FromServer::Refused(what)).map(|()| None)
        };
        let end = match control.receive_within(HELLO)? {
            FromClient::Hello {
                version: VERSION,
                end,
            } => end,
            FromClient::Hello { version, .. } => {
                return refuse(
                    control,
                    format!("it speaks version {VERSION}, this client {version}"),
                );
            }
            FromClient::Stuck { .. } => return refuse(control, "nobody said hello".to_owned()),
        };
        let Some(end) = end.endpoint() else {
            return refuse(
                control,
                "this client's end of the connection makes no sense".to_owned(),
            );
        };
        let connected = || -> rust_ulp::Result<_> {
            let builder = self
                .pd
                .create_qp::<Rc>(&self.cq)
                .max_send_wr(1)
                .max_recv_wr(1);
            let qp = builder.build()?;
            let here = qp.endpoint();
            Ok((qp.connect(end)?, here))
        };
        let (qp, here) = match connected() {
            Ok(connected) => connected,
            Err(error) => return refuse(control, format!("no connection: {error}")),
        };
        let tcp = control.stream().try_clone()?;
        let mut sessions = lock(&self.sessions);
        // Two thousand million clients later; then those of today are gone.
        sessions.last_id = sessions.last_id.wrapping_add(1).max(1);
        let id = sessions.last_id;
        sessions.all.insert(id, Session { _qp: qp, tcp });
        drop(sessions);
        self.stats.clients.fetch_add(1, Ordering::Relaxed);
        let segment = |grant: &Grant| {
            let remote = grant.remote();
            Segment(remote.addr(), remote.len(), remote.rkey())
        };
        let welcome = FromServer::Welcome {
            id,
            run: self.run,
            end: here.into(),
            table: self.table,
            segments: self.grants.iter().map(segment).collect(),
        };
        Ok(Some((id, welcome)))
    }

    /// A client, until it goes.
    fn serve(&self, tcp: TcpStream) -> Result<()> {
        let io = |cause| Error::Unreachable {
            server: "a client".to_owned(),
            cause,
        };
        probe(&tcp).map_err(io)?;
        let mut control = Control::new(tcp).map_err(io)?;
        let Some((id, welcome)) = self.welcome(&mut control).map_err(io)? else {
            return Ok(());
        };
        // Whatever ends this, the session ends with it.
        let served = self.answer(&mut control, &welcome);
        self.end(id).and(served)
    }

    /// Answers a client until it or its host goes.
    fn answer(&self, control: &mut Control, welcome: &FromServer) -> Result<()> {
        let mut sent = control.send(welcome);
        while sent.is_ok() {
            let Ok(FromClient::Stuck { bucket, lock }) = control.receive() else {
                break;
            };
            sent = control.send(&self.stuck(bucket, lock)?);
        }
        Ok(())
    }
}

/// Has the kernel end the connection when the other host has vanished: see tcp(7).
fn probe(tcp: &TcpStream) -> std::io::Result<()> {
    setsockopt(tcp, sockopt::KeepAlive, &true)?;
    setsockopt(tcp, sockopt::TcpKeepIdle, &SILENT)?;
    setsockopt(tcp, sockopt::TcpKeepInterval, &BETWEEN_PROBES)?;
    setsockopt(tcp, sockopt::TcpKeepCount, &PROBES)?;
    Ok(())
}

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the longest value.
    pub max_value: u32,
    /// The device; the default one unless said.
    pub device: Option<String>,
}

/// A server. It ends when [`Self::run`] does.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
}

/// Returns the error of a listener.
fn unreachable(server: &str, error: rust_ulp::Error) -> Error {
    match error {
        rust_ulp::Error::Tcp { cause, .. } => Error::Unreachable {
            server: server.to_owned(),
            cause,
        },
        error => error.into(),
    }
}

/// Whether accept(2) fails with this only as long as others have what it needs.
fn is_for_now(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}

impl Server {
    /// Makes the table, and listens at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] for less or more memory than a table can have, [`Error::Unreachable`] if
    /// it cannot listen there, [`Error::Rdma`].
    pub fn new(addr: &str, options: &ServerOptions) -> Result<Self> {
        let too_much = Error::Memory {
            len: options.memory,
            max_value: options.max_value,
        };
        if options.memory > MAX_MEMORY {
            return Err(too_much);
        }
        let len = usize::try_from(options.memory).map_err(|_| too_much)?;
        let device = match &options.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        // As few keys as can be: 2 MiB pages, where there are so many in a row.
        let huge = pd.buffer(len).pages(PageSize::Huge).build();
        let memory = huge.or_else(|_| pd.buffer(len).build())?;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let grants = memory.grant_all(.., rights, GrantOptions::new())?;
        let remotes: Vec<RemoteSlice> = grants.iter().map(Grant::remote).collect();
        let segment = remotes
            .first()
            .map_or(0, |first| first.len().next_multiple_of(256));
        let alike = remotes
            .iter()
            .rev()
            .skip(1)
            .all(|remote| remote.len() == segment);
        if !alike || remotes.len() > MAX_SEGMENTS {
            return Err(Error::Memory {
                len: options.memory,
                max_value: options.max_value,
            });
        }
        let table = Geometry::fit(options.memory, segment, options.max_value)?;
        let listener = Listener::bind(&device, addr);
        let listener = listener.map_err(|error| unreachable(addr, error))?;
        let own = Own::new(&device, &pd, &grants, segment)?;
        Ok(Self {
            shared: Arc::new(Shared {
                device,
                pd,
                cq,
                memory,
                grants,
                table,
                run: rand::make_rng::<SmallRng>().next_u64(),
                sessions: Mutex::default(),
                own: Mutex::new(own),
                stats: ServerStats::default(),
            }),
            listener,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let addr = self.listener.local_addr();
        addr.map_err(|error| unreachable("this", error))
    }

    /// The table.
    pub fn table(&self) -> &Geometry {
        &self.shared.table
    }

    /// How many keys its memory has.
    pub fn keys(&self) -> usize {
        self.shared.grants.len()
    }

    /// What it has done.
    pub fn stats(&self) -> &ServerStats {
        &self.shared.stats
    }

    /// Takes clients until `stop` is set. Each has a thread, which sleeps. Who comes while there is no
    /// descriptor or memory for another waits until there is.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if it cannot listen any more, [`Error::Rdma`] as soon as the device is
    /// removed.
    pub fn run(&self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let tcp = match self.listener.accept(TICK) {
                Ok(incoming) => incoming.into_tcp(),
                Err(rust_ulp::Error::Timeout { .. }) => continue,
                Err(rust_ulp::Error::Tcp { cause, .. }) if is_for_now(&cause) => {
                    std::thread::sleep(TICK);
                    continue;
                }
                Err(error) => return Err(unreachable("this", error)),
            };
            let shared = self.shared.clone();
            let _ = tcp.set_nonblocking(false);
            // One that cannot be served goes without an answer.
            let name = std::thread::Builder::new().name("kv client".to_owned());
            let _ = name.spawn(move || shared.serve(tcp));
        }
        Ok(())
    }

    /// Ends the queue pair with which the server gives locks back, as an error of the network does.
    ///
    /// # Errors
    ///
    /// [`Error::Rdma`].
    #[cfg(feature = "test-hooks")]
    pub fn break_own(&self) -> Result<()> {
        let own = lock(&self.shared.own);
        own.qp
            .modify(rust_ulp::QpAttr::to(rust_ulp::QpState::Err))?;
        Ok(())
    }

    /// Overwrites all records, or everything, with random bytes until `stop` is set, as a hostile
    /// server does.
    ///
    /// # Errors
    ///
    /// [`Error::Rdma`].
    #[cfg(feature = "test-hooks")]
    pub fn scribble(&self, everything: bool, stop: &AtomicBool) -> Result<()> {
        let mut random: SmallRng = rand::SeedableRng::seed_from_u64(1);
        let memory = &self.shared.memory;
        let index = self.shared.table.bucket(self.shared.table.buckets) as usize;
        let first = if everything { 0 } else { index };
        while !stop.load(Ordering::Relaxed) {
            for at in (first..memory.len() / 8 * 8).step_by(8) {
                memory.store_u64(at, random.next_u64(), Ordering::Relaxed)?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}
