// SPDX-License-Identifier: MIT OR Apache-2.0

//! A client of one server or of several.

use crate::control::{Members, MAX_MEMBERS};
use crate::error::{Error, Result};
use crate::layout::Geometry;
use crate::link::{Event, Link, Start, MAX_DEPTH};
use crate::op::{Kv, Op, Outcome, Value};
use crate::server::MOVING;
use crate::wire::Condition;
use hrw_hash::HrwNodes;
use rand::{rngs::SmallRng, Rng};
use rust_ulp::{Completion, Cq, Device};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

/// How often one operation connects again.
const CONNECTIONS: u32 = 3;
/// How long to wait for completions before looking for other things.
const TICK: Duration = Duration::from_millis(20);
/// Requests of a batch, at most.
const BATCH: usize = 512;
/// Entries of the completion queue.
const ENTRIES: u32 = 4096;

/// How a client is to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The device; the default one unless said.
    pub device: Option<String>,
    /// Operations under way at a time on one connection, at most [`MAX_DEPTH`]: 16.
    pub depth: usize,
    /// Locations of records that a client remembers per server: 65,536. A get of such a key takes
    /// one round trip.
    pub cache: usize,
    /// How long one operation may take: 60 s.
    pub patience: Duration,
    /// What the servers want clients to know.
    pub secret: Option<Vec<u8>>,
    /// Whether the client verifies records before it returns their values.
    pub(crate) verify: bool,
    /// Whether a get waits, within the first record that it reads, for a change of the second half.
    pub(crate) stall: bool,
}

#[cfg(feature = "test-hooks")]
impl Options {
    /// Makes the client return values without verification, so that a test sees torn ones.
    pub fn unverified(&mut self) {
        self.verify = false;
    }

    /// Makes gets stop within the first record that they read, as an adapter may, until something
    /// else was written there.
    pub fn stall(&mut self) {
        self.stall = true;
        // A record at a remembered place is not counted if it is torn.
        self.cache = 0;
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: None,
            depth: 16,
            cache: 1 << 16,
            patience: Duration::from_secs(60),
            secret: None,
            verify: true,
            stall: false,
        }
    }
}

/// What a client has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Round trips of all operations.
    pub round_trips: u64,
    /// Records that were read while they were changed, and were read again.
    pub torn: u64,
    /// Connections that were made anew.
    pub reconnects: u64,
}

impl std::ops::Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            round_trips: self.round_trips + other.round_trips,
            torn: self.torn + other.torn,
            reconnects: self.reconnects + other.reconnects,
        }
    }
}

/// A key for the hash that names its server. All machines hash the same bytes: those of a slice
/// where `usize` has 64 bits.
struct Placed<'a>(&'a [u8]);

impl Hash for Placed<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&(self.0.len() as u64).to_le_bytes());
        state.write(self.0);
    }
}

/// Which server has which key.
enum Places {
    /// The only one.
    One(String),
    /// That of the rendezvous hash.
    Many(HrwNodes<String>),
}

impl Places {
    fn new(names: &[String]) -> Self {
        match names {
            [only] => Self::One(only.clone()),
            names => Self::Many(HrwNodes::new(names.iter().cloned())),
        }
    }

    fn of(&self, key: &[u8]) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::Many(nodes) => nodes.sorted(&Placed(key)).next().map(String::as_str),
        }
    }
}

/// An operation of a run.
#[derive(Debug, Default)]
struct Task {
    /// The number of a write among those of the client; 0 before it has one.
    sequence: u64,
    /// The run of the server that it was sent to, and what went wrong then.
    sent: Option<(u64, String)>,
    connections: u32,
    begin: Option<Instant>,
    result: Option<Result<Outcome>>,
}

/// Operations that are carried out together.
struct Run<'a> {
    ops: &'a [Op<'a>],
    tasks: Vec<Task>,
    /// Those that are to begin.
    queue: VecDeque<usize>,
    left: usize,
}

impl<'a> Run<'a> {
    fn new(ops: &'a [Op<'a>]) -> Self {
        Self {
            ops,
            tasks: ops.iter().map(|_| Task::default()).collect(),
            queue: (0..ops.len()).collect(),
            left: ops.len(),
        }
    }
}

/// A client of one server or of several.
///
/// An operation whose connection breaks connects again, and is carried out once, as long as the
/// server still runs. Else it fails with [`Error::Gone`], and the next one for that server connects
/// to whatever server is there then.
pub struct Store {
    device: Device,
    cq: Cq,
    options: Options,
    /// The same for all connections.
    client: u64,
    members: Members,
    places: Places,
    links: Vec<Link>,
    serial: u32,
    /// The number of the next write.
    next_sequence: u64,
    /// Writes whose replies are not here.
    open: BTreeSet<u64>,
    /// This client moves keys.
    moving: bool,
    /// Of completions; empty between them.
    events: Vec<Event>,
    /// Of connections that are gone.
    past: Stats,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("members", &self.members)
            .field("links", &self.links)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Connects to servers, each HOST:PORT. Servers that know the members of their store tell them:
    /// then it is enough to name one of them. Else all clients have to give the same names, in any
    /// order: where a key is depends on them.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Corrupt`], [`Error::Refused`], [`Error::Rdma`],
    /// [`Error::NoServer`].
    pub fn connect<S: AsRef<str>>(servers: &[S], options: Options) -> Result<Self> {
        let device = match &options.device {
            Some(name) => Device::open(name)?,
            None => Device::open_default()?,
        };
        let names: Vec<String> = servers
            .iter()
            .map(|name| name.as_ref().to_owned())
            .collect();
        if names.is_empty() {
            return Err(Error::NoServer);
        }
        let mut store = Self {
            cq: device.create_cq(ENTRIES)?,
            device,
            options,
            client: rand::make_rng::<SmallRng>().next_u64(),
            places: Places::new(&names),
            members: Members { epoch: 0, names },
            links: Vec::new(),
            serial: 0,
            next_sequence: 1,
            open: BTreeSet::new(),
            moving: false,
            events: Vec::new(),
            past: Stats::default(),
        };
        let mut first = Err(Error::NoServer);
        for name in store.members.names.clone() {
            match store.link(&name) {
                Ok(_) => first = Ok(()),
                Err(error) if first.is_err() => first = Err(error),
                Err(_) => {}
            }
            // One that knows the others is enough.
            if store.members.epoch != 0 {
                break;
            }
        }
        first?;
        for name in store.members.names.clone() {
            store.link(&name)?;
        }
        store.past.reconnects = 0;
        Ok(store)
    }

    /// Takes over a newer list of members.
    fn adopt(&mut self, members: &Members) {
        if members.epoch > self.members.epoch && !members.names.is_empty() {
            self.members = members.clone();
            self.places = Places::new(&members.names);
        }
    }

    /// Returns the server of a key.
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn server_of(&self, key: &[u8]) -> Result<&str> {
        Op::get(key).check()?;
        self.places.of(key).ok_or(Error::NoServer)
    }

    /// Returns the index of a connection.
    fn index(&self, name: &str) -> Option<usize> {
        self.links.iter().position(|link| link.name == name)
    }

    fn link(&mut self, name: &str) -> Result<&mut Link> {
        let index = match self.index(name) {
            Some(index) => index,
            None => {
                let link = self.connect_link(name)?;
                self.past.reconnects += 1;
                self.adopt(&link.members.clone());
                self.links.push(link);
                self.links.len() - 1
            }
        };
        self.links.get_mut(index).ok_or(Error::NoServer)
    }

    /// Connects to a server. Tries again if the server hangs up during the attempt.
    fn connect_link(&mut self, name: &str) -> Result<Link> {
        let mut tries = 0;
        loop {
            self.serial = self.serial.wrapping_add(1);
            let ids = (self.client, self.serial);
            match Link::connect(name, ids, &self.device, &self.cq, &self.options) {
                Err(error) if error.is_hang_up() && tries < CONNECTIONS => tries += 1,
                done => return done,
            }
        }
    }

    // --- running operations -----------------------------------------------------------

    /// The epoch that requests have.
    fn epoch(&self) -> u64 {
        match self.moving {
            true => MOVING,
            false => self.members.epoch,
        }
    }

    fn finish(&mut self, run: &mut Run<'_>, n: usize, result: Result<Outcome>) {
        if let Some(task) = run.tasks.get_mut(n).filter(|task| task.result.is_none()) {
            if task.sequence != 0 {
                self.open.remove(&task.sequence);
            }
            task.result = Some(result);
            run.left -= 1;
        }
    }

    /// Begins operations while there are lanes for them.
    fn begin(&mut self, run: &mut Run<'_>) {
        let now = (!run.queue.is_empty()).then(Instant::now);
        while let Some((n, now)) = run.queue.front().copied().zip(now) {
            let ops = run.ops;
            let (Some(op), Some(task)) = (ops.get(n), run.tasks.get_mut(n)) else {
                break;
            };
            let begin = *task.begin.get_or_insert(now);
            let found = match op.check() {
                Ok(()) => self.server_of(op.key()).map(|name| self.index(name)),
                Err(error) => Err(error),
            };
            let link = match found {
                Ok(Some(index)) if task.sent.is_none() => self.links.get_mut(index),
                Ok(_) => None,
                Err(error) => {
                    run.queue.pop_front();
                    self.finish(run, n, Err(error));
                    continue;
                }
            };
            if link.as_ref().is_some_and(|link| !link.has_room()) {
                break;
            }
            if task.sequence == 0 && !matches!(op, Op::Get { .. }) {
                task.sequence = self.next_sequence;
                self.open.insert(self.next_sequence);
                self.next_sequence += 1;
            }
            let epoch = match self.moving {
                true => MOVING,
                false => self.members.epoch,
            };
            let start = Start {
                op: n,
                sequence: task.sequence,
                epoch,
                begin,
            };
            let started = match link {
                Some(link) => link.start(op, &start),
                // It is connected first, or anew.
                None => match self.start_anew(op, start, task.sent.clone()) {
                    Ok(true) => Ok(()),
                    Ok(false) => break,
                    Err(error) => Err(error),
                },
            };
            run.queue.pop_front();
            if let Err(error) = started {
                self.finish(run, n, Err(error));
            }
        }
    }

    /// As [`Link::start`], for an operation whose server is not connected, or whose connection was
    /// broken: `sent` is as in [`Task`]. Returns whether there was room.
    fn start_anew(
        &mut self,
        op: &Op<'_>,
        start: Start,
        sent: Option<(u64, String)>,
    ) -> Result<bool> {
        let name = self.server_of(op.key())?.to_owned();
        // As it is before the connection tells of other members.
        let link = match (self.link(&name), sent) {
            // The connection was broken, and there is no other, or none to the same server.
            (Err(_), Some((_, why))) => return Err(Error::Gone { server: name, why }),
            (Ok(link), Some((of, why))) if of != link.run || !link.known => {
                return Err(link.gone(&why));
            }
            (Err(error), None) => return Err(error),
            (Ok(link), _) => link,
        };
        if !link.has_room() {
            return Ok(false);
        }
        link.start(op, &start).map(|()| true)
    }

    /// Gives a connection up, and has its operations begin again on another.
    fn give_up(&mut self, run: &mut Run<'_>, name: &str, why: &str) {
        let Some(index) = self.index(name) else {
            return;
        };
        let mut link = self.links.remove(index);
        self.past = self.past + link.stats;
        for n in link.take_ops().into_iter().rev() {
            let gone = link.gone(why);
            let Some(task) = run.tasks.get_mut(n) else {
                continue;
            };
            task.connections += 1;
            task.sent = Some((link.run, why.to_owned()));
            if task.connections > CONNECTIONS {
                self.finish(run, n, Err(gone));
            } else {
                run.queue.push_front(n);
            }
        }
    }

    /// Posts what the operations want, and with `wait` sleeps until some of it is done.
    fn post(&mut self, run: &mut Run<'_>, wait: bool) {
        let (mut under_way, mut next, mut bad) = (0, None::<Instant>, Vec::new());
        let done = self.open.first().copied().unwrap_or(self.next_sequence);
        for link in &mut self.links {
            let woken = link.wake();
            match woken.and_then(|when| link.gather(run.ops, done).map(|()| when)) {
                Ok(when) => next = next.into_iter().chain(when).min(),
                Err(error) => bad.push((link.name.clone(), error.to_string())),
            }
            under_way += link.under_way;
        }
        let mut batch = self.device.batch();
        for link in &mut self.links {
            if let Err(error) = link.post(&mut batch, BATCH) {
                bad.push((link.name.clone(), error.to_string()));
            }
        }
        let pause = next.map_or(TICK, |next| next.saturating_duration_since(Instant::now()));
        let done = if wait && under_way > 0 {
            // Waiting for half of them takes fewer calls, and the other half stays in flight.
            let some = (under_way / 2).max(1);
            batch
                .submit_and_wait(&self.cq, some, pause.min(TICK))
                .map(drop)
        } else {
            let done = batch.submit().map(drop);
            if wait && next.is_some() {
                std::thread::sleep(pause.min(TICK));
            }
            done
        };
        drop(batch);
        match done {
            Ok(()) => {}
            Err(rust_ulp::Error::Timeout { .. }) => {
                for link in &self.links {
                    bad.extend(link.trouble().map(|why| (link.name.clone(), why)));
                }
            }
            // Whatever was not posted: all operations begin again.
            Err(error) => {
                let busy = self.links.iter().filter(|link| !link.is_idle());
                bad.extend(busy.map(|link| (link.name.clone(), error.to_string())));
            }
        }
        for (name, why) in bad {
            self.give_up(run, &name, &why);
        }
    }

    /// Takes completions.
    fn reap(&mut self, run: &mut Run<'_>, completions: &[Completion]) {
        let mut events = std::mem::take(&mut self.events);
        for completion in completions {
            let serial = Link::serial_of(completion.wr_id);
            let epoch = self.epoch();
            // Of a connection that was given up: nothing.
            let Some(link) = self.links.iter_mut().find(|link| link.is_serial(serial)) else {
                continue;
            };
            let done = link.complete(completion, (epoch, run.ops), |event| events.push(event));
            let broken = done
                .err()
                .map(|error| (link.name.clone(), error.to_string()));
            for event in events.drain(..) {
                match event {
                    Event::Nothing => {}
                    Event::Finished(n, result) => self.finish(run, n, result),
                    Event::Epoch(n) => self.other_epoch(run, n, serial),
                }
            }
            if let Some((name, why)) = broken {
                self.give_up(run, &name, &why);
            }
        }
        self.events = events;
    }

    /// Has an operation begin again with the members that its server knows.
    fn other_epoch(&mut self, run: &mut Run<'_>, n: usize, serial: u32) {
        let link = self.links.iter().find(|link| link.is_serial(serial));
        let Some(name) = link.map(|link| link.name.clone()) else {
            return;
        };
        let begin = run.tasks.get(n).and_then(|task| task.begin);
        if begin.is_some_and(|begin| begin.elapsed() > self.options.patience) {
            return self.finish(run, n, Err(Error::Contended { server: name }));
        }
        let before = self.members.epoch;
        match self.link(&name).and_then(Link::get_members) {
            Ok(members) => self.adopt(&members),
            Err(error) => return self.finish(run, n, Err(error)),
        }
        if self.members.epoch == before {
            // Keys move.
            std::thread::sleep(TICK);
        }
        run.queue.push_front(n);
    }

    /// Carries out operations, up to [`Options::depth`] of them at a time on each connection, in any
    /// order. The results are in the order of `ops`.
    ///
    /// The errors are [`Error::Key`], [`Error::TooLarge`], [`Error::Full`], [`Error::NoNumber`];
    /// [`Error::Gone`] if the server is gone, and the next time [`Error::Unreachable`];
    /// [`Error::Corrupt`], [`Error::Contended`], [`Error::Refused`], [`Error::Rdma`]. After those of
    /// [`Error::is_unknown`] a write may have happened.
    pub fn run(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>> {
        let mut run = Run::new(ops);
        let mut completions = [Completion::EMPTY; MAX_DEPTH];
        while run.left > 0 {
            self.begin(&mut run);
            if run.left == 0 {
                break;
            }
            self.post(&mut run, true);
            loop {
                let count = match self.cq.poll_into(&mut completions) {
                    Ok(count) => count,
                    Err(error) => return self.failed(run, error),
                };
                self.reap(&mut run, completions.get(..count).unwrap_or_default());
                if count < completions.len() {
                    break;
                }
            }
        }
        results(run)
    }

    /// As [`Self::run`], for a task of tokio: it waits without a thread. Connecting again does not.
    ///
    /// A future that is dropped leaves its operations as they are: a write may have happened.
    ///
    /// # Panics
    ///
    /// Outside of a runtime of tokio that has I/O and time enabled.
    #[cfg(feature = "tokio")]
    pub async fn run_async(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>> {
        // What is left of a run that was dropped.
        let mut dropped = Run::new(&[]);
        let busy = self.links.iter().filter(|link| !link.is_idle());
        for name in busy.map(|link| link.name.clone()).collect::<Vec<_>>() {
            self.give_up(&mut dropped, &name, "an earlier run was dropped");
        }
        let mut run = Run::new(ops);
        let mut completions = [Completion::EMPTY; MAX_DEPTH];
        let mut cq = match rust_ulp::AsyncCq::new(&self.cq) {
            Ok(cq) => cq,
            Err(error) => return self.failed(run, error),
        };
        while run.left > 0 {
            self.begin(&mut run);
            self.post(&mut run, false);
            let waited = tokio::time::timeout(TICK, cq.wait_into(&mut completions)).await;
            match waited {
                Ok(Ok(count)) => {
                    self.reap(&mut run, completions.get(..count).unwrap_or_default());
                }
                Ok(Err(error)) => return self.failed(run, error),
                Err(_) => {
                    let links = self.links.iter();
                    let bad = links.filter_map(|link| Some((link.name.clone(), link.trouble()?)));
                    for (name, why) in bad.collect::<Vec<_>>() {
                        self.give_up(&mut run, &name, &why);
                    }
                }
            }
        }
        results(run)
    }

    /// Ends a run whose completions cannot be taken any more.
    fn failed(&mut self, mut run: Run<'_>, error: rust_ulp::Error) -> Vec<Result<Outcome>> {
        let why = error.to_string();
        for mut link in std::mem::take(&mut self.links) {
            let name = link.name.clone();
            link.take_ops();
            self.past = self.past + link.stats;
            for n in 0..run.tasks.len() {
                let (server, why) = (name.clone(), why.clone());
                self.finish(&mut run, n, Err(Error::Gone { server, why }));
            }
        }
        results(run)
    }

    fn one(&mut self, op: Op<'_>) -> Result<Outcome> {
        self.run(&[op]).pop().unwrap_or(Err(Error::NoServer))
    }

    // --- operations -------------------------------------------------------------------

    /// Returns the value of a key, if it has one.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_value(key)?.map(|value| value.bytes))
    }

    /// Returns the value of a key with its version, if it has one.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn get_value(&mut self, key: &[u8]) -> Result<Option<Value>> {
        match self.one(Op::get(key))? {
            Outcome::Value(value) => Ok(value),
            _ => Ok(None),
        }
    }

    /// Sets the value of a key, and returns its version.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64> {
        Ok(self
            .put_if(key, value, None, Condition::Always)?
            .unwrap_or(0))
    }

    /// Sets the value of a key if the condition is met, for a time if there is one. Returns the
    /// version; [`None`] if the condition was not met.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn put_if(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
        only_if: Condition,
    ) -> Result<Option<u64>> {
        let op = Op::Put {
            key,
            value,
            ttl,
            only_if,
        };
        match self.one(op)? {
            Outcome::Written(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Deletes a key. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let only_if = Condition::Always;
        Ok(self.one(Op::Delete { key, only_if })? == Outcome::Deleted(true))
    }

    /// Adds to the decimal number that is the value of a key, and returns the sum.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn add(&mut self, key: &[u8], by: i64) -> Result<i64> {
        match self.one(Op::Add { key, by })? {
            Outcome::Sum(sum) => Ok(sum),
            _ => Ok(0),
        }
    }

    /// Returns the values of many keys, in their order. Each is as [`Self::get`] would give it at
    /// some time during the call; all of them together are no snapshot.
    ///
    /// # Errors
    ///
    /// As [`Self::run`]: the first error.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let ops: Vec<Op<'_>> = keys.iter().map(|key| Op::get(key.as_ref())).collect();
        let value = |result: Result<Outcome>| match result {
            Ok(Outcome::Value(value)) => Ok(value.map(|value| value.bytes)),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        };
        self.run(&ops).into_iter().map(value).collect()
    }

    /// Calls `each` with every key and the length of its value. Keys that come or go during the
    /// call may be among them or not.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn list(&mut self, mut each: impl FnMut(&[u8], usize)) -> Result<()> {
        for name in self.members.names.clone() {
            for (key, (len, _)) in self.list_of(&name)? {
                each(&key, len);
            }
        }
        Ok(())
    }

    fn list_of(&mut self, name: &str) -> Result<std::collections::BTreeMap<Vec<u8>, (usize, u32)>> {
        let cq = self.cq.clone();
        let listed = self.link(name)?.list(&cq);
        if listed.is_err() {
            self.give_up(&mut Run::new(&[]), name, "");
        }
        listed
    }

    /// Changes the members of the store, and moves the keys whose server is another one then.
    /// Returns how many keys were moved.
    ///
    /// Until that is done, gets are answered, and the servers refuse writes, which their clients
    /// repeat. If it fails, connect to the same servers
    /// and do it again: it continues.
    ///
    /// # Errors
    ///
    /// As [`Self::run`], and [`Error::Refused`].
    pub fn set_members(&mut self, names: &[String]) -> Result<u64> {
        if names.is_empty() || names.len() > MAX_MEMBERS {
            return Err(Error::NoServer);
        }
        // Those that this client was told, too: an earlier attempt may have left keys there.
        let linked = self.links.iter().map(|link| &link.name);
        let old = self.members.names.iter().chain(linked);
        let mut all: Vec<String> = names.iter().chain(old).cloned().collect();
        let mut unique = HashSet::new();
        all.retain(|name| unique.insert(name.clone()));
        let mut epoch = self.members.epoch;
        for name in &all {
            epoch = epoch.max(self.link(name)?.members.epoch);
        }
        let members = Members {
            epoch: epoch + 1,
            names: names.to_vec(),
        };
        // Nobody writes from here on, so no version from `next_version` on was given to any key.
        let next_version = self.tell(&all, &members, true, 0)?;
        self.members = members.clone();
        self.places = Places::new(names);
        self.moving = true;
        let moved = self.move_keys(&all);
        self.moving = false;
        let moved = moved?;
        self.tell(&all, &members, false, next_version)?;
        Ok(moved)
    }

    /// Tells servers the members. Returns the last of the versions that they give next.
    fn tell(
        &mut self,
        names: &[String],
        members: &Members,
        moving: bool,
        next_version: u64,
    ) -> Result<u64> {
        let mut last = next_version;
        for name in names {
            last = last.max(
                self.link(name)?
                    .set_members(members, moving, next_version)?,
            );
        }
        Ok(last)
    }

    /// Puts each key to its server with the version and the expiry that it has, and deletes it where
    /// it was.
    fn move_keys(&mut self, from: &[String]) -> Result<u64> {
        let mut count = 0;
        for name in from {
            for (key, (_, expires)) in self.list_of(name)? {
                if self.server_of(&key)? == name {
                    continue;
                }
                let here = Places::One(name.clone());
                let there = std::mem::replace(&mut self.places, here);
                let value = self.get_value(&key);
                let here = std::mem::replace(&mut self.places, there);
                if let Some(Value { bytes, version }) = value? {
                    let (key, value) = (&key[..], &bytes[..]);
                    self.one(Op::Move {
                        key,
                        value,
                        version,
                        expires,
                    })?;
                }
                let there = std::mem::replace(&mut self.places, here);
                let deleted = self.delete(&key);
                self.places = there;
                deleted?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Returns the members of the store.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Returns whether a key's server has hung up on this client.
    ///
    /// # Errors
    ///
    /// [`Error::Key`].
    pub fn is_over(&self, key: &[u8]) -> Result<bool> {
        let index = self.index(self.server_of(key)?);
        let link = index.and_then(|index| self.links.get(index));
        Ok(link.is_none_or(Link::is_over))
    }

    /// Returns each server's name, the number of its run, and the sizes of its table.
    pub fn servers(&self) -> impl Iterator<Item = (&str, u64, &Geometry)> {
        let links = self.links.iter();
        links.map(|link| (link.name.as_str(), link.run, link.geometry()))
    }

    /// Returns what it has met.
    pub fn stats(&self) -> Stats {
        self.links
            .iter()
            .fold(self.past, |all, link| all + link.stats)
    }

    /// Ends the queue pair to a key's server, as an error of the network does.
    ///
    /// # Errors
    ///
    /// [`Error::Key`], [`Error::Rdma`].
    #[cfg(feature = "test-hooks")]
    pub fn break_link(&mut self, key: &[u8]) -> Result<()> {
        let name = self.server_of(key)?.to_owned();
        self.link(&name)?.break_qp()
    }
}

/// Returns the results of a run that is over.
fn results(run: Run<'_>) -> Vec<Result<Outcome>> {
    let tasks = run.tasks.into_iter();
    tasks
        .map(|task| task.result.unwrap_or(Err(Error::NoServer)))
        .collect()
}

impl Kv for Store {
    fn run(&mut self, ops: &[Op<'_>]) -> Vec<Result<Outcome>> {
        Store::run(self, ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is hashed, in no form that a machine chooses.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Hasher for Bytes {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend(bytes);
        }
        fn write_usize(&mut self, _: usize) {
            panic!("its size depends on the machine");
        }
        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn every_machine_hashes_the_same_bytes() {
        let mut bytes = Bytes::default();
        Placed(b"name").hash(&mut bytes);
        assert_eq!(bytes.0, b"\x04\0\0\0\0\0\0\0name");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn keys_stay_where_they_were() {
        let names = ["10.9.0.1:7170", "10.9.0.2:7170", "10.9.0.3:7170"].map(str::to_owned);
        let nodes = HrwNodes::new(names.iter().cloned());
        for n in 0..100 {
            let key = format!("key {n}");
            let slice = key.as_bytes();
            let then: Vec<_> = nodes.sorted(&slice).collect();
            let placed = Placed(key.as_bytes());
            let now: Vec<_> = nodes.sorted(&placed).collect();
            assert_eq!(now, then);
        }
    }
}
