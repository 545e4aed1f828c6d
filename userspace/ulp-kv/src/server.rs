// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server: memory, and who may reach it. No get, put or delete passes through here; what does
//! is who comes, who goes, and whose locks are to be given back then.

use crate::control::{Control, FromClient, FromServer, Segment, MAX_SEGMENTS, VERSION};
use crate::error::{Error, Result};
use crate::layout::{Geometry, Lock, MAX_MEMORY};
use rand::{rngs::SmallRng, RngCore, SeedableRng};
use rust_ulp::{
    Access, Buffer, CompareSwap, Cq, Device, Grant, GrantOptions, PageSize, Pd, Qp, Rc, RemoteSlice,
};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a client may take to say who it is.
const HELLO: Duration = Duration::from_secs(30);

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
    pd: Pd,
    cq: Cq,
    memory: Buffer,
    grants: Vec<Grant>,
    table: Geometry,
    run: u64,
    sessions: Mutex<Sessions>,
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
    fn new(device: &Device, pd: &Pd, memory: Vec<RemoteSlice>, segment: u64) -> Result<Self> {
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
            memory,
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
        let session = lock(&self.sessions).all.remove(&id);
        let was_there = session.is_some();
        if let Some(session) = session {
            let _ = session.tcp.shutdown(Shutdown::Both);
            drop(session);
        }
        let own = lock(&self.own);
        for bucket in 0..self.table.buckets {
            let at = self.table.bucket(bucket);
            let word = Lock(self.word(at)?);
            // Nobody else changes it: compare-and-swaps of others do not find it free.
            if word.owner() == id && own.swap(at, word.0, word.freed().0)? {
                self.stats.locks_freed.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(was_there)
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

    fn welcome(&self, control: &mut Control) -> std::io::Result<Option<u32>> {
        let refuse = |control: &mut Control, what: String| {
            control.send(&FromServer::Refused(what)).map(|()| None)
        };
        let end = match control.receive()? {
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
        control.send(&FromServer::Welcome {
            id,
            run: self.run,
            end: here.into(),
            table: self.table,
            segments: self.grants.iter().map(segment).collect(),
        })?;
        Ok(Some(id))
    }

    /// A client, until it goes.
    fn serve(&self, tcp: TcpStream) -> Result<()> {
        let io = |cause| Error::Unreachable {
            server: "a client".to_owned(),
            cause,
        };
        tcp.set_read_timeout(Some(HELLO)).map_err(io)?;
        let mut control = Control::new(tcp).map_err(io)?;
        let Some(id) = self.welcome(&mut control).map_err(io)? else {
            return Ok(());
        };
        // Its end, or its host's, is the end of this; a host that vanished is noticed when others
        // complain.
        let _ = control.stream().set_read_timeout(None);
        while let Ok(FromClient::Stuck { bucket, lock }) = control.receive() {
            let answer = self.stuck(bucket, lock)?;
            if control.send(&answer).is_err() {
                break;
            }
        }
        self.end(id).map(|_| ())
    }
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
    listener: TcpListener,
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
        let huge = pd.buffer(len).pages(PageSize::Huge).alloc();
        let memory = huge.or_else(|_| pd.buffer(len).alloc())?;
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
        let listener = TcpListener::bind(addr).map_err(|cause| Error::Unreachable {
            server: addr.to_owned(),
            cause,
        })?;
        let _ = listener.set_nonblocking(true);
        let own = Own::new(&device, &pd, remotes, segment)?;
        Ok(Self {
            shared: Arc::new(Shared {
                pd,
                cq,
                memory,
                grants,
                table,
                run: SmallRng::from_os_rng().next_u64(),
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
        self.listener
            .local_addr()
            .map_err(|cause| Error::Unreachable {
                server: "this".to_owned(),
                cause,
            })
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

    /// Takes clients until `stop` is set. Each has a thread, which sleeps.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if it cannot listen any more.
    pub fn run(&self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            match self.listener.accept() {
                Ok((tcp, _)) => {
                    let shared = self.shared.clone();
                    let _ = tcp.set_nonblocking(false);
                    // One that cannot be served goes without an answer.
                    let name = std::thread::Builder::new().name("kv client".to_owned());
                    let _ = name.spawn(move || shared.serve(tcp));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(cause) => {
                    return Err(Error::Unreachable {
                        server: "this".to_owned(),
                        cause,
                    });
                }
            }
        }
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
        let mut random = SmallRng::seed_from_u64(1);
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
