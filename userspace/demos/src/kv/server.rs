// SPDX-License-Identifier: MIT OR Apache-2.0

//! The server: its memory, the clients that come and go, and a thread that makes the changes that
//! clients send. Gets do not pass through here, nor do changes in the one-sided mode.

use crate::error::{Error, Result};
use crate::layout::{Geometry, Mode, MAX_MEMORY, NEXT};
use crate::table::{Memory, Table};
use crate::wire::{encode_answer, message_len, Change, ANSWER, WINDOW};
use rand::{rngs::SmallRng, Rng};
use rust_ulp::device::AtomicCap;
use rust_ulp::grant::GrantOptions;
use rust_ulp::memory::PageSize;
use rust_ulp::qp::{Rc, RnrTimer};
use rust_ulp::tcp::{Incoming, Listener, Peer};
use rust_ulp::wr::{Recv, Send};
use rust_ulp::{Access, Buffer, Completion, Cq, Device, Grant, Opcode, Pd, Qp, Srq};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often threads that wait look whether they are to stop, and whether clients are gone.
pub const TICK: Duration = Duration::from_millis(100);
/// How long a message may wait for the end of the exchange that made its connection.
const SOON: Duration = Duration::from_millis(1);
/// Bytes of all receives together, and how many there are.
const RECEIVE_BYTES: usize = 16 << 20;
const MIN_RECEIVES: usize = 64;
const MAX_RECEIVES: usize = 512;
/// Completions taken at a time, and entries of the completion queue.
const BATCH: usize = 256;
const ENTRIES: u32 = 1 << 14;

/// A client.
struct Session {
    // Dropped first: after that nothing of this client is carried out any more.
    qp: Qp<Rc>,
    /// The memory of the answers to its last [`WINDOW`] messages.
    answers: Buffer,
    peer: Peer,
}

/// The server's memory, which its own processor changes, and nobody else.
impl Memory for Buffer {
    fn read(&mut self, parts: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        let part = |(at, len): &(u64, usize)| Ok(self.to_vec(*at as usize..*at as usize + len)?);
        parts.iter().map(part).collect()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.write_at(at as usize, bytes)?)
    }

    fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64> {
        Ok(self.compare_exchange_u64(at as usize, old, new, Ordering::AcqRel)?)
    }

    fn add(&mut self, at: u64, n: u64) -> Result<u64> {
        Ok(self.fetch_add_u64(at as usize, n, Ordering::AcqRel)?)
    }
}

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of memory.
    pub memory: u64,
    /// Keys that there are slots for.
    pub keys: u64,
    /// Bytes of the longest value.
    pub max_value: u32,
    /// The device; the default one unless said.
    pub device: Option<String>,
    /// Who changes the memory.
    pub mode: Mode,
}

/// A server. It ends when [`Self::run`] does.
pub struct Server {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    receives: Buffer,
    lane: usize,
    memory: Buffer,
    grants: Vec<Grant>,
    geometry: Geometry,
    listener: Listener,
    /// The sessions by the user data of their queue pairs. One that is being made is [`None`].
    sessions: Mutex<HashMap<u64, Option<Session>>>,
    clients: AtomicU64,
    changes: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these protect is never half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Makes an empty table, and listens at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] for less or more memory than a table can have; [`Error::Rdma`].
    pub fn new(addr: &str, options: &Options) -> Result<Self> {
        let device = match &options.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let access = match options.mode {
            Mode::Message => Access::REMOTE_READ,
            Mode::OneSided if device.info().atomic_cap == AtomicCap::None => {
                let what = "one-sided changes on a device without atomics";
                return Err(rust_ulp::Error::Unsupported { what }.into());
            }
            Mode::OneSided => Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        let bad = || Error::Memory {
            len: options.memory,
            buckets: 0,
            max_value: options.max_value,
        };
        let len = usize::try_from(options.memory.min(MAX_MEMORY + 1)).map_err(|_| bad())?;
        if len as u64 > MAX_MEMORY || len == 0 {
            return Err(bad());
        }
        let pd = device.alloc_pd()?;
        // As few keys as can be: 2 MiB pages, where there are so many in a row.
        let huge = pd.buffer_builder(len).pages(PageSize::Huge).build();
        let memory = huge.or_else(|_| pd.buffer_builder(len).build())?;
        let grants = memory.grant_all(.., access, GrantOptions::new())?;
        let segment = grants.first().map_or(0, |grant| grant.remote().len());
        let mut random = rand::make_rng::<SmallRng>();
        let geometry = Geometry::new(
            options.memory,
            segment.next_multiple_of(4096),
            options.keys,
            options.max_value,
            random.next_u64(),
            options.mode,
        )?;
        for (at, word) in (0..).step_by(8).zip(geometry.encode()) {
            memory.store_u64(at, word, Ordering::Relaxed)?;
        }
        memory.store_u64(NEXT as usize, geometry.first_block(), Ordering::Release)?;
        let lane = message_len(options.max_value);
        let lanes = (RECEIVE_BYTES / lane).clamp(MIN_RECEIVES, MAX_RECEIVES);
        let lanes = lanes.min(device.info().max_srq_wr as usize).max(1);
        let cq = device.create_cq(ENTRIES.min(device.limits().max_cq_entries))?;
        let srq = pd.srq_builder(&cq).max_wr(lanes as u32).build()?;
        let server = Self {
            receives: pd.alloc_buffer(lanes * lane)?,
            listener: Listener::bind(&device, addr)?,
            pd,
            cq,
            srq,
            lane,
            memory,
            grants,
            geometry,
            sessions: Mutex::default(),
            clients: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        };
        for n in 0..lanes as u64 {
            server.receive(n)?;
        }
        Ok(server)
    }

    /// Says what it is, and where.
    pub fn describe(&self) -> Result<String> {
        let table = &self.geometry;
        Ok(format!(
            "{} bytes under {} keys: {} slots, values to {} bytes\nlistening at {}, until Ctrl-C",
            table.len,
            self.grants.len(),
            table.slots(),
            table.max_value,
            self.listener.local_addr()?
        ))
    }

    /// Says what it did.
    pub fn summary(&self) -> Result<String> {
        let used = self.memory.load_u64(NEXT as usize, Ordering::Acquire)?;
        Ok(format!(
            "{} clients, {} changes by messages; {:.1} % of the memory have been used",
            self.clients.load(Ordering::Relaxed),
            self.changes.load(Ordering::Relaxed),
            used.min(self.geometry.len) as f64 * 100.0 / self.geometry.len as f64
        ))
    }

    /// Fills all blocks with random bytes, again and again, as a hostile server might.
    pub fn scribble(&self, stop: &AtomicBool) -> Result<()> {
        let mut random = rand::make_rng::<SmallRng>();
        let first = self.geometry.first_block() as usize;
        while !stop.load(Ordering::Relaxed) {
            for at in (first..self.memory.len() / 8 * 8).step_by(8) {
                self.memory
                    .store_u64(at, random.next_u64(), Ordering::Relaxed)?;
            }
        }
        Ok(())
    }

    /// Serves clients until `stop`.
    ///
    /// # Errors
    ///
    /// [`Error::Rdma`], such as that the device is gone.
    pub fn run(&self, stop: &AtomicBool) -> Result<()> {
        let failed = AtomicBool::new(false);
        let stopped = || stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
        let run = |what: &dyn Fn() -> Result<()>| {
            let done = what();
            failed.store(true, Ordering::Relaxed);
            done
        };
        std::thread::scope(|scope| {
            let stopped = &stopped;
            let changes = scope.spawn(move || run(&|| self.make_changes(stopped)));
            let accepted = run(&|| {
                while !stopped() {
                    self.accept(scope)?;
                    self.reap();
                }
                Ok(())
            });
            let made = changes.join().unwrap_or(Ok(()));
            accepted.and(made)
        })
    }

    /// Waits a moment for a client, and connects it on a thread of its own.
    fn accept<'scope>(&'scope self, scope: &'scope std::thread::Scope<'scope, '_>) -> Result<()> {
        match self.listener.accept(TICK) {
            Ok(incoming) => {
                // One that does not say what it should is no matter of the server.
                let welcome = move || self.welcome(incoming).ok();
                // Without a thread for it, the client finds its connection closed.
                let spawned = std::thread::Builder::new().spawn_scoped(scope, welcome);
                if spawned.is_err() {
                    std::thread::sleep(TICK);
                }
                Ok(())
            }
            Err(rust_ulp::Error::Timeout { .. }) => Ok(()),
            Err(error) if error.is_retryable() => {
                std::thread::sleep(TICK);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Connects a client.
    fn welcome(&self, incoming: Incoming) -> Result<()> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        // Its first message may be here before the exchange is over.
        lock(&self.sessions).insert(number, None);
        let connected = || {
            let rights = self
                .grants
                .first()
                .map_or(Access::REMOTE_READ, Grant::access);
            let qp = self
                .pd
                .qp_builder::<Rc>(&self.cq)
                .srq(&self.srq)
                .max_send_wr(2 * WINDOW as u32)
                .user_data(number)
                .access(rights)
                .min_rnr_timer(RnrTimer::at_least(Duration::from_micros(300)))
                .build()?;
            let answers = self.pd.alloc_buffer(WINDOW * ANSWER)?;
            let grants: Vec<&Grant> = self.grants.iter().collect();
            let (qp, peer) = incoming
                .accept(qp, &grants)
                .map_err(rust_ulp::Error::from)?;
            Ok(Session { qp, answers, peer })
        };
        let session = connected();
        let mut sessions = lock(&self.sessions);
        match session {
            Ok(session) => drop(sessions.insert(number, Some(session))),
            Err(error) => {
                sessions.remove(&number);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the sessions of clients that are gone.
    fn reap(&self) {
        let is_gone = |session: &Session| !matches!(session.peer.is_gone(), Ok(false));
        let mut sessions = lock(&self.sessions);
        let gone = sessions
            .iter()
            .filter(|(_, session)| session.as_ref().is_some_and(is_gone));
        let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
        let gone: Vec<_> = gone.iter().map(|number| sessions.remove(number)).collect();
        drop(sessions);
        // What is dropped waits for its requests.
        drop(gone);
    }

    // --- changes

    fn receive(&self, n: u64) -> Result<()> {
        let start = n as usize * self.lane;
        let memory = self.receives.slice(start..start + self.lane)?;
        Ok(self.srq.post_recv(Recv::new(memory).wr_id(n))?)
    }

    /// Makes the changes that clients send, one after the other.
    fn make_changes(&self, stopped: &dyn Fn() -> bool) -> Result<()> {
        let mut table = Table::new(self.memory.clone(), self.geometry, false);
        let mut completions = [Completion::EMPTY; BATCH];
        let mut early = Vec::new();
        while !stopped() {
            let count = self.cq.poll_into(&mut completions)?;
            let came = completions.iter().take(count).copied();
            for completion in std::mem::take(&mut early).into_iter().chain(came) {
                if !self.take(&mut table, &completion)? {
                    early.push(completion);
                }
            }
            let long = if early.is_empty() { TICK } else { SOON };
            match self.cq.wait_for(1, long) {
                Ok(_) | Err(rust_ulp::Error::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes a completion. Returns false for a message of a client that is not connected yet.
    fn take(&self, table: &mut Table<Buffer>, completion: &Completion) -> Result<bool> {
        let number = completion.qp_user_data;
        let is_good = completion.check().is_ok();
        let is_receive = completion.opcode == Opcode::Recv;
        let mut sessions = lock(&self.sessions);
        let mut served = true;
        match sessions.get(&number) {
            Some(None) if is_good && is_receive => return Ok(false),
            Some(Some(session)) if is_receive => {
                served = is_good && self.serve(table, session, completion)?;
            }
            Some(Some(_)) => served = is_good,
            _ => {}
        }
        let ended = match served {
            true => None,
            false => sessions.remove(&number),
        };
        drop(sessions);
        drop(ended);
        // A send has no lane.
        if completion.opcode != Opcode::Send {
            self.receive(completion.wr_id)?;
        }
        Ok(true)
    }

    /// Makes a change and answers. Returns whether the message makes sense and the answer leaves.
    fn serve(
        &self,
        table: &mut Table<Buffer>,
        session: &Session,
        completion: &Completion,
    ) -> Result<bool> {
        let start = completion.wr_id as usize * self.lane;
        let len = (completion.byte_len as usize).min(self.lane);
        let message = self.receives.to_vec(start..start + len)?;
        let Some((number, change)) = Change::decode(&message) else {
            return Ok(false);
        };
        if self.geometry.mode == Mode::OneSided {
            return Ok(false);
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        let answer = match change.value {
            Some(value) => table.put(change.key, value, None).map(Some),
            None => table.delete(change.key),
        };
        // The client knows the answer to the message that had this place before.
        let at = number as usize % WINDOW * ANSWER;
        session
            .answers
            .write_at(at, &encode_answer(number, &answer))?;
        let send = Send::new(session.answers.slice(at..at + ANSWER)?);
        Ok(session.qp.post(send.signaled(false)).is_ok())
    }
}
